#!/usr/bin/env bash
# Compares data parallelism with DiLoCo (Douillard et al. 2023). Four workers train a small GPT-2 on
# the embedded corpus: once with an all-reduce of the gradient at every update, once with an outer
# update after every H=20. For each method the table gives the best of a few learning rates, the
# loss it reached, and what each worker sent. The outer learning rate and momentum, 0.8 and 0.8, did
# better here than the paper's 0.7 and 0.9; a run here has 150 rounds, not thousands.
#
#     scripts/diloco.sh                 3000 updates, 150 rounds: 6 runs, some minutes each
#     scripts/diloco.sh --quick         60 updates, two learning rates: a trial
#
# A finished run, whose log is in out/diloco, is not repeated. RATES="2e-3 4e-3" and STEPS=N change
# the grid. The table is also written to out/diloco/table.md.
set -u
export LC_ALL=C                              # numbers have a point, not a comma
cd "$(dirname "$0")/.." || exit 1
steps=${STEPS:-3000} rates=${RATES:-4e-3 8e-3 16e-3} every=20 out=out/diloco
eval_tokens=200000 tokens=20000000
case ${1:-} in
    "") ;;
    --quick) steps=${STEPS:-60} rates=${RATES:-2e-3 4e-3} out=out/diloco_quick
             eval_tokens=4096 tokens=500000 ;;
    *) echo "diloco.sh: '$1': expected --quick or nothing" >&2; exit 1 ;;
esac
out=${OUT:-$out} build=${BUILD:-build}
export OMP_WAIT_POLICY=passive               # four workers may share fewer cores
set -e
make -s prepare "$build/train_gpt2-mpi"
mkdir -p "$out"
[ -f "$out/tales/tokenizer.json" ] || ./prepare tales --out "$out/tales" --tokens $tokens
set +e

flags="--data $out/tales --layers 2 --heads 2 --channels 32 --seq-len 64 --threads 1
       --micro-batch 32 --batch-tokens 8192 --steps $steps --warmup-tokens $((steps * 400))
       --eval-every 0 --eval-tokens $eval_tokens"

# train NAME FLAGS...: a run of four workers, unless its log says that it is done.
train() {
    local name=$1
    shift
    if ! grep -qs '"reason":"done"' "$out/$name.jsonl"; then
        echo "$name"
        scripts/launch.sh -n 4 "$build/train_gpt2-mpi" $flags --log "$out/$name.jsonl" --overwrite \
            "$@" > "$out/$name.txt" || { echo "diloco.sh: $name failed" >&2; exit 1; }
    fi
}

# line METHOD NAME: the table's line for the best of the runs NAME_RATE. A best learning rate at the
# grid's edge is marked: a better one may lie beyond.
field() { sed -n "s/^{\"event\":\"$1\".*\"$2\":\\([^,}]*\\).*/\\1/p" "$3"; }
line() {
    local method=$1 rate loss best='' at='' first='' last='' sent
    for rate in $rates; do
        loss=$(field eval val_loss "$out/$2_$rate.jsonl" | tail -n 1)
        first=${first:-$rate} last=$rate
        if [ -z "$best" ] || awk -v a="$loss" -v b="$best" 'BEGIN { exit !(a < b) }'; then
            best=$loss at=$rate
        fi
    done
    sent=$(field step bytes_sent "$out/$2_$at.jsonl" | awk '{ n += $1 } END { print n / 1e6 }')
    [ "$at" != "$first" ] && [ "$at" != "$last" ] || at="$at (edge of the grid)"
    printf '| %s | %s | %.4f | %.1f |\n' "$method" "$at" "$best" "$sent"
}

for rate in $rates; do
    train "data_parallel_$rate" --lr "$rate"
    train "diloco_$rate" --lr "$rate" --outer-every $every \
        --outer-lr 0.8 --outer-momentum 0.8
done
{
    echo "| four workers, $steps updates of 8192 tokens | best lr | validation loss | MB sent |"
    echo "|---|---|---|---|"
    line "data parallel" data_parallel
    line "DiLoCo, H=$every" diloco
} | tee "$out/table.md"
awk -F'|' 'NR > 2 { loss[NR] = $4; sent[NR] = $5 } END {
    printf "DiLoCo'\''s loss: %+.2f%% relative to data parallel, which sent %.1f times as much.\n",
           100 * (loss[4] / loss[3] - 1), sent[3] / sent[4] }' "$out/table.md"
