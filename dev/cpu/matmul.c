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
// - Level 1 and 2 cache. A panel of B, NR columns and KC deep (72 KB with AVX-512, where NR is 48;
//   24 KB with AVX2), is multiplied by one panel of MR rows of A after the other. Meanwhile the
//   next panel of B is fetched.
// - Level 3 cache. MC rows of A, KC deep (3 MB), are used for every panel of B.
//
// Both are first copied ("packed") into the order in which the innermost loop reads them; but whole
// panels of A are read where they are if its rows are floats side by side, and few. A matrix comes
// with the strides of its rows and columns, so packing also transposes, and one function serves the
// forward pass and both gradients. Rows and columns that fill no whole panel are padded with zeros.
//
// The tile takes (MR + 1)*VECTORS + 1 vector registers of the machine's 32 (AVX-512, NEON) or 16
// (AVX2, SSE). 8 rows by 3 vectors load 11 times for 24 multiply-adds, 8 by 2 load 10 times for 16:
// on Ice Lake that makes products a fifth faster. 8 and 48 divide GPT-2's rows and channels.
#include "cpu.h"
#include <assert.h>
#include <stdalign.h>

#ifdef WORDS_ARE_PAIRS
#include <immintrin.h>
#endif

enum { WIDEST = (int)MR > (int)NR ? (int)MR : (int)NR };

// Vectors of floats; gcc and clang compile +, * and loads of them to single instructions.
typedef float vec __attribute__((vector_size(4*LANES), aligned(4), may_alias));
typedef float vec4 __attribute__((vector_size(16), aligned(4), may_alias));

#ifdef WORDS_ARE_PAIRS
typedef Word wordvec __attribute__((vector_size(4*LANES), aligned(4), may_alias));

// The one intrinsic here, for compilers do not find this instruction. It does twice the work: a
// step of GPT-2 124M at T=1024 takes 4.5 s, in fp32 8.0 (two cores of Zen 5).
static vec multiply_add(vec sum, Word a, wordvec b) {
    wordvec pair = a - (wordvec){0};                 // a in every lane
    return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)pair, (__m512bh)b);
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
        for (int k = 0; k < K; k++, dst += width, src += step)
            if (width % LANES != 0) memcpy(dst, src, width * sizeof *dst);     // MR: constant
            else for (int l = 0; l < width; l += LANES) *(vec *)(dst + l) = *(const vec *)(src + l);
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

uint32_t bf16_round(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t rounded = bits + 0x7FFF + (bits >> 16 & 1);        // ties go to the even one
    return (bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC00000 : rounded & 0xFFFF0000;
}

#ifdef PRECISION_BF16
// pack_floats, and then rounding.
static inline __attribute__((always_inline))
void pack_panel(Word *dst, int width, Mat m, bool by_columns, int lines, int K) {
#ifdef WORDS_ARE_PAIRS
    alignas(64) float plain[(KC + 1)*WIDEST], *floats = plain;
    memset(floats + K*width, 0, width * sizeof *floats);         // an odd K's other half
    pack_floats(floats, width, m, by_columns, lines, K);
    for (int k = 0; k < K; k += 2, dst += width, floats += 2*width)
        for (int i = 0; i < width; i++)
            dst[i] = bf16_round(floats[i]) >> 16 | bf16_round(floats[width + i]);
#else
    pack_floats(dst, width, m, by_columns, lines, K);
    for (int i = 0; i < K*width; i++) {
        uint32_t bits = bf16_round(dst[i]);
        memcpy(dst + i, &bits, sizeof bits);
    }
#endif
}
#else
#define pack_panel pack_floats
#endif

static Mat part_of(Mat m, size_t i, size_t j) {
    m.data += i*m.row + j*m.col;
    return m;
}

// What a tile reads: MR rows of A (ld 0: packed, (K,MR)); a panel of B, packed, (K,ld), and lines
// of the next, to be fetched meanwhile.
typedef struct { const Word *data; size_t ld; } Panel;
typedef struct { Panel now, next; } Panels;

// Lines of a matrix where they lie, from row i and column j on.
static Panel in_place(Mat m, size_t i, size_t j) {
    return (Panel){ (const Word *)part_of(m, i, j).data, m.col == 1 ? m.row : m.col };
}

static const float zeros[NR];            // where a sum with no bias starts
static const Panel nothing = { (const Word *)zeros, 0 };

// The hot loop: a whole tile, c = start + a*b, MR rows by `vectors`. Element k of a's row i is
// a[i*row + k*step]. Meanwhile rows of c, up to k = 256, and lines of B's next panel are
// fetched in each round: a few at a time, for fetches that queue up are waited for.
static inline __attribute__((always_inline))   // so that vectors, and row or step, are constants
void tile_multiply(float *c, size_t ldc, const float *start, size_t ld_start, const Word *a,
                   size_t row, size_t step, Panel b, int K, Panel next, int vectors) {
    enum { ROUND = 2*KC/NR };            // NR/2 of them
    vec sum[MR][3] = {0};                // clang keeps them in memory if a loop is over the three
    for (int k = 0; k < K; next.data += next.ld) {
        for (int l = 0; l < NR; l += 16) __builtin_prefetch(next.data + l, 0, 2);
        for (int i = MR*k/256; i < MR*(k + ROUND)/256 && i < MR; i++)
            for (int l = 0; l < vectors*LANES; l += 16) __builtin_prefetch(c + i*ldc + l, 1);
        int end = K < k + ROUND ? K : k + ROUND;
#if !defined(__wasm__) && !defined(WORDS_ARE_PAIRS)
        #pragma GCC unroll 4             // 3% faster; the two others are slower: gcc spills pairs
#endif
        for (; k < end; k += STEP) {
            const wordvec *b_k = (const wordvec *)b.data;
            for (int i = 0; i < MR; i++) {
                sum[i][0] = multiply_add(sum[i][0], a[i*row], b_k[0]);
                if (vectors > 1) sum[i][1] = multiply_add(sum[i][1], a[i*row], b_k[1]);
                if (vectors > 2) sum[i][2] = multiply_add(sum[i][2], a[i*row], b_k[2]);
            }
            a += step;
            b.data += vectors == 1 ? b.ld : (size_t)vectors*LANES;     // one may be half of a panel
        }
    }
    #pragma GCC unroll 16                // or the sums would take a detour through memory
    for (int i = 0; i < MR; i++) {
        const vec *from = (const vec *)(start + i*ld_start);
        vec *to = (vec *)(c + i*ldc);
        to[0] = from[0] + sum[i][0];
        if (vectors > 1) to[1] = from[1] + sum[i][1];
        if (vectors > 2) to[2] = from[2] + sum[i][2];
    }
}

// A tile of C: bias + a*b, or c += a*b if bias is NULL. One at the edge goes through a whole one on
// the side. Not inlined: its callers' values would not fit in registers (3% more instructions).
// Aligned, so that code before it does not move its loops, to where some are 2% slower.
static __attribute__((noinline, aligned(64)))
void tile(float *c, size_t ldc, const float *bias, Panel a, const Panels *b, int K, int rows,
          int cols) {
    const float *start = bias ? bias : c;
    size_t ld_start = bias ? 0 : ldc;
    if (rows < MR || cols % LANES != 0) {
        float side[MR*NR] = {0};
        size_t bytes = cols * sizeof *side;
        for (int i = 0; i < rows; i++) memcpy(side + i*NR, start + i*ld_start, bytes);
        tile(side, NR, NULL, a, b, K, MR, (cols + LANES - 1)/LANES*LANES);
        for (int i = 0; i < rows; i++) memcpy(c + i*ldc, side + i*NR, bytes);
        return;
    }
#define TILE(vectors) (a.ld ? \
    tile_multiply(c, ldc, start, ld_start, a.data, a.ld, 1, b->now, K, b->next, vectors) : \
    tile_multiply(c, ldc, start, ld_start, a.data, 1, MR, b->now, K, b->next, vectors))
    if (cols == LANES) TILE(1);
    else if (cols == 2*LANES) TILE(2);
    else if (VECTORS > 2) TILE(VECTORS);
}

void matvec(float *c, const float *x, Mat b, const float *bias, size_t begin, size_t end,
            size_t K) {
    for (size_t j = begin; j < end; j++) c[j] = bias ? bias[j] : 0.0f;
    if (b.col == 1) {
        size_t k = 0;
        for (; k + LANES <= K; k += LANES) {  // LANES streams from memory; more collide in level 1
            #pragma omp simd
            for (size_t j = begin; j < end; j++) {
                float sum = 0.0f;
                for (int i = 0; i < LANES; i++) sum += x[k + i] * b.data[(k + i)*b.row + j];
                c[j] += sum;
            }
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
    // The columns are cut into as few panels as can be, which share the vectors evenly: 64 columns
    // are 32 and 32, not 48 and 16.
    int vectors = (int)((N + LANES - 1)/LANES), panels = (vectors + VECTORS - 1)/VECTORS;
    // A thread takes a strip of rows if there are more rows than columns, else a panel of columns.
    size_t strips = M > N ? (size_t)thread_count() : 1;
    int per_strip = strips > 1 ? panels : 1;
    // Rounding needs a copy of A, and so do columns. Read in place, many rows would compete for the
    // same few places of a cache; a copy pays if its numbers are used often: once for each panel.
    bool packs = ROUNDED || a.col > 1 || (M > 512 && N > 512);
    #pragma omp parallel if (M*N*K > 1 << 17)
    for (size_t i0 = 0; i0 < M; i0 += MC)
    for (size_t k0 = 0; k0 == 0 || k0 < K; k0 += KC) {       // with K = 0: c = bias, or 0
        alignas(64) Word b_packed[NR*KC/STEP];
        size_t mc = min_size(MC, M - i0), at_home = packs ? 0 : mc/MR*MR;
        size_t tiles = (mc + MR - 1) / MR;
        int kc = (int)min_size(KC, K - k0);
        if (i0 + k0 > 0) {
            #pragma omp barrier          // the block before has been read from A and added to C
        }
        #pragma omp for nowait
        for (size_t i = at_home; i < mc; i += MR)
            pack_panel(a_packed + i*KC/STEP, MR, part_of(a, i0 + i, k0), false,
                       (int)min_size(MR, mc - i), kc);
        if (at_home < mc) {
            #pragma omp barrier          // all of A that is packed has been before it is read
        }
        #pragma omp for schedule(guided) collapse(2) nowait  // who falls behind gets fewer
        for (size_t s = 0; s < strips; s++)
        for (int p0 = 0; p0 < panels; p0 += per_strip)
        for (int p = p0; p < p0 + per_strip; p++) {
            int v = strip_begin(vectors, p, panels), v_end = strip_begin(vectors, p + 1, panels);
            size_t j = (size_t)v*LANES, next = (size_t)v_end*LANES, width = next - j;
            int cols = (int)min_size(width, N - j);
            size_t end = min_size(mc, tiles * (s + 1) / strips * MR), line = 0;
            pack_panel(b_packed, (int)width, part_of(b, k0, j), true, cols, kc);
            for (size_t i = tiles * s / strips * MR; i < end; i += MR, line += NR/2) {
                // A tile fetches NR/2 lines of the next panel, NR numbers of each. Of columns, NR/2
                // of them and then the others; then what is below.
                size_t k = b.col == 1 ? line : line/NR*NR;
                bool fetches = next < N && k < (size_t)kc;
                Panels columns = { { b_packed, width },
                    fetches ? in_place(b, k0 + k, next + line - k) : nothing };
                tile(c + (i0 + i)*ldc + j, ldc,
                     k0 > 0 || mode == ADD ? NULL : bias ? bias + j : zeros,
                     i < at_home ? in_place(a, i0 + i, k0) : (Panel){ a_packed + i*KC/STEP, 0 },
                     &columns, kc, (int)min_size(MR, mc - i), cols);
            }
        }
    }
}

// ---- the same for the small products inside attention, where each thread has its own head ----

// Panels of at most two vectors, wherever they end: the causal mask cuts a packed matrix short.
enum { NARROW = 2*LANES };

size_t packed_size(size_t K, size_t N) {
    return (K + STEP - 1)/STEP * ((N + NARROW - 1)/NARROW*NARROW);
}

void pack_whole(Word *dst, Mat b, size_t K, size_t N) {
    for (size_t j = 0; j < N; j += NARROW)
        for (size_t k0 = 0; k0 < K; k0 += KC)
            pack_panel(dst + packed_size(K, j) + k0*NARROW/STEP, NARROW, part_of(b, k0, j), true,
                       (int)min_size(NARROW, N - j), (int)min_size(KC, K - k0));
}

void matmul_packed(float *c, size_t ldc, Mat a, const Word *b, size_t depth, size_t M, size_t N,
                   size_t K, Mode mode) {
    enum { ROWS = 8*MR };
    alignas(64) Word a_packed[ROWS*KC/STEP];
    for (size_t i0 = 0; i0 < M; i0 += ROWS)
    for (size_t k0 = 0; k0 < K; k0 += KC) {
        size_t mc = min_size(ROWS, M - i0), at_home = !ROUNDED && a.col == 1 ? mc/MR*MR : 0;
        int kc = (int)min_size(KC, K - k0);
        for (size_t i = at_home; i < mc; i += MR)
            pack_panel(a_packed + i*KC/STEP, MR, part_of(a, i0 + i, k0), false,
                       (int)min_size(MR, mc - i), kc);
        for (size_t j = 0; j < N; j += NARROW) {
            Panels columns = { { b + packed_size(depth, j) + k0*NARROW/STEP, NARROW }, nothing };
            for (size_t i = 0; i < mc; i += MR)
                tile(c + (i0 + i)*ldc + j, ldc, k0 > 0 || mode == ADD ? NULL : zeros,
                     i < at_home ? in_place(a, i0 + i, k0) : (Panel){ a_packed + i*KC/STEP, 0 },
                     &columns, kc, (int)min_size(MR, mc - i), (int)min_size(NARROW, N - j));
        }
    }
}
