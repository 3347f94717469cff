#!/usr/bin/env python3
"""Lesson 3: a table of scores, trained by its gradient, finds the bigram frequencies of a text."""
import array
import math
import os
import sys
import tempfile
from lesson import claim, run, softmax


def tale_tokens():
    """300,000 bytes of tales: a shard is 256 numbers of 4 bytes, then tokens of 2."""
    with tempfile.TemporaryDirectory() as folder:
        run("./prepare", "tales", "--tokens", "300000", "--out", folder)
        with open(os.path.join(folder, "tales_train_000000.bin"), "rb") as file:
            tokens = array.array("H", file.read()[1024:])
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens


def loss_of(table, counts, pairs):
    """The mean of -ln p(next | current) over all pairs of the text."""
    loss = 0.0
    for scores, row in zip(table, counts):
        p = softmax(scores)
        loss -= sum(n * math.log(p[v]) for v, n in enumerate(row) if n)
    return loss / pairs


def update(table, counts, rate):
    """One step of gradient descent: row by row, the gradient is p - the frequency of each next."""
    for scores, row in zip(table, counts):
        p, total = softmax(scores), sum(row)
        for v, n in enumerate(row):
            scores[v] -= rate * (p[v] - n / total)


tokens = tale_tokens()
words = sorted(set(tokens))
index = {token: i for i, token in enumerate(words)}
counts = [[0] * len(words) for _ in words]
for now, after in zip(tokens, tokens[1:]):
    counts[index[now]][index[after]] += 1
pairs = len(tokens) - 1
best = -sum(n * math.log(n / sum(row)) for row in counts for n in row if n) / pairs

table = [[0.0] * len(words) for _ in words]      # scores of the next token, a row for each token
first = loss_of(table, counts, pairs)
print(f"{len(words)} different tokens; "
      f"guessing evenly ln {len(words)} = {math.log(len(words)):.4f}")
print("update     loss")
for step in range(501):
    if step in (0, 1, 10, 100, 500):
        print(f"{step:6d}   {loss_of(table, counts, pairs):.4f}")
    update(table, counts, 3.0)
last = loss_of(table, counts, pairs)
q = index[ord("q")]
print(f"entropy of the next token given this one, by counting: {best:.4f}")
print(f"p(u | q): learned {softmax(table[q])[index[ord('u')]]:.3f}, "
      f"counted {counts[q][index[ord('u')]] / sum(counts[q]):.3f}")
claim(abs(first - math.log(len(words))) < 1e-9, "a table of zeros guesses evenly")
claim(0 <= last - best < 0.01, "gradient descent ends at the counted frequencies, within 0.01 nats")
