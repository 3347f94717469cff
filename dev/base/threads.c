// Threads: how many there are, which one this is, and how the columns of a matrix are shared out
// (base.h).
#include "base.h"

#ifdef __SSE__
#include <xmmintrin.h>
#endif

void threads_set(int n) {
#ifdef _OPENMP
    if (n > 0) omp_set_num_threads(n);
#else
    (void)n;
#endif
}

int threads_asked(int flag) {
    const char *text = getenv("OMP_NUM_THREADS");
    long n = flag > 0 ? flag : text ? strtol(text, NULL, 10) : 0;
    return n > INT32_MAX ? INT32_MAX : n < 0 ? 0 : (int)n;
}

// From now on this thread reads and writes numbers below 1.2e-38 as 0. The probability of a token
// that does not occur becomes as small, and an Intel processor is slow at such numbers: an update of
// 0.8M parameters took 179 ms after 1,200 updates, and takes 19 so.
static void flush_subnormals(void) {
#ifdef __SSE__
    _mm_setcsr(_mm_getcsr() | 0x8040);
#endif
}

void threads_begin(int flag) {
#ifdef _OPENMP
    int asked = threads_asked(flag), most = THREADS_A_CORE * omp_get_num_procs();
    int n = asked > 0 ? asked : omp_get_max_threads();
    omp_set_num_threads(n > most ? most : n);
#else
    (void)flag;
#endif
    #pragma omp parallel
    flush_subnormals();
}

int processors(void) { return (int)sysconf(_SC_NPROCESSORS_ONLN); }

void threads_wait_politely(char **argv) {
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
