#!/usr/bin/env python3
"""Experiment 5: seconds to a loss on one and two real ranks, beside a model whose inputs are
measured in the same minutes; and what the model says of many workers.

    scripts/lab/experiments/05_time.py --quick

Two ranks should take, for an update, what a half batch takes *while the other core does the same*,
plus the exchange of gradients: alpha seconds for each message that an update sends, beta for a
byte. A block measures all of this in turn: one rank, two ranks, the half batch alone, a pair of
half batches, an all-reduce. Blocks in which the pair is much slower than the half batch alone are
discarded: something else used the machine. Run it on a machine that does nothing else.
"""
import csv
import json
import math
import os
from collections import namedtuple

import _path
import fit
import lab
from many_workers import (RANKS, World, best_batch, doubling, draw_workers, exchange_seconds,
                          half, messages, middle_and_reach, speedup)

TRAINER = os.path.join(".", "train_gpt2")        # CPU ranks, whatever e.args.trainer is
PAIR = os.path.join("scripts", "lab", "shared", "pair.sh")
LAUNCH = os.path.join("scripts", "launch.sh")
BENCH = os.path.join("build", "bench_comm")
COMMITTED = os.path.join("scripts", "lab", "results", "02_knee", "fit.csv")
T = 32
WARMUP = 20                                      # updates
SLOW = 1.25                                      # a pair may take so many times its solo time
BANDS = {"update": 0.10, "seconds": 0.15, "updates": 0.01}     # measured over predicted - 1

# rate: the learning rate at 512 tokens. target: a loss. tokens: roughly what a run to that loss
# takes at a small batch. batches: for one rank and for two, compared at the same batch. best: also
# compared with each at its own best batch.
Model = namedtuple("Model", "name layers heads channels rate target tokens batches best",
                   defaults=[True])
MODELS = {
    "full": [Model("119k", 2, 2, 64, 2e-3, 1.8, 1.2e6, (1024, 4096)),
             Model("0.8M", 4, 4, 128, 1e-3, 2.5, 2e5, (1024, 4096))],
    "quick": [Model("119k", 2, 2, 64, 2e-3, 2.5, 2e5, (1024,)),
              Model("0.8M", 4, 4, 128, 1e-3, 2.5, 2e5, (1024,), best=False)],
    "tiny": [Model("35k", 2, 2, 32, 4e-3, 4.0, 2e4, (256,))]}

# A law of updates: S = s_min (1 + b_crit/B). own: fitted to this model, not to one of another size.
Law = namedtuple("Law", "s_min b_crit low high own source")

# seconds: of an update; solo and pair: of a half batch; exchange: modelled. to_loss: seconds of all
# updates to the target, which took `updates`; None where it was not reached. Of each rank count:
# (one, two).
Block = namedtuple("Block", "turn seconds solo pair exchange to_loss updates load")


def settings(e):
    e.models = MODELS[e.size]
    e.blocks = e.pick(2, 5, 9)                   # to keep
    e.most = e.pick(2, 8, 14)                    # to try
    e.edges = []                                 # Tuned whose best rate is the grid's last
    e.every = e.pick(2048, 16384, 32768)         # tokens between evaluations, at least
    e.plan = {"first": 1, "seeds": [], "grid": e.pick([0], [-1, 0, 1], [-1, 0, 1]),
              "extend": e.pick(None, (-3, 3), (-3, 3))}


def missing():
    """What this machine lacks to measure two ranks; empty if nothing."""
    if not lab.has_mpi() or not os.access(BENCH, os.X_OK):
        return f"needs MPI: make MPI=1 {lab.MPI_TRAINER} {BENCH}, and mpirun"
    return "" if lab.processors() >= RANKS else "needs two processors"


# ---------------------------------------------------------------- the law of updates

def read_law(e, model):
    """Experiment 2's fit at the model's target: this --out's, else the committed one. Where its own
    size has no fit, another size's stands in: experiment 2 predicts one B_crit for all sizes."""
    for path in (os.path.join(e.args.out, "02_knee", "fit.csv"), COMMITTED):
        if os.path.exists(path):
            with open(path, newline="", encoding="utf-8") as f:
                rows = [r for r in csv.DictReader(f) if r["reading"] == "weights"
                        and not r["refused"] and float(r["target_nats"]) == model.target]
            rows.sort(key=lambda r: r["size"] != model.name)
            return law_of(rows[0], model, path) if rows else None
    return None


def law_of(row, model, path):
    values = [float(row[key]) for key in ("s_min", "b_crit", "b_crit_low", "b_crit_high")]
    return Law(*values, row["size"] == model.name, f"{path}, {row['size']}")


# ---------------------------------------------------------------- jobs

def shape(e, model, batch, ranks):
    """A rank takes its share in micro-batches of at most 16 sequences."""
    corpus = e.corpus(max(2.2 * cap(model, m) for model in e.models for m in model.batches))
    return ["--data", corpus, "--layers", model.layers, "--heads", model.heads, "--channels",
            model.channels, "--seq-len", T, "--micro-batch", min(batch // ranks // T, 16),
            "--batch-tokens", batch] + (["--zero", 0, "--no-overlap"] if ranks > 1 else [])


def cap(model, batch):
    """Tokens of a run that does not reach its target."""
    return 2.0 * model.tokens * (1.0 + batch / 2048)


def rate(model, batch, k=0):
    """Best rates of experiment 2 grow about as the cube root of the batch."""
    return model.rate * (batch / 512) ** (1.0 / 3.0) * 2.0 ** k


def to_loss(e, model, batch, seed, k, ranks=1):
    """A run until the target."""
    return [*shape(e, model, batch, ranks), "--steps", math.ceil(cap(model, batch) / batch),
            "--target-loss", model.target, "--lr", f"{rate(model, batch, k):.6g}",
            "--lr-schedule", "constant", "--warmup-tokens", WARMUP * batch, "--beta2",
            f"{lab.half_life_beta2(batch):.9g}", "--eval-every", max(1, round(e.every / batch)),
            "--eval-tokens", e.pick(1024, 8192, 16384), "--seed", seed]


def timing(e, model, tokens):
    """Some updates of one rank, for their time alone."""
    speed = 1.3e11 / (6 * 12 * model.layers * model.channels ** 2)     # tokens a second, about
    steps = max(8, math.ceil(e.pick(0.02, 0.3, 1.5) * speed / tokens))
    return [*shape(e, model, tokens, 1), "--steps", steps, "--eval-every", 0, "--eval-tokens", T,
            "--seed", 1]


def median_update(run):
    return run.median("seconds")


def slower_of_pair(run):
    """Two ranks wait for each other, so of two independent runs the slower counts."""
    second = [r["seconds"] for r in lab.read_log(run.base + ".jsonl.second")
              if r["event"] == "step"]
    return max(run.median("seconds"), lab.median(second[3:]))


def seconds_to(run, target):
    """Seconds of all updates until the loss, the last one in part; None if never reached."""
    updates, seconds = run.updates_at(target), [step["seconds"] for step in run.steps]
    if updates is None:
        return None
    whole = int(updates)
    return sum(seconds[:whole]) + (updates - whole) * seconds[min(whole, len(seconds) - 1)]


# ---------------------------------------------------------------- what a device and a link cost

def all_reduce(e, model, parameters, turn):
    """{"alpha", "beta", "load"}: alpha seconds a message and beta a byte, measured up to that size
    and kept beside the runs; a full run takes none from a quick one."""
    path = os.path.join(e.dir, "runs", f"link_{e.size}_{model.name}_{turn}.json")
    if not os.path.exists(path):
        if e.args.redraw:
            lab.fail(f"--redraw: {path} is missing; run without --redraw first")
        printed = lab.output_of(LAUNCH, "-n", str(RANKS), BENCH, str(parameters))
        try:
            record = json.loads(lab.last_line(printed))
        except ValueError:
            lab.fail(f"{LAUNCH} -n {RANKS} {BENCH} {parameters}: it measured no all-reduce")
        lab.write_json(path, dict(record, load=os.getloadavg()[0]))
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def calibrate(e, why):
    """A World for each model. Other load only adds time, so the fastest round counts."""
    rounds, sizes = e.pick(1, 3, 5), e.pick([T, 4 * T], [T, 4 * T, 16 * T], [T, 4 * T, 16 * T])
    jobs = {(m, b, i): lab.Job(f"device_{m.name}_b{b}_{i}", timing(e, m, b), program=TRAINER,
                               alone=True)
            for i in range(rounds) for m in e.models for b in sizes}
    runs = e.run(list(jobs.values()))
    worlds = []
    for m in e.models:
        of = {b: [runs[jobs[m, b, i].name] for i in range(rounds)] for b in sizes}
        parameters = of[T][0].start["parameters"]
        device = fit.fit_device(sizes, [min(map(median_update, of[b])) for b in sizes])
        link = None if why else all_reduce(e, m, parameters, "calibration")
        worlds.append(World(m, parameters, T, device, link, read_law(e, m)))
    return worlds


# ---------------------------------------------------------------- blocks

class Tuned(lab.Tuned):
    """The learning rate of a best batch, on one rank."""

    def __init__(self, e, model, batch):
        self.e, self.model, self.batch = e, model, batch
        super().__init__(self.make, {None: 0}, e.plan)

    def make(self, _, k, seed):
        return lab.Job(f"tune_{self.model.name}_b{self.batch}_k{k}",
                       to_loss(self.e, self.model, self.batch, seed, k), program=TRAINER)

    def score(self, run):
        return run.updates_at(self.model.target) or math.inf


class Case:
    """A comparison of one rank and two. batches, powers: of each; a power of 2 is a factor of the
    learning rate. shrink: updates of the second batch over those of the first, predicted."""

    def __init__(self, e, world, batches, powers=(0, 0), shrink=1.0):
        self.e, self.world, self.model = e, world, world.model
        self.batches, self.powers, self.shrink = batches, powers, shrink
        self.equal = batches[0] == batches[1]
        self.blocks = []

    def name(self):
        return "_".join([self.model.name, *(f"b{b}" for b in self.batches)])

    def text(self):
        size = f"{self.batches[0]:,}" + ("" if self.equal else f" and {self.batches[1]:,}")
        return f"{self.model.name}, {'' if self.equal else 'best: '}{size} tokens"

    def jobs(self, turn):
        """In a turn both rank counts train with the same seed; the rates were tuned on seed 1."""
        def run(kind, flags, **more):
            return lab.Job(f"{self.name()}_t{turn}_{kind}", flags, alone=True, **more)
        runs = [to_loss(self.e, self.model, b, 2 + turn, k, ranks)
                for b, k, ranks in zip(self.batches, self.powers, (1, RANKS))]
        share = timing(self.e, self.model, self.batches[1] // RANKS)
        return [run("one", runs[0], program=TRAINER), run("two", runs[1], ranks=RANKS),
                run("solo", share, program=TRAINER), run("pair", [TRAINER, *share], program=PAIR)]

    def add(self, turn, runs, link):
        one, two, solo, pair = (runs[job.name] for job in self.jobs(turn))
        self.blocks.append(Block(
            turn, (median_update(one), median_update(two)), median_update(solo),
            slower_of_pair(pair), exchange_seconds(self.model, self.world.parameters, link),
            tuple(seconds_to(run, self.model.target) for run in (one, two)),
            tuple(run.updates_at(self.model.target) for run in (one, two)), link["load"]))

    def kept(self):
        return [b for b in self.blocks if b.pair <= SLOW * b.solo and None not in b.to_loss]

    def discarded(self):
        return sum(b.pair > SLOW * b.solo for b in self.blocks)

    def modelled(self, block):
        """(seconds of an update of two ranks, seconds to the loss)"""
        update = block.pair + block.exchange
        return update, block.updates[0] * self.shrink * update

    def ratios(self):
        """{what: measured over predicted, of each kept block}"""
        return {"update": [b.seconds[1] / self.modelled(b)[0] for b in self.kept()],
                "seconds": [b.to_loss[1] / self.modelled(b)[1] for b in self.kept()],
                "updates": [b.updates[1] / b.updates[0] / self.shrink for b in self.kept()]}

    def speedups(self):
        """(measured, modelled) of each kept block."""
        return [(b.to_loss[0] / b.to_loss[1], b.to_loss[0] / self.modelled(b)[1])
                for b in self.kept()]

    def words(self):
        return {what: verdict_of(found, BANDS[what]) for what, found in self.ratios().items()}


def verdict_of(ratios, band):
    """By the interval of the median: inside the band, outside, or neither."""
    low, high = fit.median_interval(ratios)
    if 1.0 - band <= low and high <= 1.0 + band:
        return "as predicted"
    return "refuted" if high < 1.0 - band or low > 1.0 + band else "undecided"


def best_cases(e, worlds):
    """One rank and two, each at its predicted best batch, with its own best rate."""
    pairs = [(w, [best_batch(w, n) for n in (1, RANKS)]) for w in worlds
             if w.law and w.model.best]
    tuned = {(w.model, b): Tuned(e, w.model, b) for w, batches in pairs for b in batches}
    lab.tune(e, list(tuned.values()))
    cases = []
    for w, batches in pairs:
        both = [tuned[w.model, b] for b in batches]
        e.edges += [t for t in both if t.at_edge()]
        updates = [fit.predicted_updates(b, w.law.s_min, w.law.b_crit) for b in batches]
        if batches[0] != batches[1]:
            cases.append(Case(e, w, batches, [t.best()[1] for t in both], updates[1] / updates[0]))
    return cases


def measure(e, worlds):
    """All cases, in blocks in turn, so that a slow phase of the machine hits all of them; further
    blocks for those that were discarded."""
    cases = [Case(e, w, (b, b)) for w in worlds for b in w.model.batches] + best_cases(e, worlds)
    for turn in range(e.most):
        todo = [c for c in cases if len(c.kept()) < e.blocks]
        if not todo:
            break
        runs = e.run([job for c in todo for job in c.jobs(turn)])
        links = {c.model: all_reduce(e, c.model, c.world.parameters, turn) for c in todo}
        for c in todo:
            c.add(turn, runs, links[c.model])
    return cases


# ---------------------------------------------------------------- pictures

def draw_seconds(plt, cases, title):
    """A row a case: seconds to the loss of one rank, of two, and of the model's two."""
    figure, ax = plt.subplots(figsize=(7.6, 1.5 + 0.72 * len(cases)), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=10.5)
    low, high = math.inf, 0.0
    for row, c in enumerate(cases):
        one, two, model = (
            [b.to_loss[0] for b in c.kept()], [b.to_loss[1] for b in c.kept()],
            [c.modelled(b)[1] for b in c.kept()])
        low, high = min(low, *one, *two, *model), max(high, *one, *two, *model)
        right = lab.median(one) > lab.median(two)            # of the other label
        draw_mark(ax, row, one, "1 rank" * (row == 0), 0, right)
        draw_mark(ax, row, two, "2 ranks" * (row == 0), 1, not right)
        draw_mark(ax, row + 0.24, model, "2 ranks, model" * (row == 0), 1, not right, "white")
    for row, c in enumerate(cases):
        measured, modelled = (lab.median(list(v)) for v in zip(*c.speedups()))
        ax.annotate(f"speed-up {measured:.2f}\n(model {modelled:.2f})", (1.3 * high, row),
                    fontsize=8.5, va="center")
    ax.set_yticks(range(len(cases)), [f"{c.text()}\nto loss {c.model.target:g}" for c in cases])
    ax.set_ylim(len(cases) - 0.4, -0.6)
    lab.log_axis(ax.xaxis)
    ax.set_xlim(low / 2.0, 1.3 * high * (high / low) ** 0.2 * 1.4)
    lab.axes(ax, "seconds to the loss (hollow: modelled)", None)
    return figure


def draw_mark(ax, y, values, label, colour, right, fill=None):
    at, reach = middle_and_reach(values)
    marker, colour = "D" if fill else lab.MARKERS[colour], lab.COLOURS[colour]
    ax.errorbar(at, y, xerr=reach, marker=marker, color=colour, capsize=3, markersize=7,
                markerfacecolor=fill or colour)
    beside = at + (reach[1][0] if right else -reach[0][0]) if fill else at
    ax.annotate(label, (beside, y), (8 if right else -8, -3 if fill else 6), fontsize=8.5,
                textcoords="offset points", color=colour, ha="left" if right else "right")


# ---------------------------------------------------------------- words

def range_text(values):
    low, high = fit.median_interval(values)
    return "too few blocks" if math.isnan(low) else f"{low:.2f} to {high:.2f}"


def ratio_text(c, what):
    values = c.ratios()[what]
    return f"{lab.median(values):.2f} times ({range_text(values)})"


def case_text(c):
    if not c.kept():
        return f"{c.text()}: no block was kept"
    return (f"{c.text()}: an update of two ranks takes {ratio_text(c, 'update')} the model's, "
            f"seconds to the loss {ratio_text(c, 'seconds')}")


def load_text(cases):
    """Why repeats may scatter."""
    loads = [b.load for c in cases for b in c.blocks]
    return (f"load {min(loads):.1f} to {max(loads):.1f}, {sum(c.discarded() for c in cases)} of "
            f"{sum(len(c.blocks) for c in cases)} blocks discarded")


def judge(cases, why):
    """By the comparisons at one batch, whose updates must agree, too."""
    if why:
        return "skipped", f"two ranks were not measured: {why}"
    equal = [c for c in cases if c.equal]
    words = [word for c in equal for word in c.words().values()]
    text = "; ".join(map(case_text, equal))
    if "refuted" in words and is_quiet(equal):
        return "refuted", text
    if all(word == "as predicted" for word in words):
        return "as predicted", text
    return "undecided", f"{text}; {load_text(cases)}"


def is_quiet(cases):
    """Whether the load was no more than these runs make: another program slows ranks that wait for
    each other more than runs that do not, so it could refute any model."""
    loads = [b.load for c in cases for b in c.kept()]
    return bool(loads) and lab.median(loads) <= RANKS + 0.5


def farthest(cases):
    """The comparison at one batch whose seconds to the loss are farthest from the model's."""
    return max((c for c in cases if c.equal and c.kept()), default=None,
               key=lambda c: abs(math.log(lab.median(c.ratios()["seconds"]))))


def say(e, worlds, cases, why):
    for w in worlds:
        link = "" if not w.link else (
            f"; two ranks exchange gradients in {messages(w.model)} messages, "
            f"{1e3 * exchange_seconds(w.model, w.parameters, w.link):.3g} ms")
        e.say(f"{w.model.name}, one core: t_0 = {1e3 * w.device.fixed:.3g} ms and "
              f"{1 / w.device.per_token:,.0f} tokens/s, so b_half = {half(w, 1, True):.3g} tokens"
              f"{link}.")
        say_law(e, w)
    for t in e.edges:
        e.say(f"{t.model.name}, {t.batch:,} tokens: the best learning rate lies on the edge of its "
              "grid.")
    for c in cases:
        if c.kept():
            measured, modelled = zip(*c.speedups())
            e.say(f"{case_text(c)}; updates to the loss {ratio_text(c, 'updates')}. Two ranks are "
                  f"{lab.median(measured):.2f} times as fast as one ({range_text(measured)}; "
                  f"model: {lab.median(modelled):.2f}).")
    if cases:
        e.say(f"{load_text(cases).capitalize()} (a pair of independent runs took more than {SLOW} "
              "times as long as one).")
    if why:
        e.say(f"Missing: seconds of two ranks, {why}.")


def say_law(e, w):
    if not w.law:
        e.say(f"Missing: best batches for {w.model.name}; experiment 2 has no fit at loss "
              f"{w.model.target:g}. Run scripts/lab/experiments/02_knee.py with the same --out.")
        return
    own = "" if w.law.own else ", of another size, since B_crit is predicted to be the same"
    bound = lambda free: f"{doubling(w, free):.3g} workers"
    e.say(f"Modelled, {w.model.name} to loss {w.model.target:g} (B_crit {w.law.b_crit:,.0f} "
          f"tokens, {w.law.low:,.0f} to {w.law.high:,.0f}, from {w.law.source}{own}): on a free "
          f"link device-hours double at n_2 = {bound(True)}"
          + (f", on this machine's at {bound(False)}" if w.link else "") + ", and from "
          f"{max(1.0, fit.end_workers(w.law.b_crit, half(w, 1, True), T)):.3g} workers on each has "
          "one sequence.")


# ---------------------------------------------------------------- tables

def write(e, worlds, cases):
    e.csv("blocks", ["model", "batch_one", "batch_two", "turn", "kept", "seconds_one",
                     "seconds_two", "seconds_solo", "seconds_pair", "seconds_exchange", "to_loss_one",
                     "to_loss_two", "updates_one", "updates_two", "load"],
          [[c.model.name, *c.batches, b.turn, int(b in c.kept()), *b.seconds, b.solo, b.pair,
            b.exchange, *b.to_loss, *b.updates, b.load] for c in cases for b in c.blocks])
    e.csv("workers", ["model", "link", "workers", "best_batch_tokens", "speedup_modelled",
                      "device_hours_of_one"],
          [[w.model.name, "free" if free else "this machine's", n,
            fit.best_batch(n, w.law.b_crit, half(w, n, free), T), speedup(w, n, free),
            n / speedup(w, n, free)]
           for w in worlds if w.law for free in ([True, False] if w.link else [True])
           for n in (2 ** i for i in range(11))])
    lab.write_json(os.path.join(e.dir, "fit.json"), {
        "models": [{"model": w.model.name, "parameters": w.parameters, "seq_len": T,
                    "t_0": w.device.fixed, "tau": w.device.per_token,
                    "alpha": w.link and w.link["alpha"], "beta": w.link and w.link["beta"],
                    "messages": messages(w.model)}
                   for w in worlds],
        "ratios": [ratios_record(c) for c in cases if c.kept()]})


def ratios_record(c):
    """Medians with their 90% intervals; null where five blocks are missing."""
    def three(values):
        return [x if math.isfinite(x) else None
                for x in (lab.median(values), *fit.median_interval(values))]
    return {"model": c.model.name, "target_nats": c.model.target, "batches": list(c.batches),
            "speedup": three([x for x, _ in c.speedups()]),
            "speedup_modelled": three([x for _, x in c.speedups()]),
            **{what: three(values) for what, values in c.ratios().items()},
            "words": c.words() if c.equal else {}, "discarded": c.discarded()}


def draw(e, worlds, cases, word):
    far, known = farthest(cases), [w for w in worlds if w.law]
    shown = [c for c in cases if c.kept()]
    if far:
        title = (f"{word.capitalize()}: two ranks take {ratio_text(far, 'seconds')} the model's "
                 f"seconds\nto one loss; farthest of {len([c for c in shown if c.equal])}: "
                 f"{far.text()}")
        e.figure("seconds", lambda plt: draw_seconds(plt, shown, title),
                 alt="Seconds to a loss on one rank and on two, measured, and on two by the model, "
                     "a row for each comparison.",
                 caption="Medians of interleaved blocks, bars their 90% intervals. The model's "
                         "inputs: a half batch while the other core does the same, and what a "
                         "message and a byte cost.")
    if known:
        first = known[0]
        title = (f"Modelled: device-hours double at {doubling(first, True):.0f} workers on a free "
                 f"link ({first.model.name})")
        e.figure("workers", lambda plt: draw_workers(plt, known, cases, title),
                 alt="Modelled speed-up over one worker against the number of workers, on a free "
                     "link and on this machine's; the measured speed-up of two ranks beside it.",
                 caption="Lines are modelled. The hollow point set the model's t_0 and tau; the "
                         "filled one tests it.")


def main():
    e = lab.Experiment(
        5, "time", title="Time, measured: one and two ranks to one loss",
        question="Is the time to a loss the number of updates times the seconds of one, on real "
                 "ranks, too?",
        prediction="Two ranks make the same updates as one at the same batch. An update takes what "
                   "half of the batch takes while the other core does the same, plus the exchange "
                   "of gradients, in as many messages as the trainer sends, within 10%; the seconds "
                   "to a loss follow within 15%.")
    settings(e)
    why = missing()
    worlds = calibrate(e, why)
    cases = [] if why else measure(e, worlds)
    word, reason = judge(cases, why)
    e.setting(f"T={T}; constant rate after {WARMUP} updates, β2 by half-life in tokens; at least "
              f"{e.blocks} blocks; {lab.machine()}. Seconds are those of the updates, without "
              "evaluations.")
    write(e, worlds, cases)
    say(e, worlds, cases, why)
    draw(e, worlds, cases, word)
    e.verdict(word, reason)
    e.close()


if __name__ == "__main__":
    main()
