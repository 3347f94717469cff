// The kernels that serve ranks, the noise scale and DiLoCo: what dev/ranks/comm.c and params.c ask
// of a GPU. Part of train_gpt2.cu, which includes this file in its section "The GPU": packs, load,
// store, block_sum and LAUNCH_CHECK are defined there.

// ---- work on flat buffers: a CPU's loops in dev/ranks/params.c ----

void floats_clear(float *x, size_t n, Stream stream) {
    CUDA_CHECK(cudaMemsetAsync(x, 0, n * sizeof *x, stream));
}

// y = a x + b y; if b is 0 whatever stood in y is forgotten. One rounding where b is 1, as on a
// CPU. Thread i owns pack i.
__global__ void axpby_kernel(float *y, float a, const float *x, float b, size_t n) {
    size_t i = thread_in_grid() * PACK;
    if (i >= n) return;
    float from[PACK], to[PACK] = {0};
    load(from, x + i);
    if (b != 0.0f) load(to, y + i);
    for (int k = 0; k < PACK; k++)
        to[k] = b == 0.0f ? a * from[k] : b == 1.0f ? fmaf(a, from[k], to[k])
                                                    : fmaf(b, to[k], a * from[k]);
    store(y + i, to);
}

// Here and below n is a multiple of a pack, as every bucket is long.
void floats_axpby(float *y, float a, const float *x, float b, size_t n, Stream stream) {
    assert(n % PACK == 0);
    axpby_kernel<<<blocks_for(n, 256*PACK), 256, 0, stream>>>(y, a, x, b, n);
    LAUNCH_CHECK();
}

// Block k adds the squares of piece k of x to squares[k], in double precision; with v in Adam's
// metric.
__global__ void measure_kernel(double *squares, const float *x, const float *v, float correct_v,
                               float eps, size_t n) {
    size_t begin = (size_t)blockIdx.x*PARAMS_MEASURED, end = begin + PARAMS_MEASURED;
    double square = 0.0;
    if (end > n) end = n;
    for (size_t i = begin + threadIdx.x*PACK; i < end; i += blockDim.x*PACK) {
        float g[PACK], vi[PACK];
        load(g, x + i);
        if (v) load(vi, v + i);
        for (int k = 0; k < PACK; k++)
            square += v ? (double)(g[k] / (sqrtf(vi[k] * correct_v) + eps) * g[k])
                        : (double)g[k] * g[k];
    }
    square = block_sum(square);
    if (threadIdx.x == 0) squares[blockIdx.x] += square;
}

// The norm's p->partials += the sums of the squares of x's (n) pieces, those of all buckets one
// after the other, in the order of the launches.
void floats_measure(Params *p, Norms norm, const float *x, const float *v, size_t n) {
    assert(n % PACK == 0);
    measure_kernel<<<blocks_for(n, PARAMS_MEASURED), 256, 0, p->stream>>>(
        p->partials + norm*params_partials_count(p), x, v, p->correct_v, ADAM_EPS, n);
    LAUNCH_CHECK();
}

// ---- floats that other ranks have sent: what dev/ranks/comm.c asks of a GPU ----

// W elements side by side, T a float or the 16 bits of a bf16: a thread's share. It is moved 16
// bytes at a time where it begins at a multiple of 16. The last elements of a buffer go one by one,
// and all of them where buffers begin anywhere else.
template <class T, int W> struct alignas(W == 1 ? sizeof(T) : 16) Share { T x[W]; };

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(uint16_t x) { return bf16_widen(x); }

typedef struct { const void *x[COMM_MAX_RANKS]; } Terms;

// out = scale * (the sum of so many terms), or += that, for elements begin ... end-1, whole shares:
// thread i owns share i. It adds up as tree_sum of dev/ranks/tree.h does, and gives the same bits.
// Loops over levels are unrolled, so that these stay in registers.
template <class T, int W>
__global__ void tree_sum_kernel(float *out, Terms from, int terms, float scale, CommMode mode,
                                size_t begin, size_t end) {
    enum { LEVELS = 9 };
    static_assert(1 << (LEVELS - 1) >= COMM_MAX_RANKS, "a level for each bit of the count");
    size_t i = begin + thread_in_grid()*W;
    if (i >= end) return;
    float levels[LEVELS][W] = {}, sum[W] = {};
    for (int k = 0; k < terms; k++) {
        Share<T, W> term = *(const Share<T, W> *)((const T *)from.x[k] + i);
        for (int w = 0; w < W; w++) sum[w] = widen(term.x[w]);
        int level = tree_level((uint64_t)k);
        #pragma unroll
        for (int l = 0; l < LEVELS; l++) {
            if (l < level) for (int w = 0; w < W; w++) sum[w] = levels[l][w] + sum[w];
            if (l == level) for (int w = 0; w < W; w++) levels[l][w] = sum[w];
        }
    }
    int merged = tree_level((uint64_t)terms - 1);        // the last one is in `sum`
    #pragma unroll
    for (int l = 1; l < LEVELS; l++)
        if (l > merged && terms >> l & 1)
            for (int w = 0; w < W; w++) sum[w] = levels[l][w] + sum[w];
    Share<float, W> *to = (Share<float, W> *)(out + i), result = {};
    if (mode == COMM_ADD) result = *to;
    for (int w = 0; w < W; w++)
        result.x[w] = mode == COMM_ADD ? result.x[w] + scale*sum[w] : scale*sum[w];
    *to = result;
}

template <class T, int W>
static void tree_sum_launch(float *out, Terms from, int terms, float scale, CommMode mode,
                            size_t begin, size_t end, cudaStream_t stream) {
    if (begin == end) return;
    tree_sum_kernel<T, W><<<blocks_for((end - begin) / W, 256), 256, 0, stream>>>(
        out, from, terms, scale, mode, begin, end);
    LAUNCH_CHECK();
}

static bool begins_a_pack(const void *p) { return (uintptr_t)p % 16 == 0; }

template <class T>
static void tree_sum_of(float *out, const void *const *x, int terms, float scale, CommMode mode,
                        size_t n, cudaStream_t stream) {
    enum { W = 16 / sizeof(T) };
    Terms from;
    bool packs = begins_a_pack(out);
    for (int k = 0; k < terms; k++) {
        from.x[k] = x[k];
        packs = packs && begins_a_pack(x[k]);
    }
    size_t packed = packs ? n / W * W : 0;
    tree_sum_launch<T, W>(out, from, terms, scale, mode, 0, packed, stream);
    tree_sum_launch<T, 1>(out, from, terms, scale, mode, packed, n, stream);
}

// The GPU's tree_sum.
void comm_sum_terms(float *out, const void *const *x, int terms, float scale, CommType type,
                    CommMode mode, size_t n, Stream stream) {
    if (type == COMM_FP32) tree_sum_of<float>(out, x, terms, scale, mode, n, stream);
    else tree_sum_of<uint16_t>(out, x, terms, scale, mode, n, stream);
}

__device__ inline void convert(float *to, uint16_t from) { *to = bf16_widen(from); }
__device__ inline void convert(uint16_t *to, float from) { *to = bf16_narrow(from); }

// Thread i owns share i.
template <class To, class From, int W>
__global__ void convert_kernel(To *out, const From *x, size_t n) {
    size_t i = thread_in_grid();
    if (i*W >= n) return;
    Share<From, W> from = ((const Share<From, W> *)x)[i];
    Share<To, W> to;
    for (int w = 0; w < W; w++) convert(&to.x[w], from.x[w]);
    ((Share<To, W> *)out)[i] = to;
}

template <class To, class From>
static void convert_all(To *out, const From *x, size_t n, cudaStream_t stream) {
    size_t packs = begins_a_pack(out) && begins_a_pack(x) ? n / 8 : 0, rest = n - 8*packs;
    if (packs > 0) {
        convert_kernel<To, From, 8><<<blocks_for(packs, 256), 256, 0, stream>>>(out, x, 8*packs);
        LAUNCH_CHECK();
    }
    if (rest > 0) {
        convert_kernel<To, From, 1><<<blocks_for(rest, 256), 256, 0, stream>>>(out + 8*packs,
                                                                               x + 8*packs, rest);
        LAUNCH_CHECK();
    }
}

void comm_narrow(uint16_t *out, const float *x, size_t n, Stream stream) {
    convert_all(out, x, n, stream);
}
void comm_widen(float *out, const uint16_t *x, size_t n, Stream stream) {
    convert_all(out, x, n, stream);
}

#ifndef PRECISION_FP32
// tp_sum of activations in bf16: terms are rounded to bf16, and so is their fp32 sum.
void tp_sum(const TpGroup *group, real *x, size_t n) {
    if (group->size > 1)
        comm_wait(group->comm, comm_all_reduce_bf16(group->comm, (uint16_t *)x, n));
}
#endif

// ---- buckets between the CPU's memory and the GPU's: for loading, drawing, saving ----

void params_open(Params *p) {
    CUDA_CHECK(cudaMallocHost((void **)&p->host_bucket,
                              gpt2_largest_bucket(&p->file) * sizeof(float)));
    size_t whole = gpt2_largest_bucket(&p->tp.whole) * sizeof(float);
    if (p->tp.size > 1) p->whole = (float *)alloc_or_die(whole, "a bucket of the whole model");
    if (!p->chunks) return;
    size_t bytes = p->n_chunks * sizeof *p->chunks;
    Chunk *chunks = (Chunk *)alloc_or_die(bytes, "a table of chunks");
    params_chunks(chunks, p, PARAMS_CHUNK);
    CUDA_CHECK(cudaMemcpyAsync(p->chunks, chunks, bytes, cudaMemcpyHostToDevice, p->stream));
    CUDA_CHECK(cudaStreamSynchronize(p->stream));
    free(chunks);
}

void params_close(Params *p) {
    params_free(p);
    CUDA_CHECK(cudaFreeHost(p->host_bucket));
    free(p->whole);
}

// Slice s of a bucket on the GPU, from or to the whole bucket on the CPU, which has no rows that
// pad the vocabulary: behind those, its elements lie further on. Waits until it is done.
static void bucket_copy(float *on_gpu, float *on_cpu, int bucket, Slice s, const Params *p,
                        cudaMemcpyKind direction) {
    size_t whole = gpt2_bucket(&p->c, bucket).count, C = p->c.C;
    size_t padding = whole - gpt2_bucket(&p->file, bucket).count;
    size_t words = padding > 0 ? p->file.V*C : whole;
    Slice spans[] = { { 0, words }, { words + padding, whole - words - padding } };
    for (Slice span : spans) {
        size_t begin = span.begin > s.begin ? span.begin : s.begin;
        size_t end = min_size(span.begin + span.count, s.begin + s.count);
        if (begin >= end) continue;
        float *there = on_gpu + begin - s.begin, *here = on_cpu + begin;
        if (span.begin > 0) here -= padding;
        bool up = direction == cudaMemcpyHostToDevice;
        CUDA_CHECK(cudaMemcpyAsync(up ? there : here, up ? here : there,
                                   (end - begin) * sizeof *here, direction, p->stream));
    }
    CUDA_CHECK(cudaStreamSynchronize(p->stream));
}

float *bucket_place_own(Params *p, Kept what, int bucket) {
    (void)what, (void)bucket;
    return p->host_bucket;
}

void bucket_take(Params *p, Buffer b, int bucket) {
    bucket_copy(b.data + params_own_begin(p, bucket, b.slices), p->host_bucket, bucket,
                params_own(p, bucket), p, cudaMemcpyHostToDevice);
}

const float *bucket_show(Params *p, float *whole, int bucket) {
    Slice all = { 0, gpt2_bucket(&p->c, bucket).count };
    if (p->rank == 0) bucket_copy(whole, p->host_bucket, bucket, all, p, cudaMemcpyDeviceToHost);
    return p->host_bucket;
}

// What layers read, after the masters have been filled: this rank rounds what it owns, and gathers
// the rest from the other ranks.
void params_loaded(Params *p) {
    Buffer masters = kept_buffer(p, KEPT_WEIGHTS);
    for (int b = 0; b < gpt2_n_buckets(&p->c) && sizeof(real) < sizeof(float); b++)
        comm_narrow((uint16_t *)p->values + params_own_begin(p, b, p->stage == 3),
                    masters.data + params_own_begin(p, b, masters.slices),
                    params_own(p, b).count, p->stream);
    zero_send_params(p);
}
