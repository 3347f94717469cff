// What tests of files that hold a tokenizer share.
#pragma once
#include "../dev/data/data.h"

static inline bool same_tokenizer(const Tokenizer *a, const Tokenizer *b) {
    return a->vocab_size == b->vocab_size && a->eot == b->eot && a->n_merges == b->n_merges
        && !memcmp(a->start, b->start, (size_t)(a->vocab_size + 1) * sizeof *a->start)
        && !memcmp(a->text, b->text, a->start[a->vocab_size])
        && !memcmp(a->kind, b->kind, (size_t)a->vocab_size)
        && !memcmp(a->byte_id, b->byte_id, sizeof a->byte_id)
        && !memcmp(a->merges, b->merges, (size_t)a->n_merges * sizeof *a->merges);
}
