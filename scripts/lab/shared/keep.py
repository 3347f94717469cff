#!/usr/bin/env python3
"""Copies finished experiments from OUT to where they are committed, and quotes them in the
laboratory's README: tables, summary and fit to scripts/lab/results/NN_name, figures to
scripts/lab/results/figures, what was seen between the README's markers.

    scripts/lab/shared/keep.py 02_knee 08_fits
"""
import argparse
import glob
import json
import os
import re
import shutil

import endpoints
import kept
import lab

README = os.path.join(lab.LAB, "README.md")
BY_HAND = ["samples.json"]           # made by samples.py, not by the experiment
MOST_BYTES = 150_000                 # of a picture


# ---------------------------------------------------------------- files

def finished(out, label):
    """The summary of an experiment; its command without the folder it wrote to."""
    path = os.path.join(out, label, "summary.json")
    try:
        with open(path, encoding="utf-8") as f:
            found = json.load(f)
    except OSError as error:
        lab.fail(f"{path}: {error.strerror}; run scripts/lab/experiments/{label}.py first")
    except ValueError:
        lab.fail(f"{path}: damaged; run scripts/lab/experiments/{label}.py again")
    if found["size"] == "tiny":
        lab.fail(f"{label}: a --tiny run is for tests, its numbers mean nothing")
    if not found["drawn"]:
        lab.fail(f"{label}: its pictures are missing; run scripts/lab/experiments/{label}.py --redraw with a "
                 "python3 that has matplotlib, often /usr/bin/python3")
    found["command"] = re.sub(r" --out \S+", "", found["command"])
    return found


def check_paths(path):
    """Nobody else has this machine's folders."""
    with open(path, encoding="utf-8") as f:
        absolute = re.search(r"(?<![\w.})~-])/\w[\w.-]*/[\w./-]*", f.read())
    if absolute:
        lab.fail(f"{path}: names a path of this machine, {absolute.group()}")


def shrink(source, target):
    """64 colours: less than half the bytes, and charts of lines look the same."""
    try:
        from PIL import Image
    except ImportError:
        lab.fail("pictures need Pillow, which matplotlib brings: run with the python3 that has "
                 "matplotlib, often /usr/bin/python3")
    with Image.open(source) as picture:
        picture.convert("RGB").quantize(64).save(target, optimize=True)
    if os.path.getsize(target) > MOST_BYTES:
        lab.fail(f"{target}: {os.path.getsize(target):,} bytes; at most {MOST_BYTES:,} are kept")


def copy(out, label, found):
    """Tables, fits and pictures; what an earlier run left there goes."""
    source, target = os.path.join(out, label), os.path.join(kept.RESULTS, label)
    os.makedirs(target, exist_ok=True)
    for name in set(os.listdir(target)) - set(BY_HAND):
        os.remove(os.path.join(target, name))
    tables = [os.path.join(source, table["file"]) for table in found["csv"]]
    for path in [*tables, *glob.glob(os.path.join(source, "fit.json"))]:
        check_paths(path)
        shutil.copy(path, target)
    for figure in found["figures"]:
        shrink(os.path.join(source, figure["png"]),
               os.path.join(kept.FIGURES, kept.figure_file(found, figure)))
    lab.write_json(os.path.join(target, "summary.json"), found)
    check_paths(os.path.join(target, "summary.json"))


# ---------------------------------------------------------------- words of the README

def sentence(text):
    """The first letter large unless it is a symbol (η), a full stop."""
    first = text[:1].upper() if text[:1].isascii() else text[:1]
    return first + text[1:].rstrip(".") + "."


def block(label, found):
    """What stands between the markers of an experiment."""
    pictures = [f"![{figure['alt'].replace('[', '(').replace(']', ')')}]"
                f"(results/figures/{kept.figure_file(found, figure)})\n"
                for figure in found["figures"]]
    verdict = f"**{kept.verdict(found).capitalize()}.** {sentence(found['why'])}"
    return "\n".join([
        f"<!-- seen {label} -->",
        f"**What was seen.** {found['size'].capitalize()} run; {kept.machine(found)}.\n",
        *[f"- {said}" for said in found["said"]], "", *pictures,
        *([] if found["verdict"] == "observed" else [verdict]), "<!-- end -->"])


def endpoints_table():
    """What each experiment had to decide, and how it did; in the order of the plan."""
    rows = ["<!-- endpoints -->", "| experiment | endpoint | predicted | known before | measured "
            "| verdict | second edition |", "|---|---|---|---|---|---|---|"]
    for end in endpoints.PLAN:
        found = kept.summary(end.label)
        seen = kept.table(end.label, "endpoint")
        measured = "; ".join(f"{row['what'] or ''}{': ' if row['what'] else ''}{row['value']:.3g} "
                             f"({row['low']:.3g} to {row['high']:.3g})" for row in seen)
        rows.append(f"| {int(end.label[:2])} {end.label[3:].replace('_', ' ')} | {end.what} "
                    f"| {endpoints.bounds(end)} | {end.known} | {measured or 'not measured yet'} "
                    f"| {kept.verdict(found) if found and seen else ''} | {end.earlier} |")
    return "\n".join([*rows, "<!-- end -->"])


def place(text, start):
    """What the README has between a marker and its end."""
    return (re.search(rf"<!-- {start} -->\n.*?<!-- end -->", text, re.S)
            or lab.fail(f"{README}: has no <!-- {start} --> ... <!-- end -->"))


def quote(text, label, found):
    """The README with the words of this summary, and the table of all endpoints."""
    for start, words in [(f"seen {label}", block(label, found)), ("endpoints", endpoints_table())]:
        at = place(text, start)
        text = text[:at.start()] + words + text[at.end():]
    return text


def drop_figures():
    """Those that no README shows any more."""
    text = ""
    for path in (README, os.path.join(lab.ROOT, "README.md")):
        with open(path, encoding="utf-8") as f:
            text += f.read()
    for name in os.listdir(kept.FIGURES):
        if f"figures/{name})" not in text:
            os.remove(os.path.join(kept.FIGURES, name))


def keep(out, label):
    found = finished(out, label)
    copy(out, label, found)
    with open(README, encoding="utf-8") as f:
        text = quote(f.read(), label, found)
    with open(README, "w", encoding="utf-8") as f:
        f.write(text)
    drop_figures()
    print(f"{label}: kept ({kept.verdict(found)})")


def main():
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split("\n\n")[0].split()))
    parser.add_argument("experiments", metavar="EXPERIMENT", nargs="+", help="as in 02_knee")
    parser.add_argument("--out", metavar="DIR", default=os.path.join(lab.ROOT, "lab"),
                        help="where they were made (default: lab)")
    args = parser.parse_args()
    for label in args.experiments:
        keep(args.out, label)


if __name__ == "__main__":
    main()
