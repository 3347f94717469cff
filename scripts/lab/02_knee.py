#!/usr/bin/env python3
"""Experiment 2: updates and tokens to a target loss, against the batch size.

    scripts/lab/02_knee.py --quick

At each batch size every learning rate of a grid runs with every seed until the lower of two target
losses is reached; the grid grows until the best rate lies inside it. 03_time.py reads fit.json.
"""
import math
import os

import fit
import lab

MICRO_BATCH = 64                     # sequences: full speed on a CPU, little memory
GROWTH = 4                           # how often a grid of learning rates may grow


def arguments(parser):
    parser.add_argument("--targets", metavar="HIGH,LOW", help="losses in nats a token, two or more")
    parser.add_argument("--tokens", type=float, metavar="N", help="tokens that the lowest target "
                        "takes at a small batch, roughly; a run stops at 1.4 times that, with a "
                        "large batch later")


def settings(e):
    """Batches in tokens; learning rates are `rate` times powers of `ratio`."""
    e.batches = e.pick(tiny=[32, 64, 128, 256],
                       quick=[32 * 2 ** i for i in range(9)],
                       full=[32 * 2 ** i for i in range(10)])
    e.seeds = e.pick(tiny=[1, 2], quick=[1, 2, 3], full=[1, 2, 3, 4, 5])
    e.rate, e.ratio = 4e-3, e.pick(tiny=2.0, quick=2.0, full=math.sqrt(2.0))
    e.targets = e.pick(tiny=[3.0, 2.9], quick=[2.5, 2.25], full=[2.5, 2.25])
    if e.args.targets:
        try:
            e.targets = [float(x) for x in e.args.targets.split(",")]
        except ValueError:
            lab.fail(f"--targets {e.args.targets}: expected losses, as in 2.5,2.25")
        if len(e.targets) < 2 or e.targets != sorted(set(e.targets), reverse=True):
            lab.fail(f"--targets {e.args.targets}: expected two or more, the highest first")
    e.low_tokens = e.args.tokens or e.pick(tiny=8e3, quick=260e3, full=260e3)
    e.knee_guess = e.pick(tiny=70.0, quick=1150.0, full=1150.0)


# ---------------------------------------------------------------- runs

def cap(e, batch):
    """Tokens after which a run counts as not reaching its target."""
    return int(1.4 * e.low_tokens * (1.0 + batch / e.knee_guess))


def rate(e, power):
    return e.rate * e.ratio ** power


def job(e, batch, power, seed):
    """The longest run evaluates 80 times, but at least 9000 tokens apart: an evaluation costs as
    much as training on 2700 tokens."""
    updates = cap(e, batch) / batch
    every = max(1, round(max(updates / 80.0, e.pick(1500.0, 9000.0, 9000.0) / batch)))
    return lab.Job(f"b{batch}_lr{rate(e, power):.6f}_s{seed}", [
        "--data", e.corpus(4 * 10 ** 6), *e.model(),
        "--micro-batch", min(batch // 32, MICRO_BATCH), "--batch-tokens", batch,
        "--lr", f"{rate(e, power):.6g}", "--lr-schedule", "constant",
        "--beta2", f"{lab.half_life_beta2(batch):.7g}",
        "--tokens", cap(e, batch), "--target-loss", e.targets[-1],
        "--eval-every", every, "--eval-tokens", e.pick(2048, 8192, 8192), "--seed", seed],
        cost=cap(e, batch), thin=100)


def sweep(e):
    """{batch: {power: [Run of each seed]}}. Where the best rate for any target is at an end of a
    batch's grid, the grid grows by one rate at that end."""
    powers = {batch: e.pick([-1, 0, 1], [-1, 0, 1], [-2, -1, 0, 1, 2]) for batch in e.batches}
    for growth in range(GROWTH + 1):
        runs = e.run([job(e, b, p, s) for b in e.batches for p in powers[b] for s in e.seeds])
        done = {b: {p: [runs[job(e, b, p, s).name] for s in e.seeds] for p in powers[b]}
                for b in e.batches}
        sides = {b: {fit.edge_side(tried(done[b], target, e)) for target in e.targets} - {0}
                 for b in e.batches}
        if growth == GROWTH or not any(sides.values()):
            return done
        for batch in e.batches:
            if -1 in sides[batch]:
                powers[batch].insert(0, powers[batch][0] - 1)
            if 1 in sides[batch]:
                powers[batch].append(powers[batch][-1] + 1)


def tried(runs, target, e):
    return {rate(e, p): [run.updates_at(target) for run in of] for p, of in runs.items()}


# ---------------------------------------------------------------- numbers

def measure(e, done):
    """{target: (points, batches that never reached it, Knee)}"""
    found = {}
    for target in e.targets:
        points = {b: fit.best_rate(b, tried(done[b], target, e)) for b in e.batches}
        there = [p for p in points.values() if p]
        found[target] = (there, [b for b, p in points.items() if not p], fit.knee(there))
    return found


def write(e, done, found):
    e.csv("runs", ["target_nats", "batch_tokens", "lr", "seed", "updates", "tokens", "final_loss"],
          [[t, b, rate(e, p), s, run.updates_at(t), run.tokens_at(t), run.val]
           for t in e.targets for b in e.batches for p in sorted(done[b])
           for s, run in zip(e.seeds, done[b][p])])
    e.csv("points", ["target_nats", "batch_tokens", "batch_sequences", "best_lr", "edge",
                     "updates_median", "updates_low", "updates_high", "tokens_median",
                     "updates_fit"],
          [[t, p.batch, p.batch // 32, p.lr, int(p.edge), p.median, *spread(p),
            p.median * p.batch, None if knee.reason else
            fit.predicted_updates(p.batch, knee.s_min, knee.b_crit)]
           for t, (points, _, knee) in found.items() for p in points])
    rows = [[t, k.s_min, k.b_crit, k.low, k.high, k.s_min * k.b_crit, k.rms, k.reason]
            if not k.reason else [t, None, None, None, None, None, None, k.reason]
            for t, (_, _, k) in found.items()]
    header = ["target_nats", "s_min", "b_crit", "b_crit_low", "b_crit_high", "e_min", "rms",
              "refused"]
    e.csv("fit", header, rows)
    lab.write_json(os.path.join(e.dir, "fit.json"), {
        "fits": [dict(zip(header, row)) for row in rows],
        "batches": {str(t): [p.batch for p in points] for t, (points, _, _) in found.items()},
        "parameters": next(iter(done[e.batches[0]].values()))[0].start.get("parameters"),
        "seq_len": 32, "size": e.size})


def spread(point):
    """Fewest and most updates among the seeds that reached the target."""
    there = [n for n in point.updates if n is not None]
    return min(there), max(there)


# ---------------------------------------------------------------- pictures

def sequences_on_top(ax):
    top = ax.secondary_xaxis("top", functions=(lambda x: x / 32.0, lambda x: x * 32.0))
    lab.log_axis(top.xaxis, base=2)
    top.set_xlabel("batch (sequences of 32 tokens)", fontsize=9)
    top.tick_params(labelsize=9)


def draw_knee(plt, e, found):
    figure, (above, below) = plt.subplots(2, 1, figsize=(6.4, 8.6), layout="constrained")
    for i, (target, (points, _, knee)) in enumerate(found.items()):
        for ax, scale in [(above, lambda b: 1), (below, lambda b: b)]:
            draw_target(ax, i, target, points, knee, scale)
    for ax, y in [(above, "updates to the target"), (below, "tokens to the target")]:
        lab.log_axis(ax.xaxis, base=2)
        lab.log_axis(ax.yaxis)
        lab.axes(ax, "batch (tokens an update)", y)
    sequences_on_top(above)
    above.legend(loc="upper right")
    above.set_title("Fewer updates with a larger batch, up to the knee\n", loc="left")
    below.set_title("More tokens with a larger batch, from the knee on", loc="left")
    return figure


def draw_target(ax, i, target, points, knee, scale):
    """Medians with the seeds' range, hollow where the rate lies on the grid's edge; the fit."""
    colour, marker = lab.COLOURS[i], lab.MARKERS[i]
    for p in points:
        low, high = spread(p)
        y = p.median * scale(p.batch)
        ax.errorbar([p.batch], [y], [[y - low * scale(p.batch)], [high * scale(p.batch) - y]],
                    color=colour, marker=marker, markersize=6.5, capsize=3, zorder=3,
                    markerfacecolor="white" if p.edge else colour)
    label = f"loss {target:g} nats a token"
    if not knee.reason:
        label += f": $B_{{crit}}$ = {knee.b_crit:,.0f} tokens"
        across = [points[0].batch * (points[-1].batch / points[0].batch) ** (j / 100)
                  for j in range(101)]
        ax.plot(across, [fit.predicted_updates(b, knee.s_min, knee.b_crit) * scale(b)
                         for b in across], color=colour, linestyle=lab.LINES[i])
        y = 2.0 * knee.s_min * scale(knee.b_crit)
        ax.axvline(knee.b_crit, color=colour, linestyle=lab.LINES[i], linewidth=0.9)
        ax.errorbar([knee.b_crit], [y], xerr=[[knee.b_crit - knee.low], [knee.high - knee.b_crit]],
                    color=colour, marker="*", markersize=15, markeredgecolor="black",
                    markeredgewidth=0.7, capsize=4, zorder=4)
    if any(p.edge for p in points):
        label += " (hollow: best rate on the grid's edge)"
    ax.plot([], [], color=colour, marker=marker, linestyle=lab.LINES[i], label=label)


def draw_rates(plt, e, done, found):
    figure, ax = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    for b in e.batches:
        ax.plot([b] * len(done[b]), [rate(e, p) for p in done[b]], color="#999999", marker="_",
                linestyle="", zorder=1)
    ax.plot([], [], color="#999999", marker="_", linestyle="", label="tried")
    for i, (target, (points, _, _)) in enumerate(found.items()):
        nudge = 1.0 + 0.06 * (2 * i - 1)
        ax.plot([p.batch * nudge for p in points], [p.lr for p in points], color=lab.COLOURS[i],
                marker=lab.MARKERS[i], linestyle=lab.LINES[i],
                label=f"best for loss {target:g}")
    lowest = rate(e, min(min(done[b]) for b in e.batches))
    ends = [e.batches[0], e.batches[-1]]
    ax.plot(ends, [lowest * math.sqrt(b / ends[0]) for b in ends], color="black", linewidth=1,
            linestyle=":", label=r"$\propto\sqrt{B}$, for comparison")
    lab.log_axis(ax.xaxis, base=2)
    lab.log_axis(ax.yaxis, base=2, digits=2)
    ax.set_yticks(sorted({rate(e, p) for of in done.values() for p in of}))
    lab.axes(ax, "batch (tokens an update)", "learning rate of AdamW")
    ax.legend(loc="upper left")
    sequences_on_top(ax)
    return figure


def draw(e, done, found):
    known = [f"{t:g} nats: about {k.b_crit:,.0f} tokens" for t, (_, _, k) in found.items()
             if not k.reason]
    if any(points for points, _, _ in found.values()):
        e.figure("knee", lambda plt: draw_knee(plt, e, found), alt=(
            "Two charts over the batch size. Above: updates to a target loss fall with the batch "
            "and flatten past the knee. Below: tokens stay flat and rise past it. One curve for "
            "each target loss; critical batch size at " + ("; ".join(known) or "none: no fit")),
            caption="Points: the best learning rate of each batch, median over seeds; bars: the "
            "seeds' range. Lines: the fit. Stars: B_crit with its 90% range; there a run takes "
            "twice the fewest updates and twice the fewest tokens.")
    e.figure("rates", lambda plt: draw_rates(plt, e, done, found), alt=(
        "The best learning rate of each batch size, for both targets, among the rates that were "
        "tried, beside a line that grows as the square root of the batch."),
        caption="The grid grows until the best rate lies inside it.")


# ---------------------------------------------------------------- words

def tell(e, done, found):
    for target, (points, never, knee) in found.items():
        if never:
            e.say(f"Loss {target:g} was not reached at batch " + ", ".join(
                f"{b:,} within {cap(e, b):,} tokens" for b in never) + ".")
        if knee.reason:
            e.say(f"Loss {target:g}: no fit, because {knee.reason}.")
            continue
        first, last = points[0], points[-1]
        e.say(f"Loss {target:g}: {first.median:,.0f} updates at batch {first.batch:,} and "
              f"{last.median:,.0f} at {last.batch:,}. {last.batch // first.batch} times the batch "
              f"takes {first.median / last.median:.1f} times fewer updates and "
              f"{last.median * last.batch / (first.median * first.batch):.1f} times the tokens.")
        e.say(f"Loss {target:g}: S_min {knee.s_min:,.0f} updates, B_crit {knee.b_crit:,.0f} tokens "
              f"({knee.b_crit / 32:,.0f} sequences; 90% range {knee.low:,.0f} to "
              f"{knee.high:,.0f}); rms error of the fit {100 * knee.rms:.1f}%.")
    points = found[e.targets[-1]][0]
    if len(points) > 1:
        first, last = points[0], points[-1]
        e.say(f"For loss {e.targets[-1]:g} the best learning rate rises from {first.lr:.2g} at "
              f"batch {first.batch:,} to {last.lr:.2g} at {last.batch:,}, a factor of "
              f"{last.lr / first.lr:.1f}; the square root of the batch rises by a factor of "
              f"{math.sqrt(last.batch / first.batch):.1f}.")
    lost = [run.name for of in done.values() for runs in of.values() for run in runs
            if run.diverged]
    if lost:
        e.say(f"{len(lost)} runs diverged and count as not reaching the target: "
              f"{', '.join(lost[:4])}{' and others' if len(lost) > 4 else ''}.")


def judge(e, found):
    high, low = found[e.targets[0]][2], found[e.targets[-1]][2]
    refused = [f"loss {t:g}: {k.reason}" for t, (_, _, k) in found.items() if k.reason]
    if refused:
        return e.verdict("failed", "no fit at " + "; ".join(refused))
    fits = max(k.rms for _, _, k in found.values())
    moved = low.b_crit > high.b_crit
    apart = "do not overlap" if low.low > high.high or high.low > low.high else "overlap"
    why = (f"the formula fits with {100 * fits:.1f}% rms error (predicted: at most 10%); B_crit is "
           f"{high.b_crit:,.0f} tokens at loss {e.targets[0]:g}, {low.b_crit:,.0f} at "
           f"{e.targets[-1]:g} (their 90% ranges {apart})")
    right = int(fits <= 0.10) + int(moved)
    return e.verdict(["failed", "partly", "as predicted"][right], why)


def main():
    e = lab.Experiment(
        2, "knee", title="The knee", arguments=arguments,
        question="How many updates, and how many tokens, does a loss take at each batch size?",
        prediction="While the batch is small, updates fall in proportion to it; then they flatten: "
        "S = S_min (1 + B_crit/B) within 10%. The knee, the critical batch size B_crit, moves to "
        "larger batches as the loss falls.")
    settings(e)
    done = sweep(e)
    found = measure(e, done)
    e.setting(f"{len(e.batches)} batch sizes of {e.batches[0]} to {e.batches[-1]:,} tokens, "
              f"{sum(len(of) for of in done.values())} pairs of batch and learning rate, "
              f"{len(e.seeds)} seeds each, to losses {' and '.join(f'{t:g}' for t in e.targets)} "
              "nats a token on the tales.")
    e.setting("GPT-2 with 2 layers of 32 channels, sequences of 32 tokens; AdamW at a constant "
              "rate without warm-up; beta2 by the half-life rule, 0.95 at 4,096 tokens.")
    write(e, done, found)
    draw(e, done, found)
    tell(e, done, found)
    judge(e, found)
    e.close()


if __name__ == "__main__":
    main()
