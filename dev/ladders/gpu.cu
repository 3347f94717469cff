// What the GPU programs of this folder share: the trainer of GPUs, one GPU for one rank, an update
// of a model, and times.
#include "../base/base.h"
#define main static train_gpt2_main    // not called: what it alone needs is not compiled
#include "../../train_gpt2.cu"
#undef main
#include <algorithm>

static inline void gpu_open(Machine *g) {
    static Comm alone;
    static TrainOptions options;
    (void)train_gpt2_main;
    alone.size = alone.local_size = 1;
    machine_open(g, &options, &alone);
}

// What is measured: a model, and B sequences of T tokens.
typedef struct { Config c; int T, B; } ModelShape;

// L,NH,C,V,T as text.
static inline void shape_parse(ModelShape *s, const char *text, const char *name) {
    Config *c = &s->c;
    int read = 0, n = sscanf(text, "%d,%d,%d,%d,%d%n", &c->L, &c->NH, &c->C, &c->V, &s->T, &read);
    if (n != 5 || text[read] || c->L < 1 || c->NH < 1 || c->C < 1 || c->V < 1 || s->T < 1 ||
        c->C % c->NH != 0)
        die("%s: L,NH,C,V,T are expected, five numbers, with heads that divide the channels", name);
    c->P = s->T;
}

static inline int *random_tokens(size_t n, int V) {
    int *tokens = (int *)alloc_or_die(n * sizeof(int), "a batch");
    Rng rng = rng_make(1, 1);
    for (size_t i = 0; i < n; i++) tokens[i] = (int)rng_below(&rng, (uint64_t)V);
    return tokens;
}

// Update `step`, which counts from 1, of one micro-batch, as the trainer makes it: forward,
// backward, global norm, AdamW.
static inline void update(Model *m, const int *inputs, const int *targets, int B, int T, int step) {
    AdamW o = { 1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, (double)step, (double)step };
    clear_grads(m);
    model_micro_step(m, inputs, targets, 1.0f / (float)(B*T), B, T);
    gradients_squares(m);
    totals_collect(m);
    gradients_clip(m, 1.0);
    model_update(m, o);
    double norm = sqrt(totals_receive(m).squares);
    if (!isfinite(norm)) die("step %d: the gradient's norm is %g", step, norm);
    gpu_wait(m->gpu);
}

// ---- times: medians, without the first few, which load kernels ----

enum { WARMUPS = 3, REPEATS = 9 };

// `measure` returns seconds.
template <class Measure> static double median_of(Measure measure) {
    double seconds[WARMUPS + REPEATS], *kept = seconds + WARMUPS;
    for (double &s : seconds) s = measure();
    std::sort(kept, kept + REPEATS);
    return kept[REPEATS / 2];
}

// Seconds of `work` on the GPU, each time after `before`.
template <class Before, class Work>
static double median_seconds(Gpu *g, Before before, Work work) {
    return median_of([&] {
        before();
        return seconds_of(g, work);
    });
}

// Bytes a second, both those read and those written, of copies of 2 GB or what there is room for.
static inline double copy_speed(Gpu *g) {
    size_t bytes = (size_t)2 << 30, free_bytes, total;
    char *from;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
    while (2*bytes > free_bytes / 4) bytes /= 2;
    size_t n = 2*bytes / sizeof(real);
    CUDA_CHECK(cudaMalloc((void **)&from, 2*bytes));
    random_fill_kernel<<<blocks_for(n, 256), 256, 0, g->stream>>>((real *)from, n);
    LAUNCH_CHECK();
    double seconds = median_seconds(g, [] {}, [&] {
        CUDA_CHECK(cudaMemcpyAsync(from + bytes, from, bytes, cudaMemcpyDeviceToDevice, g->stream));
    });
    CUDA_CHECK(cudaFree(from));
    return 2.0 * (double)bytes / seconds;
}
