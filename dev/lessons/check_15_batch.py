#!/usr/bin/env python3
"""Lesson 15: what one step of the best length gains, against the batch: measured on a model whose
noise is known, beside the formula; then the formula for whole runs, beside the runs."""
import json
import math
import random
from lesson import ROOT, claim, dot

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
claim(worst < 0.05, "a step gains max / (1 + B_noise/B), within 5%")

# The laboratory's experiment 2, as committed: its fit, and the updates that it was fitted to.
KNEE = f"{ROOT}/scripts/lab/results/02_knee.json"


def rows(name):
    with open(KNEE, encoding="utf-8") as f:
        table = json.load(f)["tables"][name]
    every = [dict(zip(table["columns"], row)) for row in table["rows"]]
    return [row for row in every if (row["size"], row["target_nats"]) == ("119k", 2)]


fit, = rows("fit")
s_min, b_crit = fit["s_min"], fit["b_crit"]
print(f"119k parameters to a loss of 2.0: S(B) = {s_min:.0f} (1 + {b_crit:.0f}/B)")
print("batch in tokens   updates, formula   updates, measured   tokens, measured")
worst = 0.0
for row in rows("points"):
    batch, measured = row["batch_tokens"], row["updates_median"]
    formula = s_min * (1 + b_crit / batch)
    worst = max(worst, abs(formula / measured - 1))
    print(f"{batch:15d} {formula:18.0f} {measured:19.0f} {batch * measured:18.0f}")
claim(worst < 0.15, "at each batch the formula is within 15% of what was measured")
