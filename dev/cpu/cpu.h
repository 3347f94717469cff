// cpu: the two functions that take nine tenths of a CPU's time, fast; and what the processor can do.
// Their plain definitions stand in train_gpt2.c.
#pragma once
#include <math.h>
#include <stdbool.h>
#include "../base/base.h"

// e^x for loops: a compiler turns a loop over exp_fast into vector code; it cannot do so with expf.
// Within 2 units in the last place: x = n ln 2 + r with |r| <= ln 2 / 2, a Taylor polynomial
// for e^r, and 2^n written straight into the exponent. No table and no branch. Below -87 it returns
// e^-87, about 1e-38, not zero.
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

// ==== peak.c =====================================================================================
// How many floating-point operations a second this machine can do: the 100% of "model FLOP
// utilisation".
// =================================================================================================

// FLOP/s in fp32.
double cpu_peak_fp32(int threads);

// FLOP/s in bf16 with sums in fp32; 0 where the processor has no instruction for it.
double cpu_peak_bf16(int threads);

// On all threads, in the precision that this build multiplies matrices in.
double cpu_peak_flops(void);

// ==== matmul.c ===================================================================================
// The matrix product, fast: blocked and packed (Goto and van de Geijn 2008, "Anatomy of High-
// Performance Matrix Multiplication").
// =================================================================================================

// Floats in a vector register, and a tile in registers: rows by vectors.
#if defined(__AVX512F__)
enum { LANES = 16, MR = 8, VECTORS = 3 };
#elif defined(__AVX__)
enum { LANES = 8, MR = 6, VECTORS = 2 };
#elif defined(__aarch64__)
enum { LANES = 4, MR = 12, VECTORS = 2 };
#elif defined(__wasm__)
enum { LANES = 4, MR = 4, VECTORS = 2 };           // 25 to 35% faster than 6 rows
#else
enum { LANES = 4, MR = 6, VECTORS = 2 };
#endif

// A Word is what the innermost loop multiplies: in fp32 a float. A bf16 build (make PRECISION=bf16)
// rounds to 16 bits what it packs; sums are fp32 still. With AVX512-BF16 a Word is two such numbers,
// elements k and k + 1 of a line: a step of k is worth two. Without, it is one, in a float.
#ifndef PRECISION_BF16
#define PRECISION "fp32"
typedef float Word;
enum { STEP = 1, ROUNDED = false };
#elif defined(__AVX512BF16__)
#define PRECISION "bf16 products"
#define WORDS_ARE_PAIRS
typedef uint32_t Word;
enum { STEP = 2, ROUNDED = true };
#else
#define PRECISION "bf16 products in fp32"
typedef float Word;
enum { STEP = 1, ROUNDED = true };
#endif

enum { NR = VECTORS*LANES, KC = 384*STEP, MC = 2048/MR*MR };

// A matrix to be read: element (i,j) is data[i*row + j*col]. Swapped strides are a transpose.
typedef struct { const float *data; size_t row, col; } Mat;

typedef enum { WRITE, ADD } Mode;     // C = A*B + bias, or C += A*B

static inline Mat rows_of(const float *x, size_t ld) { Mat m = { x, ld, 1 }; return m; }

static inline Mat transpose_of(const float *x, size_t ld) { Mat m = { x, 1, ld }; return m; }

// A float's bits rounded to the nearest number whose lower half is zero; not-a-number stays that.
uint32_t bf16_round(float x);

// One row of C, columns begin ... end-1: c (N) = x (K) * b (K,N) + bias. Nothing is used twice, so
// nothing is packed: the matrix streams past once, at the speed of memory. This is what generation
// runs on. Either b's rows lie in memory, or its columns do. The order of a sum is not that of a
// product of several rows: LANES of k at a time, or, for columns, a vector of partial sums.
void matvec(float *c, const float *x, Mat b, const float *bias, size_t begin, size_t end,
            size_t K);

// The one buffer of matmul_fast that outlives a call.
enum { MATMUL_STATIC_BYTES = MC*KC/STEP * (int)sizeof(Word) };

// matmul_plain of train_gpt2.c, fast: c (M,N) = a (M,K) * b (K,N) + bias, or c += a*b. Each element
// of c is summed by one thread, in an order that depends on K alone, not on the number of threads.
// Every thread runs the two outer loops; the loops marked `omp for` are shared out among them.
void matmul_fast(float *c, size_t ldc, Mat a, Mat b, const float *bias, size_t M, size_t N,
                 size_t K, Mode mode);

// ---- the same for the small products inside attention, where each thread has its own head ----

// How many Words a matrix (K,N) takes when it is packed whole.
size_t packed_size(size_t K, size_t N);
void pack_whole(Word *dst, Mat b, size_t K, size_t N);

// c (M,N) = a (M,K) * b (K,N), or c += a*b, where b was packed whole, `depth` rows of it.
void matmul_packed(float *c, size_t ldc, Mat a, const Word *b, size_t depth, size_t M, size_t N,
                   size_t K, Mode mode);

// ==== attention.c ================================================================================
// Causal self-attention, fast: attention_forward_plain and attention_backward_plain of
// train_gpt2.c with the same arguments.
// =================================================================================================

enum { QUERIES = 32 };

// How many floats of scratch a thread needs.
size_t attention_scratch(int T, int HS);

// p_i = e^((s_i - max s_i) scale), in place of s; 0 where the key is masked. The sum of row i goes
// to lse as log sum_t e^(s_it scale), and as its inverse to inv_sum.
//   p (rows,width)   lse, inv_sum (rows)   row 0 sees `seen` keys, row i sees seen + i
void attention_softmax(float *p, float *lse, float *inv_sum, int rows, int seen, int width,
                       float scale);

// In generation `past` rows of qkv precede the T of a sequence: the key/value cache.
//   scratch: attention_scratch(past + T, HS) floats for each thread
void attention_forward_fast(float *out, float *lse, float *scratch, const float *qkv, int B,
                            int T, int past, int C, int NH);

// p_i = e^(s_i scale - lse_i), in place of s; 0 where the key is masked.
void attention_weights(float *p, const float *lse, int rows, int seen, int width, float scale);

// With p the weights and d_i = dout_i . out_i:  ds = p (dout v^T - d);  dq = ds k / sqrt(HS);
// dk = ds^T q / sqrt(HS);  dv = p^T dout. s.ds holds ds / sqrt(HS).
void attention_backward_fast(float *dqkv, float *scratch, const float *dout, const float *qkv,
                             const float *out, const float *lse, int B, int T, int C, int NH);

// =================================================================================================
// The machine of train_gpt2.c, as dev/train/train.h asks for it: a processor needs no opening.
// =================================================================================================

struct Machine { double peak_flops; };                 // measured; 0: not yet
