// GPT-2, built up from an empty file. Trains on the text in its input.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float *floats(size_t n) {
    float *p = calloc(n, sizeof *p);
    if (!p) perror("build_up: memory"), exit(1);
    return p;
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

// embedding: x[n] = wte[token[n]]
//   x (N,C)   token (N)   wte (V,C)
static void embedding_forward(float *x, const int *token, const float *wte, size_t N, int C) {
    for (size_t n = 0; n < N; n++) memcpy(x + n*C, wte + (size_t)token[n]*C, C * sizeof *x);
}

// Each row of dx is added to the gradient of its token.
static void embedding_backward(float *dwte, const float *dx, const int *token, size_t N, int C) {
    for (size_t n = 0; n < N; n++) add_scaled(dwte + (size_t)token[n]*C, 1.0f, dx + n*C, C);
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

typedef struct { int C, V; } Config;   // C channels, V words in the vocabulary

typedef struct { float *fc_w, *fc_b; } Block;          // (C,4C) (4C)

typedef struct {
    float *wte;                        // (V,C)
    Block block;
    float *head_w, *head_b;            // (4C,V) (V)
} Weights;

typedef struct {
    float *x;                          // (N,C) what enters the block
    float *fc, *gelu;                  // (N,4C)
} BlockActs;

// A tensor's elements and their gradients.
typedef struct { float *p, *dp; size_t count; } Tensor;

typedef struct {
    Config c;
    Weights w, dw;                     // parameters; their gradients
    Tensor tensor[64];                 // all of them, in order
    int n_tensors;
    BlockActs acts;
    float *logits;                     // (N,V)
    float *loss, *lse;                 // (N)
    float *dx, *dfc;                   // (N,C) (N,4C)
} Model;

static void tensor_init(Model *m, float **w, float **dw, size_t count, double mean, double std) {
    Tensor *t = &m->tensor[m->n_tensors++];
    *t = (Tensor){ floats(count), floats(count), count };
    for (size_t i = 0; i < count; i++) t->p[i] = mean + std * (0.6*rand() / RAND_MAX - 0.3);
    *w = t->p;
    *dw = t->dp;
}

static void model_init(Model *m, Config c, int B, int T) {
    size_t N = (size_t)B*T, C = c.C, V = c.V;
    Block *w = &m->w.block, *d = &m->dw.block;
    BlockActs *a = &m->acts;
    m->c = c;
    tensor_init(m, &m->w.wte, &m->dw.wte, V*C, 0.0, 1.0);
    a->x = floats(N*C);
    tensor_init(m, &w->fc_w, &d->fc_w, C*4*C, 0.0, 1.0);
    tensor_init(m, &w->fc_b, &d->fc_b, 4*C, 0.0, 0.0);
    a->fc = floats(N*4*C);
    a->gelu = floats(N*4*C);
    tensor_init(m, &m->w.head_w, &m->dw.head_w, 4*C*V, 0.0, 1.0);
    tensor_init(m, &m->w.head_b, &m->dw.head_b, V, 0.0, 0.0);
    m->logits = floats(N*V);
    m->loss = floats(N);
    m->lse = floats(N);
    m->dx = floats(N*C);
    m->dfc = floats(N*4*C);
}

static void model_forward(Model *m, const int *tokens, int B, int T) {
    size_t N = (size_t)B*T;
    int C = m->c.C, V = m->c.V;
    Block w = m->w.block;
    BlockActs a = m->acts;
    embedding_forward(a.x, tokens, m->w.wte, N, C);
    linear_forward(a.fc, a.x, w.fc_w, w.fc_b, N, C, 4*C);
    gelu_forward(a.gelu, a.fc, N*4*C);
    linear_forward(m->logits, a.gelu, m->w.head_w, m->w.head_b, N, 4*C, V);
}

// Backpropagation, after model_forward on the same tokens: adds the gradient of scale * (sum of the
// N losses) to dw. Returns the sum of the losses in nats.
static double model_backward(Model *m, const int *tokens, const int *targets, float scale,
                             int B, int T) {
    size_t N = (size_t)B*T;
    int V = m->c.V;
    int C = m->c.C;
    Block w = m->w.block, d = m->dw.block;
    BlockActs a = m->acts;
    double sum = 0.0;
    xent_forward(m->loss, m->lse, m->logits, targets, N, V);
    xent_backward(m->logits, m->lse, targets, scale, N, V);
    linear_backward(m->dfc, m->dw.head_w, m->dw.head_b, m->logits, a.gelu, m->w.head_w, N, 4*C, V);
    gelu_backward(m->dfc, m->dfc, a.fc, N*4*C);
    linear_backward(m->dx, d.fc_w, d.fc_b, m->dfc, a.x, w.fc_w, N, C, 4*C);
    embedding_backward(m->dw.wte, m->dx, tokens, N, C);
    for (size_t n = 0; n < N; n++) sum += m->loss[n];
    return sum;
}

// ---- optimizer ----

static void clear_grads(Model *m) {
    for (int i = 0; i < m->n_tensors; i++)
        memset(m->tensor[i].dp, 0, m->tensor[i].count * sizeof(float));
}

// Gradient descent.
static void model_update(Model *m, float lr) {
    for (int i = 0; i < m->n_tensors; i++)
        add_scaled(m->tensor[i].p, -lr, m->tensor[i].dp, m->tensor[i].count);
}

// ---- data ----

// A text, a token a byte. Batches follow each other through it.
typedef struct { unsigned char text[1 << 20]; size_t n, at; } Loader;

static void loader_next(Loader *l, int *inputs, int *targets, int B, int T) {
    size_t N = (size_t)B*T;
    if (l->at + N >= l->n) l->at = 0;                             // again from the beginning
    for (size_t i = 0; i < N; i++, l->at++) {
        inputs[i] = l->text[l->at];
        targets[i] = l->text[l->at + 1];
    }
}

// ---- training loop ----

// One update; returns the mean loss before it.
static double train_step(Model *m, Loader *l, int B, int T, float lr) {
    int inputs[B*T], targets[B*T];
    loader_next(l, inputs, targets, B, T);
    clear_grads(m);
    model_forward(m, inputs, B, T);
    double loss = model_backward(m, inputs, targets, 1.0f / (B*T), B, T) / (B*T);
    model_update(m, lr);
    return loss;
}

int main(void) {
    enum { V = 256, B = 8, T = 16, STEPS = 2000, EVERY = 400 };
    static Loader l;
    static Model m;
    double loss = 0.0;
    l.n = fread(l.text, 1, sizeof l.text, stdin);
    model_init(&m, (Config){ .C = 32, .V = V }, B, T);
    for (int step = 1; step <= STEPS; step++) {
        loss += train_step(&m, &l, B, T, 0.5f) / EVERY;           // the mean of EVERY updates
        if (step % EVERY != 0) continue;
        printf("update %4d   loss %.4f\n", step, loss);
        loss = 0.0;
    }
    return 0;
}
