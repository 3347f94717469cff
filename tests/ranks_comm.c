// The collectives of dev/ranks/comm.c between several ranks, and DiLoCo's outer step, against what
// one process works out by itself. tests/test_ranks.sh builds it with mpicc and starts it under
// mpirun; every rank runs every test.
#define main train_gpt2_main
#include "../train_gpt2.c"
#undef main
#include "../dev/ranks/comm_mpi.c"
#include "test.h"

static Comm comm;                          // the same for all tests
static const size_t counts[] = { 0, 1, 63, 64, 65, 1000, 20000 };
enum { N_COUNTS = sizeof counts / sizeof *counts };

static float *floats(size_t n) { return alloc_or_die(n * sizeof(float), "numbers of a test"); }

// What a rank brings into collective `seed`. Every rank can work it out for all the others. The
// sizes vary, so that another order of adding gives other bits.
static void numbers_of(float *x, size_t n, int rank, uint64_t seed) {
    Rng rng = rng_make(seed, (uint64_t)rank);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)ldexp(rng_uniform(&rng) - 0.5, (int)rng_below(&rng, 8));
}

// scale times the sum over the ranks, each number narrowed to bf16 before if it travels so.
static void wanted_sum(float *sum, size_t n, uint64_t seed, float scale, CommType type) {
    const void *terms[COMM_MAX_RANKS] = { NULL };
    for (int r = 0; r < comm.size; r++) {
        float *x = floats(n);
        numbers_of(x, n, r, seed);
        for (size_t i = 0; i < n && type == COMM_BF16; i++) x[i] = bf16_widen(bf16_narrow(x[i]));
        terms[r] = x;
    }
    tree_sum(sum, terms, comm.size, scale, COMM_FP32, COMM_WRITE, n);
    for (int r = 0; r < comm.size; r++) free((void *)terms[r]);
}

static bool same_bits(const float *a, const float *b, size_t n) {
    return n == 0 || memcmp(a, b, n * sizeof *a) == 0;
}

// ---- what a rank must send ----

typedef struct { uint64_t all, across; } Sent;         // bytes

static int n_near;                         // ranks of the first level, as the caller says

static size_t slice_of(size_t n, int rank) { return comm_slice(n, rank, comm.size).count; }

// Elements of the slices that have this rank's number, one a machine.
static size_t of_this_number(size_t n) {
    size_t sum = 0;
    for (int r = comm.rank % n_near; r < comm.size; r += n_near) sum += slice_of(n, r);
    return sum;
}

// One level: slices to all others, one by one. Two levels: the slices of all other numbers
// within the machine, and partial sums between machines, in fp32.
static Sent sent_by_scatter(size_t n, size_t bytes) {
    Sent s = { bytes * (n - slice_of(n, comm.rank)), 0 };
    for (int r = 0; r < comm.size && n_near == comm.size; r++)
        if (comm.host[r] != comm.host[comm.rank]) s.across += bytes * slice_of(n, r);
    if (n_near == comm.size) return s;
    s.across = 4 * (of_this_number(n) - slice_of(n, comm.rank));
    s.all = bytes * (n - of_this_number(n)) + s.across;
    return s;
}

// Two levels: its slice to each other machine, and the slices of its number within its own.
static Sent sent_by_gather(size_t n, size_t bytes) {
    Sent s = { bytes * (size_t)(comm.size - 1) * slice_of(n, comm.rank), 0 };
    for (int r = 0; r < comm.size && n_near == comm.size; r++)
        if (comm.host[r] != comm.host[comm.rank]) s.across += bytes * slice_of(n, comm.rank);
    if (n_near == comm.size) return s;
    s.across = bytes * (size_t)(comm.size / n_near - 1) * slice_of(n, comm.rank);
    s.all = bytes * (size_t)(n_near - 1) * of_this_number(n) + s.across;
    return s;
}

static void check_sent(CommCounters before, Sent want, const char *what, size_t n) {
    CommCounters now = comm_counters(&comm);
    unsigned long long all = now.bytes_sent - before.bytes_sent;
    unsigned long long across = now.bytes_across - before.bytes_across;
    CHECK_MSG(all == want.all, "rank %d, %s of %zu: sent %llu bytes, not %llu", comm.rank, what, n,
              all, (unsigned long long)want.all);
    CHECK_MSG(across == want.across, "rank %d, %s of %zu: %llu bytes to other machines, not %llu",
              comm.rank, what, n, across, (unsigned long long)want.across);
}

// ---- the collectives, one at a time ----

static void check_reduce_scatter(size_t n, CommType type, CommMode mode, bool in_place) {
    Slice own = comm_slice(n, comm.rank, comm.size);
    float *in = floats(n), *sum = floats(n), *apart = floats(own.count + 1);
    float *out = in_place ? in + own.begin : apart;
    CommCounters before = comm_counters(&comm);
    numbers_of(in, n, comm.rank, n);
    wanted_sum(sum, n, n, 0.5f, type);
    for (size_t i = 0; i < own.count && mode == COMM_ADD; i++) {
        if (!in_place) out[i] = (float)i;
        sum[own.begin + i] += out[i];
    }
    apart[own.count] = 7.0f;
    comm_wait(&comm, comm_reduce_scatter(&comm, out, in, n, 0.5f, type, mode));
    CHECK_MSG(same_bits(out, sum + own.begin, own.count), "rank %d, %zu numbers, type %d, mode %d, "
              "in place %d", comm.rank, n, type, mode, in_place);
    CHECK(apart[own.count] == 7.0f);
    check_sent(before, sent_by_scatter(n, type == COMM_BF16 ? 2 : 4), "a reduce-scatter", n);
    free(in);
    free(sum);
    free(apart);
}

TEST(reduce_scatter_adds_along_the_tree) {
    for (int i = 0; i < N_COUNTS && comm.size > 1; i++)
        for (int way = 0; way < 8; way++)
            check_reduce_scatter(counts[i], way & 1 ? COMM_BF16 : COMM_FP32,
                                 way & 2 ? COMM_ADD : COMM_WRITE, way & 4);
}

static void check_all_gather(size_t n, size_t bytes, bool in_place) {
    Slice own = comm_slice(n, comm.rank, comm.size);
    char *whole = alloc_or_die(n*bytes + 1, "a buffer");
    char *data = alloc_or_die(n*bytes + 1, "another");
    Rng rng = rng_make(n, bytes);
    CommCounters before = comm_counters(&comm);
    for (size_t i = 0; i < n*bytes; i++) whole[i] = (char)rng_below(&rng, 256);
    whole[n*bytes] = data[n*bytes] = 77;
    char *slice = in_place ? data + own.begin*bytes : whole + own.begin*bytes;
    if (in_place) memcpy(slice, whole + own.begin*bytes, own.count*bytes);
    comm_wait(&comm, comm_all_gather(&comm, data, slice, n, bytes));
    CHECK_MSG(memcmp(data, whole, n*bytes + 1) == 0, "rank %d, %zu of %zu bytes, in place %d",
              comm.rank, n, bytes, in_place);
    check_sent(before, sent_by_gather(n, bytes), "an all-gather", n);
    free(whole);
    free(data);
}

TEST(all_gather_brings_every_slice) {
    for (int i = 0; i < N_COUNTS && comm.size > 1; i++)
        for (size_t bytes = 1; bytes <= 4; bytes *= 2) {
            check_all_gather(counts[i], bytes, true);
            check_all_gather(counts[i], bytes, false);
        }
}

// In bf16 the result is rounded as well, on every rank alike.
TEST(a_mean_is_the_same_on_every_rank) {
    for (int i = 0; i < N_COUNTS; i++)
        for (CommType type = COMM_FP32; type <= COMM_BF16; type++) {
            size_t n = counts[i];
            float *x = floats(n), *mean = floats(n);
            numbers_of(x, n, comm.rank, n + 1);
            if (comm.size == 1) memcpy(mean, x, n * sizeof *x);    // nothing travels, or is rounded
            else wanted_sum(mean, n, n + 1, 1.0f / (float)comm.size, type);
            for (size_t j = 0; j < n && comm.size > 1 && type == COMM_BF16; j++)
                mean[j] = bf16_widen(bf16_narrow(mean[j]));
            comm_wait(&comm, comm_mean(&comm, x, n, type));
            CHECK_MSG(same_bits(x, mean, n), "rank %d, %zu numbers, type %d", comm.rank, n, type);
            free(x);
            free(mean);
        }
}

TEST(rank_0_fetches_from_every_rank) {
    static const size_t sizes[] = { 1, 63, 4097, (64 << 20) + 5 };
    for (int from = 1; from < comm.size; from++)
        for (int i = 0; i < (comm.size == 2 ? 4 : 3); i++) {         // the last: two messages
            size_t n = sizes[i], wrong = 0;
            unsigned char *x = alloc_or_die(n, "a message"), *own = alloc_or_die(n, "another");
            for (size_t j = 0; j < n; j++) own[j] = 1 + (j + comm.rank) % 255;       // never 0
            comm_wait(&comm, comm_fetch(&comm, x, own, n, from));
            for (size_t j = 0; j < n; j++) wrong += x[j] != 1 + (j + from) % 255;
            CHECK_MSG(wrong == (comm.rank == 0 ? 0 : n), "rank %d, from %d, %zu bytes: %zu wrong",
                      comm.rank, from, n, wrong);          // the other ranks receive nothing
            free(x);
            free(own);
        }
}

// ---- many at a time ----

// Waited for in any order, and more of them than the queue has room for.
static void check_in_flight(int n_tickets, size_t n) {
    float **x = alloc_or_die((size_t)n_tickets * sizeof *x, "buffers"), *sum = floats(n);
    Ticket *tickets = alloc_or_die((size_t)n_tickets * sizeof *tickets, "tickets");
    int wrong = 0;
    for (int i = 0; i < n_tickets; i++) {
        x[i] = floats(n);
        numbers_of(x[i], n, comm.rank, (uint64_t)i);
        tickets[i] = comm_all_reduce(&comm, x[i], n, 1.0f, COMM_FP32);
    }
    for (int k = 0; k < n_tickets; k++) {
        int i = (k*7 + 3) % n_tickets;                 // 7 divides none of 10, 100 and 1500
        comm_wait(&comm, tickets[i]);
        wanted_sum(sum, n, (uint64_t)i, 1.0f, COMM_FP32);
        wrong += !same_bits(x[i], sum, n);
        free(x[i]);
    }
    CHECK_MSG(wrong == 0, "rank %d: %d of %d, of %zu numbers", comm.rank, wrong, n_tickets, n);
    free(x);
    free(sum);
    free(tickets);
}

TEST(many_collectives_at_a_time) {
    if (comm.size == 1) return;
    check_in_flight(10, 20000);
    check_in_flight(comm.size == 2 ? 1500 : 100, 130);
}

// ---- small things ----

TEST(collect_and_add) {
    double x[] = { comm.rank + 1.0, 0.1 * (comm.rank + 1), 5.0 }, sums[] = { 0.0, 0.0, 0.0 };
    char own[COMM_SMALL], *all = alloc_or_die((size_t)comm.size * COMM_SMALL, "all");
    int wrong = 0;
    for (int r = 0; r < comm.size; r++) {
        sums[0] += r + 1.0;
        sums[1] += 0.1 * (r + 1);
        sums[2] += 5.0;
    }
    comm_add(&comm, x, 3);
    CHECK(x[0] == sums[0] && x[1] == sums[1] && x[2] == sums[2]);
    for (int i = 0; i < COMM_SMALL; i++) own[i] = (char)(i + comm.rank);
    comm_collect(&comm, all, own, COMM_SMALL);
    for (int r = 0; r < comm.size; r++)
        for (int i = 0; i < COMM_SMALL; i++) wrong += all[r*COMM_SMALL + i] != (char)(i + r);
    CHECK(wrong == 0);
    comm_agree(&comm, "another number", 42);
    comm_agree_json(&comm, "{\"lr\":1,\"seed\":2}");
    comm_barrier(&comm);
    free(all);
}

// ---- DiLoCo ----

enum { B = 2, T = 8, ROUNDS = 3 };
static const Config tiny = { 2, 2, 12, 31, T, 0 };

static void make_model(Model *m, const Sharing *sharing) {
    static Machine machine;
    ModelSpec spec = { tiny, B, T, TRAIN, RECOMPUTE_NONE, *sharing, 0 };
    model_init(m, &spec, &machine);
}

// Rounds beside one process that knows all workers: each moves its parameters somewhere, then the
// outer step is made as the paper has it, in double. Nobody else sees a worker's moments, nor the
// length of its gradient, by which it clips.
static void check_outer(float lr, float mu) {
    Model m;
    Sharing apart = { .comm = &comm, .apart = true };
    make_model(&m, &apart);
    params_draw(&m.params, 1);
    diloco_begin(&m.params);
    size_t n = gpt2_n_params(&tiny);
    float *params = m.params.masters, *start = floats(n), *moves = floats(n), worst = 0.0f;
    double *momentum = alloc_or_die(n * sizeof *momentum, "the outer momentum");
    for (size_t i = 0; i < n; i++) m.params.adam_m[i] = m.params.adam_v[i] = (float)comm.rank;
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        double *delta = alloc_or_die(n * sizeof *delta, "the mean of the differences");
        memcpy(start, params, n * sizeof *start);
        for (int r = 0; r < comm.size; r++) {
            numbers_of(moves, n, r, round);
            for (size_t i = 0; i < n; i++) {
                float p = start[i] + 1e-4f*moves[i];
                delta[i] += (start[i] - p) / comm.size;
                if (r == comm.rank) params[i] = p;
            }
        }
        Totals totals = { 0.0, comm.rank + 1.0, { 0.0 }, 0 };
        m.params.scope = ALL_RANKS;
        totals_share(&m.params, &totals);
        CHECK(totals.squares == comm.rank + 1.0);
        diloco_end_round(&m.params, lr, mu);
        for (size_t i = 0; i < n; i++) {
            momentum[i] = mu * momentum[i] + delta[i];
            double p = start[i] - lr * (delta[i] + mu * momentum[i]);
            worst = fmaxf(worst, fabsf((float)(params[i] - p)) / (fabsf((float)p) + 1e-2f));
            CHECK(m.params.adam_m[i] == comm.rank && m.params.adam_v[i] == comm.rank);
        }
        free(delta);
    }
    CHECK_MSG(worst < 1e-6f, "rank %d, lr %g, momentum %g: apart by %g", comm.rank, lr, mu, worst);
    model_free(&m);
    free(momentum);
    free(start);
    free(moves);
}

// With learning rate 1 and no momentum the outer step is the mean of the workers' parameters.
TEST(workers_that_meet_average_their_parameters) { check_outer(1.0f, 0.0f); }
TEST(the_common_step_is_nesterovs) { check_outer(0.7f, 0.9f); }

// ---- the end of a run ----

// What a model has sent has arrived when it has been freed: its buffers are gone then. The last
// rank is late, so that the others are done while parameters, then gradients, are under way.
TEST(a_model_is_freed_when_all_has_arrived) {
    int tokens[B*T] = { 0 };
    for (int i = 0; i < 8 && comm.size > 1; i++) {
        Model m;
        Sharing sharing = { .comm = &comm, .stage = i / 2 };
        make_model(&m, &sharing);
        if (comm.rank == comm.size - 1) usleep(20000);
        params_draw(&m.params, 1);
        if (i % 2) model_forward(&m, tokens, B, T, 0);
        if (comm.rank == comm.size - 1) usleep(20000);
        if (i % 2) zero_micro_batch(&m.params, 0, 1);
        if (i % 2) classifier_loss_and_gradient(&m, tokens, 1.0f / (B*T), B, T);
        if (i % 2) model_backward(&m, tokens, B, T);
        model_free(&m);
        pthread_mutex_lock(&comm.backend->lock);
        CHECK_MSG(comm.backend->done == comm.backend->queued, "rank %d, case %d", comm.rank, i);
        pthread_mutex_unlock(&comm.backend->lock);
    }
}

// ranks_comm [NEAR]: so many ranks make up the first level; otherwise all do.
int main(int argc, char **argv) {
    Error err;
    if (!comm_open(&comm, 30.0, &err)) die("%s", err.text);
    if (comm.size > 1 && !heartbeat_start(&comm.heartbeat, "", &err)) die("%s", err.text);
    n_near = argc > 1 ? atoi(argv[1]) : comm.size;
    run_tests();                                       // slices that travel whole,
    comm.piece = 900;                                  // and in pieces
    run_tests();
    comm_close(&comm);
    return test_end();
}
