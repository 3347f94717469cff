#!/usr/bin/env bash
# Many ranks of the CUDA trainer, emulated, under mpirun: that they train what one rank trains, on
# any number of ranks, at any stage of ZeRO, in whatever order the GPU's streams run; that they keep
# and send what they should, go on with each other's runs, and refuse in one line. Tiny models.
#
# It compiles the programs itself, both precisions and MPI in them, whatever is built already.
# RANKS_FP32 and RANKS_BF16 name others, TRAIN_MPI the CPU's trainer with MPI.
tests="emulated_micro_batches_over_ranks emulated_exact_sum_has_the_bits_of_one_rank
    emulated_zero_trains_what_one_rank_trains emulated_ranks_keep_and_send_what_they_should
    emulated_resumed_on_other_ranks emulated_workers_are_the_cpus
    no_order_of_streams_changes_a_bit emulated_ranks_refuse_in_one_line"
for tool in mpicxx mpicc mpirun; do
    command -v $tool > /dev/null && continue
    for name in $tests; do echo "skip $name: there is no $tool here"; done
    exit
done
cd "$(dirname "$0")/.." || exit 1
dir=$(mktemp -d "${TMPDIR:-/tmp}/batchwise.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
failed=0 why=

# As root, more ranks than cores, and ranks that wait politely: for Open MPI.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
export OMPI_MCA_mpi_yield_when_idle=1 OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1
# A GPU for each rank, too small for a long measurement of its speed.
export EMULATOR_DEVICES=8 EMULATOR_MEMORY=460000000 EMULATOR_TIMEOUT=60
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE PMI_RANK PMI_SIZE OMPI_COMM_WORLD_RANK
unset EMULATOR_STREAMS NCCL_HOSTID NCCL_MULTI_RANK_GPU_ENABLE

end() { if [ -z "$why" ]; then echo "ok $1"; else echo "FAIL $1: $why"; failed=1; fi; why=; }
note() { why=${why:-"$*"}; }                # the first thing that is wrong is told
same() { [ "$2" = "$3" ] || note "$1: '$2', not '$3'"; }
near() {                                    # near WHAT A B TOLERANCE: relative
    awk -v a="$2" -v b="$3" -v t="$4" 'BEGIN { d = a - b; if (d < 0) d = -d
        exit !(a != "" && b != "" && d <= t * (b < 0 ? -b : b)) }' || note "$1: $2, not $3"
}
values() {                                  # values EVENT KEY RUN: of each such line of the log
    sed -n "s/^{\"event\":\"$1\"[^}]*\"$2\":\([^,}]*\).*/\1/p" "$dir/$3/log.jsonl"
}
losses_close() {                            # losses_close RUN RUN PART STEPS
    paste <(values step loss "$1") <(values step loss "$2") | awk -v part="$3" -v steps="$4" '
        { d = $1 > $2 ? $1/$2 - 1 : 1 - $1/$2; if (!(d <= part) || NF != 2) bad = d }
        END { if (NR != steps || bad) { print NR " steps, apart by " bad + 0; exit 1 } }' \
        > "$dir/said" || note "losses of $1 and $2: $(cat "$dir/said")"
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

free_port() {                               # and the one after it, which the ranks take
    local port
    while :; do
        port=$((RANDOM % 20000 + 20000))
        (exec 3<> "/dev/tcp/127.0.0.1/$((port + 1))") 2> /dev/null || break
    done
    echo $port
}
# start N PROGRAM ARGS...: that many ranks; stdout, stderr, status.
start() {
    export MASTER_ADDR=127.0.0.1 MASTER_PORT=$(free_port)
    timeout -k 5 100 mpirun -n "$1" "$2" --threads 1 "${@:3}" \
        > "$dir/stdout" 2> "$dir/stderr" < /dev/null
    status=$?
}
good() {                                    # good N RUN ARGS...: $program ends well, says no word
    start "$1" "$program" "${@:3}" --out "$dir/$2"
    [ $status = 0 ] || note "$2: status $status: $(grep -m 1 . "$dir/stderr")"
    ! grep -q . "$dir/stderr" || note "$2 writes to stderr: $(head -n 1 "$dir/stderr")"
}

# ---- the programs ----

emulated() {                                # emulated PROGRAM FLAGS...
    mpicxx -std=c++17 -O1 -w -fopenmp -DEMULATOR -DWITH_NCCL -DEMULATOR_MPI -Idev/emulator/include \
        -iquote . "${@:2}" "$dir/train.cpp" -o "$1" 2> "$1.said" || rm -f "$1"
}
fp32=${RANKS_FP32:-$dir/fp32} bf16=${RANKS_BF16:-$dir/bf16} cpu=${TRAIN_MPI:-build/train_gpt2-mpi}
cc=${CC:-cc}
$cc -O1 dev/emulator/rewrite.c -o "$dir/rewrite" &&
    "$dir/rewrite" train_gpt2.cu > "$dir/train.cpp" &&
    $cc -std=gnu11 -O1 tests/compare.c -o "$dir/compare" -lm || exit 1
[ -x "$fp32" ] || emulated "$fp32" -DPRECISION_FP32 &
[ -x "$bf16" ] || emulated "$bf16" &
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

program=$fp32
for ranks in 1 2 4 8; do
    good $ranks plain$ranks $tiny --steps 20
    close plain1 plain$ranks 1e-6
    [ $ranks = 1 ] || echo "    $ranks x $((8 / ranks)) micro-batches: $(cat "$dir/apart")"
    near "validation loss on $ranks ranks" "$(values eval val_loss plain$ranks)" \
        "$(values eval val_loss plain1)" 1e-5
done
start 2 "$cpu" $tiny --steps 20 --out "$dir/cpu2"
close cpu2 plain2 1e-5                      # two programs: other products, other orders of sums
echo "    the CPU's trainer on 2 ranks: $(cat "$dir/apart")"
program=$bf16
good 1 bf16-1 $tiny --steps 20
good 4 bf16-4 $tiny --steps 20
# Another order of a sum moves a master now and then to where it is rounded the other way, by 2^-8
# of it, and then all that follows: of the weights that is some 1e-5.
close bf16-1 bf16-4 1e-4
end emulated_micro_batches_over_ranks

for program in "$fp32" "$bf16"; do
    for ranks in 1 2 8; do
        good $ranks exact$ranks $tiny --steps 8 --exact-sum --overwrite
        same_bits exact1 exact$ranks
    done
    good 1 inexact $tiny --steps 8 --overwrite
    cmp -s "$dir/exact1/latest/model.safetensors" "$dir/inexact/latest/model.safetensors" &&
        note "the exact sum is the plain one, which shows nothing"
    close exact1 inexact 1e-4
done
end emulated_exact_sum_has_the_bits_of_one_rank

# ---- ZeRO ----

for precision in fp32 bf16; do
    program=${!precision}
    for ranks in 2 3; do
        flags="$tiny --batch-tokens 48 --steps 12 --overwrite"
        good $ranks $precision-0 $flags
        for stage in 1 2 3; do
            good $ranks $precision-$stage $flags --zero $stage
            losses_close $precision-0 $precision-$stage 1e-5 12
            near "validation loss at stage $stage" "$(values eval val_loss $precision-$stage)" \
                "$(values eval val_loss $precision-0)" 1e-5
        done
    done
done
program=$fp32
good 3 again $tiny --batch-tokens 48 --steps 12 --zero 3 --recompute block
same_bits fp32-3 again
start 3 "$cpu" $tiny --batch-tokens 48 --steps 12 --zero 3 --out "$dir/cpu3"
close cpu3 fp32-3 1e-5
end emulated_zero_trains_what_one_rank_trains

# Bytes a parameter that a rank keeps, and what it sends for an update of 2 micro-batches, by
# tests/test_ranks.sh's formulas. The vocabulary is padded to 320 rows, for slices of 4 ranks alike.
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
for precision in fp32 bf16; do
    program=${!precision}
    for shape in "0 2" "1 4" "2 4" "3 4" "3 2"; do
        read -r stage ranks <<< "$shape"
        good $ranks kept $middle --batch-tokens $((16 * ranks)) --steps 2 --zero $stage --overwrite
        read -r bytes sent <<< "$(formula $stage $ranks $precision)"
        near "bytes kept at stage $stage on $ranks ranks, $precision" "$(kept kept)" $bytes 0.05
        near "bytes sent at stage $stage on $ranks ranks, $precision" \
            "$(values step bytes_sent kept | tail -n 1)" $sent 0.02
    done
done
program=$fp32
good 2 half $middle --batch-tokens 32 --steps 2 --comm-dtype bf16
near "bytes sent in bf16" "$(values step bytes_sent half | tail -n 1)" \
    "$(formula 0 2 fp32 | awk '{ print $2 / 2 }')" 0.02
# Each gradient is rounded by up to 1/256 of itself, for both twins alike.
for stage in 0 2; do
    good 3 gpu-half $tiny --batch-tokens 48 --steps 12 --comm-dtype bf16 --zero $stage --overwrite
    start 3 "$cpu" $tiny --batch-tokens 48 --steps 12 --comm-dtype bf16 --zero $stage --overwrite \
        --out "$dir/cpu-half"
    losses_close cpu-half gpu-half 1e-4 12
done
losses_close fp32-0 gpu-half 1e-3 12
cmp -s <(values step loss fp32-0) <(values step loss gpu-half) && note "bf16 changes nothing"
end emulated_ranks_keep_and_send_what_they_should

# ---- resuming ----

# cut FROM STEP: the run FROM, as `cut`, as it was when it had saved STEP.
cut() {
    rm -rf "$dir/cut"
    mkdir "$dir/cut"
    cp -r "$dir/$1/step_$(printf %08d "$2")" "$dir/cut"
    ln -s "step_$(printf %08d "$2")" "$dir/cut/latest"
}
for precision in fp32 bf16; do
    program=${!precision}
    good 2 whole $tiny --steps 12 --save-every 6 --keep 0 --zero 3 --overwrite
    good 2 first $tiny --steps 12 --save-every 6 --keep 0 --zero 1 --overwrite
    limit=$([ $precision = fp32 ] && echo 1e-6 || echo 1e-4)
    for shape in "whole 2 3" "whole 4 1" "first 2 1" "first 1 0" "first 3 2"; do
        read -r from ranks stage <<< "$shape"
        cut $from 6
        good $ranks cut --resume --zero $stage --batch-tokens $((ranks == 3 ? 48 : 64))
        case $shape in
            "whole 2 3" | "first 2 1") same_bits $from cut ;;
            *) [ $ranks = 3 ] || close $from cut $limit ;;
        esac
    done
done
start 3 "$cpu" $tiny --batch-tokens 48 --steps 6 --zero 2 --out "$dir/passed"
program=$fp32
good 2 passed --resume --batch-tokens 48 --steps 12 --zero 3
start 3 "$cpu" $tiny --batch-tokens 48 --steps 12 --out "$dir/unpassed"
close unpassed passed 1e-5
end emulated_resumed_on_other_ranks

# ---- workers that rarely talk ----

workers="$tiny --steps 12 --outer-every 3 --save-every 6 --keep 0"
good 2 workers $workers
start 2 "$cpu" $workers --out "$dir/cpu-workers"
close cpu-workers workers 1e-5
program=$bf16
good 2 workers-bf16 $workers
losses_close cpu-workers workers-bf16 2e-2 12
program=$fp32
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
cp "$dir/stdout" "$dir/mean"
cut cpu-workers 6
start 4 "$cpu" --resume --out "$dir/cut"
mv "$dir/cut" "$dir/cpu-mean"
cut workers 6
good 4 cut --resume
close cpu-mean cut 1e-5
# Averaging the parameters after each update: the first of these is that of plain data parallel on
# the same samples, if the parameters moved by the mean of what the workers' AdamW would.
good 2 each $tiny --steps 1 --outer-every 1 --outer-lr 1 --outer-momentum 0
start 2 "$cpu" $tiny --steps 1 --outer-every 1 --outer-lr 1 --outer-momentum 0 --out "$dir/cpu-each"
close cpu-each each 1e-6
end emulated_workers_are_the_cpus

# ---- a GPU's streams ----

# Whatever waits for too little shows when streams run late, or at random.
streams() {                                 # streams N FLAGS...
    good "$1" at-once "${@:2}" --overwrite
    for order in late random random:7; do
        export EMULATOR_STREAMS=$order
        good "$1" in-order "${@:2}" --overwrite
        unset EMULATOR_STREAMS
        same_bits at-once in-order
    done
}
short="$tiny --batch-tokens 48 --steps 4 --save-every 2"
streams 3 $short
streams 3 $short --zero 1
streams 2 $short --zero 2
streams 3 $short --zero 3
streams 2 $short --batch-tokens 64 --exact-sum
streams 2 $short --outer-every 2
streams 3 $short --comm-dtype bf16
program=$bf16
streams 2 $short --zero 1
streams 3 $short --zero 3
program=$fp32
end no_order_of_streams_changes_a_bit

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
EMULATOR_DEVICES=1 refused "2 ranks were started on this machine, which shows them 1 GPU;" 2 $tiny
EMULATOR_DEVICES=0 refused "GPU: there is none here" 2 $tiny
refused "nearest is 48" 3 $tiny --batch-tokens 56
refused "give one of them" 2 $tiny --zero 1 --outer-every 5
refused "power of two" 3 $tiny --batch-tokens 48 --exact-sum
refused "start it alone" 2 --generate Once --init "$dir/plain1"
env -u MASTER_ADDR WORLD_SIZE=2 RANK=0 "$program" $tiny > "$dir/stdout" 2> "$dir/stderr"
same "without MASTER_ADDR" "$(grep -c '^train_gpt2cu-emulated: MASTER_ADDR: not set' \
    "$dir/stderr")" 1
env MASTER_ADDR=127.0.0.1 MASTER_PORT=$(free_port) WORLD_SIZE=2 RANK=0 "$program" $tiny \
    --timeout 1 > "$dir/stdout" 2> "$dir/stderr"
same "a rank that does not come" "$(grep -c 'train_gpt2cu-emulated: .*1' "$dir/stderr")" 1
# Several ranks may share a GPU where NCCL is told to let them.
export EMULATOR_DEVICES=1 NCCL_MULTI_RANK_GPU_ENABLE=1
good 2 shared $tiny --steps 2
end emulated_ranks_refuse_in_one_line
exit $failed
