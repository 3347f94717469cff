// One allocation, laid out. The same code counts what a model takes (base is NULL: --plan, and the
// report of a run) and hands out the places (base is the allocation).
//
//     Memory mem = {0};                              lay_out(&model, &mem);   // counts
//     mem = memory_begin(alloc_or_die(mem.used, "a model"));
//                                                    lay_out(&model, &mem);   // hands out
#pragma once
#include <stddef.h>
#include <string.h>

// What memory is used for.
typedef enum {
    MEM_PARAMS, MEM_GRADS, MEM_MOMENTS,    // as layers and the optimizer use them
    MEM_OUTER,                             // DiLoCo: parameters of the last round, outer momentum
    MEM_AVERAGE,                           // averaged weights
    MEM_PASSING,                           // buckets on their way from or to other ranks
    MEM_ACTIVATIONS, MEM_LOGITS,           // kept for the backward pass; a chunk of logits
    MEM_BACKWARD,                          // gradients of activations
    MEM_REST,                              // tables, scratch, alignment
    MEM_KINDS
} MemoryKind;

typedef struct { char *base; size_t used, bytes[MEM_KINDS]; } Memory;

static inline Memory memory_begin(void *base) {
    Memory mem;
    memset(&mem, 0, sizeof mem);
    mem.base = (char *)base;
    return mem;
}

// The next `bytes` bytes, at a multiple of 256; NULL while memory is only counted.
static inline void *memory_take(Memory *mem, MemoryKind kind, size_t bytes) {
    size_t rounded = (bytes + 255) / 256 * 256;
    char *p = mem->base ? mem->base + mem->used : NULL;
    mem->used += rounded;
    mem->bytes[kind] += bytes;
    mem->bytes[MEM_REST] += rounded - bytes;
    return p;
}

static inline float *memory_floats(Memory *mem, MemoryKind kind, size_t count) {
    return (float *)memory_take(mem, kind, count * sizeof(float));
}
