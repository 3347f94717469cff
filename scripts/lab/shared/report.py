#!/usr/bin/env python3
"""Puts the experiments' results on one page, OUT/report.html.

    scripts/lab/shared/report.py                    the experiments that have been run
    scripts/lab/shared/report.py --run --quick      runs all of them first; continues if one fails
"""
import argparse
import html
import importlib
import os
import subprocess
import sys

import kept
import lab

EXPERIMENTS = os.path.join(lab.LAB, "experiments")


# ---------------------------------------------------------------- running them

def experiments():
    """[(label, path)] of the scripts NN_name.py, in order."""
    names = sorted(name for name in os.listdir(EXPERIMENTS)
                   if name.endswith(".py") and name[:2].isdigit() and name[2] == "_")
    return [(name[:-3], os.path.join(EXPERIMENTS, name)) for name in names]


def run_all(args):
    """Labels of those that failed. What they print passes through."""
    flags = ["--out", os.path.abspath(args.out)] + ["--quick"] * args.quick
    flags += ["--trainer", args.trainer] if args.trainer else []
    broken = []
    for label, path in experiments():
        if args.only and label[:2] not in args.only.split(","):
            continue
        print(f"\n== {label}", flush=True)
        result = os.path.join(args.out, label, "result.json")
        if os.path.exists(result):                           # none of an earlier run stands in
            os.remove(result)
        try:
            if subprocess.call([sys.executable, path, *flags], preexec_fn=lab.end_with_parent):
                broken.append(label)
        except KeyboardInterrupt:
            lab.fail("stopped; run the same command again to continue")
    return broken


# ---------------------------------------------------------------- the page

def page(records):
    """records: {label: result}"""
    overview = [[of["number"], of["title"], of["verdict"]] for of in records.values()]
    return ("<!DOCTYPE html>\n<meta charset='utf-8'>\n<title>The batch-size laboratory</title>\n"
            "<style>body { font: 16px/1.5 sans-serif; max-width: 50rem; margin: auto; }\n"
            "img { max-width: 100%; } td { padding: 0 .5rem; text-align: left; }</style>\n"
            "<h1>The batch-size laboratory</h1>\n" + table(overview)
            + "\n".join(section(label, of) for label, of in records.items()) + "\n")


def section(label, of):
    """Question, prediction, verdict, figures and numbers; the other tables are in result.json."""
    esc = html.escape
    parts = [f"<h2>{of['number']}. {esc(of['title'])}</h2>\n"
             f"<p><strong>Question.</strong> {esc(of['question'])}</p>"
             f"<p><strong>Predicted.</strong> {esc(of['prediction'])}</p>"
             f"<p><strong>{esc(of['verdict'].capitalize())}</strong>: {esc(of['why'])}</p>"]
    parts += [f"<p><img alt=\"{esc(figure['alt'])}\" src='{label}/{figure['name']}.png'>"
              f"<br>{esc(figure['caption'])}</p>" for figure in of["figures"]]
    parts.append(table(of["tables"]["numbers"]["rows"] if "numbers" in of["tables"] else []))
    parts.append(f"<p>{esc(' '.join(of['settings']))}</p><p>{esc(of['machine'])}; "
                 f"<code>{esc(of['command'])}</code></p>")
    return "\n".join(parts)


def table(rows):
    return "<table>" + "".join("<tr>" + "".join(
        f"<td>{'' if x is None else html.escape(kept.told(x))}</td>" for x in row) + "</tr>\n"
        for row in rows) + "</table>\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("--run", action="store_true", help="run the experiments first")
    parser.add_argument("--quick", action="store_true", help="with --run: minutes, not hours")
    parser.add_argument("--out", metavar="DIR", default=os.path.join(lab.ROOT, "lab"),
                        help="default: lab")
    parser.add_argument("--only", metavar="02,03", help="with --run: these experiments")
    parser.add_argument("--trainer", metavar="PATH", help="default: ./train_gpt2")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    broken = []
    if args.run:
        sys.path.append(EXPERIMENTS)
        importlib.import_module("_path")                     # ends if a package is missing
        broken = run_all(args)
    found = {label: kept.load(os.path.join(args.out, label, "result.json"))
             for label, _ in experiments()}
    done = {label: of for label, of in found.items() if of}
    with open(os.path.join(args.out, "report.html"), "w", encoding="utf-8") as f:
        f.write(page(done))
    print(f"{args.out}/report.html: {len(done)} of {len(found)} experiments")
    if broken:
        lab.fail(f"{len(broken)} did not finish: {', '.join(broken)}")


if __name__ == "__main__":
    main()
