"""What the open exercises are to build, in PyTorch: rotary and post-norm models, Muon. make check
NAME=post_norm calls it.

    oracle.py NAME RECORD EXPECTED

RECORD is what open.c has recorded of the reader's trainer. EXPECTED gets the same tensors in the
same order as they should be, computed in float64 from the same parameters and tokens.
"""
import array
import math
import os
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "reference"))
import gpt2
import torch
import torch.nn.functional as F

MATRICES = ("qkv_w", "att_proj_w", "fc_w", "mlp_proj_w")
AS_BEFORE = "this is as it was in the unchanged trainer"

# By exercise, and by what is compared: the last part of a name.
HINTS = {
    "post_norm": {
        "qkv": "attention reads x itself: qkv = x qkv_w + qkv_b",
        "x_mid": "x_mid = LN1(x + attention(x))",
        "fc": "the MLP reads x_mid itself: fc = x_mid fc_w + fc_b",
        "x_out": "x_out = LN2(x_mid + MLP(x_mid))",
        "gradient": "s is LayerNorm's backward of dx, with the sum that its forward read, kept "
                    "until now; the stream gets s, and what returns through the branch is added; "
                    "parameters' gradients are added with +="},
    "rotary": {
        "x_in": "x is the token's row of wte alone: no position is added",
        "qkv": "queries (p=0) and keys (p=1) turn, values do not: pair (2i, 2i+1) of a head at "
               "position t by t 10000^(-2i/HS); row 0 of the new rows has position `past`",
        "gradient": "gradients of queries and keys turn back, by the angle -theta; wpe has no part "
                    "in the model, so its gradient stays 0"},
    "muon": {
        "adam_m": "M = beta1 M + G, kept in adam_m, with G = g_scale times the gradient",
        "change": "W -= lr (0.2 sqrt(max(R,C)) X + decay W) with X = G + beta1 M, divided by its "
                  "norm, then five times X = 3.4445 X + (-4.7750 A + 2.0315 A A) X with A = X X^T",
        "adam": "AdamW updates this tensor, as before: Muon is for the matrices of the blocks"},
}


# ---------------------------------------------------------------- models

def norm(x, p, ln):
    return F.layer_norm(x, x.shape[-1:], p[ln + "_gain"], p[ln + "_bias"], 1e-5)


def rotate(x):
    """x (B,NH,T,HS): turns pair (2i, 2i+1) at position t by the angle t 10000^(-2i/HS)."""
    T, HS = x.shape[-2:]
    power = torch.arange(0, HS, 2, dtype=x.dtype) / HS
    angle = torch.arange(T, dtype=x.dtype)[:, None] * 10000.0 ** -power
    a, b = x[..., 0::2], x[..., 1::2]
    turned = a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()
    return torch.stack(turned, -1).flatten(-2)


def block(name, x, p, NH):
    """What a block keeps, by name, in the order in which it is computed."""
    B, T, C = x.shape
    post = name == "post_norm"
    qkv = gpt2.linear(x if post else norm(x, p, "ln1"), p["qkv_w"], p["qkv_b"])
    q, k, v = (y.view(B, T, NH, C // NH).transpose(1, 2) for y in qkv.chunk(3, -1))
    if name == "rotary":
        q, k = rotate(q), rotate(k)
    joined = [y.transpose(1, 2).flatten(2) for y in (q, k, v, gpt2.attention(q, k, v))]
    seen = {"qkv": torch.cat(joined[:3], -1), "att": joined[3]}
    x_mid = x + gpt2.linear(seen["att"], p["att_proj_w"], p["att_proj_b"])
    seen["x_mid"] = x_mid = norm(x_mid, p, "ln1") if post else x_mid
    seen["fc"] = gpt2.linear(x_mid if post else norm(x_mid, p, "ln2"), p["fc_w"], p["fc_b"])
    gelu = F.gelu(seen["fc"], approximate="tanh")
    x_out = x_mid + gpt2.linear(gelu, p["mlp_proj_w"], p["mlp_proj_b"])
    seen["x_out"] = norm(x_out, p, "ln2") if post else x_out
    return seen


def run_model(name, p, tokens, cfg):
    """What a forward pass keeps, and the logits."""
    x = F.embedding(tokens, p["wte"])
    if name != "rotary":
        x = x + p["wpe"][:tokens.shape[1]]
    seen = {"x_in": x}
    for layer in range(cfg.L):
        of_layer = {key.split(".")[1]: value for key, value in p.items()
                    if key.startswith(f"h{layer}.")}
        kept = block(name, x, of_layer, cfg.NH)
        seen.update({f"h{layer}.{key}": value for key, value in kept.items()})
        x = kept["x_out"]
    seen["lnf"] = norm(x, p, "lnf")
    return seen, seen["lnf"] @ p["wte"].T


# ---------------------------------------------------------------- optimizers

def orthogonal(x):
    """Newton-Schulz: singular values of x towards 1."""
    x = x / torch.linalg.norm(x).clamp_min(1e-300)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


class Optimizer:
    """AdamW, and Muon for the matrices of the blocks."""

    def __init__(self, name, params):
        self.name = name
        self.m, self.v = ({key: torch.zeros_like(p) for key, p in params.items()} for _ in "mv")

    def is_muons(self, key):
        return self.name == "muon" and key.split(".")[-1] in MATRICES

    def change(self, key, p, g, step, settings):
        """What is added to a parameter; keeps its moments."""
        lr, beta1, beta2, eps, decay, g_scale = settings
        g = g * g_scale
        if self.is_muons(key):
            m = self.m[key] = beta1 * self.m[key] + g
            size = 0.2 * math.sqrt(max(p.shape))
            return -lr * (size * orthogonal(g + beta1 * m) + decay * p)
        m = self.m[key] = beta1 * self.m[key] + (1 - beta1) * g
        v = self.v[key] = beta2 * self.v[key] + (1 - beta2) * g * g
        m, v = m / (1 - beta1 ** step), v / (1 - beta2 ** step)
        return -lr * (m / (v.sqrt() + eps) + (decay * p if p.dim() == 2 else 0.0))


# ---------------------------------------------------------------- what is expected

class Problem:
    def __init__(self, name, given):
        *sizes, self.B, self.T = (int(x) for x in given["sizes"])
        self.name, self.cfg = name, gpt2.Config(*sizes)
        self.updates = given["updates"].view(-1, 6).tolist()
        self.tokens = given["tokens"].long().view(4, -1)
        table = gpt2.tensor_table(self.cfg)
        pieces = given["params"].split([math.prod(shape) for _, _, shape in table])
        self.params = {key: piece.view(shape) for (key, _, shape), piece in zip(table, pieces)}
        self.last_first = list(self.params)[::-1]

    def hint(self, *kinds):
        return next((HINTS[self.name][k] for k in kinds if k in HINTS[self.name]), AS_BEFORE)

    def kept(self, seen, rows, past=0):
        """Of rows past ... rows-1; the queries, keys and values of all rows."""
        for key, value in seen.items():
            first = 0 if key.endswith("qkv") else past
            yield key, value[:, first:rows], self.hint(key.split(".")[-1])

    def micro_batch(self, i, total):
        """Of one micro-batch; its gradients are added to `total`."""
        B, T = self.B - i, self.T - 2 * i
        tokens, targets = (self.tokens[2*i + k][:B*T].view(B, T) for k in (0, 1))
        leaves = {key: p.detach().requires_grad_() for key, p in self.params.items()}
        seen, logits = run_model(self.name, leaves, tokens, self.cfg)
        losses = gpt2.token_losses(logits, targets)
        grads = torch.autograd.grad(losses.mean(), list(leaves.values()), allow_unused=True)
        yield from self.kept(seen, T)
        yield "loss", losses, self.hint("loss")
        for key, g in zip(leaves, grads):
            total[key] = total.get(key, 0.0) + (torch.zeros_like(leaves[key]) if g is None else g)
        for key in self.last_first:
            yield re.sub(r"(\w+)$", r"d\1", key), total[key], self.hint("gradient")

    def expected(self):
        """In open.c's order: a name, what it should be, a hint."""
        optimizer = Optimizer(self.name, self.params)
        for step, settings in enumerate(self.updates, 1):
            total = {}
            yield from self.micro_batch(0, total)
            yield from self.micro_batch(1, total)
            changes = {key: optimizer.change(key, p, total[key], step, settings)
                       for key, p in self.params.items()}
            for kind, values in (("adam_m", optimizer.m), ("change", changes)):
                for key in self.last_first:
                    hint = self.hint(kind) if optimizer.is_muons(key) else self.hint("adam")
                    yield f"{key}.{kind}", values[key], hint
            self.params = {key: p + changes[key] for key, p in self.params.items()}
        seen, logits = run_model(self.name, self.params, self.tokens[:1, :self.T], self.cfg)
        rows = 0
        while rows < self.T:
            past = rows
            rows = min(self.T, past + 1 + past % 3 if past else (self.T + 1) // 2)
            yield from self.kept(seen, rows, past)
            yield "logits", logits[0, rows - 1], self.hint("logits")


def write_expected(name, record, out):
    given, expected = {}, iter(())
    for line in record:
        words = line.decode().split()
        if words[0] != "tensor":
            out.write(line if words[0] != "fault" else b"end\n")
            continue
        key, role = words[1], words[3]
        values = array.array("d")
        values.fromfile(record, math.prod(map(int, words[5:])))
        if role == "in":
            given[key] = torch.tensor(values, dtype=torch.float64)
            if key == "params":
                expected = Problem(name, given).expected()
        else:
            found, tensor, hint = next(expected)
            assert (found, tensor.numel()) == (key, len(values)), f"open.c wrote {key}, not {found}"
            values = array.array("d", tensor.detach().flatten().tolist())
            out.write(f"hint {hint}\n".encode())
        out.write(line + values.tobytes())


if __name__ == "__main__":
    torch.set_num_threads(1)
    with open(sys.argv[2], "rb") as recorded, open(sys.argv[3], "wb") as wanted:
        write_expected(sys.argv[1], recorded, wanted)
