#!/usr/bin/env bash
# A step of dev/build_up: builds it, tests it and trains it for seconds. make step calls it, with
# CC, FLAGS and BUILD in the environment.
#
#     step.sh N [FILE]      FILE: your own, in place of ours
#     step.sh --diff N      what the step adds to the one before
set -eu
export LC_ALL=C                              # numbers have a point, not a comma
cd "$(dirname "$0")/../.."
say() { echo "make step: $*" >&2; exit 1; }
ours() { printf '%s\n' dev/build_up/"$(printf %02d "$1")"_*.c; }

diff=
[ "${1:-}" != --diff ] || { diff=yes; shift; }
case ${1:-} in
    [1-9] | 0[1-9] | 10) n=$((10#$1)) ;;
    *) say "N=${1:-}: there is no such step; N=1 ... N=10, see dev/build_up/README.md" ;;
esac
if [ "$diff" ]; then
    before=/dev/null
    [ "$n" = 1 ] || before=$(ours $((n - 1)))
    diff -u "$before" "$(ours "$n")" || [ $? = 1 ]
    exit
fi
file=${2:-$(ours "$n")}
[ -f "$file" ] || say "FILE=$file: there is no such file"
file=$(cd "$(dirname "$file")" && pwd)/$(basename "$file")

dir=$BUILD/build_up program=$BUILD/build_up/$(printf %02d "$n")
data=$dir/tales text=$dir/tales.txt shard=$dir/tales/tales_train_000000.bin
mkdir -p "$dir"
[ -f "$shard" ] || ./prepare tales --tokens 1000000 --overwrite --out "$data" > /dev/null
# The same as a text, for steps 1 ... 8: bytes, and a line's end for the token that ends a tale.
[ -f "$text" ] || tail -c +1025 "$shard" | LC_ALL=C tr -d '\0' | LC_ALL=C tr '\1' '\n' > "$text"

$CC $FLAGS "$file" -o "$program" -lm
$CC $FLAGS -O1 -w -DSTEP="$n" -DSOURCE="\"$file\"" dev/build_up/check.c -o "$program-check" -lm
"$program-check"

if [ "$n" = 10 ]; then              # fifty updates, and the same by the trainer
    rm -f "$program.log"
    ${TRAIN:-./train_gpt2} --data "$data" --layers 2 --heads 2 --channels 32 --seq-len 16 \
        --micro-batch 8 --lr 2e-3 --lr-schedule constant --steps 50 --eval-tokens 128 \
        --log "$program.log" > "$program.said"
    paste <("$program" "$shard" 50 1 | sed -n 's/^update.*loss *//p') \
          <(sed -n 's/^{"event":"step".*"loss":\([^,}]*\).*/\1/p' "$program.log") | awk '
        { apart = $1 > $2 ? $1 - $2 : $2 - $1; if (apart > most) most = apart }
        !(apart <= 1e-4) && !first { first = "update " NR " has the loss " $1 "; expected " $2 }
        END {
            if (NR != 50 && !first) first = NR " losses; expected 50"
            if (first) { print "step 10: against train_gpt2: " first; exit 1 }
            printf "right  fifty losses, against train_gpt2: apart by at most %.7f\n", most
        }'
fi
if [ "$n" -lt 9 ]; then "$program" < "$text"; else "$program" "$shard"; fi | tee "$program.said"
"$program-check" "$program.said" "$text"
