#!/usr/bin/env python3
"""Builds the laboratory's page from committed results, without running anything: the question and
README's answer, a calculator, and what was measured against what is often believed.

    scripts/lab/page.py                      writes lab/page.html: one file that needs no network
"""
import argparse
import base64
import html
import json
import os
import re

import lab
import model
import report

HERE = os.path.dirname(os.path.abspath(__file__))
QUESTION = ("If the model fits on one GPU, and a larger batch only lowers the variance of the "
            "gradient, why train on many?")
SECTION = "## Why train on many GPUs, if the model fits on one?\n"

# (id, label, largest position); the positions' meaning is in calculator.js.
SLIDERS = [("loss", "Target: validation loss", 2), ("devices", "Devices", 12),
           ("batch", "Batch (leftmost: the best)", 16),
           ("near", "Bandwidth of a device within a machine", 120),
           ("near-latency", "Latency within a machine", 100),
           ("far", "Bandwidth of a device between machines", 120),
           ("far-latency", "Latency between machines", 100),
           ("per-machine", "Devices a machine", 7), ("price", "Price of a device-hour", 20)]
STEPS = {"loss": 0.01, "price": 0.1}
BEGIN = {"devices": 3}

STYLE = report.STYLE + """
body { max-width: 56rem; }
#controls { display: grid; grid-template-columns: repeat(auto-fill, minmax(19rem, 1fr));
            gap: .7rem 1.5rem; background: #f6f6f6; padding: .8rem; }
#controls label { display: block; font-size: .9rem; } #controls output { font-weight: 600; }
#controls input[type=range], #controls select { width: 100%; box-sizing: border-box; margin: 0; }
:focus-visible { outline: 3px solid #00518a; outline-offset: 2px; }
#headline { font-size: 1.35rem; font-weight: 600; margin: 1rem 0 .2rem; }
td, th { text-align: left; } #answer td { text-align: right; } table { width: 100%; }
.stack td:nth-child(2), .claims td, th { overflow-wrap: normal; }
@media (max-width: 40rem) {
    #controls { grid-template-columns: 1fr; }
    .stack thead { display: none; } .stack tr { display: block; border: 1px solid #ccc;
        margin-bottom: .5rem; } .stack td { display: block; border: 0; }
    .stack td:first-child { font-weight: 600; }
    .stack td:empty { display: none; }
    #results td:nth-child(3)::before { content: "range: "; } }
@media print {
    #controls { grid-template-columns: 1fr 1fr; } input[type=range] { display: none; }
    figure, tr, #controls { break-inside: avoid; }
    h2 { break-after: avoid; } img { max-height: 20cm; } }
"""


# ---------------------------------------------------------------- words of README

def answer_paragraphs(text):
    """README's answer: what follows its heading, up to the first figure or command."""
    if SECTION not in text:
        lab.fail(f"README.md: there is no section \"{SECTION[3:-1]}\"")
    return re.split(r"\n(?:!\[|```|## )", text.split(SECTION)[1])[0].strip().split("\n\n")


def inline(text):
    """Code, emphasis and links; a link keeps its words alone."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", html.escape(" ".join(text.split())))
    text = re.sub(r"`([^`]*)`", r"<code>\1</code>", text)
    return re.sub(r"\*\*([^*]*)\*\*", r"<strong>\1</strong>", text)


def block(text):
    """A paragraph or a table."""
    if not text.startswith("|"):
        return f"<p>{inline(text)}</p>"
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.split("\n")]
    cells = [("th" if i == 0 else "td", row) for i, row in enumerate(rows) if i != 1]
    return "<div class='scroll'><table>" + "".join(
        "<tr>" + "".join(f"<{tag}>{inline(cell)}</{tag}>" for cell in row) + "</tr>"
        for tag, row in cells) + "</table></div>"


# ---------------------------------------------------------------- the calculator

def controls(models):
    options = "".join(f"<option value='{i}'>{html.escape(m['name'])}</option>"
                      for i, m in enumerate(models))
    sliders = "".join(
        f"<label for='{name}'>{label}: <output id='{name}-shown' for='{name}'></output>"
        f"<input type='range' id='{name}' min='0' max='{most}' step='{STEPS.get(name, 1)}' "
        f"value='{BEGIN.get(name, 0)}'></label>" for name, label, most in SLIDERS)
    stages = "".join(f"<option>{stage}</option>" for stage in range(4))
    return (f"<form id='controls'><label for='model'>Model<select id='model'>{options}</select>"
            f"</label>{sliders}<label for='stage'>ZeRO stage<select id='stage'>{stages}</select>"
            "</label><label for='overlap'><input type='checkbox' id='overlap' checked> The "
            "exchange overlaps with the backward pass</label></form>")


def calculator(models):
    with open(os.path.join(HERE, "calculator.js"), encoding="utf-8") as f:
        code = f.read()
    data = json.dumps(models).replace("<", "\\u003c")
    return ("<noscript><p>The calculator needs JavaScript; the rest of the page does not."
            "</p></noscript><div id='calculator' hidden>"
            f"{controls(models)}<div role='status'><p id='headline'></p><p id='limit'></p></div>"
            "<table class='stack'><thead><tr><th>what</th><th>value</th><th>range</th>"
            "<th>where it comes from</th></tr></thead><tbody id='results'></tbody></table></div>"
            f"<script type='application/json' id='models'>{data}</script>"
            f"<script>\n{code}</script>")


# ---------------------------------------------------------------- claims and figures

def figure_words(text):
    """{file: alternative text} of the figures in the laboratory's README."""
    return {name: alt for alt, name in re.findall(r"!\[([^]]*)\]\(figures/([^)]*)\)", text)}


def claims_table(claims):
    esc = html.escape
    rows = "".join(
        f"<tr><td>{esc(c['belief'])}</td><td>{esc(c['measured'])}</td>"
        f"<td><a href='#{anchor(c)}'>{esc(experiment(c))}</a></td></tr>" for c in claims)
    return ("<table class='stack claims'><thead><tr><th>what somebody believes</th>"
            f"<th>what was measured</th><th>figure</th></tr></thead><tbody>{rows}</tbody></table>")


def anchor(claim):
    return "figure-" + claim["figure"].split(".")[0]


def experiment(claim):
    name = claim["experiment"]
    return f"Experiment {name}" if name.isdigit() else name


def picture(claim, words):
    with open(os.path.join(HERE, "figures", claim["figure"]), "rb") as f:
        data = base64.b64encode(f.read()).decode("ascii")
    return (f"<figure id='{anchor(claim)}'><img alt=\"{html.escape(words[claim['figure']])}\" "
            f"src='data:image/png;base64,{data}'><figcaption>{html.escape(experiment(claim))}: "
            f"{html.escape(claim['measured'])}</figcaption></figure>")


# ---------------------------------------------------------------- the page

def build(readme, lab_readme, results, models):
    words, claims = figure_words(lab_readme), results["claims"]
    return ("<!DOCTYPE html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
            "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
            "<title>Why train on many GPUs?</title>\n<link rel='icon' href='data:,'>\n"
            f"<style>{STYLE}</style>\n</head>\n<body>\n<h1>{QUESTION}</h1>\n<div id='answer'>\n"
            + "\n".join(block(text) for text in answer_paragraphs(readme))
            + "</div>\n<h2>What would it be for you?</h2>\n"
            "<p>Seconds to a loss = updates × seconds of an update. The law of updates is fitted "
            "to runs, or taken from papers where the name of a model says so; all times to a loss "
            "are modelled.</p>\n" + calculator(models)
            + f"\n<h2>Where the numbers come from</h2>\n<p>{html.escape(results['state'])}</p>\n"
            "<h2>Believed and measured</h2>\n" + claims_table(claims) + "\n"
            + "\n".join(picture(claim, words) for claim in claims) + "\n</body>\n</html>\n")


def read(*path):
    with open(os.path.join(lab.ROOT, *path), encoding="utf-8") as f:
        return f.read()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("--out", metavar="FILE", help="default: lab/page.html")
    out = parser.parse_args().out or os.path.join(lab.ROOT, "lab", "page.html")
    try:
        text = build(read("README.md"), read("scripts", "lab", "README.md"),
                     *model.read_results())
        os.makedirs(os.path.dirname(os.path.abspath(out)), exist_ok=True)
        report.write(out, text)
    except OSError as error:
        lab.fail(f"{error.filename}: {error.strerror}")
    print(f"{os.path.relpath(out)}: open it in a browser")


if __name__ == "__main__":
    main()
