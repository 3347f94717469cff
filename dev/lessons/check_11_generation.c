// Lesson 11: the key/value cache changes the work and not the answer; what temperature does.
#include "lesson.h"

enum { T = 256, V = 64 };
static const Config SMALL = { .L = 4, .NH = 4, .C = 128, .V = V, .P = T };

// Feeds T tokens one at a time; returns the seconds. With `cached`, only the new token's row is
// computed. logits (T,V).
static double feed(Model *m, const int *tokens, bool cached, float *logits) {
    double start = seconds_now();
    for (int t = 0; t < T; t++) {
        int past = cached ? t : 0;
        model_forward(m, tokens + past, 1, t + 1 - past, past);
        memcpy(logits + t*V, model_logits(m, t - past), V * sizeof *logits);
    }
    return seconds_now() - start;
}

// How often each of three tokens with probabilities 0.5, 0.3, 0.2 is drawn.
static void check_temperature(void) {
    float logits[3] = { logf(0.5f), logf(0.3f), logf(0.2f) };
    float temperatures[] = { 0.0f, 0.5f, 1.0f, 2.0f };
    enum { DRAWS = 100000 };
    Candidate candidates[3];
    double worst = 0.0;
    printf("temperature   drawn                   p^(1/temperature), normalised\n");
    for (int i = 0; i < 4; i++) {
        Sampler s = { .temperature = temperatures[i], .top_p = 1.0f, .candidates = candidates };
        Rng rng = rng_make(11, (uint64_t)i);
        int drawn[3] = {0};
        double p[3] = { 1.0, 0.0, 0.0 }, sum = 0.0;
        for (int n = 0; n < DRAWS; n++) drawn[sample_token(&s, logits, 3, &rng)]++;
        for (int v = 0; v < 3 && i > 0; v++) sum += p[v] = exp(logits[v] / temperatures[i]);
        printf("  %.1f       ", temperatures[i]);
        for (int v = 0; v < 3; v++) printf(" %.3f", (double)drawn[v] / DRAWS);
        printf("          ");
        for (int v = 0; v < 3; v++) {
            double wanted = i > 0 ? p[v] / sum : p[v];
            worst = fmax(worst, fabs((double)drawn[v] / DRAWS - wanted));
            printf(" %.3f", wanted);
        }
        printf("\n");
    }
    claim(worst < 0.01, "sample_token draws with these probabilities, within 0.01");
}

int main(void) {
    static Model m;
    static float whole[T*V], cached[T*V];
    int tokens[T];
    Rng rng = rng_make(11, 99);
    for (int t = 0; t < T; t++) tokens[t] = lesson_token(&rng, V);
    lesson_model(&m, SMALL, 1, T, 1337);
    double slow = feed(&m, tokens, false, whole), fast = feed(&m, tokens, true, cached);
    double worst = 0.0;
    for (int i = 0; i < T*V; i++) worst = fmax(worst, fabsf(whole[i] - cached[i]));
    printf("%d tokens   rows computed   seconds\n", T);
    printf("  anew      %10d   %10.3f\n  cached    %10d   %10.3f\n", T*(T + 1)/2, slow, T, fast);
    claim(worst < 1e-5, "the scores are the same to rounding: they differ by %.0e", worst);
    claim(fast < slow, "the cache is faster, here %.0f times", slow / fast);
    model_free(&m);
    check_temperature();
    return 0;
}
