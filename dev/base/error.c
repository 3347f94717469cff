// Errors: die() for a user's mistake, Error for a parser's report; allocation that dies (base.h).
#include "base.h"
#include <sys/mman.h>

const char **program_name(void) {
    static const char *name = "batchwise";
    return &name;
}

// Formats a message into out (size). One that is too long loses its middle, such as a long path's:
// its end says what is wrong.
PRINTF_LIKE(3, 0) static void format_short(char *out, size_t size, const char *fmt, va_list args) {
    char whole[16384];
    int printed = vsnprintf(whole, sizeof whole, fmt, args);
    size_t n = printed < 0 ? 0 : strlen(whole), half = size / 2;
    if (n < size) memcpy(out, whole, n + 1);
    else snprintf(out, size, "%.*s...%s", (int)half - 4, whole, whole + n - half);
}

PRINTF_LIKE(2, 3) bool fail(Error *err, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    format_short(err->text, sizeof err->text, fmt, args);
    va_end(args);
    return false;
}

Brief brief(const char *text, size_t length) {
    Brief shown;
    size_t n = 0;
    for (; n < length && n + 8 < sizeof shown.text; n++)
        shown.text[n] = (unsigned char)text[n] < 0x20 || text[n] == 0x7F ? '?' : text[n];
    if (n < length) {
        while (n > 0 && ((unsigned char)text[n] & 0xC0) == 0x80) n--;    // not inside a character
        memcpy(shown.text + n, "...", 3);
        n += 3;
    }
    shown.text[n] = '\0';
    return shown;
}

bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

bool text_is(const char *text, size_t n, const char *word) {
    return n == strlen(word) && memcmp(text, word, n) == 0;
}

void (**die_last(void))(void) {
    static void (*last)(void);
    return &last;
}

__attribute__((noreturn)) PRINTF_LIKE(1, 2) void die(const char *fmt, ...) {
    char text[1024];
    int rank = launched_as(LAUNCH_RANK, 0);
    va_list args;
    va_start(args, fmt);
    format_short(text, sizeof text, fmt, args);
    va_end(args);
    fflush(stdout);
    if (rank == 0) fprintf(stderr, "%s: %s\n", *program_name(), text);
    else sleep(2);
    if (rank > 0) fprintf(stderr, "%s: rank %d: %s\n", *program_name(), rank, text);
    if (*die_last()) (*die_last())();
    exit(1);
}

PRINTF_LIKE(1, 2) void warn(const char *fmt, ...) {
    va_list args;
    if (launched_as(LAUNCH_RANK, 0) > 0) return;
    va_start(args, fmt);
    fprintf(stderr, "%s: ", *program_name());
    vfprintf(stderr, fmt, args);
    fprintf(stderr, "\n");
    va_end(args);
}

enum { ALLOC_LINE = 64, ALLOC_PAGE = 2 << 20 };

static size_t alloc_unit(size_t bytes) {
    return bytes < 8*ALLOC_PAGE ? ALLOC_LINE : ALLOC_PAGE;
}

size_t alloc_bytes(size_t bytes) {
    size_t unit = alloc_unit(bytes);
    return (bytes + unit - 1) / unit * unit;
}

void *alloc_or_die(size_t bytes, const char *what) {
    size_t unit = alloc_unit(bytes), rounded = alloc_bytes(bytes);
    void *p = NULL;
    if (rounded < bytes || posix_memalign(&p, unit, rounded ? rounded : unit) != 0)
        die("memory: cannot allocate %.3g %s for %s; use a smaller model or micro-batch",
            (double)bytes / (bytes < 100000000 ? 1e6 : 1e9), bytes < 100000000 ? "MB" : "GB", what);
#ifdef MADV_HUGEPAGE
    if (unit == ALLOC_PAGE) madvise(p, rounded, MADV_HUGEPAGE);
#endif
    memset(p, 0, rounded);
    return p;
}

void *grow_or_die(void *array, size_t *room, size_t n, size_t bytes, const char *what) {
    if (n <= *room) return array;
    *room = 2*n;
    array = realloc(array, *room * bytes);
    if (!array) die("memory: cannot allocate %.3g MB for %s", 1e-6 * (double)(*room * bytes), what);
    return array;
}

void text_begin(TextBuffer *t) {
    t->f = open_memstream(&t->text, &t->n);
    if (!t->f) die("memory: none left for a text");
}

void text_end(TextBuffer *t) {
    bool whole = !ferror(t->f);
    if (fclose(t->f) != 0 || !whole) die("memory: none left for a text");
}
