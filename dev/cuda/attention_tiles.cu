// Attention on tensor cores, in bf16, for heads of a multiple of 8 channels: what train_gpt2.cu, of
// which this is a part, does plainly, with 64 or 128 rows a block in place of 8. attention.cu has
// the ladder from there to here.

// ---- products in registers (FlashAttention-2, Dao 2023, arXiv 2307.08691) ----
// mma multiplies a 16x16 by a 16x8 matrix, spread over the registers of a warp. "5:1" stands for
// register 1 of lane 5. A register holds one fp32 of C, or two bf16 of A or B.
//
//       A (16,16)                          B (16,8)                      C (16,8)
//            k=0,1  2,3 ..  8,9 .. 14,15         n=0   1  ..   7             n=0   1    2  ..   7
//       m=0   0:0   1:0     0:2     3:2    k=0,1  0:0  4:0    28:0      m=0   0:0  0:1  1:0    3:1
//       m=1   4:0   5:0     4:2     7:2    k=2,3  1:0  5:0    29:0      m=1   4:0  4:1  5:0    7:1
//        :                                   :                           :
//       m=7  28:0  29:0    28:2    31:2    k=6,7  3:0  7:0    31:0      m=7  28:0 28:1 29:0   31:1
//       m=8   0:1   1:1     0:3     3:3    k=8,9  0:1  4:1    28:1      m=8   0:2  0:3  1:2    3:3
//        :                                   :                           :
//       m=15 28:1  29:1    28:3    31:3    14,15  3:1  7:1    31:1      m=15 28:2 28:3 29:2   31:3
//
// Two C side by side, rounded to bf16, have the layout of an A. So the weights, and in the backward
// pass p and ds, go from the first product to the second without leaving the registers.
//
// A warp owns M squares of 16 rows, a block has four warps. The limits on Hopper: a multiprocessor
// does an mma.sync in about 1.6 clocks (wgmma, which other architectures lack, takes two thirds of
// that), and loads its right operand from shared memory in 2 clocks. With M = 2 one load serves two
// products, and the tensor cores are the limit. Next come the exponentials; both overlap, as two
// blocks share a multiprocessor (128 threads of at most 255 registers each). A row in shared memory
// is 16 bytes longer than its channels: so the 8 rows that ldmatrix reads lie in different banks.
// Loops here have constant bounds, and nvcc unrolls them: registers cannot be indexed.
enum {
    WARPS = 4,                         // of a block
    BLOCKS = 2,                        // on a multiprocessor, which limits a thread's registers
    STAGES = 3,                        // steps in shared memory: one in use, two under way
};

// How a block divides its work, for heads of up to D channels.
template <int D_, int M_, int STEP_> struct Tile {
    enum {
        D = D_, M = M_,
        ROWS = 16*M*WARPS,             // that a block owns
        STEP = STEP_,                  // that stream past between two barriers
        LENGTH = D + 8,                // of a row in shared memory
    };
};
typedef Tile<32, 2, 64> Tile32;
typedef Tile<64, 2, 64> Tile64;        // GPT-2's heads
typedef Tile<128, 1, 32> Tile128;

// What a lane holds of two C side by side, 16x16: four elements in each of two rows. If the square
// begins at (row, column), element i of row `half` stands at (lane_row, lane_column).
struct Square {
    float c[2][4];
    __device__ float &at(int half, int i) { return c[i/2][2*half + i%2]; }
    __device__ float at(int half, int i) const { return c[i/2][2*half + i%2]; }
};
__device__ inline int lane_row(int row, int half) { return row + 8*half + lane()/4; }
__device__ inline int lane_column(int column, int i) {
    return column + i/2*8 + lane()%4*2 + i%2;
}

// Calls body(n, m, half, i) for each element that a lane holds of N x M squares.
template <int N, int M, class Body> __device__ inline void each_element(Body body) {
    for (int n = 0; n < N; n++)
        for (int m = 0; m < M; m++)
            for (int half = 0; half < 2; half++)
                for (int i = 0; i < 4; i++) body(n, m, half, i);
}

__device__ inline Fragment rounded(const Square &s) {        // as an A
    Fragment f;
    for (int i = 0; i < 4; i++) {
        __nv_bfloat162 two = __floats2bfloat162_rn(s.at(i%2, i/2*2), s.at(i%2, i/2*2 + 1));
        memcpy(&f.x[i], &two, sizeof two);
    }
    return f;
}

// A fragment of 16x16 elements that lie in shared memory in rows of `length`: an A whose rows they
// are; two B whose columns or rows they are.
__device__ inline Fragment load_a(const real *x, int length) {
    return load_matrices<false>(x + lane()%16*length + lane()/16*8);
}
__device__ inline Fragment load_b_of_columns(const real *x, int length) {
    return load_matrices<false>(x + (lane()/16*8 + lane()%8)*length + lane()/8%2*8);
}
__device__ inline Fragment load_b_of_rows(const real *x, int length) {
    return load_matrices<true>(x + lane()%16*length + lane()/16*8);
}

// Reductions over the four lanes that share the rows of a result.
__device__ inline float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ inline float quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

// Starts to copy ROWS rows of one head from `row` on, each HS of D channels; zeros past the edges,
// which change no product.
template <class V, int ROWS>
__device__ inline void tile_load(real *tile, const real *x, unsigned ld, int row, int T, int HS) {
    const int CHUNKS = V::D/8, AT_ONCE = 32*WARPS / CHUNKS;  // of 16 bytes in a row; rows
    int c = threadIdx.x % CHUNKS * 8;
    #pragma unroll (V::D > 64 ? 1 : ROWS / AT_ONCE)          // wide heads leave no registers
    for (int i = 0; i < ROWS; i += AT_ONCE) {
        int r = i + threadIdx.x / CHUNKS, t = row + r;
        copy_async<16>(tile + r*V::LENGTH + c, x + (min(t, T - 1)*ld + min(c, HS - 8)),
                       t < T && c < HS);
    }
}

// A warp's own rows, from shared memory to registers, where they stay.
template <class V> __device__ inline void own_load(Fragment own[][V::D/16], const real *tile) {
    for (int m = 0; m < V::M; m++)
        for (int i = 0; i < V::D/16; i++)
            own[m][i] = load_a(tile + 16*m*V::LENGTH + 16*i, V::LENGTH);
}

// s (16M,16N) = own rows (16M,D) times 16N rows of a tile, transposed
template <class V, int N>
__device__ inline void scores(Square (&s)[N][V::M], const Fragment own[][V::D/16],
                              const real *tile) {
    for (int n = 0; n < N; n++) {
        for (int m = 0; m < V::M; m++) s[n][m] = {};
        for (int i = 0; i < V::D/16; i++) {
            Fragment f = load_b_of_columns(tile + 16*n*V::LENGTH + 16*i, V::LENGTH);
            for (int m = 0; m < V::M; m++) {
                mma(s[n][m].c[0], own[m][i], f.x);
                mma(s[n][m].c[1], own[m][i], f.x + 2);
            }
        }
    }
}

// o (16M,D) += weights (16M,16N), rounded to bf16, times 16N rows of a tile
template <class V, int N>
__device__ inline void accumulate(Square o[][V::D/16], const Square (&weights)[N][V::M],
                                  const real *tile) {
    for (int n = 0; n < N; n++) {
        Fragment w[V::M];
        for (int m = 0; m < V::M; m++) w[m] = rounded(weights[n][m]);
        for (int i = 0; i < V::D/16; i++) {
            Fragment f = load_b_of_rows(tile + 16*n*V::LENGTH + 16*i, V::LENGTH);
            for (int m = 0; m < V::M; m++) {
                mma(o[m][i].c[0], w[m], f.x);
                mma(o[m][i].c[1], w[m], f.x + 2);
            }
        }
    }
}

// Stores a warp's results to rows `row` ... of x, as far as these lie in first ... T-1. They pass
// through the shared memory of the warp's own rows, so that each lane then writes 16 bytes.
template <class V>
__device__ inline void own_store(real *x, size_t ld, const Square o[][V::D/16], float scale,
                                 real *own, int row, int first, int T, int HS) {
    const int CHUNKS = V::D/8, AT_ONCE = 32 / CHUNKS;
    each_element<V::D/16, V::M>([&](int n, int m, int half, int i) {
        real *to = own + lane_row(16*m, half)*V::LENGTH + lane_column(16*n, i);
        float x = o[m][n].at(half, i) * scale, next = o[m][n].at(half, i | 1) * scale;
        if (i % 2 == 0) *(__nv_bfloat162 *)to = __floats2bfloat162_rn(x, next);
    });
    __syncwarp();                                            // the rows are whole
    int c = lane() % CHUNKS * 8;
    for (int i = 0; i < 16*V::M; i += AT_ONCE) {
        int r = i + lane() / CHUNKS;
        if (row + r >= first && row + r < T && c < HS)
            *(Packed<real> *)(x + (row + r)*ld + c) = *(Packed<real> *)(own + r*V::LENGTH + c);
    }
}

// The online softmax over 16N more keys: scores s become weights 2^((s - hi) scale), and the sums
// so far are scaled to the new hi. A lane sums only its own columns; quads are added at the end.
template <class V, int N>
__device__ inline void softmax_step(Square (&s)[N][V::M], float hi[][2], float sum[][2],
                                    Square o[][V::D/16], float scale) {
    for (int m = 0; m < V::M; m++)
        for (int half = 0; half < 2; half++) {               // one of the lane's rows
            float top = hi[m][half], added = 0.0f;
            for (int n = 0; n < N; n++)
                for (int i = 0; i < 4; i++) top = fmaxf(top, s[n][m].at(half, i));
            top = quad_max(top);
            float shrink = exp2_fast((hi[m][half] - top) * scale), shift = top * scale;
            for (int n = 0; n < N; n++)
                for (int i = 0; i < 4; i++) {
                    float &x = s[n][m].at(half, i);
                    x = exp2_fast(x * scale - shift);
                    added += x;
                }
            hi[m][half] = top;
            sum[m][half] = sum[m][half] * shrink + added;
            for (int n = 0; n < V::D/16; n++)
                for (int i = 0; i < 4; i++) o[m][n].at(half, i) *= shrink;
        }
}

// ---- steps: what streams past a block ----
// STAGES tiles of STEP rows are in shared memory: one in use, the others on their way.
// load(stage, col) starts the copies of the tile at column `col` of the scores.

template <class V, class Load>
__device__ inline void step_load(int stage, int col, int end, Load load) {
    if (col < end) load(stage, col);
    copy_async_commit();                                     // empty groups keep the count
}

// Starts the first steps. On return the first is there, with what was on its way before: the
// block's own rows.
template <class V, class Load>
__device__ inline void steps_begin(int begin, int end, Load load) {
    for (int i = 0; i < STAGES - 1; i++) step_load<V>(i, begin + i*V::STEP, end, load);
    copy_async_wait<STAGES - 2>();
    __syncthreads();                                         // everybody's copies are there
}

// Calls body(stage, col) for each step from `begin` to before `end`.
template <class V, class Load, class Body>
__device__ inline void steps_pass(int begin, int end, Load load, Body body) {
    const int LAST = STAGES - 1;
    for (int col = begin, now = 0; col < end; col += V::STEP, now = now < LAST ? now + 1 : 0) {
        copy_async_wait<LAST - 1>();
        __syncthreads();     // this tile is there, and the last has been read: it may be filled
        step_load<V>(now > 0 ? now - 1 : LAST, col + LAST*V::STEP, end, load);
        body(now, col);
    }
}

// ---- forward ----

// Scores of keys that come after their query become -infinity.
template <class V, int N>
__device__ inline void mask_later(Square (&s)[N][V::M], int col, int row) {
    if (col + 16*N - 1 <= row) return;                       // all keys are in sight
    each_element<N, V::M>([&](int n, int m, int half, int i) {
        bool late = lane_column(col + 16*n, i) > lane_row(row + 16*m, half);
        if (late) s[n][m].at(half, i) = -INFINITY;
    });
}

// What a lane keeps of its queries. hi and sum are those of its two rows in each square.
template <class V> struct SoftmaxState {
    float hi[V::M][2], sum[V::M][2];
    Square o[V::M][V::D/16];
};

// A step's keys, from `col` on: scores become weights, and weights times values are added to o.
template <class V>
__device__ inline void attend(SoftmaxState<V> &w, const Fragment q[][V::D/16], const real *k_tile,
                              const real *v_tile, int col, int row, float scale) {
    Square s[V::STEP/16][V::M];
    scores<V>(s, q, k_tile);
    mask_later<V>(s, col, row);
    softmax_step<V>(s, w.hi, w.sum, w.o, scale);
    accumulate<V>(w.o, s, v_tile);
}

// o becomes out, and what backward needs of each query goes to lse (T).
template <class V>
__device__ inline void softmax_end(SoftmaxState<V> &w, float *lse, int row, int first, int T,
                                  float scale) {
    for (int m = 0; m < V::M; m++)
        for (int half = 0; half < 2; half++) {
            int t = lane_row(row + 16*m, half);
            float total = quad_sum(w.sum[m][half]), share = 1.0f / total;
            for (int n = 0; n < V::D/16; n++)
                for (int i = 0; i < 4; i++) w.o[m][n].at(half, i) *= share;
            if (lane() % 4 == 0 && t >= first && t < T)
                lse[t] = (w.hi[m][half] * scale + log2f(total)) * LN_2;
        }
}

template <class V>
__global__ void __launch_bounds__(32*WARPS, BLOCKS)
attention_forward_kernel(real *out, float *lse, const real *qkv, int T, int first, int C, int NH) {
    const int TILE = V::STEP*V::LENGTH;
    extern __shared__ __align__(16) real shared[];      // (ROWS,LENGTH), 2 x STAGES (STEP,LENGTH)
    real *k_tiles = shared + V::ROWS*V::LENGTH, *v_tiles = k_tiles + STAGES*TILE;
    Head head = head_of(qkv, T, C, NH);
    int HS = C / NH;
    int row0 = (first/V::ROWS + gridDim.y - 1 - blockIdx.y) * V::ROWS;   // most keys first
    int row = row0 + warp_in_block()*16*V::M, end = min(row0 + V::ROWS, T);
    real *own = shared + (row - row0)*V::LENGTH;
    float scale = LOG2_E / sqrtf((float)HS);
    auto load = [&](int stage, int col) {
        tile_load<V, V::STEP>(k_tiles + stage*TILE, head.k, head.ld, col, T, HS);
        tile_load<V, V::STEP>(v_tiles + stage*TILE, head.v, head.ld, col, T, HS);
    };
    tile_load<V, V::ROWS>(shared, head.q, head.ld, row0, T, HS);
    steps_begin<V>(0, end, load);
    Fragment q[V::M][V::D/16];
    own_load<V>(q, own);
    SoftmaxState<V> w = {};
    for (int m = 0; m < V::M; m++) w.hi[m][0] = w.hi[m][1] = -INFINITY;
    steps_pass<V>(0, end, load, [&](int stage, int col) {
        const real *k_tile = k_tiles + stage*TILE, *v_tile = v_tiles + stage*TILE;
        if (col >= row + 16*V::M) return;                    // nothing in sight of this warp
        attend<V>(w, q, k_tile, v_tile, col, row, scale);
    });
    softmax_end<V>(w, lse + (size_t)this_head()*T, row, first, T, scale);
    own_store<V>(out + row_begin(T, C, NH), C, w.o, 1.0f, own, row, first, T, HS);
}

// ---- backward ----
// Two kernels: one with a block for ROWS keys, which sums dk and dv, one with a block for ROWS
// queries, which sums dq. Both compute p and ds, seven products in all where five would do: but all
// sums stay in registers, and no block waits for another or adds to what another wrote.

// A block owns ROWS keys of one head, and queries stream past, from the first that sees a key on:
// dv += p^T dout, dk += ds^T q. Rows of p and ds are keys here, and columns are queries.
template <class V>
__global__ void __launch_bounds__(32*WARPS, BLOCKS)
attention_dk_dv_kernel(real *dqkv, const float2 *rows, const real *dout,
                       const real *qkv, int T, int C, int NH) {
    const int M = V::M, TILE = V::STEP*V::LENGTH;
    extern __shared__ __align__(16) real shared[];    // 2 (ROWS,LENGTH), STAGES (2 TILE, STEP rows)
    real *q_tiles = shared + 2*V::ROWS*V::LENGTH, *dout_tiles = q_tiles + STAGES*TILE;
    float2 *row_tiles = (float2 *)(dout_tiles + STAGES*TILE);
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
        for (int c = max(row - col, 0); c < V::STEP; c += 16) {      // no query before its keys
            int at = stage*V::STEP + c;
            const real *q_tile = q_tiles + at*V::LENGTH, *dout_tile = dout_tiles + at*V::LENGTH;
            const float2 *of_query = row_tiles + at;
            Square p[1][M], ds[1][M];
            scores<V>(p, k, q_tile);
            each_element<1, M>([&](int n, int m, int half, int i) {
                float &x = p[n][m].at(half, i), lse = of_query[lane_column(0, i)].x;
                bool seen = lane_column(col + c, i) >= lane_row(row + 16*m, half);
                x = seen ? exp2_fast(x*scale - lse) : 0.0f;
            });
            accumulate<V>(dv, p, dout_tile);
            scores<V>(ds, v, dout_tile);
            each_element<1, M>([&](int n, int m, int half, int i) {
                float &x = ds[n][m].at(half, i), d = of_query[lane_column(0, i)].y;
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
__global__ void __launch_bounds__(32*WARPS, BLOCKS)
attention_dq_kernel(real *dqkv, const float2 *rows, const real *dout,
                    const real *qkv, int T, int C, int NH) {
    const int M = V::M, TILE = V::STEP*V::LENGTH;
    extern __shared__ __align__(16) real shared[];           // 2 (ROWS,LENGTH), STAGES (2 TILE)
    real *k_tiles = shared + 2*V::ROWS*V::LENGTH, *v_tiles = k_tiles + STAGES*TILE;
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
        for (int c = 0; c < seen; c += 16) {
            const real *k_tile = k_tiles + stage*TILE + c*V::LENGTH;
            Square p[1][M], ds[1][M];
            scores<V>(p, q, k_tile);
            each_element<1, M>([&](int n, int m, int half, int i) {
                float &x = p[n][m].at(half, i);
                bool seen = lane_column(col + c, i) <= lane_row(row + 16*m, half);
                x = seen ? exp2_fast(x*scale - of_query[m][half].x) : 0.0f;
            });
            scores<V>(ds, d_o, v_tiles + stage*TILE + c*V::LENGTH);
            each_element<1, M>([&](int n, int m, int half, int i) {
                float &x = ds[n][m].at(half, i);
                x = p[n][m].at(half, i) * (x - of_query[m][half].y);
            });
            accumulate<V>(dq, ds, k_tile);
        }
    });
    own_store<V>(dqkv + (head.q - qkv), head.ld, dq, scale * LN_2, own, row, 0, T, HS);
}

// ---- launchers, by the size of a head ----

template <class V>
static void attention_forward_tiles(real *out, float *lse, const real *qkv,
                                    int B, int T, int first, int C, int NH, cudaStream_t stream) {
    dim3 blocks = heads_grid(B, T, NH, C/NH, blocks_for(T, V::ROWS) - first/V::ROWS);
    size_t bytes = (V::ROWS + 2*STAGES*V::STEP) * V::LENGTH * sizeof(real);
    allow_shared(attention_forward_kernel<V>, bytes);
    attention_forward_kernel<V><<<blocks, 32*WARPS, bytes, stream>>>(out, lse, qkv, T, first, C,
                                                                     NH);
    LAUNCH_CHECK();
}

template <class V>
static void attention_backward_tiles(real *dqkv, const float2 *rows, const real *dout,
                                     const real *qkv, int B, int T, int C, int NH,
                                     cudaStream_t stream) {
    size_t tiles = 2*(V::ROWS + STAGES*V::STEP) * V::LENGTH * sizeof(real);
    dim3 blocks = heads_grid(B, T, NH, C/NH, blocks_for(T, V::ROWS));
    for (auto *kernel : { attention_dq_kernel<V>, attention_dk_dv_kernel<V> }) {
        size_t bytes = tiles + STAGES*V::STEP * sizeof(float2);
        allow_shared(kernel, bytes);
        kernel<<<blocks, 32*WARPS, bytes, stream>>>(dqkv, rows, dout, qkv, T, C, NH);
        LAUNCH_CHECK();
    }
}
