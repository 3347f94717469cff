#!/usr/bin/env bash
# Many ranks of the CUDA trainer, emulated, under mpirun: that they train what one rank trains, on
# any number of ranks, at any stage of ZeRO, in whatever order the GPU's streams run; that they keep
# and send what they should, go on with each other's runs, and refuse in one line. Tiny models.
#
# It compiles the programs itself, both precisions and MPI in them, whatever is built already.
# RANKS_FP32 and RANKS_BF16 name others, TRAIN_MPI the CPU's trainer with MPI.
#
#     tests/test_cuda_ranks.sh [NAME...]       all tests, or those that are named
#     FAULTS=1 tests/test_cuda_ranks.sh        plants all faults, not one in six
. "$(dirname "$0")/tools.sh"
. tests/ranks.sh
tests="emulated_micro_batches_over_ranks emulated_exact_sum_has_the_bits_of_one_rank
    emulated_zero_trains_what_one_rank_trains emulated_ranks_keep_and_send_what_they_should
    emulated_machines_have_the_bits_of_one emulated_nccl_sums_as_well
    emulated_resumed_on_other_ranks emulated_workers_are_the_cpus emulated_noise_is_the_cpus
    emulated_ranks_share_layers emulated_groups_share_layers emulated_few_words_are_shared
    emulated_shared_layers_send_what_they_should faults_in_shared_layers_are_found
    no_order_of_streams_changes_a_bit emulated_ranks_share_choices
    the_recipe_runs_from_end_to_end
    emulated_ranks_refuse_in_one_line planted_faults_in_the_exchange_are_found"
[ $# -gt 0 ] && tests=$*
needs mpicxx mpicc mpirun

export EMULATOR_DEVICES=8 EMULATOR_TIMEOUT=60    # a GPU for each rank
unset EMULATOR_STREAMS NCCL_HOSTID NCCL_MULTI_RANK_GPU_ENABLE

values() {                                  # values EVENT KEY RUN: of each such line of the log
    sed -n "s/^{\"event\":\"$1\"[^}]*\"$2\":\([^,}]*\).*/\1/p" "$dir/$3/log.jsonl" 2>&1
}
logged_close() {                            # logged_close KEY RUN RUN PART STEPS
    paste <(values step "$1" "$2") <(values step "$1" "$3") | awk -v part="$4" -v steps="$5" '
        { d = $1 > $2 ? $1/$2 - 1 : 1 - $1/$2; if (!(d <= part) || NF != 2) bad = d }
        END { if (NR != steps || bad) { print NR " steps, apart by " bad + 0; exit 1 } }' \
        > "$dir/said" || note "$1 of $2 and $3: $(cat "$dir/said")"
}
same_bits() {                               # same_bits RUN RUN: the last checkpoints of the two
    for file in model.safetensors optimizer.safetensors; do
        cmp -s "$dir/$1/latest/$file" "$dir/$2/latest/$file" ||
            note "$file of $2 has other bits than $1"
    done
}
close() {                                   # close RUN RUN LIMIT
    "$dir/compare" "$dir/$1" "$dir/$2" "$3" > "$dir/apart" 2>&1 ||
        note "$1 and $2: $(cat "$dir/apart")"
}

free_port() {          # below what the kernel gives to others; the ranks take the one after it
    local port
    while :; do
        port=$((RANDOM % 12000 + 20000))
        (exec 3<> "/dev/tcp/127.0.0.1/$((port + 1))") 2> /dev/null || break
    done
    echo $port
}
# start N PROGRAM ARGS...: that many ranks; stdout, stderr, status.
start() {
    export MASTER_ADDR=127.0.0.1 MASTER_PORT=$(free_port)
    local start=(timeout -k 5 100 mpirun -n "$1" "$2" --threads 1 "${@:3}")
    run "${start[@]}"
    ! never_began || run "${start[@]}"
}
good() {                                    # good N RUN ARGS...: $program ends well, says no word
    start "$1" "$program" "${@:3}" --out "$dir/$2"
    [ $status = 0 ] ||
        note "$2: status $status: $(grep '[a-z]' "$dir/stderr" | head -n 12 | tr '\n' ' ')"
    ! grep -q . "$dir/stderr" || note "$2 writes to stderr: $(head -n 1 "$dir/stderr")"
}

# ---- the programs ----

# Slices are cut into pieces of 64 elements, so that tiny models send several.
sources() {                                 # sources DIR: a copy of the program's sources
    mkdir -p "$1" && cp -r dev dataloader.h train_gpt2.cu "$1" &&
        sed -i 's/COMM_LEAST = 1 << 18/COMM_LEAST = 64/' "$1/dev/ranks/comm.h"
}
native=$(mpicxx -march=native -xc++ -E /dev/null > /dev/null 2>&1 && echo -march=native)
emulated() {                                # emulated PROGRAM SOURCES FLAGS...
    "$dir/rewrite" "$2/train_gpt2.cu" > "$1.cpp" &&
        mpicxx -std=c++17 -O1 $native -w -fopenmp -DEMULATOR -DWITH_NCCL -DEMULATOR_MPI \
            -Idev/emulator/include -iquote "$2" "${@:3}" "$1.cpp" -o "$1" 2> "$1.said" ||
        rm -f "$1"
}
fp32=${RANKS_FP32:-$dir/fp32} bf16=${RANKS_BF16:-$dir/bf16} cpu=${TRAIN_MPI:-build/train_gpt2-mpi}
$cc -O1 dev/emulator/rewrite.c -o "$dir/rewrite" &&
    $cc -std=gnu11 -O1 tests/compare.c -o "$dir/compare" -lm && sources "$dir/sources" || exit 1
[ -x "$fp32" ] || emulated "$fp32" "$dir/sources" -DPRECISION_FP32 &
[ -x "$bf16" ] || emulated "$bf16" "$dir/sources" &
wait
if [ ! -x "$cpu" ]; then
    cpu=$dir/cpu
    mpicc -DWITH_MPI -pthread -std=gnu11 -O2 -fopenmp train_gpt2.c -o "$cpu" -lm || exit 1
fi
for program in "$fp32" "$bf16"; do
    [ -x "$program" ] || { echo "FAIL ${tests%% *}: $(head -n 2 "$program.said" | xargs)"; exit 1; }
done
${PREPARE:-./prepare} tales --out "$dir/tales" --tokens 30000 --seed 5 > "$dir/stdout" || exit 1
# At a higher learning rate what two runs differ by grows from update to update, whatever it was.
common="--data $dir/tales --seq-len 8 --micro-batch 1 --lr 1e-3 --lr-schedule constant
        --warmup-tokens 400 --eval-every 0 --eval-tokens 100"
tiny="$common --layers 3 --heads 1 --channels 24 --batch-tokens 64"    # 8 sequences; uneven slices
middle="$common --layers 4 --heads 2 --channels 64"

# ---- one sum, however it is shared out ----

emulated_micro_batches_over_ranks() {
    program=$fp32
    for ranks in 1 2 4 8; do
        good $ranks plain$ranks $tiny --steps 20
        close plain1 plain$ranks 1e-6
        [ $ranks = 1 ] || echo "    $ranks x $((8 / ranks)) micro-batches: $(cat "$dir/apart")"
        near "validation loss on $ranks ranks" "$(values eval val_loss plain$ranks)" \
            "$(values eval val_loss plain1)" 1e-5
    done
    start 2 "$cpu" $tiny --steps 20 --out "$dir/cpu2"
    close cpu2 plain2 1e-5                  # two programs: other products, other orders of sums
    echo "    the CPU's trainer on 2 ranks: $(cat "$dir/apart")"
    program=$bf16
    good 1 bf16-1 $tiny --steps 20
    good 4 bf16-4 $tiny --steps 20
    # Another order of a sum moves a master now and then to where it is rounded the other way, by
    # 2^-8 of it, and then all that follows: of the weights that is some 1e-5.
    close bf16-1 bf16-4 1e-4
}

emulated_exact_sum_has_the_bits_of_one_rank() {
    program=$fp32
    for ranks in 1 2 4 8; do
        good $ranks exact$ranks $tiny --steps 8 --exact-sum
        same_bits exact1 exact$ranks
    done
    good 1 inexact $tiny --steps 8
    cmp -s "$dir/exact1/latest/model.safetensors" "$dir/inexact/latest/model.safetensors" &&
        note "the exact sum is the plain one, which shows nothing"
    close exact1 inexact 1e-6
    program=$bf16
    good 1 exact-bf16 $tiny --steps 8 --exact-sum
    good 4 exact-bf16-4 $tiny --steps 8 --exact-sum
    same_bits exact-bf16 exact-bf16-4
}

# ---- ZeRO ----

# Clipped, so that the norm counts as well.
emulated_zero_trains_what_one_rank_trains() {
    local flags="$tiny --batch-tokens 48 --steps 12 --clip 0.5 --overwrite"
    for shape in "bf16 2" "fp32 3"; do
        read -r precision ranks <<< "$shape"
        program=${!precision}
        good $ranks stage0 $flags --zero 0
        for stage in 1 2 3; do
            good $ranks stage$stage $flags --zero $stage
            logged_close loss stage0 stage$stage 1e-5 12
            logged_close grad_norm stage0 stage$stage 1e-4 12
            near "validation loss at stage $stage" "$(values eval val_loss stage$stage)" \
                "$(values eval val_loss stage0)" 1e-5
        done
    done
    good 3 recomputed $flags --zero 3 --recompute block
    same_bits stage3 recomputed
    start 3 "$cpu" $flags --zero 3 --out "$dir/cpu3"
    close cpu3 stage3 1e-5
}

# Bytes a parameter that a rank keeps, and what it sends for an update of 2 micro-batches, by
# tests/test_ranks.sh's formulas. The vocabulary is padded to 320 rows; slices of 4 ranks are alike.
kept() {
    echo "$(values start bytes_params "$1") $(values start bytes_grads "$1") \
          $(values start bytes_moments "$1")" |
        awk '{ print ($1 + $2 + $3) / ((320 + 8 + 2)*64 + 4*(12*64*64 + 13*64)) }'
}
formula() {                                 # formula STAGE RANKS fp32|bf16: kept, and sent
    awk -v stage="$1" -v n="$2" -v type="$3" 'BEGIN {
        split("16 " 8 + 8/n " " 4 + 12/n " " 16/n, fp32, " ")
        split("18 " 6 + 12/n " " 2 + 16/n " " 18/n, bf16, " ")
        ends = (320 + 8 + 2)*64; block = 12*64*64 + 13*64; psi = ends + 4*block
        real = type == "fp32" ? 4 : 2
        back = stage == 0 ? 4*psi : stage < 3 ? real*psi : real*(ends + (2 + 2*2*2)*block)
        print (type == "fp32" ? fp32[stage + 1] : bf16[stage + 1]),
              (n - 1)/n * (4*psi*(stage < 2 ? 1 : 2) + back) }'
}
emulated_ranks_keep_and_send_what_they_should() {
    for shape in "bf16 1 4" "bf16 2 2" "bf16 3 2" "fp32 0 2" "fp32 1 2" "fp32 2 4" "fp32 3 2"; do
        read -r precision stage ranks <<< "$shape"
        program=${!precision}
        good $ranks kept $middle --batch-tokens $((16 * ranks)) --steps 2 --zero $stage --overwrite
        read -r bytes sent <<< "$(formula $stage $ranks $precision)"
        near "bytes kept at stage $stage, $precision" "$(kept kept)" $bytes 0.05
        near "bytes sent at stage $stage, $precision" \
            "$(values step bytes_sent kept | tail -n 1)" $sent 0.02
    done
    good 2 half $middle --batch-tokens 32 --steps 2 --comm-dtype bf16
    near "bytes sent in bf16" "$(values step bytes_sent half | tail -n 1)" \
        "$(formula 0 2 fp32 | awk '{ print $2 / 2 }')" 0.02
    # Each gradient is rounded by up to 1/256 of itself, by both trainers alike.
    local flags="$tiny --batch-tokens 48 --steps 12 --overwrite"
    good 3 whole $flags
    for stage in 0 2; do
        good 3 gpu-half $flags --comm-dtype bf16 --zero $stage
        start 3 "$cpu" $flags --comm-dtype bf16 --zero $stage --out "$dir/cpu-half"
        logged_close loss cpu-half gpu-half 1e-4 12
        logged_close loss whole gpu-half 1e-3 12
        cmp -s <(values step loss whole) <(values step loss gpu-half) &&
            note "bf16 changes nothing at stage $stage"
    done
}

# ---- several machines ----

# Two machines of 2 and of 4 ranks: whichever of the two levels a message takes, and in whatever
# order streams run, the bits are those of one machine. Of M machines of G ranks, each sends
# (M-1)/(GM-1) of its bytes to other machines, where one level sends G(M-1)/(GM-1).
emulated_machines_have_the_bits_of_one() {
    local flags="$tiny --steps 4 --overwrite" hosts ranks across stage
    for hosts in a,a,b,b a,a,a,a,b,b,b,b; do
        ranks=$(tr , '\n' <<< "$hosts" | wc -l)
        for stage in 0 "0 --comm-dtype bf16" 1 3; do
            program=$fp32
            [ "$stage" = 1 ] && program=$bf16
            good "$ranks" near $flags --zero $stage
            export BATCHWISE_HOSTS=$hosts EMULATOR_STREAMS=random
            good "$ranks" far $flags --zero $stage
            unset BATCHWISE_HOSTS EMULATOR_STREAMS
            same_bits near far
        done
        program=$fp32
        BATCHWISE_HOSTS=$hosts good "$ranks" far $middle --batch-tokens $((8 * ranks)) --steps 2 \
            --overwrite
        across=$(values step bytes_across far | tail -n 1)
        near "bytes sent to other machines, $hosts" "$across" \
            $(($(values step bytes_sent far | tail -n 1) / (ranks - 1))) 0.02
        grep -q "on 2 machines (a: .*, in two levels" "$dir/stdout" || note "$hosts: no two levels"
    done
    BATCHWISE_HOSTS=a,b,a,b good 4 mixed $middle --batch-tokens 32 --steps 2
    near "bytes sent to other machines in one level" "$(values step bytes_across mixed | tail -n 1)" \
        $(($(values step bytes_sent mixed | tail -n 1) * 2 / 3)) 0.02
    grep -q "on 2 machines (a: .*, in one level" "$dir/stdout" || note "a,b,a,b: not one level"
}

# NCCL's own sums: of two or three terms the same bits; of four, in the order of the ranks, others,
# and others in bf16. Three ranks have slices that are not alike, four of `middle` have.
emulated_nccl_sums_as_well() {
    local flags="$tiny --batch-tokens 48 --steps 6 --overwrite" stage shape
    program=$fp32
    for stage in 0 2; do
        good 2 ours $flags --zero $stage
        good 2 theirs $flags --zero $stage --comm nccl
        same_bits ours theirs
    done
    for shape in "3 0" "3 1" "3 3" "4 1 $middle" "4 2 $middle" "3 0 --comm-dtype bf16" \
                 "3 2 --comm-dtype bf16"; do
        read -r ranks stage more <<< "$shape"
        good "$ranks" ours $flags --batch-tokens $((16 * ranks)) $more --zero $stage
        export EMULATOR_STREAMS=random
        good "$ranks" theirs $flags --batch-tokens $((16 * ranks)) $more --zero $stage --comm nccl
        unset EMULATOR_STREAMS
        case $shape in *bf16) close ours theirs 1e-3 ;; *) close ours theirs 1e-6 ;; esac
        case $shape in
            "3 "?) same_bits ours theirs ;;
            *) ! cmp -s "$dir/ours/latest/model.safetensors" \
                   "$dir/theirs/latest/model.safetensors" ||
                   note "NCCL has our bits on $shape: it is not NCCL that sums" ;;
        esac
        near "bytes sent, $shape" "$(values step bytes_sent theirs | tail -n 1)" \
            "$(values step bytes_sent ours | tail -n 1)" 0.02
    done
    grep -q "summed by NCCL" "$dir/stdout" || note "who sums is not told"
    program=$bf16
    good 3 ours $flags --zero 1
    good 3 theirs $flags --zero 1 --comm nccl
    close ours theirs 1e-4
}

# ---- resuming ----

# cut FROM STEP: the run FROM, as `cut`, as it was when it had saved STEP.
cut() {
    rm -rf "$dir/cut"
    mkdir "$dir/cut"
    cp -r "$dir/$1/step_$(printf %08d "$2")" "$dir/cut"
    ln -s "step_$(printf %08d "$2")" "$dir/cut/latest"
}
emulated_resumed_on_other_ranks() {
    local flags="$tiny --steps 8 --save-every 4 --keep 0"
    for precision in fp32 bf16; do
        program=${!precision}
        good 2 $precision-sliced $flags --zero 3
        good 2 $precision-whole $flags --zero 1
    done
    for shape in "fp32-sliced 2 3" "fp32-sliced 4 1" "fp32-whole 1 0" "fp32-whole 3 2" \
                 "bf16-whole 2 1" "bf16-sliced 3 0"; do
        read -r from ranks stage <<< "$shape"
        program=${from%-*}
        program=${!program}
        cut $from 4
        good $ranks cut --resume --zero $stage --batch-tokens $((ranks == 3 ? 48 : 64))
        case $shape in
            "fp32-sliced 2 3" | "bf16-whole 2 1") same_bits $from cut ;;
            *" 3 "*) same "last step of $shape" "$(values end step cut)" 8 ;;
            *) close $from cut 1e-6 ;;
        esac
    done
    start 3 "$cpu" $tiny --batch-tokens 48 --steps 6 --zero 2 --out "$dir/passed"
    program=$fp32
    good 2 passed --resume --batch-tokens 48 --steps 12 --zero 3
    start 3 "$cpu" $tiny --batch-tokens 48 --steps 12 --out "$dir/unpassed"
    close unpassed passed 1e-5
}

# ---- workers that rarely talk ----

emulated_workers_are_the_cpus() {
    local flags="$tiny --steps 12 --outer-every 3 --save-every 6 --keep 0"
    program=$fp32
    good 2 workers $flags
    start 2 "$cpu" $flags --out "$dir/cpu-workers"
    close cpu-workers workers 1e-5
    logged_close loss cpu-workers workers 1e-5 12
    cut workers 6
    good 2 cut --resume
    same_bits workers cut
    for file in outer workers; do
        cmp -s "$dir/workers/latest/$file.safetensors" "$dir/cut/latest/$file.safetensors" ||
            note "$file.safetensors has other bits after a resume"
    done
    cut workers 6
    good 4 cut --resume
    grep -q '2 workers.*mean' "$dir/stdout" || note "4 workers do not say that they take a mean"
    mv "$dir/cut" "$dir/mean"
    cut cpu-workers 6
    start 4 "$cpu" --resume --out "$dir/cut"
    close cut mean 1e-5
    # What layers read is rounded from the masters after a outer step as after any other.
    program=$bf16
    good 2 workers-bf16 $flags
    cut workers-bf16 6
    good 2 cut --resume
    same_bits workers-bf16 cut
    logged_close loss cpu-workers workers-bf16 2e-2 12
}

# ---- the gradient's noise ----

# A batch that grows, the same on all ranks; and with --exact-sum, which takes none that does.
emulated_noise_is_the_cpus() {
    local growing="--batch-schedule linear:32,400 --batch-tokens 128" stage rule key
    program=$fp32
    for stage in 0 1 3 exact; do
        rule="--zero $stage $growing"
        [ $stage = exact ] && rule=--exact-sum
        good 2 noise-$stage $tiny --steps 6 --noise-scale $rule
        if [ $stage != 1 ]; then            # it measures what stage 0 does
            start 2 "$cpu" $tiny --steps 6 --noise-scale $rule --out "$dir/cpu-noise" --overwrite
        fi
        for key in batch_tokens noise_smalls; do
            logged_close $key cpu-noise noise-$stage 0 6
        done
        for key in noise_g2 noise_s; do logged_close $key cpu-noise noise-$stage 1e-5 6; done
    done
    [ "$(values step batch_tokens noise-3 | sort -u | wc -l)" -ge 3 ] || note "no batch grew"
}

# ---- tensor parallel: ranks that share each layer ----

# An odd vocabulary of 257, T = 7. The gradient is what one update of SGD at a rate of 100 changes.
shared="--data $dir/tales --layers 2 --heads 4 --channels 32 --seq-len 7 --micro-batch 2
        --batch-tokens 28 --lr 6e-4 --lr-schedule constant --warmup-tokens 400 --eval-every 0
        --eval-tokens 100"
gradient="--optimizer sgd --lr 100 --warmup-tokens 0 --clip 0 --steps 1"
emulated_ranks_share_layers() {
    program=$fp32
    for ranks in 1 2 4; do
        good $ranks shared$ranks $shared --steps 50 --tensor-parallel $ranks
        good $ranks gradient$ranks $shared $gradient --tensor-parallel $ranks
    done
    start 2 "$cpu" $shared --steps 50 --tensor-parallel 2 --out "$dir/cpu-shared2"
    for pair in "shared1 shared2" "shared1 shared4" "cpu-shared2 shared2"; do
        logged_close loss $pair 2e-6 50
        logged_close grad_norm $pair 1e-5 50
        close $pair 1e-5
        echo "    $pair: $(cat "$dir/apart")"
    done
    close gradient1 gradient2 2e-6
    close gradient1 gradient4 2e-6
    echo "    the gradient on 4 ranks: $(cat "$dir/apart")"
    export EMULATOR_STREAMS=random
    good 4 again $shared --steps 6 --recompute block --tensor-parallel 4 --sample-every 3
    unset EMULATOR_STREAMS
    good 4 straight $shared --steps 6 --tensor-parallel 4
    same_bits straight again
    # A layer's terms, their sum and its gradient's are rounded to bf16 each: 2^-9 of them, at most.
    program=$bf16
    for ranks in 1 2 4; do
        good $ranks gradient-bf16-$ranks $shared $gradient --channels 64 --tensor-parallel $ranks
        [ $ranks = 1 ] || close gradient-bf16-1 gradient-bf16-$ranks 2e-2
    done
    echo "    the gradient on 4 ranks in bf16: $(cat "$dir/apart")"
    refused "--tensor-parallel: 4 channels a rank, no multiple of 8" 4 $shared --channels 16 \
        --tensor-parallel 4
}

# Two tensor groups of two ranks, which are data parallel.
emulated_groups_share_layers() {
    local flags="$shared --steps 8 --clip 0.5 --overwrite" stage more
    program=$fp32
    good 1 one $flags --save-every 4 --keep 0
    for stage in 0 1 2 3 "1 --comm nccl"; do
        good 4 groups $flags --tensor-parallel 2 --zero $stage
        close one groups 1e-6
        logged_close grad_norm one groups 1e-5 8
    done
    for more in --noise-scale "--outer-every 4"; do
        good 2 workers $flags $more
        good 4 groups $flags $more --tensor-parallel 2
        close workers groups 1e-6
        logged_close loss workers groups 2e-6 8
        [ "$more" != --noise-scale ] || logged_close noise_s workers groups 1e-5 8
    done
    cut one 4                               # from 1 rank to 2 x 2, and on to 4
    good 4 cut --resume --tensor-parallel 2 --zero 1 --steps 6
    good 4 cut --resume --tensor-parallel 4 --steps 8
    close one cut 1e-6
    start 2 "$cpu" $flags --steps 4 --tensor-parallel 2 --out "$dir/passed"
    good 4 passed --resume --tensor-parallel 4 --steps 8
    close one passed 1e-5
    program=$bf16
    good 4 ours $flags --channels 64 --tensor-parallel 4
    good 4 theirs $flags --channels 64 --tensor-parallel 4 --comm nccl
    logged_close loss ours theirs 1e-3 8
    ! cmp -s "$dir/ours/latest/model.safetensors" "$dir/theirs/latest/model.safetensors" ||
        note "NCCL has our bits: it is not NCCL that sums"
}

# few_words V: a shard of 600 tokens from a vocabulary of V.
few_words() {
    local x i
    bytes() { for ((i = 0; i < $2; i++)); do printf "\\$(printf %03o $(($1 >> 8*i & 255)))"; done; }
    for x in 20240520 1 600 "$1" 0; do bytes "$x" 4; done
    head -c 1004 /dev/zero
    for ((x = 0; x < 600; x++)); do bytes $(((x*x + x/7) % $1)) 2; done
}
# A vocabulary smaller than 16 words a rank; of 5 words on 4 ranks the last rank has none.
emulated_few_words_are_shared() {
    program=$fp32
    for V in 45 5; do
        few_words $V > "$dir/train_$V.bin"
        cp "$dir/train_$V.bin" "$dir/val_$V.bin"
        local few="--train $dir/train_$V.bin --val $dir/val_$V.bin ${shared#*tales}"
        local flags="$few --steps 8 --overwrite"
        good 1 few1 $flags
        good 4 few4 $flags --tensor-parallel 4
        close few1 few4 1e-6
        logged_close loss few1 few4 2e-6 8
    done
}

# Bytes a rank and micro-batch, as dev/ranks/tensor.h counts them. A recomputed block sums again
# what attention gives, and not what the MLP gives, which nobody reads.
emulated_shared_layers_send_what_they_should() {
    local flags="$shared --channels 64 --seq-len 8 --batch-tokens 32 --steps 2 --overwrite"
    for shape in "fp32 2 none" "fp32 4 none" "bf16 2 none" "bf16 4 none" "fp32 2 block"; do
        read -r precision ranks recompute <<< "$shape"
        program=${!precision}
        good $ranks sent $flags --tensor-parallel $ranks --recompute $recompute
        near "bytes sent, $shape" "$(values step bytes_sent sent | tail -n 1)" "$(awk -v n=$ranks \
            -v again=$([ $recompute = block ] && echo 1 || echo 0) -v type=$precision 'BEGIN {
            L = 2; BT = 16; C = 64; real = type == "fp32" ? 4 : 2
            sums = 4*L + 2 + again*(L - 1)
            print 2 * (sums*BT*C*real * 2*(n - 1)/n + 3*BT*4 * (n - 1)) }')" 0.01
    done
}

# Each line: a file, and how to break it. Two ranks then have other losses or weights than one.
shared_faults() { cat <<'FAULTS'
dev/ranks/tensor_model.cu|s/    tp_sum(group, out, N\*OC);//
dev/ranks/tensor_model.cu|/^static void tp_linear_residual/,/^}/ s/plain, N/{ ADD_BIAS, b, NULL }, N/
dev/ranks/tensor_model.cu|s/part.sum \* __expf(part.hi - whole.hi)/part.sum/
train_gpt2.cu|s/; chunk.counts \&\& i/; i/
dev/ranks/tensor_model.cu|s/    tp_sum(group, dln[12], N\*C);.*//
dev/ranks/tensor_model.cu|s/    if (use == TRAIN) tp_sum(group, dx, N\*C);.*//
FAULTS
}
# apart RUN RUN: whether their losses or weights are further apart than they may be.
apart() {
    ! "$dir/compare" "$dir/$1" "$dir/$2" 1e-5 > "$dir/apart" 2>&1 ||
        [ "$(paste <(values step loss "$1") <(values step loss "$2") | awk '
            { d = $1/$2 - 1; if (d*d > 4e-12) n++ } END { print n + (NR == 0) }')" != 0 ]
}
faults_in_shared_layers_are_found() {
    local flags="$shared --steps 6 --clip 0.5" file how n=0
    program=$fp32
    good 1 sound1 $flags
    good 2 sound2 $flags --tensor-parallel 2
    ! apart sound1 sound2 || note "sound programs are apart: $(cat "$dir/apart")"
    while IFS='|' read -r file how; do
        n=$((n + 1))
        has_its_turn $n "${FAULTS:-6}" || continue
        sources "$dir/unsound$n"
        sed -i "$how" "$dir/unsound$n/$file"
        ! cmp -s "$file" "$dir/unsound$n/$file" || note "it changes nothing: $how"
        emulated "$dir/faulty$n" "$dir/unsound$n" -DPRECISION_FP32
        [ -x "$dir/faulty$n" ] || note "it does not compile: $how"
        start 2 "$dir/faulty$n" $flags --tensor-parallel 2 --out "$dir/faulty" --overwrite
        [ $status != 0 ] || apart sound1 faulty || note "unnoticed: $how"
    done < <(shared_faults)
    echo "    one in ${FAULTS:-6} of $n"
}

# ---- a GPU's streams ----

# Whatever waits for too little shows when streams run late, or at random.
streams() {                                 # streams RANKS FLAGS...
    good "$1" at-once "${@:2}" --overwrite
    for order in late random; do
        export EMULATOR_STREAMS=$order
        good "$1" in-order "${@:2}" --overwrite
        unset EMULATOR_STREAMS
        same_bits at-once in-order
        same "noise, $order" "$(values step noise_s in-order)" "$(values step noise_s at-once)"
    done
}
no_order_of_streams_changes_a_bit() {
    local short="$tiny --batch-tokens 48 --steps 4 --save-every 2"
    program=$fp32
    streams 2 $short --comm-dtype bf16
    streams 2 $short --zero 2 --noise-scale
    streams 2 $short --batch-tokens 64 --exact-sum --noise-scale
    streams 2 $short --outer-every 2
    program=$bf16
    streams 2 $short --zero 1 --noise-scale
    streams 3 $short --zero 3
}

# Each line: a file of dev/ranks, and how to break it. Between two machines, with streams in one of
# several orders, a run of the broken program has other bits, or does not end well.
faults() { cat <<'FAULTS'
comm_nccl.h|/^static inline void comm_arrived/,/^}/ s/    COMM_CUDA(.*//
comm_nccl.h|/^static inline void comm_begin/,/^}/ s/    COMM_CUDA(cudaStreamWaitEvent(.*//
comm.h|s/p.k % COMM_BUFFERS \* (size_t)c->size/(size_t)0/
comm.h|/^static inline void scatter_sum_near/,/^}/ s/terms\[i\] = /terms[(i + 1) % c->near.size] = /
comm.h|/^static inline void comm_find_levels/,/^}/ s/c->near.size, c->near.size);/c->near.size, 1);/
FAULTS
}
planted_faults_in_the_exchange_are_found() {
    local flags="$tiny --steps 2 --zero 2" file how n=0 order found
    export BATCHWISE_HOSTS=a,a,a,a,b,b,b,b
    program=$fp32
    good 8 whole8 $flags
    while IFS='|' read -r file how; do
        n=$((n + 1)) found=
        has_its_turn $n "${FAULTS:-6}" || continue
        sources "$dir/fault$n"
        sed -i "$how" "$dir/fault$n/dev/ranks/$file"
        ! cmp -s "dev/ranks/$file" <(sed 's/COMM_LEAST = 64/COMM_LEAST = 1 << 18/' \
            "$dir/fault$n/dev/ranks/$file") || note "it changes nothing: $how"
        emulated "$dir/broken$n" "$dir/fault$n" -DPRECISION_FP32
        [ -x "$dir/broken$n" ] || note "it does not compile: $how"
        for order in "" late random:1 random:2 random:3; do
            EMULATOR_TIMEOUT=20 EMULATOR_STREAMS=$order start 8 "$dir/broken$n" $flags \
                --out "$dir/broken" --overwrite
            [ $status = 0 ] && cmp -s "$dir/whole8/latest/optimizer.safetensors" \
                "$dir/broken/latest/optimizer.safetensors" || found=yes
            [ -z "$found" ] || break
        done
        [ "$found" ] || note "unnoticed: $how"
    done < <(faults)
    echo "    one in ${FAULTS:-6} of $n"
    unset BATCHWISE_HOSTS
}

# ---- bad input ----

refused() {                                 # refused WORDS RANKS ARGS...: one line, status 1
    start "$2" "$program" "${@:3}" --out "$dir/no"
    same "status without '$1'" $status 1
    same "lines that say '$1'" "$(grep -c '^train_gpt2cu-emulated: ' "$dir/stderr")" 1
    grep '^train_gpt2cu-emulated: ' "$dir/stderr" | grep -qF -e "$1" ||
        note "it says '$(grep -m 1 . "$dir/stderr")', without '$1'"
    [ ! -e "$dir/no" ] || note "'$1' leaves something behind"
    rm -rf "$dir/no"
}
# Rank 0 tunes. Resumed where the heuristic offers one algorithm alone, every rank has the others
# from rank 0. Open MPI's mpirun takes a program's "--tune FILE" for its own flag, "--tune=" not.
emulated_ranks_share_choices() {
    program=$bf16
    export EMULATOR_ALGORITHMS=6
    good 2 tuned $tiny --steps 8 --zero 3 --tune=on
    good 2 retuned $tiny --steps 4 --zero 3 --tune=on
    EMULATOR_ALGORITHMS=1 good 2 retuned --resume --steps 8
    same_bits tuned retuned
    good 1 chosen1 $tiny --steps 4 --exact-sum --tune=on
    good 2 chosen2 $tiny --steps 4 --exact-sum --tune="$dir/choices.json"
    same_bits chosen1 chosen2
    good 2 untuned $tiny --steps 4 --exact-sum
    ! cmp -s "$dir/chosen1/latest/model.safetensors" "$dir/untuned/latest/model.safetensors" ||
        note "the algorithms that were chosen change no bit: nothing is shown"
    for flags in "--noise-scale" "--outer-every 2" "--zero 2"; do
        good 2 smoke $tiny --steps 4 --tune=on $flags --overwrite
    done
    # Where no gradient travels, products have all multiprocessors: in the forward pass, in the
    # classifier, and in all but the last micro-batch, unless every one sends.
    good 2 accumulated $tiny --steps 1 --tune=on
    good 2 sending $tiny --steps 1 --tune=on --zero 2
    products() { grep -o '"product":"[^"]*' "$dir/$1/latest/tune.json" | grep -v attention; }
    same "backward products that are measured beside messages and without" \
        "$(products accumulated | grep ' beside ' | sed 's/ beside .*//' | sort)" \
        "$(products accumulated | grep -v ' beside ' | grep -e ' T' -e gelu-gradient |
            grep -v 320 | sort)"
    same "products beside messages, if each micro-batch sends" \
        "$(products sending | grep -c ' beside ')" "$(products accumulated | grep -c ' beside ')"
    [ "$(products sending | grep -v ' beside ' | grep -c ' T')" = 2 ] ||
        note "not the classifier alone has transposed products with all multiprocessors: $(
            products sending | grep -v ' beside ' | grep ' T')"
    # Products beside messages have fewer multiprocessors, and so another first algorithm; but not
    # with --exact-sum, whose bits are those of one rank.
    good 1 left1 $tiny --steps 4 --exact-sum --tune=off
    good 2 left2 $tiny --steps 4 --exact-sum --tune=off
    same_bits left1 left2
    good 2 beside $tiny --steps 4 --tune=off
    good 2 in_turn $tiny --steps 4 --tune=off --no-overlap
    ! cmp -s "$dir/beside/latest/model.safetensors" "$dir/in_turn/latest/model.safetensors" ||
        note "products beside messages are told of all multiprocessors"
    unset EMULATOR_ALGORITHMS
}
# scripts/train.sh d12 at toy size, with everything on: HellaSwag every 5 updates, a page of noise
# whose updates are outliers, and the same command a second time, which goes on.
the_recipe_runs_from_end_to_end() {
    local tree=$dir/recipe examples=$PWD/tests/fixtures/hellaswag.jsonl run
    mkdir -p "$tree/dev" "$dir/tools" && cp -r scripts "$tree" && cp -r dev/data "$tree/dev"
    cp "$bf16" "$tree/train_gpt2cu"
    printf '#!/bin/sh\n' > "$dir/tools/make" && chmod +x "$dir/tools/make"
    printf '#!/bin/sh\necho loss > "$3"\n' > "$tree/scripts/plot.py"
    for i in $(seq 1000); do echo "the cat sat on the mat, and the rat on the hat"; done \
        > "$dir/good"
    for i in $(seq 160); do echo $((i * i * 7919 % 100003)); done > "$dir/noise"
    ${PREPARE:-./prepare} text "$dir/noise" "$dir/good" --out "$dir/text" > "$dir/stdout"
    recipe() {                              # recipe RUN STEPS
        (cd "$tree" && PATH=$dir/tools:$PATH timeout -k 5 100 scripts/train.sh d12 --gpus 2 \
            --data "$dir/text" --layers 1 --heads 1 --channels 16 --seq-len 8 --micro-batch 2 \
            --batch-tokens 32 --steps "$2" --warmup-tokens 64 --lr-schedule constant \
            --eval-tokens 16 --eval-every 20 --hellaswag "$examples" --hellaswag-every 5 \
            --skip-outliers 2 --lr 3e-2 --save-every 10 --threads 1 --out "$dir/$1") \
            > "$dir/stdout" 2> "$dir/stderr" < /dev/null
        status=$?
        [ $status = 0 ] || note "status $status of $1: $(tail -n 1 "$dir/stderr")"
    }
    recipe recipe-whole 80
    recipe recipe-parts 58
    recipe recipe-parts 80                         # --resume is the script's
    same_bits recipe-whole recipe-parts
    for run in recipe-whole recipe-parts; do
        same "HellaSwag of $run" "$(values hellaswag step $run | sort -nu | xargs)" \
            "$(seq 5 5 80 | { [ $run = recipe-parts ] && sed 's/^60$/58 60/' || cat; } | xargs)"
        same "ranks of $run" "$(values start ranks $run)" 2
        [ -s "$dir/$run/loss.png" ] || note "$run draws no curve"
    done
    same "resumed" "$(values resume step recipe-parts)" 58
    same "skipped" "$(values skip step recipe-parts)" "$(values skip step recipe-whole)"
    [ -n "$(values skip step recipe-whole)" ] || note "nothing is skipped: this test shows little"
    echo "    skipped: $(values skip step recipe-whole | xargs)"
    same "val_loss" "$(values eval val_loss recipe-parts | tail -n 1)" \
        "$(values eval val_loss recipe-whole | tail -n 1)"
}

emulated_ranks_refuse_in_one_line() {
    program=$fp32
    EMULATOR_DEVICES=2 refused "3 ranks were started on this machine, which shows them 2 GPUs;" 3 \
        $tiny --batch-tokens 48
    EMULATOR_DEVICES=1 refused "Duplicate GPU detected: ranks 0 and 1" 2 $tiny
    CUDA_VISIBLE_DEVICES=5 refused "Duplicate GPU detected: ranks 0 and 1 both on device 5" 2 $tiny
    EMULATOR_DEVICES=0 refused "GPU: no NVIDIA driver is installed here" 2 $tiny
    refused "nearest is 48" 3 $tiny --batch-tokens 56
    refused "give one of them" 2 $tiny --zero 1 --outer-every 5
    refused "power of two" 3 $tiny --batch-tokens 48 --exact-sum
    refused "start it alone" 2 --generate Once --resume
    refused "--comm nccl changes the sum" 2 $tiny --exact-sum --comm nccl
    env -u MASTER_ADDR WORLD_SIZE=2 RANK=0 "$program" $tiny > "$dir/stdout" 2> "$dir/stderr"
    same "without MASTER_ADDR" "$(grep -c '^train_gpt2cu-emulated: MASTER_ADDR: not set' \
        "$dir/stderr")" 1
    env MASTER_ADDR=127.0.0.1 MASTER_PORT=$(free_port) WORLD_SIZE=2 RANK=0 "$program" $tiny \
        --timeout 1 > "$dir/stdout" 2> "$dir/stderr"
    same "a rank that does not come" "$(grep -c 'train_gpt2cu-emulated: .*1' "$dir/stderr")" 1
    # Several ranks may share a GPU where NCCL is told to let them.
    export EMULATOR_DEVICES=1 NCCL_MULTI_RANK_GPU_ENABLE=1
    good 2 shared $tiny --steps 2
    unset NCCL_MULTI_RANK_GPU_ENABLE
    EMULATOR_DEVICES=8
    # A launcher may show each rank a GPU of its own alone, as srun --gpus-per-task=1.
    printf '#!/bin/sh\nexport CUDA_VISIBLE_DEVICES=$OMPI_COMM_WORLD_RANK\nexec "%s" "$@"\n' \
        "$fp32" > "$dir/own-gpu" && chmod +x "$dir/own-gpu"
    program=$dir/own-gpu
    good 2 own $tiny --steps 2
    same_bits own shared
}

for name in $tests; do
    $name
    end $name
done
exit $failed
