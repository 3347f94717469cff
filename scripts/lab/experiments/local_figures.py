"""The pictures of 02_local.py."""
import _path
import lab


def draw(e, found, constant):
    """found: [02_local.Moment]; the first group is the endpoint's. constant: its knees in 02_knee,
    [(tokens trained, B_crit, low, high)]."""
    first = [m for m in found if m.group == found[0].group and len(m.points) > 1]
    if first:
        e.figure("local", lambda plt: draw_local(plt, first), alt=(
            "How many times fewer updates a larger batch takes, against how many times larger it "
            "is: near proportion at first, then flatter; the later in training, the later."),
            caption="From one checkpoint to the same loss, 0.1 nats lower. Small points: seeds.")
    knees = [(m.tokens, m.knee.b_crit, m.knee.low, m.knee.high) for m in first
             if not m.knee.reason]
    if knees:
        e.figure("growth", lambda plt: draw_growth(plt, first[0].group.size, knees, constant), alt=(
            "The critical batch against the tokens trained, both logarithmic: it rises, for runs "
            "at a constant rate and for branches of one run whose rate decays to zero."),
            caption="Bars: 90%. Constant rate: at the fewest tokens that reached each loss.")
    pair = [m for m in found if m.tokens == found[0].tokens
            and m.group.size == found[0].group.size]
    if len(pair) > 1 and not any(m.knee.reason for m in pair):
        e.figure("sequences", lambda plt: draw_sequences(plt, pair), alt=(
            "Updates over S_min against the batch, for sequences of two lengths. Left, in tokens, "
            "the longer ones bend later; right, in sequences, far earlier."),
            caption="The same model and as many tokens trained. Stars: B_crit.")


def draw_local(plt, first):
    figure, ax = plt.subplots(figsize=(7.5, 4.8), layout="constrained")
    for i, m in enumerate(first):
        small = m.points[0]
        times = [p.batch / small.batch for p in m.points]
        ax.plot(times, [small.median / p.median for p in m.points], color=lab.COLOURS[i],
                marker=lab.MARKERS[i], label=f"after {m.tokens:,} tokens")
        for t, p in zip(times, m.points):
            ax.plot([t] * len(p.updates), [a / b for a, b in zip(small.updates, p.updates)],
                    linestyle="", color=lab.COLOURS[i], marker=".", markersize=4, alpha=0.6)
    ax.plot(times, times, color="black", linestyle=":", linewidth=1)
    ax.annotate("in proportion", (times[-1], times[-1]), xytext=(-6, 0), ha="right",
                textcoords="offset points")
    lab.log_axis(ax.xaxis, base=2)
    lab.log_axis(ax.yaxis, base=2)
    ax.legend(loc="upper left")
    lab.axes(ax, f"times the batch (of {small.batch:,} tokens)", "times fewer updates")
    figure.suptitle(f"{first[0].group.size} parameters: the longer they are trained, the more "
                    "updates a larger batch saves", fontsize=11)
    return figure


def draw_sequences(plt, pair):
    figure, panels = plt.subplots(1, 2, figsize=(10, 4.6), sharey=True, layout="constrained")
    for ax, unit in zip(panels, ("tokens", "sequences")):
        for i, m in enumerate(pair):
            each, k = (m.group.T if unit == "sequences" else 1), m.knee
            ax.plot([p.batch / each for p in m.points], [p.median / k.s_min for p in m.points],
                    color=lab.COLOURS[i], marker=lab.MARKERS[i],
                    label=f"{m.group.T} tokens a sequence")
            ax.plot([k.b_crit / each], [2.0], color=lab.COLOURS[i], marker="*", markersize=14,
                    markeredgecolor="black", markeredgewidth=0.6, zorder=4)
        lab.log_axis(ax.xaxis, base=4)
        lab.log_axis(ax.yaxis)
        lab.axes(ax, f"batch ({unit} an update)", "updates / S_min" if unit == "tokens" else "")
    panels[1].legend(loc="upper right")
    tokens = [m.knee.b_crit for m in pair]
    apart = [b / m.group.T for b, m in zip(tokens, pair)]
    figure.suptitle(
        f"{pair[0].group.size} parameters after {pair[0].tokens:,} tokens, sequences of two "
        f"lengths: their knees are\n{max(tokens) / min(tokens):.1f} times apart in tokens, "
        f"{max(apart) / min(apart):.1f} times in sequences", fontsize=11)
    return figure


def draw_growth(plt, size, knees, constant):
    figure, ax = plt.subplots(figsize=(7.5, 4.8), layout="constrained")
    for i, (name, rows) in enumerate([("from the start, at a constant rate", constant),
                                      ("from a checkpoint, to the next 0.1 nats", knees)]):
        if rows:
            x, b, low, high = zip(*rows)
            bars = [[m - n for m, n in zip(b, low)], [n - m for m, n in zip(b, high)]]
            ax.errorbar(x, b, yerr=bars, color=lab.COLOURS[i], marker=lab.MARKERS[i],
                        linestyle=lab.LINES[i], capsize=2, label=name)
    lab.log_axis(ax.xaxis)
    lab.log_axis(ax.yaxis)
    ax.legend(loc="upper left")
    lab.axes(ax, "tokens trained", "critical batch B_crit (tokens)")
    figure.suptitle(f"{size} parameters: the critical batch grows with training", fontsize=11)
    return figure
