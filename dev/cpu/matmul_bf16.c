// The last rung of the ladder in matmul.c: train_gpt2.c's matmul in bf16. It has a file of its own,
// for train_gpt2.c compiles to one precision at a time.
#ifndef PRECISION_BF16
#define PRECISION_BF16
#endif
#define main train_gpt2_bf16_main
#include "../../train_gpt2.c"
#undef main

void matmul_bf16(float *c, const float *a, const float *b, size_t M, size_t N, size_t K);

void matmul_bf16(float *c, const float *a, const float *b, size_t M, size_t N, size_t K) {
    matmul(c, N, rows_of(a, K), rows_of(b, N), NULL, M, N, K, WRITE);
}
