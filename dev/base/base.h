// base: what every program here needs: errors, processes, the log, flags, memory, threads. Each
// section is one file of this folder.
#pragma once
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <time.h>
#ifndef _WIN32                           // there windows/posix.h has what they declare
#include <dirent.h>
#include <sys/ioctl.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif
#include "rng.h"
#include "utf8.h"

// ==== process.c ==================================================================================
// The rank of this process, and the number of ranks. A run of several processes (ranks) is started
// by a launcher, which passes both in environment variables:
//
//     scripts/launch.sh, torchrun   RANK  WORLD_SIZE  LOCAL_RANK  LOCAL_WORLD_SIZE
//     Open MPI's mpirun             OMPI_COMM_WORLD_RANK ...
//     MPICH's and Intel's mpirun    PMI_RANK  PMI_SIZE  MPI_LOCALRANKID  MPI_LOCALNRANKS
//     Slurm's srun                  SLURM_PROCID  SLURM_STEP_NUM_TASKS  SLURM_LOCALID
//
// Slurm sets its variables in a batch script as well, before any rank runs. SLURM_STEP_NUM_TASKS
// counts the tasks of one srun step, so a batch script is not taken for a rank.
// =================================================================================================

typedef enum { LAUNCH_RANK, LAUNCH_SIZE, LAUNCH_LOCAL_RANK, LAUNCH_LOCAL_SIZE } LaunchNumber;

// One of the numbers that this process's launcher has set, or `otherwise`.
int launched_as(LaunchNumber which, int otherwise);

// ==== error.c ====================================================================================
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
// =================================================================================================

// What messages begin with; main() sets it.
const char **program_name(void);

#ifndef PRINTF_LIKE
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))
#endif

typedef struct { char text[512]; } Error;

#ifndef _WIN32
// Call it before the arguments are used: those of Windows must be made UTF-8 (windows/posix.h).
static inline char **arguments(int *argc, char **argv) { return (void)argc, argv; }
#endif

// Writes the message and returns false, so that a parser can `return fail(err, "...")`.
PRINTF_LIKE(2, 3) bool fail(Error *err, const char *fmt, ...);

// A user's text for a one-line message: shortened, control characters replaced by '?'.
typedef struct { char text[72]; } Brief;

Brief brief(const char *text, size_t n);
bool ends_with(const char *text, const char *end);
bool text_is(const char *text, size_t n, const char *word);

// A hook that die() calls just before exit(); NULL: none. Behind a function, as stop_signal is: a
// test links the library twice, as C and as C++, where a variable would be defined twice.
void (**die_last(void))(void);

// One line on stderr, exit status 1. stdout is flushed first, so that the two appear in order.
__attribute__((noreturn)) PRINTF_LIKE(1, 2) void die(const char *fmt, ...);

// Prints a line on stderr about a problem that does not end the run. Rank 0 alone prints: all ranks
// meet the same problem.
PRINTF_LIKE(1, 2) void warn(const char *fmt, ...);

// The bytes that alloc_or_die takes for so many.
size_t alloc_bytes(size_t bytes);

// Allocates zeroed memory aligned to 64 bytes (a cache line, an AVX-512 register), or dies. Free it
// with free(). Large buffers ask for huge pages of 2 MB (Linux): fewer TLB misses, and matrix
// products run 1 to 3% faster.
void *alloc_or_die(size_t bytes, const char *what);

// An array that is to hold n elements of so many bytes: `array`, or if *room is less than n, a copy
// with twice the room. Or dies.
void *grow_or_die(void *array, size_t *room, size_t n, size_t bytes, const char *what);

// A text that is printed into memory: text_begin, fprintf(t.f, ...), text_end; then t.text (n) is
// the caller's to free.
typedef struct { FILE *f; char *text; size_t n; } TextBuffer;

void text_begin(TextBuffer *t);
void text_end(TextBuffer *t);

// Seconds of a monotonic clock with an arbitrary origin: only differences mean anything.
static inline double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// ---- how a run is stopped from outside (process.c) ----
//
// Ctrl-C, SIGTERM, SIGUSR1 or a closed terminal end it after the current update (within a DiLoCo
// round, after its last one), evaluation turn or token. A second Ctrl-C kills.

void catch_stop_signals(void);

// The signal that came; 0: none.
volatile sig_atomic_t *stop_signal(void);

// What the handler prints: a text that is complete at any moment.
const char *volatile *stop_message(void);

// ==== log.c ======================================================================================
// OUT/log.jsonl: one JSON object (RFC 8259) a line, for programs to read. At the end, helpers
// that format paths, durations and counts for the terminal.
//
//     log_begin(&log, "step");
//     log_int(&log, "step", step);
//     log_num(&log, "loss", loss);
//     if (!log_end(&log, &err)) die("%s", err.text);
//
//     {"event":"step","step":12,"loss":3.14159274}
//
// A line is built in memory and written in one call. A killed program therefore leaves at most one
// incomplete line, the last, which the next log_open(LOG_OURS) removes. Nine digits are enough to
// restore a float exactly. A Log of no file accepts the same calls and writes nothing.
// =================================================================================================

// What a file may hold when log_open adds to it: a log, whose first line is an event, or anything.
typedef enum { LOG_OURS, LOG_ANY } LogMode;

typedef struct {
    FILE *file;                    // NULL: writes nothing
    const char *path;              // for messages; the caller keeps it alive
    char *line;                    // the object being built
    size_t length, capacity;
} Log;

// ---- opening and closing ----

// A log to a file that the caller has opened, or to none (NULL).
void log_to(Log *log, FILE *file, const char *path);

// Opens a log to add lines to it, and creates the file if it is missing. O_APPEND: if another
// program empties the file, the next line begins at 0 and leaves no hole before it.
bool log_open(Log *log, const char *path, LogMode mode, Error *err);

// Removes all lines. A device has none.
bool log_clear(Log *log, Error *err);

// Each write was checked by log_end; close can still fail on a network file system.
bool log_close(Log *log, Error *err);

// ---- building a line ----

void log_begin(Log *log, const char *event);

// A member whose value is JSON already.
void log_raw(Log *log, const char *key, const char *json);
void log_int(Log *log, const char *key, int64_t value);

// NaN and infinity become null: JSON has neither.
void log_num(Log *log, const char *key, double value);
void log_bool(Log *log, const char *key, bool value);
void log_text_n(Log *log, const char *key, const char *text, size_t n);

// NULL becomes null.
void log_text(Log *log, const char *key, const char *text);

// Writes the line. The caller decides what a failure means (a full disk: later lines are lost too).
bool log_end(Log *log, Error *err);

// ---- for people ----

// A path as a shell's word, quoted where it must be: it's -> 'it'\''s'. To be freed.
char *shell_word(const char *path);

typedef struct { char text[80]; } Shown;   // returned by value, so that printf can take several

PRINTF_LIKE(1, 2) Shown show_text(const char *fmt, ...);

// 42 -> "0:42", 3909 -> "1:05:09". An unknown duration (NaN, infinite, negative) is "-:--".
Shown duration_text(double seconds);

// Three significant digits: 950 -> "950", 12345 -> "12.3k", 1240000 -> "1.24M", then B and T.
Shown count_text(double n);

// The progress of work that takes longer than two seconds. A terminal shows one line, updated in
// place; a file gets a line every ten seconds.
//
//     Progress p = progress_begin("saving", total);
//     ... progress_show(&p, done); ...
//     progress_end(&p);

int terminal_columns(void);

typedef struct {
    const char *what;
    double total, start, shown;        // shown: when the latest line was printed
} Progress;

Progress progress_begin(const char *what, double total);

// `done` of the total is done. A total of 0 is not known.
void progress_show(Progress *p, double done);

// Clears the line, on a terminal.
void progress_end(const Progress *p);

// Things that recur: every so many updates, or every so many tokens (flags.c).
typedef struct {
    uint64_t n;                    // 0: never
    bool in_tokens;                // every n tokens, else every n updates
} Period;

// True when the update that brought the counts from `before` to `after` reached or crossed a
// multiple of the period. An update that crosses several is due once.
bool period_due(const Period *p, uint64_t steps_before, uint64_t steps_after,
                uint64_t tokens_before, uint64_t tokens_after);

// ==== flags.c ====================================================================================
// The command line. One table drives the parser, the range checks, --help and the configuration in
// the log, so --help lists exactly the flags that the parser accepts.
//
//     typedef struct { Given given; int heads; double lr; } Settings;          // Given comes first
//     static const Option settings_table[] = {
//         { "heads", "N", OPT_INT, offsetof(Settings, heads), "4", 1, 1024, NULL,
//           "model", "attention heads", NULL },
//         { "lr", "X", OPT_REAL, offsetof(Settings, lr), "6e-4", 1e-12, 10, NULL,
//           "optimizer", "highest learning rate", NULL },
//         { "help", NULL, OPT_HELP, 0, NULL, 0, 0, NULL, "help", "print this text", NULL },
//     };
//     if (!options_parse(&settings, settings_table, 3, argc, argv, NULL, NULL, &err))
//         die("%s", err.text);
//     if (options_given(&settings, settings_table, 3, "help"))
//         options_help(stdout, "usage: ./program [flags]", settings_table, 3);
//
// Accepted: --name value, --name=value, --name for a flag, -h for --help. Texts point into argv.
// If a flag is given twice, the last value counts, so a script's flags can be overridden.
// Refused, with one line each: an unknown flag (the message names the nearest), a missing value, a
// malformed value, a number out of range, a positional argument where none is expected.
// =================================================================================================

typedef enum {
    OPT_HELP,                      // no field; ends the parsing, so --help works beside wrong flags
    OPT_FLAG,                      // bool; takes no value
    OPT_FROM,                      // int64_t; --name alone: 0; with a value as OPT_COUNT
    OPT_INT,                       // int
    OPT_COUNT,                     // int64_t; accepts 1e9, as OPT_INT does
    OPT_REAL,                      // double
    OPT_TEXT,                      // const char *; minimum is the shortest length
    OPT_CHOICE,                    // int, the index into choices
    OPT_PERIOD,                    // Period: "100" updates, "50000tok" tokens, 0 never
} OptionType;

typedef struct {
    const char *name;              // "lr" for --lr
    const char *argument;          // what --help calls the value: N, X, FILE
    OptionType type;
    size_t field;                  // offsetof(the struct, the member)
    const char *value;             // the default, as a user would write it; NULL: unset (see below)
    double minimum, maximum;       // inclusive; at most 2^53: doubles hold whole numbers exactly
    const char *choices;           // "constant|linear|cosine"
    const char *group, *help;
    const char *means;             // the default in words: "micro-batch times seq-len"; or NULL
} Option;

// The value of an OPT_INT, _COUNT or _FROM that has no default and was not given. A text: NULL.
#define OPTION_UNSET (-1)

// The first member of every options struct: set[i] if the user gave the flag of row i.
enum { OPTIONS_MAX = 128 };

typedef struct { bool set[OPTIONS_MAX]; } Given;

int option_find(const Option *table, int n, const char *name, size_t length);

// True if the user gave the flag, false if it has its default.
bool options_given(const void *opts, const Option *table, int n, const char *name);

#define OPTION_NAME_MAX 48

// Reads a decimal number: no "inf", "nan" or hexadecimal, no spaces, no trailing characters.
bool number_read(double *out, const char *text);
bool whole_read(double *out, const char *text);

// The index of text[0..length) in "a|b|c", or -1.
int choice_index(const char *choices, const char *text, size_t length);

// Reads one value into its field; false if the row's type or range refuses it.
bool option_read(void *opts, const Option *o, const char *text);
void option_set_default(void *opts, const Option *o);

// A row's type and range, in words: "a whole number from 1 to 65536".
typedef struct { char text[200]; } OptionWords;

OptionWords option_expects(const Option *o);

// What to say of flags that other programs have: names "max-iters|max-steps" (or with '_'), and the
// words that follow "unknown flag; ". The last one's names are NULL.
typedef struct { const char *names, *words; } OptionHint;

extern const OptionHint *option_hints;     // of this program; NULL: none

// Fills *opts from argv[1] on, and with defaults. Positional arguments, and all arguments after a
// lone "--", go to `positional` (room for argc) in order; if it is NULL, they are refused.
bool options_parse(void *opts, const Option *table, int n, int argc, char **argv,
                   char **positional, int *n_positional, Error *err);

// Every flag under its group's heading, with its default and range, within 100 columns.
void options_help(FILE *out, const char *usage, const Option *table, int n);

// "lr-schedule" -> "lr_schedule", the key in the log.
Shown option_key(const char *name);

// Adds the whole configuration to the line being built, one member a row; an unset value is null.
void options_echo(Log *log, const void *opts, const Option *table, int n);

// ==== memory.c ===================================================================================
// One allocation, laid out. The same code counts what a model takes (base is NULL: --plan, and the
// report of a run) and hands out the places (base is the allocation).
//
//     Memory mem = {0};                              lay_out(&model, &mem);   // counts
//     mem = memory_begin(alloc_or_die(mem.used, "a model"));
//                                                    lay_out(&model, &mem);   // hands out
// =================================================================================================

// What memory is used for.
typedef enum {
    MEM_PARAMS, MEM_GRADS, MEM_MOMENTS,    // as layers and the optimizer use them
    MEM_OUTER,                             // DiLoCo: parameters of the last round, outer momentum
    MEM_AVERAGE,                           // averaged weights
    MEM_PASSING,                           // buckets on their way from or to other ranks
    MEM_ACTIVATIONS, MEM_LOGITS,           // kept for the backward pass; a chunk of logits
    MEM_BACKWARD,                          // gradients of activations
    MEM_REST,                              // tables, scratch, alignment
    MEM_KINDS
} MemoryKind;

typedef struct { char *base; size_t used, bytes[MEM_KINDS]; } Memory;

Memory memory_begin(void *base);

// The next `bytes` bytes, at a multiple of 256; NULL while memory is only counted.
void *memory_take(Memory *mem, MemoryKind kind, size_t bytes);
float *memory_floats(Memory *mem, MemoryKind kind, size_t count);

// ---- the memory of this machine that a process may use ----
//
// Linux gives memory out before it has it: a model that is too large starts, and the kernel kills
// it (OOM) while it writes its parameters. ram_check refuses such a model before.

// Bytes that are free now.
double ram_free(void);

// Refuses a model whose processes on this machine together need more memory than there is, swap
// included. Warns if it is there but in use. `bytes`: of one process.
void ram_check(size_t bytes);

// ==== process.c ==================================================================================
// Threads: how many there are, which one this is, and how the columns of a matrix are shared out.
// =================================================================================================

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
void threads_set(int n);

enum {
    THREADS_MOST = 1024,                 // more cannot be meant
    THREADS_A_CORE = 4,                  // more are not started: threads wait for each other
};

// The number of threads that the user asks for: by a flag, or else in OMP_NUM_THREADS. 0: neither.
int threads_asked(int flag);

// Sets the number of threads, before any of them starts: at most THREADS_A_CORE for each processor
// that this process may use.
//   flag: what --threads says; 0: OMP_NUM_THREADS, or OpenMP's own choice
void threads_begin(int flag);

// Processors of the machine. mpirun may tie each rank to a few of them.
int processors(void);

// The first column of strip s, when C columns are cut into `strips`. A sum over the rows of a
// matrix is shared out by columns: no two threads add to the same element, and no sum is split.
static inline int strip_begin(int C, int s, int strips) { return (int)((int64_t)C * s / strips); }

// An OpenMP thread that waits for the others spins for milliseconds, in case they are about to
// finish. On an idle machine that is right. On a busy machine it takes the core from the very
// thread that it waits for: beside one other busy process, two threads on two cores took 939 ms for
// a step of 31 ms (gcc's OpenMP, the model of scripts/shakespeare.sh). With less spinning, as here,
// they took 227 ms, and still 31 on the idle machine. OpenMP reads the setting before main begins,
// so the program starts itself anew.
void threads_wait_politely(char **argv);
