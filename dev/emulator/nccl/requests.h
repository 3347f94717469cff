// Checks of a call's arguments. A call that NCCL would refuse, or for which the behaviour is
// undefined on a GPU (a host pointer, a buffer that is too short or overlaps), returns an error
// here.
#pragma once
#include "groups.h"

namespace emulator {

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

// NCCL can access what a GPU can: device memory and pinned host memory.
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

// Buffers may overlap only if the collective works in place: the shorter buffer is this rank's part
// of the longer one.
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

// Every call comes here. It is checked, then queued, or appended to the open group.
static inline ncclResult_t request(const char *name, Call call, const void *from, void *to,
                                   ncclComm_t comm, cudaStream_t stream) {
    ncclResult_t e = check_communicator(comm, name);
    if (e != ncclSuccess) return e;
    Request q = { call, (const char *)from, (char *)to, comm, stream_of(stream) };
    if (!q.stream) return refuse(ncclInvalidArgument, "%s: there is no such stream", name);
    if (q.stream->capture)
        return refuse(ncclInvalidUsage, "%s: the emulator captures no collectives", name);
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

}  // namespace emulator
