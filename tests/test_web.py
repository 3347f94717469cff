#!/usr/bin/env python3
"""The trainer in a browser tab: the same bits in WebAssembly (node, and Chromium from the page) as
from gcc and clang; and the page's race and replay, driven as a reader drives them.

    tests/test_web.py [NAME...]
    LONG=1 tests/test_web.py       builds the module anew, too
    PICTURE=dev/web/race.png tests/test_web.py     no test: draws README's picture
"""
import json
import os
import sys
import time

import testing
from testing import PREPARE, ROOT, TRAIN
import browser
import kept
import race

TMP = testing.scratch()
PAGE = os.path.join(TMP, "page.html")
COMMON = "--data tales --lr-schedule constant --warmup-tokens 10240".split()
SIZES = [(60, "--layers 2 --heads 2 --channels 32 --seq-len 32 --micro-batch 16 --lr 4e-3"),
         (8, "--layers 2 --heads 2 --channels 64 --seq-len 256 --micro-batch 4 --lr 1e-2")]
NODE = """
const { trainGpt2 } = require(%r);
const [wasm, updates, ...flags] = process.argv.slice(1);
trainGpt2(require("fs").readFileSync(wasm), flags).then(trainer => {
  let loss = 0;
  for (let i = 0; i < updates; i++) loss = trainer.step();
  console.log(trainer.hash(), loss);
});
""" % os.path.join(ROOT, "dev", "web", "wasi.js")


def output(*command, **environment):
    return testing.run(*command, **environment).strip()


def in_node(wasm, updates, flags):
    """The hash of the weights and the last loss."""
    testing.need("node")
    return output("node", "-e", NODE, wasm, updates, *flags)


def test_web_bits_are_those_of_gcc_and_clang():
    """The committed module against a native program of today's source, at each size."""
    testing.need("clang")
    modules = [race.WASM]
    if os.environ.get("LONG"):
        modules.append(os.path.join(TMP, "anew.wasm"))
        output("dev/web/build.sh", modules[-1])
    for (updates, sizes), cc in zip(SIZES, ["gcc", "clang"]):
        flags = [*sizes.split(), *COMMON]
        hashes = {cc: output("dev/web/build.sh", "--hash", updates, *flags, CC=cc)}
        hashes.update((wasm, in_node(wasm, updates, flags).split()[0]) for wasm in modules)
        assert len(set(hashes.values())) == 1, hashes
        other = in_node(race.WASM, updates, [*flags, "--seed", "2"]).split()[0]
        assert other not in hashes.values(), "another seed has the same hash"


def test_web_trains_what_the_trainer_trains():
    """The loss of an update, against the ordinary build's on the same tales in files."""
    data, log = os.path.join(TMP, "tales"), os.path.join(TMP, "log.jsonl")
    testing.need(PREPARE, TRAIN)
    output(PREPARE, "tales", "--out", data, "--tokens", 3 << 20)
    for updates, sizes in SIZES:
        flags = [*sizes.split(), *COMMON]
        output(TRAIN, *flags, "--data", data, "--steps", updates, "--log", log,
               "--eval-every", 0, "--eval-tokens", 256, "--overwrite")
        with open(log, encoding="utf-8") as f:
            steps = [line for line in map(json.loads, f) if line["event"] == "step"]
        loss = float(in_node(race.WASM, updates, flags).split()[1])
        assert steps[-1]["step"] == updates and abs(steps[-1]["loss"] - loss) < 2e-4, (
            steps[-1], loss)


# ---------------------------------------------------------------- the page

def opened(*scripts):
    """The page in a browser; scripts run before its own."""
    tab = browser.Browser()
    if not os.path.exists(PAGE):
        output(sys.executable, "dev/web/page.py", "--out", PAGE)
    for script in scripts:
        tab.call("Page.addScriptToEvaluateOnNewDocument", source=script)
    tab.open(PAGE)
    return tab


def shown(tab, name):
    return tab.value(f"document.getElementById('{name}').textContent")


def against(tab, axis):
    """The lane that needs less on this axis, by the page's headline: A or B."""
    tab.value(f"document.querySelector('input[value={axis}]').click()")
    words = shown(tab, "race-headline")
    return words[0] if " reached " in words else words


def test_web_race():
    """The lanes' order on each axis is the laboratory's; sliders work; what the trainer refuses is
    said; the hash is that of the flags in the command beside it, which
    web_bits_are_those_of_gcc_and_clang runs with others; nothing is wider than 360 pixels."""
    points = {p["batch_tokens"]: p for p in kept.table(
        "02_knee", "points", size=race.SIZE, target_nats=race.TARGET)}
    with opened() as tab:
        tab.wait("document.getElementById('race-headline').textContent.includes('loss of 2.')", 200)
        for axis, column in [("tokens", "tokens_median"), ("updates", "updates_median")]:
            a, b = (points[batch][column] for _, batch, _ in race.LANES)
            assert against(tab, axis) == "AB"[a > b], (axis, shown(tab, "race-headline"))
        assert against(tab, "one") == "A", shown(tab, "race-headline")
        assert against(tab, "many") == "B", shown(tab, "race-headline")
        tab.drag("link", 10)                         # 3 Mbit/s: slower than one device
        assert against(tab, "many") == "A", shown(tab, "race-headline")
        tab.wait("document.getElementById('hash').textContent.length === 16", 200)
        command, found = shown(tab, "native").split(), shown(tab, "hash")
        tab.drag("batch-0", 0)
        tab.wait("document.getElementById('state-0').textContent.includes('update 1')", 60)
        tab.value("""(() => { const at = document.getElementById('flags'); at.value = '--heads 5';
                      at.dispatchEvent(new Event('change')); })()""")
        tab.wait("document.getElementById('state-1').textContent.startsWith('train_gpt2: --heads')")
        tab.size(360, 800)
        assert tab.value("document.documentElement.scrollWidth") <= 360
    assert command[:2] == ["dev/web/build.sh", "--hash"], command
    again = in_node(race.WASM, command[2], command[3:]).split()[0]
    assert again == found, f"the page shows {found}, {' '.join(command)} is {again}"


def draw_picture(path, frames=24, seconds=1.5):
    """README's picture that moves, an animated PNG; it begins with its end, for who sees no more."""
    from PIL import Image
    shots = []
    with opened() as tab:
        tab.size(800, 836)
        for _ in range(frames):
            time.sleep(seconds)
            tab.screenshot(path)
            with Image.open(path) as shot:
                shots.append(shot.convert("RGB"))
    palette = shots[-1].quantize(32, method=Image.Quantize.MAXCOVERAGE)
    shots = [shot.quantize(palette=palette, dither=Image.Dither.NONE) for shot in shots]
    shots[-1].save(path, save_all=True, append_images=shots, duration=400)


def test_web_replay():
    """At the end of the replay every lane stands where the laboratory's table has it."""
    with opened() as tab:
        lanes = kept.table("10_replayed", "lanes")
        for link in dict.fromkeys(row["link"] for row in lanes):
            tab.drag("replay-link", link)
            for i, n in enumerate([1, 8, 64]):
                row, = kept.only(lanes, link=link, workers=n)
                said = shown(tab, f"replay-name-{i}")
                assert said.endswith(" s, there"), said
                seconds = float(said.split(": ")[1].split(" s")[0].replace("k", "e3"))
                assert abs(seconds / row["seconds_to_target"] - 1) < 0.01, (said, row)
        tab.value("document.getElementById('replay-play').click()")
        tab.wait("!document.getElementById('replay-name-0').textContent.includes('there')", 10)


def test_web_without_simd():
    """A browser that refuses the module shows recorded curves in place of the race."""
    with opened("WebAssembly.compile = () => Promise.reject(new Error('no SIMD'));") as tab:
        tab.wait("!document.getElementById('race-recorded').hidden")
        assert tab.value("document.querySelectorAll('#race-recorded img').length") > 0
        assert tab.value("document.getElementById('race-live').hidden")


if __name__ == "__main__":
    if os.environ.get("PICTURE"):
        sys.exit(draw_picture(os.environ["PICTURE"]))
    sys.exit(testing.run_tests(globals(), sys.argv[1:]))
