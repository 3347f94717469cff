// The runtime API, part 1: errors, the device, its properties. Environment variables describe it:
//
//   EMULATOR_MEMORY      bytes of device memory (8 GiB), to test what happens when it runs out
//   EMULATOR_DEVICES     number of devices (1; 0 is a machine without a GPU)
//   EMULATOR_CAPABILITY  compute capability times 10: 90 (the default, an H100), 75 ...
//   EMULATOR_DRIVER      the CUDA that the driver knows, 12080 for 12.8 (the toolkit's own)
//   CUDA_VISIBLE_DEVICES=3    one device is visible, number 3 of the machine: as a cluster hands
//                        each rank a GPU of its own
//
// Every function returns CUDA's error for a call that CUDA refuses. The last error other than
// cudaSuccess stays until cudaGetLastError returns it.
#pragma once
#include <map>
#include "../stream.h"

// ---- errors, with CUDA's numbers ----

#define EMULATOR_ERRORS(ERROR) \
    ERROR(cudaSuccess, 0, "no error") \
    ERROR(cudaErrorInvalidValue, 1, "invalid argument") \
    ERROR(cudaErrorMemoryAllocation, 2, "out of memory") \
    ERROR(cudaErrorInvalidConfiguration, 9, "invalid configuration argument") \
    ERROR(cudaErrorInsufficientDriver, 35, "CUDA driver version is insufficient") \
    ERROR(cudaErrorInvalidDeviceFunction, 98, "invalid device function") \
    ERROR(cudaErrorNoDevice, 100, "no CUDA-capable device is detected") \
    ERROR(cudaErrorInvalidDevice, 101, "invalid device ordinal") \
    ERROR(cudaErrorNoKernelImageForDevice, 209, "no kernel image is available for the device") \
    ERROR(cudaErrorUnsupportedPtxVersion, 222, "the PTX was compiled by a newer toolchain") \
    ERROR(cudaErrorNotReady, 600, "device not ready") \
    ERROR(cudaErrorStreamCaptureUnsupported, 900, \
          "operation not permitted when stream is capturing") \
    ERROR(cudaErrorCapturedEvent, 907, "operation not permitted on an event last recorded in a " \
          "capturing stream")

#define EMULATOR_ERROR_VALUE(name, value, text) name = value,
enum cudaError_t { EMULATOR_ERRORS(EMULATOR_ERROR_VALUE) };

inline const char *cudaGetErrorString(cudaError_t e) {
#define EMULATOR_ERROR_TEXT(name, value, text) case name: return text;
    switch (e) { EMULATOR_ERRORS(EMULATOR_ERROR_TEXT) }
    return "unrecognized error code";
}

// ---- the device ----

namespace emulator {

typedef std::map<char *, size_t> Memory;                     // allocations: where, how many bytes

struct Device {
    cudaError_t last_error;
    Memory allocations, pinned;        // device memory; pinned host memory
    std::map<const void *, size_t> dynamic_bytes;            // of kernels that may have more
    int current;                       // set by cudaSetDevice
};
inline Device &device = *new Device(); // never freed: what it holds is not either

inline long long setting(const char *name, long long otherwise) {
    const char *text = getenv(name);
    return text ? strtoll(text, nullptr, 10) : otherwise;
}

inline int device_count(void) {
    int there = (int)setting("EMULATOR_DEVICES", 1);
    return there > 0 && getenv("CUDA_VISIBLE_DEVICES") ? 1 : there;
}

// A driver runs programs built with its major version of CUDA, and with earlier ones.
inline int driver_version(void) { return (int)setting("EMULATOR_DRIVER", CUDART_VERSION); }

inline size_t memory_total(void) {
    return (size_t)setting("EMULATOR_MEMORY", 8ll << 30);
}

// Returns e, and keeps an error for cudaGetLastError.
inline cudaError_t result(cudaError_t e) {
    if (device_count() < 1) e = cudaErrorNoDevice;
    if (e != cudaSuccess) device.last_error = e;
    return e;
}

// ---- what ends the program while a stream captures ----

// A call that waits for stream s, or, with null, may wait for any: cudaMalloc for one.
inline void may_wait(cudaStream_t s = nullptr) {
    for (cudaStream_t other = &default_stream; other; other = other->next)
        if (other->captures && (!s || s == other))
            fail("a call that may wait for a stream that captures a graph: a GPU refuses it");
}

// An operation in s. One in the default stream would have to wait for the captured ones.
inline void may_run(cudaStream_t s) { if (s == &default_stream) may_wait(); }

}  // namespace emulator

inline cudaError_t cudaGetLastError(void) {
    cudaError_t e = emulator::device.last_error;
    emulator::device.last_error = cudaSuccess;
    return e;
}

inline cudaError_t cudaGetDeviceCount(int *count) {
    *count = emulator::device_count();
    return emulator::result(emulator::driver_version() / 1000 < CUDART_VERSION / 1000
                            ? cudaErrorInsufficientDriver : cudaSuccess);
}
inline cudaError_t cudaSetDevice(int i) {
    if (i < 0 || i >= emulator::device_count()) return emulator::result(cudaErrorInvalidDevice);
    emulator::device.current = i;
    return emulator::result(cudaSuccess);
}
inline cudaError_t cudaDeviceSynchronize(void) {
    emulator::may_wait();
    emulator::wait_for_all();
    return emulator::result(cudaSuccess);
}
inline cudaError_t cudaDriverGetVersion(int *version) {
    *version = emulator::device_count() > 0 ? emulator::driver_version() : 0;
    return cudaSuccess;
}
inline cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

struct cudaDeviceProp {
    char name[256];
    int major, minor, multiProcessorCount;
    size_t sharedMemPerBlockOptin, sharedMemPerMultiprocessor, reservedSharedMemPerBlock;
};

inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int) {
    int capability = (int)emulator::setting("EMULATOR_CAPABILITY", 90);
    *p = {};
    snprintf(p->name, sizeof p->name, "emulator on a CPU");
    p->major = capability / 10;
    p->minor = capability % 10;
    p->sharedMemPerBlockOptin = emulator::OPTIN_SHARED_LIMIT;
    p->sharedMemPerMultiprocessor = 228 << 10;
    p->reservedSharedMemPerBlock = 1 << 10;
    p->multiProcessorCount = 8;
    return emulator::result(cudaSuccess);
}
