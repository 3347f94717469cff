// The variants of attention's kernels, which compute the same in other steps. Included by
// train_gpt2.cu behind them. The tuner times a kernel's variants at the shape of the run, and takes
// the fastest (tune.h).
//
// AT_ONCE decides the bits of the forward pass. The backward variants all add in the same order.

// A step of the forward pass in pieces of AT_ONCE keys. While the tensor cores compute the scores
// of a piece, other units compute the softmax of the piece before: nothing makes one wait for the
// other. Two pieces of scores are in registers at a time.
template <class V>
__device__ inline void attend_by_pieces(SoftmaxState<V> &w, const Fragment q[][V::D/16],
                                        const real *k_tile, const real *v_tile, int col, int row,
                                        float scale) {
    const int PIECES = V::STEP / V::AT_ONCE;
    Square s[2][V::AT_ONCE/16][V::M];
    scores<V>(s[0], q, k_tile);
    #pragma unroll
    for (int p = 0; p < PIECES; p++) {
        int c = p*V::AT_ONCE, next = c + V::AT_ONCE;
        if (p + 1 < PIECES) scores<V>(s[(p + 1) % 2], q, k_tile + next*V::LENGTH);
        mask_later<V>(s[p % 2], col + c, row);
        softmax_step<V>(s[p % 2], w.hi, w.sum, w.o, scale);
        accumulate<V>(w.o, s[p % 2], v_tile + c*V::LENGTH);
    }
}

// ---- the backward pass in two passes ----
// For few heads on a large GPU, which a block a head does not fill: a block owns ROWS keys, or ROWS
// queries. Both kernels compute p and ds, seven products in all, and all sums stay in registers.

// A block owns ROWS keys of one head, and queries stream past, from the first that sees a key on:
// dv += p^T dout, dk += ds^T q. Rows of p and ds are keys here, and columns are queries.
template <class V>
__global__ void __launch_bounds__(32*WARPS, V::BLOCKS)
attention_dk_dv_kernel(real *dqkv, const float2 *rows, const real *dout,
                       const real *qkv, int T, int C, int NH) {
    const int M = V::M, N = V::AT_ONCE/16, TILE = V::STEP*V::LENGTH;
    extern __shared__ __align__(16) real shared[];    // 2 (ROWS,LENGTH), STAGES (2 TILE, STEP rows)
    real *q_tiles = shared + 2*V::ROWS*V::LENGTH, *dout_tiles = q_tiles + V::STAGES*TILE;
    float2 *row_tiles = (float2 *)(dout_tiles + V::STAGES*TILE);
    Head head = head_of(qkv, T, C, NH);
    const real *d_o = dout + row_begin(T, C, NH);
    int HS = C / NH, row0 = blockIdx.y*V::ROWS;              // those with most queries first
    int warp = __shfl_sync(~0u, warp_in_block(), 0);         // so nvcc knows that lanes agree on it
    int row = row0 + warp*16*M;
    real *own = shared + (row - row0)*V::LENGTH;
    float scale = LOG2_E / sqrtf((float)HS);
    rows += (size_t)this_head()*T;
    auto load = [&](int stage, int col) {
        int i = threadIdx.x, t = col + i;
        tile_load<V, V::STEP>(q_tiles + stage*TILE, head.q, head.ld, col, T, HS);
        tile_load<V, V::STEP>(dout_tiles + stage*TILE, d_o, C, col, T, HS);
        if (i < V::STEP) copy_async<8>(row_tiles + stage*V::STEP + i, rows + min(t, T - 1), t < T);
    };
    tile_load<V, V::ROWS>(shared, head.k, head.ld, row0, T, HS);
    tile_load<V, V::ROWS>(shared + V::ROWS*V::LENGTH, head.v, head.ld, row0, T, HS);
    steps_begin<V>(row0, T, load);
    Fragment k[M][V::D/16], v[M][V::D/16];
    own_load<V>(k, own);
    own_load<V>(v, own + V::ROWS*V::LENGTH);
    Square dk[M][V::D/16] = {}, dv[M][V::D/16] = {};
    steps_pass<V>(row0, T, load, [&](int stage, int col) {
        int unseen = max(row - col, 0) / (16*N) * (16*N);    // queries before the warp's keys
        for (int c = unseen; c < V::STEP; c += 16*N) {
            int at = stage*V::STEP + c;
            const real *q_tile = q_tiles + at*V::LENGTH, *dout_tile = dout_tiles + at*V::LENGTH;
            const float2 *of_query = row_tiles + at;
            Square p[N][M], ds[N][M];
            scores<V>(p, k, q_tile);
            each_element<N, M>([&](int n, int m, int half, int i) {
                float &x = p[n][m].at(half, i), lse = of_query[lane_column(16*n, i)].x;
                bool seen = lane_column(col + c + 16*n, i) >= lane_row(row + 16*m, half);
                x = seen ? exp2_fast(x*scale - lse) : 0.0f;
            });
            accumulate<V>(dv, p, dout_tile);
            scores<V>(ds, v, dout_tile);
            each_element<N, M>([&](int n, int m, int half, int i) {
                float &x = ds[n][m].at(half, i), d = of_query[lane_column(16*n, i)].y;
                x = p[n][m].at(half, i) * (x - d);
            });
            accumulate<V>(dk, ds, q_tile);
        }
    });
    own_store<V>(dqkv + (head.k - qkv), head.ld, dk, scale * LN_2, own, row, 0, T, HS);
    own_store<V>(dqkv + (head.v - qkv), head.ld, dv, 1.0f, own + V::ROWS*V::LENGTH, row, 0, T, HS);
}

// The other way round: a block owns ROWS queries, and keys stream past, up to the last that a query
// sees: dq += ds k. Rows of p and ds are queries, and what is needed of a query stays in registers.
template <class V>
__global__ void __launch_bounds__(32*WARPS, V::BLOCKS)
attention_dq_kernel(real *dqkv, const float2 *rows, const real *dout,
                    const real *qkv, int T, int C, int NH) {
    const int M = V::M, N = V::AT_ONCE/16, TILE = V::STEP*V::LENGTH;
    extern __shared__ __align__(16) real shared[];           // 2 (ROWS,LENGTH), STAGES (2 TILE)
    real *k_tiles = shared + 2*V::ROWS*V::LENGTH, *v_tiles = k_tiles + V::STAGES*TILE;
    Head head = head_of(qkv, T, C, NH);
    int HS = C / NH, row0 = (gridDim.y - 1 - blockIdx.y) * V::ROWS;      // most keys first
    int warp = __shfl_sync(~0u, warp_in_block(), 0);
    int row = row0 + warp*16*M, end = min(row0 + V::ROWS, T);
    real *own = shared + (row - row0)*V::LENGTH;
    float scale = LOG2_E / sqrtf((float)HS);
    float2 of_query[M][2];
    rows += (size_t)this_head()*T;
    auto load = [&](int stage, int col) {
        tile_load<V, V::STEP>(k_tiles + stage*TILE, head.k, head.ld, col, T, HS);
        tile_load<V, V::STEP>(v_tiles + stage*TILE, head.v, head.ld, col, T, HS);
    };
    tile_load<V, V::ROWS>(shared, head.q, head.ld, row0, T, HS);
    tile_load<V, V::ROWS>(shared + V::ROWS*V::LENGTH, dout + row_begin(T, C, NH), C, row0, T, HS);
    for (int i = 0; i < 2*M; i++)
        of_query[i/2][i%2] = rows[min(lane_row(row + 16*(i/2), i%2), T - 1)];
    steps_begin<V>(0, end, load);
    Fragment q[M][V::D/16], d_o[M][V::D/16];
    own_load<V>(q, own);
    own_load<V>(d_o, own + V::ROWS*V::LENGTH);
    Square dq[M][V::D/16] = {};
    steps_pass<V>(0, end, load, [&](int stage, int col) {
        int seen = min(row + 16*M - col, V::STEP);           // columns up to the warp's last query
        for (int c = 0; c < seen; c += 16*N) {
            const real *k_tile = k_tiles + stage*TILE + c*V::LENGTH;
            Square p[N][M], ds[N][M];
            scores<V>(p, q, k_tile);
            each_element<N, M>([&](int n, int m, int half, int i) {
                float &x = p[n][m].at(half, i);
                bool seen = lane_column(col + c + 16*n, i) <= lane_row(row + 16*m, half);
                x = seen ? exp2_fast(x*scale - of_query[m][half].x) : 0.0f;
            });
            scores<V>(ds, d_o, v_tiles + stage*TILE + c*V::LENGTH);
            each_element<N, M>([&](int n, int m, int half, int i) {
                float &x = ds[n][m].at(half, i);
                x = p[n][m].at(half, i) * (x - of_query[m][half].y);
            });
            accumulate<V>(dq, ds, k_tile);
        }
    });
    own_store<V>(dqkv + (head.q - qkv), head.ld, dq, scale * LN_2, own, row, 0, T, HS);
}

// ---- launchers of a variant ----

// False, and nothing done, if this GPU has too little shared memory.
template <class Kernel, class... Arguments>
static bool tiles_launch(Kernel *kernel, dim3 blocks, int bytes, cudaStream_t stream,
                         Arguments... arguments) {
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)
        != cudaSuccess) return cudaGetLastError(), false;    // LAUNCH_CHECK would report it
    kernel<<<blocks, 32*WARPS, bytes, stream>>>(arguments...);
    LAUNCH_CHECK();
    return true;
}

template <class V>
static bool attention_forward_tiles(real *out, float *lse, const real *qkv,
                                    int B, int T, int first, int C, int NH, cudaStream_t stream) {
    dim3 blocks = heads_grid(B, T, NH, C/NH, blocks_for(T, V::ROWS) - first/V::ROWS);
    int bytes = (V::ROWS + 2*V::STAGES*V::STEP) * V::LENGTH * (int)sizeof(real);
    return tiles_launch(attention_forward_kernel<V>, blocks, bytes, stream,
                        out, lse, qkv, T, first, C, NH);
}

// One pass. *summed: whether x.sums has the sums of dqkv's rows.
template <class V>
static bool attention_backward_tiles(real *dqkv, AttentionScratch x, bool *summed,
                                     const real *dout, const real *qkv, int B, int T, int C,
                                     int NH, cudaStream_t stream) {
    *summed = true;
    dim3 blocks = heads_grid(B, T, NH, C/NH, 1);
    return tiles_launch(attention_backward_kernel<V>, blocks, (int)sizeof(BackwardTiles<V>), stream,
                        dqkv, x.dq, x.sums, x.rows, dout, qkv, T, C, NH);
}

template <class V>
static bool attention_two_passes(real *dqkv, AttentionScratch x, bool *summed, const real *dout,
                                 const real *qkv, int B, int T, int C, int NH,
                                 cudaStream_t stream) {
    int rows = V::ROWS + V::STAGES*V::STEP;
    int bytes = 2*rows*V::LENGTH * (int)sizeof(real) + V::STAGES*V::STEP * (int)sizeof(float2);
    dim3 blocks = heads_grid(B, T, NH, C/NH, blocks_for(T, V::ROWS));
    *summed = false;
    return tiles_launch(attention_dq_kernel<V>, blocks, bytes, stream,
                        dqkv, x.rows, dout, qkv, T, C, NH) &&
           tiles_launch(attention_dk_dv_kernel<V>, blocks, bytes, stream,
                        dqkv, x.rows, dout, qkv, T, C, NH);
}

// ---- the variants ----

// A list for heads of up to 32, 64 and 128 channels each. The first variant is the default, and is
// never changed; NULL ends the others. Whoever changes or moves one of the others raises
// VARIANTS_VERSION, so that older choices are not taken. README.md has their registers and shared
// memory.
#define FORWARD_TILES(...) attention_forward_tiles<Tile<__VA_ARGS__>>
#define BACKWARD_TILES(...) attention_backward_tiles<Tile<__VA_ARGS__>>
#define TWO_PASSES(...) attention_two_passes<Tile<__VA_ARGS__>>

enum { MAX_VARIANTS = 6, VARIANTS_VERSION = 2 };

// D, M, STEP, STAGES, AT_ONCE, BLOCKS (2)
typedef decltype(&FORWARD_TILES(64, 2, 64, 2, 64)) ForwardTiles;
static const ForwardTiles forward_variants[][MAX_VARIANTS] = {
    { FORWARD_TILES(32, 2, 64, 2, 64) },
    { FORWARD_TILES(64, 2, 64, 2, 64),
      FORWARD_TILES(64, 2, 64, 3, 64),           // three stages
      FORWARD_TILES(64, 1, 64, 2, 64, 3),        // fewer queries a warp, more warps
      FORWARD_TILES(64, 1, 64, 2, 32, 3),        // the next scores beside this softmax
      FORWARD_TILES(64, 1, 128, 2, 64) },        // longer steps, the next scores beside the softmax
    { FORWARD_TILES(128, 1, 32, 2, 32),
      FORWARD_TILES(128, 1, 32, 3, 32),          // three stages
      FORWARD_TILES(128, 1, 64, 2, 64),          // longer steps
      FORWARD_TILES(128, 1, 64, 2, 32) },        // and the next scores beside this softmax
};

typedef decltype(&BACKWARD_TILES(64, 2, 64, 2, 16)) BackwardLaunch;
static const BackwardLaunch backward_variants[][MAX_VARIANTS] = {
    { BACKWARD_TILES(32, 2, 64, 2, 16),
      TWO_PASSES(32, 2, 64, 2, 16) },
    { BACKWARD_TILES(64, 2, 64, 2, 16),
      BACKWARD_TILES(64, 2, 64, 3, 16),          // three stages
      TWO_PASSES(64, 2, 64, 2, 16),
      TWO_PASSES(64, 1, 64, 2, 16, 3) },         // fewer rows a warp, more warps
    { BACKWARD_TILES(128, 1, 32, 2, 16),
      BACKWARD_TILES(128, 1, 32, 3, 16),
      TWO_PASSES(128, 1, 32, 2, 16) },
};

// The variants for heads of HS channels.
template <class Tiles>
static const Tiles *variants_for(const Tiles variants[][MAX_VARIANTS], int HS) {
    return variants[HS <= 32 ? 0 : HS <= 64 ? 1 : 2];
}

template <class Tiles> static int variants_count(const Tiles *of) {
    int n = 0;
    while (n < MAX_VARIANTS && of[n]) n++;
    return n;
}

// Runs a kernel of attention, in the variant that was chosen for this shape.
template <class Tiles, class... Arguments>
static void attention_tiles(const Tiles variants[][MAX_VARIANTS], AttentionKernel kernel,
                            AttentionShape s, Gpu *g, Arguments... arguments) {
    const Tiles *of = variants_for(variants, s.HS);
    variant_run(kernel, s, VARIANTS_VERSION, variants_count(of), g,
                [&](int i) { return of[i](arguments...); });
}
