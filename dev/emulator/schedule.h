// The schedule: which thread of a block runs next, and the switch from one fiber to another.
//
// A thread runs until it waits. Then its warp's next ready lane runs; when the warp has none, the
// next warp's first ready lane. The order is always the same, so a race gives the same wrong answer
// in every run. EMULATOR_SHUFFLE draws the next thread at random instead.
//
//   wait_for_turn    the caller has put itself into a set of waiting threads: runs the others, and
//                    returns once the caller is ready again and it is its turn
//   offer_turn       the caller could go on; when shuffling, other threads may run first
#pragma once
#include "report.h"

namespace emulator {

// splitmix64: a hash, so that neighbouring seeds give unrelated numbers.
inline uint64_t mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

// 32 random bits.
inline unsigned random_bits(void) { return (unsigned)((worker.random = mix(worker.random)) >> 32); }

// Removes the next thread from the ready set; null if the set is empty. In a warp it is the first
// lane at or after `from`, or else the first.
inline Fiber *take_ready(void) {
    int warp = index_of(worker.current) / 32, from = index_of(worker.current) % 32;
    if (worker.current == &worker.home) warp = from = 0;
    if (worker.random) {
        warp = (int)(random_bits() % (unsigned)worker.warps);
        from = (int)(random_bits() % 32);
    }
    for (int tried = 0; tried < worker.warps; tried++) {
        if (worker.ready[warp]) {
            unsigned after = worker.ready[warp] & (~0u << from);
            int lane = __builtin_ctz(after ? after : worker.ready[warp]);
            worker.ready[warp] &= ~(1u << lane);
            return &worker.fibers[warp*32 + lane];
        }
        warp = warp + 1 < worker.warps ? warp + 1 : 0;
        if (!worker.random) from = 0;
    }
    return nullptr;
}

inline void fiber_main(void);                    // block.h

// First call after a switch: tells AddressSanitizer which stack is in use now.
inline void arrived_on([[maybe_unused]] void *fake_stack) {
#ifdef EMULATOR_ASAN
    const void *bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(fake_stack, &bottom, &bytes);
    if (worker.previous == &worker.home) {
        worker.home_stack = (char *)bottom;
        worker.home_bytes = bytes;
    }
#endif
}

// Gives a thread a stack, on which the first switch to the thread calls fiber_main.
inline void prepare(Fiber *f) {
    f->stack = worker.free_count ? worker.free_stacks[--worker.free_count] : stack_new();
#ifdef EMULATOR_ASAN                             // its last user never returned
    ASAN_UNPOISON_MEMORY_REGION(f->stack, STACK_BYTES);
#endif
    // Stacks start at different offsets in a page. At equal ones all would use the same cache sets.
    size_t shift = (size_t)(index_of(f) % 32) * 128;
    f->sp = stack_start(f->stack + STACK_BYTES - shift, fiber_main);
}

// Switches to another fiber; returns when a fiber switches back. `done`: the caller has finished,
// and this never returns.
inline void switch_to(Fiber *next, [[maybe_unused]] bool done) {
    Fiber *me = worker.current;
    if (next != &worker.home && !next->stack) prepare(next);
    worker.previous = me;
    worker.current = next;
#ifdef EMULATOR_ASAN
    bool home = next == &worker.home;
    __sanitizer_start_switch_fiber(done ? nullptr : &me->fake_stack,
                                   home ? worker.home_stack : next->stack,
                                   home ? worker.home_bytes : STACK_BYTES);
#endif
    emulator_switch(&me->sp, next->sp);
    arrived_on(me->fake_stack);
}

// Runs other threads until this one is taken from the ready set.
EMULATOR_APART inline void wait_for_turn(void) {
    Fiber *next = take_ready();
    if (!next) fail_stuck();
    if (next != worker.current) switch_to(next, false);
}

// When shuffling: lets a random ready thread run, this one or another.
EMULATOR_APART inline void offer_turn(void) {
    int i = index_of(worker.current);
    if (!worker.random) return;
    worker.ready[i/32] |= 1u << i%32;
    wait_for_turn();
}

}  // namespace emulator
