#!/usr/bin/env python3
"""Prints what --plan says of the recipes of scripts/train.sh on 1 and 8 H100s, as
dev/cuda/README.md has it; with --write puts it there.

    make emulate && scripts/plan_table.py [--write]

The plans are the script's own (--dry-run), by ./train_gpt2cu or its emulated build: they count the
CUDA trainer's memory.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = os.path.join(ROOT, "dev/cuda/README.md")
BEGIN, END = "<!-- plans: written by scripts/plan_table.py -->\n", "<!-- plans: end -->\n"
HEAD = ["recipe", "H100s", "updates", "tokens an update", "micro-batch", "GB", "an update", "tokens/s",
        "whole run", "GPU-hours"]


def die(message):
    sys.exit("plan_table.py: " + message)


def plan(model, gpus):
    """The event "plan" of the recipe's dry run."""
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "plan.jsonl")
        done = subprocess.run([os.path.join(ROOT, "scripts/train.sh"), model, "--gpus", str(gpus),
                               "--dry-run", "--log", log], capture_output=True, text=True)
        if done.returncode or not os.path.exists(log):
            die(done.stderr.strip() or "there is no trainer to plan with; make emulate builds one")
        with open(log, encoding="utf-8") as file:
            return json.loads(file.readlines()[-1])


def duration(days):
    return f"{24 * days:.1f} hours" if days < 2 else f"{days:.1f} days"


def row(model, gpus):
    p = plan(model, gpus)
    return [model, gpus, f"{p['steps']:,.0f}", f"{p['batch_tokens']:,}", p["micro_batch"],
            f"{1e-9 * p['bytes_total']:.1f}", f"{p['seconds_per_step']:.2f} s",
            f"{round(p['batch_tokens'] / p['seconds_per_step'], -3):,.0f}", duration(p["days"]),
            f"{p['device_hours']:,.0f}"]


def table():
    rows = [row(model, gpus) for model in ("d12", "d24", "d36", "d48") for gpus in (1, 8)]
    return "".join("| %s |\n" % " | ".join(str(cell) for cell in cells)
                   for cells in [HEAD, ["---"] * len(HEAD)] + rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="rewrite " + os.path.relpath(PAGE))
    arguments = parser.parse_args()
    text = table()
    if not arguments.write:
        print(text, end="")
        return
    with open(PAGE, encoding="utf-8") as file:
        page = file.read()
    parts = re.split("(%s|%s)" % (re.escape(BEGIN), re.escape(END)), page)
    if len(parts) != 5:
        die("dev/cuda/README.md has no place for the table")
    parts[2] = text
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write("".join(parts))


if __name__ == "__main__":
    main()
