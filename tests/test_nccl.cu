// NCCL of the emulator (dev/emulator/include/nccl.h), between as many ranks as mpirun starts: see
// tests/test_emulator.sh.
//
//     test_nccl                all tests
//     test_nccl MISUSE         what must be reported, by two ranks
//     test_nccl init SIZE      a communicator of SIZE ranks that must not come about
#include <cuda_runtime.h>
#include <nccl.h>
#include <stdint.h>
#include "test.h"

#define OK(call) CHECK_MSG((call) == cudaSuccess, "rank %d: %s", rank, #call)
#define NCCL_OK(call) CHECK_MSG((call) == ncclSuccess, "rank %d: %s: %s", rank, #call, \
                                ncclGetLastError(comm))

static int rank, size;                 // the same for all tests
static ncclComm_t comm;
static cudaStream_t stream;

static ncclResult_t join(int all) {
    const char *number = getenv("OMPI_COMM_WORLD_RANK"), *ranks = getenv("OMPI_COMM_WORLD_SIZE");
    int devices = 0;
    rank = number ? atoi(number) : 0;
    size = ranks ? atoi(ranks) : 1;
    OK(cudaGetDeviceCount(&devices));
    OK(cudaSetDevice(rank % devices));
    OK(cudaStreamCreate(&stream));
    return ncclCommInitRankConfig(&comm, all ? all : size, ncclUniqueId{}, rank, NULL);
}

static uint8_t *upload(const uint8_t *x, size_t n) {
    uint8_t *p = NULL;
    OK(cudaMalloc(&p, n));
    OK(cudaMemcpy(p, x, n, cudaMemcpyHostToDevice));
    OK(cudaDeviceSynchronize());
    return p;
}

static void download(uint8_t *x, uint8_t *p, size_t n) {
    OK(cudaStreamSynchronize(stream));
    OK(cudaMemcpy(x, p, n, cudaMemcpyDeviceToHost));
    OK(cudaFree(p));
}

enum { N = 37, RANKS = 8 };

// Slice r of every rank's buffer goes to rank r: how the trainer scatters. Each message is two,
// which keep their order. All are sent at the group's end, after what its stream holds then.
TEST(a_group_of_sends_and_receives) {
    uint8_t x[N*RANKS], y[N*RANKS];
    size_t all = (size_t)N * (size_t)size;
    for (size_t i = 0; i < all; i++) { x[i] = (uint8_t)(rank*50 + (int)i); y[i] = 255; }
    uint8_t *from = upload(y, all), *to = upload(y, all);
    NCCL_OK(ncclGroupStart());
    for (int r = 0; r < size; r++)
        for (int half = 0; half < 2 && r != rank; half++) {
            size_t at = (size_t)(r*N + half*20), n = half ? N - 20 : 20;
            NCCL_OK(ncclRecv(to + at, n, ncclUint8, r, comm, stream));
            NCCL_OK(ncclSend(from + at, n, ncclUint8, r, comm, stream));
        }
    OK(cudaMemcpyAsync(from, x, all, cudaMemcpyHostToDevice, stream));
    NCCL_OK(ncclGroupEnd());
    download(x, from, all);
    download(y, to, all);
    for (int r = 0; r < size; r++)
        for (int i = 0; i < N; i++)
            CHECK(y[r*N + i] == (r == rank ? 255 : (uint8_t)(r*50 + rank*N + i)));
}

static void refused(ncclResult_t got, const char *words) {
    const char *said = ncclGetLastError(comm);
    CHECK_MSG(got != ncclSuccess && strstr(said, words), "rank %d: '%s', not '%s'", rank, said,
              words);
}

// A group with a call that is refused does nothing.
TEST(calls_that_are_refused) {
    uint8_t x[64] = {0}, *gpu = upload(x, 64);
    int peer = (rank + 1) % size;
    refused(ncclSend(gpu, 16, ncclUint8, size, comm, stream), "with rank");
    refused(ncclSend(gpu, 16, ncclUint8, rank, comm, stream), "with rank");
    refused(ncclSend(x, 16, ncclUint8, peer, comm, stream), "is not memory of the device");
    refused(ncclRecv(gpu + 61, 16, ncclUint8, peer, comm, stream), "goes beyond what is allocated");
    NCCL_OK(ncclGroupStart());
    NCCL_OK(ncclSend(gpu, 16, ncclUint8, peer, comm, stream));
    refused(ncclRecv(gpu, 16, ncclUint8, peer, comm, 0), "groups have one stream");
    CHECK(ncclGroupEnd() == ncclInvalidUsage);
    download(x, gpu, 64);
}

static int misuse(const char *name) {
    uint8_t zeros[100] = {0}, *x = upload(zeros, 100);
    int other = 1 - rank;
    if (!strcmp(name, "left") && rank == 1) exit(7);
    if (!strcmp(name, "asleep") && rank == 1) sleep(20);
    if (rank == 0) NCCL_OK(ncclSend(x, 4, ncclUint8, other, comm, stream));
    else NCCL_OK(ncclRecv(x, 5, ncclUint8, other, comm, stream));
    OK(cudaStreamSynchronize(stream));
    printf("after\n");                           // must not be reached
    return 0;
}

int main(int argc, char **argv) {
    ncclResult_t e = join(argc == 3 ? atoi(argv[2]) : 0);
    if (e != ncclSuccess) {
        printf("%s: %s\n", ncclGetErrorString(e), ncclGetLastError(NULL));
        return 3;
    }
    if (argc == 2) return misuse(argv[1]);
    int failed = run_tests();
    NCCL_OK(ncclCommDestroy(comm));
    OK(cudaStreamDestroy(stream));
    return failed;
}
