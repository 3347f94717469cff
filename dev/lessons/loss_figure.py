#!/usr/bin/env python3
"""Draws loss.svg of lesson 1 from the log of `make run`:

    dev/lessons/loss_figure.py out/tales/log.jsonl
"""
import json
import math
import os
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 360, 56, 20, 16, 44
LEVELS = [(math.log(257), "ln 257: an even guess"), (2.47, "2.47: a bigram model, lesson 3"),
          (0.26, "0.26: the corpus's entropy, the floor")]


def place(update, loss, last):
    """Pixels: updates on a logarithmic axis from 1 to the last, losses from 0 to 6."""
    x = LEFT + (WIDTH - LEFT - RIGHT) * math.log(update) / math.log(last)
    y = TOP + (HEIGHT - TOP - BOTTOM) * (1 - loss / 6)
    return round(x, 1), round(y, 1)


def thinned(losses, points=160):
    """Updates at equal distances on the axis, each with the mean loss since the one before."""
    last, begin = len(losses), 0
    for i in range(points + 1):
        end = round(last ** (i / points))
        if end > begin:
            yield end, sum(losses[begin:end]) / (end - begin)
            begin = end


def draw(losses):
    last = len(losses)
    x0, x1 = LEFT, WIDTH - RIGHT
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
             'font-family="sans-serif" font-size="13">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>']
    for loss, text in LEVELS:
        _, y = place(1, loss, last)
        lines.append(f'<path d="M{x0} {y}H{x1}" stroke="#999999" stroke-dasharray="5 4"/>')
        lines.append(f'<text x="{x1}" y="{y - 5}" text-anchor="end" fill="#555555">{text}</text>')
    for loss in range(7):
        _, y = place(1, loss, last)
        lines.append(f'<text x="{x0 - 8}" y="{y + 4}" text-anchor="end">{loss}</text>')
    for update in (1, 10, 100, 1000):
        x, _ = place(update, 0, last)
        lines.append(f'<text x="{x}" y="{HEIGHT - BOTTOM + 18}" '
                     f'text-anchor="middle">{update}</text>')
    lines.append(f'<path d="M{x0} {TOP}V{HEIGHT - BOTTOM}H{x1}" fill="none" stroke="#000000"/>')
    points = " ".join("{},{}".format(*place(u, loss, last)) for u, loss in thinned(losses))
    lines.append(f'<polyline points="{points}" fill="none" stroke="#0072b2" stroke-width="2"/>')
    lines.append(f'<text x="{x1}" y="{HEIGHT - 8}" '
                 'text-anchor="end">updates of 1,024 tokens</text>')
    lines.append('<text x="4" y="12">nats</text></svg>')
    return "\n".join(lines) + "\n"


if len(sys.argv) != 2:
    sys.exit("usage: dev/lessons/loss_figure.py LOG.jsonl")
with open(sys.argv[1]) as log:
    events = [json.loads(line) for line in log]
losses = [e["loss"] for e in events if e.get("event") == "step"]
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "loss.svg"), "w") as file:
    file.write(draw(losses))
