// GPT-2: its sizes, its tensors' places and beginnings, its FLOPs per token (gpt2.h).
#include "gpt2.h"

#ifdef __clang__
#pragma clang diagnostic ignored "-Wc99-designator"          // of C++, which GPU builds read
#endif
static const TensorKind tensor_kinds[N_KINDS] = {
    [WTE] = { "wte", "wte.weight", "token_embd.weight",
        DIM_V, DIM_C, INIT_NORMAL, CUT_WORDS },
    [WPE] = { "wpe", "wpe.weight", "position_embd.weight",
        DIM_P, DIM_C, INIT_NORMAL, CUT_NONE },
    [LN1_GAIN] = { "ln1_gain", "h.%d.ln_1.weight", "blk.%d.attn_norm.weight",
        DIM_1, DIM_C, INIT_ONES, CUT_NONE },
    [LN1_BIAS] = { "ln1_bias", "h.%d.ln_1.bias", "blk.%d.attn_norm.bias",
        DIM_1, DIM_C, INIT_ZEROS, CUT_NONE },
    [QKV_W] = { "qkv_w", "h.%d.attn.c_attn.weight", "blk.%d.attn_qkv.weight",
        DIM_C, DIM_3C, INIT_NORMAL, CUT_HEADS },
    [QKV_B] = { "qkv_b", "h.%d.attn.c_attn.bias", "blk.%d.attn_qkv.bias",
        DIM_1, DIM_3C, INIT_ZEROS, CUT_HEADS },
    [ATT_PROJ_W] = { "att_proj_w", "h.%d.attn.c_proj.weight", "blk.%d.attn_output.weight",
        DIM_C, DIM_C, INIT_RESIDUAL, CUT_ROWS },
    [ATT_PROJ_B] = { "att_proj_b", "h.%d.attn.c_proj.bias", "blk.%d.attn_output.bias",
        DIM_1, DIM_C, INIT_ZEROS, CUT_NONE },
    [LN2_GAIN] = { "ln2_gain", "h.%d.ln_2.weight", "blk.%d.ffn_norm.weight",
        DIM_1, DIM_C, INIT_ONES, CUT_NONE },
    [LN2_BIAS] = { "ln2_bias", "h.%d.ln_2.bias", "blk.%d.ffn_norm.bias",
        DIM_1, DIM_C, INIT_ZEROS, CUT_NONE },
    [FC_W] = { "fc_w", "h.%d.mlp.c_fc.weight", "blk.%d.ffn_up.weight",
        DIM_C, DIM_4C, INIT_NORMAL, CUT_COLUMNS },
    [FC_B] = { "fc_b", "h.%d.mlp.c_fc.bias", "blk.%d.ffn_up.bias",
        DIM_1, DIM_4C, INIT_ZEROS, CUT_COLUMNS },
    [MLP_PROJ_W] = { "mlp_proj_w", "h.%d.mlp.c_proj.weight", "blk.%d.ffn_down.weight",
        DIM_4C, DIM_C, INIT_RESIDUAL, CUT_ROWS },
    [MLP_PROJ_B] = { "mlp_proj_b", "h.%d.mlp.c_proj.bias", "blk.%d.ffn_down.bias",
        DIM_1, DIM_C, INIT_ZEROS, CUT_NONE },
    [LNF_GAIN] = { "lnf_gain", "ln_f.weight", "output_norm.weight",
        DIM_1, DIM_C, INIT_ONES, CUT_NONE },
    [LNF_BIAS] = { "lnf_bias", "ln_f.bias", "output_norm.bias",
        DIM_1, DIM_C, INIT_ZEROS, CUT_NONE },
};

const TensorKind *tensor_kind(int kind) { return &tensor_kinds[kind]; }

size_t dim_size(const Config *c, Dim d) {
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
static size_t kind_rows(const Config *c, int kind) {
    const TensorKind *k = &tensor_kinds[kind];
    return dim_size(c, k->rows) / (size_t)(k->cut == CUT_ROWS && c->cut ? c->cut : 1);
}

static size_t kind_cols(const Config *c, int kind) {
    const TensorKind *k = &tensor_kinds[kind];
    bool cut = k->cut == CUT_COLUMNS || k->cut == CUT_HEADS;
    return dim_size(c, k->cols) / (size_t)(cut && c->cut ? c->cut : 1);
}

size_t kind_count(const Config *c, int kind) {
    return kind_rows(c, kind) * kind_cols(c, kind);
}

size_t kinds_count(const Config *c, int first, int last) {
    size_t n = 0;
    for (int k = first; k < last; k++) n += kind_count(c, k);
    return n;
}

size_t gpt2_block_size(const Config *c) {
    return kinds_count(c, FIRST_IN_BLOCK, LAST_IN_BLOCK + 1);
}

size_t gpt2_n_params(const Config *c) {
    return tensor_offset(c, N_KINDS, 0);
}

size_t tensor_offset(const Config *c, int kind, int layer) {
    if (kind < FIRST_IN_BLOCK) return kinds_count(c, 0, kind);
    size_t blocks = kinds_count(c, 0, FIRST_IN_BLOCK);
    if (kind <= LAST_IN_BLOCK)
        return blocks + (size_t)layer*gpt2_block_size(c) + kinds_count(c, FIRST_IN_BLOCK, kind);
    return blocks + (size_t)c->L*gpt2_block_size(c) + kinds_count(c, LAST_IN_BLOCK + 1, kind);
}

int gpt2_n_tensors(const Config *c) {
    return N_KINDS - KINDS_IN_BLOCK + c->L*KINDS_IN_BLOCK;
}

Tensor gpt2_tensor(const Config *c, int i) {
    Tensor t;
    int in_blocks = c->L*KINDS_IN_BLOCK;
    bool before = i < FIRST_IN_BLOCK, inside = !before && i - FIRST_IN_BLOCK < in_blocks;
    t.kind = before ? i : inside ? FIRST_IN_BLOCK + (i - FIRST_IN_BLOCK) % KINDS_IN_BLOCK
                                 : i - in_blocks + KINDS_IN_BLOCK;
    t.layer = inside ? (i - FIRST_IN_BLOCK) / KINDS_IN_BLOCK : -1;
    const TensorKind *k = &tensor_kinds[t.kind];
    snprintf(t.key, sizeof t.key, k->key, t.layer);
    t.rows = kind_rows(c, t.kind);
    t.cols = kind_cols(c, t.kind);
    t.count = t.rows * t.cols;
    t.offset = tensor_offset(c, t.kind, t.layer);
    t.init = k->init;
    t.decays = k->rows != DIM_1;
    return t;
}

// ---- tensor parallel: a rank's share ----

int gpt2_share_words(int V, int ways) {
    int each = (V + ways - 1) / ways;
    return each < 1024 ? each : (each + 127) / 128 * 128;
}

Config gpt2_share(const Config *c, int ways) {
    Config own = *c;
    if (ways == 1) return own;
    own.V = gpt2_share_words(c->V, ways);
    own.cut = ways;
    return own;
}

// ---- buckets ----

int gpt2_n_buckets(const Config *c) { return c->L + 2; }

Range gpt2_bucket(const Config *c, int bucket) {
    size_t embeddings = kinds_count(c, 0, FIRST_IN_BLOCK), block = gpt2_block_size(c);
    Range first = { 0, embeddings };
    Range inside = { embeddings + (size_t)(bucket - 1)*block, block };
    Range last = { embeddings + (size_t)c->L*block, kinds_count(c, LAST_IN_BLOCK + 1, N_KINDS) };
    return bucket == 0 ? first : bucket <= c->L ? inside : last;
}

int gpt2_bucket_tensor(const Config *c, int bucket) {
    if (bucket == 0) return 0;
    return bucket <= c->L + 1 ? FIRST_IN_BLOCK + (bucket - 1)*KINDS_IN_BLOCK : gpt2_n_tensors(c);
}

size_t gpt2_largest_bucket(const Config *c) {
    size_t embeddings = gpt2_bucket(c, 0).count, block = gpt2_bucket(c, 1).count;
    return embeddings > block ? embeddings : block;
}

// ---- what a run keeps of each parameter ----

// GPT-2's initialisation of t, which is tensor i (Radford et al. 2019, section 2.3, for the
// residual projections). Each tensor draws from a random stream of its own.
static void gpt2_init_tensor(float *p, const Tensor *t, int i, int L, uint64_t seed) {
    Rng rng = rng_make(seed, (uint64_t)i);
    double std = t->init == INIT_RESIDUAL ? 0.02 / sqrt(2.0 * L) : 0.02;
    for (size_t j = 0; j < t->count; j++)
        p[j] = t->init == INIT_ZEROS ? 0.0f : t->init == INIT_ONES ? 1.0f
                                     : (float)(std * rng_normal(&rng));
}

void gpt2_init_bucket(float *p, const Config *c, int bucket, uint64_t seed) {
    #pragma omp parallel for schedule(dynamic)
    for (int i = gpt2_bucket_tensor(c, bucket); i < gpt2_bucket_tensor(c, bucket + 1); i++) {
        Tensor t = gpt2_tensor(c, i);
        gpt2_init_tensor(p + t.offset - gpt2_bucket(c, bucket).begin, &t, i, c->L, seed);
    }
}

// ---- floating-point operations ----

double gpt2_flops_per_token(const Config *c, int T) {
    double C = c->C, weights = 12.0*C*C*c->L + C*c->V;
    return 6.0*weights + 12.0*c->L*C*T;
}

bool gpt2_preset(Config *c, const char *name, Error *err) {
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

double gpt2_recipe_batch(const char *name, double lr) {
    static const struct { const char *name; double lr, batch; } recipes[] = {
        { "d12", 6e-4, 0.5e6 }, { "d24", 3e-4, 0.5e6 }, { "d36", 2.5e-4, 0.5e6 },
        { "d48", 2e-4, 1e6 },
    };
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++)
        if (strcmp(name, recipes[i].name) == 0 && lr >= 0.5*recipes[i].lr) return recipes[i].batch;
    return 0.0;
}
