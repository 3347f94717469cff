// The barrier of a block, __syncthreads: all threads of it that have not exited call the same one,
// the same by file and line. A thread that exits counts as arrived (thread_exit in block.h).
//
// Warp collectives: the 32 threads of a warp, its lanes, exchange registers or wait for each other.
//
// Contract: all lanes that a call's mask names and that have not exited make the same call, with
// the same mask. A lane waits until the others have joined; the last one does the work for all of
// them. A mask without its caller is reported at once, a lane that never joins as a deadlock.
#pragma once
#include "schedule.h"

namespace emulator {

// ---- the barrier ----

EMULATOR_APART inline void release_barrier(void) {
    for (int w = 0; w < worker.warps; w++) {
        worker.ready[w] |= worker.at_barrier[w];
        worker.at_barrier[w] = 0;
        count_met(w);
    }
    worker.arrived = 0;
}

// Waits until all threads of the block that have not exited have arrived. The last one makes all
// ready.
inline void barrier(Place here) {
    if (!worker.grid) fail("%s outside of a kernel, %s:%d", here.call, here.file, here.line);
    if (worker.arrived == 0) worker.barrier = here;
    Place first = worker.barrier;
    if (here.line != first.line || here.file != first.file)
        fail("barrier divergence: it waits at %s, %s:%d, others of its block at %s, %s:%d",
             here.call, here.file, here.line, first.call, first.file, first.line);
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

// ---- warp collectives: the mechanism ----

constexpr unsigned ALL_LANES = 0xFFFFFFFFu;

inline int lane_index(void) { return index_of(worker.current) % 32; }
// If all lanes of f's collective have joined: does the work for all of them and makes them ready.
inline bool finish_collective(Fiber *f) {
    int warp = index_of(f) / 32;
    unsigned lanes = f->mask & ~worker.exited[warp];
    void *operands[32];
    if (lanes & ~worker.in_collective[warp]) return false;
    for (unsigned left = lanes; left; left &= left - 1) {
        int lane = __builtin_ctz(left);
        Fiber *other = &worker.fibers[warp*32 + lane];
        if (!same_collective(f, other)) return false;
        operands[lane] = other->operands;
    }
    f->combine(operands, lanes);
    if (lanes == ~worker.exited[warp]) count_met(warp);
    worker.in_collective[warp] &= ~lanes;
    worker.ready[warp] |= lanes;
    return true;
}

// Joins a collective. `operands` points to this lane's struct of operands and results. The last
// lane calls `combine` with all lanes' structs, which writes each lane's result into its struct.
EMULATOR_APART inline void collective(unsigned mask, void *operands, Combine combine, Place here) {
    Fiber *me = worker.current;
    if (!worker.grid) fail("%s outside of a kernel, %s:%d", here.call, here.file, here.line);
    int i = index_of(me), warp = i / 32, lane = i % 32;
    if (!(mask >> lane & 1))
        fail("%s with mask %08x, which leaves out the caller, lane %d, %s:%d", here.call, mask,
             lane, here.file, here.line);
    me->collective = here;
    me->mask = mask;
    me->operands = operands;
    me->combine = combine;
    worker.in_collective[warp] |= 1u << lane;
    if (finish_collective(me)) {
        worker.ready[warp] &= ~(1u << lane);
        offer_turn();
    } else {
        wait_for_turn();
    }
}

// ---- shuffles: each lane names the lane whose value it wants, of the whole warp ----

template <class T> struct Shuffle { T value, result; int source; };

template <class T> inline void shuffle_combine(void **operands, unsigned lanes) {
    for (int lane = 0; lane < 32; lane++) {
        if (!(lanes >> lane & 1)) continue;
        Shuffle<T> *to = (Shuffle<T> *)operands[lane];
        if (lanes >> to->source & 1) to->result = ((Shuffle<T> *)operands[to->source])->value;
        else memset((void *)&to->result, 0xFF, sizeof(T));  // source absent: undefined
    }
}

template <class T> inline T shuffle(unsigned mask, T value, int source, Place here) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    Shuffle<T> s = { value, value, source };
    count_call(SHUFFLE, sizeof(T) > 4 ? 2 : 1);
    collective(mask, &s, shuffle_combine<T>, here);
    return s.result;
}

}  // namespace emulator

inline void __syncthreads(EMULATOR_HERE) {
    emulator::barrier({ "__syncthreads", file, line });
}

inline void __syncwarp(unsigned mask = emulator::ALL_LANES, EMULATOR_HERE) {
    emulator::collective(mask, nullptr, [](void **, unsigned) { }, { "__syncwarp", file, line });
}

template <class T> inline T __shfl_sync(unsigned mask, T value, int from, EMULATOR_HERE) {
    return emulator::shuffle(mask, value, from & 31, { "__shfl_sync", file, line });
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T value, int bits, EMULATOR_HERE) {
    int source = emulator::lane_index() ^ (bits & 31);
    return emulator::shuffle(mask, value, source, { "__shfl_xor_sync", file, line });
}
// The last lanes, which have none `by` lanes further, keep their own.
template <class T> inline T __shfl_down_sync(unsigned mask, T value, unsigned by, EMULATOR_HERE) {
    int lane = emulator::lane_index(), source = lane + (int)by < 32 ? lane + (int)by : lane;
    return emulator::shuffle(mask, value, source, { "__shfl_down_sync", file, line });
}
