// Lesson 10: micro-batches whose gradients are added make the gradient of the whole batch.
#include "lesson.h"

enum { B = 8, T = 16, N = B*T, V = 32 };
static const Config SMALL = { .L = 2, .NH = 2, .C = 32, .V = V, .P = T };

// The gradient of the batch, in micro-batches of b sequences; each loss times `scale`.
static float *gradient_of(Model *m, const int *inputs, const int *targets, int b, float scale) {
    clear_grads(m);
    for (int first = 0; first < B; first += b) {
        model_forward(m, inputs + first*T, b, T);
        model_backward(m, inputs + first*T, targets + first*T, scale, b, T);
    }
    return m->zero.grads;
}

static double length(const float *x, const float *less, double times) {
    double squares = 0.0;
    for (size_t i = 0; i < gpt2_n_params(&SMALL); i++) {
        double d = x[i] - (less ? times*less[i] : 0.0);
        squares += d * d;
    }
    return sqrt(squares);
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
    free(whole);
    model_free(&m);
    return 0;
}
