#!/usr/bin/env python3
"""The ladders of dev/cuda: every rung is right, and a wrong one is found; counts fall as the texts
above the rungs say; and dev/cuda/README.md has the tables that the programs print."""
import functools
import glob
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True   # before the next line, so that it leaves no __pycache__
import testing

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ENVIRONMENT = {k: v for k, v in os.environ.items()
               if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "OP", "BUILD", "PRECISION")}
ENVIRONMENT["OMP_WAIT_POLICY"] = "passive"
ENVIRONMENT["OMP_NUM_THREADS"] = "1"      # an atomicAdd that must try again is counted twice
OPERATIONS = sorted(os.path.basename(path)[:-3] for path in glob.glob(ROOT + "/dev/cuda/*.cu")
                    if '#include "ladder.cu"' in open(path, encoding="utf-8").read())
PROGRAMS = ["build/counted/" + name for name in OPERATIONS]


def run(*command):
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True,
                          check=False)
    return done.returncode, done.stdout, done.stderr


def succeed(*command):
    status, out, err = run(*command)
    assert status == 0, f"{' '.join(command)}: {err.strip() or out.strip()}"[-500:]
    return out


@functools.lru_cache()
def build():
    if not shutil.which("g++"):
        raise testing.Skip("needs g++")
    succeed("make", "-s", *PROGRAMS)


@functools.lru_cache()
def printed(name):
    build()
    return succeed("build/counted/" + name)


def load_script():
    spec = importlib.util.spec_from_file_location("ladder_table", ROOT + "/scripts/ladder_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCRIPT = load_script()


def number(cell):
    return float(cell.split("/")[0]) if cell else 0.0


def table(name, operation):
    """[{column: number}] of an operation's rungs. "of ideal" is the sectors of a request."""
    rows, inside, head = [], False, None
    for line in printed(name).splitlines():
        if line.startswith("**"):
            inside, head = SCRIPT.operation(line) == operation, None
        elif inside and line.startswith("|"):
            cells = SCRIPT.cells(line)
            head = head or cells
            if cells[0] not in ("rung", "---"):
                rows.append({"rung": cells[0], **dict(zip(head[1:], map(number, cells[1:])))})
    return rows


def about(value, expected, within=0.05):
    assert abs(value / expected - 1) <= within, f"{value}, not {expected} within {within:.0%}"


def same(rows, column, within=0.05):
    for row in rows[1:]:
        about(row[column], rows[0][column], within)


# ---- each rung is right, and a wrong one is found ----

def test_ladders_agree():
    build()
    for program in PROGRAMS:
        out = succeed(program, "check")
        assert out.startswith("ok: every rung agrees with the CPU at 3 shapes"), out


def check_of(name, change, *flags):
    """What a ladder's check says, its source changed, without counters: (status, stderr)."""
    with open(f"{ROOT}/build/dev/cuda/{name}.cu.cpp", encoding="utf-8") as f:
        source = change(f.read())
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/ladder.cpp", "w", encoding="utf-8") as f:
            f.write(source)
        succeed("g++", "-std=c++17", "-O0", "-w", "-DWITH_NCCL", "-Idev/emulator/include",
                "-iquote", ".", *flags, folder + "/ladder.cpp", "-o", folder + "/ladder")
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
    for name, (line, wrong, words) in FAULTS.items():
        def planted(source):
            assert source.count(line) == 1, f"{name}: '{line}' stands {source.count(line)} times"
            return source.replace(line, wrong)
        status, err = check_of(name, planted)
        assert status == 1 and words in err, f"wanted '{words}', got: {err}"


# ---- counts fall as the texts say ----

def test_bias_counts():
    column, block, passes, trainer = table("bias", "bias, backward")
    same([column, block, passes, trainer], "memory MB")
    assert block["warps"] == 32 * column["warps"]
    about(block["requests"], column["requests"])
    assert column["barriers"] == 0 < block["barriers"]
    assert passes["warps"] > block["warps"] and passes["kernels"] == 2
    assert 1.0 < passes["memory MB"] / block["memory MB"] < 1.05
    about(trainer["requests"], passes["requests"] / 8, 0.2)
    assert passes["bank x"] == 1 < trainer["bank x"]


def test_layernorm_counts():
    thread, block, warp, packs, trainer = table("layernorm", "LayerNorm, forward")
    same([thread, block, warp, packs, trainer], "memory MB", 0.01)
    assert thread["of ideal"] > 20 and block["of ideal"] < 2.1
    assert block["L2 MB"] < thread["L2 MB"] / 10
    assert block["barriers"] == 20 * block["warps"] and block["shared"] > 0
    assert warp["barriers"] == warp["shared"] == 0 < warp["shuffles"]
    assert warp["requests"] == block["requests"] and warp["L2 MB"] == block["L2 MB"]
    about(packs["requests"], warp["requests"] / 8, 0.2)
    about(packs["L2 MB"], warp["L2 MB"], 0.01)
    about(trainer["L2 MB"], packs["L2 MB"] * 4 / 6, 0.01)


def test_layernorm_backward_counts():
    naive, warp, passes, one, trainer = table("layernorm", "LayerNorm, backward")
    assert warp["L2 MB"] < naive["L2 MB"] / 5
    assert passes["warps"] > 4 * warp["warps"]
    about(passes["L2 MB"], warp["L2 MB"], 0.02)
    assert one["memory MB"] < passes["memory MB"] and one["L2 MB"] < passes["L2 MB"]
    assert one["shared"] > passes["shared"]
    assert trainer["L2 MB"] < one["L2 MB"]
    about(trainer["requests"], one["requests"] / 8, 0.3)
    about(trainer["clocks"], 1.5 * one["clocks"], 0.15)      # three sets of sums, not two
    assert one["bank x"] == 1 and trainer["bank x"] < 1.15


def test_xent_counts():
    separate, fused, online, packs, trainer = table("xent", "softmax cross-entropy")
    assert separate["kernels"] == 3 and fused["kernels"] == 1
    about(fused["memory MB"], separate["memory MB"] / 3)
    same([fused, online, packs, trainer], "memory MB", 0.01)
    about(online["L2 MB"], fused["L2 MB"] * 3 / 4)
    about(packs["L2 MB"], online["L2 MB"])
    of_rows = [row["requests"] - 2*row["warps"] for row in (online, packs)]    # target, scale
    about(of_rows[1], of_rows[0] / 8)
    about(trainer["L2 MB"], packs["L2 MB"] * 2 / 3)


def test_matmul_counts():
    naive, shared, registers, vectors, mma, copies, larger, cublas = table("matmul",
                                                                           "matrix product")
    same([naive, shared, registers, vectors, mma, copies, larger, cublas], "memory MB", 0.01)
    assert shared["L2 MB"] < naive["L2 MB"] / 10
    about(shared["shared"], naive["requests"])
    about(registers["shared"], shared["shared"] / 4)
    about(registers["L2 MB"], shared["L2 MB"] / 2, 0.1)
    about(vectors["shared"], registers["shared"] / 4, 0.15)
    about(vectors["requests"], registers["requests"] / 4, 0.15)
    about(vectors["clocks"], registers["clocks"], 0.1)
    assert vectors["bank x"] > 1 and vectors["L2 MB"] > registers["L2 MB"]
    assert mma["shared"] < vectors["shared"] / 10 and mma["clocks"] < vectors["clocks"] / 10
    assert mma["mma"] == 256**3 / 2048
    for column in copies:
        assert column == "rung" or copies[column] == mma[column], column
    about(larger["shared"], copies["shared"] / 2)
    assert larger["warps"] == copies["warps"] / 4
    operands = [row["L2 MB"] - 2e-6 * 256**2 * 2 for row in (copies, larger)]  # C: half of a sector
    about(operands[1], operands[0] / 2)


def test_attention_counts():
    three, online, shared, mma, padded, copies, two, trainer = table("attention",
                                                                     "attention, forward")
    pairs = 2 * 256 * 257 // 2
    same([online, shared, mma, padded, copies, two, trainer], "memory MB", 0.01)
    assert three["memory MB"] > 5 * online["memory MB"]
    about(three["L2 MB"], 9 * online["L2 MB"])
    about(three["shuffles"], 10 * 2 * 256)
    about(online["shuffles"], 5 * pairs)
    about(shared["L2 MB"], online["L2 MB"] / 7)
    assert shared["shuffles"] < online["shuffles"] / 10
    about(mma["L2 MB"], shared["L2 MB"] / 5)
    about(mma["clocks"], shared["clocks"] / 7)
    for column in padded:
        assert column in ("rung", "clocks", "bank x") or padded[column] == mma[column], column
    assert padded["bank x"] == 1 and mma["bank x"] > 6
    about(padded["clocks"], shared["clocks"] / 45)
    for column in copies:
        assert column in ("rung", "barriers") or copies[column] == padded[column], column
    assert copies["barriers"] < padded["barriers"] / 2
    about(two["clocks"], copies["clocks"] * 0.56)
    about(two["L2 MB"], copies["L2 MB"] * 3 / 4)
    assert two["warps"] == copies["warps"] / 2 and two["mma"] == copies["mma"]
    about(trainer["clocks"], two["clocks"] * 1.13)
    about(trainer["L2 MB"], two["L2 MB"] * 5 / 6)


def test_attention_backward_counts():
    two, one, two_tiles, one_tiles, two_mma, one_mma, trainer = table("attention",
                                                                      "attention, backward")
    pairs = 2 * 256 * 257 // 2
    same([two, two_tiles, two_mma], "memory MB", 0.01)
    about(trainer["memory MB"], two["memory MB"] * 0.85)     # it sums the rows of dqkv, too
    same([one, one_tiles, one_mma], "memory MB", 0.01)
    about(two["shuffles"], 20 * pairs)
    about(one["shuffles"], two["shuffles"] / 2)
    about(one["L2 MB"], two["L2 MB"], 0.1)
    about(one["memory MB"], two["memory MB"] * 1.3)
    about(one_tiles["clocks"], two_tiles["clocks"] * 0.7)
    about(two_mma["clocks"], two_tiles["clocks"] / 46, 0.1)
    assert one_mma["mma"] * 7 == two_mma["mma"] * 5
    about(one_mma["L2 MB"], two_mma["L2 MB"] * 1.25)
    about(trainer["mma"], one_mma["mma"] * 1.06, 0.01)       # tiles of 32 rows on the diagonal
    about(trainer["clocks"], two_mma["clocks"] * 0.65)
    about(trainer["L2 MB"], one_mma["L2 MB"] / 2)


# ---- the page, and make ladder ----

def test_ladders_page():
    build()
    with open(SCRIPT.PAGE, encoding="utf-8") as f:
        page = f.read()
    text = SCRIPT.tables(PROGRAMS, lambda program: printed(os.path.basename(program)))
    there = page.split(SCRIPT.BEGIN)[1].split(SCRIPT.END)[0].strip("\n") + "\n"
    assert text == there, "dev/cuda/README.md is not what make ladder-table writes"


def test_ladder_times():
    """What a GPU has measured stands beside the counts; --write changes the marked part alone."""
    with tempfile.TemporaryDirectory() as folder:
        report, page = folder + "/D.md", folder + "/page.md"
        with open(report, "w") as f:
            f.write("**a, b: N=64, bf16**\n\n1. one: the first\n\n| rung | us | of the limit |\n"
                    "|---|---|---|\n| one  |  12.5 |   50.0% |\n")
        out = "\n**a, b: N=8, bf16**\n\n| rung  | mma |\n|---|---|\n| one  |  7 |\n| two  |    |\n"
        assert SCRIPT.with_times(out, *SCRIPT.times([report])).splitlines()[2:] == [
            "| rung | mma | us (N=64, bf16) | of the limit |", "| --- | --- | --- | --- |",
            "| one | 7 | 12.5 | 50.0% |", "| two |  |  |  |"]
        with open(page, "w") as f:
            f.write("before\n" + SCRIPT.BEGIN + "old\n" + SCRIPT.END + "after\n")
        SCRIPT.PAGE = page
        SCRIPT.write("new\n")
        with open(page) as f:
            assert f.read() == "before\n" + SCRIPT.BEGIN + "\nnew\n\n" + SCRIPT.END + "after\n"


def test_ladders_explain_themselves():
    """Each rung's idea, the columns, and a target that exists to go on with."""
    with open(ROOT + "/Makefile", encoding="utf-8") as f:
        makefile = f.read()
    for name in OPERATIONS:
        out = printed(name)
        columns = out.split("\nColumns\n")[1]
        for column in ("kernels", "memory MB", "of ideal", "bank x", "lanes"):
            assert column in columns, f"{name} does not explain {column}"
        last = out.rstrip().splitlines()[-1]
        target = re.search(r"^Next: .*dev/cuda/(\w+)\.cu.*`make (\w+)(?: OP=(\w+))?`", last)
        assert target and target[1] == name, last
        assert f"\n{target[2]}:" in makefile and (target[3] or name) in OPERATIONS, last


def test_ladder_refuses():
    status, _, err = run("make", "-s", "ladder", "OP=nothing")
    assert status != 0 and err.count("\n") == 1, err
    assert "OP=nothing: there is no such ladder; there are: " in err
    for name in OPERATIONS:
        assert name in err, f"{name} is not named: {err}"
    build()
    status, _, err = run(PROGRAMS[0], "chek")
    assert status == 1 and err.count("\n") == 1 and err.startswith("ladder: usage: "), err


if __name__ == "__main__":
    sys.exit(testing.run_tests(globals(), sys.argv[1:]))
