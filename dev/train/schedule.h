// The learning rate's schedule and the length of a run: pure rules.
//
// Schedules count tokens, so that runs with different batch sizes can share one axis.
#pragma once
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include "../base/period.h"            // Period, period_due

// ---- learning rate ----

typedef enum { LR_CONSTANT, LR_LINEAR, LR_COSINE, LR_WSD } LrRule;

typedef struct {
    LrRule rule;
    double lr;                     // the highest rate, reached at the end of the warm-up
    double final_frac;             // a decaying rate ends at lr * final_frac
    uint64_t warmup;               // tokens
    uint64_t horizon;              // tokens of the whole run; unused by LR_CONSTANT
} LrSchedule;

// The learning rate of an update; `tokens` counts the tokens seen, including this update's.
//   warm-up   lr * tokens / warmup, so the first update is not zero (Goyal et al. 2017, 2.2)
// then, with p going from 0 at the end of the warm-up to 1 at the horizon,
//   constant  lr
//   linear    final + (lr - final) * (1 - p)
//   cosine    final + (lr - final) * (1 + cos(pi p)) / 2   (Loshchilov and Hutter 2017, eq. 5)
//   wsd       lr, then linear to final over the last fifth of the horizon, or what the warm-up
//             leaves of it                                 (Hu et al. 2024, MiniCPM, section 4)
// From the horizon on the rate is exactly final = lr * final_frac. A warm-up longer than the
// horizon still runs in full.
static inline double lr_at(const LrSchedule *s, uint64_t tokens) {
    if (tokens < s->warmup) return s->lr * ((double)tokens / (double)s->warmup);
    if (s->rule == LR_CONSTANT) return s->lr;

    double final_lr = s->lr * s->final_frac;
    uint64_t start = s->warmup, stable_end = s->horizon - s->horizon / 5;
    if (s->rule == LR_WSD && start < stable_end) start = stable_end;
    if (tokens >= s->horizon) return final_lr;
    if (tokens <= start) return s->lr;

    double p = (double)(tokens - start) / (double)(s->horizon - start);
    double keep = s->rule == LR_COSINE ? 0.5 * (1.0 + cos(3.14159265358979323846 * p)) : 1.0 - p;
    return final_lr + (s->lr - final_lr) * keep;
}

// ---- the length of a run ----

typedef struct {
    int64_t steps, tokens;         // of the whole run; -1: no limit
    double target_loss;            // 0: none
} RunLength;

// True if the run has reached its length or target; `loss` is the latest validation loss, or NaN.
static inline bool run_done(const RunLength *run, uint64_t steps, uint64_t tokens, double loss) {
    if (run->steps >= 0 && steps >= (uint64_t)run->steps) return true;
    if (run->tokens >= 0 && tokens >= (uint64_t)run->tokens) return true;
    return run->target_loss > 0.0 && loss <= run->target_loss;
}

// The fraction of the run that is done, 0 to 1; NaN if only a target loss ends it.
static inline double run_progress(const RunLength *run, uint64_t steps, uint64_t tokens) {
    double part = NAN;
    if (run->steps >= 0) part = run->steps ? (double)steps / (double)run->steps : 1.0;
    if (run->tokens >= 0) part = run->tokens ? (double)tokens / (double)run->tokens : 1.0;
    return part > 1.0 ? 1.0 : part;
}
