// Whatever the bytes: no crash, and every tensor of an accepted file can be read in full.
//
// A file begins with the length of its header, which no longer fits when a fuzzer inserts a byte.
// So an input that begins with the header's bracket gets its length put before it; the header then
// ends at the first NUL, and the tensors' bytes follow.
#include "../../dev/lib/checkpoint.h"

static void check_file(const unsigned char *bytes, size_t n) {
    SafeTensors s;
    Error err;
    Config c = { 1, 1, 2, 3, 2 };
    float flat[88];
    size_t n_found;
    if (gpt2_n_params(&c) != sizeof flat / sizeof *flat) abort();
    if (!safetensors_parse(&s, bytes, n, &err)) return;
    for (size_t i = 0; i < s.n_tensors; i++) {
        float *values = (float *)malloc(s.tensors[i].count * sizeof(float) + 1);
        if (values) safetensors_read(values, &s, &s.tensors[i], &err);
        free(values);
    }
    weights_read(flat, &s, &c, &err);
    tensors_read(NULL, &n_found, &s, "exp_avg.", &c, &err);
    safetensors_close(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0 || data[0] != '{') {
        check_file(data, size);
        return 0;
    }
    const uint8_t *nul = (const uint8_t *)memchr(data, 0, size);
    uint64_t length = nul ? (uint64_t)(nul - data) : size;
    size_t rest = nul ? size - length - 1 : 0;
    unsigned char *bytes = (unsigned char *)malloc(8 + length + rest);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, data, length);
    if (rest) memcpy(bytes + 8 + length, nul + 1, rest);
    check_file(bytes, 8 + length + rest);
    free(bytes);
    return 0;
}
