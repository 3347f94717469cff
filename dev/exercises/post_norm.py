#!/usr/bin/env python3
"""The largest learning rate at which a model still learns, pre-norm and post-norm, by depth, with
and without a warm-up: the measurement of post_norm.md.

    dev/exercises/post_norm.py                               about 20 minutes of one core
    dev/exercises/post_norm.py --trainer exercise/post_norm/train_gpt2.c       with your post-norm
    dev/exercises/post_norm.py --draw dev/exercises/post_norm.csv              no run: table, figure

A run learns at a rate if the mean loss of its last 40 of 800 updates lies below 3.06, 0.1 nats
below the loss of guessing each byte by its frequency, and no update had a gradient that was not
finite. For each seed the search begins at 2^-8. It doubles the rate until the model does not learn,
or halves it until the model does; then it tries the rate between, a factor of sqrt(2).

Each search is a line of post_norm.csv in --out, its runs as LOG2_RATE:LOSS. An interrupted
measurement goes on behind the last search. The figure is drawn beside it, as post_norm.svg.
"""
import argparse
import collections
import csv
import json
import math
import os
import subprocess
import sys

sys.dont_write_bytecode = True
import exercises

DEPTHS, NORMS, WARMUPS = [2, 4, 8, 16], ["pre", "post"], [0, 200]
UPDATES, LAST, BATCH, SEQ, WIDTH, LEARNED = 800, 40, 8, 32, 32, 3.06
START, LOWEST, HIGHEST = -8.0, -16.0, 0.0              # powers of two

Cell = collections.namedtuple("Cell", "norm layers warmup seed")


def read_runs(path):
    """{cell: {power of two: loss}}"""
    with open(path, newline="") as file:
        return {Cell(row["norm"], *(int(row[key]) for key in Cell._fields[1:])):
                {float(power): float(loss) for power, loss in
                 (run.split(":") for run in row["runs"].split())} for row in csv.DictReader(file)}


class Runs:
    """Trains, and keeps in a file what came out."""

    def __init__(self, out, trainer):
        out = os.path.abspath(out)
        self.out, self.trainer, self.path = out, trainer, os.path.join(out, "post_norm.csv")
        os.makedirs(out, exist_ok=True)
        if not os.path.exists(self.path):
            exercises.write(self.path, "norm,layers,warmup,seed,runs\n")
        self.known = read_runs(self.path)
        self.prepare()

    def prepare(self):
        tales = os.path.join(self.out, "tales")
        subprocess.run(["make", "-s", "prepare"], cwd=exercises.ROOT, check=True)
        if not os.path.exists(tales):
            subprocess.run([exercises.path_of("prepare"), "tales", "--out", tales, "--tokens",
                            "300000"], check=True, stdout=subprocess.DEVNULL)
        source = exercises.read(exercises.path_of(exercises.TRAINER))
        post = (exercises.read(self.trainer) if self.trainer else
                exercises.solve(source, "post_norm"))
        for norm, text in zip(NORMS, (source, post)):
            path = os.path.join(self.out, norm + ".c")
            if self.known and exercises.read(path) != text:
                sys.exit(f"post_norm.py: {self.path} has runs of another trainer; give another "
                         "--out, or remove it")
            exercises.write(path, text)
            fault = exercises.compiler_says(
                "CC", "cc", "-std=gnu11", "-O3", "-march=native", "-fno-math-errno",
                "-fno-trapping-math", "-Wno-unknown-pragmas", "-fopenmp-simd", "-iquote",
                exercises.ROOT, path, "-o", path[:-2], "-lm")
            if fault:
                sys.exit(f"post_norm.py: {path}: {fault}")

    def search(self, cell):
        """The exponent of two of the largest rate at which a model learns."""
        losses = self.known.get(cell, {})

        def learns(power):
            if power not in losses:
                losses[power] = self.loss(cell, power)
            return losses[power] < LEARNED
        found = largest_rate(learns)
        if cell not in self.known:
            self.known[cell] = losses
            runs = " ".join(f"{power:g}:{loss:.4f}" for power, loss in losses.items())
            with open(self.path, "a") as file:
                file.write(",".join(map(str, cell)) + f",{runs}\n")
        return found

    def loss(self, cell, power):
        """The mean loss of the last updates; infinite if an update was skipped."""
        log = os.path.join(self.out, "log.jsonl")
        subprocess.run([
            os.path.join(self.out, cell.norm), "--data", os.path.join(self.out, "tales"),
            "--layers", str(cell.layers), "--heads", "2", "--channels", str(WIDTH),
            "--seq-len", str(SEQ), "--micro-batch", str(BATCH), "--steps", str(UPDATES),
            "--lr", repr(2.0 ** power), "--lr-schedule", "constant",
            "--warmup-tokens", str(cell.warmup * BATCH * SEQ), "--seed", str(cell.seed),
            "--eval-every", "0", "--eval-tokens", "256", "--threads", "1", "--log", log,
            "--overwrite"], check=True, stdout=subprocess.DEVNULL)
        with open(log) as file:
            events = [json.loads(line) for line in file]
        losses = [e["loss"] for e in events if e["event"] == "step"][-LAST:]
        whole = all(e["event"] != "skip" for e in events) and None not in losses
        return sum(losses) / LAST if whole else math.inf


def largest_rate(learns):
    """The exponent of two of the largest rate at which the model learns; learns(exponent)."""
    power = START
    if learns(power):
        while power < HIGHEST and learns(power + 1):
            power += 1
    else:
        while power > LOWEST and not learns(power):
            power -= 1
        if not learns(power):
            sys.exit(f"post_norm.py: a model does not learn even at 2^{power:g}: is it right?")
    return power + 0.5 if learns(power + 0.5) else power


# ---------------------------------------------------------------- table and figure

def largest_rates(known):
    """{(norm, warmup): {layers: [an exponent for each seed]}}"""
    rates = {(norm, warmup): collections.defaultdict(list) for norm in NORMS for warmup in WARMUPS}
    for cell, losses in sorted(known.items()):
        rates[cell.norm, cell.warmup][cell.layers].append(
            largest_rate(lambda power, losses=losses: losses[power] < LEARNED))
    return rates


def mean(values):
    return sum(values) / len(values)


def doubling(by_layers):
    """The factor of the rate when the depth doubles: its estimate and the 95% interval, by
    Student's t, from a slope for each seed."""
    x = [math.log2(layers) for layers in DEPTHS]
    slopes = [sum((a - mean(x)) * by_layers[layers][seed] for a, layers in zip(x, DEPTHS))
              / sum((a - mean(x)) ** 2 for a in x) for seed in range(len(by_layers[2]))]
    n = len(slopes)
    if n < 2:
        return f"{2 ** slopes[0]:.2f}"
    t = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}.get(n, 2.0)
    half = t * math.sqrt(sum((s - mean(slopes)) ** 2 for s in slopes) / (n - 1) / n)
    return (f"{2 ** mean(slopes):.2f} ({2 ** (mean(slopes) - half):.2f} to "
            f"{2 ** (mean(slopes) + half):.2f})")


def called(norm, warmup):
    return f"{norm}-norm, {f'warm-up of {warmup} updates' if warmup else 'no warm-up'}"


def table(known):
    lines = ["| largest rate | " + " | ".join(f"{n} layers" for n in DEPTHS)
             + " | times, when depth doubles |", "|---|" + "---|" * (len(DEPTHS) + 1)]
    for key, by_layers in largest_rates(known).items():
        cells = [f"{2 ** mean(p):.2g} ({2 ** min(p):.2g} to {2 ** max(p):.2g})"
                 for p in (by_layers[layers] for layers in DEPTHS)]
        lines.append("| " + " | ".join([called(*key), *cells, doubling(by_layers)]) + " |")
    return "\n".join(lines) + "\n"


LEFT, RIGHT, TOP, BOTTOM, WIDE, HIGH = 70, 250, 14, 44, 720, 360
STYLES = {("pre", 0): ("#0072b2", "none"), ("pre", 200): ("#0072b2", "6 4"),
          ("post", 0): ("#d55e00", "none"), ("post", 200): ("#d55e00", "6 4")}


def place(layers, power):
    """Pixels: both axes logarithmic, rates from 2^-11 to 2^-3."""
    return (round(LEFT + 20 + (WIDE - LEFT - RIGHT - 40) * (math.log2(layers) - 1) / 3, 1),
            round(TOP + (HIGH - TOP - BOTTOM) * (-3 - power) / 8, 1))


def figure(known):
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" '
             'font-family="sans-serif" font-size="13">',
             f'<rect width="{WIDE}" height="{HIGH}" fill="#ffffff"/>',
             f'<path d="M{LEFT} {TOP}V{HIGH - BOTTOM}H{WIDE - RIGHT}" fill="none" '
             'stroke="#000000"/>']
    for power in range(-11, -2):
        y = place(2, power)[1]
        lines.append(f'<path d="M{LEFT} {y}H{WIDE - RIGHT}" stroke="#dddddd"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">'
                     f'{2.0 ** power:.2g}</text>')
    for layers in DEPTHS:
        lines.append(f'<text x="{place(layers, 0)[0]}" y="{HIGH - BOTTOM + 18}" '
                     f'text-anchor="middle">{layers}</text>')
    lines.append(f'<text x="{WIDE - RIGHT}" y="{HIGH - 6}" text-anchor="end">layers</text>')
    lines.append('<text x="4" y="12">rate</text>')
    label = 0
    rates = sorted(largest_rates(known).items(), key=lambda row: -mean(row[1][DEPTHS[-1]]))
    for shift, (key, by_layers) in enumerate(rates):
        colour, dashes = STYLES[key]
        points = []
        for layers in DEPTHS:
            x, y = place(layers, mean(by_layers[layers]))
            x = round(x + 4 * shift - 6, 1)
            points.append(f"{x},{y}")
            low, high = (place(2, f(by_layers[layers]))[1] for f in (min, max))
            lines.append(f'<path d="M{x} {low}V{high}" stroke="{colour}" stroke-width="2"/>')
            lines.append(f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}"/>')
        lines.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" '
                     f'stroke-width="1.5" stroke-dasharray="{dashes}"/>')
        label = max(y + 4, label + 18)                   # labels do not overlap
        lines.append(f'<text x="{WIDE - RIGHT + 10}" y="{label}" fill="{colour}">{called(*key)}'
                     '</text>')
    return "\n".join(lines) + "\n</svg>\n"


def draw(path):
    known = read_runs(path)
    print(table(known), end="")
    exercises.write(os.path.splitext(path)[0] + ".svg", figure(known))


def measure(args):
    runs = Runs(args.out, args.trainer)
    for seed in range(1, args.seeds + 1):
        for layers in DEPTHS:
            for norm in NORMS:
                for warmup in WARMUPS:
                    cell = Cell(norm, layers, warmup, seed)
                    print(f"seed {seed}, {layers} layers, {called(norm, warmup)}: "
                          f"2^{runs.search(cell):g}", flush=True)
    return runs.path


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.path.join("lab", "post_norm"))
    parser.add_argument("--trainer", help="a trainer with post-norm (default: the solution)")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--draw", metavar="CSV", help="table and figure of a finished measurement")
    args = parser.parse_args()
    draw(args.draw or measure(args))


if __name__ == "__main__":
    main()
