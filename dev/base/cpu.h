// Threads: how many there are, which one this is, and how the columns of a matrix are shared out.
#pragma once
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

static inline size_t min_size(size_t a, size_t b) { return a < b ? a : b; }

static inline int thread_count(void) {
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

static inline int thread_index(void) {
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

// 0 leaves OpenMP's own choice: one thread for each processor that this process may use.
static inline void threads_set(int n) {
#ifdef _OPENMP
    if (n > 0) omp_set_num_threads(n);
#else
    (void)n;
#endif
}

// Processors of the machine. mpirun may tie each rank to a few of them.
static inline int processors(void) { return (int)sysconf(_SC_NPROCESSORS_ONLN); }

// The first column of strip s, when C columns are cut into `strips`. A sum over the rows of a
// matrix is shared out by columns: no two threads add to the same element, and no sum is split.
static inline int strip_begin(int C, int s, int strips) { return (int)((int64_t)C * s / strips); }

// An OpenMP thread that waits for the others spins for milliseconds, in case they are about to
// finish. On an idle machine that is right. On a busy machine it takes the core from the very
// thread that it waits for: beside one other busy process, two threads on two cores took 939 ms for
// a step of 31 ms (gcc's OpenMP, the model of scripts/shakespeare.sh). With less spinning, as here,
// they took 227 ms, and still 31 on the idle machine. OpenMP reads the setting before main begins,
// so the program starts itself anew.
static inline void threads_wait_politely(char **argv) {
#if defined(_OPENMP) && defined(__linux__)
    const char *preload = getenv("LD_PRELOAD");
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY")) return;
    if (preload && strstr(preload, "vgpreload")) return;     // valgrind would not follow
    setenv("GOMP_SPINCOUNT", "3000", 0);
    setenv("KMP_BLOCKTIME", "1", 0);             // the same for clang's OpenMP, in milliseconds
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) return;
    self[n] = '\0';
    execv(self, argv);                           // if that fails, the program goes on as it is
#else
    (void)argv;
#endif
}
