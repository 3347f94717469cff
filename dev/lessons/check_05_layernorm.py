#!/usr/bin/env python3
"""Lesson 5: LayerNorm's backward formula against measured slopes."""
import math
import random
from lesson import claim, distance, dot, slopes

random.seed(5)
C = 6
x = [random.gauss(1.0, 2.0) for _ in range(C)]
gain = [random.uniform(0.5, 1.5) for _ in range(C)]
bias = [random.gauss(0.0, 1.0) for _ in range(C)]
dout = [random.gauss(0.0, 1.0) for _ in range(C)]


def normalize(x):
    """xhat and rstd of a row."""
    mean = sum(x) / C
    rstd = 1.0 / math.sqrt(sum((v - mean) ** 2 for v in x) / C + 1e-5)
    return [(v - mean) * rstd for v in x], rstd


def loss(x):
    """Any loss whose gradient at the output is dout; a sum of dout * out is the simplest."""
    xhat, _ = normalize(x)
    return sum(d * (h * g + b) for d, h, g, b in zip(dout, xhat, gain, bias))


xhat, rstd = normalize(x)
g = [d * k for d, k in zip(dout, gain)]
mean_g, mean_gx = sum(g) / C, dot(g, xhat) / C
dx = [(gi - mean_g - h * mean_gx) * rstd for gi, h in zip(g, xhat)]
short = [gi * rstd for gi in g]                  # as if mean and rstd were constants
measured = slopes(loss, x)
row = lambda v: " ".join(f"{value:8.4f}" for value in v)
print("x                    " + row(x))
print("xhat                 " + row(xhat))
print("dx, measured         " + row(measured))
print("dx, formula          " + row(dx))
print("g * rstd alone       " + row(short))
claim(distance(dx, measured) < 1e-7, "the formula agrees with the slopes")
claim(distance(short, measured) > 0.01, "without the two means it does not")
claim(abs(sum(dx)) < 1e-12, "dx sums to 0: adding a constant to the row changes nothing")
claim(abs(dot(dx, xhat)) < 1e-4, "dx . xhat is almost 0: stretching the row changes almost nothing")
doubled, _ = normalize([2 * v for v in x])
claim(distance(doubled, xhat) < 1e-5,
      "a doubled row has the same xhat, but for the 1e-5 under the root")
