#!/usr/bin/env python3
"""Experiment 5: seconds to a loss, measured three ways: a small batch on one core, twice the batch
on one core (gradient accumulation), and the same twice the batch shared by two cores.

    scripts/lab/experiments/05_time.py --quick

With --exact-sum the last two train the same weights in every bit, so that they can differ in
seconds alone. A block runs all three, and beside them half of the large batch alone and on both
cores at once: experiment 10 predicts the two cores from it. A block in which that pair is much
slower than the half alone is discarded: something else used the machine. Run it on a machine that
does nothing else.
"""
import json
import math
import os
from collections import namedtuple
from statistics import median

import fit
import kept
import lab

TRAINER = os.path.join(".", "train_gpt2")        # CPU ranks, whatever e.args.trainer is
LAUNCH = os.path.join("scripts", "launch.sh")
BENCH = os.path.join("build", "bench_comm")
RANKS, T = 2, 32
WARMUP = 20                                      # updates
SLOW = 1.25                                      # a pair may take so many times its solo time

# rate: of a batch that experiment 2 does not know. small: tokens of an update; twice as many for
# the other two arms. tokens: at which a run gives up.
Model = namedtuple("Model", "name target small tokens rate")
MODELS = {"full": Model("0.8M", 1.4, 512, 4e6, None), "quick": Model("0.8M", 2.5, 512, 4e5, None),
          "tiny": Model("35k", 4.0, 64, 4e4, 4e-3)}
ARMS = ["small", "accumulated", "shared"]        # one core, one core, two cores


def missing(_):
    """What this machine lacks to measure two ranks; empty if nothing."""
    if not lab.has_mpi() or not os.access(BENCH, os.X_OK):
        return f"needs MPI: make MPI=1 {lab.MPI_TRAINER} {BENCH}, and mpirun"
    return "" if lab.processors() >= RANKS else "needs two processors"


# ---------------------------------------------------------------- runs

def to_loss(e, model, batch, seed):
    """All arms have micro-batches of `small` tokens, so that their sums have the same terms."""
    rate = model.rate or kept.best_rate(model.name, model.target, batch)
    return ["--data", e.corpus(1.1 * model.tokens), *lab.model(model.name, T), "--micro-batch",
            model.small // T, "--batch-tokens", batch, "--tokens",
            math.ceil(model.tokens / batch) * batch,
            "--target-loss", model.target, "--lr", f"{rate:.6g}", "--lr-schedule", "constant",
            "--warmup-tokens", WARMUP * batch, "--beta2", f"{lab.half_life_beta2(batch):.9g}",
            "--eval-every", max(1, e.pick(2048, 16384, 32768) // batch), "--eval-tokens",
            e.pick(1024, 8192, 16384), "--save-every", 0, "--seed", seed]


def jobs(e, model, turn):
    """{arm: Job}. All arms of a turn train with one seed."""
    seed, large = 11 + turn, RANKS * model.small
    exact = [*to_loss(e, model, large, seed), "--exact-sum"]

    def run(arm, flags, **more):
        return lab.Job(f"t{turn}_{arm}", flags, alone=True, **more)
    return {"small": run("small", to_loss(e, model, model.small, seed), program=TRAINER),
            "accumulated": run("accumulated", exact, program=TRAINER, keep=True),
            "shared": run("shared", [*exact, "--zero", 0], ranks=RANKS, keep=True),
            "solo": share_job(e, model, turn, "solo", alone=True)}


def share_job(e, model, turn, name, alone=False):
    """Some updates of half of the large batch, for their time."""
    return lab.Job(f"t{turn}_{name}", e.timing(
        lab.model(model.name, T), model.small, model.small // T, e.pick(8, 30, 100)),
        program=TRAINER, alone=alone)


def seconds_to(run, target):
    """Seconds of all updates until the loss, the last one in part; None if never reached."""
    updates, seconds = run.updates_at(target), [step["seconds"] for step in run.steps]
    if updates is None:
        return None
    whole = int(updates)
    return sum(seconds[:whole]) + (updates - whole) * seconds[min(whole, len(seconds) - 1)]


def seconds_of(run):
    """Of the updates of a timing run, without the first three."""
    return [step["seconds"] for step in run.steps[3:]]


def link(parameters):
    """{"alpha", "beta"}: seconds of an all-reduce for a message and for a byte, measured up to that
    size."""
    printed = lab.output_of(LAUNCH, "-n", str(RANKS), BENCH, str(parameters))
    return json.loads(lab.last_line(printed)) if printed else lab.fail(
        f"{LAUNCH} -n {RANKS} {BENCH} {parameters}: it measured no all-reduce")


def weights(run):
    """The bytes of the weights that a run ended with."""
    with open(os.path.join(run.base, "latest", "model.safetensors"), "rb") as f:
        return f.read()


# ---------------------------------------------------------------- blocks

# Of a block: seconds and updates to the target of each arm; solo: median seconds of half of the
# large batch alone; share: mean of the slower of two at once; same_bits: whether the two large arms
# ended with the same bits.
COLUMNS = ["turn", "kept", *(f"{what}_{arm}" for what in ("seconds", "updates") for arm in ARMS),
           "solo", "share", "alpha", "beta", "same_bits"]


def measure_block(e, model, turn):
    """Its row, as a dict; a block is kept if all arms reached the target and the pair was not much
    slower than one alone."""
    wanted = jobs(e, model, turn)
    runs = e.run(list(wanted.values()))
    runs = {arm: runs[job.name] for arm, job in wanted.items()}
    pair = e.run([share_job(e, model, turn, name) for name in ("pair", "other")], together=True)
    parameters = runs["small"].start["parameters"]
    block = {"turn": turn, "parameters": parameters, **link(parameters),
             "solo": median(seconds_of(runs["solo"])),
             "share": fit.slowest(sum(map(seconds_of, pair.values()), []), 2),
             "same_bits": int(weights(runs["accumulated"]) == weights(runs["shared"]))}
    for arm in ARMS:
        block["seconds_" + arm] = seconds_to(runs[arm], model.target)
        block["updates_" + arm] = runs[arm].updates_at(model.target)
    block["kept"] = int(is_kept(block))
    return block


def is_kept(block):
    return (block["share"] <= SLOW * block["solo"]
            and None not in [block["seconds_" + arm] for arm in ARMS])


def measure(e):
    """Blocks until enough are kept, or the most that are tried."""
    model = MODELS[e.size]
    enough, most = e.pick((2, 3), (5, 5), (9, 13))
    blocks = []
    while sum(b["kept"] for b in blocks) < enough and len(blocks) < most:
        blocks.append(measure_block(e, model, len(blocks)))
    e.table("blocks", COLUMNS, [[b[name] for name in COLUMNS] for b in blocks])
    e.table("model", ["model", "parameters", "target_nats", "messages"],
            [[model.name, blocks[0]["parameters"], model.target, lab.MODELS[model.name][0] + 3]])


# ---------------------------------------------------------------- numbers

def speedups(blocks, arm, base="small"):
    """How many times faster than another arm one was, in each kept block."""
    return [b["seconds_" + base] / b["seconds_" + arm] for b in blocks if b["kept"]]


def conclude(e):
    blocks, target = e.rows("blocks"), MODELS[e.size].target
    of = [b for b in blocks if b["kept"]]
    for arm in ARMS if of else []:
        e.found(f"seconds to {target:g} nats, {arm}", median(b["seconds_" + arm] for b in of))
    for arm, base in [("accumulated", "small"), ("shared", "small"), ("shared", "accumulated")]:
        e.found(f"speed of {arm} over {base}", *fit.median_interval(speedups(blocks, arm, base)))
    e.found("blocks in which both large arms end with the same bits", sum(
        b["same_bits"] for b in of))
    e.found(f"blocks discarded of {len(blocks)}", len(blocks) - len(of))
    return [("", *fit.median_interval(speedups(blocks, "shared")))]


if __name__ == "__main__":
    lab.experiment(
        5, "time", measure, conclude, missing, endpoint=(1.46, 1.98),
        title="Seconds to a loss: one core, accumulation, two cores",
        question="What does a larger batch gain on one device, and what on two?",
        prediction="Twice the batch takes hardly more than half of the updates. On one core each "
                   "then takes twice as long, so nothing is gained. Two cores share it, and reach "
                   "the loss 1.72 times as fast as one core with the small batch.")
