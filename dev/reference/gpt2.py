#!/usr/bin/env python3
"""GPT-2 in PyTorch: the reference for train_gpt2.c's results, and the baseline for its speed.

    gpt2.py fixtures --out tests/fixtures      write small problems and their results
    gpt2.py check tests/fixtures/*.bin         compute the results again and compare
    gpt2.py bench --threads 2 --steps 50       time 50 training steps for each line on stdin

Works with PyTorch 1.13 and 2.x. See README.md in this folder for the layout of a fixture.
"""
import argparse
import array
import math
import os
import random
import re
import struct
import sys
import time
from collections import namedtuple

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    sys.exit("gpt2.py: needs a python3 with PyTorch; apt-get install python3-torch and run "
             "/usr/bin/python3, or pip install torch")

Config = namedtuple("Config", "L NH C V P")     # layers, heads, channels, vocabulary, positions

# ---------------------------------------------------------------- model

# The tensors of a block in flat order: our name, Hugging Face's key, shape in units of C.
# Matrices are (in, out), so that y = x @ w + b.
BLOCK = [
    ("ln1_gain", "ln_1.weight", (1,)),
    ("ln1_bias", "ln_1.bias", (1,)),
    ("qkv_w", "attn.c_attn.weight", (1, 3)),
    ("qkv_b", "attn.c_attn.bias", (3,)),
    ("att_proj_w", "attn.c_proj.weight", (1, 1)),
    ("att_proj_b", "attn.c_proj.bias", (1,)),
    ("ln2_gain", "ln_2.weight", (1,)),
    ("ln2_bias", "ln_2.bias", (1,)),
    ("fc_w", "mlp.c_fc.weight", (1, 4)),
    ("fc_b", "mlp.c_fc.bias", (4,)),
    ("mlp_proj_w", "mlp.c_proj.weight", (4, 1)),
    ("mlp_proj_b", "mlp.c_proj.bias", (1,)),
]


def tensor_table(cfg):
    """Every tensor of the model in flat order: (our name, Hugging Face's key, shape)."""
    table = [("wte", "transformer.wte.weight", (cfg.V, cfg.C)),
             ("wpe", "transformer.wpe.weight", (cfg.P, cfg.C))]
    for layer in range(cfg.L):
        for name, key, units in BLOCK:
            shape = tuple(u * cfg.C for u in units)
            table.append((f"h{layer}.{name}", f"transformer.h.{layer}.{key}", shape))
    return table + [("lnf_gain", "transformer.ln_f.weight", (cfg.C,)),
                    ("lnf_bias", "transformer.ln_f.bias", (cfg.C,))]


def attention(q, k, v):
    """Causal attention; q, k, v are (B, NH, T, HS)."""
    if hasattr(F, "scaled_dot_product_attention"):           # PyTorch 2.x: one fused kernel
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    T, HS = q.shape[-2:]
    future = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.transpose(-2, -1)) / math.sqrt(HS)
    return scores.masked_fill(future, -math.inf).softmax(-1) @ v


def linear(x, w, b):
    """y = x @ w + b over the last dimension, as one matrix product."""
    return torch.addmm(b, x.reshape(-1, w.shape[0]), w).view(*x.shape[:-1], w.shape[1])


def block(x, p, NH):
    """x + attention(norm(x)), then x + mlp(norm(x)); x is (B, T, C), p the block's tensors."""
    B, T, C = x.shape
    y = F.layer_norm(x, (C,), p["ln1_gain"], p["ln1_bias"], 1e-5)
    qkv = linear(y, p["qkv_w"], p["qkv_b"]).view(B, T, 3, NH, C // NH)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)                     # each (B, NH, T, HS)
    y = attention(q, k, v).transpose(1, 2).reshape(B, T, C)
    x = x + linear(y, p["att_proj_w"], p["att_proj_b"])
    y = F.layer_norm(x, (C,), p["ln2_gain"], p["ln2_bias"], 1e-5)
    y = F.gelu(linear(y, p["fc_w"], p["fc_b"]), approximate="tanh")
    return x + linear(y, p["mlp_proj_w"], p["mlp_proj_b"])


def forward(params, inputs, cfg):
    """Logits (B, T, V). params: a list of tensors in flat order; inputs (B, T)."""
    wte, wpe, *blocks, lnf_gain, lnf_bias = params
    names = [name for name, _, _ in BLOCK]
    x = F.embedding(inputs, wte) + wpe[:inputs.shape[1]]
    for i in range(0, len(blocks), len(names)):
        x = block(x, dict(zip(names, blocks[i:i + len(names)])), cfg.NH)
    x = F.layer_norm(x, (cfg.C,), lnf_gain, lnf_bias, 1e-5)
    return x @ wte.T                                         # weight tying


def token_losses(logits, targets):
    """Cross-entropy of each token in nats, (B*T)."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")


# ---------------------------------------------------------------- optimizer

def adamw(params, weight_decay=0.1, **how):
    """AdamW with decay on matrices only, embeddings included; gains and biases do not decay."""
    groups = [{"params": [p for p in params if p.dim() == 2], "weight_decay": weight_decay},
              {"params": [p for p in params if p.dim() == 1], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, **how)


def clip(params, limit=1.0):
    """Global-norm clipping: scales all gradients if their norm exceeds limit. Returns the norm."""
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(p.grad)
                                                 for p in params])).item()
    if norm > limit:            # PyTorch's own helper divides by norm + 1e-6
        for p in params:
            p.grad.mul_(limit / norm)
    return norm


# ---------------------------------------------------------------- fixtures

MAGIC, VERSION, STEPS = 0x62775446, 1, 5
CASES = [   # (config, T, B), odd shapes on purpose
    (Config(L=2, NH=3, C=24, V=61, P=7), 7, 3),
    (Config(L=1, NH=1, C=5, V=13, P=1), 1, 2),
    (Config(L=3, NH=2, C=32, V=257, P=24), 19, 2),           # T shorter than the positions
]


def draw_problem(cfg, T, B):
    """Parameters and two batches, from Python's own generator: the same with every PyTorch.

    Weights have a standard deviation of 1/sqrt(C), not GPT-2's 0.02. At these widths 0.02 would
    make attention nearly uniform, and the gradients of q and k too small to show an error. Gains
    and biases differ from 1 and 0, so that an error in using them shows.
    """
    rng = random.Random(f"batchwise {cfg.L} {cfg.C}")
    params = []
    for name, _, shape in tensor_table(cfg):
        mean = 1.0 if name.endswith("_gain") else 0.0
        deviation = cfg.C ** -0.5 if len(shape) == 2 else 0.1
        params += [rng.gauss(mean, deviation) for _ in range(math.prod(shape))]
    inputs, targets = [], []
    for _ in range(2 * B):                                   # two batches of B windows
        window = [rng.randrange(cfg.V) for _ in range(T + 1)]
        inputs += window[:-1]
        targets += window[1:]
    return array.array("f", params), array.array("i", inputs), array.array("i", targets)


def solve(cfg, T, B, flat, inputs, targets):
    """The results, in float64 so that their own rounding is negligible. Returns flat lists."""
    flat = torch.tensor(flat, dtype=torch.float64)
    shapes = [shape for _, _, shape in tensor_table(cfg)]
    pieces = flat.split([math.prod(shape) for shape in shapes])
    params = [p.clone().view(s).requires_grad_() for p, s in zip(pieces, shapes)]
    inputs = torch.tensor(inputs, dtype=torch.long).view(2, B, T)
    targets = torch.tensor(targets, dtype=torch.long).view(2, B, T)
    optimizer = adamw(params)
    step_losses, grad_norms = [], []
    for step in range(STEPS):                                # alternate between the two batches
        optimizer.zero_grad()
        logits = forward(params, inputs[step % 2], cfg)
        losses = token_losses(logits, targets[step % 2])
        losses.mean().backward()
        if step == 0:
            first = [logits.detach(), losses.detach(), join([p.grad for p in params])]
        step_losses.append(losses.mean().item())
        grad_norms.append(clip(params))
        optimizer.step()
    logits, losses, grads = [t.flatten().tolist() for t in first]
    return [("logits", logits), ("losses", losses), ("grads", grads),
            ("step_losses", step_losses), ("grad_norms", grad_norms),
            ("params_after", join(params).tolist())]


def join(tensors):
    return torch.cat([t.detach().flatten() for t in tensors])


def write_fixtures(out):
    os.makedirs(out, exist_ok=True)
    for cfg, T, B in CASES:
        params, inputs, targets = draw_problem(cfg, T, B)
        header = [MAGIC, VERSION, *cfg, T, B, len(params), STEPS] + [0] * 5
        path = os.path.join(out, f"gpt2_L{cfg.L}_C{cfg.C}.bin")
        with open(path, "wb") as f:
            f.write(struct.pack("<16i", *header))
            for values in inputs, targets, params:
                f.write(values.tobytes())
            for _, values in solve(cfg, T, B, params, inputs, targets):
                f.write(array.array("f", values).tobytes())
        print(f"{path}: {len(params)} parameters, {os.path.getsize(path)} bytes")


# ---------------------------------------------------------------- check

def read_fixture(path):
    """Config, T, B and the file's sections by name."""
    with open(path, "rb") as f:
        data = f.read()
    _, _, L, NH, C, V, P, T, B, n, _ = struct.unpack_from("<11i", data)
    sizes = [("inputs", "i", 2 * B * T), ("targets", "i", 2 * B * T), ("params", "f", n),
             ("logits", "f", B * T * V), ("losses", "f", B * T), ("grads", "f", n),
             ("step_losses", "f", STEPS), ("grad_norms", "f", STEPS), ("params_after", "f", n)]
    sections, at = {}, 64
    for name, kind, size in sizes:
        sections[name] = struct.unpack_from(f"<{size}{kind}", data, at)
        at += 4 * size
    return Config(L, NH, C, V, P), T, B, sections


def relative_error(a, b):
    """|a - b| / |b| by the Euclidean norm."""
    difference = math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b)))
    size = math.sqrt(sum(y * y for y in b))
    return difference / size if size > 0 else (0.0 if difference == 0 else math.inf)


def check_fixture(path):
    """None if the file is what `fixtures` writes, else what differs."""
    cfg, T, B, stored = read_fixture(path)
    params, inputs, targets = draw_problem(cfg, T, B)
    if (tuple(inputs), tuple(targets)) != (stored["inputs"], stored["targets"]):
        return "its tokens differ from draw_problem's"
    again = [("params", list(params))] + solve(cfg, T, B, stored["params"], inputs, targets)
    for name, values in again:
        pieces = [(name, slice(None))]
        if name in ("params", "grads", "params_after"):      # by tensor: a large one hides no other
            pieces = tensor_slices(name, cfg)
        for piece, span in pieces:
            error = relative_error(stored[name][span], values[span])
            if not error <= 1e-6:     # float32 storage: 3e-8; order of sums: less
                return f"{piece} differs by {error:.1e} of its norm"
    return None


def tensor_slices(section, cfg):
    start = 0
    for name, _, shape in tensor_table(cfg):
        yield f"{section} of {name}", slice(start, start + math.prod(shape))
        start += math.prod(shape)


def check(paths):
    """Prints one line a test, like the C tests. Returns the exit status."""
    failed = 0
    for path in paths:
        name = os.path.basename(path).rsplit(".", 1)[0]
        wrong = check_fixture(path)
        print(f"FAIL reference_{name}: {wrong}" if wrong else f"ok reference_{name}")
        failed += wrong is not None
    return 1 if failed else 0


# ---------------------------------------------------------------- bench

def fair_environment(threads):
    """Restarts this program if the environment would slow PyTorch's matrix products down.

    OpenBLAS reads these variables when it is loaded, so they must be set before the program starts.
    A forced OPENBLAS_CORETYPE halves its speed on AVX-512 machines.
    """
    wanted = dict(os.environ, OMP_NUM_THREADS=str(threads), OPENBLAS_NUM_THREADS=str(threads))
    kind = wanted.pop("OPENBLAS_CORETYPE", None)
    if kind:
        print(f"gpt2.py: OPENBLAS_CORETYPE={kind} removed for a fair comparison", file=sys.stderr)
    if wanted != dict(os.environ):
        sys.stderr.flush()
        os.execve(sys.executable, [sys.executable] + sys.argv, wanted)


def uses_reference_blas():
    """Whether PyTorch's matrix products on a CPU are those of the reference BLAS."""
    try:
        with open("/proc/self/maps") as f:                   # loaded libraries (Linux)
            loaded = f.read()
    except OSError:
        return False
    return "/libblas.so" in loaded and not re.search("libmkl|libopenblas|libblis", loaded)


def fastest_adamw(params):
    """Fused AdamW if this PyTorch has it for this device, else the foreach one."""
    try:
        optimizer = adamw(params, fused=True)
        for p in params:
            p.grad = torch.zeros_like(p)
        optimizer.step()                                     # some versions fail only here
        return adamw(params, fused=True)
    except (RuntimeError, TypeError):
        return adamw(params, foreach=True)


def random_problem(cfg, B, T, device):
    """Parameters like GPT-2's initialisation, a batch of random tokens, and its targets."""
    torch.manual_seed(0)
    params = []
    for name, _, shape in tensor_table(cfg):
        p = (torch.randn if len(shape) == 2 else torch.zeros)(shape, device=device) * 0.02
        params.append((p + 1 if name.endswith("_gain") else p).requires_grad_())
    window = torch.randint(cfg.V, (B, T + 1), device=device)
    return params, window[:, :-1].contiguous(), window[:, 1:].contiguous()


def bench_step(args, cfg):
    """A function that runs one training iteration and returns its loss, a tensor: on a GPU nothing
    waits for it."""
    params, inputs, targets = random_problem(cfg, args.batch, args.seq_len, args.device)
    optimizer = fastest_adamw(params)

    def mean_loss():
        with torch.autocast(args.device, torch.bfloat16, enabled=args.dtype == "bf16"):
            logits = forward(params, inputs, cfg)
        return token_losses(logits.float(), targets).mean()

    if args.compile:
        if not hasattr(torch, "compile"):
            sys.exit(f"gpt2.py: --compile: PyTorch {torch.__version__} lacks it; use 2.0 or newer")
        mean_loss = torch.compile(mean_loss, dynamic=False)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = mean_loss()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        return loss

    return step


def bench(args):
    """For each line on stdin, prints the milliseconds of a step: a round of scripts/bench.py."""
    fair_environment(args.threads)
    if args.device == "cuda":
        if not torch.cuda.is_available():
            sys.exit("gpt2.py: bench: PyTorch sees no GPU here")
        torch.set_float32_matmul_precision("high")           # TF32
    elif uses_reference_blas():
        sys.exit("gpt2.py: bench: PyTorch uses the reference BLAS, many times slower than "
                 "OpenBLAS; apt-get install libopenblas0-pthread")
    torch.set_num_threads(args.threads)
    cfg = Config(args.layers, args.heads, args.channels, args.vocab, args.seq_len)
    step = bench_step(args, cfg)
    for _ in sys.stdin:
        start = time.perf_counter()
        for _ in range(args.steps):
            loss = step()
        loss.item()                                          # waits for a GPU
        print(f"{1e3 * (time.perf_counter() - start) / args.steps:.6g}", flush=True)


# ---------------------------------------------------------------- command line

def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    p = commands.add_parser("fixtures", help="write the fixtures for the C test")
    p.add_argument("--out", default="tests/fixtures", metavar="DIR")
    p = commands.add_parser("check", help="compute the results again and compare")
    p.add_argument("files", nargs="+", metavar="FILE")
    p = commands.add_parser("bench", help="time training steps for each line on stdin",
                            formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for flag, value, text in [
            ("--layers", 4, "124M: 12"), ("--heads", 4, "124M: 12"),
            ("--channels", 128, "124M: 768"), ("--vocab", 257, "124M: 50257"),
            ("--seq-len", 64, "tokens a sequence"),
            ("--batch", 12, "sequences an iteration"), ("--threads", os.cpu_count(), "cores"),
            ("--steps", 50, "steps a line")]:
        p.add_argument(flag, type=int, default=value, metavar="N", help=text)
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where it runs")
    p.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32", help="autocast to bf16")
    p.add_argument("--compile", action="store_true", help="torch.compile (2.x)")
    args = parser.parse_args()
    if args.command == "fixtures":
        write_fixtures(args.out)
    elif args.command == "check":
        sys.exit(check(args.files))
    elif args.channels % args.heads:
        parser.error(f"--heads: {args.heads} does not divide the {args.channels} channels")
    else:
        bench(args)


if __name__ == "__main__":
    main()
