#!/usr/bin/env python3
"""Experiment 6, second part: DiLoCo against data parallel, both tuned. Four replicas make H updates
each on their own, then average their weights (Douillard et al. 2023, arXiv 2311.08105, with an
outer rate of 1 and no momentum); data parallel makes every update with the batch of all four.

    scripts/lab/experiments/06_diloco.py --quick
"""
import _path
import lab
import paired
from paired import mean, rate

REPLICAS, T = 4, 32


class Arm(lab.Tuned):
    """Updates of `batch` tokens a replica. every: H, or 0 for data parallel, which one process
    runs: a split of its batch would not change what it learns."""

    def __init__(self, e, batch, every):
        self.e, self.batch, self.every = e, batch, every
        self.name = f"H = {every}" if every else "data parallel"
        super().__init__(self.make, {None: e.middle[batch]}, e.plan)

    def make(self, _, k, seed):
        e, total = self.e, REPLICAS * self.batch
        flags = ["--data", e.corpus(total * e.updates), *e.model(), "--micro-batch",
                 min(self.batch // T, 16), "--batch-tokens", total, "--steps", e.updates,
                 "--lr", f"{rate(k):.6g}", "--lr-schedule", "cosine", "--warmup-tokens",
                 total * (e.updates // 20), "--beta2", f"{lab.half_life_beta2(total):.9g}",
                 "--eval-every", 0, "--eval-tokens", e.eval_tokens, "--seed", seed]
        if self.every:
            flags += ["--outer-every", self.every, "--outer-lr", 1, "--outer-momentum", 0]
        kind = f"h{self.every}" if self.every else "parallel"
        return lab.Job(f"b{self.batch}_{kind}_lr{rate(k):g}_s{seed}", flags, thin=50,
                       ranks=REPLICAS if self.every else 1)


def settings(e):
    e.every = e.pick(tiny=5, quick=20, full=20)
    e.updates = e.pick(tiny=40, quick=200, full=1000)
    e.eval_tokens = e.pick(4096, 65536, 262144)
    # Where grids of rates begin: at data parallel's best of an earlier sweep.
    e.middle = e.pick({128: 2}, {512: 2, 2048: 3}, {512: 3, 2048: 4})
    e.plan = {"first": 1, "also": e.pick([], [], [5]), "grid": e.pick([0, 1], [-1, 0], [-1, 0, 1]),
              "extend": e.pick(None, (-2, 8), (-2, 8)),
              "seeds": list(paired.SEEDS)[:e.pick(2, 4, None)]}
    e.setting(f"2 layers, 32 channels, T={T}; {e.updates:,} updates from fresh weights, the rate "
              "decays by a cosine to a tenth. AdamW; both methods have the β2 of the batch of all "
              f"{REPLICAS} replicas, by half-life in tokens and at least 0.9.")
    e.setting(f"DiLoCo: {REPLICAS} replicas, outer rate 1 without momentum, H = {e.every}.")
    e.setting("Rates are a factor of 2 apart, chosen with "
              f"{'seeds 1 and 5' if e.plan['also'] else 'seed 1'}. Others are reported: "
              f"{e.plan['seeds'][0]} to {e.plan['seeds'][-1]}.")


def report(e, pairs):
    for pair in pairs:
        e.say(f"{pair.label}: DiLoCo less data parallel {pair.text()}, "
              f"{mean(pair.one.losses()):.3f} against {mean(pair.other.losses()):.3f}; rate "
              f"{rate(pair.one.best()[1]):g} against {rate(pair.other.best()[1]):g}.")
    e.say(f"The {len(pairs)} intervals hold together with 90%, each from its own scatter.")
    if edge := paired.edges(pairs, lambda arm: f"{arm.batch:,} tokens, {arm.name}"):
        e.say(edge)


def write(e, arms):
    for name, chose in [("rates", True), ("pairs", False)]:
        e.csv(name, ["batch_of_a_replica", "arm", "lr", "seed", "val_loss"],
              [[arm.batch, arm.name, rate(k), seed, run.val]
               for arm in arms for k, seed, run in paired.rows(arm, chose)])


def main():
    e = lab.Experiment(
        6, "diloco", title="DiLoCo against data parallel, both tuned",
        question="What does it cost in loss if replicas synchronize every H updates only?",
        prediction="After as many updates on as much data, tuned data parallel ends lower than "
                   "tuned DiLoCo, because it averages the noise of every update (Charles et al. "
                   "2025).")
    e.need_mpi()
    settings(e)
    arms = [Arm(e, batch, every) for batch in e.middle for every in (e.every, 0)]
    for batch in e.middle:                       # the short runs first
        lab.tune(e, [arm for arm in arms if arm.batch == batch])
    pairs = [paired.Pair(f"{one.batch:,} tokens a replica", one, other, together=len(e.middle))
             for one, other in zip(arms[::2], arms[1::2])]
    write(e, arms)
    report(e, pairs)
    e.figure("diloco", lambda plt: paired.draw(
        plt, pairs, "DiLoCo ends " + ", ".join(
            f"{paired.higher(pair.mean)} with {pair.label.split()[0]} tokens"
            for pair in pairs), "final loss, DiLoCo less data parallel (nats)", "data\nparallel"),
        alt="Final loss of DiLoCo less that of tuned data parallel: a point for each seed, in a "
            "group for each batch of a replica, with the mean and its interval.",
        caption=f"{e.updates:,} updates, H = {e.every}. Each point is one seed's difference. "
                "The intervals hold together with 90%.")
    e.decide([pair.found() for pair in pairs])
    e.close()


if __name__ == "__main__":
    main()
