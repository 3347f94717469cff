// OUT/log.jsonl, one JSON object (RFC 8259) a line; and the progress of long work (base.h).
#include "base.h"
#include <sys/stat.h>

// ---- opening and closing ----

// Whether a file of `size` bytes is a log: empty, or as log_begin begins a line, perhaps cut short.
static bool log_is_ours(int fd, off_t size) {
    const char *begin = "{\"event\":";
    char bytes[16];
    size_t n = size < (off_t)strlen(begin) ? (size_t)size : strlen(begin);
    return pread(fd, bytes, n, 0) == (ssize_t)n && memcmp(bytes, begin, n) == 0;
}

// Removes an incomplete last line.
static bool log_cut_partial_line(int fd, off_t size, const char *path, Error *err) {
    off_t whole = size;
    for (char c; whole > 0 && pread(fd, &c, 1, whole - 1) == 1 && c != '\n'; ) whole--;
    if (whole == size || ftruncate(fd, whole) == 0) return true;
    return fail(err, "%s: cannot remove its incomplete last line: %s", path, strerror(errno));
}

void log_to(Log *log, FILE *file, const char *path) {
    memset(log, 0, sizeof *log);
    log->file = file;
    log->path = path;
}

bool log_open(Log *log, const char *path, LogMode mode, Error *err) {
    struct stat info;
    log_to(log, NULL, path);
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0 || fstat(fd, &info) != 0)
        return fail(err, "%s: the log cannot be written: %s", path, strerror(errno));
    bool check = mode == LOG_OURS && !S_ISCHR(info.st_mode), ours = !check;       // not a device
    if (check) ours = log_is_ours(fd, info.st_size)
                    ? log_cut_partial_line(fd, info.st_size, path, err)
                    : fail(err, "%s: holds something other than a log; --overwrite replaces it, or "
                                "name another file", path);
    if (!ours) return close(fd), false;
    log_to(log, fdopen(fd, "a"), path);
    setvbuf(log->file, NULL, _IONBF, 0);         // so that the one fwrite of a line is one write()
    return true;
}

bool log_clear(Log *log, Error *err) {
    if (!log->file || ftruncate(fileno(log->file), 0) == 0 || errno == EINVAL) return true;
    return fail(err, "%s: the log cannot be written: %s", log->path, strerror(errno));
}

bool log_close(Log *log, Error *err) {
    bool closed = !log->file || fclose(log->file) == 0;
    const char *path = log->path;
    free(log->line);
    log_to(log, NULL, NULL);
    return closed || fail(err, "%s: the log cannot be written: %s", path, strerror(errno));
}

// ---- building a line ----

static void log_puts(Log *log, const char *text) {
    size_t n = strlen(text);
    if (!log->file) return;
    log->line = (char *)grow_or_die(log->line, &log->capacity, log->length + n, 1, "a line");
    memcpy(log->line + log->length, text, n);
    log->length += n;
}

// A JSON string: the log stays valid JSON whatever a prompt or a sample contains.
static void log_quoted(Log *log, const char *text, size_t n) {
    const unsigned char *s = (const unsigned char *)text;
    log_puts(log, "\"");
    for (size_t i = 0, step; i < n; i += step) {
        char character[8];
        step = json_character(character, s + i, n - i);
        log_puts(log, character);
    }
    log_puts(log, "\"");
}

static void log_key(Log *log, const char *key) {
    if (log->length > 1) log_puts(log, ",");
    log_quoted(log, key, strlen(key));
    log_puts(log, ":");
}

void log_raw(Log *log, const char *key, const char *json) {
    log_key(log, key);
    log_puts(log, json);
}

void log_int(Log *log, const char *key, int64_t value) {
    log_raw(log, key, show_text("%lld", (long long)value).text);
}

void log_num(Log *log, const char *key, double value) {
    log_raw(log, key, isfinite(value) ? show_text("%.9g", value).text : "null");
}

void log_bool(Log *log, const char *key, bool value) {
    log_raw(log, key, value ? "true" : "false");
}

void log_text_n(Log *log, const char *key, const char *text, size_t n) {
    log_key(log, key);
    log_quoted(log, text, n);
}

void log_text(Log *log, const char *key, const char *text) {
    if (text) log_text_n(log, key, text, strlen(text));
    else log_raw(log, key, "null");
}

void log_begin(Log *log, const char *event) {
    log->length = 0;
    log_puts(log, "{");
    log_text(log, "event", event);
}

bool log_end(Log *log, Error *err) {
    if (!log->file) return true;
    log_puts(log, "}\n");
    if (fwrite(log->line, 1, log->length, log->file) == log->length) return true;
    return fail(err, "%s: the log cannot be written: %s", log->path, strerror(errno));
}

// ---- for people ----

char *shell_word(const char *path) {
    char *word = (char *)alloc_or_die(4*strlen(path) + 5, "a path"), *to = word;
    const char *plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:@%+=,-";
    bool quoted = path[strspn(path, plain)] != '\0';
    if (path[0] == '-') to += sprintf(to, "./");         // it is no flag
    if (quoted) *to++ = '\'';
    for (; *path; path++) {
        if (*path == '\'') to += sprintf(to, "'\\''");
        else *to++ = *path;
    }
    if (quoted) *to++ = '\'';
    *to = '\0';
    return word;
}

PRINTF_LIKE(1, 2) Shown show_text(const char *fmt, ...) {
    Shown shown;
    va_list args;
    va_start(args, fmt);
    vsnprintf(shown.text, sizeof shown.text, fmt, args);
    va_end(args);
    return shown;
}

Shown duration_text(double seconds) {
    if (!(seconds >= 0.0 && seconds < 1e12)) return show_text("-:--");
    long long s = (long long)(seconds + 0.5), hours = s / 3600;
    int minutes = (int)(s / 60 % 60), rest = (int)(s % 60);
    return hours ? show_text("%lld:%02d:%02d", hours, minutes, rest)
                 : show_text("%d:%02d", minutes, rest);
}

Shown count_text(double n) {
    const char *const units[] = { "", "k", "M", "B", "T" };
    int u = 0;
    for (; u < 4 && fabs(n) >= 999.5; u++) n /= 1000.0;    // 999.5 would be rounded to 1000
    int decimals = u == 0 || fabs(n) >= 99.95 ? 0 : fabs(n) >= 9.995 ? 1 : 2;
    return show_text("%.*f%s", decimals, n, units[u]);
}

int terminal_columns(void) {
    struct winsize window;
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 1;
    return known ? window.ws_col : 80;
}

#ifndef PROGRESS_AFTER                 // seconds; a test does not wait
#define PROGRESS_AFTER 2.0
#endif

Progress progress_begin(const char *what, double total) {
    Progress p = { what, total, seconds_now(), 0.0 };
    p.shown = p.start;
    return p;
}

void progress_show(Progress *p, double done) {
    bool terminal = isatty(STDOUT_FILENO);
    double now = seconds_now(), elapsed = now - p->start;
    double pause = terminal ? PROGRESS_AFTER / 20.0 : 10.0;
    if (elapsed < PROGRESS_AFTER || now - p->shown < pause) return;
    char line[128];
    p->shown = now;
    if (p->total > 0.0)
        snprintf(line, sizeof line, "%s  %.0f%%  %s left", p->what, 100.0 * done / p->total,
                 duration_text(elapsed / done * (p->total - done)).text);
    else snprintf(line, sizeof line, "%s  %s", p->what, count_text(done).text);
    if (terminal) printf("\r%.*s\033[K", terminal_columns() - 1, line);
    else printf("%s\n", line);
    fflush(stdout);
}

void progress_end(const Progress *p) {
    if (p->shown > p->start && isatty(STDOUT_FILENO)) printf("\r\033[K");
}
