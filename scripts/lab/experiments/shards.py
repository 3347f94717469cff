"""The speed of products on a rank of a tensor group against the width of its share, C/ranks.
Experiment 4 calls measure(e); build/shards (shards.c) does the timing.

Tensor parallelism cuts each layer's products into ranks' shares (dev/ranks/tensor.h). A share that
is half as wide takes more than half of the time once products are small.
"""
import csv
import os
import subprocess

import _path
import lab

PROGRAM = os.path.join("build", "shards")
HALF = 0.5                               # of the whole width's speed

# Of one model at one width: GFLOP/s, the lower quartile, median and upper quartile of the rounds.
COLUMNS = ["channels", "rows", "ranks", "width", "gflops_low", "gflops", "gflops_high", "share"]


def settings(e):
    """(channels, rows of a micro-batch) of each model, and rounds."""
    return e.pick(tiny=([(64, 64)], 3), quick=([(128, 256), (256, 1024)], 15),
                  full=([(64, 512), (128, 1024), (256, 1024), (768, 1024)], 41))


def job(channels, rows, rounds):
    return lab.Job(f"shards_{channels}", ["--channels", channels, "--rows", rows, "--rounds",
                                          rounds], program=PROGRAM, alone=True, cost=channels)


def build(e):
    """Why the program is not there; empty if it is."""
    if e.args.redraw:
        return ""
    try:
        done = subprocess.run(["make", "-s", PROGRAM], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False)
    except OSError as error:
        return f"make: {error.strerror}"
    if done.returncode == 0:
        return ""
    return f"make {PROGRAM}: {lab.last_line(done.stdout.decode('utf-8', 'replace'))}"


def quartiles(values):
    """Lower quartile, median, upper quartile; the middle ones of few values."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    return ordered[quarter], lab.median(ordered), ordered[-1 - quarter]


def read(text):
    """{ranks: (width, [GFLOP/s of each round])} from what the program printed."""
    widths = {}
    for row in csv.DictReader(text.splitlines()):
        width, speeds = widths.setdefault(int(row["ranks"]), (int(row["width"]), []))
        assert width == int(row["width"])
        speeds.append(float(row["gflops"]))
    return widths


def table(channels, rows, widths):
    """Rows of COLUMNS. share: the median over the rounds of the speed beside the whole width's."""
    whole = widths[1][1]
    result = []
    for ranks, (width, speeds) in sorted(widths.items()):
        share = lab.median([speed / first for speed, first in zip(speeds, whole)])
        result.append([channels, rows, ranks, width, *quartiles(speeds), share])
    return result


def narrowest(rows):
    """The smallest width of a model whose share of the whole speed is at least HALF."""
    return min((row for row in rows if row[-1] >= HALF), key=lambda row: row[3])[3]


def draw(ax, tables):
    """One curve a model, named at its end: the share of the whole width's speed."""
    for i, rows in enumerate(tables):
        widths, shares = [row[3] for row in rows], [100.0 * row[-1] for row in rows]
        ax.plot(widths, shares, color=lab.COLOURS[i], marker=lab.MARKERS[i],
                linestyle=lab.LINES[i])
        ax.annotate(f"C={rows[0][0]}", (widths[0], shares[0]), textcoords="offset points",
                    xytext=(0, 7), ha="center", color=lab.COLOURS[i])
    lab.log_axis(ax.xaxis, base=2)
    lab.axes(ax, "width of a rank's share, C / ranks", "speed of its products (% of the whole's)",
             title(tables))
    ax.set_ylim(0, 1.15 * max(max(row[-1] for row in rows) for rows in tables) * 100)


def title(tables):
    widest = max(tables, key=lambda rows: rows[0][0])
    last = widest[-1]
    return (f"Shares of {last[3]} of {last[0]} channels have {100 * last[-1]:.0f}% of the speed "
            "of whole products")


def measure(e):
    """Times, writes shards.csv and the figure "shards", says the result; returns the tables, one a
    model, or None if the program cannot be built."""
    why = build(e)
    if why:
        e.say(f"Products of tensor-parallel shares were not timed: {why}.")
        return None
    models, rounds = settings(e)
    runs = e.run([job(channels, rows, rounds) for channels, rows in models])
    tables = []
    for channels, rows in models:
        with open(runs[f"shards_{channels}"].base + ".txt", encoding="utf-8") as f:
            tables.append(table(channels, rows, read(f.read())))
    e.csv("shards", COLUMNS, [row for rows in tables for row in rows])

    def picture(plt):
        figure, ax = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
        draw(ax, tables)
        return figure
    e.figure("shards", picture, alt="The speed of a block's products against the width of a "
             "tensor-parallel rank's share, one curve a model.",
             caption=f"Forward and backward products of a block on one thread; medians of {rounds} "
                     "rounds, in each of which all widths take turns. Communication not included.")
    e.say("Products of a tensor-parallel share have half of the whole's speed or more down to a "
          "width of " + ", ".join(f"{narrowest(rows)} of {rows[0][0]} channels" for rows in tables)
          + ".")
    return tables
