// The documents of a corpus: of a text, between separators, with its odd bytes (texts.c); of JSON
// lines, and the line of an error (jsonl.c).
#include "../dev/data/texts.c"
#include "test.h"

// ---- texts ----

static Scan look_through(Texts *c, Text *text, const char *separator) {
    Scan s = { .separator = separator };
    memset(c, 0, sizeof *c);
    c->text = text;
    scan_text(&s, c);
    return s;
}

// The documents of a text, each in brackets.
static void splits(const char *bytes, const char *separator, const char *documents) {
    char found[400] = "";
    Text text = { .path = "x.txt", .bytes = bytes, .n = strlen(bytes) };
    Texts c;
    look_through(&c, &text, separator);
    for (const Piece *p = c.pieces; p < c.pieces + c.n; p++)
        sprintf(found + strlen(found), "[%.*s]", (int)p->n, bytes + p->from);
    CHECK_MSG(strcmp(found, documents) == 0, "'%s' gives %s", bytes, found);
    free(c.pieces);
}

TEST(documents_between_separators) {
    splits("one\ntwo\n", "--", "[one\ntwo\n]");
    splits("one\n--\ntwo, longer than a block\n--\nthree", "--",
          "[one\n][two, longer than a block\n][three]");
    splits("--\n--\none\r\n--\r\n \n--\ntwo\n--", "--", "[one\r\n][two\n]");
    splits("a -- b\n---\n-\n --\n-- \n", "--", "[a -- b\n---\n-\n --\n-- \n]");
    splits("one\n\n\ntwo\n\r\nthree\n", "", "[one\n][two\n][three\n]");
    splits("one\n--\n", NULL, "[one\n--\n]");
    splits(" \n", "--", "[ \n]");                        // a text is kept, whatever it holds
    splits(" \n--\n", "--", "");
    splits("\xEF\xBB\xBF--\none\n", "--", "[one\n]");
    splits("\xEF\xBB\xBFone", "--", "[one]");
}

// Wherever they are in a text, and at its end.
TEST(odd_bytes) {
    static const struct { const char *bytes; size_t n; uint64_t nul, invalid; } cases[] = {
        { "\0", 1, 1, 0 }, { "\xE9", 1, 0, 1 }, { "\xE9t\xE9", 3, 0, 2 }, { "\xC3\xA9", 2, 0, 0 },
        { "\xE2\x82\xAC", 3, 0, 0 }, { "\xF0\x9F\x98\x80", 4, 0, 0 }, { "\xF0\x9F\x98", 3, 0, 3 },
        { "\xED\xA0\x80", 3, 0, 3 }, { "\xFF\xFE", 2, 0, 2 }, { "\xC3", 1, 0, 1 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t before = 0; before < 8; before++)
            for (size_t after = 0; after < 5; after += 4) {
                char bytes[32] = "aaaaaaaabbbb";
                Text text = { .path = "x.txt", .bytes = bytes, .n = before + cases[i].n + after };
                Texts c;
                memcpy(bytes + before, cases[i].bytes, cases[i].n);
                memcpy(bytes + before + cases[i].n, "zzzz", after);
                Scan s = look_through(&c, &text, NULL);
                free(c.pieces);
                CHECK_MSG(s.nul.count == cases[i].nul && s.invalid.count == cases[i].invalid,
                          "case %zu at %zu: %d NUL, %d not UTF-8", i, before, (int)s.nul.count,
                          (int)s.invalid.count);
                const Odd *odd = s.nul.count ? &s.nul : &s.invalid;
                CHECK(odd->count == 0 || odd->first == before);
            }
}

// ---- JSON lines ----

// All documents of a text, each followed by '|', up to the end or an error.
typedef struct { char documents[4000]; size_t n; Error err; bool good; } Read;

static Read read_lines(const char *text, size_t n) {
    Read r;
    Jsonl j = { .key = "text" };
    const JsonNode *document;
    FILE *f = tmpfile();
    memset(&r, 0, sizeof r);
    if (!f || fwrite(text, 1, n, f) != n) die("a temporary file cannot be written");
    rewind(f);
    jsonl_begin(&j, f, "x.jsonl");
    while ((r.good = jsonl_next(&j, &document, &r.err)) && document) {
        if (r.n + document->length + 1 >= sizeof r.documents) die("too many documents");
        memcpy(r.documents + r.n, document->text, document->length);
        r.n += document->length;
        r.documents[r.n++] = '|';
    }
    jsonl_free(&j);
    fclose(f);
    return r;
}

static void gives(const char *text, const char *documents) {
    Read r = read_lines(text, strlen(text));
    CHECK_MSG(r.good, "%s", r.err.text);
    CHECK_MSG(strcmp(r.documents, documents) == 0, "'%s' gives '%s'", text, r.documents);
}

TEST(documents_in_their_order) {
    gives("{\"text\": \"one\"}\n{\"id\": 7, \"text\": \"two\", \"more\": [{}, null]}\n",
          "one|two|");
    gives("{\"text\":\"the last line\"}", "the last line|");
    gives("\n  \t\r\n{\"text\":\"a\"}\r\n\n{\"text\":\"\"}\n\n", "a||");
    gives("{\"messages\":[{\"role\":\"system\",\"content\":\"\"},{\"content\":\"\\u00e9\\n\\\\n\","
          "\"role\":\"user\"}]}\n{\"text\":\"one\",\"messages\":[]}\n{\"messages\":[]}\n"
          "{\"text\":[{\"role\":\"user\",\"content\":\"two\"}]}",
          "system: \nuser: \xC3\xA9\n\\n\n|one||user: two\n|");
    gives("", "");
    gives("\n\n", "");
}

TEST(errors_name_the_line) {
    #define OR_SKIP "; --skip-bad leaves such lines out"
    static const char *const cases[][2] = {
        { "\n\n[1]\n", "line 3: a list, not an object" OR_SKIP },
        { "[{\"text\":\"a\"}]", "line 1: a list, not an object; jq -c '.[]' makes lines of a "
          "list" },
        { "[\n{\"text\":\"a\"}\n]", "line 1: byte 1: the text ends where a value was expected; "
          "jq -c '.[]' makes lines of a list" },
        { "{\"id\":1}\n", "line 1: \"text\" is missing" OR_SKIP },
        { "{\"id\":\"a\",\"said\":\"no\",\"n\":1}\n",
          "line 1: \"text\" is missing; --key NAME takes another, such as \"said\"" OR_SKIP },
        { "{\"text\":\"a\"}\n\n{\"text\":null}", "line 3: byte 8: \"text\" must be a string, not "
          "null" OR_SKIP },
        { "{\"text\":\"a\"}\n{\"text\":\"b", "line 2: byte 8: a string without a closing "
          "quote" OR_SKIP },
        { "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}",
          "line 1: byte 38: \"content\" must be a string, not a list" OR_SKIP },
        { "{\"messages\":[{\"from\":\"user\"}]}", "line 1: \"role\" is missing" OR_SKIP },
        { "{\"messages\":[\"Hi\"]}", "line 1: byte 13: a message is an object, not a string"
          OR_SKIP },
        { "\x1f\x8b\x08\n", "not JSON lines but a gzip file; gunzip it first" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        Read r = read_lines(cases[i][0], strlen(cases[i][0]));
        CHECK_MSG(!r.good && strcmp(r.err.text + strlen("x.jsonl: "), cases[i][1]) == 0,
                  "'%s' says '%s'", cases[i][0], r.err.text);
    }
}

// A byte-order mark, another key, and with skip_bad what no document comes from: each is counted.
TEST(lines_of_others) {
    static const char *const bad[] = {
        "{\"body\":\"\\ud83d\"}", "{\"body\":\"a\",\"x\":NaN}", "{", "[", "{\"body\":7}",
        "{\"text\":\"a\"}", "\xFF", "[[[[["
    };
    char text[3000] = "\xEF\xBB\xBF{\"body\":\"one\"}\n";
    Jsonl j = { .key = "body", .skip_bad = true };
    const JsonNode *document;
    Error err;
    for (int i = 0; i < 8; i++) strcat(strcat(text, bad[i]), "\n");
    memset(text + strlen(text), 'x', 1100);                  // a line longer than a buffer
    strcat(text, "\n{\"body\":\"two\"}");
    FILE *f = fmemopen(text, strlen(text), "rb");
    jsonl_begin(&j, f, "x.jsonl");
    CHECK(jsonl_next(&j, &document, &err) && document && json_is(document, "one"));
    CHECK_MSG(jsonl_next(&j, &document, &err) && document && json_is(document, "two"), "%s",
              err.text);
    CHECK(jsonl_next(&j, &document, &err) && !document);
    CHECK_MSG(j.bad == 9 && j.line == 11, "%d bad of %d", (int)j.bad, (int)j.line);
    CHECK(strstr(j.first_bad.text, "x.jsonl: line 2: byte 9: an unpaired surrogate"));
    jsonl_free(&j);
    fclose(f);
}

int main(void) { return run_tests(); }
