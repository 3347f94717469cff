// Functions that a kernel calls, as far as the kernels of this project call them: atomicAdd, and a
// few of mathematics.
#pragma once
#include <math.h>
#include "block.h"

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

// ---- what readers miss first: calling it ends the compilation with a line that says so ----

#define EMULATOR_LACKS(name) \
    template <class... Arguments> inline int name(Arguments...) { \
        static_assert(sizeof...(Arguments) > 99, "dev/emulator has no " #name ": it has what the " \
                      "kernels of this project call; add it beside them"); \
        return 0; \
    }
EMULATOR_LACKS(__ballot_sync)
EMULATOR_LACKS(__any_sync)
EMULATOR_LACKS(__shfl_up_sync)
EMULATOR_LACKS(__threadfence)
EMULATOR_LACKS(atomicMax)
EMULATOR_LACKS(cudaMallocManaged)
