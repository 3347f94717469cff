#!/usr/bin/env python3
"""Experiment 7: a batch that grows during training against a constant one, after as many tokens
*and* as many updates. The norm test enlarges the batch when the gradient is noisy (Lau et al. 2024,
arXiv 2412.21124); a linear ramp does so by the clock.

    scripts/lab/experiments/07_schedules.py --quick
"""
import math

import _path
import lab
import paired
from paired import mean, rate

ETA, SMALL, CAP, T = 0.5, 512, 4096, 32          # tokens, tokens, sequences' tokens
PART = 4                                         # sequences: what the norm test compares
UNIT = PART * T                                  # tokens: batches are multiples of it
PLANNED = 3072                                   # tokens: makes as many updates as eta 0.5


class Course(lab.Tuned):
    """One schedule. flags: of its batch; micro: sequences; k, grid: rates to try; seeds: reported
    ones."""

    def __init__(self, e, name, label, flags, micro, k, grid, seeds):
        self.e, self.name, self.label, self.flags, self.micro = e, name, label, flags, micro
        super().__init__(self.make, {None: k}, {
            "first": 1, "also": e.pick([], [], [5]), "grid": grid, "seeds": list(seeds),
            "extend": e.pick(None, (-2, 6), (-2, 6)) if len(grid) > 1 else None})
        if len(grid) == 1:                       # the rate is known: no run chooses it
            self.plan["first"], *self.plan["also"] = seeds

    def make(self, _, k, seed):
        e = self.e
        return lab.Job(f"{self.name}_lr{rate(k):g}_s{seed}", [
            "--data", e.corpus(e.tokens), *e.model(), "--micro-batch", self.micro, *self.flags,
            "--lr", f"{rate(k):.9g}", "--tokens", e.tokens, "--lr-schedule", "wsd",
            "--warmup-tokens", e.tokens // 40, "--seed", seed, "--eval-every", 0,
            "--eval-tokens", e.eval_tokens], thin=300)

    def updates(self):
        return mean([run.end["step"] for run in self.chosen()])

    def batch_at(self, share):
        """Tokens of an update after that share of the run: mean over seeds."""
        return mean([next((s["batch_tokens"] for s in run.steps
                           if s["tokens"] >= share * self.e.tokens), run.steps[-1]["batch_tokens"])
                     for run in self.chosen()])


def constant(e, batch, seeds):
    whole = next(n for n in range(16, 0, -1) if batch // T % n == 0)
    return Course(e, f"constant{batch}", f"constant {batch:,}",
                  ["--batch-tokens", batch, "--beta2", beta2(batch)], whole, e.pick(3, 2, 3),
                  e.pick([0, 1], [0, 1], [-1, 0, 1]), seeds)


def growing(e, name, label, schedule, seeds, at=SMALL):
    """Its rate is for all batches alike; that of the full run is known from an earlier sweep. at:
    the batch that --beta2 is for."""
    return Course(e, name, label, ["--batch-tokens", at, "--batch-schedule", schedule, "--beta2",
                                   beta2(at)], PART, e.pick(4, 2, 4), e.pick([0], [0, 1], [0]),
                  seeds)


def beta2(batch):
    return f"{lab.half_life_beta2(batch):.9g}"


def compare(e, course, batch=None):
    """With a constant batch that makes as many updates, or the planned one."""
    lab.tune(e, [course])
    batch = batch or round(e.tokens / course.updates() / UNIT) * UNIT
    other = constant(e, batch, course.plan["seeds"])
    lab.tune(e, [other])
    return paired.Pair(f"{course.label}\nless {other.label}", course, other)


# ---------------------------------------------------------------- tables and words

def write(e, pairs):
    for name, chose in [("rates", True), ("pairs", False)]:
        e.csv(name, ["compared", "batch", "lr", "seed", "updates", "val_loss"],
              [[pair.one.label, arm.label, rate(k), seed, run.end.get("step"), run.val]
               for pair in pairs for arm in (pair.one, pair.other)
               if not chose or len(arm.grid) > 1 for k, seed, run in paired.rows(arm, chose)])


def told(course):
    return (f"{mean(course.losses()):.4f} after {course.updates():,.0f} updates, rate "
            f"{rate(course.best()[1]):g}")


def report(e, pairs):
    for pair in pairs:
        one, other = pair.one, pair.other
        e.say(f"{one.label} less {other.label} tokens: {pair.text()}; {told(one)} against "
              f"{told(other)}.")
    e.say("Mean batch before the rate decays, and at the end: " + "; ".join(
        f"{p.one.label} {p.one.batch_at(0.8):,.0f}, {p.one.batch_at(1.0):,.0f} tokens"
        for p in pairs) + ".")
    if edge := paired.edges(pairs, lambda course: course.label):
        e.say(edge)


def settings(e):
    e.tokens = e.pick(2 ** 16, 2 ** 19, 2 ** 22)
    e.eval_tokens = e.pick(8192, 131072, 262144)
    e.setting(f"2 layers, 32 channels, T={T}, {e.tokens:,} tokens of fresh tales for each run. "
              "AdamW; β2 keeps the second moment's half-life in tokens. The rate is constant after "
              "a warm-up of a fortieth of the tokens and decays to a tenth over the last fifth.")
    e.setting(f"Norm test: η = {ETA}, from {SMALL} tokens an update; gradients of {PART} "
              "sequences, averages over about 50 updates, none before the warm-up's end, 50 "
              "updates between raises, at most doubling.")
    known = f" A growing batch keeps the rate that an earlier sweep chose, {rate(4):g}."
    e.setting("Rates are a factor of 2 apart, chosen with "
              f"{'seeds 1 and 5' if e.size == 'full' else 'seed 1'}."
              + e.pick(known, "", known))


def main():
    e = lab.Experiment(
        7, "schedules", title="A growing batch against a constant one",
        question="Does a batch that grows during training end at a lower loss than a constant "
                 "batch, after as many tokens and as many updates?",
        prediction="B_crit grows as the loss falls. A batch that grows with it wastes fewer tokens "
                   "early and fewer updates late. So the norm test ends lower than a constant "
                   "batch that makes as many updates.")
    settings(e)
    seeds = list(paired.SEEDS)[:e.pick(2, 4, None)]
    def to(cap):
        return growing(e, f"adaptive{ETA:g}_{cap}", f"norm test to {cap:,}",
                       f"adaptive:{ETA},{SMALL},{cap}", seeds if cap == CAP else seeds[:4])
    pairs = [compare(e, to(CAP), e.pick(None, None, PLANNED))]
    if e.size == "full":
        pairs.append(compare(e, to(4 * CAP)))
    pairs.append(compare(e, growing(e, "linear", f"linear ramp to {CAP:,}",
                                    f"linear:{SMALL},{e.tokens}", seeds[:4], at=CAP)))
    write(e, pairs)
    report(e, pairs)
    e.figure("schedules", lambda plt: paired.draw(
        plt, pairs, f"{pairs[0].below()} seeds end lower when the norm test enlarges the batch\n"
        f"than with a {pairs[0].other.label} tokens, after as many tokens and updates",
        "final loss, growing less constant batch (nats)", "constant\nbatch"),
        alt="Final loss with a growing batch less that with a constant one: a point for each "
            "seed, in a group for each schedule, with the mean and its interval.",
        caption=f"{e.tokens:,} tokens a run. Each point is one seed's difference; intervals of "
                "90%. With as many devices as its batch keeps busy, a run's time is its number "
                "of updates.")
    e.decide([("", *pairs[0].found()[1:])])
    e.close()


if __name__ == "__main__":
    main()
