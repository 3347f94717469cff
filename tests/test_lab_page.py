#!/usr/bin/env python3
"""The laboratory's page: what is committed, and its calculator in a browser without a window,
against what the program prints for the same flags."""
import json
import os
import re
import subprocess
import sys

import testing
from testing import PREPARE, ROOT, TRAIN
import browser
import kept
import page

TMP = testing.scratch()


# ---- what is committed ----

def test_page_static():
    """`make pages` writes it; it loads nothing, is of at most 800 kB, and each of its links leads
    somewhere."""
    out = os.path.join(TMP, "made", "page.html")
    done = subprocess.run([sys.executable, testing.lab_path("page.py"), "--out", out],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr
    with open(out, encoding="utf-8") as f:
        text = f.read()
    assert text == page.build(testing.read("README.md")), "page.py writes another page"
    assert len(text.encode()) <= 800_000, len(text.encode())
    words = re.sub(r"base64,[^']*", "", text)
    assert "http" not in words and "url(" not in words and "import" not in words
    targets = re.findall(r"id='(figure-[^']*)'", words)
    assert len(targets) == len(set(targets)) >= 8, targets
    assert set(re.findall(r"href='#([^']*)'", words)) <= set(targets)


def test_page_measured():
    """The critical batches in plan.c are the kept ones."""
    with open(os.path.join(ROOT, "dev", "plan", "plan.c"), encoding="utf-8") as f:
        rows = re.search(r"plan_measured\[\] = \{(.*?)\n\};", f.read(), re.S).group(1)
    found = [tuple(map(float, pair.split(","))) for pair in re.findall(r"\{ ([0-9., ]+) \}", rows)]
    assert found == [(row["trained_tokens"], round(row["b_crit"], 2)) for row in
                     kept.table("02_local", "local") if not row["refused"] and row["seq_len"] == 32]


# ---- in a browser ----

# Sets the controls of a question, and returns the command and the plan that the page then shows.
DRIVE = """(async () => {
    const all = [...document.querySelectorAll("#controls input, #controls select")];
    const at = id => document.getElementById(id), seen = [];
    const set = (control, value) => new Promise(done => {
        new MutationObserver((_, observer) => { observer.disconnect(); done(); })
            .observe(at("command"), { childList: true });
        if (control.type === "checkbox") control.checked = value; else control.value = value;
        control.dispatchEvent(new Event("input", { bubbles: true }));
    });
    for (const [model, others] of ASKED) {
        await set(at("model"), model);
        for (const [id, value] of Object.entries(others)) await set(at(id), value);
        seen.push(["command", "plan", "headline"].map(id => at(id).textContent));
    }
    return seen;
})()"""

# (model, {control: position}); what is not named is the model's own.
ASKED = ([(model, {}) for model in range(10)] + [
    (0, {"devices": 0, "overlap": False}), (0, {"devices": 6, "near": 0, "gpu": "4090"}),
    (3, {"gpu": "l40s", "devices": 5, "far": 20, "zero": 2}),
    (3, {"devices": 12, "far-latency": 100}), (4, {"devices": 6, "zero": 3, "tokens": 160}),
    (5, {"devices": 9, "zero": 3, "per-machine": 5}), (6, {"devices": 12, "zero": 3, "price": 0})])
# The end of the fourth one's command; it would cost $577.
FLAGS = ("--init d48 --seq-len 1024 --micro-batch 16 --batch-tokens 1048576 --tokens 32000000000 "
         "--zero 1 --plan-gpu h100,8,450000MB/s+1us:8+50000MB/s+5us,2.5")


def printed(command):
    """What the program prints."""
    done = subprocess.run([TRAIN, *command.split()[1:]], cwd=TMP, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


def without_memory(text):
    """Another build of the CPU's trainer allocates other buffers, and a browser does not know how
    much memory is free."""
    text = re.sub(r"^memory.*?(?=^time)", "", text, flags=re.M | re.S)
    return re.sub(r"^missing   the memory of this machine.*\n", "", text, flags=re.M)


def test_page_calculator():
    """The plans are the program's, to the letter; nothing on the console or from the network,
    nothing wider than a phone."""
    testing.need(TRAIN, PREPARE)
    testing.run(PREPARE, "tales", "--out", os.path.join(TMP, "tales"), "--tokens", 20000)
    path = os.path.join(TMP, "page.html")
    with open(path, "w", encoding="utf-8") as f:
        f.write(page.build(testing.read("README.md")))
    with browser.Browser() as tab:
        tab.size(360, 740)
        tab.open(path)
        tab.wait("document.getElementById('plan').textContent")
        seen = tab.value(DRIVE.replace("ASKED", json.dumps(ASKED)))
        assert tab.value("document.documentElement.scrollWidth") <= 360
    assert len(seen) == len(ASKED) == len({command for command, _, _ in seen}), seen
    assert seen[3][0].endswith(FLAGS) and seen[3][2].endswith("1.2 days, which cost $577."), seen[3]
    assert "which cost" not in seen[-1][2], seen[-1]
    for command, text, words in seen:
        wanted = printed(command)
        if "here@" in command:
            text, wanted = without_memory(text), without_memory(wanted)
        assert text == wanted and "time" in text, f"{command}\n{text}\n{wanted}"
        assert ("does NOT fit" in text) == ("does not fit" in words), (words, text)
        assert not re.search("NaN|undefined|Infinity|null", words), words


if __name__ == "__main__":
    sys.exit(testing.run_tests(globals(), sys.argv[1:]))
