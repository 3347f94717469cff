// Every layer against its textbook formula in double precision: the forward pass directly, the
// backward pass against central differences of that formula. Sizes are odd on purpose.
//
// Errors are relative, by the norm of a tensor: |ours - exact| / |exact|. Sums of a few hundred
// floats gather 1e-7 to 1e-6; a mistake shows at 1e-3 or above: 1e-5. In a bf16 build each operand of
// a product is rounded to 8 bits, by 1.1e-3 in the root mean square; attention's gradients have gone
// through four products: 1e-2.
//
// The matrix product and attention have two forms: the plain definition in train_gpt2.c and the
// fast one in dev/cpu. Both are tested, and compared with each other. The plain forms never round
// an operand to bf16, so they keep to 1e-5 in every build.
#define main train_gpt2_main
#include "../train_gpt2.c"
#undef main
#include "../dev/check/compare.h"       // compare_norm
#include "test.h"

enum { MAX_TENSORS = 8 };
static const double FP32_TOLERANCE = 1e-5;
#ifdef PRECISION_BF16
static const double TOLERANCE = 1e-2;
#else
static const double TOLERANCE = 1e-5;
#endif
static double worst;                     // the largest relative error seen in this program

// A tensor that a layer reads: the same numbers in both precisions, and both gradients.
typedef struct { size_t n; double *x; float *f; double *numeric; float *df; } Input;

// A layer under test: `formula` computes out from the inputs, in double precision.
typedef struct Case {
    int B, T, C, NH, OC, V;
    const int *token;
    Input in[MAX_TENSORS];
    int n_in;
    size_t n_out;
    double *out, *dout;
    float *fout, *fdout;
    void (*formula)(const struct Case *, double *out);
} Case;

static void case_input(Case *c, size_t n, double scale, double shift, Rng *rng) {
    Input *in = &c->in[c->n_in++];
    in->n = n;
    in->x = alloc_or_die(n * sizeof(double), "test");
    in->f = alloc_or_die(n * sizeof(float), "test");
    in->numeric = alloc_or_die(n * sizeof(double), "test");
    in->df = alloc_or_die(n * sizeof(float), "test");
    for (size_t i = 0; i < n; i++) {
        in->f[i] = (float)(shift + scale * rng_normal(rng));
        in->x[i] = in->f[i];
        in->df[i] = 0.5f;                // parameter gradients must add to what is there
    }
}

static void case_output(Case *c, size_t n, Rng *rng) {
    c->n_out = n;
    c->out = alloc_or_die(n * sizeof(double), "test");
    c->dout = alloc_or_die(n * sizeof(double), "test");
    c->fout = alloc_or_die(n * sizeof(float), "test");
    c->fdout = alloc_or_die(n * sizeof(float), "test");
    for (size_t i = 0; i < n; i++) {
        c->fdout[i] = (float)rng_normal(rng);
        c->dout[i] = c->fdout[i];
        c->fout[i] = NAN;                // must be written, whatever was there
    }
}

static void case_free(Case *c) {
    for (int k = 0; k < c->n_in; k++) {
        free(c->in[k].x);
        free(c->in[k].f);
        free(c->in[k].numeric);
        free(c->in[k].df);
    }
    free(c->out);
    free(c->dout);
    free(c->fout);
    free(c->fdout);
}

// d(sum dout * out) / d(each input), by central differences; the step's error is about 1e-9.
static void case_differentiate(Case *c) {
    double *moved = alloc_or_die(c->n_out * sizeof(double), "test");
    for (int k = 0; k < c->n_in; k++)
        for (size_t i = 0; i < c->in[k].n; i++) {
            double x = c->in[k].x[i], h = 1e-4, sum = 0.0;
            for (int side = -1; side <= 1; side += 2) {
                c->in[k].x[i] = x + side * h;
                c->formula(c, moved);
                for (size_t j = 0; j < c->n_out; j++) sum += side * c->dout[j] * moved[j];
            }
            c->in[k].x[i] = x;
            c->in[k].numeric[i] = sum / (2.0 * h);
        }
    free(moved);
}

static double relative_error(const float *ours, const double *exact, double shift, size_t n) {
    double diff = 0.0, norm = 0.0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)ours[i] - shift - exact[i];
        diff += d * d;
        norm += exact[i] * exact[i];
    }
    return sqrt(diff / (norm > 0.0 ? norm : 1.0));
}

static void check_error(const char *what, int tensor, double error, double tolerance) {
    if (!(error <= worst)) worst = error;
    CHECK_MSG(error <= tolerance, "%s, tensor %d: relative error %.2g", what, tensor, error);
}

// What the fast form of a layer computed, beside what the plain form did.
static void check_fast(const char *what, const float *fast, const float *plain, size_t n) {
    double error = compare_norm(fast, plain, n);
    CHECK_MSG(error <= TOLERANCE, "%s: fast and plain differ by %.2g", what, error);
}

// Compares what the layer left in fout and in each df; the first `activations` inputs are
// activations, whose gradients are written, the others parameters, whose gradients were added.
static void case_compare_within(Case *c, const char *what, int activations, double tolerance) {
    c->formula(c, c->out);
    case_differentiate(c);
    check_error(what, -1, relative_error(c->fout, c->out, 0.0, c->n_out), tolerance);
    for (int k = 0; k < c->n_in; k++)
        check_error(what, k, relative_error(c->in[k].df, c->in[k].numeric,
                                            k < activations ? 0.0 : 0.5, c->in[k].n), tolerance);
}

static void case_compare(Case *c, const char *what, int activations) {
    case_compare_within(c, what, activations, TOLERANCE);
}

// ---- the formulas ----

static void embedding_formula(const Case *c, double *out) {
    for (int n = 0; n < c->B * c->T; n++)
        for (int i = 0; i < c->C; i++)
            out[n*c->C + i] = c->in[0].x[c->token[n]*c->C + i] + c->in[1].x[n % c->T * c->C + i];
}

TEST(embedding) {
    Case c = { .B = 3, .T = 7, .C = 5, .V = 11, .formula = embedding_formula };
    Rng rng = rng_make(1, 0);
    int token[21];
    for (int i = 0; i < 21; i++) token[i] = (int)rng_below(&rng, 11);   // repeats are certain
    c.token = token;
    case_input(&c, 11*5, 1, 0, &rng);
    case_input(&c, 9*5, 1, 0, &rng);         // more positions than T
    case_output(&c, 21*5, &rng);
    embedding_forward(c.fout, token, c.in[0].f, c.in[1].f, c.B, c.T, c.C);
    embedding_backward(c.in[0].df, c.in[1].df, c.fdout, token, c.B, c.T, c.C);
    case_compare(&c, "embedding", 0);
    case_free(&c);
}

static void layernorm_formula(const Case *c, double *out) {
    for (int n = 0; n < c->B; n++) {
        const double *x = c->in[0].x + n*c->C;
        double mean = 0.0, var = 0.0;
        for (int i = 0; i < c->C; i++) mean += x[i] / c->C;
        for (int i = 0; i < c->C; i++) var += (x[i] - mean) * (x[i] - mean) / c->C;
        for (int i = 0; i < c->C; i++)
            out[n*c->C + i] = (x[i] - mean) / sqrt(var + 1e-5) * c->in[1].x[i] + c->in[2].x[i];
    }
}

TEST(layernorm) {   // not with two channels: they become +-1 whatever they were, with no gradient
    static const int sizes[][2] = { {1, 3}, {7, 5}, {13, 37}, {5, 64} };
    for (int s = 0; s < 4; s++) {
        Case c = { .B = sizes[s][0], .C = sizes[s][1], .formula = layernorm_formula };
        Rng rng = rng_make(2, (uint64_t)s);
        size_t n = (size_t)c.B * c.C;
        float mean[16], rstd[16];
        case_input(&c, n, 2, 1, &rng);
        case_input(&c, c.C, 0.3, 1, &rng);
        case_input(&c, c.C, 0.3, 0, &rng);
        case_output(&c, n, &rng);
        NormActs a = { c.fout, mean, rstd };
        Norm w = { c.in[1].f, c.in[2].f }, dw = { c.in[1].df, c.in[2].df };
        layernorm_forward(a, c.in[0].f, w, c.B, c.C);
        layernorm_backward(c.in[0].df, dw, c.fdout, c.in[0].f, a, w, c.B, c.C);
        case_compare(&c, "layernorm", 1);
        case_free(&c);
    }
}

static void linear_formula(const Case *c, double *out) {
    for (int n = 0; n < c->B; n++)
        for (int o = 0; o < c->OC; o++) {
            double sum = c->in[2].x[o];
            for (int i = 0; i < c->C; i++) sum += c->in[0].x[n*c->C + i] * c->in[1].x[i*c->OC + o];
            out[n*c->OC + o] = sum;
        }
}

TEST(linear) {
    static const int sizes[][3] = { {1, 1, 1}, {3, 5, 2}, {17, 7, 35}, {31, 13, 19} };
    for (int s = 0; s < 4; s++) {
        Case c = { .B = sizes[s][0], .C = sizes[s][1], .OC = sizes[s][2],
                   .formula = linear_formula };
        Rng rng = rng_make(3, (uint64_t)s);
        case_input(&c, (size_t)c.B * c.C, 1, 0, &rng);
        case_input(&c, (size_t)c.C * c.OC, 1, 0, &rng);
        case_input(&c, c.OC, 1, 0, &rng);
        case_output(&c, (size_t)c.B * c.OC, &rng);
        linear_forward(c.fout, c.in[0].f, c.in[1].f, c.in[2].f, c.B, c.C, c.OC);
        linear_backward(c.in[0].df, c.in[1].df, c.in[2].df, c.fdout, c.in[0].f, c.in[1].f,
                        c.B, c.C, c.OC);
        case_compare(&c, "linear", 1);
        case_free(&c);
    }
}

static void attention_formula(const Case *c, double *out) {
    int B = c->B, T = c->T, C = c->C, HS = C / c->NH;
    double p[256];
    for (int b = 0; b < B; b++) for (int h = 0; h < c->NH; h++) for (int t = 0; t < T; t++) {
        const double *head = c->in[0].x + (size_t)b*T*3*C + h*HS, *q = head + t*3*C;
        double sum = 0.0;
        for (int u = 0; u <= t; u++) {
            double dot = 0.0;
            for (int i = 0; i < HS; i++) dot += q[i] * head[u*3*C + C + i];
            p[u] = exp(dot / sqrt(HS));
            sum += p[u];
        }
        for (int i = 0; i < HS; i++) {
            double y = 0.0;
            for (int u = 0; u <= t; u++) y += p[u] / sum * head[u*3*C + 2*C + i];
            out[((size_t)b*T + t)*C + h*HS + i] = y;
        }
    }
}

typedef void AttentionForward(float *out, float *lse, float *scratch, const float *qkv,
                              int B, int T, int past, int C, int NH);
typedef void AttentionBackward(float *dqkv, float *scratch, const float *dout, const float *qkv,
                               const float *out, const float *lse, int B, int T, int C, int NH);
typedef struct {
    const char *name;
    bool rounds;                         // its operands, in a bf16 build
    AttentionForward *forward;
    AttentionBackward *backward;
} Attention;

enum { FORMS = 2 };
static const Attention attentions[FORMS] = {
    { "attention, plain", false, attention_forward_plain, attention_backward_plain },
    { "attention, fast", true, attention_forward_fast, attention_backward_fast },
};

static float *attention_scratch_of(int T, int HS) {
    return alloc_or_die(thread_count()*attention_scratch(T, HS) * sizeof(float), "test");
}

// One size, both forms of it, each against the formula and one against the other. The log of the
// softmax's denominator has no formula here: backward would be wrong if it were.
static void check_attention(const int size[4], uint64_t stream) {
    Case c[FORMS];
    float *lse[FORMS], *scratch = attention_scratch_of(size[1], size[2] / size[3]);
    size_t N = (size_t)size[0] * size[1];
    for (int f = 0; f < FORMS; f++) {
        Rng rng = rng_make(4, stream);
        c[f] = (Case){ .B = size[0], .T = size[1], .C = size[2], .NH = size[3],
                       .formula = attention_formula };
        case_input(&c[f], N*3*c[f].C, 1, 0, &rng);
        case_output(&c[f], N*c[f].C, &rng);
        lse[f] = alloc_or_die(N*c[f].NH * sizeof(float), "test");
        const Attention *form = &attentions[f];
        form->forward(c[f].fout, lse[f], scratch, c[f].in[0].f, c[f].B, c[f].T, 0, c[f].C,
                      c[f].NH);
        form->backward(c[f].in[0].df, scratch, c[f].fdout, c[f].in[0].f, c[f].fout, lse[f],
                       c[f].B, c[f].T, c[f].C, c[f].NH);
        case_compare_within(&c[f], form->name, 1, form->rounds ? TOLERANCE : FP32_TOLERANCE);
    }
    check_fast("attention's output", c[1].fout, c[0].fout, c[0].n_out);
    check_fast("attention's lse", lse[1], lse[0], N*c[0].NH);
    check_fast("attention's gradient", c[1].in[0].df, c[0].in[0].df, c[0].in[0].n);
    free(scratch);
    for (int f = 0; f < FORMS; f++) {
        free(lse[f]);
        case_free(&c[f]);
    }
}

TEST(attention) {
    // The last is longer than a block of queries, so that blocks meet.
    static const int sizes[][4] = { {1, 1, 1, 1}, {2, 7, 6, 2}, {1, 19, 15, 3}, {1, 61, 4, 1} };
    for (int s = 0; s < 4; s++) check_attention(sizes[s], (uint64_t)s);
}

// Rows first ... T-1, as generation asks for them, are those of a full pass; rows before them are
// left alone. A single row (first = T-1) is not packed, and so not rounded in a bf16 build.
TEST(attention_of_the_last_rows) {
    enum { T = 71, C = 12, NH = 3 };
    static const int firsts[] = { 1, 31, 32, 33, 64, T - 2, T - 1 };
    static float qkv[T*3*C], full[T*C], full_lse[NH*T], out[FORMS][T*C], lse[NH*T];
    float *scratch = attention_scratch_of(T, C/NH);
    Rng rng = rng_make(10, 0);
    for (int i = 0; i < T*3*C; i++) qkv[i] = (float)rng_normal(&rng);
    attention_forward_plain(full, full_lse, scratch, qkv, 1, T, 0, C, NH);
    for (size_t s = 0; s < sizeof firsts / sizeof *firsts; s++)
        for (int f = 0; f < FORMS; f++) {
            int first = firsts[s], touched = 0;
            double tolerance = attentions[f].rounds ? TOLERANCE : FP32_TOLERANCE, exact[T*C];
            for (int i = 0; i < T*C; i++) out[f][i] = -7.0f, exact[i] = full[i];
            for (int i = 0; i < NH*T; i++) lse[i] = -7.0f;
            attentions[f].forward(out[f] + first*C, lse + first, scratch, qkv + first*3*C, 1,
                                  T - first, first, C, NH);
            for (int i = 0; i < first*C; i++) touched += out[f][i] != -7.0f;
            for (int h = 0; h < NH; h++) {
                for (int t = 0; t < first; t++) touched += lse[h*T + t] != -7.0f;
                check_fast("lse of the last rows", lse + h*T + first, full_lse + h*T + first,
                           T - first);
            }
            CHECK_MSG(touched == 0, "%s, first %d: %d elements of earlier rows are written",
                      attentions[f].name, first, touched);
            check_error(attentions[f].name, first,
                        relative_error(out[f] + first*C, exact + first*C, 0.0, (T - first)*C),
                        tolerance);
        }
    free(scratch);
}

static void gelu_formula(const Case *c, double *out) {
    for (size_t i = 0; i < c->in[0].n; i++) {
        double x = c->in[0].x[i];
        out[i] = 0.5 * x * (1.0 + tanh(sqrt(2.0 / acos(-1.0)) * (x + 0.044715 * x*x*x)));
    }
}

TEST(gelu) {
    Case c = { .formula = gelu_formula };
    Rng rng = rng_make(5, 0);
    case_input(&c, 1001, 3, 0, &rng);        // to +-10 and beyond, where it is flat
    case_output(&c, 1001, &rng);
    gelu_forward(c.fout, c.in[0].f, 1001);
    gelu_backward(c.in[0].df, c.fdout, c.in[0].f, 1001);
    case_compare(&c, "gelu", 1);
    case_free(&c);
}

static void residual_formula(const Case *c, double *out) {
    for (size_t i = 0; i < c->n_out; i++) out[i] = c->in[0].x[i] + c->in[1].x[i];
}

TEST(residual) {                             // backward hands dout to both branches: nothing to run
    Case c = { .formula = residual_formula };
    Rng rng = rng_make(6, 0);
    case_input(&c, 77, 1, 0, &rng);
    case_input(&c, 77, 1, 0, &rng);
    case_output(&c, 77, &rng);
    residual_forward(c.fout, c.in[0].f, c.in[1].f, 77);
    for (int k = 0; k < 2; k++) memcpy(c.in[k].df, c.fdout, 77 * sizeof(float));
    case_compare(&c, "residual", 2);
    case_free(&c);
}

// out is each token's loss; the objective is their sum times a scale, so dout is that scale.
static void classifier_formula(const Case *c, double *out) {
    for (int n = 0; n < c->B; n++) {
        double sum = 0.0, right = 0.0;
        for (int v = 0; v < c->V; v++) {
            double logit = 0.0;
            for (int i = 0; i < c->C; i++) logit += c->in[0].x[n*c->C + i] * c->in[1].x[v*c->C + i];
            sum += exp(logit);
            if (v == c->token[n]) right = logit;
        }
        out[n] = log(sum) - right;
    }
}

TEST(classifier) {
    static const int sizes[][4] = { {1, 1, 2, 1}, {7, 5, 13, 3}, {19, 6, 37, 19}, {8, 3, 16, 5} };
    for (int s = 0; s < 4; s++) {            // the last number: rows of logits at a time
        Case c = { .B = sizes[s][0], .C = sizes[s][1], .V = sizes[s][2],
                   .formula = classifier_formula };
        int rows = sizes[s][3], Vp = (c.V + 15) / 16 * 16, token[32];
        Rng rng = rng_make(7, (uint64_t)s);
        for (int n = 0; n < c.B; n++) token[n] = (int)rng_below(&rng, (uint64_t)c.V);
        c.token = token;
        case_input(&c, (size_t)c.B * c.C, 1, 0, &rng);
        case_input(&c, (size_t)c.V * c.C, 1, 0, &rng);
        case_output(&c, c.B, &rng);
        for (int n = 0; n < c.B; n++) c.dout[n] = 0.25;
        float lse[32], again[32];
        float *logits = alloc_or_die((size_t)rows * Vp * sizeof(float), "test");
        for (int i = 0; i < rows*Vp; i++) logits[i] = NAN;   // padding must not leak into anything
        Model m = { .c = { .C = c.C, .V = c.V }, .params.alone = true,
                    .params.tp.words.count = (size_t)c.V,
                    .w.wte = c.in[1].f, .dw.wte = c.in[1].df, .lnf.out = c.in[0].f,
                    .dbranch = c.in[0].df, .loss = c.fout, .lse = lse, .logits = logits,
                    .logit_rows = (size_t)rows, .Vp = Vp };
        double sum = model_loss(&m, again, token, (size_t)c.B);
        CHECK(classifier_loss_and_gradient(&m, token, 0.25f, 1, c.B) == sum);
        CHECK(memcmp(again, c.fout, c.B * sizeof(float)) == 0);
        case_compare(&c, "classifier", 1);
        free(logits);
        case_free(&c);
    }
}

// ---- what is not a layer ----

// A number that bf16 holds exactly, so that rounding operands is no excuse: both forms of a product
// keep to fp32's tolerance in every build.
static float operand(Rng *rng) {
    return (float)floor(rng_normal(rng) * 32.0) / 32.0f;
}

typedef void Matmul(float *c, size_t ldc, Mat a, Mat b, const float *bias,
                    size_t M, size_t N, size_t K, Mode mode);

// The three forms of c = a b; the last is attention's, which has no bias.
static void packed_whole(float *c, size_t ldc, Mat a, Mat b, const float *bias,
                         size_t M, size_t N, size_t K, Mode mode) {
    Word *whole = alloc_or_die(packed_size(K, N) * sizeof *whole, "test");
    (void)bias;
    pack_whole(whole, b, K, N);
    matmul_packed(c, ldc, a, whole, K, M, N, K, mode);
    free(whole);
}

static const struct { const char *name; Matmul *multiply; bool has_bias; } products[] = {
    { "matmul_plain", matmul_plain, true },
    { "matmul_fast", matmul_fast, true },
    { "matmul_packed", packed_whole, false },
};
enum { PRODUCTS = sizeof products / sizeof *products };

// All the ways in which c = a b is called: transposes, a bias, addition. The columns of c beyond N
// must be left alone.
static void check_matmul(size_t M, size_t N, size_t K, int ways) {
    enum { BESIDE = 3 };
    Rng rng = rng_make(8, M*1000003 + N*1009 + K);
    size_t ldc = N + BESIDE;
    float *a = alloc_or_die(M*K * sizeof(float), "test"), *b = alloc_or_die(K*N*4, "test");
    float *c = alloc_or_die(M*ldc * sizeof(float), "test"), *bias = alloc_or_die(N*4, "test");
    float *ours[PRODUCTS];
    double *exact = alloc_or_die(M*N * sizeof(double), "test");
    for (size_t i = 0; i < M*K; i++) a[i] = operand(&rng);
    for (size_t i = 0; i < K*N; i++) b[i] = operand(&rng);
    for (size_t i = 0; i < N; i++) bias[i] = (float)rng_normal(&rng);
    bool a_t = ways & 1, b_t = ways & 2, add = ways & 4, with_bias = ways & 8;
    Mat ma = a_t ? transpose_of(a, M) : rows_of(a, K);
    Mat mb = b_t ? transpose_of(b, K) : rows_of(b, N);
    for (int p = 0; p < PRODUCTS; p++) {
        bool biased = with_bias && products[p].has_bias;
        size_t beside = 0;
        ours[p] = alloc_or_die(M*N * sizeof(float), "test");
        for (size_t i = 0; i < M*ldc; i++) c[i] = add && i % ldc < N ? 2.0f : NAN;
        products[p].multiply(c, ldc, ma, mb, biased ? bias : NULL, M, N, K, add ? ADD : WRITE);
        for (size_t i = 0; i < M; i++) {
            for (size_t j = 0; j < N; j++) {
                double sum = add ? 2.0 : biased ? bias[j] : 0.0;
                for (size_t k = 0; k < K; k++)
                    sum += (double)a[i*ma.row + k*ma.col] * b[k*mb.row + j*mb.col];
                exact[i*N + j] = sum;
                ours[p][i*N + j] = c[i*ldc + j];
            }
            for (size_t j = N; j < ldc; j++) beside += !isnan(c[i*ldc + j]);
        }
        double error = relative_error(ours[p], exact, 0.0, M*N);
        CHECK_MSG(error <= FP32_TOLERANCE, "%s, %zux%zux%zu, way %d: relative error %.2g",
                  products[p].name, M, N, K, ways, error);
        CHECK_MSG(beside == 0, "%s, %zux%zux%zu, way %d: writes beside c", products[p].name, M, N,
                  K, ways);
    }
    check_fast("matmul", ours[1], ours[0], M*N);
    for (int p = 0; p < PRODUCTS; p++) free(ours[p]);
    free(a);
    free(b);
    free(c);
    free(bias);
    free(exact);
}

// Sizes around every block's edge, a single row among them.
static const size_t product_sizes[][3] = {
    {1, 1, 1}, {1, 2*NR + 3, 45}, {MR, NR, 3}, {MR + 1, NR - 1, 5}, {2*MR - 1, NR + 1, KC + 1},
    {53, 67, 301}, {5*MR, 3*NR, 2*KC}, {MC + 3, 7, 9}, {3, 2*KC + 5, 11},
};
enum { PRODUCT_SIZES = sizeof product_sizes / sizeof *product_sizes };

TEST(matmul_any_size) {
    for (int s = 0; s < PRODUCT_SIZES; s++)
        for (int ways = 0; ways < 16; ways++)
            check_matmul(product_sizes[s][0], product_sizes[s][1], product_sizes[s][2], ways);
}

// In a bf16 build the fast form rounds, the plain one does not: on operands of 24 bits each is
// within its own tolerance, and one of the other.
TEST(matmul_of_any_operands) {
    enum { M = 3*MR + 1, N = 2*NR + 5, K = KC + 7 };
    static float a[M*K], b[K*N], c[2][M*N];
    static double exact[M*N];
    Rng rng = rng_make(11, 0);
    for (int i = 0; i < M*K; i++) a[i] = (float)rng_normal(&rng);
    for (int i = 0; i < K*N; i++) b[i] = (float)rng_normal(&rng);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++)
            for (int k = 0; k < K; k++) exact[i*N + j] += (double)a[i*K + k] * b[k*N + j];
    matmul_plain(c[0], N, rows_of(a, K), rows_of(b, N), NULL, M, N, K, WRITE);
    matmul_fast(c[1], N, rows_of(a, K), rows_of(b, N), NULL, M, N, K, WRITE);
    check_error("matmul_plain", 0, relative_error(c[0], exact, 0.0, M*N), FP32_TOLERANCE);
    check_error("matmul_fast", 0, relative_error(c[1], exact, 0.0, M*N), TOLERANCE);
    check_fast("matmul", c[1], c[0], M*N);
}

static void check_bias_backward(size_t N, size_t OC, size_t *other_bits) {
    Rng rng = rng_make(12, N*1009 + OC);
    float *dout = alloc_or_die(N*OC * sizeof(float), "test"), *db = alloc_or_die(OC*4, "test");
    float *wanted = alloc_or_die(OC*4, "test"), *backwards = alloc_or_die(OC*4, "test");
    for (size_t i = 0; i < N*OC; i++)    // of many magnitudes, so that the order decides the bits
        dout[i] = (float)ldexp(rng_normal(&rng), (int)rng_below(&rng, 8));
    for (size_t j = 0; j < OC; j++) db[j] = wanted[j] = backwards[j] = (float)rng_normal(&rng);
    for (size_t j = 0; j < OC; j++)
        for (size_t n = 0; n < N; n++) wanted[j] += dout[n*OC + j];
    for (size_t j = 0; j < OC; j++)
        for (size_t n = N; n-- > 0; ) backwards[j] += dout[n*OC + j];
    bias_backward(db, dout, N, (int)OC);
    CHECK_MSG(memcmp(db, wanted, OC * sizeof *db) == 0, "%zu rows of %zu: other bits", N, OC);
    for (size_t j = 0; j < OC; j++) *other_bits += wanted[j] != backwards[j];
    free(dout);
    free(db);
    free(wanted);
    free(backwards);
}

// Row by row, whatever the number of threads. That the order matters at all is checked, too.
TEST(bias_gradient_is_summed_row_by_row) {
    static const size_t rows[] = { 1, 7, 383, 773 };
    static const size_t columns[] = { 1, 5, 63, 64, 65, 200 };
    size_t other_bits = 0;
    for (int threads = 1; threads <= 3; threads += 2) {
#ifdef _OPENMP
        int before = omp_get_max_threads();
        omp_set_num_threads(threads);
#endif
        for (int r = 0; r < 4; r++)
            for (int c = 0; c < 6; c++) check_bias_backward(rows[r], columns[c], &other_bits);
#ifdef _OPENMP
        omp_set_num_threads(before);
#endif
    }
    CHECK_MSG(other_bits > 100, "only %zu sums depend on the order", other_bits);
}

// The first rows of a packed matrix are all that a block of queries may see.
TEST(matmul_packed_reads_only_its_depth) {
    enum { DEPTH = 2*KC + 7, K = KC + 3, N = NR + 5, M = MR + 1 };
    static float a[M*K], b[DEPTH*N], c[M*N];
    static double exact[M*N];
    Rng rng = rng_make(5, 0);
    for (int i = 0; i < M*K; i++) a[i] = operand(&rng);
    for (int i = 0; i < DEPTH*N; i++) b[i] = operand(&rng);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++)
            for (int k = 0; k < K; k++) exact[i*N + j] += (double)a[i*K + k] * b[k*N + j];
    Word *whole = alloc_or_die(packed_size(DEPTH, N) * sizeof *whole, "test");
    pack_whole(whole, rows_of(b, N), DEPTH, N);
    matmul_packed(c, N, rows_of(a, K), whole, DEPTH, M, N, K, WRITE);
    CHECK(relative_error(c, exact, 0.0, M*N) <= 1e-5);
    free(whole);
}

#ifdef PRECISION_BF16
TEST(bf16_rounds_to_nearest_even) {
    static const uint32_t pairs[][2] = {     // bits of a float, and of what it rounds to
        { 0x3F800000, 0x3F800000 }, { 0x3F808000, 0x3F800000 }, { 0x3F818000, 0x3F820000 },
        { 0x3F808001, 0x3F810000 }, { 0x3F807FFF, 0x3F800000 }, { 0xBF808001, 0xBF810000 },
        { 0x7F7FFFFF, 0x7F800000 }, { 0x7F800000, 0x7F800000 }, { 0xFF800000, 0xFF800000 },
        { 0x7FFFFFFF, 0x7FC00000 }, { 0x7F800001, 0x7FC00000 }, { 0x00000000, 0x00000000 },
        { 0x80000000, 0x80000000 }, { 0x00018000, 0x00020000 },
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        float x;
        memcpy(&x, &pairs[i][0], sizeof x);
        CHECK_MSG(bf16_round(x) == pairs[i][1], "%08x", pairs[i][0]);
    }
}
#endif

TEST(exponential) {
    double worst_ulp = 0.0;
    for (double x = -86.9; x < 87.9; x += 0.00137) {
        float f = (float)x;
        double exact = exp((double)f);
        int exponent;
        frexp(exact, &exponent);
        double ulp = fabs(exp_fast(f) - exact) / ldexp(1.0, exponent - 24);
        if (ulp > worst_ulp) worst_ulp = ulp;
    }
    printf("    exp_fast: %.2f units in the last place at worst\n", worst_ulp);
    CHECK(worst_ulp <= 2.0);
    CHECK(exp_fast(0.0f) == 1.0f);
    CHECK(exp_fast(-1000.0f) < 2e-38f && exp_fast(-INFINITY) >= 0.0f);
    CHECK(isfinite(exp_fast(1000.0f)));
    CHECK(isnan(exp_fast(NAN)));
}

// AdamW in double precision, three steps, with and without decay.
TEST(adamw) {
    enum { N = 37 };
    AdamW o = { 1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 0, 0 };
    float p[N], m[N] = {0}, v[N] = {0}, g[N];
    double ep[N], em[N] = {0}, ev[N] = {0};
    Rng rng = rng_make(9, 0);
    for (int i = 0; i < N; i++) ep[i] = p[i] = (float)rng_normal(&rng);
    for (int step = 1; step <= 3; step++) {
        for (int i = 0; i < N; i++) g[i] = (float)rng_normal(&rng);
        o.m_steps = o.v_steps = step;
        adamw_update(p, m, v, g, 0.5f, o, N);
        for (int i = 0; i < N; i++) {
            double gi = 0.5 * g[i];
            em[i] = o.beta1*em[i] + (1.0 - o.beta1)*gi;
            ev[i] = o.beta2*ev[i] + (1.0 - o.beta2)*gi*gi;
            double to_m = 1.0 / (1.0 - pow(o.beta1, step)), to_v = 1.0 / (1.0 - pow(o.beta2, step));
            ep[i] -= o.lr * (em[i]*to_m / (sqrt(ev[i]*to_v) + o.eps) + o.weight_decay*ep[i]);
        }
    }
    check_error("adamw", 0, relative_error(p, ep, 0.0, N), TOLERANCE);
}

// SGD in double precision, three steps: nothing is carried from one to the next but p.
TEST(sgd) {
    enum { N = 37 };
    AdamW o = { 0.3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1, 1 };
    float p[N], g[N];
    double ep[N];
    Rng rng = rng_make(10, 0);
    for (int i = 0; i < N; i++) ep[i] = p[i] = (float)rng_normal(&rng);
    for (int step = 1; step <= 3; step++) {
        for (int i = 0; i < N; i++) g[i] = (float)rng_normal(&rng);
        sgd_update(p, g, 0.5f, o, N);
        for (int i = 0; i < N; i++) ep[i] -= o.lr * (0.5*g[i] + o.weight_decay*ep[i]);
    }
    check_error("sgd", 0, relative_error(p, ep, 0.0, N), TOLERANCE);
}

int main(void) {
    int status = run_tests();
    printf("    worst relative error of a tensor: %.2g (allowed: %.0g)\n", worst, TOLERANCE);
    return status;
}
