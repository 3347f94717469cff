#!/usr/bin/env python3
"""Experiment 2, the knee: updates and tokens to a loss against the batch, for models of several
sizes, and the critical batch size B_crit of each fit against that loss.

    scripts/lab/experiments/02_knee.py --quick

At each batch one seed tries learning rates a factor of 2 apart until the best lies between two
others. The best then runs on a second seed, and so does each that is best after that, until one is
best on both: a rate at the edge of stability is lucky once, seldom twice. Only other seeds at the
chosen rate are reported: the tuned seeds' own results contain the luck that chose it. All targets
are read from the same logs. """
import math
from collections import namedtuple
from statistics import fmean as mean, median

import fit
import kept
import lab

T = 32                               # tokens of a sequence
WARMUP = 20                          # updates, counted like the others
MOST_RATES = 6                       # at a batch
TARGETS = [2.5, 2.25, 2.0, 1.8, 1.7, 1.6, 1.5, 1.4]

# rate: the first to try, at 16 sequences. tokens: roughly what the lowest target takes at a small
# batch, and knee: where tokens begin to rise; a run stops at twice what these two predict.
# batches: {tokens: the lowest target it trains to}; batches far below B_crit need not go further.
Size = namedtuple("Size", "name rate tokens knee batches")

RUNS = ["size", "batch_tokens", "lr", "seed", "target_nats", "updates"]

# One fit: knee is fit.Knee.
Growth = namedtuple("Growth", "size target points knee")


def batches(first, last, lowest, early=()):
    """Powers of two; the first ones stop at the targets in `early`."""
    every = [first * 2 ** i for i in range(round(math.log2(last / first)) + 1)]
    return dict(zip(every, [*early, *[lowest] * len(every)]))


SIZES = {
    "full": [Size("119k", 2e-3, 3.5e6, 8e3, batches(64, 16384, 1.4, [2.0, 1.8, 1.6])),
             Size("35k", 4e-3, 3.5e6, 4e3, batches(64, 8192, 1.7, [2.0, 1.8])),
             Size("0.8M", 1e-3, 1.5e6, 6e3, batches(128, 8192, 1.4, [1.8, 1.6]))],
    "quick": [Size("119k", 2e-3, 5e5, 2e3, batches(256, 4096, 2.0, [2.25]))],
    "tiny": [Size("35k", 4e-3, 8e3, 70.0, batches(32, 256, 2.9))],
}


# ---------------------------------------------------------------- runs

def cap(size, batch):
    """Tokens after which a run counts as not reaching its target."""
    return 2.0 * size.tokens * (1.0 + batch / size.knee)


def rate(size, power):
    return size.rate * 2.0 ** power


def job(e, size, batch, power, seed, target, most, again=False):
    """A run until the target, or `most` tokens."""
    every, corpus = T * e.pick(48, 512, 1024), e.pick(10 ** 6, 8 * 10 ** 6, 32 * 10 ** 6)
    name = f"{size.name}_b{batch}_lr{rate(size, power):.6f}_s{seed}_to{target:g}"
    return lab.Job(name + (f"_in{math.ceil(most / batch)}" if again else ""), [
        "--data", e.corpus(corpus), *lab.model(size.name, T), "--micro-batch", min(batch // T, 64),
        "--batch-tokens", batch, "--lr", f"{rate(size, power):.6g}", "--lr-schedule", "constant",
        "--warmup-tokens", e.pick(2, WARMUP, WARMUP) * batch,
        "--beta2", f"{lab.half_life_beta2(batch):.7g}",
        "--tokens", math.ceil(most / batch) * batch,
        "--target-loss", target, "--eval-every", max(1, every // batch),
        "--eval-tokens", e.pick(2048, 4096, 8192), "--seed", seed], cost=most, thin=100)


class Batch:
    """All runs of one size at one batch. done: {(power, seed, target): Run}."""

    def __init__(self, e, size, batch):
        self.e, self.size, self.batch = e, size, batch
        self.lowest, self.done = size.batches[batch], {}
        self.targets = [t for t in e.targets if t >= self.lowest]

    def read(self, target, seed):
        """{power: updates to the target, or None} of the runs that were to go that far."""
        found = {}
        for (power, own, to), run in self.done.items():
            if own == seed and to <= target:
                found[power] = min(filter(None, [run.updates_at(target), found.get(power)]),
                                   default=None)
        return found

    def tried(self, target):
        """{power: the updates of each tuned seed that has run there}"""
        runs = [self.read(target, seed) for seed in self.e.tuned]
        return {power: [own[power] for own in runs if power in own] for power in runs[0]}

    def best(self, target):
        """fit.Point of the tuned seeds at the best rate so far, with the power of the rate in `lr`;
        or None."""
        tried = self.tried(target)
        return fit.best_rate(self.batch, tried) if tried else None

    def next_rates(self):
        """[(power, target, most tokens)] that are still to be tried on the first seed: beyond an
        edge that is best for some target. The lower side comes first, since it is more often the
        better one. A rate that needs 1.1 times the tokens of the best has lost; where the best was
        lucky, its neighbours go on to 1.1 times what it takes on all seeds."""
        if not self.done:
            first = round(0.4 * math.log2(self.batch / (16 * T)))
            return [(first, self.lowest, cap(self.size, self.batch))]
        want = {}
        for target, best in self.bests():
            tried = self.tried(target)
            if best.edge:
                end = min(tried) - 1 if best.lr == min(tried) else max(tried) + 1
                want.setdefault(end, target)
            for power in {best.lr - 1, best.lr + 1} & set(tried):
                if tried[power] == [None] and self.went(power) < self.most(target, 1.05):
                    want.setdefault(power, target)
        if len({power for power, *_ in self.done} | set(want)) > MOST_RATES:
            return []
        return [(power, target, self.most(target, 1.1)) for power, target in want.items()]

    def went(self, power):
        """The most tokens of the first seed at that rate; infinite if it diverged."""
        return max(math.inf if run.diverged else run.evals[-1]["tokens"]
                   for (own, seed, _), run in self.done.items()
                   if (own, seed) == (power, self.e.tuned[0]))

    def best_runs(self, seeds=math.inf):
        """The same for other seeds: each rate that is best for a target, to the lowest such one, if
        fewer tuned seeds than these have run it."""
        want = {}
        for target, best in self.bests():
            if len(best.updates) < seeds:
                want.setdefault(best.lr, target)
        return [(power, target, self.most(target, 2.0)) for power, target in want.items()]

    def bests(self):
        """[(target, fit.Point)] of the best rates so far, the lowest target first."""
        every = [(target, self.best(target)) for target in sorted(self.targets)]
        return [found for found in every if found[1]]

    def untouched(self, first):
        """A fresh run at the rate that is best for another batch; none if it has been made."""
        best = first.best(self.lowest)
        made = {(power, seed) for power, seed, _ in self.done}
        if not best or first is self or (best.lr, self.e.fresh[-1]) in made:
            return []
        return [(best.lr, self.lowest, cap(self.size, self.batch))]

    def most(self, target, times):
        """`times` the tokens of the best rate so far, at most the cap."""
        best = self.best(target)
        return min(times * best.median * self.batch if best else math.inf,
                   cap(self.size, self.batch))

    def make(self, runs, seeds):
        """Jobs by what they are."""
        return {(power, seed, target): job(self.e, self.size, self.batch, power, seed, target, most,
                                           again=(power, seed, target) in self.done)
                for power, target, most in runs for seed in seeds}


def make_all(e, wanted):
    """wanted: [(Batch, {key: Job})]. Makes the jobs; False if there were none."""
    jobs = [j for _, own in wanted for j in own.values()]
    runs = e.run(jobs)
    for batch, own in wanted:
        batch.done.update({key: runs[j.name] for key, j in own.items()})
    return bool(jobs)


def sweep(e):
    """[Batch]. Rates of all sizes first, then fresh seeds, then each batch at the rate of the
    smallest that goes as far: a sweep that is cut short has whole curves."""
    every = [[Batch(e, size, b) for b in size.batches] for size in e.sizes]
    for own in every:
        while (make_all(e, [(b, b.make(b.next_rates(), e.tuned[:1])) for b in own]) or
               make_all(e, [(b, b.make(b.best_runs(len(e.tuned)), e.tuned[1:])) for b in own])):
            pass
    for own in every:
        make_all(e, [(b, b.make(b.best_runs(), e.fresh)) for b in own])
    for own in every:
        far = [b for b in own if b.lowest == min(of.lowest for of in own)]
        make_all(e, [(b, b.make(b.untouched(far[0]), e.fresh[-1:])) for b in far])
    return [b for own in every for b in own]


def rows_of(e, every):
    """Of the table `runs`: updates to the target, or None."""
    return [[b.size.name, b.batch, rate(b.size, power), seed, target, n]
            for b in every for target in b.targets for seed in e.tuned + e.fresh
            for power, n in sorted(b.read(target, seed).items())]


# ---------------------------------------------------------------- numbers

def point(rows):
    """fit.Point of the fresh seeds at the best rate of the tuned ones; of the tuned seeds while
    there are no others; None if most seeds did not reach the target."""
    tried, reported = ({lr: [row["updates"] for row in own] for (lr,), own in kept.grouped(
        [row for row in rows if (row["seed"] in kept.TUNED) == tuned], "lr").items()}
        for tuned in (True, False))
    best = fit.best_rate(rows[0]["batch_tokens"], tried)
    if best is None:
        return None
    updates = reported.get(best.lr) or best.updates
    middle = median(fit.endless(updates))
    return None if math.isinf(middle) else best._replace(updates=updates, median=middle)


def measure_knees(rows):
    """[Growth] of each size and target, the smallest size first."""
    found = []
    for (size, target), own in sorted(
            kept.grouped(rows, "size", "target_nats").items(), key=lambda at: (
                list(lab.MODELS).index(at[0][0]), -at[0][1])):
        points = [point(runs) for _, runs in sorted(kept.grouped(own, "batch_tokens").items())
                  if any(row["seed"] in kept.TUNED for row in runs)]
        there = [p for p in points if p]
        found.append(Growth(size, target, there, fit.knee(there)))
    return found


# ---------------------------------------------------------------- what was found

def spread(p):
    """Fewest and most updates among the seeds that reached the target."""
    there = [n for n in p.updates if n is not None]
    return min(there), max(there)


def write(e, found):
    e.table("points", ["size", "target_nats", "batch_tokens", "best_lr", "edge", "seeds",
                       "updates_median", "updates_low", "updates_high", "tokens_median",
                       "updates_fit"],
            [[g.size, g.target, p.batch, p.lr, int(p.edge), len(p.updates), p.median,
              *spread(p), p.median * p.batch, None if g.knee.reason else
              fit.predicted_updates(p.batch, g.knee.s_min, g.knee.b_crit)]
             for g in found for p in g.points])
    e.table("fit", ["size", "target_nats", "s_min", "b_crit", "b_crit_low",
                    "b_crit_high", "e_min", "rms", "refused"],
            [[g.size, g.target, k.s_min, k.b_crit, k.low, k.high, k.s_min * k.b_crit,
              k.rms, k.reason] for g in found for k in [g.knee]])


def tell(e, found):
    fits = [g for g in found if not g.knee.reason]
    for g in found:
        of = f"{g.size} to {g.target:g} nats"
        if g.knee.reason:
            print(f"{of}: no fit, because {g.knee.reason}")
        else:
            e.found(f"B_crit of {of}", g.knee.b_crit, g.knee.low, g.knee.high)
    if fits:
        e.found("rms error of the formula, median", median(g.knee.rms for g in fits))


# ---------------------------------------------------------------- the figure

def draw(own):
    """Updates and tokens against the batch, to the lowest loss and two higher ones."""
    shown = [own[at] for at in sorted({len(own) // 4, len(own) // 2, len(own) - 1})]
    a, b, c = (own[-1].points[i] for i in (0, -3, -1))
    figure = lab.panels([{
        "curves": [lab.Curve(f"{g.target:g} nats", [p.batch for p in g.points], *zip(*(
            [times(p) * n for n in (p.median, *spread(p))] for p in g.points)),
                             {"linestyle": "-"}) for g in shown],
        "x": "batch size (tokens per update)", "y": words, "legend": "to a loss of"}
        for times, words in [(lambda p: 1.0, "updates to the loss"),
                             (lambda p: p.batch / 1e6, "million tokens to the loss")]],
        f"{own[-1].size} parameters to a loss of {own[-1].target:g}: {b.batch / a.batch:.0f} times "
        f"the batch took {a.median / b.median:.1f} times fewer updates,\nanother "
        f"{c.batch / b.batch:.0f} times only {b.median / c.median:.1f} times fewer, and "
        f"{c.median * c.batch / b.median / b.batch:.1f} times the tokens", (10, 4.6))
    for ax in figure.axes:
        ax.set_ylim(0, None)
    return figure


def conclude(e):
    found = measure_knees(e.rows("runs"))
    write(e, found)
    tell(e, found)
    curves = [g for g in found if len(g.points) > 2]
    shown = max((g.size for g in curves), key=lambda size: sum(
        len(g.points) for g in curves if g.size == size))
    e.figure("knee", draw([g for g in curves if g.size == shown]), alt=(
        f"{shown} parameters to three losses. Left: updates against the batch fall steeply, then "
        "hardly. Right: tokens against the batch stay nearly the same, then rise in proportion."),
        caption="Points: the best rate of each batch, the median of fresh seeds. Bars: their "
        "range.")


def measure(e):
    e.sizes = SIZES[e.size]
    e.tuned, e.fresh = e.pick(tiny=([1], [3]), quick=([1], [3]), full=([1, 2], [3, 4, 5, 6]))
    e.targets = e.pick([3.0, 2.9], TARGETS, TARGETS)
    e.table("runs", RUNS, rows_of(e, sweep(e)))


if __name__ == "__main__":
    lab.experiment(
        2, "knee", measure, conclude, title="The knee",
        question="How many updates, and how many tokens, does a loss take at each batch size?",
        prediction="About S = S_min (1 + B_crit/B): twice the batch takes half the updates far "
        "below B_crit, and hardly fewer far above it. B_crit grows as the loss falls; at one loss "
        "it depends little on the model's size.")
