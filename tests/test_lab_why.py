#!/usr/bin/env python3
"""The laboratory's chapter "Why": experiment 2's estimators on planted truths, its local knees, and
experiment 3, on planted numbers and on runs of a trainer that take seconds."""
import csv
import importlib.util
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True   # before the next line, so that it leaves no __pycache__
import testing

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAB = os.path.join(ROOT, "scripts", "lab")
sys.path[:0] = testing.LAB_ROOMS
import fit
import local_knee


load = testing.load


knee, local, small = load("02_knee"), load("02_local"), load("03_small_noisy")


def near(a, b, relative):
    assert abs(a - b) <= relative * abs(b), (a, b)


# ---- fit.py ----

def test_why_lines():
    rng = random.Random(1)
    exponent, low, high = fit.power_law([1, 4, 16, 64], [3 * b ** 0.25 for b in (1, 4, 16, 64)])
    near(exponent, 0.25, 1e-9)
    assert high - low < 1e-6
    inside = 0
    for _ in range(300):                                     # the interval holds in 90% of draws
        x = [1, 4, 16, 64, 256]
        found = fit.power_law(x, [b ** 0.3 * math.exp(rng.gauss(0, 0.2)) for b in x])
        inside += found[1] < 0.3 < found[2]
    assert 255 <= inside <= 285, inside
    near(fit.vertex([1, 2, 4], [2 + (x - 2.5) ** 2 for x in (1, 2, 4)]), 2.5, 1e-9)
    near(fit.jackknife([1, 2, 3, 6], lambda rest: sum(rest) / len(rest)),
         fit.deviation([1, 2, 3, 6]) / 2, 1e-9)              # of a mean: the standard error
    assert fit.jackknife([1, 2], lambda rest: None) == math.inf


def test_why_crossing():
    """Half way in the loss is the geometric mean of the updates; outside there is no crossing."""
    near(fit.crossing([100, 400, 1600], [2.0, 1.8, 1.7], 1.9), 200, 1e-9)
    near(fit.crossing([1600, 100, 400], [1.7, 2.0, 1.8], 1.7), 1600, 1e-9)
    assert fit.crossing([100, 400], [2.0, 1.8], 1.7) is None
    assert fit.crossing([100, 400], [2.0, 1.8], 2.1) is None
    near(fit.crossing([1, 2, 4], [math.inf, 2.0, 1.0], 1.5), 2 * math.sqrt(2), 1e-9)


# ---- 2: the sweep, on runs that are computed ----

class Planted:
    """An experiment that trains nothing: a run's updates are S_min (1 + B_crit/B) at the best rate
    and a fifth more for each factor of 2 beside it. luck: {(batch, seed): {rate: times the updates}}."""

    def __init__(self, noise=0.0, draw=0):
        self.T, self.tuned, self.fresh, self.targets = 32, [1, 2], [3, 4], [2.5, 2.0]
        self.args = type("Args", (), {"so_far": False})
        self.size = "full"
        self.jobs, self.noise, self.draw, self.bottom, self.luck = [], noise, draw, {}, {}

    def pick(self, tiny, quick, full):
        return full

    def corpus(self, tokens, least=0):
        return "data"

    def is_done(self, job):
        return True

    def run(self, jobs):
        self.jobs += [job.name for job in jobs]
        return {job.name: PlantedRun(self, job) for job in jobs}


B_CRIT = {2.5: 600.0, 2.0: 1800.0}


class PlantedRun:
    def __init__(self, e, job):
        self.e, self.diverged = e, False
        flags = dict(zip(job.flags, job.flags[1:]))
        self.batch, self.rate = int(flags["--batch-tokens"]), float(flags["--lr"])
        self.most, self.seed = int(flags["--tokens"]), int(flags["--seed"])
        self.evals = [{"tokens": self.most}]

    def updates_at(self, target, field="val_loss"):
        best = self.e.bottom.get(self.batch, 2e-3)
        off = abs(math.log2(self.rate / best))
        draw = random.Random(f"{self.batch} {self.seed} {target} {self.e.draw}").gauss(0.0, self.e.noise)
        updates = 100.0 / (target - 1.0) * (1.0 + B_CRIT[target] / self.batch)
        updates *= (1.0 + 0.2 * off) * math.exp(draw)
        updates *= 0.8 if field == "val_loss_average" else 1.0
        updates *= self.e.luck.get((self.batch, self.seed), {}).get(self.rate, 1.0)
        return updates if updates * self.batch <= self.most else None


SIZE = knee.Size("one", 2, 2, 32, 2e-3, 4e5, 2e3, knee.batches(128, 8192, 2.0))


def planted_sweep(noise=0.0, bottom=(), luck=(), draw=0):
    e = Planted(noise, draw)
    e.sizes, e.bottom, e.luck = [SIZE], dict(bottom), dict(luck)
    every = knee.sweep(e)
    return e, every, knee.measure(e, knee.rows_of(e, every))


def point_of(found, batch, target=2.0):
    """The point of the weights at one batch."""
    return next(p for g in found if (g.target, g.reading) == (target, "weights")
                for p in g.points if p.batch == batch)


def test_why_knee_planted():
    """B_crit comes back from the sweep at both targets, and from averaged weights."""
    _, _, found = planted_sweep()
    assert len(found) == 4 and not any(g.knee.reason for g in found), found
    for g in found:
        near(g.knee.b_crit, B_CRIT[g.target], 1e-3)
        near(g.knee.s_min, 100 / (g.target - 1) * (0.8 if g.reading == "averaged" else 1), 1e-3)
    inside, draws = 0, 15
    for draw in range(draws):
        for g in planted_sweep(noise=0.05, draw=draw)[2]:
            if g.reading == "weights":
                inside += g.knee.low < B_CRIT[g.target] < g.knee.high
                near(g.knee.b_crit, B_CRIT[g.target], 0.35)
    assert inside >= 0.8 * 2 * draws, inside                 # intervals of 90%


def test_why_knee_rates():
    """Wherever the best rate lies, the sweep finds it with neighbours on both sides; only fresh
    seeds are reported; a rate that has lost is stopped early."""
    e, every, found = planted_sweep(bottom={128: 0.5e-3, 256: 16e-3, 512: 2e-3})
    for batch, best in [(128, 0.5e-3), (256, 16e-3), (512, 2e-3), (8192, 2e-3)]:
        point = point_of(found, batch)
        near(point.lr, best, 1e-9)
        assert not point.edge and len(point.updates) == 2, point
        tuned = [n for n in e.jobs if n.startswith(f"one_b{batch}_") and "_s1_" in n]
        again = [n for n in e.jobs if n.startswith(f"one_b{batch}_") and "_s2_" in n]
        fresh = [n for n in e.jobs if n.startswith(f"one_b{batch}_") and n.split("_")[3] > "s2"]
        assert len(again) == 1 and len(fresh) == 2 and len(tuned) <= knee.MOST_RATES, e.jobs
    far = next(b for b in every if b.batch == 8192)
    best = far.best(2.0, "weights").median * 8192
    most = {run.most for (_, seed, _), run in far.done.items() if seed == 1}
    assert min(most) <= 1.1 * best + 8192 < 2.0 * best, (most, best)


def test_why_knee_lucky():
    """A rate that is lucky on one tuned seed is not chosen; one that is lucky on both is, and
    the fresh seeds show it."""
    for rate in (8e-3, 0.5e-3):
        point = point_of(planted_sweep(luck={(1024, 1): {rate: 0.5}})[2], 1024)
        near(point.lr, 2e-3, 1e-9)
        assert not point.edge
    both = {(1024, seed): {4e-3: 0.5} for seed in (1, 2)}
    point = point_of(planted_sweep(luck=both)[2], 1024)
    near(point.lr, 4e-3, 1e-9)
    near(point.median, 100 * 1.2 * (1 + B_CRIT[2.0] / 1024), 1e-9)


def test_why_knee_goes_on():
    """A rate that was stopped because its neighbour was lucky goes on when that luck is gone."""
    luck = {(8192, 1): {8e-3: 0.7}, (8192, 2): {8e-3: 1.2}}
    e, _, found = planted_sweep(bottom={8192: 4e-3}, luck=luck)
    assert any(name.startswith("one_b8192_lr0.004000_s1_to2_in") for name in e.jobs)
    near(point_of(found, 8192).lr, 4e-3, 1e-9)


def test_why_knee_edge():
    """A best rate that stays on an edge is refused by the fit, not reported as a knee."""
    _, _, found = planted_sweep(bottom={512: 2e3})
    assert point_of(found, 512).edge
    assert all("edge" in g.knee.reason for g in found), found


def test_why_knee_targets():
    """A run that was to stop at a higher target says nothing about a lower one."""
    e, every, _ = planted_sweep()
    own = every[0]
    power = max(p for p, *_ in own.done) + 1
    own.done[power, 1, 2.5] = PlantedRun(e, knee.job(e, SIZE, own.batch, power, 1, 2.5, 1e6))
    assert power in own.read(2.5, "weights", 1) and power not in own.read(2.0, "weights", 1)


def test_why_knee_so_far():
    """Without its fresh seeds a point is the tuned seeds' own; it makes no run."""
    e = Planted()
    e.sizes, e.args.so_far = [SIZE], True
    e.is_done = lambda job: "_s1_" in job.name
    every = knee.sweep(e)
    assert all("_s1_" in name for name in e.jobs)
    found = knee.measure(e, knee.rows_of(e, every))
    assert all(len(p.updates) == 1 for g in found for p in g.points)
    said = []
    e.say = said.append
    knee.tell(e, found)
    assert any("not complete: 28 of 28 points" in words for words in said), said
    e.args.so_far = False


def grown(exponent, factor=1.0, noise=0.0, rng=None):
    """Fits of two sizes whose B_crit is 500 (E_min / 1e5)^exponent, the larger's `factor` times."""
    found = []
    for size, times in [("small", 1.0), ("large", factor)]:
        for target in (2.5, 2.0, 1.7, 1.4):
            length = 1e5 * math.exp(3.2 * (2.5 - target))
            b_crit = 500 * (length / 1e5) ** exponent * times
            points = []
            for b in [8 * 2 ** i for i in range(12)]:
                n = length / b_crit * (1 + b_crit / b) * math.exp(rng.gauss(0, noise) if rng else 0)
                points.append(fit.Point(b, 1e-3, [n, n], n, False))
            found.append(knee.Growth(size, "weights", target, points, [], 0,
                                    fit.knee(points, 5)))
    return found


def test_why_exponent():
    exponent, low, high = knee.exponent(grown(0.6))
    near(exponent, 0.6, 0.02)                    # the fewest tokens measured are not the fewest
    assert high - low < 0.02
    rng, inside = random.Random(2), 0
    for _ in range(12):
        _, low, high = knee.exponent(grown(0.6, noise=0.05, rng=rng))
        inside += low < 0.6 < high
    assert inside >= 7, inside                               # the fewest of noisy tokens are too few
    (small_, large, ratio, low, high), = knee.between_sizes(grown(0.6, 1.3))
    assert (small_, large) == ("small", "large") and low < 1.3 < high
    near(ratio, 1.3, 1e-3)


class Said:
    def verdict(self, word, why):
        self.word, self.why = word, why


def test_why_knee_words():
    """Measured pairs, the misfit's shape and one more parameter, on curves that are known."""
    for g in grown(0.6):
        near(knee.power_of(g)[0], 1.0, 1e-3)
        assert knee.nearest(g, 1.0).batch / g.knee.b_crit < 1.42
        near(knee.excess(g, 1.0), knee.fewest(g.points) and (
            g.knee.s_min * (knee.nearest(g, 1.0).batch + g.knee.b_crit) / knee.fewest(g.points)),
            1e-3)
    found = [g._replace(points=[p._replace(median=100 * (1 + (900 / p.batch) ** 1.4))
                                for p in g.points]) for g in grown(0.6)[:1]]
    found = [g._replace(knee=fit.knee(g.points, 5)) for g in found]
    power, rms = knee.power_of(found[0])
    near(power, 1.4, 1e-3)
    assert rms < 1e-3 < found[0].knee.rms
    assert min(knee.misfit(found, 0.0, 0.02)) > 1 > max(knee.misfit(found, 0.1, 1.0))
    near(knee.zhang(1e6), 5 * 512 * 22.91, 1e-9)             # 20% more data is 0.2 B_crit


# ---- 2: local knees, on branches that are computed ----

class PlantedBranches(Planted):
    """A branch of S updates at batch B does S / (1 + B_crit/B) updates' worth of an endless batch;
    its end loss falls with their logarithm. A rate off the best one does less."""

    def run(self, jobs):
        self.jobs += [job.name for job in jobs]
        return {job.name: self.end(job) for job in jobs}

    def end(self, job):
        if "_k" not in job.name:
            return type("Run", (), {"steps": [{"noise_g2": 2.0, "noise_s": 900.0}] * 8, "val": 2.2})
        flags = dict(zip(job.flags, job.flags[1:]))
        batch, rate = int(flags["--batch-tokens"]), float(flags["--lr"])
        updates = (int(flags["--tokens"]) - int(flags["--warmup-tokens"])) / batch
        off = math.log2(rate / (4e-3 * (batch / 256) ** 0.3))
        worth = updates / (1.0 + self.planted / batch) * math.exp(-0.3 * off ** 2)
        draw = random.Random(job.name).gauss(0.0, self.noise)
        return type("Run", (), {"val": 2.0 - self.slope * math.log(worth / 10.0) + draw})


PLAN = local_knee.Plan("one", [], 32, "data", 256, 2e-3, 1500.0, [2 ** 18], [1, 2, 4, 8, 16, 32], 1)


def test_why_local_knee_planted():
    """Planted B_crit come back within 10%; a loss that falls slowly takes longer branches. With
    rates that other seeds chose nothing is tuned, and two lengths are often enough."""
    for planted, slope in [(700.0, 0.12), (3000.0, 0.12), (1500.0, 0.035)]:
        e = PlantedBranches(noise=0.008 * slope)
        e.planted, e.slope = planted, slope
        found, = local_knee.sweep(e, PLAN, [1])
        knee_of = fit.knee(list(found.points.values()))
        assert not knee_of.reason, knee_of
        near(knee_of.b_crit, planted, 0.10)
        assert knee_of.low < planted < knee_of.high, knee_of
        near(found.noise, 450.0, 1e-9)
        assert len(found.points) == 6 and not any(p.edge for p in found.points.values())
        lengths = {}
        for name in e.jobs:
            if "_k4_" in name:
                lengths.setdefault(name.split("_lr")[1].split("_")[0], set()).add(name[-4:])
        assert all(len(own) >= 3 for own in lengths.values()) and len(lengths) >= 3, lengths
        known = {(2 ** 18, b): (p.lr, p.median, False) for b, p in found.points.items()}
        e.jobs.clear()
        again = local_knee.sweep(e, PLAN, [3, 4], known)
        branches = {name for name in e.jobs if "_k" in name}
        assert len(branches) < 2 * 6 * 2.5 + 2, len(branches)
        for one in again:
            for b, p in one.points.items():
                near(p.median, found.points[b].median, 0.1)
                assert p.lr == found.points[b].lr and not p.edge, p


def test_why_local_ratio():
    """The ratio that 02_local judges, from planted B_crit: 32.25 / 2.953; and its interval."""
    e = PlantedBranches(noise=0.001)
    e.planted, e.slope, e.label, e.args.tune = 8000.0, 0.12, "none", True
    moment, = local.measure(e, local.Group("119k", 32, (2 ** 20,), (1, 4, 16, 64), (3, 4, 5)))
    middle, low, high = fit.ratio_interval([math.log(v) for v in local.quotients(e, moment)])
    near(middle, (1 + 8000 / 256) / (1 + 8000 / 4096), 0.05)
    assert low < middle < high < 1.2 * low and not any("_s2_" in name for name in e.jobs)
    near(moment.knee.b_crit, 8000.0, 0.1)
    low = fit.ratio_interval([1.0, 1.2, 1.4])[1]             # t(95%, 2) = 2.920, s = 0.2
    near(low, math.exp(1.2 - 2.9200 * 0.2 / math.sqrt(3)), 1e-4)
    assert math.isnan(fit.ratio_interval([0.7])[1])


def test_why_local_branch():
    """A branch decays linearly to zero from the moment on: its warm-up is the trunk."""
    job = local_knee.branch_job(PLAN, 1, 0, 4, 1, 77)
    flags = dict(zip(job.flags, job.flags[1:]))
    assert job.branch == "one_s1_0" and flags["--lr-schedule"] == "linear"
    assert (flags["--final-lr-frac"], flags["--warmup-tokens"]) == ("0", str(2 ** 18))
    assert int(flags["--tokens"]) == 2 ** 18 + 77 * 1024 and flags["--batch-tokens"] == "1024"
    near(float(flags["--lr"]), 2e-3 * 2 ** (round(0.4 * 2) + 1), 1e-9)


# ---- 3: small and noisy ----

def planted_curve(rule, batch, losses, bottom=0.0):
    """Rows of losses.csv: seed 1 tries rates around a valley at 2^bottom, seeds 2 and up the best;
    `losses` are theirs at the valley."""
    best = round(bottom)
    return [{"rule": rule.name, "batch_sequences": batch, "lr": rule.first * 2.0 ** power,
             "seed": seed, "updates": 1024 // batch,
             "val_loss": (losses[seed - 2] if seed > 1 else 2.0) + 0.1 * (power - bottom) ** 2}
            for seed in range(1, 2 + len(losses))
            for power in (range(best - 2, best + 2) if seed == 1 else [best])]


def test_small_curve():
    """The best rate is interpolated; what is reported are fresh seeds, with the interval that two
    of them allow: one degree of freedom, 6.3 standard errors and not 1."""
    curve, = small.curves_of(planted_curve(small.KEPT, 1, [2.1, 2.3], bottom=3.2))
    near(curve.lr, 8e-3, 1e-9)
    assert not curve.at_edge() and len(curve.tried) == 4
    near(curve.best_rate(), 1e-3 * 2 ** 3.2, 1e-9)
    near(curve.mean, 2.2 + 0.004, 1e-9)
    near(curve.high - curve.mean, 6.313752 * 0.1, 1e-6)
    near(curve.mean - curve.low, 6.313752 * 0.1, 1e-6)
    words = small.told(curve)
    assert "2.104, 2.304" in words and "±" not in words, words
    edge, = small.curves_of([r for r in planted_curve(small.KEPT, 1, [2.1], bottom=3.2)
                             if r["lr"] <= 8e-3])
    assert edge.at_edge() and edge.best_rate() == edge.lr and math.isnan(edge.low)


def test_small_exponent():
    rows = [row for b in (1, 4, 16, 64)
            for row in planted_curve(small.KEPT, b, [2.0, 2.0], bottom=1 + 0.3 * math.log2(b))]
    curves = small.curves_of(rows)
    near(small.exponent(curves)[0], 0.3, 1e-6)
    assert small.exponent(curves[:2]) is None


def test_small_beta2():
    """beta2 ^ (updates of the half-life) = 1/2, and the half-life is the same number of tokens."""
    lives = [b * math.log(0.5) / math.log(small.KEPT.beta2(b, 512)) for b in (1, 16, 512)]
    for life in lives:
        near(life, lives[0], 1e-9)
    near(small.KEPT.beta2(1, 512), 0.9999, 1e-5)             # Marek 2025: 0.9999 at 1


def evals(pairs):
    return [{"train_loss": t, "val_loss": v} for t, v in pairs]


def test_small_equal_training():
    """Validation loss at equal training loss, between evaluations of the same moment; differences
    are taken seed by seed; a level that one run missed is left out."""
    run = evals([(3.0, 3.1), (2.0, 2.2), (1.5, 2.0)])
    near(small.gap_at(run, 2.5), 2.65, 1e-9)
    near(small.gap_at(run, 1.75), 2.1, 1e-9)
    assert small.gap_at(run, 1.4) is None and small.gap_at(run, 3.5) is None
    gaps, level = [0.01, 0.013, 0.011, 0.009, 0.012], [0.3, -0.2, 0.1, 0.0, 0.25]
    repeats = {32: {}, 2048: {}}
    for seed, (gap, by) in enumerate(zip(gaps, level), 2):
        for batch, more in [(32, gap), (2048, 0.0)]:
            repeats[batch][seed] = evals([(t, t + 0.2 + by + more) for t in (3.0, 2.0, 1.45)])
    equal = small.equal_training(repeats, 1.5)
    assert [at for at in dict.fromkeys(row[0] for row in equal)] == [2.0, 1.8, 1.6, 1.5]
    mean, low, high = small.small_less_large(equal, 1.5)
    near(mean, sum(gaps) / 5, 1e-9)
    near(high - mean, fit.student_t(0.95, 4) * fit.deviation(gaps) / math.sqrt(5), 1e-6)
    near(mean - low, high - mean, 1e-6)
    assert small.small_less_large(equal, 1.4) is None


def test_small_best_repeats():
    """The rate with the lowest validation loss of any moment, by the first seed alone."""
    rows = [{"batch_tokens": 32.0, "lr": lr, "seed": seed, "train_loss": 1.0, "val_loss": loss}
            for lr, seed, losses in [(1e-3, 1, [2.0, 1.6, 1.9]), (2e-3, 1, [1.8, 1.7, 1.7]),
                                     (1e-3, 2, [2.1, 1.8, 2.0])] for loss in losses]
    assert small.best_repeats(rows) == {32: {2: rows[6:]}}


def experiment(*flags):
    return subprocess.run([PYTHON, testing.lab_path("03_small_noisy.py"), "--tiny", "--jobs", "2",
                           "--out", TMP, *flags], capture_output=True, text=True, check=False,
                          cwd=ROOT)


def rows(name):
    with open(os.path.join(TMP, "03_small_noisy", name + ".csv"), newline="") as f:
        return list(csv.DictReader(f))


def test_small_runs():
    """best.csv again from the runs' own logs; equal tokens; SGD is SGD; nothing is run twice."""
    done = experiment()
    assert done.returncode == 0, done.stderr[-300:]
    runs, found = os.path.join(TMP, "03_small_noisy", "runs"), {}
    for name in sorted(os.listdir(runs)):
        if name.endswith(".jsonl") and name.startswith("b"):
            with open(os.path.join(runs, name)) as f:
                events = [json.loads(line) for line in f]
            last = [x for x in events if x["event"] == "eval"][-1]
            assert last["tokens"] == 2 ** 14, (name, last)
            assert ("sgd" in name) == (events[0]["optimizer"] == "sgd"), name
            batch, kind, lr, seed = name[:-6].split("_")
            found.setdefault((batch, kind), {}).setdefault(seed, {})[lr] = last["val_loss"]
    best = {(f"b{r['batch_sequences']}", r["rule"]): r for r in rows("best")}
    for (batch, kind), by_seed in found.items():
        rate = min(by_seed["s1"], key=by_seed["s1"].get)
        near(min(abs(float(r["val_loss"]) - by_seed["s2"][rate]) for (b, _), r in best.items()
                 if b == batch) + 1.0, 1.0, 1e-6)
        assert set(by_seed["s2"]) == {rate}, (batch, kind, by_seed)
    assert len(best) == len(found) == 5
    before = {name: os.path.getmtime(os.path.join(runs, name)) for name in os.listdir(runs)}
    done = experiment("--redraw")
    assert done.returncode == 0, done.stderr[-300:]
    assert before == {name: os.path.getmtime(os.path.join(runs, name)) for name in before}


def test_small_repeats():
    """Training and validation loss come from the same moment; the data are repeated; the endpoint
    is the smaller batch less the larger, seed by seed."""
    table = rows("repeated")
    assert {int(r["batch_tokens"]) for r in table} == {64, 512}
    assert all(r["train_loss"] and r["val_loss"] for r in table)
    runs = os.path.join(TMP, "03_small_noisy", "runs")
    name = next(n for n in sorted(os.listdir(runs)) if n.startswith("repeat_b64_") and
                n.endswith("_s2.jsonl"))
    with open(os.path.join(runs, name)) as f:
        logged = [json.loads(line) for line in f]
    logged = [x for x in logged if x["event"] == "eval"]
    own = [r for r in table if (r["batch_tokens"], r["seed"]) == ("64", "2")]
    assert [(x["tokens"], x["train_eval_loss"]) for x in logged] == [
        (int(r["tokens"]), float(r["train_loss"])) for r in own]
    at = {(r["batch_tokens"], r["seed"]): float(r["val_loss"]) for r in rows("equal_training")
          if r["train_loss"] == "4"}
    assert set(at) == {(b, s) for b in ("64", "512") for s in ("2", "3")}, at
    gaps = [at["64", s] - at["512", s] for s in ("2", "3")]
    end, = rows("endpoint")
    for field, value in zip(("value", "low", "high"), fit.mean_interval(gaps)):
        assert abs(float(end[field]) - value) < 1e-7, (field, end, value)


def test_small_only():
    """Without the runs on fresh data their committed table is written again, row by row."""
    with open(os.path.join(testing.ROOT, "scripts", "lab", "results", "03_small_noisy",
                           "losses.csv"), newline="") as f:
        committed = list(csv.DictReader(f))
    runs = os.path.join(TMP, "03_small_noisy", "runs")
    before = sorted(os.listdir(runs))
    done = experiment("--only", "repeated")
    assert done.returncode == 0, done.stderr[-300:]
    assert sorted(os.listdir(runs)) == before                # those on repeated data were there
    again = rows("losses")
    assert again == [{key: row[key] for key in again[0]} for row in committed]


# ---- running them ----


if __name__ == "__main__":
    PYTHON = testing.find_python() or sys.executable
    if not os.access(os.path.join(ROOT, "train_gpt2"), os.X_OK):
        print("skip lab_why: needs ./train_gpt2; make builds it")
        sys.exit(0)
    TMP = tempfile.mkdtemp(prefix="lab_why.")
    os.environ["MPLCONFIGDIR"] = TMP                         # nothing in the user's home
    try:
        sys.exit(testing.run_tests(globals(), sys.argv[1:]))
    finally:
        shutil.rmtree(TMP)
