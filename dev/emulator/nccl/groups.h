// Sends and receives, and groups of calls between ncclGroupStart and ncclGroupEnd. A group is one
// operation of its streams; a call outside of a group is a group of one.
#pragma once
#include "collectives.h"

namespace emulator {

// ---- sends and receives ----

// A rank's send to itself is matched by its next receive from itself in the same group.
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

// Starts all sends of a group before its first receive waits, so that two ranks can exchange data.
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

// Sends and receives come before the group's collectives, on every rank.
static inline void group_run(std::vector<Request> group) {
    for (size_t i = group.size(); i-- > 0; )               // aborted communicators take no part
        if (group[i].comm->destroyed) group.erase(group.begin() + (long)i);
    for (size_t i = 0; i < group.size(); i++) {
        bool first = true;
        for (size_t k = 0; k < i; k++) first = first && group[k].comm != group[i].comm;
        if (first) point_to_point_run(group, group[i].comm);
    }
    for (const Request &q : group) if (!is_point_to_point(q)) collective_run(q);
}

// Queues a group as one operation. The operation and all streams that the group names wait for each
// other. It also waits for the previous group, on any stream: all ranks must run their calls in the
// same order.
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

}  // namespace emulator
