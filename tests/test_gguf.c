// gguf.c: what is written is read back to the bit, and what is damaged is refused in one line. That
// llama.cpp's package writes and reads the same: tests/test_gguf.py.
#include "../dev/files/gguf.c"
#include "../dev/data/tokenizer.c"
#include "../dev/base/rng.h"
#include "files.h"
#include "test.h"
#include "tokenizers.h"

// ---- files ----

static const Config SMALL = { 2, 2, 4, 5, 7, 0 };

// Element i of a tensor of ours: small whole numbers, which every type holds exactly.
static float value_at(const Tensor *t, size_t i) {
    uint64_t place = (uint64_t)(t->kind + 100*(t->layer + 1))*1000000u + i;
    return (float)(mix64(place) % 255) - 127.0f;
}

// A model whose tensors hold value_at, and this tokenizer; NULL: a list of empty tokens.
static bool write_file(const char *path, const Config *c, FloatType type, const Tokenizer *t,
                       Error *err) {
    GgufHeader h;
    float *scratch = malloc(4*(size_t)c->C*(size_t)c->C * sizeof *scratch);
    gguf_begin(&h);
    gguf_put_model(&h, c, type);
    if (t) tokenizer_put_gguf(&h, t, c->V);
    else gguf_put_array(&h, "tokenizer.ggml.tokens", GGUF_TEXT, (uint64_t)c->V);
    for (int i = 0; !t && i < c->V; i++) gguf_put_text(&h, "", 0);
    gguf_put_tensors(&h, c, type);
    gguf_end(&h);
    unlink(path);
    int fd = file_create(path, err);
    bool put = fd >= 0 && file_put(fd, h.t.text, h.t.n, path, err);
    for (int i = 0; put && i < gpt2_n_tensors(c); i++) {
        Tensor tensor = gpt2_tensor(c, i);
        float *in = malloc(tensor.count * sizeof *in);
        for (size_t j = 0; j < tensor.count; j++) in[j] = value_at(&tensor, j);
        put = gguf_append(fd, in, &tensor, type, scratch, path, err);
        free(in);
    }
    free(scratch);
    free(h.t.text);
    return fd >= 0 && file_close(fd, path, err) && put;
}

// The same in memory; the caller frees its bytes.
static Content image_make(const Config *c, FloatType type) {
    Path d = folder_make(NULL);
    Error err;
    if (!write_file(in(d.text, "m.gguf").text, c, type, NULL, &err)) die("%s", err.text);
    Content content = slurp(d.text, "m.gguf");
    folder_remove(&d);
    return content;
}

// Whether every element is where gpt2.h has it.
static void check_values(const GgufModel *g, const Config *c) {
    CHECK(memcmp(&g->c, c, sizeof *c) == 0);
    for (int i = 0; i < gpt2_n_tensors(c); i++) {
        Tensor t = gpt2_tensor(c, i);
        float *out = malloc(t.count * sizeof *out);
        size_t wrong = 0;
        gguf_tensor(out, g, i);
        for (size_t j = 0; j < t.count; j++) wrong += out[j] != value_at(&t, j);
        CHECK_MSG(wrong == 0, "%s: %zu of %zu", t.key, wrong, t.count);
        free(out);
    }
}

// ---- refusals ----

static const char *error_of(const char *bytes, size_t n, Error *err) {
    unsigned char *copy = malloc(n ? n : 1);                     // its end is the heap's
    GgufModel g;
    snprintf(err->text, sizeof err->text, "accepted");
    memcpy(copy, bytes, n);
    if (gguf_model(&g, copy, n, err)) gguf_model_free(&g);
    free(copy);
    return err->text;
}

TEST(refuses_every_cut) {
    Content m = image_make(&SMALL, FLOAT_16);
    Tensor last = gpt2_tensor(&SMALL, gpt2_n_tensors(&SMALL) - 1);
    size_t padding = (32 - 4*last.count % 32) % 32;              // which may be missing
    Error err;
    for (size_t cut = 0; cut < m.n - padding; cut++)
        CHECK_MSG(strcmp(error_of(m.bytes, cut, &err), "accepted") != 0, "cut at %zu", cut);
    CHECK_MSG(strcmp(error_of(m.bytes, m.n - padding, &err), "accepted") == 0, "%s", err.text);
    CHECK(strstr(error_of(m.bytes, m.n + 1, &err), "bytes after the last tensor"));
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
TEST(refuses_wrong_fields) {
    const float epsilon = 1.1e-5f;
    uint32_t epsilon_bits;
    memcpy(&epsilon_bits, &epsilon, 4);
    const struct { const char *text; int at; size_t bytes; uint64_t value; const char *error; }
    cases[] = {
        { "GGUF", -4, 4, 0x46554747, "not a GGUF file" },
        { "GGUF", 0, 4, 1, "version 1; expected 2 or 3" },
        { "GGUF", 4, 8, 27, "bytes after the last tensor" },
        { "general.architecture", 12, 4, 0x6A747067, "must be \"gpt2\"; nothing else" },
        { "block_count", 0, 4, 5, "\"gpt2.block_count\" must be a whole number (u32) from 1" },
        { "block_count", 4, 4, 0, "from 1 to 16384" },
        { "block_count", 4, 4, 1, "tensor \"blk.1.attn_norm.weight\" is not part of this GPT-2" },
        { "context_length", 4, 4, 6, "tensor \"position_embd.weight\" is (4,7), but the sizes need "
          "(4,6)" },
        { "head_count", 4, 4, 3, "3 heads do not divide 4 channels" },
        { "embedding_length", 4, 4, 8, "is 16, not 4 * 8 channels" },
        { "layer_norm_epsilon", 4, 4, epsilon_bits, "layer_norm_epsilon\" must be 1e-5" },
        { "tokenizer.ggml.tokens", 4, 4, 9, "pair 9 of 9" },
        { "token_embd.weight", 0, 4, 5, "tensor 1 of 28" },              // sizes
        { "token_embd.weight", 12, 8, 6, "is (4,6), but the sizes need (4,5)" },
        { "token_embd.weight", 20, 4, 2, "has ggml's type 2; expected 0 (F32), 1 (F16) or 30" },
        { "blk.1.attn_norm.weight", -18, 1, '0', "two tensors are called \"blk.0.attn_norm" },
        { "token_embd.weight", 20, 4, 1, "position_embd.weight\" is at byte 96" },   // F16: shorter
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        Content m = image_make(&SMALL, FLOAT_32);
        Error err;
        memcpy(after(&m, cases[i].text) + cases[i].at, &cases[i].value, cases[i].bytes);
        if (strcmp(cases[i].error, "not a GGUF file") == 0) m.bytes[0] = 'g';
        CHECK_MSG(strstr(error_of(m.bytes, m.n, &err), cases[i].error),
                  "case %zu: %s; expected: %s", i, err.text, cases[i].error);
        CHECK_MSG(!strpbrk(err.text, "\n\r\033"), "case %zu: not one line", i);
        free(m.bytes);
    }
}

// ---- writing, and tokenizers ----

static const char merging[] =
    "{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"added_tokens\":["
    "{\"id\":256,\"content\":\"<|endoftext|>\"},{\"id\":257,\"content\":\"<pad \\n>\"}],"
    "\"model\":{\"merges\":[\"a b\",\"Ġ ab\"],\"vocab\":{\"ab\":258,\"Ġab\":259";

// The bytes, end of text and another added token, and two merges.
static void merging_tokenizer(Tokenizer *t) {
    Tokenizer bytes;
    Error err = { "" };
    char *json;
    size_t n;
    FILE *f = open_memstream(&json, &n);
    tokenizer_bytes(&bytes);
    fputs(merging, f);
    for (int id = 0; id < 256; id++) {
        char chars[2];
        fputc(',', f);
        token_print(f, &bytes, id, chars);
        fprintf(f, ":%d", id);
    }
    fputs("}}}", f);
    fclose(f);
    CHECK_MSG(tokenizer_parse(t, json, n, "", &err), "%s", err.text);
    free(json);
    tokenizer_free(&bytes);
}

TEST(writes_what_it_reads) {
    Path d = folder_make(NULL), path = in(d.text, "m.gguf");
    for (int i = 0; i < 4; i++) {
        Tokenizer t, again;
        GgufModel g;
        FileMap file;
        Error err = { "" };
        if (i < 2) tokenizer_bytes(&t);
        else merging_tokenizer(&t);
        Config c = { 2, 3, 33, t.vocab_size + (i % 2 ? 7 : 0), 5, 0 };   // 7: rows without a token
        CHECK_MSG(write_file(path.text, &c, i % 2 ? FLOAT_16 : FLOAT_32, &t, &err), "%s", err.text);
        bool good = file_map(&file, path.text, &err) && gguf_model(&g, file.bytes, file.n, &err);
        CHECK_MSG(good, "%s", err.text);
        if (!good) continue;
        check_values(&g, &c);
        for (int k = 0; k < gpt2_n_tensors(&c); k++) {
            Tensor tensor = gpt2_tensor(&c, k);
            bool half = i % 2 && tensor.decays && tensor.kind != WPE;
            CHECK(g.tensors[k].type == (half ? FLOAT_16 : FLOAT_32));
            CHECK(g.tensors[k].offset % 32 == 0 && (size_t)(g.data - file.bytes) % 32 == 0);
        }
        CHECK(file.n % 32 == 0);
        gguf_model_free(&g);
        file_unmap(&file);
        good = tokenizer_load(&again, path.text, &err);
        CHECK_MSG(good, "%s", err.text);
        CHECK(!good || same_tokenizer(&t, &again));
        if (good) tokenizer_free(&again);
        tokenizer_free(&t);
    }
    folder_remove(&d);
}

// A file of pairs alone, as llama.cpp's own vocabularies are.
TEST(reads_tokenizers_alone_and_refuses_others) {
    const struct { const char *text; int at; size_t bytes; const char *value, *error; } cases[] = {
        { "", 0, 0, "", "" },
        { "tokenizer.ggml.model", 12, 4, "bert", "\"tokenizer.ggml.model\" must be \"gpt2\"" },
        { "tokenizer.ggml.pre", 12, 1, "q", "\"tokenizer.ggml.pre\" must be \"gpt-2\"" },
        { "tokenizer.ggml.token_type", -1, 1, "s", "needs lists of tokens" },
        { "tokenizer.ggml.tokens", 24, 2, "\xC7\x80", "token 0 is not in GPT-2's alphabet" },
        { "tokenizer.ggml.merges", 24, 3, "x b", "merge 1: its result is not in the vocabulary" },
        { "<|endoftext|>", -13, 1, "x", "no <|endoftext|> among the tokens" },
        { "one type alone", 0, 0, "", "needs lists of tokens" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        Tokenizer t, again;
        GgufHeader h;
        Error err = { "" };
        merging_tokenizer(&t);
        gguf_begin(&h);
        if (strcmp(cases[i].text, "one type alone") == 0) {      // the first of two pairs counts
            gguf_put_array(&h, "tokenizer.ggml.token_type", GGUF_I32, 1);
            gguf_put_u32(&h, GGUF_TOKEN_NORMAL);
        }
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
TEST(halves) {
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
    *program_name() = "test_gguf";
    return run_tests();
}
