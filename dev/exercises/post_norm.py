#!/usr/bin/env python3
"""The largest learning rate at which a model still learns, pre-norm and post-norm, by depth, with
and without a warm-up: the measurement of post_norm.md.

    dev/exercises/post_norm.py                               about 20 minutes of one core
    dev/exercises/post_norm.py --trainer exercise/post_norm/train_gpt2.c       with your post-norm
    dev/exercises/post_norm.py --draw                        table and figure of the runs there are

Runs are kept in --out, so an interrupted measurement goes on where it stopped.

A run learns at a rate if the mean loss of its last 40 of 800 updates lies at least 0.1 nats below
the loss of guessing each byte by its frequency, and no update had a gradient that was not finite.
For each seed the search begins at 2^-8. It doubles the rate until the model does not learn, or
halves it until the model does; then it tries the rate between, a factor of sqrt(2).
"""
import argparse
import array
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
UPDATES, LAST, BATCH, SEQ, WIDTH, MARGIN = 800, 40, 8, 32, 32, 0.1
START, LOWEST, HIGHEST = -8.0, -16.0, 0.0              # powers of two

Cell = collections.namedtuple("Cell", "norm layers warmup seed")


class Runs:
    """Trains, and remembers each run's loss in a file."""

    def __init__(self, out, trainer):
        self.out, self.trainer, self.path = out, trainer, os.path.join(out, "runs.csv")
        self.losses = {}
        os.makedirs(out, exist_ok=True)
        if os.path.exists(self.path):
            with open(self.path, newline="") as file:
                for norm, layers, warmup, seed, power, loss in list(csv.reader(file))[1:]:
                    cell = Cell(norm, int(layers), int(warmup), int(seed))
                    self.losses[cell, float(power)] = float(loss)
        else:
            with open(self.path, "w") as file:
                file.write("norm,layers,warmup,seed,log2_rate,loss\n")

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
            exercises.write(path, text)
            fault = exercises.compiler_says(
                "CC", "cc", "-std=gnu11", "-O3", "-march=native", "-fno-math-errno",
                "-fno-trapping-math", "-Wno-unknown-pragmas", "-fopenmp-simd", "-iquote",
                exercises.ROOT, path, "-o", path[:-2], "-lm")
            if fault:
                sys.exit(f"post_norm.py: {path}: {fault}")

    def loss(self, cell, power):
        """The mean loss of the last updates; infinite if an update was skipped."""
        if (cell, power) not in self.losses:
            log = os.path.join(self.out, f"{cell.norm}.jsonl")
            subprocess.run([
                os.path.join(self.out, cell.norm), "--data", os.path.join(self.out, "tales"),
                "--layers", str(cell.layers), "--heads", "2", "--channels", str(WIDTH),
                "--seq-len", str(SEQ), "--micro-batch", str(BATCH), "--steps", str(UPDATES),
                "--lr", repr(2.0 ** power), "--lr-schedule", "constant",
                "--warmup-tokens", str(cell.warmup * BATCH * SEQ), "--seed", str(cell.seed),
                "--eval-every", "0", "--eval-tokens", "256", "--threads", "1",
                "--log", log, "--overwrite"], check=True, stdout=subprocess.DEVNULL)
            with open(log) as file:
                events = [json.loads(line) for line in file]
            losses = [e["loss"] for e in events if e["event"] == "step"][-LAST:]
            whole = all(e["event"] != "skip" for e in events) and None not in losses
            loss = sum(losses) / LAST if whole else math.inf
            self.losses[cell, power] = loss
            with open(self.path, "a") as file:
                file.write(",".join(map(str, cell)) + f",{power:g},{loss:.4f}\n")
        return self.losses[cell, power]


def frequency_loss(out):
    """The entropy of single tokens in the training data, in nats."""
    name = next(n for n in sorted(os.listdir(os.path.join(out, "tales"))) if "train" in n)
    with open(os.path.join(out, "tales", name), "rb") as file:
        tokens = array.array("H", file.read()[1024:])
    return sum(-n / len(tokens) * math.log(n / len(tokens))
               for n in collections.Counter(tokens).values())


def largest_rate(runs, cell, bound):
    """The exponent of two of the largest rate at which the model learns."""
    def learns(power):
        return runs.loss(cell, power) < bound
    power = START
    if learns(power):
        while power < HIGHEST and learns(power + 1):
            power += 1
    else:
        while power > LOWEST and not learns(power):
            power -= 1
    return power + 0.5 if learns(power + 0.5) else power


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.path.join("lab", "post_norm"))
    parser.add_argument("--trainer", help="a trainer with post-norm (default: the solution)")
    parser.add_argument("--seeds", type=int, default=4)
    args = parser.parse_args()
    runs = Runs(args.out, args.trainer)
    runs.prepare()
    bound = frequency_loss(args.out) - MARGIN
    print(f"a model learns if its loss is below {bound:.3f}", flush=True)
    for seed in range(1, args.seeds + 1):
        for layers in DEPTHS:
            for norm in NORMS:
                for warmup in WARMUPS:
                    cell = Cell(norm, layers, warmup, seed)
                    print(*cell, f"2^{largest_rate(runs, cell, bound):g}", flush=True)


if __name__ == "__main__":
    main()
