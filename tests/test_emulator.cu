// The emulator (dev/emulator), feature by feature: what a kernel computes here must be what CUDA's
// manuals say, and what a kernel does wrong must be reported. Compiled by nvcc, all but the reports
// also runs on a GPU, which proves the expectations themselves.
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <math.h>
#include <stdint.h>
#include "test.h"

#define OK(call) CHECK_MSG((call) == cudaSuccess, "%s: %s", #call, \
                           cudaGetErrorString(cudaPeekAtLastError()))
#define BLAS_OK(call) CHECK((call) == CUBLAS_STATUS_SUCCESS)

// Device memory with a copy of x.
template <class T> static T *upload(const T *x, size_t n) {
    T *p = NULL;
    OK(cudaMalloc(&p, n * sizeof *p));
    OK(cudaMemcpy(p, x, n * sizeof *p, cudaMemcpyHostToDevice));
    OK(cudaDeviceSynchronize());                 // cudaMemcpy may return before it has arrived
    return p;
}

// Waits for the kernels, copies p to x and frees p.
template <class T> static void download(T *x, T *p, size_t n) {
    OK(cudaGetLastError());
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(x, p, n * sizeof *p, cudaMemcpyDeviceToHost));
    OK(cudaFree(p));
}

static float random_float(uint32_t *state) {     // in -1 ... 1
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / 8388608.0f - 1.0f;
}

// ---- launches ----

__global__ void where_kernel(int *count, dim3 *sizes) {
    int in_block = (int)((threadIdx.z*blockDim.y + threadIdx.y)*blockDim.x + threadIdx.x);
    int block = (int)((blockIdx.z*gridDim.y + blockIdx.y)*gridDim.x + blockIdx.x);
    int threads = (int)(blockDim.x * blockDim.y * blockDim.z);
    atomicAdd(&count[block*threads + in_block], 1);
    if (block == 0 && in_block == 0) { sizes[0] = gridDim; sizes[1] = blockDim; }
}

TEST(every_thread_of_a_grid_runs_once) {
    enum { N = 3*4*2 * 5*3*7 };
    static int count[N];
    dim3 sizes[2];
    int *count_gpu = upload(count, N);
    dim3 *sizes_gpu = upload(sizes, 2);
    where_kernel<<<dim3(3, 4, 2), dim3(5, 3, 7)>>>(count_gpu, sizes_gpu);
    download(count, count_gpu, N);
    download(sizes, sizes_gpu, 2);
    for (int i = 0; i < N; i++) CHECK_MSG(count[i] == 1, "thread %d ran %d times", i, count[i]);
    CHECK(sizes[0].x == 3 && sizes[0].y == 4 && sizes[0].z == 2);
    CHECK(sizes[1].x == 5 && sizes[1].y == 3 && sizes[1].z == 7);
}

typedef struct { int x; float y; } Pair;

template <class T> __global__ void __launch_bounds__(64) arguments_kernel(
        T *out, size_t n, Pair pair, const T *nothing) {
    size_t i = blockIdx.x*blockDim.x + threadIdx.x;
    n -= 1 + pair.x;                             // each thread has arguments of its own
    pair.x = 5;
    if (i <= n) out[i] = (T)n + (T)pair.y + (nothing ? 1 : 0);
}

static int next_number(int *calls) { return ++*calls; }

#define LAUNCH(T, blocks) arguments_kernel<T><<<blocks, 2>>>

TEST(launches_pass_their_arguments) {
    float x[8] = {0};
    int calls = 0;
    Pair pair = { 1, 0.5f };
    float *gpu = upload(x, 8);                   // a string may hold <<<1, 2>>>(3), a comment too
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    LAUNCH(float, 1)(gpu, next_number(&calls) + 2, pair, NULL);      // <<<no launch>>>(here)
    arguments_kernel
        <<<dim3(2),
           2, 0, stream>>>(gpu + 2, (size_t)6,
                           pair, (const float *)NULL);
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamDestroy(stream));
    download(x, gpu, 8);
    CHECK(calls == 1);
    const float expected[8] = { 1.5f, 1.5f, 4.5f, 4.5f, 4.5f, 4.5f, 0, 0 };
    for (int i = 0; i < 8; i++) CHECK_MSG(x[i] == expected[i], "%d: %g", i, x[i]);
}

TEST(launches_that_a_gpu_refuses) {
    float *gpu;
    Pair pair = { 0, 0 };
    OK(cudaMalloc(&gpu, 4));
    CHECK(cudaGetLastError() == cudaSuccess);
    const dim3 grids[] = { 1, dim3(1, 70000), dim3(1, 1, 70000), 0, 1, 1 };
    const dim3 blocks[] = { 1025, 1, 1, 1, 0, dim3(1, 1, 65) };
    for (int i = 0; i < 6; i++) {
        arguments_kernel<float><<<grids[i], blocks[i]>>>(gpu, 0, pair, NULL);
        CHECK_MSG(cudaPeekAtLastError() == cudaErrorInvalidConfiguration, "launch %d", i);
        CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
        CHECK(cudaGetLastError() == cudaSuccess);                    // reading it clears it
    }
    arguments_kernel<float><<<1, 1, (48 << 10) + 1>>>(gpu, 0, pair, NULL);
    CHECK(cudaGetLastError() == cudaErrorInvalidValue);
    OK(cudaFuncSetAttribute(arguments_kernel<float>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                            64 << 10));
    arguments_kernel<float><<<1, 1, 64 << 10>>>(gpu, 1, pair, NULL);
    CHECK(cudaGetLastError() == cudaSuccess);
    arguments_kernel<double><<<1, 1, 64 << 10>>>(NULL, 1, pair, NULL);   // another kernel
    CHECK(cudaGetLastError() == cudaErrorInvalidValue);
    CHECK(cudaFuncSetAttribute(arguments_kernel<float>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               228 << 10) == cudaErrorInvalidValue);
    CHECK(cudaGetLastError() == cudaErrorInvalidValue);
    OK(cudaDeviceSynchronize());
    OK(cudaFree(gpu));
}

// ---- barriers and shared memory ----

// Each round, thread t adds what its right neighbour had. Half of the threads leave before.
__global__ void neighbours_kernel(int *out, int rounds) {
    __shared__ int x[96], other;
    int t = (int)threadIdx.x;
    if (t >= 96) return;
    if (t == 0) other = 1;
    x[t] = t;
    for (int i = 0; i < rounds; i++) {
        __syncthreads();
        int right = x[(t + 1) % 96];
        __syncthreads();
        x[t] += right * other;
    }
    out[blockIdx.x*96 + (unsigned)t] = x[t];
}

TEST(barriers_separate_reads_from_writes) {
    enum { BLOCKS = 5, ROUNDS = 20 };
    static int out[BLOCKS*96];
    int *gpu = upload(out, BLOCKS*96), x[96], y[96];
    neighbours_kernel<<<BLOCKS, 200>>>(gpu, ROUNDS);
    download(out, gpu, BLOCKS*96);
    for (int t = 0; t < 96; t++) x[t] = t;
    for (int i = 0; i < ROUNDS; i++) {
        for (int t = 0; t < 96; t++) y[t] = x[t] + x[(t + 1) % 96];
        memcpy(x, y, sizeof x);
    }
    for (int i = 0; i < BLOCKS*96; i++) CHECK_MSG(out[i] == x[i % 96], "%d: %d", i, out[i]);
}

__global__ void barrier_votes_kernel(int *out) {
    int t = (int)threadIdx.x;
    if (t >= 70) return;
    int count = __syncthreads_count(t % 3 == 0), none = __syncthreads_or(t > 100);
    int one = __syncthreads_or(t == 69), all = __syncthreads_and(t < 70);
    int not_all = __syncthreads_and(t != 33);
    out[t] = count*10000 + (none != 0)*1000 + (one != 0)*100 + (all != 0)*10 + (not_all != 0);
}

TEST(barriers_count_votes_of_those_who_have_not_exited) {
    int out[70] = {0};
    int *gpu = upload(out, 70);
    barrier_votes_kernel<<<1, 90>>>(gpu);
    download(out, gpu, 70);
    for (int t = 0; t < 70; t++) CHECK_MSG(out[t] == 240110, "thread %d: %d", t, out[t]);
}

// All ways to declare shared memory that CUDA has, used as one array of four parts.
template <int N> __global__ void declarations_kernel(float *out) {
    __shared__ float tile[N][N + 1], row[N];
    __shared__ __align__(16) float4 quad;
    alignas(16) __shared__ int number,
        numbers[2];                              // over two lines
    extern __shared__ __align__(16) float dynamic_part[];
    int t = (int)threadIdx.x;
    tile[t][N] = (float)t;
    row[t] = 2.0f * (float)t;
    dynamic_part[t] = 3.0f * (float)t;
    if (t == 0) { quad = make_float4(1, 2, 3, 4); number = 5; numbers[0] = 6; numbers[1] = 7; }
    __syncthreads();
    int u = N - 1 - t;
    out[t] = tile[u][N] + row[u] + dynamic_part[u] + quad.w +
             (float)(number + numbers[0] + numbers[1]);
}

TEST(shared_memory_however_declared) {
    float out[8] = {0};
    float *gpu = upload(out, 8);
    declarations_kernel<8><<<1, 8, 8*sizeof(float)>>>(gpu);
    download(out, gpu, 8);
    for (int t = 0; t < 8; t++) CHECK(out[t] == 6.0f * (float)(7 - t) + 4 + 18);
}

// ---- warps ----

enum { SHUFFLES = 4 };

__global__ void shuffle_kernel(int *out, int by, int width) {
    int t = (int)threadIdx.x;
    int *mine = out + t*SHUFFLES;
    mine[0] = __shfl_sync(0xFFFFFFFFu, t*10, by, width);
    mine[1] = __shfl_xor_sync(0xFFFFFFFFu, t*10, by, width);
    mine[2] = __shfl_down_sync(0xFFFFFFFFu, t*10, (unsigned)by, width);
    mine[3] = __shfl_up_sync(0xFFFFFFFFu, t*10, (unsigned)by, width);
}

// What the programming guide says: segments of `width` lanes; who would read past its segment, or
// with xor past the segments before it, keeps its own.
static int shuffle_source(int kind, int lane, int by, int width) {
    int begin = lane / width * width, end = begin + width;
    int source = kind == 0 ? begin + by % width : kind == 1 ? lane ^ by :
                 kind == 2 ? lane + by : lane - by;
    return source >= end || (kind == 3 && source < begin) ? lane : source;
}

TEST(shuffles_of_every_kind_and_width) {
    static int out[64*SHUFFLES];
    for (int width = 2; width <= 32; width *= 2)
        for (int by = 0; by < 32; by++) {
            int *gpu = upload(out, 64*SHUFFLES);
            shuffle_kernel<<<1, 64>>>(gpu, by, width);
            download(out, gpu, 64*SHUFFLES);
            for (int t = 0; t < 64; t++)
                for (int kind = 0; kind < SHUFFLES; kind++) {
                    int from = t / 32 * 32 + shuffle_source(kind, t % 32, by, width);
                    CHECK_MSG(out[t*SHUFFLES + kind] == from*10, "kind %d by %d width %d, %d: %d",
                              kind, by, width, t, out[t*SHUFFLES + kind]);
                }
        }
}

// Parts of a warp at different paces, values of every size, and a last warp of 16 lanes, which need
// not know that the others its mask names do not exist.
__global__ void parts_kernel(double *out) {
    int t = (int)threadIdx.x, lane = t % 32;
    unsigned mask = t >= 32 ? 0xFFFFFFFFu : lane < 8 ? 0xFFu : lane < 20 ? 0xFFF00u : 0xFFF00000u;
    double sum = 0;
    for (int i = 0; i < (t < 8 ? 5 : 3); i++)
        sum += __shfl_xor_sync(mask, (double)t, 1) + __shfl_xor_sync(mask, (float)t, 2)
             + (double)__shfl_xor_sync(mask, (long long)t, 3);
    __nv_bfloat16 first = __shfl_sync(mask, __float2bfloat16((float)t), lane & ~3);
    out[t] = sum + 1000 * (double)__bfloat162float(first);
}

TEST(parts_of_a_warp_by_mask) {
    static double out[48];
    double *gpu = upload(out, 48);
    parts_kernel<<<1, 48>>>(gpu);
    download(out, gpu, 48);
    for (int t = 0; t < 48; t++) {
        int rounds = t < 8 ? 5 : 3;
        double expected = rounds * ((t ^ 1) + (t ^ 2) + (t ^ 3)) + 1000.0 * (t & ~3);
        CHECK_MSG(out[t] == expected, "thread %d: %g, not %g", t, out[t], expected);
    }
}

__global__ void votes_kernel(unsigned *out) {
    int t = (int)threadIdx.x, lane = t % 32;
    unsigned mask = lane < 16 ? 0xFFFFu : 0xFFFF0000u, *mine = out + t*12;
    mine[0] = __ballot_sync(mask, lane % 3 == 0);
    mine[1] = (unsigned)(__any_sync(mask, lane == 5) != 0);
    mine[2] = (unsigned)(__all_sync(mask, lane >= 16) != 0);
    mine[3] = (unsigned)__reduce_add_sync(mask, -lane);
    mine[4] = __reduce_add_sync(mask, (unsigned)lane);
    mine[5] = (unsigned)__reduce_max_sync(mask, lane - 20);
    mine[6] = (unsigned)__reduce_min_sync(mask, lane - 20);
    mine[7] = __reduce_max_sync(mask, (unsigned)lane);
    mine[8] = __reduce_min_sync(mask, (unsigned)lane);
    mine[9] = __reduce_and_sync(mask, 0xF0u | (unsigned)lane);
    mine[10] = __reduce_or_sync(mask, (unsigned)lane);
    mine[11] = __reduce_xor_sync(mask, 1u << lane);
    __syncwarp(mask);
}

TEST(votes_and_reductions) {
    static unsigned out[64*12];
    unsigned *gpu = upload(out, 64*12);
    votes_kernel<<<1, 64>>>(gpu);
    download(out, gpu, 64*12);
    const unsigned low[12] = { 0x9249, 1, 0, (unsigned)-120, 120, (unsigned)-5, (unsigned)-20, 15,
                               0, 0xF0, 15, 0xFFFF };
    const unsigned high[12] = { 0x49240000, 0, 1, (unsigned)-376, 376, 11, (unsigned)-4, 31, 16,
                                0xF0, 31, 0xFFFF0000 };
    for (int t = 0; t < 64; t++)
        for (int i = 0; i < 12; i++) {
            unsigned expected = t % 32 < 16 ? low[i] : high[i];
            CHECK_MSG(out[t*12 + i] == expected, "%d of %d: %x, not %x", i, t, out[t*12 + i],
                      expected);
        }
}

// ---- atomics ----

typedef struct {
    float f; double d; int i, most, least; unsigned u, wrapped; unsigned long long l; int swapped;
} Sums;

__global__ void atomics_kernel(Sums *s, int n) {
    int i = (int)(blockIdx.x*blockDim.x + threadIdx.x);
    if (i >= n) return;
    atomicAdd(&s->f, 1.0f);
    atomicAdd(&s->d, 0.5);
    atomicAdd(&s->i, -i);
    atomicAdd(&s->u, 3u);
    atomicAdd(&s->l, 1ull << 33);
    atomicMax(&s->most, i);
    atomicMin(&s->least, -i);
    atomicInc(&s->wrapped, 9);
    for (int seen = 0, old; (old = atomicCAS(&s->swapped, seen, seen + 1)) != seen; ) seen = old;
}

TEST(atomics_lose_nothing) {
    enum { N = 20000 };
    Sums s;
    memset(&s, 0, sizeof s);
    Sums *gpu = upload(&s, 1);
    atomics_kernel<<<(N + 127) / 128, 128>>>(gpu, N);
    download(&s, gpu, 1);
    CHECK(s.f == N && s.d == N*0.5 && s.i == -N/2*(N - 1) && s.u == 3u*N);
    CHECK(s.l == (unsigned long long)N << 33 && s.most == N - 1 && s.least == 1 - N);
    CHECK(s.wrapped == N % 10 && s.swapped == N);
}

// ---- numbers ----

// The neighbour that is nearer, of two as near the even one: by definition, in double.
static unsigned short nearest_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    unsigned short low = (unsigned short)(bits >> 16);       // toward zero
    float a = __bfloat162float(__ushort_as_bfloat16(low));
    float b = __bfloat162float(__ushort_as_bfloat16((unsigned short)(low + 1)));
    double to_a = fabs((double)x - a), to_b = fabs((double)b - x);
    if (isinf(b)) to_b = fabs(ldexp(x < 0 ? -1 : 1, 128) - (double)x);
    return to_a < to_b || (to_a == to_b && low % 2 == 0) ? low : (unsigned short)(low + 1);
}

TEST(bf16_rounds_to_nearest_even) {
    for (unsigned bits = 0; bits < 65536; bits++) {          // what fits stays as it is
        float x = __bfloat162float(__ushort_as_bfloat16((unsigned short)bits));
        unsigned short back = __bfloat16_as_ushort(__float2bfloat16_rn(x));
        CHECK_MSG(isnan(x) ? (back & 0x7FFF) > 0x7F80 : back == bits, "%04x: %04x", bits, back);
    }
    uint32_t state = 1;
    for (int i = 0; i < 200000; i++) {
        state = state * 1664525u + 1013904223u;
        uint32_t bits = i % 4 == 0 ? (state & 0xFFFF0000u) | 0x8000u : state;    // 0x8000 is a tie
        float x;
        memcpy(&x, &bits, sizeof x);
        if (isnan(x) || isinf(x)) continue;
        unsigned short got = __bfloat16_as_ushort(__float2bfloat16(x));
        CHECK_MSG(got == nearest_bf16(x), "%a: %04x, not %04x", x, got, nearest_bf16(x));
    }
    float nan = NAN, inf = INFINITY;
    uint32_t small_nan = 0x7F800001u;                        // its upper half alone were infinity
    CHECK(isnan(__bfloat162float(__float2bfloat16(nan))));
    CHECK(isnan(__bfloat162float(__float2bfloat16(-nan))));
    CHECK(__bfloat162float(__float2bfloat16(-inf)) == -inf);
    memcpy(&nan, &small_nan, sizeof nan);
    CHECK(isnan(__bfloat162float(__float2bfloat16(nan))));
}

__global__ void bf16_kernel(float *out, float x, float y) {
    __nv_bfloat16 a = __float2bfloat16(x), b = (__nv_bfloat16)y;
    __nv_bfloat162 both = __floats2bfloat162_rn(x, y), product = __hmul2(both, both);
    float2 back = __bfloat1622float2(both);
    out[0] = (float)(a + b);
    out[1] = (float)(a * b);
    out[2] = (float)(a - b);
    out[3] = (float)(a / b);
    out[4] = __low2float(product);
    out[5] = __high2float(product);
    out[6] = back.x - back.y;
    out[7] = __bfloat162float(__hfma(a, b, a));
}

TEST(bf16_arithmetic_rounds_each_result) {
    float out[8] = {0}, x = 1.00390625f, y = 3.140625f;      // x lies between two bf16: tie, to 1
    float *gpu = upload(out, 8);
    bf16_kernel<<<1, 1>>>(gpu, x, y);
    download(out, gpu, 8);
    const float expected[8] = { 4.140625f, 3.140625f, -2.140625f, 0.318359375f, 1.0f, 9.875f,
                                -2.140625f, 4.140625f };
    const double rounding = ldexp(1, -8);                    // bf16: half a unit of 2^-7
    for (int i = 0; i < 8; i++) {
        CHECK_MSG(fabs(out[i] - expected[i]) <= rounding * fabs(expected[i]), "%d: %g", i, out[i]);
        __nv_bfloat16 fits = __float2bfloat16(out[i]);
        CHECK_MSG(i == 6 || __bfloat162float(fits) == out[i], "%d: %g is no bf16", i, out[i]);
    }
}

__global__ void functions_kernel(float *out, float x) {
    out[0] = rsqrtf(x);
    out[1] = __expf(x);
    out[2] = __logf(x);
    out[3] = __fdividef(1.0f, x);
    out[4] = exp2f(x);
    out[5] = tanhf(x);
    out[6] = __frcp_rn(x);
    out[7] = (float)__popc(0xF0F0u) + (float)__clz(1) + (float)__ffs(8);
    out[8] = __int_as_float(__float_as_int(x)) + __uint_as_float(__float_as_uint(x));
    out[9] = (float)min(3, -4) + (float)max(7u, 8u) + min(x, 0.5f) + max(x, 0.25f);
    out[10] = __ldg(&out[0]) - __ldcs(&out[0]) + __ldcg(&out[0]);
    __stcs(&out[11], 1.5f);
    __stcg(&out[12], 2.5f);
}

TEST(functions_of_the_device) {
    float out[13] = {0};
    float *gpu = upload(out, 13);
    const float x = 1.75f;
    functions_kernel<<<1, 1>>>(gpu, x);
    download(out, gpu, 13);
    const double expected[13] = { 1/sqrt(1.75), exp(1.75), log(1.75), 1/1.75, exp2(1.75),
                                  tanh(1.75), 1/1.75, 8 + 31 + 4, 3.5, -4 + 8 + 0.5 + 1.75,
                                  1/sqrt(1.75), 1.5, 2.5 };
    for (int i = 0; i < 13; i++)                 // the fast versions on a GPU: some units of 2^-23
        CHECK_MSG(fabs(out[i] - expected[i]) <= 1e-6 * fabs(expected[i]), "%d: %.9g", i, out[i]);
}

TEST(vectors_are_aligned_for_one_access) {
    CHECK(sizeof(float4) == 16 && alignof(float4) == 16 && sizeof(float2) == 8);
    CHECK(alignof(float2) == 8 && sizeof(float3) == 12 && alignof(int4) == 16);
    CHECK(alignof(uint4) == 16 && sizeof(uint2) == 8 && sizeof(ushort4) == 8);
    CHECK(sizeof(__nv_bfloat162) == 4 && alignof(__nv_bfloat162) == 4);
    float4 v = make_float4(1, 2, 3, 4);
    CHECK(v.x == 1 && v.y == 2 && v.z == 3 && v.w == 4);
}

// ---- tensor cores ----

#ifndef EMULATOR
#define PTX_LDMATRIX4(name, form) \
    __device__ void name(uint32_t r[4], const void *row) { \
        asm volatile("ldmatrix.sync.aligned.m8n8.x4" form ".shared.b16 {%0,%1,%2,%3}, [%4];" \
            : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) \
            : "r"((uint32_t)__cvta_generic_to_shared(row))); \
    }
#define PTX_LDMATRIX2(name, form) \
    __device__ void name(uint32_t r[2], const void *row) { \
        asm volatile("ldmatrix.sync.aligned.m8n8.x2" form ".shared.b16 {%0,%1}, [%2];" \
            : "=r"(r[0]), "=r"(r[1]) : "r"((uint32_t)__cvta_generic_to_shared(row))); \
    }
PTX_LDMATRIX4(emulated_ldmatrix_x4, "")
PTX_LDMATRIX4(emulated_ldmatrix_x4_trans, ".trans")
PTX_LDMATRIX2(emulated_ldmatrix_x2, "")
PTX_LDMATRIX2(emulated_ldmatrix_x2_trans, ".trans")
__device__ void emulated_mma_m16n8k16(float d[4], const uint32_t a[4], const uint32_t b[2],
                                      const float c[4]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]),
          "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}
__device__ void emulated_cp_async(void *to, const void *from, int bytes, int read) {
    uint32_t address = (uint32_t)__cvta_generic_to_shared(to);
    if (bytes == 16)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;"
                     :: "r"(address), "l"(from), "r"(read));
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                     :: "r"(address), "l"(from), "r"(read));
}
__device__ void emulated_cp_async_commit() { asm volatile("cp.async.commit_group;"); }
__device__ void emulated_cp_async_wait_1() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }
__device__ void emulated_cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#else
static void emulated_cp_async_wait_1() { emulated_cp_async_wait(1); }
#endif

__device__ uint32_t pair_of(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &pair, sizeof bits);
    return bits;
}

// The manual's formulas: element i of lane's fragment is A[row][col]; likewise B and C.
__device__ int a_row(int lane, int i) { return lane/4 + (i % 4 >= 2 ? 8 : 0); }
__device__ int a_col(int lane, int i) { return lane%4*2 + i%2 + (i >= 4 ? 8 : 0); }
__device__ int b_row(int lane, int i) { return lane%4*2 + i%2 + (i >= 2 ? 8 : 0); }
__device__ int b_col(int lane) { return lane/4; }
__device__ int c_row(int lane, int i) { return lane/4 + (i >= 2 ? 8 : 0); }
__device__ int c_col(int lane, int i) { return lane%4*2 + i%2; }

// d (16,8) = a (16,16) b (16,8) + c, fragments filled by the formulas.
__global__ void mma_kernel(float *d, const float *a, const float *b, const float *c) {
    int lane = (int)threadIdx.x;
    uint32_t fa[4], fb[2];
    float f[4];
    for (int i = 0; i < 8; i += 2)
        fa[i/2] = pair_of(a[a_row(lane, i)*16 + a_col(lane, i)],
                          a[a_row(lane, i + 1)*16 + a_col(lane, i + 1)]);
    for (int i = 0; i < 4; i += 2)
        fb[i/2] = pair_of(b[b_row(lane, i)*8 + b_col(lane)], b[b_row(lane, i + 1)*8 + b_col(lane)]);
    for (int i = 0; i < 4; i++) f[i] = c[c_row(lane, i)*8 + c_col(lane, i)];
    emulated_mma_m16n8k16(f, fa, fb, f);
    for (int i = 0; i < 4; i++) d[c_row(lane, i)*8 + c_col(lane, i)] = f[i];
}

// The same through shared memory and ldmatrix. A is stored as it is, and B once by rows, which
// .trans turns, and once by columns.
__global__ void ldmatrix_kernel(float *d, const float *a, const float *b, const float *c) {
    __shared__ alignas(16) __nv_bfloat16 A[16][24], B[16][8], Bt[8][24];   // 24: with gaps, too
    int lane = (int)threadIdx.x;
    for (int i = lane; i < 256; i += 32) A[i/16][i%16] = __float2bfloat16(a[i]);
    for (int i = lane; i < 128; i += 32) {
        B[i/8][i%8] = __float2bfloat16(b[i]);
        Bt[i%8][i/8] = __float2bfloat16(b[i]);
    }
    __syncwarp();
    uint32_t fa[4], fb[2], fbt[2], twice[4];
    float f[4];
    emulated_ldmatrix_x4(fa, &A[lane%16][lane/16*8]);
    emulated_ldmatrix_x2_trans(fb, B[lane%16]);
    emulated_ldmatrix_x2(fbt, &Bt[lane%8][lane/8%2*8]);
    emulated_ldmatrix_x4_trans(twice, B[lane%16]);
    bool right = true;                           // each register, for a swap on both sides cancels
    for (int i = 0; i < 8; i += 2)
        right = right && fa[i/2] == pair_of(a[a_row(lane, i)*16 + a_col(lane, i)],
                                            a[a_row(lane, i)*16 + a_col(lane, i) + 1]);
    for (int i = 0; i < 4; i += 2)
        right = right && fb[i/2] == pair_of(b[b_row(lane, i)*8 + b_col(lane)],
                                            b[(b_row(lane, i) + 1)*8 + b_col(lane)]);
    for (int i = 0; i < 4; i++) right = right && fb[i % 2] == fbt[i % 2] && fb[i % 2] == twice[i];
    for (int i = 0; i < 4; i++) f[i] = c[c_row(lane, i)*8 + c_col(lane, i)];
    emulated_mma_m16n8k16(f, fa, fb, f);
    for (int i = 0; i < 4; i++) d[c_row(lane, i)*8 + c_col(lane, i)] = right ? f[i] : NAN;
}

TEST(tensor_cores_multiply) {
    float a[256], b[128], c[128], d[2][128] = {{0}};
    uint32_t state = 7;
    for (int i = 0; i < 256; i++) a[i] = __bfloat162float(__float2bfloat16(random_float(&state)));
    for (int i = 0; i < 128; i++) b[i] = __bfloat162float(__float2bfloat16(random_float(&state)));
    for (int i = 0; i < 128; i++) c[i] = random_float(&state);
    float *ga = upload(a, 256), *gb = upload(b, 128), *gc = upload(c, 128);
    for (int way = 0; way < 2; way++) {
        float *gd = upload(d[way], 128);
        if (way == 0) mma_kernel<<<1, 32>>>(gd, ga, gb, gc);
        else ldmatrix_kernel<<<1, 32>>>(gd, ga, gb, gc);
        download(d[way], gd, 128);
        for (int row = 0; row < 16; row++)
            for (int col = 0; col < 8; col++) {
                double sum = c[row*8 + col], got = d[way][row*8 + col];
                for (int k = 0; k < 16; k++) sum += (double)a[row*16 + k] * b[k*8 + col];
                // 17 terms of at most 1, added in float, on a GPU in an order of its own
                CHECK_MSG(fabs(got - sum) < 17*17 * ldexp(1, -24), "way %d, %d,%d: %g, not %g", way,
                          row, col, got, sum);
            }
    }
    OK(cudaFree(ga));
    OK(cudaFree(gb));
    OK(cudaFree(gc));
}

// Two groups of copies, of which one may be under way while the other is read; 6 of 16 bytes are
// zeros at the end of the second.
__global__ void copy_kernel(int *out, const int *x) {
    __shared__ alignas(16) int first[32][4], second[32][4], third[32];
    int t = (int)threadIdx.x;
    emulated_cp_async(first[t], x + t*4, 16, 16);
    emulated_cp_async_commit();
    emulated_cp_async(second[t], x + t*4, 16, 8);
    emulated_cp_async(&third[t], x + t, 4, 4);
    emulated_cp_async_commit();
    emulated_cp_async_wait_1();
    for (int i = 0; i < 4; i++) out[t*9 + i] = first[t][i];
    emulated_cp_async_wait_all();
    for (int i = 0; i < 4; i++) out[t*9 + 4 + i] = second[t][i];
    out[t*9 + 8] = third[t];
}

TEST(asynchronous_copies_arrive_when_waited_for) {
    int x[128], out[32*9] = {0};
    for (int i = 0; i < 128; i++) x[i] = 100 + i;
    int *gx = upload(x, 128), *gpu = upload(out, 32*9);
    copy_kernel<<<1, 32>>>(gpu, gx);
    download(out, gpu, 32*9);
    OK(cudaFree(gx));
    for (int t = 0; t < 32; t++) {
        for (int i = 0; i < 4; i++) CHECK(out[t*9 + i] == 100 + t*4 + i);
        for (int i = 0; i < 4; i++) CHECK(out[t*9 + 4 + i] == (i < 2 ? 100 + t*4 + i : 0));
        CHECK(out[t*9 + 8] == 100 + t);
    }
}

// ---- cuBLASLt ----

typedef struct {
    cudaDataType_t in, out;
    cublasOperation_t ta, tb;
    int m, n, k, batches;
    float alpha, beta;
    cublasLtEpilogue_t epilogue;
    int padding;                       // of the leading dimensions
} Product;

enum { MAX_PRODUCT = 1 << 14 };        // elements of a matrix, batches and padding included

// Matrices on the host, in double; those that are stored as bf16 hold numbers that fit.
typedef struct {
    double A[MAX_PRODUCT], B[MAX_PRODUCT], C[MAX_PRODUCT], aux[MAX_PRODUCT], bias[256];
} Operands;

static void fill(double *x, size_t n, cudaDataType_t type, uint32_t *state) {
    for (size_t i = 0; i < n; i++) {
        float r = random_float(state);
        x[i] = type == CUDA_R_32F ? r : __bfloat162float(__float2bfloat16(r));
    }
}

static void *upload_as(const double *x, size_t n, cudaDataType_t type) {
    static float f[MAX_PRODUCT];
    static __nv_bfloat16 h[MAX_PRODUCT];
    for (size_t i = 0; i < n; i++) { f[i] = (float)x[i]; h[i] = __float2bfloat16((float)x[i]); }
    return type == CUDA_R_32F ? (void *)upload(f, n) : (void *)upload(h, n);
}

static void download_as(double *x, void *p, size_t n, cudaDataType_t type) {
    static float f[MAX_PRODUCT];
    static __nv_bfloat16 h[MAX_PRODUCT];
    if (type == CUDA_R_32F) download(f, (float *)p, n);
    else download(h, (__nv_bfloat16 *)p, n);
    for (size_t i = 0; i < n; i++) x[i] = type == CUDA_R_32F ? f[i] : __bfloat162float(h[i]);
}

static cublasLtMatrixLayout_t layout_of(cudaDataType_t type, int rows, int cols, int ld,
                                        int batches) {
    cublasLtMatrixLayout_t l;
    int32_t count = batches;
    int64_t stride = (int64_t)ld*cols;
    BLAS_OK(cublasLtMatrixLayoutCreate(&l, type, (uint64_t)rows, (uint64_t)cols, ld));
    BLAS_OK(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                             sizeof count));
    BLAS_OK(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                             &stride, sizeof stride));
    return l;
}

static void describe(cublasLtMatmulDesc_t d, const Product *p, void *bias, void *aux, int64_t ld) {
    uint32_t epilogue = (uint32_t)p->epilogue;
    int32_t ta = p->ta, tb = p->tb;
    BLAS_OK(cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta));
    BLAS_OK(cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb));
    BLAS_OK(cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                           sizeof epilogue));
    if (epilogue & (4 | 16 | 256 | 512))
        BLAS_OK(cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                               sizeof bias));
    if (!(epilogue & 128)) return;
    BLAS_OK(cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux,
                                           sizeof aux));
    BLAS_OK(cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld,
                                           sizeof ld));
}

// What cuBLASLt makes of the operands: D over x->C, and what the epilogue writes over aux and bias.
static cublasStatus_t product_run(Operands *x, const Product *p, cublasComputeType_t compute) {
    int rows_a = p->ta ? p->k : p->m, rows_b = p->tb ? p->n : p->k, pad = p->padding;
    int lda = rows_a + pad, ldb = rows_b + pad, ldd = p->m + pad;
    size_t a_size = (size_t)lda*(size_t)(p->m*p->k/rows_a*p->batches);
    size_t b_size = (size_t)ldb*(size_t)(p->n*p->k/rows_b*p->batches);
    size_t d_size = (size_t)ldd*(size_t)(p->n*p->batches);
    void *A = upload_as(x->A, a_size, p->in), *B = upload_as(x->B, b_size, p->in);
    void *D = upload_as(x->C, d_size, p->out), *aux = upload_as(x->aux, d_size, p->out);
    void *bias = upload_as(x->bias, 256, p->out);
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t d;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    BLAS_OK(cublasLtCreate(&handle));
    BLAS_OK(cublasLtMatmulDescCreate(&d, compute, CUDA_R_32F));
    BLAS_OK(cublasLtMatmulPreferenceCreate(&preference));
    describe(d, p, bias, aux, ldd);
    cublasLtMatrixLayout_t la = layout_of(p->in, rows_a, p->m*p->k/rows_a, lda, p->batches);
    cublasLtMatrixLayout_t lb = layout_of(p->in, rows_b, p->n*p->k/rows_b, ldb, p->batches);
    cublasLtMatrixLayout_t ld = layout_of(p->out, p->m, p->n, ldd, p->batches);
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, d, la, lb, ld, ld, preference, 1,
                                                           &found, &count);
    if (status == CUBLAS_STATUS_SUCCESS && count == 1)
        status = cublasLtMatmul(handle, d, &p->alpha, A, la, B, lb, &p->beta, D, ld, D, ld,
                                &found.algo, NULL, 0, NULL);
    download_as(x->C, D, d_size, p->out);
    download_as(x->aux, aux, d_size, p->out);
    download_as(x->bias, bias, 256, p->out);
    OK(cudaFree(A));
    OK(cudaFree(B));
    cublasLtMatrixLayoutDestroy(la);
    cublasLtMatrixLayoutDestroy(lb);
    cublasLtMatrixLayoutDestroy(ld);
    cublasLtMatmulPreferenceDestroy(preference);
    cublasLtMatmulDescDestroy(d);
    cublasLtDestroy(handle);
    return status;
}

static double gelu_of(double x) {
    return 0.5*x*(1 + tanh(sqrt(2/M_PI) * (x + 0.044715*x*x*x)));
}
static double gelu_slope(double x) {
    return (gelu_of(x + 1e-5) - gelu_of(x - 1e-5)) / 2e-5;           // good to 1e-10
}

// The same by definition, in double, one batch.
static void product_expect(Operands *x, const Product *p) {
    int e = (int)p->epilogue, ldd = p->m + p->padding;
    int lda = (p->ta ? p->k : p->m) + p->padding, ldb = (p->tb ? p->n : p->k) + p->padding;
#define OP_A(i, l) x->A[p->ta ? (l) + (i)*lda : (i) + (l)*lda]
#define OP_B(l, j) x->B[p->tb ? (j) + (l)*ldb : (l) + (j)*ldb]
    double gradient[256] = {0};
    for (int j = 0; j < p->n; j++)
        for (int i = 0; i < p->m; i++) {
            double sum = 0, *aux = &x->aux[i + j*ldd], *out = &x->C[i + j*ldd];
            for (int l = 0; l < p->k; l++) sum += OP_A(i, l) * OP_B(l, j);
            double v = p->alpha*sum + (p->beta != 0 ? p->beta * *out : 0);
            if (e & 4) v += x->bias[i];
            if (e & 64) v *= gelu_slope(*aux);
            if (e == CUBLASLT_EPILOGUE_GELU_AUX || e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) *aux = v;
            *out = e & 32 ? gelu_of(v) : v;
            gradient[i] += *out;
        }
    if (e == CUBLASLT_EPILOGUE_DGELU_BGRAD) memcpy(x->bias, gradient, (size_t)p->m*sizeof(double));
    if (e == CUBLASLT_EPILOGUE_BGRADA)
        for (int i = 0; i < p->m; i++) {
            x->bias[i] = 0;
            for (int l = 0; l < p->k; l++) x->bias[i] += OP_A(i, l);
        }
    if (e == CUBLASLT_EPILOGUE_BGRADB)
        for (int j = 0; j < p->n; j++) {
            x->bias[j] = 0;
            for (int l = 0; l < p->k; l++) x->bias[j] += OP_B(l, j);
        }
}

static double distance(const double *a, const double *b, size_t n) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        norm += b[i] * b[i];
    }
    return difference == 0 ? 0 : sqrt(difference / norm);
}

// Relative to the norm. fp32: sums of up to 100 terms in any order, each rounded by 2^-24; tanhf.
// bf16, with 8 significant bits: every element is rounded once, by at most 2^-8 of itself.
static void product_check(const Product *p) {
    static Operands got, expected;
    uint32_t state = 3;
    fill(got.A, MAX_PRODUCT, p->in, &state);
    fill(got.B, MAX_PRODUCT, p->in, &state);
    fill(got.C, MAX_PRODUCT, p->out, &state);
    fill(got.aux, MAX_PRODUCT, p->out, &state);
    fill(got.bias, 256, p->out, &state);
    expected = got;
    if (p->beta == 0) for (int i = 0; i < MAX_PRODUCT; i++) got.C[i] = NAN;      // is not read
    CHECK(product_run(&got, p, CUBLAS_COMPUTE_32F) == CUBLAS_STATUS_SUCCESS);
    product_expect(&expected, p);
    double bound = p->out == CUDA_R_32F ? 1e-5 : ldexp(1, -8) + 1e-5;
    int ldd = p->m + p->padding;
    for (int j = 0; j < p->n; j++) {
        double far = distance(got.C + j*ldd, expected.C + j*ldd, (size_t)p->m);
        CHECK_MSG(far <= bound, "epilogue %d, types %d %d, op %d %d, column %d: %g", p->epilogue,
                  p->in, p->out, p->ta, p->tb, j, far);
        far = distance(got.aux + j*ldd, expected.aux + j*ldd, (size_t)p->m);
        CHECK_MSG(far <= bound, "epilogue %d: aux, column %d: %g", p->epilogue, j, far);
    }
    CHECK_MSG(distance(got.bias, expected.bias, 256) <= bound, "epilogue %d: bias", p->epilogue);
}

static const cudaDataType_t type_in[3] = { CUDA_R_32F, CUDA_R_16BF, CUDA_R_16BF };
static const cudaDataType_t type_out[3] = { CUDA_R_32F, CUDA_R_16BF, CUDA_R_32F };

TEST(cublaslt_products) {
    for (int types = 0; types < 3; types++)
        for (int op = 0; op < 4; op++)
            for (int scaled = 0; scaled < 2; scaled++) {
                Product p = { type_in[types], type_out[types], op & 1 ? CUBLAS_OP_T : CUBLAS_OP_N,
                              op & 2 ? CUBLAS_OP_T : CUBLAS_OP_N, 34, 18, 70, 1,
                              scaled ? -0.5f : 1.0f, scaled ? 2.0f : 0.0f,
                              CUBLASLT_EPILOGUE_DEFAULT, 2 };
                product_check(&p);
                p.m = 7; p.n = 1; p.k = 3; p.padding = 1;
                product_check(&p);
            }
}

TEST(cublaslt_epilogues) {
    const cublasLtEpilogue_t all[] = { CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU,
        CUBLASLT_EPILOGUE_GELU_BIAS, CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_DGELU_BGRAD, CUBLASLT_EPILOGUE_BGRADA,
        CUBLASLT_EPILOGUE_BGRADB };
    for (int types = 0; types < 2; types++)
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
            Product p = { type_in[types], type_out[types], CUBLAS_OP_T, CUBLAS_OP_N, 40, 24, 56, 1,
                          1.0f, 0.0f, all[i], 8 };
            product_check(&p);
            p.ta = CUBLAS_OP_N;
            p.tb = CUBLAS_OP_T;
            product_check(&p);
        }
}

TEST(cublaslt_batches) {
    static Operands got, one, expected;
    Product p = { CUDA_R_32F, CUDA_R_32F, CUBLAS_OP_N, CUBLAS_OP_T, 9, 11, 5, 3, 1.0f, 1.0f,
                  CUBLASLT_EPILOGUE_DEFAULT, 1 };
    uint32_t state = 5;
    fill(got.A, MAX_PRODUCT, p.in, &state);
    fill(got.B, MAX_PRODUCT, p.in, &state);
    fill(got.C, MAX_PRODUCT, p.in, &state);
    expected = got;
    CHECK(product_run(&got, &p, CUBLAS_COMPUTE_32F) == CUBLAS_STATUS_SUCCESS);
    for (int b = 0; b < 3; b++) {
        memcpy(one.A, expected.A + b*10*5, sizeof(double)*10*5);
        memcpy(one.B, expected.B + b*12*5, sizeof(double)*12*5);
        memcpy(one.C, expected.C + b*10*11, sizeof(double)*10*11);
        product_expect(&one, &p);
        for (int j = 0; j < 11; j++)
            CHECK(distance(got.C + b*10*11 + j*10, one.C + j*10, 9) < 1e-5);
    }
}

#ifdef EMULATOR
// Several algorithms, which a mask of reduction schemes limits; time is what they declare.
TEST(cublaslt_algorithms) {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t d;
    cublasLtMatrixLayout_t l;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found[8], checked;
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE;
    int n = 0;
    BLAS_OK(cublasLtCreate(&handle));
    BLAS_OK(cublasLtMatmulDescCreate(&d, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    BLAS_OK(cublasLtMatrixLayoutCreate(&l, CUDA_R_16BF, 8, 8, 8));
    BLAS_OK(cublasLtMatmulPreferenceCreate(&preference));
#define HEURISTIC() BLAS_OK(cublasLtMatmulAlgoGetHeuristic(handle, d, l, l, l, l, preference, 8, \
                                                           found, &n))
    HEURISTIC();
    CHECK(n == 1);
    setenv("EMULATOR_ALGORITHMS", "6", 1);
    HEURISTIC();
    CHECK(n == 6);
    BLAS_OK(cublasLtMatmulAlgoCheck(handle, d, l, l, l, l, &found[5].algo, &checked));
    found[5].algo.data[0] = 99;
    CHECK(cublasLtMatmulAlgoCheck(handle, d, l, l, l, l, &found[5].algo, &checked)
          == CUBLAS_STATUS_INVALID_VALUE);
    BLAS_OK(cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes));
    HEURISTIC();
    CHECK(n == 3);
    unsetenv("EMULATOR_ALGORITHMS");
    cublasLtMatmulPreferenceDestroy(preference);
    cublasLtMatrixLayoutDestroy(l);
    cublasLtMatmulDescDestroy(d);
    cublasLtDestroy(handle);
}
#endif

TEST(cublaslt_refuses_what_it_cannot) {
    static Operands x;
    const Product good = { CUDA_R_16BF, CUDA_R_16BF, CUBLAS_OP_N, CUBLAS_OP_N, 8, 8, 8, 1, 1.0f,
                           0.0f, CUBLASLT_EPILOGUE_DEFAULT, 0 };
    CHECK(product_run(&x, &good, CUBLAS_COMPUTE_32F) == CUBLAS_STATUS_SUCCESS);
    CHECK(product_run(&x, &good, CUBLAS_COMPUTE_16F) != CUBLAS_STATUS_SUCCESS);
    Product p = good;
    p.padding = -1;                              // the leading dimension is less than the rows
    cublasLtMatrixLayout_t layout;
    if (cublasLtMatrixLayoutCreate(&layout, CUDA_R_16BF, 8, 8, 7) == CUBLAS_STATUS_SUCCESS) {
        cublasLtMatrixLayoutDestroy(layout);
        CHECK(product_run(&x, &p, CUBLAS_COMPUTE_32F) != CUBLAS_STATUS_SUCCESS);
    }
    p = good;
    p.epilogue = CUBLASLT_EPILOGUE_GELU_AUX;
    p.padding = 4;                               // of aux: must be a multiple of 8
    CHECK(product_run(&x, &p, CUBLAS_COMPUTE_32F) != CUBLAS_STATUS_SUCCESS);
    int32_t half = 0;
    BLAS_OK(cublasLtMatrixLayoutCreate(&layout, CUDA_R_16BF, 8, 8, 8));
    CHECK(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                           &half, sizeof half) == CUBLAS_STATUS_INVALID_VALUE);
    BLAS_OK(cublasLtMatrixLayoutDestroy(layout));
}

// ---- the host's side ----

__constant__ int table[4];
__device__ int counter;

__global__ void symbols_kernel(int *out) { out[0] = table[3] + atomicAdd(&counter, 1); }

TEST(variables_on_the_device) {
    const int values[4] = { 1, 2, 3, 40 };
    int start = 2, count = 0, out = 0;
    int *gpu = upload(&out, 1);
    OK(cudaMemcpyToSymbol(table, values, sizeof values));
    OK(cudaMemcpyToSymbol(counter, &start, sizeof start));
    symbols_kernel<<<1, 1>>>(gpu);
    download(&out, gpu, 1);
    OK(cudaMemcpyFromSymbol(&count, counter, sizeof count));
    CHECK(out == 42 && count == 3);
}

TEST(memory_goes_where_it_should) {
    int host[4] = { 1, 2, 3, 4 }, *gpu = NULL, *other = NULL, *pinned = NULL, *none;
    int *volatile stray = host;        // no compiler need warn of what is tested here
    OK(cudaMalloc((void **)&gpu, sizeof host));
    OK(cudaMalloc(&other, sizeof host));
    OK(cudaMallocHost(&pinned, sizeof host));
    OK(cudaMemcpyAsync(gpu, host, sizeof host, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(other, gpu, sizeof host, cudaMemcpyDeviceToDevice));
    OK(cudaMemsetAsync(other + 1, 0, 4));
    OK(cudaMemcpy(pinned, other, sizeof host, cudaMemcpyDefault));
    CHECK(pinned[0] == 1 && pinned[1] == 0 && pinned[3] == 4);
    CHECK(cudaMemcpy(gpu, host, sizeof host, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
    CHECK(cudaMemcpy(gpu, host, (size_t)1 << 40, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    OK(cudaFree(NULL));
    CHECK(cudaMalloc(&none, (size_t)1 << 50) == cudaErrorMemoryAllocation);
    CHECK(cudaFree(stray) == cudaErrorInvalidValue);
    CHECK(strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory") == 0);
    cudaGetLastError();
    OK(cudaFree(gpu));
    OK(cudaFree(other));
    OK(cudaFreeHost(pinned));
}

TEST(events_measure_time) {
    cudaEvent_t begin, end;
    float ms = -1;
    int out[70] = {0}, *gpu = upload(out, 70);
    OK(cudaEventCreate(&begin));
    OK(cudaEventCreate(&end));
    CHECK(cudaEventElapsedTime(&ms, begin, end) == cudaErrorInvalidResourceHandle);
    cudaGetLastError();
    OK(cudaEventRecord(begin));
    barrier_votes_kernel<<<1, 90>>>(gpu);
    OK(cudaEventRecord(end));
    OK(cudaEventSynchronize(end));
    OK(cudaEventElapsedTime(&ms, begin, end));
    CHECK(ms > 0 && ms < 60000);
    download(out, gpu, 70);
    OK(cudaEventDestroy(begin));
    OK(cudaEventDestroy(end));
}

// ---- streams ----

__global__ void write_kernel(int *x, int value) { *x = value; }
__global__ void add_kernel(int *sum, const int *x) { *sum = 3 * *sum + *x; }

__global__ void mod_kernel(int *x) { *x %= 1000; }

enum { ROUNDS = 8, NO_FAULT = -1, NO_WAIT_TO_READ, NO_WAIT_TO_WRITE, NO_WAIT_AT_THE_END,
       WAIT_FOR_THE_OTHER, STREAM_FAULTS };

// One stream writes numbers, another adds them up, by the events that they wait for; `fault` leaves
// out one of the waits. Returns whether the sum is right.
static bool pipeline(int fault) {
    int *gpu, *x, *sum, *result, zero[2] = { 0, 0 }, expected = 0;
    cudaStream_t writer, reader;
    cudaEvent_t written, read;
    OK(cudaMallocHost(&result, sizeof *result));
    *result = -1;
    gpu = upload(zero, 2);
    x = gpu;
    sum = gpu + 1;
    OK(cudaStreamCreateWithFlags(&writer, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithPriority(&reader, cudaStreamNonBlocking, -1));
    OK(cudaEventCreateWithFlags(&written, cudaEventDisableTiming));
    OK(cudaEventCreateWithFlags(&read, cudaEventDisableTiming));
    for (int i = 0; i < ROUNDS; i++) {
        if (i > 0 && fault != NO_WAIT_TO_WRITE) OK(cudaStreamWaitEvent(writer, read, 0));
        write_kernel<<<1, 1, 0, writer>>>(x, i + 1);
        OK(cudaEventRecord(written, writer));
        if (fault != NO_WAIT_TO_READ) OK(cudaStreamWaitEvent(reader, written, 0));
        add_kernel<<<1, 1, 0, reader>>>(sum, x);
        OK(cudaEventRecord(read, reader));
        expected = 3*expected + i + 1;
    }
    OK(cudaMemcpyAsync(result, sum, sizeof *result, cudaMemcpyDeviceToHost, reader));
    if (fault != NO_WAIT_AT_THE_END)
        OK(cudaStreamSynchronize(fault == WAIT_FOR_THE_OTHER ? writer : reader));
    bool right = *result == expected;
    OK(cudaStreamDestroy(writer));
    OK(cudaStreamDestroy(reader));
    OK(cudaEventDestroy(written));
    OK(cudaEventDestroy(read));
    OK(cudaGetLastError());
    OK(cudaFree(gpu));
    OK(cudaFreeHost(result));
    return right;
}

TEST(events_order_streams) { CHECK(pipeline(NO_FAULT)); }

// The default stream and those that are not cudaStreamNonBlocking wait for each other.
TEST(the_default_stream_waits_for_others) {
    int zero[2] = { 0, 0 }, out = 0, *gpu = upload(zero, 2);
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    write_kernel<<<1, 1, 0, stream>>>(gpu, 5);
    add_kernel<<<1, 1>>>(gpu + 1, gpu);
    write_kernel<<<1, 1, 0, stream>>>(gpu, 7);
    add_kernel<<<1, 1, 0, stream>>>(gpu + 1, gpu);
    OK(cudaMemcpy(&out, gpu + 1, sizeof out, cudaMemcpyDeviceToHost));
    CHECK_MSG(out == 3*5 + 7, "%d", out);
    write_kernel<<<1, 1, 0, stream>>>(gpu, 9);
    OK(cudaStreamSynchronize(0));
    OK(cudaStreamDestroy(stream));
    download(zero, gpu, 2);
    CHECK(zero[0] == 9);
}

// A wait is for the event as it was recorded last when the wait was asked for; for one that was
// never recorded there is nothing to wait for.
TEST(an_event_is_a_moment) {
    int zero = 0, out = 0, *gpu = upload(&zero, 1);
    cudaStream_t first, second;
    cudaEvent_t event, never;
    OK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    OK(cudaEventCreate(&never));
    OK(cudaStreamWaitEvent(first, never, 0));
    OK(cudaEventSynchronize(never));
    CHECK(cudaEventQuery(never) == cudaSuccess);
    write_kernel<<<1, 1, 0, first>>>(gpu, 1);
    OK(cudaEventRecord(event, first));
    OK(cudaStreamWaitEvent(second, event, 0));
    add_kernel<<<1, 1, 0, second>>>(gpu, gpu);
    OK(cudaEventRecord(event, second));
    OK(cudaStreamWaitEvent(first, event, 0));
    add_kernel<<<1, 1, 0, first>>>(gpu, gpu);
    OK(cudaEventRecord(event, first));
    while (cudaEventQuery(event) == cudaErrorNotReady) { }
    while (cudaStreamQuery(first) == cudaErrorNotReady) { }
    cudaGetLastError();
    OK(cudaMemcpy(&out, gpu, sizeof out, cudaMemcpyDeviceToHost));
    CHECK(out == 16);
    OK(cudaStreamDestroy(first));
    OK(cudaStreamDestroy(second));
    OK(cudaEventDestroy(event));
    OK(cudaEventDestroy(never));
    OK(cudaFree(gpu));
}

// What is destroyed while work is queued is kept until that is done; memory is freed after it.
TEST(what_is_queued_is_done) {
    int *gpu, *later, *pinned, zero = 0;
    cudaStream_t stream;
    cudaEvent_t event;
    OK(cudaMallocHost(&pinned, sizeof *pinned));
    gpu = upload(&zero, 1);
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaEventCreate(&event));
    OK(cudaMallocAsync(&later, sizeof *later, stream));
    write_kernel<<<1, 1, 0, stream>>>(later, 4);
    add_kernel<<<1, 1, 0, stream>>>(gpu, later);
    OK(cudaFreeAsync(later, stream));
    OK(cudaEventRecord(event, stream));
    OK(cudaEventDestroy(event));
    OK(cudaMemcpyAsync(pinned, gpu, sizeof *pinned, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(gpu));                           // waits for all of it
    CHECK(*pinned == 4);
    OK(cudaFreeHost(pinned));
}

TEST(events_that_cannot_be_compared) {
    cudaEvent_t untimed, event;
    float ms;
    OK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
    OK(cudaEventCreate(&event));
    OK(cudaEventRecord(untimed));
    OK(cudaEventRecord(event));
    OK(cudaDeviceSynchronize());
    CHECK(cudaEventElapsedTime(&ms, untimed, event) == cudaErrorInvalidResourceHandle);
    CHECK(cudaGetLastError() == cudaErrorInvalidResourceHandle);
    OK(cudaEventElapsedTime(&ms, event, event));
    CHECK(ms == 0);
    OK(cudaEventDestroy(untimed));
    OK(cudaEventDestroy(event));
}

TEST(priorities_of_streams) {
    int least = -9, greatest = 9, priority = 9;
    cudaStream_t stream;
    OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CHECK(least == 0 && greatest < 0);
    OK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest - 1));
    OK(cudaStreamGetPriority(stream, &priority));
    CHECK(priority == greatest);
    OK(cudaStreamDestroy(stream));
}

// ---- graphs ----

// Captures x = the pinned number, sum = 3 sum + x, sum = 3 sum + 5 in a stream.
static cudaGraphExec_t captured_sums(int *x, int *sum, const int *pinned, cudaStream_t stream) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    size_t nodes = 0;
    int five = 5;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    OK(cudaMemcpyAsync(x, pinned, sizeof *x, cudaMemcpyHostToDevice, stream));
    add_kernel<<<1, 1, 0, stream>>>(sum, x);
    write_kernel<<<1, 1, 0, stream>>>(x, five);
    five = 6;                                    // arguments are those of the capture
    add_kernel<<<1, 1, 0, stream>>>(sum, x);
    OK(cudaGetLastError());
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphGetNodes(graph, NULL, &nodes));
    CHECK(nodes == 4);
    OK(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cudaGraphDestroy(graph));
    return exec;
}

// A capture runs nothing. Each launch of its graph runs all of it, after what the stream holds, and
// reads pinned memory then. Returns whether the last sum is right, or would be without the wait.
static bool replayed(int waits) {
    int zero[2] = { 0, 0 }, *gpu = upload(zero, 2), *pinned, expected = 0, sum = -1;
    cudaStream_t stream, other;
    cudaEvent_t event;
    OK(cudaMallocHost(&pinned, 2 * sizeof *pinned));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    cudaGraphExec_t exec = captured_sums(gpu, gpu + 1, pinned, stream);
    OK(cudaMemcpy(&sum, gpu + 1, sizeof sum, cudaMemcpyDeviceToHost));
    CHECK_MSG(sum == 0, "the capture ran: %d", sum);
    for (int i = 1; i <= 4; i++) {
        *pinned = i;
        OK(cudaGraphLaunch(exec, stream));
        add_kernel<<<1, 1, 0, stream>>>(gpu + 1, gpu);
        OK(cudaStreamSynchronize(stream));
        expected = 3*(3*(3*expected + i) + 5) + 5;
    }
    mod_kernel<<<1, 1, 0, stream>>>(gpu + 1);
    expected %= 1000;
    *pinned = 7;
    for (int i = 0; i < 2*ROUNDS; i++) {
        OK(cudaGraphLaunch(exec, stream));
        expected = (3*(3*expected + 7) + 5) % 1000;
        mod_kernel<<<1, 1, 0, stream>>>(gpu + 1);
    }
    OK(cudaGraphExecDestroy(exec));              // a launch goes on
    OK(cudaEventRecord(event, stream));
    if (waits) OK(cudaStreamWaitEvent(other, event, 0));
    pinned[1] = -1;
    OK(cudaMemcpyAsync(pinned + 1, gpu + 1, sizeof sum, cudaMemcpyDeviceToHost, other));
    OK(cudaStreamSynchronize(other));
    bool right = pinned[1] == expected;
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamDestroy(stream));
    OK(cudaStreamDestroy(other));
    OK(cudaEventDestroy(event));
    OK(cudaFreeHost(pinned));
    download(zero, gpu, 2);
    return right;
}

TEST(a_graph_replays_what_was_captured) { CHECK(replayed(1)); }

// What may not be done while a stream captures. Each ends the capture.
enum { SYNCHRONIZE, QUERY, SYNCHRONIZE_DEVICE, MALLOC, FREE, MALLOC_HOST, COPY, COPY_PAGEABLE,
       QUERY_EVENT, DEFAULT_STREAM, WAIT_FOR_OUTSIDE, FORBIDDEN };

static cudaError_t forbidden(int what, cudaStream_t stream, cudaEvent_t outside, int *gpu) {
    int *p = NULL, x = 0;
    switch (what) {
    case SYNCHRONIZE: return cudaStreamSynchronize(stream);
    case QUERY: return cudaStreamQuery(stream);
    case SYNCHRONIZE_DEVICE: return cudaDeviceSynchronize();
    case MALLOC: return cudaMalloc(&p, 4);
    case FREE: return cudaFree(gpu);
    case MALLOC_HOST: return cudaMallocHost(&p, 4);
    case COPY: return cudaMemcpy(gpu, &x, sizeof x, cudaMemcpyHostToDevice);
    case COPY_PAGEABLE:
        return cudaMemcpyAsync(&x, gpu, sizeof x, cudaMemcpyDeviceToHost, stream);
    case QUERY_EVENT: return cudaEventQuery(outside);
    case DEFAULT_STREAM: write_kernel<<<1, 1>>>(gpu, 1); return cudaGetLastError();
    case WAIT_FOR_OUTSIDE: return cudaStreamWaitEvent(stream, outside, 0);
    }
    return cudaSuccess;
}

TEST(a_capture_refuses_to_wait) {
    int zero[2] = { 0, 0 }, *gpu = upload(zero, 2), x = -1;
    for (int what = 0; what < FORBIDDEN; what++) {
        cudaStream_t stream;
        cudaEvent_t outside;
        cudaGraph_t graph = NULL;
        OK(cudaStreamCreate(&stream));
        OK(cudaEventCreate(&outside));
        OK(cudaEventRecord(outside, stream));
        OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        write_kernel<<<1, 1, 0, stream>>>(gpu, 3);
        OK(cudaGetLastError());
        cudaError_t e = forbidden(what, stream, outside, gpu);
        cudaError_t expected = what == DEFAULT_STREAM ? cudaErrorStreamCaptureImplicit
                             : what == WAIT_FOR_OUTSIDE ? cudaErrorStreamCaptureIsolation
                             : cudaErrorStreamCaptureUnsupported;
        CHECK_MSG(e == expected, "%d: error %d, not %d", what, (int)e, (int)expected);
        write_kernel<<<1, 1, 0, stream>>>(gpu, 4);
        CHECK_MSG(cudaGetLastError() == cudaErrorStreamCaptureInvalidated, "%d goes on", what);
        CHECK_MSG(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated
                  && !graph, "%d: the capture holds", what);
        cudaGetLastError();
        write_kernel<<<1, 1, 0, stream>>>(gpu + 1, what);    // it is a stream as before
        OK(cudaStreamSynchronize(stream));
        OK(cudaMemcpy(&x, gpu + 1, sizeof x, cudaMemcpyDeviceToHost));
        CHECK(x == what);
        OK(cudaEventDestroy(outside));
        OK(cudaStreamDestroy(stream));
    }
    download(zero, gpu, 1);
    CHECK_MSG(zero[0] == 0, "a refused capture ran");
}

// What is allowed: other streams; with the relaxed mode memory; an event for the capture alone.
TEST(a_capture_leaves_others_alone) {
    int zero[2] = { 0, 0 }, *gpu = upload(zero, 2), *p = NULL;
    cudaStream_t stream, other;
    cudaEvent_t event;
    cudaGraph_t graph;
    cudaStreamCaptureStatus status;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    OK(cudaEventCreate(&event));
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorIllegalState);
    CHECK(cudaStreamBeginCapture(NULL, cudaStreamCaptureModeGlobal)
          == cudaErrorStreamCaptureUnsupported);
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed) == cudaErrorIllegalState);
    write_kernel<<<1, 1, 0, stream>>>(gpu, 3);
    write_kernel<<<1, 1, 0, other>>>(gpu + 1, 4);
    OK(cudaStreamSynchronize(other));
    OK(cudaMalloc(&p, 4));
    OK(cudaFree(p));
    OK(cudaEventRecord(event, stream));
    OK(cudaStreamIsCapturing(stream, &status));
    CHECK(status == cudaStreamCaptureStatusActive);
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaStreamIsCapturing(stream, &status));
    CHECK(status == cudaStreamCaptureStatusNone);
    CHECK(cudaEventSynchronize(event) == cudaErrorCapturedEvent);
    OK(cudaEventRecord(event, stream));
    OK(cudaEventSynchronize(event));
    OK(cudaGraphDestroy(graph));
    OK(cudaEventDestroy(event));
    OK(cudaStreamDestroy(stream));
    OK(cudaStreamDestroy(other));
    cudaGetLastError();
    download(zero, gpu, 2);
    CHECK_MSG(zero[0] == 0 && zero[1] == 4, "%d and %d", zero[0], zero[1]);
}

TEST(properties_of_the_device) {
    cudaDeviceProp p;
    int count = 0, blocks = 0;
    OK(cudaGetDeviceCount(&count));
    CHECK(count >= 1);
    OK(cudaSetDevice(0));
    OK(cudaGetDeviceProperties(&p, 0));
    CHECK(p.warpSize == 32 && p.maxThreadsPerBlock == 1024 && p.multiProcessorCount > 0);
    CHECK(p.sharedMemPerBlock == 48 << 10 && p.name[0]);
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, where_kernel, 1024, 0));
    CHECK(blocks == 1 || blocks == 2);
}

// ---- what only the emulator does ----

#ifdef EMULATOR

__global__ void unwritten_kernel(float *out) {
    __shared__ float x[4];
    extern __shared__ double dynamic[];
    __shared__ __nv_bfloat16 half;
    out[0] = x[3];
    out[1] = (float)dynamic[1];
    out[2] = (float)half;
    x[3] = 1.0f;                                 // the next block does not find it
}

TEST(unwritten_memory_is_nan) {
    float host[4], *gpu;
    OK(cudaMalloc(&gpu, sizeof host));
    OK(cudaMemcpy(host, gpu, sizeof host, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 4; i++) CHECK(isnan(host[i]));
    OK(cudaMemset(gpu, 0, sizeof host));
    unwritten_kernel<<<3, 1, 2*sizeof(double)>>>(gpu);
    download(host, gpu, 4);
    CHECK(isnan(host[0]) && isnan(host[1]) && isnan(host[2]) && host[3] == 0);
}

__global__ void too_early_kernel(int *out) {
    __shared__ alignas(16) int x[4], y[4];
    emulated_cp_async(x, &out[4], 16, 16);
    emulated_cp_async_commit();
    emulated_cp_async(y, &out[4], 16, 16);
    emulated_cp_async_commit();
    out[0] = x[0];
    emulated_cp_async_wait(1);
    out[1] = x[0];
    out[2] = y[0];
    emulated_cp_async_wait_all();
    out[3] = y[0];
}

TEST(a_copy_does_not_arrive_before_it_is_waited_for) {
    int host[8] = { 0, 0, 0, 0, 5, 6, 7, 8 };
    int *gpu = upload(host, 8);
    too_early_kernel<<<1, 1>>>(gpu);
    download(host, gpu, 8);
    CHECK(host[0] == -1 && host[1] == 5 && host[2] == -1 && host[3] == 5);
}

// Lane 1 has exited, and lane 0 reads it: there is nothing to read.
__global__ void exited_kernel(float *out) {
    if (threadIdx.x % 2 == 1) return;
    out[threadIdx.x] = __shfl_down_sync(0xFFFFFFFFu, 1.0f, 1);
    out[threadIdx.x + 1] = __shfl_sync(0xFFFFFFFFu, 1.0f, 2);
}

TEST(an_exited_lane_has_no_value) {
    float host[32] = {0};
    float *gpu = upload(host, 32);
    exited_kernel<<<1, 32>>>(gpu);
    download(host, gpu, 32);
    for (int i = 0; i < 32; i++) CHECK(i % 2 ? host[i] == 1.0f : isnan(host[i]));
}

// The second barrier is missing: a thread may overwrite what its neighbour has not read.
__global__ void race_kernel(int *out, int repair) {
    __shared__ int x[64];
    int t = (int)threadIdx.x;
    x[t] = t;
    for (int i = 0; i < 10; i++) {
        __syncthreads();
        int right = x[(t + 1) % 64];
        if (repair) __syncthreads();
        x[t] += right;
    }
    out[t] = x[t];
}

static void race(int out[64], const char *seed, int repair) {
    if (seed) setenv("EMULATOR_SHUFFLE", seed, 1);
    else unsetenv("EMULATOR_SHUFFLE");
    int *gpu = upload(out, 64);
    race_kernel<<<1, 64>>>(gpu, repair);
    download(out, gpu, 64);
}

TEST(a_missing_barrier_shows) {
    const char *outer = getenv("EMULATOR_SHUFFLE");
    char *saved = outer ? strdup(outer) : NULL;
    int right[64] = {0}, wrong[64] = {0}, again[64] = {0}, shuffled[64] = {0}, other[64] = {0};
    race(right, NULL, 1);
    race(shuffled, "1", 1);
    CHECK(memcmp(right, shuffled, sizeof right) == 0);       // what is right does not depend on it
    race(wrong, NULL, 0);
    race(again, NULL, 0);
    CHECK(memcmp(wrong, right, sizeof right) != 0);
    CHECK(memcmp(wrong, again, sizeof wrong) == 0);          // the same wrong answer every time
    race(shuffled, "1", 0);
    race(other, "2", 0);
    CHECK(memcmp(shuffled, right, sizeof right) != 0);
    CHECK(memcmp(shuffled, wrong, sizeof wrong) != 0);
    CHECK(memcmp(shuffled, other, sizeof other) != 0);
    if (saved) setenv("EMULATOR_SHUFFLE", saved, 1);
    else unsetenv("EMULATOR_SHUFFLE");
    free(saved);
}

TEST(the_environment_makes_another_gpu) {
    size_t available, total;
    void *p;
    int count = -1;
    cudaFuncAttributes attributes;
    setenv("EMULATOR_MEMORY", "1000", 1);
    OK(cudaMemGetInfo(&available, &total));
    CHECK(available <= total && total == 1000);
    CHECK(cudaMalloc(&p, 1001) == cudaErrorMemoryAllocation);
    OK(cudaGetLastError() == cudaErrorMemoryAllocation ? cudaSuccess : cudaErrorInvalidValue);
    unsetenv("EMULATOR_MEMORY");
    setenv("EMULATOR_DEVICES", "0", 1);
    CHECK(cudaGetDeviceCount(&count) == cudaErrorNoDevice && count == 0);
    unsetenv("EMULATOR_DEVICES");
    setenv("EMULATOR_DRIVER", "12080", 1);
    CHECK(cudaDriverGetVersion(&count) == cudaSuccess && count == 12080);
    CHECK(cudaGetDeviceCount(&count) == cudaErrorInsufficientDriver);
    unsetenv("EMULATOR_DRIVER");
    setenv("EMULATOR_DEVICES", "8", 1);
    OK(cudaGetDeviceCount(&count));
    CHECK(count == 8);
    setenv("CUDA_VISIBLE_DEVICES", "3", 1);
    OK(cudaGetDeviceCount(&count));
    CHECK(count == 1 && cudaSetDevice(1) == cudaErrorInvalidDevice);
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("EMULATOR_DEVICES");
    cudaGetLastError();
    setenv("EMULATOR_CAPABILITY", "75", 1);
    CHECK(cudaFuncGetAttributes(&attributes, race_kernel) == cudaErrorNoKernelImageForDevice);
    race_kernel<<<1, 64>>>(NULL, 1);
    CHECK(cudaGetLastError() == cudaErrorNoKernelImageForDevice);
    unsetenv("EMULATOR_CAPABILITY");
    cudaGetLastError();
}

// ---- orders of the streams ----

enum { SEEDS = 20 };

// Runs f in every order; how often it returned true in random ones, and whether at once and late.
typedef struct { bool at_once, late; int random; } Seen;

static Seen in_every_order(bool (*f)(int), int argument) {
    const char *outer = getenv("EMULATOR_STREAMS");
    char *saved = strdup(outer ? outer : ""), order[32];
    Seen seen = { false, false, 0 };
    setenv("EMULATOR_STREAMS", "", 1);
    seen.at_once = f(argument);
    setenv("EMULATOR_STREAMS", "late", 1);
    seen.late = f(argument);
    for (int seed = 1; seed <= SEEDS; seed++) {
        snprintf(order, sizeof order, "random:%d", seed);
        setenv("EMULATOR_STREAMS", order, 1);
        seen.random += f(argument);
    }
    setenv("EMULATOR_STREAMS", saved, 1);
    free(saved);
    return seen;
}

TEST(a_missing_wait_shows) {
    Seen right = in_every_order(pipeline, NO_FAULT);
    CHECK(right.at_once && right.late && right.random == SEEDS);
    for (int fault = 0; fault < STREAM_FAULTS; fault++) {
        Seen seen = in_every_order(pipeline, fault);
        CHECK_MSG(seen.at_once && seen.random < SEEDS*2/3, "fault %d: right in %d random orders",
                  fault, seen.random);
        CHECK_MSG(seen.late == (fault == NO_WAIT_TO_WRITE), "fault %d, late", fault);
    }
}

TEST(a_missing_wait_for_a_graph_shows) {
    Seen right = in_every_order(replayed, 1), wrong = in_every_order(replayed, 0);
    CHECK(right.at_once && right.late && right.random == SEEDS);
    CHECK_MSG(wrong.at_once && !wrong.late && wrong.random < SEEDS, "right in %d orders",
              wrong.random);
}

// Pinned memory is read when the copy's turn comes; other memory before the call returns.
static bool reused(int pinned) {
    int *host = NULL, local, out = 0, *gpu = upload(&out, 1);
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    if (pinned) OK(cudaMallocHost(&host, sizeof *host));
    int *from = pinned ? host : &local;
    *from = 1;
    OK(cudaMemcpyAsync(gpu, from, sizeof *from, cudaMemcpyHostToDevice, stream));
    *from = 2;
    OK(cudaMemcpyAsync(&out, gpu, sizeof out, cudaMemcpyDeviceToHost, stream));
    bool first = out == 1;                       // nobody need wait for a copy to pageable memory
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(gpu));
    OK(cudaFreeHost(host));
    return first;
}

TEST(pinned_memory_reused_too_early_shows) {
    Seen pageable = in_every_order(reused, 0), pinned = in_every_order(reused, 1);
    CHECK(pageable.at_once && pageable.late && pageable.random == SEEDS);
    CHECK(pinned.at_once && !pinned.late && pinned.random < SEEDS);
}

// cudaMemcpy from pageable memory, and any cudaMemset, may return before the device is done: a
// stream that the default stream does not wait for may come first.
static bool other_stream(int nonblocking) {
    int one = 1, out[2] = { 0, 0 }, *gpu = upload(out, 2), *pinned;
    cudaStream_t stream;
    OK(cudaMallocHost(&pinned, sizeof out));
    OK(cudaStreamCreateWithFlags(&stream, nonblocking ? cudaStreamNonBlocking : cudaStreamDefault));
    OK(cudaMemcpy(gpu, &one, sizeof one, cudaMemcpyHostToDevice));
    OK(cudaMemset(gpu + 1, 1, 1));
    add_kernel<<<1, 1, 0, stream>>>(gpu, gpu + 1);
    OK(cudaMemcpyAsync(pinned, gpu, sizeof out, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    bool right = pinned[0] == 3 + 1 && pinned[1] == 1;
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(gpu));
    OK(cudaFreeHost(pinned));
    return right;
}

TEST(streams_that_the_default_stream_does_not_wait_for) {
    Seen blocking = in_every_order(other_stream, 0), nonblocking = in_every_order(other_stream, 1);
    CHECK(blocking.at_once && blocking.late && blocking.random == SEEDS);
    CHECK(nonblocking.at_once && !nonblocking.late && nonblocking.random < SEEDS);
}

// A product keeps what its descriptors and factors were when it was called.
static bool product_queued(int) {
    static float x[16];
    float alpha = 2, beta = 1;
    for (int i = 0; i < 16; i++) x[i] = (float)(i % 5 == 0);             // the identity
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t d;
    cublasLtMatrixLayout_t layout;
    cudaStream_t stream;
    float *gpu = upload(x, 16), *pinned;
    OK(cudaMallocHost(&pinned, sizeof x));
    OK(cudaStreamCreate(&stream));
    BLAS_OK(cublasLtCreate(&handle));
    BLAS_OK(cublasLtMatmulDescCreate(&d, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    BLAS_OK(cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, 4, 4, 4));
    BLAS_OK(cublasLtMatmul(handle, d, &alpha, gpu, layout, gpu, layout, &beta, gpu, layout, gpu,
                           layout, NULL, NULL, 0, stream));
    alpha = beta = 0;
    memset(layout, 0, sizeof *layout);
    BLAS_OK(cublasLtMatrixLayoutDestroy(layout));
    BLAS_OK(cublasLtMatmulDescDestroy(d));
    BLAS_OK(cublasLtDestroy(handle));
    pinned[0] = -1;
    OK(cudaMemcpyAsync(pinned, gpu, sizeof x, cudaMemcpyDeviceToHost, stream));
    bool soon = pinned[0] != -1;
    OK(cudaStreamSynchronize(stream));
    for (int i = 0; i < 16; i++) CHECK(pinned[i] == (i % 5 == 0 ? 3 : 0));
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(gpu));
    OK(cudaFreeHost(pinned));
    return soon;
}

TEST(products_are_queued) {
    Seen soon = in_every_order(product_queued, 0);
    CHECK(soon.at_once && !soon.late && soon.random < SEEDS);
}

// Who asks again and again whether something is done gets there; until then it is not.
static bool asked(int of_stream) {
    int x = 0, times = 0, *gpu = upload(&x, 1);
    cudaStream_t stream;
    cudaEvent_t begin, end;
    float ms;
    OK(cudaStreamCreate(&stream));
    OK(cudaEventCreate(&begin));
    OK(cudaEventCreate(&end));
    OK(cudaEventRecord(begin, stream));
    for (int i = 0; i < 9; i++) write_kernel<<<1, 1, 0, stream>>>(gpu, i);
    OK(cudaEventRecord(end, stream));
    while ((of_stream ? cudaStreamQuery(stream) : cudaEventQuery(end)) == cudaErrorNotReady) {
        CHECK(cudaGetLastError() == cudaErrorNotReady);
        if (cudaEventElapsedTime(&ms, begin, end) == cudaErrorNotReady) times++;
        cudaGetLastError();
    }
    OK(cudaEventElapsedTime(&ms, begin, end));
    CHECK(ms > 0);
    download(&x, gpu, 1);
    CHECK(x == 8);
    OK(cudaStreamDestroy(stream));
    OK(cudaEventDestroy(begin));
    OK(cudaEventDestroy(end));
    return times > 0;
}

TEST(what_is_not_ready) {
    for (int of_stream = 0; of_stream < 2; of_stream++) {
        Seen waited = in_every_order(asked, of_stream);
        CHECK(!waited.at_once && waited.late && waited.random > 0);
    }
}

TEST(handles_that_are_gone) {
    int x = 0, *gpu = upload(&x, 1);
    int *volatile stray = &x;          // no compiler need warn of what is tested here
    cudaStream_t stream;
    cudaEvent_t event;
    OK(cudaEventCreate(&event));
    OK(cudaStreamCreate(&stream));
    OK(cudaStreamDestroy(stream));
    write_kernel<<<1, 1, 0, stream>>>(gpu, 1);
    CHECK(cudaGetLastError() == cudaErrorInvalidResourceHandle);
    CHECK(cudaStreamSynchronize(stream) == cudaErrorInvalidResourceHandle);
    CHECK(cudaStreamQuery(stream) == cudaErrorInvalidResourceHandle);
    CHECK(cudaStreamWaitEvent(stream, event, 0) == cudaErrorInvalidResourceHandle);
    CHECK(cudaEventRecord(event, stream) == cudaErrorInvalidResourceHandle);
    CHECK(cudaMemsetAsync(gpu, 1, 1, stream) == cudaErrorInvalidResourceHandle);
    CHECK(cudaMemcpyAsync(gpu, &x, 4, cudaMemcpyHostToDevice, stream) ==
          cudaErrorInvalidResourceHandle);
    CHECK(cudaStreamDestroy(stream) == cudaErrorInvalidResourceHandle);
    CHECK(cudaEventRecord(NULL) == cudaErrorInvalidResourceHandle);
    CHECK(cudaFreeHost(stray) == cudaErrorInvalidValue);
    cudaGetLastError();
    download(&x, gpu, 1);
    CHECK(x == 0);
    OK(cudaEventDestroy(event));
}

// ---- faults: each ends a program of its own, with a report ----

__global__ void two_barriers_kernel(int) {
    if (threadIdx.x < 40) __syncthreads();
    else { __syncthreads(); }
    (void)0;
    if (threadIdx.x < 40) __syncthreads();
    else
        __syncthreads();
}
__global__ void barrier_and_shuffle_kernel(int) {
    if (threadIdx.x % 32 < 20) __shfl_xor_sync(0xFFFFFFFFu, 1, 1);
    __syncthreads();
}
__global__ void barrier_and_lost_warp_kernel(int) {
    if (threadIdx.x == 33) __syncwarp(0x6);
    __syncthreads();
}
__global__ void two_collectives_kernel(int) {
    if (threadIdx.x < 3) __ballot_sync(0xFFFFFFFFu, 1);
    else __any_sync(0xFFFFFFFFu, 1);
}
template <int N> __global__ void wrong_mask_kernel(int) { __syncwarp(1u << N); }
__global__ void masks_differ_kernel(int) { __syncwarp(threadIdx.x ? 0x7 : 0x3); }
__global__ void much_shared_kernel(int) {
    __shared__ float a[40 << 8], b[9 << 8];
    a[threadIdx.x] = b[threadIdx.x] = 0;
}
__global__ void trap_kernel(int) { if (threadIdx.x == 3) __trap(); }
__global__ void half_a_warp_kernel(int) {
    __shared__ alignas(16) __nv_bfloat16 x[256];
    uint32_t r[4];
    if (threadIdx.x < 16) emulated_ldmatrix_x4(r, &x[threadIdx.x*8]);
}
__global__ void crooked_row_kernel(int) {
    __shared__ alignas(16) __nv_bfloat16 x[512];
    uint32_t r[4];
    emulated_ldmatrix_x4(r, &x[threadIdx.x*8 + (threadIdx.x == 9)]);
}
__global__ void not_shared_kernel(int) {
    __shared__ alignas(16) __nv_bfloat16 x[248];
    uint32_t r[4];
    emulated_ldmatrix_x4(r, x + threadIdx.x*8);
}
__global__ void no_memory_kernel(int one) { *(volatile int *)(size_t)(16*one) = 1; }
__device__ int deep(int n) {
    volatile char here[2000];
    here[n % 2000] = 1;
    return n == 0 ? 0 : deep(n - 1) + here[(n + 1) % 2000];
}
__global__ void recursion_kernel(int one) { if (deep(one * 100000) == 1) __trap(); }
static void host_barrier() { __syncthreads(); }

typedef struct {
    const char *name;
    void (*kernel)(int);
    int threads;
    const char *expected[4];           // texts of the report
} Fault;

#define FAULT(kernel) #kernel, kernel
static const Fault faults[] = {
    { FAULT(two_barriers_kernel), 64, { "barrier divergence: it waits at __syncthreads",
        "thread (40,0,0)", "others of its block at __syncthreads", "tests/test_emulator.cu:" } },
    { FAULT(barrier_and_shuffle_kernel), 64, { "barrier divergence: 64 of 64 threads wait",
        "thread (0,0,0), as 19 more of its warp, waits in __shfl_xor_sync, tests/test_emulator.cu:",
        "with mask ffffffff, for thread (20,0,0), which waits at __syncthreads",
        "thread (52,0,0), as 11 more of its warp, waits at __syncthreads" } },
    { FAULT(barrier_and_lost_warp_kernel), 64, { "barrier divergence",
        "thread (33,0,0) waits in __syncwarp",
        "with mask 00000006, for thread (34,0,0), which waits at __syncthreads",
        "thread (32,0,0), as 30 more of its warp, waits at __syncthreads" } },
    { FAULT(two_collectives_kernel), 32, { "deadlock: 32 of 32 threads wait",
        "thread (0,0,0), as 2 more of its warp, waits in __ballot_sync",
        "for thread (3,0,0), which waits in __any_sync",
        "thread (3,0,0), as 28 more of its warp, waits in __any_sync" } },
    { FAULT(wrong_mask_kernel<5>), 32, { "kernel wrong_mask_kernel<5>", "thread (0,0,0)",
        "__syncwarp with mask 00000020, which leaves out the caller, lane 0", "" } },
    { FAULT(masks_differ_kernel), 3, { "deadlock: 3 of 3 threads wait",
        "thread (0,0,0) waits in __syncwarp", "with mask 00000003, for thread (1,0,0), which waits",
        "thread (1,0,0), as 1 more of its warp, waits in __syncwarp" } },
    { FAULT(much_shared_kernel), 32, { "more than 48 KB of static __shared__ memory", "", "",
        "" } },
    { FAULT(trap_kernel), 32, { "thread (3,0,0): __trap, tests/test_emulator.cu:", "", "", "" } },
    { FAULT(half_a_warp_kernel), 32, { "ldmatrix by lanes 0000ffff: it needs all 32 lanes",
        "", "", "" } },
    { FAULT(crooked_row_kernel), 32, { "thread (9,0,0): ldmatrix.x4: address",
        "is not a multiple of 16, tests/test_emulator.cu:", "", "" } },
    { FAULT(not_shared_kernel), 32, { "thread (31,0,0): ldmatrix.x4: the 16 bytes at",
        "are not in shared memory", "", "" } },
#ifndef EMULATOR_ASAN
    { FAULT(no_memory_kernel), 1, { "access to unmapped address 0x10", "thread (0,0,0)",
        "", "" } },
    { FAULT(recursion_kernel), 1, { "stack overflow: its local variables exceed 64 KB", "",
        "", "" } },
#endif
};
enum { FAULTS = sizeof faults / sizeof *faults };

static const char *program;            // this one, to start it anew

// Runs "PROGRAM NAME" and returns what it wrote; its exit status in *status.
static const char *run_fault(const char *name, int *status) {
    static char said[1 << 16], command[4096];
    snprintf(command, sizeof command, "'%s' '%s' 2>&1", program, name);
    FILE *pipe = popen(command, "r");
    size_t n = pipe ? fread(said, 1, sizeof said - 1, pipe) : 0;
    said[n] = '\0';
    *status = pipe ? pclose(pipe) >> 8 : -1;
    return said;
}

static int fault_main(const char *name) {
    printf("before\n");                // must not be lost
    if (strcmp(name, "host_barrier") == 0) host_barrier();
    for (int i = 0; i < FAULTS; i++)
        if (strcmp(name, faults[i].name) == 0) {
            void (*kernel)(int) = faults[i].kernel;
            emulator::launch(name, kernel, dim3(1, 2), faults[i].threads)(1);
            cudaDeviceSynchronize();
        }
    printf("after\n");                 // must not be reached
    return 0;
}

TEST(faults_are_reported) {
    int status;
    for (int i = 0; i < FAULTS; i++) {
        const char *said = run_fault(faults[i].name, &status);
        CHECK_MSG(status == 1 && strstr(said, "before") && !strstr(said, "after"),
                  "%s: status %d: %s", faults[i].name, status, said);
        CHECK_MSG(strstr(said, faults[i].name) && strstr(said, ", block (0,"), "%s: %s",
                  faults[i].name, said);
        if (getenv("EMULATOR_SHUFFLE")) continue;            // others may come first then
        for (int k = 0; k < 4; k++)
            CHECK_MSG(strstr(said, faults[i].expected[k]), "%s: no \"%s\" in: %s", faults[i].name,
                      faults[i].expected[k], said);
    }
    const char *said = run_fault("host_barrier", &status);
    CHECK(status == 1 && strstr(said, "emulator: __syncthreads outside of a kernel"));
    const char *outer = getenv("EMULATOR_STREAMS");
    char *saved = strdup(outer ? outer : "");
    setenv("EMULATOR_STREAMS", "never", 1);
    said = run_fault("host_barrier", &status);
    CHECK(strstr(said, "__syncthreads outside"));            // nothing was queued
    said = run_fault(faults[0].name, &status);
    CHECK(status == 1 &&
          strstr(said, "EMULATOR_STREAMS=never: expected late, random or random:SEED"));
    setenv("EMULATOR_STREAMS", saved, 1);
    free(saved);
}

#endif

int main(int argc, char **argv) {
#ifdef EMULATOR
    program = argv[0];
    if (argc == 2) return fault_main(argv[1]);
    RUN(unwritten_memory_is_nan);
    RUN(a_copy_does_not_arrive_before_it_is_waited_for);
    RUN(an_exited_lane_has_no_value);
    RUN(a_missing_barrier_shows);
    RUN(the_environment_makes_another_gpu);
    RUN(a_missing_wait_shows);
    RUN(pinned_memory_reused_too_early_shows);
    RUN(a_missing_wait_for_a_graph_shows);
    RUN(streams_that_the_default_stream_does_not_wait_for);
    RUN(products_are_queued);
    RUN(what_is_not_ready);
    RUN(handles_that_are_gone);
    RUN(faults_are_reported);
#endif
    (void)argc;
    (void)argv;
    RUN(every_thread_of_a_grid_runs_once);
    RUN(launches_pass_their_arguments);
    RUN(launches_that_a_gpu_refuses);
    RUN(barriers_separate_reads_from_writes);
    RUN(barriers_count_votes_of_those_who_have_not_exited);
    RUN(shared_memory_however_declared);
    RUN(shuffles_of_every_kind_and_width);
    RUN(parts_of_a_warp_by_mask);
    RUN(votes_and_reductions);
    RUN(atomics_lose_nothing);
    RUN(bf16_rounds_to_nearest_even);
    RUN(bf16_arithmetic_rounds_each_result);
    RUN(functions_of_the_device);
    RUN(vectors_are_aligned_for_one_access);
    RUN(tensor_cores_multiply);
    RUN(asynchronous_copies_arrive_when_waited_for);
    RUN(cublaslt_products);
    RUN(cublaslt_epilogues);
    RUN(cublaslt_batches);
#ifdef EMULATOR
    RUN(cublaslt_algorithms);
#endif
    RUN(cublaslt_refuses_what_it_cannot);
    RUN(variables_on_the_device);
    RUN(memory_goes_where_it_should);
    RUN(events_measure_time);
    RUN(events_order_streams);
    RUN(the_default_stream_waits_for_others);
    RUN(an_event_is_a_moment);
    RUN(what_is_queued_is_done);
    RUN(events_that_cannot_be_compared);
    RUN(priorities_of_streams);
    RUN(a_graph_replays_what_was_captured);
    RUN(a_capture_refuses_to_wait);
    RUN(a_capture_leaves_others_alone);
    RUN(properties_of_the_device);
    return test_end();
}
