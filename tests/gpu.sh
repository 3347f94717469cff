#!/usr/bin/env bash
# One command for a machine with an NVIDIA GPU: it builds, tests, measures, trains and checks memory
# accesses, in four calls of less than 9 minutes each. What is safe comes first.
#
#     tests/gpu.sh                  calls A, B, C and D, one after the other
#     tests/gpu.sh A                A: tools and paths, the build, the tests, the real shapes,
#                                      a first benchmark. It ends where nothing after it can work:
#                                      the build failed, the program does not load, or a number is
#                                      more than 4 times as far off as its bound allows
#     tests/gpu.sh B                B: every launcher, every product, whole steps, counters; 200
#                                      steps twice, compared bit for bit
#     tests/gpu.sh C                C: fp32 beside the CPU, memcheck and racecheck, PyTorch
#     tests/gpu.sh D                D: three minutes of training; the counters of make profile
#                                      beside ncu's; the ladders; initcheck; several ranks
#     GPU_ARCHS=90 tests/gpu.sh build    builds beforehand, GPU or not: a call that finds build/gpu
#                                        made from these very sources builds nothing
#     MINUTES=20 tests/gpu.sh B     in 20 minutes instead of 9; what is not done by then has failed
#     KEEP_GOING=1 tests/gpu.sh     A goes on whatever failed; KEEP_GOING=0: the first step that
#                                   fails ends it
#
# Reports and logs go to dev/results/GPU-DATE, or to OUT=DIR: A.md, A.tar.gz with the log of each
# step, and so on. Both are written anew after each step, so that a call that is killed leaves what
# it knows. The exit status is 1 if any step failed. It needs nvcc, or build/gpu made beforehand;
# ncu, compute-sanitizer and a python3 with PyTorch 2 are used where they are. If nvcc is newer than
# the driver, an older toolkit is used where there is one (/usr/local/cuda-12); a build made
# beforehand has a tree for each of the two.
#
# To try this script out, what is trained and measured can be made smaller: MODEL and BIG (flags),
# STEPS, EVAL (tokens), MINUTE (seconds), BENCH (arguments of build/bench_cuda), TORCH
# (micro-batches for PyTorch) and NOISE (the batch that --noise-scale is timed with).
set -u
cd "$(dirname "$0")/.." || exit 1
unset MAKEFLAGS MFLAGS MAKELEVEL PRECISION BUILD
TOOLKITS=${TOOLKITS:-/usr/local}
PATH=$PATH:$TOOLKITS/cuda/bin
MODEL=${MODEL:-"--init d12 --seq-len 1024 --micro-batch 16 --batch-tokens 65536
                --warmup-tokens 1000000"}
BIG=${BIG:-"--init d12 --seq-len 1024 --micro-batch 64 --batch-tokens 524288
            --warmup-tokens 10000000"}
STEPS=${STEPS:-200} EVAL=${EVAL:-500000} MINUTE=${MINUTE:-60} BENCH=${BENCH:-} TORCH=${TORCH:-16 64}
NOISE=${NOISE:-"--micro-batch 8 --batch-tokens 16384"}

die() { echo "tests/gpu.sh: $*" >&2; exit 1; }
for call in "$@"; do
    case $call in A | B | C | D | build) ;; *) die "'$call': expected A, B, C, D or build" ;; esac
done
query() { nvidia-smi --query-gpu="$1" --format=csv,noheader 2> /dev/null; }
gpu=$(query name) && gpu=$(head -n 1 <<< "$gpu") && [ -n "$gpu" ] && [[ $gpu != No\ devices* ]] ||
    gpu=
[ -n "$gpu" ] || [ "$*" = build ] ||
    die "nvidia-smi finds no GPU here; make test and make emulate need none"

# Programs that were built in another machine look for libraries where that one has them.
known=$(ldconfig -p 2> /dev/null)
if [[ $known != *libcublasLt.so* || $known != *libnccl.so* ]]; then
    for folder in /usr/local/cuda/lib64 $("${PYTHON:-python3}" -c 'import glob, nvidia
for path in nvidia.__path__: print(*glob.glob(path + "/*/lib"))' 2> /dev/null); do
        LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
    done
    export LD_LIBRARY_PATH
fi

# ---- which CUDA: a driver runs what was built with its major version, or an earlier one ----

cuda_of() { "$1" --version 2> /dev/null | sed -n 's/.*release \([0-9]*\)\..*/\1/p'; }
driver_cuda=$(nvidia-smi 2> /dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\)\..*/\1/p' | head -n 1)

# older_nvcc MAJOR: the newest nvcc of a toolkit of CUDA MAJOR or earlier.
older_nvcc() {
    local nvcc major
    for nvcc in $(ls -d "$TOOLKITS"/cuda-[0-9]*/bin/nvcc 2> /dev/null | sort -rV); do
        major=$(cuda_of "$nvcc")
        [ "${major:-99}" -gt "$1" ] || { echo "$nvcc"; return; }
    done
}

root=$PWD/build/gpu nvcc=$(command -v nvcc) older=
own_cuda=$(cuda_of nvcc)
[ -z "$own_cuda" ] || older=$(older_nvcc $((own_cuda - 1)))
if [ -n "$own_cuda" ] && [ -n "$driver_cuda" ] && [ "$driver_cuda" -lt "$own_cuda" ]; then
    nvcc=$(older_nvcc "$driver_cuda")
    [ -z "$nvcc" ] || PATH=$(dirname "$nvcc"):$PATH
fi
[ -z "$nvcc" ] || export NVCC=$nvcc
name=$(sed 's/^NVIDIA //' <<< "${gpu:-none}" | tr 'A-Z ' 'a-z-' | tr -cd 'a-z0-9-')
results=${OUT:-dev/results/$name-$(date +%F)}
[ "$*" != build ] || results=$root
mkdir -p "$root" "$results" && results=$(cd "$results" && pwd) || exit 1
bf16=$root/bf16 fp32=$root/fp32 tales=$root/tales
trees_of_older() { bf16=$root/older/bf16 fp32=$root/older/fp32; }
made=$(cat "$root/cuda" 2> /dev/null)       # with which CUDA build/gpu was made beforehand
if [ -n "$gpu" ]; then
    [ "${made:-0}" -le "${driver_cuda:-99}" ] || trees_of_older
    [ -n "$nvcc" ] || [ -e "$bf16/built" ] ||
        die "the driver knows CUDA ${driver_cuda:-?}, nvcc is ${own_cuda:-not here}, and" \
            "build/gpu has nothing for this driver: update it (CUDA 13 needs R580), install CUDA" \
            "${driver_cuda:-12}, or build elsewhere (GPU_ARCHS=90 tests/gpu.sh build)"
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/batchwise.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
export MODEL BIG STEPS EVAL MINUTE BENCH TORCH NOISE results bf16 fp32 tales work

# ---- steps: each has a log and a row in the report of its call ----

steps=0

# run_step FILE NAME SECONDS COMMAND...: COMMAND is a program or a function of this script. Its log
# may say in a last line "skip: why".
run_step() {
    local file=$1 name=$2 limit=$3 left=$((deadline - SECONDS)) begin=$SECONDS status verdict
    shift 3
    [ "$limit" -le "$left" ] || limit=$left
    if [ "$limit" -gt 0 ]; then
        timeout -k 5 "$limit" bash -c '"$@"' step "$@" > "$file.log" 2>&1
        status=$?
    else
        limit=0 status=124
        : > "$file.log"
    fi
    case $status in
        0) verdict=$(tail -n 1 "$file.log" | sed -n 's/^skip: /skipped: /p') ;;
        124 | 137) verdict="FAILED: not done in $limit s" ;;
        *) verdict="FAILED" ;;
    esac
    printf '| %s | %s | %d |\n' "$name" "${verdict:-ok}" $((SECONDS - begin)) | tee "$file.row"
    record
}
step() { steps=$((steps + 1)); run_step "$work/$call-$(printf %03d $steps)" "$@"; }
beside() { step "$@" & steps=$((steps + 1)); }      # others run meanwhile, until the next wait
failed() { grep -q FAILED "$work/$call"-*.row; }
far_off() { grep -q ', far off$' "$work/$call"-*.log; }
stops() {                                   # stops [always]: whether a failure here ends the call
    failed && case ${KEEP_GOING:-} in
        1) false ;;
        0) true ;;
        *) [ "${1:-}" = always ] || far_off ;;
    esac
}

# record: the report and the logs of this call so far. Steps beside each other may do it at once.
record() {
    local new=$results/.$call.$BASHPID
    write_report > "$new.md" && mv "$new.md" "$results/$call.md"
    (cd "$work" && tar -czf "$new.tar.gz" "$call"-*.log) && mv "$new.tar.gz" "$results/$call.tar.gz"
}

# ---- A: what is there, the build ----

tool() { printf '%-18s %s\n' "$1" "$(command -v "$1" || echo none)"; }
probe() {
    nvidia-smi
    local name
    for name in nvcc cuobjdump ncu nsys compute-sanitizer mpicc python3; do tool $name; done
    "${PYTHON:-python3}" -c 'import torch; print("PyTorch", torch.__version__, torch.version.cuda)'
    echo "libraries that the loader knows:"
    ldconfig -p | grep -E 'libcuda\.so|libcublasLt|libnccl' || echo none
    echo "libraries that Python brought:"
    "${PYTHON:-python3}" -c 'import glob, sys
for path in sys.path:
    for name in "libcublasLt.so*", "libnccl.so*", "cublasLt.h", "nccl.h":
        for found in glob.glob(path + "/nvidia/**/" + name, recursive=True): print(found)'
    free -g | sed -n 2p
    df -h . | tail -n 1
    return 0
}

# A tree for each precision, so that both can be built at once.
copy_tree() {
    mkdir -p "$1" && cp -rp Makefile train_gpt2.c train_gpt2.cu dataloader.h dev scripts tests "$1"
}
sources() {
    cat Makefile train_gpt2.c train_gpt2.cu dataloader.h \
        $(find dev scripts tests -type f ! -path 'dev/results/*' | LC_ALL=C sort) |
        sha256sum | cut -c1-16
}
make_tree() {                               # make_tree TREE ARGS...
    local tree=$1; shift
    rm -f "$tree/built"
    make -C "$tree" -j "$(nproc)" $portable "$@" && echo "$hash" > "$tree/built"
}
ladder_programs() {
    grep -l 'include "ladder.cu"' dev/cuda/*.cu | sed 's|dev/\(.*\)\.cu|build/\1|'
}
make_bf16() {
    make_tree "$bf16" train_gpt2 prepare train_gpt2cu build/bench_cuda \
        build/cuda/test_gpt2-bf16 build/cuda/test_gpt2-fp32 $(ladder_programs)
}
make_fp32() { make_tree "$fp32" PRECISION=fp32 train_gpt2 train_gpt2cu build/compare; }
starts() { (cd "$1" && ./train_gpt2cu --help > /dev/null); }
built() { [ "$(cat "$1/built" 2> /dev/null)" = "$hash" ] && starts "$1"; }

build() {
    if built "$bf16" && built "$fp32"; then
        step "build: made beforehand" 10 echo "$bf16 and $fp32: sources $hash"
        return
    fi
    copy_tree "$bf16" && copy_tree "$fp32" || die "build/gpu: no copy of the tree"
    beside "build: bf16, tests, benchmark" 240 make_bf16
    beside "build: fp32" 240 make_fp32
    wait
    [ "$bf16" != "$root/bf16" ] || cuda_of "${nvcc:-nvcc}" > "$root/cuda"
}

loads() {
    ldd "$bf16/train_gpt2cu"
    ! ldd "$bf16/train_gpt2cu" | grep 'not found' && starts "$bf16"
}

# What the other calls need: programs that are built, and a corpus.
ready() {
    built "$bf16" && built "$fp32" || build
    [ -f "$tales/tokenizer.json" ] ||
        step "prepare tales" 60 "$bf16/prepare" tales --out "$tales" --overwrite --tokens 15000000
}

# A line a test, also of tests that are cut off.
tests() { stdbuf -oL "$bf16/build/cuda/test_gpt2-$1"; }
real_shapes() { stdbuf -oL "$bf16/build/cuda/test_gpt2-$1" real_shapes; }

# measure NAME B...: a benchmark; its numbers go beside the report.
measure() {
    local name=$1; shift
    mkdir -p "$work/$name" && cd "$work/$name" && "$bf16/build/bench_cuda" $BENCH "$@" || return 1
    [ ! -f bench_cuda.json ] || cp bench_cuda.json "$results/$name.json"
}

call_A() {
    ended=yes
    step "A: tools and paths" 30 probe
    stops && return
    build
    stops always && return
    step "A: the program loads" 10 loads
    stops always && return
    step "A: tests, bf16" 120 tests bf16
    stops && return
    step "A: the real shapes" 120 real_shapes bf16
    stops && return
    step "A: benchmark, micro-batch 16" 120 measure bench_A 16
    stops || ended=
}

# ---- B: speed, and the same bits ----

losses() {                                  # losses LOG: the number and the loss of each step
    sed -n 's/^{"event":"step","step":\([0-9]*\),.*"loss":\([^,]*\),.*/\1 \2/p' "$1"
}

# Every product of the model: its algorithms, timed. The choices are kept for the runs after it.
has_tuner() { (cd "$bf16" && ./train_gpt2cu --help) | grep -q -e '--tune '; }
sweep() {
    has_tuner || { echo "skip: this program has no --tune"; return; }
    cd "$bf16" && ./train_gpt2cu --data "$tales" $MODEL --steps 1 --eval-every 0 \
        --eval-tokens 1024 --tune "$work/choices.json" || return 1
    cp "$work/choices.json" "$results"
}

# Counters of our kernels that take long, at the shapes of a step, in a model of two layers; with
# the sweep's choices, since the tuner would launch each kernel dozens of times more.
counters() {
    local tune=off
    command -v ncu > /dev/null || { echo "skip: needs ncu"; return; }
    [ ! -f "$work/choices.json" ] || tune=$work/choices.json
    cd "$bf16" && ncu --clock-control none --section SpeedOfLight --section Occupancy \
        --section MemoryWorkloadAnalysis --section LaunchStats \
        --kernel-name 'regex:^(attention|layernorm|xent)' ./train_gpt2cu --data "$tales" \
        --layers 2 --heads 12 --channels 768 --seq-len 1024 --micro-batch 16 \
        --batch-tokens 16384 --steps 1 --eval-every 0 --eval-tokens 1024 --tune "$tune" |
        tee "$work/ncu"
    [ "${PIPESTATUS[0]}" -ne 0 ] || return 0
    grep -m 1 '^==ERROR==' "$work/ncu" && echo "skip: ncu does not work here"
}

# A run whose losses were finite in every step and have fallen by a third, from a uniform guess.
learned() {                                 # learned NAME FLAGS...
    local name=$1 tune=; shift
    [ ! -f "$work/choices.json" ] || tune="--tune $work/choices.json"
    cd "$bf16" && ./train_gpt2cu --data "$tales" $MODEL --steps "$STEPS" $tune \
        --eval-every $((STEPS / 2)) --eval-tokens "$EVAL" --log "$work/$name.jsonl" \
        --out "$work/$name" --overwrite "$@" || return 1
    losses "$work/$name.jsonl" | awk -v steps="$STEPS" '
        NR == 1 { first = $2 } { last = $2 }
        END { printf "%d of %d steps; loss from %g to %g\n", NR, steps, first, last
              exit !(NR == steps && last < first * 2/3) }'
}
same_bits() {                               # same_bits NAME NAME
    losses "$work/$1.jsonl" > "$work/$1.losses"
    losses "$work/$2.jsonl" > "$work/$2.losses"
    cmp "$work/$1.losses" "$work/$2.losses" &&
        cmp "$work/$1/latest/model.safetensors" "$work/$2/latest/model.safetensors" &&
        echo "same bits: $(grep -c . "$work/$1.losses") losses and all weights"
}

call_B() {
    ready
    step "B: every launcher, micro-batch 16; whole steps" 100 measure bench_B16 16 32
    step "B: every launcher, micro-batch 64" 100 measure bench_B64 64
    step "B: every product" 60 sweep
    step "B: counters" 100 counters
    step "B: $STEPS steps in bf16" 90 learned first
    step "B: the same steps again" 90 learned second
    step "B: two runs have the same bits" 20 same_bits first second
    step "B: the same steps, kernels launched one by one" 90 learned apart --graph off
    step "B: a graph changes no bit" 20 same_bits first apart
}

# ---- C: beside the CPU and PyTorch, memory accesses ----

twins() { cd "$1" && PREPARE="$bf16/prepare" EMULATED=./train_gpt2cu tests/test_cuda.sh; }

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

# PyTorch on the same model, beside a benchmark made in this very call.
compare() {
    measure bench_C $TORCH && cd "$work/bench_C" && "$bf16/scripts/bench_cuda.sh" $TORCH |
        tee "$work/torch"
    [ "${PIPESTATUS[0]}" -eq 0 ] || return 1
    if grep -q ': not compared' "$work/torch"; then echo "skip: needs PyTorch 2"; fi
}

# PyTorch's attention alone, forward and backward, at the shape of one layer.
torch_attention() {
    "${PYTHON:-python3}" -c 'import torch' 2> /dev/null ||
        { echo "skip: needs PyTorch 2"; return; }
    "${PYTHON:-python3}" - << 'PY'
import torch
import torch.nn.functional as F

def milliseconds(work):
    spans = []
    for _ in range(12):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        spans.append(begin.elapsed_time(end))
    return sorted(spans[3:])[4]

q, k, v = (torch.randn(64, 12, 1024, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
           for _ in range(3))
out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
dout = torch.randn_like(out)
forward = milliseconds(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
backward = milliseconds(lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True))
print(f"PyTorch's attention, B=64, T=1024, 12 heads of 64: forward {forward:.3f} ms, "
      f"backward {backward:.3f} ms a layer")
PY
}

# Each tool must first find what is planted for it.
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
    command -v nvcc > /dev/null || { echo "skip: needs nvcc"; return; }
    planted_source > "$work/planted.cu" && nvcc -arch=native "$work/planted.cu" -o "$work/planted"
}

# Racecheck looks at our kernels alone: NVIDIA's synchronise in ways it does not know. cuBLASLt has
# kernels whose names end in _kernel too, so the filter has the mangled names of our binary as far
# as the template's arguments, _Z11xent_kernel: no name of a library contains one of them.
kernels_of() { grep -aoE '_ZL?[0-9]+[a-z][a-z0-9_]*_kernel' "$1" | sort -u; }

# sanitizer TOOL PROGRAM ARGS...: 3 when the tool finds anything.
sanitizer() {
    local tool=$1 option=--kernel-name known kernel options=(); shift
    known=$(compute-sanitizer --help)
    [[ $known == *$option* ]] || option=--kernel-regex                   # before 2024
    if [ "$tool" = racecheck ]; then
        for kernel in $(kernels_of "$1"); do options+=("$option" "kns=$kernel"); done
        [ ${#options[@]} -gt 0 ] || { echo "$1: has no kernels"; return 1; }
    fi
    [[ $known != *--launch-timeout* ]] || options+=(--launch-timeout 100)  # many start at once
    compute-sanitizer --tool "$tool" --error-exitcode 3 "${options[@]}" "$@"
}
finds_planted() {
    [ -x "$work/planted" ] || { echo "skip: nothing is planted without nvcc"; return; }
    sanitizer "$1" "$work/planted" "$1"
    local status=$?
    echo "exit status $status, 3 is expected"
    [ $status -eq 3 ] && touch "$work/finds.$1"
}
sanitize() {                                # sanitize TOOL PROGRAM ARGS...
    if [ -e "$work/finds.$1" ] || [ ! -x "$work/planted" ]; then sanitizer "$@"
    else echo "skip: $1 finds nothing here"; fi
}
sanitize_tests() { sanitize "$1" "$bf16/build/cuda/test_gpt2-$2" $short; }
sanitize_training() {
    sanitize "$1" "$bf16/train_gpt2cu" --data "$tales" --layers 2 --heads 2 --channels 128 \
        --seq-len 256 --micro-batch 2 --batch-tokens 1024 --steps 3 --eval-tokens 512 \
        --recompute block --tune off
}

sanitize_with() {                           # sanitize_with SECONDS TOOL...
    local limit=$1 tool precision; shift
    if ! command -v compute-sanitizer > /dev/null; then
        step "$call: compute-sanitizer" 10 echo "skip: needs compute-sanitizer"
        return
    fi
    # Tests that train for long would only launch the same kernels again.
    short=$(sed -n 's/^ *RUN_NAMED(\(.*\));/\1/p' tests/test_gpt2.cu |
            grep -vE 'ten_updates|same_bits|recomputing|fifty|real_shapes' | xargs)
    export short
    step "$call: compile what is planted" 60 make_planted
    for tool in "$@"; do
        beside "$call: $tool finds what is planted" 60 finds_planted $tool
    done
    wait
    for tool in "$@"; do
        for precision in bf16 fp32; do
            beside "$call: $tool, tests, $precision" $limit sanitize_tests $tool $precision
        done
        beside "$call: $tool, training" $limit sanitize_training $tool
    done
    wait
}

call_C() {
    ready
    step "C: tests, fp32" 60 tests fp32
    step "C: the real shapes, fp32" 60 real_shapes fp32
    step "C: 50 steps in fp32, the CPU's losses" 60 same_losses
    beside "C: the twins take over each other's runs, bf16" 90 twins "$bf16"
    beside "C: the twins take over each other's runs, fp32" 90 twins "$fp32"
    wait
    sanitize_with 150 memcheck racecheck
    step "C: PyTorch beside it" 150 compare
    step "C: PyTorch's attention" 30 torch_attention
}

# ---- D: training for minutes; several ranks, on one GPU or on several ----

# Tokens a second by the minute: a GPU that gets hot gets slower.
trains() {
    cd "$bf16" || return 1
    timeout --foreground -s INT $((3 * MINUTE)) ./train_gpt2cu --data "$tales" $BIG \
        --steps 1000000 --eval-every 0 --eval-tokens 1024 --log "$work/minutes.jsonl" --overwrite
    [ $? -eq 124 ] || return 1                                # 124: training until the time was up
    sed -n 's/^{"event":"step".*"batch_tokens":\([0-9]*\),.*"seconds":\([^,]*\),.*/\1 \2/p' \
        "$work/minutes.jsonl" | awk -v minute="$MINUTE" '
        { t += $2; m = int(t / minute); tokens[m] += $1; seconds[m] += $2 }
        END { for (i = 0; i <= m; i++) if (seconds[i] > minute / 2) { n++
                  printf "minute %d: %.0f tokens/s\n", i + 1, tokens[i] / seconds[i] }
              exit !n }'
}

# Tokens a second with and without --noise-scale, in turn, with the choices of the first run; and
# what --plan makes of the run.
tok_per_s() {
    ./train_gpt2cu --data "$tales" $MODEL $NOISE --steps 16 --eval-every 0 --eval-tokens 1024 \
        --tune "$work/noise.json" --log "$work/noise.jsonl" --overwrite "$@" \
        > "$work/noise.txt" || return 1
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

# ranks N NAME FLAGS...: a run of N ranks. NCCL takes two ranks on one GPU only if it believes them
# on two machines (NCCL_HOSTID), which then talk over the loopback; from 2.30 on it can be told.
# NVIDIA supports neither.
ranks() {
    local n=$1 name=$2
    shift 2
    NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 \
        scripts/launch.sh -n "$n" bash -c 'NCCL_HOSTID=rank$RANK exec "$@"' rank ./train_gpt2cu \
        --data "$tales" --layers 4 --heads 4 --channels 128 --seq-len 128 --micro-batch 2 \
        --batch-tokens 2048 --steps 5 --lr 1e-3 --warmup-tokens 4096 --eval-every 0 \
        --eval-tokens 4096 --tune=off --out "$work/ranks_$name" --overwrite "$@" || return 1
    [ -f "$work/ranks_$name/latest/model.safetensors" ]
}
same_weights() {                            # same_weights NAME NAME: to 1e-6 of their length
    printf '%s beside %s: ' "$1" "$2"
    build/compare "$work/ranks_$1" "$work/ranks_$2" 1e-6
}
ranks_agree() {                             # 1: they do not; 2: a run did not end well
    cd "$fp32" || return 1
    local n stage
    for n in 1 2; do
        ranks $n plain$n && ranks $n exact$n --exact-sum || return 2
        same_weights plain1 plain$n || return 1
        cmp "$work/ranks_exact1/latest/model.safetensors" \
            "$work/ranks_exact$n/latest/model.safetensors" || return 1
    done
    for stage in 0 1 2 3; do
        ranks 2 zero$stage --zero $stage || return 2
        same_weights plain1 zero$stage || return 1
    done
}

# Tokens a second with 1, 2, 4 ... of the GPUs, the same batch for each of them, and what they wait.
ranks_scale() {
    cd "$bf16" || return 1
    local n comm
    for ((n = 1; n <= gpus; n *= 2)); do for comm in own nccl; do
        [ $n = 1 ] && [ $comm = nccl ] && continue
        scripts/launch.sh -n $n ./train_gpt2cu --data "$tales" --init d12 --seq-len 1024 \
            --micro-batch 16 --batch-tokens $((n * 65536)) --steps 30 --eval-every 0 \
            --eval-tokens 1024 --comm $comm --log "$work/scale.jsonl" --overwrite \
            > "$work/scale.txt" || return 1
        sed -n 's/^{"event":"step".*"tok_per_s":\([^,]*\),.*/\1/p' "$work/scale.jsonl" |
            tail -n 20 | sort -g | awk -v n=$n -v comm=$comm '{ x[NR] = $1 }
                END { printf "scaling: %d GPUs, --comm %s: %.0f tokens/s\n", n, comm,
                             x[int((NR + 1) / 2)] }'
        grep '^of ' "$work/scale.txt"
    done; done
    return 0
}

# Two ranks on one GPU may not start, for no fault of this program; those that do must agree.
two_ranks() {
    ranks_agree
    local status=$?
    [ $status -eq 2 ] && [ "$gpus" -le 1 ] || return $status
    echo "skip: two ranks do not run on one GPU, which NVIDIA does not support"
}

# Five kernels at the shape of make profile: what it counts on a CPU, what ncu counts on the GPU.
profile_beside_ncu() {
    command -v ncu > /dev/null || { echo "skip: needs ncu"; return; }
    local kernels="embedding_forward layernorm_forward layernorm_backward xent adamw" kernel
    local t=l1tex__t pipe=pipe_lsu_mem_global_op
    command -v nvcc > /dev/null || { echo "skip: needs nvcc"; return; }
    cd "$bf16" && make -j2 build/profile build/cuda/profile || return 1
    for kernel in $kernels; do build/profile "" "" "" ${kernel}_kernel; done > "$work/counted"
    ncu --kernel-name "regex:^(${kernels// /|})_kernel" --metrics "${t}_requests_${pipe}_ld.sum,\
${t}_sectors_${pipe}_ld.sum,${t}_requests_${pipe}_st.sum,${t}_sectors_${pipe}_st.sum,\
l1tex__data_pipe_lsu_wavefronts_mem_shared.sum" build/cuda/profile > "$work/ncu_counted"
    if grep -m 1 '^==ERROR==' "$work/ncu_counted"; then
        echo "skip: ncu does not work here"
        return
    fi
    awk 'FNR == 1 { file++ }
        match($1, /^[a-z_]*_kernel/) { kernel = substr($1, 1, RLENGTH) }
        file == 1 && $1 == "loads:" { gsub(/[,;]/, ""); first[kernel] = $2; split($0, x)
            ours[kernel, 1] = x[2]; ours[kernel, 2] = x[4]; ours[kernel, 3] = x[7]
            ours[kernel, 4] = x[9]; ours[kernel, 5] = x[12] }
        file == 2 && /l1tex__/ { gsub(/,/, "", $NF)
            i = /wavefronts/ ? 5 : (/_st/ ? 3 : 1) + (/sectors/ ? 1 : 0); ncu[kernel, i] += $NF }
        END { split("load requests,load sectors,store requests,store sectors,shared passes",
                    name, ",")
            printf "%-26s %-15s %12s %12s\n", "", "", "make profile", "ncu"
            for (kernel in first) for (i = 1; i <= 5; i++)
                printf "%-26s %-15s %12d %12d\n", kernel, name[i], ours[kernel, i], ncu[kernel, i]
        }' "$work/counted" "$work/ncu_counted"
}

# Every rung of every ladder, timed.
ladders() {
    cd "$bf16" || return 1
    local program
    for program in $(ladder_programs); do "$program" || return 1; done
}

call_D() {
    ready
    gpus=$(nvidia-smi -L | grep -c '^GPU')
    export gpus
    step "D: three minutes of training" $((4 * MINUTE)) trains
    step "D: what --noise-scale costs" 60 noise_costs
    if [ "$gpus" -gt 1 ]; then step "D: scaling to $gpus GPUs" 240 ranks_scale; fi
    step "D: the counters of make profile beside ncu's" 120 profile_beside_ncu
    step "D: the ladders" 150 ladders
    sanitize_with 90 initcheck
    step "D: two ranks agree" 100 two_ranks
}

export -f tool probe make_tree make_bf16 make_fp32 starts loads tests real_shapes measure losses \
    has_tuner sweep counters learned same_bits twins same_losses compare torch_attention \
    planted_source make_planted kernels_of sanitizer finds_planted sanitize sanitize_tests \
    sanitize_training trains tok_per_s noise_costs ranks same_weights ranks_agree ranks_scale \
    two_ranks profile_beside_ncu ladder_programs ladders

# ---- the report of a call ----

report_machine() {
    echo "# ${gpu:-no GPU}, call $call"
    echo
    echo "Written by \`tests/gpu.sh $call\` on one $gpu of $(query memory.total | head -n 1):" \
        "driver $(query driver_version | head -n 1), CUDA" \
        "$(nvidia-smi | sed -n 's/.*CUDA Version: *\([0-9.]*\).*/\1/p' | head -n 1)," \
        "nvcc $(nvcc --version 2> /dev/null | sed -n 's/.*release .*V\([0-9.]*\).*/\1/p'); $(nproc) CPU cores." \
        "\`train_gpt2.cu\` was $(sha256sum train_gpt2.cu | cut -c1-12) (sha256)," \
        "\`dev/ranks/kernels.cu\` $(sha256sum dev/ranks/kernels.cu | cut -c1-12)," \
        "\`dev/ranks/tensor_model.cu\` $(sha256sum dev/ranks/tensor_model.cu | cut -c1-12)."
}

logged() {                                  # logged EVENT FIELD...: their values, a line an event
    local event=$1 pattern='' values='' n=0; shift
    while [ $# -gt 0 ]; do
        n=$((n + 1)) pattern="$pattern.*\"$1\":\\([^,}]*\\)" values="$values \\$n"
        shift
    done
    sed -n "s/^{\"event\":\"$event\"$pattern.*/${values# }/p" "$work/first.jsonl"
}

report_training() {
    printf '\n## Training\n\n'
    echo "\`train_gpt2cu $(xargs <<< "$MODEL") --steps $STEPS\` on \`prepare tales\`;" \
        "losses in nats a byte."
    echo
    losses "$work/first.jsonl" | awk '
        NR == 1 || NR == 10 || NR % 50 == 0 { step = step " " $1 " |"; loss = loss " " $2 " |" }
        END { rule = step; gsub(/[^|]+/, "---", rule)
              print "| step |" step; print "|---|" rule; print "| loss |" loss "\n" }'
    logged eval step val_loss | while read -r step loss; do
        echo "Validation loss after step $step: $loss."
    done
    logged step tok_per_s mfu mfu_datasheet | sort -n | awk '
        { speed[NR] = $1; mfu[NR] = $2; datasheet[NR] = $3 }
        END { i = int((NR + 1) / 2)
              printf "Steps, by the median: %.0f tokens/s, MFU %.1f%% of the measured peak, ",
                     speed[i], 100 * mfu[i]
              if (datasheet[i] + 0) printf "%.1f%% of the data sheet\x27s.\n", 100 * datasheet[i]
              else print "the data sheet\x27s is not known." }'
}

report_text() {                             # report_text TITLE FILE
    printf '\n## %s\n\n```\n' "$1"
    cat "$2"
    echo '```'
}

# The end of the log of each step that failed, and the whole log of those that measure.
report_logs() {
    local row log step
    for row in "$work/$call"-*.row; do
        log=${row%.row}.log step=$(sed 's/^| \([^|]*\) |.*/\1/' "$row")
        case $(cat "$row") in
            *FAILED*)
                { grep 'at most.* WRONG' "$log"; tail -n 15 "$log"; } > "$log.tail"
                report_text "Failed: $step" "$log.tail" ;;
            *tools\ and* | *real\ shapes* | *counters\ of* | *ladders* | *benchmark,* | *launcher* | \
                *product* | *PyTorch*)
                report_text "$step" "$log" ;;
        esac
    done
}

write_report() {
    report_machine
    printf '\n| step | result | seconds |\n|---|---|---|\n'
    cat "$work/$call"-*.row
    echo
    cat "$work/$call"-*.log | awk '/^ok / { ok++ } /^FAIL / { failed++ }
        END { if (ok + failed) printf "Tests: %d passed, %d failed.\n", ok, failed }'
    grep -h -E '^FAIL ' "$work/$call"-*.log | sed 's/^/- /'
    grep -h -E ' apart$' "$work/$call"-*.log | sed 's/^/The GPU beside the CPU, in fp32: /; s/$/./'
    grep -h -E -e '^(scaling: |minute |same bits: |--noise-scale takes|of .* ms an update)' \
        -e '^[a-z]+[0-9] beside ' "$work/$call"-*.log | sed 's/^/- /'
    [ "$call" = B ] && [ -s "$work/first.jsonl" ] && report_training
    report_logs
}

# ---- the calls ----

call_build() {
    build
    [ -n "$older" ] || return 0
    trees_of_older
    export NVCC=$older
    build
}

hash=$(sources) portable= wrong=0
[ -n "$gpu" ] || portable=NATIVE=           # the GPU may be in another machine than this one
export hash portable
for call in ${*:-A B C D}; do
    steps=0 begun=$SECONDS deadline=$((SECONDS + 60 * ${MINUTES:-9} - 10))
    call_$call
    record
    echo "call $call took $((SECONDS - begun)) s: $results/$call.md and $call.tar.gz"
    failed || continue
    wrong=$((wrong + 1))
    sed -n '/^## Failed/,$p' "$results/$call.md"
    if [ $call = A ] && [ -n "$ended" ]; then
        echo "STOPPED: call A failed; mend that first, or say KEEP_GOING=1"
        break
    fi
done
[ $wrong -eq 0 ]
