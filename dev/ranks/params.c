// Params: the flat buffers of weights, gradients and moments; where each bucket lies in them, what
// they take of memory, and how checkpoints fill and read them (ranks.h).
#include "ranks.h"

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
    for (int i = 0; i < PARAMS_SLOTS; i++) p->held[i] = -1;
    p->arrives = (Ticket *)alloc_or_die(gpt2_n_buckets(&p->c) * sizeof *p->arrives, "tickets");
}

void params_free(Params *p) {
    for (int i = 0; i < PARAMS_SLOTS; i++) comm_wait(p->comm, p->leaves[i]);
    for (int b = 0; b < gpt2_n_buckets(&p->c); b++) comm_wait(p->comm, p->arrives[b]);
    free(p->arrives);
}

int params_slot(const Params *p, int bucket) {
    return bucket == 0 ? 0 : bucket > p->c.L ? 1 : 2 + bucket % 2;
}

Slice params_own(const Params *p, int bucket) {
    size_t count = gpt2_bucket(&p->c, bucket).count;
    if (p->stage == 0) return comm_slice(count, 0, 1);
    return comm_slice(count, p->rank, p->size);
}

// The offset of a bucket's slice in a buffer of slices: the same on each rank.
static size_t slices_begin(const Params *p, int bucket) {
    size_t at = 0;
    for (int b = 0; b < bucket; b++)
        at += comm_slice(gpt2_bucket(&p->c, b).count, 0, p->size).count;
    return at;
}

size_t params_own_begin(const Params *p, int bucket, bool slices) {
    if (slices) return slices_begin(p, bucket);
    return gpt2_bucket(&p->c, bucket).begin + params_own(p, bucket).begin;
}

void *bucket_at(const Params *p, int bucket, Flat flat) {
    size_t begin = gpt2_bucket(&p->c, bucket).begin;
    int slot = params_slot(p, bucket);
    if (flat == PARAMS)
        return p->stage < 3 ? p->values + begin*p->param_bytes : p->gathered[slot];
    if (p->small) return p->small + begin;
    return p->stage < 2 ? p->grads + begin : p->collected[slot];
}

// ---- memory ----

static size_t buffer_count(const Params *p, bool slices) {
    return slices ? slices_begin(p, gpt2_n_buckets(&p->c)) : gpt2_n_params(&p->c);
}

// Capacity of a slot, in elements.
static size_t params_slot_count(const Params *p, int slot) {
    int bucket = slot == 0 ? 0 : slot == 1 ? p->c.L + 1 : 1;
    return gpt2_bucket(&p->c, bucket).count;
}

size_t params_partials_count(const Params *p) {
    return (gpt2_largest_bucket(&p->c) + PARAMS_MEASURED - 1) / PARAMS_MEASURED;
}

int params_chunks(Chunk *chunks, const Params *p, int largest) {
    int n = 0, bucket = 0;
    for (int i = 0; i < gpt2_n_tensors(&p->c); i++) {
        if (i == gpt2_bucket_tensor(&p->c, bucket + 1)) bucket++;
        Tensor t = gpt2_tensor(&p->c, i);
        Slice own = params_own(p, bucket);
        size_t whole = gpt2_bucket(&p->c, bucket).begin, slices = slices_begin(p, bucket);
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
    p->values = (char *)memory_take(mem, MEM_PARAMS, buffer_count(p, p->stage == 3) * p->param_bytes);
    p->masters = (float *)p->values;
    if (rounded) p->masters = memory_floats(mem, MEM_PARAMS, buffer_count(p, p->stage >= 1));
    for (int i = 0; i < PARAMS_SLOTS && p->stage == 3; i++)
        p->gathered[i] = (char *)memory_take(mem, MEM_PASSING,
                                             params_slot_count(p, i) * p->param_bytes);
}

void params_carve_training(Params *p, Memory *mem) {
    size_t n = gpt2_n_params(&p->c), partials = params_partials_count(p) * sizeof(double);
    size_t moments = buffer_count(p, p->stage >= 1);
    p->n_grads = buffer_count(p, p->stage >= 2);
    p->grads = p->levels[0] = memory_floats(mem, MEM_GRADS, p->n_grads);
    for (int l = 1; l < p->n_levels; l++) p->levels[l] = memory_floats(mem, MEM_GRADS, n);
    // Gradient accumulation on one rank would add each micro-batch's gradient to the others. To
    // measure it, the rank computes it in a buffer of its own.
    if (p->measure && p->size == 1 && p->n_levels == 0) p->small = memory_floats(mem, MEM_GRADS, n);
    if (p->measure) p->partials = (double *)memory_take(mem, MEM_REST, N_NORMS * partials);
    for (int i = 0; i < PARAMS_SLOTS && p->stage >= 2; i++)
        p->collected[i] = memory_floats(mem, MEM_PASSING, params_slot_count(p, i));
    if (!p->sgd) p->adam_m = memory_floats(mem, MEM_MOMENTS, moments);
    if (!p->sgd) p->adam_v = memory_floats(mem, MEM_MOMENTS, moments);
    if (p->averages) p->average = memory_floats(mem, MEM_AVERAGE, moments);
    p->n_chunks = params_chunks(NULL, p, PARAMS_CHUNK);
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

// p->norms[norm] += the sum of the squares of x (n); if v is not NULL in Adam's metric: the sum of
// x^2 / (sqrt(v) + eps), with v corrected for its start at zero.
void floats_measure(Params *p, Norms norm, const float *x, const float *v, size_t n) {
    size_t pieces = (n + PARAMS_MEASURED - 1) / PARAMS_MEASURED;
    #pragma omp parallel for
    for (size_t k = 0; k < pieces; k++) {
        size_t begin = k*PARAMS_MEASURED, end = min_size(n, begin + PARAMS_MEASURED);
        double sum = 0.0;
        if (v) {
            #pragma omp simd reduction(+:sum)
            for (size_t i = begin; i < end; i++)
                sum += x[i] / (sqrtf(v[i] * p->correct_v) + ADAM_EPS) * x[i];
        } else {
            #pragma omp simd reduction(+:sum)
            for (size_t i = begin; i < end; i++) sum += (double)x[i] * x[i];
        }
        p->partials[k] = sum;
    }
    for (size_t k = 0; k < pieces; k++) p->norms[norm] += p->partials[k];    // the same bits
}
#endif

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
    if (p->chunks) params_chunks(p->chunks, p, PARAMS_CHUNK);
}

void params_close(Params *p) { params_free(p); }

// Buffer for a whole bucket in the shapes of p->file, of which bucket_take() keeps this rank's
// slice.
float *bucket_place_own(Params *p, Kept what, int bucket) {
    Buffer b = kept_buffer(p, what);
    return b.slices ? p->bucket : b.data + gpt2_bucket(&p->c, bucket).begin;
}

void bucket_take(Params *p, Buffer b, int bucket) {
    Slice own = params_own(p, bucket);
    if (b.slices)
        memcpy(b.data + slices_begin(p, bucket), p->bucket + own.begin,
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

void params_draw(Params *p, uint64_t seed) {
    for (int b = 0; b < gpt2_n_buckets(&p->tp.whole); b++) {
        gpt2_init_bucket(bucket_place(p, KEPT_WEIGHTS, b), &p->tp.whole, b, seed);
        bucket_keep(p, KEPT_WEIGHTS, b);
    }
    params_loaded(p);
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
                                           b.data + slices_begin(p, bucket), r.count,
                                           sizeof(float)));
    if (of_workers && worker != 0) {
        size_t bytes = r.count * sizeof(float);
        float *own = whole;
        whole = p->bucket;
        if (worker < 0) floats_axpby(whole, 1.0f, own, 0.0f, r.count, p->stream);
        comm_wait(p->comm, worker < 0 ? comm_mean(p->comm, whole, r.count, COMM_FP32)
                                      : comm_fetch(p->comm, whole, own, bytes, worker));
    }
    return p->tp.size > 1 ? bucket_join(p, whole, bucket) : bucket_show(p, whole, bucket);
}
