// The noise scale, its averages, and the batch that the norm test asks for. When the batch grows to
// it: test_batch.c; in a run: test_batch.sh.
#include "../dev/train/noise.c"
#include "../dev/train/train.h"
#include "test.h"

// ---- the estimators ----

// Two equations in two unknowns, linear in the norms: exact for the norms' means, so unbiased.
TEST(exact_where_norms_are_exact) {
    static const struct { double m, B; } sizes[] = { { 1, 2 }, { 3, 12 }, { 1024, 524288 } };
    for (size_t c = 0; c < COUNT(sizes); c++) {
        double m = sizes[c].m, B = sizes[c].B, g2 = 0.5, trace = 700.0;
        GradientNorms norms = { g2 + trace/m, g2 + trace/B, m, B };
        NoiseEstimate e = noise_estimate(&norms);
        // The difference of norms that agree in 3 digits at most: 1e-12 leaves room for 1e-16.
        CHECK_MSG(fabs(e.g2 / g2 - 1.0) < 1e-12 && fabs(e.s / trace - 1.0) < 1e-12,
                  "m=%g B=%g: %.17g %.17g", m, B, e.g2, e.s);
    }
}

// ---- averages over updates ----

static NoiseScale average_of(NoiseEstimate e, int updates) {
    NoiseScale n = { 0 };
    for (int u = 0; u < updates; u++) noise_add(&n, e);
    return n;
}

TEST(average_of_the_same_is_the_same) {
    NoiseEstimate e = { 0.25, 1000.0 };
    NoiseScale none = { 0 };
    CHECK(isnan(noise_tokens(&none)));
    for (int updates = 1; updates < 1000; updates *= 30) {
        NoiseScale n = average_of(e, updates);
        // Zeros that the averages began with fall out of the ratio: right from the first update on.
        CHECK_MSG(fabs(noise_tokens(&n) / 4000.0 - 1.0) < 1e-12, "after %d: %.17g", updates,
                  noise_tokens(&n));
        CHECK(fabs(n.g2 / n.weight / e.g2 - 1.0) < 1e-12);
        CHECK(fabs(n.s / n.weight / e.s - 1.0) < 1e-12);
        CHECK(fabs(n.weight - (1.0 - pow(noise_decay, updates))) < 1e-12);
    }
}

// Numerator and denominator are averaged apart; the mean of the ratios would be 2.
TEST(averages_first_ratio_then) {
    NoiseScale n = { 0 };
    for (int u = 0; u < 2000; u++) {
        NoiseEstimate e = { u % 2 ? 1.0 : 3.0, u % 2 ? 3.0 : 3.0 };
        noise_add(&n, e);
    }
    // 3/2, up to the last update's weight of 2%, which lies on one side
    CHECK_MSG(fabs(noise_tokens(&n) - 1.5) < 0.02, "%g", noise_tokens(&n));
}

// With a weak gradient G2 is negative at nearly every second update. Their mean is right; without
// those, or with zeros in their place, it would be far too large.
TEST(clamped_after_the_average_alone) {
    NoiseEstimate up = { 3.0, 10.0 }, down = { -2.0, 10.0 }, noiseless = { 1.0, -4.0 };
    NoiseScale n = { 0 };
    for (int u = 0; u < 999; u++) noise_add(&n, u % 2 ? down : up);    // 0.5 on average
    CHECK_MSG(fabs(noise_tokens(&n) - 20.0) < 2.0, "%g", noise_tokens(&n));
    n = average_of(down, 5);
    CHECK(isinf(noise_tokens(&n)) && fabs(n.g2 / n.weight / down.g2 - 1.0) < 1e-12);
    for (int u = 0; u < 400; u++) noise_add(&n, up);                    // and it comes back
    CHECK_MSG(fabs(noise_tokens(&n) / (10.0 / 3.0) - 1.0) < 0.01, "%g", noise_tokens(&n));
    n = average_of(noiseless, 5);
    CHECK(noise_tokens(&n) == 0.0);
}

// ---- the norm test ----

// A smaller eta asks for more.
TEST(norm_test_scales_with_eta) {
    NoiseScale n = { 2.0, 512.0, 1.0 }, none = { 0.0, 0.0, 0.0 };
    CHECK(norm_test_batch(&n, 1.0) == 256.0 && norm_test_batch(&n, 0.25) == 16.0 * 256.0);
    n.g2 = -1.0;
    CHECK(isinf(norm_test_batch(&n, 1.0)) && isnan(norm_test_batch(&none, 1.0)));
}

// ---- words ----

TEST(verdicts) {
    static const struct { double noise, batch; bool decayed; const char *said; } cases[] = {
        { NAN, 8192, false, "batch 8,192 tokens, noise scale not measured yet" },
        { INFINITY, 512, false, "batch 512 tokens, noise scale above what this batch can tell: "
                                "more workers would still help" },
        { 1.001e6, 1000, false, "batch 1,000 tokens, noise scale above what this batch can tell: "
                                "more workers would still help" },
        { 1e6, 1000, false, "batch 1,000 tokens, noise scale 1,000,000: up to about 1000x more "
                            "workers would still help" },
        { 31234, 8192, false, "batch 8,192 tokens, noise scale 31,000: up to about 4x more workers "
                              "would still help" },
        { 1500, 1000, false, "batch 1,000 tokens, noise scale 1,500: up to about 2x more workers "
                             "would still help" },
        { 1499, 1000, false, "batch 1,000 tokens, noise scale 1,500: about right; more workers "
                             "would help little" },
        { 670, 1000, false, "batch 1,000 tokens, noise scale 670: about right; more workers would "
                            "help little" },
        { 204, 1000, false, "batch 1,000 tokens, noise scale 200: a batch 4.9x smaller would "
                            "probably learn more per token at this learning rate; after it decays "
                            "the noise scale is several times larger" },
        { 500, 1000, true, "batch 1,000 tokens, noise scale 500: a batch 2x smaller would probably "
                           "learn more per token at this learning rate" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char said[256];
        noise_verdict(said, sizeof said, cases[i].noise, cases[i].batch, cases[i].decayed);
        CHECK_MSG(strcmp(said, cases[i].said) == 0, "%s", said);
    }
}

int main(void) { return run_tests(); }
