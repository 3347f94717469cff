#!/usr/bin/env python3
"""The laboratory's committed results: each follows from its own tables again, what kept.py refuses,
and that pages and claims say what is committed."""
import contextlib
import io
import math
import os
import re
import runpy
import sys

import testing
import claims
import kept
import lab
import report

LABELS = [label for label, _ in report.experiments()]
TMP = testing.scratch()


def alike(a, b):
    """Equal, but for the last of nine digits."""
    if all(isinstance(x, (int, float)) for x in (a, b)):
        return math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-9)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(alike, a, b))
    return a == b


# ---- what is committed ----

def again(label):
    """The result that --kept makes."""
    sys.argv = [testing.lab_path(label + ".py"), "--kept", "--out", TMP]
    with contextlib.redirect_stdout(io.StringIO()):
        runpy.run_path(sys.argv[0], run_name="__main__")
    return kept.load(os.path.join(TMP, label, "result.json"))


def test_kept_again():
    """--kept: every derived table, number, endpoint and verdict again from the committed runs, and
    every figure."""
    for label in LABELS:
        old, new = kept.read(label), again(label)
        assert set(old["tables"]) == set(new["tables"]), label
        for name, of in old["tables"].items():
            assert alike(of["rows"], new["tables"][name]["rows"]), (label, name)
        assert alike(old["endpoint"], new["endpoint"]), label
        for key in ("verdict", "retrospective", "figures"):
            assert old[key] == new[key], (label, key)
        for figure in old["figures"]:
            path = os.path.join(kept.FIGURES, kept.figure_file(old, figure))
            assert os.path.getsize(path) <= 150_000, path


# Numbers of the pages that are no result: sizes, settings, ratios of results, other people's.
SET = """0.8 0.4 119 1.4 2.5 0.1 0.5 0.95 1.46 1.98 0.667 1.5 0.9 1.1 0.02 512 100 1024 256 4096
    1000 128 8192 3072 2048 524288 262144 1048576 16384 1558 2.80 32768 0.84 1.10 1.07 1.37 11.5
    0.002 13.1 10.1 16.0 1.72 7.1 5.9 8.7 0.20 0.18 0.037 0.90 0.97 175 2.0 8.8 1.0 9.2 4018 27 9 90
    80 40 75 210 2000 2500 250000 5.0 5.3 1.82 1.48 1.3 1.8 8.1""".split()


RAW = """runs cells branches curves seconds losses repeated controls local_points tuned shares
    calibration updates rates machine model""".split()


def table_of(text):
    """The rows of batch size, updates, tokens and seconds."""
    return re.findall(r"^\| (?:batch size|[\d,]+ \|).*$", text, re.M)


def test_readme_numbers():
    """Each number of three digits or more in the laboratory's README and in the answer of the
    project's, and each with a point or in per cent, is one of a committed result, rounded as it
    stands there. Both have the table that make lab prints."""
    known, page = [], testing.read("scripts", "lab", "README.md")
    answer = testing.read("README.md").split("## Why train on many GPUs")[1].split("\n## ")[0]
    table = [f"| {' | '.join(row)} |" for row in report.answer(
        {"10_replayed": kept.read("10_replayed")})]
    assert table_of(answer) == table == table_of(page)[:len(table)], table_of(answer)
    for label in [*LABELS, "06_averaging"]:
        found = kept.read(label)
        known += [x for row in found["endpoint"] for x in row[1:]]
        for name, table in found["tables"].items():
            if name not in RAW:
                known += [x for row in table["rows"] for name, x in zip(table["columns"], row)
                          if isinstance(x, (int, float)) and not name.startswith("updates_f")
                          and name not in ("updates_low", "updates_high")]
    known = [abs(x) for x in known if x]
    text = re.sub(r"```.*?```|^    .*?$|`[^`]*`|\]\([^)]*\)|arXiv [\d.]+|\b(?:19|20)\d\d\b"
                  r"|\b(?=\w*[a-z])[0-9a-f]{7}\b|\b16064ae|section [\d.]+", " ", page + answer,
                  flags=re.S | re.M)
    lost = []
    for token in re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?%?", text):
        plain = token.rstrip("%,").replace(",", "")
        value, digits = float(plain), len(plain.partition(".")[2])
        if plain in SET or (digits == 0 and value < 100 and "%" not in token):
            continue
        half = 0.5001 * 10.0 ** -digits
        as_shown = [lambda x: x]                             # or millions, hours, per cent
        if "%" in token:
            as_shown = [lambda x: 100 * x, lambda x: 100 * abs(1 - x)]
        elif value < 100:
            as_shown += [lambda x: 1e-6 * x, lambda x: 24 * x]
        if not any(abs(show(x) - value) <= half for x in known for show in as_shown):
            lost.append(token)
    assert not lost, f"README.md: {', '.join(lost)}: in no committed result"
    ratio = kept.number("02_front", "updates of the largest batch over those of half of it")
    saved, most, least = (f"{100 * (1 - r):.0f}%" for r in ratio)
    words = " ".join(answer.split())
    assert f"{saved} of the updates (90% interval over seeds: {least} to {most})" in words, saved
    one, many = (min(row[f"seconds_{n}"] for row in kept.table("10_replayed", "batches")
                     if row[f"seconds_{n}"]) for n in (1, 16))
    assert f"{one / many:.1f} times as fast, for {16 * many / one:.1f} times the worker" in words


# ---- committing ----

def test_keep():
    """A finished experiment: its result and its figures. A tiny run is refused."""
    found, committed = again("10_replayed"), (kept.RESULTS, kept.FIGURES)
    kept.RESULTS = kept.FIGURES = testing.scratch()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            kept.keep(TMP, "10_replayed")
        assert kept.read("10_replayed") == found and sorted(os.listdir(kept.FIGURES)) == [
            "10_front.png", "10_links.png", "10_replayed.json"]
        lab.write_json(os.path.join(TMP, "10_replayed", "result.json"), {**found, "size": "tiny"})
        kept.keep(TMP, "10_replayed")
        raise AssertionError("a tiny run is kept")
    except SystemExit as refused:
        assert "a --tiny run is for tests" in str(refused), refused
    finally:
        kept.RESULTS, kept.FIGURES = committed


# ---- claims ----

# What a label's sentences must hold, where numbers choose among rows.
WANTED = {
    "02_knee": ["1.88 times"], "02_front": ["2,276 and 928 updates", "3.4 and 1.4 on 64"],
    "02_local": ["86 sequences of 32"], "05_time": ["9 of 9 pairs", "0.97 times", "1.54 times"],
    "06_bandwidth": ["25 Mbit/s one worker 12.5, two data parallel 89.6", "DiLoCo 13.1"],
    "10_replayed": ["64 take 2.4 s"]}


def test_claims():
    for label, words in WANTED.items():
        said = " ".join(c.measured() for c in claims.CLAIMS if c.label == label)
        for word in words:
            assert word in said, (word, said)


if __name__ == "__main__":
    sys.exit(testing.run_tests(globals(), sys.argv[1:]))
