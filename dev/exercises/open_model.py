"""What the open exercises are to build, in PyTorch: rotary and post-norm models, Muon; and the same
with a mistake in the backward pass, for open_hints.py. All in float64."""
import math

import gpt2
import torch
import torch.nn.functional as F

MATRICES = ("qkv_w", "att_proj_w", "fc_w", "mlp_proj_w")


# ---------------------------------------------------------------- models

def as_if(value, other):
    """This value, with the gradient that another expression has."""
    return value.detach() + other - other.detach()


def norm(x, p, ln):
    return F.layer_norm(x, x.shape[-1:], p[ln + "_gain"], p[ln + "_bias"], 1e-5)


def rotate(x, first=0, width=None, sign=1.0, halves=False, positions=None):
    """x (B,NH,T,HS): turns pair (2i, 2i+1) at position t by the angle t 10000^(-2i/HS)."""
    T, HS = x.shape[-2:]
    t = torch.arange(T, dtype=x.dtype) + first if positions is None else positions
    power = torch.arange(0, HS, 2, dtype=x.dtype) / (width or HS)
    angle = sign * t[..., None] * 10000.0 ** -power
    a, b = x.chunk(2, -1) if halves else (x[..., 0::2], x[..., 1::2])
    turned = a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()
    return torch.cat(turned, -1) if halves else torch.stack(turned, -1).flatten(-2)


def split_heads(x, NH):
    """(B,T,C) to (B,NH,T,HS)"""
    B, T, C = x.shape
    return x.view(B, T, NH, C // NH).transpose(1, 2)


def join_heads(x):
    return x.transpose(1, 2).flatten(2)


def turned(x, fault):
    """A query or key, turned. A fault in backward: `kept`, or turned `forward` again."""
    return as_if(rotate(x), x if fault == "kept" else rotate(x, sign=-1.0)) if fault else rotate(x)


def add_norm(x, branch, p, ln, fault):
    """LN(x + branch). fault: what is wrong with the gradient that comes back through it."""
    right = norm(x + branch, p, ln)
    if fault == "stream lost":
        return norm(x.detach() + branch, p, ln)
    if fault == "bypassed":
        return as_if(right, norm(x.detach() + branch, p, ln) + x)
    if fault == "not passed":
        return as_if(right, norm((x + branch).detach(), p, ln) + x + branch)
    if fault == "other gain":
        other = p[("ln2" if ln == "ln1" else "ln1") + "_gain"].detach()
        return as_if(right, norm((x + branch).detach(), p, ln)
                     + F.layer_norm(x + branch, x.shape[-1:], other, None, 1e-5))
    return right


def block(name, x, p, NH, fault, seen):
    """fault: (part, what): of queries, keys, values; ln1, ln2; or None."""
    part, what = fault or (None, None)
    parts = ("q", "k") if part == "both" else (part,)
    of = {key: what if key in parts else None for key in ("q", "k", "ln1", "ln2")}
    post = name == "post_norm"
    enter = {ln: (lambda y: y.detach()) if of[ln] == "branch lost" else (lambda y: y)
             for ln in ("ln1", "ln2")}
    q, k, v = gpt2.linear(enter["ln1"](x) if post else norm(x, p, "ln1"), p["qkv_w"],
                          p["qkv_b"]).chunk(3, -1)
    q, k, v = (split_heads(y, NH) for y in (q, k, v))
    if name == "rotary":
        q, k = turned(q, of["q"]), turned(k, of["k"])
        v = as_if(v, rotate(v)) if part == "v" else v
    seen["qkv"] = torch.cat([join_heads(y) for y in (q, k, v)], -1)
    seen["att"] = join_heads(gpt2.attention(q, k, v))
    branch = gpt2.linear(seen["att"], p["att_proj_w"], p["att_proj_b"])
    x_mid = seen["x_mid"] = add_norm(x, branch, p, "ln1", of["ln1"]) if post else x + branch
    seen["fc"] = gpt2.linear(enter["ln2"](x_mid) if post else norm(x_mid, p, "ln2"), p["fc_w"],
                             p["fc_b"])
    branch = gpt2.linear(F.gelu(seen["fc"], approximate="tanh"), p["mlp_proj_w"], p["mlp_proj_b"])
    seen["x_out"] = add_norm(x_mid, branch, p, "ln2", of["ln2"]) if post else x_mid + branch
    return seen["x_out"]


def block_params(p, layer):
    return {key.split(".")[1]: value for key, value in p.items() if key.startswith(f"h{layer}.")}


def run_model(name, p, tokens, cfg, fault=None):
    """What a forward pass keeps, by name, in the order in which it is computed."""
    x = F.embedding(tokens, p["wte"])
    if name != "rotary":
        x = x + p["wpe"][:tokens.shape[1]]
    seen = {"x_in": x}
    for layer in range(cfg.L):
        of_block = {}
        x = block(name, x, block_params(p, layer), cfg.NH, fault, of_block)
        seen.update({f"h{layer}.{key}": value for key, value in of_block.items()})
    seen["lnf"] = norm(x, p, "lnf")
    seen["logits"] = seen["lnf"] @ p["wte"].T
    return seen


# ---------------------------------------------------------------- optimizers

class Adam:
    """One AdamW update of p: moments m and v, and p after it. Matrices decay."""
    def __init__(self, p, m, v, g, o, step):
        g = g * o["g_scale"]
        self.m = o["beta1"] * m + (1 - o["beta1"]) * g
        self.v = o["beta2"] * v + (1 - o["beta2"]) * g * g
        m, v = self.m / (1 - o["beta1"] ** step), self.v / (1 - o["beta2"] ** step)
        decay = o["decay"] if p.dim() == 2 else 0.0
        self.after = p - o["lr"] * (m / (v.sqrt() + o["eps"]) + decay * p)


def orthogonal(x, steps=5, coefficients=(3.4445, -4.7750, 2.0315), norm_by=torch.linalg.norm,
               each=False):
    """Newton-Schulz: singular values of x towards 1."""
    a, b, c = coefficients
    x = x / norm_by(x).clamp_min(1e-300)
    for _ in range(steps):
        if each:
            x = x / x.norm()
        square = x @ x.T if len(x) <= len(x.T) else x.T @ x
        poly = b * square + c * square @ square
        x = a * x + (poly @ x if len(x) <= len(x.T) else x @ poly)
    return x


def muon_size(p):
    return 0.2 * math.sqrt(max(p.shape))


def muon(p, m, g, o):
    """M and W after one Muon update."""
    g = g * o["g_scale"]
    m = o["beta1"] * m + g
    x = orthogonal(g + o["beta1"] * m)
    return m, p - o["lr"] * (muon_size(p) * x + o["decay"] * p)
