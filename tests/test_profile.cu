// The counters of make profile (dev/emulator/count.h), on kernels whose counts are known by hand.
// A block has 256 threads, 8 warps. Every expectation is written as it is counted: blocks, warps,
// requests of each, and then what a request takes.
#include <stdint.h>
#include "test.h"

using emulator::CountedKernel;
using emulator::Tally;

enum { THREADS = 256, WARPS = 8, BLOCKS = 3, N = BLOCKS * THREADS };

static float *from, *to;                         // of the GPU, at multiples of 256 bytes

// The one kernel that `launch` launches.
template <class Launch> static CountedKernel count(Launch launch) {
    emulator::count_clear();
    launch();
    CHECK(cudaDeviceSynchronize() == cudaSuccess && emulator::counted().size() == 1);
    return emulator::counted()[0];
}

#define SAME(what, counted, expected) \
    CHECK_MSG((uint64_t)(counted) == (uint64_t)(expected), "%s: counted %llu, by hand %llu", what, \
              (unsigned long long)(counted), (unsigned long long)(expected))

// The loads or stores of global memory: requests, lanes and sectors of each, if they were packed.
static void check_global(const CountedKernel &k, emulator::CountKind kind, int requests, int lanes,
                         int bytes, int sectors, int ideal) {
    Tally t = k.total(kind);
    SAME("requests", t.requests, requests);
    SAME("lanes", t.lanes, requests * lanes);
    SAME("bytes", t.bytes, requests * lanes * bytes);
    SAME("sectors", t.sectors, requests * sectors);
    SAME("ideal", t.ideal, requests * ideal);
}

static void check_shared(const CountedKernel &k, emulator::CountKind kind, int requests, int lanes,
                         int passes, int least) {
    Tally t = k.total(kind);
    SAME("shared requests", t.requests, requests);
    SAME("shared lanes", t.lanes, requests * lanes);
    SAME("passes", t.passes, requests * passes);
    SAME("least passes", t.least, requests * least);
}

__device__ static int thread() { return (int)(blockIdx.x*blockDim.x + threadIdx.x); }

// ---- global memory ----

template <class T> __global__ void copy_kernel(T *out, const T *x) { out[thread()] = x[thread()]; }

// 32 lanes of 4 bytes are 128 bytes: 4 sectors. Each sector is read once, and each written.
TEST(copy) {
    CountedKernel k = count([] { copy_kernel<float><<<BLOCKS, THREADS>>>(to, from); });
    check_global(k, emulator::GLOBAL_LOAD, BLOCKS*WARPS, 32, 4, 4, 4);
    check_global(k, emulator::GLOBAL_STORE, BLOCKS*WARPS, 32, 4, 4, 4);
    SAME("read", k.read, N * 4);
    SAME("written", k.written, N * 4);
    SAME("launches", k.launches, 1);
    SAME("warps", k.warps, BLOCKS*WARPS);
}

// One request of 16 bytes a lane: 16 sectors, which a multiprocessor moves in 4 clocks.
TEST(float4_copy) {
    CountedKernel k = count([] {
        copy_kernel<float4><<<BLOCKS, THREADS>>>((float4 *)to, (const float4 *)from);
    });
    check_global(k, emulator::GLOBAL_LOAD, BLOCKS*WARPS, 32, 16, 16, 16);
    check_global(k, emulator::GLOBAL_STORE, BLOCKS*WARPS, 32, 16, 16, 16);
    SAME("passes", k.total(emulator::GLOBAL_LOAD).passes, BLOCKS*WARPS * 4);
    SAME("read", k.read, N * 16);
}

__global__ void strided_kernel(float *out, const float *x, int stride) {
    out[thread()] = x[thread() * stride];
}

// Every lane reads from a sector of its own; with a stride of 2, two lanes share one.
TEST(strided) {
    CountedKernel k = count([] { strided_kernel<<<BLOCKS, THREADS>>>(to, from, 8); });
    check_global(k, emulator::GLOBAL_LOAD, BLOCKS*WARPS, 32, 4, 32, 4);
    check_global(k, emulator::GLOBAL_STORE, BLOCKS*WARPS, 32, 4, 4, 4);
    SAME("read", k.read, N * 32);
    k = count([] { strided_kernel<<<BLOCKS, THREADS>>>(to, from, 2); });
    check_global(k, emulator::GLOBAL_LOAD, BLOCKS*WARPS, 32, 4, 8, 4);
}

// 128 bytes that begin 4 bytes into a sector reach into a fifth. Of memory each sector is read once
// nevertheless: all of them, and the one after the last.
TEST(misaligned) {
    CountedKernel k = count([] { copy_kernel<float><<<BLOCKS, THREADS>>>(to, from + 1); });
    check_global(k, emulator::GLOBAL_LOAD, BLOCKS*WARPS, 32, 4, 5, 4);
    check_global(k, emulator::GLOBAL_STORE, BLOCKS*WARPS, 32, 4, 4, 4);
    SAME("read", k.read, N * 4 + 32);
}

__global__ void broadcast_kernel(float *out, const float *x) {
    __shared__ float first;
    if (threadIdx.x == 0) first = x[0];
    __syncthreads();
    out[thread()] = x[blockIdx.x] * first;
}

// All lanes read the same 4 bytes: one sector, and in shared memory one pass.
TEST(broadcast) {
    CountedKernel k = count([] { broadcast_kernel<<<BLOCKS, THREADS>>>(to, from); });
    Tally t = k.total(emulator::GLOBAL_LOAD);
    SAME("requests", t.requests, BLOCKS * (1 + WARPS));
    SAME("lanes", t.lanes, BLOCKS * (1 + WARPS*32));
    SAME("sectors", t.sectors, BLOCKS * (1 + WARPS));
    SAME("ideal", t.ideal, BLOCKS * (1 + WARPS));
    SAME("read", k.read, 32);
    check_shared(k, emulator::SHARED_STORE, BLOCKS, 1, 1, 1);
    check_shared(k, emulator::SHARED_LOAD, BLOCKS*WARPS, 32, 1, 1);
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
    CountedKernel k = count([] { transpose_kernel<0><<<1, THREADS>>>(to, from); });
    check_global(k, emulator::GLOBAL_LOAD, 32, 32, 4, 4, 4);
    check_global(k, emulator::GLOBAL_STORE, 32, 32, 4, 4, 4);
    check_shared(k, emulator::SHARED_STORE, 32, 32, 1, 1);
    check_shared(k, emulator::SHARED_LOAD, 32, 32, 32, 1);
    SAME("barriers", k.total(emulator::BARRIER).requests, WARPS);
    k = count([] { transpose_kernel<1><<<1, THREADS>>>(to, from); });
    check_shared(k, emulator::SHARED_LOAD, 32, 32, 1, 1);
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
    CountedKernel k = count([] { packs_kernel<<<1, THREADS>>>(to, from, 1); });
    check_shared(k, emulator::SHARED_STORE, 1, 32, 4, 4);
    check_shared(k, emulator::SHARED_LOAD, 1, 32, 4, 4);
    k = count([] { packs_kernel<<<1, THREADS>>>(to, from, 2); });
    check_shared(k, emulator::SHARED_STORE, 1, 32, 8, 4);
    check_shared(k, emulator::SHARED_LOAD, 1, 32, 8, 4);
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
    CountedKernel k = count([] { sum_kernel<<<BLOCKS, THREADS>>>(to, from); });
    check_global(k, emulator::GLOBAL_LOAD, BLOCKS*WARPS, 32, 4, 4, 4);
    check_global(k, emulator::GLOBAL_STORE, BLOCKS, 1, 4, 1, 1);
    check_shared(k, emulator::SHARED_STORE, BLOCKS*WARPS, 1, 1, 1);
    check_shared(k, emulator::SHARED_LOAD, BLOCKS*(WARPS - 1), 1, 1, 1);
    SAME("shuffles", k.total(emulator::SHUFFLE).requests, BLOCKS*WARPS * 5);
    SAME("lanes of shuffles", k.total(emulator::SHUFFLE).lanes, BLOCKS*WARPS * 5 * 32);
    SAME("barriers", k.total(emulator::BARRIER).requests, BLOCKS*WARPS);
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
    CountedKernel k = count([] { divergent_kernel<<<BLOCKS, THREADS>>>(to, from); });
    Tally loads = k.total(emulator::GLOBAL_LOAD), stores = k.total(emulator::GLOBAL_STORE);
    SAME("loads", loads.requests, BLOCKS*WARPS * 2);
    SAME("lanes that load", loads.lanes, BLOCKS*WARPS * (8 + 24));
    SAME("sectors read", loads.sectors, BLOCKS*WARPS * (1 + 3));
    SAME("stores", stores.requests, BLOCKS*WARPS * 4);
    SAME("lanes that store", stores.lanes, BLOCKS*WARPS * (8 + 24 + 31 + 15));
    SAME("sectors written", stores.sectors, BLOCKS*WARPS * (1 + 3 + 4 + 2));
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
    CountedKernel k = count([] { tensor_kernel<<<BLOCKS, 32>>>(to, (const uint4 *)from); });
    check_global(k, emulator::GLOBAL_LOAD, BLOCKS, 24, 16, 12, 12);
    check_shared(k, emulator::SHARED_STORE, BLOCKS, 32, 4, 4);
    check_shared(k, emulator::SHARED_LOAD, BLOCKS, 32, 4, 4);
    SAME("mma", k.total(emulator::MMA).requests, BLOCKS);
    SAME("lanes of mma", k.total(emulator::MMA).lanes, BLOCKS * 32);
    check_global(k, emulator::GLOBAL_STORE, BLOCKS, 32, 4, 4, 4);
}

int main(void) {
    if (cudaMalloc(&from, 1 << 20) != cudaSuccess || cudaMalloc(&to, 1 << 20) != cudaSuccess)
        return 1;
    int failed = run_tests();
    cudaFree(from);
    cudaFree(to);
    return failed;
}
