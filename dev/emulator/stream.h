// Streams: queues of operations that the host has asked for and the device has not run yet.
// Launches, copies, matrix products and NCCL's calls are operations. An operation runs after the
// one before it in its stream, and after what it waits for in other streams. A GPU promises no more
// order than that; within it EMULATOR_STREAMS chooses:
//
//   (unset)   an operation runs when it is queued: fast, but a missing wait goes unnoticed
//   late      an operation runs only when something waits for it
//   random    any operation that may run, at any moment; random:2, random:3... are other orders
//
// The default stream and every stream that is not cudaStreamNonBlocking wait for each other. Only
// one host thread may call these functions.
#pragma once
#include <time.h>
#include <deque>
#include <functional>
#include <vector>
#include "block.h"

typedef struct CUstream_st *cudaStream_t;

namespace emulator {

// The moment at which a stream has done its first `count` operations.
struct Moment { cudaStream_t stream; uint64_t count; };

typedef std::function<void()> Work;

struct Operation {
    Work work;
    std::vector<Moment> after;         // moments of other streams to wait for
};

}  // namespace emulator

// A stream is never freed: events may refer to it until the program ends.
struct CUstream_st {
    std::deque<emulator::Operation> queue;
    uint64_t queued, done;             // operations so far
    unsigned flags;
    bool destroyed;
    bool captures;                     // operations are recorded, not queued:
    std::vector<emulator::Work> captured;
    CUstream_st *next;
};

enum { cudaStreamDefault = 0, cudaStreamNonBlocking = 1 };

namespace emulator {

inline CUstream_st default_stream;               // head of the list of streams

// EMULATOR_STREAMS=random: the stream whose turn it is, for how many more operations, and how many
// random numbers have been drawn.
struct Turn { cudaStream_t stream; uint64_t left, drawn; };
inline Turn turn;

inline double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum Order { AT_ONCE, LATE, RANDOM };

inline Order order(void) {
    const char *text = getenv("EMULATOR_STREAMS");
    if (!text || !*text) return AT_ONCE;
    if (strcmp(text, "late") == 0) return LATE;
    if (strncmp(text, "random", 6) == 0 && (!text[6] || text[6] == ':')) return RANDOM;
    fail("EMULATOR_STREAMS=%s: expected late, random or random:SEED", text);
}

// The stream that a handle names.
inline cudaStream_t stream_of(cudaStream_t handle) {
    if (handle && handle->destroyed) fail("a stream is used after cudaStreamDestroy");
    return handle ? handle : &default_stream;
}

inline bool passed(Moment m) { return !m.stream || m.stream->done >= m.count; }

inline Moment end_of(cudaStream_t s) { return { s, s->queued }; }

// Whether s and the default stream wait for each other.
inline bool blocks(const CUstream_st *s) { return !(s->flags & cudaStreamNonBlocking); }

// ---- running ----

inline void run_first(cudaStream_t s) {
    Operation o = std::move(s->queue.front());
    s->queue.pop_front();
    o.work();
    s->done++;
}

// Late: runs what m needs and nothing else. It ends, since an operation waits only for operations
// queued before it.
inline void run_until(Moment m) {
    while (!passed(m)) {
        for (const Moment &a : m.stream->queue.front().after) run_until(a);
        run_first(m.stream);
    }
}

inline bool can_run_first(const CUstream_st *s) {
    if (s->queue.empty()) return false;
    for (const Moment &a : s->queue.front().after) if (!passed(a)) return false;
    return true;
}

// A random number. Each rank draws its own sequence.
inline uint64_t draw(void) {
    const char *text = getenv("EMULATOR_STREAMS"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    uint64_t seed = text && text[6] ? strtoull(text + 7, nullptr, 10) : 1;
    if (rank) seed = mix(seed) + strtoull(rank, nullptr, 10);
    return mix(mix(seed) + ++turn.drawn) >> 20;
}

// Random: runs one operation of some stream. The same stream keeps its turn for 1 to 128
// operations: otherwise no stream would get far ahead of the others.
inline void run_any(void) {
    if (!turn.stream || turn.left == 0 || !can_run_first(turn.stream)) {
        uint64_t n = 0;
        for (cudaStream_t s = &default_stream; s; s = s->next) n += can_run_first(s);
        if (n == 0) return;
        uint64_t chosen = draw() % n;
        turn.stream = &default_stream;
        while (!can_run_first(turn.stream) || chosen-- > 0) turn.stream = turn.stream->next;
        turn.left = 1ull << draw() % 8;
    }
    turn.left--;
    run_first(turn.stream);
}

// Returns when the device has reached m.
inline void wait_for(Moment m) {
    if (order() != RANDOM) run_until(m);
    while (!passed(m)) run_any();
}

inline void wait_for_all(void) {
    for (cudaStream_t s = &default_stream; s; s = s->next) wait_for(end_of(s));
}

// Whether the device has reached m. If not, one operation runs, so that a host which polls does not
// poll forever.
inline bool ask_for(Moment m) {
    if (passed(m)) return true;
    if (order() == RANDOM) run_any();
    else run_until({ m.stream, m.stream->done + 1 });
    return false;
}

// ---- queueing ----

inline void add_implicit_waits(cudaStream_t s, std::vector<Moment> *after) {
    if (s != &default_stream) {
        if (blocks(s)) after->push_back(end_of(&default_stream));
        return;
    }
    for (cudaStream_t other = s->next; other; other = other->next)
        if (blocks(other)) after->push_back(end_of(other));
}

// Queues an operation behind those of the stream and behind `after`. `work` must own what it uses:
// it may run after the caller has returned. Returns the moment at which the operation is done.
inline Moment enqueue(cudaStream_t s, Work work, std::vector<Moment> after = {}) {
    if (s->captures) {
        s->captured.push_back(std::move(work));
        return { nullptr, 0 };                   // never: there is nothing to wait for
    }
    add_implicit_waits(s, &after);
    s->queue.push_back({ std::move(work), std::move(after) });
    s->queued++;
    Moment end = end_of(s);
    if (order() == AT_ONCE) wait_for(end);
    if (order() == RANDOM && draw() % 4 == 0)
        for (uint64_t n = 1ull << draw() % 6; n > 0; n--) run_any();
    return end;
}

// Returns when everything queued in s is done; for the default stream, also what it waits for.
inline void wait_for_stream(cudaStream_t s) { wait_for(enqueue(s, [] { })); }

}  // namespace emulator
