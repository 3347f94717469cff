// The training loop around the model's own steps: the samples, learning rate and results of an
// update; and when to evaluate, sample, save and stop (train.h).
#include "train.h"

// True if all ranks have the same parameters after this update: always, or at the end of a DiLoCo
// round.
static bool round_is_over(const Run *r, uint64_t step, uint64_t tokens) {
    return r->o.outer_every == 0 || step % (uint64_t)r->o.outer_every == 0
        || run_done(&r->length, step, tokens, NAN);
}

bool stop_is_asked(Run *r) {
    int all[COMM_MAX_RANKS], own = *stop_signal();
    comm_collect(&r->comm, all, &own, sizeof own);
    for (int i = 0; i < r->comm.size && !r->stopping; i++) r->stopping = all[i];
    return r->stopping != 0;
}

// ---- an update ----

// Bias correction of v as this update finds it, for the noise scale in Adam's metric; 0: v averages
// over too few updates yet. `age` is the number of updates of this beta2 that v averages over.
static float noise_correct_v(const Run *r, double beta2) {
    double made = (double)r->adam_step, age = made;
    if (made < NOISE_METRIC_FROM) return 0.0f;
    if (r->o.batches.rule != BATCH_CONSTANT)
        age = (double)r->tokens / (double)r->batch * (made / fmax((double)r->step, 1.0));
    return (float)(1.0 / (1.0 - pow(beta2, age)));
}

void step_begin(Run *r, Step *s) {
    const BatchSchedule *b = &r->o.batches;
    size_t share;
    memset(s, 0, sizeof *s);
    s->start = seconds_now();
    if (r->comm.size > 1) s->comm = comm_counters(&r->comm);

    // 1. How many tokens. The batch depends on the tokens before this update, the learning rate on
    //    those after it.
    r->batch = b->batch;
    if (b->rule != BATCH_CONSTANT) r->batch = batch_at(b, r->tokens, r->norm_test.batch);
    r->norm_test.batch = r->batch;
    uint64_t tokens = r->tokens + r->batch;

    // 2. Which samples: together the ranks take those that one rank alone would take, each a
    //    contiguous block.
    s->B = r->o.micro_batch;
    s->T = r->T;
    s->samples = (size_t)r->batch / (size_t)r->T;
    loader_rank_block(&s->first_sample, &share, r->train.samples, s->samples, r->data.rank,
                      r->data.size);
    s->micro_batches = share / (size_t)s->B;

    // 3. Whose mean: the loss is averaged over the batch of all ranks; inside a DiLoCo round of
    //    this rank.
    uint64_t ranks = r->o.outer_every ? (uint64_t)r->data.size : 1;
    s->scale = (float)(1.0 / (double)(r->batch / ranks));
    r->params->scope = r->o.outer_every && !round_is_over(r, r->step + 1, tokens) ? THIS_RANK
                                                                                : ALL_RANKS;
    // 4. The optimizer's settings.
    double beta2 = r->o.beta2, steps = (double)(r->adam_step + 1);       // skipped ones left out
    s->lr = lr_at(&r->lr, tokens);
    if (r->batch != b->batch) {
        s->lr = batch_lr((BatchLr)r->o.batch_lr, s->lr, b, r->batch);
        beta2 = batch_beta2(beta2, b, r->batch);
    }
    AdamW adamw = { (float)s->lr, (float)r->o.beta1, (float)beta2, ADAM_EPS,
                    (float)r->o.weight_decay, steps, steps };
    if (b->rule != BATCH_CONSTANT)
        adamw.v_steps = (double)tokens / (double)r->batch * (steps / (double)(r->step + 1));
    s->adamw = adamw;
    if (r->o.noise_scale) r->params->correct_v = noise_correct_v(r, beta2);
}

void next_batch(Run *r, Step *s, size_t i) {
    Error err;
    double before = seconds_now();
    uint64_t first = s->first_sample + i*(uint64_t)s->B;
    if (!loader_batch(&r->train, first, s->B, r->inputs, r->targets, &err)) die("%s", err.text);
    s->costs.data += seconds_now() - before;
    if (!r->params->alone) model_micro_batch(r->model, i, s->micro_batches);
}

void gradients_arrive(Run *r, Step *s) {
    if (r->train.cold)
        loader_announce(&r->train, s->first_sample + s->samples, s->micro_batches * (size_t)s->B);
    if (!r->params->alone) zero_wait_grads(r->params);
    s->computed = seconds_now();
#ifndef TRAINS_ON_GPU                  // a GPU times its optimizer itself
    if (r->comm.size > 1) s->waited = comm_counters(&r->comm).waited;
#endif
}

// Adds this update to the estimate of the noise scale, and sets the next adaptive batch. `big` is
// the squared norm of the mean gradient; norms[SMALLS] is the sum of the squared norms of its parts
// (micro-batches or ranks), each scaled so that the parts add up to the mean. The others are the
// same in Adam's metric, once the second moment is an average.
static void measure_noise(Run *r, Step *s, double big, const double *norms) {
    size_t micro_batches = (size_t)(r->batch / r->o.batches.unit);
    double parts = (double)(zero_smalls_count(r->params, micro_batches) * (size_t)r->data.size);
    GradientNorms n = { parts * norms[SMALLS], big, (double)r->batch / parts, (double)r->batch };
    s->norms = n;                      // a small gradient is `parts` times its part of the mean
    if (!isfinite(n.small) || !isfinite(n.big)) return;
    noise_add(&r->noise, noise_estimate(&n));
    if (zero_has_metric(r->params)) {
        n.small = parts * norms[SMALLS_ADAM];
        n.big = norms[BIG_ADAM];
        s->norms_adam = n;
        noise_add(&r->noise_adam, noise_estimate(&n));
    }
    double eta = r->o.batches.eta;
    batch_test(&r->norm_test, &r->o.batches, noise_tokens(&r->noise) / (eta*eta),
               r->tokens < r->lr.warmup);
}

// Adds the new weights to the averaged ones. An update's weights count in proportion to its tokens,
// and half as much --average-tokens later, whatever the batch. The sum of all shares so far is
// 1 - 2^(-tokens/N); dividing by it makes up for the beginning, as Adam's bias correction does.
static void average_weights(Run *r) {
    double half_life = (double)r->o.average_tokens;
    double share = (1.0 - exp2(-(double)r->batch / half_life))
                 / (1.0 - exp2(-(double)r->tokens / half_life));
    average_update(r->params, (float)(1.0 - share));
}

void step_end(Run *r, Step *s, const Totals *t) {
    double tokens = (double)r->batch;
    bool apart = r->o.outer_every > 0;
    r->step++;
    r->tokens += r->batch;
    r->train.samples += s->samples;
    if (apart && r->params->scope == THIS_RANK) tokens /= r->data.size;
    if (t->stop) r->stopping = (int)t->stop;
    s->loss = fabs(t->loss / tokens);                    // so that NaN prints without a sign
    s->grad_norm = fabs(sqrt(t->squares));
    if (r->params->measure) measure_noise(r, s, t->squares, t->norms);
    bool made = isfinite(s->grad_norm);
    r->adam_step += made;
    r->skipped += !made;
    if (made && r->params->stage > 0) zero_send_params(r->params);
    double skips = !made;
    if (apart && r->params->scope == ALL_RANKS) {
        diloco_end_round(r->params, (float)r->o.outer_lr, (float)r->o.outer_momentum);
        comm_add(&r->comm, &skips, 1);           // ranks save together, or none does
    }
    r->skipped_in_a_row = skips > 0.0 ? r->skipped_in_a_row + 1 : 0;
    if (r->o.average_tokens > 0) average_weights(r);
}

// ---- the run ----

// True if the update that a run resumes from was evaluated: the target loss may be reached already.
static bool evaluated_at_save(const Run *r) {
    return r->o.target_loss > 0 && r->step > 0
        && period_due(&r->o.eval_every, r->step - 1, r->step, r->tokens - r->batch, r->tokens);
}

void run_begin(Run *r) {
    show_setup(r);
    catch_stop_signals();
    comm_barrier(&r->comm);            // no rank trains before all ranks catch signals
    log_start(r);
    r->looked_step = r->step;
    r->looked_tokens = r->tokens;
    bool unseen = r->saved_step > 0 && isnan(r->good_loss) // saved before an evaluation
               && r->o.resume_from <= 0 && r->o.steps != 0;
    if (run_done(&r->length, r->step, r->tokens, NAN) || evaluated_at_save(r)) report_eval(r);
    if (unseen && !isnan(r->good_loss)) r->saved_step = 0; // run_end saves again, with the loss
}

// A DiLoCo round begins: a signal will wait for its end.
static void announce_round(Run *r) {
    int64_t every = r->o.outer_every, round = (int64_t)r->step / every, last = (round + 1) * every;
    char *text = r->stop_texts[round % 2];
    if (r->length.steps >= 0 && last > r->length.steps) last = r->length.steps;
    snprintf(text, sizeof *r->stop_texts,
             "\nstopping after this round's update %lld; again ends at once\n", (long long)last);
    *stop_message() = text;
}

bool run_goes_on(Run *r) {
    if (round_is_over(r, r->step, r->tokens)) {
        r->looked_step = r->step;
        r->looked_tokens = r->tokens;
        if (r->o.outer_every) announce_round(r);
    }
    r->clock = seconds_now();
    return !r->stopping && !run_done(&r->length, r->step, r->tokens, r->eval_loss);
}

bool is_due(const Run *r, const Period *every) {
    return round_is_over(r, r->step, r->tokens)
        && period_due(every, r->looked_step, r->step, r->looked_tokens, r->tokens);
}

bool eval_is_due(const Run *r) {
    bool last = run_done(&r->length, r->step, r->tokens, NAN);
    return !r->stopping && (last || is_due(r, &r->o.eval_every));
}

bool save_is_due(const Run *r) {
    return r->skipped_in_a_row == 0 && is_due(r, &r->o.save_every);
}

bool hellaswag_is_due(const Run *r) {
    return r->hellaswag.n > 0 && r->o.out && !r->stopping && save_is_due(r);
}

// Whether the parameters at the end are worse than earlier ones. After a skipped last update the
// validation loss decides: it must be no higher than at the last evaluation before the skipped
// updates, and than a uniform guess's.
static bool has_diverged(Run *r) {
    double made = (double)r->adam_step, guess = log((double)r->spec.c.V);
    if (r->skipped_in_a_row == 0) return false;          // on all ranks: a round is over
    if (r->eval_step != r->step) report_eval(r);
    comm_add(&r->comm, &made, 1);
    return made == 0.0 || !(r->eval_loss <= fmin(r->good_loss, guess));      // fmin ignores NaN
}

int run_end(Run *r) {
    r->diverged = has_diverged(r);
    if (r->step > 0 && !r->diverged) save(r);
    bool measured = r->hellaswag_step > 0 && r->hellaswag_step == r->step;
    if (r->hellaswag.n > 0 && !measured && !r->stopping && !r->diverged) report_hellaswag(r);
    log_finish(r);
    show_end(r);
    if (r->stopping) return 128 + r->stopping;
    return r->diverged ? 1 : 0;
}
