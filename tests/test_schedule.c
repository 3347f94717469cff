// The learning rate, the periods and the length of a run.
#include "../dev/train/train.h"
#include "test.h"

enum { RULES = 4 };
static const LrRule rules[RULES] = { LR_CONSTANT, LR_LINEAR, LR_COSINE, LR_WSD };

static LrSchedule schedule(LrRule rule, uint64_t warmup, uint64_t horizon) {
    LrSchedule s = { rule, 0.5, 0.25, warmup, horizon };     // powers of two: exact below
    return s;
}

static bool near(double a, double b) { return fabs(a - b) <= 1e-15; }

#define AT(s, tokens, want) \
    CHECK_MSG(near(lr_at(s, tokens), want), "lr_at(%llu) is %.17g, not %.17g", \
              (unsigned long long)(tokens), lr_at(s, tokens), (double)(want))

TEST(warmup_is_linear_and_ends_at_lr) {
    for (int r = 0; r < RULES; r++) {
        LrSchedule s = schedule(rules[r], 1000, 11000);
        AT(&s, 0, 0.0);
        AT(&s, 250, 0.125);
        AT(&s, 999, 0.4995);
        CHECK(lr_at(&s, 1000) == 0.5);
        s = schedule(rules[r], 0, 1000000);
        CHECK(lr_at(&s, 0) == 0.5 && fabs(lr_at(&s, 1) - 0.5) < 1e-6);
    }
}

// With lr 0.5 and a final rate of 0.125, by hand.
TEST(values_by_hand) {
    static const struct { LrRule rule; uint64_t horizon, tokens; double lr; } cases[] = {
        { LR_CONSTANT, 11000, 6000, 0.5 },     { LR_CONSTANT, 11000, 99000, 0.5 },
        { LR_LINEAR, 11000, 3500, 0.40625 },   { LR_LINEAR, 11000, 6000, 0.3125 },
        { LR_COSINE, 11000, 6000, 0.3125 },    // cos(pi/2) = 0
        { LR_COSINE, 11000, 3500, 0.125 + 0.375 * (0.5 + 0.25 * 1.4142135623730951) },
        { LR_WSD, 10000, 5000, 0.5 },          { LR_WSD, 10000, 8000, 0.5 },  // the last fifth
        { LR_WSD, 10000, 8500, 0.40625 },      { LR_WSD, 10000, 9500, 0.21875 },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        LrSchedule s = schedule(cases[i].rule, 1000, cases[i].horizon);
        AT(&s, cases[i].tokens, cases[i].lr);
    }
}

TEST(horizon_is_reached_exactly_and_kept) {
    for (int r = 1; r < RULES; r++) {
        LrSchedule s = schedule(rules[r], 777, 123457);
        s.lr = 6e-4;
        s.final_frac = 0.1;
        CHECK(lr_at(&s, 123456) > 6e-4 * 0.1);
        CHECK(lr_at(&s, 123457) == 6e-4 * 0.1);
        CHECK(lr_at(&s, UINT64_MAX) == 6e-4 * 0.1);
    }
}

// One token more changes the rate by at most the steepest of the slopes: no jump anywhere.
TEST(continuous_and_monotone) {
    for (int r = 0; r < RULES; r++) {
        LrSchedule s = schedule(rules[r], 500, 20000);
        double steepest = 0.5 / 500;
        for (uint64_t t = 0; t < 21000; t++) {
            double step = lr_at(&s, t + 1) - lr_at(&s, t);
            CHECK_MSG(fabs(step) <= steepest * 1.0000001, "rule %d jumps at %d", r, (int)t);
            CHECK_MSG(t < 500 ? step > 0 : step <= 0, "rule %d turns at %d", r, (int)t);
        }
    }
}

TEST(odd_lengths) {
    for (int r = 1; r < RULES; r++) {
        LrSchedule s = schedule(rules[r], 1000, 1000);       // all warm-up
        AT(&s, 999, 0.4995);
        AT(&s, 1000, 0.125);
        s = schedule(rules[r], 2000, 1000);                  // longer than the run
        AT(&s, 500, 0.125);
        AT(&s, 1500, 0.375);
        AT(&s, 2000, 0.125);
        s = schedule(rules[r], 0, 0);
        AT(&s, 0, 0.125);
        s = schedule(rules[r], 0, UINT64_MAX);
        CHECK(isfinite(lr_at(&s, UINT64_MAX / 2)));
    }
    LrSchedule wsd = schedule(LR_WSD, 9000, 10000);          // warm-up reaches into the last fifth
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

int main(void) { return run_tests(); }
