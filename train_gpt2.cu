// Trains GPT-2 on a GPU: the twin of train_gpt2.c. The same sections in the same order, functions
// of the same names, the same files and flags, so that the two can be laid side by side:
//
//     the GPU        what all kernels share, and the GPU opened
//     shapes         what is stored where
//     matmul         cuBLASLt, behind one function
//     layers         in the order a token meets them: kernels, then the function that launches them
//     model          the layers in a row, and back; the plan of the GPU's memory
//     optimizer      AdamW, with the gradient clipped by its global norm
//     evaluation     the loss on text that was held out
//     generation     the model writes
//     training loop  data, forward, backward, update, again
//     main           flags in, model built, loop run
//
// Conventions are those of train_gpt2.c: arrays are row-major, N = B*T rows, gradients have a
// leading d, those of activations are written (=), those of parameters added up (+=). Besides,
//
// - `real` is what activations are stored in, and the weights that layers read: bf16, or float with
//   -DPRECISION_FP32. Sums, statistics, gradients of parameters and what the optimizer keeps are
//   fp32 in both: bf16 has 8 significant bits, and adding up needs more.
// - Memory is what bounds every kernel but matmul and attention, so they move 16 bytes at a time
//   (a pack), fuse what would otherwise pass through memory twice, and divide their work by rows:
//   mostly, a warp of 32 threads owns a row.
// - The same run has the same bits each time: no sum depends on which block comes first.
// - A function that launches kernels does not wait for them. They run one after the other, in the
//   order of their launches; the CPU waits where it reads a result.
#ifdef EMULATOR
#define PROGRAM "train_gpt2cu-emulated"
#else
#define PROGRAM "train_gpt2cu"
#endif
#include <assert.h>
#include <float.h>
#include <math.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#define TRAINS_ON_GPU            // lets train_options.h take the flags that only a GPU has
#include "dataloader.h"
#include "dev/train/batch.h"
#include "dev/base/error.h"
#include "dev/files/checkpoint.h"
#include "dev/base/clock.h"
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

static size_t min_size(size_t a, size_t b) { return a < b ? a : b; }

// =================================================================================================
// The GPU
// =================================================================================================

#ifdef PRECISION_FP32
typedef float real;
#define REAL_NAME "fp32"
#else
typedef __nv_bfloat16 real;
#define REAL_NAME "bf16"
#endif

static cudaDataType_t type_of(const float *) { return CUDA_R_32F; }
#ifndef PRECISION_FP32
static cudaDataType_t type_of(const real *) { return CUDA_R_16BF; }
#endif

// Errors of CUDA are reported where they show, which may be after the call that caused them; with
// CUDA_LAUNCH_BLOCKING=1 in the environment each shows at its own call.
static void cuda_check(cudaError_t status, const char *call, const char *file, int line) {
    if (status == cudaSuccess) return;
    die("%s:%d: %.60s: %s", file, line, call, cudaGetErrorString(status));
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

enum { PACK = 16 / sizeof(real) };     // 8 numbers in bf16, 4 in fp32

// A pack as it lies in memory. Of real numbers it is one access, of floats beside bf16 two.
template <class T> struct Packed { uint4 words[PACK * sizeof(T) / 16]; };

template <class T> __device__ inline void load(float x[PACK], const T *from) {
    Packed<T> pack = *(const Packed<T> *)from;
    T numbers[PACK];
    memcpy(numbers, &pack, sizeof pack);         // in registers: the same bits under another name
    #pragma unroll
    for (int k = 0; k < PACK; k++) x[k] = (float)numbers[k];
}

template <class T> __device__ inline void store(T *to, const float x[PACK]) {
    Packed<T> pack;
    T numbers[PACK];
    #pragma unroll
    for (int k = 0; k < PACK; k++) numbers[k] = (T)x[k];
    memcpy(&pack, numbers, sizeof pack);
    *(Packed<T> *)to = pack;
}

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

// ---- the device ----

enum { MAX_PLANS = 128 };
static const size_t WORKSPACE_BYTES = 32 << 20;   // what NVIDIA advises for Hopper
static const size_t SCRATCH_FLOATS = 4 << 20;     // for sums on their way

// How one product of matrices is to be done, as section Matmul has settled it. The key is all that
// the choice depends on; keys are compared byte by byte.
typedef struct {
    size_t M, N, K, lda, ldb, ldc;
    cublasOperation_t op_a, op_b;
    cudaDataType_t type_c;
    int epilogue;                      // an EpilogueKind
} PlanKey;
static_assert(sizeof(PlanKey) == 6*sizeof(size_t) + 4*sizeof(int), "no bytes between its members");

typedef struct {
    PlanKey key;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
    bool found;                        // false: cuBLASLt has no kernel for this
} Plan;

// What a launcher needs besides its arguments.
typedef struct {
    cudaDeviceProp properties;
    cudaStream_t stream;
    cublasLtHandle_t blas;
    cublasComputeType_t compute;       // how fp32 is multiplied: as it is, or rounded to TF32
    void *workspace;                   // cuBLASLt's
    float *scratch;                    // (SCRATCH_FLOATS)
    Plan *plans;                       // (MAX_PLANS), the last ones made
    int n_plans;                       // made so far
} Gpu;

// "sm_80, sm_90": what this file was compiled for, which the compiler lists as 800,900.
typedef struct { char text[200]; } Architectures;
static Architectures architectures_built(void) {
#ifndef __CUDA_ARCH_LIST__
#define __CUDA_ARCH_LIST__ 800
#endif
    const int built[] = { __CUDA_ARCH_LIST__ };
    Architectures names = { "" };
    size_t n = 0;
    for (int a : built)
        n += (size_t)snprintf(names.text + n, sizeof names.text - n, "%ssm_%d", n ? ", " : "",
                              a / 10);
    return names;
}

__global__ void random_fill_kernel(real *x, size_t n);

// Which GPU a rank takes: that of its number on this machine. NCCL lets several share one only
// where the environment says so, which is for tests.
static int gpu_of_rank(const Comm *c, int devices) {
    bool shared = getenv("NCCL_HOSTID") || getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    if (c->local_size > devices && !shared)
        die("GPU: %d ranks were started on this machine, which shows them %d GPU%s; start one for "
            "each, and let each see all of them", c->local_size, devices, devices == 1 ? "" : "s");
    return c->local_rank % devices;
}

// No GPU, no driver, one that is too old, or a GPU this program was not built for.
static void gpu_find(Gpu *g, const Comm *c) {
    int driver = 0, runtime = 0, devices = 0;
    CUDA_CHECK(cudaDriverGetVersion(&driver));
    CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
    const char *instead = "train on the CPU with ./train_gpt2";
    if (driver == 0) die("GPU: no NVIDIA driver is installed here; %s", instead);
    cudaError_t status = cudaGetDeviceCount(&devices);
    if (status == cudaErrorInsufficientDriver)
        die("GPU: the driver knows CUDA %d.%d, and this program was built with %d.%d; update the "
            "driver, or build with its CUDA", driver / 1000, driver % 1000 / 10, runtime / 1000,
            runtime % 1000 / 10);
    if (status == cudaErrorNoDevice || (status == cudaSuccess && devices == 0))
        die("GPU: there is none here, or CUDA_VISIBLE_DEVICES hides it; %s", instead);
    CUDA_CHECK(status);
    int device = gpu_of_rank(c, devices);
    CUDA_CHECK(cudaSetDevice(device));
    CUDA_CHECK(cudaGetDeviceProperties(&g->properties, device));
    cudaFuncAttributes attributes;
    status = cudaFuncGetAttributes(&attributes, (const void *)random_fill_kernel);
    if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction
        || status == cudaErrorUnsupportedPtxVersion)
        die("GPU: %s is sm_%d%d, and this program was built for %s; run make train_gpt2cu on this "
            "machine (bf16 needs sm_80 or later)", g->properties.name, g->properties.major,
            g->properties.minor, architectures_built().text);
    CUDA_CHECK(status);
}

// Opens the GPU of this rank of `c`, which has found the others already.
static void gpu_open(Gpu *g, bool tf32, const Comm *c) {
    memset(g, 0, sizeof *g);
    if (tf32 && sizeof(real) < sizeof(float))
        die("--tf32: this program multiplies in " REAL_NAME "; make train_gpt2cu PRECISION=fp32 "
            "builds the one that can");
    gpu_find(g, c);
    CUDA_CHECK(cudaStreamCreate(&g->stream));
    CUBLAS_CHECK(cublasLtCreate(&g->blas));
    CUDA_CHECK(cudaMalloc(&g->workspace, WORKSPACE_BYTES));
    CUDA_CHECK(cudaMalloc((void **)&g->scratch, SCRATCH_FLOATS * sizeof *g->scratch));
    g->plans = (Plan *)alloc_or_die(MAX_PLANS * sizeof(Plan), "plans of products");
    g->compute = tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

static void gpu_wait(const Gpu *g) { CUDA_CHECK(cudaStreamSynchronize(g->stream)); }

// The time between two events that the GPU has passed.
static double gpu_seconds(cudaEvent_t begin, cudaEvent_t end) {
    float milliseconds = 0.0f;
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
    return 1e-3 * milliseconds;
}

static void plan_free(Plan *p) {
    CUBLAS_CHECK(cublasLtMatrixLayoutDestroy(p->a));
    CUBLAS_CHECK(cublasLtMatrixLayoutDestroy(p->b));
    CUBLAS_CHECK(cublasLtMatrixLayoutDestroy(p->c));
    CUBLAS_CHECK(cublasLtMatmulDescDestroy(p->product));
}

static void gpu_close(Gpu *g) {
    for (int i = 0; i < g->n_plans && i < MAX_PLANS; i++) plan_free(&g->plans[i]);
    free(g->plans);
    CUDA_CHECK(cudaFree(g->workspace));
    CUDA_CHECK(cudaFree(g->scratch));
    CUBLAS_CHECK(cublasLtDestroy(g->blas));
    CUDA_CHECK(cudaStreamDestroy(g->stream));
}

// =================================================================================================
// Shapes
// =================================================================================================

// The parameters of one block as layers read them, Block<real>, or their gradients, Block<float>.
template <class T> struct Block {
    T *ln1_gain, *ln1_bias;            // (C)
    T *qkv_w, *qkv_b;                  // (C,3C) (3C): queries, keys, values side by side
    T *att_proj_w, *att_proj_b;        // (C,C) (C)
    T *ln2_gain, *ln2_bias;            // (C)
    T *fc_w, *fc_b;                    // (C,4C) (4C)
    T *mlp_proj_w, *mlp_proj_b;        // (4C,C) (C)
};

// What one block's forward pass leaves behind for its backward pass. With --recompute block all
// blocks share these, save x_out, and each fills them anew on the way back.
typedef struct {
    real *ln1;                         // (N,C)
    float *ln1_mean, *ln1_rstd;        // (N) (N)
    real *qkv;                         // (N,3C); generation uses it as its key/value cache
    real *att;                         // (N,C)
    float *att_lse;                    // (B,NH,T) log of each softmax's denominator
    real *x_mid;                       // (N,C) the residual stream between attention and MLP
    real *ln2;                         // (N,C)
    float *ln2_mean, *ln2_rstd;        // (N) (N)
    real *fc, *gelu;                   // (N,4C)
    real *x_out;                       // (N,C) the residual stream after the block
} BlockActs;

// A micro-batch, on the CPU or on the GPU. For the embedding's gradient its tokens are sorted: the
// places of the w-th distinct token are order[begin[w]] ... order[begin[w+1] - 1].
typedef struct { int *inputs, *targets, *order, *begin; } Batch;       // (N) (N) (N) (N+1)

// What a rank reports of an update, on the GPU and, once it is copied, on the CPU: sums over its
// micro-batches, over its gradients and over the small ones of dev/train/noise.h; and whether it was
// told to stop (not 0).
typedef struct { double loss, norm_squared, smalls_squared; int64_t stopping; } Totals;

typedef enum { INFER, TRAIN } Use;
typedef enum { RECOMPUTE_NONE, RECOMPUTE_BLOCK } Recompute;

// What memory is used for, as the plan of it shows.
typedef enum {
    MEM_WEIGHTS, MEM_GRADIENTS, MEM_MOMENTS, MEM_OUTER, MEM_PASSING, MEM_ACTIVATIONS, MEM_LOGITS,
    MEM_BACKWARD, MEM_KINDS
} MemoryKind;
typedef struct { char *base; size_t used, of_kind[MEM_KINDS]; } Memory;      // in bytes

typedef struct {
    Gpu *gpu;
    Config c;
    Config padded;                     // the same with V rounded up; rows V ... are 0 and stay 0
    Use use;
    Recompute recompute;
    int max_B, max_T;                  // the largest batch the activations hold
    size_t n_params;
    Memory memory;                     // the one allocation that everything on the GPU lies in
    Zero zero;                         // which of the buffers below holds slices alone
    float *masters, *grads;            // flat, in the order of dev/base/gpt2.h, of `padded`
    real *params;                      // what layers read: the masters rounded, or themselves
    float *adam_m, *adam_v;            // moments; like grads, NULL when the model only infers
    float *outer_params, *outer_momentum;  // with --outer-every: of the last round's end
    float *bucket;                     // one whole, for checkpoints, in the memory of logits
    Chunk *chunks;                     // (n_chunks) the parameters that this rank updates
    int n_chunks;
    double *norm_partials;             // (n_chunks)
    Totals *totals;                    // of this rank
    Totals *all_totals, *host_totals;  // (ranks) of all, on the GPU and on the CPU
    Batch batch, host_batches[2];      // the CPU fills one while the other is on its way
    cudaEvent_t sent[2];               // when that one has arrived
    int now;                           // which of the two it is about
    int *token_count;                  // (V) scratch of the CPU, for sorting tokens
    float *host_bucket;                // (the largest) of parameters or moments, as files have them
    real *x_in;                        // (N,C) embeddings
    BlockActs *acts;                   // L of them
    real *lnf;                         // (N,C)
    float *lnf_mean, *lnf_rstd;        // (N) (N)
    float *loss, *lse, *host_loss;     // (N) nats a token
    real *logits;                      // (logit_rows,Vp): the classifier works in chunks of rows
    size_t logit_rows;
    float *next_logits;                // (Vp) of the one token that generation asks for
    float *host_logits;
    real *dx, *dx_branch;              // (N,C) gradient of the residual stream, and of a branch
    real *dqkv, *dfc;                  // (N,3C) (N,4C), in the memory of logits, over by then
    float2 *att_rows;                  // (B,NH,T) attention's scratch
} Model;

// A tensor's place in its bucket: of the embeddings, of a block, or of the final norm.
template <class T> static T *tensor_in(T *bucket, const Config *c, int kind) {
    int first = kind < FIRST_IN_BLOCK ? 0 : kind <= LAST_IN_BLOCK ? FIRST_IN_BLOCK : LNF_GAIN;
    return bucket + kinds_count(c, first, kind);
}

template <class T> static Block<T> block_in(T *bucket, const Config *c) {
    Block<T> b;
    T **fields[KINDS_IN_BLOCK] = {
        &b.ln1_gain, &b.ln1_bias, &b.qkv_w, &b.qkv_b, &b.att_proj_w, &b.att_proj_b,
        &b.ln2_gain, &b.ln2_bias, &b.fc_w, &b.fc_b, &b.mlp_proj_w, &b.mlp_proj_b,
    };
    for (int k = 0; k < KINDS_IN_BLOCK; k++)
        *fields[k] = tensor_in(bucket, c, FIRST_IN_BLOCK + k);
    return b;
}

// A bucket of parameters, as dev/ranks/shards.h hands it out.
static real *params_of(Model *m, int bucket, int next) {
    return (real *)zero_params(&m->zero, bucket, next);
}

// =================================================================================================
// Matmul
// =================================================================================================
//
// cuBLASLt is to a GPU what the packing and the registers of train_gpt2.c are to a CPU. It takes
// column-major matrices, and a row-major matrix is, byte by byte, its own transpose in columns. So
// c = a b is asked for as c^T = b^T a^T: the operands change places, and nothing is moved.
//
// What follows a product, an epilogue, costs little while its result is still in registers: a
// bias, GELU, GELU's gradient; and a product that reads dout can add up its rows on the way, the
// bias's gradient. cuBLASLt does not have every epilogue for every type and shape. Where it has
// none, matmul does nothing and returns false; the layer then takes a plain product and a kernel.
//
// Which of its many kernels serves a shape best, cuBLASLt guesses; it is asked once for each shape.

typedef enum { WRITE, ADD } Mode;      // C = A*B, or C += A*B

typedef enum {
    PLAIN,
    ADD_BIAS,                          // + vector (N)
    ADD_BIAS_GELU,                     // other (M,N) = A*B + vector; C = gelu(other)
    GELU_GRADIENT,                     // C = A*B * gelu'(other)
    BIAS_GRADIENT,                     // besides C: vector (N) = the sum of B's rows, overwritten
} EpilogueKind;
typedef struct { EpilogueKind kind; const void *vector; const real *other; } Epilogue;
static const Epilogue plain = { PLAIN, NULL, NULL };

// A matrix to be read, as it lies in memory or transposed; ld numbers from one row to the next.
typedef struct { const real *data; size_t ld; cublasOperation_t op; } Mat;

static Mat rows_of(const real *x, size_t ld) { Mat m = { x, ld, CUBLAS_OP_N }; return m; }
static Mat transpose_of(const real *x, size_t ld) { Mat m = { x, ld, CUBLAS_OP_T }; return m; }

static void plan_set(Plan *p, cublasLtMatmulDescAttributes_t what, const void *value, size_t n) {
    CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(p->product, what, value, n));
}

static void plan_set_pointers(Plan *p, const void *vector, const void *other) {
    if (vector) plan_set(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vector, sizeof vector);
    if (other) plan_set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &other, sizeof other);
}

static void plan_set_epilogue(Plan *p) {
    static const cublasLtEpilogue_t names[] = {
        CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_BGRADA,         // A: what stands first there
    };
    int kind = p->key.epilogue;
    bool vector = kind == ADD_BIAS || kind == ADD_BIAS_GELU || kind == BIAS_GRADIENT;
    bool other = kind == ADD_BIAS_GELU || kind == GELU_GRADIENT;
    int64_t ld_other = (int64_t)p->key.N;
    plan_set(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &names[kind], sizeof names[kind]);
    if (other) plan_set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld_other, sizeof ld_other);
    // Which kernels fit depends on alignment, for which the addresses of today must not stand.
    plan_set_pointers(p, vector ? (void *)16 : NULL, other ? (void *)16 : NULL);
}

// Asks cuBLASLt for its best kernel, for addresses that are multiples of 16.
static void plan_choose(Plan *p, Gpu *g) {
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
    };
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t best;
    uint32_t alignment = 16;
    int found = 0;
    CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
    CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE_BYTES,
        sizeof WORKSPACE_BYTES));
    for (cublasLtMatmulPreferenceAttributes_t a : alignments)
        CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, a, &alignment,
                                                          sizeof alignment));
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        g->blas, p->product, p->b, p->a, p->c, p->c, preference, 1, &best, &found);
    p->found = status == CUBLAS_STATUS_SUCCESS && found == 1 && best.state == status;
    if (!p->found && status != CUBLAS_STATUS_NOT_SUPPORTED) CUBLAS_CHECK(status);
    if (p->found) p->algorithm = best.algo;
    CUBLAS_CHECK(cublasLtMatmulPreferenceDestroy(preference));
}

static void plan_make(Plan *p, const PlanKey *k, Gpu *g) {
    bool a_rows = k->op_a == CUBLAS_OP_N, b_rows = k->op_b == CUBLAS_OP_N;
    cudaDataType_t type = type_of((const real *)NULL);
    memset(p, 0, sizeof *p);
    p->key = *k;
    CUBLAS_CHECK(cublasLtMatmulDescCreate(&p->product, g->compute, CUDA_R_32F));
    plan_set(p, CUBLASLT_MATMUL_DESC_TRANSA, &k->op_b, sizeof k->op_b);      // A there is our b
    plan_set(p, CUBLASLT_MATMUL_DESC_TRANSB, &k->op_a, sizeof k->op_a);
    CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&p->b, type, b_rows ? k->N : k->K,
                                            b_rows ? k->K : k->N, (int64_t)k->ldb));
    CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&p->a, type, a_rows ? k->K : k->M,
                                            a_rows ? k->M : k->K, (int64_t)k->lda));
    CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&p->c, k->type_c, k->N, k->M, (int64_t)k->ldc));
    plan_set_epilogue(p);
    plan_choose(p, g);
}

static Plan *plan_find(const PlanKey *k, Gpu *g) {
    int known = g->n_plans < MAX_PLANS ? g->n_plans : MAX_PLANS;
    for (int i = 0; i < known; i++)
        if (memcmp(&g->plans[i].key, k, sizeof *k) == 0) return &g->plans[i];
    Plan *p = &g->plans[g->n_plans++ % MAX_PLANS];       // the oldest makes room
    if (known == MAX_PLANS) plan_free(p);
    plan_make(p, k, g);
    return p;
}

// c (M,N) = a (M,K) * b (K,N), or c += a*b; c is real or float, and sums are fp32. Rows must begin
// at multiples of 16 bytes. False, and nothing done, when cuBLASLt lacks the epilogue here.
template <class T>
static bool matmul(T *c, size_t ldc, Mat a, Mat b, Epilogue e, size_t M, size_t N, size_t K,
                   Mode mode, Gpu *g) {
    PlanKey key = { M, N, K, a.ld, b.ld, ldc, a.op, b.op, type_of(c), e.kind };
    Plan *p = plan_find(&key, g);
    if (!p->found && e.kind != PLAIN) return false;
    if (!p->found) die("cuBLASLt has no product for M=%zu, N=%zu, K=%zu on this GPU", M, N, K);
    plan_set_pointers(p, e.vector, e.other);
    float one = 1.0f, beta = mode == ADD ? 1.0f : 0.0f;
    CUBLAS_CHECK(cublasLtMatmul(g->blas, p->product, &one, b.data, p->b, a.data, p->a, &beta, c,
                                p->c, c, p->c, &p->algorithm, g->workspace, WORKSPACE_BYTES,
                                g->stream));
    return true;
}

// ---- the 100% of "model FLOP utilisation": what the largest products of this GPU come to ----

// Products of zeros would be faster than any in earnest: they take less power.
__global__ void random_fill_kernel(real *x, size_t n) {
    size_t i = thread_in_grid();
    if (i >= n) return;
    uint32_t bits = (uint32_t)i * 2654435761u;
    bits = (bits ^ bits >> 15) * 2246822519u;
    x[i] = (real)((float)(bits >> 8) / 8388608.0f - 1.0f);
}

// Seconds that a product of n x n matrices takes, the mean of `times`.
static double matmul_seconds(real *c, const real *a, const real *b, size_t n, int times, Gpu *g) {
    cudaEvent_t begin, end;
    CUDA_CHECK(cudaEventCreate(&begin));
    CUDA_CHECK(cudaEventCreate(&end));
    matmul(c, n, rows_of(a, n), rows_of(b, n), plain, n, n, n, WRITE, g);        // warms up
    CUDA_CHECK(cudaEventRecord(begin, g->stream));
    for (int i = 0; i < times; i++)
        matmul(c, n, rows_of(a, n), rows_of(b, n), plain, n, n, n, WRITE, g);
    CUDA_CHECK(cudaEventRecord(end, g->stream));
    gpu_wait(g);
    double seconds = gpu_seconds(begin, end) / times;
    CUDA_CHECK(cudaEventDestroy(begin));
    CUDA_CHECK(cudaEventDestroy(end));
    return seconds;
}

// FLOP/s in the precision that training uses, of products that grow until one takes 5 ms or is of
// 8192 x 8192; a quarter of a second.
static double gpu_peak_flops(Gpu *g) {
    size_t n = 64, free_bytes, total;
    double seconds;
    real *memory = NULL;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
    do {
        n *= 2;
        CUDA_CHECK(cudaFree(memory));
        CUDA_CHECK(cudaMalloc((void **)&memory, 3*n*n * sizeof(real)));
        random_fill_kernel<<<blocks_for(3*n*n, 256), 256, 0, g->stream>>>(memory, 3*n*n);
        LAUNCH_CHECK();
        seconds = matmul_seconds(memory, memory + n*n, memory + 2*n*n, n, 1, g);
    } while (seconds < 5e-3 && n < 8192 && 12*n*n * sizeof(real) <= free_bytes / 2);
    int times = (int)(0.1 / seconds) + 1;
    if (times > 50) times = 50;
    seconds = matmul_seconds(memory, memory + n*n, memory + 2*n*n, n, times, g);
    CUDA_CHECK(cudaFree(memory));
    return 2.0 * (double)n * (double)n * (double)n / seconds;
}

// =================================================================================================
// Layers
// =================================================================================================

// ---- embedding: x[b,t] = wte[token[b,t]] + wpe[t] ----
//   x (B,T,C)   token (B,T)   wte (V,C)   wpe (P,C)
// Rows first ... T-1 of each sequence are written; first is 0 except in generation.

// Thread i owns pack i of the rows that are written.
__global__ void embedding_forward_kernel(real *x, const int *token, const real *wte,
                                         const real *wpe, size_t packs, int T, int first, int C) {
    size_t i = thread_in_grid();
    if (i >= packs) return;
    size_t row = i / (C/PACK), rows = T - first;
    int c = (int)(i % (C/PACK)) * PACK, t = first + (int)(row % rows);
    size_t n = row / rows * T + t;
    float word[PACK], place[PACK];
    load(word, wte + (size_t)token[n]*C + c);
    load(place, wpe + (size_t)t*C + c);
    for (int k = 0; k < PACK; k++) word[k] += place[k];
    store(x + n*C + c, word);
}

static void embedding_forward(real *x, const int *token, const real *wte, const real *wpe,
                              int B, int T, int first, int C, cudaStream_t stream) {
    size_t packs = (size_t)B*(T - first)*C / PACK;
    embedding_forward_kernel<<<blocks_for(packs, 256), 256, 0, stream>>>(
        x, token, wte, wpe, packs, T, first, C);
    LAUNCH_CHECK();
}

// Sorts the places 0 ... N-1 by the token that stands there, by counting; on the CPU, while the GPU
// is still busy. Places of one token stay in their order, so sums over them have one order too.
// Returns how many distinct tokens there are.
//   order (N)   begin (N+1), as in Batch   count: scratch (V)
static int tokens_sort(int *order, int *begin, int *count, const int *token, size_t N, int V) {
    int words = 0, at = 0;
    memset(count, 0, V * sizeof *count);
    for (size_t n = 0; n < N; n++) count[token[n]]++;
    for (int v = 0; v < V; v++) {
        if (count[v] == 0) continue;
        begin[words++] = at;
        at += count[v];
        count[v] = at - count[v];                // from here on, where the token's next place goes
    }
    begin[words] = at;
    for (size_t n = 0; n < N; n++) order[count[token[n]]++] = (int)n;
    return words;
}

// A block owns 32 packs of the row of one word. Its 8 warps share out the places where the word
// stands, which may be one or, of a comma, a thousand; their sums meet in shared memory.
__global__ void embedding_backward_words_kernel(float *dwte, const real *dx, const int *token,
                                                const int *order, const int *begin, int C) {
    enum { COLUMNS = 32*PACK };
    __shared__ float sums[8][COLUMNS];
    int c = blockIdx.y*COLUMNS + lane()*PACK;
    float sum[PACK] = {0}, x[PACK];
    for (int i = begin[blockIdx.x] + warp_in_block(); c < C && i < begin[blockIdx.x + 1]; i += 8) {
        load(x, dx + (size_t)order[i]*C + c);
        for (int k = 0; k < PACK; k++) sum[k] += x[k];
    }
    for (int k = 0; k < PACK; k++) sums[warp_in_block()][lane()*PACK + k] = sum[k];
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
    embedding_backward_words_kernel<<<blocks, 256, 0, stream>>>(dwte, dx, token, order, begin, C);
    LAUNCH_CHECK();
    embedding_backward_places_kernel<<<blocks_for((size_t)T*C, 256*PACK), 256, 0, stream>>>(
        dwpe, dx, B, T, C);
    LAUNCH_CHECK();
}

// ---- sums down the columns of a matrix, in two stages ----
// First each of a number of blocks adds up some rows, into a row of `partials`; here those rows are
// added up, in order, to what is in out. LayerNorm's gains and all biases have such gradients.

enum { MAX_PARTS = 512 };

// How many partial sums of so many columns there are room and use for.
static int column_parts(size_t columns, size_t rows, size_t rows_a_part) {
    size_t parts = min_size(MAX_PARTS, SCRATCH_FLOATS / columns);
    return (int)min_size(parts, (rows + rows_a_part - 1) / rows_a_part);
}

// A block owns 32 columns, a warp of it every 32nd part. Of two sets of columns side by side, as
// LayerNorm has them, blocks with y = 1 have the second.
//   partials (parts,sets,C)   first, second (C)
__global__ void column_sums_kernel(float *first, float *second, const float *partials, int parts,
                                   int C) {
    __shared__ float sums[32][32];
    int c = blockIdx.x*32 + lane();
    size_t ld = (size_t)gridDim.y*C;
    float *out = blockIdx.y == 0 ? first : second, sum = 0.0f;
    for (int p = warp_in_block(); c < C && p < parts; p += 32)
        sum += partials[p*ld + blockIdx.y*C + c];
    sums[warp_in_block()][lane()] = sum;
    __syncthreads();                             // the sums of all warps are there
    if (warp_in_block() > 0 || c >= C) return;
    for (int w = 1; w < 32; w++) sum += sums[w][lane()];
    out[c] += sum;
}

static void column_sums_add(float *first, float *second, const float *partials, int parts, int C,
                            cudaStream_t stream) {
    dim3 blocks(blocks_for(C, 32), second ? 2 : 1);
    column_sums_kernel<<<blocks, 1024, 0, stream>>>(first, second, partials, parts, C);
    LAUNCH_CHECK();
}

// ---- LayerNorm: out = (x - mean) * rstd * gain + bias, with rstd = 1/sqrt(var + 1e-5) ----
//   out, x (N,C)   mean, rstd (N) kept for backward   gain, bias (C)
// The residual stream is where most of them stand: x = a + b, which is written as well.

// Warp n owns row n. It reads the row three times, but only the first time from memory.
__global__ void layernorm_forward_kernel(real *x, real *out, float *mean, float *rstd,
                                         const real *a, const real *b, const real *gain,
                                         const real *bias, size_t N, int C) {
    size_t n = thread_in_grid() / 32;
    if (n >= N) return;                          // the whole warp leaves together
    float row[PACK], other[PACK], sum = 0.0f, squares = 0.0f;
    const real *seen = b ? x : a;                // where the normalised row lies
    for (int c = lane()*PACK; c < C; c += 32*PACK) {
        load(row, a + n*C + c);
        if (b) {
            load(other, b + n*C + c);
            for (int k = 0; k < PACK; k++) row[k] = (float)(real)(row[k] + other[k]);
            store(x + n*C + c, row);
        }
        for (int k = 0; k < PACK; k++) sum += row[k];
    }
    float m = warp_sum(sum) / C;
    for (int c = lane()*PACK; c < C; c += 32*PACK) {       // each lane rereads what it wrote
        load(row, seen + n*C + c);
        for (int k = 0; k < PACK; k++) squares += (row[k] - m) * (row[k] - m);
    }
    float r = 1.0f / sqrtf(warp_sum(squares) / C + 1e-5f);
    for (int c = lane()*PACK; c < C; c += 32*PACK) {
        float g[PACK], shift[PACK];
        load(row, seen + n*C + c);
        load(g, gain + c);
        load(shift, bias + c);
        for (int k = 0; k < PACK; k++) row[k] = (row[k] - m) * r * g[k] + shift[k];
        store(out + n*C + c, row);
    }
    if (lane() == 0) mean[n] = m;
    if (lane() == 0) rstd[n] = r;
}

static void layernorm_forward(real *out, float *mean, float *rstd, const real *x, const real *gain,
                              const real *bias, size_t N, int C, cudaStream_t stream) {
    layernorm_forward_kernel<<<blocks_for(N, 8), 256, 0, stream>>>(NULL, out, mean, rstd, x, NULL,
                                                                   gain, bias, N, C);
    LAUNCH_CHECK();
}

// x = a + b, and out its LayerNorm: residual_forward and layernorm_forward in one.
static void residual_layernorm_forward(real *x, real *out, float *mean, float *rstd,
                                       const real *a, const real *b, const real *gain,
                                       const real *bias, size_t N, int C, cudaStream_t stream) {
    layernorm_forward_kernel<<<blocks_for(N, 8), 256, 0, stream>>>(x, out, mean, rstd, a, b, gain,
                                                                   bias, N, C);
    LAUNCH_CHECK();
}

// With xhat = (x - mean) * rstd and g = dout * gain:
// dx = (g - mean(g) - xhat * mean(g * xhat)) * rstd; dgain += sum dout * xhat; dbias += sum dout.
// Where the residual stream branched off, the gradient that came along it is added: dx += skip.

// A warp owns a row, then the one that is as many rows further as there are warps; dx may be skip.
// It adds up its columns in shared memory that no other warp touches; at the end the warps' sums
// become the block's.
//   partials (blocks,2,C)
__global__ void layernorm_backward_kernel(real *dx, float *partials, const real *skip,
                                          const real *dout, const real *x, const float *mean,
                                          const float *rstd, const real *gain, size_t N, int C) {
    extern __shared__ __align__(16) float column_sums[];          // (warps,2,C)
    int warps = blockDim.x / 32;
    float *dgain = column_sums + (size_t)warp_in_block()*2*C, *dbias = dgain + C;
    for (int c = lane(); c < 2*C; c += 32) dgain[c] = 0.0f;
    __syncwarp();                                // zeros are there before other lanes add to them
    for (size_t n = (size_t)blockIdx.x*warps + warp_in_block(); n < N; n += gridDim.x*warps) {
        float m = mean[n], r = rstd[n], sum_g = 0.0f, sum_gx = 0.0f;
        float d[PACK], row[PACK], g[PACK], came[PACK] = {0}, gains[PACK], biases[PACK];
        for (int c = lane()*PACK; c < C; c += 32*PACK) {
            load(d, dout + n*C + c);
            load(row, x + n*C + c);
            load(g, gain + c);
            load(gains, dgain + c);
            load(biases, dbias + c);
            for (int k = 0; k < PACK; k++) {
                float xhat = (row[k] - m) * r;
                sum_g += d[k] * g[k];
                sum_gx += d[k] * g[k] * xhat;
                gains[k] += d[k] * xhat;
                biases[k] += d[k];
            }
            store(dgain + c, gains);
            store(dbias + c, biases);
        }
        float mean_g = warp_sum(sum_g) / C, mean_gx = warp_sum(sum_gx) / C;
        for (int c = lane()*PACK; c < C; c += 32*PACK) {
            load(d, dout + n*C + c);
            load(row, x + n*C + c);
            load(g, gain + c);
            if (skip) load(came, skip + n*C + c);
            for (int k = 0; k < PACK; k++)
                d[k] = (d[k]*g[k] - mean_g - (row[k] - m) * r * mean_gx) * r + came[k];
            store(dx + n*C + c, d);
        }
    }
    __syncthreads();                             // all warps have added up their rows
    for (int c = threadIdx.x; c < 2*C; c += blockDim.x) {
        float sum = 0.0f;
        for (int w = 0; w < warps; w++) sum += column_sums[(size_t)w*2*C + c];
        partials[(size_t)blockIdx.x*2*C + c] = sum;
    }
}

static const size_t SHARED_BYTES = 48 << 10;     // what a block gets on every GPU

// As many warps a block as their sums have room for.
static int layernorm_warps(int C) {
    int warps = 8;
    while (warps > 1 && warps*2*C * sizeof(float) > SHARED_BYTES) warps /= 2;
    return warps;
}

//   skip (N,C), or NULL: nothing is added
static void layernorm_backward(real *dx, float *dgain, float *dbias, const real *skip,
                               const real *dout, const real *x, const float *mean,
                               const float *rstd, const real *gain, size_t N, int C, Gpu *g) {
    int warps = layernorm_warps(C), parts = column_parts(2*(size_t)C, N, warps);
    size_t bytes = (size_t)warps*2*C * sizeof(float);
    layernorm_backward_kernel<<<parts, 32*warps, bytes, g->stream>>>(dx, g->scratch, skip, dout, x,
                                                                     mean, rstd, gain, N, C);
    LAUNCH_CHECK();
    column_sums_add(dgain, dbias, g->scratch, parts, C, g->stream);
}

// ---- linear: out = x w + b ----
//   out (N,OC)   x (N,C)   w (C,OC)   b (OC)

static void linear_forward(real *out, const real *x, const real *w, const real *b,
                           size_t N, int C, int OC, Gpu *g) {
    Epilogue bias = { ADD_BIAS, b, NULL };
    if (!matmul(out, OC, rows_of(x, C), rows_of(w, OC), bias, N, OC, C, WRITE, g))
        die("cuBLASLt adds no bias to a product on this GPU");
}

// A block owns 32 packs of columns and a part of the rows, which its 8 warps share out.
//   partials (parts,OC)
__global__ void bias_backward_kernel(float *partials, const real *dout, size_t N, int OC) {
    enum { COLUMNS = 32*PACK };
    __shared__ float sums[8][COLUMNS];
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
    column_sums_add(db, NULL, g->scratch, parts, OC, g->stream);
}

// dw += x^T dout; db += the sum of dout's rows
static void linear_backward_weight(float *dw, float *db, const real *dout, const real *x,
                                   size_t N, int C, int OC, Gpu *g) {
    Epilogue bias = { BIAS_GRADIENT, g->scratch, NULL };
    Mat xt = transpose_of(x, C), d = rows_of(dout, OC);
    if (matmul(dw, OC, xt, d, bias, C, OC, N, ADD, g)) {
        column_sums_add(db, NULL, g->scratch, 1, OC, g->stream);   // the epilogue overwrites
    } else {
        matmul(dw, OC, xt, d, plain, C, OC, N, ADD, g);
        bias_backward(db, dout, N, OC, g);
    }
}

// dx = dout w^T; dw += x^T dout; db += the sum of dout's rows
static void linear_backward(real *dx, float *dw, float *db, const real *dout, const real *x,
                            const real *w, size_t N, int C, int OC, Gpu *g) {
    matmul(dx, C, rows_of(dout, OC), transpose_of(w, OC), plain, N, C, OC, WRITE, g);
    linear_backward_weight(dw, db, dout, x, N, C, OC, g);
}

// ---- causal self-attention, for each head: out = softmax(q k^T / sqrt(HS), t2 <= t) v ----
//   out (B,T,C)   qkv (B,T,3C)   lse (B,NH,T) kept for backward
// A T x T matrix of scores never exists. A block of threads owns some rows of one head, and the
// rows of the other side stream past in shared memory. Forward it owns queries, and keeps three
// things of each while the keys pass: hi, the highest score so far; sum, that of 2^(score - hi);
// and o, the values added up with the same weights. When a key raises hi, sum and o shrink by
// 2^(old hi - new hi); at the end out = o / sum. Scores are scaled by log2(e) / sqrt(HS), because a
// GPU has an instruction for 2^x and none for e^x.
//
// With p the weights and d_t = dout_t . out_t:  ds = p (dout v^T - d);  dq = ds k / sqrt(HS);
// dk = ds^T q / sqrt(HS);  dv = p^T dout. Backward, one kernel owns queries and adds up dq, another
// owns keys and adds up dk and dv; both compute p and ds anew. That is seven products where five
// would do, but each sum stays in the registers of one block, in a fixed order: the same bits every
// run, no atomics, and no partial sums of dq on their way through memory.

enum { MAX_HS = 128 };                 // channels of a head that the kernels have room for
typedef enum { QUERIES, KEYS } Owned;

#define LOG2_E 1.44269504f
#define LN_2 0.693147181f

// What backward wants to know of each query: lse / ln 2, and d. Warp n has row n of (B,T,NH).
__global__ void attention_rows_kernel(float2 *rows, const real *dout, const real *out,
                                      const float *lse, size_t N, int T, int NH, int HS) {
    size_t n = thread_in_grid() / 32;
    if (n >= N) return;                                      // the whole warp leaves together
    float d = 0.0f;
    for (int i = lane(); i < HS; i += 32) d += (float)dout[n*HS + i] * (float)out[n*HS + i];
    d = warp_sum(d);
    size_t b = n / NH / T, t = n / NH % T, at = (b*NH + n % NH)*T + t;
    if (lane() == 0) rows[at] = make_float2(lse[at] * LOG2_E, d);
}

// ---- attention in plain words: any head size; for PRECISION=fp32, and for one new token ----
// A block of 8 warps owns 8 rows, one each; the other side passes 32 rows at a time. A lane has one
// of those for a score, and then each 32nd channel of the sums.

enum { PLAIN_ROWS = 8, PLAIN_STEP = 32, PLAIN_CHANNELS = MAX_HS / 32 };
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
    int b = blockIdx.x / NH, h = blockIdx.x % NH, HS = C / NH, warp = warp_in_block();
    int row0 = first + blockIdx.y*PLAIN_ROWS, t = row0 + warp;
    size_t ld = 3*(size_t)C;
    const real *head = qkv + (size_t)b*T*ld + h*HS;
    float scale = LOG2_E / sqrtf((float)HS), hi = -INFINITY, sum = 0.0f, o[PLAIN_CHANNELS] = {0};
    plain_load(q, head, ld, row0, PLAIN_ROWS, T, HS);
    for (int t2 = 0; t2 < min(row0 + PLAIN_ROWS, T); t2 += PLAIN_STEP) {
        plain_load(k, head + C, ld, t2, PLAIN_STEP, T, HS);
        plain_load(v, head + 2*C, ld, t2, PLAIN_STEP, T, HS);
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
    plain_store(out + ((size_t)b*T + t)*C + h*HS, o, 1.0f / sum, HS);
    if (lane() == 0) lse[(size_t)blockIdx.x*T + t] = (hi + log2f(sum)) * LN_2;
}

// x and y are what is owned, x2 and y2 what streams past: q, dout and k, v; or k, v and q, dout.
template <Owned OWNED>
__global__ void attention_backward_plain_kernel(real *dqkv, const float2 *rows, const real *dout,
                                                const real *qkv, int T, int C, int NH) {
    __shared__ PlainRow x[PLAIN_ROWS], y[PLAIN_ROWS], x2[PLAIN_STEP], y2[PLAIN_STEP];
    __shared__ float p[PLAIN_ROWS][PLAIN_STEP], ds[PLAIN_ROWS][PLAIN_STEP];
    const bool keys = OWNED == KEYS;
    int b = blockIdx.x / NH, h = blockIdx.x % NH, HS = C / NH, warp = warp_in_block();
    int row0 = blockIdx.y*PLAIN_ROWS, r = row0 + warp;
    size_t ld = 3*(size_t)C, at = (size_t)b*T*ld + h*HS;
    const real *q = qkv + at, *k = q + C, *v = k + C, *d_o = dout + (size_t)b*T*C + h*HS;
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
        float2 row = in_sight ? rows[(size_t)blockIdx.x*T + query] : make_float2(0.0f, 0.0f);
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
    real *drow = dqkv + at + r*ld;
    plain_store(drow + (keys ? C : 0), dx, scale * LN_2, HS);
    if (keys) plain_store(drow + 2*C, dy, 1.0f, HS);
}

#ifndef PRECISION_FP32
// ---- attention on tensor cores, in bf16 (FlashAttention-2, Dao 2023, arXiv 2307.08691) ----
// mma multiplies 16x16 by 16x8 numbers that are spread over a warp's registers. Of a result, lane l
// has rows l/4 and l/4 + 8, columns 2(l%4) and 2(l%4) + 1; two results side by side, rounded to
// bf16, are just what a next mma takes on its left. So weights go from the first product to the
// second without leaving the registers, and so do backward's p and ds, whichever side is owned.
//
// A warp owns M pieces of 16 rows, a block has four warps. What bounds the speed on Hopper: a
// multiprocessor does an mma.sync in about 1.6 clocks (two thirds of the pace of wgmma, which other
// architectures lack), while its right side takes 2 clocks to come out of shared memory. With M = 2
// it serves two products, and the tensor cores are the limit. Next is 2^x, 16 a clock: forward 512
// of a 128 x 64 tile's 820 clocks. They overlap, because two blocks share a multiprocessor (128
// threads of at most 255 registers each). A row in shared memory is 16 bytes longer than its
// channels, so the 8 rows that ldmatrix reads at once lie in different banks, and at addresses that
// differ by constants. Loops here have constant bounds, and nvcc unrolls them: registers have no
// index.

enum { WARPS = 4 };
template <int D> struct Tile {         // for heads of up to D channels
    enum {
        M = D <= 64 ? 2 : 1,           // more would not fit in registers
        ROWS = 16*M*WARPS,             // that a block owns
        STEP = D <= 64 ? 64 : 32,      // that stream past at a time
        LENGTH = D + 8,                // of a row in shared memory
    };
};

// What a lane holds of a 16x16 matrix on the left of a product, or of two 16x8 on the right.
typedef struct { uint32_t x[4]; } Fragment;

// Starts to copy BYTES, 8 or 16, to shared memory, or as many zeros; copy_async_wait waits for all
// that this thread has started.
template <int BYTES> __device__ inline void copy_async(void *to, const void *from, bool there) {
#ifdef EMULATOR
    emulated_cp_async(to, from, BYTES, there ? BYTES : 0);
#else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 :: "r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from), "n"(BYTES),
                    "r"(there ? BYTES : 0));
#endif
}
__device__ inline void copy_async_wait() {
#ifdef EMULATOR
    emulated_cp_async_wait_all();
#else
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Four 8x8 matrices, of which each lane names one row of 8; lane l gets numbers 2(l%4) and
// 2(l%4) + 1 of row l/4; transposed, of column l/4.
__device__ inline Fragment load_fragment(const real *row) {
    Fragment f;
#ifdef EMULATOR
    emulated_ldmatrix_x4(f.x, row);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(f.x[0]), "=r"(f.x[1]), "=r"(f.x[2]), "=r"(f.x[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row)));
#endif
    return f;
}
__device__ inline Fragment load_transposed(const real *row) {
    Fragment f;
#ifdef EMULATOR
    emulated_ldmatrix_x4_trans(f.x, row);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(f.x[0]), "=r"(f.x[1]), "=r"(f.x[2]), "=r"(f.x[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row)));
#endif
    return f;
}

// c (16,8) += a (16,16) b (16,8)
__device__ inline void mma(float c[4], const Fragment &a, const uint32_t b[2]) {
#ifdef EMULATOR
    emulated_mma_m16n8k16(c, a.x, b, c);
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b[0]), "r"(b[1]));
#endif
}

__device__ inline float exp2_fast(float x) {     // exp2f without its care for denormals
#ifdef EMULATOR
    return exp2f(x);
#else
    asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
#endif
}

// Over the four lanes that share the rows of a result.
__device__ inline float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ inline float quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

// Starts to copy ROWS rows of one head from `row` on, each HS of D channels; zeros past the edges,
// which change no product.
template <int D, int ROWS>
__device__ inline void tile_load(real *tile, const real *x, unsigned ld, int row, int T, int HS) {
    const int CHUNKS = D/8, AT_ONCE = 32*WARPS / CHUNKS;     // of 16 bytes in a row; rows
    int c = threadIdx.x % CHUNKS * 8;
    for (int i = 0; i < ROWS; i += AT_ONCE) {
        int r = i + threadIdx.x / CHUNKS, t = row + r;
        copy_async<16>(tile + r*Tile<D>::LENGTH + c, x + (min(t, T - 1)*ld + min(c, HS - 8)),
                       t < T && c < HS);
    }
}

// A warp's own rows, from shared memory to registers, where they stay.
template <int D> __device__ inline void own_load(Fragment own[][D/16], const real *tile) {
    const real *at = tile + lane()%16*Tile<D>::LENGTH + lane()/16*8;
    for (int m = 0; m < Tile<D>::M; m++)
        for (int i = 0; i < D/16; i++) own[m][i] = load_fragment(at + 16*m*Tile<D>::LENGTH + 16*i);
}

// s (16M,16) = own rows (16M,D) times 16 rows of a tile, transposed
template <int D>
__device__ inline void scores(float s[][2][4], const Fragment own[][D/16], const real *tile) {
    const real *at = tile + (lane()/16*8 + lane()%8)*Tile<D>::LENGTH + lane()/8%2*8;
    for (int i = 0; i < 8*Tile<D>::M; i++) s[i/8][i/4%2][i%4] = 0.0f;
    for (int i = 0; i < D/16; i++) {
        Fragment f = load_fragment(at + 16*i);
        for (int m = 0; m < Tile<D>::M; m++) {
            mma(s[m][0], own[m][i], f.x);
            mma(s[m][1], own[m][i], f.x + 2);
        }
    }
}

// o (16M,D) += weights (16M,16), rounded to bf16, times 16 rows of a tile
template <int D>
__device__ inline void accumulate(float o[][D/8][4], const float weights[][2][4],
                                  const real *tile) {
    const real *at = tile + lane()%16*Tile<D>::LENGTH + lane()/16*8;
    Fragment w[Tile<D>::M];
    for (int m = 0; m < Tile<D>::M; m++)
        for (int i = 0; i < 4; i++) {
            const float *pair = weights[m][i/2] + i%2*2;
            __nv_bfloat162 rounded = __floats2bfloat162_rn(pair[0], pair[1]);
            memcpy(&w[m].x[i], &rounded, sizeof rounded);
        }
    for (int i = 0; i < D/16; i++) {
        Fragment f = load_transposed(at + 16*i);
        for (int m = 0; m < Tile<D>::M; m++) {
            mma(o[m][2*i], w[m], f.x);
            mma(o[m][2*i + 1], w[m], f.x + 2);
        }
    }
}

// A warp's results, rows `row` ... of x, as far as they lie in first ... T-1. They pass through the
// place of its own rows, which no other warp uses, so that each lane writes 16 bytes.
template <int D>
__device__ inline void own_store(real *x, size_t ld, const float o[][D/8][4], float scale,
                                 real *own, int row, int first, int T, int HS) {
    const int M = Tile<D>::M, LENGTH = Tile<D>::LENGTH;
    for (int i = 0; i < M*D/4; i++) {
        int m = i / (D/4), n = i / 2 % (D/8), half = i % 2;  // of 16 rows; 8 columns, 8 rows of it
        real *to = own + (16*m + 8*half + lane()/4)*LENGTH + 8*n + lane()%4*2;
        *(__nv_bfloat162 *)to = __floats2bfloat162_rn(o[m][n][2*half] * scale,
                                                      o[m][n][2*half + 1] * scale);
    }
    __syncwarp();                                            // the rows are whole
    for (int i = 0; i < M*D/16; i++) {
        int chunk = 32*i + lane(), r = chunk / (D/8), c = chunk % (D/8) * 8;
        if (row + r >= first && row + r < T && c < HS)
            *(Packed<real> *)(x + (row + r)*ld + c) = *(Packed<real> *)(own + r*LENGTH + c);
    }
}

// The online softmax over 16*N more keys: scores s become weights 2^((s - hi) scale), and what has
// been added up shrinks. A lane adds only its own columns to sum; the quad's meet at the end.
template <int D, int N>
__device__ inline void softmax_step(float s[N][Tile<D>::M][2][4], float hi[][2], float sum[][2],
                                    float o[][D/8][4], float scale) {
    for (int i = 0; i < 2*Tile<D>::M; i++) {
        int m = i/2, half = i%2;                             // one of the lane's rows
        float top = hi[m][half], added = 0.0f;
        for (int j = 0; j < 4*N; j++) top = fmaxf(top, s[j/4][m][j/2%2][2*half + j%2]);
        top = quad_max(top);
        float shrink = exp2_fast((hi[m][half] - top) * scale), shift = top * scale;
        for (int j = 0; j < 4*N; j++) {
            float *x = &s[j/4][m][j/2%2][2*half + j%2];
            *x = exp2_fast(*x * scale - shift);
            added += *x;
        }
        hi[m][half] = top;
        sum[m][half] = sum[m][half] * shrink + added;
        for (int j = 0; j < D/4; j++) o[m][j/2][2*half + j%2] *= shrink;
    }
}

// Column minus row of the lane's number e in result j of piece m; the first is row `row`, column
// `col`.
__device__ inline int ahead(int row, int col, int m, int j, int e) {
    return col + 8*j + lane()%4*2 + e%2 - (row + 16*m + lane()/4 + e/2*8);
}

template <int D>
__global__ void __launch_bounds__(32*WARPS, 2)
attention_forward_kernel(real *out, float *lse, const real *qkv, int T, int first, int C, int NH) {
    const int M = Tile<D>::M, ROWS = Tile<D>::ROWS, STEP = Tile<D>::STEP, LENGTH = Tile<D>::LENGTH;
    extern __shared__ __align__(16) real shared[];           // (ROWS,LENGTH), 2 x 2 (STEP,LENGTH)
    real *k_tiles = shared + ROWS*LENGTH, *v_tiles = k_tiles + 2*STEP*LENGTH;
    int HS = C / NH, b = blockIdx.x / NH, h = blockIdx.x % NH;
    int row0 = (first/ROWS + gridDim.y - 1 - blockIdx.y) * ROWS;     // those with most keys first
    int row = row0 + warp_in_block()*16*M, end = min(row0 + ROWS, T);
    size_t ld = 3*(size_t)C;
    const real *q = qkv + (size_t)b*T*ld + h*HS, *k = q + C, *v = k + C;
    real *own = shared + (row - row0)*LENGTH;
    float scale = LOG2_E / sqrtf((float)HS), hi[M][2], sum[M][2] = {}, o[M][D/8][4] = {};
    for (int i = 0; i < 2*M; i++) hi[i/2][i%2] = -INFINITY;

    auto load = [&](int now, int col) {
        tile_load<D, STEP>(k_tiles + now*STEP*LENGTH, k, ld, col, T, HS);
        tile_load<D, STEP>(v_tiles + now*STEP*LENGTH, v, ld, col, T, HS);
    };
    tile_load<D, ROWS>(shared, q, ld, row0, T, HS);
    load(0, 0);
    copy_async_wait();
    __syncthreads();                                         // everybody's copies are there
    Fragment q_own[M][D/16];
    own_load<D>(q_own, own);
    for (int col = 0, now = 0; col < end; col += STEP, now ^= 1) {
        copy_async_wait();
        __syncthreads();     // this tile is there, and the other has been read: it may be filled
        if (col + STEP < end) load(now ^ 1, col + STEP);
        if (col >= row + 16*M) continue;                     // nothing in sight of this warp
        float s[STEP/16][M][2][4];
        for (int n = 0; n < STEP/16; n++)
            scores<D>(s[n], q_own, k_tiles + (now*STEP + 16*n)*LENGTH);
        for (int i = 0; col + STEP - 1 > row && i < STEP/2*M; i++) {       // keys out of sight
            int n = i / (8*M), m = i / 8 % M, j = i / 4 % 2, e = i % 4;
            if (ahead(row, col + 16*n, m, j, e) > 0) s[n][m][j][e] = -INFINITY;
        }
        softmax_step<D, STEP/16>(s, hi, sum, o, scale);
        for (int n = 0; n < STEP/16; n++)
            accumulate<D>(o, s[n], v_tiles + (now*STEP + 16*n)*LENGTH);
    }
    for (int i = 0; i < 2*M; i++) {
        int m = i/2, half = i%2, t = row + 8*i + lane()/4;
        float total = quad_sum(sum[m][half]), share = 1.0f / total;
        for (int j = 0; j < D/4; j++) o[m][j/2][2*half + j%2] *= share;
        if (lane() % 4 == 0 && t >= first && t < T)
            lse[(size_t)blockIdx.x*T + t] = (hi[m][half] * scale + log2f(total)) * LN_2;
    }
    own_store<D>(out + (size_t)b*T*C + h*HS, C, o, 1.0f, own, row, first, T, HS);
}

// x and y are what is owned, x2 and y2 what streams past: q, dout and k, v; or k, v and q, dout.
template <int D, Owned OWNED>
__global__ void __launch_bounds__(32*WARPS, 2)
attention_backward_kernel(real *dqkv, const float2 *rows, const real *dout, const real *qkv,
                          int T, int C, int NH) {
    const int M = Tile<D>::M, ROWS = Tile<D>::ROWS, STEP = Tile<D>::STEP, LENGTH = Tile<D>::LENGTH;
    const bool keys = OWNED == KEYS;
    extern __shared__ __align__(16) real shared[];   // 2 (ROWS,LENGTH), 2 x 2 (STEP,LENGTH), 2 STEP
    real *x2_tiles = shared + 2*ROWS*LENGTH, *y2_tiles = x2_tiles + 2*STEP*LENGTH;
    float2 *row_tiles = (float2 *)(y2_tiles + 2*STEP*LENGTH);
    int HS = C / NH, b = blockIdx.x / NH, h = blockIdx.x % NH;
    int row0 = (keys ? blockIdx.y : gridDim.y - 1 - blockIdx.y) * ROWS;   // most work first
    int warp = __shfl_sync(~0u, warp_in_block(), 0);         // so nvcc knows that lanes agree on it
    int row = row0 + warp*16*M;
    size_t ld = 3*(size_t)C, at = (size_t)b*T*ld + h*HS;
    const real *q = qkv + at, *k = q + C, *v = k + C, *d_o = dout + (size_t)b*T*C + h*HS;
    real *own = shared + (row - row0)*LENGTH;
    float scale = LOG2_E / sqrtf((float)HS), dx[M][D/8][4] = {}, dy[M][D/8][4] = {};
    float2 own_rows[2*M];
    rows += (size_t)blockIdx.x*T;
    auto load = [&](int now, int col) {
        tile_load<D, STEP>(x2_tiles + now*STEP*LENGTH, keys ? q : k, ld, col, T, HS);
        tile_load<D, STEP>(y2_tiles + now*STEP*LENGTH, keys ? d_o : v, keys ? C : ld, col, T, HS);
        int i = threadIdx.x, t = col + i;
        if (keys && i < STEP)
            copy_async<8>(row_tiles + now*STEP + i, rows + min(t, T - 1), t < T);
    };

    int begin = keys ? row0 : 0, end = keys ? T : min(row0 + ROWS, T);
    tile_load<D, ROWS>(shared, keys ? k : q, ld, row0, T, HS);
    tile_load<D, ROWS>(shared + ROWS*LENGTH, keys ? v : d_o, keys ? ld : C, row0, T, HS);
    load(0, begin);
    for (int i = 0; !keys && i < 2*M; i++) own_rows[i] = rows[min(row + 8*i + lane()/4, T - 1)];
    copy_async_wait();
    __syncthreads();                                         // everybody's copies are there
    Fragment x[M][D/16], y[M][D/16];
    own_load<D>(x, own);
    own_load<D>(y, own + ROWS*LENGTH);
    for (int col = begin, now = 0; col < end; col += STEP, now ^= 1) {
        copy_async_wait();
        __syncthreads();     // this tile is there, and the other has been read: it may be filled
        if (col + STEP < end) load(now ^ 1, col + STEP);
        // sixteen columns at a time, those that are in sight of the warp's rows
        int from = keys ? max(row - col, 0) : 0, to = keys ? STEP : min(row + 16*M - col, STEP);
        for (int c = from; c < to; c += 16) {
            const real *x2 = x2_tiles + (now*STEP + c)*LENGTH;
            const real *y2 = y2_tiles + (now*STEP + c)*LENGTH;
            const float2 *of = keys ? row_tiles + now*STEP + c + lane()%4*2 : own_rows;
            float p[M][2][4], ds[M][2][4];
            scores<D>(p, x, x2);
            for (int i = 0; i < 8*M; i++) {
                int j = i/M / 4, e = i/M % 4, m = i % M, late = ahead(row, col + c, m, j, e);
                float weight = exp2_fast(p[m][j][e]*scale - of[keys ? 8*j + e%2 : 2*m + e/2].x);
                p[m][j][e] = (keys ? late >= 0 : late <= 0) ? weight : 0.0f;
            }
            if (keys) accumulate<D>(dy, p, y2);
            scores<D>(ds, y, y2);
            for (int i = 0; i < 8*M; i++) {
                int j = i/M / 4, e = i/M % 4, m = i % M;
                ds[m][j][e] = p[m][j][e] * (ds[m][j][e] - of[keys ? 8*j + e%2 : 2*m + e/2].y);
            }
            accumulate<D>(dx, ds, x2);
        }
    }
    real *to = dqkv + (q - qkv);
    own_store<D>(to + (keys ? C : 0), ld, dx, scale * LN_2, own, row, 0, T, HS);
    if (keys) own_store<D>(to + 2*C, ld, dy, 1.0f, own + ROWS*LENGTH, row, 0, T, HS);
}

template <int D>
static void attention_forward_tiles(real *out, float *lse, const real *qkv,
                                    int B, int T, int first, int C, int NH, cudaStream_t stream) {
    const int ROWS = Tile<D>::ROWS, tiles = (int)blocks_for(T, ROWS) - first/ROWS;
    const int bytes = (ROWS + 4*Tile<D>::STEP) * Tile<D>::LENGTH * (int)sizeof(real);
    CUDA_CHECK(cudaFuncSetAttribute(attention_forward_kernel<D>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    attention_forward_kernel<D><<<dim3(B*NH, tiles), 32*WARPS, bytes, stream>>>(
        out, lse, qkv, T, first, C, NH);
    LAUNCH_CHECK();
}

template <int D>
static void attention_backward_tiles(real *dqkv, const float2 *rows, const real *dout,
                                     const real *qkv, int B, int T, int C, int NH,
                                     cudaStream_t stream) {
    const int ROWS = Tile<D>::ROWS, STEP = Tile<D>::STEP;
    const int bytes = (2*ROWS + 4*STEP) * Tile<D>::LENGTH * (int)sizeof(real)
                    + 2*STEP * (int)sizeof(float2);
    decltype(&attention_backward_kernel<D, KEYS>) kernels[] = {
        attention_backward_kernel<D, QUERIES>, attention_backward_kernel<D, KEYS>
    };
    dim3 blocks(B*NH, blocks_for(T, ROWS));
    for (auto kernel : kernels) {
        CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        bytes));
        kernel<<<blocks, 32*WARPS, bytes, stream>>>(dqkv, rows, dout, qkv, T, C, NH);
        LAUNCH_CHECK();
    }
}
#endif

// Queries first ... T-1 are computed; first is 0 except in generation.
static void attention_forward(real *out, float *lse, const real *qkv,
                              int B, int T, int first, int C, int NH, cudaStream_t stream) {
#ifndef PRECISION_FP32
    auto tiles = C/NH <= 32 ? attention_forward_tiles<32>
               : C/NH <= 64 ? attention_forward_tiles<64> : attention_forward_tiles<128>;
    if (C/NH % 8 == 0 && T - first > 1) {        // rows are copied by 8 channels
        tiles(out, lse, qkv, B, T, first, C, NH, stream);
        return;
    }
#endif
    dim3 blocks(B*NH, blocks_for(T - first, PLAIN_ROWS));
    attention_forward_plain_kernel<<<blocks, 32*PLAIN_ROWS, 0, stream>>>(
        out, lse, qkv, T, first, C, NH);
    LAUNCH_CHECK();
}

//   rows: scratch, (B,NH,T)
static void attention_backward(real *dqkv, float2 *rows, const real *dout, const real *qkv,
                               const real *out, const float *lse, int B, int T, int C, int NH,
                               cudaStream_t stream) {
    size_t N = (size_t)B*T*NH;
    attention_rows_kernel<<<blocks_for(N, 8), 32*8, 0, stream>>>(rows, dout, out, lse, N, T, NH,
                                                                C / NH);
    LAUNCH_CHECK();
#ifndef PRECISION_FP32
    auto tiles = C/NH <= 32 ? attention_backward_tiles<32>
               : C/NH <= 64 ? attention_backward_tiles<64> : attention_backward_tiles<128>;
    if (C/NH % 8 == 0) {
        tiles(dqkv, rows, dout, qkv, B, T, C, NH, stream);
        return;
    }
#endif
    decltype(&attention_backward_plain_kernel<KEYS>) kernels[] = {
        attention_backward_plain_kernel<QUERIES>, attention_backward_plain_kernel<KEYS>
    };
    dim3 blocks(B*NH, blocks_for(T, PLAIN_ROWS));
    for (auto kernel : kernels) {
        kernel<<<blocks, 32*PLAIN_ROWS, 0, stream>>>(dqkv, rows, dout, qkv, T, C, NH);
        LAUNCH_CHECK();
    }
}

// ---- residual: out = a + b. LayerNorm follows each and does it on the way: see there ----

// ---- GELU, as GPT-2 has it: x/2 (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3) ----
// The same is x s with s = 1 / (1 + e^-2u), which needs one exponential and no tanh. The products
// before and after it do it on the way; these kernels are for where cuBLASLt cannot.

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
    if (matmul(out, OC, rows_of(x, C), rows_of(w, OC), gelu, N, OC, C, WRITE, g)) return;
    linear_forward(pre, x, w, b, N, C, OC, g);
    gelu_forward(out, pre, N*OC, g->stream);
}

// The way back through out = gelu(pre) w + b: linear_backward, whose dx is dpre.
//   dpre, pre, x = gelu(pre) (N,C)
static void gelu_linear_backward(real *dpre, float *dw, float *db, const real *dout, const real *x,
                                 const real *pre, const real *w, size_t N, int C, int OC, Gpu *g) {
    Epilogue gelu = { GELU_GRADIENT, NULL, pre };
    Mat d = rows_of(dout, OC), wt = transpose_of(w, OC);
    if (!matmul(dpre, C, d, wt, gelu, N, C, OC, WRITE, g)) {
        matmul(dpre, C, d, wt, plain, N, C, OC, WRITE, g);
        gelu_backward(dpre, dpre, pre, N*C, g->stream);
    }
    linear_backward_weight(dw, db, dout, x, N, C, OC, g);
}

// ---- softmax cross-entropy over N rows of logits; columns V ... Vp-1 are padding ----
//   logits (N,Vp)   target (N)   loss, lse (N); lse[n] = log sum exp

// The highest of a row seen so far, and the sum of e^(x - hi) over what was seen: enough to go
// through a row once, since a new hi only scales the sum.
typedef struct { float hi, sum; } Softmax;

__device__ inline Softmax warp_softmax(Softmax s) {
    float hi = warp_max(s.hi);
    return { hi, warp_sum(s.sum * __expf(s.hi - hi)) };
}

// The whole row's, to all threads of the block that owns it.
__device__ inline Softmax row_softmax(const real *row, int V) {
    __shared__ Softmax of_warp[32];
    Softmax s = { -FLT_MAX, 0.0f };
    for (int v = threadIdx.x*PACK; v < V; v += blockDim.x*PACK) {
        float x[PACK], hi = s.hi;
        load(x, row + v);
        for (int k = 0; k < PACK; k++) if (v + k < V) hi = fmaxf(hi, x[k]);
        s.sum *= __expf(s.hi - hi);
        for (int k = 0; k < PACK; k++) if (v + k < V) s.sum += __expf(x[k] - hi);
        s.hi = hi;
    }
    s = warp_softmax(s);
    if (lane() == 0) of_warp[warp_in_block()] = s;
    __syncthreads();                             // all warps' parts are there
    Softmax none = { -FLT_MAX, 0.0f };
    return warp_softmax(lane() < (int)blockDim.x / 32 ? of_warp[lane()] : none);
}

// Block n owns row n. With `dlogits`, which is the logits' own place, it goes through the row a
// second time, when the cache still has it, and leaves there the gradient of loss * scale:
// (p - [v is the target]) * scale, zero in the padding.
__global__ void xent_kernel(float *loss, float *lse, real *dlogits, const real *logits,
                            const int *target, float scale, int V, int Vp) {
    size_t n = blockIdx.x;
    const real *row = logits + n*Vp;
    float at_target = (float)row[target[n]];     // read before the barrier, overwritten after it
    Softmax s = row_softmax(row, V);
    float log_sum = s.hi + logf(s.sum);
    if (threadIdx.x == 0) {
        lse[n] = log_sum;
        loss[n] = log_sum - at_target;           // -log p(target)
    }
    for (int v = threadIdx.x*PACK; dlogits && v < Vp; v += blockDim.x*PACK) {
        float d[PACK];
        load(d, row + v);
        for (int k = 0; k < PACK; k++) {
            float p = v + k < V ? __expf(d[k] - log_sum) : 0.0f;
            d[k] = (p - (v + k == target[n] ? 1.0f : 0.0f)) * scale;
        }
        store(dlogits + n*Vp + v, d);
    }
}

static void xent_launch(float *loss, float *lse, real *dlogits, const real *logits,
                        const int *target, float scale, size_t N, int V, int Vp,
                        cudaStream_t stream) {
    int threads = Vp >= 8192 ? 1024 : 128;
    xent_kernel<<<(unsigned)N, threads, 0, stream>>>(loss, lse, dlogits, logits, target, scale,
                                                     V, Vp);
    LAUNCH_CHECK();
}

static void xent_forward(float *loss, float *lse, const real *logits, const int *target,
                         size_t N, int V, int Vp, cudaStream_t stream) {
    xent_launch(loss, lse, NULL, logits, target, 0.0f, N, V, Vp, stream);
}

// Both ways in one: the loss, and dlogits in place of the logits.
static void xent_forward_backward(float *loss, float *lse, real *logits, const int *target,
                                  float scale, size_t N, int V, int Vp, cudaStream_t stream) {
    xent_launch(loss, lse, logits, logits, target, scale, N, V, Vp, stream);
}

// ---- classifier: logits = x wte^T, the embedding read the other way; then cross-entropy ----
//   x, dx (N,C)   wte, dwte (Vp,C): rows V ... are zero and stay it   logits: scratch, (rows,Vp)
// `rows` rows at a time, because (N,Vp) logits would be the largest array of all.

static void classifier_forward(float *loss, float *lse, real *logits, const real *x,
                               const real *wte, const int *target,
                               size_t N, size_t rows, int C, int V, int Vp, Gpu *g) {
    for (size_t n = 0; n < N; n += rows) {
        size_t some = min_size(rows, N - n);
        matmul(logits, Vp, rows_of(x + n*C, C), transpose_of(wte, C), plain, some, Vp, C, WRITE, g);
        xent_forward(loss + n, lse + n, logits, target + n, some, V, Vp, g->stream);
    }
}

// Forward and backward in one go, while a chunk's logits are there. `scale` is what each token's
// loss counts in the objective: one over the tokens of the update makes it a mean.
static void classifier_backward(real *dx, float *dwte, float *loss, float *lse, real *logits,
                                const real *x, const real *wte, const int *target, float scale,
                                size_t N, size_t rows, int C, int V, int Vp, Gpu *g) {
    for (size_t n = 0; n < N; n += rows) {
        size_t some = min_size(rows, N - n);
        matmul(logits, Vp, rows_of(x + n*C, C), transpose_of(wte, C), plain, some, Vp, C, WRITE, g);
        xent_forward_backward(loss + n, lse + n, logits, target + n, scale, some, V, Vp, g->stream);
        matmul(dx + n*C, C, rows_of(logits, Vp), rows_of(wte, C), plain, some, C, Vp, WRITE, g);
        matmul(dwte, C, transpose_of(logits, Vp), rows_of(x + n*C, C), plain, Vp, C, some, ADD, g);
    }
}

// =================================================================================================
// Model
// =================================================================================================

// ---- the plan of the memory: first counted, with no base, and then laid out ----

// Hands out the next `count` numbers of the memory; without memory it only counts.
template <class T> static void carve(T **p, Memory *mem, MemoryKind kind, size_t count) {
    size_t bytes = (count * sizeof(T) + 255) / 256 * 256;
    *p = mem->base ? (T *)(mem->base + mem->used) : NULL;
    mem->used += bytes;
    mem->of_kind[kind] += bytes;
}

// The classifier's rows at a time: at most 1 GB of logits, in chunks of one size.
static size_t classifier_rows(size_t N, size_t Vp) {
    size_t chunks = (N*Vp * sizeof(real) + (1u << 30) - 1) / (1u << 30);
    return (N + chunks - 1) / chunks;
}

// Rows of 64 divide the tiles of a product without a rest, and begin at multiples of 16 bytes.
static int padded_vocab(int V) { return (V + 63) / 64 * 64; }

static void block_carve(BlockActs *a, Memory *mem, size_t N, size_t C, size_t NH) {
    carve(&a->ln1, mem, MEM_ACTIVATIONS, N*C);
    carve(&a->ln1_mean, mem, MEM_ACTIVATIONS, N);
    carve(&a->ln1_rstd, mem, MEM_ACTIVATIONS, N);
    carve(&a->qkv, mem, MEM_ACTIVATIONS, N*3*C);
    carve(&a->att, mem, MEM_ACTIVATIONS, N*C);
    carve(&a->att_lse, mem, MEM_ACTIVATIONS, N*NH);
    carve(&a->x_mid, mem, MEM_ACTIVATIONS, N*C);
    carve(&a->ln2, mem, MEM_ACTIVATIONS, N*C);
    carve(&a->ln2_mean, mem, MEM_ACTIVATIONS, N);
    carve(&a->ln2_rstd, mem, MEM_ACTIVATIONS, N);
    carve(&a->fc, mem, MEM_ACTIVATIONS, N*4*C);
    carve(&a->gelu, mem, MEM_ACTIVATIONS, N*4*C);
}

// The masters of all parameters, or only of this rank's slices.
static bool masters_are_slices(const Zero *z) {
    bool apart = sizeof(real) < sizeof(float);           // else params themselves
    return z->stage >= (apart ? 1 : 3);
}

// Whether a micro-batch's gradients lie apart until they are measured: see dev/ranks/shards.h.
static bool keeps_small(const Zero *z) {
    return z->measure && z->size == 1 && z->n_levels == 0;
}

static void model_carve_params(Model *m, Memory *mem) {
    Zero *z = &m->zero;
    carve(&m->params, mem, MEM_WEIGHTS, zero_params_count(z));
    m->masters = (float *)m->params;
    if (sizeof(real) < sizeof(float)) carve(&m->masters, mem, MEM_WEIGHTS, zero_moments_count(z));
    z->params = (char *)m->params;
    for (int i = 0; i < ZERO_SLOTS && z->stage == 3; i++)
        carve(&z->gathered[i], mem, MEM_PASSING, zero_slot_count(z, i) * sizeof(real));
}

static void model_carve_training(Model *m, Memory *mem) {
    Zero *z = &m->zero;
    size_t n = gpt2_n_params(&m->padded);
    carve(&m->grads, mem, MEM_GRADIENTS, zero_grads_count(z));
    z->grads = z->levels[0] = m->grads;
    for (int l = 1; l < z->n_levels; l++) carve(&z->levels[l], mem, MEM_GRADIENTS, n);
    if (z->measure) carve(&z->partials, mem, MEM_GRADIENTS, zero_partials_count(z));
    if (keeps_small(z)) carve(&z->small, mem, MEM_GRADIENTS, n);
    for (int i = 0; i < ZERO_SLOTS && z->stage >= 2; i++)
        carve(&z->collected[i], mem, MEM_PASSING, zero_slot_count(z, i));
    carve(&m->adam_m, mem, MEM_MOMENTS, zero_moments_count(z));
    carve(&m->adam_v, mem, MEM_MOMENTS, zero_moments_count(z));
    carve(&m->chunks, mem, MEM_MOMENTS, m->n_chunks);
    carve(&m->norm_partials, mem, MEM_MOMENTS, m->n_chunks);
    carve(&m->totals, mem, MEM_MOMENTS, 1);
    m->all_totals = m->totals;
    if (z->size > 1) carve(&m->all_totals, mem, MEM_MOMENTS, z->size);
    if (!z->apart) return;
    carve(&m->outer_params, mem, MEM_OUTER, n);
    carve(&m->outer_momentum, mem, MEM_OUTER, n);
}

static void model_carve_acts(Model *m, Memory *mem) {
    size_t N = (size_t)m->max_B*m->max_T, C = m->c.C;
    carve(&m->x_in, mem, MEM_ACTIVATIONS, N*C);
    for (int l = 0; l < m->c.L; l++) {
        if (l == 0 || m->recompute == RECOMPUTE_NONE) block_carve(&m->acts[l], mem, N, C, m->c.NH);
        else m->acts[l] = m->acts[0];
        carve(&m->acts[l].x_out, mem, MEM_ACTIVATIONS, N*C);
    }
    carve(&m->lnf, mem, MEM_ACTIVATIONS, N*C);
    carve(&m->lnf_mean, mem, MEM_ACTIVATIONS, N);
    carve(&m->lnf_rstd, mem, MEM_ACTIVATIONS, N);
    carve(&m->batch.inputs, mem, MEM_ACTIVATIONS, N);
    carve(&m->batch.targets, mem, MEM_ACTIVATIONS, N);
    carve(&m->batch.order, mem, MEM_ACTIVATIONS, N);
    carve(&m->batch.begin, mem, MEM_ACTIVATIONS, N + 1);
    carve(&m->loss, mem, MEM_ACTIVATIONS, N);
    carve(&m->lse, mem, MEM_ACTIVATIONS, N);
}

// The blocks' way back begins when the classifier's has ended, and takes over its logits' memory.
// So do the buckets of a checkpoint, which are gathered between two updates.
static void model_carve_backward(Model *m, Memory *mem) {
    size_t N = (size_t)m->max_B*m->max_T, C = m->c.C, Vp = m->padded.V;
    m->logit_rows = classifier_rows(N, Vp);
    size_t reals = m->logit_rows*Vp, branches = m->use == TRAIN ? N*4*C : 0;
    size_t bucket = gpt2_largest_bucket(&m->padded) * sizeof(float) / sizeof(real);
    if (reals < branches) reals = branches;
    if (reals < bucket && m->zero.size > 1) reals = bucket;
    carve(&m->logits, mem, MEM_LOGITS, reals);
    m->dfc = m->dqkv = m->logits;
    m->bucket = (float *)m->logits;
    carve(&m->next_logits, mem, MEM_LOGITS, Vp);
    carve(&m->dx_branch, mem, MEM_BACKWARD, N*C);            // also the forward pass's scratch
    if (m->use == INFER) return;
    carve(&m->dx, mem, MEM_BACKWARD, N*C);
    carve(&m->att_rows, mem, MEM_BACKWARD, N*m->c.NH);
}

// Lays everything out behind `base`; returns how many bytes that takes.
static size_t model_carve(Model *m, char *base) {
    memset(&m->memory, 0, sizeof m->memory);
    m->memory.base = base;
    model_carve_params(m, &m->memory);
    if (m->use == TRAIN) model_carve_training(m, &m->memory);
    model_carve_acts(m, &m->memory);
    model_carve_backward(m, &m->memory);
    return m->memory.used;
}

// What the model would take with another micro-batch, or another way to recompute.
static size_t model_bytes(Model m, int B, Recompute recompute) {
    m.max_B = B;
    m.recompute = recompute;
    m.acts = (BlockActs *)alloc_or_die(m.c.L * sizeof *m.acts, "a table of activations");
    size_t bytes = model_carve(&m, NULL);
    free(m.acts);
    return bytes;
}

// The largest micro-batch that takes no more than so many bytes; 0 when none does.
static int largest_micro_batch(const Model *m, size_t bytes, Recompute recompute) {
    int B = m->max_B;
    while (B > 0 && model_bytes(*m, B, recompute) > bytes) B--;
    return B;
}

static double megabytes(size_t bytes) { return 1e-6 * (double)bytes; }

static void memory_show(FILE *out, const Model *m) {
    static const char *const names[MEM_KINDS] = {
        "weights: fp32, and as layers read them", "their gradients, fp32", "AdamW's moments, fp32",
        "DiLoCo's common step, fp32", "buckets that come from other ranks, or go to them",
        "activations", "logits, a chunk at a time", "gradients of activations",
    };
    fprintf(out, "memory for %d sequences of %d tokens at a time, in MB\n", m->max_B, m->max_T);
    for (int k = 0; k < MEM_KINDS; k++)
        if (m->memory.of_kind[k])
            fprintf(out, "  %10.1f  %s\n", megabytes(m->memory.of_kind[k]), names[k]);
    fprintf(out, "  %10.1f  in all\n", megabytes(m->memory.used));
}

// Prints the plan, and what would fit, and ends the program.
static void memory_die(Model *m, size_t room) {
    int fits = largest_micro_batch(m, room, m->recompute);
    int fits_recomputing = m->use == TRAIN ? largest_micro_batch(m, room, RECOMPUTE_BLOCK) : 0;
    size_t bytes = model_carve(m, NULL);
    char first[60] = "use a smaller model or a shorter --seq-len", second[60] = "";
    if (fits > 0) snprintf(first, sizeof first, "--micro-batch %d fits", fits);
    if (fits_recomputing > fits)
        snprintf(second, sizeof second, "; with --recompute block --micro-batch %d fits",
                 fits_recomputing);
    fflush(stdout);
    memory_show(stderr, m);
    die("memory: %.1f MB are needed, %.1f are free on the GPU; %s%s", megabytes(bytes),
        megabytes(room), first, second);
}

// ---- making a model, and its parameters ----

// What the kernels cannot do. Their limits are wider than any GPT-2.
static void model_check(const Config *c) {
    if (c->C % PACK != 0)
        die("--channels: %d is no multiple of %d, the numbers that a GPU moves at once in "
            REAL_NAME "; %d is", c->C, PACK, (c->C + PACK - 1) / PACK * PACK);
    if (c->C / c->NH > MAX_HS)
        die("--heads: heads of %d channels; the GPU's attention takes up to %d", c->C / c->NH,
            MAX_HS);
    if (2*c->C * sizeof(float) > SHARED_BYTES)
        die("--channels: %d; the GPU's LayerNorm takes up to %zu", c->C,
            SHARED_BYTES / 2 / sizeof(float));
}

template <class T> static void alloc_pinned(T **p, size_t count) {
    CUDA_CHECK(cudaMallocHost((void **)p, count * sizeof(T)));
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

enum { CHUNK = 1 << 14 };    // the largest piece of a tensor that a block of threads updates

// What the ranks share out. Tensors and slices are multiples of a pack long, so no pack of 16 bytes
// belongs to two chunks.
static void model_init_zero(Model *m, const Sharing *s) {
    Zero *z = &m->zero;
    zero_init(z, s ? s->comm : NULL, s ? s->zero : 0, &m->padded, sizeof(real),
              s ? s->type : COMM_FP32);
    z->apart = s && s->outer;
    z->in_turn = s && s->in_turn;
    z->n_levels = s ? s->levels : 0;
    z->measure = s && s->noise;
    m->n_chunks = zero_chunks(NULL, z, CHUNK);
}

// Memory of the CPU that the GPU copies from and to by itself.
static void model_init_host(Model *m) {
    size_t N = (size_t)m->max_B*m->max_T;
    for (int i = 0; i < 2; i++) {
        alloc_pinned(&m->host_batches[i].inputs, N);
        alloc_pinned(&m->host_batches[i].targets, N);
        alloc_pinned(&m->host_batches[i].order, N);
        alloc_pinned(&m->host_batches[i].begin, N + 1);
        CUDA_CHECK(cudaEventCreateWithFlags(&m->sent[i], cudaEventDisableTiming));
    }
    alloc_pinned(&m->host_totals, m->zero.size);
    alloc_pinned(&m->host_loss, N);
    alloc_pinned(&m->host_logits, m->padded.V);
    m->token_count = (int *)alloc_or_die(m->c.V * sizeof(int), "counting tokens");
    alloc_pinned(&m->host_bucket, gpt2_largest_bucket(&m->c));
}

// All that the plan of a model's memory depends on; a step towards model_init.
static void model_plan(Model *m, const Config *c, int max_B, int max_T, Use use,
                       Recompute recompute, const Sharing *sharing) {
    memset(m, 0, sizeof *m);
    m->c = m->padded = *c;
    m->padded.V = padded_vocab(c->V);
    m->max_B = max_B;
    m->max_T = max_T;
    m->use = use;
    m->recompute = recompute;
    m->n_params = gpt2_n_params(c);
    model_init_zero(m, sharing);
}

// A model of the given sizes for batches of up to max_B sequences of max_T tokens. All memory that
// a step needs is allocated here; parameters are zero until model_init_params or a file fills them.
static void model_init(Model *m, const Config *c, int max_B, int max_T, Use use,
                       Recompute recompute, const Sharing *sharing, Gpu *g) {
    const size_t FOR_DRIVER = 256 << 20;         // it loads kernels when they are first used
    size_t free_bytes, total;
    model_check(c);
    double numbers = (double)max_B * max_T * c->L * 16.0 * c->C;      // about; size_t could wrap
    if (numbers > 1e15) die("memory: %.0f TB for activations; use a smaller model or micro-batch",
                            1e-12 * sizeof(real) * numbers);
    model_plan(m, c, max_B, max_T, use, recompute, sharing);
    m->gpu = g;
    m->acts = (BlockActs *)alloc_or_die(c->L * sizeof *m->acts, "a table of activations");
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
    size_t room = free_bytes > FOR_DRIVER ? free_bytes - FOR_DRIVER : 0;
    if (model_carve(m, NULL) > room) memory_die(m, room);
    char *base;
    CUDA_CHECK(cudaMalloc((void **)&base, m->memory.used));
    CUDA_CHECK(cudaMemsetAsync(base, 0, m->memory.used, g->stream));
    model_carve(m, base);
    model_init_host(m);
    if (use == INFER) return;
    Chunk *chunks = (Chunk *)alloc_or_die(m->n_chunks * sizeof *chunks, "a table of tensors");
    zero_chunks(chunks, &m->zero, CHUNK);
    CUDA_CHECK(cudaMemcpyAsync(m->chunks, chunks, m->n_chunks * sizeof *chunks,
                               cudaMemcpyHostToDevice, g->stream));
    gpu_wait(g);
    free(chunks);
}

static void model_free(Model *m) {
    if (!m->gpu) return;
    gpu_wait(m->gpu);
    CUDA_CHECK(cudaFree(m->memory.base));
    for (int i = 0; i < 2; i++) {
        CUDA_CHECK(cudaFreeHost(m->host_batches[i].inputs));
        CUDA_CHECK(cudaFreeHost(m->host_batches[i].targets));
        CUDA_CHECK(cudaFreeHost(m->host_batches[i].order));
        CUDA_CHECK(cudaFreeHost(m->host_batches[i].begin));
        CUDA_CHECK(cudaEventDestroy(m->sent[i]));
    }
    CUDA_CHECK(cudaFreeHost(m->host_totals));
    CUDA_CHECK(cudaFreeHost(m->host_loss));
    CUDA_CHECK(cudaFreeHost(m->host_logits));
    free(m->token_count);
    CUDA_CHECK(cudaFreeHost(m->host_bucket));
    zero_free(&m->zero);
    free(m->acts);
    memset(m, 0, sizeof *m);
}

// What lies of a bucket in slice s on the GPU, from or to the whole bucket on the CPU, which has no
// rows that pad the vocabulary: behind those, its numbers lie further on. Waits until it is done.
static void bucket_copy(float *on_gpu, float *on_cpu, int bucket, Slice s, const Model *m,
                        cudaMemcpyKind direction) {
    size_t whole = gpt2_bucket(&m->padded, bucket).count, C = m->c.C;
    size_t padding = whole - gpt2_bucket(&m->c, bucket).count;
    size_t words = padding > 0 ? m->c.V*C : whole;
    Slice spans[] = { { 0, words }, { words + padding, whole - words - padding } };
    for (Slice span : spans) {
        size_t begin = span.begin > s.begin ? span.begin : s.begin;
        size_t end = min_size(span.begin + span.count, s.begin + s.count);
        if (begin >= end) continue;
        float *there = on_gpu + begin - s.begin, *here = on_cpu + begin;
        if (span.begin > 0) here -= padding;
        bool up = direction == cudaMemcpyHostToDevice;
        CUDA_CHECK(cudaMemcpyAsync(up ? there : here, up ? here : there,
                                   (end - begin) * sizeof *here, direction, m->gpu->stream));
    }
    gpu_wait(m->gpu);
}

// Where what this rank owns of a bucket begins, in a buffer of slices or in a whole one.
static size_t own_begin(const Zero *z, int bucket, bool slices) {
    if (slices) return zero_slices_begin(z, bucket);
    return gpt2_bucket(&z->c, bucket).begin + zero_own(z, bucket).begin;
}

// m->host_bucket, a whole bucket, to a buffer of the GPU: as much of it as this rank owns.
static void bucket_send(float *buffer, bool slices, int bucket, Model *m) {
    const Zero *z = &m->zero;
    bucket_copy(buffer + own_begin(z, bucket, slices), m->host_bucket, bucket, zero_own(z, bucket),
                m, cudaMemcpyHostToDevice);
}

// The same, of parameters that were loaded or drawn.
static void params_send(Model *m, int bucket) {
    size_t bytes = gpt2_bucket(&m->c, bucket).count * sizeof(float);
    if (m->zero.size > 1) m->zero.hash = hash_add(m->zero.hash, m->host_bucket, bytes);
    bucket_send(m->masters, masters_are_slices(&m->zero), bucket, m);
}

// Thread i owns pack i.
__global__ void params_round_kernel(real *params, const float *masters, size_t n) {
    size_t i = thread_in_grid() * PACK;
    if (i >= n) return;
    float x[PACK];
    load(x, masters + i);
    store(params + i, x);
}

// What layers read, after the masters have been filled: what this rank owns, and what others do.
static void model_round_params(Model *m) {
    Zero *z = &m->zero;
    for (int b = 0; b < gpt2_n_buckets(&m->c) && sizeof(real) < sizeof(float); b++) {
        size_t n = zero_own(z, b).count;
        if (n == 0) continue;
        params_round_kernel<<<blocks_for(n, 256*PACK), 256, 0, m->gpu->stream>>>(
            m->params + own_begin(z, b, z->stage == 3),
            m->masters + own_begin(z, b, masters_are_slices(z)), n);
        LAUNCH_CHECK();
    }
    zero_updated(z);
}

// GPT-2's initialisation, the very numbers of train_gpt2.c. Each tensor draws from a stream of its
// own.
static void bucket_init(float *numbers, int bucket, const Model *m, uint64_t seed) {
    size_t begin = gpt2_bucket(&m->c, bucket).begin;
    int first = gpt2_bucket_tensor(&m->c, bucket), end = gpt2_bucket_tensor(&m->c, bucket + 1);
    #pragma omp parallel for schedule(dynamic)
    for (int i = first; i < end; i++) {
        Tensor t = gpt2_tensor(&m->c, i);
        Rng rng = rng_make(seed, (uint64_t)i);
        double std = t.init == INIT_RESIDUAL ? 0.02 / sqrt(2.0 * m->c.L) : 0.02;
        float *p = numbers + t.offset - begin;
        for (size_t j = 0; j < t.count; j++)
            p[j] = t.init == INIT_ZEROS ? 0.0f : t.init == INIT_ONES ? 1.0f
                                        : (float)(std * rng_normal(&rng));
    }
}

static void model_init_params(Model *m, uint64_t seed) {
    for (int b = 0; b < gpt2_n_buckets(&m->c); b++) {
        bucket_init(m->host_bucket, b, m, seed);
        params_send(m, b);
    }
    model_round_params(m);
}

// ---- batches on their way ----

static void send_ints(int *to, const int *from, size_t n, const Model *m) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, n * sizeof *to, cudaMemcpyHostToDevice, m->gpu->stream));
}

// Sends N tokens, and what follows each (NULL: nothing is asked), without waiting for them to
// arrive; the model's next calls are about them. inputs and targets may be used again at once.
static void model_send_batch(Model *m, const int *inputs, const int *targets, size_t N) {
    m->now = 1 - m->now;
    Batch *host = &m->host_batches[m->now];
    CUDA_CHECK(cudaEventSynchronize(m->sent[m->now]));       // of the batch before the last
    memcpy(host->inputs, inputs, N * sizeof *inputs);
    send_ints(m->batch.inputs, host->inputs, N, m);
    if (targets) {
        memcpy(host->targets, targets, N * sizeof *targets);
        send_ints(m->batch.targets, host->targets, N, m);
    }
    CUDA_CHECK(cudaEventRecord(m->sent[m->now], m->gpu->stream));
}

// Sorts the same tokens and sends their order; returns how many of them are distinct.
static int model_sort_batch(Model *m, size_t N) {
    Batch *host = &m->host_batches[m->now];
    int words = tokens_sort(host->order, host->begin, m->token_count, host->inputs, N, m->c.V);
    send_ints(m->batch.order, host->order, N, m);
    send_ints(m->batch.begin, host->begin, words + 1, m);
    CUDA_CHECK(cudaEventRecord(m->sent[m->now], m->gpu->stream));
    return words;
}

// ---- forward and backward ----

// The norm that reads the residual stream before block l; before block L, which is not there, it is
// the final one.
typedef struct { real *out; float *mean, *rstd; const real *gain, *bias; } Norm;

static Norm norm_before(Model *m, int l) {
    real *bucket = params_of(m, 1 + l, -1);
    if (l == m->c.L)
        return { m->lnf, m->lnf_mean, m->lnf_rstd, tensor_in(bucket, &m->padded, LNF_GAIN),
                 tensor_in(bucket, &m->padded, LNF_BIAS) };
    const BlockActs *a = &m->acts[l];
    Block<real> w = block_in(bucket, &m->padded);
    return { a->ln1, a->ln1_mean, a->ln1_rstd, w.ln1_gain, w.ln1_bias };
}

// Block l from the output of its first norm to its GELU, for rows first ... T-1; x is what enters.
static void block_forward(Model *m, int l, Block<real> w, const real *x, int B, int T, int first) {
    int C = m->c.C, NH = m->c.NH;
    Gpu *g = m->gpu;
    size_t from = first, N = (size_t)B*T - from;       // rows from ... from+N-1
    BlockActs a = m->acts[l];
    real *branch = m->dx_branch;
    linear_forward(a.qkv + from*3*C, a.ln1 + from*C, w.qkv_w, w.qkv_b, N, C, 3*C, g);
    attention_forward(a.att, a.att_lse, a.qkv, B, T, first, C, NH, g->stream);
    linear_forward(branch, a.att + from*C, w.att_proj_w, w.att_proj_b, N, C, C, g);
    residual_layernorm_forward(a.x_mid + from*C, a.ln2 + from*C, a.ln2_mean, a.ln2_rstd, x, branch,
                               w.ln2_gain, w.ln2_bias, N, C, g->stream);
    linear_gelu_forward(a.gelu + from*4*C, a.fc + from*4*C, a.ln2 + from*C, w.fc_w, w.fc_b,
                        N, C, 4*C, g);
}

// Runs the batch's tokens (B,T) through the blocks, up to the final norm's output m->lnf (B*T,C).
// With first > 0 and B = 1 only rows first ... T-1 are computed: the keys and values of the rows
// before them are still in each block's qkv. That is all a key/value cache is.
static void model_forward(Model *m, int B, int T, int first) {
    assert(T <= m->max_T && B <= m->max_B && (first == 0 || B == 1));
    assert(first == 0 || m->recompute == RECOMPUTE_NONE);     // blocks that share qkv keep no cache
    int C = m->c.C;
    cudaStream_t stream = m->gpu->stream;
    size_t from = first, N = (size_t)B*T - from;       // rows from ... from+N-1
    real *embeddings = params_of(m, 0, 1);
    embedding_forward(m->x_in, m->batch.inputs, tensor_in(embeddings, &m->padded, WTE),
                      tensor_in(embeddings, &m->padded, WPE), B, T, first, C, stream);
    real *x = m->x_in + from*C, *branch = m->dx_branch;
    Norm n = norm_before(m, 0);
    layernorm_forward(n.out + from*C, n.mean, n.rstd, x, n.gain, n.bias, N, C, stream);
    for (int l = 0; l < m->c.L; l++) {
        Block<real> w = block_in(params_of(m, 1 + l, 2 + l), &m->padded);
        BlockActs a = m->acts[l];
        block_forward(m, l, w, x, B, T, first);
        linear_forward(branch, a.gelu + from*4*C, w.mlp_proj_w, w.mlp_proj_b, N, 4*C, C, m->gpu);
        n = norm_before(m, l + 1);
        x = a.x_out + from*C;
        residual_layernorm_forward(x, n.out + from*C, n.mean, n.rstd, a.x_mid + from*C, branch,
                                   n.gain, n.bias, N, C, stream);
    }
}

static double sum_of(const float *x, size_t n) {
    double sum = 0.0;
    for (size_t i = 0; i < n; i++) sum += x[i];
    return sum;
}

// The loss of each of the batch's N tokens in nats, to m->host_loss; after model_forward. Returns
// their sum.
static double model_loss(Model *m, size_t N) {
    Gpu *g = m->gpu;
    real *wte = tensor_in(params_of(m, 0, -1), &m->padded, WTE);
    classifier_forward(m->loss, m->lse, m->logits, m->lnf, wte, m->batch.targets, N, m->logit_rows,
                       m->c.C, m->c.V, m->padded.V, g);
    CUDA_CHECK(cudaMemcpyAsync(m->host_loss, m->loss, N * sizeof *m->loss, cudaMemcpyDeviceToHost,
                               g->stream));
    gpu_wait(g);
    return sum_of(m->host_loss, N);
}

// One block adds n numbers up, always in the same order: *out = their sum, or more by it.
template <class T> __global__ void sum_kernel(double *out, const T *x, size_t n, Mode mode) {
    double sum = 0.0;
    for (size_t i = threadIdx.x; i < n; i += blockDim.x) sum += (double)x[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) *out = mode == ADD ? *out + sum : sum;
}

// The way back through block l, from dx at its end to dx at its beginning.
static void block_backward(Model *m, int l, Block<real> w, const real *x, int B, int T) {
    int C = m->c.C;
    size_t N = (size_t)B*T;
    Gpu *g = m->gpu;
    Block<float> d = block_in(zero_grads(&m->zero, 1 + l), &m->padded);
    BlockActs a = m->acts[l];
    real *dx = m->dx, *dbranch = m->dx_branch;
    gelu_linear_backward(m->dfc, d.mlp_proj_w, d.mlp_proj_b, dx, a.gelu, a.fc, w.mlp_proj_w,
                         N, 4*C, C, g);
    linear_backward(dbranch, d.fc_w, d.fc_b, m->dfc, a.ln2, w.fc_w, N, C, 4*C, g);
    layernorm_backward(dx, d.ln2_gain, d.ln2_bias, dx, dbranch, a.x_mid, a.ln2_mean, a.ln2_rstd,
                       w.ln2_gain, N, C, g);
    linear_backward(dbranch, d.att_proj_w, d.att_proj_b, dx, a.att, w.att_proj_w, N, C, C, g);
    attention_backward(m->dqkv, m->att_rows, dbranch, a.qkv, a.att, a.att_lse, B, T, C, m->c.NH,
                       g->stream);
    linear_backward(dbranch, d.qkv_w, d.qkv_b, m->dqkv, a.ln1, w.qkv_w, N, C, 3*C, g);
    layernorm_backward(dx, d.ln1_gain, d.ln1_bias, dx, dbranch, x, a.ln1_mean, a.ln1_rstd,
                       w.ln1_gain, N, C, g);
}

// The way back, after model_forward on the same batch: adds the gradient of scale * (sum of the N
// losses) to the gradients, a bucket at a time, and the sum of the losses to m->totals. A bucket
// leaves for the other ranks, if there are any, while the blocks before it compute.
static void model_backward(Model *m, float scale, int B, int T) {
    const Config *c = &m->padded;
    Zero *z = &m->zero;
    int C = c->C, L = c->L;
    size_t N = (size_t)B*T;
    Gpu *g = m->gpu;
    real *dx = m->dx, *dbranch = m->dx_branch;
    real *embeddings = params_of(m, 0, L), *norm = params_of(m, 1 + L, -1);
    float *dembeddings = zero_grads(z, 0), *dnorm = zero_grads(z, 1 + L);
    classifier_backward(dbranch, tensor_in(dembeddings, c, WTE), m->loss, m->lse, m->logits, m->lnf,
                        tensor_in(embeddings, c, WTE), m->batch.targets, scale,
                        N, m->logit_rows, C, m->c.V, c->V, g);
    sum_kernel<float><<<1, 1024, 0, g->stream>>>(&m->totals->loss, m->loss, N, ADD);
    LAUNCH_CHECK();
    layernorm_backward(dx, tensor_in(dnorm, c, LNF_GAIN), tensor_in(dnorm, c, LNF_BIAS), NULL,
                       dbranch, m->acts[L - 1].x_out, m->lnf_mean, m->lnf_rstd,
                       tensor_in(norm, c, LNF_GAIN), N, C, g);
    zero_grads_done(z, 1 + L);
    for (int l = L - 1; l >= 0; l--) {
        Block<real> w = block_in(params_of(m, 1 + l, l > 0 ? l : -1), c);
        const real *x = l > 0 ? m->acts[l - 1].x_out : m->x_in;
        if (m->recompute == RECOMPUTE_BLOCK && l < L - 1) {  // the last block's are still there
            Norm n = norm_before(m, l);
            layernorm_forward(n.out, n.mean, n.rstd, x, n.gain, n.bias, N, C, g->stream);
            block_forward(m, l, w, x, B, T, 0);
        }
        block_backward(m, l, w, x, B, T);
        zero_grads_done(z, 1 + l);
    }
    int words = model_sort_batch(m, N);
    embedding_backward(tensor_in(dembeddings, c, WTE), tensor_in(dembeddings, c, WPE), dx,
                       m->batch.inputs, m->batch.order, m->batch.begin, words, B, T, C, g->stream);
    zero_grads_done(z, 0);
}

// =================================================================================================
// Optimizer
// =================================================================================================

static void gradients_zero(Model *m) {
    size_t bytes = zero_grads_count(&m->zero) * sizeof(float);
    CUDA_CHECK(cudaMemsetAsync(m->zero.grads, 0, bytes, m->gpu->stream));
    CUDA_CHECK(cudaMemsetAsync(m->totals, 0, sizeof *m->totals, m->gpu->stream));
    if (!m->zero.measure) return;
    bytes = zero_partials_count(&m->zero) * sizeof(double);
    CUDA_CHECK(cudaMemsetAsync(m->zero.partials, 0, bytes, m->gpu->stream));
}

// Block i adds up the squares of chunk i, in double precision.
__global__ void norm_kernel(double *partials, const float *grads, const Chunk *chunks) {
    Chunk chunk = chunks[blockIdx.x];
    double sum = 0.0;
    for (int i = threadIdx.x*PACK; i < chunk.count; i += blockDim.x*PACK) {
        float g[PACK];
        load(g, grads + chunk.grad + i);
        for (int k = 0; k < PACK; k++) sum += (double)g[k] * g[k];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

// The sum of the squares of this rank's gradients, to m->totals; and that of its small ones, where
// zero_measure has taken them. Each chunk has a sum of its own.
static void gradients_squares(Model *m) {
    cudaStream_t stream = m->gpu->stream;
    if (m->n_chunks > 0)
        norm_kernel<<<m->n_chunks, 256, 0, stream>>>(m->norm_partials, m->zero.grads, m->chunks);
    LAUNCH_CHECK();
    sum_kernel<double><<<1, 1024, 0, stream>>>(&m->totals->norm_squared, m->norm_partials,
                                               m->n_chunks, WRITE);
    LAUNCH_CHECK();
    if (!m->zero.measure) return;
    sum_kernel<double><<<1, 1024, 0, stream>>>(&m->totals->smalls_squared, m->zero.partials,
                                               zero_partials_count(&m->zero), WRITE);
    LAUNCH_CHECK();
}

// The totals of `ranks` ranks, all that there are or this one alone, come to m->host_totals. Here
// the CPU waits for the GPU.
static void totals_fetch(Model *m, int ranks) {
    Zero *z = &m->zero;
    Totals *totals = ranks > 1 ? m->all_totals : m->totals;
    if (ranks > 1)
        comm_wait(z->comm, comm_collect_there(z->comm, totals, m->totals, sizeof *totals));
    CUDA_CHECK(cudaMemcpyAsync(m->host_totals, totals, ranks * sizeof *totals,
                               cudaMemcpyDeviceToHost, m->gpu->stream));
    gpu_wait(m->gpu);
}

typedef struct {
    float lr, beta1, beta2, eps, weight_decay;
    double v_age;            // updates of this beta2 that v is an average over; 0: as many as made
} AdamW;

// One AdamW update of all parameters (Loshchilov and Hutter 2019, arXiv 1711.05101, algorithm 2).
// Block i owns chunk i. g is scaled on the way, for clipping; to_m and to_v correct the moments'
// start at 0. `rounded` is what layers will read, the master itself where that is what they read;
// else masters lie as moments do.
__global__ void adamw_kernel(float *p, real *rounded, float *m, float *v, const float *g,
                             const Chunk *chunks, float g_scale, AdamW o, float to_m, float to_v) {
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
            gi[k] *= g_scale;
            mi[k] = o.beta1 * mi[k] + (1.0f - o.beta1) * gi[k];
            vi[k] = o.beta2 * vi[k] + (1.0f - o.beta2) * gi[k] * gi[k];
            pi[k] -= o.lr * (mi[k]*to_m / (sqrtf(vi[k]*to_v) + o.eps) + decay * pi[k]);
        }
        store(p + master, pi);
        store(m + at, mi);
        store(v + at, vi);
        if ((void *)rounded != (void *)p) store(rounded + chunk.param + i, pi);
    }
}

// Updates every tensor, as far as it is this rank's, in one launch; matrices decay, gains and
// biases do not. `step` counts from 1.
static void model_update(Model *m, AdamW o, float g_scale, int64_t step) {
    float to_m = (float)(1.0 / (1.0 - pow(o.beta1, (double)step)));
    float to_v = (float)(1.0 / (1.0 - pow(o.beta2, o.v_age > 0.0 ? o.v_age : (double)step)));
    if (m->n_chunks > 0)
        adamw_kernel<<<m->n_chunks, 256, 0, m->gpu->stream>>>(
            m->masters, m->params, m->adam_m, m->adam_v, m->zero.grads, m->chunks, g_scale, o, to_m,
            to_v);
    LAUNCH_CHECK();
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
    size_t bytes = gpt2_n_params(&m->padded) * sizeof(float);
    CUDA_CHECK(cudaMemcpyAsync(m->outer_params, m->masters, bytes, cudaMemcpyDeviceToDevice,
                               m->gpu->stream));
}

// delta = outer - p. Here and below thread i owns pack i.
__global__ void outer_difference_kernel(float *delta, const float *outer, const float *p,
                                        size_t n) {
    size_t i = thread_in_grid() * PACK;
    if (i >= n) return;
    float x[PACK], y[PACK];
    load(x, outer + i);
    load(y, p + i);
    for (int k = 0; k < PACK; k++) x[k] -= y[k];
    store(delta + i, x);
}

__global__ void outer_update_kernel(float *p, real *rounded, float *outer, float *momentum,
                                    const float *delta, float lr, float mu, size_t n) {
    size_t i = thread_in_grid() * PACK;
    if (i >= n) return;
    float x[PACK], v[PACK], d[PACK];
    load(x, outer + i);
    load(v, momentum + i);
    load(d, delta + i);
    for (int k = 0; k < PACK; k++) {
        v[k] = mu * v[k] + d[k];
        x[k] -= lr * (d[k] + mu * v[k]);
    }
    store(momentum + i, v);
    store(outer + i, x);
    store(p + i, x);
    if ((void *)rounded != (void *)p) store(rounded + i, x);
}

// Ends a round. The gradients, which have been used, make room for the differences.
static void model_outer_update(Model *m, float lr, float mu) {
    Zero *z = &m->zero;
    cudaStream_t stream = m->gpu->stream;
    float *delta = z->grads;
    size_t n = gpt2_n_params(&m->padded);
    outer_difference_kernel<<<blocks_for(n, 256*PACK), 256, 0, stream>>>(delta, m->outer_params,
                                                                         m->masters, n);
    LAUNCH_CHECK();
    for (int b = 0; b < gpt2_n_buckets(&m->c); b++) {
        Range r = gpt2_bucket(&z->c, b);
        z->arrives[b] = comm_mean(z->comm, delta + r.begin, r.count, z->type);
    }
    for (int b = 0; b < gpt2_n_buckets(&m->c); b++) {
        Range r = gpt2_bucket(&z->c, b);
        comm_wait(z->comm, z->arrives[b]);
        outer_update_kernel<<<blocks_for(r.count, 256*PACK), 256, 0, stream>>>(
            m->masters + r.begin, m->params + r.begin, m->outer_params + r.begin,
            m->outer_momentum + r.begin, delta + r.begin, lr, mu, r.count);
        LAUNCH_CHECK();
    }
}

// ---- numbers that other ranks have sent: what dev/ranks/comm.h asks of a GPU ----

// W numbers side by side, T a float or the 16 bits of a bf16: a thread's share. It is moved 16
// bytes at a time where it begins at a multiple of 16. The last numbers of a buffer go one by one,
// and all of them where buffers begin anywhere else.
template <class T, int W> struct alignas(W == 1 ? sizeof(T) : 16) Share { T x[W]; };

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(uint16_t x) { return bf16_widen(x); }

typedef struct { const void *x[COMM_MAX_RANKS]; } Terms;

// out = scale * (the sum of so many terms), or += that: thread i owns share i. It adds up as
// tree_sum of comm.h does, and gives the same bits. Loops over levels are unrolled, so that these
// stay in registers.
template <class T, int W>
__global__ void tree_sum_kernel(float *out, Terms from, int terms, float scale, CommMode mode,
                                size_t n) {
    enum { LEVELS = 9 };
    static_assert(1 << (LEVELS - 1) >= COMM_MAX_RANKS, "a level for each bit of the count");
    size_t i = thread_in_grid();
    if (i*W >= n) return;
    float levels[LEVELS][W] = {}, sum[W] = {};
    for (int k = 0; k < terms; k++) {
        Share<T, W> term = ((const Share<T, W> *)from.x[k])[i];
        for (int w = 0; w < W; w++) sum[w] = widen(term.x[w]);
        int level = tree_level((uint64_t)k);
        #pragma unroll
        for (int l = 0; l < LEVELS; l++) {
            if (l < level) for (int w = 0; w < W; w++) sum[w] = levels[l][w] + sum[w];
            if (l == level) for (int w = 0; w < W; w++) levels[l][w] = sum[w];
        }
    }
    int merged = tree_level((uint64_t)terms - 1);        // the last one is in `sum`
    #pragma unroll
    for (int l = 1; l < LEVELS; l++)
        if (l > merged && terms >> l & 1)
            for (int w = 0; w < W; w++) sum[w] = levels[l][w] + sum[w];
    Share<float, W> *to = (Share<float, W> *)out + i, result = {};
    if (mode == COMM_ADD) result = *to;
    for (int w = 0; w < W; w++)
        result.x[w] = mode == COMM_ADD ? result.x[w] + scale*sum[w] : scale*sum[w];
    *to = result;
}

// All shares of W numbers that n hold.
template <class T, int W>
static void tree_sum_launch(float *out, Terms from, int terms, float scale, CommMode mode, size_t n,
                            cudaStream_t stream) {
    if (n < W) return;
    tree_sum_kernel<T, W><<<blocks_for(n / W, 256), 256, 0, stream>>>(out, from, terms, scale, mode,
                                                                      n / W * W);
    LAUNCH_CHECK();
}

static bool begins_a_pack(const void *p) { return (uintptr_t)p % 16 == 0; }

template <class T>
static void tree_sum_of(float *out, const void *const *x, int terms, float scale, CommMode mode,
                        size_t n, cudaStream_t stream) {
    Terms from, rest;
    bool packs = begins_a_pack(out);
    for (int k = 0; k < terms; k++) packs = packs && begins_a_pack(x[k]);
    enum { W = 16 / sizeof(T) };
    size_t begin = packs ? n / W * W : 0;
    for (int k = 0; k < terms; k++) {
        from.x[k] = x[k];
        rest.x[k] = (const T *)x[k] + begin;
    }
    tree_sum_launch<T, W>(out, from, terms, scale, mode, begin, stream);
    tree_sum_launch<T, 1>(out + begin, rest, terms, scale, mode, n - begin, stream);
}

// The GPU's tree_sum.
static void workers_sum(float *out, const void *const *x, int terms, float scale, CommType type,
                        CommMode mode, size_t n, cudaStream_t stream) {
    if (type == COMM_FP32) tree_sum_of<float>(out, x, terms, scale, mode, n, stream);
    else tree_sum_of<uint16_t>(out, x, terms, scale, mode, n, stream);
}

__device__ inline void convert(float *to, uint16_t from) { *to = bf16_widen(from); }
__device__ inline void convert(uint16_t *to, float from) { *to = bf16_narrow(from); }

// Thread i owns share i.
template <class To, class From, int W>
__global__ void convert_kernel(To *out, const From *x, size_t n) {
    size_t i = thread_in_grid();
    if (i*W >= n) return;
    Share<From, W> from = ((const Share<From, W> *)x)[i];
    Share<To, W> to;
    for (int w = 0; w < W; w++) convert(&to.x[w], from.x[w]);
    ((Share<To, W> *)out)[i] = to;
}

template <class To, class From>
static void convert_all(To *out, const From *x, size_t n, cudaStream_t stream) {
    size_t packs = begins_a_pack(out) && begins_a_pack(x) ? n / 8 : 0, rest = n - 8*packs;
    if (packs > 0) {
        convert_kernel<To, From, 8><<<blocks_for(packs, 256), 256, 0, stream>>>(out, x, 8*packs);
        LAUNCH_CHECK();
    }
    if (rest > 0) {
        convert_kernel<To, From, 1><<<blocks_for(rest, 256), 256, 0, stream>>>(out + 8*packs,
                                                                               x + 8*packs, rest);
        LAUNCH_CHECK();
    }
}

static void workers_narrow(uint16_t *out, const float *x, size_t n, cudaStream_t stream) {
    convert_all(out, x, n, stream);
}
static void workers_widen(float *out, const uint16_t *x, size_t n, cudaStream_t stream) {
    convert_all(out, x, n, stream);
}

// ---- the small gradients of dev/train/noise.h: what dev/ranks/shards.h asks of a GPU ----

// Block k adds the squares of chunk k of x to squares[k], in double precision. With `sum` not NULL
// the chunk also joins that, and is cleared: one pass, of 16 bytes a number.
__global__ void measure_kernel(double *squares, float *sum, float *x, size_t n) {
    size_t begin = (size_t)blockIdx.x*ZERO_MEASURED, end = begin + ZERO_MEASURED;
    const float zeros[PACK] = {0};
    double square = 0.0;
    if (end > n) end = n;
    for (size_t i = begin + threadIdx.x*PACK; i < end; i += blockDim.x*PACK) {
        float g[PACK], s[PACK];
        load(g, x + i);
        for (int k = 0; k < PACK; k++) square += (double)g[k] * g[k];
        if (!sum) continue;
        load(s, sum + i);
        for (int k = 0; k < PACK; k++) s[k] += g[k];
        store(sum + i, s);
        store(x + i, zeros);
    }
    square = block_sum(square);
    if (threadIdx.x == 0) squares[blockIdx.x] += square;
}

// n is a multiple of a pack, as every bucket is long.
static void workers_measure(double *squares, float *sum, float *x, size_t n, cudaStream_t stream) {
    assert(n % PACK == 0);
    measure_kernel<<<blocks_for(n, ZERO_MEASURED), 256, 0, stream>>>(squares, sum, x, n);
    LAUNCH_CHECK();
}

static const CommMath workers_math = { workers_sum, workers_narrow, workers_widen,
                                       workers_measure };

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
        model_send_batch(m, inputs, targets, B*T);
        model_forward(m, (int)B, (int)T, 0);
        double loss = model_loss(m, B*T);
        if (counts) e->loss += loss;
        for (size_t b = 0; counts && f->known && b < B; b++)
            floor_score_window(&e->whole, f, val, first + b, m->host_loss + b*T);
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
        model_send_batch(m, inputs, targets, B*T);
        model_forward(m, (int)B, T, 0);
        model_loss(m, B*T);
        hellaswag_keep(h, m->host_loss, row, B, T);
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
    const Candidate *x = (const Candidate *)a, *y = (const Candidate *)b;
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

// The logits of the token after row t of the sequence that model_forward has just run, in fp32 and
// on the CPU, which draws from them.
static const float *next_logits(Model *m, int t) {
    Gpu *g = m->gpu;
    size_t C = m->c.C, V = m->padded.V;
    matmul(m->next_logits, V, rows_of(m->lnf + t*C, C),
           transpose_of(params_of(m, 0, -1), C), plain, 1, V, C, WRITE, g);
    CUDA_CHECK(cudaMemcpyAsync(m->host_logits, m->next_logits, V * sizeof *m->next_logits,
                               cudaMemcpyDeviceToHost, g->stream));
    gpu_wait(g);
    return m->host_logits;
}

// Continues `text`, n tokens of it in a buffer of max_T + 1, by up to max_new tokens, printed as
// they come; an end of text ends it. Past max_T tokens the last half is read anew: positions are
// learned, so what is cached of a token holds for its old place alone.
static void generate(Model *m, const Tokenizer *tok, const Sampler *s, Rng *rng,
                     int *text, int n, int max_new, FILE *out) {
    Utf8Printer printer = { { 0 }, 0, isatty(fileno(out)) != 0 };
    int done = 0;            // rows that the cache holds
    for (int i = 0; i < max_new; i++) {
        if (n > m->max_T) {
            int keep = m->max_T > 1 ? m->max_T / 2 : 1;
            memmove(text, text + n - keep, keep * sizeof *text);
            n = keep;
            done = 0;
        }
        model_send_batch(m, text, NULL, n);
        model_forward(m, 1, n, done);
        done = m->recompute == RECOMPUTE_NONE ? n : 0;     // blocks that share memory cache nothing
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

// The moments of an update, on the GPU.
typedef enum { COMPUTED, NORM_KNOWN, ALL_KNOWN, UPDATED, N_MOMENTS } UpdateMoment;

// All that a run holds.
typedef struct {
    TrainOptions o;
    Comm comm;                         // the other ranks; rank 0 alone prints, logs and saves
    Gpu gpu;
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
    cudaEvent_t moments[N_MOMENTS];
    int *text;                         // (T+1) what generation writes
    double peak_flops;                 // of this GPU, measured
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
    struct sigaction action;
    memset(&action, 0, sizeof action);
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

// What a rank keeps from one update to the next, and what passes through, in bytes. The masters
// are parameters.
typedef struct { size_t params, grads, moments, passing; } RankMemory;

static RankMemory rank_memory(const Model *m) {
    const Zero *z = &m->zero;
    size_t n = gpt2_n_params(&z->c), fp32 = sizeof(float);
    bool masters = sizeof(real) < sizeof(float);
    RankMemory bytes = { zero_params_count(z) * sizeof(real), zero_grads_count(z) * fp32,
                         2*zero_moments_count(z) * fp32, 0 };
    if (masters) bytes.params += zero_moments_count(z) * fp32;
    if (z->n_levels > 1) bytes.grads += (size_t)(z->n_levels - 1) * n * fp32;
    if (keeps_small(z)) bytes.grads += n * fp32;
    if (z->apart) bytes.moments += 2*n * fp32;
    for (int i = 0; i < ZERO_SLOTS; i++)
        bytes.passing += zero_slot_count(z, i) * ((z->stage == 3 ? sizeof(real) : 0)
                                                  + (z->stage >= 2 ? fp32 : 0));
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
    log_text(&r->log, "precision", REAL_NAME);
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
// The CPU runs ahead of the GPU, loads and launches while that computes.
static void accumulate(Run *r, double *seconds_data) {
    Model *m = &r->model;
    int B = r->o.micro_batch, T = r->T, ranks = r->comm.size;
    size_t samples = (size_t)r->batch / (size_t)T, share;
    uint64_t first;
    // The loss is the mean over the batch: of all ranks, unless each makes updates of its own.
    float scale = (float)(1.0 / (double)(r->batch / (uint64_t)(r->o.outer_every ? ranks : 1)));
    Error err;
    loader_rank_block(&first, &share, r->train.samples, samples, r->comm.rank, ranks);
    gradients_zero(m);
    for (size_t i = 0; i < share / B; i++) {
        double before = seconds_now();
        if (!loader_batch(&r->train, first + i*B, B, r->inputs, r->targets, &err))
            die("%s", err.text);
        *seconds_data += seconds_now() - before;
        zero_micro_batch(&m->zero, i, share / B);
        model_send_batch(m, r->inputs, r->targets, (size_t)B*T);
        model_forward(m, B, T, 0);
        model_backward(m, scale, B, T);
    }
    r->train.samples += samples;
    zero_finish_grads(&m->zero);
}

static void moment_record(const Run *r, UpdateMoment moment) {
    CUDA_CHECK(cudaEventRecord(r->moments[moment], r->gpu.stream));
}

static double moments_apart(const Run *r, UpdateMoment begin, UpdateMoment end) {
    return gpu_seconds(r->moments[begin], r->moments[end]);
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
// Workers that rarely talk have their own until a round is over. The one wait of the CPU before the
// update.
static void combine(Run *r, Step *s, bool round_over) {
    Model *m = &r->model;
    const Totals *all = m->host_totals;
    bool apart = r->o.outer_every > 0;
    int ranks = !apart || round_over ? r->comm.size : 1;
    if (stop_signal)
        CUDA_CHECK(cudaMemsetAsync(&m->totals->stopping, 1, sizeof all->stopping, r->gpu.stream));
    gradients_squares(m);
    moment_record(r, NORM_KNOWN);
    totals_fetch(m, ranks);
    moment_record(r, ALL_KNOWN);
    double loss = 0.0, squares = 0.0, smalls = 0.0, tokens = (double)r->batch;
    for (int i = 0; i < ranks; i++) {
        loss += all[i].loss;
        squares += all[i].norm_squared;
        smalls += all[i].smalls_squared;
        if (all[i].stopping && (!apart || round_over))
            r->stopping = stop_signal ? stop_signal : SIGTERM;
    }
    if (m->zero.stage == 0) squares = all[apart && ranks > 1 ? r->comm.rank : 0].norm_squared;
    if (apart && !round_over) tokens /= r->comm.size;
    s->loss = fabs(loss / tokens);                     // x86 gives its NaN a minus
    s->grad_norm = fabs(sqrt(squares));
    if (m->zero.measure) measure_noise(r, s, squares, smalls);
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

// One update: micro-batches until the batch is full, then AdamW. The CPU waits for the GPU only for
// the norm and at the end, and what waiting for the network has cost is asked then.
static void train_step(Run *r, Step *s) {
    Comm *c = &r->comm;
    Costs *k = &s->costs;
    memset(s, 0, sizeof *s);
    double start = seconds_now();
    CommCounters before = comm_counters(c);
    r->batch = r->next_batch = batch_at(&r->o.batches, r->tokens, r->next_batch);
    accumulate(r, &k->data);
    r->step++;
    r->tokens += r->batch;
    bool round_over = round_is_over(r, r->step, r->tokens);
    moment_record(r, COMPUTED);
    combine(r, s, round_over);
    CommCounters then = comm_counters(c);
    update(r, s);
    if (r->o.outer_every && round_over)
        model_outer_update(&r->model, (float)r->o.outer_lr, (float)r->o.outer_momentum);
    moment_record(r, UPDATED);
    gpu_wait(&r->gpu);
    CommCounters after = comm_counters(c);
    k->seconds = seconds_now() - start;
    k->comm = after.waited - before.waited;
    k->optimizer = moments_apart(r, COMPUTED, NORM_KNOWN) + moments_apart(r, ALL_KNOWN, UPDATED)
                 - (after.waited - then.waited);
    k->compute = k->seconds - k->data - k->comm - k->optimizer;
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

// A bucket of what this rank has whole, or only its slices of, on the GPU, for a checkpoint.
static float *bucket_whole(Model *m, float *buffer, bool slices, int bucket) {
    Zero *z = &m->zero;
    Range r = gpt2_bucket(&z->c, bucket);
    if (!slices) return buffer + r.begin;
    comm_wait(z->comm, comm_all_gather(z->comm, m->bucket, buffer + zero_slices_begin(z, bucket),
                                       r.count, sizeof(float)));
    return m->bucket;
}

// Of moments that each worker has of its own: those of one of them, or of all the mean (-1).
static float *bucket_of_worker(Model *m, const float *moment, int worker, int bucket) {
    Zero *z = &m->zero;
    Range r = gpt2_bucket(&z->c, bucket);
    size_t bytes = r.count * sizeof(float);
    CUDA_CHECK(cudaMemcpyAsync(m->bucket, moment + r.begin, bytes, cudaMemcpyDeviceToDevice,
                               m->gpu->stream));
    comm_wait(z->comm, worker < 0 ? comm_mean(z->comm, m->bucket, r.count, COMM_FP32)
                                  : comm_broadcast(z->comm, m->bucket, bytes, worker));
    return m->bucket;
}

// What a checkpoint keeps of a Model, bucket by bucket; all ranks are asked at the same time.
static const float *kept_bucket(void *model, Kept what, int worker, int bucket) {
    Model *m = (Model *)model;
    const Zero *z = &m->zero;
    float *moment = what == KEPT_EXP_AVG ? m->adam_m : m->adam_v, *whole;
    Slice all = { 0, gpt2_bucket(&z->c, bucket).count };
    if (what == KEPT_WEIGHTS) whole = bucket_whole(m, m->masters, masters_are_slices(z), bucket);
    else if (what == KEPT_OUTER_MOMENTUM) whole = bucket_whole(m, m->outer_momentum, false, bucket);
    else if (z->apart && z->size > 1) whole = bucket_of_worker(m, moment, worker, bucket);
    else whole = bucket_whole(m, moment, z->stage >= 1, bucket);
    if (z->rank == 0)
        bucket_copy(whole, m->host_bucket, bucket, all, m, cudaMemcpyDeviceToHost);
    return m->host_bucket;
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

// The GPU, its memory, and what the other way to recompute would take.
static void show_gpu(const Run *r) {
    const Model *m = &r->model;
    const cudaDeviceProp *p = &r->gpu.properties;
    size_t keeping = model_bytes(*m, m->max_B, RECOMPUTE_NONE);
    size_t recomputing = model_bytes(*m, m->max_B, RECOMPUTE_BLOCK);
    printf("gpu     %s, sm_%d%d: %s; its products of matrices, measured, do %.3g TFLOP/s\n",
           p->name, p->major, p->minor, r->o.tf32 ? "fp32 multiplied as TF32" : REAL_NAME,
           1e-12 * r->peak_flops);
    printf("memory  %.1f MB on the GPU; --recompute block %s %.1f\n", megabytes(m->memory.used),
           m->recompute == RECOMPUTE_BLOCK ? "saves" : "would save",
           megabytes(keeping - recomputing));
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
    printf("%llu x %d sequences of %d\n", (unsigned long long)(batch / r->o.batches.unit),
           r->o.micro_batch, r->T);
    show_schedule(r);
    show_ranks(r);
    size_t asked = (size_t)r->o.eval_tokens, there = r->val.n_windows * (size_t)r->T;
    if (asked > there)
        printf("note    --eval-tokens asks for %zu, the validation split has %zu in whole windows; "
               "all are used\n", asked, there);
    size_t cut = hellaswag_count_cut(&r->hellaswag, r->T);
    if (cut > 0)
        printf("note    %zu of %zu HellaSwag examples are longer than %d tokens and lose their "
               "beginning\n", cut, r->hellaswag.n, r->T);
    if (r->comm.size == 1 && r->o.zero > 0)
        printf("note    --zero %d shares nothing: there is one rank\n", r->o.zero);
    if (r->step > 0)
        printf("resumed after step %llu, %s tokens\n", (unsigned long long)r->step,
               count_text((double)r->tokens).text);
    show_gpu(r);
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
        tensor_file_bucket(m->host_bucket, &f, KEPT_WEIGHTS, -1, b);
        params_send(m, b);
    }
    tensor_file_close(&f);
    model_round_params(m);
}

// A moment of all parameters, or this rank's slices of it.
static void load_moment(float *moment, Model *m, TensorFile *f, Kept what, int worker) {
    for (int b = 0; b < gpt2_n_buckets(&m->c); b++) {
        tensor_file_bucket(m->host_bucket, f, what, worker, b);
        bucket_send(moment, m->zero.stage >= 1, b, m);
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
    r->text = (int *)alloc_or_die((size_t)text_tokens * sizeof(int), "a text");
    r->sampler.temperature = (float)r->o.temperature;
    r->sampler.top_k = r->o.top_k;
    r->sampler.top_p = (float)r->o.top_p;
    r->sampler.candidates = (Candidate *)alloc_or_die(r->model.c.V * sizeof(Candidate),
                                                      "a list of candidates");
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

    gpu_open(&r->gpu, r->o.tf32, &r->comm);
    comm_open_gpu(&r->comm, &workers_math, r->gpu.stream);
    r->peak_flops = gpu_peak_flops(&r->gpu);
    Sharing sharing = run_sharing(r, &r->comm);
    model_init(&r->model, &c, r->o.micro_batch, r->T, TRAIN, (Recompute)r->o.recompute, &sharing,
               &r->gpu);
    if (loaded) load_params(&r->model, from.text);
    else model_init_params(&r->model, (uint64_t)r->o.seed);
    if (r->o.resume) restore_state(r, from.text);
    if (r->o.outer_every) outer_begin(&r->model);
    check_ranks(r);
    open_output(r);
    size_t batch = (size_t)r->o.micro_batch * r->T;
    r->inputs = (int *)alloc_or_die(batch * sizeof(int), "a batch");
    r->targets = (int *)alloc_or_die(batch * sizeof(int), "a batch");
    for (cudaEvent_t &moment : r->moments) CUDA_CHECK(cudaEventCreate(&moment));
    open_sampler(r, r->T + 1);
    r->length = train_options_length(&r->o);
}

// ---- --plan: dev/train/plan.h asks, and prints; here is what it cannot know ----

// What a worker of this trainer would allocate on its GPU: counted by the code that lays it out.
static PlanBytes count_bytes(const PlanFacts *f, const PlanShape *s) {
    const Run *r = (const Run *)f->trainer;
    Comm workers;
    memset(&workers, 0, sizeof workers);
    workers.size = s->workers;
    Sharing sharing = run_sharing(r, &workers);
    Model m;
    sharing.zero = s->zero;
    model_plan(&m, &f->c, s->micro_batch, f->T, TRAIN,
               s->recompute ? RECOMPUTE_BLOCK : RECOMPUTE_NONE, &sharing);
    m.acts = (BlockActs *)alloc_or_die(f->c.L * sizeof *m.acts, "a table of activations");
    double all = (double)model_carve(&m, NULL), messages = 0.0;
    const size_t *of = m.memory.of_kind;
    RankMemory kept = rank_memory(&m);
    if (s->workers > 1) messages = (double)(COMM_SCRATCH + COMM_SCRATCH / 2);
    PlanBytes b = { (double)kept.params, (double)kept.grads, (double)kept.moments,
                    (double)(of[MEM_ACTIVATIONS] + of[MEM_BACKWARD]), (double)of[MEM_LOGITS],
                    (double)kept.passing, 0.0 };
    b.rest = all + messages - plan_total(&b)
           + (double)(WORKSPACE_BYTES + SCRATCH_FLOATS * sizeof(float));
    free(m.acts);
    zero_free(&m.zero);
    return b;
}

// The machine that is planned for: --plan-gpu's, or this one with as many ranks as were started.
static PlanMachine plan_machine(Run *r) {
    const size_t FOR_DRIVER = 256 << 20;
    PlanMachine m = plan_machine_here(launched_as(LAUNCH_SIZE, 1));
    Error err;
    if (r->o.plan_gpu && !plan_machine_parse(&m, r->o.plan_gpu, &err)) die("%s", err.text);
    if (m.gpu) {
        if (sizeof(real) == sizeof(float) && m.speed_from == SPEED_ASSUMED)
            die("--plan-gpu: this program computes in fp32, and the data sheet's speed is of 16 "
                "bits; say how fast it is: %s@TFLOPS", m.name);
        return m;
    }
    size_t free_bytes, total;
    gpu_open(&r->gpu, r->o.tf32, &r->comm);
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
    m.memory = free_bytes > FOR_DRIVER ? (double)(free_bytes - FOR_DRIVER) : 0.0;
    if (m.speed_from == SPEED_GIVEN) return m;
    m.peak = gpu_peak_flops(&r->gpu);
    m.speed = PLAN_UTILISATION * m.peak;
    m.speed_from = SPEED_ASSUMED;
    return m;
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
    if (!machine.gpu) model_check(&c);
    PlanFacts f;
    memset(&f, 0, sizeof f);
    f.c = c;
    f.T = r->T;
    f.machine = machine;
    f.batch_tokens = r->o.batch_tokens;
    f.shape = { r->o.micro_batch, machine.count, r->o.zero, r->o.recompute != 0 };
    f.tokens = train_options_tokens(&r->o);
    f.batch_changes = r->o.batches.rule != BATCH_CONSTANT;
    f.outer_every = r->o.outer_every;
    f.target_loss = r->o.target_loss;
    f.noise_scale = plan_noise_scale(r->o.out);
    f.precision = REAL_NAME;
    f.grad_bytes = r->o.comm_dtype == COMM_BF16 ? 2 : 4;
    f.param_bytes = sizeof(real);
    f.in_turn = r->o.no_overlap;
    f.may_recompute = true;
    f.count = count_bytes;
    f.trainer = r;
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
    gpu_open(&r->gpu, r->o.tf32, &r->comm);
    model_init(&r->model, &c, 1, T, INFER, RECOMPUTE_NONE, NULL, &r->gpu);
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
    for (cudaEvent_t moment : r->moments)
        if (moment) CUDA_CHECK(cudaEventDestroy(moment));
    comm_close(&r->comm);
    model_free(&r->model);
    if (r->gpu.blas) gpu_close(&r->gpu);         // a plan for other GPUs has opened none
    tokenizer_free(&r->tokenizer);
    floor_close(&r->floor);
    hellaswag_close(&r->hellaswag);
    loader_close(&r->train);
    loader_close(&r->val);
    if (!log_close(&r->log, &err)) die("%s", err.text);
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
    static Run r;
    Error err;
    r.lock = -1;
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
