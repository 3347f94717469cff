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
import signal
import subprocess
import sys
import time

import kept
import lab

EXPERIMENTS = os.path.join(lab.LAB, "experiments")
MOST_ROWS = 30                       # of a longer table only the name is shown

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
    result = os.path.join(out, label, "result.json")
    if os.path.exists(result):
        os.remove(result)
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


# ---------------------------------------------------------------- the page

INTRO = ("If a model fits on one GPU, and a larger batch only lowers the variance of the gradient, "
         "why train on many? Time to a loss is T(B, n) = S(B) \u00b7 t_step(B, n): the number of "
         "updates at a batch of B tokens, times the seconds of an update on n devices. Updates are "
         "serial; only the work inside an update can be spread over devices. Each experiment "
         "states its prediction first; a prediction that fails is reported as refuted.")


def read_results(out, broken):
    """One record for each experiment, including those that did not run."""
    found = []
    for label, _ in experiments():
        record = {"title": label[3:].replace("_", " ").capitalize(), "number": int(label[:2]),
                  "question": "", "prediction": "", "settings": [], "figures": [], "tables": {},
                  "command": f"scripts/lab/experiments/{label}.py --quick", "verdict": "not run",
                  "why": "there is no result in this output directory", "run_seconds": 0.0}
        record.update(kept.load(os.path.join(out, label, "result.json")) or {})
        if label in broken:
            record.update(verdict="broken", why=broken[label])
        found.append(dict(record, label=label))
    return found


def page(records, out):
    esc = html.escape
    overview = "".join(
        f"<tr><td>{r['number']}</td><td><a href='#{r['label']}'>{esc(r['title'])}</a></td>"
        f"<td>{MARKS[r['verdict']]} {esc(r['verdict'])}</td></tr>" for r in records)
    machines = "; ".join(sorted({r["machine"] for r in records if "machine" in r})) or "unknown"
    return ("<!DOCTYPE html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
            "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
            "<title>The batch-size laboratory</title>\n<link rel='icon' href='data:,'>\n"
            f"<style>{STYLE}</style>\n</head>\n<body>\n<h1>The batch-size laboratory</h1>\n"
            f"<p>{esc(INTRO)}</p>\n<p>Machine: {esc(machines)}. Runs add up to "
            f"{sum(r['run_seconds'] for r in records) / 60:.1f} minutes.</p>\n"
            "<div class='scroll words'><table><tr><th></th><th>experiment</th><th>verdict</th></tr>"
            f"{overview}</table></div>\n" + "\n".join(section(r, out) for r in records)
            + "\n</body>\n</html>\n")


def section(r, out):
    esc = html.escape
    redraw = "" if r["verdict"] in ("not run", "broken") else " --redraw"
    parts = [f"<section id='{r['label']}'>\n<h2>{r['number']}. {esc(r['title'])}</h2>\n<dl>",
             *(f"<dt>{name}</dt><dd>{esc(r[key])}</dd>" for name, key in [
                 ("Question", "question"), ("Predicted", "prediction")] if r[key]),
             f"</dl><p class='verdict {r['verdict'].replace(' ', '-')}'><strong>"
             f"{MARKS[r['verdict']]} {esc(r['verdict'])}</strong>: {esc(r['why'])}</p>"]
    parts += ["<p>No figures: matplotlib was missing when this was run.</p>"] * (
        not r.get("drawn", True))
    parts += [picture(os.path.join(out, r["label"], f["name"] + ".png"), f["alt"], f["caption"])
              for f in r["figures"]]
    if r["settings"]:
        parts.append(f"<p><strong>What was run.</strong> {esc(' '.join(r['settings']))}</p>")
    parts += [table(name, of) for name, of in sorted(r["tables"].items(),
                                                     key=lambda at: at[0] != "numbers")]
    parts.append(f"<p>Drawn by</p><pre>{esc(r['command'] + redraw)}</pre>\n</section>")
    return "\n".join(parts)


def picture(path, alt, caption, anchor=""):
    with open(path, "rb") as f:
        data = base64.b64encode(f.read()).decode("ascii")
    return (f"<figure{f' id={anchor!r}' if anchor else ''}><img alt=\"{html.escape(alt)}\" "
            f"src='data:image/png;base64,{data}'><figcaption>{html.escape(caption)}</figcaption>"
            "</figure>\n")


def table(name, of):
    """What was found is open; a long table is named alone."""
    if len(of["rows"]) > MOST_ROWS and name != "numbers":
        return f"<p>{html.escape(name)}: {len(of['rows'])} rows, in result.json</p>"
    head = "".join(f"<th>{html.escape(column.replace('_', ' '))}</th>" for column in of["columns"])
    body = "".join("<tr>" + "".join(
        f"<td{' class=word' * isinstance(x, str)}>"
        f"{'' if x is None else html.escape(kept.told(x))}</td>"
        for x in row) + "</tr>" for row in of["rows"])
    return (f"<details{' open' * (name == 'numbers')}><summary>{html.escape(name)}</summary>"
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
    records = read_results(args.out, broken)
    write(os.path.join(args.out, "report.html"), page(records, args.out))
    done = sum(r["verdict"] in lab.VERDICTS for r in records)
    print(f"{args.out}/report.html: {done} of {len(records)} experiments")
    if broken:
        lab.fail(f"{len(broken)} did not finish: {', '.join(broken)}")


if __name__ == "__main__":
    main()
