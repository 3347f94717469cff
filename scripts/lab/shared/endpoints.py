#!/usr/bin/env python3
"""What each experiment of the laboratory has to decide: one quantity, its prediction and tolerance,
and the seeds that measure it. No seed is added afterwards, and what else an experiment shows is an
observation. Run as a program, it prints the table of what became of it, with the commits of the
plan and of the data, whose dates git tells:

    scripts/lab/shared/endpoints.py

Where the data are older than the plan, the verdict is called retrospective. Seeds were chosen from
the scatter that the second edition's tables show, so that the interval can decide. Those that tuned
a rate or made the prediction are never among them.
"""
import subprocess
from collections import namedtuple
from math import inf

import kept

PLANNED = "dc09e23"                  # the commit of most plans

# label: of the experiment. what: the quantity, in words. low, high: where it is predicted to lie;
# the verdict is by its 90% interval: inside, outside, or across an end (undecided). runs: what
# measures it. known: what the prediction rests on. earlier: the verdicts of the second edition, by
# other criteria. data: the first commit of its runs; late: whether the plan is younger than that.
# plan: the commit of its plan.
Endpoint = namedtuple("Endpoint", "label what low high runs known earlier data late plan",
                      defaults=("", "", False, PLANNED))

PLAN = [
    Endpoint("01_one_step",
             "B_noise fitted to measured steps over B_noise predicted without a fit, Adam's "
             "direction, at either checkpoint", 1 / 1.5, 1.5, "64 draws of each batch",
             "the second edition's runs, which stay: 0.84 to 1.10 and 1.07 to 1.37",
             "undecided", "16064ae", True),
    Endpoint("02_local",
             "updates of 256 tokens over updates of 4,096 tokens that take 119k parameters, "
             "trained on 1,048,576 tokens, down by the same 0.1 nats", 8.0, 16.0, "seeds 3 to 6",
             "the mean of seeds 1 and 2, which choose the rates: 11.5; 16 would be in proportion",
             "none", "4b83485"),
    Endpoint("02_size",
             "exponent of B_crit in parameters, 35k to 3.2M, after 1,048,576 tokens", -0.2, 0.1,
             "seeds 21 to 24", "two sizes each: 0.02 +- 0.11 and -0.15 +- 0.07", "none", "7951fd6",
             plan="6355702"),
    Endpoint("03_small_noisy",
             "validation loss with 1 sequence an update less that with 64, at a training loss of "
             "1.5 nats on repeated data (nats)", -0.02, 0.02, "seeds 2 to 6",
             "4 sequences less 64: +0.002, a seed scatters by 0.004", "undecided", "c230f3a"),
    Endpoint("04_one_device",
             "b_half of 0.8M parameters on one core, from updates of 32 to 1,024 tokens", 0.0, 32.0,
             "9 blocks that the control keeps", "13.1 (10.1 to 16.0); a sequence has 32",
             "undecided", "803db38"),
    Endpoint("05_time",
             "seconds to 1.4 nats of 0.8M parameters: 512 tokens on one core over 1,024 on two",
             1.46, 1.98, "9 blocks, seeds 11 to 19", "1.72 by the tables of experiments 2 and 4",
             "undecided", "514682f"),
    Endpoint("06_bandwidth",
             "seconds to 1.7 nats over 25 Mbit/s: two data parallel workers over one", 1.0, inf,
             "seeds 2 to 4", "the second edition's runs, which stay: 7.1 (5.9 to 8.7)",
             "refuted in a quick run, then undecided", "720875b", True),
    Endpoint("06_averaging",
             "final loss of periodic averaging (4 replicas, every 20 updates) less that of data "
             "parallel, with 512 and with 2,048 tokens a replica (nats; both intervals together "
             "hold with 90%)", 0.0, inf,
             "seeds 11 to 22, paired; both arms have the beta2 of the batch of all replicas",
             "+0.20 and +0.18 with another beta2; a pair scatters by 0.08", "undecided",
             "361db9b"),
    Endpoint("07_schedules",
             "final loss of the norm test (eta 0.5, at most 4,096 tokens) less that of a constant "
             "batch of 3,072 tokens, which makes as many updates (nats)", -inf, 0.0,
             "seeds 11 to 22, paired",
             "-0.037 (-0.073 to -0.001) by interpolation between 2,048 and 4,096",
             "as predicted", "e298c4c"),
    Endpoint("10_replayed",
             "seconds to 1.4 nats by the virtual clock over seconds measured on two ranks, 0.8M "
             "parameters, 1,024 tokens an update", 0.9, 1.1, "the 9 blocks of experiment 5",
             "0.90 to 0.97, when the clock was the median share and not the slowest", "none",
             "514682f")]

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
    if any(value is None or value != value for _, *values in found for value in values):
        return "undecided", "too few runs for an interval"
    inside = [end.low <= low and high <= end.high for _, _, low, high in found]
    outside = [high < end.low or low > end.high for _, _, low, high in found]
    word = "as predicted" if all(inside) else "refuted" if any(outside) else "undecided"
    return word, "; ".join(f"{words}{': ' if words else ''}{value:.3g} ({low:.3g} to {high:.3g})"
                           for words, value, low, high in found) + f"; predicted {bounds(end)}"


# ---------------------------------------------------------------- the table

def dated(commit):
    """"dc09e23 (2026-11-23 19:08)"; the commit alone where git does not have it."""
    done = subprocess.run(["git", "-C", kept.LAB, "show", "-s", "--date=format:%Y-%m-%d %H:%M",
                           "--format=%ad", commit], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, check=False)
    when = done.stdout.decode().strip()
    return f"{commit} ({when})" if when else commit


def history():
    """Rows of the table: experiment, endpoint, predicted, known before, measured, verdict, plan,
    first data, verdict of the second edition."""
    for end in PLAN:
        found = kept.read(end.label)
        measured = "; ".join(f"{row[0]}{': ' if row[0] else ''}{kept.told(*row[1:])}"
                             for row in found["endpoint"])
        yield (end.label, end.what, bounds(end), end.known, measured, kept.verdict(found),
               dated(end.plan), dated(end.data), end.earlier)


def main():
    print("| experiment | endpoint | predicted | known before | measured | verdict | plan | first "
          "data | second edition |\n|" + "---|" * 9)
    for row in history():
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
