"""Results of all experiments as they would lie in OUT, with numbers made up here; for the
tests of what keeps and shows results."""
import csv
import json
import os
import struct
import zlib

PNG = b"\x89PNG\r\n\x1a\n"


def png(path, width=40, height=20):
    """A picture of one colour."""
    def part(kind, data):
        return (struct.pack(">I", len(data)) + kind + data
                + struct.pack(">I", zlib.crc32(kind + data)))
    rows = (b"\0" + bytes([40, 90, 160]) * width) * height
    with open(path, "wb") as f:
        f.write(PNG + part(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
                + part(b"IDAT", zlib.compress(rows)) + part(b"IEND", b""))


def law(size, points):
    """Rows of 02_knee/fit.csv and points.csv. points: {target: (S_min, B_crit)}"""
    fits = [{"size": size, "reading": "weights", "target_nats": t, "s_min": s, "b_crit": b,
             "b_crit_low": 0.8 * b, "b_crit_high": 1.25 * b, "refused": ""}
            for t, (s, b) in points.items()]
    seen = [{"size": size, "reading": "weights", "target_nats": t, "batch_tokens": batch,
             "updates_median": s * (1 + b / batch)}
            for t, (s, b) in points.items() for batch in (64, 512, 4096, 8192)]
    return fits, seen


LAWS = [law("35k", {2.5: (135, 541), 2.25: (226, 1136)}),
        law("119k", {2.5: (100, 700), 2.0: (300, 1600), 1.4: (900, 4000)})]
REFUSED = {"size": "0.8M", "reading": "weights", "target_nats": 1.4, "refused": "an edge"}

def endpoint(value, low, high, what=""):
    return [{"what": what, "value": value, "low": low, "high": high}]


def targets(model, ends):
    """Rows of 09_curves/targets.csv. ends: {(batch, arm): updates}"""
    return [{"model": model, "batch_tokens": batch, "arm": arm,
             "updates": n, "tokens": n * batch, "seconds_one": 0.03 * n, "seconds_64": 0.004 * n}
            for (batch, arm), n in ends.items()]


# {label: {table: rows}}
TABLES = {
    "01_one_step": {"endpoint": endpoint(0.95, 0.84, 1.10, "constant")},
    "02_knee": {
        "fit": [fit for fits, _ in LAWS for fit in fits] + [REFUSED],
        "points": [point for _, points in LAWS for point in points] + [
            {"size": "0.8M", "reading": "weights", "target_nats": 1.4, "batch_tokens": batch,
             "updates_median": n} for batch, n in [(512, 3012), (8192, 521)]]},
    "02_local": {
        "endpoint": endpoint(11.5, 11.1, 11.9),
        "local": [{"size": "119k", "seq_len": T, "trained_tokens": tokens, "b_crit": b,
                   "b_crit_low": 0.9 * b, "b_crit_high": 1.1 * b, "noise_scale_tokens": noise,
                   "refused": ""} for T, tokens, b, noise in [
                       (32, 262144, 2800, 753), (32, 1048576, 7800, 947),
                       (256, 262144, 3000, "")]]},
    "03_small_noisy": {
        "endpoint": endpoint(0.0021, -0.004, 0.008),
        "best": [{"rule": rule, "batch_sequences": n, "val_loss": loss, "low": loss - 0.01,
                  "high": loss + 0.01}
                 for rule, n, loss in [("AdamW, half-life kept", 1, 1.8765),
                                       ("AdamW, half-life kept", 256, 1.9123), ("SGD", 1, 1.9)]]},
    "04_one_device": {
        "endpoint": endpoint(13.06, 10.1, 16.0),
        "uneven": [{"split": "uneven"}],
        "line": [{"model": "35k", "seq_len": 32, "threads": 1, "b_half": 6.54, "b_half_low": 6.1,
                  "b_half_high": 7.2}]},
    "05_time": {
        "endpoint": endpoint(1.72, 1.66, 1.8),
        "blocks": [{"kept": int(time < 80), "same_bits": 1, "seconds_small": 94.0,
                    "seconds_accumulated": 100.0, "seconds_shared": time}
                   for time in (54.0, 55.0, 56.0, 90.0)]},
    "06_bandwidth": {
        "endpoint": endpoint(7.14, 5.4, 9.5),
        "race": [{"mbit_s": link, "method": name, "seconds_to_target": s}
                 for link, name, s in [(25, "one", 9.0), (25, "one", 9.2), (25, "one", 9.7),
                                       (25, "parallel", ""), (1000, "one", 9.3),
                                       (1000, "parallel", 5.5)]]},
    "06_diloco": {"endpoint": endpoint(0.2, 0.15, 0.25, "512 tokens a replica")
                  + endpoint(0.18, 0.1, 0.26, "2,048 tokens a replica")},
    "07_schedules": {"endpoint": endpoint(-0.0368, -0.05, -0.02)},
    "08_fits": {
        "activations": [{"model": "CLIP's text encoder", "recompute": r, "largest_micro_batch": n}
                        for r, n in [(0, 4917), (1, 28080)]],
        "contrastive": [{"loss": loss, "micro_batches": parts, "gradient": gradient}
                        for loss, parts, gradient in [
                            ("language model", 1, 0.137), ("language model", 16, 0.137),
                            ("contrastive", 1, 2.22), ("contrastive", 16, 1.28)]],
        "attention": [{"seq_len": T, "activation_bytes_a_token": 302000,
                       "with_matrices_bytes_a_token": matrices}
                      for T, matrices in [(1024, 1051000), (8192, 6212000)]],
        "flops_per_byte": [{"model": name, "parameters": n, "tokens_a_worker": tokens,
                            "flops_per_byte": 1.6 * tokens}
                           for name, n in [("35k", 34720), ("1.6B", 1557611200)]
                           for tokens in (512, 4096)],
        "days": [{"model": "1.6B", "gpus": n, "modelled_days": 9.36 / n} for n in (1, 8, 64)],
        "mixtures": [{"model": model, "gpus": n, "data": data, "tensor": tensor, "pipeline": stages,
                      "modelled_days": value}
                     for model, n, data, tensor, stages, value in [
                         ("7B", 8, 8, 1, 1, 13.1), ("70B", 64, 4, 2, 8, 163.2)]]},
    "09_curves": {
        "targets": targets("0.8M", {(512, "tuned"): 3012, (1024, "tuned"): 1582,
                                    (1024, "untouched"): 1582, (2048, "tuned"): 855})
        + targets("119k", {(1024, "tuned"): 2000, (1024, "untouched"): 3800})},
    "10_replayed": {
        "endpoint": endpoint(0.98, 0.95, 1.02),
        "lanes": [{"link": "a link that costs nothing", "workers": n, "seconds_to_target": s}
                  for n, s in [(1, 94.2), (8, 13.4), (64, 2.42)]]}}

FIGURES = {"01_one_step": ["one_step"], "02_knee": ["knee"], "02_local": ["growth", "sequences"],
           "03_small_noisy": ["small_noisy"], "04_one_device": ["one_device"],
           "05_time": ["seconds"], "06_bandwidth": ["race"], "06_diloco": ["diloco"],
           "07_schedules": ["schedules"], "08_fits": ["memory", "days"], "09_curves": ["curves"],
           "10_replayed": ["race"]}

TITLES = {"02_knee": "The knee", "06_bandwidth": "Loss against real seconds over slow links",
          "06_diloco": "DiLoCo against data parallel, both tuned"}

FITS = {
    "04_one_device": {"fits": [
        {"model": name, "parameters": n, "seq_len": 32, "threads": threads, "t_0": 3e-5 * threads,
         "tau": 4.584e-6, "intervals": {"t_0": [2e-5, 4e-5], "tau": [4.5e-6, 4.7e-6]}}
        for name, n, threads in [("35k", 34720, 1), ("35k", 34720, 2), ("119k", 118592, 1),
                                 ("0.8M", 830336, 1)]]},
    "05_time": {"models": [{"model": "119k", "alpha": 2e-5, "beta": 1e-9},
                           {"model": "0.8M", "alpha": None, "beta": None}]}}


def summary(label, size="full"):
    number, name = int(label[:2]), label[3:]
    return {"number": number, "name": name, "title": TITLES.get(label, name.capitalize()),
            "question": "Why?", "prediction": "Because.", "verdict": "as predicted",
            "why": f"number {number} decides", "said": [f"{label} said A.", f"{label} said B.",
                                                        "Measured, for pieces of 8: 0.89 times.",
                                                        "64 workers lose to one below 7 Mbit/s.",
                                                        "Two ranks at the same time: waits."],
            "settings": [], "figures": [{"name": f, "png": f"{f}.png", "alt": f"Picture [of] {f}.",
                                         "caption": f"Caption of {f}."} for f in FIGURES[label]],
            "csv": [{"name": t, "file": f"{t}.csv"} for t in TABLES[label]],
            "command": f"scripts/lab/experiments/{label}.py --out /tmp/somewhere/else", "size": size,
            "machine": "2 processors, a CPU", "load": [0.5, 1.5], "run_seconds": 600.0,
            "drawn": size != "not drawn"}


def plant(out, sizes=()):
    """Writes OUT/NN_name of all experiments. sizes: {label: size} of those that are not full."""
    for label, tables in TABLES.items():
        folder = os.path.join(out, label)
        os.makedirs(folder)
        for name, rows in tables.items():
            with open(os.path.join(folder, name + ".csv"), "w", newline="", encoding="utf-8") as f:
                writer = csv.DictWriter(f, rows[0].keys(), restval="")
                writer.writeheader()
                writer.writerows(rows)
        for name in FIGURES[label]:
            png(os.path.join(folder, name + ".png"))
        found = summary(label, dict(sizes).get(label, "full"))
        for name, record in [("summary.json", found), ("fit.json", FITS.get(label))]:
            if record:
                with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
                    json.dump(record, f)
