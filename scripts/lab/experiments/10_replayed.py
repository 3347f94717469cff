#!/usr/bin/env python3
"""Experiment 10, sixty-four workers, replayed: real learning under a virtual clock.

    scripts/lab/experiments/10_replayed.py --quick       after experiments 5 and 9

What a run learns does not depend on how its batch is split, so experiment 9's runs stand for any
number of workers. The clock adds, for each update, the slowest of n shares (of seconds measured
here on one core) and the exchange of gradients over a link. Experiment 5's two real ranks test it.
Shares are timed: run it on a machine that does nothing else.
"""
import math
from collections import namedtuple

import _path
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

# The model of experiment 9 whose runs are replayed.
Model = namedtuple("Model", "name layers heads channels")
MODELS = {"full": Model("0.8M", 4, 4, 128), "quick": Model("119k", 2, 2, 64),
          "tiny": Model("35k", 2, 2, 32)}


# ---------------------------------------------------------------- seconds of a share

def time_shares(e, model, sizes):
    """(parameters, {tokens of a share: seconds of many updates on one core})"""
    rounds = e.pick(1, 1, 3)
    jobs = {(b, i): lab.Job(f"share_b{b}_{i}", [
        "--data", e.corpus(10 ** 6), "--layers", model.layers, "--heads", model.heads,
        "--channels", model.channels, "--seq-len", T, "--micro-batch", min(b // T, 64),
        "--batch-tokens", b, "--steps", e.pick(8, 20, max(13, min(100, 2 ** 16 // b))) + 3,
        "--eval-every", 0, "--eval-tokens", T, "--seed", 1], alone=True)
        for i in range(rounds) for b in sizes}
    runs = e.run(list(jobs.values()))
    seconds = {b: [step["seconds"] for i in range(rounds)
                   for step in runs[jobs[b, i].name].steps[3:]] for b in sizes}
    return runs[jobs[sizes[0], 0].name].start["parameters"], seconds


def exchange(model, parameters, link, n):
    """A ring all-reduce of fp32 gradients in L + 2 buckets, then loss and norm."""
    return fit.ring_seconds(4.0 * parameters, n, link.bandwidth, (model.layers + 3) * link.latency)


# ---------------------------------------------------------------- learning, and the clock

# A batch of experiment 9 at its best rate. curves: {seed: [(updates, tokens, loss)]}; updates: to
# the target, mean over seeds.
Learned = namedtuple("Learned", "batch curves updates target")


def read_learning(e, model):
    """[Learned], the smallest batch first; those alone that reached the target on all seeds."""
    def own(table):
        return [row for row in kept.table("09_curves", table, e.args.out)
                if (row["model"], row["arm"]) == (model.name, "tuned")]
    found = []
    for batch in sorted({row["batch_tokens"] for row in own("targets")}):
        ends = [row for row in own("targets") if row["batch_tokens"] == batch]
        if all(row["updates"] for row in ends):
            curves = {}
            for row in own("curves"):
                if row["batch_tokens"] == batch:
                    curves.setdefault(int(row["seed"]), []).append(
                        (int(row["step"]), int(row["tokens"]), row["val_loss"]))
            found.append(Learned(int(batch), curves, sum(row["updates"] for row in ends)
                                 / len(ends), ends[0]["target_nats"]))
    return found


# update: seconds, of which `share` are the slowest of n shares. seconds: to the target.
Lane = namedtuple("Lane", "link workers learned share update seconds")


def best_lane(learned, shares, link, n, cost):
    """The batch with the least time; None where no batch gives every worker a measured share."""
    lanes = []
    for of in learned:
        if of.batch / n in shares:
            share = fit.slowest(shares[of.batch // n], n)
            lanes.append(Lane(link, n, of, share, share + cost, of.updates * (share + cost)))
    return min(lanes, key=lambda lane: lane.seconds, default=None)


def all_lanes(model, learned, shares, parameters):
    """{(link, n): Lane}"""
    lanes = {(link, n): best_lane(learned, shares, link, n, exchange(model, parameters, link, n))
             for link in LINKS for n in WORKERS}
    return {at: lane for at, lane in lanes.items() if lane}


def slowest_link(model, learned, shares, parameters, alone):
    """Bytes a second below which the most workers lose to one, at no latency."""
    low, high = 1e3, 1e12
    for _ in range(50):
        middle = math.sqrt(low * high)
        link = Link("", middle, 0.0)
        lane = best_lane(learned, shares, link, LANES[-1],
                         exchange(model, parameters, link, LANES[-1]))
        low, high = (middle, high) if lane.seconds > alone else (low, middle)
    return high


# ---------------------------------------------------------------- against real ranks

def check(e):
    """(model, [(seconds by the clock, seconds measured)] of experiment 5's kept blocks)"""
    fits = kept.read("05_time", "fit.json", e.args.out)
    if not fits:
        return None, []
    of = fits["models"][0]
    return of, [(row["updates_shared"] * (row["share"] + of["messages"] * row["alpha"]
                                          + 4.0 * of["parameters"] * row["beta"]),
                 row["seconds_shared"])
                for row in kept.table("05_time", "blocks", e.args.out) if row["kept"]]


# ---------------------------------------------------------------- tables, words

def write(e, lanes, shares):
    e.csv("shares", ["tokens", "updates", "seconds_mean", "seconds_median",
                     *(f"slowest_of_{n}" for n in WORKERS)],
          [[b, len(of), sum(of) / len(of), lab.median(of), *(fit.slowest(of, n) for n in WORKERS)]
           for b, of in shares.items()])
    e.csv("lanes", ["link", "bandwidth", "latency", "workers", "batch_tokens", "updates",
                    "share_seconds", "update_seconds", "seconds_to_target", "target_nats"],
          [[at.name, None if math.isinf(at.bandwidth) else at.bandwidth, at.latency, n,
            lane.learned.batch, lane.learned.updates, lane.share, lane.update, lane.seconds,
            lane.learned.target] for (at, n), lane in lanes.items()])
    e.csv("replay", ["workers", "batch_tokens", "seed", "update", "tokens", "seconds", "val_loss"],
          [[n, lane.learned.batch, seed, step, tokens, step * lane.update, loss]
           for n in LANES if (lane := lanes.get((LINKS[0], n)))
           for seed, curve in lane.learned.curves.items() for step, tokens, loss in curve])


def say(e, model, lanes, limit, known, checked):
    for link in LINKS:
        found = [lanes[link, n] for n in LANES if (link, n) in lanes]
        e.say(f"Over {link.name}, seconds to {found[0].learned.target:g} nats, {model.name} "
              "parameters, by the clock: " + ", ".join(
                  f"{lane.workers} worker{'s' * (lane.workers > 1)} {lane.seconds:.1f} "
                  f"({lane.learned.batch:,} tokens, {lane.learned.updates:,.0f} updates)"
                  for lane in found) + ".")
    if limit:
        e.say(f"{LANES[-1]} workers lose to one below {8e-6 * limit:,.0f} Mbit/s, at no latency.")
    if checked:
        e.say(f"Two real ranks ({known['model']}, {known['batches'][1]:,} tokens, to "
              f"{known['target_nats']:g} nats) in {len(checked)} blocks: clock over measured "
              + ", ".join(f"{a / b:.3f}" for a, b in checked) + ".")


# ---------------------------------------------------------------- pictures

def draw_race(plt, model, lanes):
    figure, ax = plt.subplots(figsize=(7.6, 4.2), layout="constrained")
    for i, n in enumerate(LANES):
        lane = lanes.get((LINKS[0], n))
        if not lane:
            continue
        curve = next(iter(lane.learned.curves.values()))
        ax.plot([step * lane.update for step, _, _ in curve], [loss for *_, loss in curve],
                color=lab.COLOURS[i], linestyle="--", linewidth=1.8,
                label=f"{n} worker{'s' * (n > 1)}, {lane.learned.batch:,} tokens an update")
        ax.annotate(f"{lane.seconds:.3g} s", (lane.seconds, lane.learned.target), (-4, -14),
                    textcoords="offset points", color=lab.COLOURS[i], ha="center")
    target = next(iter(lanes.values())).learned.target
    ax.axhline(target, color="#888888", linewidth=0.8)
    lab.log_axis(ax.xaxis)
    ax.set_ylim(target - 0.12, target + 1.2)
    ax.legend(loc="upper right")
    lab.axes(ax, "seconds by the virtual clock (modelled from measured shares)", "validation loss",
             f"{model.name} parameters, each number of workers at its best batch")
    return figure


def draw_links(plt, lanes, known, checked):
    figure, ax = plt.subplots(figsize=(7.6, 4.4), layout="constrained")
    for i, link in enumerate(LINKS):
        found = [lanes[link, n] for n in WORKERS if (link, n) in lanes]
        ax.plot([lane.workers for lane in found], [lane.seconds for lane in found],
                color=lab.COLOURS[i], linestyle="--", marker=lab.MARKERS[i],
                markerfacecolor="white", label=link.name)
    if checked and known["target_nats"] == next(iter(lanes.values())).learned.target:
        ax.plot([2], [lab.median([b for _, b in checked])], "k*", markersize=12,
                label="two cores, measured")
    alone = lanes[LINKS[0], 1].seconds
    ax.axhline(alone, color="#888888", linewidth=0.8)
    ax.annotate("one worker", (WORKERS[-1], alone), (0, 4), textcoords="offset points", ha="right",
                fontsize=9, color="#444444")
    lab.log_axis(ax.xaxis, base=2)
    lab.log_axis(ax.yaxis)
    ax.legend(title="link (hollow: modelled)")
    lab.axes(ax, "workers", "seconds to the loss", "More workers help until the link is too slow")
    return figure


def main():
    e = lab.Experiment(
        10, "replayed", title="Sixty-four workers, replayed",
        question="How much faster would 64 workers be, and over which link would they lose to one?",
        prediction="A clock that adds the slowest share and the exchange of each update predicts "
                   "two real ranks within 10%.")
    model = MODELS[e.size]
    learned = read_learning(e, model)
    if not learned:
        e.verdict("skipped", "needs experiment 9's runs of this model: run "
                             "scripts/lab/experiments/09_curves.py with the same --out")
        return e.close()
    sizes = sorted({of.batch // n for of in learned for n in WORKERS if of.batch // n >= T})
    parameters, shares = time_shares(e, model, sizes)
    lanes = all_lanes(model, learned, shares, parameters)
    known, checked = check(e)
    alone = lanes[LINKS[0], 1].seconds
    limit = (LINKS[0], LANES[-1]) in lanes and slowest_link(model, learned, shares, parameters,
                                                            alone)
    e.setting(f"T={T}; shares of {sizes[0]:,} to {sizes[-1]:,} tokens, timed on one core; the "
              "slowest of n is the mean largest of n draws from them. Rings of fp32 gradients, "
              "not overlapped.")
    write(e, lanes, shares)
    say(e, model, lanes, limit, known, checked)
    e.figure("race", lambda plt: draw_race(plt, model, lanes),
             alt="Validation loss against seconds of a virtual clock for 1, 8 and 64 workers.",
             caption="Dashed: modelled. Losses are of real runs; seconds are the slowest of n "
                     "shares measured on one core, over a link that costs nothing.")
    e.figure("links", lambda plt: draw_links(plt, lanes, known, checked),
             alt="Seconds to a loss against the number of workers, for links from free to slow.",
             caption="Hollow: modelled. The star was measured on two cores.")
    ratios = [a / b for a, b in checked]
    e.decide([("", lab.median(ratios), *fit.median_interval(ratios))] if ratios else [])
    return e.close()


if __name__ == "__main__":
    main()
