// Two exercises in CUDA, which run in the emulator. A warp is 32 threads, its lanes, that execute
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
