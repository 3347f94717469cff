"""What the tests in Python share: programs and files, the laboratory's modules, which can be
imported after this one, its experiments at their tiny size, and a line for each test's verdict."""
import atexit
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAB_ROOMS = [os.path.join(ROOT, "scripts", "lab", "experiments"), os.path.join(ROOT, "dev", "web")]
sys.path[1:1] = LAB_ROOMS
sys.dont_write_bytecode = True                 # a test leaves no __pycache__ but this file's

os.environ["OMP_WAIT_POLICY"] = "passive"      # tests share a machine with other work
TRAIN, PREPARE = (os.path.join(ROOT, os.environ.get(key, name)) for key, name in
                  [("TRAIN", "train_gpt2"), ("PREPARE", "prepare")])


def read(*path):
    """The text of a file of the repository."""
    with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
        return file.read()


def run(*command, **environment):
    """What a command prints that must succeed; in the repository's root."""
    command = [str(word) for word in command]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False,
                          env={**os.environ, **environment})
    assert done.returncode == 0, \
        f"{' '.join(command[:3])}: {(done.stderr or done.stdout).strip()[-400:]}"
    return done.stdout


class Skip(Exception):
    """Raised by a test that lacks something; says what."""


def need(*programs):
    for program in programs:
        if not shutil.which(program):
            raise Skip(program)


def has_its_turn(number, n):
    """Where a test tries one in n of many cases: whether this is one of them, as in tools.sh."""
    return number % n == 0


def lab_path(name):
    """Where a file of the laboratory lies."""
    return next(path for path in (os.path.join(room, name) for room in LAB_ROOMS)
                if os.path.exists(path))


def load(name):
    """A script of the laboratory as a fresh module, whatever it begins with: 02_knee."""
    spec = importlib.util.spec_from_file_location("lab_" + name, lab_path(name + ".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def near(found, wanted, relative=1e-6, what=""):
    """Equal, but for this part of what is wanted."""
    assert abs(found - wanted) <= relative * abs(wanted), f"{what}: {found}, not {wanted}"


def scratch():
    """A new folder, which goes at the end."""
    folder = tempfile.mkdtemp(prefix="batchwise.")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def wait_until(what, seconds=20.0):
    end = time.time() + seconds
    while not what():
        assert time.time() < end, "waited in vain"
        time.sleep(0.02)


class Tiny:
    """Experiments of the laboratory at --tiny, each run once, in a folder that goes at the end."""

    def __init__(self):
        self.out = scratch()
        self.ran = set()
        os.environ["MPLCONFIGDIR"] = self.out                # nothing in the user's home

    def start(self, label, *flags, **env):
        """Runs an experiment, whatever becomes of it; flags may name another --out."""
        need(TRAIN)
        return subprocess.run([sys.executable, lab_path(label + ".py"), "--tiny", "--out", self.out,
                               *flags], capture_output=True, text=True, check=False, cwd=ROOT,
                              env={**os.environ, **env})

    def run(self, label):
        """Its result."""
        if label not in self.ran:
            done = self.start(label)
            assert done.returncode == 0, f"{label}: status {done.returncode}: {done.stderr[-300:]}"
            self.ran.add(label)
        with open(self.path(label, "result.json"), encoding="utf-8") as f:
            return json.load(f)

    def path(self, label, *names):
        return os.path.join(self.out, label, *names)

    def table(self, label, name):
        """Rows of a table as dicts."""
        of = self.run(label)["tables"][name]
        return [dict(zip(of["columns"], row)) for row in of["rows"]]

    def log(self, label, run, event):
        """These events of a run of the trainer."""
        self.run(label)
        with open(self.path(label, "runs", run + ".jsonl"), encoding="utf-8") as f:
            return [e for e in map(json.loads, f) if e["event"] == event]


def run_tests(tests, chosen=()):
    """Runs every test_NAME of a module's globals, or the chosen names; returns 1 if one failed."""
    failed = 0
    for name in chosen:
        if "test_" + name not in tests:
            print(f"FAIL {name}: there is no such test")
            failed = 1
    for name, body in list(tests.items()):
        if not name.startswith("test_") or (chosen and name[5:] not in chosen):
            continue
        try:
            body()
            print(f"ok {name[5:]}", flush=True)
        except Skip as why:
            print(f"skip {name[5:]}: {why}", flush=True)
        except (Exception, SystemExit) as error:             # whatever it is, the next test runs
            line = error.__traceback__
            while line.tb_next and line.tb_next.tb_frame.f_code.co_filename == tests["__file__"]:
                line = line.tb_next
            print(f"FAIL {name[5:]}: line {line.tb_lineno}: {type(error).__name__} "
                  f"{' '.join(str(error).split())}", flush=True)
            failed = 1
    return failed
