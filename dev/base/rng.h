// Random numbers that are the same on every machine: SplitMix64 (Steele, Lea and Flood,
// "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014). The state is one 64-bit number.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct { uint64_t state; } Rng;

// Scrambles 64 bits: every input bit changes about half of the output bits. A bijection.
static inline uint64_t mix64(uint64_t x) {
    x ^= x >> 30;  x *= 0xBF58476D1CE4E5B9ull;
    x ^= x >> 27;  x *= 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

// An independent stream for each (seed, stream): one a tensor, one a tale, one for sampling.
static inline Rng rng_make(uint64_t seed, uint64_t stream) {
    Rng r = { mix64(seed + 0x9E3779B97F4A7C15ull) ^ mix64(~stream) };
    return r;
}

static inline uint64_t rng_u64(Rng *r) {
    r->state += 0x9E3779B97F4A7C15ull;
    return mix64(r->state);
}

// Uniform in [0, 1), with 53 random bits.
static inline double rng_uniform(Rng *r) {
    return (double)(rng_u64(r) >> 11) * 0x1.0p-53;
}

// Uniform in 0 ... n-1, n > 0. The bias is below n / 2^53.
static inline uint64_t rng_below(Rng *r, uint64_t n) {
    return (uint64_t)(rng_uniform(r) * (double)n);
}

// Standard normal, by Box and Muller. 1 - u keeps the logarithm finite.
static inline double rng_normal(Rng *r) {
    double u = rng_uniform(r), v = rng_uniform(r);
    return sqrt(-2.0 * log(1.0 - u)) * cos(6.283185307179586 * v);
}

// Adds n bytes to a hash, for comparing data: FNV-1a's step over words of 8 bytes.
static inline uint64_t hash_add(uint64_t hash, const void *bytes, size_t n) {
    const unsigned char *p = (const unsigned char *)bytes;
    for (size_t i = 0; i < n; i += 8) {
        uint64_t word = 0;
        memcpy(&word, p + i, n - i < 8 ? n - i : 8);
        hash = (hash ^ word) * 0x100000001B3u;
        hash ^= hash >> 29;
    }
    return hash;
}
