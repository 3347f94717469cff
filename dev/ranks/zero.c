// Data parallelism and ZeRO: what each rank stores, and what the ranks communicate when (ranks.h).
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
#include <assert.h>

void params_init(Params *p, const Sharing *s, const Config *whole, int words, size_t param_bytes) {
    memset(p, 0, sizeof *p);
    p->stop = stop_signal();
    p->comm = s->comm;
    p->rank = s->comm ? s->comm->rank : 0;
    p->size = s->comm ? s->comm->size : 1;
    p->stage = p->size > 1 ? s->stage : 0;             // one rank has nothing to share
    p->type = s->type;
    p->apart = s->apart;
    p->in_turn = s->in_turn;
    p->measure = s->measure;
    p->sgd = s->sgd;
    p->averages = s->averages;
    p->n_levels = s->levels;
    p->tp = tp_group(whole, s->tensor);
    p->alone = p->size == 1 && !p->tp.shares && !p->measure && p->n_levels == 0;
    p->c = p->file = p->tp.own;
    p->c.V = (p->c.V + words - 1) / words * words;
    p->param_bytes = param_bytes;
    for (int i = 0; i < ZERO_SLOTS; i++) p->held[i] = -1;
    p->arrives = (Ticket *)alloc_or_die(gpt2_n_buckets(&p->c) * sizeof *p->arrives, "tickets");
}

void params_free(Params *p) {
    for (int i = 0; i < ZERO_SLOTS; i++) comm_wait(p->comm, p->leaves[i]);
    for (int b = 0; b < gpt2_n_buckets(&p->c); b++) comm_wait(p->comm, p->arrives[b]);
    free(p->arrives);
}

static int zero_slot(const Params *p, int bucket) {
    return bucket == 0 ? 0 : bucket > p->c.L ? 1 : 2 + bucket % 2;
}

Slice zero_own(const Params *p, int bucket) {
    size_t count = gpt2_bucket(&p->c, bucket).count;
    if (p->stage == 0) return comm_slice(count, 0, 1);
    return comm_slice(count, p->rank, p->size);
}

// The offset of a bucket's slice in a buffer of slices: the same on each rank.
static size_t zero_slices_begin(const Params *p, int bucket) {
    size_t at = 0;
    for (int b = 0; b < bucket; b++)
        at += comm_slice(gpt2_bucket(&p->c, b).count, 0, p->size).count;
    return at;
}

size_t zero_own_begin(const Params *p, int bucket, bool slices) {
    if (slices) return zero_slices_begin(p, bucket);
    return gpt2_bucket(&p->c, bucket).begin + zero_own(p, bucket).begin;
}

void *bucket_at(const Params *p, int bucket, Flat flat) {
    size_t begin = gpt2_bucket(&p->c, bucket).begin;
    if (flat == PARAMS)
        return p->stage < 3 ? p->values + begin*p->param_bytes : p->gathered[zero_slot(p, bucket)];
    if (p->small) return p->small + begin;
    return p->stage < 2 ? p->grads + begin : p->collected[zero_slot(p, bucket)];
}

// ---- memory ----

static size_t zero_buffer(const Params *p, bool slices) {
    return slices ? zero_slices_begin(p, gpt2_n_buckets(&p->c)) : gpt2_n_params(&p->c);
}

static size_t zero_params_count(const Params *p) {
    return zero_buffer(p, p->stage == 3);
}

static size_t zero_grads_count(const Params *p) {
    return zero_buffer(p, p->stage >= 2);
}

size_t zero_moments_count(const Params *p) {
    return zero_buffer(p, p->stage >= 1);
}

// Capacity of a slot, in elements.
static size_t zero_slot_count(const Params *p, int slot) {
    int bucket = slot == 0 ? 0 : slot == 1 ? p->c.L + 1 : 1;
    return gpt2_bucket(&p->c, bucket).count;
}

size_t zero_partials_count(const Params *p) {
    return (gpt2_largest_bucket(&p->c) + ZERO_MEASURED - 1) / ZERO_MEASURED;
}

// Gradient accumulation on one rank would add each micro-batch's gradient to the others. To measure
// it, the rank computes it in a buffer of its own.
static bool zero_keeps_small(const Params *p) {
    return p->measure && p->size == 1 && p->n_levels == 0;
}

int zero_chunks(Chunk *chunks, const Params *p, int largest) {
    int n = 0, bucket = 0;
    for (int i = 0; i < gpt2_n_tensors(&p->c); i++) {
        if (i == gpt2_bucket_tensor(&p->c, bucket + 1)) bucket++;
        Tensor t = gpt2_tensor(&p->c, i);
        Slice own = zero_own(p, bucket);
        size_t whole = gpt2_bucket(&p->c, bucket).begin, slices = zero_slices_begin(p, bucket);
        size_t at = t.offset - whole, end = at + t.count;              // within the bucket
        if (at < own.begin) at = own.begin;
        if (end > own.begin + own.count) end = own.begin + own.count;
        for (; at < end; at += (size_t)largest, n++) {
            size_t as_whole = whole + at, as_slice = slices + at - own.begin, left = end - at;
            Chunk chunk = { p->stage == 3 ? as_slice : as_whole,
                            p->stage >= 2 ? as_slice : as_whole,
                            p->stage >= 1 ? as_slice : as_whole,
                            left < (size_t)largest ? (int)left : largest, t.decays,
                            tp_counts(&p->tp, t.kind) };
            if (chunks) chunks[n] = chunk;
        }
    }
    return n;
}

void params_carve(Params *p, Memory *mem) {
    bool rounded = p->param_bytes < sizeof(float);
    p->values = (char *)memory_take(mem, MEM_PARAMS, zero_params_count(p) * p->param_bytes);
    p->masters = (float *)p->values;
    if (rounded) p->masters = memory_floats(mem, MEM_PARAMS, zero_moments_count(p));
    for (int i = 0; i < ZERO_SLOTS && p->stage == 3; i++)
        p->gathered[i] = (char *)memory_take(mem, MEM_PASSING,
                                             zero_slot_count(p, i) * p->param_bytes);
}

void params_carve_training(Params *p, Memory *mem) {
    size_t n = gpt2_n_params(&p->c), partials = zero_partials_count(p) * sizeof(double);
    p->n_grads = zero_grads_count(p);
    p->grads = p->levels[0] = memory_floats(mem, MEM_GRADS, p->n_grads);
    for (int l = 1; l < p->n_levels; l++) p->levels[l] = memory_floats(mem, MEM_GRADS, n);
    if (zero_keeps_small(p)) p->small = memory_floats(mem, MEM_GRADS, n);
    if (p->measure) p->partials = (double *)memory_take(mem, MEM_REST, N_NORMS * partials);
    for (int i = 0; i < ZERO_SLOTS && p->stage >= 2; i++)
        p->collected[i] = memory_floats(mem, MEM_PASSING, zero_slot_count(p, i));
    if (!p->sgd) p->adam_m = memory_floats(mem, MEM_MOMENTS, zero_moments_count(p));
    if (!p->sgd) p->adam_v = memory_floats(mem, MEM_MOMENTS, zero_moments_count(p));
    if (p->averages) p->average = memory_floats(mem, MEM_AVERAGE, zero_moments_count(p));
    p->n_chunks = zero_chunks(NULL, p, ZERO_CHUNK);
    p->chunks = (Chunk *)memory_take(mem, MEM_REST, p->n_chunks * sizeof *p->chunks);
    p->norm_partials = (double *)memory_take(mem, MEM_REST, p->n_chunks * sizeof(double));
    if (p->apart) p->outer_params = memory_floats(mem, MEM_OUTER, n);
    if (p->apart) p->outer_momentum = memory_floats(mem, MEM_OUTER, n);
#if !defined(COMM_ON_GPU)                  // a GPU's model uses the memory of its logits
    if (p->size > 1 || p->tp.size > 1)
        p->bucket = memory_floats(mem, MEM_REST, gpt2_largest_bucket(&p->c));
    if (p->tp.size > 1)
        p->whole = memory_floats(mem, MEM_REST, gpt2_largest_bucket(&p->tp.whole));
#endif
}

// ---- work on flat buffers, on the device where they lie ----

#if !defined(COMM_ON_GPU)                  // a GPU's are in dev/ranks/kernels.cu
void floats_clear(float *x, size_t n, Stream stream) {
    (void)stream;
    #pragma omp parallel for simd
    for (size_t i = 0; i < n; i++) x[i] = 0.0f;
}

// y = a x + b y; with b = 0, y is not read. b = 0 and b = 1 have loops of their own, so that a
// fused multiply-add rounds once.
void floats_axpby(float *y, float a, const float *x, float b, size_t n, Stream stream) {
    (void)stream;
    if (b == 0.0f) {
        #pragma omp parallel for simd
        for (size_t i = 0; i < n; i++) y[i] = a * x[i];
    } else if (b == 1.0f) {
        #pragma omp parallel for simd
        for (size_t i = 0; i < n; i++) y[i] += a * x[i];
    } else {
        #pragma omp parallel for simd
        for (size_t i = 0; i < n; i++) y[i] = b * y[i] + a * x[i];
    }
}

// p->norms[SMALLS] += the sum of the squares of x (n). If `sum` is not NULL: sum += x, then x = 0.
void floats_measure(Params *p, float *sum, float *x, size_t n) {
    size_t pieces = (n + ZERO_MEASURED - 1) / ZERO_MEASURED;
    #pragma omp parallel for
    for (size_t k = 0; k < pieces; k++) {
        size_t begin = k*ZERO_MEASURED, end = begin + ZERO_MEASURED;
        double squares = 0.0;
        if (end > n) end = n;
        if (sum) {
            #pragma omp simd reduction(+:squares)
            for (size_t i = begin; i < end; i++) {
                squares += (double)x[i] * x[i];
                sum[i] += x[i];
                x[i] = 0.0f;
            }
        } else {
            #pragma omp simd reduction(+:squares)
            for (size_t i = begin; i < end; i++) squares += (double)x[i] * x[i];
        }
        p->partials[k] = squares;
    }
    for (size_t k = 0; k < pieces; k++) p->norms[SMALLS] += p->partials[k];  // the same bits
}

// p->norms[norm] += the squared norm of x (n) in Adam's metric: the sum of x^2 / (sqrt(v) + eps),
// with v corrected for its start at zero.
void floats_weigh(Params *p, Norms norm, const float *x, const float *v, size_t n) {
    size_t pieces = (n + ZERO_MEASURED - 1) / ZERO_MEASURED;
    #pragma omp parallel for
    for (size_t k = 0; k < pieces; k++) {
        size_t begin = k*ZERO_MEASURED, end = begin + ZERO_MEASURED;
        double sum = 0.0;
        if (end > n) end = n;
        #pragma omp simd reduction(+:sum)
        for (size_t i = begin; i < end; i++)
            sum += x[i] / (sqrtf(v[i] * p->correct_v) + ADAM_EPS) * x[i];
        p->partials[k] = sum;
    }
    for (size_t k = 0; k < pieces; k++) p->norms[norm] += p->partials[k];
}
#endif

// ---- parameters ----

static void zero_gather(Params *p, int bucket) {
    int slot = zero_slot(p, bucket);
    size_t count = gpt2_bucket(&p->c, bucket).count;
    if (p->held[slot] == bucket) return;
    p->held[slot] = bucket;
    p->arrives[bucket] = comm_all_gather(p->comm, p->gathered[slot],
                                         p->values + zero_slices_begin(p, bucket)*p->param_bytes,
                                         count, p->param_bytes);
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
    int slot = zero_slot(p, bucket), L = p->c.L;
    zero_need(p, bucket, bucket == 0 ? L : bucket == 1 || bucket > L ? -1 : bucket - 1);
    if (p->stage < 2) return;
    comm_wait(p->comm, p->leaves[slot]);               // for the bucket that used the slot before
    floats_clear(p->collected[slot], gpt2_bucket(&p->c, bucket).count, p->stream);
}

void zero_send_params(Params *p) {
    if (p->stage == 0) return;
    for (int i = 0; i < ZERO_SLOTS; i++) p->held[i] = -1;
    for (int b = 0; p->stage < 3 && b < gpt2_n_buckets(&p->c); b++) {
        Range r = gpt2_bucket(&p->c, b);
        char *data = p->values + r.begin*p->param_bytes;
        p->arrives[b] = comm_all_gather(p->comm, data,
                                        data + zero_own(p, b).begin*p->param_bytes, r.count,
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
    size_t bytes = N_NORMS * zero_partials_count(p) * sizeof(double);
    if (i == 0 && p->measure) COMM_CUDA(cudaMemsetAsync(p->partials, 0, bytes, p->stream));
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

// Adds the squared norm, in Adam's metric, of a flat buffer's gradients of a bucket.
static void zero_weigh(Params *p, Norms norm, const float *flat, int bucket) {
    Range ranges[KINDS_IN_BLOCK];
    int n = zero_counted(ranges, p, bucket);
    for (int i = 0; i < n; i++)
        floats_weigh(p, norm, flat + ranges[i].begin, p->adam_v + ranges[i].begin,
                     ranges[i].count);
}

// Measures the small gradients of dev/train/noise.c (gradient noise scale, McCandlish et al. 2018)
// before the ranks sum them. A small gradient is each micro-batch's where that lies in a buffer of
// its own (stages 2 and 3, --exact-sum, one rank alone), otherwise each rank's gradient.
static void zero_measure(Params *p, int bucket) {
    Range r = gpt2_bucket(&p->c, bucket), ranges[KINDS_IN_BLOCK];
    bool complete = p->small || p->last || p->n_levels > 0;
    float *flat = p->small ? p->small : p->grads;
    float *grads = p->stage >= 2 ? p->collected[zero_slot(p, bucket)] : flat + r.begin;
    float *sum = p->small && p->tp.index == 0 ? p->grads + r.begin : NULL;
    if (!p->measure || !(complete || p->stage >= 2)) return;
    if (zero_has_metric(p)) zero_weigh(p, SMALLS_ADAM, flat, bucket);
    int n = zero_counted(ranges, p, bucket);
    for (int i = 0; i < n; i++)
        floats_measure(p, sum, grads + ranges[i].begin - r.begin, ranges[i].count);
    if (!p->small || sum) return;
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
    int slot = zero_slot(p, bucket);
    float *grads = p->grads + r.begin;
    if (!zero_sends(p)) return;
    if (p->stage >= 2)
        p->leaves[slot] = comm_reduce_scatter(p->comm, p->grads + zero_slices_begin(p, bucket),
                                              p->collected[slot], r.count, 1.0f, p->type,
                                              COMM_ADD);
    else if (p->stage == 1)
        p->leaves[slot] = comm_reduce_scatter(p->comm, grads + zero_own(p, bucket).begin, grads,
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
    for (int i = 0; i < ZERO_SLOTS; i++) comm_wait(p->comm, p->leaves[i]);
    for (int b = 0; zero_has_metric(p) && b < gpt2_n_buckets(&p->c); b++)
        zero_weigh(p, BIG_ADAM, p->grads, b);
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
    assert(p->alone == (p->size == 1 && !p->tp.shares && !p->measure && p->n_levels == 0));
    totals->stop = p->scope == ALL_RANKS ? *p->stop : 0;
    if (p->alone) return;
    memcpy(totals->norms, p->norms, sizeof p->norms);
    Comm *over = totals_comm(p, p->scope);
    if (over) comm_collect(over, all, totals, sizeof *totals);
    else all[0] = *totals;
    *totals = totals_sum(p, all, p->scope);
}

// ---- buckets for checkpoints: loading, drawing, saving ----

Buffer kept_buffer(const Params *p, Kept what) {
    bool rounded = p->param_bytes < sizeof(float);
    Buffer b = { p->masters, p->stage >= (rounded ? 1 : 3) };
    if (what == KEPT_WEIGHTS) return b;
    b.data = what == KEPT_EXP_AVG ? p->adam_m : what == KEPT_EXP_AVG_SQ ? p->adam_v
           : what == KEPT_AVERAGE ? p->average : p->outer_momentum;
    b.slices = p->stage >= 1;
    return b;
}

#if !defined(COMM_ON_GPU)                  // a GPU's are in dev/ranks/kernels.cu
// After the layout: fills the table of chunks.
void params_open(Params *p) {
    if (p->chunks) zero_chunks(p->chunks, p, ZERO_CHUNK);
}

void params_close(Params *p) { params_free(p); }

// Buffer for a whole bucket in the shapes of p->file, of which bucket_take() keeps this rank's
// slice.
float *bucket_place_own(Params *p, Kept what, int bucket) {
    Buffer b = kept_buffer(p, what);
    return b.slices ? p->bucket : b.data + gpt2_bucket(&p->c, bucket).begin;
}

void bucket_take(Params *p, Buffer b, int bucket) {
    Slice own = zero_own(p, bucket);
    if (b.slices)
        memcpy(b.data + zero_slices_begin(p, bucket), p->bucket + own.begin,
               own.count * sizeof(float));
}

const float *bucket_show(Params *p, float *whole, int bucket) {
    (void)p, (void)bucket;
    return whole;
}

// After the masters have changed, this rank's part of them at least: gathers the ranks' slices. A
// GPU rounds the masters to bf16 first.
void params_loaded(Params *p) { zero_send_params(p); }
#endif

// ---- averaged weights ----

// to = keep * to + (1 - keep) * from, of all that this rank updates. Both factors are floats with a
// sum of exactly 1 from keep = 1/2 on, so that long averages do not shrink.
static void zero_blend(Params *p, Buffer to, Buffer from, float keep) {
    for (int b = 0; b < gpt2_n_buckets(&p->c); b++) {
        size_t n = zero_own(p, b).count;
        if (n > 0)
            floats_axpby(to.data + zero_own_begin(p, b, to.slices), 1.0f - keep,
                         from.data + zero_own_begin(p, b, from.slices), keep, n, p->stream);
    }
}

void zero_average(Params *p, float keep) {
    zero_blend(p, kept_buffer(p, KEPT_AVERAGE), kept_buffer(p, KEPT_WEIGHTS), keep);
}

void zero_average_begin(Params *p) {
    Buffer weights = kept_buffer(p, KEPT_WEIGHTS), aside = { p->grads, p->stage >= 2 };
    zero_wait_params(p);
    zero_blend(p, aside, weights, 0.0f);
    zero_blend(p, weights, kept_buffer(p, KEPT_AVERAGE), 0.0f);
    params_loaded(p);
}

void zero_average_end(Params *p) {
    Buffer aside = { p->grads, p->stage >= 2 };
    zero_wait_params(p);
    zero_blend(p, kept_buffer(p, KEPT_WEIGHTS), aside, 0.0f);
    params_loaded(p);
}

float *bucket_place(Params *p, Kept what, int bucket) {
    return p->tp.size > 1 ? p->whole : bucket_place_own(p, what, bucket);
}

void bucket_keep(Params *p, Kept what, int bucket) {
    size_t bytes = gpt2_bucket(&p->tp.whole, bucket).count * sizeof(float);
    if (what == KEPT_WEIGHTS && p->size*p->tp.size > 1)
        p->hash = hash_add(p->hash, bucket_place(p, what, bucket), bytes);
    if (p->tp.size > 1)
        tp_copy_bucket(bucket_place_own(p, what, bucket), p->whole, &p->tp, bucket,
                           p->tp.index, TP_PART);
    bucket_take(p, kept_buffer(p, what), bucket);
}

// Puts a bucket of the whole model together on rank 0, from the parts of its tensor group. `own` is
// this rank's part on its device, in the shapes of p->c.
static const float *bucket_join(Params *p, float *own, int bucket) {
    TpGroup *g = &p->tp;
    size_t bytes = gpt2_bucket(&p->c, bucket).count * sizeof(float);
    for (int i = 0; i < g->size && p->rank == 0; i++) {
        float *part = i > 0 && g->index == 0 ? p->bucket : own;
        if (i > 0) comm_wait(g->comm, comm_fetch(g->comm, p->bucket, own, bytes, i));
        if (g->index == 0)
            tp_copy_bucket((float *)bucket_show(p, part, bucket), p->whole, g, bucket, i,
                               TP_WHOLE);
    }
    return p->whole;
}

const float *bucket_get(void *zero, Kept what, int worker, int bucket) {
    Params *p = (Params *)zero;
    Range r = gpt2_bucket(&p->c, bucket);
    Buffer b = kept_buffer(p, what);
    float *whole = b.slices ? p->bucket : b.data + r.begin;
    bool of_workers = p->apart && p->size > 1 && (what == KEPT_EXP_AVG || what == KEPT_EXP_AVG_SQ);
    if (b.slices)
        comm_wait(p->comm, comm_all_gather(p->comm, p->bucket,
                                           b.data + zero_slices_begin(p, bucket), r.count,
                                           sizeof(float)));
    if (of_workers) {
        whole = p->bucket;
        floats_axpby(whole, 1.0f, b.data + r.begin, 0.0f, r.count, p->stream);
        comm_wait(p->comm, worker < 0 ? comm_mean(p->comm, whole, r.count, COMM_FP32)
                           : comm_broadcast(p->comm, whole, r.count * sizeof(float), worker));
    }
    return p->tp.size > 1 ? bucket_join(p, whole, bucket) : bucket_show(p, whole, bucket);
}

// ---- DiLoCo ----
//
// DiLoCo: workers that rarely communicate (Douillard et al. 2023, arXiv 2311.08105, algorithm 1).
//
// A round: each worker makes H AdamW updates on its own data, with its own moments. Then the outer
// optimizer, SGD with Nesterov momentum, updates the parameters that the round began with (outer).
// Its gradient is the mean over the workers of how far they have moved:
//
//     delta = mean(outer - p)    momentum = mu momentum + delta
//     p = outer = outer - lr (delta + mu momentum)          as PyTorch's SGD(nesterov=True)

void diloco_begin(Params *p) {
    floats_axpby(p->outer_params, 1.0f, p->masters, 0.0f, gpt2_n_params(&p->c), p->stream);
}

void diloco_end_round(Params *p, float lr, float mu) {
    size_t n = gpt2_n_params(&p->c);
    float *delta = p->grads;
    floats_axpby(delta, 1.0f, p->outer_params, 0.0f, n, p->stream);
    floats_axpby(delta, -1.0f, p->masters, 1.0f, n, p->stream);
    for (int b = 0; b < gpt2_n_buckets(&p->c); b++) {
        Range r = gpt2_bucket(&p->c, b);
        p->arrives[b] = comm_mean(p->comm, delta + r.begin, r.count, p->type);
    }
    for (int b = 0; b < gpt2_n_buckets(&p->c); b++) {
        Range r = gpt2_bucket(&p->c, b);
        float *outer = p->outer_params + r.begin, *momentum = p->outer_momentum + r.begin;
        comm_wait(p->comm, p->arrives[b]);
        floats_axpby(momentum, 1.0f, delta + r.begin, mu, r.count, p->stream);
        floats_axpby(delta + r.begin, mu, momentum, 1.0f, r.count, p->stream);
        floats_axpby(outer, -lr, delta + r.begin, 1.0f, r.count, p->stream);
        floats_axpby(p->masters + r.begin, 1.0f, outer, 0.0f, r.count, p->stream);
    }
    params_loaded(p);
}
