#!/usr/bin/env python3
"""Builds the laboratory's page from committed results, without running anything: the question,
README's answer, the race, sixty-four workers replayed, a calculator, and what was measured against
what is often believed.

    dev/web/page.py                      writes lab/page.html: one file that needs no network
"""
import argparse
import base64
import html
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(1, os.path.join(os.path.dirname(os.path.dirname(HERE)), "scripts", "lab",
                                "experiments"))
import claims
import kept
import lab
import race
import report

QUESTION = ("If the model fits on one GPU, and a larger batch only lowers the variance of the "
            "gradient, why train on many?")
RECORDED = "10_front.png", "Seconds to a loss against tokens, for 1 to 64 workers."
FIRST = 5                              # beliefs that are not folded
SECTION = "## Why train on many GPUs, if the model fits on one?\n"

# (id, label, largest position, step); the positions' meaning is in calculator.js.
SLIDERS = [("tokens", "Tokens of the run", 160, 1), ("devices", "Devices", 12, 1),
           ("batch", "Sequences per device and update", 16, 1),
           ("near", "Bandwidth of a device within a machine", 120, 1),
           ("near-latency", "Latency within a machine", 100, 1),
           ("far", "Bandwidth of a device between machines", 120, 1),
           ("far-latency", "Latency between machines", 100, 1),
           ("per-machine", "Devices per machine", 7, 1), ("price", "Price of a device-hour in $", 20, 0.1)]
GPUS = ["h100", "h200", "b200", "a100", "4090", "l40s"]      # of plan_gpus in dev/plan/plan.c


# Where the controls begin: H100s with NVLink, and the laboratory's cores with experiment 5's link.
USUAL = {"devices": 3, "batch": 6, "near": 113, "near-latency": 20, "far": 94, "far-latency": 34,
         "per-machine": 3, "price": 2.5, "zero": 1}
CORES = dict(USUAL, devices=1, batch=4, near=95, far=62, price=0.1, zero=0,
             **{"near-latency": 64, "far-latency": 54})


def model(name, flags, T, tokens, usual=USUAL, **machine):
    """Of the calculator; tokens: the slider's position, 20 tokens a parameter."""
    return {"name": name, "flags": [*flags.split(), "--seq-len", T], "T": T,
            "controls": dict(usual, tokens=tokens), **machine}


def large(layers, channels):
    return f"--layers {layers} --heads {channels // 128} --channels {channels} --recompute block"


def small(name):
    """On cores of experiment 4; their TFLOP/s: FLOP a token over seconds of one."""
    layers, heads, channels = lab.MODELS[name]
    line, = kept.table("04_one_device", "line", model=name, threads=1)
    flop = 6 * (12 * layers * channels ** 2 + 257 * channels) + 12 * layers * channels * 32
    return model(f"{name}, on a CPU core each",
                 f"--data tales --layers {layers} --heads {heads} --channels {channels}",
                 32, 20, CORES, machine=f"here@{1e-12 * flop / line['tau']:.3g}")


MODELS = [model("GPT-2 124M", "--init d12", 1024, 88), model("GPT-2 355M", "--init d24", 1024, 97),
          model("GPT-2 774M", "--init d36", 1024, 104),
          model("GPT-2 1.6B", "--init d48", 1024, 110, dict(USUAL, batch=7)),      # as llm.c's
          model("6.7B, with recomputation", large(32, 4096), 2048, 122),
          model("65B, with recomputation", large(80, 8192), 2048, 142),
          model("175B, with recomputation", large(96, 12288), 2048, 151),
          *map(small, lab.MODELS)]

# On top of the lessons' pages.css.
STYLE = race.STYLE + """
body { max-width: 56rem; overflow-wrap: anywhere; } figure { margin: 0; }
figcaption { font-size: .9rem; color: var(--dim); } .scroll { overflow-wrap: normal; }
pre { width: auto; max-width: 100%; } #plan { white-space: pre; }
#controls { display: grid; grid-template-columns: repeat(auto-fill, minmax(19rem, 1fr));
            gap: .7rem 1.5rem; background: var(--soft); padding: .8rem; }
#controls label { display: block; font-size: .9rem; } #controls output { font-weight: 600; }
#controls input[type=range], #controls select { width: 100%; box-sizing: border-box; margin: 0; }
#headline { font-size: 1.35rem; font-weight: 600; margin: 1rem 0 .2rem; }
#answer td { text-align: right; } table { width: 100%; font-variant-numeric: tabular-nums; }
.stack td:nth-child(2), .claims td, th { overflow-wrap: normal; }
@media (max-width: 40rem) {
    h1 { font-size: 1.3rem; } #answer table { font-size: .7rem; } #answer td { padding: .2rem; }
    #controls { grid-template-columns: 1fr; }
    .stack thead { display: none; } .stack tr { display: block; margin-bottom: .5rem;
        border: 1px solid var(--line); } .stack td { display: block; border: 0; }
    .stack td:first-child { font-weight: 600; }
    .stack td:empty { display: none; } }
@media print {
    #controls { grid-template-columns: 1fr 1fr; break-inside: avoid; }
    input[type=range] { display: none; } img { max-height: 20cm; } }
"""


# ---------------------------------------------------------------- words of README

def answer_of(readme):
    """(paragraphs, [(words, file)] of the figures): README's answer is what follows its heading, up
    to the first figure or command."""
    section = readme.split(SECTION)[1].split("\n## ")[0]
    return (re.split(r"\n(?:!\[|```)", section)[0].strip().split("\n\n"),
            re.findall(r"!\[([^]]*)\]\(scripts/lab/results/figures/([^)]*)\)", section))


def inline(text):
    """Code, emphasis and links; a link keeps its words alone."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", html.escape(" ".join(text.split())))
    text = re.sub(r"`([^`]*)`", r"<code>\1</code>", text)
    text = re.sub(r"\*\*([^*]*)\*\*", r"<strong>\1</strong>", text)
    return re.sub(r"\*([^*]+)\*", r"<em>\1</em>", text)


def block(text):
    """A paragraph or a table."""
    if not text.startswith("|"):
        return f"<p>{inline(text)}</p>"
    head, _, *rows = [line.strip("|").split("|") for line in text.split("\n")]
    return f"<div class='scroll'>{report.table(map(inline, head), rows, show=inline)}</div>"


# ---------------------------------------------------------------- the calculator

def select(name, label, options):
    return (f"<label for='{name}'>{label}<select id='{name}'>" + "".join(
        f"<option value='{value}'>{html.escape(str(words))}</option>" for value, words in options)
        + "</select></label>")


def controls():
    sliders = "".join(race.slider(name, label, most, step=step)
                      for name, label, most, step in SLIDERS)
    return ("<form id='controls'>"
            + select("model", "Model", enumerate(of["name"] for of in MODELS))
            + select("gpu", "GPU", [(name, name.upper()) for name in GPUS]) + sliders
            + select("zero", "ZeRO stage", zip(range(4), range(4)))
            + "<label for='overlap'><input type='checkbox' id='overlap' checked> The "
            "exchange overlaps with computation</label></form>")


def calculator():
    return ("<p id='calculator-why'>The calculator needs JavaScript, and WebAssembly with SIMD; "
            f"the rest of the page does not.</p><div id='calculator' hidden>{controls()}"
            "<div role='status'><p id='headline'></p><p id='limit'></p></div>"
            "<pre id='plan' class='scroll'></pre><details><summary>Run this yourself"
            "</summary><p class='native'><code id='command'></code></p></details></div>"
            f"{race.embedded('models', MODELS)}<script>\n{race.read('calculator.js')}</script>\n")


# ---------------------------------------------------------------- claims and figures

def picture(file, words, caption):
    with open(os.path.join(kept.FIGURES, file), "rb") as f:
        data = base64.b64encode(f.read()).decode("ascii")
    return (f"<figure id='{anchor(file)}'><img alt=\"{html.escape(words)}\" "
            f"src='data:image/png;base64,{data}'><figcaption>{html.escape(caption)}</figcaption>"
            "</figure>\n")


def anchor(file):
    return "figure-" + file.split(".")[0]


def figure_of(claim):
    """(result, figure) of a claim; None without a figure."""
    found = claim.label and kept.read(claim.label)
    return next(((found, figure) for figure in found["figures"]
                 if figure["name"] == claim.figure), None) if found else None


def source(claim):
    """Where a claim's number comes from: a test, or an experiment and how its prediction did."""
    if not claim.label:
        return f"<code>{claim.figure}</code>"
    name, shown = f"Experiment {int(claim.label[:2])}", figure_of(claim)
    if shown:
        name = f"<a href='#{anchor(kept.figure_file(*shown))}'>{name}</a>"
    return f"{name}, verdict: {kept.verdict(kept.read(claim.label))}"


def claims_table(chosen):
    return report.table(["what is often believed", "what was measured",
                         "figure, and how the experiment's own prediction did"],
                        [[html.escape(c.belief), html.escape(c.measured()), source(c)]
                         for c in chosen], "stack claims", str)


def claim_pictures(above):
    """The figures that the table names, each once; those in `above` stand on the page already."""
    of = {kept.figure_file(*found): found for found in map(figure_of, claims.CLAIMS) if found}
    return "".join(picture(file, figure["alt"], f"Experiment {found['number']}: {figure['caption']}")
                   for file, (found, figure) in of.items() if file not in above)


def experiments_table():
    """Question and verdict of every experiment, with the machine it ran on."""
    every = [kept.read(label) for label, _ in report.experiments()]
    return report.table(["experiment", "predicted", "measured", "machine"], [(
        f"{found['number']}. {found['title']}", found["prediction"],
        f"{kept.verdict(found)}: {found['why']}", kept.machine(found)) for found in every], "stack")


# ---------------------------------------------------------------- the page

def folded(summary, content):
    return f"<details><summary>{summary}</summary>\n{content}</details>\n"


def build(readme):
    answer, figures = answer_of(readme)
    short = next(i for i, text in enumerate(answer) if text.startswith("**"))
    return ("<!DOCTYPE html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
            "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
            "<title>Why train on many GPUs?</title>\n"
            f"<meta name='description' content='{QUESTION}'>\n<link rel='icon' href='data:,'>\n"
            f"<style>{race.read('../lessons/pages.css')}{STYLE}</style>\n</head>\n<body>\n<h1>{QUESTION}</h1>\n"
            + block(answer[short])
            + f"<script>\n{race.read('chart.js')}</script>\n"
            + race.race(picture(*RECORDED, RECORDED[1]))
            + "<h2>The answer</h2>\n<div id='answer'>\n"
            + "\n".join(block(text) for text in answer) + "</div>\n"
            + "".join(picture(file, words, words) for words, file in figures)
            + race.replay()
            + "<h2>What would it be for you?</h2>\n"
            "<p>What <code>train_gpt2 --plan</code> says of a run: the trainer that learns above "
            "computes it here. Memory is counted; times are modelled, from the speed that a device "
            "is assumed to reach.</p>\n" + calculator()
            + "<h2>Believed and measured</h2>\n" + claims_table(claims.CLAIMS[:FIRST])
            + folded(f"{len(claims.CLAIMS) - FIRST} more, and their figures",
                     claims_table(claims.CLAIMS[FIRST:])
                     + claim_pictures([RECORDED[0], *(file for _, file in figures)]))
            + folded("Every experiment, and what it predicted", experiments_table())
            + "</body>\n</html>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("--out", metavar="FILE", help="default: lab/page.html")
    out = parser.parse_args().out or os.path.join(lab.ROOT, "lab", "page.html")
    try:
        text = build(race.read("../../README.md"))
        os.makedirs(os.path.dirname(os.path.abspath(out)), exist_ok=True)
        with open(out, "w", encoding="utf-8") as f:
            f.write(text)
    except OSError as error:
        lab.fail(f"{error.filename}: {error.strerror}")
    print(f"{os.path.relpath(out)}: open it in a browser")


if __name__ == "__main__":
    main()
