// What the ladders of this folder share. A ladder is one operation of the trainer, from the plainest
// kernel to the trainer's, one idea a rung. Every rung is held against the CPU.
//
//     make ladder OP=layernorm           checks each rung; then counts it, or times it on a GPU
//     build/counted/layernorm check      only checks, at small sizes
//
// A ladder's file has the operation on the CPU; its rungs, each a function that launches kernels;
// and a function `climb` that makes the data of one shape and calls ladder_climb. In the emulator a
// row of the table is what the rung asks of a GPU, counted as `make profile` does. On a GPU it is
// the rung's time, and the share of the limit that it reaches.
#define PROGRAM "ladder"
#include "../base/error.h"             // die
#undef PROGRAM
#define main train_gpt2_main
#include "../../train_gpt2.cu"         // real, load, store, warp_sum, ...; and the last rungs
#undef main
#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>
#ifdef EMULATOR_COUNT
#include "../emulator/profile.h"
#endif

// ---- data: the same numbers on the CPU and on the GPU ----

template <class T> struct Array {
    std::vector<T> cpu;
    T *gpu;
    explicit Array(size_t n) : cpu(n), gpu(NULL) {
        CUDA_CHECK(cudaMalloc((void **)&gpu, n * sizeof(T)));
    }
    Array(const Array &) = delete;
    ~Array() { CUDA_CHECK(cudaFree(gpu)); }
};

template <class T> static void array_to_gpu(Array<T> *a) {
    CUDA_CHECK(cudaMemcpy(a->gpu, a->cpu.data(), a->cpu.size() * sizeof(T),
                          cudaMemcpyHostToDevice));
}

// Even between -1 and 1, as T holds them. Another stream, other numbers.
template <class T> static void array_draw(Array<T> *a, uint64_t stream) {
    Rng rng = rng_make(1, stream);
    for (T &x : a->cpu) x = (T)(2.0f * (float)rng_uniform(&rng) - 1.0f);
    array_to_gpu(a);
}

// ---- results ----

// A result of the operation, and what the CPU makes of the same data: of its first elements, if
// `expected` is shorter. A rung finds `before` in each element: NAN where it writes, so that what it
// leaves out is found out; a number where it adds.
struct Result {
    const char *name;
    void *gpu;
    size_t n;
    bool is_float;                     // else real
    std::vector<double> expected;
    float before;
    double bound;                      // of ||difference|| / ||expected||
};

// fp32 sums in another order are 1e-6 off for some hundred terms, and 1e-5 leaves room for that.
// bf16 has 8 significant bits: each rounding to `real` between the data and the result moves an
// element, and with it the norm, by at most 2^-8 of it.
static double after_roundings(int k) {
    return 1e-5 + (sizeof(real) < sizeof(float) ? k / 256.0 : 0.0);
}

template <class T>
static Result result(const char *name, const Array<T> &a, const std::vector<double> &expected,
                     float before, int roundings) {
    bool is_float = std::is_same<T, float>::value;
    return { name, a.gpu, a.cpu.size(), is_float, expected, before, after_roundings(roundings) };
}

template <class T> static void result_fill(const Result *r) {
    std::vector<T> x(r->n, (T)r->before);
    CUDA_CHECK(cudaMemcpy(r->gpu, x.data(), r->n * sizeof(T), cudaMemcpyHostToDevice));
}

template <class T> static double result_error(const Result *r) {
    std::vector<T> x(r->expected.size());
    double difference = 0.0, norm = 0.0;
    CUDA_CHECK(cudaMemcpy(x.data(), r->gpu, x.size() * sizeof(T), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < x.size(); i++) {
        double d = (double)(float)x[i] - r->expected[i];
        difference += d*d;
        norm += r->expected[i] * r->expected[i];
    }
    return sqrt(difference / norm);
}

static void result_clear(const Result *r) {
    if (r->is_float) result_fill<float>(r);
    else result_fill<real>(r);
}

static void result_check(const Result *r, const char *title, const char *rung) {
    double error = r->is_float ? result_error<float>(r) : result_error<real>(r);
    if (!(error <= r->bound))                    // not-a-number is an error, too
        die("%s, rung '%s': %s is off by %.2g of its norm, and rounding by at most %.2g", title,
            rung, r->name, error, r->bound);
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
static void show_header(void) {
    printf("| %-24s | kernels | memory MB | L2 MB | requests | of ideal | shared | bank x | lanes "
           "| shuffles | barriers | mma |\n|%s|---|---|---|---|---|---|---|---|---|---|---|\n",
           "rung", "---");
}

static void show_count(double n, int width, const char *format) {
    if (n > 0) printf(format, width, n);
    else printf("%*s", width, "");
    printf(" | ");
}

// What the launches of one rung asked for, over all its kernels.
static void show_counts(const char *name, const std::vector<emulator::CountedKernel> &kernels) {
    const emulator::ProfileGpu *gpu = emulator::profile_gpu("h100");
    emulator::ProfileRow sum = {};
    emulator::Tally all = {};
    double shuffles = 0, barriers = 0, mma = 0;
    for (const emulator::CountedKernel &k : kernels) {
        emulator::ProfileRow r = emulator::row_of(k, gpu);
        sum.launches += r.launches;
        sum.memory += r.memory;
        emulator::tally_sum(&sum.global, r.global);
        emulator::tally_sum(&sum.shared, r.shared);
        for (auto &i : k.instructions) emulator::tally_sum(&all, i.second);
        shuffles += (double)k.total(emulator::SHUFFLE).requests;
        barriers += (double)k.total(emulator::BARRIER).requests;
        mma += (double)k.total(emulator::MMA).requests;
    }
    double requests = (double)sum.global.requests, least = (double)sum.shared.least;
    printf("| %-24s | %7d | %9.3f | ", name, (int)sum.launches, 1e-6 * sum.memory);
    show_count(32e-6 * (double)sum.global.sectors, 5, "%*.3f");
    show_count(requests, 8, "%*.0f");
    if (requests > 0) printf("%4.1f/%-4.1f| ", (double)sum.global.sectors / requests,
                             (double)sum.global.ideal / requests);
    else printf("%9s| ", "");
    show_count((double)sum.shared.passes, 6, "%*.0f");
    show_count(least > 0 ? (double)sum.shared.passes / least : 0, 6, "%*.2f");
    show_count(all.requests > 0 ? (double)all.lanes / (double)all.requests : 0, 5, "%*.1f");
    show_count(shuffles, 8, "%*.0f");
    show_count(barriers, 8, "%*.0f");
    if (mma > 0) printf("%3.0f |\n", mma);
    else printf("%3s |\n", "");
}

template <class Data>
static void rung_show(Ladder *l, const Rung<Data> *r, const Data *d, const Least *) {
    emulator::count_clear();
    r->launch(d, &l->gpu);
    gpu_wait(&l->gpu);
    show_counts(r->name, emulator::counted());
}

#else
static void show_header(void) {
    printf("| %-24s | %9s | of the limit |\n|---|---|---|\n", "rung", "us");
}

// Bytes a second, read and written, of a copy of half a gigabyte; the fastest of five.
static double copy_speed(Gpu *g) {
    const size_t bytes = (size_t)512 << 20;
    Array<char> from(bytes), to(bytes);
    cudaEvent_t begin, end;
    double best = INFINITY;
    CUDA_CHECK(cudaEventCreate(&begin));
    CUDA_CHECK(cudaEventCreate(&end));
    array_to_gpu(&from);
    for (int i = 0; i < 5; i++) {
        CUDA_CHECK(cudaEventRecord(begin, g->stream));
        CUDA_CHECK(cudaMemcpyAsync(to.gpu, from.gpu, bytes, cudaMemcpyDeviceToDevice, g->stream));
        CUDA_CHECK(cudaEventRecord(end, g->stream));
        gpu_wait(g);
        best = fmin(best, gpu_seconds(begin, end));
    }
    CUDA_CHECK(cudaEventDestroy(begin));
    CUDA_CHECK(cudaEventDestroy(end));
    return 2.0 * (double)bytes / best;
}

// Seconds of a rung: the median of as many runs as fit into a fifth of a second, at least five.
template <class Data>
static double rung_seconds(const Rung<Data> *r, const Data *d, Gpu *g) {
    std::vector<double> seconds;
    cudaEvent_t begin, end;
    CUDA_CHECK(cudaEventCreate(&begin));
    CUDA_CHECK(cudaEventCreate(&end));
    for (double total = 0.0; total < 0.2 || seconds.size() < 5; total += seconds.back()) {
        CUDA_CHECK(cudaEventRecord(begin, g->stream));
        r->launch(d, g);
        CUDA_CHECK(cudaEventRecord(end, g->stream));
        gpu_wait(g);
        seconds.push_back(gpu_seconds(begin, end));
    }
    CUDA_CHECK(cudaEventDestroy(begin));
    CUDA_CHECK(cudaEventDestroy(end));
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
}

template <class Data>
static void rung_show(Ladder *l, const Rung<Data> *r, const Data *d, const Least *least) {
    if (l->copy_bytes == 0.0) l->copy_bytes = copy_speed(&l->gpu);
    if (l->product_flops == 0.0) l->product_flops = machine_peak_flops(&l->gpu);
    double limit = fmax(least->bytes / l->copy_bytes, least->flops / l->product_flops);
    double seconds = rung_seconds(r, d, &l->gpu);
    printf("| %-24s | %9.1f | %11.1f%% |\n", r->name, 1e6 * seconds, 100.0 * limit / seconds);
}
#endif

// Runs each rung on `d`, and checks what it makes of the results. Then, if the ladder shows, prints
// the title, the rungs' ideas, and a table with a row a rung.
template <class Data, size_t RUNGS>
static void ladder_climb(Ladder *l, const char *title, const Rung<Data> (&rungs)[RUNGS],
                         const Data &d, const std::vector<Result> &results, Least least) {
    for (const Rung<Data> &r : rungs) {
        for (const Result &x : results) result_clear(&x);
        r.launch(&d, &l->gpu);
        gpu_wait(&l->gpu);
        for (const Result &x : results) result_check(&x, title, r.name);
    }
    if (!l->shows) return;
    printf("\n**%s**\n\n", title);
    for (size_t i = 0; i < RUNGS; i++) printf("%zu. %s: %s\n", i + 1, rungs[i].name, rungs[i].idea);
    printf("\n");
    show_header();
    for (const Rung<Data> &r : rungs) rung_show(l, &r, &d, &least);
}

// Checks every rung at the small shapes. Then counts them at one shape, or times them at another
// on a GPU, unless the program is called with "check". `climb` makes the data and climbs.
template <class Shape, size_t SMALL>
static int ladder_main(int argc, char **argv, const Shape (&small)[SMALL], Shape counted,
                       Shape timed, void (*climb)(Ladder *l, Shape s)) {
    static Ladder l;
    static Comm alone;
    static TrainOptions options;
    if (argc > 2 || (argc == 2 && strcmp(argv[1], "check") != 0))
        die("usage: %s, or %s check", argv[0], argv[0]);
    alone.size = alone.local_size = 1;
    machine_open(&l.gpu, &options, &alone);
    for (Shape s : small) climb(&l, s);
    if (argc == 2) printf("ok: every rung agrees with the CPU at %zu shapes\n", SMALL);
    l.shows = argc == 1;
#ifdef EMULATOR
    (void)timed;
    if (l.shows) climb(&l, counted);
#else
    (void)counted;
    if (l.shows) printf("%s, " PRECISION "\n", l.gpu.properties.name);
    if (l.shows) climb(&l, timed);
#endif
    machine_close(&l.gpu);
    return 0;
}
