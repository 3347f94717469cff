#!/usr/bin/env python3
"""Experiment 2, the knee over model size and training so far, by scripts/lab/plans/02_size.md.

    scripts/lab/experiments/02_size.py --quick

As in 02_local.py all batches leave the same checkpoint. Here the rate before it is tuned for every
cell, a size after so many tokens, and weight decay forgets as many tokens at every batch.
"""
import math
from collections import namedtuple

import numpy as np
import fit
import kept
import lab
import local_knee

# rate: a first guess, for the smallest batch. ks: the branches' batches, in units of that.
Size = namedtuple("Size", "layers heads channels rate ks")
SIZES = {"35k": Size(2, 2, 32, 4e-3, (1, 4, 8, 32, 128)),
         "119k": Size(2, 2, 64, 2e-3, (1, 4, 8, 32, 128)),
         "0.8M": Size(4, 4, 128, 2e-3, (1, 8, 32, 128)),
         "3.2M": Size(4, 4, 256, 1e-3, (1, 8, 32, 128)),
         "85M": Size(12, 12, 768, 2.5e-4, (1, 8, 32, 128))}
ENDPOINT = "35k", "119k", "0.8M", "3.2M"
T, MEMORY = 32, 2 ** 21
# full: what has been measured of the plan.
CELLS = {"tiny": [("35k", 8192), ("35k", 12288)], "quick": [("35k", 2 ** 18), ("119k", 2 ** 18)],
         "full": [(size, 2 ** power) for power, sizes in [
             (18, ("35k", "119k", "0.8M", "3.2M")), (19, ("35k",)),
             (20, ("35k", "119k", "0.8M", "3.2M", "85M")), (21, ("35k", "119k")),
             (22, ("35k", "119k"))]
             for size in sizes]}
OF = ["size", "trained_tokens"]                  # what names a cell, in every table
TABLES = {"cells": ["parameters", "rate", "machine", "plan"], **local_knee.TABLES}

CHOOSES = 20                                     # the seed of the rates; others measure


# ---------------------------------------------------------------- runs

def plan_of(e, size, tokens, k):
    s, batch = SIZES[size], e.pick(64, 256, 256)
    rate = s.rate * 2.0 ** k
    knee = 2760.0 * (tokens / 2 ** 18) ** 0.82              # a guess of it, by 02_local
    return local_knee.Plan(
        f"{size}_{tokens}_{rate:.6f}", ["--layers", s.layers, "--heads", s.heads, "--channels",
                                        s.channels, "--seq-len", T], T,
        e.corpus(e.pick(10 ** 6, 32 * 10 ** 6, 32 * 10 ** 6)), batch, rate, knee, (tokens,),
        e.pick((1, 4, 8, 16), s.ks, s.ks), e.pick(2048, 65536, 65536), MEMORY,
        512 if lab.is_cuda(e.args.trainer) else 64)


def measure(e):
    """A cell that is committed is not measured again: add a row to CELLS, run this, and keep it."""
    before = kept.read("02_size")["tables"] if e.size == "full" else {}
    rows = {name: list(before[name]["rows"]) if before else [] for name in TABLES}
    commit = lab.plan(e)
    for size, tokens in CELLS[e.size]:
        if [size, tokens] in [row[:2] for row in rows["cells"]]:
            continue
        plan = local_knee.best_rate(e, lambda k: plan_of(e, size, tokens, k), CHOOSES)
        found = local_knee.measure(e, plan, CHOOSES, e.pick((21, 22), (21, 22), (21, 22, 23, 24)))
        found["cells"] = [[12 * SIZES[size].layers * SIZES[size].channels ** 2, plan.rate,
                           e.machine, commit]]
        for name, own in found.items():
            rows[name] += [[size, tokens, *row] for row in own]
    for name, columns in TABLES.items():
        e.table(name, [*OF, *columns], rows[name])


# ---------------------------------------------------------------- from the tables on

def knees(e, most=math.inf):
    """{(size, tokens): {seed: B_crit}}, of batches of at most so many tokens."""
    found = {cell: local_knee.b_crits([row for row in own if row["batch_tokens"] <= most])
             for cell, own in kept.grouped(e.rows("branches"), *OF).items()}
    return {cell: of for cell, of in found.items() if of}


def exponents(b_crit, x):
    """For each seed the slope of log B_crit. b_crit: {cell: {seed: B_crit}}, x: {cell: value}."""
    shared = set.intersection(*(set(of) for of in b_crit.values()))
    return [np.polyfit([math.log(x[cell]) for cell in b_crit],
                       [math.log(of[seed]) for of in b_crit.values()], 1)[0]
            for seed in sorted(shared)]


def tell_growth(e, words, own):
    """How B_crit of one size, own: {cell: {seed: B_crit}}, grows with the tokens trained."""
    x = {cell: cell[1] for cell in own}
    e.found(f"exponent of B_crit in trained tokens, {words}", *fit.mean_interval(exponents(own, x)))
    early, late = ({cell: own[cell] for cell in own if round(math.log2(cell[1])) in ends}
                   for ends in ((18, 20), (20, 22)))
    if len(early) == len(late) == 2:
        e.found(f"its change from 2^20 tokens on, {words}", *fit.mean_interval(
            [b - a for a, b in zip(exponents(early, x), exponents(late, x))]))
    last = fit.ratio_interval(own[max(own)].values())
    e.found(f"B_crit at last, {words}", *last)
    e.found(f"updates of 256 over 4,096 by it, {words}",
            (1 + last[0] / 256) / (1 + last[0] / 4096))


def conclude(e):
    found, parameters = knees(e), {}
    for cell in e.rows("cells"):
        parameters[cell["size"], cell["trained_tokens"]] = cell["parameters"]
    for (size, tokens), of in found.items():
        e.found(f"{size} after {tokens:,} tokens: B_crit in tokens", *fit.ratio_interval(of.values()))
    verdict = []
    at = 2 ** 20
    for sizes in (ENDPOINT, tuple(SIZES)):
        own = {cell: of for cell, of in found.items() if cell[1] == at and cell[0] in sizes}
        if len(own) < 3:
            continue
        slope = fit.mean_interval(exponents(own, parameters))
        e.found(f"exponent of B_crit in parameters after {at:,} tokens, "
                f"{', '.join(size for size in SIZES if (size, at) in own)}", *slope)
        if set(ENDPOINT) == {size for size, _ in own}:
            verdict = [("", *slope)]
    for words, of in [("", found), (" without 32,768", knees(e, 8192))]:
        for size in SIZES:
            own = {cell: b_crit for cell, b_crit in of.items() if cell[0] == size}
            if len(own) > 2:
                tell_growth(e, size + words, own)
    for (size, tokens), own in kept.grouped(e.rows("branches"), *OF).items():
        if fewer := local_knee.fewer(own).get(8192):
            e.found(f"{size} after {tokens:,} tokens: updates of 256 over 8,192",
                    *fit.ratio_interval(fewer))
    if len(found) > 1:
        e.figure("size", draw(found), alt=(
            "The critical batch size against the tokens trained, both logarithmic, a line for each "
            "model size: the lines rise together and lie close to each other."),
            caption="Each point is the mean of the seeds; bars: 90%.")
    return verdict or "not all of its sizes are measured yet"


def draw(found):
    curves = []
    for size in SIZES:
        own = sorted((tokens, *fit.ratio_interval(of.values())) for (s, tokens), of in found.items()
                     if s == size)
        if own:
            curves.append(lab.Curve(f"{size} parameters", *zip(*own)))
    return lab.panels([{"curves": curves, "x": "tokens trained", "log": (2, 2),
                        "y": "critical batch size B_crit (tokens)"}],
                      "The critical batch size grows with training, hardly with the model")


if __name__ == "__main__":
    lab.experiment(
        2, "size", measure, conclude, endpoint=(-0.2, 0.1),
        title="The knee over model size",
        question="Does a larger model bear a larger batch, or only a longer trained one?",
        prediction="After 1,048,576 tokens, from 35k to 3.2M parameters, B_crit grows as "
        "parameters to the power of -0.2 to 0.1.")
