// Tokenizers of tests; include it behind dev/data/tokenizer.h.
#pragma once

// A file of tiktoken's: the 256 bytes, and what else is given. The caller frees it.
static inline char *ranks_with(const char *more) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *text = (char *)malloc(256*16 + strlen(more) + 1), *end = text;
    for (int b = 0; b < 256; b++)
        end += sprintf(end, "%c%c== %d\n", digits[b >> 2], digits[b << 4 & 63], b);
    memcpy(end, more, strlen(more) + 1);
    return text;
}

static inline bool same_tokenizer(const Tokenizer *a, const Tokenizer *b) {
    return a->vocab_size == b->vocab_size && a->eot == b->eot && a->n_merges == b->n_merges
        && !memcmp(a->start, b->start, (size_t)(a->vocab_size + 1) * sizeof *a->start)
        && !memcmp(a->text, b->text, a->start[a->vocab_size])
        && !memcmp(a->kind, b->kind, (size_t)a->vocab_size)
        && !memcmp(a->byte_id, b->byte_id, sizeof a->byte_id)
        && !memcmp(a->merges, b->merges, (size_t)a->n_merges * sizeof *a->merges);
}
