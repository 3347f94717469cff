"""The events of a run's log, as plot.py and watch.py read them: runlog.parsed(line).

A full disk, a crash or an editor may leave lines that no trainer wrote. Each reader says their
number and goes on with the rest.
"""
import json
import os
import sys

NUMBERS = ["loss", "val_loss", "whole_loss", "whole_floor", "floor", "seconds", "seconds_data",
           "seconds_compute", "seconds_comm", "seconds_optimizer"]
LARGEST = 1e39                                               # a float32 is smaller


def fail(message):
    sys.exit(f"{os.path.basename(sys.argv[0])}: {message}")


def path_of(run):
    """The log of a run: an output directory, which may not exist yet, or the log itself."""
    is_log = run.endswith(".jsonl") or (os.path.exists(run) and not os.path.isdir(run))
    return run if is_log else os.path.join(run, "log.jsonl")


def leave_out(path, line):
    program = os.path.basename(sys.argv[0])
    print(f"{program}: {path}:{line}: not an event of a log; left out, with all lines like it",
          file=sys.stderr)


def number(value):
    return isinstance(value, (int, float)) and abs(value) < LARGEST


def count(value):
    return isinstance(value, int) and number(value) and 0 <= value < 2**63


def cleaned(value):
    """The value as JSON and UTF-8 hold it: without NaN, infinity and halves of characters."""
    if isinstance(value, dict):
        return {cleaned(key): cleaned(item) for key, item in value.items()}
    if isinstance(value, list):
        return [cleaned(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value if not isinstance(value, float) or number(value) else None


def parsed(line):
    """The event of a line of bytes, or None. null stands for a number that is not known."""
    try:
        event = cleaned(json.loads(line.decode("utf-8-sig", "replace")))
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        return None
    placed = event["event"] in ("step", "skip", "eval")      # a point of a curve
    kinds = [(count, ["step", "tokens"], not placed), (number, NUMBERS, True),
             (lambda value: isinstance(value, str), ["text", "reason"], True)]
    good = all(optional if event.get(key) is None else is_kind(event[key])
               for is_kind, keys, optional in kinds for key in keys)
    return event if good else None
