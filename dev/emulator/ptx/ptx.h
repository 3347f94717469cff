// What nvcc made of the kernels, run on a CPU: an interpreter of PTX under the emulator's launches.
//
// The emulator compiles the C++ side of every #ifdef EMULATOR, with a C++ compiler. A GPU gets the
// other side, through nvcc, as PTX: the text of a machine that is like a GPU, which ptxas or the
// driver turns into a GPU's own code. Here that text is executed, instruction by instruction.
// `make test PART=ptx` does all this; by hand:
//
//     nvcc -ptx -lineinfo -arch=compute_90 ... FILE.cu -o FILE.ptx
//     c++ -DEMULATOR_PTX -rdynamic (as for the emulator) the .cpp files of this folder -ldl -o FILE
//     EMULATOR_PTX=FILE.ptx ./FILE
//
// ---- how PTX reads ----
//
//     .visible .entry _Z12axpby_kernelPffPKffm(       a kernel, by the name it has in C++
//         .param .u64 ..._param_0,                    its arguments: here a pointer
//     ) {
//         .reg .pred %p<5>;                           registers %p0 to %p4; there are any number
//         ld.param.u64 %rd3, [..._param_0];
//         mov.u32 %r1, %ctaid.x;                      blockIdx.x
//         mul.wide.u32 %rd6, %r1, %r2;                64 bits = 32 bits times 32 bits
//         setp.ge.u64 %p1, %rd1, %rd5;                a predicate: %rd1 >= %rd5
//         @%p1 bra $L__BB0_9;                         a jump of those lanes for which it holds
//         ld.global.v4.f32 {%f69, %f70, %f71, %f72}, [%rd11+16];
//         bar.sync 0;                                 __syncthreads()
//
// ---- what is checked ----
//
// What breaks a rule ends the program with status 1 and a line that names kernel, block, thread,
// line of the source, address and instruction.
//
// - Alignment: an access of 16 bytes is at a multiple of 16. A shared variable is placed no better
//   aligned than it declares, so an access that relies on luck is found.
// - Bounds: shared memory within what the launch asked for, global memory within an allocation.
//   Arrays that a program carves out of one allocation are not told apart.
// - Collectives of a warp: all lanes that a mask names come to the same one; mma and ldmatrix are
//   for whole warps; no shuffle reads a lane that takes no part.
// - Races in shared memory: between threads of two warps without a __syncthreads, between lanes of
//   a warp without a __syncwarp, and with a cp.async that was not waited for (memory.cpp).
// - Anything that the interpreter does not know ends with a line that names it, when the text is
//   read. The tables of instructions.cpp and arithmetic.cpp are all that it knows.
//
// ---- what is not ----
//
// ptxas, registers, occupancy and time; races in global memory; the last bits of ex2.approx and of
// tensor cores, which round in their own way; whatever is not a kernel: cuBLASLt, NCCL, drivers.
#pragma once
#include <vector>
#include "../worker.h"

namespace ptx {

struct Range { uint64_t begin; size_t bytes; };
struct Argument { const void *data; size_t bytes; };

struct Launch {
    const void *kernel;                          // its function in this program, for its name
    emulator::Grid grid;
    std::vector<Argument> arguments;
    std::vector<Range> memory;                   // allocations: all that a kernel may access
};

// Runs all blocks of a kernel, several at once with OpenMP. Once the program ends, a line says how
// many kernels and instructions ran.
void launch(Launch l);

}  // namespace ptx
