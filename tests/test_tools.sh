#!/usr/bin/env bash
# What runs tests, on programs made up here: tests/run.sh and tests/gpu.sh.
. "$(dirname "$0")/tools.sh"

# ---- tests/run.sh: what fails, dies or is silent is not counted as passed ----

run_sh=$PWD/tests/run.sh
unset NO_SKIP MAY_SKIP JOBS LIMIT
cd "$dir" || exit 1
program() { cat > "$1.sh"; }                # program NAME: its text from standard input
runs() { bash "$run_sh" "$@" > said 2>&1; status=$?; last=$(tail -n 1 said); }

program good <<< 'echo "ok a"; echo "ok b"; echo "skip c: the weather"'
program bad <<< 'echo "ok d"; echo "FAIL e: it is so"; exit 1'
program dies <<< 'echo "ok f"; exit 3'
program silent <<< 'exit 0'
runs good.sh
same "good" "$status $last" "0 2 passed, 0 failed, 1 skipped"
grep '^failed:' said && note "something failed in good.sh"
JOBS=1 runs good.sh bad.sh dies.sh silent.sh
same "all" "$status $last" "1 4 passed, 3 failed, 1 skipped"
grep -q '^FAIL dies.sh: exit status 3$' said || note "no word of the exit status"
grep -q '^FAIL silent.sh: no test ran$' said || note "no word of the silent one"
same "the line before the last" "$(tail -n 2 said | head -n 1)" "failed: e dies.sh silent.sh"
NO_SKIP=all runs good.sh
same "NO_SKIP=all" "$status $last" "1 2 passed, 1 failed, 0 skipped"
same "what must not be skipped" "$(tail -n 2 said | head -n 1)" "failed: c"
NO_SKIP=all MAY_SKIP=c runs good.sh
same "MAY_SKIP=c" "$status $last" "0 2 passed, 0 failed, 1 skipped"
program hangs <<< 'echo "ok g"; sleep 60'
LIMIT=1 runs hangs.sh dies.sh
same "LIMIT=1" "$status $last" "1 2 passed, 2 failed, 0 skipped"
grep -q '^FAIL hangs.sh: still ran after 1 s$' said || note "no word of the time"
end run_counts
cd "$OLDPWD" || exit 1

# ---- tests/gpu.sh: the order of its steps, that a step that fails or takes too long does not stop
# the others, and what it leaves. The programs below say what they were asked for.

unset OUT LIMIT
programs=$dir/programs
mkdir "$programs"

# The benchmark takes too long, and real shapes fail. If there is a file `differs`, the benchmark
# ends well, and training without graphs ends in other weights.
cat > "$programs/program" << 'STUB'
#!/usr/bin/env bash
echo "asked: $*"
case ${0##*/} in
    bench_cuda) [ -e "${0%/*}/differs" ] || exec sleep 60 ;;
    test_gpt2-*) [ "${1:-}" != real_shapes ]; exit ;;
esac
while [ $# -gt 0 ]; do
    case $1 in
        --log) echo '{"event":"step","step":1,"loss":2.5,"tok_per_s":700,"mfu":0.5}' > "$2" ;;
        --out) mkdir -p "$2/latest" && weights=$2/latest/model.safetensors && echo 1 > "$weights"
               [ ! -e "${0%/*}/differs" ] || echo "${BATCHWISE_GRAPH:-}" >> "$weights" ;;
        --steps) [ "$2" != 1000000 ] || exec sleep 60 ;;
    esac
    shift
done
STUB
chmod +x "$programs/program"
for name in prepare train_gpt2cu{,-fp32} test_gpt2-{bf16,fp32} bench_cuda compute-sanitizer ncu; do
    ln -s program "$programs/$name"
done
gpu_sh() { STAND_IN=$programs PYTHON=false PATH=$programs:$PATH run tests/gpu.sh "$@"; }
rows() { sed -n 's/^| \(.*\) | \(ok\|FAILED\|skipped\).* | [0-9]* |$/\1: \2;/p' "$1" | xargs; }

OUT=$dir/first LIMIT=5 gpu_sh first
same "exit status" $status 1
same "the steps of the first call" "$(rows "$dir/first/first.md")" "probe: ok; prepare tales: ok; \
PyTorch: loads: skipped; tests, bf16: ok; real shapes: FAILED; benchmark: FAILED; \
the same bits without a graph: ok; memcheck: ok; \
racecheck: ok; counters: ok; PyTorch: torch.compile: skipped;"
has "$dir/first/first.md" "# EMULATED"
has "$dir/first/first.md" "| benchmark | FAILED: not done in 5 s |"
has "$dir/first/first.md" "the same losses and weights"
same "files" "$(ls -A "$dir/first" | xargs)" "first.md first.tar.gz"
same "logs" "$(tar -xOzf "$dir/first/first.tar.gz" | grep -c '^asked: ')" 10
same "archived" "$(tar -tzf "$dir/first/first.tar.gz" | grep -c '\.log$')" 11
end gpu_first_call

touch "$programs/differs" && ln -s "$programs" "$programs.old"
OUT=$dir/first gpu_sh first
has "$dir/first/first.md" "| the same bits without a graph | FAILED |"
OUT=$dir/second gpu_sh second layernorm gelu
same "the steps of the second call" "$(rows "$dir/second/second.md")" "probe: ok; \
prepare tales: ok; tests, bf16: ok; benchmark, older: ok; benchmark: ok; \
a minute of training: ok; fp32: ok;"
tar -xOzf "$dir/second/second.tar.gz" | grep -q '^asked: layernorm gelu$' || note "other tests"
one_line "goes elsewhere" env STAND_IN="$programs" OUT=dev/results/emulated tests/gpu.sh first
[ ! -e dev/results/emulated ] || note "dev/results/emulated is made"
one_line "expected build, first or second" tests/gpu.sh third
end gpu_second_call
exit $failed
