// A matrix product, C (M,N) = A (M,K) * B (K,N), rung by rung: dev/ladders/matmul.c for a GPU.
//
//     make ladder OP=matmul
//
// It has M*N*K multiply-adds and few numbers, so each number is needed many times. The rungs bring
// it closer step by step: from memory to shared memory, to registers, to the tensor cores; and the
// last ones hide the way it takes. M and N are multiples of 128, K of 32: edges would hide the
// ideas. There is no rung with wgmma, Hopper's own instruction: the emulator does not know it.
#include "ladder.cu"                   // Rung, Result, ladder_climb, ladder_main

struct Shape { size_t M, N, K; };
struct Data { real *c; const real *a, *b; size_t M, N, K; };

// ---- the rungs ----

// The definition, a thread an element. A warp's 32 threads have neighbouring columns: they read the
// same element of A, and 32 neighbours of B. So all loads are coalesced; yet there are two of them
// for each multiply-add, and most wait for the L2 cache.
__global__ void naive_kernel(Data d) {
    size_t m = blockIdx.y*8 + threadIdx.y, n = blockIdx.x*32 + threadIdx.x;
    float sum = 0.0f;
    for (size_t k = 0; k < d.K; k++) sum += (float)d.a[m*d.K + k] * (float)d.b[k*d.N + n];
    d.c[m*d.N + n] = (real)sum;
}

static void naive(const Data *d, Gpu *g) {
    dim3 blocks((unsigned)d->N / 32, (unsigned)d->M / 8);
    naive_kernel<<<blocks, dim3(32, 8), 0, g->stream>>>(*d);
}

// Shared tiles: a block owns 32 x 32 elements of C. It copies a tile of A and one of B to shared
// memory, where each element is used 32 times. The L2 cache is asked for a fraction of the bytes.
// Now shared memory is: two loads a multiply-add, as before, from a place that is closer.
__global__ void shared_kernel(Data d) {
    __shared__ real a[32][32], b[32][32];
    int row = threadIdx.y, col = threadIdx.x;
    size_t m = blockIdx.y*32 + row, n = blockIdx.x*32 + col;
    float sum = 0.0f;
    for (size_t k0 = 0; k0 < d.K; k0 += 32) {
        a[row][col] = d.a[m*d.K + k0 + col];
        b[row][col] = d.b[(k0 + row)*d.N + n];
        __syncthreads();                         // the tiles are there
        for (int k = 0; k < 32; k++) sum += (float)a[row][k] * (float)b[k][col];
        __syncthreads();                         // read, before they are overwritten
    }
    d.c[m*d.N + n] = (real)sum;
}

static dim3 tiles_of(const Data *d, int tile) {
    return dim3((unsigned)d->N / tile, (unsigned)d->M / tile);
}

static void shared_tiles(const Data *d, Gpu *g) {
    shared_kernel<<<tiles_of(d, 32), dim3(32, 32), 0, g->stream>>>(*d);
}

// Registers: a thread owns 4 x 4 elements, so 4 elements of A and 4 of B make 16 multiply-adds:
// half a load from shared memory for each, in place of two. The 256 threads own a tile of 64 x 64,
// and global memory gains too: an element of a tile is now used 64 times.
enum { TILE = 64, STEP = 16, THREADS = 256 };

__global__ void registers_kernel(Data d) {
    __shared__ real a[TILE][STEP], b[STEP][TILE];
    int row = threadIdx.x / 16, col = threadIdx.x % 16;      // then every 16th
    size_t m0 = blockIdx.y*TILE, n0 = blockIdx.x*TILE;
    float sum[4][4] = {};
    for (size_t k0 = 0; k0 < d.K; k0 += STEP) {
        for (int i = threadIdx.x; i < TILE*STEP; i += THREADS) {
            a[i / STEP][i % STEP] = d.a[(m0 + i/STEP)*d.K + k0 + i%STEP];
            b[i / TILE][i % TILE] = d.b[(k0 + i/TILE)*d.N + n0 + i%TILE];
        }
        __syncthreads();                         // the tiles are there
        for (int k = 0; k < STEP; k++) {
            float x[4], y[4];
            for (int i = 0; i < 4; i++) x[i] = (float)a[row + 16*i][k];
            for (int j = 0; j < 4; j++) y[j] = (float)b[k][col + 16*j];
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 4; j++) sum[i][j] += x[i] * y[j];
        }
        __syncthreads();                         // read, before they are overwritten
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            d.c[(m0 + row + 16*i)*d.N + n0 + col + 16*j] = (real)sum[i][j];
}

static void registers(const Data *d, Gpu *g) {
    registers_kernel<<<tiles_of(d, TILE), THREADS, 0, g->stream>>>(*d);
}

#ifndef PRECISION_FP32
// From here on four warps, two by two, own a tile of 32S x 32S, a warp S x S squares of 16 x 16.
// The trainer's section on attention has a picture of what a lane holds of them. A row in shared
// memory is 8 elements longer than it must be, so ldmatrix reads its 8 rows from different banks.
enum { DEPTH = 32 };                   // of A's columns and B's rows that are in shared memory
template <int S> struct Tiles {
    real a[32*S][DEPTH + 8], b[DEPTH][32*S + 8];
};

// sum += the block's tiles, for this warp's squares
template <int S> __device__ inline void warp_multiply(Square (&sum)[S][S], const Tiles<S> &t) {
    int row = warp_in_block()/2*16*S, col = warp_in_block()%2*16*S;
    for (int k = 0; k < DEPTH; k += 16) {
        Fragment a[S];
        for (int i = 0; i < S; i++) a[i] = load_a(&t.a[row + 16*i][k], DEPTH + 8);
        for (int j = 0; j < S; j++) {
            Fragment b = load_b_of_rows(&t.b[k][col + 16*j], 32*S + 8);
            for (int i = 0; i < S; i++) {
                mma(sum[i][j].c[0], a[i], b.x);
                mma(sum[i][j].c[1], a[i], b.x + 2);
            }
        }
    }
}

template <int S> __device__ inline void warp_store(const Data &d, const Square (&sum)[S][S]) {
    int row = blockIdx.y*32*S + warp_in_block()/2*16*S;
    int col = blockIdx.x*32*S + warp_in_block()%2*16*S;
    each_element<S, S>([&](int j, int i, int half, int e) {
        real *c = d.c + lane_row(row + 16*i, half)*d.N + lane_column(col + 16*j, e);
        if (e % 2 == 0)                          // two neighbours at a time
            *(__nv_bfloat162 *)c = __floats2bfloat162_rn(sum[i][j].at(half, e),
                                                         sum[i][j].at(half, e + 1));
    });
}

// Calls body(shared, global) for each pack of the tiles that this thread copies.
template <int S, class Body>
__device__ inline void each_copy(Tiles<S> &t, const Data &d, size_t k0, Body body) {
    size_t m0 = blockIdx.y*32*S, n0 = blockIdx.x*32*S;
    for (int i = threadIdx.x*PACK; i < 32*S*DEPTH; i += blockDim.x*PACK) {
        body(&t.a[i / DEPTH][i % DEPTH], &d.a[(m0 + i/DEPTH)*d.K + k0 + i%DEPTH]);
        body(&t.b[i / (32*S)][i % (32*S)], &d.b[(k0 + i/(32*S))*d.N + n0 + i%(32*S)]);
    }
}

// Tensor cores: an mma of a warp is 2048 multiply-adds. It takes 6 registers of operands a lane,
// which ldmatrix loads four at a time. Tiles stay in bf16, and are copied 16 bytes a lane.
// Shared memory has a 45th of the requests, and a tenth of the clocks; the bank conflicts left are
// those of storing A's tile.
// By the data sheets tensor cores have some fifteen times the FLOP/s of a GPU's other units, so
// nothing else gains as much.
__global__ void mma_kernel(Data d) {
    __shared__ __align__(16) Tiles<2> tiles;
    Square sum[2][2] = {};
    for (size_t k = 0; k < d.K; k += DEPTH) {
        each_copy<2>(tiles, d, k, [](real *to, const real *from) {
            *(Packed<real> *)to = *(const Packed<real> *)from;
        });
        __syncthreads();                         // the tiles are there
        warp_multiply<2>(sum, tiles);
        __syncthreads();                         // read, before they are overwritten
    }
    warp_store<2>(d, sum);
}

static void tensor_cores(const Data *d, Gpu *g) {
    mma_kernel<<<tiles_of(d, 64), 128, 0, g->stream>>>(*d);
}

// cp.async, two stages: while the warps multiply one pair of tiles, the next is on its way to
// shared memory, past the registers. Nothing that is counted falls. What changes is when a block
// waits: for the rest of a load, not for all of it. Only a clock shows whether that helped.
template <int S> __global__ void __launch_bounds__(128) async_kernel(Data d) {
    __shared__ __align__(16) Tiles<S> tiles[2];
    Square sum[S][S] = {};
    auto start = [&](int stage, size_t k) {
        if (k < d.K) each_copy<S>(tiles[stage], d, k, [](real *to, const real *from) {
            copy_async<16>(to, from, true);
        });
        copy_async_commit();                     // empty groups keep the count
    };
    start(0, 0);
    for (size_t k = 0, now = 0; k < d.K; k += DEPTH, now = 1 - now) {
        start(1 - (int)now, k + DEPTH);
        copy_async_wait<1>();                    // for this thread's copies of the older group
        __syncthreads();                         // all threads' copies are there
        warp_multiply<S>(sum, tiles[now]);
        __syncthreads();                         // read, before they are overwritten
    }
    warp_store<S>(d, sum);
}

static void async_copies(const Data *d, Gpu *g) {
    async_kernel<2><<<tiles_of(d, 64), 128, 0, g->stream>>>(*d);
}

// Larger tiles: 128 x 128 for a block, 64 x 64 for a warp. That is twice as many multiply-adds for
// each byte from the L2 cache, and for each ldmatrix. 128 of a thread's 255 registers are sums now.
// It needs large matrices: there are a quarter of the blocks, and a GPU that has more
// multiprocessors than blocks leaves some idle.
static void larger_tiles(const Data *d, Gpu *g) {
    async_kernel<4><<<tiles_of(d, 128), 128, 0, g->stream>>>(*d);
}
#endif

// cuBLASLt, as the trainer calls it. It has the same ideas, and more: on Hopper wgmma, which takes
// its operands from shared memory, and copies by a unit of their own; tiles and stages to suit the
// shape. It is not ours, so of it only the bytes that it cannot do without are known.
static void cublas(const Data *d, Gpu *g) {
    Mat a = rows_of(d->a, d->K), b = rows_of(d->b, d->N);
    matmul(d->c, d->N, a, b, d->M, d->N, d->K, WRITE, g);
}

static const Rung<Data> rungs[] = {
    { "naive", "the definition, a thread an element", naive },
    { "shared tiles", "tiles of A and B in shared memory, where each element is used 32 times",
      shared_tiles },
    { "registers", "a thread owns 4 x 4 elements of C", registers },
#ifndef PRECISION_FP32
    { "tensor cores", "mma, with operands by ldmatrix", tensor_cores },
    { "cp.async", "the next tiles are on their way while these are multiplied", async_copies },
    { "larger tiles", "128 x 128 elements of C a block, 64 x 64 a warp", larger_tiles },
#endif
    { "cuBLASLt: the trainer's", "NVIDIA's library", cublas },
};

// ---- the shapes ----

static void climb(Ladder *l, Shape s) {
    Array<real> a(drawn(s.M * s.K, 1)), b(drawn(s.K * s.N, 2)), c(s.M * s.N);
    char title[100];
    snprintf(title, sizeof title, "matrix product: M=%zu, N=%zu, K=%zu, " PRECISION, s.M, s.N, s.K);
    Data d = { c.gpu, a.gpu, b.gpu, s.M, s.N, s.K };
    ladder_climb(l, title, rungs, d, { result("C", c, NAN, 1) },
                 { (double)((a.n + b.n + c.n) * sizeof(real)), 2.0 * (double)(s.M * s.N * s.K) });
}

int main(int argc, char **argv) {
    static const Shape small[] = { { 128, 128, 32 }, { 128, 256, 96 }, { 256, 128, 64 } };
    return ladder_main(argc, argv, small, { 256, 256, 256 }, { 4096, 4096, 4096 }, climb,
                       "lessons 12 and 13 have the ideas, dev/ladders/matmul.cu the code; "
                       "`make ladder OP=attention`.");
}
