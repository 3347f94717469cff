// Worker: the state of one block while it runs on one core. It holds the block's threads, which of
// them runs, and which are ready, wait or have exited. Every OpenMP thread has one worker and runs
// one block at a time. schedule.h and warp.h change this state; report.h prints it.
#pragma once
#include <string.h>
#include "count.h"
#include "fiber.h"

// File and line of a call: as default arguments they are evaluated where the function is called.
#define EMULATOR_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace emulator {

constexpr int MAX_THREADS = 1024, MAX_WARPS = 32, MAX_SHARED = 64, MAX_COPIES = 64;
constexpr size_t STATIC_SHARED_LIMIT = 48 << 10;        // static, for a kernel
constexpr size_t OPTIN_SHARED_LIMIT = 227 << 10;        // dynamic, on request: sm_90

// A call that waits, and its line in the .cu file.
struct Place { const char *call, *file; int line; };

// The work of a warp collective (warp.h): operands[l] is lane l's, for each bit l of `lanes`.
typedef void (*Combine)(void **operands, unsigned lanes);

// A pending cp.async (tensor_core.h).
struct Copy { void *to; const void *from; int bytes, read, group; };

// One CUDA thread.
struct Fiber {
    void **sp;                         // its stack pointer, while others run
    char *stack;                       // null before it first runs and after it has exited
    uint3 thread;                      // threadIdx
    Place collective;                  // the warp collective it waits in, or waited in last:
    unsigned mask;                     //   the lanes that take part,
    void *operands;                    //   this lane's operands and result,
    Combine combine;                   //   the work on all lanes' operands
    void *fake_stack;                  // of AddressSanitizer
    int copy_count, copy_group;        // cp.async: pending copies; the open group
};

// A launch, the same for all its blocks.
struct Grid {
    const char *kernel;
    dim3 grid, block;
    size_t dynamic_bytes;
    void (*thread)(void *arguments);   // runs the kernel as the current thread
    void *arguments;
};

struct SharedMemory { void *data; size_t bytes; };

// Sets of threads are bit masks: bit l of ready[w] is lane l of warp w. Every thread but the
// current one is in exactly one of the four sets.
struct Worker {
    const Grid *grid;                  // null outside of kernels
    uint3 block;                       // blockIdx
    uint64_t serial;                   // blocks that this worker has begun
    Fiber *current, *previous;         // the fiber that runs; the one that ran before it
    Fiber *fibers;                     // (MAX_THREADS), by linear thread index
    Copy *copies;                      // (MAX_THREADS,MAX_COPIES) pending cp.async
    Fiber home;                        // the worker's own stack, outside of kernels
    int warps, alive;
    unsigned ready[MAX_WARPS], at_barrier[MAX_WARPS], in_collective[MAX_WARPS], exited[MAX_WARPS];
    int arrived;                       // threads at the barrier
    Place barrier;                     // where they wait
    SharedMemory shared[MAX_SHARED];   // shared[0]: the dynamic shared memory
    int shared_count;
    size_t static_bytes;
    char *free_stacks[MAX_THREADS];
    int free_count;
    char *home_stack;                  // home's stack, for AddressSanitizer
    size_t home_bytes;
    uint64_t random;                   // EMULATOR_SHUFFLE's generator; 0: no shuffling
};
inline thread_local Worker worker = {};

inline int index_of(const Fiber *f) { return (int)(f - worker.fibers); }

inline bool is_in(const unsigned *set, int i) { return set[i/32] >> i%32 & 1; }

// Whether two lanes of a warp wait in the same collective.
inline bool same_collective(const Fiber *a, const Fiber *b) {
    return a->mask == b->mask && a->combine == b->combine &&
           a->collective.line == b->collective.line;
}

}  // namespace emulator
