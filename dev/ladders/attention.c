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
// the comments were measured on one core of a Zen 5, at T = 64. Exponentials are not counted, so
// 100% of the peak is out of reach.
#undef PRECISION_BF16                  // all rungs in fp32
#include "../base/base.h"
#include "ladder.h"                    // Rung, Result, ladder_climb, ladder_main
#define main train_gpt2_main
#include "../../train_gpt2.c"          // attention_forward_plain, attention_backward_plain, dot
#undef main

struct Data {
    float *out, *lse, *dqkv;           // (B,T,C) (B,NH,T) (B,T,3C)
    float *qkv, *dout, *scratch;       // (B,T,3C) (B,T,C)
    int B, T, C, NH;
};

// ---- the rungs ----

// Plain: the definition. Each query meets its keys one after the other. Forward loads 2 HS numbers
// for each HS multiply-adds, and every dot product ends in a sum across the lanes of a vector,
// which takes as long as the products.
static void plain_forward(const Data *d) {
    attention_forward_plain(d->out, d->lse, d->scratch, d->qkv, d->B, d->T, 0, d->C, d->NH);
}

static void plain_backward(const Data *d) {
    attention_backward_plain(d->dqkv, d->scratch, d->dout, d->qkv, d->out, d->lse, d->B, d->T, d->C,
                             d->NH);
}

// Exponentials: the same, with those of a whole row at a time, by exp_fast in place of expf. It is
// plain arithmetic, so the compiler computes a vector of exponentials at a time; expf is a call for
// each. So is a row's largest score found. Forward is about 5 times as fast; backward, which needs
// no largest and has five products for each exponential, not two, gains a tenth.
static void exponentials_forward(const Data *d) {
    int T = d->T, C = d->C, HS = C / d->NH;
    #pragma omp parallel for collapse(2)
    for (int b = 0; b < d->B; b++)
    for (int h = 0; h < d->NH; h++)
        for (int t = 0; t < T; t++) {
            const float *q = head_row(d->qkv, b, t, h, T, C, HS);
            float *o = d->out + ((size_t)b*T + t)*C + h*HS, inv_sum;
            float *p = d->scratch + thread_index()*attention_scratch(T, HS);
            for (int t2 = 0; t2 <= t; t2++)
                p[t2] = dot(q, head_row(d->qkv, b, t2, h, T, C, HS) + C, HS);
            attention_softmax(p, d->lse + ((size_t)b*d->NH + h)*T + t, &inv_sum, 1, t + 1, t + 1,
                              1.0f / sqrtf((float)HS));
            memset(o, 0, HS * sizeof *o);
            for (int t2 = 0; t2 <= t; t2++)
                add_scaled(o, p[t2] * inv_sum, head_row(d->qkv, b, t2, h, T, C, HS) + 2*C, HS);
        }
}

static void exponentials_backward(const Data *d) {
    int T = d->T, C = d->C, HS = C / d->NH;
    float scale = 1.0f / sqrtf((float)HS);
    memset(d->dqkv, 0, (size_t)d->B*T*3*C * sizeof *d->dqkv);
    #pragma omp parallel for collapse(2)
    for (int b = 0; b < d->B; b++)
    for (int h = 0; h < d->NH; h++)
        for (int t = 0; t < T; t++) {
            size_t row = ((size_t)b*T + t)*C + h*HS;
            const float *q = head_row(d->qkv, b, t, h, T, C, HS), *d_o = d->dout + row;
            float *p = d->scratch + thread_index()*attention_scratch(T, HS);
            float *dq = d->dqkv + (q - d->qkv), sum = dot(d_o, d->out + row, HS);
            for (int t2 = 0; t2 <= t; t2++)
                p[t2] = dot(q, head_row(d->qkv, b, t2, h, T, C, HS) + C, HS);
            attention_weights(p, d->lse + ((size_t)b*d->NH + h)*T + t, 1, t + 1, t + 1, scale);
            for (int t2 = 0; t2 <= t; t2++) {
                const float *k = head_row(d->qkv, b, t2, h, T, C, HS) + C;
                float *dk = d->dqkv + (k - d->qkv);
                float ds = p[t2] * (dot(d_o, k + C, HS) - sum) * scale;
                add_scaled(dk + C, p[t2], d_o, HS);
                add_scaled(dq, ds, k, HS);
                add_scaled(dk, ds, q, HS);
            }
        }
}

// Packed: the trainer's, on one thread. A block of queries meets all its keys, and its scores are a
// matrix product; so are out, dq, dk and dv. Each keeps a tile of sums in registers (the rungs
// "register-blocked" and "packed" of matmul.c). A vector now holds the scores of 16 keys, not 16
// channels of one, so no sum goes across lanes. Forward gains about 2, backward about 3. Blocks
// alone, without the products, gain little: at T = 64 the keys of a head fit in level 1 anyway.
//
// Parallel: the same on all threads, each with heads of its own.
static void fast_forward(const Data *d) {
    attention_forward_fast(d->out, d->lse, d->scratch, d->qkv, d->B, d->T, 0, d->C, d->NH);
}

static void fast_backward(const Data *d) {
    attention_backward_fast(d->dqkv, d->scratch, d->dout, d->qkv, d->out, d->lse, d->B, d->T, d->C,
                            d->NH);
}

static const Rung rungs[] = {
    { "plain", "a query at a time, all its keys, as the formula has it",
      .run = { plain_forward, plain_backward } },
    { "exponentials", "a vector of exponentials at a time, in place of the library's one",
      .run = { exponentials_forward, exponentials_backward } },
    { "packed", "a vector holds scores of several keys, and blocks of scores are matrix products",
      .run = { fast_forward, fast_backward } },
    { "parallel", "the same on all threads: heads of its own each",
      .run = { fast_forward, fast_backward }, .all_threads = true },
};

// ---- shapes ----

// Less than a block of queries, one more than a block, none that a block or a vector divides.
static const int small[][3] = {        // T, NH, HS
    { 2, 1, 1 }, { 7, 2, 5 }, { 33, 3, 64 }, { 64, 1, 24 }, { 101, 3, 19 }, { 0 },
};
static const int large[][3] = { { 64, 12, 64 }, { 1024, 12, 64 }, { 0 } };

static float *numbers(size_t n) { return alloc_or_die(n * sizeof(float), "attention's data"); }

// The fast rungs add in another order, and exp_fast is off by up to 1.2e-7. Measured up to T=1024,
// no result of any rung is off by more than 8e-7. Without d, or without the last key of each row,
// dq is off by 0.02 or more. Backward gets the out and lse that forward's last rung has left.
static void climb(Ladder *l, const int shape[3]) {
    const double TOLERANCE = 5e-6;
    int T = shape[0], NH = shape[1], HS = shape[2], B = l->shows ? 1 : 2, C = NH*HS;
    size_t rows = (size_t)B*T;
    double product = (double)B*C * T * (T + 1.0);            // FLOP, pairs in sight
    Data d = { numbers(rows*C), numbers(rows*NH), numbers(rows*3*C), random_numbers(rows*3*C, 1),
               random_numbers(rows*C, 2), numbers(l->threads * attention_scratch(T, HS)), B, T, C,
               NH };
    l->data = &d;
    snprintf(l->title, sizeof l->title, "forward: T=%d, %d heads of %d channels", T, NH, HS);
    l->pass = 0, l->flops = 2*product;
    l->results[0] = (Result){ "out", d.out, rows*C, rows*C, TOLERANCE, NULL };
    l->results[1] = (Result){ "lse", d.lse, rows*NH, rows*NH, TOLERANCE, NULL };
    ladder_climb(l);
    snprintf(l->title, sizeof l->title, "backward: T=%d, %d heads of %d channels", T, NH, HS);
    l->pass = 1, l->flops = 5*product;
    l->results[0] = (Result){ "dqkv", d.dqkv, rows*3*C, rows*3*C, TOLERANCE, NULL };
    l->results[1] = (Result){ 0 };
    ladder_climb(l);
    float *all[] = { d.out, d.lse, d.dqkv, d.qkv, d.dout, d.scratch };
    for (int i = 0; i < 6; i++) free(all[i]);
}

int main(int argc, char **argv) {
    Ladder l = { .name = "attention-cpu", .sizes = "T NH HS", .most = 8192, .rungs = rungs,
                 .n_rungs = sizeof rungs / sizeof *rungs, .small = small, .large = large,
                 .climb = climb,
                 .next = "lesson 7 has the formula, dev/ladders/attention.c the code; "
                         "`make ladder OP=attention` counts a GPU's." };
    return ladder_main(&l, argc, argv);
}
