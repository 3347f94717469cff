#!/usr/bin/env bash
# The emulator from outside: what the rewriter makes of a .cu file, that AddressSanitizer names the
# line and the thread, and that every compiler and setting builds an emulator that passes its tests.
#
#     LONG=1 tests/test_emulator.sh     with gcc's optimizer and sanitizers, too
. "$(dirname "$0")/tools.sh"

said() {                                    # said TEXT WHO: it stands in $dir/said
    grep -qF -- "$1" "$dir/said" || note "$2 does not say '$1': $(head -n 3 "$dir/said")"
}

"$cc" -Wall -Wextra -Werror -g -fsanitize=address,undefined dev/emulator/rewrite.c \
    -o "$dir/rewrite" 2> "$dir/said" || { echo "FAIL rewriter: $(head -n 1 "$dir/said")"; exit 1; }

# build PROGRAM FILE.cu COMPILER FLAGS...: rewrites and compiles it; no warning is allowed.
build() {
    "$dir/rewrite" "$2" > "$1.cpp" 2> "$dir/said" &&
        "${@:3}" -std=c++17 -Wall -Wextra -Werror -Wno-unknown-pragmas -Idev/emulator/include -I. \
            "$1.cpp" -o "$1" -lm > "$dir/said" 2>&1
}

# builds NAME PROGRAM FILE.cu COMPILER FLAGS...: or the test of this name is skipped, or fails.
builds() {
    build "${@:2}" && return
    grep -qE 'cannot find|omp.h|unable to find|unsupported option' "$dir/said" ||
        note "$(grep -m 1 -E 'error|warning' "$dir/said")"
    skip "$1" "needs what '${*:4}' links with"
    return 1
}

# ---- the rewriter ----

# Comments and literals stay as they are, and every line where it was. An included .cu is rewritten
# in its place, other files are found beside it, and the compiler's messages name the lines of each.
mkdir -p "$dir/a/b"
printf '#pragma once\nenum { FROM_HEADER = 1 };\n' > "$dir/a/b/some.h"
cat > "$dir/a/inner.cu" << 'CU'
#include "b/some.h"
// kernel<<<1, 2>>>(3) in a comment; __shared__ float x[3]; don't be misled
/* nor here: a<<<b, c>>>(d)
   extern __shared__ int y[]; */
static const char *text = "\"k<<<1, 2>>>(3); // __shared__ int z;", quote = '"', other = '\'';
int million = 1'000'000, shifted = 1 << 3 >> 1;
#define __shared__name 7 // no token
extern int elsewhere; extern "C" { int inside(void); }
CU
cat > "$dir/a/b/outer.cu" << 'CU'
#  include "../inner.cu"
#include "some.h"
void wrong() { int unused; }
#pragma unroll
int main() { return FROM_HEADER; }
CU
build "$dir/outer" "$dir/a/b/outer.cu" "$cxx" && note "a warning is missing"
said "$dir/a/inner.cu:5:" compiler
said "$dir/a/b/outer.cu:3:" compiler
sed '1,/inner.cu"/d' "$dir/outer.cpp" | sed -n 2,8p | cmp -s - <(tail -n +2 "$dir/a/inner.cu") ||
    note "changes what is not CUDA's"
"$dir/rewrite" tests/test_emulator.cu > "$dir/test.cpp"
[ "$(tail -n +4 "$dir/test.cpp" | wc -l)" = "$(wc -l < tests/test_emulator.cu)" ] ||
    note "does not keep the number of lines"
# What it cannot parse it refuses, with the line.
refuses() {                                 # refuses TEXT LINE MESSAGE
    printf '%b' "$1" > "$dir/bad.cu"
    "$dir/rewrite" "$dir/bad.cu" > "$dir/bad.cpp" 2> "$dir/said" && note "takes $1"
    said "$dir/bad.cu:$2: $3" "$1"
}
refuses 'void f() {\n    k<<<1, 2;\n}\n' 2 'no matching >>>'
refuses 'void f() {\n\n    <<<1, 2>>>(3);\n}\n' 3 "<<< without a kernel's name before it"
refuses 'void f() {\n    __shared__ int;\n' 2 'a __shared__ declaration'
end rewriter_changes_no_more_than_it_must

# ---- memory faults ----

cat > "$dir/memory.cu" << 'CU'
#include <stdlib.h>
__global__ void stray(float *x, int kind, int i) {
    __shared__ float tile[4][8], next[8];
    extern __shared__ float dynamic[];
    float mine[8] = { (float)i };
    tile[3][threadIdx.x] = dynamic[threadIdx.x] = next[threadIdx.x] = 0;
    __syncthreads();
    if (blockIdx.x != 1 || threadIdx.x != 5) return;
    if (kind == 'g') x[i] = 1;                               // global
    if (kind == 's') next[0] = tile[0][i];                   // static
    if (kind == 'd') next[0] = dynamic[i];                   // dynamic
    if (kind == 'l') next[0] = mine[i];                      // local
}
int main(int, char **argv) {
    float *x;
    cudaMalloc(&x, 8 * sizeof *x);
    if (argv[3]) cudaFree(x);
    stray<<<2, 8, 8 * sizeof(float)>>>(x, argv[1][0], atoi(argv[2]));
    if (!argv[3]) cudaFree(x);
}
CU
# fault KIND INDEX [freed]: the report names the marked line, and who ran it.
fault() {
    "$dir/memory" "$@" > "$dir/said" 2>&1 && note "$* goes unnoticed"
    said "memory.cu:$(grep -n "// $1" "$dir/memory.cu" | cut -d: -f1)" "$*"
    said "emulator: kernel stray, block (1,0,0), thread (5,0,0): the fault above" "$*"
}
name=memory_faults_are_named_by_line_and_thread
if builds $name "$dir/memory" "$dir/memory.cu" "$cxx" -g -O1 -fsanitize=address; then
    for case in "global 8" "static 32" "dynamic 8" "local 8" "global 0 freed"; do
        fault $case
        [ "$case" = "global 0 freed" ] || "$dir/memory" "${case% *}" $((${case#* } - 1)) \
            > "$dir/said" 2>&1 || note "before $case: $(head -n 3 "$dir/said")"
    done
    end $name
fi

# ---- every build passes the emulator's tests ----

works_with() {                              # works_with [VARIABLE=VALUE]
    env "$@" "$dir/test" > "$dir/said" 2>&1 || note "$*: $(grep -m 1 -vE '^ok|^$' "$dir/said")"
}
# passes NAME COMPILER FLAGS...
passes() {
    command -v "$2" > /dev/null || { skip "$1" "needs $2"; return; }
    builds "$1" "$dir/test" tests/test_emulator.cu "${@:2}" || return
    works_with
    end "$1"
}
sanitize="-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all"
passes emulator_on_one_core "$cxx" -O0 -g
for order in SHUFFLE=1 SHUFFLE=2 STREAMS=late STREAMS=random; do works_with EMULATOR_$order; done
end emulator_in_any_order
[ -z "${LONG:-}" ] || passes emulator_with_gcc g++ -O3 -march=native -fopenmp
[ -z "${LONG:-}" ] || passes emulator_with_gcc_sanitized g++ $sanitize -fopenmp
ASAN_OPTIONS=detect_stack_use_after_return=1 \
    passes emulator_with_clang_sanitized clang++ $sanitize

# ---- NCCL: tests/test_nccl.cu by 2 to 4 ranks, in every order of the streams; and what ranks do
# wrong together must be reported, with who and which call

. tests/ranks.sh
export OMPI_CXX=$cxx MPICH_CXX=$cxx
unset EMULATOR_STREAMS

reported() {                                # reported WORDS STATUS WHAT
    [ "$2" -ne 0 ] && [ "$2" -ne 124 ] && ! grep -q '^after' "$dir/said" &&
        grep -qF -- "$1" "$dir/said" || note "$3, status $2: $(grep -m 1 . "$dir/said")"
}
ranks() {                                   # ranks N ARGS...: on a GPU each, or on DEVICES
    EMULATOR_DEVICES=${DEVICES:-$1} timeout 60 mpirun -n "$1" "$dir/test" "${@:2}" \
        > "$dir/said" 2>&1 < /dev/null
}
by() {                                      # by N: all tests, and every rank comes to the end
    ranks "$1" || note "$1 ranks: status $?: $(grep -m 1 -vE '^ok|^$' "$dir/said")"
    same "of $1 ranks" "$(grep -c '^ok calls_that_are_refused' "$dir/said")" "$1"
}

nccl() {                                    # nccl PROGRAM COMPILER FLAGS...
    build "$1" tests/test_nccl.cu "${@:2}" -O1 || note "$(grep -m 1 -E 'error|warning' "$dir/said")"
}
nccl "$dir/alone" "$cxx"
"$dir/alone" init 2 > "$dir/said" 2>&1
reported 'unhandled system error: ncclCommInitRank: 2 ranks, but this' $? "two ranks without MPI"
end nccl_without_mpi

tests="nccl_of_many_ranks nccl_misuse_is_reported"
needs mpirun mpicxx
nccl "$dir/test" mpicxx -DEMULATOR_MPI
for n in 2 4; do by $n; done
for streams in late random; do EMULATOR_STREAMS=$streams by 3; done
end nccl_of_many_ranks

# misuse WORDS ARGS...: what two ranks do wrong, words of the report. Again if mpirun alone spoke.
misuse() {
    local words=$1 status try
    shift
    for try in 1 2 3; do
        EMULATOR_TIMEOUT=2 ranks 2 "$@"
        status=$?
        grep -qE 'nccl|^after|Exit code' "$dir/said" && break
    done
    reported "$words" $status "$*"
}
send='rank 0: ncclSend(4 bytes, to rank 1), call 1'
misuse 'rank 1: ncclRecv(5 bytes, from rank 0), call 1, but rank 0 sent 4 bytes' sizes
misuse "$send, has waited 2 s for rank 1; a GPU would wait forever" asleep
EMULATOR_STREAMS=late misuse "$send" asleep
misuse 'Exit code:    7' left
misuse 'invalid usage: ncclCommInitRank: rank 0 of 3, but MPI says rank 0 of 2' init 3
DEVICES=1 misuse 'invalid usage: Duplicate GPU detected: ranks 0 and 1 both on device 0' init 2
end nccl_misuse_is_reported
exit $failed
