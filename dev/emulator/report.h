// Reports: how the emulator tells what a kernel did wrong, and ends the program with status 1.
//
//   fail             the current thread made an error: kernel, block and thread are named
//   fail_stuck       every thread waits: where each of them waits, and for which thread
//   catch_faults     once for each worker: from then on a stray memory access is reported too
#pragma once
#include <stdarg.h>
#include "worker.h"

namespace emulator {

inline void print_place(const char *verb, const Place *p) {
    fprintf(stderr, "%s %s, %s:%d", verb, p->call, p->file, p->line);
}

inline void print_thread(const Fiber *f) {
    fprintf(stderr, "thread (%u,%u,%u)", f->thread.x, f->thread.y, f->thread.z);
}

inline void print_block(void) {
    uint3 b = worker.block;
    fprintf(stderr, "emulator: kernel %s, block (%u,%u,%u)", worker.grid->kernel, b.x, b.y, b.z);
}

// If several workers have something to report, only the first one prints.
EMULATOR_UNCOUNTED inline void begin_report(void) {
    static int reporting;
    while (__atomic_exchange_n(&reporting, 1, __ATOMIC_SEQ_CST)) pause();
    fflush(stdout);
}

// Reports an error of the current thread and ends the program. Set a debugger's breakpoint here.
__attribute__((format(printf, 1, 2), noreturn, noinline))
inline void fail(const char *fmt, ...) {
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
        fprintf(stderr, "emulator: %s\n", what);            // in one write: other ranks print too
    }
    _exit(1);
}

inline void print_state(int i) {
    bool waits = is_in(worker.in_collective, i);
    if (is_in(worker.at_barrier, i)) print_place("waits at", &worker.barrier);
    else if (waits) print_place("waits in", &worker.fibers[i].collective);
    else fprintf(stderr, "is ready to run");
}

// Thread i waits in a collective: the first lane that has not joined it.
inline int missing_lane(int i) {
    for (int k = i & ~31; k < (i & ~31) + 32; k++) {
        if (!(worker.fibers[i].mask >> k%32 & 1) || is_in(worker.exited, k)) continue;
        if (!is_in(worker.in_collective, k) ||
            !same_collective(&worker.fibers[i], &worker.fibers[k])) return k;
    }
    return i;
}

// One line for all threads of a warp that wait as thread i does; only the first of them prints it.
inline void print_waiting(int i) {
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

// No thread can run: prints where each thread waits, and for which thread.
__attribute__((noreturn, noinline))
inline void fail_stuck(void) {
    int total = (int)(worker.grid->block.x * worker.grid->block.y * worker.grid->block.z);
    begin_report();
    print_block();
    fprintf(stderr, ": %s: %d of %d threads wait, %d have exited, and no thread can run\n",
            worker.arrived ? "barrier divergence" : "deadlock", worker.alive, total,
            total - worker.alive);
    for (int i = 0; i < total; i++)
        if (is_in(worker.at_barrier, i) || is_in(worker.in_collective, i)) print_waiting(i);
    _exit(1);
}

// ---- faults: memory accesses that the processor or AddressSanitizer stops ----

#ifdef EMULATOR_ASAN

inline void say_who(void) {
    if (!worker.grid) return;
    print_block();
    fprintf(stderr, ", ");
    print_thread(worker.current);
    fprintf(stderr, ": the fault above\n");
}
inline void catch_faults(void) { __sanitizer_set_death_callback(say_who); }

#else

// A kernel's access to an unmapped address. The handler has its own stack, since the thread's stack
// may have overflowed.
inline void on_fault(int signal_number, siginfo_t *info, void *) {
    if (!worker.grid) {
        signal(signal_number, SIG_DFL);          // a fault in host code: the default
        return;
    }
    char *address = (char *)info->si_addr, *stack = worker.current->stack;
    if (stack && address < stack && address >= stack - GUARD_BYTES)
        fail("stack overflow: its local variables exceed %zu KB: too large an array, or recursion",
             STACK_BYTES >> 10);
    fail("access to unmapped address %p: an index runs past the end of an array, of an argument or "
         "of one that the kernel itself declares (SANITIZE=1 names the line)", (void *)address);
}

inline void catch_faults(void) {
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

}  // namespace emulator
