#!/usr/bin/env bash
# The first run: generates the corpus of tales and trains a small GPT-2 on it, in about a minute on
# two cores. Further flags override those below: scripts/tales.sh --tokens 20000000
set -e
cd "$(dirname "$0")/.."
[ -f data/tales/tales_train_000000.bin ] || ./prepare tales --out data/tales
./train_gpt2 --data data/tales --out out/tales --overwrite \
    --layers 2 --heads 2 --channels 64 --seq-len 256 --micro-batch 4 --tokens 6000000 \
    --lr 3e-3 --lr-schedule wsd --warmup-tokens 20000 --beta2 0.99 \
    --eval-every 1000000tok --eval-tokens 65536 --sample-every 2000000tok --max-new 300 "$@"
