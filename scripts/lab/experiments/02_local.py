#!/usr/bin/env python3
"""Experiment 2, the knee after equal training: from one checkpoint, how many updates of small and
of large batches lower the loss by the same 0.1 nats?

    scripts/lab/experiments/02_local.py --quick

Experiment 2's knee runs from the start: a large batch also pays for the early updates, where noise
hardly matters. Here all batches leave the same checkpoint (local_knee.py). Seeds that choose the
learning rates (table `tuned`) are not those that are reported. One group asks where the knee is in
*sequences*: the same model and tokens, 32 and 256 to a sequence.
"""
import math
from collections import namedtuple

import _path
import fit
import kept
import lab
import local_figures
import local_knee

Size = namedtuple("Size", "name layers heads channels rate")
SIZES = {s.name: s for s in [Size("119k", 2, 2, 64, 2e-3), Size("35k", 2, 2, 32, 4e-3),
                             Size("0.8M", 4, 4, 128, 2e-3)]}

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
    "tiny": [Group("35k", 32, (8192,), (1, 4), (3, 4)), Group("35k", 64, (8192,), (1, 4), (3,))]}

# locals: [local_knee.Local] of the fresh seeds at one moment; tuned: {batch: fit.Point} of others.
Moment = namedtuple("Moment", "group tokens locals tuned points knee")


def arguments(parser):
    parser.add_argument("--tune", action="store_true",
                        help="choose all learning rates here, on seed 1, also the committed ones")
    parser.add_argument("--so-far", action="store_true",
                        help="make no run; draw what a longer run has made so far")


# ---------------------------------------------------------------- runs

def plan_of(e, group):
    size = SIZES[group.size]
    return local_knee.Plan(
        f"{size.name}_T{group.T}", ["--layers", size.layers, "--heads", size.heads, "--channels",
                                    size.channels, "--seq-len", group.T], group.T,
        e.corpus(e.pick(10 ** 6, 32 * 10 ** 6, 32 * 10 ** 6)), e.pick(64, 256, 256), size.rate,
        e.pick(200.0, 3000.0, 3000.0), group.moments, group.ks, e.pick(2048, 65536, 65536))


def committed(e, group):
    """{(moment, batch): (rate, updates, edge)} of an earlier run's table `tuned`."""
    return {} if e.args.tune or e.size == "tiny" else {
        (row["trained_tokens"], row["batch_tokens"]): (
            row["lr_times"], row["updates"], row["edge"])
        for row in kept.table(e.label, "tuned")
        if (row["size"], row["seq_len"]) == (group.size, group.T)}


def rates(e, plan, group):
    """The same, from seed 1 where an earlier run did not tune."""
    known = committed(e, group)
    if all((moment, k * plan.batch) in known for moment in plan.moments for k in plan.ks):
        return known
    return {(local.tokens, batch): (point.lr, point.median, point.edge)
            for local in local_knee.sweep(e, plan, [1])
            for batch, point in local.points.items() if point}


def measure(e, group):
    """[Moment]; none with --so-far while runs are missing."""
    try:
        return list(moments(e, group))
    except local_knee.Missing:
        return []


def moments(e, group):
    plan = plan_of(e, group)
    known = rates(e, plan, group)
    made = local_knee.sweep(e, plan, group.fresh, known)
    for moment in plan.moments:
        own = [local for local in made if local.tokens == moment]
        points = [joined([local.points[k * plan.batch] for local in own],
                         known.get((moment, k * plan.batch), (0, 0, True))[2]) for k in plan.ks]
        points = [p for p in points if p]
        yield Moment(group, moment, own, known, points, fit.knee(points))


def joined(points, edge):
    """One point of all seeds: the geometric mean of their updates; False unless all crossed."""
    return all(points) and points[0]._replace(
        updates=[p.median for p in points], median=geometric([p.median for p in points]),
        edge=bool(edge))


def geometric(values):
    return math.exp(sum(map(math.log, values)) / len(values))


# ---------------------------------------------------------------- numbers

def ends(e):
    """The two batches that are compared."""
    first = e.pick(64, 256, 256)
    return first, first * FAR[e.size]


def ratios(e, moment):
    """[(seed, updates of the small batch, of the large one)] where both crossed."""
    pairs = [(local.seed, *(local.points[b] for b in ends(e)))
             for local in moment.locals]
    return [(seed, a.median, b.median) for seed, a, b in pairs if a and b]


def quotients(e, moment):
    return [small / large for _, small, large in ratios(e, moment)]


def grown(found):
    """(exponent, low, high) of the first group's B_crit in trained tokens; None with fewer than
    three knees."""
    own = [m for m in found if m.group == found[0].group and not m.knee.reason]
    if len(own) < 3:
        return None
    return fit.power_law([m.tokens for m in own], [m.knee.b_crit for m in own])


def constant_rate(e, group):
    """[(fewest tokens measured, B_crit, low, high)] of 02_knee.py for that size."""
    tokens = {}
    for row in kept.table("02_knee", "points", e.args.out):
        if (row["size"], row["reading"]) == (group.size, "weights"):
            tokens.setdefault(row["target_nats"], []).append(row["tokens_median"])
    return [(min(tokens[row["target_nats"]]), row["b_crit"], row["b_crit_low"], row["b_crit_high"])
            for row in kept.table("02_knee", "fit", e.args.out)
            if (row["size"], row["reading"]) == (group.size, "weights") and not row["refused"]]


def key(moment):
    return [moment.group.size, moment.group.T, moment.tokens]


def write(e, found):
    small, large = ends(e)
    e.csv("ratios", ["size", "seq_len", "trained_tokens", "seed", f"updates_{small}",
                     f"updates_{large}", "ratio"],
          [[*key(m), seed, a, b, a / b] for m in found for seed, a, b in ratios(e, m)])
    e.csv("local", ["size", "seq_len", "trained_tokens", "target_nats", "b_crit", "b_crit_low",
                    "b_crit_high", "rms", "noise_scale_tokens", "refused"],
          [[*key(m), target(m), *([None] * 4 if m.knee.reason else
                                  [m.knee.b_crit, m.knee.low, m.knee.high, m.knee.rms]),
            noise(m), m.knee.reason] for m in found])
    e.csv("local_points", ["size", "seq_len", "trained_tokens", "seed", "batch_tokens", "lr_times",
                           "updates"],
          [[*key(m), local.seed, batch, p.lr, p.median] for m in found for local in m.locals
           for batch, p in local.points.items() if p])
    e.csv("tuned", ["size", "seq_len", "trained_tokens", "batch_tokens", "lr_times", "edge",
                    "updates"],
          [[*key(m), at[1], times, int(edge), updates] for m in found
           for at, (times, updates, edge) in sorted(m.tuned.items()) if at[0] == m.tokens])


def target(moment):
    return sum(local.loss for local in moment.locals) / len(moment.locals)


def noise(moment):
    """B_simple, the mean of the seeds that have one."""
    own = [local.noise for local in moment.locals if local.noise]
    return geometric(own) if own else None


# ---------------------------------------------------------------- words

def tell(e, found):
    for m in found:
        group, (small, large) = m.group, ends(e)
        at = f"{group.size}, sequences of {group.T}, after {m.tokens:,} tokens"
        own = quotients(e, m)
        if own:
            middle, low, high = fit.ratio_interval([math.log(v) for v in own])
            e.say(f"{at}: 0.1 nats took {middle:.1f} times as many updates of {small:,} tokens as "
                  f"of {large:,}" + (f" ({low:.1f} to {high:.1f})" if len(own) > 1 else "")
                  + f"; seeds: {', '.join(f'{x:.1f}' for x in own)}; {FAR[e.size]} would be in "
                  "proportion.")
        k = m.knee
        if not k.reason:
            e.say(f"{at}: B_crit {k.b_crit:,.0f} tokens ({k.low:,.0f} to {k.high:,.0f}), which are "
                  f"{k.b_crit / group.T:,.0f} sequences" + (
                      f"; B_simple of the run there is {noise(m):,.0f}." if noise(m) else "."))
        elif len(group.ks) > 3:
            e.say(f"{at}: no fit, because {k.reason}.")
    slope = grown(found)
    if slope:
        e.say(f"B_crit of {found[0].group.size} grows as trained tokens to the power of "
              f"{slope[0]:.2f} ({slope[1]:.2f} to {slope[2]:.2f}). This decides, not the exponent "
              "of 02_knee: every batch leaves the same checkpoint, and trained tokens are not "
              "fitted.")


def main():
    e = lab.Experiment(
        2, "local", title="The knee, after equal training", arguments=arguments,
        question="From one checkpoint, how many updates of 256 tokens do what one of 4,096 does?",
        prediction="After 1,048,576 tokens, 119k parameters take 8 to 16 times as many updates of "
        "256 tokens as of 4,096.")
    groups = GROUPS[e.size]
    first = measure(e, groups[0]._replace(ks=(1, FAR[e.size])))        # the endpoint's runs alone
    e.run_seconds = 0.0 if not e.args.so_far else e.run_seconds        # they count again below
    every = [measure(e, group) for group in groups]
    found = [moment for own in [every[0] or first, *every[1:]] for moment in own]
    if not found:
        lab.fail("there are no runs yet")
    e.setting("; ".join(
        f"{g.size}, sequences of {g.T}: after {', '.join(f'{m:,}' for m in g.moments)} tokens, "
        f"seeds {', '.join(map(str, g.fresh))}"
        for g in dict.fromkeys(m.group for m in found)) + ".")
    e.setting("Every branch decays its rate linearly to zero. It ends 0.1 nats below a branch of "
              "256-token updates that is annealed at once.")
    write(e, found)
    tell(e, found)
    local_figures.draw(e, found, constant_rate(e, found[0].group))
    own = quotients(e, (every[0] or first)[-1])
    e.decide([("", *fit.ratio_interval([math.log(v) for v in own]))] if len(own) > 1 else [])
    e.close()


if __name__ == "__main__":
    main()
