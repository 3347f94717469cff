#!/usr/bin/env python3
"""The laboratory's experiments on several ranks, 5 and 6, at --tiny: the numbers that they write
are those of the logs and of the formulas; without MPI they say so; link.sh."""
import glob
import itertools
import math
import os
import shutil
import signal
import subprocess
import sys

sys.dont_write_bytecode = True   # before the next line, so that it leaves no __pycache__
import testing
from testing import near

sys.path[:0] = testing.LAB_ROOMS
import kept

TINY = testing.Tiny()
LINK = testing.lab_path("link.sh")


def linked(label):
    """Skips where the experiment does: not every machine can have a slow link."""
    found = TINY.run(label)
    if found["verdict"] == "skipped":
        raise testing.Skip(found["why"])


# ---- 5: the same update in less time ----

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


# ---- 6: loss against real seconds ----

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
        wire = 8 * size / 20e6                   # a bucket of 64 KiB may be ahead of the rate
        assert spent[-1] >= sums * (wire - 2 * 8 * 65536 / 20e6), run


def test_bandwidth_choices():
    """Each method's batch is the one with the least updates times modelled seconds."""
    linked("06_bandwidth")
    said = {row["what"]: row["value"] for row in TINY.table("06_bandwidth", "machine")}
    for row in TINY.table("06_bandwidth", "race"):
        ranks, numbers = {"one": (1, 0), "bf16": (2, 2)}.get(row["method"], (2, 4))
        talk = said["seconds_exchange_unlimited"] + 8 * numbers * said["parameters"] / (
            20e6 * 1448 / 1514)
        found = {}
        for choice in TINY.table("06_bandwidth", "updates"):
            if bool(choice["every"]) != (row["method"] == "diloco"):
                continue
            compute = (said["seconds_fixed"]
                       + choice["batch_tokens"] / ranks * said["seconds_a_token"])
            wait = (0.0 if not numbers else talk / choice["every"] if choice["every"]
                    else max(0.0, talk - said["share_hidden"] * compute))
            found[choice["batch_tokens"]] = (choice["updates_to_target"] * (compute + wait),
                                             compute + wait)
        assert row["batch_tokens"] == min(found, key=found.get), (row, found)
        near(row["modelled_seconds_update"], found[row["batch_tokens"]][1], 1e-6, row["method"])


# ---- what is missing ----

def test_without_mpi():
    """Where the machine has neither links nor MPI, that is named."""
    path, out = os.path.join(TINY.out, "path"), os.path.join(TINY.out, "bare")
    os.mkdir(path)
    for tool in ["sh", "bash", "env", "make", "dirname", "basename", "ldd", "grep"]:
        os.symlink(shutil.which(tool), os.path.join(path, tool))
    for label in ["05_time", "06_bandwidth"]:
        done = TINY.start(label, "--out", out, PATH=path)
        assert done.returncode == 0, done.stderr[-300:]
        found = kept.load(os.path.join(out, label, "result.json"))
        assert found["verdict"] == "skipped" and "MPI" in found["why"], found["why"]


# ---- link.sh ----

def inside(word):
    """Processes with this word in their command line, and how many network namespaces they are
    in."""
    pids, namespaces = [], set()
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as f:
                if word.encode() in f.read():
                    pids.append(int(path.split("/")[2]))
                    namespaces.add(os.readlink(os.path.dirname(path) + "/ns/net"))
        except OSError:
            continue
    return pids, namespaces


def test_link_vanishes():
    """Whatever ends link.sh, its ranks end, and with them the namespaces: there is nothing else
    that keeps these."""
    if not shutil.which("mpirun") or subprocess.call([LINK, "1gbit", "true"], stdin=subprocess.DEVNULL,
                                                     stdout=subprocess.DEVNULL,
                                                     stderr=subprocess.DEVNULL):
        raise testing.Skip("MPI and network namespaces")
    for kind in (signal.SIGINT, signal.SIGKILL):
        word = f"{777000 + os.getpid()}.{int(kind)}"
        # A shell's background jobs ignore SIGINT; no script can trap what it was born ignoring.
        process = subprocess.Popen([LINK, "100mbit", "sleep", word], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL,
                                   env=dict(os.environ, TMPDIR=TINY.out),
                                   preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        try:
            # link.sh, unshare, link.sh inside, mpirun, and two sleeps that are not where we are.
            devices = os.listdir("/sys/class/net")
            testing.wait_until(lambda: len(inside(f"sleep\0{word}")[0]) >= 6)
            assert len(inside(f"sleep\0{word}")[1]) == 3, inside(f"sleep\0{word}")
            assert sorted(os.listdir("/sys/class/net")) == sorted(devices), "a device outside"
            process.send_signal(kind)
            testing.wait_until(lambda: process.poll() is not None and not inside(word)[0])
        finally:
            for pid in inside(word)[0]:
                os.kill(pid, signal.SIGKILL)
            process.wait()


if __name__ == "__main__":
    sys.exit(testing.run_tests(globals(), sys.argv[1:]))
