#!/usr/bin/env python3
"""Lesson 4: softmax, cross-entropy, and the gradient p - 1[target]."""
import math
from lesson import claim, distance, slopes, softmax

scores, target = [2.0, 1.0, 0.0], 1


def loss(x):
    return -math.log(softmax(x)[target])


p = softmax(scores)
formula = [p[v] - (v == target) for v in range(3)]
measured = slopes(loss, scores)
row = lambda x: "  ".join(f"{value:8.4f}" for value in x)
print("scores               " + row(scores))
print("p                    " + row(p))
print(f"-ln p(target)        {loss(scores):8.4f}")
print("p - 1[target]        " + row(formula))
print("measured slopes      " + row(measured))
claim(distance(formula, measured) < 1e-8, "the gradient is p - 1[target]")
claim(abs(sum(formula)) < 1e-12, "it sums to 0")

high = [s + 1000.0 for s in scores]
claim(distance(softmax(high), p) < 1e-12, "adding 1000 to every score changes no probability")
try:
    math.exp(high[0])
    claim(False, "e^1002 overflows")
except OverflowError:
    claim(True, "e^1002 overflows: softmax must subtract the largest score first")

closer = [s - 0.1 * g for s, g in zip(scores, formula)]
print(f"loss after scores -= 0.1 gradient: {loss(closer):.4f}; "
      f"predicted {loss(scores) - 0.1 * sum(g * g for g in formula):.4f}")
claim(loss(closer) < loss(scores), "a small step against the gradient lowers the loss")
