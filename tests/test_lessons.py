#!/usr/bin/env python3
"""dev/lessons: every check holds and prints what its page shows; the functions and exercises that a
page names exist; and the arithmetic of make lesson is right. Links, files, flags and targets of
all pages are in test_docs.py.

    tests/test_lessons.py [NAME...]      the tests of these names only
"""
import functools
import glob
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import testing
from testing import ROOT, read

import kept

BUILD = os.environ.get("BUILD", "build")
LESSONS = os.path.join(ROOT, "dev", "lessons")
sys.path.insert(0, os.path.join(ROOT, "dev", "exercises"))
import exercises
NUMBER = r"-?[\d.,]+(?:e[-+]?\d+)?%?"


def pages():
    """The lessons in order: name and text."""
    names = sorted(name for name in os.listdir(LESSONS) if re.match(r"\d\d_.*\.md$", name))
    return [(name, read("dev", "lessons", name)) for name in names]


def part_of(text, part):
    return text.split(f"\n## {part}\n")[1].split("\n## ")[0].split("\n---\n")[0]


def spans(text):
    """What a page shows as code in its sentences."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.S))


def check_of(page):
    check, = glob.glob(os.path.join(LESSONS, f"check_{page[:2]}_*"))
    return check


def command_of(page):
    """The check of a page: a script, or a C program that make built."""
    name, suffix = os.path.splitext(os.path.basename(check_of(page)))
    return [sys.executable, check_of(page)] if suffix == ".py" else [built(name)]


def uses_trainer(page):
    return bool(re.search(r"train_gpt2|lesson\.h", read(check_of(page))))


def built(name):
    path = os.path.join(ROOT, BUILD, "lessons", name)
    if not os.path.exists(path):
        testing.run("make", "-s", os.path.join(BUILD, "lessons", name))
    return path


def run(command):
    return testing.run(*command, OMP_NUM_THREADS="2")


@functools.lru_cache(maxsize=None)
def output_of(page):
    """What a page's check prints; it runs once."""
    return run(command_of(page))


def shape_of(output):
    """Lines without their numbers: those may differ in the last digits, or are times."""
    return [" ".join(re.sub(NUMBER, "#", line).split())
            for line in output.strip().splitlines()]


def numbers_of(output):
    """The numbers of a text, in order; a dot or comma alone is none."""
    found = (number.rstrip("%").replace(",", "") for number in re.findall(NUMBER, output))
    return [float(number) for number in found if re.search(r"\d", number)]


def test_checks_hold_and_print_what_the_pages_show():
    """The same lines. Plain arithmetic gives the same numbers everywhere, to the digits shown; the
    trainer's differ by machine in the last digits, or are times."""
    for page, text in pages():
        output = output_of(page)
        shown = re.search(r"```\n(.*?)```", part_of(text, "The check"), re.S).group(1)
        assert "true " in output, f"{page}: its check claims nothing"
        assert f"`make lesson N={page[:2]}`" in part_of(text, "The check"), f"{page}: no command"
        for ours, theirs in zip(shape_of(output) + ["(end)"], shape_of(shown) + ["(end)"]):
            assert ours == theirs, f"{page} shows `{theirs}`, its check prints `{ours}`"
        if uses_trainer(page):
            continue
        for ours, theirs in zip(numbers_of(output), numbers_of(shown)):
            assert abs(ours - theirs) < 2e-3 * max(1.0, abs(ours)), \
                f"{page} shows {theirs}, its check prints {ours}"


def test_lesson_15_quotes_what_was_measured():
    """Its table has every batch of the curve, its text the fits, and its check the same numbers."""
    text = dict(pages())["15_batch.md"]
    points, fits = (kept.table("02_knee", name, size="119k")
                    for name in ("points", "fit"))
    points = kept.only(points, target_nats=2)
    batches, updates, tokens = (
        [cell.strip() for cell in line.split("|")[2:-1]]
        for line in re.findall(r"^\| (?:tokens|updates).*", text, re.M))
    assert numbers_of(" ".join(batches)) == [p["batch_tokens"] for p in points], batches
    assert numbers_of(" ".join(updates)) == [round(p["updates_median"]) for p in points]
    for shown, p in zip(tokens, points):
        measured = float(shown.split()[0].replace(",", "")) * (1e6 if "million" in shown else 1.0)
        assert abs(measured / p["tokens_median"] - 1) < 0.04, (shown, p)
    for fit in fits:
        words = f"{fit['b_crit']:,.0f}"
        assert fit["target_nats"] not in (2.5, 2, 1.4) or words in text, words
    for label in "02_local", "02_text", "02_front":
        assert f"{kept.read(label)['endpoint'][0][1]:.1f}" in text, label
    late = kept.number("02_size", "119k after 4,194,304 tokens: updates of 256 over 8,192")[0]
    assert f"{late:.1f} times as many of 256 as of 8,192" in text, late
    fit, = kept.only(fits, target_nats=2)
    line = re.search(r"S\(B\) = (\d+) \(1 \+ (\d+)/B\)", output_of("15_batch.md"))
    assert line.groups() == tuple(f"{fit[key]:.0f}" for key in ("s_min", "b_crit")), line


# A part of the trainer, another in its place; then where the loss of lesson 2's check ends.
BROKEN = [
    ("dx[n*C + c] = (d[c]*w.gain[c] - mean_g", "dx[n*C + c] = -(d[c]*w.gain[c] - mean_g", (3.4, 3.6)),
    ("dout[i] * (s + x[i]", "dout[i] * (s - x[i]", (0.0, 0.00025)),
    ("(d[c]*w.gain[c] - mean_g - (row[c] - m) * r * mean_gx) * r", "d[c]*w.gain[c] * r", (0.01, 3.4)),
]


def last_loss(folder, trainer):
    """Of lesson 2's check, built with this trainer, and whether its claims hold. With the plain
    products: what does not learn jumps about, and the fast ones' bits are each processor's own."""
    lessons, program = (os.path.join(folder, name) for name in ("dev/lessons", "check"))
    shutil.copytree(LESSONS, lessons)
    exercises.write(os.path.join(folder, "train_gpt2.c"), trainer)
    check = os.path.join(lessons, "check_02_overfit.c")
    fault = exercises.compile_c(ROOT, program, check, "-O1")
    assert fault is None, fault
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    return float(re.search(r"^ +200 +([\d.]+)", done.stdout, re.M).group(1)), done.returncode == 0


def test_broken_trainers_do_what_the_pages_say():
    """Lesson 2: a wrong sign in LayerNorm learns nothing, one in GELU goes unnoticed. Lesson 5:
    without its two means dx fails lesson 2's check."""
    right = read("train_gpt2.c")
    for old, new, (least, most) in BROKEN:
        assert right.count(old) == 1, f"train_gpt2.c says {right.count(old)} times: {old}"
        with tempfile.TemporaryDirectory() as folder:
            loss, holds = last_loss(folder, right.replace(old, new))
        assert least <= loss <= most and holds == (most < 0.001), f"{new}: {loss}, {holds}"


def test_a_false_claim_fails():
    """In Python; in C the broken trainers above have it."""
    script = ("import sys; sys.path.insert(0, 'dev/lessons'); import lesson; "
              "lesson.claim(1 > 2, 'x')")
    done = subprocess.run([sys.executable, "-B", "-c", script], cwd=ROOT, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 1 and done.stdout == "FALSE  x\n", done


def test_functions_that_pages_name_exist():
    """In the source; that those to read are in the files beside them, test_lesson_pages.py has."""
    source = "\n".join(read(name) for name in testing.run(
        "git", "ls-files", "*.c", "*.h", "*.cu", "*.py").split() if "tests/" not in name)
    for page, text in pages():
        for name in spans(text):
            if re.fullmatch(r"[a-z]+(_[a-z0-9]+)+", name) and name not in exercises.NAMES:
                assert re.search(rf"\b{name}\b", source), f"{page}: {name} is not in the source"


def test_exercises_that_pages_name_exist():
    named = {(int(page[:2]), name) for page, text in pages()
             for name in re.findall(r"make exercise NAME=(\w+)", part_of(text, "Exercises"))}
    for page, name in named:
        assert name in exercises.NAMES, f"lesson {page}: there is no exercise {name}"
    for e in exercises.EXERCISES:
        assert (e.lesson, e.name) in named, f"lesson {e.lesson} does not name its exercise {e.name}"


def test_first_step_is_right():
    """The loss is the mean of the rows, and of e^score shares; the norm that of its parts."""
    out = run([built("first_step")])
    rows = re.findall(r"^ +[abn] +(-?[\d.]+) +(-?[\d.]+) +(-?[\d.]+) +[\d.]+ [\d.]+ [\d.]+"
                      r" +([abn]) +([\d.]+)$", out, re.M)
    assert len(rows) == 5, f"{len(rows)} rows of scores"
    for *scores, following, loss in rows:
        powers = [math.exp(float(score)) for score in scores]
        assert abs(-math.log(powers["abn".index(following)] / sum(powers)) - float(loss)) < 4e-4
    mean, again, norm, after = (float(re.search(words + r" ([\d.]+)\.", out).group(1)) for words in
                                ("is the loss:", "It was", "All together:", "new numbers:"))
    assert abs(sum(float(row[-1]) for row in rows) / 5 - mean) < 1e-4 and mean == again, mean
    lengths = [float(x) for x in re.findall(r" x \d+ +([\d.]+)$", out, re.M)]
    assert len(lengths) == 16 and abs(math.hypot(*lengths) - norm) < 1e-3
    assert after < mean and out.count("banana") >= 3, "it has not learned"


if __name__ == "__main__":
    sys.exit(testing.run_tests(globals(), sys.argv[1:]))
