"""What each experiment of the laboratory has to decide: one quantity, its prediction and tolerance,
and the seeds that measure it. No seed is added afterwards, and what else an experiment shows is an
observation. This plan (dc09e23) is older than the data of most experiments. It is younger than the
data of two, which are therefore called retrospective.

Seeds were chosen from the scatter that the second edition's tables show, so that the interval can
decide. Those that tuned a rate or made the prediction are never among them.
"""
from collections import namedtuple
from math import inf

# label: of the experiment. what: the quantity, in words. low, high: where it is predicted to lie;
# the verdict is by its 90% interval: inside, outside, or across an end (undecided). runs: what
# measures it. known: what the prediction rests on. earlier: the verdicts of the second edition, by
# other criteria. data: the commit of its runs, where these are older than the plan.
Endpoint = namedtuple("Endpoint", "label what low high runs known earlier data", defaults=("", ""))

PLAN = [
    Endpoint("01_one_step",
             "B_noise fitted to measured steps over B_noise predicted without a fit, Adam's "
             "direction, at either checkpoint", 1 / 1.5, 1.5, "64 draws of each batch",
             "the second edition's runs, which stay: 0.84 to 1.10 and 1.07 to 1.37",
             "undecided", "16064ae"),
    Endpoint("02_local",
             "updates of 256 tokens over updates of 4,096 tokens that take 119k parameters, trained "
             "on 1,048,576 tokens, down by the same 0.1 nats", 8.0, 16.0, "seeds 3 to 6",
             "the mean of seeds 1 and 2, which choose the rates: 11.5; 16 would be in proportion"),
    Endpoint("03_small_noisy",
             "validation loss with 1 sequence an update less that with 64, at a training loss of "
             "1.5 nats on repeated data (nats)", -0.02, 0.02, "seeds 2 to 6",
             "4 sequences less 64: +0.002, a seed scatters by 0.004", "undecided"),
    Endpoint("04_one_device",
             "b_half of 0.8M parameters on one core, from updates of 32 to 1,024 tokens", 0.0, 32.0,
             "9 blocks that the control keeps", "13.1 (10.1 to 16.0); a sequence has 32",
             "undecided"),
    Endpoint("05_time",
             "seconds to 1.4 nats of 0.8M parameters: 512 tokens on one core over 1,024 on two",
             1.46, 1.98, "9 blocks, seeds 11 to 19", "1.72 by the tables of experiments 2 and 4",
             "undecided"),
    Endpoint("06_bandwidth",
             "seconds to 1.7 nats over 25 Mbit/s: two data parallel workers over one", 1.0, inf,
             "seeds 2 to 4", "the second edition's runs, which stay: 7.1 (5.9 to 8.7)",
             "refuted in a quick run, then undecided", "720875b"),
    Endpoint("06_diloco",
             "final loss of DiLoCo (4 replicas, H = 20) less that of data parallel, with 512 and "
             "with 2,048 tokens a replica (nats; both intervals together hold with 90%)", 0.0, inf,
             "seeds 11 to 22, paired; both arms have the beta2 of the batch of all replicas",
             "+0.20 and +0.18 with another beta2; a pair scatters by 0.08", "undecided"),
    Endpoint("07_schedules",
             "final loss of the norm test (eta 0.5, at most 4,096 tokens) less that of a constant "
             "batch of 3,072 tokens, which makes as many updates (nats)", -inf, 0.0,
             "seeds 11 to 22, paired",
             "-0.037 (-0.073 to -0.001) by interpolation between 2,048 and 4,096",
             "as predicted"),
    Endpoint("10_replayed",
             "seconds to 1.4 nats by the virtual clock over seconds measured on two ranks, 0.8M "
             "parameters, 1,024 tokens an update", 0.9, 1.1, "the 9 blocks of experiment 5",
             "0.90 to 0.97, when the clock was the median share and not the slowest")]


def of(label):
    """The endpoint of an experiment, or None: what it shows are observations."""
    return next((end for end in PLAN if end.label == label), None)


def bounds(end):
    """Where it is predicted to lie, in words."""
    if end.low == -inf:
        return f"below {end.high:g}"
    return f"above {end.low:g}" if end.high == inf else f"{end.low:.3g} to {end.high:.3g}"


def verdict(end, found):
    """(word, why). found: [(words, value, low, high)], 90% intervals of one quantity or of several
    that must all be as predicted; words may be empty."""
    if not found:
        return "undecided", "nothing was measured"
    if any(value != value for _, *values in found for value in values):
        return "undecided", "too few runs for an interval"
    inside = [end.low <= low and high <= end.high for _, _, low, high in found]
    outside = [high < end.low or low > end.high for _, _, low, high in found]
    word = "as predicted" if all(inside) else "refuted" if any(outside) else "undecided"
    return word, "; ".join(f"{words}{': ' if words else ''}{value:.3g} ({low:.3g} to {high:.3g})"
                           for words, value, low, high in found) + f"; predicted {bounds(end)}"
