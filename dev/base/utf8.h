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

// The code point of the well-formed sequence of `length` bytes at s.
static inline unsigned utf8_code_point(const unsigned char *s, size_t length) {
    unsigned c = length == 1 ? s[0] : s[0] & (0x7Fu >> length);
    for (size_t i = 1; i < length; i++) c = c << 6 | (s[i] & 0x3F);
    return c;
}

// Writes a code point; returns the end of its bytes.
static inline char *utf8_put(char *out, unsigned c) {
    static const unsigned lead[5] = { 0, 0, 0xC0, 0xE0, 0xF0 };
    int length = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = length - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)(lead[length] | c);
    return out + length;
}

// The first character of s (n bytes, n > 0) as a JSON string has it; returns how many bytes of s that
// is. A byte that is not UTF-8 becomes U+FFFD.
static inline size_t json_character(char out[8], const unsigned char *s, size_t n) {
    size_t length = utf8_length(s, n);
    if (length == 0) snprintf(out, 8, "\xEF\xBF\xBD");
    else if (s[0] == '"' || s[0] == '\\') snprintf(out, 8, "\\%c", s[0]);
    else if (s[0] == '\n' || s[0] == '\t') snprintf(out, 8, s[0] == '\n' ? "\\n" : "\\t");
    else if (s[0] < 0x20 || s[0] == 0x7F) snprintf(out, 8, "\\u%04x", s[0]);
    else snprintf(out, 8, "%.*s", (int)length, (const char *)s);
    return length ? length : 1;
}

// True for what acts on a terminal instead of being shown: control characters but tab and newline,
// and Unicode's bidi controls, which reorder the text around them.
static inline bool utf8_is_control(unsigned c) {
    return (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7F && c < 0xA0)
        || (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

// Prints each character once its last byte has arrived: a token may end in the middle of a
// character. Bytes that cannot become a character are printed as U+FFFD. A byte-level model may
// emit escape sequences: on a terminal, ESC is shown as \x1b, U+202E as \u202e.
typedef struct { unsigned char held[4]; size_t n; bool terminal; } Utf8Printer;

// Prints the first `length` bytes held: one character.
static inline void utf8_print_held(const Utf8Printer *u, FILE *out, size_t length) {
    unsigned c = utf8_code_point(u->held, length);
    if (!u->terminal || !utf8_is_control(c)) fwrite(u->held, 1, length, out);
    else fprintf(out, c < 0x80 ? "\\x%02x" : "\\u%04x", c);
}

static inline void utf8_print(Utf8Printer *u, FILE *out, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        u->held[u->n++] = (unsigned char)bytes[i];
        while (u->n > 0 && !utf8_begins(u->held, u->n)) {
            size_t length = utf8_length(u->held, u->n), done = length;
            // The bytes before an invalid one print as one U+FFFD; that byte may begin a character.
            if (length == 0) done = u->n > 1 ? u->n - 1 : 1;
            if (length > 0) utf8_print_held(u, out, length);
            else fputs("\xEF\xBF\xBD", out);
            memmove(u->held, u->held + done, u->n -= done);
        }
    }
}

static inline void utf8_print_end(Utf8Printer *u, FILE *out) {
    if (u->n > 0) fputs("\xEF\xBF\xBD", out);
    u->n = 0;
}
