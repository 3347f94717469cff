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
import time

sys.dont_write_bytecode = True   # before the next line, so that it leaves no __pycache__
import testing

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAB = os.path.join(ROOT, "scripts", "lab")
sys.path.insert(0, LAB)
import fit

# B_crit, b_half, T: the end before n_2, and far behind it.
WORLDS = [(1136.0, 6.5, 32), (8000.0, 60.0, 32), (2e6, 4000.0, 1024), (541.0, 300.0, 8)]


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
