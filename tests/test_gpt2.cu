// train_gpt2.cu, with dev/ranks/kernels.cu, against train_gpt2.c: every launcher beside the C
// function of its name, at odd shapes, and then the whole model. Compiled twice, for bf16 and with
// -DPRECISION_FP32; for the emulator (`make test-all`) and for a GPU (`make test PART=gpu`).
// gpt2_reference.c is the C side.
//
//     test_gpt2 [NAME...]      all tests, or those that are named
//     test_gpt2 real_shapes    at the shapes of GPT-2 (real_shapes.cu); on a GPU by name only
//
// Both sides start from the same numbers, which `real` holds exactly. Each element is compared
// (dev/check/compare.h): it may err by its bound times its own size, its row's and a tenth of its
// tensor's. What is left is
// - fp32 sums in another order: 1e-6 for some hundred terms; 1e-5 leaves room for that and none
//   for a mistake (see test_layers.c);
// - in bf16, the roundings to 8 significant bits between the inputs and the result. Numbers between
//   1 and 2 lie 2^-7 apart, so each moves a number by at most 2^-8 of it; what follows passes that
//   on, mostly averaged out. So k roundings make at most k * 2^-8, unless what follows cancels;
//   then k is counted higher, and it says why.
#define main train_gpt2_main
#include "../train_gpt2.cu"
#undef main
#include <type_traits>
#include <vector>
#include "../dev/check/compare.h"
#include "gpt2_reference.h"
#include "test.h"

static double sums_may_err = 1e-5;

static double after_roundings(int k) {
    return sums_may_err + (sizeof(real) < sizeof(float) ? k/256.0 : 0.0);
}

typedef std::vector<float> Floats;
typedef std::vector<int> Ints;

static Machine gpu;                      // opened by main, used by all tests
static Comm alone;                       // one rank
static Rng rng;                          // each test begins it anew

// ---- comparisons ----

enum { LARGE = 1 << 24 };                // elements
static double worst;                     // error of a test, as a part of what it may be
static char shape[100];                  // what is being tested, for its messages
static bool reports;                     // also prints what is right

__attribute__((format(printf, 1, 2))) static void shape_is(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(shape, sizeof shape, fmt, args);
    va_end(args);
}

// An error that is too large is printed, however many there are, and the test goes on: on another
// GPU some bound may be wrong, and the rest still tells. part: of what the error may be.
static void check_part(const char *what, double part) {
    if (!(part <= worst)) worst = part;
    if (part > 1.0 || isnan(part)) test_state.failed++;
    else if (!reports) return;
    printf("    %s: %s, %.2g of what it may be off by\n", shape, what, part);
    fflush(stdout);
}

static void check_near(const char *what, double ours, double theirs, double bound) {
    check_part(what, fabs(ours - theirs) / fabs(theirs) / bound);
}

// Every element of a tensor, whose indices have these letters and sizes; of a large one every
// step-th row, and the last.
typedef std::vector<size_t> Sizes;
static void check_tensor(const char *name, const char *letters, const Sizes &sizes,
                         const Floats &ours, const Floats &theirs, double bound) {
    Comparison c = compare_make(name, letters, sizes.data(), bound);
    size_t rows = c.n / sizes.back(), step = c.n / LARGE + 1, width = sizes.back();
    double part = ours.size() == c.n && theirs.size() == c.n ? 0.0 : NAN;
    std::vector<double> got(ours.begin(), ours.end()), exact(theirs.begin(), theirs.end());
    c.got = got.data(), c.exact = exact.data();
    for (size_t row = rows - 1; row < rows && !isnan(part); row -= step)
        for (size_t i = row*width; i < (row + 1)*width; i++) {
            double off = isfinite(exact[i]) ? fabs(got[i] - exact[i]) / compare_slack(&c, i)
                       : isfinite(got[i]) ? NAN : 0.0;
            if (!(off <= part)) part = off;
        }
    check_part(part <= 1.0 || got.size() != c.n ? name : compare_verdict(&c), part);
}

static void check_close(const char *what, const Floats &ours, const Floats &theirs, double bound) {
    check_tensor(what, "i", { theirs.size() }, ours, theirs, bound);
}

static bool same_numbers(const float *a, const float *b, size_t n) {
    return memcmp(a, b, n * sizeof *a) == 0;
}

static bool same_bits(const Floats &a, const Floats &b) {
    return a.size() == b.size() && same_numbers(a.data(), b.data(), a.size());
}

// ---- arrays on both sides ----

// Numbers that `real` holds exactly. Many are the first million over and over.
static Floats random_floats(size_t n, double scale, double shift) {
    enum { PERIOD = 1000003 };
    Floats x(n);
    for (size_t i = 0; i < n; i++)
        x[i] = i >= PERIOD ? x[i - PERIOD]
                           : (float)(real)(float)(shift + scale * rng_normal(&rng));
    return x;
}

static Ints random_tokens(size_t n, int V) {
    Ints t(n);
    for (int &v : t) v = (int)rng_below(&rng, (uint64_t)V);
    return t;
}

// n numbers on the GPU. They begin as NaNs, which a launcher must overwrite; the GUARD bytes behind
// them it must not touch.
template <class T> struct Array {
    enum { GUARD = 256 };
    T *data;
    size_t n;
    explicit Array(size_t n) : n(n) {
        CUDA_CHECK(cudaMalloc((void **)&data, n * sizeof(T) + GUARD));
        CUDA_CHECK(cudaMemset(data, 0xFF, n * sizeof(T) + GUARD));
    }
    template <class S> explicit Array(const std::vector<S> &x) : Array(x.size()) { put(x); }
    Array(const Array &) = delete;
    ~Array() { CUDA_CHECK(cudaFree(data)); }
    operator T *() { return data; }
    template <class S> void put(const std::vector<S> &x) {
        std::vector<T> copy(n);
        for (size_t i = 0; i < n; i++) copy[i] = (T)x[i];
        CUDA_CHECK(cudaMemcpy(data, copy.data(), n * sizeof(T), cudaMemcpyHostToDevice));
    }
    template <class S = float> std::vector<S> get() const {
        std::vector<T> copy(n);
        unsigned char guard[GUARD];
        gpu_wait(&gpu);
        CUDA_CHECK(cudaMemcpy(copy.data(), data, n * sizeof(T), cudaMemcpyDeviceToHost));
        CUDA_CHECK(cudaMemcpy(guard, data + n, GUARD, cudaMemcpyDeviceToHost));
        for (int i = 0; i < GUARD; i++)
            if (guard[i] != 0xFF) { CHECK_MSG(false, "%d bytes past the end written", i); break; }
        return std::vector<S>(copy.begin(), copy.end());
    }
};

// An argument of a launcher and of the C function of its name, which gets `c`.
template <class T> struct Twin : Array<T> {
    typedef typename std::conditional<std::is_same<T, int>::value, int, float>::type Number;
    std::vector<Number> numbers;
    const char *name, *letters;
    Sizes sizes;
    Number *c;
    explicit Twin(const std::vector<Number> &x)                   // an input
        : Array<T>(x), numbers(x), name("input"), letters("i"), sizes{ x.size() },
          c(numbers.data()) {}
    Twin(const char *name, const char *letters, const Sizes &sizes)             // an output
        : Array<T>(compare_make(name, letters, sizes.data(), 0).n), numbers(this->n, NAN),
          name(name), letters(letters), sizes(sizes), c(numbers.data()) {}
    // Sums are added to `begin`, so that `=` in place of `+=` shows.
    Twin(const char *name, const char *letters, const Sizes &sizes, float begin)
        : Twin(name, letters, sizes) {
        numbers.assign(this->n, begin);
        this->put(numbers);
    }
    void check(double bound) const {
        check_tensor(name, letters, sizes, this->get(), numbers, bound);
    }
    void take() { numbers = this->template get<Number>(), c = numbers.data(); }   // the GPU's
    bool is_left_alone() const { return this->template get<Number>() == numbers; }
};

// After so many roundings to `real`.
template <class... Twins> static void check(int roundings, const Twins &...twins) {
    (twins.check(after_roundings(roundings)), ...);
}

// ---- layers ----

static int padded_vocab(int V) { return (V + VOCAB_UNIT - 1) / VOCAB_UNIT * VOCAB_UNIT; }

// A rank's part of a vocabulary: rows begin ... begin+count-1, perhaps none.
typedef struct { int begin, count; } Part;
static Part part_of(int V, int rank, int ranks) {
    int each = (V + ranks - 1) / ranks, begin = std::min(V, rank*each);
    return { begin, std::min(each, V - begin) };
}
static Ints tokens_in(const Ints &token, Part p) {           // -1: another rank's
    Ints own(token);
    for (int &t : own) t = t >= p.begin && t < p.begin + p.count ? t - p.begin : -1;
    return own;
}

// With several ranks: their outputs add up, and their gradients lie side by side.
static void check_embedding(int B, int T, int C, int V, int ranks) {
    shape_is("B=%d T=%d C=%d V=%d, %d ranks", B, T, C, V, ranks);
    size_t N = B*T, P = T + 2;
    Ints token = random_tokens(N, V), order(N), begin(N + 1), count(V);
    Twin<real> wte(random_floats(V*C, 1, 0)), wpe(random_floats(P*C, 1, 0));
    Twin<real> dx(random_floats(N*C, 1, 0)), x("x", "nc", { N, (size_t)C });
    Twin<float> dwte("dwte", "vc", { (size_t)V, (size_t)C }, 0.5f);
    Twin<float> dwpe("dwpe", "tc", { P, (size_t)C }, 0.5f);
    Floats sum(N*C);
    c_embedding_forward(x.c, token.data(), wte.c, wpe.c, B, T, C);
    c_embedding_backward(dwte.c, dwpe.c, dx.c, token.data(), B, T, C);
    for (int r = 0; r < ranks; r++) {
        Part p = part_of(V, r, ranks);
        Ints own = tokens_in(token, p);
        int words = tokens_sort(order.data(), begin.data(), count.data(), own.data(), N, p.count);
        Array<int> d_token(own), d_order(order), d_begin(begin);
        embedding_forward(x, d_token, wte + p.begin*C, wpe, B, T, C, gpu.stream);
        Floats of_rank = x.get();
        for (size_t i = 0; i < N*C; i++) sum[i] += of_rank[i];
        if (r > 0) dwpe.put(Floats(P*C, 0.5f));              // each rank sums it for itself
        embedding_backward(dwte + p.begin*C, dwpe, dx, d_token, d_order, d_begin, words, B, T, C,
                           gpu.stream);
    }
    check_tensor("x", "nc", x.sizes, sum, x.numbers, after_roundings(1));
    check(0, dwte, dwpe);
}

TEST(embedding) {
    check_embedding(1, 1, 8, 3, 1);
    check_embedding(1, 9, 40, 300, 1);
    check_embedding(5, 37, 264, 5, 1);               // words that stand in many places
    check_embedding(2, 7, 24, 11, 2);
    check_embedding(1, 9, 264, 3, 4);                // a part without rows
}

static void check_layernorm(size_t N, size_t C) {
    shape_is("N=%zu C=%zu", N, C);
    Twin<real> a(random_floats(N*C, 2, 1)), gain(random_floats(C, 0.3, 1));
    Twin<real> bias(random_floats(C, 0.3, 0)), dout(random_floats(N*C, 1, 0));
    Twin<real> out("out", "nc", { N, C }), dx("dx", "nc", { N, C });
    Twin<float> mean("mean", "n", { N }), rstd("rstd", "n", { N });
    Twin<float> dgain("dgain", "c", { C }, 0.5f), dbias("dbias", "c", { C }, 0.5f);
    Twin<float> db("db", "c", { C }, 0.5f);
    c_layernorm_forward(out.c, mean.c, rstd.c, a.c, gain.c, bias.c, N, C);
    NormActs kept = { out, mean, rstd };
    Norm<real> w = { gain, bias };
    Norm<float> dw = { dgain, dbias };
    layernorm_forward(kept, a, w, N, C, gpu.stream);
    check(1, out);
    check(0, mean, rstd);
    c_layernorm_backward(dx.c, dgain.c, dbias.c, dout.c, a.c, mean.c, rstd.c, gain.c, N, C);
    layernorm_backward(dx, dw, db, NULL, dout, a, kept, w, N, C, &gpu);
    check(1, dx);
    check(0, dgain, dbias);
    CHECK(db.is_left_alone());
    Floats skip = random_floats(N*C, 1, 0);
    dx.put(skip);                                    // in place, as the model calls it
    layernorm_backward(dx, dw, db, dx, dout, a, kept, w, N, C, &gpu);
    for (size_t i = 0; i < N*C; i++) dx.c[i] += skip[i], db.c[i % C] += skip[i];
    check(1, dx);
    check(0, db);
}

TEST(layernorm) {
    check_layernorm(7, 24);
    check_layernorm(33, 264);                        // more than one turn of a warp
    check_layernorm(5, 1032);                        // a long row
    check_layernorm(5, 1800);                        // lane 0 has a pack more than registers hold
    check_layernorm(3, 2600);                        // few warps a block have room
    check_layernorm(1700, 24);                       // more rows than one wave of blocks has
}

// roundings: two where the bias is added by a kernel, to a product that has been rounded.
static void check_linear(size_t N, size_t C, size_t OC, int roundings) {
    shape_is("N=%zu C=%zu OC=%zu", N, C, OC);
    Twin<real> x(random_floats(N*C, 1, 0)), w(random_floats(C*OC, 1, 0));
    Twin<real> b(random_floats(OC, 1, 0)), dout(random_floats(N*OC, 1, 0));
    Twin<real> out("out", "no", { N, OC }), dx("dx", "nc", { N, C });
    Twin<float> dw("dw", "co", { C, OC }, 0.5f), db("db", "o", { OC }, 0.5f);
    c_linear_forward(out.c, x.c, w.c, b.c, N, C, OC);
    linear_forward(out, x, w, b, N, C, OC, &gpu);
    check(roundings, out);
    c_residual_forward(out.c, out.c, dout.c, N*OC);              // any matrix will do
    linear_residual_forward(out, dout, x, w, b, N, C, OC, &gpu);
    check(roundings, out);
    CHECK(dout.is_left_alone());
    c_linear_backward(dx.c, dw.c, db.c, dout.c, x.c, w.c, N, C, OC);
    linear_backward(dx, dw, dout, x, w, N, C, OC, &gpu);
    bias_backward(db, dout, N, OC, &gpu);
    check(1, dx);
    check(0, dw, db);
}

TEST(linear) {
    check_linear(1, 8, 8, 1);
    check_linear(131, 40, 264, 1);
    check_linear(1030, 16, 24, 1);                   // db in several parts
}

static void check_attention(int B, int T, int NH, int HS) {
    size_t C = NH*HS, N = B*T;
    shape_is("B=%d T=%d NH=%d HS=%d", B, T, NH, HS);
    Twin<real> qkv(random_floats(N*3*C, 1.5, 0)), dout(random_floats(N*C, 1, 0));
    Twin<real> out("out", "nc", { N, C }), dqkv("dqkv", "nic", { N, 3, C });
    Twin<float> lse("lse", "n", { N*NH }), db("db", "c", { 3*C }, 0.5f);
    Array<float2> rows(N*NH);
    c_attention_forward(out.c, lse.c, qkv.c, B, T, 0, C, NH);
    attention_forward(out, lse, qkv, B, T, 0, C, NH, &gpu);
    check(2, out);                                   // the weights' roundings, the result's
    check(0, lse);
    out.take();                                      // both go back from the same numbers
    c_attention_backward(dqkv.c, dout.c, qkv.c, out.c, lse.c, B, T, C, NH);
    attention_backward(dqkv, db, rows, dout, qkv, out, lse, B, T, C, NH, &gpu);
    // p or ds, the result; dp - sum(p dp) cancels: of the first token, whose dq is 0, rounding is all
    dqkv.check(after_roundings(3) + 9*sums_may_err);
    dqkv.take();
    for (size_t i = 0; i < N*3*C; i++) db.c[i % (3*C)] += dqkv.c[i];
    check(0, db);
}

// T around the edges of tiles, HS that fill a tile and that do not, and that take the plain way.
TEST(attention) {
    static const int sizes[][4] = {
        {1, 1, 1, 8}, {2, 7, 3, 8}, {1, 33, 2, 40}, {3, 31, 8, 5}, {1, 75, 8, 3}, {1, 64, 1, 64},
        {2, 65, 2, 64}, {1, 129, 1, 64}, {1, 300, 1, 64}, {1, 150, 2, 32}, {1, 130, 1, 80},
        {1, 99, 1, 128},
    };
    for (const int *s : sizes) check_attention(s[0], s[1], s[2], s[3]);
}

// A group of heads has 16 MB of keys and values, or all heads are one group; and the heads of three
// groups are those of one.
TEST(heads_in_groups) {
    const int B = 2, T = 5, NH = 3, C = 8*NH, N = B*T;
    dim3 d12 = heads_grid(64, 1024, 12, 64, 8), odd = heads_grid(7, 1 << 13, 11, 128, 2);
    CHECK_MSG(d12.x * 2*1024*64*sizeof(real) == 16 << 20 && d12.y == 8 && d12.x*d12.z == 64*12,
              "%u heads in %u groups", d12.x, d12.z);
    CHECK_MSG(odd.x == 1 && odd.z == 77, "%u heads in %u groups", odd.x, odd.z);
    Array<real> qkv(random_floats(N*3*C, 1, 0));
    std::vector<Floats> outs;
    for (dim3 blocks : { heads_grid(B, T, NH, C/NH, 1), dim3(2, 1, 3) }) {
        Array<real> out(N*C);
        Array<float> lse(N*NH);
        CHECK(blocks.x * blocks.z == B*NH && (outs.empty() ? blocks.z == 1 : blocks.z == 3));
        attention_forward_plain_kernel<<<blocks, 32*PLAIN_ROWS, 0, gpu.stream>>>(out, lse, qkv, T,
                                                                                 0, C, NH);
        LAUNCH_CHECK();
        outs.push_back(out.get());
    }
    CHECK(outs[0] == outs[1]);
}

// Rows first ... T-1 alone, from the keys and values of all, as generation asks for them. What lies
// before them is not touched.
TEST(attention_from_a_cache) {
    static const int sizes[][4] = {
        {1, 0, 1, 64}, {97, 96, 2, 64}, {97, 90, 2, 64}, {200, 129, 1, 64}, {140, 127, 1, 24},
        {70, 65, 1, 128}, {41, 33, 8, 3},
    };
    for (const int *s : sizes) {
        size_t T = s[0], first = s[1], NH = s[2], C = NH*s[3];
        shape_is("T=%zu first=%zu NH=%zu HS=%d", T, first, NH, s[3]);
        Twin<real> qkv(random_floats(T*3*C, 1.5, 0)), out("out", "tc", { T, C });
        Twin<float> lse("lse", "ht", { NH, T });
        c_attention_forward(out.c, lse.c, qkv.c, 1, T, 0, C, NH);
        attention_forward(out + first*C, lse + first, qkv + first*3*C, 1, T - first, first, C, NH,
                          &gpu);
        for (size_t i = 0; i < first*C; i++) out.c[i] = NAN;
        for (size_t i = 0; i < NH*T; i++) if (i % T < first) lse.c[i] = NAN;
        check(2, out);
        check(0, lse);
    }
}

TEST(gelu) {
    for (size_t packs : { 1, 41, 259 }) {
        size_t n = packs*PACK;
        shape_is("n=%zu", n);
        Twin<real> x(random_floats(n, 3, 0)), dx(random_floats(n, 1, 0)), out("out", "i", { n });
        c_gelu_forward(out.c, x.c, n);
        gelu_forward(out, x, n, gpu.stream);
        c_gelu_backward(dx.c, dx.c, x.c, n);
        gelu_backward(dx, dx, x, n, gpu.stream);     // in place
        check(1, out, dx);
    }
}

static void check_linear_gelu(size_t N, size_t C, size_t OC, int roundings) {
    shape_is("N=%zu C=%zu OC=%zu", N, C, OC);
    Twin<real> x(random_floats(N*C, 1, 0)), w(random_floats(C*OC, 0.3, 0));
    Twin<real> b(random_floats(OC, 1, 0));
    Twin<real> pre("pre", "no", { N, OC }), out("gelu(pre)", "no", { N, OC });
    c_linear_forward(pre.c, x.c, w.c, b.c, N, C, OC);
    c_gelu_forward(out.c, pre.c, N*OC);
    linear_gelu_forward(out, pre, x, w, b, N, C, OC, &gpu);
    check(roundings, pre);
    check(roundings + 1, out);

    Twin<real> dout(random_floats(N*C, 1, 0)), dpre("dpre", "no", { N, OC });
    Twin<float> dw("dw", "oc", { OC, C }, 0.5f), db_pre("db_pre", "o", { OC }, 0.5f);
    Floats db(C);
    pre.take();
    out.take();                                      // both go back from the same numbers
    c_linear_backward(dpre.c, dw.c, db.data(), dout.c, out.c, w.c, N, OC, C);
    c_gelu_backward(dpre.c, dpre.c, pre.c, N*OC);
    for (size_t i = 0; i < N*OC; i++) db_pre.c[i % OC] += dpre.c[i];
    gelu_linear_backward(dpre, db_pre, dw, dout, out, pre, w, N, OC, C, &gpu);
    check(2, dpre);                                  // before and after gelu'
    check(3, db_pre);                                // a sum, whose terms cancel
    check(0, dw);
}

TEST(linear_gelu) {
    check_linear_gelu(1, 8, 32, 1);
    check_linear_gelu(37, 24, 96, 1);
    check_linear_gelu(130, 40, 160, 1);
}

// ---- what cuBLASLt offers ----

// Other tests' products go, and with them their algorithms.
static void products_forget() {
    for (int i = 0; i < gpu.n_products && i < MAX_PRODUCTS; i++) product_free(&gpu.products[i]);
    gpu.n_products = 0;
}

#ifdef EMULATOR
// What cuBLASLt lacks, or cannot start, is done by kernels apart. Each epilogue alone, then all.
TEST(epilogues_that_are_not_there) {
    static const struct { const char *how; EpilogueKind missing; } cases[] = {
        { "fail:bias", ADD_BIAS }, { "fail:gelu", ADD_BIAS_GELU }, { "fail:dgelu", GELU_GRADIENT },
        { "lacks:dgelu", GELU_GRADIENT }, { "lacks", ADD_BIAS_RESIDUAL },
        { "refuses:dgelu", GELU_GRADIENT }, { "refuses", ADD_BIAS },
    };
    for (auto c : cases) {
        int apart = 0;
        setenv("EMULATOR_EPILOGUES", c.how, 1);
        products_forget();
        check_linear(37, 24, 96, 2);
        check_linear_gelu(37, 24, 96, 2);
        for (int i = 0; i < gpu.n_products; i++)
            apart += !gpu.products[i].found && gpu.products[i].key.epilogue == c.missing;
        bool asked = c.missing != GELU_GRADIENT || sizeof(real) < sizeof(float);
        CHECK_MSG(asked == (apart > 0), "%s: %d products without it", c.how, apart);
    }
    products_forget();
    unsetenv("EMULATOR_EPILOGUES");
}

// Split-K may add in place to C where that is fp32, but never rounds a partial sum to bf16.
TEST(sums_in_place_round_nothing) {
    setenv("EMULATOR_ALGORITHMS", "split", 1);
    products_forget();
    for (cudaDataType_t type : { CUDA_R_32F, type_of((const real *)NULL) }) {
        ProductKey key = { 16, 16, 16, 16, 16, 16, 0, CUBLAS_OP_N, CUBLAS_OP_N, type, NO_EPILOGUE };
        uint64_t expected = type == CUDA_R_32F ? CUBLASLT_REDUCTION_SCHEME_INPLACE
                                               : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
        uint64_t scheme = product_find(&key, &gpu)->algorithm.data[0];
        CHECK_MSG(scheme == expected, "C of type %d: reduction scheme %d", type, (int)scheme);
    }
    products_forget();
    unsetenv("EMULATOR_ALGORITHMS");
}

// A driver loads kernels late, and NCCL connects late: what a model may take leaves room for both.
TEST(memory_is_left_to_others) {
    size_t free_bytes, total;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
    for (int ranks : { 1, 2 }) {
        gpu.ranks = ranks;
        CHECK(machine_free_memory(&gpu) == (double)free_bytes - ranks * 0x1p29);
    }
    gpu.ranks = 1;
}
#endif

// Ranks that have the logits of a part of the vocabulary each, in turn on one GPU; or one rank, by
// the kernels that a trainer without such ranks uses.
static void check_xent(size_t N, int V, int ranks) {
    shape_is("N=%zu V=%d, %d ranks", N, V, ranks);
    Twin<int> target(random_tokens(N, V));
    Floats logits = random_floats(N*V, 2, 0), dlogits(logits);
    Twin<float> loss("loss", "n", { N }), lse("lse", "n", { N });
    Array<float> scale(Floats(1, 0.25f)), parts(3*ranks*N);
    for (float &x : logits) x *= ranks > 1 ? 16 : 1;     // exact in bf16; other maxima in each part
    c_xent_forward(loss.c, lse.c, logits.data(), target.c, N, V, V);
    dlogits = logits;
    c_xent_backward(dlogits.data(), lse.c, target.c, 0.25f, N, V, V);
    for (int pass = 0; pass < 2; pass++)                 // forward alone; and both ways, in place
        for (int r = 0; r < ranks; r++) {
            Part p = part_of(V, r, ranks);
            size_t Vp = padded_vocab(p.count + (ranks > 1));
            Floats own(N*Vp, 200), d(N*Vp);              // padding that would win, if it were read
            for (size_t n = 0; n < N; n++)
                for (int v = 0; v < p.count; v++) {
                    own[n*Vp + v] = logits[n*V + p.begin + v];
                    d[n*Vp + v] = dlogits[n*V + p.begin + v];
                }
            Twin<real> x(own);
            Array<int> right(tokens_in(target.numbers, p));
            RowPart *all = (RowPart *)parts.data;
            if (ranks > 1 && pass == 0) xent_part(all + r*N, x, right, N, p.count, Vp, gpu.stream);
            else if (ranks > 1)
                xent_from_parts(loss, lse, x, x, right, scale, all, ranks, N, p.count, Vp,
                                gpu.stream);
            else if (pass == 0) xent_launch(loss, lse, NULL, x, right, NULL, N, V, Vp, &gpu);
            else xent_launch(loss, lse, x, x, right, scale, N, V, Vp, &gpu);
            if (pass == 0) CHECK(x.is_left_alone());
            else check_tensor("dlogits", "nv", { N, Vp }, x.get(), d, after_roundings(1));
            if (pass == 1 || ranks == 1) check(0, loss, lse);
        }
}

TEST(xent) {
    check_xent(7, 61, 1);
    check_xent(5, 1031, 1);
    check_xent(3, 9001, 1);                          // blocks of 512 threads
    check_xent(2, 60001, 1);                         // more than shared memory holds of two rows
    check_xent(7, 61, 2);
    check_xent(5, 1031, 4);
    check_xent(2, 3, 4);                             // a part without words
}

static void check_classifier(size_t N, int rows, int C, int V) {
    size_t Vp = padded_vocab(V);
    shape_is("N=%zu rows=%d C=%d V=%d", N, rows, C, V);
    Floats words = random_floats(Vp*C, 1/sqrt(C), 0);
    for (size_t i = V*C; i < Vp*C; i++) words[i] = 0.0f;
    Twin<int> target(random_tokens(N, V));
    Twin<real> x(random_floats(N*C, 1, 0)), wte(words), dx("dx", "nc", { N, (size_t)C });
    Twin<float> dwte("dwte", "vc", { Vp, (size_t)C }, 0.5f), loss("loss", "n", { N });
    Twin<float> lse("lse", "n", { N });
    Array<real> logits(rows*Vp);
    Array<float> scale(Floats(1, 0.25f));
    c_classifier_backward(dx.c, dwte.c, loss.c, lse.c, x.c, wte.c, target.c, 0.25f, N, C, V);
    Model m = Model();
    m.gpu = &gpu, m.c.C = C, m.padded.V = Vp, m.params.tp.words.count = V, m.logit_rows = rows;
    m.batch.targets = target, m.batch.scale = scale, m.lnf.out = x, m.w.wte = wte;
    m.logits = logits, m.loss = loss, m.lse = lse, m.dx_branch = dx, m.dw.wte = dwte;
    classifier_launch(&m, N, INFER);
    check(1, loss);                  // logits are rounded; losses move by as much
    classifier_launch(&m, N, TRAIN);
    check(1, loss);
    check(3, dx);                                    // logits, dlogits, dx
    check(2, dwte);
}

TEST(classifier) {
    check_classifier(7, 3, 24, 61);
    check_classifier(65, 32, 16, 200);
}

// LayerNorm's blocks are one wave, and on an H100 two rows of logits share a multiprocessor.
TEST(grids_are_whole_waves) {
    cudaDeviceProp h100 = {}, v100 = {};
    h100.multiProcessorCount = 132;
    h100.sharedMemPerMultiprocessor = 228 << 10;
    h100.sharedMemPerBlockOptin = 227 << 10;
    h100.reservedSharedMemPerBlock = 1 << 10;
    NormGrid d12 = layernorm_grid(65536, 768, &h100), d48 = layernorm_grid(65536, 1600, &h100);
    CHECK_MSG(d12.blocks == norm_blocks(norm_kept(768)) * 132 && d12.warps == 8, "%d blocks",
              d12.blocks);
    CHECK_MSG(d48.blocks == 132 && d48.warps == 8, "%d blocks of %d warps", d48.blocks, d48.warps);
    v100.multiProcessorCount = 80;
    v100.sharedMemPerMultiprocessor = v100.sharedMemPerBlockOptin = 96 << 10;
    CHECK(layernorm_grid(65536, 1024, &v100).blocks == 80);
    for (int Vp : { 50304, 100032 }) {
        XentGrid xent = xent_grid(Vp, &h100);
        CHECK_MSG(XENT_BLOCKS * (xent.bytes + (1 << 10)) <= h100.sharedMemPerMultiprocessor
                  && (xent.kept == Vp) == (Vp*sizeof(real) < 110 << 10), "%d kept", xent.kept);
    }
}

// ---- the whole model ----

// Two models of one size, with the same parameters.
typedef struct { Model m; CModel *c; Floats start; } Models;
static const Config small = { 2, 3, 24, 61, 16, 0 };            // heads of 8
static const Config wide = { 2, 2, 128, 300, 160, 0 };          // heads of 64
static const float adamw[5] = { 1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f };
static const float sgd[5] = { 0.1f, 0.0f, 0.0f, 0.0f, 0.1f };
static const AdamW adamw_options = { adamw[0], adamw[1], adamw[2], adamw[3], adamw[4], 1, 1 };

static Slice whole_bucket(const Model *m, int b) { return { 0, gpt2_bucket(&m->padded, b).count }; }

// A flat buffer of the CPU to the GPU, whose own pads the vocabulary.
static void send(float *flat, const float *from, const Model *m) {
    for (int b = 0; b < gpt2_n_buckets(&m->c); b++)
        bucket_copy(flat + gpt2_bucket(&m->padded, b).begin,
                    (float *)from + gpt2_bucket(&m->c, b).begin, b, whole_bucket(m, b), &m->params,
                    cudaMemcpyHostToDevice);
}

// A flat buffer of the GPU as the CPU has it, without the rows that pad the vocabulary.
static Floats fetch(const Model *m, float *flat) {
    Floats x(gpt2_n_params(&m->c));
    for (int b = 0; b < gpt2_n_buckets(&m->c); b++)
        bucket_copy(flat + gpt2_bucket(&m->padded, b).begin, x.data() + gpt2_bucket(&m->c, b).begin,
                    b, whole_bucket(m, b), &m->params, cudaMemcpyDeviceToHost);
    return x;
}

static void model_open(Model *m, const Config *c, int B, int T, Recompute recompute,
                       Sharing sharing) {
    ModelSpec spec = { *c, B, T, TRAIN, recompute, sharing, gpu.properties.multiProcessorCount };
    model_init(m, &spec, &gpu);
}

// As they are initialised, and moved a little, so that no gain is 1 and no bias 0.
static void models_open(Models *t, const Config *c, int B, int T, Recompute recompute) {
    t->c = c_model_open(c, B, T, 5);
    model_open(&t->m, c, B, T, recompute, Sharing());
    Rng moved = rng_make(6, 0);
    float *p = c_model_params(t->c);
    size_t n = gpt2_n_params(c);
    for (size_t i = 0; i < n; i++)
        p[i] = (float)(real)(float)(p[i] + 0.05*rng_normal(&moved));
    t->start.assign(p, p + n);
    send(t->m.params.masters, p, &t->m);
    params_loaded(&t->m.params);
}

static void models_close(Models *t) {
    model_free(&t->m);
    c_model_close(t->c);
}

// AdamW's settings for update `step`, counted from 1.
static AdamW adamw_at(int step) {
    AdamW o = adamw_options;
    o.m_steps = o.v_steps = step;
    return o;
}

// The loss and the gradient's squared norm, as an update finds them.
static Totals totals_of(Model *m) {
    gradients_squares(m);
    totals_collect(m);
    return totals_receive(m);
}

// The end of train_step: clips at `limit`, and updates.
static Totals update_end(Model *m, int step, double limit) {
    zero_wait_grads(&m->params);
    gradients_squares(m);
    totals_collect(m);
    gradients_clip(m, limit);
    model_update(m, adamw_at(step));
    return totals_receive(m);
}

// Over a whole model, errors of different roundings are as often of one sign as of the other and
// add up in squares, by the norm of a tensor. A block rounds 12 tensors forward and about as many
// backward.
static double after_blocks(int L) {
    return 1e-5 + (sizeof(real) < sizeof(float) ? sqrt(24.0*L) / 256.0 : 0.0);
}

// The tensor with the largest relative error. Adding a constant to every key changes no softmax, so
// the K part of qkv_b has no gradient but rounding, which AdamW divides by itself: it is left out.
static void check_every_tensor(const Config *c, Floats ours, Floats theirs, double bound) {
    double most = 0.0;
    char where[48] = "";
    for (int i = 0; i < gpt2_n_tensors(c); i++) {
        Tensor t = gpt2_tensor(c, i);
        for (int k = c->C; t.kind == QKV_B && k < 2*c->C; k++)
            ours[t.offset + k] = theirs[t.offset + k] = 0.0f;
        double error = compare_norm(&ours[t.offset], &theirs[t.offset], t.count);
        if (error <= most) continue;
        most = error;
        strcpy(where, t.key);
    }
    check_part(where, most / bound);
}

static void forward_backward(Model *m, const Ints &inputs, const Ints &targets, int B, int T) {
    clear_grads(m);
    model_forward(m, inputs.data(), B, T, 0);
    classifier_loss_and_gradient(m, targets.data(), 1.0f / (float)(B*T), B, T);
    model_backward(m, B, T);
}

static double c_forward_backward(CModel *m, const Ints &inputs, const Ints &targets, int B, int T) {
    c_clear_grads(m);
    return c_model_backward(m, inputs.data(), targets.data(), 1.0f / (float)(B*T), B, T) / (B*T);
}

static void check_model(const Config *c, int B, int T, Recompute recompute) {
    Models t;
    shape_is("B=%d T=%d C=%d", B, T, c->C);
    models_open(&t, c, B, T, recompute);
    Ints inputs = random_tokens(B*T, c->V), targets = random_tokens(B*T, c->V);
    forward_backward(&t.m, inputs, targets, B, T);
    Totals totals = totals_of(&t.m);
    double loss = totals.loss / (B*T), c_loss = c_forward_backward(t.c, inputs, targets, B, T);
    Floats c_grads(c_model_grads(t.c), c_model_grads(t.c) + gpt2_n_params(c)), each(B*T, NAN);
    check_near("loss", loss, c_loss, after_roundings(1));
    check_near("norm", sqrt(totals.squares), c_gradients_norm(t.c), after_blocks(c->L));
    check_every_tensor(c, fetch(&t.m, t.m.params.grads), c_grads, after_blocks(c->L));
    double again = model_loss(&t.m, each.data(), targets.data(), (size_t)B*T) / (B*T), sum = 0.0;
    for (float x : each) sum += x;
    check_near("loss forward, and both ways", again, loss, 1e-6);
    check_near("each token's loss", sum / (B*T), again, 1e-12);
    models_close(&t);
}

TEST(loss_and_every_gradient) {
    check_model(&small, 5, 11, RECOMPUTE_NONE);
    check_model(&wide, 2, 150, RECOMPUTE_NONE);
    check_model(&small, 1, 1, RECOMPUTE_BLOCK);
    check_model(&wide, 1, 129, RECOMPUTE_BLOCK);
}

// What layers read: the masters, rounded.
static void check_params_are_rounded(const Model *m) {
    size_t n = gpt2_n_params(&m->padded);
    std::vector<real> read(n);
    Floats masters(n);
    gpu_wait(&gpu);
    CUDA_CHECK(cudaMemcpy(read.data(), m->params.values, n * sizeof(real),
                          cudaMemcpyDeviceToHost));
    CUDA_CHECK(cudaMemcpy(masters.data(), m->params.masters, n * 4, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < n; i++)
        CHECK_MSG((float)read[i] == (float)(real)masters[i], "parameter %zu is stale", i);
}

// What files see of a model: the C trainer's fresh parameters, and each of the flat buffers, bucket
// by bucket, without the rows that pad the vocabulary; those stay zero on the GPU.
TEST(buckets) {
    Model m;
    shape_is("V=%d, padded to %d", small.V, padded_vocab(small.V));
    CModel *c = c_model_open(&small, 1, 1, 5);
    model_open(&m, &small, 1, 1, RECOMPUTE_NONE, Sharing());
    Params *p = &m.params;
    size_t n = gpt2_n_params(&small);
    params_draw(p, 5);
    CHECK(same_bits(fetch(&m, p->masters), Floats(c_model_params(c), c_model_params(c) + n)));
    check_params_are_rounded(&m);

    Floats numbers[3];
    float *flat[3] = { p->masters, p->adam_m, p->adam_v };
    size_t padded = gpt2_n_params(&m.padded), words = (size_t)small.V*small.C, behind = padded - n;
    for (int i = 0; i < 3; i++) {
        numbers[i] = random_floats(n, 1, 0);
        send(flat[i], numbers[i].data(), &m);
    }
    for (int what = KEPT_WEIGHTS; what <= KEPT_EXP_AVG_SQ; what++) {
        for (int b = 0; b < gpt2_n_buckets(&small); b++) {
            Range range = gpt2_bucket(&small, b);
            const float *kept = bucket_get(p, (Kept)what, -1, b);
            CHECK_MSG(same_numbers(kept, &numbers[what][range.begin], range.count),
                      "bucket %d of kept %d", b, what);
        }
        Floats raw(padded);
        CUDA_CHECK(cudaMemcpy(raw.data(), flat[what], padded * 4, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < behind; i++) CHECK_MSG(raw[words + i] == 0.0f, "padding is written");
        CHECK(same_numbers(&raw[words + behind], &numbers[what][words], n - words));
    }
    model_free(&m);
    c_model_close(c);
}

// An optimizer alone: both sides get the same gradients, whose norm two ranks have parts of. First
// there is no limit on the norm, then one of twice the norm, then of 0.7 of it, which clips. At last
// come gradients that are not finite, which change nothing. Masters and moments are fp32 in every
// build.
static void check_updates(bool plain_sgd, int steps, double bound) {
    Models t;
    Array<double> ranks(2 * sizeof(Totals) / sizeof(double));
    Array<float> g_scale(1);
    models_open(&t, &small, 1, 1, RECOMPUTE_NONE);
    shape_is("%d steps", steps);
    Params *p = &t.m.params;
    size_t n = gpt2_n_params(&small);
    for (int step = 1; step <= steps + 1; step++) {
        for (size_t i = 0; i < n; i++) c_model_grads(t.c)[i] = (float)rng_normal(&rng);
        if (step > steps) c_model_grads(t.c)[n / 2] = NAN;
        send(p->grads, c_model_grads(t.c), &t.m);
        double norm = sqrt(totals_of(&t.m).squares), limit = step == 1 ? 0 : step == 2 ? 2 : 0.7;
        if (step <= steps) check_near("norm", norm, c_gradients_norm(t.c), 1e-12);
        else CHECK(isnan(norm));
        Totals parts[2] = { { 0, 0.25*norm*norm, { 0 }, 0 }, { 0, 0.75*norm*norm, { 0 }, 0 } };
        CUDA_CHECK(cudaMemcpy(ranks.data, parts, sizeof parts, cudaMemcpyHostToDevice));
        limit *= isnan(norm) ? 1.0 : norm;
        clip_kernel<<<1, 1, 0, p->stream>>>(g_scale, (Totals *)ranks.data, 2, limit);
        if (plain_sgd) sgd_launch(p, { sgd[0], sgd[1], sgd[2], sgd[3], sgd[4], 1, 1 }, g_scale);
        else adamw_launch(p, adamw_at(step), g_scale);
        if (step > steps) break;
        float scale = step <= 2 ? 1.0f : 0.7f;
        c_model_update(t.c, plain_sgd, plain_sgd ? sgd : adamw, scale, step);
    }
    const float *c[3] = { c_model_params(t.c), c_model_m(t.c), c_model_v(t.c) };
    float *flat[3] = { p->masters, p->adam_m, p->adam_v };
    for (int i = 0; i < 3; i++)
        check_close("parameters, m, v", fetch(&t.m, flat[i]), Floats(c[i], c[i] + n), 1e-6);
    Floats ours = fetch(&t.m, p->masters), theirs(c[0], c[0] + n);
    for (size_t i = 0; i < n; i++) ours[i] -= t.start[i], theirs[i] -= t.start[i];
    check_close("what parameters moved by", ours, theirs, bound);
    check_params_are_rounded(&t.m);
    models_close(&t);
}

TEST(adamw_updates) { check_updates(false, 10, 1e-4); }   // 2^-24 of 1, beside 0.01
TEST(sgd_updates) { check_updates(true, 3, 1e-5); }

// Updates of two, three, one and two micro-batches, so that the scale changes; the distinct tokens
// grow in number. The third update has a smaller micro-batch. After each update the model is
// evaluated. Returns every loss, the parameters and the last gradients.
static Floats four_updates(const Config *c, int B, int T, Recompute recompute, Sharing sharing) {
    Model m;
    Floats all;
    rng = rng_make(7, 0);
    model_open(&m, c, B, T, recompute, sharing);
    send(m.params.masters, random_floats(gpt2_n_params(c), 0.05, 0.1).data(), &m);
    params_loaded(&m.params);
    for (int step = 1; step <= 4; step++) {
        int micro_batches = 1 + step % 3, b = step == 3 ? B - 1 : B, t = step == 3 ? T - 2 : T;
        m.params.correct_v = (float)(1 / (1 - pow(adamw_options.beta2, step)));
        clear_grads(&m);
        for (int i = 0; i < micro_batches; i++) {
            Ints inputs = random_tokens(b*t, 2 + 5*step), targets = random_tokens(b*t, c->V);
            model_micro_batch(&m, i, micro_batches);
            model_micro_step(&m, inputs.data(), targets.data(), 1.0f / (float)(micro_batches*b*t),
                             b, t);
        }
        Totals totals = update_end(&m, step, 1.0);
        for (double x : { totals.loss, totals.squares }) all.push_back((float)x);
        for (double x : totals.norms) all.push_back((float)x);
        Ints seen = random_tokens(T, c->V);
        Floats each(T);
        model_forward(&m, seen.data(), 1, T, 0);
        all.push_back((float)model_loss(&m, each.data(), seen.data(), T));
    }
    for (float *flat : { m.params.masters, m.params.grads }) {
        Floats x = fetch(&m, flat);
        all.insert(all.end(), x.begin(), x.end());
    }
    bool captured = m.graph.exec != NULL;
    CHECK_MSG(captured == (gpu.graphs && sharing.levels == 0 && !sharing.measure), "%s",
              captured ? "a graph" : "no graph");
    model_free(&m);
    return all;
}

static const Config deep = { 4, 2, 32, 61, 64, 0 };

// With EMULATOR_SHUFFLE threads run in another order each time: what depended on it would show.
TEST(same_bits_each_time) {
    for (const Config *c : { &small, &wide }) {
        int T = std::min(c->P, 70);
        Floats first = four_updates(c, 2, T, RECOMPUTE_NONE, Sharing());
        CHECK(same_bits(first, four_updates(c, 2, T, RECOMPUTE_NONE, Sharing())));
    }
}

TEST(recomputing_changes_no_bit) {
    for (const Config *c : { &small, &deep })
        CHECK(same_bits(four_updates(c, 2, 13, RECOMPUTE_BLOCK, Sharing()),
                        four_updates(c, 2, 13, RECOMPUTE_NONE, Sharing())));
}

static void check_graph(Recompute recompute, Sharing sharing) {
    Floats each[2];
    for (bool graphs : { false, true }) {
        gpu.graphs = graphs;
        each[graphs] = four_updates(&deep, 3, 7, recompute, sharing);
    }
    gpu.graphs = false;
    CHECK_MSG(same_bits(each[0], each[1]), "recompute %d, measure %d, levels %d: other bits",
              recompute, sharing.measure, sharing.levels);
}

TEST(a_graph_changes_no_bit) {
    Sharing measured = Sharing(), exact = Sharing();
    measured.measure = true;                         // the noise scale and exact sums: no graph
    exact.levels = 2;
    for (const char *how : { "off", "on" }) {
        Machine other;
        TrainOptions options = {};
        setenv("BATCHWISE_GRAPH", how, 1);
        machine_open(&other, &options, &alone);
        CHECK_MSG(other.graphs == (how[1] == 'n'), "BATCHWISE_GRAPH=%s", how);
        machine_close(&other);
    }
    unsetenv("BATCHWISE_GRAPH");
    check_graph(RECOMPUTE_NONE, Sharing());
    check_graph(RECOMPUTE_BLOCK, Sharing());
    check_graph(RECOMPUTE_NONE, measured);
    check_graph(RECOMPUTE_NONE, exact);
}

// Generation: rows at a time, with what earlier calls left in the cache, against the CPU's whole
// pass.
TEST(cached_rows_equal_a_full_pass) {
    static const int ends[] = { 1, 2, 5, 6, 7, 16 };     // rows at a time: 1, 1, 3, 1, 1, 9
    Models t;
    models_open(&t, &small, 1, 16, RECOMPUTE_NONE);
    Ints text = random_tokens(16, small.V);
    for (int i = 0, done = 0; i < 6; done = ends[i++]) {
        model_forward(&t.m, text.data() + done, 1, ends[i] - done, done);
        const float *ours = model_logits(&t.m, ends[i] - done - 1);
        const float *theirs = c_model_logits(t.c, text.data(), ends[i]);
        shape_is("%d tokens, %d of them new", ends[i], ends[i] - done);
        check_close("logits", Floats(ours, ours + small.V), Floats(theirs, theirs + small.V),
                    after_blocks(small.L));
    }
    models_close(&t);
}

// ---- small gradients, for the noise scale ----

// The squared norms of one bucket's pieces, plain or in Adam's metric: twice, so that they go on
// growing.
static void check_measure(size_t n, bool adam, double bound) {
    Twin<float> x(random_floats(n, 1, 0)), v(random_floats(n, 0.1, 2));
    std::vector<double> squares((n + PARAMS_MEASURED - 1) / PARAMS_MEASURED, 0.5);
    Array<double> ours(squares);
    Params p;
    memset(&p, 0, sizeof p);
    p.stream = gpu.stream;
    p.partials = ours;
    p.correct_v = 1.7f;
    for (int time = 0; time < 2; time++) {
        floats_measure(&p, SMALLS, x, adam ? v.data : NULL, n);
        for (size_t i = 0; i < n; i++)
            squares[i / PARAMS_MEASURED] += (double)x.c[i] * x.c[i]
                                          / (adam ? sqrt(1.7 * v.c[i]) + ADAM_EPS : 1.0);
    }
    std::vector<double> got = ours.get<double>();
    for (size_t k = 0; k < squares.size(); k++)
        CHECK_MSG(fabs(got[k] - squares[k]) <= bound*squares[k], "%zu elements, piece %zu: %.15g, "
                  "not %.15g", n, k, got[k], squares[k]);
}

TEST(small_gradients) {
    for (size_t packs : { 1, 255, 256*3 + 1, PARAMS_MEASURED/PACK, 3*PARAMS_MEASURED/PACK + 5 }) {
        check_measure(packs*PACK, false, 1e-12);
        check_measure(packs*PACK, true, 1e-6);           // in fp32
    }
}

// ---- what several ranks need of one GPU; tests/test_cuda_ranks.sh runs several ----

// y = a x + b y against the C formula. With b = 0 y holds NaNs before, to be forgotten.
TEST(axpby) {
    static const float cases[][2] = { { 1, 0 }, { -0.25, 1 }, { 0.7, -2 }, { 0.7, 0.9 } };   // a, b
    for (size_t n : { (size_t)PACK, (size_t)PACK*256, (size_t)PACK*257 })
        for (auto [a, b] : cases) {
            shape_is("n=%zu, a=%g, b=%g", n, a, b);
            Twin<float> x(random_floats(n, 1, 0)), y("y", "i", { n });
            if (b != 0.0f) y.put(y.numbers = random_floats(n, 1, 0));
            floats_axpby(y, a, x, b, n, gpu.stream);
            for (size_t i = 0; i < n; i++)
                y.numbers[i] = a * x.c[i] + (b == 0.0f ? 0.0f : b * y.numbers[i]);
            y.check(1e-6);
            CHECK(x.is_left_alone());
        }
}

// The kernel against tree_sum of dev/ranks/tree.h, bit for bit. The last term begins `shift`
// elements after a multiple of 16 bytes. Scales are powers of two: another product, added at once,
// could be rounded once or twice.
template <class T> static void check_tree_sum(int terms, size_t n, int shift, CommMode mode) {
    CommType type = sizeof(T) == 4 ? COMM_FP32 : COMM_BF16;
    float scale = mode == COMM_ADD ? 1.0f : 0.25f;
    size_t each = (n + 79) / 16 * 16;
    std::vector<T> numbers(terms * each);
    for (T &x : numbers) {
        float f = (float)rng_normal(&rng) * ldexpf(1.0f, (int)rng_below(&rng, 20));
        if (type == COMM_FP32) memcpy(&x, &f, sizeof x);
        else x = (T)bf16_narrow(f);
    }
    std::vector<const void *> on_cpu(terms), on_gpu(terms);
    Array<T> copy(numbers);
    for (int k = 0; k < terms; k++) {
        size_t begin = k*each + (k == terms - 1 ? shift : 0);
        on_cpu[k] = &numbers[begin];
        on_gpu[k] = copy + begin;
    }
    Floats out = random_floats(n, 1, 0);
    Array<float> d_out(out);
    tree_sum(out.data(), on_cpu.data(), terms, scale, type, mode, n);
    comm_sum_terms(d_out, on_gpu.data(), terms, scale, type, mode, n, gpu.stream);
    CHECK_MSG(same_bits(d_out.get(), out), "%d terms of %zu %s numbers, from %d on: other bits",
              terms, n, type == COMM_FP32 ? "fp32" : "bf16", shift);
}

TEST(sums_along_the_tree) {
    for (int terms = 1; terms <= 9; terms++)
        for (size_t n : { 1, 8, 9, 2051 })
            for (int shift = 0; shift <= 1; shift++)
                for (CommMode mode : { COMM_WRITE, COMM_ADD }) {
                    check_tree_sum<float>(terms, n, shift, mode);
                    check_tree_sum<uint16_t>(terms, n, shift, mode);
                }
    check_tree_sum<float>(COMM_MAX_RANKS, 37, 0, COMM_WRITE);
    check_tree_sum<uint16_t>(COMM_MAX_RANKS - 1, 37, 0, COMM_ADD);
    Twin<float> x(random_floats(100, 1, 0)), y(random_floats(100, 1, 0));
    const void *on_cpu[] = { y.c, x.c }, *on_gpu[] = { y.data, x.data };
    tree_sum(x.c, on_cpu, 2, 1.0f, COMM_FP32, COMM_WRITE, 100);                  // in place
    comm_sum_terms(x, on_gpu, 2, 1.0f, COMM_FP32, COMM_WRITE, 100, gpu.stream);
    comm_sum_terms(x, on_gpu, 2, 1.0f, COMM_FP32, COMM_WRITE, 0, gpu.stream);           // nothing
    CHECK(x.is_left_alone());
}

// Numbers that are hard to round: tests/test_comm.c.
TEST(bf16_for_the_way) {
    for (size_t n : { 1, 7, 8, 9, 1027 })
        for (size_t shift = 0; shift <= 1; shift++) {
            Floats x(n + shift), back(n);
            std::vector<uint16_t> half(n);
            for (float &v : x) v = (float)rng_normal(&rng);
            Array<float> d_x(x), d_back(n);
            Array<uint16_t> d_half(n);
            for (size_t i = 0; i < n; i++) {
                half[i] = bf16_narrow(x[i + shift]);
                back[i] = bf16_widen(half[i]);
            }
            comm_narrow(d_half, d_x + shift, n, gpu.stream);
            comm_widen(d_back, d_half, n, gpu.stream);
            CHECK_MSG(d_half.get<uint16_t>() == half, "narrow %zu: other bits", n);
            CHECK_MSG(same_bits(d_back.get(), back), "widen %zu: other bits", n);
        }
}

#include "real_shapes.cu"

// ---- which tests run: all, or those that are named ----

int main(int argc, char **argv) {
    alone.size = alone.local_size = 1;
    TrainOptions options;
    memset(&options, 0, sizeof options);
    machine_open(&gpu, &options, &alone);
    gpu.graphs = false;                              // but where a test asks for them
    for (const Test *test = Test::first; test; test = test->next) {
        bool wanted = argc == 1;
#ifndef EMULATOR                                 // minutes on a small GPU: by name only
        wanted = wanted && test->body != real_shapes;
#endif
        for (int i = 1; i < argc; i++) wanted = wanted || strcmp(argv[i], test->name) == 0;
        if (!wanted) continue;
        worst = 0.0;
        rng = rng_make(1, 0);
        test_run(test->name, test->body);
        if (worst > 0.0) printf("    errors up to %.2g of what they may be\n", worst);
    }
    machine_close(&gpu);
    return test_end();
}
