#!/usr/bin/env python3
"""Lesson 17: bf16 in plain Python: what rounding does to numbers, sums, products and weights."""
import math
import random
import struct
from lesson import claim

random.seed(17)


def fp32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def bf16(x):
    """The upper half of a float, rounded to the nearest; of two that are as near, the even one."""
    bits, = struct.unpack("<I", struct.pack("<f", x))
    bits += 0x7FFF + (bits >> 16 & 1)
    return struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0]


def fp16(x):
    """The other 16-bit format: 11 significant bits, 5 bits of exponent."""
    try:
        return struct.unpack("<e", struct.pack("<e", x))[0]
    except OverflowError:
        return math.inf


def stochastic(x):
    """One of the two neighbours in bf16; the nearer one more often, so that the mean is x."""
    bits, = struct.unpack("<I", struct.pack("<f", x))
    return struct.unpack("<f", struct.pack("<I", bits + random.getrandbits(16) & 0xFFFF0000))[0]


print("number         bf16        fp16")
for x in (1.001, 3.14159, 257.0, 100000.0, 1e-8):
    print(f"{x:<10g} {bf16(x):9.4g} {fp16(x):11.4g}")
claim(fp16(1e5) == math.inf and fp16(1e-8) == 0.0 and abs(bf16(1e-8) / 1e-8 - 1) < 2**-8,
      "fp16 overflows above 65504 and loses 1e-8; bf16 has the range of a float")
numbers = [math.exp(random.uniform(-20.0, 20.0)) for _ in range(100000)]
worst = max(abs(bf16(x) / x - 1) for x in numbers)
print(f"largest relative error of 100,000 numbers: {worst:.5f}, 1/{1 / worst:.0f}")
claim(2**-9 < worst <= 2**-8, "rounding to bf16 moves a number by at most 1/256 of it")


def product_error(n, rounds_sum, draws):
    """Error of a dot product of n bf16 terms, in units of the terms' root sum of squares."""
    squares = 0.0
    for _ in range(draws):
        a = [random.gauss(0.0, 1.0) for _ in range(n)]
        b = [random.gauss(0.0, 1.0) for _ in range(n)]
        total = 0.0
        for x, y in zip(a, b):
            total = rounds_sum(total + bf16(x) * bf16(y))
        exact = sum(x * y for x, y in zip(a, b))
        squares += (total - exact)**2 / sum((x * y)**2 for x, y in zip(a, b))
    return math.sqrt(squares / draws)


print("terms of a dot product    error, sum in fp32    sum in bf16")
errors = {}
for n, draws in ((16, 800), (256, 100), (4096, 100)):
    errors[n] = product_error(n, fp32, draws), product_error(n, bf16, draws)
    print(f"{n:22d} {errors[n][0]:21.4f} {errors[n][1]:14.4f}")
claim(max(e for e, _ in errors.values()) < 1.5 * min(e for e, _ in errors.values()),
      "with sums in fp32 the error does not grow with the number of terms")
claim(all(2.5 < errors[16 * n][1] / errors[n][1] < 6 for n in (16, 256)),
      "with sums in bf16 it grows with their root: 16 times the terms, about 4 times the error")
ones = 0.0
for _ in range(1000):
    ones = bf16(ones + 1.0)
print(f"1 added 1000 times in bf16: {ones:.0f}")
claim(ones == 256.0, "the sum stops at 256: beside it, 1 is half a step, and the even number wins")

print("100 weights of 1, each after 1000 updates of 0.001: the mean")
weights = {"kept in fp32": fp32, "kept in bf16": bf16, "in bf16, rounded at random": stochastic}
means = {}
for name, rounds in weights.items():
    after = [1.0] * 100
    for _ in range(1000):
        after = [rounds(w + 0.001) for w in after]
    means[name] = sum(after) / len(after)
    print(f"  {name:28s} {means[name]:.4f}")
claim(abs(means["kept in fp32"] - 2.0) < 1e-3 and means["kept in bf16"] == 1.0,
      "in bf16 each update is lost; so weights have a master copy in fp32")
claim(abs(means["in bf16, rounded at random"] - 2.0) < 0.04, "rounded at random, the mean is right")
