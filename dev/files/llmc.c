// Reads llm.c's model files, gpt2_124M.bin and gpt2_124M_bf16.bin (files.h).
#include "files.h"

static bool llmc_header(int32_t header[8], const unsigned char *bytes, size_t n, Error *err) {
    static const int32_t most[8] = { 0, 0, 1 << 24, 1 << 24, 1 << 14, 1 << 20, 1 << 20, 1 << 24 };
    if (n >= 32) memcpy(header, bytes, 32);
    if (n < 32 || header[0] != LLMC_MAGIC) {
        const char *kind = file_kind(bytes, n);
        return kind ? fail(err, "this is %s", kind)
                    : fail(err, "not a model file of llm.c (its first word must be %d); a "
                                "checkpoint is named by its directory",
                           LLMC_MAGIC);
    }
    if (header[1] != LLMC_FP32 && header[1] != LLMC_BF16)
        return fail(err, "version %d; expected 3 (fp32) or 5 (bf16)", header[1]);
    for (int i = 2; i < 8; i++)
        if (header[i] < 1 || header[i] > most[i])                     // no product overflows
            return fail(err, "word %d of the header is %d, not a valid size", i, header[i]);
    if (header[6] % header[5] != 0)
        return fail(err, "%d heads do not divide %d channels", header[5], header[6]);
    if (header[7] < header[3])
        return fail(err, "a vocabulary of %d, but a padded one of %d", header[3], header[7]);
    return true;
}

bool llmc_config(Config *c, const unsigned char *bytes, size_t n, Error *err) {
    int32_t header[8];
    if (strcmp(MODEL_NAME, "gpt2") != 0)
        return fail(err, "llm.c's file of GPT-2, but this program trains %s", MODEL_NAME);
    if (!llmc_header(header, bytes, n, err)) return false;
    c->P = header[2];
    c->V = header[3];
    c->cut = 0;
    c->L = header[4];
    c->NH = header[5];
    c->C = header[6];
    size_t padding = (size_t)(header[7] - header[3]) * (size_t)c->C;
    size_t expected = LLMC_HEADER_BYTES
                    + (gpt2_n_params(c) + padding) * (header[1] == LLMC_FP32 ? 4u : 2u);
    return n == expected || fail(err, "%zu bytes, but its header needs %zu: %s", n, expected,
                                 n < expected ? "truncated" : "damaged");
}

void llmc_tensor(float *out, const Tensor *t, const Config *c, const unsigned char *bytes) {
    int32_t header[8];
    memcpy(header, bytes, sizeof header);
    FloatType type = header[1] == LLMC_FP32 ? FLOAT_32 : FLOAT_BF16;
    size_t before = t->layer > 0 ? (size_t)t->layer * t->count : 0;
    if (t->kind > WTE) before += (size_t)(header[7] - header[3]) * (size_t)c->C;     // padding
    for (int kind = 0; kind < t->kind; kind++) {
        bool in_block = kind >= FIRST_IN_BLOCK && kind <= LAST_IN_BLOCK;
        before += kind_count(c, kind) * (size_t)(in_block ? c->L : 1);
    }
    tensor_read(out, bytes + LLMC_HEADER_BYTES + before*float_bytes(type), t, true, type);
}
