"""Two ways to train, compared seed by seed, for experiments 6 and 7. Runs of one seed begin with
the same weights and read the same samples, so what a seed does to both cancels in the difference.
"""
import _path
import fit
import lab

SEEDS = range(11, 23)                # of the planned pairs; none of them chose a rate


def rate(k):
    return 1e-3 * 2.0 ** k


class Pair:
    """Two tuned methods (lab.Tuned): the final loss of `one` less that of `other`, seed by seed."""

    def __init__(self, label, one, other, together=1):
        self.label, self.one, self.other = label, one, other
        self.gaps = [a - b for a, b in zip(one.losses(), other.losses())]
        self.mean, self.low, self.high = fit.mean_interval(self.gaps, together=together)

    def below(self):
        return f"{sum(gap < 0.0 for gap in self.gaps)} of {len(self.gaps)}"

    def text(self):
        return (f"{self.mean:+.4f} nats ({self.low:+.4f} to {self.high:+.4f}; {self.below()} pairs "
                f"below zero, from {min(self.gaps):+.3f} to {max(self.gaps):+.3f})")

    def found(self):
        """As Experiment.decide wants it."""
        return self.label, self.mean, self.low, self.high


def mean(values):
    return sum(values) / len(values)


def higher(nats):
    return f"{abs(nats):.2g} nats {'higher' if nats > 0.0 else 'lower'}"


def rows(method, chose):
    """[(rate number, seed, run)] of a method: those that chose its rate, or those of the pairs."""
    seeds = method.choosing() if chose else method.plan["seeds"]
    best = method.best()
    return [(k, seed, run) for (v, k, seed), run in sorted(method.runs.items())
            if seed in seeds and (chose or (v, k) == best)]


def edges(pairs, name):
    """A sentence about rates that were chosen without a neighbour on either side; or none."""
    found = [name(m) for pair in pairs for m in (pair.one, pair.other)
             if len(m.grid) > 1 and m.at_edge()]
    return f"The best rate lies on the edge of its grid for {', '.join(found)}." if found else ""


def draw(plt, pairs, title, ylabel, zero):
    """A group for each pair: the differences of its seeds as points, beside them their mean and its
    interval. zero: what a difference of zero means."""
    figure, ax = plt.subplots(figsize=(7.6, 4.6), layout="constrained")
    ax.axhline(0.0, color="black", linewidth=1.2)
    ax.annotate(zero, (0.0, 0.0), (5, 4), textcoords="offset points", fontsize=9.5,
                xycoords=("axes fraction", "data"))
    for i, pair in enumerate(pairs):
        n = len(pair.gaps)
        ax.plot([i - 0.12 + 0.1 * (j / max(n - 1, 1) - 0.5) for j in range(n)], pair.gaps, "o",
                color=lab.COLOURS[i], markersize=6, alpha=0.55, markeredgewidth=0)
        reach = pair.high - pair.mean
        ax.errorbar([i + 0.08], [pair.mean], yerr=[reach if lab.number(reach) else 0.0],
                    color=lab.COLOURS[i], marker="D", markersize=8, capsize=5, linewidth=2)
        ax.annotate(f"{pair.mean:+.3f}", (i + 0.08, pair.mean), (11, 0), va="center", fontsize=11,
                    textcoords="offset points", color=lab.COLOURS[i],
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
    ax.set_xticks(range(len(pairs)), [pair.label for pair in pairs])
    ax.set_xlim(-0.4 - 0.22 * len(pairs), len(pairs) - 0.4)
    ax.margins(y=0.12)
    lab.axes(ax, "", ylabel, title)
    ax.grid(False, axis="x")
    return figure
