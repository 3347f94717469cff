// Evaluation: the loss on held-out text (train.h).
#include "train.h"

Eval evaluate(Run *r, const Loader *l, size_t tokens) {
    Eval e;
    Error err;
    size_t T = l->T, windows = tokens == 0 ? l->n_windows : (tokens + T - 1) / T;
    windows = min_size(windows, l->n_windows);
    size_t every = l == &r->val ? 1 : l->n_windows / windows;
    bool scores = r->floor.known && l == &r->val;
    size_t most = r->spec.B, turn = r->data.size * most, own = r->data.rank * most;
    bool ending = r->stopping;
    Progress progress = progress_begin("evaluating", (double)windows);
    memset(&e, 0, sizeof e);
    for (size_t w = own; w < windows + own && (ending || !stop_is_asked(r)); w += turn) {
        bool counts = w < windows;
        size_t first = counts ? w : 0, B = min_size(most, windows - first);
        for (size_t b = 0; b < B; b++)
            if (!loader_window(l, every*(first + b), r->inputs + b*T, r->targets + b*T, &err))
                die("%s", err.text);
        model_forward(r->model, r->inputs, (int)B, (int)T, 0);
        double loss = model_loss(r->model, r->losses, r->targets, B*T);
        if (counts) e.loss += loss;
        for (size_t b = 0; counts && scores && b < B; b++)
            floor_score_window(&e.whole, &r->floor, l, first + b, r->losses + b*T);
        progress_show(&progress, (double)min_size(w - own + turn, windows));
    }
    progress_end(&progress);
    double sums[] = { e.loss, e.whole.loss, e.whole.floor, (double)e.whole.tokens };
    comm_add(&r->data, sums, 4);
    e.tokens = windows * T;
    e.loss = fabs(sums[0] / (double)e.tokens);
    e.whole.loss = sums[1];
    e.whole.floor = sums[2];
    e.whole.tokens = (size_t)sums[3];
    return e;
}

// Evaluates the weights; with --eval-train also on training tokens, as many; with --average-tokens
// also the averaged weights. A signal in one evaluation ends it and skips the next ones.
static void evaluate_all(Eval *e, Eval *train, Eval *average, Run *r) {
    bool ending = r->stopping;
    *e = evaluate(r, &r->val, (size_t)r->o.eval_tokens);
    if (r->stopping && !ending) return;
    if (r->o.eval_train) *train = evaluate(r, &r->train, e->tokens);
    if (r->o.average_tokens == 0 || (r->stopping && !ending)) return;
    average_begin(r->params);
    *average = evaluate(r, &r->val, (size_t)r->o.eval_tokens);
    average_end(r->params);
}

void report_eval(Run *r) {
    Eval e, train, average;
    memset(&train, 0, sizeof train);
    memset(&average, 0, sizeof average);
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
        printf("; on whole tales %.4f, %.0f%% of the way from a guess to their entropy, %.4f",
               whole, 100.0 * fmax(0.0, guess - whole) / (guess - whole_floor), whole_floor);
    printf("  (%s)\n", duration_text(r->seconds).text);
    fflush(stdout);
    r->eval_loss = e.loss;
    r->eval_step = r->step;
    if (r->skipped_in_a_row == 0) r->good_loss = e.loss;
    if (r->step > r->looked_step) show_noise(r);
}
