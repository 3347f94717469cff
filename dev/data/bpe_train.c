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

static void word_counts_push(WordCounts *c, const char *word, size_t n, uint64_t hash) {
    const char *what = "the words of a text";
    c->words = (CountedWord *)grow_or_die(c->words, &c->capacity, c->n + 1, sizeof *c->words, what);
    c->text = (char *)grow_or_die(c->text, &c->text_capacity, c->text_n + n, 1, what);
    CountedWord counted = { c->text_n, n, hash, 1 };
    memcpy(c->text + c->text_n, word, n);
    c->text_n += n;
    c->words[c->n++] = counted;
}

static void word_counts_add_word(WordCounts *c, const char *word, size_t n) {
    uint64_t hash = hash_add(n, word, n);
    if (2 * c->n >= c->mask) word_counts_rehash(c);
    size_t slot = hash & c->mask;
    for (; c->slots[slot]; slot = (slot + 1) & c->mask) {
        CountedWord *w = &c->words[c->slots[slot] - 1];
        if (w->hash == hash && w->length == n && memcmp(c->text + w->start, word, n) == 0) {
            w->count++;
            return;
        }
    }
    word_counts_push(c, word, n, hash);
    c->slots[slot] = (uint32_t)c->n;
}

void word_counts_add(WordCounts *c, const char *text, size_t n) {
    for (size_t i = 0, length; i < n; i += length) {
        length = word_length(text + i, n - i);
        word_counts_add_word(c, text + i, length);
    }
}

// An adjacent pair of tokens, its count, and the words in which it has occurred.
typedef struct {
    int left, right;
    int64_t count;
    uint32_t *words;
    size_t n_words, capacity;
} TrainPair;

typedef struct {
    const WordCounts *counts;
    int byte[256];                 // the bytes in the order of the alphabet. Here a token is its
                                   // age: a byte's place in that order, or a merged token's id
    int *tokens;                   // word w is tokens[words[w].start] ..., length[w] of them
    size_t *length;
    TrainPair *pairs;
    size_t n_pairs, capacity;
    uint32_t *slots;               // 0, or 1 + the index of a pair
    size_t mask;
    Heap heap;                     // (-count, the two ages); counts may be too high
} Trainer;

static uint64_t pair_hash(int left, int right) {
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    return key * 0x9E3779B97F4A7C15ull >> 24;
}

static size_t trainer_slot(const Trainer *tr, int left, int right) {
    size_t slot = pair_hash(left, right) & tr->mask;
    for (; tr->slots[slot]; slot = (slot + 1) & tr->mask) {
        const TrainPair *p = &tr->pairs[tr->slots[slot] - 1];
        if (p->left == left && p->right == right) break;
    }
    return slot;
}

static void trainer_rehash(Trainer *tr) {
    size_t slots = slots_for(2 * tr->n_pairs + 1024);
    free(tr->slots);
    tr->slots = (uint32_t *)alloc_or_die(slots * sizeof *tr->slots, "the pairs of tokens");
    tr->mask = slots - 1;
    for (size_t i = 0; i < tr->n_pairs; i++)
        tr->slots[trainer_slot(tr, tr->pairs[i].left, tr->pairs[i].right)] = (uint32_t)(i + 1);
}

static TrainPair *trainer_pair(Trainer *tr, int left, int right) {
    if (2 * tr->n_pairs >= tr->mask) trainer_rehash(tr);
    size_t slot = trainer_slot(tr, left, right);
    if (!tr->slots[slot]) {
        tr->pairs = (TrainPair *)grow_or_die(tr->pairs, &tr->capacity, tr->n_pairs + 1,
                                             sizeof *tr->pairs, "the pairs of tokens");
        TrainPair pair = { left, right, 0, NULL, 0, 0 };
        tr->pairs[tr->n_pairs++] = pair;
        tr->slots[slot] = (uint32_t)tr->n_pairs;
    }
    return &tr->pairs[tr->slots[slot] - 1];
}

// Records one more occurrence of the pair in word w.
static void trainer_add(Trainer *tr, int left, int right, size_t w) {
    TrainPair *p = trainer_pair(tr, left, right);
    p->count += tr->counts->words[w].count;
    if (p->n_words > 0 && p->words[p->n_words - 1] == w) return;
    p->words = (uint32_t *)grow_or_die(p->words, &p->capacity, p->n_words + 1, sizeof *p->words,
                                       "the words of a pair");
    p->words[p->n_words++] = (uint32_t)w;
}

static void trainer_subtract(Trainer *tr, int left, int right, size_t w) {
    trainer_pair(tr, left, right)->count -= tr->counts->words[w].count;
}

static void trainer_push(Trainer *tr, const TrainPair *p) {
    if (p->count > 0)
        heap_push(&tr->heap, -p->count, (uint64_t)p->left << 32 | (uint64_t)p->right);
}

static void trainer_init(Trainer *tr, const WordCounts *counts) {
    memset(tr, 0, sizeof *tr);
    tr->counts = counts;
    tr->tokens = (int *)alloc_or_die(counts->text_n * sizeof *tr->tokens, "the words of a text");
    tr->length = (size_t *)alloc_or_die(counts->n * sizeof *tr->length, "the words of a text");
    trainer_rehash(tr);
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
    for (size_t i = 0; i < tr->n_pairs; i++) trainer_push(tr, &tr->pairs[i]);
}

static void trainer_free(Trainer *tr) {
    for (size_t i = 0; i < tr->n_pairs; i++) free(tr->pairs[i].words);
    free(tr->tokens);
    free(tr->length);
    free(tr->pairs);
    free(tr->slots);
    free(tr->heap.entries);
}

// The most frequent pair; false if no pair occurs twice. A count in the heap may be out of date,
// but never too low, because a pair's count only falls after the merge that created the pair.
static bool trainer_best(Trainer *tr, int *left, int *right) {
    while (tr->heap.n > 0) {
        HeapEntry best = heap_pop(&tr->heap);
        *left = (int)(best.item >> 32);
        *right = (int)(best.item & 0xFFFFFFFFu);
        TrainPair *p = trainer_pair(tr, *left, *right);
        if (p->count == -best.key) return p->count > 1;
        trainer_push(tr, p);
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
    size_t known = tr->n_pairs, index = (size_t)(trainer_pair(tr, left, right) - tr->pairs);
    for (size_t i = 0; i < tr->pairs[index].n_words; i++)  // index: tr->pairs may be reallocated
        trainer_merge_word(tr, tr->pairs[index].words[i], left, right, id);
    tr->pairs[index].count = 0;
    for (size_t i = known; i < tr->n_pairs; i++) trainer_push(tr, &tr->pairs[i]);
}

// Adds the token whose bytes are those of left and right, and the merge that makes it.
static void tokenizer_join(Tokenizer *t, int left, int right) {
    size_t a, b;
    char *joined = t->text + t->start[t->vocab_size];
    const char *text = tokenizer_piece(t, left, &a);
    memcpy(joined, text, a);
    text = tokenizer_piece(t, right, &b);
    memcpy(joined + a, text, b);
    // A byte string that no merge has joined to its neighbours is merged alike in every word, so no
    // two pairs give the same bytes.
    bool fresh = tokenizer_push(t, joined, a + b, TOKEN_WHOLE);
    assert(fresh);
    (void)fresh;
    tokenizer_push_merge(t, left, right, t->vocab_size - 1);
}

void tokenizer_train(Tokenizer *t, const WordCounts *counts, int vocab_size,
                     void (*show)(void *arg, double tokens), void *arg) {
    Trainer tr;
    Merge m;                                               // of ages
    size_t room = (size_t)vocab_size - 257, n = 0, bytes = 256 + strlen(END_OF_TEXT);
    Merge *merges = (Merge *)alloc_or_die(room * sizeof *merges, "the merges");
    size_t *length = (size_t *)alloc_or_die((room + 256) * sizeof *length, "the vocabulary");
    for (int b = 0; b < 256; b++) length[b] = 1;
    trainer_init(&tr, counts);
    for (; n < room && trainer_best(&tr, &m.left, &m.right); n++) {
        m.result = (int)n + 256;
        trainer_merge(&tr, m.left, m.right, m.result);
        bytes += length[m.result] = length[m.left] + length[m.right];
        if (m.left < 256) m.left = tr.byte[m.left];
        if (m.right < 256) m.right = tr.byte[m.right];
        merges[n] = m;
        if (show) show(arg, (double)(n + 257));
    }
    trainer_free(&tr);
    tokenizer_init(t, n + 257, bytes, n);
    tokenizer_push_bytes(t);
    for (size_t i = 0; i < n; i++) tokenizer_join(t, merges[i].left, merges[i].right);
    tokenizer_push_eot(t);
    free(merges);
    free(length);
}
