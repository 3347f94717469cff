// What the benchmarks share: medians, what this machine's memory can do, and where results go.
//
// On a machine that also does other work every time is an outlier now and then, so the median of
// several counts, and only ratios of things measured in turn within one run mean anything.
#pragma once
#include <errno.h>
#include <math.h>
#include <sys/resource.h>
#include "../base/base.h"
#include "../cpu/cpu.h"

// ---- samples ----

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

// ---- results ----

// BENCH_JSON names a file, one JSON array, to which each result is added, an object on one line.
// Programs that run in turn share the file, so it is not locked. Without it nothing is written.
static inline void results_open(Log *log) {
    const char *path = getenv("BENCH_JSON");
    log_off(log);
    if (!path || !*path) return;
    FILE *f = fopen(path, "r+");
    if (!f && (f = fopen(path, "w+"))) fputs("[\n]\n", f);
    if (!f) die("%s: cannot be written: %s", path, strerror(errno));
    setvbuf(f, NULL, _IONBF, 0);                 // a child that is forked must not write it again
    log_to(log, f, path);
}

static inline void result_begin(Log *log, const char *name, int threads) {
    log->length = 0;
    log_puts(log, "{");
    log_text(log, "name", name);
    log_text(log, "precision", PRECISION);
    log_int(log, "threads", threads);
}

// Over the array's end, which is written anew.
static inline void result_end(Log *log) {
    Error err;
    if (!log->file) return;
    fseek(log->file, -3, SEEK_END);
    fputs(ftell(log->file) > 1 ? ",\n" : "\n", log->file);
    if (!log_end(log, &err)) die("%s", err.text);
    fputs("]\n", log->file);
}

static inline void results_close(Log *log) {
    Error err;
    if (!log_close(log, &err)) die("%s", err.text);
}
