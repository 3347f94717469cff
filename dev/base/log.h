// OUT/log.jsonl: one JSON object (RFC 8259) a line, for programs to read. At the end, two helpers
// that format durations and counts for the terminal.
//
//     log_begin(&log, "step");
//     log_int(&log, "step", step);
//     log_num(&log, "loss", loss);
//     if (!log_end(&log, &err)) die("%s", err.text);
//
//     {"event":"step","step":12,"loss":3.14159274}
//
// A line is built in memory and written in one call. A killed program therefore leaves at most one
// incomplete line, the last, which the next log_open(LOG_APPEND) removes. Nine digits are enough to
// restore a float exactly. A Log after log_off() accepts the same calls and writes nothing.
#pragma once
#include <errno.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>
#include "error.h"
#include "utf8.h"

typedef enum { LOG_TRUNCATE, LOG_APPEND } LogMode;

typedef struct {
    FILE *file;                    // NULL: writes nothing
    const char *path;              // for messages; the caller keeps it alive
    char *line;                    // the object being built
    size_t length, capacity;
} Log;

static inline void log_off(Log *log) { memset(log, 0, sizeof *log); }

// ---- opening and closing ----

// The offset behind the file's last complete line.
static inline long log_whole_lines(FILE *f) {
    long whole = 0, at = 0;
    for (int c; (c = getc(f)) != EOF; ) {
        at++;
        if (c == '\n') whole = at;
    }
    return whole;
}

// Removes an incomplete last line from an existing log. A missing file, a pipe and a terminal pass.
static inline bool log_cut_partial_line(const char *path, Error *err) {
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode)) return true;
    FILE *f = fopen(path, "rb");
    if (!f) return fail(err, "%s: the log cannot be read: %s", path, strerror(errno));
    long whole = log_whole_lines(f), size = ftell(f);
    bool read = !ferror(f);
    fclose(f);
    if (!read) return fail(err, "%s: the log cannot be read: %s", path, strerror(errno));
    if (whole < size && truncate(path, whole) != 0)
        return fail(err, "%s: cannot remove its incomplete last line: %s", path, strerror(errno));
    return true;
}

// A log to a file that the caller has opened.
static inline void log_to(Log *log, FILE *file, const char *path) {
    log_off(log);
    log->file = file;
    log->path = path;
    log->capacity = 16384;         // grows only for a text longer than this
    log->line = (char *)alloc_or_die(log->capacity, "the log's line");
}

static inline bool log_open(Log *log, const char *path, LogMode mode, Error *err) {
    log_off(log);
    if (mode == LOG_APPEND && !log_cut_partial_line(path, err)) return false;
    FILE *f = fopen(path, mode == LOG_APPEND ? "ab" : "wb");
    if (!f) return fail(err, "%s: the log cannot be written: %s", path, strerror(errno));
    setvbuf(f, NULL, _IONBF, 0);   // so that the one fwrite of a line is one write()
    log_to(log, f, path);
    return true;
}

// Each write was checked by log_end; close can still fail on a network file system.
static inline bool log_close(Log *log, Error *err) {
    bool closed = !log->file || fclose(log->file) == 0;
    const char *path = log->path;
    free(log->line);
    log_off(log);
    return closed || fail(err, "%s: the log cannot be written: %s", path, strerror(errno));
}

// ---- building a line ----

static inline void log_bytes(Log *log, const char *bytes, size_t n) {
    if (!log->file) return;
    if (log->length + n > log->capacity) {
        size_t capacity = 2 * (log->length + n);
        char *line = (char *)alloc_or_die(capacity, "the log's line");
        memcpy(line, log->line, log->length);
        free(log->line);
        log->line = line;
        log->capacity = capacity;
    }
    memcpy(log->line + log->length, bytes, n);
    log->length += n;
}

static inline void log_puts(Log *log, const char *text) { log_bytes(log, text, strlen(text)); }

// A JSON string. A byte that is not UTF-8 becomes U+FFFD: the log must stay valid JSON whatever a
// prompt or a sample contains.
static inline void log_quoted(Log *log, const char *text, size_t n) {
    const unsigned char *s = (const unsigned char *)text;
    log_puts(log, "\"");
    for (size_t i = 0, step; i < n; i += step) {
        char escape[8];
        size_t length = utf8_length(s + i, n - i);
        step = length ? length : 1;
        if (!length) {
            log_puts(log, "\xEF\xBF\xBD");
        } else if (s[i] == '"' || s[i] == '\\') {
            log_puts(log, s[i] == '"' ? "\\\"" : "\\\\");
        } else if (s[i] == '\n') {
            log_puts(log, "\\n");
        } else if (s[i] < 0x20 || s[i] == 0x7F) {
            snprintf(escape, sizeof escape, "\\u%04x", s[i]);
            log_puts(log, escape);
        } else {
            log_bytes(log, text + i, length);
        }
    }
    log_puts(log, "\"");
}

static inline void log_key(Log *log, const char *key) {
    if (log->length > 1) log_puts(log, ",");
    log_quoted(log, key, strlen(key));
    log_puts(log, ":");
}

// A member whose value is JSON already.
static inline void log_raw(Log *log, const char *key, const char *json) {
    log_key(log, key);
    log_puts(log, json);
}

static inline void log_int(Log *log, const char *key, int64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    log_raw(log, key, text);
}

// NaN and infinity become null: JSON has neither.
static inline void log_num(Log *log, const char *key, double value) {
    char text[32];
    snprintf(text, sizeof text, "%.9g", value);
    log_raw(log, key, isfinite(value) ? text : "null");
}

static inline void log_bool(Log *log, const char *key, bool value) {
    log_raw(log, key, value ? "true" : "false");
}

static inline void log_text_n(Log *log, const char *key, const char *text, size_t n) {
    log_key(log, key);
    log_quoted(log, text, n);
}

// NULL becomes null.
static inline void log_text(Log *log, const char *key, const char *text) {
    if (text) log_text_n(log, key, text, strlen(text));
    else log_raw(log, key, "null");
}

static inline void log_begin(Log *log, const char *event) {
    log->length = 0;
    log_puts(log, "{");
    log_text(log, "event", event);
}

// Writes the line. The caller decides what a failure means (a full disk: later lines are lost too).
static inline bool log_end(Log *log, Error *err) {
    if (!log->file) return true;
    log_puts(log, "}\n");
    if (fwrite(log->line, 1, log->length, log->file) == log->length) return true;
    return fail(err, "%s: the log cannot be written: %s", log->path, strerror(errno));
}

// ---- for people ----

typedef struct { char text[40]; } Shown;   // returned by value, so that printf can take several

// 42 -> "0:42", 3909 -> "1:05:09". An unknown duration (NaN, infinite, negative) is "-:--".
static inline Shown duration_text(double seconds) {
    Shown shown;
    if (!(seconds >= 0.0 && seconds < 1e12)) {
        snprintf(shown.text, sizeof shown.text, "-:--");
        return shown;
    }
    long long s = (long long)(seconds + 0.5), hours = s / 3600;
    int minutes = (int)(s / 60 % 60), rest = (int)(s % 60);
    if (hours) snprintf(shown.text, sizeof shown.text, "%lld:%02d:%02d", hours, minutes, rest);
    else snprintf(shown.text, sizeof shown.text, "%d:%02d", minutes, rest);
    return shown;
}

// Three significant digits: 950 -> "950", 12345 -> "12.3k", 1240000 -> "1.24M", then B and T.
static inline Shown count_text(double n) {
    const char *const units[] = { "", "k", "M", "B", "T" };
    Shown shown;
    int u = 0;
    while (u < 4 && fabs(n) >= 999.5) {          // 999.5 would be rounded to 1000
        n /= 1000.0;
        u++;
    }
    int decimals = u == 0 || fabs(n) >= 99.95 ? 0 : fabs(n) >= 9.995 ? 1 : 2;
    snprintf(shown.text, sizeof shown.text, "%.*f%s", decimals, n, units[u]);
    return shown;
}
