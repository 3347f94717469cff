#!/usr/bin/env python3
"""Lesson 14: a ring all-reduce, ZeRO's slices, an MLP and a vocabulary split among ranks."""
import math
import random
from lesson import claim, distance, dot

random.seed(14)
RANKS, COUNT = 4, 12                             # COUNT parameters; every rank has a gradient


def ring_all_reduce(gradients):
    """Sums lists in place. Returns how many numbers each rank sent."""
    n, size, sent = len(gradients), COUNT // len(gradients), 0
    part = lambda chunk: slice(chunk % n * size, (chunk % n + 1) * size)
    for step in range(n - 1):                    # reduce-scatter: a chunk grows as it goes round
        moving = [gradients[r][part(r - step)] for r in range(n)]
        for r in range(n):
            here = part(r - 1 - step)
            gradients[r][here] = [a + b for a, b in zip(gradients[r][here], moving[r - 1])]
        sent += size
    for step in range(n - 1):                    # all-gather: the finished chunks go round once
        moving = [gradients[r][part(r + 1 - step)] for r in range(n)]
        for r in range(n):
            gradients[r][part(r - step)] = moving[r - 1]
        sent += size
    return sent


own = [[random.gauss(0.0, 1.0) for _ in range(COUNT)] for _ in range(RANKS)]
total = [sum(column) for column in zip(*own)]
reduced = [list(gradient) for gradient in own]
sent = ring_all_reduce(reduced)
print(f"{RANKS} ranks, {COUNT} numbers: each rank sent {sent}")
claim(all(distance(r, total) < 1e-12 for r in reduced), "every rank ends with the sum")
claim(sent == 2 * COUNT * (RANKS - 1) // RANKS, "each sent 2 (n-1)/n times the numbers")
for n in (2, 3, 6, 12):
    print(f"{n:2d} ranks: each sent {ring_all_reduce([[0.0] * COUNT for _ in range(n)])}")

# ZeRO 1: a rank keeps the moments of its slice and updates that slice alone; then all gather.
weights = [random.gauss(0.0, 1.0) for _ in range(COUNT)]
momentum = [random.gauss(0.0, 1.0) for _ in range(COUNT)]
step = lambda w, m, g: w - 0.1 * (0.9 * m + 0.1 * g)
whole = [step(w, m, g) for w, m, g in zip(weights, momentum, total)]
gathered, size = [], COUNT // RANKS
for rank in range(RANKS):
    mine = slice(rank * size, (rank + 1) * size)
    gathered += [step(w, m, g) for w, m, g in zip(weights[mine], momentum[mine], total[mine])]
claim(gathered == whole, "slices updated separately, then gathered, are the same weights, bit for bit")

print("bytes a parameter, fp32: weights 4, gradient 4, moments 8")
print("ranks   ZeRO 0   ZeRO 1   ZeRO 2   ZeRO 3")
for n in (1, 2, 8, 64):
    print(f"{n:5d} {16:8.2f} {8 + 8 / n:8.2f} {4 + 12 / n:8.2f} {16 / n:8.2f}")

# Tensor parallel: rank r has half of the hidden channels: columns of the first weight, rows of the
# second. relu stands for GELU: any function of one number will do.
C, H = 4, 8
x = [random.gauss(0.0, 1.0) for _ in range(C)]
up = [[random.gauss(0.0, 1.0) for _ in range(C)] for _ in range(H)]      # a row a hidden channel
down = [[random.gauss(0.0, 1.0) for _ in range(C)] for _ in range(H)]


def mlp(hidden):
    """The part of the MLP's output that these hidden channels make."""
    active = [max(0.0, dot(up[h], x)) for h in hidden]
    return [sum(a * down[h][c] for a, h in zip(active, hidden)) for c in range(C)]


halves = mlp(range(H // 2)), mlp(range(H // 2, H))
claim(distance([a + b for a, b in zip(*halves)], mlp(range(H))) < 1e-12,
      "two halves of an MLP need one sum at its end, and nothing in between")

# The vocabulary in four parts: rank r has the logits of three words.
logits = [random.gauss(0.0, 3.0) for _ in range(COUNT)]
target, size = 7, COUNT // RANKS
parts = []
for rank in range(RANKS):
    words = range(rank * size, (rank + 1) * size)
    largest = max(logits[w] for w in words)
    parts.append((largest, sum(math.exp(logits[w] - largest) for w in words),
                  logits[target] if target in words else 0.0))
most = max(m for m, _, _ in parts)
loss = most + math.log(sum(s * math.exp(m - most) for m, s, _ in parts)) - sum(z for *_, z in parts)
claim(abs(loss - (math.log(sum(map(math.exp, logits))) - logits[target])) < 1e-12,
      f"three numbers from each of {RANKS} ranks give the loss over all words")

# What a rank of two sends: 2 (n-1)/n = 1 of a gradient, or of the sums of one micro-batch.
L, C, V, P, tokens = 12, 768, 50257, 1024, 8 * 1024
gradient = (V + P) * C + L * (12 * C * C + 13 * C) + 2 * C
sums = (4 * L + 2) * tokens * C + 3 * tokens
print("GPT-2 124M, 8 sequences of 1,024 on 2 ranks, million numbers sent: "
      f"{gradient / 1e6:.0f} data parallel, {sums / 1e6:.0f} tensor parallel")
