// Runs the reader's trainer on small models and records what it computes (dev/check/compare.h), for
// oracle.py, which computes the same in PyTorch:
//
//     open NAME THREADS FILE
//
// Each update takes two micro-batches, the second with fewer and shorter sequences. Then the first
// sequence is run with the key/value cache.
#define main train_gpt2_main
#include "train_gpt2.c"
#undef main
#include "dev/check/compare.h"

// Names begin with check_, since the reader's trainer may have functions of its own.
static FILE *check_out;
enum { OUTSIDE = -1 };                 // the layer of what lies in no block
static const double CHECK_BOUND = 1e-3;          // a mistake shows at 1e-2 or above

// A name of "qkv" is h0.qkv in layer 0.
static void check_put(int layer, const char *name, const char *letters, const size_t *sizes,
                      Role role, const float *x) {
    char full[64];
    if (layer == OUTSIDE) snprintf(full, sizeof full, "%s", name);
    else snprintf(full, sizeof full, "h%d.%s", layer, name);
    Comparison c = compare_make(full, letters, sizes, CHECK_BOUND);
    record_floats(check_out, &c, role, x);
}

#define PUT(layer, name, letters, x, ...) \
    check_put(layer, name, letters, (size_t[]){ __VA_ARGS__ }, OUT, x)

#ifdef WATCHED                         // with threads.c
extern const void *_Atomic race_address, *_Atomic order_address;
static void check_races(void) {
    if (race_address || order_address)
        record_fault(check_out, "threads share memory that one of them writes: a variable belongs "
                     "inside the parallel loop, and each element of a tensor to one thread");
}
#else
static void check_races(void) {}
#endif

// What a forward pass keeps, in every solution.
static void check_kept(Model *m, int B, int T, int past) {
    size_t C = m->c.C;
    check_races();
    PUT(OUTSIDE, "x_in", "btc", m->x_in, B, T, C);
    for (int l = 0; l < m->c.L; l++) {
        BlockActs a = m->acts[l];
        PUT(l, "qkv", "btpc", a.qkv, B, past + T, 3, C);      // p 0: queries, 1: keys, 2: values
        PUT(l, "att", "btc", a.att, B, T, C);
        PUT(l, "x_mid", "btc", a.x_mid, B, T, C);
        PUT(l, "fc", "btc", a.fc, B, T, 4*C);
        PUT(l, "x_out", "btc", a.x_out, B, T, C);
    }
    PUT(OUTSIDE, "lnf", "btc", m->lnf.out, B, T, C);
}

// Each tensor of a flat buffer, the last first, as gradients come: "h0.dqkv_w" with before "d".
static void check_flat(const Config *c, const float *x, const char *before, const char *behind) {
    check_races();
    for (int i = gpt2_n_tensors(c) - 1; i >= 0; i--) {
        Tensor t = gpt2_tensor(c, i);
        char name[64];
        snprintf(name, sizeof name, "%s%s%s", before, tensor_kind(t.kind)->name, behind);
        if (t.rows > 1) PUT(t.layer, name, "ij", x + t.offset, t.rows, t.cols);
        else PUT(t.layer, name, "j", x + t.offset, t.cols);
    }
}

static void check_micro_batch(Model *m, const int *inputs, const int *targets, int B, int T) {
    fprintf(check_out, "case forward, B=%d T=%d, %d heads\n", B, T, m->c.NH);
    model_forward(m, inputs, B, T, 0);
    check_kept(m, B, T, 0);
    fprintf(check_out, "case backward, B=%d T=%d, %d heads\n", B, T, m->c.NH);
    classifier_loss_and_gradient(m, targets, 1.0f / (B*T), B, T);
    model_backward(m, inputs, B, T);
    PUT(OUTSIDE, "loss", "n", m->loss, B*T);
    check_flat(&m->c, m->params.grads, "d", "");
}

static void check_update(Model *m, AdamW o, float g_scale) {
    size_t n = m->params.n_grads;
    float *change = alloc_or_die(n * sizeof *change, "a check");
    memcpy(change, m->params.masters, n * sizeof *change);
    fprintf(check_out, "case update %.0f\n", o.m_steps);
    model_update(m, o, g_scale);
    for (size_t i = 0; i < n; i++) change[i] = m->params.masters[i] - change[i];
    check_flat(&m->c, m->params.adam_m, "", ".adam_m");
    check_flat(&m->c, change, "", ".change");
    free(change);
}

// Half of the sequence at once, as a prompt is; then one, two or three tokens at a time.
static void check_generate(Model *m, const int *tokens, int T) {
    for (int past = 0, end; past < T; past = end) {
        end = past > 0 ? past + 1 + past % 3 : (T + 1) / 2;
        if (end > T) end = T;
        fprintf(check_out, "case generation, %d rows are past, %d new\n", past, end - past);
        model_forward(m, tokens + past, 1, end - past, past);
        check_kept(m, 1, end - past, past);
        PUT(OUTSIDE, "logits", "v", model_logits(m, end - past - 1), m->c.V);
    }
}

static void check_model(Config c, int B, int T, Rng *rng) {
    static Machine machine;
    enum { UPDATES = 2, SETTINGS = 6 };
    static const float UPDATE[UPDATES][SETTINGS] = {   // lr, beta1, beta2, eps, decay, g_scale
        { 0.02f, 0.8f, 0.97f, 1e-2f, 0.5f, 0.5f }, { 0.05f, 0.8f, 0.97f, 1e-2f, 0.5f, 0.2f } };
    ModelSpec spec = { .c = c, .B = B, .T = T, .use = TRAIN };
    const float sizes[] = { c.L, c.NH, c.C, c.V, c.P, B, T };
    int tokens[4*B*T];                 // inputs and targets of two micro-batches
    float drawn[4*B*T];
    Model m;
    model_init(&m, &spec, &machine);
    for (int i = 0; i < gpt2_n_tensors(&c); i++) {
        Tensor t = gpt2_tensor(&c, i);
        double deviation = t.rows > 1 ? 1 / sqrt(c.C) : 0.1, mean = t.init == INIT_ONES;
        for (size_t j = 0; j < t.count; j++)
            m.params.masters[t.offset + j] = (float)(mean + deviation * rng_normal(rng));
    }
    for (int i = 0; i < 4*B*T; i++) drawn[i] = tokens[i] = (int)rng_below(rng, c.V);
    fprintf(check_out, "case model\n");
    check_put(OUTSIDE, "sizes", "i", (size_t[]){ 7 }, IN, sizes);
    check_put(OUTSIDE, "updates", "ui", (size_t[]){ UPDATES, SETTINGS }, IN, UPDATE[0]);
    check_put(OUTSIDE, "tokens", "i", (size_t[]){ 4*B*T }, IN, drawn);
    check_put(OUTSIDE, "params", "i", (size_t[]){ m.params.n_grads }, IN, m.params.masters);
    for (int i = 0; i < UPDATES; i++) {
        const float *u = UPDATE[i];
        clear_grads(&m);
        check_micro_batch(&m, tokens, tokens + B*T, B, T);
        check_micro_batch(&m, tokens + 2*B*T, tokens + 3*B*T, B - 1, T - 2);
        check_update(&m, (AdamW){ u[0], u[1], u[2], u[3], u[4], i + 1, i + 1 }, u[5]);
    }
    check_generate(&m, tokens, T);
    model_free(&m);
}

int main(int argc, char **argv) {
    *program_name() = "train_gpt2";
    check_out = argc == 4 ? fopen(argv[3], "wb") : NULL;
    if (!check_out) die("open NAME THREADS FILE");
    Rng rng = rng_make(1, 0);
    threads_set(atoi(argv[2]));
    check_model((Config){ .L = 2, .NH = 3, .C = 24, .V = 31, .P = 7 }, 3, 7, &rng);
    check_model((Config){ .L = 1, .NH = 2, .C = 20, .V = 13, .P = 14 }, 2, 12, &rng);
    fprintf(check_out, "end\n");
    return fclose(check_out) != 0;
}
