// The emulator (dev/emulator), feature by feature: what a kernel computes here must be what CUDA's
// manuals say, and what a kernel does wrong must be reported. test_gpt2.cu compares what cuBLASLt
// computes with C.
#include <cuda_bf16.h>
#include <math.h>
#include <stdint.h>
#include "dev/ranks/tree.h"            // bf16_narrow
#include "test.h"
typedef __nv_bfloat16 real;
#include "dev/cuda/ptx.h"              // copy_async, load_matrices, mma

#define OK(call) CHECK_MSG((call) == cudaSuccess, "%s: %s", #call, \
                           cudaGetErrorString(cudaGetLastError()))
#define FAILS(call, error) do { CHECK((call) == (error)); cudaGetLastError(); } while (0)

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

struct Stream {
    cudaStream_t s;
    Stream(unsigned flags = cudaStreamNonBlocking) {
        OK(cudaStreamCreateWithPriority(&s, flags, 0));
    }
    ~Stream() { OK(cudaStreamDestroy(s)); }
    operator cudaStream_t() const { return s; }
};

struct Event {
    cudaEvent_t e;
    Event(unsigned flags = cudaEventDefault) { OK(cudaEventCreateWithFlags(&e, flags)); }
    ~Event() { OK(cudaEventDestroy(e)); }
    operator cudaEvent_t() const { return e; }
};

struct Pinned {                        // two numbers in pinned memory
    int *p;
    Pinned() { OK(cudaMallocHost(&p, 2 * sizeof *p)); }
    ~Pinned() { OK(cudaFreeHost(p)); }
    operator int *() const { return p; }
};

// ---- kernels that check themselves: thread i adds 1 + its mistakes to wrong[i], which is -1 ----

__device__ void mistakes(int *wrong, int n) {
    int in_block = (int)((threadIdx.z*blockDim.y + threadIdx.y)*blockDim.x + threadIdx.x);
    int block = (int)((blockIdx.z*gridDim.y + blockIdx.y)*gridDim.x + blockIdx.x);
    wrong[block*(int)(blockDim.x * blockDim.y * blockDim.z) + in_block] += 1 + n;
}

__global__ void indices_kernel(int *wrong) {
    bool grid = gridDim.x == 3 && gridDim.y == 4 && gridDim.z == 2;
    bool block = blockDim.x == 5 && blockDim.y == 3 && blockDim.z == 7;
    mistakes(wrong, !grid + !block);
}

// Each round, thread t adds what its right neighbour had: binomial coefficients. Half of the
// threads leave before.
__global__ void barriers_kernel(int *wrong) {
    __shared__ int x[96], other;
    int t = (int)threadIdx.x, rounds = 20, choose = 1, sum = 0;
    if (t >= 96) { mistakes(wrong, 0); return; }
    if (t == 0) other = 1;
    x[t] = t;
    for (int i = 0; i < rounds; i++) {
        __syncthreads();
        int right = x[(t + 1) % 96];
        __syncthreads();
        x[t] += right * other;
    }
    for (int k = 0; k <= rounds; choose = choose * (rounds - k) / (k + 1), k++)
        sum += choose * ((t + k) % 96);
    mistakes(wrong, x[t] != sum);
}

// All ways to declare shared memory that the rewriter knows.
template <int N> __global__ void declarations_kernel(int *wrong) {
    __shared__ float tile[N][N + 1], row[N];
    __shared__ __align__(16) float4 quad;
    __shared__ int number,
        numbers[2];                              // over two lines
    extern __shared__ __align__(16) float dynamic_part[];
    int t = (int)threadIdx.x, u = N - 1 - t;
    tile[t][N] = (float)t;
    row[t] = 2.0f * (float)t;
    dynamic_part[t] = 3.0f * (float)t;
    if (t == 0) { quad = make_float4(1, 2, 3, 4); number = 5; numbers[0] = 6; numbers[1] = 7; }
    __syncthreads();
    float sum = tile[u][N] + row[u] + dynamic_part[u] + quad.w;
    mistakes(wrong, (sum != 6.0f * (float)u + 4) + (number + numbers[0] + numbers[1] != 18));
}

// With down, who would read past the warp keeps its own.
__global__ void shuffles_kernel(int *wrong) {
    int t = (int)threadIdx.x, lane = t % 32, warp = t - lane, n = 0;
    for (int by = 0; by < 32; by++)
        n += (__shfl_sync(0xFFFFFFFFu, t, by) != warp + by)
           + (__shfl_xor_sync(0xFFFFFFFFu, t, by) != warp + (lane ^ by))
           + (__shfl_down_sync(0xFFFFFFFFu, t, (unsigned)by) != (lane + by < 32 ? t + by : t));
    mistakes(wrong, n);
}

// Parts of a warp at different paces, values of every size, and a last warp of 16 lanes, which need
// not know that the others its mask names do not exist.
__global__ void parts_kernel(int *wrong) {
    int t = (int)threadIdx.x, lane = t % 32, n = 0;
    unsigned mask = t >= 32 ? 0xFFFFFFFFu : lane < 8 ? 0xFFu : lane < 20 ? 0xFFF00u : 0xFFF00000u;
    for (int i = 0; i < (t < 8 ? 5 : 3); i++)
        n += (__shfl_xor_sync(mask, (double)t, 1) != (t ^ 1))
           + (__shfl_xor_sync(mask, (float)t, 2) != (float)(t ^ 2))
           + (__shfl_xor_sync(mask, (long long)t, 3) != (t ^ 3));
    real first = __shfl_sync(mask, (real)(float)t, lane & ~3);
    __syncwarp(mask);
    mistakes(wrong, n + ((float)first != (float)(t & ~3)));
}

__device__ uint32_t pair_of(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &pair, sizeof bits);
    return bits;
}

// Matrices of small integers, whose sums are exact. Rows and columns that are 8 apart differ.
__device__ float a_at(int i, int k) { return (float)((i*7 + k*5) % 17 - 8); }
__device__ float b_at(int k, int j) { return (float)((k*3 + j*11) % 17 - 8); }

// The manual's formulas: element i of lane's fragment is A[row][col]; likewise B and C.
__device__ int a_row(int lane, int i) { return lane/4 + (i % 4 >= 2 ? 8 : 0); }
__device__ int a_col(int lane, int i) { return lane%4*2 + i%2 + (i >= 4 ? 8 : 0); }
__device__ int b_row(int lane, int i) { return lane%4*2 + i%2 + (i >= 2 ? 8 : 0); }

// c (16,8) += a (16,16) b (16,8) through shared memory. A is stored as it is; B once by rows, which
// .trans turns, and once by columns. Each register is compared with the formulas, since a swap on
// both sides would cancel.
__global__ void tensor_cores_kernel(int *wrong) {
    __shared__ __align__(16) real A[16][24], B[16][8], Bt[8][24];      // 24: with gaps, too
    int lane = (int)threadIdx.x, n = 0;
    for (int i = lane; i < 256; i += 32) A[i/16][i%16] = a_at(i/16, i%16);
    for (int i = lane; i < 128; i += 32) B[i/8][i%8] = Bt[i%8][i/8] = b_at(i/8, i%8);
    __syncwarp();
    Fragment a = load_matrices<false>(&A[lane%16][lane/16*8]);
    Fragment b = load_matrices<true>(B[lane%16]);            // twice the same two matrices
    Fragment bt = load_matrices<false>(&Bt[lane%8][lane/8%2*8]);
    for (int i = 0; i < 8; i += 2)
        n += a.x[i/2] != pair_of(a_at(a_row(lane, i), a_col(lane, i)),
                                 a_at(a_row(lane, i), a_col(lane, i) + 1));
    for (int i = 0; i < 4; i += 2)
        n += b.x[i/2] != pair_of(b_at(b_row(lane, i), lane/4), b_at(b_row(lane, i) + 1, lane/4));
    for (int i = 0; i < 4; i++) n += (b.x[i] != b.x[i % 2]) + (b.x[i] != bt.x[i]);
    float c[4];
    for (int i = 0; i < 4; i++) c[i] = (float)(lane*4 + i);
    mma(c, a, b.x);
    for (int i = 0; i < 4; i++) {
        float sum = (float)(lane*4 + i);
        int row = lane/4 + (i >= 2 ? 8 : 0), col = lane%4*2 + i%2;
        for (int k = 0; k < 16; k++) sum += a_at(row, k) * b_at(k, col);
        n += c[i] != sum;
    }
    mistakes(wrong, n);
}

__device__ int source[32][4];

// Two groups of copies, of which one may be under way while the other is read; the second has zeros
// in place of every other row. No copy arrives before it is waited for.
__global__ void copies_kernel(int *wrong) {
    __shared__ __align__(16) int first[32][4], second[32][4], third[32][2];
    int t = (int)threadIdx.x, n = 0;
    for (int i = 0; i < 4; i++) source[t][i] = 100 + t*4 + i;
    copy_async<16>(first[t], source[t], true);
    copy_async_commit();
    copy_async<16>(second[t], source[t], t % 2 == 0);
    copy_async<8>(third[t], source[t] + 2, true);
    copy_async_commit();
    n += first[t][0] != -1;
    copy_async_wait<1>();
    for (int i = 0; i < 4; i++) n += first[t][i] != 100 + t*4 + i;
    n += second[t][0] != -1;
    copy_async_wait<0>();
    for (int i = 0; i < 4; i++) n += second[t][i] != (t % 2 ? 0 : 100 + t*4 + i);
    for (int i = 0; i < 2; i++) n += third[t][i] != 102 + t*4 + i;
    mistakes(wrong, n);
}

// Memory that nobody has written holds NaNs; the next block finds nothing of the one before.
__global__ void unwritten_kernel(int *wrong) {
    __shared__ float x[4];
    extern __shared__ double dynamic[];
    __shared__ real half;
    mistakes(wrong, !isnan(x[3]) + !isnan(dynamic[1]) + !isnan((float)half));
    x[3] = 1.0f;
}

// Lane 1 has exited, and lane 0 reads it: there is nothing to read.
__global__ void exited_kernel(int *wrong) {
    if (threadIdx.x % 2 == 1) { mistakes(wrong, 0); return; }
    float gone = __shfl_down_sync(0xFFFFFFFFu, 1.0f, 1), there = __shfl_sync(0xFFFFFFFFu, 1.0f, 2);
    mistakes(wrong, !isnan(gone) + (there != 1.0f));
}

typedef struct {
    const char *name;
    void (*kernel)(int *wrong);
    dim3 grid, block;
    size_t shared;
} Checked;
static const Checked checked[] = {
    { "indices", indices_kernel, dim3(3, 4, 2), dim3(5, 3, 7), 0 },
    { "barriers", barriers_kernel, 5, 200, 0 },
    { "declarations", declarations_kernel<8>, 1, 8, 8*sizeof(float) },
    { "shuffles", shuffles_kernel, 1, 64, 0 },
    { "parts", parts_kernel, 1, 48, 0 },
    { "tensor cores", tensor_cores_kernel, 1, 32, 0 },
    { "copies", copies_kernel, 1, 32, 0 },
    { "unwritten memory", unwritten_kernel, 3, 1, 2*sizeof(double) },
    { "exited lanes", exited_kernel, 1, 32, 0 },
};

TEST(kernels_that_check_themselves) {
    for (const Checked &c : checked) {
        size_t n = (size_t)c.grid.x*c.grid.y*c.grid.z * c.block.x*c.block.y*c.block.z;
        int *wrong = (int *)malloc(n * sizeof *wrong);
        memset(wrong, 0xFF, n * sizeof *wrong);
        int *gpu = upload(wrong, n);
        void (*kernel)(int *) = c.kernel;
        kernel<<<c.grid, c.block, c.shared>>>(gpu);
        download(wrong, gpu, n);
        for (size_t i = 0; i < n; i++)
            CHECK_MSG(wrong[i] == 0, "%s: thread %zu: %d", c.name, i, wrong[i]);
        free(wrong);
    }
}

// ---- launches ----

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
    Stream stream;
    LAUNCH(float, 1)(gpu, next_number(&calls) + 2, pair, NULL);      // <<<no launch>>>(here)
    arguments_kernel<float>
        <<<dim3(2),
           2, 0, stream>>>(gpu + 2, (size_t)6,
                           pair, (const float *)NULL);
    OK(cudaStreamSynchronize(stream));
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
        CHECK_MSG(cudaGetLastError() == cudaErrorInvalidConfiguration, "launch %d", i);
        CHECK(cudaGetLastError() == cudaSuccess);                    // reading it clears it
    }
    const cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
    OK(cudaFuncSetAttribute(arguments_kernel<float>, most, 64 << 10));
    arguments_kernel<float><<<1, 1, 64 << 10>>>(gpu, 1, pair, NULL);
    CHECK(cudaGetLastError() == cudaSuccess);
    arguments_kernel<double><<<1, 1, (48 << 10) + 1>>>(NULL, 1, pair, NULL);   // another kernel
    CHECK(cudaGetLastError() == cudaErrorInvalidValue);
    FAILS(cudaFuncSetAttribute(arguments_kernel<float>, most, 228 << 10), cudaErrorInvalidValue);
    OK(cudaDeviceSynchronize());
    OK(cudaFree(gpu));
}

// ---- functions ----

__global__ void atomics_kernel(float *sum, int n) {
    int i = (int)(blockIdx.x*blockDim.x + threadIdx.x);
    if (i < n) atomicAdd(sum, 1.0f);
}

TEST(atomics_lose_nothing) {
    enum { N = 20000 };
    float sum = 0.0f, *gpu = upload(&sum, 1);
    atomics_kernel<<<(N + 127) / 128, 128>>>(gpu, N);
    download(&sum, gpu, 1);
    CHECK(sum == N);
}

// Against dev/ranks/tree.h, which does it by the bits; test_comm.c tests that. Every upper half,
// with lower halves around a tie.
TEST(bf16_rounds_to_nearest_even) {
    for (uint32_t high = 0; high < 65536; high++)
        for (uint32_t low : { 0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu }) {
            uint32_t bits = high << 16 | low;
            uint16_t half;
            float x;
            memcpy(&x, &bits, sizeof x);
            real rounded = x;
            memcpy(&half, &rounded, sizeof half);
            CHECK_MSG(isnan(x) ? isnan((float)rounded) : half == bf16_narrow(x), "%a: %04x", x,
                      half);
        }
}

// ---- the host's side ----

TEST(memory_goes_where_it_should) {
    int host[4] = { 1, 2, 3, 4 }, *gpu = NULL, *other = NULL, *pinned = NULL, *none;
    OK(cudaMalloc((void **)&gpu, sizeof host));
    OK(cudaMalloc(&other, sizeof host));
    OK(cudaMallocHost(&pinned, sizeof host));
    OK(cudaMemcpy(pinned, gpu, sizeof host, cudaMemcpyDeviceToHost));
    CHECK(pinned[0] == -1 && pinned[3] == -1);               // a NaN as float
    size_t left, total;
    OK(cudaMemGetInfo(&left, &total));
    CHECK(left <= total - 2*sizeof host);
    FAILS(cudaMemcpy(gpu, host, sizeof host + 1, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    FAILS(cudaFree(gpu + 1), cudaErrorInvalidValue);
    OK(cudaMemcpyAsync(gpu, host, sizeof host, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(other, gpu, sizeof host, cudaMemcpyDeviceToDevice));
    OK(cudaMemsetAsync(other + 1, 0, 4));
    OK(cudaMemcpy(pinned, other, sizeof host, cudaMemcpyDefault));
    CHECK(pinned[0] == 1 && pinned[1] == 0 && pinned[3] == 4);
    FAILS(cudaMemcpy(gpu, host, sizeof host, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    OK(cudaFree(NULL));
    FAILS(cudaMalloc(&none, (size_t)1 << 50), cudaErrorMemoryAllocation);
    CHECK(strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory") == 0);
    OK(cudaFree(gpu));
    OK(cudaFree(other));
    OK(cudaFreeHost(pinned));
}

__global__ void write_kernel(int *x, int value) { *x = value; }
__global__ void add_kernel(int *sum, const int *x) { *sum = 3 * *sum + *x; }
__global__ void mod_kernel(int *x) { *x %= 1000; }

// ---- streams ----

enum { ROUNDS = 8, NO_FAULT = -1, NO_WAIT_TO_READ, NO_WAIT_TO_WRITE, NO_WAIT_AT_THE_END,
       WAIT_FOR_THE_OTHER };

// One stream writes numbers, another adds them up, by the events that they wait for; `fault` leaves
// out one of the waits. Returns whether the sum is right.
static bool pipeline(int fault) {
    int zero[2] = { 0, 0 }, expected = 0, *x = upload(zero, 2), *sum = x + 1;
    Pinned result;
    Stream writer, reader;
    Event written(cudaEventDisableTiming), read(cudaEventDisableTiming);
    *result = -1;
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
    OK(cudaFree(x));
    return right;
}

// ---- graphs ----

// Captures x = the pinned number, sum = 3 sum + x, sum = 3 sum + 5 in a stream.
static cudaGraphExec_t captured_sums(int *x, int *sum, const int *pinned, cudaStream_t stream) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    int five = 5;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    OK(cudaMemcpyAsync(x, pinned, sizeof *x, cudaMemcpyHostToDevice, stream));
    add_kernel<<<1, 1, 0, stream>>>(sum, x);
    write_kernel<<<1, 1, 0, stream>>>(x, five);
    five = 6;                                    // arguments are those of the capture
    add_kernel<<<1, 1, 0, stream>>>(sum, x);
    OK(cudaGetLastError());
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cudaGraphDestroy(graph));
    return exec;
}

// A capture runs nothing. Each launch of its graph runs all of it, after what the stream holds, and
// reads pinned memory then. Returns whether all sums are right, which the wait is for.
static bool replayed(int waits) {
    int zero[2] = { 0, 0 }, *gpu = upload(zero, 2), expected = 0, sum = -1;
    Pinned pinned;
    Stream stream, other;
    Event event(cudaEventDisableTiming);
    cudaGraphExec_t exec = captured_sums(gpu, gpu + 1, pinned, stream);
    OK(cudaMemcpy(&sum, gpu + 1, sizeof sum, cudaMemcpyDeviceToHost));
    CHECK_MSG(sum == 0, "the capture ran: %d", sum);
    bool right = true;
    for (int i = 0; i < 2*ROUNDS; i++) {
        *pinned = i;
        OK(cudaGraphLaunch(exec, stream));
        mod_kernel<<<1, 1, 0, stream>>>(gpu + 1);
        expected = (3*(3*expected + i) + 5) % 1000;
        OK(cudaEventRecord(event, stream));
        if (waits) OK(cudaStreamWaitEvent(other, event, 0));
        OK(cudaMemcpyAsync(pinned + 1, gpu + 1, sizeof sum, cudaMemcpyDeviceToHost, other));
        OK(cudaStreamSynchronize(other));
        right = right && pinned[1] == expected;
        OK(cudaStreamSynchronize(stream));       // it has read the pinned number
    }
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaGraphExecDestroy(exec));              // the launch goes on
    download(zero, gpu, 2);
    CHECK(zero[0] == 5 && zero[1] == 3*(3*expected + *pinned) + 5);
    return right;
}

// ---- races ----

// An environment variable, as long as this lives; without a value it is unset.
struct Setting {
    const char *name;
    char *before;
    Setting(const char *name, const char *value) : name(name) {
        before = getenv(name) ? strdup(getenv(name)) : NULL;
        set(value);
    }
    ~Setting() { set(before); free(before); }
    void set(const char *value) { if (value) setenv(name, value, 1); else unsetenv(name); }
};

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
    Setting shuffle("EMULATOR_SHUFFLE", seed);
    int *gpu = upload(out, 64);
    race_kernel<<<1, 64>>>(gpu, repair);
    download(out, gpu, 64);
}

TEST(a_missing_barrier_shows) {
    int right[64] = {0}, wrong[64] = {0}, x[64] = {0};
    race(right, NULL, 1);
    race(wrong, NULL, 0);
    race(x, NULL, 0);
    CHECK(memcmp(wrong, right, sizeof right) != 0);
    CHECK(memcmp(wrong, x, sizeof wrong) == 0);              // the same wrong answer every time
    for (const char *seed : { "1", "2" }) {
        race(x, seed, 1);
        CHECK(memcmp(x, right, sizeof x) == 0);              // what is right does not depend on it
        race(x, seed, 0);
        CHECK(memcmp(x, right, sizeof x) != 0 && memcmp(x, wrong, sizeof x) != 0);
        memcpy(wrong, x, sizeof x);                          // the next one differs from this too
    }
}

// ---- orders of the streams ----

// Pinned memory is read when the copy's turn comes; other memory before the call returns.
static bool reused(int pinned) {
    int local, out = 0, *gpu = upload(&out, 1);
    Stream stream;
    Pinned host;
    int *from = pinned ? host : &local;
    *from = 1;
    OK(cudaMemcpyAsync(gpu, from, sizeof *from, cudaMemcpyHostToDevice, stream));
    *from = 2;
    OK(cudaMemcpyAsync(&out, gpu, sizeof out, cudaMemcpyDeviceToHost, stream));
    bool first = out == 1;                       // nobody need wait for a copy to pageable memory
    OK(cudaFree(gpu));
    return first;
}

// cudaMemcpy from pageable memory, and any cudaMemset, may return before the device is done. The
// default stream and those that are not cudaStreamNonBlocking wait for each other.
static bool other_stream(int nonblocking) {
    int one = 1, out[2] = { 0, 0 }, *gpu = upload(out, 2);
    Stream stream(nonblocking ? cudaStreamNonBlocking : cudaStreamDefault);
    OK(cudaMemcpy(gpu, &one, sizeof one, cudaMemcpyHostToDevice));
    OK(cudaMemset(gpu + 1, 1, 1));
    add_kernel<<<1, 1, 0, stream>>>(gpu, gpu + 1);
    OK(cudaMemcpy(out, gpu, sizeof out, cudaMemcpyDeviceToHost));
    OK(cudaFree(gpu));
    return out[0] == 3 + 1 && out[1] == 1;
}

// Who asks again and again whether something is done gets there; until then it is not. Returns
// whether it was done at once.
static bool asked(int) {
    int x = 0, times = 0, *gpu = upload(&x, 1);
    Stream stream(cudaStreamDefault);
    Event begin, end, never;
    float ms = 0;
    OK(cudaStreamWaitEvent(stream, never, 0));   // for what was never recorded nobody waits
    CHECK(cudaEventQuery(never) == cudaSuccess);
    OK(cudaEventRecord(begin, stream));
    for (int i = 0; i < 9; i++) write_kernel<<<1, 1, 0, stream>>>(gpu, i);
    OK(cudaEventRecord(end, stream));
    while (cudaEventQuery(end) == cudaErrorNotReady) {
        CHECK(cudaGetLastError() == cudaErrorNotReady);
        if (cudaEventElapsedTime(&ms, begin, end) == cudaErrorNotReady) times++;
        cudaGetLastError();
    }
    OK(cudaEventElapsedTime(&ms, begin, end));
    CHECK(ms > 0 && ms < 60000);
    download(&x, gpu, 1);
    CHECK(x == 8);
    return times == 0;
}

// Each returns true if operations run when they are queued; the table says in which other orders it
// does not.
enum Shows { NEVER, LATE_TOO, AT_RANDOM };
typedef struct { const char *what; bool (*right)(int); int argument; Shows shows; } Ordered;
static const Ordered ordered[] = {
    { "all waits", pipeline, NO_FAULT, NEVER },
    { "no wait to read", pipeline, NO_WAIT_TO_READ, LATE_TOO },
    { "no wait to write", pipeline, NO_WAIT_TO_WRITE, AT_RANDOM },
    { "no wait at the end", pipeline, NO_WAIT_AT_THE_END, LATE_TOO },
    { "a wait for the other", pipeline, WAIT_FOR_THE_OTHER, LATE_TOO },
    { "a wait for a graph", replayed, 1, NEVER },
    { "no wait for a graph", replayed, 0, LATE_TOO },
    { "pageable memory reused", reused, 0, NEVER },
    { "pinned memory reused", reused, 1, LATE_TOO },
    { "a blocking stream", other_stream, 0, NEVER },
    { "a nonblocking stream", other_stream, 1, LATE_TOO },
    { "an event", asked, 0, LATE_TOO },
};

TEST(a_missing_wait_shows) {
    enum { SEEDS = 20 };
    for (const Ordered &o : ordered) {
        char order[32];
        int random = 0;
        Setting streams("EMULATOR_STREAMS", "");
        CHECK_MSG(o.right(o.argument), "%s, at once", o.what);
        streams.set("late");
        CHECK_MSG(o.right(o.argument) == (o.shows != LATE_TOO), "%s, late", o.what);
        for (int seed = 1; seed <= SEEDS; seed++) {
            snprintf(order, sizeof order, "random:%d", seed);
            streams.set(order);
            random += o.right(o.argument);
        }
        CHECK_MSG((random == SEEDS) == (o.shows == NEVER), "%s: right in %d random orders", o.what,
                  random);
    }
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
__global__ void two_collectives_kernel(int) {
    if (threadIdx.x < 3) __shfl_sync(0xFFFFFFFFu, 1, 0);
    else __syncwarp();
}
template <int N> __global__ void wrong_mask_kernel(int) { __syncwarp(1u << N); }
__global__ void much_shared_kernel(int) {
    __shared__ float a[40 << 8], b[9 << 8];
    a[threadIdx.x] = b[threadIdx.x] = 0;
}
__global__ void crooked_row_kernel(int) {
    __shared__ __align__(16) real x[512];
    load_matrices<true>(&x[threadIdx.x*8 + (threadIdx.x == 9)]);
}
__global__ void not_shared_kernel(int) {
    __shared__ __align__(16) real x[248];
    load_matrices<false>(x + threadIdx.x*8);
}
__global__ void no_memory_kernel(int one) { *(volatile int *)(size_t)(16*one) = 1; }

// What may not be done while a stream captures.
static const char *const forbidden[] = {
    "capture: cudaStreamSynchronize", "capture: cudaDeviceSynchronize", "capture: cudaMalloc",
    "capture: cudaFree", "capture: cudaMemcpy of pageable memory", "capture: cudaEventQuery",
    "capture: cudaStreamWaitEvent", "capture: the default stream",
};

static void do_forbidden(int i) {
    int x = 0, *p, *gpu = upload(&x, 1);
    Stream s;
    Event outside;
    OK(cudaEventRecord(outside, s));
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    switch (i) {
    case 0: cudaStreamSynchronize(s); break;
    case 1: cudaDeviceSynchronize(); break;
    case 2: cudaMalloc(&p, 4); break;
    case 3: cudaFree(gpu); break;
    case 4: cudaMemcpyAsync(&x, gpu, 4, cudaMemcpyDeviceToHost, s); break;
    case 5: cudaEventQuery(outside); break;
    case 6: cudaStreamWaitEvent(s, outside, 0); break;
    default: write_kernel<<<1, 1>>>(gpu, 1);
    }
}

typedef struct {
    const char *name;
    void (*kernel)(int);
    int threads;
    const char *expected[4];           // texts of the report, up to four
} Fault;

#define FAULT(kernel) #kernel, kernel
static const Fault faults[] = {
    { FAULT(two_barriers_kernel), 64, { "barrier divergence: it waits at __syncthreads",
        "thread (40,0,0)", "others of its block at __syncthreads", "tests/test_emulator.cu:" } },
    { FAULT(barrier_and_shuffle_kernel), 64, { "barrier divergence: 64 of 64 threads wait",
        "thread (0,0,0), as 19 more of its warp, waits in __shfl_xor_sync, tests/test_emulator.cu:",
        "with mask ffffffff, for thread (20,0,0), which waits at __syncthreads",
        "thread (52,0,0), as 11 more of its warp, waits at __syncthreads" } },
    { FAULT(two_collectives_kernel), 32, { "deadlock: 32 of 32 threads wait",
        "thread (0,0,0), as 2 more of its warp, waits in __shfl_sync",
        "for thread (3,0,0), which waits in __syncwarp",
        "thread (3,0,0), as 28 more of its warp, waits in __syncwarp" } },
    { FAULT(wrong_mask_kernel<5>), 32, { "kernel wrong_mask_kernel<5>", "thread (0,0,0)",
        "__syncwarp with mask 00000020, which leaves out the caller, lane 0" } },
    { FAULT(much_shared_kernel), 32, { "more than 48 KB of static __shared__ memory" } },
    { FAULT(crooked_row_kernel), 32, { "thread (9,0,0): ldmatrix.x4.trans: address",
        "is not a multiple of 16", "dev/cuda/ptx.h:" } },
    { FAULT(not_shared_kernel), 32, { "thread (31,0,0): ldmatrix.x4: the 16 bytes at",
        "are not in shared memory" } },
#ifndef EMULATOR_ASAN
    { FAULT(no_memory_kernel), 1, { "access to unmapped address 0x10", "thread (0,0,0)" } },
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
    for (int i = 0; i < FAULTS; i++)
        if (strcmp(name, faults[i].name) == 0) {
            void (*kernel)(int) = faults[i].kernel;
            emulator::launch(name, kernel, dim3(1, 2), faults[i].threads)(1);
            cudaDeviceSynchronize();
        }
    for (int i = 0; i < 8; i++) if (strcmp(name, forbidden[i]) == 0) do_forbidden(i);
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
        for (int k = 0; k < 4 && faults[i].expected[k]; k++)
            CHECK_MSG(strstr(said, faults[i].expected[k]), "%s: no \"%s\" in: %s", faults[i].name,
                      faults[i].expected[k], said);
    }
    for (const char *what : forbidden) {
        const char *said = run_fault(what, &status);
        CHECK_MSG(status == 1 && !strstr(said, "after") && strstr(said, "captur"), "%s: %s", what,
                  said);
    }
    Setting streams("EMULATOR_STREAMS", "never");
    const char *said = run_fault(faults[0].name, &status);
    CHECK(status == 1 &&
          strstr(said, "EMULATOR_STREAMS=never: expected late, random or random:SEED"));
}

int main(int argc, char **argv) {
    program = argv[0];
    return argc == 2 ? fault_main(argv[1]) : run_tests();
}
