#!/usr/bin/env python3
"""Lesson 15: what one step of the best length gains, against the batch: measured on a model whose
noise is known, beside the formula; then the formula for whole runs."""
import math
import random
from lesson import claim, dot

random.seed(15)
D, NOISE = 20, 4.0
curvature = [1.0] * D                            # loss(w) = sum of w^2 / 2: the Hessian is 1
w = [1.0] * D
G = list(w)                                      # the true gradient
B_NOISE = NOISE**2 * D / dot(G, G)               # tr(covariance of one sample) / |G|^2


def sampled_gradient(batch):
    """The mean of `batch` samples: the true gradient and noise of variance NOISE^2 / batch."""
    return [g + random.gauss(0.0, NOISE / math.sqrt(batch)) for g in G]


def mean_gain(batch, rate, draws=3000):
    """How much a step of this rate lowers the loss, on average over `draws` batches."""
    gain = 0.0
    for _ in range(draws):
        stepped = [x - rate * g for x, g in zip(w, sampled_gradient(batch))]
        gain += (dot(w, w) - dot(stepped, stepped)) / 2
    return gain / draws


most = dot(G, G) / 2                             # with the true gradient and rate 1
print(f"noise scale tr(S)/|G|^2 = {B_NOISE:.0f} samples")
print("batch   best rate   gain, measured   gain, formula   gain a sample")
worst = 0.0
for batch in (1, 4, 16, 64, 256):
    rate = 1.0 / (1.0 + B_NOISE / batch)
    measured, formula = mean_gain(batch, rate), most / (1.0 + B_NOISE / batch)
    worst = max(worst, abs(measured / formula - 1.0))
    print(f"{batch:5d} {rate:11.3f} {measured:16.3f} {formula:15.3f} {measured / batch:15.4f}")
claim(worst < 0.05, "a step gains most / (1 + B_noise/B), within 5%")

S_MIN, B_CRIT = 226, 1136                        # the fit of the laboratory's experiment 2
print("whole runs, S(B) = 226 (1 + 1136/B)")
print("batch in tokens   updates   tokens   updates measured")
for batch, measured in ((32, 8890), (256, 1160), (8192, 269)):
    updates = S_MIN * (1 + B_CRIT / batch)
    print(f"{batch:15d} {updates:9.0f} {updates * batch:8.0f} {measured:18d}")
    claim(abs(updates / measured - 1) < 0.1,
          f"at {batch} tokens the formula is within 10% of what was measured")
