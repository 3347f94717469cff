#!/usr/bin/env python3
"""Experiment 4: one device. Seconds of an update against its tokens, and the line through them:

    t = t_0 + tau b        b_half = t_0 / tau: with b_half tokens, half of the best speed 1/tau

What gradient accumulation costs follows from t_0. Beside it: why a GPU's speed is a sawtooth (wave
quantization, modelled), and the speed of products that tensor parallelism has cut (shards.py).

    scripts/lab/experiments/04_one_device.py --quick
"""
import math
import os
import random
from collections import namedtuple

import _path
import fit
import lab
import shards

LIMIT = 0.1                                      # predicted: the line and the cost are this close
SPIN = {"GOMP_SPINCOUNT": "10000"}               # threads spin briefly, as is the default
MODELS = {"35k": (2, 2, 32), "119k": (2, 2, 64), "0.8M": (4, 4, 128)}    # layers, heads, channels

# A value and its 90% interval.
Range = namedtuple("Range", "value low high")

# t_0 and tau in seconds, b_half in tokens: a Range each.
Line = namedtuple("Line", "t_0 tau b_half")

# Something that was predicted: `found` lies in -limit ... limit. words: what was measured.
Claim = namedtuple("Claim", "found limit words")


# ---------------------------------------------------------------- numbers

def median_range(values):
    """The median, and its 90% interval by order statistics, which assumes no distribution: the
    median lies below the r-th smallest of n values with probability P(Binomial(n, 1/2) < r)."""
    ordered, n = sorted(values), len(values)
    r = max([1] + [r for r in range(1, n // 2 + 1)
                   if sum(math.comb(n, j) for j in range(r)) <= 0.05 * 2 ** n])
    return Range(lab.median(ordered), ordered[r - 1], ordered[n - r])


def fit_line(times, draws=200):
    """The Line through the medians of the blocks. times: {tokens: [seconds in each block]}.
    The 90% intervals use the larger of two standard errors: blocks drawn anew (bootstrap), and
    numbers of tokens left out one at a time (jackknife)."""
    tokens, blocks = list(times), range(len(next(iter(times.values()))))

    def line(chosen, kept):
        t_0, tau = fit.fit_device(kept, [lab.median([times[b][i] for i in chosen])
                                         for b in kept])
        return t_0, tau, t_0 / tau
    rng, found = random.Random(1), []
    drawn = [line([rng.choice(blocks) for _ in blocks], tokens) for _ in range(draws)]
    for i, best in enumerate(line(blocks, tokens)):
        error = max(fit.deviation([one[i] for one in drawn]),
                    fit.jackknife(tokens, lambda kept, i=i: line(blocks, kept)[i]))
        found.append(Range(best, max(0.0, best - 1.645 * error), best + 1.645 * error))
    return Line(*found)


def judge(claim):
    """As predicted or refuted if the whole interval is, else undecided."""
    if -claim.limit <= claim.found.low and claim.found.high <= claim.limit:
        return "as predicted"
    outside = claim.found.low > claim.limit or claim.found.high < -claim.limit
    return "refuted" if outside else "undecided"


# ---------------------------------------------------------------- what is measured

class Series:
    """A model on `threads` cores, or on a GPU, as `where` says. A setting is a pair: sequences of a
    micro-batch, micro-batches of an update."""

    def __init__(self, model, flags, where, threads, seq_len, micro, tokens):
        self.model, self.flags, self.T = model, flags, seq_len
        self.where, self.threads = where, threads
        self.micro, self.tokens = micro, tokens              # tokens of one timing, roughly
        self.fixed = min(16, max(micro))                     # sequences that are accumulated
        self.seconds, self.optimizer = {}, {}                # setting -> a value a block
        self.parameters = None

    def name(self):
        return f"{self.model} parameters, {self.where}"

    def accumulated(self):
        """Only on one core: the cost of a micro-batch is the same question on all."""
        return [(1, self.fixed), (self.fixed // 4, 4)] if self.threads == 1 else []

    def settings(self):
        return [(b, 1) for b in self.micro] + self.accumulated()

    def steps(self, setting):
        return min(300, max(10, self.tokens // (setting[0] * setting[1] * self.T)))

    def times(self):
        return {b * self.T: self.seconds[b, 1] for b in self.micro}

    def line(self):
        return fit_line(self.times())

    def block_lines(self):
        """Each block's own (t_0, tau)."""
        times = self.times()
        return [fit.fit_device(list(times), seconds) for seconds in zip(*times.values())]

    def off(self, b):
        """How far an update of b sequences is from the line of its own block, relative to it."""
        return median_range([t / (line.fixed + line.per_token * b * self.T) - 1.0
                             for t, line in zip(self.seconds[b, 1], self.block_lines())])

    def costs(self, setting):
        """(measured, predicted, their difference): the additional time of accumulation, relative to
        one pass over the same batch. An update runs AdamW once, so A micro-batches pay the rest of
        t_0 A - 1 times more than one does."""
        whole = self.seconds[self.fixed, 1]
        rest = [line.fixed - adamw for line, adamw in zip(self.block_lines(),
                                                          self.optimizer[self.fixed, 1])]
        measured = [t / one - 1.0 for t, one in zip(self.seconds[setting], whole)]
        predicted = [(setting[1] - 1) * max(0.0, f) / one for f, one in zip(rest, whole)]
        return (median_range(measured), median_range(predicted),
                median_range([m - p for m, p in zip(measured, predicted)]))


def powers(most):
    return [2 ** i for i in range(most.bit_length())]


def arguments(parser):
    parser.add_argument("--most", type=int, metavar="B",
                        help="the largest micro-batch, in sequences (default: 64, on a GPU 32)")
    parser.add_argument("--model", metavar="LAYERS,HEADS,CHANNELS", help="one model of your own")
    parser.add_argument("--seq-len", type=int, default=32, metavar="T",
                        help="default: 32; without --model, a GPU runs GPT-2 124M at 1,024")


def all_series(e):
    """Three models, on one core and on all; on a GPU GPT-2 124M."""
    cuda, T = lab.is_cuda(e.args.trainer), e.args.seq_len
    most = 32 if cuda else 64
    micro = powers(e.args.most or e.pick(tiny=8, quick=most, full=most))
    if cuda and not e.args.model:
        return [Series("124M", ["--init", "d12", "--seq-len", 1024], "one GPU", 1, 1024, micro,
                       10 ** 6)]
    models = dict(list(MODELS.items())[:e.pick(tiny=1, quick=2, full=3)])
    if e.args.model:
        try:
            layers, heads, channels = map(int, e.args.model.split(","))
        except ValueError:
            lab.fail(f"--model {e.args.model}: expected layers, heads and channels, as in 6,6,384")
        models = {f"{layers}x{channels}": (layers, heads, channels)}
    series = []
    for name, (layers, heads, channels) in models.items():
        flags = ["--layers", layers, "--heads", heads, "--channels", channels, "--seq-len", T]
        tokens = e.pick(10 ** 7, 2 * 10 ** 8, 10 ** 9) // (layers * channels ** 2)
        for threads in sorted({1, 1 if cuda else lab.processors()}):
            where = "one GPU" if cuda else "1 core" if threads == 1 else f"{threads} cores"
            series.append(Series(name, flags, where, threads, T, micro, min(10 ** 6, tokens)))
    return series


def job(e, s, setting, block):
    micro, accumulation = setting
    return lab.Job(f"{s.model}_t{s.threads}_b{micro}_a{accumulation}_block{block}", [
        "--data", e.corpus(10 ** 6), *s.flags, "--micro-batch", micro, "--batch-tokens",
        micro * accumulation * s.T, "--steps", s.steps(setting), "--lr", "1e-3", "--lr-schedule",
        "constant", "--eval-every", "0", "--eval-tokens", s.T],
        threads=s.threads, alone=True, env=SPIN if s.threads > 1 else {})


def measure(e, series, blocks):
    """All settings once, then all again: a slow phase of the machine hits all of them. The seconds
    of a setting in a block are the lower quartile of its updates: other programs only add time."""
    jobs = {(block, s, setting): job(e, s, setting, block) for block in range(blocks)
            for s in series for setting in s.settings()}
    runs = e.run(list(jobs.values()))
    for (_, s, setting), made in jobs.items():
        steps = runs[made.name].steps[2:]
        s.parameters = runs[made.name].start["parameters"]
        for of, field in [(s.seconds, "seconds"), (s.optimizer, "seconds_optimizer")]:
            of.setdefault(setting, []).append(shards.quartiles([step.get(field, 0.0)
                                                            for step in steps])[0])


def write_tables(e, series, lines):
    e.csv("seconds", ["model", "threads", "micro_batch_tokens", "accumulation", "seconds",
                      "lowest_block", "highest_block", "seconds_of_line", "seconds_optimizer"],
          [[s.model, s.threads, b * s.T, a, lab.median(s.seconds[b, a]), min(s.seconds[b, a]),
            max(s.seconds[b, a]), None if a > 1 else line.t_0.value + line.tau.value * b * s.T,
            lab.median(s.optimizer[b, a])] for s, line in zip(series, lines)
           for b, a in s.settings()])
    e.csv("line", ["model", "parameters", "seq_len", "threads"]
          + [f"{name}{end}" for name in Line._fields for end in ("", "_low", "_high")],
          [[s.model, s.parameters, s.T, s.threads, *line.t_0, *line.tau, *line.b_half]
           for s, line in zip(series, lines)])
    e.csv("accumulation", ["model", "micro_batch_tokens", "accumulation"] + [
        f"{name}{end}" for name in ("cost", "predicted", "difference")
        for end in ("", "_low", "_high")],
          [[s.model, b * s.T, a, *(x for one in s.costs((b, a)) for x in one)]
           for s in series for b, a in s.accumulated()])
    lab.write_json(os.path.join(e.dir, "fit.json"), {"fits": [
        {"model": s.model, "parameters": s.parameters, "seq_len": s.T, "threads": s.threads,
         "t_0": line.t_0.value, "tau": line.tau.value, "b_half": line.b_half.value,
         "intervals": {name: [of.low, of.high] for name, of in line._asdict().items()}}
        for s, line in zip(series, lines)]})


# ---------------------------------------------------------------- tiles of a GPU, modelled

GPU = {"units": 132, "rows": 128, "columns": 256}            # an H100's SMs, cuBLAS's usual tile


def tiles(rows, columns):
    return math.ceil(rows / GPU["rows"]) * math.ceil(columns / GPU["columns"])


def tile_efficiency(micro, width, seq_len=1024):
    """Share of the GPU at work in a product of micro x seq_len rows and `width` columns. A
    multiprocessor computes one tile at a time; the last wave of tiles leaves some idle."""
    count = tiles(micro * seq_len, width)
    return count / (math.ceil(count / GPU["units"]) * GPU["units"])


def draw_tiles(plt, widths, most=32):
    figure, ax = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
    micro = list(range(1, most + 1))
    for i, width in enumerate(widths):
        shares = [100 * tile_efficiency(b, width) for b in micro]
        ax.plot(micro, shares, color=lab.COLOURS[i], marker=lab.MARKERS[i],
                linestyle=lab.LINES[i], markersize=5)
        b, place = [(2, (8, -4)), (4, (-10, 7))][i]
        ax.annotate(f"{width:,} columns", (b, shares[b - 1]), xytext=place,
                    textcoords="offset points", color=lab.COLOURS[i], fontsize=9)
    for b, place in [(1, (8, -4)), (4, (6, -10)), (11, (-11, 7)), (12, (8, -12))]:
        share = 100 * tile_efficiency(b, widths[0])
        ax.annotate(f"{share:.0f}%", (b, share), xytext=place, textcoords="offset points",
                    fontsize=8)
    ax.set_ylim(0, 112)
    lab.axes(ax, "micro-batch, sequences of 1,024 tokens", "units at work, % (modelled)",
             f"Modelled: tiles of {GPU['rows']}×{GPU['columns']} on {GPU['units']} units")
    return figure


# ---------------------------------------------------------------- pictures

def draw_speed(ax, series, lines):
    """Speed of one model against the tokens of an update, and the curve of its line. A star marks
    half of the best speed; the curve is dotted below one sequence, where nothing is measured."""
    for i, (s, line) in enumerate(zip(series, lines)):
        look = {"color": lab.COLOURS[i], "marker": lab.MARKERS[i], "markersize": 5}
        t_0, tau, half = (of.value for of in line)

        def speed(b, t_0=t_0, tau=tau):
            return b / (t_0 + tau * b)
        x = [b * s.T for b in s.micro]
        of = [median_range([b * s.T / t for t in s.seconds[b, 1]]) for b in s.micro]
        ax.errorbar(x, [v.value for v in of], [[v.value - v.low for v in of],
                                               [v.high - v.value for v in of]],
                    linestyle="none", capsize=2, elinewidth=0.8, **look)
        for low, high, dash in [(min(half, s.T) / 2.0 or s.T, s.T, ":"), (s.T, x[-1], "-")]:
            across = [low * (high / low) ** (j / 50.0) for j in range(51)]
            ax.plot(across, [speed(b) for b in across], color=lab.COLOURS[i], linestyle=dash)
        if half > 0.0:
            ax.plot([half], [speed(half)], color=lab.COLOURS[i], marker="*", markersize=13,
                    markeredgecolor="black", markeredgewidth=0.6)
        on = "" if len(series) == 1 else f"{s.where}: "
        ax.annotate(f"{on}b_half {half:.0f} tokens", (x[-1], speed(x[-1])), xytext=(0, 9),
                    textcoords="offset points", ha="right", color=lab.COLOURS[i], fontsize=9,
                    bbox={"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 0.5})
    lab.log_axis(ax.xaxis, base=2)
    ax.set_xticks([b * series[0].T for b in series[0].micro[::2]])
    ax.set_ylim(0, 1.15 * ax.get_ylim()[1])
    ax.yaxis.set_major_formatter(lambda value, _: lab.plain(value))
    lab.axes(ax, "tokens of an update", "tokens a second", f"{series[0].model} parameters")


def draw_costs(ax, series):
    """The cost of accumulation: measured, and hollow what t_0 says, with the band of the claim."""
    rows = [(s, setting) for s in series for setting in s.accumulated()]
    models = list(dict.fromkeys(s.model for s in series))
    for y, (s, setting) in enumerate(rows):
        cost, wanted, _ = ([100 * x for x in of] for of in s.costs(setting))
        colour = lab.COLOURS[models.index(s.model)]
        ax.fill_betweenx([y - 0.35, y + 0.35], wanted[0] - 100 * LIMIT, wanted[0] + 100 * LIMIT,
                         color="#dddddd", linewidth=0)
        ax.plot(wanted[0], y, marker="o", fillstyle="none", color=colour, markersize=10)
        ax.errorbar(cost[0], y, xerr=[[cost[0] - cost[1]], [cost[2] - cost[0]]], marker="o",
                    color=colour, markersize=4, capsize=3)
    ax.set_yticks(range(len(rows)), [f"{s.model}: {a} × {b}" for s, (b, a) in rows])
    ax.invert_yaxis()
    lab.axes(ax, "longer than one pass, %", "", f"{series[0].fixed} sequences as A × b")


def draw(plt, series, lines, title):
    models = list(dict.fromkeys(s.model for s in series))
    figure, panels = plt.subplots(1, len(models) + 1, figsize=(3.6 * (len(models) + 1), 4.0),
                                  layout="constrained")
    for ax, model in zip(panels, models):
        mine = [(s, line) for s, line in zip(series, lines) if s.model == model]
        draw_speed(ax, *zip(*mine))
    draw_costs(panels[-1], series)
    figure.suptitle(title, fontweight="bold")
    return figure


# ---------------------------------------------------------------- what was seen

def percent(of, sign="+"):
    """A Range as text."""
    value, low, high = (f"{100 * x:{sign}.0f}%" for x in of)
    return f"{value} ({low} to {high})"


def claims(series, lines):
    """{what: [Claim]}, about one core, or a GPU."""
    alone = [(s, line) for s, line in zip(series, lines) if s.threads == 1]
    off = [Claim(s.off(b), LIMIT, f"predicted at most {LIMIT:.0%} off; {b * s.T:,} tokens of "
                 f"{s.name()} measured {percent(s.off(b))}") for s, _ in alone for b in s.micro]
    cost = []
    for s, _ in alone:
        for b, a in s.accumulated():
            measured, wanted, apart = s.costs((b, a))
            cost.append(Claim(apart, LIMIT, f"predicted {wanted.value:.0%} longer ± "
                              f"{100 * LIMIT:.0f} points; {s.fixed} sequences of {s.name()} in {a} "
                              f"micro-batches measured {percent(measured, '')}"))
    half = [Claim(line.b_half, float(s.T), f"predicted below one sequence of {s.T:,} tokens; "
                  f"{s.name()} measured {line.b_half.value:.0f} ({line.b_half.low:.0f} to "
                  f"{line.b_half.high:.0f})") for s, line in alone]
    return {"the line": off, "accumulation": cost, "b_half": half}


def worst(of):
    """The claim that decides: one that is refuted before one that is undecided; among equals, the
    farthest from zero."""
    order = ["as predicted", "undecided", "refuted"]
    return max(of, key=lambda claim: (order.index(judge(claim)),
                                      abs(claim.found.value) / claim.limit))


def verdict(found):
    """(word, why): refuted if any claim is, else undecided if any is. Nothing is refuted where the
    blocks scatter about the line by more than LIMIT: another program was running."""
    deciding = {what: worst(of) for what, of in found.items()}
    words = [judge(claim) for claim in deciding.values()]
    word = next((w for w in ("refuted", "undecided") if w in words), "as predicted")
    why = "; ".join(f"{what}: {judge(claim)}, {claim.words}" for what, claim in deciding.items())
    scatter = lab.median([(c.found.high - c.found.low) / 2.0 for c in found["the line"]])
    if word == "refuted" and scatter > LIMIT:
        return "undecided", f"{why}; but repeats scatter by about {scatter:.0%}"
    return word, why


def report(e, series, lines):
    for s, line in zip(series, lines):
        t_0, tau, half = line
        adamw = lab.median(s.optimizer[s.micro[0], 1])
        b = max(s.micro, key=lambda b: abs(s.off(b).value))
        e.say(f"{s.name()}: t_0 {1e3 * t_0.value:.3g} ms ({1e3 * t_0.low:.3g} to "
              f"{1e3 * t_0.high:.3g}), of which AdamW takes {1e3 * adamw:.3g}; "
              f"τ {1e6 * tau.value:.3g} µs a token ({1e6 * tau.low:.3g} to "
              f"{1e6 * tau.high:.3g}), at most "
              f"{1.0 / tau.value:,.0f} tokens/s; b_half {half.value:.0f} tokens ({half.low:.0f} "
              f"to {half.high:.0f}). Farthest from the line: {b * s.T:,} tokens, "
              f"{percent(s.off(b))}.")
    for s in series:
        for b, a in s.accumulated():
            measured, wanted, _ = s.costs((b, a))
            e.say(f"{s.name()}: {s.fixed} sequences as {a} micro-batches of {b} take "
                  f"{percent(measured, '')} longer than in one pass; by t_0 "
                  f"{percent(wanted, '')}.")
    spread = [max(t) / min(t) - 1.0 for s in series for t in s.seconds.values()]
    e.say(f"Between blocks the seconds of a setting differ by {lab.median(spread):.0%} in the "
          f"median, {max(spread):.0%} at most.")
    e.say("Modelled for a GPU of 132 multiprocessors and the 768 columns of GPT-2 124M: "
          + ", ".join(f"micro-batch {b} keeps {tile_efficiency(b, 768):.0%} of them busy"
                      for b in (1, 4, 11)) + ".")


def figures(e, series, lines, word):
    halves = [line.b_half.value for s, line in zip(series, lines) if s.threads == 1]
    low, high = (f"{x:.0f}" for x in (min(halves), max(halves)))
    title = ("t = t_0 + τ b; half of the best speed at "
             f"{low if low == high else f'{low} to {high}'} tokens: {word}")
    e.figure("one_device", lambda plt: draw(plt, series, lines, title),
             alt="Tokens a second against the tokens of an update, a panel for each model, rising "
                 "and then flat, with the curve of a fixed time and a time a token; the cost of "
                 "gradient accumulation, measured against predicted.",
             caption="Measured, with 90% intervals. "
                     "Curves: t = t_0 + τ b, dotted where nothing is measured. Star: b_half. "
                     "A × b: A micro-batches of b sequences; hollow: what t_0 says, shaded: "
                     "within 10 points of it.")
    e.figure("tiles", lambda plt: draw_tiles(plt, [768, 3072]),
             alt="A sawtooth: the share of a GPU's units at work against the micro-batch.",
             caption="Modelled, not measured: tiles / (⌈tiles / units⌉ · units).")


def main():
    e = lab.Experiment(
        4, "one_device", title="One device", arguments=arguments,
        question="How many tokens must an update have to use a device well, and what does gradient "
                 "accumulation cost?",
        prediction="An update of b tokens takes t_0 + τ b seconds, within 10% of every measured "
                   "one. b_half = t_0/τ is below one sequence on one core. A batch accumulated in "
                   "A micro-batches takes A - 1 times the t_0 of forward and backward longer than "
                   "in one pass, within 10% of the pass.")
    if e.args.most is not None and e.args.most < 8:
        lab.fail(f"--most {e.args.most}: expected 8 or more")
    series = all_series(e)
    blocks = e.pick(tiny=3, quick=5, full=9)
    measure(e, series, blocks)
    lines = [s.line() for s in series]
    write_tables(e, series, lines)
    e.setting(f"{blocks} blocks, each with every setting in turn, one run at a time. Seconds of a "
              "setting: the lower quartile of its updates, then the median of the blocks. "
              "Intervals: 90%.")
    if not lab.is_cuda(e.args.trainer) and not e.args.model:
        e.setting("Layers, heads, channels: " + "; ".join(
            f"{name} {', '.join(map(str, shape))}" for name, shape in MODELS.items())
            + f". T={e.args.seq_len}.")
    word, why = verdict(claims(series, lines))
    figures(e, series, lines, word)
    report(e, series, lines)
    if not lab.is_cuda(e.args.trainer):
        shards.measure(e)
    e.verdict(word, why)
    e.close()


if __name__ == "__main__":
    main()
