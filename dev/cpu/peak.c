// How many floating-point operations a second this machine can do: the 100% of "model FLOP
// utilisation". Independent multiply-adds on registers, on every thread, for a few milliseconds.
#include "../train/train.h"
#include "cpu.h"

#ifdef __AVX512BF16__
#include <immintrin.h>       // the intrinsic has one name; the builtin's types differ by compiler
#endif

typedef float PeakVec __attribute__((vector_size(4*LANES)));

enum { PEAK_CHAINS = 12 };   // enough that a multiply-add never waits for the one before it

// `rounds` multiply-adds on each of the chains; the result keeps the compiler from dropping them.
// Operands differ from one to the next, as a product's do: with equal ones an Ice Lake shows a peak
// 10% higher, which no product could reach.
static float peak_chain(int rounds) {
    PeakVec x[PEAK_CHAINS], a[2], b[2], sum = {0};
    Rng rng = rng_make(1, 1);
    for (int i = 0; i < PEAK_CHAINS; i++) x[i] = sum + (float)i;
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < 2; j++) {
            a[j][i] = (float)rng_uniform(&rng) - 0.5f;
            b[j][i] = (float)rng_uniform(&rng) - 0.5f;
        }
    for (int r = 0; r < rounds; r++)
        for (int i = 0; i < PEAK_CHAINS; i++) x[i] = x[i] * a[i % 2] + b[i / 2 % 2];
    for (int i = 0; i < PEAK_CHAINS; i++) sum += x[i];
    return sum[0];
}

#ifdef __AVX512BF16__
// The same in bf16: vdpbf16ps multiplies 32 pairs and adds them, two by two, to 16 floats.
static float peak_chain_bf16(int rounds) {
    __m512 x[PEAK_CHAINS], sum = _mm512_setzero_ps();
    for (int i = 0; i < PEAK_CHAINS; i++) x[i] = _mm512_set1_ps((float)i);
    __m512bh half = (__m512bh)_mm512_set1_epi16(0x3F00);
    for (int r = 0; r < rounds; r++)
        for (int i = 0; i < PEAK_CHAINS; i++) x[i] = _mm512_dpbf16_ps(x[i], half, half);
    for (int i = 0; i < PEAK_CHAINS; i++) sum = _mm512_add_ps(sum, x[i]);
    return sum[0];
}
#endif

// Operations a second of `chain` on so many threads together, the best of a few tries; about 20 ms
// on an idle machine. What is volatile keeps the compiler from moving the work past the clock.
static double peak_of(float (*chain)(int), double flops_per_round, int threads) {
    enum { TRIES = 5 };
    volatile int rounds = 1000000;
    volatile float keep = 0.0f;
    double best = 0.0;
    for (int i = 0; i < TRIES; i++) {
        double ran = 0.0, start = seconds_now();
        float sum = 0.0f;
        #pragma omp parallel num_threads(threads) reduction(+:ran, sum)
        {
            sum += chain(rounds);
            ran += 1.0;
        }
        keep = sum;
        double flops = flops_per_round * rounds * ran / (seconds_now() - start);
        best = flops > best ? flops : best;
    }
    (void)keep, (void)threads;
    return best;
}

double cpu_peak_fp32(int threads) {
    return peak_of(peak_chain, 2.0 * LANES * PEAK_CHAINS, threads);
}

double cpu_peak_bf16(int threads) {
#ifdef __AVX512BF16__
    return peak_of(peak_chain_bf16, 64.0 * PEAK_CHAINS, threads);
#else
    (void)threads;
    return 0.0;
#endif
}

double cpu_peak_flops(void) {
#ifdef WORDS_ARE_PAIRS
    return cpu_peak_bf16(thread_count());
#else
    return cpu_peak_fp32(thread_count());
#endif
}

// ---- the machine, as dev/train/train.h asks for it: a processor needs no opening ----

void machine_open(Machine *machine, const TrainOptions *o, Comm *comm) {
    (void)o, (void)comm;
    machine->peak_flops = 0.0;
}

void machine_close(Machine *machine) { (void)machine; }

const char *machine_precision(void) { return PRECISION; }

double machine_peak_flops(Machine *machine) {
    if (machine->peak_flops == 0.0) machine->peak_flops = cpu_peak_flops();
    return machine->peak_flops;
}

double machine_free_memory(const Machine *machine) {
    (void)machine;
    return ram_free();
}
