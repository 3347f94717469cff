// texts.c: documents between separators, and odd bytes.
#include "../dev/base/base.h"
#include "../dev/data/texts.c"
#include "test.h"

// The documents of a text, each in brackets.
typedef struct { const char *text; char found[400]; } Found;

static void found_add(void *corpus, size_t from, size_t to) {
    Found *f = (Found *)corpus;
    size_t at = strlen(f->found);
    snprintf(f->found + at, sizeof f->found - at, "[%.*s]", (int)(to - from), f->text + from);
}

static Scan look_through(Found *f, const char *text, size_t n, const char *separator) {
    Scan s = { .separator = separator, .found = found_add, .corpus = f };
    f->text = text;
    f->found[0] = '\0';
    scan_text(&s, "x.txt", text, n);
    return s;
}

static void gives(const char *text, const char *separator, const char *documents) {
    Found f;
    look_through(&f, text, strlen(text), separator);
    CHECK_MSG(strcmp(f.found, documents) == 0, "'%s' gives %s", text, f.found);
}

TEST(documents_between_separators) {
    gives("one\ntwo\n", "--", "[one\ntwo\n]");
    gives("one\n--\ntwo, longer than a block\n--\nthree", "--",
          "[one\n][two, longer than a block\n][three]");
    gives("--\n--\none\r\n--\r\n \n--\ntwo\n--", "--", "[one\r\n][two\n]");
    gives("a -- b\n---\n-\n --\n-- \n", "--", "[a -- b\n---\n-\n --\n-- \n]");
    gives("one\n\n\ntwo\n\r\nthree\n", "", "[one\n][two\n][three\n]");
    gives("one\n--\n", NULL, "[one\n--\n]");
    gives(" \n", "--", "[ \n]");                        // a text is kept, whatever it holds
    gives(" \n--\n", "--", "");
    gives("\xEF\xBB\xBF--\none\n", "--", "[one\n]");
    gives("\xEF\xBB\xBFone", "--", "[one]");
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
                char text[32] = "aaaaaaaabbbb";
                Found f;
                memcpy(text + before, cases[i].bytes, cases[i].n);
                memcpy(text + before + cases[i].n, "zzzz", after);
                Scan s = look_through(&f, text, before + cases[i].n + after, NULL);
                CHECK_MSG(s.nul.count == cases[i].nul && s.invalid.count == cases[i].invalid,
                          "case %zu at %zu: %d NUL, %d not UTF-8", i, before, (int)s.nul.count,
                          (int)s.invalid.count);
                const Odd *odd = s.nul.count ? &s.nul : &s.invalid;
                CHECK(odd->count == 0 || odd->first == before);
            }
}

int main(void) { return run_tests(); }
