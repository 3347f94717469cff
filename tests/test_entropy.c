// The entropy floor: which documents count as whole, against a count by hand of every window; and
// sidecar files that are not what they should be.
#include "../dev/data/entropy.c"
#include "files.h"
#include "test.h"

// ---- a corpus on disk: shards in a directory of their own, removed at the end ----

enum { EOT = 9, VOCAB = 10, MAX_SHARDS = 3, MAX_TOKENS = 600, T_MAX = 40 };

typedef struct {
    Path dir;
    int n_shards;
    size_t n[MAX_SHARDS];                      // tokens
    uint16_t tokens[MAX_SHARDS][MAX_TOKENS];
} Corpus;

static void corpus_make(Corpus *c) {
    memset(c, 0, sizeof *c);
    c->dir = folder_make(NULL);
}

// Adds a shard: one digit a token, '|' for an end of text.
static void corpus_add(Corpus *c, const char *digits, int eot) {
    static struct { int32_t header[SHARD_HEADER_WORDS]; uint16_t tokens[MAX_TOKENS]; } shard;
    int i = c->n_shards++;
    char name[40];
    c->n[i] = strlen(digits);
    for (size_t t = 0; t < c->n[i]; t++)
        c->tokens[i][t] = (uint16_t)(digits[t] == '|' ? EOT : digits[t] - '0');
    int32_t header[5] = { SHARD_MAGIC, SHARD_VERSION, (int32_t)c->n[i], VOCAB, eot };
    memcpy(shard.header, header, sizeof header);
    memcpy(shard.tokens, c->tokens[i], sizeof shard.tokens);
    snprintf(name, sizeof name, "x_val_%06d.bin", i);
    put(c->dir.text, name, &shard, sizeof shard.header + 2 * c->n[i]);
}

static void corpus_floor(Corpus *c, int i, const char *text) {
    char name[40];
    snprintf(name, sizeof name, "x_val_%06d.floor", i);
    put_text(c->dir.text, name, text);
}

static void corpus_open(Loader *l, const Corpus *c, int T) {
    Error err;
    if (!loader_open(l, in(c->dir.text, "*val*.bin").text, NULL, T, 1, &err)) die("%s", err.text);
}

// ---- whole documents, counted by hand ----

// What document d of shard i costs at best, and what the model pays for token t of it: sums of
// such numbers tell which documents and which tokens were added.
static double nats_of(int i, size_t d) { return 1.0 + (double)i + (double)d * 0.015625; }
static float loss_of(int i, size_t t) { return 0.125f + 8.0f*(float)i + (float)(t*t % 97); }

// Token by token: a document is whole in a window when each of its tokens is a target there.
static WholeScore by_hand(const Corpus *c, int i, size_t first, size_t T) {
    WholeScore score = { 0.0, 0.0, 0 };
    size_t begin = 0, d = 0;
    for (size_t t = 0; t < c->n[i]; t++) {
        if (c->tokens[i][t] != EOT) continue;
        bool whole = true;
        for (size_t u = begin; u <= t; u++) whole = whole && u >= first + 1 && u <= first + T;
        for (size_t u = begin; whole && u <= t; u++) score.loss += loss_of(i, u);
        if (whole) score.floor += nats_of(i, d);
        if (whole) score.tokens += t + 1 - begin;
        begin = t + 1;
        d++;
    }
    return score;
}

// Scores every window for windows of T, and compares; returns how many tokens were whole.
static size_t check_windows(const Corpus *c, int T) {
    Loader l;
    Floor f;
    Error err;
    float loss[T_MAX];
    size_t whole_tokens = 0, window = 0;
    corpus_open(&l, c, T);
    if (!floor_open(&f, &l, &err)) die("%s", err.text);
    CHECK(f.known && f.n_shards == c->n_shards);
    for (int i = 0; i < c->n_shards; i++)
        for (size_t first = 0; first + T < c->n[i]; first += T, window++) {
            WholeScore hand = by_hand(c, i, first, T), score = { 100.0, 200.0, 300 };
            for (int t = 0; t < T; t++) loss[t] = loss_of(i, first + 1 + t);
            floor_score_window(&score, &f, &l, window, loss);
            CHECK_MSG(score.tokens == 300 + hand.tokens, "T=%d, window %zu: %zu tokens, not %zu",
                      T, window, score.tokens - 300, hand.tokens);
            CHECK_MSG(score.loss == 100.0 + hand.loss, "T=%d, window %zu: loss", T, window);
            CHECK_MSG(score.floor == 200.0 + hand.floor, "T=%d, window %zu: floor", T, window);
            whole_tokens += hand.tokens;
        }
    CHECK_MSG(window == l.n_windows, "%zu windows of %zu", window, l.n_windows);
    floor_close(&f);
    loader_close(&l);
    return whole_tokens;
}

// Writes a shard's sidecar with the numbers of nats_of.
static void corpus_true_floor(Corpus *c, int i) {
    char text[16384];
    int used = snprintf(text, sizeof text, "batchwise floor 1\n");
    for (size_t t = 0, d = 0; t < c->n[i]; t++)
        if (c->tokens[i][t] == EOT)
            used += snprintf(text + used, sizeof text - used, "%.9g\n", nats_of(i, d++));
    corpus_floor(c, i, text);
}

TEST(floor_whole_documents_in_every_window) {
    static Corpus c;
    static const int documents[MAX_SHARDS] = { 3, 11, 40 };      // the most tokens in one
    char digits[MAX_TOKENS];
    Rng rng = rng_make(3, 0);
    corpus_make(&c);
    for (int i = 0; i < MAX_SHARDS; i++) {
        int n = 300 + (int)rng_below(&rng, 250);
        for (int t = 0; t < n; t++)
            digits[t] = rng_below(&rng, documents[i]) == 0 ? '|' : (char)('0' + t % 9);
        digits[n] = '\0';
        corpus_add(&c, digits, EOT);
        corpus_true_floor(&c, i);
    }
    for (int T = 1; T <= T_MAX; T++) check_windows(&c, T);
    CHECK(check_windows(&c, 1) > 0);     // documents of an end of text alone
    CHECK(check_windows(&c, T_MAX) > check_windows(&c, 3));
    folder_remove(&c.dir);
}

// All of them, of shards that all have a floor.
TEST(floor_of_all_documents) {
    for (int sidecars = 1; sidecars <= 2; sidecars++) {
        static Corpus c;
        Loader l;
        Floor f;
        Error err;
        corpus_make(&c);
        corpus_add(&c, "1|22|333", EOT);     // the last document has no end: it has no floor
        corpus_add(&c, "4444|", EOT);
        corpus_floor(&c, 0, "batchwise floor 1\n0.5\n1.25\n");
        if (sidecars == 2) corpus_floor(&c, 1, "batchwise floor 1\n2e0");
        corpus_open(&l, &c, 4);
        CHECK_MSG(floor_open(&f, &l, &err) && f.known == (sidecars == 2), "%s", err.text);
        CHECK(!f.known || (f.nats == 3.75 && f.tokens == 2 + 3 + 5));
        floor_close(&f);
        loader_close(&l);
        folder_remove(&c.dir);
    }
}

// ---- sidecars ----

// Of a shard of two documents. Unless it says what ends a text, it has no documents to score.
TEST(floor_sidecars) {
    static const struct { const char *sidecar; int eot; bool known; const char *error; } cases[] = {
        { NULL, EOT, false, "" },
        { "batchwise floor 1\n1\n2\n", EOT, true, "" },
        { "batchwise floor 1\n1\n2\n", 0, false, "" },
        { "", EOT, false, "does not begin with" },
        { "batchwise floor 12\n1\n2\n", EOT, false, "does not begin with" },
        { "batchwise floor 1\n1\n", EOT, false, "line 3" },
        { "batchwise floor 1\n1\n-2\n", EOT, false, "line 3" },
        { "batchwise floor 1\n1\n2\n3\n", EOT, false, "more lines" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        static Corpus c;
        Loader l;
        Floor f;
        Error err = { "" };
        corpus_make(&c);
        corpus_add(&c, "123|45|", cases[i].eot);
        if (cases[i].sidecar) corpus_floor(&c, 0, cases[i].sidecar);
        corpus_open(&l, &c, 3);
        bool good = floor_open(&f, &l, &err);
        CHECK_MSG(good == !cases[i].error[0] && strstr(err.text, cases[i].error),
                  "case %zu says: '%s'", i, err.text);
        CHECK_MSG(good ? f.known == cases[i].known
                       : strstr(err.text, ".floor: ") && !strchr(err.text, '\n'), "case %zu", i);
        floor_close(&f);
        loader_close(&l);
        folder_remove(&c.dir);
    }
}

int main(void) { return run_tests(); }
