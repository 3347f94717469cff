// Is the backward pass that of the forward pass? No fixture and no formula is needed: each tensor of
// a small model moves a little along its own gradient, there and back, and the loss must change by
// the gradient's length. Whoever changes the model in train_gpt2.c learns here whether its gradient
// is right, alone and as ranks of --tensor-parallel run it:
//
//     make build/test_slopes && build/test_slopes
static int as_ranks;                       // a group of one rank runs what several run
#define TP_ALWAYS as_ranks
#include "../dev/ranks/tensor.c"
#define main train_gpt2_main
#include "../train_gpt2.c"
#undef main
#include "test.h"

enum { B = 4, T = 11, N = B*T, V = 61 };

static double loss_of(Model *m, const int *x, const int *y) {
    model_forward(m, x, B, T, 0);
    return classifier_loss_and_gradient(m, y, 0.0f, B, T) / N;
}

static void check_slopes(void) {
    const Config c = { 2, 3, 24, V, 16, 0 };
    const float step = 3e-3f;              // the loss is fp32: less drowns in rounding, more in curves
    static Machine machine;
    static Model m;
    int x[N], y[N];
    ModelSpec spec = { .c = c, .B = B, .T = T, .use = TRAIN };
    model_init(&m, &spec, &machine);
    Rng rng = rng_make(3, 0);
    for (int i = 0; i < N; i++) x[i] = (int)rng_below(&rng, V), y[i] = (int)rng_below(&rng, V);
    for (size_t i = 0; i < gpt2_n_params(&c); i++)
        m.params.masters[i] = (float)(0.3 * rng_normal(&rng));
    clear_grads(&m);
    model_forward(&m, x, B, T, 0);
    classifier_loss_and_gradient(&m, y, 1.0f / N, B, T);
    model_backward(&m, x, B, T);
    for (int i = 0; i < gpt2_n_tensors(&c); i++) {
        Tensor t = gpt2_tensor(&c, i);
        float *p = m.params.masters + t.offset, *g = m.params.grads + t.offset;
        float *kept = alloc_or_die(t.count * sizeof *kept, "a tensor");
        double length = 0.0, losses[2];
        memcpy(kept, p, t.count * sizeof *p);
        for (size_t j = 0; j < t.count; j++) length += (double)g[j] * g[j];
        length = sqrt(length);
        for (int way = 0; way < 2; way++) {
            float scale = (way ? step : -step) / (float)fmax(length, 1e-12);
            for (size_t j = 0; j < t.count; j++) p[j] = kept[j] + scale * g[j];
            losses[way] = loss_of(&m, x, y);
        }
        memcpy(p, kept, t.count * sizeof *p);
        double slope = (losses[1] - losses[0]) / (2.0 * step);
        CHECK_MSG(fabs(slope - length) <= 2e-2 * length + 2e-5,
                  "%s: the loss changes by %.6f, its gradient says %.6f", t.key, slope, length);
        free(kept);
    }
    model_free(&m);
}

TEST(slopes_are_the_gradients) { check_slopes(); }

TEST(slopes_are_the_gradients_of_ranks_that_share_layers) {
    as_ranks = 1;
    check_slopes();
    as_ranks = 0;
}

int main(void) { return run_tests(); }
