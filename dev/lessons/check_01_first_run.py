#!/usr/bin/env python3
"""Lesson 1: the loss begins at ln V and falls. Trains the model of `make run` for 200 updates."""
import json
import math
import os
import tempfile
from lesson import claim, run

V = 257                                          # 256 bytes and the end of a text


def losses_of_a_run(folder):
    """The loss of each of 200 updates."""
    data, log = os.path.join(folder, "tales"), os.path.join(folder, "log.jsonl")
    run("./prepare", "tales", "--tokens", "300000", "--out", data)
    run("./train_gpt2", "--data", data, "--layers", "2", "--heads", "2", "--channels", "64",
        "--seq-len", "256", "--micro-batch", "4", "--lr", "3e-3", "--steps", "200",
        "--eval-every", "0", "--eval-tokens", "4096", "--log", log)
    with open(log) as file:
        lines = [json.loads(line) for line in file]
    return [line["loss"] for line in lines if line.get("event") == "step"]


with tempfile.TemporaryDirectory() as folder:
    losses = losses_of_a_run(folder)
print("update   loss    e^loss")
for step in (1, 2, 5, 10, 20, 50, 100, 200):
    print(f"{step:6d}   {losses[step - 1]:.3f}  {math.exp(losses[step - 1]):6.1f}")
claim(abs(losses[0] - math.log(V)) < 0.1,
      f"the first loss is within 0.1 of ln {V} = {math.log(V):.3f}")
claim(losses[-1] < 3.0,
      "after 200 updates it is below 3, the loss of a uniform guess among 20 bytes")
