// Errors: die() for a user's mistake, Error for a parser's report.
//
// A parser takes bytes and a size, fills an Error and returns false; it never prints and never
// exits. Only the edge of a program calls die(), which prints one line and leaves with status 1:
//
//     train_gpt2: --heads: 5 does not divide the 128 channels; 4 and 8 do
//
// assert() is for mistakes of the programmer alone.
//
// In a run of several ranks all of them meet the same mistake. Rank 0 prints the message at once.
// The other ranks wait two seconds, since rank 0's exit usually ends them, and then print it too.
#pragma once
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "environment.h"

#ifndef PROGRAM          // each program defines its name before it includes anything
#define PROGRAM "batchwise"
#endif
#include "processor.h"

#ifndef PRINTF_LIKE
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))
#endif

typedef struct { char text[512]; } Error;

// Call it first in main: opens /dev/null as descriptors 0, 1 and 2 where they are closed, or the
// next file to be opened would receive what is printed. Read-only, so that writing still fails.
// From then on a limit on file sizes is an error of write().
static inline void open_standard_streams(void) {
    int fd;
    signal(SIGXFSZ, SIG_IGN);
    do fd = open("/dev/null", O_RDONLY); while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd > STDERR_FILENO) close(fd);
}

#ifndef _WIN32
// Call it before the arguments are used: those of Windows must be made UTF-8 (windows/posix.h).
static inline char **arguments(int *argc, char **argv) { return (void)argc, argv; }
#endif

// Formats a message into out (size). One that is too long loses its middle, such as a long path's:
// its end says what is wrong.
PRINTF_LIKE(3, 0) static inline void format_short(char *out, size_t size, const char *fmt,
                                                  va_list args) {
    char whole[16384];
    int printed = vsnprintf(whole, sizeof whole, fmt, args);
    size_t n = printed < 0 ? 0 : strlen(whole), half = size / 2;
    if (n < size) memcpy(out, whole, n + 1);
    else snprintf(out, size, "%.*s...%s", (int)half - 4, whole, whole + n - half);
}

// Writes the message and returns false, so that a parser can `return fail(err, "...")`.
PRINTF_LIKE(2, 3) static inline bool fail(Error *err, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    format_short(err->text, sizeof err->text, fmt, args);
    va_end(args);
    return false;
}

// A hook that die() calls just before exit(); NULL: none.
static inline void (**die_last(void))(void) {
    static void (*last)(void);
    return &last;
}

// One line on stderr, exit status 1. stdout is flushed first, so that the two appear in order.
__attribute__((noreturn)) PRINTF_LIKE(1, 2) static inline void die(const char *fmt, ...) {
    char text[1024];
    int rank = launched_as(LAUNCH_RANK, 0);
    va_list args;
    va_start(args, fmt);
    format_short(text, sizeof text, fmt, args);
    va_end(args);
    fflush(stdout);
    if (rank == 0) fprintf(stderr, PROGRAM ": %s\n", text);
    else sleep(2);
    if (rank > 0) fprintf(stderr, PROGRAM ": rank %d: %s\n", rank, text);
    if (*die_last()) (*die_last())();
    exit(1);
}

// Prints a line on stderr about a problem that does not end the run. Rank 0 alone prints: all ranks
// meet the same problem.
PRINTF_LIKE(1, 2) static inline void warn(const char *fmt, ...) {
    va_list args;
    if (launched_as(LAUNCH_RANK, 0) > 0) return;
    va_start(args, fmt);
    fprintf(stderr, PROGRAM ": ");
    vfprintf(stderr, fmt, args);
    fprintf(stderr, "\n");
    va_end(args);
}

enum { ALLOC_LINE = 64, ALLOC_PAGE = 2 << 20 };

static inline size_t alloc_unit(size_t bytes) {
    return bytes < 8*ALLOC_PAGE ? ALLOC_LINE : ALLOC_PAGE;
}

// The bytes that alloc_or_die takes for so many.
static inline size_t alloc_bytes(size_t bytes) {
    size_t unit = alloc_unit(bytes);
    return (bytes + unit - 1) / unit * unit;
}

// Allocates zeroed memory aligned to 64 bytes (a cache line, an AVX-512 register), or dies. Free it
// with free(). Large buffers ask for huge pages of 2 MB (Linux): fewer TLB misses, and matrix
// products run 1 to 3% faster.
static inline void *alloc_or_die(size_t bytes, const char *what) {
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
