#!/usr/bin/env python3
"""Experiment 2, the knee with every batch annealed, by scripts/lab/plans/02_front.md.

    scripts/lab/experiments/02_front.py --quick

From the start to a loss; each batch decays its own best rate to zero, and arrives there at the end.
--quick takes the rates that 02_knee.py has found. Experiment 10 replays these runs.
"""
import math
from collections import namedtuple
from statistics import fmean as mean

import fit
import kept
import lab
import local_knee

T, MEMORY = 32, 2 ** 21
CHOOSES, MEASURE = 30, [31, 32, 33, 34, 35, 36]  # seeds
BESIDE = {4: 2.0, 8: 2.0, 16: 2.0, 32: 0.5}      # {k: times the rate that was chosen}

# batch, rate: the smallest, and the first rate to try there. tokens, knee: a guess, from below, of
# what it takes, and of B_crit. ks: batches in units of the smallest; ratio: of two of these.
Size = namedtuple("Size", "name target batch rate tokens knee ks ratio")
SIZES = {"full": Size("0.8M", 1.4, 128, 1e-3, 0.8e6, 4500.0, (1, 2, 4, 8, 16, 32, 64), (4, 32)),
         "quick": Size("119k", 2.0, 256, 2e-3, 3.4e5, 1300.0, (1, 2, 4, 8, 16), (1, 16)),
         "tiny": Size("35k", 3.3, 64, 8e-3, 1.6e3, 300.0, (1, 2), (1, 2))}


# ---------------------------------------------------------------- runs

class Annealed(local_knee.Branches):
    """All runs of one seed at one batch. They branch from nothing; a length is a power of the root
    of two."""

    def __init__(self, e, seed, k, known=None):
        size = SIZES[e.size]
        plan = local_knee.Plan(size.name, lab.model(size.name, T), T, e.corpus(
            e.pick(10 ** 6, 8 * 10 ** 6, 32 * 10 ** 6)), size.batch, size.rate, size.knee, (0,),
            size.ks, e.pick(2048, 16384, 16384), MEMORY)
        super().__init__(plan, seed, 0, k, size.target, known)
        self.warmup = e.pick(4, 20, 20)                      # updates
        if known and e.size == "full":
            self.most_lengths = 3                            # 1.7 times the chosen length, at most
        self.want = {(power, length) for power, length in self.want if length < 2}
        self.first = known[1] if known else (
            size.tokens * (1.0 + k * size.batch / size.knee) / (k * size.batch))

    def updates(self, length):
        return max(2 * self.warmup, round(self.first * 2.0 ** (length / 2.0)))

    def rate(self, power):
        return self.plan.rate * 2.0 ** (round(0.4 * math.log2(self.k)) + power)

    def job(self, power, updates):
        plan, batch, rate = self.plan, self.k * self.plan.batch, self.rate(power)
        return lab.Job(f"{plan.name}_b{batch}_lr{rate:.6f}_s{self.seed}_n{updates}", [
            "--data", plan.corpus, *plan.model, "--micro-batch", min(batch // T, plan.micro),
            "--batch-tokens", batch, "--lr", f"{rate:.6g}", "--lr-schedule", "linear",
            "--final-lr-frac", 0, "--warmup-tokens", self.warmup * batch,
            "--beta2", f"{lab.half_life_beta2(batch):.7g}", "--tokens", updates * batch,
            "--eval-every", max(1, updates // 24), "--eval-tokens", plan.eval, "--save-every", 0,
            "--seed", self.seed, *local_knee.decay(plan, batch, rate)],
            thin=20, cost=updates * batch)


def choose(e):
    """[(Annealed, fit.Point)] of each batch; the point's rate in units of the first guess."""
    size = SIZES[e.size]
    tuned = [Annealed(e, CHOOSES, k) for k in size.ks]
    if e.size == "quick":
        return [(b, fit.Point(row["batch_tokens"], row["best_lr"] / b.rate(0), [],
                              row["updates_median"], False)) for b in tuned
                for row in kept.table("02_knee", "points", size=size.name, target_nats=size.target,
                                      batch_tokens=b.k * size.batch)]
    local_knee.search(e, tuned)
    return [(b, b.point()) for b in tuned if b.point()]


def measure(e):
    plan, size, points = lab.plan(e), SIZES[e.size], choose(e)
    made = [Annealed(e, seed, b.k, (p.lr, p.median)) for b, p in points if not p.edge
            for seed in e.pick(MEASURE[:2], MEASURE[:2], MEASURE)]
    runs = local_knee.search(e, made)
    e.table("tuned", ["batch_tokens", "lr", "updates", "edge", "plan"],
            [[p.batch, b.rate(math.log2(p.lr)), p.median, int(p.edge), plan] for b, p in points])
    e.table("runs", ["batch_tokens", "seed", "updates"],
            [[p.batch, b.seed, p.median] for b in made for p in [b.point()] if p])
    e.table("neighbours", ["batch_tokens", "lr", "seed", "updates"], neighbours(e, points))
    e.table("curves", ["batch_tokens", "step", "val_loss"],
            [[b.k * size.batch, x["step"], x["val_loss"]] for b in made if b.seed == MEASURE[0]
             for job in shortest(b, runs) for x in runs[job.name].evals])


def neighbours(e, points):
    """Rows of three measuring seeds at another rate than was chosen."""
    made = [Annealed(e, seed, b.k, (p.lr * BESIDE[b.k], p.median)) for b, p in points
            for seed in e.pick([], [], MEASURE[:3]) if b.k in BESIDE]
    local_knee.search(e, made)
    return [[b.k * b.plan.batch, b.rate(math.log2(b.known[0])), b.seed,
             b.point() and b.point().median] for b in made]


def shortest(b, runs):
    """[the shortest job that ends at the target], empty without."""
    return sorted([job for job in b.jobs().values() if runs[job.name].val <= b.target],
                  key=lambda job: job.cost)[:1]


# ---------------------------------------------------------------- from the tables on

def fits(e):
    """[(S_min, B_crit, rms, B_min, rms with it)] of each seed with four batches; tiny: two."""
    found = []
    for _, own in sorted(kept.grouped(e.rows("runs"), "seed").items()):
        batches, updates = ([row[key] for row in own] for key in ("batch_tokens", "updates"))
        if len(own) >= e.pick(2, 4, 4):
            b_min = fit.smallest_batch(batches, updates)
            shifted = fit.least_squares([b - b_min for b in batches], updates)
            found.append((*fit.least_squares(batches, updates), b_min, shifted[2]))
    return found


def conclude(e):
    size, by_batch = SIZES[e.size], sorted(kept.grouped(e.rows("runs"), "batch_tokens").items())
    of = {batch: {row["seed"]: row["updates"] for row in own} for (batch,), own in by_batch}
    if len(of) < 2:
        return "fewer than two batches reached the loss"
    e.table("points", ["size", "target_nats", "batch_tokens", "updates_mean", "low", "high",
                       "tokens_mean"],
            [[size.name, size.target, batch, n, low, high, n * batch] for batch, own in of.items()
             for n, low, high in [fit.mean_interval(list(own.values()))]])
    found = fits(e)
    if found:
        _, b_crit, rms, b_min, shifted = zip(*found)
        e.found("B_crit in tokens", *fit.ratio_interval(b_crit))
        e.found("B_min in tokens", *fit.mean_interval(b_min))
        e.found("rms error of McCandlish's form", mean(rms))
        e.found("rms error of the form with B_min", mean(shifted))
    last = list(of.values())[-2:]
    e.found("updates of the largest batch over those of half of it", *fit.ratio_interval(
        [n / last[0][seed] for seed, n in last[1].items() if seed in last[0]]))
    small, large = (of.get(k * size.batch, {}) for k in size.ratio)
    more = [large[seed] / n * size.ratio[1] / size.ratio[0] for seed, n in small.items()
            if seed in large]
    if found:
        e.figure("front", draw(e, found), alt=(
            "Updates and tokens to a loss against the batch size: as it grows, updates fall and "
            "tokens rise."),
            caption="Mean of the seeds; bars: 90%. Each batch at its own best rate. Constant rate: "
            "without bars.")
    return [("", *fit.ratio_interval(more))] if len(more) > 1 else []


def draw(e, found):
    size, points = SIZES[e.size], e.rows("points")
    batches = [row["batch_tokens"] for row in points]
    constant = {batch: mean(own.values()) for batch, (_, own) in
                kept.pooled(size.name, size.target).items() if batch in batches}
    s_min, b_crit = (fit.ratio_interval(of)[0] for of in list(zip(*found))[:2])
    formula = {batch: fit.predicted_updates(batch, s_min, b_crit) for batch in batches}
    plain = {"marker": "", "color": "black"}
    return lab.panels([{"curves": [
        lab.Curve("annealed", batches, *(
            [(row[key] or row["updates_mean"]) * times(row["batch_tokens"]) for row in points]
            for key in ("updates_mean", "low", "high"))),      # no bars around a single seed
        *(lab.Curve(name, list(of), [n * times(batch) for batch, n in of.items()], look=look)
          for name, of, look in [("McCandlish's formula, fitted", formula, plain), ("constant rate", constant, {})])],
        "x": "batch size (tokens per update)", "y": words, "log": (2, 2)} for times, words in [
            (lambda batch: 1, "updates"), (lambda batch: batch / 1e6, "million tokens")]],
        f"{size.name} parameters to a loss of {size.target:g}", (10, 4.6))


if __name__ == "__main__":
    lab.experiment(
        2, "front", measure, conclude, endpoint=(1.3, 1.8),
        title="The knee, every batch annealed",
        question="What does a larger batch save, and what does it cost in tokens, if no batch is "
        "handicapped by its schedule?",
        prediction="To a loss of 1.4, 0.8M parameters take 1.3 to 1.8 times as many tokens in "
        "batches of 4,096 as of 512.")
