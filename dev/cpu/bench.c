// make bench: what this machine can do, and what a training step costs on it, layer by layer.
//
// Each setting runs in a process of its own, so that its peak memory is its own. The whole step is
// timed as the trainer runs it, in turn with the same step on one thread and with the machine's
// multiply-add peak; then every layer alone, on the same buffers, as often as a step calls it.
// Shares are of the sum of the layers, which should come close to the step: both are printed.
//
// Floors. No step can be faster than its multiply-adds at the machine's peak and then the
// optimizer's traffic at the speed of a plain stream, both measured in the same process. FLOP are
// counted as dev/base/gpt2.h does: 6 a weight and token, attention as if it were not causal.
//
//     build/bench [--full] [NAME...]     the settings whose name begins so, else all of them
//     build/bench --rounds STEPS NAME    for each line on standard input STEPS steps are timed, and
//                                        milliseconds a step printed: scripts/bench_lib.sh
#define PROGRAM "bench"                // what die() says, whatever train_gpt2.c calls itself
#include "../base/error.h"
#undef PROGRAM
#define main train_gpt2_main
#include "../../train_gpt2.c"
#undef main
#include <sys/wait.h>
#include "timing.h"                    // Samples, stream_seconds, result_begin

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
} Bench;

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

static void linear_part(Bench *b, float *out, float *dout, float *dx, const float *x, float *w,
                        float *bias, float *dw, float *dbias, int C, int OC) {
    linear_forward(out, x, w, bias, b->N, C, OC);
    linear_backward(dx, dw, dbias, dout, x, w, b->N, C, OC);
}

static void qkv_part(Bench *b) {
    int C = b->m.c.C;
    linear_part(b, b->a->qkv, b->m.dqkv, b->m.dbranch, b->a->ln1, b->w.qkv_w, b->w.qkv_b,
                b->d.qkv_w, b->d.qkv_b, C, 3*C);
}

static void attention_part(Bench *b) {
    BlockActs *a = b->a;
    attention_forward(a->att, a->att_lse, b->m.scratch, a->qkv, b->B, b->T, 0, b->m.c.C,
                      b->m.c.NH);
    attention_backward(b->m.dqkv, b->m.scratch, b->m.dx, a->qkv, a->att, a->att_lse, b->B, b->T,
                       b->m.c.C, b->m.c.NH);
}

static void att_proj_part(Bench *b) {
    int C = b->m.c.C;
    linear_part(b, b->a->x_mid, b->m.dx, b->m.dbranch, b->a->att, b->w.att_proj_w,
                b->w.att_proj_b, b->d.att_proj_w, b->d.att_proj_b, C, C);
}

static void fc_part(Bench *b) {
    int C = b->m.c.C;
    linear_part(b, b->a->fc, b->m.dfc, b->m.dbranch, b->a->ln2, b->w.fc_w, b->w.fc_b,
                b->d.fc_w, b->d.fc_b, C, 4*C);
}

static void gelu_part(Bench *b) {
    size_t n = b->N * 4 * b->m.c.C;
    gelu_forward(b->a->gelu, b->a->fc, n);
    gelu_backward(b->m.dfc, b->m.dfc, b->a->fc, n);
}

static void mlp_proj_part(Bench *b) {
    int C = b->m.c.C;
    linear_part(b, b->a->x_out, b->m.dx, b->m.dfc, b->a->gelu, b->w.mlp_proj_w, b->w.mlp_proj_b,
                b->d.mlp_proj_w, b->d.mlp_proj_b, 4*C, C);
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

// What a call costs at least: N*C*(flop_CC*C + flop_CT*T + flop_CV*V) operations, and N*C*bytes_C
// bytes through memory, and bytes_param for each parameter. Causal attention needs half of what MFU
// counts. Clearing gradients has no floor: memory that is only written may bypass the caches, and
// so be faster than a stream.
typedef struct {
    const char *name;
    void (*run)(Bench *);
    int per_block, once;     // how often a step calls it
    double flop_CC, flop_CT, flop_CV, bytes_C, bytes_param;
} Part;

static const Part parts[] = {
    { "embedding", embedding_part, 0, 1, .bytes_C = 20 },
    { "layernorm", layernorm_part, 2, 1, .bytes_C = 20 },
    { "qkv", qkv_part, 1, 0, .flop_CC = 18 },
    { "attention", attention_part, 1, 0, .flop_CT = 6 },
    { "att_proj", att_proj_part, 1, 0, .flop_CC = 6 },
    { "fc", fc_part, 1, 0, .flop_CC = 24 },
    { "gelu", gelu_part, 1, 0, .bytes_C = 80 },
    { "mlp_proj", mlp_proj_part, 1, 0, .flop_CC = 24 },
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

// One update as the trainer makes it. scripts/count_instructions.sh looks for it by its name.
__attribute__((noinline)) static void bench_step(Bench *b, int64_t step) {
    AdamW o = { 1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, (double)step, (double)step };
    clear_grads(&b->m);
    model_forward(&b->m, b->tokens, b->B, b->T);
    model_backward(&b->m, b->tokens, b->targets, 1.0f / (float)b->N, b->B, b->T);
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
    Samples stream, adamw_share;               // bytes a second, AdamW's share of that
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
        for (int j = OPTIMIZER; j < PARTS; j++) {
            double seconds = part_seconds(b, &parts[j], 1);
            samples_add(&t->part[j], seconds);
            if (parts[j].run == adamw_part) samples_add(&t->adamw_share, stream / seconds);
        }
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
    double flops = N*C * (p->flop_CC*C + p->flop_CT*b->T + p->flop_CV*b->m.c.V);
    double bytes = N*C * p->bytes_C + p->bytes_param * bench_params(b);
    if (flops == 0.0 && bytes < CACHE) return NAN;
    return calls * (flops / samples_median(&t->layers_peak) + bytes / samples_median(&t->stream));
}

typedef struct { double params, grads, moments, kept, scratch, rest; } MemoryParts;  // bytes

// Scratch is the logits and the gradients of activations. The rest is the program, packed matrices
// and tables.
static MemoryParts memory_parts(const Times *t, const Bench *b) {
    const size_t *of = b->m.memory.bytes;
    MemoryParts m = { (double)of[MEM_PARAMS], (double)of[MEM_GRADS], (double)of[MEM_MOMENTS],
                      (double)of[MEM_ACTIVATIONS], (double)(of[MEM_LOGITS] + of[MEM_BACKWARD]),
                      0.0 };
    m.rest = t->memory - m.params - m.grads - m.moments - m.kept - m.scratch;
    return m;
}

static void print_step(const Times *t, const Bench *b, const Setting *s) {
    double step = samples_median(&t->step), least = step_floor(t, b);
    double one = samples_median(&t->one_thread);
    MemoryParts m = memory_parts(t, b);
    printf("\n%s, %s, threads: %d\n", s->name, PRECISION, thread_count());
    printf("  a step  %9.1f ms   %s tokens/s, %.0f GFLOP/s, MFU %.0f%% of %.0f GFLOP/s\n",
           1e3 * step, count_text((double)b->N / step).text, t->flops / step / 1e9,
           100.0 * samples_median(&t->mfu), samples_median(&t->peak) / 1e9);
    printf("  floor   %9.1f ms   a step takes %.2f times that: %.1f MFLOP a token, %d bytes a "
           "parameter\n", 1e3 * least, step / least, t->flops / (double)b->N / 1e6, STREAM_BYTES);
    if (t->one_thread.n > 0)
        printf("  1 thread %8.1f ms   %d threads are %.2f times as fast\n", 1e3 * one,
               thread_count(), one / step);
    printf("  memory  %9.0f MB   parameters %.0f, gradients %.0f, moments %.0f, kept for backward "
           "%.0f,\n%24sscratch %.0f, the rest %.0f\n", t->memory / 1e6, m.params / 1e6,
           m.grads / 1e6, m.moments / 1e6, m.kept / 1e6, "", m.scratch / 1e6, m.rest / 1e6);
    printf("  adamw   %9.1f GB/s %.0f%% of the plain stream's %.1f\n",
           samples_median(&t->adamw_share) * samples_median(&t->stream) / 1e9,
           100.0 * samples_median(&t->adamw_share), samples_median(&t->stream) / 1e9);
}

static void print_layers(const Times *t, const Bench *b) {
    double sum = 0.0;
    for (int i = 0; i < PARTS; i++) sum += samples_median(&t->part[i]);
    printf("  %-10s %10s %7s %10s %8s\n", "layer", "ms", "share", "floor", "x floor");
    for (int i = 0; i < PARTS; i++) {
        double seconds = samples_median(&t->part[i]), least = part_floor(t, b, &parts[i]);
        printf("  %-10s %10.2f %6.1f%%", parts[i].name, 1e3 * seconds, 100.0 * seconds / sum);
        if (isnan(least)) printf(" %10s %8s\n", "-", "-");
        else printf(" %10.2f %8.2f\n", 1e3 * least, seconds / least);
    }
    printf("  %-10s %10.2f\n", "sum", 1e3 * sum);
}

// An object with a member for each part; what is NaN is left out.
static void log_parts(Log *log, const char *key, const double *values) {
    char text[1024] = "{";
    size_t n = 1;
    for (int i = 0; i < PARTS; i++)
        if (!isnan(values[i]))
            n += (size_t)snprintf(text + n, sizeof text - n, "%s\"%s\":%.6g", n > 1 ? "," : "",
                                  parts[i].name, values[i]);
    snprintf(text + n, sizeof text - n, "}");
    log_raw(log, key, text);
}

static void write_memory(Log *log, const Times *t, const Bench *b) {
    MemoryParts m = memory_parts(t, b);
    log_num(log, "peak_mb", t->memory / 1e6);
    log_num(log, "parameters_mb", m.params / 1e6);
    log_num(log, "gradients_mb", m.grads / 1e6);
    log_num(log, "moments_mb", m.moments / 1e6);
    log_num(log, "kept_for_backward_mb", m.kept / 1e6);
    log_num(log, "scratch_mb", m.scratch / 1e6);
    log_num(log, "rest_mb", m.rest / 1e6);
}

static void write_model(Log *log, const Times *t, const Bench *b, const Setting *s) {
    double step = samples_median(&t->step), least = step_floor(t, b);
    double one = samples_median(&t->one_thread), ms[PARTS], floor_ms[PARTS];
    for (int i = 0; i < PARTS; i++) {
        ms[i] = 1e3 * samples_median(&t->part[i]);
        floor_ms[i] = 1e3 * part_floor(t, b, &parts[i]);
    }
    result_begin(log, s->name, thread_count());
    log_int(log, "rounds", t->step.n);
    log_num(log, "step_ms", 1e3 * step);
    log_num(log, "tokens_per_s", (double)b->N / step);
    log_num(log, "gflops", t->flops / step / 1e9);
    log_num(log, "peak_gflops", samples_median(&t->peak) / 1e9);
    log_num(log, "mfu", samples_median(&t->mfu));
    log_num(log, "mflop_per_token", t->flops / (double)b->N / 1e6);
    log_num(log, "floor_ms", 1e3 * least);
    log_num(log, "x_floor", step / least);
    log_num(log, "one_thread_ms", 1e3 * one);
    log_num(log, "speedup", one / step);
    log_num(log, "stream_gb_per_s", samples_median(&t->stream) / 1e9);
    log_num(log, "adamw_share_of_stream", samples_median(&t->adamw_share));
    write_memory(log, t, b);
    log_num(log, "layers_peak_gflops", samples_median(&t->layers_peak) / 1e9);
    log_parts(log, "layers_ms", ms);
    log_parts(log, "layers_floor_ms", floor_ms);
    result_end(log);
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
    print_step(&t, &b, s);
    print_layers(&t, &b);
    write_model(log, &t, &b, s);
    bench_close(&b);
}

typedef struct { Samples fp32[2], bf16[2], read, stream; } Speeds;   // [0] is for one thread

static void time_machine(Speeds *m, int rounds) {
    enum { FLOATS = 31 * 1000 * 1000 + 64 };     // no power of two: the caches' sets would collide
    int threads[2] = { 1, thread_count() };
    float *x = alloc_or_die(4 * sizeof(float) * FLOATS, "a stream");
    for (int r = 0; r < rounds; r++) {
        for (int i = 0; i < 2; i++) {
            samples_add(&m->fp32[i], cpu_peak_fp32(threads[i]) / 1e9);
            samples_add(&m->bf16[i], cpu_peak_bf16(threads[i]) / 1e9);
        }
        double read = read_seconds(x, 4 * (size_t)FLOATS);
        double stream = stream_seconds(x, x + FLOATS, x + 2*FLOATS, x + 3*FLOATS, FLOATS);
        samples_add(&m->read, 4.0 * sizeof(float) * FLOATS / read / 1e9);
        samples_add(&m->stream, (double)STREAM_BYTES * FLOATS / stream / 1e9);
    }
    free(x);
}

// What this machine can do, with nothing of this project in the way.
static void bench_machine(const Setting *s, Log *log) {
    static Speeds m;
    time_machine(&m, s->rounds);
    double fp32 = samples_median(&m.fp32[1]), fp32_one = samples_median(&m.fp32[0]);
    double bf16 = samples_median(&m.bf16[1]), bf16_one = samples_median(&m.bf16[0]);
    double read = samples_median(&m.read), stream = samples_median(&m.stream);
    printf("this machine, threads: %d\n", thread_count());
    printf("  multiply-adds, fp32 %7.0f GFLOP/s, on one thread %.0f\n", fp32, fp32_one);
    printf("  multiply-adds, bf16 ");
    if (bf16 > 0) printf("%7.0f GFLOP/s, on one thread %.0f\n", bf16, bf16_one);
    else printf("   none: this build has no AVX512-BF16\n");
    printf("  memory, read only   %7.1f GB/s\n", read);
    printf("  memory, as AdamW    %7.1f GB/s in a plain stream that reads four arrays and writes "
           "three\n", stream);
    result_begin(log, s->name, thread_count());
    log_text(log, "compiler", __VERSION__);
    log_num(log, "peak_gflops_one_thread", fp32_one);
    log_num(log, "peak_gflops", fp32);
    log_num(log, "bf16_peak_gflops_one_thread", bf16 > 0 ? bf16_one : NAN);
    log_num(log, "bf16_peak_gflops", bf16 > 0 ? bf16 : NAN);
    log_num(log, "read_gb_per_s", read);
    log_num(log, "stream_gb_per_s", stream);
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
    model_extend(&m, text, cached, 0);
    for (int i = 0; i < NEW; i++) {
        double start = seconds_now();
        model_extend(&m, text, cached + i + 1, cached + i);
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

#define GPT2_124M { 12, 12, 768, 50257, 1024, 0 }
static const Setting settings[] = {
    { "machine", bench_machine, .rounds = 7 },
    { "characters, B=12 T=64", bench_model, { 4, 4, 128, 257, 64, 0 }, .B = 12, .T = 64,
      .rounds = 9, .burst = 8, .one_thread = 9, .blocks = 4 },
    { "124M, B=4 T=64", bench_model, GPT2_124M, .B = 4, .T = 64,
      .rounds = 5, .burst = 1, .one_thread = 3, .blocks = 12 },
    { "124M, B=4 T=1024", bench_model, GPT2_124M, .B = 4, .T = 1024,
      .rounds = 2, .burst = 1, .one_thread = 1, .blocks = 2 },
    { "generate 124M", bench_generation, GPT2_124M, .B = 1, .T = 1024, 0 },
    // For --rounds alone: scripts/count_instructions.sh, which runs it a hundred times slower.
    { "counted, B=2 T=64", NULL, { 4, 4, 128, 257, 64, 0 }, .B = 2, .T = 64 },
};
enum { SETTINGS = sizeof settings / sizeof *settings };

// Two rounds at T=1024 take a minute; --full makes it five of everything, and times every block.
static Setting in_full(Setting s) {
    s.rounds = s.rounds < 5 ? 5 : s.rounds;
    s.one_thread = s.rounds;
    s.blocks = s.c.L;
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
    if (on_demand && steps < 1) die("--rounds: wants how many steps a round and a setting's name");
    threads_wait_politely(argv);
    results_open(&log);
    for (int i = 0; i < SETTINGS; i++) {
        bool wanted = argc == first && settings[i].run;
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
