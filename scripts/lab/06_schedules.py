#!/usr/bin/env python3
"""Experiment 6: batch schedules. A constant small batch, a constant large one, and batches that
grow linearly, in stages, and by the norm test: loss against updates, tokens and modelled time.

    scripts/lab/06_schedules.py --quick
"""
import math
from collections import namedtuple

import fit
import lab

LOWEST, HIGHEST = -2, 5                          # grids are not extended further: 2.5e-4 ... 0.032
LINK = {"bandwidth": 1.25e9, "latency": 20e-6}   # 10 Gbit/s, as between machines of a cluster

# A batch schedule. flags: of a run whose learning rate is lr at the small batch; middle: where its
# grid of learning rates begins; parts: measures the noise, which needs small micro-batches.
Schedule = namedtuple("Schedule", "name label flags middle parts eta", defaults=[3, False, None])


def rate(k):
    """Learning rates at the small batch are powers of two times 1e-3."""
    return 1e-3 * 2.0 ** k


def schedules(plan):
    """All but the last scale the learning rate with the square root of the batch."""
    small, large, grown, tokens = (plan[key] for key in ("small", "large", "grown", "tokens"))

    def constant(batch):
        return lambda lr: ["--batch-tokens", batch, "--lr", f"{lr * math.sqrt(batch / small):.9g}"]

    def ramp(lr):
        return ["--batch-tokens", grown, "--batch-schedule", f"linear:{small},{tokens}",
                "--batch-lr", "sqrt", "--lr", f"{lr * math.sqrt(grown / small):.9g}"]

    def stages(lr):
        steps = [f"{tokens * i // 4}={small * 2 ** i}" for i in (1, 2, 3)]
        return ["--batch-tokens", small, "--batch-schedule", "stages:" + ",".join(steps),
                "--batch-lr", "sqrt", "--lr", f"{lr:.9g}"]

    def adaptive(eta, rule):
        return lambda lr: ["--batch-schedule", f"adaptive:{eta},{small},{large}",
                           "--batch-lr", rule, "--lr", f"{lr:.9g}"]

    there = [Schedule("small", f"constant {small:,}", constant(small)),
             Schedule("large", f"constant {large:,}", constant(large), 0),
             Schedule("linear", f"linear {small:,} to {grown:,}", ramp),
             Schedule("stages", f"4 stages, {small:,} to {8 * small:,}", stages)]
    for eta in plan["etas"]:
        there.append(Schedule(f"adaptive{eta:g}", f"adaptive, η = {eta:g}", adaptive(eta, "sqrt"),
                              3 if eta >= 1.0 else 2, True, eta))
    eta = max(plan["etas"])
    there.append(Schedule("unscaled", f"adaptive, η = {eta:g}, rate kept", adaptive(eta, "none"), 3,
                          True))
    return there


class Course:
    """The runs of one schedule: all learning rates with one seed, then all seeds at the best."""

    def __init__(self, plan, schedule):
        self.plan, self.schedule = plan, schedule
        self.grid = {schedule.middle + i for i in plan["grid"]}
        self.runs = {}                                       # (k, seed) -> lab.Run

    def best(self):
        first = self.plan["seeds"][0]
        return min(sorted(self.grid), key=lambda k: self.runs[k, first].val)

    def at_edge(self):
        return self.best() in (min(self.grid), max(self.grid))

    def missing(self):
        """Runs of the next round: first the grid, which grows until its best rate lies inside, then
        the other seeds."""
        first = self.plan["seeds"][0]
        want = {(k, first) for k in self.grid}
        if want <= set(self.runs):
            best = self.best()
            around = {k for k in (best - 1, best + 1) if LOWEST <= k <= HIGHEST}
            if self.plan["extend"]:
                self.grid |= around
                want |= {(k, first) for k in around}
            if want <= set(self.runs):
                want |= {(best, seed) for seed in self.plan["seeds"]}
        return sorted(want - set(self.runs))

    def chosen(self):
        """The runs at the best learning rate, one a seed."""
        return [self.runs[self.best(), seed] for seed in self.plan["seeds"]]

    def losses(self):
        return [run.val for run in self.chosen()]

    def loss(self):
        return sum(self.losses()) / len(self.losses())

    def error(self):
        """Standard error of the loss over seeds; 0 with one seed."""
        n, mean = len(self.losses()), self.loss()
        if n < 2 or not math.isfinite(mean):
            return 0.0
        return math.sqrt(sum((x - mean) ** 2 for x in self.losses()) / (n - 1) / n)

    def updates(self):
        """Mean over seeds. A diverged run has no end event: its last update counts."""
        made = [run.end.get("step", run.steps[-1]["step"] if run.steps else 0)
                for run in self.chosen()]
        return sum(made) / len(made)


def job(e, plan, course, k, seed):
    schedule, tokens = course.schedule, plan["tokens"]
    micro = plan["part"] if schedule.parts else plan["small"] // plan["T"]
    flags = ["--data", e.corpus(tokens), *e.model(), "--micro-batch", micro,
             *schedule.flags(rate(k)), "--tokens", tokens, "--lr-schedule", "wsd",
             "--warmup-tokens", tokens // 40, "--seed", seed,
             "--eval-every", f"{tokens // plan['evals']}tok", "--eval-tokens", plan["eval_tokens"]]
    return lab.Job(f"{schedule.name}_lr{rate(k):g}_s{seed}", flags, thin=plan["thin"],
                   cost=1.2 if schedule.parts else 1.0)


def run_all(e, plan):
    courses = [Course(plan, schedule) for schedule in schedules(plan)]
    while wanted := [(c, k, seed) for c in courses for k, seed in c.missing()]:
        jobs = [job(e, plan, c, k, seed) for c, k, seed in wanted]
        runs = e.run(jobs)
        for (c, k, seed), made in zip(wanted, jobs):
            c.runs[k, seed] = runs[made.name]
    return courses


# ---------------------------------------------------------------- modelled time

class Clock:
    """Modelled seconds of a run on batch / small devices, each with `small` tokens of every update:
    one measured micro-batch, and the part of a ring all-reduce that overlap does not hide."""

    def __init__(self, courses, plan):
        small = next(c for c in courses if c.schedule.name == "small")
        self.share = plan["small"]
        self.compute = lab.median([run.median("seconds") for run in small.chosen()])
        self.link = fit.Link(4 * small.chosen()[0].start["parameters"], **LINK)

    def devices(self, batch):
        return math.ceil(batch / self.share)

    def update(self, batch):
        ring = fit.ring_seconds(self.link.size, self.devices(batch), self.link.bandwidth,
                                self.link.latency)
        return self.compute + fit.exposed_seconds(ring, self.compute)

    def between(self, steps):
        """Seconds until each logged update. A thinned log omits updates; each counts like the
        next logged one."""
        times, total, last = [], 0.0, 0
        for step in steps:
            total += (step["step"] - last) * self.update(step["batch_tokens"])
            times.append((step["step"], total))
            last = step["step"]
        return times


def at_evals(run, clock):
    """(tokens, updates, modelled seconds, loss) of a run's evaluations."""
    times = clock.between(run.steps)
    points = []
    if not times:                                            # it diverged at once
        return points
    for record in run.evals:
        later = next((t for t in times if t[0] >= record["step"]), times[-1])
        points.append((record["tokens"], record["step"], later[1], record["val_loss"]))
    return points


def seconds_of(run, clock):
    """Modelled seconds of a whole run, or until it diverged."""
    return clock.between(run.steps)[-1][1] if run.steps else 0.0


def device_seconds(run, clock):
    """Modelled seconds of all devices together."""
    total, last = 0.0, 0
    for step in run.steps:
        batch = step["batch_tokens"]
        total += (step["step"] - last) * clock.update(batch) * clock.devices(batch)
        last = step["step"]
    return total


def growth_at(run, factor):
    """Tokens seen when the batch first reached `factor` times its initial size; None: never."""
    first = run.steps[0]["batch_tokens"] if run.steps else 0
    return next((step["tokens"] - step["batch_tokens"] for step in run.steps
                 if step["batch_tokens"] >= factor * first), None)


# ---------------------------------------------------------------- tables and pictures

def write_tables(e, plan, courses, clock):
    e.csv("losses", ["schedule", "eta", "lr_at_small", "seed", "updates", "tokens", "val_loss",
                     "chosen"],
          [[c.schedule.name, c.schedule.eta, rate(k), seed, run.end.get("step"),
            run.end.get("tokens"), run.val if math.isfinite(run.val) else "diverged",
            int(k == c.best())] for c in courses for (k, seed), run in sorted(c.runs.items())])
    e.csv("curves", ["schedule", "seed", "tokens", "updates", "modelled_seconds", "val_loss"],
          [[c.schedule.name, seed, *point] for c in courses
           for seed, run in zip(plan["seeds"], c.chosen()) for point in at_evals(run, clock)])
    e.csv("batches", ["schedule", "seed", "updates", "tokens", "batch_tokens"],
          [[c.schedule.name, seed, step["step"], step["tokens"], step["batch_tokens"]]
           for c in courses for seed, run in zip(plan["seeds"], c.chosen()) for step in run.steps])
    e.csv("summary", ["schedule", "lr_at_small", "at_edge", "val_loss", "error", "seeds", "updates",
                      "modelled_seconds", "modelled_device_seconds", "tokens_at_2x",
                      "tokens_at_4x"],
          [[c.schedule.name, rate(c.best()), int(c.at_edge()), c.loss(), c.error(),
            len(plan["seeds"]), c.updates(), seconds_of(c.chosen()[0], clock),
            device_seconds(c.chosen()[0], clock), grown(c, 2), grown(c, 4)] for c in courses])


def grown(course, factor):
    """Mean of growth_at over seeds; None if a seed never got there."""
    at = [growth_at(run, factor) for run in course.chosen()]
    return None if None in at else sum(at) / len(at)


def style(i):
    if i == 7:                                               # the eighth: grey, open
        return {"color": "#777777", "marker": "o", "linestyle": "--", "fillstyle": "none"}
    return {"color": lab.COLOURS[i], "marker": lab.MARKERS[i], "linestyle": lab.LINES[i]}


def draw_losses(panels, courses, clock):
    axes = ["tokens, millions", "updates", "modelled seconds"]
    titles = ["after the same tokens", "after the same updates", "after the same time (modelled)"]
    for column, (ax, label, title) in enumerate(zip(panels, axes, titles)):
        for i, course in enumerate(courses):
            points = [p for p in at_evals(course.chosen()[0], clock) if lab.number(p[3])]
            ax.plot([p[column] for p in points], [p[3] for p in points], markersize=4.5,
                    linewidth=1.4, label=course.schedule.label, **style(i))
        if column:
            label_log(ax)
        else:
            ax.xaxis.set_major_formatter(lambda n, _: f"{n / 1e6:g}")
        lab.axes(ax, label, "validation loss, nats a token", title)
        low = min((c.loss() for c in courses if math.isfinite(c.loss())), default=0.0)
        ax.set_ylim(low - 0.06, min(low + 1.6, ax.get_ylim()[1]))


def draw_batches(ax, courses, plan):
    for i, course in enumerate(courses):
        steps = course.chosen()[0].steps
        look = style(i)
        if not steps:
            continue
        ax.step([s["tokens"] for s in steps], [s["batch_tokens"] for s in steps], where="pre",
                color=look["color"], linestyle=look["linestyle"], linewidth=1.8)
        last = steps[-1]
        ax.plot([last["tokens"]], [last["batch_tokens"]], color=look["color"], clip_on=False,
                marker=look["marker"], fillstyle=look.get("fillstyle", "full"))
    ax.set_yscale("log", base=2)
    ax.xaxis.set_major_formatter(lambda n, _: f"{n / 1e6:g}")
    lab.axes(ax, "tokens, millions", "batch, tokens", "the batch, one seed")
    label_batches(ax, ax.yaxis)
    T = plan["T"]
    second = ax.secondary_yaxis("right", functions=(lambda n: n / T, lambda s: s * T))
    second.set_ylabel("batch, sequences")
    second.set_yscale("log", base=2)
    label_batches(second, second.yaxis)


def label_batches(ax, axis):
    axis.set_major_formatter("{x:,.0f}")
    ax.minorticks_off()


def label_log(ax):
    """1, 2, 5, 10, ... in plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.xaxis.set_major_formatter("{x:,g}")
    ax.xaxis.set_minor_formatter(NullFormatter())


def draw_curves(plt, courses, plan, clock):
    figure, panels = plt.subplots(2, 2, figsize=(11, 8.2), constrained_layout=True)
    draw_losses([panels[0][0], panels[0][1], panels[1][0]], courses, clock)
    draw_batches(panels[1][1], courses, plan)
    panels[0][0].legend(loc="upper right", fontsize=8)
    return figure


def draw_bought(plt, courses):
    """Where each schedule ends. Left is faster (fewer updates), down is better (lower loss); the
    band is 2% above the constant small batch."""
    figure, ax = plt.subplots(figsize=(7.6, 4.8), constrained_layout=True)
    small = courses[0]
    if math.isfinite(small.loss()):
        ax.axhspan(small.loss(), 1.02 * small.loss(), color="#eeeeee", zorder=0)
        ax.text(0.99, 1.02 * small.loss(), "2% above the constant small batch", ha="right",
                va="bottom", fontsize=8.5, transform=ax.get_yaxis_transform())
    for i, course in enumerate(courses):
        if not math.isfinite(course.loss()):                 # report() says that it diverged
            continue
        look = style(i)
        edge = " (edge of its grid)" if course.at_edge() else ""
        ax.errorbar([course.updates()], [course.loss()], yerr=[course.error()], capsize=3,
                    markersize=8, label=f"{course.schedule.label}: {rate(course.best()):g}{edge}",
                    **dict(look, linestyle="none"))
    label_log(ax)
    lab.axes(ax, "updates", "validation loss, nats a token")
    ax.legend(title="learning rate at the small batch", fontsize=8, title_fontsize=8.5)
    return figure


# ---------------------------------------------------------------- what was seen

def told(course, small):
    if not math.isfinite(course.loss()):
        return f"{course.schedule.label}: diverged"
    return (f"{course.schedule.label}: {course.loss():.3f} ± {course.error():.3f} "
            f"({above(course, small)}) in {course.updates():,.0f} updates")


def rises_earlier(adaptive):
    """Whether, for each pair of etas, the smaller one reaches twice and four times the small batch
    after fewer tokens; an eta that never gets there is last."""
    own = sorted(adaptive, key=lambda c: c.schedule.eta)
    for factor in (2, 4):
        at = [math.inf if grown(c, factor) is None else grown(c, factor) for c in own]
        if any(a > b for a, b in zip(at, at[1:])) or not at[0] < at[-1]:
            return False
    return True


def grown_text(course):
    twice, four = grown(course, 2), grown(course, 4)
    eta = f"at η = {course.schedule.eta:g}"
    if twice is None:
        return f"never {eta}"
    return (f"{twice:,.0f} tokens, and never, {eta}" if four is None
            else f"{twice:,.0f} and {four:,.0f} tokens {eta}")


def at_most_text(plan, course, large, fixed):
    """How early the smallest eta reaches the largest batch, and at which rate: two possible causes
    of a higher loss that these runs do not separate."""
    at = [growth_at(run, plan["large"] / plan["small"]) for run in course.chosen()]
    shares = [n / run.steps[-1]["tokens"] for n, run in zip(at, course.chosen()) if n is not None]
    if not shares:
        return f"η = {course.schedule.eta:g} never reached {plan['large']:,} tokens."
    low, high = f"{100 * min(shares):.0f}", f"{100 * max(shares):.0f}%"
    never = len(at) - len(shares)
    text = (f"η = {course.schedule.eta:g} reached the largest batch, {plan['large']:,} tokens, "
            f"after {high if low + '%' == high else low + ' to ' + high} of the run"
            + (f" ({never} of {len(at)} seeds never)" if never else ""))
    ratio = 2.0 ** (course.best() - large.best())
    text += f", at {ratio:g} times the rate that is best for a constant {plan['large']:,}"
    if ratio > 1.0 and course.loss() > 1.02 * fixed[0].loss():
        text += "; these runs do not tell which of the two raises its loss"
    small, *slow = fixed
    return (text + f". The linear ramp and the stages grow later, to {plan['grown']:,} only, and "
            "end at " + " and ".join(above(c, small) for c in slow)
            + " against the constant small batch's loss.")


def report(e, plan, courses, clock):
    small, large = courses[0], courses[1]
    own = [c for c in courses if c.schedule.eta is not None]
    e.say(f"After {plan['tokens']:,} tokens, each at its best learning rate, ± standard error: "
          + "; ".join(told(c, small) for c in courses) + ".")
    e.say("The batch reached two and four times its initial size after "
          + "; ".join(grown_text(c) for c in own) + ".")
    e.say(at_most_text(plan, min(own, key=lambda c: c.schedule.eta), large,
                       [small, *courses[2:4]]))
    seconds = {c.schedule.name: seconds_of(c.chosen()[0], clock) for c in courses}
    spent = {c.schedule.name: device_seconds(c.chosen()[0], clock) for c in courses}
    e.say(f"Modelled, with {plan['small']:,} tokens a device and a ring all-reduce over 10 Gbit/s: "
          + "; ".join(f"{c.schedule.label}: {seconds[c.schedule.name]:.1f} s, "
                      f"{spent[c.schedule.name]:.1f} device-seconds" for c in courses) + ".")
    kept = courses[-1]
    scaled = next(c for c in own if c.schedule.eta == max(plan["etas"]))
    e.say(f"At η = {scaled.schedule.eta:g}, a learning rate that stays fixed while the batch grows "
          f"ends at {kept.loss():.3f} ± {kept.error():.3f}; one that grows with the square root "
          f"of the batch, at {scaled.loss():.3f} ± {scaled.error():.3f}.")
    edges = [c.schedule.label for c in courses if c.at_edge()]
    if edges:
        e.say("The best learning rate lies on the edge of its grid for " + ", ".join(edges) + ".")
    judge(e, plan, small, large, own)


def above(course, small):
    return f"{100.0 * (course.loss() / small.loss() - 1.0):+.1f}%"


def judge(e, plan, small, large, own):
    good = [c for c in own if c.loss() <= 1.02 * small.loss() and c.updates() < small.updates()]
    earlier = rises_earlier(own)
    far = large.loss() > 1.02 * small.loss()
    parts = ["a smaller η "
             + ("enlarges the batch earlier" if earlier else "is not always earlier")]
    if good:
        found = [f"η = {c.schedule.eta:g} ({small.updates() / c.updates():.1f} times fewer, "
                 f"{above(c, small)})" for c in good]
        parts.append("within 2% of the constant small batch's loss, with fewer updates: "
                     + ", ".join(found))
    else:
        best = min(own, key=lambda c: c.loss())
        parts.append("no η is within 2% of the constant small batch's loss with fewer updates: the "
                     f"closest, η = {best.schedule.eta:g}, is {above(best, small)}")
    parts.append(f"the constant large batch is {above(large, small)}")
    right = [earlier, bool(good), far]
    word = "as predicted" if all(right) else "partly" if any(right) else "failed"
    e.verdict(word, "; ".join(parts))


def settings(e, plan):
    e.setting(f"2 layers, 32 channels, T={plan['T']}, {plan['tokens']:,} tokens of fresh tales for "
              f"each run; AdamW, β 0.9 and 0.95.")
    e.setting("The learning rate is constant after a warm-up of a fortieth of the tokens, so that "
              "curves can be compared, and decays over the last fifth, so that a larger batch "
              "gets no credit for noise that a decaying rate removes as well.")
    e.setting("Learning rates are given at the small batch, a factor of 2 apart, and grow with the "
              "square root of the batch; the grid grows until the best rate lies inside. The rate "
              f"is chosen with one seed and run with {len(plan['seeds'])}; ± is the standard error "
              "over seeds.")
    e.setting(f"The norm test sees gradients of {plan['part']} sequences, "
              f"{plan['small'] // plan['T'] // plan['part']} of them at the smallest batch, and "
              "decides from averages over about 50 updates, 50 updates apart at least.")


def main():
    e = lab.Experiment(
        6, "schedules", title="Batch schedules",
        question="Can a run begin with a small batch and end with a large one, and keep the loss "
                 "of the small and most of the speed of the large?",
        prediction="The norm test enlarges the batch when the gradient's noise exceeds η times the "
                   "gradient; a smaller η enlarges it earlier. For some η the run ends within 2% "
                   "of the constant small batch's loss at the same tokens, with fewer updates; a "
                   "constant large batch does not come that close.")
    plan = {"T": 32, "small": 512, "large": 8192, "grown": 4096, "part": 4,
            "tokens": e.pick(tiny=65536, quick=1310720, full=2 ** 23),
            "etas": e.pick(tiny=[0.3, 1.0], quick=[0.5, 0.7, 1.0], full=[0.35, 0.5, 0.7, 1.0]),
            "grid": e.pick(tiny=[-1, 0], quick=[-1, 0, 1], full=[-1, 0, 1]),
            "seeds": e.pick(tiny=[1], quick=[1, 2, 3], full=[1, 2, 3]),
            "extend": e.size != "tiny",
            "evals": e.pick(tiny=4, quick=16, full=32),
            "thin": e.pick(tiny=200, quick=400, full=800),
            "eval_tokens": e.pick(tiny=8192, quick=65536, full=262144)}
    settings(e, plan)
    courses = run_all(e, plan)
    clock = Clock(courses, plan)
    write_tables(e, plan, courses, clock)
    e.figure("bought", lambda plt: draw_bought(plt, courses),
             alt="Validation loss at the end of each run against the number of its updates, a "
                 "point for each batch schedule.",
             caption=f"After {plan['tokens']:,} tokens. Bars: standard error over seeds.")
    e.figure("curves", lambda plt: draw_curves(plt, courses, plan, clock),
             alt="Four panels: validation loss against tokens, against updates and against "
                 "modelled seconds, and the batch against tokens, a curve for each batch schedule.",
             caption="One seed each, at its best learning rate. Time is modelled: each device "
                     f"takes {plan['small']:,} tokens of an update, measured on one core here, and "
                     "gradients go through a ring all-reduce at 10 Gbit/s.")
    report(e, plan, courses, clock)
    e.close()


if __name__ == "__main__":
    main()
