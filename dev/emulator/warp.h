// Warp collectives: what the 32 threads of a warp, its lanes, do in step. They hand each other what
// is in their registers, vote, and add up.
#pragma once
#include "block.h"

namespace emulator {

constexpr unsigned ALL_LANES = 0xFFFFFFFFu;

static inline int lane_index(void) { return index_of(worker.current) % 32; }

// ---- shuffles: each lane names the lane whose value it wants ----

template <class T> struct Shuffle { T value, result; int source; };

template <class T> static inline void shuffle_combine(void **operands, unsigned lanes) {
    for (int lane = 0; lane < 32; lane++) {
        if (!(lanes >> lane & 1)) continue;
        Shuffle<T> *to = (Shuffle<T> *)operands[lane];
        if (lanes >> to->source & 1) to->result = ((Shuffle<T> *)operands[to->source])->value;
        else memset((void *)&to->result, 0xFF, sizeof(T));  // of a lane that is not here: undefined
    }
}

template <class T> static inline T shuffle(unsigned mask, T value, int source, Place here) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    Shuffle<T> s = { value, value, source };
    collective(mask, &s, shuffle_combine<T>, here);
    return s.result;
}

// Lanes are shuffled in segments of `width`, 2 to 32; a lane that would read beyond its segment
// reads itself.
static inline int segment(int lane, int width) { return lane & ~(width - 1); }

// ---- votes and sums: every lane gets the same ----

struct Vote { int vote; unsigned ballot, lanes; };

static inline void vote_combine(void **operands, unsigned lanes) {
    unsigned ballot = 0;
    for (int lane = 0; lane < 32; lane++)
        if (lanes >> lane & 1 && ((Vote *)operands[lane])->vote) ballot |= 1u << lane;
    for (int lane = 0; lane < 32; lane++)
        if (lanes >> lane & 1) {
            ((Vote *)operands[lane])->ballot = ballot;
            ((Vote *)operands[lane])->lanes = lanes;
        }
}

static inline Vote vote(unsigned mask, int vote, Place here) {
    Vote v = { vote, 0, 0 };
    collective(mask, &v, vote_combine, here);
    return v;
}

template <class T> struct Reduce { T value; T (*join)(T a, T b); };

template <class T> static inline void reduce_combine(void **operands, unsigned lanes) {
    int first = __builtin_ctz(lanes);
    T all = ((Reduce<T> *)operands[first])->value;
    for (int lane = first + 1; lane < 32; lane++) {
        Reduce<T> *r = (Reduce<T> *)operands[lane];
        if (lanes >> lane & 1) all = r->join(all, r->value);
    }
    for (int lane = first; lane < 32; lane++)
        if (lanes >> lane & 1) ((Reduce<T> *)operands[lane])->value = all;
}

template <class T> static inline T reduce(unsigned mask, T value, T (*join)(T, T), Place here) {
    Reduce<T> r = { value, join };
    collective(mask, &r, reduce_combine<T>, here);
    return r.value;
}

static inline void meet_combine(void **, unsigned) { }

}  // namespace emulator

static inline void __syncwarp(unsigned mask = emulator::ALL_LANES, EMULATOR_HERE) {
    emulator::collective(mask, nullptr, emulator::meet_combine, { "__syncwarp", file, line });
}

template <class T>
static inline T __shfl_sync(unsigned mask, T value, int from, int width = 32, EMULATOR_HERE) {
    int source = emulator::segment(emulator::lane_index(), width) + (from & (width - 1));
    return emulator::shuffle(mask, value, source, { "__shfl_sync", file, line });
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, EMULATOR_HERE) {
    int lane = emulator::lane_index(), source = lane ^ bits;
    if (source >= emulator::segment(lane, width) + width) source = lane;
    return emulator::shuffle(mask, value, source, { "__shfl_xor_sync", file, line });
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32,
                                 EMULATOR_HERE) {
    int lane = emulator::lane_index(), source = lane + (int)by;
    if (source >= emulator::segment(lane, width) + width) source = lane;
    return emulator::shuffle(mask, value, source, { "__shfl_down_sync", file, line });
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, EMULATOR_HERE) {
    int lane = emulator::lane_index(), source = lane - (int)by;
    if (source < emulator::segment(lane, width)) source = lane;
    return emulator::shuffle(mask, value, source, { "__shfl_up_sync", file, line });
}

static inline unsigned __ballot_sync(unsigned mask, int vote, EMULATOR_HERE) {
    return emulator::vote(mask, vote, { "__ballot_sync", file, line }).ballot;
}
static inline int __any_sync(unsigned mask, int vote, EMULATOR_HERE) {
    return emulator::vote(mask, vote, { "__any_sync", file, line }).ballot != 0;
}
static inline int __all_sync(unsigned mask, int vote, EMULATOR_HERE) {
    emulator::Vote v = emulator::vote(mask, vote, { "__all_sync", file, line });
    return v.ballot == v.lanes;
}
// On a GPU: the lanes that happen to run in step with this one. Here: those that have not exited.
static inline unsigned __activemask(void) {
    return ~emulator::worker.exited[emulator::index_of(emulator::worker.current) / 32];
}

#define EMULATOR_REDUCE(name, type, expression) \
    static inline type name(unsigned mask, type value, EMULATOR_HERE) { \
        type (*join)(type, type) = [](type a, type b) -> type { return expression; }; \
        return emulator::reduce(mask, value, join, { #name, file, line }); \
    }
EMULATOR_REDUCE(__reduce_add_sync, int, (int)((unsigned)a + (unsigned)b))
EMULATOR_REDUCE(__reduce_add_sync, unsigned, a + b)
EMULATOR_REDUCE(__reduce_min_sync, int, a < b ? a : b)
EMULATOR_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
EMULATOR_REDUCE(__reduce_max_sync, int, a > b ? a : b)
EMULATOR_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
EMULATOR_REDUCE(__reduce_and_sync, unsigned, a & b)
EMULATOR_REDUCE(__reduce_or_sync, unsigned, a | b)
EMULATOR_REDUCE(__reduce_xor_sync, unsigned, a ^ b)
