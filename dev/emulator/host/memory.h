// The runtime API, part 2: device memory, pinned memory, copies.
//
// Device memory is malloc's, so that AddressSanitizer guards its ends, and begins as NaNs. A copy
// is queued in its stream when device or pinned memory is read; pageable memory is read before the
// call returns, and a copy into it is done when the call returns.
#pragma once
#include "devices.h"

namespace emulator {

// Whether these bytes lie in one of the allocations.
inline bool holds(const Memory &allocations, const void *p, size_t bytes) {
    auto after = allocations.upper_bound((char *)p);
    if (after == allocations.begin()) return false;
    --after;
    return (char *)p + bytes <= after->first + after->second;
}

inline bool on_device(const void *p, size_t bytes) { return holds(device.allocations, p, bytes); }

inline cudaError_t allocate(Memory *allocations, void **p, size_t bytes) {
    *p = nullptr;
    may_wait();
    if (bytes == 0) return result(cudaSuccess);
    if (posix_memalign(p, 256, bytes)) return result(cudaErrorMemoryAllocation);
    (*allocations)[(char *)*p] = bytes;
    memset(*p, 0xFF, bytes);
    return result(cudaSuccess);
}

// Waits for the device: queued operations may still use the memory.
inline cudaError_t release(Memory *allocations, void *p) {
    if (!p) return result(cudaSuccess);
    may_wait();
    if (!allocations->count((char *)p)) return result(cudaErrorInvalidValue);
    wait_for_all();
    allocations->erase((char *)p);
    free(p);
    return result(cudaSuccess);
}

inline size_t memory_left(void) {
    size_t left = memory_total();
    for (auto &a : device.allocations) left -= a.second;
    return left;
}

}  // namespace emulator

enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice,
                      cudaMemcpyDefault };

template <class T> inline cudaError_t cudaMalloc(T **p, size_t bytes) {
    if (bytes > emulator::memory_left()) return emulator::result(cudaErrorMemoryAllocation);
    cudaError_t e = emulator::allocate(&emulator::device.allocations, (void **)p, bytes);
    if (*p) emulator::count_memory(*p, bytes);
    return e;
}
inline cudaError_t cudaFree(void *p) {
    cudaError_t e = emulator::release(&emulator::device.allocations, p);
    if (e == cudaSuccess) emulator::count_forget(p);
    return e;
}

template <class T> inline cudaError_t cudaMallocHost(T **p, size_t bytes) {
    return emulator::allocate(&emulator::device.pinned, (void **)p, bytes);
}
inline cudaError_t cudaFreeHost(void *p) {
    return emulator::release(&emulator::device.pinned, p);
}

inline cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    *total = emulator::memory_total();
    *available = emulator::memory_left();
    return emulator::result(cudaSuccess);
}

namespace emulator {

// Source and destination must be where the direction says, each inside one allocation.
inline cudaError_t check_copy(const void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
    bool to_device = on_device(to, 0), from_device = on_device(from, 0);
    bool wants_to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool wants_from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (kind != cudaMemcpyDefault && (to_device != wants_to || from_device != wants_from))
        return cudaErrorInvalidValue;
    if ((to_device && !on_device(to, bytes)) || (from_device && !on_device(from, bytes)))
        return cudaErrorInvalidValue;
    return cudaSuccess;
}

// Pageable: neither device memory nor pinned host memory. A GPU cannot read it directly.
inline bool is_pageable(const void *p) {
    return !on_device(p, 0) && !holds(device.pinned, p, 0);
}

// Copies as a GPU does. What the device can address is copied when the stream gets there. A
// pageable source is staged before the call returns; a pageable destination is complete when it
// returns.
inline void copy(void *to, const void *from, size_t bytes, cudaStream_t s) {
    const char *begin = (const char *)from;
    Moment end;
    if (is_pageable(from)) {
        std::vector<char> staged(begin, begin + bytes);
        end = enqueue(s, [to, staged] { memcpy(to, staged.data(), staged.size()); });
    } else {
        end = enqueue(s, [=] { memmove(to, from, bytes); });
    }
    if (is_pageable(to)) wait_for(end);
}

}  // namespace emulator

inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t stream = nullptr) {
    cudaStream_t s = emulator::stream_of(stream);
    if (bytes == 0) return emulator::result(cudaSuccess);
    emulator::may_run(s);
    if (emulator::is_pageable(to) || emulator::is_pageable(from)) emulator::may_wait(s);
    cudaError_t e = emulator::check_copy(to, from, bytes, kind);
    if (e == cudaSuccess) emulator::copy(to, from, bytes, s);
    return emulator::result(e);
}

// Waits for the default stream before it reads pageable memory, and after a copy to the host or
// from pinned memory. A copy within the device returns at once.
inline cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
    bool within = emulator::on_device(to, 0) && emulator::on_device(from, 0);
    bool pageable = emulator::is_pageable(from);
    if (pageable) emulator::wait_for_stream(&emulator::default_stream);
    cudaError_t e = cudaMemcpyAsync(to, from, bytes, kind);
    if (!pageable && !within) emulator::wait_for_stream(&emulator::default_stream);
    return e;
}

inline cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes,
                                   cudaStream_t stream = nullptr) {
    cudaStream_t s = emulator::stream_of(stream);
    if (bytes && !emulator::on_device(p, bytes)) return emulator::result(cudaErrorInvalidValue);
    emulator::may_run(s);
    if (bytes)
        emulator::enqueue(s, [=] {
            memset(p, value, bytes);
            emulator::count_work("cudaMemset", 0, bytes, 0.0);
        });
    return emulator::result(cudaSuccess);
}
inline cudaError_t cudaMemset(void *p, int value, size_t bytes) {
    return cudaMemsetAsync(p, value, bytes);
}
