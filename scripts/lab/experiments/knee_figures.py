"""The pictures of 02_knee.py."""
import math

import _path
import fit
import lab

FREE, WASTED = 0.25, 4.0             # in units of B_crit: 25% more tokens, 25% more updates


def draw(e, found, locals_, slope, zhang):
    if any(g.points for g in found):
        e.figure("knee", lambda plt: draw_knee(plt, e, found), alt=(
            "Left: updates to several losses against the batch, falling and then flat. Right: all "
            "fits on one curve, updates over S_min against batch over B_crit, between its two "
            "asymptotes; below a quarter of B_crit tokens are nearly free of waste, above four "
            "times B_crit most are wasted."),
            caption="Points: the best rate of each batch, on fresh seeds. Bars: the seeds' range. "
            "Hollow: the best rate is on the edge of those tried, and the curve is not fitted.")
    if any(not g.knee.reason for g in found):
        e.figure("growth", lambda plt: draw_growth(plt, e, found, locals_, slope, zhang), alt=(
            "Critical batch size against the loss, for each size of model, from constant rates, "
            "averaged weights and branches that decay to zero; and against training length."),
            caption="Bars: 90%. Averaged: an average of the weights may reach the loss first. "
            "Local knee: branches whose rate decays to zero, placed at the loss that they reach.")


def sizes_of(found):
    return list(dict.fromkeys(g.size for g in found))


def look(found, size):
    i = sizes_of(found).index(size)
    return {"color": lab.COLOURS[i], "marker": lab.MARKERS[i]}


# ---------------------------------------------------------------- the knee

def draw_knee(plt, e, found):
    figure, (left, right) = plt.subplots(1, 2, figsize=(11.5, 5.4), layout="constrained")
    shown = max(sizes_of(found), key=lambda size: sum(
        len(g.points) for g in found if g.size == size and g.reading == "weights"))
    own = [g for g in found if (g.size, g.reading) == (shown, "weights") and g.points]
    for i, g in enumerate(own):
        draw_updates(left, g, lab.COLOURS[i % 7])
    name_targets(left, own)
    lab.log_axis(left.xaxis, base=2)
    lab.log_axis(left.yaxis)
    lab.axes(left, "batch (tokens an update)", "updates to the loss",
             f"{shown} parameters: updates to each loss")
    left.set_xlim(left.get_xlim()[0], 1.8 * max(g.points[-1].batch for g in own))
    left.tick_params(axis="x", labelsize=8.5)
    left.text(0.02, 0.02, "star: B_crit, at twice the fewest updates", fontsize=9,
              transform=left.transAxes)
    draw_collapse(right, found)
    fits = [g for g in found if not g.knee.reason]
    rms = max((g.knee.rms for g in fits), default=math.nan)
    figure.suptitle(f"Up to B_crit a larger batch saves updates, beyond it wastes tokens: "
                    f"{len(fits)} fits, rms error at most {100 * rms:.0f}%" if fits else
                    "No curve could be fitted", fontweight="bold")
    return figure


def draw_updates(ax, g, colour):
    for p in g.points:
        there = [n for n in p.updates if n is not None]
        ax.errorbar([p.batch], [p.median], [[p.median - min(there)], [max(there) - p.median]],
                    color=colour, marker="o", markersize=4.5, capsize=2,
                    markerfacecolor="white" if p.edge else colour)
    if not g.knee.reason:
        k, first, last = g.knee, g.points[0], g.points[-1]
        across = [first.batch * (last.batch / first.batch) ** (j / 60) for j in range(61)]
        ax.plot(across, [fit.predicted_updates(b, k.s_min, k.b_crit) for b in across],
                color=colour, linewidth=1.3)
        ax.plot([k.b_crit], [2.0 * k.s_min], color=colour, marker="*", markersize=13,
                markeredgecolor="black", markeredgewidth=0.6, zorder=4)


def name_targets(ax, own):
    """Each curve's loss at its right end, from below, moved up where two would overlap."""
    above = 0.0
    for i, g in sorted(enumerate(own), key=lambda pair: pair[1].points[-1].median):
        last = g.points[-1]
        above = max(last.median, 1.12 * above)
        ax.annotate(f"{g.target:g}", (last.batch, above), xytext=(6, 0), va="center", fontsize=9,
                    textcoords="offset points", color=lab.COLOURS[i % 7])


def draw_collapse(ax, found):
    """Every fit on the one curve 1 + 1/x, with its asymptotes."""
    xs = [2.0 ** (j / 8.0) for j in range(-48, 49)]
    low, high = xs[0], xs[-1]
    ax.axvspan(low, FREE, color="#009E73", alpha=0.10, linewidth=0)
    ax.axvspan(WASTED, high, color="#D55E00", alpha=0.10, linewidth=0)
    ax.plot(xs, [1.0 + 1.0 / x for x in xs], color="black", linewidth=1.2)
    ax.plot([low, 1.0], [1.0 / low, 1.0], color="black", linewidth=0.9, linestyle="--")
    ax.plot([1.0, high], [1.0, 1.0], color="black", linewidth=0.9, linestyle="--")
    for g in found:
        if not g.knee.reason:
            ax.plot([p.batch / g.knee.b_crit for p in g.points],
                    [p.median / g.knee.s_min for p in g.points], linestyle="", markersize=4.5,
                    markerfacecolor="white" if g.reading == "averaged" else None,
                    **look(found, g.size))
    lab.log_axis(ax.xaxis)
    lab.log_axis(ax.yaxis)
    ax.set_xlim(low, high)
    ax.set_ylim(0.7, 1.0 / low)
    for x, y, text, colour, side in [
            (0.018, 1.0, "free: at most 25%\nmore tokens than E_min", "#00694d", "left"),
            (5.0, 13.0, "wasted: at most 20%\nfewer updates to gain", "#9c4400", "left"),
            (0.2, 3.6, "E_min: the least tokens", "black", "right"),
            (1.2, 0.8, "S_min: the fewest updates", "black", "left")]:
        ax.annotate(text, (x, y), color=colour, ha=side, fontsize=9)
    for size in sizes_of(found):
        ax.plot([], [], linestyle="", label=f"{size} parameters", **look(found, size))
    ax.legend(loc="upper right", title="hollow: averaged weights", title_fontsize=9)
    lab.axes(ax, "batch / B_crit", "updates / S_min", "All sizes and losses, in units of the fit")


# ---------------------------------------------------------------- how it grows

def draw_growth(plt, e, found, locals_, slope, zhang):
    figure, (left, right) = plt.subplots(1, 2, figsize=(11.5, 5.4), layout="constrained")
    for size in sizes_of(found):
        for reading in ("weights", "averaged"):
            own = [g for g in found if (g.size, g.reading) == (size, reading)
                   and not g.knee.reason]
            if own:
                draw_line(left, found, own, [g.target for g in own], -1)
                draw_line(right, found, own, [g.knee.s_min * g.knee.b_crit for g in own], 0)
    draw_local(left, e, locals_)
    left.invert_xaxis()
    left.margins(x=0.16)
    right.margins(x=0.1)
    lab.log_axis(left.yaxis)
    lab.log_axis(right.yaxis)
    lab.log_axis(right.xaxis)
    lab.axes(left, "validation loss (nats a token), training goes right", "B_crit (tokens)",
             "Against the loss; filled: weights, hollow: averaged")
    lab.axes(right, "training length E_min (tokens)", "B_crit (tokens)", "Against training length")
    draw_slope(right, [g for g in found if not g.knee.reason and g.reading == "weights"], slope,
               zhang)
    figure.suptitle("B_crit grows as the loss falls" + (
        f": as training length to the power of {slope[0]:.2f} ({slope[1]:.2f} to {slope[2]:.2f})"
        if slope else ""), fontweight="bold")
    return figure


def draw_line(ax, found, own, x, named):
    """named: the point beside which the size stands."""
    b = [g.knee.b_crit for g in own]
    hollow = own[0].reading == "averaged"
    ax.errorbar(x, b, yerr=[[y - g.knee.low for y, g in zip(b, own)],
                            [g.knee.high - y for y, g in zip(b, own)]],
                linestyle="--" if hollow else "-", linewidth=1.3, capsize=2, markersize=6,
                markerfacecolor="white" if hollow else None, **look(found, own[0].size))
    if not hollow:
        place, side = ((-8, -3), "right") if named == 0 else ((7, 2), "left")
        ax.annotate(own[0].size, (x[named], b[named]), xytext=place, ha=side,
                    textcoords="offset points", color=look(found, own[0].size)["color"])


def draw_local(ax, e, locals_):
    known = [k for k in locals_ if not k.knee.reason]
    if known:
        b = [k.knee.b_crit for k in known]
        ax.errorbar([k.loss for k in known], b,
                    yerr=[[y - k.knee.low for y, k in zip(b, known)],
                          [k.knee.high - y for y, k in zip(b, known)]],
                    color="black", marker="*", markersize=11, linestyle="", capsize=2)
        ax.annotate(f"local knee, {e.sizes[0].name}", (known[0].loss, b[0]), xytext=(-8, 8),
                    textcoords="offset points", ha="right")
    noise = [k for k in locals_ if k.noise]
    if noise:
        ax.plot([k.loss for k in noise], [k.noise for k in noise], color="#888888", marker="x",
                linestyle=":")
        ax.annotate("noise scale B_simple of that run", (noise[0].loss, noise[0].noise),
                    xytext=(0, -15), textcoords="offset points", color="#666666")


def draw_slope(ax, fits, slope, zhang):
    if not slope:
        return
    length = [g.knee.s_min * g.knee.b_crit for g in fits]
    x = [min(length), max(length)]
    offset = sum(math.log(g.knee.b_crit) - slope[0] * math.log(n)
                 for g, n in zip(fits, length)) / len(fits)
    ax.plot(x, [math.exp(offset + slope[0] * math.log(n)) for n in x], color="black", linewidth=1)
    ax.text(0.03, 0.45, f"black: power {slope[0]:.2f}", transform=ax.transAxes)
    ax.plot(x, [zhang(n) for n in x], color="#666666", linewidth=1, linestyle=":")
    ax.annotate("Zhang 2024, times 5", (x[1], zhang(x[1])), xytext=(0, -22), ha="right",
                color="#666666", textcoords="offset points")
