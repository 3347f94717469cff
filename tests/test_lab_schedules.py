#!/usr/bin/env python3
"""scripts/lab/experiments/07_schedules.py and what it shares with 06_diloco.py: on planted numbers, and on runs
of a trainer that take seconds. Numbers in its tables are computed anew here, from the logs."""
import csv
import importlib
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
NAME, TOKENS = "07_schedules", 65536             # of the tiny size


def experiment(*more, python=None, flags=()):
    """Runs the experiment at its tiny size: (stdout, stderr)."""
    done = subprocess.run([python or PYTHON, *flags, testing.lab_path(NAME + ".py"), "--tiny",
                           "--jobs", "2", "--out", TMP, *more],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"status {done.returncode}: {done.stderr.strip()[-300:]}"
    return done.stdout, done.stderr


def table(which):
    with open(os.path.join(TMP, NAME, which + ".csv"), newline="") as f:
        return list(csv.DictReader(f))


def log(run, event="step"):
    with open(os.path.join(TMP, NAME, "runs", run + ".jsonl")) as f:
        return [r for r in map(json.loads, f) if r["event"] == event]


def summary():
    with open(os.path.join(TMP, NAME, "summary.json")) as f:
        return json.load(f)


def near(a, b, what, tolerance=1e-6):
    a, b = float(a), float(b)
    assert abs(a - b) <= tolerance * max(1.0, abs(b)), f"{what}: {a}, not {b}"


# ---- planted numbers ----

def test_lab_student():
    """Printed tables: 95% and 97.5% quantiles."""
    for p, degrees, value in [(0.95, 1, 6.313752), (0.95, 2, 2.919986), (0.975, 4, 2.776445),
                              (0.95, 12, 1.782288), (0.975, 60, 2.000298)]:
        near(fit.student_t(p, degrees), value, f"t({p}, {degrees})")


def test_lab_joint_reaches():
    """Seven means of three draws: all intervals hold their true mean in nine rounds of ten, and
    not much more often. 1,000 rounds: the standard error is 1%."""
    rng, held = random.Random(4), 0
    for _ in range(1000):
        groups = [[rng.gauss(i, 0.3) for _ in range(3)] for i in range(7)]
        held += all(abs(sum(g) / 3 - i) <= reach
                    for i, (g, reach) in enumerate(zip(groups, fit.joint_reaches(groups))))
    assert 870 <= held <= 950, held
    reaches = fit.joint_reaches([[1.0, 2.0], [math.inf, 1.0], [3.0, 4.0]])
    near(reaches[0], fit.student_t(0.975, 2) * math.sqrt(0.5 / 2), "two groups of two")
    assert math.isnan(reaches[1]) and reaches[0] == reaches[2], reaches
    assert math.isnan(fit.joint_reaches([[1.0], [2.0]])[0])


def test_lab_frontier():
    """A planted cubic in log updates is found between its points; outside there is no frontier."""
    def loss(updates):
        x = math.log(updates / 1000)
        return 2.0 - 0.3 * x + 0.1 * x * x + 0.02 * x ** 3
    points = [(u, loss(u)) for u in (250, 500, 1000, 2000)]
    for updates in (250, 300, 777, 2000):
        near(schedules.frontier_at(updates, points), loss(updates), f"{updates} updates", 1e-9)
    assert math.isnan(schedules.frontier_at(240, points))
    assert math.isnan(schedules.frontier_at(2100, points))


class Ran:
    """A run that is not run."""

    def __init__(self, val, updates=100):
        self.val, self.end = val, {"step": updates}


def tuned(losses, plan, middle=None):
    """lab.Tuned on planted losses; what it asks for is answered from losses(variant, k, seed)."""
    method = lab.Tuned(None, middle or {"one": 0}, plan)
    while wanted := method.missing():
        for at in wanted:
            method.runs[at] = Ran(losses(*at))
    return method


def test_lab_tuned():
    """A grid grows until its best rate lies inside, around the best variant only, only as far as
    it may. Seed 1 is lucky at k = 3, which does not show in what is reported."""
    def losses(variant, k, seed):
        return (2.0 if variant == "one" else 2.3) + 0.1 * abs(k - 3) - (0.5 if seed == 1 else 0.0)
    plan = {"first": 1, "seeds": [2, 3], "grid": [-1, 0, 1], "extend": (-2, 6)}
    method = tuned(losses, plan, {"one": 0, "other": 0})
    assert method.best() == ("one", 3) and not method.at_edge()
    assert {k for v, k in method.grid if v == "one"} == {-1, 0, 1, 2, 3, 4}
    assert {k for v, k in method.grid if v == "other"} == {-1, 0, 1}
    assert method.losses() == [2.0, 2.0] and len(method.runs) == 11
    plan["extend"] = (-2, 2)
    assert tuned(losses, plan).best() == ("one", 2) and tuned(losses, plan).at_edge()
    plan["extend"] = None
    assert len(tuned(losses, plan).runs) == 5
    diverged = tuned(lambda v, k, seed: math.inf if k > 0 else 2.0, plan)
    assert diverged.best() == ("one", -1)
    plan["also"] = [4]                           # a second seed outvotes the first one's luck
    lucky = tuned(lambda v, k, seed: 1.5 if (k, seed) == (1, 1) else 2.0 + abs(k), plan)
    assert lucky.best() == ("one", 0) and len(lucky.runs) == 8, lucky.runs.keys()
    # Of two finalists alone: the second seed runs with these, and the grid grows around both.
    plan.update(again=2, extend=(-2, 6))
    first = {("one", 1): 1.5, ("other", 5): 1.9}
    final = tuned(lambda v, k, seed: first.get((v, k), 2.5) if seed == 1 else 2.0 + (v == "one"),
                  plan, {"one": 0, "other": 4})
    assert final.best() == ("other", 5) and not final.at_edge()
    assert final.grid == {*(("one", k) for k in (-1, 0, 1, 2)),
                          *(("other", k) for k in (3, 4, 5, 6))}
    assert {at[:2] for at in final.runs if at[2] == 4} == set(first)


def planted_gaps(shifts, eta=0.5, scatter=0.001):
    """Schedules whose losses lie `shift` from a frontier; every seed moves all losses alike."""
    rng = random.Random(1)
    seeds = [rng.gauss(0.0, 0.1) for _ in range(3)]
    plan = {"first": 1, "seeds": [2, 3, 4], "grid": [0], "extend": None}

    def course(updates, shift, name, noise):
        made = schedules.Course(None, plan, schedules.Schedule(name, name, None, {"none": 0}, eta))
        loss = 2.0 - 0.2 * math.log(updates / 1000) + shift
        made.runs = {("none", 0, s): Ran(loss + (seeds[s - 2] if s > 1 else 0.0)
                                         + rng.gauss(0.0, noise), updates) for s in (1, 2, 3, 4)}
        return made
    frontier = [course(u, 0.0, str(u), 0.0) for u in (2000, 1000, 500, 250)]
    gaps = [schedules.Gap(course(700 + i, shift, f"g{i}", scatter), frontier)
            for i, shift in enumerate(shifts)]
    for gap, half in zip(gaps, fit.joint_reaches([g.seeds for g in gaps])):
        gap.half = half
    return gaps


def test_lab_gaps():
    """Differences are taken seed by seed: seeds that differ by 0.1 nats hide no shift of 0.02."""
    gaps = planted_gaps([-0.02, 0.0, 0.02])
    for gap, shift in zip(gaps, (-0.02, 0.0, 0.02)):
        near(gap.mean, shift, "a planted shift", 2e-3)
    assert [g.side for g in gaps] == [-1, 0, 1]
    for shifts, word in [([-0.02, 0.02], "as predicted"), ([0.02, 0.03], "refuted"),
                         ([0.02, 0.0], "undecided")]:
        found, why, title = schedules.judge(*control_and(planted_gaps([0.0, *shifts])))
        assert found == word, (shifts, found, why)
        lowest = planted_gaps([0.0, *shifts])[1 if shifts[0] < 0 or shifts[1] else 2]
        assert f"{lowest.mean:+.4f}" in title, title
    assert schedules.judge(*control_and(planted_gaps([0.0, math.nan])))[0] == "undecided"
    found, why, _ = schedules.judge(*control_and(planted_gaps([0.05, -0.02])))
    assert found == "undecided" and "control" in why, (found, why)


def control_and(gaps):
    return gaps[0], gaps[1:]


# ---- runs ----

def test_lab_07_runs():
    out, _ = experiment()
    assert f"{NAME}: " in out
    rows = table("runs")
    assert len({r["schedule"] for r in rows}) == 9, {r["schedule"] for r in rows}
    assert len(rows) == 5 * (2 + 2) + 4 * (4 + 2), len(rows)
    for r in rows:
        assert int(r["tokens"]) >= TOKENS and 2.0 < float(r["val_loss"]) < 5.0, r


def planned(rule, unit):
    """The batches of a run by a rule, rounded to whole units."""
    tokens, batches = 0, []
    while tokens < TOKENS:
        batches.append(max(unit, int(rule(tokens) / unit + 0.5) * unit))
        tokens += batches[-1]
    return batches


def steps_of(schedule, rule, rate="0.004"):
    return log(f"{schedule}_{rule}_lr{rate}_s1")


def test_lab_07_planned_schedules():
    rules = {"constant512": lambda t: 512, "constant1536": lambda t: 1536,
             "linear": lambda t: 512 + (4096 - 512) * t / TOKENS,
             "stages": lambda t: 512 * 2 ** (t // (TOKENS // 4))}
    for name, rule in rules.items():
        found = [s["batch_tokens"] for s in steps_of(name, "none")]
        assert found == planned(rule, 512), (name, found)


def test_lab_07_norm_test():
    """Each batch follows from what the log says of the update before: the noise scale over eta^2 in
    whole micro-batches, 50 updates after the warm-up or the last raise, at most doubled, at most
    4096."""
    unit, grew = 4 * 32, 0
    for eta in ("0.35", "0.7"):
        steps = steps_of(f"adaptive{eta}", "none")
        assert steps[0]["batch_tokens"] == 512
        waited = 0
        for now, after in zip(steps, steps[1:]):
            before = now["batch_tokens"]
            waited = 0 if now["tokens"] < TOKENS // 40 else waited + 1
            wanted = min(2 * before, (now["noise_scale"] or math.inf) / float(eta) ** 2)
            batch = min(4096, max(before, math.ceil(wanted / unit) * unit))
            batch = before if waited < 50 else batch
            assert after["batch_tokens"] == batch, (eta, now, after["batch_tokens"], batch)
            waited = 0 if batch > before else waited
            grew += batch > before
    assert grew >= 1, grew


def test_lab_07_rates_and_beta2():
    """The rate stays or grows with the square root of the batch, and is always given at 512 tokens;
    beta2 halves in as many tokens at every batch."""
    for name in ("constant2048", "linear", "stages", "adaptive0.35"):
        for rule, power in [("none", 0.0), ("sqrt", 0.5)]:
            if name.startswith("constant") and rule == "sqrt":
                continue
            middle = [s for s in steps_of(name, rule) if TOKENS // 40 < s["tokens"] < 0.79 * TOKENS]
            assert len(middle) >= 3, name
            for s in middle:
                near(s["lr"], 0.004 * (s["batch_tokens"] / 512) ** power, f"{name}, {rule}")
    for name, batch in [("constant512", 512), ("constant4096", 4096), ("linear", 4096),
                        ("stages", 512), ("adaptive0.7", 512)]:
        start = log(f"{name}_none_lr0.004_s1", "start")[0]
        near(start["beta2"], 0.95 ** (batch / 4096), f"beta2 of {name}")
        assert start["batch_beta2"] == ("fixed" if name.startswith("constant") else "halflife")


def test_lab_07_summary():
    """The best rate by seed 1 alone; losses and updates of the others; gaps from these."""
    rows, runs = {r["schedule"]: r for r in table("summary")}, table("runs")
    best = {}
    for name, row in rows.items():
        tried = {(r["batch_lr"], r["lr_at_first_batch"]): float(r["val_loss"]) for r in runs
                 if r["schedule"] == name and r["seed"] == "1"}
        at = min(tried, key=tried.get)
        assert at == (row["batch_lr"], row["lr_at_first_batch"]), (at, row)
        best[name] = [(int(r["updates"]), float(r["val_loss"])) for r in runs
                      if r["schedule"] == name and r["seed"] != "1"]
        assert len(best[name]) == 2
        near(row["val_loss"], sum(loss for _, loss in best[name]) / 2, name)
    for name in ("linear", "constant1536", "adaptive0.7"):
        gaps = [loss - schedules.frontier_at(updates, [best[f"constant{b}"][i]
                                                       for b in (512, 1024, 2048, 4096)])
                for i, (updates, loss) in enumerate(best[name])]
        near(rows[name]["gap"], sum(gaps) / 2, f"gap of {name}")
    widths = {round(float(r["high"]) - float(r["low"]), 6) for r in rows.values() if r["gap"]}
    assert len(widths) == 1, widths


def test_lab_07_batches_at_the_end():
    for row in table("summary"):
        ends = []
        for seed in (2, 3):
            name = f"{row['schedule']}_{row['batch_lr']}_lr{float(row['lr_at_first_batch']):g}"
            steps = log(f"{name}_s{seed}")
            ends.append([next((s["batch_tokens"] for s in steps if s["tokens"] >= share * TOKENS),
                              steps[-1]["batch_tokens"]) for share in (0.8, 1.0)])
        for i, field in enumerate(["batch_before_decay", "batch_at_end"]):
            near(row[field], (ends[0][i] + ends[1][i]) / 2, f"{field} of {row['schedule']}")


def test_lab_07_redraw():
    """No run is made again, nothing changes, and without matplotlib the numbers are still there."""
    said = summary()
    assert said["number"] == 7 and said["prediction"] and "frontier" in said["why"]
    assert [f["name"] for f in said["figures"]] == ["schedules"] or not said["drawn"]
    files = [os.path.join(TMP, NAME, f) for f in os.listdir(os.path.join(TMP, NAME))
             if f.endswith("csv")]
    before = {f: open(f).read() for f in files}
    runs = os.path.join(TMP, NAME, "runs")
    times = {f: os.path.getmtime(os.path.join(runs, f)) for f in os.listdir(runs)}
    _, err = experiment("--redraw", python=sys.executable, flags=("-S", "-E"))
    assert "no pictures without matplotlib" in err, err
    assert before == {f: open(f).read() for f in files}
    assert times == {f: os.path.getmtime(os.path.join(runs, f)) for f in os.listdir(runs)}


# ---- running them ----

if __name__ == "__main__":
    if not os.access(TRAINER, os.X_OK):
        print("skip lab_schedules: needs ./train_gpt2; make builds it")
        sys.exit(0)
    PYTHON = testing.find_python() or sys.executable
    sys.path[:0] = testing.LAB_ROOMS
    fit, lab, schedules = map(importlib.import_module, ["fit", "lab", NAME])
    TMP = tempfile.mkdtemp(prefix="lab_schedules.")
    os.environ["MPLCONFIGDIR"] = TMP                         # nothing in the user's home
    try:
        sys.exit(testing.run_tests(globals(), sys.argv[1:]))
    finally:
        shutil.rmtree(TMP)
