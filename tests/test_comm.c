// What ranks are built from, one process: slices, sums along a tree, bf16, and who the launchers
// say we are. The collectives themselves need several processes: tests/test_ranks.sh.
#include "../dev/ranks/comm.c"
#include "../dev/files/files.h"
#include "test.h"

// ---- slices ----

static void check_slices(size_t count, int size) {
    size_t at = 0, first = comm_slice(count, 0, size).count;
    for (int r = 0; r < size; r++) {
        Slice s = comm_slice(count, r, size);
        bool ends = s.count % 64 == 0 || s.begin + s.count == count;
        CHECK_MSG(s.begin == at && s.count <= first && ends, "%zu over %d: slice %d: %zu from %zu",
                  count, size, r, s.count, s.begin);
        at += s.count;
    }
    CHECK_MSG(at == count && first < count / (size_t)size + 128, "%zu over %d: %zu, the first %zu",
              count, size, at, first);
}

TEST(slices_cover_a_buffer_once) {
    for (int size = 1; size <= 9; size++) {
        for (size_t count = 0; count < 1300; count++) check_slices(count, size);
        check_slices(123456789, size);
    }
    check_slices(1000, 256);
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
        for (int i = 0; i < N; i++) {
            t->narrow[k][i] = bf16_narrow(t->wide[k][i]);
            if (type == COMM_BF16) t->wide[k][i] = bf16_widen(t->narrow[k][i]);
        }
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
        wrong += memcmp(&out[i], &wanted, sizeof wanted) != 0;
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
        for (int terms = MOST_TERMS; type == COMM_FP32 && terms > 0; terms--) {     // over a term
            float wanted[N], *over = t.wide[terms - 1];
            for (size_t i = 0; i < N; i++) wanted[i] = 0.5f * sum_by_definition(t.wide, terms, i);
            tree_sum(over, (const void *const *)t.wide, terms, 0.5f, COMM_FP32, COMM_WRITE, N);
            CHECK_MSG(memcmp(over, wanted, sizeof wanted) == 0, "%d terms, over the last", terms);
        }
        terms_end(&t);
    }
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
            float wide = bf16_widen(low);
            wrong += bf16_narrow(float_from_bits(at)) != low || memcmp(&wide, &at, 4) != 0;
            wrong += bf16_narrow(float_from_bits(at + 1)) != low;
            wrong += bf16_narrow(float_from_bits(at + 0x7FFF)) != low;
            wrong += bf16_narrow(float_from_bits(at + 0x8000)) != even;
            wrong += bf16_narrow(float_from_bits(at + 0x8001)) != high;
            wrong += bf16_narrow(float_from_bits(at + 0xFFFF)) != high;
        }
        wrong += bf16_narrow(float_from_bits((sign | 0x7F80) << 16)) != (sign | 0x7F80);
    }
    CHECK_MSG(wrong == 0, "%d numbers are rounded another way", wrong);
}

TEST(bf16_keeps_a_nan_a_nan) {
    for (uint32_t fraction = 1; fraction < 1u << 23; fraction = fraction*3 + 1) {
        for (uint32_t sign = 0; sign <= 1; sign++) {
            uint16_t narrow = bf16_narrow(float_from_bits(sign << 31 | 0x7F800000u | fraction));
            CHECK_MSG(isnan(bf16_widen(narrow)), "fraction %06x", fraction);
            CHECK(narrow >> 15 == sign);
        }
    }
    CHECK(isnan(bf16_widen(bf16_narrow(float_from_bits(0x7FFFFFFF)))));
}

// ---- launchers ----

// Sets the variables "NAME=VALUE NAME=VALUE", and forgets all others of launchers.
static void launched(const char *variables) {
    static const char *const names[] = {
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
        "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS",
        "SLURM_NPROCS", "SLURM_JOB_ID",
    };
    static char text[400];
    for (size_t i = 0; i < COUNT(names); i++) unsetenv(names[i]);
    snprintf(text, sizeof text, "%s", variables);
    for (char *v = strtok(text, " "), *value; v; v = strtok(NULL, " ")) {
        value = strchr(v, '=');
        *value = '\0';
        setenv(v, value + 1, 1);
    }
}

// What a process is told by its environment: rank, size, and both on its machine; -7 where it is
// not. Of one launcher that starts another the inner one's word counts. In a batch script of
// Slurm's nothing has been started yet, whatever the job is to have.
TEST(each_launcher_is_understood) {
    #define STEP "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 "
    #define TORCHRUN "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4"
    static const struct { int told[4]; const char *variables; } cases[] = {
        { { 5, 8, 1, 4 }, TORCHRUN },
        { { 3, 4, 1, 2 }, "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 "
                          "OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2" },
        { { 2, 3, 2, 3 }, "PMI_RANK=2 PMI_SIZE=3 MPI_LOCALRANKID=2 MPI_LOCALNRANKS=3" },
        { { 6, 8, 2, 4 }, "SLURM_PROCID=6 SLURM_STEP_NUM_TASKS=8 SLURM_LOCALID=2 "
                          "SLURM_TASKS_PER_NODE=4(x2) SLURM_NTASKS=8" },
        { { 1, 2, -7, -7 }, "RANK=1 WORLD_SIZE=2" },
        { { -7, -7, -7, -7 }, "SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_NPROCS=8 SLURM_LOCALID=0 "
                              "SLURM_TASKS_PER_NODE=4(x2) SLURM_JOB_ID=17" },
        { { 1, 4, -7, -7 }, STEP "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4" },
        { { 5, 8, 1, 4 }, STEP TORCHRUN },
        { { 5, 8, 1, 4 }, "PMI_RANK=0 PMI_SIZE=1 " TORCHRUN },
        { { 1, 2, 0, -7 }, "PMI_RANK=1 PMI_SIZE=2 " STEP },
        { { -7, -7, -7, -7 }, "RANK=first WORLD_SIZE=4" },       // something else's
        { { -7, -7, -7, -7 }, "RANK=1" }, { { -7, -7, -7, -7 }, "WORLD_SIZE=4" },
        { { -7, -7, -7, -7 }, "RANK=0 WORLD_SIZE=1" },
        { { -7, -7, -7, -7 }, "RANK=1 WORLD_SIZE=99999999999" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        launched(cases[i].variables);
        int told[4] = { launched_as(LAUNCH_RANK, -7), launched_as(LAUNCH_SIZE, -7),
                        launched_as(LAUNCH_LOCAL_RANK, -7), launched_as(LAUNCH_LOCAL_SIZE, -7) };
        CHECK_MSG(memcmp(told, cases[i].told, sizeof told) == 0, "%s: rank %d of %d, here %d of %d",
                  cases[i].variables, told[0], told[1], told[2], told[3]);
    }
    launched("");
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
}

int main(void) {
    *program_name() = "test_comm";
    return run_tests();
}
