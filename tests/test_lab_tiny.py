#!/usr/bin/env python3
"""The laboratory's experiments at --tiny: each ends with its tables, figures and verdict; what its
runs have found is computed anew here, from the logs. What follows from the tables is in
test_lab_kept.py, experiments on several ranks are in test_lab_ranks.py.

    LONG=1 tests/test_lab_tiny.py      02_size.py, too, which branches as 02_local.py does
"""
import os
import sys
import types

import testing
from testing import near
import lab

TINY = testing.Tiny()
LABELS = ["01_one_step", "02_knee", "02_local", "03_small_noisy", "04_one_device",
          "07_schedules", "08_fits", "10_replayed"] + ["02_size"] * bool(os.environ.get("LONG"))


def runs_of(label):
    return sorted(name[:-6] for name in os.listdir(TINY.path(label, "runs"))
                  if name.endswith(".jsonl"))


# ---- every experiment ----

def test_tiny_experiments():
    """Ten replays two, and says so where it is missing; the others need nothing."""
    assert "02_knee.py" in TINY.run("10_replayed")["why"]
    TINY.ran.discard("10_replayed")
    for label in LABELS:
        result = TINY.run(label)
        assert label == f"{result['number']:02d}_{result['name']}"
        assert result["question"] and result["prediction"] and result["settings"], label
        assert result["verdict"] in ("observed", "undecided"), result["verdict"]
        assert result["tables"]["numbers"]["rows"] and result["figures"], label
        for figure in result["figures"]:
            with open(TINY.path(label, figure["name"] + ".png"), "rb") as f:
                assert f.read(8) == b"\x89PNG\r\n\x1a\n"


# ---- 2 ----

def test_knee_table():
    """Each point again from the logs: the best rate by seed 1 alone, with neighbours on both sides;
    the updates of seed 3 at it."""
    points = [p for p in TINY.table("02_knee", "points") if p["reading"] == "weights"]
    assert len(points) == 8 and len({p["target_nats"] for p in points}) == 2, points
    for p in points:
        batch, target, tried = p["batch_tokens"], p["target_nats"], {}
        for run in runs_of("02_knee"):
            if run.startswith(f"35k_b{batch:.0f}_"):
                _, _, lr, seed, to = run.split("_")
                if float(to[2:]) <= target:
                    tried.setdefault(seed, {})[float(lr[2:])] = lab.Run(types.SimpleNamespace(
                        name=run), TINY.path("02_knee", "runs", run), {}).updates_at(target) or 1e9
        best = min(tried["s1"], key=tried["s1"].get)
        near(p["updates_median"], tried["s3"][best])
        assert best == p["best_lr"] and p["seeds"] == 1, (p, best)
        assert p["edge"] == 0 and min(tried["s1"]) < best < max(tried["s1"]), (p, tried["s1"])
        near(p["tokens_median"], batch * p["updates_median"])


# ---- 3 ----

def test_small_table():
    """`best` again from the runs' own logs; equal tokens; SGD is SGD."""
    best, found = TINY.table("03_small_noisy", "best"), {}
    for run in runs_of("03_small_noisy"):
        if run.startswith("b"):
            last = TINY.log("03_small_noisy", run, "eval")[-1]
            start, = TINY.log("03_small_noisy", run, "start")
            assert last["tokens"] == 2 ** 13, (run, last)
            assert ("sgd" in run) == (start["optimizer"] == "sgd"), run
            batch, kind, lr, seed = run.split("_")
            found.setdefault((batch, kind), {}).setdefault(seed, {})[lr] = last["val_loss"]
    for (batch, kind), by_seed in found.items():
        rate = min(by_seed["s1"], key=by_seed["s1"].get)
        assert any(f"b{row['batch_sequences']:.0f}" == batch
                   and abs(row["val_loss"] - by_seed["s2"][rate]) < 1e-6 for row in best), by_seed
    assert len(best) == len(found) == 5


# ---- 7 ----

def test_schedules_pairs():
    """Updates and loss of each run of a pair are those in its log. tests/test_schedule.c has when a
    batch grows."""
    names = {"norm test to 4,096": "adaptive0.5_4096", "linear ramp to 4,096": "linear"}
    rows = TINY.table("07_schedules", "pairs")
    assert len(rows) == 8 and set(names) == {row["compared"] for row in rows}, rows
    for row in rows:
        name = names.get(row["batch"], "constant" + row["batch"].replace(",", "").split()[-1])
        run = f"{name}_lr{row['lr']:g}_s{row['seed']}"
        assert row["updates"] == len(TINY.log("07_schedules", run, "step")), row
        near(row["val_loss"], TINY.log("07_schedules", run, "eval")[-1]["val_loss"])


# ---- 8 ----

def test_fits_measured():
    """Accumulation changes the gradient of a contrastive loss alone. The plan against memory that
    was held: within 5%, and what each ZeRO stage saves within 5% of the whole, too."""
    language, contrastive = ([row["gradient"] for row in TINY.table("08_fits", "contrastive")
                              if row["loss"] == of] for of in ("language model", "contrastive"))
    assert max(language) - min(language) < 1e-6 < max(contrastive) - min(contrastive) - 0.1
    rows, whole = TINY.table("08_fits", "allocated"), "2 ranks, ZeRO 0"
    assert len(rows) == (5 if lab.has_mpi() else 1), rows
    held = {row["case"]: row["measured_bytes"] for row in rows}
    plan = {row["case"]: row["planned_bytes"] for row in rows}
    for case in held:
        near(plan[case], held[case], 0.05, case)
        if case.startswith("2 ranks") and case != whole:
            saved = plan[whole] - plan[case], held[whole] - held[case]
            assert abs(saved[0] - saved[1]) <= 0.05 * held[whole] < saved[1], (case, saved)

if __name__ == "__main__":
    sys.exit(testing.run_tests(globals(), sys.argv[1:]))
