// Attention without tensor cores: any head size, fp32 or bf16. Part of train_gpt2.cu, which runs it
// with PRECISION=fp32, where heads are no multiple of 8 channels, and for the one new token of
// generation. The formulas are those in train_gpt2.cu; attention.cu has the ladder up to here.
//
// A block of 8 warps owns 8 rows, a row to a warp. The other side streams past, 32 rows at a time.
// A lane computes the score of one of those 32 rows, and then every 32nd channel of the sums.

enum { PLAIN_ROWS = 8, PLAIN_STEP = 32, PLAIN_CHANNELS = MAX_HS / 32 };
typedef enum { QUERIES, KEYS } Owned;
typedef float PlainRow[MAX_HS + 1];    // one more, so that 32 rows begin in 32 banks

// Rows row ... row+n-1 of T go to shared memory, zeros past the last.
__device__ inline void plain_load(PlainRow *tile, const real *x, size_t ld, int row, int n, int T,
                                  int HS) {
    for (int r = warp_in_block(); r < n; r += PLAIN_ROWS)
        for (int i = lane(); i < HS; i += 32)
            tile[r][i] = row + r < T ? (float)x[(size_t)(row + r)*ld + i] : 0.0f;
}

__device__ inline float plain_dot(const float *a, const float *b, int n) {
    float sum = 0.0f;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

// o, of which a lane has channels lane, lane+32, ..., += 32 weights times 32 rows
__device__ inline void plain_accumulate(float *o, const float *weights, const PlainRow *tile,
                                        int HS) {
    for (int c = 0; c < PLAIN_CHANNELS; c++)
        for (int j = 0; lane() + 32*c < HS && j < PLAIN_STEP; j++)
            o[c] += weights[j] * tile[j][lane() + 32*c];
}

__device__ inline void plain_store(real *row, const float *o, float scale, int HS) {
    for (int c = 0; c < PLAIN_CHANNELS; c++)
        if (lane() + 32*c < HS) row[lane() + 32*c] = (real)(o[c] * scale);
}

__global__ void attention_forward_plain_kernel(real *out, float *lse, const real *qkv,
                                               int T, int first, int C, int NH) {
    __shared__ PlainRow q[PLAIN_ROWS], k[PLAIN_STEP], v[PLAIN_STEP];
    __shared__ float p[PLAIN_ROWS][PLAIN_STEP];
    Head head = head_of(qkv, T, C, NH);
    int HS = C / NH, warp = warp_in_block(), row0 = first + blockIdx.y*PLAIN_ROWS, t = row0 + warp;
    float scale = LOG2_E / sqrtf((float)HS), hi = -INFINITY, sum = 0.0f, o[PLAIN_CHANNELS] = {0};
    plain_load(q, head.q, head.ld, row0, PLAIN_ROWS, T, HS);
    for (int t2 = 0; t2 < min(row0 + PLAIN_ROWS, T); t2 += PLAIN_STEP) {
        plain_load(k, head.k, head.ld, t2, PLAIN_STEP, T, HS);
        plain_load(v, head.v, head.ld, t2, PLAIN_STEP, T, HS);
        __syncthreads();                                     // what was loaded is there
        float score = plain_dot(q[warp], k[lane()], HS) * scale;
        if (t2 + lane() > t) score = -INFINITY;
        float new_hi = fmaxf(hi, warp_max(score)), shrink = exp2f(hi - new_hi);
        float weight = exp2f(score - new_hi);
        p[warp][lane()] = weight;
        hi = new_hi;
        sum = sum * shrink + warp_sum(weight);
        for (int c = 0; c < PLAIN_CHANNELS; c++) o[c] *= shrink;
        __syncwarp();                                        // the warp's weights are there
        plain_accumulate(o, p[warp], v, HS);
        __syncthreads();                                     // read, before it is overwritten
    }
    if (t >= T) return;
    plain_store(out + row_begin(T, C, NH) + (size_t)t*C, o, 1.0f / sum, HS);
    if (lane() == 0) lse[(size_t)this_head()*T + t] = (hi + log2f(sum)) * LN_2;
}

// x and y are what is owned, x2 and y2 what streams past: q, dout and k, v; or k, v and q, dout.
template <Owned OWNED>
__global__ void attention_backward_plain_kernel(real *dqkv, const float2 *rows, const real *dout,
                                                const real *qkv, int T, int C, int NH) {
    __shared__ PlainRow x[PLAIN_ROWS], y[PLAIN_ROWS], x2[PLAIN_STEP], y2[PLAIN_STEP];
    __shared__ float p[PLAIN_ROWS][PLAIN_STEP], ds[PLAIN_ROWS][PLAIN_STEP];
    const bool keys = OWNED == KEYS;
    auto [q, k, v, ld] = head_of(qkv, T, C, NH);
    const real *d_o = dout + row_begin(T, C, NH);
    int HS = C / NH, warp = warp_in_block(), row0 = blockIdx.y*PLAIN_ROWS, r = row0 + warp;
    float scale = LOG2_E / sqrtf((float)HS), dx[PLAIN_CHANNELS] = {0}, dy[PLAIN_CHANNELS] = {0};
    plain_load(x, keys ? k : q, ld, row0, PLAIN_ROWS, T, HS);
    plain_load(y, keys ? v : d_o, keys ? ld : C, row0, PLAIN_ROWS, T, HS);
    int begin = keys ? row0 : 0, end = keys ? T : min(row0 + PLAIN_ROWS, T);
    for (int t2 = begin; t2 < end; t2 += PLAIN_STEP) {
        plain_load(x2, keys ? q : k, ld, t2, PLAIN_STEP, T, HS);
        plain_load(y2, keys ? d_o : v, keys ? C : ld, t2, PLAIN_STEP, T, HS);
        __syncthreads();                                     // what was loaded is there
        int query = keys ? t2 + lane() : r, key = keys ? r : t2 + lane();
        bool in_sight = key <= query && query < T;
        float2 row = in_sight ? rows[(size_t)this_head()*T + query] : make_float2(0.0f, 0.0f);
        float score = plain_dot(x[warp], x2[lane()], HS) * scale;
        float weight = in_sight ? exp2f(score - row.x) : 0.0f;
        p[warp][lane()] = weight;
        ds[warp][lane()] = weight * (plain_dot(y[warp], y2[lane()], HS) - row.y);
        __syncwarp();                                        // the warp's weights are there
        plain_accumulate(dx, ds[warp], x2, HS);
        if (keys) plain_accumulate(dy, p[warp], y2, HS);
        __syncthreads();                                     // read, before it is overwritten
    }
    if (r >= T) return;
    real *drow = dqkv + (q - qkv) + r*ld;
    plain_store(drow + (keys ? C : 0), dx, scale * LN_2, HS);
    if (keys) plain_store(drow + 2*C, dy, 1.0f, HS);
}

static void attention_forward_plain(real *out, float *lse, const real *qkv, int B, int T, int first,
                                    int C, int NH, cudaStream_t stream) {
    dim3 blocks = heads_grid(B, T, NH, C/NH, blocks_for(T - first, PLAIN_ROWS));
    attention_forward_plain_kernel<<<blocks, 32*PLAIN_ROWS, 0, stream>>>(out, lse, qkv, T, first, C,
                                                                         NH);
    LAUNCH_CHECK();
}

static void attention_backward_plain(real *dqkv, const float2 *rows, const real *dout,
                                     const real *qkv, int B, int T, int C, int NH,
                                     cudaStream_t stream) {
    dim3 blocks = heads_grid(B, T, NH, C/NH, blocks_for(T, PLAIN_ROWS));
    for (auto *kernel : { attention_backward_plain_kernel<QUERIES>,
                          attention_backward_plain_kernel<KEYS> }) {
        kernel<<<blocks, 32*PLAIN_ROWS, 0, stream>>>(dqkv, rows, dout, qkv, T, C, NH);
        LAUNCH_CHECK();
    }
}

// ---- of both ways, plain and on tensor cores ----

// What the backward pass needs of each query: lse / ln 2, and d. A block owns 32 queries of one
// head, 8 lanes a query, a pack at a time. Heads whose HS is no multiple of a pack share packs: a
// lane skips the elements of other heads.
__global__ void attention_rows_kernel(float2 *rows, const real *dout, const real *out,
                                      const float *lse, int T, int C, int NH) {
    int HS = C / NH, head = this_head(), b = head / NH, begin = head % NH * HS, end = begin + HS;
    int t = blockIdx.y*32 + threadIdx.x/8;
    size_t row = ((size_t)b*T + t)*C, at = (size_t)head*T + t;
    float d = 0.0f, x[PACK], y[PACK];
    for (int c = begin/PACK*PACK + lane()%8*PACK; t < T && c < end; c += 8*PACK) {
        load(x, dout + row + c);
        load(y, out + row + c);
        for (int k = 0; k < PACK; k++) if (c + k >= begin && c + k < end) d += x[k] * y[k];
    }
    for (int i = 4; i > 0; i /= 2) d += __shfl_xor_sync(~0u, d, i);          // of the 8 lanes
    if (t < T && lane() % 8 == 0) rows[at] = make_float2(lse[at] * LOG2_E, d);
}

static void attention_rows(float2 *rows, const real *dout, const real *out, const float *lse, int B,
                           int T, int C, int NH, cudaStream_t stream) {
    dim3 blocks = heads_grid(B, T, NH, C/NH, blocks_for(T, 32));
    attention_rows_kernel<<<blocks, 32*8, 0, stream>>>(rows, dout, out, lse, T, C, NH);
    LAUNCH_CHECK();
}
