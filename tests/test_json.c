// json.c: what it accepts means what it says, and what it refuses is refused at the right byte.
#include "../dev/files/json.c"
#include "../dev/base/rng.h"
#include "test.h"

// Parses a copy that ends where its memory ends, so that a sanitizer sees the first byte too many.
static bool parse(Json *j, const char *text, size_t n, Error *err) {
    char *copy = malloc(n + !n);
    memcpy(copy, text, n);
    bool parsed = json_parse(j, copy, n, err);
    free(copy);
    return parsed;
}

static bool accepts(const char *text, size_t n) {
    Json j;
    Error err;
    if (!parse(&j, text, n, &err)) return false;
    json_free(&j);
    return true;
}

TEST(tree) {
    Json j;
    Error err;
    const char *text = " {\"a\": [1, -2.5e3], \"b\": {\"c\": true, \"d\": null}, "
                       "\"e\": [], \"f\": \"x\"} ";
    CHECK(parse(&j, text, strlen(text), &err));
    const JsonNode *root = j.root, *a = json_get(root, "a"), *b = json_get(root, "b");
    CHECK(root->type == JSON_OBJECT && root->length == 4 && root->span == j.n_nodes);
    CHECK(a && a->type == JSON_ARRAY && a->length == 2 && a->span == 3 && a->at == 7);
    CHECK(strcmp(json_first(a)->text, "1") == 0 && strcmp((a + 2)->text, "-2.5e3") == 0);
    CHECK(json_next(json_first(a)) + 1 == json_end(a));
    CHECK(b && json_get(b, "c")->type == JSON_TRUE && json_get(b, "d")->type == JSON_NULL);
    CHECK(json_get(root, "e")->length == 0 && json_get(root, "e")->span == 1);
    CHECK(json_is(json_get(root, "f"), "x") && !json_get(root, "c") && !json_get(a, "a"));
    size_t members = 0;
    for (const JsonNode *k = json_first(root); k < json_end(root); k = json_next(k + 1)) members++;
    CHECK(members == 4);
    json_free(&j);
}

TEST(strings) {
    static const struct { const char *text; const char *means; size_t n; } cases[] = {
        { "\"\"", "", 0 }, { "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t", 8 },
        { "\"\\u0041\\u00e9\\u20AC\"", "A\xC3\xA9\xE2\x82\xAC", 6 },
        { "\"a\\u0000b\"", "a\0b", 3 }, { "\"\xF0\x9F\x98\x80\x7F\"", "\xF0\x9F\x98\x80\x7F", 5 },
        { "\"\\ud800\\udc00\"", "\xF0\x90\x80\x80", 4 }, { "\"\\uFFFF\"", "\xEF\xBF\xBF", 3 },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        Json j;
        Error err = { "" };
        bool parsed = parse(&j, cases[i].text, strlen(cases[i].text), &err);
        CHECK_MSG(parsed, "%s: %s", cases[i].text, err.text);
        if (!parsed) continue;
        bool same = j.root->length == cases[i].n
                 && memcmp(j.root->text, cases[i].means, cases[i].n + 1) == 0;
        CHECK_MSG(same, "%s", cases[i].text);
        json_free(&j);
    }
}

TEST(refusals) {
    static const struct { const char *text, *error; } cases[] = {
        { "", "byte 0: the text ends where a value was expected" },
        { "[1,]", "byte 3: expected a value, found ']'" },
        { "[1 2]", "byte 3: expected ',' or ']', found '2'" },
        { "{\"a\" 1}", "byte 5: expected ':', found '1'" },
        { "{\"a\":1,}", "byte 7: expected a key in quotes, found '}'" },
        { "1 1", "byte 2: expected the end of the text, found '1'" },
        { "-", "byte 0: not a number" },
        { "NaN", "byte 0: expected a value, found 'N'" },
        { "\"a", "byte 0: a string without a closing quote" },
        { "\"a\nb\"", "byte 2: a control character in a string; escape it" },
        { "\"\\x\"", "byte 1: an unknown escape; a backslash is written \\\\" },
        { "\"\\u12g4\"", "byte 5: expected four hexadecimal digits, found 'g'" },
        { "\"\\ud800\"", "byte 1: an unpaired surrogate" },
        { "\"\x80\"", "byte 1: not UTF-8" },                       // a lone continuation
        { "1e999", "byte 0: not a number" },
        { "\n<!DOCTYPE html>",
          "byte 1: this is a web page (HTML), not JSON: the download failed" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        Json j;
        Error err = { "accepted" };
        if (parse(&j, cases[i].text, strlen(cases[i].text), &err)) json_free(&j);
        CHECK_MSG(strcmp(err.text, cases[i].error) == 0, "%s: %s; expected: %s", cases[i].text,
                  err.text, cases[i].error);
    }
    CHECK(!accepts("1\0", 2));                   // a NUL is no white space
    CHECK(accepts("[-0, 0.0e-0, 1E+2]", 18));
}

TEST(depth) {
    char text[2 * JSON_MAX_DEPTH + 3];
    for (int depth = JSON_MAX_DEPTH; depth <= JSON_MAX_DEPTH + 1; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        CHECK(accepts(text, 2 * (size_t)depth) == (depth == JSON_MAX_DEPTH));
    }
}

TEST(every_cut_is_refused) {
    const char *text = "{\"n\": -1.5e+3, \"s\": \"x\\u00e9\\ud83d\\ude00\xE2\x82\xAC\", "
                       "\"l\": [true, false, null, {}, []]}";
    size_t n = strlen(text);
    CHECK(accepts(text, n));
    for (size_t cut = 0; cut < n; cut++) CHECK_MSG(!accepts(text, cut), "cut at %zu", cut);
}

TEST(getters) {
    Json j;
    Error err;
    const char *text = "{\"i\":-9223372036854775808,\"u\":18446744073709551615,\"f\":0.1,"
                       "\"s\":\"x\",\"b\":false,\"e\":1e3}";
    int64_t i = 0;
    double d = 0;
    CHECK(parse(&j, text, strlen(text), &err));
    const JsonNode *o = j.root;
    CHECK(json_get_int(&i, o, "i", INT64_MIN, 0, &err) && i == INT64_MIN);
    CHECK(json_get_double(&d, o, "f", &err) && d == 0.1);
    CHECK(!json_get_int(&i, o, "x", 0, 1, &err) && strcmp(err.text, "\"x\" is missing") == 0);
    CHECK(!json_get_int(&i, o, "i", -5, 5, &err));
    CHECK(strcmp(err.text, "byte 5: \"i\" is -9223372036854775808; a whole number from -5 to 5 "
                           "was expected") == 0);
    CHECK(!json_get_int(&i, o, "u", 0, INT64_MAX, &err) && !json_get_int(&i, o, "f", 0, 1, &err));
    CHECK(!json_get_int(&i, o, "e", 0, INT64_MAX, &err) && !json_get_int(&i, o, "s", 0, 1, &err));
    CHECK(strstr(err.text, "\"s\" must be a number, not a string") != NULL);
    CHECK(json_need(o, "s", JSON_STRING, &err) == json_get(o, "s"));
    json_free(&j);
}

TEST(written_strings_read_back) {
    Rng rng = rng_make(2, 0);
    for (int i = 0; i < 2000; i++) {
        char text[4 * 20 + 4], *end = text, *written = NULL;
        for (uint64_t k = rng_below(&rng, 20); k > 0; k--) {
            uint32_t code = (uint32_t)rng_below(&rng, 4) ? (uint32_t)rng_below(&rng, 160)
                                                         : (uint32_t)rng_below(&rng, 0x110000);
            if (code < 0xD800 || code > 0xDFFF) end = utf8_put(end, code);
        }
        size_t n = (size_t)(end - text), size;
        FILE *f = open_memstream(&written, &size);
        json_write_string(f, text, n);
        fclose(f);
        Json j;
        Error err;
        bool same = parse(&j, written, size, &err);
        CHECK_MSG(same && j.root->length == n && memcmp(j.root->text, text, n) == 0, "%s", written);
        if (same) json_free(&j);
        free(written);
    }
}

TEST(shown_text_is_one_line) {
    Json j;
    Error err;
    char text[300];
    size_t n = (size_t)sprintf(text, "[\"a\\n\\u001b[2J\", \"");
    for (int i = 0; i < 60; i++) n += (size_t)sprintf(text + n, "\xE2\x82\xAC");
    n += (size_t)sprintf(text + n, "\"]");
    CHECK(parse(&j, text, n, &err));
    CHECK(strcmp(json_show(j.root + 1).text, "a??[2J") == 0);
    Brief cut = json_show(j.root + 2);
    CHECK(strcmp(cut.text + strlen(cut.text) - 6, "\xE2\x82\xAC...") == 0);
    json_free(&j);
}

int main(void) { return run_tests(); }
