// make ladder: a matrix product, C (M,N) = A (M,K) * B (K,N), from three plain loops to the
// trainer's matmul_fast. One idea a rung. Each is checked against the first and timed, beside what
// this machine can multiply and add on registers alone, measured in the same run.
//
//     build/ladder               checks, then times three products
//     build/ladder M N K         checks, then times your own; 1000 1000 1000 is kinder to caches
//     build/ladder check         only checks
//
// A multiply-add counts as two operations (FLOP). Cycles and caches in the comments are those of
// Zen 4: 32 KB of level 1 and 1 MB of level 2 a core, a multiply-add of 16 floats a cycle.
#undef PRECISION_BF16                  // the last rung has a file of its own, matmul_bf16.c
#include <math.h>
#include "../base/base.h"
#include "../cpu/matmul.c"
#include "ladder.h"                    // random_numbers, difference, peaks_measure, say_if_busy

typedef void Multiply(float *c, const float *a, const float *b, size_t M, size_t N, size_t K);

Multiply matmul_bf16;                  // in matmul_bf16.c

// Compilers find vectors by themselves. The first three rungs, about other things, forbid it.
#ifdef __clang__
#define SCALAR
#define SCALAR_LOOP _Pragma("clang loop vectorize(disable) interleave(disable)")
#else
#define SCALAR __attribute__((optimize("no-tree-loop-vectorize", "no-tree-slp-vectorize")))
#define SCALAR_LOOP
#endif

// ---- the rungs ----

// The definition. Two loads a multiply-add, and the one down a column of B brings in a line of 16
// numbers to use one. Where rows of B are a multiple of 4 KB apart, all these lines compete for the
// same few places of a cache, and are gone before the next column wants its share of them.
SCALAR static void naive(float *c, const float *a, const float *b, size_t M, size_t N, size_t K) {
    for (size_t i = 0; i < M; i++)
        for (size_t j = 0; j < N; j++) {
            float sum = 0.0f;
            SCALAR_LOOP
            for (size_t k = 0; k < K; k++) sum += a[i*K + k] * b[k*N + j];
            c[i*N + j] = sum;
        }
}

// c (cols) += a (depth) * b (depth,cols): a part of a row of C, from a part of B.
SCALAR static void add_to_row(float *c, const float *a, const float *b, size_t ldb,
                              size_t cols, size_t depth) {
    for (size_t k = 0; k < depth; k++) {
        float x = a[k];
        SCALAR_LOOP
        for (size_t j = 0; j < cols; j++) c[j] += x * b[k*ldb + j];
    }
}

// Loop order: k before j. B and C are now read along their rows: every number of a line is used,
// and the processor sees what comes next and fetches it ahead. Nor does a sum wait the four cycles
// for the one before it: neighbours in the loop belong to different elements of C. Two loads and a
// store a multiply-add, about one cycle: ten times the speed.
static void loop_order(float *c, const float *a, const float *b, size_t M, size_t N, size_t K) {
    memset(c, 0, M*N * sizeof *c);
    for (size_t i = 0; i < M; i++) add_to_row(c + i*N, a + i*K, b, N, N, K);
}

// Tiling: a tile of B, 128 KB, stays in level 2 while all rows of A meet it. Until now each row of
// A took the whole of B past the processor, 4 bytes a multiply-add. Level 3 delivers that at one a
// cycle: nothing is gained as long as B fits there. Memory does not, which shows where B is large.
// The next rung is several times as hungry, and would be a third as fast there without tiles.
enum { TILE_K = 64, TILE_N = 512 };

static void tiling(float *c, const float *a, const float *b, size_t M, size_t N, size_t K) {
    memset(c, 0, M*N * sizeof *c);
    for (size_t k = 0; k < K; k += TILE_K)
        for (size_t j = 0; j < N; j += TILE_N)
            for (size_t i = 0; i < M; i++)
                add_to_row(c + i*N + j, a + i*K + k, b + k*N + j, N,
                           min_size(TILE_N, N - j), min_size(TILE_K, K - k));
}

// add_to_row with LANES numbers an instruction; vec is that of matmul.c: 16 floats, 8 or 4.
static void add_to_row_vectors(float *c, const float *a, const float *b, size_t ldb,
                               size_t cols, size_t depth) {
    for (size_t k = 0; k < depth; k++) {
        float x = a[k];
        const float *row = b + k*ldb;
        size_t j = 0;
        for (; j + LANES <= cols; j += LANES) *(vec *)(c + j) += x * *(const vec *)(row + j);
        for (; j < cols; j++) c[j] += x * row[j];
    }
}

// Vectorized: the same tiles, LANES multiply-adds an instruction. Not LANES times as fast: the two
// loads and the store that each still needs keep level 1 busy for two to three cycles.
static void vectorized(float *c, const float *a, const float *b, size_t M, size_t N, size_t K) {
    memset(c, 0, M*N * sizeof *c);
    for (size_t k = 0; k < K; k += TILE_K)
        for (size_t j = 0; j < N; j += TILE_N)
            for (size_t i = 0; i < M; i++)
                add_to_row_vectors(c + i*N + j, a + i*K + k, b + k*N + j, N,
                                   min_size(TILE_N, N - j), min_size(TILE_K, K - k));
}

// c (MR,NR) += a (MR,depth) * b (depth,NR), parts of matrices whose rows are ldc, lda, ldb apart.
static inline void add_to_tile(float *c, size_t ldc, const float *a, size_t lda,
                               const float *b, size_t ldb, size_t depth) {
    vec sum[MR][2] = {0};
    for (size_t k = 0; k < depth; k++) {
        vec b0 = *(const vec *)(b + k*ldb), b1 = *(const vec *)(b + k*ldb + LANES);
        for (int i = 0; i < MR; i++) {
            sum[i][0] += a[i*lda + k] * b0;
            sum[i][1] += a[i*lda + k] * b1;
        }
    }
    #pragma GCC unroll 16                // or the sums would take a detour through memory
    for (int i = 0; i < MR; i++) {
        *(vec *)(c + i*ldc) += sum[i][0];
        *(vec *)(c + i*ldc + LANES) += sum[i][1];
    }
}

// Register-blocked: a tile of C, MR rows of two vectors, stays in registers for KC steps of k: 16
// sums, 2 vectors of B and 1 number of A take 19 registers of AVX-512's 32. A step loads 2 vectors
// and MR numbers for 2*MR multiply-adds, 0.6 loads to each, and stores nothing: now the
// multiply-adds are the limit. Rows and columns that fill no tile go the way of the rung before.
static void register_blocked(float *c, const float *a, const float *b,
                             size_t M, size_t N, size_t K) {
    size_t rows = M/MR*MR, cols = N/NR*NR;
    memset(c, 0, M*N * sizeof *c);
    for (size_t k = 0; k < K; k += KC) {
        size_t depth = min_size(KC, K - k);
        for (size_t j = 0; j < cols; j += NR)
            for (size_t i = 0; i < rows; i += MR)
                add_to_tile(c + i*N + j, N, a + i*K + k, K, b + k*N + j, N, depth);
        for (size_t i = 0; i < M; i++) {
            size_t done = i < rows ? cols : 0;
            add_to_row_vectors(c + i*N + done, a + i*K + k, b + k*N + done, N, N - done, depth);
        }
    }
}

// Packed: the trainer's matmul_fast, on one thread. Its innermost loop is that of the rung before,
// on copies of A and B in which each number lies beside the one that is wanted next. So no lines
// compete for a place in level 1 or straddle two vectors, few pages of memory have to be looked
// up, and the next panel of B is fetched ahead. M*K + K*N copies pay for M*N*K multiply-adds.
//
// Parallel: the same on all threads, which share the packed A and take panels of B in turn.
//
// bf16: the trainer's other build, on all threads. Packing rounds to 16 bits, half the bytes, and
// one instruction does two multiply-adds where it did one; sums stay in fp32.
static void packed(float *c, const float *a, const float *b, size_t M, size_t N, size_t K) {
    matmul_fast(c, N, rows_of(a, K), rows_of(b, N), NULL, M, N, K, WRITE);
}

typedef struct {
    const char *name, *idea;           // what it changes, in one line
    Multiply *multiply;
    bool slow, all_threads;
} Rung;

static const Rung rungs[] = {
    { "naive", "three loops, as the formula has them: down a column of B, a row apart each time",
      naive, true, false },
    { "loop order", "the same loops, the last two changed about: along a row of B",
      loop_order, true, false },
    { "tiling", "a block of B small enough for a cache, used by all rows of A before the next",
      tiling, true, false },
    { "vectorized", "the same, with one instruction for as many columns as a vector holds",
      vectorized, false, false },
    { "register-blocked", "a tile of C stays in registers while k runs: a load serves a whole row",
      register_blocked, false, false },
    { "packed", "blocks of A and B copied into the order in which the tile reads them",
      packed, false, false },
    { "parallel", "the same on all threads: a strip of C each", packed, false, true },
    { "bf16", "factors of 16 bits, sums of 32: two multiply-adds where there was one",
      matmul_bf16, false, true },
};
enum { RUNGS = sizeof rungs / sizeof *rungs };

// ---- checking and timing ----

typedef struct {
    size_t M, N, K;
    size_t rows;                       // of the first rung's result, to which others are compared
    float *a, *b, *c, *expected;       // (M,K) (K,N) (M,N) (rows,N)
} Product;

// Slow rungs multiply only the first rows of A, as many as make 2^28 multiply-adds: a row costs the
// same however many there are.
static Product product_init(size_t M, size_t N, size_t K) {
    size_t rows = min_size(M, ((size_t)1 << 28) / (N*K) + 1);
    float *a = random_numbers(M*K, 1), *b = random_numbers(K*N, 2);
    float *c = alloc_or_die(M*N * sizeof *c, "C");
    float *expected = alloc_or_die(rows*N * sizeof *expected, "the first rung's C");
    return (Product){ M, N, K, rows, a, b, c, expected };
}

static void product_free(Product *p) {
    free(p->a);
    free(p->b);
    free(p->c);
    free(p->expected);
}

// FLOP/s of the fastest of several runs. Before each, C is full of not-a-number: a rung that adds
// to what it finds, or leaves an element out, is found out.
static double rung_run(const Rung *r, Product *p, int threads, double seconds_at_least) {
    double best = INFINITY, total = 0.0;
    size_t rows = r->slow ? p->rows : p->M;
    threads_set(r->all_threads ? threads : 1);
    while (total <= seconds_at_least) {
        for (size_t i = 0; i < p->M * p->N; i++) p->c[i] = NAN;
        double start = seconds_now();
        r->multiply(p->c, p->a, p->b, rows, p->N, p->K);
        double seconds = seconds_now() - start;
        best = fmin(best, seconds);
        total += seconds;
    }
    threads_set(threads);
    return 2.0 * (double)(rows * p->N * p->K) / best;
}

// What rounding alone may come to. Each of K additions is off by up to 2^-24 of the sum so far; at
// random that adds up to about 2^-25 * sqrt(K) of the result; four times as much may pass. bf16
// keeps 8 bits of each factor: off by 2^-8 at most, and for evenly spread factors a product is off
// by 2^-7/sqrt(14) = 0.0021; cutting bits off in place of rounding would double that. A term of K
// left out makes 1/sqrt(K), an element of C 1/sqrt(rows*N).
static double rung_tolerance(const Rung *r, size_t K) {
    return r->multiply == matmul_bf16 ? 0.003 : 0x1p-23 * sqrt((double)K);
}

// ||C - expected|| / ||expected|| after a run of r; the first rung's result is what is expected.
// Ends the program if that is more than rounding.
static double rung_check(const Rung *r, Product *p) {
    size_t n = p->rows * p->N;
    double tolerance = rung_tolerance(r, p->K);
    if (r == rungs) memcpy(p->expected, p->c, n * sizeof *p->c);
    double error = difference(p->c, p->expected, 1, n, n);
    if (!(error <= tolerance))                   // not-a-number is an error, too
        die("%s: (%zu,%zu) * (%zu,%zu) is off by %.2g of its norm, and rounding by at most %.2g",
            r->name, p->M, p->K, p->K, p->N, error, tolerance);
    return error;
}

// Sizes that nothing divides, less than a tile in registers and more than a block of the trainer
// (MC = 2048 rows; KC = 384 deep, 768 in bf16), a single row among them.
static void check(int threads) {
    static const size_t sizes[][3] = {           // M, N, K
        { 1, 53, 67 }, { 3, 5, 211 }, { 37, 41, 7 }, { 127, 521, 131 }, { 61, 67, 787 },
        { 2053, 37, 397 },
    };
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        Product p = product_init(sizes[s][0], sizes[s][1], sizes[s][2]);
        for (int r = 0; r < RUNGS; r++) {
            rung_run(&rungs[r], &p, threads, 0.0);
            rung_check(&rungs[r], &p);
        }
        product_free(&p);
    }
    printf("%d rungs agree, also in sizes that nothing divides\n", RUNGS);
}

static void ideas(void) {
    printf("\n");
    for (int i = 0; i < RUNGS; i++) printf("%d. %s: %s\n", i + 1, rungs[i].name, rungs[i].idea);
    printf("\n"
           "GFLOP/s        billion multiplications and additions a second\n"
           "%% of a core    of what one core can do on registers alone; rungs of one thread\n"
           "%% of peak      of what all threads can do on registers alone\n"
           "x rung before  how many times as fast as the line above\n"
           "error          how far C is from the first rung's, as a part of its norm: rounding\n");
}

static void table(size_t M, size_t N, size_t K, int threads) {
    Product p = product_init(M, N, K);
    Peaks peaks = peaks_measure(threads);
    double before = 0.0, highest = 0.0;
    printf("\n(%zu,%zu) * (%zu,%zu); B takes %.0f MB\n", M, K, K, N, 4e-6 * (double)(K*N));
    peaks_print(peaks);
    printf("%-16s %9s %12s %12s %14s %8s\n", "rung", "GFLOP/s", "% of a core", "% of peak",
           "x rung before", "error");
    for (int i = 0; i < RUNGS; i++) {
        const Rung *r = &rungs[i];
        double flops = rung_run(r, &p, threads, 0.3), error = rung_check(r, &p);
        double peak = r->multiply == matmul_bf16 && peaks.all_bf16 > 0.0 ? peaks.all_bf16
                                                                         : peaks.all;
        char of_core[16] = "", gain[16] = "";
        if (!r->all_threads) snprintf(of_core, sizeof of_core, "%.1f", 100.0 * flops / peaks.core);
        if (i > 0) snprintf(gain, sizeof gain, "%.2f", flops / before);
        printf("%-16s %9.1f %12s %12.1f %14s %8.1g\n", r->name, flops / 1e9, of_core,
               100.0 * flops / peak, gain, error);
        highest = fmax(highest, flops / (r->all_threads ? peak : peaks.core));
        before = flops;
    }
    say_if_busy(peaks, highest);
    product_free(&p);
}

int main(int argc, char **argv) {
    int threads = thread_count(), own[3] = {0};
    *program_name() = "ladder";
    ladder_arguments(argc, argv, "ladder, ladder M N K, or ladder check", 100000, own);
    check(threads);
    if (argc == 2) return 0;
    ideas();
    if (argc == 4) {
        table(own[0], own[1], own[2], threads);
    } else {
        table(1024, 1024, 1024, threads);
        table(1024, 3072, 768, threads);         // GPT-2 124M: the first matrix of an MLP
        table(512, 50257, 768, threads);         // ... the classifier
    }
#ifndef __AVX512BF16__
    printf("\nbf16 is slow: this processor, or this build, has no instruction for it.\n");
#endif
    printf("\nNext: lesson 12 has the reason of each rung, dev/ladders/matmul.c the code; "
           "`make ladder OP=attention-cpu`.\n");
    return 0;
}
