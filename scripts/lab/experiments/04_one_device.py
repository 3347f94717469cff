#!/usr/bin/env python3
"""Experiment 4: one device. Seconds of an update against its tokens, and the line through them:

    t = t_0 + tau b        b_half = t_0 / tau: with b_half tokens, half of the best speed 1/tau

What gradient accumulation costs follows from t_0. Beside it: how long a rank waits for another one
that has more work.

    scripts/lab/experiments/04_one_device.py --quick
"""
import math
import os
import random
from collections import namedtuple
from statistics import median

import _path
import numpy as np
import fit
import lab

T = 32                                           # tokens of a sequence
SLOW = 1.15                                      # a control may take so many times the best one
JUDGED = "0.8M"                                  # the endpoint's model, on one core
UNEVEN = 20, 16                                  # sequences of two ranks' shares
PAIR = os.path.join("scripts", "lab", "shared", "pair.sh")
SPIN = {"GOMP_SPINCOUNT": "10000"}               # threads spin briefly, as is the default

# A value and its 90% interval.
Range = namedtuple("Range", "value low high")

# t_0 and tau in seconds, b_half in tokens: a Range each.
Line = namedtuple("Line", "t_0 tau b_half")

# A model on so many cores, or on a GPU (threads 0). micro: sequences of its micro-batches; tokens:
# of one timing, roughly. A setting is a pair: sequences of a micro-batch, micro-batches of an
# update.
Case = namedtuple("Case", "model flags T threads micro tokens")


# ---------------------------------------------------------------- what is measured

def powers(most):
    return [2 ** i for i in range(most.bit_length())]


def cases(e):
    """Three models on one core, the larger two on all cores as well; on a GPU GPT-2 124M. A model
    of your own is a row of lab.MODELS."""
    micro = powers(e.pick(tiny=8, quick=32, full=32))
    if lab.is_cuda(e.args.trainer):
        return [Case("124M", ["--init", "d12", "--seq-len", 1024], 1024, 0, micro, 10 ** 6)]
    found = []
    for name in e.pick(["35k"], ["119k", "0.8M"], list(lab.MODELS)):
        layers, _, channels = lab.MODELS[name]
        tokens = e.pick(10 ** 6, 2 * 10 ** 8, 10 ** 9) // (layers * channels ** 2)
        one = name == "35k" and e.size != "tiny"
        for threads in sorted({1, 1 if one else lab.processors()}):
            found.append(Case(name, lab.model(name, T), T, threads, micro, min(10 ** 6, tokens)))
    return found


def settings(case):
    """Accumulation only on one core: its cost is the same question on all."""
    most = min(16, max(case.micro))
    return [(b, 1) for b in case.micro] + ([(1, most), (most // 4, 4)] if case.threads == 1 else [])


def job(e, case, setting, block):
    micro, accumulation = setting
    steps = min(300, max(10, case.tokens // (micro * accumulation * case.T)))
    return lab.Job(f"{case.model}_t{case.threads}_b{micro}_a{accumulation}_block{block}", [
        *e.timing(case.flags, micro * accumulation * case.T, micro, steps), "--lr", "1e-3",
        "--lr-schedule", "constant"],
        threads=max(1, case.threads), alone=True, env=SPIN if case.threads > 1 else {})


def fast_quarter(steps, field="seconds"):
    """The lower quartile of a field: other programs only add time."""
    ordered = sorted(step.get(field, 0.0) for step in steps[2:])
    return ordered[len(ordered) // 4]


def control_jobs(e, turn):
    """{cores: a fixed timing between two blocks}"""
    return {n: lab.Job(f"control_t{n}_{turn}", e.timing(lab.model("119k", T), 512, 16, e.pick(
        10, 60, 200)), threads=n, alone=True, env=SPIN if n > 1 else {})
        for n in ([] if lab.is_cuda(e.args.trainer) else sorted({1, lab.processors()}))}


def kept_blocks(controls):
    """Blocks of which no control, before or after, took more than SLOW times the best of its kind.
    controls: [{cores: seconds}], one more than there are blocks."""
    best = {n: min(of[n] for of in controls) for n in controls[0]}
    fine = [all(took <= SLOW * best[n] for n, took in of.items()) for of in controls]
    return [i for i, pair in enumerate(zip(fine, fine[1:])) if all(pair)]


def pair_job(e, block):
    """[two runs at the same time, as ranks of one update with UNEVEN shares]. The smaller share
    makes more updates, so that both run as long."""
    if lab.is_cuda(e.args.trainer) or lab.processors() < 2:
        return []
    name, steps, (one, two) = e.pick("35k", "0.8M", "0.8M"), e.pick(6, 12, 30), UNEVEN
    return [lab.Job(f"uneven_{name}_block{block}", [
        os.path.join(".", "train_gpt2"), *e.timing(lab.model(name, T), one * T, one, steps)],
        program=PAIR, alone=True,
        env={"SECOND": f"--micro-batch {two} --batch-tokens {two * T} "
                       f"--steps {math.ceil(steps * one / two)}"})]


def both(run):
    """Seconds of an update of each of a pair."""
    second = [x for x in lab.read_log(run.base + ".jsonl.second") if x["event"] == "step"]
    return fast_quarter(run.steps), fast_quarter(second)


def measure(e):
    """Blocks, each with every setting in turn: a slow phase of the machine hits all of them. More
    blocks, up to a limit, for those between disturbed controls."""
    blocks, most = e.pick(2, 5, 9), e.pick(2, 7, 20)

    def control(turn):
        jobs = control_jobs(e, turn)
        runs = e.run(list(jobs.values()))
        return {n: fast_quarter(runs[j.name].steps) for n, j in jobs.items()}
    controls, rows, pairs, sizes, made = [control(0)], [], [], {}, 0
    while made < most and (made < blocks or len(kept_blocks(controls)) < blocks):
        jobs = {(case.model, case.threads, setting): (case, job(e, case, setting, made))
                for case in cases(e) for setting in settings(case)}
        uneven = pair_job(e, made)
        runs = e.run([*(j for _, j in jobs.values()), *uneven])
        for (model, threads, (b, a)), (case, j) in jobs.items():
            sizes[model, runs[j.name].start["parameters"], case.T] = None
            rows.append([made, model, threads, b * case.T, a, fast_quarter(runs[j.name].steps),
                         fast_quarter(runs[j.name].steps, "seconds_optimizer")])
        pairs += [[made, *both(runs[j.name])] for j in uneven]
        made += 1
        controls.append(control(made))
    chosen = kept_blocks(controls) if e.size != "tiny" else list(range(made))
    e.table("seconds", ["block", "kept", "model", "threads", "micro_batch_tokens", "accumulation",
                        "seconds", "seconds_optimizer"],
            [[i, int(i in chosen), *row] for i, *row in rows])
    e.table("controls", ["before_block", "threads", "seconds"],
            [[i, n, took] for i, of in enumerate(controls) for n, took in of.items()])
    e.table("models", ["model", "parameters", "seq_len"], list(sizes))
    chosen_pairs = [pair for i, *pair in pairs if not chosen or i in chosen]
    e.table("uneven", ["tokens_one", "tokens_other", "seconds_one", "seconds_other",
                       "share_waited", "share_waited_low", "share_waited_high"],
            [uneven_row(chosen_pairs)] if pairs else [])
    e.setting(f"{blocks} blocks, each with every setting in turn, one run at a time. Seconds of a "
              "setting: the lower quartile of its updates, then the median of the blocks.")
    e.setting("Layers, heads, channels: " + "; ".join(
        f"{name} {', '.join(map(str, of))}" for name, of in lab.MODELS.items())
        + f". T={T}.")
    return len(chosen) >= blocks


def uneven_row(pairs):
    """Of two ranks that share 36 sequences. waited: the share of an update that the faster of them
    waits."""
    waited = median_range([1.0 - min(pair) / max(pair) for pair in pairs])
    return [*(T * n for n in UNEVEN), *map(median, zip(*pairs)), *waited]


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

    def __init__(self, model, parameters, T, threads, rows):
        self.model, self.parameters, self.T, self.threads = model, parameters, T, threads
        self.seconds, self.optimizer = {}, {}
        for row in rows:
            setting = row["micro_batch_tokens"], row["accumulation"]
            self.seconds.setdefault(setting, []).append(row["seconds"])
            self.optimizer.setdefault(setting, []).append(row["seconds_optimizer"])
        self.times = {b: of for (b, a), of in self.seconds.items() if a == 1}
        self.line = fit_line(self.times)
        self.where = {0: "one GPU", 1: "1 core"}.get(threads, f"{threads} cores")

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
    known = {row["model"]: row for row in e.rows("models")}
    return [Series(model, known[model]["parameters"], known[model]["seq_len"], threads,
                   [row for row in rows if (row["model"], row["threads"]) == (model, threads)])
            for model, threads in dict.fromkeys((row["model"], row["threads"]) for row in rows)]


def endpoint(series, enough):
    """What the plan judges; empty without enough kept blocks, or for other models."""
    return [(f"{s.name()}, tokens", *s.line.b_half) for s in series
            if enough and (s.model, s.threads) == (JUDGED, 1)]


# ---------------------------------------------------------------- figure

def draw_speed(ax, series):
    """Speed of one model against the tokens of an update, and the curve of its line. A star marks
    half of the best speed; the curve is dotted below one sequence, where nothing is measured."""
    for i, s in enumerate(series):
        colour, (t_0, tau, half) = lab.COLOURS[i], (of.value for of in s.line)
        x, of = list(s.times), [median_range([b / t for t in took]) for b, took in s.times.items()]
        lab.errorbar(ax, i, x, *zip(*of), linestyle="none",
                     label=f"{s.where}: b_half {half:.0f} tokens")
        for low, high, dash in [(min(half, s.T) / 2.0 or s.T, s.T, ":"), (s.T, x[-1], "-")]:
            across = np.geomspace(low, high, 51)
            ax.plot(across, across / (t_0 + tau * across), color=colour, linestyle=dash)
        if half > 0.0:
            ax.plot([half], [half / (2.0 * t_0)], "*", color=colour, markersize=14, zorder=4)
    lab.log_axis(ax.xaxis, base=2)
    ax.set_xticks(list(series[0].times)[::2])
    ax.legend(loc="upper left")
    ax.set_ylim(0, 1.25 * ax.get_ylim()[1])                  # room for the legend
    ax.yaxis.set_major_formatter(lambda value, _: lab.plain(value))
    lab.axes(ax, "tokens of an update", "tokens a second", f"{series[0].model} parameters")


def draw_costs(ax, series):
    """The cost of accumulation: measured, and hollow what t_0 says."""
    rows = [(s, setting) for s in series for setting in s.accumulated()]
    for y, (s, setting) in enumerate(rows):
        cost, wanted, _ = (Range(*(100 * x for x in of)) for of in s.costs(setting))
        ax.plot(wanted.value, y, marker="o", fillstyle="none", color=lab.COLOURS[1], markersize=10)
        ax.errorbar(cost.value, y, xerr=[[cost.value - cost.low], [cost.high - cost.value]],
                    marker="o", color=lab.COLOURS[0], markersize=4, capsize=3)
    ax.set_yticks(range(len(rows)), [f"{s.model}: {a} × {b // s.T}" for s, (b, a) in rows])
    ax.invert_yaxis()
    ax.margins(y=0.12)
    lab.axes(ax, "longer than one pass, %\n(hollow: by t_0)", "", "one batch as A × b sequences")


def draw(plt, series, model):
    figure, panels = plt.subplots(1, 2, figsize=(9.2, 3.9), layout="constrained",
                                  gridspec_kw={"width_ratios": [1.4, 1]})
    mine = [s for s in series if s.model == model]
    draw_speed(panels[0], mine)
    draw_costs(panels[1], series)
    figure.suptitle(f"Half of the best speed with {mine[0].line.b_half.value:.0f} tokens at once; "
                    f"a sequence has {mine[0].T}", x=0.01, ha="left", fontsize=10.5)
    return figure


def conclude(e, enough):
    series = all_series(e)
    e.table("line", ["model", "parameters", "seq_len", "threads"]
            + [f"{name}{end}" for name in Line._fields for end in ("", "_low", "_high")],
            [[s.model, s.parameters, s.T, s.threads, *s.line.t_0, *s.line.tau, *s.line.b_half]
             for s in series])
    e.table("accumulation", ["model", "micro_batch_tokens", "accumulation"] + [
        f"{name}{end}" for name in ("cost", "predicted", "difference")
        for end in ("", "_low", "_high")],
            [[s.model, b, a, *(x for one in s.costs((b, a)) for x in one)]
             for s in series for b, a in s.accumulated()])
    for s in series:
        e.found(f"{s.name()}: b_half in tokens", *s.line.b_half)
    for row in e.rows("accumulation"):
        e.found(f"{row['model']}, {row['accumulation']} micro-batches of "
                f"{row['micro_batch_tokens']} tokens: longer than one pass, measured less by t_0",
                *(row["difference" + end] for end in ("", "_low", "_high")))
    for row in e.rows("uneven"):
        e.found("two ranks with 640 and 512 tokens: share of an update that the second waits",
                *(row["share_waited" + end] for end in ("", "_low", "_high")))
    blocks = {row["block"]: row["kept"] for row in e.rows("seconds")}
    e.found(f"blocks discarded of {len(blocks)}", list(blocks.values()).count(0))
    model = JUDGED if any(s.model == JUDGED for s in series) else series[0].model
    e.figure("one_device", lambda plt: draw(plt, series, model),
             alt="Tokens a second against the tokens of an update, rising and then flat, with the "
                 "curve of a fixed time and a time a token; the cost of gradient accumulation, "
                 "measured against predicted.",
             caption="Measured, with 90% intervals. Curves: t = t_0 + τ b, dotted where nothing is "
                     "measured. Star: b_half. A × b: A micro-batches of b sequences; hollow: what "
                     "t_0 says.")
    e.decide(endpoint(series, enough))


def main():
    e = lab.Experiment(
        4, "one_device", title="One device",
        question="How many tokens must an update have to use a device well, and what does gradient "
                 "accumulation cost?",
        prediction="An update of b tokens takes t_0 + τ b seconds, and b_half = t_0/τ is below one "
                   "sequence on one core. A batch accumulated in A micro-batches takes A - 1 times "
                   "the t_0 of forward and backward longer than in one pass.")
    conclude(e, e.args.kept or measure(e))
    e.close()


if __name__ == "__main__":
    main()
