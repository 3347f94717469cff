#!/usr/bin/env python3
"""What reads the log of a run: scripts/watch.py, from one that grows, its CSV, its page in a
browser, and how it fails; scripts/plot.py, what it draws, and how it fails.

    tests/test_watch.py [NAME...]
"""
import csv
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tempfile

import testing
from testing import ROOT
import browser

sys.path.insert(1, os.path.join(ROOT, "scripts"))
import plot
import watch

WATCH, PLOT = ([os.path.join(ROOT, "scripts", name)] for name in ("watch.py", "plot.py"))
TMP = os.environ["MPLCONFIGDIR"] = testing.scratch()         # nothing in the user's home
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


def started(script, *args):
    return subprocess.run([sys.executable, *script, *args], capture_output=True, text=True,
                          check=False)


def refused(words, script, *args):
    done = started(script, *args)
    assert (done.returncode, done.stdout) == (1, ""), (done.returncode, done.stdout)
    assert done.stderr.count("\n") == 1 and words in done.stderr, done.stderr


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
    done = started(WATCH, out, "--csv")
    assert done.returncode == 0 and done.stdout.count("\n") == 4, done.stdout
    assert done.stderr == f"watch.py: {out}/log.jsonl:3: not an event of a log; left out, " \
        "with all lines like it\n", done.stderr


# ---------------------------------------------------------------- CSV

def test_watch_csv():
    """Each value of the log stands in its row, whatever a sample holds; a torn last line waits."""
    text = 'He said, "no,\nno"; ü'
    log = lines(START, step(1, None, skipped=True), evaluation(1, 1.6, 1.5), sample(1, text))
    done = started(WATCH, new_run(log + '{"event":"st'), "--csv")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["event"] for row in rows] == "start step eval sample".split()
    assert rows[3]["text"] == text and float(rows[2]["whole_floor"]) == 0.42
    assert rows[1]["skipped"] == "true" and rows[1]["loss"] == "" and rows[0]["steps"] == ""


def test_watch_errors():
    run = new_run(lines(START))
    refused("log.jsonl: holds no event", WATCH, os.path.join(TMP, "absent"), "--csv")
    refused("not a file", WATCH, os.devnull, "--csv")
    with Server(run) as server:
        refused("in use", WATCH, run, "--port", server.address.rsplit(":", 1)[1].strip("/"))


# ---------------------------------------------------------------- the page

class Server:
    """watch.py as a user starts it, while the block runs."""

    def __init__(self, *args):
        self.process = subprocess.Popen([sys.executable, *WATCH, *args], stdout=subprocess.PIPE,
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
    out = os.path.join(TMP, "page")
    with Server(out) as server, browser.Browser() as tab:
        def page_has(*words):
            text = "document.body.innerText"
            tab.wait(" && ".join(f"{text}.includes({word!r})" for word in words))
        tab.open(server.address)
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


# ---------------------------------------------------------------- plot.py

LONG = [START] + [step(n, 5.0 / n) for n in range(1, 41)]
TALES = lines(*LONG, evaluation(20, 0.9, 0.75), evaluation(40, 0.8, 0.625))


def test_plot_reads_axes():
    """Of several runs in a log the last; losses that are not finite are left out, and a last line
    that is still being written. Smoothing corrects its bias."""
    losses = plot.Losses(new_run(lines(*LONG, START, step(1, None), step(2, 4.0, seconds=0.25),
                                       evaluation(2, 4.5)) + '{"event":"step","st'))
    at = {"tokens": 200, "steps": 2, "seconds": 0.75}
    assert losses.of == {"whole_loss": [], "val_loss": [(at, 4.5)], "loss": [(at, 4.0)]}
    assert (losses.shown(), losses.floors["val_loss"]) == ("val_loss", 0.25)
    tales = plot.Losses(new_run(TALES))
    assert (tales.shown(), tales.floors["whole_loss"]) == ("whole_loss", 0.42)
    first, second = plot.smooth([4.0, 1.0], 0.5)
    assert first == 4.0 and abs(second - 2.0) < 1e-12        # weights 1/3 and 2/3


def test_plot_pictures():
    """A PNG; an SVG, whose texts matplotlib leaves as comments, has the runs' names, last losses
    and floors, and the axis."""
    if not importlib.util.find_spec("matplotlib"):
        raise testing.Skip("needs matplotlib")
    out, svg, tales = os.path.join(TMP, "loss.png"), os.path.join(TMP, "x.svg"), new_run(TALES)
    assert testing.run(sys.executable, *PLOT, tales, "--out", out) == ""
    with open(out, "rb") as f:
        assert f.read(4) == b"\x89PNG"
    other, bare = new_run(lines(*LONG, evaluation(40, 0.9))), new_run(
        lines({"event": "start", "floor": None}, *LONG[1:3]))
    testing.run(sys.executable, *PLOT, tales, other, bare, "--x", "seconds", "--log-x", "--ema",
                "0.5", "--out", svg)
    with open(svg, encoding="utf-8") as f:
        drawn = f.read()
    for words in [os.path.basename(tales) + "  0.625", os.path.basename(other) + "  0.900",
                  os.path.basename(bare) + " (training)  3.333", "seconds of training"]:
        assert f"<!-- {words} -->" in drawn, f"no '{words}'"
    assert "floor  0.420" in drawn and "floor  0.250" in drawn and drawn.count("floor  ") == 2


def test_plot_errors():
    run, png = new_run(TALES), os.path.join(TMP, "y.png")
    refused("holds no loss yet", PLOT, new_run(lines(START)), "--out", png)
    refused("ends in .png or .svg", PLOT, run, "--out", os.path.join(TMP, "x.pdf"))
    # An empty package path for -S -E stands for a machine without matplotlib.
    refused("needs matplotlib", ["-S", "-E", *PLOT], run, "--out", png)
    assert not os.path.exists(png)
    if importlib.util.find_spec("matplotlib"):
        refused("no such file", PLOT, run, "--out", os.path.join(TMP, "absent", "x.png"))


if __name__ == "__main__":
    sys.exit(testing.run_tests(globals(), sys.argv[1:]))
