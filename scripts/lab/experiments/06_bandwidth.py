#!/usr/bin/env python3
"""Experiment 6: loss against real seconds over slow links. One worker, and two that train data
parallel, data parallel in bf16, and DiLoCo, each with its own best batch for the link.

    scripts/lab/experiments/06_bandwidth.py --quick

link.sh makes the link: two network namespaces, joined by virtual Ethernet that tc throttles. Where
the machine does not allow that, the experiment is skipped. A link does not change what is learned,
so learning rates are tuned without one. Run it on a machine that does nothing else.
"""
import itertools
import math
import os
import subprocess
from collections import namedtuple
from statistics import fmean as mean

import fit
import kept
import lab

LINK = os.path.join("scripts", "lab", "experiments", "link.sh")
PAYLOAD = 1448.0 / 1514.0                        # share of an Ethernet frame that is TCP payload
OUTER = [(1.0, 0.0), (0.8, 0.5)]                 # DiLoCo: (learning rate, momentum)
WARMUP = 20                                      # updates
T = 32

# numbers: bytes of an element that travels, 0 if none does. flags: of the trainer.
Method = namedtuple("Method", "name label ranks numbers flags")
METHODS = [Method("one", "one worker", 1, 0, []),
           Method("parallel", "data parallel", 2, 4, ["--zero", 0]),
           Method("bf16", "data parallel, bf16", 2, 2, ["--zero", 0, "--comm-dtype", "bf16"]),
           Method("diloco", "DiLoCo", 2, 4, [])]


def settings(e):
    e.links = e.pick(tiny=[20], quick=[25, 1000], full=[25, 100, 1000])        # Mbit/s
    e.target = e.pick(tiny=4.0, quick=2.5, full=1.7)
    e.batches = e.pick([128, 512], [512, 2048, 4096], [256, 512, 1024, 2048, 4096, 8192, 16384])
    e.diloco = e.pick([(128, 5)], [(512, 20)],                                 # (batch, H)
                      [(512, 20), (1024, 20), (1024, 100), (4096, 20)])
    e.outer = e.pick(OUTER[:1], OUTER[:1], OUTER)
    e.cap = e.pick(6e4, 3e5, 4e6)                # tokens of a run at a small batch
    e.every = e.pick(2048, 8192, 65536)          # tokens between evaluations, at least
    e.plan = {"first": 1, "seeds": [], "grid": e.pick([0], [-1, 0], [-1, 0, 1]),
              "extend": e.pick(None, (-2, 6), (-2, 6))}
    e.seeds = e.pick([2], [2, 3], [2, 3, 4])
    e.model = lab.model(e.pick("35k", "119k", "119k"), T)


def cap(e, batch):
    """Tokens of a run that does not reach the target."""
    return e.cap * (1.0 + batch / 4096)


def flags(e, batch, k, seed, ranks=1, every=0):
    """every: DiLoCo's H. Data parallel ranks take their share as one micro-batch, so that the
    exchange can overlap with all of its backward pass."""
    own = batch // ranks
    tokens = cap(e, batch)
    beta2 = lab.half_life_beta2(own if every else batch)
    return ["--data", e.corpus(1.1 * cap(e, e.batches[-1])), *e.model, "--micro-batch",
            own // T if ranks > 1 else min(own // T, 16), "--batch-tokens", batch, "--steps",
            math.ceil(tokens / batch), "--target-loss", e.target, "--lr", f"{lab.rate(k):.6g}",
            "--lr-schedule", "constant", "--warmup-tokens", WARMUP * batch, "--beta2",
            f"{beta2:.9g}", "--eval-every", max(1, round(e.every / batch)), "--eval-tokens",
            e.pick(2048, 8192, 65536), "--seed", seed]


def diloco_flags(every, outer):
    return ["--outer-every", every, "--outer-lr", outer[0], "--outer-momentum", outer[1]]


def possible(_):
    """Why this machine cannot throttle a link; empty if it can."""
    if not lab.has_mpi():
        return "needs MPI: make MPI=1 build/train_gpt2-mpi, and mpirun"
    done = subprocess.run([LINK, "1gbit", "true"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          stdin=subprocess.DEVNULL, check=False)
    return "" if done.returncode == 0 else lab.last_line(done.stdout.decode("utf-8", "replace"))


# ---------------------------------------------------------------- tuning, without a link

class Choice(lab.Tuned):
    """A batch with its best rate: the fewest updates to the target. every > 0: DiLoCo with H =
    every on two ranks; its variants are pairs of OUTER."""

    def __init__(self, e, batch, every=0):
        self.e, self.batch, self.every = e, batch, every
        middle = 1 if batch < 4096 else 2
        super().__init__(self.make, {v: middle for v in (e.outer if every else [None])}, e.plan,
                         lambda run: run.updates_at(e.target) or math.inf)

    def make(self, outer, k, seed):
        name, ranks, more = f"tune_b{self.batch}", 1, []
        if self.every:
            name, ranks = f"{name}_h{self.every}_o{outer[0]:g}m{outer[1]:g}", 2
            more = diloco_flags(self.every, outer)
        return lab.Job(f"{name}_lr{lab.rate(k):g}_s{seed}",
                       flags(self.e, self.batch, k, seed, ranks, self.every) + more, ranks=ranks)

    def updates(self):
        """Of the first seed at the best rate."""
        return self.score(self.runs[(*self.best(), self.plan["first"])])


# ---------------------------------------------------------------- seconds of an update

# compute: fit.Device; talk: seconds of an exchange without a limit; hidden: the share of the
# computation that an exchange can overlap with; parameters of the model.
Cost = namedtuple("Cost", "compute talk hidden parameters")


def update_seconds(cost, method, choice, link):
    """Of two ranks each sends half of the gradient to be summed, and half of the sum."""
    compute = cost.compute.fixed + choice.batch / method.ranks * cost.compute.per_token
    if not method.numbers:
        return compute
    exchange = cost.talk + method.numbers * cost.parameters / (PAYLOAD * 1e6 * link / 8.0)
    if choice.every:
        return compute + exchange / choice.every
    return compute + max(0.0, exchange - cost.hidden * compute)


def calibrate(e):
    """Cost, from two ranks without a limit, and over the slowest link with and without overlap."""
    small, large, slow = e.batches[0], e.batches[-1], e.links[0]
    wanted = [(small, None, False), (large, None, False), (large, slow, False), (large, slow, True)]
    jobs = [linked(f"calibrate_b{b}_{link or 'unlimited'}{'' if overlap else '_no-overlap'}", link,
                   timing(e, b, link) + ["--zero", 0] + ([] if overlap else ["--no-overlap"]))
            for b, link, overlap in wanted]
    runs = e.run(jobs)
    seconds, waited = ([mean_update([runs[j.name]], field) for j in jobs]
                       for field in ("seconds", "seconds_comm"))
    device = fit.fit_device([small / 2, large / 2], [seconds[i] - waited[i] for i in (0, 1)])
    hidden = (seconds[2] - seconds[3]) / (device.fixed + large / 2 * device.per_token)
    return Cost(device, min(waited[:2]), max(0.0, hidden),
                runs[jobs[0].name].start["parameters"])


def mean_update(runs, field="seconds", every=1):
    """Mean of a field over the updates of runs, but for the first 3; `every`: whole rounds of
    DiLoCo alone. The slowest of two ranks is waited for, so a mean lies above its median, and
    many updates take so many means."""
    values = [[step[field] for step in run.steps] for run in runs]
    values = [of[min(3 if every == 1 else every, len(of) - 1):] for of in values]
    whole = [value for of in values for value in of[:len(of) // every * every]]
    return sum(whole) / len(whole) if whole else math.nan


def timing(e, batch, link):
    """Flags of some updates of two ranks for their time alone."""
    return e.timing(e.model, batch, batch // 2 // T, e.pick(6, 12 if link else 60,
                                                            20 if link else 200))


def linked(name, link, more):
    """A job of two ranks, on two ends of a link of so many Mbit/s."""
    return lab.Job(name, [f"{link}mbit" if link else "none", lab.MPI_TRAINER, *more], program=LINK,
                   alone=True)


# ---------------------------------------------------------------- the race

def curve(run):
    """[(seconds of all updates so far, validation loss)] of a run's evaluations."""
    spent = [0.0, *itertools.accumulate(step["seconds"] for step in run.steps)]
    return [(spent[record["step"]], record["val_loss"]) for record in run.evals
            if lab.number(record["val_loss"])]


# A method over a link: its best batch, and what an update should take with it. runs: one a seed.
Lane = namedtuple("Lane", "method link choice modelled runs")


def lane(cost, method, link, choices):
    own = [c for c in choices if bool(c.every) == (method.name == "diloco")]
    best = min(own, key=lambda c: c.updates() * update_seconds(cost, method, c, link))
    return Lane(method, link, best, update_seconds(cost, method, best, link), [])


def lane_job(e, of, seed):
    (outer, k), c, m = of.choice.best(), of.choice, of.method
    more = flags(e, c.batch, k, seed, m.ranks, c.every) + list(m.flags)
    name = f"{m.name}_b{c.batch}"
    if c.every:
        name, more = f"{name}_h{c.every}", more + diloco_flags(c.every, outer)
    if m.ranks == 1:
        return lab.Job(f"{name}_s{seed}", more, alone=True)
    return linked(f"{name}_{of.link}mbit_s{seed}", of.link, more)


def race(e, cost, choices):
    """[Lane], link by link."""
    lanes = [lane(cost, m, link, choices) for link in e.links for m in METHODS]
    for seed in e.seeds:                                     # a stop leaves whole seeds
        jobs = [lane_job(e, of, seed) for of in lanes]
        runs = e.run(list({job.name: job for job in jobs}.values()))     # one worker has no link
        for of, job in zip(lanes, jobs):
            of.runs.append(runs[job.name])
    return lanes


# ---------------------------------------------------------------- from the tables on

def ratio(slow, fast):
    """(how many times as long the slow rows take, low, high): the mean of logarithms seed by seed,
    with the 90% t-interval of these seeds alone; NaN where a target was not reached."""
    seconds = [{row["seed"]: row["seconds_to_target"] for row in rows} for rows in (slow, fast)]
    return fit.ratio_interval([
        seconds[0][seed] / seconds[1][seed] if seconds[0][seed] and seconds[1][seed] else math.nan
        for seed in seconds[0]])


def lane_of(race_rows, link, method):
    return kept.only(race_rows, mbit_s=link, method=method)


def draw_race(race_rows, curves, target):
    """A panel a link, one axis of seconds; the seed in the middle of each method, and where every
    seed reaches the target."""
    links, every = sorted({row["mbit_s"] for row in race_rows}), []
    for link in links:
        shown = []
        for i, m in enumerate(METHODS):
            rows = [row for row in lane_of(race_rows, link, m.name) if row["seconds_to_target"]]
            own = lane_of(curves, link, m.name)
            if not rows:
                continue
            done = sorted((row["seconds_to_target"], j) for j, row in enumerate(rows))
            run = list(dict.fromkeys(row["run"] for row in own))[done[len(done) // 2][1]]
            points = [p for p in own if p["run"] == run and p["val_loss"] < target + 1.3]
            colour, times = {"color": lab.COLOURS[i]}, [took for took, _ in done]
            shown.append(lab.Curve(f"{m.label}: {mean(times):.1f} s", times, [target] * len(times),
                                   look={**colour, "linestyle": "", "marker": lab.MARKERS[i]}))
            shown.append(lab.Curve(None, [p["seconds"] for p in points],
                                   [p["val_loss"] for p in points],
                                   look={**colour, "marker": "", "linestyle": lab.LINES[i]}))
        every.append({"curves": shown, "x": "seconds of updates" * (link == links[-1]),
                      "y": "validation loss", "title": f"{link:,.0f} Mbit/s"})
    found = [ratio(lane_of(race_rows, x, "parallel"), lane_of(race_rows, x, "one"))[0]
             for x in (links[0], links[-1])]
    return lab.panels(every, "Two data parallel workers take "
                      f"{found[0]:.1f} times as long as one over {links[0]:,.0f} Mbit/s, "
                      f"{found[1]:.1f} times over {links[-1]:,.0f}",
                      (7.6, 2.1 * len(links) + 0.7), len(links), sharex=True)


def conclude(e):
    race_rows, machine = e.rows("race"), {row["what"]: row["value"] for row in e.rows("machine")}
    links = sorted({row["mbit_s"] for row in race_rows})
    for link in links:
        for m in METHODS:
            seconds = [row["seconds_to_target"] for row in lane_of(race_rows, link, m.name)]
            if seconds and all(seconds):
                e.found(f"seconds over {link} Mbit/s, {m.label}", mean(seconds))
    labels = {m.name: m.label for m in METHODS}
    for link, slow, fast in [(links[0], "parallel", "one"), (links[0], "bf16", "one"),
                             (links[0], "parallel", "diloco"), (links[-1], "parallel", "one"),
                             (links[-1], "bf16", "one")]:
        rows = lane_of(race_rows, link, slow), lane_of(race_rows, link, fast)
        if all(rows):
            e.found(f"seconds over {link} Mbit/s, {labels[slow]} over {labels[fast]}",
                    *ratio(*rows))
    e.figure("race", draw_race(race_rows, e.rows("curves"), machine["target_loss"]),
             alt="Validation loss against seconds for four methods, a panel for each link, on one "
                 "axis of seconds.",
             caption="Each method with its best batch for the link. Lines: the seed in the middle; "
                     "points: every seed at the target; numbers: their mean.")
    return [("two data parallel over one", *ratio(lane_of(race_rows, links[0], "parallel"),
                                                  lane_of(race_rows, links[0], "one")))]


# ---------------------------------------------------------------- the experiment

def measure(e):
    """Makes the runs and writes the tables."""
    settings(e)
    choices = lab.tune(e, [Choice(e, b) for b in e.batches])
    choices += lab.tune(e, [Choice(e, b, every) for b, every in e.diloco])
    cost = calibrate(e)
    lanes = race(e, cost, choices)
    e.table("updates", ["batch_tokens", "every", "outer_rate", "outer_momentum", "lr", "at_edge",
                        "updates_to_target"],
            [[c.batch, c.every, *(c.best()[0] or (None, None)), lab.rate(c.best()[1]),
              int(c.at_edge()), c.updates()] for c in choices])
    e.table("race", ["mbit_s", "method", "batch_tokens", "every", "seed", "seconds_to_target",
                     "seconds_update", "modelled_seconds_update"],
            [[of.link, of.method.name, of.choice.batch, of.choice.every, seed,
              lab.first_at(curve(run), e.target), mean_update(of.runs, every=of.choice.every or 1),
              of.modelled] for of in lanes for seed, run in zip(e.seeds, of.runs)])
    e.table("curves", ["mbit_s", "method", "run", "seconds", "val_loss"],
            [[of.link, of.method.name, run.name, *point] for of in lanes for run in of.runs
             for point in curve(run) if point[0] > 0.0])
    e.table("machine", ["what", "value"],
            [["parameters", cost.parameters], ["target_loss", e.target],
             ["seconds_fixed", cost.compute.fixed], ["seconds_a_token", cost.compute.per_token],
             ["seconds_exchange_unlimited", cost.talk], ["share_hidden", cost.hidden]])


if __name__ == "__main__":
    lab.experiment(
        6, "bandwidth", measure, conclude, possible, endpoint=(1.0, math.inf), retrospective=True,
        title="Loss against real seconds over slow links",
        question="Two workers over a slow link: which method reaches a loss first, each with its "
                 "own best batch?",
        prediction="Over the slowest link two data parallel workers take longer than one.")
