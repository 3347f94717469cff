#!/usr/bin/env python3
"""Experiment 10, sixty-four workers, replayed: real learning under a virtual clock.

    scripts/lab/experiments/10_replayed.py --quick       after experiments 2 and 5

What a run learns does not depend on how its batch is split, so experiment 2's runs stand for any
number of workers. The clock adds, for each update, the slowest of n shares (of seconds measured
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

# The model of experiment 2 whose runs are replayed, to a loss.
Model = namedtuple("Model", "name target")
MODELS = {"full": Model("0.8M", 1.4), "quick": Model("119k", 2.0), "tiny": Model("35k", 2.9)}


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

# A batch of experiment 2 at its best rate; updates to the target: the mean over all seeds.
Learned = namedtuple("Learned", "batch rate updates")


def source(e):
    """Where the results of other experiments are read: of --out first, if runs are made here."""
    return None if e.args.kept else e.args.out


def read_learning(e):
    """[Learned], the smallest batch first."""
    model = MODELS[e.size]
    return [Learned(batch, lr, mean(of.values())) for batch, (lr, of) in
            kept.pooled(model.name, model.target, source(e)).items()]


def averaged(e, model):
    """The same for the average of the weights, which a constant rate handicaps less."""
    rows = kept.table("02_knee", "points", source(e), size=model.name, reading="averaged",
                      target_nats=model.target)
    return [Learned(row["batch_tokens"], row["best_lr"], row["updates_median"]) for row in rows]


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
    """Bytes a second below which the most workers lose to one, at no latency: the least of those
    with which a batch is as fast."""
    n = LANES[-1]
    spare = [alone / of.updates - shares[of.batch // n, n] for of in learned
             if of.batch % n == 0 and (of.batch // n, n) in shares]
    return exchange(model, parameters, Link("", 1.0, 0.0), n) / max(spare)


def check(e):
    """[(seconds by the clock, seconds measured)] of experiment 5's kept blocks, on two real
    ranks; and the row of its model, None without."""
    of = next(iter(kept.table("05_time", "model", source(e))), None)
    rows = kept.table("05_time", "blocks", source(e), kept=1) if of else []
    return [(row["updates_shared"] * (row["share"] + of["messages"] * row["alpha"]
                                      + 4.0 * of["parameters"] * row["beta"]),
             row["seconds_shared"]) for row in rows], of


# ---------------------------------------------------------------- pictures

def draw_race(model, lanes, curves):
    shown = []
    for n in LANES:
        lane = lanes.get((LINKS[0], n))
        own = lane and kept.only(curves, batch_tokens=lane.learned.batch, lr=lane.learned.rate)
        if own:
            curve = [x for x in kept.only(own, seed=own[0]["seed"])
                     if x["val_loss"] < model.target + 1.2]
            shown.append(lab.Curve(
                f"{n} worker{'s' * (n > 1)}, {lane.learned.batch:,} tokens an update: "
                f"{lane.seconds:.3g} s", [x["step"] * lane.update for x in curve],
                [x["val_loss"] for x in curve], look={"linestyle": "--", "marker": ""}))
    return lab.panels([{
        "curves": shown, "y": "validation loss", "log": (10, 0),
        "x": "seconds by the virtual clock (modelled from measured shares)"}],
        f"{model.name} parameters, each number of workers at its best batch size")


def draw_links(model, lanes, measured):
    """measured: seconds on two cores, or None."""
    curves = []
    for link in LINKS:
        found = [lanes[link, n] for n in WORKERS if (link, n) in lanes]
        curves.append(lab.Curve(link.name, [lane.workers for lane in found],
                                [lane.seconds for lane in found],
                                look={"linestyle": "--", "markerfacecolor": "white"}))
    if measured:
        curves.append(lab.Curve("two cores, measured", [2], [measured], look={
            "color": "black", "marker": "*", "markersize": 12, "linestyle": ""}))
    return lab.panels([{"curves": curves, "x": "workers (CPU cores)", "log": (2, 10),
                        "y": f"seconds to a loss of {model.target:g}, {model.name} parameters",
                        "legend": "link (hollow: modelled)"}],
                      "More workers help until the link is too slow")


def conclude(e):
    model, learned = MODELS[e.size], read_learning(e)
    shares = {(row["tokens"], n): row[f"slowest_of_{n}"] for row in e.rows("shares")
              for n in WORKERS}
    parameters = e.rows("model")[0]["parameters"]
    e.found("parameters", parameters)
    lanes, (checked, known) = all_lanes(model, learned, shares, parameters), check(e)
    e.table("lanes", ["link", "bandwidth", "latency", "workers", "batch_tokens", "updates",
                      "share_seconds", "update_seconds", "seconds_to_target", "target_nats"],
            [[at.name, at.bandwidth, at.latency, n, lane.learned.batch, lane.learned.updates,
              lane.share, lane.update, lane.seconds, model.target]
             for (at, n), lane in lanes.items()])
    e.table("batches", ["batch_tokens", "updates", "tokens", *(f"seconds_{n}" for n in (1, 8, 16))],
            [[of.batch, of.updates, of.updates * of.batch,
              *(lane and lane.seconds for lane in [
                  best_lane([of], shares, LINKS[1], n, exchange(model, parameters, LINKS[1], n))
                  for n in (1, 8, 16)])] for of in learned])
    for (link, n), lane in lanes.items():
        if n in LANES:
            e.found(f"seconds to {model.target:g} nats over {link.name}, workers: {n}",
                    lane.seconds)
    fair = all_lanes(model, averaged(e, model), shares, parameters)
    for words, of in [("a constant rate", lanes), ("averaged weights", fair)]:
        for n in LANES[1:]:
            if (LINKS[0], n) in of:
                e.found(f"speed of {n} workers over one, a link that costs nothing, {words}",
                        of[LINKS[0], 1].seconds / of[LINKS[0], n].seconds)
    if (LINKS[0], LANES[-1]) in lanes:
        e.found("Mbit/s below which 64 workers lose to one", 8e-6 * slowest_link(
            model, learned, shares, parameters, lanes[LINKS[0], 1].seconds))
    curves = kept.table("02_knee", "curves", source(e), size=model.name)
    e.figure("race", draw_race(model, lanes, curves),
             alt="Validation loss against seconds of a virtual clock for 1, 8 and 64 workers.",
             caption="Dashed: modelled. Losses are of real runs; seconds are the slowest of n "
                     "shares measured on one core, over a link that costs nothing.")
    same = checked and known["target_nats"] == model.target
    e.figure("links", draw_links(model, lanes, same and median(b for _, b in checked)),
             alt="Seconds to a loss against the number of workers, for links from free to slow.",
             caption="Hollow: modelled. The star was measured on two cores.")
    return [("", *fit.median_interval([a / b for a, b in checked]))] if checked else []


if __name__ == "__main__":
    lab.experiment(
        10, "replayed", time_shares, conclude,
        lambda e: "" if read_learning(e) else "needs experiment 2's runs of this model: run "
        "scripts/lab/experiments/02_knee.py with the same --out", endpoint=(0.9, 1.1),
        title="Sixty-four workers, replayed",
        question="How much faster would 64 workers be, and over which link would they lose to one?",
        prediction="A clock that adds the slowest share and the exchange of each update predicts "
                   "two real ranks within 10%.")
