#!/usr/bin/env python3
"""Speed of the same model in PyTorch on a GPU, the baseline for train_gpt2.cu.

    bench_cuda.py                                 GPT-2 124M, T=1024, micro-batches 1, 2, 4 ... 64
    bench_cuda.py 16 64                           these micro-batches
    bench_cuda.py --against bench_cuda.json       the model and micro-batches in that file (written
                                                  by build/bench_cuda), and the ratio of speeds
    bench_cuda.py --attention                     attention alone: FlashAttention's and cuDNN's

PyTorch runs with its recommended optimizations: torch.compile over model and loss, once for each
shape; bf16 autocast, and TF32 for fp32 matrix products; scaled_dot_product_attention; fused AdamW;
gradients set to None; the vocabulary padded to a multiple of 64, which makes the classifier faster.
An iteration is an update of one micro-batch, as in train_gpt2.cu: forward, loss, backward, clipping
by the global norm, AdamW, on random tokens. Times are medians, measured with CUDA events, so that
the CPU may run ahead of the GPU. Needs PyTorch 2.
"""
import argparse
import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from gpt2 import Config, adamw, forward, tensor_table, token_losses, torch      # noqa: E402

WARMUPS, REPEATS = 3, 9


def draw_params(cfg, device):
    """GPT-2's initialisation, except the scaled residual projections: only time is measured."""
    params = []
    for name, _, shape in tensor_table(cfg):
        p = torch.randn(shape, device=device) * 0.02 if len(shape) == 2 \
            else torch.full(shape, 1.0 if name.endswith("_gain") else 0.0, device=device)
        params.append(p.requires_grad_())
    return params


def make_loss(params, cfg, device):
    """A function of inputs and targets: their mean loss."""
    def mean_loss(inputs, targets):
        with torch.autocast(device, torch.bfloat16):
            logits = forward(params, inputs, cfg)
        return token_losses(logits.float(), targets).mean()
    return torch.compile(mean_loss, dynamic=False)


def moment(device):
    """A timestamp on the device; seconds() subtracts two of them."""
    if device == "cpu":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds(begin, end, device):
    return end - begin if device == "cpu" else 1e-3 * begin.elapsed_time(end)


def time_updates(cfg, vocab, B, T, device):
    """The median seconds of an update, and the last loss."""
    torch.manual_seed(0)
    from torch import _dynamo
    _dynamo.reset()                          # compile anew: no kernel for dynamic shapes
    params = draw_params(cfg, device)
    optimizer = adamw(params, fused=True)
    loss_of = make_loss(params, cfg, device)
    window = torch.randint(vocab, (B, T + 1), device=device)
    inputs, targets = window[:, :-1].contiguous(), window[:, 1:].contiguous()
    moments = []
    for _ in range(WARMUPS + REPEATS + 1):
        moments.append(moment(device))
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
    last = loss.item()                       # waits for the GPU
    spans = [seconds(a, b, device) for a, b in zip(moments, moments[1:])]
    return statistics.median(spans[WARMUPS:]), last


def bench(cfg, vocab, T, batches, ours, device):
    """Prints a line for each micro-batch. ours: train_gpt2.cu's tokens a second by micro-batch."""
    print(f"PyTorch {torch.__version__}, torch.compile, bf16 autocast, fused AdamW, vocabulary "
          f"padded to {cfg.V}")
    print(f"{'micro-batch':>11} {'ms a step':>10} {'tokens/s':>12} {'train_gpt2.cu':>14} "
          f"{'ratio':>7}")
    for B in batches:
        begin = time.perf_counter()
        try:
            step, loss = time_updates(cfg, vocab, B, T, device)
        except torch.cuda.OutOfMemoryError:
            print(f"{B:11d}   out of memory", flush=True)
            return
        speed, here = B * T / step, ours.get(B)
        beside = f"{here:14.0f} {here / speed:7.2f}" if here else f"{'-':>14} {'-':>7}"
        print(f"{B:11d} {1e3 * step:10.3f} {speed:12.0f} {beside}   loss {loss:.3f}, "
              f"{time.perf_counter() - begin:.0f} s with compilation", flush=True)


def time_attention(attend, q, k, v, device):
    """The median seconds of attention forward, and of its gradients."""
    moments = []
    for _ in range(WARMUPS + REPEATS):
        begin = moment(device)
        out = attend(q, k, v, is_causal=True)
        between = moment(device)
        torch.autograd.grad(out, (q, k, v), out)             # any gradient takes as long
        moments.append((begin, between, moment(device)))
    if device == "cuda":
        torch.cuda.synchronize()
    forward = statistics.median(seconds(a, b, device) for a, b, _ in moments[WARMUPS:])
    return forward, statistics.median(seconds(b, c, device) for _, b, c in moments[WARMUPS:])


def bench_attention(cfg, T, B, device):
    """Prints a line for each kernel: causal attention of one layer, in bf16."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    shape = B, cfg.NH, T, cfg.C // cfg.NH
    q, k, v = (torch.randn(shape, device=device, dtype=torch.bfloat16, requires_grad=True)
               for _ in range(3))
    for name in "FLASH_ATTENTION", "CUDNN_ATTENTION":
        try:
            with sdpa_kernel(getattr(SDPBackend, name)):
                forward, backward = time_attention(
                    torch.nn.functional.scaled_dot_product_attention, q, k, v, device)
        except (AttributeError, RuntimeError) as e:
            print(f"{name}: {str(e).splitlines()[0]}", flush=True)
            continue
        print(f"{name}, {shape}, causal: forward {1e3 * forward:.3f} ms, backward "
              f"{1e3 * backward:.3f} ms a layer", flush=True)


def read_ours(path):
    """The model, and tokens a second by micro-batch, from a file of build/bench_cuda."""
    with open(path) as f:
        ours = json.load(f)
    speeds = {s["B"]: s["tokens_per_s"] for s in ours["steps"] if s["recompute"] == "none"}
    return ours["model"], speeds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("batches", nargs="*", type=int, metavar="B", help="micro-batches")
    parser.add_argument("--against", metavar="FILE", help="bench_cuda.json of train_gpt2.cu")
    parser.add_argument("--attention", action="store_true", help="attention alone")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda",
                        help="cpu: only to test this script")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("bench_cuda.py: PyTorch sees no GPU here")
    if not hasattr(torch, "compile"):
        sys.exit(f"bench_cuda.py: PyTorch {torch.__version__} has no torch.compile; use 2.0+")
    model, ours = {"L": 12, "NH": 12, "C": 768, "V": 50257, "T": 1024}, {}
    if args.against:
        model, ours = read_ours(args.against)
    torch.set_float32_matmul_precision("high")               # TF32
    T, vocab = model["T"], model["V"]
    cfg = Config(model["L"], model["NH"], model["C"], (vocab + 63) // 64 * 64, T)
    if args.attention:
        bench_attention(cfg, T, args.batches[0] if args.batches else 64, args.device)
        return
    batches = args.batches or sorted(ours) or [1, 2, 4, 8, 16, 32, 64]
    bench(cfg, vocab, T, batches, ours, args.device)


if __name__ == "__main__":
    main()
