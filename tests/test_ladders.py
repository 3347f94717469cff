#!/usr/bin/env python3
"""The ladders: every rung is right, and a wrong one is found; dev/cuda/counted.md has the tables of
counts that those of GPUs print.

    LONG=1 tests/test_ladders.py        all ladders, not only one of them
"""
import functools
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True   # before the next line, so that it leaves no __pycache__
import testing
from testing import ROOT, run as succeed

sys.path.insert(1, os.path.join(ROOT, "scripts"))
import ladder_table as SCRIPT

for variable in "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "OP", "BUILD", "PRECISION":
    os.environ.pop(variable, None)
os.environ["OMP_NUM_THREADS"] = "1"       # an atomicAdd that must try again is counted twice
LADDERS = sorted(os.path.basename(path)[:-3] for path in glob.glob(ROOT + "/dev/ladders/*.cu")
                 if '#include "ladder.cu"' in open(path, encoding="utf-8").read())
OPERATIONS = LADDERS if os.environ.get("LONG") else ["layernorm"]
PROGRAMS = ["build/counted/" + name for name in OPERATIONS]


def run(*command):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@functools.lru_cache()
def build():
    if not shutil.which("g++"):
        raise testing.Skip("needs g++")
    succeed("make", "-s", "build/emulated/library.a", *PROGRAMS)


@functools.lru_cache()
def printed(name):
    build()
    return succeed("build/counted/" + name)


# ---- each rung is right, and a wrong one is found ----

def check_of(name, change, *flags):
    """What a ladder's check says, its source changed, without counters: (status, stderr)."""
    source = change(testing.read(f"build/dev/ladders/{name}.cu.cpp"))
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/ladder.cpp", "w", encoding="utf-8") as f:
            f.write(source)
        succeed("g++", "-std=c++17", "-O0", "-w", "-DWITH_NCCL", "-fopenmp", "-Idev/emulator/include",
                "-iquote", ".", *flags, folder + "/ladder.cpp", "build/emulated/library.a", "-o", folder + "/ladder")
        status, _, err = run(folder + "/ladder", "check")
    return status, err


def test_ladders_agree_in_fp32():
    build()
    for name in OPERATIONS:
        status, err = check_of(name, lambda source: source, "-DPRECISION_FP32")
        assert status == 0, err


# A line of a rung, what it becomes, and what the ladder then says: it names the rung.
FAULTS = {
    "attention": ("sum = sum * shrink + p;", "sum = sum + p;",
                  "attention, forward: B=2, T=7, 2 heads of 8 channels, bf16, rung "
                  "'online softmax': out is off by"),
    "bias": ("w < 32; w++) sum += sums[w][lane()];\n    db[c] += sum;",
             "w < 31; w++) sum += sums[w][lane()];\n    db[c] += sum;",
             "bias, backward: N=37, OC=264, bf16, rung 'a block 32 columns': db is off by"),
    "layernorm": ("squares += (v[k] - m) * (v[k] - m);\n    }\n    float r",
                  "squares += v[k] * v[k];\n    }\n    float r",
                  "LayerNorm, forward: N=3, C=8, bf16, rung 'packs': out is off by"),
    "matmul": ("copy_async_wait<1>(); ", "copy_async_wait<2>(); ",
               "matrix product: M=128, N=128, K=32, bf16, rung 'cp.async': C is off by"),
    "xent": ("s.sum = s.sum * __expf(s.hi - hi)", "s.sum = s.sum",
             "softmax cross-entropy: N=2, V=2051, bf16, rung 'online': loss is off by"),
}


def test_ladders_find_a_wrong_rung():
    build()
    for name in OPERATIONS:
        line, wrong, words = FAULTS[name]

        def planted(source):
            assert source.count(line) == 1, f"{name}: '{line}' stands {source.count(line)} times"
            return source.replace(line, wrong)
        status, err = check_of(name, planted)
        assert status == 1 and words in err, f"wanted '{words}', got: {err}"


# ---- the page, and make ladder; a ladder compares its rungs before it counts them ----

def test_ladders_page():
    build()
    there = testing.read(SCRIPT.PAGE).split(SCRIPT.BEGIN)[1].split(SCRIPT.END)[0].strip("\n") + "\n"
    tables = [SCRIPT.table(printed(name)) for name in OPERATIONS]
    for name, text in zip(OPERATIONS, tables):
        assert text in there, f"dev/cuda/counted.md: {name} is not what make ladder TABLE=1 writes"
    if OPERATIONS == LADDERS:
        assert "\n\n".join(tables) + "\n" == there, "the page has more than TABLE=1 writes"


def test_ladder_refuses():
    status, _, err = run("make", "-s", "ladder", "OP=nothing")
    assert status != 0 and err.count("\n") == 1, err
    assert "OP=nothing: there is no such ladder; there are: " in err
    for name in LADDERS:
        assert name in err, f"{name} is not named: {err}"
    build()
    status, _, err = run(PROGRAMS[0], "chek")
    assert status == 1 and err.count("\n") == 1 and err.startswith("ladder: usage: "), err


# ---- the ladders of CPUs, matmul.c and attention.c ----

CPU_LADDERS = ["ladder", "attention-cpu"]
SMALL = ["67", "13", "37"]             # too small for a time that means anything


def cpu_ladder(name, *arguments, threads=1):
    return run("env", f"OMP_NUM_THREADS={threads}", "build/" + name, *arguments)


def test_cpu_ladders_agree():
    """Whatever the number of threads."""
    for name in CPU_LADDERS:
        for threads in 1, 2, 3:
            status, out, err = cpu_ladder(name, "check", threads=threads)
            assert status == 0 and re.match(r"\d+ rungs agree", out), out + err


def test_cpu_ladders_print_a_table():
    """Forward and backward of attention. A line for each rung, its numbers all above 0."""
    for name, tables in zip(CPU_LADDERS, (1, 2)):
        out = succeed("build/" + name, *SMALL)
        rungs = int(re.search(r"^(\d+) rungs agree", out, re.M)[1])
        rows = re.findall(r"^[a-z0-9 -]+  .*[0-9]\.[0-9].*$", out, re.M)
        assert len(rows) == rungs * tables, rows
        assert not re.search("nan|inf", out, re.I), out


def test_cpu_ladders_say_that_they_are_busy():
    """More threads than cores cannot get the time they ask for."""
    for name in CPU_LADDERS:
        _, out, err = cpu_ladder(name, *SMALL, threads=4 * os.cpu_count())
        assert re.search(r"^BUSY: \d+ threads got \d+% of the time", out + err, re.M), out[-300:]


def test_cpu_ladders_refuse():
    for name in CPU_LADDERS:
        for arguments in ["chek"], ["8", "8"], ["8", "8", "8x"]:
            status, _, err = cpu_ladder(name, *arguments)
            assert status == 1 and err.count("\n") == 1 and err.startswith(name + ": "), err


if __name__ == "__main__":
    sys.exit(testing.run_tests(globals(), sys.argv[1:]))
