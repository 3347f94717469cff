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

// embedding: x[n] = wte[token[n]]
//   x (N,C)   token (N)   wte (V,C)
static void embedding_forward(float *x, const int *token, const float *wte, size_t N, int C) {
    for (size_t n = 0; n < N; n++) memcpy(x + n*C, wte + (size_t)token[n]*C, C * sizeof *x);
}

// softmax cross-entropy: loss[n] = -ln p(target[n]), where p is the softmax of row n
//   logits (N,V)   target (N)   loss, lse (N); lse[n] = log sum exp
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

// ---- model ----

typedef struct { int V; } Config;      // V words in the vocabulary

typedef struct {
    float *wte;                        // (V,V) row i: a score for each token that may follow i
} Weights;

typedef struct {
    Config c;
    Weights w;
    float *logits;                     // (N,V)
    float *loss, *lse;                 // (N)
} Model;

static void model_init(Model *m, Config c, int B, int T) {
    size_t N = (size_t)B*T, V = c.V;
    m->c = c;
    m->w.wte = floats(V*V);
    m->logits = floats(N*V);
    m->loss = floats(N);
    m->lse = floats(N);
}

static void model_forward(Model *m, const int *tokens, int B, int T) {
    size_t N = (size_t)B*T;
    embedding_forward(m->logits, tokens, m->w.wte, N, m->c.V);
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

int main(void) {
    enum { V = 256, B = 8, T = 16, N = B*T };
    static Loader l;
    static Model m;
    int inputs[N], targets[N];
    double loss = 0.0;
    l.n = fread(l.text, 1, sizeof l.text, stdin);
    model_init(&m, (Config){ .V = V }, B, T);
    float *wte = m.w.wte;
    for (size_t i = 0; i + 1 < l.n; i++) wte[l.text[i]*V + l.text[i + 1]] += 1.0f;
    for (int i = 0; i < V*V; i++) wte[i] = logf(wte[i]);          // softmax turns ln n into n / sum
    int batches = (int)(l.n - 1) / N;
    for (int i = 0; i < batches; i++) {
        loader_next(&l, inputs, targets, B, T);
        model_forward(&m, inputs, B, T);
        xent_forward(m.loss, m.lse, m.logits, targets, N, V);
        for (int n = 0; n < N; n++) loss += m.loss[n] / N;
    }
    printf("loss %.4f\n", loss / batches);
    return 0;
}
