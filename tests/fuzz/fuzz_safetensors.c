// Whatever the bytes: no crash, and every tensor of an accepted file can be read in full.
#include "../../dev/lib/checkpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    SafeTensors s;
    Error err;
    Config c = { 1, 1, 2, 3, 2 };
    float flat[sizeof(size_t) * 32];
    size_t n_found;
    if (!safetensors_parse(&s, data, size, &err)) return 0;
    for (size_t i = 0; i < s.n_tensors; i++) {
        float *values = (float *)malloc(s.tensors[i].count * sizeof(float) + 1);
        if (values) safetensors_read(values, &s, &s.tensors[i], &err);
        free(values);
    }
    if (gpt2_n_params(&c) <= sizeof flat / sizeof *flat) weights_read(flat, &s, &c, &err);
    tensors_read(NULL, &n_found, &s, "exp_avg.", &c, &err);
    safetensors_close(&s);
    return 0;
}
