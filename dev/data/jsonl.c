// Documents from JSON lines: each line is an object, and its member `key` is a document (data.h).
#include "data.h"

#ifndef JSONL_BLOCK                    // the tests use fewer
#define JSONL_BLOCK (1u << 20)         // bytes read at a time
#endif

void jsonl_begin(Jsonl *j, FILE *file, const char *name) {
    j->file = file;
    j->name = name;
    j->held = j->at = 0;
    j->ended = false;
    j->line = 0;
}

void jsonl_free(Jsonl *j) {
    json_free(&j->json);
    free(j->bytes);
    memset(j, 0, sizeof *j);
}

// Finds the next line, without its newline. *line receives NULL at the end of the file. Bytes that
// are not used yet move to the front before more are read.
static bool jsonl_line(Jsonl *j, const char **line, size_t *n, Error *err) {
    const char *end = NULL;
    *line = NULL;
    *n = 0;
    for (size_t looked = 0; ; ) {
        size_t unused = j->held - j->at;
        if (unused > looked)
            end = (const char *)memchr(j->bytes + j->at + looked, '\n', unused - looked);
        if (end || j->ended) break;
        looked = unused;
        if (unused > 0) memmove(j->bytes, j->bytes + j->at, unused);
        j->bytes = (char *)grow_or_die(j->bytes, &j->capacity, unused + JSONL_BLOCK, 1,
                                       "a line of JSON");
        size_t taken = fread(j->bytes + unused, 1, JSONL_BLOCK, j->file);
        j->at = 0;
        j->held = unused + taken;
        j->ended = taken < JSONL_BLOCK;
        if (ferror(j->file)) return fail(err, "%s: cannot be read: %s", j->name, strerror(errno));
    }
    *n = end ? (size_t)(end - (j->bytes + j->at)) : j->held - j->at;
    *line = end || *n > 0 ? j->bytes + j->at : NULL;
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
    if (!j->key) out[0] = '\0';
    else if (first == '[' && j->line == 1)
        snprintf(out, 160, "; jq -c '.[]' makes lines of a list");
    else if (!key || json_get(root, j->key)) snprintf(out, 160, "; %s", skip);
    else snprintf(out, 160, "; --key NAME takes another, such as \"%s\"; %s", json_show(key).text,
                  skip);
}

// The document of a line that is not blank.
static bool jsonl_parse(Jsonl *j, const JsonNode **text, const char *line, size_t n, Error *err) {
    Error why;
    char advice[160];
    bool parsed = json_parse(&j->json, line, n, &why);
    const JsonNode *root = j->json.root;
    *text = NULL;
    if (parsed && root->type != JSON_OBJECT)
        fail(&why, "%s, not an object", json_type_name(root->type));
    else if (parsed) *text = j->key ? json_need(root, j->key, JSON_STRING, &why) : root;
    if (*text) return true;
    jsonl_advise(advice, j, root, *line);
    return fail(err, "%s: line %llu: %.250s%s", j->name, (unsigned long long)j->line, why.text,
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
        if (jsonl_blank(line, n)) continue;
        const char *kind = j->line == 1 ? file_kind((const unsigned char *)line, n) : NULL;
        if (kind) return fail(err, "%s: not JSON lines but %s", j->name, kind);
        if (jsonl_parse(j, text, line, n, err)) return true;
        if (!j->skip_bad) return false;
        if (j->bad++ == 0) j->first_bad = *err;
    }
}
