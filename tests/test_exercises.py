#!/usr/bin/env python3
"""dev/exercises and dev/check: a right solution of every function passes its check, the blank fails
with a line that helps, and so do typical mistakes; the commands keep a reader's work.

    tests/test_exercises.py [NAME...]              the tests of these names only
    FAULTS=1 tests/test_exercises.py               three mistakes of each exercise, not the first;
                                                   every blank; all open exercises and their
                                                   mistakes

Exercises that do not call each other share a program; right solutions may call each other. An open
exercise has a solution in dev/exercises/solutions; its check needs PyTorch. Without g++ those in
CUDA are skipped.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import testing
from testing import ROOT, read

sys.path.insert(0, os.path.join(ROOT, "dev", "exercises"))
import exercises
from exercises import EXERCISES, KERNELS, NAMES
from exercise_solutions import BITS, OPEN_WRONG, RACE, RIGHT, SCRATCH, SHARED, WRONG

# A row's inputs may come from another exercise's function, and some call a whole model: mistakes of
# one list stand in one program.
PROGRAMS = [
    ["embedding_forward", "embedding_backward", "xent_forward", "layernorm_forward",
     "gelu_backward", "linear_backward", "attention_plain", "adamw_update", "global_norm"],
    ["xent_backward", "layernorm_backward", "attention_backward"],
    ["gradient_accumulation", "kv_cache", "sample_token", "ring_allreduce", "zero1",
     "attention_tiled"],
    ["warp_sum", "transpose_shared", "matmul_tiled"],
    ["softmax_row", "layernorm_cuda", "find_the_race"]]
RIGHT_PROGRAMS = [PROGRAMS[0], PROGRAMS[1] + PROGRAMS[2], PROGRAMS[3] + PROGRAMS[4]]
OPEN = [e for e in EXERCISES if not e.function]
ALL = os.environ.get("FAULTS") == "1"
MISTAKES = 3 if ALL else 1
BY_THREADS = [RACE, SCRATCH, SHARED, BITS]       # what dev/exercises/threads.c finds, with gcc


def program_verdicts(chosen, edit):
    """Of exercises in one program: edit(source, exercise) returns the new source."""
    texts = {e.file: read(e.file) for e in chosen}
    for e in chosen:
        texts[e.file] = edit(texts[e.file], e)
    with tempfile.TemporaryDirectory() as folder:
        for file, text in texts.items():
            exercises.write(os.path.join(folder, file), text)
        fault = (exercises.build_original(chosen[0].file)
                 or exercises.build_reader(folder, chosen[0].file, folder))
        assert fault is None, fault
        return {e.name: exercises.values_verdict(folder, e)
                or exercises.threads_verdict(folder, e) for e in chosen}


def verdicts(edit, programs):
    """Of each exercise, as make check would say it."""
    said = {}
    for program in programs:
        chosen = [NAMES[name] for name in program]
        if chosen[0].file != KERNELS or shutil.which("g++"):
            said.update(program_verdicts(chosen, edit))
    return said


def with_body(source, e, body):
    begin, end = exercises.body_of(source, e.function)
    return source[:begin] + body + source[end:]


def mistake(source, e, number):
    body, pairs = source[slice(*exercises.body_of(source, e.function))], WRONG[e.name][number][:-1]
    for old, new in zip(pairs[::2], pairs[1::2]):
        assert old in body, f"{e.name}: its original does not say {old}"
        body = body.replace(old, new)
    return with_body(source, e, body)


def test_exercises_in_cuda():
    """Not a test: says that the others leave them out."""
    if not shutil.which("g++"):
        raise testing.Skip("needs g++")


def test_right_solutions_pass():
    """Or the original, where another would compute the same."""
    said = verdicts(lambda source, e: with_body(source, e, RIGHT[e.name].lstrip("\n"))
                    if e.name in RIGHT else source, RIGHT_PROGRAMS)
    for name, line in said.items():
        assert line is None, f"{name}: {line}"


def test_blanks_fail_with_a_line_that_helps():
    """Of two programs, a CPU's and a GPU's."""
    for name, line in verdicts(exercises.blank, PROGRAMS if ALL else PROGRAMS[1::2]).items():
        assert line and line.count("\n") == 0, f"{name}: {line or 'the blank passes'}"
        assert re.search(r"it is not written|nothing is added|is \S+, expected \S+", line), line


def test_mistakes_are_told_apart():
    assert set(WRONG) | set(OPEN_WRONG) == set(NAMES) == set(sum(PROGRAMS, [])) | set(OPEN_WRONG)
    watched = not exercises.compiler_says(        # else races are not found: clang
        exercises.CC, "-fopenmp", "-fsyntax-only",
        os.path.join(ROOT, "dev", "exercises", "threads.c"))
    for number in range(MISTAKES):
        said = verdicts(lambda source, e, n=number: mistake(source, e, n), PROGRAMS)
        for name, line in said.items():
            old, new, *_, expected = WRONG[name][number]
            if watched or expected not in BY_THREADS:
                assert line and expected in line and line.count("\n") == 0, (
                    f"{name}, {new or 'nothing'} for {old}: {line}")


def open_verdict(e, source):
    with tempfile.TemporaryDirectory() as folder:
        exercises.write(os.path.join(folder, exercises.TRAINER), source)
        return exercises.open_verdict(folder, e, folder)


def test_open_exercises():
    """The trainer as it is fails with a line that helps, a solution passes, mistakes are told. On a
    push, of one; the other solutions compile."""
    if not exercises.torch_python():
        raise testing.Skip("PyTorch")
    source = exercises.read(os.path.join(ROOT, exercises.TRAINER))
    line = open_verdict(OPEN[0], source)
    assert line and "no position is added" in line, f"{OPEN[0].name}, the unchanged trainer: {line}"
    for e in OPEN:
        solved = exercises.solve(source, e.name)
        if not ALL and e is not OPEN[0]:
            with tempfile.TemporaryDirectory() as folder:
                exercises.write(os.path.join(folder, exercises.TRAINER), solved)
                line = exercises.compile_c(folder, os.devnull, exercises.OPEN, "-fsyntax-only")
            assert line is None, f"{e.name}: {line}"
            continue
        line = open_verdict(e, solved)
        assert line is None, f"{e.name}: {line}"
        for old, new, *parts in OPEN_WRONG[e.name] if ALL else []:
            assert old in solved, f"{e.name}: its solution does not say {old}"
            line = open_verdict(e, solved.replace(old, new))
            assert line and all(part in line for part in parts), (
                f"{e.name}, {new or 'nothing'} for {old}: {line}")


def test_an_open_exercise_without_pytorch():
    """What is missing is named, with the command that installs it."""
    keep, exercises.torch_python = exercises.torch_python, lambda: None
    try:
        line = exercises.open_verdict("", NAMES["muon"], "")
    finally:
        exercises.torch_python = keep
    assert "needs PyTorch: pip install torch" in line, line


def make(folder, *args):
    done = subprocess.run(["make", "-s", *args], cwd=ROOT, capture_output=True, text=True,
                          env={**os.environ, "EXERCISES": folder, "MAKEFLAGS": ""}, check=False)
    return done.returncode, done.stdout + done.stderr


def test_make_exercise_keeps_the_work():
    with tempfile.TemporaryDirectory() as folder:
        status, said = make(folder, "exercise", "NAME=gelu_backward")
        copy = os.path.join(folder, "gelu_backward", "train_gpt2.c")
        assert status == 0 and "make check NAME=gelu_backward" in said, said
        text = read(copy)
        begin, end = exercises.body_of(text, "gelu_backward")
        assert "Your code here" in text[begin:end] and "two_du" not in text, "the body is not empty"
        line = int(re.search(r"line (\d+)", said).group(1))
        assert "Your code here" in text.splitlines()[line - 1], f"line {line} is another"
        exercises.write(copy, text.replace("// Your code here.", "// mine"))
        status, said = make(folder, "exercise", "NAME=gelu_backward")
        assert status != 0 and "AGAIN=1" in said and "// mine" in read(copy), said
        status, said = make(folder, "exercise", "NAME=gelu_backward", "AGAIN=1")
        assert status == 0 and read(copy) == text, said


def test_a_copy_shows_no_other_solution():
    """Of a file of several exercises a copy has the functions that its own exercise calls."""
    alone = [e for e in EXERCISES if e.file in (exercises.RANKS, KERNELS)]
    for e in alone:
        source = read(e.file)
        copy = exercises.blank(exercises.alone(source, e), e)
        solution = source[slice(*exercises.body_of(source, e.function))]
        for other in alone:
            if other.file == e.file and other is not e and other.function + "(" not in solution:
                body = copy[slice(*exercises.body_of(copy, other.function))]
                assert "Not needed here" in body and len(body) < 50, f"{e.name}: {body}"


def test_make_check_and_the_list():
    with tempfile.TemporaryDirectory() as folder:
        status, said = make(folder, "check", "NAME=sample_token")
        assert status != 0 and "not begun: make exercise NAME=sample_token" in said, said
        make(folder, "exercise", "NAME=sample_token")
        copy = os.path.join(folder, "sample_token", "dev", "train", "sample.c")
        text = read(copy)
        exercises.write(copy, text.replace("// Your code here.", "no C at all"))
        status, said = make(folder, "check", "NAME=sample_token")
        assert status != 0 and re.search(r"sample.c:\d+:\d+: error", said), said
        exercises.write(copy, read("dev", "train", "sample.c"))
        status, said = make(folder, "check", "NAME=sample_token")
        assert status == 0 and "sample_token: solved" in said, said
        status, said = make(folder, "exercise")
        assert status == 0 and re.search(r"sample_token +lesson 11  solved\n", said), said
        assert f"1 of {len(EXERCISES)} solved" in said, said
        assert all(f"  {name} " in said for name in NAMES), said


def test_a_wrong_name_says_where_the_names_are():
    with tempfile.TemporaryDirectory() as folder:
        for arguments in (["exercise", "NAME=warp"], ["check", "NAME=warp"], ["check"]):
            status, said = make(folder, *arguments)
            assert status != 0 and "make exercise lists them" in said, said
        assert os.listdir(folder) == []


def test_without_python():
    with tempfile.TemporaryDirectory() as folder:
        for target in (["lesson", "N=04"], ["exercise"], ["check"], ["pages"]):
            status, said = make(folder, *target, "PYTHON=no-python", "-o", "all")
            assert status != 0 and f"make {target[0]}: there is no no-python here" in said, said


if __name__ == "__main__":
    sys.exit(testing.run_tests(globals(), sys.argv[1:]))
