// safetensors.c: what is written reads back to the bit, and no damaged file gets through.
#include <float.h>

#include "../dev/files/safetensors.c"
#include "files.h"
#include "test.h"

// A whole file in memory: the header with its length before it, then n_data bytes 0, 1, 2, ...
typedef struct { unsigned char *bytes; size_t n; } Image;

static Image image_make(const char *header, size_t n_data) {
    uint64_t length = strlen(header);
    Image m = { NULL, 8 + length + n_data };
    m.bytes = malloc(m.n);
    memcpy(m.bytes, &length, 8);
    memcpy(m.bytes + 8, header, length);
    for (size_t i = 0; i < n_data; i++) m.bytes[8 + length + i] = (unsigned char)i;
    return m;
}

static const SafeTensor *safetensors_find(const SafeTensors *s, const char *name) {
    for (size_t i = 0; i < s->n_tensors; i++)
        if (strcmp(s->tensors[i].name, name) == 0) return &s->tensors[i];
    return NULL;
}

TEST(reads_a_file) {
    Image m = image_make("{\"b\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[4,12]},"
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
    const SafeTensor *b = safetensors_find(&s, "b"), *scalar = safetensors_find(&s, "scalar");
    CHECK(s.n_tensors == 4 && strcmp(s.tensors[0].name, "b") == 0 && !safetensors_find(&s, "c"));
    CHECK(b && b->n_dims == 2 && b->dims[0] == 2 && b->dims[1] == 1 && b->count == 2);
    CHECK(scalar && scalar->n_dims == 0 && scalar->count == 1);
    float values[2];
    CHECK(safetensors_read(values, b, &err) && memcmp(values, s.data + 4, 8) == 0);
    CHECK(safetensors_read(values, scalar, &err) && values[0] == float_from_bf16(0x0D0C));
    CHECK(safetensors_read(values, safetensors_find(&s, "empty"), &err));
    CHECK(!safetensors_read(values, safetensors_find(&s, "a"), &err));
    CHECK(strcmp(err.text, "tensor \"a\" is U8; expected F32, BF16 or F16") == 0);
    safetensors_close(&s);
    free(m.bytes);
}

TEST(refusals) {
    #define ENTRY(dtype, shape, offsets) \
        "{\"a\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
    static const struct { const char *header; size_t n_data; const char *error; } cases[] = {
        { ENTRY("F32", "[2]", "[0,8]"), 7, "truncated: 7 bytes of tensors, the header describes" },
        { ENTRY("F32", "[2]", "[0,8]"), 9, "1 bytes after the last tensor" },
        { ENTRY("F32", "[2]", "[0,4]"), 4, "tensor \"a\": its shape and dtype do not match its 4" },
        { ENTRY("F33", "[2]", "[0,8]"), 8, "tensor \"a\": unknown dtype \"F33\"" },
        { ENTRY("F32", "[-2]", "[0,8]"), 8, "tensor \"a\": \"shape\" must list sizes" },
        { ENTRY("F32", "[4294967296,4294967296]", "[0,0]"), 0, "tensor \"a\": its shape" },
        { ENTRY("F32", "[2]", "[8,0]"), 8, "tensor \"a\": \"data_offsets\" must be [begin" },
        { ENTRY("F32", "2", "[0,8]"), 8, "tensor \"a\": byte 28: \"shape\" must be a list, not a" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "tensor \"a\": \"data_offsets\" is" },
        { "{\"a\":3}", 4, "tensor \"a\": \"dtype\" is missing" },
        { "", 0, "the header: byte 0: the text ends where a value was expected" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        Image m = image_make(cases[i].header, cases[i].n_data);
        SafeTensors s;
        Error err = { "accepted" };
        if (safetensors_parse(&s, m.bytes, m.n, &err)) safetensors_close(&s);
        CHECK_MSG(strncmp(err.text, cases[i].error, strlen(cases[i].error)) == 0,
                  "%s: %s; expected: %s", cases[i].header, err.text, cases[i].error);
        free(m.bytes);
    }
}

static const char *error_of(const char *bytes, size_t n, Error *err) {
    SafeTensors s;
    unsigned char *copy = malloc(n + !n);
    memcpy(copy, bytes, n);
    snprintf(err->text, sizeof err->text, "accepted");
    if (safetensors_parse(&s, copy, n, err)) safetensors_close(&s);
    free(copy);
    return err->text;
}

TEST(foreign_files) {
    Error err;
    CHECK(strstr(error_of("<!DOCTYPE html><html>404", 24, &err), "a web page (HTML)"));
    CHECK(strstr(error_of("PK\x03\x04 and what follows", 20, &err), "PyTorch archive"));
    CHECK(strstr(error_of("hello, what is this", 19, &err), "not a safetensors file"));
    CHECK(strstr(error_of("", 0, &err), "truncated: 0 bytes"));
    CHECK(strstr(error_of("\x02\0\0\0\0\0\0\0{", 9, &err), "truncated: 9 bytes, but a header"));
    CHECK(strstr(error_of("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF{}", 10, &err), "a header of 1844674"));
}

// Every half there is, against the definition.
TEST(halves) {
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
static bool write_file(const char *path, const SafeOutput *out, size_t n, const float *data,
                       Error *err) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += safetensors_output_count(&out[i]);
    unlink(path);
    int fd = safetensors_create(path, out, n, err);
    bool put = fd >= 0 && file_put(fd, data, count * sizeof *data, path, err);
    return fd >= 0 && file_close(fd, path, err) && put;
}

TEST(writes_reads_back_and_refuses_every_cut) {
    Path d = folder_make(NULL), path = in(d.text, "x");
    float data[] = { 1.0f, -0.0f, NAN, INFINITY, FLT_MIN / 8, 3.14159274f };
    const size_t first[3] = { 0, 2, 5 };
    SafeOutput out[3] = { { "transformer.a", 2, { 2, 1 } }, { "b", 1, { 3, 0 } },
                          { "c", 1, { 1, 0 } } };
    Error err = { "" };
    for (size_t n = 0; n <= 3; n++) {
        CHECK_MSG(write_file(path.text, out, n, data, &err), "%s", err.text);
        SafeTensors s;
        bool opened = safetensors_open(&s, path.text, &err);
        CHECK_MSG(opened && s.n_tensors == n, "%s", err.text);
        CHECK((s.data - s.file.bytes) % 8 == 0);
        for (size_t i = 0; opened && i < n; i++) {
            const SafeTensor *t = safetensors_find(&s, out[i].name);
            CHECK(t && t->n_dims == out[i].n_dims && t->dims[0] == out[i].dims[0]);
            CHECK(memcmp(t->data, data + first[i], t->end - t->begin) == 0);
        }
        if (opened) safetensors_close(&s);
        Content c = slurp(d.text, "x");
        CHECK(strstr(c.bytes + 8, "\"__metadata__\":{\"format\":\"pt\"}") != NULL);
        for (size_t cut = 0; cut < c.n; cut++)
            CHECK_MSG(strcmp(error_of(c.bytes, cut, &err), "accepted") != 0, "at %zu", cut);
        free(c.bytes);
    }
    folder_remove(&d);
    CHECK(safetensors_create("/nowhere/x", out, 3, &err) == -1
          && strstr(err.text, "/nowhere/x: cannot"));
}

int main(void) { return run_tests(); }
