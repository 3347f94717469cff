#!/usr/bin/env python3
"""Experiment 8: does it fit, is it fast? Memory and days of GPT-2's four sizes and of 7B, 70B and
175B on 1 to 512 GPUs, as the trainer's --plan models them. Beside it, measured: the plan against
memory and seconds here.

    scripts/lab/experiments/08_fits.py --quick
"""
import os
import subprocess
from collections import namedtuple
from statistics import median

import lab

# micro: at most this many sequences a forward pass; batch: tokens per update; tokens: of the whole
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

# As --plan models them: bf16 with AdamW, 18 bytes a parameter, 40% of the peak (MFU); up to two
# thirds of the backward pass hide an all-reduce.
GPU, NODE = "h100", 8                            # GPUs of a machine, on the fast link
FAST, SLOW = "450GB/s", "50GB/s+5us"             # NVLink; one 400 Gbit/s adapter a GPU
GPUS = [1, 8, 64, 512]
UNIT = 80e9                                      # bytes of a GPU

TRAINER = os.path.join(".", "train_gpt2")        # plans for any GPU, and is what is measured

# Measured elsewhere: llm.c's scripts/run_gpt2_1558M.sh says 2.80 seconds an update of 1,048,576
# tokens on 8 H100.
LLM_C = {"model": "1.6B", "gpus": 8, "batch_tokens": 2 ** 20, "seconds": 2.80}


# ---------------------------------------------------------------- asking the trainer

def plan(e, flags):
    """The event that `--plan` logs, which trains nothing."""
    log = os.path.join(e.dir, "plan.jsonl")
    command = [TRAINER, "--plan", *map(str, flags), "--log", log]
    if subprocess.call(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL):
        lab.fail(f"{' '.join(command)} failed")
    event = lab.read_log(log)[-1]
    os.remove(log)
    return event


def links(count):
    return FAST if count <= NODE else f"{FAST}:{NODE}+{SLOW}"


def on_gpus(e, model, count, stage, micro, tokens=None):
    given = ["--tokens", f"{tokens:.0f}"] if tokens else []
    return plan(e, [*model.flags, "--seq-len", model.seq_len, "--micro-batch", micro,
                    "--batch-tokens", model.batch, "--zero", stage, *given,
                    "--plan-gpu", f"{GPU},{count},{links(count)}"])


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


# ---------------------------------------------------------------- single answers

def asked(e):
    """Of the table `asked`: how many texts fit beside CLIP's encoder (Radford et al. 2021, with
    GPT-2's vocabulary); what a worker computes for every byte that it sends, of two in fp32."""
    clip = plan(e, ["--layers", 12, "--heads", 8, "--channels", 512, "--seq-len", 77,
                    "--micro-batch", 1, "--batch-tokens", 77, "--plan-gpu", f"{GPU},1"])
    found = [["CLIP's text encoder: texts of 77 tokens on one H100", clip["fits_micro_batch"]]]
    for tokens in (512, 4096):
        p = plan(e, ["--data", e.corpus(10 ** 6), *lab.model("119k"), "--zero", 0, "--micro-batch",
                     tokens // 32, "--batch-tokens", 2 * tokens, "--plan-gpu", "here@0.1,2"])
        found.append([f"119k, {tokens} tokens a worker: FLOPs a byte",
                      p["flops_per_token"] * tokens / p["traffic_bytes"]])
    return found


# ---------------------------------------------------------------- the plan against this machine

SPECK = ["--layers", "1", "--heads", "1", "--channels", "8"]
SPECKS_UPDATES = 300         # A run that ends within milliseconds ends before its peak is read.


def check_flags(e, model, ranks, stage):
    flags = ["--data", e.corpus(10 ** 6), *model, "--seq-len", 64, "--micro-batch", 4,
             "--batch-tokens", 4 * 64 * 2, "--zero", stage]
    return flags + (["--plan-gpu", f"here@0.1,{ranks}"] if ranks > 1 else [])


def allocation_job(e, kind, model, ranks, stage):
    """A few updates, of which the peak memory of a process is kept."""
    steps = SPECKS_UPDATES if kind == "speck" else 2 if ranks > 1 else e.pick(6, 12, 12)
    return lab.Job(f"{kind}_{ranks}_zero{stage}", [
        *check_flags(e, model, 1, stage), "--steps", steps, "--eval-every", 0, "--eval-tokens",
        256], program=TRAINER if ranks == 1 else lab.MPI_TRAINER, ranks=ranks, alone=True, peak=0)


def write_measured(e):
    """Memory of a model in one process and on two ranks, and the seconds of one process's updates.
    Program, libraries and data are measured with a tiny model and subtracted."""
    model = e.pick(tiny=["--layers", "4", "--heads", "4", "--channels", "256"],
                   quick=["--layers", "6", "--heads", "8", "--channels", "512"],
                   full=["--layers", "12", "--heads", "12", "--channels", "768"])
    cases = [(1, 0)] + [(2, stage) for stage in range(4) if lab.has_mpi()]
    jobs = {("model", *at): allocation_job(e, "model", model, *at) for at in cases}
    jobs.update({("speck", *at): allocation_job(e, "speck", SPECK, *at)
                 for at in cases if at[1] == 0})
    runs, checks = e.run(list(jobs.values())), []
    for ranks, stage in cases:
        own, held = (runs[jobs[at].name].record["peak"]
                     for at in (("speck", ranks, 0), ("model", ranks, stage)))
        if own and held:
            own -= planned(e, SPECK, ranks, 0)
            wanted = planned(e, model, ranks, stage)
            checks.append([f"2 ranks, ZeRO {stage}" if ranks > 1 else "one process", wanted,
                           held - own, wanted / (held - own) - 1.0, own])
    e.table("allocated", ["case", "planned_bytes", "measured_bytes", "relative_error",
                          "process_bytes"], checks)
    # The plan measures this machine's speed on a block of the model, without training it.
    seconds = sorted(x["seconds"] for x in runs[jobs["model", 1, 0].name].steps[2:])
    guesses = [plan(e, check_flags(e, model, 1, 0) + ["--threads", 1])["seconds_per_step"]
               for _ in range(e.pick(1, 3, 3))]
    e.table("seconds", ["planned_seconds", "measured_seconds", "lower_quartile", "upper_quartile"],
            [[median(guesses), median(seconds), seconds[len(seconds) // 4],
              seconds[-1 - len(seconds) // 4]]])


def planned(e, model, ranks, stage):
    return plan(e, check_flags(e, model, ranks, stage))["bytes_total"]


# ---------------------------------------------------------------- tables

def measure(e):
    write_measured(e)
    # A GPU's memory: alone, and with everything that ZeRO can shard shared among the others.
    memory = {(m.name, count): on_gpus(e, m, count, 3 if count > 1 else 0, 1)
              for m in MODELS for count in GPUS}
    times = time_plans(e, memory)
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
    e.table("asked", ["what", "value"], asked(e))


# ---------------------------------------------------------------- pictures

def draw_memory(memory):
    """A GPU's share of each model, in units of an 80 GB GPU."""
    names = [m.name for m in MODELS]
    curves = [lab.Curve(f"{count} GPU{'s' * (count > 1)}", range(len(names)),
                        [memory[name, count]["total_bytes"] / UNIT for name in names],
                        look={"linestyle": "", "markersize": 8}) for count in GPUS]
    alone = [name for name in names if memory[name, 1]["fits"]]
    first = {m.name: next((n for n in GPUS if memory[m.name, n]["fits"]), None) for m in LARGE}
    figure = lab.panels([{
        "curves": curves, "x": "", "y": "memory of a GPU (80 GB)", "log": (0, 10), "names": names}],
        f"{alone[0]} to {alone[-1]} fit on one GPU with all of AdamW's state;\nwith ZeRO 3, "
        + ", ".join(f"{name} on {n or 'none'}" for name, n in first.items()))
    figure.axes[0].axhline(1.0, color="black", linestyle="--")
    return figure


def llm_c_days(times):
    """Of the same tokens, by the seconds that llm.c measured."""
    tokens = times[LLM_C["model"], LLM_C["gpus"]]["tokens"]
    return tokens / LLM_C["batch_tokens"] * LLM_C["seconds"] / 86400


def draw_days(times):
    curves = [lab.Curve(f"{m.name}, {times[m.name, 1]['tokens'] / 1e9:,.1f}B tokens", GPUS,
                        [times[m.name, n]["modelled_days"] for n in GPUS]) for m in GPT2]
    curves.append(lab.Curve("1.6B, measured by llm.c", [LLM_C["gpus"]], [llm_c_days(times)], look={
        "color": "black", "marker": "*", "markersize": 12, "linestyle": ""}))
    first, eight = (times["1.6B", n]["modelled_days"] for n in (1, 8))
    return lab.panels([{"curves": curves, "x": "H100s, data parallel", "log": (2, 10),
                             "y": "days to train (modelled)"}],
                      f"GPT-2 1.6B: {first:.1f} days on one GPU, {24 * eight:.0f} hours on 8")


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
    e.figure("memory", draw_memory(memory),
             alt="The memory of a GPU for seven models, alone and shared among 8, 64 and 512 GPUs, "
                 "on one axis in units of 80 GB.",
             caption="Planned: one sequence a GPU. ZeRO 3 shards parameters, gradients and "
                     "moments, not activations. Dashed: an 80 GB GPU is full.")
    e.figure("days", draw_days(times),
             alt="Days to train four GPT-2s against the number of GPUs; and what llm.c measured.",
             caption="Modelled at 40% of the data sheet's peak. The batch is fixed, so more GPUs "
                     "have fewer sequences each. The star is llm.c's own figure.")


if __name__ == "__main__":
    lab.experiment(
        8, "fits", measure, conclude, title="Does it fit, is it fast?",
        question="If a model fits on one GPU, why train it on many?",
        prediction="None: modelled numbers have no verdict. What is measured beside the plan are "
                   "observations.")
