#!/usr/bin/env python3
"""scripts/lab's experiment 6, which runs on several ranks, in its tiny settings: the numbers that it
writes are those of the logs and of the formulas; and link.sh."""
import csv
import glob
import importlib
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True   # before the next line, so that it leaves no __pycache__
import testing

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAB = os.path.join(ROOT, "scripts", "lab")
sys.path[:0] = testing.LAB_ROOMS
LINK = testing.lab_path("link.sh")
MPI_TRAINER = os.path.join(ROOT, "build", "train_gpt2-mpi")
import endpoints


def experiment(name):
    """Runs an experiment once, tiny; its directory and summary."""
    if name not in RUN:
        done = subprocess.run([PYTHON, testing.lab_path(f"{name}.py"), "--tiny", "--out", TMP],
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


# ---- 6: loss against real seconds ----

def race_log(directory, row, seed=2):
    """The log of a run of the race."""
    every, link = int(row["every"]), int(row["mbit_s"])
    name = f"{row['method']}_b{int(row['batch_tokens'])}" + (f"_h{every}" if every else "")
    return f"{name}{'' if row['method'] == 'one' else f'_{link}mbit'}_s{seed}"


def linked():
    directory, summary = experiment("06_bandwidth")
    if summary["verdict"] == "skipped":
        raise testing.Skip(summary["why"])
    return directory, summary


def test_bandwidth_race():
    """Seconds to the target are those of the updates in the log; a throttled link really is one."""
    directory, summary = linked()
    rows = table(directory, "race")
    said = {row["what"]: row["value"] for row in table(directory, "machine")}
    assert [r["method"] for r in rows] == ["one", "parallel", "bf16", "diloco"], rows
    for row in rows:
        name = race_log(directory, row)
        steps, evals = log(directory, name, "step"), log(directory, name, "eval")
        spent = {0: 0.0}
        for step in steps:
            spent[step["step"]] = spent[step["step"] - 1] + step["seconds"]
        i = next(i for i, r in enumerate(evals) if r["val_loss"] <= said["target_loss"])
        (t, a), (u, b) = ((spent[r["step"]], r["val_loss"]) for r in (evals[i - 1], evals[i]))
        wanted = t + (u - t) * (a - said["target_loss"]) / (a - b) if i else u
        near(f"seconds of {name}", row["seconds_to_target"], wanted, 1e-6)
        sums = {"one": 0, "diloco": len(steps) // 5}.get(row["method"], len(steps))
        size = (2 if row["method"] == "bf16" else 4) * said["parameters"]
        sent = sum(step.get("bytes_sent", 0) for step in steps)
        assert abs(sent - sums * all_ranks(2, size)) <= 0.02 * sent, (name, sent, sums * size)
        wire = 8 * size / 20e6                   # a bucket of 64 KiB may be ahead of the rate
        assert spent[len(steps)] >= sums * (wire - 2 * 8 * 65536 / 20e6), name
    assert summary["number"] == 6 and summary["prediction"]


def test_bandwidth_choices():
    """Each method's batch is the one with the least updates times modelled seconds; updates come
    from runs without a link, at the rate with the fewest."""
    directory, _ = linked()
    said = {row["what"]: row["value"] for row in table(directory, "machine")}
    tried = table(directory, "updates")
    for row in tried:
        if not row["every"]:
            run = f"tune_b{int(row['batch_tokens'])}_lr{row['lr']:g}_s1"
            last = [r for r in log(directory, run, "eval") if r["val_loss"] > said["target_loss"]]
            assert last[-1]["step"] < row["updates_to_target"] <= log(directory, run,
                                                                      "eval")[-1]["step"]
    calibration = {(r["batch_tokens"], r["mbit_s"], r["overlap"]): r
                   for r in table(directory, "calibration")}
    free = [calibration[b, None, 0] for b in (128, 512)]
    near("an exchange", said["seconds_exchange_unlimited"],
         min(r["seconds_waited"] for r in free), 1e-6)
    for row in table(directory, "race"):
        ranks, numbers = {"one": (1, 0), "bf16": (2, 2)}.get(row["method"], (2, 4))
        found = {}
        for choice in tried:
            if bool(choice["every"]) != (row["method"] == "diloco"):
                continue
            compute = (said["seconds_fixed"]
                       + choice["batch_tokens"] / ranks * said["seconds_a_token"])
            talk = said["seconds_exchange_unlimited"] + 8 * numbers * said["parameters"] / (
                20e6 * 1448 / 1514)
            wait = (0.0 if not numbers else talk / choice["every"] if choice["every"]
                    else max(0.0, talk - said["share_hidden"] * compute))
            found[choice["batch_tokens"]] = (choice["updates_to_target"] * (compute + wait),
                                             compute + wait)
        assert row["batch_tokens"] == min(found, key=found.get), (row, found)
        near(f"model of {row['method']}", row["modelled_seconds_update"],
             found[row["batch_tokens"]][1], 1e-6)


def test_bandwidth_one_corpus():
    """All batches read one corpus, so all losses are on one validation set, and it is large enough
    for the run that needs most."""
    bandwidth = module("06_bandwidth")
    e = type("E", (), {"corpus": lambda self, tokens: tokens, "pick": lambda self, a, b, c: c})()
    e.cap, e.batches, e.every, e.target, e.size_flags = 4e6, [256, 16384], 65536, 1.7, []
    flags = [bandwidth.flags(e, batch, 0, 1) for batch in e.batches]
    corpora = {f[f.index("--data") + 1] for f in flags}
    steps = [f[f.index("--steps") + 1] * f[f.index("--batch-tokens") + 1] for f in flags]
    assert len(corpora) == 1 and corpora.pop() >= 1.05 * max(steps), (corpora, steps)


def test_bandwidth_endpoint():
    """Ratios of seconds over the slowest link, seed by seed, with the t-interval of these seeds
    alone; the committed verdict is that of the committed table."""
    bandwidth = module("06_bandwidth")
    one, two = (10.0, 10.1, 9.9), (20.0, 20.2, 19.8)

    def rows(slow, link=25.0):
        return [{"mbit_s": link, "method": method, "seed": seed, "seconds_to_target": took}
                for method, of in [("one", one), ("parallel", slow)] for seed, took in enumerate(of)]
    for slow, word in [(two, "as predicted"), ([5.0, 5.1, 4.9], "refuted"),
                       ([5.0, 10.0, 40.0], "undecided"), ([None, 20.2, 19.8], "undecided")]:
        found = bandwidth.endpoint(rows(slow) + rows([1.0, 1.0, 1.0], 1000.0))
        assert endpoints.verdict(endpoints.of("06_bandwidth"), found)[0] == word, found
    value, low, high = bandwidth.ratio(rows([22.0, 20.2, 18.0])[3:], rows(one)[:3])
    logs = [math.log(2.2), math.log(2.0), math.log(18.0 / 9.9)]
    error = statistics.stdev(logs) / math.sqrt(3)
    near("a ratio", math.log(value), statistics.mean(logs), 1e-9)
    near("its interval, t of 2 degrees", math.log(high / low) / 2, 2.9200 * error, 1e-4)
    race = bandwidth.kept.table("06_bandwidth", "race")
    assert bandwidth.kept.summary("06_bandwidth")["verdict"] == endpoints.verdict(
        endpoints.of("06_bandwidth"), bandwidth.endpoint(race))[0]


def test_bandwidth_distinct():
    """One worker's run stands in the table once a link, and counts once."""
    bandwidth = module("06_bandwidth")
    rows = [{"method": method, "seconds_update": took, "modelled_seconds_update": 1.0}
            for method, took in [("one", 0.9), ("one", 0.9), ("parallel", 0.8), ("parallel", 1.1)]]
    assert bandwidth.distinct(rows) == [0.8, 0.9, 1.1]


def test_bandwidth_large():
    """The larger model's seconds and updates are those of its logs."""
    directory, _ = linked()
    rows = table(directory, "large")
    assert [(row["ranks"], row["batch_tokens"]) for row in rows] == [(1, 128), (2, 256)], rows
    for row in rows:
        run = f"large_n{int(row['ranks'])}_b{int(row['batch_tokens'])}_s2"
        start = log(directory, run, "start")[0]
        assert (start["ranks"], start["target_loss"]) == (row["ranks"], row["target_loss"]), start
        steps = log(directory, run, "step")
        near("updates", row["updates_to_target"], len(steps), 0.5)
        assert 0.0 < row["seconds_to_target"] <= 1.001 * sum(s["seconds"] for s in steps), row


def test_bandwidth_without_links():
    """Where the machine has neither links nor MPI, seconds are modelled, and what is missing is
    named."""
    path = os.path.join(TMP, "path")
    os.mkdir(path)
    for tool in ["bash", "dirname", "basename", "ldd", "grep"]:
        os.symlink(shutil.which(tool), os.path.join(path, tool))
    for name in ["06_bandwidth", "06_diloco"]:
        done = subprocess.run([PYTHON, testing.lab_path(f"{name}.py"), "--tiny", "--out",
                               os.path.join(TMP, "modelled")], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, check=False, env=dict(os.environ, PATH=path))
        assert done.returncode == 0, done.stderr[-300:]
        directory = os.path.join(TMP, "modelled", name)
        with open(os.path.join(directory, "summary.json"), encoding="utf-8") as f:
            summary = json.load(f)
        assert summary["verdict"] == "skipped" and "MPI" in summary["why"], summary["why"]
        if name == "06_bandwidth":
            rows = table(directory, "race")
            assert [r["method"] for r in rows] == ["one", "parallel", "bf16"]
            assert all(r["seconds_update"] is None and r["modelled_seconds_update"] > 0
                       for r in rows)


# ---- 6: DiLoCo against data parallel ----

def test_diloco_pairs():
    """The best rate by seed 1 alone; the difference from the other seeds, pair by pair; what was
    sent. Both arms have the beta2 of the batch of all replicas."""
    directory, summary = experiment("06_diloco")
    fit, lab = module("fit"), module("lab")
    found, betas = {}, set()
    for arm, name in [("H = 5", "h5"), ("data parallel", "parallel")]:
        tried = {r["lr"]: r["val_loss"] for r in table(directory, "rates") if r["arm"] == arm}
        mine = [r for r in table(directory, "pairs") if r["arm"] == arm]
        assert [(r["batch_of_a_replica"], r["seed"]) for r in mine] == [(128, 11), (128, 12)]
        assert len(tried) == 2 and {r["lr"] for r in mine} == {min(tried, key=tried.get)}
        for row in mine:
            run = f"b128_{name}_lr{row['lr']:g}_s{int(row['seed'])}"
            near(f"loss of {run}", row["val_loss"], log(directory, run, "eval")[-1]["val_loss"],
                 1e-7)
            start = log(directory, run, "start")[0]
            assert start["batch_tokens"] == 512, start
            betas.add(start["beta2"])
            sent = sum(s.get("bytes_sent", 0) for s in log(directory, run, "step"))
            wanted = 8 * all_ranks(4, 4 * start["parameters"]) if name == "h5" else 0
            assert abs(sent - wanted) <= 0.02 * wanted, (run, sent, wanted)
        found[arm] = [r["val_loss"] for r in mine]
    assert len(betas) == 1, f"the arms differ in beta2: {betas}"
    near("beta2", betas.pop(), lab.half_life_beta2(512), 1e-6)
    gaps = [a - b for a, b in zip(found["H = 5"], found["data parallel"])]
    (end,) = table(directory, "endpoint")
    for field, value in zip(("value", "low", "high"), fit.mean_interval(gaps)):
        near(f"endpoint's {field}", end[field], value, 1e-5)
    assert summary["number"] == 6 and "predicted above 0" in summary["why"], summary["why"]


def test_diloco_one_beta2():
    """At every batch of the full run, and never below beta1: the floor is reached at 2,048."""
    diloco = module("06_diloco")
    e = type("E", (), {"corpus": lambda self, tokens: "data", "model": lambda self: [],
                       "pick": lambda self, tiny, quick, full: full,
                       "setting": lambda self, words: None})()
    diloco.settings(e)
    assert sorted(e.middle) == [512, 2048] and e.every == 20
    for batch in e.middle:
        flags = [diloco.Arm(e, batch, every).make(None, 3, 11).flags for every in (e.every, 0)]
        own = {f[f.index("--beta2") + 1] for f in flags}
        assert own == {f"{module('lab').half_life_beta2(4 * batch):.9g}"}, (batch, own)
        assert float(own.pop()) >= 0.9


def module(name):
    return importlib.import_module(name)


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
        # A shell's background jobs ignore SIGINT; no script can trap what it was born ignoring.
        process = subprocess.Popen([LINK, "100mbit", "sleep", word], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, env=dict(os.environ, TMPDIR=TMP),
                                   preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
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
        STATUS = testing.run_tests(globals(), sys.argv[1:])
    finally:
        shutil.rmtree(TMP)
    sys.exit(STATUS)
