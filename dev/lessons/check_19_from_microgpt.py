#!/usr/bin/env python3
"""Lesson 19: microgpt's model with 1, 4, 16 and 64 names per update: the updates to one validation
loss, at three learning rates each; then at the best of these again, with two threads."""
import json
import os
import tempfile
from lesson import claim, run

TARGET = 1.35                                    # nats per token; the names' entropy is 1.067
RATES = {1: (0.002, 0.004, 0.008), 4: (0.004, 0.008, 0.016),      # by the names in an update
         16: (0.008, 0.016, 0.032), 64: (0.008, 0.016, 0.032)}
SEEDS = 1, 2


def updates_to_target(data, names, rate, threads):
    """How many there are, and the seconds that they take: means over the seeds."""
    log, ends = os.path.join(data, "log.jsonl"), []
    for seed in SEEDS:
        run("./train_gpt2", "--data", data, "--layers", "1", "--heads", "4", "--channels", "16",
            "--seq-len", "8", "--micro-batch", str(names), "--lr", str(rate), "--beta2", "0.99",
            "--lr-schedule", "constant", "--weight-decay", "0", "--target-loss", str(TARGET),
            "--tokens", "400000", "--eval-tokens", "4096", "--eval-every",
            str(max(5, 160 // names)), "--seed", str(seed), "--threads", str(threads),
            "--log", log, "--overwrite")
        with open(log, encoding="utf-8") as file:
            ends.append(json.loads(file.readlines()[-1]))
    return [sum(end[what] for end in ends) / len(ends) for what in ("step", "elapsed")]


updates, same = {}, True
print(f"names   updates to a loss of {TARGET}, at three learning rates   "
      "names read   seconds, 1 thread   2 threads")
with tempfile.TemporaryDirectory() as data:
    run("./prepare", "names", "--tokens", "400000", "--out", data)
    for names, rates in RATES.items():
        runs = [(*updates_to_target(data, names, rate, 1), rate) for rate in rates]
        updates[names], seconds, best = min(runs)
        again, shared = updates_to_target(data, names, best, 2)
        same = same and again == updates[names]
        print(f"{names:5d}  ", ",".join(f"{count:6.0f} at {rate:.3f}" for count, _, rate in runs),
              f"{names * updates[names]:15.0f} {seconds:19.2f} {shared:11.2f}")
claim(same, "two threads make the same updates")
claim(updates[1] > 7 * updates[16], "16 names per update: less than a seventh of the updates of 1")
claim(16 * updates[16] < 2 * updates[1], "and less than twice the names")
claim(updates[64] < updates[16], "64 names per update: fewer updates than 16")
claim(64 * updates[64] > 1.5 * 16 * updates[16], "but more than 1.5 times the names")
