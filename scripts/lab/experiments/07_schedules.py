#!/usr/bin/env python3
"""Experiment 7: batch schedules against the frontier of constant batches. Every run sees the same
number of tokens; a larger batch makes fewer updates and ends at a higher loss. That trade-off is
the frontier. A schedule wins only if it ends below: at a lower loss after as many updates.

    scripts/lab/experiments/07_schedules.py --quick
"""
import math
from collections import namedtuple

import _path
import fit
import lab

SMALL, CAP, PART, T = 512, 4096, 4, 32           # tokens, tokens, sequences, tokens
CONSTANT = [512, 1024, 2048, 4096]               # the frontier, in tokens
CONTROL = 1536                                   # a constant batch between two of the frontier's
CONFIDENCE = 0.9                                 # of all schedules' intervals together

# flags(rule, lr): of a run, with --batch-lr rule and learning rate lr at the first batch.
# middle: {rule: where its grid of learning rates begins}. A constant batch needs no rule.
# eta: of the norm test, which compares gradients of small micro-batches.
Schedule = namedtuple("Schedule", "name label flags middle eta", defaults=[None])


def rate(k):
    return 1e-3 * 2.0 ** k


def beta2(batch):
    return f"{lab.half_life_beta2(batch):.9g}"


def constant(batch):
    def flags(_, lr):
        return ["--batch-tokens", batch, "--lr", f"{lr:.9g}", "--beta2", beta2(batch)]
    label = f"constant {batch:,}" if batch in CONSTANT else f"control: constant {batch:,}"
    return Schedule(f"constant{batch}", label, flags, {"none": 2 if batch < 2048 else 3})


def growing(name, label, schedule, batch=SMALL, eta=None):
    """batch: --batch-tokens, the batch that --lr and --beta2 are for."""
    def flags(rule, lr):
        scaled = lr * math.sqrt(batch / SMALL) if rule == "sqrt" else lr
        return ["--batch-tokens", batch, "--batch-schedule", schedule, "--lr", f"{scaled:.9g}",
                "--batch-lr", rule, "--beta2", beta2(batch), "--batch-beta2", "halflife"]
    return Schedule(name, label, flags, {"none": 3, "sqrt": 2}, eta)


def schedules(plan):
    tokens = plan["tokens"]
    stages = ",".join(f"{tokens * i // 4}={SMALL * 2 ** i}" for i in (1, 2, 3))
    return [growing("linear", "linear", f"linear:{SMALL},{tokens}", CAP),
            growing("stages", "stages", f"stages:{stages}")] + [
                growing(f"adaptive{eta:g}", f"η = {eta:g}", f"adaptive:{eta},{SMALL},{CAP}",
                        eta=eta) for eta in plan["etas"]]


# ---------------------------------------------------------------- runs

def job(e, plan, schedule, rule, k, seed):
    tokens = plan["tokens"]
    micro = PART if schedule.eta else SMALL // T
    flags = ["--data", e.corpus(tokens), *e.model(), "--micro-batch", micro,
             *schedule.flags(rule, rate(k)), "--tokens", tokens, "--lr-schedule", "wsd",
             "--warmup-tokens", tokens // 40, "--seed", seed, "--eval-every", 0, "--eval-tokens",
             plan["eval_tokens"]]
    return lab.Job(f"{schedule.name}_{rule}_lr{rate(k):g}_s{seed}", flags, thin=plan["thin"])


class Course(lab.Tuned):
    """The runs of one schedule. A variant is --batch-lr."""

    def __init__(self, e, plan, schedule):
        self.schedule = schedule
        super().__init__(lambda *at: job(e, plan, schedule, *at), schedule.middle, plan)

    def updates(self):
        return [run.end.get("step", math.nan) for run in self.chosen()]


# ---------------------------------------------------------------- below or above the frontier

def frontier_at(updates, points):
    """The loss of a constant batch with so many updates: the polynomial in log updates through all
    points. points: [(updates, loss)]. NaN outside of them."""
    xs, x = [math.log(u) for u, _ in points], math.log(updates)
    if not min(xs) - 1e-9 <= x <= max(xs) + 1e-9:
        return math.nan
    return sum(loss * math.prod((x - other) / (own - other) for other in xs if other != own)
               for own, (_, loss) in zip(xs, points))


class Gap:
    """Loss of a schedule minus the frontier's at as many updates. Runs of one seed start from the
    same weights and see the same samples, so the difference is taken seed by seed."""

    def __init__(self, course, frontier):
        self.course = course
        self.seeds = [loss - frontier_at(updates, list(points)) for loss, updates, *points in zip(
            course.losses(), course.updates(), *[zip(c.updates(), c.losses()) for c in frontier])]
        self.mean = sum(self.seeds) / len(self.seeds)
        self.half = math.nan                     # half of the interval, once all gaps are known

    @property
    def side(self):
        """-1: below the frontier, 1: above it, 0: the interval holds both."""
        return -1 if self.mean + self.half < 0.0 else 1 if self.mean - self.half > 0.0 else 0

    def text(self):
        return (f"{self.mean:+.4f} ({self.mean - self.half:+.4f} to "
                f"{self.mean + self.half:+.4f})")


def batch_at(run, tokens):
    """Tokens of the update that ends at or after `tokens`."""
    return next((s["batch_tokens"] for s in run.steps if s["tokens"] >= tokens),
                run.steps[-1]["batch_tokens"])


def batches_at(course, share):
    """Mean over seeds of the batch after that share of the run."""
    found = [batch_at(run, share * course.plan["tokens"]) for run in course.chosen()]
    return sum(found) / len(found)


# ---------------------------------------------------------------- tables and picture

def write(e, plan, courses, gaps):
    e.csv("runs", ["schedule", "eta", "batch_lr", "lr_at_first_batch", "seed", "updates", "tokens",
                   "val_loss"],
          [[c.schedule.name, c.schedule.eta, rule, rate(k), seed, run.end.get("step"),
            run.end.get("tokens"), run.val if math.isfinite(run.val) else "diverged"]
           for c in courses for (rule, k, seed), run in sorted(c.runs.items())])
    of = {g.course: g for g in gaps}
    e.csv("summary", ["schedule", "eta", "batch_lr", "lr_at_first_batch", "at_edge", "updates",
                      "val_loss", "gap", "low", "high", "batch_before_decay", "batch_at_end"],
          [[c.schedule.name, c.schedule.eta, c.best()[0], rate(c.best()[1]), int(c.at_edge()),
            mean(c.updates()), mean(c.losses()),
            *([of[c].mean, of[c].mean - of[c].half, of[c].mean + of[c].half] if c in of
              else [None] * 3), batches_at(c, 0.8), batches_at(c, 1.0)] for c in courses])
    e.csv("batches", ["schedule", "seed", "updates", "tokens", "batch_tokens"],
          [[c.schedule.name, seed, step["step"], step["tokens"], step["batch_tokens"]]
           for c in courses for seed, run in zip(plan["seeds"], c.chosen()) for step in run.steps])


def mean(values):
    return sum(values) / len(values)


def draw(plt, frontier, gaps, title):
    """Above, the frontier and where each schedule ends. Below, the distances to the frontier, which
    are too small to see above."""
    figure, (whole, near) = plt.subplots(2, 1, figsize=(7.6, 8.4), sharex=True,
                                         layout="constrained", height_ratios=[2, 3])
    points = [(mean(c.updates()), mean(c.losses())) for c in frontier]
    ends = math.log(points[-1][0]), math.log(points[0][0])
    grid = [math.exp(ends[0] + (ends[1] - ends[0]) * i / 100) for i in range(101)]
    whole.plot(grid, [frontier_at(u, points) for u in grid], color="black", linewidth=1.2)
    near.axhline(0.0, color="black", linewidth=1.2)
    for c, (updates, loss) in zip(frontier, points):
        whole.plot([updates], [loss], "ko", markersize=5)
        whole.annotate(c.schedule.label, (updates, loss), (6, 6),
                       textcoords="offset points", fontsize=9)
        near.plot([updates], [0.0], "ko", markersize=5)
    order = sorted((g for g in gaps if math.isfinite(g.mean)),
                   key=lambda g: mean(g.course.updates()))
    before = 0.0                                 # the updates of the point to the left
    for g, name in named(order):
        kind = 0 if g.course.schedule.eta else 1 if g.course.schedule.middle.get("sqrt") else 6
        look = {"color": lab.COLOURS[kind], "marker": lab.MARKERS[kind], "linestyle": "none"}
        at = mean(g.course.updates())
        whole.plot([at], [mean(g.course.losses())], markersize=6, **look)
        left, before = at > 1.2 * before, at
        words = {"xytext": (-8 if left else 8, 0), "ha": "right" if left else "left",
                 "va": "center", "textcoords": "offset points", "fontsize": 9,
                 "color": look["color"]}
        whole.annotate(name, (at, mean(g.course.losses())), **words)
        half = g.half if math.isfinite(g.half) else 0.0
        near.errorbar([at], [1e3 * g.mean], yerr=[1e3 * half], capsize=3, markersize=7, **look)
        near.annotate(name, (at, 1e3 * g.mean), **words,      # which other bars may cross
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
    lab.axes(whole, None, "validation loss (nats a token)", title)
    lab.axes(near, "updates, for the same tokens", "loss above the frontier (millinats)",
             "the same schedules against a constant batch with as many updates; 90% intervals")
    lab.log_axis(near.xaxis)
    near.margins(x=0.08, y=0.15)
    whole.margins(x=0.08, y=0.12)
    return figure


def named(order):
    """[(gap, its schedule's name)], one for schedules that made the same updates to the same loss:
    "η = 0.25, 0.35"."""
    kept = []
    for g in order:
        same = next((i for i, (other, _) in enumerate(kept)
                     if other.course.updates() == g.course.updates() and other.mean == g.mean), None)
        label = g.course.schedule.label
        if same is None:
            kept.append((g, label))
        else:
            kept[same] = kept[same][0], f"{kept[same][1]}, {label.split(' = ')[-1]}"
    return kept


# ---------------------------------------------------------------- what was seen

def report(e, plan, frontier, control, gaps):
    e.say(f"Constant batches after {plan['tokens']:,} tokens, each at its own best rate: "
          + ", ".join(f"{c.schedule.label[9:]} tokens {mean(c.losses()):.4f} nats in "
                      f"{mean(c.updates()):,.0f} updates (rate {rate(c.best()[1]):g})"
                      for c in frontier) + ".")
    e.say(f"Loss above (+) or below (-) a constant batch with as many updates, {len(gaps)} "
          f"intervals that hold together with {100 * CONFIDENCE:.0f}%: " + "; ".join(
              f"{g.course.schedule.label} {g.text()} in {mean(g.course.updates()):,.0f} updates"
              for g in gaps) + ".")
    e.say(f"Control: a constant batch of {CONTROL:,} tokens must lie on the frontier: "
          f"{control.text()}.")
    own = [g.course for g in gaps if g.course.schedule.eta]
    e.say("The rate's decay over the last fifth triggers growth. Mean batch of the norm test "
          "before the decay, and at the end: " + "; ".join(
              f"{c.schedule.label} {batches_at(c, 0.8):,.0f}, {batches_at(c, 1.0):,.0f}"
              for c in own) + f" tokens; every schedule is capped at {CAP:,}.")
    e.say("How the rate follows the batch, chosen with its own grid: " + ", ".join(
        f"{g.course.schedule.label} {'kept' if g.course.best()[0] == 'none' else 'square root'} "
        f"(rate {rate(g.course.best()[1]):g} at {SMALL})" for g in gaps
        if g is not control) + ".")
    edges = [c.schedule.label for c in [*frontier, *(g.course for g in gaps)] if c.at_edge()]
    if edges:
        e.say("The best learning rate lies on the edge of its grid for " + ", ".join(edges) + ".")


def judge(control, gaps):
    """(verdict, why, the figure's title). gaps: of the growing schedules. If the control is off the
    frontier, so is what the schedules are held against."""
    norm = [g for g in gaps if g.course.schedule.eta and math.isfinite(g.mean)]
    sides = {-1: "below", 1: "above", 0: "not distinguishable from"}
    if not norm or not math.isfinite(norm[0].half):
        return "undecided", "without several seeds there is no interval", "One seed decides nothing"
    if control.side:
        why = f"the control, a constant batch, lies {control.text()} nats from the frontier"
        return "undecided", why, "Undecided: " + why
    best = min(norm, key=lambda g: g.mean + g.half)
    word = ("as predicted" if best.side < 0 else
            "refuted" if all(g.side > 0 for g in norm) else "undecided")
    number = f"{best.course.schedule.label} ends {best.text()} nats from the frontier"
    where = "; ".join(f"{name} the frontier: " + ", ".join(g.course.schedule.label for g in gaps
                                                           if g.side == side)
                      for side, name in sides.items() if any(g.side == side for g in gaps))
    return word, f"{number}; {where}", f"{word.capitalize()}: {number}"


def settings(e, plan):
    e.setting(f"2 layers, 32 channels, T={T}, {plan['tokens']:,} tokens of fresh tales for each "
              "run. AdamW, β1 0.9; β2 keeps the second moment's half-life in tokens.")
    e.setting("The learning rate is constant after a warm-up of a fortieth of the tokens and "
              "decays to a tenth over the last fifth.")
    e.setting("Rates are a factor of 2 apart; a grid grows until its best rate lies inside. A "
              "schedule's rate stays or grows with the square root of the batch, whichever ends "
              f"lower. Rates are chosen with {1 + len(plan['also'])} seeds and reported with "
              f"{len(plan['seeds'])} others.")
    e.setting(f"Norm test: gradients of {PART} sequences, averages over about 50 updates, none "
              "before the warm-up's end, 50 updates between raises, at most doubling.")


def main():
    e = lab.Experiment(
        7, "schedules", title="Batch schedules against the frontier of constant batches",
        question="Does a batch that grows during training end at a lower loss than a constant "
                 "batch, after as many tokens and as many updates?",
        prediction="B_crit grows as the loss falls. A batch that grows with it wastes fewer tokens "
                   "early and fewer updates late. So for some η the norm test ends below the "
                   "frontier of constant batches, by a few thousandths of a nat.")
    plan = {"tokens": e.pick(tiny=65536, quick=2 ** 19, full=2 ** 22), "first": 1,
            "also": e.pick([], [5], [5]),      # one seed chose a rate at which others fail
            "etas": e.pick(tiny=[0.35, 0.7], quick=[0.5], full=[0.25, 0.35, 0.5, 0.7]),
            "grid": e.pick(tiny=[-1, 0], quick=[-1, 0], full=[-1, 0, 1]),
            "seeds": e.pick(tiny=[2, 3], quick=[2, 3], full=[2, 3, 4]),
            "extend": e.pick(None, (-2, 5), (-2, 5)), "thin": 300,
            "eval_tokens": e.pick(tiny=8192, quick=131072, full=262144)}
    settings(e, plan)
    frontier = lab.tune(e, [Course(e, plan, constant(batch)) for batch in CONSTANT])
    others = lab.tune(e, [Course(e, plan, s) for s in [constant(CONTROL), *schedules(plan)]])
    gaps = [Gap(course, frontier) for course in others]
    for gap, half in zip(gaps, fit.joint_reaches([g.seeds for g in gaps], CONFIDENCE)):
        gap.half = half
    write(e, plan, [*frontier, *others], gaps)
    report(e, plan, frontier, gaps[0], gaps)
    word, why, title = judge(gaps[0], gaps[1:])
    e.figure("schedules", lambda plt: draw(plt, frontier, gaps, title),
             alt="Above: validation loss against updates, the frontier of constant batches and "
                 "where each schedule ends. Below: each schedule's distance from the frontier.",
             caption="Blue: the norm test, by its η. Orange: fixed schedules. Black cross: a "
                     "constant batch as control. With as many devices as its batch keeps "
                     "busy, a run's time is its number of updates.")
    e.verdict(word, why)
    e.close()


if __name__ == "__main__":
    main()
