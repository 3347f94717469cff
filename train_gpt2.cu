// Trains GPT-2 on a GPU: the twin of train_gpt2.c, with the same sections in the same order and
// functions of the same names, so that the two can be laid side by side:
//
//     the GPU         what all kernels share
//     shapes          what is stored where
//     matmul          cuBLASLt, behind one function
//     layers          in the order a token meets them: kernels, then the launcher
//     model           the layers in a row, forward and backward
//     optimizer       the gradient's global norm, and AdamW
//     training loop   data, forward, backward, clip, update, again
//     behind the loop generation with a key/value cache, evaluation, memory, the machine
//     main            flags in, model built, loop run
//
// Conventions are those of train_gpt2.c: arrays are row-major, N = B*T rows, gradients have a
// leading d, those of activations are written (=), those of parameters are added (+=). Besides,
//
// - `real` is what activations are stored in, and the weights that layers read: bf16, or float with
//   -DPRECISION_FP32. Sums, statistics, gradients of parameters and what the optimizer keeps are
//   fp32 in both: bf16 has 8 significant bits, too few for long sums.
// - Memory bandwidth bounds every kernel but matmul and attention. So kernels move 16 bytes at a
//   time (a pack), fuse what would otherwise pass through memory twice, and divide their work by
//   rows: mostly, a warp of 32 threads owns a row.
// - The same run has the same bits each time: no sum depends on which block comes first.
// - A function that launches kernels does not wait for them: they run one after the other, messages
//   to other ranks beside them. The CPU waits where it reads a result.
#include <assert.h>
#include <float.h>
#include <math.h>
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#define TRAINS_ON_GPU                  // lets dev/train/options.c take the flags of a GPU
#include "dev/base/base.h"
#include "dev/ranks/ranks.h"
#include "dev/plan/plan.h"
#include "dev/train/train.h"

// =================================================================================================
// The GPU
// =================================================================================================

#if defined(PRECISION_TF32)            // float, and products round their operands to 11 bits
typedef float real;
#define PRECISION "tf32"
#define COMPUTE CUBLAS_COMPUTE_32F_FAST_TF32
#elif defined(PRECISION_FP32)
typedef float real;
#define PRECISION "fp32"
#define COMPUTE CUBLAS_COMPUTE_32F
#else
typedef __nv_bfloat16 real;
#define PRECISION "bf16"
#define COMPUTE CUBLAS_COMPUTE_32F
#endif

static cudaDataType_t type_of(const float *) { return CUDA_R_32F; }
#ifndef PRECISION_FP32
static cudaDataType_t type_of(const real *) { return CUDA_R_16BF; }
#endif

// Errors of CUDA are reported where they show, which may be after the call that caused them; with
// CUDA_LAUNCH_BLOCKING=1 in the environment each shows at its own call.
static void cuda_check(cudaError_t status, const char *call, const char *file, int line) {
    if (status == cudaSuccess) return;
    bool graph = status >= cudaErrorStreamCaptureUnsupported && status <= cudaErrorCapturedEvent;
    die("%s:%d: %.60s: %s%s", file, line, call, cudaGetErrorString(status),
        graph ? "; BATCHWISE_GRAPH=off does without" : "");
}
static void cublas_check(cublasStatus_t status, const char *call, const char *file, int line) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    die("%s:%d: %.60s: %s", file, line, call, cublasLtGetStatusString(status));
}
#define CUDA_CHECK(call) cuda_check((call), #call, __FILE__, __LINE__)
#define CUBLAS_CHECK(call) cublas_check((call), #call, __FILE__, __LINE__)
#define LAUNCH_CHECK() cuda_check(cudaGetLastError(), "the kernel launched above", \
                                  __FILE__, __LINE__)

// ---- packs: 16 bytes of `real`, which a thread loads and stores at once ----

enum { PACK = 16 / sizeof(real) };     // 8 elements in bf16, 4 in fp32

// A pack as it is stored. Loading one of `real` is one access; of floats, in a bf16 build, two.
template <class T> struct Packed { uint4 words[PACK * sizeof(T) / 16]; };

template <class T> __device__ inline void load(float x[PACK], const T *from) {
    Packed<T> pack = *(const Packed<T> *)from;
    uint32_t words[PACK * sizeof(T) / 4];
    memcpy(words, &pack, sizeof pack);           // in registers: the same bits under another name
    #pragma unroll
    for (int k = 0; k < PACK; k++) {             // a bf16 is the upper half of a float
        uint32_t word = words[k * sizeof(T) / 4];
        if (sizeof(T) == 2) word = k % 2 ? word & 0xffff0000 : word << 16;
        x[k] = __uint_as_float(word);
    }
}

template <class T> __device__ inline void store(T *to, const float x[PACK]) {
    Packed<T> pack;
    T numbers[PACK];
    #pragma unroll
    for (int k = 0; k < PACK; k++) numbers[k] = (T)x[k];
    memcpy(&pack, numbers, sizeof pack);
    *(Packed<T> *)to = pack;
}

// A thread's packs of a row: those that begin at elements first, first + step, ... before end.
typedef struct { int first, step, end; } Packs;

// A row that a kernel passes over several times. A thread loads its first KEPT packs once and keeps
// them in registers: all its packs, if the row is of usual length. It loads the others each time.
template <int KEPT> struct Row {
    const real *from;
    Packed<real> packs[KEPT];

    __device__ Row(const real *from, Packs p) : from(from) {     // all loads are under way at once
        #pragma unroll
        for (int i = 0; i < KEPT; i++)
            if (p.first + i*p.step < p.end)
                packs[i] = *(const Packed<real> *)(from + p.first + i*p.step);
    }
    // Pack i, which begins at element c.
    __device__ void get(float x[PACK], int i, int c) const {
        if (i < KEPT) load(x, (const real *)&packs[i]);
        else load(x, from + c);
    }
};

// Calls body(i, c) for each of a thread's packs: i counts them, up to KEPT, and c is the element at
// which the pack begins. The loop over i is unrolled: registers cannot be indexed.
template <int KEPT, class Body> __device__ inline void each_pack(Packs p, Body body) {
    #pragma unroll
    for (int i = 0; i < KEPT; i++)
        if (p.first + i*p.step < p.end) body(i, p.first + i*p.step);
    for (int c = p.first + KEPT*p.step; c < p.end; c += p.step) body(KEPT, c);
}

#include "dev/cuda/ptx.h"              // copy_async, load_matrices, mma, exp2_fast

// ---- warps ----

__device__ inline size_t thread_in_grid() { return (size_t)blockIdx.x*blockDim.x + threadIdx.x; }
__device__ inline int lane() { return threadIdx.x % 32; }
__device__ inline int warp_in_block() { return threadIdx.x / 32; }

__device__ inline float warp_sum(float x) {
    for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(~0u, x, i);
    return x;
}

__device__ inline double warp_sum(double x) {
    for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(~0u, x, i);
    return x;
}

__device__ inline float warp_max(float x) {
    for (int i = 16; i > 0; i /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, i));
    return x;
}

// The sum over the whole block, of at most 32 warps, to thread 0.
__device__ inline double block_sum(double x) {
    __shared__ double of_warp[32];
    x = warp_sum(x);
    if (lane() == 0) of_warp[warp_in_block()] = x;
    __syncthreads();                             // all warps' sums are there
    x = threadIdx.x < blockDim.x / 32 ? of_warp[threadIdx.x] : 0.0;
    return warp_in_block() == 0 ? warp_sum(x) : 0.0;
}

static unsigned blocks_for(size_t n, size_t per_block) {
    return (unsigned)((n + per_block - 1) / per_block);
}

// A block gets 48 KB of shared memory on every GPU; more must be asked for.
template <class Kernel> static void allow_shared(Kernel *kernel, size_t bytes) {
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    (int)bytes));
}

// ---- the device ----

// cuBLASLt's. A product that is split along K keeps a partial sum of its result for each part: the
// weight gradients of a block of GPT-2 124M take up to 9 MB, and are fastest in 2 to 8 parts.
static const size_t WORKSPACE_BYTES = 128 << 20;
static const size_t SCRATCH_FLOATS = 4 << 20;     // for partial sums
static const size_t MACHINE_BYTES = WORKSPACE_BYTES + SCRATCH_FLOATS * sizeof(float);

// What a launcher needs besides its arguments.
struct Machine {
    cudaDeviceProp properties;
    cudaStream_t stream;
    cublasLtHandle_t blas;
    void *workspace;                   // cuBLASLt's
    float *scratch;                    // (SCRATCH_FLOATS)
    struct Product *products;          // dev/cuda/product.h: the last ones chosen
    int n_products;                    // chosen so far
    bool graphs;                       // a micro-batch's launches as one; BATCHWISE_GRAPH=off: not
    int ranks;
    int beside;                        // multiprocessors for products beside messages; 0: all
    bool messages;                     // travel beside what is launched now
    double peak_flops;                 // measured; 0: not yet
};
typedef Machine Gpu;

static void gpu_wait(const Gpu *g) { CUDA_CHECK(cudaStreamSynchronize(g->stream)); }

// The time between two events that the GPU has passed.
static double gpu_seconds(cudaEvent_t begin, cudaEvent_t end) {
    float milliseconds = 0.0f;
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
    return 1e-3 * milliseconds;
}

#include "dev/cuda/graph.h"            // graph_run
#include "dev/ranks/kernels.cu"        // what ranks, the noise scale and DiLoCo ask of a GPU

// =================================================================================================
// Shapes
// =================================================================================================

// The parameters of a LayerNorm as kernels read them, Norm<real>, or their gradients, Norm<float>.
template <class T> struct Norm {
    T *gain, *bias;                    // (C)
};

// What its forward pass writes.
typedef struct {
    real *out;                         // (N,C)
    float *mean, *rstd;                // (N) kept for the backward pass
} NormActs;

// The parameters of one block, or their gradients. train_gpt2.c has a picture of the block.
template <class T> struct Block {
    Norm<T> ln1, ln2;                  // before attention, and before the MLP
    // Attention: into queries, keys and values, and out of the heads
    T *qkv_w, *qkv_b;                  // (C,3C) (3C)
    T *att_proj_w, *att_proj_b;        // (C,C) (C)
    // MLP: up to four times the width, and down again
    T *fc_w, *fc_b;                    // (C,4C) (4C)
    T *mlp_proj_w, *mlp_proj_b;        // (4C,C) (C)
};

// All parameters, or their gradients.
template <class T> struct Weights {
    T *wte, *wpe;                      // (Vp,C) a vector for each token; (P,C) for each position
    Block<T> *block;                   // (L)
    Norm<T> lnf;                       // the final LayerNorm
};

// What one block's forward pass keeps for its backward pass. With --recompute block all blocks
// share these, except x and x_out, and each fills them anew in the backward pass.
typedef struct {
    real *x;                           // (N,C) what enters the block: x_out of the one before
    NormActs ln1;                      // (N,C)
    real *qkv;                         // (N,3C); in generation it is the key/value cache
    real *att;                         // (N,C)
    float *att_lse;                    // (B,NH,T) log of each softmax's denominator
    real *x_mid;                       // (N,C) the residual stream between attention and MLP
    NormActs ln2;                      // (N,C)
    real *fc, *gelu;                   // (N,4C)
    real *x_out;                       // (N,C) the residual stream after the block
} BlockActs;

// A micro-batch, on the CPU or on the GPU. For the embedding's gradient its tokens are sorted: the
// positions of the w-th distinct token are order[begin[w]] ... order[begin[w+1] - 1].
typedef struct {
    int *inputs, *targets, *order, *begin;       // (N) (N) (N) (N+1)
    float *scale;                                // (1) what each token's loss is multiplied by
} Batch;

// Points of an update between which time is measured.
typedef enum { COMPUTED, NORM_KNOWN, ALL_KNOWN, UPDATED, N_MARKS } UpdateMark;

struct Model {
    Gpu *gpu;
    Config c;                          // L, NH, C, V, and P positions
    int Cn, NHn;                       // a block's channels and heads here: C and NH, or a part
    Config padded;                     // the same with V rounded up; rows V ... are 0 and stay 0
    ModelSpec spec;                    // max B and T, recompute, and how ranks share the model
    Params params;                     // the flat buffers, and how ranks share them
    Memory memory;                     // the one allocation that everything on the GPU lies in
    Weights<real> w;                   // parameters as layers read them
    Weights<float> dw;                 // their gradients
    Batch batch, host_batches[2];      // the CPU fills one while the GPU copies the other
    cudaEvent_t sent[2];               // host batch i has been copied
    int now;                           // the host batch in use, 0 or 1
    int *token_count;                  // (V) scratch of the CPU, for sorting tokens
    real *x_in;                        // (N,C) embeddings
    BlockActs *acts;                   // (L)
    NormActs lnf;                      // (N,C)
    float *loss, *lse;                 // (N) nats per token
    real *logits;                      // (logit_rows,Vp): the classifier works in chunks of rows
    size_t logit_rows;
    float *next_logits, *host_logits;  // (Vp) of the one token that generation asks for
    real *dx, *dx_branch;              // (N,C) gradient of the residual stream, and of a branch
    real *dqkv, *dfc;                  // (N,3C) (N,4C), in the memory of the logits
    float2 *att_rows;                  // (B,NH,T) scratch of attention's backward pass
    Totals *totals;                    // of this rank since clear_grads, on the GPU
    Totals *all_totals, *host_totals;  // (ranks) of all, on the GPU and on the CPU
    const Totals *collected;           // all_totals, or totals where this rank's alone count
    float *g_scale;                    // (1) what clipping multiplies gradients by
    Graph graph;                       // the launches of a micro-batch
    cudaEvent_t marks[N_MARKS];
    double waited;                     // seconds of waiting for other ranks, until the totals came
};

// =================================================================================================
// Matmul
// =================================================================================================
//
// cuBLASLt does for a GPU what dev/cpu/matmul.c does for a CPU. It takes column-major matrices. A
// row-major matrix has the same bytes as its column-major transpose, so c = a b is requested as
// c^T = b^T a^T: the operands change places, and nothing is copied.
//
// An epilogue is work on a product's result while it is still in registers, where it costs little:
// a bias, GELU, GELU's gradient. cuBLASLt does not have every epilogue for every type and shape. If
// it lacks one, matmul_fused does nothing and returns false; the layer then runs a plain product
// and a kernel. It could also sum the rows of a product, the bias's gradient: three times as slow
// as a kernel (H200: 1.86 ms against 0.58 and 0.11, for 65,536 tokens of GPT-2 124M).
//
// cuBLASLt has many kernels (algorithms) for a product, and a heuristic that ranks them: the first
// runs. On an H200 a step of 32 sequences or more is no faster with the fastest of the first 16,
// each timed alone.

typedef enum { WRITE, ADD } Mode;      // C = A*B, or C += A*B

typedef enum {
    NO_EPILOGUE,
    ADD_BIAS,                          // + vector (N)
    ADD_BIAS_RESIDUAL,                 // + vector + other (M,N)
    ADD_BIAS_GELU,                     // other (M,N) = A*B + vector; C = gelu(other)
    GELU_GRADIENT,                     // C = A*B * gelu'(other)
} EpilogueKind;
typedef struct { EpilogueKind kind; const void *vector; const real *other; } Epilogue;

// A matrix to be read, as it is stored or transposed; ld elements from one row to the next.
typedef struct { const real *data; size_t ld; cublasOperation_t op; } Mat;

static Mat rows_of(const real *x, size_t ld) { Mat m = { x, ld, CUBLAS_OP_N }; return m; }
static Mat transpose_of(const real *x, size_t ld) { Mat m = { x, ld, CUBLAS_OP_T }; return m; }

#include "dev/cuda/product.h"          // product_run

// c (M,N) = a (M,K) * b (K,N), or c += a*b, and what the epilogue does to it. c is real or float,
// and sums are fp32. Rows must begin at multiples of 16 bytes. False, and nothing done, when
// cuBLASLt lacks the epilogue here.
template <class T>
static bool matmul_fused(T *c, size_t ldc, Mat a, Mat b, Epilogue e, size_t M, size_t N, size_t K,
                         Mode mode, Gpu *g) {
    bool residual = e.kind == ADD_BIAS_RESIDUAL;
    const void *added = residual ? (const void *)e.other : c;
    Operands x = { c, a.data, b.data, added, mode == ADD || residual ? 1.0f : 0.0f, e.vector,
                   residual ? NULL : e.other };
    ProductKey key = { M, N, K, a.ld, b.ld, ldc, multiprocessors_left(g), a.op, b.op, type_of(c),
                       e.kind };
    return product_run(&key, &x, g);
}

// c = a * b, or c += a*b
template <class T>
static void matmul(T *c, size_t ldc, Mat a, Mat b, size_t M, size_t N, size_t K, Mode mode,
                   Gpu *g) {
    static const Epilogue none = { NO_EPILOGUE, NULL, NULL };
    if (!matmul_fused(c, ldc, a, b, none, M, N, K, mode, g))
        die("cuBLASLt has no product for M=%zu, N=%zu, K=%zu on this GPU", M, N, K);
}

// =================================================================================================
// Layers
// =================================================================================================

// ---- embedding: x[b,t] = wte[token[b,t]] + wpe[t] ----
//   x (B,T,C)   token (B,T)   wte (V,C)   wpe (P,C)
// A vector for the token and a vector for its position, both learned. A token of -1 is unknown
// here: its row of x is 0.

// A warp owns a row: position y of sequence x.
__global__ void embedding_forward_kernel(real *x, const int *token, const real *wte,
                                         const real *wpe, int T, int C) {
    int t = blockIdx.y*8 + warp_in_block();
    size_t n = (size_t)blockIdx.x*T + t;
    for (int c = lane()*PACK; t < T && c < C; c += 32*PACK) {
        float word[PACK] = {0}, place[PACK] = {0};
        if (token[n] >= 0) load(word, wte + (size_t)token[n]*C + c);
        if (token[n] >= 0) load(place, wpe + (size_t)t*C + c);
        for (int k = 0; k < PACK; k++) word[k] += place[k];
        store(x + n*C + c, word);
    }
}

static void embedding_forward(real *x, const int *token, const real *wte, const real *wpe,
                              int B, int T, int C, cudaStream_t stream) {
    dim3 blocks(B, blocks_for(T, 8));
    embedding_forward_kernel<<<blocks, 256, 0, stream>>>(x, token, wte, wpe, T, C);
    LAUNCH_CHECK();
}

// A counting sort of positions 0 ... N-1 by their token, on the CPU while the GPU is still busy.
// Positions of one token keep their order, so that sums over them always have the same order.
// Tokens of -1 are left out. Returns how many distinct tokens there are.
//   order (N)   begin (N+1), as in Batch   count: scratch (V)
static int tokens_sort(int *order, int *begin, int *count, const int *token, size_t N, int V) {
    int words = 0, at = 0;
    memset(count, 0, V * sizeof *count);
    for (size_t n = 0; n < N; n++) if (token[n] >= 0) count[token[n]]++;
    for (int v = 0; v < V; v++) {
        if (count[v] == 0) continue;
        begin[words++] = at;
        at += count[v];
        count[v] = at - count[v];                // from here on, where the next position goes
    }
    begin[words] = at;
    for (size_t n = 0; n < N; n++) if (token[n] >= 0) order[count[token[n]]++] = (int)n;
    return words;
}

// A block owns 32 packs of one token's row. Its 8 warps divide the positions where the token occurs
// (one, or a thousand for a comma), and add their sums in shared memory.
__global__ void embedding_backward_words_kernel(float *dwte, const real *dx, const int *token,
                                                const int *order, const int *begin, int C) {
    enum { COLUMNS = 32*PACK };
    __shared__ __align__(16) float sums[8][COLUMNS];
    int c = blockIdx.y*COLUMNS + lane()*PACK;
    float sum[PACK] = {0}, x[PACK];
    for (int i = begin[blockIdx.x] + warp_in_block(); c < C && i < begin[blockIdx.x + 1]; i += 8) {
        load(x, dx + (size_t)order[i]*C + c);
        for (int k = 0; k < PACK; k++) sum[k] += x[k];
    }
    store(sums[warp_in_block()] + lane()*PACK, sum);
    __syncthreads();                             // the sums of all warps are there
    int column = threadIdx.x, at = blockIdx.y*COLUMNS + column;
    if (column >= COLUMNS || at >= C) return;
    float total = 0.0f;
    for (int w = 0; w < 8; w++) total += sums[w][column];
    dwte[(size_t)token[order[begin[blockIdx.x]]]*C + at] += total;
}

// Thread i owns pack i of dwpe.
__global__ void embedding_backward_places_kernel(float *dwpe, const real *dx, int B, int T, int C) {
    size_t i = thread_in_grid() * PACK, TC = (size_t)T*C;
    if (i >= TC) return;
    float sum[PACK], x[PACK];
    load(sum, dwpe + i);
    for (int b = 0; b < B; b++) {
        load(x, dx + b*TC + i);
        for (int k = 0; k < PACK; k++) sum[k] += x[k];
    }
    store(dwpe + i, sum);
}

//   order, begin: the tokens sorted (tokens_sort), of which `words` are distinct
static void embedding_backward(float *dwte, float *dwpe, const real *dx, const int *token,
                               const int *order, const int *begin, int words,
                               int B, int T, int C, cudaStream_t stream) {
    dim3 blocks(words, blocks_for(C, 32*PACK));
    if (words > 0)                               // else all tokens are -1
        embedding_backward_words_kernel<<<blocks, 256, 0, stream>>>(dwte, dx, token, order, begin,
                                                                    C);
    LAUNCH_CHECK();
    embedding_backward_places_kernel<<<blocks_for((size_t)T*C, 256*PACK), 256, 0, stream>>>(
        dwpe, dx, B, T, C);
    LAUNCH_CHECK();
}

// ---- column sums of a matrix, in two stages ----
// The gradients of gains and biases are such sums. First each block sums some of the rows into one
// row of `partials`. The kernel below then adds those rows, in order, to what is in out.

enum { MAX_PARTS = 512 };

// How many partial sums of so many columns there are room and use for.
static int column_parts(size_t columns, size_t rows, size_t rows_a_part) {
    size_t parts = min_size(MAX_PARTS, SCRATCH_FLOATS / columns);
    return (int)min_size(parts, (rows + rows_a_part - 1) / rows_a_part);
}

// What several sets of columns are added to, C floats each; NULL: that set is not wanted.
typedef struct { float *set[3]; } ColumnSums;

// A block owns 32 columns, a warp of it every 32nd part. Of several sets of columns side by side,
// as LayerNorm has them, blocks with y = i have set i.
//   partials (parts,sets,C)
template <class T>
__global__ void column_sums_kernel(ColumnSums to, const T *partials, int parts, int C) {
    __shared__ float sums[32][32];
    int c = blockIdx.x*32 + lane();
    size_t ld = (size_t)gridDim.y*C;
    int set = blockIdx.y;              // registers cannot be indexed
    float *out = set == 0 ? to.set[0] : set == 1 ? to.set[1] : to.set[2], sum = 0.0f;
    if (!out) return;
    for (int p = warp_in_block(); c < C && p < parts; p += 32)
        sum += (float)partials[p*ld + blockIdx.y*C + c];
    sums[warp_in_block()][lane()] = sum;
    __syncthreads();                             // the sums of all warps are there
    if (warp_in_block() > 0 || c >= C) return;
    for (int w = 1; w < 32; w++) sum += sums[w][lane()];
    out[c] += sum;
}

template <class T>
static void column_sums_add(ColumnSums to, int sets, const T *partials, int parts, int C,
                            cudaStream_t stream) {
    dim3 blocks(blocks_for(C, 32), sets);
    column_sums_kernel<T><<<blocks, 1024, 0, stream>>>(to, partials, parts, C);
    LAUNCH_CHECK();
}

// ---- LayerNorm: out = (x - mean) * rstd * gain + bias, with rstd = 1/sqrt(var + 1e-5) ----
//   out, x (N,C)   mean, rstd (N)   gain, bias (C)
// Mean and variance are those of a row: each token's C channels (Ba et al. 2016, arXiv 1607.06450).

// A lane's packs of a row of 1024 channels, and of 1792 for the larger models; half in fp32.
enum { NORM_KEPT = 4, NORM_KEPT_LONG = 7 };
static int norm_kept(int C) { return C > 32*PACK*NORM_KEPT ? NORM_KEPT_LONG : NORM_KEPT; }

// Warp n owns row n.
template <int KEPT>
__global__ void layernorm_forward_kernel(real *out, float *mean, float *rstd, const real *x,
                                         const real *gain, const real *bias, size_t N, int C) {
    size_t n = thread_in_grid() / 32;
    if (n >= N) return;                          // the whole warp leaves together
    Packs packs = { lane()*PACK, 32*PACK, C };
    float v[PACK], sum = 0.0f, squares = 0.0f;
    Row<KEPT> row(x + n*C, packs);
    each_pack<KEPT>(packs, [&](int i, int c) {
        row.get(v, i, c);
        for (int k = 0; k < PACK; k++) sum += v[k];
    });
    float m = warp_sum(sum) / C;
    each_pack<KEPT>(packs, [&](int i, int c) {
        row.get(v, i, c);
        for (int k = 0; k < PACK; k++) squares += (v[k] - m) * (v[k] - m);
    });
    float r = 1.0f / sqrtf(warp_sum(squares) / C + 1e-5f);
    each_pack<KEPT>(packs, [&](int i, int c) {
        float g[PACK], shift[PACK];
        row.get(v, i, c);
        load(g, gain + c);
        load(shift, bias + c);
        for (int k = 0; k < PACK; k++) v[k] = (v[k] - m) * r * g[k] + shift[k];
        store(out + n*C + c, v);
    });
    if (lane() == 0) mean[n] = m;
    if (lane() == 0) rstd[n] = r;
}

static void layernorm_forward(NormActs a, const real *x, Norm<real> w, size_t N, int C,
                              cudaStream_t stream) {
    auto *kernel = norm_kept(C) == NORM_KEPT ? layernorm_forward_kernel<NORM_KEPT>
                                             : layernorm_forward_kernel<NORM_KEPT_LONG>;
    kernel<<<blocks_for(N, 8), 256, 0, stream>>>(a.out, a.mean, a.rstd, x, w.gain, w.bias, N,
                                                 C);
    LAUNCH_CHECK();
}

// With xhat = (x - mean) * rstd and g = dout * gain:
// dx = (g - mean(g) - xhat * mean(g * xhat)) * rstd; dgain += sum dout * xhat; dbias += sum dout.
// Where the residual stream branched off, the gradient that came along it is added: dx += skip.
// That gradient is also what the last product of the branch goes back from, so its bias's gradient
// is summed here: db += sum skip.

// Four columns of a warp's sums lie side by side, those from column c on at this place. The halves
// of packs lie apart, so that the lanes of a warp are 16 bytes from each other: no bank conflicts.
__device__ inline unsigned column_place(unsigned c, unsigned half, unsigned C) {
    return half*(C/PACK) + c/PACK;
}

// Adds a pack to a warp's sums of columns c ...
__device__ inline void columns_add(float *sums, const float x[PACK], int c, int C) {
    for (int k = 0; k < PACK; k += 4) {
        float4 *at = (float4 *)sums + column_place(c, k/4, C), sum = *at;
        sum.x += x[k];
        sum.y += x[k + 1];
        sum.z += x[k + 2];
        sum.w += x[k + 3];
        *at = sum;
    }
}

// Blocks of 8 warps on a multiprocessor, whose registers hold no more.
static constexpr int norm_blocks(int kept) {
    return kept > NORM_KEPT || sizeof(real) == sizeof(float) ? 1 : 2;
}

// A warp owns a row, then the one that is as many rows further as there are warps. All that it
// reads of a row is under way at once, 4.6 KB for 768 channels. dx may be skip.
// It adds up its columns in shared memory that no other warp touches; at the end the warps' sums
// become the block's.
//   partials (blocks,3,C)
template <int KEPT>
__global__ void __launch_bounds__(256, norm_blocks(KEPT))
layernorm_backward_kernel(real *dx, float *partials, const real *skip, const real *dout,
                          const real *x, const float *mean, const float *rstd, const real *gain,
                          size_t N, int C) {
    extern __shared__ __align__(16) float column_sums[];          // (warps,3,C)
    int warps = blockDim.x / 32;
    Packs packs = { lane()*PACK, 32*PACK, C };
    float *dgain = column_sums + (size_t)warp_in_block()*3*C, *dbias = dgain + C, *db = dbias + C;
    for (int c = lane(); c < 3*C; c += 32) dgain[c] = 0.0f;
    __syncwarp();                                // zeros are there before other lanes add to them
    for (size_t n = (size_t)blockIdx.x*warps + warp_in_block(); n < N; n += gridDim.x*warps) {
        float m = mean[n], r = rstd[n], sum_g = 0.0f, sum_gx = 0.0f;
        float d[PACK], v[PACK], g[PACK];
        Row<KEPT> dout_row(dout + n*C, packs), x_row(x + n*C, packs);
        Row<KEPT> skip_row((skip ? skip : x) + n*C, packs);
        each_pack<KEPT>(packs, [&](int i, int c) {
            dout_row.get(d, i, c);
            x_row.get(v, i, c);
            load(g, gain + c);
            columns_add(dbias, d, c, C);
            for (int k = 0; k < PACK; k++) {
                float xhat = (v[k] - m) * r;
                sum_g += d[k] * g[k];
                sum_gx += d[k] * g[k] * xhat;
                d[k] *= xhat;
            }
            columns_add(dgain, d, c, C);
        });
        float mean_g = warp_sum(sum_g) / C, mean_gx = warp_sum(sum_gx) / C;
        each_pack<KEPT>(packs, [&](int i, int c) {
            dout_row.get(d, i, c);
            x_row.get(v, i, c);
            load(g, gain + c);
            float came[PACK] = {0};
            if (skip) {
                skip_row.get(came, i, c);
                columns_add(db, came, c, C);
            }
            for (int k = 0; k < PACK; k++)
                d[k] = (d[k]*g[k] - mean_g - (v[k] - m) * r * mean_gx) * r + came[k];
            store(dx + n*C + c, d);
        });
    }
    __syncthreads();                             // all warps have added up their rows
    for (int i = threadIdx.x; i < 3*C; i += blockDim.x) {
        int c = i % C, place = i - c + 4*column_place(c, c % PACK / 4, C) + c % 4;
        float sum = 0.0f;
        for (int w = 0; w < warps; w++) sum += column_sums[(size_t)w*3*C + place];
        partials[(size_t)blockIdx.x*3*C + i] = sum;
    }
}

typedef struct { int blocks, warps; size_t bytes; } NormGrid;

// As many warps a block as their sums have room for, and one wave of blocks: with a few more than a
// wave, most multiprocessors would wait for those.
static NormGrid layernorm_grid(size_t N, int C, const cudaDeviceProp *p) {
    NormGrid grid = { 0, 8, 0 };
    size_t of_warp = 3*(size_t)C * sizeof(float);
    while (grid.warps > 1 && grid.warps*of_warp > p->sharedMemPerBlockOptin) grid.warps /= 2;
    grid.bytes = grid.warps*of_warp;
    size_t room = p->sharedMemPerMultiprocessor / (grid.bytes + p->reservedSharedMemPerBlock);
    size_t wave = min_size(room, norm_blocks(norm_kept(C))) * p->multiProcessorCount;
    grid.blocks = (int)min_size(wave > 0 ? wave : 1, column_parts(3*(size_t)C, N, grid.warps));
    return grid;
}

//   skip (N,C), or NULL: nothing is added, and db does not change
//   a, w        what the forward pass kept, and its parameters, whose gradients are dw
static void layernorm_backward(real *dx, Norm<float> dw, float *db, const real *skip,
                               const real *dout, const real *x, NormActs a, Norm<real> w,
                               size_t N, int C, Gpu *g) {
    NormGrid grid = layernorm_grid(N, C, &g->properties);
    auto *kernel = norm_kept(C) == NORM_KEPT ? layernorm_backward_kernel<NORM_KEPT>
                                             : layernorm_backward_kernel<NORM_KEPT_LONG>;
    allow_shared(kernel, grid.bytes);
    kernel<<<grid.blocks, 32*grid.warps, grid.bytes, g->stream>>>(
        dx, g->scratch, skip, dout, x, a.mean, a.rstd, w.gain, N, C);
    LAUNCH_CHECK();
    column_sums_add({ dw.gain, dw.bias, skip ? db : NULL }, 3, g->scratch, grid.blocks, C,
                    g->stream);
}

// ---- linear: out = x w + b ----
//   out (N,OC)   x (N,C)   w (C,OC)   b (OC)

// Thread i owns pack i: out += bias, and += skip unless it is NULL. For products without the
// epilogue, whose out has been rounded already.
__global__ void bias_forward_kernel(real *out, const real *bias, const real *skip, size_t n,
                                    int OC) {
    size_t i = thread_in_grid() * PACK;
    if (i >= n) return;
    float sum[PACK], b[PACK], came[PACK] = {0};
    load(sum, out + i);
    load(b, bias + i % OC);
    if (skip) load(came, skip + i);
    for (int k = 0; k < PACK; k++) sum[k] += b[k] + came[k];
    store(out + i, sum);
}

// out = x w + b + skip: linear_forward and residual_forward in one. skip (N,OC) may be NULL, but
// not out itself.
static void linear_residual_forward(real *out, const real *skip, const real *x, const real *w,
                                    const real *b, size_t N, int C, int OC, Gpu *g) {
    Epilogue adds = { skip ? ADD_BIAS_RESIDUAL : ADD_BIAS, b, skip };
    if (matmul_fused(out, OC, rows_of(x, C), rows_of(w, OC), adds, N, OC, C, WRITE, g)) return;
    matmul(out, OC, rows_of(x, C), rows_of(w, OC), N, OC, C, WRITE, g);
    bias_forward_kernel<<<blocks_for(N*OC, 256*PACK), 256, 0, g->stream>>>(out, b, skip, N*OC, OC);
    LAUNCH_CHECK();
}

static void linear_forward(real *out, const real *x, const real *w, const real *b,
                           size_t N, int C, int OC, Gpu *g) {
    linear_residual_forward(out, NULL, x, w, b, N, C, OC, g);
}

// A block owns 32 packs of columns and a part of the rows, which its 8 warps share out.
//   partials (parts,OC)
__global__ void bias_backward_kernel(float *partials, const real *dout, size_t N, int OC) {
    enum { COLUMNS = 32*PACK };
    __shared__ __align__(16) float sums[8][COLUMNS];         // written by packs
    int c = blockIdx.x*COLUMNS + lane()*PACK;
    float sum[PACK] = {0}, d[PACK];
    for (size_t n = blockIdx.y*8 + warp_in_block(); c < OC && n < N; n += gridDim.y*8) {
        load(d, dout + n*OC + c);
        for (int k = 0; k < PACK; k++) sum[k] += d[k];
    }
    store(sums[warp_in_block()] + lane()*PACK, sum);
    __syncthreads();                             // the sums of all warps are there
    int column = threadIdx.x, at = blockIdx.x*COLUMNS + column;
    if (column >= COLUMNS || at >= OC) return;
    float total = 0.0f;
    for (int w = 0; w < 8; w++) total += sums[w][column];
    partials[(size_t)blockIdx.y*OC + at] = total;
}

// db += the sum of dout's rows
static void bias_backward(float *db, const real *dout, size_t N, int OC, Gpu *g) {
    int parts = column_parts(OC, N, 128);
    dim3 blocks(blocks_for(OC, 32*PACK), parts);
    bias_backward_kernel<<<blocks, 256, 0, g->stream>>>(g->scratch, dout, N, OC);
    LAUNCH_CHECK();
    column_sums_add({ db }, 1, g->scratch, parts, OC, g->stream);
}

// dx = dout w^T; dw += x^T dout. The bias's gradient is summed where dout is written.
static void linear_backward(real *dx, float *dw, const real *dout, const real *x, const real *w,
                            size_t N, int C, int OC, Gpu *g) {
    matmul(dx, C, rows_of(dout, OC), transpose_of(w, OC), N, C, OC, WRITE, g);
    matmul(dw, OC, transpose_of(x, C), rows_of(dout, OC), C, OC, N, ADD, g);
}

// ---- causal self-attention, for each head: out = softmax(q k^T / sqrt(HS), t2 <= t) v ----
//   out (B,T,C)   qkv (B,T,3C)   lse (B,NH,T) kept for backward
// The causal mask t2 <= t hides later tokens. A T x T matrix of scores never exists
// (FlashAttention, Dao et al. 2022, arXiv 2205.14135). A block of threads owns some rows of one
// head, and the rows of the other side stream past in shared memory. In the forward pass a block
// owns queries. It keeps an online softmax for each: hi, the highest score so far; sum, of 2^(score
// - hi) so far; o, the sum of the values with the same weights. When a key raises hi, sum and o are
// multiplied by 2^(old hi - new hi). At the end out = o / sum. Scores are scaled by log2(e) /
// sqrt(HS): a GPU has an instruction for 2^x, not for e^x.
//
// With p the weights and d_t = dout_t . out_t:  ds = p (dout v^T - d);  dq = ds k / sqrt(HS);
// dk = ds^T q / sqrt(HS);  dv = p^T dout. The backward pass computes p again.

enum { MAX_HS = 128 };                 // channels of a head that the kernels have room for
constexpr float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;

// One head of one sequence, of which a block owns rows; rows begin ld elements apart.
struct Head { const real *q, *k, *v; size_t ld; };

// The grid of all B*NH heads, each in `tiles` blocks: x counts heads of a group, y tiles, p groups.
// Blocks start in that order: the first tile of all heads of a group, their second, and so on, the
// longest first, so that the last to start are short. All tiles of a head read the same rows, from
// the L2 cache if these are still there: so a group's keys and values take at most 16 MB of it, of
// an H100's 50.
static dim3 heads_grid(int B, int T, int NH, int HS, unsigned tiles) {
    size_t heads = (size_t)B*NH, group = (16 << 20) / (2*T*HS * sizeof(real));
    group = min_size(heads, group > 0 ? group : 1);
    while (heads % group != 0) group--;
    return dim3((unsigned)group, tiles, (unsigned)(heads / group));
}

// Which of the B*NH heads a block has.
__device__ inline unsigned this_head() { return blockIdx.z*gridDim.x + blockIdx.x; }

// Where the head's rows begin in out and dout (B,T,C).
__device__ inline size_t row_begin(int T, int C, int NH) {
    return (size_t)(this_head() / NH) * T*C + this_head() % NH * (C/NH);
}
__device__ inline Head head_of(const real *qkv, int T, int C, int NH) {
    const real *q = qkv + (size_t)(this_head() / NH) * T*3*C + this_head() % NH * (C/NH);
    return { q, q + C, q + 2*C, 3*(size_t)C };
}

// ---- attention, plainly: any head size, in fp32 or bf16 ----
// The T x T scores of one head. A block of 8 warps owns 8 rows of it or 8 columns, one to a warp:
//
//             keys                           keys
//   queries   - x x x x x         queries    - x x x x x        x  hidden by the mask
//             - - x x x x                    - - x x x x        o  of this block
//             o o o x x x  < a block         - - o x x x        -  of other blocks
//             - - - - x x                    - - o - x x
//             - - - - - x                    - - o - - x
//             - - - - - -                    - - o - - -
//                                                ^ a block
//   forward, and dq in backward              dk and dv in backward
//
// What it owns lies in shared memory, and what it meets streams past: 32 rows of keys and values,
// or of queries and dout, at a time. A lane computes the score of one of those 32 rows, and then
// every 32nd channel of the sums.

enum { PLAIN_ROWS = 8, PLAIN_STEP = 32, PLAIN_CHANNELS = MAX_HS / 32 };
typedef enum { QUERIES, KEYS } Owned;
typedef float PlainRow[MAX_HS + 1];    // one more, so that 32 rows begin in 32 banks

// Rows row ... row+n-1 of T go to shared memory, zeros past the last.
__device__ inline void plain_load(PlainRow *tile, const real *x, size_t ld, int row, int n, int T,
                                  int HS) {
    for (int r = warp_in_block(); r < n; r += PLAIN_ROWS)
        for (int i = lane(); i < HS; i += 32)
            tile[r][i] = row + r < T ? (float)x[(size_t)(row + r)*ld + i] : 0.0f;
}

__device__ inline float plain_dot(const float *a, const float *b, int n) {
    float sum = 0.0f;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

// o, of which a lane has channels lane, lane+32, ..., += 32 weights times 32 rows
__device__ inline void plain_accumulate(float *o, const float *weights, const PlainRow *tile,
                                        int HS) {
    for (int c = 0; c < PLAIN_CHANNELS; c++)
        for (int j = 0; lane() + 32*c < HS && j < PLAIN_STEP; j++)
            o[c] += weights[j] * tile[j][lane() + 32*c];
}

__device__ inline void plain_store(real *row, const float *o, float scale, int HS) {
    for (int c = 0; c < PLAIN_CHANNELS; c++)
        if (lane() + 32*c < HS) row[lane() + 32*c] = (real)(o[c] * scale);
}

__global__ void attention_forward_plain_kernel(real *out, float *lse, const real *qkv,
                                               int T, int first, int C, int NH) {
    __shared__ PlainRow q[PLAIN_ROWS], k[PLAIN_STEP], v[PLAIN_STEP];
    __shared__ float p[PLAIN_ROWS][PLAIN_STEP];
    Head head = head_of(qkv, T, C, NH);
    int HS = C / NH, warp = warp_in_block(), row0 = first + blockIdx.y*PLAIN_ROWS, t = row0 + warp;
    float scale = LOG2_E / sqrtf((float)HS), hi = -INFINITY, sum = 0.0f, o[PLAIN_CHANNELS] = {0};
    plain_load(q, head.q, head.ld, row0, PLAIN_ROWS, T, HS);
    for (int t2 = 0; t2 < min(row0 + PLAIN_ROWS, T); t2 += PLAIN_STEP) {
        plain_load(k, head.k, head.ld, t2, PLAIN_STEP, T, HS);
        plain_load(v, head.v, head.ld, t2, PLAIN_STEP, T, HS);
        __syncthreads();                                     // what was loaded is there
        float score = plain_dot(q[warp], k[lane()], HS) * scale;
        if (t2 + lane() > t) score = -INFINITY;
        float new_hi = fmaxf(hi, warp_max(score)), shrink = exp2f(hi - new_hi);
        float weight = exp2f(score - new_hi);
        p[warp][lane()] = weight;
        hi = new_hi;
        sum = sum * shrink + warp_sum(weight);
        for (int c = 0; c < PLAIN_CHANNELS; c++) o[c] *= shrink;
        __syncwarp();                                        // the warp's weights are there
        plain_accumulate(o, p[warp], v, HS);
        __syncthreads();                                     // read, before it is overwritten
    }
    if (t >= T) return;
    plain_store(out + row_begin(T, C, NH) + (size_t)t*C, o, 1.0f / sum, HS);
    if (lane() == 0) lse[(size_t)this_head()*T + t] = (hi + log2f(sum)) * LN_2;
}

// x and y are what is owned, x2 and y2 what streams past: q, dout and k, v; or k, v and q, dout.
template <Owned OWNED>
__global__ void attention_backward_plain_kernel(real *dqkv, const float2 *rows, const real *dout,
                                                const real *qkv, int T, int C, int NH) {
    __shared__ PlainRow x[PLAIN_ROWS], y[PLAIN_ROWS], x2[PLAIN_STEP], y2[PLAIN_STEP];
    __shared__ float p[PLAIN_ROWS][PLAIN_STEP], ds[PLAIN_ROWS][PLAIN_STEP];
    const bool keys = OWNED == KEYS;
    auto [q, k, v, ld] = head_of(qkv, T, C, NH);
    const real *d_o = dout + row_begin(T, C, NH);
    int HS = C / NH, warp = warp_in_block(), row0 = blockIdx.y*PLAIN_ROWS, r = row0 + warp;
    float scale = LOG2_E / sqrtf((float)HS), dx[PLAIN_CHANNELS] = {0}, dy[PLAIN_CHANNELS] = {0};
    plain_load(x, keys ? k : q, ld, row0, PLAIN_ROWS, T, HS);
    plain_load(y, keys ? v : d_o, keys ? ld : C, row0, PLAIN_ROWS, T, HS);
    int begin = keys ? row0 : 0, end = keys ? T : min(row0 + PLAIN_ROWS, T);
    for (int t2 = begin; t2 < end; t2 += PLAIN_STEP) {
        plain_load(x2, keys ? q : k, ld, t2, PLAIN_STEP, T, HS);
        plain_load(y2, keys ? d_o : v, keys ? C : ld, t2, PLAIN_STEP, T, HS);
        __syncthreads();                                     // what was loaded is there
        int query = keys ? t2 + lane() : r, key = keys ? r : t2 + lane();
        bool in_sight = key <= query && query < T;
        float2 row = in_sight ? rows[(size_t)this_head()*T + query] : make_float2(0.0f, 0.0f);
        float score = plain_dot(x[warp], x2[lane()], HS) * scale;
        float weight = in_sight ? exp2f(score - row.x) : 0.0f;
        p[warp][lane()] = weight;
        ds[warp][lane()] = weight * (plain_dot(y[warp], y2[lane()], HS) - row.y);
        __syncwarp();                                        // the warp's weights are there
        plain_accumulate(dx, ds[warp], x2, HS);
        if (keys) plain_accumulate(dy, p[warp], y2, HS);
        __syncthreads();                                     // read, before it is overwritten
    }
    if (r >= T) return;
    real *drow = dqkv + (q - qkv) + r*ld;
    plain_store(drow + (keys ? C : 0), dx, scale * LN_2, HS);
    if (keys) plain_store(drow + 2*C, dy, 1.0f, HS);
}

static void attention_forward_plain(real *out, float *lse, const real *qkv, int B, int T, int first,
                                    int C, int NH, cudaStream_t stream) {
    dim3 blocks = heads_grid(B, T, NH, C/NH, blocks_for(T - first, PLAIN_ROWS));
    attention_forward_plain_kernel<<<blocks, 32*PLAIN_ROWS, 0, stream>>>(out, lse, qkv, T, first, C,
                                                                         NH);
    LAUNCH_CHECK();
}

static void attention_backward_plain(real *dqkv, const float2 *rows, const real *dout,
                                     const real *qkv, int B, int T, int C, int NH,
                                     cudaStream_t stream) {
    dim3 blocks = heads_grid(B, T, NH, C/NH, blocks_for(T, PLAIN_ROWS));
    for (auto *kernel : { attention_backward_plain_kernel<QUERIES>,
                          attention_backward_plain_kernel<KEYS> }) {
        kernel<<<blocks, 32*PLAIN_ROWS, 0, stream>>>(dqkv, rows, dout, qkv, T, C, NH);
        LAUNCH_CHECK();
    }
}

// What the backward pass needs of each query: lse / ln 2, and d. A block owns 32 queries of one
// head, 8 lanes a query, a pack at a time. Heads whose HS is no multiple of a pack share packs: a
// lane skips the elements of other heads.
__global__ void attention_rows_kernel(float2 *rows, const real *dout, const real *out,
                                      const float *lse, int T, int C, int NH) {
    int HS = C / NH, head = this_head(), b = head / NH, begin = head % NH * HS, end = begin + HS;
    int t = blockIdx.y*32 + threadIdx.x/8;
    size_t row = ((size_t)b*T + t)*C, at = (size_t)head*T + t;
    float d = 0.0f, x[PACK], y[PACK];
    for (int c = begin/PACK*PACK + lane()%8*PACK; t < T && c < end; c += 8*PACK) {
        load(x, dout + row + c);
        load(y, out + row + c);
        for (int k = 0; k < PACK; k++) if (c + k >= begin && c + k < end) d += x[k] * y[k];
    }
    for (int i = 4; i > 0; i /= 2) d += __shfl_xor_sync(~0u, d, i);          // of the 8 lanes
    if (t < T && lane() % 8 == 0) rows[at] = make_float2(lse[at] * LOG2_E, d);
}

static void attention_rows(float2 *rows, const real *dout, const real *out, const float *lse, int B,
                           int T, int C, int NH, cudaStream_t stream) {
    dim3 blocks = heads_grid(B, T, NH, C/NH, blocks_for(T, 32));
    attention_rows_kernel<<<blocks, 32*8, 0, stream>>>(rows, dout, out, lse, T, C, NH);
    LAUNCH_CHECK();
}

#ifndef PRECISION_FP32
#include "dev/cuda/attention_tiles.cu"  // the same, 64 or 128 rows a block, on tensor cores
#endif

// In generation the key/value cache holds `past` earlier tokens (else 0): a sequence of out, qkv
// and lse has past + T rows, and the pointers are those of row `past`.
static void attention_forward(real *out, float *lse, const real *qkv,
                              int B, int T, int past, int C, int NH, Gpu *g) {
    int first = past;                            // kernels want all rows, and the first to compute
    out -= (size_t)past*C, qkv -= (size_t)past*3*C, lse -= past, T += past;
#ifndef PRECISION_FP32
    if (C/NH % 8 == 0 && T - first > 1) {        // rows are copied by 8 channels
        auto *tiles = C/NH <= 32 ? attention_forward_tiles<Tile32>
                    : C/NH <= 64 ? attention_forward_tiles<Tile64>
                                 : attention_forward_tiles<Tile128>;
        return tiles(out, lse, qkv, B, T, first, C, NH, g->stream);
    }
#endif
    attention_forward_plain(out, lse, qkv, B, T, first, C, NH, g->stream);
}

// Also db += the sum of dqkv's rows, the gradient of qkv's bias.
//   db (3C)   rows (B,NH,T): scratch
static void attention_backward(real *dqkv, float *db, float2 *rows, const real *dout,
                               const real *qkv, const real *out, const float *lse, int B, int T,
                               int C, int NH, Gpu *g) {
    auto *backward = attention_backward_plain;
#ifndef PRECISION_FP32
    if (C/NH % 8 == 0) backward = C/NH <= 32 ? attention_backward_tiles<Tile32>
                                : C/NH <= 64 ? attention_backward_tiles<Tile64>
                                             : attention_backward_tiles<Tile128>;
#endif
    attention_rows(rows, dout, out, lse, B, T, C, NH, g->stream);
    backward(dqkv, rows, dout, qkv, B, T, C, NH, g->stream);
    bias_backward(db, dqkv, (size_t)B*T, 3*C, g);
}

// ---- GELU: x/2 (1 + tanh u) with u = sqrt(2/pi) (x + 0.044715 x^3) ----
// Hendrycks and Gimpel 2016, arXiv 1606.08415, in the tanh form that GPT-2 uses. It equals x s with
// s = 1 / (1 + e^-2u), which needs one exponential and no tanh. It is an epilogue of the products
// before and after it; these kernels run where cuBLASLt lacks that epilogue.

// Thread i owns pack i.
__global__ void gelu_forward_kernel(real *out, const real *x, size_t n) {
    size_t i = thread_in_grid() * PACK;
    if (i >= n) return;
    float v[PACK];
    load(v, x + i);
    for (int k = 0; k < PACK; k++) {
        float u = 0.79788456f * (v[k] + 0.044715f * v[k]*v[k]*v[k]);
        v[k] = v[k] / (1.0f + __expf(-2.0f * u));
    }
    store(out + i, v);
}

static void gelu_forward(real *out, const real *x, size_t n, cudaStream_t stream) {
    gelu_forward_kernel<<<blocks_for(n, 256*PACK), 256, 0, stream>>>(out, x, n);
    LAUNCH_CHECK();
}

// d(x s)/dx = s + x s (1 - s) 2 du/dx. dx may be dout itself.
__global__ void gelu_backward_kernel(real *dx, const real *dout, const real *x, size_t n) {
    size_t i = thread_in_grid() * PACK;
    if (i >= n) return;
    float d[PACK], v[PACK];
    load(d, dout + i);
    load(v, x + i);
    for (int k = 0; k < PACK; k++) {
        float u = 0.79788456f * (v[k] + 0.044715f * v[k]*v[k]*v[k]);
        float s = 1.0f / (1.0f + __expf(-2.0f * u));
        float two_du = 1.59576912f * (1.0f + 3.0f*0.044715f * v[k]*v[k]);
        d[k] *= s + v[k] * s * (1.0f - s) * two_du;
    }
    store(dx + i, d);
}

static void gelu_backward(real *dx, const real *dout, const real *x, size_t n,
                          cudaStream_t stream) {
    gelu_backward_kernel<<<blocks_for(n, 256*PACK), 256, 0, stream>>>(dx, dout, x, n);
    LAUNCH_CHECK();
}

// ---- linear and GELU together: pre = x w + b, out = gelu(pre) ----

static void linear_gelu_forward(real *out, real *pre, const real *x, const real *w, const real *b,
                                size_t N, int C, int OC, Gpu *g) {
    Epilogue gelu = { ADD_BIAS_GELU, b, pre };
    if (matmul_fused(out, OC, rows_of(x, C), rows_of(w, OC), gelu, N, OC, C, WRITE, g)) return;
    linear_forward(pre, x, w, b, N, C, OC, g);
    gelu_forward(out, pre, N*OC, g->stream);
}

// dpre = dout w^T * gelu'(pre); db_pre += the sum of its rows, the gradient of the bias in pre.
// cuBLASLt's epilogue computes gelu' to 1 in 10,000 (H200): enough for bf16, not for fp32.
//   dpre, pre (N,C)   db_pre (C)
static void gelu_linear_backward_data(real *dpre, float *db_pre, const real *dout, const real *pre,
                                      const real *w, size_t N, int C, int OC, Gpu *g) {
    Epilogue gelu = { GELU_GRADIENT, NULL, pre };
    Mat d = rows_of(dout, OC), wt = transpose_of(w, OC);
    bool fused = sizeof(real) < sizeof(float)
              && matmul_fused(dpre, C, d, wt, gelu, N, C, OC, WRITE, g);
    if (!fused) {
        matmul(dpre, C, d, wt, N, C, OC, WRITE, g);
        gelu_backward(dpre, dpre, pre, N*C, g->stream);
    }
    bias_backward(db_pre, dpre, N, C, g);
}

// Backward of out = gelu(pre) w + b: linear_backward, whose dx is dpre.   x = gelu(pre)
static void gelu_linear_backward(real *dpre, float *db_pre, float *dw, const real *dout,
                                 const real *x, const real *pre, const real *w,
                                 size_t N, int C, int OC, Gpu *g) {
    gelu_linear_backward_data(dpre, db_pre, dout, pre, w, N, C, OC, g);
    matmul(dw, OC, transpose_of(x, C), rows_of(dout, OC), C, OC, N, ADD, g);
}

// ---- softmax cross-entropy over N rows of logits; columns V ... Vp-1 are padding ----
//   logits (N,Vp)   target (N)   loss, lse (N); lse[n] = log sum exp

// An online softmax: the highest element of a row so far, and the sum of e^(x - hi) so far. One
// pass over the row is enough, since a new hi only scales the sum.
typedef struct { float hi, sum; } Softmax;

__device__ inline Softmax warp_softmax(Softmax s) {
    float hi = warp_max(s.hi);
    return { hi, warp_sum(s.sum * exp2_fast((s.hi - hi) * LOG2_E)) };
}

// A row of Vp logits, which a block passes over twice. The first `kept` wait in shared memory, each
// pack for the thread that brought it there: nobody waits for another's. The others are read again.
struct LogitRow {
    const real *from;
    real *waiting;
    int kept;

    __device__ LogitRow(const real *from, real *shared, int kept, int Vp)
        : from(from), waiting(shared), kept(kept) {
        Packs p = packs(min(kept, Vp));
        for (int v = p.first; v < p.end; v += p.step) copy_async<16>(shared + v, from + v, true);
        copy_async_commit();                     // all of them are under way at once
        copy_async_wait<0>();
    }
    __device__ static Packs packs(int Vp) {      // of this thread
        return { (int)threadIdx.x*PACK, (int)blockDim.x*PACK, Vp };
    }
    __device__ void get(float x[PACK], int v) const {
        if (v < kept) load(x, waiting + v);
        else load(x, from + v);
    }
};

// The softmax of the whole row, to all threads of the block that owns it.
__device__ inline Softmax row_softmax(const LogitRow &row, int V, int Vp) {
    __shared__ Softmax of_warp[32];
    Softmax s = { -FLT_MAX, 0.0f };
    Packs p = LogitRow::packs(Vp);
    for (int v = p.first; v < p.end; v += p.step) {
        float x[PACK], hi = s.hi;
        row.get(x, v);
        for (int k = 0; k < PACK; k++) if (v + k < V) hi = fmaxf(hi, x[k]);
        s.sum *= exp2_fast((s.hi - hi) * LOG2_E);
        for (int k = 0; k < PACK; k++) if (v + k < V) s.sum += exp2_fast((x[k] - hi) * LOG2_E);
        s.hi = hi;
    }
    s = warp_softmax(s);
    if (lane() == 0) of_warp[warp_in_block()] = s;
    __syncthreads();                             // all warps' parts are there
    Softmax none = { -FLT_MAX, 0.0f };
    return warp_softmax(lane() < (int)blockDim.x / 32 ? of_warp[lane()] : none);
}

// The gradient of loss * factor: (p - 1[v is the target]) * factor, zero in the padding.
__device__ inline void row_gradient(real *dlogits, const LogitRow &row, float log_sum, int right,
                                    float factor, int V, int Vp) {
    Packs p = LogitRow::packs(Vp);
    for (int v = p.first; v < p.end; v += p.step) {
        float d[PACK];
        row.get(d, v);
        for (int k = 0; k < PACK; k++) {
            float share = v + k < V ? exp2_fast((d[k] - log_sum) * LOG2_E) : 0.0f;
            d[k] = (share - (v + k == right ? 1.0f : 0.0f)) * factor;
        }
        store(dlogits + v, d);
    }
}

enum { XENT_THREADS = 512, XENT_BLOCKS = 2 };    // two on a multiprocessor: one reads while the
                                                 // other waits at its barrier

// Block n owns row n. With `dlogits`, which may be the logits' own memory, it writes the gradient
// of loss * *scale. The scale is read from memory: in a graph an argument would stay what it was
// when the graph was captured.
__global__ void __launch_bounds__(XENT_THREADS, XENT_BLOCKS)
xent_kernel(float *loss, float *lse, real *dlogits, const real *logits, const int *target,
            const float *scale, int kept, int V, int Vp) {
    extern __shared__ __align__(16) real shared[];               // (kept)
    size_t n = blockIdx.x;
    int right = target[n];
    float factor = dlogits ? *scale : 0.0f;
    LogitRow row(logits + n*Vp, shared, kept, Vp);
    float at_target = (float)row.from[right];    // read before the barrier, overwritten after it
    Softmax s = row_softmax(row, V, Vp);
    float log_sum = s.hi + logf(s.sum);
    if (threadIdx.x == 0) {
        lse[n] = log_sum;
        loss[n] = log_sum - at_target;           // -log p(target)
    }
    if (dlogits) row_gradient(dlogits + n*Vp, row, log_sum, right, factor, V, Vp);
}

typedef struct { int threads, kept; size_t bytes; } XentGrid;

// A row of GPT-2 in bf16 is 101 KB: an H100's multiprocessor holds two, an A100's most of two.
static XentGrid xent_grid(int Vp, const cudaDeviceProp *p) {
    const size_t OF_WARPS = 1 << 10;             // at most
    size_t room = p->sharedMemPerMultiprocessor / XENT_BLOCKS - p->reservedSharedMemPerBlock;
    room = min_size(room, p->sharedMemPerBlockOptin) - OF_WARPS;
    size_t kept = min_size(Vp, room / sizeof(real) / PACK * PACK);
    return { Vp >= 8192 ? XENT_THREADS : 128, (int)kept, kept * sizeof(real) };
}

static void xent_launch(float *loss, float *lse, real *dlogits, const real *logits,
                        const int *target, const float *scale, size_t N, int V, int Vp, Gpu *g) {
    XentGrid grid = xent_grid(Vp, &g->properties);
    allow_shared(xent_kernel, grid.bytes);
    xent_kernel<<<(unsigned)N, grid.threads, grid.bytes, g->stream>>>(
        loss, lse, dlogits, logits, target, scale, grid.kept, V, Vp);
    LAUNCH_CHECK();
}

// =================================================================================================
// Model
// =================================================================================================

#include "dev/ranks/tensor_model.cu"   // tp_xent_launch: the cross-entropy cut across ranks

// ---- batches on their way ----

template <class T> static void send_array(T *to, const T *from, size_t n, Model *m) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, n * sizeof *to, cudaMemcpyHostToDevice, m->gpu->stream));
    CUDA_CHECK(cudaEventRecord(m->sent[m->now], m->gpu->stream));
}

// Sends a copy of a batch's N tokens. Waits for the batch before the last only.
static void send_inputs(Model *m, const int *tokens, size_t N) {
    m->now = 1 - m->now;
    CUDA_CHECK(cudaEventSynchronize(m->sent[m->now]));
    tp_rows(m->host_batches[m->now].inputs, tokens, N, &m->params.tp);
    send_array(m->batch.inputs, m->host_batches[m->now].inputs, N, m);
}

// The same of what follows each token.
static void send_targets(Model *m, const int *targets, size_t N) {
    tp_rows(m->host_batches[m->now].targets, targets, N, &m->params.tp);
    send_array(m->batch.targets, m->host_batches[m->now].targets, N, m);
}

static void send_scale(Model *m, float scale) {
    *m->host_batches[m->now].scale = scale;
    send_array(m->batch.scale, m->host_batches[m->now].scale, 1, m);
}

// Sorts the tokens and sends their order; returns how many of them are distinct.
static int send_order(Model *m, size_t N) {
    Batch *host = &m->host_batches[m->now];
    int words = tokens_sort(host->order, host->begin, m->token_count, host->inputs, N,
                            (int)m->params.tp.words.count);
    send_array(m->batch.order, host->order, N, m);
    send_array(m->batch.begin, host->begin, words + 1, m);
    return words;
}

// ---- forward ----

// ---- what ranks that share a block add to it (dev/ranks/tensor.c); alone, Cn is C ----

// A branch's last layer: out = skip + x w + b, with x (N,K). Each of those ranks holds K rows of w;
// its product is a term of a sum, to which the kernel of the residual adds b.
static void branch_project(Model *m, real *out, const real *skip, const real *x, const real *w,
                           const real *b, size_t N, int K) {
    int C = m->c.C;
    Gpu *g = m->gpu;
    if (m->params.tp.size <= 1) return linear_residual_forward(out, skip, x, w, b, N, K, C, g);
    matmul(out, C, rows_of(x, K), rows_of(w, C), N, C, K, WRITE, g);
    tp_sum(&m->params.tp, out, N*C);
    bias_forward_kernel<<<blocks_for(N*C, 256*PACK), 256, 0, g->stream>>>(out, b, skip, N*C, C);
    LAUNCH_CHECK();
}

// dx (N,C), the gradient of a branch's input: ranks that share the block sum their terms of it.
static void branch_input_sum(Model *m, real *dx, size_t N) {
    tp_sum(&m->params.tp, dx, N*m->c.C);
}

// All that backward needs of a block; --recompute block runs it once more.
static void block_forward_to_gelu(Model *m, Block<real> w, BlockActs a, int B, int T, int past) {
    int C = m->c.C, Cn = m->Cn, NHn = m->NHn;
    size_t N = (size_t)B*T;
    Gpu *g = m->gpu;
    real *qkv = a.qkv + (size_t)past*3*Cn;
    layernorm_forward(a.ln1, a.x, w.ln1, N, C, g->stream);
    linear_forward(qkv, a.ln1.out, w.qkv_w, w.qkv_b, N, C, 3*Cn, g);
    attention_forward(a.att, a.att_lse, qkv, B, T, past, Cn, NHn, g);
    branch_project(m, a.x_mid, a.x, a.att, w.att_proj_w, w.att_proj_b, N, Cn);
    layernorm_forward(a.ln2, a.x_mid, w.ln2, N, C, g->stream);
    linear_gelu_forward(a.gelu, a.fc, a.ln2.out, w.fc_w, w.fc_b, N, C, 4*Cn, g);
}

// x_mid = x + attention(LayerNorm(x)); x_out = x_mid + MLP(LayerNorm(x_mid)). T rows of each
// sequence; in generation their queries, keys and values follow those of `past` earlier rows.
static void block_forward(Model *m, Block<real> w, BlockActs a, int B, int T, int past) {
    block_forward_to_gelu(m, w, a, B, T, past);
    branch_project(m, a.x_out, a.x_mid, a.gelu, w.mlp_proj_w, w.mlp_proj_b, (size_t)B*T, 4*m->Cn);
}

// All that model_forward launches, once the tokens are there.
static void forward_launch(Model *m, int B, int T, int past) {
    Params *p = &m->params;
    const Weights<real> *w = &m->w;
    int C = m->c.C, L = m->c.L;
    size_t N = (size_t)B*T;
    cudaStream_t stream = m->gpu->stream;
    forward_needs(p, 0);
    embedding_forward(m->x_in, m->batch.inputs, w->wte, w->wpe + (size_t)past*C, B, T, C, stream);
    tp_sum(&p->tp, m->x_in, N*C);                // of ranks that share the words
    for (int l = 0; l < L; l++) {
        forward_needs(p, 1 + l);
        block_forward(m, w->block[l], m->acts[l], B, T, past);
    }
    forward_needs(p, 1 + L);
    layernorm_forward(m->lnf, m->acts[L - 1].x_out, w->lnf, N, C, stream);
}

// Runs tokens (B,T) through the blocks, up to the final norm's m->lnf.out (B*T,C). In generation
// (B = 1) they follow `past` tokens that were run before, whose keys and values are still in each
// block's qkv: nothing else of theirs is needed. That is all a key/value cache is.
void model_forward(Model *m, const int *tokens, int B, int T, int past) {
    assert(past + T <= m->spec.T && B <= m->spec.B && (past == 0 || B == 1));
    assert(past == 0 || m->spec.recompute == RECOMPUTE_NONE);       // else blocks share qkv
    send_inputs(m, tokens, (size_t)B*T);
    forward_launch(m, B, T, past);
}

// ---- backward ----

// One block sums n elements, always in the same order: *out = the sum, or *out += the sum.
template <class T> __global__ void sum_kernel(double *out, const T *x, size_t n, Mode mode) {
    double sum = 0.0;
    for (size_t i = threadIdx.x; i < n; i += blockDim.x) sum += (double)x[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) *out = mode == ADD ? *out + sum : sum;
}

// Adds the losses of N tokens to those since clear_grads.
static void loss_sum(Model *m, size_t N) {
    sum_kernel<float><<<1, 1024, 0, m->gpu->stream>>>(&m->totals->loss, m->loss, N, ADD);
    LAUNCH_CHECK();
}

// From dx, the gradient of x_out, to dx, the gradient of x. A branch receives all of dx, and what
// comes back through the branch is added to dx, by the kernel that ends it. That kernel also sums
// dx as it was, before it adds: the gradient of the bias of the product that ended the branch (of
// mlp_proj, of att_proj), which no other kernel needs to read dx for.
static void block_backward(Model *m, Block<real> w, Block<float> dw, BlockActs a, int B, int T) {
    int C = m->c.C, Cn = m->Cn, NHn = m->NHn;
    size_t N = (size_t)B*T;
    Gpu *g = m->gpu;
    real *dx = m->dx;                  // of x_out; then of x_mid; finally of x
    real *dfc = m->dfc, *dqkv = m->dqkv;
    real *dln2 = m->dx_branch, *datt = m->dx_branch, *dln1 = m->dx_branch;             // one buffer
    gelu_linear_backward(dfc, dw.fc_b, dw.mlp_proj_w, dx, a.gelu, a.fc, w.mlp_proj_w, N, 4*Cn, C,
                         g);
    linear_backward(dln2, dw.fc_w, dfc, a.ln2.out, w.fc_w, N, C, 4*Cn, g);
    branch_input_sum(m, dln2, N);
    layernorm_backward(dx, dw.ln2, dw.mlp_proj_b, dx, dln2, a.x_mid, a.ln2, w.ln2, N, C, g);
    linear_backward(datt, dw.att_proj_w, dx, a.att, w.att_proj_w, N, Cn, C, g);
    attention_backward(dqkv, dw.qkv_b, m->att_rows, datt, a.qkv, a.att, a.att_lse, B, T, Cn, NHn,
                       g);
    linear_backward(dln1, dw.qkv_w, dqkv, a.ln1.out, w.qkv_w, N, C, 3*Cn, g);
    branch_input_sum(m, dln1, N);
    layernorm_backward(dx, dw.ln1, dw.att_proj_b, dx, dln1, a.x, a.ln1, w.ln1, N, C, g);
}

// ---- classifier: logits = lnf wte^T, then cross-entropy ----
// Weight tying: the embedding matrix wte is the classifier's weight as well (Press and Wolf 2017).
// The classifier takes logit_rows rows at a time: all (N,Vp) logits would be the largest array.
// Rows V ... of wte and dwte are zero and stay it.

// The losses of the targets that were sent; with TRAIN the gradients of *scale * (their sum) too:
// writes that of lnf, adds to that of wte.
static void classifier_launch(Model *m, size_t N, Use use) {
    const TpGroup *group = &m->params.tp;
    const int *targets = m->batch.targets;
    int C = m->c.C, V = (int)group->words.count, Vp = m->padded.V;   // of this rank's words
    real *wte = m->w.wte, *logits = m->logits, *dlogits = use == TRAIN ? logits : NULL;
    size_t rows = m->logit_rows;
    Gpu *g = m->gpu;
    for (size_t n = 0; n < N; n += rows) {
        if (rows > N - n) rows = N - n;
        Mat lnf = rows_of(m->lnf.out + n*C, C);
        matmul(logits, Vp, lnf, transpose_of(wte, C), rows, Vp, C, WRITE, g);
        if (group->shares)
            tp_xent_launch(m->loss + n, m->lse + n, dlogits, logits, targets + n, m->batch.scale,
                           group, rows, V, Vp, g);
        else xent_launch(m->loss + n, m->lse + n, dlogits, logits, targets + n, m->batch.scale,
                         rows, V, Vp, g);
        if (use == INFER) continue;
        matmul(m->dx_branch + n*C, C, rows_of(dlogits, Vp), rows_of(wte, C), rows, C, Vp, WRITE, g);
        matmul(m->dw.wte, C, transpose_of(dlogits, Vp), lnf, Vp, C, rows, ADD, g);
    }
    if (use == TRAIN) tp_sum(group, m->dx_branch, N*C);      // a term from each rank's words
}

// All that classifier_loss_and_gradient launches, once the targets are there.
static void loss_launch(Model *m, size_t N) {
    backward_needs(&m->params, 0);
    classifier_launch(m, N, TRAIN);
    loss_sum(m, N);
}

// After model_forward: adds the sum of the losses in nats to m->totals, and begins the
// backpropagation of scale * that sum. (The C twin returns the sum; here the CPU would have to wait
// for it.)
void classifier_loss_and_gradient(Model *m, const int *targets, float scale, int B, int T) {
    send_targets(m, targets, (size_t)B*T);
    send_scale(m, scale);
    loss_launch(m, (size_t)B*T);
}

// All that model_backward launches, except lookup_backward.
static void backward_launch(Model *m, int B, int T) {
    Params *p = &m->params;
    const Weights<real> *w = &m->w;
    const Weights<float> *dw = &m->dw;
    int C = m->c.C, L = m->c.L;
    size_t N = (size_t)B*T;
    Gpu *g = m->gpu;
    real *dlnf = m->dx_branch;         // (N,C)
    backward_needs(p, 1 + L);
    layernorm_backward(m->dx, dw->lnf, NULL, NULL, dlnf, m->acts[L - 1].x_out, m->lnf, w->lnf, N,
                       C, g);
    gradients_ready(p, 1 + L);
    g->messages = zero_sends(p);                 // from here on, gradients travel meanwhile
    for (int l = L - 1; l >= 0; l--) {
        backward_needs(p, 1 + l);
        if (m->spec.recompute == RECOMPUTE_BLOCK && l < L - 1)       // the last block's are there
            block_forward_to_gelu(m, w->block[l], m->acts[l], B, T, 0);
        block_backward(m, w->block[l], dw->block[l], m->acts[l], B, T);
        gradients_ready(p, 1 + l);
    }
    g->messages = false;
}

// The last gradient: of the rows that the tokens looked up. The CPU sorts the tokens while the GPU
// runs what was launched before. How many tokens are distinct sets the grid: no graph has this one.
static void lookup_backward(Model *m, int B, int T) {
    int words = send_order(m, (size_t)B*T);
    embedding_backward(m->dw.wte, m->dw.wpe, m->dx, m->batch.inputs, m->batch.order,
                       m->batch.begin, words, B, T, m->c.C, m->gpu->stream);
    gradients_ready(&m->params, 0);
}

// Backpropagation, after classifier_loss_and_gradient: adds to the gradients dw.
void model_backward(Model *m, int B, int T) {
    backward_launch(m, B, T);
    lookup_backward(m, B, T);
}

// The three of a micro-batch, as one graph where the launches are the same each time. They are not
// for a smaller batch, nor where a hook has something to do: messages to other ranks, noise to be
// measured.
static void model_micro_step(Model *m, const int *inputs, const int *targets, float scale,
                             int B, int T) {
    bool whole = B == m->spec.B && T == m->spec.T;
    if (!m->gpu->graphs || !whole || !m->params.alone) {
        model_forward(m, inputs, B, T, 0);
        classifier_loss_and_gradient(m, targets, scale, B, T);
        model_backward(m, B, T);
        return;
    }
    send_inputs(m, inputs, (size_t)B*T);
    send_targets(m, targets, (size_t)B*T);
    send_scale(m, scale);
    graph_run(&m->graph, m->gpu->stream, [&] {
        forward_launch(m, B, T, 0);
        loss_launch(m, (size_t)B*T);
        backward_launch(m, B, T);
    });
    lookup_backward(m, B, T);
}

// =================================================================================================
// Optimizer
// =================================================================================================

void clear_grads(Model *m) {
    floats_clear(m->params.grads, m->params.n_grads, m->params.stream);
    CUDA_CHECK(cudaMemsetAsync(m->totals, 0, sizeof *m->totals, m->gpu->stream));
}

// Block i adds up the squares of chunk i, in double precision, if the chunk counts on this rank.
__global__ void norm_kernel(double *partials, const float *grads, const Chunk *chunks) {
    Chunk chunk = chunks[blockIdx.x];
    double sum = 0.0;
    for (int i = threadIdx.x*PACK; chunk.in_norm && i < chunk.count; i += blockDim.x*PACK) {
        float g[PACK];
        load(g, grads + chunk.grad + i);
        for (int k = 0; k < PACK; k++) sum += (double)g[k] * g[k];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

static void mark_record(Model *m, UpdateMark mark) {
    CUDA_CHECK(cudaEventRecord(m->marks[mark], m->gpu->stream));
}

// The sum of the squares of all gradients that this process updates, to m->totals. Each chunk has a
// sum of its own. The norms of the noise scale go there too.
static void gradients_squares(Model *m) {
    Params *p = &m->params;
    cudaStream_t stream = m->gpu->stream;
    mark_record(m, COMPUTED);
    if (p->n_chunks > 0)
        norm_kernel<<<p->n_chunks, 256, 0, stream>>>(p->norm_partials, p->grads, p->chunks);
    LAUNCH_CHECK();
    sum_kernel<double><<<1, 1024, 0, stream>>>(&m->totals->squares, p->norm_partials, p->n_chunks,
                                               WRITE);
    LAUNCH_CHECK();
    size_t pieces = p->measure ? params_partials_count(p) : 0;
    for (int k = 0; k < N_NORMS && pieces > 0; k++) {
        sum_kernel<double><<<1, 1024, 0, stream>>>(&m->totals->norms[k], p->partials + k*pieces,
                                                   pieces, WRITE);
        LAUNCH_CHECK();
    }
    mark_record(m, NORM_KNOWN);
}

// Collects the totals of all ranks, or within a DiLoCo round this rank's, on the GPU, and sends
// them on to the CPU.
static void totals_collect(Model *m) {
    Params *p = &m->params;
    Comm *comm = totals_comm(p, p->scope);
    int ranks = comm ? comm->size : 1;
    Totals *own = m->totals, *all = comm ? m->all_totals : own;
    if (*p->stop) CUDA_CHECK(cudaMemsetAsync(&own->stop, *p->stop, 1, p->stream));   // lowest byte
    if (comm) comm_wait(comm, comm_collect_there(comm, all, own, sizeof *own));
    CUDA_CHECK(cudaMemcpyAsync(m->host_totals, all, ranks * sizeof *all, cudaMemcpyDeviceToHost,
                               p->stream));
    m->collected = all;
    mark_record(m, ALL_KNOWN);
}

// Global-norm clipping. The squared norm is the sum of those of n totals. If the norm exceeds
// `limit` (0: no limit), gradients are to be scaled down to that norm. *g_scale = NAN if the norm
// is not finite. One thread.
__global__ void clip_kernel(float *g_scale, const Totals *totals, int n, double limit) {
    double squares = 0.0;
    for (int i = 0; i < n; i++) squares += totals[i].squares;
    double norm = sqrt(squares);
    *g_scale = !isfinite(norm) ? NAN : limit > 0.0 && norm > limit ? (float)(limit / norm) : 1.0f;
}

// What the optimizer multiplies gradients by is found on the GPU: the CPU need not wait for it.
static void gradients_clip(Model *m, double limit) {
    Slice counted = totals_squares(&m->params, m->params.scope);
    clip_kernel<<<1, 1, 0, m->params.stream>>>(m->g_scale, m->collected + counted.begin,
                                               (int)counted.count, limit);
    LAUNCH_CHECK();
}

// Waits for the totals on the CPU, but not for what was launched after totals_collect.
static Totals totals_receive(Model *m) {
    CUDA_CHECK(cudaEventSynchronize(m->marks[ALL_KNOWN]));
    m->waited = comm_counters(m->params.comm).waited;
    return totals_sum(&m->params, m->host_totals, m->params.scope);
}

// One AdamW update of all parameters (Loshchilov and Hutter 2019, arXiv 1711.05101), in PyTorch's
// form: the rate multiplies the decay too. Block i owns chunk i. g is scaled first; if *g_scale is
// NAN, nothing changes. correct_m and correct_v are Adam's bias correction: the moments
// begin at 0. `rounded` is what layers read: the master itself in fp32; else it is rounded from the
// master, and masters lie as moments do.
__global__ void adamw_kernel(float *p, real *rounded, float *m, float *v, const float *g,
                             const Chunk *chunks, const float *g_scale, AdamW o, float correct_m,
                             float correct_v) {
    float scale = *g_scale;
    if (isnan(scale)) return;
    Chunk chunk = chunks[blockIdx.x];
    float decay = chunk.decays ? o.weight_decay : 0.0f;
    for (int i = threadIdx.x*PACK; i < chunk.count; i += blockDim.x*PACK) {
        size_t at = chunk.moment + i, master = sizeof(real) < sizeof(float) ? at : chunk.param + i;
        float pi[PACK], mi[PACK], vi[PACK], gi[PACK];
        load(pi, p + master);
        load(mi, m + at);
        load(vi, v + at);
        load(gi, g + chunk.grad + i);
        for (int k = 0; k < PACK; k++) {
            gi[k] *= scale;
            mi[k] = o.beta1 * mi[k] + (1.0f - o.beta1) * gi[k];
            vi[k] = o.beta2 * vi[k] + (1.0f - o.beta2) * gi[k] * gi[k];
            pi[k] -= o.lr * (mi[k]*correct_m / (sqrtf(vi[k]*correct_v) + o.eps) + decay * pi[k]);
        }
        store(p + master, pi);
        store(m + at, mi);
        store(v + at, vi);
        if ((void *)rounded != (void *)p) store(rounded + chunk.param + i, pi);
    }
}

// One update of plain SGD: the same clipping and decay, no moments.
__global__ void sgd_kernel(float *p, real *rounded, const float *g, const Chunk *chunks,
                           const float *g_scale, AdamW o) {
    float scale = *g_scale;
    if (isnan(scale)) return;
    Chunk chunk = chunks[blockIdx.x];
    float decay = chunk.decays ? o.weight_decay : 0.0f;
    for (int i = threadIdx.x*PACK; i < chunk.count; i += blockDim.x*PACK) {
        size_t master = (sizeof(real) < sizeof(float) ? chunk.moment : chunk.param) + i;
        float pi[PACK], gi[PACK];
        load(pi, p + master);
        load(gi, g + chunk.grad + i);
        for (int k = 0; k < PACK; k++) pi[k] -= o.lr * (gi[k] * scale + decay * pi[k]);
        store(p + master, pi);
        if ((void *)rounded != (void *)p) store(rounded + chunk.param + i, pi);
    }
}

static void sgd_launch(Params *p, AdamW o, const float *g_scale) {
    if (p->n_chunks > 0)
        sgd_kernel<<<p->n_chunks, 256, 0, p->stream>>>(p->masters, (real *)p->values, p->grads,
                                                       p->chunks, g_scale, o);
    LAUNCH_CHECK();
}

static void adamw_launch(Params *p, AdamW o, const float *g_scale) {
    float correct_m = (float)(1.0 / (1.0 - pow(o.beta1, o.m_steps)));
    float correct_v = (float)(1.0 / (1.0 - pow(o.beta2, o.v_steps)));
    if (p->n_chunks > 0)
        adamw_kernel<<<p->n_chunks, 256, 0, p->stream>>>(
            p->masters, (real *)p->values, p->adam_m, p->adam_v, p->grads, p->chunks, g_scale,
            o, correct_m, correct_v);
    LAUNCH_CHECK();
}

// AdamW, or SGD, on every tensor in one launch; matrices decay, gains and biases do not. If the
// norm is not finite, parameters and moments stay as they are.
void model_update(Model *m, AdamW o) {
    if (m->params.sgd) sgd_launch(&m->params, o, m->g_scale);
    else adamw_launch(&m->params, o, m->g_scale);
}

// =================================================================================================
// Training loop
// =================================================================================================

// One update: micro-batches until the batch is full, global-norm clipping, AdamW.
static void train_step(Run *r, Model *m, Step *s) {
    step_begin(r, s);                                      // fills s: samples, scale, adamw
    clear_grads(m);
    for (size_t i = 0; i < s->micro_batches; i++) {        // gradient accumulation
        next_batch(r, s, i);                               // inputs (B,T); targets, one token on
        model_micro_step(m, r->inputs, r->targets, s->scale, s->B, s->T);      // forward, backward
    }
    gradients_arrive(r, s);                                // of several ranks: their sum
    gradients_squares(m);                                  // beside the loss, in m->totals
    totals_collect(m);                                     // of several ranks: over all of them
    gradients_clip(m, r->o.clip);                          // if the norm exceeds it
    model_update(m, s->adamw);                             // unless the norm is not finite
    Totals all = totals_receive(m);                        // waits
    step_end(r, s, &all);                                  // loss and norm, counters
}

// Returns the process's exit status.
static int train(Run *r, Model *m) {
    run_begin(r);
    while (run_goes_on(r)) {
        Step s;
        train_step(r, m, &s);
        report_step(r, &s);
        if (eval_is_due(r)) report_eval(r);
        if (is_due(r, &r->o.sample_every)) report_sample(r);
        if (save_is_due(r)) save(r);
        if (hellaswag_is_due(r)) report_hellaswag(r);
    }
    return run_end(r);
}

// =================================================================================================
// Behind the loop: generation, evaluation, memory, the machine
// =================================================================================================

// ---- generation ----

// The logits of the token after tokens[t] of one sequence, in the CPU's memory. If ranks share
// the vocabulary, the logits of all ranks, in the order of the ranks.
const float *model_logits(Model *m, int t) {
    const TpGroup *group = &m->params.tp;
    size_t C = m->c.C, V = m->padded.V, n = V;
    float *logits = m->next_logits;                          // fp32, on the GPU
    Gpu *g = m->gpu;
    matmul(logits, V, rows_of(m->lnf.out + t*C, C), transpose_of(m->w.wte, C), 1, V, C, WRITE, g);
    if (group->size > 1) {
        n = (size_t)group->size * m->c.V;
        logits += V;
        tp_collect(group, logits, m->next_logits, m->c.V);
    }
    CUDA_CHECK(cudaMemcpyAsync(m->host_logits, logits, n * sizeof *logits, cudaMemcpyDeviceToHost,
                               g->stream));
    gpu_wait(g);
    return m->host_logits;
}

// ---- evaluation ----

double model_loss(Model *m, float *each, const int *targets, size_t N) {
    Gpu *g = m->gpu;
    double sum = 0.0;
    send_targets(m, targets, N);
    classifier_launch(m, N, INFER);
    CUDA_CHECK(cudaMemcpyAsync(each, m->loss, N * sizeof *each, cudaMemcpyDeviceToHost, g->stream));
    gpu_wait(g);
    for (size_t n = 0; n < N; n++) sum += each[n];
    return sum;
}

// ---- memory and the machine ----

#include "dev/cuda/memory.cu"          // model_init, model_count, model_free; weights_point

Params *model_params(Model *m) { return &m->params; }

// --exact-sum adds each micro-batch's gradient to another buffer, which dw then points to.
void model_micro_batch(Model *m, size_t i, size_t n) {
    zero_micro_batch(&m->params, i, n);
    if (m->params.n_levels > 0) weights_point(&m->dw, &m->params, GRADS);
}

double model_optimizer_seconds(Model *m) {
    mark_record(m, UPDATED);
    gpu_wait(m->gpu);
    double waited = comm_counters(m->params.comm).waited - m->waited;
    return gpu_seconds(m->marks[COMPUTED], m->marks[NORM_KNOWN])
         + gpu_seconds(m->marks[ALL_KNOWN], m->marks[UPDATED]) - waited;
}

#include "dev/cuda/machine.cu"         // machine_open, machine_show, machine_peak_flops, memory_die

// =================================================================================================
// Main
// =================================================================================================


int main(int argc, char **argv) {
#ifdef EMULATOR
    *program_name() = "train_gpt2cu-emulated";
#else
    *program_name() = "train_gpt2cu";
#endif
    static Run r;
    static Model m;
    static Machine machine;
    int status = 0;
    if (!run_start(&r, &m, &machine, argc, argv)) return 0;           // --help
    if (r.o.plan) {
        run_plan(&r);
    } else if (r.o.generate) {
        run_generate(&r);
    } else if (r.o.export_file) {
        run_export(&r);
    } else {
        run_open(&r);
        status = train(&r, &m);
    }
    run_close(&r);
    return status;
}
