// The learning rate's schedule and the length of a run: pure rules (train.h).
#include "train.h"

// ---- learning rate ----

double lr_at(const LrSchedule *s, uint64_t tokens) {
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

bool run_done(const RunLength *run, uint64_t steps, uint64_t tokens, double loss) {
    if (run->steps >= 0 && steps >= (uint64_t)run->steps) return true;
    if (run->tokens >= 0 && tokens >= (uint64_t)run->tokens) return true;
    return run->target_loss > 0.0 && loss <= run->target_loss;
}

double run_progress(const RunLength *run, uint64_t steps, uint64_t tokens) {
    double part = NAN;
    if (run->steps >= 0) part = run->steps ? (double)steps / (double)run->steps : 1.0;
    if (run->tokens >= 0) part = run->tokens ? (double)tokens / (double)run->tokens : 1.0;
    return part > 1.0 ? 1.0 : part;
}
