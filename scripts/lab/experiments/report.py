#!/usr/bin/env python3
"""Runs every experiment and puts the results on one page, OUT/report.html; with --quick those four
that answer the laboratory's question. Other flags than --out are the experiments' own; one that
fails does not stop the others.

    scripts/lab/experiments/report.py --quick
"""
import argparse
import html
import os
import subprocess
import sys

import kept
import lab

EXPERIMENTS = os.path.dirname(os.path.abspath(__file__))


# What a loss takes, on one device, on two, on many; and minutes on two cores.
QUICK = {"02_front": 3, "04_one_device": 2, "05_time": 3, "10_replayed": 1}


def experiments(flags=()):
    """[(label, path)] of the scripts NN_name.py, in order."""
    return [(name[:-3], os.path.join(EXPERIMENTS, name))
            for name in sorted(os.listdir(EXPERIMENTS))
            if name[:2].isdigit() and ("--quick" not in flags or name[:-3] in QUICK)]


def run(path, result, flags):
    """Its result; None if it fails. What it prints passes through."""
    if os.path.exists(result):                               # none of an earlier run stands in
        os.remove(result)
    try:
        subprocess.call([sys.executable, path, *flags], preexec_fn=lab.end_with_parent)
    except KeyboardInterrupt:
        lab.fail("stopped; run the same command again to continue")
    return kept.load(result)


def run_all(out, flags):
    """{label: result, or None}; says how long the rest takes."""
    found, every = {}, experiments(flags)
    for i, (label, path) in enumerate(every):
        minutes = sum(QUICK.get(rest, 0) for rest, _ in every[i:])
        print(f"\n== {label}, {i + 1} of {len(every)}" +
              (f": about {minutes} minutes to go" if "--quick" in flags else ""), flush=True)
        found[label] = run(path, os.path.join(out, label, "result.json"), ["--out", out, *flags])
    return found


# ---------------------------------------------------------------- the page

ANSWER = ["batch size (tokens)", "updates", "million tokens", "seconds on 1 worker", "on 8",
          "on 16"]


def answer(records):
    """Rows of the answer's table, with its head: a loss by the batch, of runs and seconds here."""
    of = records.get("10_replayed")
    rows = of["tables"]["batches"]["rows"] if of else []
    return [ANSWER] * bool(rows) + [
        [f"{batch:,}", f"{updates:,.0f}", f"{tokens / 1e6:.2f}",
         *(f"{s:.1f}" if s else "–" for s in seconds)]
        for batch, updates, tokens, *seconds in rows]


def page(records):
    """records: {label: result}"""
    told = answer(records)
    overview = [[of["number"], of["title"], kept.verdict(of)] for of in records.values()]
    return ("<!DOCTYPE html>\n<meta charset='utf-8'>\n<title>The batch-size laboratory</title>\n"
            "<style>body { font: 16px/1.5 sans-serif; max-width: 50rem; margin: auto; }\n"
            "img { max-width: 100%; } td { padding: 0 .5rem; text-align: left; }</style>\n"
            "<h1>The batch-size laboratory</h1>\n" + (told and table(told[0], told[1:]) + "<p>"
            "Experiment 10: updates are measured, seconds calculated for a link of 10 Gbit/s.</p>\n"
            or "") + table([], overview)
            + "\n".join(section(label, of) for label, of in records.items()) + "\n")


def section(label, of):
    """Question, prediction, verdict, figures and numbers; the other tables are in result.json."""
    esc = html.escape
    figures = "".join(f"<p><img alt=\"{esc(figure['alt'])}\" src='{label}/{figure['name']}.png'>"
                      f"<br>{esc(figure['caption'])}</p>\n" for figure in of["figures"])
    return (f"<h2>{of['number']}. {esc(of['title'])}</h2>\n"
            f"<p><strong>Question.</strong> {esc(of['question'])}</p>\n"
            f"<p><strong>Predicted.</strong> {esc(of['prediction'])}</p>\n"
            f"<p><strong>{esc(kept.verdict(of).capitalize())}</strong>: {esc(of['why'])}</p>\n"
            + figures + table([], [["" if x is None else kept.told(x) for x in row] for row in
                                   of["tables"].get("numbers", {"rows": []})["rows"]])
            + f"<p>{esc(' '.join(of['settings']))}</p><p>{esc(of['machine'])}; "
            f"<code>{esc(of['command'])}</code></p>")


def table(head, rows, kind="", show=lambda cell: html.escape(str(cell))):
    """HTML. show: makes it of a cell."""
    return (f"<table class='{kind}'><thead><tr>" + "".join(f"<th>{cell}</th>" for cell in head)
            + "</tr></thead><tbody>" + "".join("<tr>" + "".join(
                f"<td>{show(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
            + "</tbody></table>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", metavar="DIR", default=os.path.join(lab.ROOT, "lab"),
                        help="default: lab")
    args, flags = parser.parse_known_args()
    out = os.path.abspath(args.out)
    found = run_all(out, flags)
    there = {label: of for label, of in found.items() if of}
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "report.html"), "w", encoding="utf-8") as f:
        f.write(page(there))
    for row in answer(there):
        print("".join(f"{cell:>{len(head) + 2}}" for head, cell in zip(ANSWER, row)))
    print(f"{out}/report.html: {len(found)} experiments")
    broken = [label for label, of in found.items() if not of]
    if broken:
        lab.fail(f"{len(broken)} did not finish: {', '.join(broken)}")


if __name__ == "__main__":
    main()
