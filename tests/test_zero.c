// What dev/ranks/params.c shares out, on paper: every rank's part of every buffer, one process, no
// messages. That trained together the parts give what one rank gives: tests/test_ranks.sh.
#include <math.h>
#include "../dev/ranks/tensor.c"
#include "../dev/ranks/params.c"
#include "test.h"

// One rank of several, as comm_open would say.
typedef struct { Comm comm; Params p; Memory memory; } Rank;

static void rank_begin(Rank *r, int rank, int size, int stage, const Config *c) {
    memset(&r->comm, 0, sizeof r->comm);
    r->comm.rank = rank;
    r->comm.size = size;
    Sharing sharing = { .comm = &r->comm, .stage = stage };
    params_init(&r->p, &sharing, c, 1, sizeof(float));
    r->memory = memory_begin(NULL);
}

static void rank_carve(Rank *r) {
    params_carve(&r->p, &r->memory);
    params_carve_training(&r->p, &r->memory);
}

// Memory for all that the rank keeps; without it a rank answers questions of layout alone.
static void rank_alloc(Rank *r) {
    rank_carve(r);
    r->memory = memory_begin(alloc_or_die(r->memory.used, "a rank"));
    rank_carve(r);
    params_open(&r->p);
}

static void rank_end(Rank *r) {
    params_close(&r->p);
    free(r->memory.base);
}

static float *floats(size_t n) { return (float *)alloc_or_die(n * sizeof(float), "numbers"); }

static const Config odd_configs[] = {
    { 1, 1, 2, 3, 1, 0 },                     // buckets shorter than a unit of 64 numbers
    { 3, 2, 10, 67, 7, 0 },
    { 2, 3, 24, 257, 33, 0 },
    { 4, 4, 16, 64, 16, 0 },                  // buckets that 64 divides
};
enum { ODD_CONFIGS = sizeof odd_configs / sizeof *odd_configs };

// ---- chunks ----

// The parameter, in the whole buffer, of place `at` in a buffer of this rank's slices, or in a
// whole one; -1: the place holds nothing.
static long flat_of(const Params *p, size_t at, bool slices) {
    if (!slices) return at < gpt2_n_params(&p->c) ? (long)at : -1;
    for (int b = 0; b < gpt2_n_buckets(&p->c); b++) {
        Slice own = params_own(p, b);
        size_t begin = params_own_begin(p, b, true);
        if (at >= begin && at < begin + own.count)
            return (long)(gpt2_bucket(&p->c, b).begin + own.begin + at - begin);
    }
    return -1;
}

// One chunk: in one tensor, with its decay, and each of the three places where the stage says. Adds
// one to `updated` of each parameter it updates.
static int check_chunk(int *updated, const Params *p, const Chunk *k) {
    Tensor t = {0};
    int wrong = 0;
    for (size_t j = 0; j < (size_t)k->count; j++) {
        long flat = flat_of(p, k->param + j, p->stage == 3);
        if (flat < 0) return 1;
        for (int i = 0; j == 0 && i < gpt2_n_tensors(&p->c); i++)
            if (gpt2_tensor(&p->c, i).offset <= (size_t)flat) t = gpt2_tensor(&p->c, i);
        wrong += flat_of(p, k->grad + j, p->stage >= 2) != flat;
        wrong += flat_of(p, k->moment + j, p->stage >= 1) != flat;
        wrong += t.decays != k->decays || (size_t)flat >= t.offset + t.count;
        updated[flat]++;
    }
    return wrong;
}

static void check_chunks(const Config *c, int size, int stage, int largest) {
    size_t n_params = gpt2_n_params(c);
    int *updated = (int *)alloc_or_die(n_params * sizeof *updated, "counts");
    int wrong = 0, times = size > 1 && stage > 0 ? 1 : size;
    for (int rank = 0; rank < size; rank++) {
        Rank r;
        rank_begin(&r, rank, size, stage, c);
        int n = params_chunks(NULL, &r.p, largest);
        Chunk *chunks = (Chunk *)alloc_or_die((size_t)(n + 1) * sizeof *chunks, "chunks");
        CHECK(params_chunks(chunks, &r.p, largest) == n);
        for (int i = 0; i < n; i++) {
            wrong += chunks[i].count < 1 || chunks[i].count > largest;
            wrong += check_chunk(updated, &r.p, &chunks[i]);
        }
        free(chunks);
        rank_end(&r);
    }
    for (size_t i = 0; i < n_params; i++) wrong += updated[i] != times;
    CHECK_MSG(wrong == 0, "stage %d, %d ranks, %d layers of %d, chunks of %d: %d times wrong",
              stage, size, c->L, c->C, largest, wrong);
    free(updated);
}

TEST(chunks_cover_every_parameter_once) {
    for (int i = 0; i < ODD_CONFIGS; i++)
        for (int size = 1; size <= 3; size++)
            for (int stage = 0; stage <= 3; stage++)
                check_chunks(&odd_configs[i], size, stage, i % 2 ? 37 : 1 << 16);
}

// ---- slots ----

TEST(buckets_in_use_have_slots_of_their_own) {
    for (int i = 0; i < ODD_CONFIGS; i++) {
        Rank r;
        const Config *c = &odd_configs[i];
        rank_begin(&r, 0, 2, 3, c);
        for (int b = 0; b < gpt2_n_buckets(c); b++) {
            int slot = params_slot(&r.p, b);
            CHECK(slot >= 0 && slot < PARAMS_SLOTS);
            CHECK(gpt2_bucket(c, b).count <= params_slot_count(&r.p, slot));
            CHECK(b == 0 || (slot != params_slot(&r.p, 0) && slot != params_slot(&r.p, b - 1)));
            CHECK(b == c->L + 1 || slot != params_slot(&r.p, c->L + 1));
        }
        rank_end(&r);
    }
}

// ---- parameters as they are loaded ----

// Of one series: what is placed bucket by bucket and kept is found again, each element at one rank
// where the series is in slices (parameters at stage 3, moments from stage 1 on), else at all of
// them.
static int check_series(Rank *r, Kept what, const float *kept, bool slices) {
    const Config *c = &r->p.c;
    int wrong = 0;
    for (int b = 0; b < gpt2_n_buckets(c); b++) {
        Range range = gpt2_bucket(c, b);
        float *place = bucket_place(&r->p, what, b);
        for (size_t i = 0; i < range.count; i++)
            place[i] = (float)(range.begin + i) + 0.25f*(float)what;
        bucket_keep(&r->p, what, b);
    }
    size_t found = 0, own = 0;
    for (int b = 0; b < gpt2_n_buckets(c); b++)
        own += slices ? params_own(&r->p, b).count : gpt2_bucket(c, b).count;
    for (size_t at = 0; at < buffer_count(&r->p, slices); at++) {
        long flat = flat_of(&r->p, at, slices);
        if (flat >= 0) found++, wrong += kept[at] != (float)flat + 0.25f*(float)what;
    }
    return wrong + (found != own);
}

TEST(what_is_placed_is_kept) {
    const Config *c = &odd_configs[1];
    for (int size = 1; size <= 4; size++)
        for (int stage = 0; stage <= 3; stage++)
            for (int rank = 0; rank < size; rank++) {
                Rank r;
                int wrong = 0;
                rank_begin(&r, rank, size, stage, c);
                rank_alloc(&r);
                int has = r.p.stage;                   // 0 with one rank
                wrong += check_series(&r, KEPT_WEIGHTS, r.p.masters, has == 3);
                wrong += check_series(&r, KEPT_EXP_AVG, r.p.adam_m, has >= 1);
                wrong += check_series(&r, KEPT_EXP_AVG_SQ, r.p.adam_v, has >= 1);
                CHECK_MSG(wrong == 0, "stage %d, rank %d of %d: %d elements", stage, rank, size,
                          wrong);
                rank_end(&r);
            }
}

// ---- --exact-sum, within a rank ----

// Micro-batches that come one after the other, each added to what bucket_at says, end as the sum
// along the tree, to the bit.
static void check_exact_sum(int micro_batches) {
    const Config *c = &odd_configs[1];
    size_t n = gpt2_n_params(c);
    enum { MOST = 16 };
    float *terms[MOST], *wanted = floats(n);
    Params p;
    Rng rng = rng_make(5, 0);
    Sharing sharing = { .levels = tree_level((uint64_t)micro_batches - 1) + 1 };
    params_init(&p, &sharing, c, 1, sizeof(float));
    for (int l = 0; l < p.n_levels; l++) p.levels[l] = floats(n);
    p.grads = p.levels[0];
    p.n_grads = n;
    for (int update = 0; update < 2; update++) {       // what the first one left does not matter
        for (int i = 0; i < micro_batches; i++) {
            terms[i] = floats(n);
            for (size_t j = 0; j < n; j++) terms[i][j] = (float)rng_normal(&rng);
            zero_micro_batch(&p, (size_t)i, (size_t)micro_batches);
            for (int b = c->L + 1; b >= 0; b--) {
                Range r = gpt2_bucket(c, b);
                float *g = bucket_at(&p, b, GRADS);
                for (size_t j = 0; j < r.count; j++) g[j] += terms[i][r.begin + j];
                gradients_ready(&p, b);
            }
        }
        zero_wait_grads(&p);
        tree_sum(wanted, (const void *const *)terms, micro_batches, 1.0f, COMM_FP32, COMM_WRITE, n);
        CHECK_MSG(memcmp(p.grads, wanted, n * sizeof(float)) == 0, "%d micro-batches, update %d",
                  micro_batches, update);
        for (int i = 0; i < micro_batches; i++) free(terms[i]);
    }
    for (int l = 0; l < p.n_levels; l++) free(p.levels[l]);
    free(wanted);
    params_free(&p);
}

TEST(exact_sums_follow_the_tree) {
    for (int n = 1; n <= 16; n *= 2) check_exact_sum(n);
}

// ---- a signal ----

// A run stops where all ranks have the same parameters, one rank alone too: resumed within a DiLoCo
// round, it would be another run. All ranks stop by one signal, as their exit status tells.
TEST(a_signal_waits_for_the_end_of_a_round) {
    Params p;
    Sharing sharing = { .apart = true };
    volatile sig_atomic_t came = SIGTERM;
    params_init(&p, &sharing, &odd_configs[0], 1, sizeof(float));
    p.stop = &came;
    for (int scope = THIS_RANK; scope <= ALL_RANKS; scope++) {
        Totals t = { 3.0, 2.0, { 0.0 }, 0 };
        p.scope = (Scope)scope;
        totals_share(&p, &t);
        CHECK(t.loss == 3.0 && t.squares == 2.0 && t.stop == (scope == ALL_RANKS ? SIGTERM : 0));
    }
    p.size = 3;
    Totals all[] = { { .stop = 0 }, { .stop = SIGUSR1 }, { .stop = SIGTERM } };
    CHECK(totals_sum(&p, all, ALL_RANKS).stop == SIGUSR1);
    params_free(&p);
}

// ---- tensor parallel: shares of a model ----

static TpGroup group_of(const Config *c, int rank, int size) {
    Comm comm;
    memset(&comm, 0, sizeof comm);
    comm.rank = rank;
    comm.size = size;
    TpGroup g = tp_group(c, &comm);
    g.comm = NULL;
    return g;
}

// Every bucket of a model, cut into the shares of `size` ranks and put together again.
static void check_shares(const Config *c, int size) {
    float *whole = floats(gpt2_largest_bucket(c)), *again = floats(gpt2_largest_bucket(c));
    size_t words = 0;
    for (int b = 0; b < gpt2_n_buckets(c); b++) {
        size_t n = gpt2_bucket(c, b).count, counted = 0;
        for (size_t i = 0; i < n; i++) whole[i] = (float)(i + 1), again[i] = 0.0f;
        for (int rank = 0; rank < size; rank++) {
            TpGroup g = group_of(c, rank, size);
            size_t share = gpt2_bucket(&g.own, b).count;
            float *part = floats(share);
            for (size_t i = 0; i < share; i++) part[i] = NAN;
            tp_copy_bucket(part, whole, &g, b, rank, TP_PART);
            tp_copy_bucket(part, again, &g, b, rank, TP_WHOLE);
            for (int i = gpt2_bucket_tensor(c, b); i < gpt2_bucket_tensor(c, b + 1); i++) {
                Tensor t = gpt2_tensor(&g.own, i);
                size_t at = t.offset - gpt2_bucket(&g.own, b).begin;
                for (size_t k = at; k < at + t.count; k++)
                    counted += tp_counts(&g, t.kind) && part[k] > 0.0f;
            }
            words += b == 0 ? g.words.count : 0;
            free(part);
        }
        CHECK(memcmp(whole, again, n * sizeof *whole) == 0);
        CHECK_MSG(counted == n, "%d ranks, bucket %d: %zu of %zu elements count", size, b, counted,
                  n);
    }
    CHECK(words == (size_t)c->V);
    free(whole);
    free(again);
}

TEST(shares_make_up_the_model) {
    static const Config configs[] = { { 2, 4, 16, 257, 7, 0 }, { 1, 4, 8, 5, 3, 0 },
                                      { 1, 2, 4, 3000, 2, 0 } };
    for (int i = 0; i < 3; i++)
        for (int size = 1; size <= configs[i].NH; size *= 2) check_shares(&configs[i], size);
    // By hand: 4 heads of 2 channels on 2 ranks. The second has heads 2 and 3: of the rows of
    // qkv_w, 24 wide, columns 4-7 of Q (0-7), 12-15 of K and 20-23 of V.
    TpGroup g = group_of(&configs[1], 1, 2);
    float whole[8*24], part[8*12];
    Tensor p = gpt2_tensor(&g.own, QKV_W), w = gpt2_tensor(&g.whole, QKV_W);
    for (int i = 0; i < 8*24; i++) whole[i] = (float)i;
    CHECK(p.rows == 8 && p.cols == 12);
    tp_copy(part, whole, &p, &w, 1, TP_PART);
    for (int i = 0; i < 8*12; i++)
        CHECK(part[i] == (float)(i / 12 * 24 + i % 12 / 4 * 8 + 4 + i % 4));
}

int main(void) {
    *program_name() = "test_zero";
    return run_tests();
}
