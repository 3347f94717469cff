#!/usr/bin/env python3
"""The laboratory's experiments on one machine: 4 saturation, 8 fits. Their rules on numbers made
up here, then each experiment at --tiny, read back from its tables."""
import csv
import functools
import importlib.util
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True   # before the next line, so that it leaves no __pycache__
import testing

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAB = os.path.join(ROOT, "scripts", "lab")
NAMES = {4: "saturation", 8: "fits"}
sys.path.insert(0, LAB)


def load(name):
    """An experiment, or a module beside it, as a module."""
    spec = importlib.util.spec_from_file_location("lab_" + name, os.path.join(LAB, name + ".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    script = os.path.join(LAB, f"{number:02d}_{NAMES[number]}.py")
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
        if name.endswith(".json") and not name.startswith("shards_"):
            with open(os.path.join(runs, name)) as f:
                command = json.load(f)["command"]
            with open(os.path.join(runs, name) + "l") as f:
                events = [json.loads(line) for line in f]
            flags = {key: value for key, value in zip(command, command[1:])
                     if key.startswith("--")}
            yield flags, events


def close(a, b, tolerance=1e-6):
    return abs(a - b) <= tolerance * max(abs(a), abs(b))


# ---- 4: one device saturates ----

def test_saturation_tiles():
    """SCIENCE: 768 columns, 1,024 rows a sequence, tiles of 128 x 256 on 132 units."""
    module = experiment(4)
    found = [module.tile_efficiency(b, 768) for b in (1, 4, 11)]
    assert [round(100 * x) for x in found] == [18, 73, 100], found
    assert close(module.tile_efficiency(12, 768), 288 / 396), "a twelfth sequence opens a wave"


def test_saturation_b_sat():
    """A device with fixed + b * each seconds a micro-batch: speed b/(f + b) with f = 3 sequences
    has 90% of what 256 reaches, 256/259, from 25 on: among the powers of two, 32."""
    module = experiment(4)
    s = module.Series("made up", [], 1, 32, module.powers(256), 64, 0)
    for setting in s.settings():
        speed = setting[0] / (3.0 + setting[0])
        s.speeds[setting] = [0.5 * speed, speed, speed * (3.0 if setting[0] == 16 else 1.1)]
    assert s.b_sat() == 32, s.b_sat()
    assert s.b_sat_range() == (16, 32), "the last round alone has its best at 16"
    s.peaks = {x: [10 ** 7 * x[0]] for x in s.settings()}
    assert module.claims(s) == [], module.claims(s)
    s.speeds[32, 2] = [0.5 * s.speed((64, 1))] * 3
    assert len(module.claims(s)) == 1 and "micro-batches of 32" in module.claims(s)[0]


def test_peak():
    """The most memory of the program and of what it starts, not of who watches; its own status."""
    script = os.path.join(LAB, "peak.py")
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


def test_saturation_speed():
    """Each speed of the table is the median over its rounds of tokens / the median update."""
    module, made = experiment(4), {}
    for flags, events in logs(4):
        seconds = statistics.median([x["seconds"] for x in events if x["event"] == "step"][2:])
        start = events[0]
        setting = (start["threads_used"], start["micro_batch"], start["batch_tokens"])
        made.setdefault(setting, []).append(start["batch_tokens"] / seconds)
    rows = table(4, "speed")
    assert len(rows) == len(made), (len(rows), len(made))
    for row in rows:
        setting = tuple(int(row[key]) for key in
                        ("threads", "micro_batch_sequences", "batch_tokens"))
        assert len(made[setting]) == 2, "two rounds"
        assert close(float(row["tokens_per_second"]), statistics.median(made[setting])), row
        assert int(row["batch_tokens"]) == (int(row["micro_batch_tokens"])
                                            * int(row["accumulation"])), row
    batches = {(row["threads"], row["batch_tokens"]) for row in rows
               if int(row["accumulation"]) > 1}
    assert batches == {(str(n), str(8 * module.T)) for n in {1, load("lab").processors()}}, batches


def test_saturation_memory():
    """More sequences at once take more; as many in turn do not. A run holds at least what its log
    says that it allocates."""
    least = max(sum(events[0][f"bytes_{x}"] for x in ("params", "grads", "moments"))
                for _, events in logs(4))
    rows = [row for row in table(4, "speed") if row["threads"] == "1"]
    peak = {(int(row["micro_batch_sequences"]), int(row["accumulation"])): int(row["peak_bytes"])
            for row in rows}
    assert min(peak.values()) > least, (peak, least)
    each = (peak[8, 1] - peak[1, 1]) / 7
    assert each > 100e3, f"{each:.0f} bytes a sequence: activations alone are 110 kB"
    assert peak[1, 8] - peak[1, 1] < 0.3 * (peak[8, 1] - peak[1, 1]), peak


def test_saturation_says():
    summary, rows = tiny(4), table(4, "b_sat")
    for row in rows:
        words = f"{row['series']}: b_sat is {row['b_sat_sequences']} sequences"
        assert any(line.startswith(words) for line in summary["said"]), words
        speeds = {int(x["micro_batch_sequences"]): float(x["tokens_per_second"])
                  for x in table(4, "speed")
                  if x["series"] == row["series"] and x["accumulation"] == "1"}
        fast = [b for b, v in speeds.items() if v >= 0.9 * max(speeds.values())]
        assert int(row["b_sat_sequences"]) == min(fast), (row, speeds)


# ---- 8: does it fit, is it fast? ----

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
    """The median and the quartiles of the updates in the log; a claim needs all three inside."""
    module, row = experiment(8), table(8, "seconds")[0]
    made = next(events for flags, events in logs(8) if flags.get("--channels") == "256"
                and events[0]["ranks"] == 1)
    seconds = sorted(x["seconds"] for x in made if x["event"] == "step")
    assert float(row["measured_seconds"]) in [float(f"{x:.9g}") for x in seconds] or close(
        float(row["measured_seconds"]), statistics.median(
            [x["seconds"] for x in made if x["event"] == "step"][2:])), (row, seconds)
    for times, wanted in [((1.0, 1.0, 0.9, 1.1), True), ((1.0, 2.0, 1.9, 2.1), False),
                          ((1.0, 1.2, 1.1, 1.6), None), ((1.0, 1.5, 1.2, 1.6), None)]:
        assert module.time_claim(module.Timing(*times)) is wanted, times


def test_fits_verdict():
    module, summary = experiment(8), tiny(8)
    times = {(row["model"], int(row["gpus"])): row for row in table(8, "days")}
    share = {name: float(times[name, 1]["modelled_days"]) / (8 * float(
        times[name, 8]["modelled_days"])) for name in ("124M", "355M", "774M", "1.6B")}
    plans = {key: {"days": float(row["modelled_days"])} for key, row in times.items()}
    for name, value in share.items():
        assert close(module.efficiency(plans, name, 8), value), name
    words = summary["why"].split("not true")[0]
    assert ("eight GPUs" in words) == all(x >= 0.9 for x in share.values()), (share, words)


# ---- all ----

def test_machine_figures():
    """Each has its picture, its text and its labels; without matplotlib, its tables alone."""
    for number, names in [(4, ["saturation", "tiles", "shards"]),
                          (8, ["memory", "days", "here"])]:
        summary = tiny(number)
        figures = {figure["name"]: figure for figure in summary["figures"]}
        assert set(figures) == (set(names) if MATPLOTLIB else set()), set(figures)
        for figure in figures.values():
            assert len(figure["alt"]) > 40, figure
            with open(os.path.join(folder(number), figure["svg"])) as f:
                drawn = f.read()
            word = {"memory": "planned", "here": "measured here", "days": "modelled",
                    "tiles": "modelled", "saturation": "MB", "shards": "width"}[figure["name"]]
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
        sys.exit(testing.run_tests(globals()))
    finally:
        shutil.rmtree(TMP)
