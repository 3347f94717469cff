// The classifier cut across the ranks of a tensor group, on a GPU: part of train_gpt2.cu, after its
// layers. dev/ranks/tensor.c has the picture. A rank has Vn words. Tokens arrive as rows of this
// rank's wte: -1 is another rank's word.

// What the kernels cannot do.
static void shared_check(const TpGroup *group) {
    int channels = tp_channels(group);
    if (channels % PACK != 0)
        die("--tensor-parallel: %d channels a rank, no multiple of %d, the numbers that a GPU "
            "moves at once in " PRECISION, channels, PACK);
}

// ---- cross-entropy ----
// Each rank has the logits of its own words, and sends three numbers a row. From these every rank
// computes the same loss, bit for bit, and then the gradient of its own logits.

// What a rank knows of a row; at_target is the target's logit, or 0. Without words: -FLT_MAX, 0, 0.
typedef struct { float hi, sum, at_target; } RowPart;

// Block n owns row n.
__global__ void __launch_bounds__(XENT_THREADS, XENT_BLOCKS)
xent_part_kernel(RowPart *parts, const real *logits, const int *target, int V, int Vp) {
    size_t n = blockIdx.x;
    LogitRow row(logits + n*Vp, NULL, 0, Vp);                // read once: nothing need wait
    Softmax s = row_softmax(row, V, Vp);
    if (threadIdx.x == 0)
        parts[n] = { s.hi, s.sum, target[n] < 0 ? 0.0f : (float)row.from[target[n]] };
}

// Row n of all (ranks,N) parts, in the order of the ranks. Other maxima only scale their sums.
__device__ inline RowPart parts_merge(const RowPart *parts, int ranks, size_t n, size_t N) {
    RowPart whole = { -FLT_MAX, 0.0f, 0.0f };
    for (int r = 0; r < ranks; r++) whole.hi = fmaxf(whole.hi, parts[r*N + n].hi);
    for (int r = 0; r < ranks; r++) {
        RowPart part = parts[r*N + n];
        whole.sum += part.sum * __expf(part.hi - whole.hi);
        whole.at_target += part.at_target;
    }
    return whole;
}

// Block n owns row n. As xent_kernel, from the parts of all ranks.
__global__ void __launch_bounds__(XENT_THREADS, XENT_BLOCKS)
xent_shared_kernel(float *loss, float *lse, real *dlogits, const real *logits, const int *target,
                   const float *scale, const RowPart *parts, int ranks, int V, int Vp) {
    size_t n = blockIdx.x;
    RowPart whole = parts_merge(parts, ranks, n, gridDim.x);
    float log_sum = whole.hi + logf(whole.sum);
    if (threadIdx.x == 0) {
        lse[n] = log_sum;
        loss[n] = log_sum - whole.at_target;     // -log p(target)
    }
    if (!dlogits) return;
    LogitRow row(logits + n*Vp, NULL, 0, Vp);
    row_gradient(dlogits + n*Vp, row, log_sum, target[n], *scale, V, Vp);
}

static void xent_part(RowPart *parts, const real *logits, const int *target, size_t N, int V,
                      int Vp, cudaStream_t stream) {
    xent_part_kernel<<<(unsigned)N, XENT_THREADS, 0, stream>>>(parts, logits, target, V, Vp);
    LAUNCH_CHECK();
}

static void xent_from_parts(float *loss, float *lse, real *dlogits, const real *logits,
                            const int *target, const float *scale, const RowPart *parts, int ranks,
                            size_t N, int V, int Vp, cudaStream_t stream) {
    xent_shared_kernel<<<(unsigned)N, XENT_THREADS, 0, stream>>>(
        loss, lse, dlogits, logits, target, scale, parts, ranks, V, Vp);
    LAUNCH_CHECK();
}

// Rows whose parts, of all ranks, fit in the scratch memory.
static size_t xent_shared_rows(const TpGroup *group) {
    return SCRATCH_FLOATS * sizeof(float) / (group->size * sizeof(RowPart));
}

// As xent_launch, for ranks of which each has the logits of V words of its own.
static void tp_xent_launch(float *loss, float *lse, real *dlogits, const real *logits,
                           const int *target, const float *scale, const TpGroup *group, size_t N,
                           int V, int Vp, Gpu *g) {
    RowPart *all = (RowPart *)g->scratch, *own = all + group->index*N;
    xent_part(own, logits, target, N, V, Vp, g->stream);
    if (group->size > 1) tp_collect(group, &all->hi, &own->hi, 3*N);
    xent_from_parts(loss, lse, dlogits, logits, target, scale, all, group->size, N, V, Vp,
                    g->stream);
}
