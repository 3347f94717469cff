// The checks of the exercises: `check NAME` runs one function on small inputs and compares each
// tensor that it writes with the formula in double precision. It prints one line, what is wrong or
// `right`, and exits with status 1 or 0. Each check calls no other function that is an exercise,
// but for those of a whole model at the end. make check NAME= builds it with the reader's copy of
// the trainer; tests/test_exercises.py with the original, with blanks and with typical mistakes.
// A check runs with one thread and then with several, which must give the same bits. Built with gcc
// and threads.c, it also finds data races.
#define PROGRAM "train_gpt2"
#include "dev/train/loop.h"

// gradient_accumulation checks train_step alone: the check itself stands for data and log.
#define step_begin check_step_begin
#define next_batch check_next_batch
#define step_end check_step_end
static void check_step_begin(Run *r, Step *s);
static void check_next_batch(Run *r, Step *s, size_t i);
static void check_step_end(Run *r, Step *s, const Totals *t);

#define main train_gpt2_main
#include "train_gpt2.c"
#undef main
#include "dev/exercises/ranks.h"       // ring_allreduce, zero1
#include "dev/exercises/verdict.h"     // wrong

// ---- tensors and verdicts ----

enum { GUARD = 64 };                   // elements behind a tensor that nobody may write
static const float OUTSIDE = -123.0f;
static const double TOLERANCE = 1e-5;  // of floats; a mistake shows at 1e-3 or above

// The indices of a tensor, a letter each, and how many values each takes: INDEX("nc", N, C).
// "p" alone: all parameters of the model that SMALL describes.
typedef struct { const char *names; size_t sizes[4]; } Index;
#define INDEX(names, ...) (Index){ names, { __VA_ARGS__ } }

enum { MB = 4, MT = 8, MN = MB*MT, MV = 16 };
static const Config SMALL = { .L = 2, .NH = 2, .C = 8, .V = MV, .P = MT };

// A tensor that the function under test writes or adds to. `before` is what it contained.
typedef struct { const char *name; Index index; float *x, *before; size_t n; } Result;

// Where memory that threads may share lies, for the message about a race.
static struct { const char *name; Index index; const float *x; size_t n; } known[256];
static size_t n_known;

static void remember(const char *name, Index index, const float *x, size_t n) {
    if (n_known == sizeof known / sizeof *known) n_known = 0;
    known[n_known].name = name, known[n_known].index = index;
    known[n_known].x = x, known[n_known++].n = n;
}

static Result tensor(const char *name, Index index, float before) {
    size_t n = 1;
    for (size_t k = 0; k < strlen(index.names); k++) n *= index.sizes[k];
    Result t = { name, index, alloc_or_die((n + GUARD) * sizeof(float), "a tensor"),
                 alloc_or_die((n + GUARD) * sizeof(float), "a tensor"), n };
    for (size_t i = 0; i < n + GUARD; i++) t.x[i] = t.before[i] = i < n ? before : OUTSIDE;
    remember(name, index, t.x, n);
    return t;
}

static Result written(const char *name, Index index) { return tensor(name, index, 7.0f); }
static Result added(const char *name, Index index) { return tensor(name, index, 0.5f); }

static Result holding(const char *name, const float *x, Index index) {
    Result t = tensor(name, index, 0.0f);
    memcpy(t.x, x, t.n * sizeof *x);
    memcpy(t.before, x, t.n * sizeof *x);
    return t;
}

static float *normals(size_t n, double scale, double shift, Rng *rng) {
    float *x = alloc_or_die((n + GUARD) * sizeof *x, "an input");
    for (size_t i = 0; i < n; i++) x[i] = (float)(shift + scale * rng_normal(rng));
    for (size_t i = n; i < n + GUARD; i++) x[i] = OUTSIDE;       // for who reads past the end
    return x;
}

static double *doubles(size_t n) {
    double *x = alloc_or_die(n * sizeof *x, "what is expected");
    for (size_t i = 0; i < n; i++) x[i] = 0.0;
    return x;
}

// "gradients of h.0.ln_1.bias[row=0][column=3]", element i of all parameters of SMALL
static const char *parameter(const char *name, size_t i) {
    static char text[200];
    int k = 0;
    Tensor t = gpt2_tensor(&SMALL, k);
    while (i >= t.offset + t.count) t = gpt2_tensor(&SMALL, ++k);
    snprintf(text, sizeof text, "%s of %s[row=%zu][column=%zu]", name, t.key,
             (i - t.offset) / t.cols, (i - t.offset) % t.cols);
    return text;
}

// "dx[n=2][c=1]"; the rest of a name of several words follows the indices.
static const char *element(const char *name, Index index, size_t i) {
    static char text[200];
    if (index.names[0] == 'p') return parameter(name, i);
    size_t stride = 1, n = strlen(index.names), word = strcspn(name, " "), at = word;
    memcpy(text, name, word);
    for (size_t k = 0; k < n; k++) stride *= index.sizes[k];
    for (size_t k = 0; k < n; k++) {
        stride /= index.sizes[k];
        at += (size_t)snprintf(text + at, sizeof text - at, "[%c=%zu]", index.names[k],
                               i / stride % index.sizes[k]);
    }
    snprintf(text + at, sizeof text - at, "%s", name + word);
    return text;
}

// ---- threads ----

static const int THREADS[] = { 1, 4, 3 };        // a check runs once with each
static int run, threads;

#ifdef __SANITIZE_THREAD__
extern const void *_Atomic race_address, *_Atomic order_address;    // dev/exercises/threads.c

// "dwte[v=0][c=0]", or NULL if this is no element of a tensor.
static const char *element_at(const float *at) {
    for (size_t k = 0; k < n_known; k++)
        if (at >= known[k].x && at < known[k].x + known[k].n)
            return element(known[k].name, known[k].index, (size_t)(at - known[k].x));
    return NULL;
}

static void expect_no_race(void) {
    const float *race = race_address, *order = order_address;
    if (race && element_at(race))
        wrong("%s: one thread writes it while another reads or writes it; divide the loop so that "
              "each element belongs to one thread", element_at(race));
    if (race)
        wrong("threads share a variable that one of them writes: declare it inside the parallel "
              "loop, so that each thread has its own");
    if (order && element_at(order))
        wrong("%s: threads add to it in the order in which they happen to come, so its bits change "
              "from run to run; divide the loop so that each element belongs to one thread",
              element_at(order));
}
#else
static void expect_no_race(void) {}
#endif

// The first run logs each tensor's bits; the others compare.
static void expect_same_bits(const Result *t) {
    static float log[1 << 20];
    static size_t end;
    static int of_run;
    if (of_run != run) of_run = run, end = 0;
    if (end + t->n > sizeof log / sizeof *log) die("check: the log of bits is too short");
    float *first = log + end;
    end += t->n;
    if (run == 0) memcpy(first, t->x, t->n * sizeof *first);
    for (size_t i = 0; i < t->n; i++)
        if (memcmp(&first[i], &t->x[i], sizeof *first) != 0)
            wrong("%s is %.9g with 1 thread and %.9g with %d: the bits must be the same for any "
                  "number of threads, so the order of additions may not depend on it",
                  element(t->name, t->index, i), first[i], t->x[i], threads);
}

// ---- comparisons ----

// |x - a before - b exact| / |exact|
static double error_of(const Result *t, double a, const double *exact, double b) {
    double difference = 0.0, norm = 0.0;
    for (size_t i = 0; i < t->n; i++) {
        double d = t->x[i] - a*t->before[i] - b*exact[i];
        difference += d * d;
        norm += exact[i] * exact[i];
    }
    return sqrt(difference / (norm > 0.0 ? norm : 1.0));
}

static void expect_sane(const Result *t, const char *hint) {
    expect_no_race();
    for (size_t i = 0; i < t->n; i++)
        if (!isfinite(t->x[i]))
            wrong("%s is %f; %s", element(t->name, t->index, i), t->x[i], hint);
    for (size_t i = t->n; i < t->n + GUARD; i++)
        if (t->x[i] != OUTSIDE)
            wrong("%s: element %zu is written, and it has %zu: an index runs past its end",
                  t->name, i, t->n);
}

static size_t first_index(const Result *t, double keep, const double *exact) {
    double norm = 0.0;
    size_t i = 0;
    for (size_t k = 0; k < t->n; k++) norm += exact[k] * exact[k] / (double)t->n;
    double limit = TOLERANCE * (norm > 0.0 ? sqrt(norm) : 1.0);
    while (i + 1 < t->n && fabs(t->x[i] - keep*t->before[i] - exact[i]) <= limit) i++;
    return i;
}

// "dx[n=2][c=1] is 0.5, expected 0.25", of the first element that is wrong.
static const char *first_wrong(const Result *t, double keep, const double *exact) {
    static char text[300];
    size_t i = first_index(t, keep, exact);
    snprintf(text, sizeof text, "%s is %.6g, expected %.6g%s", element(t->name, t->index, i),
             t->x[i], keep*t->before[i] + exact[i],
             t->x[i] != t->before[i] ? "" : keep ? " (nothing is added)" : " (it is not written)");
    return text;
}

// Says what is wrong with t, if anything is. keep 1: `exact` was to be added to what t contained;
// keep 0: it was to be written.
static void expect(const Result *t, double keep, const double *exact, const char *hint) {
    double dot = 0.0, norm = 0.0;
    expect_sane(t, hint);
    double error = error_of(t, keep, exact, 1.0);
    if (error <= TOLERANCE) {
        expect_same_bits(t);
        return;
    }
    if (memcmp(t->x, t->before, t->n * sizeof *t->x) == 0)
        wrong(keep ? "%s: nothing is added to it" : "%s: it is not written", t->name);
    const char *first = first_wrong(t, keep, exact);
    if (keep && error_of(t, 0.0, exact, 1.0) <= TOLERANCE)
        wrong("%s: what it contained is lost: add with +=, do not write with =", first);
    if (!keep && error_of(t, 1.0, exact, 1.0) <= TOLERANCE)
        wrong("%s: it still contains what it contained before: write with =, do not add with +=",
              first);
    for (size_t i = 0; i < t->n; i++) {
        dot += (t->x[i] - keep*t->before[i]) * exact[i];
        norm += exact[i] * exact[i];
    }
    double times = norm > 0.0 ? dot / norm : 0.0;
    if (fabs(times) > 1e-3 && error_of(t, keep, exact, times) <= TOLERANCE * fabs(times))
        wrong("%s: all of %s is %.4g times what it should be; %s", first, t->name, times, hint);
    wrong("%s; %s", first, hint);
}

// Says so where t is `other`, what a typical mistake leaves in place of `exact`.
static void expect_not(const Result *t, const double *other, const double *exact,
                       const char *hint) {
    if (error_of(t, 0.0, other, 1.0) <= TOLERANCE && error_of(t, 0.0, exact, 1.0) > TOLERANCE)
        wrong("%s; %s", first_wrong(t, 0.0, exact), hint);
}

static void expect_written(const Result *t, const double *exact, const char *hint) {
    expect(t, 0.0, exact, hint);
}

static void expect_added(const Result *t, const double *exact, const char *hint) {
    expect(t, 1.0, exact, hint);
}

// ---- embedding ----

enum { EB = 2, ET = 5, EC = 3, EV = 7, EP = 9, EN = EB*ET };
static const int TOKENS[EN] = { 3, 0, 3, 6, 1, 3, 5, 5, 2, 0 };

static void check_embedding_forward(void) {
    Rng rng = rng_make(1, 0);
    float *wte = normals(EV*EC, 1, 0, &rng), *wpe = normals(EP*EC, 1, 0, &rng);
    Result x = written("x", INDEX("btc", EB, ET, EC));
    double *exact = doubles(EN*EC);
    for (int i = 0; i < EN*EC; i++) {
        int n = i / EC, t = n % ET;
        exact[i] = (double)wte[TOKENS[n]*EC + i%EC] + wpe[t*EC + i%EC];
    }
    embedding_forward(x.x, TOKENS, wte, wpe, EB, ET, EC);
    expect_written(&x, exact, "row b*T + t is wte's row of token[b*T + t] plus wpe's row t");
}

static void check_embedding_backward(void) {
    Rng rng = rng_make(1, 1);
    float *dx = normals(EN*EC, 1, 0, &rng);
    Result dwte = added("dwte", INDEX("vc", EV, EC)), dwpe = added("dwpe", INDEX("tc", EP, EC));
    double *tokens = doubles(EV*EC), *positions = doubles(EP*EC);
    for (int i = 0; i < EN*EC; i++) {
        tokens[TOKENS[i/EC]*EC + i%EC] += dx[i];
        positions[i/EC % ET * EC + i%EC] += dx[i];
    }
    embedding_backward(dwte.x, dwpe.x, dx, TOKENS, EB, ET, EC);
    expect_added(&dwte, tokens, "a token's row receives dx from every place where it stands");
    expect_added(&dwpe, positions, "position t receives dx from row t of every sequence");
}

// ---- softmax cross-entropy ----

enum { XN = 5, XV = 11, XVp = 16 };
static const int TARGETS[XN] = { 4, 10, 0, 0, 7 };

// Logits; row 1 is near -large, row 2 near large, row 3 begins with -large, row 4 ends with large.
// Columns V ... Vp-1 are greater by `padding`. Also each row's log sum exp.
static float *xent_logits(double *lse, float large, float padding) {
    Rng rng = rng_make(2, 0);
    float *logits = normals(XN*XVp, 2, 0, &rng);
    for (int n = 0; n < XN; n++) {
        double sum = 0.0, hi = -INFINITY, shift = n == 1 ? -large : n == 2 ? large : 0.0;
        for (int v = 0; v < XVp; v++)
            logits[n*XVp + v] += n == 3 && v == 0 ? -large : n == 4 && v == XV - 1 ? large :
                                 (float)shift + (v >= XV ? padding : 0.0f);
        for (int v = 0; v < XV; v++) hi = fmax(hi, logits[n*XVp + v]);
        for (int v = 0; v < XV; v++) sum += exp(logits[n*XVp + v] - hi);
        lse[n] = hi + log(sum);
    }
    return logits;
}

static void xent_forward_with(float large, float padding) {
    double lse_exact[XN], loss_exact[XN];
    float *logits = xent_logits(lse_exact, large, padding);
    Result loss = written("loss", INDEX("n", XN)), lse = written("lse", INDEX("n", XN));
    for (int n = 0; n < XN; n++) loss_exact[n] = lse_exact[n] - logits[n*XVp + TARGETS[n]];
    xent_forward(loss.x, lse.x, logits, TARGETS, XN, XV, XVp);
    expect_written(&lse, lse_exact, padding > 100.0f
                   ? "columns V ... Vp-1 are padding: neither the largest nor the sum reads them"
                   : large > 0.0f
                   ? "e^1000 overflows and e^-1000 is 0, in double too: before exp, subtract the "
                     "largest of the row's own V logits"
                   : "log of the sum of e^logit over columns 0 ... V-1 of its row, of Vp columns");
    expect_written(&loss, loss_exact, "loss = lse - the target's logit");
}

static void check_xent_forward(void) {
    xent_forward_with(0.0f, 20.0f);
    xent_forward_with(1000.0f, 20.0f);
    xent_forward_with(0.0f, 400.0f);
}

static void check_xent_backward(void) {
    double lse_exact[XN], *exact = doubles(XN*XVp);
    float lse[XN], scale = 0.125f, *logits = xent_logits(lse_exact, 1000.0f, NAN);
    Result d = holding("dlogits", logits, INDEX("nv", XN, XVp));
    for (int n = 0; n < XN; n++) {
        lse[n] = (float)lse_exact[n];
        for (int v = 0; v < XV; v++)
            exact[n*XVp + v] = scale * (exp((double)logits[n*XVp + v] - lse[n])
                                        - (v == TARGETS[n]));
    }
    xent_backward(d.x, lse, TARGETS, scale, XN, XV, XVp);
    bool touched = memcmp(d.x, d.before, sizeof(float) * d.n) != 0;
    for (int i = 0; i < XN*XVp; i++)
        if (touched && i % XVp >= XV && d.x[i] != 0.0f)
            wrong("dlogits[n=%d][v=%d] is %g, expected 0: column %d is padding; write 0 to columns "
                  "V ... Vp-1, which may contain anything", i / XVp, i % XVp, d.x[i], i % XVp);
    for (int i = 0; i < XN*XVp; i++)
        if (i % XVp >= XV) d.x[i] = d.before[i] = 0.0f;        // d.x is 0, or nothing is written
    expect_written(&d, exact, "(p - 1[target]) * scale, with p = e^(logit - lse); 0 in padding");
}

// ---- LayerNorm ----

enum { LN = 23, LC = 5 };

static void layernorm_exact(double *mean, double *rstd, const float *x) {
    for (int n = 0; n < LN; n++) {
        double var = 0.0;
        mean[n] = 0.0;
        for (int c = 0; c < LC; c++) mean[n] += (double)x[n*LC + c] / LC;
        for (int c = 0; c < LC; c++) var += pow(x[n*LC + c] - mean[n], 2) / LC;
        rstd[n] = 1.0 / sqrt(var + 1e-5);
    }
}

static void check_layernorm_forward(void) {
    Rng rng = rng_make(3, 0);
    float *x = normals(LN*LC, 2, 1, &rng);
    float *gain = normals(LC, 0.3, 1, &rng), *bias = normals(LC, 0.3, 0, &rng);
    for (int c = 0; c < LC; c++) x[c] = x[c]*1e-3f + 1.0f;     // a row where 1e-5 shows
    double mean_exact[LN], rstd_exact[LN], exact[LN*LC];
    Result mean = written("mean", INDEX("n", LN)), rstd = written("rstd", INDEX("n", LN));
    Result out = written("out", INDEX("nc", LN, LC));
    layernorm_exact(mean_exact, rstd_exact, x);
    for (int i = 0; i < LN*LC; i++)
        exact[i] = (x[i] - mean_exact[i/LC]) * rstd_exact[i/LC] * gain[i%LC] + bias[i%LC];
    layernorm_forward(out.x, mean.x, rstd.x, x, gain, bias, LN, LC);
    expect_written(&mean, mean_exact, "the mean of a row's C channels");
    double other[4][LN];
    for (int n = 0; n < LN; n++) {
        double var = 1.0 / (rstd_exact[n] * rstd_exact[n]) - 1e-5;
        other[0][n] = 1.0 / sqrt(var), other[1][n] = 1.0 / (sqrt(var) + 1e-5);
        other[2][n] = 1.0 / sqrt(var * LC / (LC - 1) + 1e-5), other[3][n] = 1.0 / rstd_exact[n];
    }
    expect_not(&rstd, other[0], rstd_exact, "1e-5 is missing under the root: 1/sqrt(var + 1e-5)");
    expect_not(&rstd, other[1], rstd_exact, "1e-5 belongs under the root: 1/sqrt(var + 1e-5)");
    expect_not(&rstd, other[2], rstd_exact, "var is the mean over C channels, not over C - 1");
    expect_not(&rstd, other[3], rstd_exact, "this is its inverse, sqrt(var + 1e-5)");
    expect_written(&rstd, rstd_exact, "1/sqrt(var + 1e-5); var is the mean, over C, of the squared "
                   "distances from the row's mean");
    expect_written(&out, exact, "out = (x - mean) * rstd * gain + bias; gain and bias have "
                   "a number for each channel");
}

static void check_layernorm_backward(void) {
    Rng rng = rng_make(3, 1);
    float *x = normals(LN*LC, 2, 1, &rng), *gain = normals(LC, 0.3, 1, &rng);
    float *dout = normals(LN*LC, 1, 0.5, &rng), mean[LN], rstd[LN];
    double mean_exact[LN], rstd_exact[LN];
    double *dx_exact = doubles(LN*LC), *dgain_exact = doubles(LC), *dbias_exact = doubles(LC);
    double *no_means = doubles(LN*LC);
    for (int c = 0; c < LC; c++) x[c] = (x[c] - 1.0f) * 1e-3f;     // a row where 1e-5 shows
    layernorm_exact(mean_exact, rstd_exact, x);
    for (int n = 0; n < LN; n++) {
        double r = rstd_exact[n], xhat[LC], g[LC];
        mean[n] = (float)mean_exact[n], rstd[n] = (float)r;
        for (int c = 0; c < LC; c++) {
            xhat[c] = (x[n*LC + c] - mean_exact[n]) * r;
            g[c] = (double)dout[n*LC + c] * gain[c];
            dgain_exact[c] += dout[n*LC + c] * xhat[c];
            dbias_exact[c] += dout[n*LC + c];
        }
        for (int c = 0; c < LC; c++)       // through the Jacobian d out_k / d x_c, written out
            for (int k = 0; k < LC; k++)
                dx_exact[n*LC + c] += g[k] * r * ((k == c) - 1.0/LC - xhat[k]*xhat[c]/LC);
        for (int c = 0; c < LC; c++) no_means[n*LC + c] = g[c] * r;
    }
    for (int in_place = 0; in_place < 2; in_place++) {
        Index nc = INDEX("nc", LN, LC), c = INDEX("c", LC);
        Result dx = in_place ? holding("dx (the same memory as dout)", dout, nc)
                             : written("dx", nc);
        Result dgain = added(in_place ? "dgain (dx in dout's memory)" : "dgain", c);
        Result dbias = added(in_place ? "dbias (dx in dout's memory)" : "dbias", c);
        layernorm_backward(dx.x, dgain.x, dbias.x, in_place ? dx.x : dout, x, mean, rstd, gain,
                           LN, LC);
        expect_added(&dgain, dgain_exact, in_place ? "dx may overwrite dout: write dgain first"
                     : "the sum over rows of dout * xhat, with xhat = (x - mean) * rstd");
        expect_added(&dbias, dbias_exact, in_place ? "dx may overwrite dout: write dbias first"
                     : "the sum over rows of dout");
        expect_not(&dx, no_means, dx_exact, "mean and rstd depend on x too: two means over the "
                   "row are missing");
        expect_written(&dx, dx_exact, in_place ? "read a row of dout before dx overwrites it"
                       : "(g - mean(g) - xhat * mean(g * xhat)) * rstd, with g = dout * gain, "
                         "means over C, and the rstd that forward kept");
    }
}

// ---- MLP ----

static double gelu_exact(double x) {
    return 0.5 * x * (1.0 + tanh(sqrt(2.0 / acos(-1.0)) * (x + 0.044715 * x*x*x)));
}

// The slope of GELU at x; `mistake` 1 ... 4 are typical ones.
static double gelu_slope(double x, int mistake) {
    double u = sqrt(2.0 / acos(-1.0)) * (x + 0.044715 * x*x*x), s = 1.0 / (1.0 + exp(-2.0 * u));
    double du = sqrt(2.0 / acos(-1.0)) * (1.0 + (mistake == 1 ? 1 : 3) * 0.044715 * x*x);
    if (mistake == 4)
        return 0.5 * erfc(-x / sqrt(2.0)) + x * exp(-x*x / 2.0) / sqrt(2.0 * acos(-1.0));
    return s + (mistake == 2 ? 1.0 : 2.0) * (mistake == 3 ? 0.0 : x * s * (1.0 - s) * du);
}

static void check_gelu_backward(void) {
    enum { N = 1001 };
    static const char *hints[] = { "du/dx is sqrt(2/pi) (1 + 3*0.044715 x^2), with the 3",
                                   "s has the argument 2u, so its slope is s (1 - s) 2 du/dx",
                                   "x s is a product: s, and x times the slope of s",
                                   "this is the slope of the exact GELU; gelu_forward has tanh" };
    Rng rng = rng_make(4, 0);
    float *x = normals(N, 3, 0, &rng), *dout = normals(N, 1, 0, &rng);
    double *exact = doubles(N), *other[4], h = 1e-4;
    x[N - 4] = 30.0f, x[N - 3] = -30.0f, x[N - 2] = 300.0f, x[N - 1] = -300.0f;
    for (int i = 0; i < N; i++)
        exact[i] = dout[i] * (gelu_exact(x[i] + h) - gelu_exact(x[i] - h)) / (2.0 * h);
    for (int k = 0; k < 4; k++) {
        other[k] = doubles(N);
        for (int i = 0; i < N; i++) other[k][i] = dout[i] * gelu_slope(x[i], k + 1);
    }
    for (int in_place = 0; in_place < 2; in_place++) {
        Index i = INDEX("i", N);
        Result dx = in_place ? holding("dx (the same memory as dout)", dout, i) : written("dx", i);
        gelu_backward(dx.x, in_place ? dx.x : dout, x, N);
        expect_sane(&dx, "the last four x are 30, -30, 300 and -300, where e^2u overflows: inf/inf "
                    "is no number");
        for (int k = 0; k < 4; k++) expect_not(&dx, other[k], exact, hints[k]);
        expect_written(&dx, exact, in_place ? "read dout[i] before dx[i] is written"
                       : "dout times the slope of GELU at x: s + x s (1 - s) 2 du/dx");
    }
}

static void check_linear_backward(void) {
    enum { N = 6, C = 4, OC = 3 };
    Rng rng = rng_make(5, 0);
    float *x = normals(N*C, 1, 0, &rng), *w = normals(C*OC, 1, 0, &rng);
    float *dout = normals(N*OC, 1, 0, &rng);
    Result dx = written("dx", INDEX("nc", N, C)), dw = added("dw", INDEX("co", C, OC));
    Result db = added("db", INDEX("o", OC));
    double *dx_exact = doubles(N*C), *dw_exact = doubles(C*OC), *db_exact = doubles(OC);
    for (int n = 0; n < N; n++)
        for (int o = 0; o < OC; o++) {
            double d = dout[n*OC + o];
            db_exact[o] += d;
            for (int c = 0; c < C; c++) {
                dx_exact[n*C + c] += d * w[c*OC + o];
                dw_exact[c*OC + o] += d * x[n*C + c];
            }
        }
    linear_backward(dx.x, dw.x, db.x, dout, x, w, N, C, OC);
    expect_written(&dx, dx_exact, "dx (N,C) = dout (N,OC) times w (C,OC) transposed");
    expect_added(&dw, dw_exact, "dw (C,OC) += x (N,C) transposed times dout (N,OC)");
    expect_added(&db, db_exact, "db (OC) += the sum of dout's rows: bias_backward does it");
}

// ---- attention ----

typedef void AttentionForward(float *out, float *lse, float *scratch, const float *qkv,
                              int B, int T, int first, int C, int NH);

// One head in double precision: weights p (T,T), out (T,HS), lse (T). q, k, v: rows of 3C.
static void attention_exact(double *p, double *out, double *lse, const float *q, int T, int C,
                            int HS) {
    const float *k = q + C, *v = k + C;
    for (int t = 0; t < T; t++) {
        double sum = 0.0, hi = -INFINITY, *s = p + t*T;
        for (int u = 0; u <= t; u++) {
            s[u] = 0.0;
            for (int i = 0; i < HS; i++) s[u] += q[t*3*C + i] * k[u*3*C + i] / sqrt(HS);
            hi = fmax(hi, s[u]);
        }
        for (int u = 0; u < T; u++) sum += s[u] = u <= t ? exp(s[u] - hi) : 0.0;
        lse[t] = hi + log(sum);
        for (int u = 0; u < T; u++) p[t*T + u] /= sum;
        for (int i = 0; i < HS; i++) {
            out[t*HS + i] = 0.0;
            for (int u = 0; u <= t; u++) out[t*HS + i] += p[t*T + u] * v[u*3*C + i];
        }
    }
}

static float *attention_scratch_of(int T, int HS) {
    size_t n = thread_count()*attention_scratch(T, HS);
    float *scratch = alloc_or_die(n * sizeof *scratch, "scratch");
    remember("scratch", INDEX("i", n), scratch, n);
    return scratch;
}

// T rows of each sequence, of which the first `past` were computed before. `large`: the scores of
// query 2 are near 1000, those of query 3 near -1000, that of query 5 and its own key too, and all
// are exact in float.
static void check_attention_forward(AttentionForward *forward, int T, int past, bool large) {
    enum { B = 2, NH = 2 };
    const char *hint = past ? "only the rows behind the past are computed; a sequence has past + T "
                              "rows" : large ? "e^1000 overflows and e^-1000 is 0, in double too: "
                              "before exp, subtract the largest of the query's own scores" : NULL;
    Rng rng = rng_make(6, 0);
    int HS = large ? 4 : 3, C = NH*HS;
    size_t N = (size_t)B*T;
    float *qkv = normals(N*3*C, 1, 0, &rng);
    for (size_t i = 0; large && i < N*3*C; i++) {
        size_t t = i / (3*C) % T, c = i % (3*C);
        qkv[i] = rintf(qkv[i] * 8.0f) / 8.0f;
        if (c % HS == 0 && c < (size_t)C) qkv[i] = t == 2 ? 2000.0f : t == 3 ? -2000.0f : 0.0f;
        if (c % HS == 0 && c / C == 1) qkv[i] = 1.0f;
        if (c % HS == 1 && c < (size_t)C) qkv[i] = t == 5 ? 2000.0f : 0.0f;
        if (c % HS == 1 && c / C == 1) qkv[i] = t == 5 ? -1.0f : 0.0f;
    }
    double *p = doubles((size_t)T*T), *head = doubles(T*HS), *out_exact = doubles(N*C);
    double *lse_exact = doubles(N*NH);
    Result out = written(past ? "out (past > 0)" : "out", INDEX("btc", B, T, C));
    Result lse = written(past ? "lse (past > 0)" : "lse", INDEX("bht", B, NH, T));
    for (int b = 0; b < B; b++) for (int h = 0; h < NH; h++) {
        double *head_lse = lse_exact + (b*NH + h)*T;
        attention_exact(p, head, head_lse, qkv + (size_t)b*T*3*C + h*HS, T, C, HS);
        for (int t = 0; t < T; t++) {
            if (t < past) head_lse[t] = 7.0;
            for (int i = 0; i < HS; i++)
                out_exact[((size_t)b*T + t)*C + h*HS + i] = t < past ? 7.0 : head[t*HS + i];
        }
    }
    forward(out.x + past*C, lse.x + past, attention_scratch_of(T, HS), qkv + past*3*C, B, T - past,
            past, C, NH);
    bool first_query = first_index(&lse, 0.0, lse_exact) % T == 0;
    expect_written(&lse, lse_exact, hint ? hint : first_query
                   ? "query 0 sees one key, its own, so this is q . k / sqrt(HS)"
                   : "lse (B,NH,T): log of the sum of e^(q . k / sqrt(HS)) over t2 <= t");
    expect_written(&out, out_exact, hint ? hint
                   : "the values of tokens t2 <= t, weighted by the softmax; head h owns columns "
                     "h*HS ...");
}

static void check_attention_plain(void) {
    check_attention_forward(attention_forward_plain, 7, 0, false);
    check_attention_forward(attention_forward_plain, 7, 0, true);
    check_attention_forward(attention_forward_plain, 7, 4, false);
}

static void check_attention_tiled(void) {        // blocks of 32 queries meet
    check_attention_forward(attention_forward_fast, 71, 0, false);
    check_attention_forward(attention_forward_fast, 71, 37, false);
    check_attention_forward(attention_forward_fast, 71, 70, false);
}

// Splits dqkv (N,3C) into the gradients of queries, keys and values, for the messages.
static void expect_part(const Result *dqkv, const double *exact, int part, int B, int T, int C,
                        const char *hint) {
    static const char *names[] = { "dq", "dk", "dv" };
    Result d = written(names[part], INDEX("btc", B, T, C));
    int N = B*T;
    double *d_exact = doubles((size_t)N*C);
    for (int i = 0; i < N*C; i++) {
        size_t at = (size_t)(i/C)*3*C + part*C + i%C;
        d.x[i] = dqkv->x[at], d.before[i] = dqkv->before[at], d_exact[i] = exact[at];
    }
    expect_written(&d, d_exact, hint);
}

static void check_attention_backward(void) {
    enum { B = 2, T = 7, NH = 2, HS = 3, C = NH*HS, N = B*T };
    Rng rng = rng_make(7, 0);
    float *qkv = normals(N*3*C, 1, 0, &rng), *dout = normals(N*C, 1, 0, &rng);
    float out[N*C], lse[N*NH];
    double p[T*T], head[T*HS], head_lse[T], *exact = doubles(N*3*C);
    for (int b = 0; b < B; b++) for (int h = 0; h < NH; h++) {
        const float *q = qkv + b*T*3*C + h*HS, *k = q + C, *v = k + C;
        double *dq = exact + b*T*3*C + h*HS, *dk = dq + C, *dv = dk + C;
        attention_exact(p, head, head_lse, q, T, C, HS);
        for (int t = 0; t < T; t++) {
            const float *d_o = dout + (b*T + t)*C + h*HS;
            double dp[T] = {0}, sum = 0.0;
            lse[(b*NH + h)*T + t] = (float)head_lse[t];
            for (int i = 0; i < HS; i++) out[(b*T + t)*C + h*HS + i] = (float)head[t*HS + i];
            for (int u = 0; u <= t; u++) {
                for (int i = 0; i < HS; i++) dp[u] += (double)d_o[i] * v[u*3*C + i];
                sum += p[t*T + u] * dp[u];
            }
            for (int u = 0; u <= t; u++) for (int i = 0; i < HS; i++) {
                double ds = p[t*T + u] * (dp[u] - sum) / sqrt(HS);
                dq[t*3*C + i] += ds * k[u*3*C + i];
                dk[u*3*C + i] += ds * q[t*3*C + i];
                dv[u*3*C + i] += p[t*T + u] * d_o[i];
            }
        }
    }
    Result dqkv = written("dqkv", INDEX("btc", B, T, 3*C));
    attention_backward_plain(dqkv.x, attention_scratch_of(T, HS), dout, qkv, out, lse, B, T, C, NH);
    expect_sane(&dqkv, "dqkv (B,T,3C) must be written, all of it");
    expect_part(&dqkv, exact, 2, B, T, C, "dv_t2 += p_t,t2 dout_t, over t >= t2, with "
                "p = e^(q . k / sqrt(HS) - lse_t)");
    expect_part(&dqkv, exact, 0, B, T, C, "dq_t += ds_t,t2 k_t2 / sqrt(HS), with "
                "ds = p (dout . v - d) and d = dout_t . out_t");
    expect_part(&dqkv, exact, 1, B, T, C, "dk_t2 += ds_t,t2 q_t / sqrt(HS)");
}

// ---- optimizer ----

// Parameters p (n) after an update with typical mistakes.
static void expect_no_adamw_mistake(const Result *p, const double *before, const double *m,
                                    const double *v, const double *after, AdamW o) {
    static const char *hints[] = {
        "the bias correction is missing: m / (1 - beta1^t) and v / (1 - beta2^t) at update t",
        "eps is added to the root, not under it", "the rate multiplies the decay too",
        "the decay is missing: lr * weight_decay * p", "p moves against the gradient: with -=",
        "the bias correction of v stands under the root, with v",
    };
    double c1 = 1.0 - pow(o.beta1, o.m_steps), c2 = 1.0 - pow(o.beta2, o.v_steps);
    for (int k = 0; k < 6; k++) {
        double *other = doubles(p->n);
        for (size_t i = 0; i < p->n; i++) {
            double root = k == 1 ? sqrt(v[i]/c2 + o.eps) : (k == 0 ? sqrt(v[i]) :
                          k == 5 ? sqrt(v[i])/c2 : sqrt(v[i]/c2)) + o.eps;
            double step = o.lr * (k == 0 ? m[i] : m[i]/c1) / root;
            double decay = (k == 2 ? 1.0 : k == 3 ? 0.0 : o.lr) * o.weight_decay * before[i];
            other[i] = before[i] + (k == 4 ? 1.0 : -1.0) * (step + decay);
        }
        expect_not(p, other, after, hints[k]);
        free(other);
    }
}

static void check_adamw_update(void) {
    enum { N = 37, STEPS = 4 };
    AdamW o = { .lr = 0.1f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-2f, .weight_decay = 0.1f };
    Rng rng = rng_make(8, 0);
    Result p = holding("p", normals(N, 1, 0, &rng), INDEX("i", N));
    Result m = tensor("m", INDEX("i", N), 0.0f), v = tensor("v", INDEX("i", N), 0.0f);
    double ep[N], em[N] = {0}, ev[N] = {0}, before[N];
    for (int i = 0; i < N; i++) ep[i] = p.x[i];
    for (int step = 1; step <= STEPS; step++) {
        float *g = normals(N, 1, 0, &rng);
        o.m_steps = o.v_steps = step;
        for (int i = 0; i < N; i++) {
            double gi = 0.5 * g[i], b1 = o.beta1, b2 = o.beta2;
            before[i] = ep[i];
            em[i] = b1*em[i] + (1.0 - b1)*gi;
            ev[i] = b2*ev[i] + (1.0 - b2)*gi*gi;
            double mean = em[i] / (1.0 - pow(b1, step));
            double square = ev[i] / (1.0 - pow(b2, step));
            ep[i] -= o.lr * (mean / (sqrt(square) + o.eps) + o.weight_decay * ep[i]);
        }
        adamw_update(p.x, m.x, v.x, g, 0.5f, o, N);
        free(g);
        expect_written(&m, em, "m = beta1 m + (1 - beta1) g, with g scaled by g_scale");
        expect_written(&v, ev, "v = beta2 v + (1 - beta2) g^2, with g scaled by g_scale");
        expect_no_adamw_mistake(&p, before, em, ev, ep, o);
        expect_written(&p, ep, "p -= lr (m^ / (sqrt(v^) + eps) + weight_decay p), with m^ and v^ "
                       "after bias correction");
    }
}

static void check_global_norm(void) {
    enum { CHUNKS = 40, EACH = 1250, N = CHUNKS*EACH, NOT_OURS = 16 };
    static Model m;
    Rng rng = rng_make(9, 0);
    float *grads = normals(N, 1, 0, &rng);
    Chunk chunks[CHUNKS];
    double partials[CHUNKS], sum = 0.0, not_ours = 0.0;
    for (int i = 0; i < CHUNKS; i++) {       // another rank counts NOT_OURS
        size_t at = (size_t)i*EACH;
        chunks[i] = (Chunk){ at + 5, at, at + 3, EACH, i % 2 == 0, i != NOT_OURS };
        partials[i] = 7.0;
    }
    for (int i = 0; i < N; i++)
        *(i / EACH == NOT_OURS ? &not_ours : &sum) += (double)grads[i] * grads[i];
    m.zero.grads = grads, m.zero.chunks = chunks, m.zero.n_chunks = CHUNKS;
    m.zero.norm_partials = partials;
    double got = gradients_squares(&m), error = fabs(got - sum) / sum;
    static double first;
    if (run == 0) first = got;
    expect_no_race();
    if (error <= 1e-10 && got != first)
        wrong("the sum is %.17g with 1 thread and %.17g with %d: the bits must be the same for any "
              "number of threads, so add the chunks' sums in order", first, got, threads);
    if (error <= 1e-10) return;
    if (got == 0.0) wrong("the sum is 0: return the sum of the squares of all chunks' gradients");
    if (fabs(got - sqrt(sum)) < 1e-3)
        wrong("the sum is %.2f: this is the norm; return its square, the root comes later", got);
    if (fabs(got - sum - not_ours) < 1.0)
        wrong("the sum includes a chunk whose `counts` is false");
    if (error < 1e-6)
        wrong("the sum: relative error %.1e, expected below 1e-10; sum in double, and square in "
              "double", error);
    wrong("the sum is %.1f, expected %.1f; chunk i has `count` gradients from grads + its `grad`",
          got, sum);
}

// ---- sampling ----

// Draws often and compares how often each token came with p.
static void expect_draws(const char *what, Sampler s, const double *p, const char *hint) {
    enum { V = 5, DRAWS = 40000 };
    static const double weight[V] = { 0.1, 0.4, 0.05, 0.25, 0.2 };
    float logits[V];
    int drawn[V] = {0};
    Candidate candidates[2*V];             // there are V; the others would be drawn at once
    Rng rng = rng_make(10, 0);
    s.candidates = candidates;
    for (int v = V; v < 2*V; v++) candidates[v] = (Candidate){ .p = 9.0f, .id = 0 };
    for (int v = 0; v < V; v++) logits[v] = (float)log(weight[v]) + 300.0f;  // e^300 overflows
    for (int n = 0; n < DRAWS; n++) {
        int id = sample_token(&s, logits, V, &rng);
        if (id < 0 || id >= V) wrong("%s: %d is drawn; tokens are 0 ... V-1", what, id);
        drawn[id]++;
    }
    for (int v = 0; v < V; v++)
        if (drawn[v] == DRAWS && p[v] < 1.0)
            wrong("%s: token %d is drawn each time, expected in %.3f of the draws; does exp "
                  "overflow, and is a new rng_uniform used?", what, v, p[v]);
    for (int v = 0; v < V; v++) {
        double share = (double)drawn[v] / DRAWS;
        if (s.top_k + (s.top_p < 1.0f) && fabs((double)drawn[0] / DRAWS - p[1]) < 0.015)
            wrong("%s: token 0 is drawn as often as token 1 should be; candidates are sorted, so "
                  "return the id of the one that is drawn, not its place", what);
        if (fabs(share - p[v]) > (p[v] == 0.0 ? 0.0 : 0.015))
            wrong("%s: token %d is drawn in %.3f of the draws, expected %.3f; %s", what, v, share,
                  p[v], hint);
    }
}

static void check_sample_token(void) {
    expect_draws("temperature 0", (Sampler){ .top_p = 1.0f }, (double[]){ 0, 1, 0, 0, 0 },
                 "it takes the likeliest");
    expect_draws("temperature 1", (Sampler){ .temperature = 1.0f, .top_p = 1.0f },
                 (double[]){ 0.1, 0.4, 0.05, 0.25, 0.2 },
                 "token v has the part p_v of the line from 0 to the sum of all p: walk along it");
    expect_draws("temperature 0.5", (Sampler){ .temperature = 0.5f, .top_p = 1.0f },
                 (double[]){ 0.01/0.275, 0.16/0.275, 0.0025/0.275, 0.0625/0.275, 0.04/0.275 },
                 "divide the logits by the temperature");
    expect_draws("top_k 2", (Sampler){ .temperature = 1.0f, .top_k = 2, .top_p = 1.0f },
                 (double[]){ 0, 0.4/0.65, 0, 0.25/0.65, 0 },
                 "keep the k likeliest, and divide by the sum of these");
    expect_draws("top_k 9", (Sampler){ .temperature = 1.0f, .top_k = 9, .top_p = 1.0f },
                 (double[]){ 0.1, 0.4, 0.05, 0.25, 0.2 }, "there are only V = 5 tokens to keep");
    expect_draws("top_p 0.7", (Sampler){ .temperature = 1.0f, .top_p = 0.7f },
                 (double[]){ 0, 0.4/0.85, 0, 0.25/0.85, 0.2/0.85 },
                 "keep the fewest likeliest tokens that have 0.7 of the probability");
    expect_draws("top_k 3 and top_p 0.7",
                 (Sampler){ .temperature = 1.0f, .top_k = 3, .top_p = 0.7f },
                 (double[]){ 0, 0.4/0.85, 0, 0.25/0.85, 0.2/0.85 },
                 "top_p is a part of the probability of all tokens, not of the top_k");
    expect_draws("top_k 4 and top_p 0.3",
                 (Sampler){ .temperature = 1.0f, .top_k = 4, .top_p = 0.3f },
                 (double[]){ 0, 1, 0, 0, 0 }, "the likeliest token is always kept");
}

// ---- a whole model: these call the other layers ----

static void small_model(Model *m, int *inputs, int *targets) {
    static Machine machine;
    ModelSpec spec = { .c = SMALL, .B = MB, .T = MT, .use = TRAIN };
    Rng rng = rng_make(11, 0);
    model_init(m, &spec, &machine);
    for (size_t i = 0; i < gpt2_n_params(&SMALL); i++)
        m->zero.masters[i] = (float)(0.3 * rng_normal(&rng));
    for (int i = 0; i < MN; i++) {
        inputs[i] = (int)rng_below(&rng, MV);
        targets[i] = (int)rng_below(&rng, MV);
    }
}

// Block l on all rows of one sequence, for comparison: x (T,C) becomes the block's output.
static void block_of_all_rows(Model *m, int l, float *x) {
    enum { C = 8, T = MT };
    Block w = m->w.block[l];
    float ln[T*C], mean[T], rstd[T], qkv[T*3*C], att[T*C], lse[2*T], fc[T*4*C], branch[T*C];
    layernorm_forward(ln, mean, rstd, x, w.ln1_gain, w.ln1_bias, T, C);
    linear_forward(qkv, ln, w.qkv_w, w.qkv_b, T, C, 3*C);
    attention_forward_plain(att, lse, m->scratch, qkv, 1, T, 0, C, 2);
    linear_forward(branch, att, w.att_proj_w, w.att_proj_b, T, C, C);
    residual_forward(x, x, branch, T*C);
    layernorm_forward(ln, mean, rstd, x, w.ln2_gain, w.ln2_bias, T, C);
    linear_forward(fc, ln, w.fc_w, w.fc_b, T, C, 4*C);
    gelu_forward(fc, fc, T*4*C);
    linear_forward(branch, fc, w.mlp_proj_w, w.mlp_proj_b, T, 4*C, C);
    residual_forward(x, x, branch, T*C);
}

// What an earlier call left in a block would hide that this one does not compute it.
static void forget(BlockActs a, size_t T, size_t C) {
    for (size_t i = 0; i < T*C; i++)
        a.ln1[i] = a.att[i] = a.x_mid[i] = a.ln2[i] = a.x_out[i] = 7.0f;
    for (size_t i = 0; i < 3*T*C; i++) a.qkv[i] = 7.0f;
    for (size_t i = 0; i < 4*T*C; i++) a.fc[i] = a.gelu[i] = 7.0f;
}

// Of tensors with MN rows of `width` numbers: all but rows past ... T-1, which model_extend is for.
typedef void OtherRows(const char *name, float *x, size_t past, size_t T, size_t width);

static void mark(const char *name, float *x, size_t past, size_t T, size_t width) {
    (void)name;
    for (size_t i = 0; i < MN*width; i++) if (i < past*width || i >= T*width) x[i] = OUTSIDE;
}

static void expect_marked(const char *name, float *x, size_t past, size_t T, size_t width) {
    for (size_t i = 0; i < past*width; i++)
        if (x[i] != OUTSIDE)
            wrong("%s: row %zu is written again; its key and value are in the cache, so compute "
                  "rows past ... T-1 only, each in its place", name, i / width);
    for (size_t i = T*width; i < MN*width; i++)
        if (x[i] != OUTSIDE)
            wrong("%s: row %zu is written, and there are %zu tokens; T - past rows are new, and "
                  "the first of them is row `past`", name, i / width, T);
}

// All but the keys and values of the past, which are in qkv.
static void of_others(OtherRows *rows, Model *m, size_t past, size_t T) {
    size_t C = SMALL.C;
    rows("x_in", m->x_in, past, T, C);
    for (int l = 0; l < SMALL.L; l++) {
        BlockActs *a = &m->acts[l];
        rows("ln1", a->ln1, past, T, C), rows("att", a->att, past, T, C);
        rows("qkv", a->qkv, 0, T, 3*C);
        rows("x_mid", a->x_mid, past, T, C), rows("ln2", a->ln2, past, T, C);
        rows("fc", a->fc, past, T, 4*C), rows("gelu", a->gelu, past, T, 4*C);
        rows("x_out", a->x_out, past, T, C);
    }
    rows("lnf", m->lnf, past, T, C);
}

static void expect_logits(const Model *m, const float *x) {
    const float *last = m->lnf + (MT - 1)*SMALL.C;
    double exact[MV] = {0};
    if (!x) wrong("the logits that model_extend returns are NULL: return model_logits(m, T - 1)");
    Result logits = written("logits that model_extend returns", INDEX("v", MV));
    memcpy(logits.x, x, sizeof exact / sizeof *exact * sizeof *x);
    for (int i = 0; i < MV*SMALL.C; i++)
        exact[i / SMALL.C] += (double)last[i % SMALL.C] * m->w.wte[i];
    expect_written(&logits, exact, "they are those of the last row, T - 1");
}

static void check_kv_cache(void) {
    enum { C = 8, T = MT, HALF = 3 };
    static Model m;
    int inputs[MN], targets[MN];
    float x[T*C], mean[T], rstd[T];
    double exact[2][T*C], *block = exact[0], *norm = exact[1];
    small_model(&m, inputs, targets);
    embedding_forward(x, inputs, m.w.wte, m.w.wpe, 1, T, C);
    for (int l = 0; l < SMALL.L; l++) block_of_all_rows(&m, l, x);
    for (int i = 0; i < T*C; i++) block[i] = x[i];
    layernorm_forward(x, mean, rstd, x, m.w.lnf_gain, m.w.lnf_bias, T, C);
    for (int i = 0; i < T*C; i++) norm[i] = x[i];
    BlockActs *a = &m.acts[SMALL.L - 1];
    for (int stage = 0; stage < 2; stage++) {      // all rows at once; then in three pieces
        for (int l = 0; l < SMALL.L; l++) forget(m.acts[l], T, C);
        for (int k = 0; k < T*C; k++) m.x_in[k] = 7.0f;
        static const int ends[2][3] = { { T, 0, 0 }, { HALF, HALF + 1, T } };
        const char *of = stage ? "x_out of the last block (three calls: rows 0 ... 2, 3, 4 ... 7)"
                               : "x_out of the last block (past = 0)";
        Index tc = INDEX("tc", T, C);
        Result out = written(of, tc), lnf = written(stage ? "lnf (three calls)" : "lnf", tc);
        for (int k = 0; k < T*C; k++) m.lnf[k] = 7.0f;
        const float *logits = NULL;
        for (int i = 0, past = 0; i < 3 && past < T; past = ends[stage][i++]) {
            size_t from = (size_t)past*C, some = (size_t)ends[stage][i]*C - from;
            of_others(mark, &m, past, ends[stage][i]);
            logits = model_extend(&m, inputs, ends[stage][i], past);
            of_others(expect_marked, &m, past, ends[stage][i]);
            memcpy(out.x + from, a->x_out + from, some * sizeof *out.x);
            memcpy(lnf.x + from, m.lnf + from, some * sizeof *lnf.x);
        }
        expect_written(&out, block, stage
            ? "the new rows' tokens, positions and tensors begin at row `past`; block_forward gets "
              "T - past rows" : "embedding, every block, as in model_forward");
        expect_written(&lnf, norm, "the final LayerNorm, of the new rows");
        expect_logits(&m, logits);
    }
}

enum { MICRO = 2 };                    // sequences of a micro-batch: two make the batch
static int step_inputs[MN], step_targets[MN], data_calls, ended;
static AdamW step_adamw;
static Totals step_totals;

static void check_step_begin(Run *r, Step *s) {
    (void)r;
    memset(s, 0, sizeof *s);
    s->B = MICRO, s->T = MT, s->micro_batches = MB / MICRO, s->scale = 1.0f / MN;
    step_adamw.m_steps++, step_adamw.v_steps++;
    s->adamw = step_adamw;
}

static void check_next_batch(Run *r, Step *s, size_t i) {
    if (i >= s->micro_batches) wrong("micro-batch %zu is asked for, of %zu", i, s->micro_batches);
    data_calls++;
    memcpy(r->inputs, step_inputs + i*MICRO*MT, MICRO*MT * sizeof(int));
    memcpy(r->targets, step_targets + i*MICRO*MT, MICRO*MT * sizeof(int));
}

static void check_step_end(Run *r, Step *s, const Totals *t) {
    (void)r, (void)s;
    ended++;
    step_totals = *t;
}

// Gradients (n) of a batch of two micro-batches, and what typical mistakes leave in their place.
static void expect_gradients(const Model *m, Model *whole, size_t n) {
    double *exact = doubles(n), *last = doubles(n);
    Result grads = tensor("gradients", INDEX("p", n), 0.125f);
    memcpy(grads.x, m->zero.grads, n * sizeof *grads.x);
    for (size_t i = 0; i < n; i++) exact[i] = whole->zero.grads[i];
    clear_grads(whole);
    model_forward(whole, step_inputs + MN/2, MICRO, MT);
    model_backward(whole, step_inputs + MN/2, step_targets + MN/2, 1.0f / MN, MICRO, MT);
    for (size_t i = 0; i < n; i++) last[i] = whole->zero.grads[i], whole->zero.grads[i] = exact[i];
    if (data_calls == 0) wrong("next_batch is not called: no micro-batch is read");
    if (data_calls != MB / MICRO)
        wrong("%d micro-batches are read, expected s->micro_batches = %d", data_calls, MB / MICRO);
    if (error_of(&grads, 1.0, exact, 1.0) <= TOLERANCE)
        wrong("%s: the last update's gradients are still in it; call clear_grads before the first "
              "micro-batch", first_wrong(&grads, 0.0, exact));
    expect_not(&grads, last, exact, "this is the last micro-batch's alone: call clear_grads once "
               "in a step, before the first");
    expect_written(&grads, exact, "model_forward, then model_backward with s->scale, for each "
                   "micro-batch; s->scale divides by the tokens of the whole batch, and the "
                   "parameters stay as they are until the last");
}

// Updates beside the same with the whole batch at once. The limit is this part of the norm.
static void expect_update(Model *m, Model *whole, Run *r, double limit, double factor,
                          const char *what) {
    size_t n = gpt2_n_params(&SMALL);
    double *after = doubles(n);
    Result params = tensor("parameters", INDEX("p", n), 0.0f);
    Step s;
    data_calls = ended = 0;
    clear_grads(whole);
    model_forward(whole, step_inputs, MB, MT);
    double loss = model_backward(whole, step_inputs, step_targets, 1.0f / MN, MB, MT);
    double squares = gradients_squares(whole);
    r->o.clip = limit * sqrt(squares);
    for (size_t i = 0; i < n; i++) m->zero.grads[i] = 0.125f;
    memcpy(params.before, m->zero.masters, n * sizeof *params.before);
    train_step(r, m, &s);
    expect_gradients(m, whole, n);
    AdamW o = step_adamw;
    model_update(whole, o, (float)factor);
    for (size_t i = 0; i < n; i++) after[i] = whole->zero.masters[i];
    memcpy(params.x, m->zero.masters, n * sizeof *params.x);
    if (memcmp(params.x, params.before, n * sizeof *params.x) == 0)
        wrong("the parameters are unchanged: model_update ends the step");
    expect_written(&params, after, what);
    if (ended != 1) wrong("step_end is called %d times, expected once", ended);
    if (fabs(step_totals.loss - loss) > 1e-3)
        wrong("step_end gets a loss of %g, expected %g: the sum over all micro-batches",
              step_totals.loss, loss);
    if (fabs(step_totals.squares - squares) > 1e-4 * squares)
        wrong("step_end gets squares of %g, expected %g: gradients_squares(m), before the factor",
              step_totals.squares, squares);
}

static void check_gradient_accumulation(void) {
    static Model m, whole;
    static Run r;
    int inputs[MICRO*MT], targets[MICRO*MT];
    small_model(&m, step_inputs, step_targets);
    small_model(&whole, step_inputs, step_targets);
    r.inputs = inputs, r.targets = targets, r.zero = &m.zero;
    step_adamw = (AdamW){ .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-2f };
    expect_update(&m, &whole, &r, 0.5, 0.5, "the norm is twice the limit: one model_update a step, "
                  "with s->adamw as it is and the factor r->o.clip / norm");
    expect_update(&m, &whole, &r, 0.25, 0.25, "the second update: s->adamw as it is, and the "
                  "factor r->o.clip / norm");
    expect_update(&m, &whole, &r, 2.0, 1.0, "the norm is below r->o.clip: the factor is 1");
    expect_update(&m, &whole, &r, 0.0, 1.0, "r->o.clip is 0, no limit: the factor is 1");
    float wte = m.w.wte[0];
    Step step;
    m.w.wpe[0] = NAN;
    train_step(&r, &m, &step);
    if (m.w.wte[0] != wte) wrong("the norm is not finite: no model_update, the parameters stay");
}

// ---- many ranks ----

// Step `step` of n ranks. held[r] is the chunk that rank r has to send.
static void ring_step(int *held, int step, int n) {
    int send[8], receive[8];
    bool adds[8];
    for (int r = 0; r < n; r++) {
        send[r] = receive[r] = -99, adds[r] = step >= n - 1;
        ring_allreduce(&send[r], &receive[r], &adds[r], step, r, n);
        if (send[r] == -99) wrong("send: it is not written");
        if (receive[r] == -99) wrong("receive: it is not written");
        for (int k = 0; k < 2; k++) {
            int c = k ? receive[r] : send[r];
            if (c < 0 || c >= n)
                wrong("%d ranks, step %d: rank %d %s chunk %d, but chunks are 0 ... %d%s", n, step,
                      r, k ? "receives" : "sends", c, n - 1, c < 0
                      ? "; in C the remainder % of a negative number is negative: add n first"
                      : ": take the remainder by n");
        }
        if (send[r] != held[r])
            wrong("%d ranks, step %d: rank %d sends chunk %d, expected %d, %s", n, step, r, send[r],
                  held[r], step == 0 ? "its own number" : "which it received in the step before");
        if (adds[r] != (step < n - 1))
            wrong("%d ranks, step %d: *adds is %s, expected %s: steps 0 ... n-2 add, the other "
                  "n-1 replace", n, step, adds[r] ? "true" : "false", adds[r] ? "false" : "true");
    }
    for (int r = 0; r < n; r++) {
        int left = (r + n - 1) % n;
        if (receive[r] != send[left])
            wrong("%d ranks, step %d: rank %d receives chunk %d, expected %d, which its left "
                  "neighbour, rank %d, sends", n, step, r, receive[r], send[left], left);
        held[r] = receive[r];
    }
}

static void check_ring_allreduce(void) {
    for (int n = 2; n <= 5; n++) {
        int held[8] = { 0, 1, 2, 3, 4 };           // a rank begins with the chunk of its number
        for (int step = 0; step < 2*(n - 1); step++) ring_step(held, step, n);
    }
}

// Each parameter's mean gradient, then AdamW in double precision: *p, *m and *v are updated.
static void adamw_exact(double *p, double *m, double *v, double g, AdamW o, int step) {
    *m = o.beta1 * *m + (1.0 - o.beta1) * g;
    *v = o.beta2 * *v + (1.0 - o.beta2) * g * g;
    *p -= o.lr * (*m / (1.0 - pow(o.beta1, step)) /
                  (sqrt(*v / (1.0 - pow(o.beta2, step))) + o.eps) + o.weight_decay * *p);
}

static void zero1_of(int n) {
    enum { TOTAL = 10, RANKS = 3 };
    static const char *names[] = { "ranks[0].params", "ranks[1].params", "ranks[2].params" };
    AdamW o = { .lr = 0.1f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-2f, .weight_decay = 0.1f };
    Rng rng = rng_make(12, 0);
    float *begin = normals(TOTAL, 1, 0, &rng);
    double p[TOTAL], m[TOTAL] = {0}, v[TOTAL] = {0};
    Result params[RANKS], moments[2*RANKS];
    ZeroRank ranks[RANKS];
    for (int i = 0; i < TOTAL; i++) p[i] = begin[i];
    for (int r = 0; r < n; r++) {
        size_t count = r < n - 1 ? 4 : TOTAL - (n - 1)*4;  // the last slice is another size
        params[r] = holding(names[r], begin, INDEX("i", TOTAL));
        moments[2*r] = tensor("m", INDEX("i", count), 0.0f);
        moments[2*r + 1] = tensor("v", INDEX("i", count), 0.0f);
        ranks[r] = (ZeroRank){ params[r].x, NULL, moments[2*r].x, moments[2*r + 1].x,
                               (size_t)r*4, count };
    }
    for (int step = 1; step <= 2; step++) {
        for (int r = 0; r < n; r++) ranks[r].grads = normals(TOTAL, 1, 0.5, &rng);
        for (int i = 0; i < TOTAL; i++) {
            double mean = 0.0;
            for (int r = 0; r < n; r++) mean += ranks[r].grads[i] / (double)n;
            adamw_exact(&p[i], &m[i], &v[i], mean, o, step);
        }
        o.m_steps = o.v_steps = step;
        zero1(ranks, n, TOTAL, o);
        for (int i = 0; i < 2*n; i++)
            expect_sane(&moments[i], "reduce_scatter completes a rank's own slice of grads only; "
                        "the moments begin with the slice's first");
        for (int r = 0; r < n; r++)
            expect_written(&params[r], p, step == 2
                ? "in the second update: do the moments go on from the first?"
                : "reduce_scatter, adamw_update of each rank's slice with the mean gradient, "
                  "all_gather");
        for (int i = 0; i < 2*n; i++)
            expect_written(&moments[i], (i % 2 ? v : m) + ranks[i/2].begin, "the moments of a "
                           "rank's slice: adamw_update takes m, then v");
    }
}

static void check_zero1(void) {
    zero1_of(3);
    zero1_of(2);
}

// ---- main ----

static const struct { const char *name; void (*body)(void); } CHECKS[] = {
    { "embedding_forward", check_embedding_forward },
    { "embedding_backward", check_embedding_backward },
    { "xent_forward", check_xent_forward },
    { "xent_backward", check_xent_backward },
    { "layernorm_forward", check_layernorm_forward },
    { "layernorm_backward", check_layernorm_backward },
    { "gelu_backward", check_gelu_backward },
    { "linear_backward", check_linear_backward },
    { "attention_plain", check_attention_plain },
    { "attention_backward", check_attention_backward },
    { "attention_tiled", check_attention_tiled },
    { "adamw_update", check_adamw_update },
    { "global_norm", check_global_norm },
    { "sample_token", check_sample_token },
    { "kv_cache", check_kv_cache },
    { "gradient_accumulation", check_gradient_accumulation },
    { "ring_allreduce", check_ring_allreduce },
    { "zero1", check_zero1 },
};

int main(int argc, char **argv) {
    for (size_t i = 0; argc == 2 && i < sizeof CHECKS / sizeof *CHECKS; i++)
        if (strcmp(argv[1], CHECKS[i].name) == 0) {
            for (run = 0; run < (int)(sizeof THREADS / sizeof *THREADS); run++) {
                threads = THREADS[run];
                threads_set(threads);
                CHECKS[i].body();
                expect_no_race();
            }
            printf("right\n");
            return 0;
        }
    fprintf(stderr, "check NAME: the name of an exercise\n");
    return 2;
}
