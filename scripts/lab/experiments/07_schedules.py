#!/usr/bin/env python3
"""Experiment 7: a batch that grows during training against a constant one, after as many tokens
*and* as many updates. The norm test enlarges the batch when the gradient is noisy (Lau et al. 2024,
arXiv 2412.21124); a linear ramp does so by the clock.

    scripts/lab/experiments/07_schedules.py --quick

Runs of one seed begin with the same weights and read the same samples, so what a seed does to both
methods cancels in their difference.
"""
import math
from collections import namedtuple
from statistics import fmean as mean

import fit
import kept
import lab

ETA, SMALL, CAP, T = 0.5, 512, 4096, 32          # tokens, tokens, sequences' tokens
PART = 4                                         # sequences: what the norm test compares
UNIT = PART * T                                  # tokens: batches are multiples of it
PLANNED = 3072                                   # tokens: makes as many updates as eta 0.5
SEEDS = range(11, 23)                            # of the planned pairs; none of them chose a rate


class Course(lab.Tuned):
    """One schedule. flags: of its batch; micro: sequences; k, grid: rates to try; seeds: reported
    ones."""

    def __init__(self, e, name, label, flags, micro, k, grid, seeds):
        self.e, self.name, self.label, self.flags, self.micro = e, name, label, flags, micro
        super().__init__(self.make, {None: k}, {
            "first": 1, "also": e.pick([], [], [5]), "grid": grid, "seeds": list(seeds),
            "extend": e.pick(None, (-2, 6), (-2, 6)) if len(grid) > 1 else None})
        if len(grid) == 1:                       # the rate is known: no run chooses it
            self.choosing = self.plan["seeds"]

    def make(self, _, k, seed):
        e = self.e
        return lab.Job(f"{self.name}_lr{lab.rate(k):g}_s{seed}", [
            "--data", e.corpus(e.tokens), *lab.model("35k", T), "--micro-batch", self.micro,
            *self.flags, "--lr", f"{lab.rate(k):.9g}", "--tokens", e.tokens, "--lr-schedule", "wsd",
            "--warmup-tokens", e.tokens // 40, "--seed", seed, "--eval-every", 0,
            "--eval-tokens", e.eval_tokens], thin=300)

    def updates(self):
        return mean(run.end["step"] for run in self.chosen())


def constant(e, batch, seeds):
    whole = next(n for n in range(16, 0, -1) if batch // T % n == 0)
    return Course(e, f"constant{batch}", f"constant {batch:,}",
                  ["--batch-tokens", batch, "--beta2", lab.half_life_beta2(batch)], whole,
                  e.pick(3, 2, 3), e.pick([0], [0, 1], [-1, 0, 1]), seeds)


def growing(e, name, label, schedule, seeds, at=SMALL):
    """Its rate is for all batches alike; that of the full run is known from an earlier sweep. at:
    the batch that --beta2 is for."""
    return Course(e, name, label, ["--batch-tokens", at, "--batch-schedule", schedule, "--beta2",
                                   lab.half_life_beta2(at)], PART, e.pick(4, 2, 4),
                  e.pick([0], [0, 1], [0]), seeds)


def compare(e, course, batch=None):
    """With a constant batch that makes as many updates, or the planned one: both methods."""
    lab.tune(e, [course])
    batch = batch or round(e.tokens / course.updates() / UNIT) * UNIT
    other = constant(e, batch, course.plan["seeds"])
    lab.tune(e, [other])
    return course, other


def measure(e):
    e.tokens = e.pick(2 ** 16, 2 ** 19, 2 ** 22)
    e.eval_tokens = e.pick(8192, 131072, 262144)
    seeds = list(SEEDS)[:e.pick(2, 4, None)]

    def to(cap):
        return growing(e, f"adaptive{ETA:g}_{cap}", f"norm test to {cap:,}",
                       f"adaptive:{ETA},{SMALL},{cap}", seeds if cap == CAP else seeds[:4])
    compared = [compare(e, to(CAP), e.pick(None, None, PLANNED))]
    if e.size == "full":
        compared.append(compare(e, to(4 * CAP)))
    compared.append(compare(e, growing(e, "linear", f"linear ramp to {CAP:,}",
                                       f"linear:{SMALL},{e.tokens}", seeds[:4], at=CAP)))
    e.table("pairs", ["compared", "batch", "lr", "seed", "updates", "val_loss"],
            [[one.label, arm.label, lab.rate(arm.best()[1]), seed, run.end.get("step"), run.val]
             for one, other in compared for arm in (one, other)
             for seed, run in zip(arm.plan["seeds"], arm.chosen())])


# ---------------------------------------------------------------- from the tables on

# Final losses, one a seed: of the growing batch less the constant one. interval: (mean, low, high).
Pair = namedtuple("Pair", "one other gaps interval")


def read_pairs(rows):
    """[Pair]"""
    found = []
    for (one,), own in kept.grouped(rows, "compared").items():
        (_, grown), ((other,), flat) = kept.grouped(own, "batch").items()
        flat = {row["seed"]: row["val_loss"] for row in flat}
        gaps = [row["val_loss"] - flat[row["seed"]] for row in grown]
        found.append(Pair(one, other, gaps, fit.mean_interval(gaps)))
    return found


def below(pair):
    return f"{sum(gap < 0.0 for gap in pair.gaps)} of {len(pair.gaps)}"


def draw(pairs):
    """Of each pair the differences of its seeds, and beside them their mean and its interval."""
    curves = [lab.Curve("a seed", [i - 0.1 for i, pair in enumerate(pairs) for _ in pair.gaps],
                        [gap for pair in pairs for gap in pair.gaps],
                        look={"linestyle": "", "alpha": 0.5}),
              lab.Curve("the mean of all", [i + 0.1 for i, _ in enumerate(pairs)],
                        *zip(*(pair.interval for pair in pairs)),
                        {"linestyle": "", "markersize": 8})]
    figure = lab.panels([{
        "curves": curves, "x": "", "y": "final loss, growing less constant batch (nats)",
        "names": [f"{pair.one}\nless {pair.other}" for pair in pairs]}],
        f"{below(pairs[0])} seeds end lower when the norm test enlarges the batch\nthan with a "
        f"{pairs[0].other} tokens, after as many tokens and updates")
    figure.axes[0].axhline(0.0, color="black", linewidth=1.2)
    return figure


def conclude(e):
    pairs = read_pairs(e.rows("pairs"))
    for pair in pairs:
        e.found(f"final loss, {pair.one} less {pair.other} tokens, {below(pair)} pairs below zero",
                *pair.interval)
    e.figure("schedules", draw(pairs),
             alt="Final loss with a growing batch less that with a constant one: a point for each "
                 "seed, in a group for each schedule, with the mean and its interval.",
             caption="Each point is one seed's difference; intervals of 90%. With as many devices "
                     "as its batch keeps busy, a run's time is its number of updates.")
    return [("", *pairs[0].interval)]


if __name__ == "__main__":
    lab.experiment(
        7, "schedules", measure, conclude, endpoint=(-math.inf, 0.0),
        title="A growing batch against a constant one",
        question="Does a batch that grows during training end at a lower loss than a constant "
                 "batch, after as many tokens and as many updates?",
        prediction="B_crit grows as the loss falls. A batch that grows with it wastes fewer tokens "
                   "early and fewer updates late. So the norm test ends lower than a constant "
                   "batch that makes as many updates.")
