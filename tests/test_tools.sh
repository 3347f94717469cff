#!/usr/bin/env bash
# What runs tests, on programs made up here, tests/run.sh and tests/gpu.sh; and what measures, `make
# bench`.
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

# ---- make bench: its figures add up, and it compares what it was told to; speed does not matter

export OMP_NUM_THREADS=1 BENCH_PAUSE=0
unset PYTHONS LLMC PYTHONUNBUFFERED
python=${PYTHON:-python3}

# Floors of B=12, T=64, C=128, V=257 as parts of qkv's, and FLOP a token: by hand.
"$build/bench" characters > "$dir/said" 2>&1 || note "$(tail -n 1 "$dir/said")"
floor() { sed -n "s/^  $1  *[0-9.]*  *[0-9.]*%\{0,1\}  *\([0-9.]*\) .*/\1/p" "$dir/said"; }
floors() {                                  # floors "LAYER:ITS PART OF QKV'S"...
    local part
    for part in "$@"; do
        near "the floor of ${part%:*}" "$(floor "${part%:*}")" \
            "$(awk "BEGIN { print $(floor qkv) * ${part#*:} }")" 0.02
    done
}
floors "att_proj:1/3" "fc:4/3" "mlp_proj:4/3" "attention:64/(3*128)" "classifier:257/(12*128)"
near "MFLOP a token" "$(sed -n 's/.*that: \([0-9.]*\) MFLOP.*/\1/p' "$dir/said")" \
    "$(awk 'BEGIN { print 1e-6 * (6 * (12*128*128*4 + 128*257) + 12*4*128*64) }')" 0.001
near "times the floor" "$(sed -n 's/.*takes \([0-9.]*\) times that.*/\1/p' "$dir/said")" \
    "$(awk '$2 == "step" { s = $3 } $1 == "floor" { print s / $2 }' "$dir/said")" 0.05
near "the sum" "$(awk '$1 == "sum" { print $2 }' "$dir/said")" \
    "$(sed -n 's/^  [a-z][a-z_ ]*  *\([0-9.]*\)  *[0-9.]*%.*/\1/p' "$dir/said" |
       awk '{ sum += $1; n++ } END { print n == 13 ? sum : n " layers" }')" 0.003
one_line "'nothing': no setting's name begins so" "$build/bench" nothing
end bench_figures_add_up

# These stand for build/bench, PyTorch and llm.c: a step takes 10, 25 and 30 ms; on a GPU 20 and 40.
if command -v "$python" > /dev/null; then
    mkdir "$dir/fake"
    echo 'while read -r _; do echo 10; done' > "$dir/fake/bench"
    echo 'echo "          8      none     20.000       409600    50.0%"' > "$dir/fake/bench_cuda"
    echo 'case "$*" in *import*) echo 1.13.0+cpu ;;
          *device\ cuda*) while read -r _; do echo 40; done ;;
          *bf16*) echo no memory >&2 ;;
          *) while read -r _; do echo 25; done ;; esac' > "$dir/fake/python"
    echo 'while :; do echo "step 1: train loss 3.4 (took 30.0 ms)"; sleep 0.01; done' \
        > "$dir/fake/train_gpt2"
    sed -i '1i #!/bin/sh' "$dir"/fake/* && chmod +x "$dir"/fake/*
    PRECISION=bf16 BUILD=$dir/fake PYTHONS=$dir/fake/python LLMC=$dir/fake \
        "$python" scripts/bench.py --full --only steps > "$dir/said" 2>&1 ||
        note "bench.py: $(tail -n 1 "$dir/said")"
    has "$dir/said" "PyTorch 1.13.0 fp32               25.0 ms   here      10.0 ms    2.50 times"
    has "$dir/said" "PyTorch 1.13.0 bf16          not compared: no memory"
    has "$dir/said" "| batchwise | 0.01 s | 0.01 s |"
    has "$dir/said" "| PyTorch 1.13.0 fp32 | 0.03 s, 2.5 times | 0.03 s, 2.5 times |"
    has "$dir/said" "| llm.c | 0.03 s, 3.0 times |  |"
    BUILD=$dir/fake PYTHONS=$dir/fake/python "$python" scripts/bench.py --gpu > "$dir/said" 2>&1
    has "$dir/said" "          8     40.000     204800   2.00"
    end bench_compares
else
    skip bench_compares "needs python3"
fi

if command -v mpirun "$python" > /dev/null && [ -x "$mpi_train" ]; then
    "$python" scripts/bench.py --only ranks --tiny > "$dir/said" 2>&1 || note "$(tail -n 1 "$dir/said")"
    grep -qE 'waited .*: [0-9.]+ ms, .* without overlap [0-9.]+ of [0-9.]+ ms' "$dir/said" ||
        note "ranks: $(tail -n 1 "$dir/said")"
    end bench_measures_two_ranks
else
    skip bench_measures_two_ranks "needs make build/train_gpt2-mpi"
fi

# The GPU's, on the emulator: B=2, T=32, C=32, V=200, two layers. Floors of products are FLOP.
if [ -x "$build/emulated/bench_cuda" ]; then
    EMULATOR_MEMORY=900000000 "$build/emulated/bench_cuda" --model 2,2,32,200,32 1 2 \
        > "$dir/said" 2>&1 || note "$(tail -n 1 "$dir/said")"
    same "steps" "$(grep -cE '^ +[12] +(none|block) ' "$dir/said")" 4
    same "launchers" "$(awk '/^launchers/ { on = 1 } on' "$dir/said" | wc -l)" 28
    floors "att_proj:1/3" "fc and gelu:4/3" "mlp_proj, weight:4/3" "attention:33/(3*32)" \
        "attention, back:2.5*33/(3*32)" "classifier, both ways:200/(2*32)" "qkv, data:1"
    near "AdamW's floor" "$(floor AdamW)" \
        "$(awk "BEGIN { print 30/4 * $(floor 'gradients to zero') }")" 0.05
    grep -qE '[^a-z](inf|nan)' "$dir/said" && note "$(grep -E -m 1 '[^a-z](inf|nan)' "$dir/said")"
    end bench_of_a_gpu
else
    skip bench_of_a_gpu "needs $build/emulated/bench_cuda"
fi

exit $failed
