// Threads: how many there are, which one this is, and how the columns of a matrix are shared out
// (base.h).
#include "base.h"
#include <sys/resource.h>

#ifdef _OPENMP
#include <pthread.h>
#endif

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

#ifdef _OPENMP
// OMP_STACKSIZE in kB: a number of kB, or with one of the units B, K, M and G. 0: not set, or not
// a size; OpenMP then chooses.
static size_t threads_stack(void) {
    const char *text = getenv("OMP_STACKSIZE");
    char *unit;
    size_t n = text ? (size_t)strtoull(text, &unit, 10) : 0;
    if (n == 0 || n > SIZE_MAX >> 30) return 0;
    unit += strspn(unit, " ");
    switch (*unit | 0x20) {              // lower case
        case 'b': return n >> 10;
        case 'm': return n << 10;
        case 'g': return n << 20;
        default:  return n;
    }
}

static void *thread_wait(void *gate) {
    pthread_mutex_lock((pthread_mutex_t *)gate);
    pthread_mutex_unlock((pthread_mutex_t *)gate);
    return NULL;
}

// How many of n threads the system allows, with OpenMP's stacks. They are all started, wait until
// the last one is there, and end. (If OpenMP itself is refused a thread, it ends the program.)
static int threads_allowed(int n) {
    pthread_t threads[THREADS_MOST];
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    pthread_attr_t attributes;
    int there = 1;                       // this one
    pthread_attr_init(&attributes);
    if (threads_stack() > 0) pthread_attr_setstacksize(&attributes, threads_stack() << 10);
    pthread_mutex_lock(&gate);
    while (there < n && pthread_create(&threads[there], &attributes, thread_wait, &gate) == 0)
        there++;
    pthread_mutex_unlock(&gate);
    for (int i = 1; i < there; i++) pthread_join(threads[i], NULL);
    pthread_attr_destroy(&attributes);
    return there;
}
#endif

// From now on this thread reads and writes numbers below 1.2e-38 as 0. The probability of a token
// that does not occur becomes as small, and an Intel processor is slow at such numbers: an update of
// 0.8M parameters took 179 ms after 1,200 updates, and takes 19 so.
static void flush_subnormals(void) {
#ifdef __SSE__
    _mm_setcsr(_mm_getcsr() | 0x8040);
#endif
}

void threads_begin(int flag) {
    struct rlimit stack;
    if (getrlimit(RLIMIT_STACK, &stack) == 0 && stack.rlim_cur >> 10 < STACK_LEAST)
        die("ulimit -s: a stack of %zu kB is too small, expected at least %d kB; `ulimit -s 8192` "
            "sets 8 MB", (size_t)(stack.rlim_cur >> 10), STACK_LEAST);
#ifdef _OPENMP
    const char *name = flag > 0 ? "--threads" : "OMP_NUM_THREADS";
    int asked = threads_asked(flag), cores = omp_get_num_procs();
    int n = asked > 0 ? asked : omp_get_max_threads();
    if (asked > THREADS_MOST)
        die("%s: got %d, expected a whole number from 1 to %d", name, asked, THREADS_MOST);
    if (threads_stack() > 0 && threads_stack() < STACK_LEAST)
        die("OMP_STACKSIZE: a stack of %zu kB is too small, expected at least %d kB; unset it",
            threads_stack(), STACK_LEAST);
    if (n > THREADS_A_CORE * cores) n = THREADS_A_CORE * cores;
    if (n > THREADS_MOST) n = THREADS_MOST;
    int allowed = threads_allowed(n);
    if (allowed < n)
        die("%s: the system allows only %d of %d threads; ask for %d, or set a smaller "
            "OMP_STACKSIZE", name, allowed, n, allowed);
    omp_set_num_threads(n);
#else
    (void)flag;
#endif
    #pragma omp parallel
    flush_subnormals();
}

int processors(void) { return (int)sysconf(_SC_NPROCESSORS_ONLN); }

#if defined(_OPENMP) && defined(__linux__)
// Points stderr at /dev/null. Returns the descriptor of the true one, also in BATCHWISE_STDERR.
static int stderr_hide(void) {
    char number[16];
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC), aside = dup(STDERR_FILENO);
    if (null >= 0 && aside >= 0) {
        snprintf(number, sizeof number, "%d", aside);
        setenv("BATCHWISE_STDERR", number, 1);
        dup2(null, STDERR_FILENO);
    }
    if (null >= 0) close(null);
    return aside;
}

static void stderr_restore(int aside) {
    unsetenv("BATCHWISE_STDERR");
    if (aside < 0 || dup2(aside, STDERR_FILENO) < 0) return;
    close(aside);
}
#endif

void threads_wait_politely(char **argv) {
#if defined(_OPENMP) && defined(__linux__)
    const char *preload = getenv("LD_PRELOAD"), *kept = getenv("BATCHWISE_STDERR");
    if (kept) stderr_restore(atoi(kept));
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY")) return;
    if (preload && strstr(preload, "vgpreload")) return;     // valgrind would not follow
    setenv("GOMP_SPINCOUNT", "3000", 0);
    setenv("KMP_BLOCKTIME", "1", 0);             // the same for clang's OpenMP, in milliseconds
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) return;
    self[n] = '\0';
    int aside = stderr_hide();
    execv(self, argv);                           // if that fails, the program goes on as it is
    stderr_restore(aside);
#else
    (void)argv;
#endif
}
