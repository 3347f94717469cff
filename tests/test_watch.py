#!/usr/bin/env python3
"""scripts/watch.py: what it reads from a log that grows, its CSV, its page in a browser, and how it
fails.

    tests/test_watch.py [NAME...]
"""
import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

sys.dont_write_bytecode = True
import browser
import testing
from testing import ROOT

sys.path.insert(1, os.path.join(ROOT, "scripts"))
import watch

WATCH = os.path.join(ROOT, "scripts", "watch.py")
TMP = tempfile.mkdtemp()
START = {"event": "start", "step": 0, "floor": 0.25, "tokens": 4000, "steps": None}


def step(n, loss, **more):
    return {"event": "step", "step": n, "tokens": 100 * n, "loss": loss, "seconds": 0.5,
            "seconds_data": 0.05, "seconds_compute": 0.4, "seconds_comm": 0,
            "seconds_optimizer": 0.05, **more}


def evaluation(n, whole):
    return {"event": "eval", "step": n, "tokens": 100 * n, "val_loss": whole + 0.1,
            "whole_loss": whole, "whole_floor": 0.42}


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

def test_watch_reads_what_is_new():
    """In pieces that end anywhere, as a page that asks while a line is being written."""
    text = lines(START, *(step(n, 5 / n) for n in range(1, 30)))
    out = new_run()
    run = watch.Run(out)
    version = run.version
    for begin in range(0, len(text), 77):
        write(out, text[begin:begin + 77], "a")
        run.read()
    assert steps(run) == list(range(1, 30)) and run.damaged is None
    assert run.version == version, "a log that only grows is read anew"


def test_watch_waits_for_a_run():
    out = os.path.join(TMP, "later")
    run = watch.Run(out)
    assert steps(run) == [] and watch.news(run, 0, 0)["quiet"] is None
    os.mkdir(out)
    write(out, lines(START, step(1, 5.0)))
    assert steps(run) == [1] and watch.news(run, 0, 0)["quiet"] < 60


def test_watch_resumed_run():
    """Updates after the checkpoint that a run resumes from are those of its second attempt."""
    out = new_run(lines(START, step(1, 5.0), step(2, 9.0), evaluation(2, 9.0), step(3, 9.0)))
    run = watch.Run(out)
    assert steps(run) == [1, 2, 3]
    version = run.version
    write(out, lines({"event": "resume", "step": 1}, step(2, 4.0)), "a")
    assert steps(run) == [1, 2] and run.events[-1]["loss"] == 4.0 and run.version != version
    assert not any(event["event"] == "eval" for event in run.events)


def test_watch_replaced_run():
    """--overwrite empties the log; the new one may be longer than the old one at the next look."""
    out = new_run(lines(START, step(1, 5.0), step(2, 4.0)))
    run = watch.Run(out)
    assert steps(run) == [1, 2]
    write(out, lines(START, step(1, 5.5), step(2, 4.5), step(3, 3.5)))
    assert steps(run) == [1, 2, 3] and run.events[1]["loss"] == 5.5
    write(out, lines(START))
    assert steps(run) == []
    os.remove(os.path.join(out, "log.jsonl"))
    assert steps(run) == [] and run.events == []


def test_watch_last_of_several_runs():
    run = watch.Run(new_run(lines(START, step(1, 5.0), step(2, 4.0), START, step(1, 3.0))))
    assert steps(run) == [1] and run.events[1]["loss"] == 3.0


# Lines that no trainer wrote: torn, deep, huge, of a wrong type, and a piece of a disk.
BAD = ['{"event":"st', "[1]", "[" * 100000, '{"event":"x","a":' + "[" * 500 + "]" * 500 + "}",
       '{"event":["step"]}', '{"event":"step","step":2,"tokens":200,"loss":"3.0"}',
       '{"event":"step","step":2,"tokens":' + "9" * 5000 + ',"loss":3}', "\0\0\0",
       '{"event":"step","step":1e400,"tokens":200,"loss":3}', '{"event":"step","loss":3}',
       '{"event":"step","step":true,"tokens":200,"loss":3}', '{"event":"resume","step":{}}',
       '{"event":"sample","step":2,"tokens":200,"text":5}']


def test_watch_lines_that_are_none():
    """Each is named, by the page and in the CSV; the rest is read, and comes back as JSON."""
    for bad in BAD:
        out = new_run(lines(START, step(1, 5.0)) + bad + "\n" + lines(step(2, 4.0)))
        run = watch.Run(out)
        assert steps(run) == [1, 2] and run.damaged == 3, (bad[:60], steps(run), run.damaged)
        json.dumps(watch.news(run, 0, 0))
    done = watched(out, "--csv")
    assert done.returncode == 0 and done.stdout.count("\n") == 4, done.stdout
    assert done.stderr == f"watch.py: {out}/log.jsonl:3: not an event of a log; left out, with " \
        "all lines like it\n", done.stderr


def test_watch_half_a_character_and_nan():
    run = watch.Run(new_run('{"event":"start","a":[NaN,{"b":-Infinity}]}\n'
                            '{"event":"sample","step":1,"text":"a \\ud83d"}\n'))
    said = watch.news(run, 0, 0)
    assert run.damaged is None and said["begin"]["a"] == [None, {"b": None}], said
    assert run.events[1]["text"] == "a \ufffd"


def test_watch_reads_what_the_trainer_writes():
    """Every line of a log is an event, whatever counts the updates."""
    train, prepare = [os.path.join(ROOT, os.environ.get(key, name)) for key, name in
                      [("TRAIN", "train_gpt2"), ("PREPARE", "prepare")]]
    if not os.path.exists(train):
        raise testing.Skip("train_gpt2 and prepare (make)")
    data, small = os.path.join(TMP, "data"), ["--layers", "1", "--heads", "1", "--channels", "8",
                                              "--seq-len", "8", "--eval-tokens", "64"]
    call = {"check": True, "stdout": subprocess.DEVNULL}
    subprocess.run([prepare, "tales", "--out", data, "--tokens", "1000"], **call)
    for flags in [["--steps", "4"], ["--tokens", "200"], ["--steps", "4", "--eval-every", "1",
                  "--sample-every", "2", "--save-every", "2"], ["--resume", "--steps", "6"]]:
        out = os.path.join(TMP, "trained")
        more = [] if "--resume" in flags else [*small, "--data", data, "--overwrite"]
        subprocess.run([train, *flags, *more, "--out", out], **call)
        with open(os.path.join(out, "log.jsonl"), encoding="utf-8") as f:
            written = [json.loads(line) for line in f]
        done = watched(out, "--csv")
        assert (done.returncode, done.stderr) == (0, ""), (flags, done.stderr)
        rows = list(csv.DictReader(io.StringIO(done.stdout)))
        assert [row["event"] for row in rows] == [e["event"] for e in written], flags
        assert watch.news(watch.Run(out), 0, 0)["damaged"] is None


def test_watch_sends_what_a_page_lacks():
    run = watch.Run(new_run(lines(START, step(1, float("nan")), step(2, 4.0))))
    first = watch.news(run, 0, 0)
    assert len(first["events"]) == 3 and first["begin"]["floor"] == 0.25
    json.loads(json.dumps(first), parse_constant=lambda word: 1 / 0)         # JSON has no NaN
    again = watch.news(run, run.version, 2)
    assert again["events"] == first["events"][2:] and again["known"] == 2
    assert watch.news(run, run.version - 1, 2)["known"] == 0


# ---------------------------------------------------------------- CSV

def watched(*args):
    return subprocess.run([sys.executable, WATCH, *args], capture_output=True, text=True,
                          check=False)


def test_watch_csv():
    """Each value of the log stands in its row, whatever a sample holds."""
    text = 'He said, "no,\nno"; ü'
    events = [START, step(1, 5.0, skipped=True), evaluation(1, 1.5), sample(1, text)]
    outs = [new_run(lines(*events)), new_run(lines(START, step(1, None)) + '{"event":"st')]
    done = watched(*outs, "--csv")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["run"] for row in rows] == [outs[0]] * 4 + [outs[1]] * 2
    assert [row["event"] for row in rows] == "start step eval sample start step".split()
    assert rows[3]["text"] == text and float(rows[2]["whole_floor"]) == 0.42
    assert rows[1]["skipped"] == "true" and rows[5]["loss"] == "" and rows[0]["steps"] == ""


def test_watch_errors():
    def refused(words, *args):
        done = watched(*args)
        assert (done.returncode, done.stdout) == (1, ""), (done.returncode, done.stdout)
        assert done.stderr.count("\n") == 1 and words in done.stderr, done.stderr

    run = new_run(lines(START))
    refused("log.jsonl: holds no event", os.path.join(TMP, "absent"), "--csv")
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run([sys.executable, WATCH, run, "--csv"], stdout=full, check=False,
                              stderr=subprocess.PIPE, text=True)
    assert done.stderr == "watch.py: stdout: no space left on device\n", done.stderr
    pipe = os.path.join(TMP, "pipe.jsonl")
    os.mkfifo(pipe)
    refused("pipe.jsonl: is not a file", pipe, "--csv")
    refused("--port 70000: expected", run, "--port", "70000")
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


def test_watch_answers_this_machine_alone():
    with Server(new_run(lines(START))) as server:
        for path, host, status in [("", None, 200), ("news", None, 200), ("log.jsonl", None, 404),
                                   ("../log.jsonl", None, 404), ("news", "elsewhere.org", 403)]:
            request = urllib.request.Request(server.address + path,
                                             headers={"Host": host} if host else {})
            try:
                with urllib.request.urlopen(request) as answer:
                    found = answer.status
            except urllib.error.HTTPError as error:
                found = error.code
            assert found == status, (path, host, found)


def text_of(tab, query):
    return tab.value(f"document.querySelector({query!r})?.textContent ?? ''")


def opened(server):
    if not browser.PROGRAM:
        raise testing.Skip("a browser (chromium)")
    tab = browser.Browser()
    tab.call("Page.navigate", url=server.address)
    tab.wait("location.protocol === 'http:' && document.readyState === 'complete'")
    return tab


def test_watch_page():
    """It waits, follows two runs, begins anew where one is replaced, and asks nothing of others."""
    small, large = os.path.join(TMP, "small"), new_run()
    picture = os.environ.get("PICTURE")
    with Server(small, large) as server:
        tab = opened(server)
        try:
            tab.wait("document.body.textContent.includes('waiting for its log')")
            os.mkdir(small)
            write(small, lines(START, *(step(n, 5 / n) for n in range(1, 21))))
            write(large, lines(START, step(1, 6.0), sample(1, "<img src=/x>a tale"),
                               evaluation(1, 1.75)))
            tab.wait("document.body.textContent.includes('1.7500, at best 0.420')")
            assert "2k tokens in 20 updates" in text_of(tab, ".run dl"), text_of(tab, ".run dl")
            assert "trains, 10 s left" in text_of(tab, ".run dl"), text_of(tab, ".run dl")
            assert "compute 8.0 s, 80%" in text_of(tab, ".parts"), text_of(tab, ".parts")
            assert tab.value("document.querySelectorAll('pre')[1].textContent") == (
                "<img src=/x>a tale"), "a sample is not shown as it is"
            words = text_of(tab, "#chart")
            assert "floor 0.250, 0.420" in words, words
            assert "200 tokens a second" in text_of(tab, ".run dl"), text_of(tab, ".run dl")
            assert tab.value("document.querySelectorAll('#chart circle').length") == 1
            tab.drag("x", "step")
            assert "updates" in text_of(tab, "#chart")
            write(large, lines(sample(2, "later"), evaluation(2, 1.5),
                               {"event": "end", "reason": "done", "step": 2, "tokens": 200}), "a")
            tab.wait("document.querySelectorAll('#chart circle').length === 2")
            assert "statedone" in tab.value("document.querySelectorAll('dl')[1].textContent")
            assert tab.value("document.querySelectorAll('pre')[1].textContent") == "later"
            write(small, lines(START, step(1, 5.25)))
            tab.wait("document.querySelector('.run dl').textContent.includes('5.250')")
            tab.size(360, 800, dark=True)
            assert tab.value("document.documentElement.scrollWidth") <= 360
            back = tab.value("getComputedStyle(document.body).backgroundColor")
            assert back == "rgb(21, 21, 21)", f"a dark page has the background {back}"
            elsewhere = [url for url in tab.requests if not url.startswith(server.address)]
            assert not elsewhere and not tab.errors, (elsewhere, tab.errors)
            if picture:
                tab.screenshot(picture, whole=True)
        finally:
            tab.close()


if __name__ == "__main__":
    try:
        sys.exit(testing.run_tests(globals(), sys.argv[1:]))
    finally:
        shutil.rmtree(TMP)
