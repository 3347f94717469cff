#!/usr/bin/env python3
"""`make bench` beside others: training steps in PyTorch and llm.c, and in bf16; an update on two
ranks. What is not installed is not compared.

    scripts/bench.py                the character model in PyTorch, two ranks
    scripts/bench.py --full         GPT-2 124M and bf16 too: README's table; about an hour
    scripts/bench.py --only ranks   a part: steps, or ranks
    scripts/bench.py --gpu          build/bench_cuda, then the same updates in PyTorch on that GPU

Two programs run rounds in turn, so that both see the same state of the machine; the medians, and
the median of their ratios, count. PYTHONS lists the interpreters in which to look for PyTorch (each
version is timed once), LLMC names the folder where llm.c's train_gpt2 is built.
"""
import argparse
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from statistics import median

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.environ.get("BUILD", "build")
PYTHONS = os.environ.get("PYTHONS", f"{sys.executable} /usr/bin/python3").split()
os.environ.pop("OPENBLAS_CORETYPE", None)        # it would select another processor's kernels

TRAINER = f"{BUILD}/train_gpt2-mpi"

CHARACTERS = "--layers 4 --heads 4 --channels 128 --vocab 257 --batch 12 --seq-len 64"
GPT2_124M = "--layers 12 --heads 12 --channels 768 --vocab 50257 --batch 4 --seq-len"
# threads, steps a round, build/bench's name of a setting, gpt2.py's flags for the same
QUICK = [(threads, 10, "characters, B=12 T=64", CHARACTERS) for threads in (1, 2)]
FULL = QUICK + [(2, 1, f"124M, B=4 T={T}", f"{GPT2_124M} {T}") for T in (64, 1024)]

TINY = ["--layers", 1, "--heads", 2, "--channels", 64]


# ---------------------------------------------------------------- two programs in turn

class Lost(Exception):
    """A program that ended, with its last words."""


class Contestant:
    """Runs a round for each line on its standard input, then prints the milliseconds of a step.
    Between rounds it keeps what it has loaded and compiled."""

    def __init__(self, threads, *command):
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
            universal_newlines=True, env={**os.environ, "OMP_NUM_THREADS": str(threads)})

    def round(self):
        time.sleep(float(os.environ.get("BENCH_PAUSE", 0.2)))    # the other side's threads stop
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        return float(self.line())

    def line(self):
        line = self.process.stdout.readline()
        if not line:
            self.errors.seek(0)
            raise Lost((self.errors.read().splitlines() or ["it has ended"])[-1])
        return line

    def close(self):
        self.process.kill()
        self.process.communicate()
        self.errors.close()


class Llmc(Contestant):
    """llm.c runs on by itself: between rounds it is stopped. A step that was is not counted."""

    def __init__(self, threads, folder):
        super().__init__(threads, "sh", "-c", f"cd '{folder}' && exec stdbuf -oL ./train_gpt2")

    def round(self):
        self.process.send_signal(signal.SIGCONT)
        for counts in False, True:
            words = []
            while "(took" not in words:                      # step 7: train loss 3.3 (took 9 ms)
                words = self.line().split()
        self.process.send_signal(signal.SIGSTOP)
        return float(words[words.index("(took") + 1])


def in_turn(left, right, rounds):
    """Medians of both sides, and of right / left: how many times as fast the left side is."""
    left.round(), right.round()
    pairs = [(left.round(), right.round()) for _ in range(rounds)]
    return [median(values) for values in
            ([a for a, _ in pairs], [b for _, b in pairs], [b / a for a, b in pairs])]


# ---------------------------------------------------------------- a training step

def pytorches():
    """(interpreter, version of PyTorch), each version once."""
    found = {}
    for python in PYTHONS:
        done = subprocess.run([python, "-c", "import torch; print(torch.__version__)"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False,
                              universal_newlines=True) if shutil.which(python) else None
        if done and done.returncode == 0:
            found.setdefault(done.stdout.strip().split("+")[0], python)
    return [(python, version) for version, python in found.items()]


def rivals(threads, steps, name, flags, full):
    """(label, a function that starts it) of all programs that take the same step."""
    if full and os.environ.get("PRECISION", "fp32") == "fp32":
        other = f"{BUILD}/bf16"
        subprocess.run(["make", "-s", f"BUILD={other}", "PRECISION=bf16", f"{other}/bench"],
                       check=True)
        yield "batchwise, bf16", lambda: Contestant(threads, f"{other}/bench", "--rounds",
                                                    str(steps), name)
    for python, version in pytorches():
        modes = [("fp32", "")] + full * [("bf16", "--dtype bf16")]
        if not version.startswith("1."):
            modes += full * [("fp32, compiled", "--compile"),
                             ("bf16, compiled", "--dtype bf16 --compile")]
        for mode, more in modes:
            command = [python, "dev/reference/gpt2.py", "bench", "--threads", str(threads),
                       "--steps", str(steps), *flags.split(), *more.split()]
            yield f"PyTorch {version} {mode}", lambda: Contestant(threads, *command)
    if "LLMC" in os.environ and name == "124M, B=4 T=64":    # what its source sets
        yield "llm.c", lambda: Llmc(threads, os.environ["LLMC"])


def compare_steps(args):
    if not pytorches():
        print("\nPyTorch is not installed: not compared")
    table = {}                                   # {who: {setting: [ms, ratio to ours]}}
    for threads, steps, name, flags in FULL if args.full else QUICK:
        print(f"\n{name}, threads: {threads}, a training step", flush=True)
        left = Contestant(threads, f"{BUILD}/bench", "--rounds", str(steps), name)
        for label, start in rivals(threads, steps, name, flags, args.full):
            right = start()
            try:
                here, there, ratio = in_turn(left, right, 5 if args.full else 3)
            except Lost as why:
                print(f"  {label:28} not compared: {why}")
                continue
            finally:
                right.close()
            print(f"  {label:28} {there:9.1f} ms   here {here:9.1f} ms   {ratio:5.2f} times as "
                  "fast here", flush=True)
            setting = f"{name}, threads: {threads}"
            table.setdefault("batchwise", {})[setting] = [here]
            table.setdefault(label, {})[setting] = [there, ratio]
        left.close()
    if args.full:
        print("\n| GPT-2 124M, a training step | T=64 | T=1024 |\n|---|---|---|")
        for who, own in table.items():
            found = [own.get(f"{row[2]}, threads: 2") for row in FULL[2:]]
            cells = ["" if not c else f"{1e-3 * c[0]:.2f} s" if who == "batchwise"
                     else f"{1e-3 * c[0]:.2f} s, {c[1]:.1f} times" for c in found]
            print(f"| {who} | {' | '.join(cells)} |")


# ---------------------------------------------------------------- two ranks

def write_shards(folder):
    """Random tokens: only time is measured."""
    for split, n in ("train", 65536), ("val", 16384):
        with open(f"{folder}/x_{split}.bin", "wb") as f:
            f.write(struct.pack("<256i", 20240520, 1, n, 50257, 50256, *[0] * 251))
            f.write(struct.pack(f"<{n}H", *(random.randrange(50257) for _ in range(n))))


def update_ms(work, ranks, *flags):
    """(an update, what of it waits for the other rank): medians, in milliseconds."""
    launch = ["mpirun", "-n", ranks, "--bind-to", "core"] if ranks > 1 else []
    command = [*launch, TRAINER, "--data", work, *flags, "--eval-every", 0, "--eval-tokens", 64,
               "--log", f"{work}/log", "--overwrite"]
    done = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, check=False,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"bench.py: {TRAINER}: {(done.stderr.splitlines() or ['failed'])[-1]}")
    with open(f"{work}/log", encoding="utf-8") as f:
        steps = [event for event in map(json.loads, f) if event["event"] == "step"]
    return [1e3 * median(e[key] for e in steps[1:]) for key in ("seconds", "seconds_comm")]


def compare_ranks(args):
    """GPT-2 124M, B=4: two ranks of one thread beside one of two, with overlap and without. At T=64
    the messages are as long as at T=1024, but a step is short."""
    for program in "mpirun", TRAINER:
        if not shutil.which(program):
            print(f"\ntwo ranks: not measured, there is no {program}")
            return
    if os.getuid() == 0:
        os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    for T, steps, rounds in [(16, 3, 1)] if args.tiny else [(64, 8, 3), (1024, 3, 1)]:
        model = [*(TINY if args.tiny else ["--init", "d12"]), "--seq-len", T, "--batch-tokens", 4*T]
        kinds = [(1, "--threads", 2, "--micro-batch", 4), (2, "--threads", 1, "--micro-batch", 2),
                 (2, "--threads", 1, "--micro-batch", 2, "--no-overlap")]
        with tempfile.TemporaryDirectory(prefix="batchwise.") as work:
            write_shards(work)
            times = [[update_ms(work, ranks, *model, *flags, "--steps", steps)
                      for ranks, *flags in kinds]
                     for _ in range(rounds)]
        (one, _), (two, waited), (turn, exposed) = [map(median, zip(*kind)) for kind in zip(*times)]
        print(f"\n124M, B=4 T={T}, an update: 1 rank x 2 threads {one:.1f} ms, 2 ranks x 1 thread "
              f"{two:.1f} ms\n  waited for the other rank: {waited:.1f} ms, "
              f"{100 * waited / two:.1f}%; without overlap {exposed:.1f} of {turn:.1f} ms, "
              f"{100 * exposed / turn:.1f}%")


# ---------------------------------------------------------------- the GPU

def gpu_python():
    """A python3 whose PyTorch 2 sees a GPU, or None."""
    sees = "import torch; assert torch.cuda.is_available() and torch.compile"
    return next((python for python in filter(shutil.which, PYTHONS) if not subprocess.run(
        [python, "-c", sees], stderr=subprocess.DEVNULL, check=False).returncode), None)


def compare_gpu():
    """The same updates on the same GPU: torch.compile for each shape, bf16, fused AdamW, and the
    vocabulary padded to a multiple of 64, which makes the classifier faster."""
    ours, python = {}, gpu_python()
    with subprocess.Popen([f"{BUILD}/bench_cuda"], stdout=subprocess.PIPE,
                          universal_newlines=True) as program:
        for line in program.stdout:
            print(line, end="", flush=True)
            speed = re.match(r" +(\d+) +none +[\d.]+ +(\d+) ", line)
            if speed:
                ours[int(speed[1])] = float(speed[2])
    if program.returncode:
        sys.exit(program.returncode)
    if not python:
        print("\nno PyTorch 2 here sees a GPU: not compared")
        return
    flags = f"{GPT2_124M.replace('50257', '50304').replace('--batch 4', '')} 1024".split()
    print("\nPyTorch, torch.compile, bf16\n"
          f"{'micro-batch':>11} {'ms a step':>10} {'tokens/s':>10} {'ratio':>6}")
    for B, speed in ours.items():
        there = Contestant(os.cpu_count(), python, "dev/reference/gpt2.py", "bench", "--device",
                           "cuda", "--dtype", "bf16", "--compile", "--batch", str(B), "--steps",
                           "5", *flags)
        try:
            ms = median([there.round() for _ in range(4)][1:])           # the first compiles
            print(f"{B:11} {ms:10.3f} {1024e3 * B / ms:10.0f} {speed * ms / (1024e3 * B):6.2f}",
                  flush=True)
        except Lost as why:
            print(f"{B:11}   not compared: {why}")
        finally:
            there.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = {"ranks": compare_ranks, "steps": compare_steps}
    parser.add_argument("--full", action="store_true", help="GPT-2 124M, and bf16")
    parser.add_argument("--only", choices=parts, help="one part")
    parser.add_argument("--tiny", action="store_true", help="ranks: to test this script")
    parser.add_argument("--gpu", action="store_true", help="PyTorch on a GPU")
    args = parser.parse_args()
    os.chdir(ROOT)
    if args.gpu:
        compare_gpu()
        return
    for name in [args.only] if args.only else ["ranks", "steps"]:
        parts[name](args)


if __name__ == "__main__":
    main()
