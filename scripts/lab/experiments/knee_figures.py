"""The pictures of 02_knee.py."""
import _path
import lab


def draw(e, found):
    weights = [g for g in found if g.reading == "weights" and len(g.points) > 2]
    if not weights:
        return
    shown = max((g.size for g in weights), key=lambda size: sum(
        len(g.points) for g in weights if g.size == size))
    own = [g for g in weights if g.size == shown]
    e.figure("knee", lambda plt: draw_knee(plt, own), alt=(
        f"{shown} parameters to three losses. Left: updates against the batch fall steeply, then "
        "hardly. Right: tokens against the batch stay nearly the same, then rise in proportion."),
        caption="Points: the best rate of each batch, the median of fresh seeds. Bars: their "
        "range. Hollow: the best rate is on the edge of those tried.")


def three(own):
    """The lowest loss and two higher ones."""
    return [own[i] for i in sorted({len(own) // 4, len(own) // 2, len(own) - 1})]


# ---------------------------------------------------------------- the knee

def draw_knee(plt, own):
    figure, panels = plt.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
    for ax, times, words in [(panels[0], lambda p: 1.0, "updates"),
                             (panels[1], lambda p: p.batch / 1e6, "million tokens")]:
        for i, g in enumerate(three(own)):
            draw_curve(ax, g, times, lab.COLOURS[i], lab.MARKERS[i])
        ax.set_ylim(0, None)
        ax.locator_params(axis="x", nbins=5)
        ax.xaxis.set_major_formatter(lambda value, _: lab.plain(value))
        ax.yaxis.set_major_formatter(lambda value, _: lab.plain(value))
        lab.axes(ax, "batch (tokens an update)", f"{words} to the loss")
    panels[0].legend(title="to a loss of")
    a, b, c = (own[-1].points[i] for i in (0, -3, -1))
    figure.suptitle(
        f"{own[-1].size} parameters to a loss of {own[-1].target:g}: {b.batch / a.batch:.0f} times "
        f"the batch took {a.median / b.median:.1f} times fewer updates,\nanother "
        f"{c.batch / b.batch:.0f} times only {b.median / c.median:.1f} times fewer, and "
        f"{c.median * c.batch / b.median / b.batch:.1f} times the tokens", fontsize=11)
    return figure


def draw_curve(ax, g, times, colour, marker):
    ax.plot([p.batch for p in g.points], [times(p) * p.median for p in g.points], color=colour,
            linewidth=1.3, marker=marker, markersize=5, label=f"{g.target:g} nats")
    for p in g.points:
        there = [times(p) * n for n in p.updates if n is not None]
        ax.plot([p.batch] * 2, [min(there), max(there)], color=colour, linewidth=1.3)
        if p.edge:
            ax.plot([p.batch], [times(p) * p.median], color=colour, marker=marker, markersize=5,
                    markerfacecolor="white")
