#!/usr/bin/env python3
"""Text at each loss on the way to experiment 10's target: one run of 0.8M parameters stops at each,
and writes 200 bytes from the same seeds. About three minutes of one core.

    scripts/lab/experiments/samples.py           writes them to scripts/lab/results/10_replayed.json
"""
import argparse
import os
import shutil
import subprocess

import _path
import kept
import lab

TARGETS = [2.5, 2.25, 2.0, 1.8, 1.7, 1.6, 1.5, 1.4]
TOKENS = 8 * 10 ** 6                                         # at most, and of the corpus
TRAIN = ["--micro-batch", "16", "--batch-tokens", "512", "--lr", "1e-3", "--lr-schedule",
         "constant", "--warmup-tokens", "10240", "--tokens", str(TOKENS), "--eval-every", "20",
         "--eval-tokens", "32768", "--seed", "1", "--threads", "1"]
BYTES = 200
WRITE = ["--generate", "", "--max-new", str(BYTES), "--temperature", "0.8", "--seed"]


def call(*command):
    """What a program prints to stdout."""
    done = subprocess.run(command, cwd=lab.ROOT, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        lab.fail(f"{' '.join(command[:2])}: status {done.returncode}")
    return done.stdout.decode("utf-8", "replace")


def readable(text):
    """Bytes that are no characters, and control characters, become a middle dot."""
    return "".join(c if c.isprintable() or c == "\n" else "·" for c in
                   text.replace("\ufffd", "·"))


def write(run):
    """A tale may end early; then the next seed begins another one."""
    text, seed = "", 0
    while len(text) < BYTES:
        seed += 1
        text += readable(call("./train_gpt2", "--init", run, *WRITE, str(seed)).strip()) + "\n"
    return text[:BYTES]


def sample(out, data, target, first):
    """Trains on to the target; the text that the model writes then, and its loss."""
    run = os.path.join(out, "run")
    call("./train_gpt2", "--data", data, *map(str, lab.model("0.8M")), *TRAIN, "--target-loss", f"{target:g}",
         "--out", run, *([] if first else ["--resume"]))
    last = [x for x in lab.read_log(os.path.join(run, "log.jsonl")) if x["event"] == "eval"][-1]
    if last["val_loss"] > target:
        lab.fail(f"a loss of {target:g} was not reached in {TOKENS:,} tokens")
    text = write(run)
    print(f"{target:g}: {text!r}", flush=True)
    return {"target": target, "loss": last["val_loss"], "tokens": last["tokens"], "text": text}


def main():
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split("\n\n")[0].split()))
    parser.add_argument("--out", metavar="FILE", help="default: results/10_replayed.json")
    parser.add_argument("--targets", metavar="LOSSES", help="the highest first, as in 2.5,2")
    args = parser.parse_args()
    targets = [float(x) for x in args.targets.split(",")] if args.targets else TARGETS
    path = args.out or os.path.join(kept.RESULTS, "10_replayed.json")
    out = os.path.join(lab.ROOT, "lab", f"samples.{os.getpid()}")
    os.makedirs(out)
    try:
        data = os.path.join(out, "data")
        call("./prepare", "tales", "--out", data, "--tokens", str(TOKENS))
        made = [sample(out, data, t, t == targets[0]) for t in targets]
    finally:
        shutil.rmtree(out)
    lab.write_json(os.path.abspath(path), {**(kept.load(path) or {}), "samples": {
        "words": "0.8M parameters (4 layers of 128 channels, sequences of 32 bytes), trained on "
                 f"the laboratory's tales with 512 tokens an update. At each loss the model writes "
                 f"{BYTES} bytes, always from the same seeds, at temperature 0.8. Bytes that are "
                 "all equally likely have a loss of 5.5 nats.",
        "samples": made}})


if __name__ == "__main__":
    main()
