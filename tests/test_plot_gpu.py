#!/usr/bin/env python3
"""scripts/plot_gpu.py: what it says and draws of made-up measurements, and how it fails."""
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True   # before the next line, so that it leaves no __pycache__
import testing

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PLOT = os.path.join(ROOT, "scripts", "plot_gpu.py")


def launcher(name, ms, floor_ms, inside=False):
    return {"name": name, "inside": inside, "calls": 12, "ms": ms, "floor_ms": floor_ms, "bytes": 1}


BENCH = {"gpu": "NVIDIA Made Up 1", "precision": "bf16", "launchers_B": 64, "launchers_ms": 40.0,
         "floors_ms": 31.0, "step_ms": 46.5, "launchers": [
             launcher("layernorm", 4.0, 3.5), launcher("attention, back", 16.0, 10.0),
             launcher("classifier, both ways", 20.0, 17.5),
             launcher("cross-entropy in it", 15.0, 4.0, inside=True)]}


def plot(*args):
    """Runs plot_gpu.py: (status, stderr)."""
    done = subprocess.run([PYTHON, "-B", PLOT, *args], capture_output=True, text=True, check=False)
    assert done.stdout == "", "prints on stdout"
    return done.returncode, done.stderr


def write(text):
    path = os.path.join(TMP, "bench_cuda.json")
    with open(path, "w", encoding="utf-8") as f:
        f.write(text if isinstance(text, str) else json.dumps(text))
    return path


def expect_error(words, *args):
    status, err = plot(*args, "--out", os.path.join(TMP, "never.svg"))
    assert status == 1 and err.startswith("plot_gpu.py: "), (status, err)
    assert err.count("\n") == 1 and words in err, f"wanted one line with '{words}', got: {err}"
    assert not os.path.exists(os.path.join(TMP, "never.svg"))


def test_plot_gpu_words():
    """Most is lost in attention: what is part of the classifier does not count twice."""
    out = os.path.join(TMP, "launchers.svg")
    status, err = plot(write(BENCH), "--out", out)
    assert (status, err) == (0, ""), err
    with open(out, encoding="utf-8") as f:
        svg = f.read()
    for words in ["NVIDIA Made Up 1, bf16, micro-batch 64: a step takes 46.5 ms,",
                  "1.50 times its floor of 31 ms; most to gain: attention, back, 6 ms",
                  "16 ms, 1.60 times", "attention, back  12 x", "(cross-entropy in it)  12 x"]:
        assert f"<!-- {words} -->" in svg or words in svg, f"no '{words}'"
    order = [svg.index(f"<!-- {name}") for name in
             ["layernorm  12", "classifier, both ways  12", "attention, back  12"]]
    assert order == sorted(order), "launchers are not sorted by what could be gained"


def test_plot_gpu_errors():
    expect_error("no such file", os.path.join(TMP, "absent.json"))
    expect_error("not JSON", write("{broken"))
    expect_error("it lacks its gpu; is it bench_cuda.json?", write({"event": "start"}))
    expect_error("it lacks its gpu", write([1]))
    without = json.loads(json.dumps(BENCH))
    del without["launchers"][1]["floor_ms"]
    expect_error("a launcher lacks its floor_ms", write(without))
    expect_error("has no launchers", write({**BENCH, "launchers": []}))
    expect_error("qkv has no floor", write({**BENCH, "launchers": [launcher("qkv", 1.0, 0.0)]}))
    status, err = plot(write(BENCH), "--out", os.path.join(TMP, "x.pdf"))
    assert status == 1 and "ends in .png or .svg" in err, err


if __name__ == "__main__":
    PYTHON = testing.find_python()
    if PYTHON is None:
        print("skip plot_gpu: needs python3 with matplotlib")
        sys.exit(0)
    TMP = tempfile.mkdtemp(prefix="plot_gpu.")
    os.environ["MPLCONFIGDIR"] = TMP                         # nothing in the user's home
    try:
        sys.exit(testing.run_tests(globals()))
    finally:
        shutil.rmtree(TMP)
