// The runtime API, part 4: kernels. rewrite.c turns kernel<<<grid, block>>>(arguments) into
//
//     emulator::launch(EMULATOR_KERNEL(kernel), grid, block)(arguments)
//
// launch() returns a function of the kernel's arguments, which checks the launch as CUDA does and
// queues it in its stream. A template's arguments are written out: kernel<float><<<grid, block>>>.
#pragma once
#include "../block.h"
#include "devices.h"
#ifdef EMULATOR_PTX
#include "../ptx/ptx.h"
#endif

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };

namespace emulator {

// As if every program had been built for sm_80 and later.
inline cudaError_t can_run(void) {
    return setting("EMULATOR_CAPABILITY", 90) < 80 ? cudaErrorNoKernelImageForDevice : cudaSuccess;
}

inline cudaError_t check_launch(dim3 grid, dim3 block, size_t shared, const void *kernel) {
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (can_run() != cudaSuccess) return can_run();
    if (grid.x < 1 || grid.y < 1 || grid.z < 1 || threads < 1 ||
        grid.x > 0x7FFFFFFFu || grid.y > 65535 || grid.z > 65535 ||
        block.x > 1024 || block.y > 1024 || block.z > 64 || threads > MAX_THREADS)
        return cudaErrorInvalidConfiguration;
    auto own = device.dynamic_bytes.find(kernel);
    size_t limit = own == device.dynamic_bytes.end() ? STATIC_SHARED_LIMIT : own->second;
    return shared > limit ? cudaErrorInvalidValue : cudaSuccess;
}

#ifdef EMULATOR_PTX
// In place of grid_run: what nvcc made of the kernel.
inline void run_ptx(const Grid &g, const void *kernel, std::vector<ptx::Argument> given) {
    std::vector<ptx::Range> memory;
    for (const Memory *all : { &device.allocations, &device.pinned })
        for (auto &a : *all) memory.push_back({ (uint64_t)a.first, a.second });
    ptx::launch({ kernel, g, given, memory });
}
#endif

// The arguments are evaluated once, at the launch; every thread gets copies.
template <class... Parameters>
inline auto launch(const char *name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                   size_t shared = 0, cudaStream_t stream = nullptr) {
    return [=](Parameters... arguments) {
        const void *address = (const void *)kernel;
        cudaStream_t s = stream_of(stream);
        cudaError_t e = check_launch(grid, block, shared, address);
        if (result(e) != cudaSuccess) return;
        may_run(s);
        enqueue(s, [=] {
            auto thread = [&] { kernel(arguments...); };
            Grid g = { name, grid, block, shared,
                       [](void *p) { (*(decltype(thread) *)p)(); }, &thread };
            count_launch(name, address, (uint64_t)grid.x * grid.y * grid.z,
                         (uint64_t)block.x * block.y * block.z);
#ifdef EMULATOR_PTX
            run_ptx(g, address, { { &arguments, sizeof arguments }... });
#else
            grid_run(&g);
#endif
            count_launch_end();
        });
    };
}

#define EMULATOR_KERNEL(...) #__VA_ARGS__, __VA_ARGS__

}  // namespace emulator

template <class Kernel>
inline cudaError_t cudaFuncSetAttribute(Kernel *kernel, cudaFuncAttribute, int value) {
    if (value < 0 || (size_t)value > emulator::OPTIN_SHARED_LIMIT)
        return emulator::result(cudaErrorInvalidValue);
    emulator::device.dynamic_bytes[(const void *)kernel] = (size_t)value;
    return emulator::result(cudaSuccess);
}

// Its attributes are not known here. Whether the kernel can run at all is.
struct cudaFuncAttributes { };

template <class Kernel>
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *, Kernel *) {
    return emulator::result(emulator::can_run());
}
