// What the lessons' C programs share: claims and measured slopes; the trainer, and a model of one
// process. A check prints numbers and then claims; it stops with status 1 at the first false one.
#pragma once
#define main train_gpt2_main
#include "../../train_gpt2.c"
#undef main

__attribute__((format(printf, 2, 3)))
static inline void claim(bool holds, const char *fmt, ...) {
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
static inline void measured_slopes(double *slope, LossOf *f, void *of, float *x, size_t n,
                                   float h) {
    for (size_t i = 0; i < n; i++) {
        float kept = x[i], ahead = kept + h, behind = kept - h;
        x[i] = ahead;
        double above = f(of);
        x[i] = behind;
        slope[i] = (above - f(of)) / ((double)ahead - behind);   // 2h, but for ahead's rounding
        x[i] = kept;
    }
}

// A fresh model, initialised as a run with this seed initialises it.
static inline void lesson_model(Model *m, Config c, int B, int T, uint64_t seed) {
    static Machine machine;
    ModelSpec spec = { .c = c, .B = B, .T = T, .use = TRAIN };
    model_init(m, &spec, &machine);
    params_draw(model_params(m), seed);
}

static inline int lesson_token(Rng *rng, int V) { return (int)(rng_uniform(rng) * V); }

// The mean loss of a batch, in nats per token. The weights stay as they are.
static inline double lesson_loss(Model *m, const int *inputs, const int *targets, int B, int T) {
    float each[B*T];
    model_forward(m, inputs, B, T, 0);
    return model_loss(m, each, targets, (size_t)B*T) / (B*T);
}

static const AdamW lesson_adamw = { .lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f };

// One update on one batch, clipped at 1; returns the loss before it. `step` counts from 1.
static inline double lesson_update(Model *m, const int *inputs, const int *targets, int B, int T,
                                   AdamW o, int64_t step) {
    clear_grads(m);
    model_forward(m, inputs, B, T, 0);
    double loss = classifier_loss_and_gradient(m, targets, 1.0f / (B*T), B, T) / (B*T);
    model_backward(m, inputs, B, T);
    double norm = sqrt(gradients_squares(m));
    o.m_steps = o.v_steps = (double)step;
    model_update(m, o, norm > 1.0 ? (float)(1.0 / norm) : 1.0f);
    return loss;
}
