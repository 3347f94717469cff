#!/usr/bin/env python3
"""The laptop speedrun's verifier, on a tiny model: every entry in dev/speedrun applies, its patch is
in force, and a loss which was not reached does not count.

    tests/test_speedrun.py [NAME...]
"""
import contextlib
import difflib
import io
import os
import re
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True
import testing
from testing import ROOT, read

SPEEDRUN = os.path.join(ROOT, "dev", "speedrun")
sys.path.insert(1, SPEEDRUN)
import verify

TMP = testing.scratch()
FLAGS = ("--layers 1 --heads 1 --channels 16 --seq-len 32 --micro-batch 32 --tokens 100000 "
         "--lr 1e-2 --eval-every 0 --eval-tokens 32 --save-every 0")


def entry(name, command, path=None, before="", after=""):
    """An entry in a folder of its own, with a patch of one file or none."""
    old = read(path) if path else ""
    patch = "".join(difflib.unified_diff(
        old.splitlines(True), old.replace(before, after, 1).splitlines(True), f"a/{path}",
        f"b/{path}"))
    with open(os.path.join(TMP, name + ".entry"), "w", encoding="utf-8") as f:
        f.write(command + "\n" + patch)
    return verify.Entry(name)


def refused(words, action, *args):
    try:
        action(*args)
    except SystemExit as error:
        assert words in str(error), f"wanted '{words}', got: {error}"
    else:
        raise AssertionError(f"nothing is refused for '{words}'")


def test_speedrun_baseline_is_make_run():
    flags = re.findall(r"--[a-z0-9-]+ [^ \n]+", read("dev", "speedrun", "baseline.entry"))
    recipe = read("scripts", "tales.sh").replace("$tokens", "6000000").replace('"$warmup"', "20000")
    own = [flag for flag in flags if not flag.startswith(("--eval", "--save"))]
    assert len(own) > 8 and not [flag for flag in own if flag not in recipe], (own, recipe)


def test_speedrun_entries_apply():
    """To the source as it is now, as the verifier does it; README's table has each."""
    names = [path[:-6] for path in os.listdir(SPEEDRUN) if path.endswith(".entry")]
    table, plain = read("dev", "speedrun", "README.md"), os.path.join(TMP, "plain")
    assert len(names) >= 4
    verify.copy_source(plain)
    for name in names:
        shutil.copy(os.path.join(SPEEDRUN, name + ".entry"), TMP)
    for name in names:
        verify.patch(verify.Entry(name), plain, tempfile.mkdtemp(dir=TMP))
        assert f"| {name} |" in table, f"the table lacks {name}"
    refused("there is no such entry", verify.Entry, "nobody")


def test_speedrun_refuses_what_misleads():
    """What the verifier sets, weights, a look at the validation split; source outside the rules."""
    for flag in ("--data x", "--seed=3", "--init out/tales", "--target-loss 1"):
        refused(f"{flag.split()[0]} is not for an entry", entry, "wrong", "./train_gpt2 " + flag)
    for path in ("dev/train/evaluate.c", "dev/data/tales.c", "dataloader.h", "Makefile"):
        refused(f"may not change {path}", entry, "wrong", "./train_gpt2", path, "a", "b")


def test_speedrun_race():
    """The patch is in force; the unpatched program takes the loss."""
    base = entry("baseline", "./train_gpt2 " + FLAGS)
    idle = entry("idle", "./train_gpt2 " + FLAGS, "train_gpt2.c", "if (isfinite(norm)",
                 "if (norm < 0 && isfinite(norm)")
    verify.TRAINING_TOKENS, verify.POSITIONS, verify.EVALUATED = 200000, 32, 4096
    os.environ["CFLAGS"] = "-O1"
    with contextlib.redirect_stdout(io.StringIO()) as said:
        results = verify.race([base, idle], [5], tempfile.mkdtemp(dir=TMP))
    one, other = results["baseline"][0], results["idle"][0]
    assert f"seed 5  idle         {other}" in said.getvalue(), said.getvalue()
    assert 2 < one.loss < 3.5 < 5 < other.loss < 6, (one, other)
    assert one.cpu > 0.02 and one.wall > 0.02, one
    verify.TARGET = 3.5
    refused("idle missed the target", verify.verdict, "idle", [one], [other])


def test_speedrun_ratio():
    """The geometric mean of the ratios: here of 2 and 8, and of 3 and 3."""
    verify.TARGET = 1.5
    one, other = [[verify.Result(8.0, 3.0, 1.0)] * 2,
                  [verify.Result(4.0, 1.0, 1.0), verify.Result(1.0, 1.0, 1.5)]]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        verify.verdict("quick", one, other)
    assert said.getvalue().startswith(
        "quick: the baseline takes 4.00 times as long, and 3.00 times the CPU seconds; "
        "by seed 2.00 (3.00), 8.00 (3.00)"), said.getvalue()


if __name__ == "__main__":
    verify.HERE = TMP
    sys.exit(testing.run_tests(globals(), sys.argv[1:]))
