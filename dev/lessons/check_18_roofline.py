#!/usr/bin/env python3
"""Lesson 18: the roofline. What kernels of an update must move and compute, by formula, beside what
make profile counted; and the least time for it on a GPU."""
import re
from lesson import ROOT, claim


def read(path):
    with open(f"{ROOT}/dev/{path}", encoding="utf-8") as file:
        return file.read()


# Data sheets, as --plan has them: TFLOP/s in bf16 and GB/s.
sheets = re.findall(r'\{ "(\w+)", \d+, (\d+), (\d+), \d+, \w+ \}', read("plan/plan.c"))
peak = {name: float(tflops) for name, tflops, _ in sheets}
bandwidth = {name: float(gb) for name, _, gb in sheets}
ridge = {name: 1000 * peak[name] / gb for name, gb in bandwidth.items()}
GPU = "h100"

print("GPU     GB/s   TFLOP/s   FLOP a byte, to keep it busy")
for name in ("v100", "4090", "a100", "h200", "b200", "h100"):
    print(f"{name:5s} {bandwidth[name]:6.0f} {peak[name]:9.0f} {ridge[name]:15.0f}")

# The update of dev/cuda/counted.md, which make profile counted.
L, C, V, T, B = 2, 256, 8192, 256, 2
N = B * T
PARAMS = V * C + T * C + L * (12 * C * C + 13 * C) + 2 * C
counted = {name: float(mb) for name, mb in re.findall(
    r"^\| `(\w+)` \| \d+ \| [\d.]+ \| ([\d.]+) \|", read("cuda/counted.md"), re.M)}
by_formula = {
    "adamw": 30 * PARAMS,                        # gradient, m, v, master; the last 3 written, bf16
    "norm": 4 * PARAMS,                          # each gradient
    "xent": 2 * 2 * N * V,                       # each logit, read and written
    "layernorm_forward": (2 * L + 1) * (2 * 2 * N * C + 2 * 4 * N + 2 * 2 * C),
}
print("kernel               MB, by formula   MB, counted")
for name, size in by_formula.items():
    print(f"{name:20s} {size / 1e6:14.3f} {counted[name]:13.3f}")
    if abs(size / 1e6 / counted[name] - 1) > 1e-3:
        claim(False, f"{name}: the formula says what was counted")
claim(True, "the formulas match the counts, within 0.1%")

flop = {"products": 6 * N * (12 * L * C * C + V * C), "adamw": 17 * PARAMS}
moved = {"products": counted["cuBLASLt"], "adamw": counted["adamw"]}
print(f"on one {GPU}    MFLOP       MB   FLOP a byte     min us: memory   FLOP")
for name, n in flop.items():
    memory, compute = 1e3 * moved[name] / bandwidth[GPU], n / peak[GPU] / 1e6
    print(f"{name:10s} {n / 1e6:10.0f} {moved[name]:8.1f} {n / moved[name] / 1e6:13.1f}"
          f" {memory:18.2f} {compute:6.2f}")
    claim(memory > compute, f"{name}: memory is the limit" +
          (", because this model is small" if name == "products" else ""))


def intensity(rows, k, columns):
    """FLOP a byte of a product (rows,k) (k,columns) in bf16, each number moved once."""
    return 2 * rows * k * columns / (2 * (rows * k + k * columns + rows * columns))


print("a product in bf16, (N,768) x (768,3072): FLOP a byte")
for rows in (1, 8, 64, 512, 4096):
    n = intensity(rows, 768, 3072)
    print(f"  N = {rows:4d} {n:8.3g}   {'memory' if n < ridge[GPU] else 'FLOP'} is the limit")
claim(intensity(1, 768, 3072) < 1, "one row, as in generation: less than one FLOP a byte")
side = next(n for n in range(1, 10**4) if intensity(n, n, n) >= ridge[GPU])
claim(abs(side / (3 * ridge[GPU]) - 1) < 0.01,
      f"square matrices pass the ridge at 3 x {ridge[GPU]:.0f}: {side} rows")
