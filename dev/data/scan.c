// A look through a text before it is encoded: where its documents are, and which bytes are odd.
//
//     Scan s = { .separator = "<|endoftext|>", .found = found, .corpus = corpus };
//     for each text: scan_begin(&s, path);
//                    while (scan_block(&s, file)) ...
//
// calls found(corpus, from, to) for each document. Without a separator a text is one document.
// A separator is a line that holds its characters and nothing else; Windows' line ends count too.
// It belongs to no document. Documents of white space alone are left out where there are
// separators, and so is a byte-order mark: neither is anybody's text.
#include "data.h"
#include <ctype.h>

void scan_begin(Scan *s, const char *path) {
    s->path = path;
    s->size = s->line = s->from = 0;
    s->blank = true;
    s->separated = false;
    s->held = 0;
}

static void odd_add(Odd *odd, const Scan *s, uint64_t at) {
    if (odd->count++ > 0) return;
    odd->first = at;
    odd->path = s->path;
}

// A line has ended, and the next one begins at byte `next`.
static void scan_line_end(Scan *s, uint64_t next) {
    uint64_t length = s->size - s->line;
    size_t n = s->separator ? strlen(s->separator) : 0;
    if (length == n + 1 && s->head[n] == '\r') length = n;
    if (s->separator && length == n && memcmp(s->head, s->separator, n) == 0) {
        if (!s->blank) s->found(s->corpus, s->from, s->line);
        s->separators++;
        s->from = next;
        s->blank = s->separated = true;
    } else {
        for (size_t i = 0; s->blank && i < length && i < sizeof s->head; i++)
            s->blank = isspace((unsigned char)s->head[i]);
        if (length > sizeof s->head) s->blank = false;
    }
    s->line = next;
}

// The next n bytes, of any number of lines.
static void scan_lines(Scan *s, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; ) {
        const char *end = (const char *)memchr(bytes + i, '\n', n - i);
        size_t part = end ? (size_t)(end - bytes) - i : n - i, at = (size_t)(s->size - s->line);
        size_t room = at < sizeof s->head ? sizeof s->head - at : 0;
        memcpy(s->head + (room ? at : 0), bytes + i, part < room ? part : room);
        s->size += part;
        i += part + (end != NULL);
        if (end) scan_line_end(s, s->size + 1);
        if (end) s->size++;
    }
}

// Looks for NUL and for bytes that are not UTF-8 in the n bytes at `at`. Returns how many at their
// end only more bytes can tell.
static size_t scan_odd(Scan *s, const char *bytes, size_t n, uint64_t at) {
    const unsigned char *c = (const unsigned char *)bytes;
    for (size_t i = 0, length; i < n; i += length ? length : 1) {
        length = c[i] < 0x80 ? 1 : utf8_length(c + i, n - i);
        if (length == 0 && utf8_begins(c + i, n - i)) return n - i;
        if (length == 0) odd_add(&s->invalid, s, at + i);
        if (c[i] == 0) odd_add(&s->nul, s, at + i);
    }
    return 0;
}

// Counts the separator wherever it is, but for those that two blocks share.
static void scan_inside(Scan *s, const char *bytes, size_t n) {
    const char *end = bytes + n, *c = bytes;
    size_t length = s->separator ? strlen(s->separator) : 0;
    while (length > 0 && (c = (const char *)memchr(c, *s->separator, (size_t)(end - c)))) {
        s->inside += (size_t)(end - c) >= length && memcmp(c, s->separator, length) == 0;
        c++;
    }
}

// Ends the last line and the last document.
static void scan_end(Scan *s) {
    for (; s->held > 0; s->held--) odd_add(&s->invalid, s, s->size - s->held);
    if (s->line < s->size) scan_line_end(s, s->size);
    if (s->from < s->size && (!s->blank || !s->separated))
        s->found(s->corpus, s->from, s->size);
}

bool scan_block(Scan *s, FILE *file) {
    size_t n = fread(s->block + s->held, 1, sizeof s->block - s->held, file);
    bool first = s->size == 0, mark = first && n >= 3 && memcmp(s->block, "\xEF\xBB\xBF", 3) == 0;
    if (mark) s->size = s->from = s->line = 3;
    scan_inside(s, s->block, s->held + n);
    scan_lines(s, s->block + s->held + 3 * mark, n - 3 * mark);
    size_t all = s->held + n, left = scan_odd(s, s->block, all, s->size - all);
    memmove(s->block, s->block + all - left, left);
    s->held = left;
    if (n == 0) scan_end(s);
    return n > 0;
}
