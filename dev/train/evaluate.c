// Evaluation: the loss on held-out text, and HellaSwag (train.h).
#include "train.h"

bool evaluate(Eval *e, Run *r, const Loader *l, size_t tokens, Error *err) {
    size_t T = l->T, windows = tokens == 0 ? l->n_windows : (tokens + T - 1) / T;
    windows = min_size(windows, l->n_windows);
    size_t every = l == &r->val ? 1 : l->n_windows / windows;
    bool scores = r->floor.known && l == &r->val;
    size_t most = r->spec.B, turn = r->data.size * most, own = r->data.rank * most;
    bool ending = r->stopping;
    Progress progress = progress_begin("evaluating", (double)windows);
    memset(e, 0, sizeof *e);
    for (size_t w = own; w < windows + own && (ending || !stop_is_asked(r)); w += turn) {
        bool counts = w < windows;
        size_t first = counts ? w : 0, B = min_size(most, windows - first);
        for (size_t b = 0; b < B; b++)
            if (!loader_window(l, every*(first + b), r->inputs + b*T, r->targets + b*T, err))
                return false;
        model_forward(r->model, r->inputs, (int)B, (int)T, 0);
        double loss = model_loss(r->model, r->losses, r->targets, B*T);
        if (counts) e->loss += loss;
        for (size_t b = 0; counts && scores && b < B; b++)
            floor_score_window(&e->whole, &r->floor, l, first + b, r->losses + b*T);
        progress_show(&progress, (double)min_size(w - own + turn, windows));
    }
    progress_end(&progress);
    double sums[] = { e->loss, e->whole.loss, e->whole.floor, (double)e->whole.tokens };
    comm_add(&r->data, sums, 4);
    e->loss = sums[0];
    e->whole.loss = sums[1];
    e->whole.floor = sums[2];
    e->whole.tokens = (size_t)sums[3];
    e->tokens = windows * T;
    e->loss = fabs(e->loss / (double)e->tokens);
    return true;
}

// Evaluates the weights; with --eval-train also on training tokens, as many; with --average-tokens
// also the averaged weights. A signal in one evaluation ends it and skips the next ones.
static void evaluate_all(Eval *e, Eval *train, Eval *average, Run *r) {
    Error err;
    bool ending = r->stopping;
    if (!evaluate(e, r, &r->val, (size_t)r->o.eval_tokens, &err)) die("%s", err.text);
    if (r->stopping && !ending) return;
    if (r->o.eval_train && !evaluate(train, r, &r->train, e->tokens, &err)) die("%s", err.text);
    if (r->o.average_tokens == 0 || (r->stopping && !ending)) return;
    average_begin(r->params);
    bool read = evaluate(average, r, &r->val, (size_t)r->o.eval_tokens, &err);
    average_end(r->params);
    if (!read) die("%s", err.text);
}

void report_eval(Run *r) {
    Eval e, train, average;
    bool ending = r->stopping;
    evaluate_all(&e, &train, &average, r);
    if (r->stopping && !ending) return;
    double whole = e.whole.loss / (double)e.whole.tokens;
    double whole_floor = e.whole.floor / (double)e.whole.tokens;
    log_event(r, "eval");
    log_int(&r->log, "eval_tokens", (int64_t)e.tokens);
    log_num(&r->log, "elapsed", r->seconds);
    log_num(&r->log, "val_loss", e.loss);
    if (r->o.average_tokens > 0) log_num(&r->log, "val_loss_average", average.loss);
    if (r->o.eval_train) log_num(&r->log, "train_eval_loss", train.loss);
    if (e.whole.tokens > 0) log_num(&r->log, "whole_loss", whole);
    if (e.whole.tokens > 0) log_num(&r->log, "whole_floor", whole_floor);
    log_line_end(r);

    printf("%seval %5llu", isatty(STDOUT_FILENO) ? "\r\033[K" : "", (unsigned long long)r->step);
    if (r->length.steps >= 0) printf("/%lld", (long long)r->length.steps);
    printf("  validation loss %.4f", e.loss);
    if (r->o.average_tokens > 0) printf(", of the averaged weights %.4f", average.loss);
    if (r->o.eval_train) printf(", training loss %.4f", train.loss);
    double guess = log((double)r->spec.c.V);
    if (e.whole.tokens > 0)
        printf("; on whole tales %.4f: %.0f%% of the way from a guess to the best, %.4f", whole,
               100.0 * fmax(0.0, guess - whole) / (guess - whole_floor), whole_floor);
    printf("  (%s)\n", duration_text(r->seconds).text);
    fflush(stdout);
    r->eval_loss = e.loss;
    r->eval_step = r->step;
    if (r->skipped_in_a_row == 0) r->good_loss = e.loss;
    if (r->step > r->looked_step) show_noise(r);
}

// Runs HellaSwag's examples first ... first+count-1, a micro-batch of rows at a time, and adds the
// answers to the score; see dev/train/hellaswag.c.
static void hellaswag_evaluate(HellaSwagScore *score, Run *r, size_t first, size_t count) {
    const HellaSwag *h = &r->hellaswag;
    size_t end = ENDINGS * (first + count), most = r->spec.B;
    for (size_t row = ENDINGS * first; row < end; row += most) {
        size_t B = min_size(most, end - row);
        int T = hellaswag_batch(r->inputs, r->targets, h, row, B, r->T);
        model_forward(r->model, r->inputs, (int)B, T, 0);
        model_loss(r->model, r->losses, r->targets, B*T);
        hellaswag_keep(h, r->losses, row, B, T);
    }
    hellaswag_score(score, h, first, count);
}

// Runs the next examples from `done` on, `part` of them on each rank. A rank with none left reruns
// the first examples and discards the answers: at ZeRO stage 3 every rank must join every forward
// pass.
static void hellaswag_turn(Run *r, HellaSwagScore *score, size_t done, size_t part) {
    const HellaSwag *h = &r->hellaswag;
    HellaSwagScore own = { 0, 0, 0 };
    size_t first = done + (size_t)r->data.rank*part;
    bool counts = first < h->n;
    if (!counts) first = 0;
    hellaswag_evaluate(&own, r, first, min_size(part, h->n - first));
    double sums[] = { (double)own.examples, (double)own.correct, (double)own.correct_norm };
    for (int i = 0; i < 3; i++) if (!counts) sums[i] = 0.0;
    comm_add(&r->data, sums, 3);
    score->examples += (size_t)sums[0];
    score->correct += (size_t)sums[1];
    score->correct_norm += (size_t)sums[2];
}

void report_hellaswag(Run *r) {
    const HellaSwag *h = &r->hellaswag;
    HellaSwagScore s = { 0, 0, 0 };
    size_t B = (size_t)r->o.micro_batch, part = B < ENDINGS ? 1 : B / ENDINGS;   // fills a batch
    Progress progress = progress_begin("hellaswag", (double)h->n);
    while (s.examples < h->n && !stop_is_asked(r)) {
        hellaswag_turn(r, &s, s.examples, part);
        progress_show(&progress, (double)s.examples);
    }
    progress_end(&progress);
    double seconds = seconds_now() - progress.start;
    printf("%shellaswag  ", isatty(STDOUT_FILENO) ? "\r\033[K" : "");
    if (s.examples < h->n) {
        printf("stopped after %zu of %zu examples\n", s.examples, h->n);
        return;
    }
    r->hellaswag_step = r->step;
    double acc = (double)s.correct / (double)h->n, acc_norm = (double)s.correct_norm / (double)h->n;
    printf("acc_norm %.4f of %zu examples (%s)\n", acc_norm, h->n, duration_text(seconds).text);
    fflush(stdout);
    log_event(r, "hellaswag");
    log_int(&r->log, "examples", (int64_t)h->n);
    log_int(&r->log, "cut", (int64_t)hellaswag_count_cut(h, r->T));
    log_num(&r->log, "acc", acc);
    log_num(&r->log, "acc_norm", acc_norm);
    log_num(&r->log, "seconds", seconds);
    log_line_end(r);
}
