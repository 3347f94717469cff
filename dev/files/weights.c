// Reading a checkpoint's tensors, ours or others': config.json, the names that modules around a model
// leave, and what is not GPT-2 (files.h).
#include "files.h"
#include <assert.h>

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
    if (!json_is(type, MODEL_NAME))
        return fail(err, "a model of type \"%s\"; only " MODEL_NAME " is supported",
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
    const Config sizes = { (int)L, (int)NH, (int)C, (int)V, (int)P, 0 };
    *c = sizes;
    if (C % NH != 0)
        return fail(err, "%d heads (n_head) do not divide %d channels (n_embd)", c->NH, c->C);
    return config_check_variant(root, c, err);
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

int tensor_find(const Config *c, const char *name, Naming naming) {
    char key[80];
    long layer = strtol(name + strcspn(name, "0123456789"), NULL, 10);
    for (int k = 0; k < N_KINDS && layer < c->L; k++) {
        const TensorKind *kind = tensor_kind(k);
        snprintf(key, sizeof key, naming == NAMED_GGUF ? kind->gguf : kind->key, (int)layer);
        if (strcmp(name, key) == 0)
            return k < FIRST_IN_BLOCK ? k : k <= LAST_IN_BLOCK ? k + (int)layer*KINDS_IN_BLOCK
                                                               : k + (c->L - 1)*KINDS_IN_BLOCK;
    }
    return -1;
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

typedef struct { char text[80]; } ShapeText;

static ShapeText shape_text(const size_t *dims, int n_dims) {
    ShapeText shape;
    size_t at = 0;
    for (int i = 0; i < n_dims && at + 24 < sizeof shape.text; i++)
        at += (size_t)snprintf(shape.text + at, 24, "%s%zu", i ? "," : "(", dims[i]);
    snprintf(shape.text + at, 3, n_dims ? ")" : "()");
    return shape;
}

bool tensor_is_vector(const Tensor *t) { return tensor_kind(t->kind)->rows == DIM_1; }

void tensor_read(float *out, const unsigned char *in, const Tensor *t, bool linear,
                 FloatType type) {
    bool turned = linear && t->layer >= 0 && !tensor_is_vector(t);
    if (turned) floats_transpose(out, in, t->rows, t->cols, type);
    else floats_read(out, in, t->count, type);
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
    int worker = strncmp(name, "worker", 6) == 0 ? atoi(name + 6) : -1;
    for (int what = N_KEPT - 1; what >= 0 && worker < MAX_WORKERS; what--) {
        int series = series_index((Kept)what, worker);
        Prefix prefix = series_prefix(series);
        size_t n = strlen(prefix.text);          // the weights' prefix is ""
        if (series < f->first || series >= f->end || strncmp(name, prefix.text, n) != 0) continue;
        int place = tensor_find(&f->config, plain_name(name + n).text, NAMED_HUGGING_FACE);
        return place < 0 ? -1 : (int64_t)(series - f->first) * gpt2_n_tensors(&f->config) + place;
    }
    return -1;
}

// Constants that older Hugging Face files hold beside the weights: the causal mask and its -1e4.
static bool weights_is_mask(const char *name) {
    return ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias");
}

// What a file holds beside the tensors of the table: the output head of weights, and the first
// tensor that is nothing we know. NULL: none.
typedef struct { const SafeTensor *head, *stranger; } Others;

// Fills f->tensors from f->s: a tensor may be there once. A head without an embedding is both:
// safetensors' save_model writes tied weights under one name.
static bool tensor_file_index(TensorFile *f, Others *others, size_t total, Error *err) {
    const bool weights = f->first == KEPT_WEIGHTS;
    int n = gpt2_n_tensors(&f->config);
    memset(others, 0, sizeof *others);
    f->tensors = (const SafeTensor **)alloc_or_die(total * sizeof *f->tensors, "tensors");
    for (size_t i = 0; i < f->s.n_tensors; i++) {
        const SafeTensor *t = &f->s.tensors[i];
        int64_t at = tensor_file_place(f, t->name);
        bool head = weights && strcmp(plain_name(t->name).text, "lm_head.weight") == 0;
        if (head && !others->head) others->head = t;
        if (at < 0 && t != others->head && !(weights && weights_is_mask(t->name))
            && !others->stranger) others->stranger = t;
        if (at < 0) continue;
        Tensor wanted = gpt2_tensor(&f->config, (int)(at % n));
        if (f->tensors[at])
            return fail(err, "two tensors are called \"%s%s\"",
                        series_prefix(f->first + (int)(at / n)).text, wanted.key);
        f->tensors[at] = t;
        if (!weights || wanted.init == INIT_ZEROS) f->biases = true;
        if (wanted.kind == QKV_W && t->n_dims == 2 && weights) f->linear = t->dims[0] > t->dims[1];
    }
    if (others->head && !f->tensors[WTE]) f->tensors[WTE] = others->head;
    return true;
}

// Every tensor of the table must be present, in the right shape, and no others; a head must repeat
// the embedding. But weights may be without all biases (nanoGPT's bias=False): then these are 0.
static bool tensor_file_check(TensorFile *f, Error *err) {
    size_t n = (size_t)gpt2_n_tensors(&f->config), total = (size_t)(f->end - f->first) * n;
    Others o;
    if (!tensor_file_index(f, &o, total, err)) return false;
    for (size_t i = 0; i < total; i++) {
        Tensor wanted = gpt2_tensor(&f->config, (int)(i % n));
        if (f->tensors[i] && !tensor_check(f->tensors[i], &wanted, f->linear, err)) return false;
        if (f->tensors[i] || (wanted.init == INIT_ZEROS && !f->biases)) continue;
        return fail(err, "tensor \"%s%s\" is missing%s%.80s%s",
                    series_prefix(f->first + (int)(i / n)).text, wanted.key,
                    o.stranger ? "; the file has \"" : "", o.stranger ? o.stranger->name : "",
                    o.stranger ? "\"" : "");
    }
    if (o.stranger)
        return fail(err, f->first == KEPT_WEIGHTS
                    ? "tensor \"%.80s\" is not part of the GPT-2 that config.json describes"
                    : "tensor \"%.80s\" does not belong in this file", o.stranger->name);
    const SafeTensor *wte = f->tensors[WTE];
    return !o.head || (wte->dtype == o.head->dtype && wte->count == o.head->count
                       && memcmp(wte->data, o.head->data, o.head->end - o.head->begin) == 0)
        || fail(err, "lm_head.weight differs from wte.weight; only tied weights are supported");
}

// ---- opening ----

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

bool weights_foreign_in(const char *dir, Error *err) {
    DIR *d = opendir(dir);
    bool good = true;
    for (struct dirent *e; d && good && (e = readdir(d)) != NULL; )
        good = weights_foreign(path_join(dir, e->d_name).text, err);
    if (d) closedir(d);
    return good;
}

// Opens the files that DIR/model.safetensors.index.json names: {"weight_map": {TENSOR: FILE}}.
static bool weights_open_shards(TensorFile *f, const char *dir, Error *err) {
    Json json;
    Error why;
    if (!json_open(&json, dir, WEIGHTS_INDEX, err)) return false;
    const JsonNode *map = json_need(json.root, "weight_map", JSON_OBJECT, &why);
    bool good = map || fail(err, "%s: %s", f->path.text, why.text);
    const JsonNode *k = good ? json_first(map) : NULL;
    for (; good && k < json_end(map); k = json_next(k + 1)) {
        const JsonNode *file = k + 1, *before = json_first(map);
        if (file->type != JSON_STRING || strchr(file->text, '/'))
            good = fail(err, "%s: byte %zu: not the name of a file in this directory",
                        f->path.text, file->at);
        while (before < k && !json_is(before + 1, file->text)) before = json_next(before + 1);
        if (good && before == k)                         // the first tensor of this file
            good = safetensors_add(&f->s, path_join(dir, file->text).text, err);
    }
    json_free(&json);
    return good;
}

// Opens the weights in DIR: model.safetensors, or its shards.
static bool weights_open(TensorFile *f, const char *dir, Error *err) {
    if (access(f->path.text, F_OK) == 0) return safetensors_open(&f->s, f->path.text, err);
    f->path = path_join(dir, WEIGHTS_INDEX);
    if (access(f->path.text, F_OK) == 0) return weights_open_shards(f, dir, err);
    return weights_foreign_in(dir, err) && fail(err, "%s: model.safetensors is missing", dir);
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
        f->path = path_join(path, kept_file_names[file]);
        if ((file == FILE_OUTER || file == FILE_WORKERS) && access(f->path.text, F_OK) != 0)
            return fail(err, "%s: %s is missing; the run had %lld workers", path,
                        kept_file_names[file], (long long)workers);
        good = file == FILE_WEIGHTS ? weights_open(f, path, err)
                                    : safetensors_open(&f->s, f->path.text, err);
        if (good && !tensor_file_check(f, &why))
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

void tensor_file_bucket(float *elements, TensorFile *f, Kept what, int worker, int bucket) {
    const Config *c = &f->config;
    Range range = gpt2_bucket(c, bucket);
    int series = series_index(what, worker), n = gpt2_n_tensors(c);
    assert(series >= f->first && series < f->end);
    const size_t first = (size_t)(series - f->first) * (size_t)n;
    for (int i = gpt2_bucket_tensor(c, bucket); i < gpt2_bucket_tensor(c, bucket + 1); i++) {
        Tensor t = gpt2_tensor(c, i);
        float *out = elements + t.offset - range.begin;
        const SafeTensor *from = f->tensors ? f->tensors[first + (size_t)i] : NULL;
        const GgufTensor *g = f->gguf.tensors ? &f->gguf.tensors[i] : NULL;
        if (g) tensor_read(out, f->gguf.data + g->offset, &t, true, g->type);
        else if (f->single.bytes) llmc_tensor(out, &t, c, f->single.bytes);
        else if (from) tensor_read(out, from->data, &t, f->linear, from->dtype->type);
        else memset(out, 0, t.count * sizeof *out);
    }
    if (what == KEPT_WEIGHTS) weights_warn(f, elements, bucket);
}
