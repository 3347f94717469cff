#!/usr/bin/env python3
"""Draws where a training step on a GPU spends its time: each launcher's milliseconds beside its
floor, from what make bench-cuda has measured.

    scripts/plot_gpu.py bench_cuda.json --out launchers.png

The floor is the longer of two times, as in dev/cuda/bench.cu: the launcher's FLOP at the speed of
large products, and the bytes it cannot do without at the speed of a copy, both measured in the same
run. Launchers are sorted by the milliseconds they take beyond it, what could be gained at most.
"""
import argparse
import json

import plot

FIELDS = {"name": str, "inside": bool, "calls": int, "ms": (int, float), "floor_ms": (int, float)}
WHOLE = {"gpu": str, "precision": str, "launchers_B": int, "launchers_ms": (int, float),
         "floors_ms": (int, float), "step_ms": (int, float), "launchers": list}


# ---------------------------------------------------------------- reading what was measured

def check(found, fields, path, what):
    for field, kind in fields.items():
        if not isinstance(found, dict) or not isinstance(found.get(field), kind):
            plot.fail(f"{path}: {what} lacks its {field}; is it bench_cuda.json?")


def read_bench(path):
    try:
        with open(path, encoding="utf-8") as f:
            bench = json.load(f)
    except OSError as error:
        plot.fail(f"{path}: {error.strerror.lower()}")
    except ValueError:
        plot.fail(f"{path}: not JSON; run make bench-cuda again")
    check(bench, WHOLE, path, "it")
    for launcher in bench["launchers"]:
        check(launcher, FIELDS, path, "a launcher")
        if launcher["floor_ms"] <= 0.0:
            plot.fail(f"{path}: {launcher['name']} has no floor; run make bench-cuda again")
    if not bench["launchers"]:
        plot.fail(f"{path}: has no launchers; run make bench-cuda again")
    return bench


def lost(launcher):
    return launcher["ms"] - launcher["floor_ms"]


def title(bench):
    """What the picture shows, in one sentence."""
    most = max((x for x in bench["launchers"] if not x["inside"]), key=lost)
    step, floor = bench["step_ms"], bench["floors_ms"]
    return (f"{bench['gpu']}, {bench['precision']}, micro-batch {bench['launchers_B']}: a step "
            f"takes {step:.3g} ms,\n{step / floor:.2f} times its floor of {floor:.3g} ms; "
            f"most to gain: {most['name']}, {lost(most):.2g} ms")


# ---------------------------------------------------------------- drawing

def draw(plt, bench):
    rows = sorted(bench["launchers"], key=lost)
    figure, ax = plt.subplots(figsize=(8.4, 1.4 + 0.27 * len(rows)), layout="constrained")
    most = max(row["ms"] for row in rows)
    for y, row in enumerate(rows):
        part = {"alpha": 0.45} if row["inside"] else {}
        ax.barh(y, row["ms"], height=0.7, color=plot.COLOURS[0], **part)
        ax.plot([row["floor_ms"]] * 2, [y - 0.42, y + 0.42], color=plot.COLOURS[1], linewidth=2.2)
        ax.text(max(row["ms"], row["floor_ms"]) + 0.01 * most, y,
                f"{row['ms']:.3g} ms, {row['ms'] / row['floor_ms']:.2f} times", va="center",
                fontsize=8.5)
    names = [f"({row['name']})" if row["inside"] else row["name"] for row in rows]
    ax.set_yticks(range(len(rows)), [f"{name}  {row['calls']} x" for name, row in zip(names, rows)],
                  fontsize=9)
    ax.plot([], [], color=plot.COLOURS[1], linewidth=2.2, label="floor")
    ax.legend(frameon=False, loc="lower right")
    ax.set_xlim(0.0, 1.25 * most)
    ax.set_ylim(-0.7, len(rows) - 0.3)
    ax.set_xlabel("milliseconds of a step (in brackets: part of another launcher)")
    ax.set_title(title(bench), loc="left", fontsize=10.5)
    ax.grid(True, axis="x", color="#dddddd", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    return figure


# ---------------------------------------------------------------- command line

def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bench", metavar="BENCH", help="bench_cuda.json, or a copy of it")
    parser.add_argument("--out", required=True, metavar="FILE", help="FILE.png or FILE.svg")
    args = parser.parse_args()
    plot.check_picture(args.out)
    plt = plot.find_matplotlib()
    plot.save(draw(plt, read_bench(args.bench)), args.out)


if __name__ == "__main__":
    main()
