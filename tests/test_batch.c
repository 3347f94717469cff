// The batch's size as a function of tokens, and what the learning rate and beta2 make of it.
#include "../dev/train/train.h"
#include "test.h"

// ---- reading ----

// For updates of `batch` tokens in whole `unit`s, as the trainer settles it.
static BatchSchedule schedule(const char *text, uint64_t batch, uint64_t unit) {
    BatchSchedule s;
    Error err;
    err.text[0] = '\0';
    CHECK_MSG(batch_schedule_parse(&s, text, &err), "'%s': %s", text, err.text);
    s.batch = batch;
    s.unit = unit;
    return s;
}

TEST(good_texts) {
    BatchSchedule s = schedule("linear:32768,4e9", 64, 1);
    CHECK(s.rule == BATCH_LINEAR && s.first == 32768 && s.over == 4000000000u);
    s = schedule("stages:0=32,1000=64,1e6=16", 64, 1);                  // it may shrink
    CHECK(s.rule == BATCH_STAGES && s.n_stages == 3);
    CHECK(s.stages[0].tokens == 0 && s.stages[0].batch == 32);
    CHECK(s.stages[2].tokens == 1000000 && s.stages[2].batch == 16);
    s = schedule("adaptive:1.5,512,512", 64, 1);
    CHECK(s.rule == BATCH_ADAPTIVE && s.eta == 1.5 && s.min == 512 && s.max == 512);
}

TEST(bad_texts) {
    static const struct { const char *text, *expected; } cases[] = {
        { "", "constant, linear:N0,TOKENS, stages:TOKENS=BATCH,... or adaptive:ETA,MIN,MAX" },
        { "constant:64", "expected constant" }, { "linear:64", "linear:N0,TOKENS" },
        { "linear:64,100,5", "linear:N0,TOKENS" }, { "linear:0,100", "at least 1" },
        { "linear:64,0", "at least 1" }, { "linear:1.5,100", "linear:N0,TOKENS" },
        { "linear:64,1e16", "linear:N0,TOKENS" }, { "stages:", "stages:TOKENS=BATCH" },
        { "stages:100=64,", "stages:TOKENS=BATCH" }, { "stages:100=0", "stages:TOKENS=BATCH" },
        { "stages:100=64,100=128", "rising TOKENS" }, { "adaptive:0.5,64", "adaptive:ETA" },
        { "adaptive:0,64,128", "ETA above" }, { "adaptive:0.5,0,128", "1 <= MIN" },
        { "adaptive:0.5,256,128", "MIN <= MAX" }, { "adaptive:0.5,64.5,128", "adaptive:ETA" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        BatchSchedule s;
        Error err;
        err.text[0] = '\0';
        CHECK_MSG(!batch_schedule_parse(&s, cases[i].text, &err), "'%s' is taken", cases[i].text);
        CHECK_MSG(strncmp(err.text, "--batch-schedule: '", 19) == 0, "%s", err.text);
        CHECK_MSG(strstr(err.text, cases[i].expected) != NULL, "'%s': %s", cases[i].text, err.text);
        CHECK_MSG(strstr(err.text, "expected") != NULL && !strchr(err.text, '\n'), "%s", err.text);
    }
}

// ---- the batch ----

// Every update has whole units (micro-batches of all ranks): the nearest number, at least one.
TEST(batches_at_their_borders) {
    enum { UNIT = 105 };                               // 3 ranks, 5 sequences of 7 tokens
    static const struct { const char *text; uint64_t batch, unit, tokens, want; } cases[] = {
        { "constant", 1024, 256, 0, 1024 }, { "constant", 1024, 256, 1000000000000u, 1024 },
        { "linear:256,100000", 8192, 64, 0, 256 },
        { "linear:256,100000", 8192, 64, 25000, 2240 },         // a quarter of the way
        { "linear:256,100000", 8192, 64, 99999, 8192 },         // to the nearest 64
        { "linear:256,100000", 8192, 64, 100000, 8192 },
        { "linear:256,100000", 8192, 64, UINT64_MAX, 8192 },
        { "linear:8192,100000", 256, 64, 0, 8192 },             // and down
        { "linear:8192,100000", 256, 64, 50000, 4224 },
        { "stages:1000=512,5000=4096", 128, 64, 999, 128 },
        { "stages:1000=512,5000=4096", 128, 64, 1000, 512 },
        { "stages:1000=512,5000=4096", 128, 64, 4999, 512 },
        { "stages:1000=512,5000=4096", 128, 64, UINT64_MAX, 4096 },
        { "stages:0=512", 128, 64, 0, 512 },                    // the first may begin at once
        { "stages:0=52", 40 * UNIT, UNIT, 0, UNIT },            // nearer to none, but one
        { "stages:0=999", 40 * UNIT, UNIT, 0, 10 * UNIT },      // 999 is nearest to 1050
        { "linear:200,20000", 40 * UNIT, UNIT, 0, 2 * UNIT },   // 200 is nearest to 210
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        BatchSchedule s = schedule(cases[i].text, cases[i].batch, cases[i].unit);
        uint64_t batch = batch_at(&s, cases[i].tokens, 0);
        CHECK_MSG(batch == cases[i].want, "%s at %llu: %llu", cases[i].text,
                  (unsigned long long)cases[i].tokens, (unsigned long long)batch);
    }
    BatchSchedule s = schedule("constant", 1024, 256);
    CHECK(batch_start(&s) == 1024);
}

TEST(adaptive_only_grows) {
    static const struct { uint64_t now; double wanted; uint64_t becomes; } cases[] = {
        { 512, 512.0, 512 },
        { 512, 512.001, 768 },                         // rounded up, since less would not do
        { 8192, 5000.0, 8192 },                        // never smaller than now
        { 512, 16383.5, 16384 }, { 512, INFINITY, 16384 },
        { 32768, 1e6, 32768 },                         // resumed with a smaller maximum
        { 512, NAN, 512 },                             // of a gradient that is not finite
    };
    BatchSchedule s = schedule("adaptive:0.5,512,16384", 512, 256);
    CHECK(batch_start(&s) == 512 && batch_at(&s, 12345, 512) == 512 && batch_at(&s, 0, 768) == 768);
    for (size_t i = 0; i < COUNT(cases); i++) {
        uint64_t batch = batch_adapt(&s, cases[i].now, cases[i].wanted);
        CHECK_MSG(batch == cases[i].becomes, "%d, wanted %g: %d", (int)cases[i].now,
                  cases[i].wanted, (int)batch);
    }
}

// A minimum that is no whole number of units is rounded as --batch-tokens would be; a maximum is
// not passed.
TEST(adaptive_rounds_its_ends) {
    BatchSchedule s = schedule("adaptive:0.5,100,1000", 256, 256);
    CHECK(batch_start(&s) == 256);
    for (double wanted = 1.0; wanted < 3000.0; wanted += 1.7) {
        uint64_t batch = batch_adapt(&s, 256, wanted);
        CHECK_MSG(batch % 256 == 0 && batch >= 256 && batch <= 768, "%g: %d", wanted, (int)batch);
    }
    CHECK(batch_adapt(&s, 256, 999.0) == 768 && batch_most(&s) == 768);
}

// A raise waits for a full window after the warm-up and after the last raise, and at most doubles.
TEST(norm_test_waits_for_a_window) {
    BatchSchedule s = schedule("adaptive:0.5,512,4096", 512, 256);
    NormTest t = { 512, 0 };
    int raised = 0;
    for (int update = 1; update <= 400; update++) {
        uint64_t before = t.batch;
        batch_test(&t, &s, update <= 120 ? 100.0 : update == 121 ? 700.0 : INFINITY, update <= 30);
        if (t.batch == before) continue;
        static const struct { int update; uint64_t batch; } raises[] = {
            { 121, 768 }, { 171, 1536 }, { 221, 3072 }, { 271, 4096 },
        };
        CHECK(raised < 4);
        CHECK_MSG(update == raises[raised].update && t.batch == raises[raised].batch,
                  "update %d: %d", update, (int)t.batch);
        raised++;
    }
    CHECK(raised == 4);
    NormTest first = { 512, 0 };
    for (int update = 1; update < 30 + NORM_TEST_WINDOW; update++)
        batch_test(&first, &s, 2000.0, update <= 30);
    CHECK(first.batch == 512);
    batch_test(&first, &s, NAN, false);
    CHECK(first.batch == 512);
    batch_test(&first, &s, 2000.0, false);
    CHECK(first.batch == 1024);
}

// Other rules do not listen to the norm test.
TEST(only_adaptive_adapts) {
    static const char *const texts[] = { "constant", "linear:64,1000", "stages:0=128" };
    for (int i = 0; i < 3; i++) {
        BatchSchedule s = schedule(texts[i], 512, 64);
        CHECK(batch_adapt(&s, 512, 1e6) == 512);
        CHECK(batch_at(&s, 100, 64) == batch_at(&s, 100, 99999));
    }
}

// ---- the length of a run ----

TEST(tokens_of_steps_add_up) {
    static const char *const texts[] = {
        "constant", "linear:64,100000", "linear:4096,5000", "stages:1000=512,5000=4096",
        "stages:100=64,200=128,300=64",
    };
    for (size_t i = 0; i < COUNT(texts); i++) {
        BatchSchedule s = schedule(texts[i], 1024, 64);
        uint64_t tokens = 0;
        for (uint64_t steps = 0; steps < 600; steps++) {
            CHECK_MSG(batch_tokens_after(&s, 0, steps) == tokens, "%s: %d steps are %llu, not %llu",
                      texts[i], (int)steps, (unsigned long long)batch_tokens_after(&s, 0, steps),
                      (unsigned long long)tokens);
            tokens += batch_at(&s, tokens, 0);
        }
    }
}

// A million updates after the ramp cost no more than the ramp.
TEST(tokens_of_many_steps) {
    BatchSchedule s = schedule("stages:2048=4096", 1024, 64);
    CHECK(batch_tokens_after(&s, 0, 1000000002ull) == 2048 + 1000000000ull * 4096);
    s = schedule("constant", 1024, 64);
    CHECK(batch_tokens_after(&s, 0, 3000000000ull) == 3000000000ull * 1024);
}

// ---- what follows the batch ----

TEST(lr_rules) {
    BatchSchedule s = schedule("constant", 1024, 64);
    for (BatchLr rule = BATCH_LR_NONE; rule <= BATCH_LR_LINEAR; rule++)
        CHECK(batch_lr(rule, 3e-3, &s, 1024) == 3e-3);           // --lr is for --batch-tokens
    CHECK(batch_lr(BATCH_LR_NONE, 3e-3, &s, 16384) == 3e-3);
    CHECK(fabs(batch_lr(BATCH_LR_SQRT, 3e-3, &s, 4096) / 6e-3 - 1.0) < 1e-15);
    CHECK(fabs(batch_lr(BATCH_LR_LINEAR, 3e-3, &s, 4096) / 12e-3 - 1.0) < 1e-15);
}

// 0.95 at 512 sequences is 0.9999 at one (Marek et al. 2025).
TEST(beta2_as_published) {
    BatchSchedule s = schedule("constant", 512, 1);
    double one = batch_beta2(0.95, &s, 1);
    CHECK_MSG(fabs(one - 0.9999) < 5e-6, "%.7f", one);
    CHECK(batch_beta2(0.95, &s, 512) == 0.95 && batch_beta2(0.0, &s, 64) == 0.0);
    CHECK(fabs(batch_beta2(0.95, &s, 1024) - 0.95*0.95) < 1e-15);
}

int main(void) { return run_tests(); }
