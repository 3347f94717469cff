// Part of test_gpt2.cu: the launchers at the shapes of real training. There cuBLASLt takes other
// kernels than at the small shapes of the other tests, and the CPU would take hours to follow. So
// results are compared
// - with double precision on the CPU, at random elements, rows or heads;
// - in full, with another way to compute the same on the GPU: attention in tiles with attention
//   without tensor cores, and each epilogue with a plain product and a kernel.
// Products run with the algorithm that the heuristic puts first, and again with the tuner's choice.
//
//     test_gpt2-bf16 real_shapes                                      GPT-2 124M, B=16, T=1024
//     REAL_SHAPES=2,40,2,2,96,500 test_gpt2-bf16 real_shapes          other B,T,L,NH,C,V
//
// Each comparison prints a line: the error that comes closest to its bound, the bound, and what the
// bound is made of. It goes on after an error, and fails at the end. An error of more than
// FAR_OFF (test_gpt2.cu) times its bound is a mistake of the program; less may be one of the bound,
// which no hardware has tried yet. A bound adds up
// - u for each rounding of a result that is stored, as a part of that result: 2^-8 in bf16 (half of
//   the distance of numbers with 8 significant bits), 2^-24 in fp32;
// - sum_error(K) for a sum of K terms in fp32, as a part of S, the root of the sum of squares.

#ifdef EMULATOR
enum { SAMPLES = 60, SAMPLED_ROWS = 8 };
#define REAL_SHAPES "2,40,2,2,96,500"
#else
enum { SAMPLES = 300, SAMPLED_ROWS = 8 };
#define REAL_SHAPES "16,1024,12,12,768,50257"
#endif

template <class T> static double rounding() { return sizeof(T) < sizeof(float) ? 0x1p-8 : 0x1p-24; }

// Sums of random terms stay below 3 S, S = sqrt(sum of squares), on their way. A tensor core adds
// 16 terms at a time, and may cut off up to 2^-23 of the sum so far, always towards zero.
// Additions one by one are off by as much either way, sqrt(K) in all. Partial sums that a split-K
// product rounds to bf16 are off by 1e-3 S: that is more, up to K = 40000.
static double sum_error(size_t K) { return 3 * (K/16.0 + sqrt((double)K)) * 0x1p-23; }

// The GPU's fast tanh, which an epilogue may use, is right to 2^-11 (PTX ISA, tanh.approx).
static const double TANH_ERROR = 0x1p-11;

// ---- what is reported ----

// Of several errors, the one that comes closest to its bound or exceeds it most.
typedef struct { double part, error, bound; } Worst;

static void worst_add(Worst *w, double ours, double theirs, double bound) {
    double error = fabs(ours - theirs), part = error / (bound + DBL_MIN);
    if (!isnan(w->part) && !(part < w->part)) *w = { part, error, bound };
}

static void report_worst(const char *what, Worst w, int roundings, size_t terms) {
    bool good = w.part <= 1.0;
    printf("    %-34s error %7.2g, at most %7.2g: %d rounding%s, sums of %zu%s%s\n", what, w.error,
           w.bound, roundings, roundings == 1 ? "" : "s", terms, good ? "" : "   WRONG",
           far_off(w.part));
    fflush(stdout);
    if (!good) test_state.failed++;
    if (!(w.part <= worst)) worst = w.part;
}

// Two ways to compute one array, in full, off by `other` besides. An error may be a part of an
// intermediate result instead of the result's: of 6 times the array's root mean square, which
// random numbers rarely exceed.
static void report_ways(const char *what, const Floats &ours, const Floats &theirs, int roundings,
                        size_t terms, double other) {
    double squares = 0.0, part = roundings * rounding<real>() + 2 * sum_error(terms) + other;
    Worst w = { 0, 0, 0 };
    for (float x : theirs) squares += (double)x*x;
    double most = 6 * sqrt(squares / (double)theirs.size());
    for (size_t i = 0; i < ours.size(); i++)
        worst_add(&w, ours[i], theirs[i], part * (fabs(theirs[i]) + most));
    report_worst(what, w, roundings, terms);
    if (sizeof(real) == sizeof(float) || ours != theirs) return;
    printf("    %s: the same bits from two kernels: is it one?\n", what);
#ifdef EMULATOR                                  // on a GPU two kernels may well agree
    CHECK_MSG(false, "%s: the same bits", what);
#endif
}

// ---- arrays ----

// Uniform between shift - scale and shift + scale, other numbers for each seed.
template <class T> __global__ void uniform_kernel(T *x, size_t n, float scale, float shift,
                                                  uint32_t seed) {
    size_t i = thread_in_grid();
    if (i >= n) return;
    uint32_t bits = (uint32_t)i + seed * 0x9E3779B9u;
    bits = (bits ^ bits >> 16) * 0x85EBCA6Bu;
    bits = (bits ^ bits >> 13) * 0xC2B2AE35u;
    bits ^= bits >> 16;
    x[i] = (T)(shift + scale * ((float)(bits >> 8) / 8388608.0f - 1.0f));
}

template <class T> static void uniform(T *x, size_t n, double scale, double shift) {
    uint32_t seed = (uint32_t)rng_below(&rng, 1u << 31);
    uniform_kernel<T><<<blocks_for(n, 256), 256, 0, gpu.stream>>>(x, n, (float)scale, (float)shift,
                                                                  seed);
    LAUNCH_CHECK();
}

template <class T> struct Random : Array<T> {
    Random(size_t n, double scale, double shift) : Array<T>(n) {
        uniform(this->data, n, scale, shift);
    }
};

template <class T> __global__ void gather_kernel(float *out, const T *x, size_t step, size_t n) {
    size_t i = thread_in_grid();
    if (i < n) out[i] = (float)x[i*step];
}

// x[begin], x[begin + step] ... of an array on the GPU, n in all.
template <class T> static Floats line_of(const T *x, size_t begin, size_t step, size_t n) {
    Floats line(n);
    gather_kernel<T><<<blocks_for(n, 256), 256, 0, gpu.stream>>>(gpu.scratch, x + begin, step, n);
    LAUNCH_CHECK();
    CUDA_CHECK(cudaMemcpyAsync(line.data(), gpu.scratch, n * sizeof(float), cudaMemcpyDeviceToHost,
                               gpu.stream));
    gpu_wait(&gpu);
    return line;
}

template <class T> static double at(const T *x, size_t i) { return line_of(x, i, 1, 1)[0]; }

// Sample s of n: the first, the last, then random ones.
static size_t sample(int s, size_t n) {
    return s == 0 ? 0 : s == 1 ? n - 1 : (size_t)rng_below(&rng, n);
}

// ---- products, plain and with each epilogue ----

static double gelu_tanh(double x) { return tanh(0.7978845608 * (x + 0.044715*x*x*x)); }
static double gelu_of(double x) { return 0.5*x * (1 + gelu_tanh(x)); }
static double gelu_inner(double x) { return 0.7978845608 * (1 + 3*0.044715*x*x); }     // du/dx
static double gelu_slope(double x) {
    double t = gelu_tanh(x);
    return 0.5*(1 + t) + 0.5*x*(1 - t*t) * gelu_inner(x);
}

// What becomes of an element of a product: sum * scale + add. The scale is off by scale_error.
typedef struct { double scale, scale_error, add; } Then;

// Elements of c = then(i, j)(a b) against double precision.
template <class T, class ThenAt>
static void check_product(const char *what, const T *c, Mat a, Mat b, size_t M, size_t N, size_t K,
                          ThenAt then_at) {
    bool a_rows = a.op == CUBLAS_OP_N, b_rows = b.op == CUBLAS_OP_N;
    Worst w = { 0, 0, 0 };
    for (int s = 0; s < SAMPLES; s++) {
        size_t i = sample(s, M), j = sample(s, N);
        Floats row = line_of(a.data, a_rows ? i*a.ld : i, a_rows ? 1 : a.ld, K);
        Floats column = line_of(b.data, b_rows ? j : j*b.ld, b_rows ? b.ld : 1, K);
        double sum = 0.0, squares = 0.0;
        for (size_t k = 0; k < K; k++) {
            double x = (double)row[k] * column[k];
            sum += x;
            squares += x*x;
        }
        Then then = then_at(i, j);
        double exact = sum * then.scale + then.add;
        worst_add(&w, at(c, i*N + j), exact, rounding<T>() * fabs(exact)
                  + fabs(then.scale) * sum_error(K) * sqrt(squares) + then.scale_error * fabs(sum));
    }
    report_worst(what, w, 1, K);
}

static Then unchanged(size_t, size_t) { return { 1, 0, 0 }; }
static Then plus_half(size_t, size_t) { return { 1, 0, 0.5 }; }

// db = 0.5 + the sum of dout's rows, at some columns. An epilogue sums before it rounds dout, and
// rounds the sum: `rounded`.
static void check_bias_gradient(const char *what, const float *db, const real *dout, size_t N,
                                int OC, double rounded) {
    Worst w = { 0, 0, 0 };
    for (int s = 0; s < 2*SAMPLED_ROWS; s++) {
        size_t j = sample(s, OC);
        double sum = 0.5, squares = 0.25;
        for (float x : line_of(dout, j, OC, N)) sum += x, squares += (double)x*x;
        worst_add(&w, at(db, j), sum, (0x1p-24 + rounded) * fabs(sum)
                  + (sum_error(N) + rounded) * sqrt(squares));
    }
    report_worst(what, w, 1, N);
}

// From here on no product has its epilogue, as if cuBLASLt lacked them all: kernels do the rest.
static void refuse_epilogues() {
    for (int i = 0; i < gpu.n_products; i++)
        if (gpu.products[i].key.epilogue != NO_EPILOGUE) gpu.products[i].found = false;
}

// Untuned products do not sum bias gradients (product_choose). Here they do, if cuBLASLt can.
static void allow_bias_gradients() {
    cublasLtMatmulHeuristicResult_t first;
    for (int i = 0; i < gpu.n_products; i++) {
        Product *p = &gpu.products[i];
        if (p->key.epilogue != GELU_BIAS_GRADIENT || p->tuned) continue;
        p->found = product_candidates(&first, 1, p, &gpu) == 1;
        p->algorithm = first.algo;
    }
}

// How many products lack their epilogue.
static int epilogues_lacking() {
    int n = 0;
    for (int i = 0; i < gpu.n_products; i++)
        n += gpu.products[i].key.epilogue != NO_EPILOGUE && !gpu.products[i].found;
    return n;
}

typedef enum { FORWARD_BIAS, FORWARD_RESIDUAL, FORWARD_GELU } Forward;
typedef enum { BACKWARD_LINEAR, BACKWARD_GELU } Backward;

// A linear layer of the model, both ways. x may be gelu(pre_x), which backward then goes through;
// db is then the gradient of pre_x's bias, C channels.
typedef struct Linear {
    const char *name;
    Forward forward;
    Backward backward;
    size_t N;
    int C, OC;
    Random<real> x, pre_x, w, b, skip, dout;
    Array<real> out, pre, dx;
    Random<float> dw, db;

    Linear(const char *name, Forward forward, Backward backward, size_t N, int C, int OC)
        : name(name), forward(forward), backward(backward), N(N), C(C), OC(OC), x(N*C, 1, 0),
          pre_x(N*C, 2, 0), w((size_t)C*OC, 3 / sqrt(C), 0), b(OC, 1, 0), skip(N*OC, 1, 0),
          dout(N*OC, 1, 0), out(N*OC), pre(N*OC), dx(N*C), dw((size_t)C*OC, 0, 0.5),
          db(C > OC ? C : OC, 0, 0.5) {}
} Linear;

static void linear_run(Linear *l) {
    size_t N = l->N;
    int C = l->C, OC = l->OC;
    uniform(l->dw.data, (size_t)C*OC, 0, 0.5);               // halves: they are added to
    uniform(l->db.data, C > OC ? C : OC, 0, 0.5);
    if (l->forward == FORWARD_BIAS)
        linear_forward(l->out, l->x, l->w, l->b, N, C, OC, &gpu);
    else if (l->forward == FORWARD_RESIDUAL)
        linear_residual_forward(l->out, l->skip, l->x, l->w, l->b, N, C, OC, &gpu);
    else
        linear_gelu_forward(l->out, l->pre, l->x, l->w, l->b, N, C, OC, &gpu);
    if (l->backward == BACKWARD_GELU)
        gelu_linear_backward(l->dx, l->db, l->dw, l->dout, l->x, l->pre_x, l->w, N, C, OC, &gpu);
    else {
        linear_backward(l->dx, l->dw, l->dout, l->x, l->w, N, C, OC, &gpu);
        bias_backward(l->db, l->dout, N, OC, &gpu);
    }
}

static void check_gelu(const char *what, const Linear *l) {
    Worst w = { 0, 0, 0 };
    for (int s = 0; s < SAMPLES; s++) {
        size_t i = sample(s, l->N*l->OC);
        double x = at(l->pre.data, i), y = gelu_of(x), u = rounding<real>();
        double slope = fabs(gelu_slope(x));      // pre may be rounded after GELU has read it
        worst_add(&w, at(l->out.data, i), y, u*fabs(y) + (u*slope + TANH_ERROR) * fabs(x));
    }
    report_worst(what, w, 2, 1);
}

// Against double precision.
static void check_linear_samples(Linear *l) {
    char what[60];
    auto name = [&](const char *part) {
        snprintf(what, sizeof what, "%s, %s", l->name, part);
        return what;
    };
    size_t N = l->N;
    int C = l->C, OC = l->OC;
    bool skips = l->forward == FORWARD_RESIDUAL, gelu = l->backward == BACKWARD_GELU;
    double again = epilogues_lacking() > 0 ? rounding<real>() : 0;   // kernels follow a product
    check_product(name(skips ? "bias and residual" : "bias"),
                  l->forward == FORWARD_GELU ? l->pre.data : l->out.data, rows_of(l->x, C),
                  rows_of(l->w, OC), N, OC, C, [&](size_t i, size_t j) {
        return Then{ 1, again, at(l->b.data, j) + (skips ? at(l->skip.data, i*OC + j) : 0) };
    });
    if (l->forward == FORWARD_GELU) check_gelu(name("GELU"), l);
    check_product(name(gelu ? "dx and GELU's gradient" : "dx"), l->dx.data, rows_of(l->dout, OC),
                  transpose_of(l->w, OC), N, C, OC, [&](size_t i, size_t j) {
        if (!gelu) return unchanged(i, j);
        double x = at(l->pre_x.data, i*C + j);
        double slope = gelu_slope(x), slope_error = TANH_ERROR * (0.5 + fabs(x)*gelu_inner(x));
        return Then{ slope, slope_error + again * fabs(slope), 0 };
    });
    check_product(name("dw"), l->dw.data, transpose_of(l->x, C), rows_of(l->dout, OC), C, OC, N,
                  plus_half);
    if (gelu) check_bias_gradient(name("db"), l->db, l->dx, N, C, rounding<real>());
    else check_bias_gradient(name("db"), l->db, l->dout, N, OC, 0);
}

// With epilogues and without.
static void check_linear_ways(Linear *l) {
    char what[60];
    auto ways = [&](const char *part, const Floats &ours, const Floats &theirs, int roundings,
                    size_t terms, double other) {
        snprintf(what, sizeof what, "%s, %s: fused, apart", l->name, part);
        report_ways(what, ours, theirs, roundings, terms, other);
    };
    bool gelu = l->forward == FORWARD_GELU, back = l->backward == BACKWARD_GELU;
    Floats out = l->out.get(), pre = gelu ? l->pre.get() : Floats(), dx = l->dx.get();
    Floats db = l->db.get();
    int lacking = epilogues_lacking();
    if (lacking > 0) {
        printf("    %s: cuBLASLt lacks %d of its epilogues: not compared\n", l->name, lacking);
        return;
    }
    for (int i = 0; i < 2; i++) {                // the product in place of GELU's wants a bias
        refuse_epilogues();
        linear_run(l);
    }
    CHECK_MSG(epilogues_lacking() > 0, "%s: only kernels were to run", l->name);
    ways("out", out, l->out.get(), gelu ? 3 : 2, l->C, gelu ? TANH_ERROR : 0);
    if (gelu) ways("pre", pre, l->pre.get(), 2, l->C, 0);
    if (back) ways("dx", dx, l->dx.get(), 2, l->OC, TANH_ERROR);
    if (!back) return;
    Floats apart = l->db.get();
    ways("db", Floats(db.begin(), db.begin() + l->C), Floats(apart.begin(), apart.begin() + l->C),
         2, l->N, 0);
}

// First with the heuristic's algorithms, then with the tuner's.
static void real_linear(const char *name, Forward forward, Backward backward, size_t N, int C,
                        int OC) {
    Linear l(name, forward, backward, N, C, OC);
    products_forget();
    linear_run(&l);
    allow_bias_gradients();
    linear_run(&l);
    check_linear_samples(&l);
    check_linear_ways(&l);
    products_forget();
    tuner_open(&gpu);
    gpu.tuner->measures = true;
    linear_run(&l);
    gpu.tuner->measures = false;
    for (int i = 0; i < gpu.n_products; i++) {               // also where kernels were faster
        const Choice *c = choice_find(gpu.tuner, product_name(&gpu.products[i].key).text);
        if (c && c->tried > c->failed) gpu.products[i].found = true;
    }
    printf("    %s, with the tuner's choice of %d products:\n", name, gpu.tuner->measured);
    linear_run(&l);
    check_linear_samples(&l);
    tuner_close(&gpu);
    products_forget();
}

// ---- attention ----

// One head in double precision. Sizes of what is summed, for the bounds, end in _size.
typedef struct {
    int T, HS;
    std::vector<double> q, k, v, dout, used_out;             // (T,HS); the GPU's out
    std::vector<double> out, out_size, lse, dq, dq_size, dk, dk_size, dv, dv_size;
    double score_error;
} ExactHead;

static std::vector<double> head_part(const Floats &x, int T, int ld, int begin, int HS) {
    std::vector<double> part;
    for (int t = 0; t < T; t++)
        part.insert(part.end(), &x[(size_t)t*ld + begin], &x[(size_t)t*ld + begin] + HS);
    return part;
}

static double dot(const double *a, const double *b, int n) {
    double sum = 0.0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

// Query t: its softmax, its output, and its part of all gradients.
static void head_query(ExactHead *h, int t) {
    int HS = h->HS;
    const double *q = &h->q[(size_t)t*HS], *dout = &h->dout[(size_t)t*HS];
    double scale = 1 / sqrt(HS), hi = -INFINITY, sum = 0.0, most = 0.0;
    double d = dot(dout, &h->used_out[(size_t)t*HS], HS);
    std::vector<double> p(t + 1);
    for (int t2 = 0; t2 <= t; t2++) {
        p[t2] = dot(q, &h->k[(size_t)t2*HS], HS) * scale;
        hi = fmax(hi, p[t2]);
        most = fmax(most, fabs(p[t2]));
    }
    h->score_error = fmax(h->score_error, 2 * sum_error(HS) * most + 0x1p-20);
    for (double &x : p) sum += exp(x - hi);
    h->lse[t] = hi + log(sum);
    for (int t2 = 0; t2 <= t; t2++) {
        const double *k = &h->k[(size_t)t2*HS], *v = &h->v[(size_t)t2*HS];
        double weight = exp(p[t2] - h->lse[t]), dp = dot(dout, v, HS);
        double ds = weight * (dp - d) * scale, ds_size = weight * (fabs(dp) + fabs(d)) * scale;
        for (int c = 0; c < HS; c++) {
            size_t own = (size_t)t*HS + c, other = (size_t)t2*HS + c;
            h->out[own] += weight * v[c];
            h->out_size[own] += weight * fabs(v[c]);
            h->dq[own] += ds * k[c];
            h->dq_size[own] += ds_size * fabs(k[c]);
            h->dk[other] += ds * q[c];
            h->dk_size[other] += ds_size * fabs(q[c]);
            h->dv[other] += weight * dout[c];
            h->dv_size[other] += weight * fabs(dout[c]);
        }
    }
}

// Weights and their gradients are rounded before they are multiplied, in bf16.
static void check_head_part(const char *what, const std::vector<double> &ours, const ExactHead &h,
                            const std::vector<double> &exact, const std::vector<double> &size) {
    Worst w = { 0, 0, 0 };
    double u = rounding<real>();
    for (size_t i = 0; i < exact.size(); i++)
        worst_add(&w, ours[i], exact[i],
                  u * fabs(exact[i]) + (u + h.score_error + sum_error(h.T)) * size[i]);
    report_worst(what, w, 2, h.T);
}

// Head `number` of the batch; qkv, dqkv, out and dout of its sequence.
static void check_head(int number, const Floats &qkv, const Floats &dqkv, const Floats &out,
                       const Floats &dout, const Floats &lse, int T, int C, int HS) {
    int begin = number*HS;
    std::vector<double> zero((size_t)T*HS);
    ExactHead h = { T, HS, head_part(qkv, T, 3*C, begin, HS), head_part(qkv, T, 3*C, C + begin, HS),
               head_part(qkv, T, 3*C, 2*C + begin, HS), head_part(dout, T, C, begin, HS),
               head_part(out, T, C, begin, HS), zero, zero, std::vector<double>(T), zero, zero,
               zero, zero, zero, zero, 0.0 };
    for (int t = 0; t < T; t++) head_query(&h, t);
    Worst w = { 0, 0, 0 };
    for (int t = 0; t < T; t++)
        worst_add(&w, lse[t], h.lse[t],
                  0x1p-23 * fabs(h.lse[t]) + h.score_error + sum_error(T));
    report_worst("attention, a head's lse", w, 1, T);
    check_head_part("attention, a head's out", h.used_out, h, h.out, h.out_size);
    check_head_part("attention, a head's dq", head_part(dqkv, T, 3*C, begin, HS), h, h.dq,
                    h.dq_size);
    check_head_part("attention, a head's dk", head_part(dqkv, T, 3*C, C + begin, HS), h, h.dk,
                    h.dk_size);
    check_head_part("attention, a head's dv", head_part(dqkv, T, 3*C, 2*C + begin, HS), h, h.dv,
                    h.dv_size);
}

static void plain_attention(real *out, float *lse, real *dqkv, const float2 *rows, const real *dout,
                            const real *qkv, int B, int T, int C, int NH) {
    dim3 blocks = heads_grid(B, T, NH, C/NH, blocks_for(T, PLAIN_ROWS));
    attention_forward_plain_kernel<<<blocks, 32*PLAIN_ROWS, 0, gpu.stream>>>(out, lse, qkv, T, 0,
                                                                             C, NH);
    attention_backward_plain_kernel<QUERIES><<<blocks, 32*PLAIN_ROWS, 0, gpu.stream>>>(
        dqkv, rows, dout, qkv, T, C, NH);
    attention_backward_plain_kernel<KEYS><<<blocks, 32*PLAIN_ROWS, 0, gpu.stream>>>(
        dqkv, rows, dout, qkv, T, C, NH);
    LAUNCH_CHECK();
}

static void real_attention(int B, int T, int NH, int C) {
    size_t N = (size_t)B*T;
    Random<real> qkv(N*3*C, 3, 0), dout(N*C, 1, 0);
    Array<real> out(N*C), dqkv(N*3*C), plain_out(N*C), plain_dqkv(N*3*C);
    Array<float> lse(N*NH), plain_lse(N*NH);
    Array<float2> rows(N*NH);
    attention_forward(out, lse, qkv, B, T, 0, C, NH, &gpu);
    Random<float> db(3*C, 0, 0.5);
    Array<float> dq(N*C), sums((size_t)B*3*C);
    attention_backward(dqkv, db, { rows, dq, sums }, dout, qkv, out, lse, B, T, C, NH, &gpu);
    check_bias_gradient("attention, db", db, dqkv, N, 3*C, 0);
    for (int b : { 0, B - 1 }) {
        size_t row = (size_t)b*T, head = b == 0 ? 0 : NH - 1;
        check_head((int)head, line_of(qkv.data, row*3*C, 1, (size_t)T*3*C),
                   line_of(dqkv.data, row*3*C, 1, (size_t)T*3*C),
                   line_of(out.data, row*C, 1, (size_t)T*C),
                   line_of(dout.data, row*C, 1, (size_t)T*C),
                   line_of(lse.data, (b*(size_t)NH + head) * T, 1, T), T, C, C/NH);
    }
    if (sizeof(real) == sizeof(float)) return;               // fp32 has no tiles
    plain_attention(plain_out, plain_lse, plain_dqkv, rows, dout, qkv, B, T, C, NH);
    report_ways("attention, out: tiled, plain", out.get(), plain_out.get(), 2, T, 0);
    report_ways("attention, lse: tiled, plain", lse.get(), plain_lse.get(), 0, T, 0);
    Floats tiled = dqkv.get(), plainly = plain_dqkv.get();
    static const char *const names[] = { "attention, dq: tiled, plain",
                                         "attention, dk: tiled, plain",
                                         "attention, dv: tiled, plain" };
    for (int i = 0; i < 3; i++)
        report_ways(names[i], columns(tiled, 3*C, i*C, C), columns(plainly, 3*C, i*C, C), 2, T,
                    0);
}

// ---- the classifier: its three products, and cross-entropy between them ----

// A row of logits and what cross-entropy makes of it. Its sum adds up V / 1024 terms a thread. e^x
// by exp2_fast is off by 2 + 1.2 |x| units of 2^-23 (CUDA's manual, __expf), about 20 for what
// matters here.
static void check_xent_row(Worst *losses, Worst *gradients, const Floats &x, const Floats &dx,
                           double loss, double lse, int right, double scale, int V) {
    double hi = -INFINITY, sum = 0.0, terms = (V/1024.0 + 10 + 20) * 0x1p-23;
    for (int v = 0; v < V; v++) hi = fmax(hi, x[v]);
    for (int v = 0; v < V; v++) sum += exp(x[v] - hi);
    double exact = hi + log(sum), bound = terms + 0x1p-22 * fabs(exact);
    worst_add(losses, lse, exact, bound);
    worst_add(losses, loss, exact - x[right], bound);
    for (size_t v = 0; v < x.size(); v++) {
        double p = (int)v < V ? exp(x[v] - exact) : 0.0, d = (p - ((int)v == right)) * scale;
        double p_error = (bound + 0x1p-23 * (2 + 2.2*fabs(x[v] - exact))) * p;
        worst_add(gradients, dx[v], d, rounding<real>() * fabs(d) + p_error * scale);
    }
}

static void check_xent_rows(real *logits, size_t rows, int V, int Vp) {
    const float scale = 0.25f;
    Ints target = random_tokens(rows, V);
    Array<int> d_target(target);
    Array<float> loss(rows), lse(rows), d_scale(Floats(1, scale));
    size_t sampled[SAMPLED_ROWS];
    Floats before[SAMPLED_ROWS];
    for (int s = 0; s < SAMPLED_ROWS; s++) {
        sampled[s] = sample(s, rows);
        before[s] = line_of(logits, sampled[s]*Vp, 1, Vp);
    }
    xent_forward_backward(loss, lse, logits, d_target, d_scale, rows, V, Vp, &gpu);
    Worst losses = { 0, 0, 0 }, gradients = { 0, 0, 0 };
    for (int s = 0; s < SAMPLED_ROWS; s++) {
        size_t n = sampled[s];
        check_xent_row(&losses, &gradients, before[s], line_of(logits, n*Vp, 1, Vp),
                       at(loss.data, n), at(lse.data, n), target[n], scale, V);
    }
    report_worst("cross-entropy, loss and lse", losses, 1, V);
    report_worst("cross-entropy, dlogits", gradients, 1, V);
}

static void real_classifier(size_t N, int C, int V) {
    int Vp = padded_vocab(V);
    size_t rows = logits_chunk_rows(N, Vp, C, sizeof(real),
                                    gpu.properties.multiProcessorCount);
    Random<real> x(rows*C, 1, 0), wte((size_t)Vp*C, 6 / sqrt(C), 0);
    Random<float> dwte((size_t)Vp*C, 0, 0.5);
    Array<real> logits(rows*Vp), dx(rows*C);
    Mat wte_rows = rows_of(wte, C), wte_columns = transpose_of(wte, C), x_rows = rows_of(x, C);
    matmul(logits.data, Vp, x_rows, wte_columns, rows, Vp, C, WRITE, &gpu);
    check_product("classifier, logits", logits.data, x_rows, wte_columns, rows, Vp, C, unchanged);
    check_xent_rows(logits, rows, V, Vp);
    Mat d = rows_of(logits, Vp), dt = transpose_of(logits, Vp);
    matmul(dx.data, C, d, wte_rows, rows, C, Vp, WRITE, &gpu);
    check_product("classifier, dx", dx.data, d, wte_rows, rows, C, Vp, unchanged);
    matmul(dwte.data, C, dt, x_rows, Vp, C, rows, ADD, &gpu);
    check_product("classifier, dwte", dwte.data, dt, x_rows, Vp, C, rows, plus_half);
}

// ---- LayerNorm ----

// A lane adds C/32 numbers, the warp 5 times; 16 for what is done with the sums.
static double norm_error(int C) { return (C/32.0 + 5 + 16) * 0x1p-24; }

typedef struct { Worst forward, statistics, backward; } NormErrors;

static void check_norm_row(NormErrors *w, const Floats &x, const Floats &out, double mean,
                           double rstd, const Floats &gain, const Floats &bias, const Floats &dout,
                           const Floats &skip, const Floats &dx) {
    size_t C = x.size();
    double m = 0, size = 0, var = 0, sum_g = 0, sum_gx = 0, g_size = 0, gx_size = 0;
    double e = norm_error((int)C), u = rounding<real>();
    for (float v : x) m += v / (double)C, size += fabs(v) / (double)C;
    for (float v : x) var += (v - m)*(v - m) / (double)C;
    double r = 1 / sqrt(var + 1e-5);
    worst_add(&w->statistics, mean, m, e * size);
    worst_add(&w->statistics, rstd, r, 2 * e * r);
    for (size_t c = 0; c < C; c++) {
        double g = (double)dout[c] * gain[c], xhat = (x[c] - m) * r;
        sum_g += g / (double)C, g_size += fabs(g) / (double)C;
        sum_gx += g*xhat / (double)C, gx_size += fabs(g*xhat) / (double)C;
    }
    for (size_t c = 0; c < C; c++) {
        double xhat = (x[c] - m) * r, g = (double)dout[c] * gain[c];
        double y = xhat*gain[c] + bias[c], d = (g - sum_g - xhat*sum_gx) * r + skip[c];
        double off = e * (fabs(xhat) + size*r);              // what xhat may be off by
        worst_add(&w->forward, out[c], y, u*fabs(y) + 2*off*fabs(gain[c]) + e*fabs(bias[c]));
        worst_add(&w->backward, dx[c], d, u*fabs(d) + e*fabs(skip[c])
                  + 4*r * (e*(fabs(g) + g_size + fabs(xhat)*gx_size) + off*gx_size));
    }
}

// dgain, dbias, and db of the branch's bias, which begin as halves, at some columns.
static void check_norm_columns(const float *dgain, const float *dbias, const float *db,
                               const real *dout, const real *x, const real *skip,
                               const float *mean, const float *rstd, size_t N, int C) {
    Worst w = { 0, 0, 0 };
    Floats m = line_of(mean, 0, 1, N), r = line_of(rstd, 0, 1, N);
    for (int s = 0; s < SAMPLED_ROWS; s++) {
        size_t c = sample(s, C);
        Floats d = line_of(dout, c, C, N), v = line_of(x, c, C, N), came = line_of(skip, c, C, N);
        double gain = 0.5, bias = 0.5, gain_squares = 0.25, bias_squares = 0.25;
        double of_skip = 0.5, skip_squares = 0.25;
        for (size_t n = 0; n < N; n++) {
            double g = d[n] * ((double)v[n] - m[n]) * r[n];
            gain += g, gain_squares += g*g;
            bias += d[n], bias_squares += (double)d[n]*d[n];
            of_skip += came[n], skip_squares += (double)came[n]*came[n];
        }
        worst_add(&w, at(dgain, c), gain, sum_error(N) * sqrt(gain_squares));
        worst_add(&w, at(dbias, c), bias, sum_error(N) * sqrt(bias_squares));
        worst_add(&w, at(db, c), of_skip, sum_error(N) * sqrt(skip_squares));
    }
    report_worst("LayerNorm, dgain, dbias and db", w, 0, N);
}

static void real_layernorm(size_t N, int C) {
    Random<real> x(N*C, 2, 1), gain(C, 0.5, 1), bias(C, 0.5, 0), dout(N*C, 1, 0), skip(N*C, 1, 0);
    Random<float> dgain(C, 0, 0.5), dbias(C, 0, 0.5), db(C, 0, 0.5);
    Array<real> out(N*C), dx(N*C);
    Array<float> mean(N), rstd(N);
    layernorm_forward(out, mean, rstd, x, gain, bias, N, C, gpu.stream);
    layernorm_backward(dx, dgain, dbias, db, skip, dout, x, mean, rstd, gain, N, C, &gpu);
    NormErrors w = {};
    auto row = [&](const real *from, size_t n) { return line_of(from, n*C, 1, C); };
    for (int s = 0; s < SAMPLED_ROWS; s++) {
        size_t n = sample(s, N);
        check_norm_row(&w, row(x, n), row(out, n), at(mean.data, n), at(rstd.data, n), row(gain, 0),
                       row(bias, 0), row(dout, n), row(skip, n), row(dx, n));
    }
    report_worst("LayerNorm, mean and rstd", w.statistics, 0, C);
    report_worst("LayerNorm, out", w.forward, 1, C);
    report_worst("LayerNorm, dx", w.backward, 1, C);
    check_norm_columns(dgain, dbias, db, dout, x, skip, mean, rstd, N, C);
}

// ---- embedding ----

// The sum of column c of dx over the positions for which `wanted` is true, added to 0.5.
template <class Wanted>
static void add_column(Worst *w, double ours, const Floats &column, Wanted wanted) {
    double sum = 0.5, squares = 0.25;
    size_t terms = 1;
    for (size_t n = 0; n < column.size(); n++)
        if (wanted(n)) sum += column[n], squares += (double)column[n]*column[n], terms++;
    worst_add(w, ours, sum, sum_error(terms) * sqrt(squares));
}

static void real_embedding(int B, int T, int C, int V) {
    size_t N = (size_t)B*T;
    Ints token = random_tokens(N, V), order(N), begin(N + 1), count(V);
    for (size_t n = 0; n < N; n += 4) token[n] = token[0];           // as often as a comma
    Random<real> wte((size_t)V*C, 1, 0), wpe((size_t)T*C, 1, 0), dx(N*C, 1, 0);
    Random<float> dwte((size_t)V*C, 0, 0.5), dwpe((size_t)T*C, 0, 0.5);
    Array<real> x(N*C);
    int words = tokens_sort(order.data(), begin.data(), count.data(), token.data(), N, V);
    Array<int> d_token(token), d_order(order), d_begin(begin);
    embedding_forward(x, d_token, wte, wpe, B, T, C, gpu.stream);
    embedding_backward(dwte, dwpe, dx, d_token, d_order, d_begin, words, B, T, C, gpu.stream);
    Worst forward = { 0, 0, 0 }, back = { 0, 0, 0 };
    for (int s = 0; s < SAMPLES; s++) {
        size_t n = sample(s, N), c = sample(s, C), t = n % T;
        double exact = at(wte.data, (size_t)token[n]*C + c) + at(wpe.data, t*C + c);
        worst_add(&forward, at(x.data, n*C + c), exact, rounding<real>() * fabs(exact) + 0x1p-23);
        Floats column = line_of(dx.data, c, C, N);
        add_column(&back, at(dwte.data, (size_t)token[n]*C + c), column,
                   [&](size_t i) { return token[i] == token[n]; });
        add_column(&back, at(dwpe.data, t*C + c), column, [&](size_t i) { return i % T == t; });
    }
    report_worst("embedding, x", forward, 1, 2);
    report_worst("embedding, dwte and dwpe", back, 0, N / 4);
}

// ---- AdamW and the global norm, on all parameters of the model ----

static void check_norm_of_all(Model *m) {
    Zero *z = &m->zero;
    double squares = 0.0, ours = totals_of(m).squares;
    size_t n = gpt2_n_params(&m->padded), piece = SCRATCH_FLOATS;
    for (size_t i = 0; i < n; i += piece)
        for (float g : line_of(z->grads, i, 1, min_size(piece, n - i))) squares += (double)g*g;
    Worst w = { 0, 0, 0 };
    worst_add(&w, ours, squares, 1e-11 * squares);           // sums in double precision
    report_worst("the gradients' squared norm", w, 0, n);
}

static void real_adamw(const Config *c) {
    Model m;
    model_open(&m, c, 1, 1, RECOMPUTE_NONE);
    Zero *z = &m.zero;
    size_t n = gpt2_n_params(&m.padded);
    float *arrays[] = { z->masters, z->adam_m, z->adam_v, z->grads };
    uniform(arrays[0], n, 1, 0);
    uniform(arrays[1], n, 0.1, 0);
    uniform(arrays[2], n, 0.1, 0.1);             // squares: from 0 to 0.2
    uniform(arrays[3], n, 1, 0);
    check_norm_of_all(&m);
    std::vector<Chunk> chunks(z->n_chunks);
    CUDA_CHECK(cudaMemcpy(chunks.data(), z->chunks, chunks.size() * sizeof chunks[0],
                          cudaMemcpyDeviceToHost));
    size_t places[SAMPLES];                      // one rank alone: the same in all four arrays
    double before[SAMPLES][4], decays[SAMPLES];
    for (int s = 0; s < SAMPLES; s++) {
        Chunk k = chunks[sample(s, chunks.size())];
        places[s] = k.param + sample(s, (size_t)k.count);
        decays[s] = k.decays;
        for (int a = 0; a < 4; a++) before[s][a] = at(arrays[a], places[s]);
    }
    const int step = 3;
    AdamW o = adamw_at(step);
    adamw_launch(z, o, Array<float>(Floats(1, 1.0f)));
    Worst w = { 0, 0, 0 };
    double u = 0x1p-24, correct_m = 1 - pow(o.beta1, step), correct_v = 1 - pow(o.beta2, step);
    for (int s = 0; s < SAMPLES; s++) {
        const double *b = before[s], g = b[3];
        double mi = o.beta1*b[1] + (1 - (double)o.beta1)*g;
        double vi = o.beta2*b[2] + (1 - (double)o.beta2)*g*g;
        double size = fabs(o.beta1*b[1]) + fabs((1 - (double)o.beta1)*g);
        double root = sqrt(vi/correct_v) + o.eps, decay = decays[s] * o.weight_decay * b[0];
        double move = o.lr * (mi/correct_m / root + decay);
        double move_size = o.lr * (size/correct_m / root + fabs(decay));
        double p = at(z->masters, places[s]);
        worst_add(&w, at(arrays[1], places[s]), mi, 4*u*size);
        worst_add(&w, at(arrays[2], places[s]), vi, 4*u*vi);
        worst_add(&w, p, b[0] - move, u*fabs(b[0] - move) + 16*u*move_size);
        CHECK(at((real *)z->params, places[s]) == (float)(real)(float)p);
    }
    report_worst("AdamW, parameters and moments", w, 4, 2);
    model_free(&m);
}

// ---- all of it ----

TEST(real_shapes) {
    const char *asked = getenv("REAL_SHAPES"), *text = asked ? asked : REAL_SHAPES;
    Config c;
    int B, T;
    if (sscanf(text, "%d,%d,%d,%d,%d,%d", &B, &T, &c.L, &c.NH, &c.C, &c.V) != 6) {
        CHECK_MSG(false, "REAL_SHAPES=%s: B,T,L,NH,C,V are expected", text);
        return;
    }
    c.P = T;
    size_t N = (size_t)B*T;
    printf("    B=%d T=%d L=%d NH=%d C=%d V=%d, " PRECISION "\n", B, T, c.L, c.NH, c.C, c.V);
    real_linear("qkv", FORWARD_BIAS, BACKWARD_LINEAR, N, c.C, 3*c.C);
    real_linear("att_proj", FORWARD_RESIDUAL, BACKWARD_LINEAR, N, c.C, c.C);
    real_linear("fc", FORWARD_GELU, BACKWARD_LINEAR, N, c.C, 4*c.C);
    real_linear("mlp_proj", FORWARD_RESIDUAL, BACKWARD_GELU, N, 4*c.C, c.C);
    real_attention(B, T, c.NH, c.C);
    real_classifier(N, c.C, c.V);
    real_layernorm(N, c.C);
    real_embedding(B, T, c.C, c.V);
    real_adamw(&c);
}
