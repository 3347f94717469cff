// Whatever the bytes: no crash, and the parameters of an accepted file can be read in full.
#include "../../dev/lib/llmc.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Config c;
    Error err;
    if (!llmc_config(&c, data, size, &err)) return 0;
    float *flat = (float *)malloc(gpt2_n_params(&c) * sizeof *flat);
    if (flat) llmc_params(flat, &c, data, size, &err);
    free(flat);
    return 0;
}
