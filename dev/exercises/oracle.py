#!/usr/bin/env python3
"""The oracle of the open exercises: runs a trainer on small problems and compares each tensor with
PyTorch, in the order in which it is computed. Prints one line: the first element that differs and
a hint, or `right`. make check NAME=post_norm calls it.

    oracle.py NAME PROGRAM               PROGRAM is open_check.c, compiled with the trainer

A hint is not guessed: known mistakes are computed too, and the one that gives the reader's tensor
is named (open_hints.py). An update is computed from the reader's own parameters and gradients,
which were compared before it, so that errors do not add up.
"""
import array
import functools
import os
import struct
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(HERE, "..", "reference"))
import gpt2
import open_hints as hints
import torch
from open_model import Adam, MATRICES, muon, run_model

# Of the root mean square of a tensor. A mistake shows at 1e-2 or above.
FORWARD, BACKWARD, UPDATE = 1e-4, 2e-4, 1e-3

# Config, T, B. Odd lengths, one beyond 64; heads of 8, 16, 10 and 72 channels. The last
# is a long text, for generation alone.
PROBLEMS = [(gpt2.Config(L=2, NH=3, C=24, V=31, P=7), 7, 3),
            (gpt2.Config(L=1, NH=1, C=16, V=13, P=80), 75, 2),
            (gpt2.Config(L=5, NH=1, C=10, V=17, P=6), 5, 4),
            (gpt2.Config(L=1, NH=1, C=72, V=5, P=4), 3, 2),
            (gpt2.Config(L=1, NH=1, C=8, V=7, P=1100), 1100, 1)]
# lr, beta1, beta2, eps, weight_decay, g_scale of each update: not the trainer's defaults. In the
# second problem gradients are small; in the third they are 0 at first, then tiny; in the fourth a
# rate of 0 leaves parameters, not moments, as they are.
UPDATES = [[(0.02, 0.8, 0.97, 1e-6, 0.5, 0.5), (0.05, 0.8, 0.97, 1e-6, 0.5, 0.2)],
           [(0.1, 0.7, 0.9, 1e-5, 1.0, 0.0005), (0.03, 0.7, 0.9, 1e-5, 1.0, 0.04)],
           [(0.04, 0.9, 0.8, 1e-6, 0.2, 0.0), (0.02, 0.9, 0.8, 1e-6, 0.2, 1e-25),
            (0.06, 0.9, 0.8, 1e-6, 0.2, 0.7)],
           [(0.0, 0.9, 0.9, 1e-6, 0.1, 1.0), (0.03, 0.9, 0.9, 1e-6, 0.1, 1.0)], []]


class Differs(Exception):
    """What is wrong, in a line."""


def backward_order(cfg, name):
    """The tensors' names in the order in which backpropagation completes their gradients."""
    block = (["ln2", "mlp_proj", "fc", "ln1", "att_proj", "qkv"] if name == "post_norm" else
             ["mlp_proj", "fc", "ln2", "att_proj", "qkv", "ln1"])
    names = [f"h{layer}.{part}" for layer in reversed(range(cfg.L)) for part in block]
    return [n for part in ["lnf", *names] for n in
            ([part + "_gain", part + "_bias"] if "ln" in part else [part + "_w", part + "_b"])
            ] + ["wpe", "wte"]


def different(ours, theirs, tolerance, slack=0.0):
    """The index of the first element that differs, or None."""
    limit = tolerance * (theirs.pow(2).mean().sqrt() + theirs.abs()) + slack
    off = ~((ours - theirs).abs() <= limit)                # nan is off
    return tuple(off.nonzero()[0].tolist()) if off.any() else None


class Comparison:
    """Of one problem's results: reads the trainer's tensors one by one, and compares them."""

    def __init__(self, name, problem, updates, results):
        (self.cfg, self.T, self.B), self.updates = problem, updates
        self.name, self.results, self.pass_ = name, results, ""
        self.table = [(n, shape) for n, _, shape in gpt2.tensor_table(self.cfg)]
        flat, inputs, targets = gpt2.draw_problem(*problem)
        self.start = torch.tensor(flat)
        self.inputs, self.targets = (torch.tensor(x, dtype=torch.long) for x in (inputs, targets))

    def next(self, name):
        found, values = next(self.results)
        assert found == name, f"open_check wrote {found}, expected {name}"
        return values

    def split(self, flat):
        """Named tensors of a flat buffer."""
        pieces = flat.split([torch.Size(shape).numel() for _, shape in self.table])
        return {name: piece.view(shape) for (name, shape), piece in zip(self.table, pieces)}

    def same(self, label, axes, ours, theirs, tolerance, hint, slack=0.0):
        """Raises Differs unless all elements are the same; hint() says why they may differ."""
        at = different(ours, theirs, tolerance, slack)
        if at is None:
            return
        index = "".join(f"[{axis}={i}]" for axis, i in zip(axes, at))
        raise Differs(f"{self.pass_}: {label}{index} is {ours[at].item():.5g}, expected "
                      f"{theirs[at].item():.5g}; {hint(at)}")

    def unchanged(self, what, ours, theirs, hint):
        for (name, a), b in zip(self.split(ours).items(), self.split(theirs).values()):
            self.same(what + name, "ij", a, b.to(a), 0.0, lambda at: hint)

    def forward(self, params, tokens, rows, where):
        """Compares what rows 0 ... rows-1 of each sequence keep. where: in generation (past, rows),
        else None."""
        with torch.no_grad():
            seen = run_model(self.name, params, tokens, self.cfg)
        for key, whole in seen.items():
            if key == "logits":
                break
            theirs = whole[:, :rows]
            ours = self.next(key).view(theirs.shape)
            parts = [(key, ours, theirs)]
            if key.endswith("qkv"):
                parts = list(zip(("queries of " + key, "keys of " + key, "values of " + key),
                                 ours.chunk(3, -1), theirs.chunk(3, -1)))
            for label, a, b in parts:
                hint = functools.partial(hints.forward, self.name, params, seen, label, a, b,
                                         self.cfg, where)
                self.same(label, "btc", a, b, FORWARD, hint)
        return seen

    def gradients(self, params, tokens, targets, fault=None):
        leaves = {name: p.clone().requires_grad_() for name, p in params.items()}
        seen = run_model(self.name, leaves, tokens, self.cfg, fault)
        losses = gpt2.token_losses(seen["logits"], targets.view(tokens.shape))
        grads = torch.autograd.grad(losses.mean(), list(leaves.values()), allow_unused=True)
        return losses.detach(), {n: torch.zeros_like(p) if g is None else g
                                 for (n, p), g in zip(leaves.items(), grads)}

    def micro_batch(self, params, i, before):
        """Compares one micro-batch; before: the expected gradients so far."""
        B, T = self.B - i, self.T - 2 * i
        begin = i * self.B * self.T
        tokens = self.inputs[begin:begin + B * T].view(B, T)
        targets = self.targets[begin:begin + B * T]
        self.pass_ = f"forward (B={B}, T={T}, {self.cfg.NH} heads of {self.cfg.C // self.cfg.NH})"
        self.forward(params, tokens, T, None)
        losses, grads = self.gradients(params, tokens, targets)
        self.same("loss", "n", self.next("loss"), losses, FORWARD, lambda at: hints.LOSS)
        self.pass_ = f"backward of micro-batch {i} (B={B}, T={T})"
        flat = self.next("grads")
        ours = self.split(flat)
        total = {n: before[n] + grads[n] if before else grads[n] for n in grads}
        for n in backward_order(self.cfg, self.name):
            def hint(at, n=n):
                def faulty(fault):
                    return self.gradients(params, tokens, targets, fault)[1]
                return hints.backward(self.name, n, ours[n], grads[n], before and before[n], faulty)
            self.same("gradient of " + n, "ij", ours[n], total[n], BACKWARD, hint)
        return total, flat

    def update(self, number, params, grads, moments):
        """Compares an update; moments: Adam's, and as `matrices` Muon's, so far."""
        o = dict(zip(("lr", "beta1", "beta2", "eps", "decay", "g_scale"), self.updates[number]))
        self.pass_ = f"update {number + 1}"
        self.unchanged("gradient of ", self.next("grads"), grads, hints.READ_ONLY)
        g, before = self.split(grads.double()), self.split(params.double())
        new_m = self.split(self.next("adam_m"))
        flat = self.next("params")
        new_p = self.split(flat)
        for n, p in before.items():
            old, old_v = moments.get(n, (0 * p, 0 * p))
            adam = Adam(p, old, old_v, g[n], o, number + 1)
            matrix = self.name == "muon" and n.split(".")[-1] in MATRICES
            m, after = muon(p, old, g[n], o) if matrix else (adam.m, adam.after)
            moments[n] = m, adam.v
            case = hints.Updated(matrix, p, old, g[n], o, number, adam, new_m[n], new_p[n])
            self.same("adam_m of " + n, "ij", new_m[n], m, UPDATE, case.moment_hint)
            self.same("change of " + n, "ij", new_p[n] - p, after - p, UPDATE, case.change_hint,
                      1.2e-7 * p.abs())                # a float's rounding
        return flat

    def generation(self, params):
        T, rows = self.T, 0
        while rows < T:
            past, rows = rows, min(T, rows + 1 + rows % 3 if rows else
                                   T - 7 if T > 100 else (T + 1) // 2)
            self.pass_ = (f"generation with the key/value cache ({past} rows are past, "
                          f"{rows - past} new)")
            seen = self.forward(params, self.inputs[:T].view(1, T), rows, (past, rows))
            self.same("logits", "v", self.next("logits"), seen["logits"][0, rows - 1], FORWARD,
                      lambda at: hints.LOGITS)

    def run(self):
        flat, moments = self.start, {}
        for number in range(len(self.updates)):
            params = self.split(flat.double())
            grads, _ = self.micro_batch(params, 0, None)
            _, own = self.micro_batch(params, 1, grads)
            self.unchanged("", self.next("params"), flat, hints.NO_UPDATE_YET)
            flat = self.update(number, flat, own, moments)
        self.generation(self.split(flat.double()))


# ---------------------------------------------------------------- the trainer's results

def read_results(path):
    """(name, tensor) of each tensor that open_check.c wrote. float32 values in float64."""
    with open(path, "rb") as file:
        while line := file.readline():
            name, n = line.decode().split()
            values = array.array("f")
            values.fromfile(file, int(n))
            yield name, torch.frombuffer(values, dtype=torch.float32).double()


def problems_of(name):
    """With their updates. Muon multiplies much, so its largest matrices are smaller."""
    return [((cfg._replace(C=48) if name == "muon" and cfg.C > 48 else cfg, T, B), updates)
            for (cfg, T, B), updates in zip(PROBLEMS, UPDATES)]


def run(name, program, folder):
    paths = [os.path.join(folder, name) for name in ("problems", "results")]
    with open(paths[0], "wb") as file:
        for (cfg, T, B), updates in problems_of(name):
            params, inputs, targets = gpt2.draw_problem(cfg, T, B)
            file.write(struct.pack("<8i", *cfg, T, B, len(updates))
                       + b"".join(struct.pack("<6f", *u) for u in updates) + inputs.tobytes()
                       + targets.tobytes() + params.tobytes())
    done = subprocess.run([program, *paths], capture_output=True, text=True, check=False,
                          env={**os.environ, "OMP_NUM_THREADS": "3"})
    if done.returncode < 0:
        raise Differs(f"the trainer crashes (signal {-done.returncode}): an index past an end, or "
                      "an array in a function that is too large for the stack?")
    if done.returncode:
        raise Differs((done.stdout + done.stderr).strip() or "the trainer ends without a word")
    return paths[1]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    _, name, program = sys.argv
    try:
        with tempfile.TemporaryDirectory() as folder:
            results = read_results(run(name, program, folder))
            for problem, updates in problems_of(name):
                Comparison(name, problem, updates, results).run()
    except Differs as fault:
        print(fault)
        return 1
    print("right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
