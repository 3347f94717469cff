#!/usr/bin/env python3
"""The oracle of the open exercises: runs a trainer on a small problem and compares each tensor with
PyTorch. Prints one line, what is wrong or `right`. make check NAME=post_norm calls it.

    oracle.py NAME PROGRAM               PROGRAM is open_check.c, compiled with the trainer
"""
import array
import math
import os
import struct
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "reference"))
import gpt2
import torch
import torch.nn.functional as F

CFG, T, B = gpt2.CASES[0]
TOLERANCE = {"loss": 1e-5, "gradient": 1e-4, "update": 1e-3}   # a mistake shows at 1e-2 or above
GPT2 = {name: getattr(gpt2, name) for name in ("block", "attention", "forward", "adamw")}


# ---------------------------------------------------------------- what is to be built

def post_norm_block(x, p, NH):
    """LN(x + attention(x)), then LN(x + mlp(x))."""
    B, T, C = x.shape
    qkv = gpt2.linear(x, p["qkv_w"], p["qkv_b"]).view(B, T, 3, NH, C // NH)
    y = gpt2.attention(*qkv.permute(2, 0, 3, 1, 4)).transpose(1, 2).reshape(B, T, C)
    x = x + gpt2.linear(y, p["att_proj_w"], p["att_proj_b"])
    x = F.layer_norm(x, (C,), p["ln1_gain"], p["ln1_bias"], 1e-5)
    y = F.gelu(gpt2.linear(x, p["fc_w"], p["fc_b"]), approximate="tanh")
    x = x + gpt2.linear(y, p["mlp_proj_w"], p["mlp_proj_b"])
    return F.layer_norm(x, (C,), p["ln2_gain"], p["ln2_bias"], 1e-5)


def rotate(x):
    """x is (B, NH, T, HS): turns pair (2i, 2i+1) at position t by the angle t 10000^(-2i/HS)."""
    T, HS = x.shape[-2:]
    angle = torch.outer(torch.arange(T, dtype=x.dtype),
                        10000.0 ** (-torch.arange(0, HS, 2, dtype=x.dtype) / HS))
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * angle.cos() - odd * angle.sin(),
                        even * angle.sin() + odd * angle.cos()], -1).flatten(-2)


class Muon:
    """Muon for the matrices of the blocks, AdamW for the rest."""
    def __init__(self, params, weight_decay=0.1):
        blocks = params[2:-2]
        self.matrices = [p for p in blocks if p.dim() == 2]
        self.rest = GPT2["adamw"](params[:2] + [p for p in blocks if p.dim() == 1] + params[-2:])
        self.moments = [torch.zeros_like(p) for p in self.matrices]
        self.decay = weight_decay

    def zero_grad(self):
        self.rest.zero_grad()
        for p in self.matrices:
            p.grad = None

    @torch.no_grad()
    def step(self):
        self.rest.step()
        for p, m in zip(self.matrices, self.moments):
            m.mul_(0.9).add_(p.grad)
            x = p.grad + 0.9 * m
            x = x / x.norm()
            for _ in range(5):
                a = x @ x.T
                x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
            p -= 1e-3 * (0.2 * math.sqrt(max(p.shape)) * x + self.decay * p)


def change(name):
    """Changes gpt2.py's model or optimizer into the exercise's; an empty name changes it back."""
    for function, original in GPT2.items():
        setattr(gpt2, function, original)
    if name == "post_norm":
        gpt2.block = post_norm_block
    elif name == "rotary":
        gpt2.attention = lambda q, k, v: GPT2["attention"](rotate(q), rotate(k), v)
        gpt2.forward = lambda params, inputs, cfg: GPT2["forward"](
            [params[0], 0 * params[1], *params[2:]], inputs, cfg)
    elif name == "muon":
        gpt2.adamw = Muon


# ---------------------------------------------------------------- the comparison

def run(program, problem):
    """Losses, gradients, parameters after the updates, cached logits: of the reader's trainer."""
    params, inputs, targets = problem
    header = [gpt2.MAGIC, gpt2.VERSION, *CFG, T, B, len(params), gpt2.STEPS] + [0] * 5
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in ("problem", "result")]
        with open(paths[0], "wb") as file:
            file.write(struct.pack("<16i", *header) + inputs.tobytes() + targets.tobytes()
                       + params.tobytes())
        done = subprocess.run([program, *paths], capture_output=True, text=True, check=False,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})
        if done.returncode != 0:
            why = done.stderr.strip() or f"signal {-done.returncode}: an index past an end?"
            sys.exit(f"the trainer fails: {why}")
        result = array.array("f")
        with open(paths[1], "rb") as file:
            result.frombytes(file.read())
    pieces = torch.tensor(result, dtype=torch.float64).split(
        [B * T, len(params), len(params), CFG.V])
    return dict(zip(("losses", "grads", "after", "cached"), pieces))


def solve(name, problem):
    change(name)
    solved = {key: torch.tensor(values, dtype=torch.float64)
              for key, values in gpt2.solve(CFG, T, B, *problem)}
    return {"losses": solved["losses"], "grads": solved["grads"], "after": solved["params_after"],
            "cached": solved["logits"].view(B, T, CFG.V)[0, -1]}


def error(ours, theirs):
    return ((ours - theirs).norm() / theirs.norm().clamp_min(1e-30)).item()


def tensors(flat):
    """Named tensors of a flat buffer. The K part of qkv_b is left out: its gradient is 0."""
    table = gpt2.tensor_table(CFG)
    pieces = flat.split([math.prod(shape) for _, _, shape in table])
    for (name, _, _), piece in zip(table, pieces):
        yield name, (torch.cat([piece[:CFG.C], piece[2 * CFG.C:]]) if name.endswith("qkv_b")
                     else piece)


def worst(ours, theirs):
    """The tensor with the largest error, and this error. A tensor that should be 0: how far off."""
    return max(((error(a, b) if b.norm() > 0 else a.norm().item(), name)
                for (name, a), (_, b) in zip(tensors(ours), tensors(theirs))),
               key=lambda pair: math.inf if math.isnan(pair[0]) else pair[0])


def differs(name, ours, theirs, unchanged, params):
    """What is wrong, or None."""
    if name != "muon":
        if error(ours["losses"], unchanged["losses"]) <= TOLERANCE["loss"]:
            return "the losses are those of the unchanged GPT-2: the forward pass is still its own"
        off = error(ours["losses"], theirs["losses"])
        if not off <= TOLERANCE["loss"]:
            return f"forward: the losses differ from PyTorch's, relative error {off:.2g}"
    off, tensor = worst(ours["grads"], theirs["grads"])
    if not off <= TOLERANCE["gradient"]:
        return (f"backward: the gradient of {tensor} differs from PyTorch's, relative error "
                f"{off:.2g}; the losses are right")
    off = error(ours["cached"], theirs["cached"])
    if not off <= TOLERANCE["loss"]:
        return (f"generation: the last token's logits with the key/value cache (first = {T - 1}) "
                f"differ from those of a whole forward pass, relative error {off:.2g}")
    return wrong_update(name, *(x["after"] - params for x in (ours, theirs, unchanged)))


def wrong_update(name, ours, theirs, unchanged):
    if name == "muon" and worst(ours, unchanged)[0] <= TOLERANCE["update"]:
        return "the updates are those of AdamW, for matrices too: Muon is not called"
    off, tensor = worst(ours, theirs)
    if off <= TOLERANCE["update"]:
        return None
    a, b = (dict(tensors(x))[tensor] for x in (ours, theirs))
    times = (a @ b / (b @ b)).item()
    scaled = abs(times - 1) > 0.01 and error(a, times * b) < 0.02
    return (f"update: after {gpt2.STEPS} updates the change of {tensor} "
            + (f"is {times:.3g} times PyTorch's" if scaled else
               f"differs from PyTorch's, relative error {off:.2g}") + "; the gradients are right")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    _, name, program = sys.argv
    problem = gpt2.draw_problem(CFG, T, B)
    fault = differs(name, run(program, problem), solve(name, problem), solve("", problem),
                    torch.tensor(problem[0], dtype=torch.float64))
    print(fault or "right")
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main())
