// Floating-point elements as files hold them: fp32, fp16 (IEEE half) and bf16 (files.h).
#include "files.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tensors are used in the byte order of the file, little-endian; this machine is big-endian"
#endif

size_t float_bytes(FloatType type) { return type == FLOAT_32 ? 4 : 2; }

// ---- one element ----

float float_from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

float float_from_bf16(uint16_t h) { return float_from_bits((uint32_t)h << 16); }

float float_from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
    if (exponent == 0) {                                 // zero or subnormal: fraction * 2^-24
        float x = (float)fraction * 0x1.0p-24f;
        return sign ? -x : x;
    }
    if (exponent == 31) return float_from_bits(sign | 0x7F800000u | fraction << 13);
    return float_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

uint16_t f16_from_float(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7FFFFFFF;
    if (size > 0x7F800000) return (uint16_t)(sign | 0x7E00);                 // NaN
    if (size >= 0x47800000) return (uint16_t)(sign | 0x7C00);                // 65,536 and more
    if (size < 0x38800000)                               // subnormal: a multiple of 2^-24
        return (uint16_t)(sign | (uint32_t)lrintf(fabsf(x) * 0x1.0p24f));
    uint32_t rounded = size + 0xFFF + (size >> 13 & 1);  // may carry into the exponent, rightly
    return (uint16_t)(sign | (rounded - 0x38000000) >> 13);
}

// ---- arrays; those in a file need not be aligned ----

static float float_at(const unsigned char *in, size_t i, FloatType type) {
    uint16_t half;
    float x;
    if (type == FLOAT_32) {
        memcpy(&x, in + 4*i, sizeof x);
        return x;
    }
    memcpy(&half, in + 2*i, sizeof half);
    return type == FLOAT_BF16 ? float_from_bf16(half) : float_from_f16(half);
}

void floats_read(float *out, const unsigned char *in, size_t n, FloatType type) {
    if (type == FLOAT_32) memcpy(out, in, n * sizeof *out);
    else for (size_t i = 0; i < n; i++) out[i] = float_at(in, i, type);
}

void floats_to_f16(unsigned char *out, const float *in, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint16_t half = f16_from_float(in[i]);
        memcpy(out + 2*i, &half, sizeof half);
    }
}

void floats_transpose(float *out, const unsigned char *in, size_t rows, size_t cols,
                      FloatType type) {
    enum { SQUARE = 32 };
    for (size_t r0 = 0; r0 < rows; r0 += SQUARE)
        for (size_t c0 = 0; c0 < cols; c0 += SQUARE)
            for (size_t r = r0; r < rows && r < r0 + SQUARE; r++)
                for (size_t c = c0; c < cols && c < c0 + SQUARE; c++)
                    out[r*cols + c] = float_at(in, c*rows + r, type);
}
