#!/usr/bin/env python3
"""The laptop speedrun's verifier, on a tiny model: what it refuses, that every entry in
dev/speedrun keeps the rules, and that a loss which was not reached does not count.

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

TMP = tempfile.mkdtemp()
FLAGS = ("--layers 1 --heads 1 --channels 16 --seq-len 32 --micro-batch 32 --tokens 100000 "
         "--lr 1e-2 --eval-every 0 --eval-tokens 32 --save-every 0")


def entry(name, command, *changes):
    """An entry in a folder of its own; changes: (file, text before, text after)."""
    patch = ""
    for path, before, after in changes:
        old = read(path) if os.path.exists(os.path.join(ROOT, path)) else ""
        assert before in old, f"{path} lacks {before}"
        source = f"a/{path}" if old else "/dev/null"
        patch += "".join(difflib.unified_diff(
            old.splitlines(True), old.replace(before, after, 1).splitlines(True), source,
            f"b/{path}"))
    with open(os.path.join(TMP, name + ".entry"), "w", encoding="utf-8") as f:
        f.write(command + "\n" + patch)
    return name


def refused(words, action, *args):
    try:
        action(*args)
    except SystemExit as error:
        assert words in str(error), f"wanted '{words}', got: {error}"
    else:
        raise AssertionError(f"nothing is refused for '{words}'")


def patched(name):
    """Applies an entry's patch to a copy of the source, as the verifier does, and checks it."""
    plain = os.path.join(TMP, "plain")
    if not os.path.exists(plain):
        verify.copy_source(plain)
    verify.patch(verify.Entry(name), plain, tempfile.mkdtemp(dir=TMP))


def of_speedrun(*names):
    """Copies entries of dev/speedrun to where the verifier looks."""
    for name in names:
        shutil.copy(os.path.join(SPEEDRUN, name + ".entry"), TMP)


def test_speedrun_baseline_is_make_run():
    flags = re.findall(r"--[a-z0-9-]+ [^ \n]+", read("dev", "speedrun", "baseline.entry"))
    recipe = read("scripts", "tales.sh").replace("$tokens", "6000000").replace('"$warmup"', "20000")
    own = [flag for flag in flags if not flag.startswith(("--eval", "--save"))]
    assert len(own) > 8 and not [flag for flag in own if flag not in recipe], (own, recipe)


def test_speedrun_entries_keep_the_rules():
    """Each applies to the source as it is now, and README's table has it."""
    names = [path[:-6] for path in os.listdir(SPEEDRUN) if path.endswith(".entry")]
    of_speedrun(*names)
    table = read("dev", "speedrun", "README.md")
    assert len(names) >= 4
    for name in names:
        patched(name)
        assert f"| {name} |" in table or name == "baseline", f"the table lacks {name}"


def test_speedrun_refuses_commands():
    for command, words in [
            ("./train_gpt2 --init out/trained --lr 1e-3", "--init is not an entry's to choose"),
            ("", "expected ./train_gpt2")]:
        refused(words, verify.Entry, entry("cheat", command))
    refused("there is no such entry", verify.Entry, "nobody")


def test_speedrun_refuses_patches():
    """To the loader, flags of the compiler, the evaluation; one that is large, or is none."""
    for number, (path, before, after) in enumerate([
            ("dataloader.h", "step_first", "step_last"), ("Makefile", "-O3", "-Ofast"),
            ("dev/train/evaluate.c", "&r->val", "&r->train")]):
        refused(f"changes {path}", patched, entry(f"cheat{number}", "./train_gpt2",
                                                 (path, before, after)))
    refused("at most 20000", verify.Entry, entry("heavy", "./train_gpt2",
                                                 ("train_gpt2.c", "\n", "\n// 0.5\n" * 3000)))
    with open(os.path.join(TMP, "cheat0.entry"), "w", encoding="utf-8") as f:
        f.write("./train_gpt2\n--- no patch\n")
    refused("cheat0.entry: ", patched, "cheat0")


def test_speedrun_race():
    """The patch is in force, the unpatched program takes the loss, and text stays as it is."""
    entry("baseline", "./train_gpt2 " + FLAGS)
    idle = verify.Entry(entry("idle", "./train_gpt2 " + FLAGS,
                              ("train_gpt2.c", "if (isfinite(norm)",
                               "if (norm < 0 && isfinite(norm)")))
    verify.TRAINING_TOKENS, verify.POSITIONS, verify.EVALUATED = 200000, 32, 4096
    del verify.SPLITS["train"]                               # a shorter one here
    os.environ["CFLAGS"] = "-O1"
    scratch = tempfile.mkdtemp(dir=TMP)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        results = verify.race([idle], [5], scratch)
    one, other = results["baseline"][0], results["idle"][0]
    assert f"seed 5  idle         {other}" in said.getvalue(), said.getvalue()
    assert 2 < one.loss < 3.5 < 5 < other.loss < 6, (one, other)
    assert one.cpu > 0.02 and one.wall > 0.02, one
    verify.TARGET = 3.5
    refused("idle missed the target", verify.verdict, "idle", [one], [other])
    verify.SPLITS["val"] = "another"
    refused("it is not the text", verify.Text, os.path.join(scratch, "baseline"),
            tempfile.mkdtemp(dir=TMP))


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
    try:
        sys.exit(testing.run_tests(globals(), sys.argv[1:]))
    finally:
        shutil.rmtree(TMP)
