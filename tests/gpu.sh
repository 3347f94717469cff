#!/usr/bin/env bash
# Tests, measures and trains train_gpt2.cu on one NVIDIA GPU that may be had for 15 minutes: all
# programs are built beforehand, elsewhere, and two short calls do the rest.
#
#     tests/gpu.sh build              with nvcc, no GPU: programs for GPU_ARCHS (90) in build/gpu,
#                                     which travels with the tree; fails above 60 MiB
#     tests/gpu.sh first              on the GPU, 7 minutes at most: tests, real shapes, benchmark,
#                                     the same bits twice, compute-sanitizer, ncu, torch.compile
#     tests/gpu.sh second [TEST...]   3 minutes at most: these tests again, or all; benchmarks
#                                     (build/gpu.old's, too: carry it), a minute of training, fp32
#
# Each step has its own limit. A step that fails or is cut off does not stop the others; the exit
# status is then 1. What the machine lacks is skipped, and the report says so. Two files go to $OUT,
# or else to dev/results/GPU-DATE: first.md, the report, and first.tar.gz, every log. Both
# are written anew after each step, so that a call that is killed leaves what it knows.
#
#     STAND_IN=1 tests/gpu.sh first   no GPU: emulated programs (make build-all) at tiny sizes, to
#                                     test this script. The report says EMULATED, and goes to
#                                     build/stand_in. STAND_IN=DIR: with the programs in DIR.
#                                     LIMIT=2: no step gets more seconds
set -au             # -a: a step runs in a bash of its own, which `timeout` can end
cd "$(dirname "$0")/.." || exit 1
die() { echo "tests/gpu.sh: $*" >&2; exit 1; }

# ---- build ----

sources() {                                 # a hash of what the programs are made of
    cat Makefile train_gpt2.c train_gpt2.cu dataloader.h \
        $(find dev tests -name '*.[ch]' -o -name '*.cu' | LC_ALL=C sort) | sha256sum | cut -c1-12
}

# In a copy of the tree, so that the programs in this one stay as they are.
build() {
    local tree=build/gpu_tree make="make -C build/gpu_tree NATIVE= GPU_ARCHS=${GPU_ARCHS:-90}" mib
    rm -rf build/gpu $tree/train_gpt2cu && mkdir -p build/gpu $tree || exit 1
    cp -rp Makefile train_gpt2.c train_gpt2.cu dataloader.h dev tests $tree || exit 1
    $make PRECISION=fp32 BUILD=build/fp32 train_gpt2cu || exit 1
    mv $tree/train_gpt2cu build/gpu/train_gpt2cu-fp32
    $make PRECISION= BUILD=build prepare train_gpt2cu build/bench_cuda \
        build/cuda/test_gpt2-{bf16,fp32} || exit 1
    cp $tree/{prepare,train_gpt2cu,build/bench_cuda,build/cuda/test_gpt2-{bf16,fp32}} build/gpu
    sources > build/gpu/sources
    mib=$(du -scm build/gpu build/gpu.old 2> /dev/null | tail -n 1 | cut -f 1)
    [ "$mib" -le 60 ] || die "build/gpu: $mib MiB, and 60 may travel; remove build/gpu.old"
    echo "build/gpu: sources $(cat build/gpu/sources), $mib MiB to carry (with build/gpu.old)"
}

call=${1:-} python=${PYTHON:-python3}
case $call in
    build) build; exit ;;
    first | second) shift ;;
    *) die "'$call': expected build, first or second" ;;
esac

# ---- what runs, at which sizes ----

work=$(mktemp -d "${TMPDIR:-/tmp}/batchwise.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
kept=$work/kept && mkdir "$kept"

gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2> /dev/null | head -n 1)
if [ -z "${STAND_IN:-}" ]; then
    [ -n "$gpu" ] || die "nvidia-smi finds no GPU here; STAND_IN=1 needs none"
    name=$(sed 's/^NVIDIA //' <<< "$gpu" | tr 'A-Z ' 'a-z-' | tr -cd 'a-z0-9-')
    programs=$PWD/build/gpu results=${OUT:-dev/results/$name-$(date +%F)}
    some_tests= REAL_SHAPES=8,1024,12,12,768,50257 bench=64 updates=60 minute=60
    model="--layers 12 --heads 12 --channels 768 --seq-len 1024 --micro-batch 64"
    batch="--batch-tokens 65536" big_batch="--batch-tokens 524288 --warmup-tokens 5000000"
else
    programs=$STAND_IN results=${OUT:-build/stand_in} updates=3 minute=2 OMP_WAIT_POLICY=passive
    [[ $(realpath -m "$results")/ != */dev/results/* ]] ||
        die "OUT=$results: what is emulated is no result, and goes elsewhere"
    some_tests=layernorm REAL_SHAPES=1,16,1,1,16,300 bench="--model 1,1,16,300,16 1"
    model="--layers 1 --heads 1 --channels 16 --seq-len 16 --micro-batch 1"
    batch="--batch-tokens 16" big_batch="--batch-tokens 32" EMULATOR_MEMORY=900000000
fi
if [ "${STAND_IN:-}" = 1 ]; then
    programs=$PWD/build/emulated
    ln -sf "$PWD/prepare" "$programs"
    for name in train_gpt2cu{,-fp32}; do ln -sf "$PWD/train_gpt2cu-emulated" "$programs/$name"; done
fi
[ -x "$programs/train_gpt2cu" ] || die "$programs: no programs; see the head of this script"
mkdir -p "$results" && results=$(cd "$results" && pwd) || exit 1

# Programs that were built in another machine look for libraries where that one has them.
ldd "$programs/train_gpt2cu" 2> /dev/null | grep -q 'not found' &&
    LD_LIBRARY_PATH=$(printf %s: ${LD_LIBRARY_PATH:-} /usr/local/cuda/lib64 \
        "$("$python" -c 'import nvidia; print(nvidia.__path__[0])')"/*/lib)

# ---- steps: functions that print what they do. A line "key: ..." is a figure for the report; a
# last line "skipped: ..." says what the machine lacks. ----

probe() {
    nvidia-smi; nproc
    type ncu compute-sanitizer "$python"
    "$python" -c 'from importlib import metadata; print("PyTorch", metadata.version("torch"))'
    ldd "$programs/train_gpt2cu"
    "$programs/train_gpt2cu" --help > "$work/help" || return 1
    [ -n "${STAND_IN:-}" ] || [ "$(sources)" = "$(cat "$programs/sources")" ] ||
        { echo "build/gpu is not made from these sources: tests/gpu.sh build"; return 1; }
}

# A token is a byte. Without a vocabulary in its shards, the model has GPT-2's 50257 rows.
prepare_tales() {
    "$programs/prepare" tales --out "$work/tales" --tokens 15000000 || return 1
    [ -z "${STAND_IN:-}" ] || return 0      # 257 rows will do
    rm "$work/tales/tokenizer.json"
    for shard in "$work"/tales/*.bin; do
        head -c 8 /dev/zero | dd of="$shard" bs=4 seek=3 conv=notrunc status=none
    done
}

tests() { stdbuf -oL "$programs/test_gpt2-$1" "${@:2}"; }

bench() {                                   # bench NAME PROGRAMS
    "$2/bench_cuda" $bench | sed -uE "p
        /^[^ ].*TFLOP|MFU|^ +[0-9]+ +none|calls| (attention|cross-entropy|layernorm)/! d
        s/^/key: $1: /"
}

torch() {                                   # torch [B]: without B, into the file cache alone
    "$python" -c 'import torch; assert torch.cuda.is_available() and torch.compile' ||
        { echo "skipped: needs a PyTorch 2 that sees a GPU"; return; }
    [ $# = 0 ] || printf '\n\n\n\n' |          # rounds; the first one compiles
        "$python" dev/reference/gpt2.py bench --device cuda --dtype bf16 --compile \
        --layers 12 --heads 12 --channels 768 --vocab 50304 --seq-len 1024 --batch $1 --steps 5 |
        sed -u "s/.*/key: PyTorch, B=$1: & ms per update/"
}

train() {                                   # train NAME COMMAND...: its log is kept as NAME.jsonl
    local log=$kept/$1.jsonl name=$1 status; shift
    "$@" --data "$work/tales" $model --eval-every 0 --eval-tokens 1024 --overwrite --log "$log"
    status=$?
    grep -o '"tok_per_s":.*"mfu":[^,]*' "$log" | sort -t : -k 2 -g > "$work/speeds"
    echo "key: $name: $(sed -n "$((($(wc -l < "$work/speeds") + 1) / 2))p" "$work/speeds"), the" \
        "median; at the end $(losses "$name" | tail -n 1)"
    return $status
}
losses() { grep -o '"loss":[^,]*' "$kept/$1.jsonl"; }

# The same updates as a CUDA graph and launched one by one; and their memory beside --plan's.
graph() {
    local flags="$batch --steps $updates"
    nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -l 1 > "$work/used" &
    train graph "$programs/train_gpt2cu" $flags --out "$work/graph" || return 1
    BATCHWISE_GRAPH=off train apart "$programs/train_gpt2cu" $flags --out "$work/apart" || return 1
    "$programs/train_gpt2cu" --data "$work/tales" $model $batch --plan | tee "$work/plan"
    echo "key: in use at most: $(sort -n "$work/used" | tail -n 1) MiB, says nvidia-smi; --plan:" \
        "$(grep -E '^memory| total' "$work/plan" | xargs)"
    cmp "$work/"{graph,apart}/latest/model.safetensors && cmp <(losses graph) <(losses apart) &&
        echo "key: with and without a graph: the same losses and weights, $updates updates"
}

# Of our kernels alone: NVIDIA's synchronise in ways that racecheck does not know. Their mangled
# names up to the template's arguments, as _Z11xent_kernel, are part of no other kernel's name.
sanitize() {                                # sanitize TOOL
    local tests=$programs/test_gpt2-bf16
    type compute-sanitizer || { echo "skipped: needs compute-sanitizer"; return; }
    compute-sanitizer --tool "$1" --error-exitcode 3 $(grep -aoE \
        '_ZL?[0-9]+[a-z][a-z0-9_]*_kernel' "$tests" | sort -u | sed 's/^/--kernel-name kns=/') \
        "$tests" embedding layernorm attention xent |
        tee "$work/$1" && return
    grep -q 'Device not supported' "$work/$1" && echo "skipped: $1 does not work on this machine"
}

counters() {                                # of one update of one layer
    type ncu || { echo "skipped: needs ncu"; return; }
    BATCHWISE_GRAPH=off ncu --clock-control none --set basic --section MemoryWorkloadAnalysis \
        --launch-count 14 --kernel-name 'regex:^(attention|layernorm_backward|xent)' \
        "$programs/train_gpt2cu" --data "$work/tales" $model --layers 1 $batch --steps 1 \
        --eval-every 0 --eval-tokens 1024 | tee "$work/ncu" && return
    grep -m 1 '^==ERROR==' "$work/ncu" && echo "skipped: ncu does not work on this machine"
}

a_minute() {
    nvidia-smi dmon -s pucm > "$kept/dmon.txt" &
    train minute timeout --foreground -s INT $minute "$programs/train_gpt2cu" $big_batch \
        --steps 1000000
    [ $? = 124 ]                            # it has trained until the time was up
}
fp32() { tests fp32 $some_tests && train fp32 "$programs/train_gpt2cu-fp32" $batch --steps 10; }

# ---- the calls ----

report() {
    echo "# ${STAND_IN:+EMULATED, nothing measured: }${gpu:-no GPU}, $call call"
    printf '\nPrograms of sources %s. %s\n' "$(cat "$programs/sources" 2> /dev/null)" \
        "$(nvidia-smi 2> /dev/null | grep -o 'Driver.*[0-9]')"
    printf '\n| step | result | seconds |\n|---|---|---|\n'
    cat "$work"/*.row
    printf '\n```\n%s\n```\n' "$(grep -h '^key: ' "$kept"/*.log | cut -c6-)"
    for row in $(cd "$work" && grep -l FAILED *.row); do
        printf '\nFailed: %s\n```\n%s\n```\n' "${row%.row}" "$(tail "$kept/${row%.row}.log")"
    done
}

record() {                                  # steps beside each other may do it at once
    local new=$results/.$call.$BASHPID
    report > "$new.md" && mv "$new.md" "$results/$call.md"
    tar -C "$work" -czf "$new.tar.gz" kept && mv "$new.tar.gz" "$results/$call.tar.gz"
}

step() {                                    # step SECONDS NAME COMMAND...
    local limit=$1 name=$2 begin=$SECONDS result=FAILED most file
    local left=$((deadline > SECONDS ? deadline - SECONDS : 1))
    shift 2
    steps=$((steps + 1)) file=$(printf %02d $steps)-${name//[^a-zA-Z0-9]/-}
    for most in $left ${LIMIT:-}; do [ $limit -le $most ] || limit=$most; done
    timeout -k 3 $limit bash -o pipefail -c 'trap "kill \$(jobs -p) 2> /dev/null" EXIT; "$@"' \
        step "$@" > "$kept/$file.log" 2>&1
    case $? in
        0) result=$(tail -n 1 "$kept/$file.log" | grep '^skipped: ' || echo ok) ;;
        124 | 137) result="FAILED: not done in $limit s" ;;
    esac
    echo "| $name | $result | $((SECONDS - begin)) |" | tee "$work/$file.row"
    record
}
beside() { step "$@" & steps=$((steps + 1)); }       # others run meanwhile, until the next wait

first() {
    step 10 "probe" probe
    beside 25 "prepare tales" prepare_tales
    beside 60 "PyTorch: loads" torch
    step 25 "tests, bf16" tests bf16 $some_tests
    wait
    step 60 "real shapes" tests bf16 real_shapes
    step 35 "benchmark" bench bench "$programs"
    step 60 "the same bits without a graph" graph
    beside 60 "memcheck" sanitize memcheck
    beside 60 "racecheck" sanitize racecheck
    wait
    step 50 "counters" counters
    step 80 "PyTorch: torch.compile" torch 64
}

second() {                                  # second [TEST...]
    step 10 "probe" probe
    beside 25 "prepare tales" prepare_tales
    step 25 "tests, bf16" tests bf16 ${*:-$some_tests}
    wait
    [ ! -d "$programs.old" ] || step 35 "benchmark, older" bench older "$programs.old"
    step 35 "benchmark" bench bench "$programs"
    step $((minute + 15)) "a minute of training" a_minute
    step 60 "fp32" fp32
}

steps=0 deadline=$([ $call = first ] && echo 415 || echo 175)
$call "$@"
echo "$results/$call.md and $call.tar.gz, after $SECONDS s"
! grep -q FAILED "$work"/*.row
