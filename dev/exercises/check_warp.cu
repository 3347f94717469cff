// The checks of the exercises in warp.cu, run in the emulator: one line, what is wrong or `right`.
#include <string>
#include "dev/exercises/check_cuda.h"
#include "warp.cu"

static __global__ void warp_sum_kernel(float *out, const float *x) {
    out[threadIdx.x] = warp_sum(x[threadIdx.x]);
}

static void check_warp_sum() {
    enum { N = 64 };
    float x[N], sum[2] = {0};
    for (int i = 0; i < N; i++) x[i] = (float)(i*i % 37 + 1), sum[i / 32] += x[i];
    float *out_gpu = on_gpu(N), *x_gpu = on_gpu(N, x);
    warp_sum_kernel<<<1, N>>>(out_gpu, x_gpu);
    std::vector<float> out = fetch("the sum", out_gpu, N);
    if (out[0] == sum[0] && out[1] != sum[0])
        wrong("lane 0 has the sum, lane 1 has %g: every lane must have it; exchange with "
              "__shfl_xor_sync", out[1]);
    for (int i = 0; i < N; i++)
        if (out[i] != sum[i / 32])
            wrong("lane %d of warp %d has %g, expected %g: five exchanges, 16, 8, 4, 2 and 1 lanes "
                  "apart, each added to x", i % 32, i / 32, out[i], sum[i / 32]);
#ifdef EMULATOR_COUNT
    double exchanges = (double)asked(emulator::SHUFFLE).requests / (N / 32);
    if (exchanges != 5.0)
        wrong("the sums are right, after %g exchanges of a warp, expected 5: after each, a lane "
              "has the sum of twice as many", exchanges);
#endif
}

// What the last kernel asked for, if this build counts: along the rows, and no more than `numbers`.
static void expect_along_rows(unsigned long long numbers) {
#ifdef EMULATOR_COUNT
    const char *hint = "a row's warp shares its columns: lane, lane + 32, ...";
    expect_coalesced("the result is right, but global loads", asked(emulator::GLOBAL_LOAD));
    expect_coalesced("the result is right, but global stores", asked(emulator::GLOBAL_STORE));
    expect_moved("the result is right, but global loads", asked(emulator::GLOBAL_LOAD), numbers,
                 hint);
#else
    (void)numbers;
#endif
}

static void check_softmax_row() {
    enum { N = 5, C = 77 };
    static float x[N*C];
    for (int i = 0; i < N*C; i++)
        x[i] = (float)(i*i % 41) * 0.2f + (i / C == 3 ? 1000.0f : i / C == 4 ? -1000.0f : 0.0f)
             + (i == 2*C + 37 ? 1000.0f : 0.0f);
    float *p_gpu = on_gpu(N*C), *x_gpu = on_gpu(N*C, x);
    softmax_row<<<2, 128>>>(p_gpu, x_gpu, N, C);         // 8 warps for 5 rows
    std::vector<float> p = fetch("p", p_gpu, N*C);
    for (int n = 0; n < N; n++) {
        double sum = 0.0, got = 0.0, hi = -INFINITY;
        for (int c = 0; c < C; c++) hi = fmax(hi, x[n*C + c]);
        for (int c = 0; c < C; c++) sum += exp(x[n*C + c] - hi), got += p[n*C + c];
        for (int c = 0; c < C; c++) {
            double exact = exp(x[n*C + c] - hi) / sum, value = p[n*C + c];
            if (value == UNTOUCHED)
                wrong("p[n=%d][c=%d] is not written, expected %.4g; a row is a warp's, of any "
                      "block, and its lanes go on to column C-1", n, c, exact);
            if (!isfinite(value))
                wrong("p[n=%d][c=%d] is %f, expected %.4g; e^1000 overflows and e^-1000 is 0: "
                      "before exp, subtract the largest of the row, not 0", n, c, value, exact);
            if (fabs(value - exact) > 1e-5 * exact + 1e-37)
                wrong("p[n=%d][c=%d] is %.4g, expected %.4g, and the row's sum is %.4g; %s", n, c,
                      value, exact, got, fabs(got - 1.0) > 1e-4
                      ? "divide by the sum over the whole row, of all lanes"
                      : "subtract the same number from the whole row: the largest of all lanes");
        }
    }
    enum { ROWS = 4, COLUMNS = 96 };                     // rows begin with a sector
    count_clear();
    softmax_row<<<1, 128>>>(p_gpu, x_gpu, ROWS, COLUMNS);
    cudaDeviceSynchronize();
    expect_along_rows(3*ROWS*COLUMNS);                   // the largest, the sum, p
}

static void check_layernorm_cuda() {
    enum { N = 5, C = 77 };
    static float x[N*C], gain[C], bias[C];
    std::vector<double> mean(N), rstd(N), out(N*C);
    for (int i = 0; i < N*C; i++) x[i] = 100.0f + (float)(i*i % 41) * 0.01f;
    for (int c = 0; c < C; c++) gain[c] = 0.5f + 0.01f * c, bias[c] = 1.0f - 0.02f * c;
    for (int n = 0; n < N; n++) {
        double var = 0.0;
        for (int c = 0; c < C; c++) mean[n] += (double)x[n*C + c] / C;
        for (int c = 0; c < C; c++) var += pow(x[n*C + c] - mean[n], 2) / C;
        rstd[n] = 1.0 / sqrt(var + 1e-5);
        for (int c = 0; c < C; c++)
            out[n*C + c] = (x[n*C + c] - mean[n]) * rstd[n] * gain[c] + bias[c];
    }
    float *out_gpu = on_gpu(N*C), *mean_gpu = on_gpu(N), *rstd_gpu = on_gpu(N);
    float *x_gpu = on_gpu(N*C, x), *gain_gpu = on_gpu(C, gain), *bias_gpu = on_gpu(C, bias);
    layernorm_cuda<<<2, 128>>>(out_gpu, mean_gpu, rstd_gpu, x_gpu, gain_gpu, bias_gpu, N,
                               C);                       // 8 warps for 5 rows
    expect("mean", fetch("mean", mean_gpu, N), mean, "n", 1,
           "the sum of a row is that of all 32 lanes");
    std::vector<float> got = fetch("rstd", rstd_gpu, N);
    bool no_eps = fabs(got[0] * sqrt(1.0 / (rstd[0]*rstd[0]) - 1e-5) - 1.0) < 1e-4;
    expect("rstd", got, rstd, "n", 1, no_eps ? "1e-5 is missing under the root: 1/sqrt(var + 1e-5)"
           : "1/sqrt(var + 1e-5); var is the mean, over all lanes, of the squared distances from "
             "the row's mean");
    expect("out", fetch("out", out_gpu, N*C), out, "nc", C,
           "(x - mean) * rstd * gain + bias; gain and bias have a number for each channel");
    enum { ROWS = 4, COLUMNS = 64 };                     // rows begin with a sector
    count_clear();
    layernorm_cuda<<<1, 128>>>(out_gpu, mean_gpu, rstd_gpu, x_gpu, gain_gpu, bias_gpu, ROWS,
                               COLUMNS);
    cudaDeviceSynchronize();
    expect_along_rows(5*ROWS*COLUMNS);                   // x three times, gain, bias
}

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
    float *x_gpu = on_gpu(N*C, x);
    for (int order = 0; order <= ORDERS; order++) {
        if (order > 0) setenv("EMULATOR_SHUFFLE", std::to_string(order).c_str(), 1);
        float *out_gpu = on_gpu(N*C);
        standardise<<<N, C>>>(out_gpu, x_gpu);
        expect("out", fetch("out", out_gpu, N*C), exact, "nc", C, order == 0 ?
               "one warp writes what another has still to read, or reads what is not written: "
               "between which two lines must all threads of the block have met?" :
               "it is right in one order of the threads and wrong in another: a race");
    }
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "warp_sum") == 0) check_warp_sum();
    else if (argc == 2 && strcmp(argv[1], "softmax_row") == 0) check_softmax_row();
    else if (argc == 2 && strcmp(argv[1], "layernorm_cuda") == 0) check_layernorm_cuda();
    else if (argc == 2 && strcmp(argv[1], "find_the_race") == 0) check_find_the_race();
    else return fprintf(stderr, "check_warp NAME: the name of an exercise\n"), 2;
    printf("right\n");
    return 0;
}
