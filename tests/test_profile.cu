// The counters of make profile (dev/emulator/count.h), on kernels whose counts are known by hand.
// A block has 256 threads, 8 warps. Every expectation is written as it is counted: blocks, warps,
// requests of each, and then what a request takes.
#include <stdint.h>
#include "test.h"

using namespace emulator;

enum { THREADS = 256, WARPS = 8, BLOCKS = 3, N = BLOCKS * THREADS,
       ALL = BLOCKS * WARPS };                   // warps of a launch

static float *from, *to;                         // of the GPU, at multiples of 256 bytes

static void same(const char *what, uint64_t counted, uint64_t expected) {
    CHECK_MSG(counted == expected, "%s: counted %zu, by hand %zu", what, (size_t)counted,
              (size_t)expected);
}

// So many requests, and what each takes.
struct Expected {
    CountKind kind;
    uint64_t requests, lanes;
    uint64_t bytes = 0, sectors = 0, ideal = 0;  // of global memory: bytes a lane
    uint64_t passes = 0, least = 0;              // 0: not looked at
};
// The one kernel that `launch` launches, which reads and writes so many bytes of memory.
template <class Launch>
static CountedKernel counts(uint64_t read, uint64_t written, Launch launch,
                            const std::vector<Expected> &all) {
    count_clear();
    launch();
    CHECK(cudaDeviceSynchronize() == cudaSuccess && counted().size() == 1);
    CountedKernel k = counted()[0];
    same("read", k.read, read);
    same("written", k.written, written);
    for (const Expected &e : all) {
        Tally t = k.total(e.kind);
        same("requests", t.requests, e.requests);
        same("lanes", t.lanes, e.requests * e.lanes);
        same("sectors", t.sectors, e.requests * e.sectors);
        same("ideal", t.ideal, e.requests * e.ideal);
        if (e.bytes) same("bytes", t.bytes, e.requests * e.lanes * e.bytes);
        if (e.least) same("passes", t.passes, e.requests * e.passes);
        if (e.least) same("least passes", t.least, e.requests * e.least);
    }
    return k;
}

__device__ static int thread() { return (int)(blockIdx.x*blockDim.x + threadIdx.x); }

// ---- global memory ----

template <class T> __global__ void copy_kernel(T *out, const T *x) { out[thread()] = x[thread()]; }

// 32 lanes of 4 bytes are 128 bytes: 4 sectors. Each sector is read once, and each written. With 16
// bytes a lane they are 16 sectors, which a multiprocessor moves in 4 clocks.
TEST(copy) {
    CountedKernel k = counts(N * 4, N * 4, [] {
        copy_kernel<float><<<BLOCKS, THREADS>>>(to, from);
    }, { { GLOBAL_LOAD, ALL, 32, 4, 4, 4 }, { GLOBAL_STORE, ALL, 32, 4, 4, 4 } });
    same("launches", k.launches, 1);
    same("warps", k.warps, ALL);
    k = counts(N * 16, N * 16, [] {
        copy_kernel<float4><<<BLOCKS, THREADS>>>((float4 *)to, (const float4 *)from);
    }, { { GLOBAL_LOAD, ALL, 32, 16, 16, 16 }, { GLOBAL_STORE, ALL, 32, 16, 16, 16 } });
    same("passes", k.total(GLOBAL_LOAD).passes, ALL * 4);
}

__global__ void strided_kernel(float *out, const float *x, int stride) {
    out[thread()] = x[thread() * stride];
}

// Every lane reads from a sector of its own; with a stride of 2, two lanes share one.
TEST(strided) {
    counts(N * 32, N * 4, [] { strided_kernel<<<BLOCKS, THREADS>>>(to, from, 8); },
           { { GLOBAL_LOAD, ALL, 32, 4, 32, 4 }, { GLOBAL_STORE, ALL, 32, 4, 4, 4 } });
    counts(N * 8, N * 4, [] { strided_kernel<<<BLOCKS, THREADS>>>(to, from, 2); },
           { { GLOBAL_LOAD, ALL, 32, 4, 8, 4 } });
}

// 128 bytes that begin 4 bytes into a sector reach into a fifth. Of memory each sector is read once
// nevertheless: all of them, and the one after the last.
TEST(misaligned) {
    counts(N * 4 + 32, N * 4, [] { copy_kernel<float><<<BLOCKS, THREADS>>>(to, from + 1); },
           { { GLOBAL_LOAD, ALL, 32, 4, 5, 4 } });
}

__global__ void broadcast_kernel(float *out, const float *x) {
    __shared__ float two;
    if (threadIdx.x == 0) two = 2.0f;
    __syncthreads();
    out[thread()] = x[blockIdx.x] * two;
}

// All lanes read the same 4 bytes: one sector, and in shared memory one pass.
TEST(broadcast) {
    counts(32, N * 4, [] { broadcast_kernel<<<BLOCKS, THREADS>>>(to, from); },
           { { GLOBAL_LOAD, ALL, 32, 4, 1, 1 }, { SHARED_STORE, BLOCKS, 1, 0, 0, 0, 1, 1 },
             { SHARED_LOAD, ALL, 32, 0, 0, 0, 1, 1 } });
}

// ---- shared memory ----

template <int PADDING> __global__ void transpose_kernel(float *out, const float *x) {
    __shared__ float tile[32][32 + PADDING];
    int lane = threadIdx.x % 32;
    for (int r = threadIdx.x / 32; r < 32; r += WARPS) tile[r][lane] = x[32*r + lane];
    __syncthreads();
    for (int r = threadIdx.x / 32; r < 32; r += WARPS) out[32*r + lane] = tile[lane][r];
}

// A column of a tile of 32 columns lies in one bank: 32 passes. With a 33rd it lies in all banks.
TEST(transpose) {
    counts(4096, 4096, [] { transpose_kernel<0><<<1, THREADS>>>(to, from); },
           { { GLOBAL_LOAD, 32, 32, 4, 4, 4 }, { GLOBAL_STORE, 32, 32, 4, 4, 4 },
             { SHARED_STORE, 32, 32, 0, 0, 0, 1, 1 }, { SHARED_LOAD, 32, 32, 0, 0, 0, 32, 1 },
             { BARRIER, WARPS, 32 } });
    counts(4096, 4096, [] { transpose_kernel<1><<<1, THREADS>>>(to, from); },
           { { SHARED_LOAD, 32, 32, 0, 0, 0, 1, 1 } });
}

// Bytes a lane from and to shared memory: a pass serves 8 lanes of 16 bytes. Lanes that are two
// packs apart want every bank twice.
__global__ void packs_kernel(float *out, const float *x, int apart) {
    __shared__ float4 tile[64];
    if (threadIdx.x >= 32) return;
    tile[threadIdx.x * apart] = ((const float4 *)x)[threadIdx.x];
    __syncwarp();
    ((float4 *)out)[threadIdx.x] = tile[threadIdx.x * apart];
}

TEST(packs_in_shared_memory) {
    for (unsigned apart : { 1, 2 })
        counts(512, 512, [=] { packs_kernel<<<1, THREADS>>>(to, from, (int)apart); },
               { { SHARED_STORE, 1, 32, 0, 0, 0, 4*apart, 4 },
                 { SHARED_LOAD, 1, 32, 0, 0, 0, 4*apart, 4 } });
}

// ---- lanes ----

__global__ void sum_kernel(float *out, const float *x) {
    __shared__ float of_warp[WARPS];
    float sum = x[thread()];
    for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int w = 1; w < WARPS; w++) sum += of_warp[w];
    out[blockIdx.x] = sum;
}

// Five shuffles a warp. One lane of each warp stores its sum, and one of the block adds them up.
TEST(reduction) {
    counts(N * 4, 32, [] { sum_kernel<<<BLOCKS, THREADS>>>(to, from); },
           { { GLOBAL_LOAD, ALL, 32, 4, 4, 4 }, { GLOBAL_STORE, BLOCKS, 1, 4, 1, 1 },
             { SHARED_STORE, ALL, 1, 0, 0, 0, 1, 1 },
             { SHARED_LOAD, BLOCKS*(WARPS - 1), 1, 0, 0, 0, 1, 1 },
             { SHUFFLE, ALL * 5, 32 }, { BARRIER, ALL, 32 } });
}

__global__ void divergent_kernel(float *out, const float *x) {
    int i = thread(), lane = i % 32;
    if (lane < 8) out[i] = x[i] + 1.0f;
    else out[i] = x[i] * 2.0f;
    for (int k = 0; k < lane; k += 16) out[i + k] = 0.0f;
}

// Both sides of the branch are requests: of 8 lanes, one sector, and of 24 lanes, three. The loop
// runs once for lanes 1 to 31, and a second time for lanes 17 to 31, which write on from lane 16's
// next: 4 sectors of lanes 1 to 31, and 2 of 60 bytes.
TEST(divergent_branch) {
    CountedKernel k = counts(N * 4, N * 4 + 64, [] {
        divergent_kernel<<<BLOCKS, THREADS>>>(to, from);
    }, {});
    Tally read = k.total(GLOBAL_LOAD), written = k.total(GLOBAL_STORE);
    same("loads", read.requests, ALL * 2);
    same("lanes that load", read.lanes, ALL * (8 + 24));
    same("sectors read", read.sectors, ALL * (1 + 3));
    same("stores", written.requests, ALL * 4);
    same("lanes that store", written.lanes, ALL * (8 + 24 + 31 + 15));
    same("sectors written", written.sectors, ALL * (1 + 3 + 4 + 2));
}

// ---- what runs in one lane of the emulator ----

__global__ void tensor_kernel(float *out, const uint4 *x) {
    __shared__ uint4 tile[32];
    uint32_t a[4];
    float c[4] = {};
    emulated_cp_async(&tile[threadIdx.x], &x[threadIdx.x], 16, threadIdx.x < 24 ? 16 : 0);
    emulated_cp_async_commit();
    emulated_cp_async_wait(0);
    __syncthreads();
    emulated_ldmatrix_x4(a, &tile[threadIdx.x]);
    emulated_mma_m16n8k16(c, a, a, c);
    out[threadIdx.x] = c[0];
}

// Of cp.async's 32 lanes 24 read, 12 sectors; all write to shared memory, 4 passes of 8 lanes, as
// ldmatrix reads them. An mma is 2*16*8*16 FLOP.
TEST(tensor_core_operands) {
    counts(384, 128, [] { tensor_kernel<<<BLOCKS, 32>>>(to, (const uint4 *)from); },
           { { GLOBAL_LOAD, BLOCKS, 24, 16, 12, 12 }, { GLOBAL_STORE, BLOCKS, 32, 4, 4, 4 },
             { SHARED_STORE, BLOCKS, 32, 0, 0, 0, 4, 4 },
             { SHARED_LOAD, BLOCKS, 32, 0, 0, 0, 4, 4 }, { MMA, BLOCKS, 32 } });
}

int main(void) {
    cudaMalloc(&from, 1 << 20);
    cudaMalloc(&to, 1 << 20);
    return run_tests();
}
