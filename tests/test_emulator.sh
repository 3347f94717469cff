#!/usr/bin/env bash
# The emulator from outside: what the rewriter makes of a .cu file, that AddressSanitizer names the
# line and the thread, and that every compiler and setting builds an emulator that passes its tests.
#
#     LONG=1 tests/test_emulator.sh     with gcc's optimizer and sanitizers, too
. "$(dirname "$0")/tools.sh"

line_of() { grep -n -m 1 -F -- "$2" "$1" | cut -d: -f1; }     # line_of FILE TEXT
said() {                                    # said TEXT WHO: it stands in $dir/said
    grep -qF -- "$1" "$dir/said" || note "$2 does not say '$1': $(head -n 3 "$dir/said")"
}

"$cc" -Wall -Wextra -Werror -g -fsanitize=address,undefined dev/emulator/rewrite.c \
    -o "$dir/rewrite" 2> "$dir/said" || { echo "FAIL rewriter: $(head -n 1 "$dir/said")"; exit 1; }

# build PROGRAM FILE.cu COMPILER FLAGS...: rewrites and compiles it; no warning is allowed.
build() {
    local program=$1 file=$2
    shift 2
    "$dir/rewrite" "$file" > "$program.cpp" 2> "$dir/said" || return 1
    "$@" -std=c++17 -Wall -Wextra -Werror -Wno-unknown-pragmas -Idev/emulator/include -I. \
        "$program.cpp" -o "$program" -lm > "$dir/said" 2>&1
}

# ---- the rewriter ----

# Comments and literals stay as they are, and every line where it was.
mkdir -p "$dir/a/b"
cat > "$dir/a/plain.cu" << 'CU'
// kernel<<<1, 2>>>(3) in a comment; __shared__ float x[3]; don't be misled
/* nor here: a<<<b, c>>>(d)
   extern __shared__ int y[]; */
static const char *text = "\"k<<<1, 2>>>(3); // __shared__ int z;", quote = '"', other = '\'';
int million = 1'000'000, shifted = 1 << 3 >> 1;
#define __shared__name 7 // no token
extern int elsewhere; extern "C" { int inside(void); }
CU
"$dir/rewrite" "$dir/a/plain.cu" > "$dir/plain.cpp" 2> "$dir/said" || note "$(cat "$dir/said")"
tail -n +4 "$dir/plain.cpp" | cmp -s - "$dir/a/plain.cu" || note "changes what is not CUDA's"
"$dir/rewrite" tests/test_emulator.cu > "$dir/test.cpp"
[ "$(tail -n +4 "$dir/test.cpp" | wc -l)" = "$(wc -l < tests/test_emulator.cu)" ] ||
    note "does not keep the number of lines"
end rewriter_keeps_what_it_need_not_change

# An included .cu is rewritten in its place, other files are found beside it, and the compiler's
# messages name the lines of each.
printf '#pragma once\nenum { FROM_HEADER = 1 };\n' > "$dir/a/b/some.h"
printf '#include "b/some.h"\nvoid wrong_in_included() { int unused_one; }\n' > "$dir/a/inner.cu"
cat > "$dir/a/b/outer.cu" << 'CU'
#include <stdio.h>
#  include "../inner.cu"
#include "some.h"
void wrong_in_outer() { int unused_two; }
#pragma unroll
int main() { return FROM_HEADER; }
CU
build "$dir/outer" "$dir/a/b/outer.cu" "$cxx" && note "a warning is missing"
said "$dir/a/inner.cu:2:" compiler
said "$dir/a/b/outer.cu:4:" compiler
end rewriter_follows_includes

# What it cannot parse it refuses, with the line.
refuses() {                                 # refuses TEXT LINE MESSAGE
    printf '%b' "$1" > "$dir/bad.cu"
    "$dir/rewrite" "$dir/bad.cu" > "$dir/bad.cpp" 2> "$dir/said" && note "takes $1"
    said "$dir/bad.cu:$2: $3" "$1"
}
refuses 'void f() {\n    k<<<1, 2;\n}\n' 2 'no matching >>>'
refuses 'void f() {\n\n    <<<1, 2>>>(3);\n}\n' 3 "<<< without a kernel's name before it"
refuses 'void f() {\n    __shared__ int;\n' 2 'a __shared__ declaration'
refuses '__shared__ int x' 1 'no matching ;'
"$dir/rewrite" "$dir/none.cu" > "$dir/bad.cpp" 2> "$dir/said" && note "reads what is not there"
said "$dir/none.cu: No such file" "the rewriter"
end rewriter_names_what_it_cannot_read

# A call of what is not emulated says so, where it stands.
printf '%b' '__global__ void k(unsigned *x) { *x = __ballot_sync(~0u, 1); }\n' \
    'int main() { int *p; return cudaMallocManaged(&p, 4); }\n' > "$dir/lacks.cu"
build "$dir/lacks" "$dir/lacks.cu" "$cxx" && note "calls of what is missing compile"
for name in __ballot_sync cudaMallocManaged; do said "dev/emulator has no $name" compiler; done
said "$dir/lacks.cu:1:" compiler
end emulator_names_what_it_lacks

# ---- memory faults ----

cat > "$dir/memory.cu" << 'CU'
#include <stdio.h>
#include <stdlib.h>
__global__ void global_kernel(float *x, int i) {
    if (blockIdx.x == 1 && threadIdx.x == 5) x[i] = 1; // global
}
__global__ void static_kernel(float *x, int i) {
    __shared__ float tile[4][8], next[8];
    tile[0][threadIdx.x] = next[threadIdx.x] = 0;
    __syncthreads();
    if (blockIdx.x == 1 && threadIdx.x == 5) x[0] = (&tile[0][0])[i]; // static
}
__global__ void dynamic_kernel(float *x, int i) {
    extern __shared__ float dynamic[];
    dynamic[threadIdx.x] = 0;
    __syncwarp();
    if (blockIdx.x == 1 && threadIdx.x == 5) x[0] = dynamic[i]; // dynamic
}
__global__ void local_kernel(float *x, int i) {
    float mine[8];
    for (int k = 0; k < 8; k++) mine[k] = (float)k;
    __syncthreads();
    if (blockIdx.x == 1 && threadIdx.x == 5) x[0] = mine[i]; // local
}
int main(int argc, char **argv) {
    if (argc != 3) return 2;
    float *x;
    int i = atoi(argv[2]);
    cudaMalloc(&x, 8 * sizeof *x);
    if (argv[1][0] == 'f') { cudaFree(x); global_kernel<<<2, 8>>>(x, i); }
    if (argv[1][0] == 'g') global_kernel<<<2, 8>>>(x, i);
    if (argv[1][0] == 's') static_kernel<<<2, 8>>>(x, i);
    if (argv[1][0] == 'd') dynamic_kernel<<<2, 8, 8 * sizeof(float)>>>(x, i);
    if (argv[1][0] == 'l') local_kernel<<<2, 8>>>(x, i);
    if (argv[1][0] != 'f') cudaFree(x);
    puts("done");
}
CU
# fault KIND INDEX MARK KERNEL: the report names the marked line, and who ran it.
fault() {
    "$dir/memory" "$1" "$2" > "$dir/said" 2>&1 && note "$1 $2 goes unnoticed"
    said "memory.cu:$(line_of "$dir/memory.cu" "// $3")" "$1 $2"
    said "emulator: kernel $4, block (1,0,0), thread (5,0,0): the fault above" "$1 $2"
}
if build "$dir/memory" "$dir/memory.cu" "$cxx" -g -O1 -fsanitize=address; then
    for case in "global 7" "static 31" "dynamic 7" "local 7"; do
        "$dir/memory" $case > "$dir/said" 2>&1 || note "$case: $(head -n 3 "$dir/said")"
    done
    fault global 8 global global_kernel
    fault free 0 global global_kernel
    fault static 32 static static_kernel
    fault dynamic 8 dynamic dynamic_kernel
    fault local 8 local local_kernel
    end memory_faults_are_named_by_line_and_thread
elif grep -qE 'cannot find|unable to find|unsupported option' "$dir/said"; then
    skip memory_faults_are_named_by_line_and_thread "needs AddressSanitizer"
else
    note "$(head -n 3 "$dir/said")"
    end memory_faults_are_named_by_line_and_thread
fi

# ---- every build passes the emulator's tests ----

# passes NAME COMPILER FLAGS...
passes() {
    name=$1; shift
    if ! command -v "$1" > /dev/null; then skip "$name" "needs $1"; return; fi
    if ! build "$dir/test" tests/test_emulator.cu "$@"; then
        if grep -qE 'cannot find -l|omp.h|unable to find|unsupported option' "$dir/said"; then
            skip "$name" "needs what '$*' links with"
            return
        fi
        note "$(grep -m 1 -E 'error|warning' "$dir/said")"
    elif ! "$dir/test" > "$dir/said" 2>&1; then
        note "$(grep -m 1 -vE '^ok|^$' "$dir/said")"
    fi
    end "$name"
}
sanitize="-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all"
passes emulator_on_one_core "$cxx" -O0 -g
[ -z "${LONG:-}" ] || passes emulator_with_gcc g++ -O3 -march=native -fopenmp
for seed in 1 2; do
    EMULATOR_SHUFFLE=$seed "$dir/test" > "$dir/said" 2>&1 ||
        note "seed $seed: $(grep -m 1 -vE '^ok|^$' "$dir/said")"
done
end emulator_shuffled
for streams in late random; do
    EMULATOR_STREAMS=$streams "$dir/test" > "$dir/said" 2>&1 ||
        note "$streams: $(grep -m 1 -vE '^ok|^$' "$dir/said")"
done
end emulator_in_any_order_of_streams
[ -z "${LONG:-}" ] || passes emulator_with_gcc_sanitized g++ $sanitize -fopenmp
ASAN_OPTIONS=detect_stack_use_after_return=1 \
    passes emulator_with_clang_sanitized clang++ $sanitize

exit $failed
