#!/usr/bin/env python3
"""Experiment 8: does it fit, is it fast? Memory and days of GPT-2's four sizes and of 7B, 70B and
175B on 1 to 512 GPUs, as the trainer's --plan and --plan-search model them; what a larger batch
takes of the memory, and what a worker computes for each byte that it sends. Beside it, measured:
the plan against memory and seconds here.

    scripts/lab/experiments/08_fits.py --quick
"""
import os
import random
import shlex
import subprocess
from collections import namedtuple
from statistics import median

import _path
import numpy as np
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
UNIT = 80e9                                      # bytes of a GPU

# Measured elsewhere: llm.c's scripts/run_gpt2_1558M.sh says 2.80 seconds an update of 1,048,576
# tokens on 8 H100.
LLM_C = {"model": "1.6B", "gpus": 8, "batch_tokens": 2 ** 20, "seconds": 2.80}


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


def tokens_of(m, memory):
    return m.tokens or 20 * memory[m.name, 1]["parameters"]


def time_plans(e, memory):
    """GPT-2s, data parallel with ZeRO 1, each with the largest power-of-two micro-batch that the
    batch and the memory allow."""
    found = {}
    for m in GPT2:
        for count in GPUS:
            share = m.batch // (m.seq_len * count)           # sequences of a GPU in an update
            stage = 0 if count == 1 else 1
            room = on_gpus(e, m, count, stage, 1)["fits_micro_batch"] or 1
            micro = 2 ** (min(share, m.micro, room).bit_length() - 1)
            found[m.name, count] = on_gpus(e, m, count, stage, micro, tokens=tokens_of(m, memory))
    return found


def mixtures(e, memory):
    """The fastest mixture of data, tensor and pipeline parallelism that fits, for the models that
    do not fit on one GPU; None where nothing does."""
    found = {}
    for m in LARGE:
        sizes = m.flags[:m.flags.index("--recompute")]
        for count in GPUS:
            events = plans(e, ["--plan-search", *sizes, "--seq-len", m.seq_len, "--batch-tokens",
                               m.batch, "--tokens", f"{tokens_of(m, memory):.0f}",
                               "--plan-gpu", f"{GPU},{count},{links(count)}"])
            fitting = [x for x in events if x["fits"]]
            found[m.name, count] = min(fitting, key=lambda x: x["seconds"], default=None)
    return found


# ---------------------------------------------------------------- what a batch takes

CLIP = Model("CLIP's text encoder", ["--layers", 12, "--heads", 8, "--channels", 512], 77, 1, 77,
             None)                               # Radford et al. 2021, with GPT-2's vocabulary
SHARES = [32, 512, 4096, 32768]                  # tokens of a worker


def batch_rows(e):
    """Of the table `activations`: how many sequences one GPU holds beside the model."""
    found = []
    for m in [CLIP, *GPT2]:
        p = plan(e, [*m.flags, "--seq-len", m.seq_len, "--micro-batch", 1, "--batch-tokens",
                     m.seq_len, "--plan-gpu", f"{GPU},1"])
        found.append([m.name, p["T"], p["bytes_activations"], p["fits_micro_batch"]])
    return found


def traffic_rows(e):
    """Of the table `flops_per_byte`: what a worker computes for every byte that it sends. The small
    models in fp32 on two CPU ranks, GPT-2s in 16 bits on 8 GPUs."""
    found = []
    for name in lab.MODELS:
        flags = ["--data", e.corpus(10 ** 6), *lab.model(name), "--zero", 0]
        found += [traffic_row(e, name, flags, 32, tokens, "here@0.1", 2) for tokens in SHARES]
    for m in (GPT2[0], GPT2[-1]):
        found += [traffic_row(e, m.name, [*m.flags, "--seq-len", m.seq_len, "--zero", 1],
                              m.seq_len, tokens, GPU, NODE)
                  for tokens in SHARES if tokens >= m.seq_len]
    return found


def traffic_row(e, name, flags, T, tokens, gpu, workers):
    link = f",{FAST}" if gpu == GPU else ""
    p = plan(e, [*flags, "--micro-batch", tokens // T, "--batch-tokens",
                 workers * tokens, "--plan-gpu", f"{gpu},{workers}{link}"])
    flops = p["flops_per_token"] * tokens
    return [name, p["parameters"], workers, tokens, flops, p["traffic_bytes"],
            flops / p["traffic_bytes"]]


def contrastive_rows(pairs=64, width=8):
    """Of the table `contrastive`: the gradient of one batch against the mean of its micro-batches'.
    Each of a language model's losses has its own sample alone; a contrastive loss has all pairs of its
    micro-batch as wrong answers (Radford et al. 2021), so splitting makes another question."""
    rng = random.Random(1)
    x, y = np.array([rng.gauss(0, 1) for _ in range(2 * pairs * width)]).reshape(
        2, pairs, width)

    def language(w, of):                         # a softmax over `width` words, the first is right
        return np.mean(np.log(np.exp(w * x[of]).sum(axis=1)) - w * x[of, 0])

    def contrastive(w, of):                      # which y belongs to this x?
        scores = w * x[of] @ y[of].T
        return np.mean(np.log(np.exp(scores).sum(axis=1)) - np.diag(scores))

    def slope(loss, of, w=0.5, h=1e-4):
        return (loss(w + h, of) - loss(w - h, of)) / (2 * h)
    return [[name, pairs, n, np.mean([slope(loss, of) for of in np.split(np.arange(pairs), n)])]
            for name, loss in [("language model", language), ("contrastive", contrastive)]
            for n in (1, 4, 16)]


# ---------------------------------------------------------------- the plan against this machine

SPECK = ["--layers", "1", "--heads", "1", "--channels", "8"]
STAGES = [0, 1, 2, 3]
SPECKS_UPDATES = 300         # A run that ends within milliseconds ends before its peak is read.


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
    steps = SPECKS_UPDATES if model == SPECK else 2 if ranks > 1 else e.pick(6, 12, 12)
    return lab.Job(name, [*front, trainer, *check_flags(e, model, 1, stage), "--steps", steps,
                          "--eval-every", 0, "--eval-tokens", 256], alone=True,
                   program=os.path.join("scripts", "lab", "shared", "peak.py"))


def write_measured(e):
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
        if own is not None and held is not None:
            own -= planned(e, SPECK, ranks, 0)
            wanted = planned(e, model, ranks, stage)
            checks.append([case, wanted, held - own, wanted / (held - own) - 1.0, own])
    e.table("allocated", ["case", "planned_bytes", "measured_bytes", "relative_error",
                          "process_bytes"], checks)
    e.table("seconds", ["planned_seconds", "measured_seconds", "lower_quartile", "upper_quartile"],
            [timing(e, model, runs[names["one process", "model"]])])


def planned(e, model, ranks, stage):
    return plan(e, check_flags(e, model, ranks, stage))["bytes_total"]


def timing(e, model, run):
    """Of the table `seconds`. The plan measures this machine's speed on a block of the model,
    without training it."""
    seconds = sorted(x["seconds"] for x in run.steps[2:])
    flags = check_flags(e, model, 1, 0) + ["--threads", 1]
    return [median(plan(e, flags)["seconds_per_step"] for _ in range(e.pick(1, 3, 3))),
            median(seconds),
            seconds[len(seconds) // 4], seconds[-1 - len(seconds) // 4]]


# ---------------------------------------------------------------- tables

def write_plans(e):
    memory = memory_plans(e)
    times, mixed = time_plans(e, memory), mixtures(e, memory)
    fields = ["params", "grads", "moments", "activations", "logits", "passing", "rest", "total"]
    e.table("memory", ["model", "parameters", "gpus", "zero", "micro_batch", "seq_len", "recompute",
                       "precision", *[f"{name}_bytes" for name in fields], "fits"],
            [[name, p["parameters"], p["workers"], p["zero"], p["micro_batch"], p["T"],
              int(p["recompute"]), p["precision"], *[p[f"bytes_{field}"] for field in fields],
              int(p["fits"])] for (name, _), p in memory.items()])
    e.table("days", ["model", "gpus", "zero", "micro_batch", "batch_tokens", "tokens", "fits",
                     "speed_flops", "seconds_per_step", "seconds_compute", "seconds_exposed",
                     "modelled_days", "modelled_gpu_hours"],
            [[name, count, p["zero"], p["micro_batch"], p["batch_tokens"], p["tokens"],
              int(p["fits"]), p["speed_flops"], p["seconds_per_step"], p["seconds_compute"],
              p["seconds_exposed"], p["days"], p["device_hours"]]
             for (name, count), p in times.items()])
    e.table("mixtures", ["model", "gpus", "data", "tensor", "pipeline", "zero", "micro_batch",
                         "recompute", "bytes_total", "modelled_days"],
            [[name, count, m["data"], m["tensor"], m["pipeline"], m["zero"], m["micro_batch"],
              int(m["recompute"]), m["bytes_total"], m["seconds"] / 86400]
             for (name, count), m in mixed.items() if m])
    e.table("activations", ["model", "seq_len", "activation_bytes_of_one", "largest_micro_batch"],
            batch_rows(e))
    e.table("flops_per_byte", ["model", "parameters", "workers", "tokens_a_worker", "flops",
                               "bytes_sent", "flops_per_byte"], traffic_rows(e))
    e.table("contrastive", ["loss", "samples", "micro_batches", "gradient"], contrastive_rows())


# ---------------------------------------------------------------- pictures

def draw_memory(plt, memory):
    """One axis for all: a GPU's share of each model, in units of an 80 GB GPU."""
    figure, ax = plt.subplots(figsize=(8.6, 4.8), constrained_layout=True)
    for row, m in enumerate(MODELS):
        shares = [memory[m.name, count]["total_bytes"] / UNIT for count in GPUS]
        ax.plot([min(shares), max(shares)], [row, row], color="#bbbbbb", linewidth=1.5, zorder=1)
        for i, (count, share) in enumerate(zip(GPUS, shares)):
            fits = memory[m.name, count]["fits"]
            ax.plot([share], [row], marker=lab.MARKERS[i], markersize=9, linestyle="none",
                    color=lab.COLOURS[i], fillstyle="full" if fits else "none", zorder=3)
            if m is MODELS[-1]:
                ax.annotate(f"{count} GPU{'s' * (count > 1)}", (share, row), (0, 12), ha="center",
                            textcoords="offset points", fontsize=9, color=lab.COLOURS[i])
    ax.plot([1.0, 1.0], [-1.1, len(MODELS) - 0.85], color="black", linewidth=1.4, linestyle="--")
    ax.text(1.03, -0.75, "an 80 GB GPU is full", fontsize=9, va="center")
    ax.set_yticks(range(len(MODELS)))
    ax.set_yticklabels([m.name for m in MODELS])
    ax.set_ylim(-1.1, len(MODELS) - 0.3)
    lab.log_axis(ax.xaxis)
    lab.axes(ax, "memory of a GPU, in units of 80 GB (planned for one sequence; several GPUs: "
                 "ZeRO 3; hollow: does not fit)", "")
    ax.set_title(memory_title(memory), loc="left", fontsize=10.5)
    return figure


def memory_title(memory):
    alone = [m.name for m in MODELS if memory[m.name, 1]["fits"]]
    first = {m.name: next((n for n in GPUS if memory[m.name, n]["fits"]), None) for m in LARGE}
    parts = [f"{name} {f'on {n}' if n else f'on none of {GPUS[-1]}'}" for name, n in first.items()
             if n != 1]
    return (f"{alone[0]} to {alone[-1]} fit on one GPU with all of AdamW's state; "
            f"with ZeRO 3, {', '.join(parts)}")


def llm_c_days(times):
    """Of the same tokens, by the seconds that llm.c measured."""
    tokens = times[LLM_C["model"], LLM_C["gpus"]]["tokens"]
    return tokens / LLM_C["batch_tokens"] * LLM_C["seconds"] / 86400


def draw_days(plt, times):
    figure, ax = plt.subplots(figsize=(7.6, 4.6), constrained_layout=True)
    for i, m in enumerate(GPT2):
        days = [times[m.name, n]["modelled_days"] for n in GPUS]
        ax.plot(GPUS, days, color=lab.COLOURS[i], linewidth=1.6, marker=lab.MARKERS[i])
        ax.plot(GPUS, [days[0] / n for n in GPUS], color=lab.COLOURS[i], linewidth=0.8,
                linestyle=":", zorder=1)
        ax.annotate(f"{m.name}, {times[m.name, 1]['tokens'] / 1e9:,.1f}B tokens", (1, days[0]),
                    xytext=(4, 6), textcoords="offset points", color=lab.COLOURS[i], fontsize=9)
    ax.plot([LLM_C["gpus"]], [llm_c_days(times)], "k*", markersize=12)
    ax.annotate("llm.c, measured", (LLM_C["gpus"], llm_c_days(times)), (8, -14),
                textcoords="offset points", fontsize=9)
    for days, name in [(1.0 / 24, "an hour"), (1.0, "a day"), (7.0, "a week")]:
        ax.axhline(days, color="#999999", linewidth=0.6)
        ax.text(1.01, days, name, fontsize=8.5, va="center", transform=ax.get_yaxis_transform())
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(GPUS, [str(n) for n in GPUS])
    ax.minorticks_off()
    first, eight = (times["1.6B", n]["modelled_days"] for n in (1, 8))
    lab.axes(ax, "H100s, data parallel (dotted: in proportion)", "days to train (modelled)",
             f"GPT-2 1.6B: {first:.1f} days on one GPU, {24 * eight:.0f} hours on 8")
    return figure


# ---------------------------------------------------------------- what was found

def conclude(e):
    memory, times = ({(row["model"], row["gpus"]): row for row in e.rows(name)}
                     for name in ("memory", "days"))
    e.found("GPT-2 1.6B on 8 H100: hours, modelled", 24 * times["1.6B", 8]["modelled_days"])
    e.found("GPT-2 1.6B on 8 H100: hours by the seconds that llm.c measured",
            24 * llm_c_days(times))
    e.found("the share of the peak that llm.c's seconds imply, where the plan has 0.4",
            0.4 * times["1.6B", 8]["modelled_days"] / llm_c_days(times))
    errors = [row["relative_error"] for row in e.rows("allocated")]
    if errors:
        e.found(f"memory planned over measured less 1, worst of {len(errors)}",
                max(errors, key=abs))
    for row in e.rows("seconds"):
        e.found("seconds of an update, planned", row["planned_seconds"])
        e.found("seconds of an update, measured (quartiles)", row["measured_seconds"],
                row["lower_quartile"], row["upper_quartile"])
    e.figure("memory", lambda plt: draw_memory(plt, memory),
             alt="The memory of a GPU for seven models, alone and shared among 8, 64 and 512 GPUs, "
                 "on one axis in units of 80 GB.",
             caption="Planned: one sequence a GPU. ZeRO 3 shards parameters, gradients and "
                     "moments, not activations.")
    e.figure("days", lambda plt: draw_days(plt, times),
             alt="Days to train four GPT-2s against the number of GPUs; and what llm.c measured.",
             caption="Modelled at 40% of the data sheet's peak. The batch is fixed, so more GPUs "
                     "have fewer sequences each. The star is llm.c's own figure.")
    e.observe()


def main():
    e = lab.Experiment(
        8, "fits", title="Does it fit, is it fast?",
        question="If a model fits on one GPU, why train it on many?",
        prediction="None: modelled numbers have no verdict. What is measured beside the plan are "
                   "observations.")
    if not e.args.kept:
        write_measured(e)
        settings(e)
        write_plans(e)
    conclude(e)
    e.close()


def settings(e):
    e.setting(f"GPUs are modelled by --plan: {GPU.upper()}, bf16 with AdamW (16 bytes a parameter, "
              f"2 more because gradients accumulate in fp32), 40% of the peak (MFU), {FAST} "
              f"between {NODE} GPUs of a machine, {SLOW.replace('+', ' and ')} a message between "
              "machines; up to two thirds of the backward pass hide an all-reduce. --plan-search "
              "lets products reach 75% of the peak, less for tiles, memory and links.")
    e.setting("20 tokens a parameter; 175B: 300B. GPT-2: batch 524,288 tokens, ZeRO 1; the others: "
              "4,194,304, sequences of 2,048, blocks recomputed, as --plan-search mixes them.")
    e.setting("Measured: this trainer, all fp32 (16 bytes a parameter): the largest resident set "
              "of a process, less that of a model of 5k parameters; the median update.")


if __name__ == "__main__":
    main()
