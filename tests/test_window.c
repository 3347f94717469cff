// The running window behind --skip-outliers: its z-scores, what it forgets, and that a loss that
// stays high is taken for ordinary after a while.
#include "../dev/base/rng.h"
#include "../dev/base/window.h"
#include "test.h"

TEST(z_scores_are_those_of_the_formula) {
    Window w = { 0 };
    Rng rng = rng_make(1, 0);
    double all[300];
    for (int i = 0; i < 300; i++) {
        double value = 3.0 + 0.1 * rng_uniform(&rng), sum = 0.0, squares = 0.0;
        int from = i > WINDOW_VALUES ? i - WINDOW_VALUES : 0, n = i - from;
        for (int k = from; k < i; k++) sum += all[k], squares += all[k] * all[k];
        double mean = sum / n, z = (value - mean) / sqrt(squares / n - mean * mean);
        if (i < WINDOW_ENOUGH) CHECK(window_z(&w, value) == 0.0);
        else CHECK_MSG(fabs(window_z(&w, value) - z) < 1e-6, "%d: %g, not %g", i,
                       window_z(&w, value), z);
        window_add(&w, value);
        all[i] = value;
        CHECK(w.n == (i + 1 < WINDOW_VALUES ? i + 1 : WINDOW_VALUES) && w.values[w.n - 1] == value);
    }
    CHECK(memcmp(w.values, all + 300 - WINDOW_VALUES, sizeof w.values) == 0);
}

TEST(equal_values_have_no_outliers) {
    Window w = { 0 };
    for (int i = 0; i < 200; i++) window_add(&w, 2.5);
    CHECK(window_z(&w, 2.5) == 0.0 && window_z(&w, 1e9) == 0.0);
}

TEST(a_loss_that_stays_high_becomes_ordinary) {
    for (double limit = 1.0; limit <= 8.0; limit += 1.0) {
        Window w = { 0 };
        int skipped = 0;
        for (int i = 0; i < WINDOW_VALUES; i++) window_add(&w, i % 2 ? 1.0 : 1.1);
        for (; window_z(&w, 100.0) > limit; skipped++) window_add(&w, 100.0);
        int most = (int)(WINDOW_VALUES / (1.0 + limit * limit)) + 1;
        CHECK_MSG(skipped >= 1 && skipped <= most, "Z = %g: %d skipped", limit, skipped);
    }
}

int main(void) {
    RUN(z_scores_are_those_of_the_formula);
    RUN(equal_values_have_no_outliers);
    RUN(a_loss_that_stays_high_becomes_ordinary);
    return test_end();
}
