// Tensor parallelism on a GPU: the layers that the ranks of a group share, each of which sends
// something (dev/ranks/tensor.h). Part of train_gpt2.cu, which includes this file behind the
// cross-entropy of whole rows. A group of one rank runs the layers of train_gpt2.cu.
//
//     shared_check                  whether the GPU can do a rank's share
//     tokens_shared                 tokens, as rows of this rank's part of wte
//     linear_residual_shared        a linear layer, cut by rows, and the residual
//     xent_shared                   cross-entropy, cut by vocabulary

// What the kernels cannot do.
static void shared_check(const TpGroup *group) {
    int channels = tp_channels(group);
    if (channels % PACK != 0)
        die("--tensor-parallel: %d channels a rank, no multiple of %d, the numbers that a GPU "
            "moves at once in " PRECISION, channels, PACK);
}

// Each token as a row of this rank's part of wte, a column of its logits; -1: another rank has it.
static void tokens_shared(int *rows, const int *tokens, size_t N, const TpGroup *group) {
    for (size_t n = 0; n < N; n++) rows[n] = tp_row(group, tokens[n]);
}

// out = x w + b + skip. A rank has some rows of w and those columns of x, so x w is a term of a
// sum. The kernel that adds the residual adds b, after the sum.
static void linear_residual_shared(real *out, const real *skip, const real *x, const real *w,
                                   const real *b, size_t N, int C, int OC,
                                   const TpGroup *group, Gpu *g) {
    if (group->size == 1) return linear_residual_forward(out, skip, x, w, b, N, C, OC, g);
    matmul(out, OC, rows_of(x, C), rows_of(w, OC), plain, N, OC, C, WRITE, g);
    tp_sum(group, out, N*OC);
    bias_forward_kernel<<<blocks_for(N*OC, 256*PACK), 256, 0, g->stream>>>(out, b, skip, N*OC, OC);
    LAUNCH_CHECK();
}

// ---- cross-entropy ----
// Each rank has the logits of its own words, and sends three numbers a row. From these every rank
// computes the same loss, bit for bit, and then the gradient of its own logits.

// What a rank knows of a row; at_target is the target's logit, or 0. Without words: -FLT_MAX, 0, 0.
typedef struct { float hi, sum, at_target; } RowPart;

// Block n owns row n.
__global__ void __launch_bounds__(1024)
xent_part_kernel(RowPart *parts, const real *logits, const int *target, int V, int Vp) {
    size_t n = blockIdx.x;
    Packs packs = { (int)threadIdx.x*PACK, (int)blockDim.x*PACK, Vp };
    Row<XENT_KEPT> row(logits + n*Vp, packs);
    Softmax s = row_softmax(row, packs, V);
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
__global__ void __launch_bounds__(1024)
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
    Packs packs = { (int)threadIdx.x*PACK, (int)blockDim.x*PACK, Vp };
    Row<XENT_KEPT> row(logits + n*Vp, packs);
    row_gradient(dlogits + n*Vp, row, packs, log_sum, target[n], *scale, V);
}

static void xent_part(RowPart *parts, const real *logits, const int *target, size_t N, int V,
                      int Vp, cudaStream_t stream) {
    xent_part_kernel<<<(unsigned)N, xent_threads(Vp), 0, stream>>>(parts, logits, target, V, Vp);
    LAUNCH_CHECK();
}

static void xent_from_parts(float *loss, float *lse, real *dlogits, const real *logits,
                            const int *target, const float *scale, const RowPart *parts, int ranks,
                            size_t N, int V, int Vp, cudaStream_t stream) {
    xent_shared_kernel<<<(unsigned)N, xent_threads(Vp), 0, stream>>>(
        loss, lse, dlogits, logits, target, scale, parts, ranks, V, Vp);
    LAUNCH_CHECK();
}

// Rows whose parts, of all ranks, fit in the scratch memory.
static size_t xent_shared_rows(const TpGroup *group) {
    return SCRATCH_FLOATS * sizeof(float) / (group->size * sizeof(RowPart));
}

// The loss of N rows; and with dlogits, which may be the logits' own memory, the gradient of
// loss * *scale.
static void xent_shared(float *loss, float *lse, real *dlogits, const real *logits,
                        const int *target, const float *scale, size_t N, int V, int Vp,
                        const TpGroup *group, Gpu *g) {
    if (group->size == 1)
        return xent_launch(loss, lse, dlogits, logits, target, scale, N, V, Vp, g->stream);
    RowPart *all = (RowPart *)g->scratch, *own = all + group->index*N;
    xent_part(own, logits, target, N, V, Vp, g->stream);
    tp_collect(group, &all->hi, &own->hi, 3*N);
    xent_from_parts(loss, lse, dlogits, logits, target, scale, all, group->size, N, V, Vp,
                    g->stream);
}
