#!/usr/bin/env bash
# The PyTorch part of `make bench GPU=1`: times the same model on the same GPU in PyTorch and
# compares it with bench_cuda.json, which build/bench_cuda has just written.
#
#     scripts/bench_cuda.sh [B...]        micro-batches (default: those in bench_cuda.json)
set -u
bench=$(cd "$(dirname "$0")/.." && pwd)/dev/reference/bench_cuda.py

echo
for python in "${PYTHON:-python3}" /usr/bin/python3; do
    "$python" -c 'import torch; assert torch.cuda.is_available() and torch.compile' 2> /dev/null &&
        exec "$python" "$bench" --against bench_cuda.json "$@"
done
echo "no PyTorch 2 here sees a GPU: not compared"
