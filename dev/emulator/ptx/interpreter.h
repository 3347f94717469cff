// What the files of this room share: a kernel as parse.cpp reads it, and a block while it runs.
//
//     parse.cpp           text to kernels
//     run.cpp             launches, blocks, warps; reports
//     memory.cpp          addresses, bounds, races, cp.async
//     instructions.cpp    loads and stores, jumps, barriers, collectives, tensor cores
//     arithmetic.cpp      what a lane computes for itself
#pragma once
#include <stdio.h>
#include <string.h>
#include <map>
#include <string>
#include <cuda_bf16.h>
#include "ptx.h"

namespace ptx {

// ---- a kernel as it is written ----

enum Type { NO_TYPE, PRED, U8, S8, U16, S16, U32, S32, U64, S64, BF16, F32, F64 };    // .b32 is U32
enum Space { GENERIC, GLOBAL, SHARED, PARAM };

inline int size_of(Type t) {
    static const int bytes[] = { 0, 1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 4, 8 };
    return bytes[t];
}

// An operand is a row of 32 registers, one a lane. Constants, addresses of variables and what is
// fixed for a thread, such as %tid.x, have rows too, which are filled before a warp starts.
struct Operand {
    std::vector<int> rows;             // several in {%r1, %r2}
    int64_t offset = 0;                // of [%rd1+16]
};

struct Source { int file = 0, line = 0, caller_file = 0, caller_line = 0; };

// What an instruction does is a function of a Step. A collective waits until all its members have
// come, and runs once for all: the lanes that operand `members` names, or the whole warp.
struct Step;
enum { ALONE = -1, WHOLE_WARP = -2 };
struct Meaning {
    const char *names;                 // separated by spaces; without types and vector widths
    void (*run)(Step &);
    int members = ALONE;
};
extern const Meaning instructions[], arithmetic[];                // each ends with a null name

struct Instruction {
    std::string text;
    Source source;
    const Meaning *meaning = nullptr;
    Type type = NO_TYPE, from = NO_TYPE;         // cvt.f32.bf16: F32 from BF16
    std::vector<Operand> operands;               // results first
    int guard = -1;                              // the row of %p1 in @%p1, or -1
    bool guard_negated = false;                  // @!%p1
    int target = -1;                             // of a bra
};

struct Variable { std::string name; size_t bytes, align, at; };

struct Kernel {
    std::string name;
    std::vector<Variable> parameters;
    std::vector<Instruction> code;
    int rows = 0;
    std::map<int, uint64_t> constants;           // rows that hold one number in all lanes
    std::map<int, std::string> specials;         // rows of %tid.x, %ctaid.y...
    size_t parameter_bytes = 0, shared_bytes = 0;
};

struct Program {
    std::map<std::string, Kernel> kernels;
    std::map<int, std::string> files;            // as Source numbers them
};
Program parse(const char *path);

// ---- a block while it runs ----

// When something happened: how many __syncthreads of the block and __syncwarps of the warp came
// before it.
struct Moment { uint32_t barriers, syncs; };

// What is known of two bytes of shared memory, to find races.
struct Cell {
    Moment written = { 0, 0 }, read = { 0, 0 };
    int writer = -1;                             // the thread that wrote them last
    int copying = -1;                            // the thread whose cp.async is on its way here
    int reading_warp = -1;                       // who has read them since the last barrier:
    uint32_t reading_lanes = 0;                  // these lanes of that warp, since its __syncwarp
    bool read_by_others = false;                 // other warps too
};

struct Copy { uint32_t to; uint64_t from; int bytes, read, group; };
struct Thread { std::vector<Copy> copies; int groups = 0; };      // groups that were committed

struct Warp {
    int number;
    std::vector<uint64_t> registers;             // 32 a row
    int pc[32] = {};                             // of each lane: it may go its own way
    uint32_t exited = 0, at_barrier = 0;         // lanes that do not run
    uint32_t in_collective = 0;                  // they wait at their pc for other lanes
    uint32_t syncs = 1;
};

struct Block {
    const Launch &launch;
    const Kernel &kernel;
    uint3 id;
    std::vector<uint8_t> parameters, shared;
    std::vector<Cell> cells;
    std::vector<Warp> warps;
    std::vector<Thread> threads;
    uint32_t barriers = 1;
    uint64_t steps = 0;
};

// One instruction for those lanes of a warp that are at it.
struct Step {
    Block &block;
    Warp &warp;
    const Instruction &i;
    uint32_t lanes;

    uint64_t *row(int operand, int part = 0) const {
        return &warp.registers[32 * (size_t)i.operands[operand].rows[part]];
    }
    int thread(int lane) const { return 32*warp.number + lane; }
};

template <class F> void for_lanes(uint32_t lanes, F f) {
    for (; lanes; lanes &= lanes - 1) f(__builtin_ctz(lanes));
}

// Both end the program with status 1. A fault is of a lane at its instruction.
#define PTX_FORMAT(n) __attribute__((format(printf, n, n + 1), noreturn))
void die(const char *format, ...) PTX_FORMAT(1);
void fault(const Step &s, int lane, const char *format, ...) PTX_FORMAT(3);

// Where an access goes in this process; a fault if it may not.
enum Access { READ, WRITE };
uint8_t *address(const Step &s, int lane, Space space, uint64_t at, int bytes, Access access);

// cp.async: the copy takes place in copies_finish, which leaves the last groups under way.
void copy_start(const Step &s, int lane, uint32_t to, uint64_t from, int bytes, int read);
void copies_finish(const Step &s, int lane, int groups_left);

}  // namespace ptx
