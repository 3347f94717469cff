#!/usr/bin/env bash
# Changes that readers try first, made in train_gpt2.c: build/test_slopes, the check that README
# names, tells a right backward pass from a wrong one. The library is make's.
. "$(dirname "$0")/tools.sh"

# Root mean square in place of LayerNorm: no mean is subtracted.
rms='/^static void layernorm_forward/,/^}/ s|float m = sum / C;|float m = 0.0f;|'
rms_back='/^static void layernorm_backward/,/^}/ s|\*gain\[c\] - mean_g - |*gain[c] - |'

# Rotary positions (Su et al. 2021) beside the learned ones: queries and keys are turned by an angle
# that grows with the token's place, their gradients are turned back.
cat > "$dir/rotary" << 'C'
static void rotary(float *qkv, float way, int B, int T, int past, int C, int NH) {
    int HS = C / NH;
    for (int b = 0; b < B; b++)
    for (int t = 0; t < T; t++)
    for (int h = 0; h < 2*NH; h++)                   // the heads of queries, then those of keys
    for (int i = 0; i < HS / 2; i++) {
        float angle = way * (float)(past + t) * powf(10000.0f, -2.0f * (float)i / (float)HS);
        float *x = qkv + ((size_t)b*(past + T) + t)*3*C + h*HS + 2*i, x0 = x[0], x1 = x[1];
        x[0] = x0 * cosf(angle) - x1 * sinf(angle);
        x[1] = x0 * sinf(angle) + x1 * cosf(angle);
    }
}
C
rotary="/^\/\/ ---- residual: out = a + b/ r $dir/rotary
        /^static void block_forward/,/^}/ {
            s|^    attention_forward(|    rotary(qkv, 1, B, T, past, Cn, NHn);&| }"
turned='/^static void block_backward/,/^}/ {
    s|^    attention_backward(.*|&rotary(dqkv, -1, B, T, 0, Cn, NHn);| }'

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
mkdir "$dir/tests" && cp tests/test_slopes.c "$dir/tests" && cp -r dev dataloader.h "$dir"
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
slopes 0 "" -e "$rotary" -e "$turned"
slopes 1 "" -e "$rotary" -e "${turned/-1/1}"
slopes 0 "$smooth_ranks" -e "$smooth" -e "$smooth_back"
slopes 1 "$smooth_ranks" -e "$smooth" -e "${smooth_back/0.9f \* /}"
slopes 1 "" -e "$smooth" -e "$smooth_back"           # ranks have been forgotten
end slopes_tell_right_changes_from_wrong_ones
exit $failed
