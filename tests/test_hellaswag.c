// dev/train/hellaswag.c: reading the file, the rows it makes for the model, and the answers to
// losses made up. That a real model's tokens and losses are right test_hellaswag.py asks PyTorch:
//
//     test_hellaswag --losses FLAGS...      the trainer's flags, --hellaswag among them
//
// prints for each example its label, the two answers, and each ending's tokens and summed loss.
#define main train_gpt2_main
#include "../train_gpt2.c"
#undef main
#include "../dev/train/evaluate.c"
#include "../dev/train/hellaswag.c"
#include "../dev/data/tokenizer.c"
#include "test.h"

// ---- reading ----

#define LINE(ctx, a, b, c, d, label) \
    "{\"ind\": 1, \"ctx\": \"" ctx "\", \"label\": " label ", \"endings\": [\"" a "\", \"" b \
    "\", \"" c "\", \"" d "\"]}\n"

static bool parse(HellaSwag *h, const char *text, const Tokenizer *t, Error *err) {
    FILE *file = fmemopen((char *)text, strlen(text), "rb");
    bool good = hellaswag_read(h, file, "x", t, err);
    fclose(file);
    return good;
}

static HellaSwag parse_or_die(const char *text) {
    Tokenizer t;
    HellaSwag h;
    Error err;
    tokenizer_bytes(&t);
    if (!parse(&h, text, &t, &err)) die("%s", err.text);
    tokenizer_free(&t);
    return h;
}

// The tokens of a text of the example, 0 the context, 1 ... 4 the endings, are these bytes.
static bool bytes_are(const HellaSwag *h, size_t example, int text, const char *bytes) {
    const size_t *at = h->examples[example].at + text;
    bool same = at[1] - at[0] == strlen(bytes);
    for (size_t i = 0; same && bytes[i]; i++)
        same = h->tokens[at[0] + i] == (unsigned char)bytes[i];
    return same;
}

TEST(hellaswag_reads_lines) {
    HellaSwag h = parse_or_die(LINE("He sat.", "a", "bb", "ccc", "d", "2") "\r\n  \n"
                               LINE("x\\u00e9", "\\\"q\\\"", "f", "g", "h", "\"3\"") "\n"
                               "{\"endings\":[\"1\",\"2\",\"3\",\"4\"],\"label\":0,\"ctx\":\"c\"}");
    CHECK(h.n == 3);
    CHECK(h.examples[0].label == 2 && h.examples[1].label == 3 && h.examples[2].label == 0);
    CHECK(bytes_are(&h, 0, 0, "He sat.") && bytes_are(&h, 0, 1, " a"));
    CHECK(bytes_are(&h, 0, 2, " bb") && bytes_are(&h, 0, 3, " ccc") && bytes_are(&h, 0, 4, " d"));
    CHECK(bytes_are(&h, 1, 0, "x\xC3\xA9") && bytes_are(&h, 1, 1, " \"q\""));
    CHECK(bytes_are(&h, 2, 0, "c") && bytes_are(&h, 2, 4, " 4"));
    CHECK(h.n_tokens == h.examples[2].at[5]);
    hellaswag_close(&h);
}

#define GOOD LINE("c", "1", "2", "3", "4", "0")

#define LABELLED(label) LINE("c", "1", "2", "3", "4", label)

TEST(hellaswag_refuses) {
    static const char *const cases[][2] = {
        { "\n \r\n\n", "there is no example" },
        { GOOD "He sat.\n" GOOD, "line 2: byte 0: expected a value, found 'H'" },
        { "{\"endings\":[\"1\",\"2\",\"3\",\"4\"],\"label\":0}", "line 1: \"ctx\" is missing" },
        { "{\"ctx\":\"c\",\"endings\":[\"1\",\"2\",\"3\"],\"label\":0}", "3 endings, not 4" },
        { GOOD LINE("c", "1", "2", "", "4", "0"), "line 2: byte 57: an ending has no tokens" },
        { LINE("", "1", "2", "3", "4", "0"), "\"ctx\" is empty" },
        { "{\"ctx\":\"c\",\"endings\":[\"1\",\"2\",\"3\",\"4\"]}", "line 1: it has no label" },
        { LABELLED("\"\""), "it has no label" }, { LABELLED("4"), "\"label\" is 4; 0, 1, 2 or 3" },
    };
    Tokenizer t;
    tokenizer_bytes(&t);
    for (size_t i = 0; i < COUNT(cases); i++) {
        HellaSwag h;
        Error err = { "" };
        CHECK_MSG(!parse(&h, cases[i][0], &t, &err), "accepted: %s", cases[i][0]);
        CHECK_MSG(strstr(err.text, cases[i][1]) != NULL, "'%s' is not in '%s'", cases[i][1],
                  err.text);
        CHECK(!strchr(err.text, '\n') && h.n == 0 && !h.tokens && !h.examples && !h.losses);
    }
    tokenizer_free(&t);
}

// ---- rows ----

// One example: rows "abc d", "abc efg", "abc h", "abc ijklm".
static HellaSwag small(void) { return parse_or_die(LINE("abc", "d", "efg", "h", "ijklm", "1")); }

// The first n tokens of a row are those bytes and the rest are zeros.
static bool row_is(const int *row, size_t T, const char *bytes) {
    size_t n = strlen(bytes);
    for (size_t t = 0; t < T; t++)
        if (row[t] != (t < n ? (unsigned char)bytes[t] : 0)) return false;
    return true;
}

TEST(hellaswag_rows_are_padded) {
    HellaSwag h = small();
    int inputs[4*64], targets[4*64];
    int T = hellaswag_batch(inputs, targets, &h, 0, 4, 64);
    CHECK(T == HELLASWAG_T_STEP);
    CHECK(row_is(inputs, T, "abc ") && row_is(targets, T, "bc d"));
    CHECK(row_is(inputs + 3*T, T, "abc ijkl") && row_is(targets + 3*T, T, "bc ijklm"));
    T = hellaswag_batch(inputs, targets, &h, 1, 2, 20);            // rows 1 and 2; no more than 20
    CHECK(T == 20);
    CHECK(row_is(inputs, T, "abc ef") && row_is(inputs + T, T, "abc "));
    CHECK(row_is(targets + T, T, "bc h"));
    hellaswag_close(&h);
}

TEST(hellaswag_rows_that_are_too_long_lose_their_beginning) {
    HellaSwag h = small();
    int inputs[4*64], targets[4*64];
    CHECK(hellaswag_batch(inputs, targets, &h, 0, 4, 6) == 6);
    CHECK(row_is(inputs, 6, "abc ") && row_is(targets, 6, "bc d"));
    CHECK(row_is(inputs + 6, 6, "abc ef") && row_is(targets + 6, 6, "bc efg"));
    CHECK(row_is(inputs + 18, 6, "c ijkl") && row_is(targets + 18, 6, " ijklm"));
    CHECK(hellaswag_batch(inputs, targets, &h, 3, 1, 1) == 1);
    CHECK(inputs[0] == 'l' && targets[0] == 'm');
    CHECK(hellaswag_count_cut(&h, 8) == 0 && hellaswag_count_cut(&h, 7) == 1);
    hellaswag_close(&h);
}

// ---- answers ----

static HellaSwagAnswer answer_to(double a, double b, double c, double d) {
    EndingLoss losses[ENDINGS] = { { a, 1 }, { b, 2 }, { c, 4 }, { d, 8 } };
    HellaSwag h = { 1, 0, NULL, NULL, losses, 0 };
    return hellaswag_answer(&h, 0);
}

TEST(hellaswag_answers) {
    HellaSwagAnswer a = answer_to(3, 4, 8, 9);                     // means 3, 2, 2, 1.125
    CHECK(a.sum == 0 && a.mean == 3);
    a = answer_to(3, 2, 4, 16);                                    // means 3, 1, 1, 2: the first
    CHECK(a.sum == 1 && a.mean == 1);
    a = answer_to(0, 0, 0, 0);
    CHECK(a.sum == 0 && a.mean == 0);
    a = answer_to(NAN, 5, NAN, INFINITY);
    CHECK(a.sum == 1 && a.mean == 1);
    a = answer_to(NAN, NAN, NAN, INFINITY);                        // a ruined model knows nothing
    CHECK(a.sum == -1 && a.mean == -1);
}

// ---- with a model, for test_hellaswag.py ----

// Answers in two unequal shares: whole batches, batches that begin in an example, and part of one.
static int print_losses(int argc, char **argv) {
    static Run r;
    static Model m;
    static Machine machine;
    HellaSwagScore s = { 0, 0, 0 };
    if (!run_start(&r, &m, &machine, argc, argv)) die("--help: there is nothing to answer");
    run_open(&r);
    const HellaSwag *h = &r.hellaswag;
    size_t share = h->n / 3;
    hellaswag_evaluate(&s, &r, 0, h->n);         // an earlier evaluation leaves nothing behind
    s = (HellaSwagScore){ 0, 0, 0 };
    hellaswag_evaluate(&s, &r, 0, share);
    hellaswag_evaluate(&s, &r, share, h->n - share);
    printf("%s %zu %zu %zu\n", PRECISION, s.examples, s.correct, s.correct_norm);
    for (size_t i = 0; i < h->n; i++) {
        HellaSwagAnswer a = hellaswag_answer(h, i);
        printf("%d %d %d", h->examples[i].label, a.sum, a.mean);
        for (int e = 0; e < ENDINGS; e++)
            printf(" %zu %.9g", h->losses[ENDINGS*i + e].tokens, h->losses[ENDINGS*i + e].sum);
        printf("\n");
    }
    run_close(&r);
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--losses") == 0) return print_losses(argc - 1, argv + 1);
    return run_tests();
}
