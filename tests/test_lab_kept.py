#!/usr/bin/env python3
"""The laboratory's committed results: each follows from its own tables again, what kept.py refuses,
and that pages and claims say what is committed."""
import contextlib
import io
import json
import math
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import testing
from testing import ROOT

sys.path[:0] = testing.LAB_ROOMS
import claims
import kept
import report

README = os.path.join(kept.LAB, "README.md")
LABELS = [label for label, _ in report.experiments()]


def words_of(path):
    with open(path, encoding="utf-8") as f:
        return " ".join(f.read().split())


def alike(a, b):
    """Equal, but for the last of nine digits."""
    if all(isinstance(x, (int, float)) for x in (a, b)):
        return math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-9)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(alike, a, b))
    return a == b


# ---- what is committed ----

def test_kept_again():
    """--kept: every derived table, number, endpoint and verdict again from the committed runs, and
    every figure."""
    for label in LABELS:
        sys.argv = [testing.lab_path(label + ".py"), "--kept", "--out", TMP]
        with contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(sys.argv[0], run_name="__main__")
        old, new = kept.read(label), kept.load(os.path.join(TMP, label, "result.json"))
        assert set(old["tables"]) == set(new["tables"]), label
        for name, of in old["tables"].items():
            assert alike(of["rows"], new["tables"][name]["rows"]), (label, name)
        assert alike(old["endpoint"], new["endpoint"]) and old["verdict"] == new["verdict"], label
        assert old["figures"] == new["figures"] and old["retrospective"] == new["retrospective"]
        for figure in old["figures"]:
            path = os.path.join(kept.FIGURES, kept.figure_file(old, figure))
            assert os.path.getsize(path) <= 150_000, path


def test_pooled_saving():
    """What README says of batches beyond 4,096 tokens is the mean of all seeds that ran at the rate
    chosen for both, as a 90% interval of the ratio of updates."""
    ratio = kept.number("02_knee",
                        "updates of 8192 tokens over 4096, 0.8M to 1.4 nats, all 6 seeds")
    saved, least, most = (f"{100 * (1 - r):.0f}%" for r in (ratio[0], ratio[2], ratio[1]))
    assert (f"saved {saved} of the updates (six seeds; {least} to {most})"
            in words_of(os.path.join(ROOT, "README.md"))), (saved, least, most)


# Numbers of the laboratory's README that are no result: sizes, settings, other people's.
SET = """0.8 0.4 119 1.4 2.5 0.1 0.5 0.95 1.46 1.98 0.667 1.5 0.9 1.1 0.02 512 100 1024 256 4096
    1000 128 8192 3072 2048 524288 262144 1048576 16384 1558 2.80 32768 0.84 1.10 1.07 1.37 11.5
    0.002 13.1 10.1 16.0 1.72 7.1 5.9 8.7 0.20 0.18 0.037 0.90 0.97 175 2.0 8.8 1.0 9.2 4018 27 9 90
    80 40 75""".split()


RAW = """runs cells branches curves seconds losses repeated controls local_points tuned shares
    calibration updates rates machine model""".split()


def test_readme_numbers():
    """Each number of three digits or more in the laboratory's README, and each with a point or in
    per cent, is one of a committed result, rounded as it stands there."""
    known = []
    for label in [*LABELS, "06_averaging"]:
        found = kept.read(label)
        known += [x for row in found["endpoint"] for x in row[1:]]
        for name, table in found["tables"].items():
            if name not in RAW:
                known += [x for row in table["rows"] for name, x in zip(table["columns"], row)
                          if isinstance(x, (int, float)) and not name.startswith("updates_f")
                          and name not in ("updates_low", "updates_high")]
    known = [abs(x) for x in known if x]
    with open(README, encoding="utf-8") as f:
        text = re.sub(r"```.*?```|^    .*?$|`[^`]*`|\]\([^)]*\)|arXiv [\d.]+|\b(?:19|20)\d\d\b"
                      r"|\b(?=\w*[a-z])[0-9a-f]{7}\b|\b16064ae|section [\d.]+", " ", f.read(),
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
    assert not lost, f"scripts/lab/README.md: {', '.join(lost)}: in no committed result"


# ---- committing ----

def test_keep():
    """A finished experiment: its result and its figures. A tiny run is refused."""
    out, place = (tempfile.mkdtemp(dir=TMP) for _ in range(2))
    os.makedirs(os.path.join(place, "figures"))
    for size, words in [("full", "kept (as predicted)"), ("tiny", "a --tiny run is for tests")]:
        found = {**kept.read("10_replayed"), "size": size}
        os.makedirs(os.path.join(out, "10_replayed"), exist_ok=True)
        with open(os.path.join(out, "10_replayed", "result.json"), "w", encoding="utf-8") as f:
            json.dump(found, f)
        for figure in found["figures"]:
            shutil.copy(os.path.join(kept.FIGURES, kept.figure_file(found, figure)),
                        os.path.join(out, "10_replayed", figure["name"] + ".png"))
        done = subprocess.run([testing.find_python() or sys.executable, "-Bc", f"""import sys
sys.path[:0] = {testing.LAB_ROOMS!r}
import kept
kept.RESULTS, kept.FIGURES = {place!r}, {os.path.join(place, "figures")!r}
kept.keep({out!r}, "10_replayed")
"""], capture_output=True, text=True, check=False)
        assert words in done.stdout + done.stderr, done
    assert kept.load(os.path.join(place, "10_replayed.json"))["size"] == "full"
    assert sorted(os.listdir(os.path.join(place, "figures"))) == ["10_links.png", "10_race.png"]


# ---- claims ----

# {label: numbers of its tables that its sentences must hold}; a new measurement changes them.
WANTED = {
    "02_knee": ["2,971 updates of 512 tokens, and 456 of 8,192", "11.9 (11.4 to 12.4) times",
                "1.53 and 1.79 million tokens, 2,989 and 872 updates", "49 and 56 seconds on one",
                "4.5 and 1.3 on 64", "1.00 times", "1.88 times"],
    "02_local": ["2,760 tokens (2,568 to 2,966), 86 sequences of 32", "23 sequences of 256",
                 "8,600 tokens after 1,048,576",
                 "708 against a critical batch size of 2,760"],
    "03_small_noisy": ["1.483 (1.475 to 1.491) with 1"],
    "04_one_device": ["16.7 (15.5 to 17.8) tokens"],
    "05_time": ["9 of 9 pairs", "0.97 times", "1.54 times", "1.48 (1.46 to 1.64) times"],
    "06_averaging": ["+0.169 (+0.103 to +0.236)"],
    "06_bandwidth": ["25 Mbit/s one worker 12.5, two data parallel 89.6", "DiLoCo 13.1"],
    "07_schedules": ["-0.026 (-0.054 to +0.002) nats"],
    "08_fits": ["9.36 days on 1", "28.1 hours on 8", "3.55 hours on 64", "measured 23 hours on 8"],
    "10_replayed": ["1 take 51 s, 8 take 7.9 s, 64 take 2.3 s", "Below 494 Mbit/s"]}


def test_claims():
    assert set(WANTED) == {claim.label for claim in claims.CLAIMS if claim.label}
    for label, words in WANTED.items():
        said = " ".join(claims.measured(c) for c in claims.CLAIMS if c.label == label)
        for word in words:
            assert word in said, (word, said)
    kept.RESULTS, results = TMP, kept.RESULTS
    try:
        assert claims.measured(claims.CLAIMS[0]) == "Not measured yet."
    finally:
        kept.RESULTS = results


if __name__ == "__main__":
    TMP = tempfile.mkdtemp(prefix="lab_kept.")
    try:
        sys.exit(testing.run_tests(globals(), sys.argv[1:]))
    finally:
        shutil.rmtree(TMP)
