#!/usr/bin/env python3
"""Lesson 6: GELU in three forms, its derivative, and what a non-linearity is for."""
import math
from lesson import claim, slopes

K = math.sqrt(2.0 / math.pi)


def exact(x):
    """x times the probability that a standard normal number is below x."""
    return x * 0.5 * (1.0 + math.erf(x / math.sqrt(2.0)))


def with_tanh(x):
    return 0.5 * x * (1.0 + math.tanh(K * (x + 0.044715 * x**3)))


def with_exp(x):
    """What gelu_forward computes: x s with s = 1 / (1 + e^-2u)."""
    return x / (1.0 + math.exp(-2.0 * K * (x + 0.044715 * x**3)))


def derivative(x):
    s = 1.0 / (1.0 + math.exp(-2.0 * K * (x + 0.044715 * x**3)))
    return s + x * s * (1.0 - s) * 2.0 * K * (1.0 + 3.0 * 0.044715 * x * x)


points = [i / 100.0 for i in range(-600, 601)]
print("    x      exact      tanh   derivative")
for x in (-4.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 4.0):
    print(f"{x:5.1f} {exact(x):10.4f} {with_tanh(x):9.4f} {derivative(x):12.4f}")
apart = max(abs(exact(x) - with_tanh(x)) for x in points)
claim(max(abs(with_tanh(x) - with_exp(x)) for x in points) < 1e-12, "x s equals the tanh form")
claim(apart < 5e-4, f"the tanh form is within {apart:.1e} of the exact one")
measured = slopes(lambda x: sum(map(with_tanh, x)), [0.1 * i for i in range(-60, 61)])
claim(max(abs(derivative(0.1 * i) - slope) for i, slope in zip(range(-60, 61), measured)) < 1e-8,
      "the derivative is the slope")
low = min(points, key=with_tanh)
steep = max(points, key=derivative)
print(f"lowest value {with_tanh(low):.4f} at x = {low:.2f}; "
      f"steepest {derivative(steep):.4f} at {steep:.2f}")
claim(derivative(0.0) == 0.5 and derivative(-1.0) < 0.0,
      "at 0 it has slope 1/2, at -1 a negative one")

# An MLP of one channel and two hidden ones makes |x|, nearly; a linear layer cannot bend.
mlp = lambda x: (with_tanh(4 * x) + with_tanh(-4 * x)) / 4
print("|x| by two GELUs: " +
      "  ".join(f"{x:.1f}: {mlp(x):.3f}" for x in (-2.0, -1.0, 0.0, 1.0, 2.0)))
claim(max(abs(mlp(x) - abs(x)) for x in points) < 0.1, "two hidden channels make |x| within 0.1")
