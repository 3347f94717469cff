// bf16: the upper half of a float. Its exponent has as many bits, so the range is a float's; its
// precision is 8 bits instead of 24. Arithmetic is done in float and rounded to nearest, ties to
// even.
#pragma once
#include <stdint.h>
#include <string.h>
#include "cuda_runtime.h"

namespace emulator {

static inline uint16_t bf16_from_float(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FFF;       // NaN stays NaN
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}

static inline float bf16_to_float(uint16_t upper) {
    uint32_t bits = (uint32_t)upper << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

}  // namespace emulator

struct __nv_bfloat16_raw { unsigned short x; };

struct __nv_bfloat16 {
    unsigned short __x;
    __nv_bfloat16() = default;
    __nv_bfloat16(float x) : __x(emulator::bf16_from_float(x)) { }
    __nv_bfloat16(double x) : __x(emulator::bf16_from_float((float)x)) { }
    __nv_bfloat16(int x) : __x(emulator::bf16_from_float((float)x)) { }
    __nv_bfloat16(__nv_bfloat16_raw raw) : __x(raw.x) { }
    operator float() const { return emulator::bf16_to_float(__x); }
    operator __nv_bfloat16_raw() const { return { __x }; }
};

struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
    __nv_bfloat162() = default;
    __nv_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) : x(x), y(y) { }
    EMULATOR_COPIED_WHOLE(__nv_bfloat162)
};

typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

// ---- conversions ----

static inline float __bfloat162float(__nv_bfloat16 x) { return (float)x; }
static inline __nv_bfloat16 __float2bfloat16(float x) { return __nv_bfloat16(x); }
static inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __nv_bfloat16(x); }
static inline __nv_bfloat16 __double2bfloat16(double x) { return __nv_bfloat16(x); }
static inline __nv_bfloat16 __int2bfloat16_rn(int x) { return __nv_bfloat16(x); }

static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
    return __nv_bfloat16(__nv_bfloat16_raw{ bits });
}
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.__x; }

static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) {
    return __nv_bfloat162(x, y);
}
static inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) {
    return __nv_bfloat162(x, y);
}
static inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 x) { return __nv_bfloat162(x, x); }
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
    return __nv_bfloat162(__nv_bfloat16(x), __nv_bfloat16(y));
}
static inline __nv_bfloat162 __float22bfloat162_rn(float2 v) {
    return __floats2bfloat162_rn(v.x, v.y);
}
static inline __nv_bfloat162 __float2bfloat162_rn(float x) { return __floats2bfloat162_rn(x, x); }
static inline float2 __bfloat1622float2(__nv_bfloat162 v) { return { (float)v.x, (float)v.y }; }
static inline float __low2float(__nv_bfloat162 v) { return (float)v.x; }
static inline float __high2float(__nv_bfloat162 v) { return (float)v.y; }
static inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v) { return v.x; }
static inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v) { return v.y; }

// ---- arithmetic: each result is rounded ----

#define EMULATOR_BF16_OPERATION(op, name) \
    static inline __nv_bfloat16 operator op(__nv_bfloat16 a, __nv_bfloat16 b) { \
        return __nv_bfloat16((float)a op (float)b); \
    } \
    static inline __nv_bfloat162 operator op(__nv_bfloat162 a, __nv_bfloat162 b) { \
        return __nv_bfloat162(a.x op b.x, a.y op b.y); \
    } \
    static inline __nv_bfloat16 __h##name(__nv_bfloat16 a, __nv_bfloat16 b) { return a op b; } \
    static inline __nv_bfloat162 __h##name##2(__nv_bfloat162 a, __nv_bfloat162 b) { \
        return a op b; \
    } \
    static inline __nv_bfloat16 &operator op##=(__nv_bfloat16 &a, __nv_bfloat16 b) { \
        return a = a op b; \
    }
EMULATOR_BF16_OPERATION(+, add)
EMULATOR_BF16_OPERATION(-, sub)
EMULATOR_BF16_OPERATION(*, mul)
EMULATOR_BF16_OPERATION(/, div)

static inline __nv_bfloat16 operator-(__nv_bfloat16 a) {
    return __ushort_as_bfloat16((unsigned short)(a.__x ^ 0x8000u));
}
static inline __nv_bfloat16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
    return __nv_bfloat16(fmaf((float)a, (float)b, (float)c));
}
static inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) {
    return __nv_bfloat162(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));
}
static inline bool __hisnan(__nv_bfloat16 a) { return (a.__x & 0x7FFF) > 0x7F80; }
