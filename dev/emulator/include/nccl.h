// NCCL, as far as the trainer uses it, between processes on CPUs: every message travels over MPI.
//
// A group of sends and receives is an operation of its stream; collectives are the trainer's own,
// made of these. A message names the call that sent it: calls that do not match are reported, not
// mixed up.
//
// With mpicxx and EMULATOR_MPI there may be many ranks, started by mpirun; without them there is
// one. The first communicator of several ranks initializes MPI. The end of the program finalizes
// MPI, unless a communicator still exists: then the program has failed. Where a GPU waits forever
// for a rank that does not come, the emulator reports it after EMULATOR_TIMEOUT seconds (120).
#pragma once
#include <sched.h>
#include <unistd.h>
#include <string>
#include "cuda_runtime.h"
#ifdef EMULATOR_MPI
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#endif

// ---- names and numbers as in NVIDIA's header ----

typedef struct ncclComm *ncclComm_t;
typedef struct { char internal[128]; } ncclUniqueId;

// How many thread blocks a call may take changes nothing here.
typedef struct { int maxCTAs; } ncclConfig_t;
#define NCCL_CONFIG_INITIALIZER { 0 }

typedef enum {
    ncclSuccess = 0, ncclSystemError = 2, ncclInvalidArgument = 4, ncclInvalidUsage = 5
} ncclResult_t;
typedef enum { ncclUint8 = 1 } ncclDataType_t;

inline const char *ncclGetErrorString(ncclResult_t e) {
    switch (e) {
    case ncclSuccess: return "no error";
    case ncclSystemError: return "unhandled system error";
    case ncclInvalidArgument: return "invalid argument";
    default: return "invalid usage";
    }
}

// ---- communicators and calls ----

struct ncclComm {
    int rank, size, device;
    int tag;                           // MPI tag of its messages; 0: there is no MPI
    uint64_t calls;                    // made so far
};

namespace emulator {

constexpr int HOST_BYTES = 64;

// The message that each rank sends when a communicator is formed.
struct Hello { ncclUniqueId id; char host[HOST_BYTES]; int device; };

// A call, as the other ranks see it. peer: the other rank of a message.
enum Kind { INIT, SEND, RECV, GOODBYE };
struct Call { int kind, peer; uint64_t bytes, number; };

// A call with the buffers, communicator and stream of its own rank.
struct Request {
    Call call;
    const char *from;
    char *to;
    ncclComm_t comm;
    cudaStream_t stream;
};

typedef std::vector<char> Bytes;

// A message being sent to another rank: its call, then its data.
struct Outgoing {
    Bytes bytes;
    int to;
#ifdef EMULATOR_MPI
    MPI_Request request;
#endif
};

struct Nccl {
    int made;                          // communicators of several ranks, so far
    int left;                          // of these, how many were destroyed
    bool open;                         // between ncclGroupStart and ncclGroupEnd
    ncclResult_t group_error;
    std::vector<Request> group;
    char error[512];
};
inline Nccl nccl;

__attribute__((format(printf, 2, 3)))
inline ncclResult_t refuse(ncclResult_t e, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(nccl.error, sizeof nccl.error, fmt, args);
    va_end(args);
    if (nccl.open) nccl.group_error = e;
    return e;
}

// ---- descriptions ----

static const char *const call_names[] = { "ncclCommInitRank", "ncclSend", "ncclRecv",
    "ncclCommDestroy" };

// "ncclSend(12 bytes, to rank 3), call 7"
inline std::string describe(const Call &c) {
    std::string s = call_names[c.kind];
    if (c.kind == INIT || c.kind == GOODBYE) return s;
    s += "(" + std::to_string(c.bytes) + (c.kind == SEND ? " bytes, to" : " bytes, from");
    return s + " rank " + std::to_string(c.peer) + "), call " + std::to_string(c.number);
}

// ---- messages ----

// A message is a Call and its data, so that the receiver can compare the sender's call with its
// own. A send is over when it is received. A wait longer than EMULATOR_TIMEOUT seconds ends the
// program with a report.

inline Bytes message(const Call &call, const char *data, size_t bytes) {
    Bytes m(sizeof call + bytes);
    memcpy(m.data(), &call, sizeof call);
    if (bytes) memcpy(m.data() + sizeof call, data, bytes);
    return m;
}

inline Call call_of(const Bytes &message) {
    Call c;
    memcpy(&c, message.data(), sizeof c);
    return c;
}

#ifdef EMULATOR_MPI

inline unsigned timeout(void) { return (unsigned)setting("EMULATOR_TIMEOUT", 120); }

// Repeats `done` until it returns true; between two tries other processes can use the core.
template <class Try>
inline void wait_for_rank(int other, const ncclComm *comm, const Call &call, Try done) {
    double begin = now();
    for (int tries = 0; !done(); tries++) {
        if (tries < 100) sched_yield();
        else usleep(50);
        if (now() - begin > timeout())
            fail("rank %d: %s, has waited %u s for rank %d; a GPU would wait forever", comm->rank,
                 describe(call).c_str(), timeout(), other);
    }
}

// A synchronous send: it is complete only once the other rank receives it, since NCCL does not
// promise to buffer messages. MPI's own errors end the program, MPI's default.
inline void send_begin(Outgoing *o, const ncclComm *comm) {
    if (o->bytes.size() > 0x7FFFFFFF) fail("rank %d: a message of more than 2 GB", comm->rank);
    MPI_Issend(o->bytes.data(), (int)o->bytes.size(), MPI_CHAR, o->to, comm->tag, MPI_COMM_WORLD,
               &o->request);
}

inline void send_end(Outgoing *o, const ncclComm *comm) {
    wait_for_rank(o->to, comm, call_of(o->bytes), [=] {
        int done;
        MPI_Test(&o->request, &done, MPI_STATUS_IGNORE);
        return done != 0;
    });
}

inline Bytes receive(int from, const ncclComm *comm, const Call &call) {
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

#else   // one rank alone sends nothing

inline void send_begin(Outgoing *, const ncclComm *) { }
inline void send_end(Outgoing *, const ncclComm *) { }
__attribute__((noinline))
inline Bytes receive(int, const ncclComm *, const Call &) { return {}; }

#endif

// Both ranks see the mismatch. One reports it; the other sleeps until mpirun ends it. The lower
// rank reports, or the receiver of a send, whose sender takes it for delivered and goes on.
__attribute__((noreturn, noinline))
inline void fail_mismatch(const ncclComm *comm, const Call &mine, int other, const Call &theirs) {
    bool first = theirs.kind == SEND || (comm->rank < other && mine.kind != GOODBYE);
    if (!first) sleep(3);
    fail("rank %d: %s, but rank %d called %s", comm->rank, describe(mine).c_str(), other,
         describe(theirs).c_str());
}

// ---- what all ranks do together: forming a communicator, and leaving it ----

// Sends every rank the same, and returns what the ranks sent, in rank order.
inline std::vector<Bytes> exchange(const ncclComm *comm, const Call &call,
                                          const char *from) {
    std::vector<Bytes> parts((size_t)comm->size);
    std::vector<Outgoing> sends((size_t)comm->size);
    for (int r = 0; r < comm->size; r++) {
        sends[(size_t)r].to = r;
        sends[(size_t)r].bytes = message(call, from, call.bytes);
        if (r == comm->rank) parts[(size_t)r] = sends[(size_t)r].bytes;
        else send_begin(&sends[(size_t)r], comm);
    }
    for (int r = 0; r < comm->size; r++) {
        if (r == comm->rank) continue;
        parts[(size_t)r] = receive(r, comm, call);
        Call theirs = call_of(parts[(size_t)r]);
        if (theirs.kind != call.kind) fail_mismatch(comm, call, r, theirs);
    }
    for (int r = 0; r < comm->size; r++)
        if (r != comm->rank) send_end(&sends[(size_t)r], comm);
    return parts;
}

// ---- sends, receives, and groups ----

// A group of calls between ncclGroupStart and ncclGroupEnd is one operation of its stream, by one
// communicator; a call outside of a group is a group of one.

inline void receive_run(const Request &q) {
    Bytes got = receive(q.call.peer, q.comm, q.call);
    Call theirs = call_of(got);
    if (theirs.kind != SEND || theirs.bytes != q.call.bytes)
        fail_mismatch(q.comm, q.call, q.call.peer, theirs);
    if (theirs.bytes) memcpy(q.to, got.data() + sizeof theirs, theirs.bytes);
}

// Starts all sends of a group before its first receive waits, so that two ranks can exchange data.
inline void group_run(const std::vector<Request> &group) {
    const ncclComm *comm = group[0].comm;
    std::vector<Outgoing> sends;
    for (const Request &q : group) {
        if (q.call.kind != SEND) continue;
        sends.emplace_back();
        sends.back().to = q.call.peer;
        sends.back().bytes = message(q.call, q.from, q.call.bytes);
    }
    for (Outgoing &o : sends) send_begin(&o, comm);
    for (const Request &q : group) if (q.call.kind == RECV) receive_run(q);
    for (Outgoing &o : sends) send_end(&o, comm);
}

inline void group_enqueue(const std::vector<Request> &group) {
    enqueue(group[0].stream, [group] { group_run(group); });
}

// ---- checks of a call's arguments ----

// A call that NCCL would refuse, or for which the behaviour is undefined on a GPU (a host pointer,
// a buffer that is too short), returns an error here.

// NCCL can access what a GPU can: device memory and pinned host memory.
inline ncclResult_t check_buffer(const char *call, const void *p, size_t bytes) {
    if (bytes == 0) return ncclSuccess;
    if (find(device.allocations, p, bytes) || find(device.pinned, p, bytes)) return ncclSuccess;
    if (is_pageable(p))
        return refuse(ncclInvalidArgument, "%s: %p is not memory of the device", call, p);
    return refuse(ncclInvalidArgument, "%s: the buffer, %zu bytes at %p, goes beyond what is "
                  "allocated", call, bytes, p);
}

// Every call comes here. It is checked, then queued, or appended to the open group.
inline ncclResult_t request(Call call, const void *from, void *to, ncclComm_t comm,
                                   cudaStream_t stream) {
    const char *name = call_names[call.kind];
    if (!comm) return refuse(ncclInvalidArgument, "%s: there is no communicator", name);
    Request q = { call, (const char *)from, (char *)to, comm, stream_of(stream) };
    if (!q.stream) return refuse(ncclInvalidArgument, "%s: there is no such stream", name);
    if (q.stream->capture)
        return refuse(ncclInvalidUsage, "%s: the emulator captures no collectives", name);
    if (call.peer < 0 || call.peer >= comm->size)
        return refuse(ncclInvalidArgument, "%s: rank %d of %d", name, call.peer, comm->size);
    ncclResult_t e = check_buffer(name, call.kind == SEND ? from : to, call.bytes);
    if (e != ncclSuccess) return e;
    if (call.peer == comm->rank)
        return refuse(ncclInvalidArgument, "%s: the emulator has no messages of a rank to itself",
                      name);
    if (!nccl.group.empty() && (nccl.group[0].comm != comm || nccl.group[0].stream != q.stream))
        return refuse(ncclInvalidUsage, "%s: the emulator's groups have one communicator and one "
                      "stream", name);
    q.call.number = ++comm->calls;
    if (nccl.open) nccl.group.push_back(q);
    else group_enqueue({ q });
    return ncclSuccess;
}

// ---- forming and leaving a communicator ----

// Forming: MPI starts, then all ranks exchange a Hello and check that they have the same unique id
// and a GPU each. Leaving: each rank waits for what it has queued, then for all other ranks to leave
// the communicator too.

#ifdef EMULATOR_MPI

// MPI_Finalize waits for all ranks. A rank that still has a communicator has failed, and the others
// will not call MPI_Finalize: mpirun ends them.
inline void finalize_mpi(void) {
    if (nccl.left == nccl.made) MPI_Finalize();
}

inline ncclResult_t start_mpi(int rank, int size) {
    int started, level, mpi_rank, mpi_size;
    MPI_Initialized(&started);
    if (!started) MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
    if (!started) atexit(finalize_mpi);
    MPI_Comm_rank(MPI_COMM_WORLD, &mpi_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &mpi_size);
    if (rank == mpi_rank && size == mpi_size) return ncclSuccess;
    return refuse(ncclInvalidUsage, "ncclCommInitRank: rank %d of %d, but MPI says rank %d of %d "
                  "(mpirun -n %d starts as many)", rank, size, mpi_rank, mpi_size, size);
}

#else

inline ncclResult_t start_mpi(int, int size) {
    return refuse(ncclSystemError, "ncclCommInitRank: %d ranks, but this program was built "
                  "without MPI (mpicxx -DEMULATOR_MPI)", size);
}

#endif

// Ranks of one host must have a GPU each, unless NCCL_MULTI_RANK_GPU_ENABLE is set.
inline ncclResult_t check_hellos(const std::vector<Bytes> &parts) {
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

inline ncclResult_t exchange_hellos(ncclComm_t comm, const ncclUniqueId &id) {
    Hello hello = { id, "", comm->device };
    const char *host = getenv("NCCL_HOSTID");
    if (host) snprintf(hello.host, sizeof hello.host, "%s", host);
    else gethostname(hello.host, sizeof hello.host - 1);
    comm->tag = 100 + nccl.made;
    return check_hellos(exchange(comm, { INIT, 0, sizeof hello, 0 },
                                 (const char *)&hello));
}

}  // namespace emulator

// ---- functions of NCCL ----

inline const char *ncclGetLastError(ncclComm_t) { return emulator::nccl.error; }

// Rank 0 calls this for all ranks. With NCCL_COMM_ID set, every rank gets the same id by itself.
inline ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    memset(id, 0, sizeof *id);
    const char *address = getenv("NCCL_COMM_ID");
    snprintf(id->internal, sizeof id->internal, "%s %d %.9f", address ? address : "emulator",
             address ? 0 : (int)getpid(), address ? 0.0 : emulator::now());
    return ncclSuccess;
}

inline ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id,
                                                  int rank, ncclConfig_t *) {
    *comm = nullptr;
    ncclResult_t e = size > 1 ? emulator::start_mpi(rank, size) : ncclSuccess;
    if (e != ncclSuccess) return e;
    ncclComm c = { rank, size, emulator::device_number(), 0, 0 };
    if (size > 1) e = emulator::exchange_hellos(&c, id);
    if (e != ncclSuccess) return e;
    emulator::nccl.made += size > 1;
    *comm = new ncclComm(c);
    return ncclSuccess;
}

// Waits for what is queued, then for all other ranks to leave.
inline ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    emulator::wait_for_all();
    emulator::exchange(comm, { emulator::GOODBYE, 0, 0, ++comm->calls }, nullptr);
    emulator::nccl.left += comm->tag != 0;
    delete comm;
    return ncclSuccess;
}

inline ncclResult_t ncclGroupStart(void) {
    if (emulator::nccl.open)
        return emulator::refuse(ncclInvalidUsage, "ncclGroupStart: a group is open already");
    emulator::nccl.open = true;
    return ncclSuccess;
}

// Queues the calls made since ncclGroupStart, or none of them if one was refused.
inline ncclResult_t ncclGroupEnd(void) {
    emulator::Nccl *n = &emulator::nccl;
    if (!n->open) return emulator::refuse(ncclInvalidUsage, "ncclGroupEnd: no group is open");
    n->open = false;
    ncclResult_t e = n->group_error;
    std::vector<emulator::Request> group;
    group.swap(n->group);
    n->group_error = ncclSuccess;
    if (e == ncclSuccess && !group.empty()) emulator::group_enqueue(group);
    return e;
}

// ---- the calls ----

// Of bytes alone.
inline ncclResult_t ncclSend(const void *from, size_t bytes, ncclDataType_t, int peer,
                                    ncclComm_t comm, cudaStream_t stream) {
    return emulator::request({ emulator::SEND, peer, bytes, 0 }, from, nullptr, comm, stream);
}
inline ncclResult_t ncclRecv(void *to, size_t bytes, ncclDataType_t, int peer,
                                    ncclComm_t comm, cudaStream_t stream) {
    return emulator::request({ emulator::RECV, peer, bytes, 0 }, nullptr, to, comm, stream);
}
