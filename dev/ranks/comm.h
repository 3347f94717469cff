// Ranks that talk: the processes of one run, each with a part of every batch, and the collectives
// that keep them together. Three ways of moving the data:
//
//     alone          one rank; every collective is over before it begins
//     WITH_MPI       CPUs: one thread, which alone calls MPI, carries the queue of collectives out
//     WITH_NCCL      GPUs: a CUDA stream beside the computation's carries it out, by NCCL
//
//     comm_open(&comm, timeout, ...)                 comm_close(&comm)
//     Ticket t = comm_mean(&comm, gradients, n, COMM_FP32);
//     ... compute something else ...                 beside that, data travels
//     comm_wait(&comm, t);                           gradients are the mean of all ranks' now
//
// A collective is called by all ranks, in the same order, with the same count. It begins when what
// the caller has computed so far is done, runs beside what the caller does next, and has a ticket;
// until comm_wait(ticket) its buffers must not be touched. Tickets end in the order they were
// given.
//
// Each rank owns one slice of a buffer. The two collectives that all others are made of:
//
//     reduce-scatter   rank r receives slice r from everybody, and adds it up: in fp32, along a
//                      fixed binary tree over the ranks, so that the sum's bits never vary
//     all-gather       everybody receives slice r from rank r
//
// A mean (all-reduce) is one after the other. With n ranks and B bytes each rank sends (n-1)/n B in
// either; that is what a ring sends, and no algorithm sends less (Patarasuk and Yuan 2009).
// COMM_BF16 halves B: numbers are rounded to bf16 to travel, and still added up in fp32.
#pragma once
#include <assert.h>
#include <unistd.h>
#include "../base/error.h"
#include "../base/clock.h"
#include "../base/rng.h"
#include "heartbeat.h"
#if defined(WITH_MPI)
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#elif defined(WITH_NCCL)
#include <nccl.h>
#ifndef EMULATOR
#include <dlfcn.h>
#endif
#endif

// On a GPU the trainer's kernels do what is done to numbers, also in a build that runs alone.
#if defined(WITH_NCCL) || defined(TRAINS_ON_GPU)
#define COMM_ON_GPU
#include <cuda_runtime.h>
#define CPU_AND_GPU __host__ __device__
#else
#define CPU_AND_GPU
#endif

typedef enum { COMM_FP32, COMM_BF16 } CommType;        // how floats travel
typedef enum { COMM_WRITE, COMM_ADD } CommMode;        // what becomes of a reduce-scatter's sum
typedef uint64_t Ticket;                               // 0: nothing to wait for

typedef struct { size_t begin, count; } Slice;

// Rank r's slice of a buffer: equal slices, in units of 64 numbers; the last ranks may go empty.
static inline Slice comm_slice(size_t count, int rank, int size) {
    size_t units = (count + 63) / 64, each = (units + (size_t)size - 1) / (size_t)size * 64;
    size_t begin = each * (size_t)rank < count ? each * (size_t)rank : count;
    Slice s = { begin, count - begin < each ? count - begin : each };
    return s;
}

// ---- sums in the order of a tree ----
//
// Adding n terms one at a time, two neighbours are merged as soon as both are there, then two
// pairs, then two fours: a binary counter that carries. The partial sums wait at levels 0, 1, 2
// ..., one for each bit of the count. So a rank that adds up micro-batches as they come, and ranks
// that add up each other's sums, follow one and the same tree, whatever the number of ranks, as
// long as all numbers are powers of two; and floating-point addition, which is not associative,
// gives the same bits.

// At which level the i-th term (from 0) ends: it merges with levels 0 ... level-1 first.
CPU_AND_GPU static inline int tree_level(uint64_t i) {
    int level = 0;
    while (i >> level & 1) level++;
    return level;
}

enum { TREE_LEVELS = 20 };                             // a million ranks

CPU_AND_GPU static inline float bf16_widen(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// To the nearest, ties to even; a NaN stays one.
CPU_AND_GPU static inline uint16_t bf16_narrow(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t up = bits + 0x7FFF + (bits >> 16 & 1);
    return (uint16_t)((bits & 0x7FFFFFFF) > 0x7F800000 ? bits >> 16 | 64 : up >> 16);
}

// out (n) = scale * (x[0] + ... + x[terms-1]) in the tree's order, or += that. `out` may be one of
// the terms. On a GPU the trainer's kernel does the same.
//   x: terms buffers of n numbers, floats or bf16
static inline void tree_sum(float *out, const void *const *x, int terms, float scale, CommType type,
                            CommMode mode, size_t n) {
    enum { STRIP = 512 };                              // stays in the first-level cache
    float levels[TREE_LEVELS][STRIP], sum[STRIP];
    for (size_t at = 0; at < n; at += STRIP) {
        int count = n - at < STRIP ? (int)(n - at) : STRIP;
        for (int k = 0; k < terms; k++) {
            const float *wide = (const float *)x[k] + at;
            const uint16_t *narrow = (const uint16_t *)x[k] + at;
            int level = tree_level((uint64_t)k);
            if (type == COMM_FP32) for (int i = 0; i < count; i++) sum[i] = wide[i];
            else for (int i = 0; i < count; i++) sum[i] = bf16_widen(narrow[i]);
            for (int l = 0; l < level; l++)
                for (int i = 0; i < count; i++) sum[i] = levels[l][i] + sum[i];
            for (int i = 0; i < count; i++) levels[level][i] = sum[i];
        }
        // What is left are the levels of the bits of `terms`; the last one merged is in `sum`.
        int first = tree_level((uint64_t)terms - 1);
        for (int l = first + 1; terms >> l != 0; l++)
            for (int i = 0; terms >> l & 1 && i < count; i++) sum[i] = levels[l][i] + sum[i];
        if (mode == COMM_WRITE) for (int i = 0; i < count; i++) out[at + i] = scale * sum[i];
        else for (int i = 0; i < count; i++) out[at + i] += scale * sum[i];
    }
}

static inline void bf16_narrow_all(uint16_t *out, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = bf16_narrow(x[i]);
}

static inline void bf16_widen_all(float *out, const uint16_t *x, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = bf16_widen(x[i]);
}

#if defined(COMM_ON_GPU)
static void gpu_sum(float *out, const void *const *x, int terms, float scale, CommType type,
                    CommMode mode, size_t n, cudaStream_t stream);
static void gpu_narrow(uint16_t *out, const float *x, size_t n, cudaStream_t stream);
static void gpu_widen(float *out, const uint16_t *x, size_t n, cudaStream_t stream);

static inline void comm_cuda_check(cudaError_t status, const char *call) {
    if (status != cudaSuccess) die("%s: %s", call, cudaGetErrorString(status));
}
#define COMM_CUDA(call) comm_cuda_check((call), #call)
#endif

#if defined(WITH_NCCL)
// NCCL's functions, looked up when several ranks need them: a run on one GPU needs no NCCL.
#define NCCL_FUNCTIONS(X) \
    X(GetUniqueId) X(CommInitRank) X(CommDestroy) X(CommAbort) X(GetErrorString) X(GetLastError) \
    X(GroupStart) X(GroupEnd) X(Send) X(Recv)
typedef struct {
#define X(name) decltype(&nccl##name) name;
    NCCL_FUNCTIONS(X)
#undef X
} Nccl;
#endif

// ---- what a rank holds ----

enum {
    COMM_MAX_RANKS = 256,
    COMM_QUEUE = 1024,                     // collectives given out and not over
    COMM_SMALL = 4096,                     // bytes that comm_collect takes from a rank
};
#if defined(WITH_NCCL)
static const size_t COMM_SCRATCH = 64 << 20;           // bytes of slices under way, each direction
#else
static const size_t COMM_SCRATCH = 16 << 20;           // a small model should not pay for more
#endif

static inline size_t comm_bytes(int ranks) {
    return ranks > 1 ? COMM_SCRATCH + COMM_SCRATCH / 2 : 0;
}

typedef enum {
    OP_REDUCE_SCATTER, OP_ALL_GATHER, OP_ALL_GATHER_ROUNDED, OP_BROADCAST, OP_COLLECT
} CommOpKind;

typedef struct {
    CommOpKind kind;
    void *out;
    const void *in;
    size_t count, bytes;                   // elements, and bytes of each
    float scale;
    CommType type;
    CommMode mode;
    int root;
} CommOp;

typedef struct {
    int rank, size;
    int local_rank, local_size;            // among the ranks of this machine
    int hosts;                             // machines
    char layout[200];                      // who is where: "node1: 0-3, node2: 4-7"
    Ticket queued;                         // tickets given out
    uint64_t bytes_sent;                   // by this rank; with the two below, since comm_open
    double busy, waited;                   // seconds: data was under way; the caller waited for it
    size_t piece;                          // numbers of a slice that travel at a time
    char *scratch_out, *scratch_in;        // (size,piece) floats each, on the device
    Heartbeat heartbeat;
    bool watched;
#if defined(COMM_ON_GPU)
    cudaStream_t compute;                  // the one that the caller computes on
#endif
#if defined(WITH_MPI)
    CommOp queue[COMM_QUEUE];
    MPI_Request *requests;                 // (2*size)
    int n_requests;
    uint64_t bytes_now;                    // sent by the collective under way
    pthread_t thread;
    pthread_mutex_t lock;                  // guards what follows, and queue, busy, bytes_sent
    pthread_cond_t changed;
    Ticket done;                           // collectives carried out
    bool started, closing;
    Error problem;                         // why MPI did not start; "" when it did
#elif defined(WITH_NCCL)
    Nccl nccl;
    ncclUniqueId id;                       // by which NCCL finds the ranks
    ncclComm_t peers;
    cudaStream_t stream;                   // the one that data travels on
    cudaEvent_t ready;                     // the computation has come this far
    cudaEvent_t begun[COMM_QUEUE], done[COMM_QUEUE];           // of a ticket
    cudaEvent_t wait_begun[COMM_QUEUE], wait_done[COMM_QUEUE]; // of a wait
    Ticket settled;                        // tickets that `busy` counts already
    Ticket passed;                         // the computation waits for this one, and all before it
    uint64_t waits, settled_waits;         // of the computation so far; those that `waited` counts
    char *small;                           // (size+1,COMM_SMALL) on the device, for comm_collect
#endif
} Comm;

// ---- moving bytes between ranks, two ways: what is begun is over when comm_end returns (MPI), or
// ---- has its place on the stream (NCCL) ----

#if defined(WITH_MPI)

static inline void mpi_check(int status, const char *call) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    if (status == MPI_SUCCESS) return;
    MPI_Error_string(status, text, &length);
    die("%s: %s", call, text);
}
#define MPI_CHECK(call) mpi_check((call), #call)

static inline void comm_begin(Comm *c) { c->n_requests = 0; }

static inline void comm_send(Comm *c, int peer, const void *bytes, size_t n) {
    MPI_CHECK(MPI_Isend(bytes, (int)n, MPI_BYTE, peer, 0, MPI_COMM_WORLD,
                        &c->requests[c->n_requests++]));
    c->bytes_now += n;
}

static inline void comm_receive(Comm *c, int peer, void *bytes, size_t n) {
    MPI_CHECK(MPI_Irecv(bytes, (int)n, MPI_BYTE, peer, 0, MPI_COMM_WORLD,
                        &c->requests[c->n_requests++]));
}

// MPI moves data while somebody asks whether it has. To ask all the time would take a core from the
// computation, so between two questions this thread sleeps for a moment.
static inline void comm_end(Comm *c) {
    const struct timespec moment = { 0, 20000 };
    for (int asked = 0, over = 0; ; asked++) {
        MPI_CHECK(MPI_Testall(c->n_requests, c->requests, &over, MPI_STATUSES_IGNORE));
        if (over) return;
        if (asked > 20) nanosleep(&moment, NULL);
        else sched_yield();
    }
}

static inline void comm_copy(Comm *c, void *out, const void *in, size_t bytes) {
    (void)c;
    if (out != in) memcpy(out, in, bytes);
}

static inline void comm_sum_terms(Comm *c, float *out, const void *const *x, float scale,
                                  CommType type, CommMode mode, size_t n) {
    tree_sum(out, x, c->size, scale, type, mode, n);
}

static inline void comm_narrow(Comm *c, uint16_t *out, const float *x, size_t n) {
    (void)c;
    bf16_narrow_all(out, x, n);
}

static inline void comm_widen(Comm *c, float *out, const uint16_t *x, size_t n) {
    (void)c;
    bf16_widen_all(out, x, n);
}

#elif defined(WITH_NCCL)

static inline void nccl_check(const Comm *c, ncclResult_t status, const char *call) {
    if (status == ncclSuccess) return;
    die("nccl%s: %s: %s", call, c->nccl.GetErrorString(status), c->nccl.GetLastError(c->peers));
}
#define NCCL_CHECK(c, call) nccl_check((c), (c)->nccl.call, #call)

static inline void comm_begin(Comm *c) { NCCL_CHECK(c, GroupStart()); }

static inline void comm_send(Comm *c, int peer, const void *bytes, size_t n) {
    NCCL_CHECK(c, Send(bytes, n, ncclUint8, peer, c->peers, c->stream));
    c->bytes_sent += n;
}

static inline void comm_receive(Comm *c, int peer, void *bytes, size_t n) {
    NCCL_CHECK(c, Recv(bytes, n, ncclUint8, peer, c->peers, c->stream));
}

static inline void comm_end(Comm *c) { NCCL_CHECK(c, GroupEnd()); }

static inline void comm_copy(Comm *c, void *out, const void *in, size_t bytes) {
    if (out != in) COMM_CUDA(cudaMemcpyAsync(out, in, bytes, cudaMemcpyDefault, c->stream));
}

static inline void comm_sum_terms(Comm *c, float *out, const void *const *x, float scale,
                                  CommType type, CommMode mode, size_t n) {
    gpu_sum(out, x, c->size, scale, type, mode, n, c->stream);
}

static inline void comm_narrow(Comm *c, uint16_t *out, const float *x, size_t n) {
    gpu_narrow(out, x, n, c->stream);
}

static inline void comm_widen(Comm *c, float *out, const uint16_t *x, size_t n) {
    gpu_widen(out, x, n, c->stream);
}

#endif

#if defined(WITH_MPI) || defined(WITH_NCCL)

// ---- the collectives, as exchanges ----

// What of a slice is left at `at`: at most one piece.
static inline size_t piece_of(const Comm *c, Slice s, size_t at) {
    size_t left = at < s.count ? s.count - at : 0;
    return left < c->piece ? left : c->piece;
}

static inline void run_reduce_scatter(Comm *c, const CommOp *op) {
    const float *in = (const float *)op->in;
    float *out = (float *)op->out;
    size_t bytes = op->type == COMM_BF16 ? sizeof(uint16_t) : sizeof(float);
    Slice own = comm_slice(op->count, c->rank, c->size), first = comm_slice(op->count, 0, c->size);
    for (size_t at = 0; at < first.count; at += c->piece) {
        const void *terms[COMM_MAX_RANKS];
        for (int r = 0; r < c->size; r++) {            // slices on their way out
            Slice s = comm_slice(op->count, r, c->size);
            uint16_t *narrow = (uint16_t *)c->scratch_out + (size_t)r*c->piece;
            terms[r] = in + s.begin + at;
            if (op->type == COMM_FP32) continue;
            comm_narrow(c, narrow, in + s.begin + at, piece_of(c, s, at));
            terms[r] = narrow;
        }
        comm_begin(c);
        for (int r = 0; r < c->size; r++) {
            size_t n = piece_of(c, comm_slice(op->count, r, c->size), at);
            char *received = c->scratch_in + (size_t)r*c->piece*bytes;
            if (r == c->rank) continue;
            if (n > 0) comm_send(c, r, terms[r], n*bytes);
            if (piece_of(c, own, at) > 0) comm_receive(c, r, received, piece_of(c, own, at)*bytes);
            terms[r] = received;
        }
        comm_end(c);
        comm_sum_terms(c, out + at, terms, op->scale, op->type, op->mode, piece_of(c, own, at));
    }
}

static inline void run_all_gather(Comm *c, const CommOp *op) {
    char *data = (char *)op->out;
    Slice own = comm_slice(op->count, c->rank, c->size), first = comm_slice(op->count, 0, c->size);
    comm_copy(c, data + own.begin*op->bytes, op->in, own.count*op->bytes);
    for (size_t at = 0; at < first.count; at += c->piece) {
        size_t n = piece_of(c, own, at);
        comm_begin(c);
        for (int r = 0; r < c->size; r++) {
            Slice s = comm_slice(op->count, r, c->size);
            if (r == c->rank) continue;
            if (n > 0) comm_send(c, r, data + (own.begin + at)*op->bytes, n*op->bytes);
            if (piece_of(c, s, at) > 0)
                comm_receive(c, r, data + (s.begin + at)*op->bytes, piece_of(c, s, at)*op->bytes);
        }
        comm_end(c);
    }
}

// An all-gather of floats that travel as bf16. Every rank ends with the same, rounded numbers: the
// slice's owner as well.
static inline void run_all_gather_rounded(Comm *c, const CommOp *op) {
    float *data = (float *)op->out;
    uint16_t *in = (uint16_t *)c->scratch_in, *out = (uint16_t *)c->scratch_out;
    Slice own = comm_slice(op->count, c->rank, c->size), first = comm_slice(op->count, 0, c->size);
    for (size_t at = 0; at < first.count; at += c->piece) {
        size_t n = piece_of(c, own, at);
        comm_narrow(c, out, data + own.begin + at, n);
        comm_begin(c);
        for (int r = 0; r < c->size; r++) {
            size_t n_in = piece_of(c, comm_slice(op->count, r, c->size), at);
            if (r == c->rank) continue;
            if (n > 0) comm_send(c, r, out, n * sizeof *out);
            if (n_in > 0) comm_receive(c, r, in + (size_t)r*c->piece, n_in * sizeof *in);
        }
        comm_end(c);
        for (int r = 0; r < c->size; r++) {
            Slice s = comm_slice(op->count, r, c->size);
            comm_widen(c, data + s.begin + at, r == c->rank ? out : in + (size_t)r*c->piece,
                       piece_of(c, s, at));
        }
    }
}

static inline void run_broadcast(Comm *c, const CommOp *op) {
    char *data = (char *)op->out;
    const size_t most = 64 << 20;                      // bytes that MPI's int counts easily
    for (size_t at = 0; at < op->bytes; at += most) {
        size_t n = op->bytes - at < most ? op->bytes - at : most;
        comm_begin(c);
        for (int r = 0; r < c->size; r++)
            if (c->rank == op->root && r != c->rank) comm_send(c, r, data + at, n);
        if (c->rank != op->root) comm_receive(c, op->root, data + at, n);
        comm_end(c);
    }
}

// out (size,bytes) = every rank's `in`, in the order of the ranks.
static inline void run_collect(Comm *c, const CommOp *op) {
    char *all = (char *)op->out;
    comm_copy(c, all + (size_t)c->rank*op->bytes, op->in, op->bytes);
    comm_begin(c);
    for (int r = 0; r < c->size; r++) {
        if (r == c->rank) continue;
        comm_send(c, r, all + (size_t)c->rank*op->bytes, op->bytes);
        comm_receive(c, r, all + (size_t)r*op->bytes, op->bytes);
    }
    comm_end(c);
}

static inline void comm_run(Comm *c, const CommOp *op) {
    switch (op->kind) {
        case OP_REDUCE_SCATTER:     run_reduce_scatter(c, op); break;
        case OP_ALL_GATHER:         run_all_gather(c, op); break;
        case OP_ALL_GATHER_ROUNDED: run_all_gather_rounded(c, op); break;
        case OP_BROADCAST:          run_broadcast(c, op); break;
        case OP_COLLECT:            run_collect(c, op); break;
    }
}
#endif

// ---- the queue of collectives ----

#if defined(WITH_MPI)

static inline Ticket comm_queue(Comm *c, CommOp op) {
    pthread_mutex_lock(&c->lock);
    while (c->queued - c->done == COMM_QUEUE) pthread_cond_wait(&c->changed, &c->lock);
    c->queue[c->queued++ % COMM_QUEUE] = op;
    Ticket ticket = c->queued;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    return ticket;
}

// The buffers of this collective, and of all before it, may be used again.
static inline void comm_wait(Comm *c, Ticket ticket) {
    if (ticket == 0) return;
    pthread_mutex_lock(&c->lock);
    if (c->done < ticket) {
        double start = seconds_now();
        while (c->done < ticket) pthread_cond_wait(&c->changed, &c->lock);
        c->waited += seconds_now() - start;
    }
    pthread_mutex_unlock(&c->lock);
}

// The next collective to carry out; false when there will be none.
static inline bool comm_next(Comm *c, CommOp *op) {
    pthread_mutex_lock(&c->lock);
    while (c->done == c->queued && !c->closing) pthread_cond_wait(&c->changed, &c->lock);
    bool there = c->done < c->queued;
    if (there) *op = c->queue[c->done % COMM_QUEUE];
    pthread_mutex_unlock(&c->lock);
    return there;
}

static inline void comm_start_mpi(Comm *c) {
    int level, size = 1, rank = 0;
    MPI_CHECK(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level));
    MPI_CHECK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    MPI_CHECK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    MPI_CHECK(MPI_Comm_size(MPI_COMM_WORLD, &size));
    if (level < MPI_THREAD_FUNNELED) fail(&c->problem, "MPI: this one allows no threads at all");
    if (rank != c->rank || size != c->size)
        fail(&c->problem, "MPI: the launcher says rank %d of %d, MPI says %d of %d; start with the "
             "mpirun of the MPI this was built with, or scripts/launch.sh", c->rank, c->size, rank,
             size);
}

// The thread that data travels on. No other calls MPI.
static inline void *comm_thread(void *argument) {
    Comm *c = (Comm *)argument;
    CommOp op;
    comm_start_mpi(c);
    pthread_mutex_lock(&c->lock);
    c->started = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    while (comm_next(c, &op)) {
        double start = seconds_now();
        comm_run(c, &op);
        pthread_mutex_lock(&c->lock);
        c->busy += seconds_now() - start;
        c->bytes_sent += c->bytes_now;
        c->bytes_now = 0;
        c->done++;
        pthread_cond_broadcast(&c->changed);
        pthread_mutex_unlock(&c->lock);
    }
    MPI_CHECK(MPI_Finalize());
    return NULL;
}

#elif defined(WITH_NCCL)

static inline double comm_seconds(cudaEvent_t begin, cudaEvent_t end) {
    float milliseconds = 0.0f;
    COMM_CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
    return 1e-3 * milliseconds;
}

// Is the GPU past this event? Asking leaves no error behind, which the next launch would be blamed
// for.
static inline bool comm_is_past(cudaEvent_t event) {
    cudaError_t status = cudaEventQuery(event);
    if (status == cudaErrorNotReady) cudaGetLastError();
    else COMM_CUDA(status);
    return status == cudaSuccess;
}

// Adds the times of what is over to busy and waited; the CPU waits for nothing.
static inline void comm_settle(Comm *c) {
    for (; c->settled_waits < c->waits; c->settled_waits++) {
        int i = (int)(c->settled_waits % COMM_QUEUE);
        if (!comm_is_past(c->wait_done[i])) break;
        c->waited += comm_seconds(c->wait_begun[i], c->wait_done[i]);
    }
    for (; c->settled < c->queued; c->settled++) {
        int i = (int)(c->settled % COMM_QUEUE);
        if (!comm_is_past(c->done[i])) break;
        c->busy += comm_seconds(c->begun[i], c->done[i]);
    }
}

// Room for one more in a ring of events: where there is none, the CPU waits for half of them.
static inline void comm_make_room(Comm *c, const cudaEvent_t *ring, uint64_t begin, uint64_t end) {
    if (end - begin < COMM_QUEUE) return;
    COMM_CUDA(cudaEventSynchronize(ring[(begin + COMM_QUEUE / 2) % COMM_QUEUE]));
    comm_settle(c);
}

static inline Ticket comm_queue(Comm *c, CommOp op) {
    comm_make_room(c, c->done, c->settled, c->queued);
    int i = (int)(c->queued % COMM_QUEUE);
    COMM_CUDA(cudaEventRecord(c->ready, c->compute));
    COMM_CUDA(cudaStreamWaitEvent(c->stream, c->ready, 0));
    COMM_CUDA(cudaEventRecord(c->begun[i], c->stream));
    comm_run(c, &op);
    COMM_CUDA(cudaEventRecord(c->done[i], c->stream));
    return ++c->queued;
}

// What is launched from now on waits for this collective, and for all before it. The CPU does not.
static inline void comm_wait(Comm *c, Ticket ticket) {
    if (ticket == 0 || ticket <= c->passed) return;
    comm_make_room(c, c->wait_done, c->settled_waits, c->waits);
    int i = (int)(c->waits++ % COMM_QUEUE);
    COMM_CUDA(cudaEventRecord(c->wait_begun[i], c->compute));
    COMM_CUDA(cudaStreamWaitEvent(c->compute, c->done[(ticket - 1) % COMM_QUEUE], 0));
    COMM_CUDA(cudaEventRecord(c->wait_done[i], c->compute));
    c->passed = ticket;
}

#else

static inline Ticket comm_queue(Comm *c, CommOp op) {
    (void)c, (void)op;
    assert(!"one rank has nobody to talk to");
    return 0;
}
static inline void comm_wait(Comm *c, Ticket ticket) { (void)c, (void)ticket; }

#endif

// What communication has cost since comm_open; on a GPU, as far as it is over.
typedef struct { double waited, busy; uint64_t bytes_sent; } CommCounters;

static inline CommCounters comm_counters(Comm *c) {
    CommCounters none = { 0.0, 0.0, 0 };
    if (!c) return none;
#if defined(WITH_MPI)
    if (c->size > 1) pthread_mutex_lock(&c->lock);
#elif defined(WITH_NCCL)
    if (c->size > 1) comm_settle(c);
#endif
    CommCounters counters = { c->waited, c->busy, c->bytes_sent };
#if defined(WITH_MPI)
    if (c->size > 1) pthread_mutex_unlock(&c->lock);
#endif
    return counters;
}

// ---- the collectives ----

// out (this rank's slice of count) = scale times the sum of all ranks' slices of `in` (count), or
// += that. `out` may be the slice of `in`.
static inline Ticket comm_reduce_scatter(Comm *c, float *out, const float *in, size_t count,
                                         float scale, CommType type, CommMode mode) {
    CommOp op = { OP_REDUCE_SCATTER, out, in, count, sizeof(float), scale, type, mode, 0 };
    return comm_queue(c, op);
}

// data (count elements of so many bytes) = each rank's slice. `own` is this rank's, which may lie
// in its place already.
static inline Ticket comm_all_gather(Comm *c, void *data, const void *own, size_t count,
                                     size_t bytes) {
    CommOp op = { OP_ALL_GATHER, data, own, count, bytes, 1.0f, COMM_FP32, COMM_WRITE, 0 };
    return comm_queue(c, op);
}

// data (count) = scale times the sum over all ranks; the same bits on each of them.
static inline Ticket comm_all_reduce(Comm *c, float *data, size_t count, float scale,
                                     CommType type) {
    if (c->size == 1) return 0;
    float *own = data + comm_slice(count, c->rank, c->size).begin;
    comm_reduce_scatter(c, own, data, count, scale, type, COMM_WRITE);
    if (type == COMM_FP32) return comm_all_gather(c, data, own, count, sizeof *data);
    CommOp op = { OP_ALL_GATHER_ROUNDED, data, own, count, 0, 1.0f, type, COMM_WRITE, 0 };
    return comm_queue(c, op);
}

// data (count) = its mean over all ranks.
static inline Ticket comm_mean(Comm *c, float *data, size_t count, CommType type) {
    return comm_all_reduce(c, data, count, 1.0f / (float)c->size, type);
}

// Every rank's data = that of rank `root`.
static inline Ticket comm_broadcast(Comm *c, void *data, size_t bytes, int root) {
    if (c->size == 1) return 0;
    CommOp op = { OP_BROADCAST, data, NULL, 0, bytes, 1.0f, COMM_FP32, COMM_WRITE, root };
    return comm_queue(c, op);
}

// ---- small things, on the CPU, at once ----

#if defined(COMM_ON_GPU)
// all (size,bytes) = every rank's `own`, in the order of the ranks; both on the GPU.
static inline Ticket comm_collect_there(Comm *c, void *all, const void *own, size_t bytes) {
    CommOp op = { OP_COLLECT, all, own, 0, bytes, 1.0f, COMM_FP32, COMM_WRITE, 0 };
    return comm_queue(c, op);
}
#endif

// all (size,bytes) = every rank's `own`, in the order of the ranks; at most COMM_SMALL bytes of
// each.
static inline void comm_collect(Comm *c, void *all, const void *own, size_t bytes) {
    assert(bytes <= COMM_SMALL);
    if (c->size == 1) {
        memcpy(all, own, bytes);
        return;
    }
#if defined(WITH_NCCL)
    size_t n = (size_t)c->size*bytes;
    char *device_own = c->small + (size_t)c->size*COMM_SMALL;
    COMM_CUDA(cudaMemcpyAsync(device_own, own, bytes, cudaMemcpyHostToDevice, c->stream));
    comm_wait(c, comm_collect_there(c, c->small, device_own, bytes));
    COMM_CUDA(cudaMemcpyAsync(all, c->small, n, cudaMemcpyDeviceToHost, c->compute));
    COMM_CUDA(cudaStreamSynchronize(c->compute));
#else
    CommOp op = { OP_COLLECT, all, own, 0, bytes, 1.0f, COMM_FP32, COMM_WRITE, 0 };
    comm_wait(c, comm_queue(c, op));
#endif
}

// x (n) = its sum over all ranks, added in their order.
static inline void comm_add(Comm *c, double *x, int n) {
    double all[COMM_SMALL];
    if (!c || c->size == 1) return;
    assert((size_t)n*(size_t)c->size <= COMM_SMALL);
    comm_collect(c, all, x, (size_t)n * sizeof *x);
    for (int i = 0; i < n; i++) {
        x[i] = 0.0;
        for (int r = 0; r < c->size; r++) x[i] += all[r*n + i];
    }
}

// Every rank's bytes = rank 0's; at most COMM_SMALL.
static inline void comm_broadcast_small(Comm *c, void *bytes, size_t n) {
    char *all = (char *)alloc_or_die((size_t)c->size*n, "a message");
    comm_collect(c, all, bytes, n);
    memcpy(bytes, all, n);
    free(all);
}

static inline void comm_barrier(Comm *c) {
    double nothing = 0.0;
    comm_add(c, &nothing, 1);
}

// Every rank holds the same number here, or the program ends: a rank that computes something else
// would spoil the run without a trace. `what` says which: "another build of this program".
static inline void comm_agree(Comm *c, const char *what, uint64_t number) {
    uint64_t all[COMM_MAX_RANKS];
    comm_collect(c, all, &number, sizeof number);
    for (int r = 1; r < c->size; r++)
        if (all[r] != all[0])
            die("ranks: rank %d has %s than rank 0; start them all the same way", r, what);
}

// The same for a JSON object of at most COMM_SMALL bytes; names the first member that differs.
static inline void comm_agree_json(Comm *c, const char *json) {
    char *all = (char *)alloc_or_die((size_t)c->size * COMM_SMALL, "the ranks' configurations");
    char *own = (char *)alloc_or_die(COMM_SMALL, "a rank's configuration");
    snprintf(own, COMM_SMALL, "%s", json);
    comm_collect(c, all, own, COMM_SMALL);
    for (int r = 1; r < c->size; r++) {
        const char *there = all + (size_t)r*COMM_SMALL;
        size_t at = 0, begin = 0;
        if (strcmp(all, there) == 0) continue;
        for (; all[at] == there[at]; at++) if (all[at] == ',') begin = at + 1;
        int n = (int)strcspn(all + begin, ",}\n"), n_there = (int)strcspn(there + begin, ",}\n");
        die("ranks: rank %d has %.*s, rank 0 has %.*s; start them all the same way", r,
            n_there, there + begin, n, all + begin);
    }
    free(all);
    free(own);
}

// ---- opening and closing ----

// Who is where: how many machines there are, and which of its machine's ranks this one is.
static inline void comm_find_neighbours(Comm *c) {
    typedef struct { char name[64]; } Host;
    Host own, all[COMM_MAX_RANKS];
    size_t at = 0;
    memset(&own, 0, sizeof own);
    gethostname(own.name, sizeof own.name - 1);
    comm_collect(c, all, &own, sizeof own);
    c->local_rank = c->local_size = c->hosts = 0;
    for (int r = 0, last; r < c->size; r = last + 1) {         // ranks r ... last are neighbours
        for (last = r; last + 1 < c->size && strcmp(all[last + 1].name, all[r].name) == 0; ) last++;
        bool seen = false;
        for (int q = 0; q < r; q++) seen = seen || strcmp(all[q].name, all[r].name) == 0;
        c->hosts += !seen;
        if (at < sizeof c->layout)
            at += (size_t)snprintf(c->layout + at, sizeof c->layout - at, "%s%.30s: %d-%d",
                                   r ? ", " : "", all[r].name, r, last);
    }
    for (int r = 0; r < c->size; r++) {
        bool here = strcmp(all[r].name, own.name) == 0;
        c->local_size += here;
        c->local_rank += here && r < c->rank;
    }
}

#if defined(WITH_MPI)

// Rank 0 listens wherever a port is free, and says so over MPI.
static inline bool comm_open_watch(Comm *c, double timeout, Error *err) {
    typedef struct { char host[64]; int port; uint64_t job; } Meeting;
    Meeting own;
    memset(&own, 0, sizeof own);
    own.job = (uint64_t)getpid() ^ (uint64_t)(seconds_now()*1e6);
    if (c->hosts == 1) snprintf(own.host, sizeof own.host, "127.0.0.1");
    else gethostname(own.host, sizeof own.host - 1);
    comm_broadcast_small(c, &own.job, sizeof own.job);
    heartbeat_init(&c->heartbeat, c->rank, c->size, own.job, timeout);
    if (c->rank == 0 && !heartbeat_listen(&c->heartbeat, NULL, &own.port, err)) return false;
    comm_broadcast_small(c, &own, sizeof own);
    return heartbeat_join(&c->heartbeat, own.host, own.port, err);
}

static inline bool comm_open(Comm *c, double timeout, Error *err) {
    memset(c, 0, sizeof *c);
    c->rank = launched_as(LAUNCH_RANK, 0);
    c->size = launched_as(LAUNCH_SIZE, 1);
    c->hosts = c->local_size = 1;
    if (c->size == 1) return true;
    if (c->size > COMM_MAX_RANKS)
        return fail(err, "ranks: %d of them; at most %d are built for", c->size, COMM_MAX_RANKS);
    c->piece = COMM_SCRATCH / sizeof(float) / (size_t)c->size;
    c->scratch_in = (char *)alloc_or_die(COMM_SCRATCH, "slices on their way in");
    c->scratch_out = (char *)alloc_or_die(COMM_SCRATCH / 2, "slices on their way out");
    c->requests = (MPI_Request *)alloc_or_die(2*(size_t)c->size * sizeof *c->requests, "requests");
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    if (pthread_create(&c->thread, NULL, comm_thread, c) != 0)
        return fail(err, "ranks: the thread that would call MPI cannot be started");
    pthread_mutex_lock(&c->lock);
    while (!c->started) pthread_cond_wait(&c->changed, &c->lock);
    pthread_mutex_unlock(&c->lock);
    if (c->problem.text[0]) return fail(err, "%s", c->problem.text);
    comm_find_neighbours(c);
    c->watched = comm_open_watch(c, timeout, err);
    return c->watched;
}

static inline void comm_close(Comm *c) {
    if (c->size == 1) return;
    comm_barrier(c);
    heartbeat_stop(&c->heartbeat);
    pthread_mutex_lock(&c->lock);
    c->closing = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    pthread_join(c->thread, NULL);
    free(c->scratch_in);
    free(c->scratch_out);
    free(c->requests);
}

#elif defined(WITH_NCCL)

// Where the launcher says that the ranks meet. torchrun itself listens at MASTER_PORT, so the ranks
// take the port after it.
static inline bool comm_open_watch(Comm *c, double timeout, Error *err) {
    const char *host = getenv("MASTER_ADDR"), *port_text = getenv("MASTER_PORT");
    const char *job = getenv("TORCHELASTIC_RUN_ID") ? getenv("TORCHELASTIC_RUN_ID")
                    : getenv("SLURM_JOB_ID") ? getenv("SLURM_JOB_ID") : "";
    if (!host || !*host)
        return fail(err, "MASTER_ADDR: not set, and this is rank %d of %d; it names the machine of "
                    "rank 0; scripts/launch.sh and torchrun set it", c->rank, c->size);
    int port = port_text ? atoi(port_text) + 1 : 29501;
    if (port < 2 || port > 65535)
        return fail(err, "MASTER_PORT: \"%.20s\" is no port below 65535", port_text);
    heartbeat_init(&c->heartbeat, c->rank, c->size, hash_add(1, job, strlen(job)), timeout);
    if (c->rank == 0 && !heartbeat_listen(&c->heartbeat, host, &port, err)) return false;
    return heartbeat_join(&c->heartbeat, host, port, err);
}

static inline bool nccl_load(Nccl *n, Error *err) {
#ifdef EMULATOR
    (void)err;
#define X(name) n->name = nccl##name;
#else
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return fail(err, "NCCL: several ranks need it, and it cannot be loaded: %.200s", dlerror());
#define X(name) \
    n->name = (decltype(n->name))dlsym(library, "nccl" #name); \
    if (!n->name) return fail(err, "NCCL: libnccl.so.2 is too old, it has no nccl" #name);
#endif
    NCCL_FUNCTIONS(X)
#undef X
    return true;
}

// Finds the other ranks. Before a GPU is chosen, by local_rank; comm_open_gpu comes after it.
static inline bool comm_open(Comm *c, double timeout, Error *err) {
    memset(c, 0, sizeof *c);
    c->rank = launched_as(LAUNCH_RANK, 0);
    c->size = launched_as(LAUNCH_SIZE, 1);
    c->local_rank = launched_as(LAUNCH_LOCAL_RANK, c->rank);
    c->local_size = launched_as(LAUNCH_LOCAL_SIZE, c->size);
    c->hosts = 1;
    if (c->size == 1) return true;
    if (c->size > COMM_MAX_RANKS)
        return fail(err, "ranks: %d of them; at most %d are built for", c->size, COMM_MAX_RANKS);
    if (!nccl_load(&c->nccl, err)) return false;
    c->watched = comm_open_watch(c, timeout, err);
    if (c->watched && c->rank == 0) NCCL_CHECK(c, GetUniqueId(&c->id));
    return c->watched && heartbeat_share(&c->heartbeat, &c->id, sizeof c->id, err);
}

// Joins the ranks' GPUs. The current device is this rank's; `compute` is the stream it computes on.
// What travels has the right of way: a collective that waits for room holds up all ranks.
static inline void comm_open_gpu(Comm *c, cudaStream_t compute) {
    int least, greatest;
    c->compute = compute;
    if (c->size == 1) return;
    NCCL_CHECK(c, CommInitRank(&c->peers, c->size, c->id, c->rank));
    c->piece = COMM_SCRATCH / sizeof(float) / (size_t)c->size / 64 * 64;
    COMM_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    COMM_CUDA(cudaStreamCreateWithPriority(&c->stream, cudaStreamNonBlocking, greatest));
    COMM_CUDA(cudaMalloc((void **)&c->scratch_in, COMM_SCRATCH));
    COMM_CUDA(cudaMalloc((void **)&c->scratch_out, COMM_SCRATCH / 2));
    COMM_CUDA(cudaMalloc((void **)&c->small, ((size_t)c->size + 1) * COMM_SMALL));
    COMM_CUDA(cudaEventCreateWithFlags(&c->ready, cudaEventDisableTiming));
    cudaEvent_t *rings[] = { c->begun, c->done, c->wait_begun, c->wait_done };
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < COMM_QUEUE; i++) COMM_CUDA(cudaEventCreate(&rings[k][i]));
    comm_find_neighbours(c);
}

static inline void comm_close(Comm *c) {
    if (c->size == 1) return;
    comm_barrier(c);
    heartbeat_stop(&c->heartbeat);
    cudaEvent_t *rings[] = { c->begun, c->done, c->wait_begun, c->wait_done };
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < COMM_QUEUE; i++) COMM_CUDA(cudaEventDestroy(rings[k][i]));
    COMM_CUDA(cudaEventDestroy(c->ready));
    COMM_CUDA(cudaFree(c->scratch_in));
    COMM_CUDA(cudaFree(c->scratch_out));
    COMM_CUDA(cudaFree(c->small));
    NCCL_CHECK(c, CommDestroy(c->peers));
    COMM_CUDA(cudaStreamDestroy(c->stream));
}

#else

static inline bool comm_open(Comm *c, double timeout, Error *err) {
    (void)timeout;
    memset(c, 0, sizeof *c);
    c->size = c->hosts = c->local_size = 1;
    int size = launched_as(LAUNCH_SIZE, 1);
    return size == 1
        || fail(err, "ranks: started as one of %d, but this program was built to run alone; build "
                "it with make MPI=1 (a GPU's with NCCL)", size);
}

#if defined(COMM_ON_GPU)
static inline void comm_open_gpu(Comm *c, cudaStream_t compute) {
    c->compute = compute;
}
#endif

static inline void comm_close(Comm *c) { (void)c; }

#endif
