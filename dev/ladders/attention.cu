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
    softmax_kernel<<<rows, 256, 0, g->stream>>>(*d);
    values_kernel<<<rows, 256, 0, g->stream>>>(*d);
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
}

// Shared tiles: attention_forward_plain_kernel, which the trainer runs in fp32. A block of 8
// queries copies 32 keys and values to shared memory, where all 8 use them: a seventh of the bytes
// from the L2 cache. A lane now computes a whole score, so that the shuffles are those of one
// maximum and one sum for 32 keys. Shared memory is the next limit: two loads a multiply-add.
static void shared_tiles(const Data *d, Gpu *g) {
    attention_forward_plain_kernel<<<blocks_of(d, PLAIN_ROWS), 32*PLAIN_ROWS, 0, g->stream>>>(
        d->out, d->lse, d->qkv, d->T, 0, d->C, d->NH);
}

#ifndef PRECISION_FP32
// ---- on tensor cores: the names are those of the trainer's section on attention ----

// Tensor cores: a warp owns 16 queries, a block 64; 64 keys at a time, and the next 64 are on their
// way by cp.async, as in the ladder of matmul. Scores, weights and outputs stay in registers, in
// the layouts that mma wants. A block has eight times as many queries, so the L2 cache delivers a
// fifth of the bytes. An ldmatrix loads 256 elements, which serve 4096 multiply-adds: shared memory
// takes a seventh of the clocks. It could be a 45th. Rows of 64 channels are 128 bytes, all 32
// banks: the 8 rows that ldmatrix reads at once begin in the same bank, and take turns.
template <class V>
__global__ void __launch_bounds__(32*WARPS, BLOCKS) tensor_kernel(Data d) {
    extern __shared__ __align__(16) real shared[];           // (ROWS,LENGTH), 2x2 (STEP,LENGTH)
    real *k_tiles = shared + V::ROWS*V::LENGTH, *v_tiles = k_tiles + 2*V::STEP*V::LENGTH;
    Head x = head_of(d);
    int row0 = blockIdx.y*V::ROWS, end = min(row0 + V::ROWS, d.T);
    int row = row0 + warp_in_block()*16*V::M;
    float scale = LOG2_E / sqrtf((float)d.HS);
    Fragment q[V::M][V::D/16];
    SoftmaxState<V> w = {};
    for (int m = 0; m < V::M; m++) w.hi[m][0] = w.hi[m][1] = -INFINITY;
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
        if (col == 0) own_load<V>(q, shared + (row - row0)*V::LENGTH);
        start(1 - now, col + V::STEP);
        if (col >= row + 16*V::M) continue;                  // nothing in sight of this warp
        Square s[V::STEP/16][V::M];
        scores<V>(s, q, k_tiles + now*V::STEP*V::LENGTH);
        each_element<V::STEP/16, V::M>([&](int n, int m, int half, int i) {
            bool late = lane_column(col + 16*n, i) > lane_row(row + 16*m, half);
            if (late) s[n][m].at(half, i) = -INFINITY;
        });
        softmax_step<V>(s, w.hi, w.sum, w.o, scale);
        accumulate<V>(w.o, s, v_tiles + now*V::STEP*V::LENGTH);
    }
    softmax_end<V>(w, d.lse + (size_t)this_head()*d.T, row, 0, d.T, scale);
    each_element<V::D/16, V::M>([&](int n, int m, int half, int i) {
        int t = lane_row(row + 16*m, half), c = lane_column(16*n, i);
        const Square &o = w.o[m][n];
        if (i % 2 == 0 && t < d.T && c < d.HS)               // two neighbours at a time
            *(__nv_bfloat162 *)(row_of(d.out, d, t) + c)
                = __floats2bfloat162_rn(o.at(half, i), o.at(half, i + 1));
    });
}

template <class V> static void tensor_launch(const Data *d, Gpu *g) {
    size_t bytes = (V::ROWS + 2*2*V::STEP) * V::LENGTH * sizeof(real);
    allow_shared(tensor_kernel<V>, bytes);
    tensor_kernel<V><<<blocks_of(d, V::ROWS), 32*WARPS, bytes, g->stream>>>(*d);
}

typedef Tile<64, 1, 64> OneRow;                  // D, M, STEP
struct Unpadded : OneRow { enum { LENGTH = D }; };

static void tensor_cores(const Data *d, Gpu *g) { tensor_launch<Unpadded>(d, g); }

// Padded rows: the same kernel, rows 16 bytes longer. Eight rows now begin in eight different
// places of the banks, and an ldmatrix of 512 bytes takes the 4 clocks it needs, not 32.
static void padded_rows(const Data *d, Gpu *g) { tensor_launch<OneRow>(d, g); }

// Two rows of tiles: a warp owns 32 queries, a block 128. What ldmatrix loads of a key now serves
// two mma, and a tile of keys serves twice as many queries: 0.56 of the clocks of shared memory,
// 3/4 of the bytes from the L2 cache (1/2 at large T). But there are half as many blocks, and a
// thread needs nearly all the registers that it can have.
typedef Tile<64, 2, 64> TwoRows;
static void two_rows(const Data *d, Gpu *g) { tensor_launch<TwoRows>(d, g); }
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
    { "tensor cores", "mma: 64 queries share 64 keys, the next are on their way", tensor_cores },
    { "padded rows", "rows 16 bytes longer, so that ldmatrix has no bank conflicts", padded_rows },
    { "two rows of tiles", "32 queries a warp: each fragment of a key serves two mma", two_rows },
#endif
    { "the trainer's", "longest blocks first, masks on the diagonal only, stores of 16 bytes",
      trainers_forward },
};

// =================================================================================================
// Backward
// =================================================================================================

// Each query and each key meet once more: p anew from lse, ds = p (dout . v - d), and from these
// three sums. dq is a sum over keys, dk and dv are sums over queries. So there are two passes: one
// kernel owns queries and sums dq, another owns keys and sums dk and dv. Each computes p and ds,
// seven products in all, and the bits are the same in every run.
//
// One pass would do with five products, which FlashAttention-2 has: a kernel that owns keys also
// adds to dq in memory, by atomicAdd. But the order of those sums, and so the last bits, differ
// from run to run; dq passes through memory in fp32, 30% more bytes; and the L2 cache, which
// carries out the atomics, moves nearly as many bytes as in two passes.
typedef enum { DQ_PASS, DK_DV_PASS } Pass;

// What all rungs need first: for each query lse / ln 2, and d.
static void rows_launch(const Data *d, Gpu *g) {
    attention_rows_kernel<<<blocks_of(d, 32), 256, 0, g->stream>>>(
        d->rows, d->dout, d->out, d->lse, d->T, d->C, d->NH);
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
    const bool keys = PASS == DK_DV_PASS;
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
        for (int c = 0; c < PLAIN_CHANNELS; c++) {
            dx[c] += ds * x2[c];
            dy[c] += p * y2[c];
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
    warp_backward_kernel<DK_DV_PASS><<<blocks_of(d, 8), 256, 0, g->stream>>>(*d);
}

// Two passes, tiles: attention_backward_plain_kernel, the trainer's in fp32. A block owns 8 rows,
// and 32 of the other side lie in shared memory. No sums across lanes are left.
static void two_passes_tiled(const Data *d, Gpu *g) {
    rows_launch(d, g);
    attention_backward_plain_kernel<QUERIES><<<blocks_of(d, PLAIN_ROWS), 256, 0, g->stream>>>(
        d->dqkv, d->rows, d->dout, d->qkv, d->T, d->C, d->NH);
    attention_backward_plain_kernel<KEYS><<<blocks_of(d, PLAIN_ROWS), 256, 0, g->stream>>>(
        d->dqkv, d->rows, d->dout, d->qkv, d->T, d->C, d->NH);
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
// tensor cores, written with a block a head and no atomics, in twice the lines, took 16.3 ms an
// update of GPT-2 124M (B=64) on an H200, two passes 16.8.
static void trainers_backward(const Data *d, Gpu *g) {
    attention_backward(d->dqkv, d->db, d->rows, d->dout, d->qkv, d->out, d->lse, d->B, d->T, d->C,
                       d->NH, g);
}

static const Rung<Data> backward_rungs[] = {
    { "two passes", "a warp a query sums dq; then a warp a key sums dk and dv", two_passes },
    { "two passes, tiles", "8 rows share 32 of the other side in shared memory",
      two_passes_tiled },
#ifndef PRECISION_FP32
    { "two passes, tensor cores", "mma, padded rows, cp.async; 64 rows a block",
      two_passes_tensor },
#endif
    { "the trainer's", "two rows of tiles a warp: 128 rows a block", trainers_backward },
};

// =================================================================================================
// The shapes
// =================================================================================================

// Weights and ds are rounded to `real` for mma, and so are the results: two roundings. The numbers
// of q, k and v reach to 2: then dq, dk and dv have norms of the same order, and none can hide.
// Backward gets the out and lse that forward's last rung has left.
static void climb(Ladder *l, Shape s) {
    size_t N = (size_t)s.B * s.T, C = (size_t)s.NH * s.HS, pairs = (size_t)s.T * (s.T + 1) / 2;
    Array<real> qkv(drawn(N*3*C, 1, 2.0f)), dout(drawn(N*C, 2)), out(N*C), dqkv(N*3*C);
    Array<float> db(3*C), lse(N*s.NH), weights(N*s.NH*s.T);
    Array<float2> rows(N*s.NH);
    Data d = { out.gpu, lse.gpu, dqkv.gpu, db.gpu, qkv.gpu, dout.gpu, weights.gpu, rows.gpu,
               s.B, s.T, (int)C, s.NH, s.HS };
    char shape[80], title[120];
    snprintf(shape, sizeof shape, "B=%d, T=%d, %d heads of %d channels, " PRECISION, s.B, s.T, s.NH,
             s.HS);
    snprintf(title, sizeof title, "attention, forward: %s", shape);
    double product = 2.0 * s.B * (double)(C * pairs), array = (double)(N*C * sizeof(real));
    double of_lse = (double)(N*s.NH * sizeof(float));
    ladder_climb(l, title, forward_rungs, d,
                 { result("out", out, NAN, 2), result("lse", lse, NAN, 0) },
                 { 4*array + of_lse, 2*product });
    snprintf(title, sizeof title, "attention, backward: %s", shape);
    ladder_climb(l, title, backward_rungs, d, { result("dqkv", dqkv, NAN, 2) },
                 { 8*array + of_lse, 5*product });
}

// Less than a tile; more than one, in a head that fills half of the channels; two blocks of 128.
int main(int argc, char **argv) {
    static const Shape small[] = { { 2, 7, 2, 8 }, { 1, 77, 2, 40 }, { 1, 130, 1, 64 } };
    return ladder_main(argc, argv, small, { 1, 256, 2, 64 }, { 16, 1024, 12, 64 }, climb,
                       "lesson 7 has the formulas, dev/ladders/attention.cu the code; "
                       "`make profile` counts an update.");
}
