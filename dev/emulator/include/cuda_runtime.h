// The part of CUDA that this project uses, on a CPU: see ../README.md.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#ifndef EMULATOR
#define EMULATOR 1
#endif
#define CUDART_VERSION 13000

// ---- qualifiers that say where code runs: here all of it runs on the CPU ----

#ifdef EMULATOR_COUNT
#define __global__ __attribute__((flatten))      // each call in a kernel has an address of its own
#else
#define __global__
#endif
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

// ---- short vectors, aligned as a GPU requires for one load ----

#include "../count.h"                  // EMULATOR_WHOLE

#define EMULATOR_VECTOR(type, name) \
    struct alignas(2*sizeof(type)) name##2 { \
        type x, y; \
        EMULATOR_WHOLE(name##2, (type x, type y), x(x), y(y)) \
    }; \
    struct alignas(4*sizeof(type)) name##4 { \
        type x, y, z, w; \
        EMULATOR_WHOLE(name##4, (type x, type y, type z, type w), x(x), y(y), z(z), w(w)) \
    }; \
    inline name##2 make_##name##2(type x, type y) { return { x, y }; } \
    inline name##4 make_##name##4(type x, type y, type z, type w) { return { x, y, z, w }; }
EMULATOR_VECTOR(unsigned, uint)
EMULATOR_VECTOR(float, float)

struct uint3 { unsigned x, y, z; };

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) { }
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) { }
};

#include "../block.h"
#include "../tensor_core.h"

// ---- functions that a kernel calls, as far as the kernels of this project call them ----

// Blocks run on several cores, so this is the processor's atomic. Returns the old value.
inline float atomicAdd(float *p, float x) {
    float old, sum;
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    do sum = old + x;
    while (!__atomic_compare_exchange(p, &old, &sum, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}

inline float __uint_as_float(unsigned bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// Most of mathematics is in math.h; the fast approximations are math.h's functions here.
#define __expf expf
#define rsqrtf emulator_rsqrtf
inline float emulator_rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }

#include "../host/memory.h"
#include "../host/events.h"
#include "../host/launch.h"
