// Vocabulary files, and encoding with whatever vocabulary they turn out to hold: every text must
// come back, by one thread and by several.
//
// An accepted vocabulary has a token for each of 256 bytes, two kilobytes that a fuzzer would only
// break. So the first byte of an input may put them before the rest:
//
//     \1    tiktoken lines of the 256 bytes, then the input
//     \2    a tokenizer.json up to its 256 bytes and end of text, then the input
//     \3    a whole vocab.json; the input is the merges.txt beside it
//
// Any other input is a file as it stands; a NUL in it ends a vocab.json, and a merges.txt follows.
#include <assert.h>
#include "../../dev/data/tokenizer.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

// ---- what is put before an input ----

typedef struct { char *text; size_t n; } Opening;
typedef struct { Opening tiktoken, tokenizer_json, vocab_json; Json vocab; } Openings;

static void print_tiktoken(FILE *f) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (int b = 0; b < 256; b++) fprintf(f, "%c%c== %d\n", digits[b >> 2], digits[b << 4 & 63], b);
}

// Bytes, some of which the merges may reach, and end of text; without the last bracket.
static void print_vocab(FILE *f) {
    Tokenizer t;
    static const char *const more[] = { "ab", "abc", "aa", "aaaa", "bcd", "abcd", "Ġa", "Ġab" };
    tokenizer_bytes(&t);
    fputs("{\"" END_OF_TEXT "\":256", f);
    for (int id = 0; id < 256; id++) {
        char chars[2];
        fputc(',', f);
        token_print(f, &t, id, chars);
        fprintf(f, ":%d", id);
    }
    for (int i = 0; i < (int)(sizeof more / sizeof *more); i++)
        fprintf(f, ",\"%s\":%d", more[i], 257 + i);
    tokenizer_free(&t);
}

static Openings prefixes_make(void) {
    Openings p;
    Error err;
    FILE *f = open_memstream(&p.tiktoken.text, &p.tiktoken.n);
    print_tiktoken(f);
    fclose(f);
    f = open_memstream(&p.tokenizer_json.text, &p.tokenizer_json.n);
    fputs("{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"vocab\":", f);
    print_vocab(f);
    fclose(f);
    f = open_memstream(&p.vocab_json.text, &p.vocab_json.n);
    print_vocab(f);
    fputs("}", f);
    fclose(f);
    if (!json_parse(&p.vocab, p.vocab_json.text, p.vocab_json.n, &err)) die("%s", err.text);
    return p;
}

// Made once: they are most of the work otherwise.
static const Openings *prefixes(void) {
    static Openings made;
    if (!made.tiktoken.text) made = prefixes_make();
    return &made;
}

// ---- the kinds of input ----

static bool parse_after(Tokenizer *t, const Opening *p, const char *text, size_t n, Error *err) {
    char *whole = (char *)alloc_or_die(p->n + n, "the file");
    memcpy(whole, p->text, p->n);
    memcpy(whole + p->n, text, n);
    bool good = tokenizer_parse(t, whole, p->n + n, "/nowhere/vocab.json", err);
    free(whole);
    return good;
}

static bool parse_vocab(Tokenizer *t, const Json *vocab, size_t vocab_bytes, const char *merges,
                        size_t n, Error *err) {
    FileMap text = { (const unsigned char *)merges, n };
    bool good = vocab->root->type == JSON_OBJECT
             && vocab_read(t, vocab->root, NULL, vocab_bytes, NULL, text, err);
    if (!good) tokenizer_free(t);
    return good;
}

static bool parse_pair(Tokenizer *t, const char *text, size_t n, const char *nul, Error *err) {
    Json j;
    size_t json_n = (size_t)(nul - text);
    if (!json_parse(&j, text, json_n, err)) return false;
    bool good = parse_vocab(t, &j, json_n, nul + 1, n - json_n - 1, err);
    json_free(&j);
    return good;
}

static bool parse_input(Tokenizer *t, const char *text, size_t n, Error *err) {
    const Openings *p = prefixes();
    memset(t, 0, sizeof *t);
    if (n == 0) return false;
    if (text[0] == 1) return parse_after(t, &p->tiktoken, text + 1, n - 1, err);
    if (text[0] == 2) return parse_after(t, &p->tokenizer_json, text + 1, n - 1, err);
    if (text[0] == 3) return parse_vocab(t, &p->vocab, p->vocab_json.n, text + 1, n - 1, err);
    const char *nul = (const char *)memchr(text, 0, n);
    return nul ? parse_pair(t, text, n, nul, err)
               : tokenizer_parse(t, text, n, "/nowhere/vocab.json", err);
}

// ---- what must hold ----

static void check_text(const Tokenizer *t, const char *text, size_t n) {
    int *ids = (int *)malloc((n + 1) * sizeof *ids), *same = (int *)malloc((n + 1) * sizeof *ids);
    size_t count = tokenizer_encode(t, ids, text, n), at = 0, length;
    assert(count <= n);
    for (size_t i = 0; i < count; i++) {
        assert(ids[i] >= 0 && ids[i] < t->vocab_size && t->kind[ids[i]] != TOKEN_ADDED);
        const char *piece = tokenizer_piece(t, ids[i], &length);
        assert(at + length <= n && memcmp(piece, text + at, length) == 0);
        at += length;
    }
    assert(at == n && tokenizer_encode_parallel(t, same, text, n) == count);
    assert(memcmp(ids, same, count * sizeof *ids) == 0);
    free(ids);
    free(same);
}

// Each merge puts two tokens together.
static void check_merges(const Tokenizer *t) {
    for (const Merge *m = t->merges; m < t->merges + t->n_merges; m++) {
        size_t a, b, n;
        assert(m->left >= 0 && m->left < t->vocab_size && m->right >= 0);
        assert(m->right < t->vocab_size && m->result >= 0 && m->result < t->vocab_size);
        const char *left = tokenizer_piece(t, m->left, &a);
        const char *right = tokenizer_piece(t, m->right, &b);
        const char *both = tokenizer_piece(t, m->result, &n);
        assert(n == a + b && memcmp(both, left, a) == 0 && memcmp(both + a, right, b) == 0);
    }
}

// The tokens beyond the bytes, again and again: a long word, if they are letters.
static void check_long_text(const Tokenizer *t) {
    char text[256];
    size_t at = 0, length;
    for (int i = 0; i < 256; i++) {
        int id = 256 + i % (t->vocab_size - 256);
        if (t->kind[id] == TOKEN_ADDED) continue;
        const char *piece = tokenizer_piece(t, id, &length);
        if (at + length > sizeof text) break;
        memcpy(text + at, piece, length);
        at += length;
    }
    check_text(t, text, at);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    const char *text = (const char *)data;
    Tokenizer t;
    Error err;
    if (!parse_input(&t, text, n, &err)) return 0;
    assert(t.vocab_size > 256 && t.eot >= 0 && t.eot < t.vocab_size);
    assert(t.kind[t.eot] == TOKEN_ADDED);
    check_merges(&t);
    check_long_text(&t);
    check_text(&t, text, n < 200 ? n : 200);
    for (int id = 256; id < t.vocab_size && id < 300; id++) {    // most files begin with the bytes
        size_t length;
        const char *piece = tokenizer_piece(&t, id, &length);
        check_text(&t, piece, length);
    }
    tokenizer_free(&t);
    return 0;
}
