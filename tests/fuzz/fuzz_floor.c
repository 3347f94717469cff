// The floor beside a validation shard: whatever the text, no crash, and what is accepted is a
// number of nats for each document. The first byte of an input is the number of documents.
#include "../../dev/data/entropy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ShardFloor f = { size ? data[0] : 0, NULL, NULL };
    Error err;
    char *text = (char *)calloc(size + 1, 1);
    f.nats = (double *)malloc(f.n * sizeof *f.nats);
    if (size) memcpy(text, data + 1, size - 1);
    bool good = floor_parse(&f, text, "a", &err);
    for (size_t d = 0; good && d < f.n; d++) assert(f.nats[d] >= 0.0 && isfinite(f.nats[d]));
    free(f.nats);
    free(text);
    return 0;
}
