// Communication between ranks: the processes of one run, each of which trains on a part of every
// batch. Collectives combine their results and run while the caller computes. A program is built
// with one of three backends:
//
//     alone          one rank; a collective does nothing       at the end of this file
//     WITH_MPI       CPUs; a thread of its own calls MPI       comm_mpi.h
//     WITH_NCCL      GPUs; NCCL on a CUDA stream of its own    comm_nccl.h
//
//     comm_open(&comm, timeout, &err)                          comm_close(&comm)
//     Ticket t = comm_mean(&comm, grads, n, COMM_FP32);        begins an all-reduce
//     ... compute something else ...                           while the data travels
//     comm_wait(&comm, t);                                     grads hold the mean over all ranks
//
// All ranks call the same collectives in the same order, with the same counts. A collective starts
// when the caller's computation so far is done, and returns a ticket at once. Its buffers must not
// be touched until comm_wait(ticket). Collectives finish in the order in which they were called.
//
// A buffer is divided into one slice a rank. Data parallelism and ZeRO need two collectives:
//
//     reduce-scatter   rank r receives slice r from every rank and sums the slices: in fp32, in
//                      the order of a fixed binary tree over the ranks (tree.h), so that the sum
//                      has the same bits in every run
//     all-gather       every rank receives slice r from rank r
//
// An all-reduce is a reduce-scatter and then an all-gather. With n ranks and a buffer of B bytes, a
// rank sends (n-1)/n B bytes in each. A ring all-reduce sends as much, and no algorithm sends less
// (Patarasuk and Yuan 2009). COMM_BF16 halves B: floats are sent as bf16 and still summed in fp32.
#pragma once
#include <assert.h>
#include <unistd.h>
#include "../base/error.h"         // Error, fail, die, alloc_or_die
#include "heartbeat.h"             // Heartbeat: ends the run if a rank is gone
#include "tree.h"                  // tree_sum, bf16, CommType, CommMode, COMM_ON_GPU

typedef uint64_t Ticket;                   // a collective to wait for; 0: none

typedef struct { size_t begin, count; } Slice;

// Rank r's slice of a buffer of `count` elements. Slices are equal multiples of 64 elements; the
// last ranks may have less, or nothing.
static inline Slice comm_slice(size_t count, int rank, int size) {
    size_t units = (count + 63) / 64, each = (units + (size_t)size - 1) / (size_t)size * 64;
    size_t begin = each * (size_t)rank < count ? each * (size_t)rank : count;
    Slice s = { begin, count - begin < each ? count - begin : each };
    return s;
}

// ---- what a rank holds ----

enum {
    COMM_MAX_RANKS = 256,
    COMM_QUEUE = 1024,                     // most collectives queued and not finished
    COMM_SMALL = 4096,                     // most bytes of a rank in comm_collect
};

// Bytes that comm_open allocates for received slices. Slices to send take half as many: they need a
// buffer only in bf16.
#if defined(WITH_NCCL)
static const size_t COMM_SCRATCH = 64 << 20;
#else
static const size_t COMM_SCRATCH = 16 << 20;           // small models need little memory
#endif

// Bytes of device memory that comm_open (with NCCL: comm_open_gpu) allocates for slices, in a run
// of `ranks` ranks.
static inline size_t comm_bytes(int ranks) {
    return ranks > 1 ? COMM_SCRATCH + COMM_SCRATCH / 2 : 0;
}

typedef enum {
    OP_REDUCE_SCATTER, OP_ALL_GATHER, OP_ALL_GATHER_ROUNDED, OP_BROADCAST, OP_COLLECT
} CommOpKind;

// A queued collective.
typedef struct {
    CommOpKind kind;
    void *out;
    const void *in;
    size_t count, bytes;                   // elements; bytes of each, or of the whole message
    float scale;
    CommType type;
    CommMode mode;
    int root;
} CommOp;

// What communication has cost this rank since comm_open.
typedef struct {
    double waited, busy;                   // seconds: the caller waited; collectives ran
    uint64_t bytes_sent;
} CommCounters;

typedef struct CommBackend CommBackend;    // the state of comm_mpi.h or comm_nccl.h

typedef struct {
    int rank, size;
    int local_rank, local_size;            // among the ranks of this machine
    int hosts;                             // machines
    char layout[200];                      // which rank is where: "node1: 0-3, node2: 4-7"
    CommCounters counters;                 // read through comm_counters
    size_t piece;                          // most elements of a slice in one message
    char *scratch_in, *scratch_out;        // (size,piece) floats, (size,piece) bf16; on the device
    Heartbeat heartbeat;
    bool watched;                          // the heartbeat has connected all ranks
#if defined(COMM_ON_GPU)
    cudaStream_t compute;                  // the stream that the caller computes on
#endif
    CommBackend *backend;                  // NULL: one rank alone
} Comm;

#if defined(COMM_ON_GPU)
static inline void comm_cuda_check(cudaError_t status, const char *call) {
    if (status != cudaSuccess) die("%s: %s", call, cudaGetErrorString(status));
}
#define COMM_CUDA(call) comm_cuda_check((call), #call)

// The GPU's twins of tree_sum, bf16_narrow_all and bf16_widen_all, in kernels.cu. `out` and `x` lie
// on the GPU; for gpu_sum, x is an array on the CPU of `terms` pointers to the GPU. The last two
// are unused with one rank.
[[maybe_unused]]
static void gpu_sum(float *out, const void *const *x, int terms, float scale, CommType type,
                    CommMode mode, size_t n, cudaStream_t stream);
[[maybe_unused]]
static void gpu_narrow(uint16_t *out, const float *x, size_t n, cudaStream_t stream);
[[maybe_unused]]
static void gpu_widen(float *out, const uint16_t *x, size_t n, cudaStream_t stream);
#endif

// ---- what a backend provides ----

// Finds the other ranks, through the launcher's environment variables; `timeout` is the
// heartbeat's, in seconds. Errors: the launcher's variables are wrong or missing, a rank does not
// connect.
static inline bool comm_open(Comm *c, double timeout, Error *err);

#if defined(COMM_ON_GPU)
// After comm_open, once this rank has chosen its GPU: connects the GPUs of all ranks. `compute` is
// the stream that the caller computes on.
static inline void comm_open_gpu(Comm *c, cudaStream_t compute);
#endif

// Waits until all ranks call it, then disconnects them and frees what comm_open took.
static inline void comm_close(Comm *c);

// Queues a collective. It runs after those queued before it and after what the caller has computed.
static inline Ticket comm_queue(Comm *c, CommOp op);

// Waits for this collective and all before it: then their buffers may be used again. On a GPU the
// CPU does not wait; kernels launched after this call do. With ticket 0, `c` may be NULL.
static inline void comm_wait(Comm *c, Ticket ticket);

// What communication has cost so far; on a GPU, in the collectives that are over. c NULL: zeros.
static inline CommCounters comm_counters(Comm *c);

// comm_collect among several ranks: all (size,bytes) = every rank's `own`, both in CPU memory.
static inline void comm_collect_now(Comm *c, void *all, const void *own, size_t bytes);

#if defined(WITH_MPI) || defined(WITH_NCCL)

// A group of messages: comm_begin, sends and receives to and from any peers, comm_end. MPI: all of
// them have arrived when comm_end returns. NCCL: comm_end puts them on the stream.
static inline void comm_begin(Comm *c);
static inline void comm_send(Comm *c, int peer, const void *bytes, size_t n);
static inline void comm_receive(Comm *c, int peer, void *bytes, size_t n);
static inline void comm_end(Comm *c);

// Work on device buffers, in order with the messages.
//   comm_copy        out (bytes) = in; nothing if they are the same buffer
//   comm_sum_terms   tree_sum over all ranks' terms: x (size) buffers of n elements
//   comm_narrow      floats to bf16
//   comm_widen       bf16 to floats
static inline void comm_copy(Comm *c, void *out, const void *in, size_t bytes);
static inline void comm_sum_terms(Comm *c, float *out, const void *const *x, float scale,
                                  CommType type, CommMode mode, size_t n);
static inline void comm_narrow(Comm *c, uint16_t *out, const float *x, size_t n);
static inline void comm_widen(Comm *c, float *out, const uint16_t *x, size_t n);

// ---- the collectives, as messages from each rank to each other rank ----

// Elements of a slice to send at offset `at`: one piece, or what is left.
static inline size_t piece_of(const Comm *c, Slice s, size_t at) {
    size_t left = at < s.count ? s.count - at : 0;
    return left < c->piece ? left : c->piece;
}

// Sends slice r of `in` to rank r, receives this rank's slice from all ranks, and sums along the
// tree.
static inline void run_reduce_scatter(Comm *c, const CommOp *op) {
    const float *in = (const float *)op->in;
    float *out = (float *)op->out;
    size_t bytes = op->type == COMM_BF16 ? sizeof(uint16_t) : sizeof(float);
    Slice own = comm_slice(op->count, c->rank, c->size), first = comm_slice(op->count, 0, c->size);
    for (size_t at = 0; at < first.count; at += c->piece) {
        const void *terms[COMM_MAX_RANKS];
        for (int r = 0; r < c->size; r++) {            // to send: floats in place, or bf16
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

// Sends this rank's slice to all ranks and receives theirs, each into its place in `out`.
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

// An all-gather of floats that are sent as bf16. A slice's owner also rounds its own copy, so that
// all ranks end with the same bits.
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
    const size_t most = 64 << 20;                      // bytes: MPI counts in int
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

// Carries out one collective.
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

// ---- the collectives that a trainer calls: each is queued and returns a ticket ----

// Reduce-scatter. With s = this rank's slice of count: out (s.count) = scale * the sum over all
// ranks of in[s.begin ...]; COMM_ADD: out += that. in (count); `out` may be in + s.begin.
static inline Ticket comm_reduce_scatter(Comm *c, float *out, const float *in, size_t count,
                                         float scale, CommType type, CommMode mode) {
    CommOp op = { OP_REDUCE_SCATTER, out, in, count, sizeof(float), scale, type, mode, 0 };
    return comm_queue(c, op);
}

// All-gather. data (count elements of `bytes` bytes each) = all ranks' slices. `own` is this rank's
// slice, which may already lie in its place in `data`.
static inline Ticket comm_all_gather(Comm *c, void *data, const void *own, size_t count,
                                     size_t bytes) {
    CommOp op = { OP_ALL_GATHER, data, own, count, bytes, 1.0f, COMM_FP32, COMM_WRITE, 0 };
    return comm_queue(c, op);
}

// All-reduce. data (count) = scale * the sum of data over all ranks; the same bits on each.
static inline Ticket comm_all_reduce(Comm *c, float *data, size_t count, float scale,
                                     CommType type) {
    if (c->size == 1) return 0;
    float *own = data + comm_slice(count, c->rank, c->size).begin;
    comm_reduce_scatter(c, own, data, count, scale, type, COMM_WRITE);
    if (type == COMM_FP32) return comm_all_gather(c, data, own, count, sizeof *data);
    CommOp op = { OP_ALL_GATHER_ROUNDED, data, own, count, 0, 1.0f, type, COMM_WRITE, 0 };
    return comm_queue(c, op);
}

// data (count) = its mean over all ranks: an all-reduce.
static inline Ticket comm_mean(Comm *c, float *data, size_t count, CommType type) {
    return comm_all_reduce(c, data, count, 1.0f / (float)c->size, type);
}

// Broadcast. data (bytes) of every rank = that of rank `root`.
static inline Ticket comm_broadcast(Comm *c, void *data, size_t bytes, int root) {
    if (c->size == 1) return 0;
    CommOp op = { OP_BROADCAST, data, NULL, 0, bytes, 1.0f, COMM_FP32, COMM_WRITE, root };
    return comm_queue(c, op);
}

#if defined(COMM_ON_GPU)
// all (size,bytes) = every rank's `own`, in the order of the ranks; both on the GPU.
static inline Ticket comm_collect_there(Comm *c, void *all, const void *own, size_t bytes) {
    CommOp op = { OP_COLLECT, all, own, 0, bytes, 1.0f, COMM_FP32, COMM_WRITE, 0 };
    return comm_queue(c, op);
}
#endif

// ---- small messages between CPUs: each call returns when its data has arrived ----

// all (size,bytes) = every rank's `own`, in the order of the ranks; at most COMM_SMALL bytes a
// rank.
static inline void comm_collect(Comm *c, void *all, const void *own, size_t bytes) {
    assert(bytes <= COMM_SMALL);
    if (c->size == 1) memcpy(all, own, bytes);
    else comm_collect_now(c, all, own, bytes);
}

// x (n) = its sum over all ranks, added in the order of the ranks.
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

// bytes (n, at most COMM_SMALL) of every rank = those of rank 0.
static inline void comm_broadcast_small(Comm *c, void *bytes, size_t n) {
    char *all = (char *)alloc_or_die((size_t)c->size*n, "a message");
    comm_collect(c, all, bytes, n);
    memcpy(bytes, all, n);
    free(all);
}

// Returns when all ranks have called it.
static inline void comm_barrier(Comm *c) {
    double nothing = 0.0;
    comm_add(c, &nothing, 1);
}

// Ends the program unless all ranks pass the same number: a rank that computes something else would
// corrupt the run silently. `what` names the difference: "another build of this program".
static inline void comm_agree(Comm *c, const char *what, uint64_t number) {
    uint64_t all[COMM_MAX_RANKS];
    comm_collect(c, all, &number, sizeof number);
    for (int r = 1; r < c->size; r++)
        if (all[r] != all[0])
            die("ranks: rank %d has %s than rank 0; start them all the same way", r, what);
}

// The same for a JSON object of fewer than COMM_SMALL bytes; names the first member that differs.
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

// Sets hosts, local_rank, local_size and layout from the host names of all ranks.
static inline void comm_find_neighbours(Comm *c) {
    typedef struct { char name[64]; } Host;
    Host own, all[COMM_MAX_RANKS];
    size_t at = 0;
    memset(&own, 0, sizeof own);
    gethostname(own.name, sizeof own.name - 1);
    comm_collect(c, all, &own, sizeof own);
    c->local_rank = c->local_size = c->hosts = 0;
    for (int r = 0, last; r < c->size; r = last + 1) {         // ranks r ... last share a machine
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

// ---- the backend ----

#if defined(WITH_MPI)
#include "comm_mpi.h"
#elif defined(WITH_NCCL)
#include "comm_nccl.h"
#else

// One rank alone sends nothing: comm_collect, all-reduce and broadcast return at once, and only a
// run of several ranks calls the other collectives.
static inline Ticket comm_queue(Comm *c, CommOp op) {
    (void)c, (void)op;
    assert(!"one rank alone has no collectives");
    return 0;
}

static inline void comm_wait(Comm *c, Ticket ticket) { (void)c, (void)ticket; }

static inline CommCounters comm_counters(Comm *c) {
    CommCounters none = { 0.0, 0.0, 0 };
    (void)c;
    return none;
}

static inline void comm_collect_now(Comm *c, void *all, const void *own, size_t bytes) {
    (void)c, (void)all, (void)own, (void)bytes;
    assert(!"one rank alone has no collectives");
}

static inline bool comm_open(Comm *c, double timeout, Error *err) {
    (void)timeout;
    memset(c, 0, sizeof *c);
    c->size = c->hosts = c->local_size = 1;
    int size = launched_as(LAUNCH_SIZE, 1);
    return size == 1
        || fail(err, "ranks: started as one of %d, but this program was built for one; build it "
                "with make MPI=1 (for GPUs: with NCCL)", size);
}

#if defined(COMM_ON_GPU)
static inline void comm_open_gpu(Comm *c, cudaStream_t compute) { c->compute = compute; }
#endif

static inline void comm_close(Comm *c) { (void)c; }

#endif
