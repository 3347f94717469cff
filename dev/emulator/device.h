// Functions that a kernel calls: atomics, loads and stores with cache hints, bits, mathematics.
#pragma once
#include <math.h>
#include "block.h"

// ---- atomics: blocks run on several cores, so these are the processor's atomics ----

namespace emulator {

// Replaces *p by f(*p) atomically; returns the old value.
template <class T, class F> static inline T atomic_update(T *p, F f) {
    T old, changed;
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    do changed = f(old);
    while (!__atomic_compare_exchange(p, &old, &changed, false, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED));
    return old;
}

}  // namespace emulator

#define EMULATOR_ATOMIC(name, type, expression) \
    static inline type name(type *p, type x) { \
        return emulator::atomic_update(p, [x](type old) -> type { return expression; }); \
    }
EMULATOR_ATOMIC(atomicAdd, float, old + x)
EMULATOR_ATOMIC(atomicAdd, double, old + x)
EMULATOR_ATOMIC(atomicAdd, int, (int)((unsigned)old + (unsigned)x))
EMULATOR_ATOMIC(atomicAdd, unsigned, old + x)
EMULATOR_ATOMIC(atomicAdd, unsigned long long, old + x)
EMULATOR_ATOMIC(atomicSub, int, (int)((unsigned)old - (unsigned)x))
EMULATOR_ATOMIC(atomicSub, unsigned, old - x)
EMULATOR_ATOMIC(atomicMax, int, old > x ? old : x)
EMULATOR_ATOMIC(atomicMax, unsigned, old > x ? old : x)
EMULATOR_ATOMIC(atomicMax, long long, old > x ? old : x)
EMULATOR_ATOMIC(atomicMax, unsigned long long, old > x ? old : x)
EMULATOR_ATOMIC(atomicMin, int, old < x ? old : x)
EMULATOR_ATOMIC(atomicMin, unsigned, old < x ? old : x)
EMULATOR_ATOMIC(atomicMin, long long, old < x ? old : x)
EMULATOR_ATOMIC(atomicMin, unsigned long long, old < x ? old : x)
EMULATOR_ATOMIC(atomicAnd, int, old & x)
EMULATOR_ATOMIC(atomicAnd, unsigned, old & x)
EMULATOR_ATOMIC(atomicOr, int, old | x)
EMULATOR_ATOMIC(atomicOr, unsigned, old | x)
EMULATOR_ATOMIC(atomicXor, unsigned, old ^ x)
EMULATOR_ATOMIC(atomicExch, int, ((void)old, x))
EMULATOR_ATOMIC(atomicExch, unsigned, ((void)old, x))
EMULATOR_ATOMIC(atomicExch, float, ((void)old, x))
EMULATOR_ATOMIC(atomicInc, unsigned, old >= x ? 0 : old + 1)

template <class T> static inline T atomicCAS(T *p, T expected, T changed) {
    __atomic_compare_exchange(p, &expected, &changed, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return expected;
}

static inline void __threadfence_block(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_system(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// ---- loads and stores: cache hints have no effect here ----

template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldca(const T *p) { return *p; }
template <class T> static inline T __ldcg(const T *p) { return *p; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline void __stcs(T *p, T x) { *p = x; }
template <class T> static inline void __stcg(T *p, T x) { *p = x; }
template <class T> static inline void __stwb(T *p, T x) { *p = x; }

static inline void __prefetch_global_l1(const void *) { }
static inline size_t __cvta_generic_to_shared(const void *p) { return (size_t)p; }

// ---- bits ----

#define EMULATOR_BITS(name, to, from) \
    static inline to name(from x) { to y; memcpy(&y, &x, sizeof y); return y; }
EMULATOR_BITS(__int_as_float, float, int)
EMULATOR_BITS(__uint_as_float, float, unsigned)
EMULATOR_BITS(__float_as_int, int, float)
EMULATOR_BITS(__float_as_uint, unsigned, float)
EMULATOR_BITS(__longlong_as_double, double, long long)
EMULATOR_BITS(__double_as_longlong, long long, double)

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)((unsigned long long)a * b >> 32);
}

// ---- mathematics: most is in math.h; the fast approximations are math.h's functions here ----

#define __expf expf
#define __exp2f exp2f
#define __logf logf
#define __log2f log2f
#define __sinf sinf
#define __cosf cosf
#define __powf powf
#define __tanhf tanhf
#define __fmaf_rn fmaf
#define __fsqrt_rn sqrtf
#define rsqrtf emulator_rsqrtf
static inline float emulator_rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
static inline int __float2int_rn(float x) { return (int)lrintf(x); }
static inline float __int2float_rn(int x) { return (float)x; }

#define EMULATOR_MIN_MAX(type) \
    static inline type min(type a, type b) { return a < b ? a : b; } \
    static inline type max(type a, type b) { return a > b ? a : b; }
EMULATOR_MIN_MAX(int)
EMULATOR_MIN_MAX(unsigned)
EMULATOR_MIN_MAX(long)
EMULATOR_MIN_MAX(unsigned long)
EMULATOR_MIN_MAX(long long)
EMULATOR_MIN_MAX(unsigned long long)
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }

static inline void __nanosleep(unsigned) { }
static inline void __trap(EMULATOR_HERE) { emulator::fail("__trap, %s:%d", file, line); }
