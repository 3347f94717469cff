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

// Appends a text's tokens to h, which has room for them. False when there are none.
static bool hellaswag_encode(HellaSwag *h, const Tokenizer *t, const char *text, size_t n) {
    size_t count = tokenizer_encode(t, h->tokens + h->n_tokens, text, n);
    h->n_tokens += count;
    return count > 0;
}

//   scratch: room for the longest ending and a space
static bool hellaswag_read_example(HellaSwag *h, const Tokenizer *t, const JsonNode *root,
                                   char *scratch, Error *err) {
    HellaSwagExample *x = &h->examples[h->n];
    if (root->type != JSON_OBJECT)
        return fail(err, "%s, not an object", json_type_name(root->type));
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
        if (v->type != JSON_STRING)
            return fail(err, "byte %zu: an ending is %s, not a string", v->at,
                        json_type_name(v->type));
        if (v->length == 0) return fail(err, "byte %zu: an ending has no tokens", v->at);
        scratch[0] = ' ';
        memcpy(scratch + 1, v->text, v->length);
        *at++ = h->n_tokens;
        hellaswag_encode(h, t, scratch, v->length + 1);
    }
    *at = h->n_tokens;
    h->n++;
    return true;
}

static bool hellaswag_read_line(HellaSwag *h, const Tokenizer *t, const char *line, size_t n,
                                Error *err) {
    Json j;
    if (!json_parse(&j, line, n, err)) return false;
    char *scratch = (char *)alloc_or_die(n, "a line of HellaSwag");    // two quotes > a space
    bool good = hellaswag_read_example(h, t, j.root, scratch, err);
    free(scratch);
    json_free(&j);
    return good;
}

static bool hellaswag_blank(const char *line, size_t n) {
    while (n > 0 && (line[n - 1] == ' ' || line[n - 1] == '\t' || line[n - 1] == '\r')) n--;
    return n == 0;
}

static bool hellaswag_read_lines(HellaSwag *h, const Tokenizer *t, const char *text, size_t n,
                                 Error *err) {
    Error why;
    size_t number = 1;
    for (size_t i = 0, length; i < n; i += length + 1, number++) {
        const char *end = (const char *)memchr(text + i, '\n', n - i);
        length = end ? (size_t)(end - (text + i)) : n - i;
        if (hellaswag_blank(text + i, length)) continue;
        if (!hellaswag_read_line(h, t, text + i, length, &why))
            return fail(err, "line %zu: %.400s", number, why.text);
    }
    return h->n > 0 || fail(err, "there is no example in it");
}

// Parses the n bytes of a file. A text has no more tokens than bytes, and its two quotes outweigh
// the space that an ending gains, so n tokens hold all texts. After a failure nothing is left to
// free.
static bool hellaswag_parse(HellaSwag *h, const char *text, size_t n, const Tokenizer *t,
                            Error *err) {
    memset(h, 0, sizeof *h);
    const char *kind = file_kind((const unsigned char *)text, n);
    if (kind) return fail(err, "not JSON lines but %s", kind);
    size_t lines = 1;
    for (size_t i = 0; i < n; i++) lines += text[i] == '\n';
    h->examples = (HellaSwagExample *)alloc_or_die(lines * sizeof *h->examples, "HellaSwag");
    h->tokens = (int *)alloc_or_die(n * sizeof *h->tokens, "HellaSwag");
    bool good = hellaswag_read_lines(h, t, text, n, err);
    int *fitted = good ? (int *)realloc(h->tokens, h->n_tokens * sizeof *fitted) : NULL;
    if (fitted) h->tokens = fitted;
    if (good) h->losses = (EndingLoss *)alloc_or_die(ENDINGS * h->n * sizeof *h->losses,
                                                     "HellaSwag");
    else hellaswag_close(h);
    return good;
}

bool hellaswag_open(HellaSwag *h, const char *path, const Tokenizer *t, Error *err) {
    FileMap file;
    Error why;
    memset(h, 0, sizeof *h);
    if (!file_map(&file, path, err)) return false;
    bool good = hellaswag_parse(h, (const char *)file.bytes, file.n, t, &why);
    file_unmap(&file);
    return good || fail(err, "%s: %.450s", path, why.text);
}

// ---- rows for the model ----

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

int hellaswag_batch(int *inputs, int *targets, const HellaSwag *h, size_t row, size_t B,
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

void hellaswag_keep(const HellaSwag *h, const float *loss, size_t row, size_t B, int T) {
    for (size_t b = 0; b < B; b++, loss += T) {
        size_t end = min_size(hellaswag_row_tokens(h, row + b), (size_t)T);
        EndingLoss *kept = &h->losses[row + b];
        kept->sum = 0.0;
        kept->tokens = min_size(hellaswag_ending_tokens(h, row + b), (size_t)T);
        for (size_t t = end - kept->tokens; t < end; t++) kept->sum += loss[t];
    }
}

// The index of the lowest loss, the first of equals; -1 (no answer) if none is finite.
static int hellaswag_lowest(const double *loss) {
    int best = -1;
    for (int e = 0; e < ENDINGS; e++)
        if (isfinite(loss[e]) && (best < 0 || loss[e] < loss[best])) best = e;
    return best;
}

typedef struct { int sum, mean; } HellaSwagAnswer;

static HellaSwagAnswer hellaswag_answer(const HellaSwag *h, size_t example) {
    const EndingLoss *kept = h->losses + ENDINGS*example;
    double sums[ENDINGS], means[ENDINGS];
    for (int e = 0; e < ENDINGS; e++) {
        sums[e] = kept[e].sum;
        means[e] = kept[e].sum / (double)kept[e].tokens;
    }
    HellaSwagAnswer answer = { hellaswag_lowest(sums), hellaswag_lowest(means) };
    return answer;
}

void hellaswag_score(HellaSwagScore *score, const HellaSwag *h, size_t first, size_t count) {
    for (size_t i = first; i < first + count; i++) {
        HellaSwagAnswer answer = hellaswag_answer(h, i);
        score->examples++;
        score->correct += answer.sum == h->examples[i].label;
        score->correct_norm += answer.mean == h->examples[i].label;
    }
}
