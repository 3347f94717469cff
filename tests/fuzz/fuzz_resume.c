// state.json as --resume takes a run's flags from it. Whatever the bytes, no crash; and flags that
// are accepted come back from the next state.json, are those of a training run, and make batches of
// whole micro-batches and learning rates up to --lr.
//
// A fuzzer seldom hits upon a flag's name. So an input that does not begin with a bracket is a list
// of flags, put into a state.json: a byte that chooses the flag, its value in JSON, a newline.
#define PROGRAM "fuzz_resume"
#include <assert.h>
#include "../../dev/files/checkpoint.h"
#include "../../dev/train/options.h"

static bool restore(TrainOptions *o, const JsonNode *saved, Error *err) {
    static char words[4][16] = { "train_gpt2", "--resume", "--out", "a" };
    char *argv[] = { words[0], words[1], words[2], words[3] };
    bool parsed = train_options_parse(o, 4, argv, err);
    assert(parsed);
    return train_options_restore(o, saved, err) && train_options_check(o, err);
}

// The flags as a save writes them, in JSON; the caller frees them.
static char *flags_text(const TrainOptions *o, size_t *n) {
    char *text;
    Log log;
    Error err;
    log_to(&log, open_memstream(&text, n), "a");
    log_begin(&log, "options");
    train_options_echo(&log, o);
    bool whole = log_end(&log, &err) && log_close(&log, &err);
    assert(whole);
    return text;
}

static void check_saved_again(const TrainOptions *o) {
    TrainOptions same;
    Json j;
    Error err;
    size_t n, m;
    char *text = flags_text(o, &n);
    bool good = json_parse(&j, text, n, &err) && restore(&same, j.root, &err);
    assert(good);
    char *again = flags_text(&same, &m);
    assert(n == m && memcmp(text, again, n) == 0);
    json_free(&j);
    free(again);
    free(text);
}

// As run_open and restore_state go on, with so many ranks.
static void check_schedules(TrainOptions o, const TrainState *s, int ranks) {
    LrSchedule lr;
    Error err;
    int workers;
    if (o.steps > 100) o.steps = 100;    // the ramp of a batch is counted update by update
    if (!train_options_workers(&workers, &o, ranks, &err)
        || !train_options_batch(&o, o.seq_len > 0 ? o.seq_len : 3, workers, &err)
        || !train_options_lr(&lr, &o, &err)) return;
    const BatchSchedule *b = &o.batches;
    uint64_t tokens = (uint64_t)s->tokens, now = batch_start(b);
    uint64_t adapted = batch_adapt(b, now, (double)s->next_batch_tokens);
    uint64_t batch = batch_at(b, tokens, adapted);
    assert(adapted >= now && batch > 0 && batch % b->unit == 0);
    assert(batch_smallest(b) <= batch);
    double rate = lr_at(&lr, tokens + batch);
    assert(rate >= 0.0 && rate <= o.lr);
}

static void check_state(const char *text, size_t n) {
    TrainOptions o;
    TrainState s;
    Json j;
    Error err;
    if (!json_parse(&j, text, n, &err)) return;
    if (state_from_json(&s, j.root, &err) && restore(&o, json_get(j.root, "options"), &err)) {
        assert(o.resume && strcmp(o.out, "a") == 0);
        assert(!o.overwrite && !o.generate && !o.plan && !o.plan_search);
        check_saved_again(&o);
        for (int ranks = 1; ranks <= 4; ranks *= 2) check_schedules(o, &s, ranks);
    }
    json_free(&j);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *end = data + size, *newline;
    char *text, key[OPTION_NAME_MAX + 1];
    size_t n;
    if (size == 0 || data[0] == '{') {
        check_state((const char *)data, size);
        return 0;
    }
    FILE *f = open_memstream(&text, &n);
    fputs("{\"step\":1,\"tokens\":2,\"samples\":1,\"adam_steps\":1,\"skipped\":0,\"seed\":7,"
          "\"seconds\":1,\"options\":{\"event\":\"options\"", f);
    for (; data < end; data = newline + 1) {
        option_key(key, train_table[*data++ % TRAIN_OPTIONS].name);
        newline = (const uint8_t *)memchr(data, '\n', (size_t)(end - data));
        if (!newline) newline = end;
        fprintf(f, ",\"%s\":%.*s", key, (int)(newline - data), (const char *)data);
    }
    fputs("}}", f);
    fclose(f);
    check_state(text, n);
    free(text);
    return 0;
}
