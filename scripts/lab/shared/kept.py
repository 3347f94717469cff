"""Reads the results that keep.py has copied to results/NN_name: summary.json, tables, fit.json."""
import csv
import json
import os
import shutil

import endpoints
import lab

RESULTS = os.path.join(lab.LAB, "results")
FIGURES = os.path.join(RESULTS, "figures")


def read(label, name, out=None):
    """What a JSON file of an experiment holds; None without. out: as for table()."""
    for folder in [out, RESULTS] if out else [RESULTS]:
        path = os.path.join(folder, label, name)
        try:
            with open(path, encoding="utf-8") as f:
                return json.load(f)
        except OSError:
            continue
        except ValueError:
            return lab.fail(f"{path}: this is not JSON; run experiment {label} again")
    return None


def summary(label):
    return read(label, "summary.json")


def table(label, name, out=None):
    """The rows of a CSV file, as {column: number, text, or None for an empty cell}; none without
    the file. out: where an experiment may have been run; its own table comes before the kept one."""
    for folder in [out, RESULTS] if out else [RESULTS]:
        try:
            with open(os.path.join(folder, label, name + ".csv"), newline="",
                      encoding="utf-8") as f:
                return [{key: value(cell) for key, cell in row.items()}
                        for row in csv.DictReader(f)]
        except OSError:
            continue
    return []


def best_rate(size, target, batch):
    """The best learning rate that experiment 2's kept sweep found for a batch and a loss; None if
    it did not go there."""
    return next((row["best_lr"] for row in table("02_knee", "points") if
                 (row["size"], row["reading"], row["target_nats"], row["batch_tokens"])
                 == (size, "weights", target, batch)), None)


def own(e, name):
    """The rows of a table that this experiment has written or restored."""
    there = any(of["name"] == name for of in e.tables)
    return table(e.label, name, e.args.out) if there else []


def arguments(parser):
    parser.add_argument("--kept", action="store_true", help="make no run: say, draw and decide "
                        "again from the committed tables")


def restore(e):
    """--kept: takes the committed tables, and what the summary says of the runs behind them."""
    found = summary(e.label) or lab.fail(f"{e.label}: nothing is committed")
    e.tables = [table for table in found["csv"] if table["name"] != "endpoint"]
    for table in e.tables:
        shutil.copy(os.path.join(RESULTS, e.label, table["file"]), e.dir)
    e.settings, e.machine = found["settings"], found["machine"]
    e.loads, e.run_seconds = found["load"] or [], found["run_seconds"]


def value(cell):
    try:
        return float(cell)
    except ValueError:
        return cell or None


def verdict(found):
    end = endpoints.of(f"{found['number']:02d}_{found['name']}")
    notes = ["quick run"] * (found["size"] != "full") + ["retrospective"] * bool(end and end.data)
    return found["verdict"] + (f" ({', '.join(notes)})" if notes else "")


def figure_file(found, figure):
    """01_one_step.png: the experiment's number and the figure's name."""
    return f"{found['number']:02d}_{figure['name']}.png"


def machine(found):
    load = found.get("load")
    return found["machine"] + (f", load {load[0]:g} to {load[1]:g} meanwhile" if load else "")
