// Reports of a run: the log for programs, lines on the terminal for people (train.h).
#include "train.h"

enum { MAX_SKIPPED_IN_A_ROW = 100 };

// ---- the log ----

void log_line_end(Run *r) {
    Error err;
    if (!log_end(&r->log, &err)) die("%s", err.text);
}

void log_event(Run *r, const char *event) {
    log_begin(&r->log, event);
    log_int(&r->log, "step", (int64_t)r->step);
    log_int(&r->log, "tokens", (int64_t)r->tokens);
}

void log_start(Run *r) {
    const Config *c = &r->spec.c;
    PlanBytes bytes = rank_bytes(&r->spec, r->comm.size);
    log_begin(&r->log, r->step == 0 ? "start" : "resume");
    log_int(&r->log, "step", (int64_t)r->step);
    train_options_echo(&r->log, &r->o);
    log_int(&r->log, "parameters", (int64_t)gpt2_n_params(c));
    log_int(&r->log, "model_layers", c->L);
    log_int(&r->log, "model_heads", c->NH);
    log_int(&r->log, "model_channels", c->C);
    log_int(&r->log, "vocab", c->V);
    log_int(&r->log, "T", r->T);
    log_int(&r->log, "threads_used", thread_count());
    log_int(&r->log, "ranks", r->comm.size);
    log_int(&r->log, "machines", r->comm.hosts);
    plan_log_bytes(&r->log, &bytes);
    log_text(&r->log, "precision", machine_precision());
    log_num(&r->log, "peak_flops", r->peak_flops);
    log_num(&r->log, "datasheet_flops", r->datasheet_flops);
    log_num(&r->log, "flops_per_token", gpt2_flops_per_token(c, r->T));
    log_num(&r->log, "floor", r->floor.known ? r->floor.nats / (double)r->floor.tokens : NAN);
    log_line_end(r);
}

// Bus bandwidth as nccl-tests define it: bytes that a rank sends per second of communication.
static double bus_gb_per_s(const Costs *k) { return 1e-9 * (double)k->bytes_sent / k->busy; }

static void log_noise(Run *r, const Step *s) {
    const GradientNorms *n = &s->norms;
    NoiseEstimate e = noise_estimate(n), adam = noise_estimate(&s->norms_adam);
    log_num(&r->log, "noise_scale", noise_tokens(&r->noise));
    log_num(&r->log, "noise_g2", e.g2);
    log_num(&r->log, "noise_s", e.s);
    if (s->norms_adam.big_tokens > 0.0) {
        log_num(&r->log, "noise_scale_adam", noise_tokens(&r->noise_adam));
        log_num(&r->log, "noise_g2_adam", adam.g2);
        log_num(&r->log, "noise_s_adam", adam.s);
    }
    log_num(&r->log, "noise_small_batch", n->small_tokens);
    log_num(&r->log, "noise_smalls", n->big_tokens / n->small_tokens);
}

static void log_step(Run *r, const Step *s) {
    const Costs *k = &s->costs;
    double tok_per_s = (double)r->batch / k->seconds;
    double flops = tok_per_s * gpt2_flops_per_token(&r->spec.c, r->T) / r->comm.size;
    log_event(r, isfinite(s->grad_norm) ? "step" : "skip");
    log_int(&r->log, "samples", (int64_t)r->train.samples);
    log_num(&r->log, "loss", s->loss);
    log_num(&r->log, "lr", s->lr);
    log_num(&r->log, "grad_norm", s->grad_norm);
    log_int(&r->log, "batch_tokens", (int64_t)r->batch);
    if (measures_noise(&r->o)) log_noise(r, s);
    log_num(&r->log, "seconds", k->seconds);
    log_num(&r->log, "seconds_data", k->data);
    log_num(&r->log, "seconds_compute", k->compute);
    log_num(&r->log, "seconds_comm", k->comm);
    log_num(&r->log, "seconds_optimizer", k->optimizer);
    if (r->comm.size > 1) log_int(&r->log, "bytes_sent", (int64_t)k->bytes_sent);
    if (r->comm.hosts > 1)
        log_int(&r->log, "bytes_across", (int64_t)k->bytes_across);
    if (r->comm.size > 1) log_num(&r->log, "bus_gb_per_s", bus_gb_per_s(k));
    log_num(&r->log, "tok_per_s", tok_per_s);
    log_num(&r->log, "mfu", flops / r->peak_flops);
    log_num(&r->log, "mfu_datasheet", flops / r->datasheet_flops);
    if (!isfinite(s->grad_norm)) log_int(&r->log, "skipped", r->skipped);
    log_line_end(r);
}

void log_finish(Run *r) {
    log_begin(&r->log, "end");
    log_text(&r->log, "reason", r->stopping ? "interrupted" : r->diverged ? "diverged" : "done");
    log_int(&r->log, "step", (int64_t)r->step);
    log_int(&r->log, "tokens", (int64_t)r->tokens);
    log_int(&r->log, "skipped", r->skipped);
    log_num(&r->log, "elapsed", r->seconds);
    log_line_end(r);
}

// ---- the terminal ----

// The progress line. A narrow terminal loses, one after the other: the floor, the norm, the batch;
// then the number of steps and half of the names.
enum { STEP_LINE_FORMS = 5 };

static void step_line(char *line, size_t size, const Run *r, const Step *s, int form) {
    double part = run_progress(&r->length, r->step, r->tokens);
    char of[32] = "", floor[32] = "", norm[32] = "", batch[100] = "";
    if (form < 4 && r->length.steps >= 0)
        snprintf(of, sizeof of, "/%lld", (long long)r->length.steps);
    if (form < 3 && r->o.batches.rule != BATCH_CONSTANT)
        snprintf(batch, sizeof batch, "  batch %s", count_text((double)r->batch).text);
    if (form < 2) snprintf(norm, sizeof norm, "  norm %5.2f", s->grad_norm);
    if (form < 1 && r->floor.known)
        snprintf(floor, sizeof floor, "  floor %.3f", r->floor.nats / (double)r->floor.tokens);
    snprintf(line, size, form < 4 ? "step %5llu%s  loss %.3f%s%s%s  %s tok/s  %s left"
                                  : "step %llu%s loss %.3f%s%s%s %s/s %s left",
             (unsigned long long)r->step, of, s->loss, floor, norm, batch,
             count_text((double)r->batch / s->costs.seconds).text,
             duration_text(r->seconds / part * (1.0 - part)).text);
}

// A terminal shows the progress line updated in place; a file gets one line every 10 s.
static void show_step(Run *r, const Step *s) {
    bool terminal = isatty(STDOUT_FILENO), last = run_done(&r->length, r->step, r->tokens, NAN);
    if (!last && r->step > 1 && r->seconds - r->shown_at < (terminal ? 0.1 : 10.0)) return;
    r->shown_at = r->seconds;
    char line[640];                    // a diverged loss may have 300 digits
    int form = 0, room = terminal ? terminal_columns() - 1 : (int)sizeof line;  // must not wrap
    do step_line(line, sizeof line, r, s, form);
    while ((int)strlen(line) > room && ++form < STEP_LINE_FORMS);
    if (terminal) printf("\r%.*s\033[K", room, line);
    else printf("%s\n", line);
    fflush(stdout);
}

void show_noise(const Run *r) {
    char verdict[256];
    if (!r->o.noise_scale) return;
    double noise = noise_tokens(&r->noise), batch = (double)r->batch;
    bool decayed = r->tokens > r->lr.warmup && lr_at(&r->lr, r->tokens) < 0.5 * r->lr.lr;
    noise_verdict(verdict, sizeof verdict, noise, batch, decayed);
    printf("noise       %s (in sequences: batch %.0f, noise scale %.3g)\n", verdict, batch / r->T,
           noise / r->T);
    fflush(stdout);
}

// The mean cost of an update, with several ranks.
static void show_costs(const Run *r) {
    const Costs *k = &r->costs;
    if (r->comm.size == 1 || k->updates == 0) return;
    double ms = 1e3 / (double)k->updates;
    printf("of %.1f ms per update, %.1f ms waited for the network (it was busy for %.1f); %.3g MB "
           "sent by a rank, at %.3g GB/s\n", ms * k->seconds, ms * k->comm, ms * k->busy,
           1e-6 * (double)k->bytes_sent / (double)k->updates, bus_gb_per_s(k));
}

// The update's seconds, by what they were spent on.
static void step_costs(Run *r, Step *s) {
    Costs *k = &s->costs;
#ifdef TRAINS_ON_GPU
    k->optimizer = model_optimizer_seconds(r->model);
#endif
    k->seconds = seconds_now() - s->start;
    CommCounters after = s->comm;
    if (r->comm.size > 1) after = comm_counters(&r->comm);
#ifndef TRAINS_ON_GPU
    k->optimizer = k->seconds - (s->computed - s->start) - (after.waited - s->waited);
#endif
    k->comm = after.waited - s->comm.waited;
    k->compute = k->seconds - k->data - k->comm - k->optimizer;
    k->busy = after.busy - s->comm.busy;
    k->bytes_sent = after.bytes_sent - s->comm.bytes_sent;
    k->bytes_across = after.bytes_across - s->comm.bytes_across;
    k->updates = 1;
    r->seconds += seconds_now() - r->clock;
}

static void costs_add(Costs *sum, const Costs *k) {
    sum->seconds += k->seconds;
    sum->comm += k->comm;
    sum->busy += k->busy;
    sum->bytes_sent += k->bytes_sent;
    sum->updates += k->updates;
}

// What to do about a run that has diverged: a lower rate, from the best checkpoint if there is one.
// A validation loss above a uniform guess's means that the checkpoint has diverged too.
typedef struct { char text[400]; } Advice;

static Advice diverged_advice(const Run *r) {
    Advice advice = { "the run has diverged; lower --lr" };
    Saved *all = NULL;
    size_t n = 0, best;
    Error err;
    if (!r->o.out || !checkpoint_list_whole(&all, &n, r->o.out, &err) || n == 0) return advice;
    best = checkpoint_best(all, n);
    bool known = best < n;
    char *out = shell_word(r->o.out);
    if (strlen(out) <= 200 && (!known || all[best].val_loss < log((double)r->spec.c.V)))
        snprintf(advice.text, sizeof advice.text, "the run has diverged; continue from an earlier "
                 "checkpoint with a lower rate: ./%s --out %s --resume=%lld --lr %.2g",
                 *program_name(), out, (long long)all[known ? best : 0].step, r->o.lr / 10.0);
    free(out);
    free(all);
    return advice;
}

void show_end(const Run *r) {
    show_costs(r);
    if (r->diverged)
        warn("step %llu: the last %lld updates were skipped, and nothing was saved after them: %s",
             (unsigned long long)r->step, (long long)r->skipped_in_a_row, diverged_advice(r).text);
    if (r->diverged) return;
    if (r->stopping) printf("\nstopped after step %llu\n", (unsigned long long)r->step);
    if (!r->o.out || r->saved_step < 0) return;
    Saved best;
    best.val_loss = INFINITY;
    if (checkpoint_best_in(&best, r->o.out))
        printf("best        validation loss %.4f after step %lld: %s/best\n", best.val_loss,
               (long long)best.step, r->o.out);
    bool better = best.val_loss < r->good_loss - 0.01;       // clearly
    printf("saved in %s: %s%s; next, for example\n", r->o.out, r->o.log ? "" : "log.jsonl and ",
           latest_name(r->o.out).text);
    char *out = shell_word(r->o.out), *log = shell_word(r->o.log ? r->o.log : r->o.out);
    if (r->stopping) printf("  ./%s --resume --out %s\n", *program_name(), out);
    else printf("  ./%s --init %s%s --generate \"%s\"\n", *program_name(), out,
                better ? "/best" : "", r->tokenizer.vocab_size > 0 ? "Once upon a time" : "0 1 2");
    printf("  scripts/plot.py %s --out loss.png\n", log);
    free(out);
    free(log);
}

// A bad batch makes one update skip; diverged weights make every update skip.
static void warn_skipped(const Run *r) {
    if (r->skipped_in_a_row == MAX_SKIPPED_IN_A_ROW)
        die("step %llu: no finite gradient in %d updates: %s", (unsigned long long)r->step,
            MAX_SKIPPED_IN_A_ROW, diverged_advice(r).text);
    if ((r->skipped_in_a_row & (r->skipped_in_a_row - 1)) == 0)      // the 1st, 2nd, 4th ...
        warn("step %llu: %s gradient is not finite; this update is skipped",
             (unsigned long long)r->step, r->o.outer_every ? "a worker's" : "the");
}

void report_step(Run *r, Step *s) {
    step_costs(r, s);
    costs_add(&r->costs, &s->costs);
    log_step(r, s);
    show_step(r, s);
    if (r->skipped_in_a_row > 0) warn_skipped(r);
}

// ---- before the first update ----

// The ranks, and the memory of each.
static void show_ranks(const Run *r) {
    static const char *const stages[] = { "data parallel", "ZeRO stage 1", "ZeRO stage 2",
                                          "ZeRO stage 3" };
    const Comm *c = &r->comm;
    if (c->size == 1) return;
    PlanBytes bytes = rank_bytes(&r->spec, c->size);
    printf("ranks   %d on %d machine%s (%s)", c->size, c->hosts, c->hosts == 1 ? "" : "s",
           c->layout);
    if (c->hosts > 1)
        printf(", in %s", r->data.far > 1 ? "two levels" : "one level");
    if (r->tensor.size > 1) printf(": tensor parallel, %d ranks a model", r->tensor.size);
    if (r->data.size == 1)
        printf("\n");
    else if (r->o.outer_every)
        printf(": DiLoCo, an outer step after every %lld updates of each worker\n",
               (long long)r->o.outer_every);
    else
        printf(": %s; gradients are sent in %s%s\n", stages[r->params->stage],
               r->o.comm_dtype == COMM_BF16 ? "bf16" : "fp32",
               r->o.exact_sum ? ", summed in one binary tree" : "");
    printf("memory  per rank %.1f MB of parameters, %.1f of gradients, %.1f of moments, %.1f of "
           "communication buffers\n", 1e-6 * bytes.params, 1e-6 * bytes.grads, 1e-6 * bytes.moments,
           1e-6 * bytes.passing);
}

// How the batch will change, and the learning rate with it.
static void show_schedule(const Run *r) {
    static const char *const lr[] = { "does not scale with the batch",
                                      "scales with the batch's square root",
                                      "scales linearly with the batch" };
    const BatchSchedule *b = &r->o.batches;
    if (b->rule == BATCH_CONSTANT) return;
    printf("        ");
    if (b->rule == BATCH_LINEAR)
        printf("growing to %s over %s tokens", grouped_text((double)b->batch).text,
               count_text((double)b->over).text);
    if (b->rule == BATCH_ADAPTIVE)
        printf("growing up to %s, when the noise exceeds %g times the gradient's norm",
               grouped_text((double)batch_most(b)).text, b->eta);
    for (int i = 0; i < b->n_stages; i++)
        printf("%s%s from %s tokens on", i ? ", " : "",
               grouped_text((double)batch_at(b, b->stages[i].tokens, 0)).text,
               count_text((double)b->stages[i].tokens).text);
    printf("; the learning rate %s", lr[r->o.batch_lr]);
    if (r->o.batch_lr)
        printf(", %g at %s", r->o.lr, grouped_text((double)b->batch).text);
    printf("\n");
}

// Warns of a batch far below the one that the learning rate was chosen for: a smaller batch has a
// noisier gradient, so --lr is likely too high.
static void warn_shrunk_batch(const Run *r) {
    double batch = (double)r->o.batches.batch, recipe = (double)r->o.recipe_batch;
    const char *whose = "the recipe's";
    if (r->o.recipe_batch == 0 && !r->o.resume && r->o.layers == OPTION_UNSET) {
        recipe = gpt2_recipe_batch(r->o.init, r->o.lr);
        whose = "GPT-3's at this size";
    }
    if (recipe < 8.0*batch) return;
    warn("--batch-tokens: %s is %.0f times less than %s, %s, for which --lr %g was chosen: try "
         "--lr %.2g (square-root scaling)", grouped_text(batch).text, recipe / batch, whose,
         grouped_text(recipe).text, r->o.lr, r->o.lr * sqrt(batch / recipe));
}

bool resumed_lr(LrSchedule *s, const Run *r, const TrainOptions *o, Error *err) {
    uint64_t steps = (uint64_t)o->steps;
    if (!train_options_lr(s, o, err)) return false;
    if (o->tokens <= 0 && o->steps > 0 && o->batches.rule != BATCH_ADAPTIVE)
        s->horizon = steps <= r->step ? r->tokens
                   : batch_tokens_after(&o->batches, r->tokens, steps - r->step);
    return true;
}

// Flags given on resuming may change the learning rate at once: a later end stretches its schedule.
static void note_changed_lr(const Run *r) {
    static const char *const names[] = { "lr", "lr-schedule", "warmup-tokens", "final-lr-frac",
                                         "steps", "tokens" };
    TrainOptions then = r->o;
    LrSchedule s;
    Error err;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int row = option_find(train_table, train_rows, names[i], strlen(names[i]));
        option_set_default(&then, &train_table[row]);
        then.given.set[row] = false;
    }
    if (!train_options_restore(&then, json_get(r->saved.root, "options"), &err)
        || !resumed_lr(&s, r, &then, &err)) return;
    double was = lr_at(&s, r->tokens), now = lr_at(&r->lr, r->tokens);
    if (fabs(now - was) <= 0.1 * was) return;
    printf("note    the learning rate was %.3g and is %.3g now, since flags given now change its "
           "schedule; to keep the rate: --lr %.3g --lr-schedule constant; or begin a new run with "
           "a warm-up: --init %s --warmup-tokens N\n", was,
           lr_at(&r->lr, r->tokens + r->batch), was, r->o.out);
}

// Apple's compiler has no OpenMP of its own, so a first build on a Mac leaves cores idle.
static void show_idle_cores(const Run *r) {
#ifndef _OPENMP
    if (ON_GPU || processors() <= r->comm.local_size) return;
    printf("note    built without OpenMP, so this run uses 1 of %d cores; for all of them: %s\n",
           processors(),
#ifdef __APPLE__
           "brew install libomp, then make clean and make");
#else
           "make clean, then make with a compiler that has OpenMP (gcc, or clang with libomp)");
#endif
#else
    (void)r;
#endif
}

void show_setup(const Run *r) {
    const Config *c = &r->spec.c;
    show_idle_cores(r);
    printf("model   %d layers, %d heads, %d channels, vocabulary %d, %d positions: %s parameters\n",
           c->L, c->NH, c->C, c->V, c->P, count_text((double)gpt2_n_params(c)).text);
    size_t asked = (size_t)r->o.eval_tokens, there = r->val.n_windows * (size_t)r->T;
    printf("data    %s tokens to train on, %s for validation",
           count_text((double)r->train.n_tokens).text, count_text((double)r->val.n_tokens).text);
    if (asked > 0 && asked < there)
        printf("; an evaluation reads the first %s", count_text((double)asked).text);
    printf("\n");
    printf("loss    %.3f nats per token for a uniform guess", log((double)c->V));
    if (r->floor.known)
        printf(", %.3f at best: the corpus's entropy", r->floor.nats / (double)r->floor.tokens);
    uint64_t batch = batch_at(&r->o.batches, r->tokens, r->norm_test.batch);
    printf("\nbatch   %llu tokens per update: ", (unsigned long long)batch);
    const char *each = r->tensor.size > 1 ? "groups of ranks" : "ranks";
    if (r->data.size > 1) printf("%d %s x ", r->data.size, each);
    printf("%llu x %d sequences of %d", (unsigned long long)(batch / r->o.batches.unit),
           r->o.micro_batch, r->T);
    if (!ON_GPU)
        printf("; %d thread%s%s, %s", thread_count(), thread_count() == 1 ? "" : "s",
               r->comm.size > 1 ? " each" : "", machine_precision());
    printf("\n");
    show_schedule(r);
    show_ranks(r);
    if (asked > there)
        printf("note    --eval-tokens asks for %zu, the validation split has %zu in whole windows; "
               "all are used\n", asked, there);
    int threads = thread_count() * r->comm.local_size;
    if (!ON_GPU && threads > processors())
        printf("note    %d threads are more than the %d processors here, which is slower\n",
               threads, processors());
    if (threads_asked(r->o.threads) > thread_count() && thread_count() > 1)
        printf("note    %d threads were asked for, but only %d a core are started\n",
               threads_asked(r->o.threads), THREADS_A_CORE);
    if (!r->o.out) printf("note    nothing is saved; --out DIR keeps the model\n");
    if (r->comm.size == 1 && r->o.zero > 0)
        printf("note    --zero %d has no effect: there is one rank\n", r->o.zero);
    size_t cut = hellaswag_count_cut(&r->hellaswag, r->T);
    if (cut > 0)
        printf("note    %zu of %zu HellaSwag examples are longer than %d tokens and lose their "
               "beginning\n", cut, r->hellaswag.n, r->T);
    if (r->step > 0)
        printf("resumed after step %llu, %s tokens\n", (unsigned long long)r->step,
               count_text((double)r->tokens).text);
    bool goes_on = r->step > 0 && r->o.steps != 0;    // 0: evaluates
    if (goes_on) note_changed_lr(r);
    if (goes_on && run_done(&r->length, r->step, r->tokens, NAN))
        printf("note    the run is already done; raise --%s to continue it\n",
               r->o.tokens > 0 ? "tokens" : "steps");
#ifdef TRAINS_ON_GPU
    machine_show(r->machine, r->model);
#endif
    fflush(stdout);                    // the first update may take a while
    warn_shrunk_batch(r);
}
