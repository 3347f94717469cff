#!/usr/bin/env python3
"""A class on laptops: updates and seconds to a validation loss, against the batch size.

    scripts/class.py                                measures this laptop; prints one line of JSON
    scripts/class.py results.txt --out class.png    draws such lines: of files, folders, or a paste

dev/lessons/class.md is the teacher's page. Seconds are those of the updates alone.
"""
import argparse
import fileinput
import glob
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lab", "experiments"))
import kept
import lab


def train(batch, args, scratch):
    """Trains to the loss with the rate that experiment 2 found best; returns what it took."""
    log, T = os.path.join(scratch, str(batch)), 32
    rate = kept.best_rate(args.size, args.target_loss, batch) or lab.fail(
        f"experiment 2 has no rate for {args.size}, batch {batch}, loss {args.target_loss:g}")
    flags = ["--data", os.path.join(lab.ROOT, "data", "tales"), *lab.model(args.size, T), "--lr",
             rate, "--lr-schedule", "constant", "--warmup-tokens", 60 * batch, "--batch-tokens",
             batch, "--micro-batch", min(batch // T, 64), "--beta2", lab.half_life_beta2(batch),
             "--tokens", 2 * 10**7, "--target-loss", args.target_loss, "--seed", args.seed,
             "--eval-every", max(1, 1024 * T // batch), "--eval-tokens", 8192]
    program = shutil.which("train_gpt2", path=lab.ROOT) or lab.fail("first, type make run")
    print(f"batch {batch:5}: ", end="", file=sys.stderr, flush=True)
    subprocess.run([program, *map(str, flags), "--log", log + ".jsonl"], check=False,
                   stdout=subprocess.DEVNULL)
    run = lab.Run(lab.Job(log, flags), log, {})
    updates = run.updates_at(args.target_loss) or lab.fail("not reached; was make run typed?")
    seconds = updates * sum(step["seconds"] for step in run.steps) / len(run.steps)
    print(f"{updates:5.0f} updates, {seconds:6.2f} seconds", file=sys.stderr)
    args.threads = run.start["threads_used"]
    return {"batch": batch, "updates": round(updates), "tokens": round(updates * batch),
            "seconds": round(seconds, 2), "tokens_per_second": round(updates * batch / seconds)}


def results(paths):
    """The laptops' lines. One that is cut, or of another loss than the first, is named."""
    found = []
    files = [sorted(glob.glob(os.path.join(path, "*"))) or [path] for path in paths]
    with fileinput.input(sum(files, []), mode="rb") as lines:
        for line in filter(bytes.strip, lines):
            try:
                laptop = json.loads(line)
                laptop["rows"] = {row["batch"]: row for row in laptop["batches"]}
                if laptop["to"] != (found or [laptop])[0]["to"]:
                    raise ValueError
                found.append(laptop)
            except (ValueError, KeyError, TypeError):
                print(f"class.py: {lines.filename()}:{lines.filelineno()}: is cut, or of another "
                      "loss; left out", file=sys.stderr)
    return found or lab.fail("no line is whole")


def draw(laptops, workers=8):
    """Two panels; the second also has laptops that share each update, at no cost for the links."""
    panels, rows = [], laptops[0]["rows"]
    names = [f"{laptop['processor']}, threads: {laptop['threads']}" for laptop in laptops]
    for key, labels in [("updates", names), ("seconds", [None] * len(names))]:
        curves = [lab.Curve(label, list(of["rows"]), [row[key] for row in of["rows"].values()])
                  for label, of in zip(labels, laptops)]
        panels.append({"curves": curves, "x": "batch (tokens)", "y": key, "log": (2, 10)})
    shared = [batch for batch in rows if batch // workers in rows]
    curves.append(lab.Curve(f"{workers} laptops like the first, calculated", shared, [
        rows[b]["tokens"] / workers / rows[b // workers]["tokens_per_second"] for b in shared],
        look={"color": "black", "linestyle": "--", "marker": ""}))
    return lab.panels(panels, f"To a validation loss of {laptops[0]['to']}", (11, 4.8))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="*", metavar="FILE", help="default: the standard input")
    parser.add_argument("--out", metavar="FILE", help="draws: FILE.png or FILE.svg")
    parser.add_argument("--size", choices=lab.MODELS, default="119k", help="default: 119k")
    parser.add_argument("--target-loss", type=float, default=2.0, metavar="L", help="default: 2")
    parser.add_argument("--batches", default="128,256,512,1024,2048,4096,8192", metavar="A,B,C")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), metavar="N")
    args = parser.parse_args()
    if args.out:
        return draw(results(args.results)).savefig(args.out, dpi=130)
    with tempfile.TemporaryDirectory() as scratch:
        batches = [train(int(batch), args, scratch) for batch in args.batches.split(",")]
    return print(json.dumps({
        "to": f"{args.target_loss:g} with {args.size} parameters", "threads": args.threads,
        "processor": lab.machine().partition(", ")[2], "seed": args.seed, "batches": batches}))


if __name__ == "__main__":
    main()
