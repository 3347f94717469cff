// Collectives. Every rank sends each other rank the part of its data that the other needs, whatever
// the collective; then each rank gathers or reduces what it received, in rank order.
#pragma once
#include "../include/cuda_bf16.h"
#include "messages.h"

namespace emulator {

// What rank `from` sends to rank `to`: the number of elements; *begin, the first one.
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

// Sends every rank its part, and returns the parts received, in rank order.
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

// ncclAvg as NCCL computes it: floating-point elements are each multiplied by 1/size, rounded, then
// summed; integers are summed, then divided.
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

}  // namespace emulator
