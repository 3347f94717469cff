// The gradient noise scale: how large a batch is worth its tokens.
//
// A batch's gradient is the true one, G, plus noise: averaged over B tokens, its squared length is
// |G|^2 + tr(Sigma)/B on average, with Sigma the covariance of one token's gradient. Two sizes of
// batch are two equations. The gradients of the micro-batches, or of the ranks, are the small
// batches that every update has anyway, and their mean is the big one (McCandlish et al. 2018,
// arXiv 1812.06162, appendix A.1):
//
//     small = mean_i |g_i|^2, of m tokens each      big = |mean_i g_i|^2, of B tokens
//     G2 = (B big - m small) / (B - m)              S = (small - big) / (1/m - 1/B)
//
// Both are unbiased: E[G2] = |G|^2, E[S] = tr(Sigma). Their ratio, the simple noise scale, is the
// batch at which noise and gradient are of one length: well below it twice the batch does the work
// of two updates, well above it twice the batch is twice the price. A ratio of unbiased numbers is
// not unbiased, so each is averaged over many updates first. One of them may be negative at an
// update; leaving such updates out would bias what is left.
//
// The sequence is what is drawn at random; its tokens share their noise, and S counts in tokens all
// the same, as if each brought its T-th part. It is a measurement of noise, not of how a run would
// go with another batch: measured so, critical batches came out larger by orders of magnitude
// (Merrill et al. 2025). scripts/lab compares the two.
#pragma once
#include <math.h>
#include <stdint.h>
#include "../base/log.h"

// What one update tells: squared lengths, before clipping.
typedef struct {
    double small, big;                 // mean |g_i|^2; |mean g_i|^2
    double small_tokens, big_tokens;   // m and B, of all ranks together
} GradientNorms;

typedef struct { double g2, s; } NoiseEstimate;        // |G|^2; tr(Sigma), of one token

// Needs small_tokens < big_tokens.
static inline NoiseEstimate noise_estimate(const GradientNorms *n) {
    double m = n->small_tokens, B = n->big_tokens;
    NoiseEstimate e = { (B*n->big - m*n->small) / (B - m),
                        (n->small - n->big) / (1.0/m - 1.0/B) };
    return e;
}

// The norm test's batch in tokens: the one at which the noise of the mean gradient is eta times as
// long as this update's mean gradient, tr(Sigma)/B = eta^2 |g|^2 (Lau et al. 2024, arXiv
// 2412.21124, with the variance among J workers' gradients brought from their size to that of one
// token: tr(Sigma) = B/(J-1) V, which is S above. As printed, the batch is V/(eta^2 |g|^2), and V
// is at most J-1 times |g|^2 or so, whatever the noise: never more than (J-1)/eta^2.)
static inline double norm_test_batch(const GradientNorms *n, double eta) {
    return noise_estimate(n).s / (eta*eta * n->big);
}

// Averages over updates, exponential; `weight` is the part of them that has been filled.
typedef struct { double g2, s, weight; } NoiseScale;

static const double noise_decay = 0.98;                // about the last fifty updates

static inline void noise_add(NoiseScale *n, NoiseEstimate e) {
    n->g2 = noise_decay*n->g2 + (1.0 - noise_decay)*e.g2;
    n->s = noise_decay*n->s + (1.0 - noise_decay)*e.s;
    n->weight = noise_decay*n->weight + (1.0 - noise_decay);
}

// In tokens; infinite while the averages show no gradient beside the noise, NaN before the first
// update.
static inline double noise_tokens(const NoiseScale *n) {
    if (n->weight == 0.0) return NAN;
    if (n->g2 <= 0.0) return INFINITY;
    return n->s > 0.0 ? n->s / n->g2 : 0.0;
}

// 31234 -> "31,234"
static inline Shown grouped_text(double n) {
    Shown shown;
    char digits[32];
    int count = snprintf(digits, sizeof digits, "%.0f", n), at = 0;
    for (int i = 0; i < count && at + 2 < (int)sizeof shown.text; i++) {
        if (i > 0 && (count - i) % 3 == 0) shown.text[at++] = ',';
        shown.text[at++] = digits[i];
    }
    shown.text[at] = '\0';
    return shown;
}

// What it means for a batch of so many tokens, in words.
static inline void noise_verdict(char *out, size_t size, double noise, double batch) {
    char *of = out + snprintf(out, size, "batch %s tokens, noise scale ", grouped_text(batch).text);
    size_t left = size - (size_t)(of - out);
    double times = noise / batch, rounding = pow(10.0, floor(log10(fmax(noise, 1.0))) - 1.0);
    Shown scale = grouped_text(isfinite(noise) ? round(noise / rounding) * rounding : 0.0);
    if (isnan(noise)) snprintf(of, left, "not measured yet");
    else if (isinf(noise) || times > 1000.0)
        snprintf(of, left, "above what this batch can tell: more workers would still help");
    else if (times >= 1.5)
        snprintf(of, left, "%s: up to about %.0fx more workers would still help", scale.text,
                 times);
    else if (times >= 0.67)
        snprintf(of, left, "%s: about right; more workers would help little", scale.text);
    else
        snprintf(of, left, "%s: more workers would hardly help; %.*gx fewer would waste less",
                 scale.text, times > 0.1 ? 2 : 4, times > 0.1 ? 1.0/times
                                                 : round(1.0 / fmax(times, 1e-3)));
}
