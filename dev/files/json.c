// A small strict JSON reader (RFC 8259), and a writer of strings (files.h).
#include "files.h"

enum { JSON_MAX_DEPTH = 64 };

// ---- walking ----

const JsonNode *json_first(const JsonNode *container) { return container + 1; }

const JsonNode *json_next(const JsonNode *v) { return v + v->span; }

const JsonNode *json_end(const JsonNode *container) {
    return container + container->span;
}

bool json_is(const JsonNode *v, const char *text) {
    return v->type == JSON_STRING && text_is(v->text, v->length, text);
}

const JsonNode *json_get(const JsonNode *object, const char *key) {
    if (object->type != JSON_OBJECT) return NULL;
    for (const JsonNode *k = json_first(object); k < json_end(object); k = json_next(k + 1))
        if (json_is(k, key)) return k + 1;
    return NULL;
}

Brief json_show(const JsonNode *v) { return brief(v->text, v->length); }

// ---- typed values: every error names the key ----

const char *json_type_name(JsonType type) {
    static const char *const names[] = {
        "null", "false", "true", "a number", "a string", "a list", "an object"
    };
    return names[type];
}

const JsonNode *json_need(const JsonNode *object, const char *key, JsonType type, Error *err) {
    const JsonNode *v = json_get(object, key);
    if (v && v->type == type) return v;
    if (!v) fail(err, "\"%s\" is missing", key);
    else fail(err, "byte %zu: \"%s\" must be %s, not %s", v->at, key, json_type_name(type),
              json_type_name(v->type));
    return NULL;
}

bool json_to_int(int64_t *out, const JsonNode *v, int64_t lo, int64_t hi) {
    if (v->type != JSON_NUMBER || strpbrk(v->text, ".eE")) return false;
    errno = 0;
    long long value = strtoll(v->text, NULL, 10);
    if (errno == ERANGE || value < lo || value > hi) return false;
    *out = value;
    return true;
}

bool json_get_int(int64_t *out, const JsonNode *object, const char *key, int64_t lo, int64_t hi,
                  Error *err) {
    const JsonNode *v = json_need(object, key, JSON_NUMBER, err);
    if (!v) return false;
    if (json_to_int(out, v, lo, hi)) return true;
    return fail(err, "byte %zu: \"%s\" is %s; a whole number from %lld to %lld was expected",
                v->at, key, json_show(v).text, (long long)lo, (long long)hi);
}

bool json_get_double(double *out, const JsonNode *object, const char *key, Error *err) {
    const JsonNode *v = json_need(object, key, JSON_NUMBER, err);
    if (v) *out = strtod(v->text, NULL);
    return v != NULL;
}

// ---- reading ----

typedef struct {
    const unsigned char *s;      // (n) the source
    size_t n, at;                // the next byte to read
    Json *out;
    size_t capacity;             // of out->root
    char *end;                   // of the text stored in out->strings
    Error *err;
} JsonReader;

static bool json_fail(JsonReader *r, size_t at, const char *what) {
    return fail(r->err, "byte %zu: %s", at, what);
}

static bool json_expected(JsonReader *r, const char *what) {
    if (r->at == r->n)
        return fail(r->err, "byte %zu: the text ends where %s was expected", r->at, what);
    unsigned char c = r->s[r->at];
    if (c > 0x20 && c < 0x7F)
        return fail(r->err, "byte %zu: expected %s, found '%c'", r->at, what, c);
    return fail(r->err, "byte %zu: expected %s, found the byte 0x%02X", r->at, what, c);
}

// The next character after white space, or -1 at the end; does not consume the character.
static int json_peek(JsonReader *r) {
    for (; r->at < r->n; r->at++) {
        unsigned char c = r->s[r->at];
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return c;
    }
    return -1;
}

// Appends a node and returns its index. (An index: the nodes may move.)
static size_t json_append(JsonReader *r, JsonType type, size_t at) {
    Json *j = r->out;
    j->root = (JsonNode *)grow_or_die(j->root, &r->capacity, j->n_nodes + 1,
                                       sizeof *j->root, "JSON");
    JsonNode v = { type, r->end, 0, 1, at };
    j->root[j->n_nodes] = v;
    return j->n_nodes++;
}

// Terminates the text of node v at r->end. n+1 bytes are enough for all texts: a string's NUL takes
// the place of a quote; a number's NUL takes that of the byte after it, or of the source's end.
static void json_close_text(JsonReader *r, size_t v) {
    JsonNode *node = &r->out->root[v];
    node->length = (size_t)(r->end - node->text);
    *r->end++ = '\0';
}

static bool json_literal(JsonReader *r, const char *word, JsonType type) {
    size_t length = strlen(word), at = r->at;
    for (size_t i = 0; i < length; i++, r->at++)
        if (r->at == r->n || r->s[r->at] != (unsigned char)word[i]) return json_expected(r, word);
    json_append(r, type, at);
    return true;
}

static bool json_number(JsonReader *r) {
    size_t start = r->at, v = json_append(r, JSON_NUMBER, start);
    double value;
    for (; r->at < r->n && r->s[r->at] && strchr("0123456789+-.eE", r->s[r->at]); r->at++)
        *r->end++ = (char)r->s[r->at];
    json_close_text(r, v);
    return number_read(&value, r->out->root[v].text) || json_fail(r, start, "not a number");
}

static bool json_hex4(JsonReader *r, uint32_t *code) {
    *code = 0;
    for (int i = 0; i < 4; i++, r->at++) {
        int c = r->at < r->n ? r->s[r->at] : -1;
        uint32_t digit = c >= '0' && c <= '9' ? (uint32_t)(c - '0')
                       : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                       : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10) : 16;
        if (digit == 16) return json_expected(r, "four hexadecimal digits");
        *code = 16 * *code + digit;
    }
    return true;
}

// Reads the rest of \uXXXX. A character past U+FFFF is two escapes: a high and a low surrogate.
static bool json_unicode_escape(JsonReader *r) {
    size_t start = r->at - 2;
    uint32_t code, low;
    if (!json_hex4(r, &code)) return false;
    if (code >= 0xD800 && code < 0xE000) {
        bool pair = code < 0xDC00 && r->n - r->at >= 2 && memcmp(r->s + r->at, "\\u", 2) == 0;
        if (!pair) return json_fail(r, start, "an unpaired surrogate");
        r->at += 2;
        if (!json_hex4(r, &low)) return false;
        if (low < 0xDC00 || low > 0xDFFF) return json_fail(r, start, "an unpaired surrogate");
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    r->end = utf8_put(r->end, code);
    return true;
}

static bool json_escape(JsonReader *r) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    int c = r->at + 1 < r->n ? r->s[r->at + 1] : 0;
    if (c == 'u') {
        r->at += 2;
        return json_unicode_escape(r);
    }
    const char *name = c ? strchr(names, c) : NULL;
    if (!name) return json_fail(r, r->at, "an unknown escape; a backslash is written \\\\");
    *r->end++ = values[name - names];
    r->at += 2;
    return true;
}

static bool json_string(JsonReader *r) {
    size_t start = r->at, v = json_append(r, JSON_STRING, start);
    for (r->at++; r->at < r->n; ) {
        unsigned char c = r->s[r->at];
        if (c == '"') {
            r->at++;
            json_close_text(r, v);
            return true;
        }
        if (c == '\\') {
            if (!json_escape(r)) return false;
            continue;
        }
        if (c < 0x20) return json_fail(r, r->at, "a control character in a string; escape it");
        size_t length = utf8_length(r->s + r->at, r->n - r->at);
        if (length == 0) return json_fail(r, r->at, "not UTF-8");
        for (; length > 0; length--) *r->end++ = (char)r->s[r->at++];
    }
    return json_fail(r, start, "a string without a closing quote");
}

static bool json_value(JsonReader *r, int depth);

static bool json_key(JsonReader *r) {
    if (json_peek(r) != '"') return json_expected(r, "a key in quotes");
    if (!json_string(r)) return false;
    if (json_peek(r) != ':') return json_expected(r, "':'");
    r->at++;
    return true;
}

static bool json_container(JsonReader *r, JsonType type, int depth) {
    const bool array = type == JSON_ARRAY;
    if (depth == JSON_MAX_DEPTH)
        return fail(r->err, "byte %zu: nested more than %d deep", r->at, JSON_MAX_DEPTH);
    size_t v = json_append(r, type, r->at++);
    for (int c = json_peek(r), close = array ? ']' : '}'; c != close; ) {
        if ((!array && !json_key(r)) || !json_value(r, depth + 1)) return false;
        r->out->root[v].length++;
        c = json_peek(r);
        if (c != ',' && c != close) return json_expected(r, array ? "',' or ']'" : "',' or '}'");
        r->at += c == ',';
    }
    r->at++;                                             // the closing bracket
    r->out->root[v].span = r->out->n_nodes - v;
    return true;
}

static bool json_value(JsonReader *r, int depth) {
    int c = json_peek(r);
    if (c == '{') return json_container(r, JSON_OBJECT, depth);
    if (c == '[') return json_container(r, JSON_ARRAY, depth);
    if (c == '"') return json_string(r);
    if (c == '-' || (c >= '0' && c <= '9')) return json_number(r);
    if (c == 't') return json_literal(r, "true", JSON_TRUE);
    if (c == 'f') return json_literal(r, "false", JSON_FALSE);
    if (c == 'n') return json_literal(r, "null", JSON_NULL);
    return json_expected(r, "a value");
}

void json_free(Json *j) {
    free(j->root);
    free(j->strings);
    memset(j, 0, sizeof *j);
}

bool json_parse(Json *j, const char *text, size_t n, Error *err) {
    memset(j, 0, sizeof *j);
    j->strings = (char *)alloc_or_die(n + 1, "JSON");
    JsonReader r = { (const unsigned char *)text, n, 0, j, 0, j->strings, err };
    bool page = json_peek(&r) == '<', parsed = !page && json_value(&r, 0)
             && (json_peek(&r) < 0 || json_expected(&r, "the end of the text"));
    if (page) json_fail(&r, r.at, "this is a web page (HTML), not JSON: the download failed");
    if (!parsed) json_free(j);
    return parsed;
}

bool json_open(Json *json, const char *dir, const char *name, Error *err) {
    Path path = path_join(dir, name);
    FileMap file;
    Error why;
    if (!file_map(&file, path.text, err)) return false;
    bool parsed = json_parse(json, (const char *)file.bytes, file.n, &why);
    file_unmap(&file);
    return parsed || fail(err, "%s: %s", path.text, why.text);
}

// ---- writing ----

void json_write_string(FILE *f, const char *text, size_t n) {
    const unsigned char *s = (const unsigned char *)text;
    putc('"', f);
    for (size_t i = 0, step; i < n; i += step) {
        char character[8];
        step = json_character(character, s + i, n - i);
        fputs(character, f);
    }
    putc('"', f);
}
