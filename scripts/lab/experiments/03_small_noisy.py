#!/usr/bin/env python3
"""Experiment 3: is a small, noisy batch bad? On fresh data: loss against the learning rate for
batches from one sequence to hundreds, after as many tokens, for AdamW and SGD. On repeated data:
does noise make a model generalise better?

    scripts/lab/experiments/03_small_noisy.py --quick
"""
import itertools
import math
from collections import namedtuple

import _path
import numpy as np
import fit
import lab

T, BETA2 = 32, 0.95
LOWEST, HIGHEST = -6, 12             # learning rates: a rule's `first` times these powers of two

# A way to train. first: a learning rate at one sequence; beta2 of a batch is BETA2 to `power`.
Rule = namedtuple("Rule", "name optimizer first beta2")
KEPT = Rule("AdamW, half-life kept", "adamw", 1e-3, lambda batch, most: BETA2 ** (batch / most))
FIXED = Rule("AdamW, β2 = 0.95", "adamw", 1e-3, lambda batch, most: BETA2)
SGD = Rule("SGD", "sgd", 2.0 ** -4, None)


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

class Fresh(lab.Tuned):
    """The runs of one rule and batch on fresh data."""

    def __init__(self, e, plan, rule, batch):
        first = round(math.log2(batch) / (4 if rule.optimizer == "adamw" else 2))
        tuning, *fresh = plan["seeds"]
        super().__init__(lambda _, power, seed: fresh_job(e, plan, self, power, seed), {"": first},
                         {"first": tuning, "seeds": fresh, "grid": [0, 1],
                          "extend": (LOWEST, HIGHEST)})
        self.rule, self.batch = rule, batch

    def rate(self, power):
        return self.rule.first * 2.0 ** power


def fresh_job(e, plan, own, power, seed):
    tokens, batch, most = plan["tokens"], own.batch, max(plan["batches"])
    flags = ["--data", e.corpus(tokens), *lab.model("35k", T), "--micro-batch", min(batch, 16),
             "--batch-tokens", batch * T, "--steps", tokens // (batch * T),
             "--lr", f"{own.rate(power):g}", "--lr-schedule", "cosine",
             "--warmup-tokens", tokens // 20, "--weight-decay", 0, "--seed", seed,
             "--eval-every", 0, "--eval-tokens", plan["eval"]]
    if own.rule.beta2:
        flags += ["--beta2", f"{own.rule.beta2(batch, most):.9g}"]
        kind = f"beta{own.rule.beta2(batch, most):.6f}"
    else:
        flags, kind = flags + ["--optimizer", "sgd"], "sgd"
    return lab.Job(f"b{batch}_{kind}_lr{own.rate(power):g}_s{seed}", flags,
                   cost=tokens * (1.0 + 2.0 / batch), thin=20)


def run_fresh(e, plan):
    """Writes the table `losses`."""
    methods = lab.tune(e, [
        Fresh(e, plan, rule, batch) for rule, batches in
        [(KEPT, plan["batches"]), (FIXED, plan["fixed"]), (SGD, plan["sgd"])]
        for batch in batches])
    e.table("losses", ["rule", "batch_sequences", "lr", "seed", "updates", "val_loss"],
            [[m.rule.name, m.batch, m.rate(power), seed, plan["tokens"] // (m.batch * T),
              run.val if math.isfinite(run.val) else "diverged"]
             for m in methods for (_, power, seed), run in sorted(m.runs.items())])
    e.setting(f"Fresh data: 35k parameters, T={T}, {plan['tokens']:,} tokens in every run; warm-up "
              "over 5% of the tokens, cosine to a tenth, no weight decay.")


class Repeat(lab.Tuned):
    """One batch on repeated data; the best rate has the lowest validation loss of any moment."""

    def __init__(self, e, plan, batch):
        tuning, *fresh = plan["repeated_seeds"]
        super().__init__(lambda _, power, seed: repeat_job(e, plan, batch, power, seed),
                         {"": round(0.5 * math.log2(batch / 512))},
                         {"first": tuning, "seeds": fresh, "grid": [0, 1],
                          "extend": (-5, 6) if e.size == "full" else None})
        self.batch = batch

    def score(self, run):
        return min((x["val_loss"] for x in run.evals if lab.number(x["val_loss"])),
                   default=math.inf)


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
            [[m.batch, run.start.get("lr"), seed, int(m.at_edge()), x["tokens"],
              x.get("train_eval_loss"), x["val_loss"]]
             for m in lab.tune(e, [Repeat(e, plan, batch) for batch in plan["repeated"]])
             for (_, power, seed), run in sorted(m.runs.items()) for x in run.evals])
    e.setting(f"Repeated data: 119k parameters, {plan['epochs']} epochs of {plan['epoch']:,} "
              "tokens, rate to zero. Seed 1 tunes every rate; fresh seeds are reported.")


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
    groups = {}
    for row in rows:
        groups.setdefault((row["rule"], row["batch_sequences"]), []).append(row)
    return [Curve(own) for own in groups.values()]


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
    return fit.first_at(points, train) if points and points[0][1] > train else None


def best_repeats(rows):
    """{batch: {seed: evaluations}} at the best rate of each batch, without the seed that chose
    it."""
    runs = {}
    for row in rows:
        runs.setdefault(row["batch_tokens"], {}).setdefault((row["seed"], row["lr"]),
                                                            []).append(row)
    found = {}
    for batch, own in sorted(runs.items()):
        first = min(seed for seed, _ in own)
        lowest = {lr: min((x["val_loss"] for x in evals if lab.number(x["val_loss"])),
                          default=math.inf) for (seed, lr), evals in own.items() if seed == first}
        best = min(lowest, key=lowest.get)
        found[int(batch)] = {int(seed): evals for (seed, lr), evals in own.items()
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
    by = {(b, seed): loss for _, b, seed, loss in equal}
    small, large = min(by)[0], max(by)[0]
    return fit.mean_interval([by[small, s] - by[large, s] for b, s in sorted(by) if b == small])


# ---------------------------------------------------------------- tables and the picture

def write(e, curves, equal):
    e.table("best", ["rule", "batch_sequences", "lr", "lr_interpolated", "at_edge", "seeds",
                     "val_loss", "low", "high"],
            [[c.rule, c.batch, c.lr, c.best_rate(), int(c.at_edge()), len(c.seeds), c.mean, c.low,
              c.high] for c in curves])
    e.table("equal_training", ["train_loss", "batch_tokens", "seed", "val_loss"], equal)


def draw(plt, curves, repeats, titles, level):
    figure, axes = plt.subplot_mosaic([["rates", "best"], ["repeats", "repeats"]],
                                      figsize=(9.2, 8.4), layout="constrained")
    draw_rates(axes["rates"], curves, titles[0])
    draw_best(axes["best"], curves, titles[1])
    draw_repeats(axes["repeats"], repeats, titles[2], level)
    return figure


def draw_rates(ax, curves, title):
    """Without what lies far above the best."""
    low = min(c.mean for c in curves)
    own = [c for c in curves if c.rule == KEPT.name and c.mean <= low + 0.16]
    for i, c in enumerate(own):
        shown = [at for at in c.tried.items() if at[1] <= low + 0.16]
        ax.plot([x for x, _ in shown], [y for _, y in shown], color=lab.COLOURS[i],
                marker=lab.MARKERS[i], markersize=5, label=f"{c.batch}")
    ax.set_ylim(low - 0.03, low + 0.16)
    ax.legend(title="sequences an update")
    powers_axis(ax, sorted({lr for c in own for lr in c.tried})[::2])
    lab.axes(ax, "peak learning rate", "validation loss (nats a token)", title)


def powers_axis(ax, values):
    ax.set_xscale("log", base=2)
    ax.set_xticks(values, [f"{value:g}" for value in values])
    ax.minorticks_off()


def draw_best(ax, curves, title):
    """The seeds as points, a line through their means; what lies far above is left out."""
    low = min(c.mean for c in curves)
    for i, rule in enumerate((KEPT, FIXED, SGD)):
        own = [c for c in curves if c.rule == rule.name and math.isfinite(c.mean)]
        ax.plot([c.batch for c in own], [c.mean for c in own], color=lab.COLOURS[i],
                linestyle=lab.LINES[i], linewidth=1.3, label=rule.name)
        points = [(c.batch, loss) for c in own for loss in c.seeds]
        ax.plot([x for x, _ in points], [y for _, y in points], color=lab.COLOURS[i],
                marker=lab.MARKERS[i], linestyle="none", markersize=5)
    ax.set_ylim(low - 0.05, low + 0.3)
    ax.legend()
    powers_axis(ax, sorted({c.batch for c in curves}))
    lab.axes(ax, "sequences an update", "best validation loss (nats a token)", title)


def draw_repeats(ax, repeats, title, level):
    """Against the training loss, how much higher the validation loss is at the same moment."""
    for i, (b, own) in enumerate(repeats.items()):
        for j, evals in enumerate(own.values()):
            known = [(x["train_loss"], x["val_loss"] - x["train_loss"]) for x in evals
                     if lab.number(x["train_loss"])]
            ax.plot([x for x, _ in known], [y for _, y in known], color=lab.COLOURS[i],
                    linestyle=lab.LINES[i], linewidth=1.3,
                    label=None if j else f"{b // T} sequence{'s' * (b > T)}")
    ax.axvline(level, color="black", linewidth=0.8)
    ax.invert_xaxis()
    ax.legend(loc="upper left", title="an update of")
    lab.axes(ax, "training loss at the same moment (nats)",
             "validation less training loss (nats)", title)


# ---------------------------------------------------------------- words

def titles(gap, growth, level):
    larger = growth and growth[1] > 0.0
    return ("A larger batch wants a larger rate (AdamW)" if larger else "Each batch has its rate",
            "The best loss of each batch",
            f"Repeated data: when the training loss is {level:g}, 1 sequence less 64 is "
            f"{gap[0]:+.3f} nats" if gap else "Repeated data")


def conclude(e, level):
    curves, repeats = curves_of(e.rows("losses")), best_repeats(e.rows("repeated"))
    equal, growth = equal_training(repeats, level), exponent(curves)
    write(e, curves, equal)
    for c in curves:
        e.found(f"{c.rule}, {c.batch} sequences an update: validation loss", c.mean, c.low, c.high)
    if growth:
        e.found("exponent of AdamW's best rate in the batch", *growth)
    gap = small_less_large(equal) if equal else None
    if gap:
        e.found(f"repeated data, at training loss {level:g}: validation loss of the smaller batch "
                "less the larger", *gap)
    e.figure("small_noisy", lambda plt: draw(plt, curves, repeats, titles(gap, growth, level),
                                             level),
             alt="Validation loss against learning rate for each batch; the best loss of each "
                 "batch for AdamW and SGD; on repeated data, how much the validation loss exceeds "
                 "the training loss, against the training loss.",
             caption="Right: each point is a fresh seed. Below: training goes from left to right, "
                     "a line a seed.")
    e.decide([("", *gap)] if gap else [])


def main():
    e = lab.Experiment(
        3, "small_noisy", title="Small and noisy",
        question="After the same tokens, is a model trained with one sequence an update worse than "
                 "one trained with hundreds? And do noisy gradients generalise better?",
        prediction="On repeated data the batch does not change the validation loss at equal "
                   "training loss: 1 sequence an update and 64 end within 0.02 nats. On fresh "
                   "data, with the rate tuned and the half-life of the second moment kept in "
                   "tokens, one sequence is as good per token as many, SGD too (Marek et al. "
                   "2025).")
    plan = plan_of(e)
    if not e.args.kept:
        run_fresh(e, plan)
        run_repeated(e, plan)
    conclude(e, plan["level"])
    e.close()


if __name__ == "__main__":
    main()
