// Memory of a check. Each array ends right before memory that nobody may touch, or, in every second
// run, begins right behind it. Inputs are read-only while the function under test runs. So an index
// that is out of range and an input that changes are caught where they happen, and named. What the
// function allocates ends before such memory too.
// Include it first: from here on, malloc is its own.
//     float *x = array_new("x", INDEX("nc", N, C), sizeof *x, INPUT);     // fill it, then:
//     arrays_seal();  f(out, x, N, C);  arrays_unseal();
#pragma once
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
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
    bool whole;                        // ints, else floats where an element has 4 bytes
    bool gone;                         // of an earlier call
    bool opened;                       // its guards have become readable
} Array;

enum { ARRAYS = 300, GUARD = 1 << 20, STACK = 64 << 20 };  // bytes on either side; below main
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
        wrong("not a verdict: there is no memory for %s", name);
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

// ---- another call before ----

static char *kept_values[ARRAYS];

// Other values of the same kind within an array, not first nor last: all, or just one element.
static void array_turn(const Array *a, const char *kept, bool one) {
    static uint32_t drawn = 1;
    size_t size = a->size;
    if (a->n < 4 && !one) return;
    if (!one) {
        memcpy(a->at + size, kept + 2*size, (a->n - 3)*size);
        memcpy(a->at + (a->n - 2)*size, kept + size, size);
        return;
    }
    if (a->n < 3 || a->role == SCRATCH || size != sizeof(float)) return;
    drawn = drawn * 1664525u + 1013904223u;
    size_t i = 1 + drawn / 256 % (a->n - 2);
    float old = ((const float *)kept)[i];
    if (a->whole) memcpy(a->at + i*size, kept + (a->n - 1 - i)*size, size);
    else if (old == old) ((float *)a->at)[i] = old == 0.0f ? 1.0f : 0.0f;
}

static void arrays_turn(bool one) {
    for (size_t k = 0; k < ARRAYS; k++) {
        Array *a = &arrays[k];
        if (!a->map || a->gone) continue;
        kept_values[k] = malloc(a->n*a->size + 1);
        memcpy(kept_values[k], a->at, a->n*a->size);
        array_turn(a, kept_values[k], one);
    }
}

// Whether an output was only NaN, and to be written.
static bool array_waits(const Array *a, const char *kept) {
    const float *x = (const float *)kept;
    bool waits = a->role == OUTPUT && a->size == sizeof *x;
    for (size_t i = 0; waits && i < a->n; i++) waits = x[i] != x[i];
    return waits;
}

// `one`: such an output stays as the call before has left it.
static void arrays_turn_back(bool one) {
    for (size_t k = 0; k < ARRAYS; k++) {
        const Array *a = &arrays[k];
        if (!kept_values[k]) continue;
        if (!one || !array_waits(a, kept_values[k]))
            memcpy(a->at, kept_values[k], a->n*a->size);
        free(kept_values[k]);
        kept_values[k] = NULL;
    }
}

// ---- what the function under test allocates ----

// Each lies at the end of pages of its own, rounded up to 16 bytes.
typedef struct { char *at, *map; size_t n, bytes; } Own;
enum { OWNS = 4096 };
static Own owns[OWNS];                 // `lock_owns` guards it
static int lock_owns;
#define UNWATCHED __attribute__((no_sanitize("thread")))    // no business of the race detector

static UNWATCHED void owns_lock(void) {
    while (__atomic_exchange_n(&lock_owns, 1, __ATOMIC_ACQUIRE)) sched_yield();
}
static UNWATCHED void owns_unlock(void) { __atomic_store_n(&lock_owns, 0, __ATOMIC_RELEASE); }

static UNWATCHED void *own_new(size_t n) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), inner = (n + page - 1) / page * page, k = 0;
    if (!arrays_sealed || n == 0 || n > SIZE_MAX / 2) return malloc(n);
    char *map = mmap(NULL, inner + GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANON, -1, 0);
    if (map == MAP_FAILED || mprotect(map, inner, PROT_READ | PROT_WRITE) != 0) return NULL;
    owns_lock();
    while (k < OWNS && owns[k].map) k++;
    if (k == OWNS)
        wrong("%d allocations are not freed: does one way out of the function free nothing?", OWNS);
    owns[k] = (Own){ map + inner - (n + 15) / 16 * 16, map, n, inner + GUARD };
    owns_unlock();
    return owns[k].at;
}

static UNWATCHED Own *own_of(const void *at) {
    for (size_t k = 0; at && k < OWNS; k++)
        if (owns[k].at == at) return &owns[k];
    return NULL;
}

static UNWATCHED void own_free(void *at) {
    owns_lock();
    Own *own = own_of(at);
    if (own) munmap(own->map, own->bytes), *own = (Own){ 0 };
    owns_unlock();
    if (!own) free(at);
}

static UNWATCHED void *own_zeros(size_t n, size_t size) {
    if (!arrays_sealed || (size && n > SIZE_MAX / 2 / size)) return calloc(n, size);
    return own_new(n * size);          // new pages are 0
}

static UNWATCHED void *own_resize(void *at, size_t n) {
    Own *own = own_of(at);
    if (!own && at) return realloc(at, n);
    char *new = own_new(n);
    for (size_t i = 0; new && own && i < own->n && i < n; i++) new[i] = own->at[i];
    if (new) own_free(at);
    return new;
}

// Bytes that are allocated.
static size_t owns_bytes(void) {
    size_t sum = 0;
    for (size_t k = 0; k < OWNS; k++) sum += owns[k].n;
    return sum;
}

static size_t owns_count(void) {
    size_t count = 0;
    for (size_t k = 0; k < OWNS; k++) count += owns[k].map != NULL;
    return count;
}

#define malloc(n) own_new(n)
#define calloc(n, size) own_zeros(n, size)
#define realloc(at, n) own_resize(at, n)
#define free(at) own_free(at)

// ---- what happens outside ----

// The first touch of a guard makes it readable. If that was a write, it comes here again. One
// thread at a time, since a verdict ends all.
static void on_fault_of_one(int number, const siginfo_t *info) {
    const char *at = (const char *)info->si_addr;
    const Array *a = array_around(at);
    if (number == SIGILL || number == SIGTRAP)
        wrong("an index runs past the end of an array that the function itself declares");
    if (!a && arrays_sealed && at < stack_begin && at > stack_begin - STACK)
        wrong("an array that the function itself declares is too large for the stack, or an index "
              "runs past its end");
    for (size_t k = 0; k < OWNS; k++)
        if (owns[k].map && at >= owns[k].map && at < owns[k].map + owns[k].bytes)
            wrong("an index runs past the end of %zu bytes that the function itself allocates",
                  owns[k].n);
    if (!a && arrays_sealed)
        wrong("memory outside all arrays is touched: a pointer or an index is far off, or "
              "of an earlier call");
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

static UNWATCHED void on_fault(int number, siginfo_t *info, void *context) {
    static int busy;
    (void)context;
    while (__atomic_exchange_n(&busy, 1, __ATOMIC_ACQUIRE)) sched_yield();
    on_fault_of_one(number, info);
    __atomic_store_n(&busy, 0, __ATOMIC_RELEASE);
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
