"""Tensor against data parallelism over slow links: seconds of an update of two ranks, measured
between two network namespaces (link.sh). Experiment 6 calls measure() and say().

Data parallelism sends all gradients, however small the batch; tensor parallelism sends activations
of every layer, in proportion to the batch. An update sends the same at

    4L+2 sums of (B,T,C) = P parameters:   B T = P / ((4L+2) C), about 3 C tokens

so a slow link suits tensor parallelism only below that batch. Nothing hides its sums, so it loses
from a somewhat smaller batch on.
"""
import math
import os

import _path
import lab

RANKS = 2
LINK = os.path.join("scripts", "lab", "shared", "link.sh")
METHODS = {"data": ["--zero", 0], "tensor": ["--tensor-parallel", RANKS]}


class Plan:
    """Sizes: layers, channels, T, tokens of an update; seconds that a run should take."""

    def __init__(self, e):
        self.layers, self.channels, self.T = e.pick((2, 64, 32), (4, 128, 64), (4, 128, 64))
        self.batches = e.pick(tiny=[64, 128], quick=[128, 512], full=[128, 512, 2048])
        self.seconds = e.pick(tiny=0.2, quick=1.2, full=10.0)

    def parameters(self):
        return (257 + self.T + 2) * self.channels + self.layers * (12 * self.channels + 13) \
            * self.channels

    def even(self):
        """The batch at which both send the same."""
        return self.parameters() / ((4 * self.layers + 2) * self.channels)

    def steps(self, batch, rate):
        """Updates of a run, from what one should take: a measured time would change the command,
        and a finished run would not be found again. Three are a warm-up."""
        seconds = batch * 6.0 * self.parameters() / 2e10
        if rate:
            seconds += 8.0 * 4 * max(self.parameters(), batch / self.even() * self.parameters()) \
                / (1e6 * rate)
        return 3 + max(3, min(60, math.ceil(self.seconds / seconds)))


def job(e, plan, method, batch, rate):
    """A group of all ranks takes the whole batch; each of two workers takes half."""
    micro = batch // plan.T // (1 if method == "tensor" else RANKS)
    return lab.Job(f"link_{method}_{batch}_{rate or 'unlimited'}", [
        f"{rate}mbit" if rate else "none", lab.MPI_TRAINER, "--data", e.corpus(10 ** 6),
        "--layers", plan.layers, "--heads", 2, "--channels", plan.channels, "--seq-len", plan.T,
        "--micro-batch", micro, "--batch-tokens", batch, "--seed", 1, *METHODS[method], "--steps",
        plan.steps(batch, rate), "--eval-every", 0, "--eval-tokens", plan.T],
        program=LINK, alone=True, cost=plan.seconds)


def measure(e, rates):
    """Runs and writes tensor_links.csv. rates: Mbit/s."""
    plan = Plan(e)
    jobs = {(method, batch, rate): job(e, plan, method, batch, rate) for method in METHODS
            for batch in plan.batches for rate in [*rates, None]}
    runs = e.run(list(jobs.values()))
    e.csv("tensor_links", ["method", "batch_tokens", "mbit_s", "measured_seconds", "bytes_sent"],
          [[*which, *(runs[j.name].median(field) for field in ("seconds", "bytes_sent"))]
           for which, j in jobs.items()])


def say(e, rows):
    """What the rows of tensor_links.csv show."""
    seconds = {(row["method"], row["batch_tokens"], row["mbit_s"]): row["measured_seconds"]
               for row in rows}
    for rate in dict.fromkeys(row["mbit_s"] for row in rows):
        e.say("An update of two ranks, tensor parallel over data parallel, "
              f"{f'over {rate:,.0f} Mbit/s' if rate else 'without a limit'}: " + ", ".join(
                  f"{seconds['tensor', batch, rate] / seconds['data', batch, rate]:.2f} times with "
                  f"{batch:,.0f} tokens" for batch in dict.fromkeys(
                      row["batch_tokens"] for row in rows)) + ".")
    if rows:
        e.say(f"Both send the same at {Plan(e).even():.0f} tokens, about 3 C.")
