#!/usr/bin/env python3
"""Draws the loss curves of one or several runs, with the entropy floor where it is known.

    scripts/plot.py out/run --out loss.png
    scripts/plot.py out/small out/large --out loss.svg --x seconds --log-x

A run is an output directory of the trainer, or its log.jsonl. Each run has one colour and one
marker: a bold line for the evaluations, a faint one for the smoothed training loss. On a corpus of
known entropy the evaluation is the loss on whole tales, and the floor is the entropy of the same
tales; otherwise it is the validation loss. Seconds are those of the updates, without evaluations.
"""
import argparse
import os
from collections import namedtuple

from runlog import Run, events_of, fail

# Okabe and Ito's palette, safe for colour-blind readers, without its yellow, which is faint on
# white. Markers distinguish the runs in black and white.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X"]
AXES = {"tokens": "tokens trained on", "steps": "updates", "seconds": "seconds of training"}


# ---------------------------------------------------------------- reading a log

class Curves:
    """Of a run: a Curve for each field that may be drawn."""

    def __init__(self, path):
        self.name = os.path.basename(os.path.normpath(path))
        self.train, self.whole, self.val = Curve("loss"), Curve("whole_loss"), Curve("val_loss")
        self.val_floor = self.whole_floor = None
        run, seconds = Run(path), 0.0
        for event in events_of(run):
            self.val_floor = event.get("floor", self.val_floor)
            self.whole_floor = event.get("whole_floor") or self.whole_floor
            if event["event"] == "step":
                seconds += event.get("seconds") or 0.0
            if event["event"] in ("step", "eval"):
                for curve in self.train, self.whole, self.val:
                    curve.add(event, seconds)
        if not self.shown()[0].y:
            fail(f"{run.path}: holds no loss yet; wait for the first update")

    def shown(self):
        """The evaluation curve to draw for the run, and its floor."""
        if self.whole.y:
            return self.whole, self.whole_floor
        return (self.val if self.val.y else self.train), self.val_floor


class Curve:
    """x is a dict with one list for each name in AXES."""

    def __init__(self, field):
        self.field, self.x, self.y = field, {axis: [] for axis in AXES}, []

    def add(self, event, seconds):
        if event.get(self.field) is None:                    # not finite, or not measured
            return
        for axis, value in zip(AXES, (event["tokens"], event["step"], seconds)):
            self.x[axis].append(value)
        self.y.append(event[self.field])


def read_runs(paths):
    runs = [Curves(path) for path in paths]
    names = [run.name for run in runs]
    for run, path in zip(runs, paths):                       # a/log.jsonl b/log.jsonl, x/run y/run
        if names.count(run.name) > 1 or run.name == "log.jsonl":
            run.name = os.path.normpath(path)
    return runs


# ---------------------------------------------------------------- drawing

Label = namedtuple("Label", "y text colour marker")         # at the right end of a curve


def smooth(values, decay):
    """Exponential moving average with bias correction."""
    total, weight, out = 0.0, 0.0, []
    for value in values:
        total = decay * total + (1 - decay) * value
        weight = decay * weight + (1 - decay)
        out.append(total / weight)
    return out


def draw_run(ax, run, colour, marker, args):
    """Draws the run's curves; returns the label for their end."""
    curve, _ = run.shown()
    y, name = smooth(run.train.y, args.ema), run.name
    ax.plot(run.train.x[args.x], y, color=colour, linewidth=1.0, alpha=0.5, zorder=2)
    if curve is run.train:                                   # no evaluation: a marker at its end
        name += " (training)"
        ax.plot(curve.x[args.x][-1:], y[-1:], color=colour, marker=marker, zorder=3)
    else:
        y = curve.y                                          # markers evenly along the line
        ax.plot(curve.x[args.x], y, color=colour, linewidth=2.0, zorder=3, marker=marker,
                markersize=6.5, markeredgecolor="white", markeredgewidth=0.6, markevery=0.06)
    return Label(y[-1], f"{name}  {y[-1]:.3f}", colour, marker)


def draw_labels(ax, labels):
    """Labels at the right edge, each at its curve's end, moved apart where they would overlap."""
    low, high = ax.get_ylim()
    gap = (high - low) * 0.05                                # the height of a line of text
    place = low - gap
    across = ax.get_yaxis_transform()                        # x in widths of the axes, y in data
    for label in sorted(labels):
        place = max(label.y, place + gap)
        ax.plot([1.0, 1.02], [label.y, place], color=label.colour, linewidth=0.7,
                transform=across, clip_on=False)
        ax.plot([1.035], [place], color=label.colour, marker=label.marker, markersize=6.5,
                transform=across, clip_on=False)
        ax.text(1.055, place, label.text, transform=across, va="center", fontsize=9)
    ax.set_ylim(low, high)


def draw_legend(ax, runs, floors, ema):
    """Explains the kinds of line; the runs are labelled at the ends of their curves."""
    from matplotlib.lines import Line2D
    grey, kinds = "#444444", []
    shown = {run.shown()[0].field for run in runs} - {"loss"}
    if shown:
        text = {"whole_loss": "validation, whole tales", "val_loss": "validation"}.get(
            "".join(shown), "validation (whole tales if any)")
        kinds.append(Line2D([], [], color=grey, linewidth=2, marker="o", markersize=6,
                            markeredgecolor="white", label=text))
    if any(run.train.y for run in runs):
        kinds.append(Line2D([], [], color=grey, linewidth=1, alpha=0.5,
                            label=f"training (EMA {ema:g})" if ema else "training"))
    if floors:
        kinds.append(Line2D([], [], color="black", linewidth=1.2, linestyle="--",
                            label="entropy floor: no model can do better"))
    ax.legend(handles=kinds, frameon=False, fontsize=9, ncol=3, loc="lower left",
              bbox_to_anchor=(0.0, 1.0), borderaxespad=0.2)


def draw(plt, runs, args):
    from matplotlib.ticker import EngFormatter
    figure, ax = plt.subplots(figsize=(8, 4.8), layout="constrained")
    labels = [draw_run(ax, run, COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)], args)
              for i, run in enumerate(runs)]
    floors = {f"{floor:.3f}": floor for _, floor in map(Curves.shown, runs) if floor is not None}
    for text, floor in floors.items():
        ax.axhline(floor, color="black", linewidth=1.2, linestyle="--", zorder=1)
        labels.append(Label(floor, f"floor  {text}", "black", "None"))
    ax.set_xscale("log" if args.log_x else "linear")
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    ax.set_xlabel(AXES[args.x])
    ax.set_ylabel("loss (nats a token)")
    ax.grid(True, color="#dddddd", linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    draw_labels(ax, labels)
    draw_legend(ax, runs, floors, args.ema)
    return figure


def find_matplotlib():
    try:
        import matplotlib
    except ImportError:
        fail("needs matplotlib; apt-get install python3-matplotlib and run /usr/bin/python3, "
             "or pip install matplotlib")
    matplotlib.use("Agg")                                    # no window, no display
    matplotlib.rcParams["svg.hashsalt"] = "batchwise"
    import matplotlib.pyplot as plt
    return plt


def save(figure, path):
    metadata = {"Date": None} if path.lower().endswith(".svg") else None     # the same bytes again
    try:
        figure.savefig(path, dpi=150, metadata=metadata)
    except OSError as error:
        fail(f"--out {path}: {error.strerror.lower()}")


# ---------------------------------------------------------------- command line

def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", metavar="RUN", help="output directory, or log.jsonl")
    parser.add_argument("--out", required=True, metavar="FILE", help="FILE.png or FILE.svg")
    parser.add_argument("--x", choices=list(AXES), default="tokens", help="default: tokens")
    parser.add_argument("--log-x", action="store_true", help="logarithmic x axis")
    parser.add_argument("--ema", type=float, default=0.95, metavar="D",
                        help="smoothing of the training loss: 0 (none) to below 1; default: 0.95")
    args = parser.parse_args()
    if not args.out.lower().endswith((".png", ".svg")):
        fail(f"--out {args.out}: expected a name that ends in .png or .svg")
    if not 0.0 <= args.ema < 1.0:
        fail(f"--ema {args.ema:g}: expected at least 0 and below 1")
    return args


def main():
    args = read_arguments()
    plt = find_matplotlib()
    save(draw(plt, read_runs(args.runs), args), args.out)


if __name__ == "__main__":
    main()
