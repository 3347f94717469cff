"""Sentences that somebody believes, and what the laboratory measured. Every number is read from the
kept results by name, so that a claim cannot disagree with its experiment.

A function below returns its sentence, or None where the tables lack what it needs.
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
    found = kept.summary(label)
    return next((s for s in found["said"] if s.startswith(start)), None) if found else None


def mean(values):
    return sum(values) / len(values)


def endpoint(label, form=".3g"):
    """[(words, "1.72 (1.66 to 1.80)")] of an experiment's endpoint."""
    return [(row["what"], f"{row['value']:{form}} ({row['low']:{form}} to {row['high']:{form}})")
            for row in kept.table(label, "endpoint")]


def clock(seconds):
    """94 or 2.4"""
    return f"{seconds:.0f}" if seconds >= 20 else f"{seconds:.2g}"


# ---------------------------------------------------------------- why: what a batch does

def fewer_updates():
    points = only(kept.table("02_knee", "points"), size="0.8M", reading="weights", target_nats=1.4)
    late = endpoint("02_local")
    if not points:
        return None
    small, large = ends(points, "batch_tokens")
    return (f"It needs fewer updates: to a loss of 1.4, 0.8M parameters took "
            f"{small['updates_median']:,.0f} updates of {small['batch_tokens']:,.0f} tokens, and "
            f"{large['updates_median']:,.0f} of {large['batch_tokens']:,.0f}."
            + (f" After 1M tokens, early in training, 16 times the tokens take {late[0][1]} times fewer." if late
               else ""))


def knees(**wanted):
    return [row for row in only(kept.table("02_local", "local"), **wanted) if not row["refused"]]


def enough_samples():
    rows = [row for T in (32.0, 256.0)
            for row in knees(size="119k", seq_len=T, trained_tokens=262144.0)]
    if len(rows) < 2:
        return None
    return ("No fixed number is. B_crit after 262,144 tokens: " + "; ".join(
        f"{row['b_crit']:,.0f} tokens ({row['b_crit_low']:,.0f} to {row['b_crit_high']:,.0f}), "
        f"{row['b_crit'] / row['seq_len']:.0f} sequences of {row['seq_len']:.0f}" for row in rows)
        + "; and it grows.")


def grows_with_training():
    rows = knees(size="119k", seq_len=32.0)
    return "It grows with training. B_crit of 119k parameters: " + ", ".join(
        f"{row['b_crit']:,.0f} tokens after {row['trained_tokens']:,.0f}"
        for row in rows) + "." if rows else None


def noise_scale():
    rows = [row for row in knees(size="119k", seq_len=32.0) if row["noise_scale_tokens"]]
    return "Too small: " + "; ".join(
        f"{row['noise_scale_tokens']:,.0f} against a B_crit of {row['b_crit']:,.0f} tokens after "
        f"{row['trained_tokens']:,.0f}" for row in rows) + "." if rows else None


def context():
    found = said("01_one_step", "Measured, for pieces of")
    return found and "How far one step lowers the loss at full length. " + found


# ---------------------------------------------------------------- small and noisy

KEPT, SGD = "AdamW, half-life kept", "SGD"


def told(row):
    return f"{row['val_loss']:.3f} ({row['low']:.3f} to {row['high']:.3f})"


def small_batches():
    rows = only(kept.table("03_small_noisy", "best"), rule=KEPT)
    if not rows:
        return None
    return ("After as many tokens, validation loss " + ", ".join(
        f"{told(row)} with {row['batch_sequences']:.0f}" for row in rows)
        + " sequences an update: small ones train well, and make the most serial updates.")


def plain_sgd():
    rows = kept.table("03_small_noisy", "best")
    sgd = only(rows, rule=SGD, batch_sequences=1.0)
    adam = only(rows, rule=KEPT, batch_sequences=1.0)
    if not sgd or not adam:
        return None
    return (f"Not with small batches: with one sequence an update, plain SGD ends at "
            f"{told(sgd[0])}, AdamW at {told(adam[0])}.")


def generalise():
    found = endpoint("03_small_noisy", "+.3f")
    return found and ("On repeated data, at the same training loss, validation loss with 1 "
                      f"sequence an update less that with 64: {found[0][1]} nats.")


# ---------------------------------------------------------------- price: devices and links

def one_device():
    found = endpoint("04_one_device")
    return found and ("Only while it is small: b tokens run at b/(b + b_half) of full speed. "
                      f"b_half of 0.8M parameters on one core: {found[0][1]} tokens; a sequence "
                      "has 32.")


def blocks():
    return [row for row in kept.table("05_time", "blocks") if row["kept"]]


def speedup(arm, base="small"):
    ratios = sorted(row[f"seconds_{base}"] / row[f"seconds_{arm}"] for row in blocks())
    return f"{ratios[len(ratios) // 2]:.2f}"


def accumulation():
    if not blocks():
        return None
    same = sum(row["same_bits"] for row in blocks())
    return (f"The same weights ({same:.0f} of {len(blocks())} pairs equal in every bit), not the "
            f"same time: twice the batch is {speedup('accumulated')} times as fast as the small "
            f"one on one core, {speedup('shared')} times on two.")


def two_ranks():
    return blocks() and (f"Two cores reach a loss of 1.4 {speedup('shared', 'accumulated')} times "
                         f"as fast as one with the same updates, and {endpoint('05_time')[0][1]} "
                         "times as fast as one with half of the batch.")


def at_target(batch, arm="tuned", model="0.8M"):
    return [row for row in only(kept.table("09_curves", "targets"), model=model, arm=arm,
                                batch_tokens=float(batch)) if row["updates"]]


def no_gain():
    small, large = at_target(512), at_target(2048)
    if not small or not large:
        return None
    each = [[mean([row[key] for row in rows]) for key in ("tokens", "updates", "seconds_one",
                                                          "seconds_64")] for rows in (small, large)]
    tokens, updates, one, many = zip(*each)
    return (f"It depends on the axis. To a loss of 1.4, 512 and 2,048 tokens an update take "
            f"{tokens[0] / 1e6:.2f} and {tokens[1] / 1e6:.2f} million tokens, {updates[0]:,.0f} and "
            f"{updates[1]:,.0f} updates; modelled, {clock(one[0])} and {clock(one[1])} seconds on "
            f"one core, {clock(many[0])} and {clock(many[1])} on 64.")


def same_rate():
    found = [(model, [mean([row["updates"] for row in at_target(1024, arm, model)] or [0])
                      for arm in ("tuned", "untouched")]) for model in ("0.8M", "119k")]
    if not all(all(of) for _, of in found):
        return None
    return ("It depends on how it was chosen. 1,024 tokens an update, at the rate that was best for "
            "256: " + ", ".join(f"{untouched / tuned:.2f} times the updates of its own best rate "
                                f"for {model} parameters" for model, (tuned, untouched) in found)
            + ".")


def more_tokens():
    small, large = at_target(512), at_target(1024)
    if not small or not large:
        return None
    tokens = [mean([row["tokens"] for row in rows]) / 1e6 for rows in (small, large)]
    return (f"The same tokens, more of them a second: to a loss of 1.4, {tokens[0]:.2f} million "
            f"with 512 tokens an update, {tokens[1]:.2f} with 1,024.")


def many_workers():
    rows = only(kept.table("10_replayed", "lanes"), link="a link that costs nothing")
    of = {row["workers"]: row for row in rows}
    if not {1.0, 8.0, 64.0} <= set(of):
        return None
    limit = said("10_replayed", "64 workers lose")
    return ("Modelled from measured parts, to a loss of 1.4 over a free link: " + ", ".join(
        f"{n:.0f} take {clock(of[n]['seconds_to_target'])} s" for n in (1.0, 8.0, 64.0)) + "."
        + (f" {limit}" if limit else ""))


LANES = {"one": "one worker", "parallel": "two data parallel", "bf16": "the same in bf16",
         "diloco": "DiLoCo"}


def slow_links():
    rows = kept.table("06_bandwidth", "race")
    if not rows:
        return None
    links = []
    for link in ends(rows, "mbit_s"):
        lanes = {name: [row["seconds_to_target"] for row in
                        only(rows, mbit_s=link["mbit_s"], method=name)] for name in LANES}
        links.append(f"over {link['mbit_s']:,.0f} Mbit/s " + ", ".join(
            f"{LANES[name]} {mean(times):.1f}" for name, times in lanes.items()
            if times and all(times)))
    return "Seconds to a loss of 1.7: " + "; ".join(links) + "."


def diloco():
    found = endpoint("06_diloco", "+.3f")
    return found and ("After as many updates on as much data, H = 20, its loss less data "
                      "parallel's: " + "; ".join(f"{words}: {number}" for words, number in found)
                      + " nats.")


# ---------------------------------------------------------------- scale

def growing_batch():
    found = endpoint("07_schedules", "+.3f")
    return found and ("The norm test (η = 0.5) against a constant batch with as many updates on as "
                      f"much data: {found[0][1]} nats.")


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
    return ("GPT-2 1.6B, modelled on H100s: " + ", ".join(
        f"{days(rows[n]['modelled_days'])} on {n}" for n in (1, 8, 64)) + ".")


def mixtures():
    rows = kept.table("08_fits", "mixtures")
    if not rows:
        return None
    found = [f"{model}: " + ", ".join(
        f"{row['data']:.0f} x {row['tensor']:.0f} x {row['pipeline']:.0f} on {row['gpus']:.0f} "
        f"({days(row['modelled_days'])})" for row in only(rows, model=model))
        for model in dict.fromkeys(row["model"] for row in rows)]
    return (("" if all(row["tensor"] > 1 for row in rows) else "Not always. ")
            + "The fastest mixtures that fit, data x tensor x pipeline, modelled on H100s: "
            + "; ".join(found) + ".")


def large_batch_memory():
    clip = only(kept.table("08_fits", "activations"), model="CLIP's text encoder")
    split = {loss: only(kept.table("08_fits", "contrastive"), loss=loss)
             for loss in ("language model", "contrastive")}
    if len(clip) < 2 or not all(split.values()):
        return None
    ends_of = {loss: [f"{row['gradient']:.3g}" for row in ends(rows, "micro_batches")]
               for loss, rows in split.items()}
    return (f"True there: an 80 GB GPU holds {clip[0]['largest_micro_batch']:,.0f} texts at a "
            f"time, {clip[1]['largest_micro_batch']:,.0f} with recomputation (planned), and CLIP's "
            "batch has 32,768. Accumulation does not help a contrastive loss, which compares the "
            "samples of a batch: in 1 and 16 parts its gradient is "
            f"{' and '.join(ends_of['contrastive'])}, a language model's "
            f"{' and '.join(ends_of['language model'])}.")


def attention_memory():
    rows = kept.table("08_fits", "attention")
    if not rows:
        return None
    return ("Where its matrices are stored. GPT-2 124M, kB a token, planned: " + "; ".join(
        f"{row['activation_bytes_a_token'] / 1e3:,.0f} here and "
        f"{row['with_matrices_bytes_a_token'] / 1e3:,.0f} with them at {row['seq_len']:,.0f} tokens"
        for row in ends([row for row in rows if row["seq_len"] >= 1024], "seq_len")) + ".")


def flops_per_byte():
    rows = kept.table("08_fits", "flops_per_byte")
    few, many = (only(rows, tokens_a_worker=float(n)) for n in (512, 4096))
    if not few or not many:
        return None
    return ("By tokens a worker, hardly by the model: " + "; ".join(
        f"{row['model']} {row['flops_per_byte']:,.0f} FLOPs a byte sent with "
        f"{row['tokens_a_worker']:,.0f} tokens" for row in (*ends(few, "parameters"),
                                                          *ends(many, "parameters")))
        + " (counted).")


def uneven():
    rows = kept.table("04_one_device", "uneven")
    return rows and said("04_one_device", "Two ranks at the same time")


# ---------------------------------------------------------------- all of them

SPLITS = ("Another split of a batch differs by rounding (3e-4 of the weights' norm after 240 "
          "updates); with --exact-sum 1, 2, 4 and 8 ranks are the same in every bit.")

CLAIMS = [
    Claim("A larger batch only lowers the variance of the gradient; an update stays an update.",
          "02_knee", "knee", fewer_updates),
    Claim("My curves looked the same with a larger batch, so more devices gain nothing.",
          "09_curves", "curves", no_gain),
    Claim("Gradient accumulation does the same as more devices.", "05_time", "seconds",
          accumulation),
    Claim("Twice the devices take half the time.", "05_time", "seconds", two_ranks),
    Claim("64 devices are 64 times as fast.", "10_replayed", "race", many_workers),
    Claim("More devices read more text, and that is all.", "09_curves", "curves", more_tokens),
    Claim("When the batch grows, the learning rate can stay.", "09_curves", "curves", same_rate),
    Claim("32 to 64 samples are enough, by the central limit theorem.",
          "02_local", "sequences", enough_samples),
    Claim("A model has one best batch size.", "02_local", "growth", grows_with_training),
    Claim("The noise scale that a run shows is the batch that it could use.",
          "02_local", "growth", noise_scale),
    Claim("Longer sequences do what a larger batch does.", "01_one_step", "one_step", context),
    Claim("Small batches train badly.", "03_small_noisy", "small_noisy", small_batches),
    Claim("A transformer needs Adam.", "03_small_noisy", "small_noisy", plain_sgd),
    Claim("Noisy gradients generalise better.", "03_small_noisy", "small_noisy", generalise),
    Claim("A larger micro-batch makes a device faster.",
          "04_one_device", "one_device", one_device),
    Claim("More devices change what is learned.", None, "tests/test_ranks.sh", SPLITS),
    Claim("A slow link rules out training on several machines.",
          "06_bandwidth", "race", slow_links),
    Claim("DiLoCo learns as much as data parallel.", "06_diloco", "diloco", diloco),
    Claim("A growing batch saves updates for free.", "07_schedules", "schedules", growing_batch),
    Claim("A model that fits on one GPU needs only one.", "08_fits", "days", enough_memory),
    Claim("The model fits, but its batch does not; accumulation does not help.",
          "08_fits", "memory", large_batch_memory),
    Claim("Attention's memory grows with the square of the length.",
          "08_fits", "memory", attention_memory),
    Claim("Efficiency is FLOPs per byte.", "08_fits", "days", flops_per_byte),
    Claim("Uneven shares leave some devices waiting.", "04_one_device", "one_device", uneven),
    Claim("A model that does not fit on one GPU needs tensor parallelism.",
          "08_fits", "days", mixtures)]


def measured(claim):
    """The sentence beside a belief."""
    if claim.label is None:
        return claim.measured
    words = claim.measured()
    if not words:
        return "Not measured yet."
    found = kept.summary(claim.label)
    return words + ("" if found and found["size"] == "full" else " This rests on a quick run.")
