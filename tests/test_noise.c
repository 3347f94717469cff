// The noise scale and the norm test, on gradients of known mean and covariance. Every draw comes from
// a fixed seed, so a test either always passes or never does.
#include "../dev/train/noise.c"
#include "../dev/train/train.h"
#include "../dev/base/rng.h"
#include "test.h"

// ---- a gradient that is known ----

enum { DIM = 24 };

// One example's gradient is N(mean, diag(sd^2)).
typedef struct { double mean[DIM], sd[DIM]; double g2, trace; } Known;

// Uneven on purpose: standard deviations over a factor of a hundred, as in a network.
static Known known_gradient(double g2, double trace) {
    Known k = { .g2 = g2, .trace = trace };
    double means = 0.0, variances = 0.0;
    for (int i = 0; i < DIM; i++) {
        k.mean[i] = sin(1.0 + i);
        k.sd[i] = pow(100.0, -(double)i / (DIM - 1));
        means += k.mean[i] * k.mean[i];
        variances += k.sd[i] * k.sd[i];
    }
    for (int i = 0; i < DIM; i++) {
        k.mean[i] *= sqrt(g2 / means);
        k.sd[i] *= sqrt(trace / variances);
    }
    return k;
}

// The mean of m examples' gradients, drawn at once, since a mean of normals is normal.
static void draw_mean(double *g, const Known *k, double m, Rng *rng) {
    for (int i = 0; i < DIM; i++) g[i] = k->mean[i] + k->sd[i] / sqrt(m) * rng_normal(rng);
}

static double squares(const double *g) {
    double sum = 0.0;
    for (int i = 0; i < DIM; i++) sum += g[i] * g[i];
    return sum;
}

// What an update of n small gradients of m examples each tells.
static GradientNorms draw_update(const Known *k, double m, int n, Rng *rng) {
    double small[DIM], big[DIM] = { 0 };
    GradientNorms norms = { 0.0, 0.0, m, m*n };
    for (int j = 0; j < n; j++) {
        draw_mean(small, k, m, rng);
        norms.small += squares(small) / n;
        for (int i = 0; i < DIM; i++) big[i] += small[i] / n;
    }
    norms.big = squares(big);
    return norms;
}

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

// The trainer's norm test, after 3000 updates of J workers.
static double settled_batch(double scale, int J, double eta, Rng *rng) {
    Known k = known_gradient(1.0, scale);
    BatchSchedule s = { .rule = BATCH_ADAPTIVE, .unit = J, .eta = eta, .min = 8, .max = 1 << 29 };
    NormTest t = { 8, 0 };
    NoiseScale average = { 0 };
    for (int u = 0; u < 3000; u++) {
        GradientNorms n = draw_update(&k, (double)t.batch / J, J, rng);
        noise_add(&average, noise_estimate(&n));
        batch_test(&t, &s, norm_test_batch(&average, eta), false);
    }
    return (double)t.batch;
}

// The batch settles near the planted noise scale over eta^2: above it by the largest of 60 windows'
// scatter, 1.33 times at most here, where few of 24 directions hold the noise. A test of single
// updates would drift to a multiple of that.
TEST(norm_test_settles_at_the_noise_scale) {
    static const struct { double scale; int J; double eta; } cases[] = {
        { 1e3, 2, 0.25 }, { 1e3, 8, 0.7 },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        double scale = cases[i].scale, eta = cases[i].eta;
        Rng rng = rng_make(9, i);
        double settled = settled_batch(scale, cases[i].J, eta, &rng) / (scale / (eta*eta));
        CHECK_MSG(settled > 0.9 && settled < 1.4, "noise %g, J=%d, eta %g: %.2f of the truth",
                  scale, cases[i].J, eta, settled);
    }
}

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
