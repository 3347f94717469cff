#!/usr/bin/env bash
# Other builds of train_gpt2.c: in bf16, and with the changes that readers try first.
. "$(dirname "$0")/tools.sh"
cp -r Makefile train_gpt2.c dataloader.h dev "$dir"

# ---- bf16 ----

# A bf16 build (make PRECISION=bf16) learns what the fp32 build learns: 250 updates of a small model
# on the same batches, the loss averaged over every 50 of them within 0.003 nats. At a learning rate
# that the model bears: one that makes it jump parts any two runs, also two of fp32. Measured: within
# 0.0002 on this corpus, 0.001 on Tiny Shakespeare with 4 layers of 128 channels.
make -s -C "$dir" PRECISION=bf16 train_gpt2 2>"$dir/make" ||
    note "make PRECISION=bf16: $(tail -1 "$dir/make")"
mv "$dir/train_gpt2" "$dir/bf16"
cp "$train" "$dir/fp32"
[ "$(uname -m)" != x86_64 ] || make -n -C "$dir" PRECISION=bf16 CPUINFO="GenuineIntel avx512_bf16" |
    grep -e -mno-avx512bf16 >/dev/null || note "Intel's slow instruction is used"
make -s -C "$dir" PRECISION=tf32 train_gpt2 2>"$dir/make" && note "PRECISION=tf32 is taken for something"
grep -q 'fp32 or bf16' "$dir/make" || note "PRECISION=tf32 is refused with: $(tail -1 "$dir/make")"

./prepare tales --out "$dir/data" --tokens 1000000 >/dev/null || note "prepare"
for precision in fp32 bf16; do
    "$dir/$precision" --data "$dir/data" --out "$dir/$precision.run" --layers 2 --heads 2 \
        --channels 64 --seq-len 64 --micro-batch 8 --steps 250 --lr 1e-3 --warmup-tokens 50000 \
        --beta2 0.99 --eval-every 0 >"$dir/out" 2>&1 || note "$precision: $(tail -1 "$dir/out")"
    [[ $(values start precision "$dir/$precision.run") == "\"$precision"* ]] || note "precision"
done
worst=$(paste <(values step loss "$dir/fp32.run") <(values step loss "$dir/bf16.run") | awk '
    { fp32 += $1; bf16 += $2; if ($1 != $2) differ = 1 }
    NR % 50 == 0 {
        d = (bf16 - fp32) / 50; if (d < 0) d = -d; if (d > worst) worst = d; fp32 = bf16 = 0
    }
    END { print (NR == 250 && differ) ? worst : "none" }')
within "losses" "$worst" 0.003               # none: not 250 updates, or the very same
echo "    bf16 against fp32: $worst nats at most, averaged over 50 updates"
"$dir/bf16" --out "$dir/fp32.run" --resume --steps 251 2>&1 |
    grep "was fp32, this program's is bf16" >/dev/null || note "a resume in another precision is not told"
end bf16_learns_as_fp32_does

# ---- changes: build/test_slopes, the check that README names, tells a right backward pass from a
# wrong one. The library is make's.

# Root mean square in place of LayerNorm: no mean is subtracted.
rms='/^static void layernorm_forward/,/^}/ s|float m = sum / C;|float m = 0.0f;|'
rms_back='/^static void layernorm_backward/,/^}/ s|gain\[c\] - mean_g - |gain[c] - |'

# Label smoothing: a tenth of each target's weight goes to all words alike. The loss that ranks with
# some of the words each compute is in dev/ranks/tensor.c.
smooth='s|^\(        loss\[n\] = lse\[n\]\) - x\[target\[n\]\];.*|        float all = 0.0f;\
        for (int v = 0; v < V; v++) all += x[v] / V;\
        \1 - 0.9f * x[target[n]] - 0.1f * all;|'
smooth_back='/^static void xent_backward/,/^}/ {
    s|= exp_fast(d\[v\] - lse\[n\]) \* scale;|= (exp_fast(d[v] - lse[n]) - 0.1f / V) * scale;|
    s|-= scale;|-= 0.9f * scale;| }'
smooth_ranks='s|parts\[2\*N + n\] = \(.*\);|parts[2*N + n] = 0.9f * (\1);\
        for (int v = 0; v < V; v++) parts[2*N + n] += 0.1f * x[v] / V;|'

# slopes STATUS WORDS SED...: test_slopes of train_gpt2.c and tensor.c, so changed, ends with it.
mkdir "$dir/tests" && cp tests/test_slopes.c "$dir/tests"
slopes() {
    sed "$2" dev/ranks/tensor.c > "$dir/dev/ranks/tensor.c"
    sed "${@:3}" train_gpt2.c > "$dir/train_gpt2.c"
    ! cmp -s train_gpt2.c "$dir/train_gpt2.c" || note "nothing is changed: ${*:3}"
    $cc -std=gnu11 -O1 -w -fopenmp -iquote tests "$dir/tests/test_slopes.c" "$build/library.a" \
        -o "$dir/slopes" -lm 2> "$dir/said" ||
        { note "it does not compile: $(head -n 1 "$dir/said")"; return; }
    "$dir/slopes" > "$dir/said" 2>&1
    [ $? = "$1" ] || note "status not $1: ${*:2} $(grep -m 1 'test_slopes.c' "$dir/said")"
}
slopes 0 "" -e "$rms" -e "$rms_back"
slopes 1 "" -e "$rms"
slopes 0 "$smooth_ranks" -e "$smooth" -e "$smooth_back"
slopes 1 "$smooth_ranks" -e "$smooth" -e "${smooth_back/0.9f \* /}"
slopes 1 "" -e "$smooth" -e "$smooth_back"           # ranks have been forgotten
end slopes_tell_right_changes_from_wrong_ones
exit $failed
