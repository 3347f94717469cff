// Small models of tests; include it behind train_gpt2.c.
#pragma once

// Its parameters are zero.
static void make_shared_model(Model *m, const Config *c, int B, int T, Use use,
                              const Sharing *sharing) {
    static Machine machine;
    ModelSpec spec = { *c, B, T, use, RECOMPUTE_NONE, *sharing, 0 };
    model_init(m, &spec, &machine);
}

// A fresh model's parameters, as draw_params of dev/train/save.h draws them.
static void draw_model(Model *m, uint64_t seed) {
    Zero *z = model_zero(m);
    for (int b = 0; b < gpt2_n_buckets(&m->c); b++) {
        gpt2_init_bucket(bucket_place(z, KEPT_WEIGHTS, b), &m->c, b, seed);
        bucket_keep(z, KEPT_WEIGHTS, b);
    }
    zero_loaded(z);
}
