#!/usr/bin/env bash
# What communication costs on one machine: GPT-2 124M, B=4, with two MPI ranks of one thread each,
# compared with one rank of two threads; with overlap and without. At T=1024, and at T=64, where the
# messages are as long but a step is short. The tokens are random, since only time is measured.
#
#     scripts/bench_ranks.sh [ROUNDS]       rounds of all settings (default 3)
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/bench_lib.sh
rounds=${1:-3} program=$build/train_gpt2-mpi
if ! command -v mpirun > /dev/null || [ ! -x "$program" ]; then
    echo "  several ranks: not measured, MPI is not installed"
    exit 0
fi
[ "$(id -u)" != 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
data=$(mktemp -d "${TMPDIR:-/tmp}/batchwise.XXXXXX") || exit 1
trap 'rm -rf "$data" "$pipes"' EXIT

# A shard: a header of 256 little-endian int32, then random tokens, both bytes below 128.
int32() { printf "\\$(printf %03o $(($1 & 255)))\\$(printf %03o $(($1 >> 8 & 255)))"
          printf "\\$(printf %03o $(($1 >> 16 & 255)))\\$(printf %03o $(($1 >> 24 & 255)))"; }
write_shard() {   # write_shard FILE TOKENS
    { for number in 20240520 1 "$2" 50257 50256; do int32 "$number"; done
      head -c $((4 * 251)) /dev/zero
      head -c $((2 * $2)) /dev/urandom | LC_ALL=C tr '\200-\377' '\000-\177'; } > "$1"
}
write_shard "$data/x_train.bin" 65536
write_shard "$data/x_val.bin" 16384

# run NAME T STEPS RANKS FLAGS...: appends the medians over its updates, in seconds, to
# $data/NAME.seconds and $data/NAME.seconds_comm.
run() {
    local name=$1 T=$2 steps=$3 ranks=$4 launch=""
    shift 4
    [ "$ranks" = 1 ] || launch="mpirun -n $ranks"
    $launch "$program" --data "$data" --init d12 --seq-len "$T" --batch-tokens $((4 * T)) \
        --micro-batch $((4 / ranks)) --threads $((2 / ranks)) --steps "$steps" --eval-every 0 \
        --eval-tokens 64 --log "$data/log" --overwrite "$@" > /dev/null 2> "$data/errors" ||
        { echo "  $name: $(tail -n 1 "$data/errors")"; exit 1; }
    grep '"event":"step"' "$data/log" | tail -n +2 > "$data/steps"     # the first is a warm-up
    for key in seconds seconds_comm; do
        median $(sed -n "s/.*\"$key\":\\([0-9.e-]*\\).*/\\1/p" "$data/steps") >> "$data/$name.$key"
    done
}
of() { awk -v s="$(median $(cat "$data/$1.$2"))" 'BEGIN { printf "%.1f\n", 1000 * s }'; }

measure() {   # measure T STEPS ROUNDS
    local T=$1 rounds=$3 round one two wait turn exposed
    rm -f "$data"/*.seconds*
    for round in $(seq "$rounds"); do
        run one "$T" "$2" 1
        run two "$T" "$2" 2
        run turn "$T" "$2" 2 --no-overlap
    done
    one=$(of one seconds) two=$(of two seconds) wait=$(of two seconds_comm)
    turn=$(of turn seconds) exposed=$(of turn seconds_comm)
    echo "124M, B=4 T=$T, an update: 1 rank x 2 threads $one ms, 2 ranks x 1 thread $two ms"
    awk -v two="$two" -v wait="$wait" -v turn="$turn" -v exposed="$exposed" 'BEGIN {
        printf "  waited for the other rank: %.1f ms, %.1f%%; ", wait, 100 * wait / two
        printf "without overlap %.1f of %.1f ms, %.1f%%\n", exposed, turn, 100 * exposed / turn }'
    put_result "{\"name\":\"124M, B=4 T=$T, 2 ranks\",\"rounds\":$rounds,\"one_rank_ms\":$one,\
\"two_ranks_ms\":$two,\"waited_ms\":$wait,\"no_overlap_ms\":$turn,\
\"no_overlap_waited_ms\":$exposed}"
}
measure 64 8 "$rounds"
measure 1024 3 $(((rounds + 2) / 3))
write_bench_json
