#!/usr/bin/env python3
"""Experiment 2, 02_local.py on the King James Bible, by scripts/lab/plans/02_text.md.

    scripts/lab/experiments/02_text.py           needs Debian's bible-kjv and bible-kjv-text
"""
import os
import shutil
import subprocess

import fit
import kept
import lab
import local_knee

T, TOKENS, SMALL, LARGE = 32, 2 ** 20, 256, 4096
CHOOSES, MEASURE = 1, [3, 4, 5, 6]               # seeds
# Chapters, without the references before verses: a line is "Ge1:1 In the beginning ...".
CHAPTERS = """bible -f Gen1:1-Rev22:21 | awk '{ chapter = $1; sub(/:.*/, "", chapter)
    if (chapter != last) print "<|endoftext|>"
    last = chapter; sub(/^[^ ]* /, ""); print }' | ./prepare text - --out "$1" > /dev/null"""


def corpus(e):
    path = os.path.join(e.args.out, "data", "bible")
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        subprocess.run(["sh", "-c", CHAPTERS, "sh", path], check=True)
    return path


def measure(e):
    plan = local_knee.Plan("bible", lab.model("119k", T), T, corpus(e), SMALL, 2e-3, 3000.0,
                           (TOKENS,), (1, 4, 16, 64), 65536)
    for name, rows in local_knee.measure(e, plan, CHOOSES, MEASURE).items():
        e.table(name, local_knee.TABLES[name], rows)


def conclude(e):
    text = local_knee.fewer(e.rows("branches"))
    tales = local_knee.fewer(kept.table("02_local", "local_points", size="119k", seq_len=T,
                                        trained_tokens=TOKENS))
    for batch, of in text.items():
        if batch > SMALL and len(of) > 1:
            e.found(f"updates of {SMALL} tokens over {batch:,}", *fit.ratio_interval(of))
    knees = local_knee.b_crits(e.rows("branches"))
    if len(knees) > 1:
        e.found("B_crit in tokens", *fit.ratio_interval(knees.values()))
    e.figure("text", draw({"the Bible": text, "tales from a grammar": tales}), alt=(
        "How many times fewer updates a larger batch takes, against the batch size, on the King "
        "James Bible and on the laboratory's tales."),
        caption="Mean of four seeds; bars: 90%.")
    of = text.get(LARGE, [])
    return [("", *fit.ratio_interval(of))] if len(of) > 1 else []


def draw(texts):
    curves = [lab.Curve(name, list(of), *zip(*map(fit.ratio_interval, of.values())))
              for name, of in texts.items()]
    batches = list(texts["the Bible"])
    curves.append(lab.Curve("in proportion", batches, [b / SMALL for b in batches],
                            look={"color": "black", "linestyle": ":", "marker": ""}))
    return lab.panels([{"curves": curves, "x": "batch size (tokens per update)",
                        "y": f"times fewer updates than with {SMALL}", "log": (4, 2)}],
                      f"119k parameters after {TOKENS:,} tokens, on two texts")


if __name__ == "__main__":
    lab.experiment(
        2, "text", measure, conclude, endpoint=(9.0, 13.0), missing=lambda e: "" if shutil.which(
            "bible") else "the text: apt install bible-kjv bible-kjv-text",
        title="The knee on a real text",
        question="Does a larger batch save as many updates on a text that people wrote?",
        prediction="After 1,048,576 bytes of the King James Bible, 119k parameters take 9 to 13 "
        "times as many updates of 256 tokens as of 4,096.")
