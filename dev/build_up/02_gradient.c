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

typedef struct { int V; } Config;      // V words in the vocabulary

typedef struct {
    float *wte;                        // (V,V) row i: a score for each token that may follow i
} Weights;

// A tensor's elements and their gradients.
typedef struct { float *p, *dp; size_t count; } Tensor;

typedef struct {
    Config c;
    Weights w, dw;                     // parameters; their gradients
    Tensor tensor[64];                 // all of them, in order
    int n_tensors;
    float *logits;                     // (N,V)
    float *loss, *lse;                 // (N)
} Model;

static void tensor_init(Model *m, float **w, float **dw, size_t count) {
    Tensor *t = &m->tensor[m->n_tensors++];
    *t = (Tensor){ floats(count), floats(count), count };
    *w = t->p;
    *dw = t->dp;
}

static void model_init(Model *m, Config c, int B, int T) {
    size_t N = (size_t)B*T, V = c.V;
    m->c = c;
    tensor_init(m, &m->w.wte, &m->dw.wte, V*V);
    m->logits = floats(N*V);
    m->loss = floats(N);
    m->lse = floats(N);
}

static void model_forward(Model *m, const int *tokens, int B, int T) {
    size_t N = (size_t)B*T;
    embedding_forward(m->logits, tokens, m->w.wte, N, m->c.V);
}

// Backpropagation, after model_forward on the same tokens: adds the gradient of scale * (sum of the
// N losses) to dw. Returns the sum of the losses in nats.
static double model_backward(Model *m, const int *tokens, const int *targets, float scale,
                             int B, int T) {
    size_t N = (size_t)B*T;
    int V = m->c.V;
    double sum = 0.0;
    xent_forward(m->loss, m->lse, m->logits, targets, N, V);
    xent_backward(m->logits, m->lse, targets, scale, N, V);
    embedding_backward(m->dw.wte, m->logits, tokens, N, V);
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
    model_init(&m, (Config){ .V = V }, B, T);
    for (int step = 1; step <= STEPS; step++) {
        loss += train_step(&m, &l, B, T, 20.0f) / EVERY;          // the mean of EVERY updates
        if (step % EVERY != 0) continue;
        printf("update %4d   loss %.4f\n", step, loss);
        loss = 0.0;
    }
    return 0;
}
