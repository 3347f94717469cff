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
#include "ladder.h"                    // Rung, Result, ladder_climb, ladder_main

struct Data { float *c, *a, *b; size_t M, N, K; };

void matmul_bf16(float *c, const float *a, const float *b, size_t M, size_t N, size_t K);

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
SCALAR static void naive(const Data *d) {
    const float *a = d->a, *b = d->b;
    size_t N = d->N, K = d->K;
    for (size_t i = 0; i < d->M; i++)
        for (size_t j = 0; j < N; j++) {
            float sum = 0.0f;
            SCALAR_LOOP
            for (size_t k = 0; k < K; k++) sum += a[i*K + k] * b[k*N + j];
            d->c[i*N + j] = sum;
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
static void loop_order(const Data *d) {
    memset(d->c, 0, d->M*d->N * sizeof *d->c);
    for (size_t i = 0; i < d->M; i++)
        add_to_row(d->c + i*d->N, d->a + i*d->K, d->b, d->N, d->N, d->K);
}

// Tiling: a tile of B, 128 KB, stays in level 2 while all rows of A meet it. Until now each row of
// A took the whole of B past the processor, 4 bytes a multiply-add. Level 3 delivers that at one a
// cycle: nothing is gained as long as B fits there. Memory does not, which shows where B is large.
// The next rung is several times as hungry, and would be a third as fast there without tiles.
enum { TILE_K = 64, TILE_N = 512 };

typedef void AddToRow(float *c, const float *a, const float *b, size_t ldb, size_t cols,
                      size_t depth);

static void in_tiles(const Data *d, AddToRow *add) {
    size_t N = d->N, K = d->K;
    memset(d->c, 0, d->M*N * sizeof *d->c);
    for (size_t k = 0; k < K; k += TILE_K)
        for (size_t j = 0; j < N; j += TILE_N)
            for (size_t i = 0; i < d->M; i++)
                add(d->c + i*N + j, d->a + i*K + k, d->b + k*N + j, N,
                    min_size(TILE_N, N - j), min_size(TILE_K, K - k));
}

static void tiling(const Data *d) { in_tiles(d, add_to_row); }

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
static void vectorized(const Data *d) { in_tiles(d, add_to_row_vectors); }

// c (MR,NR) += a (MR,depth) * b (depth,NR), parts of matrices whose rows are ldc, lda, ldb apart.
static inline void add_to_tile(float *c, size_t ldc, const float *a, size_t lda,
                               const float *b, size_t ldb, size_t depth) {
    vec sum[MR][3] = {0};
    for (size_t k = 0; k < depth; k++) {
        const vec *row = (const vec *)(b + k*ldb);
        for (int i = 0; i < MR; i++) {
            sum[i][0] += a[i*lda + k] * row[0];
            sum[i][1] += a[i*lda + k] * row[1];
            if (VECTORS > 2) sum[i][2] += a[i*lda + k] * row[2];
        }
    }
    #pragma GCC unroll 16                // or the sums would take a detour through memory
    for (int i = 0; i < MR; i++) {
        vec *row = (vec *)(c + i*ldc);
        row[0] += sum[i][0];
        row[1] += sum[i][1];
        if (VECTORS > 2) row[2] += sum[i][2];
    }
}

// Register-blocked: a tile of C, MR rows of 3 vectors (else 2), stays in registers for KC steps of
// k: 24 sums, 3 vectors of B and 1 number of A take 28 registers of AVX-512's 32. A step loads 3
// vectors and MR numbers for 3*MR multiply-adds, 0.5 loads to each, and stores nothing: now the
// multiply-adds are the limit. Rows and columns that fill no tile go the way of the rung before.
static void register_blocked(const Data *d) {
    size_t N = d->N, K = d->K, rows = d->M/MR*MR, cols = N/NR*NR;
    memset(d->c, 0, d->M*N * sizeof *d->c);
    for (size_t k = 0; k < K; k += KC) {
        const float *a = d->a + k, *b = d->b + k*N;
        size_t depth = min_size(KC, K - k);
        for (size_t j = 0; j < cols; j += NR)
            for (size_t i = 0; i < rows; i += MR)
                add_to_tile(d->c + i*N + j, N, a + i*K, K, b + j, N, depth);
        for (size_t i = 0; i < d->M; i++) {
            size_t done = i < rows ? cols : 0;
            add_to_row_vectors(d->c + i*N + done, a + i*K, b + done, N, N - done, depth);
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
// bf16: the trainer's other build, on all threads. Packing rounds to 16 bits. With AVX512-BF16 that
// is half the bytes, and one instruction does two multiply-adds; sums stay in fp32.
static void packed(const Data *d) {
    matmul_fast(d->c, d->N, rows_of(d->a, d->K), rows_of(d->b, d->N), NULL, d->M, d->N, d->K,
                WRITE);
}

static void bf16(const Data *d) { matmul_bf16(d->c, d->a, d->b, d->M, d->N, d->K); }

static const Rung rungs[] = {
    { "naive", "three loops, as the formula has them: down a column of B, a row apart each time",
      .run = { naive }, .slow = true },
    { "loop order", "the same loops, the last two changed about: along a row of B",
      .run = { loop_order }, .slow = true },
    { "tiling", "a block of B small enough for a cache, used by all rows of A before the next",
      .run = { tiling }, .slow = true },
    { "vectorized", "the same, with one instruction for as many columns as a vector holds",
      .run = { vectorized } },
    { "register-blocked", "a tile of C stays in registers while k runs: a load serves a whole row",
      .run = { register_blocked } },
    { "packed", "blocks of A and B copied into the order in which the tile reads them",
      .run = { packed } },
    { "parallel", "the same on all threads: a strip of C each",
      .run = { packed }, .all_threads = true },
    { "bf16", "factors of 16 bits, sums of 32: two multiply-adds an instruction, with AVX512-BF16",
      .run = { bf16 }, .all_threads = true, .bf16 = true },
};

// ---- shapes ----

// Sizes that nothing divides, less than a tile in registers and more than a block of the trainer
// (MC = 2048 rows; KC = 384 deep, or 768), a single row among them.
static const int small[][3] = {        // M, N, K
    { 1, 53, 67 }, { 3, 5, 211 }, { 37, 41, 7 }, { 127, 521, 131 }, { 61, 67, 787 },
    { 2053, 37, 397 }, { 0 },
};
static const int large[][3] = {
    { 1024, 1024, 1024 },
    { 1024, 3072, 768 },               // GPT-2 124M: the first matrix of an MLP
    { 512, 50257, 768 },               // ... the classifier
    { 0 },
};

// Slow rungs multiply only the first rows of A, as many as make 2^28 multiply-adds: a row costs the
// same however many there are. Each of K additions is off by up to 2^-24 of the sum so far; at
// random that adds up to about 2^-25 * sqrt(K) of the result; four times as much may pass. A term
// of K left out makes 1/sqrt(K), an element of C 1/sqrt(rows*N).
static void climb(Ladder *l, const int shape[3]) {
    size_t M = shape[0], N = shape[1], K = shape[2];
    size_t rows = min_size(M, ((size_t)1 << 28) / (N*K) + 1);
    Data d = { alloc_or_die(M*N * sizeof(float), "C"), random_numbers(M*K, 1),
               random_numbers(K*N, 2), M, N, K }, part = d;
    part.M = rows;
    l->data = &d, l->part = &part;
    l->flops = 2.0 * (double)(M*N*K), l->part_flops = 2.0 * (double)(rows*N*K);
    l->results[0] = (Result){ "C", d.c, M*N, rows*N, 0x1p-23 * sqrt((double)K), NULL };
    snprintf(l->title, sizeof l->title, "(%zu,%zu) * (%zu,%zu); B takes %.0f MB", M, K, K, N,
             4e-6 * (double)(K*N));
    ladder_climb(l);
    free(d.a);
    free(d.b);
    free(d.c);
}

int main(int argc, char **argv) {
    Ladder l = { .name = "ladder", .sizes = "M N K", .most = 100000, .rungs = rungs,
                 .n_rungs = sizeof rungs / sizeof *rungs, .small = small, .large = large,
                 .climb = climb,
                 .next = "lesson 12 has the reason of each rung, dev/ladders/matmul.c the code; "
                         "`make ladder OP=attention-cpu`." };
    return ladder_main(&l, argc, argv);
}
