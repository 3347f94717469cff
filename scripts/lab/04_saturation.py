#!/usr/bin/env python3
"""Experiment 4: one device saturates. Speed and memory against the micro-batch, and with gradient
accumulation at a fixed batch; why a GPU's speed is a sawtooth (wave quantization, modelled); and
the speed of products that tensor parallelism has cut (shards.py).

    scripts/lab/04_saturation.py --quick
"""
import math
import os

import lab
import shards
from peak import peak_of

T = 32
SHARE = 0.9                                      # b_sat reaches this share of the best speed
SPIN = {"GOMP_SPINCOUNT": "10000"}               # threads spin briefly, as is the default


# ---------------------------------------------------------------- what is measured

class Series:
    """A model on `threads` cores. A setting is a pair: micro-batch, accumulation steps."""

    def __init__(self, name, model, threads, seq_len, micro, fixed, tokens):
        self.name, self.model, self.threads, self.T = name, model, threads, seq_len
        self.micro = micro                                   # without accumulation
        self.fixed = fixed                                   # the batch that is accumulated
        self.tokens = tokens                                 # of one timing, roughly
        self.speeds, self.peaks = {}, {}                     # setting -> a value a round
        self.optimizer = {}                                  # setting -> share of an update

    def settings(self):
        accumulated = [(b, self.fixed // b) for b in self.micro if b <= self.fixed]
        return sorted({(b, 1) for b in self.micro} | set(accumulated))

    def steps(self, setting):
        return min(400, max(5, self.tokens // (setting[0] * setting[1] * self.T)))

    def speed(self, setting):
        return lab.median(self.speeds[setting])

    def peak(self, setting):
        known = [p for p in self.peaks[setting] if p]
        return max(known) if known else None

    def best(self):
        return max(self.speed((b, 1)) for b in self.micro)

    def b_sat(self, read=None):
        """The smallest micro-batch with SHARE of the best speed; `read` gives the speed of a
        setting, by default the median of the rounds."""
        read = read or self.speed
        best = max(read((b, 1)) for b in self.micro)
        return min(b for b in self.micro if read((b, 1)) >= SHARE * best)

    def b_sat_range(self):
        """The lowest and the highest b_sat of single rounds."""
        rounds = range(len(self.speeds[self.micro[0], 1]))
        found = [self.b_sat(lambda setting, i=i: self.speeds[setting][i]) for i in rounds]
        return min(found), max(found)

    def share_text(self, setting, whole):
        """The speed of a setting relative to another, also in single rounds."""
        found = [a / b for a, b in zip(self.speeds[setting], self.speeds[whole])]
        return (f"{self.speed(setting) / self.speed(whole):.0%} ({min(found):.0%} to "
                f"{max(found):.0%} in single rounds)")


def powers(most):
    return [2 ** i for i in range(most.bit_length())]


def all_series(e):
    """On a CPU two models, on one core and on all; on a GPU the layers of GPT-2 124M."""
    if lab.is_cuda(e.args.trainer):
        micro = powers(e.args.most or 32)
        return [Series("12 layers of 768, one GPU", ["--init", "d12", "--seq-len", "1024"], 1,
                       1024, micro, max(micro), 10 ** 6)]
    small = powers(e.args.most or e.pick(tiny=8, quick=256, full=512))
    large = powers(e.args.most or e.pick(tiny=0, quick=64, full=128))
    tokens = e.pick(tiny=6000, quick=30000, full=200000)
    larger = ["--layers", "4", "--heads", "4", "--channels", "128", "--seq-len", str(T)]
    series, cores = [], lab.processors()
    for threads in [1, cores] if cores > 1 else [1]:
        on = "1 core" if threads == 1 else f"{threads} cores"
        series.append(Series(f"35k parameters, {on}", e.model(), threads, T, small,
                             min(64, max(small)), tokens))
        if large:
            series.append(Series(f"0.8M parameters, {on}", larger, threads, T, large,
                                 min(16, max(large)), tokens // 8))
    return series


def job(e, series, setting, turn, number):
    micro, accumulation = setting
    flags = [e.args.trainer if os.sep in e.args.trainer else f"./{e.args.trainer}",
             "--data", e.corpus(10 ** 6), *series.model, "--micro-batch", micro,
             "--batch-tokens", micro * accumulation * series.T, "--steps", series.steps(setting),
             "--lr", "1e-3", "--lr-schedule", "constant", "--eval-every", "0",
             "--eval-tokens", series.T]
    return lab.Job(f"r{turn}_s{number}_b{micro}_a{accumulation}", flags, threads=series.threads,
                   program=os.path.join("scripts", "lab", "peak.py"), alone=True,
                   env=SPIN if series.threads > 1 else {})


def measure(e, series, rounds):
    """All settings once, then all again, so that a slow phase of the machine hits all of them."""
    jobs = {(turn, number, setting): job(e, s, setting, turn, number) for turn in range(rounds)
            for number, s in enumerate(series) for setting in s.settings()}
    runs = e.run(list(jobs.values()))
    for (_, number, setting), made in jobs.items():
        s, run = series[number], runs[made.name]
        seconds = run.median("seconds", skip=2)
        s.speeds.setdefault(setting, []).append(setting[0] * setting[1] * s.T / seconds)
        s.peaks.setdefault(setting, []).append(peak_of(run))
        share = run.median("seconds_optimizer", skip=2)
        s.optimizer.setdefault(setting, []).append(share / seconds if share is not None else 0.0)


def write_tables(e, series):
    rows = []
    for s in series:
        for setting in s.settings():
            micro, accumulation = setting
            rows.append([s.name, s.threads, micro, micro * s.T, accumulation,
                         micro * accumulation * s.T, s.speed(setting), min(s.speeds[setting]),
                         max(s.speeds[setting]), s.speed(setting) / s.best(), s.peak(setting),
                         lab.median(s.optimizer[setting])])
    e.csv("speed", ["series", "threads", "micro_batch_sequences", "micro_batch_tokens",
                    "accumulation", "batch_tokens", "tokens_per_second", "lowest_round",
                    "highest_round", "share_of_best", "peak_bytes", "optimizer_share"], rows)
    e.csv("b_sat", ["series", "b_sat_sequences", "b_sat_tokens", "lowest_round", "highest_round",
                    "best_tokens_per_second"],
          [[s.name, s.b_sat(), s.b_sat() * s.T, *s.b_sat_range(), s.best()] for s in series])


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
    figure, ax = plt.subplots(figsize=(7.5, 4.2), constrained_layout=True)
    micro = list(range(1, most + 1))
    for i, width in enumerate(widths):
        ax.plot(micro, [100 * tile_efficiency(b, width) for b in micro], color=lab.COLOURS[i],
                marker=lab.MARKERS[i], linestyle=lab.LINES[i], markersize=5,
                label=f"{width:,} columns")
    for b, place in [(1, (8, -4)), (4, (6, -10)), (11, (-11, 7)), (12, (8, -12))]:
        share = 100 * tile_efficiency(b, widths[0])
        ax.annotate(f"{share:.0f}%", (b, share), xytext=place, textcoords="offset points",
                    fontsize=8)
    ax.set_ylim(0, 112)
    lab.axes(ax, "micro-batch, sequences of 1,024 tokens", "units at work, % (modelled)",
             f"Modelled: tiles of {GPU['rows']}×{GPU['columns']} on {GPU['units']} units")
    ax.legend(loc="lower right", title="width of the product")
    return figure


# ---------------------------------------------------------------- pictures

def style(i):
    return {"color": lab.COLOURS[i], "marker": lab.MARKERS[i], "linestyle": lab.LINES[i],
            "linewidth": 1.7, "markersize": 5.5}


def bars(s, settings, best):
    """Error bars from the lowest to the highest round, in % of the best."""
    middle = [s.speed(x) for x in settings]
    return [[100 * (m - min(s.speeds[x])) / best for m, x in zip(middle, settings)],
            [100 * (max(s.speeds[x]) - m) / best for m, x in zip(middle, settings)]]


def draw_speed(ax, series):
    for i, s in enumerate(series):
        best, settings = s.best(), [(b, 1) for b in s.micro]
        ax.errorbar([b * s.T for b in s.micro], [100 * s.speed(x) / best for x in settings],
                    yerr=bars(s, settings, best), capsize=2,
                    label=f"{s.name}: {s.best():,.0f} tokens/s at best; fixed batch "
                          f"{s.fixed} sequences = {s.fixed * s.T:,} tokens", **style(i))
        ax.plot([s.b_sat() * s.T], [100 * s.speed((s.b_sat(), 1)) / best], marker="o",
                fillstyle="none", color="black", markersize=12, linestyle="none")
    ax.axhline(100 * SHARE, color="#666666", linewidth=0.9, linestyle="--")
    ax.set_xscale("log", base=2)
    token_axis(ax, series)
    lab.axes(ax, "micro-batch, tokens", "speed, % of the series' best")
    ax.set_ylim(0, None)


def token_axis(ax, series):
    """Tokens below, sequences above: every series of a picture has one sequence length."""
    length, most = series[0].T, max(max(s.micro) for s in series)
    ticks = powers(most)[::2]
    ax.set_xticks([b * length for b in ticks])
    ax.set_xticklabels([f"{b * length:,}" for b in ticks])
    ax.minorticks_off()
    upper = ax.secondary_xaxis("top", functions=(lambda n: n / length, lambda b: b * length))
    upper.set_xlabel(f"sequences of {length:,}")
    upper.set_xticks(ticks)
    upper.set_xticklabels([str(b) for b in ticks])
    upper.minorticks_off()


def draw_accumulation(ax, series):
    for i, s in enumerate(series):
        settings = [x for x in s.settings() if x[0] * x[1] == s.fixed]
        ax.errorbar([a for _, a in settings], [100 * s.speed(x) / s.best() for x in settings],
                    yerr=bars(s, settings, s.best()), capsize=2, **style(i))
    ax.axhline(100 * SHARE, color="#666666", linewidth=0.9, linestyle="--")
    ax.set_xscale("log", base=2)
    steps = powers(max(s.fixed for s in series))
    ax.set_xticks(steps)
    ax.set_xticklabels([str(n) for n in steps])
    ax.minorticks_off()
    ax.set_ylim(0, None)
    lab.axes(ax, "micro-batches accumulated to the fixed batch", "speed, % of the series' best")


def draw_memory(ax, series):
    """Filled: the micro-batch is the batch. Hollow: the fixed batch, accumulated."""
    for i, s in enumerate(series):
        if any(s.peak(x) is None for x in s.settings()):
            continue
        ax.plot([b * s.T for b in s.micro], [s.peak((b, 1)) / 1e6 for b in s.micro], **style(i))
        settings = [x for x in s.settings() if x[0] * x[1] == s.fixed and x[1] > 1]
        ax.plot([b * s.T for b, _ in settings], [s.peak(x) / 1e6 for x in settings],
                color=lab.COLOURS[i], marker=lab.MARKERS[i], fillstyle="none", markersize=10,
                linestyle="none")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    token_axis(ax, series)
    lab.axes(ax, "micro-batch, tokens", "most memory held, MB")


def draw(plt, series):
    figure, panels = plt.subplots(1, 3, figsize=(13, 4.9))
    draw_speed(panels[0], series)
    draw_accumulation(panels[1], series)
    draw_memory(panels[2], series)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=2,
                  title="ring: b_sat, the smallest micro-batch with 90% of the best speed")
    figure.tight_layout(rect=(0, 0.15, 1, 1))
    return figure


# ---------------------------------------------------------------- what was seen

def claims(s):
    """What of the prediction fails for one series; empty if all of it holds."""
    sat, most, failed = s.b_sat(), max(s.micro), []
    if sat * 4 > most:
        failed.append(f"{s.name} saturates late or not at all: b_sat {sat} of at most {most}")
    whole, part = s.peak((most, 1)), s.peak((sat, 1))
    if whole and part and whole < 1.5 * part:
        failed.append(f"{s.name} takes hardly more memory at {most} than at b_sat {sat}")
    held = [x for x in s.settings() if x[0] * x[1] == s.fixed and sat <= x[0] < s.fixed]
    full = s.speed((s.fixed, 1))
    slow = [x for x in held if s.speed(x) < SHARE * full]
    if slow:
        x = min(slow, key=s.speed)
        failed.append(f"{s.name}: {x[1]} micro-batches of {x[0]} run at "
                      f"{s.share_text(x, (s.fixed, 1))} of the speed of one of {s.fixed}; "
                      f"predicted: at least {SHARE:.0%}")
    return failed


def report(e, series):
    for s in series:
        low, high = s.b_sat_range()
        most, sat = max(s.micro), s.b_sat()
        apart = f" ({low} to {high} in single rounds)" if low < high else ""
        e.say(f"{s.name}: b_sat is {sat} sequences, {sat * s.T:,} tokens{apart}; "
              f"{s.speed((1, 1)):,.0f} tokens/s at micro-batch 1, {s.best():,.0f} at best, "
              f"{s.speed((most, 1)):,.0f} at {most}.")
    alone = [s for s in series if s.threads == 1]
    for s in alone:
        say_memory(e, s)
    e.say("At micro-batch 1 AdamW takes " + ", ".join(
        f"{lab.median(s.optimizer[1, 1]):.0%} of an update ({s.name})" for s in alone)
        + "; with gradient accumulation it runs once a batch.")
    say_spread(e, series)
    e.say("Modelled for a GPU of 132 multiprocessors and the 768 columns of GPT-2 124M: "
          + ", ".join(f"micro-batch {b} keeps {tile_efficiency(b, 768):.0%} of them busy"
                      for b in (1, 4, 11)) + ".")
    failed = [words for s in series for words in claims(s)]
    if failed:
        e.verdict("partly" if len(failed) < len(series) else "failed", "; ".join(failed))
    else:
        e.verdict("as predicted", "; ".join(f"b_sat {s.b_sat() * s.T:,} tokens for {s.name}"
                                            for s in series))


def say_spread(e, series):
    spread = {s.name: [(max(v) - min(v)) / lab.median(v) for v in s.speeds.values()]
              for s in series}
    e.say("The rounds of a setting differ by " + ", ".join(
        f"{lab.median(of):.0%} in the median, {max(of):.0%} at most ({name})"
        for name, of in spread.items())
        + ("; above 30% another program was running, and the speed is unreliable."
           if max(map(max, spread.values())) > 0.3 else "."))


def say_memory(e, s):
    most, sat = max(s.micro), s.b_sat()
    if s.peak((most, 1)) is None:
        return
    each = (s.peak((most, 1)) - s.peak((1, 1))) / (most - 1)
    small = min(x for x in s.settings() if x[0] * x[1] == s.fixed)
    e.say(f"Memory, {s.name}: {s.peak((1, 1)) / 1e6:.1f} MB at micro-batch 1, "
          f"{each / 1e6:.3f} MB for each further sequence, {s.peak((most, 1)) / 1e6:.1f} MB at "
          f"{most}, with {s.speed((most, 1)) / s.speed((sat, 1)):.2f} times the speed at b_sat. A "
          f"batch of {s.fixed} takes {s.peak((s.fixed, 1)) / 1e6:.1f} MB in one pass and "
          f"{s.peak(small) / 1e6:.1f} MB as {small[1]} micro-batches.")


def main():
    e = lab.Experiment(
        4, "saturation", title="One device saturates",
        question="How large must a micro-batch be to use a device well, and what does a larger one "
                 "bring?",
        prediction="Speed rises with the micro-batch and is within 10% of its best well before the "
                   "largest; that point is b_sat. Beyond it only memory grows. At a fixed batch, "
                   "gradient accumulation in micro-batches of b_sat or more is within 10% of the "
                   "speed of the whole batch in one pass.",
        arguments=lambda parser: parser.add_argument(
            "--most", type=int, metavar="B", help="the largest micro-batch, in sequences"))
    if e.args.most is not None and e.args.most < 4:
        lab.fail(f"--most {e.args.most}: expected 4 or more")
    series = all_series(e)
    rounds = e.pick(tiny=2, quick=3, full=9)
    measure(e, series, rounds)
    write_tables(e, series)
    if not lab.is_cuda(e.args.trainer):
        e.setting(f"35k parameters: 2 layers of 32 channels; 0.8M: 4 layers of 128; T={T}.")
    e.setting(f"One run at a time; {rounds} rounds over all settings. A point is the median of "
              "the rounds, each the median of its updates; bars span the rounds.")
    e.setting("Memory is the process's largest resident set (on a GPU: memory in use), program and "
              "data included.")
    e.figure("saturation", lambda plt: draw(plt, series),
             alt="Speed against micro-batch; speed against accumulation at a fixed batch; memory "
                 "against micro-batch.",
             caption="Measured. Hollow in the right panel: the same micro-batch with gradient "
                     "accumulation to the fixed batch.")
    e.figure("tiles", lambda plt: draw_tiles(plt, [768, 3072]),
             alt="A sawtooth: the share of a GPU's units at work against the micro-batch.",
             caption="Modelled, not measured: tiles / (⌈tiles / units⌉ · units).")
    e.csv("tiles", ["micro_batch", "width", "tiles", "modelled_efficiency"],
          [[b, width, tiles(b * 1024, width), tile_efficiency(b, width)]
           for width in (768, 3072) for b in range(1, 33)])
    report(e, series)
    if not lab.is_cuda(e.args.trainer):
        shards.measure(e)
    e.close()


if __name__ == "__main__":
    main()
