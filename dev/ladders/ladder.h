// What the CPU's ladders and benchmarks have in common: arguments, data, how far a rung is off;
// the multiply-add peak, measured before and after a table's rungs, with a word where other
// programs took part of the machine meanwhile; medians; what this machine's memory can do.
#pragma once
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>
#include "../base/base.h"
#include "../base/rng.h"               // rng_make, rng_uniform
#include "../cpu/cpu.h"

// ---- ladders ----

// Three sizes, or "check", or nothing.
static inline void ladder_arguments(int argc, char **argv, const char *usage, int most,
                                    int own[3]) {
    if (argc != 1 && argc != 4 && !(argc == 2 && strcmp(argv[1], "check") == 0))
        die("usage: %s", usage);
    for (int i = 1; argc == 4 && i < 4; i++) {
        char *end;
        long n = strtol(argv[i], &end, 10);
        if (*end || n < 1 || n > most) die("'%s': sizes are 1 to %d", argv[i], most);
        own[i - 1] = (int)n;
    }
}

// Even between -1 and 1. Another stream, other numbers.
static inline float *random_numbers(size_t n, uint64_t stream) {
    float *x = alloc_or_die(n * sizeof *x, "a ladder's data");
    Rng rng = rng_make(1, stream);
    for (size_t i = 0; i < n; i++) x[i] = 2.0f * (float)rng_uniform(&rng) - 1.0f;
    return x;
}

// ||x - first|| / ||first|| of n columns, in N rows that are ld apart.
static inline double difference(const float *x, const float *first, size_t N, size_t ld, size_t n) {
    double squares = 0.0, norm = 0.0;
    for (size_t i = 0; i < N; i++)
        for (size_t c = 0; c < n; c++) {
            double a = x[i*ld + c], b = first[i*ld + c];
            squares += (a - b) * (a - b);
            norm += b*b;
        }
    return sqrt(squares / norm);
}

// ---- the peak, and whether this machine was busy ----

typedef struct {
    int threads;
    double core, all, all_bf16;        // FLOP/s of one thread, of all; 0 without bf16 instructions
    double share;                      // of the time that all threads asked for, what they got
} Peaks;

static inline double cpu_seconds_now(void) {     // of all threads of this process together
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline Peaks peaks_measure(int threads) {
    Peaks p = { .threads = threads, .core = cpu_peak_fp32(1), .all_bf16 = cpu_peak_bf16(threads) };
    double start = seconds_now(), cpu_start = cpu_seconds_now();
    p.all = cpu_peak_fp32(threads);
    p.share = (cpu_seconds_now() - cpu_start) / (threads * (seconds_now() - start));
    return p;
}

static inline void peaks_print(Peaks p) {
    printf("peak: %.0f GFLOP/s a core, %.0f on %d threads", p.core / 1e9, p.all / 1e9, p.threads);
    if (p.all_bf16 > 0.0) printf(", %.0f in bf16", p.all_bf16 / 1e9);
    printf("\n");
}

// After a table: measures the peaks again and says so if its figures cannot be trusted. `highest`
// is the largest share of its peak that a rung reached.
static inline void say_if_busy(Peaks before, double highest) {
    Peaks after = peaks_measure(before.threads);
    double share = before.share < after.share ? before.share : after.share;
    double moved = after.all / before.all;
    if (share < 0.9)
        printf("BUSY: %d threads got %.0f%% of the time they asked for. ", before.threads,
               100.0 * share);
    else if (highest > 1.05)
        printf("BUSY: a rung reached %.0f%% of the peak, which was measured too low. ",
               100.0 * highest);
    else if (moved < 0.8 || moved > 1.25)
        printf("BUSY: the peak was %.0f GFLOP/s before the rungs and %.0f after. ",
               before.all / 1e9, after.all / 1e9);
    else
        return;
    printf("Stop what else runs, then try again.\n");
}

// ---- samples ----
//
// On a machine that also does other work every time is an outlier now and then, so the median of
// several counts, and only ratios of things measured in turn within one run mean anything.

enum { MAX_SAMPLES = 256 };

typedef struct {
    double x[MAX_SAMPLES];
    int n;
} Samples;

static inline void samples_add(Samples *s, double x) {
    if (s->n == MAX_SAMPLES) die("more than %d samples of one thing", MAX_SAMPLES);
    s->x[s->n++] = x;
}

static inline int samples_compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// NaN when there are none.
static inline double samples_median(const Samples *s) {
    Samples sorted = *s;
    qsort(sorted.x, sorted.n, sizeof *sorted.x, samples_compare);
    if (s->n == 0) return NAN;
    return s->n % 2 ? sorted.x[s->n/2] : 0.5 * (sorted.x[s->n/2 - 1] + sorted.x[s->n/2]);
}

// ---- memory ----

// Seconds that all threads together take to read n floats.
static inline double read_seconds(const float *x, size_t n) {
    volatile float keep = 0.0f;
    double start = seconds_now();
    float sum = 0.0f;
    #pragma omp parallel for simd reduction(+:sum)
    for (size_t i = 0; i < n; i++) sum += x[i];
    keep = sum;
    (void)keep;
    return seconds_now() - start;
}

// Bytes that the plain stream, and AdamW, move for each element: p, m, v and g are read, p, m and v
// are written.
enum { STREAM_BYTES = 28 };

// Seconds that the plain stream takes: AdamW's traffic and next to no arithmetic. v stays positive,
// as AdamW wants it.
static inline double stream_seconds(float *p, float *m, float *v, const float *g, size_t n) {
    double start = seconds_now();
    #pragma omp parallel for simd
    for (size_t i = 0; i < n; i++) {
        p[i] = 0.5f * (p[i] + g[i]);
        m[i] = 0.5f * (m[i] + g[i]);
        v[i] = 0.5f * (v[i] + fabsf(g[i]));
    }
    return seconds_now() - start;
}

// The most memory that this process has had, in bytes.
static inline double peak_memory(void) {
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0) die("getrusage: %s", strerror(errno));
#ifdef __APPLE__
    return (double)usage.ru_maxrss;              // bytes there, kilobytes elsewhere
#else
    return 1024.0 * (double)usage.ru_maxrss;
#endif
}
