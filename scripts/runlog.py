"""The events of a run's log, as plot.py and watch.py read them: runlog.Run(path).

A full disk or a crash may leave a torn line. Each reader says its number and goes on with the rest.
"""
import json
import os
import sys
import time


def fail(message):
    sys.exit(f"{os.path.basename(sys.argv[0])}: {message}")


def path_of(run):
    """The log of a run: an output directory, which may not exist yet, or the log itself."""
    is_log = run.endswith(".jsonl") or (os.path.exists(run) and not os.path.isdir(run))
    return run if is_log else os.path.join(run, "log.jsonl")


def parsed(line):
    """The event of a line of bytes, or None if it is torn. null stands for a number that is not
    known."""
    try:
        event = json.loads(line.decode("utf-8", "replace"))
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


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
        except OSError:                                      # it is not there, or no longer
            if self.tail:
                self.forget()

    def take(self, event):
        if event is None:
            self.damaged = self.damaged or self.lines
            return
        kept = self.events
        if event["event"] == "start":                        # of several runs in a log, the last
            kept = []
        if event["event"] == "resume":                       # drops what followed it
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
