// train_gpt2.cu, with dev/ranks/kernels.cu, against train_gpt2.c: every launcher beside the C
// function of its name, at odd shapes, and then the whole model. Compiled twice, for bf16 and with
// -DPRECISION_FP32; for the emulator (`make test-all`) and for a GPU (`make test-cuda`).
// gpt2_reference.c is the C side.
//
//     test_gpt2 [NAME...]      all tests, or those that are named
//     test_gpt2 real_shapes    at the shapes of GPT-2 (real_shapes.cu); on a GPU by name only
//
// Errors are relative, by the norm of a tensor: |ours - C's| / |C's|. Both sides start from the
// same numbers, which `real` holds exactly. What is left is
// - fp32 sums in another order: 1e-6 for some hundred terms; 1e-5 leaves room for that and none
//   for a mistake (see test_layers.c);
// - in bf16, the roundings to 8 significant bits between the inputs and the result. Numbers between
//   1 and 2 lie 2^-7 apart, so each moves a number, and with it a tensor, by at most 2^-8 of it
//   (by 2^-9.3 on the average); what follows passes that on, mostly averaged out. So k roundings
//   make at most k * 2^-8, unless what follows cancels; then k is counted higher, and it says why.
#define main train_gpt2_main
#include "../train_gpt2.cu"
#undef main
#include <vector>
#include "gpt2_reference.h"
#include "test.h"

static double after_roundings(int k) {
    return 1e-5 + (sizeof(real) < sizeof(float) ? k/256.0 : 0.0);
}

// ---- arrays on both sides ----

typedef std::vector<float> Floats;
typedef std::vector<int> Ints;

static Machine gpu;                      // opened by main, used by all tests
static Comm alone;                       // one rank
static Rng rng;                          // each test begins it anew

// Numbers that `real` holds exactly.
static Floats random_floats(size_t n, double scale, double shift) {
    Floats x(n);
    for (float &v : x) v = (float)(real)(float)(shift + scale * rng_normal(&rng));
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
    template <class S> explicit Array(const std::vector<S> &x) : Array(x.size()) {
        std::vector<T> copy(n);
        for (size_t i = 0; i < n; i++) copy[i] = (T)x[i];
        CUDA_CHECK(cudaMemcpy(data, copy.data(), n * sizeof(T), cudaMemcpyHostToDevice));
    }
    Array(const Array &) = delete;
    ~Array() { CUDA_CHECK(cudaFree(data)); }
    operator T *() { return data; }
    Floats get() const {
        std::vector<T> copy(n);
        unsigned char guard[GUARD];
        gpu_wait(&gpu);
        CUDA_CHECK(cudaMemcpy(copy.data(), data, n * sizeof(T), cudaMemcpyDeviceToHost));
        CUDA_CHECK(cudaMemcpy(guard, data + n, GUARD, cudaMemcpyDeviceToHost));
        for (int i = 0; i < GUARD; i++)
            if (guard[i] != 0xFF) { CHECK_MSG(false, "%d bytes past the end written", i); break; }
        return Floats(copy.begin(), copy.end());
    }
};

static double relative_error(const float *ours, const float *theirs, size_t n) {
    double diff = 0.0, norm = 0.0;
    for (size_t i = 0; i < n; i++) {
        diff += ((double)ours[i] - theirs[i]) * ((double)ours[i] - theirs[i]);
        norm += (double)theirs[i] * theirs[i];
    }
    return sqrt(diff / (norm > 0.0 ? norm : 1.0));
}

static double worst;                     // error of a test, as a part of what it may be
static char shape[100];                  // what is being tested, for its messages

__attribute__((format(printf, 1, 2))) static void shape_is(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(shape, sizeof shape, fmt, args);
    va_end(args);
}

// What is this many times its bound, or not a number, is a mistake of the program.
static const double FAR_OFF = 4.0;
static const char *far_off(double part) { return part <= FAR_OFF ? "" : ", far off"; }

// An error that is too large is printed, however many there are, and the test goes on: on another
// GPU some bound may be wrong, and the rest still tells.
static void check_error(const char *what, double error, double bound) {
    if (!(error / bound <= worst)) worst = error / bound;
    if (error <= bound) return;
    printf("    %s, %s: relative error %.2g, at most %.2g%s\n", what, shape, error, bound,
           far_off(error / bound));
    test_state.failed++;
}

static void check_close(const char *what, const Floats &ours, const Floats &theirs, double bound) {
    check_error(what, ours.size() == theirs.size()
                ? relative_error(ours.data(), theirs.data(), ours.size()) : NAN, bound);
}

static void check_near(const char *what, double ours, double theirs, double bound) {
    check_error(what, fabs(ours - theirs) / fabs(theirs), bound);
}

// ---- layers ----

static int padded_vocab(int V) { return (V + VOCAB_UNIT - 1) / VOCAB_UNIT * VOCAB_UNIT; }

// Half of what the sums are added to, so that `=` in place of `+=` shows.
static Floats halves(size_t n) { return Floats(n, 0.5f); }

static void check_embedding(int B, int T, int C, int V) {
    shape_is("B=%d T=%d C=%d V=%d", B, T, C, V);
    Ints token = random_tokens(B*T, V), order(B*T), begin(B*T + 1), count(V);
    Floats wte = random_floats(V*C, 1, 0), wpe = random_floats((T + 2)*C, 1, 0);
    Floats dx = random_floats(B*T*C, 1, 0), dwte = halves(V*C), dwpe = halves((T + 2)*C);
    Floats x(B*T*C);
    Array<int> d_token(token);
    Array<real> d_x(B*T*C), d_wte(wte), d_wpe(wpe), d_dx(dx);
    Array<float> d_dwte(dwte), d_dwpe(dwpe);
    c_embedding_forward(x.data(), token.data(), wte.data(), wpe.data(), B, T, C);
    embedding_forward(d_x, d_token, d_wte, d_wpe, B, T, C, gpu.stream);
    check_close("x", d_x.get(), x, after_roundings(1));
    int words = tokens_sort(order.data(), begin.data(), count.data(), token.data(), B*T, V);
    Array<int> d_order(order), d_begin(begin);
    c_embedding_backward(dwte.data(), dwpe.data(), dx.data(), token.data(), B, T, C);
    embedding_backward(d_dwte, d_dwpe, d_dx, d_token, d_order, d_begin, words, B, T, C, gpu.stream);
    check_close("dwte", d_dwte.get(), dwte, 1e-5);
    check_close("dwpe", d_dwpe.get(), dwpe, 1e-5);
}

// Each rank's part of a vocabulary: rows begin ... begin+count-1, perhaps none.
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

// The parts' outputs add up to the bits of the whole, and their gradients lie side by side in it.
static void check_embedding_parts(int B, int T, int C, int V, int ranks) {
    shape_is("B=%d T=%d C=%d V=%d, %d parts", B, T, C, V, ranks);
    Ints token = random_tokens(B*T, V), order(B*T), begin(B*T + 1), count(V);
    Floats wte = random_floats(V*C, 1, 0), wpe = random_floats(T*C, 1, 0), sum(B*T*C, 0.0f), dwte;
    Floats dx = random_floats(B*T*C, 1, 0), dwpe = halves(T*C);
    Array<real> d_wpe(wpe), d_dx(dx), d_x(B*T*C);
    int none = 0, words = 0;
    auto run = [&](Part p, Floats *x, Floats *d) {
        Ints own = tokens_in(token, p);
        Array<real> d_wte(Floats(wte.begin() + p.begin*C, wte.begin() + (p.begin + p.count)*C));
        Array<int> d_token(own);
        Array<float> d_dwte(halves(p.count*C)), d_dwpe(dwpe);
        embedding_forward(d_x, d_token, d_wte, d_wpe, B, T, C, gpu.stream);
        *x = d_x.get();
        int n = tokens_sort(order.data(), begin.data(), count.data(), own.data(), B*T, p.count);
        Array<int> d_order(order), d_begin(begin);
        embedding_backward(d_dwte, d_dwpe, d_dx, d_token, d_order, d_begin, n, B, T, C, gpu.stream);
        *d = d_dwte.get();
        none += n == 0;
        words += n;
    };
    for (int r = 0; r < ranks; r++) {
        Floats x, d;
        run(part_of(V, r, ranks), &x, &d);
        for (int i = 0; i < B*T*C; i++) sum[i] += x[i];
        dwte.insert(dwte.end(), d.begin(), d.end());
    }
    int of_parts = words;
    Floats x, d;
    run({ 0, V }, &x, &d);
    CHECK(x == sum && d == dwte && words == 2*of_parts && (none > 0 || ranks < V));
}

TEST(embedding) {
    check_embedding(1, 1, 8, 3);
    check_embedding(3, 7, 24, 11);
    check_embedding(1, 9, 40, 300);
    check_embedding(5, 37, 264, 5);                  // words that stand in many places
    check_embedding_parts(2, 7, 24, 11, 2);
    check_embedding_parts(1, 9, 264, 3, 4);          // a part without rows
}

static void check_layernorm(int N, int C) {
    shape_is("N=%d C=%d", N, C);
    Floats a = random_floats(N*C, 2, 1);
    Floats gain = random_floats(C, 0.3, 1), bias = random_floats(C, 0.3, 0);
    Floats dout = random_floats(N*C, 1, 0), skip = random_floats(N*C, 1, 0);
    Floats out(N*C), mean(N), rstd(N), dx(N*C), dgain = halves(C), dbias = halves(C);
    Floats db = halves(C);
    Array<real> d_a(a), d_gain(gain), d_bias(bias), d_dout(dout), d_skip(skip);
    Array<real> d_out(N*C), d_dx(N*C);
    Array<float> d_mean(N), d_rstd(N), d_dgain(dgain), d_dbias(dbias), d_db(db);
    c_layernorm_forward(out.data(), mean.data(), rstd.data(), a.data(), gain.data(), bias.data(),
                        N, C);
    layernorm_forward(d_out, d_mean, d_rstd, d_a, d_gain, d_bias, N, C, gpu.stream);
    check_close("out", d_out.get(), out, after_roundings(1));
    check_close("mean", d_mean.get(), mean, 1e-5);
    check_close("rstd", d_rstd.get(), rstd, 1e-5);

    c_layernorm_backward(dx.data(), dgain.data(), dbias.data(), dout.data(), a.data(), mean.data(),
                         rstd.data(), gain.data(), N, C);
    layernorm_backward(d_dx, d_dgain, d_dbias, d_db, NULL, d_dout, d_a, d_mean, d_rstd, d_gain, N,
                       C, &gpu);
    check_close("dx", d_dx.get(), dx, after_roundings(1));
    check_close("dgain", d_dgain.get(), dgain, 1e-5);
    check_close("dbias", d_dbias.get(), dbias, 1e-5);
    CHECK(d_db.get() == db);
    layernorm_backward(d_skip, d_dgain, d_dbias, d_db, d_skip, d_dout, d_a, d_mean, d_rstd, d_gain,
                       N, C, &gpu);                  // in place, as the model calls it
    for (int i = 0; i < N*C; i++) dx[i] += skip[i];
    for (int i = 0; i < N*C; i++) db[i % C] += skip[i];
    check_close("dx + skip", d_skip.get(), dx, after_roundings(1));
    check_close("db", d_db.get(), db, 1e-5);
}

TEST(layernorm) {
    check_layernorm(1, 8);
    check_layernorm(7, 24);
    check_layernorm(33, 264);                        // more than one turn of a warp
    check_layernorm(129, 40);
    check_layernorm(5, 1032);                        // a long row
    check_layernorm(5, 1800);                        // lane 0 has a pack more than registers hold
    check_layernorm(3, 2600);                        // few warps a block have room
    check_layernorm(1700, 24);                       // more rows than one wave of blocks has
}

// roundings: two where the bias is added by a kernel, to a product that has been rounded.
static void check_linear(int N, int C, int OC, int roundings) {
    shape_is("N=%d C=%d OC=%d", N, C, OC);
    Floats x = random_floats(N*C, 1, 0), w = random_floats(C*OC, 1, 0), b = random_floats(OC, 1, 0);
    Floats dout = random_floats(N*OC, 1, 0), out(N*OC), dx(N*C), dw = halves(C*OC), db = halves(OC);
    Array<real> d_x(x), d_w(w), d_b(b), d_dout(dout), d_out(N*OC), d_dx(N*C);
    Array<float> d_dw(dw), d_db(db);
    c_linear_forward(out.data(), x.data(), w.data(), b.data(), N, C, OC);
    linear_forward(d_out, d_x, d_w, d_b, N, C, OC, &gpu);
    check_close("out", d_out.get(), out, after_roundings(roundings));
    c_residual_forward(out.data(), out.data(), dout.data(), out.size());       // any matrix will do
    linear_residual_forward(d_out, d_dout, d_x, d_w, d_b, N, C, OC, &gpu);
    check_close("out + skip", d_out.get(), out, after_roundings(roundings));
    CHECK(d_dout.get() == dout);                     // left alone
    c_linear_backward(dx.data(), dw.data(), db.data(), dout.data(), x.data(), w.data(), N, C, OC);
    linear_backward(d_dx, d_dw, d_dout, d_x, d_w, N, C, OC, &gpu);
    bias_backward(d_db, d_dout, N, OC, &gpu);
    check_close("dx", d_dx.get(), dx, after_roundings(1));
    check_close("dw", d_dw.get(), dw, 1e-5);
    check_close("db", d_db.get(), db, 1e-5);
}

TEST(linear) {
    check_linear(1, 8, 8, 1);
    check_linear(7, 24, 72, 1);
    check_linear(131, 40, 264, 1);
    check_linear(1030, 16, 24, 1);                   // db in several parts
}

// Channels begin ... begin+n-1 of each row.
static Floats columns(const Floats &x, int ld, int begin, int n) {
    Floats part;
    for (size_t row = 0; row < x.size(); row += ld)
        part.insert(part.end(), x.begin() + row + begin, x.begin() + row + begin + n);
    return part;
}

// Returns out, followed by dqkv.
static Floats check_attention(int B, int T, int NH, int HS) {
    int C = NH*HS, N = B*T;
    shape_is("B=%d T=%d NH=%d HS=%d", B, T, NH, HS);
    Floats qkv = random_floats(N*3*C, 1.5, 0), dout = random_floats(N*C, 1, 0);
    Floats out(N*C), lse(N*NH), dqkv(N*3*C);
    Array<real> d_qkv(qkv), d_dout(dout), d_out(N*C), d_dqkv(N*3*C);
    Array<float> d_lse(N*NH);
    Array<float2> d_rows(N*NH);
    Array<float> d_dq(N*C), d_sums(B*3*C);
    c_attention_forward(out.data(), lse.data(), qkv.data(), B, T, 0, C, NH);
    attention_forward(d_out, d_lse, d_qkv, B, T, 0, C, NH, &gpu);
    check_close("out", d_out.get(), out, after_roundings(2));   // the weights', the result's
    check_close("lse", d_lse.get(), lse, 1e-5);

    out = d_out.get();                               // both go back from the same numbers
    c_attention_backward(dqkv.data(), dout.data(), qkv.data(), out.data(), lse.data(), B, T, C, NH);
    Floats db = halves(3*C);
    Array<float> d_db(db);
    attention_backward(d_dqkv, d_db, { d_rows, d_dq, d_sums }, d_dout, d_qkv, d_out, d_lse, B, T, C,
                       NH, &gpu);
    Floats ours = d_dqkv.get();
    for (int i = 0; i < N*3*C; i++) db[i % (3*C)] += ours[i];
    check_close("db", d_db.get(), db, 1e-5);
    static const char *const names[] = { "dq", "dk", "dv" };
    for (int i = T > 1 ? 0 : 2; i < 3; i++)          // with one key, dq and dk are only rounding
        check_close(names[i], columns(ours, 3*C, i*C, C), columns(dqkv, 3*C, i*C, C),
                    after_roundings(2));             // that of p or ds, the result's
    out.insert(out.end(), ours.begin(), ours.end());
    return out;
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

// Rows first ... T-1 alone, from the keys and values of all, as generation asks for them.
TEST(attention_from_a_cache) {
    static const int sizes[][4] = {
        {1, 0, 1, 64}, {97, 96, 2, 64}, {97, 90, 2, 64}, {200, 129, 1, 64}, {140, 127, 1, 24},
        {70, 65, 1, 128}, {41, 33, 8, 3},
    };
    for (const int *s : sizes) {
        int T = s[0], first = s[1], NH = s[2], C = NH*s[3];
        shape_is("T=%d first=%d NH=%d HS=%d", T, first, NH, s[3]);
        Floats qkv = random_floats(T*3*C, 1.5, 0), out(T*C), lse(T*NH);
        Array<real> d_qkv(qkv), d_out(T*C);
        Array<float> d_lse(T*NH);
        c_attention_forward(out.data(), lse.data(), qkv.data(), 1, T, 0, C, NH);
        attention_forward(d_out.data + first*C, d_lse.data + first, d_qkv.data + first*3*C, 1,
                          T - first, first, C, NH, &gpu);
        Floats ours = d_out.get(), ours_lse = d_lse.get();
        for (int i = 0; i < first*C; i++) CHECK(isnan(ours[i]));
        for (int i = 0; i < T*NH; i++)
            if (i % T < first) { CHECK(isnan(ours_lse[i])); ours_lse[i] = lse[i] = 0.0f; }
        check_close("out", Floats(ours.begin() + first*C, ours.end()),
                    Floats(out.begin() + first*C, out.end()), after_roundings(2));
        check_close("lse", ours_lse, lse, 1e-5);
    }
}

TEST(gelu) {
    for (int packs : { 1, 41, 259 }) {
        int n = packs*PACK;
        shape_is("n=%d", n);
        Floats x = random_floats(n, 3, 0), dout = random_floats(n, 1, 0), out(n), dx(n);
        Array<real> d_x(x), d_dout(dout), d_out(n);
        c_gelu_forward(out.data(), x.data(), n);
        gelu_forward(d_out, d_x, n, gpu.stream);
        check_close("out", d_out.get(), out, after_roundings(1));
        c_gelu_backward(dx.data(), dout.data(), x.data(), n);
        gelu_backward(d_dout, d_dout, d_x, n, gpu.stream);           // in place
        check_close("dx", d_dout.get(), dx, after_roundings(1));
    }
}

static void check_linear_gelu(int N, int C, int OC, int roundings) {
    shape_is("N=%d C=%d OC=%d", N, C, OC);
    Floats x = random_floats(N*C, 1, 0), w = random_floats(C*OC, 0.3, 0);
    Floats b = random_floats(OC, 1, 0), pre(N*OC), out(N*OC);
    Array<real> d_x(x), d_w(w), d_b(b), d_pre(N*OC), d_out(N*OC);
    c_linear_forward(pre.data(), x.data(), w.data(), b.data(), N, C, OC);
    c_gelu_forward(out.data(), pre.data(), pre.size());
    linear_gelu_forward(d_out, d_pre, d_x, d_w, d_b, N, C, OC, &gpu);
    check_close("pre", d_pre.get(), pre, after_roundings(roundings));
    check_close("gelu(pre)", d_out.get(), out, after_roundings(roundings + 1));

    Floats dout = random_floats(N*C, 1, 0), dpre(N*OC), dw = halves(OC*C), db(C);
    Floats db_pre = halves(OC);
    Array<real> d_w2(w), d_dout(dout), d_dpre(N*OC);
    Array<float> d_dw(dw), d_db_pre(db_pre);
    pre = d_pre.get();
    out = d_out.get();                               // both go back from the same numbers
    c_linear_backward(dpre.data(), dw.data(), db.data(), dout.data(), out.data(), w.data(),
                      N, OC, C);
    c_gelu_backward(dpre.data(), dpre.data(), pre.data(), dpre.size());
    for (size_t i = 0; i < dpre.size(); i++) db_pre[i % OC] += dpre[i];
    gelu_linear_backward(d_dpre, d_db_pre, d_dw, d_dout, d_out, d_pre, d_w2, N, OC, C, &gpu);
    check_close("dpre", d_dpre.get(), dpre, after_roundings(2));     // before and after gelu'
    check_close("dw", d_dw.get(), dw, 1e-5);
    check_close("db_pre", d_db_pre.get(), db_pre, after_roundings(2));
}

TEST(linear_gelu) {
    check_linear_gelu(1, 8, 32, 1);
    check_linear_gelu(37, 24, 96, 1);
    check_linear_gelu(130, 40, 160, 1);
}

// ---- the tuner ----

// Other tests' products go, and with them their algorithms.
static void products_forget() {
    for (int i = 0; i < gpu.n_products && i < MAX_PRODUCTS; i++) product_free(&gpu.products[i]);
    gpu.n_products = 0;
}

// The tuner measures all products of linear_gelu, as it does in run_tune. In the emulator
// algorithm 1 is the fastest that does not add in bf16 (2 is faster), nor fails to start (3).
static void tune_linear_gelu(const char *epilogues, int N, int C, int OC) {
    setenv("EMULATOR_ALGORITHMS", "6", 1);
    setenv("EMULATOR_EPILOGUES", epilogues, 1);
    products_forget();
    tuner_open(&gpu);
    Floats ones(N*OC, 1.0f);
    Array<real> x(ones), w(ones), b(ones), pre(ones), out(ones), dpre(ones);
    Array<float> dw(ones), db_pre(ones);
    gpu.tuner->measures = true;
    linear_gelu_forward(out, pre, x, w, b, N, C, OC, &gpu);
    gelu_linear_backward(dpre, db_pre, dw, x, out, pre, w, N, OC, C, &gpu);
    gpu.tuner->measures = false;
    for (int i = 0; i < gpu.n_products; i++) product_choose(&gpu.products[i], &gpu);
}

static void tuning_ends() {
    tuner_close(&gpu);
    products_forget();
    unsetenv("EMULATOR_ALGORITHMS");
    unsetenv("EMULATOR_EPILOGUES");
}

static void check_choices(bool fused) {
    const Tuner *t = gpu.tuner;
    CHECK_MSG(t->measured == 7 && t->n == 7, "%d products measured, %d choices", t->measured, t->n);
    for (int i = 0; i < t->n; i++) {
        const Choice *c = &t->choices[i];
        bool epilogue = !strstr(c->product.text, " plain");
        CHECK_MSG(!c->usable || c->seconds <= c->first_seconds, "%s is slower than the heuristic's",
                  c->product.text);
#ifdef EMULATOR
        CHECK_MSG(c->tried == 5, "%s: %d algorithms tried", c->product.text, c->tried);
        CHECK_MSG(c->usable == (fused || !epilogue), "%s: usable %d", c->product.text, c->usable);
        CHECK_MSG(!c->usable || (c->algorithm.data[0] == 1 && c->failed == 1),
                  "%s: algorithm %d, %d failed", c->product.text, (int)c->algorithm.data[0],
                  c->failed);
#endif
        (void)epilogue, (void)fused;
    }
}

TEST(tuner_takes_the_fastest) {
    tune_linear_gelu("", 37, 24, 96);
    check_choices(true);
    check_linear_gelu(37, 24, 96, 1);
    CHECK(gpu.tuner->measured == 7);
    tuning_ends();
}

// A slow epilogue gives way to a kernel; so does one whose products do not start.
TEST(tuner_does_without_epilogues) {
    for (const char *how : { "slow", "fail" }) {
        tune_linear_gelu(how, 37, 24, 96);
        check_choices(false);
        check_linear_gelu(37, 24, 96, 2);
        tuning_ends();
    }
}

#ifdef EMULATOR
// Without the tuner as well: what cuBLASLt lacks, or cannot start, is done by kernels apart. Each
// epilogue alone, then all of them.
TEST(epilogues_that_are_not_there) {
    static const char *const missing[][2] = {        // and what the tuner's file calls it
        { "fail:bias", " bias" }, { "fail:gelu", "bias-gelu" }, { "fail:dgelu", "gelu-gradient" },
        { "lacks:bias", "bias-residual" }, { "lacks:gelu", "bias-gelu" },
        { "lacks:dgelu", "gelu-gradient" }, { "fail", " bias" }, { "lacks", "bias-residual" },
        { "refuses:dgelu", "gelu-gradient" }, { "refuses", " bias" },
    };
    for (auto how : missing) {
        int apart = 0;
        setenv("EMULATOR_EPILOGUES", how[0], 1);
        products_forget();
        check_linear(37, 24, 96, 2);
        check_linear_gelu(37, 24, 96, 2);
        for (int i = 0; i < gpu.n_products; i++) {
            const Product *p = &gpu.products[i];
            apart += !p->found && strstr(product_name(&p->key).text, how[1]);
        }
        CHECK_MSG(apart > 0, "%s: the epilogue was there", how[0]);
        tuning_ends();
    }
}

// A product sums a bias's gradient only where it was timed, and where cuBLASLt can.
TEST(bias_gradients_are_timed) {
    auto summed = [] {
        int n = 0;
        for (int i = 0; i < gpu.n_products; i++)
            n += gpu.products[i].key.epilogue == GELU_BIAS_GRADIENT && gpu.products[i].found;
        return n;
    };
    products_forget();
    check_linear_gelu(37, 24, 96, 1);
    CHECK_MSG(summed() == 0, "%d products that nobody has timed", summed());
    for (const char *how : { "", "lacks:bgrad", "refuses:bgrad", "fail:bgrad" }) {
        tune_linear_gelu(how, 37, 24, 96);
        check_linear_gelu(37, 24, 96, 1);
        CHECK_MSG(summed() == (*how ? 0 : 1), "'%s': %d", how, summed());
        tuning_ends();
    }
}

// Split-K may add in place to C where that is fp32: one algorithm more is offered.
TEST(sums_in_place_round_nothing) {
    int offered[2];
    setenv("EMULATOR_ALGORITHMS", "7", 1);
    products_forget();
    for (int fp32 = 0; fp32 < 2; fp32++) {
        cublasLtMatmulHeuristicResult_t found[MAX_ALGORITHMS];
        cudaDataType_t type = fp32 ? CUDA_R_32F : type_of((const real *)NULL);
        ProductKey key = { 16, 16, 16, 16, 16, 16, 0, CUBLAS_OP_N, CUBLAS_OP_N, type, NO_EPILOGUE };
        Product *p = product_find(&key, &gpu);
        offered[fp32] = product_candidates(found, MAX_ALGORITHMS, p, &gpu);
    }
    CHECK_MSG(offered[1] == 6 && offered[0] == (sizeof(real) < sizeof(float) ? 5 : 6),
              "%d and %d algorithms", offered[0], offered[1]);
    tuning_ends();
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

// The emulator's first algorithm computes 1 GFLOP/s; the fastest takes 0.7 of its time.
TEST(peak_of_the_fastest_algorithm) {
    setenv("EMULATOR_ALGORITHMS", "6", 1);
    products_forget();
    shape_is("6 algorithms");
    check_near("peak", matmul_peak_flops(&gpu), 1e9 / 0.7, 1e-3);
    CHECK(gpu.tuner == NULL);
    tuning_ends();
}
#endif

// Choices go through a file and come back; those of another machine, or another cuBLASLt, do not.
TEST(choices_are_kept) {
    char path[] = "/tmp/batchwise-tune.XXXXXX";
    int fd = mkstemp(path);
    Error err = { "" };
    Run r;
    memset(&r, 0, sizeof r);
    r.machine = &gpu;
    r.o.tune = path;
    CHECK(fd >= 0);
    close(fd);
    tune_linear_gelu("", 37, 24, 96);
    Tuner first = *gpu.tuner;
    choices_keep(&r, "");
    gpu.tuner->n = 0;
    CHECK_MSG(choices_load(&gpu, path, &err) && gpu.tuner->n == 7, "%s", err.text);
    for (int i = 0; i < gpu.n_products; i++) {
        product_choose(&gpu.products[i], &gpu);
        CHECK(gpu.products[i].tuned);
    }
    for (int i = 0; i < 7; i++) {
        const Choice *c = &gpu.tuner->choices[i];
        CHECK(strcmp(c->product.text, first.choices[i].product.text) == 0 && c->used);
        CHECK(memcmp(&c->algorithm, &first.choices[i].algorithm, sizeof c->algorithm) == 0);
    }
#ifdef EMULATOR                        // cuBLASLt need not bear it
    gpu.tuner->choices[0].algorithm.data[1] = 1;             // not an algorithm
    for (int i = 0; i < gpu.n_products; i++) product_choose(&gpu.products[i], &gpu);
    CHECK_MSG(gpu.tuner->refused == 1 && gpu.tuner->n == 6, "%d refused", gpu.tuner->refused);
#endif
    gpu.tf32 = !gpu.tf32;
    gpu.tuner->n = 0;
    CHECK_MSG(choices_load(&gpu, path, &err) && gpu.tuner->n == 0, "of another machine");
    gpu.tf32 = !gpu.tf32;
    const char damaged[] = "{\"machine\":\"\",\"products\":3}";
    unlink(path);
    CHECK(file_write(path, damaged, strlen(damaged), &err));
    CHECK(!choices_load(&gpu, path, &err) && strstr(err.text, "products"));
    unlink(path);
    free(r.tune_json);
    tuning_ends();
}

#ifndef PRECISION_FP32
// ---- the variants of attention ----

// From here on a kernel runs in variant i at this shape, as if the tuner had chosen it.
static void choose_variant(AttentionKernel kernel, AttentionShape s, int i) {
    Choice *c = &gpu.tuner->choices[gpu.tuner->n++];
    c->product = variant_name(kernel, s, VARIANTS_VERSION);
    c->is_kernel = c->usable = true;
    c->variant = i;
}

static int variants_of(AttentionKernel kernel, int HS) {
    if (kernel == FORWARD) return variants_count(variants_for(forward_variants, HS));
    return variants_count(variants_for(backward_variants, HS));
}

// Attention with one kernel in variant i and the others in their defaults, for the same input.
static Floats check_variant(AttentionKernel kernel, AttentionShape s, int i) {
    rng = rng_make(3, 0);
    tuner_open(&gpu);
    choose_variant(kernel, s, i);
    Floats x = check_attention(s.B, s.T, s.NH, s.HS);
    CHECK(gpu.tuner->variants[kernel].number == i && gpu.tuner->variants[kernel].tuned);
    tuner_close(&gpu);
    return x;
}

// T that end within a step of 32, 64 and 128 rows, at its edge and behind; HS that fill a tile and
// that do not. All variants of the backward pass add in the same order, as three stages do in the
// forward pass; scores of 32 keys at a time give other last bits than 64.
TEST(attention_variants) {
    static const AttentionShape shapes[] = {
        {1, 75, 2, 64}, {1, 200, 1, 64}, {1, 128, 1, 64}, {1, 257, 1, 40}, {1, 2, 1, 64},
        {1, 75, 1, 128}, {1, 100, 1, 80},
    };
    for (AttentionShape s : shapes)
        for (AttentionKernel kernel : { FORWARD, BACKWARD }) {
            Floats first = check_variant(kernel, s, 0);
            for (int i = 1; i < variants_of(kernel, s.HS); i++) {
                Floats x = check_variant(kernel, s, i);
                bool same = memcmp(x.data(), first.data(), x.size() * sizeof x[0]) == 0;
                CHECK_MSG(same || (kernel == FORWARD && i > 1), "kernel %d, variant %d", kernel, i);
                if (kernel == FORWARD && i == 3 && s.HS == 64 && s.T == 200) CHECK(!same);
            }
        }
}

// The tuner measures the variants at this shape.
static const AttentionShape TUNED = { 1, 75, 2, 64 };

static void tune_attention() {
    setenv("EMULATOR_ALGORITHMS", "1", 1);
    tuner_open(&gpu);
    gpu.tuner->measures = true;
    check_attention(TUNED.B, TUNED.T, TUNED.NH, TUNED.HS);
    gpu.tuner->measures = false;
}

static void check_variants(int forward, int backward, int failed) {
    const Tuner *t = gpu.tuner;
    const int expected[] = { forward, backward };
    CHECK_MSG(t->kernels_measured == 2 && t->n == 2 && t->measured == 0, "%d choices", t->n);
    for (int i = 0; i < t->n; i++) {
        const Choice *c = &t->choices[i];
        CHECK(c->is_kernel && c->used && c->tried == variants_of((AttentionKernel)i, 64));
        CHECK_MSG(c->seconds <= c->first_seconds, "%s is slower than the default", c->product.text);
#ifdef EMULATOR
        CHECK_MSG(c->variant == expected[i], "%s: variant %d", c->product.text, c->variant);
        CHECK_MSG(c->failed == (i == BACKWARD ? failed : 0), "%d failed", c->failed);
#endif
    }
    (void)expected, (void)failed;
}

// In the emulator the most dynamic shared memory takes the least time.
TEST(tuner_takes_the_fastest_variants) {
    tune_attention();
    check_variants(4, 1, 0);
    check_attention(TUNED.B, TUNED.T, TUNED.NH, TUNED.HS);
    CHECK(gpu.tuner->kernels_measured == 2);
    tuning_ends();
}

#ifdef EMULATOR
// What needs more shared memory than this GPU has is not chosen; if it was, the default runs.
TEST(variants_that_do_not_start) {
    setenv("EMULATOR_SHARED", "101376", 1);                  // 99 KB, as sm_86 has
    tune_attention();
    check_variants(4, 0, 1);
    tuning_ends();
    check_variant(BACKWARD, TUNED, 1);
    unsetenv("EMULATOR_SHARED");
}
#endif

// Choices go through a file; a variant that is unknown there becomes the default, and variants of
// another version are not taken.
TEST(variants_are_kept) {
    char path[] = "/tmp/batchwise-tune.XXXXXX";
    int fd = mkstemp(path);
    Error err = { "" };
    Run r;
    memset(&r, 0, sizeof r);
    r.machine = &gpu;
    r.o.tune = path;
    CHECK(fd >= 0);
    close(fd);
    tune_attention();
    Tuner first = *gpu.tuner;
    for (int variant : { 3, 99 }) for (bool known : { true, false }) {
        first.choices[BACKWARD].variant = variant;
        first.begin = gpu.tuner->begin, first.end = gpu.tuner->end;
        *gpu.tuner = first;
        choices_keep(&r, "");
        tuner_close(&gpu);
        tuner_open(&gpu);
        CHECK_MSG(choices_load(&gpu, path, &err) && gpu.tuner->n == 2, "%s", err.text);
        if (!known)
            gpu.tuner->choices[BACKWARD].product = variant_name(BACKWARD, TUNED,
                                                                VARIANTS_VERSION + 1);
        check_attention(TUNED.B, TUNED.T, TUNED.NH, TUNED.HS);
        const Variant *v = gpu.tuner->variants;
        CHECK(v[FORWARD].number == first.choices[FORWARD].variant && v[FORWARD].tuned);
        CHECK(v[BACKWARD].number == (known && variant == 3 ? 3 : 0));
        CHECK(v[BACKWARD].tuned == known && gpu.tuner->unknown == (known && variant == 99));
        free(r.tune_json);
        r.tune_json = NULL;
    }
    gpu.tuner->choices[BACKWARD].variant = -1;
    choices_keep(&r, "");
    CHECK(!choices_load(&gpu, path, &err) && strstr(err.text, "variant"));
    unlink(path);
    free(r.tune_json);
    tuning_ends();
}
#endif

static void check_xent(int N, int V) {
    int Vp = padded_vocab(V);
    shape_is("N=%d V=%d", N, V);
    Ints target = random_tokens(N, V);
    Floats logits = random_floats((size_t)N*Vp, 2, 0), loss(N), lse(N);    // padding holds numbers
    Array<int> d_target(target);
    Array<real> d_logits(logits);
    Array<float> d_loss(N), d_lse(N), d_loss2(N), d_lse2(N), d_scale(Floats(1, 0.25f));
    c_xent_forward(loss.data(), lse.data(), logits.data(), target.data(), N, V, Vp);
    xent_forward(d_loss, d_lse, d_logits, d_target, N, V, Vp, &gpu);
    check_close("loss", d_loss.get(), loss, 1e-5);
    check_close("lse", d_lse.get(), lse, 1e-5);
    CHECK(d_logits.get() == logits);                 // left alone
    c_xent_backward(logits.data(), lse.data(), target.data(), 0.25f, N, V, Vp);
    xent_forward_backward(d_loss2, d_lse2, d_logits, d_target, d_scale, N, V, Vp, &gpu);
    check_close("loss, both ways", d_loss2.get(), loss, 1e-5);
    check_close("lse, both ways", d_lse2.get(), lse, 1e-5);
    check_close("dlogits", d_logits.get(), logits, after_roundings(1));
}

// Ranks that have the logits of a part of the vocabulary each, in turn on one GPU.
static void check_xent_parts(int N, int V, int ranks) {
    shape_is("N=%d V=%d, %d parts", N, V, ranks);
    Ints target = random_tokens(N, V);
    Floats logits = random_floats((size_t)N*V, 2, 0), loss(N), lse(N);
    for (float &x : logits) x *= 16;                 // exact in bf16; other maxima in each part
    Array<float> d_loss(N), d_lse(N), d_scale(Floats(1, 0.25f)), d_parts((size_t)3*ranks*N);
    std::vector<Floats> cut(ranks);
    for (int r = 0; r < ranks; r++) {
        Part p = part_of(V, r, ranks);
        int Vp = padded_vocab(p.count + 1);
        for (int n = 0; n < N; n++)
            for (int v = 0; v < Vp; v++)             // padding that would win, if it were read
                cut[r].push_back(v < p.count ? logits[(size_t)n*V + p.begin + v] : 200);
        Array<real> d_logits(cut[r]);
        Array<int> d_target(tokens_in(target, p));
        xent_part((RowPart *)d_parts.data + r*N, d_logits, d_target, N, p.count, Vp, gpu.stream);
        gpu_wait(&gpu);
    }
    c_xent_forward(loss.data(), lse.data(), logits.data(), target.data(), N, V, V);
    c_xent_backward(logits.data(), lse.data(), target.data(), 0.25f, N, V, V);
    Floats first_loss;
    for (int r = 0; r < ranks; r++) {
        Part p = part_of(V, r, ranks);
        int Vp = padded_vocab(p.count + 1);
        Array<real> d_logits(cut[r]);
        Array<int> d_target(tokens_in(target, p));
        xent_from_parts(d_loss, d_lse, d_logits, d_logits, d_target, d_scale,
                        (RowPart *)d_parts.data, ranks, N, p.count, Vp, gpu.stream);
        Floats d = d_logits.get(), wanted;
        for (int n = 0; n < N; n++)
            for (int v = 0; v < Vp; v++)
                wanted.push_back(v < p.count ? logits[(size_t)n*V + p.begin + v] : 0);
        check_close("dlogits", d, wanted, after_roundings(1));
        check_close("loss", d_loss.get(), loss, 1e-5);
        check_close("lse", d_lse.get(), lse, 1e-5);
        if (r == 0) first_loss = d_loss.get();
        CHECK(d_loss.get() == first_loss);
    }
}

TEST(xent) {
    check_xent(1, 3);
    check_xent(7, 61);
    check_xent(5, 1031);
    check_xent(3, 9001);                             // blocks of 512 threads
    check_xent(2, 60001);                            // more than shared memory holds of two rows
    check_xent_parts(7, 61, 2);
    check_xent_parts(5, 1031, 4);
    check_xent_parts(2, 3, 4);                       // a part without words
}

static void check_classifier(int N, int rows, int C, int V) {
    int Vp = padded_vocab(V);
    shape_is("N=%d rows=%d C=%d V=%d", N, rows, C, V);
    Ints target = random_tokens(N, V);
    Floats x = random_floats(N*C, 1, 0), wte = random_floats(Vp*C, 1/sqrt(C), 0);
    Floats loss(N), lse(N), dx(N*C), dwte = halves(Vp*C);
    for (int i = V*C; i < Vp*C; i++) wte[i] = 0.0f;
    Array<int> d_target(target);
    Array<real> d_x(x), d_wte(wte), d_logits((size_t)rows*Vp), d_dx(N*C);
    Array<float> d_loss(N), d_lse(N), d_dwte(dwte), d_loss2(N), d_scale(Floats(1, 0.25f));
    c_classifier_backward(dx.data(), dwte.data(), loss.data(), lse.data(), x.data(), wte.data(),
                          target.data(), 0.25f, N, C, V);
    classifier_forward(d_loss, d_lse, d_logits, d_x, d_wte, d_target, N, rows, C, V, Vp, &gpu);
    // Logits are rounded; they are about 1, losses 3 to 5, and move by as much as the logits.
    check_close("loss", d_loss.get(), loss, after_roundings(1));
    classifier_backward(d_dx, d_dwte, d_loss2, d_lse, d_logits, d_x, d_wte, d_target, d_scale,
                        N, rows, C, V, Vp, &gpu);
    check_close("loss, both ways", d_loss2.get(), loss, after_roundings(1));
    check_close("dx", d_dx.get(), dx, after_roundings(3));           // logits, dlogits, dx
    check_close("dwte", d_dwte.get(), dwte, after_roundings(2));
}

TEST(classifier) {
    check_classifier(1, 1, 8, 61);
    check_classifier(7, 3, 24, 61);
    check_classifier(33, 33, 40, 130);
    check_classifier(65, 32, 16, 200);
}

// GPT-2 124M with 64 sequences on an H100: two waves of tiles, counted and not allocated.
TEST(logits_fill_whole_waves) {
    static const Config gpt2 = { 12, 12, 768, 50257, 1024, 0 };
    ModelSpec spec = { gpt2, 64, 1024, TRAIN, RECOMPUTE_NONE, Sharing(), 132 };
    Memory mem;
    size_t rows = sizeof(real) < sizeof(float) ? 11264 : 5632, row = 50304 * sizeof(real);
    size_t dfc = 65536 * 4*768 * sizeof(real), next = 50304 * sizeof(float);
    model_count(&mem, &spec);
    CHECK_MSG(mem.bytes[MEM_LOGITS] == rows*row + next && rows*row > dfc, "%zu bytes of logits",
              mem.bytes[MEM_LOGITS]);
}

// On an H100: LayerNorm's blocks are one wave, and two rows of logits share a multiprocessor.
TEST(grids_are_whole_waves) {
    cudaDeviceProp h100 = {};
    h100.multiProcessorCount = 132;
    h100.sharedMemPerMultiprocessor = 228 << 10;
    h100.sharedMemPerBlockOptin = 227 << 10;
    NormGrid d12 = layernorm_grid(65536, 768, &h100), d48 = layernorm_grid(65536, 1600, &h100);
    CHECK_MSG(d12.blocks == norm_blocks(norm_kept(768)) * 132 && d12.warps == 8, "%d blocks",
              d12.blocks);
    CHECK_MSG(d48.blocks == 132 && d48.warps == 8, "%d blocks of %d warps", d48.blocks, d48.warps);
    for (int Vp : { 50304, 100032 }) {
        XentGrid xent = xent_grid(Vp, &h100);
        CHECK_MSG(XENT_BLOCKS * (xent.bytes + BLOCK_SHARED) <= h100.sharedMemPerMultiprocessor
                  && (xent.kept == Vp) == (Vp*sizeof(real) < 110 << 10), "%d kept", xent.kept);
    }
}

// ---- the whole model ----

// Two models of one size, with the same parameters.
typedef struct { Model m; CModel *c; Floats start; } Twins;
static const Config small = { 2, 3, 24, 61, 16, 0 };            // heads of 8
static const Config wide = { 2, 2, 128, 300, 160, 0 };          // heads of 64
static const float adamw[5] = { 1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f };
static const AdamW adamw_options = { adamw[0], adamw[1], adamw[2], adamw[3], adamw[4], 1, 1 };

static Slice whole_bucket(const Model *m, int b) { return { 0, gpt2_bucket(&m->padded, b).count }; }

// A flat buffer of the CPU to the GPU, whose own pads the vocabulary.
static void send(float *flat, const float *from, const Model *m) {
    for (int b = 0; b < gpt2_n_buckets(&m->c); b++)
        bucket_copy(flat + gpt2_bucket(&m->padded, b).begin,
                    (float *)from + gpt2_bucket(&m->c, b).begin, b, whole_bucket(m, b), &m->zero,
                    cudaMemcpyHostToDevice);
}

// A model of one rank alone.
static void model_open(Model *m, const Config *c, int B, int T, Recompute recompute) {
    ModelSpec spec = { *c, B, T, TRAIN, recompute, Sharing(),
                       gpu.properties.multiProcessorCount };
    model_init(m, &spec, &gpu);
}

// As they are initialised, and moved a little, so that no gain is 1 and no bias 0.
static void twins_open(Twins *t, const Config *c, int B, int T, Recompute recompute) {
    t->c = c_model_open(c, B, T, 5);
    model_open(&t->m, c, B, T, recompute);
    Rng moved = rng_make(6, 0);
    float *p = c_model_params(t->c);
    size_t n = gpt2_n_params(c);
    for (size_t i = 0; i < n; i++)
        p[i] = (float)(real)(float)(p[i] + 0.05*rng_normal(&moved));
    t->start.assign(p, p + n);
    send(t->m.zero.masters, p, &t->m);
    zero_loaded(&t->m.zero);
}

static void twins_close(Twins *t) {
    model_free(&t->m);
    c_model_close(t->c);
}

// A flat buffer of the GPU as the CPU has it, without the rows that pad the vocabulary.
static Floats fetch(const Model *m, float *flat) {
    Floats x(gpt2_n_params(&m->c));
    for (int b = 0; b < gpt2_n_buckets(&m->c); b++)
        bucket_copy(flat + gpt2_bucket(&m->padded, b).begin, x.data() + gpt2_bucket(&m->c, b).begin,
                    b, whole_bucket(m, b), &m->zero, cudaMemcpyDeviceToHost);
    return x;
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
    zero_wait_grads(&m->zero);
    gradients_squares(m);
    totals_collect(m);
    gradients_clip(m, limit);
    model_update(m, adamw_at(step));
    return totals_receive(m);
}

// Over a whole model, errors of different roundings are as often of one sign as of the other and
// add up in squares. A block rounds 12 tensors forward and about as many backward.
static double after_blocks(int L) {
    return 1e-5 + (sizeof(real) < sizeof(float) ? sqrt(24.0*L) / 256.0 : 0.0);
}

// The largest relative error of a tensor. Adding a constant to every key changes no softmax, so the
// K part of qkv_b has no gradient but rounding, which AdamW divides by itself: it is left out.
static double worst_tensor(const Config *c, Floats ours, Floats theirs, char *name) {
    double most = 0.0;
    for (int i = 0; i < gpt2_n_tensors(c); i++) {
        Tensor t = gpt2_tensor(c, i);
        for (int k = c->C; t.kind == QKV_B && k < 2*c->C; k++)
            ours[t.offset + k] = theirs[t.offset + k] = 0.0f;
        double error = relative_error(&ours[t.offset], &theirs[t.offset], t.count);
        if (!(error <= most)) {
            most = error;
            strcpy(name, t.key);
        }
    }
    return most;
}

static void forward_backward(Model *m, const Ints &inputs, const Ints &targets, int B, int T) {
    clear_grads(m);
    model_forward(m, inputs.data(), B, T);
    model_backward(m, targets.data(), 1.0f / (float)(B*T), B, T);
}

static double c_forward_backward(CModel *m, const Ints &inputs, const Ints &targets, int B, int T) {
    c_clear_grads(m);
    return c_model_backward(m, inputs.data(), targets.data(), 1.0f / (float)(B*T), B, T) / (B*T);
}

static void check_model(const Config *c, int B, int T, Recompute recompute) {
    Twins t;
    char where[48] = "";
    twins_open(&t, c, B, T, recompute);
    Ints inputs = random_tokens(B*T, c->V), targets = random_tokens(B*T, c->V);
    forward_backward(&t.m, inputs, targets, B, T);
    Totals totals = totals_of(&t.m);
    double loss = totals.loss / (B*T), c_loss = c_forward_backward(t.c, inputs, targets, B, T);
    double norm = sqrt(totals.squares), c_norm = c_gradients_norm(t.c);
    double bound = after_blocks(c->L);
    Floats c_grads(c_model_grads(t.c), c_model_grads(t.c) + gpt2_n_params(c)), each(B*T, NAN);
    double error = worst_tensor(c, fetch(&t.m, t.m.zero.grads), c_grads, where);
    printf("    C=%d, T=%d: loss %.1g, norm %.1g, gradients %.1g at worst, in %s\n", c->C, T,
           fabs(loss/c_loss - 1), fabs(norm/c_norm - 1), error, where);
    shape_is("B=%d T=%d C=%d", B, T, c->C);
    check_near("loss", loss, c_loss, after_roundings(1));
    check_near("norm", norm, c_norm, bound);
    check_error(where, error, bound);
    double again = model_loss(&t.m, each.data(), targets.data(), (size_t)B*T) / (B*T);
    check_near("loss forward, and both ways", again, loss, 1e-6);
    double sum = 0.0;
    for (float x : each) sum += x;
    check_near("each token's loss", sum / (B*T), again, 1e-12);
    twins_close(&t);
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
    CUDA_CHECK(cudaMemcpy(read.data(), m->zero.params, n * sizeof(real),
                          cudaMemcpyDeviceToHost));
    CUDA_CHECK(cudaMemcpy(masters.data(), m->zero.masters, n * 4, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < n; i++)
        CHECK_MSG((float)read[i] == (float)(real)masters[i], "parameter %zu is stale", i);
}

static bool same_numbers(const float *a, const float *b, size_t n) {
    return memcmp(a, b, n * sizeof *a) == 0;
}

static bool same_bits(const Floats &a, const Floats &b) {
    return a.size() == b.size() && same_numbers(a.data(), b.data(), a.size());
}

// What files see of a model: the C trainer's fresh parameters, and each of the flat buffers, bucket
// by bucket, without the rows that pad the vocabulary; those stay zero on the GPU.
TEST(buckets) {
    Model m;
    shape_is("V=%d, padded to %d", small.V, padded_vocab(small.V));
    CModel *c = c_model_open(&small, 1, 1, 5);
    model_open(&m, &small, 1, 1, RECOMPUTE_NONE);
    Zero *z = &m.zero;
    size_t n = gpt2_n_params(&small);
    for (int b = 0; b < gpt2_n_buckets(&small); b++) {
        gpt2_init_bucket(bucket_place(z, KEPT_WEIGHTS, b), &small, b, 5);
        bucket_keep(z, KEPT_WEIGHTS, b);
    }
    zero_loaded(z);
    Floats fresh = fetch(&m, z->masters);
    CHECK_MSG(same_numbers(fresh.data(), c_model_params(c), n), "parameters differ");
    check_params_are_rounded(&m);

    Floats numbers[3];
    float *flat[3] = { z->masters, z->adam_m, z->adam_v };
    size_t padded = gpt2_n_params(&m.padded), words = (size_t)small.V*small.C;
    for (int i = 0; i < 3; i++) {
        numbers[i] = random_floats(n, 1, 0);
        send(flat[i], numbers[i].data(), &m);
    }
    for (int what = KEPT_WEIGHTS; what <= KEPT_EXP_AVG_SQ; what++) {
        for (int b = 0; b < gpt2_n_buckets(&small); b++) {
            Range range = gpt2_bucket(&small, b);
            const float *kept = bucket_get(z, (Kept)what, -1, b);
            CHECK_MSG(same_numbers(kept, &numbers[what][range.begin], range.count),
                      "bucket %d of kept %d", b, what);
        }
        Floats raw(padded);
        size_t behind = padded - n;
        CUDA_CHECK(cudaMemcpy(raw.data(), flat[what], padded * 4, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < behind; i++) CHECK_MSG(raw[words + i] == 0.0f, "padding is written");
        CHECK(same_numbers(&raw[words + behind], &numbers[what][words], n - words));
    }
    model_free(&m);
    c_model_close(c);
}

// AdamW alone: both get the same gradients, ten times, clipped to 0.7 of a norm that two ranks have
// parts of. Masters and moments are fp32 in every build.
TEST(adamw_updates) {
    Twins t;
    Array<double> ranks(2 * sizeof(Totals) / sizeof(double));
    Array<float> g_scale(1);
    twins_open(&t, &small, 1, 1, RECOMPUTE_NONE);
    shape_is("ten steps");
    Zero *z = &t.m.zero;
    size_t n = gpt2_n_params(&small);
    for (int step = 1; step <= 10; step++) {
        Floats g(n);
        for (float &x : g) x = (float)rng_normal(&rng);
        memcpy(c_model_grads(t.c), g.data(), n * sizeof(float));
        send(z->grads, g.data(), &t.m);
        double norm = sqrt(totals_of(&t.m).squares), c_norm = c_gradients_norm(t.c);
        check_near("norm", norm, c_norm, 1e-12);
        Totals parts[2] = { { 0, 0.25*norm*norm, { 0 }, 0 }, { 0, 0.75*norm*norm, { 0 }, 0 } };
        CUDA_CHECK(cudaMemcpy(ranks.data, parts, sizeof parts, cudaMemcpyHostToDevice));
        clip_kernel<<<1, 1, 0, z->stream>>>(g_scale, (Totals *)ranks.data, 2, 0.7*norm);
        adamw_launch(z, adamw_at(step), g_scale);
        c_model_update(t.c, adamw, 0.7f, step);
    }
    const float *c[3] = { c_model_params(t.c), c_model_m(t.c), c_model_v(t.c) };
    const Floats ours[3] = { fetch(&t.m, z->masters), fetch(&t.m, z->adam_m),
                             fetch(&t.m, z->adam_v) };
    for (int i = 0; i < 3; i++)
        check_close("parameters, m, v", ours[i], Floats(c[i], c[i] + n), 1e-6);
    Floats moved(n), c_moved(n);
    for (size_t i = 0; i < n; i++) {
        moved[i] = ours[0][i] - t.start[i];
        c_moved[i] = c[0][i] - t.start[i];
    }
    check_close("what parameters moved by", moved, c_moved, 1e-4);   // 2^-24 of 1, beside 0.01
    check_params_are_rounded(&t.m);
    twins_close(&t);
}

// SGD likewise; a gradient that is not finite changes nothing.
TEST(sgd_updates) {
    Twins t;
    Array<double> there(sizeof(Totals) / sizeof(double));
    Array<float> g_scale(1);
    twins_open(&t, &small, 1, 1, RECOMPUTE_NONE);
    shape_is("three steps");
    Zero *z = &t.m.zero;
    size_t n = gpt2_n_params(&small);
    AdamW o = { 0.1f, 0.0f, 0.0f, 0.0f, 0.1f, 1, 1 };
    for (int step = 0; step < 4; step++) {
        Floats g(n);
        for (float &x : g) x = (float)rng_normal(&rng);
        memcpy(c_model_grads(t.c), g.data(), n * sizeof(float));
        send(z->grads, g.data(), &t.m);
        double norm = step == 3 ? NAN : c_gradients_norm(t.c);
        Totals totals = { 0, norm*norm, { 0 }, 0 };
        CUDA_CHECK(cudaMemcpy(there.data, &totals, sizeof totals, cudaMemcpyHostToDevice));
        clip_kernel<<<1, 1, 0, z->stream>>>(g_scale, (Totals *)there.data, 1, 0.7*norm);
        sgd_launch(z, o, g_scale);
        if (step < 3) c_model_sgd(t.c, o.lr, o.weight_decay, 0.7f);
    }
    Floats moved = fetch(&t.m, z->masters), c_moved(n);
    for (size_t i = 0; i < n; i++) {
        moved[i] -= t.start[i];
        c_moved[i] = c_model_params(t.c)[i] - t.start[i];
    }
    check_close("what parameters moved by", moved, c_moved, 1e-5);
    check_params_are_rounded(&t.m);
    twins_close(&t);
}

// One update of the same gradients: the optimizer, which clips them, has the bits of AdamW without a
// limit on gradients that the CPU has scaled. A gradient that is not finite changes nothing.
static void check_clip(double clip, float g_scale, float spoiled) {
    Twins t[2];
    Floats g(gpt2_n_params(&small)), after[2][3];
    Array<float> one(Floats(1, 1.0f));
    for (float &x : g) x = (float)rng_normal(&rng);
    if (!isfinite(spoiled)) g[g.size() / 2] = spoiled;
    for (int i = 0; i < 2; i++) {
        twins_open(&t[i], &small, 1, 1, RECOMPUTE_NONE);
        Zero *z = &t[i].m.zero;
        send(z->grads, g.data(), &t[i].m);
        double squares = totals_of(&t[i].m).squares, norm = sqrt(squares);
        if (i == 0) {
            Totals totals = update_end(&t[i].m, 1, clip * norm);
            CHECK(isfinite(spoiled) ? totals.squares == squares : !isfinite(totals.squares));
        } else if (isfinite(spoiled)) {
            for (float &x : g) x *= g_scale;
            send(z->grads, g.data(), &t[i].m);
            adamw_launch(z, adamw_options, one);
        }
        float *flat[3] = { z->masters, z->adam_m, z->adam_v };
        for (int k = 0; k < 3; k++) after[i][k] = fetch(&t[i].m, flat[k]);
        check_params_are_rounded(&t[i].m);
    }
    CHECK_MSG((after[0][0] == t[0].start) == !isfinite(spoiled), "clip %g: what moved?", clip);
    for (int k = 0; k < 3; k++)
        CHECK_MSG(after[0][k] == after[1][k], "clip %g, %g: other bits in %d", clip, spoiled, k);
    for (Twins &twins : t) twins_close(&twins);
}

TEST(clipping) {
    check_clip(0.0, 1.0f, 0.0f);                     // no limit
    check_clip(2.0, 1.0f, 0.0f);                     // of twice the norm
    check_clip(0.25, 0.25f, 0.0f);
    check_clip(0.7, 0.7f, 0.0f);
    check_clip(0.0, 1.0f, NAN);
    check_clip(0.0, 1.0f, INFINITY);
}

static float clip_scale(double norm) { return norm > 1.0 ? (float)(1.0 / norm) : 1.0f; }

static double update(Model *m, const Ints &inputs, const Ints &targets, int B, int T, int step) {
    forward_backward(m, inputs, targets, B, T);
    return update_end(m, step, 1.0).loss / (B*T);
}

static double c_update(CModel *m, const Ints &inputs, const Ints &targets, int B, int T, int step) {
    double loss = c_forward_backward(m, inputs, targets, B, T);
    c_model_update(m, adamw, clip_scale(c_gradients_norm(m)), step);
    return loss;
}

// Ten updates on two batches in turn. Each moves a parameter by about 1e-3 whatever the size of its
// gradient, so where that is smaller than its error, the twins may go opposite ways. If the error
// is a part e of the gradient's norm, that happens to a part e of the parameters, each then twice
// its way apart: 2 sqrt(e) in all, by the norm of what they moved. In fp32 few are so small.
TEST(ten_updates) {
    enum { B = 5, T = 11 };
    Twins t;
    char where[48] = "";
    twins_open(&t, &small, B, T, RECOMPUTE_NONE);
    Ints tokens[2] = { random_tokens(B*T, small.V), random_tokens(B*T, small.V) };
    for (int step = 1; step <= 10; step++) {
        double loss = update(&t.m, tokens[step % 2], tokens[0], B, T, step);
        double c_loss = c_update(t.c, tokens[step % 2], tokens[0], B, T, step);
        shape_is("step %d", step);
        check_near("loss", loss, c_loss, after_roundings(1));
    }
    Floats moved = fetch(&t.m, t.m.zero.masters), c_moved(moved.size());
    for (size_t i = 0; i < moved.size(); i++) {
        moved[i] -= t.start[i];
        c_moved[i] = c_model_params(t.c)[i] - t.start[i];
    }
    double error = worst_tensor(&small, moved, c_moved, where);
    double all = relative_error(moved.data(), c_moved.data(), moved.size());
    printf("    moved %.1g otherwise, at worst %.1g, in %s\n", all, error, where);
    double bound = sizeof(real) == sizeof(float) ? 1e-4 : 2.0 * sqrt(after_blocks(small.L));
    check_error(where, error, bound);
    twins_close(&t);
}

// The parameters and the last gradients of three updates.
static Floats three_updates(const Config *c, int B, int T, Recompute recompute) {
    Twins t;
    Rng rng_before = rng;
    twins_open(&t, c, B, T, recompute);
    Ints inputs = random_tokens(B*T, c->V), targets = random_tokens(B*T, c->V);
    for (int step = 1; step <= 3; step++) update(&t.m, inputs, targets, B, T, step);
    Floats all = fetch(&t.m, t.m.zero.masters), grads = fetch(&t.m, t.m.zero.grads);
    all.insert(all.end(), grads.begin(), grads.end());
    twins_close(&t);
    rng = rng_before;
    return all;
}

// With EMULATOR_SHUFFLE threads run in another order each time: what depended on it would show.
TEST(same_bits_each_time) {
    Floats first = three_updates(&small, 5, 11, RECOMPUTE_NONE);
    CHECK(three_updates(&small, 5, 11, RECOMPUTE_NONE) == first);
    first = three_updates(&wide, 2, 150, RECOMPUTE_NONE);
    CHECK(three_updates(&wide, 2, 150, RECOMPUTE_NONE) == first);
}

TEST(recomputing_changes_no_bit) {
    CHECK(three_updates(&small, 5, 11, RECOMPUTE_BLOCK)
          == three_updates(&small, 5, 11, RECOMPUTE_NONE));
    static const Config deep = { 4, 2, 32, 61, 64, 0 };
    CHECK(three_updates(&deep, 3, 33, RECOMPUTE_BLOCK)
          == three_updates(&deep, 3, 33, RECOMPUTE_NONE));
}

// Updates of two, three, one and two micro-batches, so that the scale changes; the distinct tokens
// grow in number. The third update has a smaller micro-batch. After each update the model is
// evaluated. Returns every loss, the parameters and the last gradients.
static Floats four_updates(const Config *c, Recompute recompute, Sharing sharing, bool graphs) {
    enum { B = 3, T = 7 };
    Model m;
    ModelSpec spec = { *c, B, T, TRAIN, recompute, sharing, gpu.properties.multiProcessorCount };
    Floats all;
    gpu.graphs = graphs;
    rng = rng_make(7, 0);
    model_init(&m, &spec, &gpu);
    send(m.zero.masters, random_floats(gpt2_n_params(c), 0.05, 0.1).data(), &m);
    zero_loaded(&m.zero);
    for (int step = 1; step <= 4; step++) {
        int micro_batches = 1 + step % 3, b = step == 3 ? B - 1 : B, t = step == 3 ? T - 2 : T;
        m.zero.correct_v = (float)(1 / (1 - pow(adamw_options.beta2, step)));
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
        model_forward(&m, seen.data(), 1, T);
        all.push_back((float)model_loss(&m, each.data(), seen.data(), T));
    }
    for (float *flat : { m.zero.masters, m.zero.grads }) {
        Floats x = fetch(&m, flat);
        all.insert(all.end(), x.begin(), x.end());
    }
    bool captured = m.graph.exec != NULL;
    bool wanted = graphs && sharing.levels == 0 && !sharing.measure;
    CHECK_MSG(captured == wanted, "%s", captured ? "a graph" : "no graph");
    if (captured) printf("    %zu launches of %d layers are one\n", m.graph.launches, c->L);
    model_free(&m);
    gpu.graphs = false;
    return all;
}

static void check_graph(Recompute recompute, Sharing sharing) {
    static const Config deep = { 3, 2, 16, 61, 8, 0 };
    Floats with = four_updates(&deep, recompute, sharing, true);
    CHECK_MSG(same_bits(with, four_updates(&deep, recompute, sharing, false)),
              "recompute %d, measure %d, levels %d: other bits", recompute, sharing.measure,
              sharing.levels);
}

TEST(a_graph_changes_no_bit) {
    Sharing measured = Sharing(), exact = Sharing();
    measured.measure = true;                         // the noise scale and exact sums: no graph
    exact.levels = 2;
    check_graph(RECOMPUTE_NONE, Sharing());
    check_graph(RECOMPUTE_BLOCK, Sharing());
    check_graph(RECOMPUTE_NONE, measured);
    check_graph(RECOMPUTE_NONE, exact);
}

// Fifty updates on fresh batches of a text that can be learned: the same losses as the CPU's.
TEST(fifty_losses_are_the_cpus) {
    enum { B = 4, T = 16 };
    Twins t;
    double most = 0.0, first = 0.0, loss = 0.0;
    twins_open(&t, &small, B, T, RECOMPUTE_NONE);
    shape_is("fifty updates");
    for (int step = 1; step <= 50; step++) {
        Ints inputs = random_tokens(B*T, small.V), targets(B*T);
        for (int i = 0; i < B*T; i++) targets[i] = (inputs[i]*3 + 1) % 11;
        loss = update(&t.m, inputs, targets, B, T, step);
        double c_loss = c_update(t.c, inputs, targets, B, T, step);
        most = fmax(most, fabs(loss - c_loss) / c_loss);
        if (step == 1) first = loss;
    }
    printf("    from %.4f to %.4f, apart by %.1g at most\n", first, loss, most);
    CHECK_MSG(loss < first - 1.0, "it learned nothing: %g", loss);
    check_error("losses", most, sizeof(real) == sizeof(float) ? 1e-4 : 1.0/256);
    twins_close(&t);
}

// Generation: rows at a time, with what earlier calls left in the cache, against the CPU's whole
// pass.
TEST(cached_rows_equal_a_full_pass) {
    static const int ends[] = { 1, 2, 5, 6, 7, 16 };     // rows at a time: 1, 1, 3, 1, 1, 9
    Twins t;
    twins_open(&t, &small, 1, 16, RECOMPUTE_NONE);
    Ints text = random_tokens(16, small.V);
    for (int i = 0, done = 0; i < 6; done = ends[i++]) {
        const float *ours = model_extend(&t.m, text.data(), ends[i], done);
        const float *theirs = c_model_logits(t.c, text.data(), ends[i]);
        shape_is("%d tokens, %d of them new", ends[i], ends[i] - done);
        check_close("logits", Floats(ours, ours + small.V), Floats(theirs, theirs + small.V),
                    after_blocks(small.L));
    }
    twins_close(&t);
}

// Twice over one bucket, whose pieces' sums go on growing; with `sum` it is added there, and gone
// then.
static void check_measure(size_t n, bool sums) {
    size_t pieces = (n + ZERO_MEASURED - 1) / ZERO_MEASURED;
    Floats x = random_floats(n, 1, 0), sum = random_floats(n, 1, 0);
    std::vector<double> squares(pieces, 0.5), ours(pieces);
    Array<float> d_x(x), d_sum(sum);
    Array<double> d_squares(squares);
    Zero z;
    memset(&z, 0, sizeof z);
    z.stream = gpu.stream;
    z.partials = d_squares;
    for (int time = 0; time < 2; time++) {
        floats_measure(&z, sums ? d_sum.data : NULL, d_x, n);
        for (size_t k = 0; k < pieces; k++) {
            size_t at = k*ZERO_MEASURED, count = min_size(n - at, ZERO_MEASURED);
            squares[k] += c_floats_measure(sums ? &sum[at] : NULL, &x[at], count);
        }
    }
    CHECK_MSG(d_x.get() == x && d_sum.get() == sum, "%zu elements: other bits", n);
    d_squares.get();                                 // as floats: it looks behind the end
    CUDA_CHECK(cudaMemcpy(ours.data(), d_squares.data, pieces * sizeof ours[0],
                          cudaMemcpyDeviceToHost));
    for (size_t k = 0; k < pieces; k++)
        CHECK_MSG(fabs(ours[k] - squares[k]) <= 1e-12*squares[k], "%zu elements, piece %zu: %.15g, "
                  "not %.15g", n, k, ours[k], squares[k]);
}

TEST(small_gradients) {
    for (size_t packs : { 1, 255, 256*3 + 1, ZERO_MEASURED/PACK, 3*ZERO_MEASURED/PACK + 5 })
        for (int sums = 0; sums <= 1; sums++) check_measure(packs*PACK, sums);
}

// In Adam's metric, twice over one bucket.
static void check_weigh(size_t n) {
    size_t pieces = (n + ZERO_MEASURED - 1) / ZERO_MEASURED;
    Floats x = random_floats(n, 1, 0), v = random_floats(n, 1, 0);
    for (float &vi : v) vi = vi * vi;
    std::vector<double> squares(pieces, 0.5), ours(pieces);
    Array<float> d_x(x), d_v(v);
    Array<double> d_squares(squares);
    Zero z;
    memset(&z, 0, sizeof z);
    z.stream = gpu.stream;
    z.partials = d_squares;
    z.correct_v = 1.7f;
    for (int time = 0; time < 2; time++) {
        floats_weigh(&z, SMALLS, d_x, d_v, n);
        for (size_t k = 0; k < pieces; k++) {
            size_t at = k*ZERO_MEASURED, count = min_size(n - at, ZERO_MEASURED);
            squares[k] += c_floats_weigh(&x[at], &v[at], 1.7f, count);
        }
    }
    CUDA_CHECK(cudaMemcpy(ours.data(), d_squares.data, pieces * sizeof ours[0],
                          cudaMemcpyDeviceToHost));
    for (size_t k = 0; k < pieces; k++)              // each term is rounded to fp32
        CHECK_MSG(fabs(ours[k] - squares[k]) <= 1e-6*squares[k], "%zu elements, piece %zu: %.15g, "
                  "not %.15g", n, k, ours[k], squares[k]);
}

TEST(small_gradients_in_adams_metric) {
    for (size_t packs : { 1, 255, 256*3 + 1, 3*ZERO_MEASURED/PACK + 5 }) check_weigh(packs*PACK);
}

// ---- what several ranks need of one GPU; tests/test_cuda_ranks.sh runs several ----

// y = a x + b y against the C formula. When a and b are powers of two, or 0, the products are exact
// and the sum is rounded once: the same bits. With b = 0 y holds NaNs before, to be forgotten.
static void check_axpby(size_t n, float a, float b, bool exact) {
    shape_is("n=%zu, a=%g, b=%g", n, a, b);
    Floats x = random_floats(n, 1, 0), y = b == 0.0f ? Floats(n, NAN) : random_floats(n, 1, 0);
    Array<float> d_x(x), d_y(y);
    floats_axpby(d_y, a, d_x, b, n, gpu.stream);
    for (size_t i = 0; i < n; i++)
        y[i] = b == 0.0f ? a * x[i] : b == 1.0f ? y[i] + a * x[i] : b * y[i] + a * x[i];
    CHECK(same_bits(d_x.get(), x));                  // left alone
    check_close("y", d_y.get(), y, 1e-6);
    CHECK_MSG(!exact || same_bits(d_y.get(), y), "%s: other bits", shape);
}

TEST(axpby) {
    for (size_t n : { (size_t)PACK, (size_t)PACK*256, (size_t)PACK*257 }) {
        for (float b : { 0.0f, 1.0f, 0.5f, -2.0f })
            for (float a : { 1.0f, -1.0f, 0.25f }) check_axpby(n, a, b, true);
        for (float b : { 0.0f, 1.0f, 0.9f, -0.3f })
            for (float a : { 0.7f, -0.1f }) check_axpby(n, a, b, false);
    }
}

// The kernel against tree_sum of dev/ranks/tree.h, bit for bit. A buffer begins `shift` elements
// after a multiple of 16 bytes. Scales are powers of two: another product, added at once, could be
// rounded once or twice.
template <class T> static void check_tree_sum(int terms, size_t n, int shift, CommMode mode) {
    CommType type = sizeof(T) == 4 ? COMM_FP32 : COMM_BF16;
    float scale = mode == COMM_ADD ? 1.0f : 0.25f;
    std::vector<T> numbers(terms * (n + 64));
    for (T &x : numbers) {
        float f = (float)rng_normal(&rng) * ldexpf(1.0f, (int)rng_below(&rng, 20));
        if (type == COMM_FP32) memcpy(&x, &f, sizeof x);
        else x = (T)bf16_narrow(f);
    }
    std::vector<const void *> on_cpu(terms), on_gpu(terms);
    T *copy;
    size_t bytes = numbers.size() * sizeof(T);
    CUDA_CHECK(cudaMalloc((void **)&copy, bytes));
    CUDA_CHECK(cudaMemcpy(copy, numbers.data(), bytes, cudaMemcpyHostToDevice));
    for (int k = 0; k < terms; k++) {
        size_t begin = k * (n + 64) / 16 * 16 + (k == terms - 1 ? shift : 0);
        on_cpu[k] = &numbers[begin];
        on_gpu[k] = copy + begin;
    }
    Floats out = random_floats(n, 1, 0);
    Array<float> d_out(out);
    tree_sum(out.data(), on_cpu.data(), terms, scale, type, mode, n);
    gpu_sum(d_out, on_gpu.data(), terms, scale, type, mode, n, gpu.stream);
    CHECK_MSG(same_bits(d_out.get(), out), "%d terms of %zu %s numbers, from %d on: other bits",
              terms, n, type == COMM_FP32 ? "fp32" : "bf16", shift);
    CUDA_CHECK(cudaFree(copy));
}

TEST(sums_along_the_tree) {
    static const size_t counts[] = { 1, 3, 4, 7, 8, 9, 64, 1023, 2051 };
    for (int terms = 1; terms <= 9; terms++)
        for (size_t n : counts)
            for (int shift = 0; shift <= 1; shift++) {
                check_tree_sum<float>(terms, n, shift, COMM_WRITE);
                check_tree_sum<float>(terms, n, shift, COMM_ADD);
                check_tree_sum<uint16_t>(terms, n, shift, COMM_WRITE);
                check_tree_sum<uint16_t>(terms, n, shift, COMM_ADD);
            }
    check_tree_sum<float>(COMM_MAX_RANKS, 37, 0, COMM_WRITE);
    check_tree_sum<uint16_t>(COMM_MAX_RANKS - 1, 37, 0, COMM_ADD);
    Floats x = random_floats(100, 1, 0), y = random_floats(100, 1, 0);
    Array<float> d_x(x), d_y(y);
    const void *on_cpu[] = { y.data(), x.data() }, *on_gpu[] = { d_y.data, d_x.data };
    tree_sum(x.data(), on_cpu, 2, 1.0f, COMM_FP32, COMM_WRITE, 100);             // in place
    gpu_sum(d_x, on_gpu, 2, 1.0f, COMM_FP32, COMM_WRITE, 100, gpu.stream);
    CHECK(same_bits(d_x.get(), x));
    gpu_sum(d_x, on_gpu, 2, 1.0f, COMM_FP32, COMM_WRITE, 0, gpu.stream);
    CHECK(same_bits(d_x.get(), x));
}

// Numbers that are hard to round: ties, the largest, what overflows, the smallest, infinities, and
// not-a-number with its payload in the half that is cut off.
TEST(bf16_for_the_way) {
    static const uint32_t hard[] = {
        0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F7F0000, 0x7F7FFFFF, 0x00000001,
        0x00008000, 0x00018000, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFC12345, 0x80000000,
    };
    for (size_t n : { 1, 7, 8, 9, 14, 1000, 1027 })
        for (size_t shift = 0; shift <= 1; shift++) {
            Floats x = random_floats(n + shift, 3, 0), back(n), ours(n);
            for (float &v : x) v += (float)rng_normal(&rng) * 1e-3f;
            for (size_t i = 0; i < n; i++)
                if (i < 14) memcpy(&x[i + shift], &hard[i], 4);
            std::vector<uint16_t> half(n);
            bf16_narrow_all(half.data(), x.data() + shift, n);
            Array<float> d_x(n + shift), d_back(n);
            Array<uint16_t> d_half(n);
            CUDA_CHECK(cudaMemcpy(d_x.data, x.data(), x.size() * 4, cudaMemcpyHostToDevice));
            gpu_narrow(d_half, d_x.data + shift, n, gpu.stream);
            Floats got = d_half.get();               // 16 bits, as numbers
            for (size_t i = 0; i < n; i++)
                CHECK_MSG(got[i] == (float)half[i], "narrow, %zu of %zu: %04x, not %04x", i, n,
                          (unsigned)got[i], half[i]);
            bf16_widen_all(back.data(), half.data(), n);
            gpu_widen(d_back, d_half, n, gpu.stream);
            CHECK_MSG(same_bits(d_back.get(), back), "widen %zu: other bits", n);
        }
}

// Each rank of three, at each stage: what it takes of a checkpoint's buckets lies where its chunks
// say, and all chunks together are all parameters, once. Rows that pad the vocabulary are 0.
TEST(slices_of_a_checkpoint) {
    static const Config odd = { 2, 1, 8, 61, 5, 0 };
    const int ranks = 3;
    for (int stage = 0; stage <= 3; stage++) {
        std::vector<int> owners(gpt2_n_params(&odd));
        Floats file(gpt2_n_params(&odd));
        for (size_t i = 0; i < file.size(); i++) file[i] = (float)(i + 1);
        for (int rank = 0; rank < ranks; rank++) {
            Comm comm;
            memset(&comm, 0, sizeof comm);
            comm.rank = rank;
            comm.size = ranks;
            Sharing sharing = { &comm, NULL, stage, COMM_FP32, 0, false, false, false, false,
                                false };
            ModelSpec spec = { odd, 1, 5, TRAIN, RECOMPUTE_NONE, sharing, 0 };
            Model m;
            model_init(&m, &spec, &gpu);
            Zero *z = &m.zero;
            for (int b = 0; b < gpt2_n_buckets(&odd); b++) {
                Range r = gpt2_bucket(&odd, b);
                for (Kept what : { KEPT_EXP_AVG, KEPT_WEIGHTS }) {
                    memcpy(bucket_place(z, what, b), &file[r.begin], r.count * sizeof(float));
                    bucket_keep(z, what, b);
                }
            }
            std::vector<Chunk> chunks(z->n_chunks);
            size_t moments = zero_moments_count(z);
            size_t masters = sizeof(real) < sizeof(float) ? moments : zero_params_count(z);
            Floats moment(moments), master(masters);
            CUDA_CHECK(cudaMemcpy(chunks.data(), z->chunks, chunks.size() * sizeof chunks[0],
                                  cudaMemcpyDeviceToHost));
            CUDA_CHECK(cudaMemcpy(moment.data(), z->adam_m, moments * 4, cudaMemcpyDeviceToHost));
            CUDA_CHECK(cudaMemcpy(master.data(), z->masters, masters * 4, cudaMemcpyDeviceToHost));
            size_t padding = 0;
            for (const Chunk &k : chunks)
                for (int i = 0; i < k.count; i++) {
                    size_t as_master = sizeof(real) < sizeof(float) ? k.moment : k.param;
                    float x = moment[k.moment + i];
                    CHECK_MSG(x == master[as_master + i], "stage %d: a master is %g, its moment %g",
                              stage, master[as_master + i], x);
                    if (x == 0.0f) padding++;
                    else owners[(size_t)x - 1]++;
                }
            size_t rows = (padded_vocab(61) - 61) * 8;
            CHECK_MSG(stage > 0 || padding == rows, "%zu of %zu numbers of padding", padding, rows);
            model_free(&m);
        }
        for (size_t i = 0; i < owners.size(); i++)
            CHECK_MSG(owners[i] == (stage == 0 ? ranks : 1), "stage %d: parameter %zu has %d "
                      "owners", stage, i, owners[i]);
    }
}

// DiLoCo's common step of one worker, by its formula, in fp32 as the CPU computes it.
TEST(outer_updates) {
    Sharing sharing = { &alone, NULL, 0, COMM_FP32, 0, true, false, false, false, false };
    ModelSpec spec = { small, 1, 1, TRAIN, RECOMPUTE_NONE, sharing, 0 };
    Model m;
    model_init(&m, &spec, &gpu);
    Zero *z = &m.zero;
    size_t n = gpt2_n_params(&small);
    shape_is("n=%zu", n);
    Floats outer = random_floats(n, 1, 0), p = random_floats(n, 1, 0), v = random_floats(n, 1, 0);
    Floats delta(n), nan(n, NAN);
    send(z->masters, outer.data(), &m);
    send(z->outer_params, nan.data(), &m);
    diloco_begin(z);
    CHECK(same_bits(fetch(&m, z->outer_params), outer));
    send(z->masters, p.data(), &m);
    send(z->outer_momentum, v.data(), &m);
    send(z->grads, nan.data(), &m);                  // they make room for the differences
    diloco_end_round(z, 0.0f, 0.0f);                 // nothing moves: back to the round's begin
    for (size_t i = 0; i < n; i++) delta[i] = outer[i] - p[i];
    CHECK(same_bits(fetch(&m, z->grads), delta));
    CHECK(same_bits(fetch(&m, z->outer_momentum), delta));
    CHECK(same_bits(fetch(&m, z->masters), outer));

    send(z->masters, p.data(), &m);
    send(z->outer_momentum, v.data(), &m);
    diloco_end_round(z, 0.7f, 0.9f);
    for (size_t i = 0; i < n; i++) {
        v[i] = 0.9f * v[i] + delta[i];
        outer[i] -= 0.7f * (delta[i] + 0.9f * v[i]);
    }
    check_close("momentum", fetch(&m, z->outer_momentum), v, 1e-6);
    check_close("outer", fetch(&m, z->outer_params), outer, 1e-6);
    CHECK(same_bits(fetch(&m, z->masters), fetch(&m, z->outer_params)));
    check_params_are_rounded(&m);
    model_free(&m);
}

#include "real_shapes.cu"

// ---- which tests run: all, or those that are named ----

static int names;
static char **named;

static void run(const char *name, void (*body)(void)) {
    bool wanted = names == 0;
    for (int i = 0; i < names; i++) wanted = wanted || strcmp(named[i], name) == 0;
    if (!wanted) return;
    worst = 0.0;
    rng = rng_make(1, 0);
    test_run(name, body);
    if (worst > 0.0) printf("    errors up to %.2g of what they may be\n", worst);
}
#define RUN_NAMED(name) run(#name, name)

int main(int argc, char **argv) {
    names = argc - 1;
    named = argv + 1;
    alone.size = alone.local_size = 1;
    TrainOptions options;
    memset(&options, 0, sizeof options);
    machine_open(&gpu, &options, &alone);
    RUN_NAMED(embedding);
    RUN_NAMED(layernorm);
    RUN_NAMED(linear);
    RUN_NAMED(attention);
    RUN_NAMED(heads_in_groups);
    RUN_NAMED(attention_from_a_cache);
    RUN_NAMED(gelu);
    RUN_NAMED(linear_gelu);
    RUN_NAMED(tuner_takes_the_fastest);
    RUN_NAMED(tuner_does_without_epilogues);
#ifdef EMULATOR
    RUN_NAMED(epilogues_that_are_not_there);
    RUN_NAMED(bias_gradients_are_timed);
    RUN_NAMED(sums_in_place_round_nothing);
    RUN_NAMED(memory_is_left_to_others);
    RUN_NAMED(peak_of_the_fastest_algorithm);
#endif
    RUN_NAMED(choices_are_kept);
#ifndef PRECISION_FP32
    RUN_NAMED(attention_variants);
    RUN_NAMED(tuner_takes_the_fastest_variants);
#ifdef EMULATOR
    RUN_NAMED(variants_that_do_not_start);
#endif
    RUN_NAMED(variants_are_kept);
#endif
    RUN_NAMED(xent);
    RUN_NAMED(classifier);
    RUN_NAMED(logits_fill_whole_waves);
    RUN_NAMED(grids_are_whole_waves);
    RUN_NAMED(buckets);
    RUN_NAMED(loss_and_every_gradient);
    RUN_NAMED(adamw_updates);
    RUN_NAMED(sgd_updates);
    RUN_NAMED(clipping);
    RUN_NAMED(ten_updates);
    RUN_NAMED(same_bits_each_time);
    RUN_NAMED(recomputing_changes_no_bit);
    RUN_NAMED(a_graph_changes_no_bit);
    RUN_NAMED(fifty_losses_are_the_cpus);
    RUN_NAMED(cached_rows_equal_a_full_pass);
    RUN_NAMED(small_gradients);
    RUN_NAMED(small_gradients_in_adams_metric);
    RUN_NAMED(axpby);
    RUN_NAMED(sums_along_the_tree);
    RUN_NAMED(bf16_for_the_way);
    RUN_NAMED(slices_of_a_checkpoint);
    RUN_NAMED(outer_updates);
#ifndef EMULATOR
    if (names > 0)                               // minutes on a small GPU: by name only
#endif
    RUN_NAMED(real_shapes);
    machine_close(&gpu);
    return test_end();
}
