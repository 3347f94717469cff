// The verdict of a check: one line that says what is wrong, and exit status 1.
#pragma once
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static char situation[300];            // ends each verdict: the sizes on which the function ran

__attribute__((format(printf, 1, 2), noreturn))
static void wrong(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    printf("%s\n", situation);
    fflush(stdout);
    _exit(1);                          // not exit: a thread of a parallel loop may be here
}

// The day of the year, from which a check draws its trials; DAY=300 is another day's.
__attribute__((unused))
static int check_day(void) {
    const char *day = getenv("DAY");
    time_t now = time(NULL);
    return day && *day ? atoi(day) : localtime(&now)->tm_yday + 1;
}
