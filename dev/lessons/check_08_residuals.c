// Lesson 8: the size of the residual stream by depth, and the two gradients of a tied embedding.
#include "lesson.h"

enum { T = 64, V = 64, NH = 4, C = 128 };

static double rms(const float *x, size_t n) {
    double squares = 0.0;
    for (size_t i = 0; i < n; i++) squares += (double)x[i] * x[i];
    return sqrt(squares / n);
}

// How much a fresh model's blocks add to the stream: the RMS of x_out of the last block, less what
// the embeddings brought. `boost` multiplies the projections that end a branch.
static double added(int L, float boost) {
    static Model m;
    Config c = { .L = L, .NH = NH, .C = C, .V = V, .P = T };
    int tokens[T];
    float difference[T*C];
    Rng rng = rng_make(8, 0);
    for (int t = 0; t < T; t++) tokens[t] = lesson_token(&rng, V);
    lesson_model(&m, c, 1, T, 1337);
    for (int l = 0; l < L; l++) {
        Block w = m.w.block[l];
        for (int i = 0; i < C*C; i++) w.att_proj_w[i] *= boost;
        for (int i = 0; i < 4*C*C; i++) w.mlp_proj_w[i] *= boost;
    }
    model_forward(&m, tokens, 1, T, 0);
    for (int i = 0; i < T*C; i++) difference[i] = m.acts[L - 1].x_out[i] - m.x_in[i];
    double size = rms(difference, T*C);
    model_free(&m);
    return size;
}

// With tied weights dwte = the classifier's gradient + the embedding's. A token that the text does
// not contain gets the first alone.
static void check_tying(void) {
    static Model m;
    Config c = { .L = 1, .NH = 1, .C = 8, .V = 3, .P = 2 };
    int inputs[2] = { 0, 1 }, targets[2] = { 1, 0 };       // token 2 is neither read nor predicted
    float logit_part[8] = {0};
    lesson_model(&m, c, 1, 2, 1337);
    clear_grads(&m);
    model_forward(&m, inputs, 1, 2, 0);
    for (int t = 0; t < 2; t++) {                          // the row's gradient by hand: p lnf / N
        const float *score = model_logits(&m, t);
        double sum = exp(score[0]) + exp(score[1]) + exp(score[2]);
        for (int i = 0; i < 8; i++)
            logit_part[i] += (float)(exp(score[2]) / sum) * m.lnf.out[t*8 + i] / 2;
    }
    classifier_loss_and_gradient(&m, targets, 0.5f, 1, 2);
    model_backward(&m, inputs, 1, 2);
    const float *absent = m.params.grads + 2*8;          // wte comes first; row 2
    double worst = 0.0;
    for (int i = 0; i < 8; i++) worst = fmax(worst, fabs(absent[i] - logit_part[i]));
    claim(worst < 1e-6 && rms(absent, 8) > 1e-3,
          "an absent token's row of wte still has a gradient, the classifier's p lnf: "
          "it differs by %.0e", worst);
    model_free(&m);
}

int main(void) {
    double scaled[4], plain[4];
    printf("added to the stream by L fresh blocks (RMS)\n"
           "  L   projections N(0, 0.02/sqrt(2L))   all weights N(0, 0.02)\n");
    for (int i = 0, L = 2; i < 4; i++, L *= 2) {
        scaled[i] = added(L, 1.0f);
        plain[i] = added(L, sqrtf(2.0f*L));
        printf("%3d %23.4f %32.4f\n", L, scaled[i], plain[i]);
    }
    claim(scaled[3] < 1.3*scaled[0] && scaled[0] < 1.3*scaled[3],
          "scaled: 2 blocks and 16 add the same, within 30%%");
    claim(plain[3] > 2.0*plain[0], 
          "not scaled: 16 blocks add %.1f times as much as 2 (sqrt(8) = 2.8)", plain[3] / plain[0]);
    check_tying();
    return 0;
}
