// bf16: the upper half of a float. Its exponent has as many bits, so the range is a float's; its
// precision is 8 bits instead of 24. A float is rounded to nearest, ties to even. Kernels of this
// project compute in float: bf16 has no arithmetic here.
#pragma once
#include "cuda_runtime.h"

struct __nv_bfloat16 {
    unsigned short __x;
    __nv_bfloat16() = default;
    __nv_bfloat16(float x) {
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        bool is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
        __x = is_nan ? 0x7FFF : (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
    }
    operator float() const { return __uint_as_float((unsigned)__x << 16); }
};

struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
    EMULATOR_WHOLE(__nv_bfloat162, (__nv_bfloat16 x, __nv_bfloat16 y), x(x), y(y))
};

inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
    return { x, y };
}
