// Six exercises in CUDA, which run in the emulator. A warp is 32 threads, its lanes, that execute
// together; __shfl_xor_sync(~0u, x, i) gives each lane the x of the lane whose number differs from
// its own in bit i.

__device__ inline int lane() { return threadIdx.x % 32; }

// The sum of x over the 32 lanes, to every lane: after 5 exchanges, of lanes 16, 8, 4, 2 and 1
// apart.
static __device__ inline float warp_sum(float x) {
    for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(~0u, x, i);
    return x;
}

static __device__ inline float warp_max(float x) {
    for (int i = 16; i > 0; i /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, i));
    return x;
}

// p = softmax of each row of x (N,C): warp n owns row n, its lanes stride over the columns, so that
// neighbouring lanes read neighbouring addresses.
static __global__ void softmax_row(float *p, const float *x, int N, int C) {
    int n = (int)((blockIdx.x * blockDim.x + threadIdx.x) / 32);
    if (n >= N) return;                          // the whole warp leaves together
    const float *row = x + (size_t)n*C;
    float hi = -INFINITY, sum = 0.0f;
    for (int c = lane(); c < C; c += 32) hi = fmaxf(hi, row[c]);
    hi = warp_max(hi);
    for (int c = lane(); c < C; c += 32) sum += expf(row[c] - hi);
    sum = warp_sum(sum);
    for (int c = lane(); c < C; c += 32) p[(size_t)n*C + c] = expf(row[c] - hi) / sum;
}

// LayerNorm, as layernorm_forward in train_gpt2.c: out, x (N,C), mean, rstd (N), gain, bias (C).
// Warp n owns row n.
static __global__ void layernorm_cuda(float *out, float *mean, float *rstd, const float *x,
                                      const float *gain, const float *bias, int N, int C) {
    int n = (int)((blockIdx.x * blockDim.x + threadIdx.x) / 32);
    if (n >= N) return;                          // the whole warp leaves together
    const float *row = x + (size_t)n*C;
    float sum = 0.0f, squares = 0.0f;
    for (int c = lane(); c < C; c += 32) sum += row[c];
    float m = warp_sum(sum) / C;
    for (int c = lane(); c < C; c += 32) squares += (row[c] - m) * (row[c] - m);
    float r = rsqrtf(warp_sum(squares) / C + 1e-5f);
    for (int c = lane(); c < C; c += 32)
        out[(size_t)n*C + c] = (row[c] - m) * r * gain[c] + bias[c];
    if (lane() == 0) mean[n] = m, rstd[n] = r;
}

// out = (x - mean) / deviation of each row of x (N,256): block n owns row n, a thread one number.
// Each warp sums its 32 numbers; `sums` lets every thread add up those of the 8 warps, twice.
static __global__ void standardise(float *out, const float *x) {
    enum { C = 256, WARPS = C / 32 };
    __shared__ float sums[WARPS];
    int warp = threadIdx.x / 32;
    size_t i = (size_t)blockIdx.x*C + threadIdx.x;
    float sum = warp_sum(x[i]), mean = 0.0f, var = 0.0f;
    if (lane() == 0) sums[warp] = sum;
    __syncthreads();                             // the sums are written before they are read
    for (int w = 0; w < WARPS; w++) mean += sums[w] / C;
    float d = x[i] - mean;
    sum = warp_sum(d * d);
    __syncthreads();                             // all have read the sums before they change
    if (lane() == 0) sums[warp] = sum;
    __syncthreads();                             // the squares are written before they are read
    for (int w = 0; w < WARPS; w++) var += sums[w] / C;
    out[i] = d * rsqrtf(var + 1e-5f);
}

// With shared memory, which a block's threads fill together. The check counts how much a kernel
// loads, and how often lanes of a warp want different words of the same bank (a bank conflict).

// ---- out (C,N) = x (N,C) transposed ----
// Read along a row and write along a row: then neighbouring lanes have neighbouring addresses.
// A block of 32 x 8 threads, warp i with threadIdx.y = i, moves a tile of 32 x 32 through shared
// memory: each thread loads 4 numbers of it and stores 4. Word w of shared memory is in bank w mod
// 32, and a bank gives one word at a time.
// Block (x,y) has columns 32 blockIdx.x ... and rows 32 blockIdx.y ... of x.

enum { TILE = 32, WARPS_OF_TILE = 8 };

static __global__ void transpose_shared(float *out, const float *x, int N, int C) {
    __shared__ float tile[TILE][TILE + 1];       // 33: the 32 words of a column are in 32 banks
    int n0 = blockIdx.y*TILE, c0 = blockIdx.x*TILE, lane = threadIdx.x;
    for (int i = threadIdx.y; i < TILE; i += WARPS_OF_TILE)
        if (n0 + i < N && c0 + lane < C) tile[i][lane] = x[(size_t)(n0 + i)*C + c0 + lane];
    __syncthreads();                             // the tile is whole before its columns are read
    for (int i = threadIdx.y; i < TILE; i += WARPS_OF_TILE)
        if (c0 + i < C && n0 + lane < N) out[(size_t)(c0 + i)*N + n0 + lane] = tile[lane][i];
}

// ---- c (M,N) = a (M,K) b (K,N) ----
// A block of 16 x 16 threads owns a tile of c, and a thread one number of it: row 16 blockIdx.y +
// threadIdx.y, column 16 blockIdx.x + threadIdx.x. The block goes along K in steps of 16. In each
// step every thread loads one number of a and one of b into shared memory, where 16 threads use it.

enum { SIDE = 16 };

static __global__ void matmul_tiled(float *c, const float *a, const float *b, int M, int N, int K) {
    __shared__ float a_tile[SIDE][SIDE], b_tile[SIDE][SIDE];
    int y = threadIdx.y, x = threadIdx.x, m = blockIdx.y*SIDE + y, n = blockIdx.x*SIDE + x;
    float sum = 0.0f;
    for (int k0 = 0; k0 < K; k0 += SIDE) {
        a_tile[y][x] = m < M && k0 + x < K ? a[(size_t)m*K + k0 + x] : 0.0f;
        b_tile[y][x] = k0 + y < K && n < N ? b[(size_t)(k0 + y)*N + n] : 0.0f;
        __syncthreads();                         // both tiles are whole before they are read
        for (int k = 0; k < SIDE; k++) sum += a_tile[y][k] * b_tile[k][x];
        __syncthreads();                         // all have read them before they are overwritten
    }
    if (m < M && n < N) c[(size_t)m*N + n] = sum;
}
