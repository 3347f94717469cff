// What changes as a run goes on: the learning rate, the periods, the run's length, and the batch;
// the noise scale, and the batch that the norm test asks for. In a run: test_batch.sh.
#include "../dev/train/noise.c"
#include "../dev/train/train.h"
#include "test.h"

// ---- the learning rate, periods, and length ----

static LrSchedule lr_schedule(LrRule rule, uint64_t warmup, uint64_t horizon) {
    LrSchedule s = { rule, 0.5, 0.25, warmup, horizon };     // powers of two: exact below
    return s;
}

static bool near(double a, double b) { return fabs(a - b) <= 1e-15; }

#define AT(s, tokens, want) \
    CHECK_MSG(near(lr_at(s, tokens), want), "lr_at(%llu) is %.17g, not %.17g", \
              (unsigned long long)(tokens), lr_at(s, tokens), (double)(want))

// With lr 0.5, a warm-up over 1000 tokens and a final rate of 0.125, by hand.
TEST(values_by_hand) {
    static const struct { LrRule rule; uint64_t horizon, tokens; double lr; } cases[] = {
        { LR_CONSTANT, 11000, 0, 0.0 },        { LR_CONSTANT, 11000, 250, 0.125 },
        { LR_LINEAR, 11000, 999, 0.4995 },     { LR_COSINE, 11000, 1000, 0.5 },
        { LR_CONSTANT, 11000, 6000, 0.5 },     { LR_CONSTANT, 11000, 99000, 0.5 },
        { LR_LINEAR, 11000, 3500, 0.40625 },   { LR_LINEAR, 11000, 6000, 0.3125 },
        { LR_COSINE, 11000, 6000, 0.3125 },    // cos(pi/2) = 0
        { LR_COSINE, 11000, 3500, 0.125 + 0.375 * (0.5 + 0.25 * 1.4142135623730951) },
        { LR_WSD, 10000, 5000, 0.5 },          { LR_WSD, 10000, 8000, 0.5 },  // the last fifth
        { LR_WSD, 10000, 8500, 0.40625 },      { LR_WSD, 10000, 9500, 0.21875 },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        LrSchedule s = lr_schedule(cases[i].rule, 1000, cases[i].horizon);
        AT(&s, cases[i].tokens, cases[i].lr);
    }
}

TEST(horizon_is_reached_exactly_and_kept) {
    for (LrRule rule = LR_LINEAR; rule <= LR_WSD; rule++) {
        LrSchedule s = lr_schedule(rule, 777, 123457);
        s.lr = 6e-4;
        s.final_frac = 0.1;
        CHECK(lr_at(&s, 123456) > 6e-4 * 0.1);
        CHECK(lr_at(&s, 123457) == 6e-4 * 0.1);
        CHECK(lr_at(&s, UINT64_MAX) == 6e-4 * 0.1);
    }
}

// One token more changes the rate by at most the steepest of the slopes: no jump anywhere.
TEST(continuous_and_monotone) {
    for (LrRule rule = LR_CONSTANT; rule <= LR_WSD; rule++) {
        LrSchedule s = lr_schedule(rule, 500, 20000);
        double steepest = 0.5 / 500;
        for (uint64_t t = 0; t < 21000; t++) {
            double step = lr_at(&s, t + 1) - lr_at(&s, t);
            CHECK_MSG(fabs(step) <= steepest * 1.0000001, "rule %d jumps at %d", rule, (int)t);
            CHECK_MSG(t < 500 ? step > 0 : step <= 0, "rule %d turns at %d", rule, (int)t);
        }
    }
}

TEST(odd_lengths) {
    for (LrRule rule = LR_LINEAR; rule <= LR_WSD; rule++) {
        LrSchedule s = lr_schedule(rule, 1000, 1000);       // all warm-up
        AT(&s, 999, 0.4995);
        AT(&s, 1000, 0.125);
        s = lr_schedule(rule, 2000, 1000);                  // longer than the run
        AT(&s, 500, 0.125);
        AT(&s, 1500, 0.375);
        AT(&s, 2000, 0.125);
        s = lr_schedule(rule, 0, 0);
        AT(&s, 0, 0.125);
        s = lr_schedule(rule, 0, UINT64_MAX);
        CHECK(isfinite(lr_at(&s, UINT64_MAX / 2)));
    }
    LrSchedule wsd = lr_schedule(LR_WSD, 9000, 10000);    // warm-up reaches into the last fifth
    AT(&wsd, 9000, 0.5);
    AT(&wsd, 9500, 0.3125);
}

// Whether a period is due at the update that goes from `step` and `tokens` to the next: one of 50
// tokens where 50, 100, 150, ... are reached or crossed, whatever the batch.
TEST(periods) {
    static const struct { Period p; uint64_t step, tokens, after; bool due; } cases[] = {
        { { 3, false }, 1, 0, 7, false }, { { 3, false }, 2, 0, 7, true },
        { { 3, false }, 3, 0, 7, false }, { { 1, false }, 0, 0, 7, true },
        { { 0, false }, 0, 0, 7, false },
        { { 50, true }, 0, 0, 49, false }, { { 50, true }, 0, 0, 50, true },
        { { 50, true }, 1, 50, 99, false }, { { 50, true }, 1, 99, 101, true },
        { { 50, true }, 1, 10, 300, true }, { { 50, true }, 1, 60, 60, false },
        { { 0, true }, 1, 10, 300, false },
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        CHECK_MSG(period_due(&cases[i].p, cases[i].step, cases[i].step + 1, cases[i].tokens,
                             cases[i].after) == cases[i].due, "case %zu", i);
}

TEST(run_ends) {
    RunLength steps = { 10, -1, 0.0 }, tokens = { -1, 1000, 0.0 }, loss = { -1, -1, 1.5 };
    CHECK(!run_done(&steps, 9, 1u << 30, 0.0) && run_done(&steps, 10, 0, NAN));
    CHECK(!run_done(&tokens, 1u << 30, 999, 0.0) && run_done(&tokens, 0, 1000, NAN));
    CHECK(run_done(&tokens, 0, 1001, 9.0));
    CHECK(!run_done(&loss, 1u << 30, 1u << 30, 1.51) && run_done(&loss, 0, 0, 1.5));
    CHECK(!run_done(&loss, 0, 0, NAN));
    RunLength none = { -1, -1, 0.0 }, nothing = { 0, -1, 0.0 }, first = { 10, -1, 1.5 };
    CHECK(!run_done(&none, UINT64_MAX, UINT64_MAX, -1.0));
    CHECK(run_done(&nothing, 0, 0, NAN));
    CHECK(run_done(&first, 3, 0, 1.2) && run_done(&first, 10, 0, 9.0));
    CHECK(!run_done(&first, 3, 0, 2.0));
}

TEST(progress) {
    RunLength steps = { 10, -1, 0.0 }, tokens = { -1, 1000, 0.0 }, loss = { -1, -1, 1.5 };
    RunLength nothing = { 0, -1, 0.0 };
    CHECK(run_progress(&steps, 0, 0) == 0.0 && run_progress(&steps, 5, 77) == 0.5);
    CHECK(run_progress(&tokens, 5, 250) == 0.25 && run_progress(&tokens, 5, 1100) == 1.0);
    CHECK(isnan(run_progress(&loss, 5, 250)) && run_progress(&nothing, 0, 0) == 1.0);
}

// ---- the batch, as it is typed ----

// For updates of `batch` tokens in whole `unit`s, as the trainer settles it.
static BatchSchedule batch_schedule(const char *text, uint64_t batch, uint64_t unit) {
    BatchSchedule s;
    Error err;
    err.text[0] = '\0';
    CHECK_MSG(batch_schedule_parse(&s, text, &err), "'%s': %s", text, err.text);
    s.batch = batch;
    s.unit = unit;
    return s;
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
        BatchSchedule s = batch_schedule(cases[i].text, cases[i].batch, cases[i].unit);
        uint64_t batch = batch_at(&s, cases[i].tokens, 0);
        CHECK_MSG(batch == cases[i].want, "%s at %llu: %llu", cases[i].text,
                  (unsigned long long)cases[i].tokens, (unsigned long long)batch);
        CHECK(batch_adapt(&s, 512, 1e6) == 512);       // other rules do not listen to the norm test
    }
    BatchSchedule s = batch_schedule("constant", 1024, 256);
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
    BatchSchedule s = batch_schedule("adaptive:0.5,512,16384", 512, 256);
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
    BatchSchedule s = batch_schedule("adaptive:0.5,100,1000", 256, 256);
    CHECK(batch_start(&s) == 256 && s.eta == 0.5);
    for (double wanted = 1.0; wanted < 3000.0; wanted += 1.7) {
        uint64_t batch = batch_adapt(&s, 256, wanted);
        CHECK_MSG(batch % 256 == 0 && batch >= 256 && batch <= 768, "%g: %d", wanted, (int)batch);
    }
    CHECK(batch_adapt(&s, 256, 999.0) == 768 && batch_most(&s) == 768);
}

// A raise waits for a full window after the warm-up and after the last raise, and at most doubles.
TEST(norm_test_waits_for_a_window) {
    BatchSchedule s = batch_schedule("adaptive:0.5,512,4096", 512, 256);
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
}

// ---- the length of a run ----

TEST(tokens_of_steps_add_up) {
    static const char *const texts[] = {
        "constant", "linear:64,100000", "linear:4096,5000", "stages:1000=512,5000=4096",
        "stages:100=64,200=128,300=64",
    };
    for (size_t i = 0; i < COUNT(texts); i++) {
        BatchSchedule s = batch_schedule(texts[i], 1024, 64);
        uint64_t tokens = 0;
        for (uint64_t steps = 0; steps < 600; steps++) {
            CHECK_MSG(batch_tokens_after(&s, 0, steps) == tokens, "%s: %d steps are %llu, not %llu",
                      texts[i], (int)steps, (unsigned long long)batch_tokens_after(&s, 0, steps),
                      (unsigned long long)tokens);
            tokens += batch_at(&s, tokens, 0);
        }
    }
}

// ---- what follows the batch ----

TEST(lr_rules) {
    BatchSchedule s = batch_schedule("constant", 1024, 64);
    for (BatchLr rule = BATCH_LR_NONE; rule <= BATCH_LR_LINEAR; rule++)
        CHECK(batch_lr(rule, 3e-3, &s, 1024) == 3e-3);           // --lr is for --batch-tokens
    CHECK(batch_lr(BATCH_LR_NONE, 3e-3, &s, 16384) == 3e-3);
    CHECK(fabs(batch_lr(BATCH_LR_SQRT, 3e-3, &s, 4096) / 6e-3 - 1.0) < 1e-15);
    CHECK(fabs(batch_lr(BATCH_LR_LINEAR, 3e-3, &s, 4096) / 12e-3 - 1.0) < 1e-15);
}

// 0.95 at 512 sequences is 0.9999 at one (Marek et al. 2025).
TEST(beta2_as_published) {
    BatchSchedule s = batch_schedule("constant", 512, 1);
    double one = batch_beta2(0.95, &s, 1);
    CHECK_MSG(fabs(one - 0.9999) < 5e-6, "%.7f", one);
    CHECK(batch_beta2(0.95, &s, 512) == 0.95 && batch_beta2(0.0, &s, 64) == 0.0);
    CHECK(fabs(batch_beta2(0.95, &s, 1024) - 0.95*0.95) < 1e-15);
    s.batch = 1 << 20;                                   // a float would round it to 1 there
    CHECK((float)batch_beta2(0.999, &s, 16) < 1.0f);
}

// ---- the noise scale ----

// Two equations in two unknowns, linear in the norms: exact for the norms' means, so unbiased.
TEST(exact_where_norms_are_exact) {
    static const struct { double m, B; } sizes[] = { { 1, 2 }, { 3, 12 }, { 1024, 524288 } };
    for (size_t c = 0; c < COUNT(sizes); c++) {
        double m = sizes[c].m, B = sizes[c].B, g2 = 0.5, trace = 700.0;
        GradientNorms norms = { g2 + trace/m, g2 + trace/B, m, B };
        NoiseEstimate e = noise_estimate(&norms);
        // The difference of norms that agree in 3 digits at most: 1e-12 leaves room for 1e-16.
        CHECK_MSG(fabs(e.g2 / g2 - 1.0) < 1e-12 && fabs(e.s / trace - 1.0) < 1e-12,
                  "m=%g B=%g: %.17g %.17g", m, B, e.g2, e.s);
    }
}

// ---- averages over updates ----

static NoiseScale average_of(NoiseEstimate e, int updates) {
    NoiseScale n = { 0 };
    for (int u = 0; u < updates; u++) noise_add(&n, e);
    return n;
}

// With a weak gradient G2 is negative at nearly every second update. Their mean is right; without
// those, or with zeros in their place, it would be far too large.
TEST(clamped_after_the_average_alone) {
    NoiseEstimate up = { 3.0, 10.0 }, down = { -2.0, 10.0 }, noiseless = { 1.0, -4.0 };
    NoiseScale n = { 0 };
    for (int u = 0; u < 999; u++) noise_add(&n, u % 2 ? down : up);    // 0.5 on average
    CHECK_MSG(fabs(noise_tokens(&n) - 20.0) < 2.0, "%g", noise_tokens(&n));
    n = average_of(down, 5);
    CHECK(isinf(noise_tokens(&n)) && fabs(n.g2 / n.weight / down.g2 - 1.0) < 1e-12);
    for (int u = 0; u < 400; u++) noise_add(&n, up);                    // and it comes back
    CHECK_MSG(fabs(noise_tokens(&n) / (10.0 / 3.0) - 1.0) < 0.01, "%g", noise_tokens(&n));
    n = average_of(noiseless, 5);
    CHECK(noise_tokens(&n) == 0.0);
}

// ---- words ----

TEST(verdicts) {
    static const struct { double noise, batch; bool decayed; const char *said; } cases[] = {
        { NAN, 8192, false, "batch 8,192 tokens, noise scale not measured yet" },
        { INFINITY, 512, false, "batch 512 tokens, noise scale above what this batch can tell: "
                                "more workers would still help" },
        { 1.001e6, 1000, false, "batch 1,000 tokens, noise scale above what this batch can tell: "
                                "more workers would still help" },
        { 1e6, 1000, false, "batch 1,000 tokens, noise scale 1,000,000: up to about 1000x more "
                            "workers would still help" },
        { 1500, 1000, false, "batch 1,000 tokens, noise scale 1,500: up to about 2x more workers "
                             "would still help" },
        { 1499, 1000, false, "batch 1,000 tokens, noise scale 1,500: about right; more workers "
                             "would help little" },
        { 204, 1000, false, "batch 1,000 tokens, noise scale 200: a batch 4.9x smaller would "
                            "probably learn more per token at this learning rate; after it decays "
                            "the noise scale is several times larger" },
        { 500, 1000, true, "batch 1,000 tokens, noise scale 500: a batch 2x smaller would probably "
                           "learn more per token at this learning rate" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char said[256];
        noise_verdict(said, sizeof said, cases[i].noise, cases[i].batch, cases[i].decayed);
        CHECK_MSG(strcmp(said, cases[i].said) == 0, "%s", said);
    }
}

int main(void) { return run_tests(); }
