#!/usr/bin/env python3
"""Experiment 10, sixty-four workers, replayed: real learning under a virtual clock.

    scripts/lab/experiments/10_replayed.py --quick       after 02_front.py and experiment 5

What a run learns does not depend on how its batch is split, so the runs of 02_front.py stand for
any number of workers. The clock adds, for each update, the slowest of n shares (of seconds measured
here on one core) and the exchange of gradients over a link. Experiment 5's two real ranks test it.
Shares are timed: run it on a machine that does nothing else.
"""
import math
from collections import namedtuple
from statistics import fmean as mean, median

import fit
import kept
import lab

T = 32
WORKERS = [1, 2, 4, 8, 16, 32, 64]
LANES = [1, 8, 64]

# Bytes a second of a device's link, and seconds a message; messages travel in a ring.
Link = namedtuple("Link", "name bandwidth latency")
LINKS = [Link("a link that costs nothing", math.inf, 0.0), Link("10 Gbit/s", 1.25e9, 20e-6),
         Link("1 Gbit/s", 1.25e8, 50e-6), Link("25 Mbit/s", 25e6 / 8, 1e-3)]

# Of a message, in other cases; the last is what one took between experiment 5's ranks, over MPI.
LATENCIES = [0.0, 20e-6, 50e-6, 150e-6]

# Arms of experiment 5, in full: workers and batch.
TIMED = [("small", 1, 512), ("accumulated", 1, 1024), ("shared", 2, 1024)]

# The model of 02_front.py, and its loss.
Model = namedtuple("Model", "name target")
MODELS = {"full": Model("0.8M", 1.4), "quick": Model("119k", 2.0), "tiny": Model("35k", 3.3)}


# ---------------------------------------------------------------- seconds of a share

def time_shares(e):
    """Times shares of every batch on one core; writes the table of their seconds."""
    model, sizes = MODELS[e.size], sorted({
        of.batch // n for of in read_learning(e) for n in WORKERS
        if of.batch % n == 0 and of.batch // n >= T})
    rounds = e.pick(1, 1, 3)
    jobs = {(b, i): lab.Job(f"share_b{b}_{i}", e.timing(
        lab.model(model.name, T), b, min(b // T, 64),
        e.pick(8, 20, max(13, min(100, 2 ** 16 // b))) + 3), alone=True)
        for i in range(rounds) for b in sizes}
    runs = e.run(list(jobs.values()))
    seconds = {b: [step["seconds"] for i in range(rounds)
                   for step in runs[jobs[b, i].name].steps[3:]] for b in sizes}
    e.table("shares", ["tokens", "updates", "seconds_mean", "seconds_median",
                       *(f"slowest_of_{n}" for n in WORKERS)],
            [[b, len(of), mean(of), median(of), *(fit.slowest(of, n) for n in WORKERS)]
             for b, of in seconds.items()])
    e.table("model", ["model", "parameters"],
            [[model.name, runs[jobs[sizes[0], 0].name].start["parameters"]]])


def exchange(model, parameters, link, n):
    """A ring all-reduce (Patarasuk and Yuan 2009) of fp32 gradients in L + 2 buckets, then of loss
    and norm: of each, a worker sends 2(n-1)/n in 2(n-1) messages."""
    messages = lab.MODELS[model.name][0] + 3
    return 2.0 * (n - 1) * (4.0 * parameters / n / link.bandwidth + messages * link.latency)


# ---------------------------------------------------------------- learning, and the clock

# A batch of 02_front.py; updates to the target: the mean over its seeds.
Learned = namedtuple("Learned", "batch updates")


def source(e):
    """Where the results of other experiments are read: of --out first, if runs are made here."""
    return None if e.args.kept else e.args.out


def read_learning(e):
    """[Learned], the smallest batch first."""
    model = MODELS[e.size]
    return [Learned(row["batch_tokens"], row["updates_mean"]) for row in kept.table(
        "02_front", "points", source(e), size=model.name, target_nats=model.target)]


# update: seconds, of which `share` are the slowest of n shares. seconds: to the target.
Lane = namedtuple("Lane", "link workers learned share update seconds")


def best_lane(learned, shares, link, n, cost):
    """The batch with the least time; None where no batch gives every worker a measured share.
    shares: {(tokens, n): seconds of the slowest of n}."""
    lanes = [Lane(link, n, of, shares[of.batch // n, n], shares[of.batch // n, n] + cost,
                  of.updates * (shares[of.batch // n, n] + cost))
             for of in learned if of.batch % n == 0 and (of.batch // n, n) in shares]
    return min(lanes, key=lambda lane: lane.seconds, default=None)


def all_lanes(model, learned, shares, parameters):
    """{(link, n): Lane}"""
    lanes = {(link, n): best_lane(learned, shares, link, n, exchange(model, parameters, link, n))
             for link in LINKS for n in WORKERS}
    return {at: lane for at, lane in lanes.items() if lane}


def slowest_link(model, learned, shares, parameters, alone):
    """Bytes a second below which the most workers lose to one, at the latency of 10 Gbit/s: the
    least of those with which a batch is as fast."""
    n = LANES[-1]
    spare = [alone / of.updates - shares[of.batch // n, n] for of in learned
             if of.batch % n == 0 and (of.batch // n, n) in shares]
    waits = exchange(model, parameters, LINKS[1]._replace(bandwidth=math.inf), n)
    return exchange(model, parameters, Link("", 1.0, 0.0), n) / (max(spare) - waits)


def check(e):
    """[(seconds by the clock, seconds measured)] of experiment 5's kept blocks, on two real
    ranks."""
    of = next(iter(kept.table("05_time", "model", source(e))), None)
    rows = kept.table("05_time", "blocks", source(e), kept=1) if of else []
    return [(row["updates_shared"] * (row["share"] + of["messages"] * row["alpha"]
                                      + 4.0 * of["parameters"] * row["beta"]),
             row["seconds_shared"]) for row in rows]


def timed(e, model, learned):
    """[(workers, tokens to the target, seconds)] where experiment 5 has timed real updates."""
    if [row["model"] for row in kept.table("05_time", "model", source(e))] != [model.name]:
        return []
    blocks = kept.table("05_time", "blocks", source(e), kept=1)
    return [(n, of.updates * of.batch,
             of.updates * median(row["seconds_" + arm] / row["updates_" + arm] for row in blocks))
            for arm, n, batch in TIMED for of in learned if of.batch == batch]


# ---------------------------------------------------------------- pictures

HOLLOW = {"linestyle": "--", "markerfacecolor": "white"}
STAR = {"color": "black", "marker": "*", "markersize": 11, "linestyle": ""}


def draw_front(model, every, measured):
    """Seconds against tokens, a line for each number of workers, a point for each batch."""
    curves = [lab.Curve(f"{n}", [1e-6 * lane.learned.batch * lane.learned.updates for lane in lanes],
                        [lane.seconds for lane in lanes], look=HOLLOW)
              for n in WORKERS for lanes in [[lane for lane in every if lane.workers == n]]]
    if measured:
        curves.append(lab.Curve("1 and 2, updates timed", [1e-6 * tokens for _, tokens, _ in measured],
                                [seconds for *_, seconds in measured], look=STAR))
    figure = lab.panels([{"curves": curves, "log": (10, 10), "x": "million tokens (the work)",
                          "y": "seconds (the wait)"}],
                        f"{model.name} parameters to a loss of {model.target:g} over "
                        f"{LINKS[1].name}: each point is a batch size")
    ax, = figure.axes
    ax.set_ylim(None, 2.0 * ax.get_ylim()[1])                # room for the legend
    ax.legend(title="workers", loc="upper center", ncols=4)
    return figure


def draw_links(model, lanes):
    curves = []
    for link in LINKS:
        found = [lanes[link, n] for n in WORKERS if (link, n) in lanes]
        curves.append(lab.Curve(link.name, [lane.workers for lane in found],
                                [lane.seconds for lane in found], look=HOLLOW))
    return lab.panels([{"curves": curves, "x": "workers (CPU cores)", "log": (2, 10),
                        "y": f"seconds to a loss of {model.target:g}, {model.name} parameters",
                        "legend": "link (modelled)"}],
                      "Whether more workers help depends on the link")


def conclude(e):
    model, learned = MODELS[e.size], read_learning(e)
    shares = {(row["tokens"], n): row[f"slowest_of_{n}"] for row in e.rows("shares")
              for n in WORKERS}
    parameters = e.rows("model")[0]["parameters"]
    e.found("parameters", parameters)
    lanes = all_lanes(model, learned, shares, parameters)
    e.table("lanes", ["link", "bandwidth", "latency", "workers", "batch_tokens", "updates",
                      "share_seconds", "update_seconds", "seconds_to_target", "target_nats"],
            [[at.name, at.bandwidth, at.latency, n, lane.learned.batch, lane.learned.updates,
              lane.share, lane.update, lane.seconds, model.target]
             for (at, n), lane in lanes.items()])
    every = {(of.batch, n): best_lane([of], shares, LINKS[1], n, exchange(
        model, parameters, LINKS[1], n)) for of in learned for n in WORKERS}
    e.table("batches", ["batch_tokens", "updates", "tokens", *(f"seconds_{n}" for n in (1, 8, 16))],
            [[of.batch, of.updates, of.updates * of.batch, *(
                lane and lane.seconds for lane in [every[of.batch, n] for n in (1, 8, 16)])]
             for of in learned])
    for (link, n), lane in lanes.items():
        if n in LANES:
            e.found(f"seconds to {model.target:g} nats over {link.name}, workers: {n}",
                    lane.seconds)
    for n in LANES[1:]:
        if (LINKS[0], n) in lanes:
            e.found(f"speed of {n} workers over one, a link that costs nothing",
                    lanes[LINKS[0], 1].seconds / lanes[LINKS[0], n].seconds)
    if (LINKS[0], LANES[-1]) in lanes:
        e.found("Mbit/s below which 64 workers lose to one", 8e-6 * slowest_link(
            model, learned, shares, parameters, lanes[LINKS[0], 1].seconds))
    for latency in LATENCIES:
        link = LINKS[1]._replace(latency=latency)
        many, alone = (best_lane(learned, shares, link, n, exchange(model, parameters, link, n))
                       for n in (16, 1))
        if many:
            e.found(f"speed of 16 workers over one, {1e6 * latency:.0f} us a message",
                    alone.seconds / many.seconds)
    measured = timed(e, model, learned)
    for n, tokens, seconds in measured:
        e.found(f"seconds with {tokens:,.0f} tokens, updates timed, workers: {n}", seconds)
        e.found(f"its speed over the first, {tokens:,.0f} tokens, workers: {n}",
                measured[0][2] / seconds)
    e.figure("front", draw_front(model, list(filter(None, every.values())), measured),
             alt="Seconds to a loss against tokens, for 1 to 64 workers: more workers are faster, "
                 "at larger batches, which take more tokens.",
             caption="Hollow: modelled. Stars: with the seconds of real updates.")
    e.figure("links", draw_links(model, lanes),
             alt="Seconds to a loss against the number of workers, for links from free to slow.",
             caption="Modelled.")
    checked = check(e)
    return [("", *fit.median_interval([a / b for a, b in checked]))] if checked else []


if __name__ == "__main__":
    lab.experiment(
        10, "replayed", time_shares, conclude,
        lambda e: "" if read_learning(e) else "needs runs of this model: run "
        "scripts/lab/experiments/02_front.py with the same --out", endpoint=(0.9, 1.1),
        title="Sixty-four workers, replayed",
        question="How much faster would 64 workers be, and over which link would they lose to one?",
        prediction="A clock that adds the slowest share and the exchange of each update predicts "
                   "two real ranks within 10%.")
