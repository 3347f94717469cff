"""The hints of oracle.py: known mistakes are computed, and the hint is that of the one which gives
the reader's tensor. If none does, the hint is the formula of the tensor."""
import cmath
import math

import gpt2
import torch
from open_model import block_params, muon_size, norm, orthogonal, rotate, split_heads

LOSS = "what the classifier reads, lnf, is right: is model_backward as it was?"
LOGITS = "lnf is right: is model_extend as it was?"
READ_ONLY = "model_update only reads the gradients"
NO_UPDATE_YET = "a forward or backward pass only reads the parameters"
NOT_MOVED = "it has not moved: neither AdamW nor Muon updates it"
BOTH = "AdamW updates this matrix too: it is for the other tensors alone"
TALL = ("this matrix has more rows than columns: A = X^T X, and X becomes 3.4445 X + "
        "X (-4.7750 A + 2.0315 A A)")
NAN = "it is read before it is written, or divided by 0"


def close(a, b):
    return bool((a - b).norm() <= 1e-3 * b.norm()) and bool(b.norm() > 0)


def first(cases, ours):
    """The hint of the first case whose tensor is ours."""
    return next((hint for tensor, hint in cases if close(ours, tensor)), None)


# ---------------------------------------------------------------- forward

def forward(name, params, seen, label, ours, theirs, cfg, where, at):
    if name == "rotary" and ("queries" in label or "keys" in label or "values" in label):
        return of_turn(params, seen, label, ours, theirs, at, cfg, where)
    if ours.isnan().any() and not ours.isnan().all() and where:
        return "a row that is not new is written again, or a new one is not written"
    key = label.split(".")[-1]
    if key == "x_in":
        with_wpe = theirs + params["wpe"][:theirs.shape[1]]
        return first([(with_wpe, "it contains wpe, as in the unchanged GPT-2")], ours) or (
            "x is the row of the token in wte, for each b and t")
    cases, formula = post_norm_cases(params, seen, label, cfg)[key] if name == "post_norm" else (
        [], PRE_NORM[key])
    new = slice(where[0] if where else 0, ours.shape[1])
    return first([(tensor[:, new], hint) for tensor, hint in cases], ours[:, new]) or formula


PRE_NORM = {
    "qkv": "qkv = LN1(x) qkv_w + qkv_b",
    "att": "qkv is right when the forward pass ends: was it already, when attention read it?",
    "x_mid": "x_mid = x + att att_proj_w + att_proj_b",
    "fc": "fc = LN2(x_mid) fc_w + fc_b",
    "x_out": "x_out = x_mid + gelu(fc) mlp_proj_w + mlp_proj_b",
    "lnf": "lnf is the final LayerNorm of the last block's x_out"}


def post_norm_cases(params, seen, label, cfg):
    """For each tensor: mistakes and the formula. All tensors before it are right."""
    layer = int(label.split(".")[0].split("h")[-1]) if "." in label else cfg.L
    x = seen["x_in"] if layer == 0 else seen[f"h{layer - 1}.x_out"]
    if layer == cfg.L:
        return {"lnf": ([(x, "the final LayerNorm is missing: it stays, in model_forward and "
                          "model_extend")], PRE_NORM["lnf"])}
    p = block_params(params, layer)
    att, x_mid, fc = (seen[f"h{layer}.{key}"] for key in ("att", "x_mid", "fc"))
    sum1 = x + gpt2.linear(att, p["att_proj_w"], p["att_proj_b"])
    mlp = gpt2.linear(torch.nn.functional.gelu(fc, approximate="tanh"), p["mlp_proj_w"],
                      p["mlp_proj_b"])
    qkv = gpt2.linear(norm(x, p, "ln1"), p["qkv_w"], p["qkv_b"])
    part = ["queries", "keys", "values"].index(label.split()[0]) if " " in label else 0
    return {
        "qkv": ([(qkv.chunk(3, -1)[part], "this is still pre-norm, the unchanged GPT-2: attention "
                  "reads x itself; ln1 stands behind the addition")], "qkv = x qkv_w + qkv_b"),
        "att": ([], "qkv is right: is attention as it was?"),
        "x_mid": (behind(x, sum1 - x, p, "ln1", "x", "attention(x)", "x_mid"),
                  "x_mid = LN1(x + attention(x))"),
        "fc": ([(gpt2.linear(sum1, p["fc_w"], p["fc_b"]), "the MLP reads x_mid, "
                 "behind ln1, not the sum before it"),
                (gpt2.linear(norm(x_mid, p, "ln2"), p["fc_w"], p["fc_b"]), "the MLP reads x_mid "
                 "itself; ln2 stands behind the second addition"),
                (gpt2.linear(x, p["fc_w"], p["fc_b"]), "the MLP reads x_mid, not x")],
               "fc = x_mid fc_w + fc_b"),
        "x_out": ([(norm(other + mlp, p, "ln2"), f"the second addition is to x_mid, not to {what}")
                   for other, what in ((x, "x"), (sum1, "the sum that ln1 reads"))]
                  + behind(x_mid, mlp, p, "ln2", "x_mid", "MLP(x_mid)", "x_out"),
                  "x_out = LN2(x_mid + MLP(x_mid))")}


def behind(x, branch, p, ln, x_name, branch_name, out):
    """Mistakes with out = ln(x + branch)."""
    other = "ln2" if ln == "ln1" else "ln1"
    return [(x + branch, f"{ln} is missing behind {x_name} + {branch_name}"),
            (x + norm(branch, p, ln), f"{ln} stands in the branch: {out} is the norm of the whole "
             f"sum, {x_name} + {branch_name}"),
            (norm(branch, p, ln), f"the skip connection is lost: {out} is the norm of {x_name} + "
             f"{branch_name}"),
            (norm(x + branch, p, other), f"these are gain and bias of {other}"),
            (norm(x, p, ln), f"{branch_name} is not added"),
            (norm(norm(x + branch, p, ln), p, ln), f"{ln} is applied twice")]


def of_turn(params, seen, label, ours, theirs, at, cfg, where):
    """Queries and keys turn, values do not."""
    part, key = label.split(" of ")
    layer = int(key[1:].split(".")[0])
    x = seen["x_in"] if layer == 0 else seen[f"h{layer - 1}.x_out"]
    p = block_params(params, layer)
    qkv = gpt2.linear(norm(x, p, "ln1"), p["qkv_w"], p["qkv_b"])
    B, T, HS = ours.shape[0], ours.shape[1], cfg.C // cfg.NH
    plain = split_heads(qkv.chunk(3, -1)[["queries", "keys", "values"].index(part)][:, :T], cfg.NH)
    ours = split_heads(ours, cfg.NH)
    if part == "values":
        return first([(rotate(plain), "values do not turn")], ours) or PRE_NORM["qkv"]
    row, new = at[1], 0 if where is None else where[0]
    begin, end = (new, T) if row >= new else (0, new)
    t = torch.arange(T, dtype=torch.float64)
    cases = [
        (plain, f"{part} turn too" + (": with a key/value cache as well" if where else "")),
        (rotate(plain, sign=-1.0), "it is turned the other way: x'_2i = cos x_2i - sin x_2i+1"),
        (rotate(plain, halves=True), "pairs are neighbours, (0,1), (2,3), ...; here channel i "
         "turns with i + HS/2"),
        (rotate(rotate(plain)), f"{part} are turned twice" + (": those of earlier rows were turned "
         "when they were new" if where else "")),
        (rotate(plain, first=1), "positions begin at 0, not at 1"),
        (rotate(plain, width=2*HS), "the exponent is -2i/HS with i the number of the pair"),
        (rotate(plain, width=HS/2), "the exponent is -2i/HS with i the number of the pair, not of "
         "the channel"),
        (rotate(plain, width=cfg.C), "HS is the width of a head, not of all C channels"),
        (rotate(plain, positions=torch.arange(B * T, dtype=t.dtype).view(B, 1, T)),
         "each sequence of the batch begins at position 0"),
        (rotate(plain, positions=t - new), "row 0 of the new rows has position `past`, not 0")]
    right = rotate(plain)[:, :, begin:end]
    cases = [(tensor[:, :, begin:end], hint) for tensor, hint in cases]
    cases = [case for case in cases if not close(case[0], right)]
    return first(cases, ours[:, :, begin:end]) or angle_hint(plain, ours, at, HS)


def angle_hint(plain, ours, at, HS):
    """From one pair: the angle by which it was turned."""
    b, t, h, i = at[0], at[1], at[2] // HS, at[2] % HS // 2
    x, y = (complex(*z[b, h, t, 2*i:2*i + 2].tolist()) for z in (plain, ours))
    if not math.isfinite(abs(y)):
        return NAN
    if abs(abs(y) - abs(x)) > 1e-4 * abs(x):
        return (f"pair {i} of head {h} has not kept its length, so this is no rotation: is an "
                "element overwritten before the other reads it?")
    angle, want = cmath.phase(y / x), t * 10000.0 ** (-2*i / HS)
    turns = f"turns by {angle:.4g}" if abs(angle) > 1e-6 else "does not turn"
    wraps = f" ({math.remainder(want, 2*math.pi):.4g} + a multiple of 2 pi)" if want > 3.14 else ""
    return f"pair {i} of head {h} {turns}, expected {t} * 10000^(-2*{i}/{HS}) = {want:.4g}{wraps}"


# ---------------------------------------------------------------- backward

ROTARY_FAULTS = [((part, kind), f"the gradient of {whole} {what}: the transpose of a rotation "
                  "turns back, by the angle -theta")
                 for part, whole in (("q", "queries"), ("k", "keys"), ("both", "queries and keys"))
                 for kind, what in (("kept", "is not turned back"),
                                    ("forward", "is turned forward again"))] + [
    (("v", "turned"), "the gradient of values is turned back, but values were not turned")]
POST_NORM_FAULTS = [((ln, kind), text.format(ln=ln, x=x, F=F))
                    for ln, x, F in (("ln2", "x_mid", "MLP"), ("ln1", "x", "attention"))
                    for kind, text in [
    ("stream lost", "the gradient of the residual stream is lost at {ln}: {x} gets s, from {ln}'s "
     "backward, and what returns through the {F}"),
    ("branch lost", "what returns through the {F} is not added to the stream's gradient: "
     "residual_backward(dx, dbranch, N*C)"),
    ("bypassed", "the stream bypasses {ln}'s backward: {x} gets s = LN's backward of dx, not dx"),
    ("not passed", "{ln}'s backward is missing before both the {F} and the stream"),
    ("other gain", "{ln}'s backward gets another LayerNorm's gain")]]
FORMULAS = {
    "ln": "does the backward of this LayerNorm read what its forward read (if post-norm, the sum "
          "behind the addition, kept until now), its mean, rstd and gain, and dx as it arrives?",
    "wte": "wte gets two gradients, the classifier's and the embedding's; a token may stand in "
           "several rows, so each is added with +=",
    "w": "the transpose of the layer's input, as forward read it, times the gradient of its output"}


def backward(name, tensor, ours, theirs, before, faulty):
    """theirs: of this micro-batch alone; before: of the one before, or None; faulty(fault): all
    gradients of this micro-batch with a fault of open_model.py."""
    total = theirs if before is None else theirs + before
    if before is not None and close(ours, theirs):
        return "the first micro-batch's gradient is lost: add with +=, and clear nothing"
    if name == "rotary" and tensor == "wpe":
        return "wpe has no part in the model any more, so its gradient stays 0"
    if ours.isnan().any():
        return NAN
    if not ours.any() or (before is not None and close(ours, before)):
        return "nothing is added to it"
    if close(ours, total + theirs):
        return "it is added twice"
    faults = {"rotary": ROTARY_FAULTS, "post_norm": POST_NORM_FAULTS, "muon": []}[name]
    earlier = 0 if before is None else before
    other = tensor.replace("ln1", "ln2") if "ln1" in tensor else tensor.replace("ln2", "ln1")
    if other != tensor and close(ours, faulty(None)[other] + earlier):
        return f"this is the gradient of {other}: the two have changed places"
    return (first(((faulty(fault)[tensor] + earlier, hint) for fault, hint in faults), ours)
            or FORMULAS["wte" if tensor == "wte" else "ln" if "ln" in tensor else "w"])


# ---------------------------------------------------------------- updates

class Updated:
    """One tensor of one update: what the reader's trainer made of p, and of adam_m."""

    def __init__(self, matrix, p, m, g, o, number, adam, new_m, new_p):
        self.matrix, self.p, self.m, self.g, self.o = matrix, p, m, g, o
        self.number, self.adam, self.new_m, self.new_p = number, adam, new_m, new_p

    def moment_hint(self, at):
        o, g, m = self.o, self.g * self.o["g_scale"], self.m
        if not self.matrix and o["g_scale"] and close(self.new_m - o["beta1"] * m,
                                                      (1 - o["beta1"]) * self.g):
            return "g_scale is forgotten: AdamW gets it for the other tensors, as before"
        if not self.matrix:
            return "AdamW updates this tensor: Muon is for the matrices of the blocks alone"
        if self.new_m.isnan().any():
            return NAN
        right = o["beta1"] * m + g
        cases = [(o["beta1"] * m + self.g, "g_scale is forgotten: G is the clipped gradient, "
                  "g_scale times grads"),
                 (self.adam.m, "these are those of AdamW: Muon is not called for it, or M is a "
                  "running mean; M = beta1 M + G, without 1 - beta1"),
                 (o["beta1"] * self.adam.m + g, BOTH),
                 (o["beta1"] * right + (1 - o["beta1"]) * g, BOTH),
                 (g + o["beta1"] * right, "this is X: M stays without the Nesterov step")]
        cases += [(beta * m + g, f"this is {beta} M + G: the factor is o.beta1, not a constant")
                  for beta in (0.9, 0.95, 0.99)]
        if bool((self.new_p == self.p).all()):
            return NOT_MOVED
        if not self.new_m.any() or bool((self.new_m == m).all()):
            return "M is not kept in adam_m"
        return first(cases, self.new_m) or "M = beta1 M + G goes on from the update before, from 0"

    def change_hint(self, at):
        change = self.new_p - self.p
        if not change.isfinite().all():
            return ("an X of zeros stays 0: 0/0 is nan" if self.o["g_scale"] == 0 else TALL
                    if self.matrix and len(self.p) > len(self.p.T) else
                    "is X divided by its norm, the root of the sum of all squares? Else it grows")
        if not change.any():
            return NOT_MOVED
        if not self.matrix:
            return self.adam_hint(change)
        decayed = self.p * (1 - self.o["lr"] * self.o["decay"])
        if (close(self.new_p - decayed, self.adam.after - decayed)
                and (self.adam.after - decayed).norm() > 1e-5 * change.norm()):
            return "the update is that of AdamW: Muon is not called for this matrix"
        return self.muon_hint(change)

    def adam_hint(self, change):
        if self.p.dim() == 1 and close(change - (self.adam.after - self.p),
                                       -self.o["lr"] * self.o["decay"] * self.p):
            return "gains and biases do not decay"
        without = self.adam.after - self.p + self.o["lr"] * self.o["decay"] * self.p
        if self.p.dim() == 2 and close(change, without):
            return "the decay is forgotten: matrices decay, embeddings too"
        return "AdamW alone updates this tensor, with o as it is but for the decay"

    def muon_hint(self, change):
        """Which X it is, with which factors of X and W: change = -a X - b W."""
        o, g = self.o, self.g * self.o["g_scale"]
        m = o["beta1"] * self.m + g
        x = g + o["beta1"] * m
        adams = self.adam.after - self.p
        best, hint_of_best, of_best = 6e-3, None, None
        for tensor, hint in self.directions(x, g, m):
            for extra in (0 * adams, adams) if tensor.isfinite().all() else ():
                basis = torch.stack([tensor.flatten(), self.p.flatten()], 1)
                wanted = (extra - change).reshape(-1, 1)
                factors = torch.linalg.lstsq(basis, wanted).solution
                rest = ((basis @ factors - wanted).norm() / change.norm()).item()
                if rest < best / 3:                    # the right X comes first
                    best, of_best = rest, factors.flatten().tolist()
                    hint_of_best = BOTH if extra.any() else hint or ""
        if hint_of_best is None:
            return TALL if len(self.p) > len(self.p.T) else (
                "X is wrong: X / |X|, then five times A = X X^T and X = 3.4445 X + (-4.7750 A + "
                "2.0315 A A) X")
        return hint_of_best or self.factor_hint(*of_best)

    def directions(self, x, g, m):
        corrected = m / (1 - self.o["beta1"] ** (self.number + 1))
        yield orthogonal(x), None
        if not g.any():
            return
        yield orthogonal(g + self.o["beta1"] * corrected), "M has no bias correction"
        yield orthogonal(m), "X is M: the Nesterov step is missing, X = G + beta1 M"
        yield orthogonal(g), "X is G: X = G + beta1 M"
        for steps in (0, 1, 2, 3, 4, 6, 7, 8, 10):
            yield orthogonal(x, steps), f"X went through {steps} iterations, expected 5"
        for abc in ((1.5, -0.5, 0.0), (2.0, -1.5, 0.5), (3.4445, -4.775, 0.0),
                    (3.4445, 4.775, 2.0315), (1.875, -1.25, 0.375)):
            yield orthogonal(x, coefficients=abc), ("the coefficients are 3.4445, -4.7750 and "
                                                    "2.0315, of X, A X and A A X")
        yield orthogonal(x, norm_by=torch.ones_like), "X is not divided by its norm"
        yield orthogonal(x, norm_by=lambda y: y.norm()**2), ("X is divided by the sum of squares: "
                                                             "the norm is its root")
        yield orthogonal(x, norm_by=lambda y: y.abs().max()), "X is divided by its largest element"
        again = orthogonal(orthogonal(x, 0), each=True)
        for tensor in (again, again / again.norm()):
            yield tensor, "X is divided by its norm once, before the five iterations"
        for more in (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2):
            yield orthogonal(x, norm_by=lambda y, more=more: y.norm() + more), (
                f"{more:g} is added to the norm: a small gradient then moves the matrix less")

    def factor_hint(self, of_x, of_w):
        """X is right; what multiplies it and W?"""
        lr, decay, size = self.o["lr"], self.o["decay"], muon_size(self.p)
        if abs(of_x) <= 0.01 * lr * size:
            return ("X has no part in it, though G is not 0: nothing is added to the norm, which "
                    "is small here, and squares are summed in double")
        if abs(of_x / (lr * size) * lr * decay - of_w) <= 0.01 * abs(of_w):
            return f"the rate is {of_x / size:.4g}, expected o.lr, {lr:g}"
        if abs(of_w - lr * decay) <= 0.01 * lr * decay:
            if abs(of_x - lr * size * (1 - lr * decay)) <= 1e-3 * of_x:
                return "the decay is of the moved weights: W is the one before the update"
            return (f"X is multiplied by {of_x:.4g}, expected lr 0.2 sqrt(max(R,C)) = "
                    f"{lr * size:.4g} (lr {lr:g}, R {len(self.p)}, C {len(self.p.T)})")
        if abs(of_w) <= 0.01 * lr * decay:
            return "the decay is forgotten: lr decay W is subtracted too"
        return (f"W decays by {of_w:.4g} W, expected lr * o.weight_decay = {lr * decay:.4g} (lr "
                f"{lr:g})")
