#!/usr/bin/env python3
"""Experiment 3: is a small, noisy batch bad? Loss against the learning rate for batches from one
sequence to hundreds, at equal tokens, for AdamW and SGD; and, on repeated data, whether noise makes
a model generalise better.

    scripts/lab/experiments/03_small_noisy.py --quick
"""
import math
from collections import namedtuple

import _path
import fit
import lab

T, BETA2 = 32, 0.95
LOWEST, HIGHEST = -6, 12             # learning rates: a rule's `first` times these powers of two

# A way to train. first: a learning rate at one sequence; beta2 of a batch is BETA2 to `power`.
Rule = namedtuple("Rule", "name optimizer first beta2")
KEPT = Rule("AdamW, half-life kept", "adamw", 1e-3, lambda batch, most: BETA2 ** (batch / most))
FIXED = Rule("AdamW, β2 = 0.95", "adamw", 1e-3, lambda batch, most: BETA2)
SGD = Rule("SGD", "sgd", 2.0 ** -4, None)

SLOWER = 0.5                         # Marek 2025: the rate grows far slower than the square root
EQUAL = 0.05                         # nats: what counts as equally good


def plan_of(e):
    """Batches in sequences. Every point has `tokens`; the largest batch at least 500 updates."""
    return {"tokens": e.pick(2 ** 14, 2 ** 19, 2 ** 22),
            "batches": e.pick([1, 4, 16], [1, 4, 16, 64], [1, 4, 16, 64, 256]),
            "fixed": e.pick([1], [1], [1, 4]), "sgd": e.pick([1], [1, 64], [1, 16, 256]),
            "seeds": e.pick([1, 2], [1, 2, 3], [1, 2, 3]),
            "eval": e.pick(8192, 131072, 262144),
            # Repeated data: batches in tokens, tokens of one epoch, epochs.
            "repeated": e.pick([64, 512], [128, 1024], [128, 512, 2048]),
            "epoch": e.pick(50_000, 50_000, 200_000), "epochs": e.pick(1, 6, 24)}


# ---------------------------------------------------------------- runs

class Curve(lab.Tuned):
    """Loss against learning rate for one rule and batch."""

    def __init__(self, e, plan, rule, batch):
        first = round(math.log2(batch) / (4 if rule.optimizer == "adamw" else 2))
        tuning, *fresh = plan["seeds"]
        super().__init__(lambda _, power, seed: job(e, plan, self, power, seed), {"": first}, {
            "first": tuning, "seeds": fresh, "grid": [0, 1], "extend": (LOWEST, HIGHEST)})
        self.rule, self.batch = rule, batch

    def rate(self, power):
        return self.rule.first * 2.0 ** power

    def tried(self):
        """{power: loss} of the seed that tunes."""
        return {power: self.runs["", power, self.plan["first"]].val
                for _, power in sorted(self.grid)}

    def mean(self):
        return mean(self.losses())

    def error(self):
        """Standard error of the mean over fresh seeds."""
        return deviation(self.losses()) / math.sqrt(len(self.losses()))

    def best_rate(self):
        """The vertex of the parabola through the best rate and its neighbours; the best rate itself
        beside one that diverged."""
        best, tried = self.best()[1], self.tried()
        losses = [tried.get(p, math.inf) for p in (best - 1, best, best + 1)]
        if not all(map(math.isfinite, losses)):
            return self.rate(best)
        return self.rate(fit.vertex([best - 1, best, best + 1], losses))


def job(e, plan, curve, power, seed):
    tokens, batch, most = plan["tokens"], curve.batch, max(plan["batches"])
    flags = ["--data", e.corpus(tokens), *e.model(), "--micro-batch", min(batch, 16),
             "--batch-tokens", batch * T, "--steps", tokens // (batch * T),
             "--lr", f"{curve.rate(power):g}", "--lr-schedule", "cosine",
             "--warmup-tokens", tokens // 20, "--weight-decay", 0, "--seed", seed,
             "--eval-every", 0, "--eval-tokens", plan["eval"]]
    if curve.rule.beta2:
        flags += ["--beta2", f"{curve.rule.beta2(batch, most):.9g}"]
        kind = f"beta{curve.rule.beta2(batch, most):.6f}"
    else:
        flags, kind = flags + ["--optimizer", "sgd"], "sgd"
    return lab.Job(f"b{batch}_{kind}_lr{curve.rate(power):g}_s{seed}", flags,
                   cost=tokens * (1.0 + 2.0 / batch), thin=20)


def run_curves(e, plan):
    return lab.tune(e, [
        Curve(e, plan, rule, batch) for rule, batches in
        [(KEPT, plan["batches"]), (FIXED, plan["fixed"]), (SGD, plan["sgd"])]
        for batch in batches])


class Repeat(lab.Tuned):
    """One batch on repeated data; the best rate has the lowest validation loss of any moment."""

    def __init__(self, e, plan, batch):
        tuning, *fresh = plan["seeds"]
        super().__init__(lambda _, power, seed: repeat_job(e, plan, batch, power, seed),
                         {"": round(0.35 * math.log2(batch / 512))},
                         {"first": tuning, "seeds": fresh, "grid": [0, 1], "extend": (-4, 6)})
        self.batch = batch

    def score(self, run):
        return min((x["val_loss"] for x in run.evals if lab.number(x["val_loss"])),
                   default=math.inf)


def repeat_job(e, plan, batch, power, seed):
    """Linear decay to zero, so that the noise of a constant rate is gone at the end."""
    total = plan["epoch"] * plan["epochs"]
    return lab.Job(f"repeat_b{batch}_lr{2e-3 * 2.0 ** power:.6f}_s{seed}", [
        "--data", e.corpus(plan["epoch"], least=plan["epoch"]), "--layers", 2, "--heads", 2,
        "--channels", e.pick(32, 64, 64), "--seq-len", T, "--micro-batch", min(batch // T, 16),
        "--batch-tokens", batch, "--tokens", total, "--lr", f"{2e-3 * 2.0 ** power:.6g}",
        "--lr-schedule", "linear", "--final-lr-frac", 0, "--warmup-tokens", total // 50,
        "--beta2", f"{lab.half_life_beta2(batch):.7g}", "--eval-every",
        max(1, round(total / e.pick(48, 24, 48) / batch)), "--eval-tokens",
        e.pick(8192, 16384, 65536), "--eval-train", "--seed", seed], cost=total, thin=20)


def run_repeats(e, plan):
    """{batch: [Run of each fresh seed at the best rate]}"""
    tuned = lab.tune(e, [Repeat(e, plan, batch) for batch in plan["repeated"]])
    return {method.batch: method.chosen() for method in tuned}


# ---------------------------------------------------------------- numbers

def mean(values):
    return sum(values) / len(values)


def deviation(values):
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return 0.0
    return fit.deviation(values)


def find(curves, rule, batch):
    return next(c for c in curves if (c.rule, c.batch) == (rule, batch))


def exponent(curves):
    """(exponent, low, high) of the best rate in the batch, AdamW with the half-life kept."""
    own = [c for c in curves if c.rule is KEPT and not c.at_edge()]
    if len(own) < 3:
        return None
    return fit.power_law([c.batch for c in own], [c.best_rate() for c in own])


def difference(a, b):
    """(difference of two curves' best losses, low, high): 90%, from the seeds of both, by Student's
    t."""
    n = len(a.plan["seeds"])
    return interval(a.mean() - b.mean(), math.hypot(a.error(), b.error()), 2 * n - 2)


def interval(middle, error, degrees):
    if degrees < 1 or not math.isfinite(middle):
        return middle, -math.inf, math.inf
    reach = fit.student_t(0.95, degrees) * error
    return middle, middle - reach, middle + reach


def gap_at(run, train):
    """Validation loss at the moment when the training loss, evaluated at the same moments, first
    falls to `train`: linear between two evaluations. None if it does not."""
    last = None
    for x in run.evals:
        now = x.get("train_eval_loss"), x.get("val_loss")
        if not all(map(lab.number, now)):
            return None
        if now[0] <= train:
            if last is None:
                return None
            share = (last[0] - train) / (last[0] - now[0])
            return last[1] + share * (now[1] - last[1])
        last = now
    return None


def equal_training(repeats, levels=5):
    """[(training loss, {batch: [validation loss of each seed]})] at losses that all runs reached:
    from the highest of their lowest ones, upwards in steps of 0.1."""
    runs = [run for own in repeats.values() for run in own]
    ends = [min((x["train_eval_loss"] for x in run.evals if lab.number(x.get("train_eval_loss"))),
                default=math.inf) for run in runs]
    if not all(map(math.isfinite, ends)):
        return []
    found = [(level, {b: [gap_at(run, level) for run in own] for b, own in repeats.items()})
             for level in [max(ends) + 1e-9 + 0.1 * i for i in range(levels)]]
    return [(level, by) for level, by in found
            if all(v is not None for values in by.values() for v in values)]


def generalisation(rows):
    """(validation loss of the smallest batch less that of the largest, low, high), at the lowest
    training loss that all reached; None without."""
    if not rows:
        return None
    by = rows[0][1]
    small, large = by[min(by)], by[max(by)]
    error = math.hypot(deviation(small), deviation(large)) / math.sqrt(len(small))
    return interval(mean(small) - mean(large), error, 2 * len(small) - 2)


# ---------------------------------------------------------------- tables and the picture

def write(e, plan, curves, repeats, rows):
    e.csv("losses", ["rule", "batch_sequences", "batch_tokens", "lr", "seed", "updates", "val_loss",
                     "seconds"],
          [[c.rule.name, c.batch, c.batch * T, c.rate(p), seed, plan["tokens"] // (c.batch * T),
            run.val if math.isfinite(run.val) else "diverged", run.seconds()]
           for c in curves for (_, p, seed), run in sorted(c.runs.items())])
    e.csv("best", ["rule", "batch_sequences", "batch_tokens", "lr", "lr_interpolated", "val_loss",
                   "error", "at_edge"],
          [[c.rule.name, c.batch, c.batch * T, c.rate(c.best()[1]), c.best_rate(), c.mean(),
            c.error(), int(c.at_edge())] for c in curves])
    e.csv("repeated", ["batch_tokens", "lr", "seed", "tokens", "train_loss", "val_loss"],
          [[b, run.start.get("lr"), seed, x["tokens"], x.get("train_eval_loss"), x["val_loss"]]
           for b, own in repeats.items() for seed, run in zip(plan["seeds"][1:], own)
           for x in run.evals])
    e.csv("equal_training", ["train_loss", "batch_tokens", "val_loss", "error"],
          [[level, b, mean(v), deviation(v) / math.sqrt(len(v))] for level, by in rows
           for b, v in by.items()])


def draw(plt, plan, curves, repeats, growth, gap):
    figure, axes = plt.subplots(1, 3, figsize=(13.5, 4.9), layout="constrained")
    draw_rates(axes[0], curves)
    draw_best(axes[1], curves, growth)
    draw_repeats(axes[2], repeats, gap)
    figure.suptitle(headline(plan, curves), fontweight="bold")
    return figure


def headline(plan, curves):
    small, *others = (find(curves, KEPT, b) for b in sorted(plan["batches"]))
    equal = [c for c in others if abs(c.mean() - small.mean()) <= EQUAL]
    apart = max((abs(c.mean() - small.mean()) for c in equal), default=0.0)
    middle, low, high = difference(others[-1], small)
    same = f"{', '.join(str(c.batch) for c in [small, *equal])} sequences an update end within " \
           f"{apart:.3f} nats" if equal else "No batch ends near that of one sequence"
    return (f"After {plan['tokens']:,} tokens: {same}; {others[-1].batch} less one: "
            f"{middle:+.2f} ({low:+.2f} to {high:+.2f})")


def draw_rates(ax, curves):
    own = [c for c in curves if c.rule is KEPT]
    low = min(min(c.tried().values()) for c in own)
    top = max(c.mean() for c in own if math.isfinite(c.mean())) + 0.12
    for i, c in enumerate(own):
        shown = [(c.rate(p), loss) for p, loss in c.tried().items() if loss <= top]
        ax.plot([x for x, _ in shown], [y for _, y in shown], color=lab.COLOURS[i],
                marker=lab.MARKERS[i], markersize=5)
        ax.annotate(f"{c.batch}", min(shown, key=lambda at: at[1]), xytext=(0, -14), ha="center",
                    textcoords="offset points", color=lab.COLOURS[i])
    ax.set_ylim(low - 0.05, top)
    lab.log_axis(ax.xaxis, base=4, digits=2)
    lab.axes(ax, "peak learning rate", "validation loss (nats a token)",
             "AdamW, half-life kept\n(labels: sequences an update)")


def draw_best(ax, curves, growth):
    placed = {KEPT: (-2, -16), FIXED: (0, -36), SGD: (-1, 12)}       # a point, and points below it
    for i, (rule, (at, below)) in enumerate(placed.items()):
        own = [c for c in curves if c.rule is rule and math.isfinite(c.mean())]
        if not own:
            continue
        ax.errorbar([c.batch for c in own], [c.mean() for c in own],
                    yerr=[1.645 * c.error() for c in own], color=lab.COLOURS[i],
                    marker=lab.MARKERS[i], linestyle=lab.LINES[i], capsize=3)
        point = own[max(at, -len(own))]
        ax.annotate(rule.name, (point.batch, point.mean()), xytext=(0, below),
                    textcoords="offset points", color=lab.COLOURS[i],
                    ha="left" if at == 0 else "right")
    lab.log_axis(ax.xaxis, base=2)
    ax.margins(x=0.12, y=0.2)
    title = "The best loss of each batch"
    if growth:
        title += f"\nbest rate ∝ B^{growth[0]:.2f} ({growth[1]:.2f} to {growth[2]:.2f})"
    lab.axes(ax, "batch (sequences)", "best validation loss (nats a token)", title)


def draw_repeats(ax, repeats, gap):
    """Against the training loss, how much higher the validation loss is at the same moment."""
    for i, (b, own) in enumerate(repeats.items()):
        for run in own:
            known = [(x["train_eval_loss"], x["val_loss"] - x["train_eval_loss"])
                     for x in run.evals if lab.number(x.get("train_eval_loss"))]
            ax.plot([x for x, _ in known], [y for _, y in known], color=lab.COLOURS[i],
                    linestyle=lab.LINES[i], linewidth=1.3)
        ax.plot([], [], color=lab.COLOURS[i], linestyle=lab.LINES[i], label=f"{b:,} tokens")
    ax.invert_xaxis()
    ax.legend(loc="upper left", title="an update of")
    title = "Repeated data"
    if gap:
        least, most = min(repeats), max(repeats)
        title = (f"Repeated data: {least:,} less {most:,} tokens\n{gap[0]:+.3f} nats "
                 f"({gap[1]:+.3f} to {gap[2]:+.3f})")
    lab.axes(ax, "training loss at the same moment (nats a token)",
             "validation less training loss (nats)", title)


# ---------------------------------------------------------------- words

def told(c):
    edge = ", on the edge of the rates allowed" if c.at_edge() else ""
    return f"batch {c.batch}: {c.mean():.3f} ± {c.error():.3f} (rate {c.best_rate():.2g}{edge})"


def tell(e, plan, curves, repeats, rows, growth, gap):
    for rule in (KEPT, FIXED, SGD):
        own = [c for c in curves if c.rule is rule]
        e.say(f"{rule.name}: " + "; ".join(told(c) for c in own) + ".")
    if growth:
        e.say(f"The best rate of AdamW grows as the batch to the power of {growth[0]:.2f} "
              f"({growth[1]:.2f} to {growth[2]:.2f}).")
    for level, by in rows:
        e.say(f"Repeated data, at training loss {level:.2f}: validation " + ", ".join(
            f"{mean(v):.3f} ± {deviation(v) / math.sqrt(len(v)):.3f} (batch {b:,} tokens)"
            for b, v in by.items()) + ".")
    if not rows:
        e.say("Repeated data: no training loss was reached by all batches.")


def decide(low, high, least, most):
    if least <= low and high <= most:
        return "as predicted"
    return "refuted" if high < least or low > most else "undecided"


def judge(e, plan, curves, growth, gap):
    small, large = (find(curves, KEPT, b) for b in (min(plan["batches"]), max(plan["batches"])))
    fixed, sgd = find(curves, FIXED, small.batch), find(curves, SGD, small.batch)
    claims = [
        (f"one sequence is as good as {large.batch} or better", difference(small, large),
         -math.inf, EQUAL, "{:+.3f} nats ({:+.3f} to {:+.3f})"),
        ("β2 = 0.95 is worse at one sequence", difference(fixed, small), 0.0, math.inf,
         "{:+.3f} nats ({:+.3f} to {:+.3f})"),
        ("the rate grows slower than the square root", growth, -math.inf, SLOWER,
         "power {:.2f} ({:.2f} to {:.2f})"),
        ("SGD at one sequence is as good as AdamW", difference(sgd, small), -math.inf, EQUAL,
         "{:+.3f} nats ({:+.3f} to {:+.3f})"),
        ("noise does not help on repeated data", gap, -EQUAL, EQUAL,
         "{:+.3f} nats ({:+.3f} to {:+.3f})")]
    words, parts = [], []
    for claim, value, least, most, form in claims:
        word = "undecided" if value is None else decide(*value[1:], least, most)
        words.append(word)
        parts.append(f"{claim}: {word}" + ("" if value is None else ", " + form.format(*value)))
    word = ("refuted" if "refuted" in words else "undecided" if "undecided" in words
            else "as predicted")
    e.verdict(word, "; ".join(parts))


def main():
    e = lab.Experiment(
        3, "small_noisy", title="Small and noisy",
        question="After the same tokens, is a model trained with one sequence an update worse than "
                 "one trained with hundreds? And do noisy gradients generalise better?",
        prediction="Marek et al. 2025: with the rate tuned and the half-life of the second moment "
                   "kept in tokens, one sequence is as good per token as the largest batch; with "
                   "β2 = 0.95 it is worse; the best rate grows far slower than the square root of "
                   "the batch; SGD without momentum is as good as AdamW at one sequence (within "
                   f"{EQUAL} nats). On repeated data the batch does not change the validation loss "
                   f"at equal training loss by more than {EQUAL} nats.")
    plan = plan_of(e)
    curves = run_curves(e, plan)
    repeats = run_repeats(e, plan)
    rows, growth = equal_training(repeats), exponent(curves)
    gap = generalisation(rows)
    tokens, most = plan["tokens"], max(plan["batches"])
    e.setting(f"35k parameters, T={T}, {tokens:,} tokens a run that are never repeated, so "
              f"{tokens // (most * T):,} updates at {most} sequences; warm-up over 5% of the "
              "tokens, cosine to a tenth, no weight decay.")
    e.setting(f"One seed tunes the rate; {len(plan['seeds']) - 1} fresh ones are reported.")
    e.setting(f"Repeated data: {plan['epochs']} epochs of {plan['epoch']:,} tokens, rate to zero.")
    write(e, plan, curves, repeats, rows)
    tell(e, plan, curves, repeats, rows, growth, gap)
    judge(e, plan, curves, growth, gap)
    e.figure("small_noisy", lambda plt: draw(plt, plan, curves, repeats, growth, gap),
             alt="Validation loss against learning rate for each batch; the best loss of each "
                 "batch for AdamW and SGD; on repeated data, how much the validation loss exceeds "
                 "the training loss, against the training loss.",
             caption="Bars: 90% over fresh seeds. Right: training goes from left to right.")
    e.close()


if __name__ == "__main__":
    main()
