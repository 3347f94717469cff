#!/usr/bin/env bash
# The part of `make bench-cuda` that looks at PyTorch: the same model on the same GPU, beside what
# build/bench_cuda has just written to bench_cuda.json. Without PyTorch nothing is compared, and it
# says so.
#
#     scripts/bench_cuda.sh [B...]        the micro-batches of bench_cuda.json, or these
set -u
bench=$(cd "$(dirname "$0")/.." && pwd)/dev/reference/bench_cuda.py

echo
for python in "${PYTHON:-python3}" /usr/bin/python3; do
    "$python" -c 'import torch; assert torch.cuda.is_available() and torch.compile' 2> /dev/null &&
        exec "$python" "$bench" --against bench_cuda.json "$@"
done
echo "no python3 here has a PyTorch 2 that sees the GPU: not compared"
