#!/usr/bin/env bash
# Fine-tunes GPT-2 124M on Tiny Shakespeare, in GPT-2's own tokens, with nanoGPT's constant learning
# rate of 3e-5, for 40 short updates, a seventh of the text. Prints the validation loss and a sample
# before and after.
#
#     scripts/finetune_shakespeare.sh [flags for train_gpt2...]
#     MODEL_DIR=data/gpt2-medium TEXT=my.txt scripts/finetune_shakespeare.sh --steps 200
#
# Defaults: MODEL_DIR data/gpt2, TEXT data/tinyshakespeare.txt; both are fetched if missing. Needs
# 3 GB of memory, and 1.5 GB of disk for the fine-tuned model and its optimizer state. transformers
# can open the result, too: out/finetune_shakespeare/latest.
set -e
cd "$(dirname "$0")/.."
model=${MODEL_DIR:-data/gpt2} text=${TEXT:-data/tinyshakespeare.txt}
[ -n "${MODEL_DIR:-}" ] || [ -f "$model/model.safetensors" ] || dev/data/fetch.sh gpt2
[ -n "${TEXT:-}" ] || [ -f "$text" ] || dev/data/fetch.sh shakespeare
[ ! -d "$model/latest" ] || model=$model/latest        # a run of this trainer

# flag NAME DEFAULT FLAGS...: the value of a flag; the last one wins.
flag() {
    local name=$1 value=$2
    shift 2
    while [ $# -gt 0 ]; do
        case $1 in
            "$name") value=${2:-} ;;
            "$name="*) value=${1#*=} ;;
        esac
        shift
    done
    echo "$value"
}
out=$(flag --out out/finetune_shakespeare "$@")
length=$(flag --seq-len 512 "$@") measured=$(flag --eval-tokens 16384 "$@")
writes() {                                             # MODEL: prints a sample
    echo "--- $1 writes ---"
    ./train_gpt2 --init "$1" --generate $'ROMEO:\n' --max-new 120 --top-k 200
    echo
}

make -s
./prepare text "$text" --out data/shakespeare_gpt2 --overwrite --tokenizer "$model/tokenizer.json" \
    --val-fraction 0.1
writes "$model"
./train_gpt2 --init "$model" --data data/shakespeare_gpt2 --seq-len "$length" --micro-batch 1 \
    --eval-tokens "$measured" --steps 0
./train_gpt2 --init "$model" --data data/shakespeare_gpt2 --out out/finetune_shakespeare \
    --overwrite --keep 1 --seq-len 512 --micro-batch 1 --batch-tokens 1024 --steps 40 \
    --lr 3e-5 --lr-schedule constant --weight-decay 0.1 --eval-every 20 --eval-tokens 16384 "$@"
writes "$out"
