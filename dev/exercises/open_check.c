// Runs the reader's trainer on small problems, for oracle.py to compare with PyTorch:
//
//     open_check PROBLEMS RESULTS
//
// PROBLEMS, one behind another: a CheckHeader, a CheckUpdate for each update, the tokens and
// targets of two micro-batches, the parameters. RESULTS: tensors in the order in which they are
// computed, each a line "name count" and so many floats. An update takes two micro-batches, the
// second with fewer and shorter sequences. Then sequence 0 is run with the key/value cache. Several
// models in one process: what a static variable keeps of the first is wrong for the second.
#define PROGRAM "train_gpt2"
#include <sys/resource.h>
#define main train_gpt2_main
#include "train_gpt2.c"
#undef main
#include "dev/exercises/verdict.h"     // wrong

typedef struct { int L, NH, C, V, P, T, B, updates; } CheckHeader;
typedef struct { float lr, beta1, beta2, eps, weight_decay, g_scale; } CheckUpdate;

// Names begin with check_, since the reader's trainer may have functions of its own.
static struct {
    FILE *out;
    int n_kept;
    // What a forward pass keeps, in every solution; a row has `width` floats.
    struct { char name[16]; float *x; size_t width; } kept[64];
} check;

static void *check_read(FILE *f, size_t n, size_t size) {
    void *x = alloc_or_die(n * size, "the problem");
    if (fread(x, size, n, f) != n) die("the problem is too short");
    return x;
}

static void check_put(const char *name, const float *x, size_t n) {
    fprintf(check.out, "%s %zu\n", name, n);
    if (fwrite(x, sizeof *x, n, check.out) != n) die("the result cannot be written");
}

enum { OUTSIDE = -1 };                 // the layer of what lies in no block

static void check_keep(int layer, const char *name, float *x, size_t width) {
    char *full = check.kept[check.n_kept].name;
    size_t size = sizeof check.kept[0].name;
    if (layer == OUTSIDE) snprintf(full, size, "%s", name);
    else snprintf(full, size, "h%d.%s", layer, name);
    check.kept[check.n_kept].x = x;
    check.kept[check.n_kept++].width = width;
}

static void check_keep_all(Model *m) {
    size_t C = m->c.C;
    check.n_kept = 0;
    check_keep(OUTSIDE, "x_in", m->x_in, C);
    for (int l = 0; l < m->c.L; l++) {
        BlockActs a = m->acts[l];
        check_keep(l, "qkv", a.qkv, 3*C);
        check_keep(l, "att", a.att, C);
        check_keep(l, "x_mid", a.x_mid, C);
        check_keep(l, "fc", a.fc, 4*C);
        check_keep(l, "x_out", a.x_out, C);
    }
    check_keep(OUTSIDE, "lnf", m->lnf, C);
}

static void check_put_kept(size_t rows) {
    for (int i = 0; i < check.n_kept; i++)
        check_put(check.kept[i].name, check.kept[i].x, rows * check.kept[i].width);
}

// What is read before it is written shows as nan.
static void check_forget(float *x, size_t n) { for (size_t i = 0; i < n; i++) x[i] = NAN; }

static void check_forget_kept(Model *m) {
    size_t N = (size_t)m->spec.B * m->spec.T, C = m->c.C;
    for (int i = 0; i < check.n_kept; i++) check_forget(check.kept[i].x, N * check.kept[i].width);
    check_forget(m->dx, N*C);
    check_forget(m->dbranch, N*C);
    check_forget(m->dqkv, N*3*C);
    check_forget(m->dfc, N*4*C);
}

#ifdef __SANITIZE_THREAD__
extern const void *_Atomic race_address, *_Atomic order_address;    // dev/exercises/threads.c

static void expect_no_race(Model *m, const char *pass) {
    const char *order = (const char *)order_address;
    const char *race = race_address ? (const char *)race_address : order, *memory = m->memory.base;
    const char *what = race == order
        ? "threads add to it in the order in which they come, so its bits change from run to run"
        : "one thread writes it while another reads or writes it";
    if (!race) return;
    if (race < memory || race >= memory + m->memory.used)
        wrong("%s: threads share a variable that one of them writes: declare it inside the "
              "parallel loop, and not static", pass);
    for (int i = 0; i < check.n_kept; i++) {
        const char *x = (const char *)check.kept[i].x;
        size_t at = (size_t)(race - x) / sizeof(float), width = check.kept[i].width;
        if (race >= x && at < (size_t)m->spec.B * m->spec.T * width)
            wrong("%s: %s[n=%zu][c=%zu]: %s; divide the loop so that each element belongs to one "
                  "thread", pass, check.kept[i].name, at / width, at % width, what);
    }
    wrong("%s: an element of the model's memory: %s; divide the loop so that each element belongs "
          "to one thread", pass, what);
}
#else
static void expect_no_race(Model *m, const char *pass) { (void)m, (void)pass; }
#endif

static void check_micro_batch(Model *m, const int *inputs, const int *targets, int B, int T) {
    size_t N = (size_t)B*T;
    check_forget_kept(m);
    model_forward(m, inputs, B, T);
    expect_no_race(m, "forward");
    check_put_kept(N);
    model_backward(m, inputs, targets, 1.0f / N, B, T);
    expect_no_race(m, "backward");
    check_put("loss", m->loss, N);
    check_put("grads", m->zero.grads, m->zero.n_grads);
}

static void check_update(Model *m, const CheckUpdate *u, int number) {
    AdamW o = { .lr = u->lr, .beta1 = u->beta1, .beta2 = u->beta2, .eps = u->eps,
                .weight_decay = u->weight_decay, .m_steps = number, .v_steps = number };
    size_t n = m->zero.n_grads;
    check_put("params", m->zero.masters, n);
    model_update(m, o, u->g_scale);
    expect_no_race(m, "update");
    check_put("grads", m->zero.grads, n);
    check_put("adam_m", m->zero.adam_m, n);
    check_put("params", m->zero.masters, n);
}

// Half of the sequence at once, as a prompt is, or nearly all of a long one; then one, two or three
// tokens at a time.
static void check_generate(Model *m, const int *tokens, int T) {
    check_forget_kept(m);
    for (int past = 0, end; past < T; past = end) {
        end = past > 0 ? past + 1 + past % 3 : T > 100 ? T - 7 : (T + 1) / 2;
        if (end > T) end = T;
        const float *logits = model_extend(m, tokens, end, past);
        expect_no_race(m, "generation");
        check_put_kept(end);
        check_put("logits", logits, m->c.V);
    }
}

enum { SMALL_CHUNK = 500 };            // parameters

static void check_run_problem(FILE *in, const CheckHeader *h) {
    static Machine machine;
    size_t N = (size_t)h->B * h->T;
    ModelSpec spec = { .c = { h->L, h->NH, h->C, h->V, h->P }, .B = h->B, .T = h->T, .use = TRAIN };
    size_t n = gpt2_n_params(&spec.c);
    const CheckUpdate *updates = check_read(in, h->updates, sizeof *updates);
    const int *inputs = check_read(in, 2*N, sizeof *inputs);
    const int *targets = check_read(in, 2*N, sizeof *targets);
    const float *params = check_read(in, n, sizeof *params);
    Model m;
    model_init(&m, &spec, &machine);
    m.zero.n_chunks = zero_chunks(NULL, &m.zero, SMALL_CHUNK);     // a matrix has several
    m.zero.chunks = alloc_or_die(m.zero.n_chunks * sizeof *m.zero.chunks, "chunks");
    zero_chunks(m.zero.chunks, &m.zero, SMALL_CHUNK);
    check_keep_all(&m);
    memcpy(m.zero.masters, params, n * sizeof *params);
    for (int i = 0; i < h->updates; i++) {
        clear_grads(&m);
        check_micro_batch(&m, inputs, targets, h->B, h->T);
        check_micro_batch(&m, inputs + N, targets + N, h->B - 1, h->T - 2);
        check_update(&m, &updates[i], i + 1);
    }
    check_generate(&m, inputs, h->T);
    model_free(&m);
}

// The stack has 132 KB from the start. Behind what main uses up, 48 KB are left: an array that
// grows with the model does not fit, as a real model's would not fit into a real stack.
enum { CHECK_USED = 112 << 10, CHECK_STACK = 48 << 10 };

static void check_limit_stack(char **argv) {
    char **last = argv;                // of the strings above the stack
    struct rlimit stack;
    for (int ends = 0; ends < 2; last++) ends += last[1] == NULL; // arguments, environment
    getrlimit(RLIMIT_STACK, &stack);
    if (last[-1] > (char *)&stack)
        stack.rlim_cur = (size_t)(last[-1] - (char *)&stack) + CHECK_STACK;
    setrlimit(RLIMIT_STACK, &stack);
}

int main(int argc, char **argv) {
    volatile char used[CHECK_USED];
    used[0] = 0;
    check_limit_stack(argv);
    FILE *in = argc == 3 ? fopen(argv[1], "rb") : NULL;
    CheckHeader h;
    check.out = in ? fopen(argv[2], "wb") : NULL;
    if (!check.out) die("open_check PROBLEMS RESULTS");
    while (fread(&h, sizeof h, 1, in) == 1) check_run_problem(in, &h);
    return fclose(check.out) != 0;
}
