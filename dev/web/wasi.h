// What the C library of WebAssembly lacks and the trainer names, so that train_gpt2.c compiles there
// unchanged (-include dev/web/wasi.h). A tab has no signals, no terminal, no second process and no
// files: nothing here is called in it, or it fails as on a system without the thing.
#pragma once
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>

struct sigaction { void (*sa_handler)(int); int sa_flags; };
enum { SA_RESTART = 2, SA_RESETHAND = 4 };
static inline int sigaction(int number, const struct sigaction *new, struct sigaction *old) {
    (void)number, (void)new, (void)old;
    return 0;
}

struct winsize { unsigned short ws_row, ws_col, ws_xpixel, ws_ypixel; };
enum { TIOCGWINSZ = 0 };

enum { LOCK_EX = 1, LOCK_NB = 2 };
static inline int flock(int fd, int how) { (void)fd, (void)how; return 0; }
static inline char *realpath(const char *path, char *out) { (void)path, (void)out; return NULL; }
static inline int gethostname(char *name, size_t size) { (void)name, (void)size; return -1; }
#define madvise(address, size, advice) ((void)0)
