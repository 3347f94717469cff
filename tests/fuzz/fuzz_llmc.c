// Whatever the bytes: no crash, and the parameters of an accepted file can be read in full.
#include "../../dev/files/llmc.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Config c;
    Error err;
    if (!llmc_config(&c, data, size, &err)) return 0;
    float *numbers = (float *)malloc(gpt2_largest_bucket(&c) * sizeof *numbers);
    for (int b = 0; numbers && b < gpt2_n_buckets(&c); b++)
        llmc_params(numbers, gpt2_bucket(&c, b), &c, data, size, &err);
    free(numbers);
    return 0;
}
