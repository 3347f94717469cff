// The checks of the exercises in warp.cu, run in the emulator: one line, what is wrong or `right`.
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "warp.cu"

__attribute__((format(printf, 1, 2), noreturn))
static void wrong(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    printf("\n");
    exit(1);
}

static float *on_gpu(const float *x, size_t n) {
    float *p = NULL;
    cudaMalloc(&p, n * sizeof *p);
    cudaMemcpy(p, x, n * sizeof *p, cudaMemcpyHostToDevice);
    return p;
}

static void fetch(float *x, const float *p, size_t n) {
    cudaError_t error = cudaDeviceSynchronize();
    if (error != cudaSuccess) wrong("the kernel fails: %s", cudaGetErrorString(error));
    cudaMemcpy(x, p, n * sizeof *x, cudaMemcpyDeviceToHost);
}

static __global__ void warp_sum_kernel(float *out, const float *x) {
    out[threadIdx.x] = warp_sum(x[threadIdx.x]);
}

static void check_warp_sum() {
    enum { N = 64 };
    float x[N], out[N] = {0}, sum[2] = {0};
    for (int i = 0; i < N; i++) x[i] = (float)(i*i % 37 + 1), sum[i / 32] += x[i];
    float *out_gpu = on_gpu(out, N), *x_gpu = on_gpu(x, N);
    warp_sum_kernel<<<1, N>>>(out_gpu, x_gpu);
    fetch(out, out_gpu, N);
    if (out[0] == sum[0] && out[1] != sum[0])
        wrong("lane 0 has the sum, lane 1 has %g: every lane must have it; exchange with "
              "__shfl_xor_sync", out[1]);
    for (int i = 0; i < N; i++)
        if (out[i] != sum[i / 32])
            wrong("lane %d of warp %d has %g, expected %g: five exchanges, 16, 8, 4, 2 and 1 lanes "
                  "apart, each added to x", i % 32, i / 32, out[i], sum[i / 32]);
}

static void check_softmax_row() {
    enum { N = 5, C = 77 };
    static float x[N*C], p[N*C];
    for (int i = 0; i < N*C; i++) x[i] = (float)(i*i % 41) * 0.2f + (i / C == 3 ? 200.0f : 0.0f);
    float *p_gpu = on_gpu(p, N*C), *x_gpu = on_gpu(x, N*C);
    softmax_row<<<2, 128>>>(p_gpu, x_gpu, N, C);         // 8 warps for 5 rows
    fetch(p, p_gpu, N*C);
    for (int n = 0; n < N; n++) {
        double sum = 0.0, got = 0.0;
        for (int c = 0; c < C; c++) sum += exp((double)x[n*C + c]), got += p[n*C + c];
        for (int c = 0; c < C; c++) {
            double exact = exp((double)x[n*C + c]) / sum, value = p[n*C + c];
            if (!isfinite(value))
                wrong("p: row %d has %f; subtract the row's largest before exp", n, value);
            if (fabs(value - exact) > 1e-5 * exact)
                wrong("p: row %d column %d is %.4g, expected %.4g, and the row's sum is %.4g; the "
                      "largest and the sum are those of the whole row, of all lanes", n, c, value,
                      exact, got);
        }
    }
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "warp_sum") == 0) check_warp_sum();
    else if (argc == 2 && strcmp(argv[1], "softmax_row") == 0) check_softmax_row();
    else return fprintf(stderr, "check_warp NAME: the name of an exercise\n"), 2;
    printf("right\n");
    return 0;
}
