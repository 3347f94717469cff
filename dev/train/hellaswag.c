// HellaSwag: which of four endings continues a text? Chance scores 25%, people 95%, GPT-2 124M a
// little under 30% (Zellers et al., "HellaSwag: Can a Machine Really Finish Your Sentence?", ACL
// 2019, arXiv 1905.07830) (train.h).
#include "train.h"

// ---- reading ----

void hellaswag_close(HellaSwag *h) {
    free(h->examples);
    free(h->tokens);
    free(h->losses);
    memset(h, 0, sizeof *h);
}

// The label is a number, or a string that holds one: HellaSwag is published both ways.
static bool hellaswag_read_label(int *label, const JsonNode *root, Error *err) {
    const JsonNode *v = json_get(root, "label");
    if (!v || v->type == JSON_NULL || json_is(v, ""))
        return fail(err, "it has no label: the answers of the test split are not published; use "
                         "the validation split");
    bool text = v->type == JSON_NUMBER || v->type == JSON_STRING;
    if (text && v->length == 1 && v->text[0] >= '0' && v->text[0] < '0' + ENDINGS) {
        *label = v->text[0] - '0';
        return true;
    }
    return fail(err, "byte %zu: \"label\" is %s; 0, 1, 2 or 3 was expected", v->at,
                text ? json_show(v).text : json_type_name(v->type));
}

// Appends a text's tokens to h. False when there are none.
static bool hellaswag_encode(HellaSwag *h, const Tokenizer *t, const char *text, size_t n) {
    h->tokens = (int *)grow_or_die(h->tokens, &h->room, h->n_tokens + n, sizeof(int), "texts");
    size_t count = tokenizer_encode(t, h->tokens + h->n_tokens, text, n);
    h->n_tokens += count;
    return count > 0;
}

// Ending v: the tokens of a space and its text.
static bool hellaswag_read_ending(HellaSwag *h, const Tokenizer *t, const JsonNode *v, Error *err) {
    if (v->type != JSON_STRING)
        return fail(err, "byte %zu: an ending is %s, not a string", v->at, json_type_name(v->type));
    if (v->length == 0) return fail(err, "byte %zu: an ending has no tokens", v->at);
    char *text = (char *)alloc_or_die(v->length + 1, "an ending");
    text[0] = ' ';
    memcpy(text + 1, v->text, v->length);
    hellaswag_encode(h, t, text, v->length + 1);
    free(text);
    return true;
}

static bool hellaswag_read_example(HellaSwag *h, const Tokenizer *t, const JsonNode *root,
                                   Error *err) {
    HellaSwagExample *x = &h->examples[h->n];
    const JsonNode *ctx = json_need(root, "ctx", JSON_STRING, err);
    const JsonNode *endings = ctx ? json_need(root, "endings", JSON_ARRAY, err) : NULL;
    if (!endings || !hellaswag_read_label(&x->label, root, err)) return false;
    if (endings->length != ENDINGS)
        return fail(err, "byte %zu: %zu endings, not %d", endings->at, endings->length, ENDINGS);
    size_t *at = x->at;
    *at++ = h->n_tokens;
    if (!hellaswag_encode(h, t, ctx->text, ctx->length))
        return fail(err, "byte %zu: \"ctx\" is empty, there is no text to continue", ctx->at);
    for (const JsonNode *v = json_first(endings); v < json_end(endings); v = json_next(v)) {
        *at++ = h->n_tokens;
        if (!hellaswag_read_ending(h, t, v, err)) return false;
    }
    *at = h->n_tokens;
    h->n++;
    return true;
}

// Reads all of a file, whose name is for errors. After a failure nothing is left to free.
static bool hellaswag_read(HellaSwag *h, FILE *file, const char *name, const Tokenizer *t,
                           Error *err) {
    Jsonl j;
    const JsonNode *root = NULL;
    Error why;
    size_t examples = 0;
    bool good = true;
    memset(h, 0, sizeof *h);
    memset(&j, 0, sizeof j);
    jsonl_begin(&j, file, name);
    do {
        good = jsonl_next(&j, &root, err);
        h->examples = (HellaSwagExample *)grow_or_die(h->examples, &examples, h->n + 1,
                                                      sizeof *h->examples, "HellaSwag");
        if (good && root && !hellaswag_read_example(h, t, root, &why))
            good = fail(err, "%s: line %llu: %.400s", name, (unsigned long long)j.line, why.text);
    } while (good && root);
    if (good && h->n == 0) good = fail(err, "%s: there is no example in it", name);
    if (good) h->losses = (EndingLoss *)alloc_or_die(ENDINGS * h->n * sizeof *h->losses,
                                                     "HellaSwag");
    else hellaswag_close(h);
    jsonl_free(&j);
    return good;
}

bool hellaswag_open(HellaSwag *h, const char *path, const Tokenizer *t, Error *err) {
    FILE *file = fopen(path, "rb");
    if (!file) return fail(err, "%s: cannot open it: %s", path, strerror(errno));
    bool good = hellaswag_read(h, file, path, t, err);
    fclose(file);
    return good;
}

// ---- rows for the model ----

enum { HELLASWAG_T_STEP = 32 };   // a batch's T is a multiple of it: few shapes, little padding

static size_t hellaswag_ending_tokens(const HellaSwag *h, size_t row) {
    const size_t *at = h->examples[row / ENDINGS].at + 1 + row % ENDINGS;
    return at[1] - at[0];
}

// The tokens of a row that have a successor: the model's inputs, if T is large enough.
static size_t hellaswag_row_tokens(const HellaSwag *h, size_t row) {
    const size_t *at = h->examples[row / ENDINGS].at;
    return at[1] - at[0] + hellaswag_ending_tokens(h, row) - 1;
}

size_t hellaswag_count_cut(const HellaSwag *h, int T) {
    size_t cut = 0;
    for (size_t i = 0; i < h->n; i++) {
        bool longer = false;
        for (size_t row = ENDINGS*i; row < ENDINGS*(i + 1); row++)
            longer = longer || hellaswag_row_tokens(h, row) > (size_t)T;
        cut += longer;
    }
    return cut;
}

// Writes one row of T tokens: inputs, targets one token later, then zeros.
static void hellaswag_write_row(int *inputs, int *targets, const HellaSwag *h, size_t row,
                                size_t T) {
    const HellaSwagExample *x = &h->examples[row / ENDINGS];
    const int *context = h->tokens + x->at[0], *ending = h->tokens + x->at[1 + row % ENDINGS];
    size_t n_context = x->at[1] - x->at[0], n = hellaswag_row_tokens(h, row);
    size_t cut = n > T ? n - T : 0;
    for (size_t t = 0; t < T; t++) {
        size_t i = cut + t, next = i + 1;
        inputs[t] = i >= n ? 0 : i < n_context ? context[i] : ending[i - n_context];
        targets[t] = i >= n ? 0 : next < n_context ? context[next] : ending[next - n_context];
    }
}

// Writes rows row ... row+B-1 to inputs and targets (B,T) and returns T: enough for the longest
// row, at most max_T. Padding follows a row, so the causal mask hides it from the row's tokens.
static int hellaswag_batch(int *inputs, int *targets, const HellaSwag *h, size_t row, size_t B,
                           int max_T) {
    size_t T = 1;
    for (size_t b = 0; b < B; b++) {
        size_t n = hellaswag_row_tokens(h, row + b);
        if (n > T) T = n;
    }
    T = (T + HELLASWAG_T_STEP - 1) / HELLASWAG_T_STEP * HELLASWAG_T_STEP;
    T = min_size(T, (size_t)max_T);
    for (size_t b = 0; b < B; b++)
        hellaswag_write_row(inputs + b*T, targets + b*T, h, row + b, T);
    return (int)T;
}

// ---- answers ----

// Stores the loss of each row's ending; loss (B,T) is of hellaswag_batch's targets. If an ending
// has more than T tokens, its last T count.
static void hellaswag_keep(const HellaSwag *h, const float *loss, size_t row, size_t B, int T) {
    for (size_t b = 0; b < B; b++, loss += T) {
        size_t end = min_size(hellaswag_row_tokens(h, row + b), (size_t)T);
        EndingLoss *kept = &h->losses[row + b];
        kept->sum = 0.0;
        kept->tokens = min_size(hellaswag_ending_tokens(h, row + b), (size_t)T);
        for (size_t t = end - kept->tokens; t < end; t++) kept->sum += loss[t];
    }
}

// Endings of the lowest loss, the first of equals; -1 (no answer) if none is finite.
typedef struct { int sum, mean; } HellaSwagAnswer;

static HellaSwagAnswer hellaswag_answer(const HellaSwag *h, size_t example) {
    const EndingLoss *kept = h->losses + ENDINGS*example;
    HellaSwagAnswer best = { -1, -1 };
    double means[ENDINGS];
    for (int e = 0; e < ENDINGS; e++) {
        means[e] = kept[e].sum / (double)kept[e].tokens;
        if (!isfinite(kept[e].sum)) continue;
        if (best.sum < 0 || kept[e].sum < kept[best.sum].sum) best.sum = e;
        if (best.mean < 0 || means[e] < means[best.mean]) best.mean = e;
    }
    return best;
}

// Counts, which ranks can add up.
typedef struct { size_t examples, correct, correct_norm; } HellaSwagScore;

// Adds the answers to examples first ... first+count-1.
static void hellaswag_score(HellaSwagScore *score, const HellaSwag *h, size_t first,
                            size_t count) {
    for (size_t i = first; i < first + count; i++) {
        HellaSwagAnswer answer = hellaswag_answer(h, i);
        score->examples++;
        score->correct += answer.sum == h->examples[i].label;
        score->correct_norm += answer.mean == h->examples[i].label;
    }
}

// ---- the evaluation ----

// Runs HellaSwag's examples first ... first+count-1, a micro-batch of rows at a time, and adds the
// answers to the score.
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
    const HellaSwagScore none = { 0, 0, 0 };
    HellaSwagScore own = none;
    size_t first = done + (size_t)r->data.rank*part, from = first < h->n ? first : 0;
    hellaswag_evaluate(&own, r, from, min_size(part, h->n - from));
    if (first >= h->n) own = none;
    double sums[] = { (double)own.examples, (double)own.correct, (double)own.correct_norm };
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
