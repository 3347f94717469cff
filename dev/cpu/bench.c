// make bench: what a training step costs on this machine, layer by layer.
//
// Each model runs in a process of its own, so that its peak memory is its own. The whole step is
// timed as the trainer runs it; then every layer alone, on the same buffers, as often as a step
// calls it. Shares are of the sum of the layers, which should come close to the step: both are
// printed. All of them together write bench.json. On a busy machine only ratios within one run mean
// anything.
//
//     build/bench               all models
//     build/bench NAME...       those whose name begins so
#define main train_gpt2_main
#include "../../train_gpt2.c"
#undef main
#undef PROGRAM
#define PROGRAM "bench"
#include <sys/resource.h>
#include <sys/wait.h>

typedef struct { const char *name; Config c; int B, T, steps; } Setting;   // steps 0: generates

static const Setting settings[] = {
    { "characters, B=12 T=64", { 4, 4, 128, 257, 64 }, 12, 64, 50 },
    { "124M, B=4 T=64", { 12, 12, 768, 50257, 1024 }, 4, 64, 5 },
    { "124M, B=4 T=1024", { 12, 12, 768, 50257, 1024 }, 4, 1024, 3 },
    { "generate 124M", { 12, 12, 768, 50257, 1024 }, 1, 1024, 0 },
};

typedef struct {
    Model m;
    int B, T, *tokens, *targets;
    size_t N;
    Block w, d;                        // of block 0, which stands for all
} Bench;

// ---- a layer at a time; each function does one layer's work of one block ----

static void embedding_part(Bench *b) {
    Model *m = &b->m;
    embedding_forward(m->x_in, b->tokens, tensor_at(m->params, &m->c, WTE),
                      tensor_at(m->params, &m->c, WPE), b->B, b->T, 0, m->c.C);
    embedding_backward(tensor_at(m->grads, &m->c, WTE), tensor_at(m->grads, &m->c, WPE), m->dx,
                       b->tokens, b->B, b->T, m->c.C);
}

static void layernorm_part(Bench *b) {
    BlockActs *a = &b->m.acts[0];
    layernorm_forward(a->ln1, a->ln1_mean, a->ln1_rstd, b->m.x_in, b->w.ln1_gain, b->w.ln1_bias,
                      b->N, b->m.c.C);
    layernorm_backward(b->m.dx_branch, b->d.ln1_gain, b->d.ln1_bias, b->m.dx, b->m.x_in,
                       a->ln1_mean, a->ln1_rstd, b->w.ln1_gain, b->N, b->m.c.C);
}

static void linear_part(Bench *b, float *out, float *dout, float *dx, const float *x, float *w,
                        float *bias, float *dw, float *dbias, int C, int OC) {
    linear_forward(out, x, w, bias, b->N, C, OC);
    linear_backward(dx, dw, dbias, dout, x, w, b->N, C, OC);
}

static void qkv_part(Bench *b) {
    int C = b->m.c.C;
    linear_part(b, b->m.acts[0].qkv, b->m.dqkv, b->m.dx_branch, b->m.acts[0].ln1, b->w.qkv_w,
                b->w.qkv_b, b->d.qkv_w, b->d.qkv_b, C, 3*C);
}

static void attention_part(Bench *b) {
    BlockActs *a = &b->m.acts[0];
    attention_forward(a->att, a->att_lse, b->m.scores, a->qkv, b->B, b->T, 0, b->m.c.C, b->m.c.NH);
    attention_backward(b->m.dqkv, b->m.scores, b->m.dx, a->qkv, a->att, a->att_lse, b->B, b->T,
                       b->m.c.C, b->m.c.NH);
}

static void att_proj_part(Bench *b) {
    int C = b->m.c.C;
    linear_part(b, b->m.acts[0].x_mid, b->m.dx, b->m.dx_branch, b->m.acts[0].att, b->w.att_proj_w,
                b->w.att_proj_b, b->d.att_proj_w, b->d.att_proj_b, C, C);
}

static void fc_part(Bench *b) {
    int C = b->m.c.C;
    linear_part(b, b->m.acts[0].fc, b->m.dfc, b->m.dx_branch, b->m.acts[0].ln2, b->w.fc_w,
                b->w.fc_b, b->d.fc_w, b->d.fc_b, C, 4*C);
}

static void gelu_part(Bench *b) {
    size_t n = b->N * 4 * b->m.c.C;
    gelu_forward(b->m.acts[0].gelu, b->m.acts[0].fc, n);
    gelu_backward(b->m.dfc, b->m.dfc, b->m.acts[0].fc, n);
}

static void mlp_proj_part(Bench *b) {
    int C = b->m.c.C;
    linear_part(b, b->m.acts[0].x_out, b->m.dx, b->m.dfc, b->m.acts[0].gelu, b->w.mlp_proj_w,
                b->w.mlp_proj_b, b->d.mlp_proj_w, b->d.mlp_proj_b, 4*C, C);
}

static void residual_part(Bench *b) {
    size_t n = b->N * b->m.c.C;
    residual_forward(b->m.acts[0].x_mid, b->m.x_in, b->m.dx_branch, n);
    residual_forward(b->m.dx, b->m.dx, b->m.dx_branch, n);
}

static void classifier_part(Bench *b) {
    Model *m = &b->m;
    classifier_backward(m->dx_branch, tensor_at(m->grads, &m->c, WTE), m->loss, m->lse, m->logits,
                        m->lnf, tensor_at(m->params, &m->c, WTE), b->targets, 1.0f / (float)b->N,
                        b->N, m->logit_rows, m->c.C, m->c.V, (int)padded_vocab(&m->c));
}

static void optimizer_part(Bench *b) {
    AdamW o = { 1e-9f, 0.9f, 0.95f, 1e-8f, 0.1f };
    gradients_norm(&b->m);
    model_update(&b->m, o, 1.0f, 1);
    gradients_zero(&b->m);
}

typedef struct { const char *name; bool in_block; int times; void (*run)(Bench *); } Part;

static const Part parts[] = {
    { "embedding", false, 1, embedding_part }, { "layernorm", true, 2, layernorm_part },
    { "qkv", true, 1, qkv_part },              { "attention", true, 1, attention_part },
    { "att_proj", true, 1, att_proj_part },    { "fc", true, 1, fc_part },
    { "gelu", true, 1, gelu_part },            { "mlp_proj", true, 1, mlp_proj_part },
    { "residual", true, 2, residual_part },    { "classifier", false, 1, classifier_part },
    { "optimizer", false, 1, optimizer_part },
};
enum { PARTS = sizeof parts / sizeof *parts };

// ---- timing ----

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n) {
    qsort(x, n, sizeof *x, ascending);
    return n % 2 ? x[n/2] : 0.5 * (x[n/2 - 1] + x[n/2]);
}

static void bench_open(Bench *b, const Setting *s) {
    b->B = s->B;
    b->T = s->T;
    b->N = (size_t)s->B * s->T;
    model_init(&b->m, &s->c, s->B, s->T, TRAIN);
    model_init_params(&b->m, 1);
    b->w = block_at(b->m.params, &s->c, 0);
    b->d = block_at(b->m.grads, &s->c, 0);
    b->tokens = alloc_or_die(2 * b->N * sizeof(int), "a batch");
    b->targets = b->tokens + b->N;
    Rng rng = rng_make(1, 1);
    for (size_t i = 0; i < 2 * b->N; i++) b->tokens[i] = (int)rng_below(&rng, (uint64_t)s->c.V);
}

// Seconds of one whole step, the median of `steps` after a first one that warms up.
static double bench_steps(Bench *b, int steps) {
    double seconds[64];
    AdamW o = { 1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f };
    for (int i = 0; i <= steps; i++) {
        double start = seconds_now();
        gradients_zero(&b->m);
        model_forward(&b->m, b->tokens, b->B, b->T, 0);
        model_backward(&b->m, b->tokens, b->targets, 1.0f / (float)b->N, b->B, b->T);
        gradients_norm(&b->m);
        model_update(&b->m, o, 1.0f, i + 1);
        if (i > 0) seconds[i - 1] = seconds_now() - start;
    }
    return median(seconds, steps);
}

static double bench_part(Bench *b, const Part *p, int repeats) {
    double seconds[8];
    for (int i = 0; i < repeats; i++) {
        double start = seconds_now();
        p->run(b);
        seconds[i] = seconds_now() - start;
    }
    int layers = p->in_block ? b->m.c.L : 1;
    return median(seconds, repeats) * p->times * layers;
}

// Bytes a second that all threads together can read from memory.
static double read_bandwidth(void) {
    enum { FLOATS = 64 << 20 };
    float *x = alloc_or_die((size_t)FLOATS * sizeof(float), "a stream");
    double seconds[7];
    volatile float keep = 0.0f;
    for (int i = 0; i < 7; i++) {
        double start = seconds_now();
        float sum = 0.0f;
        #pragma omp parallel for simd reduction(+:sum)
        for (size_t j = 0; j < FLOATS; j++) sum += x[j];
        seconds[i] = seconds_now() - start;
        keep = sum;
    }
    (void)keep;
    free(x);
    return 4.0 * FLOATS / median(seconds, 7);
}

// GPT-2 124M writes, with nearly all of its 1,024 positions in the cache. Each token has to read
// every weight once, so memory sets the limit.
static void bench_generation(FILE *json) {
    static const Config c = { 12, 12, 768, 50257, 1024 };
    enum { CACHED = 1000, TOKENS = 20 };
    static Model m;
    int text[CACHED + TOKENS];
    double seconds[TOKENS];
    model_init(&m, &c, 1, 1024, INFER);
    model_init_params(&m, 1);
    for (int i = 0; i < CACHED + TOKENS; i++) text[i] = i * 37 % c.V;
    model_forward(&m, text, 1, CACHED, 0);
    for (int i = 0; i < TOKENS; i++) {
        double start = seconds_now();
        model_forward(&m, text, 1, CACHED + i + 1, CACHED + i);
        next_logits(&m, CACHED + i);
        seconds[i] = seconds_now() - start;
    }
    double speed = 1.0 / median(seconds, TOKENS), bandwidth = read_bandwidth();
    double limit = bandwidth / (4.0 * (double)(m.n_params - (size_t)c.P * c.C));
    printf("\n124M generates %.1f tokens/s, %.0f%% of the %.1f that reading its weights once a "
           "token allows\nat %.1f GB/s, this machine's read bandwidth\n", speed,
           100.0 * speed / limit, limit, bandwidth / 1e9);
    fprintf(json, "{\"name\": \"generate 124M\", \"threads\": %d, \"tokens_per_s\": %.6g, "
            "\"limit_tokens_per_s\": %.6g, \"read_gb_per_s\": %.6g}", thread_count(), speed, limit,
            bandwidth / 1e9);
}

static double peak_megabytes(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
#ifdef __APPLE__
    return (double)usage.ru_maxrss / 1e6;        // bytes there, kilobytes elsewhere
#else
    return (double)usage.ru_maxrss / 1e3;
#endif
}

static void bench_setting(const Setting *s, FILE *json) {
    static Bench b;
    double part_seconds[PARTS], sum = 0.0, peak = cpu_peak_flops();
    bench_open(&b, s);
    double step = bench_steps(&b, s->steps);
    for (int i = 0; i < PARTS; i++) sum += part_seconds[i] = bench_part(&b, &parts[i], 3);
    double flops = gpt2_flops_per_token(&s->c, s->T) * (double)b.N;
    double state = 16.0 * (double)b.m.n_params, acts = 4.0 * (double)b.m.memory_floats;

    printf("\n%s: %.1f ms a step, %s tokens/s, %.0f GFLOP/s, MFU %.0f%% of %.0f GFLOP/s\n",
           s->name, 1e3 * step, count_text((double)b.N / step).text, flops / step / 1e9,
           100.0 * flops / step / peak, peak / 1e9);
    printf("  peak memory %.0f MB: parameters, gradients and moments %.0f, activations %.0f\n",
           peak_megabytes(), state / 1e6, acts / 1e6);
    for (int i = 0; i < PARTS; i++)
        printf("  %-10s %9.2f ms %5.1f%%\n", parts[i].name, 1e3 * part_seconds[i],
               100.0 * part_seconds[i] / sum);
    printf("  %-10s %9.2f ms\n", "sum", 1e3 * sum);
    fprintf(json, "{\"name\": \"%s\", \"threads\": %d, \"step_ms\": %.6g, \"tokens_per_s\": %.6g, "
            "\"gflops\": %.6g, \"peak_gflops\": %.6g, \"peak_mb\": %.6g, \"state_mb\": %.6g, "
            "\"activations_mb\": %.6g, \"parts_ms\": {", s->name, thread_count(), 1e3 * step,
            (double)b.N / step, flops / step / 1e9, peak / 1e9, peak_megabytes(), state / 1e6,
            acts / 1e6);
    for (int i = 0; i < PARTS; i++)
        fprintf(json, "%s\"%s\": %.6g", i ? ", " : "", parts[i].name, 1e3 * part_seconds[i]);
    fprintf(json, "}}");
}

static bool wanted(const Setting *s, int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strncmp(s->name, argv[i], strlen(argv[i])) == 0) return true;
    return argc == 1;
}

int main(int argc, char **argv) {
    FILE *json = fopen(argc == 1 ? "bench.json" : "/dev/null", "w");   // all, or nothing
    if (!json) die("bench.json: cannot be written here: %s", strerror(errno));
    const char *separator = "[";
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        if (!wanted(&settings[i], argc, argv)) continue;
        fprintf(json, "%s\n", separator);
        separator = ",";
        fflush(NULL);                  // a child must not print again what waits in a buffer
        pid_t child = fork();          // before any OpenMP thread exists in this process
        if (child == 0) {
            if (settings[i].steps > 0) bench_setting(&settings[i], json);
            else bench_generation(json);
            exit(fflush(NULL) != 0);
        }
        int status = 0;
        if (child < 0 || waitpid(child, &status, 0) < 0) die("fork: %s", strerror(errno));
        if (status != 0) die("%s: did not finish; is there memory enough?", settings[i].name);
    }
    if (*separator == '[') die("'%s': no setting's name begins so", argv[1]);
    fprintf(json, "\n]\n");
    if (fclose(json) != 0) die("bench.json: cannot be written here: %s", strerror(errno));
    return 0;
}
