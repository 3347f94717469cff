// The checks of the exercises in warp.cu, run in the emulator: one line, what is wrong or `right`.
#include <string>
#include "dev/exercises/check_cuda.h"
#include "warp.cu"

// ---- warp_sum ----

// Odd warps of a block have summed something else before: a barrier or an old sum would show.
static __global__ void warp_sum_kernel(float *out, const float *x) {
    int thread = (int)(threadIdx.y * blockDim.x + threadIdx.x);
    int i = (int)(blockIdx.x * blockDim.x * blockDim.y) + thread;
    if (thread / 32 % 2) warp_sum(1.0f);
    out[i] = warp_sum(x[i]);
}

// How often the sum of `lane` contains each lane's number: warp j of the launch sums 1 of lane j.
static std::vector<float> contained(int lane) {
    enum { N = 32*32 };
    std::vector<float> x(N, 0.0f), times;
    for (int j = 0; j < 32; j++) x[j*32 + j] = 1.0f;
    arrays_free();
    float *x_gpu = on_gpu("x", "i", 1, N, "", x.data()), *out = on_gpu("out", "i", 1, N, "");
    run([&] { warp_sum_kernel<<<32, 32>>>(out, x_gpu); });
    for (int j = 0; j < 32; j++) times.push_back(out[j*32 + lane]);
    return times;
}

// What is wrong with the sum of `lane`, from the numbers that it contains.
static std::string sum_hint(int lane, bool lane_0_right) {
    std::vector<float> times = contained(lane);
    int has = 0, missing = -1, twice = -1;
    if (lane && lane_0_right)
        return "lane 0 has the sum, and every lane must have it: exchange with __shfl_xor_sync";
    for (int j = 0; j < 32; j++) {
        if (times[j] != floorf(times[j]))
            return "it contains what no lane gave: all 32 lanes take part in each __shfl_xor_sync, "
                   "and no memory is needed";
        has += times[j] == 1.0f;
        int apart = j ^ lane;                    // best one exchange away: a power of 2
        if (times[j] == 0.0f && (missing < 0 || !(apart & (apart - 1)))) missing = j;
        if (times[j] > 1.0f) twice = j;
    }
    std::string other = std::to_string(twice >= 0 ? twice : missing);
    if (twice >= 0)
        return "it contains lane " + other + "'s number more than once: the five exchanges are 16, "
               "8, 4, 2 and 1 lanes apart, each once";
    if (has == 32)
        return "a warp's 0s and 1s are summed right: each warp of a block sums its own 32 numbers, "
               "and x may be negative, a fraction, large, NaN";
    if (has == 1) return "it contains the number of one lane alone: each exchange is added to x";
    return "it contains the numbers of " + std::to_string(has) + " of 32 lanes, and not lane " +
           other + "'s: an exchange 16, 8, 4, 2 and 1 lanes apart, each of x, the sum so far";
}

enum SumKind { WHOLE, NEAR, SCALED, INFINITE, SPARSE_SUM, SUM_KINDS };       // of the numbers of x

static void sums(dim3 grid, dim3 block, SumKind kind) {
    int n = (int)(grid.x * block.x * block.y);
    std::vector<float> x(n);
    std::vector<double> sum(n, 0.0), error(n, 0.0);
    bool positive = draw(0, 1);
    float scale = draw(0, 1) ? draw_power(-59, 28) : draw(0, 1) ? 0x1p-59f : 0x1p28f;
    for (float &e : x)
        e = kind == WHOLE ? (float)draw(-40, 40) : kind == NEAR ? 1.0f + draw_float()
          : kind == SPARSE_SUM && draw(0, 40) ? 0.0f
          : (positive ? 1.0f + fabsf(draw_float()) / 2.0f : draw_float()) *
            (kind == INFINITE ? draw_power(-15, 15) : scale);
    for (int i = 0; kind >= INFINITE && i < 4; i++) x[draw(0, n - 1)] = draw_special();
    change_one(x);
    for (int i = 0; i < n; i++) sum[i/32*32] += x[i], error[i/32*32] += 3e-7 * fabs(x[i]);
    float *x_gpu = on_gpu("x", "i", 1, n, "", x.data()), *out = on_gpu("out", "i", 1, n, "");
    auto launch = [&] { warp_sum_kernel<<<grid, block>>>(out, x_gpu); };
    run(launch);
    std::vector<float> got(out, out + n);
    auto right = [&](int i, int of) { return is_right(got[i], sum[of], error[of]); };
    for (int i = 0, first; i < n; i++)
        if (!right(i, first = i/32*32))
            wrong("lane %d of warp %d has %s: %s", i % 32, i / 32,
                  is_expected(got[i], sum[first]).c_str(),
                  !std::isfinite(sum[first]) && std::isfinite(got[i])
                      ? "a number that is not finite must come through"
                  : fabs(got[i] - sum[first]) < 1e-3 * fabs(sum[first])
                      ? "numbers are lost, or rounded: floats are exchanged and added, small too"
                      : sum_hint(i % 32, right(first, first)).c_str());
    expect_again(launch);
#ifdef EMULATOR_COUNT
    unsigned warps = block.x * block.y / 32;
    double exchanges = (double)asked(emulator::SHUFFLE).requests / (grid.x * (warps + warps / 2));
    if (asked(emulator::BARRIER).requests > 0)
        wrong("it contains a barrier: a warp may call it alone, while others of its block do not");
    if (asked(emulator::SHARED_STORE).requests > 0)
        wrong("the sums are right, but shared memory is written: the exchanges do without");
    if (exchanges != 5.0)
        wrong("the sums are right, after %g exchanges of a warp, expected 5: after each, a lane "
               "has the sum of twice as many", exchanges);
#endif
}

static void check_warp_sum_case(int blocks, dim3 block, SumKind kind, bool random) {
    int warps = (int)(block.x * block.y / 32);
    launches(random, 32*warps*blocks, "blocks: " + std::to_string(blocks) +
             ", warps of a block: " + std::to_string(warps), [=] { sums(blocks, block, kind); });
}

static void check_warp_sum() {
    check_warp_sum_case(1, 64, WHOLE, false);
    for (int i = 0; i < 64; i++)
        check_warp_sum_case(draw(1, 9), i < 32 ? dim3(32*i + 32) : dim3(32, i - 31),
                            (SumKind)draw(1, SUM_KINDS - 1), true);
    check_warp_sum_case(2200, 32, SCALED, true);
}

// ---- rows: what softmax_row and layernorm_cuda share ----

static const char *ENDS = "do threads without work leave, and do the others stop at the end of a "
                          "row?";

static const char *OWN_ROW = "a warp has a row of its own: it waits for no other warp, and shares "
                             "no memory with one";

// Rows of each kind in turn: their numbers fit the exact results that a float can give.
enum RowKind { FAR_ABOVE, PLAIN, FAR_BELOW, PEAK, CONSTANT, SMALL, SPREAD, HAS_SPECIAL, SPARSE,
               ROW_KINDS };

// Numbers up to 2^most.
static std::vector<float> rows_draw(int N, int C, int first, int most) {
    std::vector<float> x((size_t)N*C);
    for (int n = 0; n < N; n++) {
        RowKind kind = (RowKind)((n + first) % ROW_KINDS);
        float *row = &x[(size_t)n*C], far = draw(0, 1) ? 1000.0f : draw_power(10, most);
        float level = kind == FAR_ABOVE ? far : kind == FAR_BELOW ? -far : 0.0f;
        float scale = kind == SPREAD ? 26.0f : kind != SMALL ? 2.0f
                    : draw(0, 1) ? draw_power(-14, 0) : draw_power(-126, std::min(most, 124));
        for (int c = 0; c < C; c++)
            row[c] = kind == CONSTANT ? 2.5f : kind == SPARSE && draw(0, 30) ? 0.0f
                   : level + scale * draw_float();
        if (kind == PEAK) row[draw(0, C - 1)] = C > 10000 ? 19.0f : far;     // many e^-19 count
        if (kind == HAS_SPECIAL || (kind == SPARSE && draw(0, 1)))
            row[draw(0, C - 1)] = draw_special();
        if (kind == HAS_SPECIAL && draw(0, 2) == 0)
            std::fill(row, row + C, draw(0, 1) ? INFINITY : -INFINITY);
        if (kind == PLAIN && C > 999) row[draw(C / 2, C - 1)] = 1000.0f;
    }
    return x;
}

typedef void (*RowsCheck)(int N, int C, int blocks, int warps, int first);

static void check_case(RowsCheck check, int N, int C, int warps, int spare, bool random) {
    launches(random, (size_t)N * (C + 32), "N=" + std::to_string(N) + ", C=" + std::to_string(C) +
             ", warps of a block: " + std::to_string(warps), [=] {
        int first = random ? draw(0, ROW_KINDS - 1) : PLAIN;
        check(N, C, (N + warps - 1) / warps + spare, warps, first);
    });
}

// Sizes and blocks below and above those of 32 lanes; more warps than rows, none left, one row.
static void check_rows(RowsCheck check) {
    const int cases[][4] = { { 5, 77, 4, 1 }, { 8, 256, 4, 0 }, { 1, 20, 1, 0 }, { 9, 1, 2, 1 },
                             { 130, 33, 8, 0 }, { 9, 32, 32, 1 }, { 3, 1300, 4, 0 },
                             { 8, 70000, 2, 0 }, { 70000, 2, 1, 0 } };
    for (auto &c : cases) check_case(check, c[0], c[1], c[2], c[3], false);
    for (int warps = 1; warps <= 32; warps++) {
        bool large = warps % 3 == 0, many = warps % 2;
        int N = large && many ? draw_size() : draw(1, large ? 4 : many ? 9 : 70);
        int C = large && !many ? draw_size() : draw(1, large ? 3 : draw(0, 1) ? 31 : 300);
        check_case(check, N, C, warps, draw(0, 3), true);
    }
}

static std::string row_hint(const float *at, int C, size_t i) {
    size_t first = i / C * C;
    if (std::equal(at + first, at + first + C, &array_of(at).before[first]))
        return "warp n of the grid owns row n, which begins at n*C; all blocks count, and a block "
               "has blockDim.x / 32 warps";
    return "a row's lanes go on to column C-1, by 32 columns each time, and stop there";
}

// The rows of the last run: each is one warp's, whose lanes share its columns.
static void expect_along_rows(int N, int C) {
#ifdef EMULATOR_COUNT
    double requests = (double)N * ((C + 31) / 32);           // of each load and store
    const char *loads = "the result is right, but global loads";
    const char *stores = "the result is right, but global stores";
    for (auto &i : emulator::counted().at(0).instructions)
        if (i.first.kind == emulator::GLOBAL_LOAD)
            expect_moved(loads, i.second, requests, "a row's warp shares its columns: lane, lane + "
                         "32, ...");
        else if (i.first.kind == emulator::GLOBAL_STORE)
            expect_moved(stores, i.second, requests, "each row is written by one warp, whose lanes "
                         "share its columns: lane, lane + 32, ...");
    int more = C % 8 > 0;                        // else rows begin with a sector
    expect_coalesced(loads, emulator::GLOBAL_LOAD, more);
    expect_coalesced(stores, emulator::GLOBAL_STORE, more);
    if (asked(emulator::BARRIER).requests > 0)
        wrong("the result is right, but there is a barrier: %s", OWN_ROW);
    if (!watch.foreign.empty())
        wrong("the result is right, but %s: warp n of the grid owns row n", watch.foreign.c_str());
#else
    (void)N, (void)C;
#endif
}

// ---- softmax_row ----

static std::string softmax_hint(const float *x, const float *p, const double *exact, int C, int c) {
    double sum = 0.0, most = 0.0, mine = 0.0;
    bool row_alike = true, lane_alike = true;    // the same factor to what is exact
    if (p[c] == 0.0f && exact[c] > 1e-44)
        return "small probabilities count too: p is e^(x - the row's largest) / sum, if a float "
               "can hold it";
    if (std::count(x, x + C, -INFINITY) && isnan(p[c]))
        return "where x is -infinity e^x is 0; but -infinity less -infinity, of a lane that has "
               "met no other number, is NaN";
    for (int k = 0; k < C; k++) {
        bool other = exact[k] > 1e-30 && !near(p[k] / exact[k], p[c] / exact[c]);
        sum += p[k];
        most = fmax(most, fabs(x[k]));
        row_alike = row_alike && !other;
        if (k % 32 == c % 32) mine += p[k], lane_alike = lane_alike && !other;
    }
    char row[64];
    snprintf(row, sizeof row, "the row's sum is %.4g: ", sum);
    if (p[c] > 0.0f && exact[c] < 1e-30)
        return "e^(x - the row's largest) may be as small as 0: bound no difference, and subtract "
               "the largest of all lanes, not 0";
    if ((!isfinite(p[c]) || exact[c] < 1e-30) && most > 80.0)
        return "e^1000 overflows and e^-1000 is 0: before exp, subtract the largest of the row, of "
               "all lanes, not 0";
    if (!isfinite(p[c]))
        return "does every lane take part in warp_max and warp_sum, also one without a column?";
    return row + std::string(
        row_alike ? "all of it has the same factor; divide by the sum over the whole row, of all "
                    "lanes, by nothing more, and in float" :
        near(mine, 1.0) ? "a lane's own columns add up to 1; divide by the sum over the whole row, "
                          "of all lanes" :
        lane_alike ? "columns of one lane have the same factor; subtract the same number from the "
                     "whole row: the largest of all lanes" :
        "p is e^(x - the row's largest), divided by the sum of these over the row");
}

static void softmax_case(int N, int C, int blocks, int warps, int first) {
    std::vector<float> x = rows_draw(N, C, first, 127);
    change_one(x);
    std::vector<double> exact((size_t)N*C), error((size_t)N*C);
    for (int n = 0; n < N; n++) {
        const float *row = &x[(size_t)n*C];
        double sum = 0.0, hi = *std::max_element(row, row + C);
        for (int c = 0; c < C; c++) sum += exp(row[c] - hi);
        for (int c = 0; c < C; c++) {            // float's errors: of the sum, of x - hi
            size_t i = (size_t)n*C + c;
            exact[i] = exp(row[c] - hi) / sum;
            error[i] = (3e-7 + 1e-7 * std::min(C, 37) + 1e-9 * C +
                        1e-7 * fmin(hi - row[c], 200.0)) * exact[i] + 1e-44;
        }
    }
    const float *x_gpu = on_gpu("x", "nc", C, (size_t)N*C, ENDS, x.data());
    float *p = on_gpu("p", "nc", C, (size_t)N*C, ENDS);
    auto launch = [&] { softmax_row<<<blocks, warps*32>>>(p, x_gpu, N, C); };
    run(launch);
    expect(p, exact, barriers_say({ OWN_ROW, OWN_ROW, OWN_ROW, OWN_ROW }),
           [&](size_t i) { return is_right(p[i], exact[i], error[i], SOMEHOW); },
           [&](size_t i) { return row_hint(p, C, i); }, [&](size_t i) {
               size_t row = i / C * C;
               return softmax_hint(&x[row], p + row, &exact[row], C, (int)(i - row));
           });
    expect_again(launch);
    expect_along_rows(N, C);
}

// ---- layernorm_cuda ----

struct Row { const float *x; double mean, var, rstd; int C; };

static std::string mean_hint(const Row &r, double got) {
    double whole = 0.0;
    for (int c = 0; c < r.C / 32 * 32; c++) whole += r.x[c];
    if (near(got, r.rstd)) return "this is rstd: out, mean, rstd is the order";
    if (!isfinite(got)) return "does every lane take part in warp_sum, also one without a column?";
    if (r.C % 32 && near(got, whole / r.C))
        return "the last C % 32 columns are missing: lanes go on to column C-1";
    return "the sum of a row is that of all 32 lanes, of its columns 0 ... C-1, divided by C";
}

static std::string rstd_hint(const Row &r, double got) {
    double eps = 1.0 / (got*got) - r.var, squares = r.var + r.mean*r.mean;
    if (near(got, r.var)) return "this is the variance: rstd is 1/sqrt(var + 1e-5)";
    if (near(got, 1.0 / r.rstd)) return "this is the deviation: rstd is 1/sqrt(var + 1e-5)";
    if (r.C > 1 && near(got, 1.0 / sqrt(r.var * r.C / (r.C - 1) + 1e-5)))
        return "var is the mean over C numbers, not over C - 1";
    if (near(got, 1.0 / sqrt(squares + 1e-5)))
        return "this is of the mean of the squares: subtract the row's mean first";
    if (fabs(eps) < 1e-4 && r.var < 1e-4) {
        char text[96];
        snprintf(text, sizeof text, "var + %.1g is under the root; 1/sqrt(var + 1e-5)", eps);
        return fabs(eps) < 1e-9 ? "1e-5 is missing under the root: 1/sqrt(var + 1e-5)" : text;
    }
    if (fabs(r.mean) > fmax(100.0, 100.0 * sqrt(r.var)))
        return "the row's numbers differ little, and are large: subtract the mean, then square; "
               "the mean of squares less mean^2 loses all digits";
    return "1/sqrt(var + 1e-5); var is the mean, over all lanes, of the squared distances from the "
           "row's mean, which every lane needs";
}

static std::string out_hint(const Row &r, double got, double gain, double bias, double gain_n,
                            double bias_n, int c) {
    double xhat = (r.x[c] - r.mean) * r.rstd, exact = xhat * gain + bias;
    auto is = [&](double y) {
        return fabs(got - y) <= 1e-4 * (fabs(y) + 1e-2 * fmin(fabs(exact), 1.0)) && y != exact;
    };
    if (is(xhat * gain)) return "bias is missing: (x - mean) * rstd * gain + bias";
    if (is(xhat + bias) || is(xhat)) return "gain is missing: (x - mean) * rstd * gain + bias";
    if (is((xhat + bias) * gain)) return "gain is to multiply before bias is added";
    if (is(xhat * gain_n + bias_n) || is(xhat * gain_n + bias))
        return "gain and bias have a number for each channel, not for each row";
    if (!isfinite(got)) return "mean and rstd are right: does every lane have them, and does it "
                               "divide by nothing that may be 0?";
    return "mean and rstd are right; (x - mean) * rstd * gain + bias, where gain and bias have a "
           "number for each channel";
}

struct LayerNorm {
    std::vector<float> x, gain, bias;
    std::vector<double> most, mean, rstd, out, error;
};

static LayerNorm layernorm_exact(int N, int C, int first) {
    std::vector<double> rows(N), all((size_t)N*C);
    std::vector<float> channels(C);
    int most = 61;                               // a float holds the sum of C squares
    for (int c = C; c > 0; c /= 4) most--;
    LayerNorm e = { rows_draw(N, C, first, most), channels, channels, rows, rows, rows,
                    all, all };
    for (int c = 0; c < C; c++) {
        e.gain[c] = c % 5 == 4 ? 0.0f : c % 7 == 6 ? draw_float() * draw_power(-20, 20)
                                                   : draw_float();
        e.bias[c] = c % 3 == 2 ? draw_float() * draw_power(-20, 20) : draw_float();
    }
    if (C > 9) e.gain[draw(0, C - 1)] = draw_special(), e.bias[draw(0, C - 1)] = draw_special();
    change_one(draw(0, 1) ? e.x : draw(0, 1) ? e.gain : e.bias);
    for (int n = C % 2; C > 999 && n < N; n += 2)            // the ends are unlike all between
        e.x[(size_t)n*C] = 300.0f, e.x[(size_t)(n + 1)*C - 1] = -200.0f;
    for (int n = 0; n < N; n++) {
        const float *x = &e.x[(size_t)n*C];
        double var = 0.0, most = 0.0;
        for (int c = 0; c < C; c++) e.mean[n] += (double)x[c] / C, most = fmax(most, fabs(x[c]));
        for (int c = 0; c < C; c++) var += pow(x[c] - e.mean[n], 2) / C;
        e.rstd[n] = 1.0 / sqrt(var + 1e-5);
        e.most[n] = most;
        for (int c = 0; c < C; c++) {            // float's error in the mean is the largest
            double y = (x[c] - e.mean[n]) * e.rstd[n];
            e.out[(size_t)n*C + c] = y * e.gain[c] + e.bias[c];
            e.error[(size_t)n*C + c] = (1e-5 + 1e-10 * C) * (fabs(y * e.gain[c]) + fabs(e.bias[c]))
                                     + (5e-7*most + 1e-44) * e.rstd[n] * fabs(e.gain[c])
                                     + 1e-44 * (1.0 + fabs(e.gain[c]));
        }
    }
    return e;
}

static void layernorm_case(int N, int C, int blocks, int warps, int first) {
    LayerNorm e = layernorm_exact(N, C, first);
    size_t size = (size_t)N*C;
    float *out = on_gpu("out", "nc", C, size, ENDS), *mean = on_gpu("mean", "n", 1, N, ENDS);
    float *rstd = on_gpu("rstd", "n", 1, N, ENDS);
    const float *x = on_gpu("x", "nc", C, size, ENDS, e.x.data());
    const float *gain = on_gpu("gain", "c", 1, C, ENDS, e.gain.data());
    const float *bias = on_gpu("bias", "c", 1, C, ENDS, e.bias.data());
    auto launch = [&] {
        layernorm_cuda<<<blocks, warps*32>>>(out, mean, rstd, x, gain, bias, N, C);
    };
    run(launch);
    std::string barriers = barriers_say({ OWN_ROW, OWN_ROW, OWN_ROW, OWN_ROW });
    auto row = [&](size_t n) {
        double r = e.rstd[n];
        return Row{ x + n*C, e.mean[n], 1.0 / (r*r) - 1e-5, r, C };
    };
    auto row_of_out = [&](size_t i) { return row_hint(out, C, i); };
    auto row_alone = [&](size_t n) {
        return out[n*C] == array_of(out).before[n*C] ? row_hint(out, C, n*C)
                                                     : "one lane of each row's warp writes it";
    };
    expect(mean, e.mean, barriers, [&](size_t n) {
        return is_right(mean[n], e.mean[n], 5e-7 * e.most[n] + 1e-44, SOMEHOW);
    }, row_alone, [&](size_t n) { return mean_hint(row(n), mean[n]); });
    expect(rstd, e.rstd, "", [&](size_t n) {     // float's error in the mean adds its square to var
        double error = 4e-6 + 1e-10 * C + pow(5e-7 * e.most[n] * e.rstd[n], 2);
        return is_right(rstd[n], e.rstd[n], error * e.rstd[n], SOMEHOW);
    }, row_alone, [&](size_t n) { return rstd_hint(row(n), rstd[n]); });
    auto out_right = [&](size_t i) { return is_right(out[i], e.out[i], e.error[i], SOMEHOW); };
    expect(out, e.out, "", out_right, row_of_out, [&](size_t i) {
        size_t n = i / C, c = i % C;
        return out_hint(row(n), out[i], gain[c], bias[c], gain[n % C], bias[n % C], (int)c);
    });
    expect_again(launch);
    expect_along_rows(N, C);
}

// ---- find_the_race ----

// In turn, then in orders of threads that the emulator draws.
static void check_find_the_race() {
    enum { N = 3, C = 256, ORDERS = 20 };
    static float x[N*C];
    std::vector<double> exact(N*C);
    for (int i = 0; i < N*C; i++) x[i] = (float)(i*i % 41) + (float)(i % C);
    for (int n = 0; n < N; n++) {
        double mean = 0.0, var = 0.0;
        for (int c = 0; c < C; c++) mean += (double)x[n*C + c] / C;
        for (int c = 0; c < C; c++) var += pow(x[n*C + c] - mean, 2) / C;
        for (int c = 0; c < C; c++) exact[n*C + c] = (x[n*C + c] - mean) / sqrt(var + 1e-5);
    }
    for (int order = 0; order <= ORDERS; order++) {
        if (order > 0) setenv("EMULATOR_SHUFFLE", std::to_string(order).c_str(), 1);
        const float *x_gpu = on_gpu("x", "nc", C, N*C, ENDS, x);
        float *out = on_gpu("out", "nc", C, N*C, ENDS);
        run([&] { standardise<<<N, C>>>(out, x_gpu); });
        const char *between = "between which two lines must all threads of the block have met?";
        std::string hint = std::string(order == 0 ? "one warp writes what another has still to "
            "read, or reads what is not written: " : "in another order it is right: ") + between;
        std::string barriers = barriers_say({ "it stands in no if", between, between, between });
        expect(out, exact, watch.uneven ? barriers : "",
               [&](size_t i) { return fabs(out[i] - exact[i]) <= 1e-4; },
               [&](size_t) { return hint; }, [&](size_t) { return hint; });
        if (watch.race)
            wrong("out is right in this order of the threads, but %s", barriers.c_str());
#ifdef EMULATOR_COUNT
        expect_few_barriers(N*C / 32, 3, "only one is missing, in a place that is met once");
#endif
        arrays_free();
    }
}

int main(int argc, char **argv) {
    check_begin();
    if (argc == 2 && strcmp(argv[1], "warp_sum") == 0) check_warp_sum();
    else if (argc == 2 && strcmp(argv[1], "softmax_row") == 0) check_rows(softmax_case);
    else if (argc == 2 && strcmp(argv[1], "layernorm_cuda") == 0) check_rows(layernorm_case);
    else if (argc == 2 && strcmp(argv[1], "find_the_race") == 0) check_find_the_race();
    else return fprintf(stderr, "check_warp NAME: the name of an exercise\n"), 2;
    printf("right\n");
    return 0;
}
