#!/usr/bin/env bash
# Trains GPT-2 124M from scratch on 9.9 billion tokens of FineWeb, with the recipe of llm.c's
# scripts/run_gpt2_124M.sh: 18,865 updates of 524,288 tokens, in sequences of 1,024; a learning rate
# with a linear warm-up to 6e-4 over 700 updates and a cosine decay to 0; AdamW with betas 0.9 and
# 0.95 and weight decay 0.1; gradients clipped to a global norm of 1. llm.c reports a validation
# loss of about 3.29 and 29.9% on HellaSwag (github.com/karpathy/llm.c/discussions/481).
#
#     scripts/train_124m.sh                        on all GPUs of this machine
#     scripts/train_124m.sh --gpus 16 --hosts hosts.txt
#     sbatch scripts/slurm.sbatch                  on 16 GPUs, under Slurm
#     scripts/train_124m.sh --shards 1             a trial: 190 updates on one shard
#
#     --gpus N         number of GPUs, one rank each: 1, 2, 4, ... 512
#     --out DIR        the run's directory (default out/gpt2_124m); a run that it holds is resumed
#     --shards N       train on N shards of 100 million tokens: at most N times 190 updates
#     --hosts FILE, --restart N    as in scripts/launch.sh
#     --dry-run        print the commands without running them
#
# Other flags are passed to train_gpt2cu and override the recipe: --micro-batch 64, for example. The
# data set has 103 shards in data/fineweb, 21 GB; missing shards are fetched. The loss curve goes to
# DIR/loss.png. HellaSwag is evaluated at the end if dev/data/fetch_hellaswag.sh has fetched it.
# LAUNCH="srun ..." replaces scripts/launch.sh.
set -e
cd "$(dirname "$0")/.."
hellaswag=data/hellaswag_val.jsonl
gpus='' out=out/gpt2_124m shards='' dry_run='' data=(--data data/fineweb) launcher=() flags=()

die() { echo "train_124m.sh: $*" >&2; exit 1; }
count() {                                    # FLAG TEXT MAX
    case $2 in [1-9] | [1-9][0-9] | [1-9][0-9][0-9]) [ "$2" -gt "$3" ] || return 0 ;; esac
    die "$1: '$2' is not a number from 1 to $3"
}
while [ $# -gt 0 ]; do
    case $1 in
        --gpus=* | --out=* | --shards=* | --hosts=* | --restart=*)
            set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
        --gpus | --out | --shards | --hosts | --restart) [ $# -gt 1 ] || die "$1: needs a value" ;;
        --data | --train | --data=* | --train=*) data=() ;;
    esac
    case $1 in
        --gpus) count "$1" "$2" 512; gpus=$2 ;;
        --out) out=$2 ;;
        --shards) count "$1" "$2" 103; shards=$2 ;;
        --hosts | --restart) launcher+=("$1" "$2") ;;
        --dry-run) dry_run=yes; shift; continue ;;
        *) flags+=("$1"); shift; continue ;;
    esac
    shift 2
done

# Ranks and micro-batches must divide an update's sequences evenly.
sequences=$((524288 / 1024)) micro_batch=32
gpus=${gpus:-$(nvidia-smi -L 2> /dev/null | grep -c '^GPU' || true)}
[ "$gpus" -gt 0 ] || die "nvidia-smi finds no GPU here; give their number with --gpus N"
if [ $((sequences % gpus)) != 0 ]; then
    below=$gpus above=$gpus
    while [ $((sequences % below)) != 0 ]; do below=$((below - 1)); done
    while [ $((sequences % above)) != 0 ]; do above=$((above + 1)); done
    die "--gpus: $gpus does not divide the $sequences sequences of an update; $below and $above do"
fi
[ $((gpus * micro_batch)) -le $sequences ] || micro_batch=$((sequences / gpus))

steps=18865
if [ -n "$shards" ] && [ $((190 * shards)) -lt $steps ]; then steps=$((190 * shards)); fi
recipe=(--init d12 --seq-len 1024 --batch-tokens 524288 --micro-batch "$micro_batch"
        --steps "$steps" --warmup-tokens $((700 * 524288 * steps / 18865))
        --lr 6e-4 --lr-schedule cosine --final-lr-frac 0
        --weight-decay 0.1 --beta1 0.9 --beta2 0.95 --clip 1
        --eval-every 250 --eval-tokens 10485760 --save-every 1000)

if [ -n "$LAUNCH" ]; then
    [ ${#launcher[@]} = 0 ] ||
        die "${launcher[0]}: is a flag of scripts/launch.sh, but LAUNCH is another launcher"
    read -ra launcher <<< "$LAUNCH"
else launcher=(scripts/launch.sh -n "$gpus" "${launcher[@]}"); fi

perform() {
    if [ -n "$dry_run" ]; then printf '%q ' "$@" && echo; else "$@"; fi
}
say() { [ -n "$dry_run" ] || echo "$*"; }

perform make -s train_gpt2cu
if [ ${#data[@]} -gt 0 ]; then
    data+=(--tokenizer data/gpt2.tiktoken)
    [ -f data/gpt2.tiktoken ] || perform dev/data/fetch_gpt2_vocab.sh
    here=$(find data/fineweb -name 'fineweb_train_*.bin' 2> /dev/null | wc -l)
    if [ "$here" -lt "${shards:-103}" ] || [ ! -f data/fineweb/fineweb_val_000000.bin ]; then
        say "data    fetching ${shards:-103} training shards and one for validation, 0.2 GB each"
        perform dev/data/fetch_fineweb.sh "${shards:-103}"
    fi
fi
say "llm.c   reached a validation loss of about 3.29 in 18865 updates, and 29.9% on HellaSwag"
if [ -f $hellaswag ]; then flags=(--hellaswag $hellaswag "${flags[@]}")
else say "note    HellaSwag is not evaluated without dev/data/fetch_hellaswag.sh"; fi

# Without a checkpoint, --overwrite can lose nothing.
if [ -e "$out/latest" ] || compgen -G "$out/step_*" > /dev/null; then
    run=(./train_gpt2cu --resume --out "$out" "${flags[@]}")
else
    run=(./train_gpt2cu --out "$out" --overwrite "${data[@]}" "${recipe[@]}" "${flags[@]}")
fi
perform "${launcher[@]}" "${run[@]}"
perform scripts/plot.py "$out" --out "$out/loss.png" || say "note    no curve was drawn"
