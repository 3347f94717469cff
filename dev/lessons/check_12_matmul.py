#!/usr/bin/env python3
"""Lesson 12: how often three orders of the same loops fetch from memory, with a small cache."""
from collections import OrderedDict
from lesson import claim

N, LINE, LINES, BLOCK = 64, 16, 64, 16           # a cache of 64 lines of 16 floats; N x N matrices


class Cache:
    """Keeps the lines that were used last; counts those it had to fetch."""

    def __init__(self):
        self.lines, self.misses = OrderedDict(), 0

    def touch(self, matrix, row, column):
        line = matrix, row, column // LINE
        if line in self.lines:
            self.lines.move_to_end(line)
            return
        self.misses += 1
        self.lines[line] = True
        if len(self.lines) > LINES:
            self.lines.popitem(last=False)


def dots():
    """For each element of c a row of a times a column of b: matmul_plain."""
    for i in range(N):
        for j in range(N):
            for k in range(N):
                yield i, j, k


def rows():
    """The same with the two inner loops swapped: b is read along its rows."""
    for i in range(N):
        for k in range(N):
            for j in range(N):
                yield i, j, k


def blocks():
    """A block of c at a time, from a block of a and a block of b that both stay in the cache."""
    starts = range(0, N, BLOCK)
    for i0, j0, k0 in ((i, j, k) for i in starts for j in starts for k in starts):
        for i in range(i0, i0 + BLOCK):
            for k in range(k0, k0 + BLOCK):
                for j in range(j0, j0 + BLOCK):
                    yield i, j, k


def misses(order):
    cache = Cache()
    for i, j, k in order():
        cache.touch("a", i, k)
        cache.touch("b", k, j)
        cache.touch("c", i, j)
    return cache.misses


counted = {order.__name__: misses(order) for order in (dots, rows, blocks)}
n3 = N**3
print(f"{N} x {N} matrices: {n3} multiply-adds")
print("order    lines fetched   multiply-adds a line")
for name, fetched in counted.items():
    print(f"{name:7s} {fetched:14d} {n3 / fetched:14.1f}")
ideal = 2 * n3 // (BLOCK * LINE) + N * N // LINE
claim(counted["dots"] > n3,
      "dots: every element of b is fetched anew, a whole line for one number")
claim(abs(counted["rows"] / (n3 / LINE) - 1) < 0.1, "rows: a line of b serves 16 multiply-adds")
claim(counted["blocks"] < 1.1 * ideal,
      f"blocks: within 10% of 2 n^3 / (16 * 16) + n^2 / 16 = {ideal}")

print("tile in registers   loads per multiply-add")
for mr, nr in ((1, 1), (2, 2), (4, 8), (8, 32)):
    print(f"  {mr:2d} x {nr:2d} {(mr + nr) / (mr * nr):20.3f}")
claim((8 + 32) / (8 * 32) < 2 / 12,
      "an 8 x 32 tile loads less than a twelfth of what single sums load")
