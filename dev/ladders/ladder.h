// What the ladders of this folder have in common: their arguments, how far a rung is off, and the
// machine's peak, measured before and after a table's rungs, with a word where other programs took
// part of the machine meanwhile.
#pragma once
#include <math.h>
#include <stdio.h>
#include <time.h>
#include "../base/base.h"
#include "../cpu/cpu.h"

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
