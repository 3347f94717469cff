"""The page's race and its replay: markup, and what the scripts in race.js and replay.js read, from
the laboratory's committed tables."""
import base64
import gzip
import html
import json
import os

import kept
import lab

HERE = os.path.dirname(os.path.abspath(__file__))
WASM = os.path.join(HERE, "train_gpt2.wasm")

# The model of the race: the laboratory's smallest, with experiment 2's rates to a loss of 2.
SIZE, TARGET, T = "35k", 2, 32
WARMUP = 60                  # updates; with 20, as in experiment 2, the loss of B jumps up once
MOST = 3_000_000                                     # tokens of a run
HASH_AT = 100                                        # updates
LANES = [("first", 512, 0), ("second", 2048, 2)]      # batch and log2 devices, when the page opens
LINKS = 121                                          # positions; 10^(i/20) Mbit/s, then no cost

STYLE = """
:root { --first: #0072b2; --second: #c04f00; --third: #00795a; }
@media (prefers-color-scheme: dark) {
    :root { --first: #5bb4e8; --second: #ff9a52; --third: #4cc9a2; } }
.chart { width: 100%; height: 20rem; font: 12px system-ui, sans-serif; }
.chart text { fill: currentColor; } .chart .grid { stroke: var(--line); fill: none; }
.chart .level { stroke: currentColor; stroke-dasharray: 5 4; fill: none; }
.lanes { display: grid; grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); gap: 1rem; }
.lane { border-top: .3rem solid var(--first); padding-top: .3rem; min-width: 0; }
.lane.second { border-color: var(--second); } .lane.third { border-color: var(--third); }
.lane h3, .lane p { margin: .3rem 0; }
.lane label, .shared label { display: block; font-size: .9rem; }
.lane input, .shared input[type=range] { width: 100%; margin: 0; }
.lane pre { white-space: pre-wrap; overflow-wrap: anywhere; height: 7.5rem; overflow: hidden;
            background: var(--soft); padding: .4rem; margin: .3rem 0; font-size: .85rem; }
.axes { border: 0; padding: 0; margin: .5rem 0; display: flex; flex-wrap: wrap; gap: .3rem 1rem; }
.shared { display: grid; grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); gap: 1rem; }
#race-headline { font-size: 1.2rem; font-weight: 600; margin: .4rem 0 0; min-height: 3.9rem; }
#race-meaning { margin: 0 0 .4rem; } .native { overflow-wrap: anywhere; }
"""


def read(name):
    """A file beside this one."""
    with open(os.path.join(HERE, name), encoding="utf-8") as f:
        return f.read()


def embedded(name, data):
    text = json.dumps(data).replace("<", "\\u003c")
    return f"<script type='application/json' id='{name}'>{text}</script>\n"


# ---------------------------------------------------------------- the race

def batches():
    """Each batch that experiment 2 tuned for this model, with its flags."""
    found = sorted(int(row["batch_tokens"]) for row in kept.table(
        "02_knee", "points", size=SIZE, target_nats=TARGET))
    return [{"batch": batch, "flags": [
        "--micro-batch", str(min(batch // T, 16)), "--batch-tokens", str(batch),
        "--lr", f"{kept.best_rate(SIZE, TARGET, batch):g}", "--warmup-tokens", str(WARMUP * batch),
        "--beta2", f"{lab.half_life_beta2(batch):.7g}"]} for batch in found]


def race_data():
    line, = kept.table("04_one_device", "line", model=SIZE, threads=1)
    return {"T": T, "most": MOST, "hashAt": HASH_AT, "batches": batches(),
            "flags": ["--data", "tales", *map(str, lab.model(SIZE, T)), "--lr-schedule",
                      "constant", "--tokens", str(MOST)],
            "clock": {"t_0": line["t_0"], "tau": line["tau"],
                      "messages": lab.MODELS[SIZE][0] + 3, "bytes": 4 * line["parameters"]}}


def slider(name, label, most, value=0, step=1):
    return (f"<label for='{name}'>{label}: <output id='{name}-shown' for='{name}'></output>"
            f"<input type='range' id='{name}' min='0' max='{most}' step='{step}' value='{value}'>"
            "</label>")


def lane(i, data):
    colour, batch, devices = LANES[i]
    sizes = [of["batch"] for of in data["batches"]]
    return (f"<div class='lane {colour}'><h3 id='title-{i}'></h3>"
            + slider(f"batch-{i}", "Batch size", len(sizes) - 1, sizes.index(batch))
            + slider(f"devices-{i}", "Devices", 6, devices)
            + f"<p id='state-{i}'></p><pre id='text-{i}' aria-label='what this model writes'></pre>"
            "</div>")


def axes():
    choices = [("many", "wall-clock, on its devices"), ("one", "wall-clock, on one device"),
               ("updates", "updates"), ("tokens", "tokens")]
    return "<fieldset class='axes'><legend>Validation loss against</legend>" + "".join(
        f"<label><input type='radio' name='axis' value='{value}'{' checked' * (i == 0)}> {words}"
        "</label>" for i, (value, words) in enumerate(choices)) + "</fieldset>"


def race(recorded):
    """The section; `recorded`: what stands there where the trainer cannot run."""
    data = race_data()
    with open(WASM, "rb") as f:
        wasm = base64.b64encode(gzip.compress(f.read(), 9, mtime=0)).decode("ascii")
    shared = ("<div class='shared'>" + slider("link", "Link between devices", LINKS, LINKS)
              + slider("latency", "Latency of a message", 12, 4) + "</div>")
    return ("<div id='race-live'>"
            "<p>Two GPT-2s of 35 thousand parameters are learning to write tales in this tab: "
            "<code>train_gpt2.c</code>, compiled for the browser. A token is a byte. B has the larger "
            "batch, whose gradient is less noisy: it needs fewer updates. And it has more devices, "
            "which share each batch.</p>"
            f"{axes()}<p id='race-headline' role='status'></p><p id='race-meaning'></p>"
            "<svg class='chart' id='race-chart' role='img' aria-label='validation loss of both "
            "runs against the chosen axis'></svg>"
            f"<div class='lanes'>{lane(0, data)}{lane(1, data)}</div>{shared}"
            "<p><button id='pause' aria-pressed='false'>Pause</button> Training is real; the clock "
            "is calculated: an update takes what we measured on one core for each device's share of "
            "the batch, and then an all-reduce of the gradients over the link. No model can reach "
            "a loss below <output id='floor'></output>, the entropy of the tales.</p>"
            "<details><summary>Run this yourself</summary><p class='native'><code "
            "id='native'></code><br>prints <code id='hash'></code>, the hash of all weights: the "
            "same bits as in run B.</p><p><label for='flags'>Other flags for run B, such as "
            "<code>--lr 0.016</code> or <code>--layers 1</code> (the clock stays that of the model "
            "above): <input id='flags' size='30'></label></p><p>The module contains parts of "
            "wasi-libc (Apache 2.0 with LLVM exception, MIT and BSD licences).</p></details></div>"
            "<div id='race-recorded' hidden><p>This browser cannot run the trainer (WebAssembly "
            f"with SIMD), so these are recorded curves.</p>{recorded}</div>"
            f"<script type='text/plain' id='wasm'>{wasm}</script>"
            f"<script id='wasi'>\n{read('wasi.js')}</script>"
            "<script>const unpacked = unpackGpt2(document.getElementById('wasm').textContent);"
            f"</script><script type='text/plain' id='worker'>\n{read('worker.js')}"
            f"</script>{embedded('race-data', data)}<script>\n{read('race.js')}</script>\n")


# ---------------------------------------------------------------- sixty-four workers

def replay_data():
    """A curve is one seed's run, stretched to end after the mean of updates."""
    lanes = kept.table("10_replayed", "lanes")
    target = lanes[0]["target_nats"]
    used = {row["batch_tokens"]: row["updates"] for row in lanes}
    curves = kept.grouped(kept.table("02_front", "curves"), "batch_tokens")
    return {"target": target,
            "lanes": [{"link": row["link"], "workers": int(row["workers"]),
                       "batch": int(row["batch_tokens"]), "update": row["update_seconds"],
                       "seconds": row["seconds_to_target"]} for row in lanes],
            "curves": {batch: [[row["step"] / of[-1]["step"] * used[batch],
                                round(row["val_loss"], 4)] for row in of]
                       for (batch,), of in curves.items() if batch in used},
            "samples": kept.read("10_samples")["samples"]}


def replay():
    data = replay_data()
    links = "".join(f"<option>{html.escape(name)}</option>"
                    for name in dict.fromkeys(of["link"] for of in data["lanes"]))
    workers = "".join(f"<option{' selected' * (n == 64)}>{n}</option>"
                      for n in sorted({of["workers"] for of in data["lanes"]}))
    shown = "".join(f"<div class='lane {colour}'><p id='replay-name-{i}'></p>"
                    f"<pre id='replay-text-{i}'></pre></div>"
                    for i, colour in enumerate(["first", "second", "third"]))
    return ("<details id='replay'><summary>Sixty-four workers, replayed</summary><p>A larger model "
            "(0.8 million parameters) on 1, 8 and as many workers as you choose, each number at "
            "the batch size that is fastest for it. Losses and samples are of recorded runs; the clock "
            "is calculated, and agreed with two real ranks within 10% (experiment 10).</p>"
            f"<p><label for='replay-link'>Link <select id='replay-link'>{links}</select></label> "
            f"<label for='replay-workers'>Workers of the third run "
            f"<select id='replay-workers'>{workers}</select></label> "
            "<button id='replay-play'>Play</button></p>"
            "<svg class='chart' id='replay-chart' role='img' aria-label='validation loss against "
            "seconds of a virtual clock, a line for each number of workers'></svg>"
            f"<div class='lanes'>{shown}</div>{embedded('replay-data', data)}"
            f"<script>\n{read('replay.js')}</script></details>\n")
