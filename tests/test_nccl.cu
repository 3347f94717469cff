// NCCL between as many ranks as the environment says (RANK and WORLD_SIZE, or Open MPI's), which
// tests/test_nccl.sh starts. On the emulator (dev/emulator/include/nccl.h) the ranks are processes
// without GPUs; what is expected is what NVIDIA's NCCL does, and this compiles with that as well.
// NCCL_COMM_ID says where the ranks meet.
//
//     test_nccl [FAULT]        all tests, or one misuse that must be reported
#include <cuda_bf16.h>
#include <math.h>
#include <nccl.h>
#include <stdint.h>
#include <unistd.h>
#include "test.h"

#define OK(call) CHECK_MSG((call) == cudaSuccess, "rank %d: %s: %s", world.rank, #call, \
                           cudaGetErrorString(cudaPeekAtLastError()))
#define NCCL_OK(call) CHECK_MSG((call) == ncclSuccess, "rank %d: %s: %s", world.rank, #call, \
                                ncclGetLastError(world.comm))

typedef struct { int rank, size; ncclComm_t comm; cudaStream_t stream; } World;
static World world;                    // the same for all tests

static int from_environment(const char *name, const char *other, int otherwise) {
    const char *text = getenv(name) ? getenv(name) : getenv(other);
    return text ? atoi(text) : otherwise;
}

static void world_begin(void) {
    ncclUniqueId id;
    int devices = 0;
    world.rank = from_environment("RANK", "OMPI_COMM_WORLD_RANK", 0);
    world.size = from_environment("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", 1);
    OK(cudaGetDeviceCount(&devices));
    OK(cudaSetDevice(world.rank % devices));
    OK(cudaStreamCreate(&world.stream));
    NCCL_OK(ncclGetUniqueId(&id));
    NCCL_OK(ncclCommInitRank(&world.comm, world.size, id, world.rank));
}

static void world_end(void) {
    NCCL_OK(ncclCommDestroy(world.comm));
    OK(cudaStreamDestroy(world.stream));
}

// Device memory with a copy of x.
template <class T> static T *upload(const T *x, size_t n) {
    T *p = NULL;
    OK(cudaMalloc(&p, n * sizeof *p));
    OK(cudaMemcpy(p, x, n * sizeof *p, cudaMemcpyHostToDevice));
    OK(cudaDeviceSynchronize());                 // cudaMemcpy may return before it has arrived
    return p;
}

// Waits for the stream, copies p to x and frees p.
template <class T> static void download(T *x, T *p, size_t n) {
    OK(cudaStreamSynchronize(world.stream));
    OK(cudaMemcpy(x, p, n * sizeof *p, cudaMemcpyDeviceToHost));
    OK(cudaFree(p));
}

// ---- reductions ----

static ncclDataType_t type_of(int8_t) { return ncclInt8; }
static ncclDataType_t type_of(uint8_t) { return ncclUint8; }
static ncclDataType_t type_of(int32_t) { return ncclInt32; }
static ncclDataType_t type_of(float) { return ncclFloat32; }
static ncclDataType_t type_of(double) { return ncclFloat64; }
static ncclDataType_t type_of(__nv_bfloat16) { return ncclBfloat16; }

static float value(int rank, size_t i) { return (float)((rank*7 + (int)i*5) % 11 + rank); }

// What element i of all ranks comes to. Numbers are small enough to be exact in every type, but for
// the mean.
static float reduced(ncclRedOp_t op, size_t i) {
    float sum = value(0, i);
    for (int r = 1; r < world.size; r++)
        sum = op == ncclMax ? fmaxf(sum, value(r, i)) : op == ncclMin ? fminf(sum, value(r, i)) :
              sum + value(r, i);
    return sum;
}

enum { N = 37, RANKS = 8 };

template <class T> static void fill(T *x, size_t n, int rank) {
    for (size_t i = 0; i < n; i++) x[i] = (T)value(rank, i);
}

// Every rank checks elements first, first + 1... of the result, n of them. The mean of integers is
// rounded down; of bf16 each of the ranks' parts and sums has an error of 2^-9, of 3 ranks or fewer
// up to 1%; of float and double there is next to none.
template <class T> static void check_reduced(const T *x, ncclRedOp_t op, size_t first, size_t n) {
    bool integer = (float)(T)0.5f == 0.0f;
    float slack = sizeof(T) == 2 ? 2e-2f : 1e-6f;
    for (size_t i = 0; i < n; i++) {
        float expected = reduced(op, first + i), got = (float)x[i];
        if (op == ncclAvg) expected /= (float)world.size;
        if (op == ncclAvg && integer) expected = floorf(expected);
        bool right = op == ncclAvg ? fabsf(got - expected) <= slack * expected : got == expected;
        CHECK_MSG(right, "rank %d of %d, type %d, op %d, %zu: %g, not %g", world.rank, world.size,
                  (int)type_of((T)0.0f), (int)op, i, got, expected);
    }
}

template <class T> static void all_reduce_check(ncclRedOp_t op, bool in_place) {
    T x[N], y[N];
    fill(x, N, world.rank);
    fill(y, N, world.rank + 3);
    T *from = upload(x, N), *to = in_place ? from : upload(y, N);
    NCCL_OK(ncclAllReduce(from, to, N, type_of((T)0.0f), op, world.comm, world.stream));
    if (!in_place) {
        download(y, from, N);
        for (int i = 0; i < N; i++) CHECK((float)x[i] == (float)y[i]);       // as it was
    }
    download(y, to, N);
    check_reduced(y, op, 0, N);
}

template <class T> static void all_reduce_checks(void) {
    const ncclRedOp_t ops[] = { ncclSum, ncclMax, ncclMin, ncclAvg };
    for (int i = 0; i < 4; i++)
        for (int in_place = 0; in_place < 2; in_place++) all_reduce_check<T>(ops[i], in_place);
}

TEST(all_reduce_of_every_type_and_operation) {
    all_reduce_checks<int8_t>();
    all_reduce_checks<uint8_t>();
    all_reduce_checks<int32_t>();
    all_reduce_checks<float>();
    all_reduce_checks<double>();
    all_reduce_checks<__nv_bfloat16>();
}

TEST(reduce_to_each_root) {
    for (int root = 0; root < world.size; root++)
        for (int in_place = 0; in_place < 2; in_place++) {
            float x[N], y[N];
            fill(x, N, world.rank);
            for (int i = 0; i < N; i++) y[i] = -1.0f;
            float *from = upload(x, N), *to = in_place ? from : upload(y, N);
            NCCL_OK(ncclReduce(from, world.rank == root ? to : NULL, N, ncclFloat, ncclSum, root,
                               world.comm, world.stream));
            if (!in_place) download(x, from, N);
            download(y, to, N);
            if (world.rank == root) check_reduced(y, ncclSum, 0, N);
            else for (int i = 0; i < N; i++) CHECK(y[i] == (in_place ? x[i] : -1.0f));
        }
}

TEST(reduce_scatter_gives_each_rank_its_slice) {
    for (int in_place = 0; in_place < 2; in_place++) {
        float x[N*RANKS], y[N];
        size_t own = (size_t)world.rank * N;
        fill(x, (size_t)N*world.size, world.rank);
        fill(y, N, 5);
        float *from = upload(x, (size_t)N*world.size), *to = in_place ? from + own : upload(y, N);
        NCCL_OK(ncclReduceScatter(from, to, N, ncclFloat, ncclAvg, world.comm, world.stream));
        if (!in_place) {
            download(y, to, N);
            check_reduced(y, ncclAvg, own, N);
        }
        download(x, from, (size_t)N*world.size);
        if (in_place) check_reduced(x + own, ncclAvg, own, N);
    }
}

// ---- moving ----

TEST(broadcast_from_each_root) {
    for (int root = 0; root < world.size; root++)
        for (int in_place = 0; in_place < 2; in_place++) {
            double x[N], y[N];
            fill(x, N, world.rank);
            fill(y, N, world.rank + 1);
            double *from = upload(x, N), *to = in_place ? from : upload(y, N);
            NCCL_OK(ncclBroadcast(world.rank == root ? from : NULL, to, N, ncclDouble, root,
                                  world.comm, world.stream));
            if (!in_place) download(x, from, N);
            download(y, to, N);
            for (size_t i = 0; i < N; i++) CHECK(y[i] == (double)value(root, i));
        }
}

TEST(all_gather_in_the_order_of_ranks) {
    for (int in_place = 0; in_place < 2; in_place++) {
        __nv_bfloat16 x[N], y[N*RANKS];
        size_t own = (size_t)world.rank * N;
        fill(x, N, world.rank);
        fill(y, N*RANKS, 4);
        memcpy(y + own, x, sizeof x);
        __nv_bfloat16 *from = upload(x, N), *to = upload(y, (size_t)N*world.size);
        NCCL_OK(ncclAllGather(in_place ? to + own : from, to, N, ncclBfloat16, world.comm,
                              world.stream));
        download(x, from, N);
        download(y, to, (size_t)N*world.size);
        for (int r = 0; r < world.size; r++)
            for (size_t i = 0; i < N; i++) CHECK((float)y[(size_t)r*N + i] == value(r, i));
    }
}

// Slice r of every rank's buffer goes to rank r, its own as well: how the trainer scatters.
TEST(a_group_of_sends_and_receives) {
    int x[N*RANKS], y[N*RANKS];
    size_t all = (size_t)N * (size_t)world.size;
    for (size_t i = 0; i < all; i++) { x[i] = world.rank*1000 + (int)i; y[i] = -1; }
    int *from = upload(x, all), *to = upload(y, all);
    NCCL_OK(ncclGroupStart());
    for (int r = 0; r < world.size; r++) {
        NCCL_OK(ncclRecv(to + r*N, N, ncclInt, r, world.comm, world.stream));
        NCCL_OK(ncclSend(from + r*N, N, ncclInt, r, world.comm, world.stream));
    }
    NCCL_OK(ncclGroupEnd());
    download(x, from, all);
    download(y, to, all);
    for (int r = 0; r < world.size; r++)
        for (int i = 0; i < N; i++) CHECK(y[r*N + i] == r*1000 + world.rank*N + i);
}

// Messages between the same ranks keep their order; a group may have some of many types.
TEST(messages_keep_their_order) {
    int next = (world.rank + 1) % world.size, last = (world.rank + world.size - 1) % world.size;
    int x[3] = { world.rank, world.rank + 100, world.rank + 200 }, y[3] = { -1, -1, -1 };
    double d = world.rank + 0.5, e = 0;
    int *from = upload(x, 3), *to = upload(y, 3);
    double *d_gpu = upload(&d, 1), *e_gpu = upload(&e, 1);
    NCCL_OK(ncclGroupStart());
    for (int i = 0; i < 3; i++)
        NCCL_OK(ncclSend(from + i, 1, ncclInt, next, world.comm, world.stream));
    NCCL_OK(ncclSend(d_gpu, 1, ncclDouble, next, world.comm, world.stream));
    for (int i = 0; i < 3; i++)
        NCCL_OK(ncclRecv(to + i, 1, ncclInt, last, world.comm, world.stream));
    NCCL_OK(ncclRecv(e_gpu, 1, ncclDouble, last, world.comm, world.stream));
    NCCL_OK(ncclGroupEnd());
    download(x, from, 3);
    download(y, to, 3);
    download(&d, d_gpu, 1);
    download(&e, e_gpu, 1);
    CHECK(y[0] == last && y[1] == last + 100 && y[2] == last + 200 && e == last + 0.5);
}

TEST(a_send_and_its_receive_outside_of_groups) {
    if (world.size < 2) SKIP("a second rank");
    int x = world.rank + 40;
    int *gpu = upload(&x, 1);
    if (world.rank == 0) NCCL_OK(ncclSend(gpu, 1, ncclInt, 1, world.comm, world.stream));
    if (world.rank == 1) NCCL_OK(ncclRecv(gpu, 1, ncclInt, 0, world.comm, world.stream));
    download(&x, gpu, 1);
    CHECK(x == (world.rank < 2 ? 40 : world.rank + 40));
}

// ---- groups and communicators ----

// What is called in a group happens at its end, inner groups included: it reads what is there then.
TEST(a_group_happens_at_its_end) {
    int before = -1000, x = world.rank, y = 0, sum = world.size * (world.size - 1) / 2;
    int *from = upload(&before, 1), *to = upload(&y, 1), *gathered, all[RANKS];
    OK(cudaMalloc(&gathered, sizeof all));
    NCCL_OK(ncclGroupStart());
    NCCL_OK(ncclAllReduce(from, to, 1, ncclInt, ncclSum, world.comm, world.stream));
    NCCL_OK(ncclGroupStart());
    NCCL_OK(ncclAllGather(from, gathered, 1, ncclInt, world.comm, world.stream));
    NCCL_OK(ncclGroupEnd());
    OK(cudaStreamSynchronize(world.stream));
    OK(cudaMemcpy(from, &x, sizeof x, cudaMemcpyHostToDevice));
    OK(cudaDeviceSynchronize());
    NCCL_OK(ncclGroupEnd());
    download(&y, to, 1);
    download(all, gathered, (size_t)world.size);
    OK(cudaFree(from));
    CHECK_MSG(y == sum, "rank %d: %d", world.rank, y);
    for (int r = 0; r < world.size; r++) CHECK(all[r] == r);
}

// A group on two streams waits for both, and both wait for it.
TEST(a_group_of_two_streams) {
    int x[2] = { world.rank, 2*world.rank }, y[2] = { -1, -1 };
    int sum = world.size * (world.size - 1) / 2;
    int *from = upload(y, 2), *to = upload(y, 2), *pinned;
    cudaStream_t other;
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    OK(cudaMallocHost(&pinned, 4*sizeof *pinned));
    memcpy(pinned + 2, x, sizeof x);
    OK(cudaMemcpyAsync(from, pinned + 2, sizeof x, cudaMemcpyHostToDevice, other));
    NCCL_OK(ncclGroupStart());
    NCCL_OK(ncclAllReduce(from, to, 1, ncclInt, ncclSum, world.comm, world.stream));
    NCCL_OK(ncclAllReduce(from + 1, to + 1, 1, ncclInt, ncclSum, world.comm, other));
    NCCL_OK(ncclGroupEnd());
    for (int i = 0; i < 2; i++) {
        cudaStream_t stream = i == 0 ? other : world.stream;
        memset(pinned, 0xFF, sizeof x);
        OK(cudaMemcpyAsync(pinned, to, sizeof x, cudaMemcpyDeviceToHost, stream));
        OK(cudaStreamSynchronize(stream));
        CHECK_MSG(pinned[0] == sum && pinned[1] == 2*sum, "rank %d: %d, %d", world.rank, pinned[0],
                  pinned[1]);
    }
    OK(cudaStreamDestroy(other));
    OK(cudaFreeHost(pinned));
    OK(cudaFree(from));
    OK(cudaFree(to));
}

// Calls on several streams come in one order on all ranks, whatever the host waits for first.
TEST(calls_keep_their_order_across_streams) {
    int x[3] = { 1, 2, 3 }, *gpu = upload(x, 3);
    cudaStream_t streams[2];
    for (int i = 0; i < 2; i++) OK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    for (int i = 0; i < 4; i++) {
        NCCL_OK(ncclAllReduce(gpu, gpu, 1, ncclInt, ncclSum, world.comm, streams[0]));
        NCCL_OK(ncclAllReduce(gpu + 1, gpu + 1, 2, ncclInt, ncclMax, world.comm, streams[1]));
    }
    for (int i = 0; i < 2; i++) OK(cudaStreamSynchronize(streams[(i + world.rank) % 2]));
    for (int i = 0; i < 2; i++) OK(cudaStreamDestroy(streams[i]));
    download(x, gpu, 3);
    CHECK(x[0] == world.size*world.size*world.size*world.size && x[1] == 2 && x[2] == 3);
}

TEST(communicators_know_who_they_are) {
    int count = -1, rank = -1, device = -1, version = 0;
    ncclResult_t error = ncclInternalError;
    NCCL_OK(ncclCommCount(world.comm, &count));
    NCCL_OK(ncclCommUserRank(world.comm, &rank));
    NCCL_OK(ncclCommCuDevice(world.comm, &device));
    NCCL_OK(ncclCommGetAsyncError(world.comm, &error));
    NCCL_OK(ncclGetVersion(&version));
    CHECK(count == world.size && rank == world.rank && device >= 0 && error == ncclSuccess);
    CHECK(version == NCCL_VERSION_CODE && version >= 22000);
    CHECK(strcmp(ncclGetErrorString(ncclSuccess), "no error") == 0);
    CHECK(strstr(ncclGetErrorString(ncclInvalidArgument), "invalid argument"));
}

// Ranks of even and of odd numbers, in the reverse order; rank 0 of the odd ones speaks to all.
TEST(a_communicator_is_split) {
    ncclComm_t part, none;
    int color = world.rank % 2, count = 0, rank = 0, sum = 0;
    int x[2] = { 1 << world.rank, world.rank };
    NCCL_OK(ncclCommSplit(world.comm, color, -world.rank, &part, NULL));
    NCCL_OK(ncclCommSplit(world.comm, NCCL_SPLIT_NOCOLOR, 0, &none, NULL));
    CHECK(!none);
    NCCL_OK(ncclCommCount(part, &count));
    NCCL_OK(ncclCommUserRank(part, &rank));
    CHECK(count == (world.size + 1 - color) / 2 && rank == count - 1 - world.rank / 2);
    int *gpu = upload(x, 2);
    NCCL_OK(ncclAllReduce(gpu, gpu, 1, ncclInt, ncclSum, part, world.stream));
    NCCL_OK(ncclBroadcast(gpu + 1, gpu + 1, 1, ncclInt, 0, part, world.stream));
    download(x, gpu, 2);
    for (int r = color; r < world.size; r += 2) sum += 1 << r;
    CHECK(x[0] == sum && x[1] == color + 2*(count - 1));
    NCCL_OK(ncclCommDestroy(part));
}

TEST(arguments_that_are_refused) {
    float x[2*RANKS] = {0}, *gpu = upload(x, 2*RANKS);
    ncclComm_t none;
    ncclUniqueId id;
    NCCL_OK(ncclGetUniqueId(&id));
    CHECK(ncclCommInitRank(&none, 2, id, 2) == ncclInvalidArgument && !none);
    CHECK(ncclCommInitRank(&none, 2, id, -1) == ncclInvalidArgument);
    CHECK(ncclCommInitRank(&none, 0, id, 0) == ncclInvalidArgument);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.maxCTAs = 0;
    CHECK(ncclCommInitRankConfig(&none, 1, id, 0, &config) == ncclInvalidArgument && !none);
    config.maxCTAs = 4;
    config.magic = 0;
    CHECK(ncclCommInitRankConfig(&none, 1, id, 0, &config) == ncclInvalidArgument);
    config.magic = 0xcafebeef;
    NCCL_OK(ncclCommInitRankConfig(&none, 1, id, 0, &config));
    NCCL_OK(ncclCommDestroy(none));
    CHECK(ncclAllReduce(gpu, gpu, 1, ncclFloat, ncclSum, NULL, world.stream) ==
          ncclInvalidArgument);
    CHECK(ncclBroadcast(gpu, gpu, 1, ncclFloat, world.size, world.comm, world.stream) ==
          ncclInvalidArgument);
    CHECK(ncclSend(gpu, 1, ncclFloat, -1, world.comm, world.stream) == ncclInvalidArgument);
    CHECK(ncclAllReduce(gpu, gpu, 1, (ncclDataType_t)77, ncclSum, world.comm, world.stream) ==
          ncclInvalidArgument);
    CHECK(ncclAllReduce(gpu, gpu, 1, ncclFloat, (ncclRedOp_t)-1, world.comm, world.stream) ==
          ncclInvalidArgument);
    CHECK(ncclGroupEnd() == ncclInvalidUsage);
    NCCL_OK(ncclGroupStart());                   // a group with such a call does nothing
    NCCL_OK(ncclAllReduce(gpu, gpu, 1, ncclFloat, ncclSum, world.comm, world.stream));
    CHECK(ncclRecv(gpu, 1, ncclFloat, world.size, world.comm, world.stream) == ncclInvalidArgument);
    CHECK(ncclGroupEnd() == ncclInvalidArgument);
    NCCL_OK(ncclAllReduce(gpu, gpu, 1, ncclFloat, ncclSum, world.comm, world.stream));
    download(x, gpu, 2*RANKS);
}

#ifdef EMULATOR

// ---- what only the emulator sees ----

static void refused(ncclResult_t got, ncclResult_t expected, const char *words) {
    const char *said = ncclGetLastError(world.comm);
    CHECK_MSG(got == expected && strstr(said, words), "rank %d: %d, '%s', not '%s'", world.rank,
              (int)got, said, words);
}

TEST(memory_that_a_gpu_does_not_reach) {
    float x[64] = {0}, *gpu = upload(x, 64);
    ncclComm_t c = world.comm;
    cudaStream_t s = world.stream;
    refused(ncclAllReduce(x, gpu, 4, ncclFloat, ncclSum, c, s), ncclInvalidArgument,
            "sendbuff, 0x");
    refused(ncclAllReduce(gpu, x, 4, ncclFloat, ncclSum, c, s), ncclInvalidArgument,
            "is not memory of the device");
    refused(ncclSend(NULL, 4, ncclFloat, 0, c, s), ncclInvalidArgument, "sendbuff is null");
    refused(ncclRecv(gpu + 61, 4, ncclFloat, 0, c, s), ncclInvalidArgument,
            "goes beyond what is allocated");
    refused(ncclAllGather(gpu, gpu + 60, 1 + 4/world.size, ncclFloat, c, s), ncclInvalidArgument,
            "goes beyond what is allocated");
    refused(ncclReduceScatter(gpu, gpu, 1 + 64/world.size, ncclFloat, ncclSum, c, s),
            ncclInvalidArgument, "sendbuff, ");
    refused(ncclAllReduce((char *)gpu + 2, gpu, 4, ncclFloat, ncclSum, c, s), ncclInvalidArgument,
            "not aligned");
    refused(ncclAllReduce(gpu, gpu + 3, 4, ncclFloat, ncclSum, c, s), ncclInvalidArgument,
            "overlap");
    refused(ncclAllGather(gpu + 1 + world.rank*4, gpu, 4, ncclFloat, c, s), ncclInvalidArgument,
            "overlap");
    refused(ncclReduceScatter(gpu, gpu + 1 + world.rank*4, 4, ncclFloat, ncclSum, c, s),
            ncclInvalidArgument, "overlap");
    download(x, gpu, 64);
    refused(ncclAllReduce(gpu, gpu, 4, ncclFloat, ncclSum, c, s), ncclInvalidArgument,
            "is not memory of the device");                  // freed
}

TEST(communicators_that_are_gone) {
    ncclComm_t comm;
    ncclUniqueId id;
    int x = 1, *gpu = upload(&x, 1), count;
    NCCL_OK(ncclGetUniqueId(&id));
    NCCL_OK(ncclCommInitRank(&comm, world.size, id, world.rank));
    NCCL_OK(ncclAllReduce(gpu, gpu, 1, ncclInt, ncclSum, comm, world.stream));
    NCCL_OK(ncclCommFinalize(comm));
    refused(ncclAllReduce(gpu, gpu, 1, ncclInt, ncclSum, comm, world.stream), ncclInvalidUsage,
            "finalized");
    NCCL_OK(ncclCommDestroy(comm));
    refused(ncclAllReduce(gpu, gpu, 1, ncclInt, ncclSum, comm, world.stream), ncclInvalidArgument,
            "destroyed");
    refused(ncclCommDestroy(comm), ncclInvalidArgument, "destroyed");
    refused(ncclCommCount((ncclComm_t)&count, &count), ncclInvalidArgument, "no such");
    download(&x, gpu, 1);
    CHECK(x == world.size);
}

// In bf16 256 + 1 is 256 again: whoever adds in bf16 in the order of the ranks loses every 1.
TEST(sums_are_rounded_in_the_order_of_ranks) {
    __nv_bfloat16 x = world.rank == 0 ? 256.0f : 1.0f, y = 1.0f;
    __nv_bfloat16 *gpu = upload(&x, 1), *small_first = upload(&y, 1);
    if (world.rank == world.size - 1) y = 256.0f;
    OK(cudaMemcpy(small_first, &y, sizeof y, cudaMemcpyHostToDevice));
    NCCL_OK(ncclAllReduce(gpu, gpu, 1, ncclBfloat16, ncclSum, world.comm, world.stream));
    NCCL_OK(ncclAllReduce(small_first, small_first, 1, ncclBfloat16, ncclSum, world.comm,
                          world.stream));
    download(&x, gpu, 1);
    download(&y, small_first, 1);
    CHECK((float)x == 256.0f);
    CHECK((float)y == (float)(__nv_bfloat16)(float)(255 + world.size));
}

// ---- a second stream for communication ----

__global__ void count_kernel(unsigned *x, int n, unsigned rank) {
    int i = (int)(blockIdx.x*blockDim.x + threadIdx.x);
    if (i < n) x[i] = 10*x[i] + rank;
}

enum { STEPS = 6, WAITS = 2 };

// Each step counts on one stream and sums over the ranks on another. One of two waits may be
// missing: 0, the sum's for the counting; 1, the counting's for the sum. Returns how many numbers
// are wrong.
static int overlap(const char *streams, int missing) {
    enum { COUNT = 64 };
    unsigned x[COUNT] = {0}, size = (unsigned)world.size, expected = 0;
    int wrong = 0;
    cudaStream_t aside;
    cudaEvent_t counted, summed;
    setenv("EMULATOR_STREAMS", streams, 1);
    OK(cudaStreamCreateWithFlags(&aside, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&counted, cudaEventDisableTiming));
    OK(cudaEventCreateWithFlags(&summed, cudaEventDisableTiming));
    unsigned *gpu = upload(x, COUNT);
    for (int step = 0; step < STEPS; step++) {
        count_kernel<<<1, COUNT, 0, world.stream>>>(gpu, COUNT, (unsigned)world.rank);
        OK(cudaEventRecord(counted, world.stream));
        if (missing != 0) OK(cudaStreamWaitEvent(aside, counted, 0));
        NCCL_OK(ncclAllReduce(gpu, gpu, COUNT, ncclUint32, ncclSum, world.comm, aside));
        OK(cudaEventRecord(summed, aside));
        if (missing != 1) OK(cudaStreamWaitEvent(world.stream, summed, 0));
        expected = 10*expected*size + size*(size - 1)/2;
    }
    OK(cudaStreamSynchronize(world.stream));
    if (missing == 1) OK(cudaStreamSynchronize(aside));
    download(x, gpu, COUNT);
    for (int i = 0; i < COUNT; i++) wrong += x[i] != expected;
    OK(cudaStreamDestroy(aside));
    OK(cudaEventDestroy(counted));
    OK(cudaEventDestroy(summed));
    return wrong;
}

TEST(a_stream_for_communication) {
    const char *outer = getenv("EMULATOR_STREAMS");
    char *saved = strdup(outer ? outer : ""), seed[32];
    int seen[WAITS] = {0};
    CHECK(overlap("", -1) == 0 && overlap("late", -1) == 0);
    for (int i = 1; i <= 10; i++) {
        snprintf(seed, sizeof seed, "random:%d", i);
        CHECK(overlap(seed, -1) == 0);
        for (int k = 0; k < WAITS; k++) seen[k] += overlap(seed, k) > 0;
    }
    if (world.size > 1) {                        // alone a sum changes nothing
        CHECK_MSG(seen[0] > 5 && seen[1] > 5, "rank %d: seen %d and %d times of 10", world.rank,
                  seen[0], seen[1]);
        CHECK(overlap("late", 1) > 0);
    }
    setenv("EMULATOR_STREAMS", saved, 1);
    free(saved);
}

#endif

// ---- misuse: the report names the ranks and the calls ----

static int *buffer(void) {
    int *gpu = NULL;
    OK(cudaMalloc(&gpu, 100 * sizeof *gpu));
    OK(cudaMemset(gpu, 0, 100 * sizeof *gpu));
    return gpu;
}

static int fault_main(const char *name) {
    ncclComm_t c = world.comm;
    cudaStream_t s = world.stream;
    int *x = buffer(), *y = buffer(), r = world.rank;
    bool last = r == world.size - 1;
    ncclResult_t e = ncclSuccess;
    if (!strcmp(name, "counts")) e = ncclAllReduce(x, x, last ? 5 : 4, ncclInt, ncclSum, c, s);
    if (!strcmp(name, "types"))
        e = ncclAllReduce(x, x, 4, last ? ncclFloat : ncclInt, ncclSum, c, s);
    if (!strcmp(name, "operations"))
        e = ncclAllReduce(x, x, 4, ncclInt, last ? ncclMax : ncclSum, c, s);
    if (!strcmp(name, "roots")) e = ncclBroadcast(x, x, 4, ncclInt, last, c, s);
    if (!strcmp(name, "calls"))
        e = last ? ncclAllGather(x, y, 4, ncclInt, c, s) :
                   ncclReduce(x, y, 4, ncclInt, ncclSum, 0, c, s);
    if (!strcmp(name, "send_count"))
        e = last ? ncclRecv(x, 5, ncclInt, 0, c, s) : ncclSend(x, 4, ncclInt, 1, c, s);
    if (!strcmp(name, "send_type"))
        e = last ? ncclRecv(x, 4, ncclFloat, 0, c, s) : ncclSend(x, 4, ncclInt, 1, c, s);
    if (!strcmp(name, "send_alone") && r == 0) e = ncclSend(x, 4, ncclInt, 1, c, s);
    if (!strcmp(name, "send_and_sum"))
        e = last ? ncclAllReduce(x, x, 4, ncclInt, ncclSum, c, s) :
                   ncclSend(x, 4, ncclInt, 1, c, s);
    if (!strcmp(name, "both_send")) e = ncclSend(x, 4, ncclInt, 1 - r, c, s);
    if (!strcmp(name, "both_receive")) e = ncclRecv(x, 4, ncclInt, 1 - r, c, s);
    if (!strcmp(name, "own_send")) e = ncclSend(x, 4, ncclInt, r, c, s);
    if (!strcmp(name, "own_receive")) e = ncclRecv(x, 4, ncclInt, r, c, s);
    if (!strcmp(name, "asleep") && last) sleep(20);
    if (!strcmp(name, "asleep")) e = ncclAllReduce(x, x, 4, ncclInt, ncclSum, c, s);
    if (!strcmp(name, "left") && last) exit(7);
    if (e != ncclSuccess) printf("refused: %s\n", ncclGetLastError(c));
    OK(cudaStreamSynchronize(s));
    if (!strcmp(name, "both_send")) NCCL_OK(ncclRecv(y, 4, ncclInt, 1 - r, c, s));
    OK(cudaDeviceSynchronize());
    world_end();
    printf("after\n");                           // must not be reached
    return 0;
}

// Communicators that must not come about: everybody says why.
static int init_main(const char *name) {
    ncclUniqueId id;
    int rank = from_environment("RANK", "OMPI_COMM_WORLD_RANK", 0);
    int size = from_environment("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", 1);
    world.rank = rank;
    if (!strcmp(name, "init_late") && rank == size - 1) sleep(20);
    if (!strcmp(name, "init_ids")) setenv("NCCL_COMM_ID", rank ? "host:2" : "host:1", 1);
    NCCL_OK(ncclGetUniqueId(&id));
    OK(cudaSetDevice(!strcmp(name, "init_device") ? 0 : rank));
    if (!strcmp(name, "init_rank")) rank = size - 1 - rank;
    if (!strcmp(name, "init_size")) size++;
    ncclResult_t e = ncclCommInitRank(&world.comm, size, id, rank);
    printf("%s: %s\n", ncclGetErrorString(e), ncclGetLastError(NULL));
    return e == ncclSuccess ? 0 : 3;
}

int main(int argc, char **argv) {
    if (argc == 2 && strncmp(argv[1], "init_", 5) == 0) return init_main(argv[1]);
    world_begin();
    if (!world.comm) return 1;
    if (argc == 2) return fault_main(argv[1]);
    RUN(communicators_know_who_they_are);
    RUN(all_reduce_of_every_type_and_operation);
    RUN(reduce_to_each_root);
    RUN(reduce_scatter_gives_each_rank_its_slice);
    RUN(broadcast_from_each_root);
    RUN(all_gather_in_the_order_of_ranks);
    RUN(a_group_of_sends_and_receives);
    RUN(messages_keep_their_order);
    RUN(a_send_and_its_receive_outside_of_groups);
    RUN(a_group_happens_at_its_end);
    RUN(a_group_of_two_streams);
    RUN(calls_keep_their_order_across_streams);
    RUN(a_communicator_is_split);
    RUN(arguments_that_are_refused);
#ifdef EMULATOR
    RUN(memory_that_a_gpu_does_not_reach);
    RUN(communicators_that_are_gone);
    RUN(sums_are_rounded_in_the_order_of_ranks);
    RUN(a_stream_for_communication);
#endif
    world_end();
    return test_end();
}
