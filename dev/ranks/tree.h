// Sums in the order of a binary tree, whose bits do not depend on how the work is divided; and
// bf16, the 16-bit format in which floats may be sent between ranks.
//
// Floating-point addition is not associative: the order of the additions decides the last bits.
// Here terms 0, 1, 2 ... are added along a fixed binary tree: neighbours into pairs, pairs into
// fours, fours into eights. Terms may come one at a time. Then the partial sums form a binary
// counter: level l holds the sum of 2^l terms, and a new term merges with as many levels as adding
// 1 to the counter would carry through.
//
// Gradient accumulation follows this order within a rank, and reduce-scatter follows it between
// ranks: together they follow one tree. If the numbers of micro-batches and of ranks are powers of
// two, every division of the batch over ranks gives the same bits.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

// COMM_ON_GPU: gradients lie in GPU memory, with NCCL or in a build for one rank alone.
#if defined(WITH_NCCL) || defined(TRAINS_ON_GPU)
#define COMM_ON_GPU
typedef struct CUstream_st *cudaStream_t;   // as CUDA's headers have it, which are long
#endif
#if defined(__CUDACC__)
#define CPU_AND_GPU __host__ __device__
#else
#define CPU_AND_GPU
#endif

typedef enum { COMM_FP32, COMM_BF16 } CommType;        // the format in which floats travel
typedef enum { COMM_WRITE, COMM_ADD } CommMode;        // a sum overwrites its output, or is added

// ---- bf16: the upper half of a float ----

CPU_AND_GPU static inline float bf16_widen(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// Rounds to nearest, ties to even. A NaN stays a NaN.
CPU_AND_GPU static inline uint16_t bf16_narrow(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t up = bits + 0x7FFF + (bits >> 16 & 1);
    return (uint16_t)((bits & 0x7FFFFFFF) > 0x7F800000 ? bits >> 16 | 64 : up >> 16);
}

// ---- the tree ----

enum { TREE_LEVELS = 20 };                             // for fewer than 2^20 terms

// The level at which term i (from 0) ends, after it has merged with levels 0 ... level-1.
CPU_AND_GPU static inline int tree_level(uint64_t i) {
    int level = 0;
    while (i >> level & 1) level++;
    return level;
}

// out (n) = scale * (x[0] + ... + x[terms-1]), summed in fp32 along the tree; COMM_ADD: out +=
// that. `out` may be one of the terms. The GPU's twin, with the same bits, is comm_sum_terms.
//   x: `terms` buffers of n elements each, of floats or of bf16 as `type` says
static inline void tree_sum(float *out, const void *const *x, int terms, float scale, CommType type,
                            CommMode mode, size_t n) {
    enum { STRIP = 512 };                              // floats: the levels in use fit the L1 cache
    float levels[TREE_LEVELS][STRIP], sum[STRIP];
    for (size_t at = 0; at < n; at += STRIP) {
        int count = n - at < STRIP ? (int)(n - at) : STRIP;
        for (int k = 0; k < terms; k++) {
            const float *wide = (const float *)x[k] + at;
            const uint16_t *narrow = (const uint16_t *)x[k] + at;
            int level = tree_level((uint64_t)k);
            if (type == COMM_FP32) for (int i = 0; i < count; i++) sum[i] = wide[i];
            else for (int i = 0; i < count; i++) sum[i] = bf16_widen(narrow[i]);
            for (int l = 0; l < level; l++)
                for (int i = 0; i < count; i++) sum[i] = levels[l][i] + sum[i];
            for (int i = 0; i < count; i++) levels[level][i] = sum[i];
        }
        // One partial sum is left for each set bit of `terms`; `sum` is that of the lowest bit.
        int first = tree_level((uint64_t)terms - 1);
        for (int l = first + 1; terms >> l != 0; l++)
            for (int i = 0; terms >> l & 1 && i < count; i++) sum[i] = levels[l][i] + sum[i];
        if (mode == COMM_WRITE) for (int i = 0; i < count; i++) out[at + i] = scale * sum[i];
        else for (int i = 0; i < count; i++) out[at + i] += scale * sum[i];
    }
}
