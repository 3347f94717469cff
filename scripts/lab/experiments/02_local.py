#!/usr/bin/env python3
"""Experiment 2, the knee after equal training: from one checkpoint, how many updates of small and
of large batches lower the loss by the same 0.1 nats?

    scripts/lab/experiments/02_local.py --quick

Experiment 2's knee runs from the start: a large batch also pays for the early updates, where noise
hardly matters. Here all batches leave the same checkpoint (local_knee.py). Seeds that choose the
learning rates (table `tuned`) are not those that are reported. One group asks where the knee is in
*sequences*: the same model and tokens, 32 and 256 to a sequence.
"""
from collections import namedtuple
from statistics import fmean as mean, geometric_mean

import fit
import kept
import lab
import local_knee

RATES = {"119k": 2e-3, "35k": 4e-3, "0.8M": 2e-3}            # of the run that branches leave

# One model, its sequences of T tokens. moments: tokens trained. ks: batches in units of the
# smallest, which is 256 tokens. fresh: seeds that are reported.
Group = namedtuple("Group", "size T moments ks fresh")

# The smallest batch against the one at FAR times its tokens. In proportion it takes FAR times the
# updates; the endpoint is of the first group, after its last moment.
FAR = {"full": 16, "quick": 16, "tiny": 4}

GROUPS = {
    "full": [Group("119k", 32, (2 ** 18, 2 ** 19, 2 ** 20), (1, 2, 4, 8, 16, 32, 64), (3, 4, 5, 6)),
             Group("119k", 256, (2 ** 18,), (1, 4, 16, 64), (3, 4)),
             Group("35k", 32, (2 ** 18, 2 ** 19), (1, 4, 16), (3, 4, 5)),
             Group("0.8M", 32, (2 ** 18, 2 ** 19), (1, 4, 16), (3, 4))],
    "quick": [Group("119k", 32, (2 ** 20,), (1, 4, 16), (3, 4))],
    "tiny": [Group("35k", 32, (8192,), (1, 4), (3, 4))]}
OF = ["size", "seq_len", "trained_tokens"]       # what names a moment, in every table

# points: a fit.Point of all seeds for each batch; fewer: {batch: [times fewer updates of a seed]};
# loss, noise: what branches fall to, and B_simple of the run there.
Moment = namedtuple("Moment", "size T tokens points fewer loss noise knee")


# ---------------------------------------------------------------- runs

def plan_of(e, group):
    return local_knee.Plan(
        f"{group.size}_T{group.T}", lab.model(group.size, group.T), group.T,
        e.corpus(e.pick(10 ** 6, 32 * 10 ** 6, 32 * 10 ** 6)), e.pick(64, 256, 256),
        RATES[group.size], e.pick(200.0, 3000.0, 3000.0), group.moments, group.ks,
        e.pick(2048, 65536, 65536))


def rates(e, plan, group):
    """{(moment, batch): (rate, updates, edge)} of the committed table `tuned`, or from seed 1 where
    an earlier run did not tune."""
    known = {} if e.size == "tiny" else {
        (row["trained_tokens"], row["batch_tokens"]): (row["lr_times"], row["updates"], row["edge"])
        for row in kept.table(e.label, "tuned", size=group.size, seq_len=group.T)}
    if all((moment, k * plan.batch) in known for moment in plan.moments for k in plan.ks):
        return known
    return {(local.tokens, batch): (point.lr, point.median, int(point.edge))
            for local in local_knee.sweep(e, plan, [1])
            for batch, point in local.points.items() if point}


def measure(e):
    """Writes what the runs have found: updates of every seed, the rates, and of each moment the
    loss that branches fall to."""
    points, tuned, moments, groups = [], [], [], GROUPS[e.size]
    for group in groups:
        plan = plan_of(e, group)
        known = rates(e, plan, group)
        made = local_knee.sweep(e, plan, group.fresh, known)
        for moment in plan.moments:
            of, own = [group.size, group.T, moment], [x for x in made if x.tokens == moment]
            points += [[*of, x.seed, batch, p.lr, p.median] for x in own
                       for batch, p in x.points.items() if p]
            tuned += [[*of, at[1], times, edge, updates]
                      for at, (times, updates, edge) in sorted(known.items()) if at[0] == moment]
            noises = [x.noise for x in own if x.noise]
            moments.append([*of, mean(x.loss for x in own), geometric_mean(noises) if noises
                            else None])
    e.table("local_points", [*OF, "seed", "batch_tokens", "lr_times", "updates"], points)
    e.table("tuned", [*OF, "batch_tokens", "lr_times", "edge", "updates"], tuned)
    e.table("moments", [*OF, "target_nats", "noise_scale_tokens"], moments)


# ---------------------------------------------------------------- from the tables on

def read_moments(e):
    """[Moment]. A point is the geometric mean of the seeds' updates; a batch counts where all seeds
    crossed."""
    found = []
    for row in e.rows("moments"):
        of = {key: row[key] for key in OF}
        branches, points = e.rows("local_points", **of), []
        seeds = len({p["seed"] for p in branches})
        for t in e.rows("tuned", **of):
            own = [p["updates"] for p in kept.only(branches, batch_tokens=t["batch_tokens"])]
            if len(own) == seeds:
                points.append(fit.Point(t["batch_tokens"], t["lr_times"], own,
                                        geometric_mean(own), bool(t["edge"])))
        found.append(Moment(*of.values(), points, local_knee.fewer(branches), row["target_nats"],
                            row["noise_scale_tokens"], fit.knee(points)))
    return found


def ratios(e, moment):
    """How many times the updates the smallest batch takes of the one that is FAR times larger."""
    return moment.fewer.get(min(moment.fewer) * FAR[e.size], [])


def conclude(e):
    found = read_moments(e)
    e.table("local", [*OF, "target_nats", "b_crit", "b_crit_low", "b_crit_high", "rms",
                      "noise_scale_tokens", "refused"],
            [[m.size, m.T, m.tokens, m.loss, m.knee.b_crit, m.knee.low, m.knee.high, m.knee.rms,
              m.noise, m.knee.reason] for m in found])
    for m in found:
        at = f"{m.size}, sequences of {m.T}, after {m.tokens:,} tokens"
        if ratios(e, m):
            e.found(f"{at}: updates of the small batch over the large", *fit.ratio_interval(ratios(e, m)))
        if not m.knee.reason:
            e.found(f"{at}: B_crit in tokens", m.knee.b_crit, m.knee.low, m.knee.high)
    first = [m for m in found if (m.size, m.T) == (found[0].size, found[0].T)]
    knees = [m for m in first if not m.knee.reason]
    if len(knees) > 2:
        e.found(f"exponent of B_crit in trained tokens, {first[0].size}",
                *fit.power_law([m.tokens for m in knees], [m.knee.b_crit for m in knees]))
    figures(e, found, first)
    last = ratios(e, first[-1])
    return [("", *fit.ratio_interval(last))] if len(last) > 1 else []


# ---------------------------------------------------------------- figures

def figures(e, found, first):
    name = f"{first[0].size} parameters"
    e.figure("local", draw_local(first, name), alt=(
        "How many times fewer updates a larger batch takes, against how many times larger it is: "
        "near proportion at first, then flatter; the later in training, the later."),
        caption="From one checkpoint to the same loss, 0.1 nats lower. Bars: the range of seeds.")
    pair = [m for m in found if (m.size, m.tokens) == (found[0].size, found[0].tokens)]
    if len(pair) > 1 and not any(m.knee.reason for m in pair):
        e.figure("sequences", draw_sequences(pair, name), alt=(
            "Updates over S_min against the batch size, for sequences of two lengths. Left, in "
            "tokens, the longer ones bend later; right, in sequences, far earlier."),
            caption="The same model and as many tokens trained. At B_crit updates are twice S_min.")


def draw_local(first, name):
    small = first[0].points[0]
    times = [p.batch / small.batch for p in first[0].points]
    curves = []
    for m in first:
        fewer = [[a / b for a, b in zip(m.points[0].updates, p.updates)] for p in m.points]
        curves.append(lab.Curve(
            f"after {m.tokens:,} tokens", [p.batch / small.batch for p in m.points],
            [m.points[0].median / p.median for p in m.points], [min(of) for of in fewer],
            [max(of) for of in fewer], {"linestyle": "-"}))
    curves.append(lab.Curve("in proportion", times, times, look={
        "color": "black", "linestyle": ":", "marker": ""}))
    return lab.panels([{
        "curves": curves, "x": f"times the batch size (of {small.batch:,} tokens)",
        "y": "times fewer updates", "log": (2, 2)}],
        f"{name}: the longer they are trained, the more updates a larger batch saves")


def draw_sequences(pair, name):
    tokens = [m.knee.b_crit for m in pair]
    apart = [b / m.T for b, m in zip(tokens, pair)]
    return lab.panels([{
        "curves": [lab.Curve(f"{m.T} tokens a sequence",
                             [p.batch / (m.T if unit == "sequences" else 1) for p in m.points],
                             [p.median / m.knee.s_min for p in m.points]) for m in pair],
        "x": f"batch size ({unit} per update)", "y": "updates / S_min", "log": (4, 10)}
        for unit in ("tokens", "sequences")],
        f"{name} after {pair[0].tokens:,} tokens, sequences of two lengths: their knees are\n"
        f"{max(tokens) / min(tokens):.1f} times apart in tokens, {max(apart) / min(apart):.1f} "
        "times in sequences", (10, 4.6), sharey=True)


if __name__ == "__main__":
    lab.experiment(
        2, "local", measure, conclude, endpoint=(8.0, 16.0), title="The knee, after equal training",
        question="From one checkpoint, how many updates of 256 tokens do what one of 4,096 does?",
        prediction="After 1,048,576 tokens, 119k parameters take 8 to 16 times as many updates of "
        "256 tokens as of 4,096.")
