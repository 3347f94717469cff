// The noise scale and the norm test, by Monte Carlo on gradients of known mean and covariance.
//
// Every draw comes from a fixed seed, so a test either always passes or never does; bounds of three
// standard errors are computed from the same draws.
#include "../dev/train/noise.h"
#include "../dev/train/batch.h"
#include "../dev/base/rng.h"
#include "test.h"

// ---- a gradient that is known ----

enum { DIM = 24, MAX_SMALLS = 32 };

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

// The mean of m examples' gradients, one by one.
static void draw_examples(double *g, const Known *k, int m, Rng *rng) {
    double one[DIM];
    memset(g, 0, DIM * sizeof *g);
    for (int e = 0; e < m; e++) {
        draw_mean(one, k, 1.0, rng);
        for (int i = 0; i < DIM; i++) g[i] += one[i] / m;
    }
}

static double squares(const double *g) {
    double sum = 0.0;
    for (int i = 0; i < DIM; i++) sum += g[i] * g[i];
    return sum;
}

// What an update of n small gradients of m examples each tells, T tokens an example.
static GradientNorms draw_update(const Known *k, int m, int n, int T, Rng *rng) {
    double small[DIM], big[DIM] = { 0 };
    GradientNorms norms = { 0.0, 0.0, (double)m*T, (double)m*n*T };
    for (int j = 0; j < n; j++) {
        draw_examples(small, k, m, rng);
        norms.small += squares(small) / n;
        for (int i = 0; i < DIM; i++) big[i] += small[i] / n;
    }
    norms.big = squares(big);
    return norms;
}

// The same with the small gradients' means drawn at once: for many updates, or large m.
static GradientNorms draw_workers(const Known *k, double m, int n, Rng *rng) {
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

// ---- means and their standard errors ----

typedef struct { double sum, squares; int n; } Mean;

static void mean_add(Mean *m, double x) {
    m->sum += x;
    m->squares += x * x;
    m->n++;
}
static double mean_of(const Mean *m) { return m->sum / m->n; }
static double standard_error(const Mean *m) {
    double mean = mean_of(m);
    return sqrt((m->squares / m->n - mean*mean) / (m->n - 1));
}
// By how many standard errors the mean is above `truth`.
static double errors_above(const Mean *m, double truth) {
    return (mean_of(m) - truth) / standard_error(m);
}

#define CHECK_UNBIASED(mean, truth, ...) \
    CHECK_MSG(fabs(errors_above(mean, truth)) < 3.0, __VA_ARGS__)

// ---- the estimators ----

// Small and big batches of every shape, one of them as noisy as micro-batches of one sequence are.
TEST(g2_and_s_are_unbiased) {
    static const struct { int m, n; double trace; } shapes[] = {
        { 1, 2, 9.0 }, { 1, 8, 100.0 }, { 2, 3, 1.0 }, { 4, 4, 9.0 }, { 8, 2, 100.0 },
        { 1, MAX_SMALLS, 9.0 },
    };
    for (size_t c = 0; c < sizeof shapes / sizeof *shapes; c++) {
        int m = shapes[c].m, n = shapes[c].n, updates = 120000 / (m * n);
        Known k = known_gradient(2.0, shapes[c].trace);
        Rng rng = rng_make(1, c);
        Mean g2 = { 0 }, s = { 0 };
        for (int u = 0; u < updates; u++) {
            GradientNorms norms = draw_update(&k, m, n, 1, &rng);
            NoiseEstimate e = noise_estimate(&norms);
            mean_add(&g2, e.g2);
            mean_add(&s, e.s);
        }
        CHECK_UNBIASED(&g2, k.g2, "%d of %d: G2 is %g, not %g", n, m, mean_of(&g2), k.g2);
        CHECK_UNBIASED(&s, k.trace, "%d of %d: S is %g, not %g", n, m, mean_of(&s), k.trace);
        // A bound that any number meets would prove nothing: S is known to 5% here.
        CHECK_MSG(standard_error(&s) < 0.05 * k.trace, "%d of %d: too few updates", n, m);
    }
}

// What is naively taken for |G|^2 is too large by the noise that is left in it.
TEST(the_big_norm_alone_is_biased) {
    Known k = known_gradient(2.0, 36.0);
    Rng rng = rng_make(2, 0);
    Mean big = { 0 }, small = { 0 };
    for (int u = 0; u < 8000; u++) {
        GradientNorms norms = draw_update(&k, 2, 3, 1, &rng);
        mean_add(&big, norms.big);
        mean_add(&small, norms.small);
    }
    CHECK(errors_above(&big, k.g2) > 20.0 && errors_above(&small, k.g2) > 20.0);
    CHECK_UNBIASED(&big, k.g2 + k.trace / 6, "big is %g", mean_of(&big));
    CHECK_UNBIASED(&small, k.g2 + k.trace / 2, "small is %g", mean_of(&small));
}

// Two equations in two unknowns: without noise in the norms the solution is exact.
TEST(exact_where_norms_are_exact) {
    static const struct { double m, B; } sizes[] = { { 1, 2 }, { 3, 12 }, { 1024, 524288 } };
    for (size_t c = 0; c < sizeof sizes / sizeof *sizes; c++) {
        double m = sizes[c].m, B = sizes[c].B, g2 = 0.5, trace = 700.0;
        GradientNorms norms = { g2 + trace/m, g2 + trace/B, m, B };
        NoiseEstimate e = noise_estimate(&norms);
        // The difference of norms that agree in 3 digits at most: 1e-12 leaves room for 1e-16.
        CHECK_MSG(fabs(e.g2 / g2 - 1.0) < 1e-12 && fabs(e.s / trace - 1.0) < 1e-12,
                  "m=%g B=%g: %.17g %.17g", m, B, e.g2, e.s);
    }
}

// Sequences of T tokens are what is drawn: in tokens the noise scale is T times that in sequences,
// whatever the micro-batch.
TEST(noise_scale_counts_tokens) {
    enum { T = 32 };
    Known k = known_gradient(2.0, 18.0);                    // 9 sequences
    for (int m = 1; m <= 4; m *= 2) {
        Rng rng = rng_make(3, m);
        Mean g2 = { 0 }, s = { 0 };
        for (int u = 0; u < 60000 / m; u++) {
            GradientNorms norms = draw_update(&k, m, 4, T, &rng);
            NoiseEstimate e = noise_estimate(&norms);
            mean_add(&g2, e.g2);
            mean_add(&s, e.s);
        }
        // The ratio of two means, each known to the errors below; added up for the worst case.
        double error = standard_error(&g2) / mean_of(&g2) + standard_error(&s) / mean_of(&s);
        double tokens = mean_of(&s) / mean_of(&g2);
        CHECK_MSG(fabs(tokens / (9.0 * T) - 1.0) < 3.0 * error && error < 0.05,
                  "micro-batch %d: %g tokens, not %g", m, tokens, 9.0 * T);
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
    for (int updates = 1; updates < 1000; updates *= 3) {
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

// A change of the truth is half seen after log(1/2) / log(0.98) = 34 updates.
TEST(average_follows) {
    NoiseEstimate before = { 1.0, 100.0 }, after = { 1.0, 300.0 };
    NoiseScale n = average_of(before, 1000);
    for (int u = 0; u < 34; u++) noise_add(&n, after);
    CHECK_MSG(fabs(noise_tokens(&n) - 200.0) < 3.0, "%g", noise_tokens(&n));
}

// With a weak gradient G2 is negative at nearly every second update. Their mean is right; what is
// left when those are dropped, or set to zero, is far too large.
TEST(negative_g2_is_kept) {
    Known k = known_gradient(0.3, 60.0);
    Rng rng = rng_make(4, 0);
    Mean kept = { 0 }, dropped = { 0 }, clamped = { 0 }, averaged = { 0 };
    NoiseScale n = { 0 };
    for (int u = 0; u < 40000; u++) {
        GradientNorms norms = draw_workers(&k, 4, 4, &rng);
        NoiseEstimate e = noise_estimate(&norms);
        mean_add(&kept, e.g2);
        mean_add(&clamped, fmax(e.g2, 0.0));
        if (e.g2 > 0.0) mean_add(&dropped, e.g2);
        noise_add(&n, e);
        if (u >= 1000 && u % 200 == 0) mean_add(&averaged, n.g2);       // four memories apart
    }
    CHECK_MSG(dropped.n < 0.8 * kept.n, "%d of %d are positive", dropped.n, kept.n);
    CHECK_UNBIASED(&kept, k.g2, "kept: %g, not %g", mean_of(&kept), k.g2);
    CHECK_UNBIASED(&averaged, k.g2, "averaged: %g, not %g", mean_of(&averaged), k.g2);
    CHECK(errors_above(&dropped, k.g2) > 20.0 && mean_of(&dropped) > 2.0 * k.g2);
    CHECK(errors_above(&clamped, k.g2) > 20.0);
}

TEST(clamped_after_the_average_alone) {
    NoiseEstimate up = { 3.0, 10.0 }, down = { -2.0, 10.0 }, noiseless = { 1.0, -4.0 };
    NoiseScale n = { 0 };
    for (int u = 0; u < 999; u++) noise_add(&n, u % 2 ? down : up);    // 0.5 on average
    CHECK_MSG(fabs(noise_tokens(&n) - 20.0) < 2.0, "%g", noise_tokens(&n));
    n = average_of(down, 5);
    CHECK(n.g2 < 0.0 && isinf(noise_tokens(&n)) && noise_tokens(&n) > 0.0);
    for (int u = 0; u < 400; u++) noise_add(&n, up);                    // and it comes back
    CHECK_MSG(fabs(noise_tokens(&n) / (10.0 / 3.0) - 1.0) < 0.01, "%g", noise_tokens(&n));
    n = average_of(noiseless, 5);
    CHECK(noise_tokens(&n) == 0.0);
}

// One copy of the arithmetic, as in the trainer: two that are inlined may be rounded differently.
__attribute__((noinline)) static void add_update(NoiseScale *n, const GradientNorms *norms) {
    noise_add(n, noise_estimate(norms));
}

// As a checkpoint keeps it: three numbers of 17 digits are all there is.
TEST(state_restored_goes_on_with_the_same_bits) {
    Known k = known_gradient(2.0, 18.0);
    Rng rng = rng_make(5, 0);
    NoiseScale n = { 0 }, again = { 0 };
    for (int u = 0; u < 200; u++) {
        if (u == 77) {
            char text[200];
            snprintf(text, sizeof text, "%.17g %.17g %.17g", n.g2, n.s, n.weight);
            CHECK(sscanf(text, "%lf %lf %lf", &again.g2, &again.s, &again.weight) == 3);
        }
        GradientNorms norms = draw_workers(&k, 4, 4, &rng);
        add_update(&n, &norms);
        if (u >= 77) add_update(&again, &norms);
    }
    CHECK(memcmp(&n, &again, sizeof n) == 0);
}

// ---- the norm test ----

// DDP-Norm as it is printed (Lau et al. 2024): V = (1/J) sum_j |g_j - g|^2, T = V / (eta^2 |g|^2).
static double printed_test(const GradientNorms *n, double eta) {
    return (n->small - n->big) / (eta*eta * n->big);
}

// V is computed there as a mean of distances, here from norms alone.
TEST(variance_from_norms_is_the_mean_distance) {
    Known k = known_gradient(2.0, 50.0);
    Rng rng = rng_make(6, 0);
    double g[MAX_SMALLS][DIM], mean[DIM] = { 0 }, distances = 0.0;
    GradientNorms n = { 0.0, 0.0, 4.0, 4.0 * MAX_SMALLS };
    for (int j = 0; j < MAX_SMALLS; j++) {
        draw_mean(g[j], &k, 4, &rng);
        n.small += squares(g[j]) / MAX_SMALLS;
        for (int i = 0; i < DIM; i++) mean[i] += g[j][i] / MAX_SMALLS;
    }
    n.big = squares(mean);
    for (int j = 0; j < MAX_SMALLS; j++)
        for (int i = 0; i < DIM; i++)
            distances += (g[j][i] - mean[i]) * (g[j][i] - mean[i]) / MAX_SMALLS;
    CHECK(fabs((n.small - n.big) / distances - 1.0) < 1e-12);
    // and tr(Sigma) = B/(J-1) V is the S of the noise scale, B being all examples together
    double trace = n.big_tokens / (MAX_SMALLS - 1) * distances;
    CHECK(fabs(noise_estimate(&n).s / trace - 1.0) < 1e-12);
}

// The mean of each statistic's numerator over that of its denominator, at noise scale `scale`:
// V and tr(Sigma) over |g|^2, and tr(Sigma) over the unbiased |G|^2.
typedef struct { double printed, corrected, unbiased; Mean trace; } NormTests;

static NormTests norm_tests(double scale, double m, int J, double eta, int updates, Rng *rng) {
    Known k = known_gradient(1.0, scale);
    NormTests t = { 0 };
    Mean big = { 0 }, variance = { 0 }, g2 = { 0 };
    for (int u = 0; u < updates; u++) {
        GradientNorms n = draw_workers(&k, m, J, rng);
        NoiseEstimate e = noise_estimate(&n);
        mean_add(&t.trace, e.s);
        mean_add(&g2, e.g2);
        mean_add(&variance, printed_test(&n, eta) * n.big);
        mean_add(&big, n.big);
    }
    t.printed = mean_of(&variance) / mean_of(&big);
    t.corrected = mean_of(&t.trace) / (eta*eta * mean_of(&big));
    t.unbiased = mean_of(&t.trace) / (eta*eta * mean_of(&g2));
    return t;
}

// However noisy the gradient, the printed statistic stays below (J-1)/eta^2. With tr(Sigma) it asks
// for the batch times that part of 1/eta^2 which is noise. With |G|^2 too it asks for the noise
// scale over eta^2, as long as |G|^2 can be told from noise.
TEST(printed_norm_test_is_capped) {
    const double eta = 0.5, m = 8;
    for (int J = 2; J <= 8; J *= 2) {
        double cap = (J - 1) / (eta*eta), B = m * J, last = 0.0;
        for (double scale = 1.0; scale <= 1e6; scale *= 10.0) {
            Rng rng = rng_make(7, (uint64_t)(scale * 10) + (uint64_t)J);
            NormTests t = norm_tests(scale, m, J, eta, 3000, &rng);
            double noise = scale / B, share = noise / (1.0 + noise);    // of |g|^2
            // a chi-square's mean over 3000 updates is known to about 5% in three errors
            CHECK_MSG(t.printed < 1.05 * cap, "J=%d, noise %g: %g", J, scale, t.printed);
            CHECK_MSG(fabs(t.printed / (cap * share) - 1.0) < 0.05, "J=%d, noise %g: %g of %g", J,
                      scale, t.printed, cap * share);
            CHECK_MSG(fabs(t.corrected / (B * share / (eta*eta)) - 1.0) < 0.05,
                      "J=%d, noise %g: %g", J, scale, t.corrected);
            if (noise <= 1.0)
                CHECK_MSG(fabs(t.unbiased / (scale / (eta*eta)) - 1.0) < 0.1, "J=%d, noise %g: %g",
                          J, scale, t.unbiased);
            CHECK_UNBIASED(&t.trace, scale, "J=%d: tr(Sigma) is %g, not %g", J, mean_of(&t.trace),
                           scale);
            last = t.printed;
        }
        CHECK_MSG(last > 0.9 * cap, "J=%d: %g, the cap is %g", J, last, cap);
    }
}

// A batch that follows a statistic of each single update, and only grows: up to it, where it stays.
static double grown_batch(double scale, int J, double eta, int updates, bool printed, Rng *rng) {
    Known k = known_gradient(1.0, scale);
    double batch = 8.0;
    for (int u = 0; u < updates; u++) {
        GradientNorms n = draw_workers(&k, batch / J, J, rng);
        double wanted = printed ? printed_test(&n, eta) : noise_estimate(&n).s / (eta*eta * n.big);
        if (wanted > batch) batch = J * ceil(wanted / J);
    }
    return batch;
}

// The trainer's norm test, after as many updates.
static double settled_batch(double scale, int J, double eta, Rng *rng) {
    Known k = known_gradient(1.0, scale);
    BatchSchedule s = { .rule = BATCH_ADAPTIVE, .unit = J, .eta = eta, .min = 8, .max = 1 << 29 };
    NormTest t = { 8, 0 };
    NoiseScale average = { 0 };
    for (int u = 0; u < 3000; u++) {
        GradientNorms n = draw_workers(&k, (double)t.batch / J, J, rng);
        noise_add(&average, noise_estimate(&n));
        batch_test(&t, &s, norm_test_batch(&average, eta), false);
    }
    return (double)t.batch;
}

// Four workers at eta 0.5. As printed the batch ends near 3/eta^2 = 12 examples whether the noise
// scale is 1e3 or 1e6.
TEST(printed_norm_test_stays_small) {
    for (double scale = 1e3; scale <= 1e6; scale *= 1e3) {
        Rng rng = rng_make(8, (uint64_t)scale);
        double printed = grown_batch(scale, 4, 0.5, 300, true, &rng);
        CHECK_MSG(printed <= 200.0, "noise %g: printed grows to %g", scale, printed);
    }
}

// The batch settles near the planted noise scale over eta^2: above it by the largest of 60 windows'
// scatter, 1.33 times at most here, where few of 24 directions hold the noise. A test of single
// updates drifts to a multiple of that.
TEST(norm_test_settles_at_the_noise_scale) {
    const double etas[] = { 0.25, 0.35, 0.5, 0.7 };
    for (double scale = 1e3; scale <= 1e5; scale *= 1e2)
        for (int J = 2; J <= 8; J *= 2)
            for (int i = 0; i < 4; i++) {
                double eta = etas[i], truth = scale / (eta*eta);
                Rng rng = rng_make(9, (uint64_t)(scale * J + i)), same = rng;
                double settled = settled_batch(scale, J, eta, &rng) / truth;
                double drifted = grown_batch(scale, J, eta, 3000, false, &same) / truth;
                CHECK_MSG(settled > 0.9 && settled < 1.4, "noise %g, J=%d, eta %g: %.2f of the "
                          "truth", scale, J, eta, settled);
                CHECK_MSG(drifted > 1.5*settled, "J=%d, eta %g: single updates reach %.2f", J, eta,
                          drifted);
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

#define CHECK_VERDICT(noise, batch, wanted) CHECK_VERDICT_WHEN(false, noise, batch, wanted)
#define CHECK_VERDICT_WHEN(decayed, noise, batch, wanted) do { \
        char said[256]; \
        noise_verdict(said, sizeof said, noise, batch, decayed); \
        CHECK_MSG(strcmp(said, wanted) == 0, "%s", said); \
    } while (0)

TEST(verdict) {
    CHECK_VERDICT(31234.0, 8192.0, "batch 8,192 tokens, noise scale 31,000: up to about 4x more "
                  "workers would still help");
    CHECK_VERDICT(NAN, 8192.0, "batch 8,192 tokens, noise scale not measured yet");
    CHECK_VERDICT(INFINITY, 512.0, "batch 512 tokens, noise scale above what this batch can tell: "
                  "more workers would still help");
    CHECK_VERDICT(12345678.0, 524288.0, "batch 524,288 tokens, noise scale 12,000,000: up to about "
                  "24x more workers would still help");
}

TEST(verdict_at_borders) {
    CHECK_VERDICT(1500.0, 1000.0, "batch 1,000 tokens, noise scale 1,500: up to about 2x more "
                  "workers would still help");
    CHECK_VERDICT(1499.0, 1000.0, "batch 1,000 tokens, noise scale 1,500: about right; more "
                  "workers would help little");
    CHECK_VERDICT(670.0, 1000.0, "batch 1,000 tokens, noise scale 670: about right; more workers "
                  "would help little");
    CHECK_VERDICT(500.0, 1000.0, "batch 1,000 tokens, noise scale 500: a batch 2x smaller would "
                  "probably learn more per token at this learning rate; after it decays the noise "
                  "scale is several times larger");
    CHECK_VERDICT(204.0, 1000.0, "batch 1,000 tokens, noise scale 200: a batch 4.9x smaller would "
                  "probably learn more per token at this learning rate; after it decays the noise "
                  "scale is several times larger");
    CHECK_VERDICT(1e6, 1000.0, "batch 1,000 tokens, noise scale 1,000,000: up to about 1000x more "
                  "workers would still help");
    CHECK_VERDICT(1.001e6, 1000.0, "batch 1,000 tokens, noise scale above what this batch can "
                  "tell: more workers would still help");
}

TEST(verdict_after_the_rate_has_decayed) {
    CHECK_VERDICT_WHEN(true, 500.0, 1000.0, "batch 1,000 tokens, noise scale 500: a batch 2x "
                       "smaller would probably learn more per token at this learning rate");
}

TEST(groups_of_three_digits) {
    static const struct { double n; const char *text; } cases[] = {
        { 0, "0" }, { 7, "7" }, { 999, "999" }, { 1000, "1,000" }, { 31234, "31,234" },
        { 999999, "999,999" }, { 1e6, "1,000,000" }, { 1e9, "1,000,000,000" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK_MSG(strcmp(grouped_text(cases[i].n).text, cases[i].text) == 0, "%s is not %s",
                  grouped_text(cases[i].n).text, cases[i].text);
}

int main(void) {
    RUN(g2_and_s_are_unbiased);
    RUN(the_big_norm_alone_is_biased);
    RUN(exact_where_norms_are_exact);
    RUN(noise_scale_counts_tokens);
    RUN(average_of_the_same_is_the_same);
    RUN(averages_first_ratio_then);
    RUN(average_follows);
    RUN(negative_g2_is_kept);
    RUN(clamped_after_the_average_alone);
    RUN(state_restored_goes_on_with_the_same_bits);
    RUN(variance_from_norms_is_the_mean_distance);
    RUN(printed_norm_test_is_capped);
    RUN(printed_norm_test_stays_small);
    RUN(norm_test_settles_at_the_noise_scale);
    RUN(norm_test_scales_with_eta);
    RUN(verdict);
    RUN(verdict_at_borders);
    RUN(verdict_after_the_rate_has_decayed);
    RUN(groups_of_three_digits);
    return test_end();
}
