#!/usr/bin/env bash
# How much faster bf16 is than fp32 on this processor: builds both, each in a directory of its own,
# and times their training steps in alternating rounds.
#
#     scripts/bench_precision.sh [ROUNDS [SETTING...]]      default: 5 rounds, "124M, B=4 T=1024"
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/bench_lib.sh
rounds=${1:-5}
shift $(($# > 0))
[ $# -gt 0 ] || set -- "124M, B=4 T=1024"
threads=${OMP_NUM_THREADS:-$(getconf _NPROCESSORS_ONLN)}

for precision in fp32 bf16; do
    make -s BUILD="$build/$precision" PRECISION=$precision "$build/$precision/bench" || exit 1
done

for name in "$@"; do
    echo "$name, threads: $threads, a training step"
    steps=1
    case $name in characters*) steps=20 ;; esac
    start_contestant left "$build/bf16/bench" --rounds $steps "$name"
    start_contestant right "$build/fp32/bench" --rounds $steps "$name"
    if in_turn "$rounds" 600; then
        printf '  fp32 %9.1f ms   bf16 %9.1f ms   bf16 is %.2f times as fast\n' \
            "$right" "$left" "$ratio"
        put_result "{\"name\":\"$name, bf16 beside fp32\",\"threads\":$threads,\"rounds\":$rounds,\
\"fp32_step_ms\":$right,\"bf16_step_ms\":$left,\"ratio\":$ratio}"
    else
        echo "  not compared: $why"
    fi
    stop_contestant left
    stop_contestant right
done
write_bench_json
