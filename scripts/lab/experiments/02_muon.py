#!/usr/bin/env python3
"""Experiment 2, the knee with Muon, by scripts/lab/plans/02_muon.md.

    scripts/lab/experiments/02_muon.py           builds dev/speedrun/muon.entry first
"""
import math
import os
import shutil
import sys

import fit
import kept
import lab
import local_knee

T, TOKENS, SMALL, LARGE, MEMORY = 32, 2 ** 20, 256, 4096, 2 ** 21
CHOOSES, MEASURE = 50, [51, 52, 53, 54]          # seeds
OPTIMIZERS = "AdamW", "Muon"
TABLES = {**local_knee.TABLES, "runs": ["rate", "plan"]}


def patched(e):
    """The trainer with Muon."""
    scratch = os.path.join(e.args.out, "data", "muon")
    program = os.path.join(scratch, "source", "muon", "train_gpt2")
    if not os.path.exists(program):
        sys.path.append(os.path.join("dev", "speedrun"))
        import verify
        shutil.rmtree(scratch, ignore_errors=True)
        verify.copy_source(os.path.join(scratch, "plain"))
        verify.make(verify.patch(verify.Entry("muon"), os.path.join(scratch, "plain"), scratch),
                    "train_gpt2")
    return program


def measure(e):
    commit, rows = lab.plan(e), {name: [] for name in TABLES}
    for optimizer, program in zip(OPTIMIZERS, (None, patched(e))):
        def plan_of(k):
            rate = 2e-3 * 2.0 ** k
            return local_knee.Plan(f"{optimizer}_{rate:.6f}", lab.model("119k", T), T, e.corpus(
                32 * 10 ** 6), SMALL, rate, 8000.0, (TOKENS,), (1, 4, 16, 64), 65536, MEMORY, 64,
                program)
        plan = local_knee.best_rate(e, plan_of, CHOOSES)
        found = local_knee.measure(e, plan, CHOOSES, MEASURE)
        found["runs"] = [[plan.rate, commit]]
        for name, own in found.items():
            rows[name] += [[optimizer, *row] for row in own]
    for name, columns in TABLES.items():
        e.table(name, ["optimizer", *columns], rows[name])


def conclude(e):
    fewer = {}                                   # {optimizer: {batch: [of each seed]}}
    for (optimizer,), own in kept.grouped(e.rows("branches"), "optimizer").items():
        fewer[optimizer] = local_knee.fewer(own)
        for batch, of in list(fewer[optimizer].items())[1:]:
            e.found(f"{optimizer}: updates of {SMALL} tokens over {batch:,}", *fit.ratio_interval(of))
        e.found(f"{optimizer}: B_crit in tokens",
                *fit.ratio_interval(local_knee.b_crits(own).values()))
    for (optimizer,), own in kept.grouped(e.rows("seeds"), "optimizer").items():
        e.found(f"{optimizer}: loss of the annealed checkpoint", *fit.mean_interval(
            [row["target_nats"] + local_knee.FALL for row in own]))
    adamw, muon = (fewer[optimizer][LARGE] for optimizer in OPTIMIZERS)
    if not len(adamw) == len(muon) == len(MEASURE):
        return "a seed is missing"
    return [("", *fit.ratio_interval([m / a for m, a in zip(muon, adamw)]))]


if __name__ == "__main__":
    lab.experiment(
        2, "muon", measure, conclude, endpoint=(1.0, math.inf), title="The knee with Muon",
        question="Does Muon save more updates with a larger batch than AdamW does?",
        prediction="After 1,048,576 tokens, 119k parameters take so many times fewer updates of "
        "4,096 tokens than of 256: with Muon more times than with AdamW.")
