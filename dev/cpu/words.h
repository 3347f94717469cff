// The cross-entropy of a rank that has the logits of some words alone (dev/ranks/tensor_model.h).
#pragma once
#include <math.h>
#include <stddef.h>
#include "exp.h"

// parts (3,N): of each row of logits (N,Vp) its largest of V (-INFINITY if V is 0), the sum of
// e^(logit - largest), and the target's logit, or 0 if target[n] is V: another rank's word.
static inline void xent_parts(float *parts, const float *logits, const int *target,
                              size_t N, int V, int Vp) {
    #pragma omp parallel for
    for (size_t n = 0; n < N; n++) {
        const float *x = logits + n*(size_t)Vp;
        float hi = -INFINITY, sum = 0.0f;
        #pragma omp simd reduction(max:hi)
        for (int v = 0; v < V; v++) hi = x[v] > hi ? x[v] : hi;
        #pragma omp simd reduction(+:sum)
        for (int v = 0; v < V; v++) sum += exp_fast(x[v] - hi);
        parts[n] = hi;
        parts[N + n] = sum;
        parts[2*N + n] = target[n] < V ? x[target[n]] : 0.0f;
    }
}
