// make bench GPU=1: what a training step costs on this GPU, launcher by launcher.
//
//     build/bench_cuda                            GPT-2 124M, T=1024, micro-batches 1, 2, 4 ... 64
//     build/bench_cuda 8 16                       these micro-batches
//     build/bench_cuda --model 2,2,64,300,32 1    another L,NH,C,V,T, and a micro-batch of 1
//     build/bench_cuda --bytes 64                 only what the kernels read and write, counted;
//                                                 needs no GPU
//
// Two ceilings come first, measured on random numbers in this very run: large products of matrices,
// and copies from one place of the GPU's memory to another, counting bytes read and bytes written.
// Then whole updates of one micro-batch, as the trainer makes them: forward, backward, global norm,
// AdamW, by the clock on the wall, for each micro-batch until memory ends. MFU is 854 MFLOP a token
// (124M, T=1024; gpt2_flops_per_token) over the first ceiling, and over the datasheet's number.
//
// Last, every launcher alone, as often as a step calls it, timed by CUDA events. Beside it stands
// its floor, the longer of two times: its FLOP at the first ceiling; at the second, the bytes it
// cannot do without, each input read once and each output written once. A launcher runs on the
// buffers of one layer after the other, as in a step, and after half a gigabyte of something else,
// so that the cache holds nothing that it would not hold in earnest. It may hold more in earnest,
// what the launcher before has just written: so the sum can be longer than the step.
//
// All of it is written to bench_cuda.json as well. Times are medians.
#include "../base/base.h"
#define main train_gpt2_main
#include "../../train_gpt2.cu"
#undef main

enum { WARMUPS = 3, REPEATS = 9, MAX_BATCHES = 32 };

typedef struct {
    Machine gpu;
    Model m;
    Config c;
    int T, B, batches[MAX_BATCHES], n_batches;
    int *inputs, *targets;             // random tokens, enough for the largest micro-batch
    double product_flops, copy_bytes;  // the ceilings, a second
    double datasheet_flops;            // 0: not known
    cudaEvent_t begin, end;
    FILE *json;
    int rows;                          // of the list that is being written
    bool only_bytes;                   // --bytes
} Bench;

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n) {
    qsort(x, n, sizeof *x, ascending);
    return n % 2 ? x[n/2] : 0.5 * (x[n/2 - 1] + x[n/2]);
}

// Seconds of `run` on the GPU, the median; each time after `before`.
template <class Before, class Run> static double timed(Bench *b, Before before, Run run) {
    double seconds[WARMUPS + REPEATS];
    for (double &s : seconds) {
        before();
        CUDA_CHECK(cudaEventRecord(b->begin, b->gpu.stream));
        run();
        CUDA_CHECK(cudaEventRecord(b->end, b->gpu.stream));
        gpu_wait(&b->gpu);
        s = gpu_seconds(b->begin, b->end);
    }
    return median(seconds + WARMUPS, REPEATS);
}

// Before a measurement all gradients are read, half a gigabyte for 124M: that empties the caches,
// and gives the CPU the time to launch ahead.
template <class Run> static double cold_seconds(Bench *b, Run run) {
    return timed(b, [&] { gradients_squares(&b->m); }, run);
}

static char *random_memory(size_t bytes, Gpu *g) {
    void *x;
    size_t n = bytes / sizeof(real);
    CUDA_CHECK(cudaMalloc(&x, bytes));
    random_fill_kernel<<<blocks_for(n, 256), 256, 0, g->stream>>>((real *)x, n);
    LAUNCH_CHECK();
    return (char *)x;
}

// The next number of a list, or the list's first.
static const char *next(Bench *b) { return b->rows++ ? "," : ""; }

// ---- ceilings ----

// Bytes a second, both those read and those written, of copies of 2 GB or what there is room for.
static double copy_speed(Bench *b) {
    size_t bytes = (size_t)2 << 30, free_bytes, total;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
    while (2*bytes > free_bytes / 4) bytes /= 2;
    char *from = random_memory(2*bytes, &b->gpu);
    double seconds = timed(b, [] {}, [&] {
        CUDA_CHECK(cudaMemcpyAsync(from + bytes, from, bytes, cudaMemcpyDeviceToDevice,
                                   b->gpu.stream));
    });
    CUDA_CHECK(cudaFree(from));
    return 2.0 * (double)bytes / seconds;
}

static void show_ceilings(Bench *b) {
    const cudaDeviceProp *p = &b->gpu.properties;
    double flops[5];
    for (double &x : flops) x = matmul_peak_flops(&b->gpu);
    b->product_flops = median(flops, 5);
    b->copy_bytes = copy_speed(b);
    b->datasheet_flops = fmax(0.0, machine_datasheet_flops(&b->gpu));
    printf("%s, sm_%d%d, " PRECISION ": products of matrices %.1f TFLOP/s", p->name, p->major,
           p->minor, 1e-12 * b->product_flops);
    if (b->datasheet_flops > 0.0) printf(" (datasheet %.1f)", 1e-12 * b->datasheet_flops);
    printf(", memory %.1f GB/s (a copy's bytes read and written)\n", 1e-9 * b->copy_bytes);
    fprintf(b->json, "{\"gpu\": \"%s\", \"precision\": \"" PRECISION "\",\n \"product_tflops\": "
            "%.6g, \"datasheet_tflops\": %.6g, \"copy_gb_per_s\": %.6g,\n \"model\": {\"L\": %d, "
            "\"NH\": %d, \"C\": %d, \"V\": %d, \"T\": %d},\n \"steps\": [", p->name,
            1e-12 * b->product_flops, 1e-12 * b->datasheet_flops, 1e-9 * b->copy_bytes, b->c.L,
            b->c.NH, b->c.C, b->c.V, b->T);
    fflush(stdout);
}

// ---- whole updates ----

static const char *const recompute_names[] = { "none", "block" };

// A model of the very size the trainer would make, with GPT-2's fresh parameters; false, and said,
// when there is no room for it.
static bool bench_open(Bench *b, int B, Recompute recompute) {
    ModelSpec spec = { b->c, B, b->T, TRAIN, recompute, Sharing(),       // one rank alone
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
    b->B = B;
    Zero *z = &b->m.zero;
    for (int i = 0; i < gpt2_n_buckets(&b->c); i++) {
        gpt2_init_bucket(bucket_place(z, KEPT_WEIGHTS, i), &b->c, i, 1);
        bucket_keep(z, KEPT_WEIGHTS, i);
    }
    zero_loaded(z);
    return true;
}

// Seconds of update `step`, which counts from 1.
static double step_seconds(Bench *b, int step) {
    Model *m = &b->m;
    size_t N = (size_t)b->B*b->T;
    AdamW o = { 1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, (double)step, (double)step };
    double start = seconds_now();
    clear_grads(m);
    model_micro_step(m, b->inputs, b->targets, 1.0f / (float)N, b->B, b->T);
    gradients_squares(m);
    totals_collect(m);
    gradients_clip(m, 1.0);
    model_update(m, o);
    double norm = sqrt(totals_receive(m).squares);
    if (!isfinite(norm)) die("step %d: the gradient's norm is %g", step, norm);
    gpu_wait(&b->gpu);
    return seconds_now() - start;
}

static double steps_median(Bench *b) {
    double seconds[WARMUPS + REPEATS];
    for (int i = 0; i < WARMUPS + REPEATS; i++) seconds[i] = step_seconds(b, i + 1);
    return median(seconds + WARMUPS, REPEATS);
}

static void bench_steps(Bench *b) {
    double s = steps_median(b), tok_per_s = b->B * b->T / s;
    double flops = tok_per_s * gpt2_flops_per_token(&b->c, b->T), mb = megabytes(b->m.memory.used);
    const char *recompute = recompute_names[b->m.spec.recompute];
    char datasheet[16] = "-";
    if (b->datasheet_flops > 0.0)
        snprintf(datasheet, sizeof datasheet, "%.1f%%", 100.0 * flops / b->datasheet_flops);
    printf("%11d %9s %10.3f %12.0f %7.1f%% %10s %12.1f\n", b->B, recompute, 1e3 * s, tok_per_s,
           100.0 * flops / b->product_flops, datasheet, mb);
    fprintf(b->json, "%s\n  {\"B\": %d, \"recompute\": \"%s\", \"ms\": %.6g, "
            "\"tokens_per_s\": %.6g, \"mfu\": %.6g, \"mfu_datasheet\": %.6g, "
            "\"memory_mb\": %.6g}", next(b), b->B, recompute, 1e3 * s, tok_per_s,
            flops / b->product_flops,
            b->datasheet_flops > 0.0 ? flops / b->datasheet_flops : 0.0, mb);
    fflush(stdout);
}

// All micro-batches; returns the largest, up to 16, that keeps its activations, or 0.
static int bench_all_steps(Bench *b) {
    int chosen = 0;
    size_t free_bytes, total;
    double other = 0.0;                // what the driver counts beside the model
    printf("\n%d layers, %d heads, %d channels, vocabulary %d, T=%d; one micro-batch an update\n"
           "%11s %9s %10s %12s %8s %10s %12s\n", b->c.L, b->c.NH, b->c.C, b->c.V, b->T,
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
    fprintf(b->json, "],\n \"other_mb\": %.6g,\n \"launchers\": [", other);
    return chosen;
}

// ---- launchers, one at a time ----

// The sizes of a micro-batch, of which floors and counted bytes are made.
typedef struct {
    int T, C, NH, V, Vp;
    double N, words, chunks, params;   // words: distinct tokens; chunks: of the classifier's rows
    cudaDeviceProp gpu;
} Sizes;

// What one layer's launchers are called with, after a step has filled its buffers.
typedef struct {
    Model *m;
    Gpu *g;
    BlockActs a;
    Block<real> w;
    Block<float> d;
    int words, B, T, C;                // words: distinct tokens of the batch
    size_t N;
    Sizes sizes;
} Site;

// floor: the bytes that a launcher cannot do without, each input read once and each output written
// once. coded: the bytes that its kernels read and write as they are, each array as often as a
// kernel passes over it; tiles that a kernel rereads from the cache do not count.
typedef struct { double flops, floor, coded; } Work;

static const double R = sizeof(real);

static Work same_bytes(double flops, double bytes) { return { flops, bytes, bytes }; }

// A product of N rows, IN*C to OUT*C columns wide; its epilogue reads or writes MORE*C besides.
template <int IN, int OUT, int MORE = 0> static Work rows_work(const Sizes *z) {
    double CC = (double)z->C*z->C;
    return same_bytes(2.0*z->N*IN*OUT*CC, R * (z->N*z->C*(IN + OUT + MORE) + IN*OUT*CC));
}

// Of a weight's gradient, which is read and written, in fp32.
template <int IN, int OUT> static Work weight_work(const Sizes *z) {
    double CC = (double)z->C*z->C;
    return same_bytes(2.0*z->N*IN*OUT*CC, R*z->N*z->C*(IN + OUT) + 8.0*IN*OUT*CC);
}

static Work bias_work(const Sizes *z) { return same_bytes(0.0, R*4.0*z->N*z->C + 8.0*4.0*z->C); }

static Work embedding_work(const Sizes *z) {
    return { 0.0, R * z->C * (z->N + z->words + z->T) + 4.0*z->N,
             R * z->C * (2.0*z->N + z->T) + 4.0*z->N };
}

// Both kernels read dx.
static Work embedding_backward_work(const Sizes *z) {
    double others = 8.0*z->C * (z->words + z->T) + 8.0*z->N;
    return { 0.0, R*z->N*z->C + others, R*2.0*z->N*z->C + others };
}

// A query sees (T+1)/2 keys on the average; forward there are two products, backward five.
static Work attention_work(const Sizes *z) {
    return same_bytes(2.0*z->N*z->C * (z->T + 1), R*4.0*z->N*z->C + 4.0*z->N*z->NH);
}

// As coded attention_rows reads dout, out and lse, both other kernels q, k, v, dout and the rows,
// and the bias's sum dqkv.
static Work attention_backward_work(const Sizes *z) {
    double NC = z->N*z->C, rows = z->N*z->NH;
    return { 5.0*NC * (z->T + 1), R*8.0*NC + 4.0*rows,
             R * (2.0*NC + 2*4.0*NC + 2*3.0*NC) + 4.0*rows + 3*8.0*rows };
}

// What of a row of n numbers does not fit in registers: a second pass reads it again.
static double spilled(double n, double kept) { return fmax(0.0, n - kept); }

// A warp keeps a row of LayerNorm in registers, as far as it fits.
static double norm_bytes(const Sizes *z, double floor) {
    return floor + R*2.0*z->N * spilled(z->C, 32.0*PACK * norm_kept(z->C));
}
static Work layernorm_work(const Sizes *z) {
    double floor = R*2.0*z->N*z->C + 8.0*z->N;
    return { 0.0, floor, norm_bytes(z, floor) };
}
static Work layernorm_backward_work(const Sizes *z) {
    double floor = R*4.0*z->N*z->C + 8.0*z->N;
    double parts = layernorm_grid((size_t)z->N, z->C, &z->gpu).blocks;     // partial sums, twice
    return { 0.0, floor, norm_bytes(z, floor) + 24.0*parts*z->C + 24.0*z->C };
}

static Work xent_work(const Sizes *z) {
    double kept = xent_grid(z->Vp, &z->gpu).kept;
    return { 0.0, R*2.0*z->N*z->V, R*z->N * (2.0*z->Vp + spilled(z->Vp, kept)) + 12.0*z->N };
}

// Logits that never leave the chip would be no bytes at all. As coded the first product writes
// them, cross-entropy reads and writes them, and two products read them.
static Work classifier_work(const Sizes *z) {
    double NC = z->N*z->C, VC = (double)z->V*z->C, VpC = (double)z->Vp*z->C;
    return { 6.0*NC*z->V, R * (2.0*NC + VC) + 8.0*VC,
             R * (3.0*z->N*z->Vp + 3.0*NC + 2.0*z->chunks*VpC) + 8.0*z->chunks*VpC
                 + xent_work(z).coded };
}

static Work once_work(const Sizes *z) { return same_bytes(0.0, 4.0*z->params); }

// Four arrays of fp32 are read and three written, and the parameters again as layers read them.
static Work adamw_work(const Sizes *z) {
    return same_bytes(0.0, (sizeof(real) < sizeof(float) ? 28.0 + R : 28.0) * z->params);
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
    Work (*work)(const Sizes *);
    void (*run)(const Site *);
} Part;

static const Part parts[] = {
    { "embedding", 0, 1, embedding_work, [](const Site *s) {
        embedding_forward(s->m->x_in, s->m->batch.inputs, s->m->w.wte, s->m->w.wpe, s->B, s->T,
                          s->C, s->g->stream); } },
    { "layernorm", 2, 1, layernorm_work, [](const Site *s) {
        layernorm_forward(s->a.ln2, s->a.ln2_mean, s->a.ln2_rstd, s->a.x_mid, s->w.ln2_gain,
                          s->w.ln2_bias, s->N, s->C, s->g->stream); } },
    { "qkv", 1, 0, rows_work<1, 3>, [](const Site *s) {
        linear_forward(s->a.qkv, s->a.ln1, s->w.qkv_w, s->w.qkv_b, s->N, s->C, 3*s->C, s->g); } },
    { "attention", 1, 0, attention_work, [](const Site *s) {
        attention_forward(s->a.att, s->a.att_lse, s->a.qkv, s->B, s->T, 0, s->C, s->m->c.NH,
                          s->g); } },
    { "att_proj", 1, 0, rows_work<1, 1, 1>, [](const Site *s) {          // reads the residual
        linear_residual_forward(s->a.x_mid, s->a.x, s->a.att, s->w.att_proj_w, s->w.att_proj_b,
                                s->N, s->C, s->C, s->g); } },
    { "fc and gelu", 1, 0, rows_work<1, 4, 4>, [](const Site *s) {       // before GELU, and after
        linear_gelu_forward(s->a.gelu, s->a.fc, s->a.ln2, s->w.fc_w, s->w.fc_b, s->N, s->C,
                            4*s->C, s->g); } },
    { "mlp_proj", 1, 0, rows_work<4, 1, 1>, [](const Site *s) {          // reads the residual
        linear_residual_forward(s->a.x_out, s->a.x_mid, s->a.gelu, s->w.mlp_proj_w,
                                s->w.mlp_proj_b, s->N, 4*s->C, s->C, s->g); } },
    { "classifier, both ways", 0, 1, classifier_work, [](const Site *s) {
        Model *m = s->m;
        classifier_backward(m->dx_branch, m->dw.wte, m->loss, m->lse, m->logits, m->lnf, m->w.wte,
                            m->batch.targets, m->batch.scale, s->N, m->logit_rows, s->C, m->c.V,
                            m->padded.V, s->g); } },
    { "  cross-entropy in it", INSIDE, 1, xent_work, [](const Site *s) {
        Model *m = s->m;
        for (size_t n = 0; n < s->N; n += m->logit_rows)
            xent_forward_backward(m->loss + n, m->lse + n, m->logits, m->batch.targets + n,
                                  m->batch.scale, min_size(m->logit_rows, s->N - n), m->c.V,
                                  m->padded.V, s->g); } },
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
        weight_gradient(s, s->d.fc_w, s->m->dfc, s->a.ln2, s->C, 4*s->C); } },
    { "layernorm, back", 2, 1, layernorm_backward_work, [](const Site *s) {
        layernorm_backward(s->m->dx, s->d.ln2_gain, s->d.ln2_bias, s->d.mlp_proj_b, s->m->dx,
                           s->m->dx_branch, s->a.x_mid, s->a.ln2_mean, s->a.ln2_rstd,
                           s->w.ln2_gain, s->N, s->C, s->g); } },
    { "att_proj, data", 1, 0, rows_work<1, 1>, [](const Site *s) {
        data_gradient(s, s->m->dx_branch, s->m->dx, s->w.att_proj_w, s->C, s->C); } },
    { "att_proj, weight", 1, 0, weight_work<1, 1>, [](const Site *s) {
        weight_gradient(s, s->d.att_proj_w, s->m->dx, s->a.att, s->C, s->C); } },
    { "attention, back", 1, 0, attention_backward_work, [](const Site *s) {
        attention_backward(s->m->dqkv, s->d.qkv_b, s->m->att_rows, s->m->dx_branch, s->a.qkv,
                           s->a.att, s->a.att_lse, s->B, s->T, s->C, s->m->c.NH, s->g); } },
    { "qkv, data", 1, 0, rows_work<3, 1>, [](const Site *s) {
        data_gradient(s, s->m->dx_branch, s->m->dqkv, s->w.qkv_w, s->C, 3*s->C); } },
    { "qkv, weight", 1, 0, weight_work<1, 3>, [](const Site *s) {
        weight_gradient(s, s->d.qkv_w, s->m->dqkv, s->a.ln1, s->C, 3*s->C); } },
    { "embedding, back", 0, 1, embedding_backward_work, [](const Site *s) {
        Model *m = s->m;
        embedding_backward(m->dw.wte, m->dw.wpe, m->dx, m->batch.inputs, m->batch.order,
                           m->batch.begin, s->words, s->B, s->T, s->C, s->g->stream); } },
    { "gradients to zero", 0, 1, once_work, [](const Site *s) { clear_grads(s->m); } },
    { "global norm", 0, 1, once_work, [](const Site *s) { gradients_squares(s->m); } },
    { "AdamW", 0, 1, adamw_work, [](const Site *s) {
        AdamW o = { 1e-9f, 0.9f, 0.95f, 1e-8f, 0.1f, 1, 1 };
        adamw_launch(&s->m->zero, o, s->m->g_scale); } },
};

static int part_calls(const Part *p, int L) {
    return p->a_layer > 0 ? p->a_layer*L + p->once : p->once;
}

static Sizes sizes_make(const Config *c, int B, int T, double words, const cudaDeviceProp *gpu) {
    Config padded = *c;
    padded.V = (int)blocks_for(c->V, VOCAB_UNIT) * VOCAB_UNIT;
    size_t N = (size_t)B*T;
    size_t rows = logits_chunk_rows(N, padded.V, c->C, sizeof(real), gpu->multiProcessorCount);
    return { T, c->C, c->NH, c->V, padded.V, (double)N, words,
             (double)((N + rows - 1) / rows), (double)gpt2_n_params(&padded), *gpu };
}

// Needs no GPU; grids and chunks of logits are those of an H100. Of V tokens at random N draws
// leave out each with probability (1 - 1/V)^N.
static void show_bytes(const Config *c, int B, int T) {
    double words = c->V * (1.0 - pow(1.0 - 1.0/c->V, (double)B*T)), coded = 0.0, floors = 0.0;
    cudaDeviceProp gpu = {};
    gpu.multiProcessorCount = 132;
    gpu.sharedMemPerMultiprocessor = 228 << 10;
    gpu.sharedMemPerBlockOptin = 227 << 10;
    Sizes z = sizes_make(c, B, T, words, &gpu);
    printf("%d layers, %d heads, %d channels, vocabulary %d, T=%d, micro-batch %d, " PRECISION
           ": MB that the kernels of an update read and write\n  %-24s %5s %12s %12s %7s\n", c->L,
           c->NH, c->C, c->V, T, B, "", "calls", "bytes", "floor", "ratio");
    for (const Part &p : parts) {
        Work w = p.work(&z);
        int calls = part_calls(&p, c->L);
        if (p.a_layer != INSIDE) coded += w.coded * calls;
        if (p.a_layer != INSIDE) floors += w.floor * calls;
        printf("  %-24s %5d %12.1f %12.1f %7.2f\n", p.name, calls, 1e-6 * w.coded * calls,
               1e-6 * w.floor * calls, w.coded / w.floor);
    }
    printf("  %-24s %5s %12.1f %12.1f %7.2f\n", "all of them", "", 1e-6 * coded, 1e-6 * floors,
           coded / floors);
}

// Seconds of one call, the mean over the layers; and the floor.
static double part_seconds(Bench *b, const Part *p, const Site *sites, double *floor) {
    int calls = p->a_layer > 0 ? b->c.L : 1;
    Work work = p->work(&sites[0].sizes);
    *floor = fmax(work.flops / b->product_flops, work.floor / b->copy_bytes);
    return cold_seconds(b, [&] { for (int l = 0; l < calls; l++) p->run(&sites[l]); }) / calls;
}

static void bench_parts(Bench *b, const Site *sites, double step) {
    double sum = 0.0, floors = 0.0;
    b->rows = 0;
    for (const Part &p : parts) {
        double floor, one = part_seconds(b, &p, sites, &floor);
        double bytes = p.work(&sites[0].sizes).coded;
        int calls = part_calls(&p, b->c.L);
        if (p.a_layer != INSIDE) sum += one * calls;
        if (p.a_layer != INSIDE) floors += floor * calls;
        printf("  %-24s %5d %10.3f %10.3f %7.2f %10.1f %10.1f\n", p.name, calls, 1e3 * one * calls,
               1e3 * floor * calls, one / floor, 1e-6 * bytes * calls, 1e-9 * bytes / one);
        fprintf(b->json, "%s\n  {\"name\": \"%s\", \"inside\": %s, \"calls\": %d, "
                "\"ms\": %.6g, \"floor_ms\": %.6g, \"bytes\": %.9g}",
                next(b), p.name + strspn(p.name, " "),
                p.a_layer == INSIDE ? "true" : "false", calls, 1e3 * one * calls,
                1e3 * floor * calls, bytes * calls);
        fflush(stdout);
    }
    printf("  %-24s %5s %10.3f %10.3f %7.2f\n", "all of them", "", 1e3 * sum, 1e3 * floors,
           sum / floors);
    printf("  %-24s %5s %10.3f %10.3f %7.2f\n", "the step as a whole", "", 1e3 * step,
           1e3 * floors, step / floors);
    fprintf(b->json, "],\n \"launchers_B\": %d, \"launchers_ms\": %.6g, \"floors_ms\": %.6g, "
            "\"step_ms\": %.6g,\n \"products\": [", b->B, 1e3 * sum, 1e3 * floors, 1e3 * step);
}

// ---- products: each of the step's ----

// A product in words: its shape, layouts, type, epilogue.
typedef struct { char text[120]; } ProductName;
static ProductName product_name(const ProductKey *k) {
    static const char *const epilogues[] = { "plain", "bias", "bias-residual", "bias-gelu",
                                             "gelu-gradient" };
    ProductName name;
    snprintf(name.text, sizeof name.text, "%zux%zux%zu a %s%zu b %s%zu c %zu %s %s", k->M, k->N,
             k->K, k->op_a == CUBLAS_OP_T ? "T" : "", k->lda, k->op_b == CUBLAS_OP_T ? "T" : "",
             k->ldb, k->ldc, k->type_c == CUDA_R_32F ? "fp32" : "bf16", epilogues[k->epilogue]);
    return name;
}

// Operands of any product, random.
typedef struct { char *a, *b, *other, *vector, *c; } Scratch;

// What the epilogue of a product does, by kernels.
static void epilogue_apart(const ProductKey *k, const Scratch *x, Gpu *g) {
    real *c = (real *)x->c, *other = (real *)x->other;
    size_t n = k->M*k->N;
    if (k->epilogue == ADD_BIAS || k->epilogue == ADD_BIAS_GELU || k->epilogue == ADD_BIAS_RESIDUAL)
        bias_forward_kernel<<<blocks_for(n, 256*PACK), 256, 0, g->stream>>>(
            c, (real *)x->vector, k->epilogue == ADD_BIAS_RESIDUAL ? other : NULL, n, (int)k->N);
    if (k->epilogue == ADD_BIAS_GELU) gelu_forward(other, c, n, g->stream);
    if (k->epilogue == GELU_GRADIENT) gelu_backward(c, c, other, n, g->stream);
    LAUNCH_CHECK();
}

// A product with its epilogue, or plain with kernels for it. Weight gradients are added. A plain
// product gets no pointers: cuBLASLt refuses those that its epilogue does not read.
static double product_seconds(Bench *b, const ProductKey *k, bool fused, const Scratch *x) {
    Gpu *g = &b->gpu;
    ProductKey key = *k;
    if (!fused) key.epilogue = NO_EPILOGUE;
    Product *p = product_find(&key, g);
    bool residual = key.epilogue == ADD_BIAS_RESIDUAL, adds = k->op_a == CUBLAS_OP_T || residual;
    Operands o = { x->c, x->a, x->b, residual ? x->other : x->c, adds ? 1.0f : 0.0f, x->vector,
                   x->other };
    product_set_pointers(p, epilogue_reads_vector(key.epilogue) ? x->vector : NULL,
                         epilogue_reads_other(key.epilogue) ? x->other : NULL);
    return cold_seconds(b, [&] {
        CUBLAS_CHECK(product_launch(p, &o, g));
        if (!fused) epilogue_apart(k, x, g);
    });
}

static void bench_product(Bench *b, const ProductKey *k, const Scratch *x) {
    ProductName name = product_name(k);
    if (!product_find(k, &b->gpu)->found) return;            // cuBLASLt has none
    double s = product_seconds(b, k, true, x), flops = 2.0*(double)k->M*(double)k->N*(double)k->K/s;
    double apart = k->epilogue == NO_EPILOGUE ? NAN : product_seconds(b, k, false, x);
    printf("  %8.3f %8.1f %5.1f%% %8.3f  %s\n", 1e3 * s, 1e-12 * flops,
           100.0 * flops / b->product_flops, 1e3 * apart, name.text);
    fprintf(b->json, "%s\n  {\"product\": \"%s\", \"ms\": %.6g, \"tflops\": %.6g",
            next(b), name.text, 1e3 * s, 1e-12 * flops);
    if (isfinite(apart)) fprintf(b->json, ", \"apart_ms\": %.6g", 1e3 * apart);
    fputs("}", b->json);
    fflush(stdout);
}

static void bench_products(Bench *b) {
    Gpu *g = &b->gpu;
    ProductKey keys[MAX_PRODUCTS];
    size_t a_size = 0, b_size = 0, c_size = 0, columns = 0;
    auto grow = [](size_t *size, size_t n) { if (n > *size) *size = n; };
    int n = g->n_products;
    for (int i = 0; i < n; i++) {
        const ProductKey k = keys[i] = g->products[i].key;
        grow(&a_size, k.M*k.K);
        grow(&b_size, k.K*k.N);
        grow(&c_size, k.M*k.N);
        grow(&columns, k.N);
    }
    Scratch x = { random_memory(R*a_size, g), random_memory(R*b_size, g),
                  random_memory(R*c_size, g), random_memory(4*columns, g),   // perhaps of fp32,
                  random_memory(4*c_size, g) };                              // as c is
    b->rows = 0;
    printf("\nproducts of a step, micro-batch %d: milliseconds of one; the plain product with "
           "kernels in\nplace of its epilogue\n  %8s %8s %6s %8s  M x N x K, rows\n", b->B, "ms",
           "TFLOP/s", "peak", "apart");
    for (int i = 0; i < n; i++) bench_product(b, &keys[i], &x);
    fputs("]}\n", b->json);
    for (char *array : { x.a, x.b, x.other, x.vector, x.c }) CUDA_CHECK(cudaFree(array));
}

static void bench_launchers(Bench *b, int B) {
    for (int i = 0; i < b->gpu.n_products && i < MAX_PRODUCTS; i++)
        product_free(&b->gpu.products[i]);
    b->gpu.n_products = 0;                       // those of other micro-batches, of the ceiling
    if (!bench_open(b, B, RECOMPUTE_NONE)) die("memory: it was there before");
    double step = steps_median(b);
    int words = send_order(&b->m, (size_t)B*b->T);
    Site *sites = (Site *)alloc_or_die(b->c.L * sizeof *sites, "a table of launchers' arguments");
    Model *m = &b->m;
    for (int l = 0; l < b->c.L; l++)
        sites[l] = { m, &b->gpu, m->acts[l], m->w.block[l], m->dw.block[l], words, B, b->T, b->c.C,
                     (size_t)B*b->T, sizes_make(&b->c, B, b->T, words, &b->gpu.properties) };
    printf("\nlaunchers of a step, micro-batch %d: milliseconds a step, and their floor; MB that "
           "they move\n  %-24s %5s %10s %10s %7s %10s %10s\n", B, "", "calls", "ms", "floor",
           "ratio", "MB", "GB/s");
    bench_parts(b, sites, step);
    bench_products(b);
    free(sites);
    model_free(&b->m);
}

// ---- main ----

static void parse_model(Bench *b, const char *text) {
    Config *c = &b->c;
    int read = 0;
    bool whole = sscanf(text, "%d,%d,%d,%d,%d%n", &c->L, &c->NH, &c->C, &c->V, &b->T, &read) == 5
              && text[read] == '\0';
    if (!whole || c->L < 1 || c->NH < 1 || c->C < 1 || c->V < 1 || b->T < 1 || c->C % c->NH)
        die("--model: L,NH,C,V,T are expected, five numbers, with heads that divide the channels");
    c->P = b->T;
}

static void parse(Bench *b, int argc, char **argv) {
    b->c = { 12, 12, 768, 50257, b->T = 1024, 0 };
    for (int i = 1; i < argc; i++) {
        char *rest;
        long B = strtol(argv[i], &rest, 10);
        if (strcmp(argv[i], "--bytes") == 0) b->only_bytes = true;
        else if (strcmp(argv[i], "--model") == 0) parse_model(b, i + 1 < argc ? argv[++i] : "");
        else if (*rest || B < 1 || B > 65536 || b->n_batches == MAX_BATCHES)
            die("'%s': expected a micro-batch from 1 to 65536, at most %d of them", argv[i],
                MAX_BATCHES);
        else b->batches[b->n_batches++] = (int)B;
    }
    bool none = b->n_batches == 0;
    for (int B = 1; none && B <= 64; B *= 2) b->batches[b->n_batches++] = B;
}

static void draw_tokens(Bench *b) {
    size_t most = 0;
    for (int i = 0; i < b->n_batches; i++) most = b->batches[i] > (int)most ? b->batches[i] : most;
    size_t n = most * b->T;
    Rng rng = rng_make(1, 1);
    b->inputs = (int *)alloc_or_die(2*n * sizeof(int), "a batch");
    b->targets = b->inputs + n;
    for (size_t i = 0; i < 2*n; i++) b->inputs[i] = (int)rng_below(&rng, (uint64_t)b->c.V);
}

int main(int argc, char **argv) {
    static Bench b;
    *program_name() = "bench_cuda";
    parse(&b, argc, argv);
    if (b.only_bytes) {
        for (int i = 0; i < b.n_batches; i++) show_bytes(&b.c, b.batches[i], b.T);
        return 0;
    }
    Comm alone;
    TrainOptions options;
    memset(&alone, 0, sizeof alone);
    memset(&options, 0, sizeof options);
    alone.size = alone.local_size = 1;
    machine_open(&b.gpu, &options, &alone);
    CUDA_CHECK(cudaEventCreate(&b.begin));
    CUDA_CHECK(cudaEventCreate(&b.end));
    if (!(b.json = fopen("bench_cuda.json", "w")))
        die("bench_cuda.json: cannot be written here: %s", strerror(errno));
    draw_tokens(&b);
    show_ceilings(&b);
    int B = bench_all_steps(&b);
    if (B == 0) die("memory: not even the first micro-batch fits");
    bench_launchers(&b, B);
    if (fclose(b.json) != 0) die("bench_cuda.json: cannot be written here: %s", strerror(errno));
    CUDA_CHECK(cudaEventDestroy(b.begin));
    CUDA_CHECK(cudaEventDestroy(b.end));
    free(b.inputs);
    machine_close(&b.gpu);
    return 0;
}
