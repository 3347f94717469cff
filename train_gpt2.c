// Trains GPT-2 (Radford et al. 2019) on a CPU: every layer forward and backward, the optimizer and
// the training loop in one file, in reading order. A C compiler is all that it needs.
//
//     shapes            what is stored where, and a picture of one block
//     layers            in the order a token meets them, each forward and then backward
//     model             the layers in a row, forward and backward
//     optimizer         the gradient's global norm, and AdamW
//     training loop     data, forward, backward, clip, update, again
//     behind the loop   generation with a key/value cache, evaluation, memory
//     main              flags in, model built, loop run
//
// dev/train has what users need: flags, schedules, the log, resuming, sampling, --plan. Processes
// that train one model together (ranks) attach at hooks, which do nothing in an ordinary run:
// forward_needs, backward_needs, gradients_ready, totals_share (dev/ranks/zero.c), and within
// next_batch, gradients_arrive and step_end (dev/train/loop.c); what begins with tp_ is for ranks
// that share each block (dev/ranks/tensor.c). Skip both on a first reading. What takes nine tenths
// of the time, the matrix product and attention, has plain versions here, which `make PLAIN=1`
// runs; the ordinary build runs fast ones from dev/cpu. train_gpt2.cu is the same program for a
// GPU.
//
// Conventions. Arrays are row-major: (N,C) has N rows of C elements. B sequences of T tokens make
// N = B*T rows; C channels, NH heads of HS = C/NH channels, L layers, P positions, V words in the
// vocabulary (Vp when rows of logits are padded). A gradient has the name of its tensor with a d in
// front: dx is d(loss)/dx, and backpropagation is the chain rule, layer by layer from the loss to
// the embeddings. Layers write gradients of activations (=) and add gradients of parameters (+=),
// so that several micro-batches can share one update: gradient accumulation. No sum depends on the
// number of threads: the same run has the same bits on one core and on sixty-four.
#include <assert.h>
#include <math.h>
#include "dev/cpu/cpu.h"               // matmul_fast, attention_..._fast; Mat, rows_of; exp_fast
#include "dev/train/train.h"           // Run, Step, step_begin, ...; Params

#ifndef PLAIN
#define PLAIN 0                        // make PLAIN=1: the definitions below, slow and short
#endif

// =================================================================================================
// Shapes
// =================================================================================================
//
// One block. The residual stream x runs straight down; two branches read it and add to it. The
// block is pre-norm: LayerNorm begins each branch, so that the stream itself is never scaled. What
// is marked * is kept for the backward pass (BlockActs).
//
//      x (N,C) *  (x_out of the block before; of the first block: the embeddings, x_in)
//      |
//      |--------.
//      |    LayerNorm ........ ln1 (N,C) *      mean, rstd (N) *
//      |    linear C -> 3C ... qkv (N,3C) *     queries, keys, values side by side
//      |    attention ........ att (N,C) *      lse (B,NH,T) *: tokens look at earlier ones
//      |    linear C -> C .... branch (N,C)
//      + <------'
//      |
//      x_mid (N,C) *
//      |
//      |--------.
//      |    LayerNorm ........ ln2 (N,C) *      mean, rstd (N) *
//      |    linear C -> 4C ... fc (N,4C) *      the MLP: each token by itself
//      |    GELU ............. gelu (N,4C) *
//      |    linear 4C -> C ... branch (N,C)
//      + <------'
//      |
//      x_out (N,C) *

// The parameters of a LayerNorm.
typedef struct {
    float *gain, *bias;                // (C)
} Norm;

// What its forward pass writes.
typedef struct {
    float *out;                        // (N,C)
    float *mean, *rstd;                // (N) kept for the backward pass
} NormActs;

// The parameters of one block.
typedef struct {
    Norm ln1, ln2;                     // before attention, and before the MLP
    // Attention: into queries, keys and values, and out of the heads
    float *qkv_w, *qkv_b;              // (C,3C) (3C)
    float *att_proj_w, *att_proj_b;    // (C,C) (C)
    // MLP: up to four times the width, and down again
    float *fc_w, *fc_b;                // (C,4C) (4C)
    float *mlp_proj_w, *mlp_proj_b;    // (4C,C) (C)
} Block;

// All parameters. The same structs hold their gradients.
typedef struct {
    float *wte, *wpe;                  // (V,C) a vector for each token; (P,C) for each position
    Block *block;                      // (L)
    Norm lnf;                          // the final LayerNorm
} Weights;

// What one block's forward pass keeps for its backward pass.
typedef struct {
    float *x;                          // (N,C) what enters the block: x_out of the one before
    NormActs ln1;                      // (N,C)
    float *qkv;                        // (N,3C); in generation it is the key/value cache
    float *att;                        // (N,C)
    float *att_lse;                    // (B,NH,T) log of each softmax's denominator
    float *x_mid;                      // (N,C) the residual stream between attention and MLP
    NormActs ln2;                      // (N,C)
    float *fc, *gelu;                  // (N,4C)
    float *x_out;                      // (N,C) the residual stream after the block
} BlockActs;

struct Model {
    Config c;                          // L, NH, C, P, and V or a rank's share of it
    int Cn, NHn;                       // a block's channels and heads: C and NH, or a rank's part
    ModelSpec spec;                    // the largest B and T, and what else determines memory
    Params params;                     // the flat buffers, and how ranks share them
    Memory memory;                     // the one allocation that everything below lies in
    Weights w;                         // parameters
    Weights dw;                        // their gradients
    float *x_in;                       // (N,C) embeddings
    BlockActs *acts;                   // (L)
    NormActs lnf;                      // (N,C)
    float *loss;                       // (N) nats per token
    float *lse;                        // (N) log of the denominator of each token's softmax
    float *logits;                     // (logit_rows,Vp): the classifier works in chunks of rows
    size_t logit_rows;
    int Vp;                            // V rounded up: each row of logits begins a cache line
    float *scratch;                    // attention's, a piece for each thread
    float *branch;                     // (N,C) forward: the output of a branch, before it is added
    float *dbranch;                    // (N,C) the same memory; backward: gradients in a branch, or
                                       // that of lnf.out
    float *dx;                         // (N,C) gradient of the residual stream
    float *dqkv;                       // (N,3C)
    float *dfc;                        // (N,4C)
};

// =================================================================================================
// Layers
// =================================================================================================

// ---- embedding: x[b,t] = wte[token[b,t]] + wpe[t] ----
//   x (B,T,C)   token (B,T)   wte (V,C)   wpe (P,C)
// A vector for the token and a vector for its position, both learned.

static void embedding_forward(float *x, const int *token, const float *wte, const float *wpe,
                              int B, int T, int C) {
    #pragma omp parallel for collapse(2)
    for (int b = 0; b < B; b++)
        for (int t = 0; t < T; t++) {
            size_t n = (size_t)b*T + t;
            const float *word = wte + (size_t)token[n]*C;
            const float *position = wpe + (size_t)t*C;
            for (int c = 0; c < C; c++) x[n*C + c] = word[c] + position[c];
        }
}

// Each row of dx is added to the gradient of its token and to that of its position. A thread owns a
// strip of columns, since a token may appear in many rows.
static void embedding_backward(float *dwte, float *dwpe, const float *dx, const int *token,
                               int B, int T, int C) {
    int strips = thread_count();
    #pragma omp parallel for
    for (int s = 0; s < strips; s++) {
        int begin = strip_begin(C, s, strips), end = strip_begin(C, s + 1, strips);
        for (size_t n = 0; n < (size_t)B*T; n++) {
            float *dword = dwte + (size_t)token[n]*C;
            float *dposition = dwpe + n % T * C;
            for (int c = begin; c < end; c++) {
                dword[c] += dx[n*C + c];
                dposition[c] += dx[n*C + c];
            }
        }
    }
}

// ---- LayerNorm: out = (x - mean) * rstd * gain + bias, with rstd = 1/sqrt(var + 1e-5) ----
//   out, x (N,C)   mean, rstd (N)   gain, bias (C)
// Mean and variance are those of a row: each token's C channels (Ba et al. 2016, arXiv 1607.06450).

static void layernorm_forward(NormActs a, const float *x, Norm w, size_t N, int C) {
    #pragma omp parallel for
    for (size_t n = 0; n < N; n++) {
        const float *row = x + n*C;
        float sum = 0.0f, squares = 0.0f;
        #pragma omp simd reduction(+:sum)
        for (int c = 0; c < C; c++) sum += row[c];
        float m = sum / C;
        #pragma omp simd reduction(+:squares)
        for (int c = 0; c < C; c++) squares += (row[c] - m) * (row[c] - m);
        float r = 1.0f / sqrtf(squares / C + 1e-5f);
        #pragma omp simd
        for (int c = 0; c < C; c++) a.out[n*C + c] = (row[c] - m) * r * w.gain[c] + w.bias[c];
        a.mean[n] = m;
        a.rstd[n] = r;
    }
}

// With xhat = (x - mean) * rstd and g = dout * gain:
// dx = (g - avg(g) - xhat * avg(g * xhat)) * rstd, where avg is the average of a row;
// dgain += sum of dout * xhat, dbias += sum of dout, over all rows: a thread owns a strip of
// columns. dx comes last: it may be dout.
//   a, w   what the forward pass kept, and its parameters, whose gradients are dw
static void layernorm_backward(float *dx, Norm dw, const float *dout, const float *x, NormActs a,
                               Norm w, size_t N, int C) {
    int strips = thread_count();
    #pragma omp parallel for
    for (int s = 0; s < strips; s++) {
        int begin = strip_begin(C, s, strips), end = strip_begin(C, s + 1, strips);
        for (size_t n = 0; n < N; n++) {
            #pragma omp simd
            for (int c = begin; c < end; c++) {
                dw.gain[c] += dout[n*C + c] * (x[n*C + c] - a.mean[n]) * a.rstd[n];
                dw.bias[c] += dout[n*C + c];
            }
        }
    }
    #pragma omp parallel for
    for (size_t n = 0; n < N; n++) {
        const float *row = x + n*C, *d = dout + n*C;
        float m = a.mean[n], r = a.rstd[n];
        float sum_g = 0.0f, sum_gx = 0.0f;
        #pragma omp simd reduction(+:sum_g, sum_gx)
        for (int c = 0; c < C; c++) {
            sum_g += d[c] * w.gain[c];
            sum_gx += d[c] * w.gain[c] * (row[c] - m) * r;
        }
        float mean_g = sum_g / C, mean_gx = sum_gx / C;
        #pragma omp simd
        for (int c = 0; c < C; c++)
            dx[n*C + c] = (d[c]*w.gain[c] - mean_g - (row[c] - m) * r * mean_gx) * r;
    }
}

// ---- matrix product: c (I,J) = a (I,K) b (K,J) + bias, or c += a b ----
// c_ij = sum over k of a_ik b_kj. A Mat holds the strides of its rows and columns, so transposing
// copies nothing: rows_of(x, ld) reads x as it is stored, transpose_of(x, ld) with rows and columns
// swapped. ld is the distance from one row of x to the next, ldc that of c. bias (J), or NULL.

static void matmul_plain(float *c, size_t ldc, Mat a, Mat b, const float *bias,
                         size_t I, size_t J, size_t K, Mode mode) {
    #pragma omp parallel for
    for (size_t i = 0; i < I; i++)
        for (size_t j = 0; j < J; j++) {
            float sum = mode == ADD ? c[i*ldc + j] : bias ? bias[j] : 0.0f;
            for (size_t k = 0; k < K; k++)
                sum += a.data[i*a.row + k*a.col] * b.data[k*b.row + j*b.col];
            c[i*ldc + j] = sum;
        }
}

#define matmul (PLAIN ? matmul_plain : matmul_fast)      // the one that this build runs

// ---- linear: out = x w + b ----
//   out (N,OC)   x (N,C)   w (C,OC)   b (OC)   C: here the width of x

static void linear_forward(float *out, const float *x, const float *w, const float *b,
                           size_t N, int C, int OC) {
    matmul(out, OC, rows_of(x, C), rows_of(w, OC), b, N, OC, C, WRITE);
}

// db += the sum of dout's rows. A thread owns a strip of columns.
static void bias_backward(float *db, const float *dout, size_t N, int OC) {
    int strips = thread_count();
    #pragma omp parallel for
    for (int s = 0; s < strips; s++) {
        int begin = strip_begin(OC, s, strips), end = strip_begin(OC, s + 1, strips);
        for (size_t n = 0; n < N; n++) {
            #pragma omp simd
            for (int c = begin; c < end; c++) db[c] += dout[n*OC + c];
        }
    }
}

// dx = dout w^T; dw += x^T dout; db += the sum of dout's rows
static void linear_backward(float *dx, float *dw, float *db, const float *dout,
                            const float *x, const float *w, size_t N, int C, int OC) {
    matmul(dx, C, rows_of(dout, OC), transpose_of(w, OC), NULL, N, C, OC, WRITE);
    matmul(dw, OC, transpose_of(x, C), rows_of(dout, OC), NULL, C, OC, N, ADD);
    bias_backward(db, dout, N, OC);
}

// ---- causal self-attention (Vaswani et al. 2017), for each head: ----
//     out_t = sum over t2 <= t of p_t,t2 v_t2     p_t = softmax over t2 <= t of q_t . k_t2/sqrt(HS)
//   out (B,T,C)   qkv (B,T,3C)   lse (B,NH,T) log of each softmax's denominator, for backward
//   scratch: attention_scratch(past + T, HS) floats for each thread; past + T if plain
// The causal mask t2 <= t hides later tokens, so that all T positions learn to predict their next
// token in one pass. In generation (B = 1) the key/value cache holds `past` earlier tokens, else 0:
// their rows lie before qkv. out and lse are written from their beginning.

// The row of token t of one head, with T rows a sequence: its query at [0], its key at [C], its
// value at [2C].
static const float *head_row(const float *qkv, int b, int t, int h, int T, int C, int HS) {
    return qkv + ((ptrdiff_t)b*T + t)*3*C + h*HS;
}

static float dot(const float *a, const float *b, int n) {
    float sum = 0.0f;
    #pragma omp simd reduction(+:sum)
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

// y += a x
static void add_scaled(float *y, float a, const float *x, int n) {
    for (int i = 0; i < n; i++) y[i] += a * x[i];
}

static void attention_forward_plain(float *out, float *lse, float *scratch, const float *qkv,
                                    int B, int T, int past, int C, int NH) {
    int HS = C / NH, rows = past + T;
    float scale = 1.0f / sqrtf((float)HS);
    #pragma omp parallel for collapse(2)
    for (int b = 0; b < B; b++)
    for (int h = 0; h < NH; h++) {
        float *p = scratch + (size_t)thread_index()*rows + past;      // (rows), from p[-past] on
        for (int t = 0; t < T; t++) {
            const float *q = head_row(qkv, b, t, h, rows, C, HS);
            float *o = out + ((size_t)b*rows + t)*C + h*HS;
            float hi = -INFINITY, sum = 0.0f;
            for (int t2 = -past; t2 <= t; t2++) {
                p[t2] = scale * dot(q, head_row(qkv, b, t2, h, rows, C, HS) + C, HS);
                hi = fmaxf(hi, p[t2]);
            }
            for (int t2 = -past; t2 <= t; t2++) sum += p[t2] = expf(p[t2] - hi);
            for (int i = 0; i < HS; i++) o[i] = 0.0f;
            for (int t2 = -past; t2 <= t; t2++)
                add_scaled(o, p[t2] / sum, head_row(qkv, b, t2, h, rows, C, HS) + 2*C, HS);
            lse[((size_t)b*NH + h)*rows + t] = hi + logf(sum);
        }
    }
}

// With s_t,t2 = q_t . k_t2/sqrt(HS) the scores, ds their gradient, and d_t = dout_t . out_t:
//     dv_t2 += p_t,t2 dout_t                    ds_t,t2 = p_t,t2 (dout_t . v_t2 - d_t)
//     dq_t += ds_t,t2 k_t2 / sqrt(HS)           dk_t2 += ds_t,t2 q_t / sqrt(HS)
// d_t, no gradient, is what the softmax's Jacobian subtracts: sum of p_t,t2 (dout_t . v_t2). The
// code multiplies by 1/sqrt(HS) once: its dqk = ds / sqrt(HS) is the gradient of q_t . k_t2. dqkv
// begins at 0.
static void attention_backward_plain(float *dqkv, float *scratch, const float *dout,
                                     const float *qkv, const float *out, const float *lse,
                                     int B, int T, int C, int NH) {
    int HS = C / NH;
    float scale = 1.0f / sqrtf((float)HS);
    (void)scratch;                     // each weight is computed anew from lse
    memset(dqkv, 0, (size_t)B*T*3*C * sizeof *dqkv);
    #pragma omp parallel for collapse(2)
    for (int b = 0; b < B; b++)
    for (int h = 0; h < NH; h++)
    for (int t = 0; t < T; t++) {
        size_t n = (size_t)b*T + t;
        const float *q = head_row(qkv, b, t, h, T, C, HS);
        const float *d_o = dout + n*C + h*HS;
        float *dq = dqkv + n*3*C + h*HS;
        float d = dot(d_o, out + n*C + h*HS, HS);
        for (int t2 = 0; t2 <= t; t2++) {
            const float *k = head_row(qkv, b, t2, h, T, C, HS) + C;
            const float *v = k + C;
            float *dk = dqkv + (k - qkv), *dv = dk + C;
            float p = expf(scale * dot(q, k, HS) - lse[((size_t)b*NH + h)*T + t]);
            float dqk = p * (dot(d_o, v, HS) - d) * scale;
            add_scaled(dv, p, d_o, HS);
            add_scaled(dq, dqk, k, HS);
            add_scaled(dk, dqk, q, HS);
        }
    }
}

#define attention_forward  (PLAIN ? attention_forward_plain : attention_forward_fast)
#define attention_backward (PLAIN ? attention_backward_plain : attention_backward_fast)

// ---- residual: out = a + b ----

static void residual_forward(float *out, const float *a, const float *b, size_t n) {
    #pragma omp parallel for simd
    for (size_t i = 0; i < n; i++) out[i] = a[i] + b[i];
}

// out = x + branch(x): dx has dout already. What returns through the branch is added to it.
static void residual_backward(float *dx, const float *dbranch, size_t n) {
    #pragma omp parallel for simd
    for (size_t i = 0; i < n; i++) dx[i] += dbranch[i];
}

// ---- GELU: x/2 (1 + tanh u) with u = sqrt(2/pi) (x + 0.044715 x^3) ----
// Hendrycks and Gimpel 2016, arXiv 1606.08415, in the tanh form that GPT-2 uses. It equals x s with
// s = 1 / (1 + e^-2u), which needs one exponential and no tanh.

static void gelu_forward(float *out, const float *x, size_t n) {
    #pragma omp parallel for simd
    for (size_t i = 0; i < n; i++) {
        float u = 0.79788456f * (x[i] + 0.044715f * x[i]*x[i]*x[i]);
        out[i] = x[i] / (1.0f + exp_fast(-2.0f * u));
    }
}

// d(x s)/dx = s + x s (1 - s) 2 du/dx. dx may be dout itself.
static void gelu_backward(float *dx, const float *dout, const float *x, size_t n) {
    #pragma omp parallel for simd
    for (size_t i = 0; i < n; i++) {
        float u = 0.79788456f * (x[i] + 0.044715f * x[i]*x[i]*x[i]);
        float s = 1.0f / (1.0f + exp_fast(-2.0f * u));
        float two_du = 1.59576912f * (1.0f + 3.0f*0.044715f * x[i]*x[i]);
        dx[i] = dout[i] * (s + x[i] * s * (1.0f - s) * two_du);
    }
}

// ---- softmax cross-entropy over N rows of logits; columns V ... Vp-1 are padding ----
//   logits (N,Vp)   target (N)   loss, lse (N); lse[n] = log sum exp, kept for backward

static void xent_forward(float *loss, float *lse, const float *logits, const int *target,
                         size_t N, int V, int Vp) {
    #pragma omp parallel for
    for (size_t n = 0; n < N; n++) {
        const float *x = logits + n*Vp;
        float hi = -INFINITY, sum = 0.0f;      // from x[0], clang is slower
        #pragma omp simd reduction(max:hi)
        for (int v = 0; v < V; v++) hi = x[v] > hi ? x[v] : hi;
        #pragma omp simd reduction(+:sum)
        for (int v = 0; v < V; v++) sum += exp_fast(x[v] - hi);   // each term <= 1: no overflow
        lse[n] = hi + logf(sum);
        loss[n] = lse[n] - x[target[n]];                          // -log p(target)
    }
}

// The gradient of -log softmax is p, minus 1 at the target: dlogits = (p - onehot(target)) * scale.
// It replaces the logits.
static void xent_backward(float *dlogits, const float *lse, const int *target, float scale,
                          size_t N, int V, int Vp) {
    #pragma omp parallel for
    for (size_t n = 0; n < N; n++) {
        float *d = dlogits + n*Vp;
        #pragma omp simd
        for (int v = 0; v < V; v++) d[v] = exp_fast(d[v] - lse[n]) * scale;
        d[target[n]] -= scale;
    }
}

// =================================================================================================
// Model
// =================================================================================================

// A branch's last layer: branch = x w + b, with x (N,K). If ranks share the block, each holds K
// rows of w: their products are summed, and b is added once (dev/ranks/tensor.c).
static void branch_project(Model *m, const float *x, const float *w, const float *b, size_t N,
                           int K) {
    bool shared = m->params.tp.size > 1;
    linear_forward(m->branch, x, w, shared ? NULL : b, N, K, m->c.C);
    if (shared) tp_sum_rows(&m->params.tp, m->branch, b, N, m->c.C);
}

// dx (N,C), the gradient of a branch's input: ranks that share the block sum their terms of it.
static void branch_input_sum(Model *m, float *dx, size_t N) {
    if (m->params.tp.size > 1) tp_sum(&m->params.tp, dx, N*m->c.C);
}

// x_mid = x + attention(LayerNorm(x)); x_out = x_mid + MLP(LayerNorm(x_mid)). T rows of each
// sequence; in generation their queries, keys and values follow those of `past` earlier rows.
static void block_forward(Model *m, Block w, BlockActs a, int B, int T, int past) {
    int C = m->c.C, Cn = m->Cn, NHn = m->NHn;
    size_t N = (size_t)B*T;
    float *qkv = a.qkv + (size_t)past*3*Cn;
    layernorm_forward(a.ln1, a.x, w.ln1, N, C);
    linear_forward(qkv, a.ln1.out, w.qkv_w, w.qkv_b, N, C, 3*Cn);
    attention_forward(a.att, a.att_lse, m->scratch, qkv, B, T, past, Cn, NHn);
    branch_project(m, a.att, w.att_proj_w, w.att_proj_b, N, Cn);
    residual_forward(a.x_mid, a.x, m->branch, N*C);
    layernorm_forward(a.ln2, a.x_mid, w.ln2, N, C);
    linear_forward(a.fc, a.ln2.out, w.fc_w, w.fc_b, N, C, 4*Cn);
    gelu_forward(a.gelu, a.fc, N*4*Cn);
    branch_project(m, a.gelu, w.mlp_proj_w, w.mlp_proj_b, N, 4*Cn);
    residual_forward(a.x_out, a.x_mid, m->branch, N*C);
}

// Runs tokens (B,T) through the blocks, up to the final norm's m->lnf.out (B*T,C). In generation
// (B = 1) they follow `past` tokens that were run before, whose keys and values are still in each
// block's qkv: nothing else of theirs is needed. That is all a key/value cache is.
void model_forward(Model *m, const int *tokens, int B, int T, int past) {
    Params *p = &m->params;
    Weights *w = &m->w;
    int C = m->c.C, L = m->c.L;
    assert(past + T <= m->spec.T && B <= m->spec.B && (past == 0 || B == 1));
    forward_needs(p, 0);               // bucket 0: embeddings; 1 + l: block l; 1 + L: final norm
    const float *wpe = w->wpe + (size_t)past*C;
    if (p->tp.shares) tp_embedding_forward(m->x_in, tokens, w->wte, wpe, &p->tp, B, T, C);
    else embedding_forward(m->x_in, tokens, w->wte, wpe, B, T, C);
    for (int l = 0; l < L; l++) {
        forward_needs(p, 1 + l);
        block_forward(m, w->block[l], m->acts[l], B, T, past);
    }
    forward_needs(p, 1 + L);
    layernorm_forward(m->lnf, m->acts[L - 1].x_out, w->lnf, (size_t)B*T, C);
}

// From dx, the gradient of x_out, to dx, the gradient of x. A branch receives all of dx, and what
// comes back through the branch is added to dx.
static void block_backward(Model *m, Block w, Block dw, BlockActs a, int B, int T) {
    int C = m->c.C, Cn = m->Cn, NHn = m->NHn;
    size_t N = (size_t)B*T;
    float *dx = m->dx;                 // of x_out; then of x_mid; finally of x
    float *dgelu = m->dfc, *dfc = m->dfc, *dqkv = m->dqkv;           // dfc overwrites dgelu
    float *dbranch = m->dbranch, *dln2 = dbranch, *datt = dbranch, *dln1 = dbranch;   // one buffer
    linear_backward(dgelu, dw.mlp_proj_w, dw.mlp_proj_b, dx, a.gelu, w.mlp_proj_w, N, 4*Cn, C);
    gelu_backward(dfc, dgelu, a.fc, N*4*Cn);
    linear_backward(dln2, dw.fc_w, dw.fc_b, dfc, a.ln2.out, w.fc_w, N, C, 4*Cn);
    branch_input_sum(m, dln2, N);
    layernorm_backward(dbranch, dw.ln2, dln2, a.x_mid, a.ln2, w.ln2, N, C);
    residual_backward(dx, dbranch, N*C);
    linear_backward(datt, dw.att_proj_w, dw.att_proj_b, dx, a.att, w.att_proj_w, N, Cn, C);
    attention_backward(dqkv, m->scratch, datt, a.qkv, a.att, a.att_lse, B, T, Cn, NHn);
    linear_backward(dln1, dw.qkv_w, dw.qkv_b, dqkv, a.ln1.out, w.qkv_w, N, C, 3*Cn);
    branch_input_sum(m, dln1, N);
    layernorm_backward(dbranch, dw.ln1, dln1, a.x, a.ln1, w.ln1, N, C);
    residual_backward(dx, dbranch, N*C);
}

// ---- classifier: logits = lnf wte^T, then cross-entropy ----
// Weight tying: the embedding matrix wte is the classifier's weight as well (Press and Wolf 2017).
// The classifier takes logit_rows rows at a time: all (N,V) logits might be the largest array.

// After model_forward: returns the sum of the losses in nats; m->loss has each. Also begins the
// backpropagation of scale * that sum: writes the gradient of lnf to m->dbranch, and adds to that
// of wte. With scale 1/(tokens of the update), the objective is the mean; with 0, no gradient is
// computed.
double classifier_loss_and_gradient(Model *m, const int *targets, float scale, int B, int T) {
    const TpGroup *g = &m->params.tp;
    int C = m->c.C, V = (int)g->words.count, Vp = m->Vp;             // of this rank's words
    float *wte = m->w.wte, *dwte = m->dw.wte, *logits = m->logits, *dlogits = logits;
    size_t N = (size_t)B*T, rows = m->logit_rows;
    double sum = 0.0;
    if (scale != 0.0f) backward_needs(&m->params, 0);
    if (g->shares) targets = tp_targets(g, targets, N);
    for (size_t n = 0; n < N; n += rows) {
        if (rows > N - n) rows = N - n;
        Mat lnf = rows_of(m->lnf.out + n*C, C);
        float *dlnf = m->dbranch + n*C;
        matmul(logits, Vp, lnf, transpose_of(wte, C), NULL, rows, V, C, WRITE);
        if (g->shares) tp_xent_forward(m->loss + n, m->lse + n, logits, targets + n, g, rows, Vp);
        else xent_forward(m->loss + n, m->lse + n, logits, targets + n, rows, V, Vp);
        if (scale == 0.0f) continue;
        xent_backward(dlogits, m->lse + n, targets + n, scale, rows, V, Vp);
        matmul(dlnf, C, rows_of(dlogits, Vp), rows_of(wte, C), NULL, rows, C, V, WRITE);
        matmul(dwte, C, transpose_of(dlogits, Vp), lnf, NULL, V, C, rows, ADD);
    }
    if (g->shares && scale != 0.0f) tp_sum(g, m->dbranch, N*C);      // a term from each rank's words
    for (size_t n = 0; n < N; n++) sum += m->loss[n];
    return sum;
}

// Backpropagation, after classifier_loss_and_gradient: adds to the gradients dw. wte already has
// its gradient as the classifier's weight; its gradient as the embedding is added (weight tying).
void model_backward(Model *m, const int *tokens, int B, int T) {
    Params *p = &m->params;
    Weights *w = &m->w, *dw = &m->dw;
    int C = m->c.C, L = m->c.L;
    size_t N = (size_t)B*T;
    float *dlnf = m->dbranch;          // (N,C)
    backward_needs(p, 1 + L);
    layernorm_backward(m->dx, dw->lnf, dlnf, m->acts[L - 1].x_out, m->lnf, w->lnf, N, C);
    gradients_ready(p, 1 + L);
    for (int l = L - 1; l >= 0; l--) {
        backward_needs(p, 1 + l);
        block_backward(m, w->block[l], dw->block[l], m->acts[l], B, T);
        gradients_ready(p, 1 + l);
    }
    if (p->tp.shares) tp_embedding_backward(dw->wte, dw->wpe, m->dx, tokens, &p->tp, B, T, C);
    else embedding_backward(dw->wte, dw->wpe, m->dx, tokens, B, T, C);
    gradients_ready(p, 0);
}

// =================================================================================================
// Optimizer
// =================================================================================================

void clear_grads(Model *m) {
    #pragma omp parallel for simd
    for (size_t i = 0; i < m->params.n_grads; i++) m->params.grads[i] = 0.0f;
}

// The sum of the squares of this process's share of the gradients; its root is the global norm.
// Each chunk has a sum of its own; these are added in order.
static double gradients_squares(Model *m) {
    Params *p = &m->params;
    #pragma omp parallel for
    for (int i = 0; i < p->n_chunks; i++) {
        const float *g = p->grads + p->chunks[i].grad;
        double sum = 0.0;
        #pragma omp simd reduction(+:sum)
        for (int j = 0; j < p->chunks[i].count; j++) sum += (double)g[j] * g[j];
        p->norm_partials[i] = p->chunks[i].in_norm ? sum : 0.0;
    }
    double sum = 0.0;
    for (int i = 0; i < p->n_chunks; i++) sum += p->norm_partials[i];
    return sum;
}

// One AdamW update of n parameters (Loshchilov and Hutter 2019, arXiv 1711.05101), in PyTorch's
// form: the rate multiplies the decay too. The moments m and v are running means of the gradient
// and of its square. They begin at 0; Adam's bias correction makes up for it. Decoupled weight
// decay pulls p towards 0 directly, not through the gradient. g is scaled first, for clipping.
static void adamw_update(float *p, float *m, float *v, const float *g, float g_scale, AdamW o,
                         size_t n) {
    float correct_m = (float)(1.0 / (1.0 - pow(o.beta1, o.m_steps)));
    float correct_v = (float)(1.0 / (1.0 - pow(o.beta2, o.v_steps)));
    #pragma omp simd
    for (size_t i = 0; i < n; i++) {
        float gi = g[i] * g_scale;
        m[i] = o.beta1 * m[i] + (1.0f - o.beta1) * gi;
        v[i] = o.beta2 * v[i] + (1.0f - o.beta2) * gi * gi;
        p[i] -= o.lr * (m[i]*correct_m / (sqrtf(v[i]*correct_v) + o.eps) + o.weight_decay * p[i]);
    }
}

// Plain SGD: the same clipping and decay, no moments.
static void sgd_update(float *p, const float *g, float g_scale, AdamW o, size_t n) {
    #pragma omp simd
    for (size_t i = 0; i < n; i++) p[i] -= o.lr * (g[i] * g_scale + o.weight_decay * p[i]);
}

// AdamW, or SGD, on this rank's share of every tensor; matrices decay, gains and biases do not. A
// chunk is a piece of a tensor, with its weights in masters and its gradients in grads.
void model_update(Model *m, AdamW o, float g_scale) {
    Params *p = &m->params;
    #pragma omp parallel for
    for (int i = 0; i < p->n_chunks; i++) {
        Chunk k = p->chunks[i];
        AdamW chunk_o = o;
        if (!k.decays) chunk_o.weight_decay = 0.0f;
        float *w = p->masters + k.param, *g = p->grads + k.grad;
        if (p->sgd) sgd_update(w, g, g_scale, chunk_o, k.count);
        else adamw_update(w, p->adam_m + k.moment, p->adam_v + k.moment, g, g_scale, chunk_o,
                          k.count);
    }
}

// =================================================================================================
// Training loop
// =================================================================================================

// One update: micro-batches until the batch is full, global-norm clipping, AdamW.
static void train_step(Run *r, Model *m, Step *s) {
    double loss = 0.0;
    step_begin(r, s);                                  // fills s: samples, scale, adamw
    clear_grads(m);
    for (size_t i = 0; i < s->micro_batches; i++) {    // gradient accumulation
        next_batch(r, s, i);                           // inputs (B,T); targets, one token on
        model_forward(m, r->inputs, s->B, s->T, 0);
        loss += classifier_loss_and_gradient(m, r->targets, s->scale, s->B, s->T);
        model_backward(m, r->inputs, s->B, s->T);
    }
    gradients_arrive(r, s);                            // of several ranks: their sum
    Totals all = { .loss = loss, .squares = gradients_squares(m) };
    totals_share(&m->params, &all);                    // of several ranks: over all of them
    double norm = sqrt(all.squares), clip = r->o.clip; // clip 0: no limit
    float g_scale = clip > 0.0 && norm > clip ? (float)(clip / norm) : 1.0f;
    if (isfinite(norm)) model_update(m, s->adamw, g_scale);        // else the weights stay
    step_end(r, s, &all);                              // loss and norm, counters
}

static int train(Run *r, Model *m) {                   // returns the process's exit status
    run_begin(r);
    while (run_goes_on(r)) {
        Step s;
        train_step(r, m, &s);
        report_step(r, &s);
        if (eval_is_due(r)) report_eval(r);
        if (is_due(r, &r->o.sample_every)) report_sample(r);
        if (save_is_due(r)) save(r);
        if (hellaswag_is_due(r)) report_hellaswag(r);
    }
    return run_end(r);
}

// =================================================================================================
// Behind the loop: generation, evaluation, memory
// =================================================================================================

// ---- generation and evaluation ----

// The logits (V) of the token after tokens[t] of one sequence. If ranks share the vocabulary, the
// logits of all ranks, in the order of the ranks.
const float *model_logits(Model *m, int t) {
    const TpGroup *g = &m->params.tp;
    int C = m->c.C, V = m->c.V;
    Mat lnf = rows_of(m->lnf.out + (size_t)t*C, C);
    matmul(m->logits, V, lnf, transpose_of(m->w.wte, C), NULL, 1, V, C, WRITE);
    if (!g->shares) return m->logits;
    tp_collect(g, g->parts, m->logits, V);
    return g->parts;
}

double model_loss(Model *m, float *each, const int *targets, size_t N) {
    double sum = classifier_loss_and_gradient(m, targets, 0.0f, 1, (int)N);
    memcpy(each, m->loss, N * sizeof *each);
    return sum;
}

// ---- memory: counted, allocated once, handed out ----

// A tensor's place in its bucket: of the embeddings, of a block, or of the final norm. One table in
// dev/model/gpt2.c gives every tensor its shape, initialisation and names.
static float *tensor_at(float *bucket, const Config *c, int kind) {
    int first = kind < FIRST_IN_BLOCK ? 0 : kind <= LAST_IN_BLOCK ? FIRST_IN_BLOCK : LNF_GAIN;
    return bucket + kinds_count(c, first, kind);
}

static Norm norm_at(float *bucket, const Config *c, int gain, int bias) {
    return (Norm){ tensor_at(bucket, c, gain), tensor_at(bucket, c, bias) };
}

static Block block_at(float *bucket, const Config *c) {
    return (Block){
        .ln1 = norm_at(bucket, c, LN1_GAIN, LN1_BIAS),
        .qkv_w = tensor_at(bucket, c, QKV_W), .qkv_b = tensor_at(bucket, c, QKV_B),
        .att_proj_w = tensor_at(bucket, c, ATT_PROJ_W),
        .att_proj_b = tensor_at(bucket, c, ATT_PROJ_B),
        .ln2 = norm_at(bucket, c, LN2_GAIN, LN2_BIAS),
        .fc_w = tensor_at(bucket, c, FC_W), .fc_b = tensor_at(bucket, c, FC_B),
        .mlp_proj_w = tensor_at(bucket, c, MLP_PROJ_W),
        .mlp_proj_b = tensor_at(bucket, c, MLP_PROJ_B),
    };
}

// Points a model's weights (PARAMS), or their gradients (GRADS), at where each bucket lies.
static void weights_point(Weights *w, const Params *p, Flat flat) {
    const Config *c = &p->c;
    float *embeddings = bucket_at(p, 0, flat), *norm = bucket_at(p, 1 + c->L, flat);
    w->wte = tensor_at(embeddings, c, WTE);
    w->wpe = tensor_at(embeddings, c, WPE);
    for (int l = 0; l < c->L; l++) w->block[l] = block_at(bucket_at(p, 1 + l, flat), c);
    w->lnf = norm_at(norm, c, LNF_GAIN, LNF_BIAS);
}

// Rows of logits at a time: 64 MiB, but at least 1024 rows (206 MB with GPT-2's vocabulary), so
// that the product stays efficient.
static size_t classifier_rows(size_t N, size_t Vp) {
    size_t rows = (64u << 20) / sizeof(float) / Vp;
    return min_size(N, rows < 1024 ? 1024 : rows);
}

static void norm_carve(NormActs *a, Memory *mem, size_t N, size_t C) {
    a->out = memory_floats(mem, MEM_ACTIVATIONS, N*C);
    a->mean = memory_floats(mem, MEM_ACTIVATIONS, N);
    a->rstd = memory_floats(mem, MEM_ACTIVATIONS, N);
}

static void block_carve(BlockActs *a, Memory *mem, size_t N, size_t C, size_t Cn, size_t NH) {
    norm_carve(&a->ln1, mem, N, C);
    a->qkv = memory_floats(mem, MEM_ACTIVATIONS, N*3*Cn);
    a->att = memory_floats(mem, MEM_ACTIVATIONS, N*Cn);
    a->att_lse = memory_floats(mem, MEM_ACTIVATIONS, N*NH);
    a->x_mid = memory_floats(mem, MEM_ACTIVATIONS, N*C);
    norm_carve(&a->ln2, mem, N, C);
    a->fc = memory_floats(mem, MEM_ACTIVATIONS, N*4*Cn);
    a->gelu = memory_floats(mem, MEM_ACTIVATIONS, N*4*Cn);
    a->x_out = memory_floats(mem, MEM_ACTIVATIONS, N*C);
}

// Lays everything out; with mem->base NULL it only counts (dev/base/memory.c).
static void model_carve(Model *m, Memory *mem) {
    size_t N = (size_t)m->spec.B * m->spec.T, C = m->c.C;
    size_t scratch = attention_scratch(m->spec.T, m->c.C / m->c.NH);
    params_carve(&m->params, mem);
    if (m->spec.use == TRAIN) params_carve_training(&m->params, mem);
    m->x_in = memory_floats(mem, MEM_ACTIVATIONS, N*C);
    for (int l = 0; l < m->c.L; l++) {
        block_carve(&m->acts[l], mem, N, C, m->Cn, m->NHn);
        m->acts[l].x = l > 0 ? m->acts[l - 1].x_out : m->x_in;
    }
    norm_carve(&m->lnf, mem, N, C);
    m->loss = memory_floats(mem, MEM_ACTIVATIONS, N);
    m->lse = memory_floats(mem, MEM_ACTIVATIONS, N);
    m->logit_rows = classifier_rows(N, m->Vp);
    m->logits = memory_floats(mem, MEM_LOGITS, m->logit_rows*m->Vp);
    tp_carve(&m->params.tp, mem, N, m->logit_rows);
    m->scratch = memory_floats(mem, MEM_BACKWARD, thread_count()*scratch);
    m->branch = m->dbranch = memory_floats(mem, MEM_BACKWARD, N*C);
    if (m->spec.use == INFER) return;
    m->dx = memory_floats(mem, MEM_BACKWARD, N*C);
    m->dqkv = memory_floats(mem, MEM_BACKWARD, N*3*m->Cn);
    m->dfc = memory_floats(mem, MEM_BACKWARD, N*4*m->Cn);
}

// All but the memory.
static void model_begin(Model *m, const ModelSpec *spec) {
    size_t L = spec->c.L;
    memset(m, 0, sizeof *m);
    m->spec = *spec;
    params_init(&m->params, &spec->sharing, &spec->c, 1, sizeof(float));
    m->c = m->params.c;
    m->Cn = tp_channels(&m->params.tp);
    m->NHn = tp_heads(&m->params.tp);
    m->Vp = (m->c.V + m->params.tp.shares + 15) / 16 * 16;   // + 1 if shared: tp_targets' column
    m->acts = alloc_or_die(L * sizeof *m->acts, "a table of activations");
    m->w.block = alloc_or_die(L * sizeof(Block), "a table of blocks");
    m->dw.block = alloc_or_die(L * sizeof(Block), "a table of blocks");
}

static void model_end(Model *m) {
    params_close(&m->params);
    free(m->acts);
    free(m->w.block);
    free(m->dw.block);
}

void model_count(Memory *mem, const ModelSpec *spec) {
    size_t batch = 3 * (size_t)spec->B * spec->T * sizeof(int);   // the trainer's tokens and losses
    Model m;
    model_begin(&m, spec);
    *mem = memory_begin(NULL);
    model_carve(&m, mem);
    mem->bytes[MEM_REST] += batch + MATMUL_STATIC_BYTES + alloc_bytes(mem->used) - mem->used;
    model_end(&m);
}

void model_init(Model *m, const ModelSpec *spec, Machine *machine) {
    const Config *c = &spec->c;
    double floats = (double)spec->B * spec->T * c->L * 16.0 * c->C;   // of blocks; size_t may wrap
    Memory counted;
    (void)machine;
    if (floats > 1e15) die("memory: %.0f TB for activations; use a smaller model or micro-batch",
                           4e-12 * floats);
    model_count(&counted, spec);
    ram_check(counted.used);
    model_begin(m, spec);
    m->memory = memory_begin(alloc_or_die(counted.used, "a model and its activations"));
    model_carve(m, &m->memory);
    assert(m->memory.used == counted.used);
    params_open(&m->params);
    weights_point(&m->w, &m->params, PARAMS);
    if (spec->use == TRAIN) weights_point(&m->dw, &m->params, GRADS);
}

void model_free(Model *m) {
    model_end(m);
    free(m->memory.base);
    memset(m, 0, sizeof *m);
}

Params *model_params(Model *m) { return &m->params; }

// --exact-sum adds each micro-batch's gradient to another buffer, which dw then points to.
void model_micro_batch(Model *m, size_t i, size_t n) {
    zero_micro_batch(&m->params, i, n);
    if (m->params.n_levels > 0) weights_point(&m->dw, &m->params, GRADS);
}

// =================================================================================================
// Main
// =================================================================================================

int main(int argc, char **argv) {
    static Run r;
    static Model m;
    static Machine machine;
    int status = 0;
    *program_name() = "train_gpt2";
    if (!run_start(&r, &m, &machine, argc, argv)) return 0;           // --help
    if (r.o.plan) {
        run_plan(&r);
    } else if (r.o.generate) {
        run_generate(&r);
    } else if (r.o.export_file) {
        run_export(&r);
    } else {
        run_open(&r);
        status = train(&r, &m);
    }
    run_close(&r);
    return status;
}
