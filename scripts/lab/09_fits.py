#!/usr/bin/env python3
"""Experiment 9: does it fit, is it fast? Memory with ZeRO 0 to 3 (Rajbhandari et al. 2020) and days
on 1 to 1024 GPUs, as the trainer's --plan models them; and the plan against memory allocated here.

    scripts/lab/09_fits.py --quick
"""
import os
import shlex
import subprocess
from collections import namedtuple

import lab

# micro: at most this many sequences a forward pass; batch: tokens an update; tokens: of the whole
# run, None for 20 a parameter (Hoffmann et al. 2022). sharing: the ZeRO stage on several GPUs.
Model = namedtuple("Model", "name flags seq_len micro batch tokens sharing")
MODELS = [
    Model("124M", ["--init", "d12"], 1024, 8, 2 ** 19, None, 1),
    Model("355M", ["--init", "d24"], 1024, 8, 2 ** 19, None, 1),
    Model("774M", ["--init", "d36"], 1024, 8, 2 ** 19, None, 1),
    Model("1.6B", ["--init", "d48"], 1024, 8, 2 ** 19, None, 1),
    Model("175B", ["--layers", "96", "--heads", "96", "--channels", "12288", "--recompute",
                   "block"], 2048, 1, 2 ** 21, 300e9, 3)]

GPU, NODE = "h100", 8                            # GPUs of a machine, on the fast link
FAST, SLOW = "450GB/s", "50GB/s+5us"             # NVLink; one 400 Gbit/s adapter a GPU
WORKERS = 64                                     # in the memory figure
STAGES = [0, 1, 2, 3]
GPUS = [2 ** i for i in range(11)]
YEAR = 365.25                                    # days

CLASSES = [("parameters", ["params"]), ("gradients", ["grads"]), ("optimizer", ["moments"]),
           ("activations", ["activations"]), ("logits", ["logits"]),
           ("under way and rest", ["passing", "rest"])]
HATCHES = ["", "//", "xx", "..", "\\\\", "++"]


# ---------------------------------------------------------------- asking the trainer

def plan(e, flags):
    """The fields of `--plan`, which trains nothing."""
    log = os.path.join(e.dir, "plan.jsonl")
    if os.path.exists(log):
        os.remove(log)
    program = e.args.trainer if os.sep in e.args.trainer else os.path.join(".", e.args.trainer)
    command = [program, "--plan", *[str(flag) for flag in flags], "--log", log]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False,
                          env=dict(os.environ, OMP_WAIT_POLICY="passive"))
    events = list(lab.read_log(log))
    if done.returncode or not events or events[-1]["event"] != "plan":
        lab.fail(f"{shlex.join(command)}: {lab.last_line(done.stdout.decode('utf-8', 'replace'))}")
    os.remove(log)
    return events[-1]


def on_gpus(e, model, count, stage, micro, speed=GPU, link=None, tokens=None):
    link = link or (FAST if count <= NODE else SLOW)
    given = ["--tokens", f"{tokens:.0f}"] if tokens else []
    return plan(e, [*model.flags, "--seq-len", model.seq_len, "--micro-batch", micro,
                    "--batch-tokens", model.batch, "--zero", stage, *given,
                    "--plan-gpu", f"{speed},{count},{link}"])


def memory_plans(e):
    return {(m.name, stage): on_gpus(e, m, WORKERS, stage, m.micro)
            for m in MODELS for stage in STAGES}


def time_plans(e):
    """Each with the largest power-of-two micro-batch that the batch and the memory allow."""
    plans = {}
    for m in MODELS:
        tokens = m.tokens or 20 * on_gpus(e, m, 1, 0, 1)["parameters"]
        for count in GPUS:
            share = m.batch // (m.seq_len * count)           # sequences of a GPU in an update
            if share < 1:
                break                                        # more GPUs than sequences
            stage = m.sharing if count > 1 else 0
            room = on_gpus(e, m, count, stage, 1)["fits_micro_batch"] or 1
            micro = 2 ** (min(share, m.micro, room).bit_length() - 1)
            plans[m.name, count] = on_gpus(e, m, count, stage, micro, tokens=tokens)
    return plans


def published(e):
    """Two figures for 175B and 300B tokens, by the rule 8ND/(nX): Narayanan et al. 2021."""
    big = MODELS[-1]._replace(batch=2 ** 21)
    v100 = on_gpus(e, big, 1, 0, 1, "v100@46.2", FAST, 300e9)["days_rule"] / YEAR
    a100 = on_gpus(e, big, 1024, 0, 1, "a100@140", SLOW, 300e9)["days_rule"]
    return v100, a100


# ---------------------------------------------------------------- plan against allocation

# Bytes. held: the peak of one process, less `own`, what any process of the program holds.
Check = namedtuple("Check", "name planned held own")
SPECK = ["--layers", "1", "--heads", "1", "--channels", "8"]


def allocation_flags(e, model, ranks, stage):
    flags = ["--data", e.corpus(10 ** 6), *model, "--seq-len", 64, "--micro-batch", 4,
             "--batch-tokens", 4 * 64 * 2, "--zero", stage]
    return flags + (["--plan-gpu", f"here@0.1,{ranks}"] if ranks > 1 else [])


def allocation_job(e, name, model, ranks, stage):
    """Two updates under 04_saturation.py, which prints the peak memory of a process."""
    trainer = e.args.trainer if os.sep in e.args.trainer else os.path.join(".", e.args.trainer)
    if ranks > 1:
        trainer = os.path.join("build", "train_gpt2-mpi")
    front = [os.path.join("scripts", "launch.sh"), "-n", ranks] if ranks > 1 else []
    flags = allocation_flags(e, model, 1, stage)
    return lab.Job(name, ["--peak-of", *front, trainer, *flags, "--steps", 2, "--eval-every", 0,
                          "--eval-tokens", 256], alone=ranks > 1,
                   program=os.path.join("scripts", "lab", "04_saturation.py"))


def held(run):
    with open(run.base + ".txt", encoding="utf-8", errors="replace") as f:
        last = lab.last_line(f.read()).split()
    return int(last[1]) if last[:1] == ["peak"] else None


def allocations(e):
    """A model in one process and on two ranks. Program, libraries and data are measured with a tiny
    model and subtracted."""
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
        own = held(runs[names[bare, "speck"]])
        if own is None or held(runs[names[case, "model"]]) is None:
            continue
        own -= planned(e, SPECK, ranks, 0)
        checks.append(Check(case, planned(e, model, ranks, stage),
                            held(runs[names[case, "model"]]) - own, own))
    return checks


def planned(e, model, ranks, stage):
    return plan(e, allocation_flags(e, model, ranks, stage))["bytes_total"]


# ---------------------------------------------------------------- tables

def write_tables(e, memory, times, checks):
    fields = ["params", "grads", "moments", "activations", "logits", "passing", "rest", "total"]
    e.csv("memory", ["model", "parameters", "gpus", "zero", "micro_batch", "seq_len", "recompute",
                     "precision", *[f"{name}_bytes" for name in fields], "textbook_bytes", "fits"],
          [[name, p["parameters"], p["workers"], stage, p["micro_batch"], p["T"],
            int(p["recompute"]), p["precision"], *[p[f"bytes_{field}"] for field in fields],
            p[f"textbook_bytes_{stage}"], int(p["fits"])]
           for (name, stage), p in memory.items()])
    e.csv("days", ["model", "gpus", "zero", "micro_batch", "batch_tokens", "tokens", "fits",
                   "speed_flops", "seconds_per_step", "seconds_compute", "seconds_exposed",
                   "modelled_days", "modelled_gpu_hours"],
          [[name, count, p["zero"], p["micro_batch"], p["batch_tokens"], p["tokens"],
            int(p["fits"]), p["speed_flops"], p["seconds_per_step"], p["seconds_compute"],
            p["seconds_exposed"], p["days"], p["device_hours"]]
           for (name, count), p in times.items()])
    e.csv("allocated", ["case", "planned_bytes", "measured_bytes", "relative_error",
                        "process_bytes"],
          [[c.name, c.planned, c.held, c.planned / c.held - 1.0, c.own] for c in checks])


# ---------------------------------------------------------------- pictures

def gigabytes(n):
    return f"{n:,.0f}" if n >= 100.0 else f"{n:.3g}"


def draw_bar(ax, at, plan_of, scale):
    bottom = 0.0
    for i, (name, fields) in enumerate(CLASSES):
        height = sum(plan_of[f"bytes_{field}"] for field in fields) / scale
        ax.bar([at], [height], bottom=bottom, width=0.75, color=lab.COLOURS[i], alpha=0.85,
               hatch=HATCHES[i], edgecolor="white", linewidth=0.4, label=name)
        bottom += height
    ax.text(at, bottom, gigabytes(bottom), ha="center", va="bottom", fontsize=8.5,
            fontweight="bold" if plan_of["fits"] else "normal")
    return bottom


def draw_memory(plt, memory):
    figure, panels = plt.subplots(1, len(MODELS), figsize=(13, 4.9))
    for ax, m in zip(panels, MODELS):
        plans = [memory[m.name, stage] for stage in STAGES]
        tops = [draw_bar(ax, stage, p, 1e9) for stage, p in zip(STAGES, plans)]
        ax.plot(STAGES, [p[f"textbook_bytes_{s}"] / 1e9 for s, p in zip(STAGES, plans)],
                color="black", marker="_", markersize=24, markeredgewidth=2, linestyle="none",
                label="the ZeRO paper's bytes: 16 a parameter, shared out")
        room = plans[0]["bytes_memory"] / 1e9
        if room < 1.1 * max(tops):
            ax.axhline(room, color="black", linewidth=1.2, linestyle="--",
                       label=f"{room:.0f} GB, what an 80 GB GPU has to give")
        ax.set_xticks(STAGES)
        ax.set_ylim(0, 1.12 * max(tops))
        more = "\nblocks recomputed" if plans[0]["recompute"] else ""
        y = "GB on a GPU (planned)" if m is MODELS[0] else ""
        lab.axes(ax, f"ZeRO stage, {WORKERS} GPUs", y,
                 f"{m.name}\n{m.micro} × {m.seq_len:,} tokens{more}")
    unique = {}
    for ax in panels:
        for handle, label in zip(*ax.get_legend_handles_labels()):
            unique.setdefault(label, handle)
    figure.legend(list(unique.values()), list(unique), loc="lower center", ncol=4,
                  title="above a bar: its total, bold where it fits on an 80 GB GPU")
    figure.tight_layout(rect=(0, 0.18, 1, 1))
    return figure


def draw_days(ax, times):
    for i, m in enumerate(MODELS):
        counts = [n for n in GPUS if (m.name, n) in times]
        plans = [times[m.name, n] for n in counts]
        tokens = plans[0]["tokens"] / 1e9
        ax.plot(counts, [p["days"] for p in plans], color=lab.COLOURS[i], linewidth=1.8,
                marker=lab.MARKERS[i], markevery=[], linestyle=lab.LINES[i],
                label=f"{m.name}, {tokens:,.3g}B tokens")
        for n, p in zip(counts, plans):
            ax.plot([n], [p["days"]], color=lab.COLOURS[i], marker=lab.MARKERS[i], markersize=6.5,
                    fillstyle="full" if p["fits"] else "none")
        ax.plot(counts, [plans[0]["days"] / n for n in counts], color=lab.COLOURS[i],
                linewidth=0.7, linestyle=":", zorder=1)
    for days, name in [(1.0 / 24, "an hour"), (1.0, "a day"), (30.0, "a month"), (YEAR, "a year"),
                       (100 * YEAR, "a century")]:
        ax.axhline(days, color="#999999", linewidth=0.6)
        ax.text(1.01, days, name, fontsize=8.5, va="center", transform=ax.get_yaxis_transform())
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(GPUS)
    ax.set_xticklabels([str(n) for n in GPUS])
    ax.minorticks_off()
    lab.axes(ax, "H100s", "days to train (modelled)")
    ax.set_ylim(1e-5, None)
    ax.legend(loc="lower left", ncol=2)


def draw_checks(ax, checks):
    at = list(range(len(checks)))
    ax.barh([i - 0.2 for i in at], [c.planned / 1e6 for c in checks], height=0.38,
            color=lab.COLOURS[0], label="planned")
    ax.barh([i + 0.2 for i in at], [c.held / 1e6 for c in checks], height=0.38,
            color=lab.COLOURS[4], hatch="//", edgecolor="white", label="measured")
    for i, c in zip(at, checks):
        ax.text(max(c.planned, c.held) / 1e6, i, f"  {100 * (c.planned / c.held - 1):+.1f}%",
                va="center", fontsize=9)
    ax.set_yticks(at)
    ax.set_yticklabels([c.name for c in checks])
    ax.invert_yaxis()
    ax.set_xlim(0, 1.22 * max(max(c.planned, c.held) for c in checks) / 1e6)
    lab.axes(ax, "MB a process, fp32 (error of the plan)", "")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, 1.12), ncol=2)


def draw_time(plt, times, checks):
    figure, panels = plt.subplots(1, 2, figsize=(13, 5.2), constrained_layout=True,
                                  gridspec_kw={"width_ratios": [1.6, 1.0]})
    draw_days(panels[0], times)
    if checks:
        draw_checks(panels[1], checks)
    else:
        panels[1].set_axis_off()
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


def off(check):
    error = 100.0 * (check.planned / check.held - 1.0)
    return f"{abs(error):.1f}% {'low' if error < 0.0 else 'high'}"


def report(e, memory, times, checks, years):
    for m in MODELS:
        alone = times[m.name, 1]
        counts = [n for n in GPUS if (m.name, n) in times]
        fitting = [n for n in counts if times[m.name, n]["fits"]]
        best = min(fitting, key=lambda n: times[m.name, n]["days"]) if fitting else None
        first = f"fits on {fitting[0]}" if fitting else f"fits on none of {counts[-1]}"
        quick = (f"{shown(times[m.name, best]['days'])} on {best}, at "
                 f"{efficiency(times, m.name, best):.0%} scaling efficiency" if best else "")
        e.say(f"{m.name} (modelled): {first} H100{'s' if fitting[:1] != [1] else ''}; "
              f"{gigabytes(memory[m.name, 0]['bytes_total'] / 1e9)} GB a GPU unsharded, "
              f"{gigabytes(memory[m.name, 3]['bytes_total'] / 1e9)} with ZeRO 3 over {WORKERS} "
              f"GPUs; {shown(alone['days'])} on one, {quick}.")
    e.say(f"175B on 300B tokens, by the rule 8ND/(nX) of Narayanan et al. 2021: {years[0]:.0f} "
          f"years on one V100 at 46.2 TFLOP/s, {years[1]:.0f} days on 1,024 A100 at 140 TFLOP/s "
          "(published: 288 and 34).")
    for c in checks:
        e.say(f"Measured here, {c.name}: {c.held / 1e6:.1f} MB against {c.planned / 1e6:.1f} "
              f"planned: the plan is {off(c)}. Not counted: {c.own / 1e6:.1f} MB of program, "
              "libraries and data.")
    judge(e, times, checks)


def judge(e, times, checks):
    small = [m.name for m in MODELS[:-1]]
    big = MODELS[-1].name
    kept = {
        "every GPT-2 fits on one GPU": all(times[name, 1]["fits"] for name in small),
        "175B does not": not times[big, 1]["fits"],
        "eight GPUs reach at least 90% scaling efficiency": all(
            efficiency(times, name, NODE) >= 0.9 for name in small),
        "512 GPUs with one sequence each stay below 50% for every GPT-2": all(
            efficiency(times, name, 512) < 0.5 for name in small)}
    if checks:
        worst = max(abs(c.planned / c.held - 1) for c in checks)
        kept[f"the plan is within 5% of the memory allocated (worst: {worst:.1%})"] = worst <= 0.05
    held_true = [words for words, true in kept.items() if true]
    wrong = [words for words, true in kept.items() if not true]
    word = "as predicted" if not wrong else "partly" if held_true else "failed"
    missing = "" if checks else "; allocation was not measured"
    e.verdict(word, ("true: " + "; ".join(held_true) if held_true else "")
              + ("; not true: " + "; ".join(wrong) if wrong else "") + missing)


def main():
    e = lab.Experiment(
        9, "fits", title="Does it fit, is it fast?",
        question="If a model fits on one GPU, why train it on many?",
        prediction="Every GPT-2 fits on one 80 GB GPU with all of Adam's state; 175B does not. So "
                   "175B needs many GPUs for memory, a GPT-2 for time. Eight are nearly eight "
                   "times as fast; 512 with one sequence each spend most of their time on the "
                   "network. Planned memory is within 5% of what is allocated.")
    memory, times, years = memory_plans(e), time_plans(e), published(e)
    checks = allocations(e)
    write_tables(e, memory, times, checks)
    e.setting(f"GPUs are modelled by --plan: {GPU.upper()}, bf16 with Adam (16 bytes a parameter, "
              f"2 more because gradients accumulate in fp32), 40% of the peak (MFU), {FAST} up to "
              f"{NODE} GPUs, {SLOW.replace('+', ' and ')} a message beyond. A ring all-reduce "
              "sends 2(n-1) messages for each bucket and overlaps with up to two thirds of the "
              "backward pass. NCCL's trees wait less beyond some 64 GPUs.")
    e.setting("20 tokens a parameter, batch 524,288 tokens, ZeRO 1; 175B: 300B tokens, batch "
              "2,097,152, ZeRO 3, blocks recomputed.")
    e.setting("Measured: this trainer, all fp32 (16 bytes a parameter), the largest resident set "
              "of a process, less that of a model of 5k parameters.")
    e.figure("memory", lambda plt: draw_memory(plt, memory),
             alt="Bars of memory a GPU by class for five models under ZeRO 0 to 3.",
             caption=f"Planned memory of each of {WORKERS} GPUs, bf16. Stage 0 shards nothing: one "
                     "GPU alone would need as much.")
    e.figure("days", lambda plt: draw_time(plt, times, checks),
             alt="Days to train five models against the number of GPUs; and planned beside "
                 "measured memory.",
             caption="Left, modelled: hollow points do not fit in memory, dotted lines are without "
                     "a network. Right, measured on this machine.")
    report(e, memory, times, checks, years)
    e.close()


if __name__ == "__main__":
    main()
