#!/usr/bin/env python3
"""Exercises: functions of the trainer to write anew. make exercise and make check call this
script.

    exercises.py start NAME [--again]    exercise/NAME: a copy with the function's body empty
    exercises.py check NAME              compile the copy, run its check, say what is wrong
    exercises.py list                    the exercises, and what is solved

A copy is made from the source as it is, so an exercise is a row of the table below and a row of
cases.h or cases_cuda.h, which dev/check runs with the copy and with the original. exercise/NAME
overlays the repository: what it does not hold is read from there. An open exercise has a page in
place of an empty function, and oracle.py compares the whole trainer with PyTorch.
"""
import collections
import glob
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDER = os.environ.get("EXERCISES", os.path.join(ROOT, "exercise"))
CC = os.environ.get("CC", "cc")
TRAINER = "train_gpt2.c"
RANKS, KERNELS, SIDE, SIDE_CUDA, OPEN = (
    "dev/exercises/" + name for name in ("ranks.h", "kernels.cu", "side.c", "side.cu", "open.c"))
SECONDS = 120                          # a check takes two; on a busy machine ten times as many

Exercise = collections.namedtuple("Exercise", "name lesson file function task")

# In the order of the lessons. An open exercise names no function, and its page says the task. Else
# the task is what the empty body says; the comment above the function stays, with the formula.
EXERCISES = [Exercise(*row) for row in [
    ("embedding_forward", 1, TRAINER, "embedding_forward",
     "Writes x (B,T,C): the token's row of wte plus the position's row of wpe."),
    ("embedding_backward", 2, TRAINER, "embedding_backward",
     "Adds dx (B,T,C) to the rows of dwte (V,C) and dwpe (P,C) that forward read."),
    ("xent_forward", 4, TRAINER, "xent_forward",
     "Writes loss (N) and lse (N) of N rows of logits, Vp apart, of which V columns count."),
    ("xent_backward", 4, TRAINER, "xent_backward",
     "Writes the gradient in place of the logits in dlogits (N,Vp). Columns V ... Vp-1 stay."),
    ("layernorm_forward", 5, TRAINER, "layernorm_forward",
     "Writes out (N,C), and for the backward pass mean (N) and rstd (N)."),
    ("layernorm_backward", 5, TRAINER, "layernorm_backward",
     "Adds to dgain (C) and dbias (C), then writes dx (N,C), which may be dout's memory."),
    ("gelu_backward", 6, TRAINER, "gelu_backward",
     "Writes dx (n), which may be dout's memory. exp_fast(x) is e^x."),
    ("linear_backward", 6, TRAINER, "linear_backward",
     "Writes dx (N,C), adds to dw (C,OC) and to db (OC). matmul, rows_of, transpose_of and "
     "bias_backward help."),
    ("attention_plain", 7, TRAINER, "attention_forward_plain",
     "Writes out (B,T,C) and lse (B,NH,T); head_row, dot and add_scaled help. A thread's scratch "
     "begins at thread_index()*(past + T). First solve it for past = 0."),
    ("attention_backward", 7, TRAINER, "attention_backward_plain",
     "Writes dqkv (B,T,3C): begin with 0, since every query adds to earlier keys and values. "
     "p_t,t2 is e^(q_t . k_t2/sqrt(HS) - lse_t)."),
    ("rotary", 7, TRAINER, None, "rotary positions in place of learned ones"),
    ("post_norm", 8, TRAINER, None, "LayerNorm behind each addition"),
    ("adamw_update", 9, TRAINER, "adamw_update",
     "Updates the moments m (n) and v (n) with the gradient g (n) times g_scale, then the "
     "parameters p (n). o.m_steps is this update's number, from 1; o.v_steps is the same for v."),
    ("global_norm", 9, TRAINER, "gradients_squares",
     "Returns the sum, in double, of the squares of all gradients: chunk i is chunks[i].count of "
     "them from m->params.grads + chunks[i].grad, and belongs to the sum if chunks[i].in_norm. "
     "norm_partials has room for a sum of each of the n_chunks chunks."),
    ("muon", 9, TRAINER, None, "Muon for the matrices of the blocks"),
    ("gradient_accumulation", 10, TRAINER, "train_step",
     "One update. step_begin(r, s) fills s: micro_batches, B, T, scale, adamw. After "
     "clear_grads(m), next_batch(r, s, i) reads micro-batch i into r->inputs and r->targets; "
     "model_forward (past = 0), classifier_loss_and_gradient, which returns the sum of its "
     "losses, and model_backward run it; gradients_arrive(r, s) follows the last one. "
     "gradients_squares(m) is the squared norm. Put it and the loss into a Totals `all`, call "
     "totals_share(&m->params, &all), shorten the gradient to r->o.clip if that is not 0, by "
     "model_update's factor, and end with step_end(r, s, &all). No update if the norm is not "
     "finite."),
    ("sample_token", 11, "dev/train/sample.c", "sample_token",
     "Returns a token drawn from logits (V) at s->temperature, among the s->top_k likeliest (0: "
     "all) the fewest with s->top_p of the probability of all. s->candidates (V) is scratch, for "
     "qsort with `likelier`. One rng_uniform(rng) decides; at temperature 0 none is taken."),
    ("kv_cache", 11, TRAINER, "model_forward",
     "Runs tokens (B,T) up to m->lnf.out (B*T,C); they follow `past` earlier ones (0 in training), whose "
     "keys and values block_forward finds in a block's qkv."),
    ("attention_tiled", 12, "dev/cpu/attention.c", "attention_forward_fast",
     "Writes what attention_forward_plain does, a block of QUERIES rows of a head at a time: q "
     "times k^T, attention_softmax, times v. head_scratch gives memory, pack_whole and "
     "matmul_packed multiply (dev/cpu/matmul.c)."),
    ("warp_sum", 13, KERNELS, "warp_sum",
     "Returns the sum of x over a warp's 32 lanes, in every lane."),
    ("softmax_row", 13, KERNELS, "softmax_row",
     "Writes p (N,C), the softmax of each row of x (N,C). warp_sum and warp_max, above, help. "
     "There may be more warps than rows."),
    ("layernorm_cuda", 13, KERNELS, "layernorm_cuda",
     "Writes out (N,C), mean (N) and rstd (N) = 1/sqrt(var + 1e-5). warp_sum, above, helps. There "
     "may be more warps than rows."),
    ("find_the_race", 13, KERNELS, "standardise",
     "This kernel lacks one __syncthreads(). Between which two lines?"),
    ("transpose_shared", 13, KERNELS, "transpose_shared",
     "Writes out (C,N) from x (N,C), of any size: a warp's requests to global memory go along a "
     "row, and no two lanes want the same bank of shared memory."),
    ("matmul_tiled", 13, KERNELS, "matmul_tiled",
     "Writes c (M,N) from a (M,K) and b (K,N), of any size. Each number is loaded by one thread "
     "of a block, and used by 16 from shared memory, without bank conflicts."),
    ("ring_allreduce", 14, RANKS, "ring_allreduce",
     "Writes *send and *receive, chunks 0 ... n-1, and *adds, for step 0 ... 2(n-1) - 1 of rank 0 "
     "... n-1."),
    ("zero1", 14, RANKS, "zero1",
     "Updates the moments of each rank's slice, and all of params on every rank. reduce_scatter "
     "and all_gather, above, serve all ranks at once."),
]]
NAMES = {e.name: e for e in EXERCISES}


# ---------------------------------------------------------------- sources

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
    found = re.search(rf"^\w[^;{{}}/#]*?\b{function}\([^;{{}}]*\) \{{\n(.*?)^\}}", source,
                      re.M | re.S)
    if not found:
        sys.exit(f"exercises.py: there is no function {function} to empty")
    return found.span(1)


# What find_the_race takes out; the rest of its kernel stays.
BARRIER = re.compile(r" *__syncthreads\(\); *// all have read the sums before they change\n")


def empty(source, function, lines, code=""):
    """The source with a body of comments, and this code, in place of a function's own."""
    begin, end = body_of(source, function)
    returns = source[:begin].rsplit(function + "(", 1)[0].rsplit("\n", 1)[1]
    text = "".join(f"    // {line}\n" for line in lines) + code
    return source[:begin] + text + ("" if "void" in returns else "    return 0;\n") + source[end:]


def blank(source, exercise):
    if not exercise.function:
        return source
    lines = textwrap.wrap(exercise.task, 90)
    if exercise.name == "find_the_race":
        begin, end = body_of(source, exercise.function)
        return empty(source, exercise.function, lines, BARRIER.sub("", source[begin:end]))
    return empty(source, exercise.function, ["Your code here."] + lines)


def alone(source, exercise):
    """In a file of exercises: without the bodies of functions that this one does not call, since
    they are, or show, the solutions of others."""
    if exercise.file not in (RANKS, KERNELS):
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
        r"((?:^//[^\n]*\n)*^\w[^;{}/#]*?\b(\w+)\([^;{}]*\) \{\n.*?^\}\n)", text, re.M | re.S)}


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


# ---------------------------------------------------------------- programs

def compiler_says(compiler, *args):
    """Runs a compiler; returns its first error, or None."""
    command = shlex.split(compiler) + list(args)
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"it is not compiled: {command[0]}: {error.strerror}"
    if done.returncode == 0:
        return None
    errors = [line for line in done.stderr.splitlines()
              if "error" in line or "undefined reference" in line] + [done.stderr.strip()]
    return "it does not compile: " + errors[0]


def sources(tree, file):
    """What a side is compiled from: its own file, and the reader's, if that is none it includes."""
    return [path_of(file)] + [name for name in glob.glob(os.path.join(tree, "dev", "*", "*.c"))
                              if tree != ROOT]


def flags_of(tree, file):
    return ["-std=gnu11", "-O0", "-w", "-fno-math-errno", "-DPLAIN=1", *OPENMP, "-iquote", tree,
            "-iquote", ROOT, *(f"-iquote{path_of(os.path.relpath(os.path.dirname(name), tree))}"
                               for name in sources(tree, file)[1:])]


def make(*names):
    """Files that the Makefile builds; returns their paths."""
    names = [os.path.join(os.environ.get("BUILD", "build"), name) for name in names]
    with MAKE:
        subprocess.run(["make", "-s", f"-j{os.cpu_count()}", "CC=" + CC, *names], cwd=ROOT,
                       env={**os.environ, "MAKEFLAGS": ""}, check=True)     # not its job server
    return [path_of(name) for name in names]


def compile_c(tree, program, file, *flags):
    return compiler_says(CC, *flags_of(tree, file), *flags, *sources(tree, file),
                         *make("library.a"), "-o", program, "-lm")


OPENMP = ["-fopenmp"]
if compiler_says(CC, "-fopenmp", "-include", "omp.h", "-fsyntax-only", "-x", "c", os.devnull):
    OPENMP = []
# Every access calls a function, which compiles faster than a check in place.
BOUNDS = ["-DBOUNDED", "-fsanitize=address", "--param",
          "asan-instrumentation-with-call-threshold=0"]
WATCHED = ["-DWATCHED", "-fsanitize=thread", "-Ddynamic=static", "-Dguided=static"]
MAKE = threading.Lock()


def compile_bounds(tree, program, file):
    """With AddressSanitizer, where there is one."""
    return compile_c(tree, program, file, *BOUNDS) and compile_c(tree, program, file)


def compile_races(tree, program, file):
    """With threads.c, which finds data races: it needs gcc and OpenMP."""
    threads = path_of("dev", "exercises", "threads.c")
    fault = compiler_says(CC, "-O1", *OPENMP, "-c", threads, "-o", program + "_threads.o")
    objects = [program + "_threads.o"]
    for source in sources(tree, file):
        objects.append(f"{program}_{len(objects)}.o")
        fault = fault or compiler_says(CC, *flags_of(tree, file), *WATCHED, "-c", source, "-o",
                                       objects[-1])
    return fault or compiler_says(CC, *OPENMP, *objects, *make("library.a"), "-o", program, "-lm")


def compile_cuda(tree, program):
    """CUDA for a CPU: rewritten into C++, then compiled with the emulator's headers and counters, by
    the Makefile's command for make profile, which needs g++."""
    rewrite, flags, counters = make("rewrite", "count-flags", "count.o")
    with open(program + ".cpp", "w", encoding="utf-8") as cpp:
        for source in os.path.join(tree, KERNELS), path_of(SIDE_CUDA):
            subprocess.run([rewrite, source], stdout=cpp, check=True)
    count = read(flags).strip()
    return (compiler_says(count, "-w", "-fsanitize=thread", "-c", program + ".cpp", "-o",
                          program + ".o")
            or compiler_says(count, program + ".o", counters, "-o", program))


def all_of(*jobs):
    """Runs functions side by side; returns the first error."""
    with ThreadPoolExecutor() as pool:
        return next(filter(None, [job.result() for job in [pool.submit(*job) for job in jobs]]),
                    None)


def originals():
    """The folder of the programs that a reader's are compared with, and by."""
    compilers = re.sub(r"\W", "_", CC + os.environ.get("CXX", ""))
    return path_of(os.environ.get("BUILD", "build"), "check" + compilers)


def build_original(file):
    """They are made once, until a source changes."""
    names = [os.path.basename(KERNELS if file == KERNELS else TRAINER), "compare"]
    made = [os.path.join(originals(), name) for name in names]
    sources = [path_of(TRAINER), *make("library.a")]
    for folder in ("check", "exercises", "emulator"):
        sources += glob.glob(path_of("dev", folder, "**", "*.[ch]*"), recursive=True)
    newest = max(map(os.path.getmtime, sources))
    if all(os.path.exists(program) and os.path.getmtime(program) > newest for program in made):
        return None
    os.makedirs(originals(), exist_ok=True)
    with tempfile.TemporaryDirectory(dir=originals()) as folder:
        new = [os.path.join(folder, name) for name in names]
        fault = all_of((compile_cuda, ROOT, new[0]) if file == KERNELS else
                       (compile_c, ROOT, new[0], SIDE),
                       (compile_c, ROOT, new[1], "dev/check/compare.c"))
        for program, place in [] if fault else zip(new, made):
            os.replace(program, place)
    return fault


def build_reader(folder, file, tree):
    """The programs with the sources in `tree`; returns an error."""
    bounds, races = (os.path.join(folder, name) for name in ("bounds", "races"))
    if file == KERNELS:
        return compile_cuda(tree, bounds)
    return all_of((compile_bounds, tree, bounds, SIDE),
                  (lambda: compile_races(tree, races, SIDE) and None,))


def record(program, folder, exercise, threads, out):
    """Runs a side; returns what is wrong if it comes to no end."""
    env = {"ASAN_OPTIONS": "detect_leaks=0:redzone=2048", "OMP_WAIT_POLICY": "passive",
           **os.environ}
    try:
        done = subprocess.run([program, exercise.name, str(threads), out], cwd=folder,
                              capture_output=True, text=True, check=False, timeout=SECONDS, env=env)
    except subprocess.TimeoutExpired:
        return f"it has not ended after {SECONDS} seconds: is there a loop without an end?"
    if done.returncode < 0:
        return (f"it crashes ({signal.Signals(-done.returncode).name}): does an index run past the "
                "end of an array?")
    said = done.stderr.strip().splitlines() or ["it ends without a word"]
    return None if done.returncode == 0 else emulator_says(said) or said[-1]


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
                     "warp each shuffle")
        return line
    return None


def compared(folder, *args):
    """What dev/check/compare.c says of two records, or None if they agree."""
    done = subprocess.run([os.path.join(originals(), "compare"), *args], cwd=folder, text=True,
                          capture_output=True, check=False)
    return None if done.returncode == 0 else done.stdout.strip()


def values_verdict(folder, exercise):
    """None if what one thread writes is right, else one line that says what is wrong."""
    original = os.path.basename(KERNELS if exercise.file == KERNELS else TRAINER)
    return (record(os.path.join(originals(), original), folder, exercise, 1, "expected")
            or record(os.path.join(folder, "bounds"), folder, exercise, 1, "got")
            or compared(folder, "expected", "got"))


def threads_verdict(folder, exercise):
    """The same for four threads; threads of a GPU run in several orders anyway."""
    races, bounds = (os.path.join(folder, name) for name in ("races", "bounds"))
    program = races if os.path.exists(races) else bounds
    return None if exercise.file == KERNELS else (
        record(program, folder, exercise, 1, "one")
        or record(program, folder, exercise, 4, "many")
        or compared(folder, "--bits", "one", "many"))


# ---------------------------------------------------------------- open exercises

def torch_python():
    """A python3 that has PyTorch, or None; a distribution's own may lie behind another one."""
    for python in filter(shutil.which, (sys.executable, "python3", "/usr/bin/python3")):
        if subprocess.run([python, "-c", "import torch"], capture_output=True,
                          check=False).returncode == 0:
            return python
    return None


def open_verdict(folder, exercise, tree):
    python = torch_python()
    if not python:
        return ("its check needs PyTorch: pip install torch, or apt-get install python3-torch "
                "libopenblas0-pthread")
    program = os.path.join(folder, "open")
    fault = all_of((build_original, OPEN),
                   (lambda: compile_races(tree, program, OPEN) and compile_c(tree, program, OPEN),))
    fault = fault or record(program, folder, exercise, 2, "got")
    if fault:
        return fault
    subprocess.run([python, path_of("dev", "exercises", "oracle.py"), exercise.name, "got",
                    "expected"], cwd=folder, check=True)
    return compared(folder, "expected", "got")


# ---------------------------------------------------------------- commands

def find(name):
    if name not in NAMES:
        what = f"there is no exercise {name}" if name else "which exercise? NAME=layernorm_backward"
        sys.exit(f"{what}; make exercise lists them")
    return NAMES[name]


def start(name, again):
    exercise = find(name)
    tree = os.path.join(FOLDER, name)
    edited = os.path.join(tree, exercise.file)
    if os.path.exists(tree):
        if not again:
            sys.exit(f"{os.path.relpath(edited)} is there already, and stays as it is; "
                     f"make exercise NAME={name} AGAIN=1 throws it away and begins anew")
        shutil.rmtree(tree)
    text = blank(alone(read(path_of(exercise.file)), exercise), exercise)
    write(edited, text)
    if not exercise.function:
        print(f"Build {exercise.task} in {os.path.relpath(edited)}; dev/exercises/{name}.md says "
              "what.")
    else:
        line = text[:body_of(text, exercise.function)[0]].count("\n") + 1
        print(f"{'Mend' if name == 'find_the_race' else 'Write'} {exercise.function} in "
              f"{os.path.relpath(edited)}, line {line}; lesson {exercise.lesson} in dev/lessons "
              "explains it.")
    print(f"Then: make check NAME={name}")


def fault_of(exercise, tree):
    tree = os.path.abspath(tree)
    with tempfile.TemporaryDirectory() as folder:
        if not exercise.function:
            return open_verdict(folder, exercise, tree)
        return (all_of((build_reader, folder, exercise.file, tree),
                       (build_original, exercise.file))
                or values_verdict(folder, exercise) or threads_verdict(folder, exercise))


def check(name):
    exercise = find(name)
    tree = os.path.join(FOLDER, name)
    if not os.path.exists(os.path.join(tree, exercise.file)):
        sys.exit(f"{name} is not begun: make exercise NAME={name}")
    fault = fault_of(exercise, tree)
    write(os.path.join(tree, "result"), (fault or "solved") + "\n")
    print(f"{name}: {fault or 'solved'}")
    if fault:
        sys.exit(1)
    original = (f"{exercise.function} in {exercise.file}" if exercise.function else
                f"dev/exercises/solutions/{name}.c")
    print(f"To compare: {original}. The others: make exercise")


def result_of(name):
    tree = os.path.join(FOLDER, name)
    path = os.path.join(tree, "result")
    return read(path).strip() if os.path.exists(path) else "begun" if os.path.exists(tree) else ""


def list_all():
    results = {e.name: result_of(e.name) for e in EXERCISES}
    for e in EXERCISES:
        print(f"  {e.name:22} lesson {e.lesson:2}  {results[e.name]}".rstrip())
    left = [name for name, result in results.items() if result != "solved"]
    print(f"{len(EXERCISES) - len(left)} of {len(EXERCISES)} solved")
    if left:
        print(f"make {'check' if results[left[0]] else 'exercise'} NAME={left[0]}")


def main():
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)      # make exercise | head
    args = [a for a in sys.argv[1:] if a != "--again"]
    command, name = (args + ["", ""])[:2]
    commands = {"list": list_all, "start": lambda: start(name, "--again" in sys.argv),
                "check": lambda: check(name)}
    commands.get(command, lambda: sys.exit(__doc__))()


if __name__ == "__main__":
    main()
