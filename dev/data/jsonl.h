// Documents from JSON lines: each line is an object, and its member "text" is a document. Many
// corpora are distributed so, as C4 and Dolma are. Other members and blank lines are ignored.
//
//     Jsonl j;
//     const JsonNode *text;
//     jsonl_begin(&j, file, "standard input");
//     while (jsonl_next(&j, &text, &err) && text) ... text->text (text->length bytes) ...
//     jsonl_free(&j);
//
// The file may be a pipe: it is read once, from its beginning to its end. Memory is bounded by the
// longest line, which may have JSONL_LINE_MOST bytes. An error names the file and the line.
#pragma once
#include "../files/file.h"             // file_kind
#include "../files/json.h"

#ifndef JSONL_LINE_MOST                // the tests use fewer
#define JSONL_LINE_MOST (64u << 20)
#define JSONL_BLOCK (1u << 20)         // bytes of the buffer at first
#endif

typedef struct {
    FILE *file;
    const char *name;                  // of the file, for errors
    char *bytes;                       // (capacity) of which at ... held-1 are read, but not used
    size_t capacity, held, at;
    bool ended;                        // the file has no more
    uint64_t line;                     // number of the latest line, from 1
    Json json;                         // of the latest document
} Jsonl;

static inline void jsonl_begin(Jsonl *j, FILE *file, const char *name) {
    memset(j, 0, sizeof *j);
    j->file = file;
    j->name = name;
    j->capacity = JSONL_BLOCK;
    j->bytes = (char *)alloc_or_die(j->capacity, "a line of JSON");
}

static inline void jsonl_free(Jsonl *j) {
    json_free(&j->json);
    free(j->bytes);
    memset(j, 0, sizeof *j);
}

// Reads on. The bytes not used yet move to the front; if they fill the buffer, it is doubled.
static inline bool jsonl_fill(Jsonl *j, Error *err) {
    j->held -= j->at;
    memmove(j->bytes, j->bytes + j->at, j->held);
    j->at = 0;
    if (j->held == j->capacity) {
        size_t most = JSONL_LINE_MOST, capacity = j->capacity > most / 2 ? most : 2 * j->capacity;
        char *larger = j->capacity < most ? (char *)realloc(j->bytes, capacity) : NULL;
        if (j->capacity >= most)
            return fail(err, "%s: line %llu: it is longer than %zu bytes", j->name,
                        (unsigned long long)j->line + 1, most);
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
static inline bool jsonl_line(Jsonl *j, const char **line, size_t *n, Error *err) {
    const char *end = NULL;
    for (size_t looked = 0; !end; ) {
        size_t unused = j->held - j->at;
        end = (const char *)memchr(j->bytes + j->at + looked, '\n', unused - looked);
        looked = unused;
        if (j->ended) break;
        if (!end && !jsonl_fill(j, err)) return false;
    }
    *n = end ? (size_t)(end - (j->bytes + j->at)) : j->held - j->at;
    *line = end || *n > 0 ? j->bytes + j->at : NULL;
    j->at += *n + (end != NULL);
    j->line += *line != NULL;
    return true;
}

static inline bool jsonl_blank(const char *line, size_t n) {
    while (n > 0 && (line[n - 1] == ' ' || line[n - 1] == '\t' || line[n - 1] == '\r')) n--;
    return n == 0;
}

// The document of a line that is not blank.
static inline bool jsonl_parse(Jsonl *j, const JsonNode **text, const char *line, size_t n,
                               Error *err) {
    Error why;
    *text = NULL;
    if (!json_parse(&j->json, line, n, &why)) {
    } else if (j->json.root->type != JSON_OBJECT) {
        fail(&why, "%s, not an object", json_type_name(j->json.root->type));
    } else {
        *text = json_need(j->json.root, "text", JSON_STRING, &why);
    }
    return *text || fail(err, "%s: line %llu: %.400s", j->name, (unsigned long long)j->line,
                         why.text);
}

// Reads the next document, which is valid until the next call. *text receives NULL at the end.
static inline bool jsonl_next(Jsonl *j, const JsonNode **text, Error *err) {
    const char *line;
    size_t n;
    json_free(&j->json);
    *text = NULL;
    do {
        if (!jsonl_line(j, &line, &n, err)) return false;
    } while (line && jsonl_blank(line, n));
    if (!line) return true;
    const char *kind = j->line == 1 ? file_kind((const unsigned char *)line, n) : NULL;
    if (kind) return fail(err, "%s: not JSON lines but %s", j->name, kind);
    return jsonl_parse(j, text, line, n, err);
}
