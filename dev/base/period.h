// Things that recur: every so many updates, or every so many tokens.
#pragma once
#include <stdbool.h>
#include <stdint.h>

typedef struct {
    uint64_t n;                    // 0: never
    bool in_tokens;                // every n tokens, else every n updates
} Period;

// True when the update that brought the counts from `before` to `after` reached or crossed a
// multiple of the period. An update that crosses several is due once.
static inline bool period_due(const Period *p, uint64_t steps_before, uint64_t steps_after,
                              uint64_t tokens_before, uint64_t tokens_after) {
    if (p->n == 0) return false;
    uint64_t before = p->in_tokens ? tokens_before : steps_before;
    uint64_t after = p->in_tokens ? tokens_after : steps_after;
    return before / p->n != after / p->n;
}
