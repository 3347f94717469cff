// Data parallel and ZeRO: who keeps what, and what travels when.
//
// Every rank has the whole model at hand and a part of the batch. What it must keep from one update
// to the next is less (Rajbhandari et al. 2020, arXiv 1910.02054), for n ranks:
//
//     stage   parameters   gradients   moments   travels for each update
//     0       all          all         all       gradients: all-reduced in the last micro-batch
//     1       all          all         1/n       gradients: reduce-scattered in the last
//                                                micro-batch; parameters: gathered after the update
//     2       all          1/n         1/n       the same, reduce-scattered in every micro-batch
//     3       1/n          1/n         1/n       gradients as in 2; parameters: gathered just
//                                                before they are used, forward and on the way back
//
// The unit is a bucket of dev/base/gpt2.h: a block, or the embeddings, or the final norm. A rank
// owns a slice of each bucket, and its slices lie one after the other in a buffer of 1/n. A
// bucket's gradients leave as soon as its way back is done, and travel while the blocks before it
// compute.
//
//     zero_micro_batch(&z, i, n);                       before each micro-batch
//     p = zero_params(&z, bucket, next);                a bucket's parameters, to be read
//     g = zero_grads(&z, bucket);                       where its gradients are to be added
//     zero_grads_done(&z, bucket);                      they are: off they go
//     zero_finish_grads(&z);                            they have arrived
//     ... update the chunks this rank owns ...
//     zero_updated(&z);                                 the others need them
//
// With one rank all of this comes to pointers into whole buffers.
#pragma once
#include "comm.h"
#include "../base/gpt2.h"

enum { ZERO_SLOTS = 4 };                   // whole buckets for a moment: embeddings, final norm,
                                           // and two blocks, the one in use and the next
typedef struct {
    Comm *comm;                            // NULL: one rank alone
    int rank, size;
    int stage;
    Config c;                              // of the flat buffers; a GPU pads the vocabulary
    size_t param_bytes;                    // of a parameter as layers read it
    CommType type;                         // how gradients travel
    char *params;                          // of param_bytes: whole, or own slices
    float *grads;                          // whole, or own slices
    char *gathered[ZERO_SLOTS];            // stage 3: buckets of parameters
    float *collected[ZERO_SLOTS];          // stages 2 and 3: buckets of gradients
    int held[ZERO_SLOTS];                  // the bucket that is gathered there; -1: none
    Ticket *arrives;                       // (buckets) of parameters on their way here
    Ticket leaves[ZERO_SLOTS];             // the last of gradients on their way from there
    bool apart;                            // gradients stay here: DiLoCo
    bool in_turn;                          // --no-overlap: compute, then communicate, in turn
    bool last;                             // this is the update's last micro-batch
    float *levels[TREE_LEVELS];            // --exact-sum: a gradient for each level of the tree
    int n_levels;                          // 0 without
    int level;                             // where this micro-batch's gradient is added
    bool measure;                          // the small gradients of noise.h, of this rank:
    float *small;                          // where a rank alone keeps one until it is measured
    double squares;                        // the sum of their squared lengths in this update
    double *partials;                      // scratch: a sum for each chunk of a bucket; on a GPU it
                                           // grows in them, until they are added up
    uint64_t hash;                         // of all parameters, as they were loaded or made
} Zero;

// Parameters and gradients are the caller's to allocate, and gathered and collected as the stage
// needs them: see the counts below.
static inline void zero_init(Zero *z, Comm *comm, int stage, const Config *c, size_t param_bytes,
                             CommType type) {
    memset(z, 0, sizeof *z);
    z->comm = comm;
    z->rank = comm ? comm->rank : 0;
    z->size = comm ? comm->size : 1;
    z->stage = z->size > 1 ? stage : 0;    // one rank has nobody to share with
    z->c = *c;
    z->param_bytes = param_bytes;
    z->type = type;
    for (int s = 0; s < ZERO_SLOTS; s++) z->held[s] = -1;
    z->arrives = (Ticket *)alloc_or_die(gpt2_n_buckets(c) * sizeof *z->arrives, "tickets");
}

static inline void zero_free(Zero *z) { free(z->arrives); }

static inline int zero_slot(const Zero *z, int bucket) {
    return bucket == 0 ? 0 : bucket > z->c.L ? 1 : 2 + bucket % 2;
}

// What of a bucket this rank updates: all of it, or its slice.
static inline Slice zero_own(const Zero *z, int bucket) {
    size_t count = gpt2_bucket(&z->c, bucket).count;
    if (z->stage == 0) return comm_slice(count, 0, 1);
    return comm_slice(count, z->rank, z->size);
}

// Where a rank's slices begin in a buffer of slices: at the same place on each rank.
static inline size_t zero_slices_begin(const Zero *z, int bucket) {
    size_t at = 0;
    for (int b = 0; b < bucket; b++)
        at += comm_slice(gpt2_bucket(&z->c, b).count, 0, z->size).count;
    return at;
}

// ---- how much memory ----

static inline size_t zero_buffer(const Zero *z, bool slices) {
    return slices ? zero_slices_begin(z, gpt2_n_buckets(&z->c)) : gpt2_n_params(&z->c);
}
static inline size_t zero_params_count(const Zero *z) { return zero_buffer(z, z->stage == 3); }
static inline size_t zero_grads_count(const Zero *z) { return zero_buffer(z, z->stage >= 2); }
static inline size_t zero_moments_count(const Zero *z) { return zero_buffer(z, z->stage >= 1); }

// The numbers a slot has room for.
static inline size_t zero_slot_count(const Zero *z, int slot) {
    int bucket = slot == 0 ? 0 : slot == 1 ? z->c.L + 1 : 1;
    return gpt2_bucket(&z->c, bucket).count;
}

// A piece of one tensor that this rank updates: where it lies in the buffers of parameters, of
// gradients and of moments.
typedef struct { size_t param, grad, moment; int count; bool decays; } Chunk;

// The chunks of all that this rank updates, each of at most `largest` numbers; returns how many,
// and fills the table in unless it is NULL.
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
                            left < (size_t)largest ? (int)left : largest, t.decays };
            if (chunks) chunks[n] = chunk;
        }
    }
    return n;
}

// Where a bucket of parameters is first written, whole: in its place, or at stage 3 in a slot, from
// which zero_keep takes what this rank is to keep, after it has hashed all. For initialising and
// loading.
static inline float *zero_place(Zero *z, int bucket) {
    if (z->stage == 3) return (float *)z->gathered[zero_slot(z, bucket)];
    return (float *)z->params + gpt2_bucket(&z->c, bucket).begin;
}

static inline void zero_keep(Zero *z, int bucket) {
    Slice own = zero_own(z, bucket);
    float *slices = (float *)z->params + zero_slices_begin(z, bucket);
    size_t bytes = gpt2_bucket(&z->c, bucket).count * sizeof(float);
    if (z->size > 1) z->hash = hash_add(z->hash, zero_place(z, bucket), bytes);
    if (z->stage == 3)
        memcpy(slices, zero_place(z, bucket) + own.begin, own.count * sizeof(float));
}

// ---- work on gradients, on the device they lie on ----

#if defined(COMM_ON_GPU)
static inline void zero_fill(Zero *z, float *x, size_t n) {
    COMM_CUDA(cudaMemsetAsync(x, 0, n * sizeof *x, z->comm->compute));
}
// x += y
static inline void zero_add(Zero *z, float *x, const float *y, size_t n) {
    const void *terms[] = { y, x };
    z->comm->math->sum(x, terms, 2, 1.0f, COMM_FP32, COMM_WRITE, n, z->comm->compute);
}
#else
static inline void zero_fill(Zero *z, float *x, size_t n) {
    (void)z;
    #pragma omp parallel for simd
    for (size_t i = 0; i < n; i++) x[i] = 0.0f;
}
static inline void zero_add(Zero *z, float *x, const float *y, size_t n) {
    (void)z;
    #pragma omp parallel for simd
    for (size_t i = 0; i < n; i++) x[i] = y[i] + x[i];
}
#endif

// ---- the small gradients of dev/train/noise.h ----
//
// What an update adds up anyway is measured on the way, before the ranks add it up: each rank's
// share of the batch, or where each micro-batch's gradient is at hand by itself (at stages 2 and 3,
// and with --exact-sum) each micro-batch's. A rank alone would add one to the other unseen; so it
// keeps a micro-batch's apart, in `small`, until it is measured.

#if defined(COMM_ON_GPU)
enum { ZERO_MEASURED = 1 << 13 };          // numbers a chunk, which is a block of threads' work
#else
enum { ZERO_MEASURED = 1 << 16 };          // numbers a chunk; each has a sum of its own
#endif

static inline size_t zero_partials_count(const Zero *z) {
    return (gpt2_largest_bucket(&z->c) + ZERO_MEASURED - 1) / ZERO_MEASURED;
}

// How many small gradients an update of this rank has, of so many micro-batches.
static inline size_t zero_smalls(const Zero *z, size_t micro_batches) {
    return z->size > 1 && z->stage < 2 && z->n_levels == 0 ? 1 : micro_batches;
}

#if defined(COMM_ON_GPU)
// partials += the sums of the squares of x's (n) chunks, those of all buckets one after the other:
// in the order of the launches. With `sum` not NULL, x also joins it, and is cleared.
static inline void zero_measure(Zero *z, float *sum, float *x, size_t n) {
    z->comm->math->measure(z->partials, sum, x, n, z->comm->compute);
}
#else
// squares += the sum of x's (n) squares. With `sum` not NULL, x also joins it, and is cleared.
static inline void zero_measure(Zero *z, float *sum, float *x, size_t n) {
    size_t chunks = (n + ZERO_MEASURED - 1) / ZERO_MEASURED;
    #pragma omp parallel for
    for (size_t k = 0; k < chunks; k++) {
        size_t begin = k*ZERO_MEASURED, end = begin + ZERO_MEASURED < n ? begin + ZERO_MEASURED : n;
        double squares = 0.0;
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
    for (size_t k = 0; k < chunks; k++) z->squares += z->partials[k];  // in order: the same bits
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

// A bucket's parameters, whole, to be read until the second next bucket is asked for; `next` is the
// one that will be needed after it (-1: none) and may begin to travel.
static inline void *zero_params(Zero *z, int bucket, int next) {
    if (z->stage < 3) {
        comm_wait(z->comm, z->arrives[bucket]);
        return z->params + gpt2_bucket(&z->c, bucket).begin*z->param_bytes;
    }
    zero_gather(z, bucket);
    if (next >= 0 && !z->in_turn) zero_gather(z, next);
    comm_wait(z->comm, z->arrives[bucket]);
    return z->gathered[zero_slot(z, bucket)];
}

// After an update: what the other ranks have changed comes to this one.
static inline void zero_updated(Zero *z) {
    if (z->stage == 0) return;
    for (int s = 0; s < ZERO_SLOTS; s++) z->held[s] = -1;
    for (int b = 0; z->stage < 3 && b < gpt2_n_buckets(&z->c); b++) {
        Range r = gpt2_bucket(&z->c, b);
        char *data = z->params + r.begin*z->param_bytes;
        z->arrives[b] = comm_all_gather(z->comm, data, data + zero_own(z, b).begin*z->param_bytes,
                                        r.count, z->param_bytes);
        if (z->in_turn) comm_wait(z->comm, z->arrives[b]);
    }
}

// Until then, parameters may still be on their way.
static inline void zero_finish_params(Zero *z) {
    for (int b = 0; b < gpt2_n_buckets(&z->c); b++) comm_wait(z->comm, z->arrives[b]);
}

// ---- gradients ----

// The i-th of an update's n micro-batches is about to begin.
static inline void zero_micro_batch(Zero *z, size_t i, size_t n) {
    z->last = i + 1 == n;
    if (z->n_levels == 0) return;
    z->level = tree_level(i);
    z->grads = z->levels[z->level];                    // free: the i-th term is the first there
    zero_fill(z, z->grads, zero_grads_count(z));
}

// Where this micro-batch's gradients of a bucket are to be added. Once a micro-batch.
static inline float *zero_grads(Zero *z, int bucket) {
    int slot = zero_slot(z, bucket);
    Range r = gpt2_bucket(&z->c, bucket);
    if (z->small) return z->small + r.begin;
    if (z->stage < 2) return z->grads + r.begin;
    comm_wait(z->comm, z->leaves[slot]);               // of the bucket that had the slot before
    zero_fill(z, z->collected[slot], r.count);
    return z->collected[slot];
}

// A bucket's gradients of this micro-batch are complete.
static inline void zero_grads_done(Zero *z, int bucket) {
    Range r = gpt2_bucket(&z->c, bucket);
    Slice own = zero_own(z, bucket);
    float *grads = z->grads + r.begin;
    if (z->small)
        zero_measure(z, grads, z->small + r.begin, r.count);
    else if (z->measure && z->stage >= 2)
        zero_measure(z, NULL, z->collected[zero_slot(z, bucket)], r.count);
    else if (z->measure && (z->last || z->n_levels > 0))
        zero_measure(z, NULL, grads, r.count);
    for (int l = 0; l < z->level; l++) zero_add(z, grads, z->levels[l] + r.begin, r.count);
    if (z->size == 1 || z->apart) return;
    Ticket *leaves = &z->leaves[zero_slot(z, bucket)];
    if (z->stage >= 2)
        *leaves = comm_reduce_scatter(z->comm, z->grads + zero_slices_begin(z, bucket),
                                      z->collected[zero_slot(z, bucket)], r.count, 1.0f, z->type,
                                      COMM_ADD);
    else if (z->last && z->stage == 1)
        *leaves = comm_reduce_scatter(z->comm, grads + own.begin, grads, r.count, 1.0f, z->type,
                                      COMM_WRITE);
    else if (z->last)
        *leaves = comm_all_reduce(z->comm, grads, r.count, 1.0f, z->type);
    if (z->in_turn) comm_wait(z->comm, *leaves);
}

// The update's gradients are there, summed over all ranks, as far as this rank owns them.
static inline void zero_finish_grads(Zero *z) {
    for (int s = 0; s < ZERO_SLOTS; s++) comm_wait(z->comm, z->leaves[s]);
}
