// Lesson 10: micro-batches whose gradients are added make the gradient of the whole batch.
#include "lesson.h"

enum { B = 8, T = 16, N = B*T, V = 32 };
static const Config SMALL = { .L = 2, .NH = 2, .C = 32, .V = V, .P = T };

// The gradient of the batch, in micro-batches of b sequences; each loss times `scale`.
static float *gradient_of(Model *m, const int *inputs, const int *targets, int b, float scale) {
    clear_grads(m);
    for (int first = 0; first < B; first += b) {
        model_forward(m, inputs + first*T, b, T, 0);
        classifier_loss_and_gradient(m, targets + first*T, scale, b, T);
        model_backward(m, inputs + first*T, b, T);
    }
    return m->params.grads;
}

static double length(const float *x, const float *less, double times) {
    double squares = 0.0;
    for (size_t i = 0; i < gpt2_n_params(&SMALL); i++) {
        double d = x[i] - (less ? times*less[i] : 0.0);
        squares += d * d;
    }
    return sqrt(squares);
}

// Two micro-batches of 4 sequences. In the second only the first FEW tokens of each count; its
// other targets are masked. No counted token sees a later one, so these are left out here.
enum { HALF = B/2, FEW = 4, COUNTED = HALF*T + HALF*FEW };
typedef struct { Model *m; const int *inputs, *targets; int few_inputs[HALF*FEW],
                 few_targets[HALF*FEW]; } Masked;

static double mean_of_counted(void *batch) {
    const Masked *x = batch;
    double whole = lesson_loss(x->m, x->inputs, x->targets, HALF, T);
    double few = lesson_loss(x->m, x->few_inputs, x->few_targets, HALF, FEW);
    return (whole*HALF*T + few*HALF*FEW) / COUNTED;
}

// Each token's loss times `first` in the first micro-batch, times `second` in the second.
static float *masked_gradient(const Masked *x, float first, float second) {
    clear_grads(x->m);
    model_forward(x->m, x->inputs, HALF, T, 0);
    classifier_loss_and_gradient(x->m, x->targets, first, HALF, T);
    model_backward(x->m, x->inputs, HALF, T);
    model_forward(x->m, x->few_inputs, HALF, FEW, 0);
    classifier_loss_and_gradient(x->m, x->few_targets, second, HALF, FEW);
    model_backward(x->m, x->few_inputs, HALF, FEW);
    return x->m->params.grads;
}

static void check_masked(Model *m, const int *inputs, const int *targets, float *right) {
    Masked x = { .m = m, .inputs = inputs, .targets = targets };
    size_t n = gpt2_n_params(&SMALL), steepest = 0;
    for (int i = 0; i < HALF*FEW; i++) {
        x.few_inputs[i] = inputs[(HALF + i/FEW)*T + i%FEW];
        x.few_targets[i] = targets[(HALF + i/FEW)*T + i%FEW];
    }
    memcpy(right, masked_gradient(&x, 1.0f/COUNTED, 1.0f/COUNTED), n * sizeof *right);
    for (size_t i = 0; i < n; i++) if (fabsf(right[i]) > fabsf(right[steepest])) steepest = i;
    double slope, length_right = length(right, NULL, 0.0);
    measured_slopes(&slope, mean_of_counted, &x, m->params.masters + steepest, 1, 1e-2f);
    float *means = masked_gradient(&x, 0.5f/(HALF*T), 0.5f/(HALF*FEW));
    printf("masked: %d tokens count in one micro-batch, %d in the other\n", HALF*T, HALF*FEW);
    printf("                        a token's weight    length   steepest slope\n");
    printf("  sum / %d             1/%d and 1/%d   %8.4f   %14.4f\n", COUNTED, COUNTED, COUNTED,
           length_right, right[steepest]);
    printf("  mean of two means    1/%d and 1/%d  %8.4f   %14.4f\n", 2*HALF*T, 2*HALF*FEW,
           length(means, NULL, 0.0), means[steepest]);
    printf("  measured, the mean loss of %d tokens        %15.4f\n", COUNTED, slope);
    double apart = length(means, right, 1.0) / length_right;
    claim(fabs(right[steepest] - slope) < 0.01 * fabs(slope) &&
          fabs(means[steepest] - slope) > 0.1 * fabs(slope),
          "divided by all counted tokens, the sum is the slope; the mean of means is not");
    claim(apart > 0.1, "the mean of means is another vector, %.0f%% of the sum's length away: in it "
          "%d tokens weigh %d times as much", 100.0 * apart, HALF*FEW, T/FEW);
}

int main(void) {
    static Model m;
    int inputs[N], targets[N];
    Rng rng = rng_make(10, 0);
    for (int i = 0; i < N; i++)
        inputs[i] = lesson_token(&rng, V), targets[i] = lesson_token(&rng, V);
    lesson_model(&m, SMALL, B, T, 1337);
    size_t bytes = gpt2_n_params(&SMALL) * sizeof(float);
    float *whole = alloc_or_die(bytes, "a gradient");
    memcpy(whole, gradient_of(&m, inputs, targets, B, 1.0f/N), bytes);
    printf("%d sequences of %d tokens as        length of the gradient   difference from 1 x %d\n",
           B, T, B);
    for (int b = B; b >= 1; b /= 2) {
        float *g = gradient_of(&m, inputs, targets, b, 1.0f/N);
        double apart = length(g, whole, 1.0) / length(whole, NULL, 0.0);
        printf("  %d micro-batches of %d %28.6f %24.1e\n", B/b, b, length(g, NULL, 0.0), apart);
        if (apart > 1e-5) claim(false, "%d micro-batches make the gradient of one", B/b);
    }
    claim(true, "the gradient is the same to rounding, however the batch is cut");
    float *wrong = gradient_of(&m, inputs, targets, 2, 1.0f/(2*T));
    claim(length(wrong, whole, 4.0) < 1e-5 * length(wrong, NULL, 0.0),
          "a mean over each micro-batch of 2 makes it 4 times too long: scale by the whole batch");
    check_masked(&m, inputs, targets, whole);
    free(whole);
    model_free(&m);
    return 0;
}
