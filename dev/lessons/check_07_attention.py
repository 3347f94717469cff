#!/usr/bin/env python3
"""Lesson 7: one head of causal attention; its gradient by the short formula, by the whole Jacobian
and by measured slopes; and the online softmax."""
import math
import random
from lesson import claim, distance, dot, slopes, softmax

random.seed(7)
T, HS = 5, 3
matrix = lambda: [[random.gauss(0.0, 1.0) for _ in range(HS)] for _ in range(T)]
q, k, v, dout = matrix(), matrix(), matrix(), matrix()
flat = lambda m: [x for row in m for x in row]
rows = lambda x: [x[i:i + HS] for i in range(0, len(x), HS)]
scale = 1.0 / math.sqrt(HS)


def weights(q, k, t):
    """p of query t: over the keys 0 ... t alone."""
    return softmax([scale * dot(q[t], k[t2]) for t2 in range(t + 1)])


def attention(q, k, v):
    return [[sum(p * v[t2][i] for t2, p in enumerate(weights(q, k, t))) for i in range(HS)]
            for t in range(T)]


def backward(jacobian):
    """dq, dk, dv; ds by softmax's whole Jacobian, or by d = dout . out."""
    out = attention(q, k, v)
    dq, dk, dv = ([[0.0] * HS for _ in range(T)] for _ in range(3))
    for t in range(T):
        p = weights(q, k, t)
        dp = [dot(dout[t], v[t2]) for t2 in range(t + 1)]
        if jacobian:
            ds = [sum(p[j] * ((i == j) - p[i]) * dp[j] for j in range(t + 1)) for i in range(t + 1)]
        else:
            d = dot(dout[t], out[t])
            ds = [p[i] * (dp[i] - d) for i in range(t + 1)]
        for t2 in range(t + 1):
            for i in range(HS):
                dv[t2][i] += p[t2] * dout[t][i]
                dq[t][i] += scale * ds[t2] * k[t2][i]
                dk[t2][i] += scale * ds[t2] * q[t][i]
    return flat(dq), flat(dk), flat(dv)


def online(scores, values):
    """softmax(scores) . values in one pass: a running maximum, sum and weighted sum."""
    high, total, mixed = -math.inf, 0.0, 0.0
    for s, value in zip(scores, values):
        higher = max(high, s)
        shrink = math.exp(high - higher)
        total = total * shrink + math.exp(s - higher)
        mixed = mixed * shrink + math.exp(s - higher) * value
        high = higher
    return mixed / total


print("weights p, one row per query; empty: masked")
for t in range(T):
    print("   " + " ".join(f"{p:.3f}" for p in weights(q, k, t)))
out = attention(q, k, v)
changed = attention(q, k, v[:3] + [[9.0] * HS] * 2)
claim(out[:3] == changed[:3], "tokens 0, 1 and 2 do not see a change in tokens 3 and 4")

loss = lambda q, k, v: dot(flat(dout), flat(attention(q, k, v)))
measured = (slopes(lambda x: loss(rows(x), k, v), flat(q)),
            slopes(lambda x: loss(q, rows(x), v), flat(k)),
            slopes(lambda x: loss(q, k, rows(x)), flat(v)))
short, whole = backward(jacobian=False), backward(jacobian=True)
for name, a, b, c in zip(("dq", "dk", "dv"), short, whole, measured):
    print(f"{name}: short against the Jacobian {distance(a, b):.0e}, "
          f"against slopes {distance(a, c):.0e}")
    claim(distance(a, b) < 1e-13 and distance(a, c) < 1e-8, f"{name} by d = dout . out is right")

print("q and k, 64 channels     scores, std dev     largest of 64 p, mean   with the scale")
KEYS, QUERIES, WIDE = 64, 20, 64
largest = {}
for name, variance in (("variance 1", 1.0), ("a fresh GPT-2: 0.31", 768 * 0.02**2)):
    draw = lambda n: [[random.gauss(0.0, math.sqrt(variance)) for _ in range(WIDE)]
                      for _ in range(n)]
    keys, s = draw(KEYS), []
    for query in draw(QUERIES):
        s.append([dot(query, key) for key in keys])
    deviation = math.sqrt(sum(x * x for x in flat(s)) / len(flat(s)))
    plain, scaled = (sum(max(softmax([x * f for x in row])) for row in s) / QUERIES
                     for f in (1.0, 1.0 / math.sqrt(WIDE)))
    largest[name] = plain
    print(f"  {name:23s} {deviation:15.2f} {plain:22.2f} {scaled:18.2f}")
plain, fresh = largest.values()
claim(plain > 0.7 and fresh < 0.5,
      "without the scale one key gets most of p at variance 1, but not in a fresh GPT-2")

scores = [random.gauss(0.0, 5.0) for _ in range(1000)]
values = [random.gauss(0.0, 1.0) for _ in range(1000)]
claim(abs(online(scores, values) - dot(softmax(scores), values)) < 1e-12,
      "one pass with a running maximum gives the same weighted mean")
