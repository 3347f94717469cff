// UTF-8: which bytes are characters, checked against all characters there are; and the printer, fed
// whole, in two pieces at every place, and byte by byte.
#include "../dev/base/utf8.h"
#include "../dev/base/rng.h"
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

// For every sequence of one, two and three bytes: whether it is a character, or begins one.
typedef struct { unsigned char *is[4], *begins[4]; } Table;

static size_t number_of(const unsigned char *s, size_t n) {
    size_t number = 0;
    for (size_t i = 0; i < n; i++) number = number << 8 | s[i];
    return number;
}

static Table table_make(void) {
    Table t;
    for (size_t n = 1; n <= 3; n++) {
        t.is[n] = (unsigned char *)calloc((size_t)1 << 8*n, 1);
        t.begins[n] = (unsigned char *)calloc((size_t)1 << 8*n, 1);
    }
    for (unsigned c = 0; c <= 0x10FFFF; c++) {
        unsigned char s[4];
        size_t n = encode(s, c);
        if (n > 0 && n < 4) t.is[n][number_of(s, n)] = 1;
        for (size_t k = 1; k < n; k++) t.begins[k][number_of(s, k)] = 1;
    }
    return t;
}

static void table_free(Table *t) {
    for (size_t n = 1; n <= 3; n++) {
        free(t->is[n]);
        free(t->begins[n]);
    }
}

TEST(utf8_every_sequence_up_to_three_bytes) {
    Table t = table_make();
    for (size_t n = 1; n <= 3; n++)
        for (size_t number = 0; number < (size_t)1 << 8*n; number++) {
            unsigned char s[4] = { 0 };
            for (size_t i = 0; i < n; i++) s[i] = (unsigned char)(number >> 8*(n - 1 - i));
            size_t length = utf8_length(s, n);
            // A shorter character may stand at its beginning, and then it is that one's length.
            bool shorter = length > 0 && length < n && t.is[length][number_of(s, length)];
            CHECK_MSG(shorter || (length == n) == t.is[n][number], "length of %06zx", number);
            CHECK_MSG(utf8_begins(s, n) == t.begins[n][number], "beginning of %06zx", number);
        }
    table_free(&t);
}

TEST(utf8_every_character) {
    for (unsigned c = 0; c <= 0x10FFFF; c++) {
        unsigned char s[8] = { 0 };
        size_t n = encode(s, c);
        if (n == 0) continue;
        CHECK_MSG(utf8_length(s, n) == n && utf8_length(s, 8) == n, "U+%04X", c);
        CHECK_MSG(!utf8_begins(s, n), "U+%04X is whole", c);
        for (size_t k = 1; k < n; k++)
            CHECK_MSG(utf8_length(s, k) == 0, "U+%04X, %zu bytes of it", c, k);
    }
}

// All leads from F0 on and all second bytes, with the bytes at the edges of a range after them.
TEST(utf8_four_bytes) {
    static const unsigned char edge[] = { 0, 0x7F, 0x80, 0xBF, 0xC0, 0xFF };
    for (int lead = 0xF0; lead <= 0xFF; lead++)
        for (int second = 0; second <= 0xFF; second++)
            for (int k = 0; k < 36; k++) {
                unsigned char s[4] = { (unsigned char)lead, (unsigned char)second,
                                       edge[k / 6], edge[k % 6] }, whole[4];
                unsigned c = (unsigned)(lead & 7) << 18 | (unsigned)(second & 0x3F) << 12
                           | (unsigned)(s[2] & 0x3F) << 6 | (s[3] & 0x3F);
                bool is = encode(whole, c) == 4 && memcmp(s, whole, 4) == 0;
                CHECK_MSG((utf8_length(s, 4) == 4) == is, "%02x %02x %02x %02x",
                          s[0], s[1], s[2], s[3]);
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

TEST(printer_whole_characters) {
    check_printed("", "");
    check_printed("plain text\n", "plain text\n");
    check_printed("na\xC3\xAFve \xE2\x82\xAC 5 \xF0\x9F\x99\x82!", "na\xC3\xAFve \xE2\x82\xAC 5 "
                  "\xF0\x9F\x99\x82!");
    check_printed("\x7F\xC2\x80\xDF\xBF\xE0\xA0\x80\xED\x9F\xBF\xEE\x80\x80\xEF\xBF\xBF"
                  "\xF0\x90\x80\x80\xF4\x8F\xBF\xBF",
                  "\x7F\xC2\x80\xDF\xBF\xE0\xA0\x80\xED\x9F\xBF\xEE\x80\x80\xEF\xBF\xBF"
                  "\xF0\x90\x80\x80\xF4\x8F\xBF\xBF");
}

TEST(printer_what_is_never_a_character) {
    check_printed("a\x80z", "a" BAD "z");
    check_printed("a\xFFz\xFE", "a" BAD "z" BAD);
    check_printed("\xC0\xAF", BAD BAD);                      // overlong
    check_printed("\xED\xA0\x80", BAD BAD BAD);              // a surrogate
    check_printed("\xF4\x90\x80\x80", BAD BAD BAD BAD);      // past U+10FFFF
    check_printed("\xC3\xC3\xA9", BAD "\xC3\xA9");           // the second begins anew
    check_printed("\xC3(", BAD "(");
}

// What was a beginning until a byte came that does not fit counts as one character lost, as in
// the Unicode standard (3.9, "maximal subparts"), Python and browsers; and so at the end.
TEST(printer_cut_characters) {
    check_printed("\xE2\x82z", BAD "z");
    check_printed("\xF0\x9F\x99z", BAD "z");
    check_printed("\xF0\x9F\x99\xF0\x9F\x99\x82", BAD "\xF0\x9F\x99\x82");
    check_printed("\xE2\x82\xC3\xA9", BAD "\xC3\xA9");
    check_printed("\xE2\x82\xFF", BAD BAD);
    check_printed("z\xC3", "z" BAD);
    check_printed("z\xE2\x82", "z" BAD);
    check_printed("z\xF0\x9F\x99", "z" BAD);
}

TEST(printer_keeps_zeros) {
    char out[16] = "";
    print_in_pieces(out, sizeof out, "a\0b", 3, 4);
    CHECK(memcmp(out, "a\0b", 4) == 0);
}

// A character is shown with its last byte, not with the byte after it.
TEST(printer_holds_nothing_whole_back) {
    char out[64] = "";
    Utf8Printer printer = { .n = 0 };
    FILE *f = fmemopen(out, sizeof out, "w");
    static const char text[] = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x99\x82";
    static const size_t shown[] = { 1, 1, 3, 3, 3, 6, 6, 6, 6, 10 };
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++) {
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

// Whatever comes in, well-formed text goes out, and the same whatever the pieces.
TEST(printer_random_bytes) {
    static const char often[] = "a\x80\x82\x90\x9F\xA0\xBF\xC3\xE0\xE2\xED\xF0\xF4\xFF";
    Rng rng = rng_make(7, 0);
    for (int round = 0; round < 3000; round++) {
        char bytes[12], whole[64] = "", out[64];
        size_t n = rng_u64(&rng) % sizeof bytes;
        for (size_t i = 0; i < n; i++) bytes[i] = often[rng_u64(&rng) % (sizeof often - 1)];
        print_in_pieces(whole, sizeof whole, bytes, n, 0);
        for (size_t at = 0, end = strlen(whole), length; at < end; at += length) {
            length = utf8_length((const unsigned char *)whole + at, end - at);
            CHECK(length > 0);
            if (length == 0) break;
        }
        for (size_t cut = 1; cut <= n + 1; cut++) {
            memset(out, 0, sizeof out);
            print_in_pieces(out, sizeof out, bytes, n, cut);
            CHECK(strcmp(out, whole) == 0);
        }
    }
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

int main(void) {
    RUN(printer_spares_the_terminal);
    RUN(utf8_every_sequence_up_to_three_bytes);
    RUN(utf8_every_character);
    RUN(utf8_four_bytes);
    RUN(printer_whole_characters);
    RUN(printer_what_is_never_a_character);
    RUN(printer_cut_characters);
    RUN(printer_keeps_zeros);
    RUN(printer_holds_nothing_whole_back);
    RUN(printer_random_bytes);
    return test_end();
}
