// llmc.c: model files of llm.c, written here as llm.c's documentation of the format has it.
#include "../dev/files/files.h"
#include "../dev/base/rng.h"
#include "test.h"

typedef struct { unsigned char *bytes; size_t n; } Image;

static void image_value(Image *m, float x, int version) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint16_t half = (uint16_t)(bits >> 16);
    if (version == LLMC_BF16) memcpy(m->bytes + m->n, &half, 2);
    else memcpy(m->bytes + m->n, &bits, 4);
    m->n += version == LLMC_BF16 ? 2 : 4;
}

// Element (row, col) of a tensor of ours: small whole numbers, which bf16 holds exactly.
static float value_at(int kind, int layer, size_t row, size_t col) {
    return (float)(mix64((uint64_t)(kind + 100*layer)*1000000u + row*1000u + col) % 255) - 127.0f;
}

// What llm.c writes: kind by kind, all layers of a kind together, matrices of blocks (out, in), the
// embedding padded with rows that nothing may read.
static Image image_make(const Config *c, int padded, int version) {
    size_t extra = (size_t)(padded - c->V) * (size_t)c->C;
    Image m = { calloc(1, 1024 + 4*(gpt2_n_params(c) + extra)), 1024 };
    int32_t header[8] = { 20240326, version, c->P, c->V, c->L, c->NH, c->C, padded };
    memcpy(m.bytes, header, sizeof header);
    for (int kind = 0; kind < N_KINDS; kind++) {
        bool in_block = kind >= LN1_GAIN && kind <= MLP_PROJ_B;
        size_t rows = dim_size(c, tensor_kind(kind)->rows), cols = kind_count(c, kind) / rows;
        for (int layer = 0; layer < (in_block ? c->L : 1); layer++) {
            if (in_block)
                for (size_t out = 0; out < cols; out++)
                    for (size_t in = 0; in < rows; in++)
                        image_value(&m, value_at(kind, layer, in, out), version);
            else
                for (size_t i = 0; i < rows * cols; i++)
                    image_value(&m, value_at(kind, 0, i / cols, i % cols), version);
        }
        if (kind == WTE)
            for (int i = 0; i < (padded - c->V) * c->C; i++) image_value(&m, NAN, version);
    }
    return m;
}

TEST(reads_both_versions) {
    const Config configs[] = { { 3, 2, 4, 5, 7, 0 }, { 1, 1, 1, 1, 1, 0 }, { 2, 5, 35, 50, 6, 0 } };
    for (int i = 0; i < 6; i++) {
        Config c = configs[i % 3], read;
        Image m = image_make(&c, c.V + (i % 3) * 3, i < 3 ? LLMC_FP32 : LLMC_BF16);
        Error err = { "" };
        float *flat = calloc(gpt2_n_params(&c), sizeof *flat);
        CHECK_MSG(llmc_config(&read, m.bytes, m.n, &err) && memcmp(&read, &c, sizeof c) == 0,
                  "%s", err.text);
        for (int b = 0; b < gpt2_n_buckets(&c); b++) {
            Range range = gpt2_bucket(&c, b);
            llmc_params(flat + range.begin, range, &c, m.bytes);
        }
        for (int k = 0; k < gpt2_n_tensors(&c); k++) {
            Tensor t = gpt2_tensor(&c, k);
            int layer = t.layer < 0 ? 0 : t.layer, wrong = 0;
            for (size_t j = 0; j < t.count; j++)
                wrong += flat[t.offset + j] != value_at(t.kind, layer, j / t.cols, j % t.cols);
            CHECK_MSG(wrong == 0, "%s: %d of %zu", t.key, wrong, t.count);
        }
        free(flat);
        free(m.bytes);
    }
}

TEST(refuses_every_cut) {
    const Config c = { 1, 1, 2, 3, 2, 0 };
    Image m = image_make(&c, 4, LLMC_BF16);
    for (size_t cut = 0; cut < m.n + 2; cut++) {
        if (cut == m.n) continue;
        unsigned char *copy = calloc(1, cut + 1);        // one more than there should be, too
        memcpy(copy, m.bytes, cut < m.n ? cut : m.n);
        Config read;
        Error err = { "" };
        CHECK_MSG(!llmc_config(&read, copy, cut, &err) && err.text[0], "cut at %zu", cut);
        free(copy);
    }
    free(m.bytes);
}

TEST(refuses_bad_headers) {
    static const struct { int word; int32_t value; const char *error; } cases[] = {
        { 0, 20240325, "not a model file of llm.c (its first word must be 20240326)" },
        { 1, 1, "version 1; expected 3 (fp32) or 5 (bf16)" },
        { 1, 5, "bytes, but its header needs" },
        { 3, -1, "word 3 of the header is -1, not a valid size" },
        { 4, 2, "truncated" }, { 2, 1, "damaged" },
        { 4, INT32_MAX, "word 4 of the header is 2147483647, not a valid size" },
        { 5, 4, "4 heads do not divide 2 channels" },
        { 7, 2, "a vocabulary of 3, but a padded one of 2" },
    };
    const Config c = { 1, 1, 2, 3, 2, 0 };
    for (size_t i = 0; i < COUNT(cases); i++) {
        Image m = image_make(&c, 4, LLMC_FP32);
        memcpy(m.bytes + 4*cases[i].word, &cases[i].value, 4);
        Config read;
        Error err = { "accepted" };
        llmc_config(&read, m.bytes, m.n, &err);
        CHECK_MSG(strstr(err.text, cases[i].error), "%s; expected: %s", err.text, cases[i].error);
        free(m.bytes);
    }
}

int main(void) { return run_tests(); }
