#!/usr/bin/env python3
"""Experiment 3: is a small, noisy batch bad? On fresh data: loss against the learning rate for
batches from one sequence to hundreds, after as many tokens, for AdamW and SGD. On repeated data:
does noise make a model generalise better?

    scripts/lab/experiments/03_small_noisy.py --quick
"""
import itertools
import math
from collections import namedtuple

import numpy as np
import fit
import kept
import lab

T, BETA2 = 32, 0.95
LOWEST, HIGHEST = -6, 12             # learning rates: a rule's `first` times these powers of two

# A way to train. first: a learning rate at one sequence; beta2: of a batch, in sequences.
Rule = namedtuple("Rule", "name first beta2")
KEPT = Rule("AdamW, half-life kept", 1e-3, lambda batch, most: BETA2 ** (batch / most))
FIXED = Rule("AdamW, β2 = 0.95", 1e-3, lambda batch, most: BETA2)
SGD = Rule("SGD", 2.0 ** -4, None)


def plan_of(e):
    """Batches in sequences. Every point has `tokens`; the largest batch at least 500 updates."""
    return {"tokens": e.pick(2 ** 13, 2 ** 19, 2 ** 22),
            "batches": e.pick([1, 4, 16], [1, 4, 16, 64], [1, 4, 16, 64, 256]),
            "fixed": e.pick([1], [1], [1, 4]), "sgd": e.pick([1], [1, 64], [1, 16, 256]),
            "seeds": e.pick([1, 2], [1, 2, 3], [1, 2, 3]),
            "eval": e.pick(1024, 131072, 262144),
            # Repeated data: batches in tokens, tokens of one epoch, epochs.
            "repeated": e.pick([64, 512], [32, 512], [32, 2048]),
            "repeated_seeds": e.pick([1, 2, 3], [1, 2, 3], [1, 2, 3, 4, 5, 6]),
            "level": e.pick(4.0, 2.5, 1.5),                  # the planned training loss
            "epoch": e.pick(20_000, 50_000, 200_000), "epochs": e.pick(1, 6, 16)}


# ---------------------------------------------------------------- runs

def fresh_job(e, plan, rule, batch, power, seed):
    tokens, rate, most = plan["tokens"], rule.first * 2.0 ** power, max(plan["batches"])
    kind, more = "sgd", ["--optimizer", "sgd"]
    if rule.beta2:
        kind = f"beta{rule.beta2(batch, most):.6f}"
        more = ["--beta2", f"{rule.beta2(batch, most):.9g}"]
    return lab.Job(f"b{batch}_{kind}_lr{rate:g}_s{seed}", [
        "--data", e.corpus(tokens), *lab.model("35k", T), "--micro-batch", min(batch, 16),
        "--batch-tokens", batch * T, "--steps", tokens // (batch * T), "--lr", f"{rate:g}",
        "--lr-schedule", "cosine", "--warmup-tokens", tokens // 20, "--weight-decay", 0,
        "--seed", seed, "--eval-every", 0, "--eval-tokens", plan["eval"], *more],
        cost=tokens * (1.0 + 2.0 / batch), thin=20)


def run_fresh(e, plan):
    """Writes the table `losses`."""
    methods, (tuning, *fresh) = {}, plan["seeds"]
    for rule, batches in [(KEPT, "batches"), (FIXED, "fixed"), (SGD, "sgd")]:
        for batch in plan[batches]:
            first = round(math.log2(batch) / (4 if rule.beta2 else 2))
            methods[rule, batch] = lab.Tuned(
                lambda _, power, seed, of=(rule, batch): fresh_job(e, plan, *of, power, seed),
                {"": first}, {"first": tuning, "seeds": fresh, "grid": [0, 1],
                              "extend": (LOWEST, HIGHEST)})
    lab.tune(e, list(methods.values()))
    e.table("losses", ["rule", "batch_sequences", "lr", "seed", "updates", "val_loss"],
            [[rule.name, batch, rule.first * 2.0 ** power, seed, plan["tokens"] // (batch * T),
              run.val if math.isfinite(run.val) else "diverged"]
             for (rule, batch), m in methods.items()
             for (_, power, seed), run in sorted(m.runs.items())])


def repeat(e, plan, batch):
    """One batch on repeated data; the best rate has the lowest validation loss of any moment."""
    tuning, *fresh = plan["repeated_seeds"]
    return lab.Tuned(lambda _, power, seed: repeat_job(e, plan, batch, power, seed),
                     {"": round(0.5 * math.log2(batch / 512))},
                     {"first": tuning, "seeds": fresh, "grid": [0, 1],
                      "extend": (-5, 6) if e.size == "full" else None},
                     lambda run: lowest(run.evals))


def repeat_job(e, plan, batch, power, seed):
    """Linear decay to zero, so that the noise of a constant rate is gone at the end."""
    total = plan["epoch"] * plan["epochs"]
    return lab.Job(f"repeat_b{batch}_lr{2e-3 * 2.0 ** power:.6f}_s{seed}", [
        "--data", e.corpus(plan["epoch"], least=plan["epoch"]),
        *lab.model(e.pick("35k", "119k", "119k"), T), "--micro-batch", min(batch // T, 16),
        "--batch-tokens", batch, "--tokens", total, "--lr", f"{2e-3 * 2.0 ** power:.6g}",
        "--lr-schedule", "linear", "--final-lr-frac", 0, "--warmup-tokens", total // 50,
        "--beta2", f"{lab.half_life_beta2(batch):.7g}", "--eval-every",
        max(1, round(total / 32 / batch)), "--eval-tokens", e.pick(1024, 16384, 65536),
        "--eval-train", "--seed", seed], cost=total, thin=20)


def run_repeated(e, plan):
    """Writes the table `repeated`: all evaluations; the first seed's, which chose the rate, too."""
    e.table("repeated", ["batch_tokens", "lr", "seed", "at_edge", "tokens", "train_loss",
                         "val_loss"],
            [[batch, run.start.get("lr"), seed, int(m.at_edge()), x["tokens"],
              x.get("train_eval_loss"), x["val_loss"]]
             for batch, m in zip(plan["repeated"], lab.tune(
                 e, [repeat(e, plan, batch) for batch in plan["repeated"]]))
             for (_, power, seed), run in sorted(m.runs.items()) for x in run.evals])


# ---------------------------------------------------------------- numbers, from the tables

class Curve:
    """Loss against the learning rate for one rule and batch."""

    def __init__(self, rows):
        self.rule, self.batch = rows[0]["rule"], int(rows[0]["batch_sequences"])
        loss = {(r["lr"], r["seed"]): r["val_loss"] if lab.number(r["val_loss"]) else math.inf
                for r in rows}
        first = min(seed for _, seed in loss)                # the seed that tunes
        self.tried = {lr: loss[lr, seed] for lr, seed in sorted(loss) if seed == first}
        self.lr = min(self.tried, key=self.tried.get)
        self.seeds = [loss[at] for at in sorted(loss) if at[1] != first and at[0] == self.lr]
        self.mean, self.low, self.high = fit.mean_interval(self.seeds)

    def at_edge(self):
        return self.lr in (min(self.tried), max(self.tried))

    def best_rate(self):
        """The vertex of the parabola through the best rate and its neighbours; the best rate itself
        beside one that diverged."""
        losses = [next((v for lr, v in self.tried.items() if math.isclose(lr, self.lr * times)),
                       math.inf) for times in (0.5, 1.0, 2.0)]
        if not all(map(math.isfinite, losses)):
            return self.lr
        bend, slope, _ = np.polyfit([-1, 0, 1], losses, 2)
        return self.lr * 2.0 ** (-slope / (2.0 * bend))


def curves_of(rows):
    return [Curve(own) for own in kept.grouped(rows, "rule", "batch_sequences").values()]


def exponent(curves):
    """(exponent, low, high) of the best rate in the batch, AdamW with the half-life kept."""
    own = [c for c in curves if c.rule == KEPT.name and not c.at_edge()]
    if len(own) < 3:
        return None
    return fit.power_law([c.batch for c in own], [c.best_rate() for c in own])


def gap_at(evals, train):
    """Validation loss at the moment when the training loss, evaluated at the same moments, first
    falls to `train`: linear between two evaluations. None if it does not."""
    points = list(itertools.takewhile(lambda at: all(map(lab.number, at)),
                                      ((x["val_loss"], x["train_loss"]) for x in evals)))
    return lab.first_at(points, train) if points and points[0][1] > train else None


def lowest(evals):
    """The lowest validation loss of any moment."""
    return min((x["val_loss"] for x in evals if lab.number(x["val_loss"])), default=math.inf)


def best_repeats(rows):
    """{batch: {seed: evaluations}} at the best rate of each batch, without the seed that chose
    it."""
    found = {}
    for (batch,), every in sorted(kept.grouped(rows, "batch_tokens").items()):
        runs = kept.grouped(every, "seed", "lr")
        first = min(seed for seed, _ in runs)
        best = min((lowest(evals), lr) for (seed, lr), evals in runs.items() if seed == first)[1]
        found[int(batch)] = {int(seed): evals for (seed, lr), evals in runs.items()
                             if lr == best and seed != first}
    return found


def equal_training(repeats, level):
    """[(training loss, batch, seed, validation loss)] at that training loss; empty where one run
    did not reach it."""
    found = [(level, b, seed, gap_at(evals, level)) for b, seeds in repeats.items()
             for seed, evals in seeds.items()]
    return found if all(row[-1] is not None for row in found) else []


def small_less_large(equal):
    """(mean, low, high) of the smallest batch's validation loss less the largest's, seed by
    seed."""
    *_, small = zip(*[row for row in equal if row[1] == equal[0][1]])
    *_, large = zip(*[row for row in equal if row[1] == equal[-1][1]])
    return fit.mean_interval([a - b for a, b in zip(small, large)])


# ---------------------------------------------------------------- tables and the picture

def draw(curves, repeats, gap, level):
    """Losses far above the best are left out of the first two panels."""
    low = min(c.mean for c in curves)
    rates, best, gaps = [], [], []
    for c in curves:
        if c.rule == KEPT.name and c.mean <= low + 0.16:
            shown = [at for at in c.tried.items() if at[1] <= low + 0.16]
            rates.append(lab.Curve(c.batch, *zip(*shown), look={"linestyle": "-"}))
    for rule in (KEPT, FIXED, SGD):
        own = [c for c in curves if c.rule == rule.name and c.mean <= low + 0.3]
        best.append(lab.Curve(rule.name, [c.batch for c in own], [c.mean for c in own],
                              [min(c.seeds) for c in own], [max(c.seeds) for c in own]))
    for i, (b, own) in enumerate(repeats.items()):
        for j, evals in enumerate(own.values()):
            known = [(x["train_loss"], x["val_loss"] - x["train_loss"]) for x in evals
                     if lab.number(x["train_loss"])]
            gaps.append(lab.Curve(None if j else b // T, *zip(*known), look={
                "color": lab.COLOURS[i], "linestyle": lab.LINES[i], "marker": ""}))
    loss, title = "validation loss (nats per token)", "Repeated data" + (
        f": at {level:g} they are {gap[0]:+.3f} nats apart" if gap else "")
    figure = lab.panels([
        {"curves": rates, "x": "peak learning rate", "y": loss, "log": (10, 0),
         "title": "Each batch has its rate (AdamW)", "legend": "sequences per update"},
        {"curves": best, "x": "sequences per update", "y": loss, "log": (4, 0),
         "title": "The best loss of each batch"},
        {"curves": gaps, "x": "training loss at the same moment (nats)", "title": title,
         "y": "validation less training loss (nats)", "legend": "sequences per update"}],
        "Small and noisy batches: on fresh data, and (right) on repeated data", (14, 4.6))
    figure.axes[2].axvline(level, color="black", linewidth=0.8)
    figure.axes[2].invert_xaxis()
    return figure


def conclude(e):
    level = plan_of(e)["level"]
    curves, repeats = curves_of(e.rows("losses")), best_repeats(e.rows("repeated"))
    equal, growth = equal_training(repeats, level), exponent(curves)
    e.table("best", ["rule", "batch_sequences", "lr", "lr_interpolated", "at_edge", "seeds",
                     "val_loss", "low", "high"],
            [[c.rule, c.batch, c.lr, c.best_rate(), int(c.at_edge()), len(c.seeds), c.mean, c.low,
              c.high] for c in curves])
    e.table("equal_training", ["train_loss", "batch_tokens", "seed", "val_loss"], equal)
    for c in curves:
        e.found(f"{c.rule}, {c.batch} sequences per update: validation loss", c.mean, c.low, c.high)
    if growth:
        e.found("exponent of AdamW's best rate in the batch", *growth)
    gap = small_less_large(equal) if equal else None
    if gap:
        e.found(f"repeated data, at training loss {level:g}: validation loss of the smaller batch "
                "less the larger", *gap)
    e.figure("small_noisy", draw(curves, repeats, gap, level),
             alt="Validation loss against learning rate for each batch; the best loss of each "
                 "batch for AdamW and SGD; on repeated data, how much the validation loss exceeds "
                 "the training loss, against the training loss.",
             caption="Bars: the range of fresh seeds. Right: training goes from left to right, a "
                     "line a seed.")
    return [("", *gap)] if gap else []


def measure(e):
    plan = plan_of(e)
    run_fresh(e, plan)
    run_repeated(e, plan)


if __name__ == "__main__":
    lab.experiment(
        3, "small_noisy", measure, conclude, endpoint=(-0.02, 0.02), title="Small and noisy",
        question="After the same tokens, is a model trained with one sequence an update worse than "
                 "one trained with hundreds? And do noisy gradients generalise better?",
        prediction="On repeated data the batch does not change the validation loss at equal "
                   "training loss: 1 sequence an update and 64 end within 0.02 nats. On fresh "
                   "data, with the rate tuned and the half-life of the second moment kept in "
                   "tokens, one sequence is as good per token as many, SGD too (Marek et al. "
                   "2025).")
