// What stands around an update: which samples, what learning rate, what came of it; and what stands
// around all of them: when to evaluate, sample, save, stop.
//
//     run_begin(r);
//     while (run_goes_on(r)) {
//         step_begin(r, &s); ... step_data(r, &s, i); ... step_end(r, &s, &totals);
//         if (eval_is_due(r)) report_eval(r);   ...
//     }
//     return run_end(r);
#pragma once
#include "../ranks/diloco.h"           // diloco_end_round
#include "evaluate.h"                  // report_eval, report_hellaswag
#include "sample.h"                    // report_sample
#include "save.h"                      // save

// ---- an update ----

// Batch size, learning rate and this rank's samples. The ranks take contiguous blocks of the same
// samples that one rank alone would take. Schedules count tokens, this update's included.
static inline void step_begin(Run *r, Step *s) {
    const BatchSchedule *b = &r->o.batches;
    uint64_t share, tokens;
    memset(s, 0, sizeof *s);
    s->start = seconds_now();
    s->comm = comm_counters(&r->comm);
    r->batch = r->next_batch = batch_at(b, r->tokens, r->next_batch);
    tokens = r->tokens + r->batch;
    s->B = r->o.micro_batch;
    s->T = r->T;
    s->samples = (size_t)r->batch / (size_t)r->T;
    loader_rank_block(&s->first_sample, &share, r->train.samples, s->samples, r->comm.rank,
                      r->comm.size);
    s->micro_batches = share / (size_t)s->B;
    // The loss is the mean over the batch: of all ranks, or of this one with --outer-every.
    uint64_t ranks = r->o.outer_every ? (uint64_t)r->comm.size : 1;
    s->scale = (float)(1.0 / (double)(r->batch / ranks));
    s->scope = round_is_over(r, r->step + 1, tokens) ? ALL_RANKS : THIS_RANK;
    s->lr = batch_lr((BatchLr)r->o.batch_lr, lr_at(&r->lr, tokens), b, r->batch);
    double beta2 = batch_beta2((BatchBeta2)r->o.batch_beta2, r->o.beta2, b, r->batch);
    AdamW adamw = { (float)s->lr, (float)r->o.beta1, (float)beta2, 1e-8f,
                    (float)r->o.weight_decay, 0.0 };
    if (r->o.batch_beta2 == BATCH_BETA2_HALFLIFE)        // skipped updates left out
        adamw.v_age = (double)tokens / (double)r->batch
                    * ((double)(r->adam_step + 1) / (double)(r->step + 1));
    s->adamw = adamw;
}

// The i-th micro-batch's tokens and targets, to r->inputs and r->targets.
static inline void step_data(Run *r, Step *s, size_t i) {
    Error err;
    double before = seconds_now();
    uint64_t first = s->first_sample + i*(uint64_t)s->B;
    if (!loader_batch(&r->train, first, s->B, r->inputs, r->targets, &err)) die("%s", err.text);
    s->costs.data += seconds_now() - before;
    shards_micro_batch(r->shards, i, s->micro_batches);
}

// Notes what this update's gradients say about their noise: `big` is the squared norm of the mean
// gradient, `smalls` the sum of those of its parts, each scaled as a part of it. An adaptive batch
// takes its next size from it.
static inline void measure_noise(Run *r, Step *s, double big, double smalls) {
    size_t micro_batches = (size_t)(r->batch / r->o.batches.unit);
    double parts = (double)(shards_smalls_count(r->shards, micro_batches) * (size_t)r->comm.size);
    GradientNorms n = { parts * smalls, big, (double)r->batch / parts, (double)r->batch };
    s->norms = n;                      // a small gradient is `parts` times what it adds to the mean
    if (!isfinite(n.small) || !isfinite(n.big)) return;
    noise_add(&r->noise, noise_estimate(&n));
    r->next_batch = batch_adapt(&r->o.batches, r->batch, norm_test_batch(&n, r->o.batches.eta));
}

// Where the update's time went.
static inline void step_costs(Run *r, Step *s) {
    Costs *k = &s->costs;
    k->optimizer = model_optimizer_seconds(r->model);
    k->seconds = seconds_now() - s->start;
    CommCounters after = comm_counters(&r->comm);
    k->comm = after.waited - s->comm.waited;
    k->compute = k->seconds - k->data - k->comm - k->optimizer;
    k->busy = after.busy - s->comm.busy;
    k->bytes_sent = after.bytes_sent - s->comm.bytes_sent;
    k->updates = 1;
}

// Loss and gradient norm of all ranks (within DiLoCo's round: of this one), counters, noise scale,
// the end of DiLoCo's round, seconds.
static inline void step_end(Run *r, Step *s, const Totals *t) {
    double tokens = (double)r->batch;
    bool apart = r->o.outer_every > 0;
    r->step++;
    r->tokens += r->batch;
    r->train.samples += s->samples;
    if (apart && s->scope == THIS_RANK) tokens /= r->comm.size;
    if (t->stop) r->stopping = *stop_signal() ? *stop_signal() : SIGTERM;
    s->loss = fabs(t->loss / tokens);                    // x86 gives its NaN a minus
    s->grad_norm = fabs(sqrt(t->squares));
    if (r->shards->measure) measure_noise(r, s, t->squares, t->smalls);
    bool finite = isfinite(s->grad_norm);
    r->adam_step += finite;
    r->skipped += !finite;
    r->skipped_in_a_row = finite ? 0 : r->skipped_in_a_row + 1;
    if (apart && s->scope == ALL_RANKS)
        diloco_end_round(r->shards, (float)r->o.outer_lr, (float)r->o.outer_momentum);
    step_costs(r, s);
    r->seconds += seconds_now() - r->clock;
}

// ---- the run ----

// A run that is resumed at an update which was evaluated may have reached its target there.
static inline bool evaluated_at_save(const Run *r) {
    return r->o.target_loss > 0 && r->step > 0
        && period_due(&r->o.eval_every, r->step - 1, r->step, r->tokens - r->batch, r->tokens);
}

static inline void run_begin(Run *r) {
    r->eval_loss = NAN;
    catch_stop_signals();
    comm_barrier(&r->comm);            // nobody trains before all ranks catch them
    log_start(r);
    r->looked_step = r->step;
    r->looked_tokens = r->tokens;
    if (run_done(&r->length, r->step, r->tokens, NAN) || evaluated_at_save(r)) report_eval(r);
}

// Whether there is another update to make.
static inline bool run_goes_on(Run *r) {
    if (round_is_over(r, r->step, r->tokens)) {
        r->looked_step = r->step;
        r->looked_tokens = r->tokens;
    }
    r->clock = seconds_now();
    return !r->stopping && !run_done(&r->length, r->step, r->tokens, r->eval_loss);
}

// Evaluations, samples and checkpoints wait until the ranks have the same model.
static inline bool is_due(const Run *r, const Period *every) {
    return round_is_over(r, r->step, r->tokens)
        && period_due(every, r->looked_step, r->step, r->looked_tokens, r->tokens);
}

// The last update is always evaluated, unless a signal ends the run early; a target loss is never
// passed unseen.
static inline bool eval_is_due(const Run *r) {
    bool last = run_done(&r->length, r->step, r->tokens, NAN);
    if (r->stopping && r->o.target_loss == 0) return false;
    return last || is_due(r, &r->o.eval_every);
}

// However the run ends, it is saved. Returns the process's exit status.
static inline int run_end(Run *r) {
    bool saved = r->step == 0 || save(r);
    if (r->hellaswag.n > 0 && !r->stopping) report_hellaswag(r);
    log_finish(r);
    show_end(r);
    if (r->stopping) return 128 + r->stopping;
    return saved ? 0 : 1;
}
