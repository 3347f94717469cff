// Whatever the bytes: no crash; and what is accepted has one meaning, so its tree adds up. As
// config.json and as state.json, accepted sizes and counts fit their ranges.
#include <assert.h>
#include "../../dev/files/checkpoint.c"
#include "../../dev/files/weights.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Json j;
    Error err;
    if (!json_parse(&j, (const char *)data, size, &err)) return 0;
    assert(j.root->span == j.n_nodes);
    for (const JsonNode *v = j.root; v < j.root + j.n_nodes; v++) {
        int64_t i;
        size_t items = 0;
        bool object = v->type == JSON_OBJECT, container = object || v->type == JSON_ARRAY;
        assert(container || v->span == 1);
        for (const JsonNode *w = v + 1; container && w < json_end(v); items++)
            w = json_next(object ? w + 1 : w);
        assert(!container || items == v->length);
        json_to_int(&i, v, -1000, 1000);
        assert(strlen(json_show(v).text) < sizeof(Brief));
    }
    Config c;
    TrainState s;
    if (config_from_json(&c, j.root, &err)) assert(c.C % c.NH == 0 && gpt2_n_params(&c) > 0);
    if (state_from_json(&s, j.root, &err))
        assert(s.step >= 0 && s.step <= COUNT_MOST && s.samples >= 0 && s.samples <= COUNT_MOST);
    json_free(&j);
    return 0;
}
