// An oracle beside a function: what a function wrote is compared with what it should have written,
// and the first wrong element is named by its indices. For C, C++ and CUDA alike.
//
//     compare.h    a tensor, its bound, the first wrong element; tensors in a file, so that the
//                  oracle may be another program, or PyTorch
//     side.h       runs the rows of a table, a function's arrays and a call of it, and records them
//     compare.c    compares two such files: right, or one line that says what is wrong
//
//     Comparison c = compare_make("dx", "nc", (size_t[]){ N, C }, 100 * FLOAT_ROUNDING);
//     c.got = dx, c.exact = exact;
//     const char *line = compare_verdict(&c);
//                              // dx[n=2][c=1] is 0.5, expected 0.25; wrong from n=2 on
//
// A bound is relative, in roundings of the type that the function computes in. An element may err
// by so much of its own size and of its row's root mean square (a row: the last dimension), and of
// a tenth of the whole tensor's, since a sum errs by a part of its terms.
#pragma once
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FLOAT_ROUNDING 0x1p-24         // half a unit in the last place of a number near 1

typedef struct {
    char name[64], letters[8];         // "dx", and "nc": a letter for each index
    size_t sizes[8], n;                // n elements
    double bound;                      // relative
    double least;                      // absolute, for an element of any size
    const double *got, *exact;
    double all, row;                   // root mean squares: of everything, of row `row_number`
    size_t row_number;
} Comparison;

static inline Comparison compare_make(const char *name, const char *letters, const size_t *sizes,
                                      double bound) {
    Comparison c;
    memset(&c, 0, sizeof c);
    snprintf(c.name, sizeof c.name, "%s", name);
    snprintf(c.letters, sizeof c.letters, "%s", letters);
    c.n = 1, c.bound = bound, c.least = 1e-37, c.all = -1.0, c.row_number = (size_t)-1;
    for (size_t k = 0; c.letters[k]; k++) c.sizes[k] = sizes[k], c.n *= sizes[k];
    return c;
}

// "dx[n=2][c=1]"; a single number has no index.
static inline const char *compare_element(const Comparison *c, size_t i) {
    static char text[200];
    size_t stride = c->n, at = (size_t)snprintf(text, sizeof text, "%s", c->name);
    for (size_t k = 0; c->n > 1 && k < strlen(c->letters); k++) {
        stride /= c->sizes[k];
        at += (size_t)snprintf(text + at, sizeof text - at, "[%c=%zu]", c->letters[k],
                               i / stride % c->sizes[k]);
    }
    return text;
}

// The root mean square of what is expected in elements begin ... end-1.
static inline double compare_size(const Comparison *c, size_t begin, size_t end) {
    double squares = 0.0;
    for (size_t i = begin; i < end; i++)
        if (isfinite(c->exact[i])) squares += c->exact[i] * c->exact[i] / (double)(end - begin);
    return sqrt(squares);
}

// By how much element i may err.
static inline double compare_slack(Comparison *c, size_t i) {
    size_t dims = strlen(c->letters), width = dims > 0 ? c->sizes[dims - 1] : 1, row = i / width;
    if (c->all < 0.0) c->all = compare_size(c, 0, c->n);
    if (row != c->row_number) c->row = compare_size(c, row*width, (row + 1)*width);
    c->row_number = row;
    return c->bound * (fabs(c->exact[i]) + c->row + 0.1*c->all) + c->least;
}

// What should not be finite may be anything that is not.
static inline bool compare_is_right(Comparison *c, size_t i) {
    if (!isfinite(c->exact[i])) return !isfinite(c->got[i]);
    return fabs(c->got[i] - c->exact[i]) <= compare_slack(c, i);
}

// n if there is none.
static inline size_t compare_first_wrong(Comparison *c) {
    size_t i = 0;
    while (i < c->n && compare_is_right(c, i)) i++;
    return i;
}

// What all wrong elements have in common, in one of their indices: "; wrong from b=1 on", or "".
static inline const char *compare_common(Comparison *c) {
    static char text[80];
    size_t stride = c->n;
    for (size_t k = 0; k < strlen(c->letters); k++) {
        size_t low = c->sizes[k], high = 0;
        stride /= c->sizes[k];
        for (size_t i = 0; i < c->n; i++) {
            size_t at = i / stride % c->sizes[k];
            if (compare_is_right(c, i)) continue;
            low = at < low ? at : low, high = at > high ? at : high;
        }
        if (low == 0 && (high > 0 || c->sizes[k] == 1)) continue;
        snprintf(text, sizeof text, low == high ? "; wrong only where %c=%zu"
                                                : "; wrong from %c=%zu on", c->letters[k], low);
        return text;
    }
    return "";
}

// Two numbers in as many digits as tell them apart.
static inline const char *compare_numbers(double got, double exact) {
    static char text[100];
    char a[40], b[40];
    for (int digits = 5; digits < 18; digits += 4) {
        snprintf(a, sizeof a, "%.*g", digits, isnan(got) ? (double)NAN : got);
        snprintf(b, sizeof b, "%.*g", digits, isnan(exact) ? (double)NAN : exact);
        if (strcmp(a, b)) break;
    }
    snprintf(text, sizeof text, "is %s, expected %s", a, b);
    return text;
}

// NULL if all is right; else a line that says what is not.
static inline const char *compare_verdict(Comparison *c) {
    static char line[400];
    size_t i = compare_first_wrong(c);
    if (i == c->n) return NULL;
    snprintf(line, sizeof line, "%s %s%s", compare_element(c, i),
             compare_numbers(c->got[i], c->exact[i]), compare_common(c));
    return line;
}

// ||got - exact|| / ||exact||, of a whole tensor.
static inline double compare_norm(const float *got, const float *exact, size_t n) {
    double difference = 0.0, norm = 0.0;
    for (size_t i = 0; i < n; i++) {
        difference += ((double)got[i] - exact[i]) * ((double)got[i] - exact[i]);
        norm += (double)exact[i] * exact[i];
    }
    return sqrt(difference / (norm > 0.0 ? norm : 1.0));
}

// ---- tensors in a file ----

// As one program writes them and compare.c reads them: lines of text, and behind each `tensor` line
// its elements as doubles.
//
//     case SIZES                    what follows is of one call; a verdict ends with its sizes
//     hint TEXT                     shown behind the first wrong element
//     tensor NAME LETTERS ROLE BOUND SIZE...
//     fault TEXT                    the program has found a fault itself, and writes no more
//     end

// What a function does with an array, and so what is expected of it:
//     IN       it only reads it: not an element changes
//     OUT      it writes it; before, all elements are BEFORE_OUT
//     ADDED    it adds to what the array contains: before, in turn, the two of before_added
//     IO       it changes it
//     NEARLY   counts that rounding may change by 2
//     MOST     costs: at most twice the oracle's
//     SCRATCH  neither compared nor recorded; NAN before
typedef enum { IN, OUT, ADDED, IO, NEARLY, MOST, SCRATCH } Role;
static const char *const ROLE_NAMES[] = { "in", "out", "added", "io", "nearly", "most", "scratch" };
static const double BEFORE_OUT = 7.0;
static inline double before_added(size_t i) { return i % 2 ? -2.0 : 0.5; }

static inline void record_head(FILE *out, const Comparison *t, Role role) {
    fprintf(out, "tensor %s %s %s %.17g", t->name, t->letters, ROLE_NAMES[role], t->bound);
    for (size_t k = 0; t->letters[k]; k++) fprintf(out, " %zu", t->sizes[k]);
    fprintf(out, "\n");
}

static inline void record_floats(FILE *out, const Comparison *t, Role role, const float *x) {
    record_head(out, t, role);
    for (size_t i = 0; i < t->n; i++) {
        double element = x[i];
        fwrite(&element, sizeof element, 1, out);
    }
}

// What a program has found itself, in the line that a verdict shows.
__attribute__((format(printf, 2, 3), noreturn))
static inline void record_fault(FILE *out, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(out, "fault ");
    vfprintf(out, format, args);
    fprintf(out, "\n");
    fclose(out);
    _exit(0);                          // not exit: a thread of a parallel loop may be here
}
