// Causal self-attention, forward and backward, rung by rung: lesson 7 for a GPU.
//
//     make ladder OP=attention
//
// Forward has T*(T+1)/2 pairs of a query and a key a head, and two products of HS multiply-adds a
// pair; backward has five. The weights of all pairs are far more numbers than q, k and v: the first
// rung keeps them in memory, all others never do. From there on each rung uses a number more often
// once it has been fetched: from memory, from the L2 cache, from shared memory. The comments quote
// counts at T=256.
//
// Heads have up to 64 channels here, a multiple of 8. T is arbitrary: edges are part of the idea.
#include "ladder.cu"                   // Rung, Result, ladder_climb, ladder_main

struct Shape { int B, T, NH, HS; };

struct Data {
    real *out;                         // (B,T,C)
    float *lse;                        // (B,NH,T)
    real *dqkv;                        // (B,T,3C)
    float *db;                         // (3C) += the sum of dqkv's rows: the trainer alone does it
    const real *qkv, *dout;            // (B,T,3C) (B,T,C)
    float *weights;                    // (B,NH,T,T) of the first rung
    float2 *rows;                      // (B,NH,T) lse / ln 2, and dout . out: the trainer's
    float *dq;                         // (B,T,C) what one pass adds up
    int B, T, C, NH, HS;
};

// The block's head. q, k and v of token t are `ld`*t further on.
__device__ inline Head head_of(const Data &d) { return head_of(d.qkv, d.T, d.C, d.NH); }

// The row of token t of this block's head, in an array (B,T,C).
template <class T> __device__ inline T *row_of(T *x, const Data &d, int t) {
    return x + ((size_t)(this_head() / d.NH)*d.T + t)*d.C + this_head() % d.NH * d.HS;
}

static dim3 blocks_of(const Data *d, int rows) {
    return heads_grid(d->B, d->T, d->NH, d->HS, blocks_for(d->T, rows));
}

// =================================================================================================
// Forward
// =================================================================================================

// Three kernels: scores, softmax, values, each as its formula says. The scores of all pairs go to
// memory and come back, twice: this is the only rung whose bytes grow with T^2. And the 32 lanes of
// a warp read 32 different keys, 3C elements apart: each lane asks for a sector of its own. Five
// times the bytes of memory, nine times those of the L2 cache, of the next rung.
__global__ void scores_kernel(Data d) {
    Head x = head_of(d);
    int key_tiles = (d.T + 31) / 32;
    int t = blockIdx.y / key_tiles * 8 + threadIdx.y;
    int t2 = blockIdx.y % key_tiles * 32 + threadIdx.x;
    if (t >= d.T || t2 > t) return;
    float score = 0.0f;
    for (int i = 0; i < d.HS; i++) score += (float)x.q[t*x.ld + i] * (float)x.k[t2*x.ld + i];
    d.weights[((size_t)this_head()*d.T + t)*d.T + t2] = score / sqrtf((float)d.HS);
}

__global__ void softmax_kernel(Data d) {                     // warp t owns row t
    int t = blockIdx.y*8 + warp_in_block();
    if (t >= d.T) return;
    float *row = d.weights + ((size_t)this_head()*d.T + t)*d.T, hi = -INFINITY, sum = 0.0f;
    for (int t2 = lane(); t2 <= t; t2 += 32) hi = fmaxf(hi, row[t2]);
    hi = warp_max(hi);
    for (int t2 = lane(); t2 <= t; t2 += 32) sum += row[t2] = expf(row[t2] - hi);
    sum = warp_sum(sum);
    for (int t2 = lane(); t2 <= t; t2 += 32) row[t2] /= sum;
    if (lane() == 0) d.lse[(size_t)this_head()*d.T + t] = hi + logf(sum);
}

__global__ void values_kernel(Data d) {                      // warp t owns row t
    Head x = head_of(d);
    int t = blockIdx.y*8 + warp_in_block();
    if (t >= d.T) return;
    const float *row = d.weights + ((size_t)this_head()*d.T + t)*d.T;
    for (int i = lane(); i < d.HS; i += 32) {
        float sum = 0.0f;
        for (int t2 = 0; t2 <= t; t2++) sum += row[t2] * (float)x.v[t2*x.ld + i];
        row_of(d.out, d, t)[i] = (real)sum;
    }
}

static void three_kernels(const Data *d, Gpu *g) {
    dim3 rows = blocks_of(d, 8), pairs(rows.x, rows.y * blocks_for(d->T, 32), rows.z);
    scores_kernel<<<pairs, dim3(32, 8), 0, g->stream>>>(*d);
    LAUNCH_CHECK();
    softmax_kernel<<<rows, 256, 0, g->stream>>>(*d);
    LAUNCH_CHECK();
    values_kernel<<<rows, 256, 0, g->stream>>>(*d);
    LAUNCH_CHECK();
}

// Online softmax: warp t owns query t, and its lanes own channels. The keys stream past; lesson 7
// derives why hi, sum and o are all that must be kept. The weights are never stored, and loads are
// coalesced. The price: the dot product of each pair is summed across the lanes, in five shuffles,
// where three kernels took ten for a whole row. And each query reads all its keys and values anew.
__global__ void online_kernel(Data d) {
    Head x = head_of(d);
    int t = blockIdx.y*8 + warp_in_block();
    if (t >= d.T) return;
    float q[PLAIN_CHANNELS], o[PLAIN_CHANNELS] = {0}, hi = -INFINITY, sum = 0.0f;
    for (int c = 0, i = lane(); c < PLAIN_CHANNELS; c++, i += 32)
        q[c] = i < d.HS ? (float)x.q[t*x.ld + i] / sqrtf((float)d.HS) : 0.0f;
    for (int t2 = 0; t2 <= t; t2++) {
        float score = 0.0f;
        for (int c = 0, i = lane(); c < PLAIN_CHANNELS; c++, i += 32)
            if (i < d.HS) score += q[c] * (float)x.k[t2*x.ld + i];
        score = warp_sum(score);
        float new_hi = fmaxf(hi, score), shrink = expf(hi - new_hi), p = expf(score - new_hi);
        hi = new_hi;
        sum = sum * shrink + p;
        for (int c = 0, i = lane(); c < PLAIN_CHANNELS; c++, i += 32)
            if (i < d.HS) o[c] = o[c] * shrink + p * (float)x.v[t2*x.ld + i];
    }
    plain_store(row_of(d.out, d, t), o, 1.0f / sum, d.HS);
    if (lane() == 0) d.lse[(size_t)this_head()*d.T + t] = hi + logf(sum);
}

static void online_softmax(const Data *d, Gpu *g) {
    online_kernel<<<blocks_of(d, 8), 256, 0, g->stream>>>(*d);
    LAUNCH_CHECK();
}

// Shared tiles: attention_forward_plain_kernel, which the trainer runs in fp32. A block of 8
// queries copies 32 keys and values to shared memory, where all 8 use them: a seventh of the bytes
// from the L2 cache. A lane now computes a whole score, so that the shuffles are those of one
// maximum and one sum for 32 keys. Shared memory is the next limit: two loads a multiply-add.
static void shared_tiles(const Data *d, Gpu *g) {
    attention_forward_plain_kernel<<<blocks_of(d, PLAIN_ROWS), 32*PLAIN_ROWS, 0, g->stream>>>(
        d->out, d->lse, d->qkv, d->T, 0, d->C, d->NH);
    LAUNCH_CHECK();
}

#ifndef PRECISION_FP32
// ---- on tensor cores: the names are those of the trainer's section on attention ----

// Copies ROWS rows of one head from `row` on through registers; zeros past the edges.
template <class V, int ROWS>
__device__ inline void tile_copy(real *tile, const real *x, size_t ld, int row, const Data &d) {
    const int CHUNKS = V::D/8;                   // of 16 bytes in a row
    for (int i = threadIdx.x; i < ROWS*CHUNKS; i += 32*WARPS) {
        int r = i / CHUNKS, c = i % CHUNKS * 8;
        Packed<real> pack = {};
        if (row + r < d.T && c < d.HS) pack = *(const Packed<real> *)(x + (row + r)*ld + c);
        *(Packed<real> *)(tile + r*V::LENGTH + c) = pack;
    }
}

// What a warp keeps of its 16M queries, which begin at `row`.
template <class V> struct Online {
    Fragment q[V::M][V::D/16];
    Square o[V::M][V::D/16];
    float hi[V::M][2], sum[V::M][2], scale;      // a lane sums the columns that it holds
    int row;
};

template <class V>
__device__ inline void online_begin(Online<V> *w, const real *q_tile, int row0, const Data &d) {
    *w = {};
    for (int m = 0; m < V::M; m++) w->hi[m][0] = w->hi[m][1] = -INFINITY;
    w->row = row0 + warp_in_block()*16*V::M;
    w->scale = LOG2_E / sqrtf((float)d.HS);
    own_load<V>(w->q, q_tile + (w->row - row0)*V::LENGTH);
}

// The keys and values col ... col+STEP-1.
template <class V>
__device__ inline void online_step(Online<V> *w, const real *k_tile, const real *v_tile, int col) {
    if (col >= w->row + 16*V::M) return;         // nothing in sight of this warp
    Square s[V::STEP/16][V::M];
    scores<V>(s, w->q, k_tile);
    each_element<V::STEP/16, V::M>([&](int n, int m, int half, int i) {
        bool late = lane_column(col + 16*n, i) > lane_row(w->row + 16*m, half);
        if (late) s[n][m].at(half, i) = -INFINITY;
    });
    softmax_step<V>(s, w->hi, w->sum, w->o, w->scale);
    accumulate<V>(w->o, s, v_tile);
}

template <class V> __device__ inline void online_end(Online<V> *w, const Data &d) {
    for (int m = 0; m < V::M; m++)
        for (int half = 0; half < 2; half++) {
            int t = lane_row(w->row + 16*m, half);
            float total = quad_sum(w->sum[m][half]), share = 1.0f / total;
            if (t >= d.T) continue;
            for (int n = 0; n < V::D/16; n++)
                for (int i = 0; i < 4; i += 2) {             // two neighbours at a time
                    int c = lane_column(16*n, i);
                    const Square &o = w->o[m][n];
                    if (c < d.HS) *(__nv_bfloat162 *)(row_of(d.out, d, t) + c)
                        = __floats2bfloat162_rn(o.at(half, i) * share, o.at(half, i + 1) * share);
                }
            if (lane() % 4 == 0)
                d.lse[(size_t)this_head()*d.T + t]
                    = (w->hi[m][half] * w->scale + log2f(total)) * LN_2;
        }
}

// Tensor cores: a warp owns 16 queries, a block 64; 64 keys at a time. Scores, weights and outputs
// stay in registers, in the layouts that mma wants. A block has eight times as many queries, so the
// L2 cache delivers a fifth of the bytes. An ldmatrix loads 256 elements, which serve 4096
// multiply-adds: shared memory takes a seventh of the clocks. It could be a 45th. Rows of 64
// channels are 128 bytes, all 32 banks: the 8 rows that ldmatrix reads at once begin in the same
// bank, and take turns.
template <class V>
__global__ void __launch_bounds__(32*WARPS, BLOCKS) tensor_kernel(Data d) {
    extern __shared__ __align__(16) real shared[];           // (ROWS,LENGTH), 2 (STEP,LENGTH)
    real *k_tile = shared + V::ROWS*V::LENGTH, *v_tile = k_tile + V::STEP*V::LENGTH;
    Head x = head_of(d);
    int row0 = blockIdx.y*V::ROWS;
    Online<V> w;
    tile_copy<V, V::ROWS>(shared, x.q, x.ld, row0, d);
    __syncthreads();                                         // the queries are there
    online_begin(&w, shared, row0, d);
    for (int col = 0; col < min(row0 + V::ROWS, d.T); col += V::STEP) {
        tile_copy<V, V::STEP>(k_tile, x.k, x.ld, col, d);
        tile_copy<V, V::STEP>(v_tile, x.v, x.ld, col, d);
        __syncthreads();                                     // the tiles are there
        online_step(&w, k_tile, v_tile, col);
        __syncthreads();                                     // read, before they are overwritten
    }
    online_end(&w, d);
}

// stages: steps of keys and values in shared memory.
template <class V>
static void tensor_launch(void (*kernel)(Data), int stages, const Data *d, Gpu *g) {
    size_t bytes = (V::ROWS + 2*stages*V::STEP) * V::LENGTH * sizeof(real);
    allow_shared(kernel, bytes);
    kernel<<<blocks_of(d, V::ROWS), 32*WARPS, bytes, g->stream>>>(*d);
    LAUNCH_CHECK();
}

typedef Tile<64, 1, 64> OneRow;                  // D, M, STEP
struct Unpadded : OneRow { enum { LENGTH = D }; };

static void tensor_cores(const Data *d, Gpu *g) {
    tensor_launch<Unpadded>(tensor_kernel<Unpadded>, 1, d, g);
}

// Padded rows: the same kernel, rows 16 bytes longer. Eight rows now begin in eight different
// places of the banks, and an ldmatrix of 512 bytes takes the 4 clocks it needs, not 32.
static void padded_rows(const Data *d, Gpu *g) {
    tensor_launch<OneRow>(tensor_kernel<OneRow>, 1, d, g);
}

// cp.async, two stages: the next tiles are on their way, past the registers, while these are in
// use. One barrier a step in place of two: it says that this tile is there and that the other has
// been read. Whether the wait for memory is gone, only a clock shows.
template <class V>
__global__ void __launch_bounds__(32*WARPS, BLOCKS) staged_kernel(Data d) {
    extern __shared__ __align__(16) real shared[];           // (ROWS,LENGTH), 2x2 (STEP,LENGTH)
    real *k_tiles = shared + V::ROWS*V::LENGTH, *v_tiles = k_tiles + 2*V::STEP*V::LENGTH;
    Head x = head_of(d);
    int row0 = blockIdx.y*V::ROWS, end = min(row0 + V::ROWS, d.T);
    Online<V> w;
    auto start = [&](int stage, int col) {
        if (col >= end) return;
        tile_load<V, V::STEP>(k_tiles + stage*V::STEP*V::LENGTH, x.k, x.ld, col, d.T, d.HS);
        tile_load<V, V::STEP>(v_tiles + stage*V::STEP*V::LENGTH, x.v, x.ld, col, d.T, d.HS);
        copy_async_commit();
    };
    tile_load<V, V::ROWS>(shared, x.q, x.ld, row0, d.T, d.HS);
    start(0, 0);
    for (int col = 0, now = 0; col < end; col += V::STEP, now = 1 - now) {
        copy_async_wait<0>();
        __syncthreads();     // this tile is there, and the other has been read: it may be filled
        if (col == 0) online_begin(&w, shared, row0, d);
        start(1 - now, col + V::STEP);
        online_step(&w, k_tiles + now*V::STEP*V::LENGTH, v_tiles + now*V::STEP*V::LENGTH, col);
    }
    online_end(&w, d);
}

static void async_copies(const Data *d, Gpu *g) {
    tensor_launch<OneRow>(staged_kernel<OneRow>, 2, d, g);
}

// Two rows of tiles: a warp owns 32 queries, a block 128. What ldmatrix loads of a key now serves
// two mma, and a tile of keys serves twice as many queries: 0.56 of the clocks of shared memory,
// 3/4 of the bytes from the L2 cache (1/2 at large T). But there are half as many blocks, and a
// thread needs nearly all the registers that it can have.
typedef Tile<64, 2, 64> TwoRows;
static void two_rows(const Data *d, Gpu *g) {
    tensor_launch<TwoRows>(staged_kernel<TwoRows>, 2, d, g);
}
#endif

// The trainer's: the same tiles, three stages of them. Blocks with the most keys start first, so
// that no long one is left at the end; only tiles on the diagonal are masked; and results pass
// through shared memory, so that a lane stores 16 bytes where it stored 4 and wasted half of a
// sector. That takes 13% more clocks of shared memory, and a sixth of the bytes from the L2 cache
// goes. In fp32 it is the rung with shared tiles.
static void trainers_forward(const Data *d, Gpu *g) {
    attention_forward(d->out, d->lse, d->qkv, d->B, d->T, 0, d->C, d->NH, g);
}

static const Rung<Data> forward_rungs[] = {
    { "three kernels", "scores, softmax, values: the weights of all pairs in memory",
      three_kernels },
    { "online softmax", "a warp a query, one pass over the keys, no weights in memory",
      online_softmax },
    { "shared tiles", "8 queries share 32 keys in shared memory; a lane a key", shared_tiles },
#ifndef PRECISION_FP32
    { "tensor cores", "mma: 64 queries share 64 keys", tensor_cores },
    { "padded rows", "rows 16 bytes longer, so that ldmatrix has no bank conflicts", padded_rows },
    { "cp.async", "two stages: the next tiles are on their way", async_copies },
    { "two rows of tiles", "32 queries a warp: each fragment of a key serves two mma", two_rows },
#endif
    { "the trainer's", "longest blocks first, masks on the diagonal only, stores of 16 bytes",
      trainers_forward },
};

// =================================================================================================
// Backward
// =================================================================================================

// Each query and each key meet once more: p anew from lse, ds = p (dout . v - d), and from these
// three sums. dk and dv are sums over queries, dq is a sum over keys. So there are two ways:
//
//   two passes   one kernel owns queries and sums dq, another owns keys and sums dk and dv. Each
//                computes p and ds: seven products in all. The same bits every run.
//   one pass     a kernel that owns keys also adds to dq in memory, by atomicAdd: five products.
//                The order of these sums, and so the last bits, differ from run to run.
typedef enum { DQ_PASS, DK_DV_PASS, ONE_PASS } Pass;

// What all rungs need first: for each query lse / ln 2, and d.
static void rows_launch(const Data *d, Gpu *g) {
    attention_rows_kernel<<<blocks_of(d, 32), 256, 0, g->stream>>>(
        d->rows, d->dout, d->out, d->lse, d->T, d->C, d->NH);
    LAUNCH_CHECK();
}

static void dq_clear(const Data *d, Gpu *g) {
    CUDA_CHECK(cudaMemsetAsync(d->dq, 0, (size_t)d->B*d->T*d->C * sizeof *d->dq, g->stream));
}

__global__ void dq_round_kernel(Data d) {
    size_t i = thread_in_grid();
    if (i >= (size_t)d.B*d.T*d.C) return;
    d.dqkv[i / d.C * 3*d.C + i % d.C] = (real)(d.dq[i] / sqrtf((float)d.HS));
}

static void dq_round(const Data *d, Gpu *g) {
    dq_round_kernel<<<blocks_for((size_t)d->B*d->T*d->C, 256), 256, 0, g->stream>>>(*d);
    LAUNCH_CHECK();
}

__device__ inline void row_load(float *x, const real *row, int HS) {
    for (int c = 0, i = lane(); c < PLAIN_CHANNELS; c++, i += 32)
        x[c] = i < HS ? (float)row[i] : 0.0f;
}

__device__ inline float row_dot(const float *x, const float *y) {
    float sum = 0.0f;
    for (int c = 0; c < PLAIN_CHANNELS; c++) sum += x[c] * y[c];
    return warp_sum(sum);
}

// Warp r owns row r: a query in DQ_PASS, else a key. x and y are its own rows, x2 and y2 those that
// stream past: q, dout and k, v; or k, v and q, dout. A lane has every 32nd channel.
template <Pass PASS> __global__ void warp_backward_kernel(Data d) {
    const bool keys = PASS != DQ_PASS;
    Head h = head_of(d);
    int r = blockIdx.y*8 + warp_in_block();
    if (r >= d.T) return;
    float x[PLAIN_CHANNELS], y[PLAIN_CHANNELS], x2[PLAIN_CHANNELS], y2[PLAIN_CHANNELS];
    float dx[PLAIN_CHANNELS] = {0}, dy[PLAIN_CHANNELS] = {0}, scale = LOG2_E / sqrtf((float)d.HS);
    row_load(x, (keys ? h.k : h.q) + r*h.ld, d.HS);
    row_load(y, keys ? h.v + r*h.ld : row_of(d.dout, d, r), d.HS);
    for (int t2 = keys ? r : 0; t2 < (keys ? d.T : r + 1); t2++) {
        row_load(x2, (keys ? h.q : h.k) + t2*h.ld, d.HS);
        row_load(y2, keys ? row_of(d.dout, d, t2) : h.v + t2*h.ld, d.HS);
        float2 row = d.rows[(size_t)this_head()*d.T + (keys ? t2 : r)];
        float p = exp2f(row_dot(x, x2) * scale - row.x), ds = p * (row_dot(y, y2) - row.y);
        for (int c = 0, i = lane(); c < PLAIN_CHANNELS; c++, i += 32) {
            dx[c] += ds * x2[c];
            dy[c] += p * y2[c];
            if (PASS == ONE_PASS && i < d.HS) atomicAdd(row_of(d.dq, d, t2) + i, ds * x[c]);
        }
    }
    real *to = d.dqkv + (h.q - d.qkv) + r*h.ld;
    plain_store(to + (keys ? d.C : 0), dx, scale * LN_2, d.HS);
    if (keys) plain_store(to + 2*d.C, dy, 1.0f, d.HS);
}

// Two passes: a warp a row, as in the rung with the online softmax, and with the same price: two
// dot products a pair are summed across lanes, in both passes.
static void two_passes(const Data *d, Gpu *g) {
    rows_launch(d, g);
    warp_backward_kernel<DQ_PASS><<<blocks_of(d, 8), 256, 0, g->stream>>>(*d);
    LAUNCH_CHECK();
    warp_backward_kernel<DK_DV_PASS><<<blocks_of(d, 8), 256, 0, g->stream>>>(*d);
    LAUNCH_CHECK();
}

// One pass: half the shuffles. But each pair adds HS numbers to dq, and the L2 cache carries out
// these atomics: it moves nearly as many bytes as before. And dq passes through memory in fp32
// before it is rounded, 30% more bytes. In what is counted of memory, this rung did not help.
static void one_pass(const Data *d, Gpu *g) {
    rows_launch(d, g);
    dq_clear(d, g);
    warp_backward_kernel<ONE_PASS><<<blocks_of(d, 8), 256, 0, g->stream>>>(*d);
    LAUNCH_CHECK();
    dq_round(d, g);
}

// Two passes, tiles: attention_backward_plain_kernel, the trainer's in fp32. A block owns 8 rows,
// and 32 of the other side lie in shared memory. No sums across lanes are left.
static void two_passes_tiled(const Data *d, Gpu *g) {
    rows_launch(d, g);
    attention_backward_plain_kernel<QUERIES><<<blocks_of(d, PLAIN_ROWS), 256, 0, g->stream>>>(
        d->dqkv, d->rows, d->dout, d->qkv, d->T, d->C, d->NH);
    LAUNCH_CHECK();
    attention_backward_plain_kernel<KEYS><<<blocks_of(d, PLAIN_ROWS), 256, 0, g->stream>>>(
        d->dqkv, d->rows, d->dout, d->qkv, d->T, d->C, d->NH);
    LAUNCH_CHECK();
}

// One pass, tiles: the same for keys; then the block sums what its 8 keys give to each dq. So there
// is an atomicAdd for 8 pairs, an eighth of those before. Shared memory, the limit here, takes 0.7
// of the clocks of two passes: five products of seven.
__global__ void tiled_one_pass_kernel(Data d) {
    __shared__ PlainRow k[PLAIN_ROWS], v[PLAIN_ROWS], q[PLAIN_STEP], d_o[PLAIN_STEP];
    __shared__ float p[PLAIN_ROWS][PLAIN_STEP], ds[PLAIN_ROWS][PLAIN_STEP];
    Head h = head_of(d);
    int warp = warp_in_block(), row0 = blockIdx.y*PLAIN_ROWS, key = row0 + warp;
    float scale = LOG2_E / sqrtf((float)d.HS), dk[PLAIN_CHANNELS] = {0}, dv[PLAIN_CHANNELS] = {0};
    plain_load(k, h.k, h.ld, row0, PLAIN_ROWS, d.T, d.HS);
    plain_load(v, h.v, h.ld, row0, PLAIN_ROWS, d.T, d.HS);
    for (int t = row0; t < d.T; t += PLAIN_STEP) {
        plain_load(q, h.q, h.ld, t, PLAIN_STEP, d.T, d.HS);
        plain_load(d_o, row_of(d.dout, d, 0), d.C, t, PLAIN_STEP, d.T, d.HS);
        __syncthreads();                                     // what was loaded is there
        int query = t + lane();
        bool in_sight = key <= query && query < d.T;
        float2 row = in_sight ? d.rows[(size_t)this_head()*d.T + query] : make_float2(0.0f, 0.0f);
        float score = plain_dot(k[warp], q[lane()], d.HS) * scale;
        float weight = in_sight ? exp2f(score - row.x) : 0.0f;
        p[warp][lane()] = weight;
        ds[warp][lane()] = weight * (plain_dot(v[warp], d_o[lane()], d.HS) - row.y);
        __syncthreads();                                     // the weights of all warps are there
        plain_accumulate(dk, ds[warp], q, d.HS);
        plain_accumulate(dv, p[warp], d_o, d.HS);
        for (int i = threadIdx.x; i < PLAIN_STEP*d.HS; i += 32*PLAIN_ROWS) {
            int r = i / d.HS, c = i % d.HS;
            float sum = 0.0f;
            for (int j = 0; j < PLAIN_ROWS; j++) sum += ds[j][r] * k[j][c];
            if (t + r < d.T) atomicAdd(row_of(d.dq, d, t + r) + c, sum);
        }
        __syncthreads();                                     // read, before it is overwritten
    }
    if (key >= d.T) return;
    real *to = d.dqkv + (h.k - d.qkv) + key*h.ld;
    plain_store(to, dk, scale * LN_2, d.HS);
    plain_store(to + d.C, dv, 1.0f, d.HS);
}

static void one_pass_tiled(const Data *d, Gpu *g) {
    rows_launch(d, g);
    dq_clear(d, g);
    tiled_one_pass_kernel<<<blocks_of(d, PLAIN_ROWS), 32*PLAIN_ROWS, 0, g->stream>>>(*d);
    LAUNCH_CHECK();
    dq_round(d, g);
}

#ifndef PRECISION_FP32
// Two passes, tensor cores: the trainer's kernels with one row of tiles a warp. All that forward
// climbed to at once: mma, padded rows, cp.async. A 46th of the clocks of shared memory.
static void two_passes_tensor(const Data *d, Gpu *g) {
    rows_launch(d, g);
    attention_backward_tiles<OneRow>(d->dqkv, d->rows, d->dout, d->qkv, d->B, d->T, d->C, d->NH,
                                     g->stream);
}
#endif

// The trainer's: two rows of tiles a warp, so that what ldmatrix loads serves two mma. One pass on
// tensor cores has five products for seven, and FlashAttention-2 has it. But ds then passes through
// shared memory, and dq through the L2 cache: written with a block a head and no atomics, in twice
// the lines, it took 16.3 ms an update of GPT-2 124M (B=64) on an H200, two passes 16.8.
static void trainers_backward(const Data *d, Gpu *g) {
    attention_backward(d->dqkv, d->db, d->rows, d->dout, d->qkv, d->out, d->lse, d->B, d->T, d->C,
                       d->NH, g);
}

static const Rung<Data> backward_rungs[] = {
    { "two passes", "a warp a query sums dq; then a warp a key sums dk and dv", two_passes },
    { "one pass", "a warp a key, which also adds to dq in memory", one_pass },
    { "two passes, tiles", "8 rows share 32 of the other side in shared memory",
      two_passes_tiled },
    { "one pass, tiles", "a block adds the sum of its 8 keys to dq", one_pass_tiled },
#ifndef PRECISION_FP32
    { "two passes, tensor cores", "mma, padded rows, cp.async; 64 rows a block",
      two_passes_tensor },
#endif
    { "the trainer's", "two rows of tiles a warp: 128 rows a block", trainers_backward },
};

// =================================================================================================
// The CPU, and the shapes
// =================================================================================================

// out and lse of the first sequences in double precision, as many as `out` has room for.
static void forward_on_cpu(std::vector<double> *out, std::vector<double> *lse,
                           const std::vector<real> &qkv, Shape s) {
    int C = s.NH * s.HS, B = (int)(lse->size() / s.NH / s.T);
    std::vector<double> p(s.T);
    for (int b = 0; b < B; b++) for (int h = 0; h < s.NH; h++) for (int t = 0; t < s.T; t++) {
        const real *q = &qkv[(size_t)b*s.T*3*C + h*s.HS], *k = q + C, *v = k + C;
        double hi = -INFINITY, sum = 0.0, *o = &(*out)[((size_t)b*s.T + t)*C + h*s.HS];
        size_t ld = 3*(size_t)C;
        for (int t2 = 0; t2 <= t; t2++) {
            p[t2] = 0.0;
            for (int i = 0; i < s.HS; i++) p[t2] += (double)(float)q[t*ld + i]*(float)k[t2*ld + i];
            p[t2] /= sqrt(s.HS);
            hi = fmax(hi, p[t2]);
        }
        for (int t2 = 0; t2 <= t; t2++) sum += p[t2] = exp(p[t2] - hi);
        for (int t2 = 0; t2 <= t; t2++)
            for (int i = 0; i < s.HS; i++) o[i] += p[t2] / sum * (float)v[t2*ld + i];
        (*lse)[((size_t)b*s.NH + h)*s.T + t] = hi + log(sum);
    }
}

// The gradient, from the same out and lse that the rungs get.
static void backward_on_cpu(std::vector<double> *dqkv, const std::vector<real> &dout,
                            const std::vector<real> &qkv, const std::vector<real> &out,
                            const std::vector<float> &lse, Shape s) {
    int C = s.NH * s.HS, B = (int)(dqkv->size() / s.T / (3*C));
    size_t ld = 3*(size_t)C;
    for (int b = 0; b < B; b++) for (int h = 0; h < s.NH; h++) for (int t = 0; t < s.T; t++) {
        size_t at = (size_t)b*s.T*ld + h*s.HS, row = ((size_t)b*s.T + t)*C + h*s.HS;
        const real *q = &qkv[at + t*ld], *d_o = &dout[row];
        double d = 0.0, *dq = &(*dqkv)[at + t*ld];
        for (int i = 0; i < s.HS; i++) d += (double)(float)d_o[i] * (float)out[row + i];
        for (int t2 = 0; t2 <= t; t2++) {
            const real *k = &qkv[at + t2*ld + C], *v = k + C;
            double score = 0.0, dp = 0.0, *dk = &(*dqkv)[at + t2*ld + C], *dv = dk + C;
            for (int i = 0; i < s.HS; i++) score += (double)(float)q[i] * (float)k[i];
            for (int i = 0; i < s.HS; i++) dp += (double)(float)d_o[i] * (float)v[i];
            double p = exp(score / sqrt(s.HS) - lse[((size_t)b*s.NH + h)*s.T + t]);
            double ds = p * (dp - d) / sqrt(s.HS);
            for (int i = 0; i < s.HS; i++) {
                dq[i] += ds * (float)k[i];
                dk[i] += ds * (float)q[i];
                dv[i] += p * (float)d_o[i];
            }
        }
    }
}

template <class T> static void array_from_gpu(Array<T> *a) {
    CUDA_CHECK(cudaMemcpy(a->cpu.data(), a->gpu, a->cpu.size() * sizeof(T),
                          cudaMemcpyDeviceToHost));
}

// Weights and ds are rounded to `real` for mma, and so are the results: two roundings. The numbers
// of q, k and v reach to 2: then dq, dk and dv have norms of the same order, and none can hide.
static void climb(Ladder *l, Shape s) {
    size_t N = (size_t)s.B * s.T, C = (size_t)s.NH * s.HS, pairs = (size_t)s.T * (s.T + 1) / 2;
    size_t checked = min_size(s.B, 2) * s.T;     // rows of the first two sequences
    Array<real> qkv(N*3*C), dout(N*C), out(N*C), dqkv(N*3*C);
    Array<float> db(3*C);
    Array<float> lse(N*s.NH), weights(N*s.NH*s.T), dq(N*C);
    Array<float2> rows(N*s.NH);
    std::vector<double> cpu_out(checked*C), cpu_lse(checked*s.NH), cpu_dqkv(checked*3*C);
    array_draw(&qkv, 1, 2.0f);
    array_draw(&dout, 2);
    Data d = { out.gpu, lse.gpu, dqkv.gpu, db.gpu, qkv.gpu, dout.gpu, weights.gpu, rows.gpu, dq.gpu,
               s.B, s.T, (int)C, s.NH, s.HS };
    char shape[80], title[120];
    snprintf(shape, sizeof shape, "B=%d, T=%d, %d heads of %d channels, " PRECISION, s.B, s.T, s.NH,
             s.HS);
    snprintf(title, sizeof title, "attention, forward: %s", shape);
    double product = 2.0 * s.B * (double)(C * pairs), array = (double)(N*C * sizeof(real));
    double of_lse = (double)(N*s.NH * sizeof(float));
    forward_on_cpu(&cpu_out, &cpu_lse, qkv.cpu, s);
    ladder_climb(l, title, forward_rungs, d, { result("out", out, cpu_out, NAN, 2),
                                               result("lse", lse, cpu_lse, NAN, 0) },
                 { 4*array + of_lse, 2*product });
    array_from_gpu(&out);                        // the trainer's
    array_from_gpu(&lse);
    snprintf(title, sizeof title, "attention, backward: %s", shape);
    backward_on_cpu(&cpu_dqkv, dout.cpu, qkv.cpu, out.cpu, lse.cpu, s);
    ladder_climb(l, title, backward_rungs, d, { result("dqkv", dqkv, cpu_dqkv, NAN, 2) },
                 { 8*array + of_lse, 5*product });
}

// Less than a tile; more than one, in a head that fills half of the channels; two blocks of 128.
int main(int argc, char **argv) {
    static const Shape small[] = { { 2, 7, 2, 8 }, { 1, 77, 2, 40 }, { 1, 130, 1, 64 } };
    return ladder_main(argc, argv, small, { 1, 256, 2, 64 }, { 16, 1024, 12, 64 }, climb,
                       "lesson 7 has the formulas, dev/ladders/attention.cu the code; "
                       "`make profile` counts an update.");
}
