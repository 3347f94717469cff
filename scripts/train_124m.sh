#!/usr/bin/env bash
# GPT-2 124M from nothing, on 9.9 billion tokens of FineWeb, with the recipe of llm.c's
# scripts/run_gpt2_124M.sh: 18,865 updates of 524,288 tokens, in sequences of 1,024; a learning rate
# that rises to 6e-4 over 700 updates, then falls to 0 by a cosine; AdamW with betas 0.9 and 0.95
# and a weight decay of 0.1; a global norm clipped at 1. What others report of it, beside
# github.com/karpathy/llm.c/discussions/481: a validation loss of about 3.29, 29.9% on HellaSwag.
#
#     scripts/train_124m.sh                        on all GPUs of this machine
#     scripts/train_124m.sh --gpus 16 --hosts hosts.txt
#     sbatch scripts/slurm.sbatch                  on 16 GPUs, under Slurm
#     scripts/train_124m.sh --shards 1             a trial: 190 updates on the first shard
#
#     --gpus N         1, 2, 4, ... 512, with one rank each
#     --out DIR        where the run is kept (default out/gpt2_124m); one that has begun goes on
#     --shards N       train on N shards of 100 million tokens: N times 190 updates at most
#     --hosts FILE, --restart N    as in scripts/launch.sh
#     --dry-run        print the commands, and do nothing
#
# Other flags are train_gpt2cu's and count more than the recipe's: --micro-batch 64, say. The whole
# data is 103 shards in data/fineweb, 21 GB; what is missing is fetched. The loss curve is drawn to
# DIR/loss.png. HellaSwag is measured at the end where dev/data/fetch_hellaswag.sh has fetched it.
# LAUNCH="srun ..." names another launcher than scripts/launch.sh.
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

# An update's sequences are shared evenly: by ranks, and by each rank's micro-batches.
sequences=$((524288 / 1024)) micro_batch=32
gpus=${gpus:-$(nvidia-smi -L 2> /dev/null | grep -c '^GPU' || true)}
[ "$gpus" -gt 0 ] || die "nvidia-smi finds no GPU here; --gpus N says how many there are"
if [ $((sequences % gpus)) != 0 ]; then
    below=$gpus above=$gpus
    while [ $((sequences % below)) != 0 ]; do below=$((below - 1)); done
    while [ $((sequences % above)) != 0 ]; do above=$((above + 1)); done
    die "--gpus: $gpus cannot share the $sequences sequences of an update; $below or $above can"
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
    [ ${#launcher[@]} = 0 ] || die "${launcher[0]}: is for scripts/launch.sh, and LAUNCH is another"
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
        say "data    fetching ${shards:-103} shards to train on and one for validation, 0.2 GB each"
        perform dev/data/fetch_fineweb.sh "${shards:-103}"
    fi
fi
say "llm.c   reached a validation loss of about 3.29 in 18865 updates, and 29.9% on HellaSwag"
if [ -f $hellaswag ]; then flags=(--hellaswag $hellaswag "${flags[@]}")
else say "note    HellaSwag is not measured without dev/data/fetch_hellaswag.sh"; fi

# Without a checkpoint there is nothing that --overwrite could lose.
if [ -e "$out/latest" ]; then run=(./train_gpt2cu --resume --out "$out" "${flags[@]}")
else run=(./train_gpt2cu --out "$out" --overwrite "${data[@]}" "${recipe[@]}" "${flags[@]}"); fi
perform "${launcher[@]}" "${run[@]}"
perform scripts/plot.py "$out" --out "$out/loss.png" || say "note    no curve was drawn"
