#!/usr/bin/env python3
"""The laboratory's experiments at --tiny: each ends with its tables, figures and verdict, and its
runs are what their names say. What follows from the tables is in test_lab_kept.py. 5 and 6 run on
several ranks; without MPI they say so.

    LONG=1 tests/test_lab_tiny.py      02_size.py, too, which branches as 02_local.py does
"""
import itertools
import math
import os
import shutil
import signal
import subprocess
import sys

import testing
from testing import near
import kept
import lab

TINY = testing.Tiny()
LINK = testing.lab_path("link.sh")
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


def linked(label):
    """Skips where the experiment does: not every machine can have a slow link."""
    found = TINY.run(label)
    if found["verdict"] == "skipped":
        raise testing.Skip(found["why"])


# ---- 5 ----

def test_tiny_time():
    """The table of blocks is what the logs hold; the two large arms train the same weights."""
    linked("05_time")
    rows = TINY.table("05_time", "blocks")
    assert 2 <= len(rows) <= 3, rows
    for row in rows:
        for arm, ranks, batch in [("small", 1, 64), ("accumulated", 1, 128), ("shared", 2, 128)]:
            run = f"t{row['turn']:.0f}_{arm}"
            start, = TINY.log("05_time", run, "start")
            assert (start["ranks"], start["batch_tokens"]) == (ranks, batch), (run, start)
            spent = [step["seconds"] for step in TINY.log("05_time", run, "step")]
            updates = row[f"updates_{arm}"]
            low, high = (sum(spent[:n]) for n in (math.floor(updates), math.ceil(updates)))
            assert low * (1 - 1e-6) <= row[f"seconds_{arm}"] <= high * (1 + 1e-6), row
        assert row["alpha"] > 0 and row["beta"] > 0, row     # of an all-reduce, by bench_comm
        assert row["same_bits"] == 1 and row["updates_accumulated"] == row["updates_shared"], row


# ---- 6 ----

def test_bandwidth_race():
    """Seconds to the target are those of the updates in the log; a throttled link really is one."""
    linked("06_bandwidth")
    rows = TINY.table("06_bandwidth", "race")
    said = {row["what"]: row["value"] for row in TINY.table("06_bandwidth", "machine")}
    assert [r["method"] for r in rows] == ["one", "parallel", "bf16", "diloco"], rows
    for row in rows:
        run = f"{row['method']}_b{row['batch_tokens']:.0f}"
        run += f"_h{row['every']:.0f}" if row["every"] else ""
        run += "_s2" if row["method"] == "one" else f"_{row['mbit_s']:.0f}mbit_s2"
        steps, evals = (TINY.log("06_bandwidth", run, event) for event in ("step", "eval"))
        spent = [0.0, *itertools.accumulate(step["seconds"] for step in steps)]
        i = next(i for i, r in enumerate(evals) if r["val_loss"] <= said["target_loss"])
        (t, a), (u, b) = ((spent[r["step"]], r["val_loss"]) for r in (evals[i - 1], evals[i]))
        wanted = t + (u - t) * (a - said["target_loss"]) / (a - b) if i else u
        near(row["seconds_to_target"], wanted, 1e-6, run)
        sums = {"one": 0, "diloco": len(steps) // 5}.get(row["method"], len(steps))
        size = (2 if row["method"] == "bf16" else 4) * said["parameters"]
        sent = sum(step.get("bytes_sent", 0) for step in steps)
        assert abs(sent - sums * size) <= 0.02 * sent, (run, sent, sums * size)     # of two ranks
        ahead = 2 * 65536 * (len(evals) + 1)     # two buckets of 64 KiB, full after an evaluation
        assert spent[-1] >= 8 * (sums * size - ahead) / 20e6, run


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
    """The plan against memory that was held: within 5%, and what each ZeRO stage saves within 5% of
    the whole, too."""
    rows, whole = TINY.table("08_fits", "allocated"), "2 ranks, ZeRO 0"
    assert len(rows) == (5 if lab.has_mpi() else 1), rows
    held = {row["case"]: row["measured_bytes"] for row in rows}
    plan = {row["case"]: row["planned_bytes"] for row in rows}
    for case in held:
        near(plan[case], held[case], 0.05, case)
        if case.startswith("2 ranks") and case != whole:
            saved = plan[whole] - plan[case], held[whole] - held[case]
            assert abs(saved[0] - saved[1]) <= 0.05 * held[whole] < saved[1], (case, saved)


# ---- what is missing ----

def test_without_mpi():
    """Where the machine has neither links nor MPI, that is named."""
    out = os.path.join(TINY.out, "bare")
    for label in ["05_time", "06_bandwidth"]:
        done = TINY.start(label, "--out", out, PATH=out)
        assert done.returncode == 0, done.stderr[-300:]
        found = kept.load(os.path.join(out, label, "result.json"))
        assert found["verdict"] == "skipped" and "MPI" in found["why"], found["why"]


# ---- link.sh ----

def inside(word):
    """Processes with this word in their command line."""
    done = subprocess.run(["pgrep", "-f", word], capture_output=True, text=True, check=False)
    return [int(pid) for pid in done.stdout.split()]


def test_link_vanishes():
    """Whatever ends link.sh, its ranks end, and with them the namespaces: there is nothing else
    that keeps these."""
    if not shutil.which("mpirun") or subprocess.call(
            [LINK, "1gbit", "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        raise testing.Skip("MPI and network namespaces")
    for kind in (signal.SIGINT, signal.SIGKILL):
        word = f"{777000 + os.getpid()}.{int(kind)}"
        # A shell's background jobs ignore SIGINT; no script can trap what it was born ignoring.
        process = subprocess.Popen([LINK, "100mbit", "sleep", word], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL,
                                   preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        try:
            devices = os.listdir("/sys/class/net")
            testing.wait_until(lambda: len(inside(f"^sleep {word}")) == 2)
            networks = {os.readlink(f"/proc/{pid}/ns/net") for pid in inside(word)}
            assert len(networks) == 3, networks              # ours, and one of each sleep
            assert sorted(os.listdir("/sys/class/net")) == sorted(devices), "a device outside"
            process.send_signal(kind)
            testing.wait_until(lambda: process.poll() is not None and not inside(word))
        finally:
            for pid in inside(word):
                os.kill(pid, signal.SIGKILL)
            process.wait()


if __name__ == "__main__":
    sys.exit(testing.run_tests(globals(), sys.argv[1:]))
