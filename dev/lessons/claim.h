// What every check in C shares: claims, and measured slopes. A check prints numbers and then
// claims; it stops with status 1 at the first claim that is false.
#pragma once
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

__attribute__((format(printf, 2, 3), unused))
static void claim(bool holds, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    printf("%s  ", holds ? "true " : "FALSE");
    vprintf(fmt, args);
    printf("\n");
    va_end(args);
    if (!holds) exit(1);
}

// A loss as a function of numbers that lie somewhere in `of`.
typedef double LossOf(void *of);

// The gradient checker: slope[i] = how fast the loss f(of) grows with x[i], by central differences.
// x (n) are some of the numbers that f reads. Two calls of f a number: for small models.
__attribute__((unused))
static void measured_slopes(double *slope, LossOf *f, void *of, float *x, size_t n, float h) {
    for (size_t i = 0; i < n; i++) {
        float kept = x[i], ahead = kept + h, behind = kept - h;
        x[i] = ahead;
        double above = f(of);
        x[i] = behind;
        slope[i] = (above - f(of)) / ((double)ahead - behind);   // 2h, but for ahead's rounding
        x[i] = kept;
    }
}
