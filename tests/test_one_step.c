// one_step.c of experiment 1 on a planted loss: a quadratic, whose Hessian, gradient and noise are
// known.
#define PLANTED
#include "../scripts/lab/experiments/one_step.c"
#include "test.h"

enum { N = 24, LENGTH = 4 };                   // parameters; tokens of a sequence

static double hessian[N][N], centre[N], sd[N]; // of the loss; of one sequence's gradient

typedef struct { double sum, squares; int n; double batch, rate; } Fall;
static Fall falls[64];                         // by batch and rate
static int n_falls;

static void row(const char *what, double batch, double rate, int draw, double value) {
    (void)draw;
    if (strcmp(what, "fall") != 0) return;
    int i = 0;
    while (i < n_falls && (falls[i].batch != batch || falls[i].rate != rate)) i++;
    if (i == n_falls) falls[n_falls++] = (Fall){ 0, 0, 0, batch, rate };
    falls[i].sum += value;
    falls[i].squares += value * value;
    falls[i].n++;
}

static double eval_loss(Lab *x) {
    double sum = 0.0;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            sum += 0.5 * hessian[i][j] * (x->m.params.masters[i] - centre[i])
                 * (x->m.params.masters[j] - centre[j]);
    return sum;
}

// The true gradient, plus noise that each sample always repeats.
static void gradient(Lab *x, float *g, uint64_t first, size_t windows) {
    double sum[N] = {0};
    for (size_t s = 0; s < windows; s++) {
        Rng rng = rng_make(7, first + s);
        for (int i = 0; i < N; i++) sum[i] += sd[i] * rng_normal(&rng);
    }
    for (int i = 0; i < N; i++) {
        double mean = 0.0;
        for (int j = 0; j < N; j++) mean += hessian[i][j] * (x->m.params.masters[j] - centre[j]);
        g[i] = (float)(mean + sum[i] / (double)windows);
    }
}

// Curvatures over a factor of thirty, in directions that are no axes: H = sum_k h_k u_k u_k'.
static void plant(Lab *x) {
    static float masters[N];
    memset(x, 0, sizeof *x);
    memset(hessian, 0, sizeof hessian);
    n_falls = 0;
    x->r.T = LENGTH;
    x->m.params.masters = masters;
    open_vectors(x, N);
    for (int k = 0; k < N; k++)
        for (int i = 0; i < N; i++)
            for (int j = 0; j < N; j++)
                hessian[i][j] += pow(30.0, -k / (N - 1.0)) * 2.0 / N * sin(1.0 + i * (k + 1))
                               * sin(1.0 + j * (k + 1));
    for (int i = 0; i < N; i++) {
        centre[i] = 0.5 * cos(3.0 * i);
        sd[i] = 1.0 + 0.5 * sin(5.0 * i);
        masters[i] = x->w[i] = (float)(0.3 * sin(2.0 * i));
        x->p[i] = (float)(1.0 + 0.8 * cos(i));
    }
    x->s.hessian_tokens = LENGTH;
    x->s.gradient_tokens = 400000;
    x->s.sequences = 4000;
    x->s.span = 4;
    x->s.draws = x->s.draws_above = 400;
}

typedef struct { double e_max, dl_max, b_noise; } Known;

static Known known_truth(const Lab *x) {
    double g[N], slope = 0.0, bend = 0.0, trace = 0.0;
    for (int i = 0; i < N; i++) {
        g[i] = 0.0;
        for (int j = 0; j < N; j++) g[i] += hessian[i][j] * (x->w[j] - centre[j]);
    }
    for (int i = 0; i < N; i++) {
        slope += g[i] * x->p[i] * g[i];
        trace += x->p[i] * x->p[i] * hessian[i][i] * sd[i] * sd[i] * LENGTH;
        for (int j = 0; j < N; j++) bend += g[i] * x->p[i] * hessian[i][j] * x->p[j] * g[j];
    }
    return (Known){ slope / bend, 0.5 * slope * slope / bend, trace / bend };
}

static bool within(double a, double b, double share) { return fabs(a / b - 1.0) <= share; }

TEST(prediction_without_a_fit) {
    static Lab x;
    plant(&x);
    predict(&x);
    Known k = known_truth(&x);
    CHECK_MSG(within(x.e_max, k.e_max, 0.02), "e_max %g, not %g", x.e_max, k.e_max);
    CHECK_MSG(within(x.b_noise, k.b_noise, 0.02), "B_noise %g, not %g", x.b_noise, k.b_noise);
}

// The mean fall at every batch and rate is the formula's, within four standard errors; no draw
// repeats samples of another.
TEST(measured_falls) {
    static Lab x;
    plant(&x);
    Known k = known_truth(&x);
    x.e_max = k.e_max;
    x.b_noise = k.b_noise;
    x.r.train.samples = 1000;
    measure(&x);
    CHECK(n_falls >= 24);
    for (int i = 0; i < n_falls; i++) {
        double e = falls[i].rate / k.e_max, mean = falls[i].sum / falls[i].n;
        double wanted = k.dl_max * (2*e - e*e * (1.0 + k.b_noise / falls[i].batch));
        double spread = falls[i].squares / falls[i].n - mean * mean;
        CHECK(falls[i].n == 400);
        CHECK_MSG(fabs(mean - wanted) < 4.0 * sqrt(spread / 400) + 1e-6, "batch %g, rate %g: %g, "
                  "not %g", falls[i].batch, falls[i].rate, mean, wanted);
    }
}

int main(void) { return run_tests(); }
