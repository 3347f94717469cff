// Data parallel and ZeRO: what each rank keeps, and what travels when.
//
// Every rank has the whole model at hand and a part of the batch. What a rank must keep from one
// update to the next is less (Rajbhandari et al. 2020, arXiv 1910.02054), for n ranks:
//
//     stage   parameters   gradients   moments   travels for each update
//     0       all          all         all       gradients: all-reduced in the last micro-batch
//     1       all          all         1/n       gradients: reduce-scattered in the last
//                                                micro-batch; parameters: gathered after the update
//     2       all          1/n         1/n       the same, reduce-scattered in every micro-batch
//     3       1/n          1/n         1/n       gradients as in 2; parameters: gathered just
//                                                before they are used, forward and backward
//
// The unit is a bucket of dev/base/gpt2.h: a block, or the embeddings, or the final norm. A rank
// owns a slice of each bucket, and its slices lie one after the other in a buffer of 1/n. A
// bucket's gradients leave as soon as its backward pass is done, and travel while the blocks before
// it compute.
//
//     shards_micro_batch(&z, i, n);                     before each micro-batch
//     p = shards_params(&z, bucket, next);              a bucket's parameters, to be read
//     g = shards_grads(&z, bucket);                     where its gradients are to be added
//     shards_grads_ready(&z, bucket);                   they are complete, and leave
//     shards_finish_grads(&z);                          those of all ranks have arrived
//     ... update the chunks this rank owns ...
//     shards_updated(&z);                               the other ranks need them
//
// With one rank all of this comes to pointers into whole buffers.
#pragma once
#include "../base/gpt2.h"              // buckets
#include "../base/memory.h"            // Memory
#include "../base/signal.h"            // stop_signal
#include "comm.h"                      // reduce-scatter, all-gather

// What a run asks of the ranks; all zeros: one rank alone.
typedef struct {
    Comm *comm;              // NULL: one rank alone
    int stage;               // of ZeRO
    CommType type;           // how gradients travel
    int levels;              // --exact-sum: of the tree that micro-batches are added along; else 0
    bool apart;              // --outer-every: gradients stay with their rank (DiLoCo)
    bool in_turn;            // --no-overlap: compute, then communicate, in turn
    bool measure;            // the small gradients of dev/train/noise.h
} Sharing;

// A piece of one tensor that this rank updates: where it lies in the buffers of parameters, of
// gradients and of moments.
typedef struct { size_t param, grad, moment; int count; bool decays; } Chunk;

enum { SHARDS_SLOTS = 4 };                 // whole buckets for a moment: embeddings, final norm,
                                           // and two blocks, the one in use and the next
#if defined(COMM_ON_GPU)
enum { SHARDS_CHUNK = 1 << 14 };           // the largest chunk: a block of threads' work
enum { SHARDS_MEASURED = 1 << 13 };        // elements whose squares are one partial sum
typedef cudaStream_t Stream;               // what is asked of the device is done in this order
#else
enum { SHARDS_CHUNK = 1 << 16 };
enum { SHARDS_MEASURED = 1 << 16 };
typedef int Stream;                        // a CPU does what it is asked at once
#endif

typedef struct {
    Comm *comm;
    int rank, size;
    int stage;
    CommType type;
    bool apart, in_turn, measure;          // as in Sharing
    Config c, file;                        // of the buffers, where a GPU pads the vocabulary; of
                                           // the files, where nobody does
    size_t param_bytes;                    // of a parameter as layers read it
    Stream stream;

    // What this rank keeps: whole buffers, or its slices
    char *params;                          // of param_bytes
    float *masters;                        // in fp32: params themselves, if those are fp32
    float *grads, *adam_m, *adam_v;
    float *outer_params, *outer_momentum;  // DiLoCo: of the last round's end
    Chunk *chunks;                         // (n_chunks) what this rank updates
    double *norm_partials;                 // (n_chunks) sums of squares of gradients
    int n_chunks;

    // Whole buckets that pass through
    char *gathered[SHARDS_SLOTS];          // stage 3: of parameters
    float *collected[SHARDS_SLOTS];        // stages 2 and 3: of gradients
    int held[SHARDS_SLOTS];                // the bucket that is gathered there; -1: none
    float *bucket;                         // for checkpoints; NULL where this rank has all whole
    float *host_bucket;                    // the same in the CPU's memory, of a GPU
    Ticket *arrives;                       // (buckets) of parameters on their way here
    Ticket leaves[SHARDS_SLOTS];           // the last of gradients on their way from there

    // This update
    bool last;                             // its last micro-batch
    float *levels[TREE_LEVELS];            // --exact-sum: a gradient for each level of the tree
    int n_levels;                          // 0 without
    int level;                             // where this micro-batch's gradient is added
    float *small;                          // one rank alone: a micro-batch's gradient, until it is
                                           // measured
    double *partials;                      // (shards_partials_count) scratch of measuring
    double smalls;                         // the sum of the small gradients' squared lengths
    uint64_t hash;                         // of all parameters, as they were loaded or made
} Shards;

static inline void shards_init(Shards *z, const Sharing *s, const Config *c, const Config *file,
                               size_t param_bytes) {
    memset(z, 0, sizeof *z);
    z->comm = s->comm;
    z->rank = s->comm ? s->comm->rank : 0;
    z->size = s->comm ? s->comm->size : 1;
    z->stage = z->size > 1 ? s->stage : 0;             // one rank has nobody to share with
    z->type = s->type;
    z->apart = s->apart;
    z->in_turn = s->in_turn;
    z->measure = s->measure;
    z->n_levels = s->levels;
    z->c = *c;
    z->file = *file;
    z->param_bytes = param_bytes;
    for (int i = 0; i < SHARDS_SLOTS; i++) z->held[i] = -1;
    z->arrives = (Ticket *)alloc_or_die(gpt2_n_buckets(c) * sizeof *z->arrives, "tickets");
}

static inline void shards_free(Shards *z) { free(z->arrives); }

static inline int shards_slot(const Shards *z, int bucket) {
    return bucket == 0 ? 0 : bucket > z->c.L ? 1 : 2 + bucket % 2;
}

// The part of a bucket that this rank updates: all of it, or its slice.
static inline Slice shards_own(const Shards *z, int bucket) {
    size_t count = gpt2_bucket(&z->c, bucket).count;
    if (z->stage == 0) return comm_slice(count, 0, 1);
    return comm_slice(count, z->rank, z->size);
}

// Where a bucket's slice begins in a buffer of slices: at the same place on each rank.
static inline size_t shards_slices_begin(const Shards *z, int bucket) {
    size_t at = 0;
    for (int b = 0; b < bucket; b++)
        at += comm_slice(gpt2_bucket(&z->c, b).count, 0, z->size).count;
    return at;
}

// Where this rank's part of a bucket begins, in a buffer of slices or in a whole one.
static inline size_t shards_own_begin(const Shards *z, int bucket, bool slices) {
    if (slices) return shards_slices_begin(z, bucket);
    return gpt2_bucket(&z->c, bucket).begin + shards_own(z, bucket).begin;
}

// ---- how much memory ----

static inline size_t shards_buffer(const Shards *z, bool slices) {
    return slices ? shards_slices_begin(z, gpt2_n_buckets(&z->c)) : gpt2_n_params(&z->c);
}
static inline size_t shards_params_count(const Shards *z) {
    return shards_buffer(z, z->stage == 3);
}
static inline size_t shards_grads_count(const Shards *z) {
    return shards_buffer(z, z->stage >= 2);
}
static inline size_t shards_moments_count(const Shards *z) {
    return shards_buffer(z, z->stage >= 1);
}

// Elements that a slot has room for.
static inline size_t shards_slot_count(const Shards *z, int slot) {
    int bucket = slot == 0 ? 0 : slot == 1 ? z->c.L + 1 : 1;
    return gpt2_bucket(&z->c, bucket).count;
}

static inline size_t shards_partials_count(const Shards *z) {
    return (gpt2_largest_bucket(&z->c) + SHARDS_MEASURED - 1) / SHARDS_MEASURED;
}

// One rank alone adds one micro-batch's gradient to the next before anyone has seen it. To be
// measured it is kept apart.
static inline bool shards_keeps_small(const Shards *z) {
    return z->measure && z->size == 1 && z->n_levels == 0;
}

// The chunks of all that this rank updates, each of at most `largest` elements; returns how many,
// and fills the table in unless it is NULL.
static inline int shards_chunks(Chunk *chunks, const Shards *z, int largest) {
    int n = 0, bucket = 0;
    for (int i = 0; i < gpt2_n_tensors(&z->c); i++) {
        if (i == gpt2_bucket_tensor(&z->c, bucket + 1)) bucket++;
        Tensor t = gpt2_tensor(&z->c, i);
        Slice own = shards_own(z, bucket);
        size_t whole = gpt2_bucket(&z->c, bucket).begin, slices = shards_slices_begin(z, bucket);
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

// Lays out the parameters; see dev/base/memory.h.
static inline void shards_carve_params(Shards *z, Memory *mem) {
    bool rounded = z->param_bytes < sizeof(float);
    z->params = (char *)memory_take(mem, MEM_PARAMS, shards_params_count(z) * z->param_bytes);
    z->masters = (float *)z->params;
    if (rounded) z->masters = memory_floats(mem, MEM_PARAMS, shards_moments_count(z));
    for (int i = 0; i < SHARDS_SLOTS && z->stage == 3; i++)
        z->gathered[i] = (char *)memory_take(mem, MEM_PASSING,
                                             shards_slot_count(z, i) * z->param_bytes);
}

// Lays out what training adds.
static inline void shards_carve_training(Shards *z, Memory *mem) {
    size_t n = gpt2_n_params(&z->c), partials = shards_partials_count(z) * sizeof(double);
    z->grads = z->levels[0] = memory_floats(mem, MEM_GRADS, shards_grads_count(z));
    for (int l = 1; l < z->n_levels; l++) z->levels[l] = memory_floats(mem, MEM_GRADS, n);
    if (shards_keeps_small(z)) z->small = memory_floats(mem, MEM_GRADS, n);
    if (z->measure) z->partials = (double *)memory_take(mem, MEM_REST, partials);
    for (int i = 0; i < SHARDS_SLOTS && z->stage >= 2; i++)
        z->collected[i] = memory_floats(mem, MEM_PASSING, shards_slot_count(z, i));
    z->adam_m = memory_floats(mem, MEM_MOMENTS, shards_moments_count(z));
    z->adam_v = memory_floats(mem, MEM_MOMENTS, shards_moments_count(z));
    z->n_chunks = shards_chunks(NULL, z, SHARDS_CHUNK);
    z->chunks = (Chunk *)memory_take(mem, MEM_REST, z->n_chunks * sizeof *z->chunks);
    z->norm_partials = (double *)memory_take(mem, MEM_REST, z->n_chunks * sizeof(double));
    if (z->apart) z->outer_params = memory_floats(mem, MEM_OUTER, n);
    if (z->apart) z->outer_momentum = memory_floats(mem, MEM_OUTER, n);
#if !defined(COMM_ON_GPU)                  // a GPU's model lends the memory of its logits
    if (z->size > 1) z->bucket = memory_floats(mem, MEM_REST, gpt2_largest_bucket(&z->c));
#endif
}

// ---- work on flat buffers, on the device where they lie ----

#if defined(COMM_ON_GPU)                               // dev/ranks/kernels.cu
static void floats_clear(float *x, size_t n, Stream stream);
static void floats_axpby(float *y, float a, const float *x, float b, size_t n, Stream stream);
static void floats_measure(Shards *z, float *sum, float *x, size_t n);
#else
static inline void floats_clear(float *x, size_t n, Stream stream) {
    (void)stream;
    #pragma omp parallel for simd
    for (size_t i = 0; i < n; i++) x[i] = 0.0f;
}

// y = a x + b y; if b is 0 whatever stood in y is forgotten. b = 0 and b = 1 have loops of their
// own: a processor then rounds once, in one fused multiply-add.
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

// z->smalls += the sum of x's (n) squares. With `sum` not NULL, x is also added to it, and cleared.
static inline void floats_measure(Shards *z, float *sum, float *x, size_t n) {
    size_t pieces = (n + SHARDS_MEASURED - 1) / SHARDS_MEASURED;
    #pragma omp parallel for
    for (size_t k = 0; k < pieces; k++) {
        size_t begin = k*SHARDS_MEASURED, end = begin + SHARDS_MEASURED;
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
    for (size_t k = 0; k < pieces; k++) z->smalls += z->partials[k];   // in order: the same bits
}
#endif

// ---- parameters ----

static inline void shards_gather(Shards *z, int bucket) {
    int slot = shards_slot(z, bucket);
    size_t count = gpt2_bucket(&z->c, bucket).count;
    if (z->held[slot] == bucket) return;
    z->held[slot] = bucket;
    z->arrives[bucket] = comm_all_gather(z->comm, z->gathered[slot],
                                         z->params + shards_slices_begin(z, bucket)*z->param_bytes,
                                         count, z->param_bytes);
}

// A bucket's parameters, whole, to be read until the second next bucket is asked for; `next` is the
// one that will be needed after it (-1: none) and may begin to travel.
static inline void *shards_params(Shards *z, int bucket, int next) {
    if (z->stage < 3) {
        comm_wait(z->comm, z->arrives[bucket]);
        return z->params + gpt2_bucket(&z->c, bucket).begin*z->param_bytes;
    }
    shards_gather(z, bucket);
    if (next >= 0 && !z->in_turn) shards_gather(z, next);
    comm_wait(z->comm, z->arrives[bucket]);
    return z->gathered[shards_slot(z, bucket)];
}

// After an update: the parameters that other ranks have changed come to this one.
static inline void shards_updated(Shards *z) {
    if (z->stage == 0) return;
    for (int i = 0; i < SHARDS_SLOTS; i++) z->held[i] = -1;
    for (int b = 0; z->stage < 3 && b < gpt2_n_buckets(&z->c); b++) {
        Range r = gpt2_bucket(&z->c, b);
        char *data = z->params + r.begin*z->param_bytes;
        z->arrives[b] = comm_all_gather(z->comm, data,
                                        data + shards_own(z, b).begin*z->param_bytes, r.count,
                                        z->param_bytes);
        if (z->in_turn) comm_wait(z->comm, z->arrives[b]);
    }
}

// Waits for parameters that are still on their way.
static inline void shards_finish_params(Shards *z) {
    for (int b = 0; b < gpt2_n_buckets(&z->c); b++) comm_wait(z->comm, z->arrives[b]);
}

// ---- gradients ----

static inline void shards_clear_grads(Shards *z) {
    z->smalls = 0.0;
    floats_clear(z->grads, shards_grads_count(z), z->stream);
#if defined(COMM_ON_GPU)                   // where they grow in an update, instead of z->smalls
    size_t bytes = shards_partials_count(z) * sizeof(double);
    if (z->measure) COMM_CUDA(cudaMemsetAsync(z->partials, 0, bytes, z->stream));
#endif
}

// The i-th of an update's n micro-batches is about to begin.
static inline void shards_micro_batch(Shards *z, size_t i, size_t n) {
    z->last = i + 1 == n;
    if (z->n_levels == 0) return;
    z->level = tree_level(i);
    z->grads = z->levels[z->level];                    // free: the i-th term is the first there
    floats_clear(z->grads, shards_grads_count(z), z->stream);
}

// Where this micro-batch's gradients of a bucket are to be added. Called once a micro-batch.
static inline float *shards_grads(Shards *z, int bucket) {
    int slot = shards_slot(z, bucket);
    Range r = gpt2_bucket(&z->c, bucket);
    if (z->small) return z->small + r.begin;
    if (z->stage < 2) return z->grads + r.begin;
    comm_wait(z->comm, z->leaves[slot]);               // of the bucket that had the slot before
    floats_clear(z->collected[slot], r.count, z->stream);
    return z->collected[slot];
}

// The small gradients of dev/train/noise.h are what an update adds up anyway. They are measured
// before the ranks add them up: each rank's share of the batch, or each micro-batch's gradient
// where that is at hand by itself (stages 2 and 3, --exact-sum, one rank alone).
static inline void shards_measure(Shards *z, int bucket) {
    Range r = gpt2_bucket(&z->c, bucket);
    float *grads = z->grads + r.begin;
    if (!z->measure) return;
    if (z->small) floats_measure(z, grads, z->small + r.begin, r.count);
    else if (z->stage >= 2) floats_measure(z, NULL, z->collected[shards_slot(z, bucket)], r.count);
    else if (z->last || z->n_levels > 0) floats_measure(z, NULL, grads, r.count);
}

// --exact-sum: adds a micro-batch's gradient to those of the levels that it completes, as a binary
// counter carries (dev/ranks/tree.h).
static inline void shards_carry(Shards *z, int bucket) {
    Range r = gpt2_bucket(&z->c, bucket);
    for (int l = 0; l < z->level; l++)
        floats_axpby(z->grads + r.begin, 1.0f, z->levels[l] + r.begin, 1.0f, r.count, z->stream);
}

// Reduce-scatters a bucket's gradients (stages 2 and 3: of every micro-batch; stage 1: of the
// last), or all-reduces them (stage 0: of the last). The ranks' sum is already their mean: each
// loss was scaled by the whole batch.
static inline void shards_send(Shards *z, int bucket) {
    Range r = gpt2_bucket(&z->c, bucket);
    int slot = shards_slot(z, bucket);
    float *grads = z->grads + r.begin;
    if (z->size == 1 || z->apart) return;
    if (z->stage >= 2)
        z->leaves[slot] = comm_reduce_scatter(z->comm, z->grads + shards_slices_begin(z, bucket),
                                              z->collected[slot], r.count, 1.0f, z->type,
                                              COMM_ADD);
    else if (z->last && z->stage == 1)
        z->leaves[slot] = comm_reduce_scatter(z->comm, grads + shards_own(z, bucket).begin, grads,
                                              r.count, 1.0f, z->type, COMM_WRITE);
    else if (z->last)
        z->leaves[slot] = comm_all_reduce(z->comm, grads, r.count, 1.0f, z->type);
    if (z->in_turn) comm_wait(z->comm, z->leaves[slot]);
}

// A bucket's gradients of this micro-batch are complete.
static inline void shards_grads_ready(Shards *z, int bucket) {
    shards_measure(z, bucket);
    shards_carry(z, bucket);
    shards_send(z, bucket);
}

// Waits until the update's gradients are there, summed over all ranks, as far as this rank owns
// them.
static inline void shards_finish_grads(Shards *z) {
    for (int i = 0; i < SHARDS_SLOTS; i++) comm_wait(z->comm, z->leaves[i]);
}

// How many small gradients an update of this rank has, of so many micro-batches.
static inline size_t shards_smalls_count(const Shards *z, size_t micro_batches) {
    return z->size > 1 && z->stage < 2 && z->n_levels == 0 ? 1 : micro_batches;
}

// ---- what an update comes to ----

// Sums over this rank, or over all of them.
typedef struct {
    double loss;                           // of all tokens
    double squares;                        // of the gradient's elements: its squared norm
    double smalls;                         // the small gradients' squared norms
    int64_t stop;                          // not 0: a rank was told to stop
} Totals;

typedef enum { THIS_RANK, ALL_RANKS } Scope;           // DiLoCo's ranks are alone within a round

// The totals of `scope`, from each rank's own in the order of the ranks: all (ranks of the scope).
// Where every rank has the whole mean gradient (stage 0), its squares count once; where ranks are
// apart, each has the squares of its own.
static inline Totals shards_totals(const Shards *z, const Totals *all, Scope scope) {
    int ranks = scope == ALL_RANKS ? z->size : 1;
    Totals sum = { 0.0, 0.0, 0.0, 0 };
    for (int r = 0; r < ranks; r++) {
        sum.loss += all[r].loss;
        sum.squares += all[r].squares;
        sum.smalls += all[r].smalls;
        if (scope == ALL_RANKS) sum.stop |= all[r].stop;
    }
    if (z->stage == 0) sum.squares = all[z->apart && ranks > 1 ? z->rank : 0].squares;
    return sum;
}

// The same on a CPU, which asks the other ranks for theirs.
static inline Totals shards_exchange_totals(const Shards *z, Totals own, Scope scope) {
    Totals all[COMM_MAX_RANKS];
    own.stop = *stop_signal();
    if (scope == ALL_RANKS && z->size > 1) comm_collect(z->comm, all, &own, sizeof own);
    else all[0] = own;
    return shards_totals(z, all, scope);
}

// ---- buckets for checkpoints: loading, drawing, saving ----

// A flat buffer of something kept; `slices`: this rank has its slices of it only.
typedef struct { float *data; bool slices; } Buffer;

static inline Buffer shards_buffer_of(const Shards *z, Kept what) {
    bool rounded = z->param_bytes < sizeof(float);
    Buffer b = { z->masters, z->stage >= (rounded ? 1 : 3) };
    if (what == KEPT_WEIGHTS) return b;
    b.data = what == KEPT_EXP_AVG ? z->adam_m : what == KEPT_EXP_AVG_SQ ? z->adam_v
                                                                        : z->outer_momentum;
    b.slices = z->stage >= 1;
    return b;
}

#if defined(COMM_ON_GPU)                               // dev/ranks/kernels.cu
static void shards_open(Shards *z);
static void shards_close(Shards *z);
static float *shards_place(Shards *z, Kept what, int bucket);
static void shards_take(Shards *z, Buffer b, int bucket);
static const float *shards_show(Shards *z, float *whole, int bucket);
static void shards_loaded(Shards *z);
#else
// After everything has been laid out: fills the table of chunks.
static inline void shards_open(Shards *z) {
    if (z->chunks) shards_chunks(z->chunks, z, SHARDS_CHUNK);
}

static inline void shards_close(Shards *z) { shards_free(z); }

// Where to write a whole bucket of z->file's; shards_keep() then keeps this rank's part.
static inline float *shards_place(Shards *z, Kept what, int bucket) {
    Buffer b = shards_buffer_of(z, what);
    return b.slices ? z->bucket : b.data + gpt2_bucket(&z->c, bucket).begin;
}

static inline void shards_take(Shards *z, Buffer b, int bucket) {
    Slice own = shards_own(z, bucket);
    if (b.slices)
        memcpy(b.data + shards_slices_begin(z, bucket), z->bucket + own.begin,
               own.count * sizeof(float));
}

static inline const float *shards_show(Shards *z, float *whole, int bucket) {
    (void)z, (void)bucket;
    return whole;
}

// All parameters have been placed and kept.
static inline void shards_loaded(Shards *z) { (void)z; }
#endif

static inline void shards_keep(Shards *z, Kept what, int bucket) {
    size_t bytes = gpt2_bucket(&z->file, bucket).count * sizeof(float);
    if (what == KEPT_WEIGHTS && z->size > 1)
        z->hash = hash_add(z->hash, shards_place(z, what, bucket), bytes);
    shards_take(z, shards_buffer_of(z, what), bucket);
}

// The elements of one bucket, whole, in the CPU's memory of rank 0, until the next call; all ranks
// call it together. Of moments that differ between DiLoCo's workers: those of `worker`, or their
// mean (-1). A Checkpoint's source (dev/files/checkpoint.h).
static inline const float *shards_get(void *shards, Kept what, int worker, int bucket) {
    Shards *z = (Shards *)shards;
    Range r = gpt2_bucket(&z->c, bucket);
    Buffer b = shards_buffer_of(z, what);
    float *whole = b.slices ? z->bucket : b.data + r.begin;
    bool of_workers = z->apart && z->size > 1 && (what == KEPT_EXP_AVG || what == KEPT_EXP_AVG_SQ);
    if (b.slices)
        comm_wait(z->comm, comm_all_gather(z->comm, z->bucket,
                                           b.data + shards_slices_begin(z, bucket), r.count,
                                           sizeof(float)));
    if (of_workers) {
        whole = z->bucket;
        floats_axpby(whole, 1.0f, b.data + r.begin, 0.0f, r.count, z->stream);
        comm_wait(z->comm, worker < 0 ? comm_mean(z->comm, whole, r.count, COMM_FP32)
                           : comm_broadcast(z->comm, whole, r.count * sizeof(float), worker));
    }
    return shards_show(z, whole, bucket);
}
