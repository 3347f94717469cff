#!/usr/bin/env python3
"""Draws gelu.svg of lesson 6: GELU, its slope, and the ramp max(0, x).

    dev/lessons/gelu_figure.py
"""
import math
import os

WIDTH, HEIGHT, UNIT = 560, 280, 64               # pixels; UNIT pixels are 1
X0, Y0 = WIDTH // 2, 232                         # where the axes cross
K = math.sqrt(2.0 / math.pi)


def gelu(x):
    return 0.5 * x * (1.0 + math.tanh(K * (x + 0.044715 * x**3)))


def slope(x, h=1e-5):
    return (gelu(x + h) - gelu(x - h)) / (2 * h)


def curve(f, color, dashes=""):
    points = [i / 20.0 for i in range(-80, 81)]
    pixels = [(X0 + UNIT * x, Y0 - UNIT * f(x)) for x in points if -0.5 <= f(x) <= 3.4]
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in pixels)
    return (f'<polyline points="{text}" fill="none" stroke="{color}" stroke-width="2" '
            f'stroke-dasharray="{dashes}"/>')


def draw():
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
             'font-family="sans-serif" font-size="13">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
             f'<path d="M16 {Y0}H{WIDTH - 16}M{X0} 12V{HEIGHT - 8}" stroke="#999999"/>']
    for x in (-4, -3, -2, -1, 1, 2, 3, 4):
        lines.append(f'<text x="{X0 + UNIT * x}" y="{Y0 + 18}" text-anchor="middle">{x}</text>')
    for y in (1, 2, 3):
        lines.append(f'<text x="{X0 - 8}" y="{Y0 - UNIT * y + 4}" text-anchor="end">{y}</text>')
    lines.append(curve(lambda x: max(0.0, x), "#999999", "4 4"))
    lines.append(curve(slope, "#d55e00", "8 4"))
    lines.append(curve(gelu, "#0072b2"))
    for y, color, text in ((40, "#0072b2", "GELU"), (60, "#d55e00", "its slope"),
                           (80, "#777777", "max(0, x)")):
        lines.append(f'<text x="24" y="{y}" fill="{color}">{text}</text>')
    return "\n".join(lines) + "\n</svg>\n"


with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "gelu.svg"), "w") as file:
    file.write(draw())
