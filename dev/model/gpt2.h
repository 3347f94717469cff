#pragma once
#include "../base/base.h"

// =================================================================================================
// GPT-2 (Radford et al. 2019): its sizes, the table of its tensors, its FLOPs per token.
// Allocation, initialisation, weight decay, checkpoints and tests all read the one table.
//
// Parameters live in one flat buffer, layer-major: embeddings, block 0 ... block L-1, final norm.
// A block is one contiguous range. Weights are stored (in, out), as GPT-2's published files are.
//
// Files and ranks exchange parameters in buckets: bucket 0 is the embeddings, buckets 1 ... L are
// the blocks, bucket L+1 is the final norm.
// =================================================================================================

// The model's name in files. A changed model needs another: its checkpoints and GGUF files are then
// refused where GPT-2 is expected, and GPT-2's here.
#ifndef MODEL_NAME
#define MODEL_NAME "gpt2"
#endif

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

// Tensor parallel (dev/ranks/tensor.c): what of a tensor a rank holds.
typedef enum {
    CUT_NONE,           // all of it
    CUT_ROWS,           // 1/N of the rows
    CUT_COLUMNS,        // 1/N of the columns
    CUT_HEADS,          // of each of Q, K and V 1/N of the columns: whole heads
    CUT_WORDS,          // gpt2_share_words() rows
} Cut;

typedef struct {
    const char *name;   // as in the trainers' Weights and Block
    const char *key;    // Hugging Face's, without the leading "transformer."
    const char *gguf;   // llama.cpp's
    Dim rows, cols;     // a one-dimensional tensor has rows = DIM_1; only matrices decay
    Init init;
    Cut cut;
} TensorKind;

const TensorKind *tensor_kind(int kind);             // a row of the one table: gpt2.c

// One tensor of one model.
typedef struct {
    char key[48];            // Hugging Face's name, without the leading "transformer."
    int kind, layer;         // layer is -1 outside the blocks
    size_t rows, cols;
    size_t offset, count;    // its place in the flat buffer, in elements
    Init init;
    bool decays;
} Tensor;

size_t dim_size(const Config *c, Dim d);
size_t kind_count(const Config *c, int kind);

// Elements of all tensors of kinds first ... last-1.
size_t kinds_count(const Config *c, int first, int last);
size_t gpt2_block_size(const Config *c);
size_t gpt2_n_params(const Config *c);

// Where a tensor begins in the flat buffer; `layer` is ignored outside the blocks.
size_t tensor_offset(const Config *c, int kind, int layer);
int gpt2_n_tensors(const Config *c);

// Tensor i of gpt2_n_tensors(c), in the order of the flat buffer.
Tensor gpt2_tensor(const Config *c, int i);

// ---- tensor parallel: a rank's share ----

// Rows of wte that each of `ways` ranks holds. The last ranks may hold fewer words than rows: the
// rows left over are zero and stay zero. From 1,024 rows on they are a multiple of 128, for a GPU's
// tensor cores.
int gpt2_share_words(int V, int ways);

// The sizes of a rank's share, the same on each of `ways` ranks. L, NH, C and P stay the model's.
Config gpt2_share(const Config *c, int ways);

// ---- buckets ----

typedef struct { size_t begin, count; } Range;      // of the flat buffer, in elements

int gpt2_n_buckets(const Config *c);
Range gpt2_bucket(const Config *c, int bucket);

// The index of a bucket's first tensor. For `bucket` = gpt2_n_buckets(c) it is the number of
// tensors, so bucket i always holds tensors first(i) ... first(i + 1) - 1.
int gpt2_bucket_tensor(const Config *c, int bucket);

// Elements of the largest bucket, for a buffer that holds any bucket. It is never the final norm.
size_t gpt2_largest_bucket(const Config *c);

// ---- what a run keeps of each parameter ----

// Arrays with one element for each parameter: the weights, AdamW's two moments, the momentum of
// DiLoCo's outer optimizer. Checkpoints name their tensors series_prefix() + tensor key.
typedef enum {
    KEPT_WEIGHTS, KEPT_EXP_AVG, KEPT_EXP_AVG_SQ, KEPT_OUTER_MOMENTUM, KEPT_AVERAGE, N_KEPT
} Kept;

// GPT-2's initialisation of a bucket (Radford et al. 2019, section 2.3, for the residual
// projections): p (gpt2_bucket(c, bucket).count). Each tensor draws from a random stream of its own.
void gpt2_init_bucket(float *p, const Config *c, int bucket, uint64_t seed);

// ---- floating-point operations ----

// Floating-point operations of training on one token of a sequence of T: the numerator of MFU. A
// multiplication and an addition count as two operations. Each weight of a matrix product costs 6
// (2 forward, 4 backward); the tied head counts, an embedding's lookup does not. Attention costs
// 12·L·C·T, counted as if there were no causal mask: the convention of PaLM's appendix B.
double gpt2_flops_per_token(const Config *c, int T);

// "d12" is GPT-2 124M: 12 layers, heads of 64. V and P are left unchanged.
bool gpt2_preset(Config *c, const char *name, Error *err);

// The batch, in tokens, of the GPT-3 model of a preset's size (Brown et al. 2020, arXiv 2005.14165,
// table 2.1) if `lr` is at least half of that model's learning rate; else 0.
double gpt2_recipe_batch(const char *name, double lr);
