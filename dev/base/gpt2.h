// GPT-2 (Radford et al. 2019): its sizes, the table of its tensors, its FLOPs per token.
// Allocation, initialisation, weight decay, checkpoints and tests all read the one table.
//
// Parameters live in one flat buffer, layer-major: embeddings, block 0 ... block L-1, final norm.
// A block is one contiguous range. Weights are stored (in, out), as GPT-2's published files are.
//
// Files and ranks exchange parameters in buckets: bucket 0 is the embeddings, buckets 1 ... L are
// the blocks, bucket L+1 is the final norm.
#pragma once
#include "error.h"
#include "rng.h"

typedef struct {
    int L, NH, C;       // layers, heads, channels; NH divides C
    int V;              // vocabulary
    int P;              // positions: the longest T that the model accepts
    int cut;            // 0: the whole model; N: a rank's share of its tensors (tensor parallel)
} Config;

enum {
    WTE, WPE,
    LN1_GAIN, LN1_BIAS, QKV_W, QKV_B, ATT_PROJ_W, ATT_PROJ_B,
    LN2_GAIN, LN2_BIAS, FC_W, FC_B, MLP_PROJ_W, MLP_PROJ_B,
    LNF_GAIN, LNF_BIAS,
    N_KINDS,
    FIRST_IN_BLOCK = LN1_GAIN, LAST_IN_BLOCK = MLP_PROJ_B,
    KINDS_IN_BLOCK = LAST_IN_BLOCK - FIRST_IN_BLOCK + 1,
};

typedef enum { DIM_1, DIM_C, DIM_3C, DIM_4C, DIM_V, DIM_P } Dim;
typedef enum {
    INIT_ZEROS, INIT_ONES,
    INIT_NORMAL,        // N(0, 0.02)
    INIT_RESIDUAL,      // N(0, 0.02 / sqrt(2L)): the residual stream is a sum of 2L branches
} Init;

// Tensor parallel (dev/ranks/tensor.h): what of a tensor a rank holds.
typedef enum {
    CUT_NONE,           // all of it
    CUT_ROWS,           // 1/N of the rows
    CUT_COLUMNS,        // 1/N of the columns
    CUT_HEADS,          // of each of Q, K and V 1/N of the columns: whole heads
    CUT_WORDS,          // gpt2_share_words() rows
} Cut;

// A one-dimensional tensor has rows = DIM_1. Only matrices decay.
typedef struct { const char *key; Dim rows, cols; Init init; Cut cut; } TensorKind;

static const TensorKind tensor_kinds[N_KINDS] = {
    { "wte.weight",                DIM_V,  DIM_C,  INIT_NORMAL,   CUT_WORDS },
    { "wpe.weight",                DIM_P,  DIM_C,  INIT_NORMAL,   CUT_NONE },
    { "h.%d.ln_1.weight",          DIM_1,  DIM_C,  INIT_ONES,     CUT_NONE },
    { "h.%d.ln_1.bias",            DIM_1,  DIM_C,  INIT_ZEROS,    CUT_NONE },
    { "h.%d.attn.c_attn.weight",   DIM_C,  DIM_3C, INIT_NORMAL,   CUT_HEADS },
    { "h.%d.attn.c_attn.bias",     DIM_1,  DIM_3C, INIT_ZEROS,    CUT_HEADS },
    { "h.%d.attn.c_proj.weight",   DIM_C,  DIM_C,  INIT_RESIDUAL, CUT_ROWS },
    { "h.%d.attn.c_proj.bias",     DIM_1,  DIM_C,  INIT_ZEROS,    CUT_NONE },
    { "h.%d.ln_2.weight",          DIM_1,  DIM_C,  INIT_ONES,     CUT_NONE },
    { "h.%d.ln_2.bias",            DIM_1,  DIM_C,  INIT_ZEROS,    CUT_NONE },
    { "h.%d.mlp.c_fc.weight",      DIM_C,  DIM_4C, INIT_NORMAL,   CUT_COLUMNS },
    { "h.%d.mlp.c_fc.bias",        DIM_1,  DIM_4C, INIT_ZEROS,    CUT_COLUMNS },
    { "h.%d.mlp.c_proj.weight",    DIM_4C, DIM_C,  INIT_RESIDUAL, CUT_ROWS },
    { "h.%d.mlp.c_proj.bias",      DIM_1,  DIM_C,  INIT_ZEROS,    CUT_NONE },
    { "ln_f.weight",               DIM_1,  DIM_C,  INIT_ONES,     CUT_NONE },
    { "ln_f.bias",                 DIM_1,  DIM_C,  INIT_ZEROS,    CUT_NONE },
};

// One tensor of one model.
typedef struct {
    char key[48];            // Hugging Face's name, without the leading "transformer."
    int kind, layer;         // layer is -1 outside the blocks
    size_t rows, cols;
    size_t offset, count;    // its place in the flat buffer, in elements
    Init init;
    bool decays;
} Tensor;

static inline size_t dim_size(const Config *c, Dim d) {
    size_t C = (size_t)c->C;
    switch (d) {
        case DIM_C:  return C;
        case DIM_3C: return 3*C;
        case DIM_4C: return 4*C;
        case DIM_V:  return (size_t)c->V;
        case DIM_P:  return (size_t)c->P;
        default:     return 1;
    }
}

// Rows and columns that a rank holds.
static inline size_t kind_rows(const Config *c, int kind) {
    const TensorKind *k = &tensor_kinds[kind];
    return dim_size(c, k->rows) / (size_t)(k->cut == CUT_ROWS && c->cut ? c->cut : 1);
}

static inline size_t kind_cols(const Config *c, int kind) {
    const TensorKind *k = &tensor_kinds[kind];
    bool cut = k->cut == CUT_COLUMNS || k->cut == CUT_HEADS;
    return dim_size(c, k->cols) / (size_t)(cut && c->cut ? c->cut : 1);
}

static inline size_t kind_count(const Config *c, int kind) {
    return kind_rows(c, kind) * kind_cols(c, kind);
}

// Elements of all tensors of kinds first ... last-1.
static inline size_t kinds_count(const Config *c, int first, int last) {
    size_t n = 0;
    for (int k = first; k < last; k++) n += kind_count(c, k);
    return n;
}

static inline size_t gpt2_block_size(const Config *c) {
    return kinds_count(c, FIRST_IN_BLOCK, LAST_IN_BLOCK + 1);
}

static inline size_t gpt2_n_params(const Config *c) {
    return kinds_count(c, 0, FIRST_IN_BLOCK) + (size_t)c->L * gpt2_block_size(c)
         + kinds_count(c, LAST_IN_BLOCK + 1, N_KINDS);
}

// Where a tensor begins in the flat buffer; `layer` is ignored outside the blocks.
static inline size_t tensor_offset(const Config *c, int kind, int layer) {
    if (kind < FIRST_IN_BLOCK) return kinds_count(c, 0, kind);
    size_t blocks = kinds_count(c, 0, FIRST_IN_BLOCK);
    if (kind <= LAST_IN_BLOCK)
        return blocks + (size_t)layer*gpt2_block_size(c) + kinds_count(c, FIRST_IN_BLOCK, kind);
    return blocks + (size_t)c->L*gpt2_block_size(c) + kinds_count(c, LAST_IN_BLOCK + 1, kind);
}

static inline int gpt2_n_tensors(const Config *c) {
    return N_KINDS - KINDS_IN_BLOCK + c->L*KINDS_IN_BLOCK;
}

// Tensor i of gpt2_n_tensors(c), in the order of the flat buffer.
static inline Tensor gpt2_tensor(const Config *c, int i) {
    Tensor t;
    int in_blocks = c->L*KINDS_IN_BLOCK;
    bool before = i < FIRST_IN_BLOCK, inside = !before && i - FIRST_IN_BLOCK < in_blocks;
    t.kind = before ? i : inside ? FIRST_IN_BLOCK + (i - FIRST_IN_BLOCK) % KINDS_IN_BLOCK
                                 : i - in_blocks + KINDS_IN_BLOCK;
    t.layer = inside ? (i - FIRST_IN_BLOCK) / KINDS_IN_BLOCK : -1;
    const TensorKind *k = &tensor_kinds[t.kind];
    if (inside) snprintf(t.key, sizeof t.key, k->key, t.layer);
    else snprintf(t.key, sizeof t.key, "%s", k->key);
    t.rows = kind_rows(c, t.kind);
    t.cols = kind_cols(c, t.kind);
    t.count = t.rows * t.cols;
    t.offset = tensor_offset(c, t.kind, t.layer);
    t.init = k->init;
    t.decays = k->rows != DIM_1;
    return t;
}

// ---- tensor parallel: a rank's share ----

// Rows of wte that each of `ways` ranks holds. The last ranks may hold fewer words than rows: the
// rows left over are zero and stay zero. From 1,024 rows on they are a multiple of 128, for a GPU's
// tensor cores.
static inline int gpt2_share_words(int V, int ways) {
    int each = (V + ways - 1) / ways;
    return each < 1024 ? each : (each + 127) / 128 * 128;
}

// The sizes of a rank's share, the same on each of `ways` ranks. L, NH, C and P stay the model's.
static inline Config gpt2_share(const Config *c, int ways) {
    Config own = *c;
    if (ways == 1) return own;
    own.V = gpt2_share_words(c->V, ways);
    own.cut = ways;
    return own;
}

// ---- buckets ----

typedef struct { size_t begin, count; } Range;      // of the flat buffer, in elements

static inline int gpt2_n_buckets(const Config *c) { return c->L + 2; }

static inline Range gpt2_bucket(const Config *c, int bucket) {
    size_t embeddings = kinds_count(c, 0, FIRST_IN_BLOCK), block = gpt2_block_size(c);
    Range first = { 0, embeddings };
    Range inside = { embeddings + (size_t)(bucket - 1)*block, block };
    Range last = { embeddings + (size_t)c->L*block, kinds_count(c, LAST_IN_BLOCK + 1, N_KINDS) };
    return bucket == 0 ? first : bucket <= c->L ? inside : last;
}

// The index of a bucket's first tensor. For `bucket` = gpt2_n_buckets(c) it is the number of
// tensors, so bucket i always holds tensors first(i) ... first(i + 1) - 1.
static inline int gpt2_bucket_tensor(const Config *c, int bucket) {
    if (bucket == 0) return 0;
    return bucket <= c->L + 1 ? FIRST_IN_BLOCK + (bucket - 1)*KINDS_IN_BLOCK : gpt2_n_tensors(c);
}

// Elements of the largest bucket, for a buffer that holds any bucket. It is never the final norm.
static inline size_t gpt2_largest_bucket(const Config *c) {
    size_t embeddings = gpt2_bucket(c, 0).count, block = gpt2_bucket(c, 1).count;
    return embeddings > block ? embeddings : block;
}

// ---- what a run keeps of each parameter ----

// Arrays with one element for each parameter: the weights, AdamW's two moments, the momentum of
// DiLoCo's outer optimizer. Checkpoints name their tensors kept_prefixes[kept] + tensor key.
typedef enum {
    KEPT_WEIGHTS, KEPT_EXP_AVG, KEPT_EXP_AVG_SQ, KEPT_OUTER_MOMENTUM, KEPT_AVERAGE, N_KEPT
} Kept;

// GPT-2's initialisation of t, which is tensor i (Radford et al. 2019, section 2.3, for the
// residual projections). Each tensor draws from a random stream of its own.
static inline void gpt2_init_tensor(float *p, const Tensor *t, int i, int L, uint64_t seed) {
    Rng rng = rng_make(seed, (uint64_t)i);
    double std = t->init == INIT_RESIDUAL ? 0.02 / sqrt(2.0 * L) : 0.02;
    for (size_t j = 0; j < t->count; j++)
        p[j] = t->init == INIT_ZEROS ? 0.0f : t->init == INIT_ONES ? 1.0f
                                     : (float)(std * rng_normal(&rng));
}

// The same for all tensors of a bucket: p (gpt2_bucket(c, bucket).count).
static inline void gpt2_init_bucket(float *p, const Config *c, int bucket, uint64_t seed) {
    #pragma omp parallel for schedule(dynamic)
    for (int i = gpt2_bucket_tensor(c, bucket); i < gpt2_bucket_tensor(c, bucket + 1); i++) {
        Tensor t = gpt2_tensor(c, i);
        gpt2_init_tensor(p + t.offset - gpt2_bucket(c, bucket).begin, &t, i, c->L, seed);
    }
}

// ---- floating-point operations ----

// Floating-point operations of training on one token of a sequence of T: the numerator of MFU. A
// multiplication and an addition count as two operations. Each weight of a matrix product costs 6
// (2 forward, 4 backward); the tied head counts, an embedding's lookup does not. Attention costs
// 12·L·C·T, counted as if there were no causal mask: the convention of PaLM's appendix B.
static inline double gpt2_flops_per_token(const Config *c, int T) {
    double C = c->C, weights = 12.0*C*C*c->L + C*c->V;
    return 6.0*weights + 12.0*c->L*C*T;
}

// "d12" is GPT-2 124M: 12 layers, heads of 64. V and P are left unchanged.
static inline bool gpt2_preset(Config *c, const char *name, Error *err) {
    static const struct { const char *name; int L, NH, C; } presets[] = {
        { "d4", 4, 4, 256 },    { "d6", 6, 6, 384 },     { "d12", 12, 12, 768 },
        { "d24", 24, 16, 1024 }, { "d36", 36, 20, 1280 }, { "d48", 48, 25, 1600 },
    };
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
        if (strcmp(name, presets[i].name) != 0) continue;
        c->L = presets[i].L;
        c->NH = presets[i].NH;
        c->C = presets[i].C;
        return true;
    }
    return fail(err, "no model is called \"%s\"; choose d4, d6, d12 (GPT-2 124M), d24 (350M), "
                     "d36 (774M) or d48 (1.6B)", name);
}

// The batch, in tokens, of the GPT-3 model of a preset's size (Brown et al. 2020, arXiv 2005.14165,
// table 2.1) if `lr` is at least half of that model's learning rate; else 0.
static inline double gpt2_recipe_batch(const char *name, double lr) {
    static const struct { const char *name; double lr, batch; } recipes[] = {
        { "d12", 6e-4, 0.5e6 }, { "d24", 3e-4, 0.5e6 }, { "d36", 2.5e-4, 0.5e6 },
        { "d48", 2e-4, 1e6 },
    };
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++)
        if (strcmp(name, recipes[i].name) == 0 && lr >= 0.5*recipes[i].lr) return recipes[i].batch;
    return 0.0;
}
