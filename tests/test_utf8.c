// UTF-8: which bytes are characters, checked against all characters there are; and the printer, fed
// whole, in two pieces at every place, and byte by byte.
#include "../dev/base/utf8.h"
#include "test.h"

// ---- what is well formed, from the other side: by writing every character ----

// The bytes of a code point; 0 for what is none.
static size_t encode(unsigned char out[4], unsigned c) {
    if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) return 0;
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char lead[5] = { 0, 0, 0xC0, 0xE0, 0xF0 };
    for (size_t i = n; i-- > 1; c >>= 6) out[i] = (unsigned char)(0x80 | (c & 0x3F));
    out[0] = (unsigned char)(lead[n] | c);
    return n;
}

TEST(utf8_every_character) {
    for (unsigned c = 0; c <= 0x10FFFF; c++) {
        unsigned char s[8] = { 0 };
        size_t n = encode(s, c);
        if (n > 0) CHECK_MSG(utf8_length(s, 8) == n && !utf8_begins(s, n), "U+%04X", c);
        for (size_t k = 1; k < n; k++)
            CHECK_MSG(utf8_length(s, k) == 0 && utf8_begins(s, k), "%zu bytes of U+%04X", k, c);
    }
}

// Two bytes of any kind, with the bytes at the edges of a range after them: a character is what
// encode() writes, read back.
TEST(utf8_what_is_no_character) {
    static const unsigned char edge[] = { 0, 0x7F, 0x80, 0xBF, 0xC0, 0xFF };
    for (int first = 0; first <= 0xFFFF; first++)
        for (int k = 0; k < 36; k++) {
            unsigned char s[4] = { (unsigned char)(first >> 8), (unsigned char)first,
                                   edge[k / 6], edge[k % 6] }, whole[4];
            size_t n = s[0] < 0x80 ? 1 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
            unsigned c = n == 1 ? s[0] : s[0] & (0xFFu >> (n + 1));
            for (size_t i = 1; i < n; i++) c = c << 6 | (s[i] & 0x3F);
            bool is = s[0] < 0xF8 && encode(whole, c) == n && memcmp(s, whole, n) == 0;
            CHECK_MSG(utf8_length(s, 4) == (is ? n : 0), "%02x %02x %02x %02x", s[0], s[1], s[2],
                      s[3]);
        }
}

// ---- the printer ----

// What the printer writes for n bytes that come in pieces: the first `cut` and the rest, or, with
// cut > n, byte by byte. At most `size` bytes, zero-terminated.
static void print_in_pieces(char *out, size_t size, const char *bytes, size_t n, size_t cut) {
    Utf8Printer printer = { .n = 0 };
    FILE *f = fmemopen(out, size, "w");
    if (!f) abort();
    if (cut <= n) {
        utf8_print(&printer, f, bytes, cut);
        utf8_print(&printer, f, bytes + cut, n - cut);
    } else {
        for (size_t i = 0; i < n; i++) utf8_print(&printer, f, bytes + i, 1);
    }
    utf8_print_end(&printer, f);
    fclose(f);
}

static void check_printed(const char *bytes, const char *expected) {
    size_t n = strlen(bytes);
    for (size_t cut = 0; cut <= n + 1; cut++) {
        char out[256] = "";
        print_in_pieces(out, sizeof out, bytes, n, cut);
        CHECK_MSG(strcmp(out, expected) == 0, "cut at %zu of %zu: '%s', not '%s'", cut, n, out,
                  expected);
    }
}

#define BAD "\xEF\xBF\xBD"            // U+FFFD

// What was a beginning until a byte came that does not fit counts as one character lost, as in
// the Unicode standard (3.9, "maximal subparts"), Python and browsers; and so at the end.
TEST(printer_mends_what_is_no_character) {
    static const char *const cases[][2] = {
        { "", "" }, { "a\x80z", "a" BAD "z" }, { "a\xFFz\xFE", "a" BAD "z" BAD },
        { "na\xC3\xAFve \xE2\x82\xAC 5 \xF0\x9F\x99\x82!\n",
          "na\xC3\xAFve \xE2\x82\xAC 5 \xF0\x9F\x99\x82!\n" },
        { "\xC0\xAF", BAD BAD },                          // overlong
        { "\xED\xA0\x80", BAD BAD BAD },                  // a surrogate
        { "\xC3\xC3\xA9", BAD "\xC3\xA9" },               // the second begins anew
        { "\xE2\x82z", BAD "z" }, { "z\xF0\x9F\x99", "z" BAD },
        { "\xF0\x9F\x99\xF0\x9F\x99\x82", BAD "\xF0\x9F\x99\x82" },
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        check_printed(cases[i][0], cases[i][1]);
}

// A character is shown with its last byte, not with the byte after it.
TEST(printer_holds_nothing_whole_back) {
    char out[64] = "";
    Utf8Printer printer = { .n = 0 };
    FILE *f = fmemopen(out, sizeof out, "w");
    static const char text[] = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x99\x82";
    static const size_t shown[] = { 1, 1, 3, 3, 3, 6, 6, 6, 6, 10 };
    for (size_t i = 0; i < COUNT(shown); i++) {
        utf8_print(&printer, f, text + i, 1);
        fflush(f);
        CHECK_MSG((size_t)ftell(f) == shown[i], "after byte %zu: %ld bytes", i, ftell(f));
    }
    utf8_print(&printer, f, "\xE2\x82", 2);
    utf8_print_end(&printer, f);
    utf8_print(&printer, f, "z", 1);             // after an end it starts anew
    fclose(f);
    CHECK(strcmp(out + 10, BAD "z") == 0);
}

// On a terminal, control characters and what reorders text are shown by number; a file receives
// them as they are.
TEST(printer_spares_the_terminal) {
    static const char text[] = "a\x1B[2J\tb\r\n\xC2\x9B" "c\x7F\xC3\xA9\xE2\x80\xAE\xE2\x81\xA9"
                               "\xE2\x80\xA9\xE2\x81\xA5\xE2\x81\xAA\xC2\xA0\0z";
    static const char shown[] = "a\\x1b[2J\tb\\x0d\n\\u009bc\\x7f\xC3\xA9\\u202e\\u2069"
                                "\xE2\x80\xA9\xE2\x81\xA5\xE2\x81\xAA\xC2\xA0\\x00z";
    for (int terminal = 0; terminal < 2; terminal++) {
        char *out = NULL;
        size_t n;
        FILE *f = open_memstream(&out, &n);
        Utf8Printer u = { .terminal = terminal };
        utf8_print(&u, f, text, sizeof text - 1);
        utf8_print_end(&u, f);
        fclose(f);
        size_t length = terminal ? sizeof shown - 1 : sizeof text - 1;
        CHECK(n == length && memcmp(out, terminal ? shown : text, n) == 0);
        free(out);
    }
}

int main(void) { return run_tests(); }
