"""The local knee, for 02_knee.py: how many updates do branches of a checkpoint take to fall by a
tenth of a nat, at each batch?

Every branch decays its learning rate linearly to zero, so that a small batch does not pay for a
constant rate. Each batch and rate runs at several lengths; the updates whose *end* is FALL below
the annealed checkpoint are interpolated between two lengths. Through the updates of all batches
goes the formula of the knee (Merrill et al. 2025 for the idea of branches).
"""
import math
from collections import namedtuple

import _path
import fit
import lab

FALL = 0.1                           # nats below the annealed checkpoint
MOST_LENGTHS, MOST_RATES = 6, 5      # at a batch

# rate: the run's, at `batch` tokens, the smallest batch of the branches. knee: a guess of B_crit.
# loss: of the annealed checkpoint less FALL; noise: B_simple of the run at that moment.
Local = namedtuple("Local", "tokens loss noise points knee")


def trunk_name(seed, i):
    return f"local_s{seed}_{i}"


def trunk_jobs(plan):
    """The run at a constant rate that branches leave, in one part for each moment."""
    first = ["--data", plan["corpus"], *plan["model"],
             "--micro-batch", plan["batch"] // plan["T"] // 2, "--batch-tokens", plan["batch"],
             "--noise-scale", "--lr", f"{plan['rate']:.6g}", "--lr-schedule", "constant",
             "--warmup-tokens", 20 * plan["batch"], "--save-every", 0, "--keep", 1,
             "--beta2", f"{lab.half_life_beta2(plan['batch']):.7g}", "--eval-every", 0,
             "--eval-tokens", plan["eval"]]
    return [lab.Job(trunk_name(seed, i), ["--tokens", moment] if i else
                    [*first, "--seed", seed, "--tokens", moment], keep=True,
                    branch=trunk_name(seed, i - 1) if i else None, cost=moment)
            for seed in plan["seeds"] for i, moment in enumerate(plan["moments"])]


def branch_job(plan, seed, i, k, power, length):
    """`length` halvings or doublings of an eighth of the moment's tokens, times the growth that the
    formula expects. A warm-up as long as the trunk makes the linear decay begin at the branch."""
    moment, batch = plan["moments"][i], k * plan["batch"]
    grown = (1.0 + batch / plan["knee"]) / (1.0 + plan["batch"] / plan["knee"])
    updates = max(2, round(moment / 8.0 * grown * 2.0 ** length / batch))
    rate = plan["rate"] * 2.0 ** (round(0.4 * math.log2(k)) + power)
    return lab.Job(f"local_s{seed}_{i}_k{k}_lr{rate:.6f}_n{updates}", [
        "--batch-tokens", batch, "--micro-batch", min(64, batch // plan["T"] // 2),
        "--lr", f"{rate:.6g}", "--lr-schedule", "linear", "--final-lr-frac", 0,
        "--warmup-tokens", moment, "--beta2", f"{lab.half_life_beta2(batch):.7g}",
        "--tokens", moment + updates * batch], branch=trunk_name(seed, i), thin=20,
        cost=updates * batch), updates


class Branches:
    """All branches of one moment at one batch. loss: {power: {updates: mean over the seeds}}."""

    def __init__(self, plan, i, k):
        self.plan, self.i, self.k = plan, i, k
        self.want = {(0, length) for length in (0, 1, 2)}
        self.loss = {}

    def at(self, target):
        """{power: updates at the crossing, or None}"""
        return {power: fit.crossing(list(own), list(own.values()), target)
                for power, own in self.loss.items()}

    def point(self, target):
        tried = {2.0 ** power: [n] for power, n in self.at(target).items()}
        return fit.best_rate(self.k * self.plan["batch"], tried) if tried else None

    def extend(self, target):
        """Adds to `want` what is still missing: a length beyond the last where nothing has crossed
        the target, then rates beyond an edge that is best."""
        at = self.at(target)
        best = min((n for n in at.values() if n), default=math.inf)
        for power, n in at.items():
            lengths = [length for p, length in self.want if p == power]
            shortest, longest = min(self.loss[power]), max(self.loss[power])
            if n or len(lengths) >= MOST_LENGTHS:
                continue
            if self.loss[power][shortest] <= target:
                self.want.add((power, min(lengths) - 1))
            elif longest < best:                             # beyond `best` this rate has lost
                self.want.add((power, max(lengths) + 1))
        point = self.point(target)
        if point and point.edge and len(at) < MOST_RATES:
            ends = [min(at) - 1] if point.lr == 2.0 ** min(at) else [max(at) + 1]
            ends = [-1, 1] if len(at) == 1 else ends
            own = [length for p, length in self.want if p == math.log2(point.lr)]
            self.want |= {(end, length) for end in ends for length in sorted(own)[-3:]}


def run(e, jobs):
    """{} if a run is missing and none is to be made."""
    return {} if e.args.so_far and not all(map(e.is_done, jobs)) else e.run(jobs)


def sweep(e, plan):
    """[Local], one a moment."""
    trunk = run(e, trunk_jobs(plan))
    anneal = {(seed, i): branch_job(plan, seed, i, 1, 0, -1)[0]
              for seed in plan["seeds"] for i in range(len(plan["moments"]))}
    ends = run(e, list(anneal.values()))
    if not trunk or not ends:
        return []
    targets = [mean([ends[anneal[seed, i].name].val for seed in plan["seeds"]]) - FALL
               for i in range(len(plan["moments"]))]
    every = [Branches(plan, i, k) for i in range(len(plan["moments"])) for k in plan["ks"]]
    made = -1
    while sum(len(b.want) for b in every) > made:
        made = sum(len(b.want) for b in every)
        jobs = {(b.i, b.k, power, length, seed): branch_job(plan, seed, b.i, b.k, power, length)
                for b in every for power, length in b.want for seed in plan["seeds"]}
        runs = run(e, list({job.name: job for job, _ in jobs.values()}.values()))
        if not runs:
            return []
        for b in every:
            for power, length in sorted(b.want):
                own = [jobs[b.i, b.k, power, length, seed] for seed in plan["seeds"]]
                b.loss.setdefault(power, {})[own[0][1]] = mean([runs[j.name].val for j, _ in own])
            b.extend(targets[b.i])
    return [local_knee(plan, trunk, every, i, target) for i, target in enumerate(targets)]


def local_knee(plan, trunk, every, i, target):
    points = [p for p in (b.point(target) for b in every if b.i == i) if p]
    parts = [run for seed in plan["seeds"] for run in [trunk[trunk_name(seed, i)]]]
    return Local(plan["moments"][i], target, mean_noise(parts), points, fit.knee(points))


def mean_noise(runs):
    """B_simple over the last quarter of these runs: averages first, since each of S and G2 is
    unbiased and their ratio is not. None where the gradient is lost in the noise."""
    late = [s for run in runs for s in run.steps[-max(1, len(run.steps) // 4):]
            if lab.number(s.get("noise_g2")) and lab.number(s.get("noise_s"))]
    g2, s = sum(x["noise_g2"] for x in late), sum(x["noise_s"] for x in late)
    return s / g2 if g2 > 0.0 else None


def mean(values):
    return sum(values) / len(values)
