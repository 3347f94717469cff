// Saving a run, resuming one, and exporting one for other programs (train.h).
#include "train.h"

// A hash as options_json writes it: a JSON number may lose digits in other programs.
static Shown hash_text(uint64_t hash) {
    return show_text("%016llx", (unsigned long long)hash);
}

char *options_json(const Run *r) {
    TextBuffer text;
    Log json;
    Error err;
    text_begin(&text);
    log_to(&json, text.f, "the run's options");
    log_begin(&json, "options");
    train_options_echo(&json, &r->o);
    log_int(&json, "train_tokens", (int64_t)r->train.n_tokens);
    log_text(&json, "train_hash", hash_text(r->train_hash).text);
    log_text(&json, "val_hash", hash_text(r->val_hash).text);
    log_text(&json, "precision", machine_precision());
    if (!log_end(&json, &err)) die("%s", err.text);
    free(json.line);
    text_end(&text);
    return text.text;
}

// The source of a save's buckets (Checkpoint.source), with progress.
typedef struct { Params *params; Progress progress; } Saving;

static const float *saving_bucket(void *from, Kept what, int worker, int bucket) {
    Saving *s = (Saving *)from;
    double before = (double)series_index(what, worker) * gpt2_n_buckets(&s->params->c);
    progress_show(&s->progress, before + bucket);
    return bucket_get(s->params, what, worker, bucket);
}

void save(Run *r) {
    if (!r->o.out || r->saved_step == (int64_t)r->step) return;
    zero_wait_params(r->params);
    bool whole = false, evaluated = r->eval_step == r->step;
    Saving saving = { r->params, progress_begin("saving", 1.0) };
    Checkpoint k = {
        r->spec.c,
        { (int64_t)r->step, (int64_t)r->tokens, (int64_t)r->train.samples, r->adam_step,
          r->skipped, r->o.seed, r->seconds, r->o.outer_every ? r->data.size : 0,
          (int64_t)r->batch, (int64_t)r->norm_test.batch, r->norm_test.waited,
          r->noise.g2, r->noise.s, r->noise.weight, r->noise_adam.g2, r->noise_adam.s,
          r->noise_adam.weight, evaluated ? r->eval_loss : NAN },
        options_json(r), saving_bucket, &saving, r->params->sgd, r->params->averages,
        { (const unsigned char *)r->tokenizer_json.text, r->tokenizer_json.n },
        r->tokenizer.vocab_size > 0 ? r->tokenizer.eot : -1, &whole,
    };
    Error err;
    double start = seconds_now();
    bool failed = false;
    saving.progress.total = (double)kept_end(&k) * gpt2_n_buckets(&k.config);
    if (r->comm.rank > 0) checkpoint_follow(&k);
    else failed = !checkpoint_save(r->o.out, &k, r->o.keep, &err);
    progress_end(&saving.progress);
    free((char *)k.options);
    if (whole && failed)
        die("%s; step_%08llu is complete, though: fix this and --resume=%llu", err.text,
            (unsigned long long)r->step, (unsigned long long)r->step);
    if (failed)
        die("%s; %s", err.text, r->saved_step >= 0
            ? "the last checkpoint is intact: fix this and --resume"
            : "nothing is saved yet: fix this and start again");
    comm_barrier(&r->comm);            // no rank goes on before the checkpoint is whole
    r->saved_step = (int64_t)r->step;
    log_event(r, "save");
    log_num(&r->log, "seconds_save", seconds_now() - start);
    log_line_end(r);
}

void die_checkpoint(const Run *r, const char *from, const Error *why) {
    Saved *all;
    size_t n, i = 0;
    Error err;
    if (!r->o.resume) die("%s", why->text);
    int64_t step = step_of(strrchr(from, '/') + 1);
    if (checkpoint_list_whole(&all, &n, r->o.out, &err))
        while (i < n && all[i].step < step) i++;
    if (i == 0) die("--resume: %s", why->text);
    die("--resume: %s; --resume=%lld continues from the checkpoint before", why->text,
        (long long)all[i - 1].step);
}

// Loads this rank's part of a file: of `n` series from `what` on, bucket by bucket.
static void load_file(Run *r, const char *from, KeptFile file, int64_t workers, Kept what, int n,
                      int worker) {
    TensorFile f;
    Error err;
    const int buckets = gpt2_n_buckets(&r->spec.c);
    if (!tensor_file_open(&f, from, file, workers, &r->spec.c, &err)) die_checkpoint(r, from, &err);
    Progress progress = progress_begin("loading", n * buckets);
    for (int i = 0; i < n * buckets; i++) {
        Kept series = (Kept)(what + i / buckets);
        int b = i % buckets;
        tensor_file_bucket(bucket_place(r->params, series, b), &f, series, worker, b);
        bucket_keep(r->params, series, b);
        progress_show(&progress, i + 1);
    }
    progress_end(&progress);
    tensor_file_close(&f);
}

void load_params(Run *r, const char *from) {
    load_file(r, from, FILE_WEIGHTS, 0, KEPT_WEIGHTS, 1, -1);
    params_loaded(r->params);
}

void load_moments(Run *r, const char *from, int64_t workers) {
    bool diloco = r->o.outer_every > 0, own = diloco && workers == r->data.size;
    if (r->params->sgd) return;
    if (workers > 0 && !own)
        printf("note    the run had %lld workers, each with moments of its own; the %d workers now "
               "start from their mean\n", (long long)workers, r->data.size);
    load_file(r, from, own ? FILE_WORKERS : FILE_OPTIMIZER, workers, KEPT_EXP_AVG, 2,
              own ? r->data.rank : -1);
}

void lock_output(Run *r) {
    Error err;
    if (r->lock < 0 && !checkpoint_lock(&r->lock, r->o.out, &err)) die("--out: %s", err.text);
}

bool find_resumed(Path *from, const Run *r, Error *err) {
    if (r->o.resume_from <= 0) return checkpoint_find(from, r->o.out, err);
    return checkpoint_of_step(from, r->o.out, r->o.resume_from, err);
}

void restore_options(Run *r) {
    Path from;
    Error err;
    if (!r->o.out) die("--resume: needs --out DIR, the directory of the run to continue");
    bool writes = !r->o.generate && !r->o.export_file && launched_as(LAUNCH_RANK, 0) == 0;
    if (writes && access(r->o.out, F_OK) == 0) lock_output(r);
    if (!find_resumed(&from, r, &err)) die("--resume: %s", err.text);
    if (!checkpoint_load_state(&r->state, &r->saved, from.text, &err))
        die_checkpoint(r, from.text, &err);
    const JsonNode *saved = json_get(r->saved.root, "options");
    TrainOptions given = r->o;
    if (!train_options_restore(&r->o, saved, &err)) die("--resume: %s", err.text);
    given.optimizer = r->o.optimizer;
    if (!train_options_check_optimizer(&given, &err) || !train_options_check(&r->o, &err))
        die("%s", err.text);
}

// Refuses data that is not what the run began on.
static void check_hash(const JsonNode *options, const char *key, uint64_t hash, const char *split) {
    const JsonNode *saved = json_get(options, key);
    if (saved && !json_is(saved, hash_text(hash).text))
        die("--resume: the %s data is not what the run began on, its tokens differ; name the "
            "run's own with --data, or --train and --val", split);
}

void restore_state(Run *r, const char *from) {
    const TrainState state = r->state;
    const JsonNode *options = json_get(r->saved.root, "options");
    Error err;
    int64_t tokens;
    load_moments(r, from, state.workers);
    if (r->o.outer_every > 0 && state.workers > 0)
        load_file(r, from, FILE_OUTER, state.workers, KEPT_OUTER_MOMENTUM, 1, -1);
    if (r->o.average_tokens > 0
        && json_get_int(&tokens, options, "average_tokens", 1, INT64_MAX, &err))
        load_file(r, from, FILE_AVERAGE, 0, KEPT_AVERAGE, 1, -1);
    if (json_get_int(&tokens, options, "train_tokens", 0, INT64_MAX, &err)
        && (size_t)tokens != r->train.n_tokens)
        die("--resume: the run began on %lld tokens, this data has %zu; the data must be the same",
            (long long)tokens, r->train.n_tokens);
    check_hash(options, "train_hash", r->train_hash, "training");
    check_hash(options, "val_hash", r->val_hash, "validation");
    const JsonNode *precision = json_get(options, "precision");
    if (precision && !json_is(precision, machine_precision()))
        warn("--resume: the run's precision was %s, this program's is %s; results will differ",
             option_saved_words(precision), machine_precision());
    r->step = (uint64_t)state.step;
    r->tokens = (uint64_t)state.tokens;
    r->train.samples = (uint64_t)state.samples;
    r->adam_step = state.adam_steps;
    r->skipped = state.skipped;
    r->batch = state.batch_tokens > 0 ? (uint64_t)state.batch_tokens : r->o.batches.batch;
    NormTest *t = &r->norm_test;
    if (state.next_batch_tokens > 0)
        t->batch = batch_adapt(&r->o.batches, t->batch, (double)state.next_batch_tokens);
    t->waited = state.norm_test_waited;
    NoiseScale noise = { state.noise_g2, state.noise_s, state.noise_weight };
    r->noise = noise;
    NoiseScale adam = { state.noise_adam_g2, state.noise_adam_s, state.noise_adam_weight };
    r->noise_adam = adam;
    if (!resumed_lr(&r->lr, r, &r->o, &err)) die("%s", err.text);
    r->seconds = r->shown_at = state.seconds;
    r->saved_step = state.step;
    r->good_loss = state.val_loss;
}

// ---- --export FILE.gguf: for llama.cpp and what is built on it ----

// The type of a GGUF's matrices, by its name: NAME-f16.gguf, as llama.cpp's own files are called.
static FloatType export_type(const char *path) {
    return ends_with(path, "-f16.gguf") ? FLOAT_16 : FLOAT_32;
}

// The largest half is 65,504; from 65,520 on, rounding would give infinity.
static bool export_fits(const float *in, const Tensor *t, FloatType type, Error *err) {
    for (size_t i = 0; gguf_type(t, type) == FLOAT_16 && i < t->count; i++)
        if (fabsf(in[i]) >= 65520.0f)
            return fail(err, "\"%s\" holds %g, more than fp16 can; without -f16 in its name the "
                             "file is fp32", t->key, in[i]);
    return true;
}

static bool export_tensors(int fd, TensorFile *f, FloatType type, const char *path, Error *err) {
    const Config *c = &f->config;
    const size_t C = (size_t)c->C;
    const int n = gpt2_n_buckets(c);
    float *bucket = (float *)alloc_or_die(gpt2_largest_bucket(c) * sizeof *bucket, "weights");
    float *scratch = (float *)alloc_or_die(4*C*C * sizeof *scratch, "a transposed matrix");
    Progress progress = progress_begin("exporting", n);
    bool put = true;
    for (int b = 0; put && b < n; b++) {
        tensor_file_bucket(bucket, f, KEPT_WEIGHTS, -1, b);
        for (int i = gpt2_bucket_tensor(c, b); put && i < gpt2_bucket_tensor(c, b + 1); i++) {
            Tensor t = gpt2_tensor(c, i);
            float *in = bucket + t.offset - gpt2_bucket(c, b).begin;
            put = export_fits(in, &t, type, err)
               && gguf_append(fd, in, &t, type, scratch, path, err);
        }
        progress_show(&progress, b + 1);
    }
    progress_end(&progress);
    free(bucket);
    free(scratch);
    return put;
}

static bool export_save(const Run *r, TensorFile *f, const char *path, Error *err) {
    FloatType type = export_type(path);
    GgufHeader h;
    Path temporary;
    int fd = file_begin(&temporary, path, err);
    if (fd < 0) return false;
    gguf_begin(&h);
    gguf_put_model(&h, &f->config, type);
    tokenizer_put_gguf(&h, &r->tokenizer, f->config.V);
    gguf_put_tensors(&h, &f->config, type);
    gguf_end(&h);
    bool put = file_put(fd, h.t.text, h.t.n, temporary.text, err)
            && export_tensors(fd, f, type, temporary.text, err);
    free(h.t.text);
    return file_end(fd, &temporary, path, put, err);
}

// llama.cpp rounds a context up to whole 256 tokens. We do not pad the table of positions: a model
// knows nothing of positions it was not trained on, and the file would no longer be this model.
static void export_note(const Config *c, const char *path) {
    printf("exported to %s: %s parameters%s\n", path, count_text((double)gpt2_n_params(c)).text,
           export_type(path) == FLOAT_16 ? ", matrices in fp16" : "");
    if (c->P % 256 != 0)
        printf("note    the model has %d positions, and llama.cpp rounds its context up to a "
               "multiple of 256: keep prompt and text together within %d tokens (-n), or "
               "it stops with an error\n", c->P, c->P);
}

void run_export(Run *r) {
    Path from;
    Config c;
    TensorFile f;
    Error err;
    if (!find_checkpoint(&from, &c, r))
        die("--export: a fresh model has learned nothing; name a checkpoint with --init DIR");
    open_tokenizer(r, from.text);
    if (r->tokenizer.vocab_size == 0)
        die("--export: %s has no tokenizer.json, and llama.cpp needs one; name one with "
            "--tokenizer FILE", from.text);
    check_tokenizer(r, &c);
    if (!tensor_file_open(&f, from.text, FILE_WEIGHTS, 0, &c, &err)
        || !export_save(r, &f, r->o.export_file, &err)) die("--export: %s", err.text);
    tensor_file_close(&f);
    export_note(&c, r->o.export_file);
}
