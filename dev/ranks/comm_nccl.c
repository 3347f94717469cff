// The NCCL backend of comm.c, for GPUs. It needs no thread: launches return at once. Collectives
// run on two streams beside the stream that computes, one for sums and one for messages, so that a
// piece travels while the one before it is summed. Events order the three:
//
//     the caller's stream (compute)       the stream of sums           the stream of messages
//     kernels that write the gradients
//     comm_queue: records `ready`         waits for `ready`
//     ... kernels that compute            comm_begin: records          waits for `prepared`;
//         something else ...                `prepared`                   ncclSend, ncclRecv
//                                         ... sums of last piece ...   comm_end: records
//                                         comm_arrived: waits for it     arrived[group]
//     comm_wait: waits for done[ticket]   the last sum; records done
//
// The events also measure how long collectives ran, and how long the computation waited for them.
#include "ranks.h"

#if defined(WITH_NCCL)
#include <cuda_runtime.h>
#include <nccl.h>

#ifndef EMULATOR
#include <dlfcn.h>
#endif

// NCCL's functions, loaded when a run has several ranks: a run on one GPU needs no NCCL.
#define NCCL_FUNCTIONS(X) \
    X(GetUniqueId) X(CommInitRankConfig) X(CommDestroy) X(GetErrorString) X(GetLastError) \
    X(CommGetAsyncError) X(GroupStart) X(GroupEnd) X(Send) X(Recv)

typedef struct {
#define X(name) decltype(&nccl##name) name;
    NCCL_FUNCTIONS(X)
#undef X
} Nccl;

// Work on a stream, between two events each: entry i has those at i % COMM_QUEUE.
typedef struct {
    cudaEvent_t begun[COMM_QUEUE], done[COMM_QUEUE];
    uint64_t n, settled;                   // entries so far; those whose times are in the counters
} Timed;

struct CommBackend {
    Nccl nccl;
    ncclUniqueId id;                       // NCCL's id of this run
    ncclComm_t peers;                      // all ranks
    cudaStream_t messages;
    cudaEvent_t ready;                     // recorded after the computation so far
    cudaEvent_t prepared;                  // recorded after the sums so far
    cudaEvent_t arrived[COMM_GROUPS];      // recorded after each group of messages
    Timed collectives;                     // entry i is that of ticket i + 1
    Timed waits;                           // of the computing stream
    Ticket passed;                         // the computation waits for tickets up to this
    char *small;                           // (size+1,COMM_SMALL) on the GPU, for comm_collect_now
};

static void cuda_check(cudaError_t status, const char *call) {
    if (status != cudaSuccess) die("%s: %s", call, cudaGetErrorString(status));
}

#define COMM_CUDA(call) cuda_check((call), #call)

static void nccl_check(const CommBackend *b, ncclResult_t status, const char *call) {
    if (status == ncclSuccess) return;
    die("nccl%s: %s: %s", call, b->nccl.GetErrorString(status), b->nccl.GetLastError(b->peers));
}

#define NCCL_CHECK(b, call) nccl_check((b), (b)->nccl.call, #call)

// ---- messages, on their stream ----

void comm_begin(Comm *c, int group) {
    CommBackend *b = c->backend;
    (void)group;
    COMM_CUDA(cudaEventRecord(b->prepared, c->sums));
    COMM_CUDA(cudaStreamWaitEvent(b->messages, b->prepared, 0));
    NCCL_CHECK(b, GroupStart());
}

void comm_send(Comm *c, int peer, const void *bytes, size_t n) {
    CommBackend *b = c->backend;
    NCCL_CHECK(b, Send(bytes, n, ncclUint8, comm_peer(c, peer), b->peers, b->messages));
    CommCounters *counters = &comm_whole(c)->counters;
    counters->bytes_sent += n;
    if (c->host[peer] != c->host[c->rank]) counters->bytes_across += n;
}

void comm_receive(Comm *c, int peer, void *bytes, size_t n) {
    CommBackend *b = c->backend;
    NCCL_CHECK(b, Recv(bytes, n, ncclUint8, comm_peer(c, peer), b->peers, b->messages));
}

void comm_end(Comm *c, int group) {
    CommBackend *b = c->backend;
    NCCL_CHECK(b, GroupEnd());
    COMM_CUDA(cudaEventRecord(b->arrived[group], b->messages));
}

void comm_arrived(Comm *c, int group) {
    COMM_CUDA(cudaStreamWaitEvent(c->sums, c->backend->arrived[group], 0));
}

void comm_copy(Comm *c, void *out, const void *in, size_t bytes) {
    if (out == in) return;
    COMM_CUDA(cudaMemcpyAsync(out, in, bytes, cudaMemcpyDefault, c->sums));
}

// ---- time ----

// Whether the GPU has passed this event. CUDA returns "not yet" as an error; it is cleared here,
// since otherwise the next check after a launch would report it.
static bool comm_is_past(cudaEvent_t event) {
    cudaError_t status = cudaEventQuery(event);
    if (status == cudaErrorNotReady) cudaGetLastError();
    else COMM_CUDA(status);
    return status == cudaSuccess;
}

// Adds the times of finished entries to *seconds. The CPU does not wait.
static void timed_settle(Timed *t, double *seconds) {
    for (; t->settled < t->n; t->settled++) {
        int i = (int)(t->settled % COMM_QUEUE);
        float milliseconds = 0.0f;
        if (!comm_is_past(t->done[i])) break;
        COMM_CUDA(cudaEventElapsedTime(&milliseconds, t->begun[i], t->done[i]));
        *seconds += 1e-3 * milliseconds;
    }
}

// Begins an entry. If the ring is full, the CPU waits until the GPU has passed half of it.
static void timed_begin(Timed *t, double *seconds, cudaStream_t stream) {
    if (t->n - t->settled == COMM_QUEUE) {
        COMM_CUDA(cudaEventSynchronize(t->done[(t->settled + COMM_QUEUE / 2) % COMM_QUEUE]));
        timed_settle(t, seconds);
    }
    COMM_CUDA(cudaEventRecord(t->begun[t->n % COMM_QUEUE], stream));
}

static void timed_end(Timed *t, cudaStream_t stream) {
    COMM_CUDA(cudaEventRecord(t->done[t->n++ % COMM_QUEUE], stream));
}

// ---- the queue: the stream of sums ----

Ticket comm_queue(Comm *c, CommOp op) {
    CommBackend *b = c->backend;
    COMM_CUDA(cudaEventRecord(b->ready, c->compute));
    COMM_CUDA(cudaStreamWaitEvent(c->sums, b->ready, 0));
    timed_begin(&b->collectives, &comm_whole(c)->counters.busy, c->sums);
    comm_run(c, &op);
    timed_end(&b->collectives, c->sums);
    return b->collectives.n;
}

void comm_wait(Comm *c, Ticket ticket) {
    if (ticket == 0 || ticket <= c->backend->passed) return;
    CommBackend *b = c->backend;
    timed_begin(&b->waits, &comm_whole(c)->counters.waited, c->compute);
    COMM_CUDA(cudaStreamWaitEvent(c->compute, b->collectives.done[(ticket - 1) % COMM_QUEUE], 0));
    timed_end(&b->waits, c->compute);
    b->passed = ticket;
}

CommCounters comm_counters(Comm *c) {
    CommCounters none = { 0.0, 0.0, 0, 0 };
    if (!c || !c->backend) return none;
    CommCounters *counters = &comm_whole(c)->counters;
    timed_settle(&c->backend->collectives, &counters->busy);
    timed_settle(&c->backend->waits, &counters->waited);
    return *counters;
}

// Copies through GPU memory, since NCCL sends only from there.
void comm_collect_now(Comm *c, void *all, const void *own, size_t bytes) {
    CommBackend *b = c->backend;
    size_t n = (size_t)c->size*bytes;
    char *device_own = b->small + (size_t)c->size*COMM_SMALL;
    COMM_CUDA(cudaMemcpyAsync(device_own, own, bytes, cudaMemcpyHostToDevice, c->sums));
    comm_wait(c, comm_collect_there(c, b->small, device_own, bytes));
    COMM_CUDA(cudaMemcpyAsync(all, b->small, n, cudaMemcpyDeviceToHost, c->compute));
    COMM_CUDA(cudaStreamSynchronize(c->compute));
}

// ---- opening and closing ----

// Connects the heartbeat at MASTER_ADDR and MASTER_PORT + 1 (torchrun itself listens at
// MASTER_PORT), and gives all ranks rank 0's id for NCCL.
static bool comm_open_watch(Comm *c, double timeout, Error *err) {
    const char *host = getenv("MASTER_ADDR"), *port_text = getenv("MASTER_PORT");
    CommBackend *b = c->backend;
    if (!host || !*host)
        return fail(err, "MASTER_ADDR: not set, and this is rank %d of %d; it must name rank 0's "
                    "machine; scripts/launch.sh and torchrun set it", c->rank, c->size);
    int port = port_text ? atoi(port_text) + 1 : 29501;
    if (port < 2 || port > 65535)
        return fail(err, "MASTER_PORT: \"%.20s\" is not a port from 1 to 65534", port_text);
    heartbeat_init(&c->heartbeat, c->rank, c->size, timeout);
    // For ranks on other machines, rank 0 listens at all addresses: it may know its own name as
    // 127.0.1.1.
    const char *at = c->local_size < c->size ? NULL : host;
    if (c->rank == 0 && !heartbeat_listen(&c->heartbeat, at, &port, err)) return false;
    if (c->rank == 0) NCCL_CHECK(b, GetUniqueId(&b->id));
    return heartbeat_join(&c->heartbeat, host, port, &b->id, sizeof b->id, err);
}

static bool nccl_load(Nccl *n, Error *err) {
#ifdef EMULATOR
    (void)err;
#define X(name) n->name = nccl##name;
#else
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return fail(err, "NCCL: several ranks need it, but it cannot be loaded: %.200s; install it "
                    "and build again, or name its folder in LD_LIBRARY_PATH", dlerror());
#define X(name) \
    n->name = (decltype(n->name))dlsym(library, "nccl" #name); \
    if (!n->name) return fail(err, "NCCL: libnccl.so.2 is too old: it has no nccl" #name);
#endif
    NCCL_FUNCTIONS(X)
#undef X
    return true;
}

// Connects the processes. The caller then chooses its GPU by local_rank and calls comm_open_gpu.
bool comm_open(Comm *c, double timeout, Error *err) {
    if (!comm_launched(c, err)) return false;
    if (c->size == 1) return true;
    CommBackend *b = c->backend = (CommBackend *)alloc_or_die(sizeof *b, "rings of events");
    if (!nccl_load(&b->nccl, err)) return false;
    return comm_open_watch(c, timeout, err);
}

// What has failed: NCCL's kernels then wait for ever (Heartbeat.fault).
static const char *comm_fault(void *backend) {
    CommBackend *b = (CommBackend *)backend;
    ncclResult_t state = ncclSuccess;
    b->nccl.CommGetAsyncError(b->peers, &state);
    return state == ncclSuccess || state == ncclInProgress ? NULL : b->nccl.GetErrorString(state);
}

// Connects the GPUs. The two streams have the highest priority: a collective that waits for free
// multiprocessors on one GPU delays all ranks.
void comm_open_gpu(Comm *c, cudaStream_t compute) {
    CommBackend *b = c->backend;
    int least, greatest;
    c->compute = compute;
    if (c->size == 1) return;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
#if NCCL_VERSION_CODE >= 21700
    if (c->blocks > 0) config.maxCTAs = c->blocks;
#endif
    NCCL_CHECK(b, CommInitRankConfig(&b->peers, c->size, b->id, c->rank, &config));
    c->heartbeat.fault_of = b;
    __atomic_store_n(&c->heartbeat.fault, &comm_fault, __ATOMIC_SEQ_CST);
    c->piece = COMM_SCRATCH / sizeof(float) / COMM_BUFFERS / (size_t)c->size / 64 * 64;
    COMM_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    COMM_CUDA(cudaStreamCreateWithPriority(&c->sums, cudaStreamNonBlocking, greatest));
    COMM_CUDA(cudaStreamCreateWithPriority(&b->messages, cudaStreamNonBlocking, greatest));
    COMM_CUDA(cudaMalloc((void **)&c->scratch_in, COMM_SCRATCH));
    COMM_CUDA(cudaMalloc((void **)&c->scratch_out, COMM_SCRATCH / 2));
    COMM_CUDA(cudaMalloc((void **)&b->small, ((size_t)c->size + 1) * COMM_SMALL));
    cudaEvent_t *orders[] = { &b->ready, &b->prepared, &b->arrived[0], &b->arrived[1],
                              &b->arrived[2], &b->arrived[3] };
    for (cudaEvent_t *event : orders)
        COMM_CUDA(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
    cudaEvent_t *rings[] = { b->collectives.begun, b->collectives.done, b->waits.begun,
                             b->waits.done };
    for (cudaEvent_t *ring : rings)
        for (int i = 0; i < COMM_QUEUE; i++) COMM_CUDA(cudaEventCreate(&ring[i]));
    comm_find_neighbours(c);
}

void comm_close(Comm *c) {
    CommBackend *b = c->backend;
    if (c->size == 1) return;
    comm_barrier(c);
    heartbeat_stop(&c->heartbeat);
    cudaEvent_t *rings[] = { b->collectives.begun, b->collectives.done, b->waits.begun,
                             b->waits.done };
    for (cudaEvent_t *ring : rings)
        for (int i = 0; i < COMM_QUEUE; i++) COMM_CUDA(cudaEventDestroy(ring[i]));
    cudaEvent_t orders[] = { b->ready, b->prepared, b->arrived[0], b->arrived[1], b->arrived[2],
                             b->arrived[3] };
    for (cudaEvent_t event : orders) COMM_CUDA(cudaEventDestroy(event));
    COMM_CUDA(cudaFree(c->scratch_in));
    COMM_CUDA(cudaFree(c->scratch_out));
    COMM_CUDA(cudaFree(b->small));
    NCCL_CHECK(b, CommDestroy(b->peers));
    COMM_CUDA(cudaStreamDestroy(c->sums));
    COMM_CUDA(cudaStreamDestroy(b->messages));
    free(b);
    c->backend = NULL;
}
#endif

