// Counts what kernels ask of a GPU: `make profile`. Built with -DEMULATOR_COUNT, the emulator calls
// the functions below; otherwise they are empty, and the program is the same without them.
//
// The compiler reports every load and store: g++ -fsanitize=thread calls a function before each of
// them, and count.cpp defines these functions in place of ThreadSanitizer. An address in memory
// from cudaMalloc is global, one in the block's __shared__ variables is shared, and all others are
// registers and parameters on a GPU: they are not counted.
//
// An instruction is where in the program it stands, and how often the lane has been there since its
// whole warp last met: in a barrier, a shuffle, a vote. The lanes that arrive there equally often
// are one request of the warp.
#pragma once
#include <stddef.h>
#include <stdint.h>
#ifdef EMULATOR_COUNT
#include <map>
#include <string>
#include <tuple>
#include <vector>
#endif

namespace emulator {

enum CountKind { GLOBAL_LOAD, GLOBAL_STORE, ATOMIC, SHARED_LOAD, SHARED_STORE, SHUFFLE, MMA,
                 BARRIER, COUNT_KINDS };

struct Worker;

#ifdef EMULATOR_COUNT

// ---- what the emulator tells ----

void count_memory(const void *p, size_t bytes);              // from cudaMalloc
void count_forget(const void *p);
void count_launch(const char *name, const void *address, uint64_t blocks, uint64_t threads);
void count_launch_end(void);
void count_block(const Worker *w);                           // begins on this core
void count_block_end(void);
void count_met(int warp);                                    // all lanes of a warp
void count_call(CountKind kind, int instructions = 1);       // by the lane that runs
void count_ldmatrix(const void *row);
void count_copy(const void *to, const void *from, int bytes, int read);
void count_work(const char *name, uint64_t read, uint64_t written, double flops);    // no kernel

// ---- what a program may ask for ----

// Sums over the requests of an instruction, or of a kernel.
struct Tally {
    uint64_t requests, lanes;          // by a warp; lanes that took part, 32 a request at most
    uint64_t bytes;                    // that the lanes asked for
    uint64_t sectors, ideal;           // global: sectors of 32 bytes; if the bytes were packed
    uint64_t passes, least;            // clocks of a multiprocessor; without bank conflicts

    void operator+=(const Tally &t) {
        requests += t.requests;
        lanes += t.lanes;
        bytes += t.bytes;
        sectors += t.sectors;
        ideal += t.ideal;
        passes += t.passes;
        least += t.least;
    }
};

// An instruction: a return address in the kernel.
struct Instruction {
    uintptr_t address;
    CountKind kind;
    int part;                          // of a struct that takes several accesses
    auto members() const { return std::tie(address, kind, part); }
    bool operator==(const Instruction &b) const { return members() == b.members(); }
    bool operator<(const Instruction &b) const { return members() < b.members(); }
};

struct CountedKernel {
    std::string name;
    const void *address;               // null: a kernel whose template arguments were deduced
    uint64_t launches, blocks, warps;
    uint64_t read, written;            // bytes of global memory, each sector once a launch
    double flops;                      // of matrix products
    std::map<Instruction, Tally> instructions;

    Tally total(CountKind kind) const;
};

void count_clear(void);
const std::vector<CountedKernel> &counted(void);

// If set: called before each access of a thread to memory other than its stack and the emulator's
// variables, which may lie in no array; and, with p null, where a thread arrives at a barrier.
typedef void (*CountWatch)(CountKind kind, const void *p, size_t bytes);
extern CountWatch count_watch;

// Nothing else lies so many bytes behind a __shared__ variable: NaNs, for a watch.
constexpr size_t SHARED_GAP = 256;

// The emulator's own work on global and shared memory, in place of hardware.
#define EMULATOR_UNCOUNTED __attribute__((no_sanitize_thread))
// What a kernel calls often: inlined into each call, it would take the compiler minutes.
#define EMULATOR_APART __attribute__((noinline))

// ---- vectors that are copied whole ----

// A GPU moves a float4 with one instruction. A C++ compiler may split the copy into four, and drop
// those that nobody reads, and what no GPU does would be counted. So in this build a copy passes
// through a register that the compiler cannot see into.
typedef float Word128 __attribute__((vector_size(16), may_alias));
typedef uint64_t __attribute__((may_alias)) Word64;
typedef uint32_t __attribute__((may_alias)) Word32;

#if defined(__x86_64__)
inline Word128 opaque(Word128 x) { asm("" : "+x"(x)); return x; }
#elif defined(__aarch64__)
inline Word128 opaque(Word128 x) { asm("" : "+w"(x)); return x; }
#endif
inline Word64 opaque(Word64 x) { asm("" : "+r"(x)); return x; }
inline Word32 opaque(Word32 x) { asm("" : "+r"(x)); return x; }

template <size_t BYTES> inline void copy_whole(void *to, const void *from) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "what one instruction moves");
    if constexpr (BYTES == 16) *(Word128 *)to = opaque(*(const Word128 *)from);
    else if constexpr (BYTES == 8) *(Word64 *)to = opaque(*(const Word64 *)from);
    else *(Word32 *)to = opaque(*(const Word32 *)from);
}

#define EMULATOR_WHOLE(name, parameters, ...) \
    name() = default; \
    name parameters : __VA_ARGS__ { } \
    name(const name &from) { emulator::copy_whole<sizeof(name)>(this, &from); } \
    name &operator=(const name &from) { \
        emulator::copy_whole<sizeof(name)>(this, &from); \
        return *this; \
    }

#else

inline void count_memory(const void *, size_t) { }
inline void count_forget(const void *) { }
inline void count_launch(const char *, const void *, uint64_t, uint64_t) { }
inline void count_launch_end(void) { }
inline void count_block(const Worker *) { }
inline void count_block_end(void) { }
inline void count_met(int) { }
inline void count_call(CountKind, int = 1) { }
inline void count_ldmatrix(const void *) { }
inline void count_copy(const void *, const void *, int, int) { }
inline void count_work(const char *, uint64_t, uint64_t, double) { }
constexpr size_t SHARED_GAP = 0;
#define EMULATOR_UNCOUNTED
#define EMULATOR_APART
#define EMULATOR_WHOLE(name, parameters, ...)

#endif

}  // namespace emulator
