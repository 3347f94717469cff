#!/usr/bin/env python3
"""Experiment 9, why your curves showed nothing: the same runs, small batches and large ones, drawn
against tokens, updates, seconds on one device and seconds on 64. And once more with the large
batches at the small one's learning rate, a usual mistake.

    scripts/lab/experiments/09_curves.py --quick

A run's learning does not depend on how its batch is split over devices. So each run is made once,
on one core; its seconds on n devices are its updates times what a share of the batch takes on a
core (experiment 4's line), over a link that costs nothing. A device has at least one sequence.
"""
import math
from collections import namedtuple

import _path
import kept
import lab

T, DEVICES, MANY = 32, 8, 64                     # tokens of a sequence; numbers of devices
WARMUP = 20                                      # updates, counted like the others

# target: a loss. tokens, knee: a run stops at tokens (1 + B/knee). batches: {tokens of an update:
# seeds}; the smallest batch's rate is the one that stays untouched. untouched: {batch: seeds} of
# that arm. rate: where the search for a rate begins that experiment 2 does not know.
Model = namedtuple("Model", "name layers heads channels target tokens knee batches "
                            "untouched rate")
MODELS = {
    "full": [Model("0.8M", 4, 4, 128, 1.4, 3e6, 6e3,
                   {256: [5, 6], 512: [5, 6, 7], 1024: [5, 6, 7], 2048: [5, 6, 7], 4096: [5, 6],
                    8192: [5, 6]},
                   {1024: [5], 2048: [5, 6, 7], 4096: [5], 8192: [5]}, 1e-3),
             Model("119k", 2, 2, 64, 1.4, 6e6, 8e3,
                   {256: [5, 6], 512: [5, 6], 1024: [5, 6], 2048: [5, 6], 4096: [5, 6],
                    8192: [5, 6]},
                   {1024: [5], 2048: [5, 6], 4096: [5], 8192: [5]}, 1e-3)],
    "quick": [Model("119k", 2, 2, 64, 2.0, 1.2e6, 4e3,
                    {256: [5], 1024: [5], 4096: [5]}, {1024: [5], 4096: [5]}, 1e-3)],
    "tiny": [Model("35k", 2, 2, 32, 3.3, 2e4, 200.0, {32: [5, 6], 128: [5, 6]},
                   {128: [5, 6]}, 4e-3)]}


# ---------------------------------------------------------------- runs

def job(e, model, batch, lr, seed):
    most = model.tokens * (1.0 + batch / model.knee)
    every = e.pick(2048, 16384, 32768)
    return lab.Job(f"{model.name}_b{batch}_lr{lr:.6f}_s{seed}", [
        "--data", e.corpus(e.pick(10 ** 6, 8 * 10 ** 6, 32 * 10 ** 6)), "--layers", model.layers,
        "--heads", model.heads, "--channels", model.channels, "--seq-len", T,
        "--micro-batch", min(batch // T, 64), "--batch-tokens", batch, "--lr", f"{lr:.6g}",
        "--lr-schedule", "constant", "--warmup-tokens", WARMUP * batch,
        "--beta2", f"{lab.half_life_beta2(batch):.7g}", "--tokens",
        math.ceil(most / batch) * batch, "--target-loss", model.target,
        "--eval-every", max(1, every // batch), "--eval-tokens", e.pick(2048, 4096, 8192),
        "--seed", seed], cost=most, thin=100)


class Tuned(lab.Tuned):
    """A batch whose best rate is not known: the fewest updates with seed 1."""

    def __init__(self, e, model, batch):
        self.model = model
        super().__init__(lambda _, k, seed: job(e, model, batch, self.rate(k), seed), {None: 0},
                         {"first": 1, "seeds": [], "grid": e.pick([0], [0, 1], [-1, 0, 1]),
                          "extend": e.pick(None, (-3, 4), (-3, 4))})
        self.batch = batch

    def rate(self, k):
        return self.model.rate * 2.0 ** k

    def score(self, run):
        return run.updates_at(self.model.target) or math.inf


def rates(e, models):
    """{(model name, batch): best rate}: experiment 2's, or tuned here."""
    found = {(m.name, b): kept.best_rate(m.name, m.target, b)
             for m in models for b in m.batches}
    tuned = lab.tune(e, [Tuned(e, m, b) for m in models for b in m.batches
                         if not found[m.name, b]])
    return {**found, **{(t.model.name, t.batch): t.rate(t.best()[1]) for t in tuned}}


# arm: "tuned" or "untouched". runs: {seed: Run}
Curve = namedtuple("Curve", "model batch arm lr runs")


def measure(e, models, best):
    """[Curve]. Where the untouched rate is the best one, both arms are the same runs."""
    wanted = []
    for m in models:
        small = best[m.name, min(m.batches)]
        wanted += [(m, b, "tuned", best[m.name, b], seeds) for b, seeds in m.batches.items()]
        wanted += [(m, b, "untouched", small, seeds) for b, seeds in m.untouched.items()]
    jobs = {(m.name, b, lr, seed): job(e, m, b, lr, seed)
            for m, b, _, lr, seeds in wanted for seed in seeds}
    runs = e.run(list(jobs.values()))
    return [Curve(m, b, arm, lr, {seed: runs[jobs[m.name, b, lr, seed].name] for seed in seeds})
            for m, b, arm, lr, seeds in wanted]


# ---------------------------------------------------------------- numbers

def update_seconds(e, model, batch, devices):
    """By experiment 4's line: t_0 + tau b, b = B/n, at least a sequence. None if it did not measure the model."""
    line = next((row for row in kept.table("04_one_device", "line", e.args.out)
                 if (row["model"], row["threads"]) == (model.name, 1.0)), None)
    return line and line["t_0"] + line["tau"] * batch / min(devices, batch // T)


def updates(curve):
    """Of each seed, None where the target was not reached."""
    return [run.updates_at(curve.model.target) for run in curve.runs.values()]


def mean_updates(curve):
    """None if a seed did not reach the target."""
    found = updates(curve)
    return None if None in found else sum(found) / len(found)


# ---------------------------------------------------------------- tables, words

def write(e, curves):
    e.csv("curves", ["model", "batch_tokens", "arm", "lr", "seed", "step", "tokens",
                     "seconds_one", *(f"seconds_{n}" for n in (DEVICES, MANY)), "val_loss"],
          [[c.model.name, c.batch, c.arm, c.lr, seed, x["step"], x["tokens"],
            *(one and x["step"] * one for one in seconds), x["val_loss"]]
           for c in curves for seconds in [[update_seconds(e, c.model, c.batch, n)
                                            for n in (1, DEVICES, MANY)]]
           for seed, run in c.runs.items() for x in run.evals if lab.number(x["val_loss"])])
    e.csv("targets", ["model", "batch_tokens", "arm", "lr", "seed", "target_nats",
                      "updates", "tokens", "seconds_one", *(f"seconds_{n}" for n in (DEVICES, MANY))],
          [[c.model.name, c.batch, c.arm, c.lr, seed, c.model.target, n,
            n and n * c.batch, *(one and n and n * one for one in seconds)]
           for c in curves for seconds in [[update_seconds(e, c.model, c.batch, n)
                                            for n in (1, DEVICES, MANY)]]
           for seed, n in zip(c.runs, updates(c))])


def told(e, curve, devices):
    n, one = mean_updates(curve), update_seconds(e, curve.model, curve.batch, devices)
    words = f"{curve.batch:,} tokens "
    if n is None:
        return words + "not within its tokens"
    return words + (f"{n * one:.1f} s" if one else f"{n:,.0f} updates")


def say(e, models, curves):
    for m in models:
        name = f"{m.name} parameters"
        own = [c for c in curves if c.model == m and c.arm == "tuned"]
        late = [c for c in curves if c.model == m and c.arm == "untouched"]
        e.say(f"{name}, to {m.target:g} nats, each batch at its best rate: " + "; ".join(
            f"{c.batch:,} tokens (rate {c.lr:g}) {mean_updates(c):,.0f} updates, "
            f"{mean_updates(c) * c.batch / 1e6:.2f}M tokens" if mean_updates(c) else
            f"{c.batch:,} tokens (rate {c.lr:g}) not reached" for c in own) + ".")
        for n in (1, DEVICES, MANY):
            e.say(f"{name}, seconds on {n} device{'s' * (n > 1)}, modelled from updates and "
                  f"experiment 4's line: " + "; ".join(told(e, c, n) for c in own) + ".")
        e.say(f"{name}, at the rate of {min(m.batches):,} tokens, {late[0].lr:g}, on {DEVICES} "
              "devices: " + "; ".join(told(e, c, DEVICES) for c in late) + ".")


# ---------------------------------------------------------------- picture

def draw(plt, e, model, curves):
    """Four panels, the same runs: what one sees depends on the axis."""
    own = [c for c in curves if c.model == model and c.arm == "tuned"]
    shown = own[::2] if len(own) > 3 else own
    figure, panels = plt.subplots(2, 2, figsize=(8.4, 6.6), sharey=True, layout="constrained")
    ways = [("million tokens", "the same text: small batches look best", lambda c, x: x["tokens"]
             / 1e6),
            ("updates", "the same updates: large batches win", lambda c, x: x["step"])]
    ways += [(f"seconds on {n} device{'s' * (n > 1)}, modelled", title,
              lambda c, x, n=n: x["step"] * (update_seconds(e, c.model, c.batch, n) or math.nan))
             for n, title in [(1, "one device: nothing gained"),
                              (MANY, f"{MANY} devices: a small batch cannot feed them")]]
    for ax, (label, title, at) in zip(panels.flat, ways):
        ends = []
        for i, c in enumerate(shown):
            run = next(iter(c.runs.values()))
            points = [(at(c, x), x["val_loss"]) for x in run.evals if lab.number(x["val_loss"])]
            ax.plot(*zip(*points), linewidth=1.7, color=lab.COLOURS[i], label=f"{c.batch:,} tokens")
            ends.append(points[-1][0])
        ax.axhline(model.target, color="#888888", linewidth=0.8)
        ax.set_xlim(0, 1.02 * max(ends))
        ax.set_ylim(model.target - 0.05, model.target + 1.2)
        if ax is panels[0][0]:
            ax.legend(loc="upper right", title="an update of")
        lab.axes(ax, label, "validation loss" if ax in panels[:, 0] else None, title)
    return figure


def main():
    e = lab.Experiment(
        9, "curves", title="Why your curves showed nothing",
        question="More devices, a larger batch, and the curves look no better: where is the gain?",
        prediction="Against tokens small batches look best, against updates large ones; against "
                   "seconds on one device nothing is gained, on many it is. A large batch at the "
                   "small one's learning rate loses at least 15% of its speed.")
    models = MODELS[e.size]
    best = rates(e, models)
    curves = measure(e, models, best)
    e.setting(f"T={T}, a constant rate after {WARMUP} updates of warm-up; rates are those of "
              "experiment 2, or tuned on seed 1 a factor of 2 apart.")
    write(e, curves)
    say(e, models, curves)
    e.figure("curves", lambda plt: draw(plt, e, models[0], curves),
             alt="Loss of the same runs against tokens, updates, seconds on one device and seconds "
                 f"on {MANY} devices.",
             caption=f"{models[0].name} parameters. Seconds are modelled: measured updates times "
                     "the seconds that a share takes on one core, over a free link.")
    e.observe()
    e.close()


if __name__ == "__main__":
    main()
