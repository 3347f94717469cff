// Finds data races in what side.c runs: an element that one thread of a parallel loop writes while
// another reads or writes it. gcc -fsanitize=thread calls a function of this file at each read and
// write. The race is found even if the threads happen to come one after another, and libgomp's own
// locks are not mistaken for races, as they are by gcc's libtsan. Built with -Ddynamic=static, so
// that each thread gets a part of a loop even if the first could do it all before others wake up.
#if defined __clang__ || !defined _OPENMP
#error "gcc with OpenMP is needed: clang's reductions read the memory of other threads"
#endif
#include <omp.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The first element that two threads shared, or NULL: without a lock; or in the order of the locks.
const void *_Atomic race_address, *_Atomic order_address;

// A region is a parallel loop, or what lies between two barriers. All threads enter it once.
static atomic_bool locked;
static atomic_int region, begun;
static int entered;                    // threads in this region; `locked` guards it
static _Thread_local int my_region, my_id, depth, exclusive;
static atomic_int ids;

static void lock(void) { while (atomic_exchange(&locked, true)) sched_yield(); }
static void unlock(void) { atomic_store(&locked, false); }

// `depth` counts the functions that a thread has entered in a parallel region. All threads begin
// together.
void __tsan_func_entry(void *caller) {
    (void)caller;
    if (!omp_in_parallel()) return;
    if (depth++ > 0) return;
    if (my_id == 0) my_id = atomic_fetch_add(&ids, 1) % 255 + 1;
    lock();
    if (entered++ == 0) region++;
    my_region = region;
    if (entered == omp_get_num_threads()) entered = 0, begun = region;
    unlock();
    while (begun != my_region) sched_yield();
}

void __tsan_func_exit(void) { if (depth > 0) depth--; }

// Replaces libgomp's barrier, since what follows it is another region.
void GOMP_barrier(void) {
    static int waiting;
    int old = region;
    if (!omp_in_parallel()) return;
    lock();
    if (++waiting == omp_get_num_threads()) {
        waiting = 0;
        region++;
    }
    unlock();
    while (region == old) sched_yield();
    my_region = region;
}

// Replace libgomp's locks: only one thread at a time does what lies between.
static atomic_bool one_thread;
static void exclusive_start(void) {
    if (exclusive++ == 0) while (atomic_exchange(&one_thread, true)) sched_yield();
}
static void exclusive_end(void) { if (--exclusive == 0) atomic_store(&one_thread, false); }
void GOMP_atomic_start(void) { exclusive_start(); }
void GOMP_atomic_end(void) { exclusive_end(); }
void GOMP_critical_start(void) { exclusive_start(); }
void GOMP_critical_end(void) { exclusive_end(); }
void GOMP_critical_name_start(void **name) { (void)name, exclusive_start(); }
void GOMP_critical_name_end(void **name) { (void)name, exclusive_end(); }

// Who touched 4 bytes last: address and region in the upper bits, then the thread, or EVERYBODY if
// several have read, and whether it wrote. Where two addresses share a cell, the later one wins: a
// race may be missed there, and none is invented. Arrays lie at round distances, so the upper bits
// choose the cell too.
enum { CELLS = 1 << 20, EVERYBODY = 0 };
static _Atomic uint64_t cells[CELLS];

static void touch(const void *p, bool writes, bool locked) {
    if (depth == 0) return;
    uint64_t at = (uintptr_t)p / 4, key = (at / CELLS << 24 | (my_region & 0xffffff)) << 9;
    _Atomic uint64_t *cell = &cells[(at ^ at / CELLS * 0x9E377) % CELLS];
    uint64_t old = *cell, new;
    do {
        uint64_t thread = my_id;
        if (old >> 9 == key >> 9) {
            bool other = (old >> 1 & 255) != thread;
            const void *_Atomic *found = locked ? &order_address : &race_address;
            if (other && (writes || (old & 1))) *found = *found ? *found : p;
            if (other) thread = EVERYBODY;
            new = key | thread << 1 | (old & 1) | writes;
        } else {
            new = key | thread << 1 | writes;
        }
    } while (new != old && !atomic_compare_exchange_weak(cell, &old, new));
}

static void touch_all(const void *at, size_t n, bool writes) {
    const char *p = at;
    for (size_t i = 0; depth > 0 && i < n; i += 4) touch(p + i, writes, exclusive > 0);
}

void __tsan_init(void) {}
void __tsan_read_range(void *p, size_t n) { touch_all(p, n, false); }
void __tsan_write_range(void *p, size_t n) { touch_all(p, n, true); }
// Neighbouring bytes share a cell, so one and two are not watched: no tensor has such elements.
#define HOOKS(n, watched) \
    void __tsan_read##n(void *p) { touch_all(p, watched, false); } \
    void __tsan_write##n(void *p) { touch_all(p, watched, true); } \
    void __tsan_unaligned_read##n(void *p) { touch_all(p, watched, false); } \
    void __tsan_unaligned_write##n(void *p) { touch_all(p, watched, true); }
HOOKS(1, 0)
HOOKS(2, 0)
HOOKS(4, 4)
HOOKS(8, 8)
HOOKS(16, 16)

// What `#pragma omp atomic` becomes: no race, but the order of the threads decides the bits. Of a
// compare-and-exchange gcc calls only the load before it, since it does not optimize here.
#define ATOMICS(bits, T) \
    T __tsan_atomic##bits##_load(const volatile T *p, int order) { \
        (void)order; \
        touch((const void *)p, true, true); \
        return __atomic_load_n(p, __ATOMIC_SEQ_CST); \
    } \
    void __tsan_atomic##bits##_store(volatile T *p, T x, int order) { \
        (void)order; \
        __atomic_store_n(p, x, __ATOMIC_SEQ_CST); \
    } \
    T __tsan_atomic##bits##_fetch_add(volatile T *p, T x, int order) { \
        (void)order; \
        touch((const void *)p, true, true); \
        return __atomic_fetch_add(p, x, __ATOMIC_SEQ_CST); \
    }
ATOMICS(32, uint32_t)
ATOMICS(64, uint64_t)
