// make bench-cuda: what a training step costs on this GPU, launcher by launcher.
//
//     build/bench_cuda                            GPT-2 124M, T=1024, micro-batches 1, 2, 4 ... 64
//     build/bench_cuda 8 16                       these micro-batches
//     build/bench_cuda --model 2,2,64,300,32 1    another L,NH,C,V,T, and a micro-batch of 1
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
#define PROGRAM "bench_cuda"           // what die() says, whatever train_gpt2.cu calls itself
#include "../base/error.h"
#undef PROGRAM
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
    float *params;                     // of a fresh model
    double product_flops, copy_bytes;  // the ceilings, a second
    double datasheet_flops;            // 0: not known
    cudaEvent_t begin, end;
    FILE *json;                        // goes to json_text, and in the end to a file
    char *json_text;
    size_t json_bytes;
    int rows;                          // of the list that is being written
} Bench;

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n) {
    qsort(x, n, sizeof *x, ascending);
    return n % 2 ? x[n/2] : 0.5 * (x[n/2 - 1] + x[n/2]);
}

// ---- ceilings ----

static double product_speed(Gpu *g) {
    double flops[5];
    for (double &x : flops) x = matmul_peak_flops(g);
    return median(flops, 5);
}

// Bytes a second, both those read and those written, of copies of 2 GB or what there is room for.
static double copy_speed(Bench *b) {
    size_t bytes = (size_t)2 << 30, free_bytes, total;
    double seconds[WARMUPS + REPEATS];
    char *from;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
    while (2*bytes > free_bytes / 4) bytes /= 2;
    CUDA_CHECK(cudaMalloc((void **)&from, 2*bytes));
    size_t n = bytes / sizeof(real);
    random_fill_kernel<<<blocks_for(n, 256), 256, 0, b->gpu.stream>>>((real *)from, n);
    LAUNCH_CHECK();
    for (double &s : seconds) {
        CUDA_CHECK(cudaEventRecord(b->begin, b->gpu.stream));
        CUDA_CHECK(cudaMemcpyAsync(from + bytes, from, bytes, cudaMemcpyDeviceToDevice,
                                   b->gpu.stream));
        CUDA_CHECK(cudaEventRecord(b->end, b->gpu.stream));
        gpu_wait(&b->gpu);
        s = gpu_seconds(b->begin, b->end);
    }
    CUDA_CHECK(cudaFree(from));
    return 2.0 * (double)bytes / median(seconds + WARMUPS, REPEATS);
}

static void show_ceilings(Bench *b) {
    const cudaDeviceProp *p = &b->gpu.properties;
    b->product_flops = product_speed(&b->gpu);
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
    Shards *z = &b->m.shards;
    for (int i = 0; i < gpt2_n_buckets(&b->c); i++) {
        Range bucket = gpt2_bucket(&b->c, i);
        memcpy(shards_place(z, KEPT_WEIGHTS, i), b->params + bucket.begin,
               bucket.count * sizeof(float));
        shards_keep(z, KEPT_WEIGHTS, i);
    }
    shards_loaded(z);
    return true;
}

// Seconds of update `step`, which counts from 1.
static double step_seconds(Bench *b, int step) {
    Model *m = &b->m;
    size_t N = (size_t)b->B*b->T;
    AdamW o = { 1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.0 };
    double start = seconds_now();
    clear_grads(m);
    model_micro_step(m, b->inputs, b->targets, 1.0f / (float)N, b->B, b->T);
    double norm = sqrt(model_update(m, o, 1.0, step, THIS_RANK).squares);
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
            "\"memory_mb\": %.6g}", b->rows++ ? "," : "", b->B, recompute,
            1e3 * s, tok_per_s, flops / b->product_flops,
            b->datasheet_flops > 0.0 ? flops / b->datasheet_flops : 0.0, mb);
    fflush(stdout);
}

// What the driver counts beside the model: its context and kernels, cuBLASLt's workspace, the
// scratch; and whatever else runs on this GPU.
static double other_megabytes(const Bench *b) {
    size_t free_bytes, total;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
    return megabytes(total - free_bytes - b->m.memory.used);
}

// All micro-batches; returns the largest, up to 16, that keeps its activations, or 0.
static int bench_all_steps(Bench *b) {
    int chosen = 0;
    double other = 0.0;
    printf("\n%d layers, %d heads, %d channels, vocabulary %d, T=%d; one micro-batch an update\n"
           "%11s %9s %10s %12s %8s %10s %12s\n", b->c.L, b->c.NH, b->c.C, b->c.V, b->T,
           "micro-batch", "recompute", "ms a step", "tokens/s", "MFU", "datasheet", "MB of memory");
    for (int recompute = RECOMPUTE_NONE; recompute <= RECOMPUTE_BLOCK; recompute++)
        for (int i = 0; i < b->n_batches; i++) {
            if (!bench_open(b, b->batches[i], (Recompute)recompute)) break;
            bench_steps(b);
            other = other_megabytes(b);
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

// What one layer's launchers are called with, after a step has filled its buffers.
typedef struct {
    Model *m;
    Gpu *g;
    BlockActs a;
    Block<real> w;
    Block<float> d;
    const real *x;                     // what enters the block
    int words, B, T, C;                // words: distinct tokens of the batch
    size_t N;
} Site;

// What a launcher cannot do without. Bytes of `real` are counted in numbers.
typedef struct { double flops, reals, bytes; } Work;

static Work linear_work(const Site *s, double C, double OC) {
    double N = (double)s->N;
    return { 2.0*N*C*OC, N*C + C*OC + N*OC, 0.0 };
}

// Two products; dw is read and written, in fp32.
static Work linear_backward_work(const Site *s, double C, double OC) {
    double N = (double)s->N;
    return { 4.0*N*C*OC, N*OC + N*C + C*OC + N*C, 8.0*C*OC };
}

static Work embedding_forward_part(const Site *s) {
    real *bucket = params_of(s->m, 0, -1);
    embedding_forward(s->m->x_in, s->m->batch.inputs, tensor_in(bucket, &s->m->padded, WTE),
                      tensor_in(bucket, &s->m->padded, WPE), s->B, s->T, 0, s->C, s->g->stream);
    return { 0.0, (double)s->C * ((double)s->N + s->words + s->T), 4.0 * (double)s->N };
}

static Work qkv_forward_part(const Site *s) {
    linear_forward(s->a.qkv, s->a.ln1, s->w.qkv_w, s->w.qkv_b, s->N, s->C, 3*s->C, s->g);
    return linear_work(s, s->C, 3.0*s->C);
}

// A query sees (T+1)/2 keys on the average; forward there are two products, backward five.
static Work attention_forward_part(const Site *s) {
    int NH = s->m->c.NH;
    attention_forward(s->a.att, s->a.att_lse, s->a.qkv, s->B, s->T, 0, s->C, NH, s->g->stream);
    double N = (double)s->N;
    return { 2.0 * N*s->C * (s->T + 1), 4.0*N*s->C, 4.0*N*NH };
}

static Work att_proj_forward_part(const Site *s) {
    linear_residual_forward(s->a.x_mid, s->x, s->a.att, s->w.att_proj_w, s->w.att_proj_b, s->N,
                            s->C, s->C, s->g);
    Work work = linear_work(s, s->C, s->C);
    work.reals += (double)s->N*s->C;             // the residual
    return work;
}

static Work layernorm_forward_part(const Site *s) {
    layernorm_forward(s->a.ln2, s->a.ln2_mean, s->a.ln2_rstd, s->a.x_mid, s->w.ln2_gain,
                      s->w.ln2_bias, s->N, s->C, s->g->stream);
    return { 0.0, 2.0 * (double)s->N*s->C, 8.0 * (double)s->N };
}

static Work fc_gelu_forward_part(const Site *s) {
    linear_gelu_forward(s->a.gelu, s->a.fc, s->a.ln2, s->w.fc_w, s->w.fc_b, s->N, s->C, 4*s->C,
                        s->g);
    Work work = linear_work(s, s->C, 4.0*s->C);
    work.reals += (double)s->N * 4.0*s->C;       // before GELU and after it
    return work;
}

static Work mlp_proj_forward_part(const Site *s) {
    linear_residual_forward(s->a.x_out, s->a.x_mid, s->a.gelu, s->w.mlp_proj_w, s->w.mlp_proj_b,
                            s->N, 4*s->C, s->C, s->g);
    Work work = linear_work(s, 4.0*s->C, s->C);
    work.reals += (double)s->N*s->C;             // the residual
    return work;
}

// Logits that never leave the chip would be no bytes at all.
static Work classifier_part(const Site *s) {
    Model *m = s->m;
    classifier_backward(m->dx_branch, tensor_in(shards_grads(&m->shards, 0), &m->padded, WTE),
                        m->loss, m->lse, m->logits, m->lnf,
                        tensor_in(params_of(m, 0, -1), &m->padded, WTE), m->batch.targets,
                        m->batch.scale, s->N, m->logit_rows, s->C, s->m->c.V, m->padded.V, s->g);
    double NC = (double)s->N*s->C, VC = (double)s->m->c.V*s->C;
    return { 6.0 * NC*s->m->c.V, 2.0*NC + VC, 8.0*VC };
}

static Work xent_part(const Site *s) {
    Model *m = s->m;
    for (size_t n = 0; n < s->N; n += m->logit_rows)
        xent_forward_backward(m->loss + n, m->lse + n, m->logits, m->batch.targets + n,
                              m->batch.scale, min_size(m->logit_rows, s->N - n), s->m->c.V,
                              m->padded.V, s->g->stream);
    return { 0.0, 2.0 * (double)s->N*s->m->c.V, 0.0 };
}

static Work mlp_proj_backward_part(const Site *s) {
    gelu_linear_backward(s->m->dfc, s->d.mlp_proj_w, s->d.mlp_proj_b, s->m->dx, s->a.gelu, s->a.fc,
                         s->w.mlp_proj_w, s->N, 4*s->C, s->C, s->g);
    Work work = linear_backward_work(s, 4.0*s->C, s->C);
    work.reals += (double)s->N * 4.0*s->C;       // what GELU's gradient is taken at
    return work;
}

static Work fc_backward_part(const Site *s) {
    linear_backward(s->m->dx_branch, s->d.fc_w, s->d.fc_b, s->m->dfc, s->a.ln2, s->w.fc_w, s->N,
                    s->C, 4*s->C, s->g);
    return linear_backward_work(s, s->C, 4.0*s->C);
}

static Work layernorm_backward_part(const Site *s) {
    layernorm_backward(s->m->dx, s->d.ln2_gain, s->d.ln2_bias, s->m->dx, s->m->dx_branch,
                       s->a.x_mid, s->a.ln2_mean, s->a.ln2_rstd, s->w.ln2_gain, s->N, s->C, s->g);
    return { 0.0, 4.0 * (double)s->N*s->C, 8.0 * (double)s->N };
}

static Work att_proj_backward_part(const Site *s) {
    linear_backward(s->m->dx_branch, s->d.att_proj_w, s->d.att_proj_b, s->m->dx, s->a.att,
                    s->w.att_proj_w, s->N, s->C, s->C, s->g);
    return linear_backward_work(s, s->C, s->C);
}

static Work attention_backward_part(const Site *s) {
    int NH = s->m->c.NH;
    attention_backward(s->m->dqkv, s->m->att_rows, s->m->dx_branch, s->a.qkv, s->a.att,
                       s->a.att_lse, s->B, s->T, s->C, NH, s->g->stream);
    double N = (double)s->N;
    return { 5.0 * N*s->C * (s->T + 1), 8.0*N*s->C, 4.0*N*NH };
}

static Work qkv_backward_part(const Site *s) {
    linear_backward(s->m->dx_branch, s->d.qkv_w, s->d.qkv_b, s->m->dqkv, s->a.ln1, s->w.qkv_w, s->N,
                    s->C, 3*s->C, s->g);
    return linear_backward_work(s, s->C, 3.0*s->C);
}

static Work embedding_backward_part(const Site *s) {
    Model *m = s->m;
    float *bucket = shards_grads(&m->shards, 0);
    embedding_backward(tensor_in(bucket, &m->padded, WTE), tensor_in(bucket, &m->padded, WPE),
                       m->dx, m->batch.inputs, m->batch.order, m->batch.begin, s->words, s->B, s->T,
                       s->C, s->g->stream);
    return { 0.0, (double)s->N*s->C, 8.0 * (double)s->C * (s->words + s->T) + 8.0*(double)s->N };
}

static Work zero_part(const Site *s) {
    clear_grads(s->m);
    return { 0.0, 0.0, 4.0 * (double)gpt2_n_params(&s->m->padded) };
}

static Work norm_part(const Site *s) {
    gradients_squares(s->m);
    return { 0.0, 0.0, 4.0 * (double)gpt2_n_params(&s->m->padded) };
}

// Four arrays of fp32 are read and three written, and the parameters again as layers read them.
static Work adamw_part(const Site *s) {
    AdamW o = { 1e-9f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.0 };
    adamw_launch(&s->m->shards, o, { s->m->totals, 1, 0.0 }, 1);
    double n = (double)gpt2_n_params(&s->m->padded);
    return { 0.0, sizeof(real) < sizeof(float) ? n : 0.0, 28.0*n };
}

// A step calls it a_layer times for each layer and `once` times besides; INSIDE marks what is part
// of the line above, and not of the sum.
enum { INSIDE = -1 };
typedef struct { const char *name; int a_layer, once; Work (*run)(const Site *); } Part;

static const Part parts[] = {
    { "embedding", 0, 1, embedding_forward_part },
    { "layernorm", 2, 1, layernorm_forward_part },
    { "qkv", 1, 0, qkv_forward_part },
    { "attention", 1, 0, attention_forward_part },
    { "att_proj", 1, 0, att_proj_forward_part },
    { "fc and gelu", 1, 0, fc_gelu_forward_part },
    { "mlp_proj", 1, 0, mlp_proj_forward_part },
    { "classifier, both ways", 0, 1, classifier_part },
    { "  cross-entropy in it", INSIDE, 1, xent_part },
    { "mlp_proj and gelu, back", 1, 0, mlp_proj_backward_part },
    { "fc, back", 1, 0, fc_backward_part },
    { "layernorm, back", 2, 1, layernorm_backward_part },
    { "att_proj, back", 1, 0, att_proj_backward_part },
    { "attention, back", 1, 0, attention_backward_part },
    { "qkv, back", 1, 0, qkv_backward_part },
    { "embedding, back", 0, 1, embedding_backward_part },
    { "gradients to zero", 0, 1, zero_part },
    { "global norm", 0, 1, norm_part },
    { "AdamW", 0, 1, adamw_part },
};

static Site site_make(Bench *b, int l, int words) {
    Model *m = &b->m;
    return { m, &b->gpu, m->acts[l], block_in(params_of(m, 1 + l, -1), &m->padded),
             block_in(shards_grads(&m->shards, 1 + l), &m->padded),
             l > 0 ? m->acts[l - 1].x_out : m->x_in,
             words, b->B, b->T, b->c.C, (size_t)b->B*b->T };
}

// Seconds of one call, the mean over the layers and of that the median; and the floor. Before each
// measurement all gradients are read, half a gigabyte for 124M: that empties the caches, and gives
// the CPU the time to launch ahead.
static double part_seconds(Bench *b, const Part *p, const Site *sites, double *floor) {
    double seconds[WARMUPS + REPEATS];
    int calls = p->a_layer > 0 ? b->c.L : 1;
    Work work = { 0.0, 0.0, 0.0 };
    for (double &s : seconds) {
        norm_part(&sites[0]);
        CUDA_CHECK(cudaEventRecord(b->begin, b->gpu.stream));
        for (int l = 0; l < calls; l++) work = p->run(&sites[l]);
        CUDA_CHECK(cudaEventRecord(b->end, b->gpu.stream));
        gpu_wait(&b->gpu);
        s = gpu_seconds(b->begin, b->end) / calls;
    }
    *floor = fmax(work.flops / b->product_flops,
                  (work.reals * sizeof(real) + work.bytes) / b->copy_bytes);
    return median(seconds + WARMUPS, REPEATS);
}

static void bench_parts(Bench *b, const Site *sites, double step) {
    double sum = 0.0, floors = 0.0;
    for (const Part &p : parts) {
        double floor, one = part_seconds(b, &p, sites, &floor);
        int calls = p.a_layer > 0 ? p.a_layer*b->c.L + p.once : p.once;
        if (p.a_layer != INSIDE) sum += one * calls;
        if (p.a_layer != INSIDE) floors += floor * calls;
        printf("  %-24s %5d %10.3f %10.3f %7.2f\n", p.name, calls, 1e3 * one * calls,
               1e3 * floor * calls, one / floor);
        fprintf(b->json, "%s\n  {\"name\": \"%s\", \"calls\": %d, \"ms\": %.6g, "
                "\"floor_ms\": %.6g}", &p == parts ? "" : ",", p.name + strspn(p.name, " "), calls,
                1e3 * one * calls, 1e3 * floor * calls);
        fflush(stdout);
    }
    printf("  %-24s %5s %10.3f %10.3f %7.2f\n", "all of them", "", 1e3 * sum, 1e3 * floors,
           sum / floors);
    printf("  %-24s %5s %10.3f %10.3f %7.2f\n", "the step as a whole", "", 1e3 * step,
           1e3 * floors, step / floors);
    fprintf(b->json, "],\n \"launchers_B\": %d, \"launchers_ms\": %.6g, \"floors_ms\": %.6g, "
            "\"step_ms\": %.6g}\n", b->B, 1e3 * sum, 1e3 * floors, 1e3 * step);
}

static void bench_launchers(Bench *b, int B) {
    if (!bench_open(b, B, RECOMPUTE_NONE)) die("memory: it was there before");
    double step = steps_median(b);
    int words = send_order(&b->m, b->inputs, (size_t)B*b->T);
    Site *sites = (Site *)alloc_or_die(b->c.L * sizeof *sites, "a table of launchers' arguments");
    for (int l = 0; l < b->c.L; l++) sites[l] = site_make(b, l, words);
    printf("\nlaunchers of a step, micro-batch %d: milliseconds a step, and their floor\n"
           "  %-24s %5s %10s %10s %7s\n", B, "", "calls", "ms", "floor", "ratio");
    bench_parts(b, sites, step);
    free(sites);
    model_free(&b->m);
}

// ---- main ----

static bool parse_model(Bench *b, const char *text) {
    Config *c = &b->c;
    int read = 0;
    bool whole = sscanf(text, "%d,%d,%d,%d,%d%n", &c->L, &c->NH, &c->C, &c->V, &b->T, &read) == 5
              && text[read] == '\0';
    c->P = b->T;
    return whole && c->L > 0 && c->NH > 0 && c->C > 0 && c->V > 0 && b->T > 0 && c->C % c->NH == 0;
}

static void parse(Bench *b, int argc, char **argv) {
    bool model = argc > 1 && strcmp(argv[1], "--model") == 0;
    b->c = { 12, 12, 768, 50257, 1024 };
    b->T = 1024;
    if (model && (argc < 3 || !parse_model(b, argv[2])))
        die("--model: L,NH,C,V,T are expected, five numbers, with heads that divide the channels");
    for (int i = model ? 3 : 1; i < argc; i++) {
        char *rest;
        long B = strtol(argv[i], &rest, 10);
        if (*rest || B < 1 || B > 65536)
            die("'%s': a micro-batch is expected, from 1 to 65536", argv[i]);
        if (b->n_batches == MAX_BATCHES) die("more than %d micro-batches", MAX_BATCHES);
        b->batches[b->n_batches++] = (int)B;
    }
    bool none = b->n_batches == 0;
    for (int B = 1; none && B <= 64; B *= 2) b->batches[b->n_batches++] = B;
}

static void draw_params(Bench *b) {
    size_t bytes = gpt2_n_params(&b->c) * sizeof(float);
    b->params = (float *)alloc_or_die(bytes, "a copy of the parameters");
    for (int i = 0; i < gpt2_n_buckets(&b->c); i++)
        gpt2_init_bucket(b->params + gpt2_bucket(&b->c, i).begin, &b->c, i, 1);
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

// At the end and at once, so that a run that breaks off leaves nothing half-written.
static void write_json(Bench *b) {
    FILE *f = fopen("bench_cuda.json", "w");
    bool kept = fclose(b->json) == 0 && f && fputs(b->json_text, f) >= 0;
    if (!f || fclose(f) != 0 || !kept)
        die("bench_cuda.json: cannot be written here: %s", strerror(errno));
    free(b->json_text);
}

int main(int argc, char **argv) {
    static Bench b;
    parse(&b, argc, argv);
    Comm alone;
    TrainOptions options;
    memset(&alone, 0, sizeof alone);
    memset(&options, 0, sizeof options);
    alone.size = alone.local_size = 1;
    options.graph = 1;
    machine_open(&b.gpu, &options, &alone);
    CUDA_CHECK(cudaEventCreate(&b.begin));
    CUDA_CHECK(cudaEventCreate(&b.end));
    if (!(b.json = open_memstream(&b.json_text, &b.json_bytes))) die("memory: none for results");
    draw_params(&b);
    draw_tokens(&b);
    show_ceilings(&b);
    int B = bench_all_steps(&b);
    if (B == 0) die("memory: not even the first micro-batch fits");
    bench_launchers(&b, B);
    write_json(&b);
    CUDA_CHECK(cudaEventDestroy(b.begin));
    CUDA_CHECK(cudaEventDestroy(b.end));
    free(b.inputs);
    free(b.params);
    machine_close(&b.gpu);
    return 0;
}
