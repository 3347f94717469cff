// make bench: the trainer's matrix product at every shape of GPT-2 124M, and at primes.
//
// Each product is timed in turn with this machine's multiply-add peak and, where libopenblas is
// installed, with OpenBLAS on the same operands. The peak drifts by a tenth within minutes, so
// each round takes its ratios from its own neighbours, and the median of the rounds is printed.
// Before that, some elements of each product are compared with a sum in double precision.
//
//     build/bench_matmul [--full] [SHAPE...]     --full: the classifier at M=4096 too
#define PROGRAM "bench_matmul"
#include <dlfcn.h>
#include "../base/clock.h"             // seconds_now
#include "../base/error.h"             // die, alloc_or_die
#include "../base/rng.h"               // rng_make, rng_below
#include "matmul.h"                    // matmul_fast
#include "peak.h"                      // cpu_peak_flops
#include "timing.h"                    // Samples, result_begin

// ---- the products ----

typedef enum { FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, DIRECTIONS } Direction;

static const char *const direction_names[] = { "forward", "input gradient", "weight gradient" };

// A linear layer: out (M,OC) = x (M,C) w. The classifier's w is the embedding, stored (OC,C).
typedef struct { const char *name; size_t C, OC; bool w_transposed; } Layer;

static const Layer layers[] = {
    { "qkv", 768, 2304, false },      { "att_proj", 768, 768, false },
    { "fc", 768, 3072, false },       { "mlp_proj", 3072, 768, false },
    { "classifier", 768, 50257, true },
};
static const Layer odd_layers[] = { { "odd", 769, 1021, false }, { "odd", 3067, 1009, false } };
static const size_t odd_rows[] = { 509, 251 };

// c (M,N) = a (M,K) b (K,N) + bias, or c += a b; either factor may be stored transposed.
typedef struct {
    size_t M, N, K, lda, ldb, ldc;
    bool a_transposed, b_transposed;
    Mode mode;
} Product;

static Product product_of(const Layer *l, size_t rows, Direction d) {
    size_t C = l->C, OC = l->OC, ld = l->w_transposed ? (OC + 15) / 16 * 16 : OC;
    size_t ldw = l->w_transposed ? C : OC;
    Product forward = { rows, OC, C, C, ldw, ld, false, l->w_transposed, WRITE };
    Product dx = { rows, C, OC, ld, ldw, C, false, !l->w_transposed, WRITE };
    Product dw = { C, OC, rows, C, ld, OC, true, false, ADD };
    Product dw_transposed = { OC, C, rows, ld, C, C, true, false, ADD };
    return d == FORWARD ? forward : d == INPUT_GRADIENT ? dx : l->w_transposed ? dw_transposed : dw;
}

static double flops_of(const Product *p) {
    return 2.0 * (double)p->M * (double)p->N * (double)p->K;
}

typedef struct { float *a, *b, *c, *bias; } Operands;

static void multiply_here(const Operands *o, const Product *p) {
    Mat a = p->a_transposed ? transpose_of(o->a, p->lda) : rows_of(o->a, p->lda);
    Mat b = p->b_transposed ? transpose_of(o->b, p->ldb) : rows_of(o->b, p->ldb);
    const float *bias = p->mode == WRITE ? o->bias : NULL;
    matmul_fast(o->c, p->ldc, a, b, bias, p->M, p->N, p->K, p->mode);
}

// ---- OpenBLAS, where it is installed ----

typedef void Sgemm(int order, int transpose_a, int transpose_b, int M, int N, int K, float alpha,
                   const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);

typedef struct {
    Sgemm *sgemm;            // NULL: not installed
    const char *version, *kernel;
} Blas;

static void *blas_symbol(void *library, const char *name) {
    return library ? dlsym(library, name) : NULL;
}

static Blas blas_open(void) {
    const char *const names[] = { "libopenblas.so.0", "libopenblas.so", "libopenblas.dylib" };
    void *library = NULL;
    Blas blas = { NULL, "", "" };
    unsetenv("OPENBLAS_CORETYPE");     // it would pick OpenBLAS's kernel for another processor
    for (int i = 0; i < 3 && !library; i++) library = dlopen(names[i], RTLD_NOW);
    void (*set_threads)(int) = (void (*)(int))blas_symbol(library, "openblas_set_num_threads");
    char *(*config)(void) = (char *(*)(void))blas_symbol(library, "openblas_get_config");
    char *(*kernel)(void) = (char *(*)(void))blas_symbol(library, "openblas_get_corename");
    if (!set_threads || !config || !kernel) return blas;
    set_threads(thread_count());
    blas.sgemm = (Sgemm *)blas_symbol(library, "cblas_sgemm");
    blas.version = config();
    blas.kernel = kernel();
    return blas;
}

static void multiply_there(const Blas *blas, const Operands *o, const Product *p) {
    enum { ROW_MAJOR = 101, AS_IS = 111, TRANSPOSED = 112 };
    blas->sgemm(ROW_MAJOR, p->a_transposed ? TRANSPOSED : AS_IS,
                p->b_transposed ? TRANSPOSED : AS_IS, (int)p->M, (int)p->N, (int)p->K, 1.0f,
                o->a, (int)p->lda, o->b, (int)p->ldb, p->mode == ADD ? 1.0f : 0.0f,
                o->c, (int)p->ldc);
}

// Its threads spin for 2^26 ticks of the clock after a product, in the way of whoever comes next.
static void blas_rest(void) {
    nanosleep(&(struct timespec){ 0, 40 * 1000 * 1000 }, NULL);
}

// ---- right or wrong ----

// Element (i,j) of the product, and the sum of the terms' sizes, which scales its rounding error.
static double exact_element(const Operands *o, const Product *p, size_t i, size_t j, double *size) {
    size_t a_row = p->a_transposed ? 1 : p->lda, a_col = p->a_transposed ? p->lda : 1;
    size_t b_row = p->b_transposed ? 1 : p->ldb, b_col = p->b_transposed ? p->ldb : 1;
    double sum = p->mode == WRITE ? o->bias[j] : 0.0, squares = 0.0;
    for (size_t k = 0; k < p->K; k++) {
        double term = (double)o->a[i*a_row + k*a_col] * o->b[k*b_row + j*b_col];
        sum += term;
        squares += term * term;
    }
    *size = sqrt(squares);
    return sum;
}

// With terms of random sign all errors scale with the root of the sum of their squares. Adding in
// fp32 rounds K times by at most 2^-24 of a partial sum of about that size: sqrt(K) 2^-24 in all.
// Rounding the factors to bf16 moves each term by 2^-9 of itself or so, and so the sum. Eight times
// that is the bound. One missing term of K = 50257 moves the sum by 1/sqrt(K) = 4e-3: forty times
// the bound of fp32 (bf16 sees one of 4,000).
static void check_product(const Operands *o, const Product *p, const char *name) {
    enum { ELEMENTS = 64 };
    Rng rng = rng_make(p->M, p->N);
    double factors = strcmp(PRECISION, "bf16") == 0 ? 1.0 / (1 << 9) : 0.0;
    double bound = 8.0 * (sqrt((double)p->K) / (1 << 24) + factors);
    if (p->mode == ADD) memset(o->c, 0, p->M * p->ldc * sizeof(float));
    multiply_here(o, p);
    for (int e = 0; e < ELEMENTS; e++) {         // the last row and column, and anywhere
        size_t i = e % 4 == 0 ? p->M - 1 : rng_below(&rng, p->M);
        size_t j = e % 4 == 1 ? p->N - 1 : rng_below(&rng, p->N);
        double size, exact = exact_element(o, p, i, j, &size), got = o->c[i*p->ldc + j];
        if (!(fabs(got - exact) <= bound * size))
            die("%s: element (%zu,%zu) is %.9g and must be %.9g", name, i, j, got, exact);
    }
}

// ---- timing ----

typedef struct { Samples peak, here, there, share, ratio; } Rounds;

// Seconds of one product, out of a burst long enough for the clock.
static double burst_seconds(const Blas *blas, const Operands *o, const Product *p, int count) {
    double start = seconds_now();
    for (int i = 0; i < count; i++) {
        if (blas) multiply_there(blas, o, p);
        else multiply_here(o, p);
    }
    return (seconds_now() - start) / count;
}

// One round: peak, here, peak, and OpenBLAS.
static void time_round(Rounds *r, const Blas *blas, const Operands *o, const Product *p,
                       int count) {
    double before = cpu_peak_flops();
    if (count > 1) multiply_here(o, p);                      // fetches what the peak pushed out
    double here = flops_of(p) / burst_seconds(NULL, o, p, count);
    double peak = 0.5 * (before + cpu_peak_flops());
    samples_add(&r->peak, peak);
    samples_add(&r->here, here);
    samples_add(&r->share, here / peak);
    if (!blas->sgemm) return;
    if (count > 1) multiply_there(blas, o, p);
    double there = flops_of(p) / burst_seconds(blas, o, p, count);
    samples_add(&r->there, there);
    samples_add(&r->ratio, here / there);
    blas_rest();
}

static void time_product(Rounds *r, const Blas *blas, const Operands *o, const Product *p) {
    enum { ROUNDS = 5 };
    memset(r, 0, sizeof *r);
    double burst = 0.01 * cpu_peak_flops();
    for (int i = 0; i < ROUNDS; i++) time_round(r, blas, o, p, 1 + (int)(burst / flops_of(p)));
}

// ---- the table ----

typedef struct { double large, small_ratio, odd; } Worst;   // what is asked of each group

static void worst_update(Worst *w, const Rounds *r, const Layer *l, size_t rows) {
    double share = samples_median(&r->share), ratio = samples_median(&r->ratio);
    bool odd = l->C % 2 == 1;
    if (odd && share < w->odd) w->odd = share;
    if (!odd && rows >= 1024 && share < w->large) w->large = share;
    if (!odd && rows < 1024 && ratio < w->small_ratio) w->small_ratio = ratio;
}

static void write_product(Log *log, const Rounds *r, const char *name, const Product *p) {
    result_begin(log, name, thread_count());
    log_int(log, "M", (int64_t)p->M);
    log_int(log, "N", (int64_t)p->N);
    log_int(log, "K", (int64_t)p->K);
    log_int(log, "rounds", r->here.n);
    log_num(log, "gflops", samples_median(&r->here) / 1e9);
    log_num(log, "peak_gflops", samples_median(&r->peak) / 1e9);
    log_num(log, "share_of_peak", samples_median(&r->share));
    log_num(log, "openblas_gflops", samples_median(&r->there) / 1e9);
    log_num(log, "ratio_to_openblas", samples_median(&r->ratio));
    result_end(log);
}

// One line: a layer at one number of rows, in all three directions.
static void bench_layer(Log *log, Worst *worst, const Blas *blas, const Operands *o, const Layer *l,
                        size_t rows) {
    Rounds r;
    printf("  %-10s %5zu %5zu %5zu", l->name, rows, l->C, l->OC);
    for (Direction d = 0; d < DIRECTIONS; d++) {
        Product p = product_of(l, rows, d);
        char name[100];
        snprintf(name, sizeof name, "matmul %s %zux%zu M=%zu, %s", l->name, l->C, l->OC, rows,
                 direction_names[d]);
        check_product(o, &p, name);
        if (blas->sgemm) multiply_there(blas, o, &p);        // so that both have run once
        time_product(&r, blas, o, &p);
        write_product(log, &r, name, &p);
        worst_update(worst, &r, l, rows);
        printf("   %7.0f %3.0f%%", samples_median(&r.here) / 1e9, 100 * samples_median(&r.share));
        if (blas->sgemm) printf(" %5.2f", samples_median(&r.ratio));
        else printf("     -");
        fflush(stdout);
    }
    printf("\n");
}

static void print_head(const Blas *blas) {
    printf("\nmatrix products, %s, threads: %d\n", PRECISION, thread_count());
    printf("  GFLOP/s, %% of the multiply-add peak measured beside it, times OpenBLAS's speed\n");
    if (blas->sgemm) printf("  (%.15s, fp32, kernel %s)\n", blas->version, blas->kernel);
    else printf("  (not installed: libopenblas.so.0)\n");
    printf("  %-10s %5s %5s %5s", "layer", "M", "in", "out");
    for (int d = 0; d < DIRECTIONS; d++) printf("   %18s", direction_names[d]);
    printf("\n");
}

static void print_worst(const Worst *w) {
    if (w->large < INFINITY) printf("  from M=1024 at least %3.0f%% of peak\n", 100.0 * w->large);
    if (w->small_ratio < INFINITY) printf("  at M=256 at least  %5.2f OpenBLAS\n", w->small_ratio);
    if (w->odd < INFINITY) printf("  at primes at least  %3.0f%% of peak\n", 100.0 * w->odd);
}

// Room for the largest product of these, filled with numbers of either sign.
static Operands operands_open(size_t rows, size_t C, size_t OC) {
    size_t padded = (OC + 15) / 16 * 16, most = C * padded;
    most = most < rows * padded ? rows * padded : most;
    Operands o = { alloc_or_die(most * sizeof(float), "a product's factors"),
                   alloc_or_die(most * sizeof(float), "a product's factors"),
                   alloc_or_die(most * sizeof(float), "a product"),
                   alloc_or_die(padded * sizeof(float), "a bias") };
    uint32_t state = 1;
    for (size_t i = 0; i < most; i++) {
        state = state * 1664525u + 1013904223u;
        o.a[i] = (float)(int32_t)state * 0x1p-31f;
        o.b[most - 1 - i] = o.a[i];
        if (i < padded) o.bias[i] = o.a[i];
    }
    return o;
}

static void operands_close(Operands *o) {
    free(o->a);
    free(o->b);
    free(o->c);
    free(o->bias);
}

static bool wanted(const char *name, int argc, char **argv) {
    bool all = true;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], name) == 0) return true;
        all = all && strcmp(argv[i], "--full") == 0;
    }
    return all;
}

static void check_names(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        bool known = strcmp(argv[i], "odd") == 0 || (i == 1 && strcmp(argv[i], "--full") == 0);
        for (size_t l = 0; l < sizeof layers / sizeof *layers; l++)
            known = known || strcmp(argv[i], layers[l].name) == 0;
        if (!known) die("'%s': expected qkv, att_proj, fc, mlp_proj, classifier or odd", argv[i]);
    }
}

int main(int argc, char **argv) {
    static const size_t rows[] = { 256, 1024, 4096 };
    bool full = argc > 1 && strcmp(argv[1], "--full") == 0;
    Worst worst = { INFINITY, INFINITY, INFINITY };
    Log log;
    check_names(argc, argv);
    threads_wait_politely(argv);
    Blas blas = blas_open();
    Operands o = operands_open(full && wanted("classifier", argc, argv) ? 4096 : 1024, 768, 50257);
    results_open(&log);
    print_head(&blas);
    for (int m = 0; m < 3; m++)
        for (size_t l = 0; l < sizeof layers / sizeof *layers; l++)
            if (wanted(layers[l].name, argc, argv) && (full || m < 2 || !layers[l].w_transposed))
                bench_layer(&log, &worst, &blas, &o, &layers[l], rows[m]);
    for (int i = 0; i < 2; i++)
        if (wanted("odd", argc, argv))
            bench_layer(&log, &worst, &blas, &o, &odd_layers[i], odd_rows[i]);
    print_worst(&worst);
    operands_close(&o);
    results_close(&log);
    return fflush(stdout) != 0;
}
