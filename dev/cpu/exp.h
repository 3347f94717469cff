// e^x for loops. A compiler turns a loop over exp_fast into vector code; it cannot do so with expf.
#pragma once
#include <stdint.h>
#include <string.h>

// e^x within 2 units in the last place: x = n ln 2 + r with |r| <= ln 2 / 2, a Taylor polynomial
// for e^r, and 2^n written straight into the exponent. No table and no branch. Below -87 it returns
// e^-87, about 1e-38, not zero.
static inline float exp_fast(float x) {
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    float shifted = x * 1.44269504f + 12582912.0f;   // 1.5 * 2^23 leaves no room for a fraction:
    float n = shifted - 12582912.0f;                 // n is rounded, and stands in shifted's bits
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;     // ln 2 in two parts
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits;
    float two_n;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << 23) + 0x3F800000u;               // the exponent's field holds n + 127
    memcpy(&two_n, &bits, sizeof two_n);
    return p * two_n;
}
