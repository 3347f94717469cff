// __syncthreads: the barrier of a block.
//
// Contract: all threads of the block that have not exited call the same barrier, the same by file
// and line. A thread that exits counts as arrived (thread_exit in block.h). Threads at different
// barriers are reported: barrier divergence.
#pragma once
#include "schedule.h"

namespace emulator {

EMULATOR_APART inline void release_barrier(void) {
    for (int w = 0; w < worker.warps; w++) {
        worker.ready[w] |= worker.at_barrier[w];
        worker.at_barrier[w] = 0;
        count_met(w);
    }
    worker.arrived = 0;
}

__attribute__((noreturn, noinline))
inline void fail_divergence(const Place *here) {
    Place first = worker.barrier;
    fail("barrier divergence: it waits at %s, %s:%d, others of its block at %s, %s:%d", here->call,
         here->file, here->line, first.call, first.file, first.line);
}

// Waits until all threads of the block that have not exited have arrived. The last one makes all
// ready.
inline void barrier(Place here) {
    if (!worker.grid) fail("%s outside of a kernel, %s:%d", here.call, here.file, here.line);
    if (worker.arrived == 0) worker.barrier = here;
    else if (here.line != worker.barrier.line || here.file != worker.barrier.file)
        fail_divergence(&here);
    count_call(BARRIER);
    if (++worker.arrived == worker.alive) {
        release_barrier();
        offer_turn();
        return;
    }
    int i = index_of(worker.current);
    worker.at_barrier[i/32] |= 1u << i%32;
    wait_for_turn();
}

}  // namespace emulator

inline void __syncthreads(EMULATOR_HERE) {
    emulator::barrier({ "__syncthreads", file, line });
}
