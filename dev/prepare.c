// prepare: writes the shards of tokens that the trainers read.
//
//     prepare tales --out DIR        the embedded corpus: fresh tales from a grammar
//     prepare text FILE... --out DIR any text: files, or documents between lines <|endoftext|>
//     prepare jsonl FILE... --out DIR documents in JSON lines, as they come out of a pipe
//     prepare encode, prepare decode text to token ids and back
//
// A shard is 256 little-endian int32 (magic, version, tokens, vocabulary, end of text), then its
// tokens as uint16. All files of a run are written under temporary names (*.prepare-tmp), and are
// renamed only when all of them are complete and on the disk. An error or an interrupt removes the
// temporary files; the next run removes those that kill -9 left.
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include "../dataloader.h"
#include "base/base.h"
#include "data/data.h"
#include "files/files.h"

#ifndef SHARD_TOKENS                 // the tests build with a smaller one
#define SHARD_TOKENS 100000000
#endif

#define TOKENIZER_HELP "vocabulary: byte (each byte is a token), or FILE: tokenizer.json, " \
                       "vocab.json (with merges.txt beside it), gpt2.tiktoken, or a directory " \
                       "with one of them"

// Rows of several commands' tables.
#define OUTPUT_ROWS(Options) \
    { "out", "DIR", OPT_TEXT, offsetof(Options, out), NULL, 1, 0, NULL, \
      "output", "directory for the shards; created if missing", NULL }, \
    { "overwrite", NULL, OPT_FLAG, offsetof(Options, overwrite), NULL, 0, 0, NULL, \
      "output", "replace the shards that --out holds", NULL }
#define EOS_ROW \
    { "eos", "NAME", OPT_TEXT, offsetof(TextOptions, eos), END_OF_TEXT, 1, 0, NULL, \
      "output", "what --tokenizer FILE calls its end of text, as </s>", NULL }

// Parses a command's flags, and its files where it takes any. False after --help.
static bool flags_take(void *o, const Option *table, int rows, int argc, char **argv, int *n_files,
                       const char *usage) {
    Error err;
    char **files = n_files ? argv : NULL;                  // their places are free once read
    if (!options_parse(o, table, rows, argc, argv, files, n_files, &err)) die("%s", err.text);
    if (!options_given(o, table, rows, "help")) return true;
    options_help(stdout, usage, table, rows);
    return false;
}

static void need_out(const char *out) {
    if (!out) die("--out: missing; expected the directory to write to");
}

// ============================== the output directory ==============================

#define UNFINISHED ".prepare-tmp"

// A file that is being written, under its final name + UNFINISHED.
typedef struct Temporary {
    Path path, final;
    struct Temporary *next;
} Temporary;

// A directory in which one run of prepare writes one set of shards: NAME_train_000000.bin, ...
typedef struct {
    const char *dir;
    const char *name;                // "tales" or "text"
    int fd;                          // the directory, locked during the run
    bool made;                       // it did not exist before
    Temporary *temporaries;          // newest first
} Output;

typedef enum { FOREIGN, OURS, OURS_UNFINISHED } Owner;

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

// Whether prepare wrote this file: a shard NAME_train_000000.bin and the like, its floor
// NAME_val_000000.floor, or any unfinished file.
static Owner output_owner(const Output *out, const char *file) {
    size_t n = strlen(out->name);
    if (ends_with(file, UNFINISHED)) return OURS_UNFINISHED;
    if (strncmp(file, out->name, n) != 0) return FOREIGN;
    file += n;
    if (strncmp(file, "_train_", 7) == 0) file += 7;
    else if (strncmp(file, "_val_", 5) == 0) file += 5;
    else return FOREIGN;
    size_t digits = strspn(file, "0123456789");
    if (digits < 6) return FOREIGN;
    file += digits;
    return strcmp(file, ".bin") == 0 || strcmp(file, ".floor") == 0 ? OURS : FOREIGN;
}

static DIR *output_list(const Output *out) {
    DIR *list = opendir(out->dir);
    if (!list) die("--out: %s cannot be read: %s", out->dir, strerror(errno));
    return list;
}

static void output_remove(const Output *out, Owner owner) {
    DIR *list = output_list(out);
    for (struct dirent *entry; (entry = readdir(list)); )
        if (output_owner(out, entry->d_name) == owner)
            unlink(path_join(out->dir, entry->d_name).text);
    closedir(list);
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
    DIR *list = output_list(out);
    bool good = true, holds_data = false;
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

static bool output_begin(Output *out, const char *dir, const char *name, bool overwrite,
                         Error *err) {
    memset(out, 0, sizeof *out);
    out->dir = dir;
    out->name = name;
    out->made = access(dir, F_OK) != 0;
    if (!make_directories(dir, err)) return false;
    out->fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (out->fd < 0)
        return fail(err, "--out: %s cannot be opened as a directory: %s", dir, strerror(errno));
    *output_current() = out;
    *die_last() = output_discard;
    // Any other error: a file system without locks. Then the run goes on without one.
    if (flock(out->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return fail(err, "--out: another prepare is writing to %s; wait until it ends", dir);
    if (!output_check(out, overwrite, err)) return false;
    output_remove(out, OURS_UNFINISHED);                   // left by a killed run
    output_on_signals(on_interrupt);
    signal(SIGPIPE, SIG_IGN);                              // the reader of our output may leave
    return true;
}

// Opens a new file, which output_commit will rename to this name.
static FILE *output_open(Output *out, const char *name, Error *err) {
    Temporary *t = (Temporary *)alloc_or_die(sizeof *t, "a file's name");
    char unfinished[64];
    snprintf(unfinished, sizeof unfinished, "%s" UNFINISHED, name);
    t->path = path_join(out->dir, unfinished);
    t->final = path_join(out->dir, name);
    t->next = out->temporaries;
    out->temporaries = t;
    unlink(t->path.text);                                  // what a killed run has left
    int fd = open(t->path.text, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "wb");
    if (f) return f;
    fail(err, "--out: %s cannot be written: %s", t->path.text, strerror(errno));
    if (fd >= 0) close(fd);
    return NULL;
}

// Flushes and syncs the file. A full disk may be reported only here.
static bool output_close(const Output *out, FILE *f, Error *err) {
    bool written = !ferror(f) && fflush(f) == 0 && fsync(fileno(f)) == 0;
    int why = errno;
    if (fclose(f) != 0 && written) written = false, why = errno;
    if (written) return true;
    return fail(err, "--out: writing to %s failed: %s; no file was kept", out->dir,
                strerror(why));
}

// Called when every file is complete: removes the shards of an earlier run, then renames this run's
// files. A crash in between leaves too few shards, but never a mixture of two runs. The first shard
// of the training split comes last: without it there is nothing to train on.
static bool output_commit(Output *out, Error *err) {
    output_on_signals(SIG_IGN);                            // too late to interrupt
    output_remove(out, OURS);
    while (out->temporaries) {
        Temporary *t = out->temporaries;
        if (rename(t->path.text, t->final.text) != 0)
            return fail(err, "--out: %s cannot be renamed: %s", t->path.text, strerror(errno));
        out->temporaries = t->next;
        free(t);
    }
    fsync(out->fd);
    close(out->fd);
    *output_current() = NULL;
    return true;
}

static bool output_tokenizer(Output *out, const Tokenizer *t, Error *err) {
    FILE *f = output_open(out, "tokenizer.json", err);
    if (!f) return false;
    tokenizer_print(f, t);
    return output_close(out, f, err);
}

// ============================== shards ==============================

// Writes one split, train or val, as shards.
typedef struct {
    Output *out;
    const char *split;
    int vocab_size, eot;
    FILE *bin, *floor;               // the current shard, and its .floor file or NULL
    int shards;                      // started so far
    size_t in_shard;                 // tokens in the current shard
    uint64_t tokens, bytes, documents;
} Split;

typedef enum { WITHOUT_FLOOR, WITH_FLOOR } ShardKind;

// Whether the document after so many is for validation. It gets its share evenly: the length of a
// stream of documents is unknown.
static bool is_held_out(double before, double fraction) {
    return floor((before + 1.0) * fraction) > floor(before * fraction);
}

static void split_init(Split *s, Output *out, const char *split, const Tokenizer *t) {
    memset(s, 0, sizeof *s);
    s->out = out;
    s->split = split;
    s->vocab_size = t->vocab_size;
    s->eot = t->eot;
}

static void write_header(const Split *s) {
    const int header[5] = { SHARD_MAGIC, SHARD_VERSION, (int)s->in_shard, s->vocab_size, s->eot };
    for (int i = 0; i < SHARD_HEADER_WORDS; i++)
        for (int shift = 0; shift < 32; shift += 8)        // little-endian
            fputc(i < 5 ? header[i] >> shift & 255 : 0, s->bin);
}

static bool shard_begin(Split *s, ShardKind kind, Error *err) {
    char file[48];
    int n = snprintf(file, sizeof file, "%s_%s_%06d", s->out->name, s->split, s->shards);
    s->shards++;
    s->in_shard = 0;
    snprintf(file + n, sizeof file - (size_t)n, ".bin");
    s->bin = output_open(s->out, file, err);
    if (!s->bin) return false;
    write_header(s);                                       // shard_end fills in the count
    if (kind == WITHOUT_FLOOR) return true;
    snprintf(file + n, sizeof file - (size_t)n, ".floor");
    s->floor = output_open(s->out, file, err);
    if (s->floor) fprintf(s->floor, "batchwise floor 1\n");
    return s->floor != NULL;
}

// Completes the current shard, if there is one.
static bool shard_end(Split *s, Error *err) {
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

// Writes n tokens to the current shard, which must have room for them.
static void shard_add(Split *s, const int *ids, size_t n) {
    unsigned char bytes[2 * 4096];
    for (size_t done = 0; done < n; ) {
        size_t part = n - done < 4096 ? n - done : 4096;
        for (size_t i = 0; i < part; i++) {
            bytes[2*i] = (unsigned char)(ids[done + i] & 255);
            bytes[2*i + 1] = (unsigned char)(ids[done + i] >> 8);
        }
        fwrite(bytes, 2, part, s->bin);                    // output_close checks ferror
        done += part;
    }
    s->in_shard += n;
    s->tokens += n;
}

// Adds tokens to the split, and starts a new shard whenever one is full.
static bool split_add(Split *s, const int *ids, size_t n, Error *err) {
    while (n > 0) {
        if (s->bin && s->in_shard == SHARD_TOKENS && !shard_end(s, err)) return false;
        if (!s->bin && !shard_begin(s, WITHOUT_FLOOR, err)) return false;
        size_t room = SHARD_TOKENS - s->in_shard, part = n < room ? n : room;
        shard_add(s, ids, part);
        ids += part;
        n -= part;
    }
    // Report a full disk now, not after hours of writing.
    return !s->bin || !ferror(s->bin) || shard_end(s, err);
}

static bool split_end_document(Split *s, Error *err) {
    s->documents++;
    return split_add(s, &s->eot, 1, err);
}

// ============================== prepare tales ==============================

#define TALES_AT_ONCE 256
#define TALES_VAL_TOKENS 500000

typedef struct {
    Given given;
    const char *out;
    bool overwrite;
    int64_t tokens, seed;
} TalesOptions;

static const Option tales_table[] = {
    OUTPUT_ROWS(TalesOptions),
    { "tokens", "N", OPT_COUNT, offsetof(TalesOptions, tokens), "20000000", 1, 1e12, NULL,
      "output", "training tokens, rounded up to a whole tale; 500000 more for validation", NULL },
    { "seed", "N", OPT_COUNT, offsetof(TalesOptions, seed), "1", 0, 9e15, NULL,
      "output", "random seed; the same seed gives the same bytes", NULL },
    { "help", NULL, OPT_HELP, 0, NULL, 0, 0, NULL, "help", "print this text", NULL },
};
#define TALES_OPTIONS ((int)(sizeof tales_table / sizeof tales_table[0]))

typedef struct {
    char text[TALES_AT_ONCE][TALE_MAX];
    size_t length[TALES_AT_ONCE];
    double nats[TALES_AT_ONCE];
} Tales;

// Each tale draws from a random stream of its own, so the tales do not depend on the number of
// threads. Even streams are for training, odd streams for validation.
static void tales_fill(Tales *tales, uint64_t seed, uint64_t first, int odd) {
    #pragma omp parallel for schedule(static)
    for (int i = 0; i < TALES_AT_ONCE; i++) {
        Rng rng = rng_make(seed, 2 * (first + (uint64_t)i) + (uint64_t)odd);
        tales->length[i] = tale_write(tales->text[i], TALE_MAX, &tales->nats[i], &rng);
    }
}

static bool tales_add(Split *s, const char *text, size_t n, double nats, ShardKind kind,
                      Error *err) {
    int ids[TALE_MAX];
    if (s->bin && s->in_shard + n + 1 > SHARD_TOKENS && !shard_end(s, err)) return false;
    if (!s->bin && !shard_begin(s, kind, err)) return false;
    for (size_t i = 0; i < n; i++) ids[i] = (unsigned char)text[i];
    if (s->floor) fprintf(s->floor, "%.9g\n", nats);
    s->bytes += n;
    return split_add(s, ids, n, err) && split_end_document(s, err);
}

// Writes whole tales until there are `tokens` tokens or more; *nats receives the sum of -ln p.
static bool tales_split(Split *s, double *nats, Tales *tales, uint64_t tokens, uint64_t seed,
                        ShardKind kind, Error *err) {
    bool good = true;
    Progress progress = progress_begin("writing tales", (double)tokens);
    *nats = 0.0;
    for (uint64_t first = 0; good && s->tokens < tokens; first += TALES_AT_ONCE) {
        tales_fill(tales, seed, first, kind == WITH_FLOOR);
        for (int i = 0; good && i < TALES_AT_ONCE && s->tokens < tokens; i++) {
            *nats += tales->nats[i];
            good = tales_add(s, tales->text[i], tales->length[i], tales->nats[i], kind, err);
        }
        progress_show(&progress, (double)s->tokens);
    }
    progress_end(&progress);
    return good && shard_end(s, err);
}

static bool tales_write(Output *out, const TalesOptions *o, Error *err) {
    Tokenizer t;
    Split train, val;
    double train_nats, val_nats;
    tokenizer_bytes(&t);
    split_init(&train, out, "train", &t);
    split_init(&val, out, "val", &t);
    Tales *tales = (Tales *)alloc_or_die(sizeof *tales, "tales");
    uint64_t seed = (uint64_t)o->seed;
    bool good =
        tales_split(&train, &train_nats, tales, (uint64_t)o->tokens, seed, WITHOUT_FLOOR, err)
        && tales_split(&val, &val_nats, tales, TALES_VAL_TOKENS, seed, WITH_FLOOR, err)
        && output_tokenizer(out, &t, err);
    if (good) {
        printf("train  %12" PRIu64 " tokens, %" PRIu64 " tales, shards: %d\n", train.tokens,
               train.documents, train.shards);
        printf("val    %12" PRIu64 " tokens, %" PRIu64 " tales, shards: %d\n", val.tokens,
               val.documents, val.shards);
        printf("a token is a byte; entropy floor of val: %.4f nats a token\n",
               val_nats / (double)val.tokens);
    }
    free(tales);
    tokenizer_free(&t);
    return good;
}

static void command_tales(int argc, char **argv) {
    TalesOptions o;
    Output out;
    Error err;
    double start = seconds_now();
    if (!flags_take(&o, tales_table, TALES_OPTIONS, argc, argv, NULL,
                    "usage: prepare tales --out DIR [flags]\n"
                    "Writes children's tales from a grammar whose entropy is known.")) return;
    need_out(o.out);
    if (!output_begin(&out, o.out, "tales", o.overwrite, &err) || !tales_write(&out, &o, &err)
        || !output_commit(&out, &err)) die("%s", err.text);
    printf("%s written in %.1f s\n", o.out, seconds_now() - start);
}

// ============================== prepare text ==============================

#ifndef TEXT_BLOCK                   // bytes read at a time; the tests use fewer
#define TEXT_BLOCK (8u << 20)
#endif

typedef struct {
    Given given;
    const char *out, *tokenizer, *eos, *separator, *key;
    bool overwrite, skip_bad;
    double val_fraction;
} TextOptions;

static const Option text_table[] = {
    OUTPUT_ROWS(TextOptions),
    { "tokenizer", "byte|bpe:N|FILE", OPT_TEXT, offsetof(TextOptions, tokenizer), "byte", 1, 0,
      NULL, "output", TOKENIZER_HELP "; bpe:N trains a vocabulary of N tokens on the "
      "training part", NULL },
    EOS_ROW,
    { "separator", "LINE", OPT_TEXT, offsetof(TextOptions, separator), END_OF_TEXT, 0, 0, NULL,
      "output", "a line that holds this and nothing else ends a document; none: a file is one",
      NULL },
    { "val-fraction", "X", OPT_REAL, offsetof(TextOptions, val_fraction), "0.1", 0, 0.99, NULL,
      "output", "fraction for validation: of 20 documents or more whole ones, spread evenly; of "
      "fewer the end of the text; 0: none", NULL },
    { "help", NULL, OPT_HELP, 0, NULL, 0, 0, NULL, "help", "print this text", NULL },
};
#define TEXT_OPTIONS ((int)(sizeof text_table / sizeof text_table[0]))

// A file of documents. It is open only while it is read: there may be thousands.
typedef struct {
    const char *path;                // "standard input" for -
    FILE *file;                      // NULL: closed
    bool spooled;                    // a copy of a pipe, which stays open
    uint64_t size;
    struct stat info;                // of a file
} Text;

// Bytes from ... to-1 of a text: a document, or the part of one on one side of the cut.
typedef struct {
    Text *text;
    uint64_t from, to;
    bool val;                        // for validation, not for training
    bool unended;                    // the document goes on in the other split
} Piece;

// All texts, and their documents in order.
typedef struct {
    Text *texts;
    int n_texts;
    Piece *pieces;
    size_t n, capacity;
    Text *text;                      // the one that is being looked through
    double bytes;                    // of all texts
} Corpus;

// Fewer documents than these are not held out whole: too little, or too much, would be in one.
enum { WHOLE_DOCUMENTS = 20 };

// The number of bytes (0 to 3) before the middle of window[0..n) that belong to a UTF-8 character
// across the middle.
static int utf8_straddle(const unsigned char *window, int n, int middle) {
    for (int back = 1; back <= 3 && back <= middle; back++) {
        size_t left = (size_t)(n - middle + back);
        if ((int)utf8_length(window + middle - back, left) > back) return back;
    }
    return 0;
}

// Opens the text, if it is closed, to read from byte `at` on.
static bool text_open(Text *text, uint64_t at, Error *err) {
    if (!text->file) text->file = fopen(text->path, "rb");
    if (!text->file) return fail(err, "%s: cannot be opened: %s", text->path, strerror(errno));
    if (fseeko(text->file, (off_t)at, SEEK_SET) == 0) return true;
    return fail(err, "%s: cannot be read: %s", text->path, strerror(errno));
}

static void text_close(Text *text) {
    if (text->spooled || !text->file) return;
    fclose(text->file);
    text->file = NULL;
}

// Copies a pipe to a file without a name in --out: the text's size is known only at its end, and
// bpe:N reads it twice.
static bool text_spool(Text *text, FILE *pipe, const Output *out, Error *err) {
    char bytes[65536];
    Path path = path_join(out->dir, "input" UNFINISHED);
    unlink(path.text);
    int fd = open(path.text, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    text->file = fd < 0 ? NULL : fdopen(fd, "w+b");
    if (!text->file)
        return fail(err, "--out: %s cannot be written: %s", path.text, strerror(errno));
    text->spooled = true;
    unlink(path.text);
    for (size_t n; (n = fread(bytes, 1, sizeof bytes, pipe)) > 0; text->size += n)
        if (fwrite(bytes, 1, n, text->file) != n) break;
    if (ferror(pipe)) return fail(err, "%s: cannot be read: %s", text->path, strerror(errno));
    if (fflush(text->file) == 0 && !ferror(text->file)) return true;
    return fail(err, "--out: writing to %s failed: %s; no file was kept", out->dir,
                strerror(errno));
}

// Refuses a file that is known not to be a text. A web page is one.
static bool text_check(Text *text, Error *err) {
    unsigned char head[512];
    if (!text_open(text, 0, err)) return false;
    size_t n = fread(head, 1, sizeof head, text->file);
    const char *kind = n > 0 && *head == '<' ? NULL : file_kind(head, n);
    text_close(text);
    return !kind || fail(err, "%s: not a text but %s", text->path, kind);
}

// Finds the size of a text. A pipe is read to its end.
static bool text_measure(Text *text, const char *path, const Output *out, Error *err) {
    bool dash = strcmp(path, "-") == 0;
    text->path = dash ? "standard input" : path;
    if (!dash && stat(path, &text->info) != 0)
        return fail(err, "%s: cannot be opened: %s", path, strerror(errno));
    if (!dash && S_ISDIR(text->info.st_mode))
        return fail(err, "%s: is a directory; name its files: %s/*.txt", path, path);
    if (!dash && S_ISREG(text->info.st_mode)) {
        text->size = (uint64_t)text->info.st_size;
    } else if (dash || S_ISFIFO(text->info.st_mode)) {
        if (isatty(STDOUT_FILENO)) printf("reading %s\n", text->path), fflush(stdout);
        FILE *pipe = dash ? stdin : fopen(path, "rb");
        if (!pipe) return fail(err, "%s: cannot be opened: %s", path, strerror(errno));
        bool read = text_spool(text, pipe, out, err);
        if (!dash) fclose(pipe);
        if (!read) return false;
    } else {
        return fail(err, "%s: is not a file or a pipe", path);
    }
    if (text->size == 0) return fail(err, "%s: is empty; expected a text", text->path);
    return text_check(text, err);
}

// ---- documents, and the two splits ----

static void corpus_add(void *corpus, uint64_t from, uint64_t to) {
    Corpus *c = (Corpus *)corpus;
    c->pieces = (Piece *)grow_or_die(c->pieces, &c->capacity, c->n + 1, sizeof *c->pieces,
                                     "a list of documents");
    Piece piece = { c->text, from, to, false, false };
    c->pieces[c->n++] = piece;
}

// Warns of bytes that no text in UTF-8 has: once, of the first kind that there is.
static void odd_warn(const Scan *s) {
    const Odd *odd = s->nul.count ? &s->nul : &s->invalid;
    const char *utf16 = odd->first % 2 ? "UTF-16LE" : "UTF-16BE";
    const char *code = odd == &s->nul ? utf16 : "LATIN1";
    if (odd->count == 0) return;
    warn("%s: byte %" PRIu64 " is %s, and %" PRIu64 " in all are; they become tokens as they are; "
         "if the text is in %s, `iconv -f %s -t UTF-8` converts it", odd->path, odd->first,
         odd == &s->nul ? "NUL" : "not UTF-8", odd->count, code, code);
}

// Looks through all texts for documents, and for odd bytes.
static bool corpus_scan(Corpus *c, const char *separator, Error *err) {
    Scan *s = (Scan *)alloc_or_die(sizeof *s, "a block of text");
    double done = 0.0;
    bool good = true;
    Progress progress = progress_begin("looking for documents", c->bytes);
    s->separator = separator;
    s->found = corpus_add;
    s->corpus = c;
    for (int i = 0; good && i < c->n_texts; i++) {
        Text *text = c->text = &c->texts[i];
        scan_begin(s, text->path);
        good = text_open(text, 0, err);
        while (good && scan_block(s, text->file)) progress_show(&progress, done + (double)s->size);
        if (good && ferror(text->file))
            good = fail(err, "%s: cannot be read: %s", text->path, strerror(errno));
        text_close(text);
        done += (double)s->size;
    }
    progress_end(&progress);
    if (good) odd_warn(s);
    if (good && s->separators > 0)
        printf("ends   %12" PRIu64 " lines \"%s\" end documents\n", s->separators, separator);
    if (good && s->inside > s->separators)
        printf("note   \"%s\" also stands inside lines, where it is ordinary text: alone in a line "
               "it ends a document\n", separator);
    if (good && separator && strcmp(separator, END_OF_TEXT) != 0 && s->separators == 0)
        warn("--separator: no line is \"%s\" alone", separator);
    free(s);
    return good;
}

// Holds out whole documents, spread evenly.
static void corpus_hold_out(Corpus *c, double fraction) {
    size_t held = 0;
    for (size_t i = 0; i < c->n; i++) {
        c->pieces[i].val = is_held_out((double)i, fraction);
        held += c->pieces[i].val;
    }
    printf("split  %12zu documents of %zu, spread evenly, are for validation\n", held, c->n);
}

// The last `fraction` of all bytes is for validation. The cut is moved out of a character.
static bool corpus_cut(Corpus *c, double fraction, Error *err) {
    unsigned char window[8];
    uint64_t total = 0, cut;
    size_t i = 0;
    for (size_t k = 0; k < c->n; k++) total += c->pieces[k].to - c->pieces[k].from;
    cut = (uint64_t)((double)total * (1.0 - fraction));
    while (i < c->n && cut >= c->pieces[i].to - c->pieces[i].from)
        cut -= c->pieces[i].to - c->pieces[i].from, i++;
    if (i == c->n) return true;
    Piece piece = c->pieces[i];
    uint64_t at = piece.from + cut, from = at < 4 ? 0 : at - 4;
    if (!text_open(piece.text, from, err)) return false;
    size_t n = fread(window, 1, sizeof window, piece.text->file);
    text_close(piece.text);
    if (from + n < at) return fail(err, "%s: shrank while it was read", piece.text->path);
    at -= (uint64_t)utf8_straddle(window, (int)n, (int)(at - from));
    corpus_add(c, 0, 0);
    memmove(&c->pieces[i + 1], &c->pieces[i], (c->n - 1 - i) * sizeof piece);
    c->pieces[i].to = c->pieces[i + 1].from = at;
    c->pieces[i].unended = true;
    while (++i < c->n) c->pieces[i].val = true;
    printf("split  the last %g%% are for validation: cut inside %s, without an end of text there; "
           "from %d documents on whole ones are held out\n", 100.0 * fraction, piece.text->path,
           WHOLE_DOCUMENTS);
    return true;
}

// Decides what is for training. Refuses texts too short to be split.
static bool corpus_split(Corpus *c, double fraction, Error *err) {
    uint64_t bytes[2] = { 0, 0 };
    if (c->n >= WHOLE_DOCUMENTS && fraction * (double)c->n >= 1.0) corpus_hold_out(c, fraction);
    else if (!corpus_cut(c, fraction, err)) return false;
    for (size_t i = 0; i < c->n; i++)
        bytes[c->pieces[i].val] += c->pieces[i].to - c->pieces[i].from;
    if (bytes[0] > 0 && (bytes[1] > 0 || fraction == 0.0)) return true;
    return fail(err, "%s: %" PRIu64 " bytes are too few for a training and a validation part; use "
                "a longer text or another --val-fraction", c->texts[0].path, bytes[0] + bytes[1]);
}

// A file that is given twice may be trained on and validated with.
static void warn_twice(const Text *texts, int n) {
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            if (texts[i].info.st_ino != 0 && texts[i].info.st_ino == texts[j].info.st_ino
                && texts[i].info.st_dev == texts[j].info.st_dev) {
                warn("%s: is given twice; its text may be in both splits", texts[i].path);
                return;
            }
}

// Finds the documents of all texts, and their splits, before anything is encoded.
static bool corpus_open(Corpus *c, char **paths, int n, const TextOptions *o, const Output *out,
                        Error *err) {
    const char *separator = strcmp(o->separator, "none") == 0 ? NULL : o->separator;
    memset(c, 0, sizeof *c);
    if (strlen(o->separator) > SEPARATOR_MOST)
        return fail(err, "--separator: expected at most %d bytes", SEPARATOR_MOST);
    c->texts = (Text *)alloc_or_die((size_t)n * sizeof *c->texts, "the list of texts");
    c->n_texts = n;
    for (int i = 0; i < n; i++) {
        if (!text_measure(&c->texts[i], paths[i], out, err)) return false;
        c->bytes += (double)c->texts[i].size;
    }
    warn_twice(c->texts, n);
    return corpus_scan(c, separator, err) && corpus_split(c, o->val_fraction, err);
}

static void corpus_close(Corpus *c) {
    for (int i = 0; i < c->n_texts; i++)
        if (c->texts[i].spooled) fclose(c->texts[i].file);
    free(c->texts);
    free(c->pieces);
}

// ---- encoding ----

// A buffer to encode a text block by block. Blocks end where tokenizer_cut allows.
typedef struct {
    char *text;
    int *ids;
    size_t capacity, held;           // in bytes; held: read, not yet encoded
    Progress progress;
    double read;                     // bytes, of progress.total
} Blocks;

static void blocks_init(Blocks *b, size_t capacity) {
    memset(b, 0, sizeof *b);
    b->text = (char *)alloc_or_die(capacity, "a block of text");
    b->ids = (int *)alloc_or_die(capacity * sizeof *b->ids, "the tokens of a block of text");
    b->capacity = capacity;
}

static void blocks_free(Blocks *b) {
    free(b->text);
    free(b->ids);
}

// Doubles the buffer: a block that tokenizer_cut cannot cut (a word of megabytes) is held whole.
static void blocks_double(Blocks *b) {
    Blocks larger;
    blocks_init(&larger, 2 * b->capacity);
    memcpy(larger.text, b->text, b->held);
    blocks_free(b);
    b->text = larger.text;
    b->ids = larger.ids;
    b->capacity = larger.capacity;
}

// Reads up to `most` bytes after those held; *taken receives the number, 0 at the end of the file.
// Returns the number of held bytes that may be encoded: up to the last cut, or all at the end.
static size_t blocks_read(Blocks *b, size_t *taken, FILE *file, uint64_t most) {
    if (b->held == b->capacity) blocks_double(b);
    size_t room = b->capacity - b->held, want = most < room ? (size_t)most : room;
    *taken = fread(b->text + b->held, 1, want, file);
    b->held += *taken;
    bool last = *taken < want || want == most;
    return last ? b->held : tokenizer_cut(b->text, b->held);
}

// Removes the first n bytes.
static void blocks_drop(Blocks *b, size_t n) {
    b->held -= n;
    memmove(b->text, b->text + n, b->held);
}

// Reads the next block of bytes *from ... to-1 of a text, and advances *from.
static bool text_read(Blocks *b, size_t *ready, const Text *text, uint64_t *from, uint64_t to,
                      Error *err) {
    size_t taken;
    *ready = blocks_read(b, &taken, text->file, to - *from);
    *from += taken;
    b->read += (double)taken;
    progress_show(&b->progress, b->read);
    if (taken > 0) return true;
    if (ferror(text->file))
        return fail(err, "%s: cannot be read: %s", text->path, strerror(errno));
    return fail(err, "%s: shrank while it was read", text->path);
}

// Counts the words of a piece, for training a vocabulary.
static bool piece_count(WordCounts *counts, Blocks *b, const Piece *p, Error *err) {
    if (!text_open(p->text, p->from, err)) return false;
    for (uint64_t from = p->from; from < p->to; ) {
        size_t ready;
        if (!text_read(b, &ready, p->text, &from, p->to, err)) return false;
        word_counts_add(counts, b->text, ready);
        blocks_drop(b, ready);
    }
    return true;
}

// Encodes a piece block by block: it may be larger than memory.
static bool piece_stream(Split *s, Blocks *b, const Tokenizer *t, const Piece *p, Error *err) {
    s->bytes += p->to - p->from;
    if (!text_open(p->text, p->from, err)) return false;
    for (uint64_t from = p->from; from < p->to; ) {
        size_t ready;
        if (!text_read(b, &ready, p->text, &from, p->to, err)) return false;
        size_t count = tokenizer_encode_parallel(t, b->ids, b->text, ready);
        if (!split_add(s, b->ids, count, err)) return false;
        blocks_drop(b, ready);
    }
    return p->unended || split_end_document(s, err);
}

enum { DOCUMENTS_AT_ONCE = 8192 };

// Documents on their way to the splits: gathered, encoded in parallel, written in their order.
typedef struct {
    const Tokenizer *tokenizer;
    Split train, val;
    Blocks blocks;                   // texts, one after the other
    size_t from[DOCUMENTS_AT_ONCE + 1], counts[DOCUMENTS_AT_ONCE];
    Split *split[DOCUMENTS_AT_ONCE];
    size_t n;                        // documents gathered
} Documents;

static Documents *documents_begin(Output *out, const Tokenizer *t, Progress progress) {
    Documents *d = (Documents *)alloc_or_die(sizeof *d, "the documents");
    d->tokenizer = t;
    split_init(&d->train, out, "train", t);
    split_init(&d->val, out, "val", t);
    blocks_init(&d->blocks, TEXT_BLOCK);
    d->blocks.progress = progress;
    return d;
}

static void documents_free(Documents *d) {
    blocks_free(&d->blocks);
    free(d);
}

static bool documents_write(Documents *d, Error *err) {
    const Blocks *b = &d->blocks;
    #pragma omp parallel for schedule(dynamic, 16)
    for (size_t i = 0; i < d->n; i++)
        d->counts[i] = tokenizer_encode(d->tokenizer, b->ids + d->from[i], b->text + d->from[i],
                                        d->from[i + 1] - d->from[i]);
    for (size_t i = 0; i < d->n; i++) {
        Split *s = d->split[i];
        s->bytes += d->from[i + 1] - d->from[i];
        if (!split_add(s, b->ids + d->from[i], d->counts[i], err) || !split_end_document(s, err))
            return false;
    }
    progress_show(&d->blocks.progress, d->blocks.read);
    d->n = d->blocks.held = 0;
    return true;
}

// Where the n bytes of the next document go, which is of that split; NULL after an error.
static char *documents_room(Documents *d, Split *split, size_t n, Error *err) {
    Blocks *b = &d->blocks;
    bool full = d->n == DOCUMENTS_AT_ONCE || b->held + n > b->capacity;
    if (full && !documents_write(d, err)) return NULL;
    while (n > b->capacity) blocks_double(b);              // one document alone
    d->split[d->n] = split;
    d->from[++d->n] = b->held += n;
    return b->text + b->held - n;
}

static bool documents_end(Documents *d, Output *out, Error *err) {
    bool good = documents_write(d, err) && shard_end(&d->train, err) && shard_end(&d->val, err)
             && output_tokenizer(out, d->tokenizer, err);
    progress_end(&d->blocks.progress);
    return good;
}

// Adds a piece. Small documents are gathered; a large one keeps all threads busy alone.
static bool piece_add(Documents *d, const Piece *p, Error *err) {
    Split *s = p->val ? &d->val : &d->train;
    size_t n = (size_t)(p->to - p->from);
    if (p->unended || n > d->blocks.capacity / 64)
        return documents_write(d, err) && piece_stream(s, &d->blocks, d->tokenizer, p, err);
    char *room = documents_room(d, s, n, err);
    if (!room || !text_open(p->text, p->from, err)) return false;
    d->blocks.read += (double)n;
    if (fread(room, 1, n, p->text->file) == n) return true;
    return fail(err, "%s: cannot be read, or shrank while it was read", p->text->path);
}

static void text_report(const Split *s) {
    if (s->tokens == 0) printf("%-6s         none\n", s->split);
    else printf("%-6s %12" PRIu64 " tokens, %.3f bytes a token, shards: %d\n", s->split,
                s->tokens, (double)s->bytes / (double)(s->tokens - s->documents), s->shards);
}

static bool text_write(Documents *d, Output *out, const Corpus *c, Error *err) {
    bool good = true;
    for (size_t i = 0; good && i < c->n; i++) {
        const Piece *p = &c->pieces[i];
        good = p->from == p->to || piece_add(d, p, err);
        if (i + 1 == c->n || p[1].text != p->text) text_close(p->text);
    }
    return good && documents_end(d, out, err);
}

// Loads "byte" or a file. The caller handles bpe:N if there is a text to train on.
static bool tokenizer_choose(Tokenizer *t, const char *choice, Error *err) {
    if (strcmp(choice, "byte") == 0) {
        tokenizer_bytes(t);
        return true;
    }
    if (strncmp(choice, "bpe:", 4) == 0)
        return fail(err, "--tokenizer: bpe:N needs a text to train on (prepare text); expected "
                    "byte or a file");
    Error why;
    return tokenizer_load(t, choice, &why)
        || fail(err, "--tokenizer: expected byte, bpe:N or a file; %.400s", why.text);
}

static void check_vocabulary(const Tokenizer *t, const char *choice) {
    if (t->vocab_size > SHARD_MAX_VOCAB)
        die("--tokenizer: %s has %d tokens, more than the %d of a shard's 16-bit ids", choice,
            t->vocab_size, SHARD_MAX_VOCAB);
}

// The N of bpe:N.
static bool learn_size(int *size, const char *choice, Error *err) {
    double value;
    if (!whole_read(&value, choice + strlen("bpe:")) || value < 257 || value > SHARD_MAX_VOCAB)
        return fail(err, "--tokenizer: got '%.40s', expected bpe:N with a vocabulary size N "
                    "(bytes, merges, end of text) from 257 to %d", choice, SHARD_MAX_VOCAB);
    *size = (int)value;
    return true;
}

static void learn_show(void *progress, double done) { progress_show((Progress *)progress, done); }

// Trains a vocabulary on the training part of all texts.
static bool tokenizer_learn(Tokenizer *t, const Corpus *c, int size, Error *err) {
    WordCounts counts = { NULL, 0, 0, NULL, 0, 0, NULL, 0 };
    Blocks blocks;
    double start = seconds_now();
    bool good = true;
    blocks_init(&blocks, TEXT_BLOCK);
    blocks.progress = progress_begin("counting words", c->bytes);
    for (size_t i = 0; good && i < c->n; i++) {
        const Piece *p = &c->pieces[i];
        good = p->val || piece_count(&counts, &blocks, p, err);
        if (i + 1 == c->n || p[1].text != p->text) text_close(p->text);
    }
    progress_end(&blocks.progress);
    blocks_free(&blocks);
    if (good) {
        Progress progress = progress_begin("training bpe", (double)size);
        tokenizer_train(t, &counts, size, learn_show, &progress);
        progress_end(&progress);
        printf("bpe    %12d tokens trained in %.1f s%s\n", t->vocab_size, seconds_now() - start,
               t->vocab_size < size ? "; no other pair occurs twice" : "");
    }
    word_counts_free(&counts);
    return good;
}

// Prints both splits, and how to train without the second.
static void documents_report(const Documents *d, const TextOptions *o, double start) {
    text_report(&d->train);
    text_report(&d->val);
    if (d->val.tokens == 0)
        printf("       training needs one: train_gpt2 --train '%s/*train*.bin' --val FILE\n",
               o->out);
    printf("%s written in %.1f s, documents: %" PRIu64 "\n", o->out, seconds_now() - start,
           d->train.documents + d->val.documents);
}

static void text_run(const TextOptions *o, char **paths, int n) {
    Error err;
    Output out;
    Tokenizer t;
    Corpus corpus;
    int size = 0;
    double start = seconds_now();
    bool learn = strncmp(o->tokenizer, "bpe:", 4) == 0;
    *tokenizer_eos() = o->eos;
    if (!(learn ? learn_size(&size, o->tokenizer, &err)
                : tokenizer_choose(&t, o->tokenizer, &err))) die("%s", err.text);
    if (!learn) check_vocabulary(&t, o->tokenizer);
    if (!output_begin(&out, o->out, "text", o->overwrite, &err)
        || !corpus_open(&corpus, paths, n, o, &out, &err)
        || (learn && !tokenizer_learn(&t, &corpus, size, &err))) die("%s", err.text);
    Documents *d = documents_begin(&out, &t, progress_begin("encoding", corpus.bytes));
    if (!text_write(d, &out, &corpus, &err) || !output_commit(&out, &err)) die("%s", err.text);
    documents_report(d, o, start);
    documents_free(d);
    corpus_close(&corpus);
    tokenizer_free(&t);
}

static void command_text(int argc, char **argv) {
    TextOptions o;
    int n;
    if (!flags_take(&o, text_table, TEXT_OPTIONS, argc, argv, &n,
                    "usage: prepare text FILE... --out DIR [flags]\n"
                    "Writes texts as tokens, with end of text after each document: a file, or its "
                    "lines\nup to a line that is <|endoftext|> alone (--separator).\n"
                    "FILE may be a pipe, or - for standard input.")) return;
    if (n == 0) die("text: no file; expected prepare text FILE... --out DIR");
    need_out(o.out);
    text_run(&o, argv, n);
}

// ============================== prepare jsonl ==============================

static const Option jsonl_table[] = {
    OUTPUT_ROWS(TextOptions),
    { "tokenizer", "byte|FILE", OPT_TEXT, offsetof(TextOptions, tokenizer), "byte", 1, 0, NULL,
      "output", TOKENIZER_HELP, NULL },
    EOS_ROW,
    { "key", "NAME", OPT_TEXT, offsetof(TextOptions, key), "text", 1, 0, NULL,
      "output", "the member of a line that is its document", NULL },
    { "skip-bad", NULL, OPT_FLAG, offsetof(TextOptions, skip_bad), NULL, 0, 0, NULL,
      "output", "leave out lines that hold no document, and count them", NULL },
    { "val-fraction", "X", OPT_REAL, offsetof(TextOptions, val_fraction), "0.01", 0, 0.99, NULL,
      "output", "fraction of the documents, spread evenly, for validation; 0: none", NULL },
    { "help", NULL, OPT_HELP, 0, NULL, 0, 0, NULL, "help", "print this text", NULL },
};
#define JSONL_OPTIONS ((int)(sizeof jsonl_table / sizeof jsonl_table[0]))

static bool jsonl_add(Documents *d, const JsonNode *text, double fraction, Error *err) {
    if (text->length == 0) return true;
    Split *s = is_held_out(d->blocks.read, fraction) ? &d->val : &d->train;
    char *room = documents_room(d, s, text->length, err);
    if (room) memcpy(room, text->text, text->length);
    d->blocks.read++;
    return room != NULL;
}

static bool jsonl_read(Documents *d, Jsonl *j, const char *path, double fraction, Error *err) {
    const JsonNode *text = NULL;
    bool dash = strcmp(path, "-") == 0, good = true;
    FILE *file = dash ? stdin : fopen(path, "rb");
    if (!file) return fail(err, "%s: cannot be opened: %s", path, strerror(errno));
    jsonl_begin(j, file, dash ? "standard input" : path);
    do {
        good = jsonl_next(j, &text, err);
        if (good && text) good = jsonl_add(d, text, fraction, err);
    } while (good && text);
    if (!dash) fclose(file);
    return good;
}

static bool jsonl_end(Documents *d, Output *out, double fraction, Error *err) {
    if (!documents_end(d, out, err)) return false;
    if (d->train.documents > 0 && (d->val.documents > 0 || fraction == 0.0)) return true;
    return fail(err, "%" PRIu64 " documents are too few for a training and a validation part; "
                "use more of them or a larger --val-fraction",
                d->train.documents + d->val.documents);
}

static void jsonl_run(const TextOptions *o, char **paths, int n) {
    Error err;
    Output out;
    Tokenizer t;
    Jsonl j = { .key = o->key, .skip_bad = o->skip_bad };
    double start = seconds_now();
    *tokenizer_eos() = o->eos;
    if (!tokenizer_choose(&t, o->tokenizer, &err)) die("%s", err.text);
    check_vocabulary(&t, o->tokenizer);
    if (!output_begin(&out, o->out, "jsonl", o->overwrite, &err)) die("%s", err.text);
    Documents *d = documents_begin(&out, &t, progress_begin("documents", 0.0));
    for (int i = 0; i < n; i++)
        if (!jsonl_read(d, &j, paths[i], o->val_fraction, &err)) die("%s", err.text);
    if (j.bad > 0) warn("%" PRIu64 " lines were left out; the first: %s", j.bad, j.first_bad.text);
    if (!jsonl_end(d, &out, o->val_fraction, &err) || !output_commit(&out, &err))
        die("%s", err.text);
    documents_report(d, o, start);
    documents_free(d);
    jsonl_free(&j);
    tokenizer_free(&t);
}

static void command_jsonl(int argc, char **argv) {
    TextOptions o;
    int n;
    if (!flags_take(&o, jsonl_table, JSONL_OPTIONS, argc, argv, &n,
                    "usage: prepare jsonl FILE... --out DIR [flags]\n"
                    "Writes the \"text\" of each line, a JSON object, as tokens, with end of text "
                    "after it.\nFILE may be a pipe, or - for standard input: zcat x.jsonl.gz | "
                    "prepare jsonl - --out DIR")) return;
    if (n == 0) die("jsonl: no file; expected prepare jsonl FILE... --out DIR");
    need_out(o.out);
    jsonl_run(&o, argv, n);
}

// ============================== prepare encode, prepare decode ==============================

typedef struct {
    Given given;
    const char *tokenizer;
} CodeOptions;

static const Option code_table[] = {
    { "tokenizer", "byte|FILE", OPT_TEXT, offsetof(CodeOptions, tokenizer), "byte", 1, 0, NULL,
      "tokens", TOKENIZER_HELP, NULL },
    { "help", NULL, OPT_HELP, 0, NULL, 0, 0, NULL, "help", "print this text", NULL },
};
#define CODE_OPTIONS ((int)(sizeof code_table / sizeof code_table[0]))

// Parses the flags and loads the tokenizer. False after --help.
static bool code_begin(Tokenizer *t, int argc, char **argv, const char *usage) {
    CodeOptions o;
    Error err;
    if (!flags_take(&o, code_table, CODE_OPTIONS, argc, argv, NULL, usage)) return false;
    if (!tokenizer_choose(t, o.tokenizer, &err)) die("%s", err.text);
    return true;
}

static void stdout_end(void) {
    if (fflush(stdout) != 0 || ferror(stdout)) die("stdout: writing failed: %s", strerror(errno));
}

static void command_encode(int argc, char **argv) {
    Tokenizer t;
    Blocks blocks;
    size_t taken;
    const char *before = "";
    if (!code_begin(&t, argc, argv, "usage: prepare encode [flags] < text > ids\n"
                    "Prints the token ids of a text, in decimal, on one line.")) return;
    blocks_init(&blocks, TEXT_BLOCK);
    do {
        size_t ready = blocks_read(&blocks, &taken, stdin, UINT64_MAX);
        size_t count = tokenizer_encode_parallel(&t, blocks.ids, blocks.text, ready);
        for (size_t i = 0; i < count; i++, before = " ") printf("%s%d", before, blocks.ids[i]);
        blocks_drop(&blocks, ready);
    } while (taken > 0);
    if (ferror(stdin)) die("stdin: cannot be read: %s", strerror(errno));
    printf("\n");
    stdout_end();
    blocks_free(&blocks);
    tokenizer_free(&t);
}

// Reads the next id. Returns 1, 0 at the end, or -1 for anything that is not an id.
static int id_read(int *id, int vocab_size) {
    int c = getchar();
    while (c == ' ' || c == '\n' || c == '\t' || c == '\r') c = getchar();
    if (c == EOF) return 0;
    for (*id = 0; c >= '0' && c <= '9'; c = getchar()) {
        *id = *id * 10 + (c - '0');
        if (*id >= vocab_size) return -1;
    }
    return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == EOF ? 1 : -1;
}

static void command_decode(int argc, char **argv) {
    Tokenizer t;
    int id, state;
    if (!code_begin(&t, argc, argv, "usage: prepare decode [flags] < ids > text\n"
                    "Prints the text of token ids, decimal numbers between white space.")) return;
    for (size_t count = 1; (state = id_read(&id, t.vocab_size)) != 0; count++) {
        size_t n;
        if (state < 0)
            die("stdin: entry %zu is not a token id; expected whole numbers from 0 to %d", count,
                t.vocab_size - 1);
        const char *text = tokenizer_piece(&t, id, &n);
        fwrite(text, 1, n, stdout);
    }
    if (ferror(stdin)) die("stdin: cannot be read: %s", strerror(errno));
    stdout_end();
    tokenizer_free(&t);
}

// ============================== main ==============================

typedef struct {
    const char *name;
    void (*run)(int argc, char **argv);
} Command;

static const Command commands[] = {
    { "tales", command_tales },
    { "text", command_text },
    { "jsonl", command_jsonl },
    { "encode", command_encode },
    { "decode", command_decode },
};

static void print_usage(void) {
    printf("usage: prepare COMMAND [flags]\n\n"
           "  tales --out DIR           writes the embedded corpus: tales from a grammar\n"
           "  text FILE... --out DIR    writes texts as tokens; - is standard input\n"
           "  jsonl FILE... --out DIR   writes the documents of JSON lines as tokens\n"
           "  encode < text > ids       prints the token ids of a text\n"
           "  decode < ids > text       prints the text of token ids\n\n"
           "prepare COMMAND --help lists the flags of a command.\n");
}

int main(int argc, char **argv) {
    *program_name() = "prepare";
    argv = arguments(&argc, argv);
    open_standard_streams();
    threads_begin(0);
    if (argc < 2)
        die("no command; expected tales, text, jsonl, encode or decode; see prepare --help");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_usage();
        return 0;
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(argv[1], commands[i].name) != 0) continue;
        commands[i].run(argc - 1, argv + 1);
        return 0;
    }
    char shown[48];
    die("%s: unknown command; expected tales, text, jsonl, encode or decode",
        option_shown(shown, argv[1], strlen(argv[1])));
}
