#!/usr/bin/env bash
# Trains a GPT-2 from scratch on FineWeb, with llm.c's recipe for its size.
#
#     scripts/train.sh d12                        on all GPUs of this machine
#     LAUNCH="mpirun ..." scripts/train.sh d48 --machines 2 --gpus 8
#     sbatch scripts/slurm.sbatch d12             on 16 GPUs, under Slurm
#     scripts/train.sh d12 --tokens 100000000     a trial: 190 updates on few shards
#     scripts/train.sh d24 --dry-run              the plan and the commands
#
#     --gpus N         GPUs of each machine, one rank each (default: those that are here)
#     --machines N     number of machines (default 1); several need LAUNCH, or Slurm
#     --tokens N       tokens of the whole run (default: the recipe's); a shorter run has a shorter
#                      warm-up
#     --out DIR        the run's directory (default out/d12 ...); a run that it holds is resumed
#     --dry-run        print the plan and the commands, and run nothing. The plan is for H100s, or
#                      for the GPUs that --plan-gpu names
#
# Other flags are passed to train_gpt2cu and override the recipe: --micro-batch 64, for example.
# Missing shards are fetched (dev/data/fetch.sh fineweb). The loss curve goes to DIR/loss.png.
# HellaSwag is measured at each checkpoint if dev/data/fetch.sh hellaswag has fetched it.
# LAUNCH is what starts the ranks instead of scripts/launch.sh: an mpirun, srun or torchrun with its
# flags, as in dev/ranks/README.md.
#
# The recipes are those of llm.c's scripts/run_gpt2_124M.sh, _350M, _774M and _1558M: their updates,
# batches, learning rates and what remains of the rate at the end. All four have sequences of 1,024
# tokens, a linear warm-up over 700 updates, a cosine decay, weight decay 0.1, betas 0.9 and 0.95,
# and clip gradients to a global norm of 1. The micro-batches are ours, for 80 GB.
set -e
cd "$(dirname "$0")/.."
hellaswag=data/hellaswag_val.jsonl
gpus='' machines=1 tokens='' dry_run='' plan_gpu='' fetches=yes sized='' measured=''
flags=() data=() reached='' resumes=''

die() { echo "train.sh: $*" >&2; exit 1; }
count() {                                    # FLAG TEXT MAX
    case $2 in
        [1-9]*) [[ $2 == *[!0-9]* || ${#2} -gt 15 || $2 -gt $3 ]] || return 0 ;;
    esac
    die "$1: '$2' is not a number from 1 to $3"
}
model=${1:-}
case $model in
    d12) updates=18865 batch=524288 lr=6e-4 last=0 micro_batch=32 corpus=10B
         reached="a validation loss of about 3.29, and 29.9% on HellaSwag (discussions/481)" ;;
    d24) updates=60000 batch=524288 lr=3e-4 last=0 micro_batch=32 corpus=100B ;;
    d36) updates=286102 batch=524288 lr=2.5e-4 last=0 micro_batch=16 corpus=100B ;;
    d48) updates=32000 batch=1048576 lr=6e-4 last=0.1 micro_batch=16 corpus=edu
         reached="GPT-2's accuracy on HellaSwag near update 25,000 (discussions/677)" ;;
    *) die "expected a model, d12, d24, d36 or d48, before the flags: scripts/train.sh d12" ;;
esac
case $corpus in
    10B) folder=data/fineweb prefix=fineweb shards=103 ;;
    100B) folder=data/fineweb100B prefix=fineweb shards=1030 ;;
    edu) folder=data/fineweb_edu prefix=edu_fineweb shards=1001 ;;
esac
out=out/$model
shift
while [ $# -gt 0 ]; do
    case $1 in
        --gpus=* | --machines=* | --tokens=* | --out=* | --plan-gpu=*)
            set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
        --gpus | --machines | --tokens | --out | --plan-gpu)
            [ $# -gt 1 ] || die "$1: needs a value" ;;
        --data | --train | --data=* | --train=*) fetches='' ;;
        --layers | --layers=*) sized=yes ;;
        --hellaswag | --hellaswag=*) measured=yes ;;
    esac
    case $1 in
        --gpus) count "$1" "$2" 64; gpus=$2 ;;
        --machines) count "$1" "$2" 512; machines=$2 ;;
        --tokens) count "$1" "$2" 1000000000000; tokens=$2 ;;
        --plan-gpu) plan_gpu=$2 ;;
        --out) out=$2 ;;
        --dry-run) dry_run=yes; shift; continue ;;
        *) flags+=("$1"); shift; continue ;;
    esac
    shift 2
done

# Ranks and micro-batches must divide an update's sequences, a power of two.
gpus=${gpus:-$(nvidia-smi -L 2> /dev/null | grep -c '^GPU' || true)}
[ "$gpus" -gt 0 ] || die "nvidia-smi finds no GPU here; give their number with --gpus N"
ranks=$((machines * gpus)) sequences=$((batch / 1024))
[ $((sequences % ranks)) = 0 ] ||
    die "--gpus: $ranks in all do not divide an update of $sequences sequences; powers of two do"
[ "$machines" = 1 ] || [ -n "$LAUNCH$dry_run" ] ||
    die "--machines: several need LAUNCH='mpirun ...' or Slurm: sbatch scripts/slurm.sbatch $model"
[ $((ranks * micro_batch)) -le $sequences ] || micro_batch=$((sequences / ranks))

steps=$updates warmup=700
[ -z "$tokens" ] || steps=$((tokens / batch))
[ "$steps" -gt 0 ] || die "--tokens: $tokens are less than an update of $batch"
[ "$steps" -ge "$updates" ] || warmup=$((700 * steps / updates))
recipe=(--seq-len 1024 --batch-tokens "$batch" --micro-batch "$micro_batch"
        --steps "$steps" --warmup-tokens $((warmup * batch))
        --lr "$lr" --lr-schedule cosine --final-lr-frac "$last"
        --weight-decay 0.1 --beta1 0.9 --beta2 0.95 --clip 1
        --eval-every 250 --eval-tokens 10485760 --save-every 1000)
[ -n "$sized" ] || recipe=(--init "$model" "${recipe[@]}")

launcher=(scripts/launch.sh -n "$ranks")
[ "$machines" = 1 ] || launcher=(srun --nodes="$machines" --ntasks-per-node="$gpus")
[ -z "$LAUNCH" ] || read -ra launcher <<< "$LAUNCH"

perform() {
    if [ -n "$dry_run" ]; then printf '%q ' "$@" && echo; else "$@"; fi
}
say() { [ -n "$dry_run" ] || echo "$*"; }
plan() {                                     # by whichever trainer is built
    local link=450GB/s program
    [ "$machines" = 1 ] || link=450GB/s:$gpus+50GB/s
    for program in ./train_gpt2cu ./train_gpt2cu-emulated ./train_gpt2; do
        [ -x $program ] || continue
        $program --plan --plan-gpu "${plan_gpu:-h100,$ranks,$link}" "${recipe[@]}" "${flags[@]}"
        return
    done
    echo "note    no plan without a trainer (make)"
}
[ -z "$dry_run" ] || plan

if [ -e "$out/latest" ] || compgen -G "$out/step_*" > /dev/null; then
    resumes=yes                              # it goes on with the data that it began on
    ! compgen -G "$folder/${prefix}_train_*" > /dev/null || fetches=''
    say "resume  the run in $out; --out DIR begins another"
fi
perform make -s train_gpt2cu
if [ -n "$fetches" ]; then
    data=(--data $folder --tokenizer data/gpt2.tiktoken)
    [ -f data/gpt2.tiktoken ] || perform dev/data/fetch.sh vocabulary
    # A shard has 100 million tokens, its tail is dropped, and the last one may be short.
    wanted=$((steps * batch / 100000000 + 2))
    [ "$wanted" -lt $shards ] || wanted=$shards
    here=$(find $folder -name "${prefix}_train_*.bin" 2> /dev/null | wc -l)
    if [ "$here" -lt "$wanted" ] || [ ! -f $folder/${prefix}_val_000000.bin ]; then
        say "data    fetching $wanted training shards and one for validation, 0.2 GB each"
        perform dev/data/fetch.sh fineweb "$wanted" $corpus
    fi
fi
[ -z "$reached" ] || say "llm.c   reached $reached"
if [ -n "$measured" ]; then :
elif [ -f $hellaswag ]; then flags=(--hellaswag $hellaswag "${flags[@]}")
else say "note    HellaSwag is not measured without dev/data/fetch.sh hellaswag"; fi

if [ -n "$resumes" ]; then
    run=(./train_gpt2cu --resume --out "$out" ${tokens:+--steps "$steps"} "${flags[@]}")
else                                         # there is no checkpoint that --overwrite could lose
    run=(./train_gpt2cu --out "$out" --overwrite "${data[@]}" "${recipe[@]}" "${flags[@]}")
fi
perform "${launcher[@]}" "${run[@]}"
perform scripts/plot.py "$out" --out "$out/loss.png" || say "note    no curve was drawn"
