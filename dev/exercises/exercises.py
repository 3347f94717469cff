#!/usr/bin/env python3
"""Exercises: functions of the trainer to write anew. make exercise, make check and make exercises
call this script.

    exercises.py start NAME [--again]    exercise/NAME: a copy with the function's body empty
    exercises.py check NAME              compile the copy, run its check, say what is wrong
    exercises.py list                    the exercises, and what is solved

A copy is made from the source as it is, so an exercise is a row of the table below and a check in
check.c, or in check_warp.cu or check_tiles.cu, which run in the emulator. exercise/NAME overlays
the repository: what it does not hold is read from there. An open exercise has a page in place of
an empty function, and oracle.py compares the whole trainer with PyTorch.
"""
import collections
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDER = os.environ.get("EXERCISES", os.path.join(ROOT, "exercise"))
TRAINER = "train_gpt2.c"
RANKS = "dev/exercises/ranks.h"
WARP = "dev/exercises/warp.cu"
TILES = "dev/exercises/tiles.cu"
CUDA_CHECKS = {WARP: "dev/exercises/check_warp.cu", TILES: "dev/exercises/check_tiles.cu"}
SECONDS = 120                          # a check takes a few; on a busy machine ten times as many
if os.environ.get("OMP_NUM_THREADS") == "":
    del os.environ["OMP_NUM_THREADS"]  # libgomp would complain, in place of a verdict

Exercise = collections.namedtuple("Exercise", "name lesson file function task")

# In the order of the lessons. An open exercise names no function, and its page says the task. Else
# the task is what the empty body says; the comment above the function stays, with the formula.
EXERCISES = [Exercise(*row) for row in [
    ("embedding_forward", 1, TRAINER, "embedding_forward", """
        Gets the tokens (B,T) and the tables wte (V,C) and wpe (P,C).
        Writes x (B,T,C)."""),
    ("embedding_backward", 2, TRAINER, "embedding_backward", """
        Gets dx (B,T,C) and the tokens (B,T).
        Adds to dwte (V,C) and to dwpe (P,C)."""),
    ("xent_forward", 4, TRAINER, "xent_forward", """
        Gets N rows of logits, Vp apart, of which V columns count, and the target of each row.
        Writes loss (N) and lse (N). A logit may be large: exp must not overflow."""),
    ("xent_backward", 4, TRAINER, "xent_backward", """
        Gets the logits in dlogits (N,Vp), and lse (N) and target (N).
        Writes the gradient in their place, and 0 in columns V ... Vp-1."""),
    ("layernorm_forward", 5, TRAINER, "layernorm_forward", """
        Gets x (N,C), gain (C) and bias (C).
        Writes out (N,C), and for the backward pass mean (N) and rstd (N)."""),
    ("layernorm_backward", 5, TRAINER, "layernorm_backward", """
        Gets dout (N,C), x (N,C), mean (N), rstd (N) and gain (C).
        Adds to dgain (C) and dbias (C), then writes dx (N,C), which may be dout's memory."""),
    ("gelu_backward", 6, TRAINER, "gelu_backward", """
        Gets dout (n) and x (n), what gelu_forward read.
        Writes dx (n), which may be dout's memory. exp_fast(x) is e^x.
        What the rounding of 1 + tanh u leaves, 1e-6 of dout, is no error."""),
    ("linear_backward", 6, TRAINER, "linear_backward", """
        Gets dout (N,OC), x (N,C) and w (C,OC).
        Writes dx (N,C), adds to dw (C,OC) and to db (OC). matmul and bias_backward may be called;
        rows_of and transpose_of say how a matrix is read."""),
    ("attention_plain", 7, TRAINER, "attention_forward_plain", """
        Gets qkv (B,T,3C); head_row finds the query of a token and head, dot and add_scaled help.
        scratch holds past + T floats for each thread, from thread_index()*(past + T) on.
        Writes out (B,T,C) and lse (B,NH,T). First solve it for past = 0; then a sequence of out,
        qkv and lse has past + T rows, and query 0 sees the keys of rows -past ... 0."""),
    ("attention_backward", 7, TRAINER, "attention_backward_plain", """
        Gets dout (B,T,C), and from the forward pass qkv (B,T,3C), out (B,T,C) and lse (B,NH,T).
        Writes dqkv (B,T,3C), whatever it contained: set it to 0 first, since every query adds to
        the gradients of earlier keys and values. p_t,t2 is e^(q_t . k_t2/sqrt(HS) - lse_t). The
        work grows with T^2, and scratch holds attention_scratch(T, HS) floats for each thread."""),
    ("rotary", 7, TRAINER, None, "rotary positions in place of learned ones"),
    ("post_norm", 8, TRAINER, None, "LayerNorm behind each addition"),
    ("adamw_update", 9, TRAINER, "adamw_update", """
        Gets g (n), to be scaled by g_scale, and o: lr, beta1, beta2, eps, weight_decay, m_steps
        and v_steps. m_steps is the number of this update, from 1, for the bias correction of m.
        v_steps is the same for v; it may differ, and need not be whole.
        Updates the moments m (n) and v (n), then the parameters p (n)."""),
    ("global_norm", 9, TRAINER, "gradients_squares", """
        m->zero has n_chunks chunks: chunk i is chunks[i].count gradients from
        grads + chunks[i].grad. Its squares belong to the sum if chunks[i].counts; another process
        counts the others. norm_partials (n_chunks) is scratch, for a sum of each chunk.
        Returns the sum of all squares, in double, with the same bits for any number of threads. A
        gradient that is not finite must show in it. The caller takes the root, the norm."""),
    ("muon", 9, TRAINER, None, "Muon for the matrices of the blocks"),
    ("gradient_accumulation", 10, TRAINER, "train_step", """
        step_begin(r, s) sets s->micro_batches, s->B, s->T, s->scale and s->adamw;
        clear_grads(m) comes before the first micro-batch. next_batch(r, s, i) reads micro-batch i
        into r->inputs and r->targets. model_forward and model_backward take one micro-batch; the
        latter returns the sum of its losses.
        gradients_squares(m) is the squared norm. model_update(m, s->adamw, factor) ends the
        update: the factor shortens the gradient to r->o.clip if it is longer and the limit is not
        0. There is no model_update if the norm is not finite, nor if r->o.skip_outliers is above 0
        and is_outlier(r, s, all). step_end(r, s, &all) ends the step; it takes Totals, of which
        loss and squares are yours to fill, the rest is 0. What serves several ranks, and a signal
        to stop: gradients_arrive(r, s) behind the last micro-batch, totals_share(&m->zero, &all)
        before `all` is used."""),
    ("sample_token", 11, "dev/train/sample.h", "sample_token", """
        Gets logits (V), and in s the temperature, top_k (0: all) and top_p (1: all). s->candidates
        is scratch: V elements with a token's id and its probability p. qsort with `likelier` sorts
        them. Both limits hold: of the top_k likeliest tokens, keep the fewest that together have
        top_p of the probability of all V tokens, at this temperature, and always one. Add in
        double: of many tokens each may be rare.
        rng_uniform(rng) is a number in [0, 1). Call it once, also where one token is left, but not
        at temperature 0: a seed gives one text. Where rounding leads past the last candidate, that
        one is drawn.
        Returns the token that is drawn."""),
    ("kv_cache", 11, TRAINER, "model_extend", """
        Gets T tokens, of which `past` were run before: their keys and values are in each block's
        qkv. Computes rows past ... T-1 alone, as model_forward computes all, and returns
        model_logits(m, T - 1). acts_from gives a block's tensors from row `past` on, and
        block_forward takes the number of new rows, and `past`. m->x_in and m->lnf have C channels
        a row, the tokens and wpe begin at `past` too. The final norm writes m->lnf_mean and
        m->lnf_rstd, a number for each new row; only the backward pass reads them, so they may begin
        at row 0 or at row `past`. No other row is written, and neither tokens nor weights. What
        serves several ranks may be left out: forward_needs and tp_model_extend."""),
    ("attention_tiled", 12, "dev/cpu/attention.h", "attention_forward_fast", """
        Gets and writes what attention_forward_plain in train_gpt2.c does, a block of QUERIES rows
        of a head at a time; out, lse and qkv begin at row `past`. A block's scores are one product,
        q (rows,HS) times k^T (HS,width). head_scratch gives memory, pack_whole and matmul_packed
        multiply (dev/cpu/matmul.h), and attention_softmax, above, turns scores into weights that
        inv_sum still has to scale."""),
    ("warp_sum", 13, WARP, "warp_sum", """
        Gets a number from each of a warp's 32 lanes.
        Returns the sum of the 32, in every lane."""),
    ("softmax_row", 13, WARP, "softmax_row", """
        Gets x (N,C). Warp n of the whole grid owns row n; there may be more warps than rows. A
        block is one-dimensional, and has 1 to 32 whole warps.
        Writes p (N,C), the softmax of each row, to the rounding of e^(x - the largest) / sum.
        warp_sum and warp_max, above, help. A number of x may be large: exp must not overflow."""),
    ("layernorm_cuda", 13, WARP, "layernorm_cuda", """
        Gets x (N,C), gain (C) and bias (C). Warp n of the whole grid owns row n; there may be more
        warps than rows. A block is one-dimensional, and has 1 to 32 whole warps.
        Writes out (N,C), mean (N) and rstd (N) = 1/sqrt(var + 1e-5). warp_sum, above, helps."""),
    ("find_the_race", 13, WARP, "standardise", """
        This kernel lacks one __syncthreads(). Between which two lines? Put it there; change nothing
        else."""),
    ("transpose_shared", 13, TILES, "transpose_shared", """
        Gets x (N,C). N and C need not be multiples of 32.
        Writes out (C,N): every request of a warp to global memory along a row, and no two lanes at
        the same bank of shared memory."""),
    ("matmul_tiled", 13, TILES, "matmul_tiled", """
        Gets a (M,K) and b (K,N). M, N and K need not be multiples of 16.
        Writes c (M,N). Each number of a and b is loaded by one thread of a block, and used by 16
        from shared memory. All lanes of a warp work, without bank conflicts."""),
    ("ring_allreduce", 14, RANKS, "ring_allreduce", """
        Gets a step, 0 ... 2(n-1) - 1, and a rank, 0 ... n-1.
        Writes *send and *receive, chunks 0 ... n-1, and *adds."""),
    ("zero1", 14, RANKS, "zero1", """
        Gets n ranks, with their gradients in ranks[r].grads (total), and o for adamw_update in
        train_gpt2.c. reduce_scatter and all_gather, above, serve all ranks at once. Slices may be
        unequal or empty, and lie in any order. adamw_update gets each slice once; what a slice's
        grads are afterwards does not matter.
        Updates the moments of each rank's slice, and all of params on every rank."""),
]]
NAMES = {e.name: e for e in EXERCISES}


def path_of(*parts):
    return os.path.join(ROOT, *parts)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def body_of(source, function):
    """Where a function's body begins and ends: after its brace, and before the one in column 0."""
    found = re.search(rf"^static [^;{{}}]*?\b{function}\([^;{{}}]*\) \{{\n(.*?)^\}}", source,
                      re.M | re.S)
    if not found:
        sys.exit(f"exercises.py: there is no function {function} to empty")
    return found.span(1)


# What find_the_race takes out; the rest of its kernel stays.
BARRIER = re.compile(r" *__syncthreads\(\); *// all have read the sums before they change\n")


def empty(source, function, lines, code=""):
    """The source with a body of comments, and this code, in place of a function's own."""
    begin, end = body_of(source, function)
    returns = source[:begin].rsplit("static ", 1)[1].split(function + "(")[0]
    text = "".join(f"    // {line}\n" for line in lines) + code
    return source[:begin] + text + ("" if "void" in returns else "    return 0;\n") + source[end:]


def blank(source, exercise):
    if not exercise.function:
        return source
    lines = [line.strip() for line in exercise.task.strip().splitlines()]
    if exercise.name == "find_the_race":
        begin, end = body_of(source, exercise.function)
        return empty(source, exercise.function, lines, BARRIER.sub("", source[begin:end]))
    return empty(source, exercise.function, ["Your code here."] + lines)


def alone(source, exercise):
    """In a file of exercises: without the bodies of functions that this one does not call, since
    they are, or show, the solutions of others."""
    if exercise.file not in (RANKS, WARP, TILES):
        return source
    begin, end = body_of(source, exercise.function)
    calls = source[begin:end]
    for function in functions_of(source):
        if function != exercise.function and not re.search(rf"\b{function}\(", calls):
            source = empty(source, function, ["Not needed here."])
    return source


def functions_of(text):
    """The functions of a C source by name, each with the comment above it."""
    return {found[2]: found[1] for found in re.finditer(
        r"((?:^//[^\n]*\n)*^static [^;{}]*?\b(\w+)\([^;{}]*\) \{\n.*?^\}\n)", text, re.M | re.S)}


def solve(source, name):
    """The trainer with the solution of an open exercise: its functions replace those of the same
    name; a new one stands before the next that replaces one."""
    new, old = "", functions_of(source)
    solution = read(path_of("dev", "exercises", "solutions", name + ".c"))
    for function, text in functions_of(solution).items():
        new += text
        if function in old:
            source, new = source.replace(old[function], new), ""
        else:
            new += "\n"
    return source


def files_of(exercise):
    """What a copy holds: the file to edit, and what must find it there."""
    if exercise.file in CUDA_CHECKS:
        return [exercise.file, CUDA_CHECKS[exercise.file]]
    if exercise.file in (TRAINER, RANKS):
        return [exercise.file]
    headers = [os.path.join(folder, name) for folder, _, names in os.walk(path_of("dev"))
               for name in names if name.endswith(".h")]
    return [TRAINER, "dataloader.h"] + sorted(os.path.relpath(h, ROOT) for h in headers)


def compiler_says(variable, default, *args):
    """Runs the compiler that a variable names; returns its first error, or None."""
    command = shlex.split(os.environ.get(variable, default)) + list(args)
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"it is not compiled: {command[0]}: {error.strerror}"
    if done.returncode == 0:
        return None
    errors = [line for line in done.stderr.splitlines() if "error" in line] + [done.stderr.strip()]
    return "it does not compile: " + errors[0]


def compile_check(tree, program, file):
    """Builds the check of exercises in `file` with the sources in `tree`; returns an error."""
    tree, program = os.path.abspath(tree), os.path.abspath(program)
    if file in CUDA_CHECKS:
        counts = file == TILES or bool(shutil.which("g++"))
        return compile_cuda(os.path.join(tree, CUDA_CHECKS[file]), program, counts)
    return compile_watched(tree, program, "check.c")


def compile_watched(tree, program, file):
    """Builds check.c or open_check.c; where there are gcc and OpenMP it also finds data races."""
    if compiler_says("CC", "cc", *OPENMP, "-fsyntax-only", "-x", "c", os.devnull):
        return compile_c(tree, program, file, *BOUNDS)
    watch = program + "_threads.o"                 # finds data races; made for gcc
    if compiler_says("CC", "cc", "-std=gnu11", "-O1", "-fopenmp", "-c",
                     path_of("dev", "exercises", "threads.c"), "-o", watch):
        return compile_c(tree, program, file, *OPENMP, *BOUNDS)
    return (compile_c(tree, program + ".o", file, *OPENMP, *BOUNDS, "-fsanitize=thread", "-c")
            or compiler_says("CC", "cc", "-fopenmp", program + ".o", watch, "-o", program, "-lm"))


OPENMP = ["-fopenmp", "-include", "omp.h"]
BOUNDS = ["-fsanitize=bounds", "-fsanitize-undefined-trap-on-error"]      # of a function's arrays


def compile_c(tree, program, file, *flags):
    return compiler_says("CC", "cc", "-std=gnu11", "-O0", "-Wall", "-Wno-unused-function",
                         "-Wno-unused-variable", "-Wno-unknown-pragmas", "-fno-math-errno",
                         "-DPLAIN=1", *flags, "-iquote", tree, "-iquote", ROOT,
                         path_of("dev", "exercises", file), "-o", program, "-lm")


def compile_cuda(source, program, counts):
    """CUDA for a CPU: rewritten into C++, then compiled with the emulator's headers; `counts`: with
    its counters, by the Makefile's command for make profile."""
    fault = compiler_says("CC", "cc", "-O1", path_of("dev", "emulator", "rewrite.c"),
                          "-o", program + "_rewrite")
    if fault:
        return fault
    with open(program + ".cpp", "w", encoding="utf-8") as cpp:
        subprocess.run([program + "_rewrite", source], stdout=cpp, check=True)
    if counts:
        return compile_counted(program)
    return compiler_says("CXX", "c++", "-std=c++17", "-O1", "-Wno-unknown-pragmas", "-DEMULATOR",
                         "-I" + path_of("dev", "emulator", "include"), "-iquote", ROOT,
                         program + ".cpp", "-o", program)


def compile_counted(program):
    if not shutil.which("g++"):
        return "it is not compiled: there is no g++ here, and no other compiler can count"
    flags = os.path.join(os.environ.get("BUILD", "build"), "count-flags")     # make's command
    subprocess.run(["make", "-s", flags], cwd=ROOT, check=True)
    count = read(path_of(flags)).strip()
    return (compiler_says("", count, "-Wno-unused-function", "-fsanitize=thread",
                          "-fsanitize=bounds", "-fstack-clash-protection", "-c",
                          program + ".cpp", "-o", program + ".o")
            or compiler_says("", count, path_of("dev", "emulator", "count.cpp"), program + ".o",
                             "-o", program))


def torch_python():
    """A python3 that has PyTorch, or None; a distribution's own may lie behind another one."""
    for python in (sys.executable, "python3", "/usr/bin/python3"):
        try:
            done = subprocess.run([python, "-c", "import torch"], capture_output=True, check=False)
        except OSError:
            continue
        if done.returncode == 0:
            return python
    return None


def open_verdict(program, name):
    python = torch_python()
    if not python:
        return ("its check needs PyTorch: pip install torch, or apt-get install python3-torch "
                "libopenblas0-pthread")
    return verdict([python, path_of("dev", "exercises", "oracle.py"), name, program])


def verdict(command):
    """None if the check is passed, else one line that says what is wrong."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return (f"it has not ended after {SECONDS} seconds: is there a loop without an end, or one "
                "that takes very long at sizes of 70,000?")
    if done.returncode < 0:
        return (f"it crashes ({signal.Signals(-done.returncode).name}): does an index run past the "
                "end of an array?")
    said = (done.stdout + done.stderr).strip().splitlines() or ["it ends without a word"]
    if done.returncode == 0 and said[-1] == "right":
        return None
    return emulator_says(said) or said[-1]


def emulator_says(said):
    """The emulator's report in one line, or None: with the first place where threads wait."""
    said = [re.sub(r"/\S*/(?=dev/exercises/)", "", line).strip() for line in said]
    for line, following in zip(said, said[1:] + [""]):
        if not line.startswith("emulator: "):
            continue
        if "no thread can run" in line:
            line += ": " + following
        if "no thread can run" in line or "barrier divergence" in line:
            line += ("; every thread of a block must reach each __syncthreads, and every lane of a "
                     "warp each shuffle: neither stands in an if or a loop that only some of them "
                     "run")
        return line
    return None


def verdict_of(exercise, tree, program):
    if exercise.name != "find_the_race":
        return verdict([program, exercise.name])
    source, original = read(os.path.join(tree, WARP)), read(path_of(WARP))
    fault = verdict([program, exercise.name])
    if fault and fault.startswith("emulator: "):
        return fault                   # it names the line where threads wait
    return beyond_a_barrier(source, original) or fault


BARRIER_CALL = "__syncthreads();"


def code_lines(source, function):
    """The lines of a function that say something: (number, text) without comments and spaces."""
    text = functions_of(source)[function]
    first = source[:source.index(text)].count("\n") + 1
    bare = re.sub(r"//.*|/\*[\s\S]*?\*/", lambda found: "\n" * found[0].count("\n"), text)
    lines = [(first + i, "".join(line.split())) for i, line in enumerate(bare.split("\n"))]
    return [(number, line) for number, line in lines if line]


def outside_of(source):
    """What stands outside of functions, without comments and spaces."""
    for text in functions_of(source).values():
        source = source.replace(text, "")
    return "".join(re.sub(r"//.*|/\*[\s\S]*?\*/", "", source).split())


def beyond_a_barrier(source, original):
    """What a solution of find_the_race changes besides adding barriers, or None."""
    begin_anew = "make exercise NAME=find_the_race AGAIN=1 begins anew"
    if outside_of(source) != outside_of(original):
        return f"more than a barrier has changed, outside of standardise; {begin_anew}"
    for function in ("warp_sum", "standardise"):
        mine, whole = ([(n, line.replace(BARRIER_CALL, "")) for n, line in code_lines(s, function)]
                       for s in (source, original))
        if "".join(line for _, line in mine) == "".join(line for _, line in whole):
            continue
        mine, whole = ([(n, line) for n, line in lines if line] for lines in (mine, whole))
        number = next((n for (n, line), (_, other) in zip(mine, whole) if line != other),
                      mine[-1][0])
        line = source.split("\n")[number - 1].split("//")[0].strip()
        return (f"more than a barrier has changed: line {number} of {function}, `{line}`; "
                f"{begin_anew}")
    return None


def find(name):
    if name not in NAMES:
        what = f"there is no exercise {name}" if name else "which exercise? NAME=layernorm_backward"
        sys.exit(f"{what}; make exercises lists them")
    return NAMES[name]


def shown(path):
    return os.path.relpath(path) if path.startswith(ROOT) else path


def start(name, again):
    exercise = find(name)
    tree = os.path.join(FOLDER, name)
    edited = os.path.join(tree, exercise.file)
    if os.path.exists(tree):
        if not again:
            sys.exit(f"{shown(edited)} is there already, and stays as it is; "
                     f"make exercise NAME={name} AGAIN=1 throws it away and begins anew")
        shutil.rmtree(tree)
    for file in files_of(exercise):
        text = read(path_of(file))
        if file == exercise.file:
            text = blank(alone(text, exercise), exercise)
        write(os.path.join(tree, file), text)
    if not exercise.function:
        print(f"Build {exercise.task} in {shown(edited)}; dev/exercises/{name}.md says what.")
        print(f"Then: make check NAME={name}")
        return
    line = read(edited)[:body_of(read(edited), exercise.function)[0]].count("\n") + 1
    verb = "Mend" if name == "find_the_race" else "Write"
    print(f"{verb} {exercise.function} in {shown(edited)}, line {line}; "
          f"lesson {exercise.lesson} in dev/lessons explains it.")
    print(f"Then: make check NAME={name}")


def fault_of(exercise, tree, program):
    if exercise.function:
        return compile_check(tree, program, exercise.file) or verdict_of(exercise, tree, program)
    return compile_watched(tree, program, "open_check.c") or open_verdict(program, exercise.name)


def check(name):
    exercise = find(name)
    tree = os.path.join(FOLDER, name)
    if not os.path.exists(os.path.join(tree, exercise.file)):
        sys.exit(f"{name} is not begun: make exercise NAME={name}")
    program = os.path.join(tree, "check")
    fault = fault_of(exercise, tree, program)
    write(os.path.join(tree, "result"), (fault or "solved") + "\n")
    print(f"{name}: {fault or 'solved'}")
    if fault:
        sys.exit(1)
    original = (f"{exercise.function} in {exercise.file}" if exercise.function else
                f"dev/exercises/solutions/{name}.c")
    print(f"To compare: {original}. The others: make exercises")


def result_of(name):
    tree = os.path.join(FOLDER, name)
    if not os.path.exists(tree):
        return ""
    path = os.path.join(tree, "result")
    return read(path).strip() if os.path.exists(path) else "begun"


def list_all():
    results = {e.name: result_of(e.name) for e in EXERCISES}
    for e in EXERCISES:
        print(f"  {e.name:22} lesson {e.lesson:2}  {results[e.name]}".rstrip())
    solved = sum(result == "solved" for result in results.values())
    print(f"{solved} of {len(EXERCISES)} solved")
    left = [name for name, result in results.items() if result != "solved"]
    if left:
        print(f"make {'check' if results[left[0]] else 'exercise'} NAME={left[0]}")


def main():
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)      # make exercises | head
    args = sys.argv[1:]
    again = "--again" in args
    args = [a for a in args if a != "--again"] + [""]
    if args[0] == "list":
        list_all()
    elif args[0] == "start":
        start(args[1], again)
    elif args[0] == "check":
        check(args[1])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
