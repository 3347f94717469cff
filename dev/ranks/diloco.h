// DiLoCo: workers that rarely communicate (Douillard et al. 2023, arXiv 2311.08105, algorithm 1).
//
// A round: each worker makes H AdamW updates on its own data, with its own moments. Then the outer
// optimizer, SGD with Nesterov momentum, updates the parameters that the round began with (outer).
// Its gradient is the mean over the workers of how far they have moved:
//
//     delta = mean(outer - p)    momentum = mu momentum + delta
//     p = outer = outer - lr (delta + mu momentum)          as PyTorch's SGD(nesterov=True)
#pragma once
#include "zero.h"                    // Zero, floats_axpby

// The first round begins at the current parameters.
static inline void diloco_begin(Zero *z) {
    floats_axpby(z->outer_params, 1.0f, z->masters, 0.0f, gpt2_n_params(&z->c), z->stream);
}

// Ends a round. The buffer of gradients, no longer needed, holds delta.
static inline void diloco_end_round(Zero *z, float lr, float mu) {
    size_t n = gpt2_n_params(&z->c);
    float *delta = z->grads;
    floats_axpby(delta, 1.0f, z->outer_params, 0.0f, n, z->stream);
    floats_axpby(delta, -1.0f, z->masters, 1.0f, n, z->stream);
    for (int b = 0; b < gpt2_n_buckets(&z->c); b++) {
        Range r = gpt2_bucket(&z->c, b);
        z->arrives[b] = comm_mean(z->comm, delta + r.begin, r.count, z->type);
    }
    for (int b = 0; b < gpt2_n_buckets(&z->c); b++) {
        Range r = gpt2_bucket(&z->c, b);
        float *outer = z->outer_params + r.begin, *momentum = z->outer_momentum + r.begin;
        comm_wait(z->comm, z->arrives[b]);
        floats_axpby(momentum, 1.0f, delta + r.begin, mu, r.count, z->stream);
        floats_axpby(delta + r.begin, mu, momentum, 1.0f, r.count, z->stream);
        floats_axpby(outer, -lr, delta + r.begin, 1.0f, r.count, z->stream);
        floats_axpby(z->masters + r.begin, 1.0f, outer, 0.0f, r.count, z->stream);
    }
    zero_loaded(z);
}
