// GPT-2, built up from an empty file. Trains on a shard of tokens.
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void die(const char *where, const char *what) {
    fprintf(stderr, "build_up: %s: %s\n", where, what);
    exit(1);
}

static float *floats(size_t n) {
    float *p = calloc(n, sizeof *p);
    if (!p) die("memory", "there is not enough");
    return p;
}

// ---- random numbers: SplitMix64, the same on every machine ----

typedef struct { uint64_t state; } Rng;

static uint64_t mix64(uint64_t x) {
    x ^= x >> 30;  x *= 0xBF58476D1CE4E5B9ull;
    x ^= x >> 27;  x *= 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

// An independent stream for each (seed, stream): one a tensor.
static Rng rng_make(uint64_t seed, uint64_t stream) {
    return (Rng){ mix64(seed + 0x9E3779B97F4A7C15ull) ^ mix64(~stream) };
}

static uint64_t rng_u64(Rng *r) {
    r->state += 0x9E3779B97F4A7C15ull;
    return mix64(r->state);
}

// Uniform in [0, 1), with 53 random bits.
static double rng_uniform(Rng *r) {
    return (double)(rng_u64(r) >> 11) * 0x1.0p-53;
}

// Standard normal, by Box and Muller. 1 - u keeps the logarithm finite.
static double rng_normal(Rng *r) {
    double u = rng_uniform(r), v = rng_uniform(r);
    return sqrt(-2.0 * log(1.0 - u)) * cos(6.283185307179586 * v);
}

// ---- layers ----

static float dot(const float *a, const float *b, int n) {
    float sum = 0.0f;
    #pragma omp simd reduction(+:sum)
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

// y += a x
static void add_scaled(float *y, float a, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] += a * x[i];
}

// embedding: x[b,t] = wte[token[b,t]] + wpe[t]
//   x (B,T,C)   token (B,T)   wte (V,C)   wpe (P,C)
static void embedding_forward(float *x, const int *token, const float *wte, const float *wpe,
                              int B, int T, int C) {
    for (size_t n = 0; n < (size_t)B*T; n++) {
        memcpy(x + n*C, wte + (size_t)token[n]*C, C * sizeof *x);
        add_scaled(x + n*C, 1.0f, wpe + n % T * C, C);
    }
}

// Each row of dx is added to the gradient of its token and to that of its position.
static void embedding_backward(float *dwte, float *dwpe, const float *dx, const int *token,
                               int B, int T, int C) {
    for (size_t n = 0; n < (size_t)B*T; n++) {
        add_scaled(dwte + (size_t)token[n]*C, 1.0f, dx + n*C, C);
        add_scaled(dwpe + n % T * C, 1.0f, dx + n*C, C);
    }
}

// LayerNorm: out = (x - mean) * rstd * gain + bias, with rstd = 1/sqrt(var + 1e-5)
//   out, x (N,C)   mean, rstd (N) kept for backward   gain, bias (C)
static void layernorm_forward(float *out, float *mean, float *rstd, const float *x,
                              const float *gain, const float *bias, size_t N, int C) {
    for (size_t n = 0; n < N; n++) {
        const float *row = x + n*C;
        float sum = 0.0f, squares = 0.0f;
        for (int c = 0; c < C; c++) sum += row[c];
        float m = sum / C;
        for (int c = 0; c < C; c++) squares += (row[c] - m) * (row[c] - m);
        float r = 1.0f / sqrtf(squares / C + 1e-5f);
        for (int c = 0; c < C; c++) out[n*C + c] = (row[c] - m) * r * gain[c] + bias[c];
        mean[n] = m;
        rstd[n] = r;
    }
}

// With xhat = (x - mean) * rstd and g = dout * gain:
// dx = (g - mean(g) - xhat * mean(g * xhat)) * rstd; dgain += dout * xhat; dbias += dout.
static void layernorm_backward(float *dx, float *dgain, float *dbias, const float *dout,
                               const float *x, const float *mean, const float *rstd,
                               const float *gain, size_t N, int C) {
    for (size_t n = 0; n < N; n++) {
        const float *d = dout + n*C;
        float xhat[C], mean_g = 0.0f, mean_gx = 0.0f;
        for (int c = 0; c < C; c++) {
            xhat[c] = (x[n*C + c] - mean[n]) * rstd[n];
            mean_g += d[c] * gain[c] / C;
            mean_gx += d[c] * gain[c] * xhat[c] / C;
            dgain[c] += d[c] * xhat[c];
            dbias[c] += d[c];
        }
        for (int c = 0; c < C; c++)
            dx[n*C + c] = (d[c]*gain[c] - mean_g - xhat[c] * mean_gx) * rstd[n];
    }
}

// linear: out = x w + b
//   out (N,OC)   x (N,C)   w (C,OC)   b (OC)
static void linear_forward(float *out, const float *x, const float *w, const float *b,
                           size_t N, int C, int OC) {
    for (size_t n = 0; n < N; n++) {
        memcpy(out + n*OC, b, OC * sizeof *out);
        for (int c = 0; c < C; c++) add_scaled(out + n*OC, x[n*C + c], w + c*OC, OC);
    }
}

// dx = dout w^T; dw += x^T dout; db += the sum of dout's rows
static void linear_backward(float *dx, float *dw, float *db, const float *dout,
                            const float *x, const float *w, size_t N, int C, int OC) {
    for (size_t n = 0; n < N; n++) {
        add_scaled(db, 1.0f, dout + n*OC, OC);
        for (int c = 0; c < C; c++) {
            dx[n*C + c] = dot(dout + n*OC, w + c*OC, OC);
            add_scaled(dw + c*OC, x[n*C + c], dout + n*OC, OC);
        }
    }
}

// causal self-attention, for each head: out_t = sum over t2 <= t of p_t,t2 v_t2,
// where p_t = softmax over t2 <= t of q_t . k_t2 / sqrt(HS)
//   out (B,T,C)   qkv (B,T,3C)   lse (B,NH,T), kept for backward   scratch (T)
// The row of token t of one head: its query at [0], its key at [C], its value at [2C].
static const float *head_row(const float *qkv, int b, int t, int h, int T, int C, int HS) {
    return qkv + ((size_t)b*T + t)*3*C + h*HS;
}

static void attention_forward(float *out, float *lse, float *scratch, const float *qkv,
                              int B, int T, int C, int NH) {
    int HS = C / NH;
    float *p = scratch, scale = 1.0f / sqrtf((float)HS);
    for (int b = 0; b < B; b++)
    for (int h = 0; h < NH; h++)
    for (int t = 0; t < T; t++) {
        const float *q = head_row(qkv, b, t, h, T, C, HS);
        float *o = out + ((size_t)b*T + t)*C + h*HS;
        float hi = -INFINITY, sum = 0.0f;
        for (int t2 = 0; t2 <= t; t2++) {
            p[t2] = scale * dot(q, head_row(qkv, b, t2, h, T, C, HS) + C, HS);
            hi = fmaxf(hi, p[t2]);
        }
        for (int t2 = 0; t2 <= t; t2++) sum += p[t2] = expf(p[t2] - hi);
        memset(o, 0, HS * sizeof *o);
        for (int t2 = 0; t2 <= t; t2++)
            add_scaled(o, p[t2] / sum, head_row(qkv, b, t2, h, T, C, HS) + 2*C, HS);
        lse[((size_t)b*NH + h)*T + t] = hi + logf(sum);
    }
}

// With s the scores and d_t = dout_t . out_t: dv_t2 += p_t,t2 dout_t, and the gradient of s_t,t2 is
// p_t,t2 (dout_t . v_t2 - d_t). Each p is computed anew from lse.
static void attention_backward(float *dqkv, const float *dout, const float *qkv, const float *out,
                               const float *lse, int B, int T, int C, int NH) {
    int HS = C / NH;
    float scale = 1.0f / sqrtf((float)HS);
    memset(dqkv, 0, (size_t)B*T*3*C * sizeof *dqkv);
    for (int b = 0; b < B; b++)
    for (int h = 0; h < NH; h++)
    for (int t = 0; t < T; t++) {
        const float *q = head_row(qkv, b, t, h, T, C, HS);
        const float *d_o = dout + ((size_t)b*T + t)*C + h*HS;
        float *dq = dqkv + (q - qkv);
        float d = dot(d_o, out + (d_o - dout), HS);
        for (int t2 = 0; t2 <= t; t2++) {
            const float *k = head_row(qkv, b, t2, h, T, C, HS) + C, *v = k + C;
            float *dk = dqkv + (k - qkv), *dv = dk + C;
            float p = expf(scale * dot(q, k, HS) - lse[((size_t)b*NH + h)*T + t]);
            float dqk = p * (dot(d_o, v, HS) - d) * scale;
            add_scaled(dv, p, d_o, HS);
            add_scaled(dq, dqk, k, HS);
            add_scaled(dk, dqk, q, HS);
        }
    }
}

// residual: out = a + b
static void residual_forward(float *out, const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = a[i] + b[i];
}

static void residual_backward(float *dx, const float *dbranch, size_t n) {
    add_scaled(dx, 1.0f, dbranch, n);
}

// GELU: x s with s = 1 / (1 + e^-2u) and u = sqrt(2/pi) (x + 0.044715 x^3)
static void gelu_forward(float *out, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float u = 0.79788456f * (x[i] + 0.044715f * x[i]*x[i]*x[i]);
        out[i] = x[i] / (1.0f + expf(-2.0f * u));
    }
}

// d(x s)/dx = s + x s (1 - s) 2 du/dx. dx may be dout itself.
static void gelu_backward(float *dx, const float *dout, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float u = 0.79788456f * (x[i] + 0.044715f * x[i]*x[i]*x[i]);
        float s = 1.0f / (1.0f + expf(-2.0f * u));
        float two_du = 1.59576912f * (1.0f + 3.0f*0.044715f * x[i]*x[i]);
        dx[i] = dout[i] * (s + x[i] * s * (1.0f - s) * two_du);
    }
}

// softmax cross-entropy: loss[n] = -ln p(target[n]), where p is the softmax of row n
//   logits (N,V)   target (N)   loss, lse (N); lse[n] = log sum exp, kept for backward
static void xent_forward(float *loss, float *lse, const float *logits, const int *target,
                         size_t N, int V) {
    for (size_t n = 0; n < N; n++) {
        const float *x = logits + n*V;
        float hi = x[0], sum = 0.0f;
        for (int v = 1; v < V; v++) hi = fmaxf(hi, x[v]);
        for (int v = 0; v < V; v++) sum += expf(x[v] - hi);       // each term <= 1: no overflow
        lse[n] = hi + logf(sum);
        loss[n] = lse[n] - x[target[n]];
    }
}

// dlogits = (p - 1[target]) * scale. It replaces the logits.
static void xent_backward(float *dlogits, const float *lse, const int *target, float scale,
                          size_t N, int V) {
    for (size_t n = 0; n < N; n++) {
        float *d = dlogits + n*V;
        for (int v = 0; v < V; v++) d[v] = expf(d[v] - lse[n]) * scale;
        d[target[n]] -= scale;
    }
}

// ---- model ----

enum { MAX_L = 12, SEED = 1337 };
typedef struct { int L, NH, C, V, P; } Config;    // layers, heads, channels, words, positions

typedef struct {
    float *ln1_gain, *ln1_bias;        // (C)
    float *qkv_w, *qkv_b;              // (C,3C) (3C)
    float *att_proj_w, *att_proj_b;    // (C,C) (C)
    float *ln2_gain, *ln2_bias;        // (C)
    float *fc_w, *fc_b;                // (C,4C) (4C)
    float *mlp_proj_w, *mlp_proj_b;    // (4C,C) (C)
} Block;

typedef struct {
    float *wte, *wpe;                  // (V,C) (P,C)
    Block block[MAX_L];
    float *lnf_gain, *lnf_bias;        // (C) the final LayerNorm
    float *head_w, *head_b;            // (C,V) (V)
} Weights;

typedef struct {
    float *x;                          // (N,C) what enters the block: x_out of the one before
    float *ln1;                        // (N,C)
    float *ln1_mean, *ln1_rstd;        // (N)
    float *qkv;                        // (N,3C)
    float *att;                        // (N,C)
    float *att_lse;                    // (B,NH,T)
    float *x_mid;                      // (N,C)
    float *ln2;                        // (N,C)
    float *ln2_mean, *ln2_rstd;        // (N)
    float *fc, *gelu;                  // (N,4C)
    float *x_out;                      // (N,C) what leaves it
} BlockActs;

// A tensor's elements, their gradients, and AdamW's moments. Matrices decay.
typedef struct { float *p, *dp, *m, *v; size_t count; bool decays; } Tensor;

typedef struct {
    Config c;
    Weights w, dw;                     // parameters; their gradients
    Tensor tensor[200];                // all of them, in order
    int n_tensors;
    float *x_in;                       // (N,C) embeddings
    BlockActs acts[MAX_L];
    float *branch, *dbranch;           // (N,C) the output of a branch; gradients in one
    float *lnf;                        // (N,C)
    float *lnf_mean, *lnf_rstd;        // (N)
    float *logits;                     // (N,V)
    float *loss, *lse;                 // (N)
    float *dx, *dfc;                   // (N,C) (N,4C)
    float *dqkv, *scratch;             // (N,3C) (T)
} Model;

static void tensor_init(Model *m, float **w, float **dw, size_t count, double mean, double std) {
    Rng rng = rng_make(SEED, m->n_tensors);
    Tensor *t = &m->tensor[m->n_tensors++];
    *t = (Tensor){ floats(count), floats(count), floats(count), floats(count), count, std > 0.0 };
    for (size_t i = 0; i < count; i++) t->p[i] = mean + 0.17 * std * rng_normal(&rng);
    *w = t->p;
    *dw = t->dp;
}

static void block_init(Model *m, Block *w, Block *d, BlockActs *a, size_t N, size_t C) {
    double residual = 1.0 / sqrt(2.0 * m->c.L);        // the stream is a sum of 2L branches
    tensor_init(m, &w->ln1_gain, &d->ln1_gain, C, 1.0, 0.0);
    tensor_init(m, &w->ln1_bias, &d->ln1_bias, C, 0.0, 0.0);
    tensor_init(m, &w->qkv_w, &d->qkv_w, C*3*C, 0.0, 1.0);
    tensor_init(m, &w->qkv_b, &d->qkv_b, 3*C, 0.0, 0.0);
    tensor_init(m, &w->att_proj_w, &d->att_proj_w, C*C, 0.0, residual);
    tensor_init(m, &w->att_proj_b, &d->att_proj_b, C, 0.0, 0.0);
    tensor_init(m, &w->ln2_gain, &d->ln2_gain, C, 1.0, 0.0);
    tensor_init(m, &w->ln2_bias, &d->ln2_bias, C, 0.0, 0.0);
    tensor_init(m, &w->fc_w, &d->fc_w, C*4*C, 0.0, 1.0);
    tensor_init(m, &w->fc_b, &d->fc_b, 4*C, 0.0, 0.0);
    tensor_init(m, &w->mlp_proj_w, &d->mlp_proj_w, 4*C*C, 0.0, residual);
    tensor_init(m, &w->mlp_proj_b, &d->mlp_proj_b, C, 0.0, 0.0);
    a->ln1 = floats(N*C);
    a->ln1_mean = floats(N);
    a->ln1_rstd = floats(N);
    a->qkv = floats(N*3*C);
    a->att = floats(N*C);
    a->att_lse = floats(N*m->c.NH);
    a->x_mid = floats(N*C);
    a->ln2 = floats(N*C);
    a->ln2_mean = floats(N);
    a->ln2_rstd = floats(N);
    a->fc = floats(N*4*C);
    a->gelu = floats(N*4*C);
    a->x_out = floats(N*C);
}

static void model_init(Model *m, Config c, int B, int T) {
    size_t N = (size_t)B*T, C = c.C, V = c.V;
    m->c = c;
    tensor_init(m, &m->w.wte, &m->dw.wte, V*C, 0.0, 1.0);
    tensor_init(m, &m->w.wpe, &m->dw.wpe, c.P*C, 0.0, 1.0);
    m->x_in = floats(N*C);
    for (int l = 0; l < c.L; l++) {
        m->acts[l].x = l > 0 ? m->acts[l - 1].x_out : m->x_in;
        block_init(m, &m->w.block[l], &m->dw.block[l], &m->acts[l], N, C);
    }
    tensor_init(m, &m->w.lnf_gain, &m->dw.lnf_gain, C, 1.0, 0.0);
    tensor_init(m, &m->w.lnf_bias, &m->dw.lnf_bias, C, 0.0, 0.0);
    tensor_init(m, &m->w.head_w, &m->dw.head_w, C*V, 0.0, 1.0);
    tensor_init(m, &m->w.head_b, &m->dw.head_b, V, 0.0, 0.0);
    m->branch = floats(N*C);
    m->dbranch = floats(N*C);
    m->lnf = floats(N*C);
    m->lnf_mean = floats(N);
    m->lnf_rstd = floats(N);
    m->logits = floats(N*V);
    m->loss = floats(N);
    m->lse = floats(N);
    m->dx = floats(N*C);
    m->dfc = floats(N*4*C);
    m->dqkv = floats(N*3*C);
    m->scratch = floats(T);
}

// x_mid = x + attention(LayerNorm(x)); x_out = x_mid + MLP(LayerNorm(x_mid)).
static void block_forward(Model *m, Block w, BlockActs a, int B, int T) {
    size_t N = (size_t)B*T;
    int C = m->c.C;
    layernorm_forward(a.ln1, a.ln1_mean, a.ln1_rstd, a.x, w.ln1_gain, w.ln1_bias, N, C);
    linear_forward(a.qkv, a.ln1, w.qkv_w, w.qkv_b, N, C, 3*C);
    attention_forward(a.att, a.att_lse, m->scratch, a.qkv, B, T, C, m->c.NH);
    linear_forward(m->branch, a.att, w.att_proj_w, w.att_proj_b, N, C, C);
    residual_forward(a.x_mid, a.x, m->branch, N*C);
    layernorm_forward(a.ln2, a.ln2_mean, a.ln2_rstd, a.x_mid, w.ln2_gain, w.ln2_bias, N, C);
    linear_forward(a.fc, a.ln2, w.fc_w, w.fc_b, N, C, 4*C);
    gelu_forward(a.gelu, a.fc, N*4*C);
    linear_forward(m->branch, a.gelu, w.mlp_proj_w, w.mlp_proj_b, N, 4*C, C);
    residual_forward(a.x_out, a.x_mid, m->branch, N*C);
}

static void model_forward(Model *m, const int *tokens, int B, int T) {
    size_t N = (size_t)B*T;
    int C = m->c.C, L = m->c.L, V = m->c.V;
    embedding_forward(m->x_in, tokens, m->w.wte, m->w.wpe, B, T, C);
    for (int l = 0; l < L; l++) block_forward(m, m->w.block[l], m->acts[l], B, T);
    layernorm_forward(m->lnf, m->lnf_mean, m->lnf_rstd, m->acts[L - 1].x_out,
                      m->w.lnf_gain, m->w.lnf_bias, N, C);
    linear_forward(m->logits, m->lnf, m->w.head_w, m->w.head_b, N, C, V);
}

// From dx, the gradient of x_out, to dx, the gradient of x.
static void block_backward(Model *m, Block w, Block dw, BlockActs a, int B, int T) {
    size_t N = (size_t)B*T;
    int C = m->c.C;
    linear_backward(m->dfc, dw.mlp_proj_w, dw.mlp_proj_b, m->dx, a.gelu, w.mlp_proj_w, N, 4*C, C);
    gelu_backward(m->dfc, m->dfc, a.fc, N*4*C);
    linear_backward(m->dbranch, dw.fc_w, dw.fc_b, m->dfc, a.ln2, w.fc_w, N, C, 4*C);
    layernorm_backward(m->dbranch, dw.ln2_gain, dw.ln2_bias, m->dbranch, a.x_mid, a.ln2_mean,
                       a.ln2_rstd, w.ln2_gain, N, C);
    residual_backward(m->dx, m->dbranch, N*C);
    linear_backward(m->dbranch, dw.att_proj_w, dw.att_proj_b, m->dx, a.att, w.att_proj_w, N, C, C);
    attention_backward(m->dqkv, m->dbranch, a.qkv, a.att, a.att_lse, B, T, C, m->c.NH);
    linear_backward(m->dbranch, dw.qkv_w, dw.qkv_b, m->dqkv, a.ln1, w.qkv_w, N, C, 3*C);
    layernorm_backward(m->dbranch, dw.ln1_gain, dw.ln1_bias, m->dbranch, a.x, a.ln1_mean,
                       a.ln1_rstd, w.ln1_gain, N, C);
    residual_backward(m->dx, m->dbranch, N*C);
}

// Backpropagation, after model_forward on the same tokens: adds the gradient of scale * (sum of the
// N losses) to dw. Returns the sum of the losses in nats.
static double model_backward(Model *m, const int *tokens, const int *targets, float scale,
                             int B, int T) {
    size_t N = (size_t)B*T;
    int V = m->c.V;
    int C = m->c.C, L = m->c.L;
    double sum = 0.0;
    xent_forward(m->loss, m->lse, m->logits, targets, N, V);
    xent_backward(m->logits, m->lse, targets, scale, N, V);
    linear_backward(m->dbranch, m->dw.head_w, m->dw.head_b, m->logits, m->lnf, m->w.head_w,
                    N, C, V);
    layernorm_backward(m->dx, m->dw.lnf_gain, m->dw.lnf_bias, m->dbranch,
                       m->acts[L - 1].x_out, m->lnf_mean, m->lnf_rstd, m->w.lnf_gain, N, C);
    for (int l = L - 1; l >= 0; l--)
        block_backward(m, m->w.block[l], m->dw.block[l], m->acts[l], B, T);
    embedding_backward(m->dw.wte, m->dw.wpe, m->dx, tokens, B, T, C);
    for (size_t n = 0; n < N; n++) sum += m->loss[n];
    return sum;
}

// ---- optimizer ----

static void clear_grads(Model *m) {
    for (int i = 0; i < m->n_tensors; i++)
        memset(m->tensor[i].dp, 0, m->tensor[i].count * sizeof(float));
}

// The sum of the squares of all gradients; its root is the global norm.
static double gradients_squares(Model *m) {
    double sum = 0.0;
    for (int i = 0; i < m->n_tensors; i++)
        for (size_t j = 0; j < m->tensor[i].count; j++)
            sum += (double)m->tensor[i].dp[j] * m->tensor[i].dp[j];
    return sum;
}

// steps: updates so far, this one counted
typedef struct { float lr, beta1, beta2, eps, weight_decay; int steps; } AdamW;

// The moments m and v are running means of the gradient and of its square. They begin at 0, for
// which Adam's bias correction makes up. Decoupled weight decay pulls p towards 0.
static void adamw_update(float *p, float *m, float *v, const float *g, float g_scale, AdamW o,
                         size_t n) {
    float correct_m = (float)(1.0 / (1.0 - pow(o.beta1, o.steps)));
    float correct_v = (float)(1.0 / (1.0 - pow(o.beta2, o.steps)));
    for (size_t i = 0; i < n; i++) {
        float gi = g[i] * g_scale;
        m[i] = o.beta1 * m[i] + (1.0f - o.beta1) * gi;
        v[i] = o.beta2 * v[i] + (1.0f - o.beta2) * gi * gi;
        p[i] -= o.lr * (m[i]*correct_m / (sqrtf(v[i]*correct_v) + o.eps) + o.weight_decay * p[i]);
    }
}

static void model_update(Model *m, AdamW o, float g_scale) {
    for (int i = 0; i < m->n_tensors; i++) {
        Tensor t = m->tensor[i];
        AdamW tensor_o = o;
        if (!t.decays) tensor_o.weight_decay = 0.0f;
        adamw_update(t.p, t.m, t.v, t.dp, g_scale, tensor_o, t.count);
    }
}

// ---- data ----

// A shard: int32 header[256], then tokens as uint16. In the header [0] is 20240520, [1] version 1,
// [2] the number of tokens, [3] the vocabulary, [4] the token that ends a text. Window i begins at
// token i*T; its targets are one token further on.
typedef struct {
    uint16_t *tokens;
    uint64_t n_windows, seed;
    int V, eot, T;
    uint64_t samples;                  // consumed since the run began
} Loader;

static void loader_open(Loader *l, const char *path, int T, uint64_t seed) {
    int32_t header[256] = { 0 };
    FILE *f = fopen(path, "rb");
    if (!f || fread(header, 4, 256, f) != 256 || header[0] != 20240520 || header[1] != 1)
        die(path, "is no shard of tokens; ./prepare tales writes one");
    size_t n = header[2];
    *l = (Loader){ malloc(n * 2), n ? (n - 1) / T : 0, seed, header[3], header[4], T, 0 };
    if (!l->tokens || fread(l->tokens, 2, n, f) != n || l->n_windows == 0)
        die(path, "is too short");
    fclose(f);
}

// A Feistel network: one-to-one on the numbers of 2*half_bits bits, whatever mix64 does.
static uint64_t feistel(uint64_t x, const uint64_t key[8], int half_bits) {
    uint64_t mask = ((uint64_t)1 << half_bits) - 1, left = x >> half_bits, right = x & mask;
    for (int round = 0; round < 8; round++) {
        uint64_t scrambled = left ^ (mix64(right ^ key[round]) & mask);
        left = right;
        right = scrambled;
    }
    return left << half_bits | right;
}

// The window at this place of an epoch: a shuffle of 0 ... n-1 that is computed, not stored.
static uint64_t permute(uint64_t place, uint64_t n, uint64_t seed, uint64_t epoch) {
    Rng keys = rng_make(~seed, epoch);
    uint64_t key[8], x = place;
    int half_bits = 0;
    while ((n - 1) >> (2*half_bits) != 0) half_bits++;            // the smallest k with 4^k >= n
    for (int round = 0; round < 8; round++) key[round] = rng_u64(&keys);
    do x = feistel(x, key, half_bits); while (x >= n);            // walks its cycle to below n
    return x;
}

// Samples first ... first+n-1 of the run.
//   inputs (n,T)   targets (n,T)
static void loader_batch(const Loader *l, uint64_t first, int n, int *inputs, int *targets) {
    for (int i = 0; i < n; i++) {
        uint64_t s = first + i;
        uint64_t window = permute(s % l->n_windows, l->n_windows, l->seed, s / l->n_windows);
        for (int t = 0; t < l->T; t++) {
            inputs[i*l->T + t] = l->tokens[window*l->T + t];
            targets[i*l->T + t] = l->tokens[window*l->T + t + 1];
        }
    }
}

// ---- training loop ----

// One update; returns the mean loss before it.
static double train_step(Model *m, Loader *l, int B, int T, AdamW o) {
    int inputs[B*T], targets[B*T];
    loader_batch(l, l->samples, B, inputs, targets);
    l->samples += B;
    clear_grads(m);
    model_forward(m, inputs, B, T);
    double loss = model_backward(m, inputs, targets, 1.0f / (B*T), B, T) / (B*T);
    double norm = sqrt(gradients_squares(m)), clip = 1.0;
    model_update(m, o, norm > clip ? (float)(clip / norm) : 1.0f);
    return loss;
}

int main(int argc, char **argv) {
    enum { B = 8, T = 16, STEPS = 2000, EVERY = 400 };
    static Loader l;
    static Model m;
    double loss = 0.0;
    if (argc != 2) die("usage", "09_loader SHARD");
    loader_open(&l, argv[1], T, SEED);
    model_init(&m, (Config){ .L = 2, .NH = 2, .C = 32, .V = l.V, .P = T }, B, T);
    AdamW o = { .lr = 2e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f };
    for (int step = 1; step <= STEPS; step++) {
        o.steps = step;
        loss += train_step(&m, &l, B, T, o) / EVERY;               // the mean of EVERY updates
        if (step % EVERY != 0) continue;
        printf("update %4d   loss %.4f\n", step, loss);
        loss = 0.0;
    }
    return 0;
}
