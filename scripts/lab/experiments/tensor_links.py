"""Tensor against data parallelism over slow links: seconds of an update of two ranks, measured
between two network namespaces (link.sh), beside --plan's. Experiment 6 calls measure().

Data parallelism sends all gradients, however small the batch; tensor parallelism sends activations
of every layer, in proportion to the batch. An update sends the same at

    4L+2 sums of (B,T,C) = P parameters:   B T = P / ((4L+2) C), about 3 C tokens

so a slow link suits tensor parallelism only below that batch. Nothing hides its sums, so it loses
from a somewhat smaller batch on.
"""
import json
import math
import os
import subprocess
from collections import namedtuple

import _path
import lab

RANKS = 2
LINK = os.path.join("scripts", "lab", "shared", "link.sh")
BENCH = os.path.join("build", "bench_comm")
TRAINER = "train_gpt2"                           # links join CPU ranks, whatever e.args.trainer is
PAYLOAD = 1448.0 / 1514.0                        # share of an Ethernet frame that is TCP payload
NEAR = 0.2                                       # a plan is good if it is this close
NOMINAL = {"alpha": 100e-6, "beta": 1e-9}        # of an all-reduce, where none can be measured

Method = namedtuple("Method", "name label flags ranks_a_worker")
METHODS = [Method("data", "data parallel", (), 1),
           Method("tensor", "tensor parallel", ("--tensor-parallel", RANKS), RANKS)]

# Of a method at a batch (tokens) and a rate (Mbit/s, None: unlimited): planned and measured seconds
# of an update (None: not measured), and bytes that a rank sends in it.
Point = namedtuple("Point", "method batch rate planned measured sent")


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


def flags(e, plan, method, batch):
    """A group of all ranks takes the whole batch; each of two workers takes half."""
    micro = batch // plan.T // (RANKS // method.ranks_a_worker)
    return ["--data", e.corpus(10 ** 6), "--layers", plan.layers, "--heads", 2, "--channels",
            plan.channels, "--seq-len", plan.T, "--micro-batch", micro, "--batch-tokens", batch,
            "--seed", 1, *method.flags]


def job(e, plan, method, batch, rate):
    return lab.Job(f"link_{method.name}_{batch}_{rate or 'unlimited'}", [
        f"{rate}mbit" if rate else "none", lab.MPI_TRAINER, *flags(e, plan, method, batch),
        "--steps", plan.steps(batch, rate), "--eval-every", 0, "--eval-tokens", plan.T],
        program=LINK, alone=True, cost=plan.seconds)


def alone_job(e, plan, batch):
    """One rank with the micro-batch that each of two workers has."""
    return lab.Job(f"link_alone_{batch}", [
        *flags(e, plan, METHODS[0], batch)[:-4], "--batch-tokens", batch // RANKS, "--seed", 1,
        "--steps", plan.steps(batch, None), "--eval-every", 0, "--eval-tokens", plan.T],
        program=TRAINER, alone=True, cost=plan.seconds)


# ---------------------------------------------------------------- what a plan needs

def measure_link(e, why):
    """{"alpha", "beta"} of an all-reduce over the unlimited link (dev/cpu/bench_comm.c); kept
    beside the runs. Where `why` there is no link, a nominal one."""
    path = os.path.join(e.dir, "runs", "link.json")
    if why:
        return NOMINAL
    if not os.path.exists(path):
        if e.args.redraw:
            lab.fail(f"--redraw: {path} is missing; run without --redraw first")
        made = lab.output_of("make", "-s", BENCH) + lab.output_of(LINK, "none", BENCH)
        try:
            record = json.loads(lab.last_line(made))
        except ValueError:
            lab.fail(f"{LINK} none {BENCH}: it measured no link; is MPI installed?")
        lab.write_json(path, record)
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def link_text(link, rate):
    """LINK of --plan-gpu: the rate's payload in turn with what the unlimited link and the copies
    take. With two ranks an all-reduce sends half of the buffer twice: beta is 1/bandwidth."""
    beta = link["beta"] + (8.0 / (PAYLOAD * 1e6 * rate) if rate else 0.0)
    return f"{1e-6 / beta:.6g}MB/s+{0.5e6 * link['alpha']:.6g}us"


def planned(e, plan, method, batch, link, alone):
    """Seconds of an update by --plan, at the speed of the run alone. ZeRO 1 and tensor parallelism
    both leave a rank half of the optimizer's work."""
    path = os.path.join(e.dir, "runs", "plan.jsonl")
    own = alone.median("seconds_compute")
    if os.path.exists(path):
        os.remove(path)
    def run(gpu):
        command = [os.path.join(".", TRAINER), *map(str, flags(e, plan, method, batch)), "--plan",
                   "--plan-gpu", gpu, "--log", path]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              check=False)
        if done.returncode:
            lab.fail(lab.last_line(done.stdout.decode("utf-8", "replace")))
        return list(lab.read_log(path))[-1]
    flops = run(f"here@1,{RANKS}")["flops_per_token"]
    speed = 1e-12 * flops * (batch // RANKS) / own
    return run(f"here@{speed:.9g},{RANKS},{link}")["seconds_per_step"] \
        + alone.median("seconds_optimizer") / RANKS


def points(e, plan, rates, why):
    """All points. One rank alone gives the speed, bench_comm the link: no point is used to plan."""
    alone = e.run([alone_job(e, plan, batch) for batch in plan.batches])
    every = [(method, batch, rate) for method in METHODS for batch in plan.batches
             for rate in [*rates, None]]
    link = measure_link(e, why)
    runs = {} if why else e.run([job(e, plan, *one) for one in every])
    result = []
    for method, batch, rate in every:
        run = runs.get(job(e, plan, method, batch, rate).name)
        result.append(Point(method, batch, rate, planned(
            e, plan, method, batch, link_text(link, rate), alone[f"link_alone_{batch}"]),
            run and run.median("seconds"), run and run.median("bytes_sent")))
    return result


# ---------------------------------------------------------------- what comes of it

def measure(e, rates, why):
    """Runs and writes tensor_links.csv. rates: Mbit/s; `why` this machine cannot throttle a link,
    or empty."""
    e.csv("tensor_links", ["method", "batch_tokens", "mbit_s", "planned_seconds",
                           "measured_seconds", "bytes_sent"],
          [[p.method.name, p.batch, p.rate, p.planned, p.measured, p.sent]
           for p in points(e, Plan(e), rates, why)])


def say(e, rows):
    """What the rows of tensor_links.csv show."""
    if not rows:
        return
    of = {(row["batch_tokens"], row["mbit_s"]): {} for row in rows}
    for row in rows:
        of[row["batch_tokens"], row["mbit_s"]][row["method"]] = row
    kind = "measured_seconds" if rows[0]["measured_seconds"] else "planned_seconds"
    rates = list(dict.fromkeys(row["mbit_s"] for row in rows))
    for rate in rates:
        e.say("An update of two ranks, tensor parallel over data parallel, "
              f"{'over ' + format(rate, ',.0f') + ' Mbit/s' if rate else 'without a limit'}"
              f"{'' if kind == 'measured_seconds' else ', planned'}: " + ", ".join(
                  f"{pair['tensor'][kind] / pair['data'][kind]:.2f} times with {batch:,.0f} tokens"
                  for (batch, at), pair in of.items() if at == rate) + ".")
    e.say(f"Both send the same at {Plan(e).even():.0f} tokens, about 3 C.")
    if kind == "planned_seconds":
        return
    off = [row["planned_seconds"] / row["measured_seconds"] - 1.0 for row in rows]
    right = sum((pair["data"]["planned_seconds"] < pair["tensor"]["planned_seconds"])
                == (pair["data"]["measured_seconds"] < pair["tensor"]["measured_seconds"])
                for pair in of.values())
    near = sum(abs(x) <= NEAR for x in off)
    e.say(f"The planner, beside these: within {100 * NEAR:.0f}% at {near} of {len(off)} points, "
          f"{100 * max(off, key=abs):+.0f}% at its worst; it names the faster method in {right} of "
          f"{len(of)} cases.")
