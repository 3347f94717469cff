#!/usr/bin/env python3
"""Experiment 2, the knee: updates and tokens to a loss against the batch, for models of several
sizes, and the critical batch B_crit of each fit against that loss.

    scripts/lab/experiments/02_knee.py --quick

At each batch one seed tries learning rates a factor of 2 apart until the best lies between two
others. The best then runs on a second seed, and so does each that is best after that, until one is
best on both: a rate at the edge of stability is lucky once, seldom twice. Two fresh seeds at the
chosen rate are what is reported: the tuned seeds' own results contain the luck that chose it. All
targets are read from the same logs. Beside it stand local knees, from
branches (local_knee.py). Experiments of time read fit.json.
"""
import math
import os
from collections import namedtuple

import _path
import fit
import knee_figures
import lab
import local_knee

WARMUP = 20                          # updates, counted like the others
MOST_RATES = 6                       # at a batch
READINGS = {"weights": ["val_loss"], "averaged": ["val_loss", "val_loss_average"]}
TARGETS = [2.5, 2.25, 2.0, 1.8, 1.7, 1.6, 1.5, 1.4]

# Predicted: the largest rms error of the formula; the exponent of B_crit in training length; how
# far B_crit of two sizes differs at one loss.
RMS, EXPONENT, APART = 0.10, (0.45, 0.75), 1.5

# rate: the first to try, at 16 sequences. tokens: roughly what the lowest target takes at a small
# batch, and knee: where tokens begin to rise; a run stops at twice what these two predict.
# batches: {tokens: the lowest target it trains to}; batches far below B_crit need not go further.
Size = namedtuple("Size", "name layers heads channels rate tokens knee batches")

# One fit: knee is fit.Knee, never the batches that did not reach the target.
Growth = namedtuple("Growth", "size reading target points never knee")


def batches(first, last, lowest, early=()):
    """Powers of two; the first ones stop at the targets in `early`."""
    every = [first * 2 ** i for i in range(round(math.log2(last / first)) + 1)]
    return dict(zip(every, [*early, *[lowest] * len(every)]))


SIZES = {
    "full": [Size("119k", 2, 2, 64, 2e-3, 3.5e6, 8e3, batches(64, 16384, 1.4, [2.0, 1.8, 1.6])),
             Size("35k", 2, 2, 32, 4e-3, 3.5e6, 4e3, batches(64, 8192, 1.7, [2.0, 1.8])),
             Size("0.8M", 4, 4, 128, 1e-3, 1.5e6, 6e3, batches(128, 8192, 1.4, [1.8, 1.6]))],
    "quick": [Size("119k", 2, 2, 64, 2e-3, 5e5, 2e3, batches(256, 4096, 2.0, [2.25])),
              Size("35k", 2, 2, 32, 4e-3, 3e5, 2e3, batches(256, 4096, 2.25))],
    "tiny": [Size("35k", 2, 2, 32, 4e-3, 8e3, 70.0, batches(32, 256, 2.9))],
}


def arguments(parser):
    parser.add_argument("--sizes", metavar="NAMES", help="only these models, as in 35k,119k")
    parser.add_argument("--model", metavar="LAYERS,HEADS,CHANNELS", help="one model of your own, "
                        "with --tokens, --targets and --batches")
    parser.add_argument("--seq-len", type=int, default=32, metavar="T", help="default: 32")
    parser.add_argument("--rate", type=float, default=1e-3, metavar="X", help="of --model: the "
                        "first learning rate to try, at 16 sequences (default: 1e-3)")
    parser.add_argument("--tokens", type=float, metavar="N", help="of --model: roughly what the "
                        "lowest target takes at a small batch; with a small batch a run stops at "
                        "twice that, with a large one later")
    parser.add_argument("--targets", metavar="HIGH,LOW", help="losses in nats a token, falling")
    parser.add_argument("--batches", metavar="FIRST,LAST", help="of --model: in tokens, powers of "
                        "two")
    parser.add_argument("--so-far", action="store_true",
                        help="make no run; draw from those that a longer sweep has made so far")


def numbers(flag, text, count):
    try:
        found = [float(x) for x in text.split(",")]
        assert count is None or len(found) == count
    except (ValueError, AssertionError):
        lab.fail(f"{flag} {text}: expected {count or 'two or more'} numbers, as in 2,4")
    return found


def settings(e):
    e.T, e.sizes = e.args.seq_len, SIZES[e.size]
    e.tuned, e.fresh = e.pick(tiny=([1], [2]), quick=([1], [2]), full=([1, 2], [3, 4]))
    e.targets = e.pick([3.0, 2.9], TARGETS, TARGETS)
    if e.args.targets:
        e.targets = numbers("--targets", e.args.targets, None)
        if len(e.targets) < 2 or e.targets != sorted(set(e.targets), reverse=True):
            lab.fail(f"--targets {e.args.targets}: expected two or more, the highest first")
        e.sizes = [size._replace(batches={b: e.targets[-1] for b in size.batches})
                   for size in e.sizes]
    if e.args.model:
        if not (e.args.tokens and e.args.targets and e.args.batches):
            lab.fail("--model: needs --tokens, --targets and --batches")
        layers, heads, channels = map(int, numbers("--model", e.args.model, 3))
        first, last = numbers("--batches", e.args.batches, 2)
        own = batches(int(first), int(last), e.targets[-1])
        e.sizes = [Size(f"{layers}x{channels}", layers, heads, channels, e.args.rate,
                        e.args.tokens, last / 2.0, own)]
    elif e.args.tokens:
        e.sizes = [size._replace(tokens=e.args.tokens) for size in e.sizes]
    if e.args.sizes:
        names = e.args.sizes.split(",")
        if not set(names) <= {size.name for size in e.sizes}:
            lab.fail(f"--sizes {e.args.sizes}: there are {', '.join(s.name for s in e.sizes)}")
        e.sizes = [size for size in e.sizes if size.name in names]


# ---------------------------------------------------------------- runs

def cap(size, batch):
    """Tokens after which a run counts as not reaching its target."""
    return 2.0 * size.tokens * (1.0 + batch / size.knee)


def corpus(e):
    return e.corpus(e.pick(10 ** 6, 8 * 10 ** 6, 32 * 10 ** 6))


def parameters(size):
    """Of the blocks, about."""
    return 12 * size.layers * size.channels ** 2


def shape(e, size):
    return ["--layers", size.layers, "--heads", size.heads, "--channels", size.channels,
            "--seq-len", e.T]


def rate(size, power):
    return size.rate * 2.0 ** power


def job(e, size, batch, power, seed, target, most, again=False):
    """A run until the target, or `most` tokens. An evaluation of weights and average costs as much
    as training on 5,500 tokens."""
    every = e.T * e.pick(48, 512, 1024)
    name = f"{size.name}_b{batch}_lr{rate(size, power):.6f}_s{seed}_to{target:g}"
    return lab.Job(name + (f"_in{math.ceil(most / batch)}" if again else ""), [
        "--data", corpus(e), *shape(e, size), "--micro-batch", min(batch // e.T, 64),
        "--batch-tokens", batch, "--lr", f"{rate(size, power):.6g}", "--lr-schedule", "constant",
        "--warmup-tokens", e.pick(2, WARMUP, WARMUP) * batch,
        "--beta2", f"{lab.half_life_beta2(batch, at=128 * e.T):.7g}",
        "--average-tokens", 2048 * e.T, "--tokens", math.ceil(most / batch) * batch,
        "--target-loss", target, "--eval-every", max(1, every // batch),
        "--eval-tokens", e.pick(2048, 4096, 8192), "--seed", seed], cost=most, thin=100)


class Batch:
    """All runs of one size at one batch. done: {(power, seed, target): Run}."""

    def __init__(self, e, size, batch):
        self.e, self.size, self.batch = e, size, batch
        self.lowest, self.done = size.batches[batch], {}
        self.targets = [t for t in e.targets if t >= self.lowest]

    def read(self, target, reading, seed):
        """{power: updates to the target, or None} of the runs that were to go that far. Averaged:
        the weights or their average, whichever is there first."""
        found = {}
        for (power, own, to), run in self.done.items():
            if own == seed and to <= target:
                there = [run.updates_at(target, field) for field in READINGS[reading]]
                found[power] = min(filter(None, [*there, found.get(power)]), default=None)
        return found

    def tried(self, target, reading):
        """{power: the updates of each tuned seed that has run there}"""
        runs = [self.read(target, reading, seed) for seed in self.e.tuned]
        return {power: [own[power] for own in runs if power in own] for power in runs[0]}

    def best(self, target, reading):
        """fit.Point of the tuned seeds at the best rate so far, with the power of the rate in `lr`;
        or None."""
        tried = self.tried(target, reading)
        return fit.best_rate(self.batch, tried) if tried else None

    def point(self, target, reading):
        """fit.Point of the fresh seeds at the best rate; of the tuned seeds while there are none;
        None if most seeds did not reach the target."""
        best = self.best(target, reading)
        if best is None:
            return None
        updates = self.reported(target, reading, best.lr) or best.updates
        middle = fit.median([math.inf if n is None else n for n in updates])
        return None if math.isinf(middle) else best._replace(
            lr=rate(self.size, best.lr), updates=updates, median=middle)

    def reported(self, target, reading, power):
        """The updates of each fresh seed that has run at that rate."""
        runs = [self.read(target, reading, seed) for seed in self.e.fresh]
        return [own[power] for own in runs if power in own]

    def next_rates(self):
        """[(power, target, most tokens)] that are still to be tried on the first seed: beyond an
        edge that is best for some target. The lower side comes first, since it is more often the
        better one. A rate that needs 1.1 times the tokens of the best has lost; where the best was
        lucky, its neighbours go on to 1.1 times what it takes on all seeds."""
        if not self.done:
            first = round(0.4 * math.log2(self.batch / (16 * self.e.T)))
            return [(first, self.lowest, cap(self.size, self.batch))]
        want = {}
        for target, reading, best in self.bests():
            tried = self.tried(target, reading)
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

    def next_seeds(self):
        """The same for the other tuned seeds: each rate that is best so far on the first alone."""
        want = {}
        for target, _, best in self.bests():
            if len(best.updates) < len(self.e.tuned):
                want.setdefault(best.lr, target)
        return [(power, target, self.most(target, 2.0)) for power, target in want.items()]

    def bests(self):
        """[(target, reading, fit.Point)] of the best rates so far, the lowest target first."""
        every = [(t, r, self.best(t, r)) for t in sorted(self.targets) for r in READINGS]
        return [found for found in every if found[2]]

    def fresh_runs(self):
        """The same for fresh seeds: each rate that is best for a target, to the lowest such one."""
        want = {}
        for target, _, best in self.bests():
            want.setdefault(best.lr, target)
        return [(power, target, self.most(target, 2.0)) for power, target in want.items()]

    def most(self, target, times):
        """`times` the tokens of the best rate so far, at most the cap."""
        best = self.best(target, "weights")
        return min(times * best.median * self.batch if best else math.inf,
                   cap(self.size, self.batch))

    def make(self, runs, seeds):
        """Jobs by what they are."""
        return {(power, seed, target): job(self.e, self.size, self.batch, power, seed, target, most,
                                           again=(power, seed, target) in self.done)
                for power, target, most in runs for seed in seeds}


def make_all(e, wanted):
    """wanted: [(Batch, {key: Job})]. Makes the jobs; False if there were none."""
    jobs = [j for _, own in wanted for j in own.values() if not e.args.so_far or e.is_done(j)]
    runs = e.run(jobs)
    for batch, own in wanted:
        batch.done.update({key: runs[j.name] for key, j in own.items() if j.name in runs})
    return bool(jobs)


def sweep(e):
    """[Batch]. Rates of all sizes first, then fresh seeds: a sweep that is cut short has whole
    curves."""
    every = [[Batch(e, size, b) for b in size.batches] for size in e.sizes]
    for own in every:
        while (make_all(e, [(b, b.make(b.next_rates(), e.tuned[:1])) for b in own]) or
               make_all(e, [(b, b.make(b.next_seeds(), e.tuned[1:])) for b in own])):
            pass
    for own in every:
        make_all(e, [(b, b.make(b.fresh_runs(), e.fresh)) for b in own])
    return [b for own in every for b in own]


def local_plan(e):
    """Local knees of the first size."""
    size = e.sizes[0]
    return {"model": shape(e, size), "T": e.T, "corpus": corpus(e), "batch": e.pick(2, 8, 8) * e.T,
            "rate": size.rate, "knee": e.pick(200.0, 1500.0, 3000.0) * e.T / 32,
            "seeds": e.pick([1], [1], [1, 2]),
            "moments": [e.T * n for n in e.pick([256], [8192], [8192, 16384, 32768])],
            "ks": e.pick([1, 4], [1, 4, 8, 16], [1, 2, 4, 8, 16, 32, 64]),
            "eval": e.pick(2048, 65536, 65536)}


# ---------------------------------------------------------------- numbers

def measure(e, every):
    """[Growth] of each size, reading and target."""
    found = []
    for size in sorted(e.sizes, key=parameters):
        for reading in READINGS:
            for target in e.targets:
                own = [b for b in every if b.size == size and target in b.targets]
                if not own:
                    continue
                points = [b.point(target, reading) for b in own]
                there = [p for p in points if p]
                found.append(Growth(size.name, reading, target, there,
                                    [b.batch for b, p in zip(own, points) if not p],
                                    fit.knee(there)))
    return found


def fitted(found, reading="weights"):
    return [g for g in found if g.reading == reading and not g.knee.reason]


def exponent(found):
    """(exponent, low, high) of B_crit ~ E_min^exponent over all sizes and targets, or None. The
    interval leaves out one batch of one size at a time and fits everything again: the targets of a
    batch come from the same logs, so they are not independent."""
    def slope(fits):
        length = [math.log(s * b) for s, b in fits]
        return fit.line(length, [math.log(b) for _, b in fits])[0] if len(fits) > 2 else None

    def without(kept):
        fits = []
        for g in found:
            points = [p for p in g.points if (g.size, p.batch) in kept]
            if len(points) > 3:
                fits.append(fit.least_squares([p.batch for p in points],
                                              [p.median for p in points])[:2])
        return slope(fits)
    middle = slope([(g.knee.s_min, g.knee.b_crit) for g in found])
    if middle is None:
        return None
    error = fit.jackknife(sorted({(g.size, p.batch) for g in found for p in g.points}), without)
    return middle, middle - 1.645 * error, middle + 1.645 * error


def between_sizes(found):
    """[(size, larger size, ratio of B_crit at equal loss, low, high)] for neighbouring sizes: the
    geometric mean over the targets that both reached. The targets share their runs, so their
    errors do not average out."""
    sizes = list(dict.fromkeys(g.size for g in found))
    rows = []
    for small, large in zip(sizes, sizes[1:]):
        pairs = [(a.knee, b.knee) for a in found for b in found
                 if (a.size, b.size) == (small, large) and a.target == b.target]
        if pairs:
            middle = mean([math.log(b.b_crit / a.b_crit) for a, b in pairs])
            error = mean([math.hypot(math.log(a.high / a.low), math.log(b.high / b.low)) / 2.0
                          for a, b in pairs])
            rows.append((small, large, math.exp(middle), math.exp(middle - error),
                         math.exp(middle + error)))
    return rows


def mean(values):
    return sum(values) / len(values)


def zhang(tokens):
    """Zhang et al. 2024: a batch of 22.91 D^0.47 sequences of 512 costs 20% more data, D in
    millions of tokens. By E = E_min (1 + B/B_crit) that batch is 0.2 B_crit: B_crit in tokens."""
    return 5.0 * 512.0 * 22.91 * (tokens / 1e6) ** 0.47


# ---------------------------------------------------------------- tables

def write(e, every, found, locals_):
    e.csv("runs", ["size", "batch_tokens", "lr", "seed", "target_nats", "reading", "updates"],
          [[b.size.name, b.batch, rate(b.size, power), seed, target, reading, n]
           for b in every for target in b.targets for reading in READINGS for seed in e.tuned + e.fresh
           for power, n in sorted(b.read(target, reading, seed).items())])
    e.csv("points", ["size", "reading", "target_nats", "batch_tokens", "best_lr", "edge", "seeds",
                     "updates_median", "updates_low", "updates_high", "tokens_median",
                     "updates_fit"],
          [[g.size, g.reading, g.target, p.batch, p.lr, int(p.edge), len(p.updates), p.median,
            *spread(p), p.median * p.batch, None if g.knee.reason else
            fit.predicted_updates(p.batch, g.knee.s_min, g.knee.b_crit)]
           for g in found for p in g.points])
    header = ["size", "reading", "target_nats", "s_min", "b_crit", "b_crit_low", "b_crit_high",
              "e_min", "rms", "refused"]
    rows = [[g.size, g.reading, g.target, *numbers_of(g.knee), g.knee.reason] for g in found]
    e.csv("fit", header, rows)
    e.csv("local", ["size", "trained_tokens", "target_nats", "b_crit", "b_crit_low", "b_crit_high",
                    "rms", "noise_scale_tokens", "refused"],
          [[e.sizes[0].name, k.tokens, k.loss, *(numbers_of(k.knee)[i] for i in (1, 2, 3, 5)),
            k.noise, k.knee.reason] for k in locals_])
    e.csv("local_points", ["trained_tokens", "batch_tokens", "lr_times", "edge", "updates"],
          [[k.tokens, p.batch, p.lr, int(p.edge), p.median] for k in locals_ for p in k.points])
    write_fit(e, every, found, header, rows)


def numbers_of(k):
    return [None] * 6 if k.reason else [k.s_min, k.b_crit, k.low, k.high, k.s_min * k.b_crit, k.rms]


def write_fit(e, every, found, header, rows):
    """For experiments of time: the fits of the smallest size, of the weights."""
    size = min(e.sizes, key=parameters)
    own = [(g, row) for g, row in zip(found, rows) if (g.size, g.reading) == (size.name, "weights")]
    lab.write_json(os.path.join(e.dir, "fit.json"), {
        "fits": [dict(zip(header, row)) for _, row in own],
        "batches": {str(g.target): [p.batch for p in g.points] for g, _ in own},
        "parameters": next((run.start.get("parameters") for b in every if b.size == size
                            for run in b.done.values()), None),
        "seq_len": e.T, "size": e.size})


def spread(point):
    """Fewest and most updates among the seeds that reached the target."""
    there = [n for n in point.updates if n is not None]
    return min(there), max(there)


# ---------------------------------------------------------------- words

def tell(e, every, found, locals_):
    for size, reading in dict.fromkeys((g.size, g.reading) for g in found):
        own = [g for g in found if (g.size, g.reading) == (size, reading)]
        known = [f"{g.knee.b_crit:,.0f} at loss {g.target:g} ({g.knee.low:,.0f} to "
                 f"{g.knee.high:,.0f})" for g in own if not g.knee.reason]
        e.say(f"{size}, {reading}: B_crit in tokens {', '.join(known) or 'unknown'}.")
        for reason, at in reasons(own).items():
            e.say(f"{size}, {reading}: no fit at loss {', '.join(at)}, because {reason}.")
    never = [f"{g.size} loss {g.target:g} at batch {', '.join(f'{b:,}' for b in g.never)}"
             for g in found if g.never and g.points and g.reading == "weights"]
    if never:
        e.say(f"Not reached within a run's tokens: {'; '.join(never)}.")
    fresh = [len(b.reported(target, reading, best.lr)) for b in every
             for target, reading, best in b.bests()]
    if min(fresh, default=0) < len(e.fresh):
        e.say(f"The sweep is not complete: {sum(n < len(e.fresh) for n in fresh)} of {len(fresh)} "
              "points lack a fresh seed, or are the tuned seeds' own.")
    lost = [run.name for b in every for run in b.done.values() if run.diverged]
    if lost:
        e.say(f"{len(lost)} runs diverged and count as not reaching the target: "
              f"{', '.join(lost[:4])}{' and others' if len(lost) > 4 else ''}.")
    for k in locals_:
        at = f"Local knee after {k.tokens:,} tokens ({e.sizes[0].name}, to loss {k.loss:.2f})"
        e.say(f"{at}: no fit, because {k.knee.reason}." if k.knee.reason else
              f"{at}: B_crit {k.knee.b_crit:,.0f} tokens ({k.knee.low:,.0f} to "
              f"{k.knee.high:,.0f}); B_simple of the run there is {k.noise or math.inf:,.0f}.")
    for small, large, ratio, low, high in between_sizes(fitted(found)):
        e.say(f"At equal loss, B_crit of {large} is {ratio:.2f} times that of {small} "
              f"({low:.2f} to {high:.2f}).")
    slope = exponent(fitted(found, "averaged"))
    if slope:
        e.say("Averaged weights: B_crit grows as training length to the power of "
              f"{slope[0]:.2f} ({slope[1]:.2f} to {slope[2]:.2f}).")
    last = max(fitted(found), key=lambda g: g.knee.s_min * g.knee.b_crit, default=None)
    if last:
        length = last.knee.s_min * last.knee.b_crit
        e.say(f"Zhang et al. 2024, times 5, at {length:,.0f} tokens: {zhang(length):,.0f} tokens, "
              f"against {last.knee.b_crit:,.0f} here.")


def reasons(own):
    """{why there is no fit: [targets]}"""
    found = {}
    for g in own:
        if g.knee.reason:
            found.setdefault(g.knee.reason, []).append(f"{g.target:g}")
    return found


def within(low, high, least, most):
    """Whether an interval says yes, no, or neither."""
    if least <= low and high <= most:
        return "yes"
    return "no" if high < least or low > most else "undecided"


def judge(e, found):
    fits = fitted(found)
    refused = [g for g in found if g.reading == "weights" and g.knee.reason]
    if not fits:
        return e.verdict("undecided", "no fit: " + "; ".join(
            f"{g.size} at {g.target:g}, because {g.knee.reason}" for g in refused[:2]))
    rms = max(g.knee.rms for g in fits)
    answers = ["yes" if rms <= RMS else "no", "undecided" if refused else "yes"]
    why = (f"{len(fits)} of {len(fits) + len(refused)} curves could be fitted, with rms errors of "
           f"at most {100 * rms:.1f}% (predicted: {100 * RMS:.0f}%)")
    slope, pairs = exponent(fits), between_sizes(fits)
    if not slope or not pairs:
        answers.append("undecided")
    if slope:
        answers.append(within(slope[1], slope[2], *EXPONENT))
        why += (f"; B_crit grows as training length to the power of {slope[0]:.2f} ({slope[1]:.2f} "
                f"to {slope[2]:.2f}; predicted: {EXPONENT[0]} to {EXPONENT[1]})")
    for small, large, ratio, low, high in pairs:
        answers.append(within(low, high, 1.0 / APART, APART))
        why += (f"; at equal loss {large} has {ratio:.2f} times the B_crit of {small} ({low:.2f} "
                f"to {high:.2f}; predicted: within a factor of {APART:g})")
    word = "refuted" if "no" in answers else "undecided" if "undecided" in answers else None
    return e.verdict(word or "as predicted", why)


def main():
    e = lab.Experiment(
        2, "knee", title="The knee", arguments=arguments,
        question="How many updates, and how many tokens, does a loss take at each batch size?",
        prediction="S = S_min (1 + B_crit/B) within 10%. B_crit grows as the loss falls, as "
        "training length to the power of 0.45 to 0.75, and depends on the loss, not on the model's "
        "size: at one loss the B_crit of neighbouring sizes are within a factor of 1.5.")
    settings(e)
    every = sweep(e)
    locals_ = local_knee.sweep(e, local_plan(e))
    found = measure(e, every)
    e.setting("Models: " + "; ".join(
        f"{s.name} ({s.layers} layers of {s.channels} channels), batches {min(s.batches):,} to "
        f"{max(s.batches):,} tokens" for s in e.sizes) + f"; sequences of {e.T} tokens.")
    e.setting(f"AdamW at a constant rate after {WARMUP} updates of warm-up, which count; beta2 by "
              f"the half-life rule; seeds that tune: {len(e.tuned)}, fresh ones that are reported: "
              f"{len(e.fresh)}; "
              f"averaged weights with a half-life of {2048 * e.T:,} tokens.")
    write(e, every, found, locals_)
    tell(e, every, found, locals_)
    judge(e, found)
    knee_figures.draw(e, found, locals_, exponent(fitted(found)), zhang)
    e.close()


if __name__ == "__main__":
    main()
