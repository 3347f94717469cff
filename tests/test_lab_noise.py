#!/usr/bin/env python3
"""scripts/lab/05_noise.py: what it measures, on planted numbers and on runs of a trainer that take
seconds. Numbers in their tables are computed anew here, from the runs' logs."""
import csv
import importlib.util
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True   # before the next line, so that it leaves no __pycache__
import testing

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAB = os.path.join(ROOT, "scripts", "lab")
TRAINER = os.path.join(ROOT, "train_gpt2")
BATCH, PART, T = 512, 4, 32                      # tokens, sequences, tokens


def load(name):
    spec = importlib.util.spec_from_file_location("lab_" + name, os.path.join(LAB, name + ".py"))
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def experiment(name, *more, python=None, flags=()):
    """Runs an experiment at its tiny size: (stdout, stderr)."""
    done = subprocess.run([python or PYTHON, *flags, os.path.join(LAB, name + ".py"), "--tiny",
                           "--jobs", "2", "--out", TMP, *more],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"status {done.returncode}: {done.stderr.strip()[-300:]}"
    return done.stdout, done.stderr


def table(name, which):
    with open(os.path.join(TMP, name, which + ".csv"), newline="") as f:
        return list(csv.DictReader(f))


def log(name, run, event="step"):
    with open(os.path.join(TMP, name, "runs", run + ".jsonl")) as f:
        return [r for r in map(json.loads, f) if r["event"] == event]


def near(a, b, relative=1e-7):
    return abs(float(a) - float(b)) <= relative * max(abs(float(a)), abs(float(b)))


def expect_near(a, b, what, relative=1e-7):
    assert near(a, b, relative), f"{what}: {a}, not {b}"


# ---- planted numbers ----

def test_lab_noise_planted():
    """G2 is negative at a third of the updates; the ratio of the means is B_simple all the same."""
    rng = random.Random(5)
    series = [[(512 * i, rng.gauss(2.0, 4.0), rng.gauss(3000.0, 500.0)) for i in range(1, 4001)]
              for _ in range(2)]
    assert sum(v[1] < 0 for v in series[0]) > 1000
    middle, low, high = noise.noise_between(series, 0, 512 * 4000)
    assert low < 1500.0 < high and low < middle < high, (low, middle, high)
    assert abs(middle / 1500.0 - 1.0) < 0.1 and high / low < 1.4, (low, middle, high)
    # Only what lies in the window counts.
    series[0] = [(t, g, 2 * s if t > 512 * 2000 else s) for t, g, s in series[0]]
    half, _, _ = noise.noise_between(series[:1], 512 * 2000, 512 * 4000)
    assert abs(half / 3000.0 - 1.0) < 0.15, half
    assert noise.noise_between([[(512, -1.0, 5.0)]], 0, 1000) is None
    assert noise.noise_between([[(512, 1.0, 5.0)]], 600, 1000) is None


class Planted:
    """A moment whose branch k is 0.02 log2(k/4) behind, from k=4 on."""

    def __init__(self, ks, seeds=2, noise_of_gap=0.0):
        rng = random.Random(3)
        self.moment = noise.Moment.__new__(noise.Moment)
        self.moment.plan = {"ks": ks, "seeds": list(range(seeds)), "batch": BATCH}
        self.moment.losses = {"rule": {
            k: [2.0 + max(0.0, 0.02 * math.log2(k / 4)) + rng.gauss(0.0, noise_of_gap)
                for _ in range(seeds)] for k in ks}}


def test_lab_branches_planted():
    ks = [1, 2, 4, 8, 16, 32]
    moment = Planted(ks).moment
    assert moment.gap(1) == 0.0 and abs(moment.gap(16) - 0.04) < 1e-12
    good, after, cross = moment.critical(0.03)               # log2(k/4) = 1.5
    assert (good, after) == (8, 16) and abs(cross - 4 * 2 ** 1.5) < 1e-9, (good, after, cross)
    assert moment.critical(1.0) == (32, None, 32.0)          # the largest that was tried
    moment.losses["rule"][16] = [math.inf, 2.0]              # a branch that diverged is a point
    assert moment.critical(0.03) == (8, 16, 8.0)
    moment.losses["rule"] = {k: [2.0 + (k > 1), 2.0 + (k > 1)] for k in ks}
    assert moment.critical(0.01)[:2] == (1, 2)


def test_lab_tuned_branches():
    """Where rates are tuned, the branch that keeps the batch has a tuned rate, too. Of a branch
    only the second half counts."""
    plan = {"ks": [1, 4], "seeds": [1], "moments": [1000], "length": 100}
    loss = {(1, 1.0): 2.0, (1, 0.5): 1.9, (4, 1.0): 1.95, (4, 0.5): 1.92}
    branches = {noise.branch_name(0, 1, k, times): type("Run", (), {"diverged": False, "evals": [
        {"tokens": 1050, "val_loss": 9.0}, {"tokens": 1075, "val_loss": value + 0.1},
        {"tokens": 1100, "val_loss": value - 0.1}]}) for (k, times), value in loss.items()}
    runs = {noise.main_name(1, 0): type("Run", (), {"val": 2.1})}
    moment = noise.Moment(plan, runs, branches, [[]], 0)
    assert moment.loss == 2.1 and moment.noise is None
    assert noise.lower_won([moment]) == (2, 2)
    assert abs(moment.gap(4, "rule") + 0.05) < 1e-12 and abs(moment.gap(4, "tuned") - 0.02) < 1e-12
    branches[noise.branch_name(0, 1, 4, 0.5)].diverged = True
    assert abs(noise.Moment(plan, runs, branches, [[]], 0).gap(4, "tuned") - 0.05) < 1e-12


def test_lab_tolerance():
    quiet, loud = Planted([1, 2, 4], 3).moment, Planted([1, 2, 4], 3, 0.1).moment
    assert noise.tolerance_of([quiet], quiet.plan) == (0.01, 0.0)
    tolerance, error = noise.tolerance_of([loud], loud.plan)
    gaps = [loud.gaps(k) for k in (2, 4)]
    variance = sum(sum((x - sum(g) / 3) ** 2 for x in g) / 2 for g in gaps) / 2
    expect_near(error, math.sqrt(variance / 3), "standard error")
    errors = [math.sqrt(sum((x - sum(g) / 3) ** 2 for x in g) / 6) for g in gaps]
    for found, wanted in zip(noise.gap_errors([loud], loud.plan), (min(errors), max(errors))):
        expect_near(found, wanted, "range of standard errors")
    expect_near(tolerance, 2 * error, "tolerance")


# ---- experiment 5 ----

def main_run(seed):
    """The events of the run that is measured, both parts, and where the second begins."""
    parts = [log("05_noise", f"main_s{seed}_{i}") for i in (0, 1)]
    return parts[0] + parts[1], len(parts[0])


def test_lab_05_runs():
    out, _ = experiment("05_noise")
    assert "05_noise: " in out
    steps, cut = main_run(1)
    assert [s["step"] for s in steps] == list(range(1, 129)) and cut == 64
    assert steps[-1]["tokens"] == 65536
    for s in steps:
        assert (s["noise_small_batch"], s["noise_smalls"], s["batch_tokens"]) == (128, 4, 512), s


def test_lab_05_average_goes_on():
    """The trainer's average of the raw numbers, over the part that was resumed too."""
    for seed in (1, 2):
        steps, _ = main_run(seed)
        g2 = s = 0.0
        for step in steps:
            g2 = 0.98 * g2 + 0.02 * step["noise_g2"]
            s = 0.98 * s + 0.02 * step["noise_s"]
            # nine digits a number, and G2's may cancel
            if g2 > 0.0:
                expect_near(step["noise_scale"], s / g2, f"step {step['step']}", 1e-5)
            else:
                assert step["noise_scale"] is None


def test_lab_05_noise_table():
    rows = table("05_noise", "noise")
    steps = main_run(1)[0] + main_run(2)[0]
    assert len(rows) >= 7, len(rows)
    for row in rows:
        low, high = (float(row["tokens"]) * 2 ** x for x in (-0.25, 0.25))
        own = [s for s in steps if low * (1 + 1e-7) < s["tokens"] <= high * (1 + 1e-7)]
        wanted = sum(s["noise_s"] for s in own) / sum(s["noise_g2"] for s in own)
        expect_near(row["noise_scale_tokens"], wanted, f"at {row['tokens']} tokens", 1e-6)
        expect_near(row["noise_scale_sequences"], wanted / T, "in sequences", 1e-6)
        assert float(row["low"]) <= float(row["high"])


MOMENTS, KS, RATES = (32768, 65536), (1, 4, 16), (1.0, 0.5)


def test_lab_05_branches_are_what_they_say():
    """Each goes on from the checkpoint, with its batch and the square root of it as the rate, or
    half of that, for as many tokens as the others."""
    for i, moment in enumerate(MOMENTS):
        for k in KS:
            for times in RATES:
                name = f"branch_{i}_s2_k{k}_{times:g}"
                steps = log("05_noise", name)
                assert log("05_noise", name, "resume")[0]["step"] == moment // BATCH, name
                assert steps[0]["tokens"] == moment + k * BATCH
                assert steps[-1]["tokens"] == moment + 16384
                for step in steps:
                    assert step["batch_tokens"] == k * BATCH
                    expect_near(step["lr"], 4e-3 * math.sqrt(k) * times, name)


def branch_loss(i, seed, k, times):
    """The mean of the evaluations after half of a branch."""
    evals = log("05_noise", f"branch_{i}_s{seed}_k{k}_{times:g}", "eval")
    late = [e["val_loss"] for e in evals if e["tokens"] > MOMENTS[i] + 8192]
    assert late and len(late) < len(evals) or k == 16
    return sum(late) / len(late)


def all_gaps(choice):
    """For each moment {k: how far each seed's branch is behind}, from the logs."""
    found = []
    for i in (0, 1):
        loss = {k: min(([branch_loss(i, s, k, times) for s in (1, 2)]
                        for times in (RATES if choice == "tuned" else RATES[:1])), key=sum)
                for k in KS}
        found.append({k: [a - b for a, b in zip(loss[k], loss[1])] for k in KS})
    return found


def test_lab_05_critical_batch():
    """k* anew, from the branches' logs, under both choices of rates."""
    spread = [(g[k][0] - g[k][1]) ** 2 / 2 for g in all_gaps("rule") for k in (4, 16)]
    tolerance = max(0.01, 2 * math.sqrt(sum(spread) / len(spread) / 2))
    rows = table("05_noise", "moments")
    assert [r["rates"] for r in rows] == ["rule", "tuned"] * 2
    for choice in ("rule", "tuned"):
        gaps = all_gaps(choice)
        for row, g in zip((r for r in rows if r["rates"] == choice), gaps):
            good = max(k for k in g if sum(g[k]) / 2 <= tolerance)
            assert int(row["critical_batch_tokens"]) == good * BATCH, (row, good, tolerance)
            cross = float(row["critical_batch_interpolated"])
            assert good * BATCH <= cross <= min(16, 4 * good) * BATCH, row
            expect_near(row["ratio"], cross / float(row["noise_scale_tokens"]), "ratio", 1e-6)
        for row in table("05_noise", "gaps"):
            if row["rates"] == choice:
                g = gaps[MOMENTS.index(int(row["moment_tokens"]))][int(row["k"])]
                # losses have nine digits, and their difference is far smaller
                assert abs(float(row["behind"]) - sum(g) / 2) < 1e-7, (row, g)
                assert abs(float(row["error"]) - abs(g[0] - g[1]) / 2) < 1e-7, (row, g)


def test_lab_05_summary():
    summary("05_noise", 5, ["noise", "branches"])
    with open(os.path.join(TMP, "02_knee", "fit.json"), "w") as f:
        json.dump({"fits": [{"target_nats": 2.5, "b_crit": 3210.0},
                            {"target_nats": 2.2, "b_crit": None}]}, f)
    e = type("E", (), {"args": type("A", (), {"out": TMP})})
    assert noise.knee_fits(e) == [(2.5, 3210.0)]


def summary(name, number, figures):
    with open(os.path.join(TMP, name, "summary.json")) as f:
        s = json.load(f)
    assert s["number"] == number and s["verdict"] in ("as predicted", "partly", "failed"), s
    assert len(s["said"]) >= 3 and all(line.endswith(".") for line in s["said"]), s["said"]
    if HAS_MATPLOTLIB:
        assert [f["name"] for f in s["figures"]] == figures and all(f["alt"] for f in s["figures"])
        for figure in s["figures"]:
            assert os.path.getsize(os.path.join(TMP, name, figure["png"])) > 10000
            with open(os.path.join(TMP, name, figure["svg"])) as f:
                assert "validation loss, nats a token" in f.read() or name == "05_noise"


def test_lab_noise_redraw():
    """No run is made again, nothing changes, and without matplotlib the numbers are still there."""
    for name in ("05_noise",):
        tables = [f for f in os.listdir(os.path.join(TMP, name)) if f.endswith("csv")]
        before = {f: read(name, f) for f in tables}
        runs = {f: os.path.getmtime(os.path.join(TMP, name, "runs", f))
                for f in os.listdir(os.path.join(TMP, name, "runs"))}
        _, err = experiment(name, "--redraw", python=sys.executable, flags=("-S", "-E"))
        assert "no pictures without matplotlib" in err, err
        assert before == {f: read(name, f) for f in before}
        assert runs == {f: os.path.getmtime(os.path.join(TMP, name, "runs", f)) for f in runs}


def read(name, file):
    with open(os.path.join(TMP, name, file)) as f:
        return f.read()


# ---- running them ----


if __name__ == "__main__":
    if not os.access(TRAINER, os.X_OK):
        print("skip lab_noise: needs ./train_gpt2; make builds it")
        sys.exit(0)
    PYTHON = testing.find_python() or sys.executable
    HAS_MATPLOTLIB = testing.find_python() is not None
    sys.path.insert(0, LAB)
    noise = load("05_noise")
    TMP = tempfile.mkdtemp(prefix="lab_noise.")
    os.environ["MPLCONFIGDIR"] = TMP                         # nothing in the user's home
    os.mkdir(os.path.join(TMP, "02_knee"))
    try:
        sys.exit(testing.run_tests(globals()))
    finally:
        shutil.rmtree(TMP)
