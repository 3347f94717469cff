// checkpoint.h: what is saved loads to the bit, what is damaged is refused in one line, and at no
// moment of a save is OUT/latest anything but whole.
//
//     test_checkpoint                                    the tests
// For test_transformers.py:
//     test_checkpoint --write OUT FIXTURE [TOKENIZER]    saves a fixture's weights
//     test_checkpoint --read DIR                         prints sizes, and a checksum a tensor
#define PROGRAM "test_checkpoint"
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// On a disk without symbolic links (FAT), symlink() fails like this.
static int links_refused;
static int symlink_or_refuse(const char *target, const char *link) {
    if (!links_refused) return symlink(target, link);
    errno = EPERM;
    return -1;
}
#define symlink symlink_or_refuse
#include "../dev/files/checkpoint.h"
#undef symlink
#include "../dev/base/rng.h"
#include "test.h"

// ---------------------------------------------------------------------------------------------
// Helpers

typedef struct { char text[200]; } TempDir;

static TempDir temp_make_in(const char *where) {
    TempDir d;
    snprintf(d.text, sizeof d.text, "%.100s/test_checkpoint.XXXXXX", where);
    if (!mkdtemp(d.text)) die("%s: %s", d.text, strerror(errno));
    char *real = realpath(d.text, NULL);
    snprintf(d.text, sizeof d.text, "%.199s", real);
    free(real);
    return d;
}

static TempDir temp_make(void) {
    const char *tmp = getenv("TMPDIR");
    return temp_make_in(tmp && *tmp ? tmp : "/tmp");
}

// In memory where there is such a place: what a kill leaves behind does not depend on the disk, and
// saves that need not wait for one can be killed more often.
static TempDir temp_make_fast(void) {
    return access("/dev/shm", W_OK) == 0 ? temp_make_in("/dev/shm") : temp_make();
}

static void temp_remove(const TempDir *d) {
    Error err;
    if (!path_remove(d->text, &err)) die("%s", err.text);
}

static Path in(const char *dir, const char *name) {
    Path p;
    Error err;
    if (!path_join(&p, dir, name, &err)) die("%s", err.text);
    return p;
}

static bool there(const char *dir, const char *name) {
    struct stat info;
    return lstat(in(dir, name).text, &info) == 0;
}

static void put(const char *dir, const char *name, const void *bytes, size_t n) {
    Error err;
    unlink(in(dir, name).text);
    if (!file_write(in(dir, name).text, bytes, n, &err)) die("%s", err.text);
}

static void put_text(const char *dir, const char *name, const char *text) {
    put(dir, name, text, strlen(text));
}

// A file's bytes in memory. Free bytes with free().
static FileMap slurp(const char *dir, const char *name) {
    FileMap m, copy;
    Error err;
    if (!file_map(&m, in(dir, name).text, &err)) die("%s", err.text);
    unsigned char *bytes = malloc(m.n);
    memcpy(bytes, m.bytes, m.n);
    copy.bytes = bytes;
    copy.n = m.n;
    file_unmap(&m);
    return copy;
}

// A model with its moments, all of them functions of (step, place), so that a loaded checkpoint can
// be told from a mixture of two. It counts how often it was asked for a bucket, and in what order.
typedef struct {
    Config config;
    size_t n;
    float *params, *exp_avg, *exp_avg_sq;
    int calls;
    bool in_order;
} Model;

static Model model_make(int L, int NH, int C, int V, int P) {
    Model m = { { L, NH, C, V, P, 0 }, 0, NULL, NULL, NULL, 0, true };
    m.n = gpt2_n_params(&m.config);
    m.params = malloc(3 * m.n * sizeof(float));
    m.exp_avg = m.params + m.n;
    m.exp_avg_sq = m.exp_avg + m.n;
    return m;
}

static float value_at(int64_t step, size_t place) {
    uint32_t bits = (uint32_t)mix64((uint64_t)step * 1000003u + place);
    return float_from_bits((bits & 0x807FFFFFu) | (100 + (bits >> 23) % 50) << 23);  // finite
}

static void model_fill(Model *m, int64_t step) {
    for (size_t i = 0; i < 3 * m->n; i++) m->params[i] = value_at(step, i);
}

static const float *bucket_of(void *model, Kept what, int worker, int bucket) {
    Model *m = model;
    m->in_order = m->in_order && worker == -1 && (int)what == m->calls / (m->config.L + 2)
               && bucket == m->calls % (m->config.L + 2);
    m->calls++;
    return m->params + (size_t)what*m->n + gpt2_bucket(&m->config, bucket).begin;
}

static Checkpoint checkpoint_of(Model *m, int64_t step) {
    Checkpoint k;
    memset(&k, 0, sizeof k);
    k.config = m->config;
    k.state.step = step;
    k.state.val_loss = NAN;
    k.source = bucket_of;
    k.from = m;
    k.eot = -1;
    return k;
}

// Whether a save, successful or not, has asked for every bucket once, in order.
static bool asked_for_all(const Model *m) {
    return m->in_order && m->calls == 3 * (m->config.L + 2);
}

// `improves`: each checkpoint has a lower validation loss than those before.
static bool improves;

static bool save(const char *out, Model *m, int64_t step, int keep, Error *err) {
    model_fill(m, step);
    m->calls = 0;
    m->in_order = true;
    Checkpoint k = checkpoint_of(m, step);
    if (improves) k.state.val_loss = 1.0 / (double)step;
    bool saved = checkpoint_save(out, &k, keep, err);
    CHECK_MSG(asked_for_all(m), "asked for %d buckets%s", m->calls, m->in_order ? "" : ", mixed");
    return saved;
}

// flat (gpt2_n_params(c)) = one of what a file holds.
static void read_all(float *flat, TensorFile *f, Kept what, int worker) {
    for (int b = 0; b < gpt2_n_buckets(&f->config); b++)
        tensor_file_bucket(flat + gpt2_bucket(&f->config, b).begin, f, what, worker, b);
}

static bool load_params(float *flat, const Config *c, const char *path, Error *err) {
    TensorFile f;
    if (!tensor_file_open(&f, path, FILE_WEIGHTS, 0, c, err)) return false;
    read_all(flat, &f, KEPT_WEIGHTS, -1);
    tensor_file_close(&f);
    return true;
}

static bool load_moments(Model *m, const char *path, Error *err) {
    TensorFile f;
    if (!tensor_file_open(&f, path, FILE_OPTIMIZER, 0, &m->config, err)) return false;
    read_all(m->exp_avg_sq, &f, KEPT_EXP_AVG_SQ, -1);        // in whatever order
    read_all(m->exp_avg, &f, KEPT_EXP_AVG, -1);
    tensor_file_close(&f);
    return true;
}

// Everything a resumed run reads. m's buffers receive it; m must have room for the config.
static bool load(Model *m, TrainState *state, const char *where, Error *err) {
    Path path;
    Config c;
    Json json;
    if (!checkpoint_find(&path, where, err) || !checkpoint_config(&c, path.text, err)) return false;
    if (memcmp(&c, &m->config, sizeof c) != 0) return fail(err, "another model");
    if (!load_params(m->params, &c, path.text, err) || !load_moments(m, path.text, err)
        || !checkpoint_load_state(state, &json, path.text, err)) return false;
    json_free(&json);
    return true;
}

// Loads OUT/latest and checks every number. Returns its step, or -1 and an error.
static int64_t latest_step(const char *out, Model *m, Error *err) {
    TrainState state;
    for (size_t i = 0; i < 3 * m->n; i++) m->params[i] = NAN;
    if (!load(m, &state, out, err)) return -1;
    for (size_t i = 0; i < 3 * m->n; i++)
        if (m->params[i] != value_at(state.step, i)) {
            fail(err, "number %zu is not of step %lld", i, (long long)state.step);
            return -1;
        }
    return state.step;
}

// One clear line: names the path, does not break.
static bool clear_line(const Error *err, const char *path) {
    return strstr(err->text, path) != NULL && strchr(err->text, '\n') == NULL;
}

// ---------------------------------------------------------------------------------------------
// Saving and loading

TEST(names_find_their_tensors) {
    Config c = { 3, 1, 2, 5, 4, 0 };
    for (int i = 0; i < gpt2_n_tensors(&c); i++) {
        Tensor t = gpt2_tensor(&c, i);
        CHECK_MSG(tensor_place(&c, t.key) == i, "%s", t.key);
    }
    static const char *const strangers[] = {
        "", "h.", "h.3.ln_1.weight", "h.01.ln_1.weight", "h.+1.ln_1.weight", "h.-1.ln_1.weight",
        "h.1.ln_1", "h.1ln_1.weight", "h.99999999999999999999.ln_1.weight", "wte", "ln_1.weight",
        "h.%d.ln_1.weight", "h.1.wte.weight", "lm_head.weight", "h.1.attn.bias", "wte.weight ",
    };
    for (size_t i = 0; i < sizeof strangers / sizeof *strangers; i++)
        CHECK_MSG(tensor_place(&c, strangers[i]) == -1, "%s", strangers[i]);
}

TEST(names_find_their_series) {
    static const char *const wrapped[] = {
        "wpe.weight", "h.1.ln_1.weight", "transformer.h.1.ln_1.weight",
        "_orig_mod.transformer.h.1.ln_1.weight", "module._orig_mod.h.1.ln_1.weight",
        "base_model.model.transformer.h.1.ln_1.weight", "transformer.h.1._orig_mod.ln_1.weight",
        "_fsdp_wrapped_module.h.1._fsdp_wrapped_module._checkpoint_wrapped_module.ln_1.weight",
    };
    for (int i = 0; i < N_KEPT + 2*11; i++) {
        PlainName plain = { "" };
        int layer;
        char name[120];
        Series s = series_at(i);
        CHECK_MSG(series_index(s.what, s.worker) == i, "series %d", i);
        for (size_t k = 0; k < sizeof wrapped / sizeof *wrapped; k++) {
            snprintf(name, sizeof name, "%s%s", series_prefix(i).text, wrapped[k]);
            bool found = series_of_name(&plain, name) == i
                      && tensor_kind_of(&layer, plain.text) == (k == 0 ? WPE : LN1_GAIN);
            CHECK_MSG(found, "%s: %s", name, plain.text);
        }
    }
    CHECK(strcmp(series_prefix(N_KEPT + 2*10 + 1).text, "worker10.exp_avg_sq.") == 0);
    static const char *const strangers[] = {
        "worker", "worker.exp_avg.x", "worker1", "worker1.", "worker01.exp_avg.x", "worker1.x",
        "worker-1.exp_avg.x", "worker1.outer_momentum.x", "worker65536.exp_avg.x",
        "worker99999999999999999999.exp_avg.x", "worker1.worker1.exp_avg.x",
    };
    for (size_t i = 0; i < sizeof strangers / sizeof *strangers; i++) {
        PlainName plain;
        CHECK_MSG(series_of_name(&plain, strangers[i]) == -1, "%s", strangers[i]);
    }
}

TEST(buckets_cover_the_flat_buffer) {
    const Config configs[] = { { 1, 1, 1, 1, 1, 0 }, { 3, 2, 8, 50, 7, 0 },
                               { 12, 12, 768, 50257, 1024, 0 } };
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        const Config *c = &configs[i];
        size_t at = 0, largest = 0;
        int tensor = 0;
        CHECK(gpt2_n_buckets(c) == c->L + 2);
        for (int b = 0; b < gpt2_n_buckets(c); b++) {
            Range range = gpt2_bucket(c, b);
            CHECK_MSG(range.begin == at && gpt2_bucket_tensor(c, b) == tensor, "bucket %d", b);
            for (; tensor < gpt2_bucket_tensor(c, b + 1); tensor++) {
                Tensor t = gpt2_tensor(c, tensor);
                CHECK_MSG(t.offset == at && t.layer == (b == 0 || b > c->L ? -1 : b - 1), "%s",
                          t.key);
                at += t.count;
            }
            CHECK_MSG(range.begin + range.count == at, "bucket %d", b);
            if (range.count > largest) largest = range.count;
        }
        CHECK(at == gpt2_n_params(c) && tensor == gpt2_n_tensors(c));
        CHECK(largest == gpt2_largest_bucket(c));
    }
}

TEST(round_trip) {
    TempDir d = temp_make();
    Model m = model_make(2, 3, 12, 17, 5);
    Error err = { "" };
    Path out = in(d.text, "a/b/run"), path;
    const char tokenizer[] = "{\"version\": \"1.0\"}";
    CHECK_MSG(checkpoint_begin(out.text, &err), "%s", err.text);
    CHECK(!checkpoint_exists(out.text));
    model_fill(&m, 7);
    Checkpoint k = checkpoint_of(&m, 7);
    TrainState full = { .step = 7, .tokens = COUNT_MOST, .samples = COUNT_MOST - 1, .adam_steps = 6,
                        .skipped = 1, .seed = UINT64_MAX, .seconds = 1.0 / 3, .batch_tokens = 96,
                        .next_batch_tokens = 128, .norm_test_waited = 33, .noise_g2 = 0.1,
                        .noise_s = 1.0 / 7, .noise_weight = 0.5, .noise_adam_g2 = 1.0 / 9,
                        .noise_adam_s = 3.25, .noise_adam_weight = 0.75, .val_loss = 2.5,
                        .recent_losses = { 2, { 1.0 / 11, 1e-300 } } };
    for (int i = 0; i < WINDOW_VALUES; i++) window_add(&full.recent_norms, sqrt(i));
    k.state = full;
    k.options = "{\"lr\": 0.001, \"text\": \"\\u00e9\"}";
    k.eot = 16;
    k.tokenizer.bytes = (const unsigned char *)tokenizer;
    k.tokenizer.n = strlen(tokenizer);
    CHECK_MSG(checkpoint_save(out.text, &k, 0, &err), "%s", err.text);
    CHECK(checkpoint_exists(out.text));
    char link[100] = "";
    CHECK(readlink(in(out.text, "latest").text, link, sizeof link - 1) > 0);
    CHECK_MSG(strcmp(link, "step_00000007") == 0, "%s", link);
    CHECK_MSG(latest_step(out.text, &m, &err) == 7, "%s", err.text);
    TrainState state;
    Json json;
    CHECK(checkpoint_find(&path, out.text, &err));
    bool loaded = checkpoint_load_state(&state, &json, path.text, &err);
    CHECK_MSG(loaded && memcmp(&state, &full, sizeof full) == 0, "%s", err.text);
    double lr = 0;
    CHECK(loaded && json_get_double(&lr, json_get(json.root, "options"), "lr", &err));
    CHECK(lr == 0.001);
    if (loaded) json_free(&json);
    FileMap copy = slurp(path.text, "tokenizer.json");
    CHECK(copy.n == k.tokenizer.n && memcmp(copy.bytes, tokenizer, copy.n) == 0);
    free((void *)(uintptr_t)copy.bytes);
    CHECK(there(path.text, "tokenizer_config.json"));
    k.weights_only = true;
    k.tokenizer.bytes = NULL;
    k.state.step = 8;
    CHECK(checkpoint_save(out.text, &k, 0, &err) && checkpoint_find(&path, out.text, &err));
    CHECK(!there(path.text, "optimizer.safetensors") && !there(path.text, "tokenizer.json"));
    CHECK(!load(&m, &state, out.text, &err) && strstr(err.text, "optimizer.safetensors: cannot"));
    free(m.params);
    temp_remove(&d);
}

// A checkpoint of a run without workers has had these bytes since the first one that was written.
TEST(bytes_stay_the_same) {
    static const struct { const char *name; size_t n; uint64_t hash; } files[] = {
        { "model.safetensors", 4592, 0xC2A7F472AF665AA1 },
        { "optimizer.safetensors", 9696, 0x61143EBE053563B8 },
        { "config.json", 449, 0x8A5E70CC8BE81AE2 },
        { "state.json", 179, 0x841CE0FF2514E343 },
        { "tokenizer_config.json", 181, 0x7A3BF639A53F44ED },
    };
    const TrainState state = { .step = 7, .tokens = 600, .samples = 50, .adam_steps = 6,
                               .skipped = 1, .seed = UINT64_MAX, .seconds = 1.0 / 3,
                               .val_loss = NAN };
    TempDir d = temp_make();
    Model m = model_make(2, 2, 4, 5, 3);
    Error err = { "" };
    model_fill(&m, 7);
    Checkpoint k = checkpoint_of(&m, 7);
    k.state = state;
    k.options = "{\"lr\": 0.001}";
    k.eot = 4;
    k.tokenizer.bytes = (const unsigned char *)"{}";
    k.tokenizer.n = 2;
    CHECK_MSG(checkpoint_save(d.text, &k, 0, &err), "%s", err.text);
    Path latest = in(d.text, "latest");
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        FileMap file = slurp(latest.text, files[f].name);
        uint64_t hash = 0;
        for (size_t i = 0; i < file.n; i++) hash = mix64(hash + file.bytes[i] + 1);
        CHECK_MSG(file.n == files[f].n && hash == files[f].hash, "{ \"%s\", %zu, 0x%llX },",
                  files[f].name, file.n, (unsigned long long)hash);
        free((void *)(uintptr_t)file.bytes);
    }
    CHECK(!there(latest.text, "outer.safetensors") && !there(latest.text, "workers.safetensors"));
    free(m.params);
    temp_remove(&d);
}

// ---------------------------------------------------------------------------------------------
// Bucket by bucket

// Numbers that are made as they are asked for: all but the last bucket are gone. `calls` is what
// was asked, "w0" being bucket 0 of the weights, "m" and "v" moments, "o" the outer momentum, "2m1"
// one of worker 2.
typedef struct { Config config; float *numbers; char calls[2000]; } Maker;

static Maker maker_make(const Config *c) {
    Maker m = { *c, malloc(gpt2_largest_bucket(c) * sizeof(float)), "" };
    return m;
}

static const float *make_bucket(void *maker, Kept what, int worker, int bucket) {
    Maker *m = maker;
    Range range = gpt2_bucket(&m->config, bucket);
    char worker_text[12] = "", call[40];
    if (worker >= 0) snprintf(worker_text, sizeof worker_text, "%d", worker);
    snprintf(call, sizeof call, " %s%c%d", worker_text, "wmvoa"[what], bucket);
    strncat(m->calls, call, sizeof m->calls - strlen(m->calls) - 1);
    for (size_t i = 0; i < gpt2_largest_bucket(&m->config); i++) m->numbers[i] = NAN;
    for (size_t i = 0; i < range.count; i++)
        m->numbers[i] = value_at(series_index(what, worker), range.begin + i);
    return m->numbers;
}

static Checkpoint checkpoint_made(Maker *m, int64_t step, int workers) {
    Checkpoint k;
    memset(&k, 0, sizeof k);
    k.config = m->config;
    k.state.step = step;
    k.state.workers = workers;
    k.source = make_bucket;
    k.from = m;
    k.eot = -1;
    return k;
}

// How many numbers of a series are not those of make_bucket, or are written behind a bucket's end.
static int64_t wrong_numbers(TensorFile *f, Kept what, int worker) {
    int64_t wrong = 0;
    size_t room = 2 * gpt2_largest_bucket(&f->config);
    float *numbers = malloc(room * sizeof *numbers);
    for (int b = gpt2_n_buckets(&f->config); b-- > 0; ) {        // backwards, too
        Range range = gpt2_bucket(&f->config, b);
        for (size_t i = 0; i < room; i++) numbers[i] = INFINITY;
        tensor_file_bucket(numbers, f, what, worker, b);
        for (size_t i = 0; i < range.count; i++)
            wrong += numbers[i] != value_at(series_index(what, worker), range.begin + i);
        for (size_t i = range.count; i < room; i++) wrong += numbers[i] != INFINITY;
    }
    free(numbers);
    return wrong;
}

TEST(calls_in_order) {
    static const struct {
        bool weights_only;
        int workers;
        const char *calls;
        bool sgd, averages;
    } cases[] = {
        { true, 0, " w0 w1 w2 w3", false, true },
        { true, 2, " w0 w1 w2 w3", false, false },
        { false, 0, " w0 w1 w2 w3 m0 m1 m2 m3 v0 v1 v2 v3", false, false },
        { false, 0, " w0 w1 w2 w3 m0 m1 m2 m3 v0 v1 v2 v3 a0 a1 a2 a3", false, true },
        { false, 0, " w0 w1 w2 w3", true, false },
        { false, 0, " w0 w1 w2 w3 a0 a1 a2 a3", true, true },
        { false, 2, " w0 w1 w2 w3 o0 o1 o2 o3", true, false },
        { false, 1, " w0 w1 w2 w3 m0 m1 m2 m3 v0 v1 v2 v3 o0 o1 o2 o3"
                    " 0m0 0m1 0m2 0m3 0v0 0v1 0v2 0v3", false, false },
        { false, 2, " w0 w1 w2 w3 m0 m1 m2 m3 v0 v1 v2 v3 o0 o1 o2 o3"
                    " 0m0 0m1 0m2 0m3 0v0 0v1 0v2 0v3 1m0 1m1 1m2 1m3 1v0 1v1 1v2 1v3",
          false, false },
    };
    TempDir d = temp_make();
    const Config c = { 2, 1, 2, 5, 3, 0 };
    Maker m = maker_make(&c);
    Error err = { "" };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Checkpoint k = checkpoint_made(&m, 1 + (int64_t)i, cases[i].workers);
        k.weights_only = cases[i].weights_only;
        k.sgd = cases[i].sgd;
        k.averages = cases[i].averages;
        for (int way = 0; way < 3; way++) {              // a save, no save, and one that fails
            m.calls[0] = '\0';
            if (way == 0) CHECK_MSG(checkpoint_save(d.text, &k, 0, &err), "%s", err.text);
            if (way == 1) checkpoint_follow(&k);
            if (way == 2) CHECK(!checkpoint_save(in(d.text, "none").text, &k, 0, &err));
            CHECK_MSG(strcmp(m.calls, cases[i].calls) == 0, "way %d:%s", way, m.calls);
        }
    }
    free(m.numbers);
    temp_remove(&d);
}

// No file may grow beyond a limit, which each file meets in turn. The calls are those of a save all
// the same.
TEST(calls_go_on_when_writing_has_failed) {
    TempDir d = temp_make();
    const Config c = { 2, 1, 2, 5, 3, 0 };
    Maker m = maker_make(&c);
    Error err = { "" };
    Checkpoint k = checkpoint_made(&m, 1, 3);
    CHECK_MSG(checkpoint_save(d.text, &k, 0, &err), "%s", err.text);
    FileMap largest = slurp(in(d.text, "latest").text, "workers.safetensors");
    free((void *)(uintptr_t)largest.bytes);
    char all[sizeof m.calls];
    memcpy(all, m.calls, sizeof all);
    fflush(stdout);
    for (rlim_t limit = 0; limit < largest.n + 997; limit += 997) {
        pid_t pid = fork();
        if (pid == 0) {
            struct rlimit r = { limit, RLIM_INFINITY };
            signal(SIGXFSZ, SIG_IGN);
            if (setrlimit(RLIMIT_FSIZE, &r) != 0) _exit(3);
            m.calls[0] = '\0';
            k.state.step = 2;
            bool saved = checkpoint_save(d.text, &k, 0, &err);
            _exit(strcmp(m.calls, all) != 0 ? 4 : saved);
        }
        int status;
        waitpid(pid, &status, 0);
        bool good = WIFEXITED(status) && WEXITSTATUS(status) == (limit >= largest.n);
        CHECK_MSG(good, "limit %d: %x", (int)limit, status);
    }
    free(m.numbers);
    temp_remove(&d);
}

TEST(workers_round_trip) {
    TempDir d = temp_make();
    const Config c = { 2, 1, 2, 5, 3, 0 };
    Maker m = maker_make(&c);
    Error err = { "" };
    TensorFile f;
    TrainState state;
    Json json;
    Checkpoint k = checkpoint_made(&m, 1, 3);
    k.averages = true;
    CHECK_MSG(checkpoint_save(d.text, &k, 0, &err), "%s", err.text);
    Path path = in(d.text, "step_00000001");
    CHECK(checkpoint_load_state(&state, &json, path.text, &err) && state.workers == 3);
    json_free(&json);
    for (int file = 0; file < N_FILES; file++) {
        // Any number of workers may read the others, the mean above all.
        int64_t workers = file == FILE_WORKERS ? state.workers : 7*file;
        bool open = tensor_file_open(&f, path.text, (KeptFile)file, workers, &c, &err);
        CHECK_MSG(open, "%s", err.text);
        for (int i = f.first; open && i < f.end; i++) {
            Series s = series_at(i);
            int64_t wrong = wrong_numbers(&f, s.what, s.worker);
            CHECK_MSG(wrong == 0, "%s: %lld wrong", series_prefix(i).text, (long long)wrong);
        }
        if (open) tensor_file_close(&f);
    }
    static const struct { int workers; const char *error; } others[] = {
        { 2, "workers.safetensors: tensor \"worker2.exp_avg.transformer.wte.weight\" does not" },
        { 4, "workers.safetensors: tensor \"worker3.exp_avg.wte.weight\" is missing" },
        { 0, "workers.safetensors: tensor \"worker0.exp_avg.transformer.wte.weight\" does not" },
    };
    for (int i = 0; i < 3; i++) {
        bool open = tensor_file_open(&f, path.text, FILE_WORKERS, others[i].workers, &c, &err);
        CHECK_MSG(!open && strstr(err.text, others[i].error), "%s", err.text);
    }
    static const char *const names[] = { "workers.safetensors", "outer.safetensors" };
    for (int i = 0; i < 2; i++) {
        unlink(in(path.text, names[i]).text);
        bool open = tensor_file_open(&f, path.text, i ? FILE_OUTER : FILE_WORKERS, 3, &c, &err);
        CHECK_MSG(!open && strstr(err.text, names[i]) && clear_line(&err, path.text)
                  && strstr(err.text, " is missing; the run had 3 workers"), "%s", err.text);
    }
    CHECK(tensor_file_open(&f, path.text, FILE_OPTIMIZER, 0, &c, &err));
    tensor_file_close(&f);
    free(m.numbers);
    temp_remove(&d);
}

// llm.c's model of one layer and one channel has the order of ours, and nothing to transpose.
TEST(model_files_of_llmc) {
    const Config c = { 1, 1, 1, 2, 1, 0 }, other = { 1, 1, 1, 1, 2, 0 };
    int32_t header[256] = { LLMC_MAGIC, LLMC_FP32, c.P, c.V, c.L, c.NH, c.C, c.V };
    float numbers[sizeof header / 4 + 40];
    TempDir d = temp_make();
    size_t n = gpt2_n_params(&c);
    TensorFile f;
    Config found;
    Error err = { "" };
    memcpy(numbers, header, sizeof header);
    for (size_t i = 0; i < n; i++) numbers[256 + i] = value_at(KEPT_WEIGHTS, i);
    put(d.text, "gpt2.bin", numbers, sizeof header + n * sizeof *numbers);
    Path path = in(d.text, "gpt2.bin");
    CHECK(checkpoint_config(&found, path.text, &err) && memcmp(&found, &c, sizeof c) == 0);
    bool open = tensor_file_open(&f, path.text, FILE_WEIGHTS, 0, &c, &err);
    CHECK_MSG(open, "%s", err.text);
    if (open) CHECK(wrong_numbers(&f, KEPT_WEIGHTS, -1) == 0);
    if (open) tensor_file_close(&f);
    CHECK(!tensor_file_open(&f, path.text, FILE_WEIGHTS, 0, &other, &err));
    CHECK_MSG(strstr(err.text, "not the model") && clear_line(&err, path.text), "%s", err.text);
    CHECK(!tensor_file_open(&f, path.text, FILE_OPTIMIZER, 0, &c, &err));
    CHECK_MSG(strstr(err.text, "optimizer.safetensors: cannot"), "%s", err.text);
    temp_remove(&d);
}

#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__)
// A process that may have 2 MB more than it has now saves and loads a model of 7.6 MB, and the
// moments of two workers. Returns its exit status.
static int saves_and_loads_in_little_memory(const char *out, const Config *c) {
    struct rlimit r;
    long pages;
    Error err;
    TensorFile f;
    Maker m = maker_make(c);
    Checkpoint k = checkpoint_made(&m, 1, 2);
    k.averages = true;
    FILE *statm = fopen("/proc/self/statm", "r");
    if (!statm || fscanf(statm, "%*d %*d %*d %*d %*d %ld", &pages) != 1) return 99;
    fclose(statm);
    r.rlim_cur = r.rlim_max = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + (2 << 20);
    if (setrlimit(RLIMIT_DATA, &r) != 0) return 99;
    void *whole = malloc(gpt2_n_params(c) * sizeof(float));
    if (whole) return 99;                                // the limit is none
    if (!checkpoint_save(out, &k, 0, &err)) return 1;
    for (int file = 0; file < N_FILES; file++) {
        if (!tensor_file_open(&f, in(out, "latest").text, (KeptFile)file, 2, c, &err)) return 2;
        for (int i = f.first; i < f.end; i++)
            if (wrong_numbers(&f, series_at(i).what, series_at(i).worker) != 0) return 3;
        tensor_file_close(&f);
    }
    return 0;
}

TEST(nobody_holds_a_model_whole) {
    TempDir d = temp_make_fast();
    const Config c = { 24, 1, 80, 400, 20, 0 };
    int status;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) _exit(saves_and_loads_in_little_memory(d.text, &c));
    waitpid(pid, &status, 0);
    temp_remove(&d);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 99) SKIP("needs a limit on memory");
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", status);
}
#else
TEST(nobody_holds_a_model_whole) { SKIP("needs Linux, and no sanitizer"); }
#endif

TEST(states) {
    static const char start[] = "{\"step\":1,\"tokens\":2,\"samples\":3,\"adam_steps\":4,"
                                "\"skipped\":5,\"seed\":6,\"seconds\":7,\"options\":{}";
    static const struct { const char *more; int64_t workers; const char *error; } cases[] = {
        { "}", 0, "" },
        { ",\"workers\":0}", 0, "" },
        { ",\"workers\":8}", 8, "" },
        { ",\"workers\":-1}", 0, "\"workers\" is -1; a whole number from 0" },
        { ",\"workers\":65537}", 0, "\"workers\" is 65537; a whole number from 0 to 65536" },
        { ",\"workers\":null}", 0, "\"workers\"" },
        { ",\"recent_losses\":[]}", 0, "" },
        { ",\"recent_losses\":{}}", 0, "\"recent_losses\" must be a list" },
        { ",\"recent_norms\":[1,\"2\"]}", 0, "\"recent_norms\" holds a string, not a number" },
    };
    TempDir d = temp_make();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        TrainState state;
        const TrainState expected = { .step = 1, .tokens = 2, .samples = 3, .adam_steps = 4,
                                      .skipped = 5, .seed = 6, .seconds = 7,
                                      .workers = cases[i].workers, .val_loss = NAN };
        memset(&state, 255, sizeof state);
        Json json;
        char text[300];
        Error err = { "" };
        snprintf(text, sizeof text, "%s%s", start, cases[i].more);
        put_text(d.text, "state.json", text);
        bool loaded = checkpoint_load_state(&state, &json, d.text, &err);
        CHECK_MSG(loaded == !cases[i].error[0] && strstr(err.text, cases[i].error), "%s: %s", text,
                  err.text);
        if (loaded) CHECK_MSG(memcmp(&state, &expected, sizeof state) == 0, "%s", text);
        if (loaded) json_free(&json);
        else CHECK(clear_line(&err, d.text));
    }
    temp_remove(&d);
}

// A count that could overflow when a run adds to it is refused by name.
TEST(counts_that_would_overflow) {
    static const char *const keys[] = {
        "step", "tokens", "samples", "adam_steps", "skipped", "batch_tokens", "next_batch_tokens",
        "norm_test_waited",
    };
    TempDir d = temp_make();
    for (size_t i = 0; i < 2 * sizeof keys / sizeof *keys; i++) {
        const char *key = keys[i / 2];
        const char *value = i % 2 ? "9223372036854775807" : "1000000000000000000";
        char text[600] = "{", quoted[40];
        TrainState state;
        Json json;
        Error err = { "" };
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            snprintf(text + strlen(text), 60, "\"%s\":%s,", keys[k], k == i / 2 ? value : "1");
        strcat(text, "\"seed\":6,\"seconds\":7,\"options\":{}}");
        put_text(d.text, "state.json", text);
        bool loaded = checkpoint_load_state(&state, &json, d.text, &err);
        snprintf(quoted, sizeof quoted, "\"%s\" is %s", key, value);
        CHECK_MSG(loaded == (i % 2 == 0), "%s: %s", text, err.text);
        if (loaded) json_free(&json);
        else CHECK_MSG(strstr(err.text, quoted) && clear_line(&err, d.text), "%s", err.text);
    }
    temp_remove(&d);
}

// An optimizer.safetensors in which a name or a shape is another.
TEST(strange_moments) {
    static const struct { const char *from, *to, *error; } cases[] = {
        { "exp_avg_sq.transformer.wpe", "exp_avg_sq_transformer.wpe",
          "tensor \"exp_avg_sq.wpe.weight\" is missing" },
        { "exp_avg.transformer.h.0.ln_1.weight", "exp_avg.transformer.h.0.ln_2.weight",
          "the key \"exp_avg.transformer.h.0.ln_2.weight\" appears a second time" },
        { "exp_avg.transformer.wte", "transformer.exp_avg.wte",
          "tensor \"exp_avg.wte.weight\" is missing" },
        { "\"shape\":[3,2]", "\"shape\":[2,3]", "is (2,3), but config.json needs (3,2)" },
        { "exp_avg.transformer.ln_f.bias", "outer_momentum.1234.ln_f.bias",
          "tensor \"exp_avg.ln_f.bias\" is missing" },
    };
    TempDir d = temp_make();
    Model m = model_make(1, 1, 2, 3, 2);
    TensorFile f;
    Error err = { "" };
    CHECK(save(d.text, &m, 1, 0, &err));
    Path dir = in(d.text, "latest");
    FileMap whole = slurp(dir.text, "optimizer.safetensors");
    char *copy = malloc(whole.n);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memcpy(copy, whole.bytes, whole.n);
        char *at = strstr(copy + 8, cases[i].from);      // the header ends before the first NUL
        if (!at || strlen(cases[i].to) != strlen(cases[i].from)) die("case %zu is none", i);
        memcpy(at, cases[i].to, strlen(cases[i].to));
        put(dir.text, "optimizer.safetensors", copy, whole.n);
        bool open = tensor_file_open(&f, dir.text, FILE_OPTIMIZER, 0, &m.config, &err);
        CHECK_MSG(!open && strstr(err.text, cases[i].error) && clear_line(&err, dir.text),
                  "case %zu: %s", i, err.text);
    }
    FileMap weights = slurp(dir.text, "model.safetensors");
    put(dir.text, "optimizer.safetensors", weights.bytes, weights.n);
    CHECK(!tensor_file_open(&f, dir.text, FILE_OPTIMIZER, 0, &m.config, &err));
    CHECK_MSG(strstr(err.text, "\"exp_avg.wte.weight\" is missing"), "%s", err.text);
    free((void *)(uintptr_t)weights.bytes);
    free((void *)(uintptr_t)whole.bytes);
    free(copy);
    free(m.params);
    temp_remove(&d);
}

TEST(every_cut_of_every_file_is_refused) {
    static const char *const names[] = {
        "model.safetensors", "optimizer.safetensors", "config.json", "state.json"
    };
    TempDir d = temp_make();
    Model m = model_make(1, 1, 1, 2, 1);
    TrainState state;
    Error err = { "" };
    CHECK_MSG(save(d.text, &m, 3, 0, &err), "%s", err.text);
    Path dir = in(d.text, "step_00000003");
    for (int f = 0; f < 4; f++) {
        FileMap whole = slurp(dir.text, names[f]);
        size_t last = whole.n - (whole.bytes[whole.n - 1] == '\n');      // the newline may go
        Path path = in(dir.text, names[f]);
        for (size_t cut = last; cut-- > 0; ) {
            if (truncate(path.text, (off_t)cut) != 0) die("%s: %s", path.text, strerror(errno));
            bool loaded = load(&m, &state, dir.text, &err);
            CHECK_MSG(!loaded, "%s cut at %zu loads", names[f], cut);
            CHECK_MSG(loaded || clear_line(&err, names[f]), "%zu: %s", cut, err.text);
        }
        unlink(path.text);
        CHECK(!load(&m, &state, dir.text, &err) && strstr(err.text, dir.text));
        put(dir.text, names[f], whole.bytes, whole.n);
        CHECK_MSG(load(&m, &state, dir.text, &err), "%s", err.text);
        free((void *)(uintptr_t)whole.bytes);
    }
    free(m.params);
    temp_remove(&d);
}

// ---------------------------------------------------------------------------------------------
// What others write

// A model.safetensors with the tensors that the run of a model would have, and a change to it.
typedef struct {
    const char *prefix;          // before every name
    const char *dtype;           // "F32", "BF16", "F16"
    const char *without;         // this tensor is left out
    const char *wider;           // this one gets another column
    const char *extra;           // the name of one more tensor, F32, with these two dimensions
    size_t extra_dims[2];
    const float *extra_data;     // NULL: zeros
    bool linear;                 // the blocks' matrices are transposed, as nanoGPT keeps them
    bool no_biases;              // all of them are left out
    int part;                    // 1: the odd tensors, 2: the even ones; 0: all
    const char *file;            // NULL: model.safetensors
} Variant;

static void put_variant(const char *dir, const Model *m, const Variant *v) {
    char *header = NULL, *data = NULL;
    size_t n_header, n_data, at = 0;
    FILE *h = open_memstream(&header, &n_header), *f = open_memstream(&data, &n_data);
    size_t size = strcmp(v->dtype, "F32") == 0 ? 4 : 2;
    const char *comma = "{";
    for (int i = 0; i < gpt2_n_tensors(&m->config); i++) {
        Tensor t = gpt2_tensor(&m->config, i);
        bool matrix = tensor_kinds[t.kind].rows != DIM_1;
        bool turned = v->linear && matrix && t.layer >= 0;
        if ((v->without && strcmp(t.key, v->without) == 0) || (v->part && i % 2 == v->part - 1)
            || (v->no_biases && t.init == INIT_ZEROS)) continue;
        if (v->wider && strcmp(t.key, v->wider) == 0) t.count += t.rows, t.cols++;
        fprintf(h, "%s\"%s%s\":{\"dtype\":\"%s\",\"shape\":[", comma, v->prefix, t.key, v->dtype);
        if (matrix) fprintf(h, "%zu,", turned ? t.cols : t.rows);
        fprintf(h, "%zu],\"data_offsets\":[%zu,%zu]}", turned ? t.rows : t.cols, at,
                at + t.count * size);
        at += t.count * size;
        for (size_t j = 0; j < t.count; j++) {           // 1.0f is 0x3F800000, 0x3F80 and 0x3C00
            size_t k = t.offset + (turned ? j % t.rows * t.cols + j / t.rows : j);
            float x = k < m->n ? m->params[k] : 0.0f;
            uint32_t bits;
            memcpy(&bits, &x, 4);
            uint16_t half = (uint16_t)(v->dtype[0] == 'B' ? bits >> 16 : 0x3C00);
            if (size == 4) fwrite(&bits, 4, 1, f);
            else fwrite(&half, 2, 1, f);
        }
        comma = ",";
    }
    if (v->extra) {
        size_t count = v->extra_dims[0] * v->extra_dims[1];
        fprintf(h, ",\"%s\":{\"dtype\":\"F32\",\"shape\":[%zu,%zu],\"data_offsets\":[%zu,%zu]}",
                v->extra, v->extra_dims[0], v->extra_dims[1], at, at + 4*count);
        for (size_t j = 0; j < count; j++) {
            float zero = 0.0f;
            fwrite(v->extra_data ? v->extra_data + j : &zero, 4, 1, f);
        }
    }
    fprintf(h, "}");
    fclose(h);
    fclose(f);
    uint64_t length = n_header;
    unsigned char *whole = malloc(8 + n_header + n_data);
    memcpy(whole, &length, 8);
    memcpy(whole + 8, header, n_header);
    memcpy(whole + 8 + n_header, data, n_data);
    put(dir, v->file ? v->file : "model.safetensors", whole, 8 + n_header + n_data);
    free(header);
    free(data);
    free(whole);
}

#define SIZES "\"n_layer\":2,\"n_head\":2,\"n_embd\":4,\"vocab_size\":5,\"n_positions\":3"

// What remains of a float in a file of that dtype. The bits are computed before any condition: GCC
// 12 takes `if (c) x = the float with the upper bits of x;` for no change at all.
static float value_as(const char *dtype, float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint32_t mask = dtype[0] == 'B' ? 0xFFFF0000u : 0xFFFFFFFFu;
    return dtype[1] == '1' ? 1.0f : float_from_bits(bits & mask);
}

static bool is_bias(const Config *c, size_t place) {
    int i = gpt2_n_tensors(c) - 1;
    while (gpt2_tensor(c, i).offset > place) i--;
    return gpt2_tensor(c, i).init == INIT_ZEROS;
}

// Writes config.json and the variant, loads both, and returns the error or "".
static Error variant_error(const char *dir, Model *m, const Variant *v) {
    Error err = { "" };
    Config c;
    put_text(dir, "config.json", "{\"model_type\":\"gpt2\"," SIZES "}");
    put_variant(dir, m, v);
    float *flat = malloc(m->n * sizeof *flat);
    for (size_t i = 0; i < m->n; i++) flat[i] = -1.0f;
    if (checkpoint_config(&c, dir, &err) && load_params(flat, &c, dir, &err)) {
        CHECK(memcmp(&c, &m->config, sizeof c) == 0);
        for (size_t i = 0; i < m->n; i++) {
            float expected = value_as(v->dtype, m->params[i]);
            if (v->no_biases && is_bias(&c, i)) expected = 0.0f;
            CHECK_MSG(flat[i] == expected, "%s: %zu is %g, not %g", v->dtype, i, flat[i], expected);
        }
    }
    free(flat);
    return err;
}

TEST(layouts_of_others) {
    TempDir d = temp_make();
    Model m = model_make(2, 2, 4, 5, 3);
    model_fill(&m, 1);
    float other[20];
    memcpy(other, m.params, sizeof other);
    other[19] += 1.0f;
    const Variant cases[] = {
        { .prefix = "", .dtype = "F32" },
        { .prefix = "transformer.", .dtype = "F32" },
        { .prefix = "", .dtype = "BF16" },
        { .prefix = "transformer.", .dtype = "F16" },
        { .prefix = "", .dtype = "F32", .extra = "h.0.attn.bias", .extra_dims = { 3, 3 } },
        { .prefix = "transformer.", .dtype = "F32", .extra = "transformer.h.1.attn.masked_bias",
          .extra_dims = { 1, 1 } },
        { "transformer.", "F32", .extra = "lm_head.weight", .extra_dims = { 5, 4 },
          .extra_data = m.params },
        { "", "F32", .extra = "lm_head.weight", .extra_dims = { 5, 4 }, .extra_data = m.params },
        { "", "F32", .without = "wte.weight", .extra = "lm_head.weight", .extra_dims = { 5, 4 },
          .extra_data = m.params },
        { "_orig_mod.transformer.", "F32", .without = "wte.weight",
          .extra = "module._orig_mod.lm_head.weight", .extra_dims = { 5, 4 },
          .extra_data = m.params },
        { "_orig_mod.transformer.", "F32", .linear = true, .extra = "_orig_mod.lm_head.weight",
          .extra_dims = { 5, 4 }, .extra_data = m.params },
        { "transformer.", "BF16", .linear = true, .no_biases = true },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Error err = variant_error(d.text, &m, &cases[i]);
        CHECK_MSG(!err.text[0], "case %zu: %s", i, err.text);
    }
    const struct { Variant v; const char *error; } refused[] = {
        { { "", "F32", .without = "h.1.ln_2.bias" },
          "model.safetensors: tensor \"h.1.ln_2.bias\" is missing" },
        { { .prefix = "gpt.", .dtype = "F32" },
          "\"wte.weight\" is missing; the file has \"gpt.wte.weight\"" },
        { { "transformer.", "F32", .wider = "h.0.mlp.c_fc.weight" },
          "\"transformer.h.0.mlp.c_fc.weight\" is (4,17), but config.json needs (4,16)" },
        { { "", "F32", .wider = "h.0.mlp.c_fc.weight", .linear = true },
          "\"h.0.mlp.c_fc.weight\" is (17,4), but config.json needs (16,4)" },
        { { "", "F32", .wider = "ln_f.bias" },
          "tensor \"ln_f.bias\" is (5), but config.json needs (4)" },
        { { "", "F32", .extra = "h.2.ln_1.bias", .extra_dims = { 1, 4 } },
          "tensor \"h.2.ln_1.bias\" is not part of the GPT-2 that config.json describes" },
        { { "", "F32", .extra = "score.weight", .extra_dims = { 1, 4 } },
          "\"score.weight\" is not" },
        { { "", "F32", .extra = "transformer.wpe.weight", .extra_dims = { 3, 4 } },
          "two tensors are called \"wpe.weight\"" },
        { { "", "F32", .extra = "lm_head.weight", .extra_dims = { 5, 4 }, .extra_data = other },
          "lm_head.weight differs from wte.weight" },
        { { "", "F32", .extra = "lm_head.weight", .extra_dims = { 4, 4 }, .extra_data = m.params },
          "lm_head.weight differs from wte.weight" },
        { { "", "F32", .without = "wte.weight", .extra = "lm_head.weight", .extra_dims = { 4, 4 } },
          "tensor \"lm_head.weight\" is (4,4), but config.json needs (5,4)" },
        { { .prefix = "", .dtype = "U16" },
          "tensor \"wte.weight\" is U16; expected F32, BF16 or F16" },
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        Error err = variant_error(d.text, &m, &refused[i].v);
        bool clear = strstr(err.text, refused[i].error) && clear_line(&err, d.text);
        CHECK_MSG(clear, "case %zu: \"%s\"", i, err.text);
    }
    free(m.params);
    temp_remove(&d);
}

TEST(weights_in_shards) {
    TempDir d = temp_make();
    Model m = model_make(2, 2, 4, 5, 3);
    model_fill(&m, 1);
    const Variant parts[] = {
        { "", "F32", .part = 2, .file = "model-00001-of-00002.safetensors" },
        { "_orig_mod.", "F32", .part = 1, .file = "model-00002-of-00002.safetensors",
          .extra = "lm_head.weight", .extra_dims = { 5, 4 }, .extra_data = m.params },
    };
    for (int i = 0; i < 2; i++) put_variant(d.text, &m, &parts[i]);
    put_text(d.text, "config.json", "{\"model_type\":\"gpt2\"," SIZES "}");
    #define INDEX(shards) "{\"metadata\":{},\"weight_map\":{" shards "}}"
    #define BOTH "\"a\":\"model-00001-of-00002.safetensors\"," \
                 "\"b\":\"model-00002-of-00002.safetensors\"," \
                 "\"c\":\"model-00001-of-00002.safetensors\""
    static const struct { const char *index, *error; } cases[] = {
        { INDEX(BOTH), "" },
        { INDEX("\"b\":\"model-00002-of-00002.safetensors\""), "\"h.0.ln_1.weight\" is missing" },
        { INDEX(BOTH ",\"d\":\"gone\""), "gone: cannot open it: No such file" },
        { INDEX(BOTH ",\"d\":\"../x\""), "index.json: byte 150: not the name of a file in this" },
        { INDEX(BOTH ",\"d\":7"), "index.json: byte 150: not the name" },
        { "[]", "index.json: \"weight_map\" is missing" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Path path;
        Config c;
        Error err = { "" };
        put_text(d.text, WEIGHTS_INDEX, cases[i].index);
        float flat[1000] = { 0 };
        bool good = checkpoint_find(&path, in(d.text, parts[i % 2].file).text, &err)
                 && checkpoint_config(&c, path.text, &err)
                 && load_params(flat, &c, path.text, &err)
                 && memcmp(flat, m.params, m.n * sizeof *flat) == 0;
        bool right = good == !cases[i].error[0] && strstr(err.text, cases[i].error);
        CHECK_MSG(right, "%zu: %s", i, err.text);
    }
    free(m.params);
    temp_remove(&d);
}

TEST(configs) {
    static const struct { const char *text, *error; } cases[] = {
        { "{\"model_type\":\"gpt2\"," SIZES "}", "" },
        { "{\"model_type\":\"gpt2\"," SIZES ",\"n_inner\":16,\"layer_norm_epsilon\":0.00001,"
          "\"activation_function\":\"gelu_pytorch_tanh\",\"scale_attn_weights\":true}", "" },
        { "{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_head\":2,\"n_embd\":4,\"vocab_size\":5,"
          "\"block_size\":3,\"bias\":true,\"dropout\":0.1}", "" },
        { "{\"model_type\":\"llama\"," SIZES "}", "a model of type \"llama\"; only gpt2 is" },
        { "{" SIZES "}", "\"model_type\" is missing" },
        { "{\"model_type\":\"gpt2\"," SIZES ",\"activation_function\":\"relu\"}",
          "\"activation_function\" is relu; only gelu_new is supported" },
        { "{\"model_type\":\"gpt2\"," SIZES ",\"activation_function\":7}",
          "\"activation_function\" is a number" },
        { "{\"model_type\":\"gpt2\"," SIZES ",\"layer_norm_epsilon\":1e-6}", "must be 1e-5" },
        { "{\"model_type\":\"gpt2\"," SIZES ",\"n_inner\":17}", "\"n_inner\" must be null or 4 *" },
        { "{\"model_type\":\"gpt2\"," SIZES ",\"scale_attn_by_inverse_layer_idx\":true}",
          "\"scale_attn_by_inverse_layer_idx\" must be false" },
        { "{\"model_type\":\"gpt2\"," SIZES ",\"scale_attn_weights\":false}", "must be true" },
        { "{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_head\":3,\"n_embd\":4,\"vocab_size\":5,"
          "\"n_positions\":3}", "3 heads (n_head) do not divide 4 channels (n_embd)" },
        { "{\"model_type\":\"gpt2\",\"n_layer\":0,\"n_head\":3,\"n_embd\":4,\"vocab_size\":5,"
          "\"n_positions\":3}", "\"n_layer\" is 0; a whole number from 1 to 16384 was expected" },
        { "{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_head\":2,\"n_embd\":4,\"vocab_size\":5}",
          "\"n_positions\" is missing" },
        { "{\"model_type\":\"gpt2\",\"n_layer\":3,\"n_head\":2,\"n_embd\":4,\"vocab_size\":5,"
          "\"n_positions\":3}", "tensor \"h.2.ln_1.weight\" is missing" },
        { "{\"model_type\":\"gpt2\",\"n_layer\":1,\"n_head\":2,\"n_embd\":4,\"vocab_size\":5,"
          "\"n_positions\":3}", "tensor \"h.1.ln_1.weight\" is not part of the GPT-2 that" },
        { "{\"model_type\":\"gpt2\",\"n_layer\":16384,\"n_head\":1,\"n_embd\":1048576,"
          "\"vocab_size\":5,\"n_positions\":3}", "is (5,4), but config.json needs (5,1048576)" },
        { "[]", "config.json: not a JSON object" },
        { "<html>", "config.json: byte 0: this is a web page (HTML)" },
        { "", "config.json: the file is empty" },
        { "{\"a\":1,\"a\":1}", "config.json: byte 7: the key \"a\" appears a second time" },
    };
    TempDir d = temp_make();
    Model m = model_make(2, 2, 4, 5, 3);
    model_fill(&m, 1);
    const Variant plain = { "", "F32", .file = "model.safetensors" };
    put_variant(d.text, &m, &plain);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Config c;
        Error err = { "" };
        put_text(d.text, "config.json", cases[i].text);
        bool good = checkpoint_config(&c, d.text, &err);
        CHECK_MSG(good == !cases[i].error[0], "%s: %s", cases[i].text, err.text);
        CHECK_MSG(strstr(err.text, cases[i].error), "%s: %s", cases[i].text, err.text);
        CHECK_MSG(good || clear_line(&err, d.text), "%s: %s", cases[i].text, err.text);
    }
    free(m.params);
    temp_remove(&d);
}

TEST(places_without_a_checkpoint) {
    TempDir d = temp_make();
    Path path;
    Config c;
    Error err = { "" };
    CHECK(!checkpoint_find(&path, d.text, &err) && strstr(err.text, "neither config.json nor"));
    CHECK(!checkpoint_find(&path, in(d.text, "x").text, &err) && strstr(err.text, "No such file"));
    put_text(d.text, "page.bin", "<!DOCTYPE html><title>404</title>");
    CHECK(checkpoint_find(&path, in(d.text, "page.bin").text, &err));
    CHECK(!checkpoint_config(&c, path.text, &err) && strstr(err.text, "this is a web page (HTML)"));
    put_text(d.text, "config.json", "{\"model_type\":\"gpt2\"," SIZES "}");
    CHECK(checkpoint_find(&path, d.text, &err) && strcmp(path.text, d.text) == 0);
    CHECK(!checkpoint_config(&c, d.text, &err) && strstr(err.text, "model.safetensors is missing"));
    static const char *const pickles[] = { "PK\x03\x04...", "\x80\x02...", "\x80\x04..." };
    for (int i = 0; i < 3; i++) {                        // named itself, and by its directory
        put_text(d.text, "ckpt.pt", pickles[i]);
        Path named = in(d.text, i ? "ckpt.pt" : ".");
        CHECK(checkpoint_find(&path, named.text, &err) && !checkpoint_config(&c, path.text, &err));
        CHECK_MSG(strstr(err.text, "ckpt.pt: a PyTorch pickle") && strstr(err.text, "import trans"),
                  "%s", err.text);
    }
    unlink(in(d.text, "config.json").text);
    CHECK(!checkpoint_find(&path, d.text, &err) && strstr(err.text, "torch.load('ckpt.pt', 'cpu'"));
    put_text(d.text, "config.json", "{\"model_type\":\"gpt2\"," SIZES "}");
    unlink(in(d.text, "ckpt.pt").text);
    put_text(d.text, "model.safetensors", "<html>");
    CHECK(!checkpoint_config(&c, d.text, &err) && strstr(err.text, "this is a web page (HTML)"));
    put_text(d.text, "model.safetensors", "");
    CHECK(!checkpoint_config(&c, d.text, &err) && strstr(err.text, "the file is empty"));
    unlink(in(d.text, "model.safetensors").text);
    mkdir(in(d.text, "model.safetensors").text, 0777);
    CHECK(!checkpoint_config(&c, d.text, &err) && strstr(err.text, "not a file"));
    unlink(in(d.text, "config.json").text);
    CHECK(symlink("gone", in(d.text, "latest").text) == 0);
    CHECK(!checkpoint_find(&path, d.text, &err) && clear_line(&err, d.text));
    temp_remove(&d);
}

TEST(weights_that_are_not_finite_are_named) {
    TempDir d = temp_make();
    Model m = model_make(2, 2, 4, 5, 3);
    Error err = { "" };
    model_fill(&m, 1);
    m.params[tensor_offset(&m.config, FC_B, 1) + 3] = NAN;       // the first of two is named
    m.params[tensor_offset(&m.config, LNF_GAIN, 0)] = -INFINITY;
    m.exp_avg[0] = NAN;                                  // moments may be what they like
    Checkpoint k = checkpoint_of(&m, 1);
    CHECK(checkpoint_save(d.text, &k, 0, &err));
    Path log = in(d.text, "stderr");
    int before = dup(2), fd = open(log.text, O_WRONLY | O_CREAT, 0666);
    dup2(fd, 2);
    Path latest = in(d.text, "latest");
    bool loaded = load_params(m.params, &m.config, latest.text, &err)
               && load_moments(&m, latest.text, &err);
    dup2(before, 2);
    close(fd);
    close(before);
    CHECK(loaded);
    FileMap said = slurp(d.text, "stderr");
    char text[600] = "";
    memcpy(text, said.bytes, said.n < sizeof text ? said.n : sizeof text - 1);
    CHECK_MSG(strstr(text, "test_checkpoint: warning: ") == text
              && strstr(text, "latest/model.safetensors: \"h.1.mlp.c_fc.bias\" holds NaN or "
                              "infinite weights\n") && strchr(text, '\n') == text + said.n - 1,
              "%s", text);
    free((void *)(uintptr_t)said.bytes);
    free(m.params);
    temp_remove(&d);
}

// ---------------------------------------------------------------------------------------------
// The run's directory

// The names in a directory, sorted, with spaces between.
static const char *names_in(const char *dir) {
    static char text[2000];
    char names[32][64];
    int n = 0;
    DIR *handle = opendir(dir);
    for (struct dirent *e; handle && n < 32 && (e = readdir(handle)) != NULL; )
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            snprintf(names[n++], sizeof names[0], "%.63s", e->d_name);
    if (handle) closedir(handle);
    qsort(names, (size_t)n, sizeof names[0], (int (*)(const void *, const void *))strcmp);
    text[0] = '\0';
    for (int i = 0; i < n; i++) {
        strncat(text, names[i], 64);
        if (i + 1 < n) strncat(text, " ", 2);
    }
    return text;
}

TEST(keeps_as_many_as_asked) {
    TempDir d = temp_make();
    Model m = model_make(1, 1, 2, 3, 2);
    Error err = { "" };
    for (int64_t step = 1; step <= 3; step++) CHECK(save(d.text, &m, step, 0, &err));
    CHECK_MSG(strcmp(names_in(d.text), "latest step_00000001 step_00000002 step_00000003") == 0,
              "%s", names_in(d.text));
    mkdir(in(d.text, "step_x").text, 0777);              // not ours: stays
    CHECK(save(d.text, &m, 123456789012, 2, &err));
    CHECK_MSG(strcmp(names_in(d.text), "latest step_00000003 step_123456789012 step_x") == 0, "%s",
              names_in(d.text));
    // Going back to step 3 and on from there: the later one is of another past, and is left alone.
    unlink(in(d.text, "latest").text);
    CHECK(symlink("step_00000003", in(d.text, "latest").text) == 0);
    CHECK(save(d.text, &m, 4, 1, &err));
    CHECK_MSG(strcmp(names_in(d.text), "latest step_00000004 step_123456789012 step_x") == 0, "%s",
              names_in(d.text));
    CHECK(save(d.text, &m, 123456789012, 1, &err));      // until it is reached
    CHECK_MSG(strcmp(names_in(d.text), "latest step_123456789012 step_x") == 0, "%s",
              names_in(d.text));
    CHECK(checkpoint_clear(d.text, &err) && !checkpoint_exists(d.text));
    CHECK_MSG(strcmp(names_in(d.text), "step_x") == 0, "%s", names_in(d.text));
    free(m.params);
    temp_remove(&d);
}

TEST(keeps_the_best_beside_the_newest) {
    TempDir d = temp_make();
    Model m = model_make(1, 1, 2, 3, 2);
    Error err = { "" };
    Path path, best = in(d.text, "best");
    const double losses[] = { NAN, 3.0, 2.0, 2.0, 1e9, 2.5, NAN };
    for (int step = 1; step <= 7; step++) {
        Checkpoint k = checkpoint_of(&m, step);
        k.state.val_loss = losses[step - 1];
        model_fill(&m, step);
        CHECK_MSG(checkpoint_save(d.text, &k, 2, &err), "%s", err.text);
    }
    const char *kept = "best latest step_00000003 step_00000006 step_00000007";
    CHECK_MSG(strcmp(names_in(d.text), kept) == 0, "%s", names_in(d.text));
    CHECK(checkpoint_find(&path, best.text, &err) && strstr(path.text, "/step_00000003"));
    CHECK(unlink(best.text) == 0);                       // a copy may lose the link
    CHECK(checkpoint_find(&path, best.text, &err) && strstr(path.text, "/step_00000003"));
    Checkpoint k = checkpoint_of(&m, 8);
    k.state.val_loss = 1.0;
    CHECK(checkpoint_save(d.text, &k, 2, &err));         // now the best is among the newest
    kept = "best latest step_00000007 step_00000008";
    CHECK(checkpoint_find(&path, best.text, &err) && strstr(path.text, "/step_00000008"));
    CHECK_MSG(strcmp(names_in(d.text), kept) == 0, "%s", names_in(d.text));
    put_text(d.text, "step_00000008/state.json", "{");   // a damaged one is not the best
    CHECK(save(d.text, &m, 9, 1, &err));
    CHECK_MSG(strcmp(names_in(d.text), "latest step_00000009") == 0, "%s", names_in(d.text));
    free(m.params);
    temp_remove(&d);
}

TEST(finds_the_checkpoint_of_a_step) {
    TempDir d = temp_make();
    Model m = model_make(1, 1, 2, 3, 2);
    Error err = { "" };
    Path found;
    CHECK(!checkpoint_of_step(&found, d.text, 5, &err));
    CHECK_MSG(strstr(err.text, "no checkpoint of step 5; there are: none"), "%s", err.text);
    for (int i = 0; i < 2; i++) CHECK(save(d.text, &m, 20, 0, &err));    // the second: step_20.1
    CHECK(save(d.text, &m, 100, 0, &err));
    CHECK_MSG(checkpoint_of_step(&found, d.text, 20, &err), "%s", err.text);
    CHECK_MSG(strstr(found.text, "/step_00000020.1"), "%s", found.text);
    CHECK(!checkpoint_of_step(&found, d.text, 50, &err));
    CHECK_MSG(strstr(err.text, "no checkpoint of step 50; there are: 20, 100"), "%s", err.text);
    free(m.params);
    temp_remove(&d);
}

// A file in a checkpoint's directory stands for the directory.
TEST(a_checkpoint_named_by_its_file) {
    TempDir d = temp_make();
    Model m = model_make(1, 1, 2, 3, 2);
    Path directory, file;
    Config c;
    Error err = { "" };
    CHECK(save(d.text, &m, 1, 0, &err));
    CHECK(checkpoint_find(&directory, d.text, &err));
    CHECK(checkpoint_find(&file, in(d.text, "latest/model.safetensors").text, &err));
    CHECK_MSG(strcmp(file.text, directory.text) == 0, "%s", file.text);
    CHECK(checkpoint_find(&file, in(d.text, "step_00000001/config.json").text, &err));
    CHECK_MSG(strcmp(file.text, directory.text) == 0, "%s", file.text);
    CHECK(checkpoint_config(&c, file.text, &err) && c.C == 2);
    CHECK(checkpoint_find(&file, in(d.text, "latest/optimizer.safetensors").text, &err));
    CHECK(!checkpoint_config(&c, file.text, &err) && strstr(err.text, "named by its directory"));
    CHECK(!checkpoint_find(&file, in(d.text, "model.safetensors").text, &err));
    free(m.params);
    temp_remove(&d);
}

TEST(the_same_step_again) {
    TempDir d = temp_make();
    Model m = model_make(1, 1, 2, 3, 2);
    Error err = { "" };
    for (int i = 0; i < 4; i++) {                        // with keep 0 too: it is replaced
        CHECK_MSG(save(d.text, &m, 5, 0, &err), "%s", err.text);
        CHECK_MSG(latest_step(d.text, &m, &err) == 5, "%s", err.text);
        CHECK_MSG(strcmp(names_in(d.text), i % 2 ? "latest step_00000005.1"
                                                 : "latest step_00000005") == 0, "%s",
                  names_in(d.text));
    }
    CHECK(save(d.text, &m, 6, 1, &err));
    CHECK_MSG(strcmp(names_in(d.text), "latest step_00000006") == 0, "%s", names_in(d.text));
    free(m.params);
    temp_remove(&d);
}

TEST(what_a_crash_left_is_removed) {
    TempDir d = temp_make();
    Model m = model_make(1, 1, 2, 3, 2);
    Error err = { "" };
    CHECK(save(d.text, &m, 1, 0, &err));
    mkdir(in(d.text, ".tmp-step_00000002").text, 0777);
    mkdir(in(d.text, ".tmp-step_00000002/deeper").text, 0777);
    put_text(d.text, ".tmp-step_00000002/deeper/model.safetensors", "half");
    CHECK(symlink("nowhere", in(d.text, ".tmp-latest").text) == 0);
    CHECK(symlink("/", in(d.text, ".tmp-step_00000002/root").text) == 0);    // must not be followed
    CHECK_MSG(save(d.text, &m, 2, 0, &err), "%s", err.text);     // even without checkpoint_begin
    mkdir(in(d.text, ".tmp-step_00000009").text, 0777);
    CHECK_MSG(checkpoint_begin(d.text, &err), "%s", err.text);
    CHECK_MSG(strcmp(names_in(d.text), "latest step_00000001 step_00000002") == 0, "%s",
              names_in(d.text));
    free(m.params);
    temp_remove(&d);
}

TEST(only_our_temporaries_are_removed) {
    static const char *const theirs[] = {
        ".tmp-notes", ".tmp-step_", ".tmp-step_3", ".tmp-step_0000000x", ".tmp-old2", ".tmp-",
    };
    TempDir d = temp_make();
    Error err = { "" };
    for (size_t i = 0; i < sizeof theirs / sizeof *theirs; i++)
        mkdir(in(d.text, theirs[i]).text, 0777);
    mkdir(in(d.text, ".tmp-old").text, 0777);
    mkdir(in(d.text, ".tmp-step_00000004.1").text, 0777);
    put_text(d.text, ".tmp-step_1234567890", "x");
    CHECK_MSG(checkpoint_begin(d.text, &err), "%s", err.text);
    for (size_t i = 0; i < sizeof theirs / sizeof *theirs; i++)
        CHECK_MSG(there(d.text, theirs[i]), "%s is gone", theirs[i]);
    CHECK(!there(d.text, ".tmp-old") && !there(d.text, ".tmp-step_00000004.1")
          && !there(d.text, ".tmp-step_1234567890"));
    temp_remove(&d);
}

// A copy of a run has lost OUT/latest (rsync without -l): the newest checkpoint is the latest.
TEST(a_copy_without_the_link) {
    TempDir d = temp_make();
    Model m = model_make(1, 1, 2, 3, 2);
    Path path, latest = in(d.text, "latest");
    Error err = { "" };
    for (int64_t step = 8; step <= 10; step++) CHECK(save(d.text, &m, step, 0, &err));
    unlink(latest.text);
    CHECK(checkpoint_find(&path, d.text, &err));
    CHECK_MSG(strstr(path.text, "/step_00000010"), "%s", path.text);
    CHECK(checkpoint_begin(d.text, &err) && latest_step(d.text, &m, &err) == 10);
    CHECK(strcmp(latest_name(d.text).text, "step_00000010") == 0);
    unlink(latest.text);
    CHECK(symlink("step_00000007", latest.text) == 0);   // to a checkpoint that was not copied
    CHECK(checkpoint_find(&path, d.text, &err) && strstr(path.text, "/step_00000010"));
    CHECK(checkpoint_begin(d.text, &err) && latest_step(d.text, &m, &err) == 10);
    CHECK(save(d.text, &m, 11, 1, &err));
    CHECK_MSG(strcmp(names_in(d.text), "latest step_00000011") == 0, "%s", names_in(d.text));
    free(m.params);
    temp_remove(&d);
}

// A copy has made a directory of OUT/latest (cp -L). It stays, under another name.
TEST(a_copy_that_followed_the_link) {
    static const char *const names[] = {
        "latest step_00000003", "latest step_00000003 step_00000003.1",
    };
    TempDir d = temp_make();
    Model m = model_make(1, 1, 2, 3, 2);
    Path latest = in(d.text, "latest"), step = in(d.text, "step_00000003");
    Error err = { "" };
    int before = dup(2), fd = open("/dev/null", O_WRONLY);       // it warns
    dup2(fd, 2);
    for (int twin = 0; twin < 2; twin++) {
        CHECK(checkpoint_clear(d.text, &err) && save(d.text, &m, 3, 0, &err));
        CHECK(unlink(latest.text) == 0 && rename(step.text, latest.text) == 0);
        if (twin) mkdir(step.text, 0777);
        CHECK_MSG(checkpoint_begin(d.text, &err), "%s", err.text);
        CHECK_MSG(strcmp(names_in(d.text), names[twin]) == 0, "%s", names_in(d.text));
        CHECK_MSG(latest_step(d.text, &m, &err) == 3, "%s", err.text);
    }
    dup2(before, 2);
    close(fd);
    close(before);
    CHECK(unlink(latest.text) == 0);
    CHECK(rename(in(d.text, "step_00000003.1").text, latest.text) == 0);
    mkdir(in(d.text, "step_00000003.1").text, 0777);             // no third name
    CHECK(!checkpoint_begin(d.text, &err) && strstr(err.text, "move one of them away"));
    CHECK(there(d.text, "latest/state.json"));
    free(m.params);
    temp_remove(&d);
}

// Where there are no links, `latest` is a file. Either system goes on with what the other wrote.
TEST(a_latest_on_a_disk_without_links) {
    TempDir d = temp_make();
    Model m = model_make(1, 1, 2, 3, 2);
    Path path, latest = in(d.text, "latest");
    Error err = { "" };
    links_refused = 1;
    CHECK_MSG(checkpoint_begin(d.text, &err) && names_in(d.text)[0] == '\0', "%s", err.text);
    for (int64_t step = 1; step <= 3; step++) CHECK(save(d.text, &m, step, 2, &err));
    FileMap file = slurp(d.text, "latest");
    CHECK(file.n == 14 && memcmp(file.bytes, "step_00000003\n", 14) == 0);
    free((void *)(uintptr_t)file.bytes);
    CHECK_MSG(strcmp(names_in(d.text), "latest step_00000002 step_00000003") == 0, "%s",
              names_in(d.text));
    CHECK(checkpoint_begin(d.text, &err) && latest_step(d.text, &m, &err) == 3);
    CHECK(checkpoint_find(&path, latest.text, &err) && strstr(path.text, "/step_00000003"));
    CHECK(checkpoint_clear(d.text, &err) && names_in(d.text)[0] == '\0');
    for (int64_t step = 1; step <= 2; step++) CHECK(save(d.text, &m, step, 0, &err));
    put_text(d.text, "latest", "step_00000001\r\n");     // an editor's end of line
    CHECK(latest_step(d.text, &m, &err) == 1);
    links_refused = 0;
    CHECK(latest_step(d.text, &m, &err) == 1 && checkpoint_begin(d.text, &err));
    char target[40] = "";
    CHECK(readlink(latest.text, target, sizeof target - 1) == 13);
    CHECK_MSG(strcmp(target, "step_00000001") == 0, "%s", target);
    CHECK(unlink(latest.text) == 0);
    put_text(d.text, "latest", "step_00000007");         // a checkpoint that was not copied
    CHECK(latest_step(d.text, &m, &err) == 2 && checkpoint_begin(d.text, &err));
    CHECK(save(d.text, &m, 3, 1, &err) && latest_step(d.text, &m, &err) == 3);
    free(m.params);
    temp_remove(&d);
}

// What is neither is told before a run begins, and is left alone.
TEST(a_latest_that_is_no_link) {
    TempDir d = temp_make();
    Error err = { "" };
    put_text(d.text, "latest", "notes of step_00000003");
    CHECK(!checkpoint_begin(d.text, &err) && strstr(err.text, "latest: not a link of a run"));
    CHECK(unlink(in(d.text, "latest").text) == 0);
    mkdir(in(d.text, "latest").text, 0777);
    CHECK(!checkpoint_begin(d.text, &err) && strstr(err.text, "latest: not a link of a run"));
    CHECK(there(d.text, "latest") && rmdir(in(d.text, "latest").text) == 0);
    CHECK(checkpoint_begin(d.text, &err) && names_in(d.text)[0] == '\0');
    temp_remove(&d);
}

TEST(errors_of_saving) {
    TempDir d = temp_make();
    Model m = model_make(1, 1, 2, 3, 2);
    Error err = { "" };
    put_text(d.text, "file", "x");
    CHECK(!checkpoint_begin(in(d.text, "file").text, &err) && clear_line(&err, "file"));
    CHECK(!checkpoint_begin(in(d.text, "file/x").text, &err) && clear_line(&err, "file"));
    CHECK(!save(in(d.text, "none").text, &m, 1, 0, &err) && clear_line(&err, "none"));
    char deep[5000];                                     // no path, no system call at all
    memset(deep, 'x', sizeof deep);
    deep[sizeof deep - 1] = '\0';
    CHECK(!save(deep, &m, 1, 0, &err) && clear_line(&err, "the path is longer than"));
    bool whole = false;
    Checkpoint k = checkpoint_of(&m, 1);
    k.whole = &whole;
    CHECK(!checkpoint_save(in(d.text, "none").text, &k, 0, &err) && !whole);
    mkdir(in(d.text, "latest").text, 0777);
    CHECK(!checkpoint_save(d.text, &k, 0, &err) && whole);
    CHECK_MSG(strstr(err.text, "latest: cannot be replaced"), "%s", err.text);
    CHECK(!there(d.text, ".tmp-latest") && !there(d.text, ".tmp-step_00000001"));
    free(m.params);
    temp_remove(&d);
}

// A run's directory may be renamed while it trains, and another run may take the name.
TEST(a_directory_that_is_replaced) {
    TempDir d = temp_make();
    Error err = { "" };
    Path out = in(d.text, "run"), away = in(d.text, "away"), link = in(d.text, "link");
    int lock = -1;
    CHECK(checkpoint_begin(out.text, &err) && checkpoint_lock(&lock, out.text, &err));
    CHECK(symlink("run", link.text) == 0 && checkpoint_is_locked(lock, link.text, &err));
    CHECK(rename(out.text, away.text) == 0);
    CHECK(!checkpoint_is_locked(lock, out.text, &err) && clear_line(&err, "renamed"));
    CHECK(checkpoint_begin(out.text, &err) && !checkpoint_is_locked(lock, out.text, &err));
    close(lock);
    temp_remove(&d);
}

// Where a link, a pipe or somebody's file is, nothing is written; what is written anew is not
// touched before it is complete.
TEST(files_of_others_stay) {
    TempDir d = temp_make();
    Error err = { "" };
    Path first, temporary, file = in(d.text, "file");
    put_text(d.text, "notes", "mine");
    CHECK(symlink("notes", in(d.text, "link").text) == 0);
    CHECK(!file_write(in(d.text, "link").text, "x", 1, &err) && clear_line(&err, "File exists"));
    CHECK(mkfifo(in(d.text, "pipe").text, 0600) == 0);
    CHECK(file_begin(&temporary, in(d.text, "pipe").text, &err) < 0);
    close(file_begin(&first, file.text, &err));
    CHECK(unlink(first.text) == 0 && symlink("notes", first.text) == 0);
    for (int put = 1; put >= 0; put--) {
        int fd = file_begin(&temporary, file.text, &err);
        CHECK(fd >= 0 && strcmp(temporary.text, first.text) != 0);
        CHECK(file_put(fd, "new", 3, file.text, &err));
        CHECK(file_end(fd, &temporary, file.text, put, &err) == put);
        CHECK(access(file.text, F_OK) == 0 && access(temporary.text, F_OK) != 0);
    }
    struct stat notes;
    CHECK(stat(in(d.text, "notes").text, &notes) == 0 && notes.st_size == 4);
#ifdef __linux__
    CHECK(!path_remove("/proc/self/stat", &err) && clear_line(&err, "not permitted"));
#endif
    temp_remove(&d);
}

// ---------------------------------------------------------------------------------------------
// Crashes and full disks

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void child_saves_for_ever(const char *out, Model *m, int64_t step) {
    Error err;
    if (!checkpoint_begin(out, &err)) die("%s", err.text);
    for (;; step++)
        if (!save(out, m, step, 2, &err)) die("%s", err.text);
}

// kill -9 at random moments: latest loads, never goes back, and nothing piles up.
TEST(kill_at_random_moments) {
    enum { KILLS = 60 };
    TempDir d = temp_make_fast();
    Model m = model_make(2, 2, 8, 20, 4);
    Error err = { "" };
    Rng rng = rng_make((uint64_t)time(NULL), 0);
    double start = seconds_now();
    CHECK(save(d.text, &m, 1, 0, &err));
    double longest = 3e6 * (seconds_now() - start) + 2000.0;     // microseconds: some three saves
    int64_t step = 1;
    for (int i = 0; i < KILLS; i++) {
        pid_t pid = fork();
        if (pid < 0) die("fork: %s", strerror(errno));
        if (pid == 0) child_saves_for_ever(d.text, &m, step + 1);
        usleep((useconds_t)(longest * rng_uniform(&rng)));
        kill(pid, SIGKILL);
        int status;
        waitpid(pid, &status, 0);
        CHECK_MSG(WIFSIGNALED(status), "the child left by itself: %d", status);
        int64_t now = latest_step(d.text, &m, &err);
        CHECK_MSG(now >= step, "after step %lld: %s", (long long)step, err.text);
        if (now < step) break;
        if (now == step && longest < 1e6) longest *= 1.2;        // a busy machine: wait longer
        step = now;
    }
    CHECK_MSG(step > 1, "no checkpoint was ever finished");
    CHECK(checkpoint_begin(d.text, &err) && save(d.text, &m, step + 1, 2, &err));
    CHECK_MSG(strstr(names_in(d.text), ".tmp") == NULL, "%s", names_in(d.text));
    free(m.params);
    temp_remove(&d);
}

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
    TempDir d = temp_make_fast();
    Model m = model_make(1, 1, 2, 3, 2);
    bool possible = mishap_possible(d.text, &m);
    char calls[100] = "";
    size_t n = 0;
    int status = 0;
    pid_t pid = traced_save(d.text, &m, 2);
    for (bool entering = true; possible && traced_next(&status, pid); entering = !entering) {
        long number = ptrace(PTRACE_PEEKUSER, pid, CALL_NUMBER, NULL);
        char call = number == SYS_write ? 'W' : number == SYS_fsync ? 'F'
                  : number == SYS_rename ? 'R' : number == SYS_symlink ? 'S' : 0;
        bool again = call == 'W' && n > 0 && calls[n-1] == 'W';
        if (entering && call && !again && n + 1 < sizeof calls) calls[n++] = call;
    }
    temp_remove(&d);
    free(m.params);
    if (!possible) SKIP("needs ptrace");
    const char *expected =
        "WFWFWFWF" "F"    // model, optimizer, config, state; their directory
        "R"               // nothing of this name is in the way: this one fails
        "RF"              // the checkpoint gets its name
        "SRF"             // latest moves
        "R";              // only now does the old one go
    CHECK_MSG(strcmp(calls, expected) == 0, "%s; expected: %s", calls, expected);
}

// Not random: a crash before each system call of a save, in turn, so at every moment at which the
// disk is different. keep is 1, so that the old checkpoint is removed as well.
static void kill_everywhere(const char *test) {
    TempDir d = temp_make_fast();
    Model m = model_make(1, 1, 2, 3, 2);
    Error err = { "" };
    improves = true;
    if (!mishap_possible(d.text, &m)) {
        temp_remove(&d);
        free(m.params);
        printf("skip %s: needs ptrace\n", test);
        test_state.skipped = 1;
        return;
    }
    long number = 0;
    int64_t step = 1;
    int n = 0, finished = 0;
    while (number >= 0 && n < 2000) {
        int64_t next = n % 2 ? step : step + 1;          // the same step again is the harder case
        save_with_mishap(d.text, &m, next, KILL_IT, ++n, &number);
        int64_t now = latest_step(d.text, &m, &err);
        CHECK_MSG(now == step || now == next, "killed at call %d: %s", n, err.text);
        bool best = checkpoint_is_whole(d.text, link_name(d.text, "best").text);
        CHECK_MSG(best, "killed at call %d: best is not whole", n);
        if (now < 0) break;
        CHECK(checkpoint_prune(d.text, now, 2, &err));       // else the calls grow with n
        finished += now > step;
        step = now;
    }
    CHECK_MSG(number < 0 && n > 50 && finished > 0, "%d calls, %d finished", n, finished);
    CHECK(checkpoint_begin(d.text, &err) && save(d.text, &m, step + 1, 1, &err));
    CHECK_MSG(strchr(names_in(d.text), '.') == NULL, "%s", names_in(d.text));
    improves = false;
    free(m.params);
    temp_remove(&d);
}

TEST(kill_at_every_system_call) { kill_everywhere(__func__); }

TEST(kill_where_there_are_no_links) {
    links_refused = 1;
    kill_everywhere(__func__);
    links_refused = 0;
}

// Each system call fails once, as if the disk were full. A save that says it has succeeded has;
// one that says it has not leaves the last one.
TEST(refuse_every_system_call) {
    TempDir d = temp_make_fast();
    Model m = model_make(1, 1, 2, 3, 2);
    Error err = { "" };
    if (!mishap_possible(d.text, &m)) {
        temp_remove(&d);
        free(m.params);
        SKIP("needs ptrace");
    }
    long number = 0;
    int64_t step = 1;
    int n = 0, refused = 0;
    while (number >= 0 && n < 2000) {
        int status = save_with_mishap(d.text, &m, step + 1, REFUSE_IT, ++n, &number);
        int64_t now = latest_step(d.text, &m, &err);
        CHECK_MSG(now == step || now == step + 1, "call %d refused: %s", n, err.text);
        if (now < 0) break;
        bool saved = WIFEXITED(status) && WEXITSTATUS(status) == 0;
        bool matters = number == SYS_write || number == SYS_fsync || number == SYS_rename
                    || number == SYS_symlink || number == SYS_mkdir;
        CHECK_MSG(!saved || now == step + 1, "call %d refused: it says that it has saved", n);
        CHECK_MSG(!saved || !matters, "call %d, %ld, refused: it says that all is well", n, number);
        refused += WIFEXITED(status) && WEXITSTATUS(status) == 1;
        CHECK_MSG(!WIFEXITED(status) || WEXITSTATUS(status) != 3, "call %d: buckets left out", n);
        step = now;
    }
    CHECK_MSG(number < 0 && refused > 20, "%d calls, %d reported", n, refused);
    CHECK(checkpoint_begin(d.text, &err) && save(d.text, &m, step + 1, 1, &err));
    CHECK_MSG(strchr(names_in(d.text), '.') == NULL, "%s", names_in(d.text));
    free(m.params);
    temp_remove(&d);
}
#else
TEST(synced_before_it_is_named) { SKIP("needs Linux on x86-64"); }
TEST(kill_at_every_system_call) { SKIP("needs Linux on x86-64"); }
TEST(kill_where_there_are_no_links) { SKIP("needs Linux on x86-64"); }
TEST(refuse_every_system_call) { SKIP("needs Linux on x86-64"); }
#endif

// Every limit below what the largest file needs: the save fails, says why, and leaves no trace.
static void child_meets_limits(const char *out, Model *m) {
    Error err = { "" };
    signal(SIGXFSZ, SIG_IGN);                            // write() then fails with EFBIG
    for (rlim_t limit = 0; limit < 5000; limit += 97) {
        struct rlimit r = { limit, RLIM_INFINITY };
        if (setrlimit(RLIMIT_FSIZE, &r) != 0) _exit(3);
        bool saved = save(out, m, 2, 1, &err);
        if (!asked_for_all(m)) _exit(7);
        if (saved) continue;                             // above the largest file
        if (!strstr(err.text, "File too large") || strchr(err.text, '\n')) _exit(4);
        if (strcmp(names_in(out), "latest step_00000001") != 0) _exit(5);
        if (limit > 4900) _exit(6);
    }
    _exit(strcmp(latest_name(out).text, "step_00000001") == 0);
}

TEST(files_that_may_not_grow) {
    TempDir d = temp_make();
    Model m = model_make(1, 1, 2, 3, 2);
    Error err = { "" };
    int status;
    CHECK(save(d.text, &m, 1, 0, &err));
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) child_meets_limits(d.text, &m);
    waitpid(pid, &status, 0);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", status);
    CHECK_MSG(latest_step(d.text, &m, &err) == 2, "%s", err.text);
    free(m.params);
    temp_remove(&d);
}

// A file system of `pages` pages on dir, which it leaves when the process does. False: not allowed.
static bool mount_small(const char *dir, int pages) {
    char options[40];
    snprintf(options, sizeof options, "size=%d", pages * 4096);
    return mount("tmpfs", dir, "tmpfs", 0, options) == 0;
}

// The disk fills up at each page in turn. `step_1` is the last good one throughout.
static void disk_fills_up(const char *dir, Model *m, bool *possible) {
    Error err = { "" };
    bool saved = false;
    for (int pages = 12; !saved && pages < 60; pages++) {
        if (!mount_small(dir, pages)) {
            *possible = false;
            return;
        }
        if (save(dir, m, 1, 0, &err)) {
            saved = save(dir, m, 2, 0, &err);
            CHECK_MSG(saved || strstr(err.text, strerror(ENOSPC)), "%s", err.text);
            CHECK_MSG(saved || strcmp(names_in(dir), "latest step_00000001") == 0, "%s",
                      names_in(dir));
            CHECK_MSG(latest_step(dir, m, &err) == (saved ? 2 : 1), "%s", err.text);
        }
        if (umount(dir) != 0) die("%s: %s", dir, strerror(errno));
    }
    CHECK(saved);
}

TEST(full_disk) {
    TempDir d = temp_make();
    Model m = model_make(1, 2, 16, 40, 10);
    bool possible = true;
    disk_fills_up(d.text, &m, &possible);
    free(m.params);
    temp_remove(&d);
    if (!possible) SKIP("needs the right to mount a small tmpfs");
}

// ---------------------------------------------------------------------------------------------
// Tools for test_transformers.py

// Saves the parameters of a fixture of dev/reference as step 1, so that their logits are known.
static int tool_write(const char *out, const char *fixture, const char *tokenizer) {
    FileMap file;
    Error err;
    int32_t header[16];
    Checkpoint k;
    memset(&k, 0, sizeof k);
    if (!file_map(&file, fixture, &err)) die("%s", err.text);
    if (file.n < sizeof header) die("%s: too short", fixture);
    memcpy(header, file.bytes, sizeof header);
    Config c = { header[2], header[3], header[4], header[5], header[6], 0 };
    size_t n = gpt2_n_params(&c), before = 64 + 16 * (size_t)header[7] * (size_t)header[8];
    if (n != (size_t)header[9] || file.n < before + n * sizeof(float))
        die("%s: no fixture", fixture);
    float *params = alloc_or_die(n * sizeof *params, "parameters");
    memcpy(params, file.bytes + before, n * sizeof *params);
    Model m = { c, n, params, NULL, NULL, 0, true };
    k.config = c;
    k.source = bucket_of;
    k.from = &m;
    k.weights_only = true;
    k.state.step = 1;
    k.eot = tokenizer ? c.V - 1 : -1;
    if (tokenizer && !file_map(&k.tokenizer, tokenizer, &err)) die("%s", err.text);
    if (!checkpoint_begin(out, &err) || !checkpoint_save(out, &k, 0, &err)) die("%s", err.text);
    free(params);
    file_unmap(&file);
    file_unmap(&k.tokenizer);
    return 0;
}

// For each tensor: sum over i of (i+1) * bits of element i, modulo 2^64.
static int tool_read(const char *where) {
    Path path;
    Config c;
    Error err;
    if (!checkpoint_find(&path, where, &err) || !checkpoint_config(&c, path.text, &err))
        die("%s", err.text);
    float *flat = alloc_or_die(gpt2_n_params(&c) * sizeof *flat, "parameters");
    if (!load_params(flat, &c, path.text, &err)) die("%s", err.text);
    printf("%d %d %d %d %d\n", c.L, c.NH, c.C, c.V, c.P);
    for (int i = 0; i < gpt2_n_tensors(&c); i++) {
        Tensor t = gpt2_tensor(&c, i);
        uint64_t sum = 0;
        for (size_t j = 0; j < t.count; j++) {
            uint32_t bits;
            memcpy(&bits, &flat[t.offset + j], 4);
            sum += (j + 1) * (uint64_t)bits;
        }
        printf("%s %zu %zu %llu\n", t.key, t.rows, t.cols, (unsigned long long)sum);
    }
    free(flat);
    return 0;
}

int main(int argc, char **argv) {
    if (argc >= 4 && strcmp(argv[1], "--write") == 0)
        return tool_write(argv[2], argv[3], argc > 4 ? argv[4] : NULL);
    if (argc == 3 && strcmp(argv[1], "--read") == 0) return tool_read(argv[2]);
    RUN(names_find_their_tensors);
    RUN(names_find_their_series);
    RUN(buckets_cover_the_flat_buffer);
    RUN(round_trip);
    RUN(bytes_stay_the_same);
    RUN(calls_in_order);
    RUN(calls_go_on_when_writing_has_failed);
    RUN(workers_round_trip);
    RUN(model_files_of_llmc);
    RUN(nobody_holds_a_model_whole);
    RUN(states);
    RUN(counts_that_would_overflow);
    RUN(strange_moments);
    RUN(every_cut_of_every_file_is_refused);
    RUN(layouts_of_others);
    RUN(weights_in_shards);
    RUN(configs);
    RUN(places_without_a_checkpoint);
    RUN(weights_that_are_not_finite_are_named);
    RUN(keeps_as_many_as_asked);
    RUN(keeps_the_best_beside_the_newest);
    RUN(finds_the_checkpoint_of_a_step);
    RUN(a_checkpoint_named_by_its_file);
    RUN(the_same_step_again);
    RUN(what_a_crash_left_is_removed);
    RUN(only_our_temporaries_are_removed);
    RUN(a_copy_without_the_link);
    RUN(a_copy_that_followed_the_link);
    RUN(a_latest_on_a_disk_without_links);
    RUN(a_latest_that_is_no_link);
    RUN(errors_of_saving);
    RUN(a_directory_that_is_replaced);
    RUN(files_of_others_stay);
    RUN(kill_at_random_moments);
    RUN(synced_before_it_is_named);
    RUN(kill_at_every_system_call);
    RUN(kill_where_there_are_no_links);
    RUN(refuse_every_system_call);
    RUN(files_that_may_not_grow);
    RUN(full_disk);
    return test_end();
}
