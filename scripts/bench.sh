#!/usr/bin/env bash
# `make bench`: measures this machine, the trainer's matrix products, training steps and their
# layers, and generation; compares with PyTorch and tiktoken where they are installed. The results
# go to bench.json.
#
#     scripts/bench.sh            a few minutes
#     scripts/bench.sh --full     five rounds of everything, every setting of PyTorch: about an hour
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/bench_lib.sh
case ${1:-} in
    "" | --full) ;;
    *) echo "bench.sh: '$1': expected --full or nothing" >&2; exit 1 ;;
esac
: > "$BENCH_RESULTS"
status=0
"$build/bench" ${1:-} machine || status=1
"$build/bench_matmul" ${1:-} || status=1
"$build/bench" ${1:-} characters 124M generate || status=1
scripts/bench_ranks.sh || status=1
scripts/bench_others.sh ${1:-} || status=1
scripts/count_instructions.sh || status=1
write_bench_json
exit $status
