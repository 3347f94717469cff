// make bench: what this machine can do, and what a training step costs on it, layer by layer.
//
// Each setting runs in a process of its own, so that its peak memory is its own. The whole step is
// timed as the trainer runs it, in turn with the same step on one thread and with the machine's
// multiply-add peak; then every layer alone, on the same buffers, as often as a step calls it.
// Shares are of the sum of the layers, which should come close to the step: both are printed.
//
// Floors. No step can be faster than its multiply-adds at the machine's peak and then the
// optimizer's traffic at the speed of a plain stream, both measured in the same process. FLOP are
// counted as dev/model/gpt2.h does: 6 a weight and token, attention as if it were not causal.
//
//     build/bench [--full] [NAME...]     the settings whose name begins so, else all of them
//     build/bench --rounds STEPS NAME    for each line on standard input STEPS steps are timed, and
//                                        milliseconds a step printed: scripts/bench.py
//
// BENCH_JSON names a file, an array of results, to which these are added.
#include "../base/base.h"
#define main train_gpt2_main
#include "../../train_gpt2.c"
#undef main
#include <sys/wait.h>
#include "../data/data.h"
#include "timing.h"                    // Samples, stream_seconds, result_begin

typedef struct Part Part;
typedef struct Setting Setting;

struct Setting {
    const char *name;
    void (*run)(const Setting *, Log *);
    Config c;
    int B, T;
    int rounds, burst;       // a round is `burst` steps between two looks at the clock
    int one_thread;          // how many rounds are also run on one thread
    int blocks;              // of how many blocks the layers are timed, for all of them
};

typedef struct {
    Model m;
    int B, T, *tokens, *targets;
    size_t N;
    Block w, d;              // of the block whose layers are being timed
    BlockActs *a;
    const Part *part;
} Bench;

// One kind of work in a step. What a call costs at least: a product of N rows, in*C to out*C
// columns wide, 6*in*out*C*C operations a row there and back; else N*C*(flop_CT*T + flop_CV*V)
// operations, and N*C*bytes_C bytes through memory, and bytes_param for each parameter. Causal
// attention needs half of what MFU counts. Clearing gradients has no floor: memory that is only
// written may bypass the caches, and so be faster than a stream.
struct Part {
    const char *name;
    void (*run)(Bench *);
    int per_block, once;     // how often a step calls it
    int in, out;
    double flop_CT, flop_CV, bytes_C, bytes_param;
};

// ---- a layer at a time; each function does one layer's work of one block, there and back ----

static void embedding_part(Bench *b) {
    Model *m = &b->m;
    embedding_forward(m->x_in, b->tokens, m->w.wte, m->w.wpe, b->B, b->T, m->c.C);
    embedding_backward(m->dw.wte, m->dw.wpe, m->dx, b->tokens, b->B, b->T, m->c.C);
}

static void layernorm_part(Bench *b) {
    BlockActs *a = b->a;
    layernorm_forward(a->ln1, a->ln1_mean, a->ln1_rstd, b->a->x, b->w.ln1_gain, b->w.ln1_bias,
                      b->N, b->m.c.C);
    layernorm_backward(b->m.dbranch, b->d.ln1_gain, b->d.ln1_bias, b->m.dx, b->a->x,
                       a->ln1_mean, a->ln1_rstd, b->w.ln1_gain, b->N, b->m.c.C);
}

// Any linear layer: it borrows the buffers of the MLP, which are as wide as the widest.
static void linear_part(Bench *b) {
    int in = b->part->in * b->m.c.C, out = b->part->out * b->m.c.C;
    float *dx = in > out ? b->m.dfc : b->m.dbranch, *dout = in > out ? b->m.dqkv : b->m.dfc;
    linear_forward(b->a->fc, b->a->gelu, b->w.fc_w, b->w.fc_b, b->N, in, out);
    linear_backward(dx, b->d.fc_w, b->d.fc_b, dout, b->a->gelu, b->w.fc_w, b->N, in, out);
}

static void attention_part(Bench *b) {
    BlockActs *a = b->a;
    attention_forward(a->att, a->att_lse, b->m.scratch, a->qkv, b->B, b->T, 0, b->m.c.C,
                      b->m.c.NH);
    attention_backward(b->m.dqkv, b->m.scratch, b->m.dx, a->qkv, a->att, a->att_lse, b->B, b->T,
                       b->m.c.C, b->m.c.NH);
}

static void gelu_part(Bench *b) {
    size_t n = b->N * 4 * b->m.c.C;
    gelu_forward(b->a->gelu, b->a->fc, n);
    gelu_backward(b->m.dfc, b->m.dfc, b->a->fc, n);
}

static void residual_part(Bench *b) {
    size_t n = b->N * b->m.c.C;
    residual_forward(b->a->x_mid, b->a->x, b->m.dbranch, n);
    residual_backward(b->m.dx, b->m.dbranch, n);
}

static void classifier_part(Bench *b) {
    Model *m = &b->m;
    classifier_backward(m->dbranch, m->dw.wte, m->loss, m->lse, m->logits, m->lnf, m->w.wte,
                        b->targets, 1.0f / (float)b->N, b->N, m->logit_rows, m->c.C, m->c.V, m->Vp);
}

static void norm_part(Bench *b) { gradients_squares(&b->m); }

static void adamw_part(Bench *b) {
    AdamW o = { 1e-9f, 0.9f, 0.95f, 1e-8f, 0.1f, 1, 1 };
    model_update(&b->m, o, 1.0f);
}

static void clear_part(Bench *b) { clear_grads(&b->m); }

static const Part parts[] = {
    { "embedding", embedding_part, 0, 1, .bytes_C = 20 },
    { "layernorm", layernorm_part, 2, 1, .bytes_C = 20 },
    { "qkv", linear_part, 1, 0, .in = 1, .out = 3 },
    { "attention", attention_part, 1, 0, .flop_CT = 6 },
    { "att_proj", linear_part, 1, 0, .in = 1, .out = 1 },
    { "fc", linear_part, 1, 0, .in = 1, .out = 4 },
    { "gelu", gelu_part, 1, 0, .bytes_C = 80 },
    { "mlp_proj", linear_part, 1, 0, .in = 4, .out = 1 },
    { "residual", residual_part, 2, 0, .bytes_C = 24 },
    { "classifier", classifier_part, 0, 1, .flop_CV = 6 },
    { "grad norm", norm_part, 0, 1, .bytes_param = 4 },
    { "adamw", adamw_part, 0, 1, .bytes_param = STREAM_BYTES },
    { "grad zero", clear_part, 0, 1, .bytes_param = 0 },
};
enum { PARTS = sizeof parts / sizeof *parts, OPTIMIZER = PARTS - 3 };   // the last three

// ---- a model to be timed ----

static void make_model(Model *m, const Config *c, int B, int T, Use use) {
    static Machine machine;
    ModelSpec spec = { *c, B, T, use, RECOMPUTE_NONE, { .comm = NULL }, 0 };
    model_init(m, &spec, &machine);
    for (int bucket = 0; bucket < gpt2_n_buckets(c); bucket++) {
        gpt2_init_bucket(bucket_place(&m->zero, KEPT_WEIGHTS, bucket), c, bucket, 1);
        bucket_keep(&m->zero, KEPT_WEIGHTS, bucket);
    }
    zero_loaded(&m->zero);
}

static void bench_open(Bench *b, const Setting *s) {
    b->B = s->B;
    b->T = s->T;
    b->N = (size_t)s->B * s->T;
    make_model(&b->m, &s->c, s->B, s->T, TRAIN);
    b->tokens = alloc_or_die(2 * b->N * sizeof(int), "a batch");
    b->targets = b->tokens + b->N;
    Rng rng = rng_make(1, 1);
    for (size_t i = 0; i < 2 * b->N; i++) b->tokens[i] = (int)rng_below(&rng, (uint64_t)s->c.V);
}

static double bench_params(const Bench *b) { return (double)gpt2_n_params(&b->m.c); }

static void bench_close(Bench *b) {
    free(b->tokens);
    model_free(&b->m);
}

static void bench_block(Bench *b, int l) {
    b->w = b->m.w.block[l];
    b->d = b->m.dw.block[l];
    b->a = &b->m.acts[l];
}

// One update as the trainer makes it.
static void bench_step(Bench *b, int64_t step) {
    AdamW o = { 1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, (double)step, (double)step };
    clear_grads(&b->m);
    model_forward(&b->m, b->tokens, b->B, b->T, 0);
    classifier_loss_and_gradient(&b->m, b->targets, 1.0f / (float)b->N, b->B, b->T);
    model_backward(&b->m, b->tokens, b->B, b->T);
    if (isfinite(gradients_squares(&b->m))) model_update(&b->m, o, 1.0f);
}

static double steps_seconds(Bench *b, int64_t *step, int count) {
    double start = seconds_now();
    for (int i = 0; i < count; i++) bench_step(b, ++*step);
    return (seconds_now() - start) / count;
}

// ---- timing ----

typedef struct {
    Samples step, mfu, peak, one_thread;       // seconds, a share, FLOP/s, seconds
    Samples part[PARTS], layers_peak;          // seconds of all calls in a step; FLOP/s then
    Samples stream;                            // bytes a second
    double flops, memory;                      // of a step; the process's peak, bytes
} Times;

static void time_steps(Times *t, Bench *b, const Setting *s) {
    int threads = thread_count();
    int64_t step = 0;
    steps_seconds(b, &step, 1);                // touches all memory for the first time
    for (int i = 0; i < s->rounds; i++) {
        double before = cpu_peak_flops();
        double seconds = steps_seconds(b, &step, s->burst);
        double peak = 0.5 * (before + cpu_peak_flops());
        samples_add(&t->step, seconds);
        samples_add(&t->peak, peak);
        samples_add(&t->mfu, t->flops / seconds / peak);
        if (threads == 1 || i >= s->one_thread) continue;
        threads_set(1);
        samples_add(&t->one_thread, steps_seconds(b, &step, s->burst));
        threads_set(threads);
    }
}

static double part_seconds(Bench *b, const Part *p, int blocks) {
    int runs = p->per_block ? blocks : 1;
    b->part = p;
    double start = seconds_now();
    for (int l = 0; l < runs; l++) {           // block after block, so that weights are not cached
        bench_block(b, l);
        p->run(b);
    }
    return (seconds_now() - start) / runs * (p->per_block * b->m.c.L + p->once);
}

static void time_layers(Times *t, Bench *b, const Setting *s) {
    for (int i = 0; i < s->rounds; i++) {
        samples_add(&t->layers_peak, cpu_peak_flops());
        for (int j = 0; j < OPTIMIZER; j++)
            samples_add(&t->part[j], part_seconds(b, &parts[j], s->blocks));
        samples_add(&t->layers_peak, cpu_peak_flops());
    }
}

// Last: the plain stream runs over the model's own parameters and spoils them.
static void time_optimizer(Times *t, Bench *b) {
    enum { ROUNDS = 7 };
    const Zero *z = &b->m.zero;
    size_t n = gpt2_n_params(&b->m.c);
    double bytes = STREAM_BYTES * (double)n;
    for (int i = 0; i < ROUNDS; i++) {
        double stream = stream_seconds(z->masters, z->adam_m, z->adam_v, z->grads, n);
        samples_add(&t->stream, bytes / stream);
        for (int j = OPTIMIZER; j < PARTS; j++)
            samples_add(&t->part[j], part_seconds(b, &parts[j], 1));
    }
}

// ---- what comes out ----

// The least that a step can take, in seconds.
static double step_floor(const Times *t, const Bench *b) {
    return t->flops / samples_median(&t->peak)
         + STREAM_BYTES * bench_params(b) / samples_median(&t->stream);
}

// The least that a part of a step can take; NaN where what it touches may stay in the caches.
static double part_floor(const Times *t, const Bench *b, const Part *p) {
    enum { CACHE = 48 << 20 };
    double N = (double)b->N, C = b->m.c.C, calls = p->per_block * b->m.c.L + p->once;
    double flops = N*C * (6.0*p->in*p->out*C + p->flop_CT*b->T + p->flop_CV*b->m.c.V);
    double bytes = N*C * p->bytes_C + p->bytes_param * bench_params(b);
    if (flops == 0.0 && bytes < CACHE) return NAN;
    return calls * (flops / samples_median(&t->layers_peak) + bytes / samples_median(&t->stream));
}

static void show_whole(const Times *t, const Bench *b, const Setting *s, Log *log) {
    double step = samples_median(&t->step), least = step_floor(t, b);
    double one = samples_median(&t->one_thread), peak = samples_median(&t->peak);
    const size_t *of = b->m.memory.bytes;
    printf("\n%s, %s, threads: %d\n", s->name, PRECISION, thread_count());
    printf("  a step  %9.1f ms   %s tokens/s, %.0f GFLOP/s, MFU %.0f%% of %.0f GFLOP/s\n",
           1e3 * step, count_text((double)b->N / step).text, t->flops / step / 1e9,
           100.0 * samples_median(&t->mfu), peak / 1e9);
    printf("  floor   %9.1f ms   a step takes %.2f times that: %.1f MFLOP a token, %d bytes a "
           "parameter\n", 1e3 * least, step / least, t->flops / (double)b->N / 1e6, STREAM_BYTES);
    if (t->one_thread.n > 0)
        printf("  1 thread %8.1f ms   %d threads are %.2f times as fast\n", 1e3 * one,
               thread_count(), one / step);
    printf("  memory  %9.0f MB   parameters %.0f, gradients %.0f, moments %.0f, kept for backward "
           "%.0f\n", t->memory / 1e6, 1e-6 * (double)of[MEM_PARAMS], 1e-6 * (double)of[MEM_GRADS],
           1e-6 * (double)of[MEM_MOMENTS], 1e-6 * (double)of[MEM_ACTIVATIONS]);
    log_int(log, "rounds", t->step.n);
    log_num(log, "step_ms", 1e3 * step);
    log_num(log, "tokens_per_s", (double)b->N / step);
    log_num(log, "gflops", t->flops / step / 1e9);
    log_num(log, "peak_gflops", peak / 1e9);
    log_num(log, "mfu", samples_median(&t->mfu));
    log_num(log, "mflop_per_token", t->flops / (double)b->N / 1e6);
    log_num(log, "floor_ms", 1e3 * least);
    log_num(log, "x_floor", step / least);
    log_num(log, "one_thread_ms", 1e3 * one);
    log_num(log, "stream_gb_per_s", samples_median(&t->stream) / 1e9);
    log_num(log, "peak_mb", t->memory / 1e6);
}

// The table of the layers, and two objects with a member for each; what has no floor is left out.
static void show_layers(const Times *t, const Bench *b, Log *log) {
    char ms[1024] = "{", floors[1024] = "{";
    size_t n = 1, n_floors = 1;
    double sum = 0.0;
    for (int i = 0; i < PARTS; i++) sum += samples_median(&t->part[i]);
    printf("  %-10s %10s %7s %10s %8s\n", "layer", "ms", "share", "floor", "x floor");
    for (int i = 0; i < PARTS; i++) {
        const char *name = parts[i].name;
        double seconds = samples_median(&t->part[i]), least = part_floor(t, b, &parts[i]);
        printf("  %-10s %10.2f %6.1f%%", name, 1e3 * seconds, 100.0 * seconds / sum);
        n += (size_t)snprintf(ms + n, sizeof ms - n, "%s\"%s\":%.6g", n > 1 ? "," : "", name,
                              1e3 * seconds);
        if (isnan(least)) printf(" %10s %8s\n", "-", "-");
        else printf(" %10.2f %8.2f\n", 1e3 * least, seconds / least);
        if (!isnan(least))
            n_floors += (size_t)snprintf(floors + n_floors, sizeof floors - n_floors,
                                         "%s\"%s\":%.6g", n_floors > 1 ? "," : "", name,
                                         1e3 * least);
    }
    printf("  %-10s %10.2f\n", "sum", 1e3 * sum);
    log_num(log, "layers_peak_gflops", samples_median(&t->layers_peak) / 1e9);
    log_raw(log, "layers_ms", strcat(ms, "}"));
    log_raw(log, "layers_floor_ms", strcat(floors, "}"));
}

// ---- the settings ----

static void bench_model(const Setting *s, Log *log) {
    static Bench b;
    static Times t;
    bench_open(&b, s);
    t.flops = gpt2_flops_per_token(&s->c, s->T) * (double)b.N;
    time_steps(&t, &b, s);
    t.memory = peak_memory();
    time_layers(&t, &b, s);
    time_optimizer(&t, &b);
    result_begin(log, s->name, thread_count());
    show_whole(&t, &b, s, log);
    show_layers(&t, &b, log);
    result_end(log);
    bench_close(&b);
}

// What this machine can do, with nothing of this project in the way.
static void bench_machine(const Setting *s, Log *log) {
    enum { FLOATS = 31 * 1000 * 1000 + 64, ROWS = 6 };   // no power of two: cache sets collide
    static const char *const rows[ROWS][3] = {
        { "multiply-adds, fp32, one thread", "GFLOP/s", "peak_gflops_one_thread" },
        { "multiply-adds, fp32", "GFLOP/s", "peak_gflops" },
        { "multiply-adds, bf16, one thread", "GFLOP/s", "bf16_peak_gflops_one_thread" },
        { "multiply-adds, bf16", "GFLOP/s", "bf16_peak_gflops" },
        { "memory, read only", "GB/s", "read_gb_per_s" },
        { "memory, reads four, writes three", "GB/s, as AdamW does", "stream_gb_per_s" },
    };
    static Samples speed[ROWS];
    int threads = thread_count();
    float *x = alloc_or_die(4 * sizeof(float) * FLOATS, "a stream");
    for (int r = 0; r < s->rounds; r++) {
        for (int i = 0; i < 2; i++) {
            samples_add(&speed[i], cpu_peak_fp32(i ? threads : 1));
            samples_add(&speed[2 + i], cpu_peak_bf16(i ? threads : 1));
        }
        samples_add(&speed[4], 4.0 * sizeof(float) * FLOATS / read_seconds(x, 4 * (size_t)FLOATS));
        samples_add(&speed[5], (double)STREAM_BYTES * FLOATS / stream_seconds(
            x, x + FLOATS, x + 2*FLOATS, x + 3*FLOATS, FLOATS));
    }
    free(x);
    printf("this machine, threads: %d\n", threads);
    result_begin(log, s->name, threads);
    log_text(log, "compiler", __VERSION__);
    for (int i = 0; i < ROWS; i++) {
        double median = samples_median(&speed[i]) / 1e9;
        log_num(log, rows[i][2], median > 0.0 ? median : NAN);            // 0: no AVX512-BF16
        if (median > 0.0) printf("  %-32s %8.1f %s\n", rows[i][0], median, rows[i][1]);
    }
    result_end(log);
}

// A model writes, with nearly all of its positions in the cache. Each token has to read every
// weight once, so memory sets the limit.
static void bench_generation(const Setting *s, Log *log) {
    enum { NEW = 20 };
    static Model m;
    Samples token = {0}, read = {0};
    int cached = s->T - NEW - 4, *text = alloc_or_die((size_t)s->T * sizeof(int), "a text");
    make_model(&m, &s->c, 1, s->T, INFER);
    size_t n = gpt2_n_params(&s->c);
    for (int i = 0; i < s->T; i++) text[i] = i * 37 % s->c.V;
    model_forward(&m, text, 1, cached, 0);
    for (int i = 0; i < NEW; i++) {
        double start = seconds_now();
        model_forward(&m, text, 1, cached + i + 1, cached + i);
        model_logits(&m, cached + i);
        samples_add(&token, seconds_now() - start);
        samples_add(&read, 4.0 * (double)n / read_seconds(m.zero.masters, n));
    }
    double speed = 1.0 / samples_median(&token), bandwidth = samples_median(&read);
    double limit = bandwidth / (4.0 * (double)(n - (size_t)s->c.P * s->c.C));
    printf("\n%s, threads: %d\n  %.1f tokens/s, %.0f%% of the %.1f that reading its weights once a "
           "token allows at %.1f GB/s\n", s->name, thread_count(), speed, 100.0 * speed / limit,
           limit, bandwidth / 1e9);
    result_begin(log, s->name, thread_count());
    log_num(log, "tokens_per_s", speed);
    log_num(log, "limit_tokens_per_s", limit);
    log_num(log, "read_gb_per_s", bandwidth / 1e9);
    result_end(log);
    free(text);
    model_free(&m);
}

// ---- matrix products ----

// A linear layer: out (M,OC) = x (M,C) w. The classifier's w is the embedding, stored (OC,C).
typedef struct { const char *name; size_t C, OC; bool tied; } Layer;
typedef enum { FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, DIRECTIONS } Direction;
typedef struct { float *a, *b, *c; } Operands;

static void multiply(const Operands *o, const Layer *l, size_t M, Direction d) {
    size_t C = l->C, OC = l->OC, ld = l->tied ? (OC + 15) / 16 * 16 : OC;
    Mat w = l->tied ? transpose_of(o->b, C) : rows_of(o->b, OC);
    Mat w_transposed = { w.data, w.col, w.row };
    if (d == FORWARD) matmul(o->c, ld, rows_of(o->a, C), w, NULL, M, OC, C, WRITE);
    else if (d == INPUT_GRADIENT)
        matmul(o->c, C, rows_of(o->a, ld), w_transposed, NULL, M, C, OC, WRITE);
    else if (l->tied)
        matmul(o->c, C, transpose_of(o->a, ld), rows_of(o->b, C), NULL, OC, C, M, ADD);
    else matmul(o->c, OC, transpose_of(o->a, C), rows_of(o->b, OC), NULL, C, OC, M, ADD);
}

// One line: a layer at one number of rows, each round beside the peak, as that drifts by a tenth
// within minutes. A burst of products is long enough for the clock.
static void bench_layer(const Operands *o, const Layer *l, size_t M, int rounds, Log *log) {
    static const char *const names[] = { "forward", "input gradient", "weight gradient" };
    double flops = 2.0 * (double)M * (double)l->C * (double)l->OC;
    printf("  %-10s %5zu %5zu %5zu", l->name, M, l->C, l->OC);
    for (Direction d = 0; d < DIRECTIONS; d++) {
        Samples speed = {0}, peak = {0}, share = {0};
        char name[100];
        for (int r = 0; r < rounds; r++) {
            double before = cpu_peak_flops();
            int count = 1 + (int)(0.01 * before / flops);
            multiply(o, l, M, d);                            // fetches what the peak pushed out
            double start = seconds_now();
            for (int i = 0; i < count; i++) multiply(o, l, M, d);
            samples_add(&speed, count * flops / (seconds_now() - start));
            samples_add(&peak, 0.5 * (before + cpu_peak_flops()));
            samples_add(&share, speed.x[r] / peak.x[r]);
        }
        snprintf(name, sizeof name, "matmul %s %zux%zu M=%zu, %s", l->name, l->C, l->OC, M,
                 names[d]);
        result_begin(log, name, thread_count());
        log_num(log, "gflops", samples_median(&speed) / 1e9);
        log_num(log, "peak_gflops", samples_median(&peak) / 1e9);
        log_num(log, "share_of_peak", samples_median(&share));
        result_end(log);
        printf("   %9.0f %3.0f%%", samples_median(&speed) / 1e9, 100 * samples_median(&share));
        fflush(stdout);
    }
    printf("\n");
}

// The trainer's products at every shape of GPT-2 124M (with --full at M=4096 too), and at primes.
static void bench_products(const Setting *s, Log *log) {
    static const Layer layers[] = {
        { "qkv", 768, 2304, false }, { "att_proj", 768, 768, false }, { "fc", 768, 3072, false },
        { "mlp_proj", 3072, 768, false }, { "classifier", 768, 50257, true },
    };
    static const Layer primes[] = { { "odd", 769, 1021, false }, { "odd", 3067, 1009, false } };
    bool odd = strcmp(s->name, "primes") == 0;
    size_t most = odd ? 3067*1021 : (size_t)(s->T < 1024 ? 1024 : s->T) * 50272;
    Operands o = { alloc_or_die(3*most * sizeof(float), "a product's operands"), NULL, NULL };
    uint32_t state = 1;
    o.b = o.a + most, o.c = o.b + most;
    for (size_t i = 0; i < 2*most; i++) {
        state = state * 1664525u + 1013904223u;
        o.a[i] = (float)(int32_t)state * 0x1p-31f;
    }
    printf("\n%s, %s, threads: %d; GFLOP/s, %% of the multiply-add peak measured beside it\n"
           "  %-10s %5s %5s %5s   %14s   %14s   %14s\n", s->name, PRECISION, thread_count(),
           "layer", "M", "in", "out", "forward", "input gradient", "weight gradient");
    for (size_t M = 256; !odd && M <= (size_t)s->T; M *= 4)
        for (int l = 0; l < 5; l++) bench_layer(&o, &layers[l], M, s->rounds, log);
    for (int l = 0; odd && l < 2; l++) bench_layer(&o, &primes[l], l ? 251 : 509, s->rounds, log);
    free(o.a);
}

// ---- the tokenizer ----

// How fast it encodes and learns. The fastest of several runs: what else the machine does only
// slows a run down. scripts/bench.py times tiktoken on the same text.
static void bench_tokenizer(const Setting *s, Log *log) {
    Tokenizer t, learned;
    FileMap text;
    Error err;
    WordCounts counts = {0};
    const char *data = getenv("BATCHWISE_DATA") ? getenv("BATCHWISE_DATA") : "data";
    char vocabulary[1000], file[1000];
    int threads[2] = { 1, thread_count() };
    snprintf(vocabulary, sizeof vocabulary, "%s/gpt2.tiktoken", data);
    snprintf(file, sizeof file, "%s/tinyshakespeare.txt", data);
    if (access(vocabulary, R_OK) != 0 || access(file, R_OK) != 0) {
        printf("\ntokenizer: needs %s and %s\n  (dev/data/fetch_gpt2_vocab.sh and "
               "fetch_shakespeare.sh)\n", vocabulary, file);
        return;
    }
    if (!tokenizer_load(&t, vocabulary, &err) || !file_map(&text, file, &err)) die("%s", err.text);
    int *ids = alloc_or_die(text.n * sizeof *ids, "the tokens");
    printf("\ntokenizer, GPT-2's vocabulary, Tiny Shakespeare\n");
    result_begin(log, s->name, threads[1]);
    for (int i = 0; i < 2; i++) {
        double best = INFINITY;
        threads_set(threads[i]);
        for (int run = 0; run < s->rounds; run++) {
            double start = seconds_now();
            tokenizer_encode_parallel(&t, ids, (const char *)text.bytes, text.n);
            best = fmin(best, seconds_now() - start);
        }
        printf("  encode, threads: %d  %8.1f MB/s\n", threads[i], (double)text.n / best / 1e6);
        log_num(log, i ? "encode_mb_per_s" : "encode_mb_per_s_one_thread",
                (double)text.n / best / 1e6);
    }
    double start = seconds_now();
    word_counts_add(&counts, (const char *)text.bytes, text.n);
    tokenizer_train(&learned, &counts, 4096, NULL, NULL);
    log_num(log, "learn_bpe_4096_s", seconds_now() - start);
    printf("  learn bpe:4096      %8.2f s\n", seconds_now() - start);
    result_end(log);
    word_counts_free(&counts);
    tokenizer_free(&learned);
    free(ids);
    file_unmap(&text);
    tokenizer_free(&t);
}

#define GPT2_124M { 12, 12, 768, 50257, 1024, 0 }
static const Setting settings[] = {
    { "machine", bench_machine, .rounds = 7 },
    { "products", bench_products, .T = 1024, .rounds = 5 },
    { "primes", bench_products, .rounds = 5 },
    { "characters, B=12 T=64", bench_model, { 4, 4, 128, 257, 64, 0 }, .B = 12, .T = 64,
      .rounds = 9, .burst = 8, .one_thread = 9, .blocks = 4 },
    { "make run, B=4 T=256", bench_model, { 2, 2, 64, 257, 256, 0 }, .B = 4, .T = 256,
      .rounds = 9, .burst = 8, .one_thread = 9, .blocks = 2 },
    { "124M, B=4 T=64", bench_model, GPT2_124M, .B = 4, .T = 64,
      .rounds = 5, .burst = 1, .one_thread = 3, .blocks = 12 },
    { "124M, B=4 T=1024", bench_model, GPT2_124M, .B = 4, .T = 1024,
      .rounds = 2, .burst = 1, .one_thread = 1, .blocks = 2 },
    { "generate 124M", bench_generation, GPT2_124M, .B = 1, .T = 1024, 0 },
    { "tokenizer", bench_tokenizer, .rounds = 10 },
};
enum { SETTINGS = sizeof settings / sizeof *settings };

// Two rounds at T=1024 take a minute; --full makes it five of everything, and times every block.
static Setting in_full(Setting s) {
    s.rounds = s.rounds < 5 ? 5 : s.rounds;
    s.one_thread = s.rounds;
    s.blocks = s.c.L;
    if (s.run == bench_products) s.T = 4096;
    return s;
}

// ---- main ----

static bool starts(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

static void run_on_demand(const Setting *s, int steps) {
    static Bench b;
    int64_t step = 0;
    bench_open(&b, s);
    for (int c; (c = getchar()) != EOF; ) {
        if (c != '\n') continue;
        printf("%.6g\n", 1e3 * steps_seconds(&b, &step, steps));
        fflush(stdout);
    }
    bench_close(&b);
}

static void run_setting(const Setting *s, Log *log) {
    fflush(NULL);                      // a child must not print again what waits in a buffer
    pid_t child = fork();              // before any OpenMP thread exists in this process
    if (child == 0) {
        s->run(s, log);
        exit(fflush(NULL) != 0);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) < 0) die("fork: %s", strerror(errno));
    if (status != 0) die("%s: did not finish; is there memory enough?", s->name);
}

int main(int argc, char **argv) {
    bool full = argc > 1 && strcmp(argv[1], "--full") == 0;
    bool on_demand = argc > 1 && strcmp(argv[1], "--rounds") == 0;
    int steps = on_demand && argc == 4 ? atoi(argv[2]) : 0, first = on_demand ? 3 : full ? 2 : 1;
    int ran = 0;
    Log log;
    *program_name() = "bench";
    if (on_demand && steps < 1) die("--rounds: wants how many steps a round and a setting's name");
    threads_wait_politely(argv);
    results_open(&log);
    for (int i = 0; i < SETTINGS; i++) {
        bool wanted = argc == first;
        for (int j = first; j < argc; j++) wanted = wanted || starts(settings[i].name, argv[j]);
        if (!wanted) continue;
        Setting s = full ? in_full(settings[i]) : settings[i];
        if (on_demand) run_on_demand(&s, steps);
        else run_setting(&s, &log);
        ran++;
    }
    if (ran == 0) die("'%s': no setting's name begins so", argv[first]);
    results_close(&log);
    return 0;
}
