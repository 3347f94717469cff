#!/usr/bin/env python3
"""scripts/lab's experiments 5, 9 and 10, those of seconds: their statistics against draws, their
rules on planted times, and the experiments at --tiny, read back from their tables."""
import csv
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
from testing import load

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = testing.LAB_ROOMS
import endpoints
import fit
import kept


def close(a, b, tolerance=1e-6):
    return abs(a - b) <= tolerance * max(abs(a), abs(b))


# ---- statistics ----

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


def test_mean_interval():
    """Student's t holds the mean of few normal values in 90% of all draws; two standard errors of
    two values would hold it in 70%. One value has no interval."""
    rng = random.Random(4)
    for n in (2, 3, 12):
        held = 0
        for _ in range(4000):
            _, low, high = fit.mean_interval([rng.gauss(5.0, 1.0) for _ in range(n)])
            held += low <= 5.0 <= high
        assert 0.88 <= held / 4000 <= 0.92, (n, held / 4000)
    assert all(map(math.isnan, fit.mean_interval([5.0])[1:]))


def test_slowest():
    """The mean of the largest of n draws."""
    rng, seconds = random.Random(5), [1.0, 1.1, 1.3, 2.0, 1.05]
    for n in (1, 2, 8):
        drawn = sum(max(rng.choice(seconds) for _ in range(n)) for _ in range(20000)) / 20000
        assert close(fit.slowest(seconds, n), drawn, 5e-3), (n, drawn)
    assert close(fit.slowest(seconds, 1), sum(seconds) / 5)


def test_endpoint_verdicts():
    """Inside, outside, across an end; the worst of several; nothing without an interval."""
    end = endpoints.Endpoint("x", "what", 0.9, 1.1, "", "")
    for low, high, word in [(0.91, 1.09, "as predicted"), (0.89, 1.0, "undecided"),
                            (0.5, 0.89, "refuted"), (1.2, 1.3, "refuted"),
                            (math.nan, math.nan, "undecided")]:
        assert endpoints.verdict(end, [("", (low + high) / 2, low, high)])[0] == word, (low, high)
    inside, across, outside = ("a", 1.0, 0.95, 1.05), ("b", 1.1, 1.0, 1.2), ("c", 2.0, 1.9, 2.1)
    assert endpoints.verdict(end, [inside, across])[0] == "undecided"
    assert endpoints.verdict(end, [inside, across, outside])[0] == "refuted"
    assert endpoints.verdict(end, [])[0] == "undecided"
    above = end._replace(low=0.0, high=math.inf)
    assert endpoints.verdict(above, [("", 3.0, 0.1, 9.0)])[0] == "as predicted"


def test_endpoints_are_of_experiments():
    """Each planned endpoint belongs to a script."""
    for end in endpoints.PLAN:
        assert testing.lab_path(end.label + ".py") and end.low < end.high, end.label


# ---- experiment 5 ----

def block(time, seconds=(2.0, 2.1, 1.2), share=1.05, **more):
    values = dict(turn=0, seconds=list(seconds), updates=[100, 50, 50], mean=[0.02, 0.04, 0.02],
                  solo=1.0, share=share, alpha=1e-5, beta=1e-9, same=True, load=0.3)
    return time.Block(**{**values, **more})


def test_blocks():
    """A pair that is much slower than one alone, and a missed target, are discarded."""
    time = load("05_time")
    blocks = [block(time), block(time, share=1.3), block(time, (2.0, None, 1.0)),
              block(time, (3.0, 3.0, 1.5))]
    assert [time.is_kept(b) for b in blocks] == [True, False, False, True]
    assert all(map(close, time.speedups(blocks, "shared"), [2.0 / 1.2, 2.0]))
    assert all(map(close, time.speedups(blocks, "accumulated"), [2.0 / 2.1, 1.0]))


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
    time = load("05_time")
    if time.missing():
        return "MPI, and make MPI=1 build/bench_comm"

    def bench(*arguments):
        return subprocess.run([time.LAUNCH, "-n", "2", time.BENCH, *arguments], cwd=ROOT,
                              capture_output=True, text=True, check=False)
    found = json.loads(bench("1000").stdout.splitlines()[-1])
    assert found["alpha"] > 0 and found["beta"] > 0, found
    for wrong in ("64", "x", "-5", "999999999999"):
        done = bench(wrong)
        assert done.returncode and "expected a number of floats" in done.stderr, done.stderr
    return None


def experiment(label, out, **env):
    """Runs an experiment tiny; (its directory, its summary, what it printed)."""
    done = subprocess.run([PYTHON, testing.lab_path(label + ".py"), "--tiny", "--out", out],
                          capture_output=True, text=True, check=False, env=dict(os.environ, **env))
    assert done.returncode == 0, done.stderr[-300:]
    folder = os.path.join(out, label)
    with open(os.path.join(folder, "summary.json"), encoding="utf-8") as f:
        return folder, json.load(f), done.stdout


def log(folder, name, event):
    with open(os.path.join(folder, "runs", name), encoding="utf-8") as f:
        return [r for r in map(json.loads, f) if r["event"] == event]


def table(folder, name):
    with open(os.path.join(folder, name + ".csv"), newline="", encoding="utf-8") as f:
        return list(csv.DictReader(f))


def test_tiny_time():
    """The table of blocks is what the logs hold; the two large arms train the same weights."""
    if load("05_time").missing():
        return "MPI, and make MPI=1 build/train_gpt2-mpi build/bench_comm"
    folder, summary, printed = experiment("05_time", OUT)
    rows = table(folder, "blocks")
    assert 2 <= len(rows) <= 3, rows
    for row in rows:
        starts = [log(folder, f"t{row['turn']}_{arm}.jsonl", "start")[0]
                  for arm in ("small", "accumulated", "shared")]
        assert [s["ranks"] for s in starts] == [1, 1, 2], starts
        assert [s["batch_tokens"] for s in starts] == [64, 128, 128], starts
        assert row["same_bits"] == "1" and row["updates_accumulated"] == row["updates_shared"], row
        for arm in ("small", "accumulated", "shared"):
            spent = [r["seconds"] for r in log(folder, f"t{row['turn']}_{arm}.jsonl", "step")]
            updates = float(row[f"updates_{arm}"])
            low, high = (sum(spent[:n]) for n in (math.floor(updates), math.ceil(updates)))
            assert low * (1 - 1e-6) <= float(row[f"seconds_{arm}"]) <= high * (1 + 1e-6), row
            assert close(float(row[f"mean_{arm}"]), sum(spent) / len(spent)), row
    assert summary["verdict"] == "undecided" and "blocks discarded" in printed, printed
    return None


def test_time_without_mpi():
    """What is missing is named."""
    _, summary, _ = experiment("05_time", os.path.join(TMP, "bare"), PATH=no_mpi())
    assert summary["verdict"] == "skipped" and "needs MPI: make MPI=1" in summary["why"], summary


def no_mpi():
    """A PATH without mpirun."""
    folder = os.path.join(TMP, "bin")
    os.makedirs(folder, exist_ok=True)
    for name in ("sh", "bash", "env", "make"):
        link = os.path.join(folder, name)
        if not os.path.exists(link):
            os.symlink(shutil.which(name), link)
    return folder


# ---- experiment 9 ----

def test_tiny_curves():
    """The tables are what the logs hold; experiment 10 replays them, and without them says so."""
    out = os.path.join(TMP, "curves")
    load("10_replayed")
    _, summary, _ = experiment("10_replayed", out)
    assert summary["verdict"] == "skipped" and "09_curves.py" in summary["why"], summary
    folder, summary, _ = experiment("09_curves", out)
    rows = table(folder, "curves")
    for row in rows:
        name = f"35k_b{row['batch_tokens']}_lr{float(row['lr']):.6f}_s{row['seed']}.jsonl"
        assert any(x["step"] == int(row["step"]) and close(x["val_loss"], float(row["val_loss"]))
                   for x in log(folder, name, "eval")), row
    line = next(row for row in kept.table("04_one_device", "line")
                if (row["model"], row["threads"]) == ("35k", 1.0))
    for row in table(folder, "targets"):
        update = line["t_0"] + line["tau"] * max(32, int(row["batch_tokens"]) / 8)
        assert close(float(row["seconds_8"]), float(row["updates"]) * update, 1e-5), row
    folder, summary, printed = experiment("10_replayed", out)
    lanes = table(folder, "lanes")
    assert {row["workers"] for row in lanes} == {"1", "2", "4"}, lanes
    for row in lanes:
        cost = float(row["update_seconds"]) - float(row["share_seconds"])
        assert (cost == 0.0) == (row["workers"] == "1" or row["bandwidth"] == ""), row
        assert close(float(row["seconds_to_target"]),
                     float(row["updates"]) * float(row["update_seconds"]), 1e-6), row
    assert "by the clock" in printed and summary["verdict"] in printed, printed


# ---- experiment 10 ----

def test_lanes():
    """The best batch is the one with the least time; beyond a slow enough link 64 lose to one."""
    replayed = load("10_replayed")
    learned = [replayed.Learned(b, {}, 100.0 * (1 + 2000.0 / b), 1.4) for b in (512, 2048, 8192)]
    shares = {b: [1e-3 + 6e-5 * b] for b in (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)}
    free = replayed.LINKS[0]
    for n in (1, 8, 64):
        lane = replayed.best_lane(learned, shares, free, n, 0.0)
        brute = min((100.0 * (1 + 2000.0 / b)) * (1e-3 + 6e-5 * b / n)
                    for b in (512, 2048, 8192) if b // n >= 32)
        assert close(lane.seconds, brute), (n, lane.seconds, brute)
    alone = replayed.best_lane(learned, shares, free, 1, 0.0).seconds
    limit = replayed.slowest_link(replayed.MODELS["full"], learned, shares, 1e6, alone)
    for factor, loses in [(0.99, True), (1.01, False)]:
        link = replayed.Link("", factor * limit, 0.0)
        cost = replayed.exchange(replayed.MODELS["full"], 1e6, link, 64)
        found = replayed.best_lane(learned, shares, link, 64, cost).seconds
        assert (found > alone) == loses, (factor, found, alone)


if __name__ == "__main__":
    if not os.access(os.path.join(ROOT, "train_gpt2"), os.X_OK):
        print("skip lab_time: needs ./train_gpt2; make builds it")
        sys.exit(0)
    TMP = tempfile.mkdtemp(prefix="lab_time.")
    OUT = os.path.join(TMP, "lab")
    os.environ["MPLCONFIGDIR"] = TMP                         # nothing in the user's home
    os.environ["OMP_WAIT_POLICY"] = "passive"
    PYTHON = testing.find_python() or sys.executable
    try:
        sys.exit(testing.run_tests(globals(), sys.argv[1:]))
    finally:
        shutil.rmtree(TMP)
