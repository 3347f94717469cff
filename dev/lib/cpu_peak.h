// How many floating-point operations a second this machine can do: the 100% of "model FLOP
// utilisation". Independent multiply-adds on registers, on every thread, for a few milliseconds.
#pragma once
#include "clock.h"

#if defined(__AVX512F__)
enum { PEAK_LANES = 16 };
#elif defined(__AVX__)
enum { PEAK_LANES = 8 };
#else
enum { PEAK_LANES = 4 };
#endif
typedef float PeakVec __attribute__((vector_size(4*PEAK_LANES)));

enum { PEAK_CHAINS = 12 };   // enough that a multiply-add never waits for the one before it

// `rounds` multiply-adds on each of the chains; the result keeps the compiler from dropping them.
static inline float peak_chain(int rounds) {
    PeakVec x[PEAK_CHAINS], sum = {0};
    for (int i = 0; i < PEAK_CHAINS; i++) x[i] = sum + (float)i;
    PeakVec scale = sum + 0.999f, shift = sum + 0.001f;
    for (int r = 0; r < rounds; r++)
        for (int i = 0; i < PEAK_CHAINS; i++) x[i] = x[i] * scale + shift;
    for (int i = 0; i < PEAK_CHAINS; i++) sum += x[i];
    return sum[0];
}

// FLOP/s in fp32 on all threads together, the best of a few tries; some 20 ms on an idle machine.
static inline double cpu_peak_flops(void) {
    enum { ROUNDS = 1000000, TRIES = 5 };
    double best = 0.0;
    volatile float keep = 0.0f;
    for (int i = 0; i < TRIES; i++) {
        double threads = 0.0, start = seconds_now();
        float sum = 0.0f;
        #pragma omp parallel reduction(+:threads, sum)
        {
            sum += peak_chain(ROUNDS);
            threads += 1.0;
        }
        double flops = 2.0 * PEAK_LANES * PEAK_CHAINS * ROUNDS * threads / (seconds_now() - start);
        best = flops > best ? flops : best;
        keep = sum;
    }
    (void)keep;
    return best;
}
