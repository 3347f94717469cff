// GPT-2's byte-pair encoding (BPE): the vocabulary in memory, text to words, words to tokens.
// (Sennrich, Haddow and Birch, "Neural Machine Translation of Rare Words with Subword Units", ACL
// 2016; over bytes as in Radford et al., "Language Models are Unsupervised Multitask Learners",
// 2019.) tokenizer.c reads and writes vocabularies.
//
// Encoding has two steps. Pre-tokenization splits the text into words by fixed rules: "It's 3
// o'clock" -> It 's _3 _o 'clock, where _ is a space that belongs to the word after it. Then each
// word starts as its bytes, and the adjacent pair of the lowest rank is merged, repeatedly, until
// no adjacent pair has a merge. A merge never crosses a word boundary.
#include "data.h"
#include <limits.h>

// ============================== the vocabulary in memory ==============================

size_t slots_for(size_t n) {
    size_t slots = 64;
    while (slots < 2*n) slots *= 2;
    return slots;
}

void tokenizer_init(Tokenizer *t, size_t tokens, size_t merges) {
    memset(t, 0, sizeof *t);
    t->eot = -1;
    t->token_mask = slots_for(tokens) - 1;
    t->pair_mask = slots_for(merges) - 1;
    t->text = (char *)grow_or_die(NULL, &t->text_room, 256, 1, "the vocabulary");
    t->start = (size_t *)alloc_or_die((tokens + 1) * sizeof *t->start, "the vocabulary");
    t->kind = (unsigned char *)alloc_or_die(tokens, "the vocabulary");
    t->merges = (Merge *)alloc_or_die(merges * sizeof *t->merges, "the merges");
    t->token_slots = (int *)alloc_or_die((t->token_mask + 1) * sizeof(int), "the vocabulary");
    t->pair_slots = (int *)alloc_or_die((t->pair_mask + 1) * sizeof(int), "the merges");
    for (int b = 0; b < 256; b++) t->byte_id[b] = -1;
}

void tokenizer_free(Tokenizer *t) {
    free(t->text);
    free(t->start);
    free(t->kind);
    free(t->merges);
    free(t->token_slots);
    free(t->pair_slots);
    memset(t, 0, sizeof *t);
}

const char *tokenizer_piece(const Tokenizer *t, int id, size_t *length) {
    *length = t->start[id + 1] - t->start[id];
    return t->text + t->start[id];
}

// The slot of the token with these bytes, or the empty slot where it belongs.
static size_t token_slot(const Tokenizer *t, const char *text, size_t n) {
    size_t slot = hash_add(n, text, n) & t->token_mask;
    for (; t->token_slots[slot]; slot = (slot + 1) & t->token_mask) {
        size_t length;
        const char *piece = tokenizer_piece(t, t->token_slots[slot] - 1, &length);
        if (length == n && memcmp(piece, text, n) == 0) break;
    }
    return slot;
}

int tokenizer_find(const Tokenizer *t, const char *text, size_t n) {
    return t->token_slots[token_slot(t, text, n)] - 1;
}

static size_t pair_slot(const Tokenizer *t, int left, int right) {
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t slot = (key * 0x9E3779B97F4A7C15ull >> 32) & t->pair_mask;
    for (; t->pair_slots[slot]; slot = (slot + 1) & t->pair_mask) {
        const Merge *m = &t->merges[t->pair_slots[slot] - 1];
        if (m->left == left && m->right == right) break;
    }
    return slot;
}

#define NO_RANK INT_MAX

static int tokenizer_rank(const Tokenizer *t, int left, int right) {
    int found = t->pair_slots[pair_slot(t, left, right)];
    return found ? found - 1 : NO_RANK;
}

bool tokenizer_push(Tokenizer *t, const char *text, size_t n, TokenKind kind) {
    int id = t->vocab_size;
    size_t at = t->start[id], slot = token_slot(t, text, n);
    if (kind != TOKEN_ADDED) {
        if (t->token_slots[slot]) return false;
        t->token_slots[slot] = id + 1;
        if (n == 1) t->byte_id[(unsigned char)text[0]] = id;
    }
    t->text = (char *)grow_or_die(t->text, &t->text_room, at + n, 1, "the vocabulary");
    memcpy(t->text + at, text, n);
    t->start[id + 1] = at + n;
    t->kind[id] = (unsigned char)kind;
    t->vocab_size++;
    return true;
}

void tokenizer_push_eot(Tokenizer *t) {
    t->eot = t->vocab_size;
    tokenizer_push(t, END_OF_TEXT, strlen(END_OF_TEXT), TOKEN_ADDED);
}

bool tokenizer_push_merge(Tokenizer *t, int left, int right, int result) {
    size_t slot = pair_slot(t, left, right);
    if (t->pair_slots[slot]) return false;
    Merge merge = { left, right, result };
    t->merges[t->n_merges++] = merge;
    t->pair_slots[slot] = t->n_merges;
    return true;
}

void tokenizer_push_bytes(Tokenizer *t) {
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        tokenizer_push(t, &byte, 1, TOKEN_WHOLE);
    }
}

void tokenizer_bytes(Tokenizer *t) {
    tokenizer_init(t, 257, 0);
    tokenizer_push_bytes(t);
    tokenizer_push_eot(t);
}

// ============================== the alphabet ==============================
// Vocabulary files write each byte as a printable character: a visible character stands for itself,
// any other byte for a character from U+0100 on. Space is U+0120, a G with a dot.

bool byte_is_visible(int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
}

int byte_to_char(int b) {
    if (byte_is_visible(b)) return b;
    return b <= 32 ? 256 + b : b <= 160 ? 256 + 33 + b - 127 : 256 + HIDDEN_BYTES - 1;
}

int char_to_byte(int c) {
    if (c < 256) return byte_is_visible(c) ? c : -1;
    int hidden = c - 256;
    if (hidden >= HIDDEN_BYTES) return -1;
    return hidden <= 32 ? hidden : hidden < HIDDEN_BYTES - 1 ? hidden - 33 + 127 : 173;
}

// ============================== text to words ==============================
// Pre-tokenization by GPT-2's regular expression, in which the first matching alternative wins:
//
//     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// with the letters, numbers and spaces of Unicode 16.0. A byte outside UTF-8 characters counts
// as a character of class OTHER.

// The class of the first character of text[0..n), n > 0, and its length in bytes.
static int character_class(const char *text, size_t n, size_t *length) {
    const unsigned char *s = (const unsigned char *)text;
    *length = 1;
    if (s[0] < 0x80) {
        if ((unsigned)((s[0] | 32) - 'a') < 26) return CLASS_LETTER;
        if ((unsigned)(s[0] - '0') < 10) return CLASS_NUMBER;
        return s[0] == ' ' || (unsigned)(s[0] - '\t') < 5 ? CLASS_SPACE : CLASS_OTHER;
    }
    size_t valid = utf8_length(s, n);
    if (valid < 2) return CLASS_OTHER;
    *length = valid;
    return unicode_class(utf8_code_point(s, valid));
}

// The end of the run of one class that begins at text[i].
static size_t class_run(const char *text, size_t i, size_t n, int wanted) {
    size_t length;
    while (i < n && character_class(text + i, n - i, &length) == wanted) i += length;
    return i;
}

// The length of 's 't 'm 'd 're 've 'll at the start of text[0..n), or 0.
static size_t contraction_length(const char *text, size_t n) {
    if (n < 2 || text[0] != '\'') return 0;
    char a = text[1], b = n > 2 ? text[2] : '\0';
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    return ((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

size_t word_length(const char *text, size_t n) {
    size_t length = contraction_length(text, n), last = 0, end = 0;
    if (length) return length;
    int first = character_class(text, n, &length);
    if (first != CLASS_SPACE) return class_run(text, length, n, first);
    // The last space of a run belongs to the next word.
    while (end < n && character_class(text + end, n - end, &length) == CLASS_SPACE) {
        last = end;
        end += length;
    }
    if (end == n || last > 0) return end == n ? n : last;
    if (text[0] != ' ') return end;                        // only ' ' joins the next word
    return class_run(text, 1, n, character_class(text + 1, n - 1, &length));
}

size_t tokenizer_cut(const char *text, size_t n) {
    for (size_t c = n; c-- > 4; ) {
        size_t length, p = c - 1;                          // p: the character before c
        unsigned char first = (unsigned char)text[c];      // byte of the character after the cut
        if ((first & 0xC0) == 0x80 || (first >= 0x80 && n - c < 4)) continue;
        while (p > c - 4 && ((unsigned char)text[p] & 0xC0) == 0x80) p--;
        int after = character_class(text + c, n - c, &length);
        int before = character_class(text + p, c - p, &length);
        if (length != c - p) before = CLASS_OTHER;         // stray bytes
        if (before == CLASS_SPACE || before == after) continue;
        if (before != CLASS_OTHER || after != CLASS_LETTER) return c;
    }
    return 0;
}

// ============================== words to tokens ==============================

static bool heap_less(HeapEntry a, HeapEntry b) {
    return a.key != b.key ? a.key < b.key : a.item < b.item;
}

void heap_push(Heap *h, int64_t key, uint64_t item) {
    if (h->n == h->capacity)
        h->entries = (HeapEntry *)grow_or_die(h->entries, &h->capacity, h->n + 32,
                                              sizeof *h->entries, "a heap of merges");
    HeapEntry entry = { key, item };
    size_t i = h->n++;
    for (; i > 0 && heap_less(entry, h->entries[(i-1)/2]); i = (i-1)/2)
        h->entries[i] = h->entries[(i-1)/2];
    h->entries[i] = entry;
}

HeapEntry heap_pop(Heap *h) {
    HeapEntry first = h->entries[0], last = h->entries[--h->n];
    size_t i = 0;
    for (size_t child; (child = 2*i + 1) < h->n; i = child) {
        if (child + 1 < h->n && heap_less(h->entries[child + 1], h->entries[child])) child++;
        if (!heap_less(h->entries[child], last)) break;
        h->entries[i] = h->entries[child];
    }
    h->entries[i] = last;
    return first;
}

// A word that is merged: a linked list of tokens, and a heap of their pairs. A merge takes O(log n)
// time, however long the word is.
typedef struct { int id, rank; size_t before, after; } Node;   // rank: of the pair that begins here

enum { SHORT_WORD = 64 };              // needs no memory but the heap's

typedef struct {
    const Tokenizer *t;
    Node *nodes;                       // (n) after the last comes n
    size_t n;
    Heap pairs;                        // (rank, place); may be out of date
} Word;

static void word_rank(Word *w, size_t i) {
    Node *node = &w->nodes[i];
    node->rank = node->after == w->n ? NO_RANK
               : tokenizer_rank(w->t, node->id, w->nodes[node->after].id);
    if (node->rank != NO_RANK) heap_push(&w->pairs, node->rank, i);
}

// Merges the pair at i into one token, at i.
static void word_merge(Word *w, size_t i) {
    Node *node = &w->nodes[i], *gone = &w->nodes[node->after];
    node->id = w->t->merges[node->rank].result;
    gone->rank = NO_RANK;
    node->after = gone->after;
    if (node->after < w->n) w->nodes[node->after].before = i;
    word_rank(w, i);
    if (i > 0) word_rank(w, node->before);
}

size_t merge_word(const Tokenizer *t, int *ids, const char *text, size_t n) {
    Node few[SHORT_WORD];
    Word w = { t, few, n, { NULL, 0, 0 } };
    size_t count = 0;
    if (n > SHORT_WORD) w.nodes = (Node *)alloc_or_die(n * sizeof *w.nodes, "a long word");
    for (size_t i = 0; i < n; i++) {
        Node node = { t->byte_id[(unsigned char)text[i]], NO_RANK, i - 1, i + 1 };
        w.nodes[i] = node;
    }
    for (size_t i = 0; i < n; i++) word_rank(&w, i);
    while (w.pairs.n > 0) {
        HeapEntry best = heap_pop(&w.pairs);
        if (w.nodes[best.item].rank == best.key) word_merge(&w, (size_t)best.item);
    }
    for (size_t i = 0; i < n; i = w.nodes[i].after) ids[count++] = w.nodes[i].id;
    if (n > SHORT_WORD) free(w.nodes);
    free(w.pairs.entries);
    return count;
}

size_t tokenizer_encode(const Tokenizer *t, int *ids, const char *text, size_t n) {
    size_t count = 0, length;
    if (t->n_merges == 0) {                                // byte level
        for (size_t i = 0; i < n; i++) ids[i] = t->byte_id[(unsigned char)text[i]];
        return n;
    }
    for (size_t i = 0; i < n; i += length) {
        length = word_length(text + i, n - i);
        int id = tokenizer_find(t, text + i, length);
        if (id >= 0 && t->kind[id] == TOKEN_WHOLE) ids[count++] = id;
        else count += merge_word(t, ids + count, text + i, length);
    }
    return count;
}
