// The runtime API, part 4: kernels. rewrite.c turns kernel<<<grid, block>>>(arguments) into
//
//     emulator::launch(EMULATOR_KERNEL(kernel), grid, block)(arguments)
//
// launch() returns an object with the configuration; calling it checks the launch as CUDA does and
// queues it in its stream. A template's arguments are written out: kernel<float><<<grid, block>>>.
#pragma once
#include "../block.h"
#include "devices.h"
#ifdef EMULATOR_PTX
#include "../ptx/ptx.h"
#endif

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };

namespace emulator {

inline size_t dynamic_limit(const void *kernel) {
    for (Attribute *a = device.attributes; a; a = a->next)
        if (a->kernel == kernel) return (size_t)a->dynamic_bytes;
    return STATIC_SHARED_LIMIT;
}

// As if every program had been built for sm_80 and later.
inline cudaError_t can_run(void) {
    return setting("EMULATOR_CAPABILITY", 90) < 80 ? cudaErrorNoKernelImageForDevice : cudaSuccess;
}

inline cudaError_t check_launch(dim3 grid, dim3 block, size_t shared, const void *kernel) {
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (can_run() != cudaSuccess) return can_run();
    if (grid.x < 1 || grid.y < 1 || grid.z < 1 || threads < 1) return cudaErrorInvalidConfiguration;
    if (grid.x > 0x7FFFFFFFu || grid.y > 65535 || grid.z > 65535)
        return cudaErrorInvalidConfiguration;
    if (block.x > 1024 || block.y > 1024 || block.z > 64 || threads > MAX_THREADS)
        return cudaErrorInvalidConfiguration;
    return shared > dynamic_limit(kernel) ? cudaErrorInvalidValue : cudaSuccess;
}

struct Config { const char *name; dim3 grid, block; size_t shared; cudaStream_t stream; };

#ifdef EMULATOR_PTX
// In place of grid_run: what nvcc made of the kernel.
inline void run_ptx(const Grid &g, const void *kernel, std::vector<ptx::Argument> given) {
    std::vector<ptx::Range> memory;
    for (Allocation *list : { device.allocations, device.pinned })
        for (Allocation *a = list; a; a = a->next)
            memory.push_back({ (uint64_t)a->data, a->bytes });
    ptx::launch({ kernel, { g.grid.x, g.grid.y, g.grid.z }, { g.block.x, g.block.y, g.block.z },
                  g.dynamic_bytes, given, memory });
}
#endif

// The arguments are evaluated once, at the launch; every thread gets copies.
template <class Kernel, class... Arguments>
inline void run(const Config &c, const void *address, Kernel kernel,
                       Arguments... arguments) {
    cudaStream_t s = stream_of(c.stream);
    cudaError_t e = check_launch(c.grid, c.block, c.shared, address);
    if (s && e == cudaSuccess) e = refuse_operation(s);
    if (result(s ? e : cudaErrorInvalidResourceHandle) != cudaSuccess) return;
    enqueue(s, [=] {
        auto thread = [&] { kernel(arguments...); };
        Grid g = { c.name, c.grid, c.block, c.shared,
                   [](void *p) { (*(decltype(thread) *)p)(); }, &thread };
#ifdef EMULATOR_COUNT
        count_launch(c.name, address, (uint64_t)c.grid.x * c.grid.y * c.grid.z,
                     (uint64_t)c.block.x * c.block.y * c.block.z);
#endif
#ifdef EMULATOR_PTX
        run_ptx(g, address, { { &arguments, sizeof arguments }... });
#else
        grid_run(&g);
#endif
        count_launch_end();
    });
}

// A kernel with its configuration, waiting for the arguments.
template <class... Parameters> struct Launch {
    Config config;
    void (*kernel)(Parameters...);
    void operator()(Parameters... arguments) const {
        run(config, (const void *)kernel, kernel, arguments...);
    }
};

template <class... Parameters>
inline Launch<Parameters...> launch(const char *name, void (*kernel)(Parameters...),
                                           dim3 grid, dim3 block, size_t shared = 0,
                                           cudaStream_t stream = nullptr) {
    return { { name, grid, block, shared, stream }, kernel };
}

#define EMULATOR_KERNEL(...) #__VA_ARGS__, __VA_ARGS__

}  // namespace emulator

template <class Kernel>
inline cudaError_t cudaFuncSetAttribute(Kernel *kernel, cudaFuncAttribute, int value) {
    if (value < 0 || (size_t)value > emulator::OPTIN_SHARED_LIMIT)
        return emulator::result(cudaErrorInvalidValue);
    emulator::Attribute *a = emulator::device.attributes;
    while (a && a->kernel != (const void *)kernel) a = a->next;
    if (!a) {
        a = (emulator::Attribute *)calloc(1, sizeof *a);
        if (!a) return emulator::result(cudaErrorMemoryAllocation);
        a->kernel = (const void *)kernel;
        a->next = emulator::device.attributes;
        emulator::device.attributes = a;
    }
    a->dynamic_bytes = value;
    return emulator::result(cudaSuccess);
}

// Register counts and memory use are not known here. Whether the kernel can run at all is.
struct cudaFuncAttributes { int binaryVersion; };

template <class Kernel>
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, Kernel *) {
    a->binaryVersion = (int)emulator::setting("EMULATOR_CAPABILITY", 90);
    return emulator::result(emulator::can_run());
}
