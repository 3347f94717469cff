"""Local knees, for 02_local.py and its variants by size, text and optimizer: how many updates do
branches of a checkpoint take to fall by a tenth of a nat, at each batch?

Every branch decays its learning rate linearly to zero, so that a small batch does not pay for a
constant rate. Each batch and rate runs at several lengths; the updates whose *end* is FALL below
the annealed checkpoint are interpolated between two lengths (Merrill et al. 2025 for the idea of
branches). Every seed has its own run, its own annealed checkpoint and its own crossings.
"""
import math
from collections import namedtuple

import fit
import kept
import lab

FALL = 0.1                           # nats below the annealed checkpoint
MOST_LENGTHS, MOST_RATES = 6, 5      # at a batch

# name: of the runs. batch: of the run that branches leave, in tokens, the smallest of the branches.
# rate: of that run. knee: a guess of B_crit. ks: the branches' batches, in units of `batch`.
# memory: tokens after which weight decay alone would have shrunk a weight by 1/e at a constant rate
# (Bergsma et al. 2025); None: 0.1 an update, whatever the batch. micro: sequences of a micro-batch,
# at most. program: in place of the trainer.
Plan = namedtuple("Plan", "name model T corpus batch rate knee moments ks eval memory micro "
                  "program", defaults=(None, 64, None))

# loss: of the annealed checkpoint less FALL; noise: B_simple of the run at that moment. points:
# {batch: fit.Point}, its rate in units of the first guess; None where nothing crossed.
Local = namedtuple("Local", "tokens seed loss noise points")


def trunk_name(plan, seed, i):
    return f"{plan.name}_s{seed}_{i}"


def decay(plan, batch, rate):
    """The flags of a weight decay that forgets as many tokens whatever the batch."""
    return ["--weight-decay", f"{batch / (rate * plan.memory):.6g}"] if plan.memory else []


def trunk_jobs(plan, seeds):
    """The run at a constant rate that branches leave, in one part for each moment."""
    sequences = plan.batch // plan.T
    first = ["--data", plan.corpus, *plan.model, "--micro-batch", max(1, sequences // 2),
             "--batch-tokens", plan.batch, *(["--noise-scale"] if sequences > 1 else []),
             "--lr", f"{plan.rate:.6g}", "--lr-schedule", "constant",
             "--warmup-tokens", 20 * plan.batch, "--save-every", 0, "--keep", 1,
             "--beta2", f"{lab.half_life_beta2(plan.batch):.7g}", "--eval-every", 0,
             "--eval-tokens", plan.eval, *decay(plan, plan.batch, plan.rate)]
    return [lab.Job(trunk_name(plan, seed, i), ["--tokens", moment] if i else
                    [*first, "--seed", seed, "--tokens", moment], keep=True,
                    branch=trunk_name(plan, seed, i - 1) if i else None, cost=moment,
                    program=plan.program)
            for seed in seeds for i, moment in enumerate(plan.moments)]


def branch_job(plan, seed, i, k, power, updates):
    """A warm-up as long as the trunk makes the linear decay begin at the branch."""
    moment, batch = plan.moments[i], k * plan.batch
    rate = plan.rate * 2.0 ** (round(0.4 * math.log2(k)) + power)
    return lab.Job(f"{trunk_name(plan, seed, i)}_k{k}_lr{rate:.6f}_n{updates}", [
        "--batch-tokens", batch,
        "--micro-batch", max(1, min(plan.micro, batch // plan.T // 2)),
        "--lr", f"{rate:.6g}", "--lr-schedule", "linear", "--final-lr-frac", 0,
        "--warmup-tokens", moment, "--beta2", f"{lab.half_life_beta2(batch):.7g}",
        "--tokens", moment + updates * batch, *decay(plan, batch, rate)],
        branch=trunk_name(plan, seed, i), thin=20, cost=updates * batch, program=plan.program)


class Branches:
    """All branches of one seed's checkpoint at one batch. known: the (rate, updates) that other
    seeds took, or None: rates are tuned. want: {(power of the rate, length)}, lengths in doublings.
    loss: {power: {updates: at the end}}."""

    def __init__(self, plan, seed, i, k, target, known):
        self.plan, self.seed, self.i, self.k = plan, seed, i, k
        self.target, self.known, self.loss = target, known, {}
        self.most_lengths = MOST_LENGTHS
        power = round(math.log2(known[0])) if known else 0
        self.want = {(power, length) for length in ((-0.5, 0.5) if known else (0, 1, 2))}

    def updates(self, length):
        """Of length 0: what other seeds took; or an eighth of the moment's tokens, times the growth
        that the formula expects."""
        plan, batch = self.plan, self.k * self.plan.batch
        grown = (1.0 + batch / plan.knee) / (1.0 + plan.batch / plan.knee)
        first = self.known[1] if self.known else plan.moments[self.i] / 8.0 * grown / batch
        return max(2, round(first * 2.0 ** length))

    def jobs(self):
        """{(power, updates): Job}"""
        every = [(power, self.updates(length)) for power, length in sorted(self.want)]
        return {(power, n): self.job(power, n) for power, n in every}

    def job(self, power, updates):
        return branch_job(self.plan, self.seed, self.i, self.k, power, updates)

    def read(self, runs):
        for (power, updates), job in self.jobs().items():
            self.loss.setdefault(power, {})[updates] = runs[job.name].val

    def at(self):
        """{power: updates at the crossing, or None}"""
        return {power: fit.crossing(list(own), list(own.values()), self.target)
                for power, own in self.loss.items()}

    def point(self):
        found = fit.best_rate(self.k * self.plan.batch,
                              {2.0 ** power: [n] for power, n in self.at().items()})
        return found and found._replace(edge=found.edge and not self.known)

    def extend(self):
        """Adds to `want` what is still missing: a length beyond the last where nothing has crossed
        the target, then rates beyond an edge that is best."""
        at = self.at()
        best = min((n for n in at.values() if n), default=math.inf)
        for power, n in at.items():
            lengths = [length for p, length in self.want if p == power]
            shortest, longest = min(self.loss[power]), max(self.loss[power])
            if n or len(lengths) >= self.most_lengths:
                continue
            if self.loss[power][shortest] <= self.target:
                self.want.add((power, min(lengths) - 1))
            elif longest < best:                             # beyond `best` this rate has lost
                self.want.add((power, max(lengths) + 1))
        point = self.point()
        if point and point.edge and len(at) < MOST_RATES:
            ends = [min(at) - 1] if point.lr == 2.0 ** min(at) else [max(at) + 1]
            ends = [-1, 1] if len(at) == 1 else ends
            own = [length for p, length in self.want if p == math.log2(point.lr)]
            self.want |= {(end, length) for end in ends for length in sorted(own)[-3:]}


def sweep(e, plan, seeds, known=None):
    """[Local], one for each moment and seed. known: {(moment, batch): (rate, updates)} of other
    seeds; what is not known is tuned."""
    trunk = e.run(trunk_jobs(plan, seeds))
    anneal = {(i, seed): branch_job(plan, seed, i, 1, 0, max(2, moment // 16 // plan.batch))
              for i, moment in enumerate(plan.moments) for seed in seeds}
    ends = e.run(list(anneal.values()))
    every = [Branches(plan, seed, i, k, ends[job.name].val - FALL,
                      (known or {}).get((plan.moments[i], k * plan.batch)))
             for (i, seed), job in anneal.items() for k in plan.ks]
    search(e, every)
    return [Local(plan.moments[i], seed, ends[job.name].val - FALL,
                  mean_noise(trunk[trunk_name(plan, seed, i)]),
                  {b.k * plan.batch: b.point() for b in every if (b.i, b.seed) == (i, seed)})
            for (i, seed), job in anneal.items()]


def search(e, every):
    """Makes runs of all Branches until each has its crossing. {name: lab.Run}"""
    runs = {}
    while jobs := [job for b in every for job in b.jobs().values() if job.name not in runs]:
        runs.update(e.run(jobs))
        for b in every:
            b.read(runs)
            b.extend()
    return runs


def mean_noise(run):
    """B_simple over the last quarter of a run: averages first, since each of S and G2 is unbiased
    and their ratio is not. None where the gradient is lost in the noise."""
    late = [s for s in run.steps[-max(1, len(run.steps) // 4):]
            if lab.number(s.get("noise_g2")) and lab.number(s.get("noise_s"))]
    g2, s = sum(x["noise_g2"] for x in late), sum(x["noise_s"] for x in late)
    return s / g2 if g2 > 0.0 else None


# ---------------------------------------------------------------- tables

TABLES = {"tuned": ["batch_tokens", "lr_times", "updates", "edge"],
          "seeds": ["seed", "target_nats", "noise_scale_tokens"],
          "branches": ["seed", "batch_tokens", "updates"]}


def best_rate(e, plan_of, seed):
    """The Plan whose run's rate has the lowest loss, annealed over a sixteenth: it lies between two
    others. plan_of(k): with the first guess times 2^k."""
    grid, plans = [-1, 0, 1], {k: plan_of(k) for k in range(-8, 9)}
    e.run([job for k in grid for job in trunk_jobs(plans[k], [seed])])

    def job(_, k, seed):
        plan = plans[k]
        e.run(trunk_jobs(plan, [seed]))
        return branch_job(plan, seed, 0, 1, 0, max(2, plan.moments[0] // 16 // plan.batch))
    method, = lab.tune(e, [lab.Tuned(job, {"": 0}, {
        "first": seed, "seeds": [], "grid": grid, "extend": (min(plans), max(plans))})])
    return plans[method.best()[1]]


def measure(e, plan, choose, seeds):
    """{a name of TABLES: rows} of a plan with one moment. The seed `choose` tunes the rates."""
    chosen, = sweep(e, plan, [choose])
    points = {batch: p for batch, p in sorted(chosen.points.items()) if p}
    known = {(chosen.tokens, batch): (p.lr, p.median) for batch, p in points.items()}
    plan = plan._replace(ks=tuple(k for k in plan.ks if k * plan.batch in points))
    made = sweep(e, plan, seeds, known)
    return {"tuned": [[batch, p.lr, p.median, int(p.edge)] for batch, p in points.items()],
            "seeds": [[s.seed, s.loss, s.noise] for s in made],
            "branches": [[s.seed, batch, p.median] for s in made
                         for batch, p in sorted(s.points.items()) if p]}


def b_crits(branches):
    """{seed: B_crit} of rows of `branches`, of the seeds with four batches or more."""
    return {seed: fit.least_squares([p["batch_tokens"] for p in own],
                                    [p["updates"] for p in own])[1]
            for (seed,), own in kept.grouped(branches, "seed").items() if len(own) >= 4}


def fewer(branches):
    """{batch: [how many times fewer updates than of the smallest batch, of each seed with both]}"""
    updates = {(p["batch_tokens"], p["seed"]): p["updates"] for p in branches}
    small, found = min(batch for batch, _ in updates), {}
    for (batch, seed), n in sorted(updates.items()):
        if (small, seed) in updates:
            found.setdefault(batch, []).append(updates[small, seed] / n)
    return found
