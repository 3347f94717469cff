// config.json and state.json: whatever the bytes, no crash, and accepted sizes fit their ranges.
#include <assert.h>
#include "../../dev/files/checkpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Json j;
    Error err;
    Config c;
    TrainState s;
    if (!json_parse(&j, (const char *)data, size, &err)) return 0;
    if (config_from_json(&c, j.root, &err)) assert(c.C % c.NH == 0 && gpt2_n_params(&c) > 0);
    if (state_from_json(&s, j.root, &err)) {
        assert(s.step >= 0 && s.samples >= 0);
        assert(s.step <= COUNT_MOST && s.samples <= COUNT_MOST && s.tokens <= COUNT_MOST);
    }
    json_free(&j);
    return 0;
}
