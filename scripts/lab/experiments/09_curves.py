#!/usr/bin/env python3
"""Experiment 9, why your curves showed nothing: the same runs, small batches and large ones, drawn
against tokens, updates, seconds on one device and seconds on many. And once more with the large
batches at the small one's learning rate, the usual mistake.

    scripts/lab/experiments/09_curves.py --quick

A run's learning does not depend on how its batch is split over devices. So each run is made once,
on one core; its seconds on n devices are its updates times what a share of the batch takes on a
core (experiment 4's line), over a link that costs nothing.
"""
import math
from collections import namedtuple

import _path
import fit
import kept
import lab

T = 32
WARMUP = 20                                      # updates, counted like the others
EVERY = 32768                                    # tokens between evaluations, at least

# target: a loss. tokens, knee: a run stops at tokens (1 + B/knee). batches: {tokens of an update:
# seeds}; the smallest batch's rate is the one that stays untouched. mistake: the seeds of that arm.
Model = namedtuple("Model", "name layers heads channels target tokens knee batches mistake")
MODELS = {
    "full": [Model("0.8M", 4, 4, 128, 1.4, 3e6, 6e3,
                   {256: [5, 6], 512: [5, 6, 7], 1024: [5, 6, 7], 2048: [5, 6, 7], 4096: [5, 6],
                    8192: [5, 6]},
                   {1024: [5], 2048: [5, 6, 7], 4096: [5], 8192: [5]}),
             Model("119k", 2, 2, 64, 1.4, 6e6, 8e3,
                   {256: [5, 6], 512: [5, 6], 1024: [5, 6], 2048: [5, 6], 4096: [5, 6],
                    8192: [5, 6]},
                   {1024: [5], 2048: [5, 6], 4096: [5], 8192: [5]})],
    "quick": [Model("119k", 2, 2, 64, 2.0, 1.2e6, 4e3,
                    {256: [5], 1024: [5], 4096: [5]}, {1024: [5], 4096: [5]})],
    "tiny": [Model("35k", 2, 2, 32, 2.9, 2e4, 200.0, {32: [5], 128: [5]}, {128: [5]})]}


# ---------------------------------------------------------------- runs

def job(e, model, batch, lr, seed):
    most = model.tokens * (1.0 + batch / model.knee)
    every = e.pick(2048, 16384, EVERY)
    return lab.Job(f"{model.name}_b{batch}_lr{lr:.6f}_s{seed}", [
        "--data", e.corpus(e.pick(10 ** 6, 8 * 10 ** 6, 32 * 10 ** 6)), "--layers", model.layers,
        "--heads", model.heads, "--channels", model.channels, "--seq-len", T,
        "--micro-batch", min(batch // T, 64), "--batch-tokens", batch, "--lr", f"{lr:.6g}",
        "--lr-schedule", "constant", "--warmup-tokens", WARMUP * batch,
        "--beta2", f"{lab.half_life_beta2(batch):.7g}", "--tokens",
        math.ceil(most / batch) * batch, "--target-loss", model.target,
        "--eval-every", max(1, every // batch), "--eval-tokens", e.pick(2048, 4096, 8192),
        "--seed", seed], cost=most, thin=100)


def known_rate(model, batch):
    """The best rate that experiment 2 found for this batch and loss; None if it did not go there."""
    rows = [row for row in kept.table("02_knee", "points") if
            (row["size"], row["reading"], row["target_nats"], row["batch_tokens"])
            == (model.name, "weights", model.target, batch)]
    return rows[0]["best_lr"] if rows else None


class Tuned(lab.Tuned):
    """A batch whose best rate is not known: the fewest updates with seed 1."""

    def __init__(self, e, model, batch):
        self.e, self.model, self.batch = e, model, batch
        super().__init__(lambda _, k, seed: job(e, model, batch, self.rate(k), seed), {None: 0},
                         {"first": 1, "seeds": [], "grid": e.pick([0], [0, 1], [-1, 0, 1]),
                          "extend": e.pick(None, (-3, 4), (-3, 4))})

    def rate(self, k):
        return 1e-3 * 2.0 ** k

    def score(self, run):
        return run.updates_at(self.model.target) or math.inf


def rates(e, model):
    """{batch: best rate}"""
    found = {batch: known_rate(model, batch) for batch in model.batches}
    tuned = lab.tune(e, [Tuned(e, model, batch) for batch, lr in found.items() if lr is None])
    return {**found, **{t.batch: t.rate(t.best()[1]) for t in tuned}}


def main():
    e = lab.Experiment(
        9, "curves", title="Why your curves showed nothing", question="?", prediction="?")
    jobs = []
    for model in MODELS[e.size]:
        best = rates(e, model)
        small = best[min(best)]
        jobs += [job(e, model, b, best[b], s) for b, seeds in model.batches.items() for s in seeds]
        jobs += [job(e, model, b, small, s) for b, seeds in model.mistake.items() for s in seeds
                 if best[b] != small]
    runs = e.run(jobs)
    for j in jobs:
        print(j.name, runs[j.name].updates_at(1.4))


if __name__ == "__main__":
    main()
