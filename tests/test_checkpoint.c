// checkpoint.c: what is saved loads to the bit, what is damaged is refused in one line, and at no
// moment of a save is OUT/latest anything but whole.
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

// On a disk without symbolic links (FAT), symlink() fails like this.
static int links_refused;
static int symlink_or_refuse(const char *target, const char *link) {
    if (!links_refused) return symlink(target, link);
    errno = EPERM;
    return -1;
}
#define symlink symlink_or_refuse
#include "../dev/files/checkpoint.c"
#include "../dev/files/run_folder.c"
#include "../dev/files/weights.c"
#undef symlink
#include "../dev/base/rng.h"
#include "files.h"
#include "test.h"

// ---------------------------------------------------------------------------------------------
// Helpers

// In memory where there is such a place: what a kill leaves behind does not depend on the disk, and
// saves need not wait for one.
static Path temp_make(void) {
    return folder_make(access("/dev/shm", W_OK) == 0 ? "/dev/shm" : NULL);
}

static bool there(const char *dir, const char *name) {
    struct stat info;
    return lstat(in(dir, name).text, &info) == 0;
}

// The names in a directory, sorted, with spaces between.
static const char *names_in(const char *dir) {
    static char text[9000];
    struct dirent **names;
    int n = scandir(dir, &names, NULL, alphasort);
    text[0] = '\0';
    for (int i = 0; i < n; i++) {                // the first two are . and ..
        if (i > 1) strcat(strcat(text, i > 2 ? " " : ""), names[i]->d_name);
        free(names[i]);
    }
    if (n >= 0) free(names);
    return text;
}

// What a save writes, with numbers that are made as they are asked for: all but the last bucket are
// gone. They are functions of (step, series, place), so that a mixture of two checkpoints is known.
// `calls` is what was asked, "w0" being bucket 0 of the weights, "m" and "v" moments, "o" the outer
// momentum, "a" the average, "2m1" one of worker 2.
typedef struct { Checkpoint k; float *numbers; char calls[2000]; } Model;

static float value_at(int64_t step, size_t place) {
    uint32_t bits = (uint32_t)mix64((uint64_t)step * 1000003u + place);
    return float_from_bits((bits & 0x807FFFFFu) | (100 + (bits >> 23) % 50) << 23);  // finite
}

static const float *make_bucket(void *model, Kept what, int worker, int bucket) {
    Model *m = model;
    const Config *c = &m->k.config;
    Range range = gpt2_bucket(c, bucket);
    size_t first = (size_t)series_index(what, worker) * gpt2_n_params(c) + range.begin;
    char worker_text[12] = "", call[40];
    if (worker >= 0) snprintf(worker_text, sizeof worker_text, "%d", worker);
    snprintf(call, sizeof call, " %s%c%d", worker_text, "wmvoa"[what], bucket);
    strncat(m->calls, call, sizeof m->calls - strlen(m->calls) - 1);
    for (size_t i = 0; i < gpt2_largest_bucket(c); i++) m->numbers[i] = NAN;
    for (size_t i = 0; i < range.count; i++)
        m->numbers[i] = value_at(m->k.state.step, first + i);
    return m->numbers;
}

static Model *model_make(int L, int NH, int C, int V, int P) {
    Model *m = alloc_or_die(sizeof *m, "a model");
    const Checkpoint k = { .config = { L, NH, C, V, P, 0 }, .state = { .val_loss = NAN },
                           .source = make_bucket, .from = m, .eot = -1 };
    m->k = k;
    m->numbers = alloc_or_die(gpt2_largest_bucket(&k.config) * sizeof(float), "a bucket");
    m->calls[0] = '\0';
    return m;
}

static void finish(const Path *d, Model *m) {
    folder_remove(d);
    free(m->numbers);
    free(m);
}

// Whether a save, successful or not, has asked for what the other ranks wait to give.
static bool asked_for_all(Model *m) {
    char asked[sizeof m->calls];
    memcpy(asked, m->calls, sizeof asked);
    m->calls[0] = '\0';
    checkpoint_follow(&m->k);
    return strcmp(m->calls, asked) == 0;
}

static bool save(const char *out, Model *m, int64_t step, int keep, Error *err) {
    m->k.state.step = step;
    m->calls[0] = '\0';
    return checkpoint_save(out, &m->k, keep, err);
}

// How many numbers of a series are not those of make_bucket, or are written behind a bucket's end.
static int64_t wrong_numbers(TensorFile *f, Kept what, int worker, int64_t step) {
    int64_t wrong = 0;
    size_t room = 2 * gpt2_largest_bucket(&f->config);
    size_t first = (size_t)series_index(what, worker) * gpt2_n_params(&f->config);
    float *numbers = malloc(room * sizeof *numbers);
    for (int b = gpt2_n_buckets(&f->config); b-- > 0; ) {        // backwards, too
        Range range = gpt2_bucket(&f->config, b);
        for (size_t i = 0; i < room; i++) numbers[i] = INFINITY;
        tensor_file_bucket(numbers, f, what, worker, b);
        for (size_t i = 0; i < range.count; i++)
            wrong += numbers[i] != value_at(step, first + range.begin + i);
        for (size_t i = range.count; i < room; i++) wrong += numbers[i] != INFINITY;
    }
    free(numbers);
    return wrong;
}

// Everything a resumed run reads, number by number. Returns the step, or -1 and an error.
static int64_t load(const Model *m, const char *where, Error *err) {
    Path path;
    Config c;
    TrainState state;
    Json json;
    TensorFile f;
    if (!checkpoint_find(&path, where, err) || !checkpoint_config(&c, path.text, err)) return -1;
    if (memcmp(&c, &m->k.config, sizeof c) != 0) return fail(err, "another model"), -1;
    if (!checkpoint_load_state(&state, &json, path.text, err)) return -1;
    json_free(&json);
    for (int file = 0; file < N_FILES; file++) {
        if (!kept_file_has(&m->k, file)) continue;
        if (!tensor_file_open(&f, path.text, (KeptFile)file, state.workers, &c, err)) return -1;
        int64_t wrong = 0;
        for (int i = f.first; i < f.end; i++)
            wrong += wrong_numbers(&f, series_at(i).what, series_at(i).worker, state.step);
        tensor_file_close(&f);
        if (wrong) return fail(err, "%s: %lld numbers are not of this step", kept_file_names[file],
                               (long long)wrong), -1;
    }
    return state.step;
}

// flat (gpt2_n_params(c)) = the weights at this path.
static bool load_params(float *flat, const Config *c, const char *path, Error *err) {
    TensorFile f;
    if (!tensor_file_open(&f, path, FILE_WEIGHTS, 0, c, err)) return false;
    for (int b = 0; b < gpt2_n_buckets(c); b++)
        tensor_file_bucket(flat + gpt2_bucket(c, b).begin, &f, KEPT_WEIGHTS, -1, b);
    tensor_file_close(&f);
    return true;
}

// One clear line: names the path, does not break.
static bool clear_line(const Error *err, const char *path) {
    return strstr(err->text, path) != NULL && strchr(err->text, '\n') == NULL;
}

// ---------------------------------------------------------------------------------------------
// Names

// What modules around a model leave before and within its names.
TEST(names_find_their_tensors) {
    static const char *const wrapped[] = {
        "h.1.ln_1.weight", "transformer.h.1.ln_1.weight", "_orig_mod.transformer.h.1.ln_1.weight",
        "module._orig_mod.h.1.ln_1.weight", "base_model.model.transformer.h.1.ln_1.weight",
        "transformer.h.1._orig_mod.ln_1.weight",
        "_fsdp_wrapped_module.h.1._fsdp_wrapped_module._checkpoint_wrapped_module.ln_1.weight",
    };
    for (size_t i = 0; i < COUNT(wrapped); i++) {
        PlainName plain = plain_name(wrapped[i]);
        CHECK_MSG(strcmp(plain.text, "h.1.ln_1.weight") == 0, "%s: %s", wrapped[i], plain.text);
    }
}

// ---------------------------------------------------------------------------------------------
// Saving and loading

TEST(round_trip) {
    Path d = temp_make(), out = in(d.text, "a/b/run"), path;
    Model *m = model_make(2, 3, 12, 17, 5);
    Error err = { "" };
    const char tokenizer[] = "{\"version\": \"1.0\"}";
    CHECK_MSG(checkpoint_begin(out.text, &err), "%s", err.text);
    CHECK(!checkpoint_exists(out.text));
    TrainState full = { .step = 7, .tokens = COUNT_MOST, .samples = COUNT_MOST - 1, .adam_steps = 6,
                        .skipped = 1, .seed = 1337, .seconds = 1.0 / 3, .batch_tokens = 96,
                        .next_batch_tokens = 128, .norm_test_waited = 33, .noise_g2 = 0.1,
                        .noise_s = 1.0 / 7, .noise_weight = 0.5, .noise_adam_g2 = 1.0 / 9,
                        .noise_adam_s = 3.25, .noise_adam_weight = 0.75, .val_loss = 2.5 };
    m->k.state = full;
    m->k.options = "{\"lr\": 0.001, \"text\": \"\\u00e9\"}";
    m->k.eot = 16;
    m->k.tokenizer.bytes = (const unsigned char *)tokenizer;
    m->k.tokenizer.n = strlen(tokenizer);
    CHECK_MSG(save(out.text, m, 7, 0, &err), "%s", err.text);
    CHECK(checkpoint_exists(out.text) && asked_for_all(m));
    CHECK_MSG(load(m, out.text, &err) == 7, "%s", err.text);
    TrainState state;
    Json json;
    CHECK(checkpoint_find(&path, out.text, &err));
    bool loaded = checkpoint_load_state(&state, &json, path.text, &err);
    CHECK_MSG(loaded && memcmp(&state, &full, sizeof full) == 0, "%s", err.text);
    double lr = 0;
    CHECK(loaded && json_get_double(&lr, json_get(json.root, "options"), "lr", &err));
    CHECK(lr == 0.001);
    if (loaded) json_free(&json);
    Content copy = slurp(path.text, "tokenizer.json");
    CHECK(strcmp(copy.bytes, tokenizer) == 0);
    free(copy.bytes);
    m->k.sgd = true;
    m->k.tokenizer.bytes = NULL;
    CHECK(save(out.text, m, 8, 0, &err) && checkpoint_find(&path, out.text, &err));
    CHECK(!there(path.text, "optimizer.safetensors") && !there(path.text, "tokenizer.json"));
    m->k.sgd = false;
    CHECK(load(m, out.text, &err) < 0 && strstr(err.text, "optimizer.safetensors: cannot"));
    finish(&d, m);
}

// A checkpoint of a run without workers has had these bytes since the first one that was written.
TEST(bytes_stay_the_same) {
    static const struct { const char *name; size_t n; uint64_t hash; } files[] = {
        { "model.safetensors", 4592, 0xC2A7F472AF665AA1 },
        { "optimizer.safetensors", 9696, 0x61143EBE053563B8 },
        { "config.json", 449, 0x8A5E70CC8BE81AE2 },
        { "state.json", 163, 0x38244DCFBF731CBE },
        { "tokenizer_config.json", 181, 0x7A3BF639A53F44ED },
    };
    const TrainState state = { .step = 7, .tokens = 600, .samples = 50, .adam_steps = 6,
                               .skipped = 1, .seed = 1337, .seconds = 1.0 / 3,
                               .val_loss = NAN };
    Path d = temp_make(), latest = in(d.text, "latest");
    Model *m = model_make(2, 2, 4, 5, 3);
    Error err = { "" };
    m->k.state = state;
    m->k.options = "{\"lr\": 0.001}";
    m->k.eot = 4;
    m->k.tokenizer.bytes = (const unsigned char *)"{}";
    m->k.tokenizer.n = 2;
    CHECK_MSG(save(d.text, m, 7, 0, &err), "%s", err.text);
    for (size_t f = 0; f < COUNT(files); f++) {
        Content file = slurp(latest.text, files[f].name);
        uint64_t hash = 0;
        for (size_t i = 0; i < file.n; i++) hash = mix64(hash + (unsigned char)file.bytes[i] + 1);
        CHECK_MSG(file.n == files[f].n && hash == files[f].hash, "{ \"%s\", %zu, 0x%llX },",
                  files[f].name, file.n, (unsigned long long)hash);
        free(file.bytes);
    }
    CHECK(!there(latest.text, "outer.safetensors") && !there(latest.text, "workers.safetensors"));
    finish(&d, m);
}

TEST(workers_round_trip) {
    Path d = temp_make(), path = in(d.text, "step_00000001");
    Model *m = model_make(2, 1, 2, 5, 3);
    Error err = { "" };
    TensorFile f;
    m->k.state.workers = 3;
    m->k.averages = true;
    CHECK_MSG(save(d.text, m, 1, 0, &err) && load(m, d.text, &err) == 1, "%s", err.text);
    CHECK(asked_for_all(m) && !save(in(d.text, "none").text, m, 1, 0, &err) && asked_for_all(m));
    // any number of workers may read the mean
    CHECK(tensor_file_open(&f, path.text, FILE_OPTIMIZER, 7, &m->k.config, &err));
    tensor_file_close(&f);
    unlink(in(path.text, "workers.safetensors").text);
    CHECK(!tensor_file_open(&f, path.text, FILE_WORKERS, 3, &m->k.config, &err));
    CHECK_MSG(strstr(err.text, "workers.safetensors is missing; the run had 3 workers")
              && clear_line(&err, path.text), "%s", err.text);
    finish(&d, m);
}

// ---------------------------------------------------------------------------------------------
// What is damaged, or not ours

// A row's text with " where it has '.
typedef struct { char text[600]; } Quoted;
static Quoted quoted(const char *text) {
    Quoted q;
    snprintf(q.text, sizeof q.text, "%s", text);
    for (char *p = q.text; (p = strchr(p, '\'')) != NULL; ) *p = '"';
    return q;
}

// A file in which `from` becomes `to`, or the whole if `from` is NULL; the caller frees its bytes.
static Content edited(const Content *file, const char *from, const char *to) {
    Quoted old = quoted(from ? from : ""), new = quoted(to);
    size_t taken = from ? strlen(old.text) : file->n, put = strlen(new.text), before = 0;
    while (from && memcmp(file->bytes + before, old.text, taken) != 0)
        if (++before + taken > file->n) die("no edit: %s, %s", from, to);
    Content c = { alloc_or_die(file->n + put + 1, "an edit"), file->n - taken + put };
    memcpy(c.bytes, file->bytes, before);
    memcpy(c.bytes + before, new.text, put);
    memcpy(c.bytes + before + put, file->bytes + before + taken, file->n - before - taken);
    return c;
}

static const char CONFIG[] = "config.json", STATE[] = "state.json",
                  WEIGHTS[] = "model.safetensors", MOMENTS[] = "optimizer.safetensors";

// An edit of one file of a checkpoint, and what loading it then says; "": it loads.
TEST(edits_of_a_checkpoint) {
    static const struct { const char *file, *from, *to, *error; } cases[] = {
        { CONFIG, "'gelu_new'", "'gelu_pytorch_tanh'", "" },
        { CONFIG, "'n_inner': null", "'n_inner': 8", "" },
        { CONFIG, "'n_positions': 2,", "", "" },                     // n_ctx remains
        { CONFIG, "'n_positions': 2,\n  'n_ctx'", "'block_size'", "" },
        { CONFIG, "'gpt2'", "'llama'", "a model of type 'llama'; only gpt2 is" },
        { CONFIG, "'gelu_new'", "'relu'", "'activation_function' is relu; only gelu_new is" },
        { CONFIG, "1e-05", "1e-6", "'layer_norm_epsilon' must be 1e-5" },
        { CONFIG, "'n_inner': null", "'n_inner': 17", "'n_inner' must be null or 4 * n_embd = 8" },
        { CONFIG, "tie_word_embeddings", "scale_attn_by_inverse_layer_idx", "_idx' must be false" },
        { CONFIG, "weights': true", "weights': false", "'scale_attn_weights' must be true" },
        { CONFIG, "'n_head': 1", "'n_head': 3", "3 heads (n_head) do not divide 2 channels" },
        { CONFIG, "'n_layer': 2", "'n_layer': 0",
          "'n_layer' is 0; a whole number from 1 to 16384 was expected" },
        { CONFIG, "'n_layer': 2", "'n_layer': 3", "tensor 'h.2.ln_1.weight' is missing" },
        { CONFIG, NULL, "[]", "not a JSON object" },
        { STATE, "'seed'", "'workers': 0, 'recent_losses': [2.5], 'seed'", "" },   // of an old run
        { STATE, "'seed'", "'noise_weight': 1, 'seed'", "'noise_g2' is missing" },
        { STATE, "'options': {}", "'options': []", "'options' must be an object" },
        { WEIGHTS, "'F32'", "'U32'", "'transformer.wte.weight' is U32; expected F32, BF16 or F16" },
        { MOMENTS, "exp_avg_sq.transformer.wpe", "exp_avg_sq_transformer.wpe",
          "tensor 'exp_avg_sq.wpe.weight' is missing" },
    };
    Path d = temp_make(), dir = in(d.text, "latest");
    Model *m = model_make(2, 1, 2, 3, 2);
    Error err = { "" };
    CHECK(save(d.text, m, 1, 0, &err));
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *name = cases[i].file;
        Quoted words = quoted(cases[i].error);
        Content whole = slurp(dir.text, name);
        Content edit = edited(&whole, cases[i].from, cases[i].to);
        put(dir.text, name, edit.bytes, edit.n);
        int64_t step = load(m, d.text, &err);
        CHECK_MSG((step == 1) == !words.text[0], "%s, %s: %s", name, cases[i].to, err.text);
        CHECK_MSG(step == 1 || (strstr(err.text, words.text) && clear_line(&err, "/step_0000")),
                  "%s: %s; expected: %s", name, err.text, words.text);
        put(dir.text, name, whole.bytes, whole.n);
        free(whole.bytes);
        free(edit.bytes);
    }
    finish(&d, m);
}

// A resumed run needs all of them but the tokenizer, which no advice may do without. Every cut of a
// file is in test_formats and test_json.
TEST(files_cut_or_missing_are_refused) {
    static const char *const names[] = { WEIGHTS, MOMENTS, CONFIG, STATE, "average.safetensors",
                                         "tokenizer.json" };
    Path d = temp_make(), dir = in(d.text, "step_00000003");
    Model *m = model_make(1, 1, 1, 2, 1);
    Error err = { "" };
    m->k.averages = true;
    m->k.options = "{\"average_tokens\":1}";
    m->k.tokenizer.bytes = (const unsigned char *)"{}";
    m->k.tokenizer.n = 2;
    CHECK_MSG(save(d.text, m, 3, 0, &err), "%s", err.text);
    for (int f = 0; f < 6; f++) {
        Content whole = slurp(dir.text, names[f]);
        put(dir.text, names[f], whole.bytes, whole.n / 2);
        CHECK_MSG(!checkpoint_is_whole(d.text, "latest"), "%s cut", names[f]);
        CHECK_MSG((load(m, dir.text, &err) == 3) == (f == 5), "%s cut", names[f]);
        CHECK_MSG(f == 5 || clear_line(&err, names[f]), "%s", err.text);
        unlink(in(dir.text, names[f]).text);
        CHECK(f == 5 || (load(m, dir.text, &err) < 0 && strstr(err.text, dir.text)));
        CHECK(checkpoint_is_whole(d.text, "latest") == (f == 5));    // a model may have none
        put(dir.text, names[f], whole.bytes, whole.n);
        CHECK_MSG(load(m, dir.text, &err) == 3, "%s", err.text);
        free(whole.bytes);
    }
    CHECK(checkpoint_is_whole(d.text, "latest"));
    finish(&d, m);
}

// A model.safetensors with the tensors that the run of a model would have, and a change to it.
typedef struct {
    const char *prefix;          // before every name
    const char *without;         // this tensor is left out
    const char *wider;           // this one gets another column
    const char *extra;           // the name of one more tensor, with these two dimensions
    size_t extra_dims[2];
    float extra_add;             // it holds the embedding's numbers, the first with this added
    bool linear;                 // the blocks' matrices are transposed, as nanoGPT keeps them
    bool no_biases;              // all of them are left out
    int part;                    // 1: the odd tensors, 2: the even ones; 0: all
} Variant;

static void put_variant(const char *dir, const char *file, const Config *c, const Variant *v) {
    SafeOutput out[40];
    float *numbers = malloc(2 * gpt2_n_params(c) * sizeof *numbers), *end = numbers;
    size_t n = 0;
    for (int i = 0; i < gpt2_n_tensors(c); i++) {
        Tensor t = gpt2_tensor(c, i);
        bool vector = tensor_is_vector(&t), turned = v->linear && !vector && t.layer >= 0;
        if ((v->without && strcmp(t.key, v->without) == 0) || (v->part && i % 2 == v->part - 1)
            || (v->no_biases && t.init == INIT_ZEROS)) continue;
        if (v->wider && strcmp(t.key, v->wider) == 0) t.count += t.rows, t.cols++;
        SafeOutput o = { "", vector ? 1 : 2, { t.rows, t.cols } };
        if (vector || turned) o.dims[0] = t.cols, o.dims[1] = t.rows;
        snprintf(o.name, sizeof o.name, "%s%s", v->prefix, t.key);
        out[n++] = o;
        for (size_t j = 0; j < t.count; j++)
            *end++ = value_at(1, t.offset + (turned ? j % t.rows * t.cols + j / t.rows : j));
    }
    if (v->extra) {
        SafeOutput o = { "", 2, { v->extra_dims[0], v->extra_dims[1] } };
        snprintf(o.name, sizeof o.name, "%s", v->extra);
        out[n++] = o;
        for (size_t j = 0; j < o.dims[0] * o.dims[1]; j++)
            *end++ = value_at(1, j) + (j ? 0.0f : v->extra_add);
    }
    Error err;
    Path path = in(dir, file);
    unlink(path.text);
    int fd = safetensors_create(path.text, out, n, &err);
    if (fd < 0 || !file_put(fd, numbers, (size_t)(end - numbers) * sizeof *numbers, path.text, &err)
        || !file_close(fd, path.text, &err)) die("%s", err.text);
    free(numbers);
}

static const Config OTHERS = { 2, 2, 4, 5, 3, 0 };
#define OTHERS_CONFIG "{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_head\":2,\"n_embd\":4," \
                      "\"vocab_size\":5,\"n_positions\":3}"

// Loads DIR and looks for numbers that are not the variant's. Returns the error or "".
static Error variant_error(const char *dir, const Variant *v) {
    Error err = { "" };
    Config c;
    float *flat = malloc(gpt2_n_params(&OTHERS) * sizeof *flat);
    bool loaded = checkpoint_config(&c, dir, &err) && load_params(flat, &c, dir, &err);
    CHECK(!loaded || memcmp(&c, &OTHERS, sizeof c) == 0);
    for (int i = 0; loaded && i < gpt2_n_tensors(&c); i++) {
        Tensor t = gpt2_tensor(&c, i);
        bool none = v->no_biases && t.init == INIT_ZEROS;
        for (size_t j = t.offset; j < t.offset + t.count; j++) {
            float expected = none ? 0.0f : value_at(1, j);
            CHECK_MSG(flat[j] == expected, "%s: %zu is %g, not %g", t.key, j, flat[j], expected);
        }
    }
    free(flat);
    return err;
}

TEST(layouts_of_others) {
    static const char head[] = "lm_head.weight";
    static const struct { Variant v; const char *error; } cases[] = {
        { { .prefix = "" }, "" },
        { { "", .extra = "h.0.attn.bias", .extra_dims = { 3, 3 } }, "" },
        { { "transformer.", .extra = "transformer.h.1.attn.masked_bias",
            .extra_dims = { 1, 1 } }, "" },
        { { "transformer.", .extra = head, .extra_dims = { 5, 4 } }, "" },
        { { "_orig_mod.transformer.", .without = "wte.weight",
            .extra = "module._orig_mod.lm_head.weight", .extra_dims = { 5, 4 } }, "" },
        { { "_orig_mod.transformer.", .linear = true,
            .extra = "_orig_mod.lm_head.weight", .extra_dims = { 5, 4 } }, "" },
        { { "transformer.", .linear = true, .no_biases = true }, "" },
        { { "", .without = "h.1.ln_2.bias" },
          "model.safetensors: tensor \"h.1.ln_2.bias\" is missing" },
        { { .prefix = "gpt." },
          "\"wte.weight\" is missing; the file has \"gpt.wte.weight\"" },
        { { "transformer.", .wider = "h.0.mlp.c_fc.weight" },
          "\"transformer.h.0.mlp.c_fc.weight\" is (4,17), but config.json needs (4,16)" },
        { { "", .wider = "h.0.mlp.c_fc.weight", .linear = true },
          "\"h.0.mlp.c_fc.weight\" is (17,4), but config.json needs (16,4)" },
        { { "", .extra = "score.weight", .extra_dims = { 1, 4 } },
          "tensor \"score.weight\" is not part of the GPT-2 that config.json describes" },
        { { "", .extra = "transformer.wpe.weight", .extra_dims = { 3, 4 } },
          "two tensors are called \"wpe.weight\"" },
        { { "", .extra = head, .extra_dims = { 5, 4 }, .extra_add = 1.0f },
          "lm_head.weight differs from wte.weight" },
        { { "", .without = "wte.weight", .extra = head, .extra_dims = { 4, 4 } },
          "tensor \"lm_head.weight\" is (4,4), but config.json needs (5,4)" },
    };
    Path d = temp_make();
    put_text(d.text, "config.json", OTHERS_CONFIG);
    for (size_t i = 0; i < COUNT(cases); i++) {
        put_variant(d.text, "model.safetensors", &OTHERS, &cases[i].v);
        Error err = variant_error(d.text, &cases[i].v);
        CHECK_MSG(!err.text[0] == !cases[i].error[0] && strstr(err.text, cases[i].error)
                  && (!err.text[0] || clear_line(&err, d.text)), "case %zu: \"%s\"", i, err.text);
    }
    folder_remove(&d);
}

TEST(weights_in_shards) {
    static const char *const names[] = { "model-00001-of-00002.safetensors",
                                         "model-00002-of-00002.safetensors" };
    static const Variant parts[] = {
        { "", .part = 2 },
        { "_orig_mod.", .part = 1, .extra = "lm_head.weight", .extra_dims = { 5, 4 } },
    };
    #define INDEX(shards) "{\"metadata\":{},\"weight_map\":{" shards "}}"
    #define BOTH "\"a\":\"model-00001-of-00002.safetensors\"," \
                 "\"b\":\"model-00002-of-00002.safetensors\"," \
                 "\"c\":\"model-00001-of-00002.safetensors\""
    static const struct { const char *index, *error; } cases[] = {
        { INDEX(BOTH), "" },
        { INDEX("\"b\":\"model-00002-of-00002.safetensors\""), "\"h.0.ln_1.weight\" is missing" },
        { INDEX(BOTH ",\"d\":\"gone\""), "gone: cannot open it: No such file" },
        { INDEX(BOTH ",\"d\":\"../x\""), "index.json: byte 150: not the name of a file in this" },
        { "[]", "index.json: \"weight_map\" is missing" },
    };
    Path d = temp_make(), path;
    put_text(d.text, "config.json", OTHERS_CONFIG);
    for (int i = 0; i < 2; i++) put_variant(d.text, names[i], &OTHERS, &parts[i]);
    for (size_t i = 0; i < COUNT(cases); i++) {
        Error err = { "" };
        put_text(d.text, WEIGHTS_INDEX, cases[i].index);
        CHECK_MSG(checkpoint_find(&path, in(d.text, names[i % 2]).text, &err), "%s", err.text);
        err = variant_error(path.text, &parts[0]);
        CHECK_MSG(!err.text[0] == !cases[i].error[0] && strstr(err.text, cases[i].error),
                  "%zu: %s", i, err.text);
    }
    folder_remove(&d);
}

// What --init finds at a path: a file is written there ("": an empty one; NULL: it is removed), and
// the path is opened.
TEST(places_without_a_checkpoint) {
    static const char pickle[] = "ckpt.pt: a PyTorch pickle";
    static const struct { const char *file, *text, *path, *error; } cases[] = {
        { "gone", NULL, ".", "neither config.json nor latest" },
        { "gone", NULL, "x", "No such file" },
        { "page.bin", "<!DOCTYPE html><title>404</title>", "page.bin", "a web page (HTML)" },
        { "ckpt.pt", "\x80\x02...", ".", "torch.load('ckpt.pt', 'cpu'" },
        { "config.json", OTHERS_CONFIG, ".", "import transformers as t" },
        { "ckpt.pt", "PK\x03\x04...", ".", pickle },
        { "ckpt.pt", NULL, ".", "model.safetensors is missing" },
        { "model.safetensors", "<html>", ".", "this is a web page (HTML)" },
        { "optimizer.safetensors", "x", "optimizer.safetensors", "is named by its directory" },
    };
    Path d = temp_make(), path;
    Config c;
    for (size_t i = 0; i < COUNT(cases); i++) {
        Error err = { "" };
        if (cases[i].text) put_text(d.text, cases[i].file, cases[i].text);
        else unlink(in(d.text, cases[i].file).text);
        bool good = checkpoint_find(&path, in(d.text, cases[i].path).text, &err)
                 && checkpoint_config(&c, path.text, &err);
        CHECK_MSG(!good && strstr(err.text, cases[i].error) && clear_line(&err, d.text),
                  "case %zu: %s", i, err.text);
    }
    folder_remove(&d);
}

TEST(weights_that_are_not_finite_are_named) {
    Path d = temp_make(), latest = in(d.text, "latest");
    Model *m = model_make(2, 2, 4, 5, 3);
    const Config *c = &m->k.config;
    float *flat = malloc(gpt2_n_params(c) * sizeof *flat);
    Error err = { "" };
    CHECK(save(d.text, m, 1, 0, &err));
    Content file = slurp(latest.text, "model.safetensors");
    uint64_t header;
    memcpy(&header, file.bytes, 8);
    float *weights = (float *)(void *)(file.bytes + 8 + header);
    weights[tensor_offset(c, FC_B, 1) + 3] = NAN;                // the first of two is named
    weights[tensor_offset(c, LNF_GAIN, 0)] = -INFINITY;
    put(latest.text, "model.safetensors", file.bytes, file.n);
    int before = dup(2), fd = open(in(d.text, "stderr").text, O_WRONLY | O_CREAT, 0666);
    dup2(fd, 2);
    CHECK(load_params(flat, c, latest.text, &err));
    dup2(before, 2);
    close(before);
    close(fd);
    Content said = slurp(d.text, "stderr");
    CHECK_MSG(strstr(said.bytes, "test_checkpoint: warning: ") == said.bytes
              && strstr(said.bytes, "model.safetensors: \"h.1.mlp.c_fc.bias\" holds NaN or "
                                    "infinite weights\n")
              && strchr(said.bytes, '\n') == said.bytes + said.n - 1, "%s", said.bytes);
    free(said.bytes);
    free(file.bytes);
    free(flat);
    finish(&d, m);
}

// ---------------------------------------------------------------------------------------------
// The run's directory

// The first word of a text. One that begins with a digit is the name of that step's checkpoint.
// Returns what follows.
static const char *word(char *out, const char *text) {
    char raw[64] = "", *end;
    int n = 0;
    sscanf(text, "%63s %n", raw, &n);
    long long step = strtoll(raw, &end, 10);
    if (end > raw) snprintf(out, 100, "step_%08lld%s", step, end);
    else snprintf(out, 100, "%s", raw);
    return text + n;
}

static bool same_names(const char *out, const char *wanted) {
    char text[400] = "", one[100];
    while (*wanted) {
        wanted = word(one, wanted);
        snprintf(text + strlen(text), 110, "%s%s", text[0] ? " " : "", one);
    }
    return strcmp(names_in(out), text) == 0;
}

// Whether a path ends in this name.
static bool found_as(const Path *found, const char *name) {
    const char *slash = strrchr(found->text, '/');
    return slash && strcmp(slash + 1, name) == 0;
}

// Does what one line of a story says in the run's directory; `!`: it is refused with those words.
static void story_line(const char *out, Model *m, const char *line) {
    bool refused = line[0] == '!', done = true;
    char verb[100], name[100], to[100];
    const char *words = word(verb, line + refused), *after = word(name, words);
    Error err = { "" };
    Path found, path = in(out, name);
    word(to, after);
    #define VERB(text) (strcmp(verb, text) == 0)
    if (VERB("save")) {                          // save STEP KEEP [LOSS]
        long long step = 0;
        int keep = 0;
        m->k.state.val_loss = NAN;
        sscanf(words, "%lld %d %lf", &step, &keep, &m->k.state.val_loss);
        done = save(out, m, step, keep, &err);
    } else if (VERB("begin")) done = checkpoint_begin(out, &err);
    else if (VERB("clear")) done = checkpoint_clear(out, &err) && !checkpoint_exists(out);
    else if (VERB("links")) links_refused = strcmp(name, "refused") == 0;
    else if (VERB("mkdir")) done = mkdir(path.text, 0777) == 0;
    else if (VERB("rm")) done = remove(path.text) == 0;
    else if (VERB("mv")) done = rename(path.text, in(out, to).text) == 0;
    else if (VERB("file")) put_text(out, name, after);           // file NAME CONTENT
    else if (VERB("link")) {                     // link NAME TO
        unlink(path.text);
        done = (symlink)(to, path.text) == 0;
    } else if (VERB("names")) done = same_names(out, words);     // what is there now
    else if (VERB("points")) {                   // points LINK NAME
        char target[100] = "";
        done = readlink(path.text, target, 99) > 0 && strcmp(target, to) == 0;
    } else if (VERB("holds")) {                  // holds FILE STEP: as a file in place of a link
        Content file = slurp(out, name);
        done = !strncmp(file.bytes, to, strlen(to)) && !strcmp(file.bytes + strlen(to), "\n");
        free(file.bytes);
    } else if (VERB("loads")) {                  // loads STEP: what is latest, every number
        done = load(m, out, &err) == atoll(words);
    } else if (VERB("find")) {                   // find WHERE NAME
        done = checkpoint_find(&found, path.text, &err) && (refused || found_as(&found, to));
        words = after;
    } else if (VERB("step")) {                   // step NUMBER NAME
        done = checkpoint_of_step(&found, out, atoll(words), &err)
            && (refused || found_as(&found, to));
        words = after;
    } else die("'%s' is no line of a story", line);
    CHECK_MSG(done != refused && (!refused || (strstr(err.text, words) && clear_line(&err, out))),
              "%s: %s; there are: %s", line, err.text, names_in(out));
}

TEST(stories_of_a_directory) {
    static const char *const stories[][28] = {
        // keeps as many as asked, and removes no directory of somebody else
        { "save 1 0", "save 2 0", "save 3 0", "names latest 1 2 3", "points latest 3",
          "mkdir step_x", "save 123456789012 2", "names latest 3 123456789012 step_x",
          // back to step 3 and on: the later one is of another past, and stays until it is reached
          "link latest 3", "save 4 1", "names latest 4 123456789012 step_x",
          "save 123456789012 1", "names latest 123456789012 step_x", "clear", "names step_x" },
        // keeps the best beside the newest, the oldest of equals
        { "save 1 2", "save 2 2 3", "save 3 2 2", "save 4 2 2", "save 5 2 1e9", "save 6 2 2.5",
          "save 7 2", "names best latest 3 6 7", "find best 3", "rm best", "find best 3",
          "save 8 2 1", "find best 8", "names best latest 7 8",
          "file 8/state.json {", "save 9 1", "names latest 9" },     // a damaged one is not best
        { "!step 5 no checkpoint of step 5; there are: none", "save 20 0", "save 20 0",
          "save 100 0", "step 20 20.1", "!step 50 step 50; there are: 20, 100" },
        // a file in a checkpoint's directory stands for the directory
        { "save 1 0", "find . 1", "find latest/model.safetensors 1", "find 1/config.json 1",
          "!find model.safetensors cannot open it" },
        // the same step again replaces the first, with keep 0 too
        { "save 5 0", "names latest 5", "save 5 0", "names latest 5.1", "loads 5", "save 5 0",
          "names latest 5", "loads 5", "save 6 1", "names latest 6" },
        // what a crash left is removed: by a save, and when a run begins; links are not followed
        { "mkdir mine", "file mine/kept x", "save 1 0", "mkdir .tmp-step_00000002",
          "mkdir .tmp-step_00000002/deeper", "file .tmp-step_00000002/deeper/half x",
          "link .tmp-latest nowhere", "link .tmp-step_00000002/linked ../mine", "save 2 0",
          "mkdir .tmp-step_00000009", "mkdir .tmp-old", "link .tmp-latest nowhere",
          "mkdir .tmp-notes", "begin", "names .tmp-notes latest mine 1 2", "rm mine/kept" },
        // a copy without links (rsync without -l), or with one to what was not copied
        { "save 8 0", "save 9 0", "save 10 0", "rm latest", "find . 10", "begin", "loads 10",
          "points latest 10", "link latest 7", "find . 10", "begin", "loads 10", "save 11 1",
          "names latest 11" },
        // a copy that followed them (cp -L) is refused, loads, and goes on without its `latest`
        { "save 3 0", "save 4 0", "rm latest",
          "mv 4 latest", "loads 4", "!begin latest: not a link of a run; move it away",
          "mv latest away", "begin", "loads 3", "points latest 3" },
        // where there are no links, `latest` is a file; either system goes on with the other's
        { "links refused", "begin", "names", "save 1 2", "save 2 2", "save 3 2", "holds latest 3",
          "names latest 2 3", "begin", "loads 3", "find latest 3", "clear", "names", "save 1 0",
          "save 2 0", "file latest step_00000001\r\n", "loads 1", "links work", "loads 1", "begin",
          "points latest 1", "rm latest", "file latest step_00000007", "loads 2", "begin",
          "save 3 1", "loads 3" },
        // what is neither a link nor a file of ours is told before a run begins, and left alone
        { "file latest notes of step_00000003", "!begin latest: not a link of a run",
          "!clear latest: not a link of a run" },
    };
    for (size_t i = 0; i < COUNT(stories); i++) {
        Path d = temp_make(), out = in(d.text, "run");
        Model *m = model_make(1, 1, 2, 3, 2);
        mkdir(out.text, 0777);
        for (int k = 0; k < 28 && stories[i][k]; k++) story_line(out.text, m, stories[i][k]);
        links_refused = 0;
        finish(&d, m);
    }
}

TEST(errors_of_saving) {
    Path d = temp_make(), none = in(d.text, "none");
    Model *m = model_make(1, 1, 2, 3, 2);
    Error err = { "" };
    put_text(d.text, "file", "x");
    CHECK(!checkpoint_begin(in(d.text, "file").text, &err) && clear_line(&err, "file"));
    CHECK(!checkpoint_begin(in(d.text, "file/x").text, &err) && clear_line(&err, "file"));
    bool whole = false;
    m->k.whole = &whole;
    CHECK(!save(none.text, m, 1, 0, &err) && clear_line(&err, "none") && !whole);
    mkdir(in(d.text, "latest").text, 0777);
    CHECK(!save(d.text, m, 1, 0, &err) && whole);
    CHECK_MSG(strstr(err.text, "latest: cannot be replaced"), "%s", err.text);
    CHECK(!there(d.text, ".tmp-latest") && !there(d.text, ".tmp-step_00000001"));
    finish(&d, m);
}

// ---------------------------------------------------------------------------------------------
// Crashes and full disks

#if defined(__linux__) && defined(__x86_64__)
#include <stddef.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>

typedef enum { KILL_IT, REFUSE_IT } Mishap;
enum {
    CALL_NUMBER = offsetof(struct user_regs_struct, orig_rax),
    CALL_RESULT = offsetof(struct user_regs_struct, rax),
};

// Starts a child that saves and leaves with 0, 1 (the disk is full), 2 (another error), or 3 (it
// has not asked for every bucket, as other ranks expect); it waits to be traced.
static pid_t traced_save(const char *out, Model *m, int64_t step) {
    pid_t pid = fork();
    if (pid < 0) die("fork: %s", strerror(errno));
    if (pid == 0) {
        Error err;
        dup2(open("/dev/null", O_WRONLY), 2);            // a sanitizer may speak of refused memory
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) _exit(99);
        raise(SIGSTOP);
        bool saved = save(out, m, step, 1, &err);
        _exit(!asked_for_all(m) ? 3 : saved ? 0 : strstr(err.text, strerror(ENOSPC)) ? 1 : 2);
    }
    int status;
    waitpid(pid, &status, 0);
    ptrace(PTRACE_SETOPTIONS, pid, NULL, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
    return pid;
}

// Lets the child run to the next start or end of a system call. False when it has ended.
static bool traced_next(int *status, pid_t pid) {
    int signal = 0;
    do {
        ptrace(PTRACE_SYSCALL, pid, NULL, signal);
        if (waitpid(pid, status, 0) < 0) *status = 99 << 8;      // gone: it could not be traced
        signal = WIFSTOPPED(*status) ? WSTOPSIG(*status) : 0;
    } while (WIFSTOPPED(*status) && signal != (SIGTRAP | 0x80));
    return WIFSTOPPED(*status);
}

// Saves, and lets the mishap happen at the nth system call: the child is killed before the call, or
// the call fails with ENOSPC. Returns the child's status; *number is which call it was, -1 when
// there were fewer.
static int save_with_mishap(const char *out, Model *m, int64_t step, Mishap mishap, int n,
                            long *number) {
    pid_t pid = traced_save(out, m, step);
    int status = 0, calls = 0;
    *number = -1;
    for (bool entering = true; traced_next(&status, pid); entering = !entering) {
        calls += entering;
        if (calls != n) continue;
        if (entering) *number = ptrace(PTRACE_PEEKUSER, pid, CALL_NUMBER, NULL);
        if (mishap == KILL_IT) kill(pid, SIGKILL);
        else if (entering) ptrace(PTRACE_POKEUSER, pid, CALL_NUMBER, -1L);       // no such call
        else ptrace(PTRACE_POKEUSER, pid, CALL_RESULT, -(long)ENOSPC);
    }
    return status;
}

// What every crash test needs: a run with step 1 saved, and step 2 to come.
static bool mishap_possible(const char *out, Model *m) {
    Error err;
    long number;
    if (!save(out, m, 1, 0, &err)) die("%s", err.text);
    int status = save_with_mishap(out, m, 1, KILL_IT, -1, &number);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// A kill cannot show what a power cut would: whether data was on the disk before its name. So this
// is the order of the calls that matter: Write, Fsync, Rename, Symlink; writes in a row count once.
TEST(synced_before_it_is_named) {
    Path d = temp_make();
    Model *m = model_make(1, 1, 2, 3, 2);
    bool possible = mishap_possible(d.text, m);
    char calls[100] = "";
    size_t n = 0;
    int status = 0;
    pid_t pid = traced_save(d.text, m, 2);
    for (bool entering = true; possible && traced_next(&status, pid); entering = !entering) {
        long number = ptrace(PTRACE_PEEKUSER, pid, CALL_NUMBER, NULL);
        char call = number == SYS_write ? 'W' : number == SYS_fsync ? 'F'
                  : number == SYS_rename ? 'R' : number == SYS_symlink ? 'S' : 0;
        bool again = call == 'W' && n > 0 && calls[n-1] == 'W';
        if (entering && call && !again && n + 1 < sizeof calls) calls[n++] = call;
    }
    finish(&d, m);
    if (!possible) SKIP("needs ptrace");
    const char *expected =
        "WFWFWFWF" "F"    // model, optimizer, config, state; their directory
        "R"               // nothing of this name is in the way: this one fails
        "RF"              // the checkpoint gets its name
        "SRF"             // latest moves
        "R";              // only now does the old one go
    CHECK_MSG(strcmp(calls, expected) == 0, "%s; expected: %s", calls, expected);
}

// Not random: a mishap at each system call of a save, in turn, so at every moment at which the disk
// is different. keep is 1, so that the old checkpoint is removed as well; each is better than the
// one before. A save that says it has succeeded has; latest loads, and never goes back.
static void mishap_everywhere(const char *test, Mishap mishap) {
    Path d = temp_make();
    Model *m = model_make(1, 1, 2, 3, 2);
    Error err = { "" };
    m->k.state.val_loss = 1.0;
    bool possible = mishap_possible(d.text, m);
    long number = possible ? 0 : -1;
    int64_t step = 1;
    int n = 0, finished = 0, refused = 0;
    while (number >= 0 && n < 2000) {
        // when killed, every other time the same step again, which is harder
        int64_t next = mishap == KILL_IT && n % 2 ? step : step + 1;
        m->k.state.val_loss = 1.0 / (double)(n + 2);
        int status = save_with_mishap(d.text, m, next, mishap, ++n, &number);
        int64_t now = load(m, d.text, &err);
        CHECK_MSG(now == step || now == next, "call %d, %ld: %s", n, number, err.text);
        bool best = checkpoint_is_whole(d.text, link_name(d.text, "best").text);
        CHECK_MSG(best || mishap == REFUSE_IT, "killed at call %d: best is not whole", n);
        if (now < 0) break;
        int left = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        bool matters = number == SYS_write || number == SYS_fsync || number == SYS_rename
                    || number == SYS_mkdir;              // for a link, a file does
        CHECK_MSG(left != 0 || (now == next && !matters), "call %d, %ld, refused: it says that "
                  "all is well", n, number);
        CHECK_MSG(left != 3, "call %d, %ld: buckets left out", n, number);
        CHECK(checkpoint_prune(d.text, now, 2, &err));       // else the calls grow with n
        refused += left == 1;
        finished += now > step;
        step = now;
    }
    if (possible) {
        CHECK_MSG(number < 0 && n > 50 && finished > 0, "%d calls, %d finished", n, finished);
        CHECK_MSG(mishap == KILL_IT || refused > 20, "%d calls, %d reported", n, refused);
        m->k.state.val_loss = 0.0;
        CHECK(checkpoint_begin(d.text, &err) && save(d.text, m, step + 1, 1, &err));
        CHECK_MSG(strchr(names_in(d.text), '.') == NULL, "%s", names_in(d.text));
    } else {
        printf("skip %s: needs ptrace\n", test);
        test_state.skipped = 1;
    }
    finish(&d, m);
}

TEST(kill_at_every_system_call) { mishap_everywhere(__func__, KILL_IT); }
TEST(refuse_every_system_call) { mishap_everywhere(__func__, REFUSE_IT); }
TEST(kill_where_there_are_no_links) {
    links_refused = 1;
    mishap_everywhere(__func__, KILL_IT);
    links_refused = 0;
}
#else
TEST(synced_before_it_is_named) { SKIP("needs Linux on x86-64"); }
TEST(kill_at_every_system_call) { SKIP("needs Linux on x86-64"); }
TEST(kill_where_there_are_no_links) { SKIP("needs Linux on x86-64"); }
TEST(refuse_every_system_call) { SKIP("needs Linux on x86-64"); }
#endif

int main(void) {
    *program_name() = "test_checkpoint";
    return run_tests();
}
