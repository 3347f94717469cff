// Trains GPT-2 on a CPU. One file, to be read from top to bottom:
//
//     shapes         what is stored where
//     matmul         where nine tenths of the time go
//     layers         in the order a token meets them, each forward and then backward
//     model          the layers in a row, and back
//     optimizer      AdamW, with the gradient clipped by its global norm
//     evaluation     the loss on text that was held out
//     generation     the model writes
//     training loop  data, forward, backward, update, again
//     main           flags in, model built, loop run
//
// Conventions. Arrays are row-major: (N,C) has N rows of C numbers. B sequences of T tokens make
// N = B*T rows; C channels, NH heads of HS = C/NH channels, L layers, V words in the vocabulary
// (Vp when rows are padded). A gradient has the name of its tensor with a d in front. Gradients of
// activations are written (=), gradients of parameters are added up (+=), so that several
// micro-batches can share one update. Parallel loops never split a sum between threads: the same
// run has the same bits on one core and on sixty-four.
#define PROGRAM "train_gpt2"
#include <assert.h>
#include <math.h>
#include <signal.h>
#include <stdalign.h>
#include <sys/ioctl.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif
#include "dataloader.h"
#include "dev/train/batch.h"
#include "dev/base/error.h"
#include "dev/files/checkpoint.h"
#include "dev/base/clock.h"
#include "dev/cpu/peak.h"
#include "dev/data/entropy.h"
#include "dev/base/gpt2.h"
#include "dev/train/hellaswag.h"
#include "dev/base/log.h"
#include "dev/train/noise.h"
#include "dev/train/plan.h"
#include "dev/base/rng.h"
#include "dev/train/schedule.h"
#include "dev/data/tokenizer.h"
#include "dev/train/options.h"
#include "dev/base/utf8.h"
#include "dev/ranks/shards.h"

static int thread_count(void) {
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

// Of the machine: mpirun ties each of its ranks to some of them.
static int processors(void) { return (int)sysconf(_SC_NPROCESSORS_ONLN); }

static int thread_index(void) {
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

// Where strip s of `strips` begins among C columns. Sums down the rows of a matrix are shared out
// by columns, so that no two threads add into the same number.
static int strip_begin(int C, int s, int strips) { return (int)((int64_t)C * s / strips); }

// =================================================================================================
// Shapes
// =================================================================================================

// The parameters of one block; the same struct holds their gradients.
typedef struct {
    float *ln1_gain, *ln1_bias;        // (C)
    float *qkv_w, *qkv_b;              // (C,3C) (3C): queries, keys, values side by side
    float *att_proj_w, *att_proj_b;    // (C,C) (C)
    float *ln2_gain, *ln2_bias;        // (C)
    float *fc_w, *fc_b;                // (C,4C) (4C)
    float *mlp_proj_w, *mlp_proj_b;    // (4C,C) (C)
} Block;

// What one block's forward pass leaves behind for its backward pass.
typedef struct {
    float *ln1, *ln1_mean, *ln1_rstd;  // (N,C) (N) (N)
    float *qkv;                        // (N,3C); generation uses it as its key/value cache
    float *att, *att_lse;              // (N,C) (B,NH,T) log of each softmax's denominator
    float *x_mid;                      // (N,C) the residual stream between attention and MLP
    float *ln2, *ln2_mean, *ln2_rstd;  // (N,C) (N) (N)
    float *fc, *gelu;                  // (N,4C)
    float *x_out;                      // (N,C) the residual stream after the block
} BlockActs;

typedef struct {
    Config c;
    int max_B, max_T;                  // the largest batch the activations hold
    size_t n_params;
    Zero zero;                         // which of the four buffers below holds slices alone
    float *params, *grads;             // flat, in the order of dev/base/gpt2.h
    float *adam_m, *adam_v;            // moments; like grads, NULL when the model only infers
    float *outer_params, *outer_momentum;  // with --outer-every: of the last round's end
    float *bucket;                     // a bucket of what ranks have slices of, for checkpoints
    Chunk *chunks;                     // (n_chunks) the parameters that this rank updates
    int n_chunks;
    double *norm_partials;             // (n_chunks) sums of squares of gradients
    float *memory;                     // everything below is carved out of this one allocation
    size_t memory_floats;
    float *x_in;                       // (N,C) embeddings
    BlockActs *acts;                   // L of them
    float *lnf, *lnf_mean, *lnf_rstd;  // (N,C) (N) (N)
    float *loss, *lse;                 // (N) nats a token
    float *logits;                     // (logit_rows,Vp): the classifier works in chunks of rows
    size_t logit_rows;
    float *scores;                     // attention's scratch, a piece for each thread
    float *dx, *dx_branch;             // (N,C) gradient of the residual stream, and of a branch
    float *dqkv, *dfc;                 // (N,3C) (N,4C)
} Model;

// A tensor's place in its bucket: of the embeddings, of a block, or of the final norm.
static float *tensor_in(float *bucket, const Config *c, int kind) {
    int first = kind < FIRST_IN_BLOCK ? 0 : kind <= LAST_IN_BLOCK ? FIRST_IN_BLOCK : LNF_GAIN;
    return bucket + kinds_count(c, first, kind);
}

static Block block_in(float *bucket, const Config *c) {
    Block b;
    float **fields[KINDS_IN_BLOCK] = {
        &b.ln1_gain, &b.ln1_bias, &b.qkv_w, &b.qkv_b, &b.att_proj_w, &b.att_proj_b,
        &b.ln2_gain, &b.ln2_bias, &b.fc_w, &b.fc_b, &b.mlp_proj_w, &b.mlp_proj_b,
    };
    for (int k = 0; k < KINDS_IN_BLOCK; k++)
        *fields[k] = tensor_in(bucket, c, FIRST_IN_BLOCK + k);
    return b;
}

// =================================================================================================
// Matmul
// =================================================================================================
//
// A processor multiplies and adds much faster than it fetches, so the whole art is to use each
// number many times once it has been fetched:
//
// - Registers. The innermost loop keeps a tile of C, MR rows by NR columns, in vector registers.
//   Each step of k loads NR numbers of B and MR numbers of A, and does MR*NR multiply-adds.
// - Level 1 and 2 cache. A panel of B, NR columns and KC deep (48 KB), is multiplied by one panel
//   of MR rows of A after the other. Meanwhile the next panel of B is fetched.
// - Level 3 cache. MC rows of A, KC deep (3 MB), are used for every panel of B.
//
// Both are first copied ("packed") into exactly the order in which the innermost loop reads them.
// Packing also takes care of transposes: a matrix comes with the strides of its rows and columns,
// so one function serves the forward pass and both gradients. Rows and columns that fill no whole
// panel are padded with zeros.
//
// The tile takes MR*2 + 3 vector registers of the machine's 32 (AVX-512, NEON) or 16 (AVX2, SSE).
// Two vectors to a row of it and 16 sums in flight hide what a multiply-add takes; on AVX-512 a
// tile of 14 rows is no faster, and 8 divide every row count of GPT-2.

#if defined(__AVX512F__)
enum { LANES = 16, MR = 8 };
#elif defined(__AVX__)
enum { LANES = 8, MR = 6 };
#elif defined(__aarch64__)
enum { LANES = 4, MR = 12 };
#else
enum { LANES = 4, MR = 6 };
#endif
#ifdef PRECISION_BF16
#define PRECISION "bf16"
enum { STEP = 2 };                    // elements of k to a Word, see below
#else
#define PRECISION "fp32"
enum { STEP = 1 };
#endif
enum { NR = 2*LANES, KC = 384*STEP, MC = 2048/MR*MR };
enum { WIDEST = (int)MR > (int)NR ? (int)MR : (int)NR };

// Vectors of floats; gcc and clang compile +, * and loads of them to single instructions.
typedef float vec __attribute__((vector_size(4*LANES), aligned(4), may_alias));
typedef float vec4 __attribute__((vector_size(16), aligned(4), may_alias));

// A matrix to be read: element (i,j) is data[i*row + j*col]. On the right of a product, whose
// columns are packed anyhow, the sum of each is added to sums[j], unless that is NULL.
typedef struct { const float *data; size_t row, col; float *sums; } Mat;

typedef enum { WRITE, ADD } Mode;     // C = A*B + bias, or C += A*B

static Mat rows_of(const float *x, size_t ld) { Mat m = { x, ld, 1, NULL }; return m; }
static Mat transpose_of(const float *x, size_t ld) { Mat m = { x, 1, ld, NULL }; return m; }

static size_t min_size(size_t a, size_t b) { return a < b ? a : b; }

// What the innermost loop multiplies. In a bf16 build (make PRECISION=bf16) a Word is two numbers,
// elements k and k + 1 of a line, each the upper half of a float: a step of k is worth two, and the
// sums are fp32 still.
#ifdef PRECISION_BF16
typedef uint32_t Word;
typedef Word wordvec __attribute__((vector_size(4*LANES), aligned(4), may_alias));

static inline vec multiply_add(vec sum, Word a, wordvec b) {
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
typedef float Word;
typedef vec wordvec;

static inline vec multiply_add(vec sum, Word a, wordvec b) { return sum + a * b; }
#endif

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int int4 __attribute__((vector_size(16)));
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (int4){ __VA_ARGS__ })
#endif

// dst (4,4) = the transpose of src (4,4), in registers: eight shuffles, where one by one it would
// take 16 loads and 16 stores.
static inline void transpose4(float *dst, size_t ld_dst, const float *src, size_t ld_src) {
    vec4 r0 = *(const vec4 *)src, r1 = *(const vec4 *)(src + ld_src);
    vec4 r2 = *(const vec4 *)(src + 2*ld_src), r3 = *(const vec4 *)(src + 3*ld_src);
    vec4 lo01 = SHUFFLE(r0, r1, 0, 4, 1, 5), hi01 = SHUFFLE(r0, r1, 2, 6, 3, 7);
    vec4 lo23 = SHUFFLE(r2, r3, 0, 4, 1, 5), hi23 = SHUFFLE(r2, r3, 2, 6, 3, 7);
    *(vec4 *)dst = SHUFFLE(lo01, lo23, 0, 1, 4, 5);
    *(vec4 *)(dst + ld_dst) = SHUFFLE(lo01, lo23, 2, 3, 6, 7);
    *(vec4 *)(dst + 2*ld_dst) = SHUFFLE(hi01, hi23, 0, 1, 4, 5);
    *(vec4 *)(dst + 3*ld_dst) = SHUFFLE(hi01, hi23, 2, 3, 6, 7);
}

// dst[k][i] = element k of line i, for `lines` lines of K elements; zeros up to width.
//   line, step: the distance from a line to the next, and from an element to the next
static inline __attribute__((always_inline))
void pack_floats(float *dst, int width, const float *src, size_t line, size_t step,
                 int lines, int K) {
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
// A float's bits rounded to the nearest number whose lower half is zero; not-a-number stays that.
static inline uint32_t bf16_round(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t rounded = bits + 0x7FFF + (bits >> 16 & 1);        // ties go to the even one
    return (bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC00000 : rounded & 0xFFFF0000;
}
#endif

// The panel of Words that tile_multiply reads: pack_floats, and in a bf16 build rounding.
static inline __attribute__((always_inline))
void pack_panel(Word *dst, int width, Mat m, bool by_columns, int lines, int K) {
    size_t line = by_columns ? m.col : m.row, step = by_columns ? m.row : m.col;
#ifdef PRECISION_BF16
    alignas(64) float plain[(KC + 1)*WIDEST];
    float *floats = plain;
    memset(floats + K*width, 0, width * sizeof *floats);         // an odd K's other half
#else
    float *floats = dst;
#endif
    pack_floats(floats, width, m.data, line, step, lines, K);
    if (m.sums) {
        float sums[WIDEST] = {0};
        for (int k = 0; k < K; k++)
            for (int i = 0; i < width; i++) sums[i] += floats[k*width + i];
        for (int i = 0; i < lines; i++) m.sums[i] += sums[i];
    }
#ifdef PRECISION_BF16
    for (int k = 0; k < K; k += 2, dst += width, floats += 2*width)
        for (int i = 0; i < width; i++)
            dst[i] = bf16_round(floats[i]) >> 16 | bf16_round(floats[width + i]);
#endif
}

// The hot loop: a whole MR x NR tile, c = start + a*b, over packed panels a (K,MR) and b (K,NR).
// On Zen 4 it reaches 89% of what the processor does on registers alone.
static inline void tile_multiply(float *c, size_t ldc, const float *start, size_t ld_start,
                                 const Word *a, const Word *b, int K) {
    vec sum[MR][2] = {0};
    for (int i = 0; i < MR; i++) {       // c is fetched while the products are formed
        __builtin_prefetch(c + i*ldc, 1);
        __builtin_prefetch(c + i*ldc + NR - 1, 1);
    }
    for (int k = 0; k < K; k += STEP, a += MR, b += NR) {
        wordvec b0 = *(const wordvec *)b, b1 = *(const wordvec *)(b + LANES);
        for (int i = 0; i < MR; i++) {
            sum[i][0] = multiply_add(sum[i][0], a[i], b0);
            sum[i][1] = multiply_add(sum[i][1], a[i], b1);
        }
    }
    #pragma GCC unroll 16                // lest the sums take a detour through memory
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < 2; j++)
            *(vec *)(c + i*ldc + j*LANES)
                = *(const vec *)(start + i*ld_start + j*LANES) + sum[i][j];
}

static const float zeros[NR];            // where a sum with no bias starts

// A tile at the edge of C has fewer rows or columns: it goes through a whole one on the side.
static void tile(float *c, size_t ldc, const float *start, size_t ld_start,
                 const Word *a, const Word *b, int K, int rows, int cols) {
    if (rows == MR && cols == NR) {
        tile_multiply(c, ldc, start, ld_start, a, b, K);
        return;
    }
    float whole[MR*NR] = {0};
    size_t bytes = cols * sizeof *whole;
    for (int i = 0; i < rows; i++) memcpy(whole + i*NR, start + i*ld_start, bytes);
    tile_multiply(whole, NR, whole, NR, a, b, K);
    for (int i = 0; i < rows; i++) memcpy(c + i*ldc, whole + i*NR, bytes);
}

// One row of C, columns begin ... end-1: c (N) = x (K) * b (K,N) + bias. Nothing is used twice, so
// nothing is packed: the matrix streams past once, at the speed of memory. This is what generation
// runs on. Either b's rows lie in memory, or its columns do.
static void matvec(float *c, const float *x, Mat b, const float *bias,
                   size_t begin, size_t end, size_t K) {
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

// Fetches from memory what pack_panel will read next, part `i` of `parts` of it.
static void prefetch_panel(Mat b, size_t lines, size_t K, size_t i, size_t parts) {
    enum { LINE = 16 };                  // floats in a line of the cache
    size_t runs = b.col == 1 ? K : lines, length = b.col == 1 ? lines : K;
    size_t ld = b.col == 1 ? b.row : b.col;
    for (size_t r = runs * i / parts; r < runs * (i + 1) / parts; r++)
        for (size_t n = 0; n < length; n += LINE) __builtin_prefetch(b.data + r*ld + n, 0, 2);
}

static Mat part_of(Mat m, size_t i, size_t j) {
    m.data += i*m.row + j*m.col;
    if (m.sums) m.sums += j;
    return m;
}

// c (M,N) = a (M,K) * b (K,N) + bias, or c += a*b. Each element of c is summed by one thread, over
// k in order, whatever the number of threads.
static void matmul(float *c, size_t ldc, Mat a, Mat b, const float *bias,
                   size_t M, size_t N, size_t K, Mode mode) {
    if (M == 1 && a.col == 1 && mode == WRITE) {
        assert(!b.sums);
        int strips = thread_count();
        #pragma omp parallel for
        for (int s = 0; s < strips; s++)
            matvec(c, a.data, b, bias, strip_begin((int)N, s, strips),
                   strip_begin((int)N, s + 1, strips), K);
        return;
    }
    // Shared by all threads. Static, for 3 MB are more than a small stack has; so only one thread
    // may call this, outside of parallel loops, which is how a model runs.
    static alignas(64) Word a_packed[MC*KC/STEP];
    #pragma omp parallel if (M*N*K > 1 << 17)
    for (size_t i0 = 0; i0 < M; i0 += MC)
    for (size_t k0 = 0; k0 < K; k0 += KC) {
        alignas(64) Word b_packed[NR*KC/STEP];
        size_t mc = min_size(MC, M - i0), panels = (mc + MR - 1) / MR;
        int kc = (int)min_size(KC, K - k0);
        #pragma omp for   // its barrier: all of A is packed before it is read
        for (size_t i = 0; i < mc; i += MR)
            pack_panel(a_packed + i*KC/STEP, MR, part_of(a, i0 + i, k0), false,
                       (int)min_size(MR, mc - i), kc);
        // Guided: whoever is held up takes less. The barrier after it: all of A is read before the
        // next is packed.
        #pragma omp for schedule(guided)
        for (size_t j = 0; j < N; j += NR) {
            size_t cols = min_size(NR, N - j), next = min_size(NR, N - j - cols);
            Mat panel = part_of(b, k0, j);
            if (i0 > 0) panel.sums = NULL;
            pack_panel(b_packed, NR, panel, true, (int)cols, kc);
            for (size_t i = 0; i < mc; i += MR) {
                float *to = c + (i0 + i)*ldc + j;
                bool goes_on = k0 > 0 || mode == ADD;
                prefetch_panel(part_of(panel, 0, NR), next, kc, i / MR, panels);
                tile(to, ldc, goes_on ? to : bias ? bias + j : zeros, goes_on ? ldc : 0,
                     a_packed + i*KC/STEP, b_packed, kc, (int)min_size(MR, mc - i), (int)cols);
            }
        }
    }
}

// ---- the same for the small products inside attention, where each thread has its own head ----

static size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

// How many Words a matrix (K,N) takes when it is packed whole.
static size_t packed_size(size_t K, size_t N) { return round_up(K, STEP)/STEP * round_up(N, NR); }

static void pack_whole(Word *dst, Mat b, size_t K, size_t N) {
    for (size_t j = 0; j < N; j += NR)
        for (size_t k0 = 0; k0 < K; k0 += KC)
            pack_panel(dst + j*round_up(K, STEP)/STEP + k0*NR/STEP, NR, part_of(b, k0, j), true,
                       (int)min_size(NR, N - j), (int)min_size(KC, K - k0));
}

// c (M,N) = a (M,K) * b (K,N), or c += a*b, where b was packed whole, `depth` rows of it.
static void matmul_packed(float *c, size_t ldc, Mat a, const Word *b, size_t depth,
                          size_t M, size_t N, size_t K, Mode mode) {
    enum { ROWS = 8*MR };
    alignas(64) Word a_packed[ROWS*KC/STEP];
    size_t panel = round_up(depth, STEP)/STEP;           // Words in a column of it
    for (size_t i0 = 0; i0 < M; i0 += ROWS)
    for (size_t k0 = 0; k0 < K; k0 += KC) {
        size_t mc = min_size(ROWS, M - i0);
        int kc = (int)min_size(KC, K - k0);
        for (size_t i = 0; i < mc; i += MR)
            pack_panel(a_packed + i*KC/STEP, MR, part_of(a, i0 + i, k0), false,
                       (int)min_size(MR, mc - i), kc);
        for (size_t j = 0; j < N; j += NR)
        for (size_t i = 0; i < mc; i += MR) {
            float *to = c + (i0 + i)*ldc + j;
            bool goes_on = k0 > 0 || mode == ADD;
            tile(to, ldc, goes_on ? to : zeros, goes_on ? ldc : 0,
                 a_packed + i*KC/STEP, b + j*panel + k0*NR/STEP, kc,
                 (int)min_size(MR, mc - i), (int)min_size(NR, N - j));
        }
    }
}

// =================================================================================================
// Layers
// =================================================================================================

// e^x within 2 units in the last place: x = n ln 2 + r, |r| <= ln 2 / 2; Taylor's series for e^r,
// and 2^n straight into the exponent. No table, no branch: compilers turn loops over it into vector
// code, which they cannot do with expf. Below -87 it returns e^-87, about 1e-38, not zero.
static inline float exp_fast(float x) {
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    float shifted = x * 1.44269504f + 12582912.0f;   // 1.5 * 2^23 leaves no room for a fraction:
    float n = shifted - 12582912.0f;                 // n is rounded, and stands in shifted's bits
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;     // ln 2 in two parts
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits;
    float two_n;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << 23) + 0x3F800000u;               // the exponent's field holds n + 127
    memcpy(&two_n, &bits, sizeof two_n);
    return p * two_n;
}

// ---- embedding: x[b,t] = wte[token[b,t]] + wpe[t] ----
//   x (B,T,C)   token (B,T)   wte (V,C)   wpe (P,C)
// Rows first ... T-1 of each sequence are written; first is 0 except in generation.

static void embedding_forward(float *x, const int *token, const float *wte, const float *wpe,
                              int B, int T, int first, int C) {
    #pragma omp parallel for collapse(2)
    for (int b = 0; b < B; b++)
        for (int t = first; t < T; t++) {
            size_t n = (size_t)b*T + t;
            const float *word = wte + (size_t)token[n]*C, *place = wpe + (size_t)t*C;
            for (int c = 0; c < C; c++) x[n*C + c] = word[c] + place[c];
        }
}

static void embedding_backward(float *dwte, float *dwpe, const float *dx, const int *token,
                               int B, int T, int C) {
    int strips = thread_count();
    #pragma omp parallel for
    for (int s = 0; s < strips; s++) {
        int begin = strip_begin(C, s, strips), end = strip_begin(C, s + 1, strips);
        for (size_t n = 0; n < (size_t)B*T; n++) {
            float *dword = dwte + (size_t)token[n]*C, *dplace = dwpe + n % T * C;
            for (int c = begin; c < end; c++) {
                dword[c] += dx[n*C + c];
                dplace[c] += dx[n*C + c];
            }
        }
    }
}

// ---- LayerNorm: out = (x - mean) * rstd * gain + bias, with rstd = 1/sqrt(var + 1e-5) ----
//   out, x (N,C)   mean, rstd (N) kept for backward   gain, bias (C)

static void layernorm_forward(float *out, float *mean, float *rstd, const float *x,
                              const float *gain, const float *bias, size_t N, int C) {
    #pragma omp parallel for
    for (size_t n = 0; n < N; n++) {
        const float *row = x + n*C;
        float sum = 0.0f, squares = 0.0f;
        #pragma omp simd reduction(+:sum)
        for (int c = 0; c < C; c++) sum += row[c];
        float m = sum / C;
        #pragma omp simd reduction(+:squares)
        for (int c = 0; c < C; c++) squares += (row[c] - m) * (row[c] - m);
        float r = 1.0f / sqrtf(squares / C + 1e-5f);
        #pragma omp simd
        for (int c = 0; c < C; c++) out[n*C + c] = (row[c] - m) * r * gain[c] + bias[c];
        mean[n] = m;
        rstd[n] = r;
    }
}

// With xhat = (x - mean) * rstd and g = dout * gain:
// dx = (g - mean(g) - xhat * mean(g * xhat)) * rstd; dgain += sum dout * xhat; dbias += sum dout.
// dx may be dout itself: the sums down the columns are taken first.
static void layernorm_backward(float *dx, float *dgain, float *dbias, const float *dout,
                               const float *x, const float *mean, const float *rstd,
                               const float *gain, size_t N, int C) {
    int strips = thread_count();
    #pragma omp parallel for
    for (int s = 0; s < strips; s++) {
        int begin = strip_begin(C, s, strips), end = strip_begin(C, s + 1, strips);
        for (size_t n = 0; n < N; n++) {
            #pragma omp simd
            for (int c = begin; c < end; c++) {
                dgain[c] += dout[n*C + c] * (x[n*C + c] - mean[n]) * rstd[n];
                dbias[c] += dout[n*C + c];
            }
        }
    }
    #pragma omp parallel for
    for (size_t n = 0; n < N; n++) {
        const float *row = x + n*C, *d = dout + n*C;
        float m = mean[n], r = rstd[n], sum_g = 0.0f, sum_gx = 0.0f;
        #pragma omp simd reduction(+:sum_g, sum_gx)
        for (int c = 0; c < C; c++) {
            sum_g += d[c] * gain[c];
            sum_gx += d[c] * gain[c] * (row[c] - m) * r;
        }
        float mean_g = sum_g / C, mean_gx = sum_gx / C;
        #pragma omp simd
        for (int c = 0; c < C; c++)
            dx[n*C + c] = (d[c]*gain[c] - mean_g - (row[c] - m) * r * mean_gx) * r;
    }
}

// ---- linear: out = x w + b ----
//   out (N,OC)   x (N,C)   w (C,OC)   b (OC)

static void linear_forward(float *out, const float *x, const float *w, const float *b,
                           size_t N, int C, int OC) {
    matmul(out, OC, rows_of(x, C), rows_of(w, OC), b, N, OC, C, WRITE);
}

// dx = dout w^T; dw += x^T dout; db += the sum of dout's rows
static void linear_backward(float *dx, float *dw, float *db, const float *dout,
                            const float *x, const float *w, size_t N, int C, int OC) {
    matmul(dx, C, rows_of(dout, OC), transpose_of(w, OC), NULL, N, C, OC, WRITE);
    Mat dout_and_sums = rows_of(dout, OC);
    dout_and_sums.sums = db;
    matmul(dw, OC, transpose_of(x, C), dout_and_sums, NULL, C, OC, N, ADD);
}

// ---- causal self-attention, for each head: out = softmax(q k^T / sqrt(HS), t2 <= t) v ----
//   out (B,T,C)   qkv (B,T,3C)   lse (B,NH,T) log of each softmax's denominator, for backward
// A T x T matrix of scores never exists: each thread takes a head, and QUERIES rows of it at a
// time. What all of a head's queries are multiplied by is packed once.

enum { QUERIES = 32 };

typedef struct {
    float *p, *ds;                     // (QUERIES,T) weights, and the gradient of scores
    Word *kt, *vt, *k, *v;             // packed: (HS,T), transposed, and (T,HS)
    Word *q, *dout;                    // packed: (QUERIES,HS)
} HeadScratch;

// How many floats of scratch a thread needs.
static size_t attention_scratch(int T, int HS) {
    return 2*round_up((size_t)QUERIES*T, 16) + 2*packed_size(HS, T) + packed_size(T, HS)
         + 2*packed_size(QUERIES, HS);
}

static HeadScratch head_scratch(float *scratch, int T, int HS) {
    HeadScratch s;
    s.p = scratch + thread_index()*attention_scratch(T, HS);
    s.ds = s.p + round_up((size_t)QUERIES*T, 16);
    s.kt = (Word *)(s.ds + round_up((size_t)QUERIES*T, 16));
    s.vt = s.kt + packed_size(HS, T);
    s.k = s.v = s.vt + packed_size(HS, T);       // backward needs the one, forward the other
    s.q = s.k + packed_size(T, HS);
    s.dout = s.q + packed_size(QUERIES, HS);
    return s;
}

// A block of `rows` queries. Row 0 sees `seen` keys, row 1 one more, and so on: s = q k^T is
// computed for all that the last row sees, `width` keys. Loops go over all of them, too: a few
// exponentials more, but whole vectors.

// p_i = e^((s_i - max s_i) scale), in place of s; 0 for keys out of sight. The sum of each row goes
// to lse as log sum_t e^(s_it scale), and as its inverse to to_one.
static void attention_softmax(float *p, float *lse, float *to_one, int rows, int seen, int width,
                              float scale) {
    for (int i = 0; i < rows; i++) {
        float *row = p + (size_t)i*width;
        float hi = row[0], sum = 0.0f;
        for (int t = seen + i; t < width; t++) row[t] = -INFINITY;
        #pragma omp simd reduction(max:hi)
        for (int t = 0; t < width; t++) hi = row[t] > hi ? row[t] : hi;
        #pragma omp simd reduction(+:sum)
        for (int t = 0; t < width; t++) {
            row[t] = exp_fast((row[t] - hi) * scale);
            sum += row[t];
        }
        for (int t = seen + i; t < width; t++) row[t] = 0.0f;      // it was e^-87
        lse[i] = hi * scale + logf(sum);
        to_one[i] = 1.0f / sum;
    }
}

// One query, as in generation: nothing is used twice, so nothing is packed.
static void attention_row(float *out, float *lse, float *p, const float *q, const float *k,
                          const float *v, size_t ld, int seen, int HS, float scale) {
    float to_one;
    matvec(p, q, transpose_of(k, ld), NULL, 0, seen, HS);
    attention_softmax(p, lse, &to_one, 1, seen, seen, scale);
    matvec(out, p, rows_of(v, ld), NULL, 0, HS, seen);
    for (int c = 0; c < HS; c++) out[c] *= to_one;
}

// Queries first ... T-1 are computed; first is 0 except in generation.
//   scratch: attention_scratch(T, HS) floats for each thread
static void attention_forward(float *out, float *lse, float *scratch, const float *qkv,
                              int B, int T, int first, int C, int NH) {
    int HS = C / NH;
    size_t ld = 3*(size_t)C;
    float scale = 1.0f / sqrtf((float)HS);
    #pragma omp parallel for collapse(2) schedule(dynamic)
    for (int b = 0; b < B; b++)
    for (int h = 0; h < NH; h++) {
        HeadScratch s = head_scratch(scratch, T, HS);
        float *head_lse = lse + ((size_t)b*NH + h)*T, *head_out = out + (size_t)b*T*C + h*HS;
        const float *q = qkv + (size_t)b*T*ld + h*HS, *k = q + C, *v = k + C;
        if (first == T - 1) {
            attention_row(head_out + (size_t)first*C, head_lse + first, s.p, q + first*ld, k, v,
                          ld, T, HS, scale);
            continue;
        }
        pack_whole(s.kt, transpose_of(k, ld), HS, T);
        pack_whole(s.v, rows_of(v, ld), T, HS);
        for (int t = first; t < T; t += QUERIES) {
            int rows = (int)min_size(QUERIES, T - t), width = t + rows;
            float to_one[QUERIES], *block = head_out + (size_t)t*C;
            matmul_packed(s.p, width, rows_of(q + t*ld, ld), s.kt, HS, rows, width, HS, WRITE);
            attention_softmax(s.p, head_lse + t, to_one, rows, t + 1, width, scale);
            matmul_packed(block, C, rows_of(s.p, width), s.v, T, rows, HS, width, WRITE);
            for (int i = 0; i < rows; i++)
                for (int c = 0; c < HS; c++) block[(size_t)i*C + c] *= to_one[i];
        }
    }
}

// p_i = e^(s_i scale - lse_i) where the key is in sight, 0 elsewhere; in place of s
static void attention_weights(float *p, const float *lse, int rows, int seen, int width,
                              float scale) {
    for (int i = 0; i < rows; i++) {
        float *row = p + (size_t)i*width;
        #pragma omp simd
        for (int t = 0; t < width; t++) row[t] = exp_fast(row[t] * scale - lse[i]);
        for (int t = seen + i; t < width; t++) row[t] = 0.0f;
    }
}

// ds = p (dp - d) scale, in place of dp, with d_i = dout_i . out_i
static void attention_dscores(float *ds, const float *p, const float *dout, const float *out,
                              int rows, int width, int C, int HS, float scale) {
    for (int i = 0; i < rows; i++) {
        const float *o = out + (size_t)i*C, *d_o = dout + (size_t)i*C;
        float d = 0.0f;
        #pragma omp simd reduction(+:d)
        for (int c = 0; c < HS; c++) d += o[c] * d_o[c];
        size_t row = (size_t)i*width;
        #pragma omp simd
        for (int t = 0; t < width; t++) ds[row + t] = p[row + t] * (ds[row + t] - d) * scale;
    }
}

// With p the weights and d_i = dout_i . out_i:  ds = p (dout v^T - d) / sqrt(HS);
// dq = ds k;  dk = ds^T q;  dv = p^T dout.
static void attention_backward(float *dqkv, float *scratch, const float *dout, const float *qkv,
                               const float *out, const float *lse, int B, int T, int C, int NH) {
    int HS = C / NH;
    size_t ld = 3*(size_t)C;
    float scale = 1.0f / sqrtf((float)HS);
    #pragma omp parallel for collapse(2) schedule(dynamic)
    for (int b = 0; b < B; b++)
    for (int h = 0; h < NH; h++) {
        HeadScratch s = head_scratch(scratch, T, HS);
        const float *q = qkv + (size_t)b*T*ld + h*HS, *k = q + C, *v = k + C;
        float *dq = dqkv + (size_t)b*T*ld + h*HS, *dk = dq + C, *dv = dk + C;
        pack_whole(s.kt, transpose_of(k, ld), HS, T);
        pack_whole(s.vt, transpose_of(v, ld), HS, T);
        pack_whole(s.k, rows_of(k, ld), T, HS);
        for (int t = 0; t < T; t++)      // later queries add to the gradients of earlier keys
            for (int c = 0; c < HS; c++) dk[t*ld + c] = dv[t*ld + c] = 0.0f;
        for (int t = 0; t < T; t += QUERIES) {
            int rows = (int)min_size(QUERIES, T - t), width = t + rows;
            size_t at = ((size_t)b*T + t)*C + h*HS;
            Mat q_block = rows_of(q + t*ld, ld), dout_block = rows_of(dout + at, C);
            matmul_packed(s.p, width, q_block, s.kt, HS, rows, width, HS, WRITE);
            attention_weights(s.p, lse + ((size_t)b*NH + h)*T + t, rows, t + 1, width, scale);
            matmul_packed(s.ds, width, dout_block, s.vt, HS, rows, width, HS, WRITE);
            attention_dscores(s.ds, s.p, dout + at, out + at, rows, width, C, HS, scale);
            pack_whole(s.q, q_block, rows, HS);
            pack_whole(s.dout, dout_block, rows, HS);
            matmul_packed(dq + t*ld, ld, rows_of(s.ds, width), s.k, T, rows, HS, width, WRITE);
            matmul_packed(dk, ld, transpose_of(s.ds, width), s.q, rows, width, HS, rows, ADD);
            matmul_packed(dv, ld, transpose_of(s.p, width), s.dout, rows, width, HS, rows, ADD);
        }
    }
}

// ---- residual: out = a + b. Backward, both branches receive dout; they meet again in a sum ----

static void residual_forward(float *out, const float *a, const float *b, size_t n) {
    #pragma omp parallel for simd
    for (size_t i = 0; i < n; i++) out[i] = a[i] + b[i];
}

// ---- GELU, as GPT-2 has it: x/2 (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3) ----
// The same is x s with s = 1 / (1 + e^-2u), which needs one exponential and no tanh.

static void gelu_forward(float *out, const float *x, size_t n) {
    #pragma omp parallel for simd
    for (size_t i = 0; i < n; i++) {
        float u = 0.79788456f * (x[i] + 0.044715f * x[i]*x[i]*x[i]);
        out[i] = x[i] / (1.0f + exp_fast(-2.0f * u));
    }
}

// d(x s)/dx = s + x s (1 - s) 2 du/dx. dx may be dout itself.
static void gelu_backward(float *dx, const float *dout, const float *x, size_t n) {
    #pragma omp parallel for simd
    for (size_t i = 0; i < n; i++) {
        float u = 0.79788456f * (x[i] + 0.044715f * x[i]*x[i]*x[i]);
        float s = 1.0f / (1.0f + exp_fast(-2.0f * u));
        float two_du = 1.59576912f * (1.0f + 3.0f*0.044715f * x[i]*x[i]);
        dx[i] = dout[i] * (s + x[i] * s * (1.0f - s) * two_du);
    }
}

// ---- softmax cross-entropy over N rows of logits; columns V ... Vp-1 are padding ----
//   logits (N,Vp)   target (N)   loss, lse (N); lse[n] = log sum exp, kept for backward

static void xent_forward(float *loss, float *lse, const float *logits, const int *target,
                         size_t N, int V, int Vp) {
    #pragma omp parallel for
    for (size_t n = 0; n < N; n++) {
        const float *x = logits + n*Vp;
        float hi = x[0], sum = 0.0f;
        #pragma omp simd reduction(max:hi)
        for (int v = 0; v < V; v++) hi = x[v] > hi ? x[v] : hi;
        #pragma omp simd reduction(+:sum)
        for (int v = 0; v < V; v++) sum += exp_fast(x[v] - hi);   // each term <= 1: no overflow
        lse[n] = hi + logf(sum);
        loss[n] = lse[n] - x[target[n]];                          // -log p(target)
    }
}

// dlogits = (p - [v is the target]) * scale, in place of the logits; padding becomes zero.
static void xent_backward(float *dlogits, const float *lse, const int *target, float scale,
                          size_t N, int V, int Vp) {
    #pragma omp parallel for
    for (size_t n = 0; n < N; n++) {
        float *d = dlogits + n*Vp;
        #pragma omp simd
        for (int v = 0; v < V; v++) d[v] = exp_fast(d[v] - lse[n]) * scale;
        for (int v = V; v < Vp; v++) d[v] = 0.0f;
        d[target[n]] -= scale;
    }
}

// ---- classifier: logits = x wte^T, the embedding read the other way; then cross-entropy ----
//   x, dx (N,C)   wte, dwte (V,C)   logits: scratch, (rows,Vp)
// `rows` rows at a time, because (N,V) logits would be the largest array of all.

static void classifier_forward(float *loss, float *lse, float *logits, const float *x,
                               const float *wte, const int *target,
                               size_t N, size_t rows, int C, int V, int Vp) {
    for (size_t n = 0; n < N; n += rows) {
        size_t some = min_size(rows, N - n);
        matmul(logits, Vp, rows_of(x + n*C, C), transpose_of(wte, C), NULL, some, V, C, WRITE);
        xent_forward(loss + n, lse + n, logits, target + n, some, V, Vp);
    }
}

// Forward and backward in one go, while a chunk's logits are there. `scale` is what each token's
// loss counts in the objective: one over the tokens of the update makes it a mean.
static void classifier_backward(float *dx, float *dwte, float *loss, float *lse, float *logits,
                                const float *x, const float *wte, const int *target, float scale,
                                size_t N, size_t rows, int C, int V, int Vp) {
    for (size_t n = 0; n < N; n += rows) {
        size_t some = min_size(rows, N - n);
        classifier_forward(loss + n, lse + n, logits, x + n*C, wte, target + n, some, some,
                           C, V, Vp);
        xent_backward(logits, lse + n, target + n, scale, some, V, Vp);
        matmul(dx + n*C, C, rows_of(logits, Vp), rows_of(wte, C), NULL, some, C, V, WRITE);
        matmul(dwte, C, transpose_of(logits, Vp), rows_of(x + n*C, C), NULL, V, C, some, ADD);
    }
}

// =================================================================================================
// Model
// =================================================================================================

typedef enum { INFER, TRAIN } Use;

// The classifier's rows at a time: 64 MB of logits, but at least 1024 rows, for a good matmul.
static size_t classifier_rows(size_t N, size_t Vp) {
    size_t rows = (64u << 20) / sizeof(float) / Vp;
    return min_size(N, rows < 1024 ? 1024 : rows);
}

static size_t padded_vocab(const Config *c) { return ((size_t)c->V + 15) / 16 * 16; }

// Hands out the next `count` floats of `memory`, in cache lines; with memory NULL it only counts.
static float *carve(float *memory, size_t *used, size_t count) {
    float *p = memory ? memory + *used : NULL;
    *used += (count + 15) / 16 * 16;
    return p;
}

// Lays out all activations behind m->memory; returns how many floats that takes.
static size_t model_carve(Model *m, Use use) {
    float *mem = m->memory;
    size_t used = 0, N = (size_t)m->max_B * m->max_T, C = m->c.C, Vp = padded_vocab(&m->c);
    m->x_in = carve(mem, &used, N*C);
    for (int l = 0; l < m->c.L; l++) {
        BlockActs *a = &m->acts[l];
        a->ln1 = carve(mem, &used, N*C);
        a->ln1_mean = carve(mem, &used, N);
        a->ln1_rstd = carve(mem, &used, N);
        a->qkv = carve(mem, &used, N*3*C);
        a->att = carve(mem, &used, N*C);
        a->att_lse = carve(mem, &used, N*m->c.NH);
        a->x_mid = carve(mem, &used, N*C);
        a->ln2 = carve(mem, &used, N*C);
        a->ln2_mean = carve(mem, &used, N);
        a->ln2_rstd = carve(mem, &used, N);
        a->fc = carve(mem, &used, N*4*C);
        a->gelu = carve(mem, &used, N*4*C);
        a->x_out = carve(mem, &used, N*C);
    }
    m->lnf = carve(mem, &used, N*C);
    m->lnf_mean = carve(mem, &used, N);
    m->lnf_rstd = carve(mem, &used, N);
    m->loss = carve(mem, &used, N);
    m->lse = carve(mem, &used, N);
    m->logit_rows = classifier_rows(N, Vp);
    m->logits = carve(mem, &used, m->logit_rows*Vp);
    m->scores = carve(mem, &used, thread_count()*attention_scratch(m->max_T, m->c.C / m->c.NH));
    m->dx_branch = carve(mem, &used, N*C);               // also the forward pass's scratch
    if (use == TRAIN) {
        m->dx = carve(mem, &used, N*C);
        m->dqkv = carve(mem, &used, N*3*C);
        m->dfc = carve(mem, &used, N*4*C);
    }
    return used;
}

// How a model is shared with other ranks; NULL in its place: not at all.
typedef struct {
    Comm *comm;
    int zero;                // a stage of dev/ranks/shards.h
    CommType type;           // how gradients travel
    int levels;              // --exact-sum: of the tree that micro-batches are added along; else 0
    bool outer;              // --outer-every
    bool in_turn;            // --no-overlap
    bool noise;              // measure the gradient's noise
} Sharing;

static float *floats_or_die(size_t count, const char *what) {
    return alloc_or_die(count * sizeof(float), what);
}

// All that the memory of a model depends on, and nothing allocated; a step towards model_init.
static void model_plan(Model *m, const Config *c, int max_B, int max_T, const Sharing *s) {
    Zero *z = &m->zero;
    memset(m, 0, sizeof *m);
    m->c = *c;
    m->max_B = max_B;
    m->max_T = max_T;
    m->n_params = gpt2_n_params(c);
    zero_init(z, s ? s->comm : NULL, s ? s->zero : 0, &m->c, sizeof(float),
              s ? s->type : COMM_FP32);
    z->apart = s && s->outer;
    z->in_turn = s && s->in_turn;
    z->n_levels = s ? s->levels : 0;
    z->measure = s && s->noise;
}

// Whether a micro-batch's gradients are kept apart until they are measured.
static bool keeps_small(const Zero *z) { return z->measure && z->size == 1 && z->n_levels == 0; }

// What the ranks share out, and whole buckets for what is not at hand.
static void model_init_zero(Model *m) {
    Zero *z = &m->zero;
    m->params = floats_or_die(zero_params_count(z), "parameters");
    z->params = (char *)m->params;
    for (int i = 0; i < ZERO_SLOTS && z->stage == 3; i++)
        z->gathered[i] = (char *)floats_or_die(zero_slot_count(z, i), "gathered parameters");
}

static void model_init_training(Model *m) {
    enum { CHUNK = 1 << 16 };
    Zero *z = &m->zero;
    m->grads = z->grads = floats_or_die(zero_grads_count(z), "gradients");
    for (int i = 0; i < ZERO_SLOTS && z->stage >= 2; i++)
        z->collected[i] = floats_or_die(zero_slot_count(z, i), "a bucket of gradients");
    if (z->measure) z->partials = alloc_or_die(zero_partials_count(z) * sizeof(double), "norms");
    if (keeps_small(z)) z->small = floats_or_die(m->n_params, "a micro-batch's gradients");
    for (int l = 0; l < z->n_levels; l++)
        z->levels[l] = l == 0 ? m->grads : floats_or_die(m->n_params, "a level of gradients");
    m->adam_m = floats_or_die(zero_moments_count(z), "AdamW's first moments");
    m->adam_v = floats_or_die(zero_moments_count(z), "AdamW's second moments");
    if (z->apart) {
        m->outer_params = floats_or_die(m->n_params, "the last round's parameters");
        m->outer_momentum = floats_or_die(m->n_params, "the outer momentum");
    }
    if (z->size > 1) m->bucket = floats_or_die(gpt2_largest_bucket(&m->c), "a bucket");
    m->n_chunks = zero_chunks(NULL, z, CHUNK);
    m->chunks = alloc_or_die(m->n_chunks * sizeof *m->chunks, "a table of chunks");
    zero_chunks(m->chunks, z, CHUNK);
    m->norm_partials = alloc_or_die(m->n_chunks * sizeof(double), "norms");
}

// A model of the given sizes for batches of up to max_B sequences of max_T tokens. All memory that
// a step needs is allocated here; parameters are zero until model_init_params or a file fills them.
static void model_init(Model *m, const Config *c, int max_B, int max_T, Use use,
                       const Sharing *sharing) {
    double floats = (double)max_B * max_T * c->L * 16.0 * c->C;       // about; size_t could wrap
    if (floats > 1e15) die("memory: %.0f TB for activations; use a smaller model or micro-batch",
                           4e-12 * floats);
    model_plan(m, c, max_B, max_T, sharing);
    model_init_zero(m);
    if (use == TRAIN) model_init_training(m);
    m->acts = alloc_or_die(c->L * sizeof *m->acts, "a table of activations");
    m->memory_floats = model_carve(m, use);
    m->memory = alloc_or_die(m->memory_floats * sizeof(float), "activations");
    model_carve(m, use);
}

static void model_free(Model *m) {
    Zero *z = &m->zero;
    for (int i = 0; i < ZERO_SLOTS; i++) {
        free(z->gathered[i]);
        free(z->collected[i]);
    }
    for (int l = 1; l < z->n_levels; l++) free(z->levels[l]);
    free(z->small);
    free(z->partials);
    zero_free(z);
    free(m->params);
    free(m->grads);
    free(m->adam_m);
    free(m->adam_v);
    free(m->outer_params);
    free(m->outer_momentum);
    free(m->bucket);
    free(m->chunks);
    free(m->norm_partials);
    free(m->acts);
    free(m->memory);
    memset(m, 0, sizeof *m);
}

// GPT-2's initialisation. Each tensor draws from a stream of its own.
static void tensor_init(float *p, const Tensor *t, int L, Rng rng) {
    double std = t->init == INIT_RESIDUAL ? 0.02 / sqrt(2.0 * L) : 0.02;
    for (size_t j = 0; j < t->count; j++)
        p[j] = t->init == INIT_ZEROS ? 0.0f : t->init == INIT_ONES ? 1.0f
                                     : (float)(std * rng_normal(&rng));
}

static void model_init_params(Model *m, uint64_t seed) {
    for (int b = 0; b < gpt2_n_buckets(&m->c); b++) {
        float *bucket = zero_place(&m->zero, b);
        #pragma omp parallel for schedule(dynamic)
        for (int i = gpt2_bucket_tensor(&m->c, b); i < gpt2_bucket_tensor(&m->c, b + 1); i++) {
            Tensor t = gpt2_tensor(&m->c, i);
            tensor_init(bucket + t.offset - gpt2_bucket(&m->c, b).begin, &t, m->c.L,
                        rng_make(seed, (uint64_t)i));
        }
        zero_keep(&m->zero, b);
    }
}

// Runs tokens (B,T) through the blocks, up to the final norm's output m->lnf (B*T,C).
// With first > 0 and B = 1 only rows first ... T-1 are computed: the keys and values of the rows
// before them are still in each block's qkv. That is all a key/value cache is.
static void model_forward(Model *m, const int *tokens, int B, int T, int first) {
    assert(T <= m->max_T && B <= m->max_B && (first == 0 || B == 1));
    const Config *c = &m->c;
    int C = c->C, NH = c->NH, L = c->L;
    size_t from = first, N = (size_t)B*T - from;       // rows from ... from+N-1
    float *embeddings = zero_params(&m->zero, 0, 1);
    embedding_forward(m->x_in, tokens, tensor_in(embeddings, c, WTE),
                      tensor_in(embeddings, c, WPE), B, T, first, C);
    const float *x = m->x_in + from*C;
    float *branch = m->dx_branch;
    for (int l = 0; l < L; l++) {
        Block w = block_in(zero_params(&m->zero, 1 + l, 2 + l), c);
        BlockActs a = m->acts[l];
        float *ln1 = a.ln1 + from*C, *qkv = a.qkv + from*3*C, *att = a.att + from*C;
        float *x_mid = a.x_mid + from*C, *ln2 = a.ln2 + from*C, *x_out = a.x_out + from*C;
        float *fc = a.fc + from*4*C, *gelu = a.gelu + from*4*C;
        layernorm_forward(ln1, a.ln1_mean, a.ln1_rstd, x, w.ln1_gain, w.ln1_bias, N, C);
        linear_forward(qkv, ln1, w.qkv_w, w.qkv_b, N, C, 3*C);
        attention_forward(a.att, a.att_lse, m->scores, a.qkv, B, T, first, C, NH);
        linear_forward(branch, att, w.att_proj_w, w.att_proj_b, N, C, C);
        residual_forward(x_mid, x, branch, N*C);
        layernorm_forward(ln2, a.ln2_mean, a.ln2_rstd, x_mid, w.ln2_gain, w.ln2_bias, N, C);
        linear_forward(fc, ln2, w.fc_w, w.fc_b, N, C, 4*C);
        gelu_forward(gelu, fc, N*4*C);
        linear_forward(branch, gelu, w.mlp_proj_w, w.mlp_proj_b, N, 4*C, C);
        residual_forward(x_out, x_mid, branch, N*C);
        x = x_out;
    }
    float *norm = zero_params(&m->zero, 1 + L, -1);
    layernorm_forward(m->lnf + from*C, m->lnf_mean, m->lnf_rstd, x, tensor_in(norm, c, LNF_GAIN),
                      tensor_in(norm, c, LNF_BIAS), N, C);
}

static double sum_of(const float *x, size_t n) {
    double sum = 0.0;
    for (size_t i = 0; i < n; i++) sum += x[i];
    return sum;
}

// The loss of each token in nats, to m->loss (N); after model_forward. Returns their sum.
static double model_loss(Model *m, const int *targets, size_t N) {
    float *wte = tensor_in(zero_params(&m->zero, 0, -1), &m->c, WTE);
    classifier_forward(m->loss, m->lse, m->logits, m->lnf, wte, targets, N, m->logit_rows, m->c.C,
                       m->c.V, (int)padded_vocab(&m->c));
    return sum_of(m->loss, N);
}

// The way back, after model_forward on the same tokens: adds the gradient of scale * (sum of the
// N losses) to the gradients, a bucket at a time; each leaves for the other ranks, if there are
// any, while the blocks before it compute. Returns the sum of the losses.
static double model_backward(Model *m, const int *tokens, const int *targets, float scale,
                             int B, int T) {
    const Config *c = &m->c;
    Zero *z = &m->zero;
    int C = c->C, L = c->L;
    size_t N = (size_t)B*T;
    float *dx = m->dx, *dbranch = m->dx_branch;
    float *embeddings = zero_params(z, 0, L), *norm = zero_params(z, 1 + L, -1);
    float *dembeddings = zero_grads(z, 0), *dnorm = zero_grads(z, 1 + L);
    classifier_backward(dbranch, tensor_in(dembeddings, c, WTE), m->loss, m->lse, m->logits, m->lnf,
                        tensor_in(embeddings, c, WTE), targets, scale,
                        N, m->logit_rows, C, c->V, (int)padded_vocab(c));
    layernorm_backward(dx, tensor_in(dnorm, c, LNF_GAIN), tensor_in(dnorm, c, LNF_BIAS),
                       dbranch, m->acts[L - 1].x_out, m->lnf_mean, m->lnf_rstd,
                       tensor_in(norm, c, LNF_GAIN), N, C);
    zero_grads_done(z, 1 + L);
    for (int l = L - 1; l >= 0; l--) {
        Block w = block_in(zero_params(z, 1 + l, l > 0 ? l : -1), c);
        Block d = block_in(zero_grads(z, 1 + l), c);
        BlockActs a = m->acts[l];
        const float *x = l > 0 ? m->acts[l - 1].x_out : m->x_in;
        linear_backward(m->dfc, d.mlp_proj_w, d.mlp_proj_b, dx, a.gelu, w.mlp_proj_w, N, 4*C, C);
        gelu_backward(m->dfc, m->dfc, a.fc, N*4*C);
        linear_backward(dbranch, d.fc_w, d.fc_b, m->dfc, a.ln2, w.fc_w, N, C, 4*C);
        layernorm_backward(dbranch, d.ln2_gain, d.ln2_bias, dbranch, a.x_mid, a.ln2_mean,
                           a.ln2_rstd, w.ln2_gain, N, C);
        residual_forward(dx, dx, dbranch, N*C);
        linear_backward(dbranch, d.att_proj_w, d.att_proj_b, dx, a.att, w.att_proj_w, N, C, C);
        attention_backward(m->dqkv, m->scores, dbranch, a.qkv, a.att, a.att_lse, B, T, C, c->NH);
        linear_backward(dbranch, d.qkv_w, d.qkv_b, m->dqkv, a.ln1, w.qkv_w, N, C, 3*C);
        layernorm_backward(dbranch, d.ln1_gain, d.ln1_bias, dbranch, x, a.ln1_mean, a.ln1_rstd,
                           w.ln1_gain, N, C);
        residual_forward(dx, dx, dbranch, N*C);
        zero_grads_done(z, 1 + l);
    }
    embedding_backward(tensor_in(dembeddings, c, WTE), tensor_in(dembeddings, c, WPE), dx, tokens,
                       B, T, C);
    zero_grads_done(z, 0);
    return sum_of(m->loss, N);
}

// =================================================================================================
// Optimizer
// =================================================================================================

static void gradients_zero(Model *m) {
    zero_fill(&m->zero, m->zero.grads, zero_grads_count(&m->zero));
}

// The sum of the squares of this rank's gradients. Each chunk has a sum of its own, and these are
// added in order, so the bits do not depend on the number of threads.
static double gradients_squares(Model *m) {
    #pragma omp parallel for
    for (int i = 0; i < m->n_chunks; i++) {
        const float *g = m->zero.grads + m->chunks[i].grad;
        double sum = 0.0;
        #pragma omp simd reduction(+:sum)
        for (int j = 0; j < m->chunks[i].count; j++) sum += (double)g[j] * g[j];
        m->norm_partials[i] = sum;
    }
    double sum = 0.0;
    for (int i = 0; i < m->n_chunks; i++) sum += m->norm_partials[i];
    return sum;
}

typedef struct {
    float lr, beta1, beta2, eps, weight_decay;
    double v_age;            // updates of this beta2 that v is an average over; 0: as many as made
} AdamW;

// One AdamW update of n parameters (Loshchilov and Hutter 2019, arXiv 1711.05101, algorithm 2).
// g is scaled on the way, for clipping; `step` counts from 1 and corrects the moments' start at 0.
static void adamw_update(float *p, float *m, float *v, const float *g, float g_scale, AdamW o,
                         int64_t step, size_t n) {
    float to_m = (float)(1.0 / (1.0 - pow(o.beta1, (double)step)));
    float to_v = (float)(1.0 / (1.0 - pow(o.beta2, o.v_age > 0.0 ? o.v_age : (double)step)));
    #pragma omp simd
    for (size_t i = 0; i < n; i++) {
        float gi = g[i] * g_scale;
        m[i] = o.beta1 * m[i] + (1.0f - o.beta1) * gi;
        v[i] = o.beta2 * v[i] + (1.0f - o.beta2) * gi * gi;
        p[i] -= o.lr * (m[i]*to_m / (sqrtf(v[i]*to_v) + o.eps) + o.weight_decay * p[i]);
    }
}

// Updates every tensor, as far as it is this rank's; matrices decay, gains and biases do not.
static void model_update(Model *m, AdamW o, float g_scale, int64_t step) {
    #pragma omp parallel for
    for (int i = 0; i < m->n_chunks; i++) {
        Chunk k = m->chunks[i];
        AdamW chunk_o = o;
        if (!k.decays) chunk_o.weight_decay = 0.0f;
        adamw_update(m->params + k.param, m->adam_m + k.moment, m->adam_v + k.moment,
                     m->zero.grads + k.grad, g_scale, chunk_o, step, k.count);
    }
    zero_updated(&m->zero);
}

// ---- DiLoCo: workers that rarely talk (Douillard et al. 2023, arXiv 2311.08105, algorithm 1) ----
//
// Each worker makes H updates of its own and keeps its moments to itself. Then all take the mean of
// how far they have come as if it were one gradient, at the parameters they began the round with:
//     delta = mean(outer - p)    momentum = mu momentum + delta
//     p = outer = outer - lr (delta + mu momentum)          Nesterov's rule, as PyTorch's SGD

// The first round begins at the parameters as they are.
static void outer_begin(Model *m) {
    memcpy(m->outer_params, m->params, m->n_params * sizeof(float));
}

static void outer_update(float *p, float *outer, float *momentum, const float *delta, float lr,
                         float mu, size_t n) {
    #pragma omp parallel for simd
    for (size_t i = 0; i < n; i++) {
        momentum[i] = mu * momentum[i] + delta[i];
        outer[i] -= lr * (delta[i] + mu * momentum[i]);
        p[i] = outer[i];
    }
}

// Ends a round. The gradients, which have been used, make room for the differences.
static void model_outer_update(Model *m, float lr, float mu) {
    Zero *z = &m->zero;
    float *delta = z->grads;
    #pragma omp parallel for simd
    for (size_t i = 0; i < m->n_params; i++) delta[i] = m->outer_params[i] - m->params[i];
    for (int b = 0; b < gpt2_n_buckets(&m->c); b++) {
        Range r = gpt2_bucket(&m->c, b);
        z->arrives[b] = comm_mean(z->comm, delta + r.begin, r.count, z->type);
    }
    for (int b = 0; b < gpt2_n_buckets(&m->c); b++) {
        Range r = gpt2_bucket(&m->c, b);
        comm_wait(z->comm, z->arrives[b]);
        outer_update(m->params + r.begin, m->outer_params + r.begin, m->outer_momentum + r.begin,
                     delta + r.begin, lr, mu, r.count);
    }
}

// =================================================================================================
// Evaluation
// =================================================================================================

typedef struct {
    double loss;             // nats a token
    size_t tokens;           // how many were read
    WholeScore whole;        // documents that lie whole inside a window; see dev/data/entropy.h
} Eval;

// The loss over the first `tokens` tokens of the validation split, in whole windows, at least one.
// The same tokens for every setting; parameters and gradients are left alone. The ranks take turns,
// max_B windows each; one that is left without takes the first again, since at ZeRO's stage 3 the
// others need its slices, and does not count it.
//   inputs, targets: scratch, (max_B,T)
static bool evaluate(Eval *e, Model *m, const Loader *val, const Floor *f, int *inputs,
                     int *targets, size_t tokens, Error *err) {
    size_t T = val->T, windows = tokens == 0 ? val->n_windows : (tokens + T - 1) / T;
    windows = min_size(windows, val->n_windows);
    size_t turn = (size_t)m->zero.size * m->max_B, own = (size_t)m->zero.rank * m->max_B;
    memset(e, 0, sizeof *e);
    for (size_t w = own; w < windows + own; w += turn) {
        bool counts = w < windows;
        size_t first = counts ? w : 0, B = min_size(m->max_B, windows - first);
        for (size_t b = 0; b < B; b++)
            if (!loader_window(val, first + b, inputs + b*T, targets + b*T, err)) return false;
        model_forward(m, inputs, (int)B, (int)T, 0);
        double loss = model_loss(m, targets, B*T);
        if (counts) e->loss += loss;
        for (size_t b = 0; counts && f->known && b < B; b++)
            floor_score_window(&e->whole, f, val, first + b, m->loss + b*T);
    }
    double sums[] = { e->loss, e->whole.loss, e->whole.floor, (double)e->whole.tokens };
    comm_add(m->zero.comm, sums, 4);
    e->loss = sums[0];
    e->whole.loss = sums[1];
    e->whole.floor = sums[2];
    e->whole.tokens = (size_t)sums[3];
    e->tokens = windows * T;
    e->loss = fabs(e->loss / (double)e->tokens);
    return true;
}

// Answers HellaSwag's examples first ... first+count-1, max_B rows at a time, and adds them to the
// score; see dev/train/hellaswag.h.
//   inputs, targets: scratch, (max_B,max_T)
static void hellaswag_evaluate(HellaSwagScore *score, Model *m, const HellaSwag *h, size_t first,
                               size_t count, int *inputs, int *targets) {
    size_t end = ENDINGS * (first + count);
    for (size_t row = ENDINGS * first; row < end; row += m->max_B) {
        size_t B = min_size(m->max_B, end - row);
        int T = hellaswag_batch(inputs, targets, h, row, B, m->max_T);
        model_forward(m, inputs, (int)B, T, 0);
        model_loss(m, targets, B*T);
        hellaswag_keep(h, m->loss, row, B, T);
    }
    hellaswag_score(score, h, first, count);
}

// =================================================================================================
// Generation
// =================================================================================================

typedef struct { float p; int id; } Candidate;

typedef struct {
    float temperature, top_p;
    int top_k;               // 0: all
    Candidate *candidates;   // scratch, (V)
} Sampler;

static int likelier(const void *a, const void *b) {
    const Candidate *x = a, *y = b;
    if (x->p != y->p) return x->p < y->p ? 1 : -1;
    return x->id - y->id;    // ties in a fixed order, so that a seed names one text
}

// Draws a token from softmax(logits / temperature), cut to the top_k likeliest and to the fewest
// that hold top_p of the probability. Temperature 0 takes the likeliest.
static int sample_token(const Sampler *s, const float *logits, int V, Rng *rng) {
    Candidate *c = s->candidates;
    int best = 0, n = V;
    for (int v = 1; v < V; v++) if (logits[v] > logits[best]) best = v;
    if (s->temperature == 0.0f) return best;
    double sum = 0.0;
    for (int v = 0; v < V; v++) {
        c[v].id = v;
        c[v].p = expf((logits[v] - logits[best]) / s->temperature);
        sum += c[v].p;
    }
    if (s->top_k > 0 || s->top_p < 1.0f) {
        qsort(c, V, sizeof *c, likelier);
        if (s->top_k > 0 && s->top_k < V) n = s->top_k;
        double kept = 0.0, all = sum;
        int k = 0;
        while (k < n && (k == 0 || kept < s->top_p * all)) kept += c[k++].p;
        n = k;
        sum = kept;
    }
    double left = rng_uniform(rng) * sum;
    for (int k = 0; k < n - 1; k++)
        if ((left -= c[k].p) < 0.0) return c[k].id;
    return c[n - 1].id;
}

// The logits of the token after row t of the sequence that model_forward has just run.
static const float *next_logits(Model *m, int t) {
    matmul(m->logits, m->c.V, rows_of(m->lnf + (size_t)t*m->c.C, m->c.C),
           transpose_of(zero_params(&m->zero, 0, -1), m->c.C), NULL, 1, m->c.V, m->c.C, WRITE);
    return m->logits;
}

// Continues `text`, n tokens of it in a buffer of max_T + 1, by up to max_new tokens, printed as
// they come; an end of text ends it. Past max_T tokens the last half is read anew: positions are
// learned, so what is cached of a token holds for its old place alone.
static void generate(Model *m, const Tokenizer *tok, const Sampler *s, Rng *rng,
                     int *text, int n, int max_new, FILE *out) {
    Utf8Printer printer = { .terminal = isatty(fileno(out)) };
    int done = 0;            // rows that the cache holds
    for (int i = 0; i < max_new; i++) {
        if (n > m->max_T) {
            int keep = m->max_T > 1 ? m->max_T / 2 : 1;
            memmove(text, text + n - keep, keep * sizeof *text);
            n = keep;
            done = 0;
        }
        model_forward(m, text, 1, n, done);
        done = n;
        int id = sample_token(s, next_logits(m, n - 1), m->c.V, rng);
        if (id == tok->eot) break;
        text[n++] = id;
        if (id >= tok->vocab_size) continue;    // a padded vocabulary has ids with no text
        size_t length;
        const char *piece = tokenizer_piece(tok, id, &length);
        utf8_print(&printer, out, piece, length);
        fflush(out);
    }
    utf8_print_end(&printer, out);
    fputc('\n', out);
}

// =================================================================================================
// Training loop
// =================================================================================================

// Where an update's time goes, and what it sends to other ranks.
typedef struct {
    double seconds, data, compute, comm, optimizer;      // comm: waiting alone, nothing else to do
    double busy;                       // seconds that data was on its way, waited for or not
    uint64_t bytes_sent, updates;
} Costs;

// All that a run holds.
typedef struct {
    TrainOptions o;
    Comm comm;                         // the other ranks; rank 0 alone prints, logs and saves
    Model model;
    Tokenizer tokenizer;               // vocab_size is 0 when there is none
    char *tokenizer_json;              // the same, as it is saved
    size_t tokenizer_bytes;
    Loader train, val;
    Floor floor;
    HellaSwag hellaswag;               // n is 0 when there is none
    LrSchedule lr;
    RunLength length;
    Log log;
    char log_path[5000];               // the log keeps a pointer to it
    Sampler sampler;
    int T;
    int *inputs, *targets;             // (micro_batch,T)
    int *text;                         // (T+1) what generation writes
    double peak_flops;                 // of this machine, measured
    uint64_t step, tokens;             // updates made, tokens seen
    uint64_t batch;                    // tokens of this update, or of the last one
    uint64_t next_batch;               // of an adaptive schedule
    NoiseScale noise;
    int64_t adam_step, skipped;        // updates AdamW made, and those it was spared
    int64_t skipped_in_a_row;
    int lock;                          // on --out, for as long as the run lasts; -1: none
    int64_t saved_step;                // of the newest checkpoint; -1 before the first
    Json saved;                        // state.json of the run that is resumed; texts point into it
    double seconds, shown_at;          // since the start; when the last line was shown
    int stopping;                      // the signal that ends the run, once all ranks know of it
    Costs costs;                       // of all updates of this sitting
} Run;

enum { MAX_SKIPPED_IN_A_ROW = 100 };

// What one update was like.
typedef struct {
    double loss, lr, grad_norm;
    GradientNorms norms;               // with --noise-scale or an adaptive batch
    Costs costs;
} Step;

// Set by Ctrl-C, SIGTERM, SIGUSR1 and a closed terminal: the loop ends after the current update. A
// second Ctrl-C kills.
static volatile sig_atomic_t stop_signal;

static void on_stop_signal(int signal_number) { stop_signal = signal_number; }

static void catch_stop_signals(void) {
    struct sigaction action = {0};
    action.sa_handler = on_stop_signal;
    action.sa_flags = SA_RESETHAND | SA_RESTART;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    sigaction(SIGUSR1, &action, NULL); // mpirun and Slurm pass this one on, and kill at others
    signal(SIGPIPE, SIG_IGN);          // whoever reads our output may go: the run is worth more
    signal(SIGXFSZ, SIG_IGN);          // a file-size limit is an error of write(), not the end
}

// A log that cannot be written ends the run as a checkpoint that cannot does, or is given up.
static void log_line_end(Run *r) {
    Error err, closing;
    if (log_end(&r->log, &err)) return;
    if (r->o.on_save_error == SAVE_ERROR_STOP) die("%s", err.text);
    warn("%s; going on without a log", err.text);
    log_close(&r->log, &closing);
}

// What a rank keeps from one update to the next, and what passes through.
typedef struct { size_t params, grads, moments, passing; } RankMemory;

static RankMemory rank_memory(const Model *m) {
    const Zero *z = &m->zero;
    RankMemory bytes = { zero_params_count(z), zero_grads_count(z), 2*zero_moments_count(z), 0 };
    for (int i = 0; i < ZERO_SLOTS; i++)
        bytes.passing += ((z->stage == 3) + (z->stage >= 2)) * zero_slot_count(z, i);
    for (int l = 1; l < z->n_levels; l++) bytes.grads += m->n_params;
    if (keeps_small(z)) bytes.grads += m->n_params;
    if (z->apart) bytes.moments += 2*m->n_params;
    bytes.params *= sizeof(float);
    bytes.grads *= sizeof(float);
    bytes.moments *= sizeof(float);
    bytes.passing *= sizeof(float);
    if (z->size > 1) bytes.passing += COMM_SCRATCH + COMM_SCRATCH / 2;
    return bytes;
}

static void log_memory(Run *r) {
    RankMemory bytes = rank_memory(&r->model);
    log_int(&r->log, "bytes_params", (int64_t)bytes.params);
    log_int(&r->log, "bytes_grads", (int64_t)bytes.grads);
    log_int(&r->log, "bytes_moments", (int64_t)bytes.moments);
    log_int(&r->log, "bytes_passing", (int64_t)bytes.passing);
}

static void log_start(Run *r) {
    const Model *m = &r->model;
    log_begin(&r->log, r->step == 0 ? "start" : "resume");
    log_int(&r->log, "step", (int64_t)r->step);
    train_options_echo(&r->log, &r->o);
    log_int(&r->log, "parameters", (int64_t)m->n_params);
    log_int(&r->log, "model_layers", m->c.L);
    log_int(&r->log, "model_heads", m->c.NH);
    log_int(&r->log, "model_channels", m->c.C);
    log_int(&r->log, "vocab", m->c.V);
    log_int(&r->log, "T", r->T);
    log_int(&r->log, "threads_used", thread_count());
    log_int(&r->log, "ranks", r->comm.size);
    log_int(&r->log, "machines", r->comm.hosts);
    log_memory(r);
    log_text(&r->log, "precision", PRECISION);
    log_num(&r->log, "peak_flops", r->peak_flops);
    log_num(&r->log, "flops_per_token", gpt2_flops_per_token(&m->c, r->T));
    log_num(&r->log, "floor", r->floor.known ? r->floor.nats / (double)r->floor.tokens : NAN);
    log_line_end(r);
}

// NCCL's bus bandwidth: what a rank sends in the time that data is on its way.
static double bus_gb_per_s(const Costs *k) { return 1e-9 * (double)k->bytes_sent / k->busy; }

static void log_noise(Run *r, const GradientNorms *n) {
    NoiseEstimate e = noise_estimate(n);
    log_num(&r->log, "noise_scale", noise_tokens(&r->noise));
    log_num(&r->log, "noise_g2", e.g2);
    log_num(&r->log, "noise_s", e.s);
    log_num(&r->log, "noise_small_batch", n->small_tokens);
    log_num(&r->log, "noise_smalls", n->big_tokens / n->small_tokens);
}

static void log_step(Run *r, const Step *s) {
    const Costs *k = &s->costs;
    double tok_per_s = (double)r->batch / k->seconds;
    bool skipped = !isfinite(s->grad_norm);
    log_begin(&r->log, skipped ? "skip" : "step");
    log_int(&r->log, "step", (int64_t)r->step);
    log_int(&r->log, "tokens", (int64_t)r->tokens);
    log_int(&r->log, "samples", (int64_t)r->train.samples);
    log_num(&r->log, "loss", s->loss);
    log_num(&r->log, "lr", s->lr);
    log_num(&r->log, "grad_norm", s->grad_norm);
    log_int(&r->log, "batch_tokens", (int64_t)r->batch);
    if (measures_noise(&r->o)) log_noise(r, &s->norms);
    log_num(&r->log, "seconds", k->seconds);
    log_num(&r->log, "seconds_data", k->data);
    log_num(&r->log, "seconds_compute", k->compute);
    log_num(&r->log, "seconds_comm", k->comm);
    log_num(&r->log, "seconds_optimizer", k->optimizer);
    if (r->comm.size > 1) log_int(&r->log, "bytes_sent", (int64_t)k->bytes_sent);
    if (r->comm.size > 1) log_num(&r->log, "bus_gb_per_s", bus_gb_per_s(k));
    log_num(&r->log, "tok_per_s", tok_per_s);
    log_num(&r->log, "mfu", tok_per_s * gpt2_flops_per_token(&r->model.c, r->T)
                            / (r->peak_flops * r->comm.size));
    if (skipped) log_int(&r->log, "skipped", r->skipped);
    log_line_end(r);
}

static int terminal_columns(void) {
    struct winsize window;
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 1;
    return known ? window.ws_col : 80;
}

// The line that a person reads. A terminal sees it renewed in place; a file gets one each 10 s.
static void show_step(Run *r, const Step *s, bool last) {
    bool terminal = isatty(STDOUT_FILENO);
    if (!last && r->step > 1 && r->seconds - r->shown_at < (terminal ? 0.1 : 10.0)) return;
    r->shown_at = r->seconds;
    double part = run_progress(&r->length, r->step, r->tokens);
    char line[256], of[32] = "", floor[32] = "", batch[64] = "";
    if (r->length.steps >= 0) snprintf(of, sizeof of, "/%lld", (long long)r->length.steps);
    if (r->o.batches.rule != BATCH_CONSTANT)
        snprintf(batch, sizeof batch, "  batch %s", count_text((double)r->batch).text);
    if (r->floor.known)
        snprintf(floor, sizeof floor, "  floor %.3f", r->floor.nats / (double)r->floor.tokens);
    snprintf(line, sizeof line, "step %5llu%s  loss %.3f%s  norm %5.2f%s  %s tok/s  %s left",
             (unsigned long long)r->step, of, s->loss, floor, s->grad_norm, batch,
             count_text((double)r->batch / s->costs.seconds).text,
             duration_text(r->seconds / part * (1.0 - part)).text);
    if (terminal) printf("\r%.*s\033[K", terminal_columns() - 1, line);   // wrapped, it would stay
    else printf("%s\n", line);
    fflush(stdout);
}

// Evaluates, logs and shows it; returns the loss.
static double evaluate_and_log(Run *r) {
    Eval e;
    Error err;
    if (!evaluate(&e, &r->model, &r->val, &r->floor, r->inputs, r->targets,
                  (size_t)r->o.eval_tokens, &err)) die("%s", err.text);
    double whole = e.whole.loss / (double)e.whole.tokens;
    double whole_floor = e.whole.floor / (double)e.whole.tokens;
    log_begin(&r->log, "eval");
    log_int(&r->log, "step", (int64_t)r->step);
    log_int(&r->log, "tokens", (int64_t)r->tokens);
    log_int(&r->log, "eval_tokens", (int64_t)e.tokens);
    log_num(&r->log, "elapsed", r->seconds);
    log_num(&r->log, "val_loss", e.loss);
    if (e.whole.tokens > 0) log_num(&r->log, "whole_loss", whole);
    if (e.whole.tokens > 0) log_num(&r->log, "whole_floor", whole_floor);
    log_line_end(r);

    printf("%seval %5llu", isatty(STDOUT_FILENO) ? "\r\033[K" : "", (unsigned long long)r->step);
    if (r->length.steps >= 0) printf("/%lld", (long long)r->length.steps);
    printf("  validation loss %.4f", e.loss);
    double guess = log((double)r->model.c.V);
    if (e.whole.tokens > 0)
        printf("; on whole tales %.4f, at best %.4f: %.0f%% of the way from a guess", whole,
               whole_floor, 100.0 * fmax(0.0, guess - whole) / (guess - whole_floor));
    printf("  (%s)\n", duration_text(r->seconds).text);
    fflush(stdout);
    return e.loss;
}

// What the gradient's noise says about the batch.
static void show_noise(const Run *r) {
    char verdict[192];
    if (!r->o.noise_scale || r->step == 0) return;
    double noise = noise_tokens(&r->noise), batch = (double)r->batch;
    noise_verdict(verdict, sizeof verdict, noise, batch);
    printf("noise       %s (in sequences: %.0f, and %.3g)\n", verdict, batch / r->T, noise / r->T);
    fflush(stdout);
}

// How far HellaSwag has come, and what is left, as show_step does it.
static void show_hellaswag_progress(Run *r, size_t done, double seconds, double *shown_at) {
    bool terminal = isatty(STDOUT_FILENO);
    size_t n = r->hellaswag.n;
    if (done == n || seconds - *shown_at < (terminal ? 0.1 : 10.0)) return;
    *shown_at = seconds;
    char line[128];
    snprintf(line, sizeof line, "hellaswag  %zu of %zu examples  %s left", done, n,
             duration_text(seconds / (double)done * (double)(n - done)).text);
    if (terminal) printf("\r%.*s\033[K", terminal_columns() - 1, line);
    else printf("%s\n", line);
    fflush(stdout);
}

// Answers the next examples from `done` on, `part` on each rank; one that is left without answers
// others once more, since at ZeRO's stage 3 all must take part, and does not count them. A signal
// to any rank ends the run.
static void hellaswag_turn(Run *r, HellaSwagScore *score, size_t done, size_t part) {
    const HellaSwag *h = &r->hellaswag;
    HellaSwagScore own = { 0, 0, 0 };
    size_t first = done + (size_t)r->comm.rank*part;
    bool counts = first < h->n;
    if (!counts) first = 0;
    hellaswag_evaluate(&own, &r->model, h, first, min_size(part, h->n - first), r->inputs,
                       r->targets);
    double sums[] = { (double)own.examples, (double)own.correct, (double)own.correct_norm, 0.0 };
    for (int i = 0; i < 3; i++) if (!counts) sums[i] = 0.0;
    sums[3] = stop_signal ? 1.0 : 0.0;
    comm_add(&r->comm, sums, 4);
    score->examples += (size_t)sums[0];
    score->correct += (size_t)sums[1];
    score->correct_norm += (size_t)sums[2];
    if (sums[3] > 0.0) r->stopping = stop_signal ? stop_signal : SIGTERM;
}

// Answers HellaSwag, logs and shows how well. Ctrl-C ends it with no result.
static void hellaswag_and_log(Run *r) {
    const HellaSwag *h = &r->hellaswag;
    HellaSwagScore s = { 0, 0, 0 };
    size_t B = (size_t)r->o.micro_batch, part = B < ENDINGS ? 1 : B / ENDINGS;   // fills a batch
    double start = seconds_now(), shown_at = 0.0, seconds = 0.0;
    while (s.examples < h->n && !r->stopping) {
        hellaswag_turn(r, &s, s.examples, part);
        seconds = seconds_now() - start;
        show_hellaswag_progress(r, s.examples, seconds, &shown_at);
    }
    printf("%shellaswag  ", isatty(STDOUT_FILENO) ? "\r\033[K" : "");
    if (s.examples < h->n) {
        printf("stopped after %zu of %zu examples\n", s.examples, h->n);
        return;
    }
    double acc = (double)s.correct / (double)h->n, acc_norm = (double)s.correct_norm / (double)h->n;
    printf("acc_norm %.4f of %zu examples (%s)\n", acc_norm, h->n, duration_text(seconds).text);
    fflush(stdout);
    log_begin(&r->log, "hellaswag");
    log_int(&r->log, "step", (int64_t)r->step);
    log_int(&r->log, "tokens", (int64_t)r->tokens);
    log_int(&r->log, "examples", (int64_t)h->n);
    log_int(&r->log, "cut", (int64_t)hellaswag_count_cut(h, r->T));
    log_num(&r->log, "acc", acc);
    log_num(&r->log, "acc_norm", acc_norm);
    log_num(&r->log, "seconds", seconds);
    log_line_end(r);
}

// Lets the model write from the beginning of a text. At ZeRO's stage 3 every rank must, since each
// has a part of the model; rank 0 is heard.
static void show_sample(Run *r) {
    if (r->tokenizer.vocab_size == 0 || (r->comm.rank > 0 && r->model.zero.stage < 3)) return;
    Rng rng = rng_make((uint64_t)r->o.seed, 1000000 + r->step);
    r->text[0] = r->tokenizer.eot;
    printf("%s--- the model writes ---\n", isatty(STDOUT_FILENO) ? "\r\033[K" : "");
    generate(&r->model, &r->tokenizer, &r->sampler, &rng, r->text, 1, r->o.max_new, stdout);
    printf("---\n");
}

// Where the time of the run's updates went, with several ranks.
static void show_costs(const Run *r) {
    const Costs *k = &r->costs;
    if (r->comm.size == 1 || k->updates == 0) return;
    double ms = 1e3 / (double)k->updates;
    printf("of %.1f ms an update, %.1f ms waited for the network (it was busy for %.1f); %.3g MB "
           "sent by a rank, at %.3g GB/s\n", ms * k->seconds, ms * k->comm, ms * k->busy,
           1e-6 * (double)k->bytes_sent / (double)k->updates, bus_gb_per_s(k));
}

static void costs_add(Costs *sum, const Costs *k) {
    sum->seconds += k->seconds;
    sum->comm += k->comm;
    sum->busy += k->busy;
    sum->bytes_sent += k->bytes_sent;
    sum->updates += k->updates;
}

// How it ended, and what to do next.
static void show_end(const Run *r) {
    show_costs(r);
    if (r->stopping) printf("\nstopped after step %llu\n", (unsigned long long)r->step);
    if (!r->o.out || r->saved_step < 0) return;
    printf("kept in %s: log.jsonl and %s; next, for example\n", r->o.out,
           latest_name(r->o.out).text);
    if (r->stopping) printf("  ./" PROGRAM " --resume --out %s\n", r->o.out);
    else if (r->tokenizer.vocab_size > 0)
        printf("  ./" PROGRAM " --init %s --generate \"Once upon a time\"\n", r->o.out);
    printf("  scripts/plot.py %s --out loss.png\n", r->o.out);
}

// This rank's part of the batch, a micro-batch at a time: each forward, backward, and the gradients
// added up. The ranks take contiguous blocks of the same samples that one rank alone would take.
// Returns the sum of the losses.
static double accumulate(Run *r, double *seconds_data) {
    Model *m = &r->model;
    int B = r->o.micro_batch, T = r->T, ranks = r->comm.size;
    size_t samples = (size_t)r->batch / (size_t)T, share;
    uint64_t first;
    // The loss is the mean over the batch: of all ranks, unless each makes updates of its own.
    float scale = (float)(1.0 / (double)(r->batch / (uint64_t)(r->o.outer_every ? ranks : 1)));
    double sum = 0.0;
    Error err;
    loader_rank_block(&first, &share, r->train.samples, samples, r->comm.rank, ranks);
    gradients_zero(m);
    m->zero.squares = 0.0;
    for (size_t i = 0; i < share / B; i++) {
        double before = seconds_now();
        if (!loader_batch(&r->train, first + i*B, B, r->inputs, r->targets, &err))
            die("%s", err.text);
        *seconds_data += seconds_now() - before;
        zero_micro_batch(&m->zero, i, share / B);
        model_forward(m, r->inputs, B, T, 0);
        sum += model_backward(m, r->inputs, r->targets, scale, B, T);
    }
    r->train.samples += samples;
    zero_finish_grads(&m->zero);
    return sum;
}

// Takes down what this update's gradients say about their noise: `big` is the squared length of the
// mean gradient, `smalls` the sum of those of its parts, each scaled as a part of it. An adaptive
// batch takes its next size from it.
static void measure_noise(Run *r, Step *s, double big, double smalls) {
    size_t micro_batches = (size_t)(r->batch / r->o.batches.unit);
    double parts = (double)(zero_smalls(&r->model.zero, micro_batches) * (size_t)r->comm.size);
    GradientNorms n = { parts * smalls, big, (double)r->batch / parts, (double)r->batch };
    s->norms = n;                      // a small gradient is `parts` times what it adds to the mean
    if (!isfinite(n.small) || !isfinite(n.big)) return;
    noise_add(&r->noise, noise_estimate(&n));
    r->next_batch = batch_adapt(&r->o.batches, r->batch, norm_test_batch(&n, r->o.batches.eta));
}

// The loss and the gradient's norm over all ranks, and whether one of them was told to stop.
// Workers that rarely talk have their own until a round is over.
static void combine(Run *r, Step *s, double loss_sum, bool round_over) {
    const Zero *z = &r->model.zero;
    double squares = gradients_squares(&r->model), tokens = (double)r->batch;
    bool apart = r->o.outer_every > 0;
    double sums[] = { loss_sum, z->stage > 0 || z->rank == 0 ? squares : 0.0, stop_signal != 0,
                      z->squares };
    if (!apart || round_over) comm_add(&r->comm, sums, 4);
    if (apart) sums[1] = squares;
    if (apart && !round_over) tokens /= r->comm.size;
    if ((!apart || round_over) && sums[2] > 0.0) r->stopping = stop_signal ? stop_signal : SIGTERM;
    s->loss = fabs(sums[0] / tokens);                  // x86 gives its NaN a minus
    s->grad_norm = fabs(sqrt(sums[1]));
    if (z->measure) measure_noise(r, s, sums[1], sums[3]);
}

// AdamW, unless the gradient is not finite: then parameters and moments stay as they were.
static void update(Run *r, Step *s) {
    const BatchSchedule *b = &r->o.batches;
    s->lr = batch_lr((BatchLr)r->o.batch_lr, lr_at(&r->lr, r->tokens), b, r->batch);
    if (isfinite(s->grad_norm)) {
        bool too_long = r->o.clip > 0.0 && s->grad_norm > r->o.clip;
        double beta2 = batch_beta2((BatchBeta2)r->o.batch_beta2, r->o.beta2, b, r->batch);
        AdamW adamw = { (float)s->lr, (float)r->o.beta1, (float)beta2, 1e-8f,
                        (float)r->o.weight_decay, 0.0 };
        if (r->o.batch_beta2 == BATCH_BETA2_HALFLIFE)
            adamw.v_age = (double)r->tokens / (double)r->batch
                        * ((double)(r->adam_step + 1) / (double)r->step);   // skipped ones left out
        model_update(&r->model, adamw, too_long ? (float)(r->o.clip / s->grad_norm) : 1.0f,
                     ++r->adam_step);
        r->skipped_in_a_row = 0;
    } else {
        r->skipped++;
        r->skipped_in_a_row++;
    }
}

// After this update the ranks have the same parameters: always, or at the end of a round.
static bool round_is_over(const Run *r, uint64_t step, uint64_t tokens) {
    return r->o.outer_every == 0 || step % (uint64_t)r->o.outer_every == 0
        || run_done(&r->length, step, tokens, NAN);
}

// One update: micro-batches until the batch is full, then AdamW.
static void train_step(Run *r, Step *s) {
    Comm *c = &r->comm;
    Costs *k = &s->costs;
    memset(s, 0, sizeof *s);
    double start = seconds_now();
    CommCounters before = comm_counters(c);
    r->batch = r->next_batch = batch_at(&r->o.batches, r->tokens, r->next_batch);
    double loss_sum = accumulate(r, &k->data);
    r->step++;
    r->tokens += r->batch;
    bool round_over = round_is_over(r, r->step, r->tokens);
    double computed = seconds_now();
    CommCounters then = comm_counters(c);
    combine(r, s, loss_sum, round_over);
    update(r, s);
    if (r->o.outer_every && round_over)
        model_outer_update(&r->model, (float)r->o.outer_lr, (float)r->o.outer_momentum);
    CommCounters after = comm_counters(c);
    k->seconds = seconds_now() - start;
    k->comm = after.waited - before.waited;
    k->compute = computed - start - k->data - (then.waited - before.waited);
    k->optimizer = seconds_now() - computed - (after.waited - then.waited);
    k->busy = after.busy - before.busy;
    k->bytes_sent = after.bytes_sent - before.bytes_sent;
    k->updates = 1;
}

// The flags of the run as a JSON object, and what the data was; the caller frees it.
static char *options_json(const Run *r) {
    char *text = NULL;
    size_t n;
    Log json;
    Error err;
    FILE *file = open_memstream(&text, &n);
    if (!file) die("memory: none left for the run's options");
    log_to(&json, file, "the run's options");
    log_begin(&json, "options");
    train_options_echo(&json, &r->o);
    log_int(&json, "train_tokens", (int64_t)r->train.n_tokens);
    if (!log_end(&json, &err)) die("%s", err.text);
    free(json.line);
    fclose(file);
    return text;
}

// A bucket of what this rank has whole, or only its slices of, for a checkpoint.
static const float *bucket_whole(Model *m, float *buffer, bool slices, int bucket) {
    Zero *z = &m->zero;
    Range r = gpt2_bucket(&m->c, bucket);
    if (!slices) return buffer + r.begin;
    comm_wait(z->comm, comm_all_gather(z->comm, m->bucket, buffer + zero_slices_begin(z, bucket),
                                       r.count, sizeof(float)));
    return m->bucket;
}

// What a checkpoint keeps of a Model, bucket by bucket; all ranks are asked at the same time.
static const float *kept_bucket(void *model, Kept what, int worker, int bucket) {
    Model *m = model;
    Zero *z = &m->zero;
    Range r = gpt2_bucket(&m->c, bucket);
    float *moment = what == KEPT_EXP_AVG ? m->adam_m : m->adam_v;
    if (what == KEPT_WEIGHTS) return bucket_whole(m, m->params, z->stage == 3, bucket);
    if (what == KEPT_OUTER_MOMENTUM) return m->outer_momentum + r.begin;
    if (!m->outer_params) return bucket_whole(m, moment, z->stage >= 1, bucket);
    if (z->size == 1) return moment + r.begin;
    memcpy(m->bucket, moment + r.begin, r.count * sizeof(float));      // workers differ in these
    comm_wait(z->comm, worker < 0 ? comm_mean(z->comm, m->bucket, r.count, COMM_FP32)
                       : comm_broadcast(z->comm, m->bucket, r.count * sizeof(float), worker));
    return m->bucket;
}

// Rank 0 saves a checkpoint in --out, and the others hand it what they keep. Returns false when it
// could not, and the run is to go on without.
static bool save(Run *r) {
    if (!r->o.out || r->saved_step == (int64_t)r->step) return true;
    zero_finish_params(&r->model.zero);
    Checkpoint k = {
        r->model.c,
        { (int64_t)r->step, (int64_t)r->tokens, (int64_t)r->train.samples, r->adam_step,
          r->skipped, (uint64_t)r->o.seed, r->seconds, r->o.outer_every ? r->comm.size : 0,
          (int64_t)r->batch, (int64_t)r->next_batch, r->noise.g2, r->noise.s, r->noise.weight },
        options_json(r), kept_bucket, &r->model, false,
        { (const unsigned char *)r->tokenizer_json, r->tokenizer_bytes },
        r->tokenizer.vocab_size > 0 ? r->tokenizer.eot : -1,
    };
    Error err;
    double start = seconds_now(), failed = 0.0;
    if (r->comm.rank > 0) checkpoint_follow(&k);
    else failed = !checkpoint_save(r->o.out, &k, r->o.keep, &err);
    free((char *)k.options);
    if (failed && r->o.on_save_error == SAVE_ERROR_STOP)
        die("%s; the last checkpoint is whole; make room and --resume", err.text);
    if (failed) warn("%s; going on without this checkpoint", err.text);
    comm_add(&r->comm, &failed, 1);
    if (failed > 0.0) return false;
    r->saved_step = (int64_t)r->step;
    log_begin(&r->log, "save");
    log_int(&r->log, "step", (int64_t)r->step);
    log_int(&r->log, "tokens", (int64_t)r->tokens);
    log_num(&r->log, "seconds_save", seconds_now() - start);
    log_line_end(r);
    return true;
}

// One bad batch is skipped and forgotten; weights that have blown up never come back.
static void warn_skipped(const Run *r) {
    if (r->skipped_in_a_row == MAX_SKIPPED_IN_A_ROW)
        die("step %llu: no finite gradient in %d updates: the run has diverged; lower --lr, or "
            "--resume from its last checkpoint", (unsigned long long)r->step, MAX_SKIPPED_IN_A_ROW);
    if ((r->skipped_in_a_row & (r->skipped_in_a_row - 1)) == 0)      // the 1st, 2nd, 4th ...
        warn("step %llu: its gradient is not finite; skipped, the weights are as before",
             (unsigned long long)r->step);
}

static void log_finish(Run *r) {
    log_begin(&r->log, "end");
    log_text(&r->log, "reason", r->stopping ? "interrupted" : "done");
    log_int(&r->log, "step", (int64_t)r->step);
    log_int(&r->log, "tokens", (int64_t)r->tokens);
    log_int(&r->log, "skipped", r->skipped);
    log_num(&r->log, "elapsed", r->seconds);
    log_line_end(r);
}

// A run that is resumed at an update which was evaluated may have reached its target there.
static bool evaluated_at_save(const Run *r) {
    return r->o.target_loss > 0 && r->step > 0
        && period_due(&r->o.eval_every, r->step - 1, r->step, r->tokens - r->batch, r->tokens);
}

// Returns the process's exit status. What looks at the model (evaluations, samples, checkpoints)
// waits until the ranks have the same one: for the end of a round, if there are rounds.
static int train(Run *r) {
    double eval_loss = NAN, clock;
    catch_stop_signals();
    comm_barrier(&r->comm);            // nobody trains before all ranks catch them
    log_start(r);
    if (run_done(&r->length, r->step, r->tokens, eval_loss)) evaluate_and_log(r);   // --steps 0
    else if (evaluated_at_save(r)) eval_loss = evaluate_and_log(r);
    uint64_t step = r->step, tokens = r->tokens;       // when the model was last looked at
    clock = seconds_now();
    while (!r->stopping && !run_done(&r->length, r->step, r->tokens, eval_loss)) {
        Step s;
        train_step(r, &s);
        r->seconds += seconds_now() - clock;
        bool last = run_done(&r->length, r->step, r->tokens, NAN);
        costs_add(&r->costs, &s.costs);
        log_step(r, &s);
        show_step(r, &s, last);
        if (r->skipped_in_a_row > 0) warn_skipped(r);
        if (round_is_over(r, r->step, r->tokens)) {
            bool leaving = r->stopping && r->o.target_loss == 0;   // no target is passed unseen
            if (!leaving
                && (last || period_due(&r->o.eval_every, step, r->step, tokens, r->tokens))) {
                eval_loss = evaluate_and_log(r);
                show_noise(r);
            }
            if (period_due(&r->o.sample_every, step, r->step, tokens, r->tokens)) show_sample(r);
            if (period_due(&r->o.save_every, step, r->step, tokens, r->tokens)) save(r);
            step = r->step;
            tokens = r->tokens;
        }
        clock = seconds_now();
    }
    bool saved = r->step == 0 || save(r);        // however the run ends
    if (r->hellaswag.n > 0 && !r->stopping) hellaswag_and_log(r);
    log_finish(r);
    show_end(r);
    if (r->stopping) return 128 + r->stopping;
    return saved ? 0 : 1;
}

// =================================================================================================
// Main
// =================================================================================================

// The path as a pattern that matches it alone: what glob() would take for a wildcard is escaped.
static void quote_pattern(char *out, size_t size, const char *path) {
    size_t n = 0;
    for (; *path && n + 3 <= size; path++) {
        if (strchr("*?[\\", *path)) out[n++] = '\\';
        out[n++] = *path;
    }
    out[n] = '\0';
}

// The shards of one split: --train or --val, or what is in --data.
static void open_split(Loader *l, const Run *r, const char *glob_flag, const char *split, int T) {
    char pattern[8300], dir[8192];
    Error err;
    if (!glob_flag) quote_pattern(dir, sizeof dir, r->o.data);
    if (glob_flag) snprintf(pattern, sizeof pattern, "%s", glob_flag);
    else snprintf(pattern, sizeof pattern, "%s/*%s*.bin", dir, split);
    if (!loader_open(l, pattern, T, (uint64_t)r->o.seed, &err)) die("%s", err.text);
}

// The tokenizer that turns samples into text: --tokenizer, or the one beside the checkpoint
// (a directory, NULL for a fresh model), or the one beside the data; none at all is no error.
static void open_tokenizer(Run *r, const char *checkpoint) {
    const char *beside[] = { checkpoint, r->o.data };
    char path[5000];
    Error err;
    snprintf(path, sizeof path, "%s", r->o.tokenizer ? r->o.tokenizer : "");
    for (int i = 0; i < 2 && !path[0]; i++) {
        if (beside[i]) snprintf(path, sizeof path, "%s/tokenizer.json", beside[i]);
        if (access(path, F_OK) != 0) path[0] = '\0';
    }
    if (!path[0]) return;
    if (!tokenizer_load(&r->tokenizer, path, &err)) die("%s", err.text);
    FILE *f = open_memstream(&r->tokenizer_json, &r->tokenizer_bytes);
    if (!f) die("memory: none left for the tokenizer");
    tokenizer_print(f, &r->tokenizer);
    fclose(f);
}

// A fresh model's sizes: what the flags say, with the vocabulary of the data.
static Config fresh_config(const Run *r) {
    Config c = { r->o.layers, r->o.heads, r->o.channels, 50257, r->T };
    Error err;
    if (r->tokenizer.vocab_size > 0) c.V = r->tokenizer.vocab_size;
    if (r->train.vocab > 0) c.V = r->train.vocab;
    if (r->o.layers == OPTION_UNSET && !gpt2_preset(&c, r->o.init, &err))
        die("--init: %s", err.text);
    return c;
}

// What --init or --resume names: true, with its place and sizes, when that is a checkpoint; false
// for a fresh model.
static bool find_checkpoint(Path *from, Config *c, const Run *r) {
    Error err;
    bool fresh_name = gpt2_preset(c, r->o.init, &err);
    if (!r->o.resume && (fresh_name || r->o.layers != OPTION_UNSET)) return false;
    const char *where = r->o.resume ? r->o.out : r->o.init;
    if (!r->o.resume && access(where, F_OK) != 0)
        die("--init: %s; nor is there a checkpoint of that name", err.text);
    if (!checkpoint_find(from, where, &err) || !checkpoint_config(c, from->text, &err))
        die("%s", err.text);
    return true;
}

// Who the ranks are, and what each of them keeps.
static void show_ranks(const Run *r) {
    static const char *const stages[] = { "data parallel", "ZeRO stage 1", "ZeRO stage 2",
                                          "ZeRO stage 3" };
    const Comm *c = &r->comm;
    RankMemory bytes = rank_memory(&r->model);
    if (c->size == 1) return;
    printf("ranks   %d on %d machine%s (%s)", c->size, c->hosts, c->hosts == 1 ? "" : "s",
           c->layout);
    if (r->o.outer_every)
        printf(": workers that make %lld updates apart, then a common step\n",
               (long long)r->o.outer_every);
    else
        printf(": %s; gradients travel in %s%s\n", stages[r->model.zero.stage],
               r->o.comm_dtype == COMM_BF16 ? "bf16" : "fp32",
               r->o.exact_sum ? ", added up along one tree" : "");
    printf("memory  a rank keeps %.1f MB of parameters, %.1f of gradients, %.1f of moments; %.1f "
           "more pass through\n", 1e-6 * (double)bytes.params, 1e-6 * (double)bytes.grads,
           1e-6 * (double)bytes.moments, 1e-6 * (double)bytes.passing);
}

// How the batch will change, and what follows it.
static void show_schedule(const Run *r) {
    static const char *const lr[] = { "stays as given", "follows its square root", "follows it" };
    const BatchSchedule *b = &r->o.batches;
    if (b->rule == BATCH_CONSTANT) return;
    printf("        ");
    if (b->rule == BATCH_LINEAR)
        printf("growing to %s over %s tokens", grouped_text((double)b->batch).text,
               count_text((double)b->over).text);
    if (b->rule == BATCH_ADAPTIVE)
        printf("growing up to %s, when the noise of the gradient exceeds %g of it",
               grouped_text((double)batch_most(b)).text, b->eta);
    for (int i = 0; i < b->n_stages; i++)
        printf("%s%s from %s tokens on", i ? ", " : "",
               grouped_text((double)batch_at(b, b->stages[i].tokens, 0)).text,
               count_text((double)b->stages[i].tokens).text);
    printf("; the learning rate %s", lr[r->o.batch_lr]);
    if (r->o.batch_lr)
        printf(", %g at %s", r->o.lr, grouped_text((double)b->batch).text);
    printf("\n");
}

// A batch far below the one that the learning rate was chosen for, and the rate as it was: steps
// of the same length in directions that are noisier.
static void warn_shrunk_batch(const Run *r) {
    double batch = (double)r->o.batches.batch, recipe = (double)r->o.recipe_batch;
    const char *whose = "the recipe's";
    if (r->o.recipe_batch == 0 && !r->o.resume && r->o.layers == OPTION_UNSET) {
        recipe = gpt2_recipe_batch(r->o.init, r->o.lr);
        whose = "the one that GPT-3 of this size was trained with";
    }
    if (recipe < 8.0*batch) return;
    warn("--batch-tokens: %s is %.0f times less than %s, %s, and --lr %g is the same: try "
         "--lr %.2g (by the square root)", grouped_text(batch).text, recipe / batch, whose,
         grouped_text(recipe).text, r->o.lr, r->o.lr * sqrt(batch / recipe));
}

// What is about to happen, in a few lines.
static void show_setup(const Run *r) {
    const Config *c = &r->model.c;
    printf("model   %d layers, %d heads, %d channels, vocabulary %d, %d positions: %s parameters\n",
           c->L, c->NH, c->C, c->V, c->P, count_text((double)r->model.n_params).text);
    printf("data    %s tokens to train on, %s for validation\n",
           count_text((double)r->train.n_tokens).text, count_text((double)r->val.n_tokens).text);
    printf("loss    %.3f nats a token for a uniform guess", log((double)c->V));
    if (r->floor.known)
        printf(", %.3f at best: the corpus's entropy", r->floor.nats / (double)r->floor.tokens);
    uint64_t batch = batch_at(&r->o.batches, r->tokens, r->next_batch);
    printf("\nbatch   %llu tokens an update: ", (unsigned long long)batch);
    if (r->comm.size > 1) printf("%d ranks x ", r->comm.size);
    printf("%llu x %d sequences of %d; %d thread%s%s, " PRECISION "\n",
           (unsigned long long)(batch / r->o.batches.unit), r->o.micro_batch, r->T,
           thread_count(), thread_count() == 1 ? "" : "s", r->comm.size > 1 ? " each" : "");
    show_schedule(r);
    show_ranks(r);
    size_t asked = (size_t)r->o.eval_tokens, there = r->val.n_windows * (size_t)r->T;
    if (asked > there)
        printf("note    --eval-tokens asks for %zu, the validation split has %zu in whole windows; "
               "all are used\n", asked, there);
    int threads = thread_count() * r->comm.local_size;
    if (threads > processors())
        printf("note    %d threads are more than the %d processors here, which makes it slower\n",
               threads, processors());
    if (r->comm.size == 1 && r->o.zero > 0)
        printf("note    --zero %d shares nothing: there is one rank\n", r->o.zero);
    size_t cut = hellaswag_count_cut(&r->hellaswag, r->T);
    if (cut > 0)
        printf("note    %zu of %zu HellaSwag examples are longer than %d tokens and lose their "
               "beginning\n", cut, r->hellaswag.n, r->T);
    if (r->step > 0)
        printf("resumed after step %llu, %s tokens\n", (unsigned long long)r->step,
               count_text((double)r->tokens).text);
    fflush(stdout);                    // the first update may take a while
    warn_shrunk_batch(r);
}

// A tokenizer of another vocabulary would name rows that the embedding does not have.
static void check_tokenizer(const Run *r, const Config *c) {
    if (r->tokenizer.vocab_size > c->V)
        die("--tokenizer: its vocabulary of %d is larger than the model's %d",
            r->tokenizer.vocab_size, c->V);
}

static void open_hellaswag(Run *r) {
    Error err;
    if (!r->o.hellaswag) return;
    if (r->tokenizer.vocab_size == 0)
        die("--hellaswag: its texts need a tokenizer, and there is no tokenizer.json beside the "
            "data or the model; name one with --tokenizer FILE");
    if (!hellaswag_open(&r->hellaswag, r->o.hellaswag, &r->tokenizer, &err)) die("%s", err.text);
}

// One run at a time in --out: two would remove what the other is writing.
static void lock_output(Run *r) {
    Error err;
    if (r->lock < 0 && !checkpoint_lock(&r->lock, r->o.out, &err)) die("--out: %s", err.text);
}

// Makes --out and opens the log. A directory that holds a run is left alone unless told otherwise.
static void open_output(Run *r) {
    char *path = r->log_path;
    Error err;
    log_off(&r->log);
    if (!r->o.resume) r->saved_step = -1;
    if (r->comm.rank > 0) return;
    if (r->o.out) {
        snprintf(path, sizeof r->log_path, "%s/log.jsonl", r->o.out);
        bool saved = checkpoint_exists(r->o.out), holds_run = saved || access(path, F_OK) == 0;
        if (holds_run && !r->o.overwrite && !r->o.resume)
            die("--out: %s holds a run already%s, --overwrite it, or choose another directory",
                r->o.out, saved ? "; --resume it" : ", which ended before its first save");
    }
    if (r->o.log) snprintf(path, sizeof r->log_path, "%s", r->o.log);
    LogMode mode = r->o.resume ? LOG_APPEND : LOG_TRUNCATE;
    // Whatever can be refused is refused before anything is made or removed.
    FILE *probe = r->o.log ? fopen(path, "ab") : NULL;
    if (r->o.log && !probe) die("%s: the log cannot be written: %s", path, strerror(errno));
    if (probe) fclose(probe);
    if (r->o.out) {
        if (!make_directories(r->o.out, &err)) die("--out: %s", err.text);
        lock_output(r);
        if (!checkpoint_begin(r->o.out, &err)) die("--out: %s", err.text);
        if (r->o.overwrite && !checkpoint_clear(r->o.out, &err)) die("--out: %s", err.text);
    }
    if (path[0] && !log_open(&r->log, path, mode, &err)) die("%s", err.text);
}

// Takes over the flags of the run in --out. Before anything else is opened, since they say what.
static void restore_options(Run *r) {
    Path from;
    TrainState state;
    Error err;
    if (!r->o.out) die("--resume: needs --out DIR, the directory of the run to go on with");
    if (r->comm.rank == 0 && access(r->o.out, F_OK) == 0) lock_output(r);
    if (!checkpoint_find(&from, r->o.out, &err)
        || !checkpoint_load_state(&state, &r->saved, from.text, &err))
        die("--resume: %s", err.text);
    const JsonNode *saved = json_get(r->saved.root, "options");
    int seq_len = train_options_given(&r->o, "seq-len") ? r->o.seq_len : -1;
    int64_t seed = train_options_given(&r->o, "seed") ? r->o.seed : -1;
    if (!train_options_restore(&r->o, saved, &err))
        die("--resume: %s", err.text);
    if (seed >= 0 && (uint64_t)seed != state.seed)
        die("--seed: the run began with %llu, which its order of samples depends on; leave it out",
            (unsigned long long)state.seed);
    int64_t saved_len;
    if (seq_len >= 0 && json_get_int(&saved_len, saved, "seq_len", 1, INT32_MAX, &err)
        && saved_len != seq_len)
        die("--seq-len: the run counts samples of %lld tokens; leave it out", (long long)saved_len);
    if (!train_options_check(&r->o, &err)) die("%s", err.text);
}

static void load_params(Model *m, const char *from) {
    TensorFile f;
    Error err;
    if (!tensor_file_open(&f, from, FILE_WEIGHTS, 0, &m->c, &err)) die("%s", err.text);
    for (int b = 0; b < gpt2_n_buckets(&m->c); b++) {
        tensor_file_bucket(zero_place(&m->zero, b), &f, KEPT_WEIGHTS, -1, b);
        zero_keep(&m->zero, b);
    }
    tensor_file_close(&f);
}

// A moment of all parameters, or this rank's slices of it.
static void load_moment(float *moment, Model *m, TensorFile *f, Kept what, int worker) {
    Zero *z = &m->zero;
    for (int b = 0; b < gpt2_n_buckets(&m->c); b++) {
        Slice own = zero_own(z, b);
        float *place = z->stage == 0 ? moment + gpt2_bucket(&m->c, b).begin : m->bucket;
        tensor_file_bucket(place, f, what, worker, b);
        if (z->stage > 0)
            memcpy(moment + zero_slices_begin(z, b), place + own.begin, own.count * sizeof(float));
    }
}

// AdamW's moments. A worker of a DiLoCo run has its own, if there are as many as there were, and
// else begins with the mean of what there was.
static void load_moments(Run *r, const char *from, int64_t workers) {
    Model *m = &r->model;
    TensorFile f;
    Error err;
    bool own = m->outer_params && workers == r->comm.size;
    if (workers > 0 && !own)
        printf("note    the run had %lld workers, each with moments of its own; here go on %d, "
               "from their mean\n", (long long)workers, r->comm.size);
    if (!tensor_file_open(&f, from, own ? FILE_WORKERS : FILE_OPTIMIZER, workers, &m->c, &err))
        die("--resume: %s", err.text);
    load_moment(m->adam_m, m, &f, KEPT_EXP_AVG, own ? r->comm.rank : -1);
    load_moment(m->adam_v, m, &f, KEPT_EXP_AVG_SQ, own ? r->comm.rank : -1);
    tensor_file_close(&f);
    if (!m->outer_params || workers == 0) return;
    if (!tensor_file_open(&f, from, FILE_OUTER, workers, &m->c, &err))
        die("--resume: %s", err.text);
    load_moment(m->outer_momentum, m, &f, KEPT_OUTER_MOMENTUM, -1);
    tensor_file_close(&f);
}

// Sets the run to where the checkpoint stands; after this its next bits are those it would have
// had.
static void restore_state(Run *r, const char *from) {
    TrainState state;
    Json again;
    Error err;
    int64_t tokens;
    if (!checkpoint_load_state(&state, &again, from, &err)) die("--resume: %s", err.text);
    load_moments(r, from, state.workers);
    if (json_get_int(&tokens, json_get(again.root, "options"), "train_tokens", 0, INT64_MAX, &err)
        && (size_t)tokens != r->train.n_tokens)
        die("--resume: the run began on %lld tokens, here are %zu; the data must be the same",
            (long long)tokens, r->train.n_tokens);
    json_free(&again);
    r->step = (uint64_t)state.step;
    r->tokens = (uint64_t)state.tokens;
    r->train.samples = (uint64_t)state.samples;
    r->adam_step = state.adam_steps;
    r->skipped = state.skipped;
    r->batch = state.batch_tokens > 0 ? (uint64_t)state.batch_tokens : r->o.batches.batch;
    if (state.next_batch_tokens > 0)
        r->next_batch = batch_adapt(&r->o.batches, r->next_batch, (double)state.next_batch_tokens);
    NoiseScale noise = { state.noise_g2, state.noise_s, state.noise_weight };
    r->noise = noise;
    uint64_t steps = (uint64_t)r->o.steps;
    if (r->o.tokens <= 0 && r->o.steps > 0 && steps > r->step
        && r->o.batches.rule != BATCH_ADAPTIVE)      // of the batches that are still to come
        r->lr.horizon = batch_tokens_after(&r->o.batches, r->tokens, steps - r->step);
    r->seconds = r->shown_at = state.seconds;
    r->saved_step = state.step;
}

// What every rank must have alike, or together they would train something that nobody asked for.
static void check_ranks(Run *r) {
    Comm *c = &r->comm;
    FileMap program;
    Error err;
    uint64_t hash = 1;
    if (c->size == 1) return;
    if (file_map(&program, "/proc/self/exe", &err)) {  // where the system has it
        hash = hash_add(hash, program.bytes, program.n);
        file_unmap(&program);
    }
    comm_agree(c, "another build of this program", hash);
    char *options = options_json(r);
    comm_agree_json(c, options);
    free(options);
    comm_agree(c, "other data", loader_hash(&r->val, loader_hash(&r->train, 1)));
    uint64_t run[] = { r->step, r->tokens, r->train.samples, (uint64_t)r->adam_step };
    comm_agree(c, "other parameters", hash_add(r->model.zero.hash, run, sizeof run));
}

// A tree that all ranks' micro-batches are added up along has the same shape for each of them.
static void check_exact_sum(const Run *r) {
    int64_t each = (int64_t)(r->o.batches.batch / r->o.batches.unit);
    if (r->o.exact_sum && ((each & (each - 1)) || (r->comm.size & (r->comm.size - 1))))
        die("--exact-sum: needs a power of two of ranks, each with a power of two of "
            "micro-batches; here are %d, with %lld each", r->comm.size, (long long)each);
}

// Scratch for text: what generation reads and writes, and what sampling sorts.
static void open_sampler(Run *r, int text_tokens) {
    r->text = alloc_or_die((size_t)text_tokens * sizeof(int), "a text");
    r->sampler.temperature = (float)r->o.temperature;
    r->sampler.top_k = r->o.top_k;
    r->sampler.top_p = (float)r->o.top_p;
    r->sampler.candidates = alloc_or_die(r->model.c.V * sizeof(Candidate), "a list of candidates");
}

// How the run shares its model among the ranks of `comm`.
static Sharing run_sharing(const Run *r, Comm *comm) {
    uint64_t micro_batches = r->o.batches.batch / r->o.batches.unit;
    Sharing sharing = { comm, r->o.zero, (CommType)r->o.comm_dtype,
                        r->o.exact_sum ? tree_level(micro_batches - 1) + 1 : 0,
                        r->o.outer_every > 0, r->o.no_overlap, measures_noise(&r->o) };
    return sharing;
}

static void run_open(Run *r) {
    Error err;
    Path from;
    Config c;
    bool loaded = find_checkpoint(&from, &c, r);
    r->T = r->o.seq_len > 0 ? r->o.seq_len : loaded ? c.P : 256;
    r->o.seq_len = r->T;
    if (loaded && r->T > c.P)
        die("--seq-len: %d is more than the %d positions of %s", r->T, c.P, from.text);
    if (!train_options_batch(&r->o, r->T, r->comm.size, &err)) die("%s", err.text);
    r->next_batch = batch_start(&r->o.batches);
    check_exact_sum(r);
    if (!train_options_lr(&r->lr, &r->o, &err)) die("%s", err.text);
    open_tokenizer(r, loaded ? from.text : NULL);
    open_split(&r->train, r, r->o.train, "train", r->T);
    open_split(&r->val, r, r->o.val, "val", r->T);
    if (!loaded) c = fresh_config(r);
    check_tokenizer(r, &c);
    if (!loader_check_vocab(&r->train, c.V, &err)) die("%s", err.text);
    if (!loader_check_vocab(&r->val, c.V, &err)) die("%s", err.text);
    if (!floor_open(&r->floor, &r->val, &err)) die("%s", err.text);
    open_hellaswag(r);

    Sharing sharing = run_sharing(r, &r->comm);
    model_init(&r->model, &c, r->o.micro_batch, r->T, TRAIN, &sharing);
    if (loaded) load_params(&r->model, from.text);
    else model_init_params(&r->model, (uint64_t)r->o.seed);
    if (r->o.resume) restore_state(r, from.text);
    if (r->o.outer_every) outer_begin(&r->model);
    check_ranks(r);
    open_output(r);
    size_t batch = (size_t)r->o.micro_batch * r->T;
    r->inputs = alloc_or_die(batch * sizeof(int), "a batch");
    r->targets = alloc_or_die(batch * sizeof(int), "a batch");
    open_sampler(r, r->T + 1);
    r->length = train_options_length(&r->o);
    r->peak_flops = cpu_peak_flops();
}

// ---- --plan: dev/train/plan.h asks, and prints; here is what it cannot know ----

// What a worker of this trainer would allocate: counted by the code that lays it out.
static PlanBytes count_bytes(const PlanFacts *f, const PlanShape *s) {
    const Run *r = f->trainer;
    Comm workers = { .size = s->workers };
    Sharing sharing = run_sharing(r, &workers);
    Model m;
    sharing.zero = s->zero;
    model_plan(&m, &f->c, s->micro_batch, f->T, &sharing);
    m.acts = alloc_or_die(f->c.L * sizeof *m.acts, "a table of activations");
    RankMemory kept = rank_memory(&m);
    double activations = (double)model_carve(&m, TRAIN) * sizeof(float);
    double logits = (double)(m.logit_rows * padded_vocab(&f->c)) * sizeof(float);
    double bucket = m.zero.size > 1 ? (double)gpt2_largest_bucket(&f->c) * sizeof(float) : 0.0;
    double batch = 2.0 * s->micro_batch * f->T * sizeof(int), packed = MC*KC/STEP * sizeof(Word);
    PlanBytes b = { (double)kept.params, (double)kept.grads, (double)kept.moments,
                    activations - logits, logits, (double)kept.passing, bucket + batch + packed };
    free(m.acts);
    zero_free(&m.zero);
    return b;
}

// A model that trains at about the speed of one of these sizes, and is no larger than 768 channels
// and 1024 rows: as many blocks as make 7 million parameters, at least one.
static Config small_config(const Config *c, int T) {
    const int64_t WIDTH = 768;
    int HS = c->C / c->NH < WIDTH ? c->C / c->NH : (int)WIDTH;
    Config small = { 1, c->C > WIDTH ? (int)WIDTH / HS : c->NH, c->C, c->V, T };
    small.C = small.NH * HS;
    int64_t blocks = WIDTH*WIDTH / ((int64_t)small.C*small.C);
    small.L = blocks < c->L ? (int)blocks : c->L;
    if (small.V > 1024) small.V = 1024;
    return small;
}

// How fast this machine trains: the best of a few whole steps of a small model. About a second.
static void measure_speed(PlanMachine *machine, const Config *c, int B, int T) {
    const AdamW adamw = { 1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.0 };
    T = T < 1024 ? T : 1024;
    B = B < 1024 / T ? B : 1024 / T;
    Config small = small_config(c, T);
    size_t N = (size_t)B*T;
    int *tokens = alloc_or_die(N * sizeof(int), "a batch");
    double start = seconds_now(), step = INFINITY, adam = INFINITY;
    Model m;
    for (size_t i = 0; i < N; i++) tokens[i] = (int)(i % (size_t)small.V);
    model_init(&m, &small, B, T, TRAIN, NULL);
    model_init_params(&m, 1);
    for (int i = 0; i < 3 || seconds_now() - start < 0.5; i++) {
        double begin = seconds_now();
        gradients_zero(&m);
        model_forward(&m, tokens, B, T, 0);
        model_backward(&m, tokens, tokens, 1.0f / (float)N, B, T);
        double computed = seconds_now();
        gradients_squares(&m);
        model_update(&m, adamw, 1.0f, i + 1);
        step = fmin(step, computed - begin);
        adam = fmin(adam, seconds_now() - computed);
    }
    machine->speed = gpt2_flops_per_token(&small, T) * (double)N / step;
    machine->speed_from = SPEED_MEASURED;
    machine->adam_seconds = adam / (double)m.n_params;
    model_free(&m);
    free(tokens);
}

// The machine that is planned for: --plan-gpu's, or this one with as many ranks as were started.
static PlanMachine plan_machine(const Run *r) {
    PlanMachine m = plan_machine_here(launched_as(LAUNCH_SIZE, 1));
    Error err;
    if (r->o.plan_gpu && !plan_machine_parse(&m, r->o.plan_gpu, &err)) die("%s", err.text);
    if (!m.gpu && r->o.recompute)
        die("--recompute: only the GPU's trainer, train_gpt2cu, has it; leave it out");
    if (!m.gpu) m.memory = plan_free_memory() / launched_as(LAUNCH_LOCAL_SIZE, 1);
    return m;
}

// Gradients that are kept beside their sum.
static int grad_copies(const Run *r, int workers) {
    uint64_t micro_batches = r->o.batches.batch / r->o.batches.unit;
    if (r->o.exact_sum) return tree_level(micro_batches - 1);
    return measures_noise(&r->o) && workers == 1 ? 1 : 0;
}

// --plan: what the run would take. Rank 0 alone makes it, and finds nobody.
static void run_plan(Run *r) {
    Path from;
    Config c;
    Error err;
    r->comm.size = 1;                            // nobody to part from in the end
    if (launched_as(LAUNCH_RANK, 0) > 0) return;
    PlanMachine machine = plan_machine(r);
    bool loaded = find_checkpoint(&from, &c, r);
    r->T = r->o.seq_len > 0 ? r->o.seq_len : loaded ? c.P : 256;
    if (loaded && r->T > c.P)
        die("--seq-len: %d is more than the %d positions of %s", r->T, c.P, from.text);
    if (!train_options_batch(&r->o, r->T, machine.count, &err)) die("%s", err.text);
    open_tokenizer(r, loaded ? from.text : NULL);
    check_exact_sum(r);
    if (r->o.data || r->o.train) open_split(&r->train, r, r->o.train, "train", r->T);
    if (!loaded) c = fresh_config(r);
    if (machine.speed_from == SPEED_UNKNOWN && !machine.gpu)
        measure_speed(&machine, &c, r->o.micro_batch, r->T);
    PlanFacts f = {
        .c = c, .T = r->T, .machine = machine, .batch_tokens = r->o.batch_tokens,
        .shape = { r->o.micro_batch, machine.count, r->o.zero, r->o.recompute != 0 },
        .tokens = train_options_tokens(&r->o), .grad_copies = grad_copies(r, machine.count),
        .batch_changes = r->o.batches.rule != BATCH_CONSTANT,
        .outer_every = r->o.outer_every, .target_loss = r->o.target_loss,
        .noise_scale = plan_noise_scale(r->o.out), .precision = machine.gpu ? "bf16" : "fp32",
        .grad_bytes = r->o.comm_dtype == COMM_BF16 ? 2 : 4, .param_bytes = machine.gpu ? 2 : 4,
        .in_turn = r->o.no_overlap, .may_recompute = machine.gpu,
        .count = machine.gpu ? plan_gpu_bytes : count_bytes, .trainer = r,
    };
    if (!plan_print(stdout, r->o.log, &f, &err)) die("%s", err.text);
}

// --generate: no training, no data; a checkpoint, its tokenizer and a prompt.
static void run_generate(Run *r) {
    Path from;
    Config c;
    if (!find_checkpoint(&from, &c, r))
        die("--generate: the model is fresh and has learned nothing; name one with --init DIR");
    int T = r->o.seq_len > 0 && r->o.seq_len < c.P ? r->o.seq_len : c.P;
    open_tokenizer(r, from.text);
    if (r->tokenizer.vocab_size == 0)
        die("--generate: %s has no tokenizer.json; name one with --tokenizer FILE", from.text);
    check_tokenizer(r, &c);
    model_init(&r->model, &c, 1, T, INFER, NULL);
    load_params(&r->model, from.text);
    size_t prompt = strlen(r->o.generate);
    open_sampler(r, (int)min_size(prompt, INT32_MAX - T - 2) + T + 1);
    int n = (int)tokenizer_encode(&r->tokenizer, r->text, r->o.generate, prompt);
    if (n == 0) r->text[n++] = r->tokenizer.eot;
    Rng rng = rng_make((uint64_t)r->o.seed, 0);
    fputs(r->o.generate, stdout);
    generate(&r->model, &r->tokenizer, &r->sampler, &rng, r->text, n, r->o.max_new, stdout);
    if (fflush(stdout) != 0 || ferror(stdout))
        die("the text cannot be written: %s", strerror(errno));
}

static void run_close(Run *r) {
    Error err;
    free(r->inputs);
    free(r->targets);
    free(r->text);
    free(r->sampler.candidates);
    free(r->tokenizer_json);
    json_free(&r->saved);
    if (r->lock >= 0) close(r->lock);
    model_free(&r->model);
    tokenizer_free(&r->tokenizer);
    floor_close(&r->floor);
    hellaswag_close(&r->hellaswag);
    loader_close(&r->train);
    loader_close(&r->val);
    comm_close(&r->comm);
    if (!log_close(&r->log, &err)) die("%s", err.text);
}

// A thread that waits for the others spins, for milliseconds, in case they are about to finish.
// That is right on an idle machine and a disaster on a busy one, where it spins in the way of the
// thread it waits for: beside one other busy process, two threads on two cores took 939 ms for a
// step of 31 (gcc's OpenMP, scripts/shakespeare.sh's model); spinning less, as here, 227, and on
// the idle machine 31 still. The setting is read before main begins, so the program starts itself
// anew.
static void wait_politely(char **argv) {
#if defined(_OPENMP) && defined(__linux__)
    const char *preload = getenv("LD_PRELOAD");
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY")) return;
    if (preload && strstr(preload, "vgpreload")) return;     // valgrind would not follow
    setenv("GOMP_SPINCOUNT", "3000", 0);
    setenv("KMP_BLOCKTIME", "1", 0);             // the same for clang's OpenMP, in milliseconds
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) return;
    self[n] = '\0';
    execv(self, argv);                           // where that fails, go on as we are
#else
    (void)argv;
#endif
}

// Finds the other ranks; all but rank 0 fall silent. They watch each other from here on: when one
// is gone, the run ends.
static void open_ranks(Run *r) {
    Error err;
    if (!comm_open(&r->comm, r->o.timeout, &err)) {
        if (r->comm.heartbeat.told) exit(1);         // rank 0 says it
        die("%s", err.text);
    }
    if (r->comm.size == 1) return;
    if (r->o.generate) die("--generate: one rank writes; start it alone");
    if (r->comm.rank > 0 && !freopen("/dev/null", "w", stdout))
        die("/dev/null: cannot be written: %s", strerror(errno));
    const char *advice = r->o.out ? "the last checkpoint is whole: --resume" : "";
    if (!heartbeat_start(&r->comm.heartbeat, advice, &err)) die("%s", err.text);
}

int main(int argc, char **argv) {
    static Run r = { .lock = -1 };
    Error err;
    wait_politely(argv);
    if (!train_options_parse(&r.o, argc, argv, &err)) die("%s", err.text);
    if (r.o.help) {
        train_options_help(stdout);
        return 0;
    }
    int status = 0;
    if (!r.o.plan) open_ranks(&r);
    if (r.o.resume) restore_options(&r);
#ifdef _OPENMP
    if (r.o.threads > 0) omp_set_num_threads(r.o.threads);
#endif
    if (r.o.plan) {
        run_plan(&r);
    } else if (r.o.generate) {
        run_generate(&r);
    } else {
        run_open(&r);
        show_setup(&r);
        status = train(&r);
    }
    run_close(&r);
    return status;
}
