// Reading and writing safetensors, Hugging Face's file format for weights (files.h).
#include "files.h"

// ---- reading ----

static const SafeDtype *safetensors_dtype(const char *name) {
    static const SafeDtype dtypes[] = {
        { "F32", 4, FLOAT_32 }, { "BF16", 2, FLOAT_BF16 }, { "F16", 2, FLOAT_16 },
        { "F64", 8, FLOAT_NO }, { "I64", 8, FLOAT_NO }, { "U64", 8, FLOAT_NO },
        { "I32", 4, FLOAT_NO }, { "U32", 4, FLOAT_NO }, { "I16", 2, FLOAT_NO },
        { "U16", 2, FLOAT_NO }, { "I8", 1, FLOAT_NO }, { "U8", 1, FLOAT_NO },
        { "BOOL", 1, FLOAT_NO },
    };
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (strcmp(name, dtypes[i].name) == 0) return &dtypes[i];
    return NULL;
}

static bool safetensors_shape(SafeTensor *t, const JsonNode *shape, Error *err) {
    if (shape->length > SAFETENSORS_MAX_DIMS)
        return fail(err, "%zu dimensions; at most %d are supported", shape->length,
                    SAFETENSORS_MAX_DIMS);
    t->count = 1;
    for (const JsonNode *v = json_first(shape); v < json_end(shape); v = json_next(v)) {
        int64_t dim;
        if (!json_to_int(&dim, v, 0, INT64_MAX)) return fail(err, "\"shape\" must list sizes");
        t->dims[t->n_dims++] = (size_t)dim;
        if (__builtin_mul_overflow(t->count, (size_t)dim, &t->count))
            return fail(err, "its shape overflows 64 bits");
    }
    return true;
}

static bool safetensors_offsets(SafeTensor *t, const JsonNode *offsets, Error *err) {
    int64_t begin, end;
    size_t bytes;
    const JsonNode *v = json_first(offsets);
    if (offsets->length != 2 || !json_to_int(&begin, v, 0, INT64_MAX)
                             || !json_to_int(&end, v + 1, 0, INT64_MAX) || begin > end)
        return fail(err, "\"data_offsets\" must be [begin, end], begin <= end");
    if (__builtin_mul_overflow(t->count, t->dtype->bytes, &bytes) || bytes != (size_t)(end - begin))
        return fail(err, "its shape and dtype do not match its %lld bytes",
                    (long long)(end - begin));
    t->begin = (size_t)begin;
    t->end = (size_t)end;
    return true;
}

static bool safetensors_entry(SafeTensor *t, const JsonNode *key, Error *err) {
    Error why;
    const JsonNode *entry = key + 1, *dtype = NULL, *shape = NULL, *offsets = NULL;
    bool whole = (dtype = json_need(entry, "dtype", JSON_STRING, &why)) != NULL
              && (shape = json_need(entry, "shape", JSON_ARRAY, &why)) != NULL
              && (offsets = json_need(entry, "data_offsets", JSON_ARRAY, &why)) != NULL;
    t->name = key->text;
    t->n_dims = 0;
    if (whole && !(t->dtype = safetensors_dtype(dtype->text)))
        whole = fail(&why, "unknown dtype \"%s\"", json_show(dtype).text);
    if (whole && safetensors_shape(t, shape, &why) && safetensors_offsets(t, offsets, &why))
        return true;
    return fail(err, "tensor \"%s\": %s", json_show(key).text, why.text);
}

static bool safetensors_header(SafeTensors *s, Error *err) {
    const JsonNode *root = s->header.root;
    if (root->type != JSON_OBJECT) return fail(err, "the header is not a JSON object");
    s->tensors = (SafeTensor *)alloc_or_die((root->length + 1) * sizeof *s->tensors, "tensors");
    size_t end = 0;
    for (const JsonNode *k = json_first(root); k < json_end(root); k = json_next(k + 1)) {
        SafeTensor *t = &s->tensors[s->n_tensors];
        if (json_is(k, "__metadata__")) continue;        // free text
        if (!safetensors_entry(t, k, err)) return false;
        t->data = s->data + t->begin;
        if (t->end > end) end = t->end;
        s->n_tensors++;
    }
    if (end > s->data_bytes)
        return fail(err, "truncated: %zu bytes of tensors, the header describes %zu", s->data_bytes,
                    end);
    return end == s->data_bytes
        || fail(err, "%zu bytes after the last tensor", s->data_bytes - end);
}

void safetensors_close(SafeTensors *s) {
    free(s->tensors);
    json_free(&s->header);
    file_unmap(&s->file);
    if (s->more) safetensors_close(s->more);
    free(s->more);
    memset(s, 0, sizeof *s);
}

// Parses the n bytes of a whole file, which must stay valid until safetensors_close. On failure
// there is nothing to close.
static bool safetensors_parse(SafeTensors *s, const unsigned char *bytes, size_t n, Error *err) {
    uint64_t length = 0;
    Error why;
    memset(s, 0, sizeof *s);
    if (n >= 8) memcpy(&length, bytes, 8);
    const char *kind = file_kind(bytes, n);
    if (kind && (length > n - 8 || n < 8)) return fail(err, "this is %s", kind);
    if (n < 8) return fail(err, "truncated: %zu bytes; a safetensors file has at least 8", n);
    if (length > SAFETENSORS_MAX_HEADER)
        return fail(err, "not a safetensors file: a header of %llu bytes",
                    (unsigned long long)length);
    if (length > n - 8)
        return fail(err, "truncated: %zu bytes, but a header of %llu", n,
                    (unsigned long long)length);
    if (!json_parse(&s->header, (const char *)bytes + 8, (size_t)length, &why))
        return fail(err, "the header: %s", why.text);
    s->data = bytes + 8 + length;
    s->data_bytes = n - 8 - (size_t)length;
    bool good = safetensors_header(s, err);
    if (!good) safetensors_close(s);
    return good;
}

bool safetensors_open(SafeTensors *s, const char *path, Error *err) {
    FileMap file;
    Error why;
    if (!file_map(&file, path, err)) return false;
    if (!safetensors_parse(s, file.bytes, file.n, &why)) {
        file_unmap(&file);
        return fail(err, "%s: %s", path, why.text);
    }
    s->file = file;
    return true;
}

bool safetensors_add(SafeTensors *s, const char *path, Error *err) {
    SafeTensors *part = (SafeTensors *)alloc_or_die(sizeof *part, "a file of tensors");
    if (!safetensors_open(part, path, err)) {
        free(part);
        return false;
    }
    size_t n = s->n_tensors, size = sizeof *s->tensors, room = n;
    s->n_tensors += part->n_tensors;
    s->tensors = (SafeTensor *)grow_or_die(s->tensors, &room, s->n_tensors + 1, size, "tensors");
    memcpy(s->tensors + n, part->tensors, part->n_tensors * size);
    part->more = s->more;
    s->more = part;
    return true;
}

bool safetensors_is_real(const SafeTensor *t, Error *err) {
    return t->dtype->type != FLOAT_NO
        || fail(err, "tensor \"%.80s\" is %s; expected F32, BF16 or F16", t->name, t->dtype->name);
}

// ---- writing ----

static size_t safetensors_output_count(const SafeOutput *t) {
    return t->n_dims == 1 ? t->dims[0] : t->dims[0] * t->dims[1];
}

// The header as text, padded to 8 bytes.
static void safetensors_header_text(TextBuffer *header, const SafeOutput *tensors, size_t n) {
    size_t at = 0;
    text_begin(header);
    FILE *f = header->f;
    fputs("{\"__metadata__\":{\"format\":\"pt\"}", f);   // transformers expects "pt"
    for (size_t i = 0; i < n; i++) {
        const SafeOutput *t = &tensors[i];
        fprintf(f, ",\"%s\":{\"dtype\":\"F32\",\"shape\":[%zu", t->name, t->dims[0]);
        if (t->n_dims == 2) fprintf(f, ",%zu", t->dims[1]);
        size_t end = at + sizeof(float) * safetensors_output_count(t);
        fprintf(f, "],\"data_offsets\":[%zu,%zu]}", at, end);
        at = end;
    }
    fputc('}', f);
    for (long padding = (8 - ftell(f) % 8) % 8; padding > 0; padding--) fputc(' ', f);
    text_end(header);
}

int safetensors_create(const char *path, const SafeOutput *tensors, size_t n, Error *err) {
    TextBuffer header;
    safetensors_header_text(&header, tensors, n);
    int fd = file_create(path, err);
    uint64_t prefix = header.n;
    if (fd >= 0 && !(file_put(fd, &prefix, 8, path, err)
                     && file_put(fd, header.text, header.n, path, err))) {
        close(fd);
        fd = -1;
    }
    free(header.text);
    return fd;
}
