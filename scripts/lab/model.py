"""The model of the page's calculator: seconds, money and traffic to a target loss on n devices.

    T = S(B) t(B)        S = S_min (1 + B_crit/B)        t = t_0 + tau b + max(0, c - 4/9 tau b)

S updates of B tokens reach the loss (McCandlish et al. 2018, arXiv 1812.06162). An update takes
t seconds: each of n devices computes b = B/n tokens, tau seconds a token and t_0 whatever their
number; then the devices exchange gradients for c seconds. The exchange overlaps with up to two
thirds of the backward pass, which is two thirds of the computation: 4/9.

calculator.js has the same functions, and tests/test_lab_page.py holds one against the other.
Bytes, seconds and tokens. Plain Python, no library.
"""
import json
import math
import os
from collections import namedtuple

HIDDEN = 4.0 / 9.0                   # of the computation, can overlap with the exchange
OVERHEAD = 5.0                       # B_crit over the batch that needs 20% more data: 1/0.2

Law = namedtuple("Law", "s_min b_crit")

# Bandwidths are a device's, in bytes a second; latencies are seconds a message.
Network = namedtuple("Network", "near far near_latency far_latency per_machine")

# batch: tokens of an update, or None for the best. price: of a device for an hour.
Scenario = namedtuple("Scenario", "loss n batch network price stage overlap")

# Seconds: t_0 of an update, tau of a token, c of an exchange.
Costs = namedtuple("Costs", "t_0 tau c")


# ---------------------------------------------------------------- updates

def profile(law, b_crit, batches):
    """The law with another B_crit that fits the same points best: S_min by least squares of the
    logarithms at these batches, as fit.least_squares has it."""
    shift = [math.log1p(law.b_crit / b) - math.log1p(b_crit / b) for b in batches]
    return Law(law.s_min * math.exp(sum(shift) / len(shift)), b_crit)


def law_at(targets, loss, bound="fit"):
    """The law at a loss: a straight line between neighbouring targets, in logarithms of all three.
    targets: [{"loss", "fit", "low", "high"}], the highest loss first; no extrapolation."""
    if len(targets) == 1:
        return Law(*targets[0][bound])
    if not targets[-1]["loss"] <= loss <= targets[0]["loss"]:
        raise ValueError(f"loss {loss} lies outside of the targets that were measured")
    i = next(i for i in range(1, len(targets)) if loss >= targets[i]["loss"])
    high, low = targets[i - 1], targets[i]
    share = math.log(loss / high["loss"]) / math.log(low["loss"] / high["loss"])
    return Law(*(a * (b / a) ** share for a, b in zip(high[bound], low[bound])))


def updates(law, batch):
    return law.s_min * (1.0 + law.b_crit / batch)


# ---------------------------------------------------------------- seconds of an update

def exchange_ways(size, n, net):
    """{way: seconds} of an all-reduce of `size` bytes, as plan_way_seconds in dev/train/plan.h. Two
    levels need equally many devices on each machine."""
    if n <= 1:
        return {"none": 0.0}
    near = min(net.per_machine, n)
    machines = n / near
    between = net.far_latency if machines > 1 else 0.0
    slowest = max(1.0 / net.near, 1.0 / net.far / near if machines > 1 else 0.0)
    ways = {"ring": 2.0 * size * (n - 1) / n * slowest
                    + 2.0 * (n - 1) * max(net.near_latency, between),
            "tree": 2.0 * size * slowest + 2.0 * (math.ceil(math.log2(near)) * net.near_latency
                                                  + math.ceil(math.log2(machines)) * between)}
    if machines > 1 and n % near == 0:
        ways["two levels"] = (2.0 * size * (near - 1) / near / net.near
                              + 2.0 * (near - 1) * net.near_latency
                              + 2.0 * size * (machines - 1) / n / net.far
                              + 2.0 * (machines - 1) * net.far_latency)
    return ways


def exchanged_bytes(model, stage):
    """What an all-reduce would carry to send as much as one update at a ZeRO stage: stage 0 sums
    gradients, 1 and 2 scatter their sum and gather parameters, 3 gathers these twice."""
    gradients, params = model["grad_bytes"], model["param_bytes"]
    sent = [2 * gradients, gradients + params, gradients + params, gradients + 2 * params][stage]
    return model["parameters"] * sent / 2.0


def costs_of(model, scenario):
    """The optimizer's pass over the parameters is part of t_0; ZeRO divides it over the devices."""
    shared = scenario.n if scenario.stage >= 1 else 1
    size = exchanged_bytes(model, scenario.stage)
    return Costs(model["t_0"] + model["optimizer_seconds"] / shared, model["tau"],
                 min(exchange_ways(size, scenario.n, scenario.network).values()))


def exposed_seconds(costs, b, overlap):
    return max(0.0, costs.c - (HIDDEN * costs.tau * b if overlap else 0.0))


def step_seconds(costs, b, overlap):
    return costs.t_0 + costs.tau * b + exposed_seconds(costs, b, overlap)


def target_seconds(law, costs, batch, n, overlap):
    return updates(law, batch) * step_seconds(costs, batch / n, overlap)


# ---------------------------------------------------------------- the best batch

def best_batch(law, costs, n, seq_len, overlap):
    """The multiple of n sequences with the least time. (1 + B_crit/B)(f + k B/n) is least at
    sqrt(B_crit n f/k). With overlap the time is the larger of two such functions, one with the
    exchange exposed and one with it hidden; both are convex, so no other minimum exists."""
    def least(fixed, per_token):
        return math.sqrt(law.b_crit * n * fixed / per_token)
    if overlap:
        turn = costs.c * n / (HIDDEN * costs.tau)            # from this batch on it is hidden
        exposed = least(costs.t_0 + costs.c, (1.0 - HIDDEN) * costs.tau)
        at = exposed if exposed < turn else max(turn, least(costs.t_0, costs.tau))
    else:
        at = least(costs.t_0 + costs.c, costs.tau)
    unit = n * seq_len
    below = max(1, math.floor(at / unit)) * unit
    return min((below, below + unit),
               key=lambda batch: target_seconds(law, costs, batch, n, overlap))


# ---------------------------------------------------------------- memory, and which wall binds

def memory_bytes(model, n, stage):
    """Bytes of a device with one sequence at a time (gradient accumulation does the rest): weights,
    gradients and optimizer state, sharded as in ZeRO (Rajbhandari et al. 2020), and activations."""
    weights, gradients, state = model["state_bytes"]
    return model["activation_bytes"] * model["seq_len"] + model["parameters"] * (
        weights / (n if stage >= 3 else 1) + gradients / (n if stage >= 2 else 1)
        + state / (n if stage >= 1 else 1))


def falls(model, law, costs, batch, scenario):
    """{wall: how far T falls if it is halved}, as a share of T: the excess of S over S_min, tau,
    t_0 and c. The best batch is chosen anew; a given batch stays."""
    def seconds(other_law, other):
        chosen = scenario.batch or best_batch(other_law, other, scenario.n, model["seq_len"],
                                              scenario.overlap)
        return target_seconds(other_law, other, chosen, scenario.n, scenario.overlap)
    now = target_seconds(law, costs, batch, scenario.n, scenario.overlap)
    halved = {"noise": (law._replace(b_crit=law.b_crit / 2), costs),
              "compute": (law, costs._replace(tau=costs.tau / 2)),
              "overhead": (law, costs._replace(t_0=costs.t_0 / 2)),
              "network": (law, costs._replace(c=costs.c / 2))}
    return {name: 1.0 - seconds(*other) / now for name, other in halved.items()}


def walls(model, law, costs, batch, scenario):
    """Names of what limits the speed; two if they are within 10% of each other."""
    if model["memory"] and memory_bytes(model, scenario.n, scenario.stage) > model["memory"]:
        return ["memory"]
    if law.b_crit <= 0.1 * batch and batch <= scenario.n * model["seq_len"]:
        return ["serial"]
    found = falls(model, law, costs, batch, scenario)
    first, second = sorted(found, key=found.get, reverse=True)[:2]
    return [first, second] if found[second] >= 0.9 * found[first] else [first]


# ---------------------------------------------------------------- all of it

def answer(model, scenario):
    """Everything that the page shows. low and high: of T, over the range of B_crit at this
    batch."""
    n = scenario.n
    law, costs = law_at(model["targets"], scenario.loss), costs_of(model, scenario)
    batch = scenario.batch or best_batch(law, costs, n, model["seq_len"], scenario.overlap)
    seconds = target_seconds(law, costs, batch, n, scenario.overlap)
    bounds = [target_seconds(law_at(model["targets"], scenario.loss, bound), costs, batch, n,
                             scenario.overlap) for bound in ("fit", "low", "high")]
    size = exchanged_bytes(model, scenario.stage)
    return {"seconds": seconds, "low": min(bounds), "high": max(bounds),
            "cost": n * seconds * scenario.price / 3600.0, "device_hours": n * seconds / 3600.0,
            "batch": batch, "updates": updates(law, batch), "tokens": updates(law, batch) * batch,
            "step": step_seconds(costs, batch / n, scenario.overlap), "exchange": costs.c,
            "exposed": exposed_seconds(costs, batch / n, scenario.overlap),
            "bytes": updates(law, batch) * 2.0 * size * (n - 1) / n,
            "memory": memory_bytes(model, n, scenario.stage), "b_crit": law.b_crit,
            "walls": walls(model, law, costs, batch, scenario)}


# ---------------------------------------------------------------- the data

def measured_model(raw):
    """A model whose law was fitted to runs: the ends of the range of B_crit become laws, too."""
    targets = []
    for t in sorted(raw["targets"], key=lambda t: -t["loss"]):
        law = Law(t["s_min"], t["b_crit"])
        targets.append({"loss": t["loss"], "fit": list(law)})
        for name, b_crit in zip(("low", "high"), t["b_crit_range"]):
            targets[-1][name] = list(profile(law, b_crit, t["batches"]))
    return dict(raw, tau=1.0 / raw["tokens_per_second"], optimizer_seconds=0.0, targets=targets)


def planned_model(raw, gpu):
    """A model of which nothing was measured. E_min = 20 tokens a parameter (Hoffmann et al. 2022);
    B_crit from 22.91 D^0.47 sequences of 512, D in millions of tokens (Zhang et al. 2024), where a
    batch needs 20% more data. By our law it needs B/B_crit more data, so that is B_crit / 5."""
    tokens = 20.0 * raw["parameters"]
    b_crit = OVERHEAD * 512 * 22.91 * (tokens / 1e6) ** 0.47
    law = [tokens / b_crit, b_crit]
    return dict(raw, tau=raw["flops_per_token"] / (gpu["peak_flops"] * gpu["mfu"]), t_0=0.0,
                optimizer_seconds=raw["parameters"] * gpu["optimizer_bytes"] / gpu["memory_speed"],
                grad_bytes=gpu["grad_bytes"], param_bytes=gpu["param_bytes"],
                state_bytes=gpu["state_bytes"], memory=gpu["memory"], controls=gpu["controls"],
                targets=[{"loss": None, "fit": law, "low": law, "high": law}],
                **{"from": gpu["from"]})


def read_results(path=os.path.join(os.path.dirname(os.path.abspath(__file__)), "results",
                                   "results.json")):
    """(results as committed, models for the calculator)"""
    with open(path, encoding="utf-8") as f:
        results = json.load(f)
    models = [measured_model(raw) for raw in results["measured"]]
    return results, models + [planned_model(raw, results["gpu"]) for raw in results["planned"]]
