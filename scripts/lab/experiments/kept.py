#!/usr/bin/env python3
"""The committed results: results/NN_name.json of each experiment, and its figures. Run as a
program, it commits finished experiments there:

    scripts/lab/experiments/kept.py 02_knee 08_fits       from lab/, or from --out
"""
import argparse
import json
import os
import sys

LAB = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESULTS = os.path.join(LAB, "results")
FIGURES = os.path.join(RESULTS, "figures")


# ---------------------------------------------------------------- reading

def read(label, out=None):
    """A result; None without. out: where the experiment may have been run; its own result comes
    before the committed one."""
    found = out and load(os.path.join(out, label, "result.json"))
    return found or load(os.path.join(RESULTS, label + ".json"))


def load(path):
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except OSError:
        return None
    except ValueError:
        return sys.exit(f"{path}: this is not JSON; run that experiment again")


def rows(table):
    """Of a table as a result has it: dicts by column."""
    return [dict(zip(table["columns"], row)) for row in table["rows"]] if table else []


def table(label, name, out=None, **wanted):
    """The rows of a result's table with these values."""
    found = read(label, out=out)
    return only(rows(found["tables"].get(name)), **wanted) if found else []


def only(table_rows, **wanted):
    return [row for row in table_rows if all(row[key] == value for key, value in wanted.items())]


def grouped(table_rows, *keys):
    """{the values of these columns: rows}, in the order of the rows."""
    found = {}
    for row in table_rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return found


def number(label, what):
    """(value, low, high) that an experiment has found; None without."""
    return next((tuple(row.values())[1:] for row in table(label, "numbers", what=what)), None)


def best_rate(size, target, batch):
    """The best learning rate that experiment 2's sweep found for a batch and a loss; None if it did
    not go there."""
    return next((row["best_lr"] for row in table("02_knee", "points", size=size,
                 target_nats=target, batch_tokens=batch)), None)


TUNED = (1, 2)                       # seeds of experiment 2 that choose rates, and report nothing


def pooled(size, target, out=None):
    """{batch: (rate, {seed: updates})}: all seeds of a size that experiment 2 trained to a loss at
    the rate chosen for it; those that chose it are not among them."""
    of = {"out": out, "size": size, "target_nats": target}
    runs = [row for row in table("02_knee", "runs", **of) if row["seed"] not in TUNED]
    chosen = {row["batch_tokens"]: row["best_lr"] for row in table("02_knee", "points", **of)}
    found = {}
    for row in runs:
        if row["lr"] == chosen.get(row["batch_tokens"], row["lr"]) and row["updates"]:
            found.setdefault(row["batch_tokens"], (row["lr"], {}))[1][row["seed"]] = row["updates"]
    return dict(sorted(found.items()))


# ---------------------------------------------------------------- words

def told(value, low=None, high=None, form=None):
    """11.9 (11.4 to 12.4)"""
    def show(x):
        if not isinstance(x, (int, float)):
            return "none" if x is None else str(x)
        return f"{x:{form}}" if form else f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.3g}"
    return show(value) + (f" ({show(low)} to {show(high)})" if low is not None else "")


def verdict(found):
    notes = ["quick run"] * (found["size"] != "full") + ["retrospective"] * found["retrospective"]
    return found["verdict"] + (f" ({', '.join(notes)})" if notes else "")


def figure_file(found, figure):
    """01_one_step.png: the experiment's number and the figure's name."""
    return f"{found['number']:02d}_{figure['name']}.png"


def machine(found):
    load_ = found.get("load")
    return found["machine"] + (f", load {load_[0]:g} to {load_[1]:g} meanwhile" if load_ else "")


# ---------------------------------------------------------------- committing

def keep(out, label):
    import lab
    from PIL import Image                                    # which matplotlib brings
    path = os.path.join(out, label, "result.json")
    found = load(path) or sys.exit(f"{path} is missing; run scripts/lab/experiments/{label}.py")
    if found["size"] == "tiny":
        sys.exit(f"{label}: a --tiny run is for tests, its numbers mean nothing")
    for figure in found["figures"]:                          # of 128 colours: half the bytes
        with Image.open(os.path.join(out, label, figure["name"] + ".png")) as picture:
            picture.convert("RGB").quantize(128).save(
                os.path.join(FIGURES, figure_file(found, figure)), optimize=True)
    lab.write_json(os.path.join(RESULTS, label + ".json"), found)
    print(f"{label}: kept ({verdict(found)})")


def main():
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split("\n\n")[0].split()))
    parser.add_argument("experiments", metavar="EXPERIMENT", nargs="+", help="as in 02_knee")
    parser.add_argument("--out", metavar="DIR", default="lab",
                        help="where they were run (default: lab)")
    args = parser.parse_args()
    for label in args.experiments:
        keep(args.out, label)


if __name__ == "__main__":
    main()
