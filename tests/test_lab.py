#!/usr/bin/env python3
"""scripts/lab: how sweeps of runs are kept and gone on with, and the report."""
import json
import os
import shutil
import signal
import subprocess
import sys

import testing
from testing import ROOT
import lab
import report

# Stands for a trainer where only the laboratory is tested: notes that it was started, and behaves
# as --seed says: 666 diverges, 13 fails, 60 takes a minute, 22 waits for a second run.
FAKE = r"""#!/usr/bin/env bash
while [ $# -gt 0 ]; do
    case $1 in --log) log=$2 ;; --seed) seed=$2 ;; --out) mkdir -p "$2" ;; esac
    shift
done
name=$(basename "$log" .jsonl)
echo $$ > "$STARTED.pid"
echo "$name" >> "$STARTED"
echo "$CUDA_VISIBLE_DEVICES" >> "$STARTED.gpus"
echo '{"event":"start","parameters":10}' > "$log"
[ "$seed" = 666 ] && { echo "train: step 9: the run has diverged; lower --lr" >&2; exit 1; }
[ "$seed" = 13 ] && { echo "train: --data x: there is no corpus" >&2; exit 1; }
[ "$seed" = 22 ] && until [ "$(wc -l < "$STARTED")" -ge 2 ]; do
    [ $((n += 1)) -lt 100 ] || exit 1
    sleep 0.1
done
[ "$seed" = 60 ] && { mkfifo "$STARTED.fifo"; read -r -t 60 <> "$STARTED.fifo"; }
for n in 1 2 3 4 5 6 7 8; do
    echo '{"event":"step","step":'$n',"tokens":'${n}00',"loss":4,"seconds":0.5}' >> "$log"
done
echo '{"event":"eval","step":4,"tokens":400,"val_loss":3.0}' >> "$log"
echo '{"event":"eval","step":16,"tokens":1600,"val_loss":2.0}' >> "$log"
echo '{"event":"end","reason":"done","step":16,"tokens":1600}' >> "$log"
"""

# An experiment: its jobs come from the environment, what became of them goes to runs.json.
EXPERIMENT = r"""
import json, os, sys
sys.dont_write_bytecode = True
sys.path.insert(0, os.environ["LAB"])
import lab

def measure(e):
    runs = e.run([lab.Job(**job) for job in json.loads(os.environ["JOBS"])],
                 together="TOGETHER" in os.environ)
    lab.write_json(os.path.join(e.dir, "runs.json"), {
        name: [r.diverged, str(r.val), r.updates_at(2.5), r.updates_at(1.0), len(r.steps)]
        for name, r in runs.items()})

def conclude(e):
    e.table("some", ["a", "b"], [[1, 0.5], [2, float("nan")]])
    e.figure("picture", lab.panels([{"curves": [], "x": "", "y": ""}], ""), alt="nothing")
    return [("so", 2.0, 1.9, 2.1)]

lab.experiment(42, "fake", measure, conclude, endpoint=(0.0, 1.0), title="Fake", question="?",
               prediction="!")
"""


class Fake:
    """A sweep of the fake trainer in a directory of its own."""

    def __init__(self):
        self.dir = testing.scratch()
        self.started = os.path.join(self.dir, "started")
        self.out = os.path.join(self.dir, "out")

    def command(self, jobs, *flags):
        jobs = json.dumps([{"name": name, "flags": ["--seed", seed], **dict(*more)}
                           for name, seed, *more in jobs])
        env = dict(os.environ, LAB=testing.LAB_ROOMS[0], JOBS=jobs, STARTED=self.started)
        return [sys.executable, os.path.join(TMP, "experiment.py"), "--out", self.out, "--trainer",
                os.path.join(TMP, "fake"), "--jobs", "1", *flags], env

    def run(self, jobs, *flags, status=0, **env):
        command, own = self.command(jobs, *flags)
        done = subprocess.run(command, capture_output=True, text=True, check=False,
                              env={**own, **env})
        assert done.returncode == status, done.stderr
        return done.stderr

    def starts(self):
        """Names of the runs that were started, in order."""
        if not os.path.exists(self.started):
            return []
        with open(self.started) as f:
            return f.read().split()

    def result(self, name="runs.json"):
        with open(os.path.join(self.out, "42_fake", name), encoding="utf-8") as f:
            return json.load(f)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:                 # a zombie has ended
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


# ---- sweeps ----

def test_lab_run_values():
    """Between evaluations at 4 (loss 3) and 16 (loss 2), 2.5 lies at 8 in logarithms; what is not
    finite is null in a table. A branch waits for its run, whatever it costs, and goes at its end;
    the run's checkpoints stay."""
    sweep = Fake()
    sweep.run([("late", 1, {"branch": "early", "cost": 9}),
               ("early", 1, {"thin": 2, "keep": True})])
    assert sweep.starts() == ["early", "late"]
    runs = os.path.join(sweep.out, "42_fake", "runs")
    assert [os.path.exists(os.path.join(runs, name)) for name in ("early", "late")] == [True, False]
    diverged, val, updates, never, steps = sweep.result()["late"]
    assert (diverged, val, never, steps) == (False, "2.0", None, 8)
    assert abs(updates - 8) < 1e-9 and sweep.result()["early"][4] == 2
    found = sweep.result("result.json")
    low, high = found["load"]                                # at which a run ended
    assert 0.0 <= low <= high and found["verdict"] == "refuted"
    assert found["tables"]["some"] == {"columns": ["a", "b"], "rows": [[1, 0.5], [2, None]]}


def test_lab_interrupted():
    """Killed in the middle, the same command makes the missing runs only, and no trainer stays."""
    for kill in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        sweep = Fake()
        jobs = [("a", 1), ("b", 1), ("slow", 60), ("d", 1)]
        command, env = sweep.command(jobs)
        # A shell starts what it puts aside deaf to Ctrl-C.
        with subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL,
                              preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
                              ) as process:
            testing.wait_until(lambda: sweep.starts()[-1:] == ["slow"])
            process.send_signal(kill)
            assert process.wait(15) != 0
        with open(sweep.started + ".pid") as f:
            pid = f.read().strip()
        if sys.platform == "linux":
            testing.wait_until(lambda: not alive(pid), 10.0)
        assert sweep.starts() == ["a", "b", "slow"]
        jobs[2] = ("slow", 1)                                # as a changed command: it ends at once
        sweep.run(jobs)
        assert sweep.starts()[3:] == ["slow", "d"], sweep.starts()


def test_lab_torn_log():
    """A run is done when its log says so, whatever else is there."""
    sweep = Fake()
    sweep.run([("a", 1), ("b", 1)])
    log = os.path.join(sweep.out, "42_fake", "runs", "a.jsonl")
    with open(log) as f:
        text = f.read()
    for torn in (text[:-40], text[:text.index('{"event":"end"')]):      # in the last line
        with open(log, "w") as f:
            f.write(torn)
        sweep.run([("a", 1), ("b", 1)])
    assert sweep.starts() == ["a", "b", "a", "a"]


def test_lab_changed_command():
    """A run is made again if its command changed, also one that diverged only then."""
    sweep = Fake()
    for seed, starts in [(1, 3), (2, 4), (2, 4)]:
        sweep.run([("a", 1), ("wild", 666), ("b", seed)])
        assert len(sweep.starts()) == starts, sweep.starts()
    assert sweep.starts() == ["a", "wild", "b", "b"]
    assert sweep.result()["wild"][:4] == [True, "inf", None, None]


def test_lab_together():
    """At the same time, whatever --jobs says; all again if one of them is missing."""
    sweep = Fake()
    for second, starts in [(22, 2), (22, 2), (1, 4)]:
        sweep.run([("a", 22), ("b", second)], TOGETHER="1")
        assert len(sweep.starts()) == starts, sweep.starts()


def test_lab_failing_run():
    sweep = Fake()
    said = sweep.run([("a", 1), ("bad", 13), ("c", 1)], status=1)
    assert said.count("\n") == 1 and "bad: train: --data x: there is no corpus" in said, said
    assert os.path.join("runs", "bad.txt") in said, said
    assert sweep.starts() == ["a", "bad"]


def test_lab_real_trainer():
    """The trainer says that a run has diverged in the words that are looked for."""
    sweep, data = Fake(), os.path.join(TMP, "tales")
    testing.run("./prepare", "tales", "--out", data, "--tokens", 100000)
    sweep.run([("wild", 1, {"flags": ["--data", data, *lab.model("35k"), "--eval-every", 0,
                                      "--lr", 100, "--clip", 0, "--steps", 1500]})],
              "--trainer", os.path.join(ROOT, "train_gpt2"))
    assert sweep.result()["wild"][0]


def test_lab_gpus():
    """Runs of the CUDA trainer go to the GPUs there are, one each, as many at a time."""
    sweep = Fake()
    shutil.copy(os.path.join(TMP, "fake"), os.path.join(sweep.dir, "train_gpt2cu"))
    sweep.run([(name, 1) for name in "abcdef"], "--trainer",
              os.path.join(sweep.dir, "train_gpt2cu"), "--jobs", "2", CUDA_VISIBLE_DEVICES="3,5")
    with open(sweep.started + ".gpus") as f:
        used = f.read().split()
    assert len(used) == 6 and set(used) == {"3", "5"}, used


# ---- the report ----

def test_lab_report():
    """Each result and its figures. An experiment that fails does not stop the others, and no result
    of an earlier run stands in for it."""
    sweep, labels = Fake(), [label for label, _ in report.experiments(["--quick"])]
    sweep.run([("a", 1)])
    text = report.page({"42_fake": sweep.result("result.json")})
    assert "src='42_fake/picture.png'" in text and "Refuted</strong>: so: 2 (1.9" in text, text
    os.rename(os.path.join(sweep.out, "42_fake"), os.path.join(sweep.out, "02_front"))
    done = subprocess.run([sys.executable, testing.lab_path("report.py"), "--quick", "--out",
                           sweep.out, "--trainer", "absent"], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 1 and (
        f"{len(labels)} did not finish: {', '.join(labels)}" in done.stderr), done.stderr
    assert done.stderr.count("there is no such program") == len(labels), done.stderr
    assert os.path.exists(os.path.join(sweep.out, "report.html"))
    assert not os.path.exists(os.path.join(sweep.out, "02_front", "result.json"))


if __name__ == "__main__":
    TMP = os.environ["MPLCONFIGDIR"] = testing.scratch()     # nothing in the user's home
    for file, content in [("fake", FAKE), ("experiment.py", EXPERIMENT)]:
        with open(os.path.join(TMP, file), "w") as f_out:
            f_out.write(content)
    os.chmod(os.path.join(TMP, "fake"), 0o755)
    sys.exit(testing.run_tests(globals(), sys.argv[1:]))
