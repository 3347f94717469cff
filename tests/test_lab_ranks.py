#!/usr/bin/env python3
"""scripts/lab's experiments on several ranks, 1, 8 and 10, in their tiny settings: that the numbers
they write are what the logs and checkpoints hold and what the formulas give; and link.sh."""
import array
import csv
import glob
import importlib
import json
import math
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True   # before the next line, so that it leaves no __pycache__
import testing

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAB = os.path.join(ROOT, "scripts", "lab")
LINK = os.path.join(LAB, "link.sh")
MPI_TRAINER = os.path.join(ROOT, "build", "train_gpt2-mpi")


def experiment(name):
    """Runs an experiment once, tiny; its directory and summary."""
    if name not in RUN:
        done = subprocess.run([PYTHON, os.path.join(LAB, f"{name}.py"), "--tiny", "--out", TMP],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        RUN[name] = done.returncode, done.stderr.decode("utf-8", "replace")
    status, err = RUN[name]
    assert status == 0, f"{name} ends with {status}: {err[-300:]}"
    directory = os.path.join(TMP, name)
    with open(os.path.join(directory, "summary.json"), encoding="utf-8") as f:
        return directory, json.load(f)


def table(directory, name):
    """The rows of a CSV as dicts; numbers as floats, an empty cell as None."""
    def value(text):
        try:
            return float(text)
        except ValueError:
            return text or None
    with open(os.path.join(directory, f"{name}.csv"), newline="", encoding="utf-8") as f:
        return [{key: value(text) for key, text in row.items()} for row in csv.DictReader(f)]


def log(directory, run, event):
    with open(os.path.join(directory, "runs", f"{run}.jsonl"), encoding="utf-8") as f:
        return [r for r in map(json.loads, f) if r["event"] == event]


def near(what, one, other, tolerance):
    assert abs(one - other) <= tolerance * abs(other), f"{what}: {one}, not {other}"


def all_ranks(n, size):
    """Bytes that each of n ranks sends to average a gradient of `size` bytes."""
    return 2.0 * (n - 1) / n * size


# ---- 1: five ways ----

def test_five_ways_same_batch_same_losses():
    """Data parallel and accumulation: the same losses to rounding, in all updates. Rounding is 6e-8
    of a loss; training spreads it, in twenty updates not much."""
    directory, _ = experiment("01_five_ways")
    rows = {row["method"]: row for row in table(directory, "table")}
    rate = rows["accumulation"]["best_lr"]
    one, eight = (log(directory, f"{m}_lr{rate:.6f}_s1", "step")
                  for m in ["accumulation", "data_parallel"])
    assert len(one) == len(eight) == 20
    worst = max(abs(a["loss"] - b["loss"]) for a, b in zip(one, eight))
    said = {row["what"]: row["value"] for row in table(directory, "machine")}
    assert worst <= 1e-5, f"losses are apart by {worst}"
    assert one[0]["loss"] > one[-1]["loss"] + 0.5, "it does not learn"
    near("the largest difference", said["largest_difference_train_loss"], worst, 1e-6)


def test_five_ways_table():
    """Updates, tokens, bytes and modelled seconds of the five rows."""
    directory, _ = experiment("01_five_ways")
    rows = {row["method"]: row for row in table(directory, "table")}
    said = {row["what"]: row["value"] for row in table(directory, "machine")}
    assert list(rows) == ["baseline", "data_parallel", "accumulation", "diloco", "updates"]
    updates = {"baseline": 20, "data_parallel": 20, "accumulation": 20, "diloco": 20,
               "updates": 160}
    gradient = log(directory, "warm", "start")[0]["parameters"] * 4
    assert said["gradient_bytes"] == gradient
    ring = all_ranks(8, gradient)
    sent = {"data_parallel": 20 * ring, "diloco": 4 * ring}  # H=5
    for name, row in rows.items():
        assert row["updates"] == updates[name], name
        assert row["data_times"] == (1 if name == "baseline" else 8), name
        near(f"bytes of {name}", row["bytes_sent_by_a_rank"], sent.get(name, 0), 0.02)
        near(f"perplexity of {name}", row["perplexity"], math.exp(row["loss_mean"]), 1e-6)
    small, large = (said[f"seconds_update_one_rank_{x}_batch"] for x in ["small", "large"])
    talk = ring / said["ring_bytes_per_second"] + 14 * said["ring_latency_seconds"]
    wait = max(0.0, talk - 4.0 / 9.0 * small)                # hidden: 2/3 of a backward pass
    for name, seconds in [("baseline", 20 * small), ("data_parallel", 20 * (small + wait)),
                          ("accumulation", 20 * large), ("diloco", 20 * (small + talk / 5)),
                          ("updates", 160 * small)]:
        near(f"modelled seconds of {name}", rows[name]["seconds_modelled"], seconds, 1e-6)
        near(f"times of {name}", rows[name]["time_times"], seconds / (20 * small), 1e-6)


def test_five_ways_best_rates_and_verdict():
    directory, summary = experiment("01_five_ways")
    rows, rates = table(directory, "table"), table(directory, "rates")
    losses = {}
    for row in rows:
        of = "accumulation" if row["method"] == "data_parallel" else row["method"]
        tried = {r["lr"]: r["val_loss"] for r in rates if r["method"] == of}
        assert len(tried) == 2
        for rate, loss in tried.items():
            last = log(directory, f"{of}_lr{rate:.6f}_s1", "eval")[-1]["val_loss"]
            near(f"loss of {of} at {rate}", loss, last, 1e-8)
        best = min(tried, key=tried.get)
        assert row["best_lr"] == best and row["edge"] == 1, row
        near(f"loss of {row['method']}", row["loss_mean"], tried[best], 1e-5)
        losses[row["method"]] = row["loss_mean"]
    listed = [losses[m] for m in ["baseline", "accumulation", "diloco", "updates"]]
    ordered = listed == sorted(listed, reverse=True)
    ends = listed[0] == max(listed) and listed[3] == min(listed)
    times = {row["method"]: row["time_times"] for row in rows}
    apart_in_time = times["accumulation"] > 4 * times["data_parallel"]
    expected = "as predicted" if ordered and apart_in_time else "partly" if ends else "failed"
    assert summary["verdict"] == expected, f"{summary['verdict']}, with losses {listed}"
    assert "edge of the grid" in " ".join(summary["said"])
    assert [f["name"] for f in summary["figures"]] == ["five_ways", "rates"] or not summary["drawn"]


# ---- 8: the bandwidth wall ----

def test_bandwidth_points():
    """Bytes and waiting from the logs; a throttled link that really is one; the model's formula."""
    directory, summary = experiment("08_bandwidth")
    if summary["verdict"] == "skipped":
        raise testing.Skip(summary["why"])
    said = {row["what"]: row["value"] for row in table(directory, "machine")}
    rows, computing = table(directory, "points"), []
    gradient = 4 * said["parameters"]
    assert said["parameters"] == log(directory, "alone", "start")[0]["parameters"]
    assert len(rows) == 8
    for row in rows:
        every = int(row["every"] or 1)
        name = f"{row['method']}_{int(row['mbit_s']) if row['mbit_s'] else 'unlimited'}"
        steps = log(directory, name, "step")[every:]
        seconds = sum(step["seconds"] for step in steps)
        talks = len(steps) / every
        near(f"bytes of {name}", row["bytes_sent_by_a_rank"], talks * all_ranks(2, gradient), 0.02)
        near(f"speed of {name}", row["tok_per_s"], len(steps) * steps[0]["batch_tokens"] / seconds,
             1e-6)
        near(f"waiting of {name}", row["waited_share"],
             sum(step["seconds_comm"] for step in steps) / seconds, 1e-6)
        wire = 8 * gradient / (20e6 * said["payload_share"]) if row["mbit_s"] else 0.0
        # A bucket of 64 KiB may be ahead of the rate, once in a while.
        if wire:
            least = talks * (wire - 2 * 8 * 65536 / 20e6)
            assert seconds > least, f"{name}: {seconds} s, and the wire alone needs {least}"
        compute, talk = said["seconds_micro_batch"], wire + said["seconds_talk_unlimited"]
        wait = talk if row["every"] else max(0.0, talk - 4.0 / 9.0 * compute)
        batches = every * row["accumulate"]
        waits = sum(step["seconds_comm"] for step in steps)
        if name == "diloco_1_unlimited":
            near("what a talk takes", talk, waits / talks, 1e-6)
        if every == 5:
            computing.append((seconds - waits) / len(steps))
        near(f"model of {name}", row["modelled_tok_per_s"],
             2 * batches * said["micro_batch_tokens"] / (batches * compute + wait), 1e-6)
    near("what a micro-batch takes", said["seconds_micro_batch"], sum(computing) / 2, 1e-6)


def test_bandwidth_order():
    """Over the slow link rare talk is faster, whatever else this machine is busy with: 4 or 5 times
    fewer bytes are on a wire that data parallel waits for most of the time."""
    directory, summary = experiment("08_bandwidth")
    if summary["verdict"] == "skipped":
        raise testing.Skip(summary["why"])
    at = {row["method"]: row for row in table(directory, "points") if row["mbit_s"]}
    assert at["ddp"]["waited_share"] > 0.5, at["ddp"]["waited_share"]
    for name in ["ddp_4", "diloco_5"]:
        assert at[name]["tok_per_s"] > 1.5 * at["ddp"]["tok_per_s"], (name, at[name])
    near("H=1 beside data parallel", at["diloco_1"]["tok_per_s"], at["ddp"]["tok_per_s"], 0.5)


def test_bandwidth_without_links():
    """Where the machine has no such links, all is modelled, and says so."""
    path = os.path.join(TMP, "path")
    os.mkdir(path)
    for tool in ["bash", "dirname", "basename", "ldd", "grep"]:
        os.symlink(shutil.which(tool), os.path.join(path, tool))
    done = subprocess.run([PYTHON, os.path.join(LAB, "08_bandwidth.py"), "--tiny", "--out",
                           os.path.join(TMP, "modelled")], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, check=False, env=dict(os.environ, PATH=path))
    assert done.returncode == 0, done.stderr[-300:]
    directory = os.path.join(TMP, "modelled", "08_bandwidth")
    with open(os.path.join(directory, "summary.json"), encoding="utf-8") as f:
        summary = json.load(f)
    assert summary["verdict"] == "skipped" and "modelled" in summary["why"], summary["why"]
    rows = table(directory, "points")
    assert all(row["tok_per_s"] is None and row["modelled_tok_per_s"] > 0 for row in rows)
    slow = {row["method"]: row["modelled_tok_per_s"] for row in rows if row["mbit_s"]}
    assert slow["ddp"] < slow["ddp_4"] < slow["diloco_5"], slow


def links():
    if not os.path.exists(LINK) or subprocess.call([LINK, "--check"], stdout=subprocess.DEVNULL,
                                                   stderr=subprocess.DEVNULL):
        raise testing.Skip("no network namespaces here")


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
    links()
    for i, kind in enumerate([signal.SIGINT, signal.SIGTERM, signal.SIGKILL]):
        word = f"{777000 + os.getpid()}.{i}"
        process = subprocess.Popen([LINK, "100mbit", "sleep", word], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, env=dict(os.environ, TMPDIR=TMP))
        try:
            end_link(process, kind, word)
        finally:
            for pid in inside(word)[0]:
                os.kill(pid, signal.SIGKILL)
            process.wait()


def end_link(process, kind, word):
    devices = os.listdir("/sys/class/net")
    # link.sh, unshare, link.sh inside, mpirun, and two sleeps that are not where we are.
    wait_until(lambda: len(inside(f"sleep\0{word}")[0]) >= 6)
    pids, namespaces = inside(f"sleep\0{word}")
    assert len(pids) >= 6 and len(namespaces) == 3, (len(pids), namespaces)
    assert sorted(os.listdir("/sys/class/net")) == sorted(devices), "a device of ours outside"
    process.send_signal(kind)
    wait_until(lambda: process.poll() is not None and not inside(word)[0])
    assert process.poll() is not None, f"{kind.name} does not end link.sh"
    assert not inside(word)[0], f"after {kind.name}: {len(inside(word)[0])} processes are left"


def wait_until(done):
    """Up to twenty seconds."""
    limit = time.time() + 20
    while not done() and time.time() < limit:
        time.sleep(0.05)


# ---- 10: the proof ----

def read_tensors(path):
    """A second reader, so that the experiment's is not its own judge."""
    with open(path, "rb") as f:
        data = f.read()
    size = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:8 + size].decode())
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = (8 + size + x for x in entry["data_offsets"])
            found[name] = array.array("f", data[begin:end])
    return found


def apart(directory, one, other):
    """Relative distance of two runs' last weights, without the K part of qkv's biases."""
    a, b = (read_tensors(os.path.join(directory, "runs", run, "latest", "model.safetensors"))
            for run in [one, other])
    over = under = 0.0
    for name in a:
        third = len(a[name]) // 3
        for i, (x, y) in enumerate(zip(a[name], b[name])):
            if not (name.endswith("attn.c_attn.bias") and third <= i < 2 * third):
                over, under = over + (x - y) ** 2, under + x * x
    return math.sqrt(over / under)


def test_proof_pairs():
    """The distances in the table are those of the checkpoints; splits of one batch are within
    rounding, other runs far away. 20 updates spread rounding to 1e-7; a hundred times that is let
    pass, a thousandth of what half the batch makes."""
    directory, summary = experiment("10_proof")
    rows = {(row["one"], row["other"]): row for row in table(directory, "pairs")}
    splits = [f"ranks_{n}" for n in [1, 2, 4, 8]] + [f"size_{m}" for m in [2, 4, 8]]
    for i, one in enumerate(splits):
        for other in splits[i + 1:]:
            assert rows[one, other]["distance"] <= 1e-5, (one, other, rows[one, other])
        assert rows[one, "other_seed"]["distance"] > 0.1
        assert rows[one, "batch_half"]["distance"] > 0.01
    for pair in [("ranks_1", "ranks_8"), ("ranks_1", "batch_half"), ("ranks_4", "other_seed")]:
        found = apart(directory, *pair)
        near(f"distance of {pair}", rows[pair]["distance"], found, 1e-5)
    assert any(not rows["ranks_1", other]["same_bits"] for other in splits[1:]), "no rounding"
    assert summary["verdict"] == "as predicted", summary["why"]


def test_proof_exact_sum():
    directory, _ = experiment("10_proof")
    rows = [row for row in table(directory, "pairs") if row["one"].startswith("exact_")]
    assert len(rows) == 6                                    # pairs of four
    weights = set()
    for n in [1, 2, 4, 8]:
        with open(os.path.join(directory, "runs", f"exact_{n}", "latest", "model.safetensors"),
                  "rb") as f:
            weights.add(f.read())
    assert len(weights) == 1, f"{len(weights)} different files"
    assert all(row["same_bits"] == 1 and row["distance"] == 0 for row in rows)


def test_proof_diverged():
    """A split that diverged left no weights: it is said and left out; what all are compared with
    cannot be."""
    sys.path.insert(0, LAB)
    try:
        proof = importlib.import_module("10_proof")
    finally:
        sys.path.remove(LAB)
    done = []
    e = type("E", (), {"say": done.append, "verdict": lambda self, word, why: done.append(word),
                       "close": lambda self: None})()
    ways = [proof.Split(name, name, "ranks") for name in ["ranks_1", "ranks_2", "other_seed"]]
    for gone, left in [("", 3), ("ranks_2", 2), ("other_seed", 0)]:
        done.clear()
        runs = {s.name: type("Run", (), {"diverged": s.name == gone}) for s in ways}
        try:
            assert len(proof.with_weights(e, runs, ways)) == left
        except SystemExit:
            assert left == 0 and done[-1] == "skipped"
        assert not gone or gone in done[0], done


def test_proof_grows():
    """The distances at each checkpoint: the last are those of the pairs."""
    directory, _ = experiment("10_proof")
    rows = table(directory, "growth")
    pairs = {(row["one"], row["other"]): row["distance"] for row in table(directory, "pairs")}
    assert sorted({row["updates"] for row in rows}) == [10, 20]
    for row in rows:
        if row["updates"] == 20 and ("ranks_1", row["split"]) in pairs:
            near(row["split"], row["distance"], pairs["ranks_1", row["split"]], 1e-9)
    seed = {row["updates"]: row["distance"] for row in rows if row["split"] == "other_seed"}
    assert 0.1 < seed[10] < seed[20] < 2.0, seed


# ---- running them ----

def lacking():
    if not shutil.which("mpirun"):
        return "there is no mpirun here"
    if not os.access(MPI_TRAINER, os.X_OK):
        return "there is no build/train_gpt2-mpi: make MPI=1 build/train_gpt2-mpi"
    return ""


if __name__ == "__main__":
    if lacking():
        print(f"skip lab_ranks: {lacking()}")
        sys.exit(0)
    PYTHON, RUN = testing.find_python() or sys.executable, {}
    TMP = tempfile.mkdtemp(prefix="batchwise.")
    try:
        STATUS = testing.run_tests(globals())
    finally:
        shutil.rmtree(TMP)
    sys.exit(STATUS)
