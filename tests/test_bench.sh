#!/usr/bin/env bash
# What `make bench` says is what it measured: its figures add up, and it compares what it was told
# to. How fast anything is does not matter here.
. "$(dirname "$0")/tools.sh"
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

# The GPU's, on the emulator: B=2, T=16, C=32, V=200, two layers. Floors of products are FLOP.
if [ -x "$build/emulated/bench_cuda" ]; then
    EMULATOR_MEMORY=900000000 "$build/emulated/bench_cuda" --model 2,2,32,200,16 1 2 \
        > "$dir/said" 2>&1 || note "$(tail -n 1 "$dir/said")"
    same "steps" "$(grep -cE '^ +[12] +(none|block) ' "$dir/said")" 4
    same "launchers" "$(awk '/^launchers/ { on = 1 } on' "$dir/said" | wc -l)" 28
    floors "att_proj:1/3" "fc and gelu:4/3" "mlp_proj, weight:4/3" "attention:17/(3*32)" \
        "attention, back:2.5*17/(3*32)" "classifier, both ways:200/(2*32)" "qkv, data:1"
    near "AdamW's floor" "$(floor AdamW)" \
        "$(awk "BEGIN { print 30/4 * $(floor 'gradients to zero') }")" 0.05
    grep -qE '[^a-z](inf|nan)' "$dir/said" && note "$(grep -E -m 1 '[^a-z](inf|nan)' "$dir/said")"
    end bench_of_a_gpu
else
    skip bench_of_a_gpu "needs $build/emulated/bench_cuda"
fi

exit $failed
