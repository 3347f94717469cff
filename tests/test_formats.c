// Files of others: safetensors, llm.c's models, GGUF. What is written is read back to the bit, and
// what is damaged is refused in one line. That llama.cpp's package writes and reads the same:
// test_gguf.py.
#include <float.h>
#include "../dev/files/safetensors.c"
#include "../dev/files/gguf.c"
#include "../dev/data/tokenizer.c"
#include "../dev/base/rng.h"
#include "files.h"
#include "test.h"

typedef struct { unsigned char *bytes; size_t n; } Image;            // a file in memory

// ---- safetensors.c ----

// The header with its length before it, then n_data bytes 0, 1, 2, ...
static Image safe_make(const char *header, size_t n_data) {
    uint64_t length = strlen(header);
    Image m = { NULL, 8 + length + n_data };
    m.bytes = malloc(m.n);
    memcpy(m.bytes, &length, 8);
    memcpy(m.bytes + 8, header, length);
    for (size_t i = 0; i < n_data; i++) m.bytes[8 + length + i] = (unsigned char)i;
    return m;
}

static const SafeTensor *safe_find(const SafeTensors *s, const char *name) {
    for (size_t i = 0; i < s->n_tensors; i++)
        if (strcmp(s->tensors[i].name, name) == 0) return &s->tensors[i];
    return NULL;
}

TEST(safetensors_reads_a_file) {
    Image m = safe_make("{\"b\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[4,12]},"
                        "\"__metadata__\":{\"format\":\"pt\"},"
                        "\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
                        "\"empty\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[4,4]},"
                        "\"scalar\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[12,14]}}  ",
                        14);
    SafeTensors s;
    Error err = { "" };
    bool parsed = safetensors_parse(&s, m.bytes, m.n, &err);
    CHECK_MSG(parsed, "%s", err.text);
    if (!parsed) return;
    const SafeTensor *b = safe_find(&s, "b"), *scalar = safe_find(&s, "scalar");
    CHECK(s.n_tensors == 4 && strcmp(s.tensors[0].name, "b") == 0 && !safe_find(&s, "c"));
    CHECK(b && b->n_dims == 2 && b->dims[0] == 2 && b->dims[1] == 1 && b->count == 2);
    CHECK(scalar && scalar->n_dims == 0 && scalar->count == 1);
    float values[1];
    CHECK(safetensors_is_real(b, &err) && memcmp(b->data, s.data + 4, 8) == 0);
    CHECK(safetensors_is_real(scalar, &err));
    floats_read(values, scalar->data, scalar->count, scalar->dtype->type);
    CHECK(values[0] == float_from_bf16(0x0D0C));
    CHECK(safetensors_is_real(safe_find(&s, "empty"), &err));
    CHECK(!safetensors_is_real(safe_find(&s, "a"), &err));
    CHECK(strcmp(err.text, "tensor \"a\" is U8; expected F32, BF16 or F16") == 0);
    safetensors_close(&s);
    free(m.bytes);
}

static const char *safe_error(const char *bytes, size_t n, Error *err) {
    SafeTensors s;
    unsigned char *copy = malloc(n + !n);
    memcpy(copy, bytes, n);
    snprintf(err->text, sizeof err->text, "accepted");
    if (safetensors_parse(&s, copy, n, err)) safetensors_close(&s);
    free(copy);
    return err->text;
}

TEST(safetensors_refusals) {
    #define ENTRY(dtype, shape, offsets) \
        "{\"a\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
    static const struct { const char *header; size_t n_data; const char *error; } cases[] = {
        { ENTRY("F32", "[2]", "[0,8]"), 7, "truncated: 7 bytes of tensors, the header describes" },
        { ENTRY("F32", "[2]", "[0,8]"), 9, "1 bytes after the last tensor" },
        { ENTRY("F32", "[2]", "[0,4]"), 4, "tensor \"a\": its shape and dtype do not match its 4" },
        { ENTRY("F33", "[2]", "[0,8]"), 8, "tensor \"a\": unknown dtype \"F33\"" },
        { ENTRY("F32", "[2]", "[8,0]"), 8, "tensor \"a\": \"data_offsets\" must be [begin" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "tensor \"a\": \"data_offsets\" is" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        Image m = safe_make(cases[i].header, cases[i].n_data);
        Error err;
        safe_error((const char *)m.bytes, m.n, &err);
        CHECK_MSG(strncmp(err.text, cases[i].error, strlen(cases[i].error)) == 0,
                  "%s: %s; expected: %s", cases[i].header, err.text, cases[i].error);
        free(m.bytes);
    }
}

TEST(safetensors_refuses_foreign_files) {
    Error err;
    CHECK(strstr(safe_error("<!DOCTYPE html><html>404", 24, &err), "a web page (HTML)"));
    CHECK(strstr(safe_error("hello, what is this", 19, &err), "not a safetensors file"));
    CHECK(strstr(safe_error("\x02\0\0\0\0\0\0\0{", 9, &err), "truncated: 9 bytes, but a header"));
}

// Every half there is, against the definition.
TEST(floats_from_halves) {
    for (unsigned bits = 0; bits < 65536; bits++) {
        int exponent = (int)(bits >> 10 & 31), fraction = (int)(bits & 1023);
        double value = exponent == 31 ? (fraction ? NAN : INFINITY)
                     : exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
        float got = float_from_f16((uint16_t)bits), expected = (float)(bits >> 15 ? -value : value);
        bool same = isnan(value) ? isnan(got) : memcmp(&got, &expected, sizeof got) == 0;
        CHECK_MSG(same, "%04x gives %g", bits, got);
    }
    CHECK(float_from_bf16(0x3F80) == 1.0f && float_from_bf16(0xC0A0) == -5.0f);
    CHECK(float_from_bf16(0x7F7F) < FLT_MAX && isinf(float_from_bf16(0x7F80)));
}

// A file of n tensors, whose numbers lie one after the other.
static bool safe_write(const char *path, const SafeOutput *out, size_t n, const float *data,
                       Error *err) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += safetensors_output_count(&out[i]);
    unlink(path);
    int fd = safetensors_create(path, out, n, err);
    bool put = fd >= 0 && file_put(fd, data, count * sizeof *data, path, err);
    return fd >= 0 && file_close(fd, path, err) && put;
}

TEST(safetensors_writes_reads_back_and_refuses_every_cut) {
    Path d = folder_make(NULL), path = in(d.text, "x");
    float data[] = { 1.0f, -0.0f, NAN, INFINITY, FLT_MIN / 8, 3.14159274f };
    const size_t first[3] = { 0, 2, 5 };
    SafeOutput out[3] = { { "transformer.a", 2, { 2, 1 } }, { "b", 1, { 3, 0 } },
                          { "c", 1, { 1, 0 } } };
    Error err = { "" };
    for (size_t n = 0; n <= 3; n++) {
        CHECK_MSG(safe_write(path.text, out, n, data, &err), "%s", err.text);
        SafeTensors s;
        bool opened = safetensors_open(&s, path.text, &err);
        CHECK_MSG(opened && s.n_tensors == n, "%s", err.text);
        CHECK((s.data - s.file.bytes) % 8 == 0);
        for (size_t i = 0; opened && i < n; i++) {
            const SafeTensor *t = safe_find(&s, out[i].name);
            CHECK(t && t->n_dims == out[i].n_dims && t->dims[0] == out[i].dims[0]);
            CHECK(memcmp(t->data, data + first[i], t->end - t->begin) == 0);
        }
        if (opened) safetensors_close(&s);
        Content c = slurp(d.text, "x");
        CHECK(strstr(c.bytes + 8, "\"__metadata__\":{\"format\":\"pt\"}") != NULL);
        for (size_t cut = 0; cut < c.n; cut++)
            CHECK_MSG(strcmp(safe_error(c.bytes, cut, &err), "accepted") != 0, "at %zu", cut);
        free(c.bytes);
    }
    folder_remove(&d);
    CHECK(safetensors_create("/nowhere/x", out, 3, &err) == -1
          && strstr(err.text, "/nowhere/x: cannot"));
}

// ---- llmc.c: model files as llm.c's documentation of the format has them ----

// Element i of a tensor of ours: small whole numbers, which every type holds exactly.
static float value_of(int kind, int layer, size_t i) {
    return (float)(mix64((uint64_t)(kind + 100*layer)*1000000u + i) % 255) - 127.0f;
}

// What llm.c writes: kind by kind, all layers of a kind together, matrices of blocks (out, in), the
// embedding padded with rows that nothing may read.
static Image llmc_make(const Config *c, int padded, int version) {
    size_t extra = (size_t)(padded - c->V) * (size_t)c->C, n = gpt2_n_params(c) + extra;
    Image m = { calloc(1, 1024 + 4*n), 1024 + (version == LLMC_BF16 ? 2 : 4) * n };
    float *at = (float *)(void *)(m.bytes + 1024);
    int32_t header[8] = { 20240326, version, c->P, c->V, c->L, c->NH, c->C, padded };
    memcpy(m.bytes, header, sizeof header);
    for (int kind = 0; kind < N_KINDS; kind++) {
        bool in_block = kind >= LN1_GAIN && kind <= MLP_PROJ_B;
        size_t rows = dim_size(c, tensor_kind(kind)->rows), cols = kind_count(c, kind) / rows;
        for (int layer = 0; layer < (in_block ? c->L : 1); layer++) {
            if (in_block)
                for (size_t out = 0; out < cols; out++)
                    for (size_t in = 0; in < rows; in++)
                        *at++ = value_of(kind, layer, in * cols + out);
            else
                for (size_t i = 0; i < rows * cols; i++) *at++ = value_of(kind, 0, i);
        }
        for (size_t i = 0; kind == WTE && i < extra; i++) *at++ = NAN;
    }
    for (size_t i = 0; version == LLMC_BF16 && i < n; i++)     // the upper half of each
        memcpy(m.bytes + 1024 + 2*i, m.bytes + 1024 + 4*i + 2, 2);
    return m;
}

TEST(llmc_reads_both_versions) {
    const Config configs[] = { { 3, 2, 4, 5, 7, 0 }, { 1, 1, 1, 1, 1, 0 }, { 2, 5, 35, 50, 6, 0 } };
    for (int i = 0; i < 6; i++) {
        Config c = configs[i % 3], read;
        Image m = llmc_make(&c, c.V + (i % 3) * 3, i < 3 ? LLMC_FP32 : LLMC_BF16);
        Path d = folder_make(NULL), path = in(d.text, "gpt2.bin");
        TensorFile f = {0};
        Error err = { "" };
        float *flat = calloc(gpt2_n_params(&c), sizeof *flat);
        put(d.text, "gpt2.bin", m.bytes, m.n);
        CHECK_MSG(checkpoint_config(&read, path.text, &err) && memcmp(&read, &c, sizeof c) == 0
                  && tensor_file_open(&f, path.text, FILE_WEIGHTS, 0, &c, &err), "%s", err.text);
        for (int b = 0; b < gpt2_n_buckets(&c) && !err.text[0]; b++)
            tensor_file_bucket(flat + gpt2_bucket(&c, b).begin, &f, KEPT_WEIGHTS, -1, b);
        for (int k = 0; k < gpt2_n_tensors(&c); k++) {
            Tensor t = gpt2_tensor(&c, k);
            int layer = t.layer < 0 ? 0 : t.layer, wrong = 0;
            for (size_t j = 0; j < t.count; j++)
                wrong += flat[t.offset + j] != value_of(t.kind, layer, j);
            CHECK_MSG(wrong == 0, "%s: %d of %zu", t.key, wrong, t.count);
        }
        tensor_file_close(&f);
        folder_remove(&d);
        free(flat);
        free(m.bytes);
    }
}

TEST(llmc_refuses_bad_headers) {
    static const struct { int word; int32_t value; const char *error; } cases[] = {
        { 0, 20240325, "not a model file of llm.c (its first word must be 20240326)" },
        { 1, 1, "version 1; expected 3 (fp32) or 5 (bf16)" },
        { 3, -1, "word 3 of the header is -1, not a valid size" },
        { 4, 2, "truncated" }, { 2, 1, "damaged" },
        { 5, 4, "4 heads do not divide 2 channels" },
    };
    const Config c = { 1, 1, 2, 3, 2, 0 };
    for (size_t i = 0; i < COUNT(cases); i++) {
        Image m = llmc_make(&c, 4, LLMC_FP32);
        memcpy(m.bytes + 4*cases[i].word, &cases[i].value, 4);
        Config read;
        Error err = { "accepted" };
        llmc_config(&read, m.bytes, m.n, &err);
        CHECK_MSG(strstr(err.text, cases[i].error), "%s; expected: %s", err.text, cases[i].error);
        free(m.bytes);
    }
}

// ---- gguf.c ----

static const Config SMALL = { 2, 2, 4, 5, 7, 0 };

// A model of zeros without a tokenizer, as a file in memory; the caller frees its bytes. What the
// tensors of such a file hold is in test_gguf.py.
static Content gguf_make(const Config *c, FloatType type) {
    Path d = folder_make(NULL), path = in(d.text, "m.gguf");
    GgufHeader h;
    Error err;
    gguf_begin(&h);
    gguf_put_model(&h, c, type);
    gguf_put_array(&h, "tokenizer.ggml.tokens", GGUF_TEXT, (uint64_t)c->V);
    for (int i = 0; i < c->V; i++) gguf_put_text(&h, "", 0);
    gguf_put_tensors(&h, c, type);
    gguf_end(&h);
    int fd = file_create(path.text, &err);
    bool put = fd >= 0 && file_put(fd, h.t.text, h.t.n, path.text, &err);
    for (int i = 0; put && i < gpt2_n_tensors(c); i++) {
        float in[100] = { 0 }, scratch[100];
        Tensor tensor = gpt2_tensor(c, i);
        put = gguf_append(fd, in, &tensor, type, scratch, path.text, &err);
    }
    if (!put || !file_close(fd, path.text, &err)) die("%s", err.text);
    Content content = slurp(d.text, "m.gguf");
    free(h.t.text);
    folder_remove(&d);
    return content;
}

// ---- what gguf.c refuses ----

static const char *gguf_error(const char *bytes, size_t n, Error *err) {
    unsigned char *copy = malloc(n ? n : 1);                     // its end is the heap's
    GgufModel g;
    snprintf(err->text, sizeof err->text, "accepted");
    memcpy(copy, bytes, n);
    if (gguf_model(&g, copy, n, err)) gguf_model_free(&g);
    free(copy);
    return err->text;
}

TEST(gguf_refuses_every_cut) {
    Content m = gguf_make(&SMALL, FLOAT_16);
    Tensor last = gpt2_tensor(&SMALL, gpt2_n_tensors(&SMALL) - 1);
    size_t padding = (32 - 4*last.count % 32) % 32;              // which may be missing
    Error err;
    for (size_t cut = 0; cut < m.n - padding; cut++)
        CHECK_MSG(strcmp(gguf_error(m.bytes, cut, &err), "accepted") != 0, "cut at %zu", cut);
    CHECK_MSG(strcmp(gguf_error(m.bytes, m.n - padding, &err), "accepted") == 0, "%s", err.text);
    CHECK(strstr(gguf_error(m.bytes, m.n + 1, &err), "bytes after the last tensor"));
    free(m.bytes);
}

// The place in the file right after this text.
static char *after(const Content *m, const char *text) {
    size_t n = strlen(text);
    for (char *p = m->bytes; p + n <= m->bytes + m->n; p++)
        if (memcmp(p, text, n) == 0) return p + n;
    return NULL;
}

// The change: the u64 or u32 at so many bytes after the text, or the text itself, becomes `value`.
TEST(gguf_refuses_wrong_fields) {
    const float epsilon = 1.1e-5f;
    uint32_t epsilon_bits;
    memcpy(&epsilon_bits, &epsilon, 4);
    const struct { const char *text; int at; size_t bytes; uint64_t value; const char *error; }
    cases[] = {
        { "GGUF", -4, 4, 0x46554747, "not a GGUF file" },
        { "GGUF", 0, 4, 1, "version 1; expected 2 or 3" },
        { "general.architecture", 12, 4, 0x6A747067, "must be \"gpt2\"; nothing else" },
        { "block_count", 4, 4, 0, "must be a whole number (u32) from 1 to 16384" },
        { "block_count", 4, 4, 1, "tensor \"blk.1.attn_norm.weight\" is not part of this GPT-2" },
        { "context_length", 4, 4, 6, "tensor \"position_embd.weight\" is (4,7), but the sizes need "
          "(4,6)" },
        { "head_count", 4, 4, 3, "3 heads do not divide 4 channels" },
        { "embedding_length", 4, 4, 8, "is 16, not 4 * 8 channels" },
        { "layer_norm_epsilon", 4, 4, epsilon_bits, "layer_norm_epsilon\" must be 1e-5" },
        { "token_embd.weight", 12, 8, 6, "is (4,6), but the sizes need (4,5)" },
        { "token_embd.weight", 20, 4, 2, "has ggml's type 2; expected 0 (F32), 1 (F16) or 30" },
        { "token_embd.weight", 20, 4, 1, "position_embd.weight\" is at byte 96" },   // F16: shorter
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        Content m = gguf_make(&SMALL, FLOAT_32);
        Error err;
        memcpy(after(&m, cases[i].text) + cases[i].at, &cases[i].value, cases[i].bytes);
        if (strcmp(cases[i].error, "not a GGUF file") == 0) m.bytes[0] = 'g';
        CHECK_MSG(strstr(gguf_error(m.bytes, m.n, &err), cases[i].error),
                  "case %zu: %s; expected: %s", i, err.text, cases[i].error);
        CHECK_MSG(!strpbrk(err.text, "\n\r\033"), "case %zu: not one line", i);
        free(m.bytes);
    }
}

// ---- tokenizers in a GGUF ----

// The bytes, end of text and another added token, and two merges.
static void merging_tokenizer(Tokenizer *t) {
    tokenizer_init(t, 260, 2);
    tokenizer_push_bytes(t);
    tokenizer_push_eot(t);
    tokenizer_push(t, "<pad \n>", 7, TOKEN_ADDED);
    tokenizer_push(t, "ab", 2, TOKEN_WHOLE);
    tokenizer_push(t, " ab", 3, TOKEN_WHOLE);
    tokenizer_push_merge(t, 'a', 'b', 258);
    tokenizer_push_merge(t, ' ', 258, 259);
}

// A file of pairs alone, as llama.cpp's own vocabularies are.
TEST(gguf_reads_tokenizers_alone_and_refuses_others) {
    const struct { const char *text; int at; size_t bytes; const char *value, *error; } cases[] = {
        { "", 0, 0, "", "" },
        { "tokenizer.ggml.model", 12, 4, "bert", "\"tokenizer.ggml.model\" must be \"gpt2\"" },
        { "tokenizer.ggml.token_type", -1, 1, "s", "needs lists of tokens" },
        { "tokenizer.ggml.merges", 24, 3, "x b", "merge 1: its parts or its result are not in" },
        { "<|endoftext|>", -13, 1, "x", "no <|endoftext|> among the tokens" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        Tokenizer t, again;
        GgufHeader h;
        Error err = { "" };
        merging_tokenizer(&t);
        gguf_begin(&h);
        tokenizer_put_gguf(&h, &t, t.vocab_size + 3);
        gguf_end(&h);
        Content m = { h.t.text, h.t.n };
        if (cases[i].at)
            memcpy(after(&m, cases[i].text) + cases[i].at, cases[i].value, cases[i].bytes);
        bool good = tokenizer_parse(&again, h.t.text, h.t.n, "", &err);
        CHECK_MSG(good == (i == 0) && strstr(err.text, cases[i].error), "%s; expected: %s",
                  err.text, cases[i].error);
        CHECK(!good || same_tokenizer(&t, &again));
        if (good) tokenizer_free(&again);
        free(h.t.text);
        tokenizer_free(&t);
    }
}

// Against the definition: the nearest half, ties to even; infinite past halfway to 65,536.
TEST(halves_from_floats) {
    for (unsigned bits = 0; bits < 0x7C00; bits++) {
        float low = float_from_f16((uint16_t)bits), high = float_from_f16((uint16_t)(bits + 1));
        float middle = bits == 0x7BFF ? 65520.0f : low + (high - low) / 2;       // exact
        CHECK_MSG(f16_from_float(low) == bits && f16_from_float(-low) == (bits | 0x8000),
                  "%04x becomes %04x", bits, f16_from_float(low));
        CHECK_MSG(f16_from_float(middle) == bits + bits % 2, "%g becomes %04x", middle,
                  f16_from_float(middle));
        CHECK_MSG(f16_from_float(nextafterf(middle, 0.0f)) == bits, "below %g", middle);
        CHECK_MSG(f16_from_float(nextafterf(middle, INFINITY)) == bits + 1, "above %g", middle);
    }
    CHECK(f16_from_float(INFINITY) == 0x7C00 && f16_from_float(-1e30f) == 0xFC00);
    CHECK(isnan(float_from_f16(f16_from_float(NAN))) && f16_from_float(1e-30f) == 0);
}

int main(void) {
    *program_name() = "test_formats";
    return run_tests();
}
