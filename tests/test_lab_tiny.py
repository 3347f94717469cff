#!/usr/bin/env python3
"""The laboratory's experiments at --tiny: each ends with its tables, figures and verdict, and its
runs are what their names say. What follows from the tables is in test_lab_kept.py, experiments on
several ranks are in test_lab_ranks.py.

    LONG=1 tests/test_lab_tiny.py      02_size.py, too, which branches as 02_local.py does
"""
import os
import sys

import testing
from testing import near
import lab

TINY = testing.Tiny()
LABELS = ["01_one_step", "02_knee", "02_local", "02_front", "03_small_noisy", "04_one_device",
          "07_schedules", "08_fits", "10_replayed"] + ["02_size"] * bool(os.environ.get("LONG"))


# ---- every experiment ----

def test_tiny_experiments():
    """Ten replays 02_front.py, and says so where it is missing; the others need nothing."""
    assert "02_front.py" in TINY.run("10_replayed")["why"]
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


# ---- 3 ----

def test_small_runs():
    """Equal tokens; SGD is SGD."""
    assert len(TINY.table("03_small_noisy", "best")) == 5
    for name in os.listdir(TINY.path("03_small_noisy", "runs")):
        if name.startswith("b") and name.endswith(".jsonl"):
            start, = TINY.log("03_small_noisy", name[:-6], "start")
            end, = TINY.log("03_small_noisy", name[:-6], "end")
            assert end["tokens"] == 2 ** 13, (name, end)
            assert ("sgd" in name) == (start["optimizer"] == "sgd"), name


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
