// The part of CUDA that this project uses, on a CPU: see ../README.md.
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifndef EMULATOR
#define EMULATOR 1
#endif
#define CUDART_VERSION 13000

// ---- qualifiers that say where code runs: here all of it runs on the CPU ----

#ifdef EMULATOR_COUNT
#define __global__ __attribute__((flatten))      // each call in a kernel has an address of its own
#else
#define __global__
#endif
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))

// ---- short vectors, aligned as a GPU requires for one load ----

#include "../whole.h"

#define EMULATOR_VECTOR(type, name, bytes) \
    struct alignas(2*sizeof(type)) name##2 { \
        type x, y; \
        EMULATOR_WHOLE(name##2, (type x, type y), x(x), y(y)) \
    }; \
    struct name##3 { type x, y, z; }; \
    struct alignas(bytes) name##4 { \
        type x, y, z, w; \
        EMULATOR_WHOLE(name##4, (type x, type y, type z, type w), x(x), y(y), z(z), w(w)) \
    }; \
    static inline name##2 make_##name##2(type x, type y) { return { x, y }; } \
    static inline name##3 make_##name##3(type x, type y, type z) { return { x, y, z }; } \
    static inline name##4 make_##name##4(type x, type y, type z, type w) { return { x, y, z, w }; }
EMULATOR_VECTOR(unsigned char, uchar, 4)
EMULATOR_VECTOR(short, short, 8)
EMULATOR_VECTOR(unsigned short, ushort, 8)
EMULATOR_VECTOR(int, int, 16)
EMULATOR_VECTOR(unsigned, uint, 16)
EMULATOR_VECTOR(float, float, 16)
EMULATOR_VECTOR(long long, longlong, 16)
EMULATOR_VECTOR(unsigned long long, ulonglong, 16)
EMULATOR_VECTOR(double, double, 16)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) { }
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) { }
};

#include "../block.h"
#include "../warp.h"
#include "../tensor_core.h"
#include "../device.h"
#include "../host/memory.h"
#include "../host/events.h"
#include "../host/graphs.h"
#include "../host/launch.h"
