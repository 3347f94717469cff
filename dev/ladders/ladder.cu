// What the ladders of GPUs share. A ladder is one operation of the trainer, from the
// plainest kernel to the trainer's, one idea a rung. Every rung is compared with the first.
//
//     make ladder OP=layernorm           checks each rung; then counts it, or times it on a GPU
//     build/counted/layernorm check      only checks, at small sizes
//
// A ladder's file has its rungs, each a function that launches kernels; and a function `climb` that
// makes the data of one shape and calls ladder_climb. In the emulator a
// row of the table is what the rung asks of a GPU, counted as `make profile` does. On a GPU it is
// the rung's time, and the share of the limit that it reaches.
#include "gpu.cu"                      // real, load, store, warp_sum, ...; and the last rungs
#include <functional>
#include <vector>
#include "../check/compare.h"          // compare_norm
#ifdef EMULATOR_COUNT
#include "../emulator/profile.h"
#endif

// ---- data ----

template <class T> struct Array {
    T *gpu;
    size_t n;
    explicit Array(size_t n) : n(n) { CUDA_CHECK(cudaMalloc((void **)&gpu, n * sizeof(T))); }
    explicit Array(const std::vector<T> &x) : Array(x.size()) {
        CUDA_CHECK(cudaMemcpy(gpu, x.data(), n * sizeof(T), cudaMemcpyHostToDevice));
    }
    Array(const Array &) = delete;
    ~Array() { CUDA_CHECK(cudaFree(gpu)); }
};

// Even between -range and range. Another stream, other numbers.
static std::vector<real> drawn(size_t n, uint64_t stream, float range = 1.0f) {
    Rng rng = rng_make(1, stream);
    std::vector<real> x(n);
    for (real &v : x) v = (real)(range * (2.0f * (float)rng_uniform(&rng) - 1.0f));
    return x;
}

// ---- results ----

// A result of the operation. `fill` puts a number into each element before a rung: NAN where it
// writes, so that it is noticed if it leaves one out; another where it adds.
struct Result {
    const char *name;
    double bound;                      // of ||difference|| / ||what the first rung has||
    std::function<void()> fill;
    std::function<std::vector<float>()> read;
};

// fp32 sums in another order are 1e-6 off for some hundred terms, and 1e-5 leaves room for that.
// bf16 has 8 significant bits: each rounding to `real` between the data and the result moves an
// element, and with it the norm, by at most 2^-8 of it.
template <class T>
static Result result(const char *name, const Array<T> &a, float before, int roundings) {
    double rounding = sizeof(real) < sizeof(float) ? 1/256.0 : 0.0;
    return { name, 1e-5 + roundings*rounding, [&a, before] {
        std::vector<T> x(a.n, (T)before);
        CUDA_CHECK(cudaMemcpy(a.gpu, x.data(), a.n * sizeof(T), cudaMemcpyHostToDevice));
    }, [&a] {
        std::vector<T> x(a.n);
        CUDA_CHECK(cudaMemcpy(x.data(), a.gpu, a.n * sizeof(T), cudaMemcpyDeviceToHost));
        return std::vector<float>(x.begin(), x.end());
    } };
}

static void result_check(const Result &r, const std::vector<float> &x,
                         const std::vector<float> &expected, const char *title, const char *rung) {
    double error = compare_norm(x.data(), expected.data(), x.size());
    if (!(error <= r.bound))                     // not-a-number is an error, too
        die("%s, rung '%s': %s is off by %.2g of its norm, and rounding by at most %.2g", title,
            rung, r.name, error, r.bound);
}

// ---- rungs ----

template <class Data> struct Rung {
    const char *name, *idea;           // what it changes, in one sentence
    void (*launch)(const Data *d, Gpu *g);
};

// The least that the operation needs, whatever the rung: bytes of global memory, FLOP of products.
struct Least { double bytes, flops; };

struct Ladder {
    Machine gpu;
    bool shows;                        // rows of a table; else it only checks
    double copy_bytes;                 // a second, measured. 0: not yet
};

#ifdef EMULATOR_COUNT
// What a rung asked for, over all its kernels.
static emulator::CountedKernel sum_of(const std::vector<emulator::CountedKernel> &kernels) {
    emulator::CountedKernel sum = {};
    for (const emulator::CountedKernel &k : kernels) {
        sum.launches += k.launches;
        sum.warps += k.warps;
        sum.read += k.read;
        sum.written += k.written;
        for (auto &i : k.instructions) sum.instructions[i.first] += i.second;
    }
    return sum;
}

static void show_header(void) {
    printf("| %-26s | kernels |  warps | memory MB |   L2 MB | requests |  of ideal | shared | "
           "clocks | bank x | lanes | shuffles | barriers |   mma |\n"
           "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n", "rung");
}

static void show_counts(const char *name, const emulator::CountedKernel &k) {
    emulator::ProfileRow r = emulator::row_of(k, emulator::profile_gpu("h100"));         // any
    double requests = (double)r.global.requests, clocks = (double)r.shared.passes;
    const struct { int width, digits; double n; } cells[] = {
        { 7, 0, (double)k.launches }, { 6, 0, (double)k.warps }, { 9, 3, 1e-6 * r.memory },
        { 7, 3, 32e-6 * (double)r.global.sectors }, { 8, 0, requests },
        { 0, 0, 0.0 },                 // of ideal
        { 6, 0, (double)r.shared.requests }, { 6, 0, clocks },
        { 6, 2, emulator::ratio(clocks, (double)r.shared.least) }, { 5, 1, r.lanes },
        { 8, 0, (double)k.total(emulator::SHUFFLE).requests },
        { 8, 0, (double)k.total(emulator::BARRIER).requests },
        { 5, 0, (double)k.total(emulator::MMA).requests },
    };
    printf("| %-26s |", name);
    for (auto &cell : cells) {
        printf(" ");
        if (cell.width) emulator::show_cell(cell.width, cell.digits, cell.n);
        else emulator::show_pair(emulator::ratio((double)r.global.sectors, requests),
                                 emulator::ratio((double)r.global.ideal, requests));
        printf("|");
    }
    printf("\n");
}

template <class Data>
static void rung_show(Ladder *l, const Rung<Data> *r, const Data *d, const Least *) {
    emulator::count_clear();
    r->launch(d, &l->gpu);
    gpu_wait(&l->gpu);
    show_counts(r->name, sum_of(emulator::counted()));
}

static void show_legend(Ladder *) {
    printf("\nColumns\n"
           "kernels, warps  launches; warps in all of them: how much work can be under way\n"
           "memory MB       sectors of 32 bytes that a launch reads or writes, each once\n"
           "L2 MB           all sectors that requests ask for; L1 caches may have some of them\n"
           "requests        loads and stores of global memory by a warp\n"
           "of ideal        sectors of a request; and how many, if its bytes were packed\n"
           "shared, clocks  requests to shared memory; clocks that it takes for them\n"
           "bank x          those clocks, in the clocks that they would be without conflicts\n"
           "lanes           lanes of a warp that take part in an instruction\n"
           "the others      instructions of a warp; an empty cell: none, or inside cuBLASLt\n");
}

#else
static void show_header(void) {
    printf("| %-26s | %9s | of the limit |\n|---|---|---|\n", "rung", "us");
}

template <class Data>
static void rung_show(Ladder *l, const Rung<Data> *r, const Data *d, const Least *least) {
    if (l->copy_bytes == 0.0) l->copy_bytes = copy_speed(&l->gpu);
    double limit = fmax(least->bytes / l->copy_bytes, least->flops / machine_peak_flops(&l->gpu));
    double seconds = median_seconds(&l->gpu, [] {}, [&] { r->launch(d, &l->gpu); });
    printf("| %-26s | %9.1f | %11.1f%% |\n", r->name, 1e6 * seconds, 100.0 * limit / seconds);
}

// The copy is timed again: another program on the GPU would have changed its speed.
static inline void show_legend(Ladder *l) {
    double moved = copy_speed(&l->gpu) / l->copy_bytes;
    if (moved < 0.95 || moved > 1.05)
        printf("BUSY: a copy is %.2f times as fast as before the rungs. Stop what else runs on "
               "this GPU, then try again.\n", moved);
    printf("\nColumns\n"
           "us              median of several launches\n"
           "of the limit    the least time in the rung's: for the bytes at a copy's speed, or for\n"
           "                the FLOP at the speed of cuBLASLt's largest products\n");
}
#endif

// Runs each rung on `d`, and compares its results with the first rung's. Then, if the ladder shows,
// prints the title, the rungs' ideas, and a table with a row a rung.
template <class Data, size_t RUNGS>
static void ladder_climb(Ladder *l, const char *title, const Rung<Data> (&rungs)[RUNGS],
                         const Data &d, const std::vector<Result> &results, Least least) {
    std::vector<std::vector<float>> first;
    for (const Rung<Data> &r : rungs) {
        for (const Result &x : results) x.fill();
        r.launch(&d, &l->gpu);
        cuda_check(cudaGetLastError(), r.name, __FILE__, __LINE__);      // of all its launches
        gpu_wait(&l->gpu);
        for (size_t i = 0; i < results.size(); i++) {
            std::vector<float> now = results[i].read();
            if (first.size() == i) first.push_back(now);
            result_check(results[i], now, first[i], title, r.name);
        }
    }
    if (!l->shows) return;
    printf("\n**%s**\n\n", title);
    for (size_t i = 0; i < RUNGS; i++) printf("%zu. %s: %s\n", i + 1, rungs[i].name, rungs[i].idea);
    printf("\n");
    show_header();
    for (const Rung<Data> &r : rungs) rung_show(l, &r, &d, &least);
}

// Checks every rung at the small shapes. Then counts them at one shape, or times them at another
// on a GPU, unless the program is called with "check". `climb` makes the data and climbs; `next`
// says where to go on.
template <class Shape, size_t SMALL>
static int ladder_main(int argc, char **argv, const Shape (&small)[SMALL], Shape counted,
                       Shape timed, void (*climb)(Ladder *l, Shape s), const char *next) {
    static Ladder l;
    *program_name() = "ladder";
    if (argc > 2 || (argc == 2 && strcmp(argv[1], "check") != 0))
        die("usage: %s, or %s check", argv[0], argv[0]);
    gpu_open(&l.gpu);
    for (Shape s : small) climb(&l, s);
    if (argc == 2) printf("ok: all rungs agree at %zu shapes\n", SMALL);
    l.shows = argc == 1;
    if (l.shows) {
#ifdef EMULATOR
        (void)timed;
#else
        counted = timed;
        printf("%s\n", l.gpu.properties.name);
#endif
        climb(&l, counted);
        show_legend(&l);
        printf("\nNext: %s\n", next);
    }
    machine_close(&l.gpu);
    return 0;
}
