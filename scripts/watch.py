#!/usr/bin/env python3
"""A live page of a run: the loss above its floor, samples, and where seconds go.

    scripts/watch.py out/tales                        prints an address to open in a browser
    scripts/watch.py out/tales --port 8000
    scripts/watch.py out/tales --csv > tales.csv      every event of the log as a row

A run is an output directory of the trainer, or its log.jsonl. The page waits for a run that does
not exist yet, and follows it while it trains. Only this machine can reach the page, and the page
loads nothing from elsewhere. scripts/plot.py draws several runs beside each other.
"""
import argparse
import csv
import errno
import http.server
import json
import os
import re
import stat
import sys
import threading
import time

import runlog
from runlog import count, fail

# What the page draws. An event is sent as a list of these values, without the nulls at its end.
FIELDS = ["event", "step", "tokens", "loss", "seconds", "seconds_data", "seconds_compute",
          "seconds_comm", "seconds_optimizer", "val_loss", "whole_loss", "whole_floor", "text",
          "reason"]


# ---------------------------------------------------------------- reading a log

class Run:
    """The events of a log, read as it grows. `version` changes when events that were read before no
    longer hold; a reader that knows the older ones must then begin anew."""

    def __init__(self, path):
        self.name = os.fsencode(os.path.normpath(path)).decode("utf-8", "replace")
        self.path = runlog.path_of(path)
        self.version = int(1000 * time.time())               # no other server's
        self.forget()

    def forget(self):
        self.version += 1
        self.events, self.damaged = [], None
        self.offset, self.lines, self.tail = 0, 0, b""       # tail: the last bytes that were read

    def read(self):
        """Takes the whole lines that are new. The last one may be incomplete: it stays for later.
        If the tail has changed, another run has replaced the log: reads all of it."""
        try:
            if not stat.S_ISREG(os.stat(self.path).st_mode):
                return                                       # opening a pipe would wait
            with open(self.path, "rb") as f:
                f.seek(self.offset - len(self.tail))
                if f.read(len(self.tail)) == self.tail:
                    self.take_all(f)
                    return
        except FileNotFoundError:
            if not self.tail:
                return
        except OSError:                                      # no descriptor is free: later
            return
        self.forget()
        self.read()

    def take_all(self, lines):
        for line in lines:
            if not line.endswith(b"\n"):
                break
            self.lines += 1
            self.offset += len(line)
            self.tail = (self.tail + line)[-256:]
            self.take(runlog.parsed(line))

    def take(self, event):
        if event is None:
            self.damaged = self.damaged or self.lines
            return
        if event["event"] == "start" and self.events:        # of several runs in a log, the last
            self.events, self.version = [], self.version + 1
        if event["event"] == "resume" and count(event.get("step")):   # drops what followed it
            kept = [e for e in self.events if (e.get("step") or 0) <= event["step"]]
            if len(kept) < len(self.events):
                self.events, self.version = kept, self.version + 1
        self.events.append(event)


# ---------------------------------------------------------------- what the page is sent

def row(event):
    values = [event.get(field) for field in FIELDS]
    while values[-1] is None:
        values.pop()
    return values


def news(run, version, known):
    """What a reader of `known` events of that version lacks. A log's first event is sent whole."""
    run.read()
    known = known if version == run.version else 0
    begin = run.events[0] if run.events else {}
    try:
        quiet = time.time() - os.path.getmtime(run.path)
    except OSError:
        quiet = None                                         # there is no log yet
    return {"name": run.name, "version": run.version, "known": known, "quiet": quiet,
            "begin": begin, "damaged": run.damaged, "events": list(map(row, run.events[known:]))}


class Handler(http.server.BaseHTTPRequestHandler):
    run, lock = None, threading.Lock()
    timeout = 20                                             # for a browser that says nothing

    def do_GET(self):
        path, _, at = self.path.partition("?")
        if self.headers.get("Host", "").split(":")[0] not in ("127.0.0.1", "localhost"):
            self.send_error(403)                             # a page from elsewhere may not read it
        elif path == "/":
            self.answer("text/html; charset=utf-8", PAGE)
        elif path == "/news":
            known = re.fullmatch(r"(\d{1,18})\.(\d{1,18})", at)     # VERSION.KNOWN
            with self.lock:
                said = news(self.run, *map(int, known.groups() if known else (0, 0)))
            self.answer("application/json", json.dumps(said))
        else:
            self.send_error(404)

    def answer(self, kind, text):
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", "default-src 'none'; connect-src 'self'; "
                         "script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], OSError):       # a browser that left is no error
            super().handle_error(request, client_address)


# ---------------------------------------------------------------- the page

PAGE = r"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>A run</title>
<link rel="icon" href="data:,">
<style>
:root { color-scheme: light dark; --line: #ddd; --soft: #f4f4f4; --dim: #5a5a5a; --loss: #0072b2;
        --compute: #44546a; --optimizer: #8497b0; --data: #c9a227; --comm: #b5651d; }
@media (prefers-color-scheme: dark) {
    :root { --line: #3c3c3c; --soft: #232323; --dim: #aaa; --loss: #5bb4e8;
            --compute: #9fb3cc; --optimizer: #5d7390; --data: #d9b73b; --comm: #d98a4a; }
    body { background: #151515; color: #e8e8e8; } }
body { font: 16px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 0 auto; padding: .8rem; }
h1 { font-size: 1.3rem; margin: 0; } h2 { font-size: 1.05rem; margin: 0; overflow-wrap: anywhere; }
#top { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; align-items: baseline; }
#top label { font-size: .9rem; }
svg { width: 100%; height: 24rem; font: 12px system-ui, sans-serif; display: block; }
svg text { fill: currentColor; } .grid { stroke: var(--line); fill: none; }
.floor { stroke: currentColor; stroke-dasharray: 6 4; fill: none; }
.dim { color: var(--dim); font-size: .9rem; margin: .2rem 0; } #reading { min-height: 1.4em; }
.loss { stroke: var(--loss); fill: none; stroke-linejoin: round; } circle { fill: var(--loss); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 .8rem; margin: .4rem 0; }
dt { color: var(--dim); } dd { margin: 0; font-variant-numeric: tabular-nums; }
.bar { display: flex; height: 1rem; margin: .5rem 0 .2rem; background: var(--soft); }
.key { display: inline-block; width: .7rem; height: .7rem; margin-right: .3rem; }
.parts { display: flex; flex-wrap: wrap; gap: 0 1rem; font-size: .9rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--soft); padding: .5rem;
      margin: .3rem 0; font: .85rem/1.4 ui-monospace, Menlo, Consolas, monospace; }
select, input { font: inherit; } [hidden] { display: none; }
:focus-visible { outline: 3px solid #3d8fd1; outline-offset: 2px; }
</style>
</head>
<body>
<div id="top"><h1>Loss, nats a token</h1>
<label>against <select id="x"><option value="tokens">tokens trained on</option>
<option value="step">updates</option><option value="seconds">seconds of training</option></select>
</label>
<label><input type="checkbox" id="log-x"> logarithmic</label>
<label><input type="checkbox" id="log-y" checked> loss logarithmic</label></div>
<svg id="chart" role="img" aria-label="The loss; its numbers stand below."></svg>
<p class="dim" id="reading"></p>
<p class="dim" id="kinds"></p>
<p class="dim" id="link" role="status" hidden>watch.py has ended: this page no longer grows.</p>
<h2 id="name"></h2>
<dl id="facts"></dl>
<div class="bar" id="bar"></div>
<div class="parts" id="parts"></div>
<label class="dim" id="samples">Sample after update <select id="pick"></select></label>
<pre id="sample"></pre>
<noscript>This page needs JavaScript.</noscript>
<script>
"use strict";
const FIELDS = /*FIELDS*/;
const PARTS = ["compute", "optimizer", "data", "comm"];
const $ = id => document.getElementById(id);
let run = blank(null);

// ---- what a run has said ----

function blank(version) {
  return { version, known: 0, train: [], evals: [], samples: [], last: {}, seconds: 0,
           spent: { compute: 0, optimizer: 0, data: 0, comm: 0 }, floor: null, whole: false };
}

function take(values) {
  const e = Object.fromEntries(FIELDS.map((field, i) => [field, values[i] ?? null]));
  const point = y => ({ tokens: e.tokens, step: e.step, seconds: run.seconds, y });
  run.known++;
  if (e.event === "step" || e.event === "skip") {
    run.seconds += e.seconds ?? 0;
    for (const part of PARTS) run.spent[part] += e["seconds_" + part] ?? 0;
    if (e.loss !== null) run.train.push(point(e.loss));
    run.last = e;
  } else if (e.event === "eval") {
    run.whole = run.whole || e.whole_loss !== null;
    if ((e.whole_loss ?? e.val_loss) !== null) run.evals.push(point(e.whole_loss ?? e.val_loss));
    run.floor = e.whole_floor ?? run.floor;
  } else if (e.event === "sample") run.samples.push(e);
  run.end = e.event === "end" ? e.reason : null;
}

function hear(said) {
  if (run.version !== said.version) run = blank(said.version);
  Object.assign(run, { name: said.name, begin: said.begin, quiet: said.quiet,
                       damaged: said.damaged });
  run.floor = run.floor ?? said.begin.floor ?? null;
  if (said.known === run.known) for (const values of said.events) take(values);
  return said.events.length > 0;
}

// ---- numbers as words ----

function brief(x) {
  for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (x >= 0.9995 * size) return Number((x / size).toPrecision(3)) + letter;
  return String(Number(x.toPrecision(3)));
}

function span(seconds) {
  if (seconds < 90) return seconds.toFixed(seconds < 10 ? 1 : 0) + " s";
  if (seconds < 5400) return (seconds / 60).toFixed(0) + " min";
  return (seconds / 3600).toFixed(1) + " h";
}

function state() {
  if (run.quiet === null) return "waiting for its log";
  if (run.end) return run.end;
  if (run.quiet > 60) return "no news for " + span(run.quiet);
  const { steps, tokens } = run.begin, t = run.last;
  const part = Math.max(tokens > 0 ? t.tokens / tokens : 0, steps > 0 ? t.step / steps : 0);
  return part > 0 ? `trains, ${span(run.seconds * (1 / part - 1))} left` : "trains";
}

// ---- the chart ----

// A scale from values to pixels, and round values on it.
function scale(low, high, log, from, to, most) {
  const f = log ? Math.log : x => x, ticks = [];
  const at = x => from + (to - from) * (f(x) - f(low)) / (f(high) - f(low));
  const few = log && high / low > 4;
  if (few)
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
      for (const digit of [1, 2, 5]) ticks.push(digit * 10 ** power);
  const power = 10 ** Math.floor(Math.log10((high - low) / most));
  const step = power * [1, 2, 5, 10].find(times => (high - low) / (power * times) <= most);
  if (!few) for (let i = Math.ceil(low / step); i * step <= high; i++) ticks.push(i * step);
  return { at, ticks: ticks.filter(x => x >= low && x <= high), low, high };
}

// The means of points within three pixels: a training loss is noisy.
function means(points, axis, x) {
  const bins = new Map();
  for (const p of points) {
    if (p[axis] < x.low) continue;
    const bin = Math.round(x.at(p[axis]) / 3), seen = bins.get(bin) ?? { pixel: 0, sum: 0, n: 0 };
    seen.pixel += x.at(p[axis]), seen.sum += p.y, seen.n++;
    bins.set(bin, seen);
  }
  return [...bins.values()].map(b => [b.pixel / b.n, b.sum / b.n]);
}

let shown = null;                      // the scale of x, for the pointer

function draw() {
  const svg = $("chart"), width = svg.clientWidth, height = svg.clientHeight;
  const left = 40, right = 12, top = 12, bottom = 38;
  const axis = $("x").value, log = $("log-x").checked, { floor } = run;
  const points = [...run.train, ...run.evals].filter(p => !log || p[axis] > 0);
  const parts = [];
  const text = (x, y, words, how = "") =>
    parts.push(`<text x="${x}" y="${y}" ${how}>${words}</text>`);
  if (!points.length) {
    text(width / 2, height / 2, "waiting for the first update", 'text-anchor="middle"');
    return void (svg.innerHTML = parts.join(""));
  }
  const all = points.map(p => p[axis]), most = all.reduce((a, b) => Math.max(a, b), 0) || 1;
  const least = log ? Math.min(all.reduce((a, b) => Math.min(a, b), most), most / 2) : 0;
  const x = scale(least, most, log, left, width - right, Math.max(2, width / 130));
  const curve = means(run.train, axis, x), evals = run.evals.filter(p => p[axis] >= x.low);
  const seen = [...curve.map(p => p[1]), ...run.evals.map(p => p.y)];
  if (floor !== null) seen.push(floor);
  const low = seen.reduce((a, b) => Math.min(a, b)), high = seen.reduce((a, b) => Math.max(a, b));
  const y = scale(low > 0 ? low * 0.93 : low - 0.1, high > low ? high * 1.03 : high + 0.1,
                  $("log-y").checked && low > 0, height - bottom, top, 6);
  for (const value of y.ticks) {
    parts.push(`<path class="grid" d="M${left} ${y.at(value)}H${width - right}"/>`);
    text(left - 6, y.at(value) + 4, brief(value), 'text-anchor="end"');
  }
  for (const value of x.ticks) {
    parts.push(`<path class="grid" d="M${x.at(value)} ${top}V${height - bottom}"/>`);
    text(x.at(value), height - bottom + 16, brief(value), 'text-anchor="middle"');
  }
  text((left + width - right) / 2, height - 4, $("x").selectedOptions[0].text,
       'text-anchor="middle"');
  if (floor !== null) {
    parts.push(`<path class="floor" d="M${left} ${y.at(floor)}H${width - right}"/>`);
    text(left + 6, y.at(floor) - 6, `floor ${floor.toFixed(3)}: no model can do better`);
  }
  const line = (points, how) => points.length && parts.push(
    `<path d="M${points.map(p => p.map(v => v.toFixed(1)).join(" ")).join("L")}" class="loss" ` +
    `${how}/>`);
  const marks = evals.map(p => [x.at(p[axis]), y.at(p.y)]);
  line(curve.map(([pixel, loss]) => [pixel, y.at(loss)]), 'stroke-width="1.3" opacity="0.55"');
  line(marks, 'stroke-width="2.4"');
  for (const [px, py] of marks.length > 60 ? marks.slice(-1) : marks)
    parts.push(`<circle cx="${px}" cy="${py}" r="3.5"/>`);
  svg.innerHTML = parts.join("");
  shown = { x, axis, log, left, right: width - right };
}

// The losses where the pointer is.
function point_at(pixel) {
  if (!shown || pixel < shown.left || pixel > shown.right) return "";
  const part = (pixel - shown.left) / (shown.right - shown.left), { low, high } = shown.x;
  const x = shown.log ? low * (high / low) ** part : low + part * (high - low);
  const near = points => points.reduce((best, p) => !best ||
    Math.abs(p[shown.axis] - x) < Math.abs(best[shown.axis] - x) ? p : best, null);
  const train = near(run.train), seen = near(run.evals);
  return `At ${brief(x)} ${shown.axis === "step" ? "updates" : shown.axis}: ` +
    [train && `training ${train.y.toFixed(3)}`,
     seen && `validation ${seen.y.toFixed(3)} at ${brief(seen[shown.axis])}`].filter(Boolean)
      .join(", ");
}

// ---- below it ----

function element(tag, parent, words, name) {
  const made = document.createElement(tag);
  if (words !== undefined) made.textContent = words;
  if (name) made.className = name;
  return parent.appendChild(made);
}

let listed = null, follows = true;     // the updates to pick from; whether the last one is shown

function show_sample() {
  const sample = run.samples.find(s => String(s.step) === $("pick").value);
  $("sample").textContent = sample ? sample.text || "(nothing)" : "";
  $("samples").hidden = $("sample").hidden = !sample;
}

function show_samples() {
  const steps = run.samples.map(s => String(s.step)).reverse(), kept = $("pick").value;
  if (steps.join() !== listed) {
    listed = steps.join();
    $("pick").replaceChildren();
    for (const step of steps)
      element("option", $("pick"), Number(step).toLocaleString("en")).value = step;
    $("pick").value = follows || !steps.includes(kept) ? steps[0] : kept;
  }
  show_sample();
}

function show_facts() {
  const last = run.last, seen = run.evals[run.evals.length - 1], facts = [["state", state()]];
  const floor = run.floor === null ? "" : `, at best ${run.floor.toFixed(3)}`;
  if (run.damaged) facts.push(["log", `line ${run.damaged} is not an event: left out`]);
  if (last.tokens) facts.push(["trained on", `${brief(last.tokens)} tokens in ` +
    `${last.step.toLocaleString("en")} updates`]);
  if (run.train.length) facts.push(["training loss", run.train[run.train.length - 1].y.toFixed(3)]);
  if (seen) facts.push([run.whole ? "on whole tales" : "validation", seen.y.toFixed(4) + floor]);
  const recent = run.train.slice(-100), from = recent[0], to = recent[recent.length - 1];
  if (recent.length > 1) facts.push(["speed",
    `${brief((to.tokens - from.tokens) / (to.seconds - from.seconds))} tokens a second`]);
  $("facts").replaceChildren();
  for (const [name, words] of facts) {
    element("dt", $("facts"), name);
    element("dd", $("facts"), words);
  }
}

function show_seconds() {
  const total = PARTS.reduce((sum, part) => sum + run.spent[part], 0);
  $("bar").replaceChildren();
  $("parts").replaceChildren();
  $("bar").hidden = $("parts").hidden = !(total > 0);
  for (const part of PARTS.filter(part => run.spent[part] > 0)) {
    const share = 100 * run.spent[part] / total;
    element("span", $("bar")).style = `width:${share}%;background:var(--${part})`;
    const words = element("span", $("parts"));
    element("span", words, undefined, "key").style.background = `var(--${part})`;
    words.append(`${part === "comm" ? "communication" : part} ${span(run.spent[part])}, ` +
                 `${share.toFixed(share < 10 ? 1 : 0)}%`);
  }
}

function show(is_new) {
  const seen = run.evals[run.evals.length - 1];
  $("name").textContent = run.name;
  show_facts();
  show_seconds();
  show_samples();
  $("kinds").textContent = `Bold: validation${run.whole ? ", on whole tales" : ""}. ` +
    "Faint: training, smoothed.";
  document.title = (seen ? seen.y.toFixed(3) + " " : "") + run.name;
  if (is_new) draw();
}

// ---- the server is asked every second ----

async function poll() {
  try {
    const at = run.version === null ? "" : `${run.version}.${run.known}`;
    const is_new = hear(await (await fetch("/news?" + at)).json());
    $("link").hidden = true;
    show(is_new || !shown);
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;          // fetch failed
    $("link").hidden = false;
  }
  setTimeout(poll, 1000);
}

for (const id of ["x", "log-x", "log-y"]) $(id).addEventListener("input", draw);
$("pick").addEventListener("change", () => {
  follows = $("pick").selectedIndex === 0;
  show_sample();
});
addEventListener("resize", draw);
$("chart").addEventListener("pointermove", e => {
  $("reading").textContent = point_at(e.clientX - $("chart").getBoundingClientRect().left);
});
poll();
</script>
</body>
</html>
""".replace("/*FIELDS*/", json.dumps(FIELDS))


# ---------------------------------------------------------------- CSV

def cell(value):
    return json.dumps(value) if isinstance(value, (bool, dict, list)) else value


def write_csv(run, out):
    """A row an event, a column for each field of any event."""
    run.read()
    if run.damaged:
        runlog.leave_out(run.path, run.damaged)
    if not run.events:
        fail(f"{run.path}: holds no event; give a run's output directory or its log.jsonl")
    columns = list(dict.fromkeys(key for event in run.events for key in event))
    table = csv.writer(out, lineterminator="\n")
    table.writerow(columns)
    for event in run.events:
        table.writerow([cell(event.get(key)) for key in columns])
    out.flush()


# ---------------------------------------------------------------- command line

def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", metavar="OUT", help="output directory, or log.jsonl")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="default: a free one")
    parser.add_argument("--csv", action="store_true", help="print every event as CSV, and stop")
    args = parser.parse_args()
    if not 0 <= args.port <= 65535:
        fail(f"--port {args.port}: expected 0 to 65535; 0 takes a free one")
    return args


def say(words):
    """On stdout; on stderr if stdout is closed or full: without its address the page is lost."""
    try:
        print(words, file=sys.stdout or sys.stderr, flush=True)
    except OSError:
        discard_stdout()
        print(words, file=sys.stderr)


def discard_stdout():
    """What could not be written would be written, and fail, once more at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def serve(run, port):
    Handler.run = run
    try:
        server = Server(("127.0.0.1", port), Handler)
    except OSError as error:
        hint = "; leave it out for a free one" if port else ""
        fail(f"--port {port}: {error.strerror.lower()}{hint}")
    say(f"http://127.0.0.1:{server.server_port}/ shows {run.name}; Ctrl-C ends it")
    server.serve_forever()


def main():
    args = read_arguments()
    run = Run(args.run)
    if os.path.exists(run.path) and not os.path.isfile(run.path):
        fail(f"{run.path}: is not a file; a log is read again and again, as a pipe cannot be")
    try:
        if not args.csv:
            serve(run, args.port)
        elif sys.stdout is None:
            fail("stdout: it is closed")
        else:
            sys.stdout.reconfigure(encoding="utf-8", errors="replace")
            write_csv(run, sys.stdout)
    except KeyboardInterrupt:
        pass
    except OSError as error:
        discard_stdout()
        if error.errno != errno.EPIPE:                       # | head
            fail(f"stdout: {error.strerror.lower()}")


if __name__ == "__main__":
    main()
