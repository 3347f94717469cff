// What the checks of exercises in CUDA share: arrays of the emulated GPU that know their ends, a
// watch over each access, random sizes, and a verdict that says on what the kernel ran.
#pragma once
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <algorithm>
#include <functional>
#include <string>
#include <vector>
#ifdef _OPENMP
#include <omp.h>
#endif
#include "dev/exercises/verdict.h"     // wrong

// ---- the case: what the kernel runs on ----

static uint64_t seed, state;

// A random number from lo to hi. Each day has sizes and values of its own; DAY=n repeats a day's.
static int draw(int lo, int hi) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return lo + (int)((state >> 33) % (uint64_t)(hi - lo + 1));
}

// From -2 to 2, with all digits of a float.
static float draw_float(void) { return (float)draw(-(1 << 24), 1 << 24) * 0x1p-23f; }

static float draw_power(int lo, int hi) { return ldexpf(1.0f, draw(lo, hi)); }

// Each order of magnitude as often, up to 70000; half of them where a warp's or tile's edge lies.
static int draw_size(void) {
    int n = std::min(draw(1, 2 << draw(0, 16)), 69950);
    return draw(0, 1) ? n : std::max(n / 16 * 16 + draw(-1, 1), 1);
}

// What a float may have to carry: not a number, infinite, -0, below the smallest normal number.
static float draw_special(void) {
    const float special[] = { NAN, INFINITY, -INFINITY, -0.0f, 0x1.8p-140f };
    return special[draw(0, 4)];
}

static bool last_launch;               // of a case
static bool one_changes;               // since the launch before, and the rest stays

static void change_one(std::vector<float> &x) {
    for (int tries = 0; one_changes && tries < 20; tries++) {
        float &e = x[draw(0, (int)x.size() - 1)];
        if (e != 0.0f && isfinite(e)) { e *= -0.5f; return; }
    }
}

static void check_begin(void) {
#ifdef _OPENMP
    omp_set_num_threads(1);            // the watch is of one block at a time
#endif
    seed = state = (uint64_t)check_day();
}

// ---- arrays: an index that leaves one meets pages without access ----

static const float UNTOUCHED = -123.0f;          // what an output contains before
enum : size_t { AROUND = 64 << 20 };             // bytes of such pages on each side

struct Array {
    const char *name, *index;          // "x" and "nc": x[n][c]
    size_t columns, n;
    float *at;
    bool input;
    std::vector<float> before;         // what it contains before the launch
    char *pages;
    size_t bytes;                      // of pages with access
    const char *hint;                  // for an index that leaves it
};
static std::vector<Array> arrays;

// Counted, an array begins with a sector; the watch guards its end. Else it ends with a page. If
// the array is there, from the case's launch before, it gets new numbers x, or keeps its old ones.
static float *on_gpu(const char *name, const char *index, size_t columns, size_t n,
                     const char *hint, const float *x = nullptr) {
    for (Array &a : arrays) {
        if (strcmp(a.name, name)) continue;
        if (x) std::copy(x, x + n, a.at);
        a.before.assign(a.at, a.at + n);
        return a.at;
    }
#ifdef EMULATOR_COUNT
    size_t unit = 256;
#else
    size_t unit = sizeof *x;
#endif
    size_t page = (size_t)sysconf(_SC_PAGESIZE), size = (n * sizeof *x + unit - 1) / unit * unit;
    size_t bytes = (size + page - 1) / page * page;
    char *pages = (char *)mmap(NULL, bytes + 2*AROUND, PROT_NONE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED || mprotect(pages + AROUND, bytes, PROT_READ | PROT_WRITE))
        wrong("not a verdict: there is no memory for %s", name);
    float *at = (float *)(pages + AROUND + bytes - size);
    std::fill((float *)(pages + AROUND), (float *)(pages + AROUND + bytes), x ? NAN : UNTOUCHED);
    if (x) std::copy(x, x + n, at);
    emulator::count_memory(at, n * sizeof *at);
    arrays.push_back({ name, index, columns, n, at, x != nullptr,
                       std::vector<float>(at, at + n), pages, bytes, hint });
    return at;
}

static void arrays_free(void) {
    for (Array &a : arrays) {
        emulator::count_forget(a.at);
        munmap(a.pages, a.bytes + 2*AROUND);
    }
    arrays.clear();
}

static Array &array_of(const float *at) {
    return *std::find_if(arrays.begin(), arrays.end(), [=](Array &a) { return a.at == at; });
}

static std::string element(const Array &a, size_t i) {
    std::string row = std::to_string(i / a.columns), column = std::to_string(i % a.columns);
    std::string s = std::string(a.name) + "[" + a.index[0] + "=" + row + "]";
    return a.index[1] ? s + "[" + a.index[1] + "=" + column + "]" : s;
}

// ---- the watch, in a counting emulator: ends of arrays, barriers, races in shared memory ----

// A thread's access to a word of shared memory, after so many barriers.
struct Touch { int thread = -1, barriers = 0; };
struct Word { Touch writer, readers[2]; bool old = false; };    // readers: of two warps
enum Race { NO_RACE, READ_TOO_EARLY, OVERWRITTEN_TOO_EARLY, WRITTEN_TWICE };

static struct {
    uint64_t block;                              // the one that runs
    int threads_of_block;
    std::vector<Word> words[emulator::MAX_SHARED];           // of each __shared__ variable
    int barriers[1024];                          // that a thread has reached
    size_t moved[2][1024], most_moved[2];        // numbers that a thread loads, and stores
    std::string foreign;                         // a number that not its row's warp stores
    Race race;                                   // the first of the launch
    std::string threads;                         // the two that meet in it
    bool uneven;                                 // some threads miss a barrier
    bool off;                                    // a large case
} watch;

#ifdef EMULATOR_COUNT
static std::string thread_name(int i) {
    uint3 t = emulator::worker.fibers[i].thread;
    return "thread (" + std::to_string(t.x) + "," + std::to_string(t.y) + ")";
}

// Without a barrier between them, two accesses of different warps come in either order.
static void found(Race race, Touch before, int thread) {
    bool meet = before.thread >= 0 && before.thread / 32 != thread / 32 &&
                before.barriers == watch.barriers[thread];
    if (!meet || watch.race) return;
    watch.race = race;
    watch.threads = thread_name(before.thread) + " and " + thread_name(thread);
}

static void watch_shared(Word *w, bool writes, int thread) {
    Touch now = { thread, watch.barriers[thread] };
    if (!writes) {
        found(w->old ? OVERWRITTEN_TOO_EARLY : READ_TOO_EARLY, w->writer, thread);
        if (w->readers[0].thread / 32 != thread / 32) w->readers[1] = w->readers[0];
        w->readers[0] = now;
        return;
    }
    bool written = w->writer.thread >= 0;
    for (Touch r : w->readers)
        found(written ? OVERWRITTEN_TOO_EARLY : READ_TOO_EARLY, r, thread);
    found(WRITTEN_TWICE, w->writer, thread);
    w->old |= written && w->writer.barriers != now.barriers;     // it holds a second number
    w->writer = now;
}

// A block has ended: all its threads have reached the same number of barriers, or should have.
static void watch_block(uint64_t next) {
    for (int i = 1; watch.block && i < watch.threads_of_block; i++)
        watch.uneven |= watch.barriers[i] != watch.barriers[0];
    std::fill(watch.barriers, watch.barriers + 1024, 0);
    for (auto &moved : watch.moved) std::fill(moved, moved + 1024, 0);
    for (auto &words : watch.words) words.clear();
    watch.block = next;
    if (next) watch.threads_of_block = 32 * emulator::worker.warps;
}

// A number of an array is loaded or stored.
static void watch_moved(const Array &a, size_t i, size_t bytes, bool writes, int thread) {
    size_t &moved = watch.moved[writes][thread] += (bytes + 3) / 4;
    watch.most_moved[writes] = std::max(watch.most_moved[writes], moved);
    unsigned warp = (blockIdx.x * blockDim.x + (unsigned)thread) / 32;
    if (writes && a.index[0] == 'n' && i / a.columns != warp && watch.foreign.empty())
        watch.foreign = element(a, i) + " is stored by warp " + std::to_string(warp);
}

// What a shuffle exchanges lies on the stacks of its lanes.
static bool on_a_stack(const char *at, int thread) {
    const emulator::Fiber *warp = emulator::worker.fibers + thread / 32 * 32;
    return std::any_of(warp, warp + 32, [=](const emulator::Fiber &f) {
        return f.stack && (size_t)(at - f.stack) < emulator::STACK_BYTES;
    });
}

static void watch_access(emulator::CountKind kind, const void *p, size_t bytes) {
    emulator::Worker &w = emulator::worker;
    int thread = (int)(w.current - w.fibers);
    if (w.serial != watch.block) watch_block(w.serial);
    if (kind == emulator::BARRIER) watch.barriers[thread]++;
    const char *at = (const char *)p;
    bool writes = kind != emulator::GLOBAL_LOAD && kind != emulator::SHARED_LOAD;
    const char *is = writes ? "written" : "read";
    if (p && (uintptr_t)p % bytes)
        wrong("%zu bytes are %s at once, from no multiple of %zu: a GPU stops", bytes, is, bytes);
    for (const Array &a : arrays) {
        if (at < a.pages || at >= a.pages + a.bytes + 2*AROUND) continue;
        long first = (const float *)p - a.at, last = first + ((long)bytes - 1) / 4;
        if (first < 0 || last >= (long)a.n)
            wrong("%s: element %ld is %s, and it has %zu: %s", a.name, first < 0 ? first : last,
                   is, a.n, a.hint);
        watch_moved(a, (size_t)first, bytes, writes, thread);
        return;
    }
    for (int s = 1; s < w.shared_count; s++) {
        size_t i = (size_t)(at - (const char *)w.shared[s].data) / sizeof(float);
        size_t n = w.shared[s].bytes / sizeof(float);
        if (at < (const char *)w.shared[s].data || i >= n + emulator::SHARED_GAP / sizeof(float))
            continue;
        if (i >= n)
            wrong("shared memory: element %zu of an array is %s, and it has %zu: an index runs "
                   "past its end", i, is, n);
        if (watch.words[s].empty()) watch.words[s].resize(n);
        watch_shared(&watch.words[s][i], writes, thread);
        return;
    }
    if (p && writes && !on_a_stack(at, thread))
        wrong("a static or __device__ variable, or memory from malloc, is written: all blocks and "
              "launches share it; a kernel writes its outputs, its own variables and __shared__");
}

// In place of the library of -fsanitize=bounds.
struct BoundsType { uint16_t kind, info; char name[1]; };
struct Bounds { const char *file; uint32_t line, column; const BoundsType *array; };
extern "C" void __ubsan_handle_out_of_bounds(const Bounds *b, uintptr_t i) {
    wrong("line %u: index %ld runs past the end of an array %s that the kernel itself declares: "
          "the array may be too short for this size", b->line, (long)(int)i, b->array->name);
}
#endif

// What the last launch shows, whatever its result: threads that miss a barrier, or a race; or "".
struct BarrierHints { const char *uneven, *too_early, *overwritten, *twice; };

static std::string barriers_say(const BarrierHints &hints) {
    if (watch.uneven) return std::string("some threads of a block do not reach each barrier: ") +
                             hints.uneven;
    if (!watch.race) return "";
    return watch.threads + " meet in shared memory with no barrier between them: " +
           (watch.race == WRITTEN_TWICE ? std::string("both write one word; ") + hints.twice :
            watch.race == READ_TOO_EARLY
            ? std::string("one reads what the other has to write first; ") + hints.too_early
            : std::string("one writes what the other has to read first; ") + hints.overwritten);
}

// Launches a kernel; says if it fails or changes an input. Races are in `watch`.
static void run(const std::function<void()> &launch) {
    watch.race = NO_RACE;
    watch.uneven = false;
    watch.block = 0;
    watch.foreign = "";
    watch.most_moved[0] = watch.most_moved[1] = 0;
#ifdef EMULATOR_COUNT
    emulator::count_clear();
    emulator::count_watch = watch_access;
    emulator::count_paused = watch.off;
#endif
    launch();
    cudaError_t error = cudaDeviceSynchronize();
    if (error != cudaSuccess) wrong("the kernel fails: %s", cudaGetErrorString(error));
#ifdef EMULATOR_COUNT
    emulator::count_watch = nullptr;
    watch_block(0);
#endif
    for (const Array &a : arrays)
        for (size_t i = 0; a.input && i < a.n; i++)
            if (memcmp(&a.at[i], &a.before[i], sizeof a.at[i]))
                wrong("%s is %.4g after the launch, and was %.4g: it is an input, which stays as "
                       "it is", element(a, i).c_str(), a.at[i], a.before[i]);
}

// Three launches in the same memory: the second has other numbers, the third, unless that takes
// long, one other number; of a large case, one, and only its result is checked. Random cases also
// run the threads in a random order.
static void launches(bool random, size_t work, const std::string &sizes,
                     const std::function<void()> &launch) {
    uint64_t second = 0;
    watch.off = work > 100000;
    int times = watch.off ? 1 : work > 20000 ? 2 : 3;
    for (int i = 0; i < times; i++) {
        snprintf(situation, sizeof situation, " [%s%s DAY=%d]", sizes.c_str(),
                 i > 1 ? ", a third launch in the same memory, one number has changed," :
                 i > 0 ? ", a second launch in the same memory," : "", (int)seed);
        if (random) setenv("EMULATOR_SHUFFLE", std::to_string(draw(1, 1 << 20)).c_str(), 1);
        else unsetenv("EMULATOR_SHUFFLE");
        last_launch = i == times - 1;
        one_changes = i == 2;
        if (one_changes) state = second;
        second = state;
        launch();
    }
    arrays_free();
}

// ---- comparing ----

// Two numbers in as many digits as tell them apart.
static std::string is_expected(double got, double exact) {
    char text[2][64];
    for (int digits = 4; digits < 18; digits += 4) {
        snprintf(text[0], sizeof text[0], "%.*g", digits, isnan(got) ? NAN : got);
        snprintf(text[1], sizeof text[1], "%.*g", digits, isnan(exact) ? NAN : exact);
        if (strcmp(text[0], text[1])) break;
    }
    return std::string(text[0]) + ", expected " + text[1];
}

static bool near(double a, double b) { return fabs(a - b) <= 1e-4 * fabs(b); }

typedef std::function<bool(size_t i)> Right;                 // whether element i is
typedef std::function<std::string(size_t i)> Hint;           // for the first that is not

// Within an error. What is not finite must show: just so, or in some way.
enum Shows { JUST_SO, SOMEHOW };
static bool is_right(double got, double exact, double error, Shows shows = JUST_SO) {
    if (isfinite(exact)) return fabs(got - exact) <= error;
    return shows == SOMEHOW ? !isfinite(got) : got == exact || (isnan(got) && isnan(exact));
}

// Compares an output with what is exact: first whether it is written, then its values. `barriers`
// are what barriers_say has found, before all other hints.
static void expect(const float *at, const std::vector<double> &exact, const std::string &barriers,
                   const Right &right, const Hint &not_written, const Hint &hint) {
    const Array &a = array_of(at);
    auto added = [&](size_t i) {
        double sum = at[i] - UNTOUCHED, error = fmin(1e-4 * fabs(exact[i]) + 1e-5, 1.0);
        return a.before[i] == UNTOUCHED && at[i] != UNTOUCHED && fabs(sum - exact[i]) <= error;
    };
    size_t wrong_ones = 0, added_ones = 0;
    for (size_t i = 0; i < a.n; i++) wrong_ones += !right(i), added_ones += !right(i) && added(i);
    for (size_t i = 0; i < a.n && 2*added_ones <= wrong_ones; i++)
        if (at[i] == a.before[i] && at[i] != 0.0f && isfinite(at[i]) && !one_changes && !right(i))
            wrong("%s is not written, expected %.4g; %s", element(a, i).c_str(), exact[i],
                   barriers.empty() ? not_written(i).c_str() : barriers.c_str());
    for (size_t i = 0; i < a.n; i++) {
        if (right(i)) continue;
        std::string is = element(a, i) + " is " + is_expected(at[i], exact[i]);    // a hint may run
        wrong("%s; %s", is.c_str(), !barriers.empty() ? barriers.c_str() :
               added(i) ? "the result is added to what stood there: write it with =" :
               !isfinite(exact[i]) && !isnan(at[i])
               ? "an input here is NaN or infinite, which must show: hide none, skip none" :
               hint(i).c_str());
    }
    if (!barriers.empty()) wrong("%s is right in this order of the threads, but %s", a.name,
                                  barriers.c_str());
}

// After a case's last launch, and one in three large ones: once more, in another order of the
// threads and with NaN in the outputs: the same bits.
static void expect_again(const std::function<void()> &launch) {
    if (watch.off ? draw(0, 2) > 0 : !last_launch) return;
    std::vector<std::vector<float>> right;
    for (Array &a : arrays) {
        right.emplace_back(a.at, a.at + a.n);
        if (!a.input) std::fill(a.at, a.at + a.n, NAN);
    }
    setenv("EMULATOR_SHUFFLE", std::to_string(draw(1, 1 << 20)).c_str(), 1);
#ifdef EMULATOR_COUNT
    emulator::count_paused = true;               // the counts stay
#endif
    launch();
    cudaError_t error = cudaDeviceSynchronize();
    if (error != cudaSuccess) wrong("the kernel fails: %s", cudaGetErrorString(error));
    for (size_t j = 0; j < arrays.size(); j++)
        for (size_t i = 0; i < arrays[j].n; i++) {
            float got = arrays[j].at[i], expected = right[j][i];
            if (memcmp(&got, &expected, sizeof got) && !(isnan(got) && isnan(expected)))
                wrong("%s is %s, as just before: %s", element(arrays[j], i).c_str(),
                      is_expected(got, expected).c_str(), isnan(got)
                      ? "an output that contains NaN is written over all the same, and is not read"
                      : "threads that run in another order give other bits; a sum has one order, "
                        "which is not up to atomicAdd");
        }
}

// ---- counting ----

#ifdef EMULATOR_COUNT
using emulator::Tally;

// What the one kernel of the last run asked for.
static inline Tally asked(emulator::CountKind kind) {
    return emulator::counted().at(0).total(kind);
}

// Each instruction's requests touch no more sectors than their bytes fill, and `more` where rows
// are not aligned.
static inline void expect_coalesced(const char *what, emulator::CountKind kind, int more) {
    for (auto &i : emulator::counted().at(0).instructions) {
        const Tally &t = i.second;
        if (i.first.kind == kind && t.sectors > t.ideal + more * t.requests)
            wrong("%s: its requests want %.3g sectors of 32 bytes each, %.3g would do: "
                   "neighbouring lanes must use neighbouring addresses", what,
                   (double)t.sectors / t.requests, (double)t.ideal / t.requests);
    }
}

// The barriers that a warp meets.
static inline void expect_few_barriers(double warps, double most, const char *hint) {
    double each = (double)asked(emulator::BARRIER).requests / warps;
    if (each > most) wrong("%g barriers, expected %g: %s", each, most, hint);
}

// The numbers that one thread loads and stores in all: no thread does the work of others.
static inline void expect_shared_out(size_t loads, size_t stores, const char *hint) {
    const size_t most[] = { loads, stores };
    for (int i = 0; i < 2; i++)
        if (watch.most_moved[i] > most[i])
            wrong("the result is right, but a thread %s %zu numbers, expected at most %zu: %s",
                  i ? "stores" : "loads", watch.most_moved[i], most[i], hint);
}

// At most so many requests of a warp, and numbers.
static inline void expect_moved(const char *what, Tally t, double requests, const char *hint) {
    double lanes = (double)t.lanes / t.requests;
    if (t.requests <= requests) return;
    if (lanes < 31.0 && t.lanes <= 32 * requests)
        wrong("%s: %.3g of a warp's 32 lanes take part in a request, so there are %llu requests, "
               "expected %.0f; %s", what, lanes, (unsigned long long)t.requests, requests, hint);
    wrong("%s: %llu numbers, expected at most %.0f; %s", what, (unsigned long long)t.bytes / 4,
           32 * requests, hint);
}
#endif
