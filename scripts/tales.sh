#!/usr/bin/env bash
# The first run: writes the embedded corpus and trains a small GPT-2 on it, in about a minute on two
# cores. More flags may follow: scripts/tales.sh --tokens 3000000
set -e
cd "$(dirname "$0")/.."
[ -f data/tales/tales_train_000000.bin ] || ./prepare tales --out data/tales
./train_gpt2 --data data/tales --out out/tales --overwrite \
    --layers 4 --heads 4 --channels 128 --seq-len 256 --micro-batch 8 \
    --lr 3e-3 --warmup-tokens 50000 --tokens 800000 --eval-every 100000tok --eval-tokens 32768 \
    --sample-every 400000tok --max-new 300 "$@"
