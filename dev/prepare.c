// prepare: writes the shards of tokens that the trainers read.
//
//     prepare tales --out DIR         the embedded corpus: fresh tales from a grammar
//     prepare names --out DIR         the same of names, for lesson 19
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

// Each command sets those that its table has.
typedef struct {
    Given given;
    const char *out, *tokenizer, *eos, *separator, *key;
    bool overwrite, skip_bad;
    double val_fraction;
    int64_t tokens, seed;
    char **files;                    // (n_files) arguments that are no flags
    int n_files;
} Options;

// Rows of several commands' tables.
#define OUTPUT_ROWS \
    { "out", "DIR", OPT_TEXT, offsetof(Options, out), NULL, 1, 0, NULL, \
      "output", "directory for the shards; created if missing", NULL }, \
    { "overwrite", NULL, OPT_FLAG, offsetof(Options, overwrite), NULL, 0, 0, NULL, \
      "output", "replace the shards that --out holds", NULL }
#define EOS_ROW \
    { "eos", "NAME", OPT_TEXT, offsetof(Options, eos), END_OF_TEXT, 1, 0, NULL, \
      "output", "what --tokenizer FILE calls its end of text, such as </s>", NULL }
#define HELP_ROW { "help", NULL, OPT_HELP, 0, NULL, 0, 0, NULL, "help", "print this text", NULL }

// ========================= prepare tales, prepare names =========================

#define TALES_VAL_TOKENS 500000

static const Option tales_table[] = {
    OUTPUT_ROWS,
    { "tokens", "N", OPT_COUNT, offsetof(Options, tokens), "20000000", 1, 1e12, NULL,
      "output", "training tokens, rounded up to a whole text; 500000 more for validation", NULL },
    { "seed", "N", OPT_COUNT, offsetof(Options, seed), "1", 0, 9e15, NULL,
      "output", "random seed; the same seed gives the same bytes", NULL },
    HELP_ROW,
};

// Writes whole tales until there are `tokens` tokens or more; returns the sum of -ln p. Each tale
// draws from a random stream of its own. Even streams are for training, odd ones for validation.
// Names come after an empty document: an end of text, then a name, are a window of 8.
static double tales_split(Split *s, const TaleList *lists, uint64_t tokens, uint64_t seed) {
    char text[TALE_MAX];
    int ids[TALE_MAX];
    double nats, sum = 0.0;
    Progress progress = progress_begin("writing", (double)tokens);
    if (lists == name_lists) split_add_whole(s, NULL, 0, 0.0);
    while (s->tokens < tokens) {
        Rng rng = rng_make(seed, 2 * s->documents + s->has_floor);
        size_t n = tale_write(text, TALE_MAX, &nats, lists, &rng);
        for (size_t k = 0; k < n; k++) ids[k] = (unsigned char)text[k];
        sum += nats;
        split_add_whole(s, ids, n, nats);
        progress_show(&progress, (double)s->tokens);
    }
    progress_end(&progress);
    split_end_shard(s);
    return sum;
}

// name: of the shards.
static void grammar_run(const Options *o, const char *name, const TaleList *lists) {
    Output out;
    Tokenizer t;
    Split train, val;
    double start = seconds_now();
    output_begin(&out, o->out, name, o->overwrite);
    tokenizer_bytes(&t);
    split_init(&train, &out, "train", &t);
    split_init(&val, &out, "val", &t);
    val.has_floor = true;
    tales_split(&train, lists, (uint64_t)o->tokens, (uint64_t)o->seed);
    double nats = tales_split(&val, lists, TALES_VAL_TOKENS, (uint64_t)o->seed);
    output_tokenizer(&out, &t);
    const Split *const splits[] = { &train, &val };
    for (int i = 0; i < 2; i++)
        printf("%-6s %12" PRIu64 " tokens, %" PRIu64 " documents, shards: %d\n", splits[i]->split,
               splits[i]->tokens, splits[i]->documents, splits[i]->shards);
    printf("a token is a byte; entropy floor of val: %.4f nats per token, %.2f a document\n",
           nats / (double)val.tokens, nats / (double)val.documents);
    tokenizer_free(&t);
    output_commit(&out);
    printf("%s written in %.1f s\n", o->out, seconds_now() - start);
}

static void tales_run(const Options *o) { grammar_run(o, "tales", tale_lists); }
static void names_run(const Options *o) { grammar_run(o, "names", name_lists); }

// ============================== prepare text ==============================

#ifndef TEXT_BLOCK                   // bytes encoded at a time; the tests use fewer
#define TEXT_BLOCK (8u << 20)
#endif

static const Option text_table[] = {
    OUTPUT_ROWS,
    { "tokenizer", "byte|bpe:N|FILE", OPT_TEXT, offsetof(Options, tokenizer), "byte", 1, 0,
      NULL, "output", TOKENIZER_HELP "; bpe:N trains a vocabulary of N tokens on the "
      "training part", NULL },
    EOS_ROW,
    { "separator", "LINE", OPT_TEXT, offsetof(Options, separator), END_OF_TEXT, 0, 0, NULL,
      "output", "a line with only this text ends a document; none: each file is one document",
      NULL },
    { "val-fraction", "X", OPT_REAL, offsetof(Options, val_fraction), "0.1", 0, 0.99, NULL,
      "output", "fraction held out for validation: whole documents, spread evenly, if there are "
      "at least 20, and 1/X, else the end of the text; 0: none", NULL },
    HELP_ROW,
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
    size_t at, n, count;             // where its bytes begin among those gathered; bytes; tokens
    Split *split;
    bool ends;                       // its document
} Part;

typedef struct {
    const Options *o;
    const Tokenizer *tokenizer;      // which may still be untrained until encoder_add
    Output out;
    Split train, val;
    Part parts[PARTS];
    size_t n, bytes;                 // parts gathered; their bytes
    char *text;                      // (text_room) of all parts
    int *ids;                        // (ids_room) of all parts; those of a part begin at its `at`
    size_t text_room, ids_room;
    Progress progress;
    double start, done;              // done: of progress.total
} Encoder;

static Encoder *encoder_begin(const Options *o, const char *name, const Tokenizer *t) {
    Encoder *e = (Encoder *)alloc_or_die(sizeof *e, "the documents");
    e->o = o;
    e->tokenizer = t;
    e->start = seconds_now();
    output_begin(&e->out, o->out, name, o->overwrite);
    split_init(&e->train, &e->out, "train", t);
    split_init(&e->val, &e->out, "val", t);
    return e;
}

static void encoder_write(Encoder *e) {
    e->ids = (int *)grow_or_die(e->ids, &e->ids_room, e->bytes, sizeof *e->ids, "tokens");
    #pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < e->n; i++) {
        Part *p = &e->parts[i];
        p->count = tokenizer_encode(e->tokenizer, e->ids + p->at, e->text + p->at, p->n);
    }
    for (size_t i = 0; i < e->n; i++) {
        const Part *p = &e->parts[i];
        p->split->bytes += p->n;
        split_add(p->split, e->ids + p->at, p->count);
        if (p->ends) split_end_document(p->split);
    }
    progress_show(&e->progress, e->done);
    e->n = e->bytes = 0;
}

static void encoder_add(Encoder *e, Split *split, const char *text, size_t n, bool ends) {
    if (e->n == PARTS || (e->n > 0 && e->bytes + n > TEXT_BLOCK)) encoder_write(e);
    e->text = (char *)grow_or_die(e->text, &e->text_room, e->bytes + n, 1, "documents");
    memcpy(e->text + e->bytes, text, n);
    Part part = { e->bytes, n, 0, split, ends };
    e->parts[e->n++] = part;
    e->bytes += n;
}

static void encoder_add_piece(Encoder *e, const Piece *p) {
    const char *text = p->text->bytes + p->from;
    for (size_t at = 0, n; at < p->n; at += n) {
        n = text_part(text + at, p->n - at);
        encoder_add(e, p->val ? &e->val : &e->train, text + at, n, at + n == p->n && !p->unended);
        e->done += (double)n;
    }
}

// Writes what remains, and prints both splits, and how to train without the second. Refuses
// documents too few to be split.
static void encoder_finish(Encoder *e) {
    const Split *const splits[] = { &e->train, &e->val };
    encoder_write(e);
    split_end_shard(&e->train);
    split_end_shard(&e->val);
    output_tokenizer(&e->out, e->tokenizer);
    progress_end(&e->progress);
    if (e->train.tokens == 0 || (e->val.tokens == 0 && e->o->val_fraction > 0.0))
        die("%" PRIu64 " documents are too few for a training and a validation part; use more of "
            "them or a larger --val-fraction", e->train.documents + e->val.documents);
    output_commit(&e->out);
    for (int i = 0; i < 2; i++) {
        const Split *s = splits[i];
        if (s->tokens == 0) printf("%-6s         none\n", s->split);
        else printf("%-6s %12" PRIu64 " tokens, %.3f bytes a token, shards: %d\n", s->split,
                    s->tokens, (double)s->bytes / (double)(s->tokens - s->documents), s->shards);
    }
    if (e->val.tokens == 0)
        printf("       training needs a validation split: train_gpt2 --train '%s/*train*.bin' "
               "--val FILE --tokenizer '%s/tokenizer.json'\n", e->o->out, e->o->out);
    printf("%s written in %.1f s, documents: %" PRIu64 "\n", e->o->out, seconds_now() - e->start,
           e->train.documents + e->val.documents);
    free(e->text);
    free(e->ids);
    free(e);
}

// Opens "byte" or a file. Only prepare text takes bpe:N.
static void tokenizer_open(Tokenizer *t, const Options *o) {
    Error err;
    if (o->eos) *tokenizer_eos() = o->eos;
    if (strncmp(o->tokenizer, "bpe:", 4) == 0)
        die("--tokenizer: bpe:N needs a text to train on (prepare text); expected byte or a file");
    if (strcmp(o->tokenizer, "byte") == 0) tokenizer_bytes(t);
    else if (!tokenizer_load(t, o->tokenizer, &err))
        die("--tokenizer: expected byte, bpe:N or a file; %.400s", err.text);
    if (o->out && t->vocab_size > SHARD_MAX_VOCAB)
        die("--tokenizer: %s has %d tokens, more than the %d of a shard's 16-bit ids", o->tokenizer,
            t->vocab_size, SHARD_MAX_VOCAB);
}

// The N of bpe:N.
static int learn_size(const char *choice) {
    double value;
    if (!whole_read(&value, choice + strlen("bpe:")) || value < 257 || value > SHARD_MAX_VOCAB)
        die("--tokenizer: got '%.40s', expected bpe:N with a vocabulary size N (bytes, merges, end "
            "of text) from 257 to %d", choice, SHARD_MAX_VOCAB);
    return (int)value;
}

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
    tokenizer_train(t, &counts, size, &progress);
    progress_end(&progress);
    printf("bpe    %12d tokens trained in %.1f s%s\n", t->vocab_size, seconds_now() - start,
           t->vocab_size < size ? "; no other pair occurs twice" : "");
    word_counts_free(&counts);
}

static void text_run(const Options *o) {
    Tokenizer t;
    Texts corpus;
    int size = strncmp(o->tokenizer, "bpe:", 4) == 0 ? learn_size(o->tokenizer) : 0;
    const char *separator = strcmp(o->separator, "none") == 0 ? NULL : o->separator;
    if (size == 0) tokenizer_open(&t, o);
    Encoder *e = encoder_begin(o, "text", &t);
    texts_open(&corpus, o->files, o->n_files, separator, o->val_fraction, &e->out);
    if (size > 0) tokenizer_learn(&t, &corpus, size);
    e->progress = progress_begin("encoding", corpus.bytes);
    for (size_t i = 0; i < corpus.n; i++) encoder_add_piece(e, &corpus.pieces[i]);
    encoder_finish(e);
    texts_close(&corpus);
    tokenizer_free(&t);
}

// ============================== prepare jsonl ==============================

static const Option jsonl_table[] = {
    OUTPUT_ROWS,
    { "tokenizer", "byte|FILE", OPT_TEXT, offsetof(Options, tokenizer), "byte", 1, 0, NULL,
      "output", TOKENIZER_HELP, NULL },
    EOS_ROW,
    { "key", "NAME", OPT_TEXT, offsetof(Options, key), "text", 1, 0, NULL,
      "output", "the field of a line that is its document, a text or a list of messages; "
      "\"messages\" of a line without it", NULL },
    { "skip-bad", NULL, OPT_FLAG, offsetof(Options, skip_bad), NULL, 0, 0, NULL,
      "output", "leave out lines that hold no document, and count them", NULL },
    { "val-fraction", "X", OPT_REAL, offsetof(Options, val_fraction), "0.01", 0, 0.99, NULL,
      "output", "fraction of the documents, spread evenly, for validation; 0: none", NULL },
    HELP_ROW,
};

static void jsonl_read(Encoder *e, Jsonl *j, const char *path) {
    Error err;
    const JsonNode *text;
    bool dash = strcmp(path, "-") == 0;
    FILE *file = dash ? stdin : fopen(path, "rb");
    if (!file) die("%s: cannot open it: %s", path, strerror(errno));
    jsonl_begin(j, file, dash ? "standard input" : path);
    for (;;) {
        if (!jsonl_next(j, &text, &err)) die("%s", err.text);
        if (!text) break;
        if (text->length == 0) continue;
        Split *s = is_held_out(e->done, e->o->val_fraction) ? &e->val : &e->train;
        encoder_add(e, s, text->text, text->length, true);
        e->done++;
    }
    if (!dash) fclose(file);
}

static void jsonl_run(const Options *o) {
    Tokenizer t;
    Jsonl j = { .key = o->key, .skip_bad = o->skip_bad };
    tokenizer_open(&t, o);
    Encoder *e = encoder_begin(o, "jsonl", &t);
    e->progress = progress_begin("documents", 0.0);
    for (int i = 0; i < o->n_files; i++) jsonl_read(e, &j, o->files[i]);
    if (j.bad > 0) warn("%" PRIu64 " lines were left out; the first: %s", j.bad, j.first_bad.text);
    encoder_finish(e);
    jsonl_free(&j);
    tokenizer_free(&t);
}

// ============================== prepare encode, prepare decode ==============================

static const Option code_table[] = {
    { "tokenizer", "byte|FILE", OPT_TEXT, offsetof(Options, tokenizer), "byte", 1, 0, NULL,
      "tokens", TOKENIZER_HELP, NULL },
    EOS_ROW,
    HELP_ROW,
};

static void stdout_end(void) {
    if (fflush(stdout) != 0 || ferror(stdout)) die("stdout: writing failed: %s", strerror(errno));
}

static void encode_run(const Options *o) {
    Tokenizer t;
    Error err;
    size_t n;
    tokenizer_open(&t, o);
    char *text = file_read(&n, "-", &err);
    if (!text) die("%s", err.text);
    int *ids = (int *)alloc_or_die(n * sizeof *ids, "the tokens of a text");
    size_t count = tokenizer_encode(&t, ids, text, n);
    for (size_t i = 0; i < count; i++) printf("%s%d", i > 0 ? " " : "", ids[i]);
    printf("\n");
    stdout_end();
    free(text);
    free(ids);
    tokenizer_free(&t);
}

static void decode_run(const Options *o) {
    Tokenizer t;
    int id, got;
    size_t count = 1, n;
    tokenizer_open(&t, o);
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
    const char *name, *usage;
    const Option *table;
    int rows;
    bool takes_files, needs_out;
    void (*run)(const Options *o);
} Command;

#define ROWS_OF(array) array, (int)(sizeof array / sizeof *array)

static const Command commands[] = {
    { "tales", "usage: prepare tales --out DIR [flags]\n"
      "Writes children's tales from a grammar whose entropy is known.",
      ROWS_OF(tales_table), false, true, tales_run },
    { "names", "usage: prepare names --out DIR [flags]\n"
      "Writes names of seven letters from a grammar whose entropy is known.",
      ROWS_OF(tales_table), false, true, names_run },
    { "text", "usage: prepare text FILE... --out DIR [flags]\n"
      "Writes texts as tokens, with an end-of-text token after each document: a file,\n"
      "or its lines up to one that is only <|endoftext|> (--separator).\n"
      "FILE may be a pipe, or - for standard input.", ROWS_OF(text_table), true, true, text_run },
    { "jsonl", "usage: prepare jsonl FILE... --out DIR [flags]\n"
      "Writes the \"text\" of each line, a JSON object, as tokens, with end of text after it;\n"
      "or its \"messages\", [{\"role\": \"user\", \"content\": \"Hi\"}, ...], as lines: user: Hi\n"
      "FILE may be a pipe, or - for standard input: zcat x.jsonl.gz | prepare jsonl - --out DIR",
      ROWS_OF(jsonl_table), true, true, jsonl_run },
    { "encode", "usage: prepare encode [flags] < text > ids\n"
      "Prints the token ids of a text, in decimal, on one line.",
      ROWS_OF(code_table), false, false, encode_run },
    { "decode", "usage: prepare decode [flags] < ids > text\n"
      "Prints the text that token ids stand for: decimal numbers separated by white space.",
      ROWS_OF(code_table), false, false, decode_run },
};

static void command_run(const Command *c, int argc, char **argv) {
    Options o = {0};
    Error err;
    o.files = c->takes_files ? argv : NULL;                // their places are free once read
    if (!options_parse(&o, c->table, c->rows, argc, argv, o.files,
                       c->takes_files ? &o.n_files : NULL, &err)) die("%s", err.text);
    if (options_given(&o, c->table, c->rows, "help")) {
        options_help(stdout, c->usage, c->table, c->rows);
        return;
    }
    if (c->takes_files && o.n_files == 0)
        die("%s: no file; expected prepare %s FILE... --out DIR", c->name, c->name);
    if (c->needs_out && !o.out) die("--out: missing; expected the directory to write to");
    c->run(&o);
}

static void print_usage(void) {
    printf("usage: prepare COMMAND [flags]\n\n"
           "  tales --out DIR           writes the embedded corpus: tales from a grammar\n"
           "  names --out DIR           writes names from a grammar, one per document\n"
           "  text FILE... --out DIR    writes texts as tokens; - is standard input\n"
           "  jsonl FILE... --out DIR   tokenizes documents, one per line of JSON\n"
           "  encode < text > ids       prints the token ids of a text\n"
           "  decode < ids > text       prints the text that token ids stand for\n\n"
           "prepare COMMAND --help lists the flags of a command.\n");
}

int main(int argc, char **argv) {
    *program_name() = "prepare";
    argv = arguments(&argc, argv);
    signal(SIGXFSZ, SIG_IGN);                    // a limit on file sizes is an error of write()
    threads_begin(0);
    if (argc < 2)
        die("no command; expected tales, names, text, jsonl, encode or decode; see prepare --help");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_usage();
        return 0;
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(argv[1], commands[i].name) != 0) continue;
        command_run(&commands[i], argc - 1, argv + 1);
        return 0;
    }
    die("%s: unknown command; expected tales, names, text, jsonl, encode or decode",
        brief(argv[1], strlen(argv[1])).text);
}
