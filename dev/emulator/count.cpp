// The counters of count.h. This file is compiled without -fsanitize=thread. It defines the
// functions that the rest of the program, compiled with it, calls before each load and store.
#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <cuda_runtime.h>

namespace emulator {

constexpr uintptr_t SECTOR = 32;       // bytes: global memory is moved in these
constexpr uintptr_t BANKS = 32;        // of shared memory, 4 bytes wide

// ---- what is counted, and where ----

// One instruction of one warp: the addresses that its lanes passed. lanes: bit l for lane l.
struct Request { unsigned lanes; uint32_t bytes; uintptr_t at[32]; };

// An instruction, as one warp meets it.
struct Site {
    uint32_t seen[32];                 // requests of each lane since the warp last met
    std::vector<Request> requests;     // of these, the first `used` are valid
    size_t used;
    Tally tally;
};

struct Hash {
    size_t operator()(const Instruction &i) const {
        return (i.address * 8 + i.kind) * 64 + (uint64_t)i.part;
    }
};
typedef std::unordered_map<Instruction, Site, Hash> Sites;

struct WarpCounts {
    Sites sites;
    std::vector<Sites::value_type *> touched;    // sites with requests
};

// A core's counters of the launch that runs.
struct Counter { WarpCounts warps[MAX_WARPS]; };

// Memory from cudaMalloc, and which of its sectors the launch has read and written.
struct Region { uintptr_t begin, end; std::vector<uint64_t> read, written; };

static std::vector<Region> regions;
static std::vector<Counter *> counters;          // of all cores
static std::vector<CountedKernel> kernels;
static size_t launched;                          // the kernel that runs
static std::mutex lock;
static thread_local Counter *counter;            // this core's
static thread_local const Worker *running;       // null outside of kernels

CountWatch count_watch;

// What the watch itself reads and writes is not the kernel's.
static void watched(CountKind kind, const void *p, size_t bytes) {
    const Worker *w = running;
    running = nullptr;
    if (count_watch) count_watch(kind, p, bytes);
    running = w;
}

const std::vector<CountedKernel> &counted(void) { return kernels; }

void count_clear(void) { kernels.clear(); }

Tally CountedKernel::total(CountKind kind) const {
    Tally sum = {};
    for (auto &i : instructions) if (i.first.kind == kind) sum += i.second;
    return sum;
}

// ---- one request ----

static Region *region_of(uintptr_t at) {
    for (Region &r : regions) if (at >= r.begin && at < r.end) return &r;
    return nullptr;
}

static void mark_sector(uintptr_t sector, bool write) {
    Region *r = region_of(sector * SECTOR);
    if (!r) return;
    uintptr_t i = sector - r->begin / SECTOR;
    uint64_t *word = &(write ? r->written : r->read)[i / 64], bit = 1ull << i % 64;
    if (!(__atomic_load_n(word, __ATOMIC_RELAXED) & bit))
        __atomic_fetch_or(word, bit, __ATOMIC_RELAXED);
}

// Lanes that a clock serves: 128 bytes of them, so 8 lanes of 16 bytes.
static int lanes_a_pass(uint32_t bytes) { return bytes <= 4 ? 32 : (int)(128 / bytes); }

static uint64_t least_passes(const Request &r) {
    uint64_t passes = 0;
    int n = lanes_a_pass(r.bytes);
    for (int first = 0; first < 32; first += n)
        for (int l = first; l < first + n; l++)
            if (r.lanes >> l & 1) { passes++; break; }
    return passes;
}

// Distinct sectors, and how many the distinct bytes would fill.
static void tally_global(Tally *t, const Request &r, CountKind kind) {
    uintptr_t at[32], end = 0, bytes = 0, sectors = 0, last = UINTPTR_MAX;
    int n = 0;
    for (int l = 0; l < 32; l++) if (r.lanes >> l & 1) at[n++] = r.at[l];
    std::sort(at, at + n);
    for (int i = 0; i < n; i++) {
        uintptr_t to = at[i] + r.bytes;
        bytes += to - (at[i] > end ? at[i] : std::min(end, to));
        end = std::max(end, to);
        for (uintptr_t s = at[i] / SECTOR; s <= (to - 1) / SECTOR; s++) {
            if (last != UINTPTR_MAX && s <= last) continue;
            last = s;
            sectors++;
            if (kind != GLOBAL_STORE) mark_sector(s, false);
            if (kind != GLOBAL_LOAD) mark_sector(s, true);
        }
    }
    uint64_t least = least_passes(r);
    t->sectors += sectors;
    t->ideal += (bytes + SECTOR - 1) / SECTOR;
    t->least += least;
    t->passes += std::max(least, (uint64_t)(sectors + 3) / 4);
}

// Bank conflicts: the lanes of a pass want different words of the same bank, one word a clock.
static void tally_shared(Tally *t, const Request &r) {
    int group = lanes_a_pass(r.bytes);
    for (int first = 0; first < 32; first += group) {
        uintptr_t words[64], in_bank[BANKS] = {}, most = 0;
        int n = 0;
        for (int l = first; l < first + group; l++)
            for (uintptr_t w = r.at[l] / 4; r.lanes >> l & 1 && w <= (r.at[l] + r.bytes - 1) / 4;
                 w++) words[n++] = w;
        std::sort(words, words + n);
        n = (int)(std::unique(words, words + n) - words);
        for (int i = 0; i < n; i++) most = std::max(most, ++in_bank[words[i] % BANKS]);
        t->passes += most;
    }
    t->least += least_passes(r);
}

static void tally_add(Tally *t, const Request &r, CountKind kind) {
    unsigned lanes = (unsigned)__builtin_popcount(r.lanes);
    t->requests++;
    t->lanes += lanes;
    t->bytes += (uint64_t)lanes * r.bytes;
    if (kind <= ATOMIC) tally_global(t, r, kind);
    else if (kind <= SHARED_STORE) tally_shared(t, r);
}

// ---- the requests of a warp ----

// The running lane's access.
static void note(Instruction what, const void *at, uint32_t bytes) {
    int i = (int)(running->current - running->fibers), lane = i % 32;
    WarpCounts *w = &counter->warps[i / 32];
    Sites::value_type *site = &*w->sites.try_emplace(what).first;
    Site *s = &site->second;
    uint32_t nth = s->seen[lane]++;
    if (s->used == 0) w->touched.push_back(site);
    if (nth >= s->used) {
        if (nth >= s->requests.size()) s->requests.push_back({});
        s->requests[s->used++].lanes = 0;
    }
    Request *r = &s->requests[nth];
    r->lanes |= 1u << lane;
    r->bytes = bytes;
    r->at[lane] = (uintptr_t)at;
}

// The warp's lanes are in one place again: what they have asked for is complete.
void count_met(int warp) {
    WarpCounts *w = &counter->warps[warp];
    for (Sites::value_type *site : w->touched) {
        Site *s = &site->second;
        for (size_t k = 0; k < s->used; k++) tally_add(&s->tally, s->requests[k], site->first.kind);
        s->used = 0;
        std::fill(s->seen, s->seen + 32, 0u);
    }
    w->touched.clear();
}

// ---- what the emulator tells ----

void count_memory(const void *p, size_t bytes) {
    std::vector<uint64_t> none((bytes / SECTOR + 64) / 64);
    regions.push_back({ (uintptr_t)p, (uintptr_t)p + bytes, none, none });
}

void count_forget(const void *p) {
    for (size_t i = 0; i < regions.size(); i++)
        if (regions[i].begin == (uintptr_t)p) regions.erase(regions.begin() + (long)i--);
}

static CountedKernel *kernel_find(const char *name, const void *address) {
    for (CountedKernel &k : kernels) if (k.name == name && k.address == address) return &k;
    kernels.push_back({ name, address, 0, 0, 0, 0, 0, 0.0, {} });
    return &kernels.back();
}

void count_launch(const char *name, const void *address, uint64_t blocks, uint64_t threads) {
    CountedKernel *k = kernel_find(name, address);
    launched = (size_t)(k - kernels.data());
    k->launches++;
    k->blocks += blocks;
    k->warps += blocks * ((threads + 31) / 32);
}

static uint64_t take_sectors(std::vector<uint64_t> *sectors) {
    uint64_t n = 0;
    for (uint64_t &word : *sectors) {
        n += (uint64_t)__builtin_popcountll(word);
        word = 0;
    }
    return n;
}

void count_launch_end(void) {
    CountedKernel *k = &kernels[launched];
    for (Region &r : regions) {
        k->read += SECTOR * take_sectors(&r.read);
        k->written += SECTOR * take_sectors(&r.written);
    }
    for (Counter *c : counters)
        for (WarpCounts &w : c->warps) {
            for (auto &site : w.sites) k->instructions[site.first] += site.second.tally;
            w.sites.clear();
        }
}

void count_work(const char *name, uint64_t read, uint64_t written, double flops) {
    CountedKernel *k = kernel_find(name, nullptr);
    k->launches++;
    k->read += read;
    k->written += written;
    k->flops += flops;
}

void count_block(const Worker *w) {
    if (!counter) {
        counter = new Counter;
        std::lock_guard<std::mutex> guard(lock);
        counters.push_back(counter);
    }
    running = w;
}

void count_block_end(void) {
    for (int warp = 0; running && warp < running->warps; warp++) count_met(warp);
    running = nullptr;
}

static uintptr_t caller(void *address) { return (uintptr_t)address; }
#define CALLER caller(__builtin_return_address(0))

void count_call(CountKind kind, int instructions) {
    if (running && kind == BARRIER) watched(kind, nullptr, 0);
    for (int i = 0; running && i < instructions; i++) note({ CALLER, kind, i }, nullptr, 0);
}

void count_ldmatrix(const void *row) { note({ CALLER, SHARED_LOAD, 0 }, row, 16); }

void count_copy(const void *to, const void *from, int bytes, int read) {
    if (read > 0) note({ CALLER, GLOBAL_LOAD, 0 }, from, (uint32_t)read);
    note({ CALLER, SHARED_STORE, 0 }, to, (uint32_t)bytes);
}

// ---- what the compiler tells ----

static bool is_shared(uintptr_t at) {
    for (int i = 0; i < running->shared_count; i++) {
        uintptr_t begin = (uintptr_t)running->shared[i].data;
        if (at >= begin && at < begin + running->shared[i].bytes) return true;
    }
    return false;
}

__attribute__((noinline))
static void touch_memory(void *p, size_t bytes, CountKind kind, uintptr_t address) {
    uintptr_t at = (uintptr_t)p;
    bool shared = is_shared(at);
    if (shared) kind = kind == GLOBAL_LOAD ? SHARED_LOAD : SHARED_STORE;
    watched(kind, p, bytes);
    if (!shared && !region_of(at)) return;
    for (int part = 0; bytes > 0; part++) {
        size_t some = std::min(bytes, (size_t)16);
        note({ address, kind, part }, (char *)p + 16*part, (uint32_t)some);
        bytes -= some;
    }
}

// Most accesses are to the thread's stack, its local variables, or to the emulator's own variables.
static inline void touch(void *p, size_t bytes, CountKind kind, uintptr_t address) {
    const Worker *w = running;
    if (!w || w->current == &w->home) return;
    uintptr_t at = (uintptr_t)p;
    if (at - (uintptr_t)w->current->stack < STACK_BYTES || at - (uintptr_t)w < sizeof *w ||
        at - (uintptr_t)w->fibers < MAX_THREADS * sizeof *w->fibers) return;
    touch_memory(p, bytes, kind, address);
}

}  // namespace emulator

using namespace emulator;

extern "C" {

void __tsan_init(void) { }
void __tsan_func_entry(void *) { }
void __tsan_func_exit(void) { }
void __tsan_vptr_update(void **, void *) { }
void __tsan_vptr_read(void **) { }
void __tsan_read_range(void *p, size_t n) { touch(p, n, GLOBAL_LOAD, CALLER); }
void __tsan_write_range(void *p, size_t n) { touch(p, n, GLOBAL_STORE, CALLER); }

#define ACCESS(n) \
    void __tsan_read##n(void *p) { touch(p, n, GLOBAL_LOAD, CALLER); } \
    void __tsan_write##n(void *p) { touch(p, n, GLOBAL_STORE, CALLER); } \
    void __tsan_unaligned_read##n(void *p) { touch(p, n, GLOBAL_LOAD, CALLER); } \
    void __tsan_unaligned_write##n(void *p) { touch(p, n, GLOBAL_STORE, CALLER); }
ACCESS(1) ACCESS(2) ACCESS(4) ACCESS(8) ACCESS(16)

// Atomics are replaced, so those of atomicAdd are also carried out here. An update is counted once,
// where it is stored.
uint32_t __tsan_atomic32_load(const volatile uint32_t *p, int) {
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}
int __tsan_atomic32_compare_exchange_strong(volatile uint32_t *p, uint32_t *old, uint32_t x, int,
                                            int) {
    touch((void *)p, sizeof x, ATOMIC, CALLER);
    return __atomic_compare_exchange_n(p, old, x, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

}
