#!/usr/bin/env bash
# Trains on Tiny Shakespeare, one token a byte, with nanoGPT's settings for a CPU: 4 layers, 4
# heads, 128 channels, 2,000 updates of 12 sequences of 64 tokens. nanoGPT publishes a validation
# loss of 1.88 for them. Here the loss is over the whole validation split, the last tenth of the
# text.
#
#     scripts/shakespeare.sh [TEXT] [more flags for train_gpt2...]
#
# Without TEXT: data/tinyshakespeare.txt, which is fetched if it is missing.
set -e
cd "$(dirname "$0")/.."
text=data/tinyshakespeare.txt
case "${1:-}" in
    "" | --*) [ -f "$text" ] || dev/data/fetch.sh shakespeare ;;
    *) text=$1 && shift ;;
esac
make -s
./prepare text "$text" --out data/shakespeare --overwrite --tokenizer byte --val-fraction 0.1
./train_gpt2 --data data/shakespeare --out out/shakespeare --overwrite \
    --layers 4 --heads 4 --channels 128 --seq-len 64 --micro-batch 12 --steps 2000 \
    --lr 1e-3 --lr-schedule cosine --final-lr-frac 0.1 --warmup-tokens 76800 --beta2 0.99 \
    --eval-every 250 --eval-tokens 0 --sample-every 1000 --max-new 400 "$@"
