// The matrix product, fast: blocked and packed (Goto and van de Geijn 2008, "Anatomy of
// High-Performance Matrix Multiplication"). dev/ladders/matmul.c climbs to it rung by rung: make
// ladder.
//
//     matmul_fast(c, ldc, rows_of(a, K), transpose_of(b, K), bias, M, N, K, WRITE);
//
// c is (M,N), a (M,K), b (K,N): the I, J and K of matmul_plain in train_gpt2.c, by BLAS's names.
//
// A processor multiplies and adds much faster than it fetches, so the whole art is to use each
// number many times once it has been fetched:
//
// - Registers. The innermost loop keeps a tile of C, MR rows by NR columns, in vector registers.
//   Each step of k loads NR numbers of B and MR numbers of A, and does MR*NR multiply-adds.
// - Level 1 and 2 cache. A panel of B, NR columns and KC deep (48 KB with AVX-512, where NR is 32;
//   24 KB with AVX2), is multiplied by one panel of MR rows of A after the other. Meanwhile the
//   next panel of B is fetched.
// - Level 3 cache. MC rows of A, KC deep (3 MB), are used for every panel of B.
//
// Both are first copied ("packed") into the order in which the innermost loop reads them; but whole
// panels of A are read where they are if its rows are floats side by side. A matrix comes with the
// strides of its rows and columns, so packing also transposes, and one function serves the forward
// pass and both gradients. Rows and columns that fill no whole panel are padded with zeros.
//
// The tile takes MR*2 + 3 vector registers of the machine's 32 (AVX-512, NEON) or 16 (AVX2, SSE).
// Two vectors to a row of it and 16 sums in flight hide what a multiply-add takes; on AVX-512 a
// tile of 14 rows is no faster, and 8 divides GPT-2's sizes: a batch's B*T rows and its channels
// (but not its vocabulary of 50,257).
#include "cpu.h"
#include <assert.h>
#include <stdalign.h>

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

enum { WIDEST = (int)MR > (int)NR ? (int)MR : (int)NR };

// Vectors of floats; gcc and clang compile +, * and loads of them to single instructions.
typedef float vec __attribute__((vector_size(4*LANES), aligned(4), may_alias));

typedef float vec4 __attribute__((vector_size(16), aligned(4), may_alias));

#ifdef PRECISION_BF16
typedef Word wordvec __attribute__((vector_size(4*LANES), aligned(4), may_alias));

static vec multiply_add(vec sum, Word a, wordvec b) {
    wordvec pair = a - (wordvec){0};                 // a in every lane
#ifdef __AVX512BF16__
    // The one intrinsic here, for compilers do not find this instruction. It does twice the work:
    // a step of GPT-2 124M at T=1024 takes 9.1 s instead of 16.7 (two cores of Zen 4).
    return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)pair, (__m512bh)b);
#else
    return sum + (vec)(pair << 16) * (vec)(b << 16)
               + (vec)(pair & 0xFFFF0000u) * (vec)(b & 0xFFFF0000u);
#endif
}
#else
typedef vec wordvec;

static vec multiply_add(vec sum, Word a, wordvec b) { return sum + a * b; }
#endif

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int int4 __attribute__((vector_size(16)));

#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (int4){ __VA_ARGS__ })
#endif

// dst (4,4) = the transpose of src (4,4), in registers: eight shuffles, where one by one it would
// take 16 loads and 16 stores.
static void transpose4(float *dst, size_t ld_dst, const float *src, size_t ld_src) {
    vec4 r0 = *(const vec4 *)src, r1 = *(const vec4 *)(src + ld_src);
    vec4 r2 = *(const vec4 *)(src + 2*ld_src), r3 = *(const vec4 *)(src + 3*ld_src);
    vec4 lo01 = SHUFFLE(r0, r1, 0, 4, 1, 5), hi01 = SHUFFLE(r0, r1, 2, 6, 3, 7);
    vec4 lo23 = SHUFFLE(r2, r3, 0, 4, 1, 5), hi23 = SHUFFLE(r2, r3, 2, 6, 3, 7);
    *(vec4 *)dst = SHUFFLE(lo01, lo23, 0, 1, 4, 5);
    *(vec4 *)(dst + ld_dst) = SHUFFLE(lo01, lo23, 2, 3, 6, 7);
    *(vec4 *)(dst + 2*ld_dst) = SHUFFLE(hi01, hi23, 0, 1, 4, 5);
    *(vec4 *)(dst + 3*ld_dst) = SHUFFLE(hi01, hi23, 2, 3, 6, 7);
}

// The panel of Words that tile_multiply reads: dst[k][i] = element k of line i, for `lines` lines of
// K elements; zeros up to width. A line is a row of m, or a column.
static inline __attribute__((always_inline))
void pack_floats(float *dst, int width, Mat m, bool by_columns, int lines, int K) {
    const float *src = m.data;
    size_t line = by_columns ? m.col : m.row, step = by_columns ? m.row : m.col;
    if (lines < width) memset(dst, 0, (size_t)K*width * sizeof *dst);
    if (line == 1 && lines == width) {
        for (int k = 0; k < K; k++) memcpy(dst + k*width, src + k*step, width * sizeof *dst);
        return;
    }
    int i = 0, k4 = step == 1 ? K / 4 * 4 : 0;
    for (; i + 4 <= lines; i += 4) {
        for (int k = 0; k < k4; k += 4)
            transpose4(dst + k*width + i, width, src + i*line + k, line);
        for (int k = k4; k < K; k++)
            for (int l = i; l < i + 4; l++) dst[k*width + l] = src[l*line + k*step];
    }
    for (; i < lines; i++)
        for (int k = 0; k < K; k++) dst[k*width + i] = src[i*line + k*step];
}

#ifdef PRECISION_BF16
uint32_t bf16_round(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t rounded = bits + 0x7FFF + (bits >> 16 & 1);        // ties go to the even one
    return (bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC00000 : rounded & 0xFFFF0000;
}

// pack_floats, and then rounding.
static inline __attribute__((always_inline))
void pack_panel(Word *dst, int width, Mat m, bool by_columns, int lines, int K) {
    alignas(64) float plain[(KC + 1)*WIDEST], *floats = plain;
    memset(floats + K*width, 0, width * sizeof *floats);         // an odd K's other half
    pack_floats(floats, width, m, by_columns, lines, K);
    for (int k = 0; k < K; k += 2, dst += width, floats += 2*width)
        for (int i = 0; i < width; i++)
            dst[i] = bf16_round(floats[i]) >> 16 | bf16_round(floats[width + i]);
}
#else                                  // a Word is a float
#define pack_panel pack_floats
#endif

typedef struct { const Word *data; size_t ld; } Panel;   // MR rows of A; ld 0: packed (K,MR)

// The hot loop: a whole tile, c = start + a*b, MR rows by 1 or 2 vectors. Element k of a's row i is
// a[i*row + k*step]; b is a packed panel (K,NR). On Zen 4 it reaches 89% of what the processor does
// on registers alone.
static inline __attribute__((always_inline))   // so that vectors, and row or step, are constants
void tile_multiply(float *c, size_t ldc, const float *start, size_t ld_start, const Word *a,
                   size_t row, size_t step, const Word *b, int K, int vectors) {
    vec sum[MR][2] = {0};
    for (int i = 0; i < MR; i++) {       // c is fetched while the products are formed
        __builtin_prefetch(c + i*ldc, 1);
        __builtin_prefetch(c + i*ldc + vectors*LANES - 1, 1);
    }
    for (int k = 0; k < K; k += STEP, a += step, b += NR) {
        wordvec b0 = *(const wordvec *)b, b1 = *(const wordvec *)(b + LANES);
        for (int i = 0; i < MR; i++) {
            sum[i][0] = multiply_add(sum[i][0], a[i*row], b0);
            if (vectors == 2) sum[i][1] = multiply_add(sum[i][1], a[i*row], b1);
        }
    }
    #pragma GCC unroll 16                // or the sums would take a detour through memory
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < vectors; j++)
            *(vec *)(c + i*ldc + j*LANES)
                = *(const vec *)(start + i*ld_start + j*LANES) + sum[i][j];
}

static const float zeros[NR];            // where a sum with no bias starts

// A tile of C: bias + a*b, or c += a*b if bias is NULL. One at the edge goes through a whole one on
// the side. Not inlined: its callers' values would not fit in registers (3% more instructions).
static __attribute__((noinline))
void tile(float *c, size_t ldc, const float *bias, Panel a, const Word *b, int K, int rows,
          int cols) {
    const float *start = bias ? bias : c;
    size_t ld_start = bias ? 0 : ldc;
    if (rows < MR || cols % LANES != 0) {
        float whole[MR*NR] = {0};
        size_t bytes = cols * sizeof *whole;
        for (int i = 0; i < rows; i++) memcpy(whole + i*NR, start + i*ld_start, bytes);
        tile(whole, NR, NULL, a, b, K, MR, cols <= LANES ? LANES : NR);
        for (int i = 0; i < rows; i++) memcpy(c + i*ldc, whole + i*NR, bytes);
        return;
    }
    bool narrow = cols == LANES;         // a small model's head
    if (a.ld && !narrow) tile_multiply(c, ldc, start, ld_start, a.data, a.ld, 1, b, K, 2);
    else if (!narrow) tile_multiply(c, ldc, start, ld_start, a.data, 1, MR, b, K, 2);
    else if (a.ld) tile_multiply(c, ldc, start, ld_start, a.data, a.ld, 1, b, K, 1);
    else tile_multiply(c, ldc, start, ld_start, a.data, 1, MR, b, K, 1);
}

void matvec(float *c, const float *x, Mat b, const float *bias, size_t begin, size_t end,
            size_t K) {
    for (size_t j = begin; j < end; j++) c[j] = bias ? bias[j] : 0.0f;
    if (b.col == 1) {
        size_t k = 0;
        for (; k + 4 <= K; k += 4) {          // four rows at a time: four streams from memory
            const float *r0 = b.data + k*b.row, *r1 = r0 + b.row;
            const float *r2 = r1 + b.row, *r3 = r2 + b.row;
            #pragma omp simd
            for (size_t j = begin; j < end; j++)
                c[j] += x[k]*r0[j] + x[k + 1]*r1[j] + x[k + 2]*r2[j] + x[k + 3]*r3[j];
        }
        for (; k < K; k++)
            for (size_t j = begin; j < end; j++) c[j] += x[k] * b.data[k*b.row + j];
    } else {
        assert(b.row == 1);
        for (size_t j = begin; j < end; j++) {
            const float *column = b.data + j*b.col;
            float sum = 0.0f;
            #pragma omp simd reduction(+:sum)
            for (size_t k = 0; k < K; k++) sum += x[k] * column[k];
            c[j] += sum;
        }
    }
}

// Fetches what pack_panel will read next, part `i` of `parts` of it, by lines of 16 floats.
static void prefetch_panel(Mat b, size_t lines, size_t K, size_t i, size_t parts) {
    size_t runs = b.col == 1 ? K : lines, length = b.col == 1 ? lines : K;
    size_t ld = b.col == 1 ? b.row : b.col;
    for (size_t r = runs * i / parts; r < runs * (i + 1) / parts; r++)
        for (size_t n = 0; n < length; n += 16) __builtin_prefetch(b.data + r*ld + n, 0, 2);
}

static Mat part_of(Mat m, size_t i, size_t j) {
    m.data += i*m.row + j*m.col;
    return m;
}

void matmul_fast(float *c, size_t ldc, Mat a, Mat b, const float *bias, size_t M, size_t N,
                 size_t K, Mode mode) {
    if (M == 1 && a.col == 1 && mode == WRITE) {
        int strips = thread_count();
        #pragma omp parallel for
        for (int s = 0; s < strips; s++)
            matvec(c, a.data, b, bias, strip_begin((int)N, s, strips),
                   strip_begin((int)N, s + 1, strips), K);
        return;
    }
    // Shared by all threads. Static: 3 MB may overflow a thread's stack. So only one thread may
    // call matmul_fast, outside of parallel loops, which is how a model runs.
    static alignas(64) Word a_packed[MATMUL_STATIC_BYTES / sizeof(Word)];
    // A thread takes a strip of rows if there are more rows than columns, else a panel of columns.
    size_t strips = M > N ? (size_t)thread_count() : 1, per_strip = strips > 1 ? N : NR;
    #pragma omp parallel if (M*N*K > 1 << 17)
    for (size_t i0 = 0; i0 < M; i0 += MC)
    for (size_t k0 = 0; k0 == 0 || k0 < K; k0 += KC) {       // with K = 0: c = bias, or 0
        alignas(64) Word b_packed[NR*KC/STEP];
        size_t mc = min_size(MC, M - i0), in_place = STEP == 1 && a.col == 1 ? mc/MR*MR : 0;
        size_t panels = (mc + MR - 1) / MR;
        int kc = (int)min_size(KC, K - k0);
        if (i0 + k0 > 0) {
            #pragma omp barrier          // the block before has been read from A and added to C
        }
        #pragma omp for nowait
        for (size_t i = in_place; i < mc; i += MR)
            pack_panel(a_packed + i*KC/STEP, MR, part_of(a, i0 + i, k0), false,
                       (int)min_size(MR, mc - i), kc);
        if (in_place < mc) {
            #pragma omp barrier          // all of A that is packed has been before it is read
        }
        #pragma omp for schedule(guided) collapse(2) nowait  // who falls behind gets fewer
        for (size_t s = 0; s < strips; s++)
        for (size_t j0 = 0; j0 < N; j0 += per_strip)
        for (size_t j = j0; j < min_size(N, j0 + per_strip); j += NR) {
            size_t cols = min_size(NR, N - j), next = min_size(NR, N - j - cols);
            size_t end = min_size(mc, panels * (s + 1) / strips * MR);
            Mat panel = part_of(b, k0, j);
            pack_panel(b_packed, NR, panel, true, (int)cols, kc);
            for (size_t i = panels * s / strips * MR; i < end; i += MR) {
                prefetch_panel(part_of(panel, 0, NR), next, kc, i / MR, panels);
                tile(c + (i0 + i)*ldc + j, ldc,
                     k0 > 0 || mode == ADD ? NULL : bias ? bias + j : zeros,
                     i < in_place ? (Panel){ (const Word *)part_of(a, i0 + i, k0).data, a.row }
                                  : (Panel){ a_packed + i*KC/STEP, 0 },
                     b_packed, kc, (int)min_size(MR, mc - i), (int)cols);
            }
        }
    }
}

// ---- the same for the small products inside attention, where each thread has its own head ----

size_t packed_size(size_t K, size_t N) {
    return (K + STEP - 1)/STEP * ((N + NR - 1)/NR*NR);
}

void pack_whole(Word *dst, Mat b, size_t K, size_t N) {
    for (size_t j = 0; j < N; j += NR)
        for (size_t k0 = 0; k0 < K; k0 += KC)
            pack_panel(dst + j*((K + STEP - 1)/STEP) + k0*NR/STEP, NR, part_of(b, k0, j), true,
                       (int)min_size(NR, N - j), (int)min_size(KC, K - k0));
}

void matmul_packed(float *c, size_t ldc, Mat a, const Word *b, size_t depth, size_t M, size_t N,
                   size_t K, Mode mode) {
    enum { ROWS = 8*MR };
    alignas(64) Word a_packed[ROWS*KC/STEP];
    size_t panel = (depth + STEP - 1)/STEP;              // Words in a column of it
    for (size_t i0 = 0; i0 < M; i0 += ROWS)
    for (size_t k0 = 0; k0 < K; k0 += KC) {
        size_t mc = min_size(ROWS, M - i0), in_place = STEP == 1 && a.col == 1 ? mc/MR*MR : 0;
        int kc = (int)min_size(KC, K - k0);
        for (size_t i = in_place; i < mc; i += MR)
            pack_panel(a_packed + i*KC/STEP, MR, part_of(a, i0 + i, k0), false,
                       (int)min_size(MR, mc - i), kc);
        for (size_t j = 0; j < N; j += NR)
        for (size_t i = 0; i < mc; i += MR) {
            tile(c + (i0 + i)*ldc + j, ldc, k0 > 0 || mode == ADD ? NULL : zeros,
                 i < in_place ? (Panel){ (const Word *)part_of(a, i0 + i, k0).data, a.row }
                              : (Panel){ a_packed + i*KC/STEP, 0 },
                 b + j*panel + k0*NR/STEP, kc,
                 (int)min_size(MR, mc - i), (int)min_size(NR, N - j));
        }
    }
}
