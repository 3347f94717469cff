// The checks of the exercises in tiles.cu, run in the counting emulator: one line, what is wrong or
// `right`.
#include <string>
#include "dev/exercises/check_cuda.h"
#include "tiles.cu"

static std::vector<float> numbers(size_t n, int step) {
    std::vector<float> x(n);
    for (size_t i = 0; i < n; i++) x[i] = (float)((i*i*step + i) % 41) * 0.1f - 2.0f;
    return x;
}

static void expect_no_conflicts(const char *hint) {
    Tally loads = asked(emulator::SHARED_LOAD), stores = asked(emulator::SHARED_STORE);
    unsigned long long conflicts = loads.passes - loads.least + stores.passes - stores.least;
    if (conflicts > 0)
        wrong("shared memory: %llu bank conflicts, expected none; %s", conflicts, hint);
}

static const char *GUARD_THE_STORE = "at the edge a thread has no element to store: an if around "
                                     "the store alone; all threads must reach each barrier";

// Whether a kernel's result depends on the order in which the emulator runs threads: a race.
template <class Launch> static bool depends_on_order(const float *out, size_t n, Launch launch) {
    std::vector<float> first = fetch("out", out, n), again;
    bool differs = false;
    for (int order = 1; order <= 4; order++) {
        setenv("EMULATOR_SHUFFLE", std::to_string(order).c_str(), 1);
        launch();
        again = fetch("out", out, n);
        differs = differs || memcmp(first.data(), again.data(), n * sizeof *out) != 0;
    }
    unsetenv("EMULATOR_SHUFFLE");
    return differs;
}

static bool right(const std::vector<float> &x, const std::vector<double> &exact) {
    for (size_t i = 0; i < x.size(); i++) if (!(fabs(x[i] - exact[i]) < 1e-3)) return false;
    return true;
}

static void transpose(int N, int C) {
    std::vector<float> x = numbers((size_t)N*C, 7);
    std::vector<double> exact((size_t)N*C);
    for (int n = 0; n < N; n++) for (int c = 0; c < C; c++) exact[c*N + n] = x[n*C + c];
    float *out_gpu = on_gpu((size_t)N*C), *x_gpu = on_gpu((size_t)N*C, x.data());
    dim3 grid((C + TILE - 1) / TILE, (N + TILE - 1) / TILE), block(TILE, WARPS_OF_TILE);
    count_clear();
    auto launch = [&] { transpose_shared<<<grid, block>>>(out_gpu, x_gpu, N, C); };
    launch();
    std::vector<float> out = fetch("out", out_gpu, (size_t)N*C, GUARD_THE_STORE);
    if (right(out, exact)) return;
    expect("out", out, exact, "cn", N, depends_on_order(out_gpu, (size_t)N*C, launch)
           ? "it changes with the order of the threads: a tile must be whole before another thread "
             "reads it" : "out[c*N + n] is x[n*C + c], for each n < N and c < C");
}

static void check_transpose_shared() {
    transpose(64, 96);
    Tally loads = asked(emulator::GLOBAL_LOAD), stores = asked(emulator::GLOBAL_STORE);
    expect_coalesced("global loads", loads);
    expect_coalesced("global stores", stores);
    expect_moved("global loads", loads, 64*96, "warp y moves rows y, y + 8, y + 16 and y + 24");
    expect_moved("global stores", stores, 64*96, "warp y moves rows y, y + 8, y + 16 and y + 24");
    expect_no_conflicts("which banks does a column of a tile with rows of 32 words use, and with "
                        "rows of 33?");
    transpose(45, 70);                           // tiles that hang over the edge
}

static void product(int M, int N, int K) {
    std::vector<float> a = numbers((size_t)M*K, 3), b = numbers((size_t)K*N, 5);
    std::vector<double> exact((size_t)M*N, 0.0);
    for (int m = 0; m < M; m++) for (int n = 0; n < N; n++) for (int k = 0; k < K; k++)
        exact[m*N + n] += (double)a[m*K + k] * b[k*N + n];
    float *c_gpu = on_gpu((size_t)M*N);
    float *a_gpu = on_gpu((size_t)M*K, a.data()), *b_gpu = on_gpu((size_t)K*N, b.data());
    dim3 grid((N + SIDE - 1) / SIDE, (M + SIDE - 1) / SIDE), block(SIDE, SIDE);
    count_clear();
    auto launch = [&] { matmul_tiled<<<grid, block>>>(c_gpu, a_gpu, b_gpu, M, N, K); };
    launch();
    std::vector<float> c = fetch("c", c_gpu, (size_t)M*N, GUARD_THE_STORE), added(c);
    if (right(c, exact)) return;
    for (float &x : added) x -= UNTOUCHED;
    bool race = depends_on_order(c_gpu, (size_t)M*N, launch);
    expect("c", c, exact, "mn", N,
           right(added, exact) ? "the sum is added to what c contained: write it with =" :
           M % SIDE != 0 ? "M, N and K are 37, 50 and 41: every thread of a block loads, also one "
                           "without an element of c, and 0 where a or b ends" :
           K == SIDE ? race ? "it changes with the order of the threads: both tiles must be whole "
                              "before they are read" : "the sum over k of a[m*K + k] b[k*N + n]" :
           race ? "with K = 16 it is right: a tile must be read by all before the next step "
                  "overwrites it" : "with K = 16 it is right: the sum goes on over all steps");
}

static void check_matmul_tiled() {
    enum { S = 64 };
    product(S, S, SIDE);
    product(S, S, S);
    Tally loads = asked(emulator::GLOBAL_LOAD), stores = asked(emulator::GLOBAL_STORE);
    expect_moved("global loads", loads, 2*S*S*S / SIDE, "each thread loads one number of a and one "
                 "of b for each step along K, and 16 threads use it");
    expect_moved("global stores", stores, S*S, "the sum is stored once, after the last step");
    expect_coalesced("global loads", loads);
    expect_no_conflicts("with a tile stored as it is read, a warp stores 2 rows of 16 words, and "
                        "reads one word of a for 16 lanes and a row of b");
    product(37, 50, 41);
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "transpose_shared") == 0) check_transpose_shared();
    else if (argc == 2 && strcmp(argv[1], "matmul_tiled") == 0) check_matmul_tiled();
    else return fprintf(stderr, "check_tiles NAME: the name of an exercise\n"), 2;
    printf("right\n");
    return 0;
}
