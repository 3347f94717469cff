// How far numbers are from those that they should be.
#pragma once
#include <math.h>
#include <stddef.h>

// By the norm of all; of zeros, the norm of the difference.
static inline double relative_error(const float *ours, const float *theirs, size_t n) {
    double diff = 0.0, norm = 0.0;
    for (size_t i = 0; i < n; i++) {
        diff += ((double)ours[i] - theirs[i]) * ((double)ours[i] - theirs[i]);
        norm += (double)theirs[i] * theirs[i];
    }
    return sqrt(diff / (norm > 0.0 ? norm : 1.0));
}
