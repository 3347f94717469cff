#!/usr/bin/env bash
# dev/cuda/bench.cu on the emulator: its tables are whole, and the bytes that it counts are right.
# What it says about speed is not looked at.
. "$(dirname "$0")/tools.sh"
set -u
bench=$PWD/${BENCH_CUDA:-build/emulated/bench_cuda}

row() { sed -n "s/^  *$1  *\([0-9]*  *[0-9.]*  *[0-9.]*\) .*/\1/p" "$dir/out" | tr -s ' '; }

if [ ! -x "$bench" ]; then
    skip bytes_are_counted "needs $bench (make build/emulated/bench_cuda)"
    exit $failed
fi

# 124M at B=64, T=1024 in bf16, by hand: N = 65536 rows of C = 768, and of 50304 logits.
EMULATOR_DEVICES=0 "$bench" --bytes 64 > "$dir/out" 2> "$dir/err" || note "$(cat "$dir/err")"
mb() { awk "BEGIN { printf \"%.1f\", ($1) / 1e6 }"; }
N=65536 C=768 Vp=50304 P=124475904
same "layernorm" "$(row layernorm)" "25 $(mb "25 * $N*(4*$C + 8)") $(mb "25 * $N*(4*$C + 8)")"
same "attention, back" "$(row 'attention, back' | cut -d' ' -f1,2)" \
    "12 $(mb "12 * (2*16*$N*$C + 28*$N*12)")"
same "cross-entropy" "$(row 'cross-entropy in it' | cut -d' ' -f1,2)" \
    "1 $(mb "2*$N*2*$Vp + 12*$N")"              # an H100 keeps a whole row in shared memory
same "AdamW" "$(row AdamW)" "1 $(mb "30*$P") $(mb "30*$P")"
awk '$NF ~ /^[0-9.]+$/ && $NF < 1 { print; bad = 1 } END { exit bad }' "$dir/out" ||
    note "a kernel moves less than its floor"
same "rows" "$(wc -l < "$dir/out")" 27
end bytes_are_counted

cd "$dir" || exit 1
EMULATOR_MEMORY=900000000 "$bench" --model 2,2,32,200,16 1 2 > out 2> err || note "$(cat err)"
same "steps" "$(grep -cE '^ +[12] +(none|block) ' out)" 4
same "launchers" "$(awk '/^launchers/ { on = 1 } /^products/ { on = 0 } on' out | wc -l)" 29
same "products" "$(grep -cE '^ +[0-9.]+ .* c [0-9]+ (bf16|fp32) [a-z-]+$' out)" 15
same "products in bench_cuda.json" "$(grep -c '"product": .*"ms": ' bench_cuda.json)" 15
grep -qE 'gelu-gradient", .*"apart_ms": [0-9]' bench_cuda.json || note "no epilogue beside kernels"
grep -qE '[^a-z](inf|nan)' bench_cuda.json && note "bench_cuda.json is no JSON: inf or nan"
"${PYTHON:-python3}" -m json.tool bench_cuda.json > out 2> err || note "bench_cuda.json: $(cat err)"
same "launchers in others" "$(grep -c '"inside": true' bench_cuda.json)" 2
end every_launcher_and_every_product_is_measured
exit $failed
