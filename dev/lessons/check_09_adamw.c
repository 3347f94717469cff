// Lesson 9: what AdamW does with a gradient, clipping, and the shape of the schedules.
#include "lesson.h"

// The first step of one weight that begins at 1.
static float first_move(float g, float g_scale, AdamW o) {
    float p = 1.0f, m = 0.0f, v = 0.0f;
    o.m_steps = o.v_steps = 1;
    adamw_update(&p, &m, &v, &g, g_scale, o, 1);
    return p - 1.0f;
}

static void check_first_step(AdamW o) {
    printf("the first move at learning rate %.2f:\n", o.lr);
    for (float g = 1e-4f; g < 2e4f; g *= 1e4f)
        printf("  gradient %9.4f   move %.6f\n", g, first_move(g, 1.0f, o));
    claim(fabsf(first_move(1e-4f, 1.0f, o) - first_move(1e4f, 1.0f, o)) < 1e-5f,
          "a hundred million times the gradient makes the same first move");
    claim(fabsf(first_move(5.0f, 1.0f, o) + o.lr) < 1e-5f, "and the move is -lr times its sign");
}

// 100 updates with gradients of mean 1 and the noise of +-s.
static float moved_in_100(float s, AdamW o) {
    float p = 0.0f, m = 0.0f, v = 0.0f;
    for (int step = 1; step <= 100; step++) {
        float g = 1.0f + (step % 2 ? s : -s);
        o.m_steps = o.v_steps = step;
        adamw_update(&p, &m, &v, &g, 1.0f, o, 1);
    }
    return -p;
}

static void check_noise(AdamW o) {
    float quiet = moved_in_100(0.0f, o), noisy = moved_in_100(3.0f, o);
    printf("100 updates, gradient 1:          moved %.3f\n", quiet);
    printf("100 updates, gradient 1 +- 3:     moved %.3f\n", noisy);
    claim(fabsf(quiet - 100*o.lr) < 1e-3f && noisy < 0.5f*quiet,
          "noise shortens the steps: 1/sqrt(1 + 9) = %.2f of the way, measured %.2f",
          1/sqrt(10.0), noisy / quiet);
}

// 20 updates with gradient 1, one with a gradient of 1000, scaled by `g_scale`, and 50 more with
// gradient 1: how far these 50 move.
static float moved_after_spike(float g_scale, AdamW o) {
    float p = 0.0f, m = 0.0f, v = 0.0f, before = 0.0f;
    for (int step = 1; step <= 71; step++) {
        float g = step == 21 ? 1000.0f : 1.0f;
        o.m_steps = o.v_steps = step;
        adamw_update(&p, &m, &v, &g, step == 21 ? g_scale : 1.0f, o, 1);
        if (step == 21) before = p;
    }
    return before - p;
}

static void check_clipping(AdamW o) {
    float free_moves = moved_after_spike(1.0f, o), clipped = moved_after_spike(1.0f / 1000.0f, o);
    printf("50 updates after a gradient of 1000:  moved %.3f; clipped to 1:  moved %.3f\n",
           free_moves, clipped);
    claim(fabsf(clipped - 50*o.lr) < 1e-3f && free_moves < 0.5f*clipped,
          "one spike fills v and shortens the next 50 steps; clipping prevents it");
}

static void check_decay(AdamW o) {
    o.weight_decay = 0.1f;
    claim(fabsf(first_move(0.0f, 1.0f, o) + o.lr*0.1f) < 1e-7f,
          "without a gradient a weight of 1 decays by lr * 0.1");
}

static void check_schedule(void) {
    LrSchedule s = { .lr = 1.0, .final_frac = 0.1, .warmup = 100, .horizon = 1000 };
    const char *names[] = { "constant", "linear", "cosine", "wsd" };
    printf("share of the highest rate      50     100     500     800     900    1000 tokens\n");
    for (int rule = LR_CONSTANT; rule <= LR_WSD; rule++) {
        s.rule = (LrRule)rule;
        printf("  %-22s", names[rule]);
        uint64_t tokens[] = { 50, 100, 500, 800, 900, 1000 };
        for (int i = 0; i < 6; i++) printf("%8.3f", lr_at(&s, tokens[i]));
        printf("\n");
    }
    s.rule = LR_COSINE;
    claim(fabs(lr_at(&s, 550) - 0.55) < 1e-9, "a cosine is half-way down half-way through");
}

int main(void) {
    AdamW o = lesson_adamw;
    check_first_step(o);
    check_noise(o);
    check_decay(o);
    check_clipping(o);
    check_schedule();
    return 0;
}
