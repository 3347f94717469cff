// Files of a test: a folder of its own, and what lies in it. If the disk refuses, the program ends.
#pragma once
#include "../dev/data/data.h"
#include "../dev/files/files.h"

// A folder in `where`; NULL: where temporary files are.
static inline Path folder_make(const char *where) {
    const char *tmp = where ? where : getenv("TMPDIR");
    Path d;
    snprintf(d.text, sizeof d.text, "%.100s/batchwise.XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(d.text)) die("%s: %s", d.text, strerror(errno));
    return d;
}

static inline void folder_remove(const Path *d) {
    Error err;
    if (!path_remove(d->text, &err)) die("%s", err.text);
}

static inline Path in(const char *dir, const char *name) { return path_join(dir, name); }

// Writes a file of n bytes in place of what is there.
static inline void put(const char *dir, const char *name, const void *bytes, size_t n) {
    Path path = in(dir, name);
    unlink(path.text);                                   // a link is replaced, not followed
    FILE *f = fopen(path.text, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0)
        die("%s: %s", path.text, strerror(errno));
}

static inline void put_text(const char *dir, const char *name, const char *text) {
    put(dir, name, text, strlen(text));
}

// A file in memory, with a NUL behind it; the caller frees the bytes.
typedef struct { char *bytes; size_t n; } Content;

static inline Content slurp(const char *dir, const char *name) {
    Path path = in(dir, name);
    FILE *f = fopen(path.text, "rb");
    if (!f || fseek(f, 0, SEEK_END) != 0) die("%s: %s", path.text, strerror(errno));
    Content c = { NULL, (size_t)ftell(f) };
    c.bytes = (char *)alloc_or_die(c.n + 1, "a file");
    rewind(f);
    if (fread(c.bytes, 1, c.n, f) != c.n) die("%s: cannot be read", path.text);
    c.bytes[c.n] = '\0';
    fclose(f);
    return c;
}

// Whether a text, encoded and decoded, is itself; encoding gives no added tokens.
static inline bool comes_back(const Tokenizer *t, const char *text, size_t n) {
    int *ids = (int *)malloc((n + 1) * sizeof *ids);
    size_t count = tokenizer_encode(t, ids, text, n), at = 0, length;
    bool same = count <= n;
    for (size_t i = 0; same && i < count; i++) {
        const char *piece = tokenizer_piece(t, ids[i], &length);
        same = at + length <= n && memcmp(piece, text + at, length) == 0
            && t->kind[ids[i]] != TOKEN_ADDED;
        at += length;
    }
    free(ids);
    return same && at == n;
}

static inline bool same_tokenizer(const Tokenizer *a, const Tokenizer *b) {
    return a->vocab_size == b->vocab_size && a->eot == b->eot && a->n_merges == b->n_merges
        && !memcmp(a->start, b->start, (size_t)(a->vocab_size + 1) * sizeof *a->start)
        && !memcmp(a->text, b->text, a->start[a->vocab_size])
        && !memcmp(a->kind, b->kind, (size_t)a->vocab_size)
        && !memcmp(a->byte_id, b->byte_id, sizeof a->byte_id)
        && !memcmp(a->merges, b->merges, (size_t)a->n_merges * sizeof *a->merges);
}
