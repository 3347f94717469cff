// Documents from JSON lines: each line is an object, and its member `key` is a document (data.h).
#include "data.h"

#ifndef JSONL_LINE_MOST                // the tests use fewer
#define JSONL_LINE_MOST (64u << 20)
#define JSONL_BLOCK (1u << 20)         // bytes of the buffer at first
#endif

void jsonl_begin(Jsonl *j, FILE *file, const char *name) {
    j->file = file;
    j->name = name;
    j->held = j->at = 0;
    j->ended = false;
    j->line = 0;
    if (j->bytes) return;
    j->capacity = JSONL_BLOCK;
    j->bytes = (char *)alloc_or_die(j->capacity, "a line of JSON");
}

void jsonl_free(Jsonl *j) {
    json_free(&j->json);
    free(j->bytes);
    memset(j, 0, sizeof *j);
}

// Reads on. The bytes not used yet move to the front; if they fill the buffer, it is doubled. Those
// of a line that is too long are dropped.
//   looked: bytes of the line that hold no newline
static bool jsonl_fill(Jsonl *j, size_t *looked, Error *err) {
    j->held -= j->at;
    memmove(j->bytes, j->bytes + j->at, j->held);
    j->at = 0;
    if (j->held == JSONL_LINE_MOST) {
        j->too_long = true;
        j->held = *looked = 0;
    } else if (j->held == j->capacity) {
        size_t most = JSONL_LINE_MOST, capacity = j->capacity > most / 2 ? most : 2 * j->capacity;
        char *larger = (char *)realloc(j->bytes, capacity);
        if (!larger) return fail(err, "memory: none left for a line of %zu bytes", capacity);
        j->bytes = larger;
        j->capacity = capacity;
    }
    size_t room = j->capacity - j->held, taken = fread(j->bytes + j->held, 1, room, j->file);
    j->held += taken;
    j->ended = taken < room;
    return !ferror(j->file) || fail(err, "%s: cannot be read: %s", j->name, strerror(errno));
}

// Finds the next line, without its newline. *line receives NULL at the end of the file.
static bool jsonl_line(Jsonl *j, const char **line, size_t *n, Error *err) {
    const char *end = NULL;
    j->too_long = false;
    for (size_t looked = 0; !end; ) {
        size_t unused = j->held - j->at;
        end = (const char *)memchr(j->bytes + j->at + looked, '\n', unused - looked);
        looked = unused;
        if (j->ended) break;
        if (!end && !jsonl_fill(j, &looked, err)) return false;
    }
    *n = end ? (size_t)(end - (j->bytes + j->at)) : j->held - j->at;
    *line = end || *n > 0 || j->too_long ? j->bytes + j->at : NULL;
    j->at += *n + (end != NULL);
    j->line += *line != NULL;
    if (j->line == 1 && *n >= 3 && memcmp(*line, "\xEF\xBB\xBF", 3) == 0)
        *line += 3, *n -= 3;           // a byte-order mark
    return true;
}

static bool jsonl_blank(const char *line, size_t n) {
    while (n > 0 && (line[n - 1] == ' ' || line[n - 1] == '\t' || line[n - 1] == '\r')) n--;
    return n == 0;
}

// What helps where a line holds no document.
static void jsonl_advise(char out[160], const Jsonl *j, const JsonNode *root, char first) {
    const char *skip = "--skip-bad leaves such lines out";
    const JsonNode *key = root && root->type == JSON_OBJECT && root->length > 0
                        ? json_first(root) : NULL;
    if (first == '[' && j->line == 1) snprintf(out, 160, "jq -c '.[]' makes lines of a list");
    else if (!key || json_get(root, j->key)) snprintf(out, 160, "%s", skip);
    else snprintf(out, 160, "--key NAME takes another, such as \"%s\"; %s", json_show(key).text,
                  skip);
}

// The document of a line that is not blank.
static bool jsonl_parse(Jsonl *j, const JsonNode **text, const char *line, size_t n, Error *err) {
    Error why;
    char advice[160];
    *text = NULL;
    if (j->too_long) {
        fail(&why, "it is longer than %zu bytes", (size_t)JSONL_LINE_MOST);
    } else if (!json_parse(&j->json, line, n, &why)) {
    } else if (j->json.root->type != JSON_OBJECT) {
        fail(&why, "%s, not an object", json_type_name(j->json.root->type));
    } else {
        *text = json_need(j->json.root, j->key, JSON_STRING, &why);
    }
    if (*text) return true;
    jsonl_advise(advice, j, j->json.root, n > 0 ? *line : ' ');
    return fail(err, "%s: line %llu: %.250s; %s", j->name, (unsigned long long)j->line, why.text,
                advice);
}

bool jsonl_next(Jsonl *j, const JsonNode **text, Error *err) {
    const char *line;
    size_t n;
    *text = NULL;
    for (;;) {
        json_free(&j->json);
        if (!jsonl_line(j, &line, &n, err)) return false;
        if (!line) return true;
        if (jsonl_blank(line, n) && !j->too_long) continue;
        const char *kind = j->line == 1 ? file_kind((const unsigned char *)line, n) : NULL;
        if (kind) return fail(err, "%s: not JSON lines but %s", j->name, kind);
        if (jsonl_parse(j, text, line, n, err)) return true;
        if (!j->skip_bad) return false;
        if (j->bad++ == 0) j->first_bad = *err;
    }
}
