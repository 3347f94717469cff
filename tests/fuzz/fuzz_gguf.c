// A model in one file, a GGUF or llm.c's: whatever the bytes, no crash; every tensor of an accepted
// model can be read in full, and an accepted tokenizer encodes every byte.
#include <assert.h>
#include "../../dev/data/tokenizer.c"
#include "../../dev/files/files.h"

static void check_llmc(const uint8_t *data, size_t size) {
    Config c;
    Error err;
    if (!llmc_config(&c, data, size, &err)) return;
    float *numbers = (float *)malloc(gpt2_largest_bucket(&c) * sizeof *numbers);
    for (int b = 0; numbers && b < gpt2_n_buckets(&c); b++)
        llmc_params(numbers, gpt2_bucket(&c, b), &c, data);
    free(numbers);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    GgufModel m;
    Tokenizer t;
    Error err;
    if (gguf_is(data, size) && tokenizer_parse(&t, (const char *)data, size, "", &err)) {
        int ids[256];
        char text[256];
        for (int b = 0; b < 256; b++) text[b] = (char)b;
        size_t n = tokenizer_encode(&t, ids, text, sizeof text);
        assert(n > 0 && n <= 256 && t.eot >= 0 && t.eot < t.vocab_size);
        tokenizer_free(&t);
    }
    check_llmc(data, size);
    if (!gguf_model(&m, data, size, &err)) return 0;
    assert(m.c.C % m.c.NH == 0);
    for (int i = 0; i < gpt2_n_tensors(&m.c); i++) {
        float *values = (float *)malloc(gpt2_tensor(&m.c, i).count * sizeof *values);
        if (values) gguf_tensor(values, &m, i);
        free(values);
    }
    gguf_model_free(&m);
    return 0;
}
