// Trains a byte-pair vocabulary on a text (Sennrich et al. 2016).
//
// Each step makes a token of the adjacent pair that occurs most often in the words of the text. A
// tie goes to the pair whose left token is older, then to the one whose right token is older. Bytes
// are ordered by their characters in the alphabet of bpe.c, as in Hugging Face's BpeTrainer.
#include "data.h"
#include <assert.h>

void word_counts_free(WordCounts *c) {
    free(c->text);
    free(c->words);
    free(c->slots);
    memset(c, 0, sizeof *c);
}

static void word_counts_rehash(WordCounts *c) {
    size_t slots = slots_for(2 * c->n + 1024);
    free(c->slots);
    c->slots = (uint32_t *)alloc_or_die(slots * sizeof *c->slots, "the words of a text");
    c->mask = slots - 1;
    for (size_t w = 0; w < c->n; w++) {
        size_t slot = c->words[w].hash & c->mask;
        while (c->slots[slot]) slot = (slot + 1) & c->mask;
        c->slots[slot] = (uint32_t)(w + 1);
    }
}

// The index of a word, which is added with the count 0 if it is new.
static size_t word_counts_index(WordCounts *c, const char *word, size_t n) {
    const char *what = "the words of a text";
    uint64_t hash = hash_add(n, word, n);
    if (2 * c->n >= c->mask) word_counts_rehash(c);
    size_t slot = hash & c->mask;
    for (; c->slots[slot]; slot = (slot + 1) & c->mask) {
        const CountedWord *w = &c->words[c->slots[slot] - 1];
        if (w->hash == hash && w->length == n && memcmp(c->text + w->start, word, n) == 0)
            return c->slots[slot] - 1;
    }
    c->words = (CountedWord *)grow_or_die(c->words, &c->capacity, c->n + 1, sizeof *c->words, what);
    c->text = (char *)grow_or_die(c->text, &c->text_capacity, c->text_n + n, 1, what);
    CountedWord counted = { c->text_n, n, hash, 0 };
    memcpy(c->text + c->text_n, word, n);
    c->text_n += n;
    c->words[c->n++] = counted;
    c->slots[slot] = (uint32_t)c->n;
    return c->n - 1;
}

void word_counts_add(WordCounts *c, const char *text, size_t n) {
    for (size_t i = 0, length; i < n; i += length) {
        length = word_length(text + i, n - i);
        size_t w = word_counts_index(c, text + i, length);
        c->words[w].count++;
    }
}

// The words in which a pair has occurred.
typedef struct {
    uint32_t *words;
    size_t n, capacity;
} PairWords;

// An adjacent pair of tokens is counted as a word of these bytes.
typedef struct { int left, right; } Pair;

typedef struct {
    const WordCounts *counts;
    int byte[256];                 // the bytes in the order of the alphabet. Here a token is its
                                   // age: a byte's place in that order, or a merged token's id
    int *tokens;                   // word w is tokens[words[w].start] ..., length[w] of them
    size_t *length;
    WordCounts pairs;
    PairWords *in;                 // (pairs.n)
    size_t capacity;
    Heap heap;                     // (-count, the two ages); counts may be too high
} Trainer;

// The index of a pair.
static size_t trainer_pair(Trainer *tr, int left, int right) {
    Pair pair = { left, right };
    size_t known = tr->pairs.n, i = word_counts_index(&tr->pairs, (char *)&pair, sizeof pair);
    if (i < known) return i;
    tr->in = (PairWords *)grow_or_die(tr->in, &tr->capacity, i + 1, sizeof *tr->in,
                                      "the pairs of tokens");
    memset(&tr->in[i], 0, sizeof *tr->in);
    return i;
}

// Records one more occurrence of the pair in word w.
static void trainer_add(Trainer *tr, int left, int right, size_t w) {
    size_t i = trainer_pair(tr, left, right);
    PairWords *in = &tr->in[i];
    tr->pairs.words[i].count += tr->counts->words[w].count;
    if (in->n > 0 && in->words[in->n - 1] == w) return;
    in->words = (uint32_t *)grow_or_die(in->words, &in->capacity, in->n + 1, sizeof *in->words,
                                        "the words of a pair");
    in->words[in->n++] = (uint32_t)w;
}

static void trainer_subtract(Trainer *tr, int left, int right, size_t w) {
    size_t i = trainer_pair(tr, left, right);
    tr->pairs.words[i].count -= tr->counts->words[w].count;
}

// Puts pair i on the heap.
static void trainer_push(Trainer *tr, size_t i) {
    Pair pair;
    int64_t count = tr->pairs.words[i].count;
    memcpy(&pair, tr->pairs.text + i * sizeof pair, sizeof pair);
    if (count > 0) heap_push(&tr->heap, -count, (uint64_t)pair.left << 32 | (uint64_t)pair.right);
}

static void trainer_init(Trainer *tr, const WordCounts *counts) {
    memset(tr, 0, sizeof *tr);
    tr->counts = counts;
    tr->tokens = (int *)alloc_or_die(counts->text_n * sizeof *tr->tokens, "the words of a text");
    tr->length = (size_t *)alloc_or_die(counts->n * sizeof *tr->length, "the words of a text");
    int age[256], n = 0;
    for (int hidden = 0; hidden < 2; hidden++)             // visible bytes come first
        for (int b = 0; b < 256; b++) {
            if (byte_is_visible(b) == hidden) continue;
            age[b] = n;
            tr->byte[n++] = b;
        }
    for (size_t i = 0; i < counts->text_n; i++) tr->tokens[i] = age[(unsigned char)counts->text[i]];
    for (size_t w = 0; w < counts->n; w++) {
        const int *word = tr->tokens + counts->words[w].start;
        tr->length[w] = counts->words[w].length;
        for (size_t i = 0; i + 1 < tr->length[w]; i++) trainer_add(tr, word[i], word[i+1], w);
    }
    for (size_t i = 0; i < tr->pairs.n; i++) trainer_push(tr, i);
}

static void trainer_free(Trainer *tr) {
    for (size_t i = 0; i < tr->pairs.n; i++) free(tr->in[i].words);
    word_counts_free(&tr->pairs);
    free(tr->in);
    free(tr->tokens);
    free(tr->length);
    free(tr->heap.entries);
}

// The most frequent pair; false if no pair occurs twice. A count in the heap may be out of date,
// but never too low, because a pair's count only falls after the merge that created the pair.
static bool trainer_best(Trainer *tr, int *left, int *right) {
    while (tr->heap.n > 0) {
        HeapEntry best = heap_pop(&tr->heap);
        *left = (int)(best.item >> 32);
        *right = (int)(best.item & 0xFFFFFFFFu);
        size_t i = trainer_pair(tr, *left, *right);
        if (tr->pairs.words[i].count == -best.key) return best.key < -1;
        trainer_push(tr, i);
    }
    return false;
}

// Replaces each left, right by id in word w, and updates the counts of the adjacent pairs.
static void trainer_merge_word(Trainer *tr, size_t w, int left, int right, int id) {
    int *word = tr->tokens + tr->counts->words[w].start;
    size_t n = tr->length[w], out = 0;
    for (size_t i = 0; i < n; i++) {
        if (i + 1 == n || word[i] != left || word[i+1] != right) {
            word[out++] = word[i];
            continue;
        }
        if (out > 0) {
            trainer_subtract(tr, word[out-1], left, w);
            trainer_add(tr, word[out-1], id, w);
        }
        if (i + 2 < n) {
            trainer_subtract(tr, right, word[i+2], w);
            trainer_add(tr, id, word[i+2], w);
        }
        word[out++] = id;
        i++;
    }
    tr->length[w] = out;
}

static void trainer_merge(Trainer *tr, int left, int right, int id) {
    size_t known = tr->pairs.n, pair = trainer_pair(tr, left, right);
    for (size_t i = 0; i < tr->in[pair].n; i++)
        trainer_merge_word(tr, tr->in[pair].words[i], left, right, id);
    tr->pairs.words[pair].count = 0;
    for (size_t i = known; i < tr->pairs.n; i++) trainer_push(tr, i);
}

// Adds the token whose bytes are those of left and right, and the merge that makes it.
static void tokenizer_join(Tokenizer *t, int left, int right) {
    size_t a, b;
    tokenizer_piece(t, left, &a);
    tokenizer_piece(t, right, &b);
    char *joined = (char *)alloc_or_die(a + b, "a token");
    memcpy(joined, tokenizer_piece(t, left, &a), a);
    memcpy(joined + a, tokenizer_piece(t, right, &b), b);
    // A byte string that no merge has joined to its neighbours is merged alike in every word, so no
    // two pairs give the same bytes.
    bool fresh = tokenizer_push(t, joined, a + b, TOKEN_WHOLE);
    assert(fresh);
    (void)fresh;
    tokenizer_push_merge(t, left, right, t->vocab_size - 1);
    free(joined);
}

void tokenizer_train(Tokenizer *t, const WordCounts *counts, int vocab_size, Progress *progress) {
    Trainer tr;
    int left, right;
    trainer_init(&tr, counts);
    tokenizer_init(t, (size_t)vocab_size, (size_t)vocab_size - 257);
    tokenizer_push_bytes(t);
    while (t->vocab_size + 1 < vocab_size && trainer_best(&tr, &left, &right)) {
        trainer_merge(&tr, left, right, t->vocab_size);
        tokenizer_join(t, left < 256 ? tr.byte[left] : left, right < 256 ? tr.byte[right] : right);
        if (progress) progress_show(progress, (double)t->vocab_size);
    }
    tokenizer_push_eot(t);
    trainer_free(&tr);
}
