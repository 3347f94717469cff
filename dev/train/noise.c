// The gradient noise scale: an estimate of the critical batch size (McCandlish et al. 2018, arXiv
// 1812.06162) (train.h).
#include "train.h"

NoiseEstimate noise_estimate(const GradientNorms *n) {
    double m = n->small_tokens, B = n->big_tokens;
    NoiseEstimate e = { (B*n->big - m*n->small) / (B - m),
                        (n->small - n->big) / (1.0/m - 1.0/B) };
    return e;
}

void noise_add(NoiseScale *n, NoiseEstimate e) {
    n->g2 = noise_decay*n->g2 + (1.0 - noise_decay)*e.g2;
    n->s = noise_decay*n->s + (1.0 - noise_decay)*e.s;
    n->weight = noise_decay*n->weight + (1.0 - noise_decay);
}

double noise_tokens(const NoiseScale *n) {
    if (n->weight == 0.0) return NAN;
    if (n->g2 <= 0.0) return INFINITY;
    return n->s > 0.0 ? n->s / n->g2 : 0.0;
}

Shown grouped_text(double n) {
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

void noise_verdict(char *out, size_t size, double noise, double batch, bool decayed) {
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
