#!/usr/bin/env python3
"""Experiment 6: loss against real seconds over slow links. One worker, and two that train data
parallel, data parallel in bf16, and DiLoCo, each with its own best batch for the link.

    scripts/lab/experiments/06_bandwidth.py --quick

link.sh makes the link where the machine allows it: two network namespaces, joined by virtual
Ethernet that tc throttles. Elsewhere seconds are modelled. A link does not change what is learned,
so learning rates are tuned without one. Run it on a machine that does nothing else.
"""
import math
import os
import subprocess
from collections import namedtuple

import _path
import fit
import lab
import tensor_links                              # tensor against data parallel

LINK = os.path.join("scripts", "lab", "shared", "link.sh")
PAYLOAD = 1448.0 / 1514.0                        # share of an Ethernet frame that is TCP payload
NEAR = 0.25                                      # a modelled update must be this close
CONFIDENCE = 0.9                                 # of all ratios' intervals together
OUTER = [(1.0, 0.0), (0.8, 0.5)]                 # DiLoCo: (learning rate, momentum)
WARMUP = 20                                      # updates
T = 32

# numbers: bytes of an element that travels, 0 if none does. flags: of the trainer.
Method = namedtuple("Method", "name label ranks numbers flags")
METHODS = [Method("one", "one worker", 1, 0, []),
           Method("parallel", "data parallel", 2, 4, ["--zero", 0]),
           Method("bf16", "data parallel, bf16", 2, 2, ["--zero", 0, "--comm-dtype", "bf16"]),
           Method("diloco", "DiLoCo", 2, 4, [])]


def rate(k):
    return 1e-3 * 2.0 ** k


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
    e.size_flags = ["--layers", 2, "--heads", 2, "--channels", e.pick(32, 64, 64), "--seq-len", T]


def cap(e, batch):
    """Tokens of a run that does not reach the target."""
    return e.cap * (1.0 + batch / 4096)


def flags(e, batch, k, seed, ranks=1, every=0):
    """every: DiLoCo's H. Data parallel ranks take their share as one micro-batch, so that the
    exchange can overlap with all of its backward pass."""
    own = batch // ranks
    tokens = cap(e, batch)
    beta2 = lab.half_life_beta2(own if every else batch)
    return ["--data", e.corpus(1.1 * cap(e, e.batches[-1])), *e.size_flags, "--micro-batch",
            own // T if ranks > 1 else min(own // T, 16), "--batch-tokens", batch, "--steps",
            math.ceil(tokens / batch), "--target-loss", e.target, "--lr", f"{rate(k):.6g}",
            "--lr-schedule", "constant", "--warmup-tokens", WARMUP * batch, "--beta2",
            f"{beta2:.9g}", "--eval-every", max(1, round(e.every / batch)), "--eval-tokens",
            e.pick(2048, 8192, 65536), "--seed", seed]


def diloco_flags(every, outer):
    return ["--outer-every", every, "--outer-lr", outer[0], "--outer-momentum", outer[1]]


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


# ---------------------------------------------------------------- tuning, without a link

class Choice(lab.Tuned):
    """A batch with its best rate: the fewest updates to the target. every > 0: DiLoCo with H =
    every on two ranks; its variants are pairs of OUTER."""

    def __init__(self, e, batch, every=0):
        self.e, self.batch, self.every = e, batch, every
        middle = 1 if batch < 4096 else 2
        super().__init__(self.make, {v: middle for v in (e.outer if every else [None])}, e.plan)

    def make(self, outer, k, seed):
        name, ranks, more = f"tune_b{self.batch}", 1, []
        if self.every:
            name, ranks = f"{name}_h{self.every}_o{outer[0]:g}m{outer[1]:g}", 2
            more = diloco_flags(self.every, outer)
        return lab.Job(f"{name}_lr{rate(k):g}_s{seed}",
                       flags(self.e, self.batch, k, seed, ranks, self.every) + more, ranks=ranks)

    def score(self, run):
        return run.updates_at(self.e.target) or math.inf

    def run(self):
        """The first seed's run at the best rate."""
        return self.runs[(*self.best(), self.plan["first"])]

    def updates(self):
        return self.score(self.run())


# ---------------------------------------------------------------- seconds of an update

# compute: fit.Device; talk: seconds of an exchange without a limit; hidden: the share of the
# computation that an exchange can overlap with; parameters of the model.
Cost = namedtuple("Cost", "compute talk hidden parameters")


def exchange_seconds(cost, numbers, link):
    """Two ranks: each sends half of the gradient to be summed and half of the sum."""
    size = numbers * cost.parameters
    return cost.talk + (size / (PAYLOAD * 1e6 * link / 8.0) if link else 0.0)


def update_seconds(cost, method, choice, link, overlap=True):
    compute = cost.compute.fixed + choice.batch / method.ranks * cost.compute.per_token
    if not method.numbers:
        return compute
    exchange = exchange_seconds(cost, method.numbers, link)
    if choice.every:
        return compute + exchange / choice.every
    return compute + max(0.0, exchange - (cost.hidden * compute if overlap else 0.0))


Calibration = namedtuple("Calibration", "batch link overlap seconds waited")


def calibrate(e, why):
    """(Cost, [Calibration]). Without links: one rank's computation, and fit.py's 2/3 of the
    backward pass to hide the exchange in."""
    small, large = e.batches[0], e.batches[-1]
    if why:
        jobs = {b: lab.Job(f"alone_b{b}", timing(e, b, 1), alone=True) for b in (small, large)}
        runs = e.run(list(jobs.values()))
        device = fit.fit_device([small, large], [runs[jobs[b].name].median("seconds")
                                                 for b in (small, large)])
        return Cost(device, 0.0, 4.0 / 9.0, parameters(runs)), []
    slow = e.links[0]
    wanted = [(small, None, False), (large, None, False), (large, slow, False), (large, slow, True)]
    jobs = [linked(f"calibrate_b{b}_{link or 'unlimited'}{'' if overlap else '_no-overlap'}", link,
                   timing(e, b, 2, link) + ["--zero", 0] + ([] if overlap else ["--no-overlap"]))
            for b, link, overlap in wanted]
    runs = e.run(jobs)
    found = [Calibration(*w, *(runs[j.name].median(field) for field in ("seconds", "seconds_comm")))
             for w, j in zip(wanted, jobs)]
    device = fit.fit_device([c.batch / 2 for c in found[:2]],
                            [c.seconds - c.waited for c in found[:2]])
    compute = device.fixed + large / 2 * device.per_token
    hidden = (found[2].seconds - found[3].seconds) / compute
    return Cost(device, min(c.waited for c in found[:2]), max(0.0, hidden), parameters(runs)), found


def parameters(runs):
    return next(iter(runs.values())).start["parameters"]


def timing(e, batch, ranks, link=None):
    """Flags of some updates for their time alone."""
    steps = e.pick(6, 12 if link else 60, 20 if link else 200)
    return ["--data", e.corpus(10 ** 6), *e.size_flags, "--micro-batch", batch // ranks // T,
            "--batch-tokens", batch, "--steps", steps, "--eval-every", 0, "--eval-tokens", 2048,
            "--seed", 1]


def linked(name, link, more):
    """A job of two ranks, on two ends of a link of so many Mbit/s."""
    return lab.Job(name, [f"{link}mbit" if link else "none", lab.MPI_TRAINER, *more], program=LINK,
                   alone=True)


# ---------------------------------------------------------------- the race

class Lane:
    """A method over a link: its best batch, and each seed's [(seconds, loss)]."""

    def __init__(self, e, cost, method, link, choices):
        self.e, self.method, self.link = e, method, link
        self.choice = min((c for c in choices if bool(c.every) == (method.name == "diloco")),
                          key=lambda c: c.updates() * update_seconds(cost, method, c, link))
        self.modelled = update_seconds(cost, method, self.choice, link)
        self.runs, self.measured = [self.choice.run()], False

    def job(self, seed):
        outer, k = self.choice.best()
        c, m = self.choice, self.method
        more = flags(self.e, c.batch, k, seed, m.ranks, c.every) + list(m.flags)
        if c.every:
            more += diloco_flags(c.every, outer)
        name = f"{m.name}_b{c.batch}{f'_h{c.every}' if c.every else ''}"
        if m.ranks == 1:
            return lab.Job(f"{name}_s{seed}", more, alone=True)
        return linked(f"{name}_{self.link}mbit_s{seed}", self.link, more)

    def took(self, runs):
        self.runs, self.measured = runs, True

    def curve(self, run):
        """[(seconds of all updates so far, validation loss)] of a run's evaluations."""
        spent, at = 0.0, {0: 0.0}
        for step in run.steps:
            spent += step["seconds"] if self.measured else self.modelled
            at[step["step"]] = spent
        return [(at[record["step"]], record["val_loss"]) for record in run.evals
                if record["step"] in at]

    def seconds(self):
        """Of each seed, to the target; None: not reached."""
        found = []
        for run in self.runs:
            pairs = [p for p in self.curve(run) if lab.number(p[1])]
            i = next((i for i, p in enumerate(pairs) if p[1] <= self.e.target), None)
            if not i:
                found.append(pairs[0][0] if i == 0 else None)
                continue
            (t, above), (u, below) = pairs[i - 1], pairs[i]
            found.append(t + (u - t) * (above - self.e.target) / (above - below))
        return found

    def update(self):
        """Median measured seconds of an update; of a whole round of DiLoCo, per update."""
        if not self.choice.every:
            return lab.median([run.median("seconds") for run in self.runs])
        whole = [[s["seconds"] for s in run.steps][self.choice.every:] for run in self.runs]
        whole = [w[:len(w) // self.choice.every * self.choice.every] for w in whole]
        return lab.median([sum(w) / len(w) for w in whole if w] or [math.nan])

    def what(self):
        c = self.choice
        return f"{self.method.label}, {c.batch:,}" + (f", H = {c.every}" if c.every else "")


def race(e, cost, choices, why):
    """{link: [Lane]}"""
    able = [m for m in METHODS if m.name != "diloco" or any(c.every for c in choices)]
    lanes = {link: [Lane(e, cost, m, link, choices) for m in able] for link in e.links}
    if why:
        return lanes
    jobs = {}
    for seed in e.seeds:                                     # a stop leaves whole seeds
        for lane in (lane for link in e.links for lane in lanes[link]):
            jobs[id(lane), seed] = lane.job(seed)
        runs = e.run(list({job.name: job for job in jobs.values()}.values()))
    for lane in (lane for link in e.links for lane in lanes[link]):
        lane.took([runs[jobs[id(lane), seed].name] for seed in e.seeds])
    return lanes


class Ratio:
    """Logarithm of how many times longer one lane takes than another, seed by seed."""

    def __init__(self, link, slow, fast):
        self.link, self.slow, self.fast = link, slow, fast
        self.logs = [math.log(a / b) if a and b else math.nan
                     for a, b in zip(slow.seconds(), fast.seconds())]
        self.mean, self.reach = sum(self.logs) / len(self.logs), math.nan

    def text(self):
        low, high = (math.exp(self.mean + sign * self.reach) for sign in (-1, 1))
        between = "one seed" if math.isnan(low) else f"{low:.2f} to {high:.2f}"
        return (f"over {self.link:,} Mbit/s {self.slow.method.label} takes "
                f"{math.exp(self.mean):.2f} times ({between}) as long as {self.fast.method.label}")


def ratios(e, lanes):
    """What the prediction claims, as ratios above 1."""
    def of(link, slow, fast):
        by = {lane.method.name: lane for lane in lanes[link]}
        return Ratio(link, by[slow], by[fast]) if slow in by and fast in by else None
    slow, fast = e.links[0], e.links[-1]
    claims = [of(slow, "parallel", "one"), of(slow, "parallel", "diloco")]
    claims += [of(fast, "one", "parallel")] if fast > slow else []
    claims = [c for c in claims if c]
    for claim, reach in zip(claims, fit.joint_reaches([c.logs for c in claims], CONFIDENCE)):
        claim.reach = reach
    return claims


def judge(claims, why):
    text = "; ".join(c.text() for c in claims)
    if why:
        return "skipped", f"modelled only: {why}"
    if any(c.mean + c.reach < 0.0 for c in claims):
        return "refuted", text
    return ("as predicted" if all(c.mean - c.reach > 0.0 for c in claims) else "undecided"), text


# ---------------------------------------------------------------- one sum over one link

# Gradients that the busiest link carries each way, for a sum over n ranks that all have it after.
WAYS = {"parameter server": lambda n: n,         # the server's link: n come, n go
        "exchange": lambda n: n - 1.0,           # each rank sends its own to every other
        "tree": lambda n: 2.0 if n > 2 else 1.0,     # two binary trees, half each (Sanders 2009)
        "ring": lambda n: 2.0 * (n - 1) / n}     # Patarasuk and Yuan 2009: no way sends less
RANKS = [2, 3, 4, 5, 6, 7, 8]


def measured_sums(e):
    """{ranks: gradients that a rank sent, from the trainer's count of bytes}"""
    if not lab.has_mpi():
        return {}
    jobs = {n: lab.Job(f"sum_{n}", timing(e, n * T, n)[:-2] + ["--zero", 0, "--seed", 1], ranks=n)
            for n in e.pick([2], [2, 4, 8], [2, 4, 8])}
    runs = e.run(list(jobs.values()))
    return {n: lab.median([s["bytes_sent"] / (4.0 * runs[j.name].start["parameters"])
                           for s in runs[j.name].steps]) for n, j in jobs.items()}


# ---------------------------------------------------------------- pictures

def draw_race(plt, e, lanes, title):
    figure, panels = plt.subplots(len(lanes), 1, figsize=(7.6, 3.1 * len(lanes) + 0.6),
                                  layout="constrained", squeeze=False)
    figure.suptitle(title, x=0.01, ha="left", fontsize=10.5)
    for ax, (link, of) in zip(panels[:, 0], lanes.items()):
        start = max((p[0][1] for p in (lane.curve(lane.runs[0]) for lane in of) if p),
                    default=e.target)
        for i, lane in enumerate(of):
            look = {"color": lab.COLOURS[i], "linestyle": lab.LINES[i]}
            for run in lane.runs:
                points = [p for p in lane.curve(run) if lab.number(p[1]) and p[0] > 0.0]
                ax.plot([t for t, _ in points], [loss for _, loss in points], linewidth=1.4, **look)
            there = [s for s in lane.seconds() if s]
            if there:
                ax.plot(there, [e.target] * len(there), lab.MARKERS[i], color=look["color"],
                        clip_on=False)
            ax.plot([], [], marker=lab.MARKERS[i], linewidth=1.4, label=lane.what(), **look)
        ax.legend(loc="lower left", fontsize=8.5, labelcolor="linecolor", frameon=False)
        lab.log_axis(ax.xaxis)
        ax.set_ylim(e.target - 0.02, min(start, e.target + 1.2))
        ax.margins(x=0.14)
        kind = "measured" if of[0].measured else "modelled"
        lab.axes(ax, f"seconds, {kind}" if ax is panels[-1, 0] else None,
                 "validation loss (nats)", f"{link:,} Mbit/s: {order_text(of)}")
    return figure


def order_text(lanes):
    """Methods by their mean seconds to the target."""
    found = sorted((sum(s) / len(s), lane.method.label.split(", ")[-1]) for lane in lanes
                   for s in [lane.seconds()] if None not in s)
    return ", ".join(f"{name} {seconds:.3g} s" for seconds, name in found) or "none arrives"


def draw_updates(plt, e, cost, lanes, calibrations, title):
    figure, ax = plt.subplots(figsize=(7.6, 5.2), layout="constrained")
    low, high = e.links[0] / 1.5, e.links[-1] * 1.5
    grid = [low * (high / low) ** (i / 80) for i in range(81)]
    ends = {}                                    # words of a curve -> (its last point, colour)
    for link, of in lanes.items():
        for i, lane in enumerate(of):
            colour = lab.COLOURS[i]
            if lane.method.numbers and lane.what() not in ends:
                curve = [1e3 * update_seconds(cost, lane.method, lane.choice, x) for x in grid]
                ax.plot(grid, curve, color=colour, linestyle=lab.LINES[i], linewidth=1.2)
                ends[lane.what()] = curve[-1], colour
            if lane.method.numbers and lane.measured:
                ax.plot([link], [1e3 * lane.update()], lab.MARKERS[i], color=colour, markersize=7)
    at = 0.0
    for words, (end, colour) in sorted(ends.items(), key=lambda item: item[1]):
        at = max(end, 1.18 * at)                 # a line of words above the one below
        ax.annotate(words, (1.06 * high, at), va="center", fontsize=8.5, color=colour)
    for c in calibrations:
        if c.link:
            ax.plot([c.link], [1e3 * c.seconds], "o", color="black", markerfacecolor="white",
                    markersize=8)
    lab.log_axis(ax.xaxis)
    lab.log_axis(ax.yaxis)
    ax.set_xlim(low / 1.2, high * 1.2 * (high / low) ** 0.42)          # room for the words
    lab.axes(ax, "link (Mbit/s each way)", "milliseconds an update", title)
    return figure


def draw_sums(plt, measured):
    figure, ax = plt.subplots(figsize=(7.6, 4.8), layout="constrained")
    for i, (name, gradients) in enumerate(WAYS.items()):
        ax.plot(RANKS, [gradients(n) for n in RANKS], color=lab.COLOURS[i],
                linestyle=lab.LINES[i], linewidth=1.5)
        ax.annotate(name, (RANKS[-1], gradients(RANKS[-1])), (6, -3), textcoords="offset points",
                    color=lab.COLOURS[i])
    if measured:
        ax.plot(list(measured), list(measured.values()), "o", color="black", markersize=7,
                zorder=5)
        n = max(measured)
        ax.annotate("counted in this trainer", (n, measured[n]), (8 if n == 2 else -10, -18),
                    textcoords="offset points", ha="left" if n == 2 else "right", fontsize=9)
    ax.set_ylim(0.0, None)
    ax.set_xlim(RANKS[0], RANKS[-1] + 1.6)
    ax.set_xticks(RANKS)
    lab.axes(ax, "ranks", "gradients over the busiest link, each way",
             "A server's link carries n gradients for one sum, a rank's in a ring less than two")
    return figure


# ---------------------------------------------------------------- the experiment

def model_errors(lanes):
    """{lane: measured seconds of an update over modelled, minus 1}"""
    return {lane: lane.update() / lane.modelled - 1.0 for of in lanes.values() for lane in of
            if lane.measured}


def near_text(errors):
    near = sum(abs(x) <= NEAR for x in errors.values())
    return f"{near} of {len(errors)} measured updates are within {100 * NEAR:.0f}% of the model"


def report(e, cost, choices, lanes, calibrations, sums):
    e.say(f"Updates to loss {e.target:g} without a link, at the best rate: " + "; ".join(
        f"{c.batch:,} tokens{f', DiLoCo H = {c.every}' if c.every else ''}: "
        + (f"{c.updates():,.0f}" if math.isfinite(c.updates()) else "not reached")
        + f" (rate {rate(c.best()[1]):g}{', edge' if c.at_edge() else ''})" for c in choices) + ".")
    e.say(f"An update: {1e3 * cost.compute.fixed:.2f} ms and {1e6 * cost.compute.per_token:.2f} µs "
          f"a token of a rank; an exchange {1e3 * cost.talk:.2f} ms without a limit; "
          + (f"overlap hides up to {100 * cost.hidden:.0f}% of the computation (measured with "
             "--no-overlap)." if calibrations else "overlap assumed to hide 4/9 of the "
             "computation."))
    for link, of in lanes.items():
        e.say(f"Over {link:,} Mbit/s, seconds to loss {e.target:g}: " + "; ".join(
            f"{lane.what()}: " + ", ".join("not reached" if s is None else f"{s:.2f}"
                                           for s in lane.seconds()) for lane in of)
              + (f", of seeds {', '.join(map(str, e.seeds))}." if of[0].measured
                 else ", modelled."))
    errors = model_errors(lanes)
    if errors:
        worst = max(errors, key=lambda lane: abs(errors[lane]))
        e.say(f"{near_text(errors)}; the farthest is {worst.method.label} over {worst.link:,} "
              f"Mbit/s, {100 * errors[worst]:+.0f}%.")
    e.say("Gradients that the busiest link carries each way for one sum over 8 ranks (calculated): "
          + ", ".join(f"{name} {gradients(8):.3g}" for name, gradients in WAYS.items())
          + ("; counted in this trainer, of a rank: " + ", ".join(
              f"{x:.3f} with {n} ranks" for n, x in sums.items()) if sums else "") + ".")


def write(e, cost, choices, lanes, calibrations, sums):
    e.csv("updates", ["batch_tokens", "every", "lr", "at_edge", "updates_to_target"],
          [[c.batch, c.every, rate(c.best()[1]), int(c.at_edge()),
            c.updates() if math.isfinite(c.updates()) else None] for c in choices])
    rows = [[link, lane.method.name, lane.choice.batch, lane.choice.every, seed, seconds,
             lane.update() if lane.measured else None, lane.modelled]
            for link, of in lanes.items() for lane in of
            for seed, seconds in zip(e.seeds if lane.measured else [1], lane.seconds())]
    e.csv("race", ["mbit_s", "method", "batch_tokens", "every", "seed", "seconds_to_target",
                   "seconds_update", "modelled_seconds_update"], rows)
    e.csv("curves", ["mbit_s", "method", "run", "seconds", "val_loss"],
          [[link, lane.method.name, run.name, *point] for link, of in lanes.items() for lane in of
           for run in lane.runs for point in lane.curve(run)])
    e.csv("calibration", ["batch_tokens", "mbit_s", "overlap", "seconds", "seconds_waited"],
          [[c.batch, c.link, int(c.overlap), c.seconds, c.waited] for c in calibrations])
    e.csv("sums", ["ranks", *(name.replace(" ", "_") for name in WAYS), "counted"],
          [[n, *(float(gradients(n)) for gradients in WAYS.values()), sums.get(n)] for n in RANKS])
    e.csv("machine", ["what", "value"],
          [["parameters", cost.parameters], ["target_loss", e.target],
           ["seconds_fixed", cost.compute.fixed], ["seconds_a_token", cost.compute.per_token],
           ["seconds_exchange_unlimited", cost.talk], ["share_hidden", cost.hidden],
           ["load", " ".join(f"{x:.2f}" for x in os.getloadavg())]])


def tensor_parallel(e, why):
    """tests/test_lab_tensor.py has it at the tiny size."""
    missing = why or ("" if os.access(tensor_links.BENCH, os.X_OK)
                      else f"needs {tensor_links.BENCH}: make MPI=1 {tensor_links.BENCH}")
    if missing:
        e.say(f"Tensor against data parallel over links: not measured, {missing}.")
    elif e.size != "tiny":
        tensor_links.measure(e, e.links, why)


def main():
    e = lab.Experiment(
        6, "bandwidth", title="Loss against real seconds over slow links",
        question="Two workers over a slow link: which method reaches a loss first, each with its "
                 "own best batch?",
        prediction="Over the slowest link one worker is faster than two that are data parallel, "
                   "and DiLoCo is faster than data parallel. Over the fastest link data parallel "
                   "is faster than one worker.")
    settings(e)
    why = possible()
    choices = lab.tune(e, [Choice(e, b) for b in e.batches])
    if lab.has_mpi():
        choices += lab.tune(e, [Choice(e, b, every) for b, every in e.diloco])
    cost, calibrations = calibrate(e, why)
    lanes = race(e, cost, choices, why)
    sums = measured_sums(e)
    claims = ratios(e, lanes)
    word, reason = judge(claims, why)
    e.setting(f"{cost.parameters:,} parameters, T={T}; constant rate after {WARMUP} updates, β2 by "
              f"half-life in tokens; {lab.machine()}, load {os.getloadavg()[0]:.2f}. Seconds are "
              "those of the updates, without evaluations.")
    write(e, cost, choices, lanes, calibrations, sums)
    report(e, cost, choices, lanes, calibrations, sums)
    if word != "as predicted":                               # the claim that decides comes first
        claims.sort(key=lambda c: c.mean + c.reach)
    title = f"{word.capitalize()}: {claims[0].text()}" if claims else word.capitalize()
    e.figure("race", lambda plt: draw_race(plt, e, lanes, title),
             alt="Validation loss against seconds for four methods, a panel for each link.",
             caption="Numbers are tokens of an update, the best for that link. One curve a seed.")
    errors = model_errors(lanes)
    fits = near_text(errors) if errors else "Modelled: nothing was measured"
    e.figure("updates", lambda plt: draw_updates(plt, e, cost, lanes, calibrations, fits),
             alt="Milliseconds of an update against the link's bandwidth, modelled and measured.",
             caption="Filled points are measured, lines modelled. Hollow points set the model's "
                     "constants, so they do not test it.")
    e.figure("sums", lambda plt: draw_sums(plt, sums),
             alt="Gradients over the busiest link for one sum, against the number of ranks.",
             caption="Lines are calculated. Points: bytes that a rank sent, in the trainer's log.")
    tensor_parallel(e, why)
    e.verdict(word, reason)
    e.close()


if __name__ == "__main__":
    main()
