#!/usr/bin/env python3
"""Puts the experiments' summaries on one page: OUT/report.md and OUT/report.html, which embeds its
figures and needs no network.

    scripts/lab/shared/report.py                    the experiments that have been run
    scripts/lab/shared/report.py --run --quick      runs all of them first; continues if one fails
"""
import argparse
import base64
import csv
import html
import json
import os
import signal
import subprocess
import sys
import time

import lab

EXPERIMENTS = os.path.join(lab.LAB, "experiments")
MOST_ROWS = 30                       # of a longer table only the path is shown

MARKS = {"as predicted": "&#10003;", "refuted": "&#10007;", "undecided": "?",
         "observed": "&#8226;", "skipped": "&#8211;", "broken": "!", "not run": "&#8211;"}

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
th { background: #f2f2f2; } .words td, .words th, td.word { text-align: left; }
.verdict { border-left: .35rem solid #666; padding: .3rem .8rem; background: #f6f6f6; }
.as-predicted { border-color: #009e73; } .undecided { border-color: #e69f00; }
.refuted, .broken { border-color: #d55e00; }
summary { cursor: pointer; margin-top: .6rem; }
dt { font-weight: 600; } dd { margin: 0 0 .5rem 0; }
"""


# ---------------------------------------------------------------- running them

def experiments():
    """[(label, path)] of the scripts NN_name.py, in order."""
    names = sorted(name for name in os.listdir(EXPERIMENTS)
                   if name.endswith(".py") and name[:2].isdigit() and name[2] == "_")
    return [(name[:-3], os.path.join(EXPERIMENTS, name)) for name in names]


def find_python():
    """The first Python with matplotlib: the distribution's own may come later in PATH."""
    for python in [sys.executable, "python3", "/usr/bin/python3"]:
        if lab.output_of(python, "-c", "import matplotlib; print(1)"):
            return python
    return sys.executable


def run(label, path, python, flags, out):
    """Runs one experiment; returns why it failed, or None. What it prints passes through."""
    summary = os.path.join(out, label, "summary.json")
    if os.path.exists(summary):
        os.remove(summary)
    env = dict(os.environ, PYTHONUNBUFFERED="1", LAB_LIVE="1" if sys.stderr.isatty() else "")
    with subprocess.Popen([python, path, *flags], stderr=subprocess.PIPE, env=env) as process:
        signal.signal(signal.SIGTERM, lambda *_: (process.terminate(), sys.exit(143)))
        said = b""
        try:
            while True:
                chunk = os.read(process.stderr.fileno(), 4096)
                if not chunk:
                    break
                sys.stderr.buffer.write(chunk)
                sys.stderr.flush()
                said = (said + chunk)[-4000:]
        except KeyboardInterrupt:
            process.wait()
            lab.fail("stopped; run the same command again to continue")
    if process.returncode == 0:
        return None
    return lab.last_line(said.decode("utf-8", "replace")) or f"exit status {process.returncode}"


def run_all(args):
    """{label: why it failed}"""
    flags = [] if args.size == "full" else [f"--{args.size}"]
    flags += ["--out", os.path.abspath(args.out)]
    for name, value in [("--jobs", args.jobs), ("--trainer", args.trainer)]:
        flags += [name, str(value)] if value is not None else []
    python, broken = find_python(), {}
    for label, path in experiments():
        if args.only and label[:2] not in args.only.split(","):
            continue
        print(f"\n== {label}", flush=True)
        began = time.time()
        why = run(label, path, python, flags, args.out)
        if why:
            broken[label] = why
        print(f"== {label}: {'FAILED: ' + why if why else 'done'} in "
              f"{lab.clock(time.time() - began)}", flush=True)
    return broken


# ---------------------------------------------------------------- reading

def read_summaries(out, broken):
    """One record for each experiment, including those that did not run."""
    found = []
    labels = [label for label, _ in experiments()]
    for label in labels:
        record = {"label": label, "number": int(label[:2]),
                  "title": label[3:].replace("_", " ").capitalize(), "question": "",
                  "prediction": "", "said": [], "settings": [], "figures": [], "csv": [],
                  "command": f"scripts/lab/experiments/{label}.py --quick", "verdict": "not run",
                  "why": "there is no result in this output directory"}
        try:
            with open(os.path.join(out, label, "summary.json"), encoding="utf-8") as f:
                record.update(json.load(f))
        except OSError:
            pass
        except ValueError:
            record.update(verdict="broken", why="its summary.json is damaged; run it again")
        if label in broken:
            record.update(verdict="broken", why=broken[label])
        record["label"] = label
        found.append(record)
    return found


def read_table(path):
    """(header, rows), or None if it is missing or too long to show."""
    try:
        with open(path, newline="", encoding="utf-8") as f:
            rows = list(csv.reader(f))
    except OSError:
        return None
    if not rows or len(rows) - 1 > MOST_ROWS:
        return None
    return [name.replace("_", " ") for name in rows[0]], [[short(c) for c in r] for r in rows[1:]]


def short(text):
    """A number with four digits; other text unchanged."""
    try:
        value = float(text)
    except ValueError:
        return text
    if value == int(value) and abs(value) < 1e15 and "." not in text and "e" not in text:
        return f"{int(value):,}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"


def is_number(text):
    return bool(text) and all(c.isdigit() or c in "+-.,e" for c in text)


def run_time(records):
    spent = sum(r.get("run_seconds", 0) for r in records)
    return f"{spent / 60:.0f} minutes" if spent >= 90 else f"{spent:.0f} seconds"


def machines(records):
    return sorted({r["machine"] for r in records if r.get("machine")})


def redraw(record):
    return record["command"] + ("" if record["verdict"] in ("not run", "broken") else " --redraw")


INTRO = ("If a model fits on one GPU, and a larger batch only lowers the variance of the gradient, "
         "why train on many? Time to a loss is T(B, n) = S(B) \u00b7 t_step(B, n): the number of "
         "updates at a batch of B tokens, times the seconds of an update on n devices. Updates are "
         "serial; only the work inside an update can be spread over devices. Each experiment "
         "states its prediction first; a prediction that fails is reported as refuted.")


NO_PICTURES = ("No pictures: matplotlib was missing when this was run. Install it (apt-get install "
               "python3-matplotlib, or pip install matplotlib), then run the command below.")


# ---------------------------------------------------------------- report.md

def markdown(records):
    lines = ["# The batch-size laboratory", "", INTRO, ""]
    lines += [f"Machine: {'; '.join(machines(records)) or 'unknown'}. Runs add up to "
              f"{run_time(records)}.", "", "| | experiment | verdict | why |", "|---|---|---|---|"]
    lines += [f"| {r['number']} | {bar(r['title'])} | {r['verdict']} | {bar(r['why'])} |"
              for r in records]
    for r in records:
        lines += ["", f"## {r['number']}. {r['title']}", ""]
        lines += [f"**{name}:** {r[key]}\n" for name, key in [
            ("Question", "question"), ("Predicted", "prediction")] if r[key]]
        lines += [f"**Verdict: {r['verdict']}.** {r['why']}", ""]
        lines += [f"- {sentence}" for sentence in r["said"]]
        lines += ["", NO_PICTURES] if not r.get("drawn", True) else []
        for f in r["figures"]:
            lines += ["", f"![{bracket(f['alt'])}]({r['label']}/{f['png']})", "", f["caption"]]
        for table in r["csv"]:
            lines += ["", f"`{r['label']}/{table['file']}`"]
            lines += markdown_table(read_table(os.path.join(r["out"], r["label"], table["file"])))
        if r["settings"]:
            lines += ["", "What was run: " + " ".join(r["settings"])]
        lines += ["", f"Drawn by: `{redraw(r)}`"]
    return "\n".join(lines) + "\n"


def markdown_table(table):
    if table is None:
        return []
    header, rows = table
    return ["", "| " + " | ".join(map(bar, header)) + " |", "|" + "---|" * len(header)] + [
        "| " + " | ".join(map(bar, row)) + " |" for row in rows]


def bar(text):
    return text.replace("|", "\\|").replace("\n", " ")


def bracket(text):
    return text.replace("[", "(").replace("]", ")").replace("\n", " ")


# ---------------------------------------------------------------- report.html

def page(records):
    esc = html.escape
    overview = "".join(
        f"<tr><td>{r['number']}</td><td><a href='#{r['label']}'>{esc(r['title'])}</a></td>"
        f"<td>{MARKS[r['verdict']]} {esc(r['verdict'])}</td></tr>" for r in records)
    return ("<!DOCTYPE html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
            "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
            "<title>The batch-size laboratory</title>\n<link rel='icon' href='data:,'>\n"
            f"<style>{STYLE}</style>\n</head>\n<body>\n<h1>The batch-size laboratory</h1>\n"
            f"<p>{esc(INTRO)}</p>\n<p>Machine: {esc('; '.join(machines(records)) or 'unknown')}. "
            f"Runs add up to {run_time(records)}.</p>\n<div class='scroll words'><table>"
            "<tr><th></th><th>experiment</th><th>verdict</th></tr>"
            f"{overview}</table></div>\n" + "\n".join(section(r) for r in records)
            + "\n</body>\n</html>\n")


def section(r):
    esc = html.escape
    parts = [f"<section id='{r['label']}'>\n<h2>{r['number']}. {esc(r['title'])}</h2>"]
    terms = [("Question", r["question"]), ("Predicted", r["prediction"])]
    if any(text for _, text in terms):
        parts.append("<dl>" + "".join(f"<dt>{name}</dt><dd>{esc(text)}</dd>"
                                      for name, text in terms if text) + "</dl>")
    parts.append(f"<p class='verdict {r['verdict'].replace(' ', '-')}'><strong>"
                 f"{MARKS[r['verdict']]} {esc(r['verdict'])}</strong>: {esc(r['why'])}</p>")
    parts += [f"<p>{esc(NO_PICTURES)}</p>"] if not r.get("drawn", True) else []
    parts += [picture(r, f) for f in r["figures"]]
    if r["said"]:
        parts.append("<ul>" + "".join(f"<li>{esc(s)}</li>" for s in r["said"]) + "</ul>")
    if r["settings"]:
        parts.append(f"<p><strong>What was run.</strong> {esc(' '.join(r['settings']))}</p>")
    parts += [html_table(r, table) for table in r["csv"]]
    parts.append(f"<p>Drawn by</p><pre>{esc(redraw(r))}</pre>\n</section>")
    return "\n".join(parts)


def picture(r, figure):
    path = os.path.join(r["out"], r["label"], figure["png"])
    try:
        with open(path, "rb") as f:
            data = base64.b64encode(f.read()).decode("ascii")
    except OSError:
        return f"<p>The picture {html.escape(figure['png'])} is missing.</p>"
    return (f"<figure><img alt=\"{html.escape(figure['alt'])}\" "
            f"src='data:image/png;base64,{data}'>"
            f"<figcaption>{html.escape(figure['caption'])}</figcaption></figure>")


def html_table(r, table):
    path = f"{r['label']}/{table['file']}"
    content = read_table(os.path.join(r["out"], path))
    if content is None:
        return f"<p>Numbers: <code>{html.escape(path)}</code></p>"
    header, rows = content
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(
        f"<td{'' if is_number(c) else ' class=word'}>{html.escape(c)}</td>" for c in row)
        + "</tr>" for row in rows)
    return (f"<details><summary>Numbers: <code>{html.escape(path)}</code></summary>"
            f"<div class='scroll'><table><tr>{head}</tr>{body}</table></div></details>")


# ---------------------------------------------------------------- command line

def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("--run", action="store_true", help="run the experiments first")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_const", const="quick", dest="size",
                      help="with --run: minutes instead of hours")
    size.add_argument("--tiny", action="store_const", const="tiny", dest="size",
                      help="with --run: seconds, for tests")
    parser.add_argument("--out", metavar="DIR", help="default: lab")
    parser.add_argument("--only", metavar="02,03", help="with --run: these experiments")
    parser.add_argument("--jobs", type=int, metavar="N", help="parallel runs")
    parser.add_argument("--trainer", metavar="PATH", help="default: ./train_gpt2")
    args = parser.parse_args()
    args.size = args.size or "full"
    here = os.getcwd()
    os.chdir(lab.ROOT)
    args.out = lab.inside_root(here, args.out) if args.out else "lab"
    args.trainer = os.path.join(here, args.trainer) if args.trainer else None
    return args


def write(path, text):
    with open(path + ".tmp", "w", encoding="utf-8") as f:
        f.write(text)
    os.replace(path + ".tmp", path)


def main():
    args = read_arguments()
    os.makedirs(args.out, exist_ok=True)
    broken = run_all(args) if args.run else {}
    records = read_summaries(args.out, broken)
    for record in records:
        record["out"] = args.out
    write(os.path.join(args.out, "report.md"), markdown(records))
    write(os.path.join(args.out, "report.html"), page(records))
    done = sum(r["verdict"] in lab.VERDICTS for r in records)
    print(f"{args.out}/report.html and report.md: {done} of {len(records)} experiments")
    if broken:
        lab.fail(f"{len(broken)} did not finish: {', '.join(broken)}")


if __name__ == "__main__":
    main()
