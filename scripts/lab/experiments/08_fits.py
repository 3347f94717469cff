#!/usr/bin/env python3
"""Experiment 8: does it fit, is it fast? Memory and days of GPT-2's four sizes and of 7B, 70B and
175B on 1 to 512 GPUs, as the trainer's --plan and --plan-search model them; and the plan against
memory and seconds measured here.

    scripts/lab/experiments/08_fits.py --quick
"""
import json
import os
import shlex
import subprocess
from collections import namedtuple

import _path
import lab
from peak import peak_of

# micro: at most this many sequences a forward pass; batch: tokens an update; tokens: of the whole
# run, None for 20 a parameter (Hoffmann et al. 2022).
Model = namedtuple("Model", "name flags seq_len micro batch tokens")


def large(name, layers, heads, channels, tokens):
    flags = ["--layers", layers, "--heads", heads, "--channels", channels, "--recompute", "block"]
    return Model(name, flags, 2048, 1, 2 ** 22, tokens)


GPT2 = [Model(name, ["--init", init], 1024, 8, 2 ** 19, None)
        for name, init in [("124M", "d12"), ("355M", "d24"), ("774M", "d36"), ("1.6B", "d48")]]
LARGE = [large("7B", 32, 32, 4096, None), large("70B", 80, 64, 8192, None),
         large("175B", 96, 96, 12288, 300e9)]
MODELS = GPT2 + LARGE

GPU, NODE = "h100", 8                            # GPUs of a machine, on the fast link
FAST, SLOW = "450GB/s", "50GB/s+5us"             # NVLink; one 400 Gbit/s adapter a GPU
GPUS = [1, 8, 64, 512]
YEAR = 365.25                                    # days
UNIT = 80e9                                      # bytes of a GPU


# ---------------------------------------------------------------- asking the trainer

def plans(e, flags):
    """The events that `--plan` logs, which trains nothing."""
    log = os.path.join(e.dir, "plan.jsonl")
    if os.path.exists(log):
        os.remove(log)
    program = e.args.trainer if os.sep in e.args.trainer else os.path.join(".", e.args.trainer)
    command = [program, "--plan", *[str(flag) for flag in flags], "--log", log]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False,
                          env=dict(os.environ, OMP_WAIT_POLICY="passive"))
    events = list(lab.read_log(log))
    if done.returncode or not events or not events[-1]["event"].startswith("plan"):
        lab.fail(f"{shlex.join(command)}: {lab.last_line(done.stdout.decode('utf-8', 'replace'))}")
    os.remove(log)
    return events


def plan(e, flags):
    return plans(e, flags)[-1]


def links(count):
    return FAST if count <= NODE else f"{FAST}:{NODE}+{SLOW}"


def on_gpus(e, model, count, stage, micro, speed=GPU, tokens=None):
    given = ["--tokens", f"{tokens:.0f}"] if tokens else []
    return plan(e, [*model.flags, "--seq-len", model.seq_len, "--micro-batch", micro,
                    "--batch-tokens", model.batch, "--zero", stage, *given,
                    "--plan-gpu", f"{speed},{count},{links(count)}"])


def memory_plans(e):
    """A GPU's memory: alone, and with everything that ZeRO can shard shared among 8, 64 and 512."""
    return {(m.name, count): on_gpus(e, m, count, 3 if count > 1 else 0, 1)
            for m in MODELS for count in GPUS}


def time_plans(e):
    """Data parallel, each with the largest power-of-two micro-batch that the batch and the memory
    allow: ZeRO 1 for a GPT-2, 3 for the others."""
    found = {}
    for m in MODELS:
        tokens = m.tokens or 20 * on_gpus(e, m, 1, 0, 1)["parameters"]
        for count in GPUS:
            share = m.batch // (m.seq_len * count)           # sequences of a GPU in an update
            stage = 0 if count == 1 else 1 if m in GPT2 else 3
            room = on_gpus(e, m, count, stage, 1)["fits_micro_batch"] or 1
            micro = 2 ** (min(share, m.micro, room).bit_length() - 1)
            found[m.name, count] = on_gpus(e, m, count, stage, micro, tokens=tokens)
    return found


def mixtures(e, times):
    """The fastest mixture of data, tensor and pipeline parallelism that fits, for the models that
    do not fit on one GPU; None where nothing does. A critical batch of 1e15 keeps the tokens as
    they are."""
    found = {}
    for m in LARGE:
        sizes = m.flags[:m.flags.index("--recompute")]
        for count in GPUS:
            events = plans(e, ["--plan-search", *sizes, "--seq-len", m.seq_len, "--batch-tokens",
                               m.batch, "--tokens", f"{times[m.name, count]['tokens']:.0f}",
                               "--plan-b-crit", "1e15", "--plan-gpu",
                               f"{GPU},{count},{links(count)}"])
            fitting = [x for x in events if x["fits"]]
            found[m.name, count] = min(fitting, key=lambda x: x["seconds"], default=None)
    return found


def published(e):
    """Two figures for 175B and 300B tokens, by the rule 8ND/(nX): Narayanan et al. 2021."""
    v100 = on_gpus(e, MODELS[-1], 1, 0, 1, "v100@46.2", 300e9)["days_rule"] / YEAR
    a100 = on_gpus(e, MODELS[-1], 1024, 0, 1, "a100@140", 300e9)["days_rule"]
    return v100, a100


# ---------------------------------------------------------------- the plan against this machine

# Bytes. held: the peak of one process, less `own`, what any process of the program holds.
Check = namedtuple("Check", "name planned held own")
SPECK = ["--layers", "1", "--heads", "1", "--channels", "8"]
STAGES = [0, 1, 2, 3]
UPDATES = 12                                     # that are timed


def check_flags(e, model, ranks, stage):
    flags = ["--data", e.corpus(10 ** 6), *model, "--seq-len", 64, "--micro-batch", 4,
             "--batch-tokens", 4 * 64 * 2, "--zero", stage]
    return flags + (["--plan-gpu", f"here@0.1,{ranks}"] if ranks > 1 else [])


def allocation_job(e, name, model, ranks, stage):
    """A few updates under peak.py, which prints the peak memory of a process."""
    trainer = e.args.trainer if os.sep in e.args.trainer else os.path.join(".", e.args.trainer)
    if ranks > 1:
        trainer = os.path.join("build", "train_gpt2-mpi")
    front = [os.path.join("scripts", "launch.sh"), "-n", ranks] if ranks > 1 else []
    steps = 2 if ranks > 1 or model == SPECK else UPDATES
    return lab.Job(name, [*front, trainer, *check_flags(e, model, 1, stage), "--steps", steps,
                          "--eval-every", 0, "--eval-tokens", 256], alone=True,
                   program=os.path.join("scripts", "lab", "shared", "peak.py"))


def checks_here(e):
    """Memory of a model in one process and on two ranks, and the seconds of one process's updates.
    Program, libraries and data are measured with a tiny model and subtracted."""
    model = e.pick(tiny=["--layers", "4", "--heads", "4", "--channels", "256"],
                   quick=["--layers", "6", "--heads", "8", "--channels", "512"],
                   full=["--layers", "12", "--heads", "12", "--channels", "768"])
    cases = [("one process", 1, 0)]
    if lab.has_mpi() and not lab.is_cuda(e.args.trainer):
        cases += [(f"2 ranks, ZeRO {stage}", 2, stage) for stage in STAGES]
    jobs, names = [], {}
    for case, ranks, stage in cases:
        for kind, flags in [("speck", SPECK), ("model", model)]:
            if kind == "speck" and stage > 0:
                continue
            names[case, kind] = f"{kind}_{ranks}_zero{stage}"
            jobs.append(allocation_job(e, names[case, kind], flags, ranks, stage))
    runs = e.run(jobs)
    checks = []
    for case, ranks, stage in cases:
        bare = cases[0][0] if ranks == 1 else cases[1][0]
        own, held = peak_of(runs[names[bare, "speck"]]), peak_of(runs[names[case, "model"]])
        if own is None or held is None:
            continue
        own -= planned(e, SPECK, ranks, 0)
        checks.append(Check(case, planned(e, model, ranks, stage), held - own, own))
    return checks, timing(e, model, runs[names["one process", "model"]])


def planned(e, model, ranks, stage):
    return plan(e, check_flags(e, model, ranks, stage))["bytes_total"]


# Seconds of an update: planned, and measured: the median and the quartiles.
Timing = namedtuple("Timing", "planned measured low high")


def timing(e, model, run):
    """The plan measures this machine's speed on a block of the model, without training it; a picture
    that is drawn again, perhaps on a busy machine, keeps what was measured."""
    seconds = sorted(x["seconds"] for x in run.steps[2:])
    flags = check_flags(e, model, 1, 0) + ["--threads", 1]
    kept = os.path.join(e.dir, "planned.json")
    if not (e.args.redraw and os.path.exists(kept)):
        lab.write_json(kept, [plan(e, flags)["seconds_per_step"] for _ in range(3)])
    with open(kept, encoding="utf-8") as file:
        guesses = json.load(file)
    return Timing(lab.median(guesses), lab.median(seconds), seconds[len(seconds) // 4],
                  seconds[-1 - len(seconds) // 4])


# ---------------------------------------------------------------- tables

def write_tables(e, memory, times, mixed, checks, clocked):
    fields = ["params", "grads", "moments", "activations", "logits", "passing", "rest", "total"]
    e.csv("memory", ["model", "parameters", "gpus", "zero", "micro_batch", "seq_len", "recompute",
                     "precision", *[f"{name}_bytes" for name in fields], "textbook_bytes", "fits"],
          [[name, p["parameters"], p["workers"], p["zero"], p["micro_batch"], p["T"],
            int(p["recompute"]), p["precision"], *[p[f"bytes_{field}"] for field in fields],
            p[f"textbook_bytes_{p['zero']}"], int(p["fits"])]
           for (name, _), p in memory.items()])
    e.csv("days", ["model", "gpus", "zero", "micro_batch", "batch_tokens", "tokens", "fits",
                   "speed_flops", "seconds_per_step", "seconds_compute", "seconds_exposed",
                   "modelled_days", "modelled_gpu_hours"],
          [[name, count, p["zero"], p["micro_batch"], p["batch_tokens"], p["tokens"],
            int(p["fits"]), p["speed_flops"], p["seconds_per_step"], p["seconds_compute"],
            p["seconds_exposed"], p["days"], p["device_hours"]]
           for (name, count), p in times.items()])
    e.csv("mixtures", ["model", "gpus", "data", "tensor", "pipeline", "zero", "micro_batch",
                       "recompute", "bytes_total", "modelled_days"],
          [[name, count, m["data"], m["tensor"], m["pipeline"], m["zero"], m["micro_batch"],
            int(m["recompute"]), m["bytes_total"], m["seconds"] / 86400]
           for (name, count), m in mixed.items() if m])
    e.csv("allocated", ["case", "planned_bytes", "measured_bytes", "relative_error",
                        "process_bytes"],
          [[c.name, c.planned, c.held, c.planned / c.held - 1.0, c.own] for c in checks])
    e.csv("seconds", ["planned_seconds", "measured_seconds", "lower_quartile", "upper_quartile"],
          [list(clocked)])


# ---------------------------------------------------------------- pictures

def draw_memory(plt, memory):
    """One axis for all: a GPU's share of each model, in units of an 80 GB GPU."""
    figure, ax = plt.subplots(figsize=(10.5, 5.2), constrained_layout=True)
    for row, m in enumerate(MODELS):
        shares = [memory[m.name, count]["bytes_total"] / UNIT for count in GPUS]
        ax.plot([min(shares), max(shares)], [row, row], color="#bbbbbb", linewidth=1.5, zorder=1)
        for i, (count, share) in enumerate(zip(GPUS, shares)):
            fits = memory[m.name, count]["fits"]
            ax.plot([share], [row], marker=lab.MARKERS[i], markersize=9, linestyle="none",
                    color=lab.COLOURS[i], fillstyle="full" if fits else "none", zorder=3)
            if m is MODELS[-1]:
                ax.annotate(f"{count} GPU{'s' if count > 1 else ''}", (share, row),
                            xytext=(0, 12), textcoords="offset points", ha="center", fontsize=9,
                            color=lab.COLOURS[i])
    ax.axvline(1.0, color="black", linewidth=1.4, linestyle="--")
    ax.text(1.03, -0.75, "an 80 GB GPU is full", fontsize=9, va="center")
    ax.set_yticks(range(len(MODELS)))
    ax.set_yticklabels([m.name for m in MODELS])
    ax.set_ylim(-1.1, len(MODELS) - 0.3)
    lab.log_axis(ax.xaxis)
    lab.axes(ax, "memory of a GPU, in units of 80 GB (planned: bf16 with AdamW, one sequence; "
                 "several GPUs: ZeRO 3; hollow: does not fit)", "")
    ax.set_title(memory_title(memory), loc="left", fontsize=11)
    return figure


def memory_title(memory):
    alone = [m.name for m in MODELS if memory[m.name, 1]["fits"]]
    first = {m.name: next((n for n in GPUS if memory[m.name, n]["fits"]), None) for m in LARGE}
    parts = [f"{name} {f'on {n}' if n else f'on none of {GPUS[-1]}'}" for name, n in first.items()
             if n != 1]
    return (f"{alone[0]} to {alone[-1]} fit on one GPU with all of AdamW's state; "
            f"with ZeRO 3, {', '.join(parts)}")


def days_of(m, times, mixed):
    """{GPUs: days}: data parallel, or for large models the fastest mixture that fits."""
    if m in GPT2:
        return {n: times[m.name, n]["days"] for n in GPUS}
    return {n: mixed[m.name, n]["seconds"] / 86400 for n in GPUS if mixed[m.name, n]}


def draw_days(plt, times, mixed):
    figure, ax = plt.subplots(figsize=(10.5, 6.2), constrained_layout=True)
    for i, m in enumerate(MODELS):
        days = days_of(m, times, mixed)
        if not days:
            continue
        first = min(days)
        ax.plot(list(days), list(days.values()), color=lab.COLOURS[i], linewidth=1.6,
                marker="o" if m in GPT2 else "D", markersize=6.5)
        ax.plot(list(days), [days[first] * first / n for n in days], color=lab.COLOURS[i],
                linewidth=0.8, linestyle=":", zorder=1)
        tokens = times[m.name, 1]["tokens"] / 1e9
        ax.annotate(f"{m.name}, {tokens:,.{1 if tokens < 100 else 0}f}B tokens",
                    (first, days[first]), xytext=(4, -24 if m is LARGE[-1] else 6),
                    textcoords="offset points", color=lab.COLOURS[i], fontsize=9)
    for days, name in [(1.0 / 24, "an hour"), (1.0, "a day"), (30.0, "a month"), (YEAR, "a year")]:
        ax.axhline(days, color="#999999", linewidth=0.6)
        ax.text(1.01, days, name, fontsize=8.5, va="center", transform=ax.get_yaxis_transform())
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(GPUS)
    ax.set_xticklabels([str(n) for n in GPUS])
    ax.minorticks_off()
    lab.axes(ax, "H100s (circles: data parallel; diamonds: the fastest mixture that fits; dotted: "
                 "in proportion)", "days to train (modelled)")
    big = GPT2[-1].name
    ax.set_title(f"GPT-2 {big}: {shown(times[big, 1]['days'])} on one GPU, "
                 f"{shown(times[big, 8]['days'])} on 8, {shown(times[big, 64]['days'])} on 64",
                 loc="left", fontsize=11)
    return figure


def draw_here(plt, checks, clocked):
    """Planned over measured: memory of each case, and the seconds of an update."""
    figure, ax = plt.subplots(figsize=(10.5, 0.5 * len(checks) + 2.0), constrained_layout=True)
    names = [f"memory, {c.name}" for c in checks] + ["seconds of an update"]
    for row, c in enumerate(checks):
        ax.plot([c.planned / c.held], [row], marker="o", markersize=9, color=lab.COLOURS[0])
    row = len(checks)
    ax.plot([clocked.planned / clocked.high, clocked.planned / clocked.low], [row, row],
            color=lab.COLOURS[1], linewidth=2)
    ax.plot([clocked.planned / clocked.measured], [row], marker="s", markersize=9,
            color=lab.COLOURS[1])
    ax.axvline(1.0, color="black", linewidth=1.0)
    ax.axvspan(0.95, 1.05, color="#eeeeee", zorder=0)
    ax.set_yticks(range(len(names)))
    ax.set_yticklabels(names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    lab.axes(ax, "planned / measured here (bar: quartiles of updates; grey: within 5%)", "")
    worst = max((abs(c.planned / c.held - 1) for c in checks), default=0.0)
    ax.set_title(f"Memory is planned within {100 * worst:.1f}%, an update's time within "
                 f"{100 * abs(clocked.planned / clocked.measured - 1):.0f}%", loc="left",
                 fontsize=11)
    return figure


# ---------------------------------------------------------------- what was seen

def shown(days):
    if days >= 2 * YEAR:
        return f"{days / YEAR:,.0f} years"
    if days >= 2.0:
        return f"{days:,.3g} days"
    return f"{24 * days:.3g} hours" if days >= 2.0 / 24 else f"{1440 * days:.2g} minutes"


def efficiency(times, name, count):
    """Scaling efficiency: the speed-up on `count` GPUs, divided by `count`."""
    return times[name, 1]["days"] / (count * times[name, count]["days"])


def off(part, whole):
    error = 100.0 * (part / whole - 1.0)
    return f"{abs(error):.1f}% {'low' if error < 0.0 else 'high'}"


def mixture_words(m):
    return (f"{shown(m['seconds'] / 86400)} on {m['data'] * m['tensor'] * m['pipeline']} as "
            f"{m['data']} x {m['tensor']} x {m['pipeline']}")


def report(e, memory, times, mixed, checks, clocked, years):
    for m in GPT2:
        e.say(f"{m.name} (modelled): {memory[m.name, 1]['bytes_total'] / 1e9:.3g} GB with one "
              f"sequence; {', '.join(shown(times[m.name, n]['days']) + f' on {n}' for n in GPUS)}"
              f"; scaling efficiency {efficiency(times, m.name, 8):.0%} on 8, "
              f"{efficiency(times, m.name, 512):.0%} on 512.")
    for m in LARGE:
        fitting = [n for n in GPUS if memory[m.name, n]["fits"]]
        ways = [mixture_words(mixed[m.name, n]) for n in GPUS if mixed[m.name, n]]
        e.say(f"{m.name} (modelled): {memory[m.name, 1]['bytes_total'] / UNIT:.3g} times the "
              f"memory of an 80 GB GPU; with ZeRO 3 it fits on "
              f"{' and on '.join(map(str, fitting)) or 'none'} of {', '.join(map(str, GPUS))}. "
              "The fastest mixtures of data x tensor x pipeline: "
              f"{'; '.join(ways) if ways else 'none fits'}.")
    e.say(f"175B on 300B tokens, by the rule 8ND/(nX) of Narayanan et al. 2021: {years[0]:.0f} "
          f"years on one V100 at 46.2 TFLOP/s, {years[1]:.0f} days on 1,024 A100 at 140 TFLOP/s "
          "(published: 288 and 34).")
    for c in checks:
        e.say(f"Measured here, {c.name}: {c.held / 1e6:.1f} MB against {c.planned / 1e6:.1f} "
              f"planned: the plan is {off(c.planned, c.held)}. Not counted: {c.own / 1e6:.1f} MB "
              "of program, libraries and data.")
    e.say(f"Measured here, seconds of an update: {clocked.measured:.3g} (quartiles "
          f"{clocked.low:.3g} to {clocked.high:.3g}) against {clocked.planned:.3g} planned.")
    judge(e, memory, times, checks, clocked)


WITHIN = 0.25                                    # of a planned time


def time_claim(t):
    """True, False, or None: the updates scatter too much to tell."""
    inside = [abs(t.planned / x - 1) <= WITHIN for x in (t.low, t.measured, t.high)]
    return inside[1] if len(set(inside)) == 1 else None


def judge(e, memory, times, checks, clocked):
    small, last = [m.name for m in GPT2], GPT2[-1].name
    wide = [efficiency(times, name, 512) for name in small]
    kept = {
        "every GPT-2 fits on one GPU": all(memory[name, 1]["fits"] for name in small),
        "7B, 70B and 175B do not": not any(memory[m.name, 1]["fits"] for m in LARGE),
        "7B fits on 8 with ZeRO 3": memory["7B", 8]["fits"],
        "GPT-2 1.6B takes days on one GPU and hours on 64":
            times[last, 1]["days"] >= 2.0 and times[last, 64]["days"] < 1.0,
        "eight GPUs reach at least 90% scaling efficiency": all(
            efficiency(times, name, NODE) >= 0.9 for name in small),
        f"512 GPUs with one sequence each stay below 50% for every GPT-2 ({min(wide):.0%} to "
        f"{max(wide):.0%})": all(x < 0.5 for x in wide)}
    if checks:
        worst = max(abs(c.planned / c.held - 1) for c in checks)
        kept[f"the plan is within 5% of the memory allocated (worst: {worst:.1%})"] = worst <= 0.05
    kept[f"an update takes the planned time within {WITHIN:.0%} (off by "
         f"{abs(clocked.planned / clocked.measured - 1):.0%})"] = time_claim(clocked)
    sorted_out = {state: [words for words, found in kept.items() if found is state]
                  for state in (True, False, None)}
    word = ("refuted" if sorted_out[False] else "undecided" if sorted_out[None] else "as predicted")
    heads = [(False, "not true: "), (None, "undecided, updates scatter too much: "),
             (True, "true: ")]
    why = "; ".join(head + "; ".join(sorted_out[state]) for state, head in heads
                    if sorted_out[state])
    e.verdict(word, why + ("" if checks else "; memory was not measured"))


def main():
    e = lab.Experiment(
        8, "fits", title="Does it fit, is it fast?",
        question="If a model fits on one GPU, why train it on many?",
        prediction="Every GPT-2 fits on one 80 GB GPU with all of AdamW's state; 7B, 70B and 175B "
                   "do not. So these need many GPUs for memory, a GPT-2 for time: 1.6B takes days "
                   "on one GPU and hours on 64. Eight are nearly eight times as fast; 512 with one "
                   "sequence each spend most of their time on the network. Planned memory is "
                   "within 5% of what is allocated, planned time within 25%.")
    memory, times, years = memory_plans(e), time_plans(e), published(e)
    mixed = mixtures(e, times)
    checks, clocked = checks_here(e)
    write_tables(e, memory, times, mixed, checks, clocked)
    e.setting(f"GPUs are modelled by --plan: {GPU.upper()}, bf16 with AdamW (16 bytes a parameter, "
              f"2 more because gradients accumulate in fp32), 40% of the peak (MFU), {FAST} "
              f"between {NODE} GPUs of a machine, {SLOW.replace('+', ' and ')} a message between "
              "machines; up to two thirds of the backward pass hide an all-reduce. --plan-search "
              "lets products reach 75% of the peak, less for tiles, memory and links.")
    e.setting("20 tokens a parameter; 175B: 300B. GPT-2: batch 524,288 tokens, ZeRO 1; the others: "
              "4,194,304, sequences of 2,048, data parallel with ZeRO 3 and blocks recomputed.")
    e.setting("Measured: this trainer, all fp32 (16 bytes a parameter): the largest resident set "
              "of a process, less that of a model of 5k parameters; the median update.")
    e.figure("memory", lambda plt: draw_memory(plt, memory),
             alt="The memory of a GPU for seven models, alone and shared among 8, 64 and 512 GPUs, "
                 "on one axis in units of 80 GB.",
             caption="Planned: one sequence a GPU. ZeRO 3 shards parameters, gradients and "
                     "moments, not activations.")
    e.figure("days", lambda plt: draw_days(plt, times, mixed),
             alt="Days to train seven models against the number of GPUs.",
             caption="Modelled: GPT-2 at 40% of the data sheet's peak by --plan, the others by "
                     "--plan-search, which counts tiles, memory and links. The batch is fixed, so "
                     "more GPUs have fewer sequences each.")
    if checks:
        e.figure("here", lambda plt: draw_here(plt, checks, clocked),
                 alt="Planned over measured memory and time on this machine: all near 1.",
                 caption="Measured on this machine with the CPU trainer.")
    report(e, memory, times, mixed, checks, clocked, years)
    e.close()


if __name__ == "__main__":
    main()
