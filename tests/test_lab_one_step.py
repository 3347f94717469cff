#!/usr/bin/env python3
"""scripts/lab/experiments/01_one_step.py and one_step.c: the estimates on a planted quadratic, and
runs at a tiny size. tests/test_one_step.c holds the C estimators against a known Hessian."""
import csv
import importlib.util
import json
import math
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True   # before the next line, so that it leaves no __pycache__
import testing

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAB = os.path.join(ROOT, "scripts", "lab")
PROGRAM = os.path.join(ROOT, "build", "one_step")
NAME = "01_one_step"

# One parameter direction after another: gradient, curvature, standard deviation of one token's
# gradient. The constants follow by hand, with P = 1.
G, H, S = [0.3, -0.2, 0.1], [1.0, 0.5, 0.2], [2.0, 1.5, 1.0]
SLOPE = sum(g * g for g in G)
BEND = sum(h * g * g for g, h in zip(G, H))
B_NOISE = sum(h * s * s for h, s in zip(H, S)) / BEND
E_MAX, DL_MAX = SLOPE / BEND, SLOPE * SLOPE / BEND / 2


def step_fall(rng, rate, batch):
    noisy = [g + rng.gauss(0.0, s / math.sqrt(batch)) for g, s in zip(G, S)]
    return (rate * sum(a * b for a, b in zip(G, noisy))
            - rate * rate / 2 * sum(h * d * d for h, d in zip(H, noisy)))


def planted(draws, seed=1, off=1.0, scale=1.0):
    """Steps whose falls come from the quadratic. off: the prediction of B_noise is so many times
    too small; scale: of the rates that were tried, beside the best."""
    rng = random.Random(seed)
    steps = one_step.Steps.__new__(one_step.Steps)
    steps.slope, steps.curvature, steps.loss = SLOPE, BEND, 2.0
    steps.e_max, steps.dl_max, steps.b_noise = E_MAX, DL_MAX, B_NOISE / off
    steps.lists = {"noise_curvature": [B_NOISE * BEND / off] * 64}
    steps.falls = {}
    for k in range(-4, 5):
        batch = B_NOISE * 2.0 ** k
        best = scale * E_MAX / (1 + B_NOISE / batch)
        rates = [best * 2.0 ** j for j in range(-3, 3)]
        steps.falls[batch] = {rate: [] for rate in rates}
        for _ in range(draws):
            state = rng.getstate()                           # one draw of the batch for all rates
            for rate in rates:
                rng.setstate(state)
                steps.falls[batch][rate].append(step_fall(rng, rate, batch))
    return steps


def near(found, wanted, relative):
    assert abs(found / wanted - 1.0) <= relative, f"{found}, not {wanted}"


def test_one_step_planted():
    """Within 2%, also where no rate that was tried is the best one."""
    for scale in (1.0, 1.3):
        m = one_step.Measured(planted(8000, scale=scale), draws=20)
        top, b_noise = m.fits["fall"]
        near(top, DL_MAX, 0.02)
        near(b_noise, B_NOISE, 0.02)
        near(m.fits["rate"][0], E_MAX, 0.02)
        for batch, fall in m.fall.items():
            near(fall, DL_MAX / (1 + B_NOISE / batch), 0.05)


def test_one_step_half_chooses():
    """The half that chooses its rate reports its luck too; the other half is right on average."""
    rng, own, other = random.Random(2), [], []
    batch = B_NOISE / 16
    rates = [E_MAX / 17 * 2.0 ** j for j in range(-3, 3)]
    truth = max(rate * SLOPE - rate * rate / 2 * (BEND + B_NOISE * BEND / batch) for rate in rates)
    for _ in range(3000):
        falls = {rate: [] for rate in rates}
        for _ in range(8):
            state = rng.getstate()
            for rate in rates:
                rng.setstate(state)
                falls[rate].append(step_fall(rng, rate, batch))
        half = [0, 2, 4, 6]
        own.append(one_step.tuned(falls, (half, half))[0])
        other.append(one_step.tuned(falls, one_step.split(falls))[0])
    mean, error = one_step.mean, lambda v: math.sqrt(one_step.mean(
        [(x - one_step.mean(v)) ** 2 for x in v]) / len(v))
    assert mean(own) > truth + 5 * error(own) and mean(own) > 1.3 * truth, (mean(own), truth)
    assert mean(other) < truth + 3 * error(other), (mean(other), truth, error(other))


def test_one_step_parabola():
    rates = [1.0, 2.0, 4.0, 8.0]
    falls = [6 * e - e * e for e in rates]                   # best at 3, 9 high
    rate, best = one_step.parabola(rates, falls)
    near(rate, 3.0, 1e-12)
    near(one_step.at_rate(rates, falls, rate, best), 9.0, 1e-12)
    rising = [e for e in rates]
    assert one_step.parabola(rates, rising) == (8.0, None)
    assert one_step.at_rate(rates, rising, 8.0, None) == 8.0


def test_one_step_weights():
    """A point that is known badly hardly moves the fit. One below zero is left out."""
    points = {2.0 ** k: 3.0 / (1 + 100.0 / 2.0 ** k) for k in range(2, 12)}
    errors = dict.fromkeys(points, 0.05)
    points[4.0], errors[4.0], points[8.0] = 9.0, 20.0, -1.0
    top, b_noise = one_step.curve_fit(points, errors)
    near(top, 3.0, 0.01)
    near(b_noise, 100.0, 0.01)
    assert one_step.curve_fit({b: -1.0 for b in points}, errors) is None


def test_one_step_endpoint():
    """One at the limit leaves it undecided; a wrong prediction is refuted; the right one passes. Only the
    rows of B_noise and Adam's direction count, and only with both checkpoints."""
    def rows(steps, draws=60):
        m = one_step.Measured(steps, draws)
        (_, b_noise), (low, high) = m.fits["fall"], m.ratios()["b_noise"]
        return [{"checkpoint": name, "direction": direction, "quantity": quantity, "ratio_low": low,
                 "fitted_over_predicted": b_noise / steps.b_noise, "ratio_high": high}
                for name in ("constant", "annealed") for direction in ("adam", "sgd")
                for quantity in ("b_noise", "dl_max")]
    plan = endpoints.of(NAME)
    for steps, word in [(planted(3000), "as predicted"), (planted(400, off=2.5), "refuted"),
                        (planted(400, off=1.5), "undecided")]:
        found = one_step.endpoint(rows(steps))
        assert len(found) == 2 and endpoints.verdict(plan, found)[0] == word, (word, found)
    one = [row for row in rows(planted(400)) if row["checkpoint"] == "annealed"]
    assert one_step.endpoint(one) == []
    kept = one_step.kept.table(NAME, "fits")
    assert one_step.kept.summary(NAME)["verdict"] == endpoints.verdict(
        plan, one_step.endpoint(kept))[0], "the committed verdict is not that of its table"


def test_one_step_interval():
    """The 90% range of B_noise holds the planted one in most of 30 experiments."""
    held = 0
    for seed in range(30):
        low, high = one_step.Measured(planted(32, seed), draws=60).ratios()["b_noise"]
        held += low <= 1.0 <= high
    assert held >= 22, held


# ---- the experiment at its tiny size ----

def experiment(*more, python=None, flags=()):
    done = subprocess.run([python or PYTHON, *flags, testing.lab_path(NAME + ".py"), "--tiny",
                           "--jobs", "2", "--out", TMP, *more],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"status {done.returncode}: {done.stderr.strip()[-300:]}"
    return done


def printed(run):
    """{what: [values]} and [(batch, rate, draw, fall)] of a run of one_step."""
    lists, falls = {}, []
    with open(os.path.join(TMP, NAME, "runs", run + ".txt")) as f:
        for row in csv.DictReader(f):
            lists.setdefault(row["what"], []).append(float(row["value"]))
            if row["what"] == "fall":
                falls.append((float(row["batch"]), float(row["rate"]), int(row["draw"])))
    return lists, falls


def table(which):
    with open(os.path.join(TMP, NAME, which + ".csv"), newline="") as f:
        return list(csv.DictReader(f))


def test_lab_01_one_step_runs():
    experiment()
    with open(os.path.join(TMP, NAME, "summary.json")) as f:
        summary = json.load(f)
    assert summary["verdict"] in ("as predicted", "refuted", "undecided"), summary
    assert all(said.endswith(".") for said in summary["said"]), summary["said"]
    assert len(table("points")) == 4 * 5 and len(table("noise_scales")) == 2
    assert {row["piece_tokens"] for row in table("context")} == {"64", "8"}
    assert [row["whole_tokens"] for row in table("pieces")] == ["64"]


def test_lab_01_prediction():
    """Constants of the table are what gradients and curvature give; at the rate predicted best the
    mean fall of large batches is the one predicted, within a factor of two."""
    lists, falls = printed("constant_adam")
    near(lists["e_max"][0], lists["slope"][0] / lists["curvature"][0], 1e-6)
    near(lists["dl_max"][0], lists["e_max"][0] * lists["slope"][0] / 2, 1e-6)
    near(lists["b_noise"][0], sum(lists["noise_curvature"]) / 8 / lists["curvature"][0], 1e-6)
    near(sum(lists["noise_double"]), sum(lists["noise_curvature"][:4]), 0.02)
    assert lists["length"][0] < 0.02, lists["length"]
    batches = sorted({batch for batch, _, _ in falls})
    assert len(batches) == 5 and len(falls) == 6 * (2 * 4 + 3 * 4), len(falls)
    top = batches[-1]
    best = lists["e_max"][0] / (1 + lists["b_noise"][0] / top)
    found = [value for value, (batch, rate, _) in zip(lists["fall"], falls)
             if batch == top and abs(rate / best - 1) < 1e-6]
    wanted = lists["dl_max"][0] / (1 + lists["b_noise"][0] / top)
    assert len(found) == 4 and 0.5 < sum(found) / 4 / wanted < 2.0, (found, wanted)


def test_lab_01_loss_is_the_trainers():
    """The loss that steps start from is the trainer's own of the checkpoint."""
    with open(os.path.join(TMP, NAME, "runs", "constant.jsonl")) as f:
        losses = [json.loads(line)["val_loss"] for line in f if '"event":"eval"' in line]
    near(printed("constant_adam")[0]["loss"][0], losses[-1], 1e-6)
    near(printed("constant_sgd")[0]["loss"][0], losses[-1], 1e-6)


def test_lab_01_cut():
    """Cutting changes the step's gradient, and neither the loss nor the whole gradient's length."""
    whole, cut = (printed(f"long_adam_cut{n}")[0] for n in (64, 8))
    assert whole["loss"] == cut["loss"] and whole["slope"] != cut["slope"]
    near(whole["slope"][0], whole["gradient_metric2"][0], 1e-6)
    assert abs(cut["slope"][0] / cut["gradient_metric2"][0] - 1.0) > 1e-3


def test_lab_01_goes_on():
    """A run that is there is not made again; without matplotlib the numbers are there."""
    before = os.path.getmtime(os.path.join(TMP, NAME, "runs", "constant_adam.txt"))
    points = table("points")
    done = experiment("--redraw", python=sys.executable, flags=("-S", "-E"))
    assert "no pictures without matplotlib" in done.stderr, done.stderr
    assert os.path.getmtime(os.path.join(TMP, NAME, "runs", "constant_adam.txt")) == before
    assert table("points") == points


def test_lab_01_another_checkpoint():
    """Steps from a checkpoint that is trained otherwise are other runs."""
    path = os.path.join(TMP, NAME, "runs", "constant_adam.json")
    with open(path) as f:
        record = json.load(f)
    record["env"]["CHECKPOINT"] = record["env"]["CHECKPOINT"].replace("--lr ", "--lr 2")
    with open(path, "w") as f:
        json.dump(record, f)
    experiment()
    with open(path) as f:
        assert "--lr 0.004" in json.load(f)["env"]["CHECKPOINT"]


def test_lab_01_metric():
    """Where AdamW's second moment is the same for all parameters, Adam's direction is SGD's times
    1/sqrt(v_hat): the best rate is so many times smaller, and B_noise the same."""
    run = os.path.join(TMP, "flat")
    shutil.copytree(os.path.join(TMP, NAME, "runs", "constant"), run, symlinks=True)
    path = os.path.join(run, "latest", "optimizer.safetensors")
    with open(path, "rb") as f:
        content = bytearray(f.read())
    size = 8 + struct.unpack("<Q", content[:8])[0]
    value = 4e-6 * (1 - 0.95 ** 64)                          # v after 64 updates; v_hat is 4e-6
    for name, tensor in json.loads(content[8:size]).items():
        if name.startswith("exp_avg_sq."):
            low, high = tensor["data_offsets"]
            content[size + low:size + high] = struct.pack("<f", value) * ((high - low) // 4)
    with open(path, "wb") as f:
        f.write(content)
    found = {}
    for direction in ("sgd", "adam"):
        done = subprocess.run(
            [PROGRAM, "--direction", direction, "--span", "0", "--gradient-tokens", "8192",
             "--hessian-tokens", "1024", "--sequences", "8", "--", "--init", run, "--data",
             os.path.join(TMP, "data", "tales_1000000"), "--seed", "1", "--seq-len", "32",
             "--eval-tokens", "1024", "--threads", "1"],
            capture_output=True, text=True, check=True)
        found[direction] = {row["what"]: float(row["value"])
                            for row in csv.DictReader(done.stdout.splitlines())}
    near(found["adam"]["e_max"], found["sgd"]["e_max"] * 2e-3, 0.01)
    near(found["adam"]["dl_max"], found["sgd"]["dl_max"], 0.01)
    near(found["adam"]["b_noise"], found["sgd"]["b_noise"], 0.01)


def test_lab_01_refusals():
    run = os.path.join(TMP, NAME, "runs", "constant")
    data = os.path.join(TMP, "data", "tales_1000000")
    for flags, words in [(["--", "--seed", "2"], "--seed: the run began with 1"),
                         (["--cut", "5", "--", "--seed", "1"], "--cut: 5 does not divide"),
                         (["--sequences", "1", "--"], "--sequences: got '1'")]:
        done = subprocess.run([PROGRAM, *flags, "--init", run, "--data", data, "--threads", "1"],
                              capture_output=True, text=True, check=False)
        assert done.returncode == 1 and words in done.stderr, done.stderr


if __name__ == "__main__":
    if not os.access(os.path.join(ROOT, "train_gpt2"), os.X_OK):
        print("skip lab_one_step: needs ./train_gpt2; make builds it")
        sys.exit(0)
    PYTHON = testing.find_python() or sys.executable
    sys.path[:0] = testing.LAB_ROOMS
    one_step = testing.load(NAME)
    import endpoints
    TMP = tempfile.mkdtemp(prefix="lab_one_step.")
    os.environ["MPLCONFIGDIR"] = TMP                         # nothing in the user's home
    try:
        sys.exit(testing.run_tests(globals(), sys.argv[1:]))
    finally:
        shutil.rmtree(TMP)
