#!/usr/bin/env python3
"""What nvcc makes of the kernels, run on a CPU (make test PART=ptx): the short form; and nightly, mistakes
planted in the kernels, which the interpreter must find.

    tests/test_ptx.py [NAME...]         the tests of these names only
    LONG=1 tests/test_ptx.py            with the mistakes
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import testing

BARRIER, SYNCWARP, COPY = "__syncthreads between", "no __syncwarp or", "cp.async of thread"
CU, TILES, ASM = "train_gpt2.cu", "dev/cuda/attention_tiles.cu", "dev/cuda/ptx.h"

# A test of test_gpt2, a file, what is replaced in it (a regular expression) and by what, and what
# the report must say. The first ones are in assembly, which the emulator does not see.
MISTAKES = [
    ("attention", ASM, r'"r"\(a\.x\[1\]\), "r"\(a\.x\[2\]\)', '"r"(a.x[2]), "r"(a.x[1])', "FAIL"),
    ("attention", ASM, r"n = there \? BYTES : 0", "n = BYTES", "FAIL|in no allocation"),
    ("attention", ASM, r'"n"\(LEFT\)', '"n"(LEFT + 1)', COPY),
    ("attention", ASM, r"x4\.trans\.shared", "x4.shared", "FAIL"),
    ("linear", CU, r"__align__\(16\) (?=float sums\[8\])", "", "is no multiple of 16"),
    ("layernorm", CU, r"__syncwarp\(\);(?= +// zeros are there)", "", SYNCWARP),
    ("attention", TILES, r"LENGTH = D \+ 8", "LENGTH = D + 4", "is no multiple of 16"),
    ("attention", TILES, r"__syncthreads\(\);(?= +// this tile is there)", "", BARRIER),
    ("attention", TILES, r"copy_async_wait<LAST - 1>", "copy_async_wait<LAST>", COPY),
    ("attention", TILES, r"__syncwarp\(\);(?= +// the rows are whole)", "", SYNCWARP),
    ("attention", TILES, r"__syncthreads\(\);(?= +// everybody's copies)", "", BARRIER),
    ("attention", TILES, r"copy_async_wait<STAGES - 2>", "copy_async_wait<STAGES - 1>", COPY),
    ("attention", TILES, r"if \(i < V::STEP\) (?=copy_async<8>)", "", COPY),
    ("xent", CU, r"copy_async_wait<0>\(\);", "", COPY),
    ("xent", CU, r"__syncthreads\(\);(?= +// all warps' parts)", "", BARRIER),
]


def need_nvcc():
    path = os.environ["PATH"] + ":/usr/local/cuda/bin"
    if not shutil.which(os.environ.get("NVCC", "nvcc"), path=path):
        raise testing.Skip("nvcc")


def make(*arguments, cwd=testing.ROOT):
    done = subprocess.run(["make", "-s", *arguments], cwd=cwd, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, f"make {' '.join(arguments)}: {done.stdout[-400:]}"
    return done.stdout


def test_ptx_of_the_kernels():
    need_nvcc()
    said = make("test", "PART=ptx", "PTX_BUILDS=bf16-90", "ONLY=embedding layernorm linear attention xent")
    kernels, steps = re.search(r"^ptx: (\d+) kernels, (\d+) warp instructions, 0 races$", said,
                               re.M).groups()
    assert int(kernels) >= 20 and int(steps) > 5e6, f"{kernels} kernels, {steps} instructions"


def plant(tree, file, text, by):
    """A copy of the sources with this mistake."""
    for name in ["Makefile", "train_gpt2.cu", "dataloader.h"]:
        shutil.copy(os.path.join(testing.ROOT, name), tree)
    for name in ["dev", "tests"]:
        shutil.copytree(os.path.join(testing.ROOT, name), os.path.join(tree, name))
    with open(os.path.join(tree, file), "r+", encoding="utf-8") as f:
        broken, count = re.subn(text, by, f.read())
        assert count, f"{file} has no {text} to break"
        f.seek(0)
        f.truncate()
        f.write(broken)


def planted_mistakes_are_found():
    need_nvcc()
    make("build/ptx/test_gpt2-bf16")
    for test, file, text, by, report in MISTAKES:
        with tempfile.TemporaryDirectory() as tree:
            plant(tree, file, text, by)
            make("build/ptx/bf16-90.ptx", cwd=tree)
            done = subprocess.run(
                ["build/ptx/test_gpt2-bf16", test], cwd=testing.ROOT, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, check=False,
                env={**os.environ, "EMULATOR_PTX": os.path.join(tree, "build/ptx/bf16-90.ptx")})
        assert done.returncode != 0, f"unnoticed: {text} by '{by}'"
        assert re.search(report, done.stdout), f"{text}: not {report}, but {done.stdout[-400:]}"
        print(f"    found: {text}: {done.stdout.splitlines()[-1]}", flush=True)


if os.environ.get("LONG"):
    test_ptx_finds_planted_mistakes = planted_mistakes_are_found

if __name__ == "__main__":
    for name in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL"]:       # set by a `make test` that runs this
        os.environ.pop(name, None)
    sys.exit(testing.run_tests(globals(), sys.argv[1:]))
