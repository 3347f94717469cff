#!/usr/bin/env python3
"""What reads the log of a run: scripts/watch.py, from one that grows, its CSV, its page in a
browser, and how it fails; scripts/plot.py, what it draws, and how it fails.

    tests/test_watch.py [NAME...]
"""
import csv
import io
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import browser
import testing
from testing import PREPARE, ROOT, TRAIN, run

sys.path.insert(1, os.path.join(ROOT, "scripts"))
import plot
import watch

WATCH, PLOT = (os.path.join(ROOT, "scripts", name) for name in ("watch.py", "plot.py"))
TMP = tempfile.mkdtemp()
START = {"event": "start", "step": 0, "floor": 0.25, "tokens": 4000, "steps": None}


def step(n, loss, **more):
    return {"event": "step", "step": n, "tokens": 100 * n, "loss": loss, "seconds": 0.5,
            "seconds_data": 0.05, "seconds_compute": 0.4, "seconds_comm": 0,
            "seconds_optimizer": 0.05, **more}


def evaluation(n, loss, whole=None):
    tales = {"whole_loss": whole, "whole_floor": 0.42} if whole else {}
    return {"event": "eval", "step": n, "tokens": 100 * n, "val_loss": loss, **tales}


def sample(n, text):
    return {"event": "sample", "step": n, "tokens": 100 * n, "text": text}


def lines(*events):
    return "".join(json.dumps(event) + "\n" for event in events)


def new_run(text=""):
    """A new output directory whose log has this text."""
    out = tempfile.mkdtemp(dir=TMP)
    write(out, text)
    return out


def write(out, text, mode="w"):
    with open(os.path.join(out, "log.jsonl"), mode, encoding="utf-8") as f:
        f.write(text)


def steps(run):
    run.read()
    return [event["step"] for event in run.events if event["event"] == "step"]


# ---------------------------------------------------------------- reading

def test_watch_reads_a_log_that_grows():
    """In pieces that end anywhere; a page is sent what it lacks. A resumed run's second attempt
    replaces the first, and --overwrite's new log the old one, however long it is."""
    text = lines(START, *(step(n, 5 / n) for n in range(1, 30)))
    out = os.path.join(TMP, "later")
    run = watch.Run(out)
    assert steps(run) == [] and watch.news(run, 0, 0)["quiet"] is None
    version = run.version
    os.mkdir(out)
    for begin in range(0, len(text), 77):
        write(out, text[begin:begin + 77], "a")
        run.read()
    assert steps(run) == list(range(1, 30)) and run.version == version and run.damaged is None
    first, again = watch.news(run, 0, 0), watch.news(run, version, 28)
    assert len(first["events"]) == 30 and first["begin"]["floor"] == 0.25 and first["quiet"] < 60
    assert again["events"] == first["events"][28:] and again["known"] == 28
    assert watch.news(run, version - 1, 28)["known"] == 0
    write(out, lines(evaluation(29, 9.0), {"event": "resume", "step": 1}, step(2, 4.0)), "a")
    assert steps(run) == [1, 2] and run.events[-1]["loss"] == 4.0 and run.version != version
    assert not any(event["event"] == "eval" for event in run.events)
    write(out, lines(START, *(step(n, 6 / n) for n in range(1, 40))))
    assert steps(run) == list(range(1, 40)) and run.events[1]["loss"] == 6.0
    write(out, lines(START, step(1, 3.0)), "a")              # of several runs, the last
    assert steps(run) == [1] and run.events[1]["loss"] == 3.0
    os.remove(os.path.join(out, "log.jsonl"))
    assert steps(run) == []


def test_watch_lines_that_are_none():
    """Torn ones, a piece of a disk: each is named, by the page and in the CSV; the rest is read."""
    for bad in '{"event":"st', "\0\0\0", "7", '{"loss":3}':
        out = new_run(lines(START, step(1, 5.0)) + bad + "\n" + lines(step(2, 4.0)))
        run = watch.Run(out)
        assert steps(run) == [1, 2] and run.damaged == 3, (bad, steps(run), run.damaged)
    done = watched(out, "--csv")
    assert done.returncode == 0 and done.stdout.count("\n") == 4, done.stdout
    assert done.stderr == f"watch.py: {out}/log.jsonl:3: not an event of a log; left out, " \
        "with all lines like it\n", done.stderr


# ---------------------------------------------------------------- CSV

def watched(*args):
    return subprocess.run([sys.executable, WATCH, *args], capture_output=True, text=True,
                          check=False)


def test_watch_csv():
    """Each value of the log stands in its row, whatever a sample holds; a torn last line waits."""
    text = 'He said, "no,\nno"; ü'
    done = watched(new_run(lines(START, step(1, None, skipped=True), evaluation(1, 1.6, 1.5),
                                 sample(1, text)) + '{"event":"st'), "--csv")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["event"] for row in rows] == "start step eval sample".split()
    assert rows[3]["text"] == text and float(rows[2]["whole_floor"]) == 0.42
    assert rows[1]["skipped"] == "true" and rows[1]["loss"] == "" and rows[0]["steps"] == ""


def test_watch_reads_what_the_trainer_writes():
    """Every line of a log is an event, of a run and of its continuation."""
    data, out = os.path.join(TMP, "data"), os.path.join(TMP, "trained")
    run(PREPARE, "tales", "--out", data, "--tokens", 1000)
    run(TRAIN, "--data", data, "--out", out, "--layers", 1, "--heads", 1, "--channels", 8,
        "--seq-len", 8, "--eval-tokens", 64, "--steps", 4, "--eval-every", 1, "--sample-every", 2,
        "--save-every", 2)
    run(TRAIN, "--resume", "--out", out, "--steps", 6)
    with open(os.path.join(out, "log.jsonl"), encoding="utf-8") as f:
        written = [json.loads(line)["event"] for line in f]
    done = watched(out, "--csv")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert [row["event"] for row in csv.DictReader(io.StringIO(done.stdout))] == written


def test_watch_errors():
    def refused(words, *args):
        done = watched(*args)
        assert (done.returncode, done.stdout) == (1, ""), (done.returncode, done.stdout)
        assert done.stderr.count("\n") == 1 and words in done.stderr, done.stderr

    run = new_run(lines(START))
    refused("log.jsonl: holds no event", os.path.join(TMP, "absent"), "--csv")
    refused("not a file", os.devnull, "--csv")
    done = subprocess.run(f"{sys.executable} {WATCH} {run} --csv | head -n 0", shell=True,
                          capture_output=True, check=False, text=True)
    assert done.stderr == "", done.stderr
    with Server(run) as server:
        refused("in use", run, "--port", server.address.rsplit(":", 1)[1].strip("/"))


# ---------------------------------------------------------------- the page

class Server:
    """watch.py as a user starts it, while the block runs."""

    def __init__(self, *args):
        self.process = subprocess.Popen([sys.executable, WATCH, *args], stdout=subprocess.PIPE,
                                        text=True)
        line = self.process.stdout.readline()
        self.address = re.match(r"http://127\.0\.0\.1:\d+/", line).group()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def test_watch_page():
    """It waits, follows a run, begins anew where it is replaced, and asks nothing of others."""
    if not browser.PROGRAM:
        raise testing.Skip("a browser (chromium)")
    out = os.path.join(TMP, "page")
    with Server(out) as server:
        tab = browser.Browser()
        try:
            def page_has(*words):
                text = "document.body.innerText"
                tab.wait(" && ".join(f"{text}.includes({word!r})" for word in words))
            tab.call("Page.navigate", url=server.address)
            tab.wait("location.protocol === 'http:' && document.readyState === 'complete'")
            page_has("waiting for its log")
            os.mkdir(out)
            write(out, lines(START, *(step(n, 5 / n) for n in range(1, 21)),
                             sample(20, "<img src=/x>a tale"), evaluation(20, 1.85, 1.75)))
            page_has("1.7500, at best 0.420", "2k tokens in 20 updates", "trains, 10 s left",
                     "8.0 s, 80.0%", "200 tokens a second", "<img src=/x>a tale")
            shown = tab.value("document.querySelector('#chart').textContent")
            assert "floor 0.420" in shown and "tokens trained on" in shown, shown
            tab.drag("x", "step")
            assert "updates" in tab.value("document.querySelector('#chart').textContent")
            write(out, lines(sample(21, "later"), evaluation(21, 1.6, 1.5),
                             {"event": "end", "reason": "done", "step": 21, "tokens": 2100}), "a")
            page_has("1.5000", "done", "later")
            assert tab.value("document.querySelectorAll('#chart circle').length") == 2
            write(out, lines(START, step(1, 5.25)))
            page_has("5.250")
            tab.size(360, 800, dark=True)
            assert tab.value("document.documentElement.scrollWidth") <= 360
            elsewhere = [url for url in tab.requests if not url.startswith(server.address)]
            assert not elsewhere and not tab.errors, (elsewhere, tab.errors)
        finally:
            tab.close()


# ---------------------------------------------------------------- plot.py

def plotted(*args):
    """Runs plot.py: (status, stderr)."""
    python = testing.find_python()
    if not python:
        raise testing.Skip("needs python3 with matplotlib")
    done = subprocess.run([python, PLOT, *args], capture_output=True, text=True, check=False,
                          env={**os.environ, "MPLCONFIGDIR": TMP})     # nothing in the user's home
    assert done.stdout == "", "prints on stdout"
    return done.returncode, done.stderr


def draw_svg(*args):
    """The words of a drawn SVG: matplotlib leaves each text as a comment beside its outline."""
    out = os.path.join(TMP, "drawn.svg")
    status, err = plotted(*args, "--out", out)
    assert status == 0, err
    with open(out, encoding="utf-8") as f:
        return f.read()


LONG = [START] + [step(n, 5.0 / n) for n in range(1, 41)]
TALES = lines(*LONG, evaluation(20, 0.9, 0.75), evaluation(40, 0.8, 0.625))


def test_plot_smooth():
    assert max(abs(x - 3.0) for x in plot.smooth([3.0] * 3, 0.9)) < 1e-12
    first, second = plot.smooth([4.0, 1.0], 0.5)
    assert first == 4.0 and abs(second - 2.0) < 1e-12        # weights 1/3 and 2/3
    assert plot.smooth([4.0, 1.0], 0.0) == [4.0, 1.0]


def test_plot_reads_axes():
    """Of several runs in a log the last; losses that are not finite are left out, and a last line
    that is still being written."""
    curves = plot.Curves(new_run(lines(*LONG, START, step(1, None), step(2, 4.0, seconds=0.25),
                                       evaluation(2, 4.5)) + '{"event":"step","st'))
    assert curves.train.x == {"tokens": [200], "steps": [2], "seconds": [0.75]}
    assert curves.val.x == {"tokens": [200], "steps": [2], "seconds": [0.75]}
    assert curves.shown() == (curves.val, 0.25)
    curves = plot.Curves(new_run(TALES))
    assert curves.shown() == (curves.whole, 0.42) and curves.whole.y == [0.75, 0.625]


def test_plot_pictures():
    """A PNG of this size; an SVG has the runs' names, last losses and floors, and the axis."""
    out, tales = os.path.join(TMP, "loss.png"), new_run(TALES)
    assert plotted(tales, "--out", out) == (0, "")
    with open(out, "rb") as f:
        head = f.read(24)
    assert head.startswith(b"\x89PNG") and min(struct.unpack(">2I", head[16:24])) > 500
    other = new_run(lines(*LONG, evaluation(40, 0.9)))
    svg = draw_svg(tales, other, "--x", "seconds", "--log-x", "--ema", "0.5")
    for words in [os.path.basename(tales) + "  0.625", os.path.basename(other) + "  0.900",
                  "floor  0.420", "floor  0.250", "seconds of training"]:
        assert f"<!-- {words} -->" in svg, f"no '{words}'"
    svg = draw_svg(new_run(lines({"event": "start", "floor": None}, *LONG[1:])), "--x", "steps")
    assert "floor" not in svg and "(training)" in svg


def test_plot_errors():
    def refused(words, *args):
        status, err = plotted(*args)
        assert status == 1 and err.count("\n") == 1 and words in err, (status, err)

    run, png = new_run(TALES), os.path.join(TMP, "x.png")
    refused("holds no event", os.path.join(TMP, "absent"), "--out", png)
    refused("holds no loss yet", new_run(lines(START)), "--out", png)
    refused("ends in .png or .svg", run, "--out", os.path.join(TMP, "x.pdf"))
    refused("no such file", run, "--out", os.path.join(TMP, "absent", "x.png"))
    # An empty package path for -S -E stands for a machine without matplotlib.
    done = subprocess.run([sys.executable, "-S", "-E", PLOT, run, "--out", png],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert "needs matplotlib" in done.stderr and not os.path.exists(png)


if __name__ == "__main__":
    try:
        sys.exit(testing.run_tests(globals(), sys.argv[1:]))
    finally:
        shutil.rmtree(TMP)
