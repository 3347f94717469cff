// A running window: the latest values of something, and how far the next one lies from them.
#pragma once
#include <math.h>
#include <string.h>

enum {
    WINDOW_VALUES = 128,
    WINDOW_ENOUGH = 32,            // fewer values say too little about their spread
};

typedef struct {
    int n;                         // values held
    double values[WINDOW_VALUES];  // the oldest first
} Window;

// Adds a value. A full window forgets its oldest one.
static inline void window_add(Window *w, double value) {
    if (w->n == WINDOW_VALUES)
        memmove(w->values, w->values + 1, (size_t)--w->n * sizeof *w->values);
    w->values[w->n++] = value;
}

// The z-score of a value that is not in the window: by how many standard deviations it exceeds the
// mean. 0 if the window holds too few values, or equal ones. The sums are made anew, from the
// oldest value on, so that a resumed run gets the same bits.
static inline double window_z(const Window *w, double value) {
    double sum = 0.0, squares = 0.0;
    if (w->n < WINDOW_ENOUGH) return 0.0;
    for (int i = 0; i < w->n; i++) sum += w->values[i];
    double mean = sum / w->n;
    for (int i = 0; i < w->n; i++) squares += (w->values[i] - mean) * (w->values[i] - mean);
    double deviation = sqrt(squares / w->n);
    return deviation > 0.0 ? (value - mean) / deviation : 0.0;
}
