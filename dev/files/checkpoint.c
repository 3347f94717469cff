// Checkpoints: directories that transformers' GPT2LMHeadModel.from_pretrained opens as they are
// (files.h).
#include "files.h"
#include <assert.h>
#include <dirent.h>
#include <sys/file.h>
#include <sys/stat.h>

// The prefixes of tensor names in a checkpoint's files, in the order of a save.
static const char *const kept_prefixes[N_KEPT] = { "", "exp_avg.", "exp_avg_sq.",
                                                   "outer_momentum.", "average." };

// ---- series and files ----

// A series is an array with one element for each parameter: the weights or a moment, of one worker
// or of the whole run (worker -1). Series are numbered in the order of a save: the run's series,
// then exp_avg and exp_avg_sq of worker 0, of worker 1, and so on.
typedef struct { Kept what; int worker; } Series;

enum { MAX_WORKERS = 1 << 16 };          // a larger number means a damaged file

static Series series_at(int i) {
    Series s = { (Kept)i, -1 };
    if (i < N_KEPT) return s;
    s.what = (i - N_KEPT) % 2 == 0 ? KEPT_EXP_AVG : KEPT_EXP_AVG_SQ;
    s.worker = (i - N_KEPT) / 2;
    return s;
}

int series_index(Kept what, int worker) {
    return worker < 0 ? (int)what : N_KEPT + 2*worker + (what == KEPT_EXP_AVG_SQ);
}

static Prefix series_prefix(int i) {
    Prefix prefix;
    Series s = series_at(i);
    if (s.worker < 0) snprintf(prefix.text, sizeof prefix.text, "%s", kept_prefixes[s.what]);
    else snprintf(prefix.text, sizeof prefix.text, "worker%d.%s", s.worker, kept_prefixes[s.what]);
    return prefix;
}

static const char *const kept_file_names[N_FILES] = {
    "model.safetensors", "optimizer.safetensors", "outer.safetensors", "average.safetensors",
    "workers.safetensors"
};

// The index of a file's first series; for N_FILES, the number of all series.
static int kept_file_first(int file, int64_t workers) {
    static const int first[] = { KEPT_WEIGHTS, KEPT_EXP_AVG, KEPT_OUTER_MOMENTUM, KEPT_AVERAGE,
                                 N_KEPT };
    return file < N_FILES ? first[file] : N_KEPT + 2*(int)workers;
}

// Whether a save writes this tensor file.
static bool kept_file_has(const Checkpoint *k, int file) {
    bool diloco = k->state.workers > 0;
    const bool has[N_FILES] = { true, !k->sgd, diloco, k->averages, diloco && !k->sgd };
    return file == FILE_WEIGHTS || (!k->weights_only && has[file]);
}

int kept_end(const Checkpoint *k) {
    int file = N_FILES;
    while (!kept_file_has(k, file - 1)) file--;
    return kept_file_first(file, k->state.workers);
}

// ---- config.json ----

// Refuses variants of GPT-2 that the trainers do not implement. An absent key has transformers'
// default, which is always the variant implemented here.
static bool config_check_variant(const JsonNode *root, const Config *c, Error *err) {
    const JsonNode *v = json_get(root, "activation_function");
    if (v && !json_is(v, "gelu_new") && !json_is(v, "gelu_pytorch_tanh"))
        return fail(err, "\"activation_function\" is %s; only gelu_new is supported",
                    v->type == JSON_STRING ? json_show(v).text : json_type_name(v->type));
    v = json_get(root, "layer_norm_epsilon");
    if (v && (v->type != JSON_NUMBER || fabs(strtod(v->text, NULL) / 1e-5 - 1.0) > 1e-6))
        return fail(err, "\"layer_norm_epsilon\" must be 1e-5");
    v = json_get(root, "n_inner");
    int64_t inner;
    if (v && v->type != JSON_NULL && !json_to_int(&inner, v, 4LL*c->C, 4LL*c->C))
        return fail(err, "\"n_inner\" must be null or 4 * n_embd = %lld", 4LL*c->C);
    static const struct { const char *key; JsonType wanted; } flags[] = {
        { "scale_attn_weights", JSON_TRUE }, { "scale_attn_by_inverse_layer_idx", JSON_FALSE },
        { "add_cross_attention", JSON_FALSE },
    };
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        v = json_get(root, flags[i].key);
        if (v && v->type != flags[i].wanted)
            return fail(err, "\"%s\" must be %s; no other variant is supported", flags[i].key,
                        json_type_name(flags[i].wanted));
    }
    return true;
}

static bool config_from_json(Config *c, const JsonNode *root, Error *err) {
    if (root->type != JSON_OBJECT) return fail(err, "not a JSON object");
    const JsonNode *type = json_need(root, "model_type", JSON_STRING, err);
    if (!type) return false;
    if (!json_is(type, "gpt2"))
        return fail(err, "a model of type \"%s\"; only gpt2 is supported",
                    json_show(type).text);
    const char *positions = json_get(root, "n_positions") ? "n_positions"
                          : json_get(root, "n_ctx") ? "n_ctx"             // OpenAI's name for it
                          : json_get(root, "block_size") ? "block_size"   // nanoGPT's
                          : "n_positions";
    int64_t L, NH, C, V, P;              // limits: no later product overflows 64 bits
    if (!json_get_int(&L, root, "n_layer", 1, 1 << 14, err)
        || !json_get_int(&NH, root, "n_head", 1, 1 << 20, err)
        || !json_get_int(&C, root, "n_embd", 1, 1 << 20, err)
        || !json_get_int(&V, root, "vocab_size", 1, 1 << 24, err)
        || !json_get_int(&P, root, positions, 1, 1 << 24, err)) return false;
    c->L = (int)L;
    c->NH = (int)NH;
    c->C = (int)C;
    c->V = (int)V;
    c->P = (int)P;
    c->cut = 0;
    if (C % NH != 0)
        return fail(err, "%d heads (n_head) do not divide %d channels (n_embd)", c->NH, c->C);
    return config_check_variant(root, c, err);
}

static bool json_open(Json *json, const char *dir, const char *name, Error *err) {
    Path path;
    FileMap file;
    Error why;
    if (!path_join(&path, dir, name, err) || !file_map(&file, path.text, err)) return false;
    bool parsed = json_parse(json, (const char *)file.bytes, file.n, &why);
    file_unmap(&file);
    return parsed || fail(err, "%s: %s", path.text, why.text);
}

static bool config_read(Config *c, const char *dir, Error *err) {
    Json json;
    Error why;
    if (!json_open(&json, dir, "config.json", err)) return false;
    bool good = config_from_json(c, json.root, &why);
    json_free(&json);
    return good || fail(err, "%s/config.json: %s", dir, why.text);
}

// ---- matching a file's tensors with the table of gpt2.h ----

// "12.rest" -> 12 and "rest"; NULL if the text does not begin with a number without extra zeros.
static const char *name_number(int *number, const char *text) {
    char *end;
    if (text[0] < '0' || text[0] > '9' || (text[0] == '0' && text[1] != '.')) return NULL;
    long value = strtol(text, &end, 10);
    *number = (int)value;
    return *end == '.' && value <= 1 << 20 ? end + 1 : NULL;
}

// "h.3.ln_1.weight" -> LN1_GAIN of layer 3; -1 if the table has no such name.
static int tensor_kind_of(int *layer, const char *name) {
    *layer = 0;
    bool in_block = strncmp(name, "h.", 2) == 0;
    if (in_block && !(name = name_number(layer, name + 2))) return -1;
    for (int kind = 0; kind < N_KINDS; kind++) {
        const char *key = tensor_kinds[kind].key;
        bool blocks = strncmp(key, "h.%d.", 5) == 0;
        if (blocks == in_block && strcmp(name, blocks ? key + 5 : key) == 0) return kind;
    }
    return -1;
}

// The tensor's index in the flat buffer, so that gpt2_tensor(c, index) describes it; -1: unknown.
static int tensor_place(const Config *c, const char *name) {
    int layer, kind = tensor_kind_of(&layer, name);
    if (kind < FIRST_IN_BLOCK) return kind;
    if (kind > LAST_IN_BLOCK) return kind + (c->L - 1) * KINDS_IN_BLOCK;
    return layer < c->L ? kind + layer * KINDS_IN_BLOCK : -1;
}

typedef struct { char text[100]; } PlainName;

// A tensor's name without the parts that modules around the model add to it: "transformer." in
// Hugging Face's files, and what training with PyTorch leaves before or within a name.
static PlainName plain_name(const char *name) {
    static const char *const around = ".transformer.model.base_model.module._orig_mod."
                                      "_forward_module._fsdp_wrapped_module."
                                      "_checkpoint_wrapped_module.";
    PlainName plain = { "" };
    char part[sizeof plain.text];
    for (size_t at = 0, n; *name && at < sizeof plain.text; name += n) {
        n = strcspn(name, ".") + 1;
        snprintf(part, sizeof part, ".%.*s", (int)n, name);
        bool last = name[n - 1] == '\0';
        if (last || n == 1 || !strstr(around, part))
            at += (size_t)snprintf(plain.text + at, sizeof plain.text - at, "%s", part + 1);
        n -= last;
    }
    return plain;
}

// The series of a tensor name's prefix, or -1. *plain receives the name without that prefix.
static int series_of_name(PlainName *plain, const char *name) {
    int worker = -1, what = N_KEPT;
    bool of_worker = strncmp(name, "worker", 6) == 0;
    if (of_worker && (!(name = name_number(&worker, name + 6)) || worker >= MAX_WORKERS)) return -1;
    do what--; while (strncmp(name, kept_prefixes[what], strlen(kept_prefixes[what])) != 0);
    if (of_worker && what != KEPT_EXP_AVG && what != KEPT_EXP_AVG_SQ) return -1;
    name += strlen(kept_prefixes[what]);         // the weights' prefix is ""
    *plain = plain_name(name);
    return series_index((Kept)what, worker);
}

typedef struct { char text[80]; } ShapeText;

static ShapeText shape_text(const size_t *dims, int n_dims) {
    ShapeText shape;
    size_t at = 0;
    for (int i = 0; i < n_dims && at + 24 < sizeof shape.text; i++)
        at += (size_t)snprintf(shape.text + at, 24, "%s%zu", i ? "," : "(", dims[i]);
    snprintf(shape.text + at, 3, n_dims ? ")" : "()");
    return shape;
}

static bool tensor_is_vector(const Tensor *t) {
    return tensor_kinds[t->kind].rows == DIM_1;
}

// `linear`: PyTorch's Linear, as in nanoGPT, keeps the blocks' matrices (out, in).
static bool tensor_check(const SafeTensor *t, const Tensor *wanted, bool linear, Error *err) {
    bool vector = tensor_is_vector(wanted), turned = linear && wanted->layer >= 0;
    size_t dims[2] = { vector || turned ? wanted->cols : wanted->rows,
                       turned ? wanted->rows : wanted->cols };
    int n_dims = vector ? 1 : 2;
    bool same = t->n_dims == n_dims && memcmp(t->dims, dims, (size_t)n_dims * sizeof *dims) == 0;
    if (!same)
        return fail(err, "tensor \"%.80s\" is %s, but config.json needs %s", t->name,
                    shape_text(t->dims, t->n_dims).text, shape_text(dims, n_dims).text);
    return safetensors_is_real(t, err);
}

// The index in f->tensors for a tensor of this name; -1: none.
static int64_t tensor_file_place(const TensorFile *f, const char *name) {
    PlainName plain;
    int series = series_of_name(&plain, name);
    int place = series < f->first || series >= f->end ? -1 : tensor_place(&f->config, plain.text);
    return place < 0 ? -1 : (int64_t)(series - f->first) * gpt2_n_tensors(&f->config) + place;
}

// Constants that older Hugging Face files hold beside the weights: the causal mask and its -1e4.
static bool weights_is_mask(const char *name) {
    size_t n = strlen(name);
    return (n > 10 && strcmp(name + n - 10, ".attn.bias") == 0)
        || (n > 17 && strcmp(name + n - 17, ".attn.masked_bias") == 0);
}

// The output head of a file of weights; NULL: none.
static const SafeTensor *weights_head(const TensorFile *f) {
    for (size_t i = 0; f->first == KEPT_WEIGHTS && i < f->s.n_tensors; i++)
        if (strcmp(plain_name(f->s.tensors[i].name).text, "lm_head.weight") == 0)
            return &f->s.tensors[i];
    return NULL;
}

// The first tensor that is neither in the table nor a mask or a head among weights; NULL: none.
static const SafeTensor *tensor_file_stranger(const TensorFile *f) {
    const SafeTensor *head = weights_head(f);
    for (size_t i = 0; i < f->s.n_tensors; i++) {
        const SafeTensor *t = &f->s.tensors[i];
        bool mask = f->first == KEPT_WEIGHTS && weights_is_mask(t->name);
        if (!mask && t != head && tensor_file_place(f, t->name) < 0) return t;
    }
    return NULL;
}

// Fills f->tensors from f->s: a tensor may be there once. A head without an embedding is both:
// safetensors' save_model writes tied weights under one name.
static bool tensor_file_index(TensorFile *f, size_t total, Error *err) {
    const SafeTensor *head = weights_head(f);
    int n = gpt2_n_tensors(&f->config);
    f->tensors = (const SafeTensor **)calloc(total, sizeof *f->tensors);
    if (!f->tensors) return fail(err, "out of memory for %zu tensors", total);
    for (size_t i = 0; i < f->s.n_tensors; i++) {
        const SafeTensor *t = &f->s.tensors[i];
        int64_t at = tensor_file_place(f, t->name);
        if (at < 0) continue;
        Tensor wanted = gpt2_tensor(&f->config, (int)(at % n));
        if (f->tensors[at])
            return fail(err, "two tensors are called \"%s%s\"",
                        series_prefix(f->first + (int)(at / n)).text, wanted.key);
        f->tensors[at] = t;
        if (f->first != KEPT_WEIGHTS || wanted.init == INIT_ZEROS) f->biases = true;
        if (wanted.kind == QKV_W && t->n_dims == 2 && f->first == KEPT_WEIGHTS)
            f->linear = t->dims[0] > t->dims[1];
    }
    if (head && !f->tensors[WTE]) f->tensors[WTE] = head;
    return true;
}

// Every tensor of the table must be present, in the right shape. But weights may be without all
// biases (nanoGPT's bias=False): then these are 0.
static bool tensor_file_check(TensorFile *f, Error *err) {
    size_t n = (size_t)gpt2_n_tensors(&f->config), total = (size_t)(f->end - f->first) * n;
    if (!tensor_file_index(f, total, err)) return false;
    const SafeTensor *other = tensor_file_stranger(f);
    for (size_t i = 0; i < total; i++) {
        Tensor wanted = gpt2_tensor(&f->config, (int)(i % n));
        if (f->tensors[i] && !tensor_check(f->tensors[i], &wanted, f->linear, err)) return false;
        if (f->tensors[i] || (wanted.init == INIT_ZEROS && !f->biases)) continue;
        return fail(err, "tensor \"%s%s\" is missing%s%.80s%s",
                    series_prefix(f->first + (int)(i / n)).text, wanted.key,
                    other ? "; the file has \"" : "", other ? other->name : "", other ? "\"" : "");
    }
    return true;
}

// ---- loading ----

int64_t step_of(const char *name) {
    char *end;
    if (strncmp(name, "step_", 5) != 0 || strspn(name + 5, "0123456789") < 8) return -1;
    errno = 0;
    long long step = strtoll(name + 5, &end, 10);
    return errno == 0 && (*end == '\0' || strcmp(end, ".1") == 0) ? step : -1;
}

// The newest checkpoint in a run's directory; "" if there is none.
static StepName checkpoint_newest(const char *out) {
    StepName newest = { "" };
    DIR *dir = opendir(out);
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL; )
        if (step_of(e->d_name) > step_of(newest.text))
            snprintf(newest.text, sizeof newest.text, "%.60s", e->d_name);
    if (dir) closedir(dir);
    return newest;
}

// The target of a link of OUT, "latest" or "best", or the name that a file in its place holds; "":
// neither.
static StepName link_name(const char *out, const char *link) {
    StepName name = { "" };
    Path path;
    FileMap file;
    Error err;
    if (!path_join(&path, out, link, &err)) return name;
    ssize_t n = readlink(path.text, name.text, sizeof name.text - 1);
    name.text[n > 0 ? n : 0] = '\0';
    if (n > 0 || !file_map(&file, path.text, &err)) return name;
    snprintf(name.text, sizeof name.text, "%.*s", (int)(file.n < 60 ? file.n : 60), file.bytes);
    name.text[strcspn(name.text, "\r\n")] = '\0';
    if (step_of(name.text) < 0) name.text[0] = '\0';
    file_unmap(&file);
    return name;
}

StepName latest_name(const char *out) { return link_name(out, "latest"); }

bool path_is_dir(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

#define WEIGHTS_INDEX "model.safetensors.index.json"

// Refuses a file of weights that only Python can read, with the command that converts it.
static bool weights_foreign(const char *path, Error *err) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    Path config;
    FileMap m;
    Error none;
    int n = snprintf(config.text, sizeof config.text, "%.*sconfig.json", (int)(name - path), path);
    if (n >= (int)sizeof config.text || !file_map(&m, path, &none)) return true;
    bool zip = m.n > 4 && memcmp(m.bytes, "PK\3\4", 4) == 0;
    bool pickle = m.n > 2 && m.bytes[0] == 0x80 && m.bytes[1] >= 2 && m.bytes[1] <= 5;
    file_unmap(&m);
    if (!zip && !pickle) return true;
    if (access(config.text, F_OK) == 0)
        return fail(err, "%s: a PyTorch pickle, which only Python reads; run there: python3 -c "
                         "\"import transformers as t; t.GPT2LMHeadModel.from_pretrained('.')"
                         ".save_pretrained('.', safe_serialization=True)\"", path);
    return fail(err, "%s: a PyTorch pickle, which only Python reads; if it is nanoGPT's, run "
                     "there: python3 -c \"import json, torch, safetensors.torch as s; "
                     "c = torch.load('%s', 'cpu'); json.dump(dict(c['model_args'], "
                     "model_type='gpt2'), open('config.json', 'w')); s.save_file({k: v.clone() "
                     "for k, v in c['model'].items()}, 'model.safetensors')\"", path, name);
}

// The same for whatever a directory holds.
static bool weights_foreign_in(const char *dir, Error *err) {
    DIR *d = opendir(dir);
    bool good = true;
    Path path;
    Error none;
    for (struct dirent *e; d && good && (e = readdir(d)) != NULL; )
        good = !path_join(&path, dir, e->d_name, &none) || weights_foreign(path.text, err);
    if (d) closedir(d);
    return good;
}

// Where a directory is meant: for the files of weights in DIR and DIR/config.json, DIR; for the
// file OUT/latest, OUT; for OUT/best, a link or not, the best checkpoint in OUT.
static bool checkpoint_dir(Path *dir, const char *where, Error *err) {
    const char *slash = strrchr(where, '/'), *name = slash ? slash + 1 : where;
    bool inside = strcmp(name, "model.safetensors") == 0 || strcmp(name, "config.json") == 0
               || strcmp(name, "latest") == 0 || strcmp(name, WEIGHTS_INDEX) == 0
               || strncmp(name, "model-", 6) == 0;       // a shard
    if (strlen(where) >= sizeof dir->text) return path_join(dir, where, "", err);
    if (strcmp(name, "best") == 0) {
        Path out;
        Saved best;
        snprintf(out.text, sizeof out.text, "%.*s.", (int)(name - where), where);
        if (checkpoint_best_in(&best, out.text))
            return path_join(dir, out.text, best.name.text, err);
    }
    snprintf(dir->text, sizeof dir->text, "%s", where);
    if (inside && access(where, F_OK) == 0 && !path_is_dir(where))
        snprintf(dir->text, sizeof dir->text, "%.*s.", (int)(name - where), where);
    return true;
}

bool checkpoint_find(Path *found, const char *path, Error *err) {
    Path config, latest, dir;
    struct stat info;
    if (!checkpoint_dir(&dir, path, err)) return false;
    const char *where = dir.text;
    if (!path_join(&config, where, "config.json", err)
        || !path_join(&latest, where, "latest", err)) return false;
    if (stat(where, &info) != 0)
        return fail(err, "%s: cannot open it: %s", where, strerror(errno));
    const char *choice = where;
    if (S_ISDIR(info.st_mode) && access(config.text, F_OK) != 0) {
        StepName newest = checkpoint_newest(where), named = latest_name(where);
        bool linked = path_is_dir(latest.text);
        if (!linked && named.text[0]) {          // a file; or a link to nothing
            if (!path_join(&latest, where, named.text, err)) return false;
            linked = path_is_dir(latest.text);
        }
        if (!linked && !newest.text[0])
            return weights_foreign_in(where, err)
                && fail(err, "%s: no checkpoint: the directory has neither config.json nor latest",
                        where);
        if (!linked && !path_join(&latest, where, newest.text, err)) return false;
        choice = latest.text;
    }
    char *real = realpath(choice, NULL);     // resolved now: a save may move `latest`
    int n = real ? snprintf(found->text, sizeof found->text, "%s", real) : -1;
    free(real);
    return (n > 0 && (size_t)n < sizeof found->text)
        || fail(err, "%s: cannot open it: %s", choice, strerror(errno));
}

// Opens the files that DIR/model.safetensors.index.json names: {"weight_map": {TENSOR: FILE}}.
static bool weights_open_shards(TensorFile *f, const char *dir, Error *err) {
    Json json;
    Error why;
    Path path;
    if (!json_open(&json, dir, WEIGHTS_INDEX, err)) return false;
    const JsonNode *map = json_need(json.root, "weight_map", JSON_OBJECT, &why), *before, *k = map;
    bool good = map || fail(err, "%s: %s", f->path.text, why.text);
    if (map) k = json_first(map);
    for (; good && k < json_end(map); k = json_next(k + 1)) {
        const JsonNode *file = k + 1;
        if (file->type != JSON_STRING || strchr(file->text, '/')) {
            good = fail(err, "%s: byte %zu: not the name of a file in this directory",
                        f->path.text, file->at);
            continue;
        }
        for (before = json_first(map); before < k && !json_is(before + 1, file->text); )
            before = json_next(before + 1);
        if (before == k)                                 // the first tensor of this file
            good = path_join(&path, dir, file->text, err)
                && safetensors_add(&f->s, path.text, err);
    }
    json_free(&json);
    return good;
}

// Opens the weights in DIR: model.safetensors, or its shards.
static bool weights_open(TensorFile *f, const char *dir, Error *err) {
    if (access(f->path.text, F_OK) == 0) return safetensors_open(&f->s, f->path.text, err);
    if (!path_join(&f->path, dir, WEIGHTS_INDEX, err)) return false;
    if (access(f->path.text, F_OK) == 0) return weights_open_shards(f, dir, err);
    return weights_foreign_in(dir, err) && fail(err, "%s: model.safetensors is missing", dir);
}

// Refuses tensors that the table does not name, and a head that does not repeat the embedding.
static bool tensor_file_check_others(const TensorFile *f, Error *err) {
    const SafeTensor *t = tensor_file_stranger(f), *head = weights_head(f);
    if (t)
        return fail(err, f->first == KEPT_WEIGHTS
                    ? "tensor \"%.80s\" is not part of the GPT-2 that config.json describes"
                    : "tensor \"%.80s\" does not belong in this file", t->name);
    const SafeTensor *wte = head ? f->tensors[WTE] : NULL;
    if (!head || (wte->dtype == head->dtype && wte->count == head->count
                  && memcmp(wte->data, head->data, head->end - head->begin) == 0)) return true;
    return fail(err, "lm_head.weight differs from wte.weight; only tied weights are supported");
}

void tensor_file_close(TensorFile *f) {
    free(f->tensors);
    safetensors_close(&f->s);
    gguf_model_free(&f->gguf);
    file_unmap(&f->single);
    memset(f, 0, sizeof *f);
}

// Opens f->path, a whole model in one file, and sets f->config.
static bool single_open(TensorFile *f, Error *err) {
    Error why;
    const FileMap *m = &f->single;
    if (!weights_foreign(f->path.text, err) || !file_map(&f->single, f->path.text, err))
        return false;
    bool good = gguf_is(m->bytes, m->n) ? gguf_model(&f->gguf, m->bytes, m->n, &why)
                                        : llmc_config(&f->config, m->bytes, m->n, &why);
    if (f->gguf.tensors) f->config = f->gguf.c;
    return good || fail(err, "%s: %s", f->path.text, why.text);
}

bool tensor_file_open(TensorFile *f, const char *path, KeptFile file, int64_t workers,
                      const Config *c, Error *err) {
    Error why;
    memset(f, 0, sizeof *f);
    f->config = *c;
    f->first = kept_file_first(file, workers);
    f->end = kept_file_first(file + 1, workers);
    bool single = file == FILE_WEIGHTS && !path_is_dir(path), good;
    if (single) {
        snprintf(f->path.text, sizeof f->path.text, "%s", path);
        good = single_open(f, err);
        if (good && memcmp(c, &f->config, sizeof *c) != 0)
            good = fail(err, "%s: not the model that was expected", path);
    } else {
        if (!path_join(&f->path, path, kept_file_names[file], err)) return false;
        if ((file == FILE_OUTER || file == FILE_WORKERS) && access(f->path.text, F_OK) != 0)
            return fail(err, "%s: %s is missing; the run had %lld workers", path,
                        kept_file_names[file], (long long)workers);
        good = file == FILE_WEIGHTS ? weights_open(f, path, err)
                                    : safetensors_open(&f->s, f->path.text, err);
        if (good && !(tensor_file_check(f, &why) && tensor_file_check_others(f, &why)))
            good = fail(err, "%s: %s", f->path.text, why.text);
    }
    if (!good) tensor_file_close(f);
    return good;
}

bool checkpoint_config(Config *c, const char *path, Error *err) {
    TensorFile f;
    memset(&f, 0, sizeof f);
    snprintf(f.path.text, sizeof f.path.text, "%s", path);
    bool good = path_is_dir(path)
              ? config_read(c, path, err) && tensor_file_open(&f, path, FILE_WEIGHTS, 0, c, err)
              : single_open(&f, err);
    if (good) *c = f.config;
    tensor_file_close(&f);
    return good;
}

static void weights_warn(TensorFile *f, const float *elements, int bucket) {
    const Config *c = &f->config;
    size_t begin = gpt2_bucket(c, bucket).begin;
    int i = gpt2_bucket_tensor(c, bucket), end = gpt2_bucket_tensor(c, bucket + 1);
    for (; !f->warned && i < end; i++) {
        Tensor t = gpt2_tensor(c, i);
        for (size_t j = 0; !f->warned && j < t.count; j++)
            f->warned = !isfinite(elements[t.offset - begin + j]);
        if (f->warned)
            warn("warning: %s: \"%s\" holds NaN or infinite weights", f->path.text, t.key);
    }
}

// out (t->count) = the tensor t as we keep it; `from` is the file's.
static void tensor_file_tensor(float *out, const TensorFile *f, const SafeTensor *from,
                               const Tensor *t) {
    Error none;
    if (!from)
        memset(out, 0, t->count * sizeof *out);
    else if (f->linear && t->layer >= 0 && !tensor_is_vector(t))
        floats_transpose(out, from->data, t->rows, t->cols, safetensors_type(from));
    else
        safetensors_read(out, from, &none);
}

void tensor_file_bucket(float *elements, TensorFile *f, Kept what, int worker, int bucket) {
    const Config *c = &f->config;
    Range range = gpt2_bucket(c, bucket);
    Error none;
    int series = series_index(what, worker), n = gpt2_n_tensors(c);
    assert(series >= f->first && series < f->end);
    const size_t first = (size_t)(series - f->first) * (size_t)n;
    bool llmc = f->single.bytes && !f->gguf.tensors;
    if (llmc) llmc_params(elements, range, c, f->single.bytes, f->single.n, &none);
    int end = llmc ? 0 : gpt2_bucket_tensor(c, bucket + 1);
    for (int i = gpt2_bucket_tensor(c, bucket); i < end; i++) {
        Tensor t = gpt2_tensor(c, i);
        float *out = elements + t.offset - range.begin;
        if (f->gguf.tensors) gguf_tensor(out, &f->gguf, i);
        else tensor_file_tensor(out, f, f->tensors[first + (size_t)i], &t);
    }
    if (what == KEPT_WEIGHTS) weights_warn(f, elements, bucket);
}

// No count of a run is larger: so a run can add to it for ever without overflow. A larger number
// means a damaged file.
static const int64_t COUNT_MOST = 1000000000000000000;

static bool state_from_json(TrainState *s, const JsonNode *root, Error *err) {
    if (root->type != JSON_OBJECT) return fail(err, "not a JSON object");
    s->workers = s->batch_tokens = s->next_batch_tokens = s->norm_test_waited = 0;
    s->noise_g2 = s->noise_s = s->noise_weight = 0.0;
    s->noise_adam_g2 = s->noise_adam_s = s->noise_adam_weight = 0.0;
    s->val_loss = NAN;
    if (json_get(root, "val_loss") && !json_get_double(&s->val_loss, root, "val_loss", err))
        return false;
    if (json_get(root, "workers")
        && !json_get_int(&s->workers, root, "workers", 0, MAX_WORKERS, err)) return false;
    if (json_get(root, "batch_tokens")
        && (!json_get_int(&s->batch_tokens, root, "batch_tokens", 0, COUNT_MOST, err)
            || !json_get_int(&s->next_batch_tokens, root, "next_batch_tokens", 0, COUNT_MOST, err)))
        return false;
    if (json_get(root, "norm_test_waited")
        && !json_get_int(&s->norm_test_waited, root, "norm_test_waited", 0, COUNT_MOST, err))
        return false;
    if (json_get(root, "noise_weight")
        && (!json_get_double(&s->noise_g2, root, "noise_g2", err)
            || !json_get_double(&s->noise_s, root, "noise_s", err)
            || !json_get_double(&s->noise_weight, root, "noise_weight", err))) return false;
    if (json_get(root, "noise_adam_weight")
        && (!json_get_double(&s->noise_adam_g2, root, "noise_adam_g2", err)
            || !json_get_double(&s->noise_adam_s, root, "noise_adam_s", err)
            || !json_get_double(&s->noise_adam_weight, root, "noise_adam_weight", err)))
        return false;
    return json_get_int(&s->step, root, "step", 0, COUNT_MOST, err)
        && json_get_int(&s->tokens, root, "tokens", 0, COUNT_MOST, err)
        && json_get_int(&s->samples, root, "samples", 0, COUNT_MOST, err)
        && json_get_int(&s->adam_steps, root, "adam_steps", 0, COUNT_MOST, err)
        && json_get_int(&s->skipped, root, "skipped", 0, COUNT_MOST, err)
        && json_get_u64(&s->seed, root, "seed", err)
        && json_get_double(&s->seconds, root, "seconds", err)
        && json_need(root, "options", JSON_OBJECT, err) != NULL;
}

bool checkpoint_load_state(TrainState *s, Json *json, const char *dir, Error *err) {
    Error why;
    if (!json_open(json, dir, "state.json", err)) return false;
    if (state_from_json(s, json->root, &why)) return true;
    json_free(json);
    return fail(err, "%s/state.json: %s", dir, why.text);
}

// ---- writing the files of one checkpoint ----

static bool text_open(TextBuffer *b, Error *err) {
    b->text = NULL;
    b->f = open_memstream(&b->text, &b->n);
    return b->f || fail(err, "out of memory for a buffer");
}

static bool text_save(TextBuffer *b, const char *dir, const char *name, Error *err) {
    Path path;
    bool whole = !ferror(b->f);
    whole = fclose(b->f) == 0 && whole;
    if (!whole) fail(err, "out of memory for %s", name);
    bool written = whole && path_join(&path, dir, name, err)
                && file_write(path.text, b->text, b->n, err);
    free(b->text);
    return written;
}

static bool config_write(const Checkpoint *k, const char *dir, Error *err) {
    TextBuffer b;
    const Config *c = &k->config;
    char eot[16] = "null";
    if (k->eot >= 0) snprintf(eot, sizeof eot, "%d", k->eot);
    if (!text_open(&b, err)) return false;
    fprintf(b.f, "{\n  \"architectures\": [\"GPT2LMHeadModel\"],\n"
            "  \"model_type\": \"gpt2\",\n"
            "  \"n_layer\": %d,\n  \"n_head\": %d,\n  \"n_embd\": %d,\n  \"n_inner\": null,\n"
            "  \"vocab_size\": %d,\n  \"n_positions\": %d,\n  \"n_ctx\": %d,\n",
            c->L, c->NH, c->C, c->V, c->P, c->P);
    fprintf(b.f, "  \"activation_function\": \"gelu_new\",\n  \"layer_norm_epsilon\": 1e-05,\n"
            "  \"scale_attn_weights\": true,\n  \"tie_word_embeddings\": true,\n"
            "  \"initializer_range\": 0.02,\n  \"attn_pdrop\": 0.0,\n  \"embd_pdrop\": 0.0,\n"
            "  \"resid_pdrop\": 0.0,\n  \"bos_token_id\": %s,\n  \"eos_token_id\": %s\n}\n",
            eot, eot);
    return text_save(&b, dir, "config.json", err);
}

static bool state_write(const Checkpoint *k, const char *dir, Error *err) {
    TextBuffer b;
    const TrainState *s = &k->state;
    if (!text_open(&b, err)) return false;
    fprintf(b.f, "{\n  \"step\": %lld,\n  \"tokens\": %lld,\n  \"samples\": %lld,\n",
            (long long)s->step, (long long)s->tokens, (long long)s->samples);
    fprintf(b.f, "  \"adam_steps\": %lld,\n  \"skipped\": %lld,\n  \"seed\": %llu,\n",
            (long long)s->adam_steps, (long long)s->skipped, (unsigned long long)s->seed);
    if (s->workers > 0) fprintf(b.f, "  \"workers\": %lld,\n", (long long)s->workers);
    if (s->batch_tokens > 0)
        fprintf(b.f, "  \"batch_tokens\": %lld,\n  \"next_batch_tokens\": %lld,\n",
                (long long)s->batch_tokens, (long long)s->next_batch_tokens);
    if (s->norm_test_waited > 0)
        fprintf(b.f, "  \"norm_test_waited\": %lld,\n", (long long)s->norm_test_waited);
    if (s->noise_weight > 0.0)
        fprintf(b.f, "  \"noise_g2\": %.17g,\n  \"noise_s\": %.17g,\n  \"noise_weight\": "
                "%.17g,\n", s->noise_g2, s->noise_s, s->noise_weight);
    if (s->noise_adam_weight > 0.0)
        fprintf(b.f, "  \"noise_adam_g2\": %.17g,\n  \"noise_adam_s\": %.17g,\n"
                "  \"noise_adam_weight\": %.17g,\n", s->noise_adam_g2, s->noise_adam_s,
                s->noise_adam_weight);
    if (isfinite(s->val_loss)) fprintf(b.f, "  \"val_loss\": %.17g,\n", s->val_loss);
    fprintf(b.f, "  \"seconds\": %.17g,\n  \"options\": %s\n}\n", s->seconds,
            k->options ? k->options : "{}");
    return text_save(&b, dir, "state.json", err);
}

static bool tokenizer_write(const Checkpoint *k, const char *dir, Error *err) {
    TextBuffer b;
    Path path;
    const char *eot = k->eot >= 0 ? "\"<|endoftext|>\"" : "null";
    if (!k->tokenizer.bytes) return true;
    if (!path_join(&path, dir, "tokenizer.json", err)
        || !file_write(path.text, k->tokenizer.bytes, k->tokenizer.n, err)
        || !text_open(&b, err)) return false;
    fprintf(b.f, "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n"
            "  \"model_max_length\": %d,\n  \"clean_up_tokenization_spaces\": false,\n"
            "  \"bos_token\": %s,\n  \"eos_token\": %s\n}\n", k->config.P, eot, eot);
    return text_save(&b, dir, "tokenizer_config.json", err);
}

// A save's position in its sequence of calls to Checkpoint.source.
typedef struct { const Checkpoint *k; int series, bucket; } Pull;

static Pull pull_begin(const Checkpoint *k) {
    Pull p = { k, 0, 0 };
    return p;
}

static const float *pull_next(Pull *p) {
    Series s = series_at(p->series);
    const float *elements = p->k->source(p->k->from, s.what, s.worker, p->bucket);
    if (++p->bucket == gpt2_n_buckets(&p->k->config)) {
        p->bucket = 0;
        p->series++;
    }
    return elements;
}

static void pull_rest(Pull *p) {
    for (int file = 0; file < N_FILES; file++) {
        int end = kept_file_first(file + 1, p->k->state.workers);
        while (p->series < end && kept_file_has(p->k, file)) pull_next(p);
        if (p->series < end) p->series = end;
    }
}

// The names and shapes of n series, from `first` on; NULL if out of memory. Free it with free().
static SafeOutput *tensors_list(const Config *c, int first, size_t n) {
    size_t n_tensors = (size_t)gpt2_n_tensors(c);
    SafeOutput *out = (SafeOutput *)calloc(n * n_tensors, sizeof *out);
    for (size_t i = 0; out && i < n * n_tensors; i++) {
        Tensor t = gpt2_tensor(c, (int)(i % n_tensors));
        bool vector = tensor_kinds[t.kind].rows == DIM_1;
        snprintf(out[i].name, sizeof out[i].name, "%stransformer.%s",
                 series_prefix(first + (int)(i / n_tensors)).text, t.key);
        out[i].n_dims = vector ? 1 : 2;
        out[i].dims[0] = vector ? t.cols : t.rows;
        out[i].dims[1] = t.cols;
    }
    return out;
}

// Writes the file at the save's position, bucket by bucket.
static bool tensors_write(const char *dir, KeptFile file, Pull *p, Error *err) {
    Path path;
    Error later;
    const Config *c = &p->k->config;
    int end = kept_file_first(file + 1, p->k->state.workers), n_buckets = gpt2_n_buckets(c);
    p->series = kept_file_first(file, p->k->state.workers);
    size_t n = (size_t)(end - p->series);
    if (!path_join(&path, dir, kept_file_names[file], err)) return false;
    SafeOutput *out = tensors_list(c, p->series, n);
    if (!out) return fail(err, "%s: out of memory for the names of its tensors", path.text);
    int fd = safetensors_create(path.text, out, n * (size_t)gpt2_n_tensors(c), err);
    free(out);
    bool put = fd >= 0;
    for (size_t i = 0; put && i < n * (size_t)n_buckets; i++) {
        size_t bytes = gpt2_bucket(c, p->bucket).count * sizeof(float);
        put = file_put(fd, pull_next(p), bytes, path.text, err);
    }
    return fd >= 0 && file_close(fd, path.text, put ? err : &later) && put;
}

static bool checkpoint_write_files(const char *dir, Pull *p, Error *err) {
    for (int file = 0; file < N_FILES; file++)
        if (kept_file_has(p->k, file) && !tensors_write(dir, (KeptFile)file, p, err)) return false;
    return config_write(p->k, dir, err)
        && tokenizer_write(p->k, dir, err)
        && state_write(p->k, dir, err)
        && dir_sync(dir, err);
}

// ---- the run's directory: names, the link, removing old checkpoints ----

// The name for a checkpoint of this step. An older one of the same step is replaced. If `latest`
// points to the older one, that must stay until the link has moved: the new one gets another name.
static StepName checkpoint_name(const char *out, int64_t step) {
    StepName name, latest = latest_name(out);
    snprintf(name.text, sizeof name.text, "step_%08lld", (long long)step);
    if (strcmp(name.text, latest.text) == 0)
        snprintf(name.text, sizeof name.text, "step_%08lld.1", (long long)step);
    return name;
}

// Renames before it deletes: a crash leaves a .tmp- name, never an incomplete step_ directory.
static bool checkpoint_remove(const char *out, const char *name, Error *err) {
    Path from, away;
    if (!path_join(&from, out, name, err) || !path_join(&away, out, ".tmp-old", err)
        || !path_remove(away.text, err)) return false;
    if (rename(from.text, away.text) != 0)
        return errno == ENOENT || fail(err, "%s: cannot remove it: %s", from.text, strerror(errno));
    return path_remove(away.text, err);
}

static double saved_val_loss(const char *out, const char *name) {
    Path dir;
    Json json;
    Error err;
    double loss = INFINITY;
    if (!path_join(&dir, out, name, &err) || !json_open(&json, dir.text, "state.json", &err))
        return INFINITY;
    if (!json_get_double(&loss, json.root, "val_loss", &err)) loss = INFINITY;
    json_free(&json);
    return loss;
}

static int saved_earlier(const void *a, const void *b) {
    const Saved *x = (const Saved *)a, *y = (const Saved *)b;
    return x->step != y->step ? (x->step > y->step) - (x->step < y->step)
                              : strcmp(x->name.text, y->name.text);
}

// The checkpoints in OUT, in the order of their steps; free(*all) in any case.
static bool checkpoint_list(Saved **all, size_t *n, const char *out, Error *err) {
    size_t room = 0;
    *all = NULL;
    *n = 0;
    DIR *dir = opendir(out);
    if (!dir) return fail(err, "%s: cannot read the directory: %s", out, strerror(errno));
    for (struct dirent *e; (e = readdir(dir)) != NULL; ) {
        if (step_of(e->d_name) < 0) continue;
        if (*n == room) {
            room = 2*room + 8;
            Saved *grown = (Saved *)alloc_or_die(room * sizeof *grown, "a list of checkpoints");
            if (*n > 0) memcpy(grown, *all, *n * sizeof *grown);
            free(*all);
            *all = grown;
        }
        Saved *s = *all + (*n)++;
        snprintf(s->name.text, sizeof s->name.text, "%.60s", e->d_name);
        s->step = step_of(e->d_name);
        s->val_loss = saved_val_loss(out, s->name.text);
    }
    closedir(dir);
    if (*n > 1) qsort(*all, *n, sizeof **all, saved_earlier);
    return true;
}

size_t checkpoint_best(const Saved *all, size_t n) {
    size_t best = n;
    for (size_t i = 0; i < n; i++)
        if (all[i].val_loss < (best < n ? all[best].val_loss : INFINITY)) best = i;
    return best;
}

// The best checkpoint in OUT; false if none has a validation loss.
bool checkpoint_best_in(Saved *best, const char *out) {
    Saved *all;
    size_t n;
    Error err;
    checkpoint_list(&all, &n, out, &err);
    size_t i = checkpoint_best(all, n);
    if (i < n) *best = all[i];
    free(all);
    return i < n;
}

// Whether a run can go on from this checkpoint of OUT: all its files are there and whole. (Headers
// and sizes are read; damaged weights are not noticed.)
static bool checkpoint_is_whole(const char *out, const char *name) {
    Checkpoint k;
    Path dir, tokenizer;
    Json json;
    TensorFile f;
    Error err;
    int64_t tokens;
    memset(&k, 0, sizeof k);
    if (!path_join(&dir, out, name, &err) || !checkpoint_config(&k.config, dir.text, &err)
        || !path_join(&tokenizer, dir.text, "tokenizer.json", &err)) return false;
    bool whole = access(tokenizer.text, F_OK) != 0;
    if (!whole && (whole = json_open(&json, dir.text, "tokenizer.json", &err))) json_free(&json);
    if (!whole || !checkpoint_load_state(&k.state, &json, dir.text, &err)) return false;
    const JsonNode *options = json_get(json.root, "options");
    const JsonNode *optimizer = json_get(options, "optimizer");
    k.sgd = optimizer && json_is(optimizer, "sgd");
    k.averages = json_get_int(&tokens, options, "average_tokens", 1, INT64_MAX, &err);
    json_free(&json);
    for (int file = FILE_OPTIMIZER; whole && file < N_FILES; file++) {
        if (!kept_file_has(&k, file)) continue;
        whole = tensor_file_open(&f, dir.text, (KeptFile)file, k.state.workers, &k.config, &err);
        if (whole) tensor_file_close(&f);
    }
    return whole;
}

bool checkpoint_list_whole(Saved **all, size_t *n, const char *out, Error *err) {
    size_t kept = 0;
    if (!checkpoint_list(all, n, out, err)) return false;
    for (size_t i = 0; i < *n; i++)
        if (checkpoint_is_whole(out, (*all)[i].name.text)) (*all)[kept++] = (*all)[i];
    *n = kept;
    return true;
}

bool checkpoint_of_step(Path *found, const char *out, int64_t step, Error *err) {
    Saved *all;
    size_t n, i = 0, at = 0;
    char names[400] = "none";
    if (!checkpoint_list(&all, &n, out, err)) return false;
    while (i < n && all[i].step != step) i++;
    bool there = i < n, good = there && path_join(found, out, all[i].name.text, err);
    free(all);
    if (there) return good;
    if (!checkpoint_list_whole(&all, &n, out, err)) return false;
    for (i = 0; i < n && at + 24 < sizeof names; i++)
        at += (size_t)snprintf(names + at, 24, "%s%lld", i ? ", " : "", (long long)all[i].step);
    free(all);
    return fail(err, "%s: no checkpoint of step %lld; there are: %s", out, (long long)step, names);
}

// Creates OUT/.tmp-latest: a link, or a file where there are none (Windows, a FAT disk).
static bool link_draft(Path *link, const char *out, const char *name, Error *err) {
    char line[80];
    int n = snprintf(line, sizeof line, "%s\n", name);
    if (!path_join(link, out, ".tmp-latest", err) || !path_remove(link->text, err)) return false;
    if (symlink(name, link->text) == 0) return true;
    if (errno == EPERM || errno == EOPNOTSUPP) return file_write(link->text, line, (size_t)n, err);
    return fail(err, "%s: cannot create the link: %s", link->text, strerror(errno));
}

bool link_move(const char *out, const char *link, const char *name, Error *err) {
    Path draft, path;
    if (!path_join(&path, out, link, err) || !link_draft(&draft, out, name, err)) return false;
    if (rename(draft.text, path.text) == 0) return dir_sync(out, err);
    fail(err, "%s: cannot be replaced: %s", path.text, strerror(errno));
    unlink(draft.text);
    return false;
}

// Points OUT/best at a checkpoint, or removes it if the name is "". What is not ours stays.
static bool best_move(const char *out, const char *name, Error *err) {
    StepName now = link_name(out, "best");
    Path path;
    struct stat info;
    if (!path_join(&path, out, "best", err)) return false;
    bool there = lstat(path.text, &info) == 0, theirs = there && step_of(now.text) < 0;
    if (theirs || strcmp(now.text, name) == 0) return true;
    return name[0] ? link_move(out, "best", name, err) : path_remove(path.text, err);
}

bool checkpoint_lock(int *fd, const char *out, Error *err) {
    *fd = open(out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*fd < 0) return fail(err, "%s: cannot open the directory: %s", out, strerror(errno));
    if (flock(*fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return true;
    close(*fd);
    *fd = -1;
    return fail(err, "another run is writing to %s; wait until it ends, or stop it", out);
}

bool checkpoint_is_locked(int fd, const char *out, Error *err) {
    struct stat locked, named;
    return (fstat(fd, &locked) == 0 && stat(out, &named) == 0 && locked.st_dev == named.st_dev
            && locked.st_ino == named.st_ino)
        || fail(err, "%s: no longer the directory that this run writes to, which was renamed or "
                     "removed", out);
}

// Points OUT/best at the best checkpoint. Then, unless keep is 0, removes those up to this step
// except the newest `keep` and the best of them.
static bool checkpoint_prune(const char *out, int64_t step, size_t keep, Error *err) {
    Saved *all;
    size_t n;
    bool good = checkpoint_list(&all, &n, out, err);
    size_t best = checkpoint_best(all, n);
    good = good && best_move(out, best < n ? all[best].name.text : "", err);
    while (n > 0 && all[n - 1].step > step) n--;
    best = checkpoint_best(all, n);
    for (size_t i = 0; good && keep > 0 && i + keep < n; i++)
        if (i != best) good = checkpoint_remove(out, all[i].name.text, err);
    free(all);
    return good;
}

// Makes OUT/latest the link, or file, that a save can move, before any training. A copy may have
// lost it, and another system may have written the other form; a directory, of a copy that followed
// the link, is refused. If OUT cannot be written, this fails: a save must not be the first to find
// out.
static bool latest_repair(const char *out, Error *err) {
    StepName newest = checkpoint_newest(out), named = latest_name(out);
    struct stat info;
    Path latest, link, step;
    if (!path_join(&latest, out, "latest", err)) return false;
    bool there = lstat(latest.text, &info) == 0;
    if (there && !S_ISLNK(info.st_mode) && !named.text[0])
        return fail(err, "%s: not a link of a run; move it away or change --out", latest.text);
    bool works = path_is_dir(latest.text);               // a link
    if (!works && !path_join(&step, out, named.text, err)) return false;
    if (!works && named.text[0] && path_is_dir(step.text)) newest = named;
    if (!works && newest.text[0]) return link_move(out, "latest", newest.text, err);
    return link_draft(&link, out, "none", err) && path_remove(link.text, err);
}

// Whether this program gives a temporary this name: .tmp-old, .tmp-latest, .tmp-step_00001000.
static bool is_temporary(const char *name) {
    return strcmp(name, ".tmp-old") == 0 || strcmp(name, ".tmp-latest") == 0
        || (strncmp(name, ".tmp-", 5) == 0 && step_of(name + 5) >= 0);
}

bool checkpoint_begin(const char *out, Error *err) {
    if (!make_directories(out, err)) return false;
    DIR *dir = opendir(out);
    if (!dir) return fail(err, "%s: cannot read the directory: %s", out, strerror(errno));
    bool good = true;
    for (struct dirent *e; good && (e = readdir(dir)) != NULL; ) {
        Path path;
        if (!is_temporary(e->d_name)) continue;
        good = path_join(&path, out, e->d_name, err) && path_remove(path.text, err);
    }
    closedir(dir);
    return good && latest_repair(out, err);
}

bool checkpoint_exists(const char *out) {
    Saved *all;
    size_t n;
    Error err;
    bool listed = checkpoint_list(&all, &n, out, &err);
    free(all);
    return latest_name(out).text[0] != '\0' || (listed && n > 0);
}

bool checkpoint_clear(const char *out, Error *err) {
    Path latest;
    if (!path_join(&latest, out, "latest", err)) return false;
    struct stat info;
    if (lstat(latest.text, &info) == 0 && !S_ISLNK(info.st_mode) && !latest_name(out).text[0])
        return fail(err, "%s: not a link of a run; move it away or change --out", latest.text);
    Saved *all;
    size_t n;
    bool good = path_remove(latest.text, err) && best_move(out, "", err)
             && checkpoint_list(&all, &n, out, err);
    if (!good) return false;
    for (size_t i = 0; good && i < n; i++) good = checkpoint_remove(out, all[i].name.text, err);
    free(all);
    return good;
}

static bool checkpoint_write(const char *out, Pull *p, int keep, Error *err) {
    const Checkpoint *k = p->k;
    StepName name = checkpoint_name(out, k->state.step), before = latest_name(out);
    char hidden[80];
    Path temporary, final;
    Error later;
    snprintf(hidden, sizeof hidden, ".tmp-%s", name.text);
    if (!path_join(&temporary, out, hidden, err) || !path_join(&final, out, name.text, err)
        || !path_remove(temporary.text, err)) return false;
    if (mkdir(temporary.text, 0777) != 0)
        return fail(err, "%s: cannot create it: %s", temporary.text, strerror(errno));
    bool written = checkpoint_write_files(temporary.text, p, err)
                && checkpoint_remove(out, name.text, err);       // an older one of the same step
    if (written && rename(temporary.text, final.text) != 0)
        written = fail(err, "%s: cannot rename it: %s", temporary.text, strerror(errno));
    if (!written) {
        path_remove(temporary.text, &later);
        return false;
    }
    if (k->whole) *k->whole = true;
    if (!dir_sync(out, err) || !link_move(out, "latest", name.text, err)) return false;
    bool again = step_of(before.text) == k->state.step;
    if (again && strcmp(link_name(out, "best").text, before.text) == 0
        && !link_move(out, "best", name.text, err)) return false;
    if (again && !checkpoint_remove(out, before.text, err)) return false;
    return checkpoint_prune(out, k->state.step, (size_t)keep, err);
}

bool checkpoint_save(const char *out, const Checkpoint *k, int keep, Error *err) {
    Pull p = pull_begin(k);
    bool saved = checkpoint_write(out, &p, keep, err);
    pull_rest(&p);
    return saved;
}

void checkpoint_follow(const Checkpoint *k) {
    Pull p = pull_begin(k);
    pull_rest(&p);
}
