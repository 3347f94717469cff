// What ranks are built from, one process: slices, sums along a tree, bf16, and who the launchers
// say we are. The collectives themselves need several processes: tests/test_ranks.sh.
#define PROGRAM "test_comm"
#include "../dev/ranks/comm.h"
#include "../dev/base/rng.h"
#include "test.h"

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// ---- slices ----

static void check_slices(size_t count, int size) {
    size_t at = 0, first = comm_slice(count, 0, size).count;
    for (int r = 0; r < size; r++) {
        Slice s = comm_slice(count, r, size);
        CHECK_MSG(s.begin == at, "%zu over %d: slice %d begins at %zu, not %zu", count, size, r,
                  s.begin, at);
        CHECK_MSG(s.count <= first, "%zu over %d: slice %d is longer than the first", count, size,
                  r);
        CHECK_MSG(s.count % 64 == 0 || s.begin + s.count == count,
                  "%zu over %d: slice %d has %zu numbers and is not the last", count, size, r,
                  s.count);
        at += s.count;
    }
    CHECK_MSG(at == count, "%zu over %d: the slices end at %zu", count, size, at);
    CHECK_MSG(first < count / (size_t)size + 128, "%zu over %d: a slice of %zu", count, size,
              first);
}

TEST(slices_cover_a_buffer_once) {
    for (int size = 1; size <= 9; size++) {
        for (size_t count = 0; count < 1300; count++) check_slices(count, size);
        check_slices(123456789, size);
    }
    check_slices(1000, 256);
    Slice whole = comm_slice(1001, 0, 1);
    CHECK(whole.begin == 0 && whole.count == 1001);
}

// ---- the tree ----

enum { MOST_TERMS = 17, N = 1111 };        // three strips of tree_sum, the last cut short

// The sum that the tree stands for: the first 2^k terms, as many as there are, and then the others.
static float sum_by_definition(float *const *x, int terms, size_t i) {
    if (terms == 1) return x[0][i];
    int half = 1;
    while (2*half < terms) half *= 2;
    return sum_by_definition(x, half, i) + sum_by_definition(x + half, terms - half, i);
}

// Numbers of very different sizes, so that another order gives other bits.
static void random_numbers(float *x, size_t n, Rng *rng) {
    for (size_t i = 0; i < n; i++) x[i] = (float)ldexp(rng_normal(rng), (int)rng_below(rng, 12));
}

typedef struct { float *wide[MOST_TERMS]; uint16_t *narrow[MOST_TERMS]; } Terms;

// Terms that bf16 holds exactly, or any.
static void terms_begin(Terms *t, uint64_t seed, CommType type) {
    Rng rng = rng_make(seed, 0);
    for (int k = 0; k < MOST_TERMS; k++) {
        t->wide[k] = (float *)alloc_or_die(N * sizeof(float), "a term");
        t->narrow[k] = (uint16_t *)alloc_or_die(N * sizeof(uint16_t), "a term in bf16");
        random_numbers(t->wide[k], N, &rng);
        bf16_narrow_all(t->narrow[k], t->wide[k], N);
        if (type == COMM_BF16) bf16_widen_all(t->wide[k], t->narrow[k], N);
    }
}

static void terms_end(Terms *t) {
    for (int k = 0; k < MOST_TERMS; k++) {
        free(t->wide[k]);
        free(t->narrow[k]);
    }
}

static void check_sum(Terms *t, int terms, float scale, CommType type, CommMode mode, size_t n) {
    float out[N], before[N];
    Rng rng = rng_make(7, 0);
    const void *const *x = type == COMM_BF16 ? (const void *const *)t->narrow
                                             : (const void *const *)t->wide;
    random_numbers(before, N, &rng);
    memcpy(out, before, sizeof out);
    tree_sum(out, x, terms, scale, type, mode, n);
    int wrong = 0;
    for (size_t i = 0; i < N; i++) {                   // nothing after n is touched
        float sum = scale * sum_by_definition(t->wide, terms, i);
        float wanted = i >= n ? before[i] : mode == COMM_ADD ? before[i] + sum : sum;
        wrong += bits_of(out[i]) != bits_of(wanted);
    }
    CHECK_MSG(wrong == 0, "%d terms in %s, mode %d, n %zu: %d of the sums have other bits", terms,
              type == COMM_BF16 ? "bf16" : "fp32", mode, n, wrong);
}

// The scale is a power of two: what it multiplies is exact, whether or not the compiler fuses the
// multiplication with the addition of COMM_ADD.
TEST(tree_sum_follows_its_definition) {
    static const size_t lengths[] = { 0, 1, 511, 512, 513, 1024, N };
    for (CommType type = COMM_FP32; type <= COMM_BF16; type = (CommType)(type + 1)) {
        Terms t;
        terms_begin(&t, 1, type);
        for (int terms = 1; terms <= MOST_TERMS; terms++) {
            for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
                check_sum(&t, terms, 1.0f, type, COMM_WRITE, lengths[l]);
                check_sum(&t, terms, 0.25f, type, COMM_ADD, lengths[l]);
            }
            check_sum(&t, terms, 1.0f / 3.0f, type, COMM_WRITE, N);
        }
        terms_end(&t);
    }
}

TEST(tree_sum_may_write_over_a_term) {
    for (int terms = 1; terms <= MOST_TERMS; terms++) {
        Terms t;
        float wanted[N];
        terms_begin(&t, 2, COMM_FP32);
        for (size_t i = 0; i < N; i++) wanted[i] = 0.5f * sum_by_definition(t.wide, terms, i);
        float *over = t.wide[terms / 2];
        tree_sum(over, (const void *const *)t.wide, terms, 0.5f, COMM_FP32, COMM_WRITE, N);
        CHECK_MSG(memcmp(over, wanted, sizeof wanted) == 0, "%d terms, over number %d", terms,
                  terms / 2);
        terms_end(&t);
    }
}

// Ranks that each add up their own micro-batches, and then each other's sums, get the bits of one
// that adds up all of them; any other grouping does not.
TEST(sums_of_sums_have_the_bits_of_the_sum) {
    Terms t;
    float all[N], parts[MOST_TERMS][N], in_turn[N];
    terms_begin(&t, 3, COMM_FP32);
    tree_sum(all, (const void *const *)t.wide, 16, 1.0f, COMM_FP32, COMM_WRITE, N);
    for (int ranks = 1; ranks <= 16; ranks *= 2) {
        const void *sums[MOST_TERMS];
        float total[N];
        int each = 16 / ranks;
        for (int r = 0; r < ranks; r++) {
            tree_sum(parts[r], (const void *const *)t.wide + r*each, each, 1.0f, COMM_FP32,
                     COMM_WRITE, N);
            sums[r] = parts[r];
        }
        tree_sum(total, sums, ranks, 1.0f, COMM_FP32, COMM_WRITE, N);
        CHECK_MSG(memcmp(total, all, sizeof all) == 0, "%d ranks with %d each", ranks, each);
    }
    memcpy(in_turn, t.wide[0], sizeof in_turn);
    for (int k = 1; k < 16; k++)
        for (size_t i = 0; i < N; i++) in_turn[i] += t.wide[k][i];
    CHECK_MSG(memcmp(in_turn, all, sizeof all) != 0, "any order gives these bits");
    terms_end(&t);
}

TEST(tree_levels_count_in_binary) {
    static const int levels[] = { 0, 1, 0, 2, 0, 1, 0, 3, 0, 1, 0, 2, 0, 1, 0, 4 };
    for (int i = 0; i < 16; i++) CHECK(tree_level((uint64_t)i) == levels[i]);
    CHECK(tree_level(((uint64_t)1 << 19) - 1) == TREE_LEVELS - 1);
}

// ---- bf16 ----

// Each number of bf16 stays itself; between two neighbours the nearer one is taken, and half-way
// the one whose last bit is 0. Beyond the largest comes infinity, as for fp32 itself.
TEST(bf16_rounds_to_nearest_ties_to_even) {
    int wrong = 0;
    for (uint32_t sign = 0; sign <= 0x8000; sign += 0x8000) {
        for (uint32_t h = 0; h < 0x7F80; h++) {        // the finite ones; the next may be infinity
            uint16_t low = (uint16_t)(sign | h), high = (uint16_t)(sign | (h + 1));
            uint16_t even = h % 2 == 0 ? low : high;
            uint32_t at = (uint32_t)low << 16;
            wrong += bf16_narrow(float_of(at)) != low || bits_of(bf16_widen(low)) != at;
            wrong += bf16_narrow(float_of(at + 1)) != low;
            wrong += bf16_narrow(float_of(at + 0x7FFF)) != low;
            wrong += bf16_narrow(float_of(at + 0x8000)) != even;
            wrong += bf16_narrow(float_of(at + 0x8001)) != high;
            wrong += bf16_narrow(float_of(at + 0xFFFF)) != high;
        }
        wrong += bf16_narrow(float_of((sign | 0x7F80) << 16)) != (sign | 0x7F80);
    }
    CHECK_MSG(wrong == 0, "%d numbers are rounded another way", wrong);
}

TEST(bf16_keeps_a_nan_a_nan) {
    for (uint32_t fraction = 1; fraction < 1u << 23; fraction = fraction*3 + 1) {
        for (uint32_t sign = 0; sign <= 1; sign++) {
            uint16_t narrow = bf16_narrow(float_of(sign << 31 | 0x7F800000u | fraction));
            CHECK_MSG(isnan(bf16_widen(narrow)), "fraction %06x", fraction);
            CHECK(narrow >> 15 == sign);
        }
    }
    CHECK(isnan(bf16_widen(bf16_narrow(float_of(0x7FFFFFFF)))));
}

// ---- launchers ----

typedef struct { const char *name, *value; } Variable;
typedef struct { int rank, size, local_rank, local_size; } Told;

static void forget_launchers(void) {
    static const char *const names[] = {
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
        "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS",
        "SLURM_NPROCS", "SLURM_JOB_ID",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
}

// What a process is told by its environment; -7 where it is not.
static void check_told(const char *case_name, const Variable *set, Told wanted) {
    forget_launchers();
    for (; set->name; set++) setenv(set->name, set->value, 1);
    Told told = { launched_as(LAUNCH_RANK, -7), launched_as(LAUNCH_SIZE, -7),
                  launched_as(LAUNCH_LOCAL_RANK, -7), launched_as(LAUNCH_LOCAL_SIZE, -7) };
    CHECK_MSG(memcmp(&told, &wanted, sizeof told) == 0, "%s: rank %d of %d, here %d of %d",
              case_name, told.rank, told.size, told.local_rank, told.local_size);
    forget_launchers();
}

#define TOLD(name, rank, size, local_rank, local_size, ...) do { \
        const Variable set[] = { __VA_ARGS__, { NULL, NULL } }; \
        const Told wanted = { rank, size, local_rank, local_size }; \
        check_told(name, set, wanted); \
    } while (0)

TEST(each_launcher_is_understood) {
    TOLD("torchrun", 5, 8, 1, 4, { "RANK", "5" }, { "WORLD_SIZE", "8" }, { "LOCAL_RANK", "1" },
         { "LOCAL_WORLD_SIZE", "4" });
    TOLD("Open MPI", 3, 4, 1, 2, { "OMPI_COMM_WORLD_RANK", "3" }, { "OMPI_COMM_WORLD_SIZE", "4" },
         { "OMPI_COMM_WORLD_LOCAL_RANK", "1" }, { "OMPI_COMM_WORLD_LOCAL_SIZE", "2" });
    TOLD("MPICH", 2, 3, 2, 3, { "PMI_RANK", "2" }, { "PMI_SIZE", "3" }, { "MPI_LOCALRANKID", "2" },
         { "MPI_LOCALNRANKS", "3" });
    TOLD("a step of Slurm's", 6, 8, 2, 4, { "SLURM_PROCID", "6" }, { "SLURM_STEP_NUM_TASKS", "8" },
         { "SLURM_LOCALID", "2" }, { "SLURM_TASKS_PER_NODE", "4(x2)" }, { "SLURM_NTASKS", "8" });
    TOLD("RANK and WORLD_SIZE alone", 1, 2, -7, -7, { "RANK", "1" }, { "WORLD_SIZE", "2" });
}

// One that starts another: the inner one's word counts. In a batch script of Slurm's nothing has
// been started yet, whatever the job is to have.
TEST(nobody_is_taken_for_a_launcher) {
    TOLD("a batch script of Slurm's", -7, -7, -7, -7, { "SLURM_PROCID", "0" },
         { "SLURM_NTASKS", "8" }, { "SLURM_NPROCS", "8" }, { "SLURM_LOCALID", "0" },
         { "SLURM_TASKS_PER_NODE", "4(x2)" }, { "SLURM_JOB_ID", "17" });
    TOLD("mpirun in a Slurm step", 1, 4, -7, -7, { "OMPI_COMM_WORLD_RANK", "1" },
         { "OMPI_COMM_WORLD_SIZE", "4" }, { "SLURM_PROCID", "0" }, { "SLURM_STEP_NUM_TASKS", "2" });
    TOLD("torchrun in a Slurm step", 3, 4, 1, 2, { "RANK", "3" }, { "WORLD_SIZE", "4" },
         { "LOCAL_RANK", "1" }, { "LOCAL_WORLD_SIZE", "2" }, { "SLURM_PROCID", "1" },
         { "SLURM_STEP_NUM_TASKS", "2" }, { "SLURM_LOCALID", "0" });
    TOLD("a RANK of something else", -7, -7, -7, -7, { "RANK", "first" }, { "WORLD_SIZE", "4" });
    TOLD("a RANK without a WORLD_SIZE", -7, -7, -7, -7, { "RANK", "1" });
    TOLD("a WORLD_SIZE without a RANK", -7, -7, -7, -7, { "WORLD_SIZE", "4" });
    TOLD("launch.sh in srun's shell", 2, 4, 2, 4, { "PMI_RANK", "0" }, { "PMI_SIZE", "1" },
         { "RANK", "2" }, { "WORLD_SIZE", "4" }, { "LOCAL_RANK", "2" },
         { "LOCAL_WORLD_SIZE", "4" });
    TOLD("one of one", -7, -7, -7, -7, { "RANK", "0" }, { "WORLD_SIZE", "1" });
    TOLD("more than can be", -7, -7, -7, -7, { "RANK", "1" }, { "WORLD_SIZE", "99999999999" });
}

// ---- one rank alone ----

TEST(one_rank_talks_to_itself) {
    Comm c;
    Error err;
    float x[100], before[100];
    double numbers[] = { 1.5, -2.5 };
    uint64_t own = 77, all = 0;
    Rng rng = rng_make(4, 0);
    forget_launchers();
    CHECK(comm_open(&c, 30.0, &err));
    CHECK(c.rank == 0 && c.size == 1 && c.local_rank == 0 && c.local_size == 1 && c.hosts == 1);
    random_numbers(x, 100, &rng);
    memcpy(before, x, sizeof x);
    comm_wait(&c, comm_mean(&c, x, 100, COMM_BF16));
    comm_wait(&c, comm_broadcast(&c, x, sizeof x, 0));
    comm_add(&c, numbers, 2);
    comm_collect(&c, &all, &own, sizeof own);
    comm_broadcast_small(&c, &own, sizeof own);
    comm_agree(&c, "another number", 5);
    comm_agree_json(&c, "{\"lr\":1}");
    comm_barrier(&c);
    comm_add(NULL, numbers, 2);                        // no Comm at all: one rank alone
    comm_wait(NULL, 0);
    CommCounters none = comm_counters(NULL);
    CHECK(none.waited == 0.0 && none.busy == 0.0 && none.bytes_sent == 0);
    CHECK(comm_bytes(1) == 0 && comm_bytes(2) == COMM_SCRATCH + COMM_SCRATCH / 2);
    CHECK(memcmp(x, before, sizeof x) == 0 && numbers[0] == 1.5 && numbers[1] == -2.5);
    CHECK(all == 77 && own == 77 && comm_counters(&c).bytes_sent == 0);
    comm_close(&c);
}

// Started as one of several, it has no way to talk to the others, and says what would have.
TEST(a_program_without_mpi_is_no_rank) {
    Comm c;
    Error err = { "" };
    forget_launchers();
    setenv("RANK", "1", 1);
    setenv("WORLD_SIZE", "3", 1);
    CHECK(!comm_open(&c, 30.0, &err));
    CHECK(strstr(err.text, "one of 3") && strstr(err.text, "make MPI=1") && c.heartbeat.told);
    forget_launchers();
    setenv("OMPI_COMM_WORLD_RANK", "1", 1);            // rank 0 may be a program with MPI
    setenv("OMPI_COMM_WORLD_SIZE", "3", 1);
    CHECK(!comm_open(&c, 30.0, &err) && !c.heartbeat.told);
    forget_launchers();
}

// ---- the hash by which ranks compare what they have ----

TEST(a_hash_sees_every_bit) {
    unsigned char bytes[67];
    int alike = 0;
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(i * 37);
    uint64_t hash = hash_add(1, bytes, sizeof bytes);
    CHECK(hash == hash_add(1, bytes, sizeof bytes) && hash != hash_add(2, bytes, sizeof bytes));
    for (size_t i = 0; i < 8 * sizeof bytes; i++) {
        bytes[i / 8] ^= (unsigned char)(1 << i % 8);
        alike += hash_add(1, bytes, sizeof bytes) == hash;
        bytes[i / 8] ^= (unsigned char)(1 << i % 8);
    }
    for (size_t n = 0; n < sizeof bytes; n++) alike += hash_add(1, bytes, n) == hash;
    CHECK_MSG(alike == 0, "%d changes are not seen", alike);
    for (size_t i = 0; i + 16 <= sizeof bytes; i += 8) {           // two words change places
        unsigned char other[67];
        memcpy(other, bytes, sizeof bytes);
        memcpy(other + i, bytes + i + 8, 8);
        memcpy(other + i + 8, bytes + i, 8);
        CHECK(hash_add(1, other, sizeof other) != hash);
    }
}

int main(void) {
    return run_tests();
}
