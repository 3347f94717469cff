// The tuner: which algorithm of cuBLASLt computes a product, and whether with its epilogue, and
// which variant of a kernel of attention runs (variants.cu), chosen by measuring. Included by
// train_gpt2.cu in its section Matmul, whose Product and Gpu it uses; tune_run.h says when it
// measures, and keeps the choices.
//
//     product_choose(p, g)                    the algorithm: a choice that is known, or the
//                                             heuristic's first
//     fused_or_apart(g, fused, apart)         work that an epilogue may save
//     variant_run(kernel, shape, ...)         a kernel, in the variant that was chosen
//
// While g->tuner->measures, matmul measures each product that it meets for the first time, on the
// operands it got: their contents change, those of c above all. So does variant_run; attention
// writes the same results each time. Algorithm and variant decide the order of a sum and so its
// last bits: runs with the same choices have the same bits, others need not.
#include <algorithm>

enum { MAX_ALGORITHMS = 16, MAX_CHOICES = 128, TIMINGS = 5 };

// Another algorithm must save 1% to be taken: less is noise.
static const double TUNER_GAIN = 0.99;

// A product in words, the key of its choice: its shape, layouts, type, epilogue, and the
// multiprocessors it has where messages take some.
typedef struct { char text[120]; } ProductName;

// The kernels of attention that have variants, and all that the choice of one depends on.
enum AttentionKernel { FORWARD, BACKWARD, N_KERNELS };
typedef struct { int B, T, NH, HS; } AttentionShape;

// The variant of a kernel that runs, at the last shape it ran for. Number 0 is the default.
typedef struct { AttentionShape shape; int number; bool tuned; } Variant;

typedef struct {
    ProductName product;               // or the name of a kernel at a shape
    bool is_kernel;
    int variant;                       // of a kernel
    cublasLtMatmulAlgo_t algorithm;    // of a product
    bool usable;                       // false: plain product and kernel apart, in place of this
    bool used;                         // by this run
    int tried, failed;                 // candidates; those that did not start
    double seconds, first_seconds;     // of the choice, and of the heuristic's first
    double flops;
} Choice;

struct Tuner {
    Choice choices[MAX_CHOICES];
    Variant variants[N_KERNELS];
    int n;
    int measured, kernels_measured;    // products, kernels: by this program
    int refused;                       // by cublasLtMatmulAlgoCheck
    int unknown;                       // variants that this program does not have
    bool measures;
    Choice *last;                      // of the last product measured
    cudaEvent_t begin, end;
};

static void tuner_open(Gpu *g) {
    g->tuner = (Tuner *)alloc_or_die(sizeof *g->tuner, "a table of choices");
    memset(g->tuner, 0, sizeof *g->tuner);
    CUDA_CHECK(cudaEventCreate(&g->tuner->begin));
    CUDA_CHECK(cudaEventCreate(&g->tuner->end));
}

static void tuner_close(Gpu *g) {
    if (!g->tuner) return;
    CUDA_CHECK(cudaEventDestroy(g->tuner->begin));
    CUDA_CHECK(cudaEventDestroy(g->tuner->end));
    free(g->tuner);
    g->tuner = NULL;
}

static bool tuner_measures(const Gpu *g) { return g->tuner && g->tuner->measures; }

// ---- choices ----

static ProductName product_name(const ProductKey *k) {
    static const char *const epilogues[] = { "plain", "bias", "bias-residual", "bias-gelu",
                                             "gelu-gradient", "gelu-bias-gradient" };
    ProductName name;
    char beside[30] = "";
    if (k->multiprocessors) snprintf(beside, sizeof beside, " beside %zu", k->multiprocessors);
    snprintf(name.text, sizeof name.text, "%zux%zux%zu a %s%zu b %s%zu c %zu %s %s%s", k->M, k->N,
             k->K, k->op_a == CUBLAS_OP_T ? "T" : "", k->lda, k->op_b == CUBLAS_OP_T ? "T" : "",
             k->ldb, k->ldc, k->type_c == CUDA_R_32F ? "fp32" : "bf16", epilogues[k->epilogue],
             beside);
    return name;
}

// The choice for a product; NULL: none yet.
static Choice *choice_find(Tuner *t, const char *product) {
    for (int i = 0; t && i < t->n; i++)
        if (strcmp(t->choices[i].product.text, product) == 0) return &t->choices[i];
    return NULL;
}

// An algorithm that was chosen by another build of cuBLASLt may be none of this one's.
static bool choice_is_valid(const Choice *c, const Product *p, Gpu *g) {
    cublasLtMatmulHeuristicResult_t result;
    if (!c->usable) return true;
    return cublasLtMatmulAlgoCheck(g->blas, p->desc, p->b, p->a, p->c, p->c, &c->algorithm,
                                   &result) == CUBLAS_STATUS_SUCCESS
        && result.workspaceSize <= WORKSPACE_BYTES;
}

static void product_choose(Product *p, Gpu *g) {
    Choice *c = choice_find(g->tuner, product_name(&p->key).text);
    if (c && !choice_is_valid(c, p, g)) {
        *c = g->tuner->choices[--g->tuner->n];
        g->tuner->refused++;
        c = NULL;
    }
    p->tuned = c != NULL;
    if (c) {
        c->used = true;
        p->found = c->usable;
        p->algorithm = c->algorithm;
        return;
    }
    // A product that also sums a bias's gradient may be far slower than product and kernel apart,
    // and rounds the sum: it runs only where it has been timed.
    cublasLtMatmulHeuristicResult_t first;
    p->found = p->key.epilogue != GELU_BIAS_GRADIENT && product_candidates(&first, 1, p, g) == 1;
    if (p->found) p->algorithm = first.algo;
}

// ---- measuring ----

// A candidate that faults while it runs ends the program: CUDA allows nothing after that.
static void tuner_check(cudaError_t status, const ProductName *measured) {
    if (status == cudaSuccess) return;
    die("tune: %s, while it was measured: %s; --tune off does without", measured->text,
        cudaGetErrorString(status));
}

// The median of several times that the work takes.
template <class Work>
static double median_seconds(Gpu *g, const ProductName *measured, Work work) {
    double seconds[TIMINGS];
    for (double &s : seconds) {
        CUDA_CHECK(cudaEventRecord(g->tuner->begin, g->stream));
        work();
        tuner_check(cudaEventRecord(g->tuner->end, g->stream), measured);
        tuner_check(cudaEventSynchronize(g->tuner->end), measured);
        s = gpu_seconds(g->tuner->begin, g->tuner->end);
    }
    std::sort(seconds, seconds + TIMINGS);
    return seconds[TIMINGS / 2];
}

// Infinity if the algorithm does not start. The first launch warms up: it may load the kernel.
static double algorithm_seconds(const Product *p, const cublasLtMatmulAlgo_t *algorithm,
                                const Operands *x, Gpu *g) {
    ProductName name = product_name(&p->key);
    if (product_launch(p, algorithm, x, g) != CUBLAS_STATUS_SUCCESS) return INFINITY;
    tuner_check(cudaStreamSynchronize(g->stream), &name);
    return median_seconds(g, &name, [&] { product_launch(p, algorithm, x, g); });
}

// Measures the heuristic's candidates and keeps the fastest.
static void product_tune(Product *p, const Operands *x, Gpu *g) {
    Tuner *t = g->tuner;
    cublasLtMatmulHeuristicResult_t candidates[MAX_ALGORITHMS];
    const ProductKey *k = &p->key;
    p->tuned = true;
    if (t->n == MAX_CHOICES) return;
    Choice *c = t->last = &t->choices[t->n++];
    memset(c, 0, sizeof *c);
    c->used = true;
    c->product = product_name(k);
    c->flops = 2.0 * (double)k->M * (double)k->N * (double)k->K;
    c->seconds = c->first_seconds = INFINITY;
    c->tried = product_candidates(candidates, MAX_ALGORITHMS, p, g);
    for (int i = 0; i < c->tried; i++) {
        double seconds = algorithm_seconds(p, &candidates[i].algo, x, g);
        if (i == 0) c->first_seconds = seconds;
        if (isinf(seconds)) c->failed++;
        if (isinf(seconds) || seconds > TUNER_GAIN * c->seconds) continue;
        c->seconds = seconds;
        c->algorithm = candidates[i].algo;
    }
    t->measured++;
    p->algorithm = c->algorithm;
    p->found = c->usable = c->tried > c->failed;
}

// Runs `fused`, a product with an epilogue and what remains to do; if that is not possible (false),
// or slower, it runs `apart`, the plain product and separate kernels. That may again be a choice.
template <class Fused, class Apart> static void fused_or_apart(Gpu *g, Fused fused, Apart apart) {
    int before = g->tuner ? g->tuner->measured : 0;
    bool done = fused();
    if (!done) apart();
    if (!done || g->tuner == NULL || g->tuner->measured == before) return;
    ProductName product = g->tuner->last->product;
    apart();                                                 // measures its own products
    double seconds = median_seconds(g, &product, [&] { fused(); });
    if (median_seconds(g, &product, apart) > TUNER_GAIN * seconds) return;
    choice_find(g->tuner, product.text)->usable = false;
    for (int i = 0; i < g->n_products && i < MAX_PRODUCTS; i++) product_choose(&g->products[i], g);
}

// ---- variants of a kernel ----

static inline ProductName variant_name(AttentionKernel kernel, AttentionShape s, int version) {
    static const char *const kernels[] = { "forward", "backward" };
    ProductName name;
    snprintf(name.text, sizeof name.text, "attention %s B=%d T=%d NH=%d HS=%d variants %d",
             kernels[kernel], s.B, s.T, s.NH, s.HS, version);
    return name;
}

// A variant that a file names, but this program does not have, becomes the default.
static inline void variant_choose(Variant *v, Choice *c, int n, Tuner *t) {
    v->tuned = c != NULL;
    v->number = 0;
    if (!c) return;
    if (c->variant >= n) {
        c->variant = 0;
        t->unknown++;
    }
    c->used = true;
    v->number = c->variant;
}

// Measures n variants by run(i), which returns false if variant i does not start on this GPU.
template <class Run> static Choice *variants_tune(int n, ProductName name, Gpu *g, Run run) {
    Tuner *t = g->tuner;
    if (t->n == MAX_CHOICES) return NULL;
    Choice *c = &t->choices[t->n++];
    memset(c, 0, sizeof *c);
    c->product = name;
    c->is_kernel = c->usable = true;
    c->seconds = INFINITY;
    c->tried = n;
    for (int i = 0; i < n; i++) {
        bool starts = run(i);                                // warms up
        tuner_check(cudaStreamSynchronize(g->stream), &name);
        double seconds = starts ? median_seconds(g, &name, [&] { run(i); }) : INFINITY;
        if (i == 0) c->first_seconds = seconds;
        if (!starts) c->failed++;
        if (!starts || seconds > TUNER_GAIN * c->seconds) continue;
        c->seconds = seconds;
        c->variant = i;
    }
    t->kernels_measured++;
    return c;
}

// Runs a kernel, of which there are n variants, by run(i): in the variant that is chosen for this
// shape, or, if that one does not start here, in the default.
template <class Run>
static void variant_run(AttentionKernel kernel, AttentionShape s, int version, int n, Gpu *g,
                        Run run) {
    Variant v = { s, 0, false };
    Tuner *t = g->tuner;
    if (t && memcmp(&t->variants[kernel].shape, &s, sizeof s) == 0) v = t->variants[kernel];
    if (t && !v.tuned) {
        ProductName name = variant_name(kernel, s, version);
        Choice *c = choice_find(t, name.text);
        if (!c && t->measures) c = variants_tune(n, name, g, run);
        variant_choose(&v, c, n, t);
        t->variants[kernel] = v;
    }
    if (run(v.number)) return;
    if (v.number == 0 || !run(0)) die("attention: this GPU has too little shared memory");
}
