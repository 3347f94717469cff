// log.jsonl: what is written parses, comes back exactly, and a line that cannot be written is told.
#include "../dev/base/log.c"
#include "files.h"
#include "test.h"

static void check_contents(const Path *dir, const char *want) {
    Content c = slurp(dir->text, "log.jsonl");
    CHECK_MSG(strcmp(c.bytes, want) == 0, "got  %s    want %s", c.bytes, want);
    free(c.bytes);
}

// One line that holds a single text, n bytes long; the caller compares what stands in the file.
static void log_one_text(const Path *dir, const char *text, size_t n) {
    Log log;
    Error err;
    CHECK(log_open(&log, in(dir->text, "log.jsonl").text, LOG_ANY, &err) && log_clear(&log, &err));
    log_begin(&log, "t");
    log_text_n(&log, "x", text, n);
    CHECK(log_end(&log, &err));
    CHECK(log_close(&log, &err));
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
        { "", 0, "" },
    };
    Path d = folder_make(NULL);
    for (size_t i = 0; i < COUNT(cases); i++) {
        char want[128];
        log_one_text(&d, cases[i].text, cases[i].n);
        snprintf(want, sizeof want, "{\"event\":\"t\",\"x\":\"%s\"}\n", cases[i].want);
        check_contents(&d, want);
    }
    folder_remove(&d);
}

// Longer than the line's first buffer, and repaired all along.
TEST(a_long_text) {
    enum { N = 100000 };
    Path d = folder_make(NULL);
    char *text = (char *)alloc_or_die(N, "a text");
    size_t wrong = 0, before = strlen("{\"event\":\"t\",\"x\":\"");
    memset(text, 0xFF, N);
    log_one_text(&d, text, N);
    Content c = slurp(d.text, "log.jsonl");
    for (size_t i = 0; i < N; i++) wrong += memcmp(c.bytes + before + 3*i, "\xEF\xBF\xBD", 3) != 0;
    CHECK(wrong == 0 && c.n == before + 3*N + 3 && strcmp(c.bytes + c.n - 3, "\"}\n") == 0);
    free(c.bytes);
    free(text);
    folder_remove(&d);
}

// What is logged of a float32 is that float32.
TEST(nine_digits_bring_a_float_back) {
    Log log;
    Error err;
    CHECK(log_open(&log, "/dev/null", LOG_ANY, &err));
    uint32_t bits = 1;
    for (int i = 0; i < 20000; i++) {
        bits = bits * 1664525u + 1013904223u;
        float x;
        memcpy(&x, &bits, sizeof x);
        if (!isfinite(x)) continue;
        log.length = 0;
        log_num(&log, "x", x);
        log_bytes(&log, "", 1);
        float back = strtof(log.line + strlen("\"x\":"), NULL);
        CHECK_MSG(memcmp(&back, &x, sizeof x) == 0, "%s is not %.17g", log.line, (double)x);
    }
    CHECK(log_close(&log, &err));
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

TEST(what_cannot_be_opened_is_told) {
    static const char *const paths[] = { "/no/such/directory/log.jsonl", "/" };
    for (int i = 0; i < 4; i++) {
        Log log;
        Error err;
        CHECK(!log_open(&log, paths[i / 2], i % 2 ? LOG_OURS : LOG_ANY, &err));
        CHECK_MSG(strstr(err.text, paths[i / 2]) && !strchr(err.text, '\n'), "%s", err.text);
    }
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

int main(void) { return run_tests(); }
