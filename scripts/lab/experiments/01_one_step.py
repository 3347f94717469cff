#!/usr/bin/env python3
"""Experiment 1: one step. From a checkpoint, how far does one step lower the loss, at each batch
and learning rate? Predicted from gradients and curvature alone, then measured.

    scripts/lab/experiments/01_one_step.py --quick
"""
import csv
import math
import os
import random

import numpy as np
import fit
import kept
import lab

PROGRAM = os.path.join("build", "one_step")
FLOOR = 0.05                                     # a point's least relative error, for fits
T = 32                                           # tokens of a sequence
DIRECTIONS = {"adam": "Adam's direction", "sgd": "SGD's direction"}


# ---------------------------------------------------------------- runs

def train_job(e, plan, name, more):
    """The checkpoint that steps start from."""
    return lab.Job(name, [
        "--data", e.corpus(plan["corpus"]), *lab.model("35k", T), "--batch-tokens", 16 * T,
        "--micro-batch", 4, "--noise-scale", "--lr", plan["lr"], "--warmup-tokens", 640 * T,
        "--tokens", plan["tokens"], *more, "--seed", plan["seed"], "--eval-every", 0,
        "--eval-tokens", plan["eval"], "--save-every", 0, "--keep", 1], keep=True,
        cost=plan["tokens"] / 1e6)


def step_job(e, plan, trained, direction):
    """One run of one_step. The environment holds the checkpoint's own flags: with other flags this
    is another run."""
    own = [x for name, value in plan["steps"].items() for x in (f"--{name}", value)]
    return lab.Job(f"{trained.name}_{direction}", [
        "--direction", direction, *own, "--", "--init", e.base(trained),
        "--data", e.corpus(plan["corpus"]), "--seed", plan["seed"], "--seq-len", T,
        "--micro-batch", 512 // T, "--eval-tokens", plan["eval"]],
        program=PROGRAM,
        env={"CHECKPOINT": " ".join(trained.flags)})


class Steps:
    """What one_step printed: lists by name, and the falls of the loss: {batch: (rates, array of one
    row a rate, one column a draw)}."""

    def __init__(self, path):
        falls, self.lists = {}, {}
        with open(path, encoding="utf-8", errors="replace") as f:
            for row in csv.reader(f):
                try:
                    what, batch, rate, _, value = row[0], *map(float, row[1:])
                except ValueError:
                    continue                                 # the header, or a message
                if what == "fall":
                    falls.setdefault(batch, {}).setdefault(rate, []).append(value)
                else:
                    self.lists.setdefault(what, []).append(value)
        self.falls = {batch: (np.array(sorted(of)), np.array([of[rate] for rate in sorted(of)]))
                      for batch, of in sorted(falls.items())}

    def one(self, name):
        return self.lists[name][0]

    def predicted(self, batch, name="dl_max"):
        """The fall of the loss at the best rate; of "e_max" that rate."""
        return self.one(name) / (1.0 + self.one("b_noise") / batch)


# ---------------------------------------------------------------- estimates

def near_best(rates, falls):
    """(best rate, the part of the grid that tells it): by the parabola through the best rate and
    its neighbours; at an end of the grid that rate itself."""
    best = int(np.argmax(falls))
    if best in (0, len(rates) - 1):
        return rates[best], slice(best, best + 1)
    near = slice(best - 1, best + 2)
    bend, slope, _ = np.polyfit(rates[near], falls[near], 2)
    return -slope / (2.0 * bend), near


def tuned(rates, halves):
    """(fall, rate): each half of the draws chooses the rate at which the other half is reported. A
    half that chose its own rate would report its luck, too."""
    curves = [half.mean(axis=1) for half in halves]
    found = []
    for own, other in (curves, curves[::-1]):
        rate, near = near_best(rates, own)
        found.append((np.polyval(np.polyfit(rates[near], other[near], len(rates[near]) - 1), rate),
                      rate))
    return (found[0][0] + found[1][0]) / 2.0, math.sqrt(found[0][1] * found[1][1])


def curve_fit(points, errors):
    """(value at a large batch, B_noise) of value/(1 + B_noise/B) through {batch: value}, by least
    squares in logarithms; None with fewer than 4 positive values. A point counts less the larger
    its relative error. 1/value has the form of fit.py's knee."""
    good = [b for b in points if points[b] > 0.0]
    if len(good) < 4:
        return None
    weights = [1.0 / (FLOOR ** 2 + errors[b] ** 2) for b in good]
    least, b_noise, _ = fit.least_squares(good, [1.0 / points[b] for b in good], weights)
    return 1.0 / least, b_noise


def again(rng, half):
    """As many draws, drawn from these."""
    every = range(half.shape[1])
    return half[:, [rng.choice(every) for _ in every]]


class Measured:
    """The falls of one run, tuned and fitted, with 90% intervals from a bootstrap over the draws.
    fall, rate: {batch: value}; fit: (fall at a large batch, B_noise)."""

    def __init__(self, steps, draws=200):
        self.steps, rng = steps, random.Random(1)
        halves = {b: (falls[:, ::2], falls[:, 1::2]) for b, (_, falls) in steps.falls.items()}
        self.fall, self.rate = self.tune(halves)
        self.drawn = [self.tune({b: [again(rng, half) for half in of]
                                 for b, of in halves.items()})[0] for _ in range(draws)]
        relative = {b: self.error(b) / max(abs(self.fall[b]), 1e-12) for b in self.fall}
        self.fit = curve_fit(self.fall, relative)
        self.drawn_fits = [curve_fit(fall, relative) for fall in self.drawn]
        # The prediction has an error of its own: that of so many single sequences.
        noise = steps.lists["noise_curvature"]
        self.noises = [np.mean([rng.choice(noise) for _ in noise]) / steps.one("curvature")
                       for _ in range(draws)]

    def tune(self, halves):
        found = {b: tuned(self.steps.falls[b][0], of) for b, of in halves.items()}
        return [{b: f[i] for b, f in found.items()} for i in (0, 1)]

    def fall_range(self, batch):
        return middle_90([fall[batch] for fall in self.drawn])

    def error(self, batch):
        low, high = self.fall_range(batch)
        return (high - low) / 2.0 / 1.645

    def rows(self):
        """Of the table `fits`: each fitted number with its range, and over the predicted one."""
        fits = [(of, noise) for of, noise in zip(self.drawn_fits, self.noises) if of]
        tops, b_noises = ([of[i] for of, _ in fits] for i in (0, 1))
        for what, value, drawn, ratios in [
                ("dl_max", self.fit[0], tops, [x / self.steps.one("dl_max") for x in tops]),
                ("b_noise", self.fit[1], b_noises, [of[1] / noise for of, noise in fits])]:
            predicted = self.steps.one(what)
            yield [what, predicted, value, *middle_90(drawn), value / predicted, *middle_90(ratios)]


def middle_90(values):
    ordered = sorted(values)
    return ordered[int(0.05 * len(ordered))], ordered[max(0, int(0.95 * len(ordered)) - 1)]


# ---------------------------------------------------------------- tables

def write_tables(e, measured):
    """measured: {(checkpoint, direction): Measured}"""
    e.table("points", ["checkpoint", "direction", "batch_tokens", "draws", "fall", "fall_low",
                       "fall_high", "fall_predicted", "rate", "rate_predicted"],
            [[*of, int(b), m.steps.falls[b][1].shape[1], m.fall[b], *m.fall_range(b),
              m.steps.predicted(b), m.rate[b], m.steps.predicted(b, "e_max")]
             for of, m in measured.items() for b in m.fall])
    e.table("fits", ["checkpoint", "direction", "loss", "quantity", "predicted", "fitted", "low",
                     "high", "fitted_over_predicted", "ratio_low", "ratio_high"],
            [[*of, m.steps.one("loss"), *row]
             for of, m in measured.items() if m.fit for row in m.rows()])


# ---------------------------------------------------------------- from the tables on

def draw(points, fits):
    """The fall of the loss in one step of Adam's direction: predicted, fitted and measured. points,
    fits: rows of the tables."""
    curves, halves = [], []
    for i, name in enumerate(["constant", "annealed"]):
        of = [p for p in kept.only(points, checkpoint=name, direction="adam") if p["fall"] > 0.0]
        known = {row["quantity"]: row for row in kept.only(fits, checkpoint=name, direction="adam")}
        if not of or not known:
            continue
        colour, x = {"color": lab.COLOURS[i]}, [p["batch_tokens"] for p in of]
        across = np.geomspace(x[0], x[-1], 61)
        for kind, line in [("predicted", "-"), ("fitted", "--")]:
            top, b_noise = known["dl_max"][kind], known["b_noise"][kind]
            curves.append(lab.Curve(f"{name} rate, {kind}", across, top / (1.0 + b_noise / across),
                                    look={**colour, "marker": "", "linestyle": line}))
        curves.append(lab.Curve(
            None, x, [p["fall"] for p in of], [max(p["fall_low"], p["fall"] / 5.0) for p in of],
            [p["fall_high"] for p in of], {**colour, "marker": "o", "linestyle": ""}))
        halves.append(known["b_noise"]["fitted"])
        curves.append(lab.Curve(None, halves[-1:], [known["dl_max"]["fitted"] / 2], look={
            **colour, "marker": "*", "markersize": 19, "markerfacecolor": "white", "zorder": 1}))
    half, more = [f"{b:,.0f}" for b in halves] if len(halves) == 2 else "??"
    return lab.panels([{
        "curves": curves, "x": "tokens of the step's batch", "log": (2, 10),
        "y": "nats that the loss falls in one step"}],
        f"A step of {half} tokens does half of what a very large one does; after annealing, {more}")


def conclude(e):
    """The plan judges Adam's direction at both checkpoints, and nothing unless both have a fit."""
    judged = []
    for row in e.rows("fits"):
        ratio = [row[key] for key in ("fitted_over_predicted", "ratio_low", "ratio_high")]
        e.found(f"{row['checkpoint']} rate, {DIRECTIONS[row['direction']]}: {row['quantity']} "
                "fitted over predicted", *ratio)
        if (row["direction"], row["quantity"]) == ("adam", "b_noise"):
            judged.append((f"{row['checkpoint']} rate", *ratio))
    e.figure("one_step", draw(e.rows("points"), e.rows("fits")), alt=(
        "How far one step lowers the loss, against its batch in tokens: in proportion to the "
        "batch, then hardly further beyond the noise scale."),
        caption="Solid lines are predicted from gradients and curvature alone. Stars: B_noise, "
                "half of what a very large batch does. Beyond it a larger batch hardly lowers the "
                "loss further: hence a critical batch size.")
    return judged if len(judged) == 2 else []


# ---------------------------------------------------------------- the experiment

def measure(e):
    """Makes the runs and writes the tables."""
    plan = {"lr": 4e-3, "seed": 1, "corpus": e.pick(10 ** 6, 16 * 10 ** 6, 16 * 10 ** 6),
            "tokens": e.pick(32768, 2 ** 20, 2 ** 20), "eval": e.pick(1024, 16384, 131072),
            "steps": {"gradient-tokens": e.pick(8192, 262144, 262144),
                      "sequences": e.pick(8, 64, 64), "hessian-tokens": e.pick(1024, 8192, 65536),
                      "span": e.pick(4, 16, 16), "draws": e.pick(4, 12, 64),
                      "draws-above": e.pick(4, 6, 16)}}
    if not os.access(PROGRAM, os.X_OK):
        lab.fail(f"{PROGRAM}: there is no such program; make {PROGRAM}")
    trained = [train_job(e, plan, name, more) for name, more in [
        ("constant", ["--lr-schedule", "constant"]),
        ("annealed", ["--lr-schedule", "wsd", "--final-lr-frac", 0])]]
    jobs = {(of.name, d): step_job(e, plan, of, d) for d in DIRECTIONS for of in trained}
    e.run(trained)
    runs = e.run(list(jobs.values()))
    write_tables(e, {of: Measured(Steps(runs[job.name].base + ".txt"))
                     for of, job in jobs.items()})


if __name__ == "__main__":
    lab.experiment(
        1, "one_step", measure, conclude, endpoint=(1 / 1.5, 1.5), retrospective=True,
        title="One step",
        question="Why does a step of a larger batch lower the loss further, and up to which size?",
        prediction="The fall is ΔL_max/(1 + B_noise/B), at the rate ε_max/(1 + B_noise/B). The "
        "constants follow from gradients and curvature at the checkpoint, without a fit. B_noise "
        "fitted to measured steps lies within a factor of 1.5 of it.")
