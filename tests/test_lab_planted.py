#!/usr/bin/env python3
"""The laboratory on planted truths: what its fits, intervals and searches for rates make of numbers
that are made up here. Nothing is trained. That the committed tables give the committed numbers is
in test_lab_kept.py."""
import math
import random
import sys
import types

import testing
from testing import load, near
import numpy as np
import fit
import lab
import local_knee

one_step, knee, device, time, bandwidth = map(load, [
    "01_one_step", "02_knee", "04_one_device", "05_time", "06_bandwidth"])


# ---- fit.py and the verdicts ----

def planted_points(rng):
    """Nine batches around the knee; every run's updates are off by some 4%."""
    points = []
    for batch in [64 * 2 ** i for i in range(9)]:
        updates = [80.0 * (1 + 2000.0 / batch) * math.exp(rng.gauss(0.0, 0.04)) for _ in range(3)]
        points.append(fit.Point(batch, 1e-3, updates, fit.median(updates), False))
    return points


def test_intervals_hold_the_truth():
    """Each 90% interval of the laboratory holds its planted truth in about nine draws of ten: the
    mean of few normal values (two standard errors of two values would in 70%), a ratio, the median
    of any, an exponent, B_crit of a noisy sweep, the line of a device of which every fourth block
    is slow."""
    rng = random.Random(4)

    def mean(n):
        return (5.0, *fit.mean_interval([rng.gauss(5.0, 1.0) for _ in range(n)])[1:])

    def ratio():
        return (2.0, *fit.ratio_interval([2.0 * math.exp(rng.gauss(0, 0.2)) for _ in range(4)])[1:])

    def median(n):
        return (math.log(2.0), *fit.median_interval([rng.expovariate(1.0) for _ in range(n)])[1:])

    def exponent():
        x = [1, 4, 16, 64, 256]
        return (0.3, *fit.power_law(x, [b ** 0.3 * math.exp(rng.gauss(0, 0.2)) for b in x])[1:])

    def b_crit():
        found = fit.knee(planted_points(rng), draws=25)
        return 2000.0, found.low, found.high

    def b_half():
        slow = [1.6 if rng.random() < 0.25 else 1.0 for _ in range(9)]
        times = {32 << i: [(8e-4 + 4e-5 * (32 << i)) * x * math.exp(rng.gauss(0.0, 0.03))
                           for x in slow] for i in range(7)}
        return 20.0, *device.fit_line(times, 40).b_half[1:]
    for draw, args, draws, least, most in [
            (mean, (2,), 1000, 0.86, 0.94), (mean, (12,), 1000, 0.86, 0.94),
            (ratio, (), 1000, 0.86, 0.94), (median, (5,), 1000, 0.88, 0.98),
            (median, (13,), 1000, 0.88, 0.98), (exponent, (), 300, 0.85, 0.95),
            (b_crit, (), 40, 0.80, 0.99), (b_half, (), 40, 0.78, 1.0)]:
        held = sum(low <= truth <= high for truth, low, high in (
            draw(*args) for _ in range(draws))) / draws
        assert least <= held <= most, (draw.__name__, args, held)


def test_smallest_batch():
    """B_min comes back: below 0, 0 and above."""
    batches = [128, 512, 2048, 8192]
    for planted in (-40, 0, 90):
        found = fit.smallest_batch(batches, [50 * (1 + 3e3 / (b - planted)) for b in batches])
        assert abs(found - planted) < 0.01, (found, planted)


def test_fit_refuses():
    """A best rate on an edge, few batches, a knee outside of them."""
    points = planted_points(random.Random(4))
    flat = [p._replace(median=80.0 * (1 + 40 / p.batch), updates=[80.0] * 3) for p in points]
    steep = [p._replace(median=1e9 / p.batch, updates=[80.0] * 3) for p in points]
    for of, word in [([points[0]._replace(edge=True)] + points[1:], "edge"),
                     (points[:3], "needs 4"), (flat, "outside"), (steep, "outside")]:
        found = fit.knee(of, draws=3)
        assert word in found.reason and (word != "edge" or math.isnan(found.b_crit)), found


def test_fit_formulas():
    """What no committed table shows: a rate that most seeds miss; a line through zero, or through
    noise; what the slowest of two take; nothing from one value, and no median's interval from
    four."""
    tried = {1e-3: [90, 80, 85], 2e-3: [60, None, 70], 4e-3: [50, None, None]}
    point = fit.best_rate(64, tried)
    assert (point.lr, point.median, point.edge) == (2e-3, 70, False), point
    assert fit.best_rate(64, {1e-3: [None, None, 5], 2e-3: [None] * 3}) is None
    through_zero = fit.fit_device([32, 64], [1e-5 * n - 1e-4 for n in [32, 64]])
    assert through_zero.fixed == 0.0 and 5e-6 < through_zero.per_token < 1e-5, through_zero
    busy = fit.fit_device([32, 64, 512], [3e-3, 2e-3, 1e-3])         # less for more: noise
    assert 1e-3 < busy.fixed < 2e-3 and 1e-6 < 512 * busy.per_token < 2e-6, busy
    near(fit.slowest([2.0, 1.0], 2), 1.75)
    assert all(map(math.isnan, fit.median_interval([1.0, 2.0, 3.0, 4.0])[1:]))
    assert all(map(math.isnan, fit.mean_interval([1.0])[1:]))
    near(fit.crossing([100, 400, 1600], [2.0, 1.8, 1.7], 1.9), 200)
    assert fit.crossing([100, 400], [2.0, 1.8], 1.7) is None


def test_verdicts():
    """Inside, outside, across an end; the worst of several; nothing without an interval."""
    inside, across, outside = ("a", 1.0, 0.95, 1.05), ("b", 1.1, 1.0, 1.2), ("c", 2.0, 1.9, 2.1)
    for found, word in [([inside], "as predicted"), ([across], "undecided"),
                        ([outside], "refuted"), ([("", 0.7, 0.5, 0.89)], "refuted"),
                        ([("", 1.0, math.nan, math.nan)], "undecided"), ([], "undecided"),
                        ([inside, across], "undecided"), ([inside, across, outside], "refuted")]:
        assert lab.judge(0.9, 1.1, found)[0] == word, found
    assert lab.judge(0.0, math.inf, [("", 3.0, 0.1, 9.0)]) == (
        "as predicted", "3 (0.1 to 9); predicted above 0")


# ---- 1: one step ----

# One parameter direction after another: gradient, curvature, standard deviation of one token's
# gradient. The constants follow by hand, with P = 1.
G, H, S = np.array([[0.3, -0.2, 0.1], [1.0, 0.5, 0.2], [2.0, 1.5, 1.0]])
SLOPE, BEND = G @ G, H @ G ** 2
B_NOISE = H @ S ** 2 / BEND
E_MAX, DL_MAX = SLOPE / BEND, SLOPE * SLOPE / BEND / 2


def planted_steps(draws, seed=1, scale=1.0):
    """Steps whose falls come from the quadratic, with one draw of the batch for all rates. scale:
    of the rates that were tried, beside the best."""
    rng, steps = np.random.default_rng(seed), one_step.Steps.__new__(one_step.Steps)
    steps.lists = {"noise_curvature": [B_NOISE * BEND] * 64, "curvature": [BEND],
                   "e_max": [E_MAX], "dl_max": [DL_MAX], "b_noise": [B_NOISE]}
    steps.falls = {}
    for batch in (B_NOISE * 2.0 ** k for k in range(-4, 5)):
        rates = scale * E_MAX / (1 + B_NOISE / batch) * 2.0 ** np.arange(-3, 3)
        noisy = G + rng.normal(size=(draws, 3)) * S / math.sqrt(batch)
        falls = np.outer(rates, noisy @ G) - np.outer(rates ** 2, noisy ** 2 @ H) / 2
        steps.falls[batch] = rates, falls
    return steps


def test_planted_steps():
    """Within 2%, also where no rate that was tried is the best one. The 90% range of B_noise holds
    the planted one in most of 30 experiments."""
    for scale in (1.0, 1.3):
        m = one_step.Measured(planted_steps(8000, scale=scale), draws=4)
        near(m.fit[0], DL_MAX, 0.02)
        near(m.fit[1], B_NOISE, 0.02)
        for batch, fall in m.fall.items():
            near(fall, DL_MAX / (1 + B_NOISE / batch), 0.05)
            near(m.rate[batch], E_MAX / (1 + B_NOISE / batch), 0.1)
    held = 0
    for seed in range(30):
        _, (what, *_, low, high) = one_step.Measured(planted_steps(32, seed), draws=60).rows()
        held += what == "b_noise" and low <= 1.0 <= high
    assert held >= 22, held


def test_steps_curves():
    """The last rate where the curve still rises; a half that chose its rate does not report it; a
    point below zero is left out of a fit."""
    rates = np.array([1.0, 2.0, 4.0, 8.0])
    curve, other = 6 * rates - rates ** 2, 4 * rates - rates ** 2        # best at 3, 9 high; at 2
    assert one_step.near_best(rates, rates) == (8.0, slice(3, 4))
    fall, rate = one_step.tuned(rates, [curve[:, None], other[:, None]])
    near(fall, (3.0 + 8.0) / 2)
    near(rate, math.sqrt(6.0))
    assert one_step.curve_fit({b: -1.0 for b in rates}, {b: 0.05 for b in rates}) is None


# ---- 2: the sweep, on runs that are computed ----

class Planted:
    """An experiment that trains nothing: a run's updates are S_min (1 + B_crit/B) at the best rate
    and a fifth more for each factor of 2 beside it. luck: {(batch, seed): {rate: times the
    updates}}."""
    T, tuned, fresh, targets, size = 32, [1, 2], [3, 4], [2.5, 2.0], "full"

    def __init__(self, noise=0.0, bottom=(), luck=()):
        self.sizes, self.jobs, self.noise = [SIZE], [], noise
        self.bottom, self.luck = dict(bottom), dict(luck)

    def pick(self, tiny, quick, full):
        return full

    def corpus(self, tokens, least=0):
        return "data"

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

    def updates_at(self, target):
        e, key = self.e, f"{self.batch} {self.seed} {target}"
        off = abs(math.log2(self.rate / e.bottom.get(self.batch, 2e-3)))
        updates = 100.0 / (target - 1.0) * (1.0 + B_CRIT[target] / self.batch)
        updates *= (1.0 + 0.2 * off) * math.exp(random.Random(key).gauss(0.0, e.noise))
        updates *= e.luck.get((self.batch, self.seed), {}).get(self.rate, 1.0)
        return updates if updates * self.batch <= self.most else None


SIZE = knee.Size("35k", 2e-3, 4e5, 2e3, knee.batches(128, 8192, 2.0))


def planted_sweep(**how):
    e = Planted(**how)
    every = knee.sweep(e)
    return e, every, knee.measure_knees(
        [dict(zip(knee.RUNS, row)) for row in knee.rows_of(e, every)])


def point_of(found, batch, target=2.0):
    return next(p for g in found if g.target == target for p in g.points if p.batch == batch)


def test_planted_sweep():
    """B_crit comes back from the sweep at both targets."""
    _, _, found = planted_sweep()
    assert len(found) == 2 and not any(g.knee.reason for g in found), found
    for g in found:
        near(g.knee.b_crit, B_CRIT[g.target], 1e-3)
        near(g.knee.s_min, 100 / (g.target - 1), 1e-3)
    for g in planted_sweep(noise=0.05)[2]:
        near(g.knee.b_crit, B_CRIT[g.target], 0.35)


def test_sweep_finds_rates():
    """Wherever the best rate lies, the sweep finds it with neighbours on both sides; only fresh
    seeds are reported; a rate that has lost is stopped early."""
    e, every, found = planted_sweep(bottom={128: 0.5e-3, 256: 16e-3, 512: 2e-3})
    for batch, best in [(128, 0.5e-3), (256, 16e-3), (512, 2e-3), (8192, 2e-3)]:
        point = point_of(found, batch)
        near(point.lr, best, 1e-9)
        assert not point.edge and len(point.updates) == 2, point
        seeds = [n.split("_")[3] for n in e.jobs if n.startswith(f"35k_b{batch}_")]
        assert seeds.count("s2") == 1 and seeds.count("s1") <= knee.MOST_RATES, e.jobs
        assert seeds.count("s3") == 1, seeds
    far = next(b for b in every if b.batch == 8192)
    best = far.best(2.0).median * 8192
    most = {run.most for (_, seed, _), run in far.done.items() if seed == 1}
    assert min(most) <= 1.1 * best + 8192 < 2.0 * best, (most, best)
    assert point_of(planted_sweep(bottom={512: 20.0})[2], 512).edge


def test_sweep_and_luck():
    """A rate that is lucky on one tuned seed is not chosen; one that is lucky on both is, and the
    fresh seeds show it. One that was stopped because its neighbour was lucky goes on when that luck
    is gone."""
    for rate in (8e-3, 0.5e-3):
        point = point_of(planted_sweep(luck={(1024, 1): {rate: 0.5}})[2], 1024)
        near(point.lr, 2e-3, 1e-9)
        assert not point.edge
    both = {(1024, seed): {4e-3: 0.5} for seed in (1, 2)}
    point = point_of(planted_sweep(luck=both)[2], 1024)
    near(point.lr, 4e-3, 1e-9)
    near(point.median, 100 * 1.2 * (1 + B_CRIT[2.0] / 1024), 1e-9)
    luck = {(8192, 1): {8e-3: 0.7}, (8192, 2): {8e-3: 1.2}}
    e, _, found = planted_sweep(bottom={8192: 4e-3}, luck=luck)
    assert any(name.startswith("35k_b8192_lr0.004000_s1_to2_in") for name in e.jobs)
    near(point_of(found, 8192).lr, 4e-3, 1e-9)


# ---- 2: local knees, on branches that are computed ----

class PlantedBranches(Planted):
    """A branch of S updates at batch B does S / (1 + B_crit/B) updates' worth of an endless batch;
    its end loss falls with their logarithm. A rate off the best one does less."""

    def __init__(self, planted, slope, noise):
        super().__init__(noise)
        self.planted, self.slope = planted, slope

    def run(self, jobs):
        self.jobs += [job.name for job in jobs]
        return {job.name: self.end(job) for job in jobs}

    def end(self, job):
        if "_k" not in job.name:
            return types.SimpleNamespace(steps=[{"noise_g2": 2.0, "noise_s": 900.0}] * 8, val=2.2)
        flags = dict(zip(job.flags, job.flags[1:]))
        batch, rate = int(flags["--batch-tokens"]), float(flags["--lr"])
        updates = (int(flags["--tokens"]) - int(flags["--warmup-tokens"])) / batch
        off = math.log2(rate / (4e-3 * (batch / 256) ** 0.3))
        worth = updates / (1.0 + self.planted / batch) * math.exp(-0.3 * off ** 2)
        draw = random.Random(job.name).gauss(0.0, self.noise)
        return types.SimpleNamespace(val=2.0 - self.slope * math.log(worth / 10.0) + draw)


PLAN = local_knee.Plan("one", [], 32, "data", 256, 2e-3, 1500.0, [2 ** 18],
                       [1, 2, 4, 8, 16, 32], 1)


def test_planted_local_knees():
    """Planted B_crit come back within 10%; a loss that falls slowly takes longer branches. With
    rates that other seeds chose nothing is tuned, and two lengths are often enough."""
    for planted, slope in [(700.0, 0.12), (3000.0, 0.12), (1500.0, 0.035)]:
        e = PlantedBranches(planted, slope, noise=0.008 * slope)
        found, = local_knee.sweep(e, PLAN, [1])
        knee_of = fit.knee(list(found.points.values()))
        assert not knee_of.reason and knee_of.low < planted < knee_of.high, knee_of
        near(knee_of.b_crit, planted, 0.10)
        near(found.noise, 450.0, 1e-9)
        assert len(found.points) == 6 and not any(p.edge for p in found.points.values())
        known = {(2 ** 18, b): (p.lr, p.median, False) for b, p in found.points.items()}
        e.jobs.clear()
        again = local_knee.sweep(e, PLAN, [3, 4], known)
        branches = {name for name in e.jobs if "_k" in name}
        assert len(branches) < 2 * 6 * 2.5 + 2, len(branches)
        for one in again:
            for b, p in one.points.items():
                near(p.median, found.points[b].median, 0.1)
                assert p.lr == found.points[b].lr and not p.edge, p


# ---- 4 and 5: which blocks count ----

def test_device_blocks():
    """A block between controls goes if either took more than 1.15 times the best of its kind; a
    setting's seconds are the lower quartile of its updates, but for two."""
    controls = [{1: 1.0, 2: 1.0}, {1: 1.1, 2: 1.0}, {1: 1.0, 2: 1.2}, {1: 0.95, 2: 1.1},
                {1: 1.0, 2: 1.0}]
    assert device.kept_blocks(controls) == [3], device.kept_blocks(controls)
    assert device.kept_blocks([{**of, 1: 1.0} for of in controls[:2]]) == [0]
    assert device.fast_quarter([{"seconds": s} for s in (0, 0, 4, 1, 9, 2)]) == 2


def test_time_blocks():
    """A pair that is much slower than one alone, and a missed target, are discarded."""
    for seconds, share, wanted in [((2.0, 2.1, 1.2), 1.05, True), ((2.0, 2.1, 1.2), 1.3, False),
                                   ((2.0, None, 1.0), 1.05, False)]:
        block = {"solo": 1.0, "share": share}
        block.update({"seconds_" + arm: took for arm, took in zip(time.ARMS, seconds)})
        assert time.is_kept(block) == wanted, block


# ---- 6: the batch for a link ----

def test_bandwidth_choices():
    """Each method's batch is the one with the least updates times seconds: computation, and what of
    the exchange it does not hide. 1,448 of 1,514 bytes of a frame are the gradient's."""
    cost = bandwidth.Cost(fit.Device(0.001, 1e-5), 0.002, 0.5, 1448)
    choices = [types.SimpleNamespace(batch=b, every=h, updates=lambda n=n: n)
               for b, h, n in [(100, 0, 120), (400, 0, 40), (1600, 0, 20), (100, 4, 200)]]
    wire = 4 * 8 * 1514 / 1e6                    # seconds of the gradient over 1 Mbit/s
    for method, batch, update in [
            ("one", 400, 0.005), ("parallel", 1600, wire + 0.002 + 0.0045),
            ("bf16", 1600, wire / 2 + 0.002 + 0.0045),
            ("diloco", 100, 0.0015 + (wire + 0.002) / 4)]:
        m = next(m for m in bandwidth.METHODS if m.name == method)
        found = bandwidth.lane(cost, m, 1, choices)
        assert found.choice.batch == batch, (method, found)
        near(found.modelled, update, 1e-9, method)


# ---- 3, 6 and 7: methods that are tuned ----

def tuned(losses, plan, middle=None):
    """lab.Tuned on planted losses; what it asks for is answered from losses(variant, k, seed)."""
    method = lab.Tuned(None, middle or {"one": 0}, plan)
    while wanted := method.missing():
        for at in wanted:
            method.runs[at] = types.SimpleNamespace(val=losses(*at), end={"step": 100})
    return method


def test_tuned_on_planted_losses():
    """A grid grows until its best rate lies inside, around the best variant only, only as far as
    it may. Seed 1 is lucky at k = 3, which does not show in what is reported; a second seed that
    chooses outvotes it."""
    def losses(variant, k, seed):
        return (2.0 if variant == "one" else 2.3) + 0.1 * abs(k - 3) - (0.5 if seed == 1 else 0.0)
    plan = {"first": 1, "seeds": [2, 3], "grid": [-1, 0, 1], "extend": (-2, 6)}
    method = tuned(losses, plan, {"one": 0, "other": 0})
    assert method.best() == ("one", 3) and not method.at_edge()
    assert {k for v, k in method.grid if v == "one"} == {-1, 0, 1, 2, 3, 4}
    assert {k for v, k in method.grid if v == "other"} == {-1, 0, 1}
    assert [run.val for run in method.chosen()] == [2.0, 2.0] and len(method.runs) == 11
    below = tuned(lambda v, k, seed: 2.0 + abs(k + 3), plan)
    assert below.best() == ("one", -2) and below.at_edge()
    plan.update(extend=None, also=[4])
    lucky = tuned(lambda v, k, seed: 1.5 if (k, seed) == (1, 1) else 2.0 + abs(k), plan)
    assert lucky.best() == ("one", 0) and len(lucky.runs) == 8, lucky.runs.keys()


if __name__ == "__main__":
    sys.exit(testing.run_tests(globals(), sys.argv[1:]))
