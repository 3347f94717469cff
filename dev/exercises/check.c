// The checks of the exercises: `check NAME` runs one function and compares each tensor that it
// writes with the formula in double precision. It prints one line, what is wrong or `right`, and
// exits with status 1 or 0. Each check calls no other function that is an exercise, but for those
// of a whole model at the end. make check NAME= builds it with the reader's copy of the trainer;
// tests/test_exercises.py with the original, with blanks and with typical mistakes.
//
// A check is a number of trials: first the sizes and values of a table, of which the first trial is
// always the same, then drawn ones. The day of the year is the seed, so that no constant suits all
// trials; DAY=300 repeats another day's. Each trial runs with one thread and then with several, in
// other memory (guarded.h), the last time behind two calls in the same memory with other values and
// with one other value, and must give the same bits. Built with gcc and threads.c, it also finds
// data races.
#define PROGRAM "train_gpt2"
#include "dev/exercises/guarded.h"     // array_new, wrong
#include <sys/resource.h>
#include "dev/train/loop.h"

// gradient_accumulation checks train_step alone: the check itself stands for data and log, and
// looks at what it calls.
#define step_begin check_step_begin
#define next_batch check_next_batch
#define gradients_arrive check_gradients_arrive
#define totals_share check_totals_share
#define is_outlier check_is_outlier
#define step_end check_step_end
static void check_step_begin(Run *r, Step *s);
static void check_next_batch(Run *r, Step *s, size_t i);
static void check_gradients_arrive(Run *r, Step *s);
static void check_totals_share(const Zero *z, Totals *t);
static bool check_is_outlier(const Run *r, Step *s, Totals t);
static void check_step_end(Run *r, Step *s, const Totals *t);

// attention_tiled's sums are grouped by the sizes that matmul_packed gets: its check looks at them.
#include "dev/cpu/matmul.h"
enum { SIZES_SEEN = 4096 };
static bool sizes_seen[SIZES_SEEN];

static inline UNWATCHED void watched_matmul_packed(float *c, size_t ldc, Mat a, const Word *b,
                                                   size_t depth, size_t M, size_t N, size_t K,
                                                   Mode mode) {
    sizes_seen[(depth*1000003 + N*1009 + K) % SIZES_SEEN] = true;
    matmul_packed(c, ldc, a, b, depth, M, N, K, mode);
}
#define matmul_packed watched_matmul_packed

#define main train_gpt2_main
#include "train_gpt2.c"
#undef main
#undef totals_share
#undef is_outlier

// check_zero1 looks at zero1's calls of adamw_update.
static void watched_adamw_update(float *p, float *m, float *v, const float *g, float g_scale,
                                 AdamW o, size_t n);
#define adamw_update watched_adamw_update
#include "dev/exercises/ranks.h"       // ring_allreduce, zero1
#undef adamw_update

// ---- trials ----

static const float OUTSIDE = -123.0f;            // in rows that nobody may write
enum { MB = 4, MT = 8, MN = MB*MT, MV = 16 };
static const Config SMALL = { .L = 2, .NH = 2, .C = 8, .V = MV, .P = MT };

// What is unusual about a trial's inputs. Each check says what else it means.
typedef enum { NORMAL, LARGE, TINY, ZEROS, PEAK, NOT_FINITE, SPARSE, STYLES, LONG } Style;

typedef struct {
    int s[5];                          // sizes, as the check's table calls them
    Style style;
    int number;                        // 0 is the same every day
    Rng rng;
} Trial;

// A trial runs once with each number of threads; the first ones again, in a process where the first
// call has the most; then, in another process, sizes grow from call to call, and the first call's
// factors are 1 and what is added 0.
enum { ALL, FEWER, GROWING, PASSES };
enum { RUNS = 3, MANY_THREADS = 64, AGAIN = 2, GROWN = 13 };
static const int THREADS[][RUNS] = { { 1, 4, 3 }, { MANY_THREADS, 2, 3 }, { 1 } };
static int pass, run, threads, day;
static int nesting;                    // of parallel loops, as OpenMP allows it

// Whether a process's first call has a gain of 1 and a bias of 0.
static bool is_plain(const Trial *now) { return pass == GROWING && now->number == 1; }

// ---- tensors ----

// Of the sum of the absolute values of an element's terms; in LONG trials, of many terms, 10 times.
static double tolerance;

// A tensor that the function under test writes or adds to. `before` is what it contained.
typedef struct { const char *name; Index index; float *x, *before; size_t n; } Result;

// What is expected: each element is a sum, and `size` is the sum of the absolute values of its
// terms. Floats err by a small part of that.
typedef struct { double *x, *size; size_t n; } Exact;

static void *pool[2048];               // what a run allocates beside arrays
static size_t n_pool;

static double *doubles(size_t n) {
    double *x = alloc_or_die((n + 1) * sizeof *x, "what is expected");
    for (size_t i = 0; i < n; i++) x[i] = 0.0;
    if (n_pool == sizeof pool / sizeof *pool) die("check: the pool is too small");
    return pool[n_pool++] = x;
}

static Exact exact_of(size_t n) { return (Exact){ doubles(n), doubles(n), n }; }

static void term_of(Exact e, size_t i, double x, double size) {
    e.x[i] += x;
    e.size[i] += fabs(size);
}

static void term(Exact e, size_t i, double x) { term_of(e, i, x, x); }

// Of values computed through a whole model: errors compare with the tensor's mean square.
static Exact exact_of_model(const double *x, size_t n) {
    Exact e = exact_of(n);
    double squares = 0.0;
    for (size_t i = 0; i < n; i++) squares += x[i] * x[i] / (double)n;
    for (size_t i = 0; i < n; i++) term_of(e, i, x[i], 2.0*sqrt(squares) + fabs(x[i]));
    return e;
}

static Result tensor(const char *name, Index index, float before) {
    Result t = { .name = name, .index = index, .x = array_new(name, index, sizeof *t.x, OUTPUT) };
    t.n = arrays[(n_arrays - 1) % ARRAYS].n;
    t.before = (float *)doubles(t.n / 2 + 1);
    for (size_t i = 0; i < t.n; i++) t.x[i] = t.before[i] = before;
    return t;
}

// In the first run a mistake shows as 7 too much, in the others as no number.
static Result written(const char *name, Index index) {
    return tensor(name, index, run == 0 ? 7.0f : NAN);
}

// Beside small values, what a tensor contained would hide whether they are added.
static Result added(const char *name, Index index, const Trial *now) {
    Result t = tensor(name, index, 0.0f);
    for (size_t i = 0; now->style == NORMAL && i < t.n; i++)
        t.x[i] = t.before[i] = now->number == 0 || i % 3 == 1 ? 0.5f : i % 3 ? -2.0f : 0.0f;
    return t;
}

static Result holding(const char *name, const float *x, Index index) {
    Result t = tensor(name, index, 0.0f);
    memcpy(t.x, x, t.n * sizeof *x);
    memcpy(t.before, x, t.n * sizeof *x);
    return t;
}

static float *normals(const char *name, Index index, double scale, double shift, Trial *now) {
    float *x = array_new(name, index, sizeof *x, INPUT);
    size_t n = arrays[(n_arrays - 1) % ARRAYS].n;
    for (size_t i = 0; i < n; i++) x[i] = (float)(shift + scale * rng_normal(&now->rng));
    return x;
}

// The same in the trial's style, by rows of the last index.
static float *styled(const char *name, Index index, double scale, double shift, Trial *now) {
    float *x = normals(name, index, scale, shift, now);
    size_t n = arrays[(n_arrays - 1) % ARRAYS].n, width = index.sizes[strlen(index.names) - 1];
    size_t zero_row = now->style == NOT_FINITE ? 1 : rng_below(&now->rng, 3);
    bool far = now->number % 4 < 2;    // at the ends of what a function is asked for
    for (size_t i = 0; i < n; i++) {
        bool more = now->number % 2 || i / width % 2;
        if (now->style == TINY) x[i] *= more ? far ? 1e-18f : 1e-13f : 1e-6f;
        if (now->style == LARGE) x[i] *= i / width % 2 ? far ? 1e9f : 1e6f : 10.0f;
        if (now->style == SPARSE && rng_below(&now->rng, 20)) x[i] = 0.0f;
        if (now->style != ZEROS && now->style != NOT_FINITE) continue;
        if (i / width % 3 == zero_row || i == 0 || rng_below(&now->rng, 4) == 0) x[i] = 0.0f;
    }
    for (size_t i = rng_below(&now->rng, width); now->style == PEAK && i < n; i += width)
        x[i] = 30.0f * (float)scale;
    float bad = now->number % 2 ? NAN : INFINITY;
    if (now->style == NOT_FINITE)                  // at times in a row that is 0 in other arrays
        x[n > 2*width && now->number % 3 ? width + rng_below(&now->rng, width)
          : rng_below(&now->rng, n)] = bad;
    if (now->style == NOT_FINITE && n >= 4*width) x[3*width] = x[3*width - 1] = bad;
    return x;
}

static int *numbers(const char *name, Index index, int below, Trial *now) {
    int *x = array_new(name, index, sizeof *x, INPUT);
    size_t n = arrays[(n_arrays - 1) % ARRAYS].n;
    for (size_t i = 0; i < n; i++) x[i] = (int)rng_below(&now->rng, (uint64_t)below);
    if (now->style == LONG) x[rng_below(&now->rng, n)] = below - 1;
    arrays[(n_arrays - 1) % ARRAYS].whole = true;
    return x;
}

// 1, a power of two, or a number beside one; at most `most`.
static int side(int most, Rng *rng) {
    int n = (1 << rng_below(rng, 8)) + (int)rng_below(rng, 3) - 1;
    return n >= 1 && n <= most ? n : 1 + (int)rng_below(rng, (uint64_t)most);
}

// "h0.ln1_bias[row=0][column=3] of the gradients", element i of all parameters of SMALL
static const char *parameter(const char *name, size_t i) {
    static char text[200];
    int k = 0;
    Tensor t = gpt2_tensor(&SMALL, k);
    while (i >= t.offset + t.count) t = gpt2_tensor(&SMALL, ++k);
    snprintf(text, sizeof text, "%s of %s[row=%zu][column=%zu]", name, t.key,
             (i - t.offset) / t.cols, (i - t.offset) % t.cols);
    return text;
}

static const char *place(const Result *t, size_t i) {
    return t->index.names[0] == 'p' ? parameter(t->name, i) : element(t->name, t->index, i);
}

// ---- threads ----

#ifdef __SANITIZE_THREAD__
extern const void *_Atomic race_address, *_Atomic order_address;    // dev/exercises/threads.c
extern _Thread_local size_t touched;

static size_t work;                    // reads and writes of the last call, of one thread

static void count_anew(void) { touched = 0; }
static void count_end(void) { work = touched; }

static void expect_no_race(void) {
    const char *race = (const char *)race_address, *order = (const char *)order_address;
    const Array *a = race ? array_around(race) : order ? array_around(order) : NULL;
    const char *at = a ? element(a->name, a->index, (size_t)((race ? race : order) - a->at) /
                                 a->size) : NULL;
    if (a && race && a->role == SCRATCH)
        wrong("%s: two threads use it; a thread's piece of scratch begins at thread_index() times "
              "the piece's size, and no index runs past the piece", at);
    if (a && race)
        wrong("%s: one thread writes it while another reads or writes it; divide the loop so that "
              "each element belongs to one thread", at);
    if (race)
        wrong("threads share a variable that one of them writes: declare it inside the parallel "
              "loop, so that each thread has its own");
    if (a)
        wrong("%s: threads add to it in the order in which they happen to come, so its bits change "
              "from run to run; divide the loop so that each element belongs to one thread", at);
}
#else
static void count_anew(void) {}
static void count_end(void) {}
static void expect_no_race(void) {}
#endif

// What belongs to the caller: the number of threads, and floats below the smallest normal number.
static void expect_same_machine(void) {
    volatile float tiny = 1e-39f, one = 1.0f;
    if (thread_count() != threads)
        wrong("the function changes the number of threads, which is the caller's");
#ifdef _OPENMP
    if (omp_get_dynamic() || omp_get_max_active_levels() != nesting)
        wrong("the function changes how threads are shared out, which is the caller's");
#endif
    if (tiny * one == 0.0f)
        wrong("the function changes how floats are rounded, which is the caller's");
}

// Runs the function under test, of which nothing but arrays tells one call from another.
#define CALL(...) \
    do { \
        for (int one = 0; run == RUNS - 1 && one < 2; one++) { \
            arrays_turn(one); \
            CALL_ONCE(__VA_ARGS__); \
            arrays_turn_back(one); \
        } \
        size_t owned = owns_bytes(); \
        CALL_ONCE(__VA_ARGS__); \
        if (run == RUNS - 1 && owns_bytes() > owned) \
            wrong("each call leaves %zu bytes allocated: free what the function allocates", \
                  owns_bytes() - owned); \
    } while (0)

#define CALL_ONCE(...) \
    do { \
        arrays_seal(), count_anew(); \
        __VA_ARGS__; \
        count_end(), expect_no_race(), arrays_unseal(), expect_same_machine(); \
    } while (0)

static size_t n_logged;                // tensors of this run

// The first run logs each tensor's bits; the others compare.
static void expect_same_bits(const Result *t) {
    static float *logs[1024];
    size_t k = n_logged++;
    if (k == sizeof logs / sizeof *logs) die("check: the log of bits is too short");
    if (run == 0) {
        free(logs[k]);
        logs[k] = alloc_or_die((t->n + 1) * sizeof *t->x, "a log of bits");
        memcpy(logs[k], t->x, t->n * sizeof *t->x);
    }
    for (size_t i = 0; i < t->n; i++)
        if (memcmp(&logs[k][i], &t->x[i], sizeof *t->x) != 0 && !isnan(t->x[i]))
            wrong("%s is %.9g with %d thread%s and %.9g with %d: the bits must be the same for any "
                  "number of threads, so the order of additions may not depend on it", place(t, i),
                  logs[k][i], THREADS[pass][0], pass == FEWER ? "s" : "", t->x[i], threads);
}

// ---- comparisons ----

static double expected(const Result *t, bool adds, Exact e, size_t i) {
    return e.x[i] + (adds ? t->before[i] : 0.0);
}

static bool is_close(double x, double expected, double size) {
    if (!isfinite(expected)) return !isfinite(x);
    return isfinite(x) && fabs(x - expected) <= tolerance * size + 1e-37;
}

static bool is_right(const Result *t, bool adds, Exact e, size_t i) {
    return is_close(t->x[i], expected(t, adds, e, i), e.size[i] + (adds ? fabs(t->before[i]) : 0));
}

static size_t first_wrong(const Result *t, bool adds, Exact e) {
    size_t i = 0;
    while (i < t->n && is_right(t, adds, e, i)) i++;
    return i;
}

// "dx[n=2][c=1] is 0.5, expected 0.25", of an element that is wrong.
static const char *describe(const Result *t, bool adds, Exact e, size_t i) {
    static char text[300];
    bool same = memcmp(&t->x[i], &t->before[i], sizeof *t->x) == 0;
    double value = expected(t, adds, e, i);
    int digits = fabs(t->x[i] - value) < 1e-4 * fabs(value) ? 9 : 6;
    snprintf(text, sizeof text, "%s is %.*g, expected %.*g%s", place(t, i), digits, t->x[i], digits,
             value, !same ? "" : adds ? " (nothing is added)" :
             value != 0.0 && t->x[i] == 0.0f ? " (it is not written, or 0 is)" :
             " (it is not written)");
    return text;
}

// Where all wrong elements have something in common: "; wrong only from b=1 on".
static const char *common(const Result *t, bool adds, Exact e) {
    static char text[100];
    size_t stride = t->n;
    text[0] = '\0';
    for (size_t k = 0; t->index.names[0] != 'p' && k < strlen(t->index.names); k++) {
        size_t size = t->index.sizes[k], low = size, high = 0;
        stride /= size;
        for (size_t i = 0; i < t->n; i++) {
            size_t at = i / stride % size;
            if (is_right(t, adds, e, i)) continue;
            if (at < low) low = at;
            if (at > high) high = at;
        }
        if (low == 0 && (high > 0 || size == 1)) continue;
        snprintf(text, sizeof text, low == high ? "; wrong only where %c=%zu" :
                 "; wrong only from %c=%zu on", t->index.names[k], low);
        return text;
    }
    return text;
}

// Where a wrong element is what another one should be: "; x[n=1][c=0] should be that".
static const char *elsewhere(const Result *t, bool adds, Exact e, size_t i) {
    static char text[300];
    size_t found = t->n, many = 0;
    text[0] = '\0';
    for (size_t j = 0; t->n <= 2000 && j < t->n; j++)
        if (e.x[j] != 0.0 && is_close(t->x[i], expected(t, adds, e, j), 0.1 * e.size[j]))
            found = j, many++;
    if (many == 1 && found != i)
        snprintf(text, sizeof text, "; %s should be that", place(t, found));
    return text;
}

// What all elements are times what they should be, or 1.
static double multiple(const Result *t, bool adds, Exact e) {
    double dot = 0.0, norm = 0.0;
    for (size_t i = 0; i < t->n; i++) {
        dot += (t->x[i] - (adds ? t->before[i] : 0.0)) * e.x[i];
        norm += e.x[i] * e.x[i];
    }
    double times = norm > 0.0 ? dot / norm : 1.0;
    for (size_t i = 0; i < t->n; i++)
        if (!is_close(t->x[i] - (adds ? t->before[i] : 0.0), times * e.x[i],
                      fabs(times) * e.size[i] + (adds ? fabs(t->before[i]) : 0.0))) return 1.0;
    return fabs(times) > 1e-3 ? times : 1.0;
}

static bool all_finite(Exact e, size_t n) {
    size_t i = 0;
    while (i < n && isfinite(e.x[i])) i++;
    return i == n;
}

// Says what is wrong with t, if anything is: `exact` was to be added to what it contained, or to be
// written.
static void expect(const Result *t, bool adds, Exact e, const char *hint) {
    size_t i = first_wrong(t, adds, e);
    if (i == t->n) {
        expect_same_bits(t);
        return;
    }
    double before = t->before[i], value = e.x[i], times = multiple(t, adds, e);
    const char *first = describe(t, adds, e, i);
    if (memcmp(t->x, t->before, t->n * sizeof *t->x) == 0)
        wrong(adds ? "%s: nothing is added to it" : run == 0 ? "%s: it is not written" :
              "%s: it is not written, or computed from what was there (0 times NaN is NaN)",
              t->name);
    if (!isfinite(value) && isfinite(t->x[i]))
        wrong("%s; an input is not finite, and that must come through: hide no NaN", first);
    if (isfinite(value) && !isfinite(t->x[i]) && !all_finite(e, t->n) && (adds || !isnan(before)))
        wrong("%s; what is not finite belongs to other elements (0 times infinity is NaN); %s",
              first, hint);
    if (adds && before != 0.0 && is_close(t->x[i], value, e.size[i]))
        wrong("%s: what it contained is lost: add with +=, do not write with =", first);
    if (!adds && isnan(before) && isnan(t->x[i]))
        wrong("%s: it is not written, or computed from what was there before%s; %s", first,
              common(t, adds, e), hint);
    if (!adds && before != 0.0 && t->x[i] != before &&
        is_close(t->x[i], value + before, e.size[i] + fabs(before)))
        wrong("%s: it still contains what it contained before: write with =, or set it to 0 before "
              "something is added%s", first, common(t, adds, e));
    if (fabs(times - 1.0) > 1e-4)
        wrong("%s: all of %s is %.4g times what it should be; %s", first, t->name, times, hint);
    wrong("%s%s%s; %s", first, elsewhere(t, adds, e, i), common(t, adds, e), hint);
}

// Says so where t is `other`, what a typical mistake leaves in place of `exact`.
static void expect_not(const Result *t, bool adds, Exact other, Exact exact, const char *hint) {
    size_t i = first_wrong(t, adds, exact);
    if (i < t->n && first_wrong(t, adds, other) == t->n)
        wrong("%s; %s", describe(t, adds, exact, i), hint);
}

static void expect_written(const Result *t, Exact e, const char *hint) {
    expect(t, false, e, hint);
}

static void expect_added(const Result *t, Exact e, const char *hint) { expect(t, true, e, hint); }

// Numbers whose sum shows how it is grouped, in double too: the first and the last cancel, and the
// others are small beside them.
static void ends_cancel(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] *= 1e-4f;
    if (n > 1) x[0] = 515999968.0f, x[n - 1] = -515999968.0f;
}

// ---- embedding: B, T, C, V, and whether dx's ends cancel ----

static const int EMBEDDING[][6] = {
    { 2, 5, 3, 7, 0, NORMAL }, { 1, 1, 1, 1, 0, NORMAL }, { 1, 6, 4, 300, 0, ZEROS },
    { 3, 1, 2, 9, 0, NOT_FINITE }, { 5, 3, 17, 9, 0, NORMAL },
    { 2, 70, 1, 5, 0, TINY }, { 4, 9, 5, 2, 0, NOT_FINITE }, { 4, 41, 1, 7, 0, NORMAL },
    { 1, 65537, 1, 3, 0, LONG }, { 40, 1, 1, 1, 1, NORMAL },
    { 2, 3, 2, 4, 0, NORMAL },
};

// Among them the last token.
static int *embedding_tokens(int N, int V, Trial *now) {
    int *token = numbers("token", INDEX("n", N), V, now);
    token[N - 1 - (int)rng_below(&now->rng, (uint64_t)(N + 1) / 2)] = V - 1;
    return token;
}

static void check_embedding_forward(Trial *now) {
    int B = now->s[0], T = now->s[1], C = now->s[2], V = now->s[3], P = T + now->number % 3, n;
    float *wte = styled("wte", INDEX("vc", V, C), 1, 0, now);
    float *wpe = styled("wpe", INDEX("pc", P, C), 1, 0, now);
    int *token = embedding_tokens(B*T, V, now);
    Result x = written("x", INDEX("btc", B, T, C));
    Exact exact = exact_of(x.n);
    for (int i = 0; i < B*T*C; i++) {
        n = i / C;
        term(exact, i, wte[token[n]*C + i%C]);
        term(exact, i, wpe[n % T * C + i%C]);
    }
    CALL(embedding_forward(x.x, token, wte, wpe, B, T, C));
    expect_written(&x, exact, "row b*T + t is wte's row of token[b*T + t] plus wpe's row t");
}

static void check_embedding_backward(Trial *now) {
    int B = now->s[0], T = now->s[1], C = now->s[2], V = now->s[3], P = T + now->number % 3;
    float *dx = styled("dx", INDEX("btc", B, T, C), 1, 0, now);
    if (now->s[4]) ends_cancel(dx, (size_t)B*T*C);
    for (int i = 1; now->style == NORMAL && C == 2 && i < B*T*C; i += 2)
        dx[i] = -dx[i - 1];            // rows whose sum is 0
    int *token = embedding_tokens(B*T, V, now);
    Result dwte = added("dwte", INDEX("vc", V, C), now);
    Result dwpe = added("dwpe", INDEX("tc", P, C), now);
    Exact tokens = exact_of(dwte.n), positions = exact_of(dwpe.n);
    for (int i = 0; i < B*T*C; i++) {
        term(tokens, token[i/C]*C + i%C, dx[i]);
        term(positions, i/C % T * C + i%C, dx[i]);
    }
    CALL(embedding_backward(dwte.x, dwpe.x, dx, token, B, T, C));
    expect_added(&dwte, tokens, "a token's row receives dx from every place where it stands");
    expect_added(&dwpe, positions, "position t receives dx from row t of every sequence");
}

// ---- cross-entropy: N, V, Vp, what columns V ... Vp-1 contain, whether scale is 0 ----

enum { PLUS_20, PLUS_400, NO_NUMBER };
static const int XENT[][6] = {
    { 5, 11, 16, PLUS_20, 0, NORMAL }, { 5, 11, 16, PLUS_400, 0, NORMAL },
    { 5, 11, 16, PLUS_20, 0, LARGE }, { 1, 1, 1, 0, 0, NORMAL }, { 1, 7, 7, 0, 0, ZEROS },
    { 6, 8, 9, NO_NUMBER, 0, PEAK }, { 3, 4, 64, NO_NUMBER, 0, ZEROS },
    { 6, 70, 72, NO_NUMBER, 0, LARGE }, { 3, 3000, 3001, NO_NUMBER, 0, PEAK },
    { 1100, 2, 3, PLUS_20, 0, NORMAL }, { 4, 9, 16, NO_NUMBER, 0, NOT_FINITE },
    { 12, 9, 9, 0, 0, LARGE }, { 2, 257, 257, 0, 0, TINY },
    { 5, 1200, 1200, 0, 0, LARGE }, { 2, 1, 300, NO_NUMBER, 0, NORMAL },
    { 4, 1, 3, NO_NUMBER, 0, NOT_FINITE }, { 4, 300, 301, NO_NUMBER, 0, NOT_FINITE },
    { 4, 9, 9, NO_NUMBER, 1, NOT_FINITE },
};

// LARGE: row 1 is near -1000, row 2 near 1000 with one logit far above the others, row 3 begins
// with -1e9, row 4 ends with 1000, rows 5 and 6 are near -1e9 and 1e9, row 7 and on lie
// between -200 and 200, their logits far apart. ZEROS: the largest logits of a row are equal. PEAK:
// one logit of a row is 12 above all others, so that a word with p = 1e-5 is rare, but many of them
// are not; LONG: 8 to 15 above.
static float *xent_logits(Trial *now) {
    int N = now->s[0], V = now->s[1], Vp = now->s[2];
    double scale = now->style == PEAK ? 0.5 : now->style == TINY ? 1e-4 : 2.0;
    float *logits = normals("logits", INDEX("nv", N, Vp), scale, 0, now);
    for (int n = 0; n < N; n++) {
        float *x = logits + n*Vp, far = now->style == LARGE ? 1000.0f : 0.0f;
        float shift = n == 1 ? -far : n == 2 ? far : n == 5 ? -1e6f * far : 1e6f * far;
        if (n != 1 && n != 2 && n != 5 && n != 6) shift = 0.0f;
        if (n > 6) shift = 0.2f * far * (float)(2.0*rng_uniform(&now->rng) - 1.0);
        for (int v = 0; far > 0.0f && n > 6 && v < V; v++) x[v] *= 10.0f;
        for (int v = 0; v < Vp; v++)
            x[v] += v < V ? shift : now->s[3] == NO_NUMBER ? NAN : now->s[3] ? 400.0f : 20.0f;
        if (n == 2 && far > 0.0f) x[0] = far + 25.0f;
        if (n == 3) x[0] -= 1e6f * far;
        if (n == 4) x[V - 1] += far;
        for (int v = n % 2; now->style == ZEROS && v < V; v += 1 + n % 2) x[v] = 6.5f;
        if (now->style == PEAK) x[n % 2 ? V - 1 : (int)rng_below(&now->rng, V)] = 12.0f;
        float depth = n == 0 || now->style != LONG ? 15.2f
                    : 8.0f + 7.0f*(float)rng_uniform(&now->rng);
        for (int v = 0; now->style == LONG && V > 9999 && v < V; v++)
            x[v] = v == V - 1 ? 0.0f : -depth + 0.1f * (float)(v % 3);
        if (now->style == NOT_FINITE && n % 2) x[V - 1 - n * 5 % V] = n % 4 == 1 ? NAN : INFINITY;
    }
    return logits;
}

// Each row's log sum exp: the largest logit, and what is added to it.
static void xent_lse(Exact lse, const float *logits, int N, int V, int Vp) {
    for (int n = 0; n < N; n++) {
        double sum = 0.0, hi = -INFINITY;
        for (int v = 0; v < V; v++) hi = fmax(hi, logits[n*Vp + v]);
        for (int v = 0; v < V; v++) sum += exp(logits[n*Vp + v] - hi);
        term(lse, n, hi);
        term(lse, n, log(sum));
        lse.size[n] += V > 9999 ? 1e-3 * V : 0.1;
    }
}

static void check_xent_forward(Trial *now) {
    int N = now->s[0], V = now->s[1], Vp = now->s[2];
    float *logits = xent_logits(now);
    int *target = numbers("target", INDEX("n", N), V, now);
    if (now->style == LARGE && N > 3) target[3] = 0;
    Result loss = written("loss", INDEX("n", N)), lse = written("lse", INDEX("n", N));
    Exact lse_exact = exact_of(N), loss_exact = exact_of(N);
    xent_lse(lse_exact, logits, N, V, Vp);
    for (int n = 0; n < N; n++) {
        term_of(loss_exact, n, lse_exact.x[n], lse_exact.size[n]);
        term(loss_exact, n, -logits[n*Vp + target[n]]);
    }
    CALL(xent_forward(loss.x, lse.x, logits, target, N, V, Vp));
    expect_written(&lse, lse_exact, now->style == LARGE
                   ? "e^1000 overflows and e^-1000 is 0, in double too: before exp, subtract the "
                     "largest of the row's own V logits, and leave the difference as it is"
                   : now->s[3] != PLUS_20 && V < Vp && now->style == NORMAL
                   ? "columns V ... Vp-1 are padding: neither the largest nor the sum reads them"
                   : "log of the sum of e^logit over columns 0 ... V-1 of its row, of Vp columns");
    expect_written(&loss, loss_exact, "loss = lse - the target's logit");
}

// The first element of padding is named that is wrong where all else is right.
static void expect_no_padding(const Result *d, Exact exact, int V, int Vp) {
    size_t i = 0, first = d->n;
    for (; i < d->n; i++) {
        if (is_right(d, false, exact, i)) continue;
        if (i % Vp < (size_t)V) return;
        if (first == d->n) first = i;
    }
    if (first < d->n)
        wrong("%s is %g, expected 0: column %zu is padding; write 0 to columns V ... Vp-1, which "
              "may contain anything", place(d, first), d->x[first], first % Vp);
}

static void check_xent_backward(Trial *now) {
    static const float scales[] = { 0.125f, 1.0f, 1e-7f, -3.0f, 65536.0f, 0.0f, INFINITY };
    int N = now->s[0], V = now->s[1], Vp = now->s[2];
    float *logits = xent_logits(now), scale = now->s[4] ? 0.0f : scales[now->number % 7];
    for (int n = 0; n < N; n++)
        for (int v = V; v < Vp; v++) logits[n*Vp + v] = NAN;
    int *target = numbers("target", INDEX("n", N), V, now);
    Result d = holding("dlogits", logits, INDEX("nv", N, Vp));
    float *lse = normals("lse", INDEX("n", N), 0, 0, now);
    Exact lse_exact = exact_of(N), exact = exact_of(d.n);
    xent_lse(lse_exact, logits, N, V, Vp);
    for (int n = 0; n < N; n++) {
        lse[n] = (float)lse_exact.x[n];
        if (n == 2 && now->style == LARGE) target[n] = 0;
        if (n % 3 == 1) target[n] = n % 2 ? V - 1 : 0;
        for (int v = 0; v < V; v++) {
            double p = exp((double)logits[n*Vp + v] - lse[n]);
            term_of(exact, n*Vp + v, scale * p,       // exp_fast is at least 2^-126
                    scale * (p * (1.0 + fabs(logits[n*Vp + v])) + 1e-32));
            if (v == target[n]) term(exact, n*Vp + v, -scale);
        }
    }
    CALL(xent_backward(d.x, lse, target, scale, N, V, Vp));
    if (memcmp(d.x, d.before, sizeof(float) * d.n) != 0) expect_no_padding(&d, exact, V, Vp);
    expect_written(&d, exact, now->style == LARGE
                   ? "(p - 1[target]) * scale; logits may be near 1000, or far apart: p = "
                     "e^(logit - lse), and no p is too small"
                   : "(p - 1[target]) * scale, with p = e^(logit - lse); 0 in padding");
}

// ---- LayerNorm: N, C, and whether the ends of rows cancel ----

static const int LAYERNORM[][6] = {
    { 23, 5, 0, 0, 0, NORMAL }, { 1, 1, 0, 0, 0, NORMAL }, { 1, 8, 0, 0, 0, LARGE },
    { 3, 1, 0, 0, 0, NORMAL }, { 9, 17, 0, 0, 0, ZEROS }, { 5, 70, 0, 0, 0, PEAK },
    { 7, 3, 0, 0, 0, NOT_FINITE }, { 1100, 2, 0, 0, 0, NORMAL },
    { 4, 33, 0, 0, 0, TINY }, { 2, 300, 0, 0, 0, NORMAL }, { 4, 9, 0, 0, 0, LARGE },
    { 5, 1, 0, 0, 0, NOT_FINITE }, { 40, 300, 0, 0, 0, ZEROS }, { 1, 40, 1, 0, 0, NORMAL },
    { 40, 1, 1, 0, 0, NORMAL },
};

// Rows vary more or less, so that 1e-5 shows. PEAK: means of 3000. ZEROS: every second row is
// constant, one of four with a number of which a double rounds the square.
static float *layernorm_x(double shift, Trial *now) {
    size_t N = now->s[0], C = now->s[1];
    float *x = styled("x", INDEX("nc", N, C), 2, now->style == PEAK ? 3000.0 : shift, now);
    static const float spreads[] = { 1e-3f, 1.0f, 1.5e-5f, 1e-4f, 30.0f, 4e-6f, 0.1f };
    for (size_t i = 0; now->style == NORMAL && i < (now->number ? N : 2)*C; i++)
        x[i] = (x[i] - (float)shift) * spreads[i / C % 7] + (float)shift;
    for (size_t i = 0; now->style == ZEROS && i < N*C; i++)
        if (i / C % 2) x[i] = (i / C % 4 == 3 ? 1234567.9f : 0.25f) * (float)(i / C);
    for (size_t n = 0; C > 9999 && n < N; n++)       // the ends are unlike all between
        x[n*C] = 300.0f, x[n*C + C - 1] = -200.0f;
    for (size_t n = 0; now->s[2] && n < N; n++) ends_cancel(x + n*C, C);
    return x;
}

static void layernorm_exact(Exact mean, Exact rstd, const float *x, size_t N, int C) {
    for (size_t n = 0; n < N; n++) {
        double var = 0.0;
        for (int c = 0; c < C; c++) term(mean, n, (double)x[n*C + c] / C);
        for (int c = 0; c < C; c++) var += pow(x[n*C + c] - mean.x[n], 2) / C;
        term(rstd, n, 1.0 / sqrt(var + 1e-5));
        if (var < 1e-9 && fabs(mean.x[n]) > 1e6)         // rounding: anything from 0 to that
            rstd.size[n] /= tolerance;
    }
}

static void expect_no_rstd_mistake(const Result *rstd, Exact exact, int C) {
    static const char *hints[] = {
        "1e-5 is missing under the root: 1/sqrt(var + 1e-5)",
        "1e-5 belongs under the root: 1/sqrt(var + 1e-5)",
        "var is the mean over C channels, not over C - 1",
        "this is its inverse, sqrt(var + 1e-5)", "this is the variance; rstd is 1/sqrt(var + 1e-5)",
        "this is 1/(var + 1e-5): the root is missing",
    };
    for (int k = 0; k < 6; k++) {
        Exact other = exact_of(rstd->n);
        for (size_t n = 0; n < rstd->n; n++) {
            double r = exact.x[n], var = 1.0 / (r*r) - 1e-5;
            double values[] = { 1.0 / sqrt(var), 1.0 / (sqrt(var) + 1e-5),
                                1.0 / sqrt(var * C / (C - 1) + 1e-5), 1.0 / r, var, r * r };
            term_of(other, n, values[k], 4.0 * values[k]);
        }
        expect_not(rstd, false, other, exact, hints[k]);
    }
}

static void check_layernorm_forward(Trial *now) {
    size_t N = now->s[0];
    int C = now->s[1];
    bool plain = is_plain(now);
    float *x = layernorm_x(1.0, now);
    float *gain = normals("gain", INDEX("c", C), plain ? 0 : 0.3, 1, now);
    float *bias = normals("bias", INDEX("c", C), plain ? 0 : 0.3, 0, now);
    if (C > 1 && !plain) gain[C / 2] = 0.0f;
    for (int c = 0; c < C && now->style == TINY; c++)      // x - mean shows, however small
        gain[c] *= 1e6f, bias[c] *= (float)(c % 2);
    Result mean = written("mean", INDEX("n", N)), rstd = written("rstd", INDEX("n", N));
    Result out = written("out", INDEX("nc", N, C));
    Exact mean_exact = exact_of(N), rstd_exact = exact_of(N), exact = exact_of(N*C);
    layernorm_exact(mean_exact, rstd_exact, x, N, C);
    for (size_t i = 0; i < N*C; i++) {
        double r = rstd_exact.x[i/C], m = mean_exact.x[i/C], size = fabs(x[i]) + fabs(m);
        term_of(exact, i, (x[i] - m) * r * gain[i%C], size * r * gain[i%C]);
        term(exact, i, bias[i%C]);
    }
    CALL(layernorm_forward(out.x, mean.x, rstd.x, x, gain, bias, N, C));
    expect_not(&mean, false, rstd_exact, mean_exact, "this is rstd: the two are exchanged");
    expect_written(&mean, mean_exact, "the mean of a row's C channels");
    if (now->style == NORMAL && C > 1) expect_no_rstd_mistake(&rstd, rstd_exact, C);
    expect_written(&rstd, rstd_exact, now->style == ZEROS
                   ? "where a row is constant, var is 0 and rstd 1/sqrt(1e-5): that is what 1e-5 "
                     "is for" : "1/sqrt(var + 1e-5); var is the mean, over C, of the squared "
                   "distances from the row's mean");
    Exact no_gain = exact_of(N*C), no_bias = exact_of(N*C);
    for (size_t i = 0; i < N*C; i++) {
        term_of(no_bias, i, exact.x[i] - bias[i%C], exact.size[i]);
        term_of(no_gain, i, no_bias.x[i] / gain[i%C] + bias[i%C], exact.size[i]);
    }
    expect_not(&out, false, no_bias, exact, "bias is missing");
    expect_not(&out, false, no_gain, exact, "gain is missing");
    expect_written(&out, exact, "out = (x - mean) * rstd * gain + bias; gain and bias have "
                   "a number for each channel");
}

// dx, dgain, dbias, and dx without its two means, which a reader may forget.
typedef struct { Exact dx, dgain, dbias, no_means; } NormGradients;

static NormGradients layernorm_gradients(const float *dout, const float *x, const float *mean,
                                         const float *rstd, const float *gain, size_t N, int C) {
    NormGradients e = { exact_of(N*C), exact_of(C), exact_of(C), exact_of(N*C) };
    for (size_t n = 0; n < N; n++) {
        double r = rstd[n], mean_g = 0.0, mean_gx = 0.0, size_g = 0.0, size_gx = 0.0;
        const float *row = x + n*C, *d = dout + n*C;
        for (int c = 0; c < C; c++) {
            double xhat = (row[c] - (double)mean[n]) * r, g = (double)d[c] * gain[c];
            double size = fabs(xhat) + 0.1 * (fabs(row[c]) + fabs(mean[n])) * r;
            mean_g += g / C, mean_gx += g * xhat / C;
            size_g += fabs(g) / C, size_gx += fabs(g) * size / C;
            term_of(e.dgain, c, d[c] * xhat, d[c] * size);
            term(e.dbias, c, d[c]);
        }
        for (int c = 0; c < C; c++) {
            double xhat = (row[c] - (double)mean[n]) * r, g = (double)d[c] * gain[c];
            double size = fabs(xhat) + 0.1 * (fabs(row[c]) + fabs(mean[n])) * r;
            term_of(e.dx, n*C + c, (g - mean_g - xhat * mean_gx) * r,
                    (fabs(g) + size_g + fabs(xhat) * size_gx + size * fabs(mean_gx)) * r);
            term(e.no_means, n*C + c, g * r);
        }
    }
    return e;
}

static void check_layernorm_backward(Trial *now) {
    size_t N = now->s[0];
    int C = now->s[1];
    bool plain = is_plain(now);
    float *x = layernorm_x(now->number ? 1.0 : 0.0, now);
    float *gain = normals("gain", INDEX("c", C), plain ? 0 : 0.3, 1, now);
    if (C > 1 && !plain) gain[C / 2] = 0.0f;               // its gradient is not 0
    float *dout = styled("dout", INDEX("nc", N, C), 1, N > 1000 ? 0.0 : 0.5, now);
    if (now->s[2]) ends_cancel(dout, N*C);
    float *mean = normals("mean", INDEX("n", N), 0, 0, now);
    float *rstd = normals("rstd", INDEX("n", N), 0, 0, now);
    Exact mean_exact = exact_of(N), rstd_exact = exact_of(N);
    layernorm_exact(mean_exact, rstd_exact, x, N, C);
    for (size_t n = 0; n < N; n++)
        mean[n] = (float)mean_exact.x[n], rstd[n] = (float)rstd_exact.x[n];
    NormGradients exact = layernorm_gradients(dout, x, mean, rstd, gain, N, C);
    for (int in_place = 0; in_place < 2; in_place++) {
        Index nc = INDEX("nc", N, C), c = INDEX("c", C);
        Result dx = in_place ? holding("dx (the same memory as dout)", dout, nc)
                             : written("dx", nc);
        Result dgain = added(in_place ? "dgain (dx in dout's memory)" : "dgain", c, now);
        Result dbias = added(in_place ? "dbias (dx in dout's memory)" : "dbias", c, now);
        CALL(layernorm_backward(dx.x, dgain.x, dbias.x, in_place ? dx.x : dout, x, mean, rstd, gain,
                                N, C));
        expect_added(&dgain, exact.dgain, in_place ? "dx may overwrite dout: write dgain first"
                     : "the sum over all rows of dout * xhat, with xhat = (x - mean) * rstd");
        expect_added(&dbias, exact.dbias, in_place ? "dx may overwrite dout: write dbias first"
                     : "the sum over all rows of dout");
        expect_not(&dx, false, exact.no_means, exact.dx, "mean and rstd depend on x too: two "
                   "means over the row are missing");
        expect_written(&dx, exact.dx, in_place ? "read a row of dout before dx overwrites it"
                       : "(g - mean(g) - xhat * mean(g * xhat)) * rstd, with g = dout * gain, "
                         "means over C, and the rstd that forward kept");
    }
}

// ---- MLP: n ----

static const int GELU[][6] = {
    { 1001, 0, 0, 0, 0, NORMAL }, { 1, 0, 0, 0, 0, NORMAL }, { 7, 0, 0, 0, 0, NORMAL },
    { 255, 0, 0, 0, 0, TINY }, { 300, 0, 0, 0, 0, ZEROS }, { 17, 0, 0, 0, 0, NOT_FINITE },
};

// The slope of GELU at x; `mistake` 1 ... 4 are typical ones. *size: 1 + tanh u may round to a
// multiple of 6e-8, which is less than a tolerance of it.
static double gelu_slope(double x, int mistake, double *size) {
    double u = sqrt(2.0 / acos(-1.0)) * (x + 0.044715 * x*x*x), s = 1.0 / (1.0 + exp(-2.0 * u));
    double du = sqrt(2.0 / acos(-1.0)) * (1.0 + (mistake == 1 ? 1 : 3) * 0.044715 * x*x);
    *size = 0.4 * (1.0 + s);
    if (mistake == 4)
        return 0.5 * erfc(-x / sqrt(2.0)) + x * exp(-x*x / 2.0) / sqrt(2.0 * acos(-1.0));
    return s + (mistake == 2 ? 1.0 : 2.0) * (mistake == 3 ? 0.0 : x * s * (1.0 - s) * du);
}

static void check_gelu_backward(Trial *now) {
    static const char *hints[] = { NULL, "du/dx is sqrt(2/pi) (1 + 3*0.044715 x^2), with the 3",
                                   "s has the argument 2u, so its slope is s (1 - s) 2 du/dx",
                                   "x s is a product: s, and x times the slope of s",
                                   "this is the slope of the exact GELU; gelu_forward has tanh" };
    static const float special[] = { 0.0f, 30.0f, -30.0f, 300.0f, -300.0f, -4.0f, -3.6f, 7.0f };
    int n = now->s[0];
    float *x = normals("x", INDEX("i", n), now->style == TINY ? 3e-4 : 3, 0, now);
    float *dout = styled("dout", INDEX("i", n), 1, 0, now);
    Exact exact[5];
    for (int i = 0; i < 8 && n > 100; i++) x[n - 1 - i] = special[i];
    if (now->style == NOT_FINITE) x[n / 2] = NAN;
    for (int i = 0; i < n && i < 8 && now->style == NOT_FINITE; i++)
        x[i] = special[i], dout[i] = i % 3 ? INFINITY : NAN;
    if (now->style == NOT_FINITE && n > 9) x[9] = NAN, dout[9] = 0.0f;
    for (int k = 0; k < 5; k++) {
        exact[k] = exact_of(n);
        for (int i = 0; i < n; i++) {
            double size, slope = gelu_slope(x[i], k, &size);
            term_of(exact[k], i, dout[i] * slope, dout[i] * size);
        }
    }
    for (int in_place = 0; in_place < 2; in_place++) {
        Index i = INDEX("i", n);
        Result dx = in_place ? holding("dx (the same memory as dout)", dout, i) : written("dx", i);
        CALL(gelu_backward(dx.x, in_place ? dx.x : dout, x, n));
        size_t first = first_wrong(&dx, false, exact[0]);
        if (first < dx.n && isnan(dx.x[first]) && !isnan(exact[0].x[first]) && run == 0)
            wrong("%s, where x is %g; e^2u may overflow: inf/inf is no number",
                  describe(&dx, false, exact[0], first), x[first]);
        for (int k = 1; k < 5 && n > 100 && now->style == NORMAL; k++)
            expect_not(&dx, false, exact[k], exact[0], hints[k]);
        expect_written(&dx, exact[0], in_place ? "read dout[i] before dx[i] is written"
                       : "dout times the slope of GELU at x: s + x s (1 - s) 2 du/dx");
    }
}

// N, C, OC, and whether sums of the first and the last cancel. The array of w (768,3072) is larger
// than a stack.
static const int LINEAR[][6] = {
    { 6, 4, 3, 0, 0, NORMAL }, { 6, 3, 5, 0, 0, NORMAL }, { 4, 5, 5, 0, 0, NORMAL },
    { 1, 1, 1, 0, 0, NORMAL }, { 1, 3, 2, 0, 0, NORMAL }, { 7, 4, 1, 0, 0, NORMAL },
    { 5, 1, 6, 0, 0, NORMAL }, { 9, 8, 24, 0, 0, ZEROS }, { 8, 3, 4, 0, 0, NOT_FINITE },
    { 1100, 2, 3, 0, 0, NORMAL }, { 3, 33, 17, 0, 0, TINY }, { 3, 3, 3, 0, 0, LARGE },
    { 2, 5, 40, 0, 0, NORMAL }, { 3, 4, 2, 0, 0, NORMAL }, { 1, 768, 3072, 0, 0, NORMAL },
    { 40, 1, 1, 1, 0, NORMAL }, { 1, 1, 40, 1, 0, NORMAL },
};

// What each tensor is, and what this trial's sizes or values say about a mistake.
static const char *linear_hint(const char *formula, const Trial *now) {
    static char text[200];
    snprintf(text, sizeof text, "%s%s", formula, now->s[0] > 1000 ? "; with fewer rows it is right"
             : now->style == TINY ? "; x, w and dout are small: skip no small number" : "");
    return text;
}

static void check_linear_backward(Trial *now) {
    int N = now->s[0], C = now->s[1], OC = now->s[2];
    if (run > 0 && (size_t)C*OC > 1000000) return;     // takes a second
    float *x = styled("x", INDEX("nc", N, C), 1, 0, now);
    float *w = styled("w", INDEX("co", C, OC), 1, 0, now);
    float *dout = styled("dout", INDEX("no", N, OC), 1, 0, now);
    for (int o = 0; now->style == NOT_FINITE && N > 2 && o < OC; o++)
        dout[OC + o] = 0.0f, x[C] = NAN;           // 0 times NaN is NaN
    if (now->s[3])
        ends_cancel(dout, (size_t)N*OC), x[0] = x[N*C - 1] = w[0] = w[C*OC - 1] = 1.0f;
    if (OC == 2) dout[2*N - 1] = -dout[2*N - 2];   // a row whose sum is 0
    Result dx = written("dx", INDEX("nc", N, C)), dw = added("dw", INDEX("co", C, OC), now);
    Result db = added("db", INDEX("o", OC), now);
    Exact dx_exact = exact_of(dx.n), dw_exact = exact_of(dw.n), db_exact = exact_of(OC);
    for (int n = 0; n < N; n++)
        for (int o = 0; o < OC; o++) {
            double d = dout[n*OC + o];
            term(db_exact, o, d);
            for (int c = 0; c < C; c++) {
                term(dx_exact, n*C + c, d * w[c*OC + o]);
                term(dw_exact, c*OC + o, d * x[n*C + c]);
            }
        }
    CALL(linear_backward(dx.x, dw.x, db.x, dout, x, w, N, C, OC));
    if (C == OC) {                     // where no index is out of range
        Exact across = exact_of(dx.n), turned = exact_of(dw.n);
        for (int i = 0; i < C*C; i++) term_of(turned, i%C*C + i/C, dw_exact.x[i], dw_exact.size[i]);
        for (int i = 0; i < N*C*C; i++)
            term(across, i/C, dout[i/C/C*C + i%C] * (double)w[i%C*C + i/C%C]);
        expect_not(&dx, false, across, dx_exact, "this is dout times w, not w transposed");
        expect_not(&dw, true, turned, dw_exact, "this is dw transposed");
    }
    expect_written(&dx, dx_exact,
                   linear_hint("dx (N,C) = dout (N,OC) times w (C,OC) transposed", now));
    expect_added(&dw, dw_exact,
                 linear_hint("dw (C,OC) += x (N,C) transposed times dout (N,OC)", now));
    expect_added(&db, db_exact,
                 linear_hint("db (OC) += the sum of dout's rows: bias_backward does it", now));
}

// ---- attention: B, T, NH, HS, past ----

typedef void AttentionForward(float *out, float *lse, float *scratch, const float *qkv,
                              int B, int T, int first, int C, int NH);

static const int PLAIN_ATTENTION[][6] = {
    { 2, 7, 2, 3, 0, NORMAL }, { 2, 7, 2, 4, 0, LARGE }, { 2, 3, 2, 3, 4, NORMAL },
    { 1, 1, 1, 1, 0, NORMAL }, { 1, 1, 3, 2, 6, ZEROS }, { 1, 5, 2, 3, 3, PEAK },
    { 3, 2, 5, 1, 2, NORMAL }, { 2, 4, 17, 2, 0, NOT_FINITE }, { 1, 300, 1, 2, 0, PEAK },
    { 1, 66, 2, 5, 9, PEAK }, { 1, 6, 1, 4, 0, LARGE }, { 1, 9, 2, 4, 0, LARGE },
    { 1, 1100, 1, 1, 1100, LONG }, { 1, 2, 8, 1, 0, SPARSE },
};
static const int TILED_ATTENTION[][6] = {                  // blocks of 32 queries meet
    { 2, 71, 2, 3, 0, NORMAL }, { 2, 34, 2, 3, 37, NORMAL }, { 2, 1, 2, 3, 70, NORMAL },
    { 1, 1, 1, 1, 0, NORMAL }, { 1, 32, 3, 2, 0, PEAK }, { 1, 33, 2, 5, 31, ZEROS },
    { 1, 65, 1, 1, 0, PEAK }, { 3, 31, 2, 4, 0, LARGE }, { 2, 5, 17, 2, 1, NORMAL },
    { 1, 64, 2, 16, 64, NOT_FINITE }, { 1, 300, 1, 2, 0, PEAK }, { 1, 33, 2, 4, 0, LARGE },
    { 1, 100, 3, 2, 100, NORMAL }, { 1, 70, 2, 5, 70, LARGE }, { 1, 1100, 1, 1, 1100, LONG },
    { 1, 2, 8, 1, 0, SPARSE },
};
// In place of a past: whether dout is infinite in the last row, where most weights are 0.
static const int ATTENTION_BACKWARD[][6] = {
    { 2, 7, 2, 3, 0, NORMAL }, { 1, 1, 1, 1, 0, NORMAL }, { 2, 1, 3, 2, 0, NORMAL },
    { 3, 5, 5, 1, 0, PEAK }, { 1, 9, 17, 2, 0, LARGE }, { 1, 70, 1, 3, 0, PEAK },
    { 1, 300, 1, 1, 0, NORMAL }, { 2, 6, 3, 4, 0, LARGE }, { 1, 6, 1, 4, 0, LARGE },
    { 2, 5, 2, 2, 0, NOT_FINITE }, { 1, 9, 2, 4, 0, LARGE },
    { 1, 33, 2, 2, 0, ZEROS }, { 1, 9, 2, 2, 1, NORMAL },
    { 1, 2, 8, 1, 0, SPARSE },
};

// One head: its weights p (T,T), the log of each softmax's denominator, the sizes of its scores.
typedef struct { double *p, *lse, *size; } Head;

static Head head_of(int T) {
    return (Head){ doubles((size_t)T*T), doubles(T), doubles((size_t)T*T) };
}

// q, k: rows of 3C. Of the queries from `first` on.
static void head_weights(Head e, const float *q, int first, int T, int C, int HS) {
    const float *k = q + C;
    for (int t = first; t < T; t++) {
        double sum = 0.0, hi = -INFINITY, *s = e.p + (size_t)t*T, *size = e.size + (size_t)t*T;
        for (int u = 0; u <= t; u++) {
            s[u] = 0.0, size[u] = 1.0;
            for (int i = 0; i < HS; i++) {
                double product = (double)q[(size_t)t*3*C + i] * k[(size_t)u*3*C + i] / sqrt(HS);
                s[u] += product, size[u] += fabs(product) < 1e9 ? fabs(product) : 0;   // else exact
            }
            hi = fmax(hi, s[u]);
        }
        for (int u = 0; u < T; u++) sum += s[u] = u <= t ? exp(s[u] - hi) : 0.0;
        e.lse[t] = hi + log(sum);
        for (int u = 0; u <= t; u++) s[u] /= sum;
    }
}

// The queries, keys and values of `rows` rows a sequence. LARGE: where HS is 4, the scores of query
// 2 are near 1000, those of query 3 near -1000, that of query 5 and its own key too, and all are
// exact in float (with one sequence, 2^57); query 6 has scores of 0, 16, 32 and 48, and values of
// head 1 make up for that; else scores lie between -200 and 200. PEAK: many weights are small.
// NOT_FINITE: a query, a value, whose weight may be 0, and a key. SPARSE: of two tokens and numbers
// alone in a head, the second has a small weight, but the first a value of 0.
static float *attention_qkv(Trial *now, int rows) {
    int B = now->s[0], NH = now->s[2], HS = now->s[3], C = NH*HS;
    Style style = now->style;
    float far = B == 1 ? 0x1p29f : 2000.0f, near = B == 1 ? 0x1p29f : 1.0f;
    if (style != ZEROS && style != TINY) now->style = NORMAL;
    float *qkv = styled("qkv", INDEX("btc", B, rows, 3*C), 1, 0, now);
    now->style = style;
    for (size_t i = 0; i < (size_t)B*rows*3*C; i++) {
        size_t t = i / (3*C) % rows, c = i % (3*C);
        if (style == PEAK && c < (size_t)C) qkv[i] *= 4.0f;
        if ((style == LARGE || style == NOT_FINITE) && HS != 4 && c < (size_t)C) qkv[i] *= 60.0f;
        if (style != LARGE || HS != 4) continue;
        qkv[i] = rintf(qkv[i] * 8.0f) / 8.0f;
        if (c % HS > 1 && c < (size_t)C && (t == 2 || t == 3 || t == 6)) qkv[i] = 0.0f;
        if (c % HS == 0 && c < (size_t)C) qkv[i] = t == 2 ? far : t == 3 ? -far : 0.0f;
        if (c % HS == 0 && c / C == 1) qkv[i] = near;
        if (c % HS == 1 && c < (size_t)C) qkv[i] = t == 5 ? far : t == 6 ? 32.0f : 0.0f;
        if (c % HS == 1 && c / C == 1) qkv[i] = t == 5 ? -1.0f : (float)(t % 4);
        if (c / HS == 2*(size_t)NH + 1) qkv[i] *= t % 4 == 1 ? 1e9f : t % 4 == 3 ? 1e-3f : 1.0f;
    }
    static const float firsts[] = { 0, 0, 0, 50, -29, -59, -59, 25 };
    static const float below[] = { 20, 33, 87, 41, 75, 45, 80, 60 };
    for (int c = 0; style == SPARSE && HS == 1 && rows == 2 && c < C; c++) {
        qkv[c] = qkv[3*C + c] = 1.0f;
        qkv[C + c] = firsts[c % 8], qkv[4*C + c] = firsts[c % 8] - below[c % 8];
        qkv[2*C + c] = 0.0f, qkv[5*C + c] = 1e9f;
    }
    if (style == NOT_FINITE)
        qkv[((size_t)(B - 1)*rows + (now->number % 2 ? (size_t)now->s[4] : rows - 1 -
             rng_below(&now->rng, now->s[1])))*3*C + C - 1] = NAN;
    for (int h = 0; style == NOT_FINITE && h < NH; h += 2)                   // values of token 0
        qkv[2*C + h*HS] = now->number % 2 ? NAN : INFINITY;
    if (style == NOT_FINITE) qkv[(size_t)(rows - 1)*3*C + C] = NAN;          // the last key
    for (int i = 0; style == NOT_FINITE && now->number % 2 && i < HS; i++)   // of a zero query
        qkv[(size_t)(rows - 1)*3*C + i] = 0.0f;
    return qkv;
}

// Where all weights of a key are small, its value is large, so that no weight may be left out.
static void values_enlarge(float *v, Head e, int T, int C, int HS) {
    for (int u = 0; u < T; u++) {
        double most = 1e-8;
        for (int t = u; t < T; t++) most = fmax(most, e.p[(size_t)t*T + u]);
        for (int i = 0; i < HS; i++) v[(size_t)u*3*C + i] /= (float)most;
    }
}

static float *attention_scratch_of(size_t piece) {
    size_t n = thread_count() * piece;
    float *scratch = array_new("scratch", INDEX("i", n), sizeof *scratch, SCRATCH);
    for (size_t i = 0; i < n; i++) scratch[i] = NAN;
    return scratch;
}

static void head_out(Exact out, Exact lse, float *qkv, int b, int h, int rows, int C, int HS,
                     const Trial *now) {
    Head e = head_of(rows);
    float *q = qkv + (size_t)b*rows*3*C + h*HS, *v = q + 2*C;
    head_weights(e, q, now->s[4], rows, C, HS);
    if (now->style == PEAK) values_enlarge(v, e, rows, C, HS);
    for (int t = 0; t < rows; t++) {
        size_t n = (size_t)b*rows + t;
        bool old = t < now->s[4];                          // not to be written
        size_t at = ((size_t)b*C/HS + h)*rows + t;
        term_of(lse, at, old ? (double)(run ? NAN : 7.0f) : e.lse[t], old ? 0.0 : fabs(e.lse[t]));
        for (int u = 0; !old && u <= t; u++) {
            lse.size[at] = fmax(lse.size[at], e.size[(size_t)t*rows + u]);
            for (int i = 0; i < HS; i++) {
                double of = v[(size_t)u*3*C + i], x = e.p[(size_t)t*rows + u] * of;
                term_of(out, n*C + h*HS + i, x,            // exp_fast is at least 2^-126
                        fabs(x) * e.size[(size_t)t*rows + u] + 1e-32 * fabs(of));
            }
        }
        for (int i = 0; old && i < HS; i++) out.x[n*C + h*HS + i] = run ? NAN : 7.0f;
    }
}

// T rows of each sequence, of which the first `past` were computed before.
static void check_attention_forward(Trial *now, AttentionForward *forward, size_t piece) {
    int B = now->s[0], T = now->s[1], NH = now->s[2], HS = now->s[3], past = now->s[4];
    int rows = past + T, C = NH*HS;
    static bool past_is_right;
    const char *hint = now->style == LARGE ? "scores are q . k / sqrt(HS), of this call's HS, and "
                                             "may be 1000 or -1000: before exp, subtract the "
                                             "largest of the query's own, and leave the "
                                             "difference as it is"
                     : now->style == SPARSE ? "no weight is too small to count; each is e^(score - "
                                              "the largest of the query's own) / sum"
                     : past && !past_is_right ? "only the rows behind the past are computed; a "
                                                "sequence has past + T rows" : NULL;
    if (T > 300 && rows > 1000 && run > 0) return;  // slow
    float *qkv = attention_qkv(now, rows);
    for (size_t i = 0; now->style == LARGE && HS != 4 && i < (size_t)B*rows*3*C; i++)
        if (i % (3*C) >= 2*(size_t)C && i / (3*C) % 2) qkv[i] *= 1e8f;   // also of small weights
    Result out = written(past ? "out (past > 0)" : "out", INDEX("bthi", B, rows, NH, HS));
    Result lse = written(past ? "lse (past > 0)" : "lse", INDEX("bht", B, NH, rows));
    Exact out_exact = exact_of(out.n), lse_exact = exact_of(lse.n);
    for (int b = 0; b < B; b++)
        for (int h = 0; h < NH; h++) {
            size_t kept = n_pool;
            head_out(out_exact, lse_exact, qkv, b, h, rows, C, HS, now);
            while (n_pool > kept) free(pool[--n_pool]);
        }
    float *scratch = attention_scratch_of(piece);
    CALL(forward(out.x + past*C, lse.x + past, scratch, qkv + (size_t)past*3*C, B, T, past, C, NH));
    bool first_query = first_wrong(&lse, false, lse_exact) % rows == 0;
    expect_written(&lse, lse_exact, hint ? hint : first_query
                   ? "lse (B,NH,T): query 0 sees one key, its own, so its lse is q . k / sqrt(HS)"
                   : "lse (B,NH,T): log of the sum of e^(q . k / sqrt(HS)) over t2 <= t");
    expect_written(&out, out_exact, hint ? hint
                   : "the values of tokens t2 <= t, weighted by the softmax; head h owns columns "
                     "h*HS ...");
    past_is_right = past_is_right || past > 0;
}

static void check_attention_plain(Trial *now) {
    check_attention_forward(now, attention_forward_plain, now->s[4] + now->s[1]);
}

static void check_attention_tiled(Trial *now) {
    static bool by_one[SIZES_SEEN];
    memset(sizes_seen, 0, sizeof sizes_seen);
    check_attention_forward(now, attention_forward_fast,
                            attention_scratch(now->s[4] + now->s[1], now->s[3]));
    if (run == 0) memcpy(by_one, sizes_seen, sizeof by_one);
    for (int i = 0; i < SIZES_SEEN; i++)
        if (sizes_seen[i] && !by_one[i])
            wrong("matmul_packed gets other sizes with %d threads than with 1: they decide how "
                  "sums are grouped, and so their bits", threads);
}

// Splits dqkv (N,3C) into the gradients of queries, keys and values, for the messages.
static void expect_part(const Result *dqkv, Exact exact, int part, const Trial *now,
                        const char *hint) {
    static const char *names[] = { "dq", "dk", "dv" };
    int C = now->s[2]*now->s[3];
    Result d = written(names[part], INDEX("bthi", now->s[0], now->s[1], now->s[2], now->s[3]));
    Exact e = exact_of(d.n);
    for (size_t i = 0; i < d.n; i++) {
        size_t at = i/C*3*C + part*C + i%C;
        d.x[i] = dqkv->x[at], d.before[i] = dqkv->before[at];
        term_of(e, i, exact.x[at], exact.size[at]);
    }
    expect_written(&d, e, hint);
}

// Adds the gradients of one head; out and lse get what forward leaves there. Rows of C, or 3C.
static void head_gradients(Exact exact, float *out, float *lse, const float *dout,
                           const float *q, int T, int C, int HS) {
    const float *k = q + C, *v = k + C;
    double scale = 1.0 / sqrt(HS);
    Head e = head_of(T);
    head_weights(e, q, 0, T, C, HS);
    for (size_t t = 0; t < (size_t)T; t++) {
        const double *p = e.p + t*T;
        double d = 0.0, d_size = 0.0;
        lse[t] = (float)e.lse[t];
        for (int i = 0; i < HS; i++) {
            double o = 0.0;
            for (size_t u = 0; u <= t; u++) o += p[u] * v[u*3*C + i];
            out[t*C + i] = (float)o;
            d += dout[t*C + i] * (double)out[t*C + i], d_size += fabs(dout[t*C + i] * o);
        }
        for (size_t u = 0; u <= t; u++) {
            double dp = 0.0, size = d_size, more = e.size[t*T + u];
            if (fabs(e.lse[t]) > 1e9) more = fabs(e.lse[t]);         // lse is rounded
            for (int i = 0; i < HS; i++) {
                dp += (double)dout[t*C + i] * v[u*3*C + i];
                size += fabs((double)dout[t*C + i] * v[u*3*C + i]);
            }
            for (int i = 0; i < HS; i++) {
                double ds = p[u] * (dp - d) * scale, ds_size = p[u] * size * scale * more;
                double dv = p[u] * dout[t*C + i];
                term_of(exact, t*3*C + i, ds * k[u*3*C + i], ds_size * k[u*3*C + i]);
                term_of(exact, u*3*C + C + i, ds * q[t*3*C + i], ds_size * q[t*3*C + i]);
                term_of(exact, u*3*C + 2*C + i, dv, dv * more);
            }
        }
    }
}

// Accesses to memory for each pair of a query and a key, where they are counted: no more for long
// sequences than for short ones.
static void expect_quadratic(const Trial *now) {
#ifdef __SANITIZE_THREAD__
    static double of_short;
    double T = now->s[1], each = (double)work / (now->s[0]*T*(T + 1)/2*now->s[2]*now->s[3]);
    if (now->number == 0) of_short = each;
    if (now->s[1] == 70 && now->s[3] == 3 && each > 4.0 * of_short)
        wrong("the result is right, but the cost grows faster than T^2: no loop over tokens is "
              "needed for one query and one key");
#else
    (void)now;
#endif
}

static void check_attention_backward(Trial *now) {
    int B = now->s[0], T = now->s[1], NH = now->s[2], HS = now->s[3], C = NH*HS;
    if (T > 1000 && run > 0) return;                       // slow
    float *qkv = attention_qkv(now, T);
    float *dout = normals("dout", INDEX("btc", B, T, C), now->style == NOT_FINITE ? 0 : 1, 0, now);
    for (int i = 0; now->style == LARGE && HS == 4 && i < B*T*C; i++)
        if (i / HS % NH == 1 && i / C % T != 6) dout[i] = 0.0f;      // of head 1, query 6 alone
    for (int i = (B*T - 1)*3*C; now->s[4] && i < B*T*3*C - C; i++) qkv[i] = 30.0f;
    if (now->s[4]) dout[B*T*C - 1] = INFINITY;
    float *out = normals("out", INDEX("btc", B, T, C), 0, 0, now);
    float *lse = normals("lse", INDEX("bht", B, NH, T), 0, 0, now);
    Result dqkv = written("dqkv", INDEX("btc", B, T, 3*C));
    Exact exact = exact_of(dqkv.n);
    for (int b = 0; b < B; b++)
        for (int h = 0; h < NH; h++) {
            size_t kept = n_pool, first = (size_t)b*T*C + h*HS;      // rows of out, dout
            size_t wide = (size_t)b*T*3*C + h*HS;                    // rows of qkv, dqkv
            Exact head = { exact.x + wide, exact.size + wide, 0 };
            head_gradients(head, out + first, lse + ((size_t)b*NH + h)*T, dout + first, qkv + wide,
                           T, C, HS);
            while (n_pool > kept) free(pool[--n_pool]);
        }
    float *scratch = attention_scratch_of(attention_scratch(T, HS));
    CALL(attention_backward_plain(dqkv.x, scratch, dout, qkv, out, lse, B, T, C, NH));
    if (memcmp(dqkv.x, dqkv.before, dqkv.n * sizeof(float)) == 0)
        wrong(run == 0 ? "dqkv: it is not written" : "dqkv: it is not written, or computed from "
              "what was there (0 times NaN is NaN)");
    expect_part(&dqkv, exact, 2, now, "dv_t2 += p_t,t2 dout_t, over t >= t2, with "
                "p = e^(q . k / sqrt(HS) - lse_t)");
    expect_part(&dqkv, exact, 0, now, "dq_t += ds_t,t2 k_t2 / sqrt(HS), with "
                "ds = p (dout . v - d) and d = dout_t . out_t");
    expect_part(&dqkv, exact, 1, now, "dk_t2 += ds_t,t2 q_t / sqrt(HS)");
    if (run == 0) expect_quadratic(now);
}

// ---- optimizer ----

// Parameters p (n) after an update with typical mistakes.
static void expect_no_adamw_mistake(const Result *p, const double *before, const Exact *moments,
                                    const float *g, float g_scale, Exact after, AdamW o) {
    static const char *hints[] = {
        "the bias correction is missing: m / (1 - beta1^m_steps) and v / (1 - beta2^v_steps)",
        "eps is added to the root, not under it", "the rate multiplies the decay too",
        "the decay is missing: lr * weight_decay * p", "p moves against the gradient: with -=",
        "the bias correction of v stands under the root, with v",
        "v has a bias correction too: v / (1 - beta2^v_steps)",
        "m has a bias correction too: m / (1 - beta1^m_steps)",
        "eps is added after the bias correction of v: sqrt(v / (1 - beta2^v_steps)) + eps",
        "the powers belong to m_steps and v_steps as they are: the first update is number 1",
        "m is corrected with m_steps, v with v_steps", "eps is missing",
        "this is the step of the gradient itself, not of m",
        "the decay is that of p before the step", "m is corrected with m_steps, v with v_steps",
    };
    double c1 = 1.0 - pow(o.beta1, o.m_steps), c2 = 1.0 - pow(o.beta2, o.v_steps);
    double swapped1 = 1.0 - pow(o.beta1, o.v_steps), swapped2 = 1.0 - pow(o.beta2, o.m_steps);
    double later1 = 1.0 - pow(o.beta1, o.m_steps + 1), later2 = 1.0 - pow(o.beta2, o.v_steps + 1);
    for (int k = 0; k < 15; k++) {
        Exact other = exact_of(p->n);
        for (size_t i = 0; i < p->n; i++) {
            double m = moments[0].x[i], v = moments[1].x[i], eps = o.eps;
            double m_hat = k == 0 || k == 7 ? m : k == 9 ? m/later1 : k == 14 ? m/swapped1 :
                           k == 12 ? (double)g[i] * g_scale : m/c1;
            double v_hat = k == 0 || k == 6 || k == 5 ? v : k == 9 ? v/later2 : k == 10 ? v/swapped2
                         : v/c2;
            double root = k == 1 ? sqrt(v_hat + eps) : k == 5 ? sqrt(v)/c2 + eps :
                          k == 8 ? (sqrt(v) + eps) / sqrt(c2) : sqrt(v_hat) + (k == 11 ? 0 : eps);
            double decay = (k == 2 ? 1.0 : k == 3 ? 0.0 : o.lr) * o.weight_decay *
                           (k == 13 ? before[i] - o.lr * m_hat / root : before[i]);
            term_of(other, i, before[i] + (k == 4 ? 1.0 : -1.0) * (o.lr*m_hat/root + decay),
                    after.size[i]);
        }
        expect_not(p, false, other, after, hints[k]);
    }
}

// n, updates, and which of the rates below
static const int ADAMW[][6] = {
    { 37, 4, 0, 0, 0, NORMAL }, { 300, 3, 1, 0, 0, ZEROS }, { 1, 2, 2, 0, 0, NORMAL },
    { 64, 3, 2, 0, 0, TINY }, { 65, 2, 3, 0, 0, LARGE }, { 40, 2, 4, 0, 0, ZEROS },
    { 33, 2, 5, 0, 0, NORMAL }, { 9, 1, 3, 0, 0, NOT_FINITE }, { 128, 2, 6, 0, 0, PEAK },
    { 9, 1, 3, 0, 0, NOT_FINITE }, { 40, 2, 7, 0, 0, SPARSE }, { 50, 2, 8, 0, 0, TINY },
    { 64, 3, 7, 0, 0, TINY }, { 37, 2, 8, 0, 0, NORMAL }, { 9, 1, 4, 0, 0, NOT_FINITE },
    { 9, 1, 2, 0, 0, NOT_FINITE },
};
enum { NO_DECAY = 2 };
static const AdamW RATES[] = {
    { .lr = 0.1f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-2f, .weight_decay = 0.1f },
    { .lr = 0.02f, .beta1 = 0.8f, .beta2 = 0.999f, .eps = 1e-8f, .weight_decay = 0.01f,
      .m_steps = 6, .v_steps = 2.5 },
    { .lr = 1.0f, .beta1 = 0.0f, .beta2 = 0.9999f, .eps = 1e-8f, .m_steps = 0, .v_steps = 1 },
    { .lr = 0.3f, .beta1 = 0.9995f, .beta2 = 0.999f, .eps = 1e-3f, .weight_decay = 0.02f,
      .m_steps = 1499, .v_steps = 2999 },
    { .lr = 0.0f, .beta1 = 0.7f, .beta2 = 0.5f, .eps = 1e-4f, .weight_decay = 0.5f, .m_steps = 2 },
    { .lr = 0.5f, .beta1 = 0.99f, .beta2 = 0.98f, .eps = 1e-6f, .weight_decay = 0.3f,
      .m_steps = 11, .v_steps = 30 },
    { .lr = 0.05f, .beta1 = 0.6f, .beta2 = 0.9f, .eps = 0.1f, .weight_decay = 0.04f,
      .m_steps = 150, .v_steps = 99.5 },
    { .lr = 1.0f, .beta1 = 0.9f, .beta2 = 0.99999f, .eps = 1e-15f, .weight_decay = 2.0f,
      .m_steps = 1e5, .v_steps = 1e5 },
    { .lr = 0.1f, .beta1 = 0.5f, .beta2 = 0.999999f, .eps = 1e-12f, .weight_decay = 0.1f,
      .m_steps = 1e6, .v_steps = 1e6 },
};
enum { N_RATES = sizeof RATES / sizeof *RATES };

// One update in double precision. *m and *v are those before it, then those after it.
static void adamw_exact(Exact p, Exact *moments, size_t i, double before, double m, double v,
                        double g, AdamW o) {
    Exact em = moments[0], ev = moments[1];
    term(em, i, o.beta1 * m);
    term(em, i, (1.0 - o.beta1) * g);
    term(ev, i, o.beta2 * v);
    term(ev, i, (1.0 - o.beta2) * g * g);
    double m_hat = 1.0 / (1.0 - pow(o.beta1, o.m_steps));
    double root = sqrt(ev.x[i] / (1.0 - pow(o.beta2, o.v_steps))) + o.eps;
    term(p, i, before);
    term_of(p, i, -o.lr * em.x[i] * m_hat / root, o.lr * em.size[i] * m_hat / root);
    term(p, i, -o.lr * (double)o.weight_decay * before);
}

static void expect_adamw(const Result *r, const Exact *exact, const double *before, const float *g,
                         const double *m, float g_scale, AdamW o) {
    Exact with_decay = exact_of(r[1].n), corrected = exact_of(r[1].n);
    for (size_t i = 0; i < r[1].n; i++) {
        double gi = (double)g[i]*g_scale + o.weight_decay*before[i];
        term_of(with_decay, i, o.beta1*m[i] + (1.0 - o.beta1)*gi,
                exact[1].size[i] + o.weight_decay*fabs(before[i]));
        term(corrected, i, exact[1].x[i] / (1.0 - pow(o.beta1, o.m_steps)));
    }
    if (o.weight_decay > 0.0f)
        expect_not(&r[1], false, with_decay, exact[1], "the decay is decoupled: it pulls at p, and "
                   "is not added to the gradient");
    expect_not(&r[1], false, corrected, exact[1], "m is stored without its bias correction, which "
               "is for the step alone");
    expect_written(&r[1], exact[1], "m = beta1 m + (1 - beta1) g, with g scaled by g_scale");
    expect_written(&r[2], exact[2], "v = beta2 v + (1 - beta2) g^2, with g scaled by g_scale");
    if (r[0].n > 8) expect_no_adamw_mistake(&r[0], before, exact + 1, g, g_scale, exact[0], o);
    expect_written(&r[0], exact[0], "p -= lr (m^ / (sqrt(v^) + eps) + weight_decay p), with m^ and "
                   "v^ after bias correction");
}

static void check_adamw_update(Trial *now) {
    static const float scales[] = { 0.5f, 1.0f, 0.013f, 1.7f };
    size_t n = now->s[0];
    AdamW o = RATES[now->s[2]];
    bool no_scale = now->style == PEAK || (now->style == NOT_FINITE && now->s[2] == NO_DECAY);
    float g_scale = now->style == LARGE ? 1e-10f : no_scale ? 0.0f : scales[now->number % 4];
    bool fresh = now->number == 0;
    Style style = now->style;
    now->style = NORMAL;
    Result r[3] = { holding("p", styled("p's", INDEX("i", n), 1, 0, now), INDEX("i", n)),
                    holding("m", normals("m's", INDEX("i", n), fresh ? 0 : 1, 0, now),
                            INDEX("i", n)),
                    holding("v", normals("v's", INDEX("i", n), 0, 0, now), INDEX("i", n)) };
    now->style = style;
    for (size_t i = 0; i < n; i++) {
        if (i % 4 == 3 && now->number) r[0].x[i] = 0.0f;
        if (style == SPARSE && i % 2) r[1].x[i] = 0.0f;    // where most gradients are 0
        if (!fresh && i % 3) r[2].x[i] = (float)pow(10.0, 2.0*rng_normal(&now->rng) - 3.0);
        if (style == NOT_FINITE && i == n / 2) r[1].x[i] = 0.0f, r[2].x[i] = NAN;
        if (style == NOT_FINITE && i == n / 2 + 1) r[1].x[i] = NAN;
        if (style == TINY) r[1].x[i] *= 1e-8f, r[2].x[i] *= 1e-16f;
    }
    double *before = doubles(n), *m = doubles(n);
    float *other = tensor("the parameters of another call", INDEX("ki", 6, n), 0.25f).x;
    for (int step = 1; step <= now->s[1]; step++) {
        float *g = styled("g", INDEX("i", n), style == TINY ? 0.1 : 1, 0, now);
        if (style == NOT_FINITE) g[n / 2] = 0.0f;                  // where m is 0 and v NaN
        Exact exact[3] = { exact_of(n), exact_of(n), exact_of(n) };
        if (fresh || step % 2) o.m_steps += 1, o.v_steps += 1;
        else o.beta1 *= 0.9f, o.beta2 *= 0.99f;            // as a schedule may
        for (size_t i = 0; i < n; i++) {
            before[i] = r[0].x[i], m[i] = r[1].x[i];
            adamw_exact(exact[0], exact + 1, i, before[i], m[i], r[2].x[i], (double)g[i]*g_scale,
                        o);
        }
        for (int k = 0; k < 3; k++) memcpy(r[k].before, r[k].x, n * sizeof(float));
        if (run == RUNS - 1)
            snprintf(situation, sizeof situation, " [n=%zu, called by several threads at once, "
                     "as model_update does, DAY=%d]", n, day);
        int others = run == RUNS - 1 ? 2 : 0;
        CALL(_Pragma("omp parallel for if(run == RUNS - 1)")
             for (int k = 0; k <= others; k++) {
                 float *at = k == 0 ? NULL : other + (size_t)(k - 1)*3*n;
                 adamw_update(at ? at : r[0].x, at ? at + n : r[1].x, at ? at + 2*n : r[2].x, g,
                              g_scale, o, n);
             });
        expect_adamw(r, exact, before, g, m, g_scale, o);
    }
}

// chunks, the most gradients of one
static const int NORM[][6] = {
    { 40, 1250, 0, 0, 0, NORMAL }, { 1, 1, 0, 0, 0, NORMAL },
    { 1100, 3, 0, 0, 0, ZEROS }, { 65, 9, 0, 0, 0, NORMAL }, { 7, 31, 0, 0, 0, NOT_FINITE },
    { 6, 31, 0, 0, 0, NOT_FINITE }, { 9, 5, 0, 0, 0, TINY }, { 12, 8, 0, 0, 0, LARGE },
    { 21, 5, 0, 0, 0, PEAK }, { 9, 5, 0, 0, 0, NOT_FINITE }, { 3, 100, 0, 0, 0, SPARSE },
    { 2, 50, 0, 0, 0, NORMAL }, { 33, 9, 0, 0, 0, NORMAL }, { 33, 9, 0, 0, 0, NORMAL },
};

// Lays chunks out in mixed order, with other gradients between them. One of 16 does not count: of
// the last two of NORM, which are of one size, not the same. Returns how many gradients there are.
static size_t norm_chunks(Chunk *chunks, Trial *now) {
    int n = now->s[0];
    size_t at = 3;
    for (int i = 0; i < n; i++) {
        int count = now->number ? 1 + (int)rng_below(&now->rng, now->s[1]) : now->s[1];
        if (i == 0) count = now->s[1];
        chunks[i] = (Chunk){ .count = count, .decays = i % 3 == 0,
                             .counts = (i + now->number / 13) % 16 != 15 };
    }
    for (int k = 0, step = n % 7 ? 7 : 11; k < n; k++) {       // step: no divisor of n
        Chunk *chunk = &chunks[n % step ? k * step % n : k];
        chunk->grad = at;
        at += chunk->count + k % 3;
    }
    for (int i = 0; i < n; i++)                                // other buffers, other places
        chunks[i].param = at - chunks[i].count - chunks[i].grad, chunks[i].moment = i;
    return at + 2;
}

static double norm_of(const float *grads, const Chunk *chunks, int n, bool counts) {
    double sum = 0.0;
    for (int i = 0; i < n; i++)
        for (int j = 0; chunks[i].counts == counts && j < chunks[i].count; j++)
            sum += (double)grads[chunks[i].grad + j] * grads[chunks[i].grad + j];
    return sum;
}

static void expect_norm(double got, double sum, double not_ours, double stale) {
    static double first;
    if (run == 0) first = got;
    double error = fabs(got - sum) / (sum > 0.0 ? sum : 1.0);
    if (!isfinite(sum) && !isfinite(got)) return;
    if (!isfinite(sum))
        wrong("the sum is %g, but a gradient is not finite: train_step must see that in the norm",
              got);
    if (error <= 1e-10 && got != first)
        wrong("the sum is %.17g with 1 thread and %.17g with %d: the bits must be the same for any "
              "number of threads, so add the chunks' sums in order", first, got, threads);
    if (error <= 1e-10) return;
    if (sum == 0.0) wrong("the sum is %g, and all gradients are 0", got);
    if (got == 0.0)
        wrong("the sum is 0, expected %.3g: return the sum of the squares of all chunks' "
              "gradients, of small ones too, and also where some are 0", sum);
    if (fabs(got - sqrt(sum)) < 1e-6 * sqrt(sum))
        wrong("the sum is %.6g: this is the norm; return its square, the root comes later", got);
    if (not_ours > 0.0 && fabs(got - sum - not_ours) < 1e-6 * sum)
        wrong("the sum includes chunks whose `counts` is false");
    if (stale != 0.0 && fabs(got - sum - stale) < 1e-6 * fabs(stale))
        wrong("the sum is %.1f, expected %.1f: what norm_partials contained before is added", got,
              sum);
    if (isnan(got) && isnan(not_ours))
        wrong("the sum is nan: a chunk whose `counts` is false has it; leave that chunk out");
    if (run > 0 && isnan(got))
        wrong("the sum is nan: norm_partials contains anything before; write each of its elements "
              "with =");
    if (error < 1e-6 || !isfinite(got))
        wrong("the sum is %g: relative error %.1e, expected below 1e-10; sum in double, and square "
              "in double", got, error);
    wrong("the sum is %.6g, expected %.6g; chunk i has `count` gradients from grads + its `grad`, "
          "and adds to the sum if its `counts` is true", got, sum);
}

// PEAK: all gradients are 0.
static void check_global_norm(Trial *now) {
    static Model m;
    int n = now->s[0];
    Chunk *chunks = array_new("chunks", INDEX("i", n), sizeof *chunks, INPUT);
    double *partials = array_new("norm_partials", INDEX("i", n), sizeof *partials, OUTPUT);
    size_t N = norm_chunks(chunks, now), bad = chunks[now->number % 2 ? 0 : n/2].grad;
    double scale = now->style == TINY ? 1e-18 : now->style == LARGE ? 1e9 : now->style != PEAK;
    float *grads = normals("grads", INDEX("i", N), scale, 0, now);
    if (now->style == NORMAL) grads[0] = grads[chunks[0].grad] = 1.0f;     // no key to a sum
    bool alone = now->style == NOT_FINITE && n % 3 == 0;
    for (size_t i = 0; i < N; i++)
        if (alone || (now->style == SPARSE && rng_below(&now->rng, 40))) grads[i] = 0.0f;
    if (now->style == NOT_FINITE) grads[bad] = n % 2 ? NAN : -INFINITY;
    for (int i = 0; i < n; i++) partials[i] = run ? NAN : 7.0;
    for (size_t i = 0; now->style == ZEROS && i < N; i += 2) grads[i] = 1e-12f;
    if (now->style == ZEROS && n > 15) grads[chunks[15].grad] = NAN;         // does not count
    m.zero.grads = grads, m.zero.chunks = chunks, m.zero.n_chunks = n, m.zero.n_grads = N;
    m.zero.norm_partials = partials;
    int uncounted = 0;
    for (int i = 0; i < n; i++) uncounted += !chunks[i].counts;
    double sum = norm_of(grads, chunks, n, true), other = norm_of(grads, chunks, n, false), got;
    CALL(got = gradients_squares(&m));
    expect_norm(got, sum, other, isnan(partials[0]) || partials[0] > 7.0 * n ? 7.0 * uncounted
                : 7.0 * n);
}

// ---- sampling: V, which sampler, what is added to the logits ----

static const struct { Sampler s; const char *what, *hint; } SAMPLERS[] = {
    { { .top_p = 1.0f }, "temperature 0", "it takes the likeliest, without a draw" },
    { { .temperature = 1.0f, .top_p = 1.0f }, "temperature 1",
      "token v has the part p_v of the line from 0 to the sum of all p: walk along it" },
    { { .temperature = 0.5f, .top_p = 1.0f }, "temperature 0.5",
      "divide the logits by the temperature" },
    { { .temperature = 1.0f, .top_k = 2, .top_p = 1.0f }, "top_k 2",
      "keep the k likeliest, and divide by the sum of these" },
    { { .temperature = 1.0f, .top_k = 9, .top_p = 1.0f }, "top_k 9",
      "a top_k above V keeps all V tokens" },
    { { .temperature = 1.0f, .top_p = 0.7f }, "top_p 0.7",
      "keep the fewest likeliest tokens that have 0.7 of the probability" },
    { { .temperature = 1.0f, .top_k = 3, .top_p = 0.7f }, "top_k 3 and top_p 0.7",
      "top_p is a part of the probability of all tokens, not of the top_k" },
    { { .temperature = 1.0f, .top_k = 4, .top_p = 0.3f }, "top_k 4 and top_p 0.3",
      "the likeliest token is always kept" },
    { { .temperature = 1.5f, .top_k = 2, .top_p = 0.9f }, "temperature 1.5, top_k 2 and top_p 0.9",
      "both limits hold, and the probabilities are those at this temperature" },
    { { .temperature = 0.6f, .top_p = 0.5f }, "temperature 0.6 and top_p 0.5",
      "the probabilities that top_p adds are those at this temperature" },
    { { .temperature = 0.004f, .top_p = 1.0f }, "temperature 0.004",
      "subtract the largest logit before the division: e^(logit / 0.004) and p^(1/0.004) overflow "
      "or are 0" },
    { { .temperature = 1.0f, .top_p = 1e-12f }, "top_p 1e-12",
      "the likeliest token is always kept" },
    { { .temperature = 0.3f, .top_p = 0.9991f }, "temperature 0.3 and top_p 0.9991",
      "top_p below 1 cuts" },
    { { .temperature = 1.0f, .top_p = 0.5f }, "top_p 0.5",
      "the fewest that have top_p: not one more where they have it exactly" },
    { { .temperature = 1e-18f, .top_p = 1.0f }, "temperature 1e-18",
      "only 0 means the likeliest; subtract the largest logit, then divide by the temperature "
      "itself" },
    { { .temperature = 1.0f, .top_k = 299, .top_p = 1.0f }, "top_k 299",
      "keep the k likeliest, and divide by the sum of these" },
    { { .temperature = 1.0f, .top_p = 0.99995f }, "top_p 0.99995", "top_p below 1 cuts" },
    { { .temperature = 1e4f, .top_p = 1.0f }, "temperature 1e4",
      "divide the logits by the temperature" },
    { { .temperature = 1.0f }, "top_p 0", "the likeliest token is always kept" },
    { { .temperature = 1.0f, .top_k = 5500, .top_p = 1.0f }, "top_k 5500",
      "keep the k likeliest, and divide by the sum of these" },
    { { .temperature = 1.0f, .top_k = 1, .top_p = 1.0f }, "top_k 1",
      "keep the k likeliest, and divide by the sum of these" },
    { { .temperature = 1.0f, .top_p = 0.9f }, "top_p 0.9",
      "keep the fewest likeliest tokens that have 0.9 of the probability" },
    { { .temperature = 1.0f, .top_p = 0.9999f }, "top_p 0.9999", "top_p below 1 cuts" },
};
enum { FAR = 1, MASKED, LAST, TIED, LOWEST, RARE, PAIR, EQUAL, HALF };

static const int SAMPLING[][6] = {         // the last two: added to the logits, and what is special
    { 5, 0, 0, 300, 0, NORMAL }, { 5, 1, 0, 300, 0, NORMAL }, { 5, 2, 0, 300, 0, NORMAL },
    { 5, 3, 0, 300, 0, NORMAL }, { 5, 4, 0, 300, 0, NORMAL }, { 5, 5, 0, 300, 0, NORMAL },
    { 5, 6, 0, 300, 0, NORMAL }, { 5, 7, 0, 300, 0, NORMAL }, { 5, 0, 0, -150, LAST, NORMAL },
    { 5, 1, 0, -150, LAST, NORMAL }, { 5, 10, 0, -3, 0, TINY }, { 5, 0, 0, -3, LAST, TINY },
    { 7, 3, 0, 0, TIED, NORMAL }, { 4, 13, 0, 0, TIED, NORMAL }, { 6, 8, 0, -150, FAR, NORMAL },
    { 6, 1, 0, 0, FAR, NORMAL }, { 6, 5, 0, 0, MASKED, NORMAL }, { 1, 1, 0, -9, 0, NORMAL },
    { 1, 0, 0, -9, 0, NORMAL }, { 300, 1, 0, -150, 0, PEAK }, { 1100, 2, 0, -150, 0, PEAK },
    { 300, 9, 0, 50, 0, NORMAL }, { 1100, 5, 0, 50, 0, PEAK }, { 9, 9, 0, 0, 0, NORMAL },
    { 17, 8, 0, 0, 0, NORMAL }, { 9, 11, 0, 0, 0, NORMAL }, { 40, 12, 0, 0, 0, NORMAL },
    { 70000, 1, 0, -150, 0, PEAK }, { 70000, 8, 0, -150, 0, PEAK },
    { 2, 6, 0, 0, 0, NORMAL }, { 2, 4, 0, 0, LAST, NORMAL }, { 4, 14, 0, 0, 0, TINY },
    { 5, 10, 0, 3000, 0, TINY }, { 9, 0, 0, 0, LOWEST, NORMAL }, { 9, 1, 0, 0, LOWEST, NORMAL },
    { 70000, 1, 0, 0, RARE, NORMAL }, { 6, 1, 0, 0, MASKED, NORMAL }, { 300, 15, 0, 0, 0, LARGE },
    { 2, 16, 0, 0, PAIR, NORMAL }, { 5, 17, 0, 0, 0, TINY }, { 5, 18, 0, 0, 0, NORMAL },
    { 6000, 19, 0, 0, 0, TINY }, { 6000, 21, 0, 0, 0, TINY }, { 2, 20, 0, 0, 0, NORMAL },
    { 70000, 22, 0, 0, RARE, NORMAL },
    { 70000, 11, 0, 0, 0, NORMAL }, { 70000, 1, 0, 0, EQUAL, NORMAL },
    { 70000, 1, 0, 0, HALF, NORMAL },
};

// TINY: logits differ by about the temperature. PEAK: one token in many rare ones. LARGE: to the p
// of token 0 each other one adds less than the last bit of a double. FAR: token 0 is 100 below
// token 1. MASKED: token 0 has -infinity. PAIR: token 0 has p = 2e-5. LAST: the last token is the
// likeliest. TIED: tokens 1 ... 4 are equal (with V 4: all). HALF: the first half is rare.
static void sampling_logits(float *x, int V, Trial *now) {
    static const double weight[] = { 0.1, 0.4, 0.05, 0.25, 0.2 };
    for (int v = 0; v < V; v++) {
        double logit = V == 5 ? log(weight[v]) : rng_normal(&now->rng);
        if (now->style == TINY)
            logit *= now->s[1] == 17 ? 1e4 : now->s[1] == 14 ? 1e-18 : 0.004;
        if (now->style == PEAK) logit *= 0.3;
        if (now->style == LARGE) logit *= 0.01;
        x[v] = (float)(logit + now->s[3]);
    }
    if (now->style == PEAK) x[V > 2000 ? V - 1 : V / 3] += V > 2000 ? 14.3f : 6.0f;
    if (now->style == LARGE) x[0] += 36.3f;
    if (now->style == LARGE) x[V - 1] -= 100.0f;
    for (int v = 0; now->s[4] == LOWEST && v < V; v++) x[v] = v == 3 ? -5e8f : -1e9f;
    for (int v = 0; now->s[4] == RARE && v < V; v++)
        x[v] = v == 0 ? 0.0f : now->s[1] == 22 ? -18.0f : -21.0f;
    for (int v = 0; now->s[4] >= EQUAL && v < V; v++)
        x[v] = now->s[4] == HALF && v < V / 2 ? -7.0131f : 0.0f;
    if (now->s[4] == PAIR) x[0] = x[1] - 10.8f;
    if (now->s[4] == FAR) x[0] = x[1] - 100.0f;
    if (now->s[4] == MASKED) x[0] = -INFINITY;
    if (now->s[4] == LAST) x[V - 1] = x[0] > x[1 % V] ? x[0] + 0.004f : x[1 % V] + 0.004f;
    for (int v = V == 4 ? 0 : 1; now->s[4] == TIED && v < 5 && v < V; v++) x[v] = 1.0f;
}

static double *sampling_p;                         // for by_p
static int by_p(const void *a, const void *b) {
    int i = *(const int *)a, j = *(const int *)b;
    return sampling_p[i] != sampling_p[j] ? (sampling_p[i] < sampling_p[j] ? 1 : -1) : i - j;
}

// The table's; in drawn trials any.
static Sampler sampler_of(Trial *now, const char **what, const char **hint) {
    static char text[80];
    size_t which = now->s[1];
    *what = text, *hint = "keep what both limits keep, and divide by the sum of these";
    if (now->number < (int)(sizeof SAMPLING / sizeof *SAMPLING)) {
        *what = SAMPLERS[which].what, *hint = SAMPLERS[which].hint;
        return SAMPLERS[which].s;
    }
    Sampler s = { .temperature = (float)(0.2 + 1.5*rng_uniform(&now->rng)), .top_p = 1.0f };
    if (which % 3) s.top_p = (float)rng_uniform(&now->rng);
    if (which % 4) s.top_k = (int)rng_below(&now->rng, now->s[0] + 2);
    snprintf(text, sizeof text, "temperature %.2f, top_k %d and top_p %.3f", s.temperature, s.top_k,
             s.top_p);
    return s;
}

// What each token's probability is to be: p (V). Returns how many tokens are kept.
static int sampling_exact(double *p, const float *x, int V, Sampler *s) {
    double sum = 0.0, hi = -INFINITY, kept = 0.0;
    int *order = (int *)doubles(V), n = s->top_k > 0 && s->top_k < V ? s->top_k : V, k = 0;
    for (int v = 0; v < V; v++) hi = fmax(hi, x[v]), order[v] = v;
    for (int v = 0; v < V; v++) {
        p[v] = s->temperature > 0.0f ? exp((x[v] - hi) / s->temperature) : x[v] == hi;
        sum += p[v];
    }
    sampling_p = p;
    qsort(order, V, sizeof *order, by_p);
    if (s->temperature == 0.0f) n = 1;
    while (k < n && (k == 0 || s->top_p >= 1.0f || kept < (s->top_p - 1e-12) * sum))
        kept += p[order[k++]];
    for (int i = 0; i < V; i++) p[order[i]] = i < k ? p[order[i]] / kept : 0.0;
    return k;
}

// The state from which the next rng_uniform is u: mix64 backwards.
static Rng rng_before(double u) {
    uint64_t x = (uint64_t)(u * 0x1p53) << 11;
    x = (x ^ x >> 31 ^ x >> 62) * 0x319642B2D24D8EC3ull;
    x = (x ^ x >> 27 ^ x >> 54) * 0x96DE1B173F119089ull;
    x ^= x >> 30 ^ x >> 60;
    return (Rng){ x - 0x9E3779B97F4A7C15ull };
}

static void expect_one_draw(int numbers, int expected, const char *what) {
    if (numbers == expected) return;
    if (expected == 0) wrong("%s: a number is taken from rng; nothing is drawn here", what);
    wrong("%s: %s is taken from rng: one rng_uniform(rng) decides, so that a seed gives one text, "
          "also where one token is left", what, numbers ? "more than one number" : "no number");
}

// Draws with each of the numbers 0.5/draws, 1.5/draws, ... once, so that a token comes as often as
// its probability says.
static int count_draws(int *drawn, int draws, Sampler s, const float *x, int V, const char *what) {
    Sampler before = s;
    size_t owned = 0;
    int numbers = 0;
    for (int n = 0; n < draws; n++) {
        Rng rng = rng_before((n + 0.5) / draws), old = rng, one = rng;
        int id = -1;
        rng_u64(&one);
        CALL_ONCE(id = sample_token(&s, x, V, &rng));
        if (id < 0 || id >= V) wrong("%s: %d is drawn; tokens are 0 ... V-1", what, id);
        if (memcmp(&s, &before, sizeof s) != 0) wrong("%s: *s is changed, an input", what);
        if (n == 0) owned = owns_bytes();
        if (owns_bytes() > owned)
            wrong("%s: each call leaves %zu bytes allocated: free what the function allocates",
                  what, owns_bytes() - owned);
        drawn[id]++;
        numbers = rng.state == old.state ? 0 : 1 + (rng.state != one.state);
    }
    return numbers;
}

// Near 0 and 1, where sums of floats round.
static void expect_no_fall(Sampler s, const float *x, int V, const double *p, const char *what) {
    static const double edges[] = { 0.0, 0x1p-53, 1.0 - 0x1p-15, 1.0 - 0x1p-25, 1.0 - 0x1p-53 };
    for (int k = 0; k < 5; k++) {
        Rng rng = rng_before(edges[k]);
        int id;
        CALL_ONCE(id = sample_token(&s, x, V, &rng));
        if (k > 1 && p[0] < fmin(0.99999, edges[k] - 1e-6) && p[0] > 0.99 && id == 0)
            wrong("%s: token 0 is drawn where rng_uniform is %.17g, and its probability is %.6f: "
                  "%s", what, edges[k], p[0], k < 4 ? "the others are rare, but many" :
                  "where rounding leads the walk beyond the last candidate, that one is drawn");
        if (k > 1 && s.top_k == 0 && s.top_p == 1.0f) continue;          // the last one is drawn
        if (id < 0 || id >= V || p[id] == 0.0)
            wrong("%s: token %d is drawn where rng_uniform is %.17g; its probability is 0. %s",
                  what, id, edges[k], k < 2
                  ? "It is cut, or take the token at which the number becomes negative" : "Where "
                  "rounding leads the walk beyond the last candidate, that one is drawn");
    }
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void expect_draws(const int *drawn, int draws, const double *p, int V, Sampler s,
                         const char *what, const char *hint) {
    double block = 0.0;                // of a tenth of all tokens: draws less those expected
    double rare = 0.0, mass = 0.0;     // the same, of the rarest fifth of those kept
    double *sorted = doubles(V);
    int kept = 0;
    for (int v = 0; v < V; v++) if (p[v] > 0.0) sorted[kept++] = p[v];
    qsort(sorted, kept, sizeof *sorted, by_size);
    for (int v = 0; v < V; v++)
        if (p[v] > 0.0 && p[v] <= sorted[kept / 5]) rare += drawn[v], mass += p[v];
    rare -= draws * mass;
    if (V > 100 && fabs(rare) > 3.0 + 5.0*sqrt(draws * mass))
        wrong("%s: the rarest fifth of the tokens comes %.0f times %s than expected in %d draws; "
              "%s", what, fabs(rare), rare < 0.0 ? "less" : "more", draws, hint);
    for (int v = 0, from = 0; v < V; v++) {
        block += drawn[v] - draws * p[v];
        if (v + 1 < V && v - from < V / 10) continue;
        if (V > 100 && fabs(block) > 3.0 + sqrt(v + 1.0 - from))
            wrong("%s: tokens %d ... %d come %.0f times %s than expected in %d draws; %s", what,
                  from, v, fabs(block), block < 0.0 ? "less" : "more", draws, hint);
        from = v + 1, block = 0.0;
    }
    for (int v = 0; v < V; v++) {
        double share = (double)drawn[v] / draws, slack = 2.01 / draws + 1e-4 * p[v];
        if (fabs(share - p[v]) <= (p[v] == 0.0 ? 0.0 : slack)) continue;
        if (s.temperature == 0.0f && p[v] == 0.0)
            wrong("%s: token %d is drawn; it takes the likeliest, and divides by no temperature",
                  what, v);
        if (drawn[v] == draws && s.top_k == 0 && s.top_p == 1.0f && p[v] < 0.9 &&
            s.temperature > 1e-3f)
            wrong("%s: token %d is drawn each time, expected in %.3f of the draws; does exp "
                  "overflow, is the largest of all logits subtracted, is a new rng_uniform used, "
                  "and does top_k 0 keep all?", what, v, p[v]);
        if (s.top_k + (s.top_p < 1.0f) && V == 5 && v == 0 &&
            fabs(share - p[1]) <= 2.0 / draws && p[0] == 0.0)
            wrong("%s: token 0 is drawn as often as token 1 should be; candidates are sorted, so "
                  "return the id of the one that is drawn, not its place", what);
        wrong("%s: token %d is drawn in %.3f of the draws, expected %.3f; %s", what, v, share, p[v],
              hint);
    }
}

// 200 numbers as far apart as equal tokens are: each draws another one, but for rounding. So do the
// last 20 before 1, also where all that is left is rare.
static void expect_fine_steps(Sampler s, const float *x, int V, const char *what) {
    int different = 0, last_ones = 0, last = -1;
    for (int k = 0; k < 220; k++) {
        Rng rng = rng_before((k < 200 ? V / 3 + k + 0.5 : V - 220 + k + 0.5) / V);
        int id;
        CALL_ONCE(id = sample_token(&s, x, V, &rng));
        *(k < 200 ? &different : &last_ones) += id != last;
        last = id;
    }
    if (last_ones < 5)
        wrong("%s: token %d is drawn wherever rng_uniform is above %.5f: add in double, and walk "
              "in double; of many tokens each may be rare", what, last, 1.0 - 20.0 / V);
    if (x[0] == x[V - 1] && different < 195)
        wrong("%s: of %d equal logits only %d tokens are drawn in 200 draws that differ by 1/V; "
              "does the walk have all digits of rng_uniform?", what, V, different);
}

static void check_sample_token(Trial *now) {
    int V = now->s[0], draws = V > 6000 ? 100 : V > 100 ? 250 : 1000;
    const char *what, *hint;
    Sampler s = sampler_of(now, &what, &hint);
    if (V > 2000 && run > 0) return;               // slow
    if (V > 6000 && (s.top_k || s.top_p < 1.0f || now->s[4] >= EQUAL)) draws = 5;
    float *x = array_new("logits", INDEX("v", V), sizeof *x, INPUT);
    sampling_logits(x, V, now);
    s.candidates = array_new("candidates", INDEX("k", V), sizeof *s.candidates, SCRATCH);
    for (int v = 0; v < V; v++) s.candidates[v] = (Candidate){ .p = NAN, .id = -1 };
    double *p = doubles(V);
    int *drawn = (int *)doubles(V);
    if (s.temperature == 0.0f) draws = 3;
    snprintf(situation, sizeof situation, " [V=%d, logits near %d]", V,
             now->s[4] == LOWEST ? -1000000000 : now->s[3]);
    for (int call = 0; call < 3; call++) {
        sampling_exact(p, x, V, &s);
        for (int v = 0; v < V; v++) drawn[v] = 0;
        int numbers = count_draws(drawn, draws, s, x, V, what);
        expect_draws(drawn, draws, p, V, s, what, hint);
        expect_one_draw(numbers, s.temperature > 0.0f, what);
        if (now->s[4] >= EQUAL && call == 0) expect_fine_steps(s, x, V, what);
        expect_no_fall(s, x, V, p, what);
        float hi = x[0];
        for (int v = 0; v < V; v++) hi = x[v] > hi ? x[v] : hi;
        if (call == 1) x[V / 2] = hi + fmaxf(s.temperature, 1e-6f*fabsf(hi));    // one other logit
        for (int v = 0; call == 0 && v <= (V - 1) / 2; v++) {    // other logits in the same memory
            float old = x[v];
            x[v] = hi - 1.25f*(hi - x[V - 1 - v]);
            if (v != V - 1 - v) x[V - 1 - v] = hi - 1.25f*(hi - old);
        }
        hint = "these logits lie where others lay in an earlier call: keep nothing of them";
        if (draws > 50) draws = 50;
    }
}

// ---- a whole model: these call the other layers ----

// For up to B sequences.
static void small_model(Model *m, int B) {
    static Machine machine;
    ModelSpec spec = { .c = SMALL, .B = B, .T = MT, .use = TRAIN };
    Rng rng = rng_make(11, 0);
    model_init(m, &spec, &machine);
    for (size_t i = 0; i < gpt2_n_params(&SMALL); i++)
        m->zero.masters[i] = (float)(0.3 * rng_normal(&rng));
}

static void expect_logits(const Model *m, const float *last, const float *x) {
    int V = m->c.V, C = m->c.C;
    Exact exact = exact_of((size_t)V);
    if (!x) wrong("the logits that model_extend returns are NULL: return model_logits(m, T - 1)");
    Result logits = written("logits that model_extend returns", INDEX("v", (size_t)V));
    memcpy(logits.x, x, (size_t)V * sizeof *x);
    for (int i = 0; i < V*C; i++) term(exact, i / C, (double)last[i % C] * m->w.wte[i]);
    expect_written(&logits, exact, "they are those of the last row, T - 1");
}

// Where the calls of model_extend end, then from where the sequence is continued otherwise. The
// last row stands for cache_of_two.
static const int CACHE[][6] = {
    { 8, 0, 0, 0, 0, NORMAL }, { 3, 4, 8, 0, 0, NORMAL }, { 1, 2, 8, 3, 0, NORMAL },
    { 7, 8, 0, 7, 0, NORMAL }, { 5, 8, 0, 1, 0, NORMAL }, { 0, 0, 0, 0, 0, NORMAL },
};

// The caller's tokens: read-only, and no more than T. `again`: no other tokens before.
static bool again;
static const float *extend(Model *m, const int *inputs, int T, int past) {
    int *tokens = array_new("tokens", INDEX("t", (size_t)T), sizeof *tokens, INPUT);
    const float *logits = NULL;
    memcpy(tokens, inputs, (size_t)T * sizeof *tokens);
    snprintf(situation, sizeof situation, " [L=%d C=%d V=%d past=%d T=%d DAY=%d]", m->c.L, m->c.C,
             m->c.V, past, T, day);
    for (int t = past; t < T; t++) tokens[t] = (inputs[t] + 1) % m->c.V;
    if (!again && run != 1)
        CALL_ONCE(model_extend(m, tokens, T, past));     // other tokens first, in the same memory
    memcpy(tokens, inputs, (size_t)T * sizeof *tokens);
    tokens[(past + T) / 2] = (inputs[(past + T) / 2] + 1) % m->c.V;
    if (!again && run > 0) CALL_ONCE(model_extend(m, tokens, T, past));      // one other token
    tokens[(past + T) / 2] = inputs[(past + T) / 2];
    size_t owned = owns_bytes();
    CALL_ONCE(logits = model_extend(m, tokens, T, past));
    if (owns_bytes() > owned)
        wrong("each call leaves %zu bytes allocated: free what the function allocates",
              owns_bytes() - owned);
    return logits;
}

// A model, another one that computes all rows with model_forward, and what the last call returned.
typedef struct { Model m, whole; const float *logits; float *copy; } Pair;

// A tensor that a forward pass keeps. A call may write elements from ... to-1; those of the new
// rows must be as in `right`, unless that is NULL.
typedef struct { const char *name; int l; float *x, *right; size_t size, from, to; } KeptTensor;
static KeptTensor kept[1024];
static size_t n_kept, kept_rows;

static void keep(const char *name, int l, float *x, float *right, size_t size, size_t from,
                 size_t to) {
    if (n_kept == sizeof kept / sizeof *kept) die("check: the list of tensors is too short");
    kept[n_kept++] = (KeptTensor){ name, l, x, right, size, from, to };
}

// Nobody reads the means, rstds: they may lie in any of the T rows.
#define KEEP(name, width) keep(#name, l, a->name, b->name, N*(width), past*(width), T*(width))
#define KEEP_ANY(name) keep(#name, l, a->name, NULL, N, 0, T)

static void keep_all(Pair *p, size_t past, size_t T) {
    Model *a = &p->m, *b = &p->whole;
    size_t N = (size_t)a->spec.B * a->spec.T, C = (size_t)a->c.C, NH = (size_t)a->c.NH;
    int l = -1;
    n_kept = 0, kept_rows = N;
    KEEP(x_in, C);
    for (l = 0; l < p->m.c.L; l++) {
        BlockActs *a = &p->m.acts[l], *b = &p->whole.acts[l];
        KEEP(ln1, C), KEEP(qkv, 3*C), KEEP(att, C);
        keep("att_lse", l, a->att_lse, b->att_lse, N*NH, 0, NH*T);
        KEEP(x_mid, C), KEEP(ln2, C), KEEP(fc, 4*C);
        KEEP(gelu, 4*C), KEEP(x_out, C);
        KEEP_ANY(ln1_mean), KEEP_ANY(ln1_rstd), KEEP_ANY(ln2_mean), KEEP_ANY(ln2_rstd);
    }
    l = -1;
    KEEP(lnf, C), KEEP_ANY(lnf_mean), KEEP_ANY(lnf_rstd);
    keep("loss", l, a->loss, NULL, N, 0, 0), keep("lse", l, a->lse, NULL, N, 0, 0);
}

static const char *kept_at(const KeptTensor *k, size_t i) {
    static char text[100];
    size_t width = k->size / kept_rows;
    char block[20] = "";
    if (k->l >= 0) snprintf(block, sizeof block, "h%d.", k->l);
    snprintf(text, sizeof text, "%s%s[row=%zu][column=%zu]", block, k->name, i / width, i % width);
    return text;
}

// Nothing between x_in and lse has changed but elements that the call may write.
static void expect_kept(float *begin, float *before, size_t n, size_t T) {
    for (size_t k = 0; k < n_kept; k++)
        memcpy(before + (kept[k].x - begin) + kept[k].from, kept[k].x + kept[k].from,
               (kept[k].to - kept[k].from) * sizeof *before);
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&begin[i], &before[i], sizeof *begin) == 0) continue;
        for (size_t k = 0; k < n_kept; k++) {
            ptrdiff_t at = begin + i - kept[k].x;
            if (at < 0 || at >= (ptrdiff_t)kept[k].size) continue;
            if (at < (ptrdiff_t)kept[k].from)
                wrong("%s is written again; its row's key and value are in the cache, so compute "
                      "rows past ... T-1 only, each in its place", kept_at(&kept[k], (size_t)at));
            wrong("%s is written, and there are %zu tokens; T - past rows are new, and the first "
                  "of them is row `past`", kept_at(&kept[k], (size_t)at), T);
        }
        wrong("memory that belongs to no row 0 ... T-1 is written, behind a tensor's end");
    }
}

static void expect_new_rows(size_t past, size_t T) {
    for (size_t k = 0; k < n_kept; k++) {
        double squares = 0.0;
        for (size_t i = kept[k].from; kept[k].right && i < kept[k].to; i++)
            if (isfinite(kept[k].right[i]))
                squares += (double)kept[k].right[i] * kept[k].right[i] / (double)(kept[k].to);
        for (size_t i = kept[k].from; kept[k].right && i < kept[k].to; i++) {
            bool lse = strcmp(kept[k].name, "att_lse") == 0;
            double x = kept[k].x[i], right = kept[k].right[i];
            if (lse && i % T < past) continue;
            if (!is_close(x, right, 20.0 * (sqrt(squares) + fabs(right))))
                wrong("%s is %g, expected %g%s; the new rows are as in model_forward with all "
                      "rows: %s", kept_at(&kept[k], i), x, right,
                      x == OUTSIDE ? " (it is not written)" : lse ?
                      " (att_lse has T = past + rows numbers a head)" : "", k == 0
                      ? "row t of x_in is wte's row of this call's token t, and wpe's row t" : past
                      ? "their tokens, positions and tensors begin at row `past`, and "
                      "block_forward gets T - past rows"
                      : "embedding, every block and the norm, for these tokens; an earlier call "
                      "had others");
        }
    }
}

// One call, on memory where only the keys and values of the past are what they were.
static void extend_pair(Pair *p, const int *tokens, int T, int past) {
    Model *m = &p->m, same;
    size_t n = (size_t)(m->lse + m->spec.B*m->spec.T - m->x_in);
    size_t kv = (size_t)past * 3 * (size_t)m->c.C;
    float *before = (float *)doubles(n / 2 + 1);
    model_forward(&p->whole, tokens, 1, T);
    for (size_t i = 0; i < n; i++) before[i] = OUTSIDE;
    for (int l = 0; l < m->c.L; l++)
        memcpy(before + (m->acts[l].qkv - m->x_in), m->acts[l].qkv, kv * sizeof *before);
    memcpy(m->x_in, before, n * sizeof *before);
    memcpy(&same, m, sizeof same);
    p->logits = extend(m, tokens, T, past);
    keep_all(p, (size_t)past, (size_t)T);
    if (memcmp(m->zero.masters, p->whole.zero.masters, gpt2_n_params(&m->c) * sizeof(float)) != 0)
        wrong("the weights are changed, but they are an input");
    if (memcmp(&same, m, sizeof same) != 0) wrong("a field of the Model is changed");
    expect_kept(m->x_in, before, n, (size_t)T);
    expect_new_rows((size_t)past, (size_t)T);
    expect_logits(m, p->whole.lnf + (size_t)(T - 1) * (size_t)m->c.C, p->logits);
    memcpy(p->copy, p->logits, (size_t)m->c.V * sizeof *p->copy);
}

static void expect_same_logits(const Pair *p) {
    if (memcmp(p->copy, p->logits, (size_t)p->m.c.V * sizeof *p->copy) != 0)
        wrong("a call with another model changes the logits that an earlier call returned: return "
              "model_logits(m, T - 1), which lie in the model's own memory");
}

static void pair_init(Pair *p, Config c, int B, Rng *rng) {
    static Machine machine;
    ModelSpec spec = { .c = c, .B = B, .T = c.P, .use = INFER };
    model_init(&p->m, &spec, &machine);
    model_init(&p->whole, &spec, &machine);
    for (size_t i = 0; i < gpt2_n_params(&c); i++)
        p->m.zero.masters[i] = p->whole.zero.masters[i] = (float)(0.3 * rng_normal(rng));
    p->copy = (float *)doubles((size_t)c.V);
}

// Two models in turn, with more blocks, rows and tokens than a fixed array may hold.
static void cache_of_two(Trial *now) {
    enum { T = 32, ROWS = 1100 };
    static Pair a, b;
    int tokens[T], others[ROWS];
    pair_init(&a, (Config){ .L = 64, .NH = 3, .C = 6, .V = 1100, .P = T }, 1, &now->rng);
    pair_init(&b, (Config){ .L = 2, .NH = 1, .C = 2, .V = 70000, .P = ROWS }, 1,
              &now->rng);
    for (int i = 0; i < T; i++) tokens[i] = (int)rng_below(&now->rng, 1100);
    for (int i = 0; i < ROWS; i++) others[i] = (int)rng_below(&now->rng, 70000);
    extend_pair(&a, tokens, 14, 0);
    extend_pair(&b, others, 70, 0), expect_same_logits(&a);
    extend_pair(&a, tokens, 15, 14), expect_same_logits(&b);
    for (int i = 0; i < 14; i++) tokens[i] = (int)rng_below(&now->rng, 1100);
    model_forward(&a.m, tokens, 1, 14);                // an evaluation; another text is continued
    extend_pair(&a, tokens, 15, 14);
    for (int i = 0; i < 14; i++) tokens[i] = (tokens[i] + 1) % 1100;     // the same last token
    model_forward(&a.m, tokens, 1, 14);
    again = true;
    extend_pair(&a, tokens, 15, 14);
    again = false;
    extend_pair(&b, others, 208, 70), expect_same_logits(&a);
    extend_pair(&a, tokens, 15, 0);
    for (size_t i = 0; i < gpt2_n_params(&a.m.c); i++)                // the weights after a step
        a.m.zero.masters[i] = a.whole.zero.masters[i] *= i % 2 ? 0.9f : -1.1f;
    a.m.zero.masters[1100*6 + 9] = a.whole.zero.masters[1100*6 + 9] = 500.0f;
    again = true;
    extend_pair(&a, tokens, 15, 0);
    again = false;
    extend_pair(&a, tokens, 7, 0);
    extend_pair(&a, tokens, T, 7);
    if (run == 0) extend_pair(&b, others, ROWS, 0);                  // slow
    if (run == 0) extend_pair(&b, others, ROWS, ROWS - 1);
    for (size_t i = 0; i < 6; i++)                                   // a token that is no number
        a.m.zero.masters[tokens[9]*6 + i] = a.whole.zero.masters[tokens[9]*6 + i] = NAN;
    extend_pair(&a, tokens, T, 7);
    model_free(&a.m), model_free(&a.whole), model_free(&b.m), model_free(&b.whole);
}

static void check_kv_cache(Trial *now) {
    static Pair pair;
    int tokens[MT], past = 0, from = now->s[3];
    if (now->s[0] == 0) {
        cache_of_two(now);
        return;
    }
    pair_init(&pair, SMALL, MB, &now->rng);
    for (int t = 0; t < MT; t++) tokens[t] = (int)rng_below(&now->rng, MV);
    for (int k = 0; k < 3 && past < MT; past = now->s[k++])
        extend_pair(&pair, tokens, now->s[k], past);
    for (int t = from; t < MT; t++) tokens[t] = (int)rng_below(&now->rng, MV);
    if (from > 0) extend_pair(&pair, tokens, MT, from);
    model_free(&pair.m), model_free(&pair.whole);
}

// An update: micro-batches of B sequences of T tokens, by what s->scale differs from one over all
// tokens, the limit as a part of the norm, what one element of the gradient becomes besides, and
// loss and norm of all ranks as multiples of this one's. Another element's part ARRIVES from them.
typedef struct { int micro_batches, B, T; double scale, limit; float spike; double others; } Update;
static const float ARRIVES = 0.3f;
enum { MOST_B = 5000 };
static const Update *update;
static int step_inputs[MOST_B*MT], step_targets[MOST_B*MT];
static int begun, data_calls, arrived, shared, judged, ended;     // calls in this step
static int arrived_behind;             // so many micro-batches
static AdamW step_adamw;
static Totals step_totals, shared_totals, judged_totals;
static Model *step_model;
static uint64_t at_the_step_end, grads_arrived, grads_ended;   // hashes of parameters, gradients

static uint64_t hash_of_grads(const Model *m) {
    return hash_add(0, m->zero.grads, gpt2_n_params(&SMALL) * sizeof(float));
}

static uint64_t hash_of_params(const Model *m) {
    return hash_add(0, m->zero.masters, gpt2_n_params(&SMALL) * sizeof(float));
}

static float scale_of(const Update *u) {
    return (float)(u->scale / (u->micro_batches * u->B * u->T));
}

static void check_step_begin(Run *r, Step *s) {
    (void)r;
    if (begun++) wrong("step_begin is called again, expected once in a step");
    memset(s, 0, sizeof *s);
    s->B = update->B, s->T = update->T, s->micro_batches = (size_t)update->micro_batches;
    s->scale = scale_of(update), s->adamw = step_adamw;
}

static void check_next_batch(Run *r, Step *s, size_t i) {
    size_t N = (size_t)update->B * update->T;
    if (i >= s->micro_batches || i != (size_t)data_calls)
        wrong("micro-batch %zu is asked for, expected %d of %zu", i, data_calls, s->micro_batches);
    if (++data_calls == update->micro_batches) step_model->zero.grads[5] += update->spike;
    memcpy(r->inputs, step_inputs + i*N, N * sizeof(int));
    memcpy(r->targets, step_targets + i*N, N * sizeof(int));
}

static void check_gradients_arrive(Run *r, Step *s) {
    (void)r, (void)s;
    arrived++;
    arrived_behind = data_calls;
    if (update->others != 1.0) step_model->zero.grads[3] += ARRIVES;
    grads_arrived = hash_of_grads(step_model);
}

static void check_totals_share(const Zero *z, Totals *t) {
    shared++;
    totals_share(z, t);
    t->loss *= update->others, t->squares *= update->others * update->others;
    shared_totals = *t;
}

static bool check_is_outlier(const Run *r, Step *s, Totals t) {
    judged++;
    judged_totals = t;
    return is_outlier(r, s, t);
}

static void check_step_end(Run *r, Step *s, const Totals *t) {
    (void)r, (void)s;
    ended++;
    step_totals = *t;
    at_the_step_end = hash_of_params(step_model);
    grads_ended = hash_of_grads(step_model);
}

// Gradients (n) of a batch of micro-batches, and what typical mistakes leave in their place.
static void expect_gradients(const Model *m, Model *whole, size_t n) {
    double *exact = doubles(n), *last = doubles(n);
    Result grads = tensor("gradients", INDEX("p", n), 0.125f);
    int B = update->B, T = update->T, at = (update->micro_batches - 1) * B * T;
    memcpy(grads.x, m->zero.grads, n * sizeof *grads.x);
    for (size_t i = 0; i < n; i++) exact[i] = whole->zero.grads[i];
    clear_grads(whole);
    model_forward(whole, step_inputs + at, B, T);
    model_backward(whole, step_inputs + at, step_targets + at, scale_of(update), B, T);
    for (size_t i = 0; i < n; i++) last[i] = whole->zero.grads[i], whole->zero.grads[i] = exact[i];
    if (data_calls == 0) wrong("next_batch is not called: no micro-batch is read");
    if (data_calls != update->micro_batches)
        wrong("%d micro-batches are read, expected s->micro_batches = %d", data_calls,
              update->micro_batches);
    Exact e = exact_of_model(exact, n);
    if (first_wrong(&grads, false, exact_of(n)) == n && first_wrong(&grads, false, e) < n)
        wrong("all gradients are 0 when the step has ended: clear_grads is called once, before the "
              "first micro-batch");
    size_t at_fault = first_wrong(&grads, false, e);
    if (at_fault < n && first_wrong(&grads, true, e) == n)
        wrong("%s: the last update's gradients are still in it; call clear_grads before the first "
              "micro-batch", describe(&grads, false, e, at_fault));
    expect_not(&grads, false, exact_of_model(last, n), e, "this is the last micro-batch's alone: "
               "call clear_grads once in a step, before the first");
    expect_written(&grads, e, "model_forward, then model_backward with s->scale, for each "
                   "micro-batch; s->scale divides by the tokens of the whole batch, and the "
                   "parameters stay as they are until the last");
}

static void expect_end(const Model *m, const char *after) {
    if (ended != 1) wrong("%sstep_end is called %d times, expected once", after, ended);
    if (at_the_step_end != hash_of_params(m))
        wrong("%sthe parameters change after step_end: it ends the step", after);
    for (int k = 0; k < N_NORMS; k++)
        if (step_totals.norms[k] != 0.0)
            wrong("step_end gets Totals of which norms are not set: the fields beside loss and "
                  "squares begin at 0");
    if (arrived != 1 || arrived_behind != update->micro_batches)
        wrong("%sgradients_arrive is called %d times, behind %d of %d micro-batches, expected "
              "once, behind the last", after, arrived, arrived_behind, update->micro_batches);
    if (grads_arrived != grads_ended)
        wrong("%sgradients change after gradients_arrive: it waits for them behind the last "
              "model_backward", after);
    if (shared != 1)
        wrong("%stotals_share is called %d times, expected once: it says whether a signal to stop "
              "has come", after, shared);
    if (memcmp(&shared_totals, &step_totals, sizeof step_totals) != 0)
        wrong("%sstep_end gets other Totals than totals_share has left", after);
    if (judged && memcmp(&judged_totals, &step_totals, sizeof step_totals) != 0)
        wrong("%sis_outlier gets other Totals than step_end", after);
}

// Calls train_step on a stack that is not empty.
static void step(Run *r, Model *m) {
    volatile char soil[1 << 14];
    Step s;
    memset((char *)soil, 0x55, sizeof soil);
    begun = data_calls = arrived = shared = judged = ended = 0, step_model = m;
    Run before = *r;
    size_t owned = owns_bytes();
    CALL_ONCE(train_step(r, m, &s));
    if (memcmp(&before, r, sizeof before) != 0)
        wrong("a field of *r is changed: counters and steps so far are step_end's");
    if (owns_bytes() > owned)
        wrong("a step leaves %zu bytes allocated: free what it allocates", owns_bytes() - owned);
}

// An update beside the same with the whole batch at once. `factor`: what clipping is to give.
static void expect_update(Model *m, Model *whole, Run *r, double factor, const char *what) {
    size_t n = gpt2_n_params(&SMALL);
    double *after = doubles(n), *moment = doubles(n);
    Result params = tensor("parameters", INDEX("p", n), 0.0f);
    Result adam_m = tensor("adam_m", INDEX("p", n), 0.0f);
    int B = update->micro_batches * update->B;
    for (int i = 0; i < MOST_B*MT; i++) {
        step_inputs[i] = (int)mix64(i + 10*B) & (MV - 1);
        step_targets[i] = (int)mix64(i + 10*B + 7777) & (MV - 1);
    }
    clear_grads(whole);
    whole->zero.grads[5] = update->spike;
    model_forward(whole, step_inputs, B, update->T);
    double loss = model_backward(whole, step_inputs, step_targets, scale_of(update), B, update->T);
    if (update->others != 1.0) whole->zero.grads[3] += ARRIVES;
    double others = update->others, squares = others*others * gradients_squares(whole);
    loss *= others;
    r->o.clip = update->limit * sqrt(squares);
    for (size_t i = 0; i < n; i++) m->zero.grads[i] = 0.125f;
    memcpy(params.before, m->zero.masters, n * sizeof *params.before);
    step_adamw.m_steps++, step_adamw.v_steps++;
    step_adamw.beta1 = 0.5f - step_adamw.beta1;
    step(r, m);
    expect_gradients(m, whole, n);
    model_update(whole, step_adamw, (float)factor);
    for (size_t i = 0; i < n; i++) after[i] = whole->zero.masters[i];
    for (size_t i = 0; i < n; i++) moment[i] = whole->zero.adam_m[i];
    memcpy(params.x, m->zero.masters, n * sizeof *params.x);
    memcpy(adam_m.x, m->zero.adam_m, n * sizeof *params.x);
    if (step_adamw.lr > 0 && memcmp(params.x, params.before, n * sizeof *params.x) == 0)
        wrong("the parameters are unchanged: model_update is for every update whose norm is "
              "finite, here %.3g, while r->o.skip_outliers is 0", sqrt(squares));
    expect_written(&params, exact_of_model(after, n), what);
    expect_written(&adam_m, exact_of_model(moment, n), what);
    expect_end(m, "");
    if (fabs(step_totals.loss - loss) > 3e-7 * loss)
        wrong("step_end gets a loss of %.9g, expected %.9g: the sum over all micro-batches, in "
              "double", step_totals.loss, loss);
    if (fabs(step_totals.squares - squares) > 1e-4 * squares)
        wrong("step_end gets squares of %g, expected %g: gradients_squares(m), before the factor",
              step_totals.squares, squares);
}

// The parameters stay, but the step ends.
static void expect_no_update(Run *r, Model *m, const char *why) {
    uint64_t before = hash_of_params(m);
    char after[100];
    step(r, m);
    if (hash_of_params(m) != before) wrong("%s: no model_update, the parameters stay", why);
    snprintf(after, sizeof after, "%s: ", why);
    expect_end(m, after);
}

static void check_gradient_accumulation(Trial *now) {
    static const Update updates[] = {
        { 2, 2, MT, 1.0, 0.5, 0, 1.0 }, { 2, 2, MT, 1.0, 0.25, 0, 3.0 },
        { 4, 1, 5, 1.0, 2.0, 0, 1.0 }, { 1, 3, 4, 1.0, 0.0, 0, 2.0 },
        { 3, 1, 1, 1e-6, 0.5, 0, 1.0 }, { 2, 2, 3, 1.0, 1e-9, 1e9f, 1.0 },
        { 2, 2, 3, 1.0, 1e-14, 0, 1.0 }, { 5, 2, 4, 0.5, 0.999, 0, 1.5 },
        { 2, 1, 3, 0.0, 0.0, 0, 1.0 }, { 67, 1, 1, 3.0, 1.001, 0, 1.0 },
        { MOST_B, 1, 1, 1.0, 0.5, 0, 1.0 },
    };
    static const float spikes[] = { NAN, INFINITY, -INFINITY };
    static Model m, whole;
    static Run r;
    int inputs[MN], targets[MN];
    (void)now;
    if (run > 1) return;
    r = (Run){ 0 };
    small_model(&m, MB);
    small_model(&whole, run > 0 ? 67 : MOST_B);
    r.inputs = inputs, r.targets = targets, r.zero = &m.zero;
    r.batch = MN, r.recent_losses.n = r.recent_norms.n = WINDOW_ENOUGH;
    for (int i = 0; i < WINDOW_ENOUGH; i++)        // beside these, every loss and norm is large
        r.recent_losses.values[i] = r.recent_norms.values[i] = i % 2 ? 1e-9 : -1e-9;
    step_adamw = (AdamW){ .lr = 0.01f, .beta1 = 0.5f, .beta2 = 0.95f, .eps = 1e-2f,
                          .weight_decay = 0.1f };
    for (size_t k = 0; k < sizeof updates / sizeof *updates; k++) {
        update = &updates[k];
        bool clips = update->limit > 0.0 && update->limit < 1.0;
        if (pass == FEWER ? k > 1 : run > 0 && update->micro_batches > 10) break;      // slow
        tolerance = update->micro_batches == MOST_B ? 3e-5 : 3e-6;
        *m.zero.stop = k == 2 ? SIGTERM : 0;       // the step goes on to its end
        float lr = step_adamw.lr;
        if (k == 6) step_adamw.lr = 0.0f;
        expect_update(&m, &whole, &r, clips ? update->limit : 1.0, k == 6
            ? "at a rate of 0 model_update comes too, for the moments" : clips
            ? "the norm is above the limit: one model_update a step, with s->adamw as it is and "
              "the factor r->o.clip / norm, that of all ranks, behind gradients_arrive and "
              "totals_share"
            : update->limit == 0.0
            ? "r->o.clip is 0, no limit: the factor is 1; and r->o.skip_outliers is 0, none is "
              "skipped" : "the norm is below r->o.clip: the factor is 1");
        step_adamw.lr = lr * 0.9f;
    }
    *m.zero.stop = 0;
    Update of_two = { 2, 2, MT, 1.0, 1.0, 0, 2.0 };
    update = &of_two, r.o.skip_outliers = run > 0 ? 5.0 : 0.5;
    for (int k = 0; k < 3; k++) {
        r.o.clip = k ? k - 1 : 1e9;
        expect_no_update(&r, &m, "r->o.skip_outliers is set and is_outlier(r, s, all)");
    }
    for (int k = 0; k < 6; k++) {
        Update u = { 2, 2, MT, 1.0, 1.0, spikes[k % 3], 1.0 };
        update = &u, r.o.skip_outliers = 0.0, r.o.clip = k < 3;
        expect_no_update(&r, &m, "the norm is not finite");
    }
    m.zero.masters[gpt2_n_params(&SMALL) - 1] = NAN;                 // of the last norm's bias
    expect_no_update(&r, &m, "the loss is not finite");
    if (!isnan(step_totals.loss))
        wrong("step_end gets a loss of %g, and the losses are no numbers", step_totals.loss);
    model_free(&m), model_free(&whole);
}

// ---- many ranks ----

static bool steps_back;                // the steps come in the other order

// One rank's part in a step. It began with the chunk of its own number, and passes on what it
// receives, so that a chunk is a rank further in each step.
static void ring_part(int step, int rank, int n) {
    int send = -99, receive = -99, left = (rank + n - 1) % n;
    bool adds[8], behind[8];
    int held = (rank + 2*n - step) % n, arrives = (left + 2*n - step) % n;
    for (int k = 0; k < 8; k++) adds[k] = behind[k] = step >= n - 1;
    ring_allreduce(&send, &receive, adds, step, rank, n);
    if (memcmp(adds + 1, behind + 1, 7) != 0) wrong("more is written than *adds, a bool of a byte");
    if (send == -99) wrong("send: it is not written");
    if (receive == -99) wrong("receive: it is not written");
    for (int k = 0; k < 2; k++) {
        int c = k ? receive : send;
        if (c < 0 || c >= n)
            wrong("%d ranks, step %d: rank %d %s chunk %d, but chunks are 0 ... %d%s", n, step,
                  rank, k ? "receives" : "sends", c, n - 1, c >= 0 ? ": take the remainder by n" :
                  n > 1000 ? "; a number is too large for its type" :
                  "; in C the remainder % of a negative number is negative: add n first");
    }
    if (send != held)
        wrong("%d ranks, step %d: rank %d sends chunk %d, expected %d, %s%s", n, step, rank, send,
              held, step == 0 ? "its own number" : "which it received in the step before",
              steps_back ? "; it is right where the steps come in order" : "");
    if (*adds != (step < n - 1))
        wrong("%d ranks, step %d: *adds is %s, expected %s: steps 0 ... n-2 add, the other n-1 "
              "replace", n, step, *adds ? "true" : "false", *adds ? "false" : "true");
    if (receive != arrives)
        wrong("%d ranks, step %d: rank %d receives chunk %d, expected %d, which its left "
              "neighbour, rank %d, sends", n, step, rank, receive, arrives, left);
}

static const int RING[][6] = {
    { 3 }, { 2 }, { 4 }, { 5 }, { 8 }, { 17 }, { 67 }, { 130 }, { 300 }, { 70000 }, { 1 << 16 },
};

// The steps come in order, then backwards, then rings of several sizes at the same time: one call
// knows nothing of another. Of many ranks and steps, some.
static void check_ring_allreduce(Trial *now) {
    int n = now->s[0], steps = 2*(n - 1), by = 1 + n / 500;
    steps_back = false;
    arrays_seal();
    for (int step = 0; step < steps; step += by)
        for (int r = 0; r < n; r += by) ring_part(step, r, n);
    steps_back = true;
    for (int step = steps - 1; step >= 0; step -= by)
        for (int r = n - 1; r >= 0; r -= by) ring_part(step, r, n);
    #pragma omp parallel for
    for (int k = 0; k < 16; k++) {
        int send, receive;
        bool adds;
        for (int r = 0; r < n; r += by) ring_allreduce(&send, &receive, &adds, 0, r, n + k);
    }
    arrays_unseal();
    if (owns_count() > 8) wrong("calls leave %zu allocations: free them", owns_count());
}

enum { MOST_RANKS = 64, UPDATES = 3 };

// Ranks, parameters, which of the rates of adamw_update, and whether all slices but the last are
// equal and lie in the order of ranks
static const int SLICES[][6] = {
    { 3, 10, 0, 1, 0, NORMAL }, { 2, 10, 0, 1, 0, NORMAL }, { 1, 5, 1, 0, 0, NORMAL },
    { 5, 9, 3, 0, 0, NORMAL }, { 4, 30, 6, 1, 0, ZEROS }, { 7, 11, 5, 1, 0, NORMAL },
    { 17, 5000, 1, 0, 0, NORMAL }, { MOST_RANKS, 200, 1, 0, 0, NORMAL },
    { 3, 30000, 5, 1, 0, NORMAL }, { 12, 40, 3, 0, 0, NOT_FINITE },
    { 6, 33, 0, 0, 0, NOT_FINITE }, { 4, 50, 1, 0, 0, TINY }, { 9, 64, 6, 0, 0, LARGE },
    { 16, 10, 5, 0, 0, PEAK }, { 3, 40, 8, 0, 0, TINY }, { 4, 50, 7, 0, 0, TINY },
    { 5, 60, 3, 1, 0, SPARSE },
};

// An update that zero1 is to do, and what it has done so far.
static struct {
    ZeroRank ranks[MOST_RANKS];        // as they are before
    int n;
    size_t total, updated[MOST_RANKS]; // elements that adamw_update got of each rank
    AdamW o;
    Exact mean;                        // the gradient of the batch
    char fault[300];                   // about the first call that looks wrong, or empty
} sliced;

#define FAULT(...) \
    do { if (!sliced.fault[0]) snprintf(sliced.fault, sizeof sliced.fault, __VA_ARGS__); } while (0)

// A call updates params[i] ... params[i+n-1] of rank r.
static void expect_in_slice(int r, size_t i, size_t n) {
    const ZeroRank *z = &sliced.ranks[r];
    size_t before = 0;
    if (i >= z->begin && i + n <= z->begin + z->count) return;
    for (int k = 0; k < r; k++) before += sliced.ranks[k].count;
    wrong("adamw_update gets ranks[%d].params[i=%zu] and %zu elements, expected the rank's slice, "
          "begin=%zu count=%zu; %s", r, i, n, z->begin, z->count,
          i == z->begin ? "a rank updates `count` elements, and an empty slice has none" :
          i == before ? "slices may lie in any order: add the rank's own `begin`" :
          i == 0 ? "the slice is at params + begin, and grads + begin" :
          "each rank updates its own slice, in its own params");
}

static void look_at_gradient(int r, size_t i, const float *g, float g_scale, size_t n) {
    size_t k = 0;
    while (k < n && is_close((double)g[k]*g_scale, sliced.mean.x[i + k], sliced.mean.size[i + k]))
        k++;
    if (k == n) return;
    double got = (double)g[k]*g_scale, mean = sliced.mean.x[i + k], size = sliced.mean.size[i + k];
    FAULT("rank %d gives adamw_update g * g_scale = %.6g for element %zu, expected %.6g: %s", r,
          got, i + k, mean, is_close(got, mean*sliced.n, size*sliced.n)
          ? "this is the sum, expected the mean: divide by n" : !isfinite(mean)
          ? "what is not finite must come through: hide no NaN" : isnan(got)
          ? "reduce_scatter completes the rank's slice only, at grads + begin" :
          "the sum over all ranks, from reduce_scatter, divided by n; nothing else clips or "
          "scales it");
}

static void look_at_rates(AdamW o) {
    static const char *names[] = { "lr", "beta1", "beta2", "eps", "weight_decay", "m_steps",
                                   "v_steps" };
    AdamW e = sliced.o;
    double got[] = { o.lr, o.beta1, o.beta2, o.eps, o.weight_decay, o.m_steps, o.v_steps };
    double want[] = { e.lr, e.beta1, e.beta2, e.eps, e.weight_decay, e.m_steps, e.v_steps };
    for (int k = 0; k < 7; k++)
        if (got[k] != want[k])
            FAULT("adamw_update gets o.%s = %g, expected %g: pass o as it is; %s", names[k], got[k],
                  want[k], k < 5 ? "only the gradient is divided by n" : "it has the steps so far");
}

// What adamw_update gets, before it is called.
static void look_at_update(const float *p, const float *m, const float *v, const float *g,
                           float g_scale, AdamW o, size_t n) {
    int r = 0;
    while (r < sliced.n && (p < sliced.ranks[r].params ||
                            p > sliced.ranks[r].params + sliced.total)) r++;
    if (r == sliced.n || n == 0) {
        if (n > 0) wrong("adamw_update gets a p outside all ranks' params: update them in place");
        return;
    }
    const ZeroRank *z = &sliced.ranks[r];
    size_t i = (size_t)(p - z->params), end = z->begin + z->count;
    expect_in_slice(r, i, n);
    sliced.updated[r] += n;
    if (m != z->m + (i - z->begin) || v != z->v + (i - z->begin))
        FAULT("rank %d: adamw_update takes m, then v, which begin with the slice's first", r);
    look_at_rates(o);
    look_at_gradient(r, i, g, g_scale, n);
    size_t other = end < sliced.total ? end : z->begin - 1;    // an element of another's slice
    if (z->count < sliced.total && g == z->grads + i && !sliced.fault[0] &&
        !isnan(z->grads[other]))
        wrong("ranks[%d].grads[i=%zu] is %g, expected the NaN that reduce_scatter leaves outside "
              "the slice, begin=%zu count=%zu; a rank needs no other gradient", r, other,
              z->grads[other], z->begin, z->count);
}

static void watched_adamw_update(float *p, float *m, float *v, const float *g, float g_scale,
                                 AdamW o, size_t n) {
    #pragma omp critical
    look_at_update(p, m, v, g, g_scale, o, n);
    adamw_update(p, m, v, g, g_scale, o, n);
}

static void expect_sent(int r, const char *exchange, size_t got, size_t want) {
    if (got != want)
        wrong("rank %d sends %zu elements in %s, expected %zu; it is %s", r, got, exchange, want,
              got ? "called too often: one call serves all ranks" : "not called");
}

// The elements that each rank sends, and that it updates.
static void expect_exchanges(const ZeroRank *ranks) {
    const ZeroRank *before = sliced.ranks;
    size_t others = (size_t)sliced.n - 1;
    for (int r = 0; r < sliced.n; r++)
        expect_sent(r, "reduce_scatter", ranks[r].scattered, sliced.total - before[r].count);
    for (int r = 0; r < sliced.n; r++)
        expect_sent(r, "all_gather", ranks[r].gathered, others * before[r].count);
    for (int r = 0; r < sliced.n; r++)
        if (sliced.updated[r] != before[r].count)
            wrong("rank %d updates %zu elements with adamw_update, expected its slice, begin=%zu "
                  "count=%zu; every rank's whole slice once, whatever its gradients are", r,
                  sliced.updated[r], before[r].begin, before[r].count);
}

static const char *zero1_hint(const Result *params, Exact p, int r) {
    static char text[120];
    size_t i = first_wrong(&params[r], false, p);
    int owner = 0;
    while (i < p.n && i - sliced.ranks[owner].begin >= sliced.ranks[owner].count) owner++;
    if (sliced.fault[0] || i == p.n) return sliced.fault;
    if (owner == r || !is_right(&params[owner], false, p, i))
        return "adamw_update alone changes params and moments; do the moments go on from the last "
               "update?";
    snprintf(text, sizeof text, "rank %d, whose slice has it, is right: all_gather comes last, "
             "behind all updates", owner);
    return text;
}

static void draw_slices(ZeroRank *ranks, int n, size_t total, bool even, Rng *rng) {
    size_t cuts[MOST_RANKS + 1] = { 0 }, each = (total + (size_t)n - 1) / (size_t)n;
    int order[MOST_RANKS];
    for (int k = 1; k <= n; k++) {
        size_t cut = rng_below(rng, 4) ? rng_below(rng, total + 1) : cuts[k - 1];
        int at = k;
        for (; at > 1 && cuts[at - 1] > cut; at--) cuts[at] = cuts[at - 1];
        cuts[at] = cut;
    }
    for (int k = 1; k <= n && even; k++) cuts[k] = min_size((size_t)k*each, total);
    cuts[n] = total;
    for (int k = 0; k < n; k++) {
        int other = even ? k : (int)rng_below(rng, (uint64_t)k + 1);
        order[k] = order[other], order[other] = k;
    }
    for (int k = 0; k < n; k++)
        ranks[order[k]].begin = cuts[k], ranks[order[k]].count = cuts[k + 1] - cuts[k];
}

// The gradients of all ranks, and their mean. Where some are 0, those of a whole slice are.
static void draw_gradients(const ZeroRank *ranks, int n, size_t total, Exact mean, Trial *now) {
    ZeroRank quiet;
    do quiet = ranks[rng_below(&now->rng, (uint64_t)n)]; while (quiet.count == 0);
    for (int r = 0; r < n; r++)
        for (size_t i = 0; i < total; i++) {
            float g = (float)(0.5 + rng_normal(&now->rng));
            bool some = rng_below(&now->rng, 4) == 0;
            if (now->style == TINY) g *= now->number % 2 ? 1e-17f : 1e-8f;
            if (now->style == LARGE) g *= some ? 1e9f : 10.0f;
            if (now->style == PEAK && some) g *= 30.0f;
            bool zeros = now->style == ZEROS || now->style == SPARSE;
            if (zeros && (some || i - quiet.begin < quiet.count)) g = 0.0f;
            ranks[r].grads[i] = g;
        }
    if (now->style == NOT_FINITE)
        ranks[rng_below(&now->rng, (uint64_t)n)].grads[rng_below(&now->rng, total)] =
            now->number % 2 ? NAN : INFINITY;
    for (int r = 0; r < n; r++)
        for (size_t i = 0; i < total; i++) term(mean, i, ranks[r].grads[i] / (double)n);
}

// What an update makes of params, m and v, all whole. An error of the mean's sum goes on to all.
static void zero1_exact(Exact *exact, Result *const *now, const ZeroRank *ranks) {
    AdamW o = sliced.o;
    for (int r = 0; r < sliced.n; r++)
        for (size_t k = 0; k < ranks[r].count; k++) {
            size_t i = ranks[r].begin + k;
            double mean = sliced.mean.x[i], size = sliced.mean.size[i];
            adamw_exact(exact[0], exact + 1, i, now[0][r].x[i], now[1][r].x[k], now[2][r].x[k],
                        mean, o);
            double v = exact[2].x[i], root = sqrt(v / (1.0 - pow(o.beta2, o.v_steps))) + o.eps;
            exact[1].size[i] += (1.0 - o.beta1) * size;
            exact[2].size[i] += (1.0 - o.beta2) * 2.0 * fabs(mean) * size;
            exact[0].size[i] += o.lr / (1.0 - pow(o.beta1, o.m_steps)) / root * exact[1].size[i] *
                                (v > 0.0 ? 1.0 + exact[2].size[i] / v : 1.0);
        }
}

static void zero1_update(ZeroRank *ranks, Result *const *results, AdamW o, Trial *now) {
    int n = sliced.n;
    size_t total = sliced.total;
    Exact exact[3] = { exact_of(total), exact_of(total), exact_of(total) };
    sliced.o = o, sliced.fault[0] = '\0', sliced.mean = exact_of(total);
    memset(sliced.updated, 0, sizeof sliced.updated);
    draw_gradients(ranks, n, total, sliced.mean, now);
    zero1_exact(exact, results, ranks);
    for (int r = 0; r < n; r++) {
        ranks[r].scattered = ranks[r].gathered = 0;
        sliced.ranks[r] = ranks[r];
        for (int k = 0; k < 3; k++)
            memcpy(results[k][r].before, results[k][r].x, results[k][r].n * sizeof(float));
    }
    CALL_ONCE(zero1(ranks, n, total, o));
    expect_exchanges(ranks);
    for (int r = 0; r < n; r++)
        expect_written(&results[0][r], exact[0], zero1_hint(results[0], exact[0], r));
    for (int i = 0; i < 2*n; i++) {
        Exact e = exact[1 + i % 2];
        Exact slice = { e.x + sliced.ranks[i/2].begin, e.size + sliced.ranks[i/2].begin, 0 };
        expect_written(&results[1 + i % 2][i/2], slice, sliced.fault[0] ? sliced.fault :
                       "adamw_update alone changes the moments of a rank's slice");
    }
}

static void check_zero1(Trial *now) {
    static char names[MOST_RANKS][4][20];
    static const char *fields[] = { "params", "m", "v", "grads" };
    int n = now->s[0];
    size_t total = (size_t)now->s[1];
    AdamW o = RATES[now->s[2]];
    double small = now->style == TINY ? now->number % 2 ? 1e-17 : 1e-8 : 1.0;
    size_t owned = 0;
    Result params[MOST_RANKS], m[MOST_RANKS], v[MOST_RANKS], *results[] = { params, m, v };
    ZeroRank ranks[MOST_RANKS] = { 0 };
    float *begin = normals("begin", INDEX("i", total), 1, 0, now);
    draw_slices(ranks, n, total, now->s[3], &now->rng);
    for (int r = 0; r < n; r++) {
        ZeroRank *z = &ranks[r];
        for (int k = 0; k < 4; k++) snprintf(names[r][k], 20, "ranks[%d].%s", r, fields[k]);
        params[r] = holding(names[r][0], begin, INDEX("i", total));
        m[r] = tensor(names[r][1], INDEX("i", z->count), 0.0f);
        v[r] = tensor(names[r][2], INDEX("i", z->count), 0.0f);
        z->params = params[r].x, z->m = m[r].x, z->v = v[r].x;
        z->grads = array_new(names[r][3], INDEX("i", total), sizeof(float), OUTPUT);
        for (size_t k = 0; k < z->count; k++) {
            z->m[k] = (float)(small * rng_normal(&now->rng));
            z->v[k] = (float)(small * small * (0.1 + fabs(rng_normal(&now->rng))));
            if ((now->style == ZEROS || now->style == SPARSE) && k % 2) z->m[k] = z->v[k] = 0.0f;
        }
    }
    sliced.n = n, sliced.total = total;
    for (int step = 1; step <= UPDATES; step++) {
        o.m_steps += 1, o.v_steps += 1;
        zero1_update(ranks, results, o, now);
        if (step == 1) owned = owns_bytes();
    }
    if (owns_bytes() > owned)
        wrong("%d calls leave %zu bytes allocated: free what the function allocates", UPDATES - 1,
              owns_bytes() - owned);
}

// ---- main ----

// The sizes' letters, for the message, and the largest that are drawn; no letters: none is drawn.
// `longest`: for each size two trials in which it is that long, and the others are 1, then 1 or 2;
// but a head's size.
#define TABLE(t) t, sizeof t / sizeof *t
enum { LONGEST = 70000, LONG_T = 1100 };
static const int WHOLE_MODEL[][6] = { { 0 } };
static const struct {
    const char *name;
    void (*body)(Trial *now);
    const int (*table)[6];
    size_t rows;
    const char *letters;
    int most[5], longest[5];
} CHECKS[] = {
    { "embedding_forward", check_embedding_forward, TABLE(EMBEDDING), "BTCV",
      { 6, 40, 70, 500 }, { LONGEST, LONGEST, LONGEST, LONGEST } },
    { "embedding_backward", check_embedding_backward, TABLE(EMBEDDING), "BTCV",
      { 6, 40, 70, 500 }, { LONGEST, LONGEST, LONGEST, LONGEST } },
    { "xent_forward", check_xent_forward, TABLE(XENT), "NV", { 100, 200 }, { LONGEST, LONGEST } },
    { "xent_backward", check_xent_backward, TABLE(XENT), "NV", { 100, 200 }, { LONGEST, LONGEST } },
    { "layernorm_forward", check_layernorm_forward, TABLE(LAYERNORM), "NC",
      { 70, 129 }, { LONGEST, LONGEST } },
    { "layernorm_backward", check_layernorm_backward, TABLE(LAYERNORM), "NC",
      { 70, 129 }, { LONGEST, LONGEST } },
    { "gelu_backward", check_gelu_backward, TABLE(GELU), "n", { 2000 }, { LONGEST } },
    { "linear_backward", check_linear_backward, TABLE(LINEAR), "NCO",
      { 40, 20, 20 }, { LONGEST, LONGEST, LONGEST } },
    { "attention_plain", check_attention_plain, TABLE(PLAIN_ATTENTION), "BTHSp",
      { 3, 20, 5, 9, 20 }, { LONG_T, LONG_T, LONG_T, LONG_T, LONG_T } },
    { "attention_backward", check_attention_backward, TABLE(ATTENTION_BACKWARD), "BTHS",
      { 3, 20, 5, 9 }, { LONG_T, LONG_T, LONG_T, LONG_T } },
    { "attention_tiled", check_attention_tiled, TABLE(TILED_ATTENTION), "BTHSp",
      { 2, 70, 4, 17, 70 }, { LONG_T, LONG_T, LONG_T, LONG_T, LONG_T } },
    { "adamw_update", check_adamw_update, TABLE(ADAMW), "nsr", { 200, 2, N_RATES - 1 },
      { LONGEST } },
    { "global_norm", check_global_norm, TABLE(NORM), "nc", { 90, 2000 }, { LONGEST, LONGEST } },
    { "sample_token", check_sample_token, TABLE(SAMPLING), "Vs", { 40, 10000 } },
    { "kv_cache", check_kv_cache, TABLE(CACHE), "" , { 0 } },
    { "gradient_accumulation", check_gradient_accumulation, TABLE(WHOLE_MODEL), "", { 0 } },
    { "ring_allreduce", check_ring_allreduce, TABLE(RING), "n", { 60 } },
    { "zero1", check_zero1, TABLE(SLICES), "nto",
      { MOST_RANKS, 3000, N_RATES - 1 }, { 0, LONGEST } },
};

enum { DRAWN = 12 };                   // trials of drawn sizes

static Trial trial_of(size_t check, int number) {
    Trial now = { .number = number, .rng = rng_make(number ? (uint64_t)day : 0, (uint64_t)number) };
    if (number < (int)CHECKS[check].rows) {
        memcpy(now.s, CHECKS[check].table[number], sizeof now.s);
        now.style = (Style)CHECKS[check].table[number][5];
        return now;
    }
    int left = number - (int)CHECKS[check].rows - DRAWN;   // LONG trials before this one, or < 0
    int others = left < 0 ? INT_MAX : 1 + left % 2;
    now.style = left < 0 ? (Style)rng_below(&now.rng, STYLES) : LONG;
    for (int k = 0; k < 5 && CHECKS[check].most[k]; k++) {
        int most = CHECKS[check].most[k], longest = CHECKS[check].longest[k];
        bool is_long = left >= 0 && longest && left / 2 == 0;
        now.s[k] = is_long ? longest - (int)rng_below(&now.rng, 9)
                 : now.style == LONG && CHECKS[check].letters[k] == 'S' ? side(40, &now.rng) + 16
                 : side(most < others ? most : others, &now.rng);
        if (longest) left -= 2;
    }
    const char *heads = strchr(CHECKS[check].letters, 'S');
    if (now.style == LONG && heads && now.s[heads - CHECKS[check].letters] > 1000)
        now.s[1] = 40;                 // long heads, and several of them
    if (CHECKS[check].table == XENT) {
        now.s[2] = now.s[1] + side(now.style == LONG ? 9 : 300, &now.rng) - 1;
        now.s[3] = NO_NUMBER;
    }
    return now;
}

static void say_situation(size_t check, const Trial *now) {
    int at = snprintf(situation, sizeof situation, " [");
    for (const char *k = CHECKS[check].letters; *k; k++)
        at += snprintf(situation + at, sizeof situation - at, "%s%c%s=%d ", *k == 'H' ? "N" :
                       *k == 'S' ? "H" : "", *k, *k == 'O' ? "C" : *k == 'p' ? "ast" : "",
                       now->s[k - CHECKS[check].letters]);
    snprintf(situation + at, sizeof situation - at, "threads=%d DAY=%d%s%s]", threads, day,
             now->style == LONG ? "; smaller sizes are right" : "",
             run == RUNS - 1 ? "; behind another call in the same memory" :
             pass == FEWER && run > 0 ? "; behind calls with more threads" :
             run == 1 ? "; right with 1 thread" : "");
}

static void run_trial(size_t check, Trial now) {
    threads_set(threads);
    tolerance = now.style == LONG ? 3e-5 : 3e-6;
    at_the_end = run != 1;
    n_logged = 0;
    say_situation(check, &now);
    CHECKS[check].body(&now);
    expect_no_race();
    arrays_free();
    while (n_pool > 0) free(pool[--n_pool]);
}

// Memory that is used again is replaced when it becomes too small.
static void run_growing(size_t check) {
    threads = 1;
    for (int size = 2; size < GROWN && CHECKS[check].letters[0]; size++) {
        Trial now = trial_of(check, 0);
        now.number = size - 1;                   // is_plain: 1
        for (int k = 0; k < 5; k++)
            if (k == 0 || CHECKS[check].longest[k]) now.s[k] = size;
        if (CHECKS[check].table == ADAMW && size == 2) now.s[2] = NO_DECAY;
        if (CHECKS[check].table == XENT) now.s[2] = size + 1;
        run_trial(check, now);
    }
    if (owns_count() > 8)
        wrong("calls of growing sizes leave %zu allocations: free, or resize, what has become too "
              "small", owns_count());
}

static void run_check(size_t check) {
    int drawn = CHECKS[check].letters[0] ? DRAWN : 0, rows = (int)CHECKS[check].rows, trials = rows;
    for (int k = 0; k < 5; k++) trials += 2 * (CHECKS[check].longest[k] > 0);
    for (int number = 0; number < (pass == FEWER ? AGAIN : trials + drawn); number++)
        for (run = 0; run < RUNS; run++) {
            Trial now = trial_of(check, number);
            bool many = run == 1 && (number % 4 == 3 || now.style == LONG);
            threads = many ? MANY_THREADS : THREADS[pass][run];
            run_trial(check, now);
        }
}

int main(int argc, char **argv) {
    struct rlimit stack;
    day = check_day();
    getrlimit(RLIMIT_STACK, &stack);
    stack.rlim_cur = min_size(stack.rlim_cur, 8 << 20);
    setrlimit(RLIMIT_STACK, &stack);
    faults_catch();
#ifdef _OPENMP
    nesting = omp_get_max_active_levels();
#endif
    pass = argc == 3 ? atoi(argv[2]) : ALL;                // it gives itself the next one
    bool known = (argc == 2 || argc == 3) && pass >= ALL && pass < PASSES;
    for (size_t i = 0; known && i < sizeof CHECKS / sizeof *CHECKS; i++)
        if (strcmp(argv[1], CHECKS[i].name) == 0) {
            if (pass == GROWING) run_growing(i);
            else run_check(i);
            char *next[] = { argv[0], argv[1], pass == ALL ? "1" : "2", NULL };
            if (pass == GROWING) return printf("right\n") < 0;
            execvp(argv[0], next);
            die("%s: cannot be started again: %s", argv[0], strerror(errno));
        }
    fprintf(stderr, "check NAME: the name of an exercise\n");
    return 2;
}
