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
#include "../base/base.h"
#define main train_gpt2_main
#include "../../train_gpt2.c"
#undef main
#include <sys/wait.h>
#include "ladder.h"                    // Samples, stream_seconds, peak_memory

typedef struct Part Part;
typedef struct Setting Setting;

struct Setting {
    const char *name;
    void (*run)(const Setting *);
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
    layernorm_forward(a->ln1, a->x, b->w.ln1, b->N, b->m.c.C);
    layernorm_backward(b->m.dbranch, b->d.ln1, b->m.dx, a->x, a->ln1, b->w.ln1, b->N, b->m.c.C);
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
    classifier_loss_and_gradient(&b->m, b->targets, 1.0f / (float)b->N, b->B, b->T);
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

static void bench_open(Bench *b, const Setting *s) {
    static Machine machine;
    ModelSpec spec = { .c = s->c, .B = s->B, .T = s->T, .use = TRAIN };
    b->B = s->B;
    b->T = s->T;
    b->N = (size_t)s->B * s->T;
    model_init(&b->m, &spec, &machine);
    params_draw(&b->m.params, 1);
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
        b->w = b->m.w.block[l];
        b->d = b->m.dw.block[l];
        b->a = &b->m.acts[l];
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
    const Params *p = &b->m.params;
    size_t n = gpt2_n_params(&b->m.c);
    double bytes = STREAM_BYTES * (double)n;
    for (int i = 0; i < ROUNDS; i++) {
        double stream = stream_seconds(p->masters, p->adam_m, p->adam_v, p->grads, n);
        samples_add(&t->stream, bytes / stream);
        for (int j = OPTIMIZER; j < PARTS; j++)
            samples_add(&t->part[j], part_seconds(b, &parts[j], 1));
    }
}

// ---- what comes out ----

// The least that a part of a step can take; NaN where what it touches may stay in the caches.
static double part_floor(const Times *t, const Bench *b, const Part *p) {
    enum { CACHE = 48 << 20 };
    double N = (double)b->N, C = b->m.c.C, calls = p->per_block * b->m.c.L + p->once;
    double flops = N*C * (6.0*p->in*p->out*C + p->flop_CT*b->T + p->flop_CV*b->m.c.V);
    double bytes = N*C * p->bytes_C + p->bytes_param * bench_params(b);
    if (flops == 0.0 && bytes < CACHE) return NAN;
    return calls * (flops / samples_median(&t->layers_peak) + bytes / samples_median(&t->stream));
}

static void show_whole(const Times *t, const Bench *b, const Setting *s) {
    double step = samples_median(&t->step), peak = samples_median(&t->peak);
    double one = samples_median(&t->one_thread), stream = samples_median(&t->stream);
    double least = t->flops / peak + STREAM_BYTES * bench_params(b) / stream;
    const size_t *of = b->m.memory.bytes;
    printf("\n%s, %s, threads: %d\n", s->name, PRECISION, thread_count());
    printf("  a step  %9.1f ms   %s tokens/s, %.0f GFLOP/s, MFU %.0f%% of %.0f GFLOP/s\n",
           1e3 * step, count_text((double)b->N / step).text, t->flops / step / 1e9,
           100.0 * samples_median(&t->mfu), peak / 1e9);
    printf("  floor   %9.1f ms   a step takes %.2f times that: %.4g MFLOP a token, %d bytes a "
           "parameter\n", 1e3 * least, step / least, t->flops / (double)b->N / 1e6, STREAM_BYTES);
    if (t->one_thread.n > 0)
        printf("  1 thread %8.1f ms   %d threads are %.2f times as fast\n", 1e3 * one,
               thread_count(), one / step);
    printf("  memory  %9.0f MB   parameters %.0f, gradients %.0f, moments %.0f, kept for backward "
           "%.0f\n", t->memory / 1e6, 1e-6 * (double)of[MEM_PARAMS], 1e-6 * (double)of[MEM_GRADS],
           1e-6 * (double)of[MEM_MOMENTS], 1e-6 * (double)of[MEM_ACTIVATIONS]);
}

static void show_layers(const Times *t, const Bench *b) {
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

// ---- the settings ----

static void bench_model(const Setting *s) {
    static Bench b;
    static Times t;
    bench_open(&b, s);
    t.flops = gpt2_flops_per_token(&s->c, s->T) * (double)b.N;
    time_steps(&t, &b, s);
    t.memory = peak_memory();
    time_layers(&t, &b, s);
    time_optimizer(&t, &b);
    show_whole(&t, &b, s);
    show_layers(&t, &b);
    bench_close(&b);
}

static void show_speed(const char *what, const Samples *s, const char *unit) {
    double speed = samples_median(s) / 1e9;
    if (speed > 0.0) printf("  %-32s %8.1f %s\n", what, speed, unit);      // 0: no AVX512-BF16
}

// What this machine can do, with nothing of this project in the way.
static void bench_machine(const Setting *s) {
    enum { FLOATS = 31 * 1000 * 1000 + 64 };     // no power of two: cache sets collide
    static Samples core, all, core_bf16, all_bf16, read, stream;
    int threads = thread_count();
    float *x = alloc_or_die(4 * sizeof(float) * FLOATS, "a stream");
    for (int r = 0; r < s->rounds; r++) {
        samples_add(&core, cpu_peak_fp32(1));
        samples_add(&all, cpu_peak_fp32(threads));
        samples_add(&core_bf16, cpu_peak_bf16(1));
        samples_add(&all_bf16, cpu_peak_bf16(threads));
        samples_add(&read, 4.0 * sizeof(float) * FLOATS / read_seconds(x, 4 * (size_t)FLOATS));
        samples_add(&stream, (double)STREAM_BYTES * FLOATS / stream_seconds(
            x, x + FLOATS, x + 2*FLOATS, x + 3*FLOATS, FLOATS));
    }
    free(x);
    printf("this machine, threads: %d\n", threads);
    show_speed("multiply-adds, fp32, one thread", &core, "GFLOP/s");
    show_speed("multiply-adds, fp32", &all, "GFLOP/s");
    show_speed("multiply-adds, bf16, one thread", &core_bf16, "GFLOP/s");
    show_speed("multiply-adds, bf16", &all_bf16, "GFLOP/s");
    show_speed("memory, read only", &read, "GB/s");
    show_speed("memory, reads four, writes three", &stream, "GB/s, as AdamW does");
}

#define GPT2_124M { 12, 12, 768, 50257, 1024, 0 }
static const Setting settings[] = {
    { "machine", bench_machine, .rounds = 7 },
    { "characters, B=12 T=64", bench_model, { 4, 4, 128, 257, 64, 0 }, .B = 12, .T = 64,
      .rounds = 9, .burst = 8, .one_thread = 9, .blocks = 4 },
    { "make run, B=4 T=256", bench_model, { 2, 2, 64, 257, 256, 0 }, .B = 4, .T = 256,
      .rounds = 9, .burst = 8, .one_thread = 9, .blocks = 2 },
    { "124M, B=4 T=64", bench_model, GPT2_124M, .B = 4, .T = 64,
      .rounds = 5, .burst = 1, .one_thread = 3, .blocks = 12 },
    { "124M, B=4 T=1024", bench_model, GPT2_124M, .B = 4, .T = 1024,
      .rounds = 2, .burst = 1, .one_thread = 1, .blocks = 2 },
};
enum { SETTINGS = sizeof settings / sizeof *settings };

// ---- main ----

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

static void run_setting(const Setting *s) {
    fflush(NULL);                      // a child must not print again what waits in a buffer
    pid_t child = fork();              // before any OpenMP thread exists in this process
    if (child == 0) {
        s->run(s);
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
    *program_name() = "bench";
    if (on_demand && steps < 1) die("--rounds: wants how many steps a round and a setting's name");
    threads_wait_politely(argv);
    for (int i = 0; i < SETTINGS; i++) {
        bool wanted = argc == first;
        for (int j = first; j < argc; j++)
            wanted = wanted || strncmp(settings[i].name, argv[j], strlen(argv[j])) == 0;
        if (!wanted) continue;
        Setting s = settings[i];
        if (full) {                    // two rounds at T=1024 take a minute
            s.rounds = s.one_thread = s.rounds < 5 ? 5 : s.rounds;
            s.blocks = s.c.L;
        }
        if (on_demand) run_on_demand(&s, steps);
        else run_setting(&s);
        ran++;
    }
    if (ran == 0) die("'%s': no setting's name begins so", argv[first]);
    return 0;
}
