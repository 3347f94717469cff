// dev/base: lines of a log, which parse and come back exactly; the memory that a process may use;
// which bytes are UTF-8, and the printer, fed whole, in two pieces at every place, and byte by
// byte.
#include <sys/stat.h>
#include "../dev/base/log.c"
#include "../dev/base/memory.c"
#include "../dev/base/utf8.h"
#include "files.h"
#include "test.h"

// ---- log.c ----

static void check_contents(const Path *dir, const char *want) {
    Content c = slurp(dir->text, "log.jsonl");
    CHECK_MSG(strcmp(c.bytes, want) == 0, "got  %s    want %s", c.bytes, want);
    free(c.bytes);
}

// A line is in the file as soon as log_end returns: nothing waits in a buffer for a kill to lose.
// What is no number is null.
TEST(a_line_as_written) {
    #define LINE "{\"event\":\"step\",\"step\":-9223372036854775808,\"loss\":3.14159265," \
                 "\"lr\":0.0006,\"a\":null,\"b\":null,\"who\":\"a \\\"b\\\"\",\"none\":null," \
                 "\"yes\":true,\"list\":[1,2]}\n"
    Path d = folder_make(NULL), path = in(d.text, "log.jsonl");
    Log log;
    Error err;
    CHECK(log_open(&log, path.text, LOG_ANY, &err));
    log_begin(&log, "step");
    log_int(&log, "step", -9223372036854775807ll - 1);
    log_num(&log, "loss", 3.14159265358979);
    log_num(&log, "lr", 6e-4);
    log_num(&log, "a", NAN);
    log_num(&log, "b", -INFINITY);
    log_text(&log, "who", "a \"b\"");
    log_text(&log, "none", NULL);
    log_bool(&log, "yes", true);
    log_raw(&log, "list", "[1,2]");
    check_contents(&d, "");
    CHECK(log_end(&log, &err));
    check_contents(&d, LINE);
    log_begin(&log, "end");
    CHECK(log_end(&log, &err) && log_close(&log, &err));
    check_contents(&d, LINE "{\"event\":\"end\"}\n");
    folder_remove(&d);
}

TEST(escapes) {
    static const struct { const char *text; size_t n; const char *want; } cases[] = {
        { "a\nb\tc\rd", 7, "a\\nb\\tc\\u000dd" },
        { "\0\x1f\x7f", 3, "\\u0000\\u001f\\u007f" },
        { "\"\\/", 3, "\\\"\\\\/" },
        { "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x90\x8D", 9, "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x90\x8D" },
        { "\xF4\x8F\xBF\xBF", 4, "\xF4\x8F\xBF\xBF" },                    // U+10FFFF, the last
        { "a\xFFz", 3, "a\xEF\xBF\xBDz" },
        { "\xC3\xA9", 1, "\xEF\xBF\xBD" },                                // cut short
        { "\xC3(", 2, "\xEF\xBF\xBD(" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const unsigned char *text = (const unsigned char *)cases[i].text;
        char got[128] = "", character[8];
        for (size_t at = 0; at < cases[i].n; strcat(got, character))
            at += json_character(character, text + at, cases[i].n - at);
        CHECK_MSG(strcmp(got, cases[i].want) == 0, "%s, not %s", got, cases[i].want);
    }
}

TEST(a_full_disk_is_told) {
    Log log;
    Error err;
    if (access("/dev/full", W_OK) != 0) SKIP("needs /dev/full");
    CHECK(log_open(&log, "/dev/full", LOG_ANY, &err));
    log_begin(&log, "step");
    err.text[0] = '\0';
    CHECK(!log_end(&log, &err));
    CHECK_MSG(strstr(err.text, "/dev/full") && strstr(err.text, "No space"), "%s", err.text);
    log_close(&log, &err);
}

static void append_end(const char *path) {
    Log log;
    Error err;
    CHECK_MSG(log_open(&log, path, LOG_OURS, &err), "%s", err.text);
    log_begin(&log, "end");
    CHECK(log_end(&log, &err) && log_close(&log, &err));
}

TEST(appending_cuts_a_torn_line) {
    Path d = folder_make(NULL), path = in(d.text, "log.jsonl");
    append_end(path.text);                               // no file yet
    check_contents(&d, "{\"event\":\"end\"}\n");
    put_text(d.text, "log.jsonl", "{\"event\":\"step\"}\n{\"event\":\"st");
    append_end(path.text);
    check_contents(&d, "{\"event\":\"step\"}\n{\"event\":\"end\"}\n");
    put_text(d.text, "log.jsonl", "{\"ev");
    append_end(path.text);
    check_contents(&d, "{\"event\":\"end\"}\n");
    folder_remove(&d);
}

// A file that is no log is refused, and has the same bytes afterwards.
TEST(a_file_that_is_no_log) {
    static const char *const files[] = {
        "my notes\n", "{\"name\":\"a package\"}\n", "{\"events\":1}\n", "x",
    };
    Path d = folder_make(NULL), path = in(d.text, "log.jsonl");
    Log log;
    Error err;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        put_text(d.text, "log.jsonl", files[i]);
        CHECK(!log_open(&log, path.text, LOG_OURS, &err));
        CHECK_MSG(strstr(err.text, path.text) && strstr(err.text, "--overwrite"), "%s", err.text);
        check_contents(&d, files[i]);
        CHECK(log_open(&log, path.text, LOG_ANY, &err));
        check_contents(&d, files[i]);                // until log_clear
        CHECK(log_clear(&log, &err) && log_close(&log, &err));
        check_contents(&d, "");
    }
    folder_remove(&d);
}

TEST(durations_and_counts) {
    static const struct { double n; const char *duration, *count; } cases[] = {
        { 0, "0:00", "0" }, { 0.4, "0:00", NULL }, { 42, "0:42", "42" }, { 59.6, "1:00", NULL },
        { 599, "9:59", "599" }, { 3599.6, "1:00:00", NULL }, { 3909, "1:05:09", "3.91k" },
        { 360000, "100:00:00", "360k" }, { NAN, "-:--", NULL }, { -1, "-:--", NULL },
        { 1e300, "-:--", NULL }, { 999, NULL, "999" }, { 1000, NULL, "1.00k" },
        { 9994, NULL, "9.99k" }, { 9996, NULL, "10.0k" }, { 12345, NULL, "12.3k" },
        { 99949, NULL, "99.9k" }, { 99960, NULL, "100k" }, { 999499, NULL, "999k" },
        { 999500, NULL, "1.00M" },
        { 1.24e8, NULL, "124M" }, { 9.81e9, NULL, "9.81B" }, { 1.5e16, NULL, "15000T" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        Shown duration = duration_text(cases[i].n), count = count_text(cases[i].n);
        CHECK_MSG(!cases[i].duration || strcmp(duration.text, cases[i].duration) == 0,
                  "%g s is %s, not %s", cases[i].n, duration.text, cases[i].duration);
        CHECK_MSG(!cases[i].count || strcmp(count.text, cases[i].count) == 0,
                  "%.0f is %s, not %s", cases[i].n, count.text, cases[i].count);
    }
}

// ---- memory.c: the limits of control groups, from a tree of files as Linux shows them ----

TEST(limits_of_control_groups) {
    static const struct { const char *groups; double limit; } cases[] = {
        { "0::/", 9e9 },
        { "0::/out", 5e9 },                              // the smaller one is outside
        { "0::/out/in", 4e9 },
        { "0::/free", 9e9 },                             // "max"
        { "0::/gone/deeper", 9e9 },
        { "9:name=systemd:/out\n8:pids:/out", INFINITY },
        { "4:memory:/v1\n0::/", 2e9 },                   // both versions
        { "4:memory:/", 3e9 },
        { "", INFINITY },
    };
    const char *folders[] = { "out", "out/in", "free", "memory", "memory/v1" };
    Path d = folder_make(NULL);
    const char *root = d.text;
    for (int i = 0; i < 5; i++) mkdir(in(root, folders[i]).text, 0777);
    put_text(root, "memory.max", "9000000000");
    put_text(root, "out/memory.max", "5000000000");
    put_text(root, "out/in/memory.max", "4000000000");
    put_text(root, "free/memory.max", "max");
    put_text(root, "memory/memory.limit_in_bytes", "3000000000");
    put_text(root, "memory/v1/memory.limit_in_bytes", "2000000000");
    for (size_t i = 0; i < COUNT(cases); i++) {
        put_text(root, "groups", cases[i].groups);
        double limit = cgroup_limit(in(root, "groups").text, root);
        CHECK_MSG(limit == cases[i].limit, "%s: %.0f", cases[i].groups, limit);
    }
    CHECK(cgroup_limit(in(root, "none").text, root) == INFINITY);
    folder_remove(&d);
}

// ---- utf8.h, from the other side: by writing every character ----

// The bytes of a code point; 0 for what is none.
static size_t encode(unsigned char out[4], unsigned c) {
    if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) return 0;
    return (size_t)(utf8_put((char *)out, c) - (char *)out);
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

// ---- the printer of utf8.h ----

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
    *program_name() = "test_base";
    return run_tests();
}
