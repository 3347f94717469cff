// Tensors in a file, as one program writes them and compare.c reads them: lines of text, and behind
// each `tensor` line its elements as doubles.
//
//     case SIZES                    what follows is of one call; a verdict ends with its sizes
//     hint TEXT                     shown behind the first wrong element
//     tensor NAME LETTERS ROLE BOUND SIZE...
//     fault TEXT                    the program has found a fault itself, and writes no more
//     end
#pragma once
#include <stdarg.h>
#include <unistd.h>
#include "compare.h"                   // Comparison

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
