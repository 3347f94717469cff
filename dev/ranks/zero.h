// Data parallelism and ZeRO: what each rank stores, and what the ranks communicate when.
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
// The unit of communication is a bucket of dev/base/gpt2.h: a block, the embeddings, or the final
// norm. A rank owns a slice of each bucket; in a buffer of size 1/n its slices lie one after the
// other. Communication overlaps the backward pass: a bucket's gradients are sent as soon as they
// are complete, while the blocks before it compute.
//
// A bucket's parameters and gradients have a fixed place (bucket_at), which the model points at
// (with --exact-sum gradients move from one micro-batch to the next). These are the hooks:
//
//     zero_micro_batch(&z, i, n)         before micro-batch i of n
//     forward_needs(&z, bucket)          before the bucket's parameters are read, in forward
//     backward_needs(&z, bucket)         the same in backward; its gradients can be added to then
//     gradients_ready(&z, bucket)        starts to sum the bucket's gradients over the ranks
//     zero_wait_grads(&z)                waits until the sums have arrived
//     totals_share(&z, &totals)          sums loss and squared norm over the ranks
//     ... the rank updates its chunks ...
//     zero_send_params(&z)               sends updated parameters to the other ranks
//
// A rank is alone if it shares neither batch nor model with others, measures no noise and makes no
// exact sums. Then the hooks have nothing to do; totals_share alone passes on the signal to stop,
// as for several ranks at the end of a DiLoCo round.
#pragma once
#include "../base/gpt2.h"              // buckets
#include "../base/memory.h"            // Memory
#include "../base/signal.h"            // stop_signal
#include "comm.h"                      // reduce-scatter, all-gather
#include "tensor.h"                    // TpGroup, tp_counts, tp_copy_bucket
#include "tree.h"                      // tree_level

// How ranks share the work, from the command line; all zeros: one rank alone.
typedef struct {
    Comm *comm;              // the data group; NULL: one rank alone
    Comm *tensor;            // the tensor group; NULL: each rank holds the whole model
    int stage;               // of ZeRO
    CommType type;           // the format in which gradients travel
    int levels;              // --exact-sum: levels of the tree that sums micro-batches; else 0
    bool apart;              // --outer-every: gradients stay with their rank (DiLoCo)
    bool in_turn;            // --no-overlap: compute, then communicate
    bool measure;            // measure the small gradients of dev/train/noise.h
    bool sgd;                // --optimizer sgd: no moments
    bool averages;           // --average-tokens: averaged weights
} Sharing;

// A piece of one tensor that this rank updates: its offsets in the buffers of parameters, gradients
// and moments.
typedef struct {
    size_t param, grad, moment;
    int count;
    bool decays;
    bool counts;                           // in the gradient's norm (tp_counts)
} Chunk;

enum { ZERO_SLOTS = 4 };                 // whole buckets in temporary buffers: embeddings, final
                                           // norm, and two blocks, the one in use and the next
#if defined(COMM_ON_GPU)
enum { ZERO_CHUNK = 1 << 14 };           // most elements of a chunk: a thread block's work
enum { ZERO_MEASURED = 1 << 13 };        // elements for each partial sum of squares
typedef cudaStream_t Stream;               // the device runs operations in its order
#else
enum { ZERO_CHUNK = 1 << 16 };
enum { ZERO_MEASURED = 1 << 16 };
typedef int Stream;                        // unused: a CPU runs an operation at once
#endif

// Squared norms for dev/train/noise.h, before clipping: of the small gradients, added up; and in
// Adam's metric, of the small ones and of the mean gradient.
typedef enum { SMALLS, SMALLS_ADAM, BIG_ADAM, N_NORMS } Norms;

static const float ADAM_EPS = 1e-8f;

// Sums over this rank, or over all ranks.
typedef struct {
    double loss;                           // of all tokens
    double squares;                        // the gradient's squared norm
    double norms[N_NORMS];                 // of the noise scale
    int64_t stop;                          // the signal that told a rank to stop; 0: none
} Totals;

typedef enum { THIS_RANK, ALL_RANKS } Scope;           // THIS_RANK, or its tensor group: within a
                                                       // DiLoCo round
typedef enum { PARAMS, GRADS } Flat;

typedef struct {
    bool alone;                            // no hook has anything to do
    volatile sig_atomic_t *stop;           // the signal that came, 0: none
    Comm *comm;
    int rank, size;
    int stage;
    CommType type;
    bool apart, in_turn, measure, sgd, averages;       // as in Sharing
    TpGroup tp;                            // the ranks that share this model
    Config c;                              // this rank's share of the model, with the vocabulary
                                           // rounded up where a GPU pads it
    Config file;                           // the same without padding
    size_t param_bytes;                    // of one parameter as layers read it
    Stream stream;

    // What this rank stores: whole buffers, or its slices
    char *params;                          // elements of param_bytes
    float *masters;                        // fp32 master weights; params itself, if that is fp32
    float *grads;
    size_t n_grads;                        // elements of grads
    float *adam_m, *adam_v;                // SGD has no moments: NULL
    float *average;                        // averaged weights; NULL: none
    float *outer_params, *outer_momentum;  // DiLoCo: as the last round left them
    Chunk *chunks;                         // (n_chunks) what this rank updates
    double *norm_partials;                 // (n_chunks) sums of squares of gradients
    int n_chunks;

    // Whole buckets, temporarily
    char *gathered[ZERO_SLOTS];          // stage 3: parameters, after an all-gather
    float *collected[ZERO_SLOTS];        // stages 2 and 3: gradients, before a reduce-scatter
    int held[ZERO_SLOTS];                // the bucket in gathered; -1: none
    float *bucket;                         // for checkpoints; NULL where all buffers are whole
    float *whole;                          // tensor parallel: a bucket of the whole model, in CPU
                                           // memory, for checkpoints
    float *host_bucket;                    // on a GPU: the same, in CPU memory
    Ticket *arrives;                       // (buckets) the last collective that receives parameters
    Ticket leaves[ZERO_SLOTS];           // the last one that reads gradients from this slot

    // This update
    Scope scope;                           // whose gradients it averages
    bool last;                             // this is its last micro-batch
    float *levels[TREE_LEVELS];            // --exact-sum: a gradient for each level of the tree
    int n_levels;                          // 0 without --exact-sum
    int level;                             // the level that this micro-batch's gradient reaches
    float *small;                          // one rank alone: one micro-batch's gradient, to measure
    double *partials;                      // (N_NORMS, zero_partials_count) of squares
    double norms[N_NORMS];
    float correct_v;                       // bias correction of adam_v; 0: no Adam's metric
    uint64_t hash;                         // of all parameters, as they were loaded or drawn
} Zero;

// For a model of whole->V words, which its buffers round up to a multiple of `words`.
static inline void zero_init(Zero *z, const Sharing *s, const Config *whole, int words,
                             size_t param_bytes) {
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

// Waits for what is still under way first: the caller frees the buffers next.
static inline void zero_free(Zero *z) {
    for (int i = 0; i < ZERO_SLOTS; i++) comm_wait(z->comm, z->leaves[i]);
    for (int b = 0; b < gpt2_n_buckets(&z->c); b++) comm_wait(z->comm, z->arrives[b]);
    free(z->arrives);
}

static inline int zero_slot(const Zero *z, int bucket) {
    return bucket == 0 ? 0 : bucket > z->c.L ? 1 : 2 + bucket % 2;
}

// The part of a bucket that this rank updates: all of it, or its slice.
static inline Slice zero_own(const Zero *z, int bucket) {
    size_t count = gpt2_bucket(&z->c, bucket).count;
    if (z->stage == 0) return comm_slice(count, 0, 1);
    return comm_slice(count, z->rank, z->size);
}

// The offset of a bucket's slice in a buffer of slices: the same on each rank.
static inline size_t zero_slices_begin(const Zero *z, int bucket) {
    size_t at = 0;
    for (int b = 0; b < bucket; b++)
        at += comm_slice(gpt2_bucket(&z->c, b).count, 0, z->size).count;
    return at;
}

// The offset of this rank's part of a bucket, in a buffer of slices or in a whole buffer.
static inline size_t zero_own_begin(const Zero *z, int bucket, bool slices) {
    if (slices) return zero_slices_begin(z, bucket);
    return gpt2_bucket(&z->c, bucket).begin + zero_own(z, bucket).begin;
}

// Where a bucket's whole parameters lie while the model reads them, as layers read them; or where
// the model adds its gradients.
static inline void *bucket_at(const Zero *z, int bucket, Flat flat) {
    size_t begin = gpt2_bucket(&z->c, bucket).begin;
    if (flat == PARAMS)
        return z->stage < 3 ? z->params + begin*z->param_bytes : z->gathered[zero_slot(z, bucket)];
    if (z->small) return z->small + begin;
    return z->stage < 2 ? z->grads + begin : z->collected[zero_slot(z, bucket)];
}

// ---- memory ----

static inline size_t zero_buffer(const Zero *z, bool slices) {
    return slices ? zero_slices_begin(z, gpt2_n_buckets(&z->c)) : gpt2_n_params(&z->c);
}
static inline size_t zero_params_count(const Zero *z) {
    return zero_buffer(z, z->stage == 3);
}
static inline size_t zero_grads_count(const Zero *z) {
    return zero_buffer(z, z->stage >= 2);
}
static inline size_t zero_moments_count(const Zero *z) {
    return zero_buffer(z, z->stage >= 1);
}

// Capacity of a slot, in elements.
static inline size_t zero_slot_count(const Zero *z, int slot) {
    int bucket = slot == 0 ? 0 : slot == 1 ? z->c.L + 1 : 1;
    return gpt2_bucket(&z->c, bucket).count;
}

static inline size_t zero_partials_count(const Zero *z) {
    return (gpt2_largest_bucket(&z->c) + ZERO_MEASURED - 1) / ZERO_MEASURED;
}

// Gradient accumulation on one rank would add each micro-batch's gradient to the others. To measure
// it, the rank computes it in a buffer of its own.
static inline bool zero_keeps_small(const Zero *z) {
    return z->measure && z->size == 1 && z->n_levels == 0;
}

// Divides what this rank updates into chunks of at most `largest` elements. Returns their number
// and writes them to `chunks`, unless that is NULL.
static inline int zero_chunks(Chunk *chunks, const Zero *z, int largest) {
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

// Lays out the parameters; see dev/base/memory.h.
static inline void zero_carve_params(Zero *z, Memory *mem) {
    bool rounded = z->param_bytes < sizeof(float);
    z->params = (char *)memory_take(mem, MEM_PARAMS, zero_params_count(z) * z->param_bytes);
    z->masters = (float *)z->params;
    if (rounded) z->masters = memory_floats(mem, MEM_PARAMS, zero_moments_count(z));
    for (int i = 0; i < ZERO_SLOTS && z->stage == 3; i++)
        z->gathered[i] = (char *)memory_take(mem, MEM_PASSING,
                                             zero_slot_count(z, i) * z->param_bytes);
}

// Lays out the buffers that only training needs.
static inline void zero_carve_training(Zero *z, Memory *mem) {
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

#if defined(COMM_ON_GPU)                               // dev/ranks/kernels.cu
static void floats_clear(float *x, size_t n, Stream stream);
static void floats_axpby(float *y, float a, const float *x, float b, size_t n, Stream stream);
static void floats_measure(Zero *z, float *sum, float *x, size_t n);
static void floats_weigh(Zero *z, Norms norm, const float *x, const float *v, size_t n);
#else
static inline void floats_clear(float *x, size_t n, Stream stream) {
    (void)stream;
    #pragma omp parallel for simd
    for (size_t i = 0; i < n; i++) x[i] = 0.0f;
}

// y = a x + b y; with b = 0, y is not read. b = 0 and b = 1 have loops of their own, so that a
// fused multiply-add rounds once.
static inline void floats_axpby(float *y, float a, const float *x, float b, size_t n,
                                Stream stream) {
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
static inline void floats_measure(Zero *z, float *sum, float *x, size_t n) {
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
static inline void floats_weigh(Zero *z, Norms norm, const float *x, const float *v, size_t n) {
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

static inline void zero_gather(Zero *z, int bucket) {
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
static inline void zero_need(Zero *z, int bucket, int next) {
    if (z->stage == 3) zero_gather(z, bucket);
    if (z->stage == 3 && next >= 0 && !z->in_turn) zero_gather(z, next);
    comm_wait(z->comm, z->arrives[bucket]);
}

// Before the model reads a bucket's parameters, from the first bucket to the last.
static inline void forward_needs(Zero *z, int bucket) {
    if (z->alone) return;
    zero_need(z, bucket, bucket <= z->c.L ? bucket + 1 : -1);
}

// Before the model reads a bucket's parameters and adds to its gradients: embeddings and final norm
// first, which the classifier needs, then blocks from the last to the first.
static inline void backward_needs(Zero *z, int bucket) {
    if (z->alone) return;
    int slot = zero_slot(z, bucket), L = z->c.L;
    zero_need(z, bucket, bucket == 0 ? L : bucket == 1 || bucket > L ? -1 : bucket - 1);
    if (z->stage < 2) return;
    comm_wait(z->comm, z->leaves[slot]);               // for the bucket that used the slot before
    floats_clear(z->collected[slot], gpt2_bucket(&z->c, bucket).count, z->stream);
}

// After an update: begins to all-gather the parameters that other ranks have updated.
static inline void zero_send_params(Zero *z) {
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

// Waits for all parameters to arrive.
static inline void zero_wait_params(Zero *z) {
    for (int b = 0; b < gpt2_n_buckets(&z->c); b++) comm_wait(z->comm, z->arrives[b]);
}

// ---- gradients ----

// Before micro-batch i of n. --exact-sum moves z->grads to the level that this gradient reaches.
static inline void zero_micro_batch(Zero *z, size_t i, size_t n) {
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

// Adam's metric needs the second moment of every parameter that a small gradient has: no ZeRO.
static inline bool zero_has_metric(const Zero *z) {
    return z->measure && !z->sgd && z->stage == 0 && z->correct_v > 0.0f;
}

// The ranges of a bucket whose squares this rank counts in a norm: with tensor parallelism, tensors
// that all ranks of a group have count on its rank 0 alone. Returns the number of ranges.
static inline int zero_counted(Range *ranges, const Zero *z, int bucket) {
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
static inline void zero_weigh(Zero *z, Norms norm, const float *flat, int bucket) {
    Range ranges[KINDS_IN_BLOCK];
    int n = zero_counted(ranges, z, bucket);
    for (int i = 0; i < n; i++)
        floats_weigh(z, norm, flat + ranges[i].begin, z->adam_v + ranges[i].begin,
                     ranges[i].count);
}

// Measures the small gradients of dev/train/noise.h (gradient noise scale, McCandlish et al. 2018)
// before the ranks sum them. A small gradient is each micro-batch's where that lies in a buffer of
// its own (stages 2 and 3, --exact-sum, one rank alone), otherwise each rank's gradient.
static inline void zero_measure(Zero *z, int bucket) {
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
static inline void zero_carry(Zero *z, int bucket) {
    Range r = gpt2_bucket(&z->c, bucket);
    for (int l = 0; l < z->level; l++)
        floats_axpby(z->grads + r.begin, 1.0f, z->levels[l] + r.begin, 1.0f, r.count, z->stream);
}

// Whether this micro-batch's gradients travel to other ranks.
static inline bool zero_sends(const Zero *z) {
    return z->size > 1 && !z->apart && (z->stage >= 2 || z->last);
}

// Begins to sum a bucket's gradients over the ranks: a reduce-scatter (stages 2 and 3: for every
// micro-batch; stage 1: for the last) or an all-reduce (stage 0: for the last). The sum is the mean
// over the batch, since each loss was divided by the number of tokens in the whole batch.
static inline void zero_send(Zero *z, int bucket) {
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

// This micro-batch's gradients of a bucket are complete.
static inline void gradients_ready(Zero *z, int bucket) {
    if (z->alone) return;
    zero_measure(z, bucket);
    zero_carry(z, bucket);
    zero_send(z, bucket);
}

// Waits until this rank has its part of the gradients, summed over all ranks.
static inline void zero_wait_grads(Zero *z) {
    for (int i = 0; i < ZERO_SLOTS; i++) comm_wait(z->comm, z->leaves[i]);
    for (int b = 0; zero_has_metric(z) && b < gpt2_n_buckets(&z->c); b++)
        zero_weigh(z, BIG_ADAM, z->grads, b);
}

// The number of small gradients that this rank measures in an update.
static inline size_t zero_smalls_count(const Zero *z, size_t micro_batches) {
    return z->size > 1 && z->stage < 2 && z->n_levels == 0 ? 1 : micro_batches;
}

// ---- an update's totals ----

// The ranks of `scope` whose `squares` add up to the gradient's squared norm. Stage 0: every data
// rank has the whole mean gradient, so one counts. DiLoCo: the norm is this rank's own. Each rank
// of a tensor group has a part.
static inline Slice totals_squares(const Zero *z, Scope scope) {
    size_t group = (size_t)z->tp.size, data_ranks = scope == ALL_RANKS ? (size_t)z->size : 1;
    Slice all = { 0, group*data_ranks };
    Slice one = { z->apart && data_ranks > 1 ? group*(size_t)z->rank : 0, group };
    return z->stage == 0 ? one : all;
}

// The totals of `scope` from its ranks' totals, all (ranks), summed in rank order. The ranks of a
// tensor group have the same losses, and each some of the squares.
static inline Totals totals_sum(const Zero *z, const Totals *all, Scope scope) {
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

// The ranks of `scope`, if there are several: all ranks, or this rank's tensor group. Else NULL.
static inline Comm *totals_comm(const Zero *z, Scope scope) {
    if (scope == ALL_RANKS && z->size*z->tp.size > 1) return comm_whole(z->comm);
    return z->tp.size > 1 ? z->tp.comm : NULL;
}

// On a CPU: replaces this rank's loss and squared norm by those of z->scope, and adds the norms of
// the noise scale, and the signal to stop. The sums have the same bits on all ranks.
static inline void totals_share(const Zero *z, Totals *totals) {
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

// A flat buffer of what a checkpoint keeps; `slices`: it holds only this rank's slices.
typedef struct { float *data; bool slices; } Buffer;

static inline Buffer kept_buffer(const Zero *z, Kept what) {
    bool rounded = z->param_bytes < sizeof(float);
    Buffer b = { z->masters, z->stage >= (rounded ? 1 : 3) };
    if (what == KEPT_WEIGHTS) return b;
    b.data = what == KEPT_EXP_AVG ? z->adam_m : what == KEPT_EXP_AVG_SQ ? z->adam_v
           : what == KEPT_AVERAGE ? z->average : z->outer_momentum;
    b.slices = z->stage >= 1;
    return b;
}

#if defined(COMM_ON_GPU)                               // dev/ranks/kernels.cu
static void zero_open(Zero *z);
static void zero_close(Zero *z);
static float *bucket_place_own(Zero *z, Kept what, int bucket);
static void bucket_take(Zero *z, Buffer b, int bucket);
static const float *bucket_show(Zero *z, float *whole, int bucket);
static void zero_loaded(Zero *z);
#else
// After the layout: fills the table of chunks.
static inline void zero_open(Zero *z) {
    if (z->chunks) zero_chunks(z->chunks, z, ZERO_CHUNK);
}

static inline void zero_close(Zero *z) { zero_free(z); }

// Buffer for a whole bucket in the shapes of z->file, of which bucket_take() keeps this rank's
// slice.
static inline float *bucket_place_own(Zero *z, Kept what, int bucket) {
    Buffer b = kept_buffer(z, what);
    return b.slices ? z->bucket : b.data + gpt2_bucket(&z->c, bucket).begin;
}

static inline void bucket_take(Zero *z, Buffer b, int bucket) {
    Slice own = zero_own(z, bucket);
    if (b.slices)
        memcpy(b.data + zero_slices_begin(z, bucket), z->bucket + own.begin,
               own.count * sizeof(float));
}

static inline const float *bucket_show(Zero *z, float *whole, int bucket) {
    (void)z, (void)bucket;
    return whole;
}

// After the masters have changed, this rank's part of them at least: gathers the ranks' slices. A
// GPU rounds the masters to bf16 first.
static inline void zero_loaded(Zero *z) { zero_send_params(z); }
#endif

// ---- averaged weights ----

// to = keep * to + (1 - keep) * from, of all that this rank updates. Both factors are floats with a
// sum of exactly 1 from keep = 1/2 on, so that long averages do not shrink.
static inline void zero_blend(Zero *z, Buffer to, Buffer from, float keep) {
    for (int b = 0; b < gpt2_n_buckets(&z->c); b++) {
        size_t n = zero_own(z, b).count;
        if (n > 0)
            floats_axpby(to.data + zero_own_begin(z, b, to.slices), 1.0f - keep,
                         from.data + zero_own_begin(z, b, from.slices), keep, n, z->stream);
    }
}

// average = keep * average + (1 - keep) * weights. Each rank averages the masters it updates.
static inline void zero_average(Zero *z, float keep) {
    zero_blend(z, kept_buffer(z, KEPT_AVERAGE), kept_buffer(z, KEPT_WEIGHTS), keep);
}

// Between two updates: the averaged weights take the place of the weights, to be evaluated, until
// zero_average_end. The buffer of gradients, not needed now, holds the weights meanwhile.
static inline void zero_average_begin(Zero *z) {
    Buffer weights = kept_buffer(z, KEPT_WEIGHTS), aside = { z->grads, z->stage >= 2 };
    zero_wait_params(z);
    zero_blend(z, aside, weights, 0.0f);
    zero_blend(z, weights, kept_buffer(z, KEPT_AVERAGE), 0.0f);
    zero_loaded(z);
}

static inline void zero_average_end(Zero *z) {
    Buffer aside = { z->grads, z->stage >= 2 };
    zero_wait_params(z);
    zero_blend(z, kept_buffer(z, KEPT_WEIGHTS), aside, 0.0f);
    zero_loaded(z);
}

// Buffer to load a bucket of the whole model into. bucket_keep() then keeps this rank's part.
static inline float *bucket_place(Zero *z, Kept what, int bucket) {
    return z->tp.size > 1 ? z->whole : bucket_place_own(z, what, bucket);
}

static inline void bucket_keep(Zero *z, Kept what, int bucket) {
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
static inline const float *bucket_join(Zero *z, float *own, int bucket) {
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

// A bucket of the whole model in rank 0's CPU memory, valid until the next call; all ranks call it
// together. For Adam's moments, which differ between DiLoCo's workers: those of `worker`, or with
// -1 their mean.
// A Checkpoint's source (dev/files/checkpoint.h).
static inline const float *bucket_get(void *zero, Kept what, int worker, int bucket) {
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
