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

void zero_init(Zero *z, const Sharing *s, const Config *whole, int words, size_t param_bytes) {
    memset(z, 0, sizeof *z);
    z->stop = stop_signal();
    z->comm = s->comm;
    z->rank = s->comm ? s->comm->rank : 0;
    z->size = s->comm ? s->comm->size : 1;
    z->stage = z->size > 1 ? s->stage : 0;             // one rank has nothing to share
    z->type = s->type;
    z->apart = s->apart;
    z->in_turn = s->in_turn;
    z->measure = s->measure;
    z->sgd = s->sgd;
    z->averages = s->averages;
    z->n_levels = s->levels;
    z->tp = tp_group(whole, s->tensor);
    z->alone = z->size == 1 && !z->tp.shares && !z->measure && z->n_levels == 0;
    z->c = z->file = z->tp.own;
    z->c.V = (z->c.V + words - 1) / words * words;
    z->param_bytes = param_bytes;
    for (int i = 0; i < ZERO_SLOTS; i++) z->held[i] = -1;
    z->arrives = (Ticket *)alloc_or_die(gpt2_n_buckets(&z->c) * sizeof *z->arrives, "tickets");
}

void zero_free(Zero *z) {
    for (int i = 0; i < ZERO_SLOTS; i++) comm_wait(z->comm, z->leaves[i]);
    for (int b = 0; b < gpt2_n_buckets(&z->c); b++) comm_wait(z->comm, z->arrives[b]);
    free(z->arrives);
}

static int zero_slot(const Zero *z, int bucket) {
    return bucket == 0 ? 0 : bucket > z->c.L ? 1 : 2 + bucket % 2;
}

Slice zero_own(const Zero *z, int bucket) {
    size_t count = gpt2_bucket(&z->c, bucket).count;
    if (z->stage == 0) return comm_slice(count, 0, 1);
    return comm_slice(count, z->rank, z->size);
}

// The offset of a bucket's slice in a buffer of slices: the same on each rank.
static size_t zero_slices_begin(const Zero *z, int bucket) {
    size_t at = 0;
    for (int b = 0; b < bucket; b++)
        at += comm_slice(gpt2_bucket(&z->c, b).count, 0, z->size).count;
    return at;
}

size_t zero_own_begin(const Zero *z, int bucket, bool slices) {
    if (slices) return zero_slices_begin(z, bucket);
    return gpt2_bucket(&z->c, bucket).begin + zero_own(z, bucket).begin;
}

void *bucket_at(const Zero *z, int bucket, Flat flat) {
    size_t begin = gpt2_bucket(&z->c, bucket).begin;
    if (flat == PARAMS)
        return z->stage < 3 ? z->params + begin*z->param_bytes : z->gathered[zero_slot(z, bucket)];
    if (z->small) return z->small + begin;
    return z->stage < 2 ? z->grads + begin : z->collected[zero_slot(z, bucket)];
}

// ---- memory ----

static size_t zero_buffer(const Zero *z, bool slices) {
    return slices ? zero_slices_begin(z, gpt2_n_buckets(&z->c)) : gpt2_n_params(&z->c);
}

static size_t zero_params_count(const Zero *z) {
    return zero_buffer(z, z->stage == 3);
}

static size_t zero_grads_count(const Zero *z) {
    return zero_buffer(z, z->stage >= 2);
}

size_t zero_moments_count(const Zero *z) {
    return zero_buffer(z, z->stage >= 1);
}

// Capacity of a slot, in elements.
static size_t zero_slot_count(const Zero *z, int slot) {
    int bucket = slot == 0 ? 0 : slot == 1 ? z->c.L + 1 : 1;
    return gpt2_bucket(&z->c, bucket).count;
}

size_t zero_partials_count(const Zero *z) {
    return (gpt2_largest_bucket(&z->c) + ZERO_MEASURED - 1) / ZERO_MEASURED;
}

// Gradient accumulation on one rank would add each micro-batch's gradient to the others. To measure
// it, the rank computes it in a buffer of its own.
static bool zero_keeps_small(const Zero *z) {
    return z->measure && z->size == 1 && z->n_levels == 0;
}

int zero_chunks(Chunk *chunks, const Zero *z, int largest) {
    int n = 0, bucket = 0;
    for (int i = 0; i < gpt2_n_tensors(&z->c); i++) {
        if (i == gpt2_bucket_tensor(&z->c, bucket + 1)) bucket++;
        Tensor t = gpt2_tensor(&z->c, i);
        Slice own = zero_own(z, bucket);
        size_t whole = gpt2_bucket(&z->c, bucket).begin, slices = zero_slices_begin(z, bucket);
        size_t at = t.offset - whole, end = at + t.count;              // within the bucket
        if (at < own.begin) at = own.begin;
        if (end > own.begin + own.count) end = own.begin + own.count;
        for (; at < end; at += (size_t)largest, n++) {
            size_t as_whole = whole + at, as_slice = slices + at - own.begin, left = end - at;
            Chunk chunk = { z->stage == 3 ? as_slice : as_whole,
                            z->stage >= 2 ? as_slice : as_whole,
                            z->stage >= 1 ? as_slice : as_whole,
                            left < (size_t)largest ? (int)left : largest, t.decays,
                            tp_counts(&z->tp, t.kind) };
            if (chunks) chunks[n] = chunk;
        }
    }
    return n;
}

void zero_carve_params(Zero *z, Memory *mem) {
    bool rounded = z->param_bytes < sizeof(float);
    z->params = (char *)memory_take(mem, MEM_PARAMS, zero_params_count(z) * z->param_bytes);
    z->masters = (float *)z->params;
    if (rounded) z->masters = memory_floats(mem, MEM_PARAMS, zero_moments_count(z));
    for (int i = 0; i < ZERO_SLOTS && z->stage == 3; i++)
        z->gathered[i] = (char *)memory_take(mem, MEM_PASSING,
                                             zero_slot_count(z, i) * z->param_bytes);
}

void zero_carve_training(Zero *z, Memory *mem) {
    size_t n = gpt2_n_params(&z->c), partials = zero_partials_count(z) * sizeof(double);
    z->n_grads = zero_grads_count(z);
    z->grads = z->levels[0] = memory_floats(mem, MEM_GRADS, z->n_grads);
    for (int l = 1; l < z->n_levels; l++) z->levels[l] = memory_floats(mem, MEM_GRADS, n);
    if (zero_keeps_small(z)) z->small = memory_floats(mem, MEM_GRADS, n);
    if (z->measure) z->partials = (double *)memory_take(mem, MEM_REST, N_NORMS * partials);
    for (int i = 0; i < ZERO_SLOTS && z->stage >= 2; i++)
        z->collected[i] = memory_floats(mem, MEM_PASSING, zero_slot_count(z, i));
    if (!z->sgd) z->adam_m = memory_floats(mem, MEM_MOMENTS, zero_moments_count(z));
    if (!z->sgd) z->adam_v = memory_floats(mem, MEM_MOMENTS, zero_moments_count(z));
    if (z->averages) z->average = memory_floats(mem, MEM_AVERAGE, zero_moments_count(z));
    z->n_chunks = zero_chunks(NULL, z, ZERO_CHUNK);
    z->chunks = (Chunk *)memory_take(mem, MEM_REST, z->n_chunks * sizeof *z->chunks);
    z->norm_partials = (double *)memory_take(mem, MEM_REST, z->n_chunks * sizeof(double));
    if (z->apart) z->outer_params = memory_floats(mem, MEM_OUTER, n);
    if (z->apart) z->outer_momentum = memory_floats(mem, MEM_OUTER, n);
#if !defined(COMM_ON_GPU)                  // a GPU's model uses the memory of its logits
    if (z->size > 1 || z->tp.size > 1)
        z->bucket = memory_floats(mem, MEM_REST, gpt2_largest_bucket(&z->c));
    if (z->tp.size > 1)
        z->whole = memory_floats(mem, MEM_REST, gpt2_largest_bucket(&z->tp.whole));
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

// z->norms[SMALLS] += the sum of the squares of x (n). If `sum` is not NULL: sum += x, then x = 0.
void floats_measure(Zero *z, float *sum, float *x, size_t n) {
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
        z->partials[k] = squares;
    }
    for (size_t k = 0; k < pieces; k++) z->norms[SMALLS] += z->partials[k];  // the same bits
}

// z->norms[norm] += the squared norm of x (n) in Adam's metric: the sum of x^2 / (sqrt(v) + eps),
// with v corrected for its start at zero.
void floats_weigh(Zero *z, Norms norm, const float *x, const float *v, size_t n) {
    size_t pieces = (n + ZERO_MEASURED - 1) / ZERO_MEASURED;
    #pragma omp parallel for
    for (size_t k = 0; k < pieces; k++) {
        size_t begin = k*ZERO_MEASURED, end = begin + ZERO_MEASURED;
        double sum = 0.0;
        if (end > n) end = n;
        #pragma omp simd reduction(+:sum)
        for (size_t i = begin; i < end; i++)
            sum += x[i] / (sqrtf(v[i] * z->correct_v) + ADAM_EPS) * x[i];
        z->partials[k] = sum;
    }
    for (size_t k = 0; k < pieces; k++) z->norms[norm] += z->partials[k];
}
#endif

// ---- parameters ----

static void zero_gather(Zero *z, int bucket) {
    int slot = zero_slot(z, bucket);
    size_t count = gpt2_bucket(&z->c, bucket).count;
    if (z->held[slot] == bucket) return;
    z->held[slot] = bucket;
    z->arrives[bucket] = comm_all_gather(z->comm, z->gathered[slot],
                                         z->params + zero_slices_begin(z, bucket)*z->param_bytes,
                                         count, z->param_bytes);
}

// Waits for a bucket's parameters. At stage 3 also begins to gather those of the next bucket (-1:
// none), which the slots allow until two buckets further on.
static void zero_need(Zero *z, int bucket, int next) {
    if (z->stage == 3) zero_gather(z, bucket);
    if (z->stage == 3 && next >= 0 && !z->in_turn) zero_gather(z, next);
    comm_wait(z->comm, z->arrives[bucket]);
}

void forward_needs(Zero *z, int bucket) {
    if (z->alone) return;
    zero_need(z, bucket, bucket <= z->c.L ? bucket + 1 : -1);
}

void backward_needs(Zero *z, int bucket) {
    if (z->alone) return;
    int slot = zero_slot(z, bucket), L = z->c.L;
    zero_need(z, bucket, bucket == 0 ? L : bucket == 1 || bucket > L ? -1 : bucket - 1);
    if (z->stage < 2) return;
    comm_wait(z->comm, z->leaves[slot]);               // for the bucket that used the slot before
    floats_clear(z->collected[slot], gpt2_bucket(&z->c, bucket).count, z->stream);
}

void zero_send_params(Zero *z) {
    if (z->stage == 0) return;
    for (int i = 0; i < ZERO_SLOTS; i++) z->held[i] = -1;
    for (int b = 0; z->stage < 3 && b < gpt2_n_buckets(&z->c); b++) {
        Range r = gpt2_bucket(&z->c, b);
        char *data = z->params + r.begin*z->param_bytes;
        z->arrives[b] = comm_all_gather(z->comm, data,
                                        data + zero_own(z, b).begin*z->param_bytes, r.count,
                                        z->param_bytes);
        if (z->in_turn) comm_wait(z->comm, z->arrives[b]);
    }
}

void zero_wait_params(Zero *z) {
    for (int b = 0; b < gpt2_n_buckets(&z->c); b++) comm_wait(z->comm, z->arrives[b]);
}

// ---- gradients ----

void zero_micro_batch(Zero *z, size_t i, size_t n) {
    z->last = i + 1 == n;
    if (i == 0) memset(z->norms, 0, sizeof z->norms);
#if defined(COMM_ON_GPU)                   // a GPU sums here during an update, not in z->norms
    size_t bytes = N_NORMS * zero_partials_count(z) * sizeof(double);
    if (i == 0 && z->measure) COMM_CUDA(cudaMemsetAsync(z->partials, 0, bytes, z->stream));
#endif
    if (z->n_levels == 0) return;
    z->level = tree_level(i);
    z->grads = z->levels[z->level];                    // free: term i is the first at this level
    floats_clear(z->grads, z->n_grads, z->stream);
}

bool zero_has_metric(const Zero *z) {
    return z->measure && !z->sgd && z->stage == 0 && z->correct_v > 0.0f;
}

// The ranges of a bucket whose squares this rank counts in a norm: with tensor parallelism, tensors
// that all ranks of a group have count on its rank 0 alone. Returns the number of ranges.
static int zero_counted(Range *ranges, const Zero *z, int bucket) {
    Range all = gpt2_bucket(&z->c, bucket);
    int n = 0, end = gpt2_bucket_tensor(&z->c, bucket + 1);
    ranges[0] = all;
    if (z->tp.index == 0) return 1;
    for (int i = gpt2_bucket_tensor(&z->c, bucket); i < end; i++) {
        Tensor t = gpt2_tensor(&z->c, i);
        Range r = { t.offset, t.count };
        if (tp_counts(&z->tp, t.kind)) ranges[n++] = r;
    }
    return n;
}

// Adds the squared norm, in Adam's metric, of a flat buffer's gradients of a bucket.
static void zero_weigh(Zero *z, Norms norm, const float *flat, int bucket) {
    Range ranges[KINDS_IN_BLOCK];
    int n = zero_counted(ranges, z, bucket);
    for (int i = 0; i < n; i++)
        floats_weigh(z, norm, flat + ranges[i].begin, z->adam_v + ranges[i].begin,
                     ranges[i].count);
}

// Measures the small gradients of dev/train/noise.c (gradient noise scale, McCandlish et al. 2018)
// before the ranks sum them. A small gradient is each micro-batch's where that lies in a buffer of
// its own (stages 2 and 3, --exact-sum, one rank alone), otherwise each rank's gradient.
static void zero_measure(Zero *z, int bucket) {
    Range r = gpt2_bucket(&z->c, bucket), ranges[KINDS_IN_BLOCK];
    bool complete = z->small || z->last || z->n_levels > 0;
    float *flat = z->small ? z->small : z->grads;
    float *grads = z->stage >= 2 ? z->collected[zero_slot(z, bucket)] : flat + r.begin;
    float *sum = z->small && z->tp.index == 0 ? z->grads + r.begin : NULL;
    if (!z->measure || !(complete || z->stage >= 2)) return;
    if (zero_has_metric(z)) zero_weigh(z, SMALLS_ADAM, flat, bucket);
    int n = zero_counted(ranges, z, bucket);
    for (int i = 0; i < n; i++)
        floats_measure(z, sum, grads + ranges[i].begin - r.begin, ranges[i].count);
    if (!z->small || sum) return;
    floats_axpby(z->grads + r.begin, 1.0f, grads, 1.0f, r.count, z->stream);
    floats_clear(grads, r.count, z->stream);
}

// --exact-sum: merges a micro-batch's gradient with the levels below its own, as a binary counter
// carries (dev/ranks/tree.h).
static void zero_carry(Zero *z, int bucket) {
    Range r = gpt2_bucket(&z->c, bucket);
    for (int l = 0; l < z->level; l++)
        floats_axpby(z->grads + r.begin, 1.0f, z->levels[l] + r.begin, 1.0f, r.count, z->stream);
}

bool zero_sends(const Zero *z) {
    return z->size > 1 && !z->apart && (z->stage >= 2 || z->last);
}

// Begins to sum a bucket's gradients over the ranks: a reduce-scatter (stages 2 and 3: for every
// micro-batch; stage 1: for the last) or an all-reduce (stage 0: for the last). The sum is the mean
// over the batch, since each loss was divided by the number of tokens in the whole batch.
static void zero_send(Zero *z, int bucket) {
    Range r = gpt2_bucket(&z->c, bucket);
    int slot = zero_slot(z, bucket);
    float *grads = z->grads + r.begin;
    if (!zero_sends(z)) return;
    if (z->stage >= 2)
        z->leaves[slot] = comm_reduce_scatter(z->comm, z->grads + zero_slices_begin(z, bucket),
                                              z->collected[slot], r.count, 1.0f, z->type,
                                              COMM_ADD);
    else if (z->stage == 1)
        z->leaves[slot] = comm_reduce_scatter(z->comm, grads + zero_own(z, bucket).begin, grads,
                                              r.count, 1.0f, z->type, COMM_WRITE);
    else
        z->leaves[slot] = comm_all_reduce(z->comm, grads, r.count, 1.0f, z->type);
    if (z->in_turn) comm_wait(z->comm, z->leaves[slot]);
}

void gradients_ready(Zero *z, int bucket) {
    if (z->alone) return;
    zero_measure(z, bucket);
    zero_carry(z, bucket);
    zero_send(z, bucket);
}

void zero_wait_grads(Zero *z) {
    for (int i = 0; i < ZERO_SLOTS; i++) comm_wait(z->comm, z->leaves[i]);
    for (int b = 0; zero_has_metric(z) && b < gpt2_n_buckets(&z->c); b++)
        zero_weigh(z, BIG_ADAM, z->grads, b);
}

size_t zero_smalls_count(const Zero *z, size_t micro_batches) {
    return z->size > 1 && z->stage < 2 && z->n_levels == 0 ? 1 : micro_batches;
}

// ---- an update's totals ----

Slice totals_squares(const Zero *z, Scope scope) {
    size_t group = (size_t)z->tp.size, data_ranks = scope == ALL_RANKS ? (size_t)z->size : 1;
    Slice all = { 0, group*data_ranks };
    Slice one = { z->apart && data_ranks > 1 ? group*(size_t)z->rank : 0, group };
    return z->stage == 0 ? one : all;
}

Totals totals_sum(const Zero *z, const Totals *all, Scope scope) {
    size_t group = (size_t)z->tp.size;
    size_t ranks = group * (size_t)(scope == ALL_RANKS ? z->size : 1);
    Slice counted = totals_squares(z, scope);
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

Comm *totals_comm(const Zero *z, Scope scope) {
    if (scope == ALL_RANKS && z->size*z->tp.size > 1) return comm_whole(z->comm);
    return z->tp.size > 1 ? z->tp.comm : NULL;
}

void totals_share(const Zero *z, Totals *totals) {
    Totals all[COMM_MAX_RANKS];
    assert(z->alone == (z->size == 1 && !z->tp.shares && !z->measure && z->n_levels == 0));
    totals->stop = z->scope == ALL_RANKS ? *z->stop : 0;
    if (z->alone) return;
    memcpy(totals->norms, z->norms, sizeof z->norms);
    Comm *over = totals_comm(z, z->scope);
    if (over) comm_collect(over, all, totals, sizeof *totals);
    else all[0] = *totals;
    *totals = totals_sum(z, all, z->scope);
}

// ---- buckets for checkpoints: loading, drawing, saving ----

Buffer kept_buffer(const Zero *z, Kept what) {
    bool rounded = z->param_bytes < sizeof(float);
    Buffer b = { z->masters, z->stage >= (rounded ? 1 : 3) };
    if (what == KEPT_WEIGHTS) return b;
    b.data = what == KEPT_EXP_AVG ? z->adam_m : what == KEPT_EXP_AVG_SQ ? z->adam_v
           : what == KEPT_AVERAGE ? z->average : z->outer_momentum;
    b.slices = z->stage >= 1;
    return b;
}

#if !defined(COMM_ON_GPU)                  // a GPU's are in dev/ranks/kernels.cu
// After the layout: fills the table of chunks.
void zero_open(Zero *z) {
    if (z->chunks) zero_chunks(z->chunks, z, ZERO_CHUNK);
}

void zero_close(Zero *z) { zero_free(z); }

// Buffer for a whole bucket in the shapes of z->file, of which bucket_take() keeps this rank's
// slice.
float *bucket_place_own(Zero *z, Kept what, int bucket) {
    Buffer b = kept_buffer(z, what);
    return b.slices ? z->bucket : b.data + gpt2_bucket(&z->c, bucket).begin;
}

void bucket_take(Zero *z, Buffer b, int bucket) {
    Slice own = zero_own(z, bucket);
    if (b.slices)
        memcpy(b.data + zero_slices_begin(z, bucket), z->bucket + own.begin,
               own.count * sizeof(float));
}

const float *bucket_show(Zero *z, float *whole, int bucket) {
    (void)z, (void)bucket;
    return whole;
}

// After the masters have changed, this rank's part of them at least: gathers the ranks' slices. A
// GPU rounds the masters to bf16 first.
void zero_loaded(Zero *z) { zero_send_params(z); }
#endif

// ---- averaged weights ----

// to = keep * to + (1 - keep) * from, of all that this rank updates. Both factors are floats with a
// sum of exactly 1 from keep = 1/2 on, so that long averages do not shrink.
static void zero_blend(Zero *z, Buffer to, Buffer from, float keep) {
    for (int b = 0; b < gpt2_n_buckets(&z->c); b++) {
        size_t n = zero_own(z, b).count;
        if (n > 0)
            floats_axpby(to.data + zero_own_begin(z, b, to.slices), 1.0f - keep,
                         from.data + zero_own_begin(z, b, from.slices), keep, n, z->stream);
    }
}

void zero_average(Zero *z, float keep) {
    zero_blend(z, kept_buffer(z, KEPT_AVERAGE), kept_buffer(z, KEPT_WEIGHTS), keep);
}

void zero_average_begin(Zero *z) {
    Buffer weights = kept_buffer(z, KEPT_WEIGHTS), aside = { z->grads, z->stage >= 2 };
    zero_wait_params(z);
    zero_blend(z, aside, weights, 0.0f);
    zero_blend(z, weights, kept_buffer(z, KEPT_AVERAGE), 0.0f);
    zero_loaded(z);
}

void zero_average_end(Zero *z) {
    Buffer aside = { z->grads, z->stage >= 2 };
    zero_wait_params(z);
    zero_blend(z, kept_buffer(z, KEPT_WEIGHTS), aside, 0.0f);
    zero_loaded(z);
}

float *bucket_place(Zero *z, Kept what, int bucket) {
    return z->tp.size > 1 ? z->whole : bucket_place_own(z, what, bucket);
}

void bucket_keep(Zero *z, Kept what, int bucket) {
    size_t bytes = gpt2_bucket(&z->tp.whole, bucket).count * sizeof(float);
    if (what == KEPT_WEIGHTS && z->size*z->tp.size > 1)
        z->hash = hash_add(z->hash, bucket_place(z, what, bucket), bytes);
    if (z->tp.size > 1)
        tp_copy_bucket(bucket_place_own(z, what, bucket), z->whole, &z->tp, bucket,
                           z->tp.index, TP_PART);
    bucket_take(z, kept_buffer(z, what), bucket);
}

// Puts a bucket of the whole model together on rank 0, from the parts of its tensor group. `own` is
// this rank's part on its device, in the shapes of z->c.
static const float *bucket_join(Zero *z, float *own, int bucket) {
    TpGroup *g = &z->tp;
    size_t bytes = gpt2_bucket(&z->c, bucket).count * sizeof(float);
    for (int i = 0; i < g->size && z->rank == 0; i++) {
        float *part = i > 0 && g->index == 0 ? z->bucket : own;
        if (i > 0) comm_wait(g->comm, comm_fetch(g->comm, z->bucket, own, bytes, i));
        if (g->index == 0)
            tp_copy_bucket((float *)bucket_show(z, part, bucket), z->whole, g, bucket, i,
                               TP_WHOLE);
    }
    return z->whole;
}

const float *bucket_get(void *zero, Kept what, int worker, int bucket) {
    Zero *z = (Zero *)zero;
    Range r = gpt2_bucket(&z->c, bucket);
    Buffer b = kept_buffer(z, what);
    float *whole = b.slices ? z->bucket : b.data + r.begin;
    bool of_workers = z->apart && z->size > 1 && (what == KEPT_EXP_AVG || what == KEPT_EXP_AVG_SQ);
    if (b.slices)
        comm_wait(z->comm, comm_all_gather(z->comm, z->bucket,
                                           b.data + zero_slices_begin(z, bucket), r.count,
                                           sizeof(float)));
    if (of_workers) {
        whole = z->bucket;
        floats_axpby(whole, 1.0f, b.data + r.begin, 0.0f, r.count, z->stream);
        comm_wait(z->comm, worker < 0 ? comm_mean(z->comm, whole, r.count, COMM_FP32)
                           : comm_broadcast(z->comm, whole, r.count * sizeof(float), worker));
    }
    return z->tp.size > 1 ? bucket_join(z, whole, bucket) : bucket_show(z, whole, bucket);
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

void diloco_begin(Zero *z) {
    floats_axpby(z->outer_params, 1.0f, z->masters, 0.0f, gpt2_n_params(&z->c), z->stream);
}

void diloco_end_round(Zero *z, float lr, float mu) {
    size_t n = gpt2_n_params(&z->c);
    float *delta = z->grads;
    floats_axpby(delta, 1.0f, z->outer_params, 0.0f, n, z->stream);
    floats_axpby(delta, -1.0f, z->masters, 1.0f, n, z->stream);
    for (int b = 0; b < gpt2_n_buckets(&z->c); b++) {
        Range r = gpt2_bucket(&z->c, b);
        z->arrives[b] = comm_mean(z->comm, delta + r.begin, r.count, z->type);
    }
    for (int b = 0; b < gpt2_n_buckets(&z->c); b++) {
        Range r = gpt2_bucket(&z->c, b);
        float *outer = z->outer_params + r.begin, *momentum = z->outer_momentum + r.begin;
        comm_wait(z->comm, z->arrives[b]);
        floats_axpby(momentum, 1.0f, delta + r.begin, mu, r.count, z->stream);
        floats_axpby(delta + r.begin, mu, momentum, 1.0f, r.count, z->stream);
        floats_axpby(outer, -lr, delta + r.begin, 1.0f, r.count, z->stream);
        floats_axpby(z->masters + r.begin, 1.0f, outer, 0.0f, r.count, z->stream);
    }
    zero_loaded(z);
}
