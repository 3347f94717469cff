// What the CPU's ladders and benchmarks have in common: the multiply-add peak, measured before and
// after a table's rungs, with a word where other programs took part of the machine meanwhile; a
// ladder's rungs, compared and timed; medians; what this machine's memory can do.
#pragma once
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>
#include "../base/base.h"
#include "../base/rng.h"               // rng_make, rng_uniform
#include "../check/compare.h"          // compare_norm
#include "../cpu/cpu.h"

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

// ---- ladders ----
//
// A ladder is one operation, from its definition to the trainer's, one idea a rung. Its file
// defines `struct Data`, the rungs, and a function `climb` that makes data of a shape and calls
// ladder_climb once for each pass (forward, backward), which compares every rung with the first.

typedef struct Data Data;

typedef struct {
    const char *name, *idea;           // what it changes, in one line
    void (*run[2])(const Data *d);     // of each pass
    bool slow;                         // it gets Ladder.part
    bool all_threads, bf16;
} Rung;

typedef struct {
    const char *name;
    float *x;
    size_t n, compared;                // elements; the first of them are compared
    double tolerance;                  // of ||x - first|| / ||first||: what rounding may come to
    float *first;                      // what the first rung has
} Result;

typedef struct Ladder Ladder;
struct Ladder {
    const char *name, *sizes, *next;   // of the program; of its arguments; where to go on
    const Rung *rungs;
    int n_rungs, most;                 // most: the largest size
    const int (*small)[3], (*large)[3];          // shapes to check and to time; 0 ends them
    void (*climb)(Ladder *l, const int shape[3]);
    int threads;
    bool shows;                        // a table; else it only checks
    // What climb sets:
    int pass;
    char title[100];
    const Data *data, *part;           // part: the first rows alone
    double flops, part_flops;
    Result results[2];                 // the second may be none
};

// Even between -1 and 1. Another stream, other numbers.
static inline float *random_numbers(size_t n, uint64_t stream) {
    float *x = alloc_or_die(n * sizeof *x, "a ladder's data");
    Rng rng = rng_make(1, stream);
    for (size_t i = 0; i < n; i++) x[i] = 2.0f * (float)rng_uniform(&rng) - 1.0f;
    return x;
}

// FLOP/s of the fastest of several runs. Before each, results are full of not-a-number, so that
// the comparison finds a rung which adds to what is there, or leaves an element out.
static inline double rung_flops(const Rung *r, const Ladder *l) {
    double best = INFINITY;
    threads_set(r->all_threads ? l->threads : 1);
    for (double total = 0.0; total <= (l->shows ? 0.3 : 0.0); ) {
        for (const Result *x = l->results; x < l->results + 2; x++)
            for (size_t i = 0; i < x->n; i++) x->x[i] = NAN;
        double start = seconds_now();
        r->run[l->pass](r->slow ? l->part : l->data);
        double seconds = seconds_now() - start;
        best = fmin(best, seconds);
        total += seconds;
    }
    threads_set(l->threads);
    return (r->slow ? l->part_flops : l->flops) / best;
}

// The largest error of its results. Ends the program if that is more than rounding. bf16 keeps 8
// bits of each factor: off by 2^-8 at most, and for evenly spread factors a product is off by
// 2^-7/sqrt(14) = 0.0021; cutting bits off in place of rounding would double that.
static inline double rung_error(const Rung *r, const Ladder *l) {
    double worst = 0.0;
    for (const Result *x = l->results; x < l->results + 2 && x->n > 0; x++) {
        double most = r->bf16 ? 0.003 : x->tolerance;
        if (r == l->rungs) memcpy(x->first, x->x, x->compared * sizeof *x->x);
        double error = compare_norm(x->x, x->first, x->compared);
        if (!(error <= most))                    // not-a-number is an error, too
            die("%s: %s: %s is off by %.2g of its norm, and rounding by at most %.2g", r->name,
                l->title, x->name, error, most);
        worst = fmax(worst, error);
    }
    return worst;
}

static inline void ladder_climb(Ladder *l) {
    double before = 0.0, highest = 0.0;
    Peaks peaks = { 0 };
    for (Result *x = l->results; x < l->results + 2; x++)
        x->first = alloc_or_die((x->compared + 1) * sizeof *x->first, "the first rung's results");
    if (l->shows) {
        peaks = peaks_measure(l->threads);
        printf("\n%s\npeak: %.0f GFLOP/s a core, %.0f on %d threads", l->title, peaks.core / 1e9,
               peaks.all / 1e9, l->threads);
        if (peaks.all_bf16 > 0.0) printf(", %.0f in bf16", peaks.all_bf16 / 1e9);
        printf("\n%-16s %9s %12s %12s %14s %8s\n", "rung", "GFLOP/s", "% of a core", "% of peak",
               "x rung before", "error");
    }
    for (const Rung *r = l->rungs; r < l->rungs + l->n_rungs; r++) {
        double flops = rung_flops(r, l), error = rung_error(r, l);
        double peak = r->bf16 && peaks.all_bf16 > 0.0 ? peaks.all_bf16 : peaks.all;
        char of_core[16] = "", gain[16] = "";
        if (!l->shows) continue;
        if (!r->all_threads) snprintf(of_core, sizeof of_core, "%.1f", 100.0 * flops / peaks.core);
        if (before > 0.0) snprintf(gain, sizeof gain, "%.2f", flops / before);
        printf("%-16s %9.1f %12s %12.1f %14s %8.1g\n", r->name, flops / 1e9, of_core,
               100.0 * flops / peak, gain, error);
        highest = fmax(highest, flops / (r->all_threads ? peak : peaks.core));
        before = flops;
    }
    if (l->shows) say_if_busy(peaks, highest);
    for (Result *x = l->results; x < l->results + 2; x++) free(x->first);
}

// Its arguments are three sizes, or "check", or nothing.
static inline int ladder_main(Ladder *l, int argc, char **argv) {
    int own[2][3] = { { 0 } };
    *program_name() = l->name;
    if (argc != 1 && argc != 4 && !(argc == 2 && strcmp(argv[1], "check") == 0))
        die("usage: %s, %s %s, or %s check", l->name, l->name, l->sizes, l->name);
    for (int i = 1; argc == 4 && i < 4; i++) {
        char *end;
        long n = strtol(argv[i], &end, 10);
        if (*end || n < 1 || n > l->most) die("'%s': sizes are 1 to %d", argv[i], l->most);
        own[0][i - 1] = (int)n;
    }
    l->threads = thread_count();
    for (const int (*shape)[3] = l->small; (*shape)[0]; shape++) l->climb(l, *shape);
    printf("%d rungs agree, also in sizes that nothing divides\n", l->n_rungs);
    if (argc == 2) return 0;
    printf("\n");
    for (int i = 0; i < l->n_rungs; i++)
        printf("%d. %s: %s\n", i + 1, l->rungs[i].name, l->rungs[i].idea);
    printf("\n"
           "GFLOP/s        billion multiplications and additions a second\n"
           "%% of a core    of what one core can do on registers alone; rungs of one thread\n"
           "%% of peak      of what all threads can do on registers alone\n"
           "x rung before  how many times as fast as the line above\n"
           "error          how far results are from the first rung's, as a part of their norm\n");
    l->shows = true;
    if (argc == 4) l->large = (const int (*)[3])own;
    for (const int (*shape)[3] = l->large; (*shape)[0]; shape++) l->climb(l, *shape);
    printf("\nNext: %s\n", l->next);
    return 0;
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
    getrusage(RUSAGE_SELF, &usage);
#ifdef __APPLE__
    return (double)usage.ru_maxrss;              // bytes there, kilobytes elsewhere
#else
    return 1024.0 * (double)usage.ru_maxrss;
#endif
}
