// The last rung of the ladder in matmul.c: matmul_fast in bf16. It has a file of its own, because
// matmul.c compiles to one precision at a time.
#ifndef PRECISION_BF16
#define PRECISION_BF16
#endif
#define matmul_fast matmul_fast_bf16
#define matmul_packed matmul_packed_bf16
#define pack_whole pack_whole_bf16
#define packed_size packed_size_bf16
#define matvec matvec_bf16
#define bf16_round bf16_round_alone
#include "../cpu/matmul.c"

void matmul_bf16(float *c, const float *a, const float *b, size_t M, size_t N, size_t K);

void matmul_bf16(float *c, const float *a, const float *b, size_t M, size_t N, size_t K) {
    matmul_fast(c, N, rows_of(a, K), rows_of(b, N), NULL, M, N, K, WRITE);
}
