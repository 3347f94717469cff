// cuBLASLt, as far as the trainer uses it: D = epilogue(alpha * op(A) * op(B) + beta * C), with
// column-major matrices in fp32 or bf16 and sums in fp32. A descriptor that asks for anything else
// gets CUBLAS_STATUS_NOT_SUPPORTED.
//
// As on an H200 (CUDA 13.0), a bias's pointer is refused under an epilogue without a bias, and
// GELU's gradient is computed to 1 in 10,000. A product has one algorithm. For tests:
//
//   EMULATOR_ALGORITHMS=split   the heuristic ranks first those that split K and would add in bf16,
//                               in place, in fp32, in this order; here all add in fp32
//   EMULATOR_ALGORITHMS=beside  a product with fewer multiprocessors adds in another order
//   EMULATOR_EPILOGUES=fail        products with an epilogue do not start
//   EMULATOR_EPILOGUES=lacks       the heuristic has none for them
//   EMULATOR_EPILOGUES=refuses     the heuristic calls them invalid
//   EMULATOR_EPILOGUES=fail:bias   only those with this one: bias, gelu or dgelu
#pragma once
#include "cuda_runtime.h"
#include "cuda_bf16.h"

// ---- names and numbers as in NVIDIA's headers ----

typedef enum {
    CUBLAS_STATUS_SUCCESS = 0, CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_EXECUTION_FAILED = 13, CUBLAS_STATUS_NOT_SUPPORTED = 15,
} cublasStatus_t;

typedef enum { CUDA_R_32F = 0, CUDA_R_16BF = 14 } cudaDataType_t;

typedef enum { CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_32F_FAST_TF32 = 77 } cublasComputeType_t;

typedef enum { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 } cublasOperation_t;

typedef enum {
    CUBLASLT_EPILOGUE_DEFAULT = 1, CUBLASLT_EPILOGUE_BIAS = 4,
    CUBLASLT_EPILOGUE_GELU_AUX_BIAS = 32 | 128 | 4,
    CUBLASLT_EPILOGUE_DGELU = 64 | 128,
} cublasLtEpilogue_t;

typedef enum {
    CUBLASLT_MATMUL_DESC_TRANSA = 3, CUBLASLT_MATMUL_DESC_TRANSB = 4,
    CUBLASLT_MATMUL_DESC_EPILOGUE = 7, CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8,
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER = 11, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD = 12,
    CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET = 15,
} cublasLtMatmulDescAttributes_t;

typedef enum {
    CUBLASLT_REDUCTION_SCHEME_NONE = 0, CUBLASLT_REDUCTION_SCHEME_INPLACE = 1,
    CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE = 4,
    CUBLASLT_REDUCTION_SCHEME_MASK = 7,
} cublasLtReductionScheme_t;

typedef enum {
    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8,
} cublasLtMatmulPreferenceAttributes_t;

typedef struct emulator_cublas { int unused; } *cublasLtHandle_t;
typedef struct emulator_matmul {
    int32_t compute, scale, transA, transB;
    uint32_t epilogue;
    void *bias, *aux;
    int64_t aux_ld;
    int32_t multiprocessors;                     // 0: all
} *cublasLtMatmulDesc_t;
typedef struct emulator_layout {
    uint32_t type;
    uint64_t rows, cols;
    int64_t ld;
} *cublasLtMatrixLayout_t;
typedef struct emulator_preference { uint32_t schemes; } *cublasLtMatmulPreference_t;
typedef struct { uint64_t data[8]; } cublasLtMatmulAlgo_t;
typedef struct {
    cublasLtMatmulAlgo_t algo;
    cublasStatus_t state;
} cublasLtMatmulHeuristicResult_t;

inline const char *cublasLtGetStatusString(cublasStatus_t status) {
    switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    default: return "CUBLAS_STATUS_NOT_SUPPORTED";
    }
}

// ---- descriptors ----

namespace emulator {

// Copies an attribute, if the size that the caller states is right, as cuBLASLt does.
inline cublasStatus_t set(void *field, size_t field_bytes, const void *value, size_t bytes) {
    if (bytes != field_bytes) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(field, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

}  // namespace emulator

inline cublasStatus_t cublasLtCreate(cublasLtHandle_t *h) {
    *h = new emulator_cublas();
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) {
    delete h;
    return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t compute,
                                               cudaDataType_t scale) {
    *d = new emulator_matmul{ compute, scale, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT,
                              nullptr, nullptr, 0, 0 };
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) {
    delete d;
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulDescSetAttribute(
        cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t attribute,
        const void *value, size_t bytes) {
#define EMULATOR_FIELD(name, field) \
    case name: return emulator::set(&d->field, sizeof d->field, value, bytes);
    switch (attribute) {
    EMULATOR_FIELD(CUBLASLT_MATMUL_DESC_TRANSA, transA)
    EMULATOR_FIELD(CUBLASLT_MATMUL_DESC_TRANSB, transB)
    EMULATOR_FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue)
    EMULATOR_FIELD(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias)
    EMULATOR_FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux)
    EMULATOR_FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, aux_ld)
    EMULATOR_FIELD(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, multiprocessors)
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

inline cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType_t type,
                                                 uint64_t rows, uint64_t cols, int64_t ld) {
    *l = new emulator_layout{ (uint32_t)type, rows, cols, ld };
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) {
    delete l;
    return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p) {
    *p = new emulator_preference{ CUBLASLT_REDUCTION_SCHEME_MASK };
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
    delete p;
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
        cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t attribute,
        const void *value, size_t bytes) {       // the workspace and alignments change nothing here
    if (attribute != CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) return CUBLAS_STATUS_SUCCESS;
    return emulator::set(&p->schemes, sizeof p->schemes, value, bytes);
}

// ---- which products are supported ----

namespace emulator {

inline bool is_type(int type) { return type == CUDA_R_32F || type == CUDA_R_16BF; }

inline bool fits(const emulator_layout *l, uint64_t rows, uint64_t cols) {
    return l->rows == rows && l->cols == cols && l->ld >= (int64_t)rows;
}

inline cublasStatus_t check_epilogue(const emulator_matmul *d, const emulator_layout *D) {
    switch (d->epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT: case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS: case CUBLASLT_EPILOGUE_DGELU: break;
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    bool bias = d->epilogue & 4, aux = d->epilogue & 128;
    if (bias != (d->bias != NULL) || (aux && !d->aux)) return CUBLAS_STATUS_INVALID_VALUE;
    if (aux && (d->aux_ld < (int64_t)D->rows || d->aux_ld % 8)) return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t check_matmul(const emulator_matmul *d, const emulator_layout *A,
                                   const emulator_layout *B, const emulator_layout *C,
                                   const emulator_layout *D) {
    uint64_t k = d->transA == CUBLAS_OP_N ? A->cols : A->rows, m = D->rows, n = D->cols;
    if (m < 1 || n < 1 || k < 1) return CUBLAS_STATUS_INVALID_VALUE;
    bool a = d->transA == CUBLAS_OP_N ? fits(A, m, k) : fits(A, k, m);
    bool b = d->transB == CUBLAS_OP_N ? fits(B, k, n) : fits(B, n, k);
    if (!a || !b || !fits(C, m, n) || !fits(D, m, n)) return CUBLAS_STATUS_INVALID_VALUE;
    if (d->scale != CUDA_R_32F || (d->compute != CUBLAS_COMPUTE_32F &&
                                   d->compute != CUBLAS_COMPUTE_32F_FAST_TF32))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!is_type((int)A->type) || A->type != B->type || !is_type((int)D->type) ||
        C->type != D->type || (A->type == CUDA_R_32F && D->type != CUDA_R_32F))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return check_epilogue(d, D);
}

// ---- algorithms ----

// An algorithm is a scheme, how a GPU would add partial sums: with any but NONE it sums the first
// half of K apart from the second, as a split-K kernel does. `allowed`: the caller's mask.
inline uint32_t choose_scheme(uint32_t allowed, bool beside) {
    const char *asked = getenv("EMULATOR_ALGORITHMS");
    if (!asked) return CUBLASLT_REDUCTION_SCHEME_NONE;
    bool split = strcmp(asked, "split") == 0;
    for (uint32_t scheme : { CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE,
                             CUBLASLT_REDUCTION_SCHEME_INPLACE })
        if (split && (scheme & allowed)) return scheme;
    beside = beside && strcmp(asked, "beside") == 0;
    return split || beside ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                           : CUBLASLT_REDUCTION_SCHEME_NONE;
}

// An epilogue that EMULATOR_EPILOGUES lets fail, or says is not there.
inline bool epilogue_is(const emulator_matmul *d, const char *how) {
    const char *asked = getenv("EMULATOR_EPILOGUES");
    size_t n = strlen(how);
    if (!asked || strncmp(asked, how, n) != 0 || d->epilogue == CUBLASLT_EPILOGUE_DEFAULT)
        return false;
    const char *name = d->epilogue & 64 ? "dgelu" : d->epilogue & 32 ? "gelu" : "bias";
    return asked[n] == '\0' || strcmp(asked + n + 1, name) == 0;
}

// ---- the product ----

constexpr int TILE_ROWS = 16, TILE_COLS = 4;     // a tile of sums, in registers

EMULATOR_UNCOUNTED inline float load(const void *p, int type, int64_t i) {
    return type == CUDA_R_32F ? ((const float *)p)[i] : (float)((const __nv_bfloat16 *)p)[i];
}

EMULATOR_UNCOUNTED inline void store(void *p, int type, int64_t i, float x) {
    if (type == CUDA_R_32F) ((float *)p)[i] = x;
    else ((__nv_bfloat16 *)p)[i] = __nv_bfloat16(x);
}

// Packs a matrix of `lines` lines (rows of op(A), columns of op(B)) of K elements into panels, in
// float. Panel p holds lines p*width ... p*width + width-1: for every k their elements side by
// side, zeros past the last line. Element k of line i is data[i*line + k*step].
EMULATOR_UNCOUNTED inline float *pack(const void *data, int type, int64_t line, int64_t step,
                                      int64_t lines, int64_t K, int width) {
    int64_t panels = (lines + width - 1) / width;
    float *packed = (float *)aligned_alloc(64, (size_t)((panels*width*K + 15) / 16 * 64));
    if (!packed) return nullptr;
    #pragma omp parallel for if (lines*K > 1 << 15)
    for (int64_t p = 0; p < panels; p++)
        for (int64_t k = 0; k < K; k++)
            for (int64_t i = p*width; i < (p + 1)*width; i++)
                packed[p*width*K + k*width + i - p*width] =
                    i < lines ? load(data, type, i*line + k*step) : 0.0f;
    return packed;
}

// The innermost loop adds K terms to a tile of 16 x 4 sums, each column one vector.
typedef float Column __attribute__((vector_size(4*TILE_ROWS)));

EMULATOR_UNCOUNTED inline void tile(Column out[TILE_COLS], const float *a, const float *b,
                                    int64_t K) {
    Column c0 = {}, c1 = {}, c2 = {}, c3 = {};
    for (int64_t k = 0; k < K; k++, a += TILE_ROWS, b += TILE_COLS) {
        Column x = *(const Column *)a;
        c0 += x * b[0];
        c1 += x * b[1];
        c2 += x * b[2];
        c3 += x * b[3];
    }
    out[0] += c0; out[1] += c1; out[2] += c2; out[3] += c3;
}

// product (m,n), column-major and contiguous, of packed panels. A split algorithm sums the first
// half of K apart.
EMULATOR_UNCOUNTED inline void multiply(float *product, const float *a, const float *b, int64_t m,
                                        int64_t n, int64_t K, bool split) {
    int64_t part = split ? K / 2 : K;
    #pragma omp parallel for if (m*n*K > 1 << 15)
    for (int64_t j = 0; j < n; j += TILE_COLS)
        for (int64_t i = 0; i < m; i += TILE_ROWS) {
            Column sums[TILE_COLS] = {};
            tile(sums, a + i*K, b + j*K, part);
            if (part < K) tile(sums, a + i*K + part*TILE_ROWS, b + j*K + part*TILE_COLS, K - part);
            for (int64_t jj = 0; jj < TILE_COLS && j + jj < n; jj++)
                for (int64_t ii = 0; ii < TILE_ROWS && i + ii < m; ii++)
                    product[i + ii + (j + jj)*m] = sums[jj][ii];
        }
}

// ---- epilogues: bias, GELU and their gradients, before an element is stored ----

EMULATOR_UNCOUNTED inline float gelu(float x) {
    return 0.5f * x * (1.0f + tanhf(0.797884561f * (x + 0.044715f * x*x*x)));   // sqrt(2/pi)
}

EMULATOR_UNCOUNTED inline float gelu_gradient(float x) {
    float t = tanhf(0.797884561f * (x + 0.044715f * x*x*x));
    return 0.5f * (1.0f + t) +
           0.5f * x * (1.0f - t*t) * 0.797884561f * (1.0f + 3.0f * 0.044715f * x*x);
}

// The epilogue of element (i,j); v = alpha * product + beta * C.
EMULATOR_UNCOUNTED inline float epilogue(const emulator_matmul *d, int type, int64_t i, int64_t j,
                                         float v) {
    int e = (int)d->epilogue;
    if (e & 4) v += load(d->bias, type, i);                                     // BIAS
    if (e & 64) return 1.0001f * v * gelu_gradient(load(d->aux, type, i + j*d->aux_ld));  // DGELU
    if (!(e & 32)) return v;
    store(d->aux, type, i + j*d->aux_ld, v);                                    // GELU_AUX
    return gelu(v);
}

// A call's arguments, by value: the product may run after the caller has returned.
struct Product {
    emulator_matmul d;
    emulator_layout layoutA, layoutB, layoutC, layoutD;
    const void *A, *B, *C;
    void *D;
    float alpha, beta;
    bool split;
};

// Writes D from the product. With beta 0, C is not read.
EMULATOR_UNCOUNTED inline void finish(const Product &p, const float *product) {
    int64_t m = (int64_t)p.layoutD.rows, n = (int64_t)p.layoutD.cols;
    int type = (int)p.layoutD.type;
    #pragma omp parallel for if (m*n > 1 << 12)
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < m; i++) {
            float v = p.alpha * product[i + j*m];
            if (p.beta != 0.0f) v += p.beta * load(p.C, type, i + j*p.layoutC.ld);
            store(p.D, type, i + j*p.layoutD.ld, epilogue(&p.d, type, i, j, v));
        }
}

// Counts its FLOP, and the bytes that it cannot do without.
inline void product_count(const Product &p, uint64_t m, uint64_t n, uint64_t K) {
    uint64_t size = p.layoutA.type == CUDA_R_32F ? 4 : 2;
    uint64_t out = m*n * (p.layoutD.type == CUDA_R_32F ? 4 : 2);
    uint64_t read = (m + n)*K * size, written = out;
    int e = (int)p.d.epilogue;
    if (p.beta != 0.0f) read += out;                         // C
    if (e & 64) read += out;                                 // DGELU reads aux,
    else if (e & 128) written += out;                        // GELU_AUX writes it
    count_work("cuBLASLt", read, written, 2.0 * (double)(m*n) * (double)K);
}

inline void product_run(const Product &p) {
    int64_t m = (int64_t)p.layoutD.rows, n = (int64_t)p.layoutD.cols;
    bool ta = p.d.transA != CUBLAS_OP_N, tb = p.d.transB != CUBLAS_OP_N;
    int64_t lda = p.layoutA.ld, ldb = p.layoutB.ld;
    int64_t K = (int64_t)(ta ? p.layoutA.rows : p.layoutA.cols);
    int type = (int)p.layoutA.type;
    float *a = pack(p.A, type, ta ? lda : 1, ta ? 1 : lda, m, K, TILE_ROWS);
    float *b = pack(p.B, type, tb ? 1 : ldb, tb ? ldb : 1, n, K, TILE_COLS);
    float *product = (float *)malloc((size_t)(m*n) * sizeof *product);
    if (!a || !b || !product) fail("no memory for a product of %lld x %lld", (long long)m,
                                   (long long)n);
    multiply(product, a, b, m, n, K, p.split);
    finish(p, product);
    free(a);
    free(b);
    free(product);
    product_count(p, (uint64_t)m, (uint64_t)n, (uint64_t)K);
}

}  // namespace emulator

inline cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
        cublasLtHandle_t, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t A,
        cublasLtMatrixLayout_t B, cublasLtMatrixLayout_t C, cublasLtMatrixLayout_t D,
        cublasLtMatmulPreference_t preference, int,
        cublasLtMatmulHeuristicResult_t *results, int *found) {
    *found = 0;
    cublasStatus_t status = emulator::check_matmul(d, A, B, C, D);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (emulator::epilogue_is(d, "lacks")) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (emulator::epilogue_is(d, "refuses")) return CUBLAS_STATUS_INVALID_VALUE;
    results[*found] = {};
    results[(*found)++].algo.data[0] =
        emulator::choose_scheme(preference->schemes, d->multiprocessors > 0);
    return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t cublasLtMatmul(
        cublasLtHandle_t, cublasLtMatmulDesc_t d, const void *alpha,
        const void *A, cublasLtMatrixLayout_t layoutA,
        const void *B, cublasLtMatrixLayout_t layoutB,
        const void *beta, const void *C, cublasLtMatrixLayout_t layoutC,
        void *D, cublasLtMatrixLayout_t layoutD, const cublasLtMatmulAlgo_t *algorithm, void *,
        size_t, cudaStream_t stream) {
    cudaStream_t s = emulator::stream_of(stream);
    cublasStatus_t status = emulator::check_matmul(d, layoutA, layoutB, layoutC, layoutD);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    emulator::may_run(s);
    if (emulator::epilogue_is(d, "fail")) return CUBLAS_STATUS_EXECUTION_FAILED;
    emulator::Product p = { *d, *layoutA, *layoutB, *layoutC, *layoutD, A, B, C, D,
                            *(const float *)alpha, *(const float *)beta,
                            algorithm->data[0] != CUBLASLT_REDUCTION_SCHEME_NONE };
    emulator::enqueue(s, [p] { emulator::product_run(p); });
    return CUBLAS_STATUS_SUCCESS;
}
