// Part of test_gpt2.cu: its rows once more, at the shapes of real training, where cuBLASLt takes
// other kernels than at small ones. The C functions follow in full, which takes 16 cores some
// seconds; of a large tensor some rows are compared (check_tensor).
//
//     test_gpt2-bf16 real_shapes                                      GPT-2 124M, B=16, T=1024
//     REAL_SHAPES=2,40,2,2,96,500 test_gpt2-bf16 real_shapes          other B,T,L,NH,C,V
//
// Each comparison prints a line: the largest error, as a part of what it may be. It goes on after
// an error, and fails at the end.

#ifdef EMULATOR
#define REAL_SHAPES "2,40,2,2,96,500"
#else
#define REAL_SHAPES "16,1024,12,12,768,50257"
#endif

// From here on no product has its epilogue, as if cuBLASLt lacked them all: kernels do the rest.
static void refuse_epilogues() {
    for (int i = 0; i < gpu.n_products; i++)
        if (gpu.products[i].key.epilogue != NO_EPILOGUE) gpu.products[i].found = false;
}

static int epilogues_found() {
    int n = 0;
    for (int i = 0; i < gpu.n_products; i++)
        n += gpu.products[i].key.epilogue != NO_EPILOGUE && gpu.products[i].found;
    return n;
}

// The model's linear layers with epilogues, and with kernels in place of them.
static void real_linear(size_t N, int C) {
    products_forget();
    check_linear(N, C, 3*C, 1);                  // qkv
    check_linear(N, C, C, 1);                    // att_proj
    check_linear(N, 4*C, C, 1);                  // mlp_proj
    check_linear_gelu(N, C, 4*C, 1);             // fc
    printf("    kernels in place of epilogues\n");
    for (int i = 0; i < 2; i++) {                // the product in place of GELU's wants a bias
        refuse_epilogues();
        check_linear(N, C, C, 2);
        check_linear_gelu(N, C, 4*C, 2);
    }
    CHECK_MSG(epilogues_found() == 0, "only kernels were to run");
    products_forget();
}

__global__ void gather_kernel(float *out, const real *x, size_t step, size_t n) {
    size_t i = thread_in_grid();
    if (i < n) out[i] = (float)x[i*step];
}

// x[begin], x[begin + step] ... of an array on the GPU, n in all.
static Floats line_of(const real *x, size_t begin, size_t step, size_t n) {
    Array<float> line(n);
    gather_kernel<<<blocks_for(n, 256), 256, 0, gpu.stream>>>(line, x + begin, step, n);
    LAUNCH_CHECK();
    return line.get();
}

// Elements of c (M,N) = a b against double precision.
template <class T>
static void check_product(const char *name, const T *c, Mat a, Mat b, size_t M, size_t N, size_t K,
                          double before) {
    enum { SAMPLES = 300 };
    bool a_rows = a.op == CUBLAS_OP_N, b_rows = b.op == CUBLAS_OP_N;
    Floats ours(SAMPLES), theirs(SAMPLES);
    for (int s = 0; s < SAMPLES; s++) {
        size_t i = s == 0 ? M - 1 : rng_below(&rng, M), j = s == 0 ? N - 1 : rng_below(&rng, N);
        Floats row = line_of(a.data, a_rows ? i*a.ld : i, a_rows ? 1 : a.ld, K);
        Floats column = line_of(b.data, b_rows ? j : j*b.ld, b_rows ? b.ld : 1, K);
        double sum = before;
        T element;
        for (size_t k = 0; k < K; k++) sum += (double)row[k] * column[k];
        CUDA_CHECK(cudaMemcpy(&element, c + i*N + j, sizeof element, cudaMemcpyDeviceToHost));
        ours[s] = (float)element, theirs[s] = (float)sum;
    }
    check_close(name, ours, theirs, after_roundings(sizeof(T) < sizeof(float)));
}

// Its three products at their full size; cross-entropy, and all of it, on fewer rows.
static void real_classifier(size_t N, size_t C, int V) {
    size_t Vp = padded_vocab(V), rows = logits_chunk_rows(N, Vp, C, sizeof(real),
                                                          gpu.properties.multiProcessorCount);
    shape_is("N=%zu C=%zu Vp=%zu", rows, C, Vp);
    Array<real> x(random_floats(rows*C, 1, 0)), wte(random_floats(Vp*C, 3 / sqrt(C), 0));
    Array<real> logits(rows*Vp), dx(rows*C);
    Array<float> dwte(Floats(Vp*C, 0.5f));
    Mat xs = rows_of(x, C), words = rows_of(wte, C), wt = transpose_of(wte, C);
    Mat d = rows_of(logits, Vp), dt = transpose_of(logits, Vp);
    matmul(logits.data, Vp, xs, wt, rows, Vp, C, WRITE, &gpu);
    check_product("logits", logits.data, xs, wt, rows, Vp, C, 0);
    matmul(dx.data, C, d, words, rows, C, Vp, WRITE, &gpu);
    check_product("dx", dx.data, d, words, rows, C, Vp, 0);
    matmul(dwte.data, C, dt, xs, Vp, C, rows, ADD, &gpu);
    check_product("dwte", dwte.data, dt, xs, Vp, C, rows, 0.5);
    check_xent(min_size(N, 512), V, 1);
    check_classifier(min_size(N, 256), 128, C, V);
}

// Equal gradients of 1/2 for all parameters, which are 1: their norm, and one update by AdamW.
static void real_adamw(const Config *c) {
    Model m;
    model_open(&m, c, 1, 1, RECOMPUTE_NONE, Sharing());
    size_t n = gpt2_n_params(&m.padded);
    Floats p(n, 0.5f);
    CUDA_CHECK(cudaMemcpy(m.params.grads, p.data(), n * sizeof p[0], cudaMemcpyHostToDevice));
    p.assign(n, 1.0f);
    CUDA_CHECK(cudaMemcpy(m.params.masters, p.data(), n * sizeof p[0], cudaMemcpyHostToDevice));
    shape_is("n=%zu", n);
    check_near("the gradients' squared norm", totals_of(&m).squares, n / 4.0, 1e-11);
    adamw_launch(&m.params, adamw_at(1), Array<float>(Floats(1, 1.0f)));
    gpu_wait(&gpu);
    CUDA_CHECK(cudaMemcpy(p.data(), m.params.masters, n * sizeof p[0], cudaMemcpyDeviceToHost));
    size_t decayed = 0, others = 0;
    for (float x : p) {
        decayed += fabs(x - (1 - adamw[0] * (1 + adamw[4]))) < 1e-6;
        others += fabs(x - (1 - adamw[0])) < 1e-6;
    }
    CHECK_MSG(decayed + others == n && decayed > others && others > 0, "%zu and %zu of %zu moved",
              decayed, others, n);
    model_free(&m);
}

TEST(real_shapes) {
    const char *asked = getenv("REAL_SHAPES"), *text = asked ? asked : REAL_SHAPES;
    Config c = {};
    int B, T;
    if (sscanf(text, "%d,%d,%d,%d,%d,%d", &B, &T, &c.L, &c.NH, &c.C, &c.V) != 6) {
        CHECK_MSG(false, "REAL_SHAPES=%s: B,T,L,NH,C,V are expected", text);
        return;
    }
    c.P = T;
    size_t N = (size_t)B*T, terms = N > (size_t)c.V ? N : c.V;
    double before = sums_may_err;
    // A tensor core adds 16 terms at a time, and may cut off up to 2^-23 of the sum so far, always
    // towards zero; additions one by one are off by as much either way.
    sums_may_err += 3 * (terms/16.0 + sqrt((double)terms)) * 0x1p-23;
    reports = true;
    printf("    B=%d T=%d L=%d NH=%d C=%d V=%d, " PRECISION "\n", B, T, c.L, c.NH, c.C, c.V);
    real_linear(N, c.C);
    check_attention(B, T, c.NH, c.C / c.NH);
    real_classifier(N, c.C, c.V);
    check_layernorm(N, c.C);
    check_embedding(B, T, c.C, c.V, 1);
    real_adamw(&c);
    sums_may_err = before;
    reports = false;
}
