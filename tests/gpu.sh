#!/usr/bin/env bash
# One command for a machine with an NVIDIA GPU: it builds, tests, trains, measures and checks memory
# accesses, and writes a report.
#
#     tests/gpu.sh                  all of it, in less than 10 minutes
#     tests/gpu.sh test bench       some of build, test, train, ranks, bench, sanitize; it always
#                                   builds
#     MINUTES=20 tests/gpu.sh       in 20 minutes instead of 9; what is not done by then has failed
#
# A step that fails does not stop the others; the exit status is 1 if any did. It needs nvcc;
# compute-sanitizer and a python3 with PyTorch 2 are used where they are.
#
# The report of all of it goes to dev/results/NAME-OF-THE-GPU.md, of a part of it to build/gpu,
# where the logs are. With OUT=DIR report and logs go to DIR. What trains and what is measured can
# be made smaller, to try this script out: MODEL (flags), STEPS, BENCH (arguments of
# build/bench_cuda), TORCH (micro-batches for PyTorch) and NOISE (the batch that --noise-scale is
# timed with).
set -u
cd "$(dirname "$0")/.." || exit 1
unset MAKEFLAGS MFLAGS MAKELEVEL PRECISION BUILD
PATH=$PATH:/usr/local/cuda/bin
MODEL=${MODEL:-"--init d12 --seq-len 1024 --micro-batch 16 --batch-tokens 65536
                --warmup-tokens 1000000"}
STEPS=${STEPS:-200} BENCH=${BENCH:-} TORCH=${TORCH:-16 64}
NOISE=${NOISE:-"--micro-batch 8 --batch-tokens 16384"}
all="build test train ranks bench sanitize"
deadline=$((SECONDS + 60 * ${MINUTES:-9}))

die() { echo "tests/gpu.sh: $*" >&2; exit 1; }
for part in "$@"; do
    case " $all " in *" $part "*) ;; *) die "'$part': expected some of $all" ;; esac
done
chosen=" ${*:-$all} "
query() { nvidia-smi --query-gpu="$1" --format=csv,noheader 2> /dev/null; }
gpu=$(query name) && gpu=$(head -n 1 <<< "$gpu") && [ -n "$gpu" ] && [[ $gpu != No\ devices* ]] ||
    die "nvidia-smi finds no GPU here; make test and make emulate need none"

name=$(sed 's/^NVIDIA //' <<< "$gpu" | tr 'A-Z ' 'a-z-' | tr -cd 'a-z0-9-')
root=$PWD/build/gpu
logs=${OUT:-$root}
mkdir -p "$logs" "$root" || exit 1
logs=$(cd "$logs" && pwd)
results=$logs
[ -z "${OUT:-}" ] && [ "$(tr ' ' '\n' <<< "$chosen" | sort -u | grep -c .)" -eq 6 ] &&
    results=dev/results
report=$results/$name.md
bf16=$root/bf16 fp32=$root/fp32 tales=$root/tales
work=$(mktemp -d "${TMPDIR:-/tmp}/batchwise.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
export MODEL STEPS BENCH TORCH NOISE logs bf16 fp32 tales work

# ---- steps: each has a number, a log, and a row in the report ----

steps=0

# run_step NUMBER NAME SECONDS COMMAND...: COMMAND is a program or a function of this script. Its
# log may say in a last line "skip: why".
run_step() {
    local number=$1 name=$2 limit=$3 left=$((deadline - SECONDS)) begin=$SECONDS status verdict
    shift 3
    [ "$limit" -le "$left" ] || limit=$left
    if [ "$limit" -gt 0 ]; then
        timeout -k 5 "$limit" bash -c '"$@"' step "$@" > "$work/$number.log" 2>&1
        status=$?
    else
        limit=0 status=124
        : > "$work/$number.log"
    fi
    case $status in
        0) verdict=$(tail -n 1 "$work/$number.log" | sed -n 's/^skip: /skipped: /p') ;;
        124 | 137) verdict="FAILED: not done in $limit s" ;;
        *) verdict="FAILED" ;;
    esac
    printf '| %s | %s | %d |\n' "$name" "${verdict:-ok}" $((SECONDS - begin)) |
        tee "$work/$number.row"
}
step() { steps=$((steps + 1)); run_step "$(printf %03d $steps)" "$@"; }
beside() { steps=$((steps + 1)); run_step "$(printf %03d $steps)" "$@" & }    # until the next wait

# gather PART FIRST: the logs of its steps become one.
gather() {
    local i file
    wait
    for ((i = $2; i <= steps; i++)); do
        file=$work/$(printf %03d "$i")
        printf '=== %s\n' "$(cut -d'|' -f2,3 "$file.row")"
        cat "$file.log"
    done > "$logs/$1.log"
}

# ---- build: a tree for each precision, so that both can be made at once ----

copy_tree() {
    mkdir -p "$1" && cp -rp Makefile train_gpt2.c train_gpt2.cu dataloader.h dev scripts tests "$1"
}
make_bf16() {
    make -C "$bf16" -j "$(nproc)" train_gpt2 prepare train_gpt2cu build/bench_cuda \
        build/cuda/test_gpt2-bf16 build/cuda/test_gpt2-fp32
}
make_fp32() { make -C "$fp32" -j "$(nproc)" PRECISION=fp32 train_gpt2 train_gpt2cu build/compare; }

part_build() {
    copy_tree "$bf16" && copy_tree "$fp32" || die "build/gpu: no copy of the tree"
    beside "build: bf16, tests, benchmark" 240 make_bf16
    beside "build: fp32" 240 make_fp32
}

# ---- test ----

twins() { cd "$1" && PREPARE="$bf16/prepare" EMULATED=./train_gpt2cu tests/test_cuda.sh; }

part_test() {
    step "test: make test-cuda, both precisions" 180 make -C "$bf16" test-cuda
    beside "test: the twins take over each other's runs, bf16" 120 twins "$bf16"
    beside "test: the twins take over each other's runs, fp32" 120 twins "$fp32"
}

# ---- train ----

losses() {                                  # losses LOG: the number and the loss of each step
    sed -n 's/^{"event":"step","step":\([0-9]*\),.*"loss":\([^,]*\),.*/\1 \2/p' "$1"
}
export -f losses

# Losses that were finite in every step and have fallen by a third, from a uniform guess.
learned() {
    cd "$bf16" && ./train_gpt2cu --data "$tales" $MODEL --steps "$STEPS" \
        --eval-every $((STEPS / 2)) --eval-tokens 500000 --log "$work/train.jsonl" --overwrite || return 1
    losses "$work/train.jsonl" | awk -v steps="$STEPS" '
        NR == 1 { first = $2 } { last = $2 }
        END { printf "%d of %d steps; loss from %g to %g\n", NR, steps, first, last
              exit !(NR == steps && last < first * 2/3) }'
}

# 50 steps in fp32 by the GPU and by the CPU: no loss 1e-4 nats apart.
same_losses() {
    local flags="--data $tales --layers 4 --heads 4 --channels 128 --seq-len 128 --micro-batch 8
                 --steps 50 --eval-every 0 --eval-tokens 1024"
    cd "$fp32" && ./train_gpt2cu $flags --log "$work/gpu.jsonl" --overwrite &&
        ./train_gpt2 $flags --log "$work/cpu.jsonl" --overwrite || return 1
    losses "$work/gpu.jsonl" > "$work/gpu.losses"
    losses "$work/cpu.jsonl" > "$work/cpu.losses"
    paste "$work/gpu.losses" "$work/cpu.losses" | awk '
        { d = $2 - $4; if (d < 0) d = -d; if (d > most) most = d }
        { n += $1 == $3 && $2 > 0; last = $2 }
        END { printf "%d steps, to a loss of %g; at most %.2g apart\n", n, last, most
              exit !(n == 50 && NR == 50 && most <= 1e-4) }'
}

# Tokens a second with and without --noise-scale, in turn; and what --plan makes of the run.
tok_per_s() {
    ./train_gpt2cu --data "$tales" $MODEL $NOISE --steps 16 --eval-every 0 --eval-tokens 1024 \
        --log "$work/noise.jsonl" --overwrite "$@" > "$work/noise.txt" || return 1
    sed -n 's/^{"event":"step".*"tok_per_s":\([^,]*\),.*/\1/p' "$work/noise.jsonl" | tail -n 12
}
noise_costs() {
    cd "$bf16" && ./train_gpt2cu $MODEL $NOISE --plan || return 1
    local turn
    for turn in 1 2 3; do
        tok_per_s >> "$work/noise.without" && tok_per_s --noise-scale >> "$work/noise.with" ||
            return 1
    done
    for turn in without with; do
        sort -g "$work/noise.$turn" | awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)] }'
    done | xargs | awk '{ printf "--noise-scale takes %.1f%% of a step: %.0f tokens/s without, " \
                                 "%.0f with it\n", 100 * ($1 / $2 - 1), $1, $2 }'
}

part_train() {
    step "train: prepare tales" 60 "$bf16/prepare" tales --out "$tales" --overwrite \
        --tokens 15000000
    step "train: $STEPS steps in bf16" 120 learned
    step "train: 50 steps in fp32, the CPU's losses" 60 same_losses
    step "train: what --noise-scale costs" 60 noise_costs
}

# ---- ranks: several on one GPU, which shows whether they agree; one on each, how they scale ----

# ranks N NAME FLAGS...: a run of N ranks. NCCL takes two ranks on one GPU only if it believes them
# on two machines (NCCL_HOSTID), which then talk over the loopback; from 2.30 on it can be told.
ranks() {
    local n=$1 name=$2
    shift 2
    NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 \
        scripts/launch.sh -n "$n" bash -c 'NCCL_HOSTID=rank$RANK exec "$@"' rank ./train_gpt2cu \
        --data "$tales" --layers 4 --heads 4 --channels 128 --seq-len 128 --micro-batch 2 \
        --batch-tokens 2048 --steps 20 --lr 1e-3 --warmup-tokens 20480 --eval-every 0 \
        --eval-tokens 4096 --tune=off --out "$work/ranks_$name" --overwrite "$@" || return 1
    [ -f "$work/ranks_$name/latest/model.safetensors" ]
}
same_weights() {                            # same_weights NAME NAME: to 1e-6 of their length
    printf '%s beside %s: ' "$1" "$2"
    build/compare "$work/ranks_$1" "$work/ranks_$2" 1e-6
}
ranks_agree() {
    cd "$fp32" || return 1
    local n stage
    for n in 1 2 4; do
        ranks $n plain$n && ranks $n exact$n --exact-sum || return 1
        same_weights plain1 plain$n || return 1
        cmp "$work/ranks_exact1/latest/model.safetensors" \
            "$work/ranks_exact$n/latest/model.safetensors" || return 1
    done
    for stage in 1 2 3; do
        ranks 2 zero$stage --zero $stage && same_weights plain1 zero$stage || return 1
    done
}

# Tokens a second with 1, 2, 4 ... of the GPUs, the same batch for each of them, and what they wait.
ranks_scale() {
    cd "$bf16" || return 1
    local n
    for ((n = 1; n <= gpus; n *= 2)); do
        scripts/launch.sh -n $n ./train_gpt2cu --data "$tales" --init d12 --seq-len 1024 \
            --micro-batch 16 --batch-tokens $((n * 65536)) --steps 30 --eval-every 0 \
            --eval-tokens 1024 --log "$work/scale.jsonl" --overwrite > "$work/scale.txt" || return 1
        sed -n 's/^{"event":"step".*"tok_per_s":\([^,]*\),.*/\1/p' "$work/scale.jsonl" |
            tail -n 20 | sort -g | awk -v n=$n '{ x[NR] = $1 }
                END { printf "scaling: %d GPUs %.0f tokens/s\n", n, x[int((NR + 1) / 2)] }'
        grep '^of ' "$work/scale.txt"
    done
    return 0
}

part_ranks() {
    gpus=$(nvidia-smi -L | grep -c '^GPU')
    export gpus
    step "ranks: 1, 2 and 4 on one GPU agree" 150 ranks_agree
    if [ "$gpus" -gt 1 ]; then step "ranks: scaling to $gpus GPUs" 240 ranks_scale
    else step "ranks: scaling" 10 echo "skip: needs several GPUs"; fi
}

# ---- bench ----

measure() { cd "$logs" && "$bf16/build/bench_cuda" $BENCH; }
compare() {
    cd "$logs" && "$bf16/scripts/bench_cuda.sh" $TORCH | tee "$work/torch"
    [ "${PIPESTATUS[0]}" -eq 0 ] || return 1
    if grep -q ': not compared' "$work/torch"; then echo "skip: needs PyTorch 2"; fi
}

part_bench() {
    step "bench: micro-batches and launchers" 120 measure
    step "bench: PyTorch beside it" 200 compare
}

# ---- sanitize ----

# Each tool must first find what is planted for it. Racecheck looks at our kernels alone, whose
# names all end so: NVIDIA's synchronise in ways it does not know.
planted_source() { cat <<'CU'
#include <cuda_runtime.h>
__global__ void past_the_end_kernel(int *x) { x[64 + threadIdx.x] = 1; }
__global__ void unwritten_kernel(int *x, const int *y) { x[threadIdx.x] = y[threadIdx.x] + 1; }
__global__ void no_barrier_kernel(int *x) {
    __shared__ int shared[64];
    shared[threadIdx.x] = threadIdx.x;
    x[threadIdx.x] = shared[63 - threadIdx.x];
}
int main(int, char **argv) {
    int *x, *y;
    if (cudaMalloc((void **)&x, 256) != cudaSuccess) return 9;
    if (cudaMalloc((void **)&y, 256) != cudaSuccess) return 9;
    if (argv[1][0] == 'm') past_the_end_kernel<<<1, 64>>>(x);
    if (argv[1][0] == 'r') no_barrier_kernel<<<1, 64>>>(x);
    if (argv[1][0] == 'i') unwritten_kernel<<<1, 64>>>(x, y);
    return cudaDeviceSynchronize() == cudaSuccess ? 0 : 9;
}
CU
}
make_planted() {
    planted_source > "$work/planted.cu" && nvcc -arch=native "$work/planted.cu" -o "$work/planted"
}

# sanitizer TOOL COMMAND...: 3 when the tool finds anything.
sanitizer() {
    local tool=$1 filter=--kernel-name known; shift
    known=$(compute-sanitizer --help)
    [[ $known == *$filter* ]] || filter=--kernel-regex                   # before 2024
    [ "$tool" != racecheck ] || set -- "$filter" kns=_kernel "$@"
    [[ $known != *--launch-timeout* ]] || set -- --launch-timeout 100 "$@"   # many start at once
    compute-sanitizer --tool "$tool" --error-exitcode 3 "$@"
}
finds_planted() {
    sanitizer "$1" "$work/planted" "$1"
    local status=$?
    echo "exit status $status, 3 is expected"
    [ $status -eq 3 ]
}
sanitize_tests() { sanitizer "$1" "$bf16/build/cuda/test_gpt2-$2" $tests; }
sanitize_training() {
    sanitizer "$1" "$bf16/train_gpt2cu" --data "$tales" --layers 2 --heads 2 --channels 128 \
        --seq-len 256 --micro-batch 2 --batch-tokens 1024 --steps 3 --eval-tokens 512 \
        --recompute block --tune off
}

part_sanitize() {
    local tool precision
    if ! command -v compute-sanitizer > /dev/null; then
        step "sanitize" 10 echo "skip: needs compute-sanitizer"
        return
    fi
    # Tests that train for long would only launch the same kernels again.
    tests=$(sed -n 's/^ *RUN_NAMED(\(.*\));/\1/p' tests/test_gpt2.cu |
            grep -vE 'ten_updates|same_bits|recomputing|fifty' | xargs)
    export tests
    [ -f "$tales/tokenizer.json" ] || "$bf16/prepare" tales --out "$tales" > /dev/null
    step "sanitize: compile what is planted" 60 make_planted
    for tool in memcheck racecheck initcheck; do
        beside "sanitize: $tool finds what is planted" 60 finds_planted $tool
    done
    wait
    for tool in memcheck racecheck initcheck; do
        for precision in bf16 fp32; do
            beside "sanitize: $tool, tests, $precision" 240 sanitize_tests $tool $precision
        done
        beside "sanitize: $tool, training" 240 sanitize_training $tool
    done
}

export -f ranks same_weights ranks_agree ranks_scale
export -f make_bf16 make_fp32 twins losses learned same_losses tok_per_s noise_costs measure \
    compare planted_source make_planted sanitizer finds_planted sanitize_tests sanitize_training

# ---- the report ----

report_machine() {
    echo "# $gpu"
    echo
    echo "Written by \`tests/gpu.sh\` on one $gpu of $(query memory.total | head -n 1): driver" \
        "$(query driver_version | head -n 1), CUDA" \
        "$(nvidia-smi | sed -n 's/.*CUDA Version: *\([0-9.]*\).*/\1/p' | head -n 1)," \
        "nvcc $(nvcc --version | sed -n 's/.*release .*V\([0-9.]*\).*/\1/p'); $(nproc) CPU cores." \
        "\`train_gpt2.cu\` was $(sha256sum train_gpt2.cu | cut -c1-12) (sha256)," \
        "\`dev/ranks/kernels.cu\` $(sha256sum dev/ranks/kernels.cu | cut -c1-12)."
    echo
    echo "| step | result | seconds |"
    echo "|---|---|---|"
    cat "$work"/*.row
}

logged() {                                  # logged EVENT FIELD...: their values, a line an event
    local event=$1 pattern='' field; shift
    for field in "$@"; do pattern="$pattern.*\"$field\":\\([^,}]*\\)"; done
    sed -n "s/^{\"event\":\"$event\"$pattern.*/\\1 \\2/p" "$work/train.jsonl"
}

report_training() {
    printf '\n## Training\n\n'
    echo "\`train_gpt2cu $(xargs <<< "$MODEL") --steps $STEPS\` on \`prepare tales\`;" \
        "losses in nats a byte."
    echo
    losses "$work/train.jsonl" | awk '
        NR == 1 || NR == 10 || NR % 50 == 0 { step = step " " $1 " |"; loss = loss " " $2 " |" }
        END { rule = step; gsub(/[^|]+/, "---", rule)
              print "| step |" step; print "|---|" rule; print "| loss |" loss "\n" }'
    logged eval step val_loss | while read -r step loss; do
        echo "Validation loss after step $step: $loss."
    done
    logged step tok_per_s mfu | sort -n | awk '{ speed[NR] = $1; mfu[NR] = $2 }
        END { i = int((NR + 1) / 2)
              printf "Steps, by the median: %.0f tokens/s, MFU %.1f%%.\n", speed[i], 100 * mfu[i] }'
}

report_text() {                             # report_text TITLE FILE
    printf '\n## %s\n\n```\n' "$1"
    cat "$2"
    echo '```'
}

write_report() {
    local row
    report_machine
    echo
    grep -h -E '^[0-9]+ passed, ' "$work"/*.log | sed 's/^/Tests: /; s/$/./'
    grep -h -E ' apart$' "$work"/*.log | sed 's/^/The GPU beside the CPU, in fp32: /; s/$/./'
    grep -h -E '^(scaling: |--noise-scale takes|of .* ms an update|[a-z]+[0-9] beside )' "$work"/*.log |
        sed 's/^/- /'
    [ -s "$work/train.jsonl" ] && report_training
    [[ $chosen == *" bench "* ]] && report_text Benchmark "$logs/bench.log"
    for row in "$work"/*.row; do
        grep -q FAILED "$row" || continue
        tail -n 15 "${row%.row}.log" > "$work/tail"
        report_text "Failed: $(sed 's/^| \([^|]*\) |.*/\1/' "$row")" "$work/tail"
    done
}

for part in $all; do
    [ $part = build ] || [[ $chosen == *" $part "* ]] || continue
    first=$((steps + 1))
    part_$part
    gather $part $first
done
mkdir -p "$results"
write_report > "$report"
failed=$(cat "$work"/*.row | grep -c FAILED)
echo
cat "$report"
echo
echo "$report; logs in $logs; $steps steps, $failed failed"
[ "$failed" -eq 0 ]
