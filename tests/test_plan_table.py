#!/usr/bin/env python3
"""The plans of the recipes in dev/cuda/README.md are those that the program makes today."""
import os
import subprocess
import sys

sys.dont_write_bytecode = True
import testing

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def test_plans_of_the_recipes():
    if not any(os.access(os.path.join(ROOT, name), os.X_OK)
               for name in ("train_gpt2cu", "train_gpt2cu-emulated")):
        return "train_gpt2cu-emulated (make emulate)"
    done = subprocess.run([sys.executable, os.path.join(ROOT, "scripts/plan_table.py")],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 10, done.stdout
    with open(os.path.join(ROOT, "dev/cuda/README.md"), encoding="utf-8") as file:
        page = file.read()
    for line in done.stdout.splitlines():
        assert line in page.splitlines(), f"the page lacks {line}; scripts/plan_table.py --write"


if __name__ == "__main__":
    sys.exit(testing.run_tests(globals(), sys.argv[1:]))
