#!/usr/bin/env bash
# Tensor parallel on CPUs, under mpirun: that ranks which share every layer train what one rank
# trains, with what each sends, keeps, saves and refuses. One thread a rank, tiny models.
#
# TRAIN_MPI names another binary built with MPI=1; PREPARE and COMPARE as elsewhere. What finds
# faults that are planted in the ranks' sums: tests/test_hooks.sh.
. "$(dirname "$0")/tools.sh"
. tests/ranks.sh
. tests/ranks_rows.sh
tests="ranks_that_share_layers_train_what_one_rank_trains
    tensor_parallel_sends_and_keeps_what_the_formula_says tensor_parallel_refuses_in_one_line
    tensor_parallel_in_bf16 a_changed_block_is_changed_on_all_ranks"
needs mpicc mpirun
[ -x "$mpi_train" ] || skip_all "there is no $mpi_train: make test-all builds it where mpicc is"

program=$dir/train_gpt2 base=$layers
cp "$mpi_train" "$program" || exit 1
"$prepare" tales --out "$dir/tales" --tokens 60000 --seed 5 > "$dir/stdout" || exit 1
few_words
good 1 $layers --steps 1 --out "$dir/first"
[ "$(last start precision first)" = '"fp32"' ] || skip_all "its limits are those of fp32"

# ---- the same numbers ----

rows < <(shares)
row without 1 whole bits --tensor-parallel 1         # no sum is taken
# Here each micro-batch's gradient has a buffer of its own, measured before it is added.
row small2 2 whole 2e-6 --noise-scale --tensor-parallel 2
same "files" "$(ls "$dir/share4/latest")" "$(ls "$dir/whole/latest")"
good 1 --resume --generate Once --out "$dir/share4" --max-new 20
end ranks_that_share_layers_train_what_one_rank_trains

# ---- traffic and memory ----

# Numbers of a micro-batch: (4L+2) B T C summed, of which a rank sends 2(n-1)/n, and 3 B T
# collected, which go to n-1 ranks. The norm's totals are the rest. Data parallel adds
# 2 Psi (n-1)/n for a share of the model.
large="--data $dir/tales --seq-len 32 --micro-batch 2 --layers 3 --heads 4 --channels 128 --steps 2
       --warmup-tokens 0 --eval-every 0 --eval-tokens 64"
for shape in "4 4 2" "4 2 1"; do
    read -r ranks cut micro_batches <<< "$shape"
    run=sent$cut flags="$large --tensor-parallel $cut"
    flags+=" --batch-tokens $((64 * ranks / cut * micro_batches)) --no-overlap"
    good $ranks $flags --out "$dir/$run"
    read -r share sent <<< "$(awk -v n=$cut -v D=$((ranks / cut)) -v A=$micro_batches 'BEGIN {
        L = 3; C = 128; BT = 64; V = int((257 + n - 1) / n)
        block = 12*C*C/n + (3 + 4)*C/n + 6*C; share = (V + 32)*C + L*block + 2*C
        sums = 2*(n - 1)/n * (4*L + 2)*BT*C + (n - 1) * 3*BT
        printf "%.0f %.0f", 4*share, 4*(A*sums + 2*(D - 1)/D * share) }')"
    near "bytes sent, $cut ranks a model" "$(last step bytes_sent $run)" "$sent" 0.01
    near "parameters, $cut ranks a model" "$(last start bytes_params $run)" "$share" 0.001
done
# --plan counts the same bytes; what it allocates: tests/test_model.c.
mkdir "$dir/plan"
"$program" --plan --plan-gpu here@1,4 $large --batch-tokens 128 --tensor-parallel 4 \
    --log "$dir/plan/log.jsonl" > "$dir/stdout" || note "no plan"
for key in bytes_params bytes_grads bytes_moments bytes_passing; do
    same "the plan's $key" "$(last plan $key plan)" "$(last start $key sent4)"
done
near "the plan's traffic" "$(last plan traffic_bytes plan)" "$(last step bytes_sent sent4)" 0.01
end tensor_parallel_sends_and_keeps_what_the_formula_says

# ---- bad input ----

refuses "2 ranks cannot share 3 heads" 2 $layers --heads 3 --channels 24 --tensor-parallel 2
refuses "3 does not divide 4 ranks" 4 $layers --tensor-parallel 3
mpi 1 --resume --out "$dir/share2"
grep -q "^train_gpt2: --tensor-parallel: 2 does not divide 1 rank" "$dir/stderr" ||
    note "one rank alone goes on with 2 ranks a model: $(head -n 1 "$dir/stderr")"
end tensor_parallel_refuses_in_one_line

# ---- other builds ----

# build_with COMPILER'S ARGUMENTS...: as $program; what they lack is in make's library
build_with() {
    mpicc -DWITH_MPI -pthread -std=gnu11 -O0 -w -fopenmp "$@" "$build/mpi/library.a" \
        -o "$dir/other" -lm 2> "$dir/stderr" ||
        { note "mpicc: $(head -n 1 "$dir/stderr")"; return 1; }
    program=$dir/other
}

# In bf16 products round their operands to 8 bits. The ranks' sums stay fp32, so only an operand
# whose last bit in fp32 differs can round the other way, by 1/256. Measured: 2.5e-7.
build_with -DPRECISION_BF16 train_gpt2.c dev/cpu/*.c
row bf16 1 slope other $gradient
row bf16-4 4 bf16 - $gradient --tensor-parallel 4
within "gradient in bf16 on 4 ranks" "$(worst bf16 bf16-4)" 0.02
same "precision" "$(last start precision bf16-4)" '"bf16"'
end tensor_parallel_in_bf16

# There is one block: another activation, in block_forward and block_backward alone, is trained by
# one rank and by two that share each layer alike.
sed 's/gelu_forward(a.gelu, a.fc, \(.*\));/memcpy(a.gelu, a.fc, \1 * sizeof(float));/
     s/gelu_backward(dfc, dgelu, a.fc, N.*//' train_gpt2.c > "$dir/linear.c"
build_with -iquote . "$dir/linear.c"
good 1 $layers --out "$dir/linear"
good 2 $layers --tensor-parallel 2 --out "$dir/linear2"
within "losses of another block on 2 ranks" "$(apart loss linear linear2)" 2e-6
[[ $(apart loss whole linear) = [0-9].[0-9]e-0[1-3] ]] || note "another block learns the same"
end a_changed_block_is_changed_on_all_ranks

exit $failed
