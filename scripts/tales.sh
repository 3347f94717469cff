#!/usr/bin/env bash
# The first run: generates the corpus of tales and trains a small GPT-2 on it, in about a minute on
# two cores. Without flags it replaces the model that it has made before, and no other.
# Further flags override those below: scripts/tales.sh --tokens 20000000 --out out/longer
set -e
export LC_ALL=C                              # numbers have a point, not a comma
cd "$(dirname "$0")/.."
out=out/tales tokens=6000000 steps='' batch='' micro_batch=4 seq_len=256
length=(--tokens $tokens) shape=(--layers 2 --heads 2 --channels 64) replace=() name=''
for arg in "$@"; do
    case $arg in --*=*) name=${arg%%=*} arg=${arg#*=} ;; --*) name=$arg && continue ;; esac
    case $name in
        --tokens) tokens=$arg ;;
        --steps) steps=$arg length=() ;;
        --batch-tokens) batch=$arg ;;
        --micro-batch) micro_batch=$arg ;;
        --seq-len) seq_len=$arg ;;
        --init) shape=() ;;
        --out) out=$arg ;;
    esac
done
if [ $# -eq 0 ] && ! grep -q '^{"event":"resume"' $out/log.jsonl &&
    grep -q '^{"event":"start".*"tokens":'$tokens, $out/log.jsonl
then replace=(--overwrite); fi 2>/dev/null

# 20,000 tokens of warm-up, or a tenth of a short run.
warmup=$(awk -v tokens="$tokens" -v steps="$steps" -v batch="$batch" -v micro="$micro_batch" \
    -v seq="$seq_len" 'BEGIN {
        if (steps != "") tokens = steps * (batch != "" ? batch : micro * seq)
        printf "%d", tokens < 200000 ? tokens / 10 : 20000
    }')
case " $* " in
    *" --help "*) sed -n '2,/^[^#]/s/^# //p' scripts/tales.sh; echo "./train_gpt2 --help lists them."
                  exit ;;
esac
[ -x train_gpt2 ] && [ -x prepare ] || make -s
case " $*" in *" --resume"*) exec ./train_gpt2 --out out/tales "$@" ;; esac      # with its own flags
printf 'watch   scripts/watch.py %q   shows this run in a browser while it trains\n' "$out"
[ -f data/tales/tales_train_000000.bin ] || ./prepare tales --out data/tales --overwrite
./train_gpt2 --data data/tales --out out/tales "${replace[@]}" "${shape[@]}" "${length[@]}" \
    --seq-len 256 --micro-batch 4 --lr 3e-3 --lr-schedule wsd \
    --warmup-tokens "$warmup" --beta2 0.99 --save-every 1000000tok --eval-every 1000000tok \
    --eval-tokens 65536 --sample-every 2000000tok --max-new 300 "$@"
