#!/usr/bin/env python3
"""Times entries of the laptop speedrun beside the baseline, on three fresh seeds. The rules stand
in dev/speedrun/README.md.

    dev/speedrun/verify.py NAME...               `make speedrun ENTRY=NAME`
    dev/speedrun/verify.py NAME --seeds 7,8,9    repeats a verification
    dev/speedrun/verify.py NAME... --quick       a look: a million tokens, seed 1, no baseline
"""
import argparse
import glob
import json
import math
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import namedtuple

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))

TARGET = 1.07                          # nats per token on the whole validation split
POSITIONS = 256                        # tokens of context, when the loss is taken
TRAINING_TOKENS = 20000000
EVALUATED = 0                          # tokens; 0: the whole split
QUICK_TOKENS = 1000000

# What the verifier sets, what carries weights, and what stops a run by its validation loss.
NOT_OF_ENTRIES = "--data --out --seed --threads --init --resume --target-loss".split()


def fail(message):
    sys.exit(f"{os.path.basename(sys.argv[0])}: {message}")


# ---------------------------------------------------------------- what an entry may be

class Entry:
    """NAME.entry: a call of ./train_gpt2 and, if it changes the source, a patch below it. A first
    line `# on OTHER` applies that entry's patch before."""

    def __init__(self, name):
        self.name, self.path = name, os.path.join(HERE, name + ".entry")
        try:
            with open(self.path, encoding="utf-8") as f:
                command, _, self.patch = f.read().partition("\n--- ")
            other = re.match(r"# on (\S+)\n", command)
            self.on = Entry(other[1]) if other else None
        except OSError:
            fail(f"{name}: there is no such entry in dev/speedrun; there are: {' '.join(names())}")
        # The flags of ./train_gpt2. No shell reads them.
        self.words = shlex.split(command.replace("\\\n", " "), comments=True)[1:]
        for word in self.words:
            if word.partition("=")[0] in NOT_OF_ENTRIES:
                fail(f"{name}: {word} is not for an entry to say")
        for path in re.findall(r"^(?:--- |\+\+\+ |\A)[ab]/(\S+)", self.patch, re.M):
            if (not re.match(r"train_gpt2\.c$|dev/(base|cpu|model|ranks|train)/", path)
                    or path == "dev/train/evaluate.c"):
                fail(f"{name}: its patch may not change {path}")


def names():
    found = [os.path.basename(path)[:-6] for path in glob.glob(os.path.join(HERE, "*.entry"))]
    return sorted(name for name in found if name != "baseline")


# ---------------------------------------------------------------- building

def quiet(command, what, **more):
    """Runs a command; if it fails, so does this, with its last line."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False, **more)
    if done.returncode != 0:
        fail(f"{what}: {(done.stdout.strip().splitlines() or ['no output'])[-1]}")


def copy_source(tree):
    os.makedirs(tree)
    for name in ["Makefile", "train_gpt2.c", "dataloader.h"]:
        shutil.copy(os.path.join(ROOT, name), tree)
    shutil.copytree(os.path.join(ROOT, "dev"), os.path.join(tree, "dev"),
                    ignore=shutil.ignore_patterns("__pycache__"))


def make(tree, *targets):
    own = {key: value for key, value in os.environ.items()
           if key not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    quiet(["make", "-s", *targets], f"make {' '.join(targets)}", cwd=tree, env=own)


def patch(entry, plain, scratch):
    """The tree of an entry: a patched copy of the baseline's, or without a patch that itself."""
    if entry.on:
        plain = patch(entry.on, plain, os.path.join(scratch, entry.name))
    if not entry.patch:
        return plain
    tree = os.path.join(scratch, "source", entry.name)
    shutil.copytree(plain, tree)
    quiet(["git", "apply", entry.path], f"{entry.name}.entry", cwd=tree,
          env={**os.environ, "GIT_CEILING_DIRECTORIES": os.path.dirname(tree)})
    return tree


# ---------------------------------------------------------------- running

class Result(namedtuple("Result", "wall cpu loss")):
    def __str__(self):
        return f"{self.wall:.1f} s ({self.cpu:.1f} of CPU), loss {self.loss:.4f}"


def seconds_of(command, said):
    """Wall and CPU seconds of a process, from its start to its end. Threads that wait sleep: a
    spinning one would count as work, and on a busy machine it keeps the core from others."""
    began = time.monotonic()
    with open(said, "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT,
                                   env={**os.environ, "OMP_WAIT_POLICY": "passive"})
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = status
    if status != 0:
        with open(said, encoding="utf-8", errors="replace") as f:
            fail(f"{os.path.basename(os.path.dirname(command[0]))}: ends badly: "
                 f"{(f.read().strip().splitlines() or ['no output'])[-1]}")
    return time.monotonic() - began, used.ru_utime + used.ru_stime


def loss_of(out, plain, tales):
    """The loss of the weights in `out` on the whole validation split, by the unpatched program."""
    log = out + ".jsonl"
    what = f"the weights in {os.path.basename(out)}"
    quiet([os.path.join(plain, "train_gpt2"), "--init", out, "--data", tales, "--seq-len",
           str(POSITIONS), "--steps", "0", "--eval-tokens", str(EVALUATED), "--log", log], what)
    with open(log, encoding="utf-8") as f:
        return next(e["val_loss"] for e in map(json.loads, f) if e["event"] == "eval")


def measure(tree, plain, words, seed, tales, out):
    wall, cpu = seconds_of([os.path.join(tree, "train_gpt2"), *words, "--data", tales, "--out",
                            out, "--seed", str(seed), "--threads", "2"], out + ".said")
    return Result(wall, cpu, loss_of(out, plain, tales))


def race(entries, seeds, scratch):
    """{name: results, one a seed} of the entries, in turns; every other time they run in the
    opposite order."""
    plain = os.path.join(scratch, "baseline")
    copy_source(plain)
    make(plain, "train_gpt2", "prepare")
    lanes = [(entry.name, patch(entry, plain, scratch), entry.words) for entry in entries]
    for tree in dict.fromkeys(tree for _, tree, _ in lanes):
        make(tree, "train_gpt2")
    tales, results = os.path.join(scratch, "tales"), {name: [] for name, _, _ in lanes}
    quiet([os.path.join(plain, "prepare"), "tales", "--out", tales, "--tokens",
           str(TRAINING_TOKENS)], "prepare")
    for i, seed in enumerate(seeds):
        for name, tree, words in lanes[::-1] if i % 2 else lanes:
            out = os.path.join(scratch, f"{name}_{seed}")
            results[name].append(measure(tree, plain, words, seed, tales, out))
            print(f"seed {seed}  {name:12} {results[name][-1]}", flush=True)
    return results


# ---------------------------------------------------------------- verdict

def ratio(baseline, entry, seconds):
    """By seed: the baseline's seconds over the entry's; and the geometric mean."""
    each = [getattr(one, seconds) / getattr(other, seconds)
            for one, other in zip(baseline, entry)]
    return each, math.exp(sum(map(math.log, each)) / len(each))


def verdict(name, baseline, entry):
    worst = max(result.loss for result in entry)
    if not worst <= TARGET:
        fail(f"{name} missed the target: loss {worst:.4f}, at most {TARGET} was wanted")
    wall, wall_mean = ratio(baseline, entry, "wall")
    cpu, cpu_mean = ratio(baseline, entry, "cpu")
    each = ", ".join(f"{one:.2f} ({other:.2f})" for one, other in zip(wall, cpu))
    print(f"{name}: the baseline takes {wall_mean:.2f} times as long, and {cpu_mean:.2f} times the "
          f"CPU seconds; by seed {each}")


def two_cores():
    """On a machine of more cores, two of them."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    if os.getloadavg()[0] > 0.5:
        print(f"note: the machine is busy (load {os.getloadavg()[0]:.1f}); CPU seconds suffer less "
              "from that than the clock does")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split(". ")[0].replace("\n", " ") + ".")
    parser.add_argument("names", nargs="*", metavar="NAME", help=" ".join(names()))
    parser.add_argument("--seeds", metavar="A,B,C", help="default: three that nobody has chosen")
    parser.add_argument("--quick", action="store_true",
                        help="a million tokens of each, on seed 1; no baseline and no verdict")
    args = parser.parse_args()
    if args.seeds is None:
        fresh = [random.SystemRandom().randrange(10**6) for _ in range(3)]
        args.seeds = "1" if args.quick else ",".join(map(str, fresh))
    if not all(seed.isdigit() for seed in args.seeds.split(",")):
        fail(f"--seeds {args.seeds}: expected numbers with commas between, as 7,8,9")
    if not args.names:
        fail(f"name an entry: make speedrun ENTRY=NAME, one of: {' '.join(names())}")
    if "baseline" in args.names:
        fail("baseline: runs beside every entry; name an entry alone")
    entries = [Entry(name) for name in args.names]
    for entry in entries if args.quick else []:
        entry.words += ["--tokens", str(QUICK_TOKENS)]
    two_cores()
    scratch = tempfile.mkdtemp(prefix="speedrun.")
    try:
        baseline = [] if args.quick else [Entry("baseline")]
        results = race(baseline + entries, [int(seed) for seed in args.seeds.split(",")], scratch)
        for entry in [] if args.quick else entries:
            verdict(entry.name, results["baseline"], results[entry.name])
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
