// The host's side of CUDA: launches, device memory, streams and events. What may go on while the
// host does something else is queued (stream.h); by default it is done when the call returns.
//
//   EMULATOR_MEMORY      bytes of device memory (8 GiB): to see what happens when there is no more
//   EMULATOR_DEVICES     how many devices there are (1; 0 is a machine without a GPU)
//   EMULATOR_CAPABILITY  what they can, as 90 (the default, an H100) or 75
#pragma once
#include <type_traits>
#include "stream.h"

// ---- errors, with CUDA's numbers ----

#define EMULATOR_ERRORS(ERROR) \
    ERROR(cudaSuccess, 0, "no error") \
    ERROR(cudaErrorInvalidValue, 1, "invalid argument") \
    ERROR(cudaErrorMemoryAllocation, 2, "out of memory") \
    ERROR(cudaErrorInvalidConfiguration, 9, "invalid configuration argument") \
    ERROR(cudaErrorInvalidDevicePointer, 17, "invalid device pointer") \
    ERROR(cudaErrorInvalidMemcpyDirection, 21, "invalid copy direction for memcpy") \
    ERROR(cudaErrorInsufficientDriver, 35, "CUDA driver version is insufficient") \
    ERROR(cudaErrorInvalidDeviceFunction, 98, "invalid device function") \
    ERROR(cudaErrorNoDevice, 100, "no CUDA-capable device is detected") \
    ERROR(cudaErrorInvalidDevice, 101, "invalid device ordinal") \
    ERROR(cudaErrorNoKernelImageForDevice, 209, "no kernel image is available for the device") \
    ERROR(cudaErrorUnsupportedPtxVersion, 222, "the PTX was compiled by a newer toolchain") \
    ERROR(cudaErrorInvalidResourceHandle, 400, "invalid resource handle") \
    ERROR(cudaErrorNotReady, 600, "device not ready") \
    ERROR(cudaErrorLaunchOutOfResources, 701, "too many resources requested for launch") \
    ERROR(cudaErrorNotSupported, 801, "operation not supported")

#define EMULATOR_ERROR_VALUE(name, value, text) name = value,
enum cudaError_t { EMULATOR_ERRORS(EMULATOR_ERROR_VALUE) };

static inline const char *cudaGetErrorString(cudaError_t e) {
#define EMULATOR_ERROR_TEXT(name, value, text) case name: return text;
    switch (e) { EMULATOR_ERRORS(EMULATOR_ERROR_TEXT) }
    return "unrecognized error code";
}

static inline const char *cudaGetErrorName(cudaError_t e) {
#define EMULATOR_ERROR_NAME(name, value, text) case name: return #name;
    switch (e) { EMULATOR_ERRORS(EMULATOR_ERROR_NAME) }
    return "unrecognized error code";
}

// ---- the device ----

namespace emulator {

struct Allocation { char *data; size_t bytes; Allocation *next; };

struct Attribute { const void *kernel; int dynamic_bytes; Attribute *next; };

struct Device {
    cudaError_t last_error;
    Allocation *allocations, *pinned;  // on the device; of the host's memory, what it can reach
    size_t used;
    Attribute *attributes;             // kernels that asked for more dynamic shared memory
    int current;                       // what cudaSetDevice said
};
static Device device;

static inline long long setting(const char *name, long long otherwise) {
    const char *text = getenv(name);
    return text ? strtoll(text, nullptr, 10) : otherwise;
}

static inline int device_count(void) { return (int)setting("EMULATOR_DEVICES", 1); }

static inline size_t memory_total(void) {
    return (size_t)setting("EMULATOR_MEMORY", 8ll << 30);
}

// Errors are returned, and the last one stays for cudaGetLastError.
static inline cudaError_t result(cudaError_t e) {
    if (device_count() < 1) e = cudaErrorNoDevice;
    if (e != cudaSuccess) device.last_error = e;
    return e;
}

}  // namespace emulator

static inline cudaError_t cudaGetLastError(void) {
    cudaError_t e = emulator::device.last_error;
    emulator::device.last_error = cudaSuccess;
    return e;
}
static inline cudaError_t cudaPeekAtLastError(void) { return emulator::device.last_error; }

static inline cudaError_t cudaGetDeviceCount(int *count) {
    *count = emulator::device_count();
    return emulator::result(cudaSuccess);
}
static inline cudaError_t cudaSetDevice(int i) {
    if (i < 0 || i >= emulator::device_count()) return emulator::result(cudaErrorInvalidDevice);
    emulator::device.current = i;
    return emulator::result(cudaSuccess);
}
static inline cudaError_t cudaGetDevice(int *i) {
    *i = emulator::device.current;
    return emulator::result(cudaSuccess);
}
static inline cudaError_t cudaDeviceSynchronize(void) {
    emulator::wait_for_all();
    return emulator::result(cudaSuccess);
}
static inline cudaError_t cudaDeviceReset(void) { return cudaDeviceSynchronize(); }
static inline cudaError_t cudaDriverGetVersion(int *version) {
    *version = emulator::device_count() > 0 ? CUDART_VERSION : 0;
    return cudaSuccess;
}
static inline cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

struct cudaDeviceProp {
    char name[256];
    int major, minor;
    size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin, sharedMemPerMultiprocessor;
    size_t reservedSharedMemPerBlock;
    int regsPerBlock, warpSize, maxThreadsPerBlock, maxThreadsPerMultiProcessor;
    int maxBlocksPerMultiProcessor, multiProcessorCount, maxThreadsDim[3], maxGridSize[3];
    int l2CacheSize, memoryBusWidth, ECCEnabled, integrated, concurrentKernels;
};

static inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int i) {
    if (i < 0 || i >= emulator::device_count()) return emulator::result(cudaErrorInvalidDevice);
    int capability = (int)emulator::setting("EMULATOR_CAPABILITY", 90);
    *p = {};
    snprintf(p->name, sizeof p->name, "emulator on a CPU");
    p->major = capability / 10;
    p->minor = capability % 10;
    p->totalGlobalMem = emulator::memory_total();
    p->sharedMemPerBlock = emulator::STATIC_SHARED_LIMIT;
    p->sharedMemPerBlockOptin = emulator::OPTIN_SHARED_LIMIT;
    p->sharedMemPerMultiprocessor = 228 << 10;
    p->reservedSharedMemPerBlock = 1 << 10;
    p->regsPerBlock = 65536;
    p->warpSize = 32;
    p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = emulator::MAX_THREADS;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7FFFFFFF;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->maxThreadsPerMultiProcessor = 2048;
    p->maxBlocksPerMultiProcessor = 32;
    p->multiProcessorCount = 8;
    p->l2CacheSize = 1 << 20;
    p->memoryBusWidth = 512;
    return emulator::result(cudaSuccess);
}

// ---- memory ----

namespace emulator {

// The allocation of a list that holds these bytes, or null.
static inline Allocation *find(Allocation *list, const void *p, size_t bytes) {
    const char *begin = (const char *)p;
    for (Allocation *a = list; a; a = a->next)
        if (begin >= a->data && begin <= a->data + a->bytes &&
            bytes <= (size_t)(a->data + a->bytes - begin)) return a;
    return nullptr;
}

static inline Allocation *allocation_of(const void *p, size_t bytes) {
    return find(device.allocations, p, bytes);
}

// Memory that nobody has written holds NaNs. It is malloc's, so AddressSanitizer guards its ends.
static inline cudaError_t allocate(Allocation **list, void **p, size_t bytes) {
    Allocation *a = (Allocation *)malloc(sizeof *a);
    if (!a || posix_memalign(p, 256, bytes)) { free(a); return cudaErrorMemoryAllocation; }
    *a = { (char *)*p, bytes, *list };
    *list = a;
    memset(*p, 0xFF, bytes);
    return cudaSuccess;
}

static inline bool is_allocated(const Allocation *list, const void *p) {
    while (list && list->data != p) list = list->next;
    return list;
}

static inline size_t release(Allocation **list, void *p) {
    while ((*list)->data != p) list = &(*list)->next;
    Allocation *found = *list;
    size_t bytes = found->bytes;
    *list = found->next;
    free(found->data);
    free(found);
    return bytes;
}

}  // namespace emulator

enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost,
                      cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
enum { cudaHostAllocDefault = 0 };

template <class T> static inline cudaError_t cudaMalloc(T **p, size_t bytes) {
    *p = nullptr;
    if (bytes == 0) return emulator::result(cudaSuccess);
    if (bytes > emulator::memory_total() - emulator::device.used)
        return emulator::result(cudaErrorMemoryAllocation);
    cudaError_t e = emulator::allocate(&emulator::device.allocations, (void **)p, bytes);
    if (e == cudaSuccess) emulator::device.used += bytes;
    return emulator::result(e);
}

// Waits for the device: somebody may still work with it.
static inline cudaError_t cudaFree(void *p) {
    if (!p) return emulator::result(cudaSuccess);
    if (!emulator::is_allocated(emulator::device.allocations, p))
        return emulator::result(cudaErrorInvalidValue);
    emulator::wait_for_all();
    emulator::device.used -= emulator::release(&emulator::device.allocations, p);
    return emulator::result(cudaSuccess);
}

template <class T> static inline cudaError_t cudaMallocAsync(T **p, size_t bytes, cudaStream_t) {
    return cudaMalloc(p, bytes);
}
static inline cudaError_t cudaFreeAsync(void *p, cudaStream_t stream) {
    cudaStream_t s = emulator::stream_of(stream);
    if (!p) return emulator::result(cudaSuccess);
    if (!s || !emulator::is_allocated(emulator::device.allocations, p))
        return emulator::result(cudaErrorInvalidValue);
    emulator::enqueue(s, [=] {
        emulator::device.used -= emulator::release(&emulator::device.allocations, p);
    });
    return emulator::result(cudaSuccess);
}

template <class T> static inline cudaError_t cudaMallocHost(T **p, size_t bytes, unsigned = 0) {
    *p = nullptr;
    if (bytes == 0) return emulator::result(cudaSuccess);
    return emulator::result(emulator::allocate(&emulator::device.pinned, (void **)p, bytes));
}
template <class T> static inline cudaError_t cudaHostAlloc(T **p, size_t bytes, unsigned) {
    return cudaMallocHost(p, bytes);
}
static inline cudaError_t cudaFreeHost(void *p) {
    if (!p) return emulator::result(cudaSuccess);
    if (!emulator::is_allocated(emulator::device.pinned, p))
        return emulator::result(cudaErrorInvalidValue);
    emulator::wait_for_all();
    emulator::release(&emulator::device.pinned, p);
    return emulator::result(cudaSuccess);
}

static inline cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    *total = emulator::memory_total();
    *available = *total - emulator::device.used;
    return emulator::result(cudaSuccess);
}

namespace emulator {

// Each end of a copy must be where the direction says, and lie inside one allocation.
static inline cudaError_t check_copy(const void *to, const void *from, size_t bytes,
                                     cudaMemcpyKind kind) {
    bool to_device = allocation_of(to, 0), from_device = allocation_of(from, 0);
    bool wants_to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool wants_from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (kind != cudaMemcpyDefault && (to_device != wants_to || from_device != wants_from))
        return cudaErrorInvalidValue;
    if ((to_device && !allocation_of(to, bytes)) || (from_device && !allocation_of(from, bytes)))
        return cudaErrorInvalidValue;
    return cudaSuccess;
}

// The device reaches its own memory and the host's pinned memory.
static inline bool is_pageable(const void *p) {
    return !allocation_of(p, 0) && !find(device.pinned, p, 0);
}

// As a GPU copies: what it can reach, when the stream has come so far. Pageable memory is read
// before the call returns, and written when it returns.
static inline void copy(void *to, const void *from, size_t bytes, cudaStream_t s) {
    bool stage = order() != AT_ONCE && is_pageable(from);
    if (stage && is_pageable(to)) {
        wait_for(end_of(s));
        memmove(to, from, bytes);
    } else if (stage) {
        std::vector<char> staged((const char *)from, (const char *)from + bytes);
        enqueue(s, [to, staged] { memcpy(to, staged.data(), staged.size()); });
    } else {
        Moment end = enqueue(s, [=] { memmove(to, from, bytes); });
        if (is_pageable(to)) wait_for(end);
    }
}

}  // namespace emulator

static inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes,
                                          cudaMemcpyKind kind, cudaStream_t stream = nullptr) {
    cudaStream_t s = emulator::stream_of(stream);
    if (!s) return emulator::result(cudaErrorInvalidResourceHandle);
    if (bytes == 0) return emulator::result(cudaSuccess);
    cudaError_t e = emulator::check_copy(to, from, bytes, kind);
    if (e == cudaSuccess) emulator::copy(to, from, bytes, s);
    return emulator::result(e);
}

// Waits before it reads pageable memory, and after any copy to the host or from pinned memory. One
// that stays on the device nobody waits for.
static inline cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes,
                                     cudaMemcpyKind kind) {
    bool on_device = emulator::allocation_of(to, 0) && emulator::allocation_of(from, 0);
    bool pageable = emulator::is_pageable(from);
    if (pageable) emulator::wait_for_stream(&emulator::default_stream);
    cudaError_t e = cudaMemcpyAsync(to, from, bytes, kind);
    if (!pageable && !on_device) emulator::wait_for_stream(&emulator::default_stream);
    return e;
}

static inline cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes,
                                          cudaStream_t stream = nullptr) {
    cudaStream_t s = emulator::stream_of(stream);
    if (!s) return emulator::result(cudaErrorInvalidResourceHandle);
    if (bytes && !emulator::allocation_of(p, bytes)) return emulator::result(cudaErrorInvalidValue);
    if (bytes) emulator::enqueue(s, [=] { memset(p, value, bytes); });
    return emulator::result(cudaSuccess);
}
static inline cudaError_t cudaMemset(void *p, int value, size_t bytes) {
    return cudaMemsetAsync(p, value, bytes);
}

// Variables marked __device__ or __constant__.
template <class T>
static inline cudaError_t cudaMemcpyToSymbol(T &symbol, const void *from, size_t bytes,
                                             size_t offset = 0) {
    if (offset > sizeof symbol || bytes > sizeof symbol - offset)
        return emulator::result(cudaErrorInvalidValue);
    emulator::wait_for_stream(&emulator::default_stream);
    memcpy((char *)&symbol + offset, from, bytes);
    return emulator::result(cudaSuccess);
}
template <class T>
static inline cudaError_t cudaMemcpyFromSymbol(void *to, const T &symbol, size_t bytes,
                                               size_t offset = 0) {
    if (offset > sizeof symbol || bytes > sizeof symbol - offset)
        return emulator::result(cudaErrorInvalidValue);
    emulator::wait_for_stream(&emulator::default_stream);
    memcpy(to, (const char *)&symbol + offset, bytes);
    return emulator::result(cudaSuccess);
}

// ---- streams, events, graphs ----

static inline cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return emulator::result(cudaSuccess);
}
static inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags,
                                                       int priority) {
    if (flags > cudaStreamNonBlocking) return emulator::result(cudaErrorInvalidValue);
    cudaStream_t s = new emulator_stream();
    s->flags = flags;
    s->priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    s->next = emulator::default_stream.next;
    emulator::default_stream.next = *stream = s;
    return emulator::result(cudaSuccess);
}
static inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}
static inline cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}
static inline cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    cudaStream_t s = emulator::stream_of(stream);
    if (!s) return emulator::result(cudaErrorInvalidResourceHandle);
    *priority = s->priority;
    return emulator::result(cudaSuccess);
}
// What is queued still runs.
static inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    cudaStream_t s = emulator::stream_of(stream);
    if (!s || s == &emulator::default_stream)
        return emulator::result(cudaErrorInvalidResourceHandle);
    s->destroyed = true;
    return emulator::result(cudaSuccess);
}
static inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    cudaStream_t s = emulator::stream_of(stream);
    if (!s) return emulator::result(cudaErrorInvalidResourceHandle);
    emulator::wait_for_stream(s);
    return emulator::result(cudaSuccess);
}
static inline cudaError_t cudaStreamQuery(cudaStream_t stream) {
    cudaStream_t s = emulator::stream_of(stream);
    if (!s) return emulator::result(cudaErrorInvalidResourceHandle);
    return emulator::result(emulator::ask_for(emulator::end_of(s)) ? cudaSuccess
                                                                  : cudaErrorNotReady);
}

// An event is a moment of a stream, the one it was recorded at last. It lives until it is destroyed
// and nothing is queued that will write its time.
typedef struct emulator_event {
    emulator::Moment moment;
    double seconds;
    unsigned flags;
    int records, queued;               // how often it was recorded; how many of these are queued
    bool destroyed;
} *cudaEvent_t;
enum { cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2 };

static inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) {
    *e = new emulator_event();
    (*e)->flags = flags;
    return emulator::result(cudaSuccess);
}
static inline cudaError_t cudaEventCreate(cudaEvent_t *e) {
    return cudaEventCreateWithFlags(e, cudaEventDefault);
}
static inline cudaError_t cudaEventDestroy(cudaEvent_t e) {
    if (!e) return emulator::result(cudaErrorInvalidResourceHandle);
    e->destroyed = true;
    if (e->queued == 0) delete e;
    return emulator::result(cudaSuccess);
}
static inline cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t stream = nullptr) {
    cudaStream_t s = emulator::stream_of(stream);
    if (!e || !s) return emulator::result(cudaErrorInvalidResourceHandle);
    int number = ++e->records;
    e->queued++;
    e->moment = emulator::enqueue(s, [=] {
        if (number == e->records) e->seconds = emulator::now();
        if (--e->queued == 0 && e->destroyed) delete e;
    });
    return emulator::result(cudaSuccess);
}
// Waits for the moment that the event stands for now: recording it anew does not move it.
static inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t e, unsigned = 0) {
    cudaStream_t s = emulator::stream_of(stream);
    if (!e || !s) return emulator::result(cudaErrorInvalidResourceHandle);
    emulator::enqueue(s, [] { }, { e->moment });
    return emulator::result(cudaSuccess);
}
static inline cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    if (!e) return emulator::result(cudaErrorInvalidResourceHandle);
    emulator::wait_for(e->moment);
    return emulator::result(cudaSuccess);
}
static inline cudaError_t cudaEventQuery(cudaEvent_t e) {
    if (!e) return emulator::result(cudaErrorInvalidResourceHandle);
    return emulator::result(emulator::ask_for(e->moment) ? cudaSuccess : cudaErrorNotReady);
}
static inline cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    if (!from || !to || !from->records || !to->records ||
        ((from->flags | to->flags) & cudaEventDisableTiming))
        return emulator::result(cudaErrorInvalidResourceHandle);
    if (!emulator::passed(from->moment) || !emulator::passed(to->moment))
        return emulator::result(cudaErrorNotReady);
    *ms = (float)(1e3 * (to->seconds - from->seconds));
    return emulator::result(cudaSuccess);
}

// Graphs record launches, and there is nothing to gain from that here.
typedef struct emulator_graph *cudaGraph_t;
typedef struct emulator_graph_exec *cudaGraphExec_t;
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                             cudaStreamCaptureModeRelaxed };

static inline cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
    return emulator::result(cudaErrorNotSupported);
}
static inline cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *) {
    return emulator::result(cudaErrorNotSupported);
}
static inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t *, cudaGraph_t,
                                               unsigned long long = 0) {
    return emulator::result(cudaErrorNotSupported);
}
static inline cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) {
    return emulator::result(cudaErrorNotSupported);
}
static inline cudaError_t cudaGraphDestroy(cudaGraph_t) {
    return emulator::result(cudaErrorNotSupported);
}
static inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) {
    return emulator::result(cudaErrorNotSupported);
}

// ---- kernels ----

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
                         cudaFuncAttributePreferredSharedMemoryCarveout = 9 };

namespace emulator {

static inline size_t dynamic_limit(const void *kernel) {
    for (Attribute *a = device.attributes; a; a = a->next)
        if (a->kernel == kernel) return (size_t)a->dynamic_bytes;
    return STATIC_SHARED_LIMIT;
}

// Programs for this emulator are built for sm_80 and later, so to say.
static inline cudaError_t can_run(void) {
    return setting("EMULATOR_CAPABILITY", 90) < 80 ? cudaErrorNoKernelImageForDevice : cudaSuccess;
}

static inline cudaError_t check_launch(dim3 grid, dim3 block, size_t shared, const void *kernel) {
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

// The arguments are evaluated once, by the launch; every thread of the grid gets copies of them.
template <class Kernel, class... Arguments>
static inline void run(const Config &c, const void *address, Kernel kernel,
                       Arguments... arguments) {
    cudaStream_t s = stream_of(c.stream);
    cudaError_t e = check_launch(c.grid, c.block, c.shared, address);
    if (result(s ? e : cudaErrorInvalidResourceHandle) != cudaSuccess) return;
    enqueue(s, [=] {
        auto thread = [&] { kernel(arguments...); };
        Grid g = { c.name, c.grid, c.block, c.shared,
                   [](void *p) { (*(decltype(thread) *)p)(); }, &thread };
        grid_run(&g);
    });
}

// What stands left of the arguments in a launch: a kernel and its configuration.
template <class... Parameters> struct Launch {
    Config config;
    void (*kernel)(Parameters...);
    void operator()(Parameters... arguments) const {
        run(config, (const void *)kernel, kernel, arguments...);
    }
};

template <class Call> struct DeducedLaunch {
    Config config;
    Call call;
    template <class... Arguments> void operator()(Arguments... arguments) const {
        run(config, nullptr, call, arguments...);
    }
};

template <class... Parameters>
static inline Launch<Parameters...> launch(const char *name, void (*kernel)(Parameters...),
                                           dim3 grid, dim3 block, size_t shared = 0,
                                           cudaStream_t stream = nullptr) {
    return { { name, grid, block, shared, stream }, kernel };
}

template <class Call>
static inline DeducedLaunch<Call> launch(const char *name, Call call, dim3 grid, dim3 block,
                                         size_t shared = 0, cudaStream_t stream = nullptr) {
    return { { name, grid, block, shared, stream }, call };
}

// A kernel's name in a launch is either that of one function, which has an address, or that of a
// template whose arguments the compiler deduces from the call's, so that it can only be called. The
// compiler tries the first, and where that makes no sense takes the second.
#define EMULATOR_KERNEL(...) #__VA_ARGS__, emulator::address_or_call( \
    [&](auto tag) -> decltype(emulator::address(tag, __VA_ARGS__)) { \
        return emulator::address(tag, __VA_ARGS__); \
    }, \
    [=](auto... arguments) { __VA_ARGS__(arguments...); })

template <class Tag, class... Parameters>
static inline auto address(Tag, void (*kernel)(Parameters...)) { return kernel; }

template <class Address, class Call>
static inline auto address_or_call(Address address, Call call) {
    if constexpr (std::is_invocable<Address, int>::value) return address(0);
    else return call;
}

}  // namespace emulator

template <class Kernel>
static inline cudaError_t cudaFuncSetAttribute(Kernel *kernel, cudaFuncAttribute what, int value) {
    if (what != cudaFuncAttributeMaxDynamicSharedMemorySize) return emulator::result(cudaSuccess);
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

struct cudaFuncAttributes {
    size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
    int maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion, maxDynamicSharedSizeBytes;
};

// Registers and memory are the compiler's business, and not known here.
template <class Kernel>
static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, Kernel *kernel) {
    *a = {};
    a->maxThreadsPerBlock = emulator::MAX_THREADS;
    a->maxDynamicSharedSizeBytes = (int)emulator::dynamic_limit((const void *)kernel);
    a->ptxVersion = a->binaryVersion = (int)emulator::setting("EMULATOR_CAPABILITY", 90);
    return emulator::result(emulator::can_run());
}

// How many blocks a multiprocessor holds at once, going by threads and shared memory alone.
template <class Kernel>
static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        int *blocks, Kernel *, int threads, size_t shared) {
    if (threads < 1 || threads > emulator::MAX_THREADS)
        return emulator::result(cudaErrorInvalidValue);
    size_t by_threads = 2048 / (size_t)((threads + 31) / 32 * 32);
    size_t by_memory = (228 << 10) / (shared + (1 << 10));
    size_t fit = by_threads < by_memory ? by_threads : by_memory;
    *blocks = (int)(fit < 32 ? fit : 32);
    return emulator::result(cudaSuccess);
}
