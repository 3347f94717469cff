// Weights beside those that are trained: their averages over updates, and DiLoCo's, which workers
// average after a round (ranks.h).
#include "ranks.h"

// ---- averaged weights ----

// to = keep * to + (1 - keep) * from, of all that this rank updates. Both factors are floats with a
// sum of exactly 1 from keep = 1/2 on, so that long averages do not shrink.
static void masters_blend(Params *p, Buffer to, Buffer from, float keep) {
    for (int b = 0; b < gpt2_n_buckets(&p->c); b++) {
        size_t n = params_own(p, b).count;
        if (n > 0)
            floats_axpby(to.data + params_own_begin(p, b, to.slices), 1.0f - keep,
                         from.data + params_own_begin(p, b, from.slices), keep, n, p->stream);
    }
}

void average_update(Params *p, float keep) {
    masters_blend(p, kept_buffer(p, KEPT_AVERAGE), kept_buffer(p, KEPT_WEIGHTS), keep);
}

void average_begin(Params *p) {
    Buffer weights = kept_buffer(p, KEPT_WEIGHTS), aside = { p->grads, p->stage >= 2 };
    zero_wait_params(p);
    masters_blend(p, aside, weights, 0.0f);
    masters_blend(p, weights, kept_buffer(p, KEPT_AVERAGE), 0.0f);
    params_loaded(p);
}

void average_end(Params *p) {
    Buffer aside = { p->grads, p->stage >= 2 };
    zero_wait_params(p);
    masters_blend(p, kept_buffer(p, KEPT_WEIGHTS), aside, 0.0f);
    params_loaded(p);
}

// ---- DiLoCo ----
//
// DiLoCo: workers that rarely communicate (Douillard et al. 2023, arXiv 2311.08105, algorithm 1).
//
// A round: each worker makes H AdamW updates on its own data, with its own moments. Then the outer
// optimizer, SGD with Nesterov momentum, updates the parameters that the round began with (outer).
// Its gradient is the mean over the workers of how far they have moved:
//
//     delta = mean(outer - p)    momentum = mu momentum + delta
//     p = outer = outer - lr (delta + mu momentum)          as PyTorch's SGD(nesterov=True)

void diloco_begin(Params *p) {
    floats_axpby(p->outer_params, 1.0f, p->masters, 0.0f, gpt2_n_params(&p->c), p->stream);
}

void diloco_end_round(Params *p, float lr, float mu) {
    size_t n = gpt2_n_params(&p->c);
    float *delta = p->grads;
    floats_axpby(delta, 1.0f, p->outer_params, 0.0f, n, p->stream);
    floats_axpby(delta, -1.0f, p->masters, 1.0f, n, p->stream);
    for (int b = 0; b < gpt2_n_buckets(&p->c); b++) {
        Range r = gpt2_bucket(&p->c, b);
        p->arrives[b] = comm_mean(p->comm, delta + r.begin, r.count, p->type);
    }
    for (int b = 0; b < gpt2_n_buckets(&p->c); b++) {
        Range r = gpt2_bucket(&p->c, b);
        float *outer = p->outer_params + r.begin, *momentum = p->outer_momentum + r.begin;
        comm_wait(p->comm, p->arrives[b]);
        floats_axpby(momentum, 1.0f, delta + r.begin, mu, r.count, p->stream);
        floats_axpby(delta + r.begin, mu, momentum, 1.0f, r.count, p->stream);
        floats_axpby(outer, -lr, delta + r.begin, 1.0f, r.count, p->stream);
        floats_axpby(p->masters + r.begin, 1.0f, outer, 0.0f, r.count, p->stream);
    }
    params_loaded(p);
}
