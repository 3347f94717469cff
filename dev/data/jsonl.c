// Documents from JSON lines: each line is an object, and its member `key` is a document (data.h).
#include "data.h"

void jsonl_begin(Jsonl *j, FILE *file, const char *name) {
    j->file = file;
    j->name = name;
    j->line = 0;
}

void jsonl_free(Jsonl *j) {
    json_free(&j->json);
    free(j->bytes);
    free(j->conversation);
    memset(j, 0, sizeof *j);
}

// Reads the next line, without its newline. *line receives NULL at the end of the file.
static bool jsonl_line(Jsonl *j, const char **line, size_t *n, Error *err) {
    ssize_t length = getline(&j->bytes, &j->capacity, j->file);
    *line = NULL;
    if (length < 0)
        return feof(j->file) || fail(err, "%s: cannot be read: %s", j->name, strerror(errno));
    *line = j->bytes;
    *n = (size_t)length - (j->bytes[length - 1] == '\n');
    j->line++;
    if (j->line == 1 && *n >= 3 && memcmp(*line, "\xEF\xBB\xBF", 3) == 0)
        *line += 3, *n -= 3;           // a byte-order mark
    return true;
}

// What helps where a line holds no document.
static void jsonl_advise(char out[160], const Jsonl *j, const JsonNode *root, char first) {
    const char *skip = j->skip_bad ? "" : "; --skip-bad leaves such lines out";
    const JsonNode *key = NULL;        // of the longest string
    if (root && root->type == JSON_OBJECT)
        for (const JsonNode *k = json_first(root); k < json_end(root); k = json_next(k + 1))
            if (k[1].type == JSON_STRING && (!key || k[1].length > key[1].length)) key = k;
    if (!j->key) out[0] = '\0';
    else if (first == '[' && j->line == 1)
        snprintf(out, 160, "; jq -c '.[]' makes lines of a list");
    else if (!key || json_get(root, j->key) || json_get(root, "messages"))
        snprintf(out, 160, "%s", skip);
    else snprintf(out, 160, "; --key NAME takes another, such as \"%s\"%s", json_show(key).text,
                  skip);
}

// The document of a list of messages, "ROLE: CONTENT" on a line each: shorter than the n bytes of
// their line of JSON. It takes the root's place.
static const JsonNode *jsonl_messages(Jsonl *j, const JsonNode *list, size_t n, Error *err) {
    j->conversation = (char *)grow_or_die(j->conversation, &j->room, n, 1, "a conversation");
    char *end = j->conversation;
    for (const JsonNode *m = json_first(list); m < json_end(list); m = json_next(m)) {
        if (m->type != JSON_OBJECT) {
            fail(err, "byte %zu: a message is an object, not %s", m->at, json_type_name(m->type));
            return NULL;
        }
        const JsonNode *role = json_need(m, "role", JSON_STRING, err);
        const JsonNode *content = role ? json_need(m, "content", JSON_STRING, err) : NULL;
        if (!content) return NULL;
        memcpy(end, role->text, role->length);
        end += role->length;
        *end++ = ':';
        *end++ = ' ';
        memcpy(end, content->text, content->length);
        end += content->length;
        *end++ = '\n';
    }
    JsonNode document = { JSON_STRING, j->conversation, (size_t)(end - j->conversation), 1, 0 };
    *j->json.root = document;
    return j->json.root;
}

static const JsonNode *jsonl_document(Jsonl *j, size_t n, Error *err) {
    const JsonNode *root = j->json.root, *value = j->key ? json_get(root, j->key) : NULL;
    if (!j->key) return root;
    if (!value) value = json_get(root, "messages");
    return value && value->type == JSON_ARRAY ? jsonl_messages(j, value, n, err)
                                              : json_need(root, j->key, JSON_STRING, err);
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
    else if (parsed) *text = jsonl_document(j, n, &why);
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
        if (strspn(line, " \t\r") == n) continue;          // blank
        const char *kind = j->line == 1 ? file_kind((const unsigned char *)line, n) : NULL;
        if (kind) return fail(err, "%s: not JSON lines but %s", j->name, kind);
        if (jsonl_parse(j, text, line, n, err)) return true;
        if (!j->skip_bad) return false;
        if (j->bad++ == 0) j->first_bad = *err;
    }
}
