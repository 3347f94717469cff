#!/usr/bin/env python3
"""Experiment 4: one device. Seconds of an update against its tokens, and the line through them:

    t = t_0 + tau b        b_half = t_0 / tau: with b_half tokens, half of the best speed 1/tau

What gradient accumulation costs follows from t_0. Beside it: how long a rank waits for another one
that has more work. Appendix: why a GPU's speed is a sawtooth (wave quantization, modelled), and the
speed of products that tensor parallelism has cut (shards.py).

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

SLOW = 1.15                                      # a control may take so many times the best one
JUDGED = "0.8M"                                  # the endpoint's model, on one core
UNEVEN = {"even": (18, 18), "uneven": (20, 16)}  # sequences of two ranks' shares
PAIR = os.path.join("scripts", "lab", "shared", "pair.sh")
SPIN = {"GOMP_SPINCOUNT": "10000"}               # threads spin briefly, as is the default
MODELS = {"35k": (2, 2, 32), "119k": (2, 2, 64), "0.8M": (4, 4, 128)}    # layers, heads, channels

# A value and its 90% interval.
Range = namedtuple("Range", "value low high")

# t_0 and tau in seconds, b_half in tokens: a Range each.
Line = namedtuple("Line", "t_0 tau b_half")


# ---------------------------------------------------------------- numbers

def median_range(values):
    """The median and its 90% interval; with fewer than five values, from the least to the most."""
    low, high = fit.median_interval(values)
    if math.isnan(low):
        low, high = min(values), max(values)
    return Range(lab.median(values), low, high)


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
                        help="the largest micro-batch, in sequences (default: 32)")
    parser.add_argument("--model", metavar="LAYERS,HEADS,CHANNELS", help="one model of your own")
    parser.add_argument("--seq-len", type=int, default=32, metavar="T",
                        help="default: 32; without --model, a GPU runs GPT-2 124M at 1,024")


def shape(layers, heads, channels, T):
    return ["--layers", layers, "--heads", heads, "--channels", channels, "--seq-len", T]


def all_series(e):
    """Three models on one core, the larger two on all cores as well; on a GPU GPT-2 124M."""
    cuda, T = lab.is_cuda(e.args.trainer), e.args.seq_len
    micro = powers(e.args.most or e.pick(tiny=16, quick=32, full=32))
    if cuda and not e.args.model:
        return [Series("124M", ["--init", "d12", "--seq-len", 1024], "one GPU", 1, 1024, micro,
                       10 ** 6)]
    models = {name: MODELS[name] for name in e.pick(["35k"], ["119k", "0.8M"], list(MODELS))}
    if e.args.model:
        try:
            layers, heads, channels = map(int, e.args.model.split(","))
        except ValueError:
            lab.fail(f"--model {e.args.model}: expected layers, heads and channels, as in 6,6,384")
        models = {f"{layers}x{channels}": (layers, heads, channels)}
    series = []
    for name, sizes in models.items():
        tokens = e.pick(10 ** 7, 2 * 10 ** 8, 10 ** 9) // (sizes[0] * sizes[2] ** 2)
        cores = 1 if cuda or (name == "35k" and e.size != "tiny") else lab.processors()
        for threads in sorted({1, cores}):
            where = "one GPU" if cuda else "1 core" if threads == 1 else f"{threads} cores"
            series.append(Series(name, shape(*sizes, T), where, threads, T, micro,
                                 min(10 ** 6, tokens)))
    return series


def job(e, s, setting, block):
    micro, accumulation = setting
    return lab.Job(f"{s.model}_t{s.threads}_b{micro}_a{accumulation}_block{block}", [
        "--data", e.corpus(10 ** 6), *s.flags, "--micro-batch", micro, "--batch-tokens",
        micro * accumulation * s.T, "--steps", s.steps(setting), "--lr", "1e-3", "--lr-schedule",
        "constant", "--eval-every", "0", "--eval-tokens", s.T],
        threads=s.threads, alone=True, env=SPIN if s.threads > 1 else {})


def fast_quarter(steps, field="seconds"):
    """The lower quartile of a field: other programs only add time."""
    return shards.quartiles([step.get(field, 0.0) for step in steps[2:]])[0]


def control_jobs(e, turn):
    """{cores: a fixed timing between two blocks}"""
    return {n: lab.Job(f"control_t{n}_{turn}", [
        "--data", e.corpus(10 ** 6), *shape(*MODELS["119k"], 32), "--micro-batch", 16,
        "--batch-tokens", 512, "--steps", e.pick(10, 60, 200), "--eval-every", 0, "--eval-tokens",
        32], threads=n, alone=True, env=SPIN if n > 1 else {})
        for n in ([] if lab.is_cuda(e.args.trainer) else sorted({1, lab.processors()}))}


def kept_blocks(controls):
    """Blocks of which no control, before or after, took more than SLOW times the best of its kind.
    controls: [{cores: seconds}], one more than there are blocks."""
    best = {n: min(of[n] for of in controls) for n in controls[0]}
    fine = [all(took <= SLOW * best[n] for n, took in of.items()) for of in controls]
    return [i for i, pair in enumerate(zip(fine, fine[1:])) if all(pair)]


def pair_jobs(e, block):
    """{split: two runs at the same time, as ranks of one update with these shares}. The smaller
    share makes more updates, so that both run as long."""
    if lab.is_cuda(e.args.trainer) or e.args.model or lab.processors() < 2:
        return {}
    T, (name, sizes) = 32, list(MODELS.items())[e.pick(0, 2, 2)]
    steps = e.pick(6, 12, 30)
    return {split: lab.Job(f"{split}_{name}_block{block}", [
        os.path.join(".", "train_gpt2"), "--data", e.corpus(10 ** 6), *shape(*sizes, T),
        "--micro-batch", one, "--batch-tokens", one * T, "--steps", steps, "--eval-every", 0,
        "--eval-tokens", T], program=PAIR, alone=True,
        env={"SECOND": f"--micro-batch {two} --batch-tokens {two * T} "
                       f"--steps {math.ceil(steps * one / two)}"})
        for split, (one, two) in UNEVEN.items()}


def both(run):
    """Seconds of an update of each of a pair."""
    second = [x for x in lab.read_log(run.base + ".jsonl.second") if x["event"] == "step"]
    return fast_quarter(run.steps), fast_quarter(second)


def measure(e, series, blocks, most):
    """Blocks, each with every setting in turn: a slow phase of the machine hits all of them. More
    blocks, up to `most`, for those between disturbed controls. Returns (controls, kept blocks,
    {split: [(seconds, seconds) of each block]})."""
    def control(turn):
        jobs = control_jobs(e, turn)
        runs = e.run(list(jobs.values()))
        return {n: fast_quarter(runs[j.name].steps) for n, j in jobs.items()}
    controls, pairs, made = [control(0)], {}, 0
    while made < most and (made < blocks or len(kept_blocks(controls)) < blocks):
        jobs = {(s, setting): job(e, s, setting, made) for s in series for setting in s.settings()}
        splits = pair_jobs(e, made)
        runs = e.run([*jobs.values(), *splits.values()])
        for (s, setting), j in jobs.items():
            s.parameters = runs[j.name].start["parameters"]
            for of, field in [(s.seconds, "seconds"), (s.optimizer, "seconds_optimizer")]:
                of.setdefault(setting, []).append(fast_quarter(runs[j.name].steps, field))
        for split, j in splits.items():
            pairs.setdefault(split, []).append(both(runs[j.name]))
        made += 1
        controls.append(control(made))
    return controls, kept_blocks(controls) if e.size != "tiny" else list(range(made)), pairs


def keep(series, pairs, chosen):
    """Forgets the other blocks."""
    for of in [pairs, *(x for s in series for x in (s.seconds, s.optimizer))]:
        for key in of:
            of[key] = [of[key][i] for i in chosen]


def write_blocks(e, series, controls, chosen):
    e.csv("seconds", ["block", "kept", "model", "threads", "micro_batch_tokens", "accumulation",
                      "seconds", "seconds_optimizer"],
          [[i, int(i in chosen), s.model, s.threads, b * s.T, a, s.seconds[b, a][i],
            s.optimizer[b, a][i]] for s in series for b, a in s.settings()
           for i in range(len(controls) - 1)])
    e.csv("controls", ["before_block", "threads", "seconds"],
          [[i, n, took] for i, of in enumerate(controls) for n, took in of.items()])


def write_tables(e, series, lines, pairs):
    e.csv("line", ["model", "parameters", "seq_len", "threads"]
          + [f"{name}{end}" for name in Line._fields for end in ("", "_low", "_high")]
          + ["ps_a_token_and_parameter"],
          [[s.model, s.parameters, s.T, s.threads, *line.t_0, *line.tau, *line.b_half,
            1e12 * line.tau.value / s.parameters] for s, line in zip(series, lines)])
    e.csv("accumulation", ["model", "micro_batch_tokens", "accumulation"] + [
        f"{name}{end}" for name in ("cost", "predicted", "difference")
        for end in ("", "_low", "_high")],
          [[s.model, b * s.T, a, *(x for one in s.costs((b, a)) for x in one)]
           for s in series for b, a in s.accumulated()])
    e.csv("uneven", ["split", "tokens_one", "tokens_other", "seconds_one", "seconds_other",
                     "seconds_update", "share_waited", "share_waited_low", "share_waited_high"],
          [[split, *(32 * n for n in UNEVEN[split]),
            *(lab.median([pair[i] for pair in of]) for i in (0, 1)),
            lab.median([max(pair) for pair in of]), *waited(of)] for split, of in pairs.items()])
    lab.write_json(os.path.join(e.dir, "fit.json"), {"fits": [
        {"model": s.model, "parameters": s.parameters, "seq_len": s.T, "threads": s.threads,
         "t_0": line.t_0.value, "tau": line.tau.value, "b_half": line.b_half.value,
         "intervals": {name: [of.low, of.high] for name, of in line._asdict().items()}}
        for s, line in zip(series, lines)]})


def waited(pairs):
    """The share of an update that the faster of two ranks waits."""
    return median_range([1.0 - min(pair) / max(pair) for pair in pairs])


# ---------------------------------------------------------------- tiles of a GPU, modelled

GPU = {"units": 132, "rows": 128, "columns": 256}            # an H100's SMs, cuBLAS's usual tile


def tiles(rows, columns):
    return math.ceil(rows / GPU["rows"]) * math.ceil(columns / GPU["columns"])


def tile_efficiency(micro, width, seq_len=1024):
    """Share of the GPU at work in a product of micro x seq_len rows and `width` columns. A
    multiprocessor computes one tile at a time; the last wave of tiles leaves some idle."""
    count = tiles(micro * seq_len, width)
    return count / (math.ceil(count / GPU["units"]) * GPU["units"])


def draw_tiles(plt, width=768):
    figure, ax = plt.subplots(figsize=(7.6, 3.2), layout="constrained")
    micro = list(range(1, 33))
    ax.plot(micro, [100 * tile_efficiency(b, width) for b in micro], color=lab.COLOURS[0],
            marker=lab.MARKERS[0], markersize=4)
    ax.set_ylim(0, 108)
    lab.axes(ax, "micro-batch, sequences of 1,024 tokens", "units at work, % (modelled)",
             f"{width} columns in tiles of {GPU['rows']}×{GPU['columns']} on {GPU['units']} units")
    return figure


# ---------------------------------------------------------------- pictures

def draw_speed(ax, series, lines):
    """Speed of one model against the tokens of an update, and the curve of its line. A star marks
    half of the best speed; the curve is dotted below one sequence, where nothing is measured."""
    for i, (s, line) in enumerate(zip(series, lines)):
        colour, (t_0, tau, half) = lab.COLOURS[i], (of.value for of in line)

        def speed(b, t_0=t_0, tau=tau):
            return b / (t_0 + tau * b)
        x = [b * s.T for b in s.micro]
        of = [median_range([b * s.T / t for t in s.seconds[b, 1]]) for b in s.micro]
        ax.errorbar(x, [v.value for v in of], [[v.value - v.low for v in of],
                                               [v.high - v.value for v in of]],
                    linestyle="none", capsize=2, elinewidth=0.8, color=colour,
                    marker=lab.MARKERS[i], markersize=5)
        for low, high, dash in [(min(half, s.T) / 2.0 or s.T, s.T, ":"), (s.T, x[-1], "-")]:
            across = [low * (high / low) ** (j / 50.0) for j in range(51)]
            ax.plot(across, [speed(b) for b in across], color=colour, linestyle=dash)
        if half > 0.0:
            ax.plot([half], [speed(half)], "*", color=colour, markersize=14, zorder=4)
        ax.annotate(f"{s.where}:\nb_half\n{half:.0f} tokens", (x[-1], speed(x[-1])), xytext=(9, 0),
                    textcoords="offset points", va="center", color=colour, fontsize=9)
    lab.log_axis(ax.xaxis, base=2)
    ax.set_xticks([b * series[0].T for b in series[0].micro[::2]])
    left, right = ax.get_xlim()
    ax.set_xlim(left, right * (right / left) ** 0.36)        # room for the words
    ax.set_ylim(0, 1.05 * ax.get_ylim()[1])
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
    ax.set_yticks(range(len(rows)), [f"{s.model}: {a} × {b}" for s, (b, a) in rows])
    ax.invert_yaxis()
    ax.margins(y=0.12)
    lab.axes(ax, "longer than one pass, % (hollow: by t_0)", "", f"{series[0].fixed} sequences as A × b")


def draw(plt, series, lines, model):
    figure, panels = plt.subplots(1, 2, figsize=(7.6, 3.7), layout="constrained",
                                  gridspec_kw={"width_ratios": [1.5, 1]})
    mine = [(s, line) for s, line in zip(series, lines) if s.model == model]
    draw_speed(panels[0], *zip(*mine))
    draw_costs(panels[1], series)
    figure.suptitle(f"Half of the best speed with {mine[0][1].b_half.value:.0f} tokens at once; a "
                    f"sequence has {mine[0][0].T}", x=0.01, ha="left", fontsize=10.5)
    return figure


# ---------------------------------------------------------------- what was seen

def percent(of, sign="+"):
    """A Range as text."""
    value, low, high = (f"{100 * x:{sign}.0f}%" for x in of)
    return f"{value} ({low} to {high})"


def endpoint(series, lines, enough):
    """What the plan judges; empty without enough kept blocks, or for other models."""
    return [(f"{s.name()}, tokens", *line.b_half) for s, line in zip(series, lines)
            if enough and (s.model, s.threads) == (JUDGED, 1)]


def report(e, series, lines, pairs):
    for s, line in zip(series, lines):
        t_0, tau, half = line
        adamw = lab.median(s.optimizer[s.micro[0], 1])
        off = [lab.median(s.seconds[b, 1]) / (t_0.value + tau.value * b * s.T) - 1.0
               for b in s.micro]
        e.say(f"{s.name()}: t_0 {1e3 * t_0.value:.3g} ms ({1e3 * t_0.low:.3g} to "
              f"{1e3 * t_0.high:.3g}), of which AdamW takes {1e3 * adamw:.3g}; "
              f"τ {1e6 * tau.value:.3g} µs a token ({1e6 * tau.low:.3g} to "
              f"{1e6 * tau.high:.3g}), {1e12 * tau.value / s.parameters:.0f} ps a parameter, at "
              f"most {1.0 / tau.value:,.0f} tokens/s; b_half {half.value:.0f} tokens "
              f"({half.low:.0f} to {half.high:.0f}). Medians are at most "
              f"{max(map(abs, off)):.0%} off the line.")
    for s in series:
        for b, a in s.accumulated():
            measured, wanted, _ = s.costs((b, a))
            e.say(f"{s.name()}: {s.fixed} sequences as {a} micro-batches of {b} take "
                  f"{percent(measured, '')} longer than in one pass; by t_0 "
                  f"{percent(wanted, '')}.")
    if pairs:
        update = {split: lab.median([max(pair) for pair in of]) for split, of in pairs.items()}
        share = waited(pairs["uneven"])
        one, two = (32 * n for n in UNEVEN["uneven"])
        e.say(f"Two ranks at the same time with {one} and {two} tokens: the second waits "
              f"{percent(share, '')} of the update, which takes "
              f"{update['uneven'] / update['even']:.2f} times as long as with {(one + two) // 2} "
              "tokens each.")
    e.say("Modelled for a GPU of 132 multiprocessors and the 768 columns of GPT-2 124M: "
          + ", ".join(f"micro-batch {b} keeps {tile_efficiency(b, 768):.0%} of them busy"
                      for b in (1, 4, 11)) + ".")


def figures(e, series, lines):
    model = JUDGED if any(s.model == JUDGED for s in series) else series[0].model
    e.figure("one_device", lambda plt: draw(plt, series, lines, model),
             alt="Tokens a second against the tokens of an update, rising and then flat, with the "
                 "curve of a fixed time and a time a token; the cost of gradient accumulation, "
                 "measured against predicted.",
             caption="Measured, with 90% intervals. Curves: t = t_0 + τ b, dotted where nothing is "
                     "measured. Star: b_half. A × b: A micro-batches of b sequences; hollow: what "
                     "t_0 says.")
    e.figure("tiles", draw_tiles,
             alt="A sawtooth: the share of a GPU's units at work against the micro-batch.",
             caption="Modelled, not measured: tiles / (⌈tiles / units⌉ · units).")


def main():
    e = lab.Experiment(
        4, "one_device", title="One device", arguments=arguments,
        question="How many tokens must an update have to use a device well, and what does gradient "
                 "accumulation cost?",
        prediction="An update of b tokens takes t_0 + τ b seconds, and b_half = t_0/τ is below one "
                   "sequence on one core. A batch accumulated in A micro-batches takes A - 1 times "
                   "the t_0 of forward and backward longer than in one pass.")
    if e.args.most is not None and e.args.most < 8:
        lab.fail(f"--most {e.args.most}: expected 8 or more")
    series = all_series(e)
    blocks = e.pick(tiny=3, quick=5, full=9)
    controls, chosen, pairs = measure(e, series, blocks, e.pick(3, 7, 20))
    write_blocks(e, series, controls, chosen)
    made = len(controls) - 1
    keep(series, pairs, chosen or range(made))
    lines = [s.line() for s in series]
    write_tables(e, series, lines, pairs)
    e.setting(f"{blocks} blocks, each with every setting in turn, one run at a time. Seconds of a "
              "setting: the lower quartile of its updates, then the median of the blocks. "
              "Intervals: 90%.")
    if not lab.is_cuda(e.args.trainer) and not e.args.model:
        e.setting("Layers, heads, channels: " + "; ".join(
            f"{name} {', '.join(map(str, sizes))}" for name, sizes in MODELS.items())
            + f". T={e.args.seq_len}.")
    figures(e, series, lines)
    report(e, series, lines, pairs)
    e.say(f"{made - len(chosen)} of {made} blocks discarded: a control beside them took more than "
          f"{SLOW} times the best one.")
    if not lab.is_cuda(e.args.trainer):
        shards.measure(e)
    e.decide(endpoint(series, lines, len(chosen) >= blocks))
    e.close()


if __name__ == "__main__":
    main()
