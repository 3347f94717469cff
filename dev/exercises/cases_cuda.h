// The exercises in CUDA as data: dev/check/side.h says what a row means. What a kernel costs is
// counted by the emulator, where g++ compiles it: MOST is at most twice what the original asks for.
#define COSTS D(numbers_loaded, MOST, "i", 1) D(numbers_stored, MOST, "i", 1) \
     D(sectors_of_global_memory, MOST, "i", 1)
#define COSTS_OF_ROWS "; a row's lanes share its columns, lane, lane + 32, ..., so that " \
     "neighbours have neighbouring addresses"

CASE(warp_sum, "n9 r8", 100,
     F(out, OUT, "wl", n*r, 32) F(x, IN, "wl", n*r, 32) D(exchanges_of_a_warp, IO, "i", 1),
     BEFORE(),
     CALL(sum_launch(out, x, n, r);
          *exchanges_of_a_warp = asked(emulator::SHUFFLE).requests / (double)(n*(r + r / 2))),
     "every lane has the sum of its warp's 32 numbers, after exchanges of x, the sum so far, with "
     "lanes 16, 8, 4, 2 and 1 apart")
CASE(softmax_row, "N9 C300 r8", 500,
     F(p, OUT, "nc", N, C) F(x, IN, "nc", N, C) COSTS,
     BEFORE(far_rows(x, N, C)),
     CALL(softmax_launch(p, x, N, C, r);
          costs(numbers_loaded, numbers_stored, sectors_of_global_memory)),
     "p is e^(x - the row's largest), divided by the sum of these over the row, of all lanes; warp "
     "n of the grid owns row n" COSTS_OF_ROWS)
CASE(layernorm_cuda, "N9 C300 r8", 6000,
     F(mean, OUT, "n", N) F(rstd, OUT, "n", N) F(out, OUT, "nc", N, C) F(x, IN, "nc", N, C)
     F(gain, IN, "c", C) F(bias, IN, "c", C) COSTS,
     BEFORE(spread(x, N, C)),
     CALL(layernorm_launch(out, mean, rstd, x, gain, bias, N, C, r);
          costs(numbers_loaded, numbers_stored, sectors_of_global_memory)),
     "mean and var are over all lanes' columns, rstd = 1/sqrt(var + 1e-5), out = (x - mean) * rstd "
     "* gain + bias; warp n of the grid owns row n" COSTS_OF_ROWS)
CASE(find_the_race, "N20", 1000,
     F(out, OUT, "nc", N, 256) F(x, IN, "nc", N, 256) D(barriers_of_a_warp, IO, "i", 1),
     BEFORE(),
     CALL(race_launch(out, x, N);
          *barriers_of_a_warp = asked(emulator::BARRIER).requests / (8.0 * N)),
     "a warp writes what another has still to read, or reads what is not yet written: between "
     "which two lines must all threads of the block have met?")
CASE(transpose_shared, "N140 C140", 0,
     F(out, OUT, "cn", C, N) F(x, IN, "nc", N, C) COSTS D(bank_conflicts, IO, "i", 1),
     BEFORE(),
     CALL(transpose_launch(out, x, N, C);
          costs(numbers_loaded, numbers_stored, sectors_of_global_memory);
          *bank_conflicts = conflicts()),
     "out[c*N + n] is x[n*C + c], read and written along rows by way of a tile in shared memory, "
     "whole before it is read; which banks does a column of rows of 32 words use, and of 33?")
CASE(matmul_tiled, "M70 N70 K90", 500,
     F(c, OUT, "mn", M, N) F(a, IN, "mk", M, K) F(b, IN, "kn", K, N) COSTS
     D(bank_conflicts, IO, "i", 1),
     BEFORE(),
     CALL(matmul_launch(c, a, b, M, N, K);
          costs(numbers_loaded, numbers_stored, sectors_of_global_memory);
          *bank_conflicts = conflicts()),
     "c[m*N + n] is the sum over k of a[m*K + k] b[k*N + n]; both tiles are whole before they are "
     "read, and read by all before the next step overwrites them; beyond the edge they are 0; each "
     "number is loaded by one thread of a block and used by 16")
