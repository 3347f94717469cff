// UTF-8: finding characters in bytes, and printing text that arrives a few bytes at a time.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

// The length of the well-formed UTF-8 sequence at s (n bytes left, n > 0), or 0. As RFC 3629 asks,
// overlong forms, surrogates and code points past U+10FFFF are refused.
static inline size_t utf8_length(const unsigned char *s, size_t n) {
    unsigned char lo = 0x80, hi = 0xBF;          // range of the second byte
    size_t length = s[0] < 0x80 ? 1 : s[0] < 0xC2 ? 0 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
    if (s[0] == 0xE0) lo = 0xA0;                 // below: overlong
    if (s[0] == 0xED) hi = 0x9F;                 // above: surrogates
    if (s[0] == 0xF0) lo = 0x90;                 // below: overlong
    if (s[0] == 0xF4) hi = 0x8F;                 // above: past U+10FFFF
    if (s[0] > 0xF4 || length > n) return 0;
    if (length > 1 && (s[1] < lo || s[1] > hi)) return 0;
    for (size_t i = 2; i < length; i++)
        if (s[i] < 0x80 || s[i] > 0xBF) return 0;
    return length;
}

// True when the n bytes (n > 0) are the beginning of a character that more bytes could complete.
static inline bool utf8_begins(const unsigned char *s, size_t n) {
    unsigned char whole[4] = { s[0], 0x90, 0x80, 0x80 };
    if (s[0] == 0xE0) whole[1] = 0xA0;            // the second byte must be A0 or more
    if (s[0] == 0xF4) whole[1] = 0x80;            // the second byte must be 8F or less
    for (size_t i = 1; i < n && i < 4; i++) whole[i] = s[i];
    return utf8_length(whole, 4) > n;
}

// Prints each character once its last byte has arrived: a token may end in the middle of a
// character. Bytes that cannot become a character are printed as U+FFFD. On a terminal, control
// characters other than tab and newline are too: a byte-level model may emit escape sequences.
typedef struct { unsigned char held[4]; size_t n; bool terminal; } Utf8Printer;

static inline bool utf8_is_control(const unsigned char *s) {
    return (s[0] < 0x20 && s[0] != '\n' && s[0] != '\t') || s[0] == 0x7F
        || (s[0] == 0xC2 && s[1] < 0xA0);
}

static inline void utf8_print(Utf8Printer *u, FILE *out, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        u->held[u->n++] = (unsigned char)bytes[i];
        while (u->n > 0 && !utf8_begins(u->held, u->n)) {
            size_t length = utf8_length(u->held, u->n), done = length;
            // The bytes before an invalid one print as one U+FFFD; that byte may begin a character.
            if (length == 0) done = u->n > 1 ? u->n - 1 : 1;
            bool shown = length > 0 && !(u->terminal && utf8_is_control(u->held));
            if (shown) fwrite(u->held, 1, length, out);
            else fputs("\xEF\xBF\xBD", out);
            memmove(u->held, u->held + done, u->n -= done);
        }
    }
}

static inline void utf8_print_end(Utf8Printer *u, FILE *out) {
    if (u->n > 0) fputs("\xEF\xBF\xBD", out);
    u->n = 0;
}
