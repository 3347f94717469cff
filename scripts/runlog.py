"""The events of a run's log, as plot.py and watch.py read them: runlog.Run(path).

A full disk, a crash or an editor may leave lines that no trainer wrote. Each reader says their
number and goes on with the rest.
"""
import json
import os
import sys
import time

NUMBERS = ["loss", "val_loss", "whole_loss", "whole_floor", "floor", "seconds", "seconds_data",
           "seconds_compute", "seconds_comm", "seconds_optimizer"]
LARGEST = 1e39                                               # a float32 is smaller


def fail(message):
    sys.exit(f"{os.path.basename(sys.argv[0])}: {message}")


def path_of(run):
    """The log of a run: an output directory, which may not exist yet, or the log itself."""
    is_log = run.endswith(".jsonl") or (os.path.exists(run) and not os.path.isdir(run))
    return run if is_log else os.path.join(run, "log.jsonl")


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


class Run:
    """The events of a log, read as it grows. `version` changes when events that were read before no
    longer hold; a page that knows the older ones must then begin anew."""

    def __init__(self, path):
        self.name = os.fsencode(os.path.normpath(path)).decode("utf-8", "replace")
        self.path = path_of(path)
        self.version = int(1000 * time.time())               # no other server's
        self.forget()

    def forget(self):
        self.version += 1
        self.events, self.damaged = [], None
        self.offset, self.lines, self.tail = 0, 0, b""       # tail: the last bytes that were read

    def read(self):
        """Takes the whole lines that are new. The last one may be incomplete: it stays for later.
        If the tail has changed, another run has replaced the log: reads all of it."""
        try:
            with open(self.path, "rb") as f:
                f.seek(self.offset - len(self.tail))
                if f.read(len(self.tail)) != self.tail:
                    self.forget()
                    f.seek(0)
                for line in f:
                    if not line.endswith(b"\n"):
                        break
                    self.lines += 1
                    self.offset += len(line)
                    self.tail = (self.tail + line)[-256:]
                    self.take(parsed(line))
        except FileNotFoundError:
            if self.tail:
                self.forget()
        except OSError:                                      # no descriptor is free: later
            pass

    def take(self, event):
        if event is None:
            self.damaged = self.damaged or self.lines
            return
        kept = self.events
        if event["event"] == "start":                        # of several runs in a log, the last
            kept = []
        if event["event"] == "resume" and count(event.get("step")):   # drops what followed it
            kept = [e for e in self.events if (e.get("step") or 0) <= event["step"]]
        if len(kept) < len(self.events):
            self.events, self.version = kept, self.version + 1
        self.events.append(event)


def events_of(run):
    """All events of a run whose log is there; says which line is none."""
    run.read()
    if run.damaged:
        program = os.path.basename(sys.argv[0])
        print(f"{program}: {run.path}:{run.damaged}: not an event of a log; left out, with all "
              "lines like it", file=sys.stderr)
    if not run.events:
        fail(f"{run.path}: holds no event; give a run's output directory or its log.jsonl")
    return run.events
