// One side of the exercises in C (dev/check/side.h): built with the reader's train_gpt2.c and with
// the original. Here is what rows of cases.h need beside the function that they call.
#include "dev/train/train.h"

// gradient_accumulation calls train_step alone: what stands around it is counted here.
#define step_begin around_step_begin
#define next_batch around_next_batch
#define gradients_arrive around_gradients_arrive
#define totals_share around_totals_share
#define step_end around_step_end
static void step_begin(Run *r, Step *s);
static void next_batch(Run *r, Step *s, size_t i);
static void gradients_arrive(Run *r, Step *s);
static void totals_share(const Params *p, Totals *t);
static void step_end(Run *r, Step *s, const Totals *t);
#define main train_gpt2_main
#include "train_gpt2.c"
#undef main
#include "dev/exercises/ranks.h"

// ---- settings ----

static AdamW rates_of(int r) {
    return (AdamW){ .lr = 0.1f / r, .beta1 = r == 3 ? 0.0f : 0.9f, .beta2 = r < 3 ? 0.95f : 0.999f,
                    .eps = r < 5 ? 1e-2f : 1e-8f, .weight_decay = r == 2 ? 0.0f : 0.1f,
                    .m_steps = 1 + 6*(r / 3), .v_steps = 1 + 2.5*(r / 2) };
}

// ---- sample_token: 500 numbers of the generator, evenly spread ----

// The state from which the next rng_uniform is u: mix64 backwards.
static Rng rng_before(double u) {
    uint64_t x = (uint64_t)(u * 0x1p53) << 11;
    x = (x ^ x >> 31 ^ x >> 62) * 0x319642B2D24D8EC3ull;
    x = (x ^ x >> 27 ^ x >> 54) * 0x96DE1B173F119089ull;
    x ^= x >> 30 ^ x >> 60;
    return (Rng){ x - 0x9E3779B97F4A7C15ull };
}

static void draw_tokens(double *drawn, double *numbers_taken, const float *logits,
                        double *candidates, int V, int k) {
    static const Sampler SAMPLERS[] = {
        { .temperature = 0, .top_p = 1 }, { .temperature = 0.5f, .top_p = 1 },
        { .temperature = 1, .top_k = 2, .top_p = 1 }, { .temperature = 1, .top_p = 0.7f },
        { .temperature = 1, .top_k = 4, .top_p = 0.8f },
        { .temperature = 1, .top_k = 301, .top_p = 1 },
    };
    Sampler s = SAMPLERS[k - 1];
    s.candidates = (Candidate *)(void *)candidates;
    *numbers_taken = 0;
    for (int v = 0; v < V; v++) drawn[v] = 0;
    for (int i = 0; i < 500; i++) {
        Rng rng = rng_before((i + 0.5) / 500), before = rng;
        int id = sample_token(&s, logits, V, &rng);
        drawn[id < 0 || id >= V ? 0 : id] += id < 0 || id >= V ? NAN : 1;
        for (; before.state != rng.state && *numbers_taken < 999; ++*numbers_taken)
            rng_u64(&before);
    }
}

// ---- a whole model ----

#define GPT2_PARAMS(L, C, V, P) ((V)*(C) + (P)*(C) + (L)*(12*(C)*(C) + 13*(C)) + 2*(C))
enum { STEP_PARAMS = GPT2_PARAMS(2, 8, 16, 8), SKIPPED = -123 };

static Model *model_of(int L, int C, int V, int P, int B, Use use, const float *params) {
    static Machine machine;
    Model *m = calloc(1, sizeof *m);
    Config c = { .L = L, .NH = 2, .C = C, .V = V, .P = P };
    ModelSpec spec = { .c = c, .B = B, .T = P, .use = use };
    model_init(m, &spec, &machine);
    for (size_t i = 0; i < gpt2_n_params(&c); i++) m->params.masters[i] = 0.3f * params[i];
    return m;
}

// What a model keeps of `rows` rows, for each layer but x_in.
typedef struct { float *logits, *x_in, *ln1, *qkv, *att, *x_out; } KeptRows;

// A text in three pieces; if k is odd the last piece begins in the middle of what is there. All but
// the keys and values of rows that are past hold SKIPPED, so that it shows if they are written.
static void extend_three_times(KeptRows to, const float *params, const int *tokens, int L, int C,
                               int V, int T, int k) {
    int rows = T + 3, ends[] = { 1 + k % T, 1 + k % T + (T - k % T) / 2, rows }, past = 0;
    size_t n = (size_t)rows*C;
    Model *m = model_of(L, C, V, rows, 1, INFER, params);
    for (int i = 0; i < 3; i++) {
        int from = i == 2 && k % 2 ? past / 2 : past;
        for (float *x = m->x_in; x < m->lse; x++) {
            bool cached = false;
            for (int l = 0; l < L; l++)
                cached |= x >= m->acts[l].qkv && x < m->acts[l].qkv + (size_t)from*3*C;
            if (!cached) *x = SKIPPED;
        }
        model_forward(m, tokens + from, 1, ends[i] - from, from);
        memcpy(to.logits + i*V, model_logits(m, ends[i] - from - 1), V * sizeof(float));
        past = ends[i];
    }
    memcpy(to.x_in, m->x_in, n * sizeof(float));
    for (int l = 0; l < L; l++) {
        memcpy(to.ln1 + l*n, m->acts[l].ln1.out, n * sizeof(float));
        memcpy(to.qkv + l*3*n, m->acts[l].qkv, 3*n * sizeof(float));
        memcpy(to.att + l*n, m->acts[l].att, n * sizeof(float));
        memcpy(to.x_out + l*n, m->acts[l].x_out, n * sizeof(float));
    }
    model_free(m), free(m);
}

// ---- train_step, and what stands around it ----

static struct {
    int n, B, T, k, begun, read, arrived, shared, ended;
    const int *tokens;
    Totals totals;
    Model *m;
    float at_end[STEP_PARAMS];
} around;

static void step_begin(Run *r, Step *s) {
    (void)r, memset(s, 0, sizeof *s), around.begun++;
    s->B = around.B, s->T = around.T, s->micro_batches = around.n, s->adamw = rates_of(1);
    s->scale = 1.0f / (around.n * around.B * around.T);
}

static void next_batch(Run *r, Step *s, size_t i) {
    size_t N = (size_t)s->B * s->T;
    if (i != (size_t)around.read++ || i >= s->micro_batches) around.read += 1000;
    memcpy(r->inputs, around.tokens + i % around.n * N, N * sizeof(int));
    memcpy(r->targets, around.tokens + (around.n + i % around.n) * N, N * sizeof(int));
    if (around.k == 7) around.m->params.grads[5] = NAN;
    if (around.k == 8) around.m->params.grads[5] = 3;    // its square is over the limit, not it
}

static void gradients_arrive(Run *r, Step *s) {
    (void)r, (void)s, around.arrived = 100*around.arrived + around.read;
    around.m->params.grads[3] += 0.3f;
}

static void totals_share(const Params *p, Totals *t) {
    (void)p, around.shared++, t->loss *= 2, t->squares *= 4;
}

static void step_end(Run *r, Step *s, const Totals *t) {
    (void)r, (void)s, around.ended++, around.totals = *t;
    memcpy(around.at_end, around.m->params.masters, sizeof around.at_end);
}

// k: 1 ... 3 another limit, 4, 6 and 9 no limit, 5 one that is not met, 7 not finite.
static void one_step(float *params, float *adam_m, float *gradients, const float *weights) {
    static Run r;
    int inputs[24], targets[24];
    Step s;
    Model *m = around.m = model_of(2, 8, 16, 8, 3, TRAIN, weights);
    r.inputs = inputs, r.targets = targets, r.params = &m->params;
    r.o.clip = around.k < 4 ? 0.1 * around.k : around.k == 5 ? 1e6 : around.k == 8 ? 20 : 0;
    for (int i = 0; i < STEP_PARAMS; i++) m->params.grads[i] = 0.125f;
    train_step(&r, m, &s);
    memcpy(params, m->params.masters, STEP_PARAMS * sizeof *params);
    memcpy(adam_m, m->params.adam_m, STEP_PARAMS * sizeof *params);
    memcpy(gradients, m->params.grads, STEP_PARAMS * sizeof *params);
    model_free(m), free(m);
}

// ---- zero1 ----

// Rank r's slice ends at the r-th cut from behind, so that slices lie in the reverse order.
static void zero_ranks(ZeroRank *ranks, float *params, float *m, float *v, float *grads,
                       const int *cuts, int n, int c) {
    int sorted[10] = { 0 };
    for (int i = 0; i < n - 1; i++) {
        int k = ++sorted[0];                     // how many there are; then the cuts from 1 on
        for (; k > 1 && sorted[k - 1] > cuts[i]; k--) sorted[k] = sorted[k - 1];
        sorted[k] = cuts[i];
    }
    sorted[0] = 0, sorted[n] = c;
    for (int r = 0; r < n; r++) {
        int begin = sorted[n - 1 - r], end = sorted[n - r];
        ranks[r] = (ZeroRank){ params + (size_t)r*c, grads + (size_t)r*c, m + begin, v + begin,
                               (size_t)begin, (size_t)(end - begin), 0, 0 };
    }
}

// ---- the rows ----

#define LETTERS \
    const int *z = side.size, B = z['B'], T = z['T'], C = z['S'] ? z['H']*z['S'] : z['C'], \
              N = z['N'], V = z['V'], P = z['P'], NH = z['H'], HS = z['S'], OC = z['O'], \
              L = z['L'], past = z['p'] - 1, n = z['n'], c = z['c'], k = z['k'], r = z['r'], \
              threads = side.threads;
#define TABLE "dev/exercises/cases.h"
#include "dev/check/side.h"

static void *side_new(size_t bytes) { return alloc_or_die(bytes, "an array"); }
static void side_free(void *x) { free(x); }
static void side_begin(void) { threads_set(side.threads); }

#ifdef WATCHED                         // with dev/exercises/threads.c
extern const void *_Atomic race_address, *_Atomic order_address;

static void side_end(void) {
    const void *at = race_address ? race_address : order_address;
    ptrdiff_t i = 0;
    const Array *a = at ? array_near(at, &i) : NULL;
    const char *name = a ? compare_element(&a->t, (size_t)i) : "";
    if (a && race_address && a->role == SCRATCH)
        side_fault("%s: two threads use it; a thread's piece of scratch begins at thread_index() "
                   "times the piece's size", name);
    if (a && race_address)
        side_fault("%s: one thread writes it while another reads or writes it; divide the loop so "
                   "that each element belongs to one thread", name);
    if (race_address)
        side_fault("threads share a variable that one of them writes: declare it inside the "
                   "parallel loop, so that each thread has its own");
    if (at)
        side_fault("%s: threads add to it in the order in which they happen to come, so its bits "
                   "change from run to run", a ? name : "a variable");
}
#else
static void side_end(void) {}
#endif
