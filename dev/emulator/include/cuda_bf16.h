// bf16: the upper half of a float. Its exponent has as many bits, so the range is a float's; its
// precision is 8 bits instead of 24. A float is rounded to nearest, ties to even. Kernels of this
// project compute in float: bf16 has no arithmetic here.
#pragma once
#include <stdint.h>
#include <string.h>
#include "cuda_runtime.h"

namespace emulator {

inline uint16_t bf16_from_float(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FFF;       // NaN stays NaN
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}

inline float bf16_to_float(uint16_t upper) {
    uint32_t bits = (uint32_t)upper << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

}  // namespace emulator

struct __nv_bfloat16 {
    unsigned short __x;
    __nv_bfloat16() = default;
    __nv_bfloat16(float x) : __x(emulator::bf16_from_float(x)) { }
    operator float() const { return emulator::bf16_to_float(__x); }
};

struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
    __nv_bfloat162() = default;
    __nv_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) : x(x), y(y) { }
    EMULATOR_COPIED_WHOLE(__nv_bfloat162)
};

inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
    return __nv_bfloat162(__nv_bfloat16(x), __nv_bfloat16(y));
}
