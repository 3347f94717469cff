// GPT-2 in a GGUF file, as llama.cpp wants it.
//
// Reading                                              Writing
//     GgufModel m;                                         GgufHeader h;
//     if (!gguf_model(&m, bytes, n, &err)) ...             if (!gguf_begin(&h, &err)) ...
//     gguf_tensor(out, &m, i); ...                         gguf_put_model(&h, &c, FLOAT_16);
//     gguf_model_free(&m);                                 ... further pairs ...
//                                                          gguf_put_tensors(&h, &c, FLOAT_16);
//                                                          if (!gguf_end(&h, &err)) ...
//                                                          ... write h.text to the file ...
//                                                          gguf_append(fd, in, &tensor, ...); ...
//
// Matrices in the blocks are (out, in), as in PyTorch's Linear; ours are (in, out): we transpose
// them. A file without output.weight has tied weights. Names of keys and tensors: llama.cpp's
// src/llama-arch.cpp and src/models/gpt2.cpp.
#pragma once
#include "../base/gpt2.h"
#include "gguf.h"

// The tensors' names, in the order of gpt2.h's table.
static const char *const gguf_names[N_KINDS] = {
    "token_embd.weight", "position_embd.weight",
    "blk.%d.attn_norm.weight", "blk.%d.attn_norm.bias",
    "blk.%d.attn_qkv.weight", "blk.%d.attn_qkv.bias",
    "blk.%d.attn_output.weight", "blk.%d.attn_output.bias",
    "blk.%d.ffn_norm.weight", "blk.%d.ffn_norm.bias",
    "blk.%d.ffn_up.weight", "blk.%d.ffn_up.bias",
    "blk.%d.ffn_down.weight", "blk.%d.ffn_down.bias",
    "output_norm.weight", "output_norm.bias",
};

typedef struct { char text[GGUF_MAX_NAME]; } GgufName;

static inline GgufName gguf_name(const Tensor *t) {
    GgufName name;
    snprintf(name.text, sizeof name.text, gguf_names[t->kind], t->layer);
    return name;
}

static inline bool gguf_is_vector(const Tensor *t) { return tensor_kinds[t->kind].rows == DIM_1; }
static inline bool gguf_is_transposed(const Tensor *t) {
    return t->layer >= 0 && !gguf_is_vector(t);
}

// The sizes of t in a file, the innermost first.
static inline void gguf_dims(uint64_t dims[GGUF_MAX_DIMS], const Tensor *t) {
    dims[0] = gguf_is_transposed(t) ? t->rows : t->cols;
    dims[1] = gguf_is_transposed(t) ? t->cols : t->rows;
    dims[2] = dims[3] = 1;
}

// ---- reading ----

typedef struct {
    FloatType type;
    uint64_t offset;                         // in the data
    bool there;
} GgufTensor;

typedef struct {
    Config c;
    const unsigned char *data;
    GgufTensor *tensors;                     // (gpt2_n_tensors + 1) as gpt2_tensor counts them; the
} GgufModel;                                 // last one is output.weight, which may be missing

// The sizes among the pairs. With the limits of config.json no product overflows.
static inline bool gguf_config(Config *c, const Gguf *g, Error *err) {
    GgufValue v;
    float epsilon;
    int inner;
    if (!gguf_need_text(g, "general.architecture", "gpt2", err)
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

// The index of the tensor of this name, as gpt2_tensor counts; gpt2_n_tensors for output.weight; -1
// for any other name.
static inline int gguf_place(const Config *c, const char *name) {
    long layer = strncmp(name, "blk.", 4) == 0 ? strtol(name + 4, NULL, 10) : 0;
    if (strcmp(name, "output.weight") == 0) return gpt2_n_tensors(c);
    for (int k = 0; k < N_KINDS && layer >= 0 && layer < c->L; k++) {
        int place = k < FIRST_IN_BLOCK ? k : k <= LAST_IN_BLOCK ? k + (int)layer*KINDS_IN_BLOCK
                                                                : k + (c->L - 1)*KINDS_IN_BLOCK;
        Tensor t = gpt2_tensor(c, place);
        if (strcmp(name, gguf_name(&t).text) == 0) return place;
    }
    return -1;
}

// Checks what the file says of a tensor. `end` is where the one before ends; then, this one.
static inline bool gguf_add(GgufModel *m, uint64_t *end, const GgufInfo *info, int alignment,
                            Error *err) {
    const int n = gpt2_n_tensors(&m->c), place = gguf_place(&m->c, info->name);
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
static inline bool gguf_check(const GgufModel *m, Error *err) {
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
static inline bool gguf_place_all(GgufModel *m, const Gguf *g, Error *err) {
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

static inline void gguf_model_free(GgufModel *m) {
    free(m->tensors);
    memset(m, 0, sizeof *m);
}

// Checks the n bytes of a whole file, which must stay valid until gguf_model_free. On failure there
// is nothing to free.
static inline bool gguf_model(GgufModel *m, const unsigned char *bytes, size_t n, Error *err) {
    Gguf g;
    memset(m, 0, sizeof *m);
    if (!gguf_parse(&g, bytes, n, err) || !gguf_config(&m->c, &g, err)) return false;
    m->tensors = (GgufTensor *)calloc((size_t)gpt2_n_tensors(&m->c) + 1, sizeof *m->tensors);
    if (!m->tensors) return fail(err, "out of memory for %d tensors", gpt2_n_tensors(&m->c));
    bool good = gguf_place_all(m, &g, err) && gguf_check(m, err);
    if (!good) gguf_model_free(m);
    return good;
}

// out (gpt2_tensor(&m->c, i).count) = tensor i. F16 and BF16 are widened, exactly.
static inline void gguf_tensor(float *out, const GgufModel *m, int i) {
    Tensor t = gpt2_tensor(&m->c, i);
    const unsigned char *in = m->data + m->tensors[i].offset;
    FloatType type = m->tensors[i].type;
    if (gguf_is_transposed(&t)) floats_transpose(out, in, t.rows, t.cols, type);
    else floats_read(out, in, t.count, type);
}

// ---- writing ----

// The type of a tensor in a file of this type: vectors and positions are always fp32, as the
// converter of llama.cpp has it.
static inline FloatType gguf_type(const Tensor *t, FloatType type) {
    return gguf_is_vector(t) || t->kind == WPE ? FLOAT_32 : type;
}

static inline void gguf_put_model(GgufHeader *h, const Config *c, FloatType type) {
    const float epsilon = 1e-5f;
    gguf_put_text_pair(h, "general.architecture", "gpt2");
    gguf_put_u32_pair(h, "general.file_type", type == FLOAT_16);         // 0: fp32, 1: mostly fp16
    gguf_put_u32_pair(h, "gpt2.block_count", (uint32_t)c->L);
    gguf_put_u32_pair(h, "gpt2.context_length", (uint32_t)c->P);
    gguf_put_u32_pair(h, "gpt2.embedding_length", (uint32_t)c->C);
    gguf_put_u32_pair(h, "gpt2.feed_forward_length", 4*(uint32_t)c->C);
    gguf_put_u32_pair(h, "gpt2.attention.head_count", (uint32_t)c->NH);
    gguf_put_key(h, "gpt2.attention.layer_norm_epsilon", GGUF_F32);
    fwrite(&epsilon, sizeof epsilon, 1, h->f);
}

static inline void gguf_put_tensors(GgufHeader *h, const Config *c, FloatType type) {
    uint64_t offset = 0, dims[GGUF_MAX_DIMS];
    for (int i = 0; i < gpt2_n_tensors(c); i++) {
        Tensor t = gpt2_tensor(c, i);
        GgufName name = gguf_name(&t);
        uint32_t n_dims = gguf_is_vector(&t) ? 1 : 2;
        gguf_dims(dims, &t);
        gguf_put_text(h, name.text, strlen(name.text));
        gguf_put_u32(h, n_dims);
        fwrite(dims, sizeof *dims, n_dims, h->f);
        gguf_put_u32(h, (uint32_t)gguf_type(&t, type));
        gguf_put_u64(h, offset);
        offset += gguf_align(t.count * float_bytes(gguf_type(&t, type)), GGUF_ALIGNMENT);
        h->n_tensors++;
    }
}

// Appends a tensor to a file, and padding.
//   in       (t->count) is overwritten
//   scratch  (4*C*C) for a transposed matrix
static inline bool gguf_append(int fd, float *in, const Tensor *t, FloatType type, float *scratch,
                               const char *path, Error *err) {
    static const unsigned char zeros[GGUF_ALIGNMENT] = { 0 };
    size_t bytes = t->count * float_bytes(gguf_type(t, type));
    if (gguf_is_transposed(t)) {
        floats_transpose(scratch, (const unsigned char *)in, t->cols, t->rows, FLOAT_32);
        in = scratch;
    }
    if (gguf_type(t, type) == FLOAT_16) floats_to_f16((unsigned char *)in, in, t->count);
    return file_put(fd, in, bytes, path, err)
        && file_put(fd, zeros, (size_t)gguf_align(bytes, GGUF_ALIGNMENT) - bytes, path, err);
}
