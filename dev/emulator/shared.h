// Shared memory of a block: `__shared__` variables and the dynamic shared memory of a launch.
//
// rewrite.c turns a declaration into EMULATOR_SHARED. A variable is allocated when the block's
// first thread reaches its declaration, and freed when the block ends. It begins as NaNs: a kernel
// that reads an element before any thread has written it computes NaN. The limits are a GPU's.
#pragma once
#include "report.h"

namespace emulator {

// When accesses are counted, nothing else lies so many bytes behind a variable: NaNs, for a watch.
#ifdef EMULATOR_COUNT
constexpr size_t SHARED_GAP = 256;
#else
constexpr size_t SHARED_GAP = 0;
#endif

// Each variable is an allocation of its own, so that AddressSanitizer guards its ends.
inline void *shared_new(int slot, size_t bytes, const char *name) {
    void *p = nullptr;
    if (slot >= MAX_SHARED) fail("more than %d __shared__ variables", MAX_SHARED - 1);
    if (bytes && posix_memalign(&p, 128, bytes + SHARED_GAP))
        fail("no memory for __shared__ %s", name);
    if (bytes) memset(p, 0xFF, bytes + SHARED_GAP);          // NaN as float, double and bf16; -1
    worker.shared[slot] = { p, bytes };
    return p;
}

// Where a __shared__ variable lies in the block that this worker counts as number `serial`.
struct SharedSite { uint64_t serial; void *data; };

EMULATOR_APART EMULATOR_UNCOUNTED
inline void *static_shared(SharedSite *site, size_t bytes, const char *name) {
    if (!worker.grid) fail("__shared__ %s outside of a kernel", name);
    if (site->serial != worker.serial) {
        site->serial = worker.serial;
        site->data = shared_new(worker.shared_count++, bytes, name);
        worker.static_bytes += bytes;
        if (worker.static_bytes > STATIC_SHARED_LIMIT)
            fail("more than 48 KB of static __shared__ memory");
    }
    return site->data;
}

#define EMULATOR_SHARED(name, dims, ...) \
    static thread_local emulator::SharedSite name##_site; \
    auto &name = *(__VA_ARGS__ (*) dims)emulator::static_shared(&name##_site, \
                                                               sizeof(__VA_ARGS__ dims), #name)

inline void *dynamic_shared(void) {
    if (!worker.grid) fail("extern __shared__ outside of a kernel");
    return worker.shared[0].data;
}

}  // namespace emulator
