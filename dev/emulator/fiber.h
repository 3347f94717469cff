// Fibers: several stacks that take turns on one processor core. Each CUDA thread has a stack, so a
// thread that waits keeps its place in its kernel. A switch saves the registers that a function
// call must preserve, exchanges the stack pointer, and returns into the other fiber, which left by
// the same switch earlier. It takes a few nanoseconds and no system call.
#pragma once
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define EMULATOR_ASAN 1
#include <sanitizer/asan_interface.h>
#endif

namespace emulator {

// ---- the switch ----

// Saves this fiber's stack pointer in *save and continues at the saved stack pointer `load`.
extern "C" void emulator_switch(void ***save, void **load) asm("emulator_switch");

#if defined(__x86_64__)

asm(".text\n"
    ".p2align 4\n"
    "emulator_switch:\n"
    "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n"
    "    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
    "    ret\n");

// Words that a switch leaves on the stack, and which of them it returns to.
enum { SWITCH_WORDS = 8, SWITCH_RETURNS = 6 };   // the last is where `entry` itself would return to

#elif defined(__aarch64__)

asm(".text\n"
    ".p2align 4\n"
    "emulator_switch:\n"
    "    sub sp, sp, #160\n"
    "    stp x19, x20, [sp, #0]\n    stp x21, x22, [sp, #16]\n    stp x23, x24, [sp, #32]\n"
    "    stp x25, x26, [sp, #48]\n   stp x27, x28, [sp, #64]\n    stp x29, x30, [sp, #80]\n"
    "    stp d8, d9, [sp, #96]\n     stp d10, d11, [sp, #112]\n"
    "    stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, #144]\n"
    "    mov x9, sp\n"
    "    str x9, [x0]\n"
    "    mov sp, x1\n"
    "    ldp x19, x20, [sp, #0]\n    ldp x21, x22, [sp, #16]\n    ldp x23, x24, [sp, #32]\n"
    "    ldp x25, x26, [sp, #48]\n   ldp x27, x28, [sp, #64]\n    ldp x29, x30, [sp, #80]\n"
    "    ldp d8, d9, [sp, #96]\n     ldp d10, d11, [sp, #112]\n"
    "    ldp d12, d13, [sp, #128]\n  ldp d14, d15, [sp, #144]\n"
    "    add sp, sp, #160\n"
    "    ret\n");

enum { SWITCH_WORDS = 20, SWITCH_RETURNS = 11 };           // to x30

#else
#error "the emulator switches stacks on x86-64 and AArch64; a switch for others belongs here"
#endif

// Lays out a stack as if `entry` had just been called and had switched away; its stack pointer.
EMULATOR_UNCOUNTED inline void **stack_start(char *end, void (*entry)(void)) {
    void **sp = (void **)end - SWITCH_WORDS;
    for (int i = 0; i < SWITCH_WORDS; i++) sp[i] = nullptr;
    sp[SWITCH_RETURNS] = (void *)entry;
    return sp;
}

// ---- stacks ----

#if defined(EMULATOR_ASAN) || defined(EMULATOR_COUNT)    // local variables take more room
constexpr size_t STACK_BYTES = 256 << 10;
#else
constexpr size_t STACK_BYTES = 64 << 10;
#endif
constexpr size_t GUARD_BYTES = 16 << 10;         // a whole page on any system

// Zeroed pages from the system; a page takes memory only once it is written.
inline char *pages_new(size_t bytes) {
    void *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        fprintf(stderr, "emulator: no memory for a block's threads\n");
        _exit(1);
    }
    return (char *)p;
}

// A new stack with a guard page below: an overflow is a fault and overwrites nothing.
inline char *stack_new(void) {
    char *p = pages_new(GUARD_BYTES + STACK_BYTES);
    mprotect(p, GUARD_BYTES, PROT_NONE);         // if this fails, only the guard is missing
    return p + GUARD_BYTES;
}

}  // namespace emulator
