#!/usr/bin/env python3
"""scripts/lab/shards.py and tensor_links.py, which experiments 4 and 6 call: their arithmetic on
planted numbers, and tiny runs."""
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
import types

sys.dont_write_bytecode = True   # before the next line, so that it leaves no __pycache__
import testing

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = testing.LAB_ROOMS
import lab
import shards
import tensor_links

MPI_TRAINER = os.path.join(ROOT, "build", "train_gpt2-mpi")

RUN = """
import sys
sys.path[:0] = ["scripts/lab/experiments", "scripts/lab/shared"]
import lab, {module}
e = lab.Experiment(96, "try", title="t", question="q", prediction="p")
{module}.measure({arguments})
if "{module}" == "tensor_links":
    import kept
    {module}.say(e, kept.own(e, "{module}"))
e.verdict("undecided", "a test")
e.close()
"""


def near(what, one, other, tolerance=1e-9):
    assert abs(one - other) <= tolerance * abs(other), f"{what}: {one}, not {other}"


def tiny(module, arguments):
    """A tiny run in a directory of its own: what it said, and the rows of its table."""
    out = tempfile.mkdtemp(dir=TMP)
    done = subprocess.run([sys.executable, "-c", RUN.format(module=module, arguments=arguments),
                           "--tiny", "--out", out], cwd=ROOT, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")[-300:]
    with open(os.path.join(out, "96_try", f"{module}.csv"), newline="", encoding="utf-8") as f:
        rows = list(csv.DictReader(f))
    with open(os.path.join(out, "96_try", "summary.json"), encoding="utf-8") as f:
        return " ".join(json.load(f)["said"]), rows


def test_shares_are_of_the_same_round():
    """The machine is half as fast after round 1; a share compares widths within a round."""
    text = ("ranks,width,round,gflops\n1,64,1,100\n2,32,1,80\n4,16,1,40\n1,64,2,50\n2,32,2,40\n"
            "4,16,2,20\n1,64,3,50\n2,32,3,40\n4,16,3,20\n")
    rows = shards.table(64, 256, shards.read(text))
    assert [row[:4] for row in rows] == [[64, 256, 1, 64], [64, 256, 2, 32], [64, 256, 4, 16]]
    for row, share in zip(rows, [1.0, 0.8, 0.4]):
        near("a share", row[-1], share)
    assert shards.narrowest(rows) == 32


def test_quartiles():
    assert shards.quartiles([9, 1, 5]) == (1, 5, 9)
    assert shards.quartiles(list(range(9))) == (2, 4, 6)


def planted(size="full"):
    pick = {"tiny": 0, "quick": 1, "full": 2}
    return tensor_links.Plan(types.SimpleNamespace(
        pick=lambda tiny, quick, full: (tiny, quick, full)[pick[size]]))


def test_both_send_the_same_at_this_batch():
    """Against bytes: all gradients once each way, and 4L+2 sums of (tokens, C) floats."""
    plan = planted()
    near("parameters", plan.parameters(), 834432)
    sums = (4 * plan.layers + 2) * plan.even() * plan.channels * 4
    near("bytes", sums, 4 * plan.parameters())


def test_steps_fill_the_time_asked():
    plan = planted()
    assert plan.steps(128, 25) < plan.steps(128, 1000) <= 63
    assert plan.steps(2048, 25) == 6                         # at least three are measured


def test_tiny_shards():
    said, rows = tiny("shards", "e")
    assert [int(row["width"]) for row in rows] == [64, 32, 16, 8], rows
    assert all(float(row["gflops"]) > 0 for row in rows)
    assert "half of the whole's speed" in said


def test_links_are_measured():
    """No update is faster than its bytes over 20 Mbit/s. How much slower a busy machine makes it is
    not tested."""
    link = testing.lab_path("link.sh")
    if not shutil.which("mpirun") or not os.access(MPI_TRAINER, os.X_OK):
        return "MPI"
    if subprocess.run([link, "--check"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                      stdin=subprocess.DEVNULL, check=False).returncode:
        return "network namespaces"
    said, rows = tiny("tensor_links", "e, [20]")
    assert len(rows) == 8, rows
    for row in rows:
        if row["mbit_s"]:
            least = 0.9 * 8 * float(row["bytes_sent"]) / 20e6
            assert float(row["measured_seconds"]) > least, row
    assert "over 20 Mbit/s" in said and "times with 128 tokens" in said, said
    return None


if __name__ == "__main__":
    TMP = tempfile.mkdtemp(prefix="batchwise.")
    try:
        status = testing.run_tests(globals(), sys.argv[1:])
    finally:
        shutil.rmtree(TMP)
    sys.exit(status)
