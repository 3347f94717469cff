// The whole model: against PyTorch's numbers (tests/fixtures, written by dev/reference/gpt2.py),
// and against itself, since how a batch is cut up and how many threads work on it must not matter.
#define main train_gpt2_main
#include "../train_gpt2.c"
#undef main
#include "../dev/train/evaluate.c"
#include "../dev/train/sample.c"
#include "../dev/check/compare.h"       // compare_norm
#include "files.h"
#include "test.h"

// ---- a model ----

// A model of one rank alone; its parameters are zero.
static void make_model(Model *m, const Config *c, int B, int T, Use use) {
    static Machine machine;
    ModelSpec spec = { *c, B, T, use, RECOMPUTE_NONE, { .comm = NULL }, 0 };
    model_init(m, &spec, &machine);
}

static size_t params_bytes(const Model *m) { return gpt2_n_params(&m->c) * sizeof(float); }

static bool same_params(const Model *a, const Model *b) {
    return memcmp(a->params.masters, b->params.masters, params_bytes(a)) == 0;
}

// ---- PyTorch's numbers ----

typedef struct {
    Config c;
    int B, T;
    size_t n_params, N;                   // N = B*T
    int *inputs, *targets;                // two batches
    float *params, *logits, *losses, *grads, *step_losses, *grad_norms, *params_after;
    int32_t *file;
} Fixture;

static void fixture_open(Fixture *f, const char *path) {
    Content content = slurp(".", path);
    size_t size = content.n;
    f->file = (int32_t *)(void *)content.bytes;
    const int32_t *h = f->file;
    Config c = { h[2], h[3], h[4], h[5], h[6], 0 };
    f->c = c;
    f->T = h[7];
    f->B = h[8];
    f->n_params = (size_t)h[9];
    f->N = (size_t)f->B * f->T;
    f->inputs = f->file + 16;
    f->targets = f->inputs + 2*f->N;
    f->params = (float *)(f->targets + 2*f->N);
    f->logits = f->params + f->n_params;
    f->losses = f->logits + f->N*c.V;
    f->grads = f->losses + f->N;
    f->step_losses = f->grads + f->n_params;
    f->grad_norms = f->step_losses + 5;
    f->params_after = f->grad_norms + 5;
    CHECK(h[0] == 0x62775446 && h[1] == 1 && h[10] == 5);
    CHECK(f->n_params == gpt2_n_params(&c));
    CHECK(size == (size_t)((char *)(f->params_after + f->n_params) - (char *)f->file));
}

// Whether element i of a tensor has a gradient. Adding a constant to every key changes no softmax:
// the K third of qkv_b has none. With one position a softmax is 1 whatever its score: queries and
// keys have none. What is computed there is rounding, which AdamW divides by itself.
static bool has_gradient(const Config *c, const Tensor *t, size_t i, int T) {
    int third = (int)(i % (3*(size_t)c->C)) / c->C;          // of Q, K, V
    if (t->kind != QKV_W && t->kind != QKV_B) return true;
    if (T == 1) return third == 2;
    return t->kind == QKV_W || third != 1;
}

// The largest relative error of a tensor, of the elements that have a gradient.
static double worst_tensor(const Config *c, int T, const float *ours, const float *theirs,
                           char *name) {
    double worst = 0.0;
    for (int k = 0; k < gpt2_n_tensors(c); k++) {
        Tensor t = gpt2_tensor(c, k);
        double diff = 0.0, norm = 0.0;
        for (size_t i = 0; i < t.count; i++) {
            double a = ours[t.offset + i], b = theirs[t.offset + i];
            if (!has_gradient(c, &t, i, T)) continue;
            diff += (a - b) * (a - b);
            norm += b * b;
        }
        double error = sqrt(diff / (norm > 0.0 ? norm : 1.0));
        if (!(error <= worst)) {
            worst = error;
            strcpy(name, t.key);
        }
    }
    return worst;
}

// The end of train_step: clips at 1, and updates. Returns the norm before clipping.
static double update_end(Model *m, int64_t step) {
    AdamW o = { 1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, (double)step, (double)step };
    double norm = sqrt(gradients_squares(m));
    model_update(m, o, norm > 1.0 ? (float)(1.0 / norm) : 1.0f);
    return norm;
}

// One update with global-norm clipping at 1. Returns the mean loss and the norm before clipping.
static void one_update(Model *m, const int *inputs, const int *targets, int B, int T,
                       int64_t step, double *loss, double *norm) {
    clear_grads(m);
    model_forward(m, inputs, B, T, 0);
    *loss = classifier_loss_and_gradient(m, targets, 1.0f / (float)(B*T), B, T) / (B*T);
    model_backward(m, inputs, B, T);
    *norm = update_end(m, step);
}

// How far from the exact numbers is well enough, relative to a tensor's norm. PyTorch's own fp32 is
// within 4e-7 (logits), 9e-7 (gradients) and 2e-7 (five steps) of these; the bounds leave a few
// times that. In a bf16 build each product's operands are rounded, 1.6e-3 of its norm for the two;
// a gradient gathers the errors of the dozen products forward and back that lie between it and the
// loss, about their square root times as much, and small tensors scatter: within 4e-2. AdamW's
// first steps follow the sign of gradients, so a few small ones move the other way.
#ifdef PRECISION_BF16
enum { BF16 = 1 };
#else
enum { BF16 = 0 };
#endif
static const double LOGITS = BF16 ? 1e-2 : 2e-6, LOSSES = BF16 ? 6e-3 : 2e-6,
                    GRADIENTS = BF16 ? 4e-2 : 5e-6, STEPS = BF16 ? 3e-2 : 2e-6,
                    CACHED = BF16 ? 4e-3 : 1e-6,   // a single row is multiplied in fp32
                    SPLIT = BF16 ? 1e-3 : 1e-6;

static void check_against_pytorch(const char *path) {
    Fixture f;
    Model m;
    char where[48] = "";
    fixture_open(&f, path);
    make_model(&m, &f.c, f.B, f.T, TRAIN);
    memcpy(m.params.masters, f.params, f.n_params * sizeof(float));

    model_forward(&m, f.inputs, f.B, f.T, 0);
    float *logits = alloc_or_die(f.N * f.c.V * sizeof(float), "logits");
    float *losses = alloc_or_die(f.N * sizeof(float), "losses");
    for (size_t n = 0; n < f.N; n++)
        memcpy(logits + n*f.c.V, model_logits(&m, (int)n), f.c.V * sizeof(float));
    double logit_error = compare_norm(logits, f.logits, f.N * f.c.V);
    CHECK_MSG(logit_error <= LOGITS, "%s: logits %.2g", path, logit_error);
    model_loss(&m, losses, f.targets, f.N);
    double loss_error = compare_norm(losses, f.losses, f.N);
    CHECK_MSG(loss_error <= LOSSES, "%s: losses %.2g", path, loss_error);
    classifier_loss_and_gradient(&m, f.targets, 1.0f / (float)f.N, f.B, f.T);
    model_backward(&m, f.inputs, f.B, f.T);
    double grad_error = worst_tensor(&f.c, f.T, m.params.grads, f.grads, where);
    CHECK_MSG(grad_error <= GRADIENTS, "%s: gradient of %s %.2g", path, where, grad_error);

    for (int i = 0; i < 5; i++) {
        double loss, norm;
        size_t batch = i % 2 * f.N;
        one_update(&m, f.inputs + batch, f.targets + batch, f.B, f.T, i + 1, &loss, &norm);
        CHECK_MSG(fabs(loss - f.step_losses[i]) <= LOSSES*loss, "%s: loss %d", path, i);
        CHECK_MSG(fabs(norm - f.grad_norms[i]) <= GRADIENTS*norm, "%s: norm %d", path, i);
    }
    double after = worst_tensor(&f.c, f.T, m.params.masters, f.params_after, where);
    CHECK_MSG(after <= STEPS, "%s: %s after five steps %.2g", path, where, after);
    printf("    %s: logits %.1g, losses %.1g, gradients %.1g, five AdamW steps %.1g\n",
           path, logit_error, loss_error, grad_error, after);
    free(logits);
    free(losses);
    free(f.file);
    model_free(&m);
}

TEST(pytorch_agrees) {
    check_against_pytorch("tests/fixtures/gpt2_L1_C5.bin");
    check_against_pytorch("tests/fixtures/gpt2_L2_C24.bin");
    check_against_pytorch("tests/fixtures/gpt2_L3_C32.bin");
}

// ---- the model against itself ----

typedef struct { Config c; int B, T; } Shape;
static const Shape SMALL = { { 2, 3, 24, 61, 16, 0 }, 8, 11 };
enum { SHAPE_MOST = 256 };

static void test_batch(int *inputs, int *targets, const Shape *s) {
    Rng rng = rng_make(77, 0);
    for (int i = 0; i < s->B*s->T; i++) {
        inputs[i] = (int)rng_below(&rng, (uint64_t)s->c.V);
        targets[i] = (int)rng_below(&rng, (uint64_t)s->c.V);
    }
}

// The parameters after `steps` updates with the batch cut into micro-batches of `micro` sequences.
static void test_params(Model *m, const Shape *s, int micro, int steps) {
    int inputs[SHAPE_MOST], targets[SHAPE_MOST], T = s->T;
    test_batch(inputs, targets, s);
    make_model(m, &s->c, micro, T, TRAIN);
    params_draw(&m->params, 5);
    for (int step = 1; step <= steps; step++) {
        clear_grads(m);
        for (int b = 0; b < s->B; b += micro) {
            model_forward(m, inputs + b*T, micro, T, 0);
            classifier_loss_and_gradient(m, targets + b*T, 1.0f / (float)(s->B*T), micro, T);
            model_backward(m, inputs + b*T, micro, T);
        }
        update_end(m, step);
    }
}

// Beside the model the trainer has its tokens and losses, and the products their static buffer.
TEST(what_is_beside_a_model_is_counted) {
    ModelSpec spec = { { 2, 3, 24, 61, 16, 0 }, 3, 7, TRAIN, RECOMPUTE_NONE, { .comm = NULL }, 0 };
    static Machine machine;
    Memory counted;
    Model m;
    model_count(&counted, &spec);
    model_init(&m, &spec, &machine);
    size_t beside = 3*3*7*4 + MATMUL_STATIC_BYTES + alloc_bytes(counted.used) - counted.used;
    CHECK(counted.bytes[MEM_REST] == m.memory.bytes[MEM_REST] + beside);
    model_free(&m);
}

// The worst tensor is a bias: it began at zero, so after five steps it is nothing but AdamW's
// normalised gradients, and their rounding (1e-6, and more where sums are not vectorized) passes
// through undiminished. All parameters together agree much better. In bf16 a sum that differs in
// its last bit may make an operand round to the other side, 4e-3 of it: of 60 models drawn from
// other seeds 53 had such a one, with at worst 5e-4 of all parameters and 4e-3 of a tensor.
TEST(any_micro_batch_makes_the_same_update) {
    Model whole, cut;
    char where[48] = "";
    test_params(&whole, &SMALL, 8, 5);
    for (int micro = 1; micro <= 4; micro *= 2) {
        test_params(&cut, &SMALL, micro, 5);
        const float *ours = cut.params.masters, *theirs = whole.params.masters;
        double error = worst_tensor(&SMALL.c, SMALL.T, ours, theirs, where);
        double all = compare_norm(ours, theirs, gpt2_n_params(&SMALL.c));
        printf("    %dx%d against 8x1: %.1g of all parameters, at worst %.1g, in %s\n",
               micro, 8 / micro, all, error, where);
        CHECK_MSG(all <= SPLIT, "%d sequences at a time: |dtheta|/|theta| %.2g", micro, all);
        CHECK_MSG(error <= 10*SPLIT, "%d sequences at a time: %s differs by %.2g", micro, where,
                  error);
        model_free(&cut);
    }
    model_free(&whole);
}

TEST(any_thread_count_gives_the_same_bits) {
#ifdef _OPENMP
    static const Shape large = { { 1, 2, 72, 1300, 128, 0 }, 2, 128 };   // several blocks of the
    static const Shape *const shapes[] = { &SMALL, &large };             // matmul and of attention
    Model one, many;
    int before = omp_get_max_threads();
    for (int i = 0; i < 2; i++) {
        omp_set_num_threads(1);
        test_params(&one, shapes[i], shapes[i]->B / 2, 3);
        for (int threads = 2; threads <= 5; threads++) {
            omp_set_num_threads(threads);
            test_params(&many, shapes[i], shapes[i]->B / 2, 3);
            CHECK_MSG(same_params(&one, &many), "%d threads", threads);
            CHECK(memcmp(one.params.grads, many.params.grads, params_bytes(&one)) == 0);
            model_free(&many);
        }
        model_free(&one);
    }
    omp_set_num_threads(before);
#else
    SKIP("needs a compiler with OpenMP");
#endif
}

TEST(initialisation_is_gpt2s) {
    static const Config c = { 3, 2, 64, 500, 64, 0 };
    Model m, again;
    make_model(&m, &c, 1, 8, INFER);
    make_model(&again, &c, 1, 8, INFER);
    params_draw(&m.params, 9);
    params_draw(&again.params, 9);
    CHECK(same_params(&m, &again));
    params_draw(&again.params, 10);
    CHECK(!same_params(&m, &again));
    for (int i = 0; i < gpt2_n_tensors(&c); i++) {
        Tensor t = gpt2_tensor(&c, i);
        double sum = 0.0, squares = 0.0, want = 0.0;
        for (size_t j = 0; j < t.count; j++) {
            double p = m.params.masters[t.offset + j];
            sum += p;
            squares += p*p;
        }
        if (t.init == INIT_NORMAL) want = 0.02;
        if (t.init == INIT_RESIDUAL) want = 0.02 / sqrt(6.0);
        if (t.init == INIT_ONES) want = 1.0;
        double rms = sqrt(squares / (double)t.count), mean = sum / (double)t.count;
        CHECK_MSG(fabs(rms - want) <= 0.05*want, "%s: rms %g, not %g", t.key, rms, want);
        if (t.init != INIT_ONES) CHECK(fabs(mean) <= 5.0*want / sqrt((double)t.count));
    }
    model_free(&m);
    model_free(&again);
}

// ---- generation ----

TEST(cached_rows_equal_a_full_pass) {
    Model full, cached;
    const Config c = SMALL.c;
    int text[16];
    for (int i = 0; i < 16; i++) text[i] = (i*17 + 5) % 61;
    make_model(&full, &c, 1, 16, INFER);
    make_model(&cached, &c, 1, 16, INFER);
    params_draw(&full.params, 4);
    params_draw(&cached.params, 4);
    static const int ends[] = { 1, 2, 5, 6, 7, 16 };    // rows at a time: 1, 1, 3, 1, 1, 9
    for (int i = 0, done = 0; i < 6; done = ends[i++]) {
        model_forward(&full, text, 1, ends[i], 0);
        model_forward(&cached, text + done, 1, ends[i] - done, done);
        const float *a = model_logits(&full, ends[i] - 1);
        const float *b = model_logits(&cached, ends[i] - done - 1);
        double error = compare_norm(b, a, (size_t)c.V);
        CHECK_MSG(error <= CACHED, "%d tokens, the last %d new: %.2g", ends[i], ends[i] - done,
                  error);
    }
    model_free(&full);
    model_free(&cached);
}

static Candidate test_candidates[64];

TEST(sampling_follows_the_probabilities) {
    static const float logits[5] = { 0.0f, 1.0f, 2.0f, -1.0f, 2.0f };
    enum { DRAWS = 100000 };
    for (int way = 0; way < 4; way++) {
        Sampler s = { way == 1 ? 0.5f : 1.0f, way == 3 ? 0.7f : 1.0f, way == 2 ? 2 : 0,
                      test_candidates, NULL };
        double p[5], sum = 0.0, chi2 = 0.0;
        int count[5] = {0};
        Rng rng = rng_make(12, (uint64_t)way);
        // the two likeliest hold 78.6% here, so top_k = 2 and top_p = 0.7 both keep exactly those
        for (int v = 0; v < 5; v++) {
            p[v] = way >= 2 && v != 2 && v != 4 ? 0.0 : exp(logits[v] / s.temperature);
            sum += p[v];
        }
        for (int i = 0; i < DRAWS; i++) count[sample_token(&s, logits, 5, &rng)]++;
        for (int v = 0; v < 5; v++) {
            double expected = DRAWS * p[v] / sum;
            if (p[v] == 0.0) CHECK_MSG(count[v] == 0, "way %d drew %d", way, v);
            else chi2 += (count[v] - expected) * (count[v] - expected) / expected;
        }
        CHECK_MSG(chi2 < 25.0, "way %d: chi-square %.1f", way, chi2);   // 4 degrees: p < 1e-4
    }
}

// Whatever makes the choice narrow; and nothing overflows.
TEST(greedy_takes_the_likeliest) {
    static const float logits[4] = { 0.5f, 3.0f, 2.999f, -7.0f };
    static const float huge[3] = { 1e38f, -1e38f, 9e37f };
    const Sampler ways[] = {
        { 0.0f, 1.0f, 0, test_candidates, NULL }, { 1.0f, 1.0f, 1, test_candidates, NULL },
        { 1.0f, 1e-6f, 0, test_candidates, NULL }, { 1.0f, 1.0f, 0, test_candidates, NULL },
    };
    Rng rng = rng_make(1, 1);
    for (int way = 0; way < 4; way++) {
        for (int i = 0; way < 3 && i < 100; i++)
            CHECK(sample_token(&ways[way], logits, 4, &rng) == 1);
        CHECK(sample_token(&ways[way], huge, 3, &rng) == 0);
    }
}

// Whatever tokens the string comes in, and whatever of it comes before without the rest.
TEST(text_ends_before_the_stop_string) {
    static const char *const cases[][3] = {           // the string, what is generated, what is left
        { "aab", "xaaabz", "xa" }, { "abac", "ababacab", "ab" }, { "end", "the e en", "the e en" },
        { "\nuser:", "7\nuse\nuser: 8", "7\nuse" }, { NULL, "7\nuser", "7\nuser" },
    };
    for (int i = 0; i < 5 * 4; i++) {
        const char *const *c = cases[i / 4];
        const size_t n = strlen(c[1]), size = 1 + (size_t)i % 4;
        TextBuffer t;
        text_begin(&t);
        Writer w = { { { 0 }, 0, false }, t.f, NULL, c[0], 0 };
        bool stopped = false;
        for (size_t at = 0; at < n && !stopped; at += size)
            stopped = writer_add(&w, c[1] + at, min_size(size, n - at));
        writer_put(&w, w.stop, w.held);
        text_end(&t);
        CHECK_MSG(!strcmp(t.text, c[2]) && stopped == (strcmp(c[1], c[2]) != 0), "'%s', %d: '%s'",
                  c[1], (int)size, t.text);
        free(t.text);
    }
}

// ---- a run ----

// A shard of n tokens that repeat with a period.
static void write_shard(const Path *dir, const char *name, int n) {
    static struct { int32_t header[256]; uint16_t tokens[4000]; } shard;
    int32_t header[5] = { SHARD_MAGIC, SHARD_VERSION, n, 257, 256 };
    memcpy(shard.header, header, sizeof header);
    for (int i = 0; i < n; i++)
        shard.tokens[i] = (uint16_t)(i % 29 == 0 ? 256 : 'a' + i % 29 % 7);
    put(dir->text, name, &shard, sizeof shard.header + 2 * (size_t)n);
}

// A run of a small model of n parameters on data of its own; p is its share of the model.
typedef struct { Path dir; Run r; Model m; Step s; const Params *p; size_t n, bytes; } TestRun;

static void test_run_open(TestRun *t, const char *lr, const char *flag, const char *value) {
    static Machine machine;
    t->dir = folder_make(NULL);
    write_shard(&t->dir, "x_train.bin", 4000);
    write_shard(&t->dir, "x_val.bin", 200);
    char *args[] = { "train_gpt2", "--data", t->dir.text, "--layers", "1", "--heads", "2",
                     "--channels", "16", "--seq-len", "8", "--micro-batch", "2", "--batch-tokens",
                     "32", "--steps", "20", "--lr", (char *)lr, (char *)flag, (char *)value };
    memset(&t->r, 0, sizeof t->r);
    CHECK(run_start(&t->r, &t->m, &machine, COUNT(args), args));
    run_open(&t->r);
    t->p = &t->m.params;
    t->n = gpt2_n_params(&t->m.c);
    t->bytes = t->n * sizeof(float);
}

static void test_run_close(TestRun *t) {
    run_close(&t->r);
    folder_remove(&t->dir);
}

static float *copy_of(const float *x, size_t n) {
    float *copy = alloc_or_die(n * sizeof *copy, "a copy");
    return memcpy(copy, x, n * sizeof *copy);
}

// Neither an update that is skipped nor an evaluation changes anything.
TEST(a_gradient_that_is_not_finite_is_skipped) {
    TestRun t;
    Run *r = &t.r;
    test_run_open(&t, "1e-2", "--seed", "1");
    train_step(r, &t.m, &t.s);
    CHECK(isfinite(t.s.grad_norm) && r->adam_step == 1 && r->skipped == 0);
    for (int i = 0; i < 20; i++) train_step(r, &t.m, &t.s);
    float *const kept[] = { t.p->masters, t.p->adam_m, t.p->adam_v, t.p->grads };
    float *before[4];
    for (int k = 0; k < 4; k++) before[k] = copy_of(kept[k], t.n);
    Eval e = evaluate(r, &r->val, 0), again = evaluate(r, &r->val, 0);
    CHECK(e.loss == again.loss && e.tokens == 192 && e.loss < log(257.0) - 0.5);
    for (int k = 0; k < 4; k++) CHECK(memcmp(before[k], kept[k], t.bytes) == 0);
    before[0][5] = t.p->masters[5] = INFINITY;
    for (int i = 0; i < 8; i++) train_step(r, &t.m, &t.s);
    CHECK(!isfinite(t.s.grad_norm) && r->adam_step == 21 && r->skipped == 8 && r->step == 29);
    for (int k = 0; k < 3; k++) CHECK(memcmp(before[k], kept[k], t.bytes) == 0);
    for (int k = 0; k < 4; k++) free(before[k]);
    test_run_close(&t);
}

// Where the batch changes, every update has a beta2 of its own, and what corrects the second moment
// for its start at zero is one minus the product of all of them.
TEST(a_half_life_in_tokens_is_kept_by_any_batches) {
    TestRun t;
    Run *r = &t.r;
    test_run_open(&t, "1e-2", "--seed", "1");
    double *v = alloc_or_die(t.n * sizeof *v, "moments"), kept = 1.0, worst = 0.0, moved = 0.0;
    uint64_t unit = r->o.batches.unit;
    r->o.batches.rule = BATCH_STAGES;
    r->o.batches.batch = 4*unit;
    r->o.batches.n_stages = 2;
    r->o.batches.stages[0].batch = unit;
    r->o.batches.stages[1].tokens = 2*unit;
    r->o.batches.stages[1].batch = 8*unit;
    r->o.beta1 = r->o.weight_decay = 0.0;
    for (int step = 0; step < 4; step++) {
        float *before = copy_of(t.p->masters, t.n);
        train_step(r, &t.m, &t.s);
        double beta2 = pow(r->o.beta2, (step < 2 ? 1 : 8) / 4.0);
        double scale = t.s.grad_norm > r->o.clip ? r->o.clip / t.s.grad_norm : 1.0;
        kept *= beta2;
        for (size_t i = 0; i < t.n; i++) {
            double g = scale * t.p->grads[i], change = t.p->masters[i] - before[i];
            v[i] = beta2*v[i] + (1.0 - beta2)*g*g;
            double expected = -t.s.lr * g / (sqrt(v[i] / (1.0 - kept)) + 1e-8);
            worst = fmax(worst, fabs(change - expected));
            moved = fmax(moved, fabs(change));
        }
        free(before);
    }
    CHECK(moved > 1e-3 && worst < 1e-3 * moved);     // parameters of 1 keep changes to 1e-7
    free(v);
    test_run_close(&t);
}

// The first step of plain SGD, by hand: the clipped gradient and the decay of matrices, no moments.
TEST(the_first_step_of_sgd) {
    TestRun t;
    test_run_open(&t, "0.5", "--optimizer", "sgd");
    CHECK(!t.p->adam_m && !t.p->adam_v && t.m.memory.bytes[MEM_MOMENTS] == 0);
    float *before = copy_of(t.p->masters, t.n);
    double worst = 0.0, moved = 0.0, decayed = 0.0;
    t.r.o.clip = 0.1;
    train_step(&t.r, &t.m, &t.s);
    CHECK(t.s.grad_norm > 0.1);
    for (int i = 0; i < gpt2_n_tensors(&t.m.c); i++) {
        Tensor tensor = gpt2_tensor(&t.m.c, i);
        for (size_t j = tensor.offset; j < tensor.offset + tensor.count; j++) {
            double decay = tensor.decays ? t.r.o.weight_decay * before[j] : 0.0;
            double expected = -t.s.lr * (0.1 / t.s.grad_norm * t.p->grads[j] + decay);
            worst = fmax(worst, fabs((double)t.p->masters[j] - before[j] - expected));
            moved = fmax(moved, fabs(expected));
            decayed = fmax(decayed, fabs(decay));
        }
    }
    CHECK_MSG(moved > 1e-3 && decayed > 1e-3 && worst < 1e-7, "%g of %g", worst, moved);
    free(before);
    test_run_close(&t);
}

// Whatever the batches: an update's weights count in proportion to its tokens, and half as much a
// half-life of tokens later. Evaluating the average leaves the weights' bits as they were.
TEST(averaged_weights_count_tokens) {
    TestRun t;
    Run *r = &t.r;
    test_run_open(&t, "1e-2", "--average-tokens", "100");
    CHECK(memcmp(t.p->average, t.p->masters, t.bytes) == 0);
    CHECK(t.m.memory.bytes[MEM_AVERAGE] == t.bytes);
    double *sum = alloc_or_die(t.n * sizeof *sum, "an average"), shares = 0.0, worst = 0.0;
    uint64_t unit = r->o.batches.unit;
    r->o.batches.rule = BATCH_STAGES;
    r->o.batches.batch = unit;
    r->o.batches.n_stages = 1;
    r->o.batches.stages[0].tokens = 6*unit;
    r->o.batches.stages[0].batch = 5*unit;
    for (int step = 0; step < 12; step++) {
        train_step(r, &t.m, &t.s);
        double left = pow(0.5, (double)r->batch / 100.0);
        shares = left*shares + 1.0 - left;
        for (size_t i = 0; i < t.n; i++) {
            sum[i] = left*sum[i] + (1.0 - left)*t.p->masters[i];
            worst = fmax(worst, fabs(t.p->average[i] - sum[i] / shares));
        }
    }
    CHECK_MSG(r->tokens == 36*unit && worst < 1e-6, "apart by %g", worst);
    Eval e, average, train = { 0 }, none = { 0 };
    float *copy = copy_of(t.p->masters, t.n);
    evaluate_all(&e, NULL, &average, r);
    CHECK(memcmp(copy, t.p->masters, t.bytes) == 0);
    r->o.eval_train = true;
    *stop_signal() = SIGINT;                         // Ctrl-C in the first skips the others
    evaluate_all(&e, &train, &none, r);
    CHECK(r->stopping == SIGINT && train.tokens == 0 && none.tokens == 0);
    evaluate_all(&e, &train, &none, r);              // a run that is ending evaluates whole
    CHECK(e.tokens == 192 && train.tokens == 192 && none.loss == average.loss);
    *stop_signal() = r->stopping = 0;
    memcpy(t.p->masters, t.p->average, t.bytes);
    Eval of_copy = evaluate(r, &r->val, (size_t)r->o.eval_tokens);
    CHECK(average.loss == of_copy.loss && average.loss != e.loss);
    free(copy);
    free(sum);
    test_run_close(&t);
}

// The squared norm of x (n); in the metric of the second moments v, unless these are NULL.
static double squares_of(const double *x, const float *v, double correct, size_t n) {
    double sum = 0.0;
    for (size_t i = 0; i < n; i++) sum += x[i]*x[i] / (v ? sqrt(v[i] * correct) + 1e-8 : 1.0);
    return sum;
}

static void check_norms(const GradientNorms *got, double small, double big, const char *metric) {
    CHECK_MSG(fabs(got->small / small - 1.0) < 1e-5 && fabs(got->big / big - 1.0) < 1e-5,
              "%s: %.9g and %.9g, not %.9g and %.9g", metric, got->small, got->big, small, big);
    CHECK(got->small_tokens == 16.0 && got->big_tokens == 32.0);
}

// The noise, plain and in Adam's metric, beside gradients computed one micro-batch at a time with
// the moments that the update begins with; Adam's not before the second moment has averaged twenty
// gradients.
TEST(noise_is_that_of_single_gradients) {
    TestRun t;
    Run *r = &t.r;
    Model *m = &t.m;
    Step *s = &t.s;
    Error err;
    test_run_open(&t, "1e-2", "--noise-scale", "--seed=5");
    size_t n = t.n;
    double *one = alloc_or_die(2 * n * sizeof(double), "gradients"), *mean = one + n;
    for (int step = 0; step < 20; step++) train_step(r, m, s);
    CHECK(r->noise.weight > 0.0 && r->noise_adam.weight == 0.0 && s->norms_adam.big_tokens == 0.0);
    for (int step = 20; step < 25; step++) {
        double correct = 1.0 / (1.0 - pow(r->o.beta2, step)), small = 0.0, plain = 0.0;
        memset(mean, 0, n * sizeof *mean);
        for (int i = 0; i < 2; i++) {
            CHECK(loader_batch(&r->train, r->train.samples + 2*(uint64_t)i, 2, r->inputs,
                               r->targets, &err));
            clear_grads(m);
            model_micro_batch(m, 0, 1);
            model_forward(m, r->inputs, 2, 8, 0);
            classifier_loss_and_gradient(m, r->targets, 1.0f / 16, 2, 8);
            model_backward(m, r->inputs, 2, 8);
            for (size_t k = 0; k < n; k++) mean[k] += (one[k] = t.p->grads[k]) / 2;
            small += squares_of(one, t.p->adam_v, correct, n) / 2;
            plain += squares_of(one, NULL, 1.0, n) / 2;
        }
        double big = squares_of(mean, t.p->adam_v, correct, n);
        train_step(r, m, s);
        check_norms(&s->norms_adam, small, big, "Adam's");
        check_norms(&s->norms, plain, squares_of(mean, NULL, 1.0, n), "plain");
    }
    CHECK(fabs(r->noise_adam.weight - (1.0 - pow(noise_decay, 5))) < 1e-12);
    free(one);
    test_run_close(&t);
}

#ifdef __SSE__
// On an x86 processor, where they are slow.
TEST(no_thread_computes_subnormal_numbers) {
    static volatile float small = 1.5e-38f, half[2];
    const char *preload = getenv("LD_PRELOAD");
    int kept = 0;
    if (preload && strstr(preload, "vgpreload")) SKIP("needs a processor; valgrind is none");
    threads_begin(2);
    #pragma omp parallel reduction(+ : kept)
    {
        half[thread_index()] = small / 2;
        kept += half[thread_index()] != 0.0f;
    }
    CHECK(kept == 0);
}
#endif

int main(void) { return run_tests(); }
