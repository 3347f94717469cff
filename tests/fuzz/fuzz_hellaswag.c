// HellaSwag's JSON lines, with bytes for tokens. What is accepted has labels and texts as they
// should be, and makes rows of any length: no token outside the vocabulary, each target the next
// input, and the losses of an ending's tokens alone are counted.
#define PROGRAM "fuzz_hellaswag"
#include <assert.h>
#include "../../dev/train/hellaswag.h"

enum { MAX_T = 40, B = 3 };

static void check_example(const HellaSwag *h, size_t i) {
    const HellaSwagExample *x = &h->examples[i];
    assert(x->label >= 0 && x->label < ENDINGS);
    assert(x->at[0] == (i ? x[-1].at[ENDINGS + 1] : 0));
    for (int e = 0; e <= ENDINGS; e++) assert(x->at[e] < x->at[e + 1]);
    for (int e = 1; e <= ENDINGS; e++) assert(h->tokens[x->at[e]] == ' ');
    assert(x->at[ENDINGS + 1] <= h->n_tokens);
}

static void check_rows(const HellaSwag *h, size_t row, size_t rows, int max_T) {
    int inputs[B*MAX_T], targets[B*MAX_T];
    float loss[B*MAX_T];
    int T = hellaswag_batch(inputs, targets, h, row, rows, max_T);
    assert(T >= 1 && T <= max_T);
    for (size_t b = 0; b < rows; b++) {
        size_t n = hellaswag_row_tokens(h, row + b);
        size_t ending = hellaswag_ending_tokens(h, row + b);
        if (n > (size_t)T) n = (size_t)T;
        for (size_t t = 0; t < (size_t)T; t++) {
            int token = inputs[b*T + t], target = targets[b*T + t];
            assert(token >= 0 && token < 256 && target >= 0 && target < 256);
            assert(t + 1 >= n || target == inputs[b*T + t + 1]);
            assert(t < n || (token == 0 && target == 0));
            loss[b*T + t] = t < n && t + ending >= n ? 1.0f : NAN;
        }
    }
    hellaswag_keep(h, loss, row, rows, T);
    for (size_t b = 0; b < rows; b++)
        assert(h->losses[row + b].sum == (double)h->losses[row + b].tokens);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Tokenizer t;
    HellaSwag h;
    HellaSwagScore s = { 0, 0, 0 };
    Error err;
    tokenizer_bytes(&t);
    if (hellaswag_parse(&h, (const char *)data, size, &t, &err)) {
        assert(h.n > 0);
        for (size_t i = 0; i < h.n; i++) check_example(&h, i);
        for (size_t row = 0; row < ENDINGS*h.n; row += B)
            check_rows(&h, row, min_size(B, ENDINGS*h.n - row), (int)(1 + row % MAX_T));
        hellaswag_score(&s, &h, 0, h.n);
        assert(s.examples == h.n && s.correct <= h.n && s.correct_norm <= h.n);
        hellaswag_close(&h);
    }
    tokenizer_free(&t);
    return 0;
}
