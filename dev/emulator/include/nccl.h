// NCCL, as far as the trainer uses it, between processes on CPUs: every message goes through MPI.
//
// A call, or a group of them, is an operation of its stream. Ranks that take part in a call send
// each other a message that says which call it is, so that calls that do not belong together are
// reported and not mixed up. All add up in the order of the ranks and round each sum to the type of
// the data, as NCCL does: every rank gets the same bits, every time.
//
// With EMULATOR_MPI defined, and mpicxx, there may be many ranks, started by mpirun; without there
// is one. The first ncclCommInitRank of many ranks initializes MPI, and the program's end finalizes
// it, unless communicators are left: then the program has ended badly. To wait for a rank that does
// not come takes forever on a GPU; here EMULATOR_TIMEOUT seconds (120), and ends with a report.
#pragma once
#include <sched.h>
#include <signal.h>
#include <unistd.h>
#include <string>
#include "cuda_bf16.h"
#include "cuda_runtime.h"
#ifdef EMULATOR_MPI
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#endif

// ---- names and numbers as in NVIDIA's header ----

#define NCCL_MAJOR 2
#define NCCL_MINOR 28
#define NCCL_PATCH 9
#define NCCL_SUFFIX ""
#define NCCL_VERSION(X, Y, Z) ((X)*10000 + (Y)*100 + (Z))
#define NCCL_VERSION_CODE NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH)
#define NCCL_UNIQUE_ID_BYTES 128

typedef struct ncclComm *ncclComm_t;
typedef struct { char internal[NCCL_UNIQUE_ID_BYTES]; } ncclUniqueId;

typedef enum {
    ncclSuccess = 0, ncclUnhandledCudaError = 1, ncclSystemError = 2, ncclInternalError = 3,
    ncclInvalidArgument = 4, ncclInvalidUsage = 5, ncclRemoteError = 6, ncclInProgress = 7,
    ncclNumResults = 8
} ncclResult_t;

typedef enum { ncclSum = 0, ncclProd = 1, ncclMax = 2, ncclMin = 3, ncclAvg = 4 } ncclRedOp_t;

typedef enum {
    ncclInt8 = 0, ncclChar = 0, ncclUint8 = 1, ncclInt32 = 2, ncclInt = 2, ncclUint32 = 3,
    ncclInt64 = 4, ncclUint64 = 5, ncclFloat16 = 6, ncclHalf = 6, ncclFloat32 = 7, ncclFloat = 7,
    ncclFloat64 = 8, ncclDouble = 8, ncclBfloat16 = 9, ncclFloat8e4m3 = 10, ncclFloat8e5m2 = 11,
    ncclNumTypes = 12
} ncclDataType_t;

static inline const char *ncclGetErrorString(ncclResult_t e) {
    static const char *const texts[] = { "no error", "unhandled cuda error",
        "unhandled system error", "internal error", "invalid argument", "invalid usage",
        "remote process exited or there was a network error", "NCCL operation in progress" };
    return e >= 0 && e < ncclNumResults ? texts[e] : "unknown result code";
}

// ---- communicators ----

// One is never freed, for it may still be named when it is destroyed.
struct ncclComm {
    int rank, size, device;
    int tag;                           // of its messages
    uint64_t calls;                    // so far
    bool ended, destroyed;             // all have said goodbye; the handle is no longer valid
    ncclComm *next;
};

namespace emulator {

constexpr int HOST_BYTES = 64;

// What ranks tell each other when they form a communicator.
struct Hello { ncclUniqueId id; char host[HOST_BYTES]; int device; };

// A call, as the other ranks see it. peer is the root of a collective, or the other end.
enum Kind { INIT, SEND, RECV, BROADCAST, ALL_GATHER, REDUCE, REDUCE_SCATTER, ALL_REDUCE, GOODBYE };
struct Call { int kind, type, op, peer; uint64_t count, number; };

// A call with what only its own rank knows.
struct Request {
    Call call;
    const char *from;
    char *to;
    ncclComm_t comm;
    cudaStream_t stream;
};

typedef std::vector<char> Bytes;

// A message under way to another rank: its call, then its data.
struct Outgoing {
    Bytes bytes;
    int to;
#ifdef EMULATOR_MPI
    MPI_Request request;
#endif
};

struct Nccl {
    ncclComm_t communicators;
    int made;                          // communicators of several ranks, so far
    Moment last;                       // when the call before is done: they keep their order
    int depth;                         // of ncclGroupStart
    ncclResult_t group_error;
    std::vector<Request> group;
    char error[512];
};
static Nccl nccl;

__attribute__((format(printf, 2, 3)))
static inline ncclResult_t refuse(ncclResult_t e, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(nccl.error, sizeof nccl.error, fmt, args);
    va_end(args);
    if (nccl.depth > 0) nccl.group_error = e;
    return e;
}

// ---- types ----

static inline size_t bytes_of(int type) {
    switch (type) {
    case ncclInt8: case ncclUint8: return 1;
    case ncclBfloat16: return 2;
    case ncclInt32: case ncclUint32: case ncclFloat32: return 4;
    case ncclInt64: case ncclUint64: case ncclFloat64: return 8;
    default: return 0;                           // others are not there
    }
}

static inline const char *name_of_type(int type) {
    static const char *const names[] = { "int8", "uint8", "int32", "uint32", "int64", "uint64",
        "float16", "float32", "float64", "bfloat16", "float8e4m3", "float8e5m2" };
    return type >= 0 && type < ncclNumTypes ? names[type] : "an unknown type";
}

static inline bool reduces(int kind) {
    return kind == REDUCE || kind == REDUCE_SCATTER || kind == ALL_REDUCE;
}

// "ncclReduce(12 float32, sum, to rank 3), call 7"
static inline std::string describe(const Call &c) {
    static const char *const names[] = { "ncclCommInitRank", "ncclSend", "ncclRecv",
        "ncclBroadcast", "ncclAllGather", "ncclReduce", "ncclReduceScatter", "ncclAllReduce",
        "ncclCommDestroy" };
    static const char *const ops[] = { "sum", "prod", "max", "min", "avg" };
    if (c.kind == INIT || c.kind == GOODBYE) return names[c.kind];
    std::string s = names[c.kind];
    s += "(" + std::to_string(c.count) + " " + name_of_type(c.type);
    if (reduces(c.kind)) s += std::string(", ") + ops[c.op];
    if (c.kind == SEND || c.kind == REDUCE) s += ", to rank " + std::to_string(c.peer);
    if (c.kind == RECV || c.kind == BROADCAST) s += ", from rank " + std::to_string(c.peer);
    return s + "), call " + std::to_string(c.number);
}

// ---- messages ----

#ifdef EMULATOR_MPI

static inline unsigned timeout(void) { return (unsigned)setting("EMULATOR_TIMEOUT", 120); }

// Tries until it succeeds; between two tries other processes have the core.
template <class Try>
static inline void wait_for_rank(int other, const ncclComm *comm, const Call &call, Try done) {
    double begin = now();
    for (int tries = 0; !done(); tries++) {
        if (tries < 100) sched_yield();
        else usleep(50);
        if (now() - begin > timeout())
            fail("rank %d: %s, has waited %u s for rank %d; a GPU would wait forever", comm->rank,
                 describe(call).c_str(), timeout(), other);
    }
}

// MPI's own errors end the program, as is its default. The send is synchronous: it is not done
// before the other rank receives it, for NCCL does not promise more either.
static inline void send_begin(Outgoing *o, const ncclComm *comm) {
    if (o->bytes.size() > 0x7FFFFFFF) fail("rank %d: a message of more than 2 GB", comm->rank);
    MPI_Issend(o->bytes.data(), (int)o->bytes.size(), MPI_CHAR, o->to, comm->tag, MPI_COMM_WORLD,
               &o->request);
}

static inline void send_end(Outgoing *o, const ncclComm *comm, const Call &call) {
    wait_for_rank(o->to, comm, call, [=] {
        int done;
        MPI_Test(&o->request, &done, MPI_STATUS_IGNORE);
        return done != 0;
    });
}

static inline Bytes receive(int from, const ncclComm *comm, const Call &call) {
    MPI_Status status;
    int size;
    wait_for_rank(from, comm, call, [&] {
        int there;
        MPI_Iprobe(from, comm->tag, MPI_COMM_WORLD, &there, &status);
        return there != 0;
    });
    MPI_Get_count(&status, MPI_CHAR, &size);
    Bytes bytes((size_t)size);
    MPI_Recv(bytes.data(), size, MPI_CHAR, from, comm->tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return bytes;
}

#else   // alone there is nobody to send to

static inline void send_begin(Outgoing *, const ncclComm *) { }
static inline void send_end(Outgoing *, const ncclComm *, const Call &) { }
static inline Bytes receive(int, const ncclComm *, const Call &) { return {}; }

#endif

static inline Bytes message(const Call &call, const char *data, size_t bytes) {
    Bytes m(sizeof call + bytes);
    memcpy(m.data(), &call, sizeof call);
    if (bytes) memcpy(m.data() + sizeof call, data, bytes);
    return m;
}

static inline Call call_of(const Bytes &message) {
    Call c;
    memcpy(&c, message.data(), sizeof c);
    return c;
}

// Of two ranks that both see it one has the word, and the other waits to be ended. It is the lower
// one; or who received a send, for its sender takes it for delivered and goes on.
__attribute__((noreturn, noinline))
static void fail_mismatch(const ncclComm *comm, const Call &mine, int other, const Call &theirs) {
    bool first = theirs.kind == SEND || (comm->rank < other && mine.kind != GOODBYE);
    if (!first) sleep(3);
    fail("rank %d: %s, but rank %d has come with %s", comm->rank, describe(mine).c_str(), other,
         describe(theirs).c_str());
}

// ---- collectives ----

// What rank `from` sends to rank `to`: how many elements, and where they begin.
static inline size_t part(const Call &c, int from, int to, size_t *begin) {
    *begin = c.kind == REDUCE_SCATTER ? (size_t)to * c.count : 0;
    if (c.kind == REDUCE && to != c.peer) return 0;
    if (c.kind == BROADCAST && from != c.peer) return 0;
    return c.count;
}

static inline bool same_call(const Call &a, const Call &b) {
    return a.kind == b.kind && a.type == b.type && a.op == b.op && a.peer == b.peer &&
           a.count == b.count;
}

// Hands every rank its part, and returns theirs in the order of the ranks.
static inline std::vector<Bytes> exchange(const ncclComm *comm, const Call &call,
                                          const char *from) {
    std::vector<Bytes> parts((size_t)comm->size);
    std::vector<Outgoing> sends((size_t)comm->size);
    size_t width = call.kind == INIT ? sizeof(Hello) : bytes_of(call.type), begin;
    for (int r = 0; r < comm->size; r++) {
        size_t n = part(call, comm->rank, r, &begin);
        sends[(size_t)r].to = r;
        sends[(size_t)r].bytes = message(call, from + begin*width, n*width);
        if (r == comm->rank) parts[(size_t)r] = sends[(size_t)r].bytes;
        else send_begin(&sends[(size_t)r], comm);
    }
    for (int r = 0; r < comm->size; r++) {
        if (r == comm->rank) continue;
        parts[(size_t)r] = receive(r, comm, call);
        Call theirs = call_of(parts[(size_t)r]);
        if (!same_call(call, theirs)) fail_mismatch(comm, call, r, theirs);
    }
    for (int r = 0; r < comm->size; r++)
        if (r != comm->rank) send_end(&sends[(size_t)r], comm, call);
    return parts;
}

template <class T> static inline T join(int op, T a, T b) {
    switch (op) {
    case ncclProd: return (T)(a * b);
    case ncclMax: return a > b ? a : b;
    case ncclMin: return a < b ? a : b;
    default: return (T)(a + b);
    }
}

// A mean of numbers with a fraction multiplies each by 1/size, rounded, and adds; of integers it
// divides their sum. Both are what NCCL does.
template <class T>
static inline void reduce_parts(char *to, const std::vector<Bytes> &parts, const Call &c) {
    bool fraction = c.type == ncclFloat32 || c.type == ncclFloat64 || c.type == ncclBfloat16;
    T scale = (T)(fraction && c.op == ncclAvg ? 1.0f / (float)parts.size() : 1.0f);
    if (c.type == ncclFloat64 && c.op == ncclAvg) scale = (T)(1.0 / (double)parts.size());
    for (size_t i = 0; i < c.count; i++) {
        T sum = (T)0.0f;
        for (size_t r = 0; r < parts.size(); r++) {
            T x;
            memcpy(&x, parts[r].data() + sizeof c + i*sizeof x, sizeof x);
            x = (T)(x * scale);
            sum = r == 0 ? x : join<T>(c.op, sum, x);
        }
        if (c.op == ncclAvg && !fraction) sum = (T)(sum / (T)(float)parts.size());
        memcpy(to + i*sizeof sum, &sum, sizeof sum);
    }
}

static inline void reduce_any(char *to, const std::vector<Bytes> &parts, const Call &c) {
    switch (c.type) {
    case ncclInt8: reduce_parts<int8_t>(to, parts, c); break;
    case ncclUint8: reduce_parts<uint8_t>(to, parts, c); break;
    case ncclInt32: reduce_parts<int32_t>(to, parts, c); break;
    case ncclUint32: reduce_parts<uint32_t>(to, parts, c); break;
    case ncclInt64: reduce_parts<int64_t>(to, parts, c); break;
    case ncclUint64: reduce_parts<uint64_t>(to, parts, c); break;
    case ncclFloat32: reduce_parts<float>(to, parts, c); break;
    case ncclFloat64: reduce_parts<double>(to, parts, c); break;
    case ncclBfloat16: reduce_parts<__nv_bfloat16>(to, parts, c); break;
    }
}

static inline void collective_run(const Request &q) {
    std::vector<Bytes> parts = exchange(q.comm, q.call, q.from);
    size_t bytes = q.call.count * bytes_of(q.call.type);
    if (reduces(q.call.kind)) {
        if (q.call.kind != REDUCE || q.comm->rank == q.call.peer) reduce_any(q.to, parts, q.call);
        return;
    }
    for (int r = 0; r < q.comm->size && bytes; r++) {
        const char *data = parts[(size_t)r].data() + sizeof(Call);
        if (q.call.kind == ALL_GATHER) memcpy(q.to + (size_t)r*bytes, data, bytes);
        if (q.call.kind == BROADCAST && r == q.call.peer) memcpy(q.to, data, bytes);
    }
}

// ---- sends and receives ----

// What a rank sends to itself is taken by its next receive from itself, in the same group.
static inline Bytes take_own(std::vector<Outgoing> *own, const Request &q) {
    if (own->empty())
        fail("rank %d: %s, from itself, with no ncclSend in its group", q.comm->rank,
             describe(q.call).c_str());
    Bytes bytes = own->front().bytes;
    own->erase(own->begin());
    return bytes;
}

static inline void receive_run(const Request &q, std::vector<Outgoing> *own) {
    int other = q.call.peer;
    Bytes got = other == q.comm->rank ? take_own(own, q) : receive(other, q.comm, q.call);
    Call theirs = call_of(got);
    if (theirs.kind != SEND || theirs.type != q.call.type || theirs.count != q.call.count)
        fail_mismatch(q.comm, q.call, other, theirs);
    size_t bytes = got.size() - sizeof theirs;
    if (bytes) memcpy(q.to, got.data() + sizeof theirs, bytes);
}

// All sends of a group are under way before its first receive waits.
static inline void point_to_point_run(const std::vector<Request> &group, ncclComm_t comm) {
    std::vector<Outgoing> own, sends;
    std::vector<Call> calls;
    for (const Request &q : group) {
        if (q.comm != comm || q.call.kind != SEND) continue;
        Outgoing o = {};
        o.to = q.call.peer;
        o.bytes = message(q.call, q.from, q.call.count * bytes_of(q.call.type));
        (o.to == comm->rank ? own : sends).push_back(std::move(o));
        if (sends.size() > calls.size()) calls.push_back(q.call);
    }
    for (Outgoing &o : sends) send_begin(&o, comm);
    for (const Request &q : group)
        if (q.comm == comm && q.call.kind == RECV) receive_run(q, &own);
    for (size_t i = 0; i < sends.size(); i++) send_end(&sends[i], comm, calls[i]);
    if (!own.empty())
        fail("rank %d: %s, itself, with no ncclRecv in its group", comm->rank,
             describe(call_of(own[0].bytes)).c_str());
}

// ---- groups ----

static inline bool is_point_to_point(const Request &q) {
    return q.call.kind == SEND || q.call.kind == RECV;
}

// A group's sends and receives come before its collectives, on every rank.
static inline void group_run(std::vector<Request> group) {
    for (size_t i = group.size(); i-- > 0; )               // nobody waits for what was aborted
        if (group[i].comm->destroyed) group.erase(group.begin() + (long)i);
    for (size_t i = 0; i < group.size(); i++) {
        bool first = true;
        for (size_t k = 0; k < i; k++) first = first && group[k].comm != group[i].comm;
        if (first) point_to_point_run(group, group[i].comm);
    }
    for (const Request &q : group) if (!is_point_to_point(q)) collective_run(q);
}

// One operation for the group. It waits for all streams that it names, and they for it; and for the
// group before it, whatever its stream: ranks must come to their calls in the same order.
static inline void group_enqueue(std::vector<Request> group) {
    std::vector<Moment> after = { nccl.last };
    std::vector<cudaStream_t> streams;
    for (const Request &q : group) {
        streams.push_back(q.stream);
        after.push_back(end_of(q.stream));
    }
    nccl.last = enqueue(streams[0], [group] { group_run(group); }, after);
    for (cudaStream_t s : streams)
        if (s != streams[0]) enqueue(s, [] { }, { nccl.last });
}

// ---- what is asked of a call before it is queued ----

static inline bool is_communicator(const ncclComm *comm) {
    const ncclComm *c = nccl.communicators;
    while (c && c != comm) c = c->next;
    return c;
}

static inline ncclResult_t check_communicator(const ncclComm *comm, const char *name) {
    if (!is_communicator(comm))
        return refuse(ncclInvalidArgument, "%s: there is no such communicator", name);
    if (comm->destroyed)
        return refuse(ncclInvalidArgument, "%s: the communicator was destroyed", name);
    if (comm->ended)
        return refuse(ncclInvalidUsage, "%s: the communicator was finalized", name);
    return ncclSuccess;
}

// NCCL reaches what a GPU reaches: memory of the device, and pinned memory of the host.
static inline ncclResult_t check_buffer(const char *call, const char *name, const void *p,
                                        size_t bytes, size_t width) {
    if (bytes == 0) return ncclSuccess;
    if (!p) return refuse(ncclInvalidArgument, "%s: %s is null", call, name);
    if ((size_t)p % width)
        return refuse(ncclInvalidArgument, "%s: %s, %p, is not aligned to its type", call, name, p);
    if (find(device.allocations, p, bytes) || find(device.pinned, p, bytes)) return ncclSuccess;
    if (is_pageable(p))
        return refuse(ncclInvalidArgument, "%s: %s, %p, is not memory of the device", call, name,
                      p);
    return refuse(ncclInvalidArgument, "%s: %s, %zu bytes at %p, goes beyond what is allocated",
                  call, name, bytes, p);
}

// Where a rank's own part lies in the longer buffer when a collective works in place.
static inline ncclResult_t check_overlap(const Request &q, const char *call, size_t from_bytes,
                                         size_t to_bytes) {
    size_t bytes = q.call.count * bytes_of(q.call.type), own = (size_t)q.comm->rank * bytes;
    const char *from = q.from + (q.call.kind == REDUCE_SCATTER ? own : 0);
    const char *to = q.to + (q.call.kind == ALL_GATHER ? own : 0);
    if (from == to || q.from >= q.to + to_bytes || q.to >= q.from + from_bytes) return ncclSuccess;
    return refuse(ncclInvalidArgument, "%s: sendbuff and recvbuff overlap, and are not in place",
                  call);
}

static inline ncclResult_t check_buffers(const Request &q, const char *call) {
    size_t width = bytes_of(q.call.type), bytes = q.call.count * width;
    size_t all = bytes * (size_t)q.comm->size;
    bool root = q.comm->rank == q.call.peer;
    int kind = q.call.kind;
    size_t from = kind == REDUCE_SCATTER ? all : kind == RECV ? 0 : bytes;
    size_t to = kind == ALL_GATHER ? all : kind == SEND ? 0 : bytes;
    if (kind == BROADCAST && !root) from = 0;
    if (kind == REDUCE && !root) to = 0;
    ncclResult_t e = check_buffer(call, "sendbuff", q.from, from, width);
    if (e == ncclSuccess) e = check_buffer(call, "recvbuff", q.to, to, width);
    if (e == ncclSuccess && from && to) e = check_overlap(q, call, from, to);
    return e;
}

// Every call comes here: checked, and queued unless a group is open.
static inline ncclResult_t request(const char *name, Call call, const void *from, void *to,
                                   ncclComm_t comm, cudaStream_t stream) {
    ncclResult_t e = check_communicator(comm, name);
    if (e != ncclSuccess) return e;
    Request q = { call, (const char *)from, (char *)to, comm, stream_of(stream) };
    if (!q.stream) return refuse(ncclInvalidArgument, "%s: there is no such stream", name);
    if (bytes_of(call.type) == 0)
        return refuse(ncclInvalidArgument, "%s: the emulator has no %s", name,
                      name_of_type(call.type));
    if (call.op < ncclSum || call.op > ncclAvg)
        return refuse(ncclInvalidArgument, "%s: there is no operation %d", name, call.op);
    if (call.peer < 0 || call.peer >= comm->size)
        return refuse(ncclInvalidArgument, "%s: rank %d of %d", name, call.peer, comm->size);
    e = check_buffers(q, name);
    if (e != ncclSuccess) return e;
    q.call.number = ++comm->calls;
    if (nccl.depth > 0) nccl.group.push_back(q);
    else group_enqueue({ q });
    return ncclSuccess;
}

// ---- forming and ending communicators ----

#ifdef EMULATOR_MPI

// MPI_Finalize waits for all ranks. One that leaves communicators behind has ended badly, and the
// others are not there either: mpirun ends them.
static void finalize_mpi(void) {
    for (const ncclComm *c = nccl.communicators; c; c = c->next)
        if (c->size > 1 && !c->ended) return;
    MPI_Finalize();
}

static void on_alarm(int) {
    static const char text[] = "emulator: ncclCommInitRank has waited for ranks that do not come\n";
    if (write(STDERR_FILENO, text, sizeof text - 1)) { }     // nothing can be done if that fails
    _exit(1);
}

// MPI_Init waits for all ranks, and nothing but a signal ends that.
static inline void initialize_mpi(void) {
    int level;
    void (*before)(int) = signal(SIGALRM, on_alarm);
    alarm(timeout());
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
    alarm(0);
    signal(SIGALRM, before);
    atexit(finalize_mpi);
}

static inline ncclResult_t start_mpi(int rank, int size) {
    int started, mpi_rank, mpi_size;
    MPI_Initialized(&started);
    if (!started) initialize_mpi();
    MPI_Comm_rank(MPI_COMM_WORLD, &mpi_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &mpi_size);
    if (rank == mpi_rank && size == mpi_size) return ncclSuccess;
    return refuse(ncclInvalidUsage, "ncclCommInitRank: rank %d of %d, but MPI says rank %d of %d "
                  "(mpirun -n %d starts as many)", rank, size, mpi_rank, mpi_size, size);
}

#else

static inline ncclResult_t start_mpi(int, int size) {
    return refuse(ncclSystemError, "ncclCommInitRank: %d ranks, but this program was emulated "
                  "without MPI (mpicxx -DEMULATOR_MPI)", size);
}

#endif

// Ranks of one host must have a GPU each, unless NCCL is told otherwise.
static inline ncclResult_t check_hellos(const std::vector<Bytes> &parts) {
    const char *shared = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    std::vector<Hello> hellos(parts.size());
    for (size_t r = 0; r < parts.size(); r++) {
        memcpy(&hellos[r], parts[r].data() + sizeof(Call), sizeof(Hello));
        if (memcmp(&hellos[r].id, &hellos[0].id, sizeof(ncclUniqueId)) != 0)
            return refuse(ncclInvalidUsage, "ncclCommInitRank: ranks 0 and %zu have different "
                          "unique ids", r);
        for (size_t k = 0; k < r && !(shared && atoi(shared)); k++)
            if (hellos[k].device == hellos[r].device && strcmp(hellos[k].host, hellos[r].host) == 0)
                return refuse(ncclInvalidUsage, "Duplicate GPU detected: ranks %zu and %zu both on "
                              "device %d of %s", k, r, hellos[k].device, hellos[k].host);
    }
    return ncclSuccess;
}

static inline ncclResult_t meet(ncclComm_t comm, const ncclUniqueId &id) {
    Hello hello = { id, "", comm->device };
    const char *host = getenv("NCCL_HOSTID");
    if (host) snprintf(hello.host, sizeof hello.host, "%s", host);
    else gethostname(hello.host, sizeof hello.host - 1);
    comm->tag = 100 + nccl.made++;
    return check_hellos(exchange(comm, { INIT, ncclInt8, 0, 0, 1, 0 }, (const char *)&hello));
}

// Waits for what is queued, then for all other ranks to come here as well.
static inline void say_goodbye(ncclComm_t comm) {
    if (comm->ended) return;
    wait_for(nccl.last);
    exchange(comm, { GOODBYE, ncclInt8, 0, 0, 0, ++comm->calls }, nullptr);
    comm->ended = true;
}

}  // namespace emulator

static inline ncclResult_t ncclGetVersion(int *version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

static inline const char *ncclGetLastError(ncclComm_t) { return emulator::nccl.error; }

// Of rank 0, for all; with NCCL_COMM_ID in the environment every rank makes the same.
static inline ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    memset(id, 0, sizeof *id);
    const char *address = getenv("NCCL_COMM_ID");
    snprintf(id->internal, sizeof id->internal, "%s %d %.9f", address ? address : "emulator",
             address ? 0 : (int)getpid(), address ? 0.0 : emulator::now());
    return ncclSuccess;
}

static inline ncclResult_t ncclCommInitRank(ncclComm_t *comm, int size, ncclUniqueId id,
                                            int rank) {
    *comm = nullptr;
    if (size < 1 || rank < 0 || rank >= size)
        return emulator::refuse(ncclInvalidArgument, "ncclCommInitRank: rank %d of %d", rank, size);
    ncclResult_t e = size > 1 ? emulator::start_mpi(rank, size) : ncclSuccess;
    if (e != ncclSuccess) return e;
    ncclComm c = { rank, size, emulator::device.current, 0, 0, false, false,
                   emulator::nccl.communicators };
    if (size > 1) e = emulator::meet(&c, id);
    if (e != ncclSuccess) return e;
    *comm = emulator::nccl.communicators = new ncclComm(c);
    return ncclSuccess;
}

static inline ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    ncclResult_t e = emulator::check_communicator(comm, "ncclCommFinalize");
    if (e == ncclSuccess) emulator::say_goodbye(comm);
    return e;
}

static inline ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    if (!comm) return ncclSuccess;
    if (!emulator::is_communicator(comm) || comm->destroyed)
        return emulator::check_communicator(comm, "ncclCommDestroy");
    emulator::say_goodbye(comm);
    comm->destroyed = true;
    return ncclSuccess;
}

// Waits for nobody.
static inline ncclResult_t ncclCommAbort(ncclComm_t comm) {
    if (!comm) return ncclSuccess;
    if (!emulator::is_communicator(comm) || comm->destroyed)
        return emulator::check_communicator(comm, "ncclCommAbort");
    comm->destroyed = true;
    return ncclSuccess;
}

static inline ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
    *error = ncclSuccess;
    return emulator::check_communicator(comm, "ncclCommGetAsyncError");
}
static inline ncclResult_t ncclCommCount(const ncclComm_t comm, int *count) {
    ncclResult_t e = emulator::check_communicator(comm, "ncclCommCount");
    if (e == ncclSuccess) *count = comm->size;
    return e;
}
static inline ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank) {
    ncclResult_t e = emulator::check_communicator(comm, "ncclCommUserRank");
    if (e == ncclSuccess) *rank = comm->rank;
    return e;
}
static inline ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device) {
    ncclResult_t e = emulator::check_communicator(comm, "ncclCommCuDevice");
    if (e == ncclSuccess) *device = comm->device;
    return e;
}

static inline ncclResult_t ncclGroupStart(void) {
    emulator::nccl.depth++;
    return ncclSuccess;
}

// The outermost one queues what was called since the first ncclGroupStart; nothing if one of these
// calls was refused.
static inline ncclResult_t ncclGroupEnd(void) {
    emulator::Nccl *n = &emulator::nccl;
    if (n->depth == 0) return emulator::refuse(ncclInvalidUsage, "ncclGroupEnd: no group is open");
    if (--n->depth > 0) return ncclSuccess;
    ncclResult_t e = n->group_error;
    std::vector<emulator::Request> group;
    group.swap(n->group);
    n->group_error = ncclSuccess;
    if (e == ncclSuccess && !group.empty()) emulator::group_enqueue(std::move(group));
    return e;
}

// ---- the calls ----

static inline ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer,
                                    ncclComm_t comm, cudaStream_t stream) {
    return emulator::request("ncclSend", { emulator::SEND, type, 0, peer, count, 0 }, from, nullptr,
                             comm, stream);
}
static inline ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer,
                                    ncclComm_t comm, cudaStream_t stream) {
    return emulator::request("ncclRecv", { emulator::RECV, type, 0, peer, count, 0 }, nullptr, to,
                             comm, stream);
}
static inline ncclResult_t ncclBroadcast(const void *from, void *to, size_t count,
                                         ncclDataType_t type, int root, ncclComm_t comm,
                                         cudaStream_t stream) {
    return emulator::request("ncclBroadcast", { emulator::BROADCAST, type, 0, root, count, 0 },
                             from, to, comm, stream);
}
static inline ncclResult_t ncclAllGather(const void *from, void *to, size_t count,
                                         ncclDataType_t type, ncclComm_t comm,
                                         cudaStream_t stream) {
    return emulator::request("ncclAllGather", { emulator::ALL_GATHER, type, 0, 0, count, 0 }, from,
                             to, comm, stream);
}
static inline ncclResult_t ncclReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                                      ncclRedOp_t op, int root, ncclComm_t comm,
                                      cudaStream_t stream) {
    return emulator::request("ncclReduce", { emulator::REDUCE, type, op, root, count, 0 }, from, to,
                             comm, stream);
}
static inline ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count,
                                             ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                             cudaStream_t stream) {
    return emulator::request("ncclReduceScatter",
                             { emulator::REDUCE_SCATTER, type, op, 0, count, 0 }, from, to, comm,
                             stream);
}
static inline ncclResult_t ncclAllReduce(const void *from, void *to, size_t count,
                                         ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                         cudaStream_t stream) {
    return emulator::request("ncclAllReduce", { emulator::ALL_REDUCE, type, op, 0, count, 0 }, from,
                             to, comm, stream);
}
