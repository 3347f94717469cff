// --export FILE.gguf: a checkpoint as GGUF, which llama.cpp and what is built on it can run
// (train.h).
#include "train.h"

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

// Writes all of the file. `path` is for messages.
static bool export_write(const Run *r, int fd, TensorFile *f, const char *path, Error *err) {
    FloatType type = export_type(r->o.export_file);
    GgufHeader h;
    gguf_begin(&h);
    gguf_put_model(&h, &f->config, type);
    tokenizer_put_gguf(&h, &r->tokenizer, f->config.V);
    gguf_put_tensors(&h, &f->config, type);
    gguf_end(&h);
    bool put = file_put(fd, h.t.text, h.t.n, path, err) && export_tensors(fd, f, type, path, err);
    free(h.t.text);
    return put;
}

static bool export_save(const Run *r, TensorFile *f, const char *path, Error *err) {
    Path temporary;
    int fd = file_begin(&temporary, path, err);
    return fd >= 0
        && file_end(fd, &temporary, path, export_write(r, fd, f, temporary.text, err), err);
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
