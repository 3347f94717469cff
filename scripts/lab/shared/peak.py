#!/usr/bin/env python3
"""Runs a command; prints the peak memory of any one of its processes as a last line `peak BYTES`.

    scripts/lab/shared/peak.py ./train_gpt2 --data DIR --steps 2
"""
import subprocess
import sys
import time

import lab


def watch(command):
    """Returns the command's exit status. Each process's own high-water mark is read while it runs:
    wait4() would include this interpreter, from which the process was forked."""
    process, peak = subprocess.Popen(command, preexec_fn=lab.end_with_parent), 0
    while process.poll() is None:
        peak = max(peak, largest(process.pid))
        time.sleep(0.01)
    if peak:                                                 # else it ended before it was looked at
        print(f"peak {peak}")
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def largest(pid):
    """VmHWM, a process's largest resident set so far, in bytes: the maximum of this process and
    those it has started; 0 where there is no /proc."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
            most = next((1024 * int(line.split()[1]) for line in f if line.startswith("VmHWM:")), 0)
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
            return max([most] + [largest(child) for child in f.read().split()])
    except OSError:                                          # it has ended meanwhile
        return 0


def peak_of(run):
    """Bytes, of a lab.Run made with this program; None if it printed none."""
    with open(run.base + ".txt", encoding="utf-8", errors="replace") as f:
        last = lab.last_line(f.read()).split()
    return int(last[1]) if last[:1] == ["peak"] else None


if __name__ == "__main__":
    sys.exit(watch(sys.argv[1:]) if sys.argv[1:] else "peak.py: expected the program to run")
