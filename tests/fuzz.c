// Fuzzes everything that reads files: whatever the bytes, no crash; and what is accepted keeps what
// every later use relies on. test_fuzz.sh builds it with libFuzzer; a copy that is called fuzz_json
// runs fuzz_json().
//
// A new parser gets a function, a row of TARGETS, and seeds in test_fuzz.sh. What it finds is made
// small (-minimize_crash=1 -runs=100000 INPUT), mended, and kept as a case of the parser's own
// test.
#include <assert.h>
#include "../dev/data/entropy.c"
#include "../dev/data/tokenizer.c"
#include "../dev/files/checkpoint.c"
#include "../dev/files/safetensors.c"
#include "../dev/files/weights.c"

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
    if (tensor_file_check(&f, &err) && tensor_file_check_others(&f, &err))
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
        float *values = (float *)malloc(s.tensors[i].count * sizeof(float) + 1);
        if (values) safetensors_read(values, &s.tensors[i], &err);
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
    for (int b = 0; numbers && b < gpt2_n_buckets(&c); b++)
        llmc_params(numbers, gpt2_bucket(&c, b), &c, data);
    free(numbers);
}

static void fuzz_gguf(const uint8_t *data, size_t size) {
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
    if (!gguf_model(&m, data, size, &err)) return;
    assert(m.c.C % m.c.NH == 0);
    for (int i = 0; i < gpt2_n_tensors(&m.c); i++) {
        float *values = (float *)malloc(gpt2_tensor(&m.c, i).count * sizeof *values);
        if (values) gguf_tensor(values, &m, i);
        free(values);
    }
    gguf_model_free(&m);
}

// ---- vocabularies ----

// Vocabulary files, and encoding with whatever vocabulary they turn out to hold: every text must
// come back, by one thread and by several.
//
// An accepted vocabulary has a token for each of 256 bytes, two kilobytes that a fuzzer would only
// break. So the first byte of an input may put them before the rest:
//
//     \1    tiktoken lines of the 256 bytes, then the input
//     \2    a tokenizer.json up to its 256 bytes and end of text, then the input
//     \3    a whole vocab.json; the input is the merges.txt beside it
//
// Any other input is a file as it stands; a NUL in it ends a vocab.json, and a merges.txt follows.

typedef struct { char *text; size_t n; } Opening;
typedef struct { Opening tiktoken, tokenizer_json, vocab_json; Json vocab; } Openings;

static void print_tiktoken(FILE *f) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (int b = 0; b < 256; b++) fprintf(f, "%c%c== %d\n", digits[b >> 2], digits[b << 4 & 63], b);
}

// Bytes, some of which the merges may reach, and end of text; without the last bracket.
static void print_vocab(FILE *f) {
    Tokenizer t;
    static const char *const more[] = { "ab", "abc", "aa", "aaaa", "bcd", "abcd", "Ġa", "Ġab" };
    tokenizer_bytes(&t);
    fputs("{\"" END_OF_TEXT "\":256", f);
    for (int id = 0; id < 256; id++) {
        char chars[2];
        fputc(',', f);
        token_print(f, &t, id, chars);
        fprintf(f, ":%d", id);
    }
    for (int i = 0; i < (int)(sizeof more / sizeof *more); i++)
        fprintf(f, ",\"%s\":%d", more[i], 257 + i);
    tokenizer_free(&t);
}

static Openings prefixes_make(void) {
    Openings p;
    Error err;
    FILE *f = open_memstream(&p.tiktoken.text, &p.tiktoken.n);
    print_tiktoken(f);
    fclose(f);
    f = open_memstream(&p.tokenizer_json.text, &p.tokenizer_json.n);
    fputs("{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"vocab\":", f);
    print_vocab(f);
    fclose(f);
    f = open_memstream(&p.vocab_json.text, &p.vocab_json.n);
    print_vocab(f);
    fputs("}", f);
    fclose(f);
    if (!json_parse(&p.vocab, p.vocab_json.text, p.vocab_json.n, &err)) die("%s", err.text);
    return p;
}

// Made once: they are most of the work otherwise.
static const Openings *prefixes(void) {
    static Openings made;
    if (!made.tiktoken.text) made = prefixes_make();
    return &made;
}

static bool parse_after(Tokenizer *t, const Opening *p, const char *text, size_t n, Error *err) {
    char *whole = (char *)alloc_or_die(p->n + n, "the file");
    memcpy(whole, p->text, p->n);
    memcpy(whole + p->n, text, n);
    bool good = tokenizer_parse(t, whole, p->n + n, "/nowhere/vocab.json", err);
    free(whole);
    return good;
}

static bool parse_vocab(Tokenizer *t, const Json *vocab, size_t vocab_bytes, const char *merges,
                        size_t n, Error *err) {
    FileMap text = { (const unsigned char *)merges, n };
    bool good = vocab->root->type == JSON_OBJECT
             && vocab_read(t, vocab->root, NULL, vocab_bytes, NULL, text, err);
    if (!good) tokenizer_free(t);
    return good;
}

static bool parse_pair(Tokenizer *t, const char *text, size_t n, const char *nul, Error *err) {
    Json j;
    size_t json_n = (size_t)(nul - text);
    if (!json_parse(&j, text, json_n, err)) return false;
    bool good = parse_vocab(t, &j, json_n, nul + 1, n - json_n - 1, err);
    json_free(&j);
    return good;
}

static bool parse_input(Tokenizer *t, const char *text, size_t n, Error *err) {
    const Openings *p = prefixes();
    memset(t, 0, sizeof *t);
    if (n == 0) return false;
    if (text[0] == 1) return parse_after(t, &p->tiktoken, text + 1, n - 1, err);
    if (text[0] == 2) return parse_after(t, &p->tokenizer_json, text + 1, n - 1, err);
    if (text[0] == 3) return parse_vocab(t, &p->vocab, p->vocab_json.n, text + 1, n - 1, err);
    const char *nul = (const char *)memchr(text, 0, n);
    return nul ? parse_pair(t, text, n, nul, err)
               : tokenizer_parse(t, text, n, "/nowhere/vocab.json", err);
}

static void check_text(const Tokenizer *t, const char *text, size_t n) {
    int *ids = (int *)malloc((n + 1) * sizeof *ids), *same = (int *)malloc((n + 1) * sizeof *ids);
    size_t count = tokenizer_encode(t, ids, text, n), at = 0, length;
    assert(count <= n);
    for (size_t i = 0; i < count; i++) {
        assert(ids[i] >= 0 && ids[i] < t->vocab_size && t->kind[ids[i]] != TOKEN_ADDED);
        const char *piece = tokenizer_piece(t, ids[i], &length);
        assert(at + length <= n && memcmp(piece, text + at, length) == 0);
        at += length;
    }
    assert(at == n && tokenizer_encode_parallel(t, same, text, n) == count);
    assert(memcmp(ids, same, count * sizeof *ids) == 0);
    free(ids);
    free(same);
}

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
    check_text(t, text, at);
}

static void fuzz_tokenizer(const uint8_t *data, size_t n) {
    const char *text = (const char *)data;
    Tokenizer t;
    Error err;
    if (!parse_input(&t, text, n, &err)) return;
    assert(t.vocab_size > 256 && t.eot >= 0 && t.eot < t.vocab_size);
    assert(t.kind[t.eot] == TOKEN_ADDED);
    check_merges(&t);
    check_long_text(&t);
    check_text(&t, text, n < 200 ? n : 200);
    for (int id = 256; id < t.vocab_size && id < 300; id++) {    // most files begin with the bytes
        size_t length;
        const char *piece = tokenizer_piece(&t, id, &length);
        check_text(&t, piece, length);
    }
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
    if (loader_agree(&l, &err) && loader_count(&l, "a", &err)) {
        check_windows(&l, 1 + (data[24] | data[25] << 8));
        if (l.eot > 0) check_floor(&l);
    }
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
