// Shards: whatever the bytes, no crash; and of an accepted one every window can be read, holds the
// tokens that stand in the file, and none outside the vocabulary.
//
// The file stands in the loader twice, so that windows of a second shard are read as well. Two
// words that the header does not use choose the windows' length and the model's vocabulary.
#include "../../dev/data/entropy.c"

static void check_window(const Loader *l, size_t window, const int *inputs, const int *targets) {
    size_t T = (size_t)l->T, half = l->n_windows / 2;
    const uint16_t *tokens = l->shards[0].tokens + window % half * T;
    for (size_t t = 0; t < T; t++) {
        assert(inputs[t] == tokens[t] && targets[t] == tokens[t + 1]);
        assert(inputs[t] < l->limit && targets[t] < l->limit);
    }
}

// Whole documents lie within their windows, and none is counted twice.
static void check_floor(const Loader *l) {
    ShardFloor one[2];
    Floor f = { true, one, 2, 0.0, 0 };
    WholeScore score = { 0.0, 0.0, 0 };
    floor_find_documents(&one[0], &l->shards[0]);
    one[1] = one[0];
    float *loss = (float *)calloc((size_t)l->T, sizeof *loss);
    for (size_t i = 0; i < l->n_windows; i++) floor_score_window(&score, &f, l, i, loss);
    assert(score.tokens <= l->n_tokens && score.loss == 0.0 && score.floor == 0.0);
    free(loss);
    free(one[0].end);
    free(one[0].nats);
}

static void check_windows(Loader *l, int vocab) {
    Error err;
    size_t T = (size_t)l->T;
    int *inputs = (int *)malloc(2*T * sizeof *inputs), *targets = (int *)malloc(2*T * sizeof(int));
    bool whole = loader_check_vocab(l, vocab, &err);
    for (size_t i = 0; i < l->n_windows; i++) {
        bool good = loader_window(l, i, inputs, targets, &err);
        assert(good || !whole);
        if (good) check_window(l, i, inputs, targets);
        assert(permute(i, l->n_windows, l->seed, i) < l->n_windows);
    }
    bool good = loader_batch(l, UINT64_MAX - 2, 2, inputs, targets, &err);
    assert(good || !whole);
    free(inputs);
    free(targets);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[] = "a";
    Shard s;
    Error err;
    memset(&s, 0, sizeof s);
    s.path = path;
    s.map = data;
    s.map_bytes = size;
    if (!shard_parse(&s, &err)) return 0;
    assert(SHARD_HEADER_BYTES + 2*s.n_tokens == size && s.vocab <= SHARD_MAX_VOCAB);
    assert(s.eot == 0 || s.eot < s.vocab);
    Loader l;
    Shard twice[2] = { s, s };
    memset(&l, 0, sizeof l);
    l.shards = twice;
    l.n_shards = 2;
    l.T = 1 + data[20] % 32;
    l.seed = data[21];
    if (loader_agree(&l, &err) && loader_count(&l, "a", &err)) {
        check_windows(&l, 1 + (data[24] | data[25] << 8));
        if (l.eot > 0) check_floor(&l);
    }
    free(l.first_window);
    return 0;
}
