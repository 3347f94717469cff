#!/usr/bin/env bash
# What `make bench` says is what it measured: the sums in its results add up, and a wrong product is
# not timed. In a copy of the tree; how fast anything is does not matter here.
. "$(dirname "$0")/tools.sh"
export OMP_NUM_THREADS=1
unset BATCHWISE_DATA BENCH_RESULTS BUILD PYTHONS PYTHONUNBUFFERED
here=$PWD python=${PYTHON:-python3}

says() { grep -qF -e "$1" "$dir/said" || note "does not say '$1': $(tail -n 1 "$dir/said")"; }

tree=$dir/tree
mkdir "$tree"
cp -r Makefile train_gpt2.c dataloader.h dev scripts "$tree" && cd "$tree" || exit 1
make -s PRECISION=fp32 OPENMP=0 CFLAGS=-O2 build/bench build/bench_matmul > "$dir/said" 2>&1 ||
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
    BENCH_RESULTS=$dir/results "$@" > "$dir/said" 2>&1 || note "$*: $(tail -n 1 "$dir/said")"
}

# ---- what a model's results say ----

results build/bench characters
same "results" "$(wc -l < "$dir/results" | tr -d ' ')" 1
valid "$dir/results"
tokens=768 params=834432
flops=$((768 * (6 * (12*128*128*4 + 128*257) + 12*4*128*64)))
near "FLOP a token" "$(value mflop_per_token)" "$(awk -v f=$flops 'BEGIN { print f / 768e6 }')" 1e-5
near "a step's length" "$(value step_ms)" \
    "$(awk -v s="$(value tokens_per_s)" -v n=$tokens 'BEGIN { print 1e3 * n / s }')" 1e-5
floor=$(awk -v f=$flops -v p="$(value peak_gflops)" -v n=$params -v s="$(value stream_gb_per_s)" \
    'BEGIN { print 1e3 * (f / (p * 1e9) + 28 * n / (s * 1e9)) }')
near "the floor" "$(value floor_ms)" "$floor" 1e-5
near "times the floor" "$(value x_floor)" \
    "$(awk -v s="$(value step_ms)" -v f="$(value floor_ms)" 'BEGIN { print s / f }')" 1e-5
parts=$(for part in parameters gradients moments kept_for_backward scratch rest; do
    value ${part}_mb
done | awk '{ sum += $1 } END { print sum }')
near "memory" "$parts" "$(value peak_mb)" 1e-4
near "parameters" "$(value parameters_mb)" "$(awk -v n=$params 'BEGIN { print 4e-6 * n }')" 1e-5
end bench_results_add_up

# Each layer alone, as often as a step calls it, comes to a step. By a factor of two, for this
# machine may be busy; the four blocks counted once, or a layer left out, are further off.
sum=$(sed 's/.*"layers_ms":{\([^}]*\)}.*/\1/' "$dir/results" | tr ',' '\n' |
    awk -F: '{ sum += $2 } END { print sum }')
near "the sum of all layers" "$sum" "$(value step_ms)" 0.5
for layer in embedding layernorm qkv attention att_proj fc gelu mlp_proj residual classifier \
             "grad norm" adamw "grad zero"; do
    grep -qE "^  $layer +[0-9.]+ +[0-9.]+%" "$dir/said" || note "no line on $layer"
done
end bench_layers_make_a_step

# ---- products ----

results build/bench_matmul odd
same "products" "$(wc -l < "$dir/results" | tr -d ' ')" 6
says "at primes at least"
sed -n 1p "$dir/results" > "$dir/first" && mv "$dir/first" "$dir/results"
valid "$dir/results"
near "share of peak" "$(value share_of_peak)" \
    "$(awk -v a="$(value gflops)" -v b="$(value peak_gflops)" 'BEGIN { print a / b }')" 0.5
end bench_matmul_results

build/bench_matmul nothing > "$dir/said" 2>&1 && note "'bench_matmul nothing' ends well"
says "'nothing': expected qkv"
# A product that leaves a term out, or moves by a column, is refused.
for fault in 's/p->M, p->N, p->K, p->mode)/p->M, p->N, p->K - 1, p->mode)/' \
             's/matmul_fast(o->c, p->ldc/matmul_fast(o->c + 1, p->ldc/'; do
    sed -e "$fault" dev/cpu/bench_matmul.c > dev/cpu/broken.c
    cmp -s dev/cpu/broken.c dev/cpu/bench_matmul.c && note "nothing broken by $fault"
    ${CC:-cc} -std=gnu11 -O1 -w dev/cpu/broken.c -o "$dir/broken" -lm -ldl ||
        note "does not compile"
    "$dir/broken" odd > "$dir/said" 2>&1 && note "a wrong product is timed: $fault"
    says "must be"
done
end bench_matmul_checks_products

# ---- plans ----

# All mixtures are planned and measured, and their ratio is that of the two numbers.
if command -v mpirun > /dev/null && [ -x "$here/build/train_gpt2-mpi" ] &&
    [ -x "$here/build/bench_comm" ] && [ -x "$here/prepare" ]; then
    cp "$here/build/train_gpt2-mpi" "$here/build/bench_comm" build && cp "$here/prepare" .
    results env CHANNELS=128 LAYERS=1 SEQ_LEN=16 STEPS=4 scripts/bench_plan.sh 1
    same "mixtures" "$(grep -c planned_s "$dir/results")" 7
    says "planned order:"
    valid bench.json
    awk '$1 ~ /^(one|data|tensor)_/ && NF == 4 && $2 > 0 && $3 > 0 {      # each is rounded to 0.01
             r = $2 / $3; d = r - $4; n += (d < 0 ? -d : d) < 0.0051 + 0.0051 * (1 + r) / $3 }
         END { exit n != 7 }' "$dir/said" || note "ratios are not planned / measured"
    tail -n 1 "$dir/results" > "$dir/last" && mv "$dir/last" "$dir/results"
    alpha=$(value alpha) beta=$(value beta)
    awk -v a="$alpha" -v b="$beta" 'BEGIN { exit !(a > 0 && a < 1 && b > 0 && b < 1e-6) }' ||
        note "an all-reduce of $alpha s and $beta s a byte"
    end bench_plan_measures_all_mixtures
else
    skip bench_plan_measures_all_mixtures "needs make build/train_gpt2-mpi build/bench_comm"
fi

exit $failed
