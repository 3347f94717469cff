// One side of a comparison: a program that calls a function on drawn arrays and records them. It is
// built twice, with the function under test and with the oracle:
//
//     side NAME THREADS FILE            runs the rows NAME, NAME__second ... of a table
//
// A row, in a file that the program includes with TABLE as its name:
//     CASE(name, sizes, roundings, arrays, BEFORE(...), CALL(...), hint)
//         F(name, role, letters, sizes...)        floats: normal random numbers; roles: compare.h
//         I(name, role, below, letters, sizes...)    ints below a limit;   D: doubles
// `sizes` are letters and the largest that is drawn, or the least and the largest: "N70 C3-129".
// LETTERS, a macro of the program, declares them as variables. BEFORE makes inputs of the numbers,
// with the functions that are there.
#pragma once
#include "../base/rng.h"
#include "compare.h"

typedef enum { FLOATS, INTS, DOUBLES } Type;
typedef struct { Comparison t; Role role; Type type; char *x; size_t bytes; } Array;
typedef struct {
    const char *name, *sizes, *hint;
    double roundings;
    void (*run)(void);
} Case;

enum { ARRAYS = 24, TRIALS = 12, FAR = 1 << 16 };

static struct {
    FILE *out;
    Rng rng;
    double bound;
    int trial, threads, size['z' + 1], n;
    Array arrays[ARRAYS];
} side;

// Of the program that includes this file.
static void side_begin(void);          // before a trial: side.threads, side.trial
static void side_end(void);            // after it
static void *side_new(size_t bytes);
static void side_free(void *x);

// ---- what goes wrong inside a call ----

#define side_fault(...) record_fault(side.out, __VA_ARGS__)

// The array that an address lies in or near, and which element it would be; or NULL.
static const Array *array_near(const void *p, ptrdiff_t *i) {
    const char *at = (const char *)p;
    const Array *nearest = NULL;
    ptrdiff_t least = FAR;
    for (int k = 0; k < side.n; k++) {
        const Array *a = &side.arrays[k];
        ptrdiff_t before = a->x - at, behind = at - (a->x + a->bytes);
        ptrdiff_t far = before > 0 ? before : behind >= 0 ? behind : 0;
        if (far < least) least = far, nearest = a;
    }
    ptrdiff_t width = nearest && nearest->type == DOUBLES ? 8 : 4;
    if (nearest) *i = (at - nearest->x - (at < nearest->x ? width - 1 : 0)) / width;
    return nearest;
}

static void side_stray(const void *at, const char *is) {
    ptrdiff_t i = 0;
    const Array *a = array_near(at, &i);
    if (a)
        side_fault("%s: element %td is %s, and it has elements 0 ... %zu: an index runs past its "
                   "%s", a->t.name, i, is, a->t.n - 1, i < 0 ? "beginning" : "end");
    side_fault("memory outside of all arrays is %s: an index is far off, or runs past the end of "
               "an array that the function itself declares", is);
}

#ifdef BOUNDED                         // with AddressSanitizer
void *__asan_get_report_address(void);
int __asan_get_report_access_type(void);
void __asan_on_error(void);
void __asan_on_error(void) {
    side_stray(__asan_get_report_address(), __asan_get_report_access_type() ? "written" : "read");
}
#endif

// ---- arrays ----

static char *array_new(const char *name, Role role, Type type, int below, const char *letters,
                       ...) {
    Array *a = &side.arrays[side.n++];
    size_t sizes[8];
    va_list args;
    va_start(args, letters);
    for (int k = 0; letters[k]; k++) sizes[k] = (size_t)va_arg(args, int);
    va_end(args);
    a->t = compare_make(name, letters, sizes, side.bound);
    a->role = role, a->type = type;
    a->bytes = a->t.n * (type == DOUBLES ? 8 : 4);
    a->x = (char *)side_new(a->bytes);
    for (size_t i = 0; i < a->t.n; i++) {
        double x = role == OUT ? BEFORE_OUT : role == ADDED ? before_added(i)
                 : role == SCRATCH ? (double)NAN : 0.0;
        if (type == INTS) ((int *)a->x)[i] = (int)rng_below(&side.rng, (uint64_t)below);
        else if (type == DOUBLES) ((double *)a->x)[i] = x;
        else ((float *)a->x)[i] = (float)(x != 0.0 ? x : rng_normal(&side.rng));
    }
    return a->x;
}

static void array_record(const Array *a) {
    record_head(side.out, &a->t, a->role);
    for (size_t i = 0; i < a->t.n; i++) {
        double x = a->type == FLOATS ? ((const float *)a->x)[i]
                 : a->type == INTS ? ((const int *)a->x)[i] : ((const double *)a->x)[i];
        fwrite(&x, sizeof x, 1, side.out);
    }
}

// ---- inputs that tell a right solution from one that is right for numbers near 0 alone ----

// Rows far above and below 0, some with one element far from the others: e^300 overflows.
static inline void far_rows(float *x, int rows, int width) {
    for (int i = 0; i < rows*width; i++)
        x[i] = 2*x[i] + (i / width % 4 == 1 ? -1000 : i / width % 4 == 2 ? 1000 : 0);
    for (int n = 3; n < rows; n++) x[n*width + n % width] += n % 4 == 3 ? -1e4f : n % 4 ? 0 : 300;
}

static inline void padding(float *x, int rows, int V, int Vp) {
    for (int i = 0; i < rows*Vp; i++)
        if (i % Vp >= V) x[i] = i / Vp % 2 ? NAN : 2000;
}

// Rows that vary more or less, so that 1e-5 shows, one not at all; and a mean far from 0.
static inline void spread(float *x, int rows, int width) {
    static const float SCALES[] = { 1, 4e-3f, 0, 0.05f }, MEANS[] = { 0.5f, 0, 3, 10 };
    for (int i = 0; i < rows*width; i++)
        x[i] = x[i] * SCALES[i / width % 4] + MEANS[i / width % 4];
}

// Queries whose scores all lie hundreds above 0, or below.
static inline void far_queries(float *qkv, int rows, int NH, int HS) {
    for (int n = 0; n < rows; n++)
        for (int h = 0; h < NH; h++) {
            float *q = qkv + (size_t)n*3*NH*HS + h*HS, *k = q + NH*HS;
            k[0] = 2;
            if (n % 3 == 0) q[0] = n % 2 ? 500 : -500;
        }
}

// ---- rows ----

#define F(name, role, ...) \
    float *name = (float *)array_new(#name, role, FLOATS, 0, __VA_ARGS__);
#define I(name, role, below, ...) \
    int *name = (int *)array_new(#name, role, INTS, below, __VA_ARGS__);
#define D(name, role, ...) \
    double *name = (double *)array_new(#name, role, DOUBLES, 0, __VA_ARGS__);
#define BEFORE(...) __VA_ARGS__
#define CALL(...) __VA_ARGS__
#define CASE(id, sizes, roundings, arrays, before, call, hint) \
    static void run_##id(void) { LETTERS arrays before; call; }
#include TABLE
#undef CASE
#define CASE(id, sizes, roundings, arrays, before, call, hint) \
    { #id, sizes, hint, roundings, run_##id },
static const Case CASES[] = {
#include TABLE
};

// ---- trials ----

// Small sizes that differ, then drawn ones: some round, some beside a power of two, many 1. The
// letters k and r are choices, which come in turn.
static void draw_sizes(const char *sizes) {
    static const int FIRST[] = { 2, 5, 3, 7, 4 };
    int number = 0;
    for (const char *p = sizes; *p; p += strcspn(p, " "), p += *p == ' ', number++) {
        int least = 1, most, power = 1 << rng_below(&side.rng, 8);
        if (sscanf(p + 1, "%d-%d", &least, &most) < 2) most = atoi(p + 1), least = 1;
        int size = side.trial % 2 ? power + (int)rng_below(&side.rng, 3) - 1
                                  : 1 + (int)rng_below(&side.rng, (uint64_t)most);
        if (side.trial == 0) size = FIRST[number];
        if (*p == 'k' || *p == 'r') size = 1 + side.trial % most;
        side.size[(int)*p] = size < least ? least : size > most ? most : size;
        fprintf(side.out, " %c=%d", *p, side.size[(int)*p]);
    }
}

static void run_trial(const Case *c, int trial) {
    side.trial = trial, side.n = 0;
    side.rng = rng_make(1, (uint64_t)trial);
    side.bound = c->roundings * FLOAT_ROUNDING;
    fprintf(side.out, "case");
    draw_sizes(c->sizes);
    fprintf(side.out, "\nhint %s\n", c->hint);
    side_begin();
    c->run();
    side_end();
    for (int k = 0; k < side.n; k++) {
        if (side.arrays[k].role != SCRATCH) array_record(&side.arrays[k]);
        side_free(side.arrays[k].x);
    }
}

int main(int argc, char **argv) {
    size_t n = argc == 4 ? strlen(argv[1]) : 0;
    side.out = argc == 4 ? fopen(argv[3], "wb") : NULL;
    if (!side.out) return fprintf(stderr, "side NAME THREADS FILE\n"), 2;
    side.threads = atoi(argv[2]);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        const char *name = CASES[i].name;
        if (strncmp(name, argv[1], n) || (name[n] && strncmp(name + n, "__", 2))) continue;
        for (int trial = 0; trial < TRIALS; trial++) run_trial(&CASES[i], trial);
    }
    fprintf(side.out, "end\n");
    return fclose(side.out) != 0;
}
