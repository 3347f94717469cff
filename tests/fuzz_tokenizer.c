// A fuzzer of vocabulary files, and of encoding with whatever vocabulary they turn out to hold:
//
//     clang -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz_tokenizer.c -o fuzz -lm
//     ./fuzz -max_len=20000 SEEDS
//
// Seeds: a tokenizer.json that `prepare text` wrote for a small text, and a few lines of
// gpt2.tiktoken. A NUL in the input ends a vocab.json, and its merges.txt follows.
#define PROGRAM "fuzz_tokenizer"
#include <assert.h>
#include "../dev/lib/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

// Every text must come back from any vocabulary that was accepted, by one thread and by several.
static void check_text(const Tokenizer *t, const char *text, size_t n) {
    int *ids = (int *)malloc((n + 1) * sizeof *ids), *same = (int *)malloc((n + 1) * sizeof *ids);
    size_t count = tokenizer_encode(t, ids, text, n), at = 0, length;
    assert(count <= n);
    for (size_t i = 0; i < count; i++) {
        assert(ids[i] >= 0 && ids[i] < t->vocab_size && t->kind[ids[i]] != TOKEN_ADDED);
        const char *piece = tokenizer_piece(t, ids[i], &length);
        assert(at + length <= n && memcmp(piece, text + at, length) == 0);
        at += length;
    }
    assert(at == n && tokenizer_encode_parallel(t, same, text, n) == count);
    assert(memcmp(ids, same, count * sizeof *ids) == 0);
    free(ids);
    free(same);
}

static bool parse_pair(Tokenizer *t, const char *text, size_t n, const char *nul, Error *err) {
    Json j;
    size_t json_n = (size_t)(nul - text);
    MergeSource merges = { NULL, nul + 1, n - json_n - 1 };
    memset(t, 0, sizeof *t);
    if (!json_parse(&j, text, json_n, err)) return false;
    bool good = j.root->type == JSON_OBJECT && vocab_read(t, j.root, NULL, merges, json_n, err);
    json_free(&j);
    if (!good) tokenizer_free(t);
    return good;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    const char *text = (const char *)data, *nul = (const char *)memchr(text, 0, n);
    Tokenizer t;
    Error err;
    bool good = nul ? parse_pair(&t, text, n, nul, &err)
                    : n > 0 && tokenizer_parse(&t, text, n, "/nowhere/vocab.json", &err);
    if (!good) return 0;
    check_text(&t, text, n < 200 ? n : 200);
    for (int id = 256; id < t.vocab_size && id < 300; id++) {    // most files begin with the bytes
        size_t length;
        const char *piece = tokenizer_piece(&t, id, &length);
        check_text(&t, piece, length);
    }
    tokenizer_free(&t);
    return 0;
}
