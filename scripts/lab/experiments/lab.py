"""Shared by the experiments of the laboratory: arguments, the corpus, training runs (made once,
then reused), tables, figures, and one JSON file of an experiment, which report.py puts on a page.

An experiment is its settings, its runs, its endpoint and its figures:

    def measure(e):
        runs = e.run([lab.Job("b64", ["--data", e.corpus(10**6), *lab.model("35k"), ...])])
        e.table("points", ["batch_tokens", "updates"], [[64, runs["b64"].updates_at(2.5)]])

    def conclude(e):
        points = e.rows("points")
        e.found("updates of 64 tokens to a loss of 2.5", points[0]["updates"])
        e.figure("knee", lab.panels([...], "..."), alt="...", caption="...")
        return [("", 1.7, 1.6, 1.8)]

    lab.experiment(2, "knee", measure, conclude, endpoint=(1.5, 2.0), title="...", question="...",
                   prediction="...")

Runs lie in OUT/NN_name/runs: NAME.jsonl is the trainer's log, NAME.txt what it printed, NAME.json
its command. A run is reused if its command is unchanged and its log is complete. The result is
OUT/NN_name/result.json. With --kept the committed tables stand in for the runs.
"""
import argparse
import ctypes
import dataclasses
import functools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple

import kept

ROOT = os.path.dirname(os.path.dirname(kept.LAB))
MPI_TRAINER = os.path.join("build", "train_gpt2-mpi")

# Okabe and Ito's palette, safe for colour-blind readers, without its yellow, which is faint on
# white. Markers and line styles distinguish curves in black and white.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X"]
LINES = ["-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (1, 1))]


def fail(message):
    sys.exit(f"{os.path.basename(sys.argv[0]) or 'lab'}: {message}")


def log_axis(axis, base=10):
    """A logarithmic axis (ax.xaxis or ax.yaxis) with plain numbers: 1 2 5 10, or powers of two."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
    getattr(axis.axes, f"set_{axis.axis_name}scale")("log", base=base)
    axis.set_major_locator(LogLocator(base=base, subs=(1.0, 2.0, 5.0) if base == 10 else (1.0,),
                                      numticks=30 if base == 10 else 12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    axis.set_minor_formatter(NullFormatter())


def plain(value):
    """12000 is 12,000; 0.00125 is 0.00125; 2.5e6 is 2.5M."""
    for size, letter in [(1e9, "G"), (1e6, "M")]:
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


# A curve of a panel. low, high: the ends of its intervals, if it has any. look: what matplotlib is
# told beside the colour, marker and line that follow from the curve's number.
Curve = namedtuple("Curve", "label x y low high look", defaults=(None, None, {}))


def panel(ax, curves, x, y, title="", log=(None, None), names=None, legend=None):
    """Curves, a faint grid, no frame. log: the base of each logarithmic axis; names: of the ticks
    0, 1, ... of the x axis; legend: its title."""
    for i, c in enumerate(curves):
        k = i % len(COLOURS)
        look = {"color": COLOURS[k], "marker": MARKERS[k], "linestyle": LINES[k], "markersize": 5,
                "linewidth": 1.4, "label": c.label, **c.look}
        if c.low is None:
            ax.plot(c.x, c.y, **look)
        else:
            ends = [[b - a for a, b in zip(c.low, c.y)], [b - a for a, b in zip(c.y, c.high)]]
            ax.errorbar(c.x, c.y, ends, capsize=2, **look)
    for axis, base in zip((ax.xaxis, ax.yaxis), log):
        if base:
            log_axis(axis, base)
        else:
            ax.locator_params(axis.axis_name, nbins=6)
            axis.set_major_formatter(lambda value, _: plain(value))
    if names:
        ax.set_xticks(range(len(names)), names)
        ax.margins(x=0.2)
    if any(c.label for c in curves):
        ax.legend(title=legend)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.set_title(title, loc="left")
    ax.grid(True, which="major", color="#dddddd", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def panels(every, title, size=(7.6, 4.6), rows=1, **shared):
    """A Figure of panels, each given as panel's arguments."""
    from matplotlib.figure import Figure
    figure = Figure(size, layout="constrained")
    places = figure.subplots(rows, len(every) // rows, squeeze=False, **shared)
    for ax, words in zip(places.flat, every):
        panel(ax, **words)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


# Layers, heads, channels of the laboratory's models, by their parameters. One core reads about
# 180,000 tokens a second with the smallest.
MODELS = {"35k": (2, 2, 32), "119k": (2, 2, 64), "0.8M": (4, 4, 128)}


def model(name, T=32):
    """The flags of a model with sequences of T tokens."""
    layers, heads, channels = MODELS[name]
    return ["--layers", layers, "--heads", heads, "--channels", channels, "--seq-len", T]


def half_life_beta2(batch):
    """AdamW's beta2 for a batch of `batch` tokens: the second moment keeps the half-life in tokens
    that it has with 0.95 at a batch of 4,096 tokens (Marek et al. 2025), but remembers at least
    as long as the first, whose beta1 is 0.9: a numerator must not outlive its denominator."""
    return min(max(0.95 ** (batch / 4096), 0.9), 0.999999)


def number(value):
    return (isinstance(value, (int, float)) and not isinstance(value, bool)
            and math.isfinite(value))


# ---------------------------------------------------------------- machine

def processors():
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:                                   # not on macOS
        return os.cpu_count() or 1


@functools.lru_cache(maxsize=None)
def gpus():
    """Names that CUDA_VISIBLE_DEVICES takes; empty without a GPU."""
    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        return os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    return [str(i) for i in range(len(output_of("nvidia-smi", "-L").splitlines()))]


def output_of(*command):
    """What a program prints; empty if the program is missing or fails."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


def plan(e):
    """The commit of plans/NN_name.md. In full nothing is measured before its plan is committed."""
    path = os.path.join("scripts", "lab", "plans", e.label + ".md")
    commit = output_of("git", "log", "-1", "--format=%h", "--", path).strip()
    if e.size == "full" and (not commit or output_of("git", "status", "--porcelain", path)):
        fail(f"{path} is not committed")
    return commit


def machine(trainer="train_gpt2"):
    """One line that names the hardware."""
    if is_cuda(trainer):
        names = output_of("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()
        return f"{len(names)} x {names[0].strip()}" if names else "a GPU"
    name = (output_of("grep", "-m1", "model name", "/proc/cpuinfo").partition(":")[2]
            or output_of("sysctl", "-n", "machdep.cpu.brand_string"))
    return f"{processors()} processors, {' '.join(name.split()) or 'a CPU'}"


def is_cuda(trainer):
    return os.path.basename(trainer) == "train_gpt2cu"


def has_mpi():
    """Whether runs on several CPU ranks are possible here."""
    return os.access(os.path.join(ROOT, MPI_TRAINER), os.X_OK) and bool(shutil.which("mpirun"))


# ---------------------------------------------------------------- a run of a trainer

@dataclasses.dataclass
class Job:
    """A run to be made. --log and --threads are added to the flags."""
    name: str
    flags: list
    ranks: int = 1                   # above 1: started by scripts/launch.sh
    threads: int = 1
    cost: float = 1.0                # relative to the sweep's other jobs: the longest start first
    keep: bool = False               # --out OUT/NN_name/runs/NAME, so that checkpoints stay
    branch: str = None               # resumes a copy of that run; goes at its end, unless kept
    program: str = None              # in place of the trainer
    env: dict = dataclasses.field(default_factory=dict)      # more environment variables
    alone: bool = False              # no other job runs beside it: for timings
    thin: int = None                 # at most this many steps stay in the log
    peak: int = None                 # 0: its most memory is looked for, in bytes

    def __post_init__(self):
        self.flags = [str(flag) for flag in self.flags]


class Run:
    """A finished run: its log, read on first use."""

    def __init__(self, job, base, record):
        self.name, self.base, self.record = job.name, base, record

    @functools.cached_property
    def events(self):
        return read_log(self.base + ".jsonl")

    def of(self, event):
        return [record for record in self.events if record["event"] == event]

    steps = property(lambda self: self.of("step"))
    evals = property(lambda self: self.of("eval"))
    start = property(lambda self: next(iter(self.of("start")), {}))
    end = property(lambda self: next(iter(self.of("end")[-1:]), {}))

    @property
    def diverged(self):
        """The trainer reported divergence, or its last validation loss is not finite."""
        return bool(self.record.get("diverged")) or (bool(self.evals) and not number(
            self.evals[-1].get("val_loss")))

    @property
    def val(self):
        return self.evals[-1]["val_loss"] if self.evals and not self.diverged else math.inf

    def updates_at(self, loss):
        """Updates until the validation loss first reaches `loss`; None if never. Between two
        evaluations the loss is interpolated linearly in the logarithm of updates."""
        at = first_at([(math.log(x["step"]), x["val_loss"]) for x in self.evals
                       if x["step"] > 0 and number(x.get("val_loss"))], loss)
        return None if at is None else math.exp(at)


def first_at(points, level):
    """x where y of [(x, y)] first falls to `level`, linear between two points; None if never."""
    last = None
    for x, y in points:
        if y <= level:
            return x if last is None else last[0] + (x - last[0]) * (last[1] - level) / (
                last[1] - y)
        last = x, y
    return None


def read_log(path):
    """The events of a log. A truncated last line (the run was killed) is skipped."""
    try:
        with open(path, encoding="utf-8") as f:
            return [json.loads(line) for line in f.read().split("\n")[:-1]]
    except OSError:
        return []


def ended(path):
    """Whether a log's last event says that the run is done."""
    events = read_log(path) or [{}]
    return (events[-1].get("event"), events[-1].get("reason")) == ("end", "done")


def write_json(path, record):
    """Writes to a temporary name, then renames: an interrupted run leaves no partial file. A list
    of plain values, such as the row of a table, stands on one line."""
    text = re.sub(r"\[\n[^][{}]*\]", lambda of: re.sub(r"\n *", " ", of.group()),
                  json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False))
    with open(path + ".tmp", "w", encoding="utf-8") as f:
        f.write(text + "\n")
    os.replace(path + ".tmp", path)


def thin_log(path, most):
    """Keeps at most `most` steps of a log, evenly spaced."""
    with open(path, encoding="utf-8") as f:
        lines = f.readlines()
    at = [i for i, line in enumerate(lines) if line.startswith('{"event":"step"')]
    if len(at) > most:
        dropped = set(at) - {at[round(j * (len(at) - 1) / max(1, most - 1))] for j in range(most)}
        with open(path + ".tmp", "w", encoding="utf-8") as f:
            f.writelines(line for i, line in enumerate(lines) if i not in dropped)
        os.replace(path + ".tmp", path)


def peak_memory(pid):
    """VmHWM, the largest resident set so far in bytes: the maximum of this process and those that
    it has started; 0 where there is no /proc. It must be read while the process runs: wait4() would
    include this interpreter, from which the process was forked."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
            most = next((1024 * int(line.split()[1]) for line in f if line.startswith("VmHWM:")), 0)
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
            return max([most, *map(peak_memory, f.read().split())])
    except OSError:                                          # it has ended meanwhile
        return 0


def end_with_parent():                                       # Linux: a child dies with its parent
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, int(signal.SIGTERM))      # PR_SET_PDEATHSIG


# ---------------------------------------------------------------- a sweep

class Sweep:
    """Runs jobs, as many at a time as there are slots; only Experiment.run uses it."""

    def __init__(self, experiment, jobs, slots):
        self.e, self.slots = experiment, slots
        self.waiting = sorted(jobs, key=lambda job: -job.cost)
        self.undone = {job.name for job in jobs}
        self.free = list(range(slots))
        self.running = []                                    # (job, process, its slots, since)
        self.shown = time.time()

    def run(self):
        try:
            while self.waiting or self.running:
                self.start_what_fits()
                self.collect()
                time.sleep(0.02)
        except BaseException:
            for _, process, *_ in self.running:
                process.terminate()
            for _, process, *_ in self.running:
                process.wait()
            raise

    def start_what_fits(self):
        for job in list(self.waiting):
            threads = 1 if is_cuda(job.program or self.e.args.trainer) else job.threads
            need = self.slots if job.alone else min(self.slots, job.ranks * threads)
            if need > len(self.free):
                return                                       # in order, or a wide job would starve
            if job.branch in self.undone:
                continue
            taken = [self.free.pop(0) for _ in range(need)]
            self.waiting.remove(job)
            self.running.append((job, self.e.start(job, taken), taken, time.time()))
        assert self.running or not self.waiting, "a circular dependency"

    def collect(self):
        for entry in list(self.running):
            job, process, taken, since = entry
            if process.poll() is None:
                if job.peak is not None:
                    job.peak = max(job.peak, peak_memory(process.pid))
                continue
            self.running.remove(entry)
            self.free = sorted(self.free + taken)
            self.e.finish(job, process.returncode, time.time() - since)
            self.undone.discard(job.name)
            if time.time() - self.shown > 20.0:
                self.shown = time.time()
                print(f"{self.e.label}: {len(self.undone)} runs to go", file=sys.stderr, flush=True)


# ---------------------------------------------------------------- a tuned method

def rate(k):
    """A learning rate by its number."""
    return 1e-3 * 2.0 ** k


class Tuned:
    """A method with its own best learning rate. It runs a grid of rates with one seed or more; the
    grid grows until its best rate lies inside. Then the best rate runs with other seeds, and only
    these are reported: the best of several noisy losses is too low.

    job       job(variant, k, seed): the lab.Job at rate number k; rates are a factor of 2 apart
    middle    {variant: where its grid begins}; a variant is another choice than the rate
    plan      "first": the seed of the grid; "also": more seeds of it, or left out; "seeds": the
              others; "grid": its rates around middle; "extend": the lowest and highest k that a
              grid may grow to, or None
    score     of a run: what the best rate makes smallest
    """

    def __init__(self, job, middle, plan, score=lambda run: run.val):
        self.job, self.plan, self.score = job, plan, score
        self.choosing = [plan["first"], *plan.get("also", [])]
        self.grid = {(v, k + i) for v, k in middle.items() for i in plan["grid"]}
        self.runs = {}                                       # (variant, k, seed) -> Run

    def best(self):
        """(variant, k)"""
        return min(sorted(self.grid), key=lambda at: sum(
            self.score(self.runs[(*at, seed)]) for seed in self.choosing))

    def at_edge(self):
        variant, k = self.best()
        return not {(variant, k - 1), (variant, k + 1)} <= self.grid

    def missing(self):
        """The runs of the next round."""
        want = self.of_grid()
        if want <= set(self.runs) and self.plan["extend"]:
            (variant, k), (low, high) = self.best(), self.plan["extend"]
            self.grid |= {(variant, near) for near in (k - 1, k + 1) if low <= near <= high}
            want = self.of_grid()
        if want <= set(self.runs):
            want = {(*self.best(), seed) for seed in self.plan["seeds"]}
        return sorted(want - set(self.runs))

    def of_grid(self):
        """The runs that choose."""
        return {(*at, seed) for at in self.grid for seed in self.choosing}

    def chosen(self):
        """The runs at the best rate, one a seed."""
        return [self.runs[(*self.best(), seed)] for seed in self.plan["seeds"]]


def tune(e, methods):
    """Makes all runs of the methods; returns the methods."""
    while wanted := [(m, at, m.job(*at)) for m in methods for at in m.missing()]:
        runs = e.run([job for _, _, job in wanted])
        for m, at, job in wanted:
            m.runs[at] = runs[job.name]
    return methods


# ---------------------------------------------------------------- an experiment

class Experiment:
    def __init__(self, number, name, title, question, prediction, retrospective=False):
        import matplotlib                                    # if it is missing, no run is made
        matplotlib.rcParams.update({"font.size": 10, "legend.frameon": False, "legend.fontsize": 9,
                                    "axes.titlesize": 10.5, "figure.dpi": 100})
        self.number, self.name, self.title = number, name, title
        self.question, self.prediction, self.retrospective = question, prediction, retrospective
        self.label = f"{number:02d}_{name}"
        self.args = self.read_arguments()
        self.dir = os.path.join(self.args.out, self.label)
        self.settings, self.figures, self.tables = [], [], {}
        self.run_seconds, self.loads = 0.0, []
        self.machine = machine(self.args.trainer)
        if self.args.kept:
            self.restore()
        os.makedirs(os.path.join(self.dir, "runs"), exist_ok=True)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    # -- the command line

    def read_arguments(self):
        parser = argparse.ArgumentParser(description=f"{self.title}: {self.question}")
        size = parser.add_mutually_exclusive_group()
        size.add_argument("--quick", action="store_const", const="quick", dest="size",
                          help="minutes instead of hours; make lab uses it")
        size.add_argument("--tiny", action="store_const", const="tiny", dest="size",
                          help="seconds: for tests, the numbers mean nothing")
        parser.add_argument("--out", metavar="DIR", help="default: lab")
        parser.add_argument("--jobs", type=int, metavar="N",
                            help="parallel runs (default: number of processors, or GPUs)")
        parser.add_argument("--trainer", metavar="PATH", help="default: ./train_gpt2")
        parser.add_argument("--kept", action="store_true", help="make no run; the committed tables "
                            "give the numbers, the figures and the verdict again")
        args = parser.parse_args()
        args.size = args.size or "full"
        here = os.getcwd()
        os.chdir(ROOT)
        args.out = inside_root(here, args.out) if args.out else "lab"
        args.trainer = inside_root(here, args.trainer) if args.trainer else "train_gpt2"
        self.size = args.size
        if args.jobs is None:
            args.jobs = max(1, len(gpus())) if is_cuda(args.trainer) else processors()
        if args.jobs < 1:
            fail(f"--jobs {args.jobs}: expected 1 or more")
        for program in () if args.kept else (args.trainer, "prepare"):
            if not os.access(program, os.X_OK):
                fail(f"{program}: there is no such program; build it with make")
        return args

    def pick(self, tiny, quick, full):
        return {"tiny": tiny, "quick": quick, "full": full}[self.size]

    # -- data and model

    def corpus(self, tokens, least=10 ** 6):
        """The path of a corpus of tales with at least `tokens` tokens: `least` times a power of
        two. Experiments that need the same size share it."""
        size = least
        while size < tokens:
            size *= 2
        path = os.path.join(self.args.out, "data", f"tales_{size}")
        if not os.path.exists(os.path.join(path, "tokenizer.json")):
            made = f"{path}.{os.getpid()}"
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if subprocess.call([os.path.join(".", "prepare"), "tales", "--out", made, "--tokens",
                                str(size)], stdout=subprocess.DEVNULL):
                fail(f"{path} could not be made")
            try:
                os.rename(made, path)
            except OSError:                                  # another experiment was faster
                shutil.rmtree(made)
        return path

    def timing(self, model, batch, micro, steps):
        """Flags of some updates for their time alone."""
        return ["--data", self.corpus(10 ** 6), *model, "--micro-batch", micro, "--batch-tokens",
                batch, "--steps", steps, "--eval-every", 0, "--eval-tokens", 1024, "--seed", 1]

    # -- runs

    def run(self, jobs, together=False):
        """Makes the missing runs; returns all of them by name. together: all at the same time, to
        see what one core does while another one works."""
        names = [job.name for job in jobs]
        assert len(set(names)) == len(names), "two jobs have one name"
        self.settings = self.settings or [
            "Flags of a run: " + " ".join(jobs[0].flags).replace(self.args.out + os.sep, "")]
        missing = [job for job in jobs if not self.is_done(job)]
        if missing and together:
            missing = jobs
        try:
            Sweep(self, missing, len(jobs) if together else self.args.jobs).run()
        except KeyboardInterrupt:
            fail("stopped; run the same command again to continue")
        runs = {job.name: Run(job, self.base(job), self.recorded(job)) for job in jobs}
        self.run_seconds += sum(run.record["wall"] for run in runs.values())
        self.loads += [run.record["load"] for run in runs.values()]
        return runs

    def base(self, job):
        return os.path.join(self.dir, "runs", job.name)

    def command(self, job):
        program = job.program or self.args.trainer
        front = []
        if job.ranks > 1:
            if job.program is None and not is_cuda(program):
                program = MPI_TRAINER
            front = [os.path.join("scripts", "launch.sh"), "-n", str(job.ranks)]
        if os.sep not in program:
            program = os.path.join(".", program)
        base = self.base(job)
        flags = job.flags + ["--threads", str(job.threads), "--log", base + ".jsonl"]
        if job.keep or job.branch:
            flags += ["--out", base]
        if job.branch:
            flags.append("--resume")
        return front + [program] + flags

    def identity(self, job):
        """A kept run is reused only if all of this is equal."""
        return {"command": self.command(job), "env": job.env, "branch": job.branch}

    def recorded(self, job):
        return kept.load(self.base(job) + ".json") or {}

    def is_done(self, job):
        record = self.recorded(job)
        return (self.identity(job).items() <= record.items()
                and (record["diverged"] or ended(self.base(job) + ".jsonl")))

    def start(self, job, slots):
        base = self.base(job)
        for end in [".json", ".jsonl", ".txt"]:
            if os.path.exists(base + end):
                os.remove(base + end)
        if os.path.isdir(base):
            shutil.rmtree(base)
        if job.branch:
            shutil.copytree(os.path.join(self.dir, "runs", job.branch), base, symlinks=True,
                            copy_function=os.link)           # a checkpoint is never written again
        env = dict(os.environ, OMP_WAIT_POLICY="passive")
        if is_cuda(job.program or self.args.trainer):
            devices = gpus() or ["0"]
            env["CUDA_VISIBLE_DEVICES"] = ",".join(devices[i % len(devices)] for i in slots)
        env.update(job.env)
        with open(base + ".txt", "wb") as out:
            try:                                             # Ctrl-C reaches only this process
                return subprocess.Popen(self.command(job), stdin=subprocess.DEVNULL, stdout=out,
                                        stderr=subprocess.STDOUT, env=env, start_new_session=True,
                                        preexec_fn=end_with_parent)
            except OSError as error:
                fail(f"{job.name}: {self.command(job)[0]}: {error.strerror}")

    def finish(self, job, status, wall):
        base = self.base(job)
        with open(base + ".txt", encoding="utf-8", errors="replace") as f:
            printed = f.read()
        record = dict(self.identity(job), wall=round(wall, 3), diverged=False, peak=job.peak,
                      load=round(os.getloadavg()[0], 1))
        if status != 0:
            if "the run has diverged" not in printed:
                fail(f"{job.name}: {last_line(printed) or f'exit status {status}'}; "
                     f"its output is in {base}.txt")
            record["diverged"] = True
        elif not ended(base + ".jsonl"):
            fail(f"{job.name}: ended early; its output is in {base}.txt")
        if job.branch and not job.keep:
            shutil.rmtree(base)
        if job.thin is not None:
            thin_log(base + ".jsonl", job.thin)
        write_json(base + ".json", record)

    # -- results

    def restore(self):
        """--kept: takes the committed tables, and what is known of the runs behind them; numbers
        are found anew."""
        of = kept.read(self.label) or fail(f"{self.label}: nothing is committed")
        self.tables = {name: table for name, table in of["tables"].items() if name != "numbers"}
        self.size = of["size"]
        self.settings, self.machine = of["settings"], of["machine"]
        self.loads, self.run_seconds = of["load"] or [], of["run_seconds"]

    def table(self, name, columns, rows):
        rows = [[rounded(value) for value in row] for row in rows]
        assert all(len(row) == len(columns) for row in rows), (name, columns)
        self.tables[name] = {"columns": columns, "rows": rows}

    def rows(self, name, **where):
        """A table of this experiment as dicts, none without it; those rows that have these
        values."""
        return kept.only(kept.rows(self.tables.get(name)), **where)

    def found(self, what, value, low=None, high=None):
        """A number that the experiment has found, with a 90% interval; printed and kept."""
        numbers = self.tables.setdefault("numbers", {"columns": ["what", "value", "low", "high"],
                                                     "rows": []})
        numbers["rows"] = [row for row in numbers["rows"] if row[0] != what]
        numbers["rows"].append([what, *map(rounded, (value, low, high))])
        print(f"{what}: {kept.told(*numbers['rows'][-1][1:])}", flush=True)

    def figure(self, name, figure, alt, caption=""):
        """Saves a Figure."""
        path = os.path.join(self.dir, f"{name}.png")
        figure.savefig(path, dpi=130)
        self.figures.append({"name": name, "alt": alt, "caption": caption})

    def close(self, word, why, found=()):
        """Says the verdict and writes the result."""
        print(f"{self.label}: {word}: {why}", flush=True)
        size = "" if self.size == "full" else f" --{self.size}"
        script = os.path.relpath(os.path.abspath(sys.argv[0]), ROOT)
        trainer = "" if self.args.trainer == "train_gpt2" else f" --trainer {self.args.trainer}"
        write_json(os.path.join(self.dir, "result.json"), {
            "number": self.number, "name": self.name, "title": self.title,
            "question": self.question, "prediction": self.prediction, "verdict": word, "why": why,
            "retrospective": self.retrospective,
            "endpoint": [[words, *map(rounded, ends)] for words, *ends in found],
            "settings": self.settings, "figures": self.figures,
            "command": f"{script}{size}{trainer}", "size": self.size, "machine": self.machine,
            "load": [min(self.loads), max(self.loads)] if self.loads else None,
            "run_seconds": round(self.run_seconds, 1), "tables": self.tables})


def experiment(number, name, measure, conclude, missing=lambda e: "", endpoint=None, **words):
    """An experiment as a program. measure(e) makes the runs and writes their tables, unless --kept
    has them; conclude(e) derives the numbers and figures from these, and returns what the endpoint
    found: [(words, value, low, high)] with 90% intervals, or why it found nothing. missing(e): what
    this machine lacks for the runs. endpoint: (low, high), where the one quantity that the
    experiment decides is predicted to lie. Its seeds are planned, too: none is added afterwards,
    and none has tuned a rate or made the prediction. Without an endpoint, beside it, and in a quick
    run, all that an experiment shows is an observation. retrospective: the data are older than the
    prediction."""
    e = Experiment(number, name, **words)
    lacks = "" if e.args.kept else missing(e)
    if lacks:
        e.close("skipped", lacks)
        return
    if not e.args.kept:
        measure(e)
    found = conclude(e)
    if endpoint is None:
        e.close("observed", "this experiment has no endpoint")
    elif isinstance(found, str):
        e.close("undecided", found)
    else:
        word, why = judge(*endpoint, found)
        e.close(word if e.size == "full" else "observed", why, found)


def judge(least, most, found):
    """(verdict, why). found: 90% intervals of one quantity or of several that must all be as
    predicted. Inside the prediction they confirm it, outside they refute it, across an end of it
    they leave it undecided."""
    if not found:
        return "undecided", "nothing was measured"
    if any(value is None or value != value for _, *values in found for value in values):
        return "undecided", "too few runs for an interval"
    inside = [least <= low and high <= most for _, _, low, high in found]
    outside = [high < least or low > most for _, _, low, high in found]
    word = "as predicted" if all(inside) else "refuted" if any(outside) else "undecided"
    bounds = (f"below {most:g}" if least == -math.inf else f"above {least:g}" if most == math.inf
              else f"{least:.3g} to {most:.3g}")
    return word, "; ".join(f"{words}{': ' if words else ''}{value:.3g} ({low:.3g} to {high:.3g})"
                           for words, value, low, high in found) + f"; predicted {bounds}"


def rounded(value):
    """Of a table: nine digits; None for what is not finite."""
    if not isinstance(value, float) and not hasattr(value, "dtype"):
        return value
    return float(f"{value:.9g}") if math.isfinite(value) else None


def last_line(text):
    lines = [line.strip() for line in text.replace("\r", "\n").split("\n") if line.strip()]
    return lines[-1] if lines else ""


def inside_root(here, path):
    """A path given relative to `here`, made relative to the project's root if it lies inside."""
    path = os.path.realpath(os.path.join(here, path))
    root = os.path.realpath(ROOT)
    return os.path.relpath(path, root) if path.startswith(root + os.sep) else path
