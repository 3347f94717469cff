// One matrix product of cuBLASLt: how it is described, how an algorithm is chosen, how it starts.
// Included by train_gpt2.cu in its section Matmul.
//
//     product_run(&key, &x, g)                starts the product of a key with these operands
//     p = product_find(&key, g)               the product, made when it is first asked for

enum { MAX_PRODUCTS = 128 };

// All that the choice of an algorithm depends on: c (M,N) = a (M,K) * b (K,N). Keys are compared
// byte by byte.
typedef struct {
    size_t M, N, K, lda, ldb, ldc;
    size_t multiprocessors;            // that messages leave for it; 0: all
    cublasOperation_t op_a, op_b;
    cudaDataType_t type_c;
    int epilogue;                      // an EpilogueKind
} ProductKey;
static_assert(sizeof(ProductKey) == 7*sizeof(size_t) + 4*sizeof(int), "no padding between members");

typedef struct Product {
    ProductKey key;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
    bool found;                        // false: cuBLASLt has no kernel for this
} Product;

static void product_free(Product *p) {
    CUBLAS_CHECK(cublasLtMatrixLayoutDestroy(p->a));
    CUBLAS_CHECK(cublasLtMatrixLayoutDestroy(p->b));
    CUBLAS_CHECK(cublasLtMatrixLayoutDestroy(p->c));
    CUBLAS_CHECK(cublasLtMatmulDescDestroy(p->desc));
}

static void product_set(Product *p, cublasLtMatmulDescAttributes_t what, const void *value,
                        size_t n) {
    CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(p->desc, what, value, n));
}

static void product_set_pointers(Product *p, const void *vector, const void *other) {
    if (vector) product_set(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vector, sizeof vector);
    if (other) product_set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &other, sizeof other);
}

static void product_set_epilogue(Product *p) {
    static const cublasLtEpilogue_t names[] = {
        CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_BIAS,
        CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU,
    };
    int kind = p->key.epilogue;
    bool vector = kind != NO_EPILOGUE && kind != GELU_GRADIENT;
    bool other = kind == ADD_BIAS_GELU || kind == GELU_GRADIENT;
    int64_t ld_other = (int64_t)p->key.N;
    product_set(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &names[kind], sizeof names[kind]);
    if (other) product_set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld_other, sizeof ld_other);
    // The choice depends on alignment. Any address that is a multiple of 16 stands for all of them.
    product_set_pointers(p, vector ? (void *)16 : NULL, other ? (void *)16 : NULL);
}

// The heuristic's first algorithm for addresses that are multiples of 16; found is false if there
// is none. Split-K algorithms add partial sums: here in fp32, never rounded to bf16. In place, they
// add them to C one after the other, which rounds nothing if C is fp32.
static void product_choose(Product *p, Gpu *g) {
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
    };
    cublasLtMatmulPreference_t preference;
    uint32_t alignment = 16;
    uint32_t sums = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    if (p->key.type_c == CUDA_R_32F) sums |= CUBLASLT_REDUCTION_SCHEME_INPLACE;
    cublasLtMatmulHeuristicResult_t first;
    int found = 0;
    CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
    CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE_BYTES,
        sizeof WORKSPACE_BYTES));
    CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &sums, sizeof sums));
    for (cublasLtMatmulPreferenceAttributes_t a : alignments)
        CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, a, &alignment,
                                                          sizeof alignment));
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        g->blas, p->desc, p->b, p->a, p->c, p->c, preference, 1, &first, &found);
    bool may_lack = p->key.epilogue != NO_EPILOGUE || status == CUBLAS_STATUS_NOT_SUPPORTED;
    if (!may_lack) CUBLAS_CHECK(status);                     // an epilogue is done without
    CUBLAS_CHECK(cublasLtMatmulPreferenceDestroy(preference));
    p->found = status == CUBLAS_STATUS_SUCCESS && found == 1
            && first.state == CUBLAS_STATUS_SUCCESS;
    if (p->found) p->algorithm = first.algo;
}

// What a product reads and writes: c = a b + beta added; and its epilogue's arrays.
typedef struct {
    void *c;
    const void *a, *b, *added;
    float beta;
    const void *vector, *other;
} Operands;

static void product_make(Product *p, const ProductKey *k, Gpu *g) {
    bool a_rows = k->op_a == CUBLAS_OP_N, b_rows = k->op_b == CUBLAS_OP_N;
    cudaDataType_t type = type_of((const real *)NULL);
    memset(p, 0, sizeof *p);
    p->key = *k;
    CUBLAS_CHECK(cublasLtMatmulDescCreate(&p->desc, COMPUTE, CUDA_R_32F));
    product_set(p, CUBLASLT_MATMUL_DESC_TRANSA, &k->op_b, sizeof k->op_b);      // A there is our b
    product_set(p, CUBLASLT_MATMUL_DESC_TRANSB, &k->op_a, sizeof k->op_a);
    int target = (int)k->multiprocessors;
    if (target > 0) product_set(p, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &target, sizeof target);
    CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&p->b, type, b_rows ? k->N : k->K,
                                            b_rows ? k->K : k->N, (int64_t)k->ldb));
    CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&p->a, type, a_rows ? k->K : k->M,
                                            a_rows ? k->M : k->K, (int64_t)k->lda));
    CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&p->c, k->type_c, k->N, k->M, (int64_t)k->ldc));
    product_set_epilogue(p);
    product_choose(p, g);
}

static Product *product_find(const ProductKey *k, Gpu *g) {
    int known = g->n_products < MAX_PRODUCTS ? g->n_products : MAX_PRODUCTS;
    for (int i = 0; i < known; i++)
        if (memcmp(&g->products[i].key, k, sizeof *k) == 0) return &g->products[i];
    Product *p = &g->products[g->n_products++ % MAX_PRODUCTS];       // the oldest makes room
    if (known == MAX_PRODUCTS) product_free(p);
    product_make(p, k, g);
    return p;
}

// Where messages travel beside what is launched now, they take some multiprocessors. 0: none.
static size_t multiprocessors_left(const Gpu *g) { return g->messages ? g->beside : 0; }

// False, and nothing done, if cuBLASLt has no kernel for it.
static bool product_run(const ProductKey *key, const Operands *x, Gpu *g) {
    float one = 1.0f;
    Product *p = product_find(key, g);
    product_set_pointers(p, x->vector, x->other);
    if (!p->found) return false;
    cublasStatus_t status = cublasLtMatmul(
        g->blas, p->desc, &one, x->b, p->b, x->a, p->a, &x->beta, x->added, p->c, x->c,
        p->c, &p->algorithm, g->workspace, WORKSPACE_BYTES, g->stream);
    if (status != CUBLAS_STATUS_SUCCESS) cudaGetLastError();     // LAUNCH_CHECK would report it
    p->found = status == CUBLAS_STATUS_SUCCESS;          // if it does not start: do without it
    if (key->epilogue == NO_EPILOGUE) CUBLAS_CHECK(status);
    return p->found;
}
