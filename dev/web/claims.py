"""Sentences that somebody believes, and what the laboratory measured. Every number is read from the
kept results by name, so that a claim cannot disagree with its experiment.
"""
from collections import namedtuple
from statistics import fmean as mean

import kept
from kept import table as rows

# label and figure: of the experiment; without a label a test holds it. measured(): the sentence.
Claim = namedtuple("Claim", "belief label figure measured")


def ends(table, key):
    """The rows with the least and the largest value of a column."""
    ordered = sorted(table, key=lambda row: row[key])
    return ordered[0], ordered[-1]


def endpoint(label, form=".3g"):
    """[(words, "1.72 (1.66 to 1.80)")] of an experiment's endpoint."""
    return [(words, kept.told(*numbers, form=form))
            for words, *numbers in kept.read(label)["endpoint"]]


def clock(seconds):
    """94 or 2.4"""
    return f"{seconds:.0f}" if seconds >= 20 else f"{seconds:.2g}"


# ---------------------------------------------------------------- why: what a batch does

def fewer_updates():
    small, large = ends(rows("02_front", "points"), "batch_tokens")
    late = kept.number("02_size", "119k after 4,194,304 tokens: updates of 256 over 8,192")[0]
    return (f"It needs fewer updates: to a loss of 1.4, 0.8M parameters took "
            f"{small['updates_mean']:,.0f} updates of {small['batch_tokens']:,.0f} tokens, and "
            f"{large['updates_mean']:,.0f} of {large['batch_tokens']:,.0f}. After 1M tokens, "
            "early in training, 16 times the tokens take "
            f"{endpoint('02_local')[0][1]} times fewer, on the King James Bible "
            f"{endpoint('02_text')[0][1]}; after 4M, 32 times the tokens {late:.3g}.")


def knees(**wanted):
    return [row for row in rows("02_local", "local", size="119k", **wanted) if not row["refused"]]


def enough_samples():
    return ("No fixed number is. The critical batch size after 262,144 tokens: " + "; ".join(
        f"{row['b_crit']:,.0f} tokens ({row['b_crit_low']:,.0f} to {row['b_crit_high']:,.0f}), "
        f"{row['b_crit'] / row['seq_len']:.0f} sequences of {row['seq_len']:.0f}"
        for row in knees(trained_tokens=262144.0)) + "; and it grows.")


def grows_with_training():
    return "It grows with training. The critical batch size of 119k parameters: " + ", ".join(
        f"{row['b_crit']:,.0f} tokens after {row['trained_tokens']:,.0f}"
        for row in knees(seq_len=32.0)) + "."


def noise_scale():
    return "Too small: " + "; ".join(
        f"{row['noise_scale_tokens']:,.0f} against a critical batch size of {row['b_crit']:,.0f} "
        f"tokens after {row['trained_tokens']:,.0f}" for row in knees(seq_len=32.0)
        if row["noise_scale_tokens"]) + "."


# ---------------------------------------------------------------- small and noisy

def small_batches():
    return ("After as many tokens, validation loss " + ", ".join(
        f"{row['val_loss']:.3f} ({row['low']:.3f} to {row['high']:.3f}) with "
        f"{row['batch_sequences']:.0f}"
        for row in rows("03_small_noisy", "best", rule="AdamW, half-life kept"))
        + " sequences per update: small ones train well, and make the most serial updates.")


# ---------------------------------------------------------------- price: devices and links

def one_device():
    return ("Only while it is small: b tokens run at b/(b + b_half) of full speed. b_half of 0.8M "
            f"parameters on one core: {endpoint('04_one_device')[0][1]} tokens; a sequence has 32.")


def speedup(arm, base="small"):
    return f"{kept.number('05_time', f'speed of {arm} over {base}')[0]:.2f}"


def accumulation():
    same = [row["same_bits"] for row in rows("05_time", "blocks", kept=1)]
    return (f"The same weights ({sum(same)} of {len(same)} pairs equal in every bit), not the "
            f"same time: twice the batch is {speedup('accumulated')} times as fast as the small "
            f"one on one core, {speedup('shared')} times on two (at a constant rate).")


def two_ranks():
    return (f"Two cores reach a loss of 1.4 {speedup('shared', 'accumulated')} times as fast as "
            f"one with the same updates, and {endpoint('05_time')[0][1]} times as fast as one with "
            "half of the batch.")


def seconds(updates, batch, workers):
    """By experiment 4's line, for a share of at least one sequence."""
    line, = rows("04_one_device", "line", model="0.8M", threads=1)
    return updates * (line["t_0"] + line["tau"] * max(32, batch / workers))


def no_gain():
    batches = 512, 2048
    updates = [row["updates_mean"] for batch in batches
               for row in rows("02_front", "points", batch_tokens=batch)]
    one, many = ([seconds(n, batch, workers) for n, batch in zip(updates, batches)]
                 for workers in (1, 64))
    return (f"It depends on the axis. To a loss of 1.4, 512 and 2,048 tokens per update take "
            f"{updates[0] * 512e-6:.2f} and {updates[1] * 2048e-6:.2f} million tokens, "
            f"{updates[0]:,.0f} and {updates[1]:,.0f} updates; modelled, {clock(one[0])} and "
            f"{clock(one[1])} seconds on one core, {clock(many[0])} and {clock(many[1])} on 64.")


def same_rate():
    ratios = []
    for model in ("0.8M", "119k"):
        best = kept.pooled(model, 1.4)                       # {batch: (rate, {seed: updates})}
        runs = [row["updates"] for row in
                rows("02_knee", "runs", size=model, target_nats=1.4,
                     batch_tokens=1024, lr=best[256][0]) if row["seed"] not in kept.TUNED]
        ratios.append(mean(runs) / mean(best[1024][1].values()))
    return ("It depends on how it was chosen. 1,024 tokens per update, at the rate that was best "
            f"for 256: {ratios[0]:.2f} times the updates of its own best rate for 0.8M parameters, "
            f"{ratios[1]:.2f} times for 119k.")


def many_workers():
    of = {row["workers"]: clock(row["seconds_to_target"]) for row in
          rows("10_replayed", "lanes", link="a link that costs nothing")}
    limit = kept.number("10_replayed", "Mbit/s below which 64 workers lose to one")[0]
    return ("Modelled from measured parts, to a loss of 1.4 over a free link: "
            f"1 take {of[1]} s, 8 take {of[8]} s, 64 take {of[64]} s. Below {limit:,.0f} Mbit/s "
            "64 lose to one, at no latency.")


LANES = {"one": "one worker", "parallel": "two data parallel", "bf16": "the same in bf16",
         "diloco": "DiLoCo"}


def slow_links():
    table, links = rows("06_bandwidth", "race"), []
    for link in ends(table, "mbit_s"):
        lanes = {name: [row["seconds_to_target"] for row in table if row["method"] == name
                        and row["mbit_s"] == link["mbit_s"]] for name in LANES}
        links.append(f"over {link['mbit_s']:,.0f} Mbit/s " + ", ".join(
            f"{LANES[name]} {mean(times):.1f}" for name, times in lanes.items()
            if times and all(times)))
    return "Seconds to a loss of 1.7: " + "; ".join(links) + "."


def averaging():
    return ("After as many updates on as much data, averaged every 20 updates, its loss less data "
            "parallel's: " + "; ".join(f"{words}: {number}"
                                       for words, number in endpoint("06_averaging", "+.3f"))
            + " nats.")


# ---------------------------------------------------------------- scale

def growing_batch():
    return ("The norm test (η = 0.5) against a constant batch with as many updates on as much "
            f"data: {endpoint('07_schedules', '+.3f')[0][1]} nats.")


def enough_memory():
    days = {row["gpus"]: row["modelled_days"] for row in rows("08_fits", "days", model="1.6B")}
    return (f"GPT-2 1.6B, modelled on H100s: {days[1]:.3g} days on 1, {24 * days[8]:.3g} hours on "
            f"8, {24 * days[64]:.3g} hours on 64, which assumes 40% of their peak; llm.c's own "
            "script measured 23 hours on 8.")


# ---------------------------------------------------------------- all of them

def splits():
    return ("Another split of a batch differs by rounding (3e-4 of the weights' norm after 240 "
            "updates); with --exact-sum 1, 2, 4 and 8 ranks are the same in every bit.")


CLAIMS = [
    Claim("A larger batch only lowers the variance of the gradient; an update stays an update.",
          "02_front", "front", fewer_updates),
    Claim("My curves looked the same with a larger batch, so more devices gain nothing.",
          "02_front", "front", no_gain),
    Claim("Gradient accumulation does the same as more devices.", "05_time", "",
          accumulation),
    Claim("Twice the devices take half the time.", "05_time", "", two_ranks),
    Claim("64 devices are 64 times as fast.", "10_replayed", "front", many_workers),
    Claim("When the batch grows, the learning rate can stay.", "02_knee", "knee", same_rate),
    Claim("32 to 64 samples are enough, by the central limit theorem.",
          "02_local", "sequences", enough_samples),
    Claim("A model has one best batch size.", "02_local", "local", grows_with_training),
    Claim("The noise scale that a run shows is the batch that it could use.",
          "02_local", "local", noise_scale),
    Claim("Small batches train badly.", "03_small_noisy", "small_noisy", small_batches),
    Claim("A larger micro-batch makes a device faster.",
          "04_one_device", "one_device", one_device),
    Claim("More devices change what is learned.", None, "tests/test_ranks.sh", splits),
    Claim("A slow link rules out training on several machines.",
          "06_bandwidth", "race", slow_links),
    Claim("Averaging the weights now and then learns as much as data parallel.",
          "06_averaging", "", averaging),
    Claim("A growing batch saves updates for free.", "07_schedules", "schedules", growing_batch),
    Claim("A model that fits on one GPU needs only one.", "08_fits", "days", enough_memory)]
