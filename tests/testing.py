"""What the tests in Python share: a Python that can draw, the laboratory's modules, and a line for
each test's verdict."""
import importlib.util
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAB_ROOMS = [os.path.join(ROOT, *room) for room in [("scripts", "lab", "experiments"),
                                                    ("scripts", "lab", "shared"), ("dev", "web")]]


class Skip(Exception):
    """Raised by a test that lacks something; says what."""


def has_its_turn(number, n):
    """Where a test tries one in n of many cases: whether this is one of them, as in tools.sh."""
    return number % n == 0


def find_python():
    """The first python3 with matplotlib, None without; a distribution's own may lie behind another
    one."""
    for python in [sys.executable, "python3", "/usr/bin/python3"]:
        try:
            done = subprocess.run([python, "-c", "import matplotlib"], capture_output=True,
                                  check=False)
        except OSError:
            continue
        if done.returncode == 0:
            return python
    return None


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


def run_tests(tests, chosen=()):
    """Runs every test_NAME of a module's globals, or the chosen names; returns 1 if one failed. A
    test that returns a text lacks what it says."""
    failed = 0
    for name in chosen:
        if "test_" + name not in tests:
            print(f"FAIL {name}: there is no such test")
            failed = 1
    for name, body in list(tests.items()):
        if not name.startswith("test_") or (chosen and name[5:] not in chosen):
            continue
        try:
            lacks = body()
            print(f"skip {name[5:]}: needs {lacks}" if lacks else f"ok {name[5:]}", flush=True)
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
