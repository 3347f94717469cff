#!/usr/bin/env python3
"""Experiment 10: one batch, split in several ways. The same batch as 8 micro-batches on one rank,
over 2, 4 and 8 ranks, and in micro-batches of other sizes: how far do the weights differ?

    scripts/lab/10_proof.py --quick
"""
import array
import json
import math
import os
import struct
import sys

import lab

PARTS = 8                                        # micro-batches of an update, over all ranks
UNIT = 2.0 ** -24                                # relative rounding error of a float
LIMIT = 1e-3                                     # of the distance between two seeds


# ---------------------------------------------------------------- distances between weights

def read_weights(path):
    """{name: array of floats} of a model.safetensors: 8 bytes of length, JSON, then elements."""
    tensors = {}
    with open(path, "rb") as f:
        length = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(length).decode("utf-8"))
        data = f.read()
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "F32":
            lab.fail(f"{path}: {name} is {entry['dtype']}, not F32")
        values = array.array("f", data[slice(*entry["data_offsets"])])
        if sys.byteorder == "big":
            values.byteswap()
        tensors[name] = without_keys(values) if name.endswith("c_attn.bias") else values
    return tensors


def without_keys(bias):
    """The keys' bias adds one constant to all scores of a query, and softmax ignores a constant.
    Its gradient is pure rounding error, which Adam scales up to steps of ordinary size."""
    third = len(bias) // 3
    return bias[:third] + bias[2 * third:]


def distance(one, other):
    """|one - other| / |one|, over all elements of all tensors."""
    apart = total = 0.0
    assert one.keys() == other.keys()
    for name, x in one.items():
        y = other[name]
        assert len(x) == len(y)
        if x != y:
            apart += sum((a - b) ** 2 for a, b in zip(x, y))
        total += sum(a * a for a in x)
    return math.sqrt(apart / total)


# ---------------------------------------------------------------- runs

class Split:
    """A way to split one batch. kind: "ranks", "sizes" (of a micro-batch, on one rank), "exact"
    (ranks with --exact-sum), or a run that is meant to differ."""

    def __init__(self, name, words, kind, ranks=1, size=1, flags=()):
        self.name, self.words, self.kind = name, words, kind
        self.ranks, self.size, self.flags = ranks, size, list(flags)


def splits(e):
    most = len(lab.gpus()) if lab.is_cuda(e.args.trainer) else PARTS
    ranks = [n for n in [1, 2, 4, 8] if n == 1 or n <= most]
    found = [Split(f"ranks_{n}", f"{n} x {PARTS // n}", "ranks", n) for n in ranks]
    found += [Split(f"size_{m}", f"1 x {PARTS // m}, {m} times as large", "sizes", size=m)
              for m in [2, 4, 8]]
    found += [Split(f"exact_{n}", f"{n} x {PARTS // n}, exact sum", "exact", n,
                    flags=["--exact-sum"]) for n in ranks]
    found.append(Split("batch_half", "half the batch", "batch", size=1))
    found.append(Split("other_seed", "another seed", "seed", flags=["--seed", 2]))
    return found


def job(e, split):
    sequences = e.pick(tiny=1, quick=4, full=4)          # of a micro-batch
    tokens = PARTS * sequences * 32
    seed = [] if "--seed" in split.flags else ["--seed", 1]
    return lab.Job(split.name, [
        "--data", e.corpus(10 ** 6), *e.model(), "--micro-batch", sequences * split.size,
        "--batch-tokens", tokens // 2 if split.kind == "batch" else tokens, "--steps", e.updates,
        "--lr", "2e-3", "--lr-schedule", "constant", "--warmup-tokens", 10 * tokens,
        "--eval-every", 0, "--eval-tokens", e.pick(2048, 65536, 65536),
        "--save-every", e.every, "--keep", 0, *seed, *split.flags],
        ranks=split.ranks, cost=1 + split.ranks, keep=True)


def weights_file(run, step):
    return os.path.join(run.dir, f"step_{step:08d}", "model.safetensors")


def same_bits(one, other, step):
    with open(weights_file(one, step), "rb") as a, open(weights_file(other, step), "rb") as b:
        return a.read() == b.read()


# ---------------------------------------------------------------- numbers

def growth(e, runs, ways):
    """{name: [distance from the run on one rank at each checkpoint]}"""
    curves = {split.name: [] for split in ways}
    for step in e.saved:
        reference = read_weights(weights_file(runs["ranks_1"], step))
        for split in ways:
            other = read_weights(weights_file(runs[split.name], step))
            curves[split.name].append(distance(reference, other))
    return curves


def pairs(runs, ways, step):
    """Rows (one, other, distance, same bits) of the last weights, each pair once."""
    weights = {s.name: read_weights(weights_file(runs[s.name], step)) for s in ways}
    return [[a.name, b.name, distance(weights[a.name], weights[b.name]),
             int(same_bits(runs[a.name], runs[b.name], step))]
            for i, a in enumerate(ways) for b in ways[i + 1:]]


def largest(curves, ways, kind):
    """At each checkpoint, the largest of the distances of one kind of split."""
    of = [curves[s.name] for s in ways if s.kind == kind and s.name != "ranks_1"]
    return [max(values) for values in zip(*of)]


# ---------------------------------------------------------------- picture

def draw(plt, e, curves, ways):
    figure, ax = plt.subplots(figsize=(6.8, 4.8), layout="constrained")
    shown = [("seed", "another seed"), ("batch", "half the batch, same seed"),
             ("ranks", "over 2, 4, 8 ranks"), ("sizes", "micro-batches 2, 4, 8 times as large")]
    for i, (kind, label) in enumerate(shown):
        values = largest(curves, ways, kind)
        if values:
            ax.plot(e.saved, values, color=lab.COLOURS[i], marker=lab.MARKERS[i],
                    linestyle=lab.LINES[i], label=label)
    ax.axhline(UNIT, color="#777777", linewidth=1)
    ax.annotate("rounding of one number, 2⁻²⁴", (e.saved[-1], UNIT), (0, 4), ha="right",
                textcoords="offset points", fontsize=8.5, color="#555555")
    ax.annotate("--exact-sum: 0 on 1, 2, 4, 8 ranks", (0.02, 0.02), xycoords="axes fraction",
                fontsize=9)
    ax.set_yscale("log")
    ax.set_ylim(UNIT / 10, 20)
    ax.set_xlim(left=0)
    lab.axes(ax, "updates", "distance of the weights / their length",
             f"The same update as {PARTS} micro-batches on one rank, and otherwise")
    ax.legend(loc="center right", bbox_to_anchor=(1.0, 0.62))
    return figure


# ---------------------------------------------------------------- the experiment

def with_weights(e, runs, ways):
    """The splits that can be compared: a diverged run leaves no weights. Ends the experiment if a
    run diverged with which all are compared."""
    gone = [s.name for s in ways if runs[s.name].diverged]
    if gone:
        e.say(f"Diverged, so excluded below: {', '.join(gone)}.")
    if {"ranks_1", "batch_half", "other_seed"} & set(gone):
        e.verdict("skipped", f"{', '.join(gone)} diverged: there is nothing to compare with")
        e.close()
        sys.exit(0)
    return [s for s in ways if s.name not in gone]


def main():
    e = lab.Experiment(
        10, "proof", title="The proof: splits of a batch train the same model",
        question="Do 1 rank with 8 micro-batches, 2 with 4, 4 with 2 and 8 with 1 reach the same "
                 "weights?",
        prediction="The gradient of a batch is a sum over its sequences, so the split does not "
                   "matter: the weights agree up to rounding, a thousand times closer than those "
                   "of two seeds. With --exact-sum, which fixes the order of the additions, they "
                   "are bitwise identical.")
    e.need_mpi()
    e.updates = e.pick(tiny=20, quick=240, full=2400)
    e.every = e.updates // e.pick(tiny=2, quick=8, full=8)
    e.saved = list(range(e.every, e.updates + 1, e.every))
    asked = splits(e)
    runs = e.run([job(e, split) for split in asked])
    ways = with_weights(e, runs, asked)
    curves = growth(e, runs, ways)
    plain = [s for s in ways if s.kind in ("ranks", "sizes")]
    exact = [s for s in ways if s.kind == "exact"]
    others = [s for s in ways if s.kind in ("batch", "seed")]
    table = pairs(runs, plain + others, e.updates) + pairs(runs, exact, e.updates)
    e.csv("pairs", ["one", "other", "distance", "same_bits"], table)
    e.csv("growth", ["updates", "split", "ranks", "micro_batch", "distance"],
          [[step, s.name, s.ranks, s.size * e.pick(1, 4, 4), curves[s.name][i]]
           for s in ways for i, step in enumerate(e.saved)])
    e.csv("losses", ["split", "val_loss"], [[s.name, runs[s.name].val] for s in ways])
    e.figure("proof", lambda plt: draw(plt, e, curves, ways),
             alt="Distance of weights from those of one rank with 8 micro-batches, against "
                 "updates, on a logarithmic scale: another seed far above, other splits of the "
                 "batch near the rounding error of a float.",
             caption="The largest distance within each group of splits. Distances exclude the "
                     "keys' bias, on which the model's output does not depend.")
    conclude(e, runs, curves, plain, exact, table, len(asked) - len(ways))
    e.close()


def conclude(e, runs, curves, plain, exact, table, lost):
    names = {s.name for s in plain}
    worst = max(row[2] for row in table if row[0] in names and row[1] in names)
    seed, batch = curves["other_seed"][-1], curves["batch_half"][-1]
    bits = bool(exact) and all(row[3] for row in table if row[0] in {s.name for s in exact})
    differ = any(not row[3] for row in table if row[0] in names and row[1] in names)
    losses = [runs[name].val for name in names]
    e.setting(f"2 layers of 32 channels, {e.updates} updates of {PARTS} x {e.pick(1, 4, 4)} "
              f"sequences of 32 tokens, learning rate 2e-3; ranks of one thread on "
              f"{lab.machine(e.args.trainer)}, {runs['ranks_1'].start.get('precision', 'fp32')}.")
    e.say(f"After {e.updates} updates the weights of {len(plain)} splits of the same batch differ "
          f"by at most {worst:.1e} of their norm; those of two seeds differ by {seed:.2g}, those "
          f"of half the batch with the same seed by {batch:.2g}.")
    e.say(f"The difference is rounding error that training amplifies: it grew from "
          f"{max(curves[n][0] for n in names):.1e} after {e.saved[0]} updates to "
          f"{max(curves[n][-1] for n in names):.1e} after {e.saved[-1]}.")
    e.say(f"Their validation losses differ by at most {max(losses) - min(losses):.1e} nats of "
          f"{runs['ranks_1'].val:.3f}.")
    ranks = ", ".join(str(s.ranks) for s in exact)
    e.say(f"With --exact-sum, {ranks} ranks reach "
          + ("bitwise identical weights." if bits else "different weights, which is a defect."))
    if bits and differ and worst <= LIMIT * seed and not lost:
        e.verdict("as predicted", f"splits differ by {worst:.1e}, seeds by {seed:.2g}; with "
                                  "--exact-sum the weights are bitwise identical")
    elif bits or worst <= LIMIT * seed:
        e.verdict("partly", f"splits differ by {worst:.1e}, seeds by {seed:.2g}; same bits with "
                            f"--exact-sum: {'yes' if bits else 'no'}, different bits without: "
                            f"{'yes' if differ else 'no'}" + f"; {lost} diverged" * bool(lost))
    else:
        e.verdict("failed", f"splits differ by {worst:.1e}, seeds by {seed:.2g}; with --exact-sum "
                            "the weights differ, too")


if __name__ == "__main__":
    main()
