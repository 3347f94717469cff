#!/usr/bin/env python3
"""Experiment 1: one step. From a checkpoint, how far does one step lower the loss, at each batch
and learning rate? Predicted from gradients and curvature alone, then measured.

    scripts/lab/experiments/01_one_step.py --quick
"""
import csv
import math
import os
import random
import subprocess
from statistics import fmean as mean

import _path
import numpy as np
import fit
import kept
import lab

PROGRAM = os.path.join("build", "one_step")
FLOOR = 0.05                                     # a point's least relative error, for fits
T = 32                                           # tokens of a sequence
DIRECTIONS = {"adam": "Adam's direction", "sgd": "SGD's direction"}


# ---------------------------------------------------------------- runs

def train_job(e, plan, name, T, more):
    """The checkpoint that steps start from."""
    return lab.Job(name, [
        "--data", e.corpus(plan["corpus"]), "--layers", 2, "--heads", 2, "--channels", 32,
        "--seq-len", T, "--batch-tokens", 16 * T, "--micro-batch", 4, "--noise-scale",
        "--lr", plan["lr"], "--warmup-tokens", 640 * T, "--tokens", plan["tokens"], *more,
        "--seed", plan["seed"], "--eval-every", 0, "--eval-tokens", plan["eval"],
        "--save-every", 0, "--keep", 1], keep=True, cost=plan["tokens"] / 1e6)


def step_job(e, plan, trained, T, direction, cut=0):
    """One run of one_step; `cut` in tokens. The environment holds the checkpoint's own flags: with
    other flags this is another run."""
    sizes = dict(plan["steps"], **(plan["cut_steps"] if cut else {}))
    own = [x for name, value in sizes.items() for x in (f"--{name}", value)]
    return lab.Job(f"{trained.name}_{direction}" + (f"_cut{cut}" if cut else ""), [
        "--direction", direction, "--cut", cut, *own, "--", "--init", e.base(trained),
        "--data", e.corpus(plan["corpus"]), "--seed", plan["seed"], "--seq-len", T,
        "--micro-batch", max(1, 512 // T), "--eval-tokens", plan["eval"]],
        program=PROGRAM, before=[trained.name], cost=4 if cut else 20,
        env={"CHECKPOINT": " ".join(trained.flags)})


def build(e):
    if e.args.redraw:
        return
    try:
        done = subprocess.run(["make", "-s", PROGRAM], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False)
    except OSError as error:
        lab.fail(f"make: {error.strerror}; {PROGRAM} must be built")
    if done.returncode:
        lab.fail(f"make {PROGRAM}: {lab.last_line(done.stdout.decode('utf-8', 'replace'))}")


class Steps:
    """What one_step printed: numbers by name, lists by name, and the falls of the loss as
    {batch: {rate: [one fall a draw]}}."""

    def __init__(self, path):
        self.falls, lists = {}, {}
        with open(path, encoding="utf-8", errors="replace") as f:
            for row in csv.reader(f):
                try:
                    what, batch, rate, _, value = row[0], *map(float, row[1:])
                except ValueError:
                    continue                                 # the header, or a message
                if what == "fall":
                    self.falls.setdefault(batch, {}).setdefault(rate, []).append(value)
                else:
                    lists.setdefault(what, []).append(value)
        self.lists = lists
        self.slope, self.curvature = lists["slope"][0], lists["curvature"][0]
        self.loss, self.e_max = lists["loss"][0], lists["e_max"][0]
        self.dl_max, self.b_noise = lists["dl_max"][0], lists["b_noise"][0]

    def predicted(self, batch):
        return self.dl_max / (1.0 + self.b_noise / batch)

    def predicted_rate(self, batch):
        return self.e_max / (1.0 + self.b_noise / batch)

    def noise_scales(self):
        """B_simple = tr(S)/|G|^2 in tokens, plain and in P's metric: tr(PS)/(G'PG)."""
        return (mean(self.lists["noise_norm2"]) / self.lists["gradient_norm2"][0],
                mean(self.lists["noise_metric2"]) / self.lists["gradient_metric2"][0])


# ---------------------------------------------------------------- estimates

def parabola(rates, falls):
    """(best rate, coefficients) of the parabola through the best rate and its neighbours; at an end
    of the grid the best rate itself, and no coefficients."""
    best = max(range(len(rates)), key=lambda i: falls[i])
    if best in (0, len(rates) - 1):
        return rates[best], None
    (x, y, z), (a, b, c) = rates[best - 1:best + 2], falls[best - 1:best + 2]
    first, second = (b - a) / (y - x), (c - b) / (z - y)
    bend = (second - first) / (z - x)
    return (x + y) / 2.0 - first / (2.0 * bend), best


def at_rate(rates, falls, rate, best):
    """The fall at `rate`, on the parabola through `best` and its neighbours."""
    if best is None:
        return falls[rates.index(rate)]
    near = slice(best - 1, best + 2)
    return float(np.polyval(np.polyfit(rates[near], falls[near], 2), rate))


def tuned(by_rate, halves):
    """(fall, rate): each half of the draws chooses the rate at which the other half is reported. A
    half that chose its own rate would report its luck, too."""
    rates = sorted(by_rate)
    curves = [[mean([by_rate[rate][i] for i in half]) for rate in rates] for half in halves]
    found = []
    for own, other in ((0, 1), (1, 0)):
        rate, best = parabola(rates, curves[own])
        found.append((at_rate(rates, curves[other], rate, best), rate))
    return mean([f for f, _ in found]), math.sqrt(found[0][1] * found[1][1])


def split(by_rate):
    draws = len(next(iter(by_rate.values())))
    return list(range(0, draws, 2)), list(range(1, draws, 2))


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


class Measured:
    """The falls of one run, tuned and fitted, with 90% intervals from a bootstrap over the draws.
    fall, rate: {batch: value}; fits: {"fall" or "rate": (value at a large batch, B_noise)}."""

    def __init__(self, steps, draws=200):
        self.steps, rng = steps, random.Random(1)
        self.fall, self.rate = self.tune({b: split(f) for b, f in steps.falls.items()})
        self.drawn = [self.tune({b: [[rng.choice(half) for _ in half] for half in split(f)]
                                 for b, f in steps.falls.items()}) for _ in range(draws)]
        relative = {b: self.error(b) / max(abs(self.fall[b]), 1e-12) for b in self.fall}
        self.fits = self.fit(self.fall, self.rate, relative)
        self.drawn_fits = [self.fit(fall, rate, relative) for fall, rate in self.drawn]
        # The prediction has an error of its own: that of so many single sequences.
        noise = steps.lists["noise_curvature"]
        self.noises = [mean([rng.choice(noise) for _ in noise]) / steps.curvature
                       for _ in range(draws)]

    def tune(self, halves):
        found = {b: tuned(self.steps.falls[b], halves[b]) for b in sorted(self.steps.falls)}
        return [{b: f[i] for b, f in found.items()} for i in (0, 1)]

    @staticmethod
    def fit(fall, rate, errors):
        return {"fall": curve_fit(fall, errors), "rate": curve_fit(rate, errors)}

    def fall_range(self, batch):
        return middle_90([drawn[0][batch] for drawn in self.drawn])

    def error(self, batch):
        low, high = self.fall_range(batch)
        return (high - low) / 2.0 / 1.645

    def fit_range(self, which, i):
        """Of a fitted number: i = 0 the value at a large batch, 1 B_noise."""
        return middle_90([fits[which][i] for fits in self.drawn_fits if fits[which]])

    def ratios(self):
        """{quantity: (low, high) of fitted over predicted}"""
        low, high = self.fit_range("fall", 0)
        noises = [fits["fall"][1] / n for fits, n in zip(self.drawn_fits, self.noises)
                  if fits["fall"]]
        return {"dl_max": (low / self.steps.dl_max, high / self.steps.dl_max),
                "b_noise": middle_90(noises)}


def middle_90(values):
    ordered = sorted(values)
    return ordered[int(0.05 * len(ordered))], ordered[max(0, int(0.95 * len(ordered)) - 1)]


def live_noise(run):
    """B_simple as the trainer measured it over the last eighth of its run; None where the gradient
    is lost in the noise."""
    steps = [s for s in run.steps if lab.number(s.get("noise_g2")) and lab.number(s.get("noise_s"))]
    late = steps[-max(1, len(steps) // 8):]
    g2, s = sum(x["noise_g2"] for x in late), sum(x["noise_s"] for x in late)
    return s / g2 if g2 > 0.0 else None


# ---------------------------------------------------------------- tables

def write_tables(e, main, cuts, scales):
    e.table("points", ["checkpoint", "direction", "batch_tokens", "draws", "fall", "fall_low",
                       "fall_high", "fall_predicted", "rate", "rate_predicted"],
            [[name, direction, int(b), len(next(iter(m.steps.falls[b].values()))), m.fall[b],
              *m.fall_range(b), m.steps.predicted(b), m.rate[b], m.steps.predicted_rate(b)]
             for (name, direction), m in main.items() for b in m.fall])
    e.table("fits", ["checkpoint", "direction", "loss", "quantity", "predicted", "fitted", "low",
                     "high", "fitted_over_predicted", "ratio_low", "ratio_high"],
            [[name, direction, m.steps.loss, what, predicted, m.fits[which][i],
              *m.fit_range(which, i), m.fits[which][i] / predicted,
              *m.ratios().get(what, (None, None))]
             for (name, direction), m in main.items() if m.fits["fall"]
             for what, which, i, predicted in [
                 ("dl_max", "fall", 0, m.steps.dl_max), ("b_noise", "fall", 1, m.steps.b_noise),
                 ("e_max", "rate", 0, m.steps.e_max),
                 ("b_noise_of_rates", "rate", 1, m.steps.b_noise)]
             if m.fits[which]])
    e.table("noise_scales", ["checkpoint", "b_simple_live", "b_simple", "b_simple_adam",
                             "b_noise_adam", "b_noise_sgd"], scales)
    e.table("context", ["piece_tokens", "batch_tokens", "fall", "fall_low", "fall_high",
                        "fall_predicted"],
            [[cut, int(b), m.fall[b], *m.fall_range(b), m.steps.predicted(b)]
             for cut, m in cuts.items() for b in m.fall])
    e.table("pieces", ["piece_tokens", "whole_tokens", "loss", "batch_tokens", "fall_ratio", "low",
                       "high"],
            [[min(cuts), max(cuts), cuts[max(cuts)].steps.loss, int(context_batch(cuts)),
              *context_ratio(cuts)]])


def context_batch(cuts):
    """A batch that was measured, or nearly so, at every cut: the largest."""
    return min(max(m.fall) for m in cuts.values())


def context_ratio(cuts):
    """(ratio, low, high): the fitted fall with the shortest pieces over that with whole sequences,
    at one batch in tokens; NaN where too few batches lowered the loss."""
    short, whole, batch = cuts[min(cuts)], cuts[max(cuts)], context_batch(cuts)

    def ratio(pair):
        falls = [top / (1.0 + b_noise / batch) for top, b_noise in pair]
        return falls[0] / falls[1]
    if short.fits["fall"] is None or whole.fits["fall"] is None:
        return math.nan, math.nan, math.nan
    pairs = [(a["fall"], b["fall"]) for a, b in zip(short.drawn_fits, whole.drawn_fits)]
    return (ratio((short.fits["fall"], whole.fits["fall"])),
            *middle_90([ratio(pair) for pair in pairs if all(pair)]))


# ---------------------------------------------------------------- from the tables on

def endpoint(fits):
    """What the plan judges, from the rows of `fits`: empty unless both checkpoints have a fit."""
    rows = kept.only(fits, direction="adam", quantity="b_noise")
    return [(f"{row['checkpoint']} rate", row["fitted_over_predicted"], row["ratio_low"],
             row["ratio_high"]) for row in rows] if len(rows) == 2 else []


def tell(e):
    for row in e.rows("fits"):
        if row["quantity"] in ("b_noise", "dl_max"):
            e.found(f"{row['checkpoint']} rate, {DIRECTIONS[row['direction']]}: {row['quantity']} "
                    "fitted over predicted", row["fitted_over_predicted"], row["ratio_low"],
                    row["ratio_high"])
    for row in e.rows("pieces"):
        e.found(f"fall with pieces of {row['piece_tokens']} tokens over whole sequences of "
                f"{row['whole_tokens']}, {row['batch_tokens']} tokens a step", row["fall_ratio"],
                row["low"], row["high"])


def draw(plt, points, fits):
    """The fall of the loss in one step of Adam's direction: predicted, fitted and measured. points,
    fits: rows of the tables."""
    figure, ax = plt.subplots(figsize=(7.6, 5.0), layout="constrained")
    halves = []
    for i, name in enumerate(["constant", "annealed"]):
        of, colour = kept.only(points, checkpoint=name, direction="adam"), lab.COLOURS[i]
        of = [p for p in of if p["fall"] > 0.0]
        known = {row["quantity"]: row for row in kept.only(fits, checkpoint=name, direction="adam")}
        if not of or not known:
            continue
        x, y = [p["batch_tokens"] for p in of], [p["fall"] for p in of]
        across = [x[0] * (x[-1] / x[0]) ** (j / 60) for j in range(61)]
        for kind, look in [("predicted", "-"), ("fitted", "--")]:
            top, b_noise = known["dl_max"][kind], known["b_noise"][kind]
            ax.plot(across, [top / (1.0 + b_noise / b) for b in across], look, color=colour,
                    linewidth=1.8 if look == "-" else 1.2)
        ax.errorbar(x, y, yerr=[[v - max(p["fall_low"], v / 5.0) for v, p in zip(y, of)],
                                [p["fall_high"] - v for v, p in zip(y, of)]],
                    marker=lab.MARKERS[i], linestyle="none", markersize=5, capsize=2, color=colour)
        half = known["b_noise"]["fitted"]
        halves.append(half)
        ax.plot([half], [known["dl_max"]["fitted"] / 2], "*", color=colour, markersize=19,
                markerfacecolor="white", zorder=1)
        ax.annotate(["constant rate", "rate annealed\nto zero"][i], (x[-1], y[-1]), xytext=(9, 0),
                    textcoords="offset points", va="center", color=colour)
    for look, words in [("-", "predicted, without a fit"), ("--", "fitted"),
                        ("o", "measured, 90% of resampled draws"),
                        ("*", "B_noise: half of what a very large batch does")]:
        ax.plot([], [], look, color="#555555", label=words, markerfacecolor="white" if look == "*"
                else "#555555", markersize=12 if look == "*" else 6)
    ax.legend(loc="lower right")
    lab.log_axis(ax.xaxis, base=2)
    lab.log_axis(ax.yaxis)
    left, right = ax.get_xlim()
    ax.set_xlim(left, right * (right / left) ** 0.2)         # room for the words
    above = ax.secondary_xaxis("top", functions=(lambda b: b / T, lambda n: n * T))
    lab.log_axis(above.xaxis, base=2)
    above.set_xlabel(f"sequences of {T} tokens")
    lab.axes(ax, "tokens of the step's batch", "nats that the loss falls in one step")
    if len(halves) == 2:
        figure.suptitle(f"A step of {halves[0]:,.0f} tokens does half of what a very large one "
                        f"does; after annealing, {halves[1]:,.0f}", x=0.01, ha="left",
                        fontsize=10.5)
    return figure


def conclude(e):
    points, fits = e.rows("points"), e.rows("fits")
    tell(e)
    e.figure("one_step", lambda plt: draw(plt, points, fits), alt=(
        "How far one step lowers the loss, against its batch in tokens and in sequences: in "
        "proportion to the batch, then hardly further beyond the noise scale."),
        caption="Solid lines are predicted from gradients and curvature alone. Beyond B_noise a "
                "larger batch hardly lowers the loss further: hence a critical batch size.")
    e.decide(endpoint(fits))


# ---------------------------------------------------------------- the experiment

def settings(e, plan):
    sizes = plan["steps"]
    e.setting(f"2 layers, 32 channels, T={T}, {plan['tokens']:,} tokens in batches of "
              f"{16 * T} at rate {plan['lr']}, constant or with its last fifth annealed "
              f"to zero. G from {sizes['gradient-tokens']:,} tokens, S from {sizes['sequences']} "
              f"single sequences, H over {sizes['hessian-tokens']:,} tokens; {sizes['draws']} "
              f"draws a batch below B_noise, {sizes['draws-above']} above; {plan['eval']:,} held-"
              "out tokens. Each half of the draws chooses the rate at which the other is reported.")


def measure(e):
    """Makes the runs and writes the tables."""
    plan = {"lr": 4e-3, "seed": 1, "corpus": e.pick(10 ** 6, 16 * 10 ** 6, 16 * 10 ** 6),
            "tokens": e.pick(32768, 2 ** 20, 2 ** 20), "eval": e.pick(4096, 16384, 131072),
            "steps": {"gradient-tokens": e.pick(8192, 262144, 262144),
                      "sequences": e.pick(8, 64, 64), "hessian-tokens": e.pick(1024, 8192, 65536),
                      "span": e.pick(4, 16, 16), "draws": e.pick(4, 12, 64),
                      "draws-above": e.pick(4, 6, 16)},
            "cut_T": e.pick(64, 256, 256),
            "cuts": e.pick([64, 8], [256, 8], [256, 128, 64, 32, 16, 8]),
            "cut_steps": {"span": 4, "draws": e.pick(4, 8, 16), "draws-above": e.pick(4, 8, 8)}}
    settings(e, plan)
    build(e)
    trained = {name: train_job(e, plan, name, T, more) for name, more in [
        ("constant", ["--lr-schedule", "constant"]),
        ("annealed", ["--lr-schedule", "wsd", "--final-lr-frac", 0])]}
    long = train_job(e, plan, "long", plan["cut_T"], ["--lr-schedule", "constant"])
    jobs = {(name, d): step_job(e, plan, job, T, d)
            for d in DIRECTIONS for name, job in trained.items()}
    pieces = {cut: step_job(e, plan, long, plan["cut_T"], "adam", cut) for cut in plan["cuts"]}
    runs = e.run([*trained.values(), long, *jobs.values(), *pieces.values()])
    measured = {key: Measured(Steps(runs[job.name].base + ".txt")) for key, job in jobs.items()}
    cuts = {cut: Measured(Steps(runs[job.name].base + ".txt")) for cut, job in pieces.items()}
    write_tables(e, measured, cuts, [
        [name, live_noise(runs[name]), *measured[name, "adam"].steps.noise_scales(),
         measured[name, "adam"].steps.b_noise, measured[name, "sgd"].steps.b_noise]
        for name in trained])


def main():
    e = lab.Experiment(
        1, "one_step", title="One step",
        question="Why does a step of a larger batch lower the loss further, and up to which size?",
        prediction="The fall is ΔL_max/(1 + B_noise/B), at the rate ε_max/(1 + B_noise/B). The "
        "constants follow from gradients and curvature at the checkpoint, without a fit. B_noise "
        "fitted to measured steps lies within a factor of 1.5 of it.")
    if not e.args.kept:
        measure(e)
    conclude(e)
    e.close()


if __name__ == "__main__":
    main()
