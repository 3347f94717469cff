// Reads and writes GGUF, the file format of llama.cpp: its container. gguf_gpt2.h has GPT-2 in it,
// tokenizer.h a tokenizer.
//
//     "GGUF"      u32 version, u64 number of tensors, u64 number of pairs
//     pairs       key, u32 type, value. A text is its u64 length and its bytes. An array is the u32
//                 type of its elements, their u64 number, and the elements
//     tensors     name, u32 number of sizes, u64 sizes (the innermost first), u32 type, u64 offset
//     the data    the tensors in that order, each padded to a multiple of general.alignment, or 32;
//                 the data begins at such a multiple too, and offsets count from there
//
// All is little-endian. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
//
//     Gguf g;  GgufValue v;  GgufInfo t;               GgufHeader h;
//     if (!gguf_parse(&g, bytes, n, &err)) ...         if (!gguf_begin(&h, &err)) ...
//     if (gguf_get(&v, &g, key, GGUF_F32)) ...         gguf_put_u32_pair(&h, key, 12); ...
//     GgufBytes b = g.infos;                           if (!gguf_end(&h, &err)) ...
//     ... gguf_take_info(&t, &b) ...                   ... h.text, then the data; free(h.text) ...
#pragma once
#include "file.h"
#include "floats.h"

enum {
    GGUF_U32 = 4, GGUF_I32 = 5, GGUF_F32 = 6, GGUF_BOOL = 7, GGUF_TEXT = 8, GGUF_ARRAY = 9,
    GGUF_ARRAY_OF = 256,                     // GGUF_ARRAY_OF | type: of a value in memory
    GGUF_ALIGNMENT = 32,
    GGUF_MAX_NAME = 64, GGUF_MAX_DIMS = 4,   // as in ggml
};

static inline uint64_t gguf_align(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

// ---- reading: nothing is taken beyond the end ----

typedef struct { const unsigned char *at; size_t left; } GgufBytes;
typedef struct { const char *bytes; uint64_t n; } GgufText;

// The next n bytes; NULL if fewer are left.
static inline const unsigned char *gguf_take(GgufBytes *b, uint64_t n) {
    const unsigned char *taken = b->at;
    if (n > b->left) return NULL;
    b->at += n;
    b->left -= n;
    return taken;
}

// A number of so many bytes.
static inline bool gguf_take_number(void *x, size_t bytes, GgufBytes *b) {
    const unsigned char *p = gguf_take(b, bytes);
    if (p) memcpy(x, p, bytes);
    return p != NULL;
}

static inline bool gguf_take_text(GgufText *t, GgufBytes *b) {
    return gguf_take_number(&t->n, 8, b) && (t->bytes = (const char *)gguf_take(b, t->n)) != NULL;
}

static inline bool gguf_text_is(GgufText t, const char *text) {
    return t.n == strlen(text) && memcmp(t.bytes, text, t.n) == 0;
}

typedef struct {
    uint32_t type;
    uint64_t n;                              // elements of an array; otherwise 1
    GgufBytes bytes;                         // the elements, complete
} GgufValue;

static inline bool gguf_take_value(GgufValue *v, GgufBytes *b) {
    static const uint8_t sizes[] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };    // by type
    uint32_t type, array = 0;
    GgufText text;
    v->n = 1;
    if (!gguf_take_number(&type, 4, b)) return false;
    if (type == GGUF_ARRAY) {
        array = GGUF_ARRAY_OF;
        if (!gguf_take_number(&type, 4, b) || !gguf_take_number(&v->n, 8, b)) return false;
    }
    if (type >= sizeof sizes || type == GGUF_ARRAY) return false;        // no arrays of arrays
    v->type = array | type;
    v->bytes = *b;
    for (uint64_t i = 0; type == GGUF_TEXT && i < v->n; i++)
        if (!gguf_take_text(&text, b)) return false;
    if (type != GGUF_TEXT && (v->n > b->left / sizes[type] || !gguf_take(b, v->n * sizes[type])))
        return false;
    v->bytes.left -= b->left;
    return true;
}

typedef struct {
    size_t n;                                // bytes of the file
    uint64_t n_pairs, n_tensors;
    GgufBytes pairs, infos;                  // from the first pair on; from the first tensor's name
} Gguf;

static inline bool gguf_is(const unsigned char *bytes, size_t n) {
    return n >= 4 && memcmp(bytes, "GGUF", 4) == 0;
}

// Reads the header and checks that the pairs are complete. The bytes must stay valid.
static inline bool gguf_parse(Gguf *g, const unsigned char *bytes, size_t n, Error *err) {
    GgufBytes b = { bytes, n };
    GgufText key;
    GgufValue value;
    uint32_t version;
    memset(g, 0, sizeof *g);
    g->n = n;
    if (!gguf_is(bytes, n)) return fail(err, "not a GGUF file");
    gguf_take(&b, 4);
    if (!gguf_take_number(&version, 4, &b) || !gguf_take_number(&g->n_tensors, 8, &b)
        || !gguf_take_number(&g->n_pairs, 8, &b)) return fail(err, "truncated: %zu bytes", n);
    if (version != 2 && version != 3)        // 3 differs in what it says of big-endian files
        return fail(err, "GGUF's version %u; expected 2 or 3", version);
    g->pairs = b;
    for (uint64_t i = 0; i < g->n_pairs; i++)
        if (!gguf_take_text(&key, &b) || !gguf_take_value(&value, &b))
            return fail(err, "truncated or damaged at byte %zu of %zu: pair %llu of %llu",
                        n - b.left, n, (unsigned long long)i + 1, (unsigned long long)g->n_pairs);
    g->infos = b;
    return true;
}

// A linear search; false if there is no such key of this type.
static inline bool gguf_get(GgufValue *v, const Gguf *g, const char *key, uint32_t type) {
    GgufBytes b = g->pairs;
    GgufText name;
    for (uint64_t i = 0; i < g->n_pairs && gguf_take_text(&name, &b) && gguf_take_value(v, &b); i++)
        if (gguf_text_is(name, key)) return v->type == type;
    return false;
}

static inline bool gguf_need_text(const Gguf *g, const char *key, const char *text, Error *err) {
    GgufValue v;
    GgufText found;
    if (gguf_get(&v, g, key, GGUF_TEXT) && gguf_take_text(&found, &v.bytes)
        && gguf_text_is(found, text)) return true;
    return fail(err, "\"%s\" must be \"%s\"; nothing else is supported", key, text);
}

static inline bool gguf_need_size(int *size, const Gguf *g, const char *key, uint32_t most,
                                  Error *err) {
    GgufValue v;
    uint32_t x;
    if (!gguf_get(&v, g, key, GGUF_U32) || !gguf_take_number(&x, 4, &v.bytes) || x < 1 || x > most)
        return fail(err, "\"%s\" must be a whole number (u32) from 1 to %u", key, most);
    *size = (int)x;
    return true;
}

// What a file says of a tensor.
typedef struct {
    char name[GGUF_MAX_NAME];                // made printable
    uint64_t dims[GGUF_MAX_DIMS], offset;    // sizes beyond the last one: 1
    uint32_t type;
} GgufInfo;

static inline bool gguf_take_info(GgufInfo *t, GgufBytes *b) {
    GgufText name;
    uint32_t n_dims;
    memset(t, 0, sizeof *t);
    if (!gguf_take_text(&name, b) || name.n >= GGUF_MAX_NAME || !gguf_take_number(&n_dims, 4, b)
        || n_dims > GGUF_MAX_DIMS) return false;
    for (size_t i = 0; i < name.n; i++)
        t->name[i] = name.bytes[i] > 0x20 && name.bytes[i] < 0x7F ? name.bytes[i] : '?';
    for (uint32_t i = 0; i < GGUF_MAX_DIMS; i++) {
        t->dims[i] = 1;
        if (i < n_dims && !gguf_take_number(&t->dims[i], 8, b)) return false;
    }
    return gguf_take_number(&t->type, 4, b) && gguf_take_number(&t->offset, 8, b);
}

// ---- writing: all that precedes the data, in memory ----

typedef struct {
    FILE *f;
    char *text;                              // (n) valid after gguf_end
    size_t n;
    uint64_t n_tensors, n_pairs;             // so far
} GgufHeader;

static inline void gguf_put_u32(GgufHeader *h, uint32_t x) { fwrite(&x, sizeof x, 1, h->f); }
static inline void gguf_put_u64(GgufHeader *h, uint64_t x) { fwrite(&x, sizeof x, 1, h->f); }

static inline void gguf_put_text(GgufHeader *h, const char *bytes, size_t n) {
    gguf_put_u64(h, n);
    fwrite(bytes, 1, n, h->f);
}

static inline bool gguf_begin(GgufHeader *h, Error *err) {
    memset(h, 0, sizeof *h);
    h->f = open_memstream(&h->text, &h->n);
    if (!h->f) return fail(err, "out of memory for a header");
    fputs("GGUF", h->f);
    gguf_put_u32(h, 3);
    gguf_put_u64(h, 0);                      // the two numbers: gguf_end knows them
    gguf_put_u64(h, 0);
    return true;
}

// The caller puts the value.
static inline void gguf_put_key(GgufHeader *h, const char *key, uint32_t type) {
    gguf_put_text(h, key, strlen(key));
    gguf_put_u32(h, type);
    h->n_pairs++;
}

static inline void gguf_put_u32_pair(GgufHeader *h, const char *key, uint32_t x) {
    gguf_put_key(h, key, GGUF_U32);
    gguf_put_u32(h, x);
}

static inline void gguf_put_text_pair(GgufHeader *h, const char *key, const char *text) {
    gguf_put_key(h, key, GGUF_TEXT);
    gguf_put_text(h, text, strlen(text));
}

// The caller puts the n elements.
static inline void gguf_put_array(GgufHeader *h, const char *key, uint32_t type, uint64_t n) {
    gguf_put_key(h, key, GGUF_ARRAY);
    gguf_put_u32(h, type);
    gguf_put_u64(h, n);
}

static inline bool gguf_end(GgufHeader *h, Error *err) {
    const long n = GGUF_ALIGNMENT;
    for (long padding = (n - ftell(h->f) % n) % n; padding > 0; padding--) fputc(0, h->f);
    bool whole = !ferror(h->f);
    if (fclose(h->f) == 0 && whole) {
        memcpy(h->text + 8, &h->n_tensors, sizeof h->n_tensors);
        memcpy(h->text + 16, &h->n_pairs, sizeof h->n_pairs);
        return true;
    }
    free(h->text);
    return fail(err, "out of memory for a header");
}
