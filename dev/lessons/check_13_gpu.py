#!/usr/bin/env python3
"""Lesson 13: a warp in plain Python: which memory its 32 lanes ask for, and how they add."""
from lesson import claim

LANES, SECTOR, BANKS = 32, 32, 32                # a sector has 32 bytes; a bank serves 4 at a time


def sectors(addresses):
    """Sectors of global memory that one load of the warp fetches."""
    return len({address // SECTOR for address in addresses})


def passes(addresses):
    """Passes over shared memory: the most different words that one bank has to give."""
    words = {address // 4 for address in addresses}
    return max(sum(word % BANKS == bank for word in words) for bank in range(BANKS))


lanes = range(LANES)
print("a load of 4 bytes a lane from global memory      sectors   bytes used of those fetched")
loads = {
    "lane i reads x[i]": [4 * i for i in lanes],
    "lane i reads x[i + 1]": [4 * (i + 1) for i in lanes],
    "lane i reads x[2 i]": [8 * i for i in lanes],
    "lane i reads x[768 i], a column of (N,768)": [4 * 768 * i for i in lanes],
}
for name, addresses in loads.items():
    n = sectors(addresses)
    print(f"  {name:46s} {n:7d} {128 / (SECTOR * n):19.0%}")
counts = [sectors(addresses) for addresses in loads.values()]
claim(counts == [4, 5, 8, 32],
      "neighbouring lanes should read neighbouring addresses: 4 sectors, not 32")

print("a tile of floats in shared memory                passes along a row   down a column")
for width in (32, 33):
    along = passes([4 * i for i in lanes])
    down = passes([4 * width * i for i in lanes])
    print(f"  rows of {width:2d} {along:55d} {down:15d}")
    claim(down == (32 if width == 32 else 1), f"rows of {width}: a column takes {down} passes")

values = [float(i * i % 7) for i in lanes]
total, step, rounds = list(values), 16, 0
while step > 0:                                  # warp_sum: lane i adds what lane i xor step has
    total = [total[i] + total[i ^ step] for i in lanes]
    step, rounds = step // 2, rounds + 1
claim(rounds == 5 and all(t == sum(values) for t in total),
      "after 5 exchanges every one of the 32 lanes has the whole sum")
