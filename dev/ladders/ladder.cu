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
#include <string>
#include <type_traits>
#include <vector>
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

// A result of the operation. A rung finds `before` in each element: NAN where it writes, so that it
// is noticed if it leaves one out; a number where it adds.
struct Result {
    const char *name;
    void *gpu;
    size_t n;
    bool is_float;                     // else real
    float before;
    double bound;                      // of ||difference|| / ||what the first rung has||
};

// fp32 sums in another order are 1e-6 off for some hundred terms, and 1e-5 leaves room for that.
// bf16 has 8 significant bits: each rounding to `real` between the data and the result moves an
// element, and with it the norm, by at most 2^-8 of it.
template <class T>
static Result result(const char *name, const Array<T> &a, float before, int roundings) {
    double rounding = sizeof(real) < sizeof(float) ? 1/256.0 : 0.0;
    return { name, a.gpu, a.n, std::is_same<T, float>::value, before, 1e-5 + roundings*rounding };
}

template <class T> static void result_fill(const Result &r) {
    std::vector<T> x(r.n, (T)r.before);
    CUDA_CHECK(cudaMemcpy(r.gpu, x.data(), r.n * sizeof(T), cudaMemcpyHostToDevice));
}

template <class T> static std::vector<float> result_read(const Result &r) {
    std::vector<T> x(r.n);
    CUDA_CHECK(cudaMemcpy(x.data(), r.gpu, r.n * sizeof(T), cudaMemcpyDeviceToHost));
    return std::vector<float>(x.begin(), x.end());
}

static void result_check(const Result &r, const std::vector<float> &x,
                         const std::vector<float> &expected, const char *title, const char *rung) {
    double squares = 0.0, norm = 0.0;
    for (size_t i = 0; i < r.n; i++) {
        double difference = (double)x[i] - expected[i];
        squares += difference * difference;
        norm += (double)expected[i] * expected[i];
    }
    double error = sqrt(squares / norm);
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
    double copy_bytes, product_flops;  // a second, measured: the limits. 0: not yet
};

#ifdef EMULATOR_COUNT
// What a rung asked for, over all its kernels.
struct Counts {
    double kernels, warps, memory, shuffles, barriers, mma;
    emulator::Tally global, shared, all;
};

static Counts counts_of(const std::vector<emulator::CountedKernel> &kernels) {
    const emulator::ProfileGpu *any = emulator::profile_gpu("h100");
    Counts c = {};
    for (const emulator::CountedKernel &k : kernels) {
        emulator::ProfileRow r = emulator::row_of(k, any);
        c.kernels += (double)r.launches;
        c.warps += (double)k.warps;
        c.memory += r.memory;
        c.shuffles += (double)k.total(emulator::SHUFFLE).requests;
        c.barriers += (double)k.total(emulator::BARRIER).requests;
        c.mma += (double)k.total(emulator::MMA).requests;
        c.global += r.global;
        c.shared += r.shared;
        for (auto &i : k.instructions) c.all += i.second;
    }
    return c;
}

static void show_header(void) {
    printf("| %-26s | kernels |  warps | memory MB |   L2 MB | requests |  of ideal | shared | "
           "clocks | bank x | lanes | shuffles | barriers |   mma |\n"
           "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n", "rung");
}

static void show_counts(const char *name, const Counts &c) {
    double requests = (double)c.global.requests, clocks = (double)c.shared.passes;
    const struct { int width, digits; double n; } cells[] = {
        { 7, 0, c.kernels }, { 6, 0, c.warps }, { 9, 3, 1e-6 * c.memory },
        { 7, 3, 32e-6 * (double)c.global.sectors }, { 8, 0, requests },
        { 0, 0, 0.0 },                 // of ideal
        { 6, 0, (double)c.shared.requests }, { 6, 0, clocks },
        { 6, 2, emulator::ratio(clocks, (double)c.shared.least) },
        { 5, 1, emulator::ratio((double)c.all.lanes, (double)c.all.requests) },
        { 8, 0, c.shuffles }, { 8, 0, c.barriers }, { 5, 0, c.mma },
    };
    printf("| %-26s |", name);
    for (auto &cell : cells) {
        printf(" ");
        if (cell.width) emulator::show_cell(cell.width, cell.digits, cell.n);
        else emulator::show_pair(emulator::ratio((double)c.global.sectors, requests),
                                 emulator::ratio((double)c.global.ideal, requests));
        printf("|");
    }
    printf("\n");
}

template <class Data>
static void rung_show(Ladder *l, const Rung<Data> *r, const Data *d, const Least *) {
    emulator::count_clear();
    r->launch(d, &l->gpu);
    gpu_wait(&l->gpu);
    show_counts(r->name, counts_of(emulator::counted()));
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
    if (l->product_flops == 0.0) l->product_flops = machine_peak_flops(&l->gpu);
    double limit = fmax(least->bytes / l->copy_bytes, least->flops / l->product_flops);
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
        for (const Result &x : results) x.is_float ? result_fill<float>(x) : result_fill<real>(x);
        r.launch(&d, &l->gpu);
        gpu_wait(&l->gpu);
        for (size_t i = 0; i < results.size(); i++) {
            const Result &x = results[i];
            auto now = x.is_float ? result_read<float>(x) : result_read<real>(x);
            if (first.size() == i) first.push_back(now);
            result_check(x, now, first[i], title, r.name);
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
#ifdef EMULATOR
    (void)timed;
    if (l.shows) climb(&l, counted);
#else
    (void)counted;
    if (!l.shows) return machine_close(&l.gpu), 0;
    printf("%s\n", l.gpu.properties.name);
    climb(&l, timed);
#endif
    if (l.shows) {
        show_legend(&l);
        printf("\nNext: %s\n", next);
    }
    machine_close(&l.gpu);
    return 0;
}
