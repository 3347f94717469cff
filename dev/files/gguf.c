// Reads and writes GGUF, the file format of llama.cpp: its container (files.h).
#include "files.h"

static uint64_t gguf_align(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

// ---- reading: nothing is taken beyond the end ----

// The next n bytes; NULL if fewer are left.
static const unsigned char *gguf_take(GgufBytes *b, uint64_t n) {
    const unsigned char *taken = b->at;
    if (n > b->left) return NULL;
    b->at += n;
    b->left -= n;
    return taken;
}

// A number of so many bytes.
static bool gguf_take_number(void *x, size_t bytes, GgufBytes *b) {
    const unsigned char *p = gguf_take(b, bytes);
    if (p) memcpy(x, p, bytes);
    return p != NULL;
}

bool gguf_take_text(GgufText *t, GgufBytes *b) {
    return gguf_take_number(&t->n, 8, b) && (t->bytes = (const char *)gguf_take(b, t->n)) != NULL;
}

static bool gguf_take_value(GgufValue *v, GgufBytes *b) {
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

bool gguf_is(const unsigned char *bytes, size_t n) {
    return n >= 4 && memcmp(bytes, "GGUF", 4) == 0;
}

bool gguf_parse(Gguf *g, const unsigned char *bytes, size_t n, Error *err) {
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

bool gguf_get(GgufValue *v, const Gguf *g, const char *key, uint32_t type) {
    GgufBytes b = g->pairs;
    GgufText name;
    for (uint64_t i = 0; i < g->n_pairs && gguf_take_text(&name, &b) && gguf_take_value(v, &b); i++)
        if (text_is(name.bytes, name.n, key)) return v->type == type;
    return false;
}

bool gguf_need_text(const Gguf *g, const char *key, const char *text, Error *err) {
    GgufValue v;
    GgufText found;
    if (gguf_get(&v, g, key, GGUF_TEXT) && gguf_take_text(&found, &v.bytes)
        && text_is(found.bytes, found.n, text)) return true;
    return fail(err, "\"%s\" must be \"%s\"; nothing else is supported", key, text);
}

static bool gguf_need_size(int *size, const Gguf *g, const char *key, uint32_t most, Error *err) {
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

static bool gguf_take_info(GgufInfo *t, GgufBytes *b) {
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

void gguf_put_u32(GgufHeader *h, uint32_t x) { fwrite(&x, sizeof x, 1, h->t.f); }

static void gguf_put_u64(GgufHeader *h, uint64_t x) { fwrite(&x, sizeof x, 1, h->t.f); }

void gguf_put_text(GgufHeader *h, const char *bytes, size_t n) {
    gguf_put_u64(h, n);
    fwrite(bytes, 1, n, h->t.f);
}

void gguf_begin(GgufHeader *h) {
    memset(h, 0, sizeof *h);
    text_begin(&h->t);
    fputs("GGUF", h->t.f);
    gguf_put_u32(h, 3);
    gguf_put_u64(h, 0);                      // the two numbers: gguf_end knows them
    gguf_put_u64(h, 0);
}

void gguf_put_key(GgufHeader *h, const char *key, uint32_t type) {
    gguf_put_text(h, key, strlen(key));
    gguf_put_u32(h, type);
    h->n_pairs++;
}

void gguf_put_u32_pair(GgufHeader *h, const char *key, uint32_t x) {
    gguf_put_key(h, key, GGUF_U32);
    gguf_put_u32(h, x);
}

void gguf_put_text_pair(GgufHeader *h, const char *key, const char *text) {
    gguf_put_key(h, key, GGUF_TEXT);
    gguf_put_text(h, text, strlen(text));
}

void gguf_put_array(GgufHeader *h, const char *key, uint32_t type, uint64_t n) {
    gguf_put_key(h, key, GGUF_ARRAY);
    gguf_put_u32(h, type);
    gguf_put_u64(h, n);
}

void gguf_end(GgufHeader *h) {
    const long n = GGUF_ALIGNMENT;
    for (long padding = (n - ftell(h->t.f) % n) % n; padding > 0; padding--) fputc(0, h->t.f);
    text_end(&h->t);
    memcpy(h->t.text + 8, &h->n_tensors, sizeof h->n_tensors);
    memcpy(h->t.text + 16, &h->n_pairs, sizeof h->n_pairs);
}

typedef struct { char text[GGUF_MAX_NAME]; } GgufName;

static GgufName gguf_name(const Tensor *t) {
    GgufName name;
    snprintf(name.text, sizeof name.text, tensor_kind(t->kind)->gguf, t->layer);
    return name;
}

static bool gguf_is_transposed(const Tensor *t) {
    return t->layer >= 0 && !tensor_is_vector(t);
}

// The sizes of t in a file, the innermost first.
static void gguf_dims(uint64_t dims[GGUF_MAX_DIMS], const Tensor *t) {
    dims[0] = gguf_is_transposed(t) ? t->rows : t->cols;
    dims[1] = gguf_is_transposed(t) ? t->cols : t->rows;
    dims[2] = dims[3] = 1;
}

// ---- reading ----

// The sizes among the pairs. With the limits of config.json no product overflows.
static bool gguf_config(Config *c, const Gguf *g, Error *err) {
    GgufValue v;
    float epsilon;
    int inner = 0;
    if (!gguf_need_text(g, "general.architecture", MODEL_NAME, err)
        || !gguf_need_size(&c->L, g, "gpt2.block_count", 1 << 14, err)
        || !gguf_need_size(&c->NH, g, "gpt2.attention.head_count", 1 << 20, err)
        || !gguf_need_size(&c->C, g, "gpt2.embedding_length", 1 << 20, err)
        || !gguf_need_size(&c->P, g, "gpt2.context_length", 1 << 24, err)
        || !gguf_need_size(&inner, g, "gpt2.feed_forward_length", 1 << 22, err)) return false;
    if (c->C % c->NH != 0) return fail(err, "%d heads do not divide %d channels", c->NH, c->C);
    if (inner != 4*c->C)
        return fail(err, "\"gpt2.feed_forward_length\" is %d, not 4 * %d channels", inner, c->C);
    if (!gguf_get(&v, g, "gpt2.attention.layer_norm_epsilon", GGUF_F32)
        || !gguf_take_number(&epsilon, 4, &v.bytes) || !(fabs(epsilon / 1e-5 - 1.0) < 1e-6))
        return fail(err, "\"gpt2.attention.layer_norm_epsilon\" must be 1e-5 (f32)");
    if (!gguf_get(&v, g, "tokenizer.ggml.tokens", GGUF_ARRAY_OF | GGUF_TEXT) || v.n < 1
        || v.n > 1 << 24) return fail(err, "\"tokenizer.ggml.tokens\" must list the vocabulary");
    c->V = (int)v.n;
    return true;
}

// Checks what the file says of a tensor. `end` is where the one before ends; then, this one.
static bool gguf_add(GgufModel *m, uint64_t *end, const GgufInfo *info, int alignment, Error *err) {
    const int n = gpt2_n_tensors(&m->c);
    const int place = strcmp(info->name, "output.weight") == 0
                    ? n : tensor_find(&m->c, info->name, NAMED_GGUF);
    const uint64_t offset = gguf_align(*end, (uint64_t)alignment);
    uint64_t dims[GGUF_MAX_DIMS];
    if (place < 0) return fail(err, "tensor \"%s\" is not part of this GPT-2", info->name);
    if (m->tensors[place].there) return fail(err, "two tensors are called \"%s\"", info->name);
    Tensor t = gpt2_tensor(&m->c, place == n ? WTE : place);
    gguf_dims(dims, &t);
    if (memcmp(dims, info->dims, sizeof dims) != 0)
        return fail(err, "tensor \"%s\" is (%llu,%llu), but the sizes need (%llu,%llu)", info->name,
                    (unsigned long long)info->dims[0], (unsigned long long)info->dims[1],
                    (unsigned long long)dims[0], (unsigned long long)dims[1]);
    if (info->type != FLOAT_32 && info->type != FLOAT_16 && info->type != FLOAT_BF16)
        return fail(err, "tensor \"%s\" has ggml's type %u; expected 0 (F32), 1 (F16) or 30 (BF16)",
                    info->name, info->type);
    if (info->offset != offset)
        return fail(err, "tensor \"%s\" is at byte %llu of the data; expected %llu", info->name,
                    (unsigned long long)info->offset, (unsigned long long)offset);
    GgufTensor added = { (FloatType)info->type, offset, true };
    m->tensors[place] = added;
    *end = offset + t.count * float_bytes(added.type);
    return true;
}

// Every tensor must be there; output.weight may be, if it repeats token_embd.weight.
static bool gguf_check(const GgufModel *m, Error *err) {
    const int n = gpt2_n_tensors(&m->c);
    const GgufTensor *wte = &m->tensors[WTE], *head = &m->tensors[n];
    for (int i = 0; i < n; i++) {
        Tensor t = gpt2_tensor(&m->c, i);
        if (!m->tensors[i].there)
            return fail(err, "tensor \"%s\" is missing", gguf_name(&t).text);
    }
    size_t bytes = kind_count(&m->c, WTE) * float_bytes(wte->type);
    return !head->there || (head->type == wte->type && memcmp(m->data + head->offset,
                                                              m->data + wte->offset, bytes) == 0)
        || fail(err, "output.weight differs from token_embd.weight; only tied weights are "
                     "supported");
}

// All of the tensors' descriptions, and whether the file holds their data and no more.
static bool gguf_place_all(GgufModel *m, const Gguf *g, Error *err) {
    GgufBytes b = g->infos;
    GgufInfo info;
    GgufValue v;
    uint64_t end = 0;
    int alignment = GGUF_ALIGNMENT;
    if (gguf_get(&v, g, "general.alignment", GGUF_U32)
        && !gguf_need_size(&alignment, g, "general.alignment", 1 << 16, err)) return false;
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        if (!gguf_take_info(&info, &b))
            return fail(err, "truncated or damaged at byte %zu of %zu: tensor %llu of %llu",
                        g->n - b.left, g->n, (unsigned long long)i + 1,
                        (unsigned long long)g->n_tensors);
        if (!gguf_add(m, &end, &info, alignment, err)) return false;
    }
    uint64_t begin = gguf_align(g->n - b.left, (uint64_t)alignment);
    if (begin + end > g->n)
        return fail(err, "truncated: %zu bytes, but its tensors end at %llu", g->n,
                    (unsigned long long)(begin + end));
    if (begin + gguf_align(end, (uint64_t)alignment) < g->n)
        return fail(err, "%zu bytes after the last tensor", g->n - (size_t)(begin + end));
    m->data = b.at + (begin - (g->n - b.left));
    return true;
}

void gguf_model_free(GgufModel *m) {
    free(m->tensors);
    memset(m, 0, sizeof *m);
}

bool gguf_model(GgufModel *m, const unsigned char *bytes, size_t n, Error *err) {
    Gguf g;
    memset(m, 0, sizeof *m);
    if (!gguf_parse(&g, bytes, n, err) || !gguf_config(&m->c, &g, err)) return false;
    size_t n_tensors = (size_t)gpt2_n_tensors(&m->c) + 1;
    m->tensors = (GgufTensor *)alloc_or_die(n_tensors * sizeof *m->tensors, "a list of tensors");
    bool good = gguf_place_all(m, &g, err) && gguf_check(m, err);
    if (!good) gguf_model_free(m);
    return good;
}

// ---- writing ----

FloatType gguf_type(const Tensor *t, FloatType type) {
    bool positions = strcmp(tensor_kind(t->kind)->gguf, "position_embd.weight") == 0;
    return tensor_is_vector(t) || positions ? FLOAT_32 : type;
}

void gguf_put_model(GgufHeader *h, const Config *c, FloatType type) {
    const float epsilon = 1e-5f;
    gguf_put_text_pair(h, "general.architecture", MODEL_NAME);
    gguf_put_u32_pair(h, "general.file_type", type == FLOAT_16);         // 0: fp32, 1: mostly fp16
    gguf_put_u32_pair(h, "gpt2.block_count", (uint32_t)c->L);
    gguf_put_u32_pair(h, "gpt2.context_length", (uint32_t)c->P);
    gguf_put_u32_pair(h, "gpt2.embedding_length", (uint32_t)c->C);
    gguf_put_u32_pair(h, "gpt2.feed_forward_length", 4*(uint32_t)c->C);
    gguf_put_u32_pair(h, "gpt2.attention.head_count", (uint32_t)c->NH);
    gguf_put_key(h, "gpt2.attention.layer_norm_epsilon", GGUF_F32);
    fwrite(&epsilon, sizeof epsilon, 1, h->t.f);
}

void gguf_put_tensors(GgufHeader *h, const Config *c, FloatType type) {
    uint64_t offset = 0, dims[GGUF_MAX_DIMS];
    for (int i = 0; i < gpt2_n_tensors(c); i++) {
        Tensor t = gpt2_tensor(c, i);
        GgufName name = gguf_name(&t);
        uint32_t n_dims = tensor_is_vector(&t) ? 1 : 2;
        gguf_dims(dims, &t);
        gguf_put_text(h, name.text, strlen(name.text));
        gguf_put_u32(h, n_dims);
        fwrite(dims, sizeof *dims, n_dims, h->t.f);
        gguf_put_u32(h, (uint32_t)gguf_type(&t, type));
        gguf_put_u64(h, offset);
        offset += gguf_align(t.count * float_bytes(gguf_type(&t, type)), GGUF_ALIGNMENT);
        h->n_tensors++;
    }
}

bool gguf_append(int fd, float *in, const Tensor *t, FloatType type, float *scratch,
                 const char *path, Error *err) {
    static const unsigned char zeros[GGUF_ALIGNMENT] = { 0 };
    FloatType stored = gguf_type(t, type);
    size_t bytes = t->count * float_bytes(stored);
    if (gguf_is_transposed(t)) {
        floats_transpose(scratch, (const unsigned char *)in, t->cols, t->rows, FLOAT_32);
        in = scratch;
    }
    for (size_t i = 0; stored == FLOAT_16 && i < t->count; i++) {
        uint16_t half = f16_from_float(in[i]);
        memcpy((unsigned char *)in + 2*i, &half, sizeof half);       // not beyond in[i]
    }
    return file_put(fd, in, bytes, path, err)
        && file_put(fd, zeros, (size_t)gguf_align(bytes, GGUF_ALIGNMENT) - bytes, path, err);
}
