// NCCL between as many ranks as the environment says (RANK and WORLD_SIZE, or Open MPI's), which
// tests/test_nccl.sh starts. On the emulator (dev/emulator/include/nccl.h) the ranks are processes
// without GPUs; what is expected is what NVIDIA's NCCL does, and this compiles with that as well.
// NCCL_COMM_ID says where the ranks meet.
//
//     test_nccl [FAULT]        all tests, or one misuse that must be reported
#include <cuda_bf16.h>
#include <nccl.h>
#include <stdint.h>
#include <unistd.h>
#include "test.h"

#define OK(call) CHECK_MSG((call) == cudaSuccess, "rank %d: %s: %s", world.rank, #call, \
                           cudaGetErrorString(cudaGetLastError()))
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
    NCCL_OK(ncclCommInitRankConfig(&world.comm, world.size, id, world.rank, NULL));
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

struct Stream {
    cudaStream_t s;
    Stream() { OK(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, 0)); }
    ~Stream() { OK(cudaStreamDestroy(s)); }
    operator cudaStream_t() const { return s; }
};

// ---- collectives ----

static ncclDataType_t type_of(float) { return ncclFloat; }
static ncclDataType_t type_of(__nv_bfloat16) { return ncclBfloat16; }

enum { N = 37, RANKS = 8 };
enum Kind { REDUCE, REDUCE_SCATTER, BROADCAST, ALL_GATHER, KINDS };

// Small enough that sums of all ranks are exact, in bf16 too.
static float value(int rank, size_t i) { return (float)((rank*7 + (int)i*5) % 11 + rank); }

// Element i of what the ranks get together.
static float expected(int kind, int root, size_t i) {
    if (kind == BROADCAST) return value(root, i);
    if (kind == ALL_GATHER) return value((int)i / N, i % N);
    float sum = 0.0f;
    for (int r = 0; r < world.size; r++) sum += value(r, i);
    return sum;
}

template <class T>
static ncclResult_t call(int kind, const T *from, T *to, int root, ncclComm_t c, cudaStream_t s) {
    ncclDataType_t type = type_of(T());
    bool is_root = world.rank == root;
    switch (kind) {
    case REDUCE: return ncclReduce(from, is_root ? to : NULL, N, type, ncclSum, root, c, s);
    case REDUCE_SCATTER: return ncclReduceScatter(from, to, N, type, ncclSum, c, s);
    case BROADCAST: return ncclBroadcast(is_root ? from : NULL, to, N, type, root, c, s);
    default: return ncclAllGather(from, to, N, type, c, s);
    }
}

// In place, the shorter buffer is this rank's part of the longer one.
template <class T> static void collective_check(int kind, int root, bool in_place) {
    T x[N*RANKS], y[N*RANKS];
    size_t all = (size_t)(N*world.size), own = (size_t)(N*world.rank);
    size_t n = kind == ALL_GATHER ? all : (size_t)N, first = kind == REDUCE_SCATTER ? own : 0;
    size_t at = in_place ? first : 0, from_at = in_place && kind == ALL_GATHER ? own : 0;
    for (size_t i = 0; i < all; i++) { x[i] = value(world.rank, i); y[i] = -1.0f; }
    for (size_t i = N; i-- > 0; ) x[from_at + i] = value(world.rank, i);
    T *from = upload(x, all), *to = in_place ? from : upload(y, all);
    NCCL_OK(call(kind, from + from_at, to + at, root, world.comm, world.stream));
    download(y, to, all);
    bool written = kind != REDUCE || world.rank == root;
    for (size_t i = 0; i < all; i++) {
        float want = in_place ? (float)x[i] : -1.0f;         // what nobody wrote is as it was
        if (written && i >= at && i < at + n) want = expected(kind, root, first + i - at);
        CHECK_MSG((float)y[i] == want, "rank %d of %d, %d from %d, %zu: %g, not %g", world.rank,
                  world.size, kind, root, i, (float)y[i], want);
    }
    if (in_place) return;
    download(y, from, all);
    for (size_t i = 0; i < all; i++) CHECK((float)y[i] == (float)x[i]);
}

TEST(collectives) {
    for (int kind = 0; kind < KINDS; kind++)
        for (int root = 0; root < world.size; root++)
            for (int in_place = 0; in_place < 2; in_place++) {
                collective_check<float>(kind, root, in_place);
                collective_check<__nv_bfloat16>(kind, root, in_place);
            }
}

// The sum on every rank.
static void sum_to_all(float *x, size_t n, ncclComm_t comm, cudaStream_t stream) {
    NCCL_OK(ncclReduce(x, x, n, ncclFloat, ncclSum, 0, comm, stream));
    NCCL_OK(ncclBroadcast(x, x, n, ncclFloat, 0, comm, stream));
}

// ---- messages ----

// Slice r of every rank's buffer goes to rank r: how the trainer scatters. Each message is two,
// which keep their order. All are sent at the group's end, and read what is there then.
TEST(a_group_of_sends_and_receives) {
    uint8_t x[N*RANKS], y[N*RANKS];
    size_t all = (size_t)N * (size_t)world.size;
    for (size_t i = 0; i < all; i++) { x[i] = (uint8_t)(world.rank*50 + (int)i); y[i] = 255; }
    uint8_t *from = upload(y, all), *to = upload(y, all);
    NCCL_OK(ncclGroupStart());
    for (int r = 0; r < world.size; r++)
        for (int half = 0; half < 2 && r != world.rank; half++) {
            size_t at = (size_t)(r*N + half*20), n = half ? N - 20 : 20;
            NCCL_OK(ncclRecv(to + at, n, ncclUint8, r, world.comm, world.stream));
            NCCL_OK(ncclSend(from + at, n, ncclUint8, r, world.comm, world.stream));
        }
    OK(cudaStreamSynchronize(world.stream));
    OK(cudaMemcpy(from, x, all, cudaMemcpyHostToDevice));
    OK(cudaDeviceSynchronize());
    NCCL_OK(ncclGroupEnd());
    download(x, from, all);
    download(y, to, all);
    for (int r = 0; r < world.size; r++)
        for (int i = 0; i < N; i++)
            CHECK(y[r*N + i] == (r == world.rank ? 255 : (uint8_t)(r*50 + world.rank*N + i)));
}

// Ranks of even and of odd numbers, in the reverse order; the last of them speaks to all.
TEST(a_communicator_is_split) {
    ncclComm_t part;
    int color = world.rank % 2, count = (world.size + 1 - color) / 2;
    float x[2] = { (float)(1 << world.rank), (float)world.rank }, sum = 0, all[RANKS] = {0};
    NCCL_OK(ncclCommSplit(world.comm, color, -world.rank, &part, NULL));
    float *gpu = upload(x, 2), *gathered = upload(all, RANKS);
    sum_to_all(gpu, 1, part, world.stream);
    NCCL_OK(ncclAllGather(gpu + 1, gathered, 1, ncclFloat, part, world.stream));
    download(x, gpu, 2);
    download(all, gathered, RANKS);
    for (int r = color; r < world.size; r += 2) sum += (float)(1 << r);
    CHECK(x[0] == sum);
    for (int i = 0; i < count; i++) CHECK(all[i] == (float)(color + 2*(count - 1 - i)));
    NCCL_OK(ncclCommDestroy(part));
}

TEST(arguments_that_are_refused) {
    float x = 1, *gpu = upload(&x, 1);
    ncclComm_t c = world.comm;
    cudaStream_t s = world.stream;
    const ncclResult_t invalid = ncclInvalidArgument;
    CHECK(ncclBroadcast(gpu, gpu, 1, ncclFloat, world.size, c, s) == invalid);
    CHECK(ncclGroupEnd() == ncclInvalidUsage);
    NCCL_OK(ncclGroupStart());                   // a group with such a call does nothing
    NCCL_OK(ncclReduce(gpu, gpu, 1, ncclFloat, ncclSum, 0, c, s));
    CHECK(ncclRecv(gpu, 1, ncclFloat, world.size, c, s) == invalid);
    CHECK(ncclGroupEnd() == invalid);
    sum_to_all(gpu, 1, c, s);
    download(&x, gpu, 1);
    CHECK(x == (float)world.size);
}

#ifdef EMULATOR

// ---- what only the emulator sees ----

static void refused(ncclResult_t got, const char *words) {
    const char *said = ncclGetLastError(world.comm);
    CHECK_MSG(got == ncclInvalidArgument && strstr(said, words), "rank %d: %d, '%s', not '%s'",
              world.rank, (int)got, said, words);
}

TEST(calls_that_the_emulator_refuses) {
    float x[64] = {0}, *gpu = upload(x, 64);
    ncclComm_t c = world.comm;
    cudaStream_t s = world.stream;
    refused(ncclAllGather(x, gpu, 4, ncclFloat, c, s), "sendbuff, 0x");
    refused(ncclRecv(gpu + 61, 4, ncclFloat, 0, c, s), "goes beyond what is allocated");
    refused(ncclAllGather(gpu, gpu + 60, 1 + 4/world.size, ncclFloat, c, s), "goes beyond");
    refused(ncclReduceScatter(gpu, gpu + 1, 4, ncclFloat, ncclSum, c, s), "overlap");
    refused(ncclSend(gpu, 4, ncclFloat, world.rank, c, s), "of a rank to itself");
    NCCL_OK(ncclGroupStart());
    NCCL_OK(ncclAllGather(gpu + 4*world.rank, gpu, 4, ncclFloat, c, s));
    CHECK(ncclAllGather(gpu + 4*world.rank, gpu, 4, ncclFloat, c, 0)             // another stream
          == ncclInvalidUsage);
    CHECK(ncclGroupEnd() == ncclInvalidUsage);
    download(x, gpu, 64);
    refused(ncclSend(gpu, 4, ncclFloat, 0, c, s), "is not memory of the device");    // freed
}

// In bf16 256 + 1 is 256 again: whoever adds in bf16 in the order of the ranks loses every 1.
TEST(sums_are_rounded_in_the_order_of_ranks) {
    bool first = world.rank == 0, last = world.rank == world.size - 1;
    __nv_bfloat16 x[2] = { first ? 256.0f : 1.0f, last ? 256.0f : 1.0f }, *gpu = upload(x, 2);
    NCCL_OK(ncclReduce(gpu, gpu, 2, ncclBfloat16, ncclSum, 0, world.comm, world.stream));
    download(x, gpu, 2);
    if (!first) return;
    CHECK((float)x[0] == 256.0f);
    CHECK((float)x[1] == (float)(__nv_bfloat16)(float)(255 + world.size));
}

// ---- a second stream for communication ----

__global__ void fill_kernel(float *x, float value) { x[threadIdx.x] = value; }

// The ranks' numbers are written on one stream, summed on another, and read on the first, by events
// or without one of the two waits: 0, the sum's; 1, the reader's. Returns whether the sum is right.
static bool aside_right(const char *order, int missing) {
    enum { COUNT = 64 };
    float x[COUNT] = {0}, *gpu = upload(x, COUNT), *pinned;
    cudaEvent_t written, summed;
    setenv("EMULATOR_STREAMS", order, 1);
    Stream aside;
    OK(cudaMallocHost(&pinned, sizeof x));
    OK(cudaEventCreateWithFlags(&written, cudaEventDisableTiming));
    OK(cudaEventCreateWithFlags(&summed, cudaEventDisableTiming));
    bool right = true;
    for (int step = 1; step <= 6; step++) {
        fill_kernel<<<1, COUNT, 0, world.stream>>>(gpu, (float)(step << world.rank));
        OK(cudaEventRecord(written, world.stream));
        if (missing != 0) OK(cudaStreamWaitEvent(aside, written, 0));
        sum_to_all(gpu, COUNT, world.comm, aside);
        OK(cudaEventRecord(summed, aside));
        if (missing != 1) OK(cudaStreamWaitEvent(world.stream, summed, 0));
        OK(cudaMemcpyAsync(pinned, gpu, sizeof x, cudaMemcpyDeviceToHost, world.stream));
        OK(cudaStreamSynchronize(world.stream));
        float sum = (float)(step * ((1 << world.size) - 1));
        for (int i = 0; i < COUNT; i++) right = right && pinned[i] == sum;
        OK(cudaStreamSynchronize(aside));
    }
    OK(cudaFree(gpu));
    OK(cudaFreeHost(pinned));
    OK(cudaEventDestroy(written));
    OK(cudaEventDestroy(summed));
    return right;
}

TEST(a_stream_for_communication) {
    const char *outer = getenv("EMULATOR_STREAMS");
    char *saved = strdup(outer ? outer : ""), order[32] = "late";
    int unseen[2] = {0};
    CHECK(aside_right("", -1) && aside_right("late", -1));
    bool late = aside_right("late", 1);
    for (int seed = 1; seed <= 10; seed++) {
        snprintf(order, sizeof order, "random:%d", seed);
        CHECK(aside_right(order, -1));
        for (int k = 0; k < 2; k++) unseen[k] += aside_right(order, k);
    }
    if (world.size > 1)                          // alone a sum changes nothing
        CHECK_MSG(!late && unseen[0] < 10 && unseen[1] < 10, "rank %d: unseen %d and %d times",
                  world.rank, unseen[0], unseen[1]);
    setenv("EMULATOR_STREAMS", saved, 1);
    free(saved);
}

#endif

// ---- misuse: the report names the ranks and the calls ----

typedef struct {
    const char *name;
    ncclResult_t (*call)(int rank, float *x, float *y);      // rank 0 or 1, of two
} Misuse;
#define MISUSE(name, ...) \
    { name, [](int r, float *x, float *y) { (void)r; (void)x; (void)y; return __VA_ARGS__; } }
#define LAST ncclFloat, world.comm, world.stream
#define SUM ncclFloat, ncclSum, 0, world.comm, world.stream
#define WITH(rank) ncclFloat, rank, world.comm, world.stream

static ncclResult_t sleeps(void) { return sleep(20), ncclSuccess; }
static ncclResult_t leaves(void) { exit(7); }

static const Misuse misuses[] = {
    MISUSE("counts", ncclReduce(x, x, r ? 5 : 4, SUM)),
    MISUSE("roots", ncclBroadcast(x, x, 4, WITH(r))),
    MISUSE("calls", r ? ncclAllGather(x, y, 4, LAST) : ncclReduce(x, y, 4, SUM)),
    MISUSE("send_count", r ? ncclRecv(x, 5, WITH(0)) : ncclSend(x, 4, WITH(1))),
    MISUSE("send_alone", r ? ncclSuccess : ncclSend(x, 4, WITH(1))),
    MISUSE("send_and_sum", r ? ncclReduce(x, x, 4, SUM) : ncclSend(x, 4, WITH(1))),
    MISUSE("both_send", ncclSend(x, 4, WITH(1 - r))),
    MISUSE("asleep", r ? sleeps() : ncclReduce(x, x, 4, SUM)),
    MISUSE("left", r ? leaves() : ncclReduce(x, x, 4, SUM)),
};

static int misuse_main(const char *name) {
    float zeros[100] = {0}, *x = upload(zeros, 100), *y = upload(zeros, 100);
    for (const Misuse &m : misuses)
        if (strcmp(m.name, name) == 0 && m.call(world.rank, x, y) != ncclSuccess)
            printf("refused: %s\n", ncclGetLastError(world.comm));
    OK(cudaStreamSynchronize(world.stream));
    if (!strcmp(name, "both_send")) NCCL_OK(ncclRecv(y, 4, WITH(1 - world.rank)));
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
    NCCL_OK(ncclGetUniqueId(&id));
    OK(cudaSetDevice(!strcmp(name, "init_device") ? 0 : rank));
    if (!strcmp(name, "init_size")) size++;
    ncclResult_t e = ncclCommInitRankConfig(&world.comm, size, id, rank, NULL);
    printf("%s: %s\n", ncclGetErrorString(e), ncclGetLastError(NULL));
    return e == ncclSuccess ? 0 : 3;
}

int main(int argc, char **argv) {
    if (argc == 2 && strncmp(argv[1], "init_", 5) == 0) return init_main(argv[1]);
    world_begin();
    if (!world.comm) return 1;
    if (argc == 2) return misuse_main(argv[1]);
    for (const Test *t = Test::first; t; t = t->next) test_run(t->name, t->body);
    world_end();
    return test_end();
}
