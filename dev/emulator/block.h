// A block of threads on one core. Each thread is a fiber; it runs until it must wait for others, at
// a barrier or in a warp collective, and then another one that can run goes on. Unless asked to
// shuffle, the order is always the same: a warp goes on as long as one of its lanes can, its lanes
// in order, then the next warp. So a race gives the same wrong answer every time.
//
// What a block must get right to be worth running here:
//   1. All threads that have not exited meet at the same __syncthreads: barrier().
//   2. All lanes that a mask names, and that have not exited, meet in the same call: collective().
//   3. Nobody reads shared memory before it was written, for it begins as NaNs: shared_new().
// What breaks rule 1 or 2 is reported with the kernel's name, block, thread, file and line.
#pragma once
#include <stdarg.h>
#include <string.h>
#include "fiber.h"

namespace emulator {

constexpr int MAX_THREADS = 1024, MAX_WARPS = 32, MAX_SHARED = 64, MAX_COPIES = 64;
constexpr size_t STATIC_SHARED_LIMIT = 48 << 10;        // what a kernel may declare
constexpr size_t OPTIN_SHARED_LIMIT = 227 << 10;        // what it may ask for: sm_90's limit

// A call that waits, as reports name it.
struct Place { const char *call, *file; int line; };

typedef void (*Combine)(void **operands, unsigned lanes);

// A cp.async under way (tensor_core.h).
struct Copy { void *to; const void *from; int bytes, read, group; };

// One CUDA thread.
struct Fiber {
    Context context;
    char *stack;                       // null until it first runs, and again when it has exited
    uint3 thread;                      // threadIdx
    Place collective;                  // the warp collective it waits in, or waited in last:
    unsigned mask;                     // with which lanes,
    void *operands;                    // what it brought,
    Combine combine;                   // and what will be done with it
    void *fake_stack;                  // AddressSanitizer's
    int copy_count, copy_group;        // cp.async: how many are under way; the group that is filled
};

// What all blocks of a launch share.
struct Grid {
    const char *kernel;
    dim3 grid, block;
    size_t dynamic_bytes;
    void (*thread)(void *arguments);   // runs the kernel for the thread whose turn it is
    void *arguments;
};

struct SharedMemory { void *data; size_t bytes; };

// The block that this OpenMP thread runs, and its threads. Sets of threads are bit masks: bit l of
// ready[w] is lane l of warp w. Every thread that is not running is in exactly one of the sets.
struct Worker {
    const Grid *grid;                  // null outside of kernels
    uint3 block;                       // blockIdx
    uint64_t serial;                   // counts this worker's blocks
    Fiber *current, *previous;         // who runs, and who ran before
    Fiber *fibers;                     // (MAX_THREADS), by linear thread index
    Copy *copies;                      // (MAX_THREADS,MAX_COPIES), those under way
    Fiber home;                        // the worker itself
    int warps, alive;
    unsigned ready[MAX_WARPS], at_barrier[MAX_WARPS], in_collective[MAX_WARPS], exited[MAX_WARPS];
    int arrived, votes;                // at the barrier, and with a vote that is not 0
    int last_arrived, last_votes;      // the same for the barrier that was passed last
    Place barrier;                     // where all of them wait
    SharedMemory shared[MAX_SHARED];   // shared[0] is the dynamic one
    int shared_count;
    size_t static_bytes;
    char *free_stacks[MAX_THREADS];
    int free_count;
    char *home_stack;                  // AddressSanitizer wants to know
    size_t home_bytes;
    uint64_t random;                   // 0: do not shuffle
};
static thread_local Worker worker = {};

// ---- reports ----

static inline int index_of(const Fiber *f) { return (int)(f - worker.fibers); }

static inline void print_place(const char *verb, const Place *p) {
    fprintf(stderr, "%s %s, %s:%d", verb, p->call, p->file, p->line);
}

static inline void print_thread(const Fiber *f) {
    fprintf(stderr, "thread (%u,%u,%u)", f->thread.x, f->thread.y, f->thread.z);
}

static inline void print_block(void) {
    uint3 b = worker.block;
    fprintf(stderr, "emulator: kernel %s, block (%u,%u,%u)", worker.grid->kernel, b.x, b.y, b.z);
}

// Of several workers that have something to report, the first one has the word.
static inline void begin_report(void) {
    static int reporting;
    while (__atomic_exchange_n(&reporting, 1, __ATOMIC_SEQ_CST)) pause();
    fflush(stdout);
}

// Reports what the current thread did, and ends the program; a debugger's breakpoint goes here.
__attribute__((format(printf, 1, 2), noreturn, noinline))
static void fail(const char *fmt, ...) {
    begin_report();
    char what[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    if (worker.grid) {
        print_block();
        if (worker.current != &worker.home) { fprintf(stderr, ", "); print_thread(worker.current); }
        fprintf(stderr, ": %s\n", what);
    } else {
        fprintf(stderr, "emulator: %s\n", what);            // at once: other ranks write as well
    }
    _exit(1);
}

static inline bool is_in(const unsigned *set, int i) { return set[i/32] >> i%32 & 1; }

static inline void print_state(int i) {
    bool waits = is_in(worker.in_collective, i);
    if (is_in(worker.at_barrier, i)) print_place("waits at", &worker.barrier);
    else if (waits) print_place("waits in", &worker.fibers[i].collective);
    else fprintf(stderr, "could go on");
}

// Whether two lanes of a warp wait in the same collective.
static inline bool same_collective(const Fiber *a, const Fiber *b) {
    return a->mask == b->mask && a->combine == b->combine &&
           a->collective.line == b->collective.line;
}

// The first lane that thread i, in a collective, waits for in vain.
static inline int missing_lane(int i) {
    for (int k = i & ~31; k < (i & ~31) + 32; k++) {
        if (!(worker.fibers[i].mask >> k%32 & 1) || is_in(worker.exited, k)) continue;
        if (!is_in(worker.in_collective, k) ||
            !same_collective(&worker.fibers[i], &worker.fibers[k])) return k;
    }
    return i;
}

// One line for all threads of a warp that wait as thread i does, told by the first of them.
static inline void print_waiting(int i) {
    bool collective = is_in(worker.in_collective, i);
    const unsigned *set = collective ? worker.in_collective : worker.at_barrier;
    int more = 0;
    for (int k = i & ~31; k < (i & ~31) + 32; k++) {
        if (k == i || !is_in(set, k)) continue;
        if (collective && !same_collective(&worker.fibers[i], &worker.fibers[k])) continue;
        if (k < i) return;
        more++;
    }
    fprintf(stderr, "    ");
    print_thread(&worker.fibers[i]);
    if (more) fprintf(stderr, ", as %d more of its warp,", more);
    fprintf(stderr, " ");
    print_state(i);
    if (collective) {
        int missing = missing_lane(i);
        fprintf(stderr, ", with mask %08x, for ", worker.fibers[i].mask);
        print_thread(&worker.fibers[missing]);
        fprintf(stderr, ", which ");
        print_state(missing);
    }
    fprintf(stderr, "\n");
}

// Nobody can go on: tells who waits where, and for whom.
__attribute__((noreturn, noinline))
static void fail_stuck(void) {
    int total = (int)(worker.grid->block.x * worker.grid->block.y * worker.grid->block.z);
    begin_report();
    print_block();
    fprintf(stderr, ": %s: %d of %d threads wait, %d have exited, and nobody can go on\n",
            worker.arrived ? "barrier divergence" : "deadlock", worker.alive, total,
            total - worker.alive);
    for (int i = 0; i < total; i++)
        if (is_in(worker.at_barrier, i) || is_in(worker.in_collective, i)) print_waiting(i);
    _exit(1);
}

// ---- whose turn it is ----

// A random number of 32 bits (xorshift).
static inline unsigned random_bits(void) {
    worker.random ^= worker.random << 13;
    worker.random ^= worker.random >> 7;
    worker.random ^= worker.random << 17;
    return (unsigned)(worker.random >> 32);
}

// The first of the lanes from `from` on, round the warp.
static inline int first_lane(unsigned lanes, int from) {
    unsigned after = lanes & (~0u << from);
    return __builtin_ctz(after ? after : lanes);
}

// Takes a thread out of the ready ones; null when there is none.
static inline Fiber *take_ready(void) {
    int warp = index_of(worker.current) / 32, from = index_of(worker.current) % 32;
    if (worker.current == &worker.home) warp = from = 0;
    if (worker.random) {
        warp = (int)(random_bits() % (unsigned)worker.warps);
        from = (int)(random_bits() % 32);
    }
    for (int tried = 0; tried < worker.warps; tried++) {
        if (worker.ready[warp]) {
            int lane = first_lane(worker.ready[warp], from);
            worker.ready[warp] &= ~(1u << lane);
            return &worker.fibers[warp*32 + lane];
        }
        warp = warp + 1 < worker.warps ? warp + 1 : 0;
        if (!worker.random) from = 0;
    }
    return nullptr;
}

static void fiber_main(void);

// The other side of a switch: AddressSanitizer must know which stack it stands on.
static inline void arrived_on(void *fake_stack) {
#ifdef EMULATOR_ASAN
    const void *bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(fake_stack, &bottom, &bytes);
    if (worker.previous == &worker.home) {
        worker.home_stack = (char *)bottom;
        worker.home_bytes = bytes;
    }
#else
    (void)fake_stack;
#endif
}

// Gives a thread a stack, and on it what it will do when it is switched to.
static inline void prepare(Fiber *f) {
    f->stack = worker.free_count ? worker.free_stacks[--worker.free_count] : stack_new();
#ifdef EMULATOR_ASAN                             // the last one who had it never returned
    ASAN_UNPOISON_MEMORY_REGION(f->stack, STACK_BYTES);
#endif
    // Stacks start at different places in their pages: else all would share a few cache lines.
    size_t shift = (size_t)(index_of(f) % 32) * 128;
    context_start(&f->context, f->stack, STACK_BYTES - shift, fiber_main);
}

// Leaves this fiber for another; returns when somebody switches back. A fiber that is done for
// good never does.
static inline void switch_to(Fiber *next, bool done) {
    Fiber *me = worker.current;
    if (next != &worker.home && !next->stack) prepare(next);
    worker.previous = me;
    worker.current = next;
#ifdef EMULATOR_ASAN
    bool home = next == &worker.home;
    __sanitizer_start_switch_fiber(done ? nullptr : &me->fake_stack,
                                   home ? worker.home_stack : next->stack,
                                   home ? worker.home_bytes : STACK_BYTES);
#else
    (void)done;
#endif
    context_switch(&me->context, &next->context);
    arrived_on(me->fake_stack);
}

// Lets others run until this thread may go on.
static inline void wait_for_turn(void) {
    Fiber *next = take_ready();
    if (!next) fail_stuck();
    if (next != worker.current) switch_to(next, false);
}

// A thread that could go on: with shuffling, others may come first.
static inline void offer_turn(void) {
    int i = index_of(worker.current);
    if (!worker.random) return;
    worker.ready[i/32] |= 1u << i%32;
    wait_for_turn();
}

// ---- barriers ----

static inline void release_barrier(void) {
    for (int w = 0; w < worker.warps; w++) {
        worker.ready[w] |= worker.at_barrier[w];
        worker.at_barrier[w] = 0;
    }
    worker.last_arrived = worker.arrived;
    worker.last_votes = worker.votes;
    worker.arrived = worker.votes = 0;
}

__attribute__((noreturn, noinline))
static void fail_divergence(const Place *here) {
    Place first = worker.barrier;
    fail("barrier divergence: it waits at %s, %s:%d, others of its block at %s, %s:%d", here->call,
         here->file, here->line, first.call, first.file, first.line);
}

// Waits until all threads of the block that have not exited are here. The last one lets all go on.
static inline void barrier(bool vote, Place here) {
    if (!worker.grid) fail("%s outside of a kernel, %s:%d", here.call, here.file, here.line);
    if (worker.arrived == 0) worker.barrier = here;
    else if (here.line != worker.barrier.line || here.file != worker.barrier.file)
        fail_divergence(&here);
    worker.votes += vote;
    if (++worker.arrived == worker.alive) {
        release_barrier();
        offer_turn();
        return;
    }
    int i = index_of(worker.current);
    worker.at_barrier[i/32] |= 1u << i%32;
    wait_for_turn();
}

// ---- warp collectives ----

// If all lanes that f waits for are there, does the work for all of them, and lets them go on.
static inline bool finish_collective(Fiber *f) {
    int warp = index_of(f) / 32;
    unsigned lanes = f->mask & ~worker.exited[warp];
    void *operands[32];
    if (lanes & ~worker.in_collective[warp]) return false;
    for (unsigned left = lanes; left; left &= left - 1) {
        int lane = __builtin_ctz(left);
        Fiber *other = &worker.fibers[warp*32 + lane];
        if (!same_collective(f, other)) return false;
        operands[lane] = other->operands;
    }
    f->combine(operands, lanes);
    worker.in_collective[warp] &= ~lanes;
    worker.ready[warp] |= lanes;
    return true;
}

// Lanes of a warp that do something together. Each brings operands, in a struct of its own; the
// last of those named by the mask finds all of them, by lane, and writes every lane's result there.
static inline void collective(unsigned mask, void *operands, Combine combine, Place here) {
    Fiber *me = worker.current;
    if (!worker.grid) fail("%s outside of a kernel, %s:%d", here.call, here.file, here.line);
    int i = index_of(me), warp = i / 32, lane = i % 32;
    if (!(mask >> lane & 1))
        fail("%s with mask %08x, which leaves out the caller, lane %d, %s:%d", here.call, mask,
             lane, here.file, here.line);
    me->collective = here;
    me->mask = mask;
    me->operands = operands;
    me->combine = combine;
    worker.in_collective[warp] |= 1u << lane;
    if (finish_collective(me)) {
        worker.ready[warp] &= ~(1u << lane);
        offer_turn();
    } else {
        wait_for_turn();
    }
}

// ---- shared memory ----

// Every variable is an allocation of its own, so that AddressSanitizer sees what lies beyond it.
static inline void *shared_new(int slot, size_t bytes, const char *name) {
    void *p = nullptr;
    if (slot >= MAX_SHARED) fail("more than %d __shared__ variables", MAX_SHARED - 1);
    if (bytes && posix_memalign(&p, 128, bytes)) fail("no memory for __shared__ %s", name);
    if (bytes) memset(p, 0xFF, bytes);           // NaN as float, double and bf16; -1 as an integer
    worker.shared[slot] = { p, bytes };
    return p;
}

// What a __shared__ variable keeps from one thread of a block to the next.
struct SharedSite { uint64_t serial; void *data; };

static inline void *static_shared(SharedSite *site, size_t bytes, const char *name) {
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

static inline void *dynamic_shared(void) {
    if (!worker.grid) fail("extern __shared__ outside of a kernel");
    return worker.shared[0].data;
}

// ---- a block, from its first thread to its last ----

// A thread that has exited counts as arrived, at barriers and in its warp's collectives.
static inline void thread_exit(void) {
    int i = index_of(worker.current), warp = i / 32;
    worker.exited[warp] |= 1u << i%32;
    if (--worker.alive == worker.arrived && worker.alive > 0) release_barrier();
    for (int lane = 0; worker.in_collective[warp] && lane < 32; lane++)
        if (worker.in_collective[warp] >> lane & 1)
            finish_collective(&worker.fibers[warp*32 + lane]);
}

// What a new stack runs: a thread from beginning to end, and on the same stack the next one that
// has not begun yet. Threads that never wait thus need one stack and no switch.
static void fiber_main(void) {
    arrived_on(nullptr);
    for (;;) {
        Fiber *me = worker.current;
        worker.grid->thread(worker.grid->arguments);
        thread_exit();
        Fiber *next = take_ready();
        if (!next && worker.alive > 0) fail_stuck();
        char *stack = me->stack;
        me->stack = nullptr;
        if (next && !next->stack) {
            next->stack = stack;
            worker.current = next;
        } else {
            worker.free_stacks[worker.free_count++] = stack;
            switch_to(next ? next : &worker.home, true);
        }
    }
}

static inline uint64_t mix(uint64_t x) {         // splitmix64: neighbours become strangers
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static inline void block_begin(const Grid *grid, uint3 block) {
    int threads = (int)(grid->block.x * grid->block.y * grid->block.z);
    worker.grid = grid;
    worker.block = block;
    worker.serial++;
    worker.warps = (threads + 31) / 32;
    worker.alive = threads;
    worker.arrived = worker.votes = 0;
    for (int w = 0; w < worker.warps; w++) {
        int lanes = threads - 32*w < 32 ? threads - 32*w : 32;
        worker.ready[w] = lanes == 32 ? ~0u : (1u << lanes) - 1;
        worker.exited[w] = ~worker.ready[w];     // lanes that there are not do not wait
        worker.at_barrier[w] = worker.in_collective[w] = 0;
    }
    uint3 t = { 0, 0, 0 };
    for (int i = 0; i < threads; i++) {
        worker.fibers[i].thread = t;
        worker.fibers[i].copy_count = worker.fibers[i].copy_group = 0;
        if (++t.x == grid->block.x) { t.x = 0; if (++t.y == grid->block.y) { t.y = 0; t.z++; } }
    }
    worker.static_bytes = 0;
    worker.shared_count = 1;
    shared_new(0, grid->dynamic_bytes, "dynamic");
}

static inline void block_run(const Grid *grid, uint3 block, uint64_t shuffle) {
    block_begin(grid, block);
    worker.random = shuffle;
    worker.current = &worker.home;
    switch_to(take_ready(), false);
    for (int i = 0; i < worker.shared_count; i++) free(worker.shared[i].data);
    worker.grid = nullptr;
}

// ---- faults ----

#ifdef EMULATOR_ASAN

static void say_who(void) {
    if (!worker.grid) return;
    print_block();
    fprintf(stderr, ", ");
    print_thread(worker.current);
    fprintf(stderr, ": the fault above\n");
}
static inline void catch_faults(void) { __sanitizer_set_death_callback(say_who); }

#else

// A kernel's stray access, if it hits nothing at all. Runs on a stack of its own: the thread's own
// may be what is used up.
static void on_fault(int signal_number, siginfo_t *info, void *) {
    if (!worker.grid) {
        signal(signal_number, SIG_DFL);          // a fault of the host's code, as ever
        return;
    }
    char *address = (char *)info->si_addr, *stack = worker.current->stack;
    if (stack && address < stack && address >= stack - GUARD_BYTES)
        fail("stack overflow: its local variables do not fit %zu KB", STACK_BYTES >> 10);
    fail("access to address %p, where no memory is (SANITIZE=1 tells the line)", (void *)address);
}

static inline void catch_faults(void) {
    stack_t alternate = {};
    alternate.ss_size = STACK_BYTES;
    alternate.ss_sp = stack_new();
    sigaltstack(&alternate, nullptr);
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, nullptr);
    sigaction(SIGBUS, &action, nullptr);
}

#endif

// A worker's fibers, made when it runs its first block and kept until the program ends.
static inline void worker_start(void) {
    if (worker.fibers) return;
    worker.fibers = (Fiber *)pages_new(MAX_THREADS * sizeof(Fiber));
    worker.copies = (Copy *)pages_new(MAX_THREADS * MAX_COPIES * sizeof(Copy));
    catch_faults();
}

// Runs all blocks, shared out among the cores.
static inline void grid_run(const Grid *grid) {
    static uint64_t launches;
    const char *seed = getenv("EMULATOR_SHUFFLE");
    uint64_t shuffle = seed ? mix(strtoull(seed, nullptr, 10) + mix(++launches)) : 0;
    int64_t gx = grid->grid.x, gy = grid->grid.y, blocks = gx * gy * grid->grid.z;
    #pragma omp parallel if (blocks > 1)
    {
        worker_start();
        #pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < blocks; i++) {
            uint3 block = { (unsigned)(i % gx), (unsigned)(i / gx % gy), (unsigned)(i / gx / gy) };
            block_run(grid, block, shuffle ? mix(shuffle + (uint64_t)i) | 1 : 0);
        }
    }
}

}  // namespace emulator

// ---- what a kernel sees of it ----

#define threadIdx (emulator::worker.current->thread)
#define blockIdx (emulator::worker.block)
#define blockDim (emulator::worker.grid->block)
#define gridDim (emulator::worker.grid->grid)
static const int warpSize = 32;

// The line that calls a function: as default arguments these name the caller's.
#define EMULATOR_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

static inline void __syncthreads(EMULATOR_HERE) {
    emulator::barrier(false, { "__syncthreads", file, line });
}
static inline int __syncthreads_or(int vote, EMULATOR_HERE) {
    emulator::barrier(vote != 0, { "__syncthreads_or", file, line });
    return emulator::worker.last_votes > 0;
}
static inline int __syncthreads_and(int vote, EMULATOR_HERE) {
    emulator::barrier(vote != 0, { "__syncthreads_and", file, line });
    return emulator::worker.last_votes == emulator::worker.last_arrived;
}
static inline int __syncthreads_count(int vote, EMULATOR_HERE) {
    emulator::barrier(vote != 0, { "__syncthreads_count", file, line });
    return emulator::worker.last_votes;
}
