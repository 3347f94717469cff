"""The model behind experiment 5: how many times faster n workers are than one, each number of
workers at its best batch, from one device's t_0 and tau, an all-reduce of two ranks, and experiment
2's law of updates.
"""
import math
from collections import namedtuple

import _path
import fit
import lab

RANKS = 2                                        # as many were measured

# device: fit.Device of one rank. link: {"alpha", "beta"} of an all-reduce of two ranks, or None.
# sequence: tokens, the least that a worker has. law: s_min and b_crit, or None.
World = namedtuple("World", "model parameters sequence device link law")


def messages(model):
    """Collectives of an update: the gradients in L + 2 buckets (dev/base/gpt2.h), then loss and
    norm."""
    return model.layers + 3


def exchange_seconds(model, parameters, link, workers=RANKS):
    """c(n): each collective is a ring, with the latency and bandwidth of two ranks' all-reduce."""
    return fit.ring_seconds(4.0 * parameters, workers, 1.0 / link["beta"],
                            messages(model) * link["alpha"] / 2.0)


def fixed_seconds(world, workers, free=False):
    """t_0 + c(n)"""
    if free or not world.link:
        return world.device.fixed
    return world.device.fixed + exchange_seconds(world.model, world.parameters, world.link, workers)


def half(world, workers, free=False):
    """b_half = (t_0 + c(n)) / tau"""
    return fixed_seconds(world, workers, free) / world.device.per_token


def best_batch(world, workers):
    """Of powers of two times n sequences, the one closest to the best."""
    best = fit.best_batch(workers, world.law.b_crit, half(world, workers), world.sequence)
    return workers * world.sequence * 2 ** round(math.log2(best / (workers * world.sequence)))


def speedup(world, workers, free=False):
    """Over one worker, both at their best batches."""
    one, many = (fit.device_tokens(n, world.law.b_crit, half(world, n, free), world.sequence)
                 for n in (1, workers))
    return workers * one / many


def doubling(world, free=False):
    """The number of workers that take twice the device-hours of one."""
    if free:
        return fit.doubling_workers(world.law.b_crit, half(world, 1, True), world.sequence)
    low, high = 1.0, 1e9
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if middle < 2.0 * speedup(world, middle) else (low, middle)
    return low


# ---------------------------------------------------------------- picture

def middle_and_reach(values):
    """(median, [below, above]) for error bars; no bar with too few values for an interval."""
    middle, (low, high) = lab.median(values), fit.median_interval(values)
    return middle, [[0.0], [0.0]] if math.isnan(low) else [[middle - low], [high - middle]]


def counts(most, points=200):
    return [most ** (i / points) for i in range(points + 1)]


def draw_workers(plt, worlds, cases, title):
    """A panel a model: the speed-up over one worker, on a link that takes no time and on this
    machine's."""
    figure, panels = plt.subplots(1, len(worlds), figsize=(max(6.4, 4.1 * len(worlds)), 4.4),
                                  layout="constrained", squeeze=False)
    figure.suptitle(title, x=0.01, ha="left", fontsize=10.5)
    for ax, w in zip(panels[0], worlds):
        draw_curves(ax, w)
        ax.plot(1, 1, "o", color="black", markerfacecolor="white", markersize=7)
        for c in cases:
            if not c.equal and c.model == w.model and c.kept():
                at, reach = middle_and_reach([measured for measured, _ in c.speedups()])
                ax.errorbar(RANKS, at, yerr=reach, marker="o", color="black", capsize=3)
                ax.annotate("measured", (RANKS, at), (7, -9), textcoords="offset points",
                            fontsize=8.5)
        lab.log_axis(ax.xaxis)
        lab.log_axis(ax.yaxis)
        lab.axes(ax, "workers", "speed-up over one worker" if ax is panels[0][0] else None,
                 f"{w.model.name} to loss {w.model.target:g}")
    return figure


def draw_curves(ax, w):
    end = max(1.0, fit.end_workers(w.law.b_crit, half(w, 1, True), w.sequence))
    twice = doubling(w, True)
    grid = counts(3.0 * max(end, twice))
    for i, (name, free) in enumerate([("free link", True), ("this machine's link", False)]):
        if not free and not w.link:
            continue
        curve = [speedup(w, n, free) for n in grid]
        at = len(grid) * (4 if free else 6) // 10
        ax.plot(grid, curve, color=lab.COLOURS[i], linestyle=lab.LINES[i], linewidth=1.6)
        ax.annotate(f"{name},\nmodelled", (grid[at], curve[at]), (-8, 4) if free else (6, 2),
                    textcoords="offset points", ha="right" if free else "left", fontsize=8.5,
                    color=lab.COLOURS[i])
    for name, n, place, side in [
            (f"n₂ = {twice:.0f}:\ndevice-hours double", twice, (-8, 6), "right"),
            (f"from {end:.0f} on: one\nsequence a worker", end, (8, -22), "left")]:
        ax.plot(n, speedup(w, n, True), "|", color="black", markersize=16)
        ax.annotate(name, (n, speedup(w, n, True)), place, ha=side, textcoords="offset points",
                    fontsize=8.5)
    ax.set_xlim(0.7, 3.5 * grid[-1])
