#!/usr/bin/env python3
"""Experiment 4: one device. Seconds of an update against its tokens, and the line through them:

    t = t_0 + tau b        b_half = t_0 / tau: with b_half tokens, half of the best speed 1/tau

What gradient accumulation costs follows from t_0.

    scripts/lab/experiments/04_one_device.py --quick
"""
import math
import random
from collections import namedtuple
from statistics import median

import numpy as np
import fit
import kept
import lab

T = 32                                           # tokens of a sequence
SLOW = 1.15                                      # a control may take so many times the best one
BLOCKS = 2, 5, 9                                 # that a control must keep: tiny, quick, full
ENDS = "", "_low", "_high"                       # of a column with an interval
JUDGED = "0.8M"                                  # the endpoint's model, on one core
SPIN = {"GOMP_SPINCOUNT": "10000"}               # threads spin briefly, as is the default

# A value and its 90% interval.
Range = namedtuple("Range", "value low high")

# t_0 and tau in seconds, b_half in tokens: a Range each.
Line = namedtuple("Line", "t_0 tau b_half")


# ---------------------------------------------------------------- what is measured

def settings(most, threads):
    """[(sequences of a micro-batch, micro-batches of an update)]. Accumulation only on one core:
    its cost is the same question on all."""
    found = [(2 ** i, 1) for i in range(most.bit_length())]
    return found + ([(1, min(16, most)), (min(16, most) // 4, 4)] if threads == 1 else [])


def timings(e, block):
    """{(model, cores, tokens of a micro-batch, micro-batches): Job}: three models on one core, the
    larger two on all cores as well. A model of your own is a row of lab.MODELS."""
    jobs = {}
    for name in e.pick(["35k"], ["119k", "0.8M"], list(lab.MODELS)):
        layers, _, channels = lab.MODELS[name]
        tokens = e.pick(10 ** 6, 2 * 10 ** 8, 10 ** 9) // (layers * channels ** 2)
        one = name == "35k" and e.size != "tiny"
        for n in sorted({1, 1 if one else lab.processors()}):
            for b, a in settings(e.pick(8, 32, 32), n):
                steps = min(300, max(10, min(10 ** 6, tokens) // (b * a * T)))
                jobs[name, n, b * T, a] = lab.Job(f"{name}_t{n}_b{b}_a{a}_block{block}", [
                    *e.timing(lab.model(name, T), b * a * T, b, steps), "--lr", "1e-3",
                    "--lr-schedule", "constant"],
                    threads=n, alone=True, env=SPIN if n > 1 else {})
    return jobs


def fast_quarter(steps, field="seconds"):
    """The lower quartile of a field: other programs only add time."""
    ordered = sorted(step.get(field, 0.0) for step in steps[2:])
    return ordered[len(ordered) // 4]


def kept_blocks(controls):
    """Blocks of which no control, before or after, took more than SLOW times the best of its kind.
    controls: [{cores: seconds}], one more than there are blocks."""
    best = {n: min(of[n] for of in controls) for n in controls[0]}
    fine = [all(took <= SLOW * best[n] for n, took in of.items()) for of in controls]
    return [i for i, pair in enumerate(zip(fine, fine[1:])) if all(pair)]


def measure(e):
    """Blocks, each with every setting in turn: a slow phase of the machine hits all of them. More
    blocks, up to a limit, for those between disturbed controls."""
    blocks, most = e.pick(*BLOCKS), e.pick(2, 7, 20)

    def control(turn):                           # {cores: seconds} of a fixed timing
        jobs = {n: lab.Job(f"control_t{n}_{turn}", e.timing(
            lab.model("119k", T), 512, 16, e.pick(10, 60, 200)), threads=n, alone=True,
            env=SPIN if n > 1 else {}) for n in sorted({1, lab.processors()})}
        runs = e.run(list(jobs.values()))
        return {n: fast_quarter(runs[j.name].steps) for n, j in jobs.items()}
    controls, rows, sizes, made = [control(0)], [], {}, 0
    while made < most and (made < blocks or len(kept_blocks(controls)) < blocks):
        jobs = timings(e, made)
        runs = e.run(list(jobs.values()))
        for of, j in jobs.items():
            run = runs[j.name]
            sizes[of[0], run.start["parameters"], T] = None
            rows.append([made, *of, fast_quarter(run.steps),
                         fast_quarter(run.steps, "seconds_optimizer")])
        made += 1
        controls.append(control(made))
    chosen = kept_blocks(controls) if e.size != "tiny" else list(range(made))
    e.table("seconds", ["block", "kept", "model", "threads", "micro_batch_tokens", "accumulation",
                        "seconds", "seconds_optimizer"],
            [[i, int(i in chosen), *row] for i, *row in rows])
    e.table("controls", ["before_block", "threads", "seconds"],
            [[i, n, took] for i, of in enumerate(controls) for n, took in of.items()])
    e.table("models", ["model", "parameters", "seq_len"], list(sizes))


# ---------------------------------------------------------------- numbers, from the tables

def median_range(values):
    """The median and its 90% interval; with fewer than five values, from the least to the most."""
    middle, low, high = fit.median_interval(values)
    return Range(middle, *((min(values), max(values)) if math.isnan(low) else (low, high)))


def fit_line(times, draws=200):
    """The Line through the medians of the blocks. times: {tokens: [seconds in each block]}.
    The 90% intervals use the larger of two standard errors: blocks drawn anew (bootstrap), and
    numbers of tokens left out one at a time (jackknife)."""
    tokens, blocks = list(times), range(len(next(iter(times.values()))))

    def line(chosen, used):
        t_0, tau = fit.fit_device(used, [median(times[b][i] for i in chosen) for b in used])
        return t_0, tau, t_0 / tau
    rng, found = random.Random(1), []
    drawn = [line([rng.choice(blocks) for _ in blocks], tokens) for _ in range(draws)]
    for i, best in enumerate(line(blocks, tokens)):
        error = max(fit.deviation([one[i] for one in drawn]),
                    fit.jackknife(tokens, lambda used, i=i: line(blocks, used)[i]))
        found.append(Range(best, max(0.0, best - 1.645 * error), best + 1.645 * error))
    return Line(*found)


class Series:
    """The kept blocks of one model on so many cores. seconds, optimizer: {(tokens of a micro-batch,
    micro-batches): [seconds in each block]}."""

    def __init__(self, model, parameters, threads, rows):
        self.model, self.parameters, self.threads = model, parameters, threads
        of = kept.grouped(rows, "micro_batch_tokens", "accumulation").items()
        self.seconds, self.optimizer = ({at: [row[field] for row in own] for at, own in of}
                                        for field in ("seconds", "seconds_optimizer"))
        self.times = {b: of for (b, a), of in self.seconds.items() if a == 1}
        self.line = fit_line(self.times)
        self.where = f"{threads} core{'s' * (threads > 1)}"

    def name(self):
        return f"{self.model} parameters, {self.where}"

    def accumulated(self):
        return [setting for setting in self.seconds if setting[1] > 1]

    def costs(self, setting):
        """(measured, predicted, their difference): the additional time of accumulation, relative to
        one pass over the same batch. An update runs AdamW once, so A micro-batches pay the rest of
        t_0 A - 1 times more than one does."""
        whole = setting[0] * setting[1], 1
        lines = [fit.fit_device(list(self.times), of) for of in zip(*self.times.values())]
        rest = [line.fixed - adamw for line, adamw in zip(lines, self.optimizer[whole])]
        measured = [t / one - 1.0 for t, one in zip(self.seconds[setting], self.seconds[whole])]
        predicted = [(setting[1] - 1) * max(0.0, f) / one
                     for f, one in zip(rest, self.seconds[whole])]
        return (median_range(measured), median_range(predicted),
                median_range([m - p for m, p in zip(measured, predicted)]))


def all_series(e):
    """[Series]; of all blocks where none was kept."""
    rows = e.rows("seconds", kept=1) or e.rows("seconds")
    known = {row["model"]: row["parameters"] for row in e.rows("models")}
    return [Series(model, known[model], threads, own)
            for (model, threads), own in kept.grouped(rows, "model", "threads").items()]


# ---------------------------------------------------------------- figure

def draw(series):
    """Speed of the judged model against the tokens of an update, with the curve of its line, dotted
    below one sequence, where nothing is measured; and the cost of accumulation."""
    speeds, judged = [], [s for s in series if s.model == JUDGED] or series
    for i, s in enumerate(judged):
        colour, (t_0, tau, half) = {"color": lab.COLOURS[i]}, (of.value for of in s.line)
        speed = [median_range([b / t for t in took]) for b, took in s.times.items()]
        speeds.append(lab.Curve(f"{s.where}: b_half {half:.0f} tokens", list(s.times),
                                *zip(*speed), {**colour, "linestyle": ""}))
        for low, high, dash in [(T / 4, T, ":"), (T, max(s.times), "-")]:
            across = np.geomspace(low, high, 51)
            speeds.append(lab.Curve(None, across, across / (t_0 + tau * across), look={
                **colour, "marker": "", "linestyle": dash}))
    rows = [(s, setting) for s in series for setting in s.accumulated()]
    costs = [[Range(*(100 * x for x in of)) for of in s.costs(setting)] for s, setting in rows]
    at, (measured, said, _) = range(len(rows)), zip(*costs)
    return lab.panels([
        {"curves": speeds, "x": "tokens of an update", "y": "tokens a second", "log": (2, 0),
         "title": f"{judged[0].model} parameters"},
        {"curves": [lab.Curve("measured", at, *zip(*measured), {"linestyle": ""}),
                    lab.Curve("by t_0", at, [of.value for of in said], look={
                        "linestyle": "", "fillstyle": "none", "markersize": 10})],
         "x": "micro-batches × sequences of each", "y": "longer than one pass, %",
         "title": "The cost of accumulation",
         "names": [f"{s.model}\n{a} × {b // T}" for s, (b, a) in rows]}],
        f"Half of the best speed with {judged[0].line.b_half.value:.0f} tokens at once; a sequence "
        f"has {T}", (10.5, 4.2))


def conclude(e):
    series = all_series(e)
    e.table("line", ["model", "parameters", "seq_len", "threads"]
            + [f"{name}{end}" for name in Line._fields for end in ENDS],
            [[s.model, s.parameters, T, s.threads, *s.line.t_0, *s.line.tau, *s.line.b_half]
             for s in series])
    e.table("accumulation", ["model", "micro_batch_tokens", "accumulation"] + [
        f"{name}{end}" for name in ("cost", "predicted", "difference") for end in ENDS],
            [[s.model, b, a, *(x for one in s.costs((b, a)) for x in one)]
             for s in series for b, a in s.accumulated()])
    for s in series:
        e.found(f"{s.name()}: b_half in tokens", *s.line.b_half)
    for row in e.rows("accumulation"):
        e.found(f"{row['model']}, {row['accumulation']} micro-batches of "
                f"{row['micro_batch_tokens']} tokens: longer than one pass, measured less by t_0",
                *(row["difference" + end] for end in ENDS))
    for row in e.rows("uneven"):                 # kept from an earlier script
        e.found("two ranks with 640 and 512 tokens: share of an update that the second waits",
                *(row["share_waited" + end] for end in ENDS))
    blocks = {row["block"]: row["kept"] for row in e.rows("seconds")}
    e.found(f"blocks discarded of {len(blocks)}", list(blocks.values()).count(0))
    e.figure("one_device", draw(series),
             alt="Tokens a second against the tokens of an update, rising and then flat, with the "
                 "curve of a fixed time and a time a token; the cost of gradient accumulation, "
                 "measured against predicted.",
             caption="Measured, with 90% intervals. Curves: t = t_0 + τ b, dotted where nothing is "
                     "measured. Hollow: what t_0 says.")
    enough = list(blocks.values()).count(1) >= e.pick(*BLOCKS)
    return [(f"{s.name()}, tokens", *s.line.b_half) for s in series
            if enough and (s.model, s.threads) == (JUDGED, 1)]


if __name__ == "__main__":
    lab.experiment(
        4, "one_device", measure, conclude, endpoint=(0.0, 32.0), title="One device",
        question="How many tokens must an update have to use a device well, and what does gradient "
                 "accumulation cost?",
        prediction="An update of b tokens takes t_0 + τ b seconds, and b_half = t_0/τ is below one "
                   "sequence on one core. A batch accumulated in A micro-batches takes A - 1 times "
                   "the t_0 of forward and backward longer than in one pass.")
