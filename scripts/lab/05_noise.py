#!/usr/bin/env python3
"""Experiment 5: the gradient noise scale of a run while it trains, and a check of it: branches from
the run's checkpoints train on with larger batches until one falls behind.

    scripts/lab/05_noise.py --quick
"""
import json
import math
import os
import random

import lab

TOLERANCE = 0.01                                 # nats; Merrill et al. 2025

# Learning rates at k times the batch, relative to the run's rate times the square root of k, which
# is Merrill's rule for Adam. The half shows how much the answer depends on that rule.
RATES = [1.0, 0.5]


# ---------------------------------------------------------------- runs

def main_name(seed, i):
    return f"main_s{seed}_{i}"


def main_jobs(e, plan):
    """The measured run, in one part for each moment. Every part is kept, and branches start from
    copies of it. Resuming is exact, so the cuts change no number."""
    first = ["--data", e.corpus(plan["moments"][-1] + plan["length"]), *e.model(),
             "--micro-batch", plan["part"], "--batch-tokens", plan["batch"], "--noise-scale",
             "--lr", plan["lr"], "--lr-schedule", "constant", "--warmup-tokens", plan["warmup"],
             "--eval-every", f"{plan['eval_every']}tok", "--eval-tokens", plan["eval_tokens"],
             "--save-every", "0", "--keep", "1"]
    jobs = []
    for seed in plan["seeds"]:
        for i, moment in enumerate(plan["moments"]):
            flags = ["--tokens", moment] if i else [*first, "--seed", seed, "--tokens", moment]
            before = plan["moments"][i - 1] if i else 0
            jobs.append(lab.Job(main_name(seed, i), flags, keep=True, cost=(moment - before) / 1e5,
                                branch=main_name(seed, i - 1) if i else None))
    return jobs


def branch_name(i, seed, k, times):
    return f"branch_{i}_s{seed}_k{k}_{times:g}"


def branch_jobs(e, plan):
    jobs = []
    for i, moment in enumerate(plan["moments"]):
        for seed in plan["seeds"]:
            for k in plan["ks"]:
                batch = k * plan["batch"]
                for times in RATES:
                    flags = ["--batch-tokens", batch,
                             "--micro-batch", min(32, batch // plan["T"] // 2),
                             "--lr", f"{plan['lr'] * math.sqrt(k) * times:.9g}",
                             "--tokens", moment + plan["length"]]
                    jobs.append(lab.Job(branch_name(i, seed, k, times), flags,
                                        branch=main_name(seed, i), thin=100,
                                        cost=plan["length"] / 1e5))
    return jobs


# ---------------------------------------------------------------- the noise scale

def estimates(runs, plan):
    """[(tokens, G2, S)] of every update, a list for each seed."""
    return [[(step["tokens"], step["noise_g2"], step["noise_s"])
             for i in range(len(plan["moments"])) for step in runs[main_name(seed, i)].steps
             if lab.number(step.get("noise_g2")) and lab.number(step.get("noise_s"))]
            for seed in plan["seeds"]]


def ratio(values):
    """Mean S over mean G2: averages first, since each of the two is unbiased and their ratio is
    not. None where the mean G2 is not positive: the gradient is lost in the noise."""
    g2, s = sum(v[1] for v in values), sum(v[2] for v in values)
    return s / g2 if g2 > 0.0 else None


def noise_between(series, low, high, draws=200, block=8):
    """B_simple of the updates that ended after `low` and by `high` tokens, all seeds together, and
    its 90% range when blocks of neighbouring updates are resampled (bootstrap): (B, low, high), or
    None."""
    blocks = []
    for seed in series:
        own = [v for v in seed if low < v[0] <= high]
        blocks += [own[i:i + block] for i in range(0, len(own), block)]
    middle = ratio([v for b in blocks for v in b]) if blocks else None
    if middle is None:
        return None
    rng, drawn = random.Random(1), []
    sums = [(len(b), sum(v[1] for v in b), sum(v[2] for v in b)) for b in blocks]
    for _ in range(draws):
        again = ratio([rng.choice(sums) for _ in sums])
        drawn.append(math.inf if again is None else again)
    drawn.sort()
    return middle, drawn[int(0.05 * draws)], drawn[int(0.95 * draws) - 1]


def noise_curve(series, plan):
    """[(tokens, B, low, high)] over bins of half an octave."""
    halves = 2.0 * math.log2(plan["moments"][-1] / plan["curve_from"])
    edges = [plan["curve_from"] * 2.0 ** (i / 2.0) for i in range(round(halves) + 1)]
    curve = []
    for low, high in zip(edges, edges[1:]):
        found = noise_between(series, low, high)
        if found:
            curve.append((math.sqrt(low * high), *found))
    return curve


# ---------------------------------------------------------------- branches

class Moment:
    """One checkpoint of every seed, and its branches under two choices of learning rate: "rule",
    the square root of k; "tuned", at each k the better one of RATES."""

    def __init__(self, plan, runs, branches, series, i):
        self.plan, self.tokens = plan, plan["moments"][i]
        self.loss = mean([runs[main_name(seed, i)].val for seed in plan["seeds"]])
        self.noise = noise_between(series, 0.75 * self.tokens, self.tokens)
        tried = {(k, times): [smoothed(branches[branch_name(i, seed, k, times)], self.tokens, plan)
                              for seed in plan["seeds"]] for k in plan["ks"] for times in RATES}
        self.tried = tried
        self.losses = {
            "rule": {k: tried[k, 1.0] for k in plan["ks"]},
            "tuned": {k: min((tried[k, times] for times in RATES), key=mean) for k in plan["ks"]}}

    def gaps(self, k, choice="rule"):
        """How far the branch is behind the one that keeps the batch, for each seed. Both train on
        the same samples in the same order from the same weights."""
        return [a - b for a, b in zip(self.losses[choice][k], self.losses[choice][1])]

    def gap(self, k, choice="rule"):
        return mean(self.gaps(k, choice))

    def error(self, k, choice="rule"):
        """Standard error of the gap over seeds; 0 with one seed."""
        n = len(self.plan["seeds"])
        return deviation(self.gaps(k, choice)) / math.sqrt(n) if n > 1 else 0.0

    def critical(self, tolerance, choice="rule"):
        """(k*, the next k that was tried or None, where the gap crosses the tolerance).
        k* is the largest k whose loss is within the tolerance."""
        ks = self.plan["ks"]
        good = max((k for k in ks if self.gap(k, choice) <= tolerance), default=1)
        if good == ks[-1]:
            return good, None, float(good)
        after = ks[ks.index(good) + 1]
        a, b = self.gap(good, choice), self.gap(after, choice)
        share = (tolerance - a) / (b - a) if math.isfinite(b) and b > a else 0.0
        return good, after, good * (after / good) ** min(1.0, max(0.0, share))


def smoothed(run, began, plan):
    """The mean of the evaluations in the second half of a branch."""
    late = [record["val_loss"] for record in run.evals
            if record["tokens"] - began > 0.5 * plan["length"]]
    return math.inf if run.diverged or not late else mean(late)


def mean(values):
    return sum(values) / len(values)


def deviation(values):
    if not all(map(math.isfinite, values)):
        return 0.0
    m = mean(values)
    return math.sqrt(sum((x - m) ** 2 for x in values) / (len(values) - 1))


def tolerance_of(moments, plan):
    """The paper's tolerance or, if larger, two standard errors of a gap: from the scatter between
    seeds of the branches with the next two batches."""
    if len(plan["seeds"]) < 2:
        return TOLERANCE, 0.0
    spread = [deviation(m.gaps(k)) for m in moments for k in plan["ks"][1:3]]
    error = math.sqrt(mean([s * s for s in spread]) / len(plan["seeds"]))
    return max(TOLERANCE, 2.0 * error), error


def gap_errors(moments, plan):
    """The smallest and the largest standard error of a gap, over all branches."""
    errors = [m.error(k, choice) for m in moments for choice in m.losses for k in plan["ks"][1:]
              if math.isfinite(m.gap(k, choice))]
    return min(errors, default=0.0), max(errors, default=0.0)


def lower_won(moments):
    """(pairs of moment and batch in which the lowest rate won, all pairs). Where it won, the
    optimum lies on the edge of the grid."""
    cells = [(m, k) for m in moments for k in m.losses["tuned"]]
    return sum(mean(m.tried[k, min(RATES)]) < mean(m.tried[k, max(RATES)])
               for m, k in cells), len(cells)


def knee_fits(e):
    """[(target loss, B_crit)] of experiment 2, where it has been run and could be fitted."""
    try:
        with open(os.path.join(e.args.out, "02_knee", "fit.json"), encoding="utf-8") as f:
            fits = json.load(f)["fits"]
        return [(fit["target_nats"], fit["b_crit"]) for fit in fits if lab.number(fit["b_crit"])]
    except (OSError, ValueError, KeyError, TypeError):
        return []


# ---------------------------------------------------------------- tables and pictures

def write_tables(e, plan, series, curve, moments, tolerance):
    T, B = plan["T"], plan["batch"]
    e.csv("noise", ["tokens", "noise_scale_tokens", "low", "high", "noise_scale_sequences"],
          [[*point, point[1] / T] for point in curve])
    e.csv("branches", ["moment_tokens", "k", "batch_tokens", "lr", "seed", "loss"],
          [[m.tokens, k, k * B, plan["lr"] * math.sqrt(k) * times, seed, loss]
           for m in moments for (k, times), losses in m.tried.items()
           for seed, loss in zip(plan["seeds"], losses)])
    e.csv("gaps", ["moment_tokens", "rates", "k", "batch_tokens", "behind", "error"],
          [[m.tokens, choice, k, k * B, m.gap(k, choice), m.error(k, choice)]
           for m in moments for choice in m.losses for k in plan["ks"]])
    rows = []
    for m in moments:
        noise = m.noise or (None,) * 3
        for choice in m.losses:
            good, after, cross = m.critical(tolerance, choice)
            rows.append([m.tokens, m.loss, *noise, choice, good * B, cross * B, after and after * B,
                         cross * B / noise[0] if m.noise else None])
    e.csv("moments", ["tokens", "val_loss", "noise_scale_tokens", "noise_low", "noise_high",
                      "rates", "critical_batch_tokens", "critical_batch_interpolated",
                      "next_batch_tried", "ratio"], rows)


def draw_critical(ax, plan, moments, tolerance, choice, look, label):
    B, aside = plan["batch"], 1.0 if choice == "rule" else 1.07         # bars that do not overlap
    found = [(m, *m.critical(tolerance, choice)) for m in moments]
    y = [cross * B for *_, cross in found]
    ax.errorbar([aside * f[0].tokens for f in found], y,
                yerr=[[b - f[1] * B for b, f in zip(y, found)],
                      [(f[2] or f[1]) * B - b for b, f in zip(y, found)]],
                color=lab.COLOURS[look], marker=lab.MARKERS[look], linestyle=lab.LINES[look],
                markersize=7, capsize=4, label=label)
    for m, good, after, _ in found:
        if after is None:                                    # the largest that was tried
            ax.plot([aside * m.tokens], [1.3 * good * B], marker=6, color=lab.COLOURS[look],
                    markersize=9)


def draw_noise(ax, plan, runs, curve):
    names = [main_name(plan["seeds"][0], i) for i in range(len(plan["moments"]))]
    steps = [s for name in names for s in runs[name].steps
             if s["tokens"] >= plan["curve_from"] and lab.number(s.get("noise_scale"))]
    ax.plot([s["tokens"] for s in steps], [s["noise_scale"] for s in steps], color="#aaaaaa",
            linewidth=0.8, label="noise scale as the trainer shows it (one seed)")
    x, y = [p[0] for p in curve], [p[1] for p in curve]
    high = [min(p[3], 1e3 * p[1]) for p in curve]
    ax.errorbar(x, y, yerr=[[b - p[2] for b, p in zip(y, curve)], [h - b for b, h in zip(y, high)]],
                color=lab.COLOURS[0], marker=lab.MARKERS[0], linestyle="-", markersize=4.5,
                capsize=2, label="noise scale, all seeds (bars: 90% of resamples)")


def draw_scales(plt, plan, runs, curve, moments, tolerance, knees):
    B, T = plan["batch"], plan["T"]
    figure, ax = plt.subplots(figsize=(8.4, 5.4), constrained_layout=True)
    draw_noise(ax, plan, runs, curve)
    draw_critical(ax, plan, moments, tolerance, "rule", 1,
                  "critical batch by branches, rate times √k (bars: batches tried)")
    draw_critical(ax, plan, moments, tolerance, "tuned", 2,
                  "the same, the better of two rates (the lower, an edge, in %d of %d)"
                  % lower_won(moments))
    for m in moments:
        ax.annotate(f"loss {m.loss:.2f}", (m.tokens, 0), xycoords=("data", "axes fraction"),
                    xytext=(0, 5), textcoords="offset points", ha="center", fontsize=8.5)
    ax.axhline(B, color="black", linewidth=1.0, linestyle=":",
               label=f"the run's batch, {B:,} tokens")
    for i, (target, b_crit) in enumerate(knees):
        ax.axhline(b_crit, color=lab.COLOURS[3], linewidth=1.4, linestyle=lab.LINES[3 + i % 4],
                   label=f"B_crit of the knee at loss {target:g} (experiment 2)")
    ax.set_xscale("log")
    ax.set_yscale("log")
    lab.axes(ax, "tokens trained on", "batch, tokens")
    second = ax.secondary_yaxis("right", functions=(lambda n: n / T, lambda s: s * T))
    second.set_ylabel(f"batch, sequences of {T}")
    bottom, top = ax.get_ylim()
    ax.set_ylim(bottom / 1.5, top * 8)                       # room for losses and legend
    ax.legend(loc="upper left", fontsize=8)
    return figure


def draw_gaps(ax, plan, moments, tolerance, choice, title):
    B = plan["batch"]
    low = min(m.gap(k, c) for m in moments for k in plan["ks"] for c in m.losses)
    top = max(4 * tolerance, 0.1)
    for i, m in enumerate(moments):
        look = {"color": lab.COLOURS[i % 7], "marker": lab.MARKERS[i % 7]}
        shown = [k for k in plan["ks"] if m.gap(k, choice) <= top]
        ax.errorbar([k * B for k in shown], [m.gap(k, choice) for k in shown],
                    yerr=[m.error(k, choice) for k in shown], linestyle=lab.LINES[i % 7], capsize=3,
                    markersize=5, label=f"after {m.tokens:,} tokens, loss {m.loss:.2f}", **look)
        for k in plan["ks"]:
            if m.gap(k, choice) > top:
                ax.plot([k * B], [top], marker=6, color=look["color"], markersize=7, clip_on=False)
    ax.axhspan(-1.0, tolerance, color="#eeeeee", zorder=0)
    ax.set_ylim(min(low, 0.0) - 0.4 * top, top)              # room for the legend
    ax.set_xscale("log", base=2)
    from matplotlib.ticker import FuncFormatter
    ax.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:,.0f}"))
    ax.tick_params(axis="x", labelsize=8.5)
    lab.axes(ax, "batch of the branch, tokens", "behind the branch that keeps the batch, nats",
             title)
    second = ax.secondary_xaxis("top", functions=(lambda n: n / plan["T"], lambda s: s * plan["T"]))
    second.set_xscale("log", base=2)
    second.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:,.0f}"))
    second.set_xlabel("sequences", fontsize=9)


def draw_branches(plt, plan, moments, tolerance):
    figure, panels = plt.subplots(1, 2, figsize=(12, 5), constrained_layout=True)
    draw_gaps(panels[0], plan, moments, tolerance, "rule", "learning rate times √k")
    draw_gaps(panels[1], plan, moments, tolerance, "tuned", "the better of two rates (the lower, "
              "an edge, in %d of %d)" % lower_won(moments))
    panels[0].legend(loc="lower left", fontsize=8)
    return figure


# ---------------------------------------------------------------- what was seen

def critical_text(moment, tolerance, choice, plan):
    good, after, _ = moment.critical(tolerance, choice)
    if after is None:
        return f"at least {good * plan['batch']:,}, the largest that was tried,"
    return f"between {good * plan['batch']:,} and {after * plan['batch']:,}"


def report(e, plan, series, moments, tolerance, error):
    for m in moments:
        noise = "not measurable" if m.noise is None else (
            f"{m.noise[0]:,.0f} tokens (90% range {m.noise[1]:,.0f} to {m.noise[2]:,.0f})")
        e.say(f"After {m.tokens:,} tokens, at loss {m.loss:.3f}: noise scale {noise}; critical "
              f"batch by branches {critical_text(m, tolerance, 'rule', plan)} with rates times √k, "
              f"{critical_text(m, tolerance, 'tuned', plan)} at the better of two rates.")
    updates = [v for seed in series for v in seed]
    negative = sum(v[1] < 0.0 for v in updates)
    e.say(f"The estimate of |G|² is negative at {100 * negative / len(updates):.1f}% of single "
          "updates; these stay in the average.")
    low, high = gap_errors(moments, plan)
    why = ("the paper's tolerance" if tolerance == TOLERANCE else
           f"two standard errors of a gap: the seeds do not resolve {TOLERANCE}")
    e.say(f"A branch passes if it is at most {tolerance:.3f} nats behind ({why}). Standard error "
          f"of that gap over {len(plan['seeds'])} seeds: ±{error:.4f} at k = {plan['ks'][1]} and "
          f"{plan['ks'][2]}, ±{low:.4f} to ±{high:.4f} over all k.")
    e.say(lower_rates(moments, plan))
    e.say("The lower of the two rates was better in %d of %d pairs of moment and batch: the "
          "optimum lies on the edge of the grid, and no lower rate was tried." % lower_won(moments))
    knees = knee_fits(e)
    if knees:
        e.say("Experiment 2 measured a B_crit of " + ", ".join(
            f"{b_crit:,.0f} tokens at loss {target:g}" for target, b_crit in knees) + ".")
    judge(e, plan, moments, tolerance)


def lower_rates(moments, plan):
    """What half the learning rate gains in the branch that keeps the batch."""
    gains = [mean(m.tried[1, 1.0]) - mean(m.tried[1, 0.5]) for m in moments]
    return ("Half the learning rate, at the run's own batch, gains "
            + ", ".join(f"{g:+.3f}" for g in gains) + " nats over the same tokens"
            + "; with tuned rates, a larger batch competes with that.")


def ratios(moments, tolerance, choice, plan):
    return [m.critical(tolerance, choice)[2] * plan["batch"] / m.noise[0] for m in moments]


def judge(e, plan, moments, tolerance):
    known = [m for m in moments if m.noise]
    if len(known) < 2:
        e.verdict("failed", "the noise scale could not be measured at two moments")
        return
    first, last = known[0], known[-1]
    grows = last.noise[0] > first.noise[0]
    bears = last.critical(tolerance)[2] > first.critical(tolerance)[2]
    own, tuned = (ratios(known, tolerance, choice, plan) for choice in ("rule", "tuned"))
    below = all(r > 1.0 for r in own)
    if min(own) > 30:
        merrill = "by orders of magnitude, as Merrill et al. found"
    elif below:
        merrill = "the same direction as in Merrill et al., but not by orders of magnitude"
    else:
        merrill = "Merrill et al. found it larger by orders of magnitude"
    right = [grows, bears, below]
    e.verdict("as predicted" if all(right) else "partly" if any(right) else "failed",
              f"the noise scale {'grows' if grows else 'does not grow'} from {first.noise[0]:,.0f} "
              f"to {last.noise[0]:,.0f} tokens as the loss falls from {first.loss:.2f} to "
              f"{last.loss:.2f}; the critical batch by branches "
              f"{'grows' if bears else 'does not grow'}, and is {min(own):.1f} to "
              f"{max(own):.1f} times the noise scale with rates times √k, "
              f"{min(tuned):.1f} to {max(tuned):.1f} times at the better of two rates: {merrill}")


def settings(e, plan):
    e.setting(f"2 layers, 32 channels, T={plan['T']}; batches of {plan['batch']:,} tokens in "
              f"{plan['batch'] // plan['T'] // plan['part']} parts of {plan['part']} sequences, "
              f"fresh tales, never repeated; learning rate {plan['lr']}, constant after "
              f"{plan['warmup']:,} tokens; AdamW, β 0.9 and 0.95; {len(plan['seeds'])} seeds.")
    e.setting(f"Branches train on for {plan['length']:,} tokens with k = "
              f"{', '.join(map(str, plan['ks']))} times the batch and the learning rate times √k, "
              "and again with half of that; Adam's moments are kept. All branches of a moment see "
              "the same samples in the same order; their validation losses are compared, averaged "
              "over the second half of a branch.")


def main():
    e = lab.Experiment(
        5, "noise", title="The noise scale, live",
        question="Can a run tell, from its gradients alone, how large a batch it could use?",
        prediction="The gradient noise scale grows as the loss falls, and so does the critical "
                   "batch size that branches measure. The noise scale is the smaller of the two "
                   "(Merrill et al. 2025: by orders of magnitude).")
    plan = {"T": 32, "batch": 512, "part": 4, "lr": 4e-3, "warmup": 20480,
            "moments": e.pick(tiny=[32768, 65536], quick=[2 ** 18, 2 ** 19, 2 ** 20, 2 ** 21],
                              full=[2 ** 17, 2 ** 18, 2 ** 19, 2 ** 20, 2 ** 21, 2 ** 22, 2 ** 23]),
            "length": e.pick(tiny=16384, quick=196608, full=393216),
            "ks": e.pick(tiny=[1, 4, 16], quick=[1, 2, 4, 8, 16, 32],
                         full=[1, 2, 4, 8, 16, 32, 64]),
            "seeds": e.pick(tiny=[1, 2], quick=[1, 2, 3], full=[1, 2, 3, 4, 5]),
            "eval_every": e.pick(tiny=8192, quick=65536, full=65536),
            "eval_tokens": e.pick(tiny=8192, quick=65536, full=262144),
            "curve_from": e.pick(tiny=4096, quick=16384, full=16384)}
    settings(e, plan)
    runs = e.run(main_jobs(e, plan))
    branches = e.run(branch_jobs(e, plan))
    series = estimates(runs, plan)
    curve = noise_curve(series, plan)
    moments = [Moment(plan, runs, branches, series, i) for i in range(len(plan["moments"]))]
    tolerance, error = tolerance_of(moments, plan)
    write_tables(e, plan, series, curve, moments, tolerance)
    e.figure("noise", lambda plt: draw_scales(plt, plan, runs, curve, moments, tolerance,
                                              knee_fits(e)),
             alt="Noise scale and critical batch by branches, in tokens and sequences, against the "
                 "tokens trained on.",
             caption="A caret marks the largest batch that was tried. The noise scale comes from "
                     "the gradients of the run, the critical batch size from its branches.")
    e.figure("branches", lambda plt: draw_branches(plt, plan, moments, tolerance),
             alt="How far branches with larger batches fall behind, at each moment, with the "
                 "learning rate times the square root of k and with the better of two rates.",
             caption=f"Grey: at most {tolerance:.3f} nats behind, or ahead. Bars: standard error "
                     "over seeds. A caret at the top marks a point above the figure.")
    report(e, plan, series, moments, tolerance, error)
    e.close()


if __name__ == "__main__":
    main()
