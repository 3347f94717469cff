#!/usr/bin/env python3
"""How results are kept: what keep.py copies and refuses; that the README quotes what is kept, and
that the claims of the page read it."""
import filecmp
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import testing

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAB = os.path.join(ROOT, "scripts", "lab")
sys.path[:0] = testing.LAB_ROOMS
import claims
import fit
import keep
import kept
import report

LABELS = [label for label, _ in report.experiments()]
RESULTS, FIGURES, README = kept.RESULTS, kept.FIGURES, keep.README


def in_folder(name):
    """Committed results as they would lie in OUT; empty folders and a README without them to keep
    them in; returns OUT."""
    folder = os.path.join(TMP, name)
    out = os.path.join(folder, "lab")
    kept.RESULTS, kept.FIGURES = RESULTS, FIGURES
    for label in LABELS:
        shutil.copytree(os.path.join(RESULTS, label), os.path.join(out, label))
        found = kept.summary(label)
        for figure in found["figures"]:
            shutil.copy(os.path.join(FIGURES, kept.figure_file(found, figure)),
                        os.path.join(out, label, figure["png"]))
    kept.RESULTS, kept.FIGURES = os.path.join(folder, "results"), os.path.join(folder, "figures")
    keep.README = os.path.join(folder, "README.md")
    os.makedirs(kept.FIGURES)
    with open(README, encoding="utf-8") as f, open(keep.README, "w", encoding="utf-8") as g:
        g.write(re.sub(r"(<!-- (?:seen \w+|endpoints) -->\n).*?(<!-- end -->)", r"\1Nothing.\n\2",
                       f.read(), flags=re.S))
    return out


def change(out, label, **fields):
    """Of its summary in OUT."""
    path = os.path.join(out, label, "summary.json")
    with open(path, encoding="utf-8") as f:
        found = dict(json.load(f), **fields)
    with open(path, "w", encoding="utf-8") as f:
        json.dump(found, f)


def keep_all(out, labels):
    keep.shrink = shutil.copy
    for label in labels:
        keep.keep(out, label)
    with open(keep.README, encoding="utf-8") as f:
        return f.read()


def refused(call, *words):
    try:
        call()
    except SystemExit as why:
        text = str(why)
        assert all(word in text for word in words) and "\n" not in text, text
        return
    raise AssertionError(f"not refused: {words}")


# ---- what is committed ----

def test_keep_readme_and_results():
    """Each kept experiment stands in the README as its summary has it, and its figures are small;
    every experiment has its places there."""
    own = kept.RESULTS
    with open(keep.README, encoding="utf-8") as f:
        text = f.read()
    for label in LABELS:
        found = kept.summary(label)
        if found:
            assert keep.block(label, found) in text, f"README differs from {label}: run keep.py"
            for figure in found["figures"]:
                assert os.path.exists(os.path.join(kept.FIGURES, kept.figure_file(found, figure)))
            for name in os.listdir(os.path.join(own, label)):
                keep.check_paths(os.path.join(own, label, name))
        else:
            assert keep.place(text, f"seen {label}"), label
    assert keep.endpoints_table() in text, "the table of endpoints differs: run keep.py"
    for name in os.listdir(kept.FIGURES):
        assert os.path.getsize(os.path.join(kept.FIGURES, name)) <= keep.MOST_BYTES, name


def test_pooled_saving():
    """What the pages say of batches beyond 4,096 tokens is the mean of all seeds that ran at the
    rate chosen for both, as a 90% interval of the ratio of updates."""
    chosen = {b: kept.best_rate("0.8M", 1.4, b) for b in (4096.0, 8192.0)}
    made = {}
    for row in kept.table("02_knee", "runs") + kept.table("09_curves", "targets"):
        own = (row.get("size", row.get("model")), row.get("reading", "weights"), row["target_nats"])
        if own == ("0.8M", "weights", 1.4) and row["lr"] == chosen.get(row["batch_tokens"]):
            made.setdefault(row["seed"], {})[row["batch_tokens"]] = row["updates"]
    ratio = fit.ratio_interval([math.log(of[8192.0] / of[4096.0]) for of in made.values()])
    assert len(made) == 6, made
    saved, least, most = (f"{100 * (1 - r):.0f}%" for r in (ratio[0], ratio[2], ratio[1]))
    for path, words in [(keep.README, f"{saved} fewer updates than 4,096 ({least} to {most})"),
                        (os.path.join(ROOT, "README.md"),
                         f"saved {saved} of the updates (six seeds; {least} to {most})")]:
        with open(path, encoding="utf-8") as f:
            assert words in " ".join(f.read().split()), (path, words)


# ---- keeping them again ----

def test_keep_again():
    """Kept once more, what is committed is the same: README, tables, figures; what an earlier run
    left goes, but for the texts at each loss. Another run changes the words."""
    out = in_folder("again")
    os.makedirs(os.path.join(kept.RESULTS, "02_knee"))
    for path in [os.path.join(kept.FIGURES, "99_old.png"),
                 os.path.join(kept.RESULTS, "02_knee", "old.csv"),
                 os.path.join(kept.RESULTS, "02_knee", "samples.json")]:
        with open(path, "w") as f:
            f.write("{}")
    text = keep_all(out, LABELS)
    with open(README, encoding="utf-8") as f:
        assert f.read() == text
    assert set(os.listdir(kept.FIGURES)) == {
        kept.figure_file(found, figure) for found in map(kept.summary, LABELS)
        for figure in found["figures"]}
    for label in LABELS:
        for name in os.listdir(os.path.join(kept.RESULTS, label)):
            if name.endswith((".csv", "fit.json")):
                assert filecmp.cmp(os.path.join(RESULTS, label, name),
                                   os.path.join(kept.RESULTS, label, name), shallow=False), name
    assert sorted(os.listdir(os.path.join(kept.RESULTS, "02_knee"))) == sorted(
        os.listdir(os.path.join(RESULTS, "02_knee")))
    change(out, "04_one_device", size="quick", why="another", command="x --out /tmp/elsewhere -y")
    text = keep_all(out, ["04_one_device"])
    assert "Quick run;" in text and "**As predicted (quick run).** Another." in text
    assert "as predicted (quick run) |" in text, "the table of endpoints"
    assert kept.summary("04_one_device")["command"] == "x -y"


def test_keep_refuses():
    """A tiny run, one without its figures or that is not there, and a path of this machine; a
    quotient, a rate and a name with a slash are words."""
    out = in_folder("refuses")
    change(out, "02_knee", size="tiny")
    change(out, "01_one_step", drawn=False)
    refused(lambda: keep.keep(out, "02_knee"), "02_knee: a --tiny run is for tests")
    refused(lambda: keep.keep(out, "01_one_step"),
            "run scripts/lab/experiments/01_one_step.py --redraw")
    refused(lambda: keep.keep(out, "09_none"), "run scripts/lab/experiments/09_none.py first")
    with open(os.path.join(out, "06_diloco", "endpoint.csv"), "a") as f:
        f.write("/home/somebody/lab/x.csv,1,2,3\n")
    refused(lambda: keep_all(out, ["06_diloco"]), "a path of this machine, /home/somebody/lab")
    path = os.path.join(TMP, "words")
    with open(path, "w", encoding="utf-8") as f:
        f.write("1/(1 + B/B_crit), 2 tokens/s, scripts/lab/x.py, ./train_gpt2/a/b, n / (⌈n/u⌉ u)")
    keep.check_paths(path)


def test_keep_shrinks():
    """In the Python that draws: fewer bytes, the same size."""
    python = testing.find_python()
    if python is None:
        raise testing.Skip("matplotlib")
    source, target = os.path.join(TMP, "large.png"), os.path.join(TMP, "small.png")
    done = subprocess.run([python, "-c", f"""import random, sys
sys.path[:0] = {testing.LAB_ROOMS!r}; sys.dont_write_bytecode = True
import keep
from PIL import Image
rng = random.Random(1)
picture = Image.new("RGB", (400, 300))
picture.putdata([tuple(min(255, i // 500 + rng.randrange(9)) for _ in range(3))
                 for i in range(120000)])
picture.save({source!r})
keep.shrink({source!r}, {target!r})
assert Image.open({target!r}).size == (400, 300)
"""], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert os.path.getsize(target) < 0.5 * os.path.getsize(source)


def test_samples():
    """One target that is reached at once: 200 characters, and the loss they were written at."""
    if not all(os.access(os.path.join(ROOT, p), os.X_OK) for p in ("train_gpt2", "prepare")):
        raise testing.Skip("train_gpt2 and prepare")
    path = os.path.join(TMP, "samples.json")
    done = subprocess.run([sys.executable, testing.lab_path("samples.py"), "--targets", "4,3",
                           "--out", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with open(path, encoding="utf-8") as f:
        made = json.load(f)["samples"]
    assert [s["target"] for s in made] == [4.0, 3.0] and made[0]["tokens"] < made[1]["tokens"]
    for s in made:
        assert s["loss"] <= s["target"] and len(s["text"]) == 200, s
        assert all(c.isprintable() or c == "\n" for c in s["text"]), s
    assert not [name for name in os.listdir(os.path.join(ROOT, "lab")) if "samples." in name]


# ---- claims ----

# {label: numbers of its tables that its sentences must hold}; a new measurement changes them.
WANTED = {
    "02_knee": ["3,012 updates of 512 tokens, and 521 of 8,192", "11.9 (11.4 to 12.4) times"],
    "02_local": ["2,760 tokens (2,568 to 2,966), 86 sequences of 32", "23 sequences of 256",
                 "8,600 tokens after 1,048,576", "708 against a B_crit of 2,760"],
    "03_small_noisy": ["1.483 (1.475 to 1.491) with 1"],
    "04_one_device": ["16.7 (15.5 to 17.8) tokens"],
    "05_time": ["9 of 9 pairs", "0.97 times", "1.54 times", "1.48 (1.46 to 1.64) times"],
    "06_bandwidth": ["25 Mbit/s one worker 12.5, two data parallel 89.6", "DiLoCo 13.1"],
    "06_diloco": ["+0.169 (+0.103 to +0.236)"],
    "07_schedules": ["-0.026 (-0.054 to +0.002) nats"],
    "08_fits": ["9.36 days on 1", "28.1 hours on 8", "3.55 hours on 64", "measured 23 hours on 8"],
    "09_curves": ["1.52 and 1.81 million tokens, 2,973 and 884 updates", "49 and 57 seconds on one",
                  "4.5 and 1.3 on 64", "1.00 times", "1.89 times"],
    "10_replayed": ["1 take 51 s, 8 take 7.9 s, 64 take 2.2 s", "below 423 Mbit/s"]}


def sentences(label):
    return " ".join(claims.measured(c) for c in claims.CLAIMS if c.label == label)


def test_claims():
    in_folder("claims")
    assert sentences("02_local") == " ".join(["Not measured yet."] * 3)
    kept.RESULTS = RESULTS
    assert set(WANTED) == {claim.label for claim in claims.CLAIMS if claim.label}
    for label, words in WANTED.items():
        for word in words:
            assert word in sentences(label), (word, sentences(label))


if __name__ == "__main__":
    TMP = tempfile.mkdtemp(prefix="lab_keep.")
    try:
        sys.exit(testing.run_tests(globals(), sys.argv[1:]))
    finally:
        shutil.rmtree(TMP)
