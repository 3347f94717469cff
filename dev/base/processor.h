// A program compiled with -march=native dies on a processor that lacks its instructions. This says
// so, in a line, before main begins: any function after that may hold such instructions.
#pragma once
#include <signal.h>
#include <unistd.h>

#ifdef __x86_64__
#define ANY_PROCESSOR __attribute__((target("arch=x86-64")))     // the instructions that all have
#else
#define ANY_PROCESSOR
#endif

#define BUILT_FOR(what) PROGRAM ": this binary was built for " what ": make clean && make\n"
#define REFUSE_PROCESSOR(what) \
    _exit(write(STDERR_FILENO, BUILT_FOR(what), sizeof BUILT_FOR(what) - 1) > 0 ? 1 : 2)

ANY_PROCESSOR static inline void processor_lacks(int signal_number) {
    (void)signal_number;
    REFUSE_PROCESSOR("another processor, and this one lacks an instruction");
}

#ifndef __wasm__                         // a browser compiles for its own
__attribute__((constructor)) ANY_PROCESSOR static void processor_check(void) {
    signal(SIGILL, processor_lacks);     // what is not checked here
#ifdef __x86_64__
    __builtin_cpu_init();
#endif
#ifdef __AVX512F__
    if (!__builtin_cpu_supports("avx512f"))
        REFUSE_PROCESSOR("a processor with AVX-512, and this one has none");
#endif
#ifdef __AVX2__
    if (!__builtin_cpu_supports("avx2"))
        REFUSE_PROCESSOR("a processor with AVX2, and this one has none");
#endif
}
#endif
