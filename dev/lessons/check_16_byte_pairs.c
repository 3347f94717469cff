// Lesson 16: byte pairs. Merges counted by hand beside those of bpe_train.c; then vocabularies of
// several sizes on tales that they were not learned from.
#include "lesson.h"

// ---- merges by hand ----

static const char SONG[] = "the cat that sat on the mat saw the rat that ate the oat";
enum { MERGES = 7, SONG_N = sizeof SONG - 1 };

// A text as tokens. first[i]: token i begins a word, so it is not merged with the one before it.
typedef struct { int id[SONG_N], n; bool first[SONG_N]; } Tokens;

static Tokens bytes_of(const char *text) {
    Tokens t = { .n = (int)strlen(text) };
    for (int i = 0; i < t.n; i++) t.id[i] = (unsigned char)text[i];
    for (size_t i = 0; i < (size_t)t.n; i += word_length(text + i, t.n - i)) t.first[i] = true;
    return t;
}

static int count_of(const Tokens *t, int left, int right) {
    int count = 0;
    for (int i = 0; i + 1 < t->n; i++)
        count += t->id[i] == left && t->id[i + 1] == right && !t->first[i + 1];
    return count;
}

static void merge(Tokens *t, int left, int right, int result) {
    int out = 0;
    for (int i = 0; i < t->n; i++, out++) {
        t->id[out] = t->id[i];
        t->first[out] = t->first[i];
        if (i + 1 < t->n && t->id[i] == left && t->id[i + 1] == right && !t->first[i + 1])
            t->id[out] = result, i++;
    }
    t->n = out;
}

// The bytes of a token, a space as _.
static const char *shown(const Tokenizer *t, int id) {
    static char text[2][32];
    static int turn;
    size_t n;
    const char *piece = tokenizer_piece(t, id, &n);
    turn = 1 - turn;
    snprintf(text[turn], sizeof text[turn], "%.*s", (int)n, piece);
    for (char *c = text[turn]; *c; c++) if (*c == ' ') *c = '_';
    return text[turn];
}

static void show_tokens(const Tokenizer *t, const int *ids, size_t n) {
    for (size_t i = 0; i < n; i++) printf(" %s", shown(t, ids[i]));
    printf("\n");
}

static void check_merges(void) {
    Tokenizer t;
    WordCounts counts = {0};
    Tokens tokens = bytes_of(SONG);
    int ids[SONG_N];
    word_counts_add(&counts, SONG, SONG_N);
    tokenizer_train(&t, &counts, 257 + MERGES, NULL);
    printf("%s\nmerge   pair          times   tokens, from %d\n", SONG, tokens.n);
    for (int k = 0; k < t.n_merges; k++) {
        Merge m = t.merges[k];
        int times = count_of(&tokens, m.left, m.right), before = tokens.n;
        for (int a = 0; a < 256 + k; a++)
            for (int b = 0; b < 256 + k; b++)
                if (count_of(&tokens, a, b) > times) claim(false, "no pair is more frequent");
        merge(&tokens, m.left, m.right, m.result);
        printf("%5d   %-5s %-5s %7d %8d\n", k + 1, shown(&t, m.left), shown(&t, m.right), times,
               tokens.n);
        if (tokens.n != before - times) claim(false, "a merge saves a token each time");
    }
    size_t n = tokenizer_encode(&t, ids, SONG, SONG_N);
    claim(t.n_merges == MERGES, "each merge of bpe_train.c is a pair that occurs most often");
    claim(n == (size_t)tokens.n && memcmp(ids, tokens.id, n * sizeof *ids) == 0,
          "bpe.c encodes the text to the same %zu tokens", n);
    static const char NEW[] = " that chat";
    printf("%s, a new text:", NEW + 1);
    show_tokens(&t, ids, tokenizer_encode(&t, ids, NEW, sizeof NEW - 1));
    word_counts_free(&counts);
    tokenizer_free(&t);
}

// ---- what a vocabulary costs and saves ----

enum { TRAIN_N = 300000, TEST_N = 100000 };

static void tales(char *text, size_t n, uint64_t seed) {
    char tale[TALE_MAX];
    double nats;
    Rng rng = rng_make(seed, 0);
    for (size_t at = 0, length; at < n; at += length) {
        length = tale_write(tale, TALE_MAX, &nats, tale_lists, &rng);
        memcpy(text + at, tale, length < n - at ? length : n - at);
    }
}

// Nats per token of a model that knows how often each token occurs, and nothing else.
static double entropy(const int *ids, size_t n, int V) {
    size_t *times = alloc_or_die((size_t)V * sizeof *times, "counts");
    double nats = 0.0;
    for (size_t i = 0; i < n; i++) times[ids[i]]++;
    for (int v = 0; v < V; v++)
        if (times[v]) nats -= (double)times[v] / n * log((double)times[v] / n);
    free(times);
    return nats;
}

static bool same_text(const Tokenizer *t, const int *ids, size_t count, const char *text,
                      size_t n) {
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        size_t length;
        const char *piece = tokenizer_piece(t, ids[i], &length);
        if (at + length > n || memcmp(text + at, piece, length) != 0) return false;
        at += length;
    }
    return at == n;
}

int main(void) {
    *program_name() = "check_16_byte_pairs";
    static char train[TRAIN_N], test[TEST_N];
    static int ids[TEST_N];
    static const int sizes[] = { 257, 300, 400, 600, 1000 };
    double token_before = 0.0, byte_before = INFINITY;
    WordCounts counts = {0};
    check_merges();
    tales(train, TRAIN_N, 1);
    tales(test, TEST_N, 2);
    word_counts_add(&counts, train, TRAIN_N);
    printf("vocabulary    tokens bytes per token   ln V by frequency: nats per token per byte\n");
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        Tokenizer t;
        tokenizer_train(&t, &counts, sizes[k], NULL);
        size_t n = tokenizer_encode(&t, ids, test, TEST_N);
        double token = entropy(ids, n, t.vocab_size), byte = token * n / TEST_N;
        printf("%10d %9zu %15.2f %6.2f %28.3f %8.3f\n", t.vocab_size, n, (double)TEST_N / n,
               log(t.vocab_size), token, byte);
        if (!same_text(&t, ids, n, test, TEST_N)) claim(false, "the tokens' bytes are the text");
        if (token <= token_before) claim(false, "a larger vocabulary has more nats per token");
        if (byte >= byte_before) claim(false, "and fewer per byte");
        token_before = token, byte_before = byte;
        tokenizer_free(&t);
    }
    claim(true, "the tokens' bytes are the text, each time");
    claim(true, "the same text: with a larger vocabulary, more nats per token, fewer per byte");
    word_counts_free(&counts);
    return 0;
}
