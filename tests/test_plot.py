#!/usr/bin/env python3
"""scripts/plot.py: what it draws, and how it fails. tests/test_watch.py has what runlog.py reads."""
import importlib.util
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True   # before the next line, so that it leaves no __pycache__
import testing

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PLOT = os.path.join(ROOT, "scripts", "plot.py")
START = {"event": "start", "floor": 0.5}


def step(n, loss, seconds=0.5):
    return {"event": "step", "step": n, "tokens": 100 * n, "loss": loss, "seconds": seconds}


def evaluation(n, loss, **more):
    return {"event": "eval", "step": n, "tokens": 100 * n, "val_loss": loss, **more}


def write_log(records, tail=""):
    """A new output directory with this log."""
    run = tempfile.mkdtemp(dir=TMP)
    with open(os.path.join(run, "log.jsonl"), "w") as f:
        f.write("".join(json.dumps(record) + "\n" for record in records) + tail)
    return run


def plot(*args):
    """Runs plot.py: (status, stderr)."""
    done = subprocess.run([PYTHON, PLOT, *args], capture_output=True, text=True, check=False)
    assert done.stdout == "", "prints on stdout"
    return done.returncode, done.stderr


def draw_svg(*args):
    """The words of a drawn SVG: matplotlib leaves each text as a comment beside its outline."""
    out = os.path.join(TMP, "drawn.svg")
    status, err = plot(*args, "--out", out)
    assert status == 0, err
    with open(out) as f:
        return f.read()


def expect_error(words, *args):
    status, err = plot(*args)
    assert status == 1, f"status {status}, not 1"
    assert err.count("\n") == 1 and words in err, f"wanted one line with '{words}', got: {err}"


LONG = [START] + [step(n, 5.0 / n) for n in range(1, 41)]
TALES = LONG + [evaluation(20, 0.9, whole_loss=0.75, whole_floor=0.42),
                evaluation(40, 0.8, whole_loss=0.625, whole_floor=0.42)]


# ---- what is read ----

def test_plot_smooth():
    assert module.smooth([3.0, 3.0, 3.0], 0.9) == [3.0] * 3 or \
        max(abs(x - 3.0) for x in module.smooth([3.0] * 3, 0.9)) < 1e-12
    first, second = module.smooth([4.0, 1.0], 0.5)
    assert first == 4.0 and abs(second - 2.0) < 1e-12        # weights 1/3 and 2/3
    assert module.smooth([4.0, 1.0], 0.0) == [4.0, 1.0]


def test_plot_reads_axes():
    """Of several runs in a log the last; losses that are not finite are left out, and a last line
    that is still being written."""
    run = module.Curves(write_log(LONG + [START, step(1, None), step(2, 4.0, 0.25),
                                            evaluation(2, 4.5)], tail='{"event":"step","st'))
    assert run.train.x == {"tokens": [200], "steps": [2], "seconds": [0.75]}
    assert run.val.x == {"tokens": [200], "steps": [2], "seconds": [0.75]}
    assert run.shown() == (run.val, 0.5)
    run = module.Curves(write_log(TALES))
    assert run.shown() == (run.whole, 0.42) and run.whole.y == [0.75, 0.625]


# ---- what is drawn ----

def test_plot_pictures():
    """A PNG of this size; an SVG has the runs' names, last losses and floors, and the axis."""
    out, tales = os.path.join(TMP, "loss.png"), write_log(TALES)
    assert plot(tales, "--out", out) == (0, "")
    with open(out, "rb") as f:
        head = f.read(24)
    assert head.startswith(b"\x89PNG") and min(struct.unpack(">2I", head[16:24])) > 500
    other = write_log(LONG + [evaluation(40, 0.9)])
    svg = draw_svg(tales, other, "--x", "seconds", "--log-x", "--ema", "0.5")
    for words in [os.path.basename(tales) + "  0.625", os.path.basename(other) + "  0.900",
                  "floor  0.420", "floor  0.500", "seconds of training"]:
        assert f"<!-- {words} -->" in svg, f"no '{words}'"
    svg = draw_svg(write_log([{"event": "start", "floor": None}] + LONG[1:]), "--x", "steps")
    assert "floor" not in svg and "(training)" in svg


# ---- how it fails ----

def test_plot_errors():
    run, png = write_log(TALES), os.path.join(TMP, "x.png")
    expect_error("holds no event", os.path.join(TMP, "absent"), "--out", png)
    expect_error("holds no loss yet", write_log([START]), "--out", png)
    expect_error("ends in .png or .svg", run, "--out", os.path.join(TMP, "x.pdf"))
    expect_error("no such file", run, "--out", os.path.join(TMP, "absent", "x.png"))
    assert not os.path.exists(png)


def test_plot_without_matplotlib():
    """An empty package path for -S -E stands for a machine without it."""
    run, png = write_log(TALES), os.path.join(TMP, "y.png")
    done = subprocess.run([sys.executable, "-S", "-E", PLOT, run, "--out", png],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert "needs matplotlib" in done.stderr and not os.path.exists(png)


# ---- running them ----


if __name__ == "__main__":
    PYTHON = testing.find_python()
    if PYTHON is None:
        print("skip plot: needs python3 with matplotlib")
        sys.exit(0)
    sys.path.insert(1, os.path.dirname(PLOT))
    spec = importlib.util.spec_from_file_location("plot", PLOT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    TMP = tempfile.mkdtemp(prefix="plot.")
    os.environ["MPLCONFIGDIR"] = TMP                         # nothing in the user's home
    try:
        sys.exit(testing.run_tests(globals()))
    finally:
        shutil.rmtree(TMP)
