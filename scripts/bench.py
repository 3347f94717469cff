#!/usr/bin/env python3
"""`make bench` beside others: training steps in PyTorch and llm.c, and in bf16; an update on two
ranks; the tokenizer beside tiktoken. What is not installed is not compared.

    scripts/bench.py             the character model in PyTorch, two ranks, the tokenizer
    scripts/bench.py --full      GPT-2 124M and bf16 too: README's table; about an hour
    scripts/bench.py --only ranks                    a part: steps, ranks or tokenizer
    scripts/bench.py --gpu       the GPU's PyTorch beside bench_cuda.json, which bench_cuda wrote

Two programs run rounds in turn, so that both see the same state of the machine; the medians, and
the median of their ratios, count. PYTHONS lists the interpreters in which to look for PyTorch (each
version is timed once), LLMC names the folder where llm.c's train_gpt2 is built. Results are added
to bench.json.
"""
import argparse
import json
import os
import random
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.environ.get("BUILD", "build")
PYTHONS = os.environ.get("PYTHONS", f"{sys.executable} /usr/bin/python3").split()
os.environ.pop("OPENBLAS_CORETYPE", None)        # it would select another processor's kernels

CHARACTERS = "--layers 4 --heads 4 --channels 128 --vocab 257 --batch 12 --seq-len 64"
GPT2_124M = "--layers 12 --heads 12 --channels 768 --vocab 50257 --batch 4 --seq-len"
# threads, steps a round, build/bench's name of a setting, gpt2.py's flags for the same
QUICK = [(threads, 10, "characters, B=12 T=64", CHARACTERS) for threads in (1, 2)]
FULL = QUICK + [(2, 1, f"124M, B=4 T={T}", f"{GPT2_124M} {T}") for T in (64, 1024)]


def keep(result):
    """Adds a result to bench.json, an object a line, in place of an older one of its name."""
    try:
        with open("bench.json", encoding="utf-8") as f:
            results = [r for r in json.load(f) if r["name"] != result["name"]]
    except OSError:
        results = []
    with open("bench.json", "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(map(json.dumps, results + [result])) + "\n]\n")


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
    return [statistics.median(values) for values in
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


def compare_steps(full):
    if not pytorches():
        print("\nPyTorch is not installed: not compared")
    for threads, steps, name, flags in FULL if full else QUICK:
        print(f"\n{name}, threads: {threads}, a training step", flush=True)
        left = Contestant(threads, f"{BUILD}/bench", "--rounds", str(steps), name)
        for label, start in rivals(threads, steps, name, flags, full):
            right = start()
            try:
                here, there, ratio = in_turn(left, right, 5 if full else 3)
            except Lost as why:
                print(f"  {label:28} not compared: {why}")
                continue
            finally:
                right.close()
            print(f"  {label:28} {there:9.1f} ms   here {here:9.1f} ms   {ratio:5.2f} times as "
                  "fast here", flush=True)
            keep({"name": f"{name}, threads {threads}, beside {label}", "threads": threads,
                  "precision": os.environ.get("PRECISION", "fp32"), "step_ms": here,
                  "other_step_ms": there, "ratio": ratio})
        left.close()
    if full:
        print_table()


def print_table():
    """README's table of GPT-2 124M, from bench.json."""
    with open("bench.json", encoding="utf-8") as f:
        results = {result["name"]: result for result in json.load(f)}
    columns = ["124M, B=4 T=64", "124M, B=4 T=1024"]
    beside = {name.split(" beside ")[1] for name in results if " beside " in name}
    print("\n| GPT-2 124M, a training step | T=64 | T=1024 |\n|---|---|---|")
    for label in ["batchwise"] + sorted(beside) + ["floor"]:
        cells = []
        for column in columns:
            own = results.get(column, {})
            other = results.get(f"{column}, threads 2, beside {label}")
            ms = {"batchwise": own.get("step_ms"), "floor": own.get("floor_ms")}.get(label)
            cells.append(f"{1e-3 * other['other_step_ms']:.2f} s, {other['ratio']:.1f} times"
                         if other else f"{1e-3 * ms:.2f} s" if ms else "")
        print(f"| {label} | {cells[0]} | {cells[1]} |")


# ---------------------------------------------------------------- two ranks

def write_shard(path, tokens):
    """Random tokens: only time is measured."""
    with open(path, "wb") as f:
        f.write(struct.pack("<256i", 20240520, 1, tokens, 50257, 50256, *[0] * 251))
        f.write(struct.pack(f"<{tokens}H", *(random.randrange(50257) for _ in range(tokens))))


def update_ms(work, T, steps, ranks, *flags):
    """(an update, what of it waits for the other rank): medians, in milliseconds."""
    log, launch = f"{work}/log", ["mpirun", "-n", str(ranks)] if ranks > 1 else []
    done = subprocess.run(
        [*launch, f"{BUILD}/train_gpt2-mpi", "--data", work, "--init", "d12", "--seq-len", str(T),
         "--batch-tokens", str(4 * T), "--micro-batch", str(4 // ranks), "--threads",
         str(2 // ranks), "--steps", str(steps), "--eval-every", "0", "--eval-tokens", "64",
         "--log", log, "--overwrite", *flags], stdin=subprocess.DEVNULL, check=False,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, universal_newlines=True)
    if done.returncode != 0:
        sys.exit(f"bench.py: {ranks} ranks: {(done.stderr.splitlines() or ['failed'])[-1]}")
    with open(log, encoding="utf-8") as f:
        events = [e for e in map(json.loads, f) if e["event"] == "step"][1:]   # after a warm-up
    return [1e3 * statistics.median(e[key] for e in events) for key in ("seconds", "seconds_comm")]


def compare_ranks(_):
    """GPT-2 124M, B=4: two ranks of one thread beside one of two, with overlap and without. At T=64
    the messages are as long as at T=1024, but a step is short."""
    if not shutil.which("mpirun") or not os.path.exists(f"{BUILD}/train_gpt2-mpi"):
        print("\nseveral ranks: not measured, MPI is not installed")
        return
    if os.getuid() == 0:
        os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    for T, steps, rounds in (64, 8, 3), (1024, 3, 1):
        with tempfile.TemporaryDirectory(prefix="batchwise.") as work:
            write_shard(f"{work}/x_train.bin", 65536)
            write_shard(f"{work}/x_val.bin", 16384)
            kinds = [(1,), (2,), (2, "--no-overlap")]
            times = [[update_ms(work, T, steps, *kind) for kind in kinds] for _ in range(rounds)]
        (one, _), (two, waited), (turn, exposed) = [
            [statistics.median(values) for values in zip(*kind)] for kind in zip(*times)]
        print(f"\n124M, B=4 T={T}, an update: 1 rank x 2 threads {one:.1f} ms, 2 ranks x 1 thread "
              f"{two:.1f} ms\n  waited for the other rank: {waited:.1f} ms, "
              f"{100 * waited / two:.1f}%; without overlap {exposed:.1f} of {turn:.1f} ms, "
              f"{100 * exposed / turn:.1f}%")
        keep({"name": f"124M, B=4 T={T}, 2 ranks", "one_rank_ms": one, "two_ranks_ms": two,
              "waited_ms": waited, "no_overlap_ms": turn, "no_overlap_waited_ms": exposed})


# ---------------------------------------------------------------- the tokenizer

PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"


def compare_tokenizer(_):
    """tiktoken on what build/bench's tokenizer encodes."""
    data = os.environ.get("BATCHWISE_DATA", "data")
    try:
        import tiktoken.load
        with open(f"{data}/tinyshakespeare.txt", encoding="utf-8") as f:
            text = f.read()
        ranks = tiktoken.load.load_tiktoken_bpe(f"{data}/gpt2.tiktoken")
    except (ImportError, OSError) as why:
        print(f"\ntiktoken: not compared: {why}")
        return
    gpt2 = tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
    half, best = len(text) // 2, {1: 1e9, 2: 1e9}
    for threads in [1, 2] * 5:
        begin = time.perf_counter()
        gpt2.encode_ordinary_batch([text] if threads == 1 else [text[:half], text[half:]],
                                   num_threads=threads)
        best[threads] = min(best[threads], time.perf_counter() - begin)
    for threads, seconds in best.items():
        print(f"tiktoken, threads: {threads}  {len(text.encode()) / seconds / 1e6:8.1f} MB/s")


# ---------------------------------------------------------------- the GPU

def compare_gpu():
    """The same model on the same GPU, in a PyTorch that sees it."""
    sees = "import torch; assert torch.cuda.is_available() and torch.compile"
    for python in filter(shutil.which, PYTHONS):
        if not subprocess.run([python, "-c", sees], stderr=subprocess.DEVNULL,
                              check=False).returncode:
            os.execv(shutil.which(python), [python, "dev/reference/bench_cuda.py", "--against",
                                            "bench_cuda.json"])
    print("\nno PyTorch 2 here sees a GPU: not compared")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = {"ranks": compare_ranks, "tokenizer": compare_tokenizer, "steps": compare_steps}
    parser.add_argument("--full", action="store_true", help="GPT-2 124M, and bf16")
    parser.add_argument("--only", choices=parts, help="one part")
    parser.add_argument("--gpu", action="store_true", help="PyTorch on a GPU")
    args = parser.parse_args()
    os.chdir(ROOT)
    if args.gpu:
        compare_gpu()
        return
    for name, part in parts.items():
        if args.only in (None, name):
            part(args.full)


if __name__ == "__main__":
    main()
