// Streams: what the host has asked for and the device has not done yet. Launches, copies, products
// and NCCL's calls are operations; each runs after the one before it in its stream, and after what
// it waits for in other streams. Beyond that a GPU promises nothing, and EMULATOR_STREAMS decides:
//
//   (unset)   an operation runs when it is queued: fast, and a missing wait is never seen
//   late      it runs when something must wait for it, and not before
//   random    any that may run, at any moment; random:2, random:3... are other orders
//
// The default stream waits for all streams but those that are cudaStreamNonBlocking, and they wait
// for it. The host calls all of this from one thread.
#pragma once
#include <time.h>
#include <deque>
#include <functional>
#include <vector>
#include "block.h"

typedef struct emulator_stream *cudaStream_t;

namespace emulator {

// When a stream has done its first `count` operations.
struct Moment { cudaStream_t stream; uint64_t count; };

struct Operation {
    std::function<void()> work;
    std::vector<Moment> after;         // in other streams; its own keeps its order anyway
};

}  // namespace emulator

// A stream is never freed, for events may name it as long as the program runs.
struct emulator_stream {
    std::deque<emulator::Operation> queue;
    uint64_t queued, done;             // operations so far
    unsigned flags;
    int priority;
    bool destroyed;
    emulator_stream *next;
};

enum { cudaStreamDefault = 0, cudaStreamNonBlocking = 1 };

namespace emulator {

static emulator_stream default_stream;           // the first of all streams

// Whose turn it is with EMULATOR_STREAMS=random, for how many more operations, and the numbers
// drawn so far.
struct Turn { cudaStream_t stream; uint64_t left, drawn; };
static Turn turn;

static inline double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum Order { AT_ONCE, LATE, RANDOM };

static inline Order order(void) {
    const char *text = getenv("EMULATOR_STREAMS");
    if (!text || !*text) return AT_ONCE;
    if (strcmp(text, "late") == 0) return LATE;
    if (strncmp(text, "random", 6) == 0 && (!text[6] || text[6] == ':')) return RANDOM;
    fail("EMULATOR_STREAMS=%s: it is late, random or random:SEED", text);
}

// The stream that a handle names, or null.
static inline cudaStream_t stream_of(cudaStream_t handle) {
    if (!handle) return &default_stream;
    for (cudaStream_t s = default_stream.next; s; s = s->next)
        if (s == handle) return s->destroyed ? nullptr : s;
    return nullptr;
}

static inline bool passed(Moment m) { return !m.stream || m.stream->done >= m.count; }

static inline Moment end_of(cudaStream_t s) { return { s, s->queued }; }

// Whether the default stream waits for s, and s for it.
static inline bool blocks(const emulator_stream *s) { return !(s->flags & cudaStreamNonBlocking); }

// ---- running ----

static inline void run_first(cudaStream_t s) {
    Operation o = std::move(s->queue.front());
    s->queue.pop_front();
    o.work();
    s->done++;
}

// Late: what m needs, and nothing else. An operation waits only for some that were queued before
// it, so this ends.
static inline void run_until(Moment m) {
    while (!passed(m)) {
        for (const Moment &a : m.stream->queue.front().after) run_until(a);
        run_first(m.stream);
    }
}

static inline bool can_run_first(const emulator_stream *s) {
    if (s->queue.empty()) return false;
    for (const Moment &a : s->queue.front().after) if (!passed(a)) return false;
    return true;
}

// Every rank of many, as the launcher numbers them, draws numbers of its own.
static inline uint64_t draw(void) {
    const char *text = getenv("EMULATOR_STREAMS"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    uint64_t seed = text && text[6] ? strtoull(text + 7, nullptr, 10) : 1;
    if (rank) seed = mix(seed) + strtoull(rank, nullptr, 10);
    return mix(mix(seed) + ++turn.drawn) >> 20;
}

// Random: one operation of any stream. It stays that stream's turn for a while, long or short: else
// no stream would ever get far ahead of the others.
static inline void run_any(void) {
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

// Returns when the device is so far.
static inline void wait_for(Moment m) {
    if (order() != RANDOM) run_until(m);
    while (!passed(m)) run_any();
}

static inline void wait_for_all(void) {
    for (cudaStream_t s = &default_stream; s; s = s->next) wait_for(end_of(s));
}

// The host asks whether the device is so far. Asking again and again must come to an end, so each
// time one operation runs.
static inline bool ask_for(Moment m) {
    if (passed(m)) return true;
    if (order() == RANDOM) run_any();
    else run_until({ m.stream, m.stream->done + 1 });
    return false;
}

// ---- queueing ----

static inline void add_implicit_waits(cudaStream_t s, std::vector<Moment> *after) {
    if (s != &default_stream) {
        if (blocks(s)) after->push_back(end_of(&default_stream));
        return;
    }
    for (cudaStream_t other = s->next; other; other = other->next)
        if (blocks(other)) after->push_back(end_of(other));
}

// Queues an operation behind those of the stream, and behind `after`. What it needs it must hold
// itself: it may run when the caller is long gone. Returns the moment when it is done.
template <class Work>
static inline Moment enqueue(cudaStream_t s, Work work, std::vector<Moment> after = {}) {
    if (order() == AT_ONCE) {
        wait_for_all();                          // if the environment was another before
        work();
        return { s, 0 };
    }
    add_implicit_waits(s, &after);
    s->queue.push_back({ std::move(work), std::move(after) });
    s->queued++;
    Moment end = end_of(s);
    if (order() == RANDOM && draw() % 4 == 0)
        for (uint64_t n = 1ull << draw() % 6; n > 0; n--) run_any();
    return end;
}

// Returns when all is done that is queued in s; of the default stream, also what it would wait for.
static inline void wait_for_stream(cudaStream_t s) { wait_for(enqueue(s, [] { })); }

}  // namespace emulator
