// This process: its rank, as a launcher names it; its threads; the processor it was compiled for;
// the signals that end it (base.h).
#include "base.h"

#ifdef __SSE__
#include <xmmintrin.h>
#endif

enum { LAUNCHERS = 4 };

// One of a launcher's four numbers; -1 if its variable is not set.
static int launcher_number(int launcher, LaunchNumber which) {
    static const char *const names[LAUNCHERS][4] = {
        { "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
          "OMPI_COMM_WORLD_LOCAL_SIZE" },
        { "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS" },
        { "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE" },
        { "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_TASKS_PER_NODE" },
    };
    const char *text = getenv(names[launcher][which]);
    if (!text || *text < '0' || *text > '9') return -1;
    long number = strtol(text, NULL, 10);              // "4(x2)" is 4 tasks on each of two nodes
    return number < 1 << 20 ? (int)number : -1;
}

// The first launcher that reports a rank of two or more; LAUNCHERS if this process runs alone.
// (Variables can be left over from an outer launcher: srun's shell, for instance, is PMI's rank 0
// of 1.)
static int launcher_find(void) {
    int found = 0;
    while (found < LAUNCHERS
           && (launcher_number(found, LAUNCH_RANK) < 0 || launcher_number(found, LAUNCH_SIZE) < 2
               || launcher_number(found, LAUNCH_SIZE) <= launcher_number(found, LAUNCH_RANK)))
        found++;
    return found;
}

int launched_as(LaunchNumber which, int otherwise) {
    int found = launcher_find(), number = -1;
    for (int l = found; l < LAUNCHERS && number < 0; l++)      // srun's PMI has no local rank
        if (launcher_number(l, LAUNCH_RANK) == launcher_number(found, LAUNCH_RANK)
            && launcher_number(l, LAUNCH_SIZE) == launcher_number(found, LAUNCH_SIZE))
            number = launcher_number(l, which);
    return number >= 0 ? number : otherwise;
}

// ---- threads ----

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
// that does not occur becomes that small, and Intel's processors are slow at such numbers: an update
// of 0.8M parameters took 179 ms after 1,200 updates, and takes 19 ms so.
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
    flush_subnormals();                          // which clang's OpenMP hands on to its threads,
    #pragma omp parallel                         // where gcc's asks each
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

// ---- the processor ----

#ifdef __x86_64__
#define ANY_PROCESSOR __attribute__((target("arch=x86-64")))     // the instructions that all have
#else
#define ANY_PROCESSOR
#endif

#define BUILT_FOR(what) "batchwise: this binary was built for " what ": make clean && make\n"
#define REFUSE_PROCESSOR(what) \
    _exit(write(STDERR_FILENO, BUILT_FOR(what), sizeof BUILT_FOR(what) - 1) > 0 ? 1 : 2)

ANY_PROCESSOR static void processor_lacks(int signal_number) {
    (void)signal_number;
    REFUSE_PROCESSOR("another processor, and this one lacks an instruction");
}

#ifndef __wasm__                         // a browser compiles for its own
__attribute__((constructor)) ANY_PROCESSOR static void processor_check(void) {
    signal(SIGILL, processor_lacks);     // what is not checked here
#ifdef __x86_64__
    __builtin_cpu_init();
#endif
#ifdef __AVX512F__
    if (!__builtin_cpu_supports("avx512f"))
        REFUSE_PROCESSOR("a processor with AVX-512, and this one has none");
#endif
#ifdef __AVX2__
    if (!__builtin_cpu_supports("avx2"))
        REFUSE_PROCESSOR("a processor with AVX2, and this one has none");
#endif
}
#endif

// ---- signals ----

volatile sig_atomic_t *stop_signal(void) {
    static volatile sig_atomic_t came;
    return &came;
}

const char *volatile *stop_message(void) {
    static const char *volatile text = "\nstopping after this update; again ends at once\n";
    return &text;
}

// Of the ranks, only rank 0 has a standard output. write() may be called in a signal handler.
static void on_stop_signal(int signal_number) {
    const char *message = *stop_message();
    *stop_signal() = signal_number;
    if (write(STDOUT_FILENO, message, strlen(message)) < 0) return;
}

void catch_stop_signals(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_stop_signal;
    action.sa_flags = SA_RESETHAND | SA_RESTART;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (signal(SIGHUP, SIG_IGN) != SIG_IGN) sigaction(SIGHUP, &action, NULL);       // else nohup
    sigaction(SIGUSR1, &action, NULL); // mpirun and Slurm forward this one, and kill at the others
    signal(SIGPIPE, SIG_IGN);          // the reader of our output may leave: the run goes on
}
