// The checks of the exercises in tiles.cu, run in the counting emulator: one line, what is wrong or
// `right`.
#include <string>
#include "dev/exercises/check_cuda.h"
#include "tiles.cu"

static int tiles(int n, int side) { return (n + side - 1) / side; }

// Each number has its row's scale, or its column's, from 2^lo to 2^hi. Some are 0, and whole tiles
// if some are `empty`; all may be of one sign.
static std::vector<float> numbers(int rows, int columns, bool by_row, int lo, int hi, bool empty) {
    std::vector<float> x((size_t)rows * columns), scale(by_row ? rows : columns);
    std::vector<int> empties((size_t)tiles(rows, SIDE) * tiles(columns, SIDE));
    bool positive = draw(0, 1) && (by_row ? columns : rows) < 5000;      // float's sum of more errs
    for (float &s : scale) s = draw_power(lo, hi);
    for (int &e : empties) e = empty && draw(0, 3) == 0;
    for (int r = 0, i = 0; r < rows; r++) for (int c = 0; c < columns; c++, i++) {
        float e = positive ? 1.0f + fabsf(draw_float()) / 2.0f : draw_float();
        bool zero = draw(0, 12) == 0 || empties[r / SIDE * tiles(columns, SIDE) + c / SIDE];
        x[i] = zero ? 0.0f : e * scale[by_row ? r : c];
    }
    return x;
}

// For an index that leaves an array, where tiles hang over its edge, and where none does.
static const char *GUARD_THE_LOAD = "at the edge a thread has nothing to load: an if around the "
                                    "load; all threads must reach each barrier";
static const char *GUARD_THE_STORE = "at the edge a thread has no element to store: an if around "
                                     "the store alone; all threads must reach each barrier";
static const char *ROW_BY_ROW = "no tile hangs over an edge here: a row begins as many elements "
                                "after the one before as the array has columns";

static const char *ALL_REACH_IT = "__syncthreads stands in no if, in no loop that some leave early,"
                                  " and behind no return";

static void expect_no_conflicts(const char *hint) {
    Tally loads = asked(emulator::SHARED_LOAD), stores = asked(emulator::SHARED_STORE);
    unsigned long long conflicts = loads.passes - loads.least + stores.passes - stores.least;
    if (conflicts > 0)
        wrong("shared memory: %llu bank conflicts, expected none; %s", conflicts, hint);
}

// ---- transpose_shared ----

static std::string not_written(size_t) {
    return "block (x,y) has columns 32 x ... and rows 32 y ... of x, and warp y moves rows y, "
           "y + 8, y + 16 and y + 24 of its tile; a thread that returns early cannot store";
}

// What stands in out[i] instead: an element of x from elsewhere?
static std::string moved_from(const float *out, const float *x, int N, int C, size_t i) {
    const float *end = x + (size_t)N*C, *from = std::find(x, end, out[i]);
    if (isnan(out[i])) return "it comes from a word of the tile that no thread has written";
    if (from == end || std::find(from + 1, end, out[i]) != end)
        return "out[c*N + n] is x[n*C + c], the same number, for each n < N and c < C";
    size_t at = (size_t)(from - x);
    return "it is x[n=" + std::to_string(at / C) + "][c=" + std::to_string(at % C) +
           "]; out[c*N + n] is x[n*C + c], for each n < N and c < C";
}

// Along rows, without conflicts, by all lanes. Where N and C are multiples of 8, rows begin with a
// sector. A load beyond the edge may be one of the edge again.
static void expect_transpose_along_rows(int N, int C) {
    double requests = (double)tiles(N, TILE) * tiles(C, TILE) * TILE;
    const char *hint = "warp y moves rows y, y + 8, y + 16 and y + 24, a lane one number of each";
    expect_coalesced("global loads", emulator::GLOBAL_LOAD, C % 8 > 0);
    expect_coalesced("global stores", emulator::GLOBAL_STORE, N % 8 > 0);
    expect_moved("global loads", asked(emulator::GLOBAL_LOAD), requests, hint);
    expect_moved("global stores", asked(emulator::GLOBAL_STORE), requests, hint);
    expect_shared_out(TILE / WARPS_OF_TILE, TILE / WARPS_OF_TILE, hint);
    expect_no_conflicts("which banks does a column of a tile with rows of 32 words use, and with "
                        "rows of 33?");
}

static void transpose(int N, int C) {
    size_t size = (size_t)N*C;
    std::vector<float> numbers_of_x(size);
    std::vector<double> exact(size);
    int sparse = draw(0, 2) ? 0 : 10 << draw(0, 9);          // few others than 0 and -0
    for (float &x : numbers_of_x)
        x = sparse && draw(0, sparse) ? draw(0, 1) ? 0.0f : -0.0f
          : draw(0, sparse ? 1 : 20) ? draw_float() * draw_power(-148, 126) : draw_special();
    change_one(numbers_of_x);
    for (size_t i = 0; i < size; i++) exact[i % C * N + i / C] = numbers_of_x[i];
    bool whole = N % TILE == 0 && C % TILE == 0;
    float *out = on_gpu("out", "cn", N, size, whole ? ROW_BY_ROW : GUARD_THE_STORE);
    const float *x = on_gpu("x", "nc", C, size, whole ? ROW_BY_ROW : GUARD_THE_LOAD,
                            numbers_of_x.data());
    dim3 grid(tiles(C, TILE), tiles(N, TILE)), block(TILE, WARPS_OF_TILE);
    auto launch = [&] { transpose_shared<<<grid, block>>>(out, x, N, C); };
    run(launch);
    const char *early = "the tile must be whole before another thread reads it";
    expect(out, exact, barriers_say({ ALL_REACH_IT, early, early, "one thread loads an element" }),
           [&](size_t i) { return is_right(out[i], exact[i], 0.0) &&
                                  (isnan(out[i]) || !signbit(out[i]) == !signbit(exact[i])); },
           not_written, [&](size_t i) { return moved_from(out, x, N, C, i); });
    expect_again(launch);
    expect_transpose_along_rows(N, C);
    expect_few_barriers((double)grid.x * grid.y * WARPS_OF_TILE, 1, "one, when the tile is whole");
}

static void transpose_case(int N, int C, bool random) {
    launches(random, (size_t)(N + TILE) * (C + TILE), "N=" + std::to_string(N) + ", C=" +
             std::to_string(C), [=] { transpose(N, C); });
}

static void check_transpose_shared() {
    const int sizes[][2] = { { 32, 32 }, { 64, 96 }, { 45, 70 }, { 40, 72 }, { 1, 1 }, { 1, 100 },
                             { 100, 1 }, { 8, 8 }, { 64, 4 }, { 64, 7 },
                             { 5, 64 }, { 31, 33 }, { 50, 50 }, { 24, 40 }, { 300, 240 },
                             { 199, 131 }, { 150, 150 }, { 1100, 1000 }, { 70000, 2 },
                             { 3, 70000 } };
    for (auto &s : sizes) transpose_case(s[0], s[1], false);
    for (int i = 0; i < 5; i++) {
        transpose_case(draw(1, 130), draw(1, 130), true);
        transpose_case(8 * draw(1, 16), 8 * draw(1, 16), true);
        int side = draw(1, 160);
        transpose_case(side, side, true);
        transpose_case(i % 2 ? draw_size() : draw(1, 3), i % 2 ? draw(1, 3) : draw_size(), true);
    }
}

// ---- matmul_tiled ----

struct Matmul {
    int M, N, K;
    float *c;
    const float *a, *b;
    std::vector<double> exact, error;
};

// Where a or b has an infinite number, only its own row or column of c may show it.
static Matmul matmul_new(int M, int N, int K, std::vector<float> a, std::vector<float> b) {
    Matmul p = { M, N, K, NULL, NULL, NULL, std::vector<double>((size_t)M*N, 0.0),
                 std::vector<double>((size_t)M*N, 0.0) };
    for (int m = 0; m < M; m++) for (int n = 0; n < N; n++) for (int k = 0; k < K; k++) {
        double y = (double)a[(size_t)m*K + k] * b[(size_t)k*N + n];
        p.exact[(size_t)m*N + n] += y;
        p.error[(size_t)m*N + n] += 3e-6 * fabs(y) + 1e-45;
    }
    bool whole = M % SIDE == 0 && N % SIDE == 0 && K % SIDE == 0;
    p.c = on_gpu("c", "mn", N, (size_t)M*N, whole ? ROW_BY_ROW : GUARD_THE_STORE);
    p.a = on_gpu("a", "mk", K, (size_t)M*K, whole ? ROW_BY_ROW : GUARD_THE_LOAD, a.data());
    p.b = on_gpu("b", "kn", N, (size_t)K*N, whole ? ROW_BY_ROW : GUARD_THE_LOAD, b.data());
    return p;
}

static void matmul_launch(const Matmul &p) {
    dim3 grid(tiles(p.N, SIDE), tiles(p.M, SIDE)), block(SIDE, SIDE);
    matmul_tiled<<<grid, block>>>(p.c, p.a, p.b, p.M, p.N, p.K);
}

// For c[i], of which M, N and K are known to matter: how many products it sums, from a and b of 1.
static std::string products_hint(const Matmul &p, size_t i) {
    if (!watch.off && asked(emulator::SHARED_LOAD).requests == 0)
        return "no number comes from shared memory: the tiles of a block are __shared__";
    int M = p.M, N = p.N, K = p.K;
    for (size_t j = 0; j < p.exact.size(); j++)
        if (j != i && p.c[i] != 0.0f && isfinite(p.error[j]) &&
            fabs(p.c[i] - p.exact[j]) <= p.error[j])
            return "this is the sum of " + element(array_of(p.c), j) + ": it is stored in another "
                   "place, or for another row or column";
    if (asked(emulator::SHARED_STORE).lanes > 2ull * tiles(M, SIDE) * tiles(N, SIDE) *
        tiles(K, SIDE) * SIDE * SIDE)
        return "a thread writes more than one number of each tile in a step: its sum is a variable "
               "of its own, and not shared";
    bool finite = isfinite(p.exact[i]), got = isfinite(p.c[i]);
    bool all_finite = std::all_of(p.a, p.a + (size_t)M*K, [](float x) { return isfinite(x); }) &&
                      std::all_of(p.b, p.b + (size_t)K*N, [](float x) { return isfinite(x); });
    bool at_an_end = !(fabs(p.exact[i]) > 1e-25 && fabs(p.exact[i]) < 1e25);
    float c = p.c[i];
    arrays_free();
    Matmul ones = matmul_new(M, N, K, std::vector<float>((size_t)M*K, 1.0f),
                             std::vector<float>((size_t)K*N, 1.0f));
    run([&] { matmul_launch(ones); });
    float sum = ones.c[i];
    if (finite && (all_finite || isinf(c)) && at_an_end && sum == (float)K)
        return "with a and b all 1 it is right; a float holds from 1e-38 to 3e38: nothing that is "
               "smaller or larger stands on the way to c, and no limit";
    if (!finite || (!got && isfinite(sum)))
        return "a and b contain an infinite number, which spreads: beyond the edge of a and b both "
               "tiles are 0, and not another element times 0";
    if (!isfinite(sum)) return "it comes from a word of a tile that no thread has written: beyond "
                               "the edge of a and b the tiles are 0";
    char text[160];
    snprintf(text, sizeof text, "with a and b all 1 it is %g, expected %d: ", sum, K);
    if (sum < (float)K) return std::string(text) + (K % SIDE && sum == (float)(K / SIDE * SIDE)
        ? "the last step along K, which is not whole, is missing"
        : "products are missing; the sum goes on over all steps, of 16 products each");
    if (sum > (float)K) return std::string(text) + "too many products are summed; a step has 16, "
                               "for k from 0 to 15, and beyond the edge the tiles are 0";
    return "it sums as many products as it should, but others: the sum over k of a[m*K + k] "
           "b[k*N + n], in float";
}

// What is loaded and stored, by which lanes, and without conflicts. A request is two rows of 16, of
// which each may begin within a sector, or end with a tile's edge.
static void expect_matmul_counts(int M, int N, int K) {
    double blocks = (double)tiles(M, SIDE) * tiles(N, SIDE), steps = tiles(K, SIDE);
    const double warps = SIDE*SIDE / 32;
    expect_moved("global loads", asked(emulator::GLOBAL_LOAD), 2 * blocks * steps * warps,
                 "each thread loads one number of a and one of b for each step along K, and 16 "
                 "threads use it");
    expect_moved("global stores", asked(emulator::GLOBAL_STORE), blocks * warps,
                 "the sum is stored once, after the last step");
    expect_coalesced("global loads", emulator::GLOBAL_LOAD, N % 8 || K % 8 ? 3 : 0);
    expect_coalesced("global stores", emulator::GLOBAL_STORE, N % 8 ? 3 : 0);
    expect_shared_out(2 * (size_t)steps, 1, "each thread loads one number of a and one of b for "
                      "each step along K, and stores one of c");
    expect_no_conflicts("with a tile stored as it is read, a warp stores 2 rows of 16 words, and "
                        "reads one word of a for 16 lanes and a row of b");
    expect_few_barriers(blocks * warps, 2 * steps, "two a step");
}

static void product(int M, int N, int K, bool infinite) {
    int kind = draw(0, arrays.empty() ? 1 : 3), bits = 0;
    int spread = kind < 2 ? 40 : draw(0, 5), hi = 20;
    while (K >> bits) bits++;
    int both = kind < 2 ? 40 : kind == 2 ? 126 - bits : draw(-124, -90);     // ends of the range
    if (kind >= 2) hi = draw(std::max(-124, both - 124), std::min(124, both + 124));
    std::vector<float> a = numbers(M, K, true, hi - spread, hi, infinite || draw(0, 1));
    std::vector<float> b = numbers(K, N, false, both - hi - spread, both - hi,
                                   infinite || draw(0, 1));
    for (int i = 0; infinite && i < 4; i++) {
        a[i == 0 ? K - 1 : i == 1 ? (M - 1)*K : draw(0, M*K - 1)] = draw_special();
        b[i == 0 ? K*N - 1 : i == 1 ? 0 : draw(0, K*N - 1)] = draw_special();
    }
    change_one(draw(0, 1) ? a : b);
    Matmul p = matmul_new(M, N, K, a, b);
    run([&] { matmul_launch(p); });
    std::string barriers = barriers_say({ ALL_REACH_IT,
        "both tiles must be whole before they are read",
        "a tile must be read by all before the next step overwrites it",
        "each element of a tile is one thread's to load, and a thread's sum is its own" });
    expect(p.c, p.exact, barriers,
           [&](size_t i) { return is_right(p.c[i], p.exact[i], p.error[i]); },
           [](size_t) { return "block (x,y) has rows 16 y ... and columns 16 x ... of c, and a "
                               "thread one number; all threads of a block stay to the end"; },
           [&](size_t i) { return products_hint(p, i); });
    expect_again([&] { matmul_launch(p); });
    expect_matmul_counts(M, N, K);
}

static void product_case(int M, int N, int K, bool random, bool infinite) {
    launches(random, (size_t)(M + SIDE) * (N + SIDE) * (K + SIDE) / SIDE, "M=" + std::to_string(M) +
             ", N=" + std::to_string(N) + ", K=" + std::to_string(K) +
             (infinite ? ", not all of a and b finite" : ""), [=] { product(M, N, K, infinite); });
}

static void check_matmul_tiled() {
    const int sizes[][3] = { { 64, 64, 16 }, { 64, 64, 64 }, { 37, 50, 41 }, { 24, 40, 56 },
                             { 1, 1, 1 }, { 3, 5, 7 }, { 17, 1, 33 }, { 1, 17, 15 },
                             { 16, 16, 4200 }, { 33, 20, 1 }, { 40, 16, 128 }, { 33, 33, 33 },
                             { 129, 113, 35 }, { 1, 2, 70000 }, { 2, 1, 69985 }, { 70000, 1, 2 },
                             { 2, 70000, 3 }, { 200, 200, 200 } };
    for (auto &s : sizes) product_case(s[0], s[1], s[2], false, false);
    for (int i = 0; i < 8; i++) {
        int size[3] = { draw(1, 3), draw(1, 3), draw(1, 3) };
        size[i % 3] = draw_size();
        product_case(size[0], size[1], size[2], true, false);
        product_case(draw(1, i % 2 ? 15 : 60), draw(1, i % 3 ? 60 : 15), draw(1, i % 4 ? 90 : 15),
                     true, i % 2);
        product_case(draw(17, 31), draw(17, 31), draw(17, 31), true, true);
        product_case(8 * draw(1, 7), 8 * draw(1, 7), 8 * draw(1, 12), true, false);
    }
}

int main(int argc, char **argv) {
    check_begin();
    if (argc == 2 && strcmp(argv[1], "transpose_shared") == 0) check_transpose_shared();
    else if (argc == 2 && strcmp(argv[1], "matmul_tiled") == 0) check_matmul_tiled();
    else return fprintf(stderr, "check_tiles NAME: the name of an exercise\n"), 2;
    printf("right\n");
    return 0;
}
