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
                  full=([(64, 512), (128, 1024), (256, 1024), (768, 1024)], 21))


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


def measure(e):
    """Times, writes shards.csv and says the result, if the program can be built."""
    why = build(e)
    if why:
        e.say(f"Products of tensor-parallel shares were not timed: {why}.")
        return
    models, rounds = settings(e)
    runs = e.run([job(channels, rows, rounds) for channels, rows in models])
    tables = []
    for channels, rows in models:
        with open(runs[f"shards_{channels}"].base + ".txt", encoding="utf-8") as f:
            tables.append(table(channels, rows, read(f.read())))
    e.csv("shards", COLUMNS, [row for rows in tables for row in rows])
    e.say("Products of a tensor-parallel share have half of the whole's speed or more down to a "
          "width of " + ", ".join(f"{narrowest(rows)} of {rows[0][0]} channels" for rows in tables)
          + ".")
