// The log. Whatever a file holds, a run that adds to it either refuses it and leaves it as it is,
// or removes its incomplete last line and no more. And whatever a text holds, a line with it is one
// line of JSON, from which the text comes back: state.json keeps a run's flags in such a line.
#include <assert.h>
#include "../../dev/base/log.h"
#include "../../dev/files/json.h"

static void check_claim(FILE *f, const char *bytes, size_t size) {
    char same[4096];
    Error err;
    size_t whole = size;
    assert(size <= sizeof same && ftruncate(fileno(f), 0) == 0);
    assert(pwrite(fileno(f), bytes, size, 0) == (ssize_t)size);
    bool claimed = log_claim(fileno(f), "a", LOG_OURS, &err);
    while (claimed && whole > 0 && bytes[whole - 1] != '\n') whole--;
    assert(pread(fileno(f), same, sizeof same, 0) == (ssize_t)whole);
    assert(memcmp(same, bytes, whole) == 0);
    assert(!claimed || whole == 0 || (whole > 9 && memcmp(bytes, "{\"event\":", 9) == 0));
}

// The text without what is not UTF-8. Returns its length.
static size_t repaired(char *out, const char *text, size_t n) {
    size_t at = 0;
    for (size_t i = 0, length; i < n; i += length ? length : 1, at += length ? length : 3) {
        length = utf8_length((const unsigned char *)text + i, n - i);
        memcpy(out + at, length ? text + i : "\xEF\xBF\xBD", length ? length : 3);
    }
    return at;
}

static void check_line(const char *text, size_t n) {
    char *line, *want = (char *)malloc(3*n + 1);
    size_t length, wanted = repaired(want, text, n);
    float number = 0.0f;
    double again;
    Log log;
    Json j;
    Error err;
    memcpy(&number, text, n < sizeof number ? n : sizeof number);
    log_to(&log, open_memstream(&line, &length), "a");
    log_begin(&log, "text");
    log_text_n(&log, "text", text, n);
    log_num(&log, "number", number);
    assert(log_end(&log, &err) && log_close(&log, &err));
    assert(memchr(line, '\n', length) == line + length - 1);
    assert(json_parse(&j, line, length, &err));
    const JsonNode *back = json_get(j.root, "text");
    assert(back->length == wanted && memcmp(back->text, want, wanted) == 0);
    bool real = json_get_double(&again, j.root, "number", &err);
    assert(real ? (float)again == number : !isfinite(number));
    json_free(&j);
    free(line);
    free(want);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static FILE *f;
    if (!f) f = tmpfile();
    if (!f) die("no temporary file");
    check_claim(f, (const char *)data, size);
    check_line((const char *)data, size);
    return 0;
}
