#!/usr/bin/env bash
# What `make bench` says is what it measured: its results add up, and it compares what it was told
# to. In a copy of the tree; how fast anything is does not matter here.
. "$(dirname "$0")/tools.sh"
export OMP_NUM_THREADS=1 BENCH_PAUSE=0
unset BATCHWISE_DATA BENCH_JSON BUILD PYTHONS LLMC PYTHONUNBUFFERED
here=$PWD python=${PYTHON:-python3}

says() { grep -qF -e "$1" "$dir/said" || note "does not say '$1': $(tail -n 1 "$dir/said")"; }

tree=$dir/tree
mkdir "$tree"
cp -r Makefile train_gpt2.c dataloader.h dev scripts "$tree" && cd "$tree" || exit 1
make -s PRECISION=fp32 OPENMP=0 CFLAGS=-O2 build/bench > "$dir/said" 2>&1 ||
    { echo "FAIL bench_builds: $(tail -n 1 "$dir/said")"; exit 1; }

# value KEY: of the one result in $dir/results. Where two are compared within 1e-5, awk's six digits
# are all that lies between them.
value() { sed -n "s/.*\"$1\":\([-+0-9.e]*\)[,}].*/\1/p" "$dir/results"; }
valid() {                                   # valid FILE: it is JSON, where that can be checked
    command -v "$python" > /dev/null || return
    "$python" -m json.tool "$1" > /dev/null 2> "$dir/invalid" ||
        note "$1: $(tail -n 1 "$dir/invalid")"
}
results() {                                 # results COMMAND...: runs it, for its results
    rm -f "$dir/results"
    BENCH_JSON=$dir/results "$@" > "$dir/said" 2>&1 ||
        note "$*: $(tail -n 1 "$dir/said")"
}

results build/bench "make run" tokenizer
same "results" "$(grep -c '"name"' "$dir/results")" 1
says "tokenizer: needs data/gpt2.tiktoken"
valid "$dir/results"
flops=$((1024 * (6 * (12*64*64*2 + 64*257) + 12*2*64*256)))
near "FLOP a token" "$(value mflop_per_token)" \
    "$(awk -v f=$flops 'BEGIN { print f / 1024e6 }')" 1e-5
floor=$(awk -v f=$flops -v p="$(value peak_gflops)" -v s="$(value stream_gb_per_s)" \
    'BEGIN { print 1e3 * (f / (p * 1e9) + 28 * 132928 / (s * 1e9)) }')
near "the floor" "$(value floor_ms)" "$floor" 1e-5
near "times the floor" "$(value x_floor)" \
    "$(awk -v s="$(value step_ms)" -v f="$(value floor_ms)" 'BEGIN { print s / f }')" 1e-5
# The layers' floors are those of all blocks, of attention half.
sum=$(sed -n 's/.*"layers_floor_ms":{\([^}]*\)}.*/\1/p' "$dir/results" | tr ',' '\n' |
    awk -F: '{ sum += $2 } END { print sum }')
near "the sum of the floors" "$sum" "$(awk -v p="$(value layers_peak_gflops)" \
    'BEGIN { print 1e-6 * 1024*64 * (72*64*2 + 6*256*2 + 6*257) / p }')" 1e-4
same "layers with a time" "$(grep -cE '^  [a-z][a-z_ ]* +[0-9.]+ +[0-9.]+%' "$dir/said")" 13
end bench_results_add_up

results build/bench primes
same "products" "$(grep -c '"name"' "$dir/results")" 6
valid "$dir/results"
one_line "'nothing': no setting's name begins so" build/bench nothing
end bench_products

# ---- beside others ----

# These stand for build/bench, PyTorch and llm.c: a step takes 10, 25 and 30 ms.
if command -v "$python" > /dev/null; then
    mkdir "$dir/fake"
    echo 'while read -r _; do echo 10; done' > "$dir/fake/bench"
    echo 'case "$*" in *import*) echo 1.13.0+cpu ;; *bf16*) echo no memory >&2 ;;
          *) while read -r _; do echo 25; done ;; esac' > "$dir/fake/python"
    echo 'while :; do echo "step 1: train loss 3.4 (took 30.0 ms)"; sleep 0.01; done' \
        > "$dir/fake/train_gpt2"
    sed -i '1i #!/bin/sh' "$dir"/fake/* && chmod +x "$dir"/fake/*
    echo '[{"name": "characters, B=12 T=64, threads 1, beside llm.c", "ratio": 2.0}, {"name":
        "characters, B=12 T=64, threads 1, beside PyTorch 1.13.0 fp32", "ratio": 2.0}]' > bench.json
    PRECISION=bf16 BUILD=$dir/fake PYTHONS=$dir/fake/python LLMC=$dir/fake \
        "$python" scripts/bench.py --full --only steps > "$dir/said" 2>&1 ||
        note "bench.py: $(tail -n 1 "$dir/said")"
    says "PyTorch 1.13.0 fp32               25.0 ms   here      10.0 ms    2.50 times as fast here"
    says "PyTorch 1.13.0 bf16          not compared: no memory"
    says "| PyTorch 1.13.0 fp32 | 0.03 s, 2.5 times | 0.03 s, 2.5 times |"
    says "| llm.c | 0.03 s, 3.0 times |  |"
    same "results" "$(grep -c '"name".*"ratio": ' bench.json)" 6
    valid bench.json
    end bench_compares
else
    skip bench_compares "needs python3"
fi

# ---- plans ----

# All mixtures are planned and measured, and their ratio is that of the two numbers.
if command -v mpirun > /dev/null && [ -x "$here/build/train_gpt2-mpi" ] &&
    [ -x "$here/build/bench_comm" ] && [ -x "$here/prepare" ]; then
    cp "$here/build/train_gpt2-mpi" "$here/build/bench_comm" build && cp "$here/prepare" .
    run env CHANNELS=128 LAYERS=1 SEQ_LEN=16 STEPS=4 scripts/bench_plan.sh 1
    cp "$dir/stdout" "$dir/said"
    says "planned order:"
    awk '$1 ~ /^(one|data|tensor)_/ && NF == 4 && $2 > 0 && $3 > 0 {      # each is rounded to 0.01
             r = $2 / $3; d = r - $4; n += (d < 0 ? -d : d) < 0.0051 + 0.0051 * (1 + r) / $3 }
         END { exit n != 7 }' "$dir/said" || note "ratios are not planned / measured"
    grep -qE '^all-reduce between two ranks: [1-9][0-9.]* us \+ [0-9.e-]+ ns a byte' "$dir/said" ||
        note "no link: $(head -n 2 "$dir/said")"
    end bench_plan_measures_all_mixtures
else
    skip bench_plan_measures_all_mixtures "needs make build/train_gpt2-mpi build/bench_comm"
fi

exit $failed
