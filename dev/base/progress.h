// The progress of work that takes longer than two seconds. A terminal shows one line, updated in
// place; a file gets a line every ten seconds.
//
//     Progress p = progress_begin("saving", total);
//     ... progress_show(&p, done); ...
//     progress_end(&p);
#pragma once
#include <sys/ioctl.h>
#include <unistd.h>
#include "clock.h"                     // seconds_now
#include "log.h"                       // duration_text

static inline int terminal_columns(void) {
    struct winsize window;
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 1;
    return known ? window.ws_col : 80;
}

#ifndef PROGRESS_AFTER                 // seconds; a test does not wait
#define PROGRESS_AFTER 2.0
#endif

typedef struct {
    const char *what;
    double total, start, shown;        // shown: when the latest line was printed
} Progress;

static inline Progress progress_begin(const char *what, double total) {
    Progress p = { what, total, seconds_now(), 0.0 };
    p.shown = p.start;
    return p;
}

// `done` of the total is done. A total of 0 is not known.
static inline void progress_show(Progress *p, double done) {
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

// Clears the line, on a terminal.
static inline void progress_end(const Progress *p) {
    if (p->shown > p->start && isatty(STDOUT_FILENO)) printf("\r\033[K");
}
