// Writing a directory of shards, all of them or none (data.h).
#include "data.h"

#ifndef SHARD_TOKENS                 // the tests build with a smaller one
#define SHARD_TOKENS 100000000
#endif

#define UNFINISHED ".prepare-tmp"

// ---- the output directory ----

typedef enum { FOREIGN, OURS, OURS_UNFINISHED } Owner;

// Whether prepare wrote this file: a shard NAME_train_000000.bin and the like, its floor
// NAME_val_000000.floor, or any unfinished file.
static Owner output_owner(const Output *out, const char *file) {
    size_t n = strlen(out->name);
    if (ends_with(file, UNFINISHED)) return OURS_UNFINISHED;
    if (strncmp(file, out->name, n) != 0) return FOREIGN;
    file += n;
    file += strncmp(file, "_train_", 7) == 0 ? 7 : strncmp(file, "_val_", 5) == 0 ? 5 : 0;
    size_t digits = strspn(file, "0123456789");
    bool shard = strcmp(file + digits, ".bin") == 0 || strcmp(file + digits, ".floor") == 0;
    return digits >= 6 && shard ? OURS : FOREIGN;
}

static void output_remove(const Output *out, Owner owner) {
    DIR *list = opendir(out->dir);
    for (struct dirent *entry; list && (entry = readdir(list)); )
        if (output_owner(out, entry->d_name) == owner)
            unlink(path_join(out->dir, entry->d_name).text);
    if (list) closedir(list);
}

// The output that is being written; NULL: none.
static Output **output_current(void) {
    static Output *current;
    return &current;
}

// Restores the directory to its state before the run. die() and a signal's handler call this, so it
// calls only what a handler may.
static void output_discard(void) {
    const Output *out = *output_current();
    if (!out) return;
    for (const Temporary *t = out->temporaries; t; t = t->next) unlink(t->path.text);
    if (out->made) rmdir(out->dir);
}

static void on_interrupt(int signal_number) {
    output_discard();
    signal(signal_number, SIG_DFL);
    raise(signal_number);                                  // the status tells the shell
}

// Sets the handler of the signals that interrupt a run. A signal that is ignored (nohup) stays so.
static void output_on_signals(void (*handler)(int)) {
    const int signals[] = { SIGINT, SIGTERM, SIGHUP };
    for (int i = 0; i < 3; i++)
        if (signal(signals[i], handler) == SIG_IGN) signal(signals[i], SIG_IGN);
}

// The trainer reads all *train*.bin of a directory, so it would silently train on foreign shards
// too: the directory must not hold any. Earlier shards are replaced only with --overwrite.
static bool output_check(const Output *out, bool overwrite, Error *err) {
    DIR *list = opendir(out->dir);
    bool good = true, holds_data = false;
    if (!list) return fail(err, "--out: %s cannot be read: %s", out->dir, strerror(errno));
    for (struct dirent *entry; good && (entry = readdir(list)); ) {
        const char *file = entry->d_name;
        Owner owner = output_owner(out, file);
        if (ends_with(file, ".bin") && owner == FOREIGN)
            good = fail(err, "--out: %s holds %s, which is not a shard of %s; choose "
                        "another directory, or remove it", out->dir, file, out->name);
        if (owner == OURS || strcmp(file, "tokenizer.json") == 0) holds_data = true;
    }
    closedir(list);
    if (!good || !holds_data || overwrite) return good;
    return fail(err, "--out: %s holds shards or a tokenizer already; --overwrite replaces them; or "
                "choose another directory", out->dir);
}

bool output_begin(Output *out, const char *dir, const char *name, bool overwrite, Error *err) {
    memset(out, 0, sizeof *out);
    out->dir = dir;
    out->name = name;
    out->made = access(dir, F_OK) != 0;
    if (!make_directories(dir, err)) return false;
    *output_current() = out;
    *die_last() = output_discard;
    if (!output_check(out, overwrite, err)) return false;
    output_remove(out, OURS_UNFINISHED);                   // left by a killed run
    output_on_signals(on_interrupt);
    signal(SIGPIPE, SIG_IGN);                              // the reader of our output may leave
    return true;
}

// Opens a new file, which output_commit will rename to this name.
static FILE *output_open(Output *out, const char *name, Error *err) {
    Temporary *t = (Temporary *)alloc_or_die(sizeof *t, "a file's name");
    t->final = path_join(out->dir, name);
    t->path = t->final;
    strncat(t->path.text, UNFINISHED, sizeof t->path.text - strlen(t->path.text) - 1);
    t->next = out->temporaries;
    out->temporaries = t;
    int fd = file_create(t->path.text, err);
    return fd < 0 ? NULL : fdopen(fd, "wb");
}

bool output_failed(const Output *out, int why, Error *err) {
    return fail(err, "--out: writing to %s failed: %s; no file was kept", out->dir, strerror(why));
}

// Flushes and syncs the file. A full disk may be reported only here.
static bool output_close(const Output *out, FILE *f, Error *err) {
    bool written = !ferror(f) && fflush(f) == 0 && fsync(fileno(f)) == 0;
    int why = errno;
    return (fclose(f) == 0 && written) || output_failed(out, written ? errno : why, err);
}

// A crash in between leaves too few shards, but never a mixture of two runs. The first shard of the
// training split comes last: without it there is nothing to train on.
bool output_commit(Output *out, Error *err) {
    output_on_signals(SIG_IGN);                            // too late to interrupt
    output_remove(out, OURS);
    while (out->temporaries) {
        Temporary *t = out->temporaries;
        if (rename(t->path.text, t->final.text) != 0)
            return fail(err, "--out: %s cannot be renamed: %s", t->path.text, strerror(errno));
        out->temporaries = t->next;
        free(t);
    }
    *output_current() = NULL;
    return dir_sync(out->dir, err);
}

bool output_tokenizer(Output *out, const Tokenizer *t, Error *err) {
    FILE *f = output_open(out, "tokenizer.json", err);
    if (!f) return false;
    tokenizer_print(f, t);
    return output_close(out, f, err);
}

// ---- shards ----

void split_init(Split *s, Output *out, const char *split, const Tokenizer *t) {
    memset(s, 0, sizeof *s);
    s->out = out;
    s->split = split;
    s->tokenizer = t;
}

static void write_header(const Split *s) {
    const int32_t header[SHARD_HEADER_WORDS] = { SHARD_MAGIC, SHARD_VERSION, (int32_t)s->in_shard,
                                                 s->tokenizer->vocab_size,
                                                 s->tokenizer->eot };
    fwrite(header, sizeof header, 1, s->bin);
}

static bool shard_begin(Split *s, Error *err) {
    char file[64];
    int n = snprintf(file, sizeof file, "%s_%s_%06d", s->out->name, s->split, s->shards);
    s->shards++;
    s->in_shard = 0;
    snprintf(file + n, sizeof file - (size_t)n, ".bin");
    s->bin = output_open(s->out, file, err);
    if (!s->bin) return false;
    write_header(s);                                       // split_end_shard fills in the count
    if (!s->has_floor) return true;
    snprintf(file + n, sizeof file - (size_t)n, ".floor");
    s->floor = output_open(s->out, file, err);
    if (s->floor) fprintf(s->floor, "batchwise floor 1\n");
    return s->floor != NULL;
}

bool split_end_shard(Split *s, Error *err) {
    bool good = true;
    if (s->bin) {
        // fseek flushes; if that fails, output_close reports it.
        if (fseek(s->bin, 0, SEEK_SET) == 0) write_header(s);
        good = output_close(s->out, s->bin, err);
    }
    if (s->floor && !output_close(s->out, s->floor, err)) good = false;
    s->bin = s->floor = NULL;
    return good;
}

bool split_add(Split *s, const int *ids, size_t n, Error *err) {
    uint16_t words[4096];
    while (n > 0) {
        if (s->bin && s->in_shard == SHARD_TOKENS && !split_end_shard(s, err)) return false;
        if (!s->bin && !shard_begin(s, err)) return false;
        size_t part = min_size(min_size(n, 4096), SHARD_TOKENS - s->in_shard);
        for (size_t i = 0; i < part; i++) words[i] = (uint16_t)ids[i];
        fwrite(words, sizeof *words, part, s->bin);        // output_close checks ferror
        s->in_shard += part;
        s->tokens += part;
        ids += part;
        n -= part;
    }
    // Report a full disk now, not after hours of writing.
    return !s->bin || !ferror(s->bin) || split_end_shard(s, err);
}

bool split_end_document(Split *s, Error *err) {
    s->documents++;
    return split_add(s, &s->tokenizer->eot, 1, err);
}

bool split_add_whole(Split *s, const int *ids, size_t n, double nats, Error *err) {
    if (s->bin && s->in_shard + n + 1 > SHARD_TOKENS && !split_end_shard(s, err)) return false;
    if (!s->bin && !shard_begin(s, err)) return false;
    if (s->floor) fprintf(s->floor, "%.9g\n", nats);
    return split_add(s, ids, n, err) && split_end_document(s, err);
}
