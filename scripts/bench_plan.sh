#!/usr/bin/env bash
# Holds --plan against real updates: the same model and batch on one rank, and on two ranks with
# data parallelism at ZeRO 0 and 1 and with tensor parallelism, each with one thread and with one or
# two sizes of micro-batch. Prints planned beside measured milliseconds, and both orders.
#
#     scripts/bench_plan.sh [ROUNDS]    default 5: about 4 minutes on two idle cores
#
# A plan needs the speed of a core and the link between two ranks. --plan measures the speed itself:
# for two ranks while a second plan keeps the other core busy. dev/ladders/bench_comm.c measures the
# link. Each round measures all of them and all mixtures in turn; medians over the rounds count.
# Neither number comes from the updates that are planned.
set -u
cd "$(dirname "$0")/.." || exit 1
export LC_ALL=C                              # numbers have a point, not a comma
build=${BUILD:-build} rounds=${1:-5} program=$build/train_gpt2-mpi
channels=${CHANNELS:-256} layers=${LAYERS:-4} T=${SEQ_LEN:-256} steps=${STEPS:-8}
if ! command -v mpirun > /dev/null || [ ! -x "$program" ] || [ ! -x "$build/bench_comm" ]; then
    echo "  plan: not measured, needs MPI: make build/train_gpt2-mpi build/bench_comm"
    exit 0
fi
[ "$(id -u)" != 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
work=$(mktemp -d "${TMPDIR:-/tmp}/batchwise.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
./prepare tales --out "$work/data" --tokens 1000000 --seed 1 > /dev/null || exit 1

# NAME RANKS MICRO-BATCH FLAGS...
mixtures="one_4 1 4
one_8 1 8
data_zero0_4 2 4 --zero 0
data_zero1_4 2 4 --zero 1
data_zero1_2 2 2 --zero 1
tensor_4 2 4 --tensor-parallel 2
tensor_8 2 8 --tensor-parallel 2"

median() {                                   # median NUMBER...
    printf '%s\n' "$@" | sort -g | awk '{ x[NR] = $1 }
        END { printf "%.6g\n", NR % 2 ? x[(NR + 1) / 2] : (x[NR / 2] + x[NR / 2 + 1]) / 2 }'
}
value() { sed -n "s/.*\"$1\":\"\\{0,1\\}\\([^,\"}]*\\).*/\\1/p" "$2"; }

# flags MICRO-BATCH FLAGS...: of the program, for a plan and for a run.
flags() {
    local micro=$1
    shift
    echo --data "$work/data" --layers "$layers" --heads $((channels / 64)) --channels "$channels" \
        --seq-len "$T" --micro-batch "$micro" --batch-tokens $((8 * T)) --threads 1 "$@"
}

# planned NAME RANKS MICRO-BATCH FLAGS...: appends the plan's seconds of an update.
planned() {
    local name=$1 ranks=$2 link='' beside
    shift 2
    [ "$ranks" = 1 ] || link=,$(value link "$work/link")
    rm -f "$work/plan"
    if [ "$ranks" = 2 ]; then                    # the other core computes as well
        "$program" $(flags "$@") --plan --plan-gpu "here,2$link" > /dev/null 2>&1 &
        beside=$!
    fi
    "$program" $(flags "$@") --plan --plan-gpu "here,$ranks$link" --log "$work/plan" \
        > /dev/null 2> "$work/errors" || { echo "  $name: $(tail -n 1 "$work/errors")"; exit 1; }
    [ "$ranks" = 1 ] || wait $beside
    value seconds_per_step "$work/plan" >> "$work/$name.planned"
}

# measured NAME RANKS MICRO-BATCH FLAGS...: appends the median seconds of its updates.
measured() {
    local name=$1 ranks=$2 launch=''
    shift 2
    [ "$ranks" = 1 ] || launch="mpirun -n $ranks --bind-to core"
    $launch "$program" $(flags "$@") --steps "$steps" --eval-every 0 --eval-tokens "$T" \
        --log "$work/log" --overwrite < /dev/null > /dev/null 2> "$work/errors" ||
        { echo "  $name: $(tail -n 1 "$work/errors")"; exit 1; }
    grep '"event":"step"' "$work/log" | tail -n +3 > "$work/steps"     # two are a warm-up
    median $(value seconds "$work/steps") >> "$work/$name.measured"
}

for round in $(seq "$rounds"); do
    mpirun -n 2 --bind-to core "$build/bench_comm" < /dev/null > "$work/link" 2> "$work/errors" ||
        { echo "  link: $(tail -n 1 "$work/errors")"; exit 1; }
    cat "$work/link" >> "$work/links"
    while read -r line; do
        planned $line
        measured $line
    done <<< "$mixtures"
done

alpha=$(median $(value alpha "$work/links")) beta=$(median $(value beta "$work/links"))
echo "an update of $((8 * T)) tokens, $layers layers of $channels channels; $rounds rounds"
awk -v a="$alpha" -v b="$beta" 'BEGIN {
    printf "all-reduce between two ranks: %.3g us + %.3g ns a byte\n\n", 1e6 * a, 1e9 * b }'
while read -r name rest; do
    echo "$name $(median $(cat "$work/$name.planned")) $(median $(cat "$work/$name.measured"))"
done <<< "$mixtures" > "$work/table"
awk 'BEGIN { print "mixture         planned ms  measured ms   ratio" }
     { printf "%-15s %10.2f %12.2f %7.2f\n", $1, 1000 * $2, 1000 * $3, $2 / $3
       if ($2 / $3 < 0.8 || $2 / $3 > 1.2) far = far " " $1 }
     END { print far == "" ? "\nall within 20%" : "\nfurther off than 20%:" far }' "$work/table"
for column in 2 3; do
    sort -g -k $column,$column "$work/table" |
        awk -v c=$column '{ text = text " " $1 }
            END { print (c == 2 ? "planned order: " : "measured order:") text }'
done
