// The schedules of learning rate and batch, and the length of a run: pure rules (train.h).
#include "train.h"
#include <assert.h>

// ---- learning rate ----

double lr_at(const LrSchedule *s, uint64_t tokens) {
    if (tokens < s->warmup) return s->lr * ((double)tokens / (double)s->warmup);
    if (s->rule == LR_CONSTANT) return s->lr;

    double final_lr = s->lr * s->final_frac;
    uint64_t start = s->warmup, stable_end = s->horizon - s->horizon / 5;
    if (s->rule == LR_WSD && start < stable_end) start = stable_end;
    if (tokens >= s->horizon) return final_lr;
    if (tokens <= start) return s->lr;

    double p = (double)(tokens - start) / (double)(s->horizon - start);
    double keep = s->rule == LR_COSINE ? 0.5 * (1.0 + cos(3.14159265358979323846 * p)) : 1.0 - p;
    return final_lr + (s->lr - final_lr) * keep;
}

// ---- the length of a run ----

bool run_done(const RunLength *run, uint64_t steps, uint64_t tokens, double loss) {
    if (run->steps >= 0 && steps >= (uint64_t)run->steps) return true;
    if (run->tokens >= 0 && tokens >= (uint64_t)run->tokens) return true;
    return run->target_loss > 0.0 && loss <= run->target_loss;
}

double run_progress(const RunLength *run, uint64_t steps, uint64_t tokens) {
    double part = NAN;
    if (run->steps >= 0) part = run->steps ? (double)steps / (double)run->steps : 1.0;
    if (run->tokens >= 0) part = run->tokens ? (double)tokens / (double)run->tokens : 1.0;
    return part > 1.0 ? 1.0 : part;
}

// ---- the batch: reading ----

static const uint64_t TOKENS_MOST = 1000000000000000;      // of a run

// Writes x, if it is a whole number of tokens in this range.
static bool batch_tokens(uint64_t *out, double x, uint64_t least, uint64_t most) {
    if (!(x >= (double)least && x <= (double)most) || x != floor(x)) return false;
    *out = (uint64_t)x;
    return true;
}

static bool batch_stages_read(BatchSchedule *s, const char *text) {
    double tokens, batch;
    uint64_t least = 0;
    for (int n = 0; s->n_stages < MAX_STAGES; text += n + 1) {
        if (sscanf(text, "%lf=%lf%n", &tokens, &batch, &n) != 2
            || !batch_tokens(&s->stages[s->n_stages].tokens, tokens, least, TOKENS_MOST)
            || !batch_tokens(&s->stages[s->n_stages].batch, batch, 1, BATCH_MOST)) return false;
        least = s->stages[s->n_stages++].tokens + 1;
        if (text[n] != ',') return text[n] == '\0';
    }
    return false;
}

bool batch_schedule_parse(BatchSchedule *s, const char *text, Error *err) {
    const char *rest = strchr(text, ':');
    size_t name = strcspn(text, ":");
    int rule = choice_index("constant|linear|stages|adaptive", text, name);
    memset(s, 0, sizeof *s);
    s->rule = (BatchRule)rule;
    rest = rest ? rest + 1 : "";
    const char *form[] = { "constant", "linear:N0,TOKENS, both at least 1, N0 at most 1e9",
                           "stages:TOKENS=BATCH,... with rising TOKENS, at most 32, BATCH to 1e9",
                           "adaptive:ETA,MIN,MAX with ETA above 0 and 1 <= MIN <= MAX <= 1e9" };
    double a, b;
    int n = 0;
    bool good = false;
    if (rule == BATCH_CONSTANT) good = text[name] == '\0';
    if (rule == BATCH_LINEAR)
        good = sscanf(rest, "%lf,%lf%n", &a, &b, &n) == 2 && rest[n] == '\0'
            && batch_tokens(&s->first, a, 1, BATCH_MOST)
            && batch_tokens(&s->over, b, 1, TOKENS_MOST);
    if (rule == BATCH_STAGES) good = batch_stages_read(s, rest);
    if (rule == BATCH_ADAPTIVE)
        good = sscanf(rest, "%lf,%lf,%lf%n", &s->eta, &a, &b, &n) == 3 && rest[n] == '\0'
            && s->eta > 0.0 && isfinite(s->eta) && batch_tokens(&s->min, a, 1, BATCH_MOST)
            && batch_tokens(&s->max, b, s->min, BATCH_MOST);
    if (good) return true;
    return fail(err, "--batch-schedule: '%s': expected %s", brief(text, strlen(text)).text,
                rule >= 0 ? form[rule] : "constant, linear:N0,TOKENS, stages:TOKENS=BATCH,... or "
                "adaptive:ETA,MIN,MAX, all in tokens");
}

// ---- the batch ----

uint64_t batch_round(const BatchSchedule *s, double tokens) {
    double units = floor(tokens / (double)s->unit + 0.5);
    return units < 1.0 ? s->unit : (uint64_t)units * s->unit;
}

uint64_t batch_smallest(const BatchSchedule *s) {
    uint64_t smallest = s->batch, first = batch_round(s, (double)s->first);
    if (s->rule == BATCH_ADAPTIVE) return batch_round(s, (double)s->min);
    if (s->rule == BATCH_LINEAR && first < smallest) smallest = first;
    for (int i = 0; i < s->n_stages; i++) {
        uint64_t batch = batch_round(s, (double)s->stages[i].batch);
        if (batch < smallest) smallest = batch;
    }
    return smallest;
}

uint64_t batch_start(const BatchSchedule *s) {
    return s->rule == BATCH_ADAPTIVE ? batch_round(s, (double)s->min) : s->batch;
}

uint64_t batch_most(const BatchSchedule *s) {
    uint64_t most = s->max / s->unit * s->unit;
    return most > batch_start(s) ? most : batch_start(s);
}

uint64_t batch_at(const BatchSchedule *s, uint64_t tokens, uint64_t adapted) {
    if (s->rule == BATCH_ADAPTIVE) return adapted;
    if (s->rule == BATCH_LINEAR && tokens < s->over) {
        double part = (double)tokens / (double)s->over;
        return batch_round(s, (double)s->first + ((double)s->batch - (double)s->first) * part);
    }
    uint64_t batch = s->batch;
    for (int i = 0; i < s->n_stages && s->stages[i].tokens <= tokens; i++)
        batch = batch_round(s, (double)s->stages[i].batch);
    return batch;
}

uint64_t batch_adapt(const BatchSchedule *s, uint64_t now, double wanted) {
    if (s->rule != BATCH_ADAPTIVE || !(wanted > (double)now)) return now;
    double most = fmin(wanted, (double)batch_most(s));
    uint64_t up = (uint64_t)ceil(most / (double)s->unit) * s->unit;
    return up > now ? up : now;
}

void batch_test(NormTest *t, const BatchSchedule *s, double wanted, bool warming_up) {
    uint64_t before = t->batch;
    t->waited = warming_up ? 0 : t->waited + 1;
    if (t->waited < NORM_TEST_WINDOW) return;
    t->batch = batch_adapt(s, before, wanted > 2.0*(double)before ? 2.0*(double)before : wanted);
    if (t->batch > before) t->waited = 0;
}

uint64_t batch_tokens_after(const BatchSchedule *s, uint64_t tokens, uint64_t steps) {
    assert(s->rule != BATCH_ADAPTIVE);
    uint64_t settled = 0;                          // from there on the batch is constant
    if (s->rule == BATCH_LINEAR) settled = s->over;
    if (s->rule == BATCH_STAGES) settled = s->stages[s->n_stages - 1].tokens;
    for (; steps > 0 && tokens < settled; steps--) tokens += batch_at(s, tokens, 0);
    return tokens + steps * batch_at(s, tokens > settled ? tokens : settled, 0);
}

// ---- scaling with the batch ----

double batch_lr(BatchLr rule, double lr, const BatchSchedule *s, uint64_t batch) {
    double times = (double)batch / (double)s->batch;
    return rule == BATCH_LR_NONE ? lr : rule == BATCH_LR_SQRT ? lr * sqrt(times) : lr * times;
}

double batch_beta2(double beta2, const BatchSchedule *s, uint64_t batch) {
    if (batch == s->batch) return beta2;
    return fmin(pow(beta2, (double)batch / (double)s->batch), 0.999999);   // below 1 as a float too
}
