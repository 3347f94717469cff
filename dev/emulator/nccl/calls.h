// NVIDIA's names and numbers; and a call of NCCL's, as ranks compare it and as reports describe it.
#pragma once
#include <limits.h>
#include <string>
#include "../include/cuda_runtime.h"
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
#define NCCL_SPLIT_NOCOLOR -1

typedef struct ncclComm *ncclComm_t;
typedef struct { char internal[NCCL_UNIQUE_ID_BYTES]; } ncclUniqueId;

// The first members of NVIDIA's.
#define NCCL_CONFIG_UNDEF_INT INT_MIN
typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking, cgaClusterSize, minCTAs, maxCTAs;
} ncclConfig_t;
#define NCCL_CONFIG_INITIALIZER { sizeof(ncclConfig_t), 0xcafebeef, NCCL_VERSION_CODE, \
    NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT }

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

// Never freed: a program may still pass the handle after it was destroyed, which is reported.
struct ncclComm {
    int rank, size, device;
    int tag;                           // MPI tag of its messages
    uint64_t calls;                    // made so far
    bool ended, destroyed;             // all ranks have left; the handle is invalid
    ncclComm *next;
    std::vector<int> members;          // MPI's number of each rank; empty: the same numbers

    int mpi_rank(int r) const { return members.empty() ? r : members[(size_t)r]; }
};

namespace emulator {

constexpr int HOST_BYTES = 64;

// The message that each rank sends when a communicator is formed.
struct Hello { ncclUniqueId id; char host[HOST_BYTES]; int device; };

// A call, as the other ranks see it. peer: the root of a collective, or the other rank of a
// message.
enum Kind { INIT, SEND, RECV, BROADCAST, ALL_GATHER, REDUCE, REDUCE_SCATTER, ALL_REDUCE, GOODBYE,
            SPLIT };
struct Call { int kind, type, op, peer; uint64_t count, number; };

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
    ncclComm_t communicators;
    int made;                          // communicators of several ranks, so far
    Moment last;                       // the previous call's end: calls keep their order
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

// ---- descriptions ----

static inline size_t bytes_of(int type) {
    switch (type) {
    case ncclInt8: case ncclUint8: return 1;
    case ncclBfloat16: return 2;
    case ncclInt32: case ncclUint32: case ncclFloat32: return 4;
    case ncclInt64: case ncclUint64: case ncclFloat64: return 8;
    default: return 0;                           // not supported
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
        "ncclCommDestroy", "ncclCommSplit" };
    static const char *const ops[] = { "sum", "prod", "max", "min", "avg" };
    if (c.kind == INIT || c.kind == GOODBYE) return names[c.kind];
    std::string s = names[c.kind];
    s += "(" + std::to_string(c.count) + " " + name_of_type(c.type);
    if (reduces(c.kind)) s += std::string(", ") + ops[c.op];
    if (c.kind == SEND || c.kind == REDUCE) s += ", to rank " + std::to_string(c.peer);
    if (c.kind == RECV || c.kind == BROADCAST) s += ", from rank " + std::to_string(c.peer);
    return s + "), call " + std::to_string(c.number);
}

}  // namespace emulator
