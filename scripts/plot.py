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
import sys

from runlog import Run, events_of, fail

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lab", "experiments"))
import lab

AXES = {"tokens": "tokens trained on", "steps": "updates", "seconds": "seconds of training"}


class Losses:
    """Of a run: {field: [({axis: x}, loss)]}, and {field: its floor}."""

    def __init__(self, path):
        self.name = os.path.basename(os.path.normpath(path))
        self.of = {"whole_loss": [], "val_loss": [], "loss": []}
        self.floors, run, seconds = {}, Run(path), 0.0
        for event in events_of(run):
            self.floors["val_loss"] = self.floors["loss"] = event.get(
                "floor", self.floors.get("loss"))
            self.floors["whole_loss"] = event.get("whole_floor") or self.floors.get("whole_loss")
            if event["event"] == "step":
                seconds += event.get("seconds") or 0.0
            for field in self.of if event["event"] in ("step", "eval") else []:
                if event.get(field) is not None:             # finite, and measured
                    at = {"tokens": event["tokens"], "steps": event["step"], "seconds": seconds}
                    self.of[field].append((at, event[field]))
        if not any(self.of.values()):
            fail(f"{run.path}: holds no loss yet; wait for the first update")

    def shown(self):
        """The field to draw in bold: the first that was measured."""
        return next(field for field, points in self.of.items() if points)


def read_runs(paths):
    runs = [Losses(path) for path in paths]
    names = [run.name for run in runs]
    for run, path in zip(runs, paths):                       # a/log.jsonl b/log.jsonl, x/run y/run
        if names.count(run.name) > 1 or run.name == "log.jsonl":
            run.name = os.path.normpath(path)
    return runs


def smooth(values, decay):
    """Exponential moving average with bias correction."""
    total, weight, out = 0.0, 0.0, []
    for value in values:
        total = decay * total + (1 - decay) * value
        weight = decay * weight + (1 - decay)
        out.append(total / weight)
    return out


def curves_of(run, i, args):
    """Of run i: the smoothed training loss, and over it what was evaluated."""
    x = {field: [at[args.x] for at, _ in points] for field, points in run.of.items()}
    y = {field: [loss for _, loss in points] for field, points in run.of.items()}
    y["loss"], field = smooth(y["loss"], args.ema), run.shown()
    own = {"color": lab.COLOURS[i % len(lab.COLOURS)], "linestyle": "-"}
    faint = lab.Curve(None, x["loss"], y["loss"], look={
        **own, "marker": "", "linewidth": 1.0, "alpha": 0.5})
    words = f"{run.name}{' (training)' * (field == 'loss')}  {y[field][-1]:.3f}"
    bold = lab.Curve(words, x[field], y[field], look={
        **own, "marker": lab.MARKERS[i % len(lab.MARKERS)], "linewidth": 2.0, "markevery": 0.06})
    return [faint, bold]


def draw(runs, args):
    curves = [curve for i, run in enumerate(runs) for curve in curves_of(run, i, args)]
    every = [x for curve in curves for x in curve.x]
    floors = [run.floors[run.shown()] for run in runs]
    for words in dict.fromkeys(f"{floor:.3f}" for floor in floors if floor is not None):
        curves.append(lab.Curve(f"floor  {words}: no model can do better", [min(every), max(every)],
                                [float(words)] * 2, look={"color": "black", "marker": "",
                                                          "linestyle": "--"}))
    return lab.panels([{
        "curves": curves, "x": AXES[args.x], "y": "loss (nats per token)",
        "log": (10 if args.log_x else None, None),
        "legend": f"bold: validation; faint: training (EMA {args.ema:g})"}], "", (8, 4.8))


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
    try:
        figure = draw(read_runs(args.runs), args)
        figure.savefig(args.out, dpi=150)
    except ImportError:
        fail("needs matplotlib; apt-get install python3-matplotlib and run /usr/bin/python3, "
             "or pip install matplotlib")
    except OSError as error:
        fail(f"--out {args.out}: {error.strerror.lower()}")


if __name__ == "__main__":
    main()
