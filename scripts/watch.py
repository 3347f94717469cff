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
import http.server
import json
import os
import sys
import threading
import time

from runlog import Run, events_of, fail


# ---------------------------------------------------------------- what the page is sent

def news(run, version, known):
    """What a reader of `known` events of that version lacks."""
    run.read()
    known = known if version == run.version else 0
    quiet = time.time() - os.path.getmtime(run.path) if os.path.exists(run.path) else None
    return {"name": run.name, "version": run.version, "known": known, "quiet": quiet,
            "begin": next((e for e in reversed(run.events) if e["event"] in ("start", "resume")),
                          {}), "damaged": run.damaged,
            "events": run.events[known:]}


class Handler(http.server.BaseHTTPRequestHandler):
    run, lock = None, threading.Lock()

    def do_GET(self):
        path, _, at = self.path.partition("?")
        if self.headers.get("Host", "").split(":")[0] not in ("127.0.0.1", "localhost"):
            self.send_error(403)                             # a page from elsewhere may not read it
        elif path == "/":
            with open(CHART, encoding="utf-8") as f:
                self.answer("text/html; charset=utf-8", PAGE.replace("/*CHART*/", f.read()))
        elif path == "/news":
            version, _, known = at.partition(".")
            with self.lock:
                said = news(self.run, int(version or 0), int(known or 0))
            self.answer("application/json", json.dumps(said))
        else:
            self.send_error(404)

    def answer(self, kind, text):
        body = text.encode("utf-8", "replace")
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
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
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>A run</title>
<link rel="icon" href="data:,">
<style>
:root { color-scheme: light dark; }
body { font: 16px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 0 auto; padding: .8rem; }
h1 { font-size: 1.2rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1rem; margin: .8rem 0 0; }
svg { width: 100%; height: 24rem; font: 12px system-ui, sans-serif; display: block; }
svg text { fill: currentColor; } .grid { stroke: #8886; fill: none; }
.level { stroke: currentColor; stroke-dasharray: 6 4; fill: none; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 .8rem; margin: .4rem 0; }
dt { padding-left: .3rem; } dd { margin: 0; font-variant-numeric: tabular-nums; }
#bar { display: flex; height: .8rem; margin: .5rem 0; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #8882; padding: .5rem;
      margin: .3rem 0; font: .85rem/1.4 ui-monospace, Menlo, Consolas, monospace; }
</style>
<h1>Loss, nats per token: <span id="name"></span></h1>
<label>against <select id="x"><option value="tokens">tokens trained on</option>
<option value="step">updates</option><option value="seconds">seconds of training</option></select>
</label>
<svg id="chart" role="img" aria-label="The loss; its numbers stand below."></svg>
<p>Bold: validation, on whole tales if there are any. Faint: training, smoothed.
<b id="link" role="status" hidden>watch.py has ended: this page no longer grows.</b></p>
<dl id="facts"></dl>
<div id="bar"></div>
<div id="samples"></div>
<noscript>This page needs JavaScript.</noscript>
<script>
/*CHART*/
const PARTS = { compute: "#44618a", optimizer: "#8fa6c8", data: "#c9a227", comm: "#b5651d" };
let run = blank(0);

// ---- what a run has said ----

function blank(version) {
  return { version, known: 0, train: [], evals: [], samples: [], last: {}, seconds: 0, spent: {},
           floor: null };
}

function take(e) {
  const point = y => ({ tokens: e.tokens, step: e.step, seconds: run.seconds, y });
  run.known++;
  if (e.event === "step" || e.event === "skip") {
    run.seconds += e.seconds ?? 0;
    for (const part in PARTS)
      run.spent[part] = (run.spent[part] ?? 0) + (e["seconds_" + part] ?? 0);
    if (e.loss != null) run.train.push(point(e.loss));
    run.last = e;
  } else if (e.event === "eval") {
    const loss = e.whole_loss ?? e.val_loss;
    if (loss != null) run.evals.push(point(loss));
    run.floor = e.whole_floor ?? run.floor;
  } else if (e.event === "sample") run.samples.push(e);
  run.end = e.event === "end" ? e.reason : null;
}

function hear(said) {
  if (run.version !== said.version) run = blank(said.version);
  Object.assign(run, { name: said.name, begin: said.begin, quiet: said.quiet,
                       damaged: said.damaged });
  run.floor = run.floor ?? said.begin.floor ?? null;
  if (said.known === run.known) said.events.forEach(take);
}

// ---- numbers as words ----

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

// The means of points that are close: a training loss is noisy.
function means(points, most) {
  const bins = new Map();
  for (const [x, y] of points) {
    const bin = Math.round(300 * x / most), seen = bins.get(bin) ?? { x: 0, y: 0, n: 0 };
    seen.x += x, seen.y += y, seen.n++;
    bins.set(bin, seen);
  }
  return [...bins.values()].map(b => [b.x / b.n, b.y / b.n]);
}

function draw() {
  const axis = byId("x").value, { floor } = run, color = "#2a8fd0";
  const [train, evals] = [run.train, run.evals].map(all => all.map(p => [p[axis], p.y]));
  const xMost = [...train, ...evals].reduce((most, p) => Math.max(most, p[0]), 0) || 1;
  const curve = means(train, xMost), seen = [...curve, ...evals].map(p => p[1]);
  if (!seen.length) seen.push(1);
  if (floor !== null) seen.push(floor);
  const low = seen.reduce((a, b) => Math.min(a, b)), high = seen.reduce((a, b) => Math.max(a, b));
  const room = 0.1 * (high - low || 1);
  chart(byId("chart"), {
    lines: [{ points: curve, color, faint: true }, { points: evals, color, dots: true }],
    xMost, xLabel: byId("x").selectedOptions[0].text, yLabel: "loss", low: low - room,
    high: high + room, level: floor !== null && {
      y: floor, words: `floor ${floor.toFixed(3)}: no model can do better` } });
}

// ---- below it ----

function element(tag, parent, words) {
  const made = document.createElement(tag);
  made.textContent = words;
  return parent.appendChild(made);
}

function show() {
  const { last, train } = run, seen = run.evals[run.evals.length - 1], from = train.slice(-100)[0];
  const to = train[train.length - 1], total = Object.values(run.spent).reduce((a, b) => a + b, 0);
  const floor = run.floor === null ? "" : `, at best ${run.floor.toFixed(3)}`;
  const facts = [["state", state()]];
  if (run.damaged) facts.push(["log", `line ${run.damaged} is not an event: left out`]);
  if (last.tokens)
    facts.push(["trained on", `${brief(last.tokens)} tokens in ${last.step} updates`]);
  if (to) facts.push(["training loss", to.y.toFixed(3)]);
  if (seen) facts.push(["validation", seen.y.toFixed(4) + floor]);
  if (from !== to) facts.push(["speed",
    `${brief((to.tokens - from.tokens) / (to.seconds - from.seconds))} tokens a second`]);
  byId("bar").replaceChildren();
  for (const [part, colour] of Object.entries(PARTS).filter(([part]) => run.spent[part] > 0)) {
    const share = (100 * run.spent[part] / total).toFixed(1);
    facts.push([part, `${span(run.spent[part])}, ${share}%`, `border-left:.7rem solid ${colour}`]);
    element("span", byId("bar"), "").style = `width:${share}%;background:${colour}`;
  }
  byId("facts").replaceChildren();
  for (const [name, words, style] of facts) {
    element("dt", byId("facts"), name).style = style ?? "";
    element("dd", byId("facts"), words);
  }
  byId("samples").replaceChildren();
  for (const sample of run.samples.slice(-5).reverse()) {
    element("h2", byId("samples"), `Sample after update ${sample.step}`);
    element("pre", byId("samples"), sample.text || "(nothing)");
  }
  byId("name").textContent = document.title = run.name;
  draw();
}

// ---- the server is asked every second ----

async function poll() {
  try {
    hear(await (await fetch(`/news?${run.version}.${run.known}`)).json());
    byId("link").hidden = true;
    show();
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;          // fetch failed
    byId("link").hidden = false;
  }
  setTimeout(poll, 1000);
}

byId("x").addEventListener("input", draw);
addEventListener("resize", draw);
poll();
</script>
</html>
"""
CHART = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "dev", "web",
                     "chart.js")


# ---------------------------------------------------------------- CSV, and the command line

def write_csv(run, out):
    """A row an event, a column for each field of any event."""
    events = events_of(run)
    columns = list(dict.fromkeys(key for event in events for key in event))
    table = csv.writer(out, lineterminator="\n")
    table.writerow(columns)
    for event in events:
        table.writerow([json.dumps(value) if isinstance(value, (bool, dict, list)) else value
                        for value in map(event.get, columns)])
    out.flush()


def serve(run, port):
    Handler.run = run
    try:
        server = Server(("127.0.0.1", port), Handler)
    except (OSError, OverflowError) as error:
        fail(f"--port {port}: {error}; leave it out for a free one")
    print(f"http://127.0.0.1:{server.server_port}/ shows {run.name}; Ctrl-C ends it", flush=True)
    server.serve_forever()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", metavar="OUT", help="output directory, or log.jsonl")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="default: a free one")
    parser.add_argument("--csv", action="store_true", help="print every event as CSV, and stop")
    args = parser.parse_args()
    run = Run(args.run)
    if os.path.exists(run.path) and not os.path.isfile(run.path):
        fail(f"{run.path}: is not a file; a log is read again and again, as a pipe cannot be")
    try:
        if args.csv:
            sys.stdout.reconfigure(encoding="utf-8", errors="replace")
            write_csv(run, sys.stdout)
        else:
            serve(run, args.port)
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:                                  # | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
