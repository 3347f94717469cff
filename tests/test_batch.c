// The batch's size as a function of tokens, and what the learning rate and beta2 make of it.
#include "../dev/train/batch.h"
#include "../dev/base/rng.h"
#include "test.h"

// ---- reading ----

static BatchSchedule read_schedule(const char *text) {
    BatchSchedule s;
    Error err;
    err.text[0] = '\0';
    CHECK_MSG(batch_schedule_parse(&s, text, &err), "'%s': %s", text, err.text);
    return s;
}

// The same, for updates of `batch` tokens in whole `unit`s, as the trainer settles it.
static BatchSchedule schedule(const char *text, uint64_t batch, uint64_t unit) {
    BatchSchedule s = read_schedule(text);
    s.batch = batch;
    s.unit = unit;
    return s;
}

TEST(good_texts) {
    BatchSchedule s = read_schedule("constant");
    CHECK(s.rule == BATCH_CONSTANT);
    s = read_schedule("linear:32768,4e9");
    CHECK(s.rule == BATCH_LINEAR && s.first == 32768 && s.over == 4000000000u);
    s = read_schedule("stages:1000=64");
    CHECK(s.rule == BATCH_STAGES && s.n_stages == 1);
    CHECK(s.stages[0].tokens == 1000 && s.stages[0].batch == 64);
    s = read_schedule("stages:0=32,1000=64,1e6=4096");
    CHECK(s.n_stages == 3 && s.stages[0].tokens == 0 && s.stages[0].batch == 32);
    CHECK(s.stages[2].tokens == 1000000 && s.stages[2].batch == 4096);
    s = read_schedule("stages:1000=64,2000=32");                        // it may shrink
    CHECK(s.n_stages == 2 && s.stages[1].batch == 32);
    s = read_schedule("adaptive:0.25,512,16384");
    CHECK(s.rule == BATCH_ADAPTIVE && s.eta == 0.25 && s.min == 512 && s.max == 16384);
    s = read_schedule("adaptive:1.5,512,512");
    CHECK(s.eta == 1.5 && s.min == s.max);
}

// Nothing of a schedule that was read before is left.
TEST(reading_starts_afresh) {
    BatchSchedule s = read_schedule("stages:0=32,1000=64");
    Error err;
    CHECK(batch_schedule_parse(&s, "constant", &err) && s.rule == BATCH_CONSTANT);
    CHECK(s.n_stages == 0 && s.batch == 0 && s.unit == 0);
}

TEST(bad_texts) {
    static const struct { const char *text, *expected; } cases[] = {
        { "", "constant, linear:N0,TOKENS, stages:TOKENS=BATCH,... or adaptive:ETA,MIN,MAX" },
        { "const", "constant, linear" }, { "Linear:1,2", "constant, linear" },
        { "constant:", "expected constant" }, { "constant:64", "expected constant" },
        { "linear", "linear:N0,TOKENS" }, { "linear:", "linear:N0,TOKENS" },
        { "linear:64", "linear:N0,TOKENS" }, { "linear:64,", "linear:N0,TOKENS" },
        { "linear:,64", "linear:N0,TOKENS" }, { "linear:64,100,5", "linear:N0,TOKENS" },
        { "linear:0,100", "at least 1" }, { "linear:64,0", "at least 1" },
        { "linear:1.5,100", "linear:N0,TOKENS" }, { "linear:-64,100", "linear:N0,TOKENS" },
        { "linear:64,1e16", "linear:N0,TOKENS" }, { "linear:64, 100", "linear:N0,TOKENS" },
        { "linear:64,0x10", "linear:N0,TOKENS" }, { "linear:64,inf", "linear:N0,TOKENS" },
        { "linear:11111111111111111111111111111111111,5", "linear:N0,TOKENS" },
        { "stages", "stages:TOKENS=BATCH" }, { "stages:", "stages:TOKENS=BATCH" },
        { "stages:64", "stages:TOKENS=BATCH" }, { "stages:=64", "stages:TOKENS=BATCH" },
        { "stages:100=", "stages:TOKENS=BATCH" }, { "stages:100=64,", "stages:TOKENS=BATCH" },
        { "stages:100=0", "stages:TOKENS=BATCH" }, { "stages:,100=64", "stages:TOKENS=BATCH" },
        { "stages:100=64,100=128", "rising TOKENS" }, { "stages:100=64,50=128", "rising TOKENS" },
        { "stages:100=64;200=128", "stages:TOKENS=BATCH" },
        { "adaptive", "adaptive:ETA,MIN,MAX" }, { "adaptive:0.5", "adaptive:ETA,MIN,MAX" },
        { "adaptive:0.5,64", "adaptive:ETA,MIN,MAX" }, { "adaptive:0.5,64,", "adaptive:ETA" },
        { "adaptive:0,64,128", "ETA above 0" }, { "adaptive:-1,64,128", "ETA above 0" },
        { "adaptive:0.5,0,128", "1 <= MIN" }, { "adaptive:0.5,256,128", "MIN <= MAX" },
        { "adaptive:0.5,64,128,256", "adaptive:ETA,MIN,MAX" },
        { "adaptive:nan,64,128", "adaptive:ETA,MIN,MAX" },
        { "adaptive:0.5,64.5,128", "adaptive:ETA,MIN,MAX" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        BatchSchedule s;
        Error err;
        err.text[0] = '\0';
        CHECK_MSG(!batch_schedule_parse(&s, cases[i].text, &err), "'%s' is taken", cases[i].text);
        CHECK_MSG(strncmp(err.text, "--batch-schedule: '", 19) == 0, "%s", err.text);
        CHECK_MSG(strstr(err.text, cases[i].expected) != NULL, "'%s': %s", cases[i].text, err.text);
        CHECK_MSG(strstr(err.text, "expected") != NULL && !strchr(err.text, '\n'), "%s", err.text);
    }
}

// As many stages as there is room for are read, and one more is refused.
TEST(many_stages) {
    char text[2000] = "stages:";
    for (int i = 0; i <= MAX_STAGES; i++) {
        BatchSchedule s;
        Error err;
        char *end = text + strlen(text);
        snprintf(end, 30, "%s%d=%d", i > 0 ? "," : "", 100 * i, 64 + i);
        bool read = batch_schedule_parse(&s, text, &err);
        CHECK_MSG(read == (i < MAX_STAGES), "%d stages: %d", i + 1, read);
        if (read) CHECK(s.n_stages == i + 1 && s.stages[i].batch == 64u + i);
    }
}

// Whatever the text, it is refused in one line or read: no crash, nothing out of range.
TEST(random_texts) {
    static const char letters[] = "constantlineargesdpv:,=0123456789.eE+- ";
    static const char *const starts[] = { "", "constant", "linear:", "stages:", "adaptive:" };
    Rng rng = rng_make(1, 0);
    for (int i = 0; i < 20000; i++) {
        char text[120];
        int n = snprintf(text, sizeof text, "%s", starts[rng_below(&rng, 5)]);
        for (uint64_t k = rng_below(&rng, 60); k > 0; k--)
            text[n++] = letters[rng_below(&rng, sizeof letters - 1)];
        text[n] = '\0';
        BatchSchedule s;
        Error err;
        if (!batch_schedule_parse(&s, text, &err)) CHECK(!strchr(err.text, '\n'));
        else CHECK(s.n_stages >= 0 && s.n_stages <= MAX_STAGES);
    }
}

// ---- the batch ----

#define AT(s, tokens, want) \
    CHECK_MSG(batch_at(s, tokens, 0) == (want), "at %llu: %llu, not %llu", \
              (unsigned long long)(tokens), (unsigned long long)batch_at(s, tokens, 0), \
              (unsigned long long)(want))

TEST(constant) {
    BatchSchedule s = schedule("constant", 1024, 256);
    AT(&s, 0, 1024u);
    AT(&s, 1000000000000u, 1024u);
    CHECK(batch_start(&s) == 1024);
}

TEST(linear_at_its_borders) {
    BatchSchedule s = schedule("linear:256,100000", 8192, 64);
    AT(&s, 0, 256u);
    AT(&s, 50000, 4224u);                              // half of the way from 256 to 8192
    AT(&s, 25000, 2240u);                              // a quarter
    AT(&s, 99999, 8192u);                              // to the nearest 64
    AT(&s, 100000, 8192u);
    AT(&s, 100001, 8192u);
    AT(&s, UINT64_MAX, 8192u);
    s = schedule("linear:8192,100000", 256, 64);       // and down
    AT(&s, 0, 8192u);
    AT(&s, 50000, 4224u);
    AT(&s, 100000, 256u);
}

TEST(stages_at_their_borders) {
    BatchSchedule s = schedule("stages:1000=512,5000=4096", 128, 64);
    AT(&s, 0, 128u);
    AT(&s, 999, 128u);
    AT(&s, 1000, 512u);
    AT(&s, 4999, 512u);
    AT(&s, 5000, 4096u);
    AT(&s, UINT64_MAX, 4096u);
    s = schedule("stages:0=512", 128, 64);             // the first stage may begin at once
    AT(&s, 0, 512u);
}

// Every rank has whole micro-batches, to the nearest number, and at least one.
TEST(whole_units) {
    enum { RANKS = 3, MICRO = 5, T = 7, UNIT = RANKS * MICRO * T };
    static const char *const texts[] = { "linear:1,20000", "linear:200,20000",
                                         "stages:1000=1,2000=52,3000=53,4000=999" };
    for (int i = 0; i < 3; i++) {
        BatchSchedule s = schedule(texts[i], 40 * UNIT, UNIT);
        for (uint64_t tokens = 0; tokens < 25000; tokens += 13) {
            uint64_t batch = batch_at(&s, tokens, 0);
            CHECK_MSG(batch >= UNIT && batch % UNIT == 0, "%s at %d: %d", texts[i], (int)tokens,
                      (int)batch);
        }
    }
    BatchSchedule s = schedule(texts[2], 40 * UNIT, UNIT);
    AT(&s, 1000, (uint64_t)UNIT);                      // 1: not none
    AT(&s, 2000, (uint64_t)UNIT);                      // 52 of 105: nearer to none, but one
    AT(&s, 4000, (uint64_t)UNIT * 10);                 // 999 is nearest to 1050
    s = schedule("linear:200,20000", 40 * UNIT, UNIT);
    AT(&s, 0, (uint64_t)UNIT * 2);                     // 200 is nearest to 210
}

// It rises all the way, by a unit at a time when the ramp is long.
TEST(linear_is_monotone) {
    BatchSchedule s = schedule("linear:64,1000000", 8192, 64);
    uint64_t last = batch_at(&s, 0, 0);
    for (uint64_t tokens = 0; tokens < 1100000; tokens += 100) {
        uint64_t batch = batch_at(&s, tokens, 0);
        CHECK(batch >= last && batch - last <= 64);
        last = batch;
    }
    CHECK(last == 8192);
}

TEST(adaptive_only_grows) {
    BatchSchedule s = schedule("adaptive:0.5,512,16384", 512, 256);
    uint64_t batch = batch_start(&s);
    CHECK(batch == 512 && batch_at(&s, 12345, batch) == 512 && batch_at(&s, 0, 768) == 768);
    CHECK(batch_adapt(&s, 512, 100.0) == 512);         // it asks for less
    CHECK(batch_adapt(&s, 512, 512.0) == 512);
    CHECK(batch_adapt(&s, 512, 512.001) == 768);       // rounded up, since less would not do
    CHECK(batch_adapt(&s, 512, 768.0) == 768);
    CHECK(batch_adapt(&s, 512, 5000.0) == 5120);
    CHECK(batch_adapt(&s, 8192, 5000.0) == 8192);      // never smaller than now
}

TEST(adaptive_is_clamped) {
    BatchSchedule s = schedule("adaptive:0.5,512,16384", 512, 256);
    CHECK(batch_adapt(&s, 512, 16383.5) == 16384);
    CHECK(batch_adapt(&s, 512, 16384.0) == 16384);
    CHECK(batch_adapt(&s, 512, 1e300) == 16384);
    CHECK(batch_adapt(&s, 512, INFINITY) == 16384);
    CHECK(batch_adapt(&s, 16384, 1e6) == 16384);
    CHECK(batch_adapt(&s, 32768, 1e6) == 32768);       // resumed with a smaller maximum
    CHECK(batch_adapt(&s, 512, NAN) == 512);           // of a gradient that is not finite
    CHECK(batch_adapt(&s, 512, -3.0) == 512);
    CHECK(batch_adapt(&s, 512, -INFINITY) == 512);
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
        "constant", "linear:64,100000", "linear:4096,5000", "linear:64,1", "stages:0=128",
        "stages:1000=512,5000=4096", "stages:100=64,200=128,300=64", "stages:12345=1",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
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
    CHECK(fabs(batch_lr(BATCH_LR_SQRT, 3e-3, &s, 256) / 1.5e-3 - 1.0) < 1e-15);
    CHECK(fabs(batch_lr(BATCH_LR_LINEAR, 3e-3, &s, 4096) / 12e-3 - 1.0) < 1e-15);
    CHECK(fabs(batch_lr(BATCH_LR_LINEAR, 3e-3, &s, 64) / (3e-3 / 16) - 1.0) < 1e-15);
}

TEST(beta2_fixed) {
    BatchSchedule s = schedule("constant", 1024, 64);
    CHECK(batch_beta2(BATCH_BETA2_FIXED, 0.95, &s, 64) == 0.95);
    CHECK(batch_beta2(BATCH_BETA2_HALFLIFE, 0.95, &s, 1024) == 0.95);
    CHECK(batch_beta2(BATCH_BETA2_HALFLIFE, 0.0, &s, 64) == 0.0);
}

// 0.95 at 512 sequences is 0.9999 at one (Marek et al. 2025).
TEST(beta2_as_published) {
    BatchSchedule s = schedule("constant", 512, 1);
    double one = batch_beta2(BATCH_BETA2_HALFLIFE, 0.95, &s, 1);
    CHECK_MSG(fabs(one - 0.9999) < 5e-6, "%.7f", one);
}

// The second moment, left alone, is half of what it was after so many tokens, whatever the batch.
TEST(half_life_in_tokens_is_constant) {
    BatchSchedule s = schedule("constant", 1024, 1);
    double wanted = 1024.0 * log(0.5) / log(0.95);
    for (uint64_t batch = 1; batch <= 65536; batch *= 4) {
        double beta2 = batch_beta2(BATCH_BETA2_HALFLIFE, 0.95, &s, batch);
        double tokens = (double)batch * log(0.5) / log(beta2);
        // 1 - beta2 is 5e-5 at batch 1, so its logarithm has 1e-16 / 5e-5 of rounding
        CHECK_MSG(fabs(tokens / wanted - 1.0) < 1e-11, "batch %d: %.12g, not %.12g", (int)batch,
                  tokens, wanted);
    }
}

// The same along a run whose batch changes all the time: update by update.
TEST(half_life_along_a_ramp) {
    BatchSchedule s = schedule("linear:64,500000", 4096, 64);
    double v = 1.0;
    uint64_t tokens = 0;
    while (tokens < 100000) {
        uint64_t batch = batch_at(&s, tokens, 0);
        v *= batch_beta2(BATCH_BETA2_HALFLIFE, 0.95, &s, batch);
        tokens += batch;
    }
    CHECK(fabs(log(v) / (log(0.95) * (double)tokens / 4096.0) - 1.0) < 1e-11);
}

int main(void) {
    RUN(good_texts);
    RUN(reading_starts_afresh);
    RUN(bad_texts);
    RUN(many_stages);
    RUN(random_texts);
    RUN(constant);
    RUN(linear_at_its_borders);
    RUN(stages_at_their_borders);
    RUN(whole_units);
    RUN(linear_is_monotone);
    RUN(adaptive_only_grows);
    RUN(adaptive_is_clamped);
    RUN(adaptive_rounds_its_ends);
    RUN(norm_test_waits_for_a_window);
    RUN(only_adaptive_adapts);
    RUN(tokens_of_steps_add_up);
    RUN(tokens_of_many_steps);
    RUN(lr_rules);
    RUN(beta2_fixed);
    RUN(beta2_as_published);
    RUN(half_life_in_tokens_is_constant);
    RUN(half_life_along_a_ramp);
    return test_end();
}
