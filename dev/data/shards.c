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
static Output *output_current;

// Restores the directory to its state before the run. die() and a signal's handler call this, so it
// calls only what a handler may.
static void output_discard(void) {
    const Output *out = output_current;
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
static void output_check(const Output *out, bool overwrite) {
    DIR *list = opendir(out->dir);
    bool holds_data = false;
    if (!list) die("--out: %s cannot be read: %s", out->dir, strerror(errno));
    for (struct dirent *entry; (entry = readdir(list)); ) {
        const char *file = entry->d_name;
        Owner owner = output_owner(out, file);
        if (ends_with(file, ".bin") && owner == FOREIGN)
            die("--out: %s holds %s, which is not a shard of %s; choose another directory, or "
                "remove it", out->dir, file, out->name);
        if (owner == OURS || strcmp(file, "tokenizer.json") == 0) holds_data = true;
    }
    closedir(list);
    if (holds_data && !overwrite)
        die("--out: %s holds shards or a tokenizer already; --overwrite replaces them; or choose "
            "another directory", out->dir);
}

void output_begin(Output *out, const char *dir, const char *name, bool overwrite) {
    Error err;
    memset(out, 0, sizeof *out);
    out->dir = dir;
    out->name = name;
    out->made = access(dir, F_OK) != 0;
    if (!make_directories(dir, &err)) die("%s", err.text);
    output_current = out;
    *die_last() = output_discard;
    output_check(out, overwrite);
    output_remove(out, OURS_UNFINISHED);                   // left by a killed run
    output_on_signals(on_interrupt);
    signal(SIGPIPE, SIG_IGN);                              // the reader of our output may leave
}

// Opens a new file, which output_commit will rename to this name.
static FILE *output_open(Output *out, const char *name) {
    Error err;
    Temporary *t = (Temporary *)alloc_or_die(sizeof *t, "a file's name");
    t->final = path_join(out->dir, name);
    t->path = t->final;
    strncat(t->path.text, UNFINISHED, sizeof t->path.text - strlen(t->path.text) - 1);
    t->next = out->temporaries;
    out->temporaries = t;
    int fd = file_create(t->path.text, &err);
    if (fd < 0) die("%s", err.text);
    return fdopen(fd, "wb");
}

void output_failed(const Output *out) {
    die("--out: writing to %s failed: %s; no file was kept", out->dir, strerror(errno));
}

// Flushes and syncs the file. A full disk may be reported only here.
static void output_close(const Output *out, FILE *f) {
    if (ferror(f) || fflush(f) != 0 || fsync(fileno(f)) != 0 || fclose(f) != 0) output_failed(out);
}

// A crash in between leaves too few shards, but never a mixture of two runs. The first shard of the
// training split comes last: without it there is nothing to train on.
void output_commit(Output *out) {
    Error err;
    output_on_signals(SIG_IGN);                            // too late to interrupt
    output_remove(out, OURS);
    while (out->temporaries) {
        Temporary *t = out->temporaries;
        if (rename(t->path.text, t->final.text) != 0)
            die("--out: %s cannot be renamed: %s", t->path.text, strerror(errno));
        out->temporaries = t->next;
        free(t);
    }
    output_current = NULL;
    if (!dir_sync(out->dir, &err)) die("%s", err.text);
}

void output_tokenizer(Output *out, const Tokenizer *t) {
    FILE *f = output_open(out, "tokenizer.json");
    tokenizer_print(f, t);
    output_close(out, f);
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

static void shard_begin(Split *s) {
    char file[64];
    int n = snprintf(file, sizeof file, "%s_%s_%06d", s->out->name, s->split, s->shards);
    s->shards++;
    s->in_shard = 0;
    snprintf(file + n, sizeof file - (size_t)n, ".bin");
    s->bin = output_open(s->out, file);
    write_header(s);                                       // split_end_shard fills in the count
    if (!s->has_floor) return;
    snprintf(file + n, sizeof file - (size_t)n, ".floor");
    s->floor = output_open(s->out, file);
    fprintf(s->floor, "batchwise floor 1\n");
}

void split_end_shard(Split *s) {
    if (!s->bin) return;
    // fseek flushes; if that fails, output_close reports it.
    if (fseek(s->bin, 0, SEEK_SET) == 0) write_header(s);
    output_close(s->out, s->bin);
    if (s->floor) output_close(s->out, s->floor);
    s->bin = s->floor = NULL;
}

void split_add(Split *s, const int *ids, size_t n) {
    uint16_t words[4096];
    while (n > 0) {
        if (s->bin && s->in_shard == SHARD_TOKENS) split_end_shard(s);
        if (!s->bin) shard_begin(s);
        size_t part = min_size(min_size(n, 4096), SHARD_TOKENS - s->in_shard);
        for (size_t i = 0; i < part; i++) words[i] = (uint16_t)ids[i];
        // Reports a full disk now, not after hours of writing.
        if (fwrite(words, sizeof *words, part, s->bin) < part) output_failed(s->out);
        s->in_shard += part;
        s->tokens += part;
        ids += part;
        n -= part;
    }
}

void split_end_document(Split *s) {
    s->documents++;
    split_add(s, &s->tokenizer->eot, 1);
}

void split_add_whole(Split *s, const int *ids, size_t n, double nats) {
    if (s->bin && s->in_shard + n + 1 > SHARD_TOKENS) split_end_shard(s);
    if (!s->bin) shard_begin(s);
    if (s->floor) fprintf(s->floor, "%.9g\n", nats);
    split_add(s, ids, n);
    split_end_document(s);
}
