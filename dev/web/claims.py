"""Sentences that somebody believes, and what the laboratory measured. Every number is read from the
kept results by name, so that a claim cannot disagree with its experiment.

A function below returns its sentence, or None where the tables lack what it needs; the claim then
quotes the experiment's verdict.
"""
from collections import namedtuple

import kept

# label and figure: of the experiment; without a label the tests hold the claim, and measured is the
# sentence itself.
Claim = namedtuple("Claim", "belief label figure measured")


def only(rows, **wanted):
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def ends(rows, key):
    """The rows with the least and the largest value of a column."""
    ordered = sorted(rows, key=lambda row: row[key])
    return ordered[0], ordered[-1]


def said(label, start):
    """The sentence of a summary that begins with these words."""
    return next((s for s in kept.summary(label)["said"] if s.startswith(start)), None)


# ---------------------------------------------------------------- why: what a batch does

def fits(reading="weights"):
    return [row for row in kept.table("02_knee", "fit")
            if row["reading"] == reading and not row["refused"]]


def fewer_updates():
    if not fits():
        return None
    fit = min(fits(), key=lambda row: (row["target_nats"], row["size"]))
    points = only(kept.table("02_knee", "points"), size=fit["size"], reading="weights",
                  target_nats=fit["target_nats"])
    small, large = ends(points, "batch_tokens")
    return (f"A less noisy gradient needs fewer updates: to a loss of {fit['target_nats']:g}, "
            f"{fit['size']} parameters took {small['updates_median']:,.0f} updates of "
            f"{small['batch_tokens']:,.0f} tokens, and {large['updates_median']:,.0f} of "
            f"{large['batch_tokens']:,.0f}. At B_crit, {fit['b_crit']:,.0f} tokens there "
            f"({fit['b_crit_low']:,.0f} to {fit['b_crit_high']:,.0f}), a run takes twice the least "
            "data; at a quarter of it, 25% more.")


def grows_with_training():
    grown = [(size, ends(only(fits(), size=size), "target_nats"))
             for size in dict.fromkeys(row["size"] for row in fits())]
    if not grown:
        return None
    return "B_crit is not the same at every loss. " + "; ".join(
        f"{size} parameters: {first['b_crit']:,.0f} tokens at a loss of {first['target_nats']:g}, "
        f"{last['b_crit']:,.0f} at {last['target_nats']:g}" for size, (last, first) in grown) + "."


def noise_scale():
    rows = [row for row in kept.table("02_knee", "local")
            if not row["refused"] and row["noise_scale_tokens"]]
    if not rows:
        return None
    return " ".join(
        f"After {row['trained_tokens']:,.0f} tokens the run showed {row['noise_scale_tokens']:,.0f}"
        f", and branches with a decaying rate had a B_crit of {row['b_crit']:,.0f} "
        f"({row['b_crit_low']:,.0f} to {row['b_crit_high']:,.0f})." for row in rows)


def no_such_number():
    noise = [only(kept.table("01_one_step", "fits"), checkpoint=name, direction="adam",
                  quantity="b_noise") for name in ("constant", "annealed")]
    if not all(noise):
        return None
    constant, annealed = (rows[0] for rows in noise)
    return ("A step of B tokens lowers the loss by 1/(1 + B_noise/B) of what a very large batch "
            f"would, and B_noise is not one number: {constant['fitted']:,.0f} tokens in a run at a "
            f"constant rate, {annealed['fitted']:,.0f} after its rate was annealed to zero (Adam's "
            f"direction; predicted without a fit: {constant['predicted']:,.0f} and "
            f"{annealed['predicted']:,.0f}).")


def context():
    found = said("01_one_step", "Measured, for pieces of")
    return found and "How far one step lowers the loss at full length. " + found


# ---------------------------------------------------------------- small and noisy

KEPT, SGD = "AdamW, half-life kept", "SGD"


def told(row):
    return f"{row['val_loss']:.3f} ± {row['error']:.3f}"


def small_batches():
    rows = only(kept.table("03_small_noisy", "best"), rule=KEPT)
    if not rows:
        return None
    small, large = ends(rows, "batch_sequences")
    return ("After as many tokens, validation loss " + ", ".join(
        f"{told(row)} with {row['batch_sequences']:.0f}" for row in rows)
        + " sequences an update (AdamW, half-life of its second moment kept in tokens). The "
        f"smallest batch makes {large['batch_sequences'] / small['batch_sequences']:.0f} times the "
        "serial updates of the largest.")


def plain_sgd():
    rows = kept.table("03_small_noisy", "best")
    sgd = only(rows, rule=SGD, batch_sequences=1.0)
    adam = only(rows, rule=KEPT, batch_sequences=1.0)
    if not sgd or not adam:
        return None
    return (f"With one sequence an update, plain SGD ends at {told(sgd[0])}, AdamW at "
            f"{told(adam[0])}.")


def generalise():
    rows = kept.table("03_small_noisy", "equal_training")
    if not rows:
        return None
    level = min(row["train_loss"] for row in rows)
    small, large = ends(only(rows, train_loss=level), "batch_tokens")
    return (f"On repeated data, at the same training loss of {level:.2f}: validation loss "
            f"{told(small)} with {small['batch_tokens']:,.0f} tokens an update, {told(large)} with "
            f"{large['batch_tokens']:,.0f}.")


# ---------------------------------------------------------------- price: devices and links

def one_device():
    rows = only(kept.table("04_one_device", "line"), threads=1.0)
    if not rows:
        return None
    return ("Only while it is small: b tokens at once run at b/(b + b_half) of full speed. On one "
            "core b_half is " + ", ".join(
                f"{row['b_half']:.3g} tokens for {row['model']} parameters ({row['b_half_low']:.3g}"
                f" to {row['b_half_high']:.3g})" for row in rows)
            + f"; a sequence has {rows[0]['seq_len']:.0f}.")


def accumulation():
    rows = kept.table("04_one_device", "accumulation")
    if not rows:
        return None
    return ("It makes the same updates, one micro-batch after the other, so it saves memory and no "
            "time. Its additional time on one core, against the same batch in one pass: "
            + ", ".join(
                f"{100 * row['cost']:+.1f}% ({100 * row['cost_low']:+.1f} to "
                f"{100 * row['cost_high']:+.1f}) in {row['accumulation']:.0f} micro-batches of "
                f"{row['micro_batch_tokens']:.0f} tokens for {row['model']} parameters"
                for row in rows) + ".")


def two_ranks():
    ratios = [r for r in (kept.read("05_time", "fit.json") or {"ratios": []})["ratios"]
              if None not in r["speedup"]]
    if not ratios:
        return None
    return ("Two cores against one, seconds to the same loss, measured: " + "; ".join(
        "{:.2f} times as fast ({:.2f} to {:.2f}), ".format(*r["speedup"])
        + f"{r['model']} parameters with "
        + " and ".join(f"{batch:,}" for batch in dict.fromkeys(r["batches"]))
        + " tokens an update" for r in ratios) + ".")



LANES = {"one": "one worker", "parallel": "two data parallel", "bf16": "the same in bf16",
         "diloco": "DiLoCo"}


def seconds_over(rows, link):
    lanes = {name: [row["seconds_to_target"] for row in only(rows, mbit_s=link, method=name)]
             for name in LANES}
    return f"over {link:,.0f} Mbit/s " + ", ".join(
        f"{LANES[name]} {sum(times) / len(times):.1f}" if all(times)
        else f"{LANES[name]} not reached"
        for name, times in lanes.items() if times)


def slow_links():
    rows = kept.table("06_bandwidth", "race")
    if not rows:
        return None
    target = only(kept.table("06_bandwidth", "machine"), what="target_loss")[0]["value"]
    links = sorted({row["mbit_s"] for row in rows})
    return (f"Seconds to a loss of {target:g}, each method at its own best batch: "
            + "; ".join(seconds_over(rows, link) for link in links) + ".")


def diloco():
    rows = [row for row in kept.table("06_diloco", "cells") if row["replicas"] > 1]
    if not rows:
        return None
    outcomes = [f"{name} in {len(only(rows, outcome=name))}" for name in ("wins", "ties", "loses")
                if only(rows, outcome=name)]
    best, worst = ends(rows, "gap")
    return (f"For the same updates and data, both tuned, in {len(rows)} settings DiLoCo "
            + ", ".join(outcomes) + f". Its loss is {best['gap']:+.3f} nats from data parallel's "
            f"with {best['batch_of_a_replica']:,.0f} tokens a replica and H = {best['every']:.0f} "
            f"({best['low']:+.3f} to {best['high']:+.3f}), and {worst['gap']:+.3f} with "
            f"{worst['batch_of_a_replica']:,.0f} and H = {worst['every']:.0f} "
            f"({worst['low']:+.3f} to {worst['high']:+.3f})."
            + (" Where it ends lowest its rate is the largest that was tried."
               if best["at_edge"] else ""))


# ---------------------------------------------------------------- scale

def growing_batch():
    rows = [row for row in kept.table("07_schedules", "summary") if row["eta"] and row["gap"]]
    if not rows:
        return None
    best = min(rows, key=lambda row: row["high"])
    return (f"Against a constant batch with as many tokens and as many updates, the norm test "
            f"(η = {best['eta']:g}) ends {abs(best['gap']):.3f} nats "
            f"{'lower' if best['gap'] < 0.0 else 'higher'} (90%: {best['low']:+.3f} to "
            f"{best['high']:+.3f}), after {best['updates']:,.0f} updates.")


def days(value):
    if value >= 730:
        return f"{value / 365.25:,.0f} years"
    if value >= 2:
        return f"{value:,.3g} days"
    return f"{24 * value:.3g} hours" if value >= 1 / 12 else f"{1440 * value:.2g} minutes"


def enough_memory():
    rows = {row["gpus"]: row for row in only(kept.table("08_fits", "days"), model="1.6B")}
    if not {1, 8, 64} <= set(rows):
        return None
    return ("GPT-2 1.6B, modelled on H100s: "
            f"{days(rows[1]['modelled_days'])} on one, {days(rows[8]['modelled_days'])} on 8, "
            f"{days(rows[64]['modelled_days'])} on 64.")


def mixtures():
    rows = kept.table("08_fits", "mixtures")
    if not rows:
        return None
    found = [f"{model}: " + ", ".join(
        f"{row['data']:.0f} x {row['tensor']:.0f} x {row['pipeline']:.0f} on {row['gpus']:.0f} "
        f"({days(row['modelled_days'])})" for row in only(rows, model=model))
        for model in dict.fromkeys(row["model"] for row in rows)]
    always = all(row["tensor"] > 1 for row in rows)
    return (("" if always else "Not always. ") + "The fastest mixtures that fit, data x tensor x "
            "pipeline, modelled by --plan-search on H100s: " + "; ".join(found) + ".")


# ---------------------------------------------------------------- all of them

SPLITS = ("The weights differ by rounding that training amplifies (3e-4 of their norm after 240 "
          "updates), and another seed ends far away; with --exact-sum they are the same in every "
          "bit (1, 2, 4 and 8 ranks, and micro-batches of 1 to 8).")

CLAIMS = [
    Claim("A larger batch only lowers the variance of the gradient; an update stays an update.",
          "02_knee", "knee", fewer_updates),
    Claim("32 to 64 samples are enough, by the central limit theorem.",
          "01_one_step", "one_step", no_such_number),
    Claim("A model has one best batch size.", "02_knee", "growth", grows_with_training),
    Claim("The noise scale that a run shows is the batch that it could use.",
          "02_knee", "growth", noise_scale),
    Claim("Longer sequences do what a larger batch does.", "01_one_step", "one_step", context),
    Claim("Small batches train badly.", "03_small_noisy", "small_noisy", small_batches),
    Claim("A transformer needs Adam.", "03_small_noisy", "small_noisy", plain_sgd),
    Claim("Noisy gradients generalise better.", "03_small_noisy", "small_noisy", generalise),
    Claim("A larger micro-batch makes a device faster.",
          "04_one_device", "one_device", one_device),
    Claim("Gradient accumulation does the same as more devices.",
          "04_one_device", "one_device", accumulation),
    Claim("Twice the devices take half the time.", "05_time", "seconds", two_ranks),
    Claim("More devices change what is learned.", None, "tests/test_ranks.sh", SPLITS),
    Claim("A slow link rules out training on several machines.",
          "06_bandwidth", "race", slow_links),
    Claim("DiLoCo learns as much as data parallel.", "06_diloco", "diloco", diloco),
    Claim("A growing batch saves updates for free.", "07_schedules", "schedules", growing_batch),
    Claim("A model that fits on one GPU needs only one.", "08_fits", "days", enough_memory),
    Claim("A model that does not fit on one GPU needs tensor parallelism.",
          "08_fits", "days", mixtures)]


def measured(claim):
    """The sentence beside a belief."""
    if claim.label is None:
        return claim.measured
    found = kept.summary(claim.label)
    if found is None:
        return "Not measured yet."
    words = claim.measured() or f"{found['verdict'].capitalize()}: {found['why'].rstrip('.')}."
    return words + ("" if found["size"] == "full" else " This rests on a quick run.")


def answer(label):
    """The first claim that rests on an experiment."""
    return measured(next(claim for claim in CLAIMS if claim.label == label))
