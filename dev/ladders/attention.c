// make ladder OP=attention-cpu: causal self-attention, forward and backward, from the definition in
// train_gpt2.c to the trainer's attention.c. One idea a rung. Each rung is checked against the
// first and timed, beside what this machine can multiply and add on registers alone.
//
//     build/attention-cpu              checks, then times 12 heads of 64 channels: T=64, T=1024
//     build/attention-cpu T NH HS      checks, then times a shape of your own
//     build/attention-cpu check        only checks
//
// Forward has two products, q k^T and p v. Backward has five: q k^T again, dout v^T, and the sums
// dq, dk, dv. Masked pairs are not counted, although a rung may compute some of them. Factors in
// the comments were measured on one core of a Zen 5, at T = 64.
#undef PRECISION_BF16                  // all rungs in fp32
#include "../base/base.h"
#include "ladder.h"                    // random_numbers, difference, peaks_measure, say_if_busy
#define main train_gpt2_main
#include "../../train_gpt2.c"          // attention_forward_plain, attention_backward_plain, dot
#undef main

// ---- the rungs ----

// Plain: the definition, attention_forward_plain and attention_backward_plain. Each query meets its
// keys one after the other. Forward loads 2 HS numbers for each HS multiply-adds, and every dot
// product ends in a sum across the lanes of a vector, which takes as long as the products.

// One head, and the block of its queries at hand.
typedef struct {
    const float *q, *k, *v, *out, *dout, *lse;
    float *dq, *dk, *dv;
    size_t ld, C;                      // from row to row: of q, k, v and their gradients; of out
    int HS;
    float scale;
} Head;

static Head head_of(const float *qkv, int b, int h, int T, int C, int NH) {
    Head x = {0};
    x.ld = 3*(size_t)C;
    x.C = (size_t)C;
    x.HS = C / NH;
    x.scale = 1.0f / sqrtf((float)x.HS);
    x.q = qkv + (size_t)b*T*x.ld + h*x.HS;
    x.k = x.q + C;
    x.v = x.k + C;
    return x;
}

enum { KEYS = 32 };                    // rows of k or v, 8 KB of a head of 64 channels

// attention_softmax of attention.c with one expf after the other.
static void softmax_expf(float *p, float *lse, float *inv_sum, int rows, int seen, int width,
                         float scale) {
    for (int i = 0; i < rows; i++) {
        float *row = p + (size_t)i*width, hi = -INFINITY, sum = 0.0f;
        for (int t = 0; t < seen + i; t++) hi = fmaxf(hi, row[t]);
        for (int t = 0; t < seen + i; t++) sum += row[t] = expf((row[t] - hi) * scale);
        lse[i] = hi * scale + logf(sum);
        inv_sum[i] = 1.0f / sum;
    }
}

// p (rows,width): q . k of the queries t ... t+rows-1, without those that the mask hides.
static void block_scores(float *p, Head x, int t, int rows, int width) {
    for (int t0 = 0; t0 < width; t0 += KEYS)
        for (int i = 0; i < rows; i++)
            for (int t2 = t0; t2 < t0 + KEYS && t2 <= t + i; t2++)
                p[(size_t)i*width + t2] = dot(x.q + (t + i)*x.ld, x.k + t2*x.ld, x.HS);
}

static void block_values(float *out, const float *p, const float *inv_sum, Head x, int t, int rows,
                         int width) {
    for (int i = 0; i < rows; i++) memset(out + i*x.C, 0, x.HS * sizeof *out);
    for (int t0 = 0; t0 < width; t0 += KEYS)
        for (int i = 0; i < rows; i++)
            for (int t2 = t0; t2 < t0 + KEYS && t2 <= t + i; t2++)
                add_scaled(out + i*x.C, p[(size_t)i*width + t2] * inv_sum[i], x.v + t2*x.ld, x.HS);
}

typedef void Softmax(float *p, float *lse, float *inv_sum, int rows, int seen, int width,
                     float scale);

static void forward_in_blocks(float *out, float *lse, float *scratch, const float *qkv,
                              int B, int T, int C, int NH, Softmax *softmax) {
    #pragma omp parallel for collapse(2) schedule(dynamic)
    for (int b = 0; b < B; b++)
    for (int h = 0; h < NH; h++) {
        Head x = head_of(qkv, b, h, T, C, NH);
        float *p = scratch + thread_index()*attention_scratch(T, x.HS);
        for (int t = 0; t < T; t += QUERIES) {
            int rows = (int)min_size(QUERIES, T - t), width = t + rows;
            float inv_sum[QUERIES];
            block_scores(p, x, t, rows, width);
            softmax(p, lse + ((size_t)b*NH + h)*T + t, inv_sum, rows, t + 1, width, x.scale);
            block_values(out + ((size_t)b*T + t)*C + h*x.HS, p, inv_sum, x, t, rows, width);
        }
    }
}

// attention_weights of attention.c with one expf after the other.
static void weights_expf(float *p, const float *lse, int rows, int seen, int width, float scale) {
    for (int i = 0; i < rows; i++)
        for (int t = 0; t < seen + i; t++) {
            float *s = p + (size_t)i*width + t;
            *s = expf(*s * scale - lse[i]);
        }
}

typedef void WeightsOf(float *p, const float *lse, int rows, int seen, int width, float scale);

// What query t and the n <= KEYS keys from t0 on add to each other's gradients.
static void backward_row(Head x, int t, int t0, int n, WeightsOf *weights) {
    const float *q = x.q + t*x.ld, *d_o = x.dout + t*x.C, *k = x.k + t0*x.ld, *v = x.v + t0*x.ld;
    float p[KEYS], dp[KEYS], d = dot(d_o, x.out + t*x.C, x.HS);
    for (int j = 0; j < n; j++) {
        p[j] = dot(q, k + j*x.ld, x.HS);
        dp[j] = dot(d_o, v + j*x.ld, x.HS);
    }
    weights(p, x.lse + t, 1, n, n, x.scale);
    for (int j = 0; j < n; j++) {
        float ds = p[j] * (dp[j] - d) * x.scale;
        add_scaled(x.dv + (t0 + j)*x.ld, p[j], d_o, x.HS);
        add_scaled(x.dq + t*x.ld, ds, k + j*x.ld, x.HS);
        add_scaled(x.dk + (t0 + j)*x.ld, ds, q, x.HS);
    }
}

static void backward_in_blocks(float *dqkv, const float *dout, const float *qkv, const float *out,
                               const float *lse, int B, int T, int C, int NH, WeightsOf *weights) {
    memset(dqkv, 0, (size_t)B*T*3*C * sizeof *dqkv);
    #pragma omp parallel for collapse(2) schedule(dynamic)
    for (int b = 0; b < B; b++)
    for (int h = 0; h < NH; h++) {
        Head x = head_of(qkv, b, h, T, C, NH);
        size_t at = (size_t)b*T*C + h*x.HS;
        x.out = out + at;
        x.dout = dout + at;
        x.lse = lse + ((size_t)b*NH + h)*T;
        x.dq = dqkv + (x.q - qkv);
        x.dk = x.dq + C;
        x.dv = x.dk + C;
        for (int t0 = 0; t0 < T; t0 += QUERIES)
            for (int t2 = 0; t2 < t0 + QUERIES; t2 += KEYS)
                for (int t = t0; t < T && t < t0 + QUERIES; t++)
                    if (t2 <= t) backward_row(x, t, t2, (int)min_size(KEYS, t + 1 - t2), weights);
    }
}

// Blocked: a tile of 32 keys, 8 KB, stays in level 1 while 32 queries meet it. The work on each
// pair of a query and a key is that of the plain rung. At T = 64 the keys of a head fit in level 1
// anyway, and backward gains nothing. Forward is 2.3 times as fast, but not because of the tiles:
// it is as fast with all keys in one tile.
static void blocked_forward(float *out, float *lse, float *scratch, const float *qkv,
                            int B, int T, int past, int C, int NH) {
    (void)past;
    forward_in_blocks(out, lse, scratch, qkv, B, T, C, NH, softmax_expf);
}

static void blocked_backward(float *dqkv, float *scratch, const float *dout, const float *qkv,
                             const float *out, const float *lse, int B, int T, int C, int NH) {
    (void)scratch;
    backward_in_blocks(dqkv, dout, qkv, out, lse, B, T, C, NH, weights_expf);
}

// Vector exponentials: exp_fast in place of expf. It is plain arithmetic, so the compiler computes
// a vector of exponentials at a time; expf is a call for each. Forward gains 1.25, backward, which
// has five products for each exponential and not two, 1.07.
static void exponentials_forward(float *out, float *lse, float *scratch, const float *qkv,
                                 int B, int T, int past, int C, int NH) {
    (void)past;
    forward_in_blocks(out, lse, scratch, qkv, B, T, C, NH, attention_softmax);
}

static void exponentials_backward(float *dqkv, float *scratch, const float *dout, const float *qkv,
                                  const float *out, const float *lse, int B, int T, int C,
                                  int NH) {
    (void)scratch;
    backward_in_blocks(dqkv, dout, qkv, out, lse, B, T, C, NH, attention_weights);
}

// Packed: the trainer's attention_forward_fast and attention_backward_fast, on one thread. A block
// of scores is a matrix product, and so are out, dq, dk and dv: each keeps a tile of sums in
// registers (the rungs "register-blocked" and "packed" of matmul.c). A vector now holds the scores
// of 16 keys, not 16 channels of one, so no sum goes across lanes. Forward gains 2.5, backward 2.9.
//
// Parallel: the same on all threads, each with heads of its own.

typedef void Forward(float *out, float *lse, float *scratch, const float *qkv,
                     int B, int T, int past, int C, int NH);
typedef void Backward(float *dqkv, float *scratch, const float *dout, const float *qkv,
                      const float *out, const float *lse, int B, int T, int C, int NH);
typedef struct {
    const char *name, *idea;           // what it changes, in one line
    Forward *forward;
    Backward *backward;
    bool all_threads;
} Rung;

static const Rung rungs[] = {
    { "plain", "a query at a time, all its keys, as the formula has it",
      attention_forward_plain, attention_backward_plain, false },
    { "blocked", "a block of queries meets a block of keys while both are in a cache",
      blocked_forward, blocked_backward, false },
    { "exponentials", "a vector of exponentials at a time, in place of the library's one",
      exponentials_forward, exponentials_backward, false },
    { "packed", "a vector holds scores of several keys, and blocks of scores are matrix products",
      attention_forward_fast, attention_backward_fast, false },
    { "parallel", "the same on all threads: heads of its own each",
      attention_forward_fast, attention_backward_fast, true },
};
enum { RUNGS = sizeof rungs / sizeof *rungs };

// ---- checking and timing ----

typedef struct {
    int B, T, NH, C;
    size_t N;                          // B*T
    float *qkv, *dout, *scratch;       // (N,3C) (N,C)
    float *out, *lse, *dqkv;           // (N,C) (B,NH,T) (N,3C) of the rung at hand
    float *first_out, *first_lse, *first_dqkv;   // of the first rung
} Data;

static float *numbers(size_t n) { return alloc_or_die(n * sizeof(float), "attention's data"); }

static Data data_init(int B, int T, int NH, int HS, int threads) {
    Data d = { .B = B, .T = T, .NH = NH, .C = NH*HS, .N = (size_t)B*T };
    size_t wide = d.N * d.C, rows = d.N * NH;
    d.qkv = random_numbers(3*wide, 1);
    d.dout = random_numbers(wide, 2);
    d.scratch = numbers(threads * attention_scratch(T, HS));
    d.out = numbers(wide);
    d.lse = numbers(rows);
    d.dqkv = numbers(3*wide);
    d.first_out = numbers(wide);
    d.first_lse = numbers(rows);
    d.first_dqkv = numbers(3*wide);
    attention_forward_plain(d.first_out, d.first_lse, d.scratch, d.qkv, B, T, 0, d.C, NH);
    attention_backward_plain(d.first_dqkv, d.scratch, d.dout, d.qkv, d.first_out, d.first_lse,
                             B, T, d.C, NH);
    return d;
}

static void data_free(Data *d) {
    float *all[] = { d->qkv, d->dout, d->scratch, d->out, d->lse, d->dqkv, d->first_out,
                     d->first_lse, d->first_dqkv };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static void fill(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = NAN;
}

// Seconds of the fastest of several runs. Before each, results are full of not-a-number, so that
// the check finds a rung which adds to what is there, or leaves an element out. Each backward pass
// gets the first rung's out and lse.
static double rung_seconds(const Rung *r, Data *d, bool backward, double at_least) {
    double best = INFINITY;
    for (double total = 0.0; total <= at_least; ) {
        fill(backward ? d->dqkv : d->out, (backward ? 3 : 1) * d->N * d->C);
        if (!backward) fill(d->lse, d->N * d->NH);
        double start = seconds_now();
        if (backward)
            r->backward(d->dqkv, d->scratch, d->dout, d->qkv, d->first_out, d->first_lse, d->B,
                        d->T, d->C, d->NH);
        else r->forward(d->out, d->lse, d->scratch, d->qkv, d->B, d->T, 0, d->C, d->NH);
        double seconds = seconds_now() - start;
        best = fmin(best, seconds);
        total += seconds;
    }
    return best;
}

// What rounding may come to. The fast rungs add in another order, and exp_fast is off by up to
// 1.2e-7. Measured up to T=1024, no result of any rung is off by more than 8e-7. Without d, or
// without the last key of each row, dq is off by 0.02 or more.
static const double TOLERANCE = 5e-6;

// The largest error of the results of r: out, lse, dq, dk, dv. Ends the program if that is more
// than rounding.
static double rung_check(const Rung *r, const Data *d) {
    const char *names[] = { "out", "lse", "dq", "dk", "dv" };
    size_t C = d->C;
    double worst = 0.0, errors[] = {
        difference(d->out, d->first_out, d->N, C, C),
        difference(d->lse, d->first_lse, d->N, d->NH, d->NH),
        difference(d->dqkv, d->first_dqkv, d->N, 3*C, C),
        difference(d->dqkv + C, d->first_dqkv + C, d->N, 3*C, C),
        difference(d->dqkv + 2*C, d->first_dqkv + 2*C, d->N, 3*C, C),
    };
    for (int i = 0; i < 5; i++) {
        if (!(errors[i] <= TOLERANCE))           // not-a-number is an error, too
            die("%s: T=%d NH=%d HS=%d: %s is off by %.2g of its norm, and rounding by at most %.2g",
                r->name, d->T, d->NH, d->C / d->NH, names[i], errors[i], TOLERANCE);
        worst = fmax(worst, errors[i]);
    }
    return worst;
}

// Less than a block of queries, one more than a block, none that a block or a vector divides.
static void check(int threads) {
    static const int shapes[][4] = {             // B, T, NH, HS
        { 1, 2, 1, 1 }, { 3, 7, 2, 5 }, { 1, 33, 3, 64 }, { 2, 64, 1, 24 }, { 2, 101, 3, 19 },
    };
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const int *n = shapes[s];
        Data d = data_init(n[0], n[1], n[2], n[3], threads);
        for (int r = 0; r < RUNGS; r++) {
            threads_set(rungs[r].all_threads ? threads : 1);
            rung_seconds(&rungs[r], &d, false, 0.0);
            rung_seconds(&rungs[r], &d, true, 0.0);
            rung_check(&rungs[r], &d);
        }
        threads_set(threads);
        data_free(&d);
    }
    printf("%d rungs agree, also in sizes that nothing divides\n", RUNGS);
}

static void ideas(void) {
    printf("\n");
    for (int i = 0; i < RUNGS; i++) printf("%d. %s: %s\n", i + 1, rungs[i].name, rungs[i].idea);
    printf("\n"
           "GFLOP/s    billion multiplications and additions a second, of pairs in sight alone;\n"
           "           exponentials are not counted, so 100%% of the peak is out of reach\n"
           "%% of peak  of what the rung's threads, one or all, can do on registers alone\n"
           "x before   how many times as fast as the line above\n"
           "error      how far the results are from the first rung's, as a part of their norm\n");
}

static void table(int T, int NH, int HS, int threads) {
    Data d = data_init(1, T, NH, HS, threads);
    Peaks peaks = peaks_measure(threads);
    double before[2] = {0}, highest = 0.0;
    double product = (double)NH * HS * T * (T + 1.0);        // FLOP, pairs in sight
    printf("\nT=%d, %d heads of %d channels\n", T, NH, HS);
    peaks_print(peaks);
    printf("%-14s %29s %31s\n%-14s %9s %8s %10s %11s %8s %10s %9s\n", "", "forward", "backward",
           "rung", "GFLOP/s", "% of peak", "x before", "GFLOP/s", "% of peak", "x before", "error");
    for (int i = 0; i < RUNGS; i++) {
        const Rung *r = &rungs[i];
        double peak = r->all_threads ? peaks.all : peaks.core;
        threads_set(r->all_threads ? threads : 1);
        double flops[2] = { 2*product / rung_seconds(r, &d, false, 0.3),
                            5*product / rung_seconds(r, &d, true, 0.3) };
        printf("%-14s", r->name);
        for (int f = 0; f < 2; f++) {
            char gain[16] = "";
            if (i > 0) snprintf(gain, sizeof gain, "%.2f", flops[f] / before[f]);
            printf("%s %8.1f %9.1f %10s", f ? "  " : "", flops[f] / 1e9, 100.0 * flops[f] / peak,
                   gain);
            highest = fmax(highest, flops[f] / peak);
            before[f] = flops[f];
        }
        printf(" %9.1g\n", rung_check(r, &d));
    }
    threads_set(threads);
    say_if_busy(peaks, highest);
    data_free(&d);
}

int main(int argc, char **argv) {
    int threads = thread_count(), own[3] = {0};
    *program_name() = "attention-cpu";
    ladder_arguments(argc, argv, "attention-cpu, attention-cpu T NH HS, or attention-cpu check",
                     8192, own);
    check(threads);
    if (argc == 2) return 0;
    ideas();
    if (argc == 4) {
        table(own[0], own[1], own[2], threads);
    } else {
        table(64, 12, 64, threads);
        table(1024, 12, 64, threads);
    }
    printf("\nNext: lesson 7 has the formula, dev/ladders/attention.c the code; "
           "`make ladder OP=attention` counts a GPU's.\n");
    return 0;
}
