#!/usr/bin/env python3
"""dev/build_up: steps of at most 100 lines with nothing but the C library, each green; the losses
on its pages; faults that its test must name; and step 10 against train_gpt2.c.

    tests/test_build_up.py [NAME...]     the tests of these names only
    FAULTS=1 tests/test_build_up.py      plants every fault and trains every step, not one in five
"""
import glob
import os
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import testing
from testing import ROOT, read

FOLDER = os.path.join("dev", "build_up")
CC = os.environ.get("CC", "cc").split()
SCRATCH = tempfile.TemporaryDirectory(prefix="batchwise-build-up-")
FAULTS = int(os.environ.get("FAULTS", 5))
STEPS = sorted(os.path.basename(path) for path in glob.glob(os.path.join(ROOT, FOLDER, "*_*.c")))

C_LIBRARY = r"#include <(math|stdbool|stdint|stdio|stdlib|string)\.h>$"

# What a reader may write in place of a step's text, and words of the test's one line.
MISTAKES = [
    (2, "d[target[n]] -= scale;", "", "wte[0,2] has the gradient"),
    (2, "p, -lr,", "p, lr,", "after two updates element 0 of wte"),
    (3, "x[i] / (1.0f + expf(-2.0f * u))", "fmaxf(x[i], 0.0f)", "that is ReLU"),
    (3, "x[i] / (1.0f + expf(-2.0f * u))", "0.5 * x[i] * (1.0 + erf(x[i] / sqrt(2.0)))", "by erf"),
    (3, "dx[n*C + c] = dot", "dx[n*C + c] = -dot", "fc_b[0,0] has the gradient 0.096918, but its "
        "measured slope is -0.096918: its sign is wrong"),
    (4, "residual_forward(a.x_out, a.x, m->branch, N*C)",
     "memcpy(a.x_out, m->branch, N*C * sizeof(float))", "x_out is the branch plus x"),
    (4, "squares / C +", "squares / (C - 1) +", "divide by C"),
    (4, "squares / C + 1e-5f", "squares / C", "1e-5 is added"),
    (4, "mean_g - xhat[c]", "xhat[c]", "the fault lies between lnf_gain and it"),
    (5, "t2 <= t; t2++", "t2 < T; t2++", "a token sees later tokens"),
    (5, "1.0f / sqrtf((float)HS)", "1.0f", "divide the scores by sqrt(HS)"),
    (5, "(dot(d_o, v, HS) - d)", "dot(d_o, v, HS)", "lies between att_proj_w and it"),
    (6, "sqrtf((float)HS)", "sqrtf((float)C)", "not by sqrt(C)"),
    (6, "        add_scaled(x + n*C, 1.0f, wpe + n % T * C, C);", "", "add wpe[t]"),
    (7, "l > 0 ? m->acts[l - 1].x_out : m->x_in", "m->x_in", "x_out of block l-1"),
    (7, "tensor_init(m, &m->w.wpe", "if (c.L < 2) tensor_init(m, &m->w.wpe", "expected wpe"),
    (8, "if (!t.decays)", "if (t.decays)", "it decays"),
    (8, "sqrtf(v[i]*correct_v)", "sqrtf(v[i])", "after two updates element 0 of wte"),
    (9, "round < 8; round++) {", "round < 7; round++) {", "six windows of four tokens"),
    (9, "+ t + 1];", "+ t];", "its target token"),
    (10, "0.02 * std", "0.03 * std", "initial weights"),
    (10, "(logits[v] - hi) / temperature", "logits[v] - hi", "at temperature 0.5 token 0"),
]


def write(name, text):
    path = os.path.join(SCRATCH.name, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def number_of(step):
    return int(step[:2])


def make(target, **variables):
    """Output and status of make step, with the programs that were built before."""
    given = [f"{name}={value}" for name, value in variables.items()]
    done = subprocess.run(["make", "-s", "-o", "prepare", "-o", "train_gpt2", target, *given,
                           f"BUILD={SCRATCH.name}", "CFLAGS=-O3 -Werror"], cwd=ROOT, check=False,
                          text=True, env={**os.environ, "MAKEFLAGS": ""},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.stdout, done.returncode


def losses_of(page):
    """What a page promises: {update: loss}; step 1 has no updates."""
    found = re.findall(r"update +(\d+)   loss (\d\.\d+)", page)
    return {int(update): float(loss) for update, loss in found}


def last_loss(page):
    return list(losses_of(page).values())[-1] if losses_of(page) else \
        float(re.search(r"^loss (\d\.\d+)$", page, re.M).group(1))


def checked(number, source, *said):
    """The lines of a step's test without its training, and its status."""
    program = os.path.join(SCRATCH.name, "check")
    subprocess.run([*CC, "-std=gnu11", "-O1", "-w", f"-DSTEP={number}", f'-DSOURCE="{source}"',
                    os.path.join(ROOT, FOLDER, "check.c"), "-o", program, "-lm"], check=True)
    done = subprocess.run([program, *said], check=False, capture_output=True, text=True)
    return done.stdout, done.returncode


def test_steps_are_short_and_need_only_the_c_library():
    assert [number_of(step) for step in STEPS] == list(range(1, 11)), STEPS
    before = os.devnull
    for step in STEPS:
        now = os.path.join(ROOT, FOLDER, step)
        diff = subprocess.run(["diff", before, now], check=False, capture_output=True, text=True)
        changed = len(re.findall(r"^[<>]", diff.stdout, re.M))
        assert 0 < changed <= 100, f"{step}: {changed} changed lines"
        for line in read(now).splitlines():
            assert len(line) <= 100, f"{step}: {line}"
            assert not line.startswith("#include") or re.match(C_LIBRARY, line), f"{step}: {line}"
        before = now


def test_pages_say_what_the_test_expects():
    check, table = read(FOLDER, "check.c"), read(FOLDER, "README.md")
    given = re.findall(r"\d\.\d{8}", check.split("expected[] = {")[1].split("};")[0])
    for step in STEPS:
        page = read(FOLDER, step[:-2] + ".md")
        row, = re.findall(rf"^\| \d+ \|.*\({step[:-2]}\.md\).*\| (\S+) \|$", table, re.M)
        assert row == f"{last_loss(page):.3f}", f"README.md: {step} ends with {row}"
        if number_of(step) > 1:
            loss = given[number_of(step) - 2]
            assert loss in page, f"{step[:-2]}.md: not {loss}"


def test_gradients_updates_and_what_a_step_adds():
    for step in STEPS[1:]:
        lines, status = checked(number_of(step), os.path.join(ROOT, FOLDER, step))
        assert status == 0, lines


def test_mistakes_are_named():
    for n, (number, right, wrong, words) in enumerate(MISTAKES, 1):
        source = read(FOLDER, STEPS[number - 1])
        assert right in source, f"step {number}: no {right}"
        if not testing.has_its_turn(n, FAULTS):
            continue
        lines, status = checked(number, write("mine.c", source.replace(right, wrong)))
        assert status == 1 and words in lines.splitlines()[-1], \
            f"step {number} with {wrong or 'nothing'} for {right}: {lines}"


def test_steps_train_as_their_pages_say():
    """Step 10 has a test of its own. Another compiler's rounding changes the last digits."""
    for step in STEPS[:-1]:
        if not testing.has_its_turn(number_of(step), FAULTS):
            continue
        lines, status = make("step", N=number_of(step))
        assert status == 0, lines
        page = read(FOLDER, step[:-2] + ".md")
        printed = losses_of(lines) or {0: last_loss(lines)}
        for update, loss in (losses_of(page) or {0: last_loss(page)}).items():
            assert abs(printed[update] - loss) < 0.02, f"{step}: {printed[update]}, not {loss}"


def test_step_10_computes_what_train_gpt2_computes():
    lines, status = make("step", N=10)
    assert status == 0 and re.search(r"^right  fifty losses, .* 0\.0000\d+$", lines, re.M), lines
    page = losses_of(read(FOLDER, "10_generation.md"))
    assert all(abs(losses_of(lines)[update] - loss) < 0.02 for update, loss in page.items()), lines
    if FAULTS > 1:
        return
    mine = write("mine.c", read(FOLDER, STEPS[-1]).replace("norm > clip ?", "norm > 1e9 ?"))
    lines, status = make("step", N=10, FILE=mine)
    assert status == 2 and "step 10: against train_gpt2: update 3 has the loss" in lines, lines


def test_make_step_takes_a_file_and_make_diff_shows_a_step():
    program = '#include <stdio.h>\nint main(void) { printf("loss %s\\n"); }\n'
    for target, given, words in [
            ("step", {"N": 1, "FILE": write("mine.c", program % "2.7")},
             "step 1: the program ends with a loss of 2.7000; expected 2.464"),
            ("step", {"N": "01", "FILE": write("nan.c", program % "-nan")},
             "step 1: the program prints no loss that is a number"),
            ("step", {"N": 11}, "make step: N=11: there is no such step")]:
        lines, status = make(target, **given)
        assert status == 2 and words in lines, lines
    added, status = make("step", N=6, DIFF=1)
    assert status == 0 and "\n+++ dev/build_up/06_heads.c" in added, added
    assert "\n+    int HS = C / NH;\n" in added and make("step", N=1, DIFF=1)[1] == 0, added


if __name__ == "__main__":
    sys.exit(testing.run_tests(globals(), sys.argv[1:]))
