// The gradient noise scale: an estimate of the critical batch size (McCandlish et al. 2018, arXiv
// 1812.06162).
//
// The gradient of a batch is the true gradient G plus noise. Averaged over B tokens, its expected
// squared norm is |G|^2 + tr(Sigma)/B, where Sigma is the covariance of one token's gradient. Two
// batch sizes give two equations for |G|^2 and tr(Sigma). Every update has both: the small batches
// are its micro-batches, or the ranks; the big batch is all of them (appendix A.1):
//
//     small = mean_i |g_i|^2, of m tokens each      big = |mean_i g_i|^2, of B tokens
//     G2 = (B big - m small) / (B - m)              S = (small - big) / (1/m - 1/B)
//
// Both are unbiased: E[G2] = |G|^2, E[S] = tr(Sigma). The simple noise scale S/G2 is the batch at
// which noise and gradient have the same norm: well below it, doubling the batch halves the
// updates; well above it, doubling the batch doubles the cost. A ratio of unbiased estimates is
// biased, so G2 and S are averaged over many updates first. Either can be negative at one update;
// leaving such updates out would bias the average.
//
// Adam does not step along the gradient but along P times the gradient, with P = 1/(sqrt(v) + eps)
// from its second moment v. The noise scale in that metric, tr(P Sigma)/(G' P G), takes the same
// two norms with each square multiplied by P (noise_scale_adam in the log). After the first update
// v is the square of a single gradient, and P is huge wherever that was near zero: such updates
// would outweigh hundreds of later ones in the averages below, so they are left out.
//
// The loader draws sequences, not tokens, at random, and the tokens of a sequence share their
// noise. S is in tokens nevertheless, as if each token brought 1/T of its sequence's noise. The
// noise scale does not show how a run would go with another batch: critical batch sizes found by
// training at other batches came out larger by orders of magnitude (Merrill et al. 2025).
// scripts/lab compares both methods.
#pragma once
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include "../base/log.h"

// Squared norms of one update's gradients, before clipping.
typedef struct {
    double small, big;                 // mean |g_i|^2; |mean g_i|^2
    double small_tokens, big_tokens;   // m and B, over all ranks
} GradientNorms;

typedef struct { double g2, s; } NoiseEstimate;        // |G|^2; tr(Sigma) of one token

// Needs small_tokens < big_tokens.
static inline NoiseEstimate noise_estimate(const GradientNorms *n) {
    double m = n->small_tokens, B = n->big_tokens;
    NoiseEstimate e = { (B*n->big - m*n->small) / (B - m),
                        (n->small - n->big) / (1.0/m - 1.0/B) };
    return e;
}

// Exponential moving averages over updates; `weight` is the sum of their coefficients so far.
typedef struct { double g2, s, weight; } NoiseScale;

static const double noise_decay = 0.98;                // about the last fifty updates
enum { NOISE_METRIC_FROM = 20 };                       // updates that v averages over at least

static inline void noise_add(NoiseScale *n, NoiseEstimate e) {
    n->g2 = noise_decay*n->g2 + (1.0 - noise_decay)*e.g2;
    n->s = noise_decay*n->s + (1.0 - noise_decay)*e.s;
    n->weight = noise_decay*n->weight + (1.0 - noise_decay);
}

// The noise scale in tokens: infinity while the average of G2 is not positive, NaN before the first
// update. (S and G2 lack the same bias correction, so their ratio needs none.)
static inline double noise_tokens(const NoiseScale *n) {
    if (n->weight == 0.0) return NAN;
    if (n->g2 <= 0.0) return INFINITY;
    return n->s > 0.0 ? n->s / n->g2 : 0.0;
}

// The norm test's batch in tokens: at this batch the noise of the mean gradient has eta times the
// norm of the true gradient, tr(Sigma)/B = eta^2 |G|^2 (Lau et al. 2024, arXiv 2412.21124). So the
// batch is the noise scale over eta^2, from the averages above.
//
// The paper tests V, the variance among J workers' gradients of one update, against the norm of
// their mean g. Its batch V/(eta^2 |g|^2) stays below about (J-1)/eta^2 whatever the noise, because
// V is at most about (J-1) |g|^2. With tr(Sigma) = B/(J-1) V in place of V, two faults are left.
// |g|^2 contains noise: |G|^2 + tr(Sigma)/B. And a batch that only grows follows the largest of
// many noisy requests: the fewer examples, the further it drifts above its value.
static inline double norm_test_batch(const NoiseScale *n, double eta) {
    return noise_tokens(n) / (eta*eta);
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

// Advice in words: a noise scale compared with a batch of so many tokens. A decaying learning rate
// anneals the noise scale to several times its value, so a batch that seems too large may still be
// right at the end of the run; `decayed`: it has done so already.
static inline void noise_verdict(char *out, size_t size, double noise, double batch,
                                 bool decayed) {
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
        snprintf(of, left, "%s: a batch %.*gx smaller would probably learn more per token at this "
                 "learning rate%s", scale.text, times > 0.1 ? 2 : 4,
                 times > 0.1 ? 1.0/times : round(1.0 / fmax(times, 1e-3)),
                 decayed ? "" : "; after it decays the noise scale is several times larger");
}
