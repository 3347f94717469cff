#!/usr/bin/env python3
"""Experiment 8: the bandwidth wall. Two ranks with data parallelism, with gradient accumulation,
and with DiLoCo, over links from 25 Mbit/s to unlimited.

    scripts/lab/08_bandwidth.py --quick

link.sh makes the link where the machine allows it: two network namespaces, joined by virtual
Ethernet that tc throttles. Elsewhere only the model is drawn.
"""
import math
import os
import subprocess
from collections import namedtuple

import fit
import lab

RANKS = 2
LINK = os.path.join("scripts", "lab", "link.sh")
PAYLOAD = 1448.0 / 1514.0                        # share of an Ethernet frame that is TCP payload
NEAR = 0.25                                      # a point must be this close to the model


class Method:
    """accumulate: micro-batches of an update on each rank. every: DiLoCo's H, 0 for data parallel.
    A round lasts from one synchronization to the next."""

    def __init__(self, name, label, accumulate=1, every=0):
        self.name, self.label, self.accumulate, self.every = name, label, accumulate, every
        self.updates = max(1, every)             # of a round
        self.computes = self.accumulate * self.updates       # micro-batches of a round

    def flags(self):
        return ["--outer-every", self.every] if self.every else []


def settings(e):
    accumulate, everies = e.pick(tiny=(4, [1, 5]), quick=(8, [1, 10, 50]), full=(8, [1, 10, 50]))
    e.methods = [Method("ddp", "data parallel"),
                 Method(f"ddp_{accumulate}", f"data parallel, {accumulate} micro-batches",
                        accumulate=accumulate)]
    e.methods += [Method(f"diloco_{every}", f"DiLoCo, H={every}", every=every) for every in everies]
    e.rates = e.pick(tiny=[20, None], quick=[25, 100, 250, 1000, None],      # Mbit/s
                     full=[10, 25, 50, 100, 250, 500, 1000, 2500, None])
    e.length = e.pick(tiny=0.2, quick=2.5, full=15.0)        # seconds of a run, roughly
    e.layers, e.channels, e.T, e.B = e.pick((2, 64, 32, 2), (4, 128, 64, 4), (4, 128, 64, 4))
    e.tokens = e.B * e.T                                     # of a micro-batch
    e.parameters = count(e)


def count(e):
    """Parameters of the model: 257 tokens, T positions, blocks, final norm."""
    C = e.channels
    return (257 + e.T + 2) * C + e.layers * (12 * C + 13) * C


# ---------------------------------------------------------------- runs

def flags(e, accumulate, steps):
    return ["--data", e.corpus(10 ** 6), "--layers", e.layers, "--heads", e.layers, "--channels",
            e.channels, "--seq-len", e.T, "--micro-batch", e.B, "--steps", steps, "--eval-every", 0,
            "--eval-tokens", 8 * e.tokens, "--seed", 1, "--batch-tokens", accumulate * e.tokens]


def rounds(e, method, rate):
    """Rounds to measure, from their expected duration. A measured duration would change the
    command, and a finished run would not be found again. One warm-up round opens connections."""
    seconds = method.computes * 40e-3 * e.tokens / 256.0
    if rate:
        seconds += 8.0 * 4 * e.parameters / (1e6 * rate)
    return max(1, min(60, math.ceil(e.length / seconds)))


def job(e, method, rate):
    steps = (1 + rounds(e, method, rate)) * method.updates
    return lab.Job(f"{method.name}_{rate or 'unlimited'}", [
        f"{rate}mbit" if rate else "none", lab.MPI_TRAINER,
        *flags(e, RANKS * method.accumulate, steps), *method.flags()], program=LINK, alone=True,
        cost=steps)


def possible():
    """Why this machine cannot throttle a link; empty if it can."""
    if not lab.has_mpi():
        return "needs MPI: make MPI=1 build/train_gpt2-mpi, and mpirun"
    try:
        done = subprocess.run([LINK, "--check"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              stdin=subprocess.DEVNULL, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else lab.last_line(done.stdout.decode("utf-8", "replace"))


# ---------------------------------------------------------------- numbers

class Point:
    """A method at a rate (Mbit/s; None: unlimited), measured over all rounds but the first."""

    def __init__(self, method, rate, run):
        self.method, self.rate = method, rate
        steps = run.steps[method.updates:]
        self.seconds = sum(step["seconds"] for step in steps)
        self.tokens = run.steps[-1]["tokens"] - run.steps[method.updates - 1]["tokens"]
        self.waited = sum(step["seconds_comm"] for step in steps) / self.seconds
        self.updates = len(steps)
        self.sent = sum(step["bytes_sent"] for step in steps)
        self.speed = self.tokens / self.seconds


# Seconds to compute a micro-batch, and to synchronize over the unlimited link.
Cost = namedtuple("Cost", "compute talk")


def sets_constants(point):
    """Whether calibrate uses the point; if so, the point does not test the model."""
    return point.method.every > 1 or point.method.every == 1 and point.rate is None


def calibrate(points, alone):
    """Compute time: the median over DiLoCo with H > 1, where nothing is sent meanwhile but both
    ranks share the machine. Synchronization: H=1 on the unlimited link, which hides nothing:
    copies, the kernel's TCP, waiting for the other rank. Without points: one rank's computing."""
    if not points:
        return Cost(alone, 0.0)
    always = next(p for p in points if p.method.every == 1 and p.rate is None)
    return Cost(lab.median([(1.0 - p.waited) * p.seconds / p.updates for p in points
                            if p.method.every > 1]),
                always.waited * always.seconds / always.updates)


def model(e, method, rate, cost):
    """(tokens/s, share waited) of two ranks at a rate in Mbit/s. The all-reduce of gradients
    overlaps with the last micro-batch's backward pass (fit.exposed_seconds), DiLoCo's does not."""
    talk = cost.talk
    if rate:
        talk += fit.ring_seconds(4 * e.parameters, RANKS, PAYLOAD * 1e6 * rate / 8.0)
    wait = talk if method.every else fit.exposed_seconds(talk, cost.compute)
    seconds = method.computes * cost.compute + wait
    return RANKS * method.computes * e.tokens / seconds, wait / seconds


def half_rate(method, e, cost):
    """The rate in Mbit/s at which the model waits half of the time; infinite if at any rate."""
    low, high = 1e-3, 1e6
    while high / low > 1.0001:
        middle = math.sqrt(low * high)
        if model(e, method, middle, cost)[1] > 0.5:
            low = middle
        else:
            high = middle
    return low if low < 9e5 else math.inf


# ---------------------------------------------------------------- picture

def draw(plt, e, points, cost):
    figure, (speed, waited) = plt.subplots(2, 1, figsize=(6.8, 8.4), layout="constrained")
    numbers = [rate for rate in e.rates if rate]
    low, high, most = min(numbers) / 1.4, max(numbers) * 1.4, max(numbers) * 4.0
    grid = [low * (high / low) ** (i / 100.0) for i in range(101)]
    for i, method in enumerate(e.methods):
        look = {"color": lab.COLOURS[i], "linestyle": lab.LINES[i], "linewidth": 1.3}
        of = [p for p in points if p.method is method]
        for k, ax, unit in [(0, speed, 1.0), (1, waited, 100.0)]:
            ax.plot(grid, [unit * model(e, method, rate, cost)[k] for rate in grid], **look)
            ax.plot([most / 1.4, most * 1.4], [unit * model(e, method, None, cost)[k]] * 2, **look)
            ax.plot([p.rate or most for p in of], [unit * (p.waited if k else p.speed) for p in of],
                    color=lab.COLOURS[i], marker=lab.MARKERS[i], linestyle="none", markersize=6)
        speed.plot([], [], marker=lab.MARKERS[i] if of else None, label=method.label, **look)
    kind = "points measured, lines modelled" if points else "modelled: nothing was measured"
    for ax, y, title in [(speed, "tokens/s, both ranks", f"Speed over a throttled link; {kind}"),
                         (waited, "of the time waited for the network (%)", None)]:
        ax.set_xscale("log")
        lab.axes(ax, "link (Mbit/s, each way)", y, title)
        ax.set_xticks(numbers + [most])
        ax.set_xticklabels([f"{rate:g}" for rate in numbers] + ["no limit"])
        ax.minorticks_off()
    speed.set_yscale("log")
    speed.legend()
    return figure


# ---------------------------------------------------------------- the experiment

def main():
    e = lab.Experiment(
        8, "bandwidth", title="The bandwidth wall",
        question="Two ranks over a slow link: what do gradient accumulation and DiLoCo save?",
        prediction="Data parallel ranks wait once sending a gradient takes longer than computing "
                   "it. Gradient accumulation over A micro-batches, and DiLoCo with H updates "
                   "between synchronizations, move that wall to a link A or H times slower; DiLoCo "
                   "with H=1 saves nothing. Each point lies within 25% of a formula: compute and "
                   "synchronization time without a limit, plus the ring's bytes over the rate.")
    settings(e)
    why = possible()
    # Whatever the trainer, the links join CPU ranks.
    alone = e.run([lab.Job("alone", flags(e, 1, e.pick(20, 100, 400)), alone=True,
                           program="train_gpt2")])["alone"]
    points = []
    if not why:
        runs = e.run([job(e, method, rate) for method in e.methods for rate in e.rates])
        points = [Point(m, rate, runs[job(e, m, rate).name]) for m in e.methods for rate in e.rates]
    cost = calibrate(points, alone.median("seconds"))
    write(e, points, alone.median("seconds"), cost)
    e.figure("bandwidth", lambda plt: draw(plt, e, points, cost),
             alt="Tokens a second, and the share of time waited, against the bandwidth of the "
                 "link, for data parallel, accumulation and DiLoCo with several H.",
             caption=("Points are measured over real TCP through a pair of virtual Ethernet "
                      "devices that tc throttles. Lines are modelled: compute and synchronization "
                      "time without a limit, plus the ring's bytes over the rate."
                      if points else f"Modelled from one rank's compute time: {why}.")
             + " Tokens a second are not learning: experiments 1 and 2 show what larger batches "
               "and rare synchronization do to the loss.")
    conclude(e, points, cost, why)
    e.close()


def write(e, points, alone, cost):
    header = ["method", "accumulate", "every", "mbit_s", "tok_per_s", "waited_share", "seconds",
              "updates", "bytes_sent_by_a_rank", "modelled_tok_per_s", "modelled_waited_share"]
    rows = []
    for m in e.methods:
        for rate in e.rates:
            p = next((p for p in points if p.method is m and p.rate == rate), None)
            measured = [p.speed, p.waited, p.seconds, p.updates, p.sent] if p else [None] * 5
            rows.append([m.name, m.accumulate, m.every, rate, *measured,
                         *model(e, m, rate, cost)])
    e.csv("points", header, rows)
    e.csv("machine", ["what", "value"],
          [["parameters", e.parameters], ["micro_batch_tokens", e.tokens],
           ["seconds_micro_batch_one_rank", alone], ["seconds_micro_batch", cost.compute],
           ["seconds_talk_unlimited", cost.talk], ["payload_share", PAYLOAD]])


def conclude(e, points, cost, why):
    e.setting(f"2 ranks of one thread, {e.layers} layers of {e.channels} channels: "
              f"{e.parameters:,} parameters, {4 * e.parameters / 1e6:.2f} MB a gradient; "
              f"micro-batches of {e.tokens} tokens, {1e3 * cost.compute:.1f} ms each; "
              f"{lab.machine()}.")
    walls = [(m, half_rate(m, e, cost)) for m in e.methods]
    e.say("Modelled, ranks wait half of the time at these rates in Mbit/s: " + ", ".join(
        f"{m.label} {f'{wall:,.0f}' if wall < math.inf else 'any'}" for m, wall in walls) + ".")
    if not points:
        e.say(f"No throttled links here: {why}. All numbers are modelled.")
        e.verdict("skipped", f"modelled only: {why}")
        return
    at = {(p.method.name, p.rate): p for p in points}
    slow = min(rate for rate in e.rates if rate)
    e.say(f"Measured over {slow} Mbit/s, in tokens/s: "
          + ", ".join(f"{m.label} {at[m.name, slow].speed:,.0f} "
                      f"(waits {100 * at[m.name, slow].waited:.0f}%)" for m in e.methods)
          + f"; without a limit, data parallel reaches {at['ddp', None].speed:,.0f}.")
    errors = {(p.method.name, p.rate): p.speed / model(e, p.method, p.rate, cost)[0] - 1
              for p in points}
    far = {key: error for key, error in errors.items() if abs(error) > NEAR}
    worst = max(errors, key=lambda key: abs(errors[key]))
    mean = math.exp(sum(abs(math.log1p(x)) for x in errors.values()) / len(errors)) - 1
    e.say(f"The model's mean error is {100 * mean:.0f}%; its largest is at {worst[0]}, "
          f"{f'{worst[1]} Mbit/s' if worst[1] else 'no limit'}: measured "
          f"{100 * errors[worst]:+.0f}% against modelled.")
    say_limits(e, points, at["ddp", None], cost)
    judge(e, at, slow, errors, far)


def say_limits(e, points, parallel, cost):
    """How far the agreement tests the model, and what the model leaves out: data parallel's waiting
    without a limit, which it assumes to be hidden."""
    both = sum(sets_constants(p) for p in points)
    e.say(f"{both} of the {len(points)} points set the model's two constants: they do not "
          "test it.")
    e.say(f"Without a limit, the model predicts that data parallel waits for "
          f"{100 * model(e, parallel.method, None, cost)[1]:.0f}% of the time; measured: "
          f"{100 * parallel.waited:.0f}%.")


def judge(e, at, slow, errors, far):
    rare = [m for m in e.methods if m.computes > 1]          # in order of rarer exchanges
    speeds = [at["ddp", slow].speed] + [at[m.name, slow].speed for m in rare]
    rising = all(a < b for a, b in zip(speeds, speeds[1:]))
    no_gain = at["diloco_1", slow].speed / at["ddp", slow].speed
    words = (f"over {slow} Mbit/s, {rare[-1].label} is {speeds[-1] / speeds[0]:.1f} times as fast "
             f"as data parallel, and H=1 {no_gain:.2f} times; {len(errors) - len(far)} of "
             f"{len(errors)} points are within {100 * NEAR:.0f}% of the model")
    if rising and abs(no_gain - 1) < NEAR and not far:
        e.verdict("as predicted", words)
    else:
        e.verdict("partly" if rising else "failed", words)


if __name__ == "__main__":
    main()
