// What the checks of exercises in CUDA share: memory of the emulated GPU, with a guard behind it.
#pragma once
#include <math.h>
#include <string.h>
#include <algorithm>
#include <vector>
#include "dev/exercises/verdict.h"     // wrong

static const float UNTOUCHED = -123.0f;
enum { GUARD = 1024 };                 // elements behind a tensor that nobody may write

// A tensor on the GPU. Without x its elements are UNTOUCHED. Behind it nobody may read, or write.
static float *on_gpu(size_t n, const float *x = nullptr) {
    std::vector<float> all(n + GUARD, x ? NAN : UNTOUCHED);
    if (x) std::copy(x, x + n, all.begin());
    float *p = NULL;
    cudaMalloc(&p, (n + GUARD) * sizeof *p);
    cudaMemcpy(p, all.data(), (n + GUARD) * sizeof *p, cudaMemcpyHostToDevice);
    return p;
}

static std::vector<float> fetch(const char *name, const float *p, size_t n,
                                const char *hint = "do threads without work leave, and do the "
                                "others stop at the end of a row?") {
    std::vector<float> x(n + GUARD);
    cudaError_t error = cudaDeviceSynchronize();
    if (error != cudaSuccess) wrong("the kernel fails: %s", cudaGetErrorString(error));
    cudaMemcpy(x.data(), p, (n + GUARD) * sizeof *p, cudaMemcpyDeviceToHost);
    for (size_t i = n; i < n + GUARD; i++)
        if (x[i] != UNTOUCHED)
            wrong("%s: element %zu is written, and it has %zu: %s", name, i, n, hint);
    if (n > 1 && x[0] == UNTOUCHED && x[1] == UNTOUCHED && x[n - 1] == UNTOUCHED)
        wrong("%s: it is not written", name);
    x.resize(n);
    return x;
}

// Compares a matrix of `columns` columns with what is exact. `index`: the letters of its indices.
static void expect(const char *name, const std::vector<float> &x, const std::vector<double> &exact,
                   const char *index, int columns, const char *hint) {
    double size = 0.0;
    for (double e : exact) size = fmax(size, fabs(e));
    for (size_t i = 0; i < exact.size(); i++)
        if (!(fabs(x[i] - exact[i]) <= 1e-4 * size)) {
            char column[32] = "";
            if (index[1]) snprintf(column, sizeof column, "[%c=%zu]", index[1], i % columns);
            wrong("%s[%c=%zu]%s is %.4g%s, expected %.4g; %s", name, index[0], i / columns, column,
                  x[i], x[i] == UNTOUCHED ? " (it is not written)" : "", exact[i], hint);
        }
}

#ifdef EMULATOR_COUNT
using emulator::Tally;
using emulator::count_clear;

// What the one kernel that was launched since count_clear asked for.
static inline Tally asked(emulator::CountKind kind) {
    return emulator::counted().at(0).total(kind);
}

static inline void expect_coalesced(const char *what, Tally t) {
    if (t.sectors != t.ideal)
        wrong("%s: its requests want %.3g sectors of 32 bytes each, %.3g would do: "
              "neighbouring lanes must use neighbouring addresses", what,
              (double)t.sectors / t.requests, (double)t.ideal / t.requests);
}

// Each of n numbers of global memory once.
static inline void expect_moved(const char *what, Tally t, unsigned long long n, const char *hint) {
    if (t.bytes / 4 > n)
        wrong("%s: %llu numbers, expected %llu; %s", what, (unsigned long long)t.bytes / 4, n,
              hint);
}
#else
static inline void count_clear() {}
#endif
