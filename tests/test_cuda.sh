#!/usr/bin/env bash
# The CUDA trainer from outside, on the emulator: it and the C trainer go on with each other's runs;
# what cannot be trained says so in a line; and test_gpt2.cu finds faults planted in train_gpt2.cu
# and in dev/ranks.
#
#     EMULATED=./train_gpt2cu tests/test_cuda.sh       the same on a GPU, without the planted faults
#     FAULTS=1 tests/test_cuda.sh                      plants them all, not one in sixty
. "$(dirname "$0")/tools.sh"
set -u

close() {                                   # close RUN RUN PART [KEY]: losses of all steps
    within "${4:-loss} of $1 and $2" "$(apart "${4:-loss}" "$1" "$2")" "$3"
}

if [ ! -x "$emulated" ]; then
    skip the_twins_go_on_with_each_others_runs "needs $emulated (make emulate)"
else
    # ---- one run, by either twin and by both
    works "$prepare" tales --out "$dir/tales" --tokens 30000
    small="--data $dir/tales --layers 2 --heads 2 --channels 16 --seq-len 16 --micro-batch 4
           --batch-tokens 128 --eval-every 0 --eval-tokens 64 --lr 1e-2 --clip 0.5"
    whole="$small --steps 4 --lr-schedule constant"
    works "$train" $whole --out "$dir/cpu"
    works "$emulated" $whole --out "$dir/gpu"
    # In bf16 a loss moves by what its logits do, 2^-8 of them; over 4 updates by some times that.
    part=2e-2
    grep -q ': fp32;' "$dir/stdout" && part=1e-4
    close cpu gpu $part
    end the_twins_have_the_same_losses

    for first in train emulated; do
        [ $first = train ] && second=emulated || second=train
        works "${!first}" $whole --steps 2 --out "$dir/$first"
        [ $first = train ] || cp -r "$dir/$first" "$dir/cut"
        works "${!second}" --resume --steps 4 --out "$dir/$first"
        close cpu $first $part
    done
    end the_twins_go_on_with_each_others_runs

    works "$emulated" --resume --steps 4 --recompute block --threads 1 --out "$dir/cut"
    same_files gpu cut
    end a_resumed_run_has_the_bits_of_a_straight_one

    # Plain SGD, averaged weights and the loss on training tokens.
    flags="--optimizer sgd --average-tokens 500 --eval-train"
    works "$train" $whole $flags --out "$dir/cpu-average"
    works "$emulated" $whole $flags --out "$dir/gpu-average"
    close cpu-average gpu-average $part
    for key in val_loss val_loss_average train_eval_loss; do
        near "$key" "$(last eval $key gpu-average)" "$(last eval $key cpu-average)" $part
    done
    works "$emulated" $whole $flags --steps 2 --out "$dir/sgd-again"
    works "$emulated" --resume --steps 4 --out "$dir/sgd-again"
    same_files gpu-average sgd-again
    end the_twins_average_and_know_sgd

    # A small gradient's squared length is off by about as much as the gradient: by some 2^-8 in
    # bf16. What is made of two sizes takes the difference of such numbers, here of 1.5 to 1.
    growing="$small --batch-tokens 256 --steps 4 --batch-schedule linear:128,500 --batch-lr sqrt"
    works "$train" $growing --noise-scale --out "$dir/cpu-noise"
    works "$emulated" $growing --noise-scale --out "$dir/gpu-noise"
    grep -q '^noise  *batch 256 tokens, noise scale [0-9]' "$dir/stdout" ||
        note "no word on the noise"
    for key in loss noise_g2 noise_s noise_scale; do
        close cpu-noise gpu-noise $part $key
    done
    # Adam's metric, from update 21 on, weighs most what is small, and rounded most: 2.7% measured.
    for twin in train emulated; do
        works "${!twin}" $small --layers 1 --heads 1 --batch-tokens 32 --micro-batch 1 \
            --noise-scale --steps 22 --out "$dir/$twin-adam"
    done
    close train-adam emulated-adam "$(awk "BEGIN { print 3 * $part }")" noise_s_adam
    for key in batch_tokens lr noise_small_batch noise_smalls; do
        close cpu-noise gpu-noise 0 $key
    done
    same "bytes of gradients kept apart" "$(last start bytes_grads gpu-noise)" \
        $((2 * $(last start bytes_grads gpu)))
    end the_twins_measure_the_same_noise

    # Where a copy or a kernel comes as late as it may.
    works env EMULATOR_STREAMS=late "$emulated" $whole --out "$dir/late"
    same_files gpu late
    end what_runs_late_changes_no_bit

    for i in 1 2; do
        works "$emulated" --init "$dir/cpu" --generate "Once upon" --max-new 20 --seed 3
        mv "$dir/stdout" "$dir/text$i"
    done
    cmp -s "$dir/text1" "$dir/text2" || note "one seed, two texts"
    [ "$(head -c 9 "$dir/text1")" = "Once upon" ] || note "the prompt is not printed"
    [ "$(wc -c < "$dir/text1")" -gt 20 ] || note "it wrote nothing: $(cat "$dir/text1")"
    works "$train" --init "$dir/gpu" --generate "Once upon" --max-new 40
    end each_writes_with_the_others_model

    # ---- what cannot be trained
    base="--data $dir/tales --layers 1 --seq-len 16 --micro-batch 1 --steps 1"
    one_line "heads of 136 channels" "$emulated" $base --heads 1 --channels 136
    one_line "--channels" "$emulated" $base --heads 1 --channels 6
    one_line "positions" "$emulated" --data "$dir/tales" --init "$dir/cpu" --seq-len 32
    memory=710000000                        # 144 MiB for products, 512 for the driver; the rest
    if [ "$emulated" != ./train_gpt2cu ]; then
        one_line "GPU" env EMULATOR_DEVICES=0 "$emulated" $base --heads 1 --channels 8
        one_line "sm_75" env EMULATOR_CAPABILITY=75 "$emulated" $base --heads 1 --channels 8
        one_line "GPU: the driver knows CUDA 12.8, and this program was built with 13.0;" \
            env EMULATOR_DRIVER=12080 "$emulated" $base --heads 1 --channels 8
        works env EMULATOR_DRIVER=13020 "$emulated" $base --heads 1 --channels 8 --steps 0 \
            --eval-tokens 64
        env EMULATOR_MEMORY=$memory "$emulated" $base --micro-batch 4096 --seq-len 64 \
            --heads 4 --channels 64 > "$dir/stdout" 2> "$dir/stderr"
        [ $? -eq 1 ] || note "out of memory does not end with 1"
        grep -q -- "--micro-batch [0-9]* fits" "$dir/stderr" || note "what fits is not told"
        grep -q "activations" "$dir/stderr" || note "what takes the memory is not told"
        awk '/ in all$/ { d = sum - $1; whole = 1 } !whole { sum += $1 }
             END { exit !(whole && d < 1 && d > -1) }' <(grep '^  ' "$dir/stderr") ||
            note "what takes the memory is not 'in all': $(grep '^  ' "$dir/stderr" | xargs)"
        fits=$(sed -n 's/.*; --micro-batch \([0-9]*\) fits.*/\1/p' "$dir/stderr")
        works env EMULATOR_MEMORY=$memory "$emulated" --data "$dir/tales" --layers 1 \
            --micro-batch "${fits:-0}" --heads 4 --channels 64 --seq-len 64 --steps 0 \
            --eval-tokens 64
    fi
    end what_cannot_be_trained_says_so
fi

# ---- planted faults: each line is a test of test_gpt2.cu, the file unless it is train_gpt2.cu, and
# how to break what the test tests
faults() { cat <<'FAULTS'
embedding|s/wpe + (size_t)t\*C + c/wpe + (size_t)(t + 1)*C + c/
embedding|/__global__ void embedding_backward_words/,/^}/ s/__syncthreads();//
embedding|s/if (token\[n\] >= 0) load(place/load(place/
embedding|s/if (token\[n\] >= 0) order/order/
embedding|s/i < begin\[blockIdx.x + 1\]; i += 8/i < begin[blockIdx.x + 1] - 1; i += 8/
layernorm|/__global__ void layernorm_forward/,/^}/ s/if (n >= N) return;/if (n + 1 >= N) return;/
layernorm|/^layernorm_backward_kernel/,/^}/ s/__syncthreads();//
layernorm|/^layernorm_backward_kernel/,/^}/ s/mean_gx) \* r + came/mean_g) * r + came/
layernorm|s/body(KEPT, c)/body(KEPT - 1, c)/
layernorm|s/int c = p.first + KEPT\*p.step/int c = p.first + (KEPT + 1)*p.step/
layernorm|s/columns_add(db, came, c, C);//
layernorm|s/place = i - c + 4\*column_place.*/place = i;/
loss_and_every_gradient|s/dw.mlp_proj_b, dx, dln2/dw.att_proj_b, dx, dln2/
linear|/__global__ void bias_backward/,/^}/ s/__syncthreads();//
linear|s/residual ? (const void \*)e.other : c;/c;/
linear|/__global__ void column_sums/,/^}/ s/p < parts; p/p < parts - 1; p/
attention dev/cuda/attention_tiles.cu|/void steps_pass/,/^}/ s/__syncthreads();     //
attention dev/cuda/attention_tiles.cu|/void steps_begin/,/^}/ s/STAGES - 2/STAGES - 1/
attention dev/cuda/attention_tiles.cu|s/i) > lane_row(row + 16\*m, half);/i) > lane_row(row + 16*m, half) + 1;/
attention dev/cuda/attention_tiles.cu|s/if (col + 16\*N - 1 <= row) return;/if (col <= row) return;/
attention dev/cuda/attention_tiles.cu|s/return row + 8\*half + lane/return row + 8*(1 - half) + lane/
attention dev/cuda/attention_tiles.cu|s/(lane()\/16\*8 + lane()%8)\*length + lane()\/8%2\*8/lane()%16*length + lane()\/16*8/
attention dev/cuda/attention_tiles.cu|s/s.at(i%2, i\/2\*2), s.at(i%2/s.at(i\/2, i%2*2), s.at(i\/2/
attention dev/cuda/attention_tiles.cu|/void steps_pass/,/^}/ s/wait<LAST - 1>/wait<LAST>/
attention dev/cuda/attention_tiles.cu|/void steps_pass/,/^}/ s/: LAST, col + LAST/: LAST - 1, col + LAST/
attention dev/cuda/attention_tiles.cu|/void step_load/,/^}/ s/    copy_async_commit();  .*/    if (col < end) copy_async_commit();/
attention dev/cuda/attention_tiles.cu|/^attention_dk_dv_kernel/,/^}/ s/max(row - col, 0)/max(row - col + 16, 0)/
attention dev/cuda/attention_tiles.cu|/^attention_dk_dv_kernel/,/^}/ s/accumulate<V>(dv, p,/accumulate<V>(dv, ds,/
attention dev/cuda/attention_tiles.cu|/^attention_dk_dv_kernel/,/^}/ s/lane_column(0, i)\].y/lane_column(0, 2 - i)].y/
attention dev/cuda/attention_tiles.cu|/^attention_dq_kernel/,/^}/ s/min(row + 16\*M - col,/min(row - col,/
attention dev/cuda/attention_tiles.cu|/^attention_dk_dv_kernel/,/^}/ s/i) >= lane_row(/i) > lane_row(/
attention dev/cuda/attention_tiles.cu|/^attention_dq_kernel/,/^}/ s/i) <= lane_row(row + 16\*m, half);/i) <= lane_row(row + 16*m, half) + 1;/
attention dev/cuda/attention_tiles.cu|/void own_store/,/^}/ s/row + r < T \&\&/row + r < T - 1 \&\&/
attention dev/cuda/attention_tiles.cu|/void own_store/,/^}/ s/__syncwarp();//
attention|/attention_backward_plain_kernel/,/^}/ s/__syncwarp();//
attention|/attention_forward_plain_kernel/,/^}/ s/__syncthreads(); .*read, before.*//
attention|/attention_backward_plain_kernel/,/^}/ s/__syncthreads(); .*read, before.*//
attention|/attention_forward_plain_kernel/,/^}/ s/if (t >= T) return/if (t >= T - 1) return/
attention|/__global__ void attention_rows/,/^}/ s/c + k >= begin \&\& //
attention|/__global__ void attention_rows/,/^}/ s/int i = 4; i > 0/int i = 4; i > 1/
heads_in_groups|s/blockIdx.z\*gridDim.x + blockIdx.x/blockIdx.z + blockIdx.x/
heads_in_groups|s/while (heads % group != 0) group--;//
attention_from_a_cache dev/cuda/attention_tiles.cu|/void own_store/,/^}/ s/row + r >= first \&\& //
gelu|s/0.044715f \* v\[k\]\*v\[k\]\*v\[k\]/0.0447f * v[k]*v[k]/
xent|/Softmax row_softmax/,/^}/ s/__syncthreads();//
xent|s/float share = v + k < V ? \(.*\) : 0.0f;/float share = \1;/
xent|/LogitRow(const real/,/^    }/ s/copy_async_wait<0>();//
xent|s/else load(x, from + v);/else load(x, from);/
xent|/void row_gradient/,/^}/ s/LogitRow::packs(Vp)/LogitRow::packs(V)/
xent dev/ranks/tensor_model.cu|s/part.sum \* __expf(part.hi - whole.hi)/part.sum/
xent dev/ranks/tensor_model.cu|s/target\[n\] < 0 ? 0.0f : //
classifier|/static void classifier_launch/,/^}/ s/targets + n, m->batch.scale,$/targets, m->batch.scale,/
buckets dev/ranks/kernels.cu|/^static void bucket_copy/,/^}/ s/here -= padding/here -= 1/
sums_along_the_tree dev/ranks/kernels.cu|/void tree_sum_kernel/,/^}/ s/= levels\[l\]\[w\] + sum/= 0 + sum/
buckets dev/ranks/kernels.cu|/^void bucket_take/,/^}/ s/params_own(p, bucket),/{ 0, 64 },/
buckets dev/ranks/params.c|/Buffer kept_buffer/,/^}/ s/p->adam_m/p->adam_v/
adamw_updates|s/if ((void \*)rounded != (void \*)p) store/if (i > 0) store/
adamw_updates|/double block_sum/,/^}/ s/__syncthreads();//
small_gradients dev/ranks/kernels.cu|/void measure_kernel/,/^}/ s/squares\[blockIdx.x\] +=/squares[blockIdx.x] =/
adamw_updates|/void clip_kernel/,/^}/ s/!isfinite(norm) ? NAN : //
adamw_updates|s/limit > 0.0 \&\& norm > limit/norm > limit/
adamw_updates|/void adamw_kernel/,/^}/ s/if (isnan(scale)) return;//
adamw_updates|/void clip_kernel/,/^}/ s/i < n/i < 1/
axpby dev/ranks/kernels.cu|/void axpby_kernel/,/^}/ s/fmaf(a, from\[k\], to\[k\])/fmaf(a, from[k], 0.0f)/
buckets dev/ranks/kernels.cu|/void convert_kernel/,/^}/ s/if (i\*W >= n)/if (i*W + W >= n)/
recomputing_changes_no_bit|/RECOMPUTE_BLOCK \&\& l < L - 1/,/block_backward/ s/to_gelu(m, w->block\[l\]/to_gelu(m, w->block[0]/
a_graph_changes_no_bit|/static void model_micro_step/,/^}/ s/    send_scale(m/    if (!m->graph.exec) send_scale(m/
a_graph_changes_no_bit|s/    int words = send_order(m,/    static const int words = send_order(m,/
a_graph_changes_no_bit|s/bool whole = .*/bool whole = true;/
a_graph_changes_no_bit|/static void model_micro_step/,/^}/ s/ || !m->params.alone//
a_graph_changes_no_bit|/static void forward_launch/,/^}/ s/forward_needs(p, 0);/gpu_wait(m->gpu); &/
a_graph_changes_no_bit dev/cuda/graph.h|s/if (!g->exec) graph_capture(g, stream, work);/if (!g->exec) { graph_capture(g, stream, work); return; }/
sums_in_place_round_nothing dev/cuda/product.h|s/uint32_t sums = .*/uint32_t sums = CUBLASLT_REDUCTION_SCHEME_MASK;/
epilogues_that_are_not_there dev/cuda/product.h|s/p->found = status == CUBLAS_STATUS_SUCCESS; .*/CUBLAS_CHECK(status);/
epilogues_that_are_not_there|s/sum\[k\] += b\[k\] + came\[k\];/sum[k] += b[k];/
epilogues_that_are_not_there|/void bias_forward_kernel/,/^}/ s/sum\[k\] += b\[k\]/sum[k] += 2*b[k]/
epilogues_that_are_not_there|s/load(b, bias + i % OC)/load(b, bias + i % PACK)/
epilogues_that_are_not_there dev/cuda/product.h|/^static bool product_run/,/^}/ s/return p->found;/return true;/
linear_gelu|/^static void gelu_linear_backward_data/,/^}/ s/bias_backward(db_pre, dpre, N,/bias_backward(db_pre, dpre, (N + 1)\/2,/
linear_gelu|s/bool fused = sizeof(real) < sizeof(float)/bool fused = true/; 1i #define PRECISION_FP32
sums_in_place_round_nothing dev/cuda/product.h|s/if (p->key.type_c == CUDA_R_32F) sums/sums/
memory_is_left_to_others dev/cuda/machine.cu|s/(g->ranks > 1 ? FOR_NCCL : 0.0)/0.0/
grids_are_whole_waves|s/min_size(room, norm_blocks(norm_kept(C)))/3/
grids_are_whole_waves|s/sharedMemPerMultiprocessor \/ XENT_BLOCKS/sharedMemPerMultiprocessor/
real_shapes dev/cuda/product.h|s/CUBLASLT_EPILOGUE_GELU_AUX_BIAS, /CUBLASLT_EPILOGUE_BIAS, /
real_shapes|s/out\[c\] += sum;/out[c] = sum;/
FAULTS
}
[ "$emulated" = ./train_gpt2cu ] && exit $failed

reference="$build/gpt2_reference.o $build/library.a $build/emulated/library.a"
make -s "$build/rewrite" "$build/emulated/test_gpt2-bf16" || note "test_gpt2 does not compile"

# tree DIR FILE: what test_gpt2.cu needs of the project, where FILE may be changed.
tree() {
    mkdir -p "$1/tests" && cp train_gpt2.cu "$1" && cp tests/test_gpt2.cu \
        tests/real_shapes.cu tests/*.h "$1/tests" &&
        ln -s "$PWD/dataloader.h" "$1" || return 1
    case $2 in
        dev/*) cp -r dev "$1" ;;
        *) ln -s "$PWD/dev" "$1" ;;
    esac
}

# build DIR FILE: that tree's test_gpt2.cu; or the one that make has built, with that tree's FILE.c
# in place of the library's.
build() {
    local sources="-x c++ -DTRAINS_ON_GPU $1/$2 -x none $build/emulated/test_gpt2-bf16.o"
    case $2 in
        *.c) ;;
        *) "$build/rewrite" "$1/tests/test_gpt2.cu" > "$1/test.cpp" && sources=$1/test.cpp ;;
    esac
    "$cxx" -std=c++17 -O0 -w -DEMULATOR -DWITH_NCCL -Idev/emulator/include $sources $reference \
        -o "$1/test" -lm -fopenmp
}

# plant NUMBER TEST FILE SED: says what went unnoticed.
plant() {
    local tree=$dir/fault$1
    if sed "$4" "$3" | cmp -s - "$3"; then echo "it changes nothing: $4"; return; fi
    has_its_turn "$1" "$every" || return
    tree "$tree" "$3" && sed "$4" "$3" > "$tree/$3"
    if ! build "$tree" "$3" 2> "$tree/said"; then echo "it does not compile: $4"; return; fi
    timeout 200 "$tree/test" "$2" > "$tree/said" 2>&1 && echo "unnoticed: $4"
    rm -rf "$tree"
}

number=0 every=${FAULTS:-60}
while IFS='|' read -r place fault; do
    number=$((number + 1))
    read -r test file <<< "$place"
    plant $number "$test" "${file:-train_gpt2.cu}" "$fault" >> "$dir/unnoticed" &
    while [ "$(jobs -rp | wc -l)" -ge 2 ]; do wait -n; done
done < <(faults)
wait
unnoticed=$(wc -l < "$dir/unnoticed")
[ "$unnoticed" -eq 0 ] || note "$unnoticed of $number: $(head -n 1 "$dir/unnoticed")"
echo "    one in $every of $number faults"
end planted_faults_are_found
exit $failed
