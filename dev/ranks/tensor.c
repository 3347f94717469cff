// Tensor parallelism: n ranks share every layer (Megatron-LM, Shoeybi et al. 2019) (ranks.h).
//
// Data parallelism gives each rank other sequences, and each needs the whole model. Here the n
// ranks of a group compute the same sequences together. Each holds 1/n of every large matrix and
// computes 1/n of every product. Two ways to cut a matrix W fit together:
//
//     by columns   x [W1 W2] = [x W1, x W2]: each rank gets its own columns of the output
//     by rows      [y1, y2] [W1 over W2] = y1 W1 + y2 W2: each rank gets a term of a sum
//
// A layer by columns, then one by rows, need a single sum at their end. GELU works on each column
// alone, and attention on each head alone, so a rank needs nothing from others in between:
//
//      x (N,C)                      every rank has all of it
//      |
//      |--------.
//      |    LayerNorm ............. ln1 (N,C): computed by every rank
//      |    linear C -> 3C/n ...... by columns: queries, keys, values of this rank's NH/n heads
//      |    attention ............. att (N,C/n)
//      |    linear C/n -> C ....... by rows: a term (N,C)
//      |    tp_sum ............ all-reduce; then the bias, once
//      + <------'
//      |
//      x_mid (N,C)                  every rank has all of it
//      |
//      |--------.
//      |    LayerNorm ............. ln2 (N,C)
//      |    linear C -> 4C/n ...... by columns
//      |    GELU .................. gelu (N,4C/n)
//      |    linear 4C/n -> C ...... by rows
//      |    tp_sum ............ all-reduce; then the bias, once
//      + <------'
//      |
//      x_out (N,C)
//
// In the backward pass the two kinds change places. The gradient that enters a layer by rows is the
// same on all ranks and needs no sum. The gradient that leaves a layer by columns is a term of a
// sum: every rank's columns have read the same x. So a tp_sum follows the backward pass of each
// layer by columns, and a block has two sums forward and two backward.
//
// The vocabulary is cut as well: a rank holds the rows of wte of its own words (TpGroup.words).
//
//     embedding     the rank that has the word gives its row plus the position, the others zeros.
//                   Then a tp_sum.
//     classifier    each rank has the logits of its own words. The cross-entropy needs three
//                   numbers a token from each rank: the largest of its logits, the sum of
//                   e^(logit - largest), and the target's logit or 0 (xent_parts). No rank holds
//                   all logits.
//     its backward  dx is a sum over all words, so a term from each rank: a tp_sum.
//
// Unlike a gradient's sum, these cannot overlap with computation: what follows needs them. So the
// ranks of a group should share a fast link. README.md counts what they send; --recompute block
// sums again what attention gives, in all blocks but the last.
//
// LayerNorms, wpe and the biases of the layers by rows are on every rank. All ranks of a group have
// the same gradients for these, bit for bit, and so make the same updates. In the gradient's norm
// they count once, on the group's rank 0 (tp_counts).
#include "../cpu/cpu.h"
#include "ranks.h"

#ifndef TP_ALWAYS
#define TP_ALWAYS 0
#endif

TpGroup tp_group(const Config *whole, Comm *comm) {
    int index = comm ? comm->rank : 0, size = comm ? comm->size : 1;
    TpGroup g = { TP_ALWAYS || size > 1, comm, index, size, *whole, gpt2_share(whole, size),
                  { 0, 0 }, NULL, NULL };
    size_t V = (size_t)whole->V, begin = (size_t)g.own.V * (size_t)g.index;
    g.words.begin = begin < V ? begin : V;
    g.words.count = V - g.words.begin < (size_t)g.own.V ? V - g.words.begin : (size_t)g.own.V;
    return g;
}

int tp_heads(const TpGroup *g) { return g->own.NH / g->size; }

int tp_channels(const TpGroup *g) { return g->own.C / g->size; }

bool tp_counts(const TpGroup *g, int kind) {
    return g->index == 0 || tensor_kind(kind)->cut != CUT_NONE;
}

bool tp_group_check(const Config *whole, int size, Error *err) {
    if (whole->NH % size == 0) return true;
    return fail(err, "--tensor-parallel: %d ranks cannot share %d heads equally; give a divisor of "
                     "%d", size, whole->NH, whole->NH);
}

// ---- what ranks exchange ----

void tp_sum(const TpGroup *g, float *x, size_t n) {
    if (g->size > 1) comm_wait(g->comm, comm_all_reduce(g->comm, x, n, 1.0f, COMM_FP32));
}

void tp_sum_rows(const TpGroup *g, float *out, const float *b, size_t N, int C) {
    tp_sum(g, out, N*(size_t)C);
    #pragma omp parallel for
    for (size_t n = 0; n < N; n++)
        for (int c = 0; c < C; c++) out[n*(size_t)C + (size_t)c] += b[c];
}

void tp_collect(const TpGroup *g, float *all, const float *own, size_t n) {
    if (g->size == 1) memcpy(all, own, n * sizeof *own);
    else comm_wait(g->comm, comm_collect_there(g->comm, all, own, n * sizeof *own));
}

// ---- the vocabulary ----

static int tp_row(const TpGroup *g, int token) {
    size_t row = (size_t)token - g->words.begin;             // wraps around below the first word
    return row < g->words.count ? (int)row : -1;
}

void tp_rows(int *rows, const int *tokens, size_t N, const TpGroup *g) {
    for (size_t n = 0; n < N; n++) rows[n] = tp_row(g, tokens[n]);
}

const int *tp_targets(const TpGroup *g, const int *target, size_t N) {
    tp_rows(g->targets, target, N, g);
    for (size_t n = 0; n < N; n++)
        if (g->targets[n] < 0) g->targets[n] = (int)g->words.count;
    return g->targets;
}

// ---- embedding and cross-entropy: to read beside those of train_gpt2.c ----

void tp_embedding_forward(float *x, const int *token, const float *wte, const float *wpe,
                          const TpGroup *g, int B, int T, int C) {
    size_t N = (size_t)B*T;
    #pragma omp parallel for
    for (size_t n = 0; n < N; n++) {
        int row = tp_row(g, token[n]);
        const float *word = wte + (row < 0 ? 0 : (size_t)row*C), *position = wpe + n % T * C;
        for (int c = 0; c < C; c++) x[n*C + c] = row < 0 ? 0.0f : word[c] + position[c];
    }
    tp_sum(g, x, N*C);
}

void tp_embedding_backward(float *dwte, float *dwpe, const float *dx, const int *token,
                           const TpGroup *g, int B, int T, int C) {
    int strips = thread_count();
    size_t N = (size_t)B*T;
    #pragma omp parallel for
    for (int s = 0; s < strips; s++) {
        int begin = strip_begin(C, s, strips), end = strip_begin(C, s + 1, strips);
        for (size_t n = 0; n < N; n++) {
            int row = tp_row(g, token[n]);
            for (int c = begin; row >= 0 && c < end; c++) dwte[(size_t)row*C + c] += dx[n*C + c];
            for (int c = begin; c < end; c++) dwpe[n % T * C + c] += dx[n*C + c];
        }
    }
}

// parts (3,N): of each row of logits (N,Vp) its largest of V (-INFINITY if V is 0), the sum of
// e^(logit - largest), and the target's logit, or 0 if target[n] is V: another rank's word.
static void xent_parts(float *parts, const float *logits, const int *target, size_t N, int V,
                       int Vp) {
    #pragma omp parallel for
    for (size_t n = 0; n < N; n++) {
        const float *x = logits + n*Vp;
        float hi = -INFINITY, sum = 0.0f;
        #pragma omp simd reduction(max:hi)
        for (int v = 0; v < V; v++) hi = x[v] > hi ? x[v] : hi;
        #pragma omp simd reduction(+:sum)
        for (int v = 0; v < V; v++) sum += exp_fast(x[v] - hi);
        parts[n] = hi;
        parts[N + n] = sum;
        parts[2*N + n] = target[n] < V ? x[target[n]] : 0.0f;
    }
}

void tp_xent_forward(float *loss, float *lse, const float *logits, const int *target,
                     const TpGroup *g, size_t N, int Vp) {
    size_t size = (size_t)g->size;
    float *all = g->parts, *own = all + size*3*N;
    xent_parts(own, logits, target, N, (int)g->words.count, Vp);
    tp_collect(g, all, own, 3*N);
    for (size_t n = 0; n < N; n++) {
        float hi = -INFINITY, sum = 0.0f, right = 0.0f;
        for (size_t r = 0; r < size; r++) hi = fmaxf(hi, all[r*3*N + n]);
        for (size_t r = 0; r < size; r++) {
            const float *part = all + r*3*N + n;
            sum += part[N] * expf(part[0] - hi);
            right += part[2*N];
        }
        lse[n] = hi + logf(sum);
        loss[n] = lse[n] - right;
    }
}

void tp_carve(TpGroup *g, Memory *mem, size_t N, size_t rows) {
    if (!g->shares) return;
    g->parts = memory_floats(mem, MEM_LOGITS, (g->size + 1)*(3*rows + g->own.V));
    g->targets = (int *)memory_take(mem, MEM_LOGITS, N * sizeof *g->targets);
}

// ---- checkpoints: buckets of the whole model, and a rank's part of them ----

// Copies rank `index`'s part of one tensor: from the whole to the part, or back. A row of a part
// is a range of a row of the whole; with CUT_HEADS three ranges, in queries, keys and values.
static void tp_copy(float *part, float *whole, const Tensor *p, const Tensor *w, int index,
                    TpCopy copy) {
    Cut cut = tensor_kind(p->kind)->cut;
    bool by_rows = cut == CUT_ROWS || cut == CUT_WORDS;
    bool by_columns = cut == CUT_COLUMNS || cut == CUT_HEADS;
    size_t ranges = cut == CUT_HEADS ? 3 : 1, width = p->cols / ranges, step = w->cols / ranges;
    size_t first_row = by_rows ? (size_t)index * p->rows : 0;
    size_t first_col = by_columns ? (size_t)index * width : 0;
    for (size_t row = 0; row < p->rows; row++)
        for (size_t k = 0; k < ranges; k++) {
            float *here = part + row*p->cols + k*width;
            float *there = whole + (first_row + row)*w->cols + k*step + first_col;
            bool beyond = first_row + row >= w->rows;        // a row of wte without a word
            if (copy == TP_WHOLE && !beyond) memcpy(there, here, width * sizeof *here);
            if (copy == TP_PART && !beyond) memcpy(here, there, width * sizeof *here);
            if (copy == TP_PART && beyond) memset(here, 0, width * sizeof *here);
        }
}

void tp_copy_bucket(float *part, float *whole, const TpGroup *g, int bucket, int index,
                    TpCopy copy) {
    size_t begin = gpt2_bucket(&g->own, bucket).begin;
    size_t whole_begin = gpt2_bucket(&g->whole, bucket).begin;
    int end = gpt2_bucket_tensor(&g->whole, bucket + 1);
    for (int i = gpt2_bucket_tensor(&g->whole, bucket); i < end; i++) {
        Tensor p = gpt2_tensor(&g->own, i), w = gpt2_tensor(&g->whole, i);
        tp_copy(part + p.offset - begin, whole + w.offset - whole_begin, &p, &w, index, copy);
    }
}
