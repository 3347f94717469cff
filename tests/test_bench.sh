#!/usr/bin/env bash
# What `make bench` says is what it measured: the sums in its results add up, a wrong product is not
# timed, two contestants take turns, and what is not installed is named. In a copy of the tree; how
# fast anything is does not matter here.
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
awk 'length($0) > 100' "$dir/said" | grep -q . && note "wider than 100 columns"
end bench_layers_make_a_step

# in_turn of true contestants: an answer to each line, before the next line is there.
true_duel() {
    BENCH_PAUSE=0 bash -c '. scripts/bench_lib.sh
        start_contestant left '"$1"'
        start_contestant right '"$2"'
        if in_turn 1 30; then echo "answered"; else echo "$why"; fi' 2>&1
}
tiny="--rounds 1 characters"
same "two that answer line by line" "$(true_duel "build/bench $tiny" "build/bench $tiny")" answered
end bench_answers_line_by_line

for wrong in "nothing" "--rounds 0 characters" "--rounds" "--rounds 1 nothing" "--full nothing"; do
    build/bench $wrong > "$dir/said" 2>&1 < /dev/null && note "'bench $wrong' ends well"
    same "lines of 'bench $wrong'" "$(wc -l < "$dir/said" | tr -d ' ')" 1
done
end bench_refuses

# ---- products ----

results build/bench_matmul odd
same "products" "$(wc -l < "$dir/results" | tr -d ' ')" 6
says "at primes at least"
awk 'length($0) > 100' "$dir/said" | grep -q . && note "wider than 100 columns"
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

# ---- contestants ----

# A stub that answers its arguments, one a line, and then no more.
cat > "$dir/answers" << 'STUB'
#!/bin/sh
for answer in "$@"; do
    read -r line || exit
    [ "$answer" = die ] && { echo "out of memory" >&2; exit 1; }
    [ "$answer" = sleep ] && exec sleep 60
    echo "$answer"
done
read -r line
STUB
chmod +x "$dir/answers"

# in_turn of two such stubs: "LEFT RIGHT RATIO", or why not.
duel() {
    BENCH_PAUSE=0 bash -c '. scripts/bench_lib.sh
        start_contestant left '"$dir/answers $1"'
        start_contestant right '"$dir/answers $2"'
        if in_turn 3 2; then echo "$left $right $ratio"; else echo "$why"; fi' 2>&1
}
same "medians, without the first round" "$(duel "99 10 30 20" "1 20 30 50")" "20 30 2"
same "one that dies" "$(duel "9 9 9 9" "9 die")" "out of memory"
same "one that does not answer" "$(duel "9 sleep" "9 9 9 9")" "no answer within 2 seconds"
same "one that is not there" "$(duel "9 9 9 9" "; exec nowhere" | grep -c .)" 1
same "median of two" "$(bash -c '. scripts/bench_lib.sh; median 4 1e1')" 7
end bench_contestants_take_turns

bash -c '. scripts/bench_lib.sh; : > "$BENCH_RESULTS"; for n in 1 2 3; do
    put_result "{\"name\":\"a\",\"x\":$n}"; put_result "{\"name\":\"b, $n\",\"x\":$n}"; done
    write_bench_json'
valid bench.json
same "bench.json" "$(tr -d '\n' < bench.json)" \
    '[{"name":"a","x":3},{"name":"b, 1","x":1},{"name":"b, 2","x":2},{"name":"b, 3","x":3}]'
end bench_json

# ---- PyTorch ----

# Two interpreters with a PyTorch and one without; ours takes 10 ms, theirs 20 and 40.
mkdir "$dir/bin" "$dir/b"
cat > "$dir/bin/python-1" << 'STUB'
#!/bin/sh
case "$*" in
    -c*tiktoken*) exit 1 ;;
    -c*) echo "1.0"; exit ;;
esac
echo "$*" >> "$CALLS"
while read -r line; do echo 20; done
STUB
sed 's/"1.0"/"2.0+cpu"/; s/echo 20/echo 40/' "$dir/bin/python-1" > "$dir/bin/python-2"
printf '#!/bin/sh\nexit 1\n' > "$dir/bin/python-none"
printf '#!/bin/sh\nwhile read -r line; do echo 10; done\n' > "$dir/b/bench"
chmod +x "$dir/bin/"* "$dir/b/bench"
others() {
    BENCH_PAUSE=0 CALLS=$dir/calls BUILD=$dir/b PATH="$dir/bin:$PATH" BENCH_RESULTS=$dir/results \
        scripts/bench_others.sh "$@" > "$dir/said" 2>&1 || note "bench_others.sh: fails"
}
rm -f "$dir/results"
PYTHONS="python-none python-1 python-2 python-1" others
same "comparisons" "$(grep -c 'times as fast here' "$dir/said")" 4
same "results" "$(wc -l < "$dir/results" | tr -d ' ')" 4
grep -qE 'PyTorch 1.0 fp32 +20.0 ms +here +10.0 ms +2.00 times' "$dir/said" || note "not 2.00"
grep -qE 'PyTorch 2.0 fp32 +40.0 ms +here +10.0 ms +4.00 times' "$dir/said" || note "not 4.00"
says "tokenizer: needs data/gpt2.tiktoken"
valid bench.json
PYTHONS="python-none" others
says "PyTorch is not installed: not compared"
end bench_others

# Threads by threads and size by size, PyTorch gets the setting that we get.
asked() { grep -qE -e "$1" "$dir/calls" || note "PyTorch is not asked for $1"; }
asked "--threads 1 --steps 10 --layers 4 --heads 4 --channels 128 .*--batch 12 --seq-len 64"
asked "--threads 2 --steps 10 --layers 4"
grep -qE -e "bf16|compile|768" "$dir/calls" && note "a quick run tries everything"
PYTHONS="python-1 python-2" others --full
same "comparisons" "$(grep -c 'times as fast here' "$dir/said")" 24
asked "--threads 2 --steps 1 --layers 12 --heads 12 --channels 768 .*--batch 4 --seq-len 64"
asked "--batch 4 --seq-len 1024 --dtype bf16 --compile"
same "calls with --compile" "$(grep -c -e --compile "$dir/calls")" 8
end bench_others_asks_for_the_same

found=
for candidate in "$python" python3 /usr/bin/python3; do
    [ -n "$found" ] || { "$candidate" -c "import torch" > /dev/null 2>&1 && found=$candidate; }
done
if [ -n "$found" ]; then
    tiny="--layers 1 --heads 1 --channels 8 --vocab 16 --seq-len 4 --batch 1 --threads 1"
    theirs="$found dev/reference/gpt2.py bench --rounds --steps 2 $tiny"
    same "fp32 and bf16" "$(true_duel "$theirs" "$theirs --dtype bf16")" answered
    end bench_reference_answers_line_by_line
else
    skip bench_reference_answers_line_by_line "needs python3 with torch"
fi

# ---- instructions ----

# Of valgrind only the report, of make only the compiler's name.
cat > "$dir/bin/callgrind_annotate" << 'STUB'
#!/bin/sh
echo "Ir
--------------------------------------------------------------------------------
$TOTAL (100.0%)  PROGRAM TOTALS

Ir                      file:function
1,500,000 (75.0%)  ???:tile [/somewhere/bench]
  300,000 (15.0%)  ???:adamw_update.constprop.0 [/somewhere/bench]
  100,000 ( 5.0%)  ???:adamw_update [/somewhere/bench]
   50,000 ( 2.5%)  ./math/../x/e_logf.c:__logf_fma [/usr/lib/libm.so.6]
        . ???:main"
STUB
printf '#!/bin/sh\ncat\n' > "$dir/bin/valgrind"
printf '#!/bin/sh\nmkdir -p "$BUILD/instructions"; echo "cc -O3" > "$BUILD/instructions/flags"\n' \
    > "$dir/bin/make"
chmod +x "$dir/bin/"*
count() {
    TOTAL=$1 BUILD=$dir/b PATH="$dir/bin:$PATH" BENCH_RESULTS=$dir/results \
        scripts/count_instructions.sh $2 > "$dir/said" 2>&1 || note "count_instructions.sh fails"
}

mkdir "$dir/b/fp32" "$dir/b/bf16"
printf '#!/bin/sh\nwhile read -r line; do echo 30; done\n' > "$dir/b/fp32/bench"
printf '#!/bin/sh\nwhile read -r line; do echo 15; done\n' > "$dir/b/bf16/bench"
chmod +x "$dir/b/fp32/bench" "$dir/b/bf16/bench"
BENCH_PAUSE=0 BUILD=$dir/b PATH="$dir/bin:$PATH" BENCH_RESULTS=$dir/results \
    scripts/bench_precision.sh 2 > "$dir/said" 2>&1 || note "bench_precision.sh fails"
says "124M, B=4 T=1024, threads: 1"
grep -qE 'fp32 +30.0 ms +bf16 +15.0 ms +bf16 is 2.00 times as fast' "$dir/said" ||
    note "not 2.00: $(cat "$dir/said")"
valid bench.json
end bench_precision

if [ "$(uname -m)" = x86_64 ]; then
    rm -f "$dir/results" dev/results/instructions.json
    count 2,000,000
    grep -qE '^  total +2.00$' "$dir/said" || note "no total: $(cat "$dir/said")"
    grep -qE '^  adamw_update +0.40$' "$dir/said" || note "clones of a function are not added up"
    count 2,000,000 --keep
    valid dev/results/instructions.json
    count 2,500,000
    grep -qE '^  total +2.50 +1.250 times the 2.00 kept' "$dir/said" || note "no 1.250"
    grep -qE '^  __logf_fma +0.05 +1.000 times the 0.05 kept' "$dir/said" || note "no __logf_fma"
    valid bench.json
    same "total in bench.json" "$(value total | tail -n 1)" 2500000
    sed 's/"compiler":"[^"]*"/"compiler":"another one"/' dev/results/instructions.json > "$dir/kept"
    cp "$dir/kept" dev/results/instructions.json
    count 2,500,000
    says "another one"
    end bench_instructions
else
    skip bench_instructions "needs an x86-64 processor"
fi
cd "$here" || exit 1
mkdir "$dir/empty"
for tool in bash dirname mkdir mktemp rm uname; do
    ln -s "$(command -v $tool)" "$dir/empty/$tool"
done
(cd "$tree" && PATH=$dir/empty BENCH_RESULTS=$dir/results scripts/count_instructions.sh) \
    > "$dir/said" 2>&1 || note "without valgrind: status $?"
same "without valgrind" "$(cat "$dir/said")" "instructions: not counted: needs valgrind"
end bench_instructions_need_valgrind

exit $failed
