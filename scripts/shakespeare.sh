#!/usr/bin/env bash
# Trains on Tiny Shakespeare, one token a byte, with nanoGPT's settings for a CPU: 4 layers, 4
# heads, 128 channels, 2,000 updates of 12 sequences of 64 tokens. nanoGPT publishes a validation
# loss of 1.88 for them. Here the loss is over the whole validation split, the last tenth of the
# text.
#
#     scripts/shakespeare.sh [TEXT] [more flags for train_gpt2...]
#     scripts/shakespeare.sh --finetune [flags for train_gpt2...]
#
# Without TEXT: data/tinyshakespeare.txt, which is fetched if it is missing.
#
# --finetune: GPT-2 124M in its own tokens, with nanoGPT's constant learning rate of 3e-5, for 40
# short updates, a seventh of the text. Prints the validation loss and a sample before and after.
# Variables are MODEL_DIR (data/gpt2, fetched if it is missing) and TEXT. Needs 3 GB of memory, and
# 1.5 GB of disk for the fine-tuned model and its optimizer state. transformers can open the result,
# too: out/finetune_shakespeare/latest.
set -e
cd "$(dirname "$0")/.."
text=data/tinyshakespeare.txt

writes() {                                             # MODEL: prints a sample
    echo "--- $1 writes ---"
    ./train_gpt2 --init "$1" --generate $'ROMEO:\n' --max-new 120 --top-k 200
    echo
}
finetune() {
    text=${TEXT:-$text}
    local model=${MODEL_DIR:-data/gpt2} out=out/finetune_shakespeare length=512 measured=16384
    local arg name=''
    for arg in "$@"; do
        case $arg in --*=*) name=${arg%%=*} arg=${arg#*=} ;; --*) name=$arg && continue ;; esac
        case $name in
            --out) out=$arg ;;
            --seq-len) length=$arg ;;
            --eval-tokens) measured=$arg ;;
        esac
    done
    [ -n "${MODEL_DIR:-}" ] || [ -f "$model/model.safetensors" ] || dev/data/fetch.sh gpt2
    [ -n "${TEXT:-}" ] || [ -f "$text" ] || dev/data/fetch.sh shakespeare
    [ ! -d "$model/latest" ] || model=$model/latest        # a run of this trainer
    make -s
    ./prepare text "$text" --out data/shakespeare_gpt2 --overwrite \
        --tokenizer "$model/tokenizer.json" --val-fraction 0.1
    writes "$model"
    ./train_gpt2 --init "$model" --data data/shakespeare_gpt2 --seq-len "$length" --micro-batch 1 \
        --eval-tokens "$measured" --steps 0
    ./train_gpt2 --init "$model" --data data/shakespeare_gpt2 --out out/finetune_shakespeare \
        --overwrite --keep 1 --seq-len 512 --micro-batch 1 --batch-tokens 1024 --steps 40 \
        --lr 3e-5 --lr-schedule constant --weight-decay 0.1 --eval-every 20 --eval-tokens 16384 "$@"
    writes "$out"
}

case ${1:-} in
    --finetune) finetune "${@:2}"; exit ;;
    "" | --*) [ -f "$text" ] || dev/data/fetch.sh shakespeare ;;
    *) text=$1 && shift ;;
esac
make -s
./prepare text "$text" --out data/shakespeare --overwrite --tokenizer byte --val-fraction 0.1
./train_gpt2 --data data/shakespeare --out out/shakespeare --overwrite \
    --layers 4 --heads 4 --channels 128 --seq-len 64 --micro-batch 12 --steps 2000 \
    --lr 1e-3 --lr-schedule cosine --final-lr-frac 0.1 --warmup-tokens 76800 --beta2 0.99 \
    --eval-every 250 --eval-tokens 0 --sample-every 1000 --max-new 400 "$@"
