#!/usr/bin/env python3
"""The laboratory's page: the model behind its calculator, against values computed by hand and the
closed forms; calculator.js against the model, in a browser without a window."""
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import browser
import testing

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAB = os.path.join(ROOT, "scripts", "lab")
sys.path[:0] = testing.LAB_ROOMS
import fit
import kept
import model
import page
from model import Costs, Law, Network, Scenario

FREE = Network(1e30, 1e30, 0.0, 0.0, 8)


def close(a, b, share=1e-12):
    return abs(a - b) <= share * abs(b)


# ---- the model, by hand ----

def test_page_updates():
    assert model.updates(Law(100.0, 400.0), 400) == 200.0
    targets = [{"loss": 4.0, "fit": [100.0, 1000.0]}, {"loss": 1.0, "fit": [400.0, 9000.0]}]
    halfway = model.law_at(targets, 2.0)
    assert close(halfway.s_min, 200.0) and close(halfway.b_crit, 3000.0), halfway
    assert model.law_at(targets, 4.0) == Law(100.0, 1000.0)
    assert close(model.law_at(targets, 1.0).b_crit, 9000.0)
    for loss in (0.99, 4.01):
        try:
            model.law_at(targets, loss)
            raise AssertionError("extrapolates")
        except ValueError:
            pass
    assert close(model.profile(Law(100.0, 100.0), 300.0, [100]).s_min, 50.0)   # 100 (1+1)/(1+3)
    limited = model.law_at([dict(t, low=t["fit"], high=t["fit"], seen=seen) for t, seen in zip(
        targets, [[100.0, 64, 8192], [400.0, 512, 16384]])], 2.0)
    assert close(limited.fewest, 200.0) and (limited.first, limited.last) == (512, 8192), limited
    assert model.updates(limited._replace(fewest=250.0), 1e9) == 250.0
    other = model.profile(Law(100.0, 500.0), 700.0, [32, 500, 8192])
    points = [(b, model.updates(Law(100.0, 500.0), b)) for b in (32, 500, 8192)]

    def squares(s_min):
        return sum(math.log(s / s_min / (1 + 700.0 / b)) ** 2 for b, s in points)
    assert squares(other.s_min) < min(squares(0.999 * other.s_min), squares(1.001 * other.s_min))


def test_page_exchange():
    one = model.exchange_ways(1e9, 4, Network(1e9, 1.0, 0.01, 9.0, 4))         # one machine of 4
    assert set(one) == {"ring", "tree"}
    assert close(one["ring"], 2*0.75 + 6*0.01) and close(one["tree"], 2.0 + 2*2*0.01), one
    two = model.exchange_ways(1e9, 4, Network(1e9, 1e8, 0.01, 0.1, 2))         # two machines of 2
    assert close(two["ring"], 1.5*5 + 6*0.1), two            # two links of 1e8 side by side
    assert close(two["tree"], 2*5 + 2*(0.01 + 0.1)), two
    assert close(two["two levels"], (1.0 + 0.02) + 2e9/4/1e8 + 2*0.1), two
    assert model.exchange_ways(1e9, 1, FREE) == {"none": 0.0}
    assert "two levels" not in model.exchange_ways(1e9, 6, Network(1e9, 1e8, 0, 0, 4))
    assert close(one["ring"], fit.ring_seconds(1e9, 4, 1e9, 0.01))


def test_page_bytes():
    gpu = {"parameters": 10.0, "grad_bytes": 4, "param_bytes": 2, "seq_len": 8,
           "activation_bytes": 5, "state_bytes": [2, 4, 12]}
    assert [model.exchanged_bytes(gpu, stage) for stage in range(4)] == [40.0, 30.0, 30.0, 40.0]
    for stage in range(4):
        sharded = [12, 4, 2][:stage]                         # state, gradients, parameters
        want = 40 + 10*(18 - sum(sharded) + sum(sharded)/4)
        assert model.memory_bytes(gpu, 4, stage) == want, stage
    assert model.memory_bytes(gpu, 4, 1) == 40 + 10*(2 + 4 + 3)


def test_page_messages():
    """Among 4 devices with 0.01 s a message, a tree has 4 latencies for each message of an
    update."""
    net = Network(1e9, 1e9, 0.01, 0.01, 4)
    one, five = (model.costs_of(dict(SLOW_START, messages=m), Scenario(1.0, 4, None, net, 1.0, 0,
                                                                       False)).c for m in (1, 5))
    assert close(five - one, 4 * 4 * 0.01), (one, five)


def test_page_step():
    costs = Costs(1.0, 0.1, 5.0)
    assert close(model.step_seconds(costs, 90, True), 1.0 + 9.0 + 1.0)         # 4 of 5 overlap
    assert model.step_seconds(costs, 90, False) == 15.0
    assert close(model.step_seconds(costs, 900, True), 91.0)


def test_page_best_batch():
    """Every multiple is tried; of a law that was measured, those among the measured batches."""
    rng = random.Random(1)
    for k in range(300):
        law = Law(10.0, 10 ** rng.uniform(1, 4))
        if k % 2:
            law = law._replace(fewest=rng.choice([9.0, 11.0, 20.0]), first=rng.choice([64, 512]),
                               last=rng.choice([8192, 16384]))
        costs = Costs(10 ** rng.uniform(-2, 3), 1.0, rng.choice([0.0, 10 ** rng.uniform(-1, 4)]))
        n, seq_len, overlap = rng.choice([1, 2, 8, 64]), rng.choice([1, 32]), rng.random() < 0.5
        found = model.best_batch(law, costs, n, seq_len, overlap)
        least = min(model.target_seconds(law, costs, n * seq_len * k, n, overlap)
                    for k in range(1, 4000) if law.first <= n * seq_len * k <= law.last)
        assert law.first <= found <= law.last
        assert found % (n * seq_len) == 0
        assert model.target_seconds(law, costs, found, n, overlap) <= least * (1 + 1e-12), costs


def test_page_closed_forms():
    """Free link, a sequence of one token: B(n) = sqrt(B_crit b_half n), device-hours
    E_min tau (1 + sqrt(n b_half/B_crit))^2, doubled at n_2; a link that is not hidden adds c to
    t_0."""
    law, tau, t_0 = Law(100.0, 1e8), 1e-6, 0.1
    b_half = t_0 / tau
    def hours(n, c=0.0):
        costs = Costs(t_0, tau, c)
        batch = model.best_batch(law, costs, n, 1, False)
        assert close(batch, math.sqrt(law.b_crit * (t_0 + c) / tau * n), 1e-3), (n, batch)
        return n * model.target_seconds(law, costs, batch, n, False)
    for n in (1, 10, 100):
        for c in (0.0, 0.3):
            want = law.s_min * law.b_crit * tau * (1 + math.sqrt(n*(t_0 + c)/tau / law.b_crit)) ** 2
            assert close(hours(n, c), want, 1e-6), n
    x = b_half / law.b_crit
    n_2 = (math.sqrt(2.0) * (1 + math.sqrt(x)) - 1) ** 2 / x
    assert close(hours(round(n_2)) / hours(1), 2.0, 1e-3), n_2


def test_page_planned():
    """124M: 2.49 billion tokens; the paper's batch for 20% more data is 904 sequences of 512."""
    small = next(m for m in model.read_models() if "124M" in m["name"])
    s_min, b_crit = small["targets"][0]["fit"]
    assert close(s_min * b_crit, 20 * 124439808) and close(b_crit, 5 * 512 * 904, 1e-3), b_crit
    assert close(small["line"]["fit"][1], 854438400 / 395.6e12)
    assert close(small["optimizer_seconds"], 1.1144e-3, 1e-4)


def test_page_ranges():
    """Low and high: over the ends of the ranges of the law and of the line, B given."""
    made = model.answer(SLOW_START, Scenario(None, 1, 3000, FREE, 0.0, 0, False))
    assert made["updates"] == 100.0
    assert close(made["updates_low"], 45 * (1 + 3500/3000)), made
    assert close(made["updates_high"], 55 * (1 + 2500/3000)), made
    assert close(made["step"], 1.3e-2) and close(made["step_high"], 2e-2 + 2e-6*3000), made
    assert close(made["step_low"], 5e-3 + 5e-7*3000), made
    assert close(made["low"], made["updates_low"] * made["step_low"]), made
    assert close(made["high"], made["updates_high"] * made["step_high"]), made


def test_page_kept_models():
    """A size has a model once its law and its line are kept; its link is the measured one."""
    models = {m["name"].split(" ")[0]: m for m in model.read_models() if "measured" in m["name"]}
    lines = {line["model"]: line for line in kept.read("04_one_device", "fit.json")["fits"]
             if line["threads"] == 1}
    fits = [f for f in kept.table("02_knee", "fit") if f["reading"] == "weights" and
            not f["refused"]]
    assert list(models) == [size for size in lines if size in {f["size"] for f in fits}], models
    for size, made in models.items():
        line, targets = lines[size], {t["loss"]: t for t in made["targets"]}
        ends = line["intervals"]
        assert made["line"] == {"fit": (line["t_0"], line["tau"]),
                                "low": (ends["t_0"][0], ends["tau"][0]),
                                "high": (ends["t_0"][1], ends["tau"][1])}, made["line"]
        assert made["parameters"] == line["parameters"]
        for f in (f for f in fits if f["size"] == size):
            seen = {p["batch_tokens"]: p["updates_median"] for p in kept.table("02_knee", "points")
                    if (p["size"], p["reading"], p["target_nats"])
                    == (size, "weights", f["target_nats"])}
            found = targets[f["target_nats"]]
            want = model.profile(Law(f["s_min"], f["b_crit"]), f["b_crit_high"], sorted(seen))
            assert found["fit"] == [f["s_min"], f["b_crit"]] and found["high"] == list(want[:2])
            assert found["seen"] == [min(seen.values()), min(seen), max(seen)], (found, seen)
    for link in kept.read("05_time", "fit.json")["models"]:
        if link["alpha"] is not None:                        # 2 alpha a message; 1/beta bytes/s
            at = models[link["model"]]["controls"]
            assert at["near"] == at["far"] == model.position(1 / link["beta"], 1e6, 120), at
            assert "experiment 5 measured" in models[link["model"]]["from"]["exchange"]
    assert "experiment 5" not in models["35k"]["from"]["exchange"], "its link was not measured"
    assert (model.position(0.0, 1e-7, 100), model.position(1e20, 1e6, 120)) == (0, 120)


# ---- the walls ----

# A device with a high cost of an update; a page with all models and this one.
SLOW_START = {"name": "a slow start (of the test)", "parameters": 1000, "seq_len": 32,
              "line": {"fit": [1e-2, 1e-6], "low": [5e-3, 5e-7], "high": [2e-2, 2e-6]},
              "optimizer_seconds": 0.0, "grad_bytes": 4, "param_bytes": 4,
              "state_bytes": [4, 4, 8], "activation_bytes": 10, "memory": None,
              "messages": 1, "targets": [{"loss": 1.0, "fit": [50.0, 3000.0], "low": [55.0, 2500.0],
                           "high": [45.0, 3500.0]}], "controls": {},
              "from": {"law": "a", "step": "b", "exchange": "c", "memory": "d"}}

# {wall: (a word of the model's name, {control: position})}; what is not named stays as it begins.
WALLS = {"memory": ("6.7B", {"devices": 0}),
         "serial": ("slow start", {"devices": 10, "batch": 1, "near": 120, "far": 120,
                                   "near-latency": 0, "far-latency": 0}),
         "noise": ("35k", {"loss": 2.5, "devices": 1, "batch": 1, "near": 120, "near-latency": 0}),
         "compute": ("35k", {"devices": 0, "batch": 10}),
         "overhead": ("slow start", {"devices": 0, "batch": 5}),
         "network": ("35k", {"devices": 5, "far": 0}),
         "compute,noise": ("1.6B", {"devices": 3, "stage": 1})}


def from_browser(read):
    """The page's scenario as one of the model's."""
    net = read["network"]
    return Scenario(read["loss"], read["n"], read["batch"] or None, Network(
        net["near"], net["far"], net["nearLatency"], net["farLatency"], net["perMachine"]),
        read["price"], read["stage"], read["overlap"])


def test_page_walls():
    """The walls by the model alone, on costs chosen so that one part dominates."""
    base = SLOW_START
    law = Law(50.0, 3000.0)
    run = Scenario(None, 4, 128, FREE, 0.0, 0, False)
    def walls(costs, batch=128, of=law, what=base):
        return model.walls(what, of, costs, batch, run._replace(batch=batch))
    assert walls(Costs(1.0, 1.0 / 32, 1.0)) == ["noise"]     # S is 24 S_min
    assert walls(Costs(0.0, 1e-6, 0.0), 96000) == ["compute"]
    assert walls(Costs(1.0, 1e-9, 0.0), 96000) == ["overhead"]
    assert walls(Costs(0.0, 1e-9, 1.0), 96000) == ["network"]
    assert set(walls(Costs(1.0, 1e-9, 1.0), 96000)) == {"overhead", "network"}
    assert walls(Costs(1.0, 1e-9, 1.0), 128, Law(50.0, 12.0)) == ["serial"]
    assert walls(Costs(1.0, 1e-9, 1.0), 128, Law(50.0, 13.0)) != ["serial"]
    assert walls(Costs(1.0, 1e-9, 1.0), what=dict(base, memory=16319)) == ["memory"]
    assert walls(Costs(1.0, 1e-9, 1.0), what=dict(base, memory=16320)) != ["memory"]


# ---- what is committed ----

def build(models=None):
    return page.build(page.read("README.md"), models or model.read_models())


def test_page_static():
    """`make pages` writes it; it loads nothing, and each of its links leads somewhere."""
    out = os.path.join(TMP, "made", "page.html")
    done = subprocess.run([sys.executable, testing.lab_path("page.py"), "--out", out],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr
    with open(out, encoding="utf-8") as f:
        text = f.read()
    assert text == build(), "page.py writes another page"
    words = re.sub(r"base64,[^']*", "", text)
    assert "http" not in words and "url(" not in words and "import" not in words
    targets = re.findall(r"id='(figure-[^']*)'", words)
    assert len(targets) == len(set(targets)) >= 10, targets
    assert set(re.findall(r"href='#([^']*)'", words)) <= set(targets)
    assert "ot measured yet" not in words


def test_page_samples():
    """A text for each loss, of the model that is replayed."""
    samples = page.race.replay_data()["samples"]
    losses = [s["target"] for s in samples]
    assert losses == [2.5, 2.25, 2.0, 1.8, 1.7, 1.6, 1.5, 1.4], losses
    for s in samples:
        assert s["target"] - 0.2 < s["loss"] <= s["target"] and len(s["text"]) == 200, s


# ---- in a browser ----

# Sets controls as a reader would, and returns what the page then shows: for each wall, and for
# settings of every model that take all controls from one end to the other.
DRIVE = """(() => {
    const models = JSON.parse(byId("models").textContent), all = [...document.querySelectorAll(
        "#controls input, #controls select")];
    const set = (control, value) => {
        if (control.type === "checkbox") control.checked = value; else control.value = value;
        control.dispatchEvent(new Event("input", { bubbles: true }));
    };
    const state = () => {
        const s = readControls(models), rows = [...byId("results").rows];
        const cells = i => Object.fromEntries(
            rows.map(r => [r.dataset.id, r.cells[i].textContent]));
        return { model: models.indexOf(s.model), scenario: { ...s, model: null },
                 walls: byId("limit").dataset.walls, texts: cells(1), ranges: cells(2),
                 values: Object.fromEntries(rows.map(r => [r.dataset.id, Number(r.dataset.value)])),
                 edges: rows.filter(r => r.cells[3].textContent.endsWith(
                     "edge of what was measured")).map(r => r.dataset.id),
                 bad: /NaN|undefined|Infinity|null/.test(byId("calculator").innerText) };
    };
    const begin = all.map(c => c.type === "checkbox" ? c.checked : c.value);
    const reset = () => all.forEach((c, i) => set(c, begin[i]));
    const found = {}, seen = [];
    for (const [name, [word, positions]] of Object.entries(WANTED)) {
        reset();
        set(byId("model"), models.findIndex(m => m.name.includes(word)));
        for (const [id, value] of Object.entries(positions)) set(byId(id), value);
        found[name] = state();
    }
    const ends = c => c.type === "checkbox" ? [false, true] : c.tagName === "SELECT"
        ? [0, c.options.length - 1] : [c.min, c.max];
    for (let m = 0; m < models.length; m++) {
        reset();
        set(byId("model"), m);
        for (let k = 0; k < 20; k++) {
            all.filter(c => c.id !== "model").forEach((c, i) => {
                const [low, high] = ends(c).map(Number), at = (k * 7 + i * 13) % 11 / 10;
                const between = low + (high - low) * at;
                set(c, c.type === "checkbox" ? at < 0.5 : c.tagName === "SELECT"
                    ? Math.round(between) : between);
            });
            seen.push(state());
        }
    }
    return { found, seen };
})()"""

SECONDS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "minutes": 60.0, "hours": 3600.0, "days": 86400.0,
           "years": 365.25 * 86400.0}


def seconds_of(text):
    number, unit = text.replace(",", "").split(" ")
    return float(number) * SECONDS[unit]


def check_range(text, low, high, read):
    """"1.2 s to 3 s", to four digits; "none" where there is no range."""
    if low == high:
        assert text == "none", text
        return
    shown = [read(end) for end in text.split(" to ")]
    assert close(shown[0], low, 5.1e-4) and close(shown[1], high, 5.1e-4), (text, low, high)


def check_state(state, models):
    """One setting of the controls: every number as in the model, to far more than four digits."""
    scenario = from_browser(state["scenario"])
    want = model.answer(models[state["model"]], scenario)
    assert not state["bad"] and len(state["values"]) == 12, state
    for name, value in state["values"].items():
        assert close(value, want[name], 1e-9) or value == want[name] == 0, (name, value, scenario)
    assert close(seconds_of(state["texts"]["seconds"]), want["seconds"], 5.1e-4), state["texts"]
    assert state["edges"] == want["edges"], (state["edges"], want["edges"], scenario)
    assert state["walls"].split(",") == want["walls"], (state, want)
    check_range(state["ranges"]["seconds"], want["low"], want["high"], seconds_of)
    check_range(state["ranges"]["step"], want["step_low"], want["step_high"], seconds_of)
    check_range(state["ranges"]["updates"], want["updates_low"], want["updates_high"],
                lambda text: float(text.replace(",", "")))


def driven(models, wanted):
    """What the page shows; nothing on the console or from the network, nothing wider than a
    phone."""
    path = os.path.join(TMP, "page.html")
    with open(path, "w", encoding="utf-8") as f:
        f.write(build(models))
    tab = browser.Browser()
    try:
        tab.size(360, 740)
        tab.open(path)
        shown = tab.value(DRIVE.replace("WANTED", json.dumps(wanted)))
        assert tab.value("document.documentElement.scrollWidth") <= 360
        assert not tab.errors and not tab.requests, (tab.errors, tab.requests)
    finally:
        tab.close()
    assert len(shown["seen"]) == 20 * len(models)
    for state in [*shown["seen"], *shown["found"].values()]:
        check_state(state, models)
    return shown["found"]


def test_page_calculator():
    """With one model more; a scenario for each wall."""
    if not browser.PROGRAM:
        return "a browser (chromium)"
    found = driven(model.read_models() + [SLOW_START], WALLS)
    for wall, state in found.items():
        assert sorted(state["walls"].split(",")) == wall.split(","), (wall, state["walls"])
    return None


if __name__ == "__main__":
    TMP = tempfile.mkdtemp(prefix="lab_page.")
    try:
        sys.exit(testing.run_tests(globals(), sys.argv[1:]))
    finally:
        shutil.rmtree(TMP)
