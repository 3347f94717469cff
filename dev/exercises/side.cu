// One side of the exercises in CUDA (dev/check/side.h), in the emulator: exercises.py puts it behind
// the reader's kernels.cu and behind the original. Threads run in another order in each trial.
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

// ---- launches ----

// Odd warps of a block have summed something else before: a barrier would show.
static __global__ void warp_sum_kernel(float *out, const float *x) {
    if (threadIdx.x / 32 % 2) warp_sum(1.0f);
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    out[i] = warp_sum(x[i]);
}

static void sum_launch(float *out, const float *x, int blocks, int warps) {
    warp_sum_kernel<<<blocks, 32*warps>>>(out, x);
}

// With a block more than there are rows for.
static void softmax_launch(float *p, const float *x, int N, int C, int warps) {
    softmax_row<<<N / warps + 2, 32*warps>>>(p, x, N, C);
}

static void layernorm_launch(float *out, float *mean, float *rstd, const float *x,
                             const float *gain, const float *bias, int N, int C, int warps) {
    layernorm_cuda<<<N / warps + 2, 32*warps>>>(out, mean, rstd, x, gain, bias, N, C);
}

static void race_launch(float *out, const float *x, int N) {
    standardise<<<N, 256>>>(out, x);
}

static void transpose_launch(float *out, const float *x, int N, int C) {
    dim3 grid((C + TILE - 1) / TILE, (N + TILE - 1) / TILE), block(TILE, WARPS_OF_TILE);
    transpose_shared<<<grid, block>>>(out, x, N, C);
}

static void matmul_launch(float *c, const float *a, const float *b, int M, int N, int K) {
    dim3 grid((N + SIDE - 1) / SIDE, (M + SIDE - 1) / SIDE), block(SIDE, SIDE);
    matmul_tiled<<<grid, block>>>(c, a, b, M, N, K);
}

// ---- what the last launch cost, by the emulator's counters ----

using emulator::Tally;
static Tally asked(emulator::CountKind kind) {
    cudaDeviceSynchronize();
    return emulator::counted().at(0).total(kind);
}

static void costs(double *loaded, double *stored, double *sectors) {
    Tally loads = asked(emulator::GLOBAL_LOAD), stores = asked(emulator::GLOBAL_STORE);
    *loaded = (double)loads.lanes;
    *stored = (double)stores.lanes;
    *sectors = (double)(loads.sectors + stores.sectors);
}

static double conflicts(void) {
    Tally loads = asked(emulator::SHARED_LOAD), stores = asked(emulator::SHARED_STORE);
    return (double)(loads.passes - loads.least + stores.passes - stores.least);
}

// ---- the rows ----

#define LETTERS \
    const int *z = side.size, N = z['N'], C = z['C'], M = z['M'], K = z['K'], n = z['n'], \
              r = z['r'];
#define TABLE "dev/exercises/cases_cuda.h"
#include "dev/check/side.h"

enum { GUARD = 1 << 14 };              // bytes on both sides of an array: who touches them is told

static void *side_new(size_t bytes) {
    char *x = NULL;
    cudaMalloc(&x, bytes + 2*GUARD);
    return x + GUARD;
}

static void side_free(void *x) { cudaFree((char *)x - GUARD); }

static void watch(emulator::CountKind kind, const void *p, size_t) {
    const char *at = (const char *)p;
    bool reads = kind == emulator::GLOBAL_LOAD || kind == emulator::SHARED_LOAD;
    for (int k = 0; k < side.n; k++) {
        const Array &a = side.arrays[k];
        bool inside = at >= a.x && at < a.x + a.bytes;
        if (at >= a.x - GUARD && at < a.x + a.bytes + GUARD && !inside)
            side_stray(p, reads ? "read" : "written");
    }
}

static void side_begin(void) {
    char order[16];
    snprintf(order, sizeof order, "%d", side.trial);
    if (side.trial > 0) setenv("EMULATOR_SHUFFLE", order, 1);
#ifdef _OPENMP
    omp_set_num_threads(1);            // side_stray tells of one block at a time
#endif
    emulator::count_clear();
    emulator::count_watch = watch;
}

static void side_end(void) {
    cudaError_t error = cudaDeviceSynchronize();
    if (error != cudaSuccess) side_fault("the kernel fails: %s", cudaGetErrorString(error));
}
