// Memory of a check. Each array ends right before memory that nobody may touch, or, in every second
// run, begins right behind it. Inputs are read-only while the function under test runs. So an index
// that is out of range and an input that changes are caught where they happen, and named.
//     float *x = array_new("x", INDEX("nc", N, C), sizeof *x, INPUT);     // fill it, then:
//     arrays_seal();  f(out, x, N, C);  arrays_unseal();
#pragma once
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include "verdict.h"                   // wrong

// The indices of a tensor, a letter each, and how many values each takes: INDEX("nc", N, C).
// "p" alone: all parameters of the model that SMALL describes.
typedef struct { const char *names; size_t sizes[4]; } Index;
#define INDEX(names, ...) (Index){ names, { __VA_ARGS__ } }

typedef enum { INPUT, OUTPUT, SCRATCH } Role;

typedef struct {
    const char *name;
    Index index;
    Role role;
    char *at, *map;                    // the first element; the first byte of all that is reserved
    size_t n, size, inner;             // elements, bytes of one, bytes between the guards
    bool gone;                         // of an earlier call
    bool opened;                       // its guards have become readable
} Array;

enum { ARRAYS = 128, GUARD = 1 << 20, STACK = 64 << 20 };  // bytes on either side; below main
static Array arrays[ARRAYS];
static size_t n_arrays;
static bool at_the_end, arrays_sealed;
static const Array *read_outside;      // the first array that is read outside, and which element
static ptrdiff_t read_at;
static const char *stack_begin;        // its highest address that a function under test may use

// "dx[n=2][c=1]"; the rest of a name of several words follows the indices.
static const char *element(const char *name, Index index, size_t i) {
    static char text[200];
    size_t stride = 1, n = strlen(index.names), word = strcspn(name, " "), at = word;
    memcpy(text, name, word);
    for (size_t k = 0; k < n; k++) stride *= index.sizes[k];
    for (size_t k = 0; k < n; k++) {
        stride /= index.sizes[k];
        at += (size_t)snprintf(text + at, sizeof text - at, "[%c=%zu]", index.names[k],
                               i / stride % index.sizes[k]);
    }
    snprintf(text + at, sizeof text - at, "%s", name + word);
    return text;
}

static void *array_new(const char *name, Index index, size_t size, Role role) {
    size_t n = 1, page = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t k = 0; k < strlen(index.names); k++) n *= index.sizes[k];
    Array *a = &arrays[n_arrays++ % ARRAYS];
    if (a->map) munmap(a->map, a->inner + 2*GUARD);
    *a = (Array){ .name = name, .index = index, .role = role, .n = n, .size = size };
    a->inner = (n*size + page - 1) / page * page;
    a->map = mmap(NULL, a->inner + 2*GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANON, -1, 0);
    if (a->map == MAP_FAILED || mprotect(a->map + GUARD, a->inner, PROT_READ | PROT_WRITE) != 0)
        die("no memory for %s", name);
    a->at = a->map + GUARD + (at_the_end ? a->inner - n*size : 0);
    return a->at;
}

static void arrays_protect(int inputs) {
    for (size_t k = 0; k < ARRAYS; k++)
        if (arrays[k].map && !arrays[k].gone && arrays[k].role == INPUT)
            mprotect(arrays[k].map + GUARD, arrays[k].inner, inputs);
}

// "it has elements 0 ... 3"
static const char *elements_of(const Array *a) {
    static char text[60];
    snprintf(text, sizeof text, a->n ? "it has elements 0 ... %zu" : "it has none", a->n - 1);
    return text;
}

static void arrays_seal(void) {
    read_outside = NULL;
    arrays_sealed = true;
    arrays_protect(PROT_READ);
}

static void arrays_unseal(void) {
    arrays_sealed = false;
    arrays_protect(PROT_READ | PROT_WRITE);
    if (read_outside)
        wrong("%s: element %td is read, and %s: an index runs past its %s", read_outside->name,
              read_at, elements_of(read_outside), read_at < 0 ? "beginning" : "end");
}

// Frees all arrays. Their addresses stay reserved, so that a pointer that is kept is found out.
static void arrays_free(void) {
    for (size_t k = 0; k < ARRAYS; k++) {
        Array *a = &arrays[k];
        if (!a->map || a->gone) continue;
        a->gone = true;
        mmap(a->map, a->inner + 2*GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANON | MAP_FIXED, -1, 0);
    }
}

static const Array *array_around(const char *at) {
    for (size_t k = 0; k < ARRAYS; k++)
        if (arrays[k].map && at >= arrays[k].map && at < arrays[k].map + arrays[k].inner + 2*GUARD)
            return &arrays[k];
    return NULL;
}

// The first touch of a guard makes it readable. If that was a write, it comes here again.
static void on_fault(int number, siginfo_t *info, void *context) {
    (void)context;
    const char *at = (const char *)info->si_addr;
    const Array *a = array_around(at);
    if (number == SIGILL || number == SIGTRAP)
        wrong("an index runs past the end of an array that the function itself declares");
    if (!a && arrays_sealed && at < stack_begin && at > stack_begin - STACK)
        wrong("an array that the function itself declares is too large for the stack, or an index "
              "runs past its end");
    if (!a || !arrays_sealed) {
        signal(number, SIG_DFL);       // an address of no array: it crashes when it comes again
        return;
    }
    ptrdiff_t bytes = at - a->at, size = (ptrdiff_t)a->size;
    ptrdiff_t i = bytes < 0 ? -((size - 1 - bytes) / size) : bytes / size;
    if (a->gone)
        wrong("%s of an earlier call is touched: keep no pointer from call to call", a->name);
    if (i >= 0 && i < (ptrdiff_t)a->n)
        wrong("%s is written, but it is an input: it must stay as it is",
              element(a->name, a->index, (size_t)i));
    if (a->opened)
        wrong("%s: element %td is written, and %s: an index runs past its %s", a->name, i,
              elements_of(a), i < 0 ? "beginning" : "end");
    if (!read_outside) read_outside = a, read_at = i;
    arrays[a - arrays].opened = true;
    mprotect(a->map, GUARD, PROT_READ);
    mprotect(a->map + GUARD + a->inner, GUARD, PROT_READ);
}

// The handler has a stack of its own, since the other may be full.
static void faults_catch(void) {
    static char own[1 << 16];
    stack_t other = { .ss_sp = own, .ss_size = sizeof own };
    struct sigaction action = { .sa_flags = SA_SIGINFO | SA_ONSTACK };
    stack_begin = (const char *)__builtin_frame_address(0);
    sigaltstack(&other, NULL);
    action.sa_sigaction = on_fault;
    int signals[] = { SIGSEGV, SIGBUS, SIGILL, SIGTRAP };
    for (size_t k = 0; k < sizeof signals / sizeof *signals; k++)
        sigaction(signals[k], &action, NULL);
}
