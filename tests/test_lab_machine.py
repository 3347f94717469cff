#!/usr/bin/env python3
"""The laboratory's experiments on one machine: 4 one device, 8 fits. Their rules on numbers made
up here, then each experiment at --tiny, read back from its tables."""
import csv
import functools
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
NAMES = {4: "one_device", 8: "fits"}
sys.path[:0] = testing.LAB_ROOMS


load = testing.load


def experiment(number):
    return load(f"{number:02d}_{NAMES[number]}")


@functools.lru_cache(maxsize=None)
def tiny(number):
    """Runs an experiment once; returns its summary."""
    done = make(number)
    assert done.returncode == 0, done.stderr.strip().split("\n")[-1]
    with open(os.path.join(folder(number), "summary.json")) as f:
        return json.load(f)


def make(number, *flags):
    script = testing.lab_path(f"{number:02d}_{NAMES[number]}.py")
    return subprocess.run([PYTHON, script, "--tiny", "--out", TMP, *flags], capture_output=True,
                          text=True, check=False, cwd=ROOT)


def folder(number):
    return os.path.join(TMP, f"{number:02d}_{NAMES[number]}")


def table(number, name):
    tiny(number)
    with open(os.path.join(folder(number), f"{name}.csv"), newline="") as f:
        return list(csv.DictReader(f))


def logs(number):
    """(the command's flags as a dict, the log's events) of every run of the trainer."""
    tiny(number)
    runs = os.path.join(folder(number), "runs")
    for name in sorted(os.listdir(runs)):
        if name.endswith(".json") and not name.startswith(("shards_", "even_", "uneven_")):
            with open(os.path.join(runs, name)) as f:
                command = json.load(f)["command"]
            with open(os.path.join(runs, name) + "l") as f:
                events = [json.loads(line) for line in f]
            flags = {key: value for key, value in zip(command, command[1:])
                     if key.startswith("--")}
            yield flags, events


def close(a, b, tolerance=1e-6):
    return abs(a - b) <= tolerance * max(abs(a), abs(b))


# ---- 4: one device ----

def test_device_tiles():
    """SCIENCE: 768 columns, 1,024 rows a sequence, tiles of 128 x 256 on 132 units."""
    module = experiment(4)
    found = [module.tile_efficiency(b, 768) for b in (1, 4, 11)]
    assert [round(100 * x) for x in found] == [18, 73, 100], found
    assert close(module.tile_efficiency(12, 768), 288 / 396), "a twelfth sequence opens a wave"


def planted(t_0=8e-4, tau=4e-5, adamw=2e-4, slow=(1.0,) * 9, noise=0.0, extra=lambda b, a: 0.0):
    """A series in which A micro-batches of b tokens take t_0 + tau A b + (A - 1) (t_0 - adamw),
    times the block's slowness, times 1 + extra(b, A); noise: of each block's logarithm."""
    module, rng = experiment(4), random.Random(5)
    s = module.Series("planted", [], "1 core", 1, 32, module.powers(64), 0)
    for b, a in s.settings():
        t = (t_0 + tau * a * b * s.T + (a - 1) * (t_0 - adamw)) * (1.0 + extra(b, a))
        s.seconds[b, a] = [t * x * math.exp(rng.gauss(0.0, noise)) for x in slow]
        s.optimizer[b, a] = [adamw * x for x in slow]
    return s


def test_device_line():
    """The planted line comes back: exactly without noise, even if three blocks of nine are slow;
    with 3% of noise and every fourth block slow, inside the 90% intervals nine times of ten: 60
    draws, 54 expected, standard deviation 2.3."""
    module = experiment(4)
    slow = (1.0, 1.6, 1.0, 1.0, 2.0, 1.3, 1.0, 1.0, 1.0)
    line = planted(slow=slow).line()
    for found, wanted in zip(line, (8e-4, 4e-5, 20.0)):
        assert close(found.value, wanted), (found, wanted)
        assert found.low <= wanted * (1 + 1e-9) and wanted <= found.high * (1 + 1e-9), found
    assert line.b_half.high - line.b_half.low < 1e-6, "a slow block slows all settings alike"
    rng, inside = random.Random(1), [0, 0, 0]
    for _ in range(60):
        slow = [1.6 if rng.random() < 0.25 else 1.0 for _ in range(9)]
        times = {32 << i: [(8e-4 + 4e-5 * (32 << i)) * x * math.exp(rng.gauss(0.0, 0.03))
                           for x in slow] for i in range(7)}
        for i, (found, wanted) in enumerate(zip(module.fit_line(times, 60), (8e-4, 4e-5, 20.0))):
            inside[i] += found.low <= wanted <= found.high
    assert min(inside) >= 47, inside


def test_device_blocks():
    """A block between controls goes if either took more than 1.15 times the best of its kind."""
    module = experiment(4)
    controls = [{1: 1.0, 2: 1.0}, {1: 1.1, 2: 1.0}, {1: 1.0, 2: 1.2}, {1: 0.95, 2: 1.1},
                {1: 1.0, 2: 1.0}]
    assert module.kept_blocks(controls) == [3], module.kept_blocks(controls)
    assert module.kept_blocks([{**of, 1: 1.0} for of in controls[:2]]) == [0]
    s, pairs = planted(slow=(1.0, 9.0, 1.0)), {"even": [(1, 2), (3, 4), (5, 6)]}
    module.keep([s], pairs, [0, 2])
    assert {len(of) for of in s.seconds.values()} == {2} and pairs["even"] == [(1, 2), (5, 6)]
    assert close(s.line().b_half.high, 20.0), "the slow block is gone"
    assert module.waited([(5.0, 4.0)] * 5) == (1 - 4.0 / 5.0,) * 3


def test_device_costs():
    """Accumulation as planted costs what t_0 says; AdamW is not paid for twice."""
    s = planted()
    for b, a in s.accumulated():
        measured, wanted, apart = s.costs((b, a))
        assert close(measured.value, (a - 1) * 6e-4 / (8e-4 + 4e-5 * 512)), measured
        assert close(measured.value, wanted.value) and abs(apart.value) < 1e-9, (measured, wanted)
    assert s.accumulated() == [(1, 16), (4, 4)], s.accumulated()


def test_device_endpoint():
    """b_half of 0.8M on one core alone, and only with enough blocks."""
    module, endpoints = experiment(4), load("endpoints")
    plan = endpoints.of("04_one_device")
    for t_0, word in [(8e-4, "as predicted"), (3e-3, "refuted")]:
        s = planted(t_0=t_0, noise=0.01)
        s.model = module.JUDGED
        found = module.endpoint([s], [s.line()], True)
        assert endpoints.verdict(plan, found)[0] == word, found
        assert module.endpoint([s], [s.line()], False) == []
        s.threads = 2
        assert module.endpoint([s], [s.line()], True) == []


def test_device_seconds():
    """A setting's seconds are the median over blocks of the lower quartile of updates. fit.json has
    the line through them."""
    made = {}
    for _, events in logs(4):
        seconds = sorted(x["seconds"] for x in [x for x in events if x["event"] == "step"][2:])
        start = events[0]
        setting = (start["threads_used"], start["micro_batch"] * 32, start["batch_tokens"])
        made.setdefault(setting, []).append(seconds[len(seconds) // 4])
    rows, blocks = table(4, "seconds"), {}
    for row in rows:
        tokens = int(row["micro_batch_tokens"])
        setting = int(row["threads"]), tokens, tokens * int(row["accumulation"])
        blocks.setdefault(setting, []).append(float(row["seconds"]))
        assert any(close(blocks[setting][-1], x) for x in made[setting]), (row, made[setting])
    assert {len(of) for of in blocks.values()} == {3}, blocks
    with open(os.path.join(folder(4), "fit.json")) as f:
        fits = json.load(f)["fits"]
    assert [x["threads"] for x in fits] == sorted({1, load("lab").processors()}), fits
    for found in fits:
        passed = [(tokens, statistics.median(of)) for (threads, tokens, batch), of in blocks.items()
                  if (threads, batch) == (found["threads"], tokens)]
        t_0, tau = load("fit").fit_device(*zip(*passed))
        assert close(found["t_0"], t_0) and close(found["tau"], tau), (found, t_0, tau)
        assert (found["model"], found["parameters"], found["seq_len"]) == ("35k", 34720, 32), found
        for name, (low, high) in found["intervals"].items():
            assert low <= found[name] <= high, (name, found)


def test_device_says():
    summary, half = tiny(4), table(4, "line")[0]
    assert any(f"b_half {float(half['b_half']):.0f} tokens" in line for line in summary["said"])
    assert summary["verdict"] == "undecided", "a tiny run has another model"
    assert [row["split"] for row in table(4, "uneven")] == ["even", "uneven"] * (
        load("lab").processors() > 1)
    for flags, words in [(["--most", "4"], "expected 8 or more"),
                         (["--model", "2,2"], "expected layers, heads and channels")]:
        done = make(4, *flags)
        assert done.returncode == 1 and words in done.stderr, done.stderr
        assert done.stderr.count("\n") == 1, done.stderr


# ---- 8: does it fit, is it fast? ----

def test_peak():
    """The most memory of the program and of what it starts, not of who watches; its own status."""
    script = testing.lab_path("peak.py")
    hold = f"{sys.executable} -c 'x = b\"1\" * (60 << 20); import time; time.sleep(0.3)'"
    found = {}
    for name, command in [("sleep", "sleep 0.2"), ("held", f"exec {hold}"),
                          ("child", f"{hold}; true")]:
        done = subprocess.run([sys.executable, script, "sh", "-c", command],
                              capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found[name] = int(done.stdout.split()[-1]) / 2 ** 20
    if sys.platform == "linux":                              # python itself holds more than 5 MB
        assert found["sleep"] < 5.0, found
    assert 60.0 < found["held"] < 90.0 and 60.0 < found["child"] < 90.0, found
    done = subprocess.run([sys.executable, script, "sh", "-c", "exit 3"],
                          capture_output=True, check=False)
    assert done.returncode == 3, done.returncode
    for flags, status, words in [(["--help"], 0, ""), (["-h"], 0, ""), ([], 1, "no command"),
                                 (["./nowhere"], 1, "./nowhere: cannot be started: No such file")]:
        done = subprocess.run([sys.executable, script] + flags, capture_output=True, text=True,
                              check=False)
        assert done.returncode == status and words in done.stderr, done.stderr
        assert done.stderr.count("\n") == status, done.stderr          # one line, or none
        assert ("scripts/lab/shared/peak.py ./train_gpt2" in done.stdout) == (flags != ["./nowhere"])


def test_fits_memory():
    """Totals are the sums of their classes; ZeRO's formulas once more, from fit.py."""
    fit, rows = load("fit"), table(8, "memory")
    assert len(rows) == 28
    fields = ["params", "grads", "moments", "activations", "logits", "passing", "rest"]
    for row in rows:
        total = sum(float(row[f"{field}_bytes"]) for field in fields)
        assert close(total, float(row["total_bytes"])), row
        paper = fit.zero_bytes(float(row["parameters"]), int(row["gpus"]), int(row["zero"]))
        assert close(paper, float(row["textbook_bytes"])), (paper, row)
        assert (total <= 79e9) == (row["fits"] == "1"), row
    for name in {row["model"] for row in rows}:
        totals = [float(row["total_bytes"]) for row in rows if row["model"] == name]
        assert sorted(totals, reverse=True) == totals and len(totals) == 4, (name, totals)


def test_fits_published():
    """175B and 300B tokens: 288 years on a V100, 34 days on 1,024 A100 (Narayanan 2021). Within 1%:
    the paper's N is rounded."""
    line = next(x for x in tiny(8)["said"] if "8ND" in x)
    years, days = (int(line.split(word)[0].split()[-1]) for word in (" years", " days"))
    assert abs(years / 288 - 1) <= 0.01 and days == 34, line
    sizes = {row["model"]: int(row["parameters"]) for row in table(8, "memory")}
    assert [round(sizes[x] / 1e6) for x in ("124M", "355M", "774M", "1.6B")] == [
        124, 355, 774, 1558], sizes
    assert [round(sizes[x] / 1e9) for x in ("7B", "70B", "175B")] == [7, 65, 175], sizes


def test_fits_days():
    """More GPUs are never more than as many times faster; days follow from the seconds a step."""
    rows = table(8, "days")
    alone = {row["model"]: float(row["modelled_days"]) for row in rows if row["gpus"] == "1"}
    assert len(alone) == 7
    for row in rows:
        days, count = float(row["modelled_days"]), int(row["gpus"])
        steps = math.ceil(float(row["tokens"]) / float(row["batch_tokens"]))
        assert close(days, steps * float(row["seconds_per_step"]) / 86400, 1e-3), row
        assert close(24 * days * count, float(row["modelled_gpu_hours"])), row
        assert alone[row["model"]] <= days * count * (1 + 1e-9), row
        sequence = 2048 if row["model"].removesuffix("B") in ("7", "70", "175") else 1024
        assert count * int(row["micro_batch"]) * sequence <= int(row["batch_tokens"]), row


def test_fits_mixtures():
    """The fastest mixture uses all GPUs and fits; where ZeRO 3 alone does, there is a mixture."""
    mixed = {(row["model"], row["gpus"]): row for row in table(8, "mixtures")}
    for (name, gpus), row in mixed.items():
        ways = [int(row[way]) for way in ("data", "tensor", "pipeline")]
        assert math.prod(ways) == int(gpus), row
        assert float(row["bytes_total"]) <= 79e9, row
    for row in table(8, "memory"):
        if row["model"] in ("7B", "70B", "175B") and row["fits"] == "1":
            assert (row["model"], row["gpus"]) in mixed, row


def test_fits_allocated():
    """The plan against memory that was held: within 5%, and what each ZeRO stage saves within 5%
    of the whole, too."""
    rows = table(8, "allocated")
    assert len(rows) == (5 if load("lab").has_mpi() else 1), rows
    held = {row["case"]: float(row["measured_bytes"]) for row in rows}
    plan = {row["case"]: float(row["planned_bytes"]) for row in rows}
    for case in held:
        assert abs(plan[case] / held[case] - 1) <= 0.05, (case, plan[case], held[case])
    stages = {events[0]["zero"] for _, events in logs(8)}
    assert stages == ({0, 1, 2, 3} if len(rows) == 5 else {0}), stages
    if len(rows) == 5:
        whole = "2 ranks, ZeRO 0"
        for stage in (1, 2, 3):
            case = f"2 ranks, ZeRO {stage}"
            saved = (plan[whole] - plan[case], held[whole] - held[case])
            assert abs(saved[0] - saved[1]) <= 0.05 * held[whole], (case, saved)
            assert saved[1] > 0.05 * held[whole], (case, saved)


def test_fits_seconds():
    """The median of the updates in the log."""
    row = table(8, "seconds")[0]
    made = next(events for flags, events in logs(8) if flags.get("--channels") == "256"
                and events[0]["ranks"] == 1)
    seconds = [x["seconds"] for x in made if x["event"] == "step"][2:]
    assert close(float(row["measured_seconds"]), statistics.median(seconds)), (row, seconds)


def test_fits_observes():
    """Modelled numbers have no verdict."""
    summary = tiny(8)
    assert summary["verdict"] == "observed", summary["why"]
    planner = [line for line in summary["said"] if line.startswith("The planner, beside")]
    assert len(planner) == 2, planner


def test_fits_batches():
    """A GPU holds as many sequences as its memory has room for their activations, and no more."""
    for row in table(8, "activations"):
        one, each = float(row["total_bytes_of_one"]), float(row["activation_bytes_of_one"])
        most = int(row["largest_micro_batch"])
        assert one + (most - 1) * each <= 79e9, row          # logits grow as well
        assert one + 1.5 * most * each > 0.5 * 79e9, row
    rows = table(8, "attention")
    assert len({row["activation_bytes_a_token"] for row in rows}) == 1, "linear in tokens"
    for row in rows:
        wanted = 12 * (34 * 768 + 5 * 12 * int(row["seq_len"]))
        assert close(float(row["with_matrices_bytes_a_token"]), wanted), row


def test_fits_flops_per_byte():
    """In proportion to the tokens of a worker; the size of the model hardly matters. Two ranks send
    a gradient of 4 bytes a parameter once."""
    rows = table(8, "flops_per_byte")
    for row in rows:
        found = float(row["flops_per_byte"]) / int(row["tokens_a_worker"])
        if row["workers"] == "2":
            assert close(float(row["bytes_sent"]), 4.0 * int(row["parameters"])), row
        assert 1.2 < found < 1.7, row
    sizes = {int(row["parameters"]) for row in rows}
    assert max(sizes) > 1e4 * min(sizes), sizes


def test_fits_contrastive():
    """Accumulated gradients are the batch's for a sum over samples, and not for a contrastive loss;
    a micro-batch of one pair has no wrong answer and so no gradient."""
    module = experiment(8)
    rows = {(row[0], row[2]): row[3] for row in module.contrastive_rows()}
    for n in (4, 16):
        assert close(rows["language model", n], rows["language model", 1])
        assert abs(rows["contrastive", n] / rows["contrastive", 1] - 1) > 0.1, rows
    assert "contrastive" in " ".join(tiny(8)["said"])


# ---- all ----

def test_machine_figures():
    """Each has its picture, its text and its labels; without matplotlib, its tables alone."""
    for number, names in [(4, ["one_device", "tiles"]), (8, ["memory", "days"])]:
        summary = tiny(number)
        figures = {figure["name"]: figure for figure in summary["figures"]}
        assert set(figures) == (set(names) if MATPLOTLIB else set()), set(figures)
        for figure in figures.values():
            assert len(figure["alt"]) > 40, figure
            with open(os.path.join(folder(number), figure["svg"])) as f:
                drawn = f.read()
            word = {"memory": "planned", "days": "modelled", "tiles": "modelled",
                    "one_device": "b_half"}[figure["name"]]
            assert word in drawn, (figure["name"], word)
            with open(os.path.join(folder(number), figure["png"]), "rb") as f:
                assert f.read(8) == b"\x89PNG\r\n\x1a\n"


if __name__ == "__main__":
    TMP = tempfile.mkdtemp(prefix="lab_machine.")
    os.environ["MPLCONFIGDIR"] = TMP                         # nothing in the user's home
    os.environ["OMP_WAIT_POLICY"] = "passive"
    PYTHON = testing.find_python() or sys.executable
    MATPLOTLIB = testing.find_python() is not None
    try:
        sys.exit(testing.run_tests(globals(), sys.argv[1:]))
    finally:
        shutil.rmtree(TMP)
