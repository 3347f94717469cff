// __shared__ variables; a block of threads on one core, from its first thread to its last; a grid
// of blocks on all cores; threadIdx, blockIdx ...
//
// Three rules that a kernel must keep are checked here:
//   1. All threads that have not exited meet at the same __syncthreads: barrier().
//   2. All lanes that a mask names and that have not exited meet in the same call: collective().
//   3. Shared memory is written before it is read; it begins as NaNs: shared_new().
// A violation of rule 1 or 2 is reported with the kernel's name, block, thread, file and line.
#pragma once
#include "warp.h"

namespace emulator {

// ---- shared memory: `__shared__` variables and the dynamic shared memory of a launch ----

// rewrite.c turns a declaration into EMULATOR_SHARED. A variable is allocated when the block's
// first thread reaches its declaration, and freed when the block ends. It begins as NaNs: a kernel
// that reads an element before any thread has written it computes NaN. The limits are a GPU's.

// Each variable is an allocation of its own, so that AddressSanitizer guards its ends.
inline void *shared_new(int slot, size_t bytes, const char *name) {
    void *p = nullptr;
    if (slot >= MAX_SHARED) fail("more than %d __shared__ variables", MAX_SHARED - 1);
    if (bytes && posix_memalign(&p, 128, bytes + SHARED_GAP))
        fail("no memory for __shared__ %s", name);
    if (bytes) memset(p, 0xFF, bytes + SHARED_GAP);          // NaN as float, double and bf16; -1
    worker.shared[slot] = { p, bytes };
    return p;
}

// Where a __shared__ variable lies in the block that this worker counts as number `serial`.
struct SharedSite { uint64_t serial; void *data; };

EMULATOR_APART EMULATOR_UNCOUNTED
inline void *static_shared(SharedSite *site, size_t bytes, const char *name) {
    if (!worker.grid) fail("__shared__ %s outside of a kernel", name);
    if (site->serial != worker.serial) {
        site->serial = worker.serial;
        site->data = shared_new(worker.shared_count++, bytes, name);
        worker.static_bytes += bytes;
        if (worker.static_bytes > STATIC_SHARED_LIMIT)
            fail("more than 48 KB of static __shared__ memory");
    }
    return site->data;
}

#define EMULATOR_SHARED(name, dims, ...) \
    static thread_local emulator::SharedSite name##_site; \
    auto &name = *(__VA_ARGS__ (*) dims)emulator::static_shared(&name##_site, \
                                                               sizeof(__VA_ARGS__ dims), #name)

#define EMULATOR_DYNAMIC(name, dims, ...) \
    auto *name = (__VA_ARGS__ *)emulator::dynamic_shared()

inline void *dynamic_shared(void) {
    if (!worker.grid) fail("extern __shared__ outside of a kernel");
    return worker.shared[0].data;
}

// ---- a block ----

// A thread that exits counts as arrived, at the barrier and in its warp's collectives.
inline void thread_exit(void) {
    int i = index_of(worker.current), warp = i / 32;
    worker.exited[warp] |= 1u << i%32;
    if (--worker.alive == worker.arrived && worker.alive > 0) release_barrier();
    for (int lane = 0; worker.in_collective[warp] && lane < 32; lane++)
        if (worker.in_collective[warp] >> lane & 1)
            finish_collective(&worker.fibers[warp*32 + lane]);
}

// The code of every stack: runs a thread to its end, then, on the same stack, the next thread that
// has not begun. So threads that never wait need one stack and no switch.
inline void fiber_main(void) {
    arrived_on(nullptr);
    for (;;) {
        Fiber *me = worker.current;
        worker.grid->thread(worker.grid->arguments);
        thread_exit();
        Fiber *next = take_ready();
        if (!next && worker.alive > 0) fail_stuck();
        char *stack = me->stack;
        me->stack = nullptr;
        if (next && !next->stack) {
            next->stack = stack;
            worker.current = next;
        } else {
            worker.free_stacks[worker.free_count++] = stack;
            switch_to(next ? next : &worker.home, true);
        }
    }
}

inline void block_begin(const Grid *grid, uint3 block) {
    int threads = (int)(grid->block.x * grid->block.y * grid->block.z);
    worker.grid = grid;
    worker.block = block;
    worker.serial++;
    worker.warps = (threads + 31) / 32;
    worker.alive = threads;
    worker.arrived = 0;
    for (int w = 0; w < worker.warps; w++) {
        int lanes = threads - 32*w < 32 ? threads - 32*w : 32;
        worker.ready[w] = lanes == 32 ? ~0u : (1u << lanes) - 1;
        worker.exited[w] = ~worker.ready[w];     // lanes beyond the block never arrive
        worker.at_barrier[w] = worker.in_collective[w] = 0;
    }
    uint3 t = { 0, 0, 0 };
    for (int i = 0; i < threads; i++) {
        worker.fibers[i].thread = t;
        worker.fibers[i].copy_count = worker.fibers[i].copy_group = 0;
        if (++t.x == grid->block.x) { t.x = 0; if (++t.y == grid->block.y) { t.y = 0; t.z++; } }
    }
    worker.static_bytes = 0;
    worker.shared_count = 1;
    shared_new(0, grid->dynamic_bytes, "dynamic");
}

inline void block_run(const Grid *grid, uint3 block, uint64_t shuffle) {
    block_begin(grid, block);
    worker.random = shuffle;
    worker.current = &worker.home;
    count_block(&worker);
    switch_to(take_ready(), false);
    count_block_end();
    for (int i = 0; i < worker.shared_count; i++) free(worker.shared[i].data);
    worker.grid = nullptr;
}

// ---- a grid ----

// A worker's fibers, allocated for its first block and kept until the program ends.
inline void worker_start(void) {
    if (worker.fibers) return;
    worker.fibers = (Fiber *)pages_new(MAX_THREADS * sizeof(Fiber));
    worker.copies = (Copy *)pages_new(MAX_THREADS * MAX_COPIES * sizeof(Copy));
    catch_faults();
}

// Runs all blocks, several at once with OpenMP.
inline void grid_run(const Grid *grid) {
    static uint64_t launches;
    const char *seed = getenv("EMULATOR_SHUFFLE");
    uint64_t shuffle = seed ? mix(strtoull(seed, nullptr, 10) + mix(++launches)) : 0;
    int64_t gx = grid->grid.x, gy = grid->grid.y, blocks = gx * gy * grid->grid.z;
    #pragma omp parallel if (blocks > 1)
    {
        worker_start();
        #pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < blocks; i++) {
            uint3 block = { (unsigned)(i % gx), (unsigned)(i / gx % gy), (unsigned)(i / gx / gy) };
            block_run(grid, block, shuffle ? mix(shuffle + (uint64_t)i) | 1 : 0);
        }
    }
}

}  // namespace emulator

// ---- what a kernel reads ----

#define threadIdx (emulator::worker.current->thread)
#define blockIdx (emulator::worker.block)
#define blockDim (emulator::worker.grid->block)
#define gridDim (emulator::worker.grid->grid)
