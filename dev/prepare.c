// prepare: writes the shards of tokens that the trainers read.
//
//     prepare tales --out DIR         the embedded corpus: fresh tales from a grammar
//     prepare text FILE... --out DIR  any text: files, or documents between lines <|endoftext|>
//     prepare jsonl FILE... --out DIR documents in JSON lines, as they come out of a pipe
//     prepare encode, prepare decode  text to token ids and back
//
// dev/data has the parts: shards.c writes a directory, texts.c finds documents, jsonl.c reads JSON
// lines, tokenizer.c and bpe.c make tokens.
#include <inttypes.h>
#include <sys/stat.h>
#include "../dataloader.h"
#include "base/base.h"
#include "data/data.h"
#include "files/files.h"

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
      "output", "what --tokenizer FILE calls its end of text, such as </s>", NULL }

#define ROWS_OF(table) table, (int)(sizeof table / sizeof *table)

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

// Writes whole tales until there are `tokens` tokens or more; *nats receives the sum of -ln p.
static bool tales_split(Split *s, double *nats, Tales *tales, uint64_t tokens, uint64_t seed,
                        Error *err) {
    int ids[TALE_MAX];
    bool good = true;
    Progress progress = progress_begin("writing tales", (double)tokens);
    *nats = 0.0;
    for (uint64_t first = 0; good && s->tokens < tokens; first += TALES_AT_ONCE) {
        tales_fill(tales, seed, first, s->has_floor);
        for (int i = 0; good && i < TALES_AT_ONCE && s->tokens < tokens; i++) {
            size_t n = tales->length[i];
            for (size_t k = 0; k < n; k++) ids[k] = (unsigned char)tales->text[i][k];
            *nats += tales->nats[i];
            good = split_add_whole(s, ids, n, tales->nats[i], err);
        }
        progress_show(&progress, (double)s->tokens);
    }
    progress_end(&progress);
    return good && split_end_shard(s, err);
}

static bool tales_write(Output *out, const TalesOptions *o, Error *err) {
    Tokenizer t;
    Split train, val;
    double train_nats, val_nats;
    tokenizer_bytes(&t);
    split_init(&train, out, "train", &t);
    split_init(&val, out, "val", &t);
    val.has_floor = true;
    Tales *tales = (Tales *)alloc_or_die(sizeof *tales, "tales");
    uint64_t seed = (uint64_t)o->seed;
    bool good =
        tales_split(&train, &train_nats, tales, (uint64_t)o->tokens, seed, err)
        && tales_split(&val, &val_nats, tales, TALES_VAL_TOKENS, seed, err)
        && output_tokenizer(out, &t, err);
    if (good) {
        const Split *const splits[] = { &train, &val };
        for (int i = 0; i < 2; i++)
            printf("%-6s %12" PRIu64 " tokens, %" PRIu64 " tales, shards: %d\n", splits[i]->split,
                   splits[i]->tokens, splits[i]->documents, splits[i]->shards);
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
    if (!flags_take(&o, ROWS_OF(tales_table), argc, argv, NULL,
                    "usage: prepare tales --out DIR [flags]\n"
                    "Writes children's tales from a grammar whose entropy is known.")) return;
    need_out(o.out);
    if (!output_begin(&out, o.out, "tales", o.overwrite, &err) || !tales_write(&out, &o, &err)
        || !output_commit(&out, &err)) die("%s", err.text);
    printf("%s written in %.1f s\n", o.out, seconds_now() - start);
}

// ============================== prepare text ==============================

#ifndef TEXT_BLOCK                   // bytes encoded at a time; the tests use fewer
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
      "output", "a line with only this text ends a document; none: each file is one document",
      NULL },
    { "val-fraction", "X", OPT_REAL, offsetof(TextOptions, val_fraction), "0.1", 0, 0.99, NULL,
      "output", "fraction held out for validation: whole documents, spread evenly, if there are "
      "20 or more, else the end of the text; 0: none", NULL },
    { "help", NULL, OPT_HELP, 0, NULL, 0, 0, NULL, "help", "print this text", NULL },
};

// The first part of n bytes that is encoded alone: up to where tokenizer_cut allows.
static size_t text_part(const char *text, size_t n) {
    size_t cut = 0, most = TEXT_BLOCK / 64;
    for (; most < n && cut == 0; most *= 2) cut = tokenizer_cut(text, most);
    return cut > 0 ? cut : n;
}

// ---- encoding: parts of texts are gathered, encoded in parallel, written in their order ----

enum { PARTS = 8192 };

typedef struct {
    const char *text;                // (n)
    size_t n, count;                 // bytes; tokens
    int *ids;                        // (count)
    Split *split;
    bool ends;                       // its document
} Part;

typedef struct {
    const Tokenizer *tokenizer;
    Split train, val;
    Part parts[PARTS];
    size_t n, bytes;                 // parts gathered; their bytes
    int *ids;                        // (room) of all parts
    size_t room;
    char *copy;                      // (copy_room) texts that the caller does not keep
    size_t copy_room;
    Progress progress;
    double done;                     // of progress.total
} Encoder;

static Encoder *encoder_begin(Output *out, const Tokenizer *t, Progress progress) {
    Encoder *e = (Encoder *)alloc_or_die(sizeof *e, "the documents");
    e->tokenizer = t;
    e->progress = progress;
    split_init(&e->train, out, "train", t);
    split_init(&e->val, out, "val", t);
    return e;
}

static bool encoder_write(Encoder *e, Error *err) {
    size_t at = 0;
    e->ids = (int *)grow_or_die(e->ids, &e->room, e->bytes, sizeof *e->ids, "tokens");
    for (size_t i = 0; i < e->n; at += e->parts[i++].n) e->parts[i].ids = e->ids + at;
    #pragma omp parallel for schedule(dynamic, 16)
    for (size_t i = 0; i < e->n; i++) {
        Part *p = &e->parts[i];
        p->count = tokenizer_encode(e->tokenizer, p->ids, p->text, p->n);
    }
    for (size_t i = 0; i < e->n; i++) {
        const Part *p = &e->parts[i];
        p->split->bytes += p->n;
        if (!split_add(p->split, p->ids, p->count, err)) return false;
        if (p->ends && !split_end_document(p->split, err)) return false;
    }
    progress_show(&e->progress, e->done);
    e->n = e->bytes = 0;
    return true;
}

// Makes room for a part of n bytes.
static bool encoder_room(Encoder *e, size_t n, Error *err) {
    return (e->n < PARTS && (e->n == 0 || e->bytes + n <= TEXT_BLOCK)) || encoder_write(e, err);
}

static void encoder_add(Encoder *e, Split *split, const char *text, size_t n, bool ends) {
    Part part = { text, n, 0, NULL, split, ends };
    e->parts[e->n++] = part;
    e->bytes += n;
}

static bool encoder_add_piece(Encoder *e, const Piece *p, Error *err) {
    const char *text = p->text->bytes + p->from;
    for (size_t at = 0, n; at < p->n; at += n) {
        n = text_part(text + at, p->n - at);
        if (!encoder_room(e, n, err)) return false;
        encoder_add(e, p->val ? &e->val : &e->train, text + at, n, at + n == p->n && !p->unended);
        e->done += (double)n;
    }
    return true;
}

// Writes what remains. Refuses documents too few to be split.
static bool encoder_end(Encoder *e, double fraction, Output *out, Error *err) {
    bool good = encoder_write(e, err) && split_end_shard(&e->train, err)
             && split_end_shard(&e->val, err) && output_tokenizer(out, e->tokenizer, err);
    progress_end(&e->progress);
    if (!good || (e->train.tokens > 0 && (e->val.tokens > 0 || fraction == 0.0))) return good;
    return fail(err, "%" PRIu64 " documents are too few for a training and a validation part; "
                "use more of them or a larger --val-fraction",
                e->train.documents + e->val.documents);
}

// Prints both splits, and how to train without the second.
static void encoder_report(const Encoder *e, const TextOptions *o, double start) {
    const Split *const splits[] = { &e->train, &e->val };
    for (int i = 0; i < 2; i++) {
        const Split *s = splits[i];
        if (s->tokens == 0) printf("%-6s         none\n", s->split);
        else printf("%-6s %12" PRIu64 " tokens, %.3f bytes a token, shards: %d\n", s->split,
                    s->tokens, (double)s->bytes / (double)(s->tokens - s->documents), s->shards);
    }
    if (e->val.tokens == 0)
        printf("       training needs a validation split: train_gpt2 --train '%s/*train*.bin' "
               "--val FILE\n", o->out);
    printf("%s written in %.1f s, documents: %" PRIu64 "\n", o->out, seconds_now() - start,
           e->train.documents + e->val.documents);
}

static void encoder_finish(Encoder *e, const TextOptions *o, Output *out, double start) {
    Error err;
    if (!encoder_end(e, o->val_fraction, out, &err) || !output_commit(out, &err))
        die("%s", err.text);
    encoder_report(e, o, start);
    free(e->ids);
    free(e->copy);
    free(e);
}

// Opens "byte" or a file, for shards if `most` is not 0. Only prepare text takes bpe:N.
static void tokenizer_open(Tokenizer *t, const char *choice, const char *eos, int most) {
    Error err;
    *tokenizer_eos() = eos;
    if (strncmp(choice, "bpe:", 4) == 0)
        die("--tokenizer: bpe:N needs a text to train on (prepare text); expected byte or a file");
    if (strcmp(choice, "byte") == 0) tokenizer_bytes(t);
    else if (!tokenizer_load(t, choice, &err))
        die("--tokenizer: expected byte, bpe:N or a file; %.400s", err.text);
    if (most > 0 && t->vocab_size > most)
        die("--tokenizer: %s has %d tokens, more than the %d of a shard's 16-bit ids", choice,
            t->vocab_size, most);
}

// The N of bpe:N.
static int learn_size(const char *choice) {
    double value;
    if (!whole_read(&value, choice + strlen("bpe:")) || value < 257 || value > SHARD_MAX_VOCAB)
        die("--tokenizer: got '%.40s', expected bpe:N with a vocabulary size N (bytes, merges, end "
            "of text) from 257 to %d", choice, SHARD_MAX_VOCAB);
    return (int)value;
}

static void learn_show(void *progress, double done) { progress_show((Progress *)progress, done); }

// Trains a vocabulary on the training part of all texts.
static void tokenizer_learn(Tokenizer *t, const Texts *c, int size) {
    WordCounts counts = { NULL, 0, 0, NULL, 0, 0, NULL, 0 };
    double start = seconds_now(), done = 0.0;
    Progress progress = progress_begin("counting words", c->bytes);
    for (size_t i = 0; i < c->n; i++) {
        const Piece *p = &c->pieces[i];
        const char *text = p->text->bytes + p->from;
        for (size_t at = 0, n; at < p->n && !p->val; at += n) {
            n = text_part(text + at, p->n - at);
            word_counts_add(&counts, text + at, n);
            progress_show(&progress, done += (double)n);
        }
    }
    progress_end(&progress);
    progress = progress_begin("training bpe", (double)size);
    tokenizer_train(t, &counts, size, learn_show, &progress);
    progress_end(&progress);
    printf("bpe    %12d tokens trained in %.1f s%s\n", t->vocab_size, seconds_now() - start,
           t->vocab_size < size ? "; no other pair occurs twice" : "");
    word_counts_free(&counts);
}

static void text_run(const TextOptions *o, char **paths, int n) {
    Error err;
    Output out;
    Tokenizer t;
    Texts corpus;
    double start = seconds_now();
    int size = strncmp(o->tokenizer, "bpe:", 4) == 0 ? learn_size(o->tokenizer) : 0;
    const char *separator = strcmp(o->separator, "none") == 0 ? NULL : o->separator;
    if (size == 0) tokenizer_open(&t, o->tokenizer, o->eos, SHARD_MAX_VOCAB);
    if (!output_begin(&out, o->out, "text", o->overwrite, &err)
        || !texts_open(&corpus, paths, n, separator, o->val_fraction, &out, &err))
        die("%s", err.text);
    if (size > 0) tokenizer_learn(&t, &corpus, size);
    Encoder *e = encoder_begin(&out, &t, progress_begin("encoding", corpus.bytes));
    for (size_t i = 0; i < corpus.n; i++)
        if (!encoder_add_piece(e, &corpus.pieces[i], &err)) die("%s", err.text);
    encoder_finish(e, o, &out, start);
    texts_close(&corpus);
    tokenizer_free(&t);
}

// Parses the flags of prepare text or jsonl, and puts its files into argv. False after --help.
static bool files_take(TextOptions *o, const Option *table, int rows, int argc, char **argv, int *n,
                       const char *usage) {
    const char *name = argv[0];
    if (!flags_take(o, table, rows, argc, argv, n, usage)) return false;
    if (*n == 0) die("%s: no file; expected prepare %s FILE... --out DIR", name, name);
    need_out(o->out);
    return true;
}

static void command_text(int argc, char **argv) {
    TextOptions o;
    int n;
    if (files_take(&o, ROWS_OF(text_table), argc, argv, &n,
                   "usage: prepare text FILE... --out DIR [flags]\n"
                   "Writes texts as tokens, with an end-of-text token after each document: a "
                   "file,\nor its lines up to one that is only <|endoftext|> (--separator).\n"
                   "FILE may be a pipe, or - for standard input.")) text_run(&o, argv, n);
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

static bool jsonl_add(Encoder *e, const JsonNode *text, double fraction, Error *err) {
    size_t n = text->length;
    if (n == 0) return true;
    Split *s = is_held_out(e->done, fraction) ? &e->val : &e->train;
    if (!encoder_room(e, n, err)) return false;
    size_t block = n > TEXT_BLOCK ? n : TEXT_BLOCK;
    if (e->n == 0) e->copy = (char *)grow_or_die(e->copy, &e->copy_room, block, 1, "documents");
    memcpy(e->copy + e->bytes, text->text, n);
    encoder_add(e, s, e->copy + e->bytes, n, true);
    e->done++;
    return true;
}

static bool jsonl_read(Encoder *e, Jsonl *j, const char *path, double fraction, Error *err) {
    const JsonNode *text = NULL;
    bool dash = strcmp(path, "-") == 0, good = true;
    FILE *file = dash ? stdin : fopen(path, "rb");
    if (!file) return fail(err, "%s: cannot open it: %s", path, strerror(errno));
    jsonl_begin(j, file, dash ? "standard input" : path);
    do {
        good = jsonl_next(j, &text, err);
        if (good && text) good = jsonl_add(e, text, fraction, err);
    } while (good && text);
    if (!dash) fclose(file);
    return good;
}

static void jsonl_run(const TextOptions *o, char **paths, int n) {
    Error err;
    Output out;
    Tokenizer t;
    Jsonl j = { .key = o->key, .skip_bad = o->skip_bad };
    double start = seconds_now();
    tokenizer_open(&t, o->tokenizer, o->eos, SHARD_MAX_VOCAB);
    if (!output_begin(&out, o->out, "jsonl", o->overwrite, &err)) die("%s", err.text);
    Encoder *e = encoder_begin(&out, &t, progress_begin("documents", 0.0));
    for (int i = 0; i < n; i++)
        if (!jsonl_read(e, &j, paths[i], o->val_fraction, &err)) die("%s", err.text);
    if (j.bad > 0) warn("%" PRIu64 " lines were left out; the first: %s", j.bad, j.first_bad.text);
    encoder_finish(e, o, &out, start);
    jsonl_free(&j);
    tokenizer_free(&t);
}

static void command_jsonl(int argc, char **argv) {
    TextOptions o;
    int n;
    if (files_take(&o, ROWS_OF(jsonl_table), argc, argv, &n,
                   "usage: prepare jsonl FILE... --out DIR [flags]\n"
                   "Writes the \"text\" of each line, a JSON object, as tokens, with end of text "
                   "after it.\nFILE may be a pipe, or - for standard input: zcat x.jsonl.gz | "
                   "prepare jsonl - --out DIR")) jsonl_run(&o, argv, n);
}

// ============================== prepare encode, prepare decode ==============================

static const Option code_table[] = {
    { "tokenizer", "byte|FILE", OPT_TEXT, offsetof(TextOptions, tokenizer), "byte", 1, 0, NULL,
      "tokens", TOKENIZER_HELP, NULL },
    { "help", NULL, OPT_HELP, 0, NULL, 0, 0, NULL, "help", "print this text", NULL },
};

// Parses the flags and opens the tokenizer. False after --help.
static bool code_begin(Tokenizer *t, int argc, char **argv, const char *usage) {
    TextOptions o;
    if (!flags_take(&o, ROWS_OF(code_table), argc, argv, NULL, usage)) return false;
    tokenizer_open(t, o.tokenizer, END_OF_TEXT, 0);
    return true;
}

static void stdout_end(void) {
    if (fflush(stdout) != 0 || ferror(stdout)) die("stdout: writing failed: %s", strerror(errno));
}

static void command_encode(int argc, char **argv) {
    Tokenizer t;
    char *text = NULL;
    size_t n = 0, room = 0;
    if (!code_begin(&t, argc, argv, "usage: prepare encode [flags] < text > ids\n"
                    "Prints the token ids of a text, in decimal, on one line.")) return;
    do {
        text = (char *)grow_or_die(text, &room, n + 1, 1, "a text");
        n += fread(text + n, 1, room - n, stdin);
    } while (n == room);
    if (ferror(stdin)) die("stdin: cannot be read: %s", strerror(errno));
    int *ids = (int *)alloc_or_die(n * sizeof *ids, "the tokens of a text");
    size_t count = tokenizer_encode(&t, ids, text, n);
    for (size_t i = 0; i < count; i++) printf("%s%d", i > 0 ? " " : "", ids[i]);
    printf("\n");
    stdout_end();
    free(text);
    free(ids);
    tokenizer_free(&t);
}

static void command_decode(int argc, char **argv) {
    Tokenizer t;
    int id, got;
    size_t count = 1, n;
    if (!code_begin(&t, argc, argv, "usage: prepare decode [flags] < ids > text\n"
                    "Prints the text of token ids, decimal numbers between white space.")) return;
    for (; (got = scanf("%d", &id)) == 1 && id >= 0 && id < t.vocab_size; count++) {
        const char *text = tokenizer_piece(&t, id, &n);
        fwrite(text, 1, n, stdout);
    }
    if (ferror(stdin)) die("stdin: cannot be read: %s", strerror(errno));
    if (got != EOF)
        die("stdin: entry %zu is not a token id; expected whole numbers from 0 to %d", count,
            t.vocab_size - 1);
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
    signal(SIGXFSZ, SIG_IGN);                    // a limit on file sizes is an error of write()
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
    die("%s: unknown command; expected tales, text, jsonl, encode or decode",
        brief(argv[1], strlen(argv[1])).text);
}
