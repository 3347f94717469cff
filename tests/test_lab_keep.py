#!/usr/bin/env python3
"""How results are kept: what keep.py copies and refuses; that the README quotes what is kept, and
that the claims of the page read it."""
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import planted
import testing

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAB = os.path.join(ROOT, "scripts", "lab")
sys.path[:0] = testing.LAB_ROOMS
import claims
import fit
import keep
import kept
import report

# As the laboratory's README has them.
README = """# The laboratory

<!-- endpoints -->
<!-- end -->

## 2. The knee

<!-- seen 02_knee -->
**What was seen.** Nothing yet.
<!-- end -->

**How it works.** By fits.

## 4. One device

<!-- seen 04_one_device -->
**What was seen.** No quiet run is committed yet.
<!-- end -->

**How it works.** By lines.

## 6. Loss against real seconds over slow links

<!-- seen 06_bandwidth -->
<!-- end -->

<!-- seen 06_diloco -->
<!-- end -->
"""


def in_folder(name, sizes=()):
    """Planted results in OUT; results, figures and README to keep them in; returns OUT."""
    folder = os.path.join(TMP, name)
    out = os.path.join(folder, "lab")
    planted.plant(out, sizes)
    kept.RESULTS, kept.FIGURES = os.path.join(folder, "results"), os.path.join(folder, "figures")
    keep.README = os.path.join(folder, "README.md")
    os.makedirs(kept.FIGURES)
    with open(keep.README, "w", encoding="utf-8") as f:
        f.write(README)
    return out


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
    for label, _ in report.experiments():
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


# ---- keeping planted results ----

def test_keep_quotes():
    """The README has each summary and its endpoint, the figures are those that it shows, and a
    second time changes nothing."""
    labels = ["02_knee", "04_one_device", "06_bandwidth", "06_diloco"]
    out = in_folder("quotes", {"04_one_device": "quick"})
    planted.png(os.path.join(kept.FIGURES, "99_old.png"))
    text = keep_all(out, labels)
    for label in labels:
        assert keep.block(label, kept.summary(label)) in text, label
        assert f"- {label} said B.\n" in text
    assert "Full run; 2 processors" in text and "Quick run;" in text
    assert "| 13.1 (10.1 to 16) | as predicted (quick run) |" in text, text
    assert "512 tokens a replica: 0.2 (0.15 to 0.25); 2,048" in text
    assert "Nothing yet" not in text and "**How it works.** By lines." in text
    assert sorted(os.listdir(kept.FIGURES)) == [
        "02_knee.png", "04_one_device.png", "06_diloco.png", "06_race.png"]
    assert "/tmp" not in kept.summary("02_knee")["command"]
    assert keep_all(out, ["02_knee", "04_one_device"]) == text, "a second time changes words"


def test_keep_replaces():
    """A later run leaves nothing of the earlier one but the texts at each loss."""
    out = in_folder("replaces")
    folder = os.path.join(kept.RESULTS, "02_knee")
    os.makedirs(folder)
    for name in ("samples.json", "old.csv", "README.md"):
        with open(os.path.join(folder, name), "w") as f:
            f.write("{}")
    keep_all(out, ["02_knee"])
    assert sorted(os.listdir(folder)) == ["fit.csv", "points.csv", "samples.json", "summary.json"]
    keep_all(out, ["04_one_device"])
    assert kept.read("04_one_device", "fit.json") == planted.FITS["04_one_device"]


def test_keep_refuses():
    """A tiny run, one without its figures or that is not there, and a path of this machine; a
    quotient, a rate and a name with a slash are words."""
    out = in_folder("refuses", {"02_knee": "tiny", "01_one_step": "not drawn"})
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
keep.MOST_BYTES = 100
try:
    keep.shrink({source!r}, {target!r})
except SystemExit as why:
    assert "at most 100 are kept" in str(why), why
else:
    raise AssertionError("a large picture is kept")
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

# {label: numbers of its tables that its sentences must hold}
WANTED = {
    "01_one_step": ["0.89 times"],
    "02_knee": ["3,012 updates of 512 tokens, and 521 of 8,192", "11.5 (11.1 to 11.9) times"],
    "02_local": ["2,800 tokens (2,520 to 3,080), 88 sequences of 32; 3,000",
                 "12 sequences of 256", "7,800 tokens after 1,048,576", "753 against a B_crit"],
    "03_small_noisy": ["1.877 (1.867 to 1.887) with 1, ", "1.900", "+0.002 (-0.004 to +0.008)"],
    "04_one_device": ["13.1 (10.1 to 16) tokens"],
    "05_time": ["3 of 3 pairs", "0.94 times", "1.71", "1.82 times", "1.72 (1.66 to 1.8) times"],
    "06_bandwidth": ["25 Mbit/s one worker 9.3;", "1,000 Mbit/s one worker 9.3, two data parallel "
                     "5.5"],
    "06_diloco": ["+0.200 (+0.150 to +0.250)"],
    "07_schedules": ["-0.037 (-0.050 to -0.020) nats"],
    "08_fits": ["9.36 days on 1", "28.1 hours on 8", "3.51 hours on 64", "4,917", "28,080",
                "2.22 and 1.28", "302 here and 6,212", "819 FLOPs", "4 x 2 x 8 on 64 (163 days)"],
    "09_curves": ["1.54 and 1.75 million tokens, 3,012 and 855 updates", "90 and 26 seconds on one",
                  "12 and 3.4 on 64", "1.00 times", "1.90 times", "1.62 with 1,024"],
    "10_replayed": ["1 take 94 s, 8 take 13 s, 64 take 2.4 s", "below 7 Mbit/s"]}


def sentences(label):
    return " ".join(claims.measured(c) for c in claims.CLAIMS if c.label == label)


def test_claims():
    out = in_folder("claims", {"07_schedules": "quick"})
    assert set(WANTED) == {claim.label for claim in claims.CLAIMS if claim.label}
    assert sentences("02_local") == " ".join(["Not measured yet."] * 3)
    keep.shrink = shutil.copy
    for label in WANTED:
        keep.copy(out, label, keep.finished(out, label))
    for label, words in WANTED.items():
        for word in words:
            assert word in sentences(label), (word, sentences(label))
        assert ("rests on a quick run" in sentences(label)) == (label == "07_schedules"), label


if __name__ == "__main__":
    TMP = tempfile.mkdtemp(prefix="lab_keep.")
    try:
        sys.exit(testing.run_tests(globals(), sys.argv[1:]))
    finally:
        shutil.rmtree(TMP)
