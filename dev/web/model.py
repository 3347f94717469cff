"""The model of the page's calculator: seconds, money and traffic to a target loss on n devices.

    T = S(B) t(B)        S = S_min (1 + B_crit/B)        t = t_0 + tau b + max(0, c - 4/9 tau b)

S updates of B tokens reach the loss (McCandlish et al. 2018, arXiv 1812.06162). An update takes
t seconds: each of n devices computes b = B/n tokens, tau seconds a token and t_0 whatever their
number; then the devices exchange gradients for c seconds. The exchange overlaps with up to two
thirds of the backward pass, which is two thirds of the computation: 4/9.

A model whose line t_0 + tau b was measured has 90% ranges of both.
calculator.js has the same functions, and tests/test_lab_page.py holds one against the other.
Bytes, seconds and tokens. Plain Python, no library.
"""
import math
from collections import namedtuple

import kept

HIDDEN = 4.0 / 9.0                   # of the computation, can overlap with the exchange
OVERHEAD = 5.0                       # B_crit over the batch that needs 20% more data: 1/0.2
BOUNDS = ["fit", "low", "high"]      # a fit, and the ends of its 90% range

# fewest: updates that were measured; first, last: batches. A modelled law has no such limits.
Law = namedtuple("Law", "s_min b_crit fewest first last", defaults=(0.0, 0.0, 1e30))

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
    return law._replace(s_min=law.s_min * math.exp(sum(shift) / len(shift)), b_crit=b_crit)


def law_at(targets, loss, bound="fit"):
    """The law at a loss: a straight line between neighbouring targets, in logarithms; its batches
    are those of both. targets: [{"loss", "fit", "low", "high", "seen"}], the highest loss first;
    seen: the fewest updates, the first and the last batch that were measured. No extrapolation."""
    if len(targets) == 1:
        return Law(*targets[0][bound], *targets[0].get("seen", ()))
    if not targets[-1]["loss"] <= loss <= targets[0]["loss"]:
        raise ValueError(f"loss {loss} lies outside of the targets that were measured")
    i = next(i for i in range(1, len(targets)) if loss >= targets[i]["loss"])
    high, low = targets[i - 1], targets[i]
    share = math.log(loss / high["loss"]) / math.log(low["loss"] / high["loss"])
    def between(a, b):
        return a * (b / a) ** share
    law = Law(*map(between, high[bound], low[bound]))
    if "seen" not in high:
        return law
    (few, *batches), (fewer, *others) = high["seen"], low["seen"]
    return law._replace(fewest=between(few, fewer), first=max(batches[0], others[0]),
                        last=min(batches[1], others[1]))


def updates(law, batch):
    """Never fewer than were measured."""
    return max(law.fewest, law.s_min * (1.0 + law.b_crit / batch))


def clamp(law, batch, unit):
    """The multiple of `unit` next to a batch among those measured. Where one unit is larger than
    all of them, a batch is one unit."""
    first, last = math.ceil(law.first / unit) * unit, law.last // unit * unit
    return max(unit, min(max(batch, first), last))


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


def costs_of(model, scenario, bound="fit"):
    """The optimizer's pass over the parameters is part of t_0; ZeRO divides it over the devices.
    Each message of an update has its latency: a bucket of gradients for each layer and two more,
    then loss and norm."""
    shared, net = scenario.n if scenario.stage >= 1 else 1, scenario.network
    net = net._replace(near_latency=model["messages"] * net.near_latency,
                       far_latency=model["messages"] * net.far_latency)
    t_0, tau = model["line"][bound]
    ways = exchange_ways(exchanged_bytes(model, scenario.stage), scenario.n, net)
    return Costs(t_0 + model["optimizer_seconds"] / shared, tau, min(ways.values()))


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
    if law.fewest > law.s_min:                               # beyond it no fewer updates were seen
        at = min(at, law.b_crit / (law.fewest / law.s_min - 1.0))
    below = max(1, math.floor(at / unit)) * unit
    return min((clamp(law, batch, unit) for batch in (below, below + unit)),
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
    """Everything that the page shows. low and high: over the ranges of B_crit, t_0 and tau, at this
    batch. edges: what would lie beyond the measured batches or updates, and stays on their edge."""
    n, overlap = scenario.n, scenario.overlap
    laws = [law_at(model["targets"], scenario.loss, bound) for bound in BOUNDS]
    costs = [costs_of(model, scenario, bound) for bound in BOUNDS]
    free = Law(*laws[0][:2])
    wanted = scenario.batch or best_batch(free, costs[0], n, model["seq_len"], overlap)
    if scenario.batch:
        scenario = scenario._replace(batch=clamp(laws[0], wanted, n * model["seq_len"]))
    batch = scenario.batch or best_batch(laws[0], costs[0], n, model["seq_len"], overlap)
    seconds = [target_seconds(law, cost, batch, n, overlap) for law in laws for cost in costs]
    made = [updates(law, batch) for law in laws]
    steps = [step_seconds(cost, batch / n, overlap) for cost in costs]
    sent = 2.0 * exchanged_bytes(model, scenario.stage) * (n - 1) / n
    return {"seconds": seconds[0], "low": min(seconds), "high": max(seconds),
            "cost": n * seconds[0] * scenario.price / 3600.0,
            "device_hours": n * seconds[0] / 3600.0, "batch": batch,
            "updates": made[0], "updates_low": min(made), "updates_high": max(made),
            "tokens": made[0] * batch, "b_crit": laws[0].b_crit,
            "step": steps[0], "step_low": min(steps), "step_high": max(steps),
            "exchange": costs[0].c, "exposed": exposed_seconds(costs[0], batch / n, overlap),
            "bytes": made[0] * sent, "memory": memory_bytes(model, n, scenario.stage),
            "walls": walls(model, laws[0], costs[0], batch, scenario),
            "edges": [name for name, at_edge in [
                ("batch", batch != wanted or batch > laws[0].last),
                ("updates", made[0] > updates(free, batch))] if at_edge]}


# ---------------------------------------------------------------- the data

def measured_model(raw):
    """A model whose law was fitted to runs: the ends of the range of B_crit become laws, too."""
    targets = []
    for t in sorted(raw["targets"], key=lambda t: -t["loss"]):
        law = Law(t["s_min"], t["b_crit"])
        targets.append({"loss": t["loss"], "fit": list(law[:2]), "seen": [
            t["fewest"], min(t["batches"]), max(t["batches"])]})
        for name, b_crit in zip(("low", "high"), t["b_crit_range"]):
            targets[-1][name] = list(profile(law, b_crit, t["batches"])[:2])
    return dict(raw, optimizer_seconds=0.0, targets=targets)


def kept_targets(size):
    """The laws of updates that experiment 2 fitted for a size, and what was measured for each."""
    points = {}
    for p in kept.table("02_knee", "points"):
        if (p["size"], p["reading"]) == (size, "weights"):
            points.setdefault(p["target_nats"], []).append(p)
    return [{"loss": fit["target_nats"], "s_min": fit["s_min"], "b_crit": fit["b_crit"],
             "b_crit_range": [fit["b_crit_low"], fit["b_crit_high"]],
             "batches": [p["batch_tokens"] for p in points[fit["target_nats"]]],
             "fewest": min(p["updates_median"] for p in points[fit["target_nats"]])}
            for fit in kept.table("02_knee", "fit")
            if (fit["size"], fit["reading"]) == (size, "weights") and not fit["refused"]]


def kept_models(common):
    """A model for each size of which experiment 2 fitted the law of updates and experiment 4 the
    seconds of an update on one core. common: what holds for all of them."""
    found = []
    for line in (kept.read("04_one_device", "fit.json") or {"fits": []})["fits"]:
        targets, link = kept_targets(line["model"]), link_controls(line["model"])
        if line["threads"] == 1 and targets:
            ends = [[line[name], *line["intervals"][name]] for name in ("t_0", "tau")]
            exchange = common["from"]["exchange"] + (common["link"] if link else "")
            found.append(measured_model(dict(
                common, name=f"{line['model']} parameters, one core a device (measured)",
                parameters=line["parameters"], seq_len=line["seq_len"], targets=targets,
                activation_bytes=common["activation_bytes"][line["model"]],
                messages=common["messages"][line["model"]],
                line=dict(zip(BOUNDS, zip(*ends))),
                controls=dict(common["controls"], **link),
                **{"from": dict(common["from"], exchange=exchange)})))
    return found


def position(value, least, last):
    """Of a logarithmic slider, next to a value; calculator.js reads it as least * 10^(k/20)."""
    return min(last, max(0, round(20 * math.log10(max(value, least) / least))))


def link_controls(size):
    """The sliders at the all-reduce between two ranks that experiment 5 measured, alpha seconds and
    beta seconds a byte: by the ring's formula beta is 1/bandwidth and alpha two latencies."""
    for link in (kept.read("05_time", "fit.json") or {"models": []})["models"]:
        if link["model"] == size and link["beta"]:
            speed = position(1.0 / link["beta"], 1e6, 120)
            latency = position(link["alpha"] / 2.0, 1e-7, 100)
            return {"near": speed, "far": speed, "near-latency": latency, "far-latency": latency}
    return {}


def planned_model(raw, gpu):
    """A model of which nothing was measured. E_min = 20 tokens a parameter (Hoffmann et al. 2022);
    B_crit from 22.91 D^0.47 sequences of 512, D in millions of tokens (Zhang et al. 2024), where a
    batch needs 20% more data. By our law it needs B/B_crit more data, so that is B_crit / 5."""
    tokens = 20.0 * raw["parameters"]
    b_crit = OVERHEAD * 512 * 22.91 * (tokens / 1e6) ** 0.47
    law, line = [tokens / b_crit, b_crit], [0.0, raw["flops_per_token"]
                                            / (gpu["peak_flops"] * gpu["mfu"])]
    return dict(raw, line=dict.fromkeys(BOUNDS, line),
                optimizer_seconds=raw["parameters"] * gpu["optimizer_bytes"] / gpu["memory_speed"],
                grad_bytes=gpu["grad_bytes"], param_bytes=gpu["param_bytes"],
                state_bytes=gpu["state_bytes"], memory=gpu["memory"], controls=gpu["controls"],
                targets=[dict(dict.fromkeys(BOUNDS, law), loss=None)],
                **{"from": gpu["from"]})


def read_models():
    """Models for the calculator: measured ones, then planned ones."""
    results = kept.read("", "results.json")
    return kept_models(results["measured"]) + [planned_model(raw, results["gpu"])
                                               for raw in results["planned"]]
