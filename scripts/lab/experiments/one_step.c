// One step from a checkpoint: predicted from gradients and curvature, then measured
// (McCandlish et al. 2018, arXiv 1812.06162, section 2.2). 01_one_step.py runs it.
// A step w - e P g follows the gradient g of B tokens, times a fixed diagonal P. g is the true
// gradient G plus noise of covariance S/B, where S is that of one token. To second order in e, and
// on average over batches, the loss falls by
//     e G'PG - e^2/2 (G'PHPG + tr(PHPS)/B)            H: the Hessian of the loss
// The best rate is e_max / (1 + B_noise/B); the loss then falls by dL_max / (1 + B_noise/B):
//     e_max = G'PG / G'PHPG     dL_max = e_max G'PG / 2     B_noise = tr(PHPS) / G'PHPG
// P is 1 (SGD), or 1/(sqrt(v_hat) + eps) with AdamW's second moment as the checkpoint holds it.
// There is no momentum, clipping or weight decay, and v does not change. Samples follow the run's
// last one, so the run has not trained on them. Prints a CSV. Flags after -- are the trainer's:
//     build/one_step --direction adam -- --init DIR --data DIR --seed S
#define main train_gpt2_main
#include "../../../train_gpt2.c"
#undef main

typedef struct {
    Given given;
    int direction, sequences, span, draws, draws_above;
    int64_t gradient_tokens, hessian_tokens;
} Settings;

#define FLAG(name, field, type, value, low, high, choices, help) \
    { name, "N", type, offsetof(Settings, field), value, low, high, choices, "", help, NULL }
static const Option table[7] = {
    FLAG("direction", direction, OPT_CHOICE, "adam", 0, 0, "sgd|adam", "P"),
    FLAG("gradient-tokens", gradient_tokens, OPT_COUNT, "262144", 2, 1e12, NULL, "for G"),
    FLAG("sequences", sequences, OPT_INT, "64", 2, 1e6, NULL, "single sequences, for S"),
    FLAG("hessian-tokens", hessian_tokens, OPT_COUNT, "65536", 1, 1e12, NULL, "for H"),
    FLAG("span", span, OPT_INT, "16", 0, 1e4, NULL, "batches: B_noise/N to N B_noise; 0: none"),
    FLAG("draws", draws, OPT_INT, "64", 1, 1e6, NULL, "of each batch below B_noise"),
    FLAG("draws-above", draws_above, OPT_INT, "16", 1, 1e6, NULL, "of each batch above it"),
};

typedef struct {
    Settings s;
    Run r;
    Model m;
    size_t n;                          // parameters
    float *w, *p;                      // (n) the checkpoint's weights; the diagonal of P
    float *ahead, *behind;             // (n) gradients at w + h d and w - h d
    float *whole, *g[2], *noise;       // (n) gradients of whole sequences, of two halves, of noise
    float *d[2], *d_noise;             // (n) P g, P noise
    uint64_t hessian_first;            // the first of the samples that H averages over
    double e_max, b_noise;             // as predicted
} Lab;

// The loss itself: see below. tests/test_one_step.c plants a quadratic one.
static void gradient(Lab *x, float *g, uint64_t first, size_t windows);
static double eval_loss(Lab *x);
static void row(const char *what, double batch, double rate, int draw, double value);

static double inner(const float *a, const float *b, size_t n) {
    double sum = 0.0;
    for (size_t i = 0; i < n; i++) sum += (double)a[i] * b[i];
    return sum;
}

static void move(Lab *x, double e, const float *d) {                   // to w + e d
    for (size_t i = 0; i < x->n; i++) x->m.params.masters[i] = x->w[i] + (float)e * d[i];
}

static void precondition(const Lab *x, float *d, const float *g) {     // d = P g
    for (size_t i = 0; i < x->n; i++) d[i] = x->p[i] * g[i];
}

static void gradient_of_next(Lab *x, float *g, size_t windows) {
    gradient(x, g, x->r.train.samples, windows);
    x->r.train.samples += windows;
}

// b'Hd for d = P g, by central differences of the gradient. `length` is how far the weights move,
// in P's metric, where d is sqrt(g'Pg) long.
static double curvature(Lab *x, const float *b, const float *d, const float *g, double length) {
    size_t windows = (size_t)x->s.hessian_tokens / x->r.T + 1;
    double h = length / sqrt(inner(g, d, x->n));
    move(x, h, d);
    gradient(x, x->ahead, x->hessian_first, windows);
    move(x, -h, d);
    gradient(x, x->behind, x->hessian_first, windows);
    move(x, 0.0, d);
    return (inner(b, x->ahead, x->n) - inner(b, x->behind, x->n)) / (2.0*h);
}

// Rounding spoils short differences, third derivatives spoil long ones. Returns the length whose
// d'Hd agrees best with those of half and of twice the length.
static double choose_length(Lab *x, const float *d, const float *g) {
    double q[16], length = 1.0/8, best = 0.0, least = INFINITY;
    for (int i = 0; i < 16; i++, length /= 2) {
        row("along_gradient", 0, length, 0, q[i] = curvature(x, d, d, g, length));
        double off = i < 2 ? INFINITY : fmax(fabs(q[i-2]/q[i-1] - 1.0), fabs(q[i]/q[i-1] - 1.0));
        if (off < least) least = off, best = 2*length;
    }
    row("length", 0, best, 0, least);
    return best;
}

// tr(PHPS) of one token: the mean of noise'PHP noise over single sequences, times T.
static double noise_curvature(Lab *x, double length) {
    float *noise = x->noise, *d = x->d_noise;
    double sum = 0.0, T = x->r.T;
    for (int i = 0; i < x->s.sequences; i++) {
        gradient_of_next(x, noise, 1);
        for (size_t k = 0; k < x->n; k++) noise[k] -= x->g[0][k];
        precondition(x, d, noise);
        double q = curvature(x, d, d, noise, length);
        sum += q;
        row("noise_curvature", 0, 0, i, T*q);
    }
    return T*sum / x->s.sequences;
}

// A product of two gradients takes one from each half of the tokens: their noise is independent, so
// it adds nothing on average.
static void predict(Lab *x) {
    size_t n = x->n, half = ((size_t)x->s.gradient_tokens / x->r.T + 1) / 2;
    gradient(x, x->whole, x->r.train.samples, half);
    for (int i = 0; i < 2; i++) {
        gradient_of_next(x, x->g[i], half);
        precondition(x, x->d[i], x->g[i]);
    }
    double length = choose_length(x, x->d[0], x->g[0]), slope = inner(x->whole, x->d[1], n);
    double bend = curvature(x, x->d[1], x->d[0], x->g[0], length);
    x->e_max = slope / bend;
    x->b_noise = noise_curvature(x, length) / bend;
    row("slope", 0, 0, 0, slope);
    row("curvature", 0, 0, 0, bend);
    row("e_max", 0, 0, 0, x->e_max);
    row("dl_max", 0, 0, 0, 0.5 * x->e_max * slope);
    row("b_noise", 0, 0, 0, x->b_noise);
}

// The fall of the loss at six rates, a factor of 2 apart, around the one that is predicted best.
static void measure(Lab *x) {
    float *d = x->d_noise;
    double before = eval_loss(x);
    for (double m = 1.0 / x->s.span; m < 1.5 * x->s.span; m *= 2.0) {
        if (m * x->b_noise < 0.75 * x->r.T) continue;        // less than a sequence
        size_t windows = (size_t)round(m * x->b_noise / x->r.T);
        double batch = (double)windows * x->r.T, best = x->e_max / (1.0 + x->b_noise/batch);
        for (int draw = 0; draw < (m < 0.75 ? x->s.draws : x->s.draws_above); draw++) {
            gradient_of_next(x, d, windows);
            precondition(x, d, d);
            for (int k = -3; k <= 2; k++) {
                move(x, -ldexp(best, k), d);
                row("fall", batch, ldexp(best, k), draw, before - eval_loss(x));
            }
            move(x, 0.0, d);
        }
    }
}

static void open_vectors(Lab *x, size_t n) {
    float **all[] = { &x->w, &x->p, &x->ahead, &x->behind, &x->whole, &x->g[0], &x->g[1],
                      &x->noise, &x->d[0], &x->d[1], &x->d_noise };
    x->n = n;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        *all[i] = alloc_or_die(n * sizeof(float), "a vector");
}

#ifndef PLANTED
// g (n): the mean gradient of samples first ... first+windows-1.
static void gradient(Lab *x, float *g, uint64_t first, size_t windows) {
    Run *r = &x->r;
    Error err;
    size_t most = r->spec.B;
    clear_grads(&x->m);
    for (size_t at = 0; at < windows; at += most) {
        size_t B = min_size(most, windows - at);
        if (!loader_batch(&r->train, first + at, B, r->inputs, r->targets, &err))
            die("%s", err.text);
        model_forward(&x->m, r->inputs, (int)B, r->T, 0);
        classifier_loss_and_gradient(&x->m, r->targets, 1.0f / (windows * r->T), (int)B, r->T);
        model_backward(&x->m, r->inputs, (int)B, r->T);
    }
    memcpy(g, x->m.params.grads, x->n * sizeof *g);
}

// The loss on the held-out tokens, always the same ones.
static double eval_loss(Lab *x) {
    return evaluate(&x->r, &x->r.val, (size_t)x->r.o.eval_tokens).loss;
}

static void row(const char *what, double batch, double rate, int draw, double value) {
    printf("%s,%.9g,%.9g,%d,%.9g\n", what, batch, rate, draw, value);
}

// After run_open: AdamW's second moment, and where the run stopped.
static void open_lab(Lab *x) {
    Run *r = &x->r;
    TrainState state;
    Json json;
    Path from;
    Error err;
    double beta2;
    if (!checkpoint_find(&from, r->o.init, &err)
        || !checkpoint_load_state(&state, &json, from.text, &err)
        || !json_get_double(&beta2, json_get(json.root, "options"), "beta2", &err))
        die("--init: %s", err.text);
    if (state.seed != r->o.seed)
        die("--seed: the run began with %llu; name it", (unsigned long long)state.seed);
    open_vectors(x, gpt2_n_params(&x->m.c));
    load_moments(r, from.text, state.workers);
    double correct = 1.0 - pow(beta2, (double)state.adam_steps);
    for (size_t i = 0; i < x->n; i++)
        x->p[i] = x->s.direction ? (float)(1.0 / (sqrt(x->m.params.adam_v[i]/correct) + 1e-8)) : 1;
    memcpy(x->w, x->m.params.masters, x->n * sizeof *x->w);
    x->hessian_first = (uint64_t)state.samples;
    r->train.samples = x->hessian_first + (uint64_t)x->s.hessian_tokens / r->T + 1;
    r->floor.known = false;            // evaluate() computes the loss alone
    json_free(&json);
}

int main(int argc, char **argv) {
    static Lab x;
    static Machine machine;
    Error err;
    int count;
    threads_wait_politely(argv);       // run_start() would start anew without the flags before --
    char **rest = alloc_or_die((size_t)(argc + 1) * sizeof *rest, "flags");    // after --
    rest[0] = argv[0];
    if (!options_parse(&x.s, table, 7, argc, argv, rest + 1, &count, &err)) die("%s", err.text);
    if (!run_start(&x.r, &x.m, &machine, count + 1, rest)) return 0;
    run_open(&x.r);
    open_lab(&x);
    printf("what,batch,rate,draw,value\n");
    row("loss", 0, 0, 0, eval_loss(&x));
    predict(&x);
    if (x.s.span > 0 && x.e_max > 0.0 && x.b_noise > 0.0) measure(&x);
    if (fflush(stdout) != 0 || ferror(stdout)) die("the CSV cannot be written");
    log_finish(&x.r);
    run_close(&x.r);
    return 0;
}
#endif
