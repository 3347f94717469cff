// NCCL, as far as the trainer uses it, between processes on CPUs: every message travels over MPI.
//
// Point-to-point calls and collectives are operations of their stream. The ranks that take part in
// a call send each other messages that name the call. Calls that do not match are reported, not
// mixed up. A reduction adds in rank order and rounds each partial sum to the type of the data, as
// NCCL's rings do, so every rank gets the same bits in every run. The parts, in order:
//
//     calls.h           NVIDIA's names and numbers; a call, as it is described and compared
//     messages.h        messages between ranks over MPI
//     collectives.h     broadcast, all-gather, reduce, reduce-scatter, all-reduce
//     groups.h          sends and receives; groups of calls, queued in streams
//     requests.h        the checks of a call's arguments
//     communicators.h   ranks form a communicator and leave it
//     this file         NCCL's functions
//
// With mpicxx and EMULATOR_MPI there may be many ranks, started by mpirun; without them there is
// one. The first ncclCommInitRank of several ranks initializes MPI. The end of the program
// finalizes MPI, unless a communicator still exists: then the program has failed. Where a GPU waits
// forever for a rank that does not come, the emulator reports it after EMULATOR_TIMEOUT seconds
// (120).
#pragma once
#include "cuda_bf16.h"
#include "../nccl/communicators.h"

static inline ncclResult_t ncclGetVersion(int *version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

static inline const char *ncclGetLastError(ncclComm_t) { return emulator::nccl.error; }

// Rank 0 calls this for all ranks. With NCCL_COMM_ID set, every rank gets the same id by itself.
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
    ncclComm c = { rank, size, emulator::device_number(), 0, 0, false, false,
                   emulator::nccl.communicators, {} };
    if (size > 1) e = emulator::exchange_hellos(&c, id);
    if (e != ncclSuccess) return e;
    *comm = emulator::nccl.communicators = new ncclComm(c);
    return ncclSuccess;
}

// The configuration is checked; how many thread blocks a call takes changes nothing here.
static inline ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id,
                                                  int rank, ncclConfig_t *config) {
    *comm = nullptr;
    if (config && (config->magic != 0xcafebeef || config->size != sizeof *config))
        return emulator::refuse(ncclInvalidArgument, "ncclCommInitRankConfig: the configuration "
                                "does not begin as NCCL_CONFIG_INITIALIZER");
    if (config && config->maxCTAs != NCCL_CONFIG_UNDEF_INT && config->maxCTAs < 1)
        return emulator::refuse(ncclInvalidArgument, "ncclCommInitRankConfig: maxCTAs is %d",
                                config->maxCTAs);
    return ncclCommInitRank(comm, size, id, rank);
}

// The configuration is the parent's.
static inline ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *made,
                                         ncclConfig_t *) {
    *made = nullptr;
    ncclResult_t e = emulator::check_communicator(comm, "ncclCommSplit");
    if (e == ncclSuccess && color < NCCL_SPLIT_NOCOLOR)
        return emulator::refuse(ncclInvalidArgument, "ncclCommSplit: color %d", color);
    if (e == ncclSuccess) *made = emulator::split_communicator(comm, color, key);
    return e;
}

static inline ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    ncclResult_t e = emulator::check_communicator(comm, "ncclCommFinalize");
    if (e == ncclSuccess) emulator::leave_communicator(comm);
    return e;
}

static inline ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    if (!comm) return ncclSuccess;
    if (!emulator::is_communicator(comm) || comm->destroyed)
        return emulator::check_communicator(comm, "ncclCommDestroy");
    emulator::leave_communicator(comm);
    comm->destroyed = true;
    return ncclSuccess;
}

// Does not wait for other ranks.
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

// The end of the outermost group queues the calls made since its ncclGroupStart, or none of them if
// one was refused.
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
