// make bench GPU=1: what a training step costs on this GPU, launcher by launcher.
//
//     build/bench_cuda                            GPT-2 124M, T=1024, micro-batches 1, 2, 4 ... 64
//     build/bench_cuda 8 16                       these micro-batches
//     build/bench_cuda --model 2,2,64,300,32 1    another L,NH,C,V,T, and a micro-batch of 1
//
// dev/cuda/README.md says what its tables mean. A launcher runs on the buffers of one layer after
// the other, as in a step, and after half a gigabyte of something else, so that the cache holds
// nothing that it would not hold in earnest. It may hold more in earnest, what the launcher before
// has just written: so the sum can be longer than the step. Times are medians.
#include "gpu.cu"                      // gpu_open, update, median_seconds, copy_speed

enum { MAX_BATCHES = 32 };

typedef struct {
    Machine gpu;
    Model m;
    ModelShape shape;                       // B: of the model that is open
    int batches[MAX_BATCHES], n_batches;
    int *inputs, *targets;             // random tokens, enough for the largest micro-batch
    double product_flops, copy_bytes;  // the ceilings, a second
    double datasheet_flops;            // 0: not known
} Bench;

// ---- ceilings ----

static void show_ceilings(Bench *b) {
    const cudaDeviceProp *p = &b->gpu.properties;
    b->product_flops = machine_peak_flops(&b->gpu);
    b->copy_bytes = copy_speed(&b->gpu);
    b->datasheet_flops = fmax(0.0, machine_datasheet_flops(&b->gpu));
    printf("%s, sm_%d%d, " PRECISION ": products of matrices %.1f TFLOP/s", p->name, p->major,
           p->minor, 1e-12 * b->product_flops);
    if (b->datasheet_flops > 0.0) printf(" (datasheet %.1f)", 1e-12 * b->datasheet_flops);
    printf(", memory %.1f GB/s (a copy's bytes read and written)\n", 1e-9 * b->copy_bytes);
    fflush(stdout);
}

// ---- whole updates ----

static const char *const recompute_names[] = { "none", "block" };

// The model; false, and said, when there is no room for it.
static bool bench_open(Bench *b, int B, Recompute recompute) {
    ModelSpec spec = { b->shape.c, B, b->shape.T, TRAIN, recompute, Sharing(),   // one rank alone
                       b->gpu.properties.multiProcessorCount };
    size_t needed = model_bytes(spec, B, recompute), free_bytes, total;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
    size_t for_driver = min_size(512 << 20, total / 8);    // kernels not loaded yet, and a margin
    if (needed + for_driver > free_bytes) {
        printf("%11d %9s   takes %.1f MB, and %.1f are free (%.1f of them for the driver): memory "
               "ends here\n", B, recompute_names[recompute], megabytes(needed),
               megabytes(free_bytes), megabytes(for_driver));
        return false;
    }
    model_init(&b->m, &spec, &b->gpu);
    params_draw(&b->m.params, 1);
    b->shape.B = B;
    return true;
}

// Seconds of an update, by the clock on the wall.
static double step_seconds(Bench *b) {
    int step = 0;
    return median_of([&] {
        double start = seconds_now();
        update(&b->m, b->inputs, b->targets, b->shape.B, b->shape.T, ++step);
        return seconds_now() - start;
    });
}

static void bench_steps(Bench *b) {
    const ModelShape *z = &b->shape;
    double s = step_seconds(b), tok_per_s = z->B * z->T / s;
    double flops = tok_per_s * gpt2_flops_per_token(&z->c, z->T);
    const char *recompute = recompute_names[b->m.spec.recompute];
    char datasheet[16] = "-";
    if (b->datasheet_flops > 0.0)
        snprintf(datasheet, sizeof datasheet, "%.1f%%", 100.0 * flops / b->datasheet_flops);
    printf("%11d %9s %10.3f %12.0f %7.1f%% %10s %12.1f\n", z->B, recompute, 1e3 * s, tok_per_s,
           100.0 * flops / b->product_flops, datasheet, megabytes(b->m.memory.used));
    fflush(stdout);
}

// All micro-batches; returns the largest, up to 16, that keeps its activations, or 0.
static int bench_all_steps(Bench *b) {
    int chosen = 0;
    const Config *c = &b->shape.c;
    size_t free_bytes, total;
    double other = 0.0;                // what the driver counts beside the model
    printf("\n%d layers, %d heads, %d channels, vocabulary %d, T=%d; one micro-batch an update\n"
           "%11s %9s %10s %12s %8s %10s %12s\n", c->L, c->NH, c->C, c->V, b->shape.T,
           "micro-batch", "recompute", "ms a step", "tokens/s", "MFU", "datasheet", "MB of memory");
    for (int recompute = RECOMPUTE_NONE; recompute <= RECOMPUTE_BLOCK; recompute++)
        for (int i = 0; i < b->n_batches; i++) {
            if (!bench_open(b, b->batches[i], (Recompute)recompute)) break;
            bench_steps(b);
            CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
            other = megabytes(total - free_bytes - b->m.memory.used);
            model_free(&b->m);
            if (recompute == RECOMPUTE_NONE && (b->batches[i] <= 16 || chosen == 0))
                chosen = b->batches[i];
        }
    printf("%.1f MB besides: the driver's context and kernels, cuBLASLt's workspace, and whatever "
           "else runs here\n", other);
    return chosen;
}

// ---- launchers, one at a time ----

// What one layer's launchers are called with, after a step has filled its buffers.
typedef struct {
    Model *m;
    Gpu *g;
    BlockActs a;
    Block<real> w;
    Block<float> d;
    int words, B, T, C, NH, V;         // words: distinct tokens of the batch
    size_t N, params;
} Site;

// What a launcher cannot do without: each input read once and each output written once.
typedef struct { double flops, bytes; } Work;

static const double R = sizeof(real);

// A product of N rows, IN*C to OUT*C columns wide; its epilogue reads or writes MORE*C besides.
template <int IN, int OUT, int MORE = 0> static Work rows_work(const Site *z) {
    double CC = (double)z->C*z->C;
    return { 2.0*z->N*IN*OUT*CC, R * (z->N*z->C*(IN + OUT + MORE) + IN*OUT*CC) };
}

// Of a weight's gradient, which is read and written, in fp32.
template <int IN, int OUT> static Work weight_work(const Site *z) {
    double CC = (double)z->C*z->C;
    return { 2.0*z->N*IN*OUT*CC, R*z->N*z->C*(IN + OUT) + 8.0*IN*OUT*CC };
}

static Work bias_work(const Site *z) { return { 0.0, R*4.0*z->N*z->C + 8.0*4.0*z->C }; }

static Work embedding_work(const Site *z) {
    return { 0.0, R * z->C * (z->N + z->words + z->T) + 4.0*z->N };
}
static Work embedding_backward_work(const Site *z) {
    return { 0.0, R*z->N*z->C + 8.0*z->C * (z->words + z->T) + 8.0*z->N };
}

// ARRAYS of N*C elements. A query sees (T+1)/2 keys on the average.
template <int PRODUCTS, int ARRAYS> static Work attention_work(const Site *z) {
    return { (double)PRODUCTS*z->N*z->C * (z->T + 1), R*ARRAYS*z->N*z->C + 4.0*z->N*z->NH };
}
template <int ARRAYS> static Work layernorm_work(const Site *z) {
    return { 0.0, R*ARRAYS*z->N*z->C + 8.0*z->N };
}

static Work xent_work(const Site *z) { return { 0.0, R*2.0*z->N*z->V }; }

// Logits that never leave the chip would be no bytes at all.
static Work classifier_work(const Site *z) {
    return { 6.0*z->N*z->C*z->V, R * (2.0*z->N*z->C + z->V*z->C) + 8.0*z->V*z->C };
}

static Work once_work(const Site *z) { return { 0.0, 4.0*z->params }; }

// Four arrays of fp32 are read and three written, and the parameters again as layers read them.
static Work adamw_work(const Site *z) {
    return { 0.0, (sizeof(real) < sizeof(float) ? 28.0 + R : 28.0) * z->params };
}

// Gradients of a product of widths C and OC: dx = dout w^T, and dw += x^T dout.
static void data_gradient(const Site *s, real *dx, const real *dout, const real *w, int C, int OC) {
    matmul(dx, C, rows_of(dout, OC), transpose_of(w, OC), s->N, C, OC, WRITE, s->g);
}
static void weight_gradient(const Site *s, float *dw, const real *dout, const real *x, int C,
                            int OC) {
    matmul(dw, OC, transpose_of(x, C), rows_of(dout, OC), C, OC, s->N, ADD, s->g);
}

// A step calls it a_layer times for each layer and `once` times besides; INSIDE marks what is part
// of the line above, and not of the sum.
enum { INSIDE = -1 };
typedef struct {
    const char *name;
    int a_layer, once;
    Work (*work)(const Site *);
    void (*run)(const Site *);
} Part;

static const Part parts[] = {
    { "embedding", 0, 1, embedding_work, [](const Site *s) {
        embedding_forward(s->m->x_in, s->m->batch.inputs, s->m->w.wte, s->m->w.wpe, s->B, s->T,
                          s->C, s->g->stream); } },
    { "layernorm", 2, 1, layernorm_work<2>, [](const Site *s) {
        layernorm_forward(s->a.ln2, s->a.x_mid, s->w.ln2, s->N, s->C, s->g->stream); } },
    { "qkv", 1, 0, rows_work<1, 3>, [](const Site *s) {
        linear_forward(s->a.qkv, s->a.ln1.out, s->w.qkv_w, s->w.qkv_b, s->N, s->C, 3*s->C,
                       s->g); } },
    { "attention", 1, 0, attention_work<2, 4>, [](const Site *s) {
        attention_forward(s->a.att, s->a.att_lse, s->a.qkv, s->B, s->T, 0, s->C, s->m->c.NH,
                          s->g); } },
    { "att_proj", 1, 0, rows_work<1, 1, 1>, [](const Site *s) {          // reads the residual
        linear_residual_forward(s->a.x_mid, s->a.x, s->a.att, s->w.att_proj_w, s->w.att_proj_b,
                                s->N, s->C, s->C, s->g); } },
    { "fc and gelu", 1, 0, rows_work<1, 4, 4>, [](const Site *s) {       // before GELU, and after
        linear_gelu_forward(s->a.gelu, s->a.fc, s->a.ln2.out, s->w.fc_w, s->w.fc_b, s->N, s->C,
                            4*s->C, s->g); } },
    { "mlp_proj", 1, 0, rows_work<4, 1, 1>, [](const Site *s) {          // reads the residual
        linear_residual_forward(s->a.x_out, s->a.x_mid, s->a.gelu, s->w.mlp_proj_w,
                                s->w.mlp_proj_b, s->N, 4*s->C, s->C, s->g); } },
    { "classifier, both ways", 0, 1, classifier_work, [](const Site *s) {
        classifier_launch(s->m, s->N, TRAIN); } },
    { "  cross-entropy in it", INSIDE, 1, xent_work, [](const Site *s) {
        Model *m = s->m;
        for (size_t n = 0; n < s->N; n += m->logit_rows)
            xent_launch(m->loss + n, m->lse + n, m->logits, m->logits, m->batch.targets + n,
                        m->batch.scale, min_size(m->logit_rows, s->N - n), m->c.V, m->padded.V,
                        s->g); } },
    { "mlp_proj and gelu, data", 1, 0, rows_work<1, 4, 4>, [](const Site *s) {   // reads fc
        gelu_linear_backward_data(s->m->dfc, s->d.fc_b, s->m->dx, s->a.fc, s->w.mlp_proj_w, s->N,
                                  4*s->C, s->C, s->g); } },
    { "  fc's bias, by a kernel", INSIDE, 1, bias_work, [](const Site *s) {
        bias_backward(s->d.fc_b, s->m->dfc, s->N, 4*s->C, s->g); } },
    { "mlp_proj, weight", 1, 0, weight_work<4, 1>, [](const Site *s) {
        weight_gradient(s, s->d.mlp_proj_w, s->m->dx, s->a.gelu, 4*s->C, s->C); } },
    { "fc, data", 1, 0, rows_work<4, 1>, [](const Site *s) {
        data_gradient(s, s->m->dx_branch, s->m->dfc, s->w.fc_w, s->C, 4*s->C); } },
    { "fc, weight", 1, 0, weight_work<1, 4>, [](const Site *s) {
        weight_gradient(s, s->d.fc_w, s->m->dfc, s->a.ln2.out, s->C, 4*s->C); } },
    { "layernorm, back", 2, 1, layernorm_work<4>, [](const Site *s) {
        layernorm_backward(s->m->dx, s->d.ln2, s->d.mlp_proj_b, s->m->dx, s->m->dx_branch,
                           s->a.x_mid, s->a.ln2, s->w.ln2, s->N, s->C, s->g); } },
    { "att_proj, data", 1, 0, rows_work<1, 1>, [](const Site *s) {
        data_gradient(s, s->m->dx_branch, s->m->dx, s->w.att_proj_w, s->C, s->C); } },
    { "att_proj, weight", 1, 0, weight_work<1, 1>, [](const Site *s) {
        weight_gradient(s, s->d.att_proj_w, s->m->dx, s->a.att, s->C, s->C); } },
    { "attention, back", 1, 0, attention_work<5, 8>, [](const Site *s) {
        attention_backward(s->m->dqkv, s->d.qkv_b, s->m->att_rows, s->m->dx_branch, s->a.qkv,
                           s->a.att, s->a.att_lse, s->B, s->T, s->C, s->m->c.NH, s->g); } },
    { "qkv, data", 1, 0, rows_work<3, 1>, [](const Site *s) {
        data_gradient(s, s->m->dx_branch, s->m->dqkv, s->w.qkv_w, s->C, 3*s->C); } },
    { "qkv, weight", 1, 0, weight_work<1, 3>, [](const Site *s) {
        weight_gradient(s, s->d.qkv_w, s->m->dqkv, s->a.ln1.out, s->C, 3*s->C); } },
    { "embedding, back", 0, 1, embedding_backward_work, [](const Site *s) {
        Model *m = s->m;
        embedding_backward(m->dw.wte, m->dw.wpe, m->dx, m->batch.inputs, m->batch.order,
                           m->batch.begin, s->words, s->B, s->T, s->C, s->g->stream); } },
    { "gradients to zero", 0, 1, once_work, [](const Site *s) { clear_grads(s->m); } },
    { "global norm", 0, 1, once_work, [](const Site *s) { gradients_squares(s->m); } },
    { "AdamW", 0, 1, adamw_work, [](const Site *s) {
        AdamW o = { 1e-9f, 0.9f, 0.95f, 1e-8f, 0.1f, 1, 1 };
        adamw_launch(&s->m->params, o, s->m->g_scale); } },
};

// Before a measurement all gradients are read, half a gigabyte for 124M: that empties the caches,
// and gives the CPU the time to launch ahead.
static double cold_seconds(Bench *b, const Part *p, const Site *sites, int calls) {
    return median_seconds(&b->gpu, [&] { gradients_squares(&b->m); }, [&] {
        for (int l = 0; l < calls; l++) p->run(&sites[l]);
    });
}

static void bench_parts(Bench *b, const Site *sites, double step) {
    double sum = 0.0, floors = 0.0;
    int L = b->shape.c.L;
    for (const Part &p : parts) {
        int calls = p.a_layer > 0 ? p.a_layer*L + p.once : p.once, sample = p.a_layer > 0 ? L : 1;
        Work work = p.work(&sites[0]);
        double ms = 1e3 * calls * cold_seconds(b, &p, sites, sample) / sample;
        double floor = 1e3 * calls * fmax(work.flops / b->product_flops,
                                          work.bytes / b->copy_bytes);
        if (p.a_layer != INSIDE) {
            sum += ms;
            floors += floor;
        }
        printf("  %-24s %5d %10.3f %10.4g %7.2f\n", p.name, calls, ms, floor, ms / floor);
        fflush(stdout);
    }
    printf("  %-24s %5s %10.3f %10.3f %7.2f\n", "all of them", "", sum, floors, sum / floors);
    printf("  %-24s %5s %10.3f %10.3f %7.2f\n", "the step as a whole", "", 1e3 * step, floors,
           1e3 * step / floors);
}

static void bench_launchers(Bench *b, int B) {
    if (!bench_open(b, B, RECOMPUTE_NONE)) die("memory: it was there before");
    Model *m = &b->m;
    const Config *c = &b->shape.c;
    int T = b->shape.T;
    size_t N = (size_t)B*T;
    double step = step_seconds(b);               // fills the buffers
    int words = send_order(m, N);
    Site *sites = (Site *)alloc_or_die(c->L * sizeof *sites, "a table of launchers' arguments");
    for (int l = 0; l < c->L; l++)
        sites[l] = { m, &b->gpu, m->acts[l], m->w.block[l], m->dw.block[l], words, B, T, c->C,
                     c->NH, c->V, N, gpt2_n_params(&m->padded) };
    printf("\nlaunchers of a step, micro-batch %d: milliseconds a step, and their floor\n"
           "  %-24s %5s %10s %10s %7s\n", B, "", "calls", "ms", "floor", "ratio");
    bench_parts(b, sites, step);
    free(sites);
    model_free(m);
}

// ---- main ----

static void parse(Bench *b, int argc, char **argv) {
    b->shape = { { 12, 12, 768, 50257, 1024, 0 }, 1024, 1 };
    for (int i = 1; i < argc; i++) {
        char *rest;
        long B = strtol(argv[i], &rest, 10);
        if (strcmp(argv[i], "--model") == 0)
            shape_parse(&b->shape, i + 1 < argc ? argv[++i] : "", "--model");
        else if (*rest || B < 1 || B > 65536 || b->n_batches == MAX_BATCHES)
            die("'%s': expected a micro-batch from 1 to 65536, at most %d of them", argv[i],
                MAX_BATCHES);
        else b->batches[b->n_batches++] = (int)B;
    }
    bool none = b->n_batches == 0;
    for (int B = 1; none && B <= 64; B *= 2) b->batches[b->n_batches++] = B;
}

int main(int argc, char **argv) {
    static Bench b;
    *program_name() = "bench_cuda";
    parse(&b, argc, argv);
    gpu_open(&b.gpu);
    size_t n = (size_t)*std::max_element(b.batches, b.batches + b.n_batches) * b.shape.T;
    b.inputs = random_tokens(2*n, b.shape.c.V);
    b.targets = b.inputs + n;
    show_ceilings(&b);
    int B = bench_all_steps(&b);
    if (B == 0) die("memory: not even the first micro-batch fits");
    bench_launchers(&b, B);
    free(b.inputs);
    machine_close(&b.gpu);
    return 0;
}
