// The files of one checkpoint: which series of numbers is in which, state.json, and writing them
// (files.h).
#include "files.h"
#include <assert.h>

Series series_at(int i) {
    Series s = { (Kept)i, -1 };
    if (i < N_KEPT) return s;
    s.what = (i - N_KEPT) % 2 == 0 ? KEPT_EXP_AVG : KEPT_EXP_AVG_SQ;
    s.worker = (i - N_KEPT) / 2;
    return s;
}

int series_index(Kept what, int worker) {
    return worker < 0 ? (int)what : N_KEPT + 2*worker + (what == KEPT_EXP_AVG_SQ);
}

Prefix series_prefix(int i) {
    static const char *const names[N_KEPT] = { "", "exp_avg.", "exp_avg_sq.", "outer_momentum.",
                                               "average." };
    Prefix prefix;
    Series s = series_at(i);
    if (s.worker < 0) snprintf(prefix.text, sizeof prefix.text, "%s", names[s.what]);
    else snprintf(prefix.text, sizeof prefix.text, "worker%d.%s", s.worker, names[s.what]);
    return prefix;
}

const char *const kept_file_names[N_FILES] = {
    "model.safetensors", "optimizer.safetensors", "outer.safetensors", "average.safetensors",
    "workers.safetensors"
};

int kept_file_first(int file, int64_t workers) {
    static const int first[] = { KEPT_WEIGHTS, KEPT_EXP_AVG, KEPT_OUTER_MOMENTUM, KEPT_AVERAGE,
                                 N_KEPT };
    return file < N_FILES ? first[file] : N_KEPT + 2*(int)workers;
}

bool kept_file_has(const Checkpoint *k, int file) {
    bool diloco = k->state.workers > 0;
    const bool has[N_FILES] = { true, !k->sgd, diloco, k->averages, diloco && !k->sgd };
    return has[file];
}

int kept_end(const Checkpoint *k) {
    int file = N_FILES;
    while (!kept_file_has(k, file - 1)) file--;
    return kept_file_first(file, k->state.workers);
}

// ---- state.json ----

// No count of a run is larger: so a run can add to it for ever without overflow. A larger number
// means a damaged file.
static const int64_t COUNT_MOST = 1000000000000000000;

// What of a TrainState stands in state.json, in this order. `only`: this key and those that name it
// are left out where its field is 0, or NaN.
typedef enum { STATE_COUNT, STATE_REAL } StateType;

#define FIELD(member) #member, offsetof(TrainState, member)
static const struct {
    const char *key;
    size_t at;
    StateType type;
    const char *only;
} state_fields[] = {
    { FIELD(step), STATE_COUNT, NULL },
    { FIELD(tokens), STATE_COUNT, NULL },
    { FIELD(samples), STATE_COUNT, NULL },
    { FIELD(adam_steps), STATE_COUNT, NULL },
    { FIELD(skipped), STATE_COUNT, NULL },
    { FIELD(seed), STATE_COUNT, NULL },
    { FIELD(workers), STATE_COUNT, "workers" },
    { FIELD(batch_tokens), STATE_COUNT, "batch_tokens" },
    { FIELD(next_batch_tokens), STATE_COUNT, "batch_tokens" },
    { FIELD(norm_test_waited), STATE_COUNT, "norm_test_waited" },
    { FIELD(noise_g2), STATE_REAL, "noise_weight" },
    { FIELD(noise_s), STATE_REAL, "noise_weight" },
    { FIELD(noise_weight), STATE_REAL, "noise_weight" },
    { FIELD(noise_adam_g2), STATE_REAL, "noise_adam_weight" },
    { FIELD(noise_adam_s), STATE_REAL, "noise_adam_weight" },
    { FIELD(noise_adam_weight), STATE_REAL, "noise_adam_weight" },
    { FIELD(val_loss), STATE_REAL, "val_loss" },
    { FIELD(seconds), STATE_REAL, NULL },
};
#undef FIELD

enum { STATE_FIELDS = sizeof state_fields / sizeof *state_fields };

static bool state_from_json(TrainState *s, const JsonNode *root, Error *err) {
    if (root->type != JSON_OBJECT) return fail(err, "not a JSON object");
    memset(s, 0, sizeof *s);
    s->val_loss = NAN;
    for (int i = 0; i < STATE_FIELDS; i++) {
        const char *key = state_fields[i].key, *only = state_fields[i].only;
        void *at = (char *)s + state_fields[i].at;
        int64_t most = strcmp(key, "workers") == 0 ? (int64_t)MAX_WORKERS : COUNT_MOST;
        if (only && !json_get(root, only)) continue;
        if (!(state_fields[i].type == STATE_REAL
              ? json_get_double((double *)at, root, key, err)
              : json_get_int((int64_t *)at, root, key, 0, most, err))) return false;
    }
    return json_need(root, "options", JSON_OBJECT, err) != NULL;
}

bool checkpoint_load_state(TrainState *s, Json *json, const char *dir, Error *err) {
    Error why;
    if (!json_open(json, dir, "state.json", err)) return false;
    if (state_from_json(s, json->root, &why)) return true;
    json_free(json);
    return fail(err, "%s/state.json: %s", dir, why.text);
}

// ---- writing the files of one checkpoint ----

static bool text_save(TextBuffer *b, const char *dir, const char *name, Error *err) {
    text_end(b);
    bool written = file_write(path_join(dir, name).text, b->text, b->n, err);
    free(b->text);
    return written;
}

static bool config_write(const Checkpoint *k, const char *dir, Error *err) {
    TextBuffer b;
    const Config *c = &k->config;
    char eot[16] = "null";
    if (k->eot >= 0) snprintf(eot, sizeof eot, "%d", k->eot);
    text_begin(&b);
    fprintf(b.f, "{\n  \"architectures\": [\"%s\"],\n"
            "  \"model_type\": \"" MODEL_NAME "\",\n"
            "  \"n_layer\": %d,\n  \"n_head\": %d,\n  \"n_embd\": %d,\n  \"n_inner\": null,\n"
            "  \"vocab_size\": %d,\n  \"n_positions\": %d,\n  \"n_ctx\": %d,\n",
            strcmp(MODEL_NAME, "gpt2") == 0 ? "GPT2LMHeadModel" : MODEL_NAME,
            c->L, c->NH, c->C, c->V, c->P, c->P);
    fprintf(b.f, "  \"activation_function\": \"gelu_new\",\n  \"layer_norm_epsilon\": 1e-05,\n"
            "  \"scale_attn_weights\": true,\n  \"tie_word_embeddings\": true,\n"
            "  \"initializer_range\": 0.02,\n  \"attn_pdrop\": 0.0,\n  \"embd_pdrop\": 0.0,\n"
            "  \"resid_pdrop\": 0.0,\n  \"bos_token_id\": %s,\n  \"eos_token_id\": %s\n}\n",
            eot, eot);
    return text_save(&b, dir, "config.json", err);
}

// Whether the field of this key is 0 or NaN.
static bool state_lacks(const TrainState *s, const char *key) {
    int i = 0;
    while (strcmp(state_fields[i].key, key) != 0) i++;
    const void *at = (const char *)s + state_fields[i].at;
    if (state_fields[i].type == STATE_COUNT) return *(const int64_t *)at == 0;
    double x = *(const double *)at;
    return !isfinite(x) || (x == 0.0 && at != (const void *)&s->val_loss);
}

static bool state_write(const Checkpoint *k, const char *dir, Error *err) {
    TextBuffer b;
    text_begin(&b);
    fprintf(b.f, "{\n");
    for (int i = 0; i < STATE_FIELDS; i++) {
        const void *at = (const char *)&k->state + state_fields[i].at;
        if (state_fields[i].only && state_lacks(&k->state, state_fields[i].only)) continue;
        fprintf(b.f, "  \"%s\": ", state_fields[i].key);
        if (state_fields[i].type == STATE_REAL) fprintf(b.f, "%.17g,\n", *(const double *)at);
        else fprintf(b.f, "%lld,\n", (long long)*(const int64_t *)at);
    }
    fprintf(b.f, "  \"options\": %s\n}\n", k->options ? k->options : "{}");
    return text_save(&b, dir, "state.json", err);
}

static bool tokenizer_write(const Checkpoint *k, const char *dir, Error *err) {
    TextBuffer b;
    const char *eot = k->eot >= 0 ? "\"<|endoftext|>\"" : "null";
    if (!k->tokenizer.bytes) return true;
    if (!file_write(path_join(dir, "tokenizer.json").text, k->tokenizer.bytes, k->tokenizer.n, err))
        return false;
    text_begin(&b);
    fprintf(b.f, "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n"
            "  \"model_max_length\": %d,\n  \"clean_up_tokenization_spaces\": false,\n"
            "  \"bos_token\": %s,\n  \"eos_token\": %s\n}\n", k->config.P, eot, eot);
    return text_save(&b, dir, "tokenizer_config.json", err);
}

// The names and shapes of n series, from `first` on. Free it with free().
static SafeOutput *tensors_list(const Config *c, int first, size_t n) {
    size_t n_tensors = (size_t)gpt2_n_tensors(c);
    SafeOutput *out = (SafeOutput *)alloc_or_die(n * n_tensors * sizeof *out, "names of tensors");
    for (size_t i = 0; i < n * n_tensors; i++) {
        Tensor t = gpt2_tensor(c, (int)(i % n_tensors));
        bool vector = tensor_is_vector(&t);
        snprintf(out[i].name, sizeof out[i].name, "%stransformer.%s",
                 series_prefix(first + (int)(i / n_tensors)).text, t.key);
        out[i].n_dims = vector ? 1 : 2;
        out[i].dims[0] = vector ? t.cols : t.rows;
        out[i].dims[1] = t.cols;
    }
    return out;
}

// Writes one file, bucket by bucket; after an error, and with dir NULL, it makes the calls alone.
static bool tensors_write(const char *dir, KeptFile file, const Checkpoint *k, Error *err) {
    Path path = path_join(dir ? dir : "", kept_file_names[file]);
    Error later;
    const Config *c = &k->config;
    int first = kept_file_first(file, k->state.workers), fd = -1;
    int end = kept_file_first(file + 1, k->state.workers), n = end - first;
    if (dir) {
        SafeOutput *out = tensors_list(c, first, (size_t)n);
        fd = safetensors_create(path.text, out, (size_t)n * (size_t)gpt2_n_tensors(c), err);
        free(out);
    }
    bool put = fd >= 0;
    for (int i = first; i < end; i++)
        for (int b = 0; b < gpt2_n_buckets(c); b++) {
            Series s = series_at(i);
            const float *elements = k->source(k->from, s.what, s.worker, b);
            size_t bytes = gpt2_bucket(c, b).count * sizeof *elements;
            put = put && file_put(fd, elements, bytes, path.text, err);
        }
    return fd >= 0 && file_close(fd, path.text, put ? err : &later) && put;
}

bool checkpoint_write_files(const char *dir, const Checkpoint *k, Error *err) {
    for (int file = 0; file < N_FILES; file++)
        if (kept_file_has(k, file) && !tensors_write(dir, (KeptFile)file, k, err)) dir = NULL;
    return dir && config_write(k, dir, err)
        && tokenizer_write(k, dir, err)
        && state_write(k, dir, err)
        && dir_sync(dir, err);
}
