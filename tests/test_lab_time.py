#!/usr/bin/env python3
"""scripts/lab's experiment 5: its closed forms against brute force, its rules on planted times, and
the experiment at --tiny, read back from its tables."""
import csv
import importlib.util
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True   # before the next line, so that it leaves no __pycache__
import testing

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAB = os.path.join(ROOT, "scripts", "lab")
sys.path[:0] = testing.LAB_ROOMS
import fit

# B_crit, b_half, T: the end before n_2, and far behind it.
WORLDS = [(1136.0, 6.5, 32), (8000.0, 60.0, 32), (2e6, 4000.0, 1024), (541.0, 300.0, 8)]


load = testing.load


def close(a, b, tolerance=1e-6):
    return abs(a - b) <= tolerance * max(abs(a), abs(b))


# ---- closed forms ----

def brute_seconds(workers, b_crit, b_half, sequence):
    """The least (1 + B_crit/B)(b_half + B/n) among 20,001 batches, at least a sequence a worker."""
    low, high = max(1e-3, workers * sequence), 1e3 * (b_crit + workers * (b_half + sequence))
    grid = (low * (high / low) ** (i / 20000) for i in range(20001))
    return min(((1 + b_crit / b) * (b_half + b / workers), b) for b in grid)


def test_best_batch():
    for b_crit, b_half, sequence in WORLDS:
        for workers in (1, 2, 3.5, 17, 400):
            for least in (0, sequence):
                seconds, batch = brute_seconds(workers, b_crit, b_half, least)
                found = fit.best_batch(workers, b_crit, b_half, least)
                assert close(found, batch, 2e-3), (workers, found, batch)
                hours = fit.device_tokens(workers, b_crit, b_half, least) * b_crit
                assert close(hours, workers * seconds, 1e-5), (workers, hours, seconds)
        assert close(fit.device_tokens(9, b_crit, b_half), (1 + (9 * b_half / b_crit) ** 0.5) ** 2)


def test_doubling():
    """Device-hours double at n_2, in the least of all batches; with T, at most that many, and the
    best batch has one sequence a worker from end_workers on."""
    for b_crit, b_half, sequence in WORLDS:
        for least in (0, sequence):
            n = fit.doubling_workers(b_crit, b_half, least)
            hours = [w * brute_seconds(w, b_crit, b_half, least)[0] for w in (1, n)]
            assert close(hours[1], 2 * hours[0], 1e-4), (n, hours)
        paper = b_crit / b_half * (2 ** 0.5 * (1 + (b_half / b_crit) ** 0.5) - 1) ** 2
        assert close(fit.doubling_workers(b_crit, b_half), paper)
        end = fit.end_workers(b_crit, b_half, sequence)
        assert close(fit.best_batch(end, b_crit, b_half), end * sequence)
        assert fit.best_batch(2 * end, b_crit, b_half, sequence) == 2 * end * sequence
    assert math.isfinite(fit.doubling_workers(1000.0, 0.0, 32)), "a device without t_0"


def test_median_interval():
    """As wide as it must be, and no wider: 5 values take all, 9 leave out one on each side."""
    assert all(map(math.isnan, fit.median_interval([1.0, 2.0, 3.0, 4.0])))
    assert fit.median_interval([5, 3, 1, 2, 4]) == (1, 5)
    assert fit.median_interval(range(9)) == (1, 7)
    rng = random.Random(3)
    for n in (5, 6, 9, 13):
        held = 0
        for _ in range(4000):
            low, high = fit.median_interval([rng.expovariate(1.0) for _ in range(n)])
            held += low <= math.log(2.0) <= high
        assert 0.895 <= held / 4000 <= 0.98, (n, held / 4000)


# ---- rules, on planted times ----

SCATTER = [1.0, 0.99, 1.02, 1.01, 0.98]


def planted(model, batches=(1024, 1024), update=1.0, to_loss=1.0, updates=1.0, scatter=SCATTER,
            pair=1.05, load=0.3):
    """A Case whose two ranks take `update` times the model's seconds of an update and `to_loss`
    times its seconds to the loss. pair: of the half batch, over solo; one number or one a block."""
    device = fit.Device(0.1e-3, 4.7e-6)
    world = model.World(model.MODELS["full"][0], 119000, model.T, device,
                        {"alpha": 30e-6, "beta": 1e-9},
                        model.Law(250.0, 4000.0, 3300.0, 4800.0, True, "planted"))
    s_ratio = (1 + 4000.0 / batches[1]) / (1 + 4000.0 / batches[0])
    case = model.Case(None, world, batches, shrink=s_ratio)
    pairs = pair if isinstance(pair, list) else [pair] * len(scatter)
    for turn, (times, slow) in enumerate(zip(scatter, pairs)):
        one, solo = (device.fixed + device.per_token * b for b in (batches[0], batches[1] / 2))
        modelled = solo * slow + 0.5e-3
        count = 500.0
        case.blocks.append(model.Block(
            turn, (one, modelled * update * times), solo, solo * slow, 0.5e-3,
            (one * count, count * s_ratio * modelled * to_loss * times),
            (count, count * s_ratio * updates), load))
    return case


def test_verdicts():
    """A ratio inside of its band, outside, or with an interval that reaches over its end."""
    model = load("05_time")
    for ratios, word in [([1.05, 1.0, 0.95, 1.02, 0.97], "as predicted"),
                         ([1.2, 1.15, 1.3, 1.12, 1.18], "refuted"), ([0.8] * 5, "refuted"),
                         ([1.05, 1.0, 0.95, 1.02, 1.2], "undecided"), ([1.0] * 4, "undecided"),
                         ([2.0] * 4, "undecided"), ([], "undecided")]:
        assert model.verdict_of(ratios, 0.10) == word, (ratios, word)
    for more, word in [({}, "as predicted"), ({"update": 1.07, "to_loss": 1.12}, "as predicted"),
                       ({"update": 1.3, "to_loss": 1.3}, "refuted"),
                       ({"to_loss": 1.3}, "refuted"), ({"to_loss": 0.7}, "refuted"),
                       ({"updates": 1.05}, "refuted"), ({"to_loss": 1.3, "load": 2.4}, "refuted"),
                       ({"to_loss": 1.3, "load": 6.0}, "undecided"),
                       ({"scatter": [1.0, 0.8, 1.3, 1.1, 0.9]}, "undecided"),
                       ({"scatter": SCATTER[:4]}, "undecided")]:
        cases = [planted(model, load=more.get("load", 0.3)), planted(model, **more)]
        found, why = model.judge(cases, "")
        assert found == word, (more, found, why)
        assert ("blocks discarded" in why) == (word == "undecided"), why
    assert model.judge([], "needs MPI")[0] == "skipped"
    unequal = planted(model, (128, 512), update=1.3, to_loss=1.3)
    assert model.judge([planted(model), unequal], "")[0] == "as predicted", "equal batches decide"


def test_slow_blocks():
    """A block whose pair takes more than 1.25 times its solo time is discarded and counted; the
    planted ratio comes from the others."""
    model = load("05_time")
    times = [1.0, 1.01, 5.0, 0.99, 1.0, 1.02]
    case = planted(model, scatter=times, pair=[1.05, 1.2, 1.26, 1.0, 0.9, 1.1])
    assert [b.turn for b in case.kept()] == [0, 1, 3, 4, 5] and case.discarded() == 1
    assert close(sorted(case.ratios()["update"])[-1], 1.02), case.ratios()
    assert model.judge([case], "")[0] == "as predicted"
    all_slow = planted(model, pair=1.3)
    word, why = model.judge([all_slow], "")
    assert word == "undecided" and "5 of 5 blocks discarded" in why, why
    assert "no block was kept" in why, why


def test_modelled():
    """The model's speed-up: updates that the law predicts, times a pair and an all-reduce."""
    model = load("05_time")
    case = planted(model, (128, 512), pair=1.1)
    one, two = (0.1e-3 + 4.7e-6 * b for b in (128, 256))
    law = (1 + 4000.0 / 128) / (1 + 4000.0 / 512)
    wanted = law * one / (1.1 * two + 0.5e-3)
    assert all(close(modelled, wanted) for _, modelled in case.speedups()), case.speedups()
    assert close(statistics.median(m for m, _ in case.speedups()), wanted)


def test_many_workers():
    """The free link gives the closed forms, a link costs speed, and device-hours double where
    doubling() says."""
    model = load("05_time")
    import many_workers as many
    world = planted(model).world
    b_half = 0.1e-3 / 4.7e-6
    for free in (True, False):
        n = many.doubling(world, free)
        assert close(n / many.speedup(world, n, free), 2.0, 1e-6), (free, n)
    assert close(many.doubling(world, True), fit.doubling_workers(4000.0, b_half, 32))
    assert many.speedup(world, 16, False) < many.speedup(world, 16, True) < 16
    c = 5 * 2 * 15 * 15e-6 + 2 * 15 / 16 * 4 * 119000 * 1e-9    # 5 rings of 16: 2 layers, and 3
    assert close(many.fixed_seconds(world, 16), 0.1e-3 + c)
    batch = many.best_batch(world, 2)
    exact = fit.best_batch(2, 4000.0, many.half(world, 2), 32)
    assert batch in (64 * 2 ** i for i in range(20)) and 2 ** -0.5 < batch / exact < 2 ** 0.5


def test_figures():
    """Planted cases: what each figure must name."""
    if not MATPLOTLIB or PYTHON != sys.executable:
        return "matplotlib"
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    model = load("05_time")
    cases = [planted(model), planted(model, (4096, 4096), 1.03, 1.05),
             planted(model, (128, 512), 1.1, 1.15)]
    for name, figure, words in [
            ("seconds", model.draw_seconds(plt, cases, "title"),
             ["1 rank", "2 ranks, model", "speed-up", "119k, best: 128 and 512"]),
            ("workers", model.draw_workers(plt, [c.world for c in cases[:2]], cases, "title"),
             ["free link", "device-hours double", "sequence a worker", "measured"])]:
        path = os.path.join(os.environ.get("LAB_FIGURES", TMP), f"{name}.svg")
        figure.savefig(path.replace(".svg", ".png"), dpi=100)
        figure.savefig(path)
        with open(path, encoding="utf-8") as f:
            drawn = f.read()
        for word in words:
            assert f"<!-- {word}" in drawn or word in drawn, (name, word)
    return None


# ---- what is run ----

LAW = "size,reading,target_nats,s_min,b_crit,b_crit_low,b_crit_high,e_min,rms,refused\n"


class Here:
    """Stands for an Experiment where only --out is read."""
    def __init__(self, out):
        self.args = self
        self.out = out


def law_file(out, *rows):
    os.makedirs(os.path.join(out, "02_knee"), exist_ok=True)
    with open(os.path.join(out, "02_knee", "fit.csv"), "w") as f:
        f.write(LAW + "".join(row + "\n" for row in rows))


def test_law():
    """Own size before another's, --out before what is committed; no refused fit, no other loss."""
    model, out = load("05_time"), os.path.join(TMP, "law")
    model.COMMITTED = os.path.join(TMP, "committed.csv")
    wanted = model.MODELS["full"][0]
    assert model.read_law(Here(out), wanted) is None
    with open(model.COMMITTED, "w") as f:
        f.write(LAW + "119k,weights,1.8,100,5000,4000,6000,5e5,0.03,\n")
    law = model.read_law(Here(out), wanted)
    assert law.b_crit == 5000 and law.own and "committed.csv" in law.source, law
    law_file(out, "35k,weights,1.8,90,3000,2500,3500,3e5,0.03,", "119k,averaged,1.8,1,1,1,1,1,0,",
             "119k,weights,1.8,100,4000,3000,5000,4e5,0.03,", "119k,weights,2.5,1,7,6,8,7,0.1,")
    law = model.read_law(Here(out), wanted)
    assert (law.s_min, law.b_crit, law.low, law.high, law.own) == (100, 4000, 3000, 5000, True)
    law_file(out, "119k,weights,1.8,,,,,,,the best rate",
             "35k,weights,1.8,90,3000,2500,3500,3e5,0.03,")
    law = model.read_law(Here(out), wanted)
    assert law.b_crit == 3000 and not law.own and "35k" in law.source, law
    law_file(out, "119k,weights,1.8,,,,,,,the best rate")
    assert model.read_law(Here(out), wanted) is None


def test_pair():
    """Two at a time, each with its own log; a failure of either is the status."""
    path = os.path.join(TMP, "pair.jsonl")

    def pair(script):
        return subprocess.run([testing.lab_path("pair.sh"), "sh", "-c", script, "sh", path],
                              stderr=subprocess.DEVNULL, check=False).returncode
    both = f'for log; do :; done; > "$log"; sleep 1; test -e {path} && test -e {path}.second'
    assert pair(both) == 0, "one had not started when the other ended"
    assert pair('case "$*" in *second) exit 3 ;; esac') == 3
    assert pair('case "$*" in *second) ;; *) exit 4 ;; esac') == 4


def test_bench_comm():
    """The all-reduce of the size that is given, and no other argument."""
    model = load("05_time")
    if model.missing():
        return "MPI, and make MPI=1 build/bench_comm"
    def bench(*arguments):
        return subprocess.run([model.LAUNCH, "-n", "2", model.BENCH, *arguments], cwd=ROOT,
                              capture_output=True, text=True, check=False)
    found = json.loads(bench("1000").stdout.splitlines()[-1])
    assert found["alpha"] > 0 and found["beta"] > 0, found
    for wrong in ("64", "x", "-5", "999999999999"):
        done = bench(wrong)
        assert done.returncode and "expected a number of floats" in done.stderr, done.stderr
    return None


def experiment(out, **env):
    """Runs the experiment tiny; (its directory, its summary, what it printed)."""
    done = subprocess.run([PYTHON, testing.lab_path("05_time.py"), "--tiny", "--out", out],
                          capture_output=True, text=True, check=False, env=dict(os.environ, **env))
    assert done.returncode == 0, done.stderr[-300:]
    folder = os.path.join(out, "05_time")
    with open(os.path.join(folder, "summary.json"), encoding="utf-8") as f:
        return folder, json.load(f), done.stdout


def log(folder, name, event):
    with open(os.path.join(folder, "runs", name), encoding="utf-8") as f:
        return [r for r in map(json.loads, f) if r["event"] == event]


def command(folder, name):
    with open(os.path.join(folder, "runs", name + ".json"), encoding="utf-8") as f:
        return json.load(f)["command"]


def test_tiny():
    """The table of blocks is what the logs hold; one rank and two have one seed, batch and rate."""
    model = load("05_time")
    if model.missing():
        return "MPI, and make MPI=1 build/train_gpt2-mpi build/bench_comm"
    law_file(OUT, "35k,weights,4,20,3000,2500,3600,6e4,0.05,")
    folder, summary, printed = experiment(OUT)
    with open(os.path.join(folder, "blocks.csv"), newline="") as f:
        rows = list(csv.DictReader(f))
    assert len(rows) == 4 and {r["turn"] for r in rows} == {"0", "1"}, rows
    for row in rows:
        check_block(folder, row)
    with open(os.path.join(folder, "fit.json")) as f:
        record = json.load(f)
    assert record["models"][0]["seq_len"] == 32 and record["models"][0]["alpha"] > 0, record
    kept = [r for r in rows if r["kept"] == "1"]
    assert len(record["ratios"]) == len({r["batch_two"] for r in kept})
    assert summary["verdict"] in ("undecided", "refuted"), summary["verdict"]
    assert "B_crit 3,000 tokens" in printed and "blocks discarded" in printed, printed
    figures = {figure["name"] for figure in summary["figures"]}
    assert figures >= ({"workers"} if MATPLOTLIB else set()), figures
    return None


def check_block(folder, row):
    batches = [int(row["batch_one"]), int(row["batch_two"])]
    name = f"35k_b{batches[0]}_b{batches[1]}_t{row['turn']}_"
    found = {}
    for kind, file in [("one", "one.jsonl"), ("two", "two.jsonl"), ("solo", "solo.jsonl"),
                       ("pair", "pair.jsonl"), ("second", "pair.jsonl.second")]:
        steps = [r["seconds"] for r in log(folder, name + file, "step")]
        found[kind] = statistics.median(steps[3:])
        ranks, batch = {"one": (1, batches[0]), "two": (2, batches[1])}.get(
            kind, (1, batches[1] // 2))
        start = log(folder, name + file, "start")[0]
        assert (start["ranks"], start["batch_tokens"]) == (ranks, batch), (kind, start)
    for kind in ("one", "two", "solo"):
        assert close(float(row[f"seconds_{kind}"]), found[kind]), (kind, row)
    assert close(float(row["seconds_pair"]), max(found["pair"], found["second"])), row
    assert (row["kept"] == "1") == (float(row["seconds_pair"])
                                    <= 1.25 * float(row["seconds_solo"])), row
    one, two = (command(folder, name + kind) for kind in ("one", "two"))
    same = ["--seed", "--target-loss"]
    same += ["--batch-tokens", "--lr"] if batches[0] == batches[1] else []
    assert all(one[one.index(f) + 1] == two[two.index(f) + 1] for f in same), (one, two)
    if batches[0] == batches[1]:
        assert close(float(row["updates_one"]), float(row["updates_two"]), 1e-2), row
    for kind in ("one", "two"):
        spent = [r["seconds"] for r in log(folder, f"{name}{kind}.jsonl", "step")]
        updates = float(row[f"updates_{kind}"])
        low, high = (sum(spent[:n]) for n in (math.floor(updates), math.ceil(updates)))
        assert low * (1 - 1e-6) <= float(row[f"to_loss_{kind}"]) <= high * (1 + 1e-6), (kind, row)
        crossed = [r["val_loss"] for r in log(folder, f"{name}{kind}.jsonl", "eval")]
        assert crossed[-1] <= 4.0 < crossed[-2], crossed


def test_without_mpi():
    """What one device shows is shown, and what is missing is named, the law as well."""
    folder, summary, printed = experiment(os.path.join(TMP, "bare"), PATH=no_mpi())
    assert summary["verdict"] == "skipped" and "needs MPI: make MPI=1" in summary["why"], summary
    assert "Missing: seconds of two ranks" in printed and "b_half = " in printed, printed
    if not os.path.exists(os.path.join(LAB, "results", "02_knee", "fit.csv")):
        assert "Missing: best batches for 35k" in printed, printed
    law_file(os.path.join(TMP, "bare"), "35k,weights,4,20,3000,2500,3600,6e4,0.05,")
    folder, summary, printed = experiment(os.path.join(TMP, "bare"), PATH=no_mpi())
    assert "on a free link device-hours double at n_2" in printed, printed
    assert [f["name"] for f in summary["figures"]] == (["workers"] if MATPLOTLIB else [])
    with open(os.path.join(folder, "workers.csv")) as f:
        assert {row["link"] for row in csv.DictReader(f)} == {"free"}


def no_mpi():
    """A PATH without mpirun."""
    folder = os.path.join(TMP, "bin")
    os.makedirs(folder, exist_ok=True)
    for name in ("sh", "bash", "env", "make"):
        link = os.path.join(folder, name)
        if not os.path.exists(link):
            os.symlink(shutil.which(name), link)
    return folder


if __name__ == "__main__":
    TMP = tempfile.mkdtemp(prefix="lab_time.")
    OUT = os.path.join(TMP, "lab")
    os.environ["MPLCONFIGDIR"] = TMP                         # nothing in the user's home
    os.environ["OMP_WAIT_POLICY"] = "passive"
    PYTHON = testing.find_python() or sys.executable
    MATPLOTLIB = testing.find_python() is not None
    try:
        sys.exit(testing.run_tests(globals(), sys.argv[1:]))
    finally:
        shutil.rmtree(TMP)
