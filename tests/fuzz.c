// Fuzzes everything that reads files: whatever the bytes, no crash; and what is accepted keeps what
// every later use relies on. test_fuzz.sh builds it with libFuzzer; a copy that is called fuzz_json
// runs fuzz_json().
//
// A new parser gets a function, a row of TARGETS, and seeds in test_fuzz.sh. What it finds is made
// small (-minimize_crash=1 -runs=100000 INPUT), mended, and kept as a case of the parser's own
// test.
#include <assert.h>
#include "../dev/data/tokenizer.c"
#include "../dev/files/checkpoint.c"
#include "../dev/files/safetensors.c"
#include "../dev/files/weights.c"
#include "files.h"

// ---- JSON ----

// What is accepted has one meaning, so its tree adds up. As config.json and as state.json, accepted
// sizes and counts fit their ranges.
static void fuzz_json(const uint8_t *data, size_t size) {
    Json j;
    Error err;
    if (!json_parse(&j, (const char *)data, size, &err)) return;
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
}

// ---- safetensors ----

// Every tensor of an accepted file can be read in full.
//
// A file begins with the length of its header, which no longer fits when a fuzzer inserts a byte.
// So an input that begins with the header's bracket gets its length put before it; the header then
// ends at the first NUL, and the tensors' bytes follow.

// As one of a checkpoint's files, of the smallest model, with one worker.
static void check_kept(const SafeTensors *s, KeptFile file) {
    const Config c = { 1, 1, 2, 3, 2, 0 };
    TensorFile f;
    Error err;
    float numbers[100];
    if (gpt2_largest_bucket(&c) > sizeof numbers / sizeof *numbers) abort();
    memset(&f, 0, sizeof f);
    f.s = *s;
    f.config = c;
    f.first = kept_file_first(file, 1);
    f.end = kept_file_first(file + 1, 1);
    if (tensor_file_check(&f, &err))
        for (int i = f.first; i < f.end; i++)
            for (int b = 0; b < gpt2_n_buckets(&c); b++)
                tensor_file_bucket(numbers, &f, series_at(i).what, series_at(i).worker, b);
    free(f.tensors);
}

static void check_file(const unsigned char *bytes, size_t n) {
    SafeTensors s;
    Error err;
    if (!safetensors_parse(&s, bytes, n, &err)) return;
    for (size_t i = 0; i < s.n_tensors; i++) {
        const SafeTensor *t = &s.tensors[i];
        float *values = (float *)malloc(t->count * sizeof(float) + 1);
        if (values && safetensors_is_real(t, &err))
            floats_read(values, t->data, t->count, t->dtype->type);
        free(values);
    }
    for (int file = 0; file < N_FILES; file++) check_kept(&s, (KeptFile)file);
    safetensors_close(&s);
}

static void fuzz_safetensors(const uint8_t *data, size_t size) {
    if (size == 0 || data[0] != '{') {
        check_file(data, size);
        return;
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
}

// ---- a model in one file, a GGUF or llm.c's ----

// Every tensor of an accepted model can be read in full, and an accepted tokenizer encodes every
// byte.

static void check_llmc(const uint8_t *data, size_t size) {
    Config c;
    Error err;
    if (!llmc_config(&c, data, size, &err)) return;
    float *numbers = (float *)malloc(gpt2_largest_bucket(&c) * sizeof *numbers);
    for (int i = 0; numbers && i < gpt2_n_tensors(&c); i++) {
        Tensor t = gpt2_tensor(&c, i);
        llmc_tensor(numbers, &t, &c, data);
    }
    free(numbers);
}

static void fuzz_gguf(const uint8_t *data, size_t size) {
    GgufModel m;
    Tokenizer t;
    Error err;
    if (gguf_is(data, size) && tokenizer_parse(&t, (const char *)data, size, "", &err)) {
        char text[256];
        for (int b = 0; b < 256; b++) text[b] = (char)b;
        assert(comes_back(&t, text, sizeof text) && t.eot >= 0 && t.eot < t.vocab_size);
        tokenizer_free(&t);
    }
    check_llmc(data, size);
    if (!gguf_model(&m, data, size, &err)) return;
    assert(m.c.C % m.c.NH == 0);
    for (int i = 0; i < gpt2_n_tensors(&m.c); i++) {
        const Tensor tensor = gpt2_tensor(&m.c, i);
        const GgufTensor *g = &m.tensors[i];
        float *values = (float *)malloc(tensor.count * sizeof *values);
        if (values) tensor_read(values, m.data + g->offset, &tensor, true, g->type);
        free(values);
    }
    gguf_model_free(&m);
}

// ---- vocabularies ----

// Vocabulary files, and encoding with whatever vocabulary they turn out to hold: every text must
// come back. A seed holds all of the 256 bytes, since no vocabulary is accepted without.

// Each merge puts two tokens together.
static void check_merges(const Tokenizer *t) {
    for (const Merge *m = t->merges; m < t->merges + t->n_merges; m++) {
        size_t a, b, n;
        assert(m->left >= 0 && m->left < t->vocab_size && m->right >= 0);
        assert(m->right < t->vocab_size && m->result >= 0 && m->result < t->vocab_size);
        const char *left = tokenizer_piece(t, m->left, &a);
        const char *right = tokenizer_piece(t, m->right, &b);
        const char *both = tokenizer_piece(t, m->result, &n);
        assert(n == a + b && memcmp(both, left, a) == 0 && memcmp(both + a, right, b) == 0);
    }
}

// The tokens beyond the bytes, again and again: a long word, if they are letters.
static void check_long_text(const Tokenizer *t) {
    char text[256];
    size_t at = 0, length;
    for (int i = 0; i < 256; i++) {
        int id = 256 + i % (t->vocab_size - 256);
        if (t->kind[id] == TOKEN_ADDED) continue;
        const char *piece = tokenizer_piece(t, id, &length);
        if (at + length > sizeof text) break;
        memcpy(text + at, piece, length);
        at += length;
    }
    assert(comes_back(t, text, at));
}

static void fuzz_tokenizer(const uint8_t *data, size_t n) {
    const char *text = (const char *)data;
    Tokenizer t;
    Error err;
    if (!tokenizer_parse(&t, text, n, "/nowhere/vocab.json", &err)) return;
    assert(t.vocab_size > 256 && t.eot >= 0 && t.eot < t.vocab_size);
    assert(t.kind[t.eot] == TOKEN_ADDED);
    check_merges(&t);
    check_long_text(&t);
    assert(comes_back(&t, text, n < 200 ? n : 200));
    tokenizer_free(&t);
}

// ---- shards ----

// Of an accepted shard every window can be read, holds the tokens that stand in the file, and none
// outside the vocabulary.
//
// The file stands in the loader twice, so that windows of a second shard are read as well. Two
// words that the header does not use choose the windows' length and the model's vocabulary.

static void check_window(const Loader *l, size_t window, const int *inputs, const int *targets) {
    size_t T = (size_t)l->T, half = l->n_windows / 2;
    const uint16_t *tokens = l->shards[0].tokens + window % half * T;
    for (size_t t = 0; t < T; t++) {
        assert(inputs[t] == tokens[t] && targets[t] == tokens[t + 1]);
        assert(inputs[t] < l->limit && targets[t] < l->limit);
    }
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

static void fuzz_shard(const uint8_t *data, size_t size) {
    char path[] = "a";
    Shard s;
    Error err;
    memset(&s, 0, sizeof s);
    s.path = path;
    s.map = data;
    s.map_bytes = size;
    if (!shard_parse(&s, &err)) return;
    assert(SHARD_HEADER_BYTES + 2*s.n_tokens == size && s.vocab <= SHARD_MAX_VOCAB);
    assert(s.eot == 0 || s.eot < s.vocab);
    Loader l;
    Shard twice[2] = { s, s };
    memset(&l, 0, sizeof l);
    l.shards = twice;
    l.n_shards = 2;
    l.T = 1 + data[20] % 32;
    l.seed = data[21];
    if (loader_agree(&l, &err) && loader_count(&l, "a", &err))
        check_windows(&l, 1 + (data[24] | data[25] << 8));
    free(l.first_window);
}

// ---- the targets ----

typedef void Target(const uint8_t *data, size_t size);
static const struct { const char *name; Target *run; } TARGETS[] = {
    { "json", fuzz_json }, { "safetensors", fuzz_safetensors }, { "gguf", fuzz_gguf },
    { "tokenizer", fuzz_tokenizer }, { "shard", fuzz_shard },
};
static Target *target;

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv) {
    const char *name = *argc > 0 ? strrchr((*argv)[0], '_') : NULL;
    for (size_t i = 0; name && i < sizeof TARGETS / sizeof *TARGETS; i++)
        if (strcmp(name + 1, TARGETS[i].name) == 0) target = TARGETS[i].run;
    if (!target) die("fuzz: call it fuzz_NAME, NAME a target");
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    target(data, size);
    return 0;
}
