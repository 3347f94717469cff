#!/usr/bin/env python3
"""Experiment 3: seconds to a loss, and device-hours, against the number of workers.

    scripts/lab/03_time.py --quick

    T(B, n) = S(B) * t_step(B, n)

S(B) is the fit of 02_knee.py, which must run first. A worker's compute time is measured here, on
one core. The ring all-reduce between workers is modelled, and so are all seconds to a loss.
"""
import json
import math
import os
from collections import namedtuple

import fit
import lab

SEQUENCE = 32                        # tokens; a worker has at least one sequence of an update
DOUBLE = 2.0                         # device-hours, relative to one worker

# Bandwidth in bytes a second, latency in seconds a message.
LINKS = [("free link", math.inf, 0.0), ("10 GB/s, 5 µs", 10e9, 5e-6),
         ("1.25 GB/s, 50 µs (10 Gbit Ethernet)", 1.25e9, 50e-6)]

# What was measured and fitted, for the lowest target that has a fit.
World = namedtuple("World", "target knee device b_sat largest size")

# The fastest batch for n workers.
Best = namedtuple("Best", "workers batch seconds hours")


def arguments(parser):
    parser.add_argument("--link", action="append", metavar="GB/S,US", help="adds a link: "
                        "gigabytes a second and microseconds a message; repeatable")


def links(e):
    more = []
    for text in e.args.link or []:
        try:
            bandwidth, latency = map(float, text.split(","))
        except ValueError:
            bandwidth = latency = 0.0
        if bandwidth <= 0.0 or latency < 0.0:
            lab.fail(f"--link {text}: expected GB/s and microseconds, as in 10,5")
        more.append((f"{bandwidth:g} GB/s, {latency:g} µs", bandwidth * 1e9, latency * 1e-6))
    return LINKS + more


# ---------------------------------------------------------------- what is measured

def read_fit(e):
    path = os.path.join(e.args.out, "02_knee", "fit.json")
    try:
        with open(path, encoding="utf-8") as f:
            known = json.load(f)
    except OSError:
        lab.fail(f"{path}: missing; run scripts/lab/02_knee.py first, with the same --out")
    except ValueError:
        lab.fail(f"{path}: is damaged; run scripts/lab/02_knee.py again")
    return known


def time_steps(e):
    """[(tokens, seconds of an update)] of one worker on one core, while no other run of the lab is
    active. The lower quartile of the updates: other load on the machine can only add time."""
    shares = e.pick([32, 256, 1024], [32, 64, 128, 256, 512, 1024, 2048, 4096],
                    [32, 64, 128, 256, 512, 1024, 2048, 4096, 8192])
    total = e.pick(20e3, 150e3, 1e6)                         # tokens a run: a second, quick
    jobs = [lab.Job(f"b{b}", [
        "--data", e.corpus(4 * 10 ** 6), *e.model(), "--micro-batch", min(b // SEQUENCE, 64),
        "--batch-tokens", b, "--lr", "1e-3", "--steps", max(12, int(total / b)),
        "--eval-every", "0", "--eval-tokens", "1024", "--seed", "1"], alone=True, thin=400)
        for b in shares]
    runs = e.run(jobs)
    times = {b: sorted(step["seconds"] for step in runs[f"b{b}"].steps) for b in shares}
    return [(b, times[b][len(times[b]) // 4]) for b in shares]


def build(e, known, measured):
    """The World; None, with a verdict, if experiment 2 has no fit."""
    fits = [f for f in known["fits"] if f["b_crit"]]
    if not fits:
        e.verdict("skipped", "experiment 2 has no fit to build on: " + known["fits"][-1]["refused"])
        return None
    lowest = min(fits, key=lambda f: f["target_nats"])
    device = fit.fit_device(*zip(*measured))
    knee = fit.Knee(lowest["s_min"], lowest["b_crit"], lowest["rms"], lowest["b_crit_low"],
                    lowest["b_crit_high"], None)
    return World(lowest["target_nats"], knee, device, fit.saturated(measured),
                 max(known["batches"][str(lowest["target_nats"])]), 4.0 * known["parameters"])


# ---------------------------------------------------------------- the model

def seconds(w, batch, workers, link):
    _, bandwidth, latency = link
    return fit.target_seconds(batch, workers, w.knee.s_min, w.knee.b_crit, w.device,
                              fit.Link(w.size, bandwidth, latency))


def worker_counts(w, batch=None):
    """1, 2, 4, ... up to one sequence each."""
    most = (batch or w.largest) // SEQUENCE
    return [2 ** i for i in range(most.bit_length()) if 2 ** i <= most]


def best(w, workers, link):
    """The fastest batch among powers of two, from one sequence a worker to the largest measured."""
    batches = [SEQUENCE * n for n in worker_counts(w) if n >= workers]
    batch = min(batches, key=lambda b: seconds(w, b, workers, link))
    spent = seconds(w, batch, workers, link)
    return Best(workers, batch, spent, fit.device_hours(spent, workers))


def curve(w, link):
    return [best(w, n, link) for n in worker_counts(w)]


def workers_at(bests, ratio=DOUBLE):
    """Workers at which device-hours reach `ratio` times those of one worker, interpolated; None if
    they never do."""
    one = bests[0].hours
    for last, now in zip(bests, bests[1:]):
        if now.hours >= ratio * one:
            share = math.log(ratio * one / last.hours) / math.log(now.hours / last.hours)
            return last.workers * (now.workers / last.workers) ** share
    return None


# ---------------------------------------------------------------- pictures

def draw_time(plt, e, w):
    figure, (above, below) = plt.subplots(2, 1, figsize=(6.4, 8.8), layout="constrained")
    for i, batch in enumerate(shown_batches(w)):
        counts = worker_counts(w, batch)
        above.plot(counts, [seconds(w, batch, n, LINKS[0]) for n in counts],
                   color=lab.COLOURS[i], marker=lab.MARKERS[i], linestyle=lab.LINES[i],
                   markersize=5, label=f"batch {batch:,} tokens, free link")
    for i, link in enumerate(links(e)):
        bests = curve(w, link)
        style = {"color": "black" if i == 0 else lab.COLOURS[(i + 2) % 6],
                 "linestyle": lab.LINES[i], "linewidth": 2.2 if i == 0 else 1.6}
        above.plot([b.workers for b in bests], [b.seconds for b in bests],
                   label=f"best batch, {link[0]}", **style)
        below.plot([bests[0].seconds / b.seconds for b in bests],
                   [b.hours / bests[0].hours for b in bests], marker=lab.MARKERS[i], markersize=5,
                   label=f"best batch, {link[0]}", **style)
    for axis in (above.xaxis, above.yaxis, below.xaxis, below.yaxis):
        lab.log_axis(axis, base=10 if axis is above.yaxis else 2)
    low, high = fit.useful_workers(w.knee.b_crit, w.b_sat)
    above.axvspan(low, high, color="#999999", alpha=0.25, linewidth=0,
                  label=r"predicted $n_{max}$: 1 to 3 $B_{crit}/b_{sat}$")
    below.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    lab.axes(above, "workers",
             f"seconds to loss {w.target:g}, modelled")
    lab.axes(below, "speed-up over one worker (modelled)", "device-hours / one worker's (modelled)")
    above.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncol=2, fontsize=8)
    below.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncol=2, fontsize=8)
    above.set_title("Time falls with workers while the batch can be split", loc="left")
    below.set_title("What the speed-up costs", loc="left")
    return figure


def shown_batches(w):
    """Powers of two near a quarter of, once and four times B_crit, as far as they were measured."""
    near = [2 ** round(math.log2(w.knee.b_crit * x)) for x in (0.25, 1.0, 4.0)]
    return sorted({max(SEQUENCE, min(w.largest, b)) for b in near})


def draw_accumulation(plt, w, measured):
    """One device with gradient accumulation: T(B, 1), the micro-batches of an update in turn."""
    figure, (above, below) = plt.subplots(2, 1, figsize=(6.4, 7.2), layout="constrained")
    batches = [SEQUENCE * n for n in worker_counts(w)]
    above.plot([b for b, _ in measured], [b / t for b, t in measured], color=lab.COLOURS[0],
              marker=lab.MARKERS[0], linestyle="", label="measured")
    above.plot(batches, [b / fit.step_seconds(b, 1, w.device, fit.Link(0, 1, 0)) for b in batches],
              color=lab.COLOURS[0], label="fixed + proportional, fitted")
    above.axvline(w.b_sat, color="black", linewidth=1, linestyle=":",
                  label=r"$b_{sat}$: 90% of the best")
    below.plot(batches, [seconds(w, b, 1, LINKS[0]) for b in batches], color=lab.COLOURS[1],
               marker=lab.MARKERS[1], label="one device, larger batch: accumulation")
    together = [(b, seconds(w, b, b // SEQUENCE, LINKS[0])) for b in batches]
    below.plot(*zip(*together), color=lab.COLOURS[2], marker=lab.MARKERS[2], linestyle="--",
               label="a worker for each sequence, free link")
    for ax in (above, below):
        lab.log_axis(ax.xaxis, base=2)
    above.set_ylim(bottom=0)
    above.yaxis.set_major_formatter(lambda y, _: f"{y:,.0f}")
    lab.log_axis(below.yaxis)
    lab.axes(above, "tokens of an update on one core", "tokens a second, one core")
    lab.axes(below, "batch (tokens an update)", f"seconds to loss {w.target:g}, modelled")
    above.legend(loc="lower right")
    below.legend(loc="lower left")
    above.set_title("One device is soon saturated ...", loc="left")
    below.set_title("... and accumulation then only costs time (modelled)", loc="left")
    return figure


# ---------------------------------------------------------------- words

def write(e, w, measured):
    e.csv("step", ["tokens", "seconds", "tokens_per_second", "seconds_fit"],
          [[b, t, b / t, fit.step_seconds(b, 1, w.device, fit.Link(0, 1, 0))]
           for b, t in measured])
    e.csv("workers", ["link_modelled", "workers", "best_batch_tokens", "seconds_modelled",
                      "speedup", "device_hours", "device_hours_of_one"],
          [[link[0], b.workers, b.batch, b.seconds, bests[0].seconds / b.seconds, b.hours,
            b.hours / bests[0].hours]
           for link in links(e) for bests in [curve(w, link)] for b in bests])
    e.csv("accumulation", ["batch_tokens", "updates_fit", "seconds_modelled"],
          [[b, fit.predicted_updates(b, w.knee.s_min, w.knee.b_crit), seconds(w, b, 1, LINKS[0])]
           for b in (SEQUENCE * n for n in worker_counts(w))])


def tell(e, w):
    """Returns what judge needs: the workers that double the device-hours, on a free link, and how
    much longer one device takes with the largest batch than with its best."""
    low, high = fit.useful_workers(w.knee.b_crit, w.b_sat)
    e.say(f"One core, fitted: {1e3 * w.device.fixed:.2f} ms of fixed cost an update, then "
          f"{1 / w.device.per_token:,.0f} tokens/s. It reaches 90% of its best measured speed at "
          f"b_sat = {w.b_sat:,} tokens. B_crit/b_sat is {low:.0f} workers at loss {w.target:g}.")
    answers = []
    for link in links(e):
        bests = curve(w, link)
        doubled = workers_at(bests)
        answers.append(doubled)
        fastest = min(bests, key=lambda b: b.seconds)
        cheap = [b for b in bests if b.hours <= 1.25 * bests[0].hours][-1]
        e.say(f"Modelled, {link[0]}: with at most a quarter more device-hours the speed-up is "
              f"{bests[0].seconds / cheap.seconds:.1f}, on {count(cheap.workers)}; "
              + (f"device-hours double at {doubled:.0f} workers" if doubled
                 else f"device-hours do not double up to {bests[-1].workers} workers")
              + "; the largest speed-up is "
              f"{bests[0].seconds / fastest.seconds:.1f}, on {count(fastest.workers)} with batch "
              f"{fastest.batch:,}, for {fastest.hours / bests[0].hours:.1f} times the "
              "device-hours.")
    batches = [SEQUENCE * n for n in worker_counts(w)]
    alone = {b: seconds(w, b, 1, LINKS[0]) for b in batches}
    least = min(alone, key=alone.get)
    e.say(f"Modelled, gradient accumulation on one device: batch {least:,} is fastest, "
          f"{alone[least]:.1f} s; batch {batches[-1]:,} takes "
          f"{alone[batches[-1]] / alone[least]:.1f} times as long.")
    return answers[0], alone[batches[-1]] / alone[least]


def count(workers):
    return f"{workers} worker{'' if workers == 1 else 's'}"


def beyond(w, most):
    """(n, how much faster than n workers the fastest setting is) on a free link, n near `most`."""
    bests = curve(w, LINKS[0])
    at = min(bests, key=lambda b: abs(math.log(b.workers / most)))
    return at.workers, at.seconds / min(b.seconds for b in bests)


def judge(e, w, doubled, accumulated):
    low, high = fit.useful_workers(w.knee.b_crit, w.b_sat)
    at, gain = beyond(w, high)
    right = [doubled is not None and low <= doubled <= high, gain < 4.0 / 3.0, accumulated > 1.0]
    where = f"{doubled:.0f} workers" if doubled else "no number of workers tried"
    why = (f"modelled, on a free link: device-hours double at {where} (predicted: {low:.0f} "
           f"to {high:.0f}); beyond {at} workers, any number of further ones adds a factor of "
           f"{gain:.2f} in speed (predicted: less than 1.33). One device that accumulates "
           f"{w.largest:,} tokens takes {accumulated:.1f} times its least time (predicted: more)")
    e.verdict({0: "failed", 3: "as predicted"}.get(sum(right), "partly"), why)


def main():
    e = lab.Experiment(
        3, "time", title="Time against device-hours", arguments=arguments,
        question="How much faster is a loss reached with more workers, and what does it cost?",
        prediction="The useful number of workers is n_max = (1 to 3) B_crit/b_sat. On a free link "
        "device-hours double within that range. Beyond it more workers add less than a third in "
        "speed, because S cannot fall below S_min and a worker needs at least one sequence. "
        "Gradient accumulation on one device saves no time once that device is saturated.")
    known = read_fit(e)
    measured = time_steps(e)
    w = build(e, known, measured)
    if w:
        e.setting(f"A worker is one core, measured at {len(measured)} sizes of an update; S(B) is "
                  f"experiment 2's fit at loss {w.target:g} ({known['size']} settings). Each "
                  f"worker's {w.size:,.0f} bytes of gradients go through a ring all-reduce, which "
                  "overlaps with up to two thirds of the backward pass: modelled, as all seconds "
                  "to a loss are. b_sat is the smallest measured update with 90% of the best "
                  "measured speed, as in experiment 4.")
        caption = ("One worker's speed is measured; all seconds are modelled: the fit's updates x "
                   "a line through that speed.")
        write(e, w, measured)
        e.figure("time", lambda plt: draw_time(plt, e, w), alt=(
            "Above: modelled seconds to the loss against the number of workers, for three batches "
            "and for the best batch on three links; the curves fall and then flatten. Below: "
            "device-hours against speed-up, flat at first, then rising steeply."),
            caption=caption)
        e.figure("accumulation", lambda plt: draw_accumulation(plt, w, measured), alt=(
            "Above: tokens a second of one core against the tokens of an update, soon flat. Below: "
            "modelled seconds to the loss against the batch: rising on one device, falling with a "
            "worker for each sequence."),
            caption="Gradient accumulation makes every update longer. " + caption)
        judge(e, w, *tell(e, w))
    e.close()


if __name__ == "__main__":
    main()
