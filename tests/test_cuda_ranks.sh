#!/usr/bin/env bash
# Ranks of the CUDA trainer, emulated, under mpirun: that they train what one trains, at any stage of
# ZeRO, in any order of the GPU's streams; what they keep, send, resume, and refuse in one line. Most
# runs are those of the CPU's trainer, tests/ranks.sh.
#
#     tests/test_cuda_ranks.sh [NAME...]       all tests, or those that are named
#     FAULTS=1 tests/test_cuda_ranks.sh        plants all faults, not one of each kind, and runs
#                                              all rows of the tables, those with a `+` too
. "$(dirname "$0")/tools.sh"
. tests/ranks.sh
tests="emulated_ranks_train_what_one_rank_trains emulated_ranks_in_bf16
    emulated_ranks_keep_and_send_what_they_should emulated_ranks_share_layers
    emulated_shared_layers_send_what_they_should emulated_ranks_leave_room_for_messages
    the_recipe_runs_from_end_to_end emulated_ranks_refuse_in_one_line
    planted_faults_in_the_exchange_are_found"
[ $# -gt 0 ] && tests=$*
needs mpicxx mpicc mpirun

export EMULATOR_DEVICES=8 EMULATOR_TIMEOUT=60    # a GPU for each rank
export MASTER_ADDR=127.0.0.1
unset EMULATOR_STREAMS NCCL_HOSTID NCCL_MULTI_RANK_GPU_ENABLE

# ---- the programs: of what make has compiled, with two files for MPI and for tiny models ----

# A slice is cut into pieces of 64 elements, so that tiny models send several.
sources() {                                 # sources DIR: a copy of the program's sources
    mkdir -p "$1" && cp -r dev train_gpt2.cu "$1" && ln -s "$PWD/dataloader.h" "$1" &&
        sed -i 's/COMM_LEAST = 1 << 18/COMM_LEAST = 64/' "$1/dev/ranks/ranks.h"
}
compiler="mpicxx -std=c++17 -w -fopenmp -DEMULATOR -DWITH_NCCL -DEMULATOR_MPI
          -I$PWD/dev/emulator/include"
object() {                                  # object OUT.o DIR FILE FLAGS...: the trainer, or FILE.c
    case $3 in
        *.c) $compiler "${@:4}" -DTRAINS_ON_GPU -x c++ -c "$2/$3" -o "$1" ;;
        *) "$build/rewrite" "$2/train_gpt2.cu" > "$1.cpp" &&
            $compiler "${@:4}" -iquote "$2" -c "$1.cpp" -o "$1" ;;
    esac
}
link() { $compiler "${@:2}" "$dir/mpi.a" "$build/emulated/library.a" -o "$1"; }
# Plants the faults on stdin, one in EVERY. Each line: a file, and how to break it. For $program in
# fp32, made of the broken sources, FOUND must be true.
plant() {                                   # plant EVERY FOUND
    local file how n=0 every=${FAULTS:-$1} broken
    while IFS='|' read -r file how; do
        n=$((n + 1))
        has_its_turn $n "$every" || continue
        broken=$dir/broken$n program=$dir/broken$n/program
        sources "$broken"
        sed -i.sound "$how" "$broken/$file"
        ! cmp -s "$broken/$file"{,.sound} || note "it changes nothing: $how"
        object "$program.o" "$broken" "$file" -O0 -DPRECISION_FP32
        case $file in
            *.c) link "$program" "$program.o" "$dir/fp32.o" ;;
            *) link "$program" "$program.o" ;;
        esac
        [ -x "$program" ] || note "it does not compile: $how"
        "$2" || note "unnoticed: $how"
    done
    echo "    one in $every of $n"
}
fp32=$dir/fp32 bf16=$dir/bf16 cpu=$mpi_train
make -s "$build"/{rewrite,compare,train_gpt2-mpi} "$build"/emulated/{library.a,train_gpt2cu.o} &&
    sources "$dir/sources" && object "$dir/comm.o" "$dir/sources" dev/ranks/comm.c -O1 &&
    object "$dir/comm_nccl.o" "$dir/sources" dev/ranks/comm_nccl.c -O1 &&
    ar rcs "$dir/mpi.a" "$dir"/comm{,_nccl}.o &&
    object "$fp32.o" "$dir/sources" train_gpt2.cu -O1 -DPRECISION_FP32 &&
    link "$fp32" "$fp32.o" && link "$bf16" "$build/emulated/train_gpt2cu.o" ||
    { echo "FAIL ${tests%% *}: its programs are not built"; exit 1; }
"$prepare" tales --out "$dir/tales" --tokens 30000 --seed 5 > "$dir/stdout" || exit 1

# ---- one sum, however it is shared out ----

emulated_ranks_train_what_one_rank_trains() {
    program=$fp32 base=$tiny
    rows < <(sums | some "one|four0|four3|exact1|exact4|again3|rounds")
    # In whatever order streams run, the numbers are the same: what waits for too little shows where
    # they run late, or at random. Of two programs the products and the orders of sums differ. A
    # batch that grows; and, with --exact-sum, one that does not.
    local grows="--noise-scale --batch-schedule linear:32,100"
    local two=BATCHWISE_HOSTS=a,a,b,b late=EMULATOR_STREAMS=late random=EMULATOR_STREAMS=random
    rows << ROWS
cpu_sum     4  four0     1e-5        on=cpu --zero 0
cpu_rounds  2  rounds    1e-5        on=cpu --outer-every 2
+passed     4  cpu_sum@2 1e-5        --zero 3
+cpu_noise  2  -         -           on=cpu --zero 0 $grows
+noise0     2  cpu_noise 1e-5        --zero 0 $grows
cpu_noise3  2  -         -           on=cpu --zero 3 $grows
late_noise  2  cpu_noise3 1e-5       $late --zero 3 $grows
+random_noise 2 late_noise bits      $random --zero 3 $grows
+cpu_tree   2  -         -           on=cpu --exact-sum --noise-scale
+late_tree  2  cpu_tree  1e-5        $late --exact-sum --noise-scale
+random_tree 2 late_tree bits        $random --exact-sum --noise-scale
late_half   4  four0     3e-4,other  $late --zero 0 --comm-dtype bf16
cpu_half    4  late_half 1e-4        --zero 0 --comm-dtype bf16 on=cpu
+far_half   4  late_half bits        $two $random --zero 0 --comm-dtype bf16
+late_rounds 2 rounds    bits        $late --outer-every 2
late2       2  one       2e-7        $late --zero 2
+random2    2  late2     bits        $random --zero 2
late3       4  four3     bits        $late --zero 3 --recompute block
+far0       4  four0     bits        $two $random --zero 0
+far3       4  four3     bits        $two $random --zero 3
ROWS
    [ "$(values step batch_tokens "$dir/late_noise" | sort -u | wc -l)" = 2 ] ||
        note "no batch grew"
}

# Another order of a sum moves a master now and then to where it is rounded the other way, by 2^-8
# of it, and then all that follows.
emulated_ranks_in_bf16() {
    program=$bf16 base=$tiny
    rows << 'ROWS'
b_one       1  -         -
b1          2  b_one     1e-3
b3          2  b1        1e-5        EMULATOR_STREAMS=random BATCHWISE_HOSTS=a,b --zero 3
+b0         2  b1        1e-5        --zero 0
+b2         4  b_one     1e-3        --zero 2
+b1_        2  b1@2      bits
+b3_        3  b3@2      -           --batch-tokens 48
+b_exact    1  -         -           --exact-sum
+b_exact4   4  b_exact   bits        --exact-sum
+b_rounds   2  -         -           --outer-every 2
+b_rounds_  2  b_rounds@2 bits
+b1_late    2  b1        bits        EMULATOR_STREAMS=late
+b3_late    2  b3        bits        EMULATOR_STREAMS=late --zero 3
ROWS
}

emulated_ranks_keep_and_send_what_they_should() {
    words=320                               # the vocabulary is padded
    program=$bf16 bytes_p=2
    keeps_and_sends 3 2 2 bf16
    [ -n "${FAULTS:-}" ] || return
    keeps_and_sends 1 4 2 fp32
    program=$fp32 bytes_p=4
    keeps_and_sends 2 2 2 fp32
}

# ---- tensor parallel: ranks that share each layer ----

emulated_ranks_share_layers() {
    program=$fp32 base=$layers
    few_words
    rows < <(shares | some "whole|group3")
    # A layer's terms, their sum and its gradient's are rounded to bf16 each: 2^-9 of them, at most.
    rows << ROWS
random      4  whole     2e-6        EMULATOR_STREAMS=random --recompute block --tensor-parallel 4
+random_    4  random@2  bits
cpu_share   4  random    2e-6        on=cpu --tensor-parallel 4
+share4_    4  share4    bits        EMULATOR_STREAMS=random --tensor-parallel 4
+passed     2  cpu_share@2 2e-6      --tensor-parallel 2
b_slope     1  -         -           on=bf16 $gradient --channels 64
b_slope4    4  b_slope   2e-3        on=bf16 $gradient --channels 64 --tensor-parallel 4
ROWS
    plant 6 shared_fault_found << 'FAULTS'
train_gpt2.cu|s/    tp_sum(&m->params.tp, out, N\*C);//
train_gpt2.cu|/^static void branch_project/,/^}/ s/(out, b, skip/(out, skip, skip/
dev/ranks/tensor_model.cu|s/part.sum \* __expf(part.hi - whole.hi)/part.sum/
train_gpt2.cu|s/; chunk.in_norm \&\& i/; i/
train_gpt2.cu|s/    branch_input_sum(m, dln[12], N);//
train_gpt2.cu|s/    if (use == TRAIN) tp_sum(group, m->dx_branch, N\*C);.*//
FAULTS
    program=$bf16
    refuses "--tensor-parallel: 4 channels a rank, no multiple of 8" 4 $layers --channels 16 \
        --tensor-parallel 4
}

# Two ranks of a broken program have other losses or weights than one of a sound one.
shared_fault_found() {
    mpi 2 $layers --tensor-parallel 2 --out "$dir/faulty" --overwrite
    [ $status != 0 ] && return
    (why= ; agree whole faulty 2e-6 > "$dir/said"; [ "$why" ])
}

# Bytes a rank and micro-batch, as dev/ranks/tensor.c counts them. A recomputed block sums again
# what attention gives, and not what the MLP gives, which nobody reads.
emulated_shared_layers_send_what_they_should() {
    local flags="$layers --channels 64 --seq-len 8 --batch-tokens 32 --steps 2" shape
    for shape in "bf16 4 block" ${FAULTS:+"fp32 2 none"}; do
        read -r precision ranks recompute <<< "$shape"
        program=${!precision}
        good $ranks $flags --tensor-parallel $ranks --recompute $recompute --out "$dir/sent$ranks"
        near "bytes sent, $shape" "$(last step bytes_sent sent$ranks)" "$(awk -v n=$ranks \
            -v again=$([ $recompute = block ] && echo 1 || echo 0) -v type=$precision 'BEGIN {
            L = 2; BT = 16; C = 64; real = type == "fp32" ? 4 : 2
            sums = 4*L + 2 + again*(L - 1)
            print 2 * (sums*BT*C*real * 2*(n - 1)/n + 3*BT*4 * (n - 1)) }')" 0.01
    done
}

# ---- between machines ----

# Between two machines, with streams in one of several orders, a run of the broken program has other
# bits, or does not end well.
exchange_fault_found() {
    local order
    for order in "" late random:1 random:2 random:3; do
        EMULATOR_TIMEOUT=20 EMULATOR_STREAMS=$order mpi 8 $base --out "$dir/broken" --overwrite
        [ $status = 0 ] && cmp -s "$dir/eight/latest/optimizer.safetensors" \
            "$dir/broken/latest/optimizer.safetensors" || return 0
    done
    return 1
}
planted_faults_in_the_exchange_are_found() {
    program=$fp32 base="$tiny --micro-batch 1 --steps 2 --zero 2"
    row eight 8 - -
    export BATCHWISE_HOSTS=a,a,a,a,b,b,b,b
    row eight_far 8 eight bits EMULATOR_STREAMS=random
    told "on 2 machines (a: .*, in two levels" "no two levels on a,a,a,a,b,b,b,b"
    plant 4 exchange_fault_found << 'FAULTS'
dev/ranks/comm_nccl.c|/^[a-z ]*void comm_arrived/,/^}/ s/    COMM_CUDA(.*//
dev/ranks/comm_nccl.c|/^[a-z ]*void comm_begin/,/^}/ s/    COMM_CUDA(cudaStreamWaitEvent(.*//
dev/ranks/comm.c|/^[a-z ]*void scatter_sum_near/,/^}/ s/terms\[i\] = /terms[(i + 1) % c->near] = /
dev/ranks/comm.c|s/int peer = rank_on(c, m, own_index(c));/int peer = c->rank \/ c->far * c->far + m;/
FAULTS
    unset BATCHWISE_HOSTS
}

# ---- room for messages, the recipe, bad input ----

# Products beside messages have fewer multiprocessors, and so, here, another first algorithm; but
# not with --exact-sum, whose bits are those of one rank.
emulated_ranks_leave_room_for_messages() {
    program=$bf16 base="$tiny --steps 1"
    export EMULATOR_ALGORITHMS=beside
    rows << ROWS
left1     1  -         -           --exact-sum
left2     2  left1     bits        --exact-sum
beside    2  -         -
in_turn   2  beside    other       --no-overlap
ROWS
    unset EMULATOR_ALGORITHMS
}
# scripts/train.sh d12 at toy size, with everything on, and the same command a second time, which
# goes on.
the_recipe_runs_from_end_to_end() {
    local tree=$dir/recipe examples=$PWD/tests/fixtures/hellaswag.jsonl run
    mkdir -p "$tree/dev" "$dir/tools" && cp -r scripts "$tree" && cp -r dev/data "$tree/dev"
    cp "$bf16" "$tree/train_gpt2cu"
    printf '#!/bin/sh\n' > "$dir/tools/make" && chmod +x "$dir/tools/make"
    printf '#!/bin/sh\necho loss > "$3"\n' > "$tree/scripts/plot.py"
    for i in $(seq 1000); do echo "the cat sat on the mat, and the rat on the hat"; done \
        > "$tree/good"
    "$prepare" text "$tree/good" --out "$tree/text" > "$dir/stdout"
    recipe() {                              # recipe RUN STEPS
        (cd "$tree" && PATH=$dir/tools:$PATH timeout -k 5 100 scripts/train.sh d12 --gpus 2 \
            --data "$tree/text" --layers 1 --heads 1 --channels 16 --seq-len 8 --micro-batch 2 \
            --batch-tokens 32 --steps "$2" --warmup-tokens 64 --lr-schedule constant \
            --eval-tokens 16 --eval-every 4 --hellaswag "$examples" \
            --lr 3e-2 --save-every 4 --threads 1 --out "$dir/$1") \
            > "$dir/stdout" 2> "$dir/stderr" < /dev/null
        status=$?
        [ $status = 0 ] || note "status $status of $1: $(tail -n 1 "$dir/stderr")"
    }
    recipe recipe_whole 6
    recipe recipe_parts 5
    recipe recipe_parts 6                         # --resume is the script's
    same_files recipe_whole recipe_parts
    same "HellaSwag" "$(values hellaswag step "$dir/recipe_parts" | sort -nu | xargs)" "4 5 6"
    for run in recipe_whole recipe_parts; do
        same "ranks of $run" "$(last start ranks $run)" 2
        [ -s "$dir/$run/loss.png" ] || note "$run draws no curve"
    done
    same "resumed" "$(values resume step "$dir/recipe_parts")" 5
    same "val_loss" "$(last eval val_loss recipe_parts)" "$(last eval val_loss recipe_whole)"
}

emulated_ranks_refuse_in_one_line() {
    program=$fp32 base="$tiny --steps 2"
    EMULATOR_DEVICES=2 refuses "3 ranks were started on this machine, which shows them 2 GPUs;" 3 \
        $tiny --batch-tokens 48
    EMULATOR_DEVICES=1 refuses "Duplicate GPU detected: ranks 0 and 1" 2 $tiny
    refused "MASTER_ADDR: not set" env -u MASTER_ADDR WORLD_SIZE=2 RANK=0 "$program" $tiny
    refused "1" env MASTER_PORT=$(free_port) WORLD_SIZE=2 RANK=0 "$program" $tiny --timeout 1
    # A message may fail while all wait for it: rank 1 is told, by no call that it makes.
    run timeout 60 mpirun -n 2 env EMULATOR_NCCL_FAULT=1 MASTER_PORT=$(free_port) "$program" $tiny \
        --batch-tokens 32 --steps 1000000 --timeout 5
    same "status after a fault" $status 1
    has "$dir/stderr" "rank 1: NCCL: unhandled system error"
    # Several ranks may share a GPU where NCCL is told to let them.
    row shared 2 - - EMULATOR_DEVICES=1 NCCL_MULTI_RANK_GPU_ENABLE=1
    # Each on a machine of its own, which shows it one GPU; rank 0's does not have MASTER_ADDR's.
    printf '%s\n' '#!/bin/sh' 'export CUDA_VISIBLE_DEVICES=$OMPI_COMM_WORLD_RANK' \
        'export OMPI_COMM_WORLD_LOCAL_SIZE=1; [ $OMPI_COMM_WORLD_RANK = 1 ] || MASTER_ADDR=192.0.2.1' \
        "exec '$fp32' \"\$@\"" > "$dir/own-gpu" && chmod +x "$dir/own-gpu"
    program=$dir/own-gpu
    row own 2 shared bits
}

for name in $tests; do
    $name
    end $name
done
exit $failed
