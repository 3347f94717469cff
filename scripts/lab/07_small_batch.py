#!/usr/bin/env python3
"""Experiment 7: is a small batch bad? Loss after the same tokens, against the learning rate, for
batches from one sequence up, with a fixed beta2 or with its half-life kept in tokens.

    scripts/lab/07_small_batch.py --quick
"""
import math

import lab

BETA2 = 0.95                                     # of the largest batch; of all under rule fixed
RULES = {"fixed": "β2 = 0.95 at every batch", "halflife": "β2 by half-life in tokens"}
LOWEST, HIGHEST = -5, 6                          # grids are never extended further: 3e-5 ... 0.064


def rate(k):
    """Learning rates are powers of two times 1e-3, so that grids share their points."""
    return 1e-3 * 2.0 ** k


def beta2_of(rule, batch, largest):
    """0.5 = beta2^(half-life in updates): the same half-life in tokens needs an exponent of B."""
    return BETA2 if rule == "fixed" else BETA2 ** (batch / largest)


class Curve:
    """Loss against learning rate for one batch and one rule, from the runs made so far."""

    def __init__(self, plan, rule, batch):
        self.plan, self.rule, self.batch = plan, rule, batch
        self.loss = {}                                       # (k, seed) -> validation loss
        self.runs = {}                                       # the same -> lab.Run
        first = round(math.log2(batch) / 4)                  # a guess: the rate grows as B^(1/4)
        self.grid = set(range(first, first + plan["grid"]))

    @property
    def beta2(self):
        return beta2_of(self.rule, self.batch, max(self.plan["batches"]))

    def mean(self, k):
        """Mean over all seeds; infinite if one of them diverged."""
        return sum(self.loss[k, seed] for seed in self.plan["seeds"]) / len(self.plan["seeds"])

    def spread(self, k):
        """The standard deviation between seeds; 0 for one seed."""
        n, mean = len(self.plan["seeds"]), self.mean(k)
        if n < 2 or not math.isfinite(mean):
            return 0.0
        squares = sum((self.loss[k, seed] - mean) ** 2 for seed in self.plan["seeds"])
        return math.sqrt(squares / (n - 1))

    def complete(self):
        """The learning rates that all seeds have run."""
        return [k for k in sorted(self.grid)
                if all((k, seed) in self.loss for seed in self.plan["seeds"])]

    def best(self):
        """By the mean over seeds once all have run, before that by the first seed."""
        if self.complete():
            return min(self.complete(), key=self.mean)
        first = self.plan["seeds"][0]
        return min((k for k in sorted(self.grid)), key=lambda k: self.loss[k, first])

    def at_edge(self):
        return self.best() in (LOWEST, HIGHEST)

    def missing(self):
        """Runs of the next round. First one seed over the grid, which grows until its best point
        has neighbours; then the other seeds at the best point and its neighbours, again if
        these move the best point."""
        first = self.plan["seeds"][:1]
        want = {(k, seed) for k in self.grid for seed in first}
        if want <= set(self.loss):
            best = self.best()
            around = [k for k in (best - 1, best, best + 1) if LOWEST <= k <= HIGHEST]
            inside = set(around) <= self.grid
            self.grid |= set(around)
            want = {(k, seed) for k in around for seed in (self.plan["seeds"] if inside else first)}
            if self.plan["seeds_everywhere"] and inside:
                want |= {(k, seed) for k in self.grid for seed in self.plan["seeds"]}
        return sorted(want - set(self.loss))


# ---------------------------------------------------------------- runs

def job(e, plan, curve, k, seed):
    """One run. The largest batch has the same beta2 under both rules and is run once."""
    tokens, batch, T = plan["tokens"], curve.batch, plan["T"]
    flags = ["--data", e.corpus(tokens), *e.model(), "--micro-batch", min(batch, 32),
             "--batch-tokens", batch * T, "--steps", tokens // (batch * T),
             "--lr", f"{rate(k):g}", "--lr-schedule", "cosine", "--warmup-tokens", tokens // 20,
             "--beta2", f"{curve.beta2:.9g}", "--weight-decay", "0", "--seed", seed,
             "--eval-every", "0", "--eval-tokens", plan["eval_tokens"]]
    name = f"b{batch}_beta{curve.beta2:.6f}_lr{rate(k):g}_s{seed}"
    return lab.Job(name, flags, cost=tokens * (1.0 + 2.0 / batch), thin=50)


def run_all(e, plan):
    curves = [Curve(plan, rule, batch) for rule in RULES for batch in plan["batches"]]
    while wanted := [(curve, k, seed) for curve in curves for k, seed in curve.missing()]:
        jobs = {}
        for curve, k, seed in wanted:
            made = job(e, plan, curve, k, seed)
            jobs[made.name] = made
        runs = e.run(list(jobs.values()))
        for curve, k, seed in wanted:
            run = runs[job(e, plan, curve, k, seed).name]
            curve.loss[k, seed], curve.runs[k, seed] = run.val, run
    return curves


def write_tables(e, plan, curves):
    T = plan["T"]
    e.csv("losses", ["rule", "batch_sequences", "batch_tokens", "beta2", "lr", "seed", "updates",
                     "val_loss", "seconds"],
          [[c.rule, c.batch, c.batch * T, c.beta2, rate(k), seed, plan["tokens"] // (c.batch * T),
            loss if math.isfinite(loss) else "diverged", c.runs[k, seed].seconds()]
           for c in curves for (k, seed), loss in sorted(c.loss.items())])
    e.csv("best", ["rule", "batch_sequences", "batch_tokens", "beta2", "lr", "val_loss", "spread",
                   "seeds", "at_edge"],
          [[c.rule, c.batch, c.batch * T, c.beta2, rate(c.best()), c.mean(c.best()),
            c.spread(c.best()), len(plan["seeds"]), int(c.at_edge())] for c in curves])


# ---------------------------------------------------------------- pictures

def draw_curve(ax, curve, style, top):
    """A line through the means; a caret at the top marks a point above the figure."""
    colour, marker, line = style
    first = curve.plan["seeds"][0]
    full, best = set(curve.complete()), curve.best()
    ks = sorted(curve.grid)
    y = [curve.mean(k) if k in full else curve.loss[k, first] for k in ks]
    seen = [(rate(k), v, curve.spread(k) if k in full else 0.0) for k, v in zip(ks, y) if v <= top]
    name = f"{curve.batch} ({curve.batch * curve.plan['T']:,} tokens)"
    ax.errorbar([p[0] for p in seen], [p[1] for p in seen], yerr=[p[2] for p in seen],
                color=colour, marker=marker, linestyle=line, markersize=5.5, linewidth=1.6,
                capsize=2.5, label=name)
    for k, v in zip(ks, y):
        if v > top:
            ax.plot([rate(k)], [top], color=colour, marker=6, markersize=7, clip_on=False)
    ax.plot([rate(best)], [curve.mean(best)], color="black", marker="o", fillstyle="none",
            markersize=12, markeredgewidth=1.3, linestyle="none", zorder=4)
    if curve.at_edge():
        ax.annotate("edge of the grid", (rate(best), curve.mean(best)), xytext=(0, 9),
                    textcoords="offset points", ha="center", fontsize=8)


def batch_axis(ax, plan):
    ax.set_xscale("log", base=2)
    ax.set_xticks(plan["batches"])
    ax.set_xticklabels([str(b) for b in plan["batches"]])
    ax.minorticks_off()


def draw_best(ax, curves, plan):
    T = plan["T"]
    for i, rule in enumerate(RULES):
        own = [c for c in curves if c.rule == rule]
        ax.errorbar([c.batch for c in own], [c.mean(c.best()) for c in own],
                    yerr=[c.spread(c.best()) for c in own], color=lab.COLOURS[i],
                    marker=lab.MARKERS[i], linestyle=lab.LINES[i], linewidth=1.8, capsize=3,
                    label=RULES[rule])
    batch_axis(ax, plan)
    ax.tick_params(labelbottom=False)
    lab.axes(ax, "", "best loss, nats a token")
    upper = ax.secondary_xaxis("top", functions=(lambda b: b * T, lambda n: n / T))
    upper.set_xlabel("batch, tokens")
    shown = plan["batches"][::2] if len(plan["batches"]) > 6 else plan["batches"]
    upper.set_xticks([b * T for b in shown])
    upper.set_xticklabels([f"{b * T:,}" for b in shown])
    upper.minorticks_off()
    ax.legend(loc="upper left", fontsize=8)


def draw_cost(ax, curves, plan):
    """What the fixed beta2 costs at each batch, with the standard error."""
    pairs = [(find(curves, "fixed", b), find(curves, "halflife", b)) for b in plan["batches"]]
    ax.axhline(0.0, color="black", linewidth=0.8)
    ax.errorbar(plan["batches"], [a.mean(a.best()) - b.mean(b.best()) for a, b in pairs],
                yerr=[error(a, b) if a.beta2 != b.beta2 else 0.0 for a, b in pairs],
                color=lab.COLOURS[6], marker="o", linestyle="none", capsize=3)
    batch_axis(ax, plan)
    lab.axes(ax, "batch, sequences", "0.95 costs, nats")


def draw(plt, curves, plan):
    figure = plt.figure(figsize=(12.5, 5.2))
    grid = figure.add_gridspec(2, 3, height_ratios=[1.5, 1.0])
    panels = [figure.add_subplot(grid[:, i]) for i in range(2)]
    bests = [c.mean(c.best()) for c in curves if math.isfinite(c.mean(c.best()))]
    low, high = min(bests), max(bests)
    top = high + 0.15 * (high - low) + 0.05
    for ax, rule in zip(panels, RULES):
        for i, curve in enumerate(c for c in curves if c.rule == rule):
            style = (lab.COLOURS[i % 7], lab.MARKERS[i % 7], lab.LINES[i % 7])
            draw_curve(ax, curve, style, top)
        ax.set_xscale("log")
        ax.set_ylim(low - 0.08 * (top - low), top)
        lab.axes(ax, "peak learning rate", "validation loss, nats a token", RULES[rule])
    panels[1].sharex(panels[0])
    draw_best(figure.add_subplot(grid[0, 2]), curves, plan)
    draw_cost(figure.add_subplot(grid[1, 2]), curves, plan)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", bbox_to_anchor=(0.34, 0.0),
                  ncol=min(5, len(labels)),
                  title="batch, sequences (tokens); ring: the best learning rate of a batch")
    figure.tight_layout(rect=(0, 0.1 + 0.05 * (len(labels) > 5), 1, 1))
    return figure


# ---------------------------------------------------------------- what was seen

def find(curves, rule, batch):
    return next(c for c in curves if c.rule == rule and c.batch == batch)


def error(a, b):
    """Standard error of the difference of two best losses: those of both means, in quadrature."""
    n = len(a.plan["seeds"])
    return math.hypot(a.spread(a.best()), b.spread(b.best())) / math.sqrt(n)


def told(curve):
    loss, spread = curve.mean(curve.best()), curve.spread(curve.best())
    edge = ", at the edge of its grid" if curve.at_edge() else ""
    return f"{loss:.3f} ± {spread:.3f} (learning rate {rate(curve.best()):g}{edge})"


def growth(curves, rule, plan):
    """p such that the best learning rate grows as B^p from the smallest to the largest batch."""
    small, large = min(plan["batches"]), max(plan["batches"])
    ratio = rate(find(curves, rule, large).best()) / rate(find(curves, rule, small).best())
    return math.log(ratio) / math.log(large / small)


def report(e, curves, plan):
    small, large = min(plan["batches"]), max(plan["batches"])
    kept, fixed = find(curves, "halflife", small), find(curves, "fixed", small)
    big = find(curves, "halflife", large)
    best = min((c for c in curves if c.rule == "halflife"), key=lambda c: c.mean(c.best()))
    for rule, name in RULES.items():
        own = [c for c in curves if c.rule == rule]
        e.say(f"{name}: " + "; ".join(f"batch {c.batch}: {told(c)}" for c in own) + ".")
    e.say(f"With the half-life kept, batch {best.batch} has the lowest loss of all "
          f"{len(plan['batches'])}. The best learning rate is {rate(kept.best()):g} at batch "
          f"{small} and {rate(big.best()):g} at {large}: it grows as "
          f"B^{growth(curves, 'halflife', plan):.2f}; the square-root rule says B^0.50.")
    seconds = [lab.median([run.seconds() for run in c.runs.values()]) for c in (kept, big)]
    updates = [plan["tokens"] // (c.batch * plan["T"]) for c in (kept, big)]
    e.say(f"All this is per token. Batch {small} made {updates[0]:,} serial updates in "
          f"{seconds[0]:.1f} s on one core; batch {large} made only {updates[1]:,}, in "
          f"{seconds[1]:.1f} s, and too few updates are why its loss is higher. But only the work "
          "inside an update can be spread over many workers.")
    judge(e, kept, fixed, big)


def judge(e, kept, fixed, big):
    gap, gap_error = big.mean(big.best()) - kept.mean(kept.best()), error(big, kept)
    loss, loss_error = fixed.mean(fixed.best()) - kept.mean(kept.best()), error(fixed, kept)
    as_good, worse = gap >= -2 * gap_error, loss > 2 * loss_error
    why = (f"at batch {kept.batch}, half-life kept, the loss is {abs(gap):.3f} ± {gap_error:.3f} "
           f"{'below' if gap >= 0 else 'above'} that of batch {big.batch}; β2 = 0.95 costs batch "
           f"{kept.batch} {loss:+.3f} ± {loss_error:.3f} (standard errors over "
           f"{len(kept.plan['seeds'])} seeds)")
    e.verdict({2: "as predicted", 1: "partly", 0: "failed"}[as_good + worse], why)


def settings(e, plan):
    e.setting(f"2 layers, 32 channels, T={plan['T']}; batches of "
              f"{', '.join(map(str, plan['batches']))} sequences; {plan['tokens']:,} tokens a run, "
              "of tales that are never repeated.")
    e.setting("AdamW, β1 0.9, no weight decay, clip 1; warm-up over 5% of the tokens, then cosine "
              "to a tenth. Every curve has its own grid of learning rates, a factor of 2 apart, "
              "extended until the best lies inside.")
    where = "everywhere" if plan["seeds_everywhere"] else "at the best rate and its neighbours"
    e.setting(f"{len(plan['seeds'])} seeds {where}; ± and bars are the standard deviation between "
              "them.")


def main():
    e = lab.Experiment(
        7, "small_batch", title="Is a small batch bad?",
        question="After the same tokens, is a model trained with one sequence an update worse than "
                 "one trained with hundreds?",
        prediction="With the learning rate tuned at each batch and the half-life of Adam's second "
                   "moment kept in tokens, batch 1 is as good per token as the largest batch, or "
                   "better; with β2 = 0.95 at every batch, batch 1 is worse than with the "
                   "half-life kept.")
    plan = {"T": 32,
            "tokens": e.pick(tiny=2 ** 14, quick=2 ** 19, full=2 ** 22),
            "batches": e.pick(tiny=[1, 8, 64], quick=[1, 4, 16, 64, 256],
                              full=[1, 2, 4, 8, 16, 32, 64, 128, 256, 512]),
            "seeds": e.pick(tiny=[1, 2], quick=[1, 2, 3], full=[1, 2, 3]),
            "seeds_everywhere": e.size == "full",
            "grid": e.pick(tiny=3, quick=4, full=5),
            "eval_tokens": e.pick(tiny=8192, quick=131072, full=262144)}
    settings(e, plan)
    curves = run_all(e, plan)
    write_tables(e, plan, curves)
    e.figure("small_batch", lambda plt: draw(plt, curves, plan),
             alt="Validation loss against learning rate, a curve a batch, with β2 fixed and with "
                 "its half-life kept; the best loss of each batch; and what the fixed β2 costs.",
             caption=f"Loss after {plan['tokens']:,} tokens. A ring marks the best learning rate "
                     "of a batch; a caret at the top marks a loss above the figure, or divergence.")
    report(e, curves, plan)
    e.close()


if __name__ == "__main__":
    main()
