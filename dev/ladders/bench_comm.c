// What an all-reduce costs between the ranks that are started: alpha + beta * bytes (Hockney's
// model). alpha: seconds for the messages, however short; beta: seconds for a byte of the buffer.
// The ranks wait for each other before each all-reduce, so no rank's delay is counted.
//
//     mpirun -n 2 build/bench_comm       a line of JSON: ranks, alpha, beta, and LINK of --plan-gpu
//     mpirun -n 2 build/bench_comm N     the same, with N floats as the longest buffer
//
// beta comes from the longest buffer, alpha from the shortest. With n ranks, an all-reduce is two
// exchanges of n-1 slices of n, each with a latency: LINK is 2 (n-1)/(n beta) + alpha/2.
#include "../base/base.h"
#define main train_gpt2_main
#include "../../train_gpt2.c"
#undef main
#include "ladder.h"                    // Samples, samples_median

// The median seconds of an all-reduce of n floats, on the slowest rank.
static double all_reduce_seconds(Comm *comm, float *x, size_t n, int times) {
    Samples samples = { { 0 }, 0 };
    for (int i = 0; i < times; i++) {
        double own = 0.0, all[COMM_MAX_RANKS], slowest = 0.0;
        comm_collect_now(comm, all, &own, sizeof own);       // the ranks wait for each other
        double start = seconds_now();
        comm_wait(comm, comm_all_reduce(comm, x, n, 1.0f, COMM_FP32));
        own = seconds_now() - start;
        comm_collect_now(comm, all, &own, sizeof own);
        for (int r = 0; r < comm->size; r++) slowest = fmax(slowest, all[r]);
        if (i > 0) samples_add(&samples, slowest);           // the first one opens connections
    }
    return samples_median(&samples);
}

int main(int argc, char **argv) {
    const size_t SHORTEST = 64, LONGEST = argc > 1 ? strtoul(argv[1], NULL, 10) : 1 << 20;
    *program_name() = "bench_comm";
    if (argc > 2 || LONGEST <= SHORTEST || LONGEST > 1 << 28)
        die("expected a number of floats, from %zu to 2^28", SHORTEST + 1);
    Comm comm;
    Error err;
    if (!comm_open(&comm, 60.0, &err)) die("%s", err.text);
    if (comm.size == 1) die("start several ranks: mpirun -n 2 build/bench_comm");
    float *x = (float *)alloc_or_die(LONGEST * sizeof *x, "a buffer");
    memset(x, 0, LONGEST * sizeof *x);
    double n = comm.size, alpha = all_reduce_seconds(&comm, x, SHORTEST, 101);
    double whole = all_reduce_seconds(&comm, x, LONGEST, 41);
    double beta = fmax(whole - alpha, 0.1*whole) / (LONGEST * sizeof *x);
    if (comm.rank == 0)
        printf("{\"ranks\":%d,\"alpha\":%.4g,\"beta\":%.4g,\"link\":\"%.4gGB/s+%.4gus\"}\n",
               comm.size, alpha, beta, 2e-9*(n - 1.0)/n / beta, 0.5e6*alpha);
    free(x);
    comm_close(&comm);
    return 0;
}
