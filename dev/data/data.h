// data: from text to tokens. prepare (dev/prepare.c) writes shards with these, dataloader.h reads
// them; the trainer needs a tokenizer to show what it writes. Each section is one file here.
#pragma once
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../../dataloader.h"
#include "../files/files.h"

// ==== jsonl.c ====================================================================================
// Documents from JSON lines: each line is an object, and its member `key` is a document. Many
// corpora are distributed so, as C4 and Dolma are. Other members and blank lines are ignored.
// Without a key, each line's whole object is one (HellaSwag).
//
// A list of messages there, or in "messages" of a line without the key, is a conversation:
//     [{"role": "user", "content": "Hi"}, ...]    ->    "user: Hi\n..."
//
//     Jsonl j = { .key = "text" };
//     const JsonNode *text;
//     jsonl_begin(&j, file, "standard input");            again for each file
//     while (jsonl_next(&j, &text, &err) && text) ... text->text (text->length bytes) ...
//     jsonl_free(&j);
//
// The file may be a pipe: it is read once, from its beginning to its end. An error names the file
// and the line. With skip_bad a line that holds no document is counted, and the next one is read.
// =================================================================================================

typedef struct {
    const char *key;                   // NULL: the object
    bool skip_bad;
    uint64_t bad;                      // lines left out
    Error first_bad;                   // what is wrong with the first of them
    FILE *file;
    const char *name;                  // of the file, for errors
    char *bytes;                       // (capacity) the latest line
    size_t capacity;
    uint64_t line;                     // number of the latest line, from 1
    Json json;                         // of the latest document
    char *conversation;                // (room) its text, if it is a list of messages
    size_t room;
} Jsonl;

void jsonl_begin(Jsonl *j, FILE *file, const char *name);
void jsonl_free(Jsonl *j);

// Reads the next document, which is valid until the next call. *text receives NULL at the end.
bool jsonl_next(Jsonl *j, const JsonNode **text, Error *err);

// ==== unicode.c ==================================================================================
// Letters, numbers and white space of Unicode 16.0.0.
// =================================================================================================

enum { CLASS_OTHER, CLASS_LETTER, CLASS_NUMBER, CLASS_SPACE };

// The class of a code point up to U+10FFFF.
int unicode_class(uint32_t c);

// ==== bpe.c ======================================================================================
// GPT-2's byte-pair encoding (BPE): the vocabulary in memory, text to words, words to tokens.
// =================================================================================================

#define END_OF_TEXT "<|endoftext|>"

// The adjacent tokens `left` and `right` become `result`. The rank of a merge is its order in
// training: the lowest rank merges first.
typedef struct { int left, right, result; } Merge;

typedef enum {
    TOKEN_WHOLE,                   // its bytes, as a word, encode to this token
    TOKEN_PART,                    // occurs within words; its bytes alone encode to other tokens
    TOKEN_ADDED,                   // never produced by encoding: end of text, padding, ...
} TokenKind;

// Token `id` is the bytes text[start[id]] ... text[start[id+1] - 1].
// The slots are hash tables with open addressing; a slot holds 0 (empty) or 1 + the entry.
typedef struct {
    int vocab_size;                // number of tokens, end of text included
    int eot;                       // the id of end of text
    int byte_id[256];              // the token of each byte
    char *text;
    size_t *start;                 // (vocab_size + 1)
    unsigned char *kind;           // (vocab_size) a TokenKind
    Merge *merges;                 // (n_merges) by rank
    int n_merges;
    size_t text_room;
    int *token_slots, *pair_slots; // bytes -> id, (left, right) -> rank
    size_t token_mask, pair_mask;  // number of slots (a power of two) - 1
} Tokenizer;

size_t slots_for(size_t n);

// Allocates room for this many tokens and merges.
void tokenizer_init(Tokenizer *t, size_t tokens, size_t merges);
void tokenizer_free(Tokenizer *t);

// The bytes of a token, without a terminating NUL.
const char *tokenizer_piece(const Tokenizer *t, int id, size_t *length);

// The id of these bytes, or -1.
int tokenizer_find(const Tokenizer *t, const char *text, size_t n);

// Adds a token with the next id; false if these bytes are a token already.
bool tokenizer_push(Tokenizer *t, const char *text, size_t n, TokenKind kind);
void tokenizer_push_eot(Tokenizer *t);

// Adds a merge with the next rank; false if the pair has one already.
bool tokenizer_push_merge(Tokenizer *t, int left, int right, int result);
void tokenizer_push_bytes(Tokenizer *t);

// The byte-level vocabulary: 256 bytes (id = value) and end of text.
void tokenizer_bytes(Tokenizer *t);

// Vocabulary files write each byte as a printable character (bpe.c).
#define HIDDEN_BYTES 68
bool byte_is_visible(int b);
int byte_to_char(int b);
int char_to_byte(int c);

// The length of the first word of text[0..n), n > 0.
size_t word_length(const char *text, size_t n);

// The largest c < n at which the text may be cut: text[0..c) and text[c..), encoded separately,
// give the tokens of the whole text, whatever follows byte n. 0 if there is none.
// Every word ends where a letter, a number or another visible character is followed by a different
// class, except after an apostrophe before a letter; and no word's match looks past such a place.
// c >= 4, so that the character before c is complete even if text begins inside a character.
size_t tokenizer_cut(const char *text, size_t n);

// A binary min-heap, ordered by key, then by item.
typedef struct { int64_t key; uint64_t item; } HeapEntry;
typedef struct { HeapEntry *entries; size_t n, capacity; } Heap;

void heap_push(Heap *h, int64_t key, uint64_t item);
HeapEntry heap_pop(Heap *h);
size_t merge_word(const Tokenizer *t, int *ids, const char *word, size_t n);

// Writes the ids of text[0..n) and returns their count. ids has room for n.
size_t tokenizer_encode(const Tokenizer *t, int *ids, const char *text, size_t n);

// ==== bpe_train.c ================================================================================
// Trains a byte-pair vocabulary on a text (Sennrich et al. 2016).
// =================================================================================================

// Distinct words, and the count of each: a hash table with open addressing that grows.
typedef struct { size_t start, length; uint64_t hash; int64_t count; } CountedWord;

typedef struct {
    char *text;                    // the words, concatenated
    size_t text_n, text_capacity;
    CountedWord *words;
    size_t n, capacity;
    uint32_t *slots;               // 0, or 1 + the index of a word
    size_t mask;
} WordCounts;

void word_counts_free(WordCounts *c);

// Adds a text, or a part of it that ends where tokenizer_cut allows. Zero *c before the first call.
void word_counts_add(WordCounts *c, const char *text, size_t n);

// Trains a vocabulary of vocab_size >= 257 tokens: 256 bytes, merges, end of text. It stops early
// when no pair occurs twice. progress: of tokens, or NULL.
void tokenizer_train(Tokenizer *t, const WordCounts *counts, int vocab_size, Progress *progress);

// ==== tokenizer.c ================================================================================
// Text to tokens and back, with a published vocabulary (GPT-2's, say) or one trained here.
//
//     Tokenizer t;
//     tokenizer_bytes(&t);                                    byte level: no merges
//     tokenizer_load(&t, "gpt2.tiktoken", &err);              or a vocabulary from a file
//     tokenizer_train(&t, &counts, 4096, NULL);               or train one: bpe_train.c
//     size_t count = tokenizer_encode(&t, ids, text, n);      ids has room for n
//     const char *bytes = tokenizer_piece(&t, ids[0], &length);
//     tokenizer_print(f, &t);                                 writes tokenizer.json
//     tokenizer_free(&t);
//
// Every byte string can be encoded, UTF-8 or not, and decoding restores it exactly. <|endoftext|>
// in a text is 13 ordinary characters: encoding never produces the token; prepare adds it.
// bpe.c has the algorithm; this file reads and writes vocabularies.
// =================================================================================================

// Write tokenizer.json, or the pairs of a GGUF for an embedding of V rows.
void tokenizer_print(FILE *f, const Tokenizer *t);
void tokenizer_put_gguf(GgufHeader *h, const Tokenizer *t, int V);

// What a vocabulary in JSON that is about to be read calls its end of text. Whatever the name, the
// token is <|endoftext|> from then on, here and in the files that we write.
const char **tokenizer_eos(void);

// Reads a vocabulary: tokenizer.json, vocab.json with merges.txt beside it, a .tiktoken file, a
// GGUF, or a directory that holds one of the first two. On failure there is nothing to free.
bool tokenizer_load(Tokenizer *t, const char *path, Error *err);

// ==== shards.c ===================================================================================
// Writing a directory of shards, NAME_train_000000.bin and so on: dataloader.h has their format.
//
// All files are written under temporary names (*.prepare-tmp), and renamed only when all of them
// are complete and on the disk. An error ends the program; it or an interrupt removes the temporary
// files; the next run removes those that kill -9 left.
// =================================================================================================

// A file that is being written, and its final name.
typedef struct Temporary {
    Path path, final;
    struct Temporary *next;
} Temporary;

typedef struct {
    const char *dir;
    const char *name;                  // "tales", "names", "text" or "jsonl"
    bool made;                         // the directory did not exist before
    Temporary *temporaries;            // newest first
} Output;

// Refuses a directory that holds other shards, or without `overwrite` earlier ones.
void output_begin(Output *out, const char *dir, const char *name, bool overwrite);

// Ends the program for a write to the directory, which has just failed.
__attribute__((noreturn)) void output_failed(const Output *out);
void output_tokenizer(Output *out, const Tokenizer *t);

// Called when every file is complete: removes the shards of an earlier run, then renames this run's
// files.
void output_commit(Output *out);

// One split, train or val: its shards, and what they hold.
typedef struct {
    Output *out;
    const char *split;
    const Tokenizer *tokenizer;        // read when a shard is begun or ended
    bool has_floor;                    // set after split_init: each shard has a .floor (entropy.c)
    FILE *bin, *floor;                 // the current shard, and its .floor or NULL
    int shards;                        // started so far
    size_t in_shard;                   // tokens in the current shard
    uint64_t tokens, bytes, documents; // the caller counts the bytes
} Split;

void split_init(Split *s, Output *out, const char *split, const Tokenizer *t);

// Adds tokens, and starts a new shard whenever one is full.
void split_add(Split *s, const int *ids, size_t n);
void split_end_document(Split *s);

// Adds a whole document, which is not cut; nats for the .floor.
void split_add_whole(Split *s, const int *ids, size_t n, double nats);

// Completes the current shard, if there is one.
void split_end_shard(Split *s);

// ==== texts.c ====================================================================================
// Texts to prepare: their documents, and which of them are for validation.
//
// A separator is a line that holds its characters and nothing else; Windows' line ends count too.
// It belongs to no document. Documents of white space alone are left out where there are
// separators, and so is a byte-order mark: neither is anybody's text.
// =================================================================================================

// A file of documents, in memory.
typedef struct {
    const char *path;                // "standard input" for -
    const char *bytes;               // (n)
    size_t n;
    struct stat info;                // of a file, not of a pipe
} Text;

// n bytes of a text: a document, or the part of one on one side of the cut.
typedef struct {
    const Text *text;
    size_t from, n;
    bool val;                        // for validation, not for training
    bool unended;                    // the document goes on in the other split
} Piece;

// All texts, and their documents in order.
typedef struct {
    Text *texts;
    int n_texts;
    Piece *pieces;
    size_t n, capacity;
    const Text *text;                // the one that is being looked through
    double bytes;                    // of all texts
} Texts;

// Finds the documents of all texts, and their splits. From 20 documents, and 1/val_fraction, on
// whole ones are held out, spread evenly; of fewer, the last part of the text. Pipes are copied to
// `out`. separator: NULL, and a text is one document. An error ends the program.
void texts_open(Texts *c, char **paths, int n, const char *separator, double val_fraction,
                const Output *out);
void texts_close(Texts *c);

// Whether the document after so many is for validation. It gets its share evenly: the length of a
// stream of documents is unknown.
bool is_held_out(double before, double fraction);

// ==== entropy.c ==================================================================================
// The entropy floor: the lowest loss that any model can reach, for a corpus of known probabilities.
//
// `prepare tales` knows the probability p of every tale that it writes. It writes a text file,
// NAME.floor, beside each validation shard: a line `batchwise floor 1`, then -ln p in nats for each
// document, end of text included. On average no model that reads tales from their beginning has a
// lower loss. A window often starts inside a tale, so evaluation compares loss and floor only on
// whole tales: tales that lie inside one window.
// =================================================================================================

typedef struct {
    size_t n;                // documents
    size_t *end;             // (n) index of each one's end-of-text token in the shard
    double *nats;            // (n) -ln p
} ShardFloor;

typedef struct {
    bool known;
    ShardFloor *shards;      // one for each shard of the loader
    int n_shards;
    double nats;             // sum over all documents
    size_t tokens;           // in all documents
} Floor;

// Whole documents: the model's loss and the floor, in nats, and their tokens.
typedef struct { double loss, floor; size_t tokens; } WholeScore;

void floor_close(Floor *f);

// Reads the floors of all the loader's shards; f->known is true if every shard has one.
bool floor_open(Floor *f, const Loader *val, Error *err);

// Adds to `score` the documents that lie whole inside a window of the loader. loss (T) is the
// model's loss, in nats, on each target of that window. A document's first token must be a target,
// so the token before it, the previous document's end of text, must be in the window too.
void floor_score_window(WholeScore *score, const Floor *f, const Loader *val, size_t window,
                        const float *loss);

// ==== tales.c ====================================================================================
// Short children's tales from a probabilistic grammar, each with its exact probability; or names.
//
//     Rng rng = rng_make(seed, 0);
//     char text[TALE_MAX];
//     double nats;
//     size_t n = tale_write(text, TALE_MAX, &nats, tale_lists, &rng);    // -ln p(text) = nats
//
// A tale is plain ASCII; lines end in \n. p includes the end of the tale, so an end-of-text token
// after it adds no nats. The grammar is unambiguous: no text has two derivations (tales.c says why,
// tests/test_tales.c checks it). So p is the probability of the text itself, and the mean of nats
// is the entropy, a lower bound on any model's loss. A seed gives the same text on every machine.
// =================================================================================================

enum { TALE_MAX = 1024 };   // no tale is longer

// A grammar: lists of words, up to one without a name, and the list of plots; each ends with NULL.
typedef struct { const char *name; const char *const *words; } TaleList;

extern const TaleList tale_lists[];              // tales_words.c
extern const char *const tale_plots[];           // tales_plots.c
extern const TaleList name_lists[];              // tales_words.c

// Writes one tale to out, without a NUL, and returns its length; *nats receives -ln p of the whole
// tale. Returns 0 if the tale needs more than cap bytes; TALE_MAX bytes always suffice.
size_t tale_write(char *out, size_t cap, double *nats, const TaleList *lists, Rng *rng);
