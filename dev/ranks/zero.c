// Data parallelism and ZeRO: what the ranks communicate when (ranks.h).
//
// Every rank runs the whole model on its part of the batch. ZeRO (Rajbhandari et al. 2020, arXiv
// 1910.02054) divides what is stored between updates among the n ranks:
//
//     stage   parameters   gradients   moments   communication for each update
//     0       all          all         all       gradients: all-reduce in the last micro-batch
//     1       all          all         1/n       gradients: reduce-scatter in the last micro-batch;
//                                                parameters: all-gather after the update
//     2       all          1/n         1/n       the same, with a reduce-scatter in every
//                                                micro-batch
//     3       1/n          1/n         1/n       gradients as in 2; parameters: all-gather just
//                                                before each use, forward and backward
//
// Communication overlaps the backward pass: a bucket's gradients are sent as soon as they are
// complete, while the blocks before it compute.
#include "ranks.h"

// ---- parameters ----

static void zero_gather(Params *p, int bucket) {
    int slot = params_slot(p, bucket);
    size_t begin = params_own_begin(p, bucket, true), count = gpt2_bucket(&p->c, bucket).count;
    if (p->held[slot] == bucket) return;
    p->held[slot] = bucket;
    p->arrives[bucket] = comm_all_gather(p->comm, p->gathered[slot],
                                         p->values + begin*p->param_bytes, count, p->param_bytes);
}

// Waits for a bucket's parameters. At stage 3 also begins to gather those of the next bucket (-1:
// none), which the slots allow until two buckets further on.
static void zero_need(Params *p, int bucket, int next) {
    if (p->stage == 3) zero_gather(p, bucket);
    if (p->stage == 3 && next >= 0 && !p->in_turn) zero_gather(p, next);
    comm_wait(p->comm, p->arrives[bucket]);
}

void forward_needs(Params *p, int bucket) {
    if (p->alone) return;
    zero_need(p, bucket, bucket <= p->c.L ? bucket + 1 : -1);
}

void backward_needs(Params *p, int bucket) {
    if (p->alone) return;
    int slot = params_slot(p, bucket), L = p->c.L;
    zero_need(p, bucket, bucket == 0 ? L : bucket == 1 || bucket > L ? -1 : bucket - 1);
    if (p->stage < 2) return;
    comm_wait(p->comm, p->leaves[slot]);               // for the bucket that used the slot before
    floats_clear(p->collected[slot], gpt2_bucket(&p->c, bucket).count, p->stream);
}

void zero_send_params(Params *p) {
    if (p->stage == 0) return;
    for (int i = 0; i < PARAMS_SLOTS; i++) p->held[i] = -1;
    for (int b = 0; p->stage < 3 && b < gpt2_n_buckets(&p->c); b++) {
        Range r = gpt2_bucket(&p->c, b);
        char *data = p->values + r.begin*p->param_bytes;
        p->arrives[b] = comm_all_gather(p->comm, data,
                                        data + params_own(p, b).begin*p->param_bytes, r.count,
                                        p->param_bytes);
        if (p->in_turn) comm_wait(p->comm, p->arrives[b]);
    }
}

void zero_wait_params(Params *p) {
    for (int b = 0; b < gpt2_n_buckets(&p->c); b++) comm_wait(p->comm, p->arrives[b]);
}

// ---- gradients ----

void zero_micro_batch(Params *p, size_t i, size_t n) {
    p->last = i + 1 == n;
    if (i == 0) memset(p->norms, 0, sizeof p->norms);
#if defined(COMM_ON_GPU)                   // a GPU sums here during an update, not in p->norms
    size_t floats = 2*N_NORMS * params_partials_count(p);           // of doubles
    if (i == 0 && p->measure) floats_clear((float *)p->partials, floats, p->stream);
#endif
    if (p->n_levels == 0) return;
    p->level = tree_level(i);
    p->grads = p->levels[p->level];                    // free: term i is the first at this level
    floats_clear(p->grads, p->n_grads, p->stream);
}

bool zero_has_metric(const Params *p) {
    return p->measure && !p->sgd && p->stage == 0 && p->correct_v > 0.0f;
}

// The ranges of a bucket whose squares this rank counts in a norm: with tensor parallelism, tensors
// that all ranks of a group have count on its rank 0 alone. Returns the number of ranges.
static int zero_counted(Range *ranges, const Params *p, int bucket) {
    Range all = gpt2_bucket(&p->c, bucket);
    int n = 0, end = gpt2_bucket_tensor(&p->c, bucket + 1);
    ranges[0] = all;
    if (p->tp.index == 0) return 1;
    for (int i = gpt2_bucket_tensor(&p->c, bucket); i < end; i++) {
        Tensor t = gpt2_tensor(&p->c, i);
        Range r = { t.offset, t.count };
        if (tp_counts(&p->tp, t.kind)) ranges[n++] = r;
    }
    return n;
}

// Adds the squared norm of a bucket's gradients: plain, or in Adam's metric.
static void zero_weigh(Params *p, Norms norm, const float *grads, int bucket) {
    Range ranges[KINDS_IN_BLOCK];
    size_t whole = gpt2_bucket(&p->c, bucket).begin;
    int n = zero_counted(ranges, p, bucket);
    for (int i = 0; i < n; i++) {
        const float *v = norm == SMALLS ? NULL : p->adam_v + ranges[i].begin;
        floats_measure(p, norm, grads + ranges[i].begin - whole, v, ranges[i].count);
    }
}

// Measures the small gradients of dev/train/noise.c (gradient noise scale, McCandlish et al. 2018)
// before the ranks sum them. A small gradient is each micro-batch's where that lies in a buffer of
// its own (stages 2 and 3, --exact-sum, one rank alone), otherwise each rank's gradient.
static void zero_measure(Params *p, int bucket) {
    Range r = gpt2_bucket(&p->c, bucket);
    bool complete = p->small || p->last || p->n_levels > 0;
    float *flat = p->small ? p->small : p->grads;
    float *grads = p->stage >= 2 ? p->collected[params_slot(p, bucket)] : flat + r.begin;
    if (!p->measure || !(complete || p->stage >= 2)) return;
    zero_weigh(p, SMALLS, grads, bucket);
    if (zero_has_metric(p)) zero_weigh(p, SMALLS_ADAM, grads, bucket);
    if (!p->small) return;
    floats_axpby(p->grads + r.begin, 1.0f, grads, 1.0f, r.count, p->stream);
    floats_clear(grads, r.count, p->stream);
}

// --exact-sum: merges a micro-batch's gradient with the levels below its own, as a binary counter
// carries (dev/ranks/tree.h).
static void zero_carry(Params *p, int bucket) {
    Range r = gpt2_bucket(&p->c, bucket);
    for (int l = 0; l < p->level; l++)
        floats_axpby(p->grads + r.begin, 1.0f, p->levels[l] + r.begin, 1.0f, r.count, p->stream);
}

bool zero_sends(const Params *p) {
    return p->size > 1 && !p->apart && (p->stage >= 2 || p->last);
}

// Begins to sum a bucket's gradients over the ranks: a reduce-scatter (stages 2 and 3: for every
// micro-batch; stage 1: for the last) or an all-reduce (stage 0: for the last). The sum is the mean
// over the batch, since each loss was divided by the number of tokens in the whole batch.
static void zero_send(Params *p, int bucket) {
    Range r = gpt2_bucket(&p->c, bucket);
    int slot = params_slot(p, bucket);
    float *grads = p->grads + r.begin;
    if (!zero_sends(p)) return;
    if (p->stage >= 2)
        p->leaves[slot] = comm_reduce_scatter(p->comm, p->grads + params_own_begin(p, bucket, true),
                                              p->collected[slot], r.count, 1.0f, p->type,
                                              COMM_ADD);
    else if (p->stage == 1)
        p->leaves[slot] = comm_reduce_scatter(p->comm, grads + params_own(p, bucket).begin, grads,
                                              r.count, 1.0f, p->type, COMM_WRITE);
    else
        p->leaves[slot] = comm_all_reduce(p->comm, grads, r.count, 1.0f, p->type);
    if (p->in_turn) comm_wait(p->comm, p->leaves[slot]);
}

void gradients_ready(Params *p, int bucket) {
    if (p->alone) return;
    zero_measure(p, bucket);
    zero_carry(p, bucket);
    zero_send(p, bucket);
}

void zero_wait_grads(Params *p) {
    for (int i = 0; i < PARAMS_SLOTS; i++) comm_wait(p->comm, p->leaves[i]);
    for (int b = 0; zero_has_metric(p) && b < gpt2_n_buckets(&p->c); b++)
        zero_weigh(p, BIG_ADAM, p->grads + gpt2_bucket(&p->c, b).begin, b);
}

size_t zero_smalls_count(const Params *p, size_t micro_batches) {
    return p->size > 1 && p->stage < 2 && p->n_levels == 0 ? 1 : micro_batches;
}

// ---- an update's totals ----

Slice totals_squares(const Params *p, Scope scope) {
    size_t group = (size_t)p->tp.size, data_ranks = scope == ALL_RANKS ? (size_t)p->size : 1;
    Slice all = { 0, group*data_ranks };
    Slice one = { p->apart && data_ranks > 1 ? group*(size_t)p->rank : 0, group };
    return p->stage == 0 ? one : all;
}

Totals totals_sum(const Params *p, const Totals *all, Scope scope) {
    size_t group = (size_t)p->tp.size;
    size_t ranks = group * (size_t)(scope == ALL_RANKS ? p->size : 1);
    Slice counted = totals_squares(p, scope);
    Totals sum = { 0.0, 0.0, { 0.0 }, 0 };
    for (size_t r = 0; r < ranks; r++) {
        if (r % group == 0) sum.loss += all[r].loss;
        for (int k = SMALLS; k <= SMALLS_ADAM; k++) sum.norms[k] += all[r].norms[k];
        if (scope == ALL_RANKS && !sum.stop) sum.stop = all[r].stop;   // one signal for all ranks
    }
    for (size_t r = counted.begin; r < counted.begin + counted.count; r++) {
        sum.squares += all[r].squares;
        sum.norms[BIG_ADAM] += all[r].norms[BIG_ADAM];
    }
    return sum;
}

Comm *totals_comm(const Params *p, Scope scope) {
    if (scope == ALL_RANKS && p->size*p->tp.size > 1) return comm_whole(p->comm);
    return p->tp.size > 1 ? p->tp.comm : NULL;
}

void totals_share(const Params *p, Totals *totals) {
    Totals all[COMM_MAX_RANKS];
    totals->stop = p->scope == ALL_RANKS ? *p->stop : 0;
    if (p->alone) return;
    memcpy(totals->norms, p->norms, sizeof p->norms);
    Comm *over = totals_comm(p, p->scope);
    if (over) comm_collect(over, all, totals, sizeof *totals);
    else all[0] = *totals;
    *totals = totals_sum(p, all, p->scope);
}
