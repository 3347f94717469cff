#!/usr/bin/env python3
"""A model of an update of GPT-2 124M on one H100 SXM, launcher by launcher: milliseconds from the
bytes that `bench_cuda --bytes` counts, and from FLOP. Nothing here is measured on a GPU; what is
assumed stands in capitals, with its reason.

    make build/emulated/bench_cuda && scripts/gpu_model.py              the program as it is
    scripts/gpu_model.py --before                     as it was at commit 0479c14
    scripts/gpu_model.py --in-place                   partial sums are added in place
    scripts/gpu_model.py --batch 16 --workspace 32    another micro-batch, another workspace in MB
"""
import argparse
from collections import OrderedDict, deque
from itertools import islice
import math
import subprocess

L, C, T, NH, VP = 12, 768, 1024, 12, 50304
SMS = 132
DATASHEET = 989e12

# A product whose tiles fill all multiprocessors, for ever: 70% of the data sheet, which large
# products reach at 700 W. Each tile begins and ends with work that costs as much as 96 of K.
PRODUCTS, ENDS = 690e12, 96
# FLOP/s of attention, of those it executes, forward and back: what FlashAttention-2 reaches, which
# uses mma.sync too, and adds dq up in memory (Shah et al. 2024, arXiv 2407.08608, head 64, T=1024).
ATTENTION, ATTENTION_BACK = 306e12, 238e12
MEMORY = 2.8e12                        # bytes/s of a copy: 84% of the data sheet's
LAUNCH = 3e-6                          # a kernel begins and ends: most multiprocessors idle
TILE = (128, 256)
L2, PIECE = 50e6, 2*128*64             # bytes: of the cache, of a piece of a head (below)
# A multiprocessor with one block of cross-entropy reads nothing while that waits at its barrier.
ALONE = 1.13


def tiles(m, n):
    return math.ceil(m / TILE[0]) * math.ceil(n / TILE[1])


def filled(blocks, at_once):
    """The part of the slots that blocks fill, in whole waves."""
    return blocks / at_once / math.ceil(blocks / at_once)


def product(m, n, k):
    return 2*m*n*k / (PRODUCTS * k/(k + ENDS) * filled(tiles(m, n), SMS))


def split_product(m, n, k, workspace, in_place):
    """(seconds, parts): the best split along K. Its fp32 partial sums fit in the workspace, and are
    written and read again; or they are added in place, in the L2 cache, in as many parts as pay."""
    best = (math.inf, 1)
    for parts in range(1, max(1, k // 1024 if in_place else workspace // (4*m*n)) + 1):
        part = k / parts
        rate = PRODUCTS * part/(part + ENDS) * filled(tiles(m, n) * parts, SMS)
        sums = 2 * 4*m*n*parts / MEMORY if parts > 1 and not in_place else 0.0
        best = min(best, (2*m*n*k / rate + sums, parts))
    return best


def memory(gigabytes):
    return 1e9 * gigabytes / MEMORY


def last_wave(blocks, at_once):
    """How much longer a copy by so many blocks takes. In a last wave that is not full, a block may
    move twice its share of the bytes."""
    whole, rest = divmod(blocks / at_once, 1.0)
    return (whole + max(rest, 0.5 if rest else 0.0)) / (blocks / at_once)


def counted(bench, batch):
    """{launcher: GB an update}, and its calls"""
    said = subprocess.run([bench, "--bytes", str(batch)], check=True, stdout=subprocess.PIPE,
                          text=True)
    gigabytes = {}
    for line in said.stdout.splitlines()[2:]:
        name, fields = line[2:26].strip(), line[26:].split()
        gigabytes[name] = float(fields[-3]) / 1e3
    return gigabytes


def attention_flop(batch, products):
    """mma of one direction: warps of 32 rows, and columns by 16 up to the diagonal."""
    pairs = sum(32 * 32*(r + 1) for r in range(T // 32))
    return products * 2*(C // NH) * pairs * NH * batch * L


# ---- what attention moves between memory and the L2 cache ----
# A kernel's block works in steps, and a step uses pieces: {(array, piece): written}. A piece is 128
# rows of a head, which are a block's, and pass other blocks.
PIECES = T // 128


def pieces(i, arrays, written=False):
    return {(name, i): written for name in arrays.split()}


def queries_steps(tile, own, result):
    i = PIECES - 1 - tile                        # most keys first
    return ([pieces(i, own)] + [pieces(key, "k v") for key in range(i + 1)]
            + [pieces(i, result, True)])


def keys_steps(tile):
    return ([pieces(tile, "k v")] + [pieces(query, "q dout") for query in range(tile, PIECES)]
            + [pieces(tile, "dk dv", True)])


def one_pass_steps(_):
    """A block takes all keys of a head. dq is in fp32, two pieces, until the last keys came."""
    steps = []
    for tile in range(PIECES):
        steps.append(pieces(tile, "k v"))
        for i in range(tile, PIECES):
            steps.append(pieces(i, "q dout sum0 sum1" if tile else "q dout"))
            steps.append(pieces(i, "dq" if i == tile else "sum0 sum1", True))
        steps.append(pieces(tile, "dk dv", True))
    return steps


def moved(steps, tiles, heads, group):
    """GB an update, through an L2 cache that drops what was used longest ago. Blocks start group by
    group of heads, in a group tile by tile; two are resident on a multiprocessor, and take a step
    in their turn; where one ends, the next begins."""
    waiting = ((h, iter(steps(t))) for begin in range(0, heads, group) for t in range(tiles)
               for h in range(begin, begin + group))
    resident, cached, n = deque(islice(waiting, 2*SMS)), OrderedDict(), 0
    while resident:
        head, block = resident.popleft()
        step = next(block, None)
        resident.extend(islice(waiting, 1) if step is None else [(head, block)])
        for piece, written in (step or {}).items():
            known = cached.pop((head, piece), None)
            n += known is None and not written
            cached[head, piece] = written or bool(known)
            if len(cached) > L2 // PIECE:
                n += cached.popitem(last=False)[1]           # it was written: so it must be now
    return 1e-9 * L*PIECE * (n + sum(cached.values()))


def rows_of(o, gigabytes):
    """[(group, milliseconds, of what)]"""
    n = o.batch * T
    shapes = {"qkv": (C, 3*C), "att_proj": (C, C), "fc": (C, 4*C), "mlp_proj": (4*C, C)}
    forward = L * sum(product(n, oc, c) for c, oc in shapes.values())
    data = L * sum(product(n, c, oc) for c, oc in shapes.values())
    weight = {name: split_product(c, oc, n, o.workspace << 20, o.in_place)
              for name, (c, oc) in shapes.items()}
    chunk = 2*SMS // math.ceil(C/TILE[1]) // 2 * 2*TILE[0]           # rows: two waves (logits.h)
    chunks = [min(chunk, n - i) for i in range(0, n, chunk)]
    classifier = sum(product(m, VP, C) + product(m, C, VP) + product(VP, C, m) for m in chunks)
    array = 2e-9 * n*C * L             # GB of an array (N,C), once a layer
    bias = {"fc": 4, "att_proj": 1, "mlp_proj": 1, "qkv": 3} if o.before else {}
    norm_back = last_wave(512, 3*SMS) if o.before else 1.0
    heads, products = o.batch*NH, 7 if o.before else 5
    group = heads if o.before else max(g for g in range(1, 65) if heads % g == 0)    # heads_grid
    att = moved(lambda tile: queries_steps(tile, "q", "out"), PIECES, heads, group)
    two = (moved(lambda tile: queries_steps(tile, "q dout", "dq"), PIECES, heads, group)
           + moved(keys_steps, PIECES, heads, group))
    att_back = two if o.before else moved(one_pass_steps, 1, heads, group)
    launches = 320 if o.before else 320 - L*(2*3) + 1 - L
    rest = [gigabytes[name] for name in ("AdamW", "global norm", "gradients to zero")]
    splits = ", ".join(f"{name} {parts}" for name, (_, parts) in weight.items())
    return [
        ("block products, forward", forward, f"{L*24*n*C*C/forward/1e12:.0f} TFLOP/s"),
        ("block products, data gradients", data, f"{L*24*n*C*C/data/1e12:.0f} TFLOP/s"),
        ("block products, weight gradients", L * sum(s for s, _ in weight.values()),
         f"split along K: {splits}"),
        ("bias gradients, by kernels", memory(sum(bias.values()) * array),
         ", ".join(bias) + ": read once more" if bias else "none: all are summed on the way"),
        ("classifier's products", classifier, f"{6*n*C*VP/classifier/1e12:.0f} TFLOP/s"),
        ("cross-entropy", memory(gigabytes["cross-entropy in it"]) * (ALONE if o.before else 1.0),
         f"{gigabytes['cross-entropy in it']:.1f} GB"),
        ("attention, forward", max(attention_flop(o.batch, 2) / ATTENTION, memory(att)),
         f"2 products, {att:.1f} GB"),
        ("attention, backward", max(attention_flop(o.batch, products) / ATTENTION_BACK,
                                    memory(att_back)) + memory(2*array + 1e-9*12*n*NH*L),
         f"{products} products, {att_back:.1f} GB (two passes: {two:.1f}); and its rows"),
        ("LayerNorm, forward", memory(gigabytes["layernorm"]), f"{gigabytes['layernorm']:.1f} GB"),
        ("LayerNorm, backward", memory(gigabytes["layernorm, back"]) * norm_back,
         f"{gigabytes['layernorm, back']:.1f} GB, {norm_back:.2f} times"),
        ("AdamW, norm, clearing", memory(sum(rest)), f"{sum(rest):.1f} GB"),
        ("embedding", memory(gigabytes["embedding"] + gigabytes["embedding, back"]), ""),
        ("kernels that begin and end", launches * LAUNCH, f"{launches} of them"),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bench", default="build/emulated/bench_cuda")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workspace", type=int, help="MB for partial sums")
    parser.add_argument("--in-place", action="store_true", help="partial sums cost nothing")
    parser.add_argument("--before", action="store_true")
    o = parser.parse_args()
    o.workspace = o.workspace or (32 if o.before else 128)
    rows = rows_of(o, counted(o.bench, o.batch))
    total = sum(seconds for _, seconds, _ in rows)
    flops = o.batch * T * (6*(12*L*C*C + VP*C) + 12*L*C*T)
    print(f"modelled, not measured: 124M, B={o.batch}, T={T}, bf16, one H100 SXM")
    for name, seconds, basis in rows:
        print(f"  {name:34s}{1e3 * seconds:7.1f} ms  {basis}")
    print(f"  {'sum':34s}{1e3 * total:7.1f} ms  {o.batch * T / total / 1e3:.0f}k tokens/s, "
          f"{100 * flops / total / DATASHEET:.0f}% of the data sheet's FLOP/s")


if __name__ == "__main__":
    main()
