// jsonl.h: the documents of JSON lines, whole whatever the buffer's size, and the line of an error.
#define JSONL_BLOCK 16u                      // so that growth and its end are reached at once
#define JSONL_LINE_MOST 300u
#include "../dev/data/jsonl.h"
#include "../dev/base/rng.h"
#include "test.h"

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

// The message, and after it the advice that most lines get.
static void refused(const char *text, const char *message) {
    char want[400];
    Read r = read_lines(text, strlen(text));
    snprintf(want, sizeof want, "%s; --skip-bad leaves such lines out", message);
    CHECK_MSG(!r.good, "accepted: %s", text);
    CHECK_MSG(r.good || strcmp(r.err.text, message) == 0 || strcmp(r.err.text, want) == 0,
              "'%s' says '%s'", text, r.err.text);
}

TEST(documents_in_their_order) {
    gives("{\"text\": \"one\"}\n{\"id\": 7, \"text\": \"two\", \"more\": [{}, null]}\n",
          "one|two|");
    gives("{\"text\":\"the last line\"}", "the last line|");
    gives("\n  \t\r\n{\"text\":\"a\"}\r\n\n{\"text\":\"\"}\n\n", "a||");
    gives("", "");
    gives("\n\n", "");
}

TEST(escapes_and_surrogate_pairs) {
    gives("{\"text\":\"a\\nb\\t\\\"c\\\\\\/\\b\\f\\r\"}", "a\nb\t\"c\\/\b\f\r|");
    gives("{\"text\":\"\\u00e9\\u20AC \\ud83d\\ude00\"}", "\xC3\xA9\xE2\x82\xAC \xF0\x9F\x98\x80|");
    gives("{\"text\":\"\xC3\xA9\xF0\x9F\x98\x80\"}", "\xC3\xA9\xF0\x9F\x98\x80|");
    gives("{\"\\u0074ext\":\"x\"}", "x|");                   // the key may be escaped too
    Read r = read_lines("{\"text\":\"a\\u0000b\"}", 19);
    CHECK(r.good && r.n == 4 && memcmp(r.documents, "a\0b|", 4) == 0);
    refused("{\"text\":\"ok\"}\n{\"text\":\"\\ud83d\"}",
            "x.jsonl: line 2: byte 9: an unpaired surrogate");
    refused("{\"text\":\"\\ude00\"}", "x.jsonl: line 1: byte 9: an unpaired surrogate");
    refused("{\"text\":\"\\ud83d\\u0041\"}", "x.jsonl: line 1: byte 9: an unpaired surrogate");
    refused("{\"text\":\"\\q\"}",
            "x.jsonl: line 1: byte 9: an unknown escape; a backslash is written \\\\");
}

TEST(errors_name_the_line) {
    refused("\n\n[1]\n", "x.jsonl: line 3: a list, not an object");
    refused("[{\"text\":\"a\"}]", "x.jsonl: line 1: a list, not an object; jq -c '.[]' makes lines "
            "of a list");
    refused("[\n{\"text\":\"a\"}\n]", "x.jsonl: line 1: byte 1: the text ends where a value was "
            "expected; jq -c '.[]' makes lines of a list");
    refused("{\"id\":1}\n", "x.jsonl: line 1: \"text\" is missing; --key NAME takes another, such "
            "as \"id\"");
    refused("{}\n", "x.jsonl: line 1: \"text\" is missing");
    refused("{\"text\":\"a\"}\n\n{\"text\":null}",
            "x.jsonl: line 3: byte 8: \"text\" must be a string, not null");
    refused("{\"text\":\"a\",\"text\":\"b\"}",
            "x.jsonl: line 1: byte 12: the key \"text\" appears a second time");
    refused("{\"text\":\"a\"} {}",
            "x.jsonl: line 1: byte 13: expected the end of the text, found '{'");
    refused("{\"text\":\"a\tb\"}",
            "x.jsonl: line 1: byte 10: a control character in a string; escape it");
    refused("{\"text\":\"\xFF\"}", "x.jsonl: line 1: byte 9: not UTF-8");
    refused("\x1f\x8b\x08\n", "x.jsonl: not JSON lines but a gzip file; gunzip it first");
    refused("PAR1\x15\n", "x.jsonl: not JSON lines but a Parquet file; export its column of texts "
            "as JSON lines");
    refused("<html>\n", "x.jsonl: not JSON lines but a web page (HTML): the download failed");
}

// A byte-order mark, another key, and with skip_bad what no document comes from: each is counted.
TEST(lines_of_others) {
    static const char *const bad[] = { "{\"body\":\"\\ud83d\"}", "{\"body\":\"a\",\"x\":NaN}",
                                       "{", "[", "{\"body\":7}", "{\"text\":\"a\"}", "\xFF", "[[[[[" };
    char text[3000] = "\xEF\xBB\xBF{\"body\":\"one\"}\n";
    Jsonl j = { .key = "body", .skip_bad = true };
    const JsonNode *document;
    Error err;
    for (int i = 0; i < 8; i++) strcat(strcat(text, bad[i]), "\n");
    memset(text + strlen(text), 'x', 1100);                  // a line that no buffer holds
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

// A download or a pipe that ends early: cut at every byte.
TEST(torn_lines) {
    static const char text[] = "{\"text\":\"\\u00e9 \xF0\x9F\x98\x80\",\"n\":[1,{\"a\":true}]}\n"
                               "{\"text\":\"second\"}\n";
    size_t first = (size_t)(strchr(text, '\n') - text);
    for (size_t n = 0; n < sizeof text; n++) {
        Read r = read_lines(text, n);
        bool torn = (n > 0 && n < first) || (n > first + 1 && n < sizeof text - 2);
        CHECK_MSG(r.good == !torn, "cut at %zu: %s", n, r.good ? "accepted" : r.err.text);
        const char *where = n < first ? "x.jsonl: line 1: " : "x.jsonl: line 2: ";
        CHECK_MSG(r.good || strncmp(r.err.text, where, 17) == 0, "cut at %zu: %s", n, r.err.text);
        CHECK(n < first || strncmp(r.documents, "\xC3\xA9 \xF0\x9F\x98\x80|", 8) == 0);
    }
}

TEST(memory_is_bounded) {
    char line[JSONL_LINE_MOST + 1];
    Read r;
    for (size_t n = 12; n <= sizeof line; n++) {             // bytes of the line, newline included
        memset(line, 'x', sizeof line);
        memcpy(line, "{\"text\":\"", 9);
        memcpy(line + n - 3, "\"}\n", 3);
        r = read_lines(line, n);
        CHECK_MSG(r.good == (n <= JSONL_LINE_MOST), "%zu bytes: %s", n, r.err.text);
        CHECK(!r.good || r.n == n - 11);
    }
    CHECK_MSG(strcmp(r.err.text, "x.jsonl: line 1: it is longer than 300 bytes; --skip-bad "
                                  "leaves such lines out") == 0, "%s", r.err.text);
}

// One character, as somebody may write it.
static size_t random_character(char *json, char *text, Rng *rng) {
    static const char *const written[][2] = {
        { "\\n", "\n" }, { "\\\"", "\"" }, { "\\\\", "\\" }, { "\\u0041", "A" }, { "z", "z" },
        { "\\ud83d\\ude00", "\xF0\x9F\x98\x80" }, { "\xE2\x82\xAC", "\xE2\x82\xAC" }, { " ", " " },
        { "\\u00E9", "\xC3\xA9" }, { "{", "{" }, { "\\/", "/" }, { "\xF0\x9F\x98\x80",
        "\xF0\x9F\x98\x80" },
    };
    size_t i = rng_u64(rng) % (sizeof written / sizeof *written);
    strcat(json, written[i][0]);
    strcat(text, written[i][1]);
    return strlen(written[i][0]);
}

// Random documents come back; and whatever a random byte does to them, the answer is documents or
// one line that names the file.
TEST(random_documents_and_random_damage) {
    Rng rng = rng_make(33, 0);
    int damaged = 0;
    for (int round = 0; round < 3000; round++) {
        char json[2000] = "", text[2000] = "";
        for (int lines = (int)(rng_u64(&rng) % 5); lines >= 0; lines--) {
            strcat(json, rng_u64(&rng) % 2 ? "{\"id\":[1e3,{}],\"text\":\"" : "{\"text\": \"");
            for (size_t n = rng_u64(&rng) % 200, i = 0; i < n; )
                i += random_character(json, text, &rng);
            strcat(json, rng_u64(&rng) % 2 ? "\"}\n" : "\" , \"score\":-0.5}\r\n");
            strcat(text, "|");
        }
        gives(json, text);
        size_t n = strlen(json), at = rng_u64(&rng) % n;
        json[at] = (char)rng_u64(&rng);
        Read r = read_lines(json, n);
        damaged += !r.good;
        CHECK(r.good || (strncmp(r.err.text, "x.jsonl: ", 9) == 0 && !strchr(r.err.text, '\n')));
    }
    CHECK_MSG(damaged > 300 && damaged < 2900, "%d of 3000 are refused", damaged);
}

int main(void) {
    RUN(documents_in_their_order);
    RUN(escapes_and_surrogate_pairs);
    RUN(errors_name_the_line);
    RUN(lines_of_others);
    RUN(torn_lines);
    RUN(memory_is_bounded);
    RUN(random_documents_and_random_damage);
    return test_end();
}
