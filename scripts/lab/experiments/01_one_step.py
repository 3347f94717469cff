#!/usr/bin/env python3
"""Experiment 1: one step. From a checkpoint, how far does one step lower the loss, at each batch
and learning rate? Predicted from gradients and curvature alone, then measured.

    scripts/lab/experiments/01_one_step.py --quick
"""
import csv
import math
import os
import random
import subprocess

import _path
import fit
import lab

PROGRAM = os.path.join("build", "one_step")
WITHIN, NEAR = 1.5, 0.2                          # what passes: a fit's factor, a point's distance
FLOOR = 0.05                                     # a point's least relative error, for fits
DIRECTIONS = {"adam": "Adam's direction", "sgd": "SGD's direction"}


# ---------------------------------------------------------------- runs

def train_job(e, plan, name, T, more):
    """The checkpoint that steps start from."""
    return lab.Job(name, [
        "--data", e.corpus(plan["corpus"]), "--layers", 2, "--heads", 2, "--channels", 32,
        "--seq-len", T, "--batch-tokens", 16 * T, "--micro-batch", 4, "--noise-scale",
        "--lr", plan["lr"], "--warmup-tokens", 640 * T, "--tokens", plan["tokens"], *more,
        "--seed", plan["seed"], "--eval-every", 0, "--eval-tokens", plan["eval"],
        "--save-every", 0, "--keep", 1], keep=True, cost=plan["tokens"] / 1e6)


def step_job(e, plan, trained, T, direction, cut=0):
    """One run of one_step; `cut` in tokens. The environment holds the checkpoint's own flags: with
    other flags this is another run."""
    sizes = dict(plan["steps"], **(plan["cut_steps"] if cut else {}))
    own = [x for name, value in sizes.items() for x in (f"--{name}", value)]
    return lab.Job(f"{trained.name}_{direction}" + (f"_cut{cut}" if cut else ""), [
        "--direction", direction, "--cut", cut, *own, "--", "--init", e.base(trained),
        "--data", e.corpus(plan["corpus"]), "--seed", plan["seed"], "--seq-len", T,
        "--micro-batch", max(1, 512 // T), "--eval-tokens", plan["eval"]],
        program=PROGRAM, before=[trained.name], cost=4 if cut else 20,
        env={"CHECKPOINT": " ".join(trained.flags)})


def build(e):
    if e.args.redraw:
        return
    try:
        done = subprocess.run(["make", "-s", PROGRAM], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False)
    except OSError as error:
        lab.fail(f"make: {error.strerror}; {PROGRAM} must be built")
    if done.returncode:
        lab.fail(f"make {PROGRAM}: {lab.last_line(done.stdout.decode('utf-8', 'replace'))}")


class Steps:
    """What one_step printed: numbers by name, lists by name, and the falls of the loss as
    {batch: {rate: [one fall a draw]}}."""

    def __init__(self, path):
        self.falls, lists = {}, {}
        with open(path, encoding="utf-8", errors="replace") as f:
            for row in csv.reader(f):
                try:
                    what, batch, rate, _, value = row[0], *map(float, row[1:])
                except ValueError:
                    continue                                 # the header, or a message
                if what == "fall":
                    self.falls.setdefault(batch, {}).setdefault(rate, []).append(value)
                else:
                    lists.setdefault(what, []).append(value)
        self.lists = lists
        self.slope, self.curvature = lists["slope"][0], lists["curvature"][0]
        self.loss, self.e_max = lists["loss"][0], lists["e_max"][0]
        self.dl_max, self.b_noise = lists["dl_max"][0], lists["b_noise"][0]

    def predicted(self, batch):
        return self.dl_max / (1.0 + self.b_noise / batch)

    def predicted_rate(self, batch):
        return self.e_max / (1.0 + self.b_noise / batch)

    def noise_scales(self):
        """B_simple = tr(S)/|G|^2 in tokens, plain and in P's metric: tr(PS)/(G'PG)."""
        return (mean(self.lists["noise_norm2"]) / self.lists["gradient_norm2"][0],
                mean(self.lists["noise_metric2"]) / self.lists["gradient_metric2"][0])

    def difference_error(self):
        """How much finite differences of half, the same and twice the length disagree: along the
        gradient, and along noise."""
        twice = self.lists["noise_double"]
        return (self.lists["length"][0],
                abs(sum(twice) / sum(self.lists["noise_curvature"][:len(twice)]) - 1.0))


# ---------------------------------------------------------------- estimates

def mean(values):
    return sum(values) / len(values)


def parabola(rates, falls):
    """(best rate, coefficients) of the parabola through the best rate and its neighbours; at an end
    of the grid the best rate itself, and no coefficients."""
    best = max(range(len(rates)), key=lambda i: falls[i])
    if best in (0, len(rates) - 1):
        return rates[best], None
    (x, y, z), (a, b, c) = rates[best - 1:best + 2], falls[best - 1:best + 2]
    first, second = (b - a) / (y - x), (c - b) / (z - y)
    bend = (second - first) / (z - x)
    return (x + y) / 2.0 - first / (2.0 * bend), best


def at_rate(rates, falls, rate, best):
    """The fall at `rate`, on the parabola through `best` and its neighbours."""
    if best is None:
        return falls[rates.index(rate)]
    total = 0.0
    for i in range(best - 1, best + 2):
        weight = 1.0
        for j in range(best - 1, best + 2):
            weight *= (rate - rates[j]) / (rates[i] - rates[j]) if j != i else 1.0
        total += weight * falls[i]
    return total


def tuned(by_rate, halves):
    """(fall, rate): each half of the draws chooses the rate at which the other half is reported. A
    half that chose its own rate would report its luck, too."""
    rates = sorted(by_rate)
    curves = [[mean([by_rate[rate][i] for i in half]) for rate in rates] for half in halves]
    found = []
    for own, other in ((0, 1), (1, 0)):
        rate, best = parabola(rates, curves[own])
        found.append((at_rate(rates, curves[other], rate, best), rate))
    return mean([f for f, _ in found]), math.sqrt(found[0][1] * found[1][1])


def split(by_rate):
    draws = len(next(iter(by_rate.values())))
    return list(range(0, draws, 2)), list(range(1, draws, 2))


def curve_fit(points, errors):
    """(value at a large batch, B_noise) of value/(1 + B_noise/B) through {batch: value}, by least
    squares in logarithms; None with fewer than 4 positive values. A point counts less the larger
    its relative error. 1/value has the form of fit.py's knee."""
    good = [b for b in points if points[b] > 0.0]
    if len(good) < 4:
        return None
    weights = [1.0 / (FLOOR ** 2 + errors[b] ** 2) for b in good]
    least, b_noise, _ = fit.least_squares(good, [1.0 / points[b] for b in good], weights)
    return 1.0 / least, b_noise


class Measured:
    """The falls of one run, tuned and fitted, with 90% intervals from a bootstrap over the draws.
    fall, rate: {batch: value}; fits: {"fall" or "rate": (value at a large batch, B_noise)}."""

    def __init__(self, steps, draws=200):
        self.steps, rng = steps, random.Random(1)
        self.fall, self.rate = self.tune({b: split(f) for b, f in steps.falls.items()})
        self.drawn = [self.tune({b: [[rng.choice(half) for _ in half] for half in split(f)]
                                 for b, f in steps.falls.items()}) for _ in range(draws)]
        relative = {b: self.error(b) / max(abs(self.fall[b]), 1e-12) for b in self.fall}
        self.fits = self.fit(self.fall, self.rate, relative)
        self.drawn_fits = [self.fit(fall, rate, relative) for fall, rate in self.drawn]
        # The prediction has an error of its own: that of so many single sequences.
        noise = steps.lists["noise_curvature"]
        self.noises = [mean([rng.choice(noise) for _ in noise]) / steps.curvature
                       for _ in range(draws)]

    def tune(self, halves):
        found = {b: tuned(self.steps.falls[b], halves[b]) for b in sorted(self.steps.falls)}
        return [{b: f[i] for b, f in found.items()} for i in (0, 1)]

    @staticmethod
    def fit(fall, rate, errors):
        return {"fall": curve_fit(fall, errors), "rate": curve_fit(rate, errors)}

    def fall_range(self, batch):
        return middle_90([drawn[0][batch] for drawn in self.drawn])

    def error(self, batch):
        low, high = self.fall_range(batch)
        return (high - low) / 2.0 / 1.645

    def fit_range(self, which, i):
        """Of a fitted number: i = 0 the value at a large batch, 1 B_noise."""
        return middle_90([fits[which][i] for fits in self.drawn_fits if fits[which]])

    def ratios(self):
        """{name: (fitted / predicted, low, high)}"""
        s, (top, b_noise) = self.steps, self.fits["fall"]
        low, high = self.fit_range("fall", 0)
        noises = [fits["fall"][1] / n for fits, n in zip(self.drawn_fits, self.noises)
                  if fits["fall"]]
        return {"ΔL_max": (top / s.dl_max, low / s.dl_max, high / s.dl_max),
                "B_noise": (b_noise / s.b_noise, *middle_90(noises))}

    def distances(self):
        """[(fall / fitted curve - 1, its standard error)] of each batch."""
        top, b_noise = self.fits["fall"]
        curve = {b: top / (1.0 + b_noise / b) for b in self.fall}
        return [(self.fall[b] / curve[b] - 1.0, self.error(b) / curve[b]) for b in self.fall]

    def judge(self):
        """"as predicted", "refuted" or "undecided": an interval wider than what passes decides
        nothing, nor does a point that may lie on either side."""
        if self.fits["fall"] is None:
            return "undecided"
        ratios, distances = self.ratios().values(), self.distances()
        if any(high < 1.0 / WITHIN or low > WITHIN for _, low, high in ratios):
            return "refuted"
        if any(low <= 0.0 or high / low > WITHIN ** 2 for _, low, high in ratios):
            return "undecided"
        if any(abs(off) - 1.645 * error > NEAR for off, error in distances):
            return "refuted"
        right = (all(1.0 / WITHIN <= ratio <= WITHIN for ratio, _, _ in ratios)
                 and all(abs(off) <= NEAR for off, _ in distances))
        return "as predicted" if right else "undecided"


def middle_90(values):
    ordered = sorted(values)
    return ordered[int(0.05 * len(ordered))], ordered[max(0, int(0.95 * len(ordered)) - 1)]


def live_noise(run):
    """B_simple as the trainer measured it over the last eighth of its run; None where the gradient
    is lost in the noise."""
    steps = [s for s in run.steps if lab.number(s.get("noise_g2")) and lab.number(s.get("noise_s"))]
    late = steps[-max(1, len(steps) // 8):]
    g2, s = sum(x["noise_g2"] for x in late), sum(x["noise_s"] for x in late)
    return s / g2 if g2 > 0.0 else None


def overall(words):
    """One verdict for all runs."""
    if set(words) == {"as predicted"}:
        return "as predicted"
    return "refuted" if "refuted" in words else "undecided"


# ---------------------------------------------------------------- tables and the picture

def write_tables(e, main, cuts, scales):
    e.csv("points", ["checkpoint", "direction", "batch_tokens", "draws", "fall", "fall_low",
                     "fall_high", "fall_predicted", "rate", "rate_predicted"],
          [[name, direction, int(b), len(next(iter(m.steps.falls[b].values()))), m.fall[b],
            *m.fall_range(b), m.steps.predicted(b), m.rate[b], m.steps.predicted_rate(b)]
           for (name, direction), m in main.items() for b in m.fall])
    e.csv("fits", ["checkpoint", "direction", "loss", "quantity", "predicted", "fitted", "low",
                   "high", "fitted_over_predicted"],
          [[name, direction, m.steps.loss, what, predicted, m.fits[which][i],
            *m.fit_range(which, i), m.fits[which][i] / predicted]
           for (name, direction), m in main.items()
           for what, which, i, predicted in [
               ("dl_max", "fall", 0, m.steps.dl_max), ("b_noise", "fall", 1, m.steps.b_noise),
               ("e_max", "rate", 0, m.steps.e_max),
               ("b_noise_of_rates", "rate", 1, m.steps.b_noise)]
           if m.fits[which]])
    e.csv("noise_scales", ["checkpoint", "b_simple_live", "b_simple", "b_simple_adam",
                           "b_noise_adam", "b_noise_sgd"], scales)
    e.csv("context", ["piece_tokens", "batch_tokens", "fall", "fall_low", "fall_high",
                      "fall_predicted"],
          [[cut, int(b), m.fall[b], *m.fall_range(b), m.steps.predicted(b)]
           for cut, m in cuts.items() for b in m.fall])


def smooth(batches):
    low, high = math.log(min(batches)), math.log(max(batches))
    return [math.exp(low + (high - low) * i / 60) for i in range(61)]


def draw_curves(ax, shown, key, title, label):
    """Points with their 90% intervals; the prediction as a line, the fit dashed. shown: [(words,
    Measured)]; key: "fall" or "rate"."""
    for i, (words, m) in enumerate(shown):
        look, values = {"color": lab.COLOURS[i % 7]}, getattr(m, key)
        good = [b for b in values if values[b] > 0.0]
        if not good:
            continue
        line = smooth(good)
        formula = m.steps.predicted if key == "fall" else m.steps.predicted_rate
        ax.plot(line, [formula(b) for b in line], linewidth=1.8, **look)
        if m.fits[key] and len(shown) < 3:
            top, b_noise = m.fits[key]
            ax.plot(line, [top / (1.0 + b_noise / b) for b in line], linestyle="--", linewidth=1.2,
                    **look)
        ranges = [m.fall_range(b) if key == "fall" else (values[b], values[b]) for b in good]
        ax.errorbar(good, [values[b] for b in good], yerr=[
            [values[b] - max(low, values[b] / 5.0) for b, (low, _) in zip(good, ranges)],
            [max(0.0, high - values[b]) for b, (_, high) in zip(good, ranges)]],
            marker=lab.MARKERS[i % 7], linestyle="none", markersize=5, capsize=2, **look)
        if len(shown) > 2:
            ax.plot([], [], marker=lab.MARKERS[i % 7], label=words, **look)
            continue
        ax.annotate(words, (line[-1], formula(line[-1])), xytext=(6, 0), va="center", fontsize=8.5,
                    textcoords="offset points", **look)
        ax.axvline(m.steps.b_noise, linestyle=":", linewidth=1.0, **look)
    lab.log_axis(ax.xaxis, base=2)
    lab.log_axis(ax.yaxis)
    ax.tick_params(axis="x", labelsize=8)
    left, right = ax.get_xlim()
    if len(shown) > 2:
        ax.legend(loc="lower right", fontsize=8.5)
    else:
        ax.set_xlim(left, right * (right / left) ** 0.2)     # room for the words
    lab.axes(ax, "batch of the step, tokens", label, title)


def draw(plt, main, cuts, word):
    figure, panels = plt.subplots(2, 2, figsize=(12, 9), constrained_layout=True)
    figure.suptitle(f"One step lowers the loss by ΔL_max/(1 + B_noise/B), with constants from "
                    f"gradients and curvature alone: {word}", fontsize=11.5, x=0.01, ha="left")
    names = {"constant": "constant\nrate", "annealed": "annealed\nto zero"}
    fall = "nats that the loss falls, best rate"
    for ax, (direction, words) in zip(panels[0], DIRECTIONS.items()):
        shown = [(names[name], m) for (name, of), m in main.items() if of == direction]
        draw_curves(ax, shown, "fall", f"{words}: " + ", ".join(
            f"{name} rate {m.judge()}" if name == "constant" else f"{name} {m.judge()}"
            for (name, of), m in main.items() if of == direction), fall)
        ax.plot([], [], color="#555555", linewidth=1.8, label="predicted, without a fit")
        ax.plot([], [], color="#555555", linewidth=1.2, linestyle="--", label="fitted to points")
        ax.errorbar([], [], yerr=[], color="#555555", marker="o", linestyle="none", capsize=2,
                    label="measured (bars: 90% of resampled draws)")
        ax.plot([], [], color="#555555", linewidth=1.0, linestyle=":", label="B_noise, predicted")
        ax.legend(loc="lower right", fontsize=8)
    draw_curves(panels[1][0], [(names[name], m) for (name, of), m in main.items() if of == "adam"],
                "rate", "The best rate of that step, Adam's direction",
                "learning rate that lowers the loss most")
    shown = [(f"pieces of {cut} tokens" if cut < max(cuts) else f"whole sequences of {cut}", m)
             for cut, m in cuts.items()]
    draw_curves(panels[1][1], shown, "fall", f"Sequences cut to pieces of {min(cuts)}: "
                f"{context_text(cuts)}", f"nats that the loss at T={max(cuts)} falls")
    return figure


# ---------------------------------------------------------------- words

def ratio_text(m):
    return ", ".join(f"{name} {r:.2f} times ({low:.2f} to {high:.2f})"
                     for name, (r, low, high) in m.ratios().items())


def report_one(e, name, direction, m):
    s = m.steps
    along, across = s.difference_error()
    e.say(f"{name.capitalize()} checkpoint (loss {s.loss:.3f}), {DIRECTIONS[direction]}: "
          f"predicted B_noise {s.b_noise:,.0f} tokens, ΔL_max {s.dl_max:.3g} nats, best rate "
          f"{s.e_max:.3g} at a large batch; finite differences of half and twice the length "
          f"differ by {along:.1e} along the gradient, of twice the length by {across:.1e} along "
          "noise.")
    if m.fits["fall"] is None:
        e.say(f"{name.capitalize()}, {direction}: fewer than 4 batches lowered the loss: no fit.")
        return
    off = max(m.distances(), key=lambda d: abs(d[0]))
    rates = ("no fit of the rates" if m.fits["rate"] is None else
             f"best rate {m.fits['rate'][0] / s.e_max:.2f} times")
    e.say(f"Fitted over predicted: {ratio_text(m)}, {rates}. The point farthest from the fitted "
          f"curve is {off[0]:+.0%} off (standard error {off[1]:.0%}). {m.judge().capitalize()}.")


def context_batch(cuts):
    """A batch that was measured, or nearly so, at every cut: the largest."""
    return min(max(m.fall) for m in cuts.values())


def context_ratio(cuts):
    """(ratio, low, high): the fitted fall with the shortest pieces over that with whole sequences,
    at one batch in tokens."""
    short, whole, batch = cuts[min(cuts)], cuts[max(cuts)], context_batch(cuts)

    def ratio(pair):
        falls = [top / (1.0 + b_noise / batch) for top, b_noise in pair]
        return falls[0] / falls[1]
    if short.fits["fall"] is None or whole.fits["fall"] is None:
        return math.nan, math.nan, math.nan
    pairs = [(a["fall"], b["fall"]) for a, b in zip(short.drawn_fits, whole.drawn_fits)]
    return (ratio((short.fits["fall"], whole.fits["fall"])),
            *middle_90([ratio(pair) for pair in pairs if all(pair)]))


def context_text(cuts):
    ratio, low, high = context_ratio(cuts)
    if math.isnan(ratio):
        return "too few batches lowered the loss"
    return f"{ratio:.2f} times the fall ({low:.2f} to {high:.2f})"


def report_context(e, cuts):
    batch = context_batch(cuts)
    e.say(f"Context: trained at T={max(cuts)} to loss {cuts[max(cuts)].steps.loss:.3f}, a step on "
          f"{batch:,.0f} tokens is predicted to lower the loss at that length by " + ", ".join(
              f"{m.steps.predicted(batch):.2g} nats (pieces of {cut}, B_noise "
              f"{m.steps.b_noise:,.0f})" for cut, m in cuts.items()) + ".")
    e.say(f"Measured, for pieces of {min(cuts)} instead of whole sequences of {max(cuts)}, from as "
          f"many tokens: {context_text(cuts)}.")


def settings(e, plan):
    sizes = plan["steps"]
    e.setting(f"2 layers, 32 channels, T={plan['T']}, {plan['tokens']:,} tokens in batches of "
              f"{16 * plan['T']} at rate {plan['lr']}, constant or with its last fifth annealed "
              f"to zero. G from {sizes['gradient-tokens']:,} tokens, S from {sizes['sequences']} "
              f"single sequences, H over {sizes['hessian-tokens']:,} tokens; {sizes['draws']} "
              f"draws a batch below B_noise, {sizes['draws-above']} above; {plan['eval']:,} held-"
              "out tokens. Each half of the draws chooses the rate at which the other is reported.")


def main():
    e = lab.Experiment(
        1, "one_step", title="One step",
        question="Why does a step of a larger batch lower the loss further, and up to which size?",
        prediction="The fall is ΔL_max/(1 + B_noise/B), at the rate ε_max/(1 + B_noise/B). The "
        "constants follow from gradients and curvature at the checkpoint, without a fit. Fits to "
        "measured steps lie within a factor of 1.5 of them, points within 20% of the curve.")
    plan = {"T": 32, "lr": 4e-3, "seed": 1, "corpus": e.pick(10 ** 6, 16 * 10 ** 6, 16 * 10 ** 6),
            "tokens": e.pick(32768, 2 ** 20, 2 ** 20), "eval": e.pick(4096, 16384, 131072),
            "steps": {"gradient-tokens": e.pick(8192, 262144, 262144),
                      "sequences": e.pick(8, 64, 64), "hessian-tokens": e.pick(1024, 8192, 65536),
                      "span": e.pick(4, 16, 16), "draws": e.pick(4, 12, 64),
                      "draws-above": e.pick(4, 6, 16)},
            "cut_T": e.pick(64, 256, 256),
            "cuts": e.pick([64, 8], [256, 8], [256, 128, 64, 32, 16, 8]),
            "cut_steps": {"span": 4, "draws": e.pick(4, 8, 16), "draws-above": e.pick(4, 8, 8)}}
    settings(e, plan)
    build(e)
    trained = {name: train_job(e, plan, name, plan["T"], more) for name, more in [
        ("constant", ["--lr-schedule", "constant"]),
        ("annealed", ["--lr-schedule", "wsd", "--final-lr-frac", 0])]}
    long = train_job(e, plan, "long", plan["cut_T"], ["--lr-schedule", "constant"])
    jobs = {(name, d): step_job(e, plan, job, plan["T"], d)
            for d in DIRECTIONS for name, job in trained.items()}
    pieces = {cut: step_job(e, plan, long, plan["cut_T"], "adam", cut) for cut in plan["cuts"]}
    runs = e.run([*trained.values(), long, *jobs.values(), *pieces.values()])
    measured = {key: Measured(Steps(runs[job.name].base + ".txt")) for key, job in jobs.items()}
    cuts = {cut: Measured(Steps(runs[job.name].base + ".txt")) for cut, job in pieces.items()}
    scales = [[name, live_noise(runs[name]), *measured[name, "adam"].steps.noise_scales(),
               measured[name, "adam"].steps.b_noise, measured[name, "sgd"].steps.b_noise]
              for name in trained]
    write_tables(e, measured, cuts, scales)
    for (name, direction), m in measured.items():
        report_one(e, name, direction, m)
    for name, live, plain, metric, ours, _ in scales:
        e.say(f"{name.capitalize()}: B_simple {plain:,.0f} tokens plain, {metric:,.0f} in Adam's "
              f"metric, {'not measurable' if live is None else f'{live:,.0f}'} live over the run's "
              f"last eighth; B_noise {ours:,.0f}.")
    report_context(e, cuts)
    words = {f"{name}, {DIRECTIONS[d]}": m.judge() for (name, d), m in measured.items()}
    word = overall(list(words.values()))
    why = "; ".join(f"{key}: {w}" + (f", fitted over predicted {ratio_text(measured[k])}"
                                     if measured[k].fits["fall"] else "")
                    for (key, w), k in zip(words.items(), measured))
    e.figure("one_step", lambda plt: draw(plt, measured, cuts, word), alt=(
        "How far one step lowers the loss, against its batch: in proportion to the batch, then "
        "hardly further beyond the noise scale. Predicted, fitted and measured."),
        caption="Solid lines are predicted from gradients and curvature alone. Beyond B_noise a "
                "larger batch hardly lowers the loss further: hence a critical batch size.")
    e.verdict(word, why)
    e.close()


if __name__ == "__main__":
    main()
