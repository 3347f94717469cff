#!/usr/bin/env python3
"""dev/exercises: the original of every function passes its check, the blank fails with a line that
helps, and so do three typical mistakes each or more; the commands keep a reader's work.

    tests/test_exercises.py [NAME...]    the tests of these names only
    FAULTS=1 tests/test_exercises.py     all mistakes, not one of five; DAY=300 another day's

A check runs one exercise's function and no other's, so one program can hold the mistakes of all.
Those of a whole model, and those that call warp_sum or adamw_update, are built apart. An open
exercise has a solution in dev/exercises/solutions in place of an original; its check needs PyTorch.
What has no compiler here is skipped.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import testing

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "dev", "exercises"))
import exercises
from exercises import EXERCISES, NAMES
from wrong_solutions import (BITS, FOUND, LARGEST, OPEN_WRONG, OVERFLOW, RACE, SCRATCH, SHARED,
                             WRONG)

APART = {"kv_cache", "gradient_accumulation", "softmax_row", "layernorm_cuda", "find_the_race",
         "zero1"}
EVERY = int(os.environ.get("FAULTS") or 5)
FILES = [exercises.TRAINER, *exercises.CUDA_CHECKS]      # a program for the exercises of each

# Found where gcc's calls are watched (dev/exercises/threads.c).
THREADED = [BITS, RACE, SCRATCH, SHARED, "with 1 thread and", "the bits must be", "faster than T^2"]

# Mistakes for each: what the original says, what the mistake says, perhaps more such pairs, and a
# part of the verdict.
MISTAKES = {
    "embedding_forward": [
        ("word[c] + position[c]", "word[c]", "plus wpe's row t"),
        ("(size_t)token[n]*C", "(size_t)token[t]*C", "x[b=0][t=0][c=0] should be that"),
        ("wpe + (size_t)t*C", "wpe + n*C", "wpe: element 15 is read"),
        ("size_t n = (", "n = (", "#pragma omp", "size_t n;\n    #pragma omp", SHARED)],
    "embedding_backward": [
        ("dword[c] += ", "dword[c] = ", "dwte[v=0][c=0] is"),
        ("dwpe + n % T * C", "dwpe + n * C", "dwpe: element 15 is written"),
        ("dposition[c] += dx[n*C + c]", "dposition[c] += dx[c]", "dwpe[t=0][c=0] is"),
        ("s < strips", "s < T", "strip_begin(C, s, strips)", "0",
         "strip_begin(C, s + 1, strips)", "C", "size_t n = 0; n < (size_t)B*T; n++",
         "size_t n = s; n < (size_t)B*T; n += T", RACE)],
    "xent_forward": [
        ("exp_fast(x[v] - hi)", "expf(x[v])", "lse[n=0] is"),
        ("v < V; v++) sum", "v < Vp; v++) sum", "lse[n=0] is"),
        ("n*Vp", "n*V", "of Vp columns"),
        ("hi = x[0]", "hi = 0.0f", OVERFLOW),
        ("x[v] > hi", "x[v] < hi", OVERFLOW),
        ("V; v++) hi", "Vp; v++) hi", "columns V ... Vp-1 are padding"),
        ("lse[n] - x[target[n]];", "-logf(exp_fast(x[target[n]] - hi) / sum);", "loss[n=3] is")],
    "xent_backward": [
        ("-= scale", "-= 1.0f", "dlogits[n=0][v=2] is"),
        ("- lse[n]) * scale", "- lse[n])", "dlogits[n=0][v=0] is"),
        ("d[v] = 0.0f", "(void)v", "column 11 is padding")],
    "layernorm_forward": [
        ("squares / C", "squares / (C - 1)", "the mean over C channels, not over C - 1"),
        (" + 1e-5f", "", "1e-5 is missing under the root"),
        ("gain[c] + bias[c]", "gain[n] + bias[n]", "gain: element 5 is read")],
    "layernorm_backward": [
        ("dgain[c] += ", "dgain[c] = ", "dgain[c=0] is"),
        ("- mean_g - ", "- ", "(g - mean(g) - xhat * mean(g * xhat)) * rstd"),
        ("dbias[c] += ", "dbias[n] += ", "dbias: element 5 is written"),
        ("s < strips", "s < (int)N", "strip_begin(C, s, strips)", "0",
         "strip_begin(C, s + 1, strips)", "C", "size_t n = 0; n < N; n++) {\n            #",
         "size_t n = s; n == (size_t)s; n++) {\n            #", RACE),
        ("mean_gx) * r", "mean_gx) / sqrtf(1.0f/(r*r) - 1e-5f)", "the rstd that forward kept")],
    "gelu_backward": [
        ("dout[i] * (", "(", "dout times the slope"),
        (" + x[i] * s * (1.0f - s) * two_du", "", "dx[i=0] is"),
        ("dx[i] = ", "dx[i] += ", "write with ="),
        ("float s =", "s =", "#pragma omp parallel for simd",
         "float s;\n    #pragma omp parallel for", SHARED)],
    "linear_backward": [
        ("C, OC, N, ADD", "C, OC, N, WRITE", "what it contained is lost"),
        ("bias_backward(db, dout, N, OC);", "", "db: nothing is added"),
        ("N, C, OC, WRITE", "N, C, OC, ADD", "it still contains what it contained"),
        ("bias_backward(db, dout, N, OC);", "#pragma omp parallel for\n    for (size_t n = 0; "
         "n < N; n++) for (int o = 0; o < OC; o++) db[o] += dout[n*OC + o];", "db[o=0]: " + RACE)],
    "attention_plain": [
        ("scale * dot", "dot", "lse[b=0][h=0][t=0] is"),
        ("t2 <= t;", "t2 < T;", "lse[b=0][h=0][t=0] is"),
        ("p[t2] / sum", "p[t2]", "out[b=0][t=1][h=0][i=0] is"),
        ("expf(p[t2] - hi)", "expf(p[t2])", "hi + logf", "logf", LARGEST),
        ("-INFINITY", "0.0f", LARGEST),
        ("fmaxf(hi, p[t2])", "p[t2]", LARGEST),
        ("thread_index()*rows", "0*rows", SCRATCH)],
    "attention_backward": [
        ("- d) * scale", ") * scale", "dq[b=0][t=0][h=0][i=0] is"),
        ("(dv, p,", "(dv, dqk,", "dv[b=0][t=0][h=0][i=0] is"),
        ("- d) * scale", "- d)", "all of dq is 1.732 times"),
        ("collapse(2)", "collapse(3)", RACE)],
    "attention_tiled": [
        ("*= inv_sum[i]", "*= 1.0f", "out[b=0][t=1][h=0][i=0] is"),
        ("rows, past + t + 1,", "rows, past + t + 2,", "lse[b=0][h=0][t=0] is"),
        ("k = q - past*ld + C", "k = q + C", "an index runs past its end"),
        ("(scratch, all", "(scratch - thread_index()*attention_scratch(all, HS), all", SCRATCH)],
    "adamw_update": [
        ("gi * gi", "gi", "v[i=0] is"),
        ("m[i]*correct_m", "m[i]", "m has a bias correction too"),
        ("g[i] * g_scale", "g[i]", "all of m is 2 times")],
    "global_norm": [
        ("double sum = 0.0;\n        #p", "float sum = 0.0f;\n        #p", "sum in double"),
        ("return sum;", "return sqrt(sum);", "this is the norm"),
        ("chunks[i].grad", "chunks[i].param", "from grads + its `grad`"),
        ("#pragma omp parallel for", "double all = 0.0;\n    #pragma omp parallel for "
         "reduction(+:all)", "#pragma omp simd reduction(+:sum)", "if (z->chunks[i].counts)",
         "sum += (double)g", "all += (double)g", "return sum", "return all", "with 1 thread and"),
        ("z->norm_partials[i] = z->chunks[i].counts ? sum : 0.0",
         "if (z->chunks[i].counts) z->norm_partials[i] = sum", "the sum is"),
        ("z->n_chunks; i++) {", "z->n_chunks; i++) if (z->chunks[i].counts) {",
         "z->norm_partials[i] = z", "z->norm_partials[thread_index()] += z", "the sum is")],
    "sample_token": [
        (") / s->temperature", ") * s->temperature", "divide the logits by the temperature"),
        ("sum = kept;", "", "divide by the sum of these"),
        ("k < n && (k == 0 || kept < s->top_p * all)", "k < n", "top_p 0.7: token"),
        ("all = sum;", "all = 0.0;\n        for (int v = 0; v < n; v++) all += c[v].p;",
         "not of the top_k"),
        ("s->top_k > 0 && s->top_k < V", "s->top_k > 0", "kept < s->top_p * all",
         "s->top_p == 1.0f || kept < s->top_p * all", "candidates: element 5 is read")],
    "kv_cache": [
        ("acts_from(m->acts[l], past, C, C), 1, rows", "m->acts[l], 1, T",
         "h0.ln1[row=0][column=0] is written again"),
        ("1, rows, past);", "1, rows, 0);", "h0.att[row=3][column=0] is"),
        ("w->wpe + from", "w->wpe", "x_in[row=3][column=0] is"),
        ("model_logits(m, T - 1)", "model_logits(m, rows - 1)", "logits[v=0] that model_extend"),
        ("l = 0;", "l = past > 0;", "h0.ln1[row=3][column=0] is")],
    "gradient_accumulation": [
        ("next_batch(r, s, i); ", "next_batch(r, s, i), clear_grads(m);",
         "the last micro-batch's alone: call clear_grads once"),
        ("clear_grads(m);", "", "the last update's gradients are still in it"),
        ("i < s->micro_batches", "i < 1", "1 micro-batches are read"),
        ("(float)(clip / norm)", "1.0f", "the factor r->o.clip / norm"),
        ("model_update(", "s->adamw.m_steps++, model_update(", "s->adamw as it is"),
        ("norm > clip ?", "norm > 0.0 ?", "the norm is below r->o.clip"),
        ("clip > 0.0 && ", "", "r->o.clip is 0, no limit"),
        ("isfinite(norm) && ", "", "the norm is not finite"),
        (".squares = gradients_squares(m)", ".squares = sqrt(gradients_squares(m))",
         "sqrt(all.squares)", "all.squares", "step_end gets squares")],
    "warp_sum": [
        ("i = 16", "i = 8", "lane 0 of warp 0 has"),
        ("x += ", "x = ", "each exchange is added to x"),
        ("__shfl_xor_sync", "__shfl_down_sync", "every lane must have it")],
    "softmax_row": [
        ("row[c] - hi", "row[c]", OVERFLOW),
        ("sum = warp_sum(sum);", "", "the sum over the whole row, of all lanes"),
        ("(size_t)n*C + c] =", "c] =", "p[n=1][c=0] is not written"),
        ("-INFINITY", "0.0f", OVERFLOW),
        ("warp_max(hi)", "__shfl_sync(~0u, hi, 0)", OVERFLOW)],
    "layernorm_cuda": [
        ("warp_sum(squares) / C", "squares / C", "rstd[n=0] is"),
        ("if (n >= N) return;", "", "do threads without work leave"),
        ("gain[c]", "gain[n]", "a number for each channel")],
    "find_the_race": [
        ("__syncthreads();                             // all have read the sums before they "
         "change\n    if (lane() == 0) sums[warp] = sum;",
         "if (lane() == 0) sums[warp] = sum;\n    __syncthreads();", "between which two lines"),
        ("__syncthreads();                             // all", "__syncwarp();  // all",
         "of standardise, `__syncwarp();`"),
        ("before they change\n    if (lane() == 0) sums", "\n    if (lane() == 0) __syncthreads(), "
         "sums", "barrier"),
        ("float d =", "__syncthreads();\n    float d =", "4 barriers, expected 3"),
        ("1e-5f", "1e-3f", "more than a barrier has changed")],
    "transpose_shared": [
        ("[TILE + 1]", "[TILE]", "bank conflicts, expected none"),
        ("__syncthreads();", "__syncwarp();", "out[c=0][n="),
        ("if (c0 + i < C && n0 + lane < N) out[(size_t)(c0 + i)*N + n0 + lane] = tile[lane][i];",
         "if (c0 + lane < C && n0 + i < N) out[(size_t)(c0 + lane)*N + n0 + i] = tile[i][lane];",
         "global stores: its requests want 32 sectors")],
    "matmul_tiled": [
        ("a_tile[y][k]", "(m < M && k0 + k < K ? a[(size_t)m*K + k0 + k] : 0.0f)",
         "global loads: 73728 numbers, expected at most 8192"),
        ("__syncthreads();                         // all have", "//",
         "read by all before the next step"),
        ("if (m < M && n < N) c", "c", "an if around the store alone"),
        ("a_tile[y][x] =", "a_tile[x][y] =", "a_tile[y][k]", "a_tile[k][y]", "bank conflicts"),
        ("b_tile[y][x] =", "b_tile[x][y] =", "b_tile[k][x]", "b_tile[x][k]", "bank conflicts")],
    "ring_allreduce": [
        ("step < n - 1", "step < n", "*adds is true, expected false"),
        ("- step - 1", "- step + 1", "which its left neighbour, rank 2, sends"),
        ("(rank - step + 2*n)", "(rank - step)", "a negative number is negative")],
    "zero1": [
        ("1.0f / n", "1.0f", "ranks[0].params[i=0] is"),
        ("z.m, z.v", "z.m + z.begin, z.v + z.begin", "m: element 4 is written, and it has elements 0 ... 3"),
        ("all_gather(ranks, n);", "", "all_gather"),
        ("1.0f / n", "1.0f / 3", "ranks[0].params[i=0] is")],
}

for solutions in (WRONG, FOUND):
    for name, wrong in solutions.items():
        MISTAKES[name] = MISTAKES[name] + wrong

# The same for the solutions of open exercises.
OPEN_MISTAKES = {
    "post_norm": [
        ("linear_forward(a.fc, a.x_mid", "linear_forward(a.fc, sum1",
         "h0.fc[b=0][t=0][c=0] is -0.63136, expected -1.2479; the MLP reads x_mid, behind ln1"),
        ("residual_backward(dx, dbranch, N*C);\n}", "}", "gradient of h0.ln2_gain[i=0]",
         "what returns through the attention is not added"),
        ("dx, a.ln1, a.ln1_mean", "dx, a.x_mid, a.ln1_mean", "gradient of h1.ln1_gain[i=0]"),
        ("residual_forward(sum2, a.x_mid, m->branch", "residual_forward(sum2, a.x, m->branch",
         "h0.x_out[b=0][t=0][c=0]", "the second addition is to x_mid, not to x"),
        ("d.qkv_b, dqkv, a.x,", "d.qkv_b, dqkv, a.ln1,", "gradient of h1.qkv_w[i=0][j=0]"),
        ("d.ln2_gain, d.ln2_bias, dx, a.ln2", "d.ln1_gain, d.ln1_bias, dx, a.ln2",
         "gradient of h1.ln2_gain[i=0]", "nothing is added")],
    "rotary": [
        ("(first + i) % T", "i % T", "generation with the key/value cache (4 rows are past",
         "position `past`, not 0"),
        ("rotate(dqkv, -1.0f", "rotate(dqkv, 1.0f", "gradient of h1.qkv_w[i=0][j=0]",
         "is turned forward again"),
        ("c < 2*C", "c < 3*C", "values of h0.qkv[b=0][t=1][c=0]", "values do not turn"),
        ("-(float)(c % HS) / HS", "-(float)(c % HS) / 2 / HS", "queries of h0.qkv[b=0][t=1][c=2]",
         "with i the number of the pair"),
        ("-(float)(c % HS) / HS", "-(float)(c % C) / HS", "pair 0 of head 1 turns by"),
        ("dwte[(size_t)token[n]*C + c] += dx[n*C + c];",
         "dwte[(size_t)token[n]*C + c] += dx[n*C + c], dwpe[n % T * C + c] += dx[n*C + c];",
         "gradient of wpe[i=0][j=0] is 0.063002, expected 0; wpe has no part")],
    "muon": [
        ("g_scale * g[i] + o.beta1 * m[i];\n        squares", "m[i];\n        squares",
         "update 2: change of h0.qkv_w[i=0][j=0]", "the Nesterov step is missing"),
        ("0.2f * sqrtf((float)l)", "0.2f", "update 1: change of h0.qkv_w", "expected lr 0.2 sqrt"),
        ("if (k.decays && k.param >= blocks) continue;", "", "update 1: adam_m of h0.qkv_w",
         "AdamW updates this matrix too"),
        ("x[i] = g_scale * g[i] + o.beta1 * m[i];", "x[i] = m[i];", "the Nesterov step is missing"),
        ("sqrtf((float)l)", "sqrtf((float)s)", "update 1: change of h0.qkv_w",
         "expected lr 0.2 sqrt"),
        ("t.layer >= 0 && t.decays", "t.decays", "update 1: adam_m of wte[i=0][j=0]",
         "AdamW updates this tensor")],
}
for name, wrong in OPEN_WRONG.items():
    OPEN_MISTAKES[name] = OPEN_MISTAKES[name] + wrong
OPEN = [e for e in EXERCISES if not e.function]


def lacks(e):
    """The compiler that an exercise needs and that is not here, or None."""
    needs = {exercises.WARP: os.environ.get("CXX", "c++"), exercises.TILES: "g++"}
    program = needs.get(e.file, os.environ.get("CC", "cc")).split()[0]
    return None if shutil.which(program) else program


CLOSED = [e for e in EXERCISES if e.function and not lacks(e)]


def sources():
    files = {file for e in EXERCISES for file in exercises.files_of(e)}
    return {file: exercises.read(os.path.join(ROOT, file)) for file in files}


def program_of(e):
    return e.file if e.file in exercises.CUDA_CHECKS else exercises.TRAINER


def verdicts_of(chosen, edit):
    """Of the chosen exercises: edit(source, exercise) returns the new source."""
    said, texts = {}, sources()
    for e in chosen:
        texts[e.file] = edit(texts[e.file], e)
    with tempfile.TemporaryDirectory() as folder:
        for file, text in texts.items():
            exercises.write(os.path.join(folder, file), text)
        program = os.path.join(folder, "program")
        for file in FILES:
            names = [e.name for e in chosen if program_of(e) == file]
            if not names:
                continue
            fault = exercises.compile_check(folder, program, file)
            assert fault is None, fault
            said.update({n: exercises.verdict_of(NAMES[n], folder, program) for n in names})
    return said


def mistake(source, e, number):
    begin, end = exercises.body_of(source, e.function)
    body, pairs = source[begin:end], MISTAKES[e.name][number][:-1]
    for old, new in zip(pairs[::2], pairs[1::2]):
        assert old is None or old in body, f"{e.name}: its original does not say {old}"
        body = body.replace(old, new) if old else new.lstrip("\n")
    return source[:begin] + body + source[end:]


def verdicts(edit, chosen=CLOSED):
    """Of each exercise, with each edited, as make check would say it."""
    return {**verdicts_of([e for e in chosen if e.name in APART], edit),
            **verdicts_of([e for e in chosen if e.name not in APART], edit)}


def test_all_compilers_are_here():
    """Not a test: says what is skipped."""
    missing = sorted({lacks(e) for e in EXERCISES if lacks(e)})
    return " and ".join(f"{compiler}, for " + ", ".join(e.name for e in EXERCISES
                        if lacks(e) == compiler) for compiler in missing) or None


def test_originals_pass():
    for name, line in verdicts_of(CLOSED, lambda source, e: source).items():
        assert line is None, f"{name}: {line}"


def test_blanks_fail_with_a_line_that_helps():
    for name, line in verdicts(exercises.blank).items():
        assert line, f"{name}: the blank passes"
        assert re.search(r"not written|nothing is added|the sum is 0|is drawn|not called"
                         r"|has 0, expected|column 0 is 0, expected", line), f"{name}: {line}"


def test_mistakes_are_told_apart():
    assert set(MISTAKES) | set(OPEN_MISTAKES) == set(NAMES)
    texts = sources()
    watched = not exercises.compiler_says(        # else races are not found: clang
        "CC", "cc", "-fopenmp", "-fsyntax-only",
        os.path.join(ROOT, "dev", "exercises", "threads.c"))
    print(f"    one in {EVERY} of the mistakes, DAY={testing.DAY}")
    for number in range(max(len(mistakes) for mistakes in MISTAKES.values())):
        chosen = [e for e in CLOSED if number < len(MISTAKES[e.name])]
        for e in chosen:
            mistake(texts[e.file], e, number)        # the original says it, whoever's turn it is
        if not testing.has_its_turn(number, EVERY):
            continue
        said = verdicts(lambda source, e, n=number: mistake(source, e, n), chosen)
        for name, line in said.items():
            old, new, *_, expected = MISTAKES[name][number]
            if not watched and any(part in expected for part in THREADED):
                continue
            assert line and expected in line, f"{name}, {new or 'nothing'} for {old}: {line}"


def open_verdict(e, source):
    with tempfile.TemporaryDirectory() as folder:
        exercises.write(os.path.join(folder, exercises.TRAINER), source)
        return exercises.fault_of(e, folder, os.path.join(folder, "program"))


def test_open_exercises():
    """The trainer as it is fails with a line that helps, the solution passes, mistakes are told."""
    if not exercises.torch_python():
        return "PyTorch"
    source = exercises.read(os.path.join(ROOT, exercises.TRAINER))
    for e in OPEN:
        solved = exercises.solve(source, e.name)
        line = open_verdict(e, source)
        assert line and re.search(r"those of AdamW|the unchanged GPT-2|it contains wpe", line), line
        line = open_verdict(e, solved)
        assert line is None, f"{e.name}: {line}"
        for number, (old, new, *more) in enumerate(OPEN_MISTAKES[e.name]):
            wrong = solved
            pairs = [(old, new)] + [pair for pair in more if isinstance(pair, tuple)]
            for old, new in pairs:
                assert old in wrong, f"{e.name}: its solution does not say {old}"
                wrong = wrong.replace(old, new)
            if not testing.has_its_turn(number, EVERY):
                continue
            line = open_verdict(e, wrong)
            for expected in more:
                assert isinstance(expected, tuple) or line and expected in line, (
                    f"{e.name}, {new or 'nothing'} for {old}: {line}")


def test_pages_of_open_exercises():
    """They name their commands, and post_norm.md shows what its runs say."""
    import post_norm
    folder = os.path.join(ROOT, "dev", "exercises")
    pages = {e.name: exercises.read(os.path.join(folder, e.name + ".md")) for e in OPEN}
    for name, text in pages.items():
        for command in (f"`make exercise NAME={name}`", f"`make check NAME={name}`"):
            assert command in text, f"{name}.md does not name {command}"
    known = post_norm.read_runs(os.path.join(folder, "post_norm.csv"))
    for line in post_norm.table(known).splitlines():
        assert line in pages["post_norm"], f"post_norm.md does not show {line}"
    drawn = exercises.read(os.path.join(folder, "post_norm.svg"))
    assert drawn == post_norm.figure(known), "post_norm.svg is of other runs: post_norm.py --draw"


def test_the_search_of_post_norm():
    """It finds the limit wherever it lies, to a factor of sqrt(2)."""
    import post_norm
    for limit in (-12.0, -8.5, -8.0, -7.5, -3.0, -2.5):
        found = post_norm.largest_rate(lambda power, limit=limit: power <= limit)
        assert found == limit, f"the limit is 2^{limit}, found 2^{found}"
    try:
        post_norm.largest_rate(lambda power: False)
    except SystemExit as said:
        assert "does not learn" in str(said), said
    else:
        raise AssertionError("a model that never learns has a largest rate")


def test_an_open_exercise_without_pytorch():
    """What is missing is named, with the command that installs it."""
    keep, exercises.torch_python = exercises.torch_python, lambda: None
    try:
        line = exercises.open_verdict("program", "muon")
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
        text = exercises.read(copy)
        begin, end = exercises.body_of(text, "gelu_backward")
        assert "Your code here" in text[begin:end] and "two_du" not in text, "the body is not empty"
        line = int(re.search(r"line (\d+)", said).group(1))
        assert "Your code here" in text.splitlines()[line - 1], f"line {line} is another"
        exercises.write(copy, text.replace("// Your code here.", "// mine"))
        status, said = make(folder, "exercise", "NAME=gelu_backward")
        assert status != 0 and "AGAIN=1" in said and "// mine" in exercises.read(copy), said
        status, said = make(folder, "exercise", "NAME=gelu_backward", "AGAIN=1")
        assert status == 0 and exercises.read(copy) == text, said


def test_a_copy_shows_no_other_solution():
    """Of a file of several exercises a copy has the functions that its own exercise calls."""
    alone = [e for e in CLOSED if e.file in (exercises.RANKS, exercises.WARP, exercises.TILES)]
    for e in alone:
        source = exercises.read(os.path.join(ROOT, e.file))
        copy = exercises.blank(exercises.alone(source, e), e)
        solution = source[slice(*exercises.body_of(source, e.function))]
        for other in alone:
            if other.file == e.file and other is not e and other.function + "(" not in solution:
                body = copy[slice(*exercises.body_of(copy, other.function))]
                assert "Not needed here" in body and len(body) < 50, f"{e.name}: {body}"
    for name, line in verdicts_of([NAMES["ring_allreduce"]], exercises.alone).items():
        assert line is None, f"{name}: {line}"


def test_make_check_and_the_list():
    with tempfile.TemporaryDirectory() as folder:
        status, said = make(folder, "check", "NAME=sample_token")
        assert status != 0 and "not begun: make exercise NAME=sample_token" in said, said
        make(folder, "exercise", "NAME=sample_token")
        copy = os.path.join(folder, "sample_token", "dev", "train", "sample.h")
        text = exercises.read(copy)
        status, said = make(folder, "check", "NAME=sample_token")
        assert status != 0 and "sample_token: temperature 0: token 0 is drawn" in said, said
        exercises.write(copy, text.replace("// Your code here.", "no C at all"))
        status, said = make(folder, "check", "NAME=sample_token")
        assert status != 0 and re.search(r"sample.h:\d+:\d+: error", said), said
        exercises.write(copy, exercises.read(os.path.join(ROOT, "dev", "train", "sample.h")))
        status, said = make(folder, "check", "NAME=sample_token")
        assert status == 0 and "sample_token: solved" in said, said
        status, said = make(folder, "exercises")
        assert status == 0 and re.search(r"sample_token +lesson 11  solved\n", said), said
        assert f"1 of {len(EXERCISES)} solved" in said, said
        assert all(f"  {name} " in said for name in NAMES), said
        lessons = [int(lesson) for lesson in re.findall(r" lesson +(\d+)", said)]
        assert lessons == sorted(lessons), f"not in the order of the lessons: {lessons}"


def test_a_wrong_name_says_where_the_names_are():
    with tempfile.TemporaryDirectory() as folder:
        for target in ("exercise", "check"):
            for name in ("", "NAME=warp", "NAME=../x"):
                status, said = make(folder, target, *([name] if name else []))
                assert status != 0 and "make exercises lists them" in said, said
        assert os.listdir(folder) == []


def test_without_python():
    with tempfile.TemporaryDirectory() as folder:
        for target in (["lesson", "N=04"], ["exercise"], ["check"], ["exercises"], ["page"]):
            status, said = make(folder, *target, "PYTHON=no-python", "-o", "all")
            assert status != 0 and f"make {target[0]}: there is no no-python here" in said, said


if __name__ == "__main__":
    sys.exit(testing.run_tests(globals(), sys.argv[1:]))
