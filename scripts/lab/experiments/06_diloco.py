#!/usr/bin/env python3
"""Experiment 6, second part: DiLoCo against data parallel, both tuned. Four replicas make H updates
each on their own, then one outer step (Douillard et al. 2023, arXiv 2311.08105); data parallel
makes every update with the batch of all four.

    scripts/lab/experiments/06_diloco.py --quick
    scripts/lab/experiments/06_diloco.py --batches 512       only the cells with replicas of 512 tokens

B_crit, which a replica's batch is compared with, is experiment 2's committed one.
"""
import math

import _path
import fit
import lab
import model

REPLICAS, T = 4, 32
# Outer (learning rate, momentum): where its grid of inner rates begins, in factors of 2 below data
# parallel's. Momentum lengthens outer steps rate/(1 - momentum) times.
OUTER = {(1.0, 0.0): 0, (0.8, 0.5): 1, (0.7, 0.9): 3, (0.4, 0.9): 2}
QUICK_OUTER = [(1.0, 0.0), (0.7, 0.9)]
LARGE_OUTER = [(1.0, 0.0)]                       # what wins with smaller batches; runs are long
CONFIDENCE = 0.9                                 # of all cells' intervals together


def arguments(parser):
    parser.add_argument("--batches", metavar="N,...", help="tokens of an update of one replica")


def rate(k):
    return 1e-3 * 2.0 ** k


class Cell(lab.Tuned):
    """Replicas with one batch (tokens), H (every) and number of updates. replicas = 1 is the
    control: one replica whose updates have the batch of all four, so that only the outer step
    differs from data parallel. every = 0: data parallel. A variant is a pair of OUTER."""

    def __init__(self, e, batch, every, updates, replicas=REPLICAS):
        self.e, self.batch, self.every, self.updates, self.replicas = (e, batch, every, updates,
                                                                       replicas)
        outer = {o: less for o, less in e.outer.items() if batch < e.large or o in LARGE_OUTER}
        super().__init__(self.make, {o: e.middle - less for o, less in outer.items()}
                         if every else {None: e.middle}, e.plan)

    def name(self):
        kind = f"h{self.every}" if self.every else "parallel"
        return f"b{self.batch}_{kind}_u{self.updates}" + ("_one" if self.replicas == 1 else "")

    def make(self, outer, k, seed):
        e, total = self.e, REPLICAS * self.batch
        flags = ["--data", e.corpus(total * self.updates), *e.model(), "--micro-batch",
                 min(self.batch // T, 16), "--batch-tokens", total, "--steps", self.updates,
                 "--lr", f"{rate(k):.6g}", "--lr-schedule", "cosine", "--warmup-tokens",
                 total * (self.updates // 20), "--beta2", f"{self.beta2():.9g}", "--eval-every",
                 self.updates // 2, "--eval-tokens", e.eval_tokens, "--seed", seed]
        if outer:
            flags += ["--outer-every", self.every, "--outer-lr", outer[0], "--outer-momentum",
                      outer[1]]
        tag = f"_o{outer[0]:g}m{outer[1]:g}" if outer else ""
        return lab.Job(f"{self.name()}{tag}_lr{rate(k):g}_s{seed}", flags, thin=50,
                       ranks=self.replicas if self.every else 1)

    def beta2(self):
        """For the batch of an AdamW update: a replica's, or all."""
        own = self.batch if self.every and self.replicas > 1 else REPLICAS * self.batch
        return lab.half_life_beta2(own)


def grid(e):
    """[(data parallel, [cells compared with it])], the cheapest first."""
    rows = []
    for batch in e.batches:
        cells = [Cell(e, batch, every, e.updates) for every in e.everies]
        if batch == e.batches[0]:
            cells.append(Cell(e, batch, e.everies[-1], e.updates, replicas=1))
        rows.append((Cell(e, batch, 0, e.updates), cells))
    if e.rare:
        every, updates = e.rare
        rows.insert(1, (Cell(e, e.batches[0], 0, updates), [Cell(e, e.batches[0], every,
                                                                 updates)]))
    return rows


# ---------------------------------------------------------------- results

def crit_law():
    """(c, slope) of B_crit = c loss^slope, the line through the logarithms of what experiment 2
    found for this model, as the page's calculator has it."""
    targets = next(m["targets"] for m in model.read_models() if m["parameters"] < 5e4)
    x, y = [math.log(t["loss"]) for t in targets], [math.log(t["fit"][1]) for t in targets]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    slope = (sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y))
             / sum((a - mean_x) ** 2 for a in x))
    return math.exp(mean_y - slope * mean_x), slope


class Row:
    """A cell beside data parallel with the same seeds: the difference of the final losses."""

    def __init__(self, parallel, cell):
        self.parallel, self.cell = parallel, cell
        self.gaps = [a - b for a, b in zip(cell.losses(), parallel.losses())]
        self.mean = mean(self.gaps)
        self.reach = math.nan                    # half of the interval, once all rows are known
        self.middle = mean([run.evals[0]["val_loss"] for run in parallel.chosen()])
        c, slope = crit_law()
        self.share = cell.batch / (c * self.middle ** slope)

    @property
    def low(self):
        return self.mean - self.reach

    @property
    def high(self):
        return self.mean + self.reach

    def kind(self):
        return f"{'one replica, ' if self.cell.replicas == 1 else ''}H = {self.cell.every}"

    def text(self):
        return f"{self.mean:+.4f} ({self.low:+.4f} to {self.high:+.4f})"


def mean(values):
    return sum(values) / len(values)


def outcome(row):
    return "wins" if row.high < 0.0 else "loses" if row.low > 0.0 else "ties"


def judge(rows):
    """(verdict, why, the figure's title). The prediction: for each H, data parallel wins with the
    smallest replicas, and with the largest it wins by less."""
    of = {}
    for row in rows:
        if row.cell.replicas > 1:
            of.setdefault(row.cell.every, []).append(row)
    pairs = [(r[0], r[-1]) for r in of.values() if len(r) > 1]
    if not pairs:
        return "undecided", "only one batch was run", "Undecided: only one batch was run"
    right = all(a.low > 0.0 and b.high < a.low for a, b in pairs)
    wrong = any(a.high < 0.0 or b.low > a.high for a, b in pairs)
    word = "as predicted" if right else "refuted" if wrong else "undecided"
    why = "; ".join(
        f"H = {a.cell.every}: {a.text()} nats against data parallel with {a.cell.batch:,} tokens a "
        f"replica, {b.text()} with {b.cell.batch:,}" for a, b in pairs)
    a, b = pairs[-1]
    return word, why, (f"{word.capitalize()}: H = {a.cell.every} is {a.mean:+.3f} nats from data "
                       f"parallel at {a.share:.2g} B_crit, {b.mean:+.3f} at {b.share:.2g}")


# ---------------------------------------------------------------- tables and picture

def write(e, rows):
    e.csv("cells", ["batch_of_a_replica", "replicas", "every", "updates", "loss_halfway",
                    "share_of_b_crit", "outer_lr", "outer_momentum", "inner_lr", "at_edge",
                    "val_loss", "parallel_lr", "parallel_at_edge", "parallel_val_loss", "gap",
                    "low", "high", "outcome"],
          [[r.cell.batch, r.cell.replicas, r.cell.every, r.cell.updates, r.middle, r.share,
            *r.cell.best()[0], rate(r.cell.best()[1]), int(r.cell.at_edge()),
            mean(r.cell.losses()), rate(r.parallel.best()[1]), int(r.parallel.at_edge()),
            mean(r.parallel.losses()), r.mean, r.low, r.high, outcome(r)] for r in rows])
    every = {id(c): c for r in rows for c in (r.parallel, r.cell)}.values()
    e.csv("runs", ["batch_of_a_replica", "replicas", "every", "updates", "outer_lr",
                   "outer_momentum", "inner_lr", "seed", "val_loss"],
          [[c.batch, c.replicas, c.every, c.updates, *(outer or (None, None)), rate(k), seed,
            run.val if math.isfinite(run.val) else "diverged"]
           for c in every for (outer, k, seed), run in sorted(c.runs.items())])


def draw(plt, rows, title):
    figure, ax = plt.subplots(figsize=(7.6, 5.4), layout="constrained")
    ax.axhline(0.0, color="black", linewidth=1.2)
    ax.annotate("data parallel, tuned", (0.0, 0.0), (6, -12), textcoords="offset points",
                xycoords=("axes fraction", "data"), fontsize=9)
    kinds = sorted({(r.cell.every, -r.cell.replicas) for r in rows})
    for i, kind in enumerate(kinds):
        of = [r for r in rows if (r.cell.every, -r.cell.replicas) == kind]
        control = of[0].cell.replicas == 1
        hollow = {"markerfacecolor": "white"} if control else {}
        ax.errorbar([r.share * 1.02 ** i for r in of], [r.mean for r in of],
                    yerr=[0.0 if math.isnan(r.reach) else r.reach for r in of], capsize=3,
                    color=lab.COLOURS[i], marker=lab.MARKERS[i], markersize=7, linewidth=1.3,
                    **hollow)
        ax.annotate(of[0].kind(), (of[0].share, of[0].mean), (9, -13) if control else (-9, 5),
                    textcoords="offset points", color=lab.COLOURS[i], fontsize=9.5,
                    ha="left" if control else "right")
    lab.log_axis(ax.xaxis, digits=2)
    ax.margins(x=0.34, y=0.12)
    lab.axes(ax, "batch of a replica / B_crit halfway",
             "final loss above data parallel's (nats a token)", title)
    return figure


# ---------------------------------------------------------------- the experiment

def settings(e):
    e.batches = e.pick(tiny=[128], quick=[512, 2048], full=[512, 2048, 4096])
    e.outer = e.pick(OUTER, {outer: OUTER[outer] for outer in QUICK_OUTER}, OUTER)
    e.everies = e.pick(tiny=[5], quick=[20], full=[5, 20])
    e.updates = e.pick(tiny=40, quick=200, full=1000)
    e.large = 4096                               # tokens: LARGE_OUTER from here on
    e.middle = e.pick(tiny=2, quick=2, full=3)   # where grids of rates begin
    e.rare = e.pick(None, None, (100, 5000))
    e.eval_tokens = e.pick(4096, 65536, 262144)
    e.plan = {"first": 1, "seeds": e.pick([2, 3], [2, 3], [2, 3, 4]),
              "grid": e.pick([0], [-1, 0], [-1, 0, 1]), "extend": e.pick(None, (-4, 6), (-4, 6)),
              **e.pick({}, {}, {"also": [5], "again": 3})}     # one seed chose rates by luck
    if e.args.batches:
        try:
            e.batches = sorted(int(b) for b in e.args.batches.split(","))
        except ValueError:
            e.batches = [0]
        if any(b < T or b % T for b in e.batches):
            lab.fail(f"--batches {e.args.batches}: expected multiples of {T}, as in 512,2048")
    e.setting(f"2 layers, 32 channels, T={T}; {e.updates:,} updates from fresh weights, the rate "
              "decays by a cosine to a tenth; AdamW, β2 by half-life in tokens.")
    outer = ", ".join(f"({lr:g}, {m:g})" for lr, m in e.outer)
    if e.batches[-1] >= e.large:
        outer += f"; the first alone with {e.large:,} tokens or more"
    second = ", with a second one for the three best" if "again" in e.plan else ""
    e.setting(f"DiLoCo: {REPLICAS} replicas, outer (rate, momentum) of {outer}. Inner rates are a "
              f"factor of 2 apart. One seed chooses rates{second}; {len(e.plan['seeds'])} others "
              "are reported.")


def report(e, rows):
    for r in rows:
        outer, k = r.cell.best()
        e.say(f"{r.cell.batch:,} tokens a replica ({r.share:.2f} B_crit at the loss halfway, "
              f"{r.middle:.3f}), {r.kind()}, {r.cell.updates:,} updates: {outcome(r)}, "
              f"{r.text()} nats against {mean(r.parallel.losses()):.4f} of data parallel; rate "
              f"{rate(k):g} (data parallel {rate(r.parallel.best()[1]):g}), outer rate "
              f"{outer[0]:g}, momentum {outer[1]:g}"
              + ("; the best rate lies on the edge of its grid"
                 if r.cell.at_edge() or r.parallel.at_edge() else "") + ".")


def main():
    e = lab.Experiment(
        6, "diloco", arguments=arguments, title="DiLoCo against data parallel, both tuned",
        question="What does it cost in loss if replicas synchronize every H updates only?",
        prediction="After as many updates on as much data, tuned data parallel ends lower while "
                   "the replicas' batches are well below B_crit, because it averages the noise of "
                   "every update; the gap closes as the replica's batch grows (Charles et al. "
                   "2025).")
    settings(e)
    rows = []
    for parallel, cells in grid(e):
        if not lab.has_mpi():
            cells = [cell for cell in cells if cell.replicas == 1]
        if cells:
            lab.tune(e, [parallel])
            rows += [Row(parallel, cell) for cell in lab.tune(e, cells)]
    for row, reach in zip(rows, fit.joint_reaches([r.gaps for r in rows], CONFIDENCE)):
        row.reach = reach
    write(e, rows)
    report(e, rows)
    word, why, title = judge(rows)
    if not lab.has_mpi():
        word, title = "skipped", "Without MPI: only the control"
        why = ("only the control with one replica; the replicas need MPI: make MPI=1 "
               "build/train_gpt2-mpi, and mpirun")
    names = {w: " and ".join(f"{r.cell.batch:,} ({r.kind()})" for r in rows if outcome(r) == w)
             for w in ("wins", "ties", "loses")}
    e.say("DiLoCo " + "; ".join(f"{w} with replicas of {names[w]} tokens"
                                for w in names if names[w]) + ".")
    e.figure("diloco", lambda plt: draw(plt, rows, title),
             alt="Final loss of DiLoCo minus that of tuned data parallel, against the replica's "
                 "batch over B_crit, a line for each H.",
             caption="Above zero data parallel is better. 90% intervals that hold together; points "
                     "are moved aside a little. The hollow point has one replica with the "
                     "whole batch: the outer step alone.")
    e.verdict(word, why)
    e.close()


if __name__ == "__main__":
    main()
