// NCCL between as many ranks as the environment says (RANK and WORLD_SIZE, or Open MPI's), which
// tests/test_nccl.sh starts. On the emulator (dev/emulator/include/nccl.h) the ranks are processes
// without GPUs; what is expected is what NVIDIA's NCCL does, and this compiles with that as well.
// NCCL_COMM_ID says where the ranks meet.
//
//     test_nccl [FAULT]        all tests, or one misuse that must be reported
#include <cuda_runtime.h>
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

// ---- messages ----

enum { N = 37, RANKS = 8 };

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

static int next_rank(int steps) { return (world.rank + steps) % world.size; }

TEST(arguments_that_are_refused) {
    float x = 1, *gpu = upload(&x, 1);
    ncclComm_t c = world.comm;
    cudaStream_t s = world.stream;
    const ncclResult_t invalid = ncclInvalidArgument;
    CHECK(ncclSend(gpu, 4, ncclUint8, world.size, c, s) == invalid);
    CHECK(ncclGroupEnd() == ncclInvalidUsage);
    NCCL_OK(ncclGroupStart());                   // a group with such a call does nothing
    if (world.size > 1) NCCL_OK(ncclRecv(gpu, 4, ncclUint8, next_rank(1), c, s));
    CHECK(ncclRecv(gpu, 4, ncclUint8, world.size, c, s) == invalid);
    CHECK(ncclGroupEnd() == invalid);
    download(&x, gpu, 1);
    CHECK(x == 1);
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
    refused(ncclSend(x, 16, ncclUint8, 0, c, s), "is not memory of the device");
    refused(ncclRecv(gpu + 61, 16, ncclUint8, 0, c, s), "goes beyond what is allocated");
    refused(ncclSend(gpu, 16, ncclUint8, world.rank, c, s), "of a rank to itself");
    if (world.size > 1) {
        NCCL_OK(ncclGroupStart());
        NCCL_OK(ncclSend(gpu, 16, ncclUint8, next_rank(1), c, s));
        CHECK(ncclRecv(gpu, 16, ncclUint8, next_rank(1), c, 0) == ncclInvalidUsage);   // a stream
        CHECK(ncclGroupEnd() == ncclInvalidUsage);
    }
    download(x, gpu, 64);
    refused(ncclSend(gpu, 16, ncclUint8, 0, c, s), "is not memory of the device");   // freed
}

#endif

// ---- misuse: the report names the ranks and the calls ----

typedef struct {
    const char *name;
    ncclResult_t (*call)(int rank, float *x);                // rank 0 or 1, of two
} Misuse;
#define MISUSE(name, ...) { name, [](int r, float *x) { (void)r; (void)x; return __VA_ARGS__; } }
#define WITH(rank) ncclUint8, rank, world.comm, world.stream

static ncclResult_t sleeps(void) { return sleep(20), ncclSuccess; }
static ncclResult_t leaves(void) { exit(7); }

static const Misuse misuses[] = {
    MISUSE("send_count", r ? ncclRecv(x, 5, WITH(0)) : ncclSend(x, 4, WITH(1))),
    MISUSE("send_alone", r ? ncclSuccess : ncclSend(x, 4, WITH(1))),
    MISUSE("both_send", ncclSend(x, 4, WITH(1 - r))),
    MISUSE("asleep", r ? sleeps() : ncclSend(x, 4, WITH(1))),
    MISUSE("left", r ? leaves() : ncclSend(x, 4, WITH(1))),
};

static int misuse_main(const char *name) {
    float zeros[100] = {0}, *x = upload(zeros, 100), *y = upload(zeros, 100);
    for (const Misuse &m : misuses)
        if (strcmp(m.name, name) == 0 && m.call(world.rank, x) != ncclSuccess)
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
