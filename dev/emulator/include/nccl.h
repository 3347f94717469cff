// NCCL, as far as the trainer uses it: sends and receives of bytes between processes on CPUs, over
// MPI. A group of them is one operation of its stream. The trainer makes its collectives of these.
//
// A program has one communicator. With mpicxx and EMULATOR_MPI it may have many ranks, started by
// mpirun, and initializes MPI. The end of the program finalizes MPI, unless the communicator still
// exists: then the program has failed. Where a GPU waits forever for a rank that does not come, the
// emulator reports it after EMULATOR_TIMEOUT seconds (120).
#pragma once
#include <limits.h>
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

typedef struct { char internal[128]; } ncclUniqueId;

// How many thread blocks a call may take changes nothing here.
#define NCCL_VERSION_CODE 21700
typedef struct { int maxCTAs; } ncclConfig_t;
#define NCCL_CONFIG_INITIALIZER { 0 }

typedef enum {
    ncclSuccess = 0, ncclSystemError = 2, ncclInvalidArgument = 4, ncclInvalidUsage = 5,
    ncclInProgress = 7
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

typedef struct ncclComm {
    int rank, size;
    uint64_t calls;                    // made so far
} *ncclComm_t;

namespace emulator {

// A call of ncclSend or ncclRecv.
struct Message {
    bool sends;
    void *data;
    size_t bytes;
    int peer;                          // the other rank
    ncclComm_t comm;
    cudaStream_t stream;
    uint64_t number;                   // of the rank's calls
};

struct Nccl {
    ncclComm_t comm;                   // null: not made yet, or destroyed
    bool open;                         // between ncclGroupStart and ncclGroupEnd
    ncclResult_t group_error;
    std::vector<Message> group;
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

#ifdef EMULATOR_MPI

// ---- messages ----

// "rank 0: ncclSend(12 bytes, to rank 3), call 7"
inline std::string describe(const Message &m) {
    return "rank " + std::to_string(m.comm->rank) + (m.sends ? ": ncclSend(" : ": ncclRecv(") +
           std::to_string(m.bytes) + (m.sends ? " bytes, to" : " bytes, from") + " rank " +
           std::to_string(m.peer) + "), call " + std::to_string(m.number);
}

// Repeats `done` until it returns true; between two tries other processes can use the core.
template <class Try> inline void wait_for_peer(const Message &m, Try done) {
    double begin = now(), seconds = (double)setting("EMULATOR_TIMEOUT", 120);
    for (int tries = 0; !done(); tries++) {
        if (tries < 100) sched_yield();
        else usleep(50);
        if (now() - begin > seconds)
            fail("%s, has waited %.0f s for rank %d; a GPU would wait forever", describe(m).c_str(),
                 seconds, m.peer);
    }
}

inline void receive(const Message &m) {
    MPI_Status status;
    int there, bytes;
    wait_for_peer(m, [&] {
        MPI_Iprobe(m.peer, 0, MPI_COMM_WORLD, &there, &status);
        return there != 0;
    });
    MPI_Get_count(&status, MPI_CHAR, &bytes);
    if ((size_t)bytes != m.bytes)
        fail("%s, but rank %d sent %d bytes", describe(m).c_str(), m.peer, bytes);
    MPI_Recv(m.data, bytes, MPI_CHAR, m.peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

// Starts all sends before the first receive waits, so that two ranks can exchange data. A send is
// synchronous, over only once the other rank receives it, since NCCL does not promise to buffer
// messages.
inline void group_run(const std::vector<Message> &group) {
    std::vector<MPI_Request> requests(group.size());
    for (size_t i = 0; i < group.size(); i++) {
        const Message &m = group[i];
        if (m.bytes > INT_MAX) fail("%s: more than 2 GB", describe(m).c_str());
        if (m.sends)
            MPI_Issend(m.data, (int)m.bytes, MPI_CHAR, m.peer, 0, MPI_COMM_WORLD, &requests[i]);
    }
    for (const Message &m : group) if (!m.sends) receive(m);
    for (size_t i = 0; i < group.size(); i++)
        if (group[i].sends)
            wait_for_peer(group[i], [&] {
                int done;
                MPI_Test(&requests[i], &done, MPI_STATUS_IGNORE);
                return done != 0;
            });
}

// ---- forming a communicator ----

// What each rank tells all others. device: its number in the machine.
struct Hello { ncclUniqueId id; char host[64]; int device; };

// All have the same unique id. Ranks of one host have a GPU each, unless the environment says that
// they may share one.
inline ncclResult_t check_hellos(const std::vector<Hello> &hellos) {
    bool shared = getenv("NCCL_HOSTID") || getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    for (size_t r = 0; r < hellos.size(); r++) {
        if (memcmp(&hellos[r].id, &hellos[0].id, sizeof(ncclUniqueId)) != 0)
            return refuse(ncclInvalidUsage, "ncclCommInitRank: ranks 0 and %zu have different "
                          "unique ids", r);
        for (size_t k = 0; k < r && !shared; k++)
            if (hellos[k].device == hellos[r].device && strcmp(hellos[k].host, hellos[r].host) == 0)
                return refuse(ncclInvalidUsage, "Duplicate GPU detected: ranks %zu and %zu both on "
                              "device %d of %s", k, r, hellos[k].device, hellos[k].host);
    }
    return ncclSuccess;
}

// MPI_Finalize waits for all ranks. A rank that still has a communicator has failed, and the others
// will not call MPI_Finalize: mpirun ends them.
inline void finalize_mpi(void) {
    if (!nccl.comm) MPI_Finalize();
}

inline ncclResult_t join(int size, const ncclUniqueId &id, int rank) {
    int level, mpi_rank, mpi_size;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
    atexit(finalize_mpi);
    MPI_Comm_rank(MPI_COMM_WORLD, &mpi_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &mpi_size);
    if (rank != mpi_rank || size != mpi_size)
        return refuse(ncclInvalidUsage, "ncclCommInitRank: rank %d of %d, but MPI says rank %d of "
                      "%d (mpirun -n %d starts as many)", rank, size, mpi_rank, mpi_size, size);
    Hello own = { id, "", (int)setting("CUDA_VISIBLE_DEVICES", device.current) };
    std::vector<Hello> all((size_t)size);
    gethostname(own.host, sizeof own.host - 1);
    MPI_Allgather(&own, sizeof own, MPI_CHAR, all.data(), sizeof own, MPI_CHAR, MPI_COMM_WORLD);
    return check_hellos(all);
}

#else

inline void group_run(const std::vector<Message> &) { }
inline ncclResult_t join(int size, const ncclUniqueId &, int) {
    return refuse(ncclSystemError, "ncclCommInitRank: %d ranks, but this program was built "
                  "without MPI (mpicxx -DEMULATOR_MPI)", size);
}

#endif

// ---- queueing ----

// A group is one operation of the stream of its calls.
inline void group_enqueue(const std::vector<Message> &group) {
    enqueue(group[0].stream, [group] { group_run(group); });
}

// Every message comes here. It is checked, then queued, or appended to the open group. Refused is
// also what is undefined on a GPU: a host pointer, or a buffer that is too short.
inline ncclResult_t request(Message m) {
    const char *name = m.sends ? "ncclSend" : "ncclRecv";
    if (m.peer < 0 || m.peer >= m.comm->size || m.peer == m.comm->rank)
        return refuse(ncclInvalidArgument, "%s: rank %d of %d with rank %d", name, m.comm->rank,
                      m.comm->size, m.peer);
    if (is_pageable(m.data))
        return refuse(ncclInvalidArgument, "%s: %p is not memory of the device", name, m.data);
    if (!on_device(m.data, m.bytes) && !holds(device.pinned, m.data, m.bytes))
        return refuse(ncclInvalidArgument, "%s: the buffer, %zu bytes at %p, goes beyond what is "
                      "allocated", name, m.bytes, m.data);
    if (!nccl.group.empty() && nccl.group[0].stream != m.stream)
        return refuse(ncclInvalidUsage, "%s: the emulator's groups have one stream", name);
    m.number = ++m.comm->calls;
    if (nccl.open) nccl.group.push_back(m);
    else group_enqueue({ m });
    return ncclSuccess;
}

}  // namespace emulator

// ---- functions of NCCL ----

inline const char *ncclGetLastError(ncclComm_t) { return emulator::nccl.error; }

// Rank 0 calls this for all ranks.
inline ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "%d %.9f", (int)getpid(), emulator::now());
    return ncclSuccess;
}

inline ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank,
                                           ncclConfig_t *) {
    ncclResult_t e = emulator::join(size, id, rank);
    if (e == ncclSuccess) emulator::nccl.comm = *comm = new ncclComm{ rank, size, 0 };
    return e;
}

// EMULATOR_NCCL_FAULT: a rank whose messages fail while others wait for them.
inline ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state) {
    *state = emulator::setting("EMULATOR_NCCL_FAULT", -1) == comm->rank ? ncclSystemError
                                                                      : ncclSuccess;
    return ncclSuccess;
}

// Waits for what is queued.
inline ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    emulator::wait_for_all();
    emulator::nccl.comm = nullptr;
    delete comm;
    return ncclSuccess;
}

inline ncclResult_t ncclGroupStart(void) {
    emulator::nccl.open = true;
    return ncclSuccess;
}

// Queues the calls made since ncclGroupStart, or none of them if one was refused.
inline ncclResult_t ncclGroupEnd(void) {
    emulator::Nccl *n = &emulator::nccl;
    ncclResult_t e = n->group_error;
    if (e == ncclSuccess && !n->group.empty()) emulator::group_enqueue(n->group);
    n->open = false;
    n->group.clear();
    n->group_error = ncclSuccess;
    return e;
}

inline ncclResult_t ncclSend(const void *from, size_t bytes, ncclDataType_t, int peer,
                             ncclComm_t comm, cudaStream_t stream) {
    return emulator::request({ true, (void *)from, bytes, peer, comm, stream, 0 });
}
inline ncclResult_t ncclRecv(void *to, size_t bytes, ncclDataType_t, int peer, ncclComm_t comm,
                             cudaStream_t stream) {
    return emulator::request({ false, to, bytes, peer, comm, stream, 0 });
}
