#!/usr/bin/env python3
"""Puts the experiments' results on one page: OUT/report.html, which embeds its figures and needs no
network.

    scripts/lab/shared/report.py                    the experiments that have been run
    scripts/lab/shared/report.py --run --quick      runs all of them first; continues if one fails
"""
import argparse
import base64
import html
import os
import subprocess
import sys

import kept
import lab

EXPERIMENTS = os.path.join(lab.LAB, "experiments")

STYLE = """
body { font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; color: #1a1a1a;
       background: #fff; margin: 0 auto; max-width: 50rem; padding: .7rem;
       overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.25rem; margin-top: 2.8rem;
     border-top: 1px solid #ccc; padding-top: 1rem; } a { color: #00518a; }
img { max-width: 100%; height: auto; display: block; margin: 1rem auto 0; }
figure { margin: 0; } figcaption { font-size: .9rem; color: #444; }
code, pre { font: .85rem/1.5 ui-monospace, Menlo, Consolas, monospace; background: #f2f2f2; }
code { padding: .1rem .25rem; } pre { padding: .6rem; white-space: pre-wrap; }
.scroll { overflow-x: auto; overflow-wrap: normal; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { border: 1px solid #ccc; padding: .25rem .5rem; text-align: right; vertical-align: top; }
th { background: #f2f2f2; } td:first-child { text-align: left; } summary { cursor: pointer; }
"""


# ---------------------------------------------------------------- running them

def experiments():
    """[(label, path)] of the scripts NN_name.py, in order."""
    names = sorted(name for name in os.listdir(EXPERIMENTS)
                   if name.endswith(".py") and name[:2].isdigit() and name[2] == "_")
    return [(name[:-3], os.path.join(EXPERIMENTS, name)) for name in names]


def run_all(args):
    """Labels of those that failed. What they print passes through."""
    flags = [] if args.size == "full" else [f"--{args.size}"]
    flags += ["--out", os.path.abspath(args.out)]
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

def page(records, out):
    """records: {label: result}"""
    overview = [[of["number"], of["title"], of["verdict"]] for of in records.values()]
    return ("<!DOCTYPE html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
            "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
            "<title>The batch-size laboratory</title>\n<link rel='icon' href='data:,'>\n"
            f"<style>{STYLE}</style>\n</head>\n<body>\n<h1>The batch-size laboratory</h1>\n"
            + table(["", "experiment", "verdict"], overview)
            + "\n".join(section(of, os.path.join(out, label)) for label, of in records.items())
            + "\n</body>\n</html>\n")


def section(of, folder):
    """Question, prediction, verdict, figures and numbers; the other tables are in result.json."""
    esc = html.escape
    parts = [f"<h2>{of['number']}. {esc(of['title'])}</h2>\n"
             f"<p><strong>Question.</strong> {esc(of['question'])}</p>"
             f"<p><strong>Predicted.</strong> {esc(of['prediction'])}</p>"
             f"<p><strong>{esc(of['verdict'].capitalize())}</strong>: {esc(of['why'])}</p>"]
    for figure in of["figures"]:
        with open(os.path.join(folder, figure["name"] + ".png"), "rb") as f:
            data = base64.b64encode(f.read()).decode("ascii")
        parts.append(f"<figure><img alt=\"{esc(figure['alt'])}\" "
                     f"src='data:image/png;base64,{data}'><figcaption>{esc(figure['caption'])}"
                     "</figcaption></figure>")
    if "numbers" in of["tables"]:
        parts.append(table(**of["tables"]["numbers"]))
    parts.append(f"<p><strong>What was run.</strong> {esc(' '.join(of['settings']))}</p>"
                 f"<p>{esc(of['machine'])}; <code>{esc(of['command'])}</code></p>")
    return "\n".join(parts)


def table(columns, rows):
    def line(cells, kind):
        return "<tr>" + "".join(f"<{kind}>{'' if x is None else html.escape(kept.told(x))}</{kind}>"
                                for x in cells) + "</tr>"
    return f"<table>{line(columns, 'th')}{''.join(line(row, 'td') for row in rows)}</table>\n"


# ---------------------------------------------------------------- command line

def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("--run", action="store_true", help="run the experiments first")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_const", const="quick", dest="size",
                      help="with --run: minutes instead of hours")
    size.add_argument("--tiny", action="store_const", const="tiny", dest="size",
                      help="with --run: seconds, for tests")
    parser.add_argument("--out", metavar="DIR", default=os.path.join(lab.ROOT, "lab"),
                        help="default: lab")
    parser.add_argument("--only", metavar="02,03", help="with --run: these experiments")
    parser.add_argument("--trainer", metavar="PATH", help="default: ./train_gpt2")
    args = parser.parse_args()
    args.size = args.size or "full"
    return args


def write(path, text):
    with open(path + ".tmp", "w", encoding="utf-8") as f:
        f.write(text)
    os.replace(path + ".tmp", path)


def main():
    args = read_arguments()
    os.makedirs(args.out, exist_ok=True)
    broken = run_all(args) if args.run else []
    found = {label: kept.load(os.path.join(args.out, label, "result.json"))
             for label, _ in experiments()}
    done = {label: of for label, of in found.items() if of}
    write(os.path.join(args.out, "report.html"), page(done, args.out))
    print(f"{args.out}/report.html: {len(done)} of {len(found)} experiments")
    if broken:
        lab.fail(f"{len(broken)} did not finish: {', '.join(broken)}")


if __name__ == "__main__":
    main()
