// files: what is read from and written to a disk. Each section is one file of this folder; above
// the formats stand the checkpoints, which use them all.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "../model/gpt2.h"

// ==== file.c =====================================================================================
// Files: reading by mmap, and writing with fsync so that the data survives a crash.
//
// Every error names the path and the system's message.
// =================================================================================================

typedef struct { char text[4096]; } Path;

// DIR/NAME. Ends the program where that is longer than any system allows.
Path path_join(const char *dir, const char *name);

// ---- reading ----

typedef struct { const unsigned char *bytes; size_t n; } FileMap;

// A guess from the first bytes at what an unexpected file is, and what to do; NULL: unknown.
const char *file_kind(const unsigned char *bytes, size_t n);

// Maps the n bytes of an open file, read-only. Returns NULL after an error.
const unsigned char *map_bytes(int fd, size_t n, const char *path, Error *err);
void unmap_bytes(const unsigned char *bytes, size_t n);

// Maps a whole file, read-only.
bool file_map(FileMap *m, const char *path, Error *err);
void file_unmap(FileMap *m);

// Reads all of a file or pipe, of standard input if the path is "-". Returns its n bytes and a NUL,
// which the caller frees, or NULL after an error.
char *file_read(size_t *n, const char *path, Error *err);

// ---- writing: bytes are safe only when the file and then its directory have been synced ----

// Creates a file where none is: what is there, a link or a pipe too, belongs to somebody. Returns
// its descriptor, or -1 after an error.
int file_create(const char *path, Error *err);
bool file_put(int fd, const void *data, size_t n, const char *path, Error *err);

// Waits until the file is on the disk (fsync), and closes it in any case.
bool file_close(int fd, const char *path, Error *err);
bool file_write(const char *path, const void *data, size_t n, Error *err);

// Makes created, renamed and removed names in a directory durable.
bool dir_sync(const char *dir, Error *err);

// Begins to write `path` anew, as a temporary file beside it: a crash or an error leaves an older
// file as it was. Returns a descriptor, or -1 after an error.
int file_begin(Path *temporary, const char *path, Error *err);

// Ends it: the new file takes the name, unless not all of it was put. Closes fd in any case.
bool file_end(int fd, const Path *temporary, const char *path, bool put, Error *err);

// Removes a file, or a directory with its contents; a link is removed, not followed. A missing path
// is no error.
bool path_remove(const char *path, Error *err);

// Creates a directory and its parents, like mkdir -p.
bool make_directories(const char *path, Error *err);

// ---- floating-point elements as files hold them: fp32, fp16 (IEEE half) and bf16 ----

typedef enum { FLOAT_NO = -1, FLOAT_32 = 0, FLOAT_16 = 1, FLOAT_BF16 = 30 } FloatType;   // GGUF's

size_t float_bytes(FloatType type);

float float_from_bits(uint32_t bits);
float float_from_bf16(uint16_t h);

// IEEE half: 1 sign, 5 exponent, 10 fraction bits. Exact.
float float_from_f16(uint16_t h);

// The nearest half; of two equally near, the one whose last bit is 0. From 65,520 on: infinity.
uint16_t f16_from_float(float x);

// Arrays: those in a file need not be aligned.

// out (n) = the elements of a file, exactly.
void floats_read(float *out, const unsigned char *in, size_t n, FloatType type);

// out (rows, cols) = the transpose of in (cols, rows), in square tiles that fit the L1 cache.
void floats_transpose(float *out, const unsigned char *in, size_t rows, size_t cols,
                      FloatType type);

// ==== json.c =====================================================================================
// A small strict JSON reader (RFC 8259), and a writer of strings.
//
//     Json j;
//     if (!json_parse(&j, text, n, &err)) ...                    "byte 123: ..."
//     int64_t layers;
//     if (!json_get_int(&layers, j.root, "n_layer", 1, 1000, &err)) ...
//     json_free(&j);
//
// The text must be UTF-8, nothing may follow the value, numbers must fit a double, nesting is
// limited to JSON_MAX_DEPTH. Of equal keys in an object the first counts.
//
// The tree is one array of nodes in the order of the text; a container precedes its contents:
//
//     {"a": [1, 2], "b": true}    ->    { "a" [ 1 2 "b" true      node `{`: length 2, span 7
//                                                                 node `[`: length 2, span 3
// The next sibling of node v is therefore `v + v->span`, and a walk needs no stack:
//
//     for (const JsonNode *v = json_first(array); v < json_end(array); v = json_next(v)) ...
//     for (const JsonNode *k = json_first(object); k < json_end(object); k = json_next(k + 1))
//         ... the key is k->text, the value is k + 1 ...
// =================================================================================================

typedef enum {
    JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT
} JsonType;

typedef struct {
    JsonType type;
    const char *text;    // an unescaped string, or a number as written; NUL-terminated
    size_t length;       // bytes of text (a string may hold NULs); items or members of a container
    size_t span;         // nodes of the subtree, this one included; 1 for a scalar
    size_t at;           // byte offset in the source, for messages
} JsonNode;

typedef struct {
    JsonNode *root;      // (n_nodes) valid until json_free
    size_t n_nodes;
    char *strings;       // storage of the nodes' text
} Json;

// ---- walking ----

const JsonNode *json_first(const JsonNode *container);
const JsonNode *json_next(const JsonNode *v);
const JsonNode *json_end(const JsonNode *container);
bool json_is(const JsonNode *v, const char *text);

// The member of that name, or NULL. A linear search: for many look-ups build a table.
const JsonNode *json_get(const JsonNode *object, const char *key);

// A value's text for a message.
Brief json_show(const JsonNode *v);

// ---- typed values: every error names the key ----

const char *json_type_name(JsonType type);

// The member of that name; NULL and an error if it is missing or has another type.
const JsonNode *json_need(const JsonNode *object, const char *key, JsonType type, Error *err);

// A whole number within [lo, hi], written without fraction or exponent. It returns no error text:
// for items of lists, where the caller can give a better message.
bool json_to_int(int64_t *out, const JsonNode *v, int64_t lo, int64_t hi);

bool json_get_int(int64_t *out, const JsonNode *object, const char *key, int64_t lo, int64_t hi,
                  Error *err);

bool json_get_double(double *out, const JsonNode *object, const char *key, Error *err);

// ---- reading ----

void json_free(Json *j);

// Parses n bytes, which need not end with a NUL and may be freed afterwards. On failure there is
// nothing to free.
bool json_parse(Json *j, const char *text, size_t n, Error *err);

// Parses the file DIR/NAME.
bool json_open(Json *json, const char *dir, const char *name, Error *err);

// ---- writing ----

// Writes a quoted, escaped string; bytes that are not UTF-8 become U+FFFD. Check ferror(f).
void json_write_string(FILE *f, const char *text, size_t n);

// ==== safetensors.c ==============================================================================
// Reading and writing safetensors, Hugging Face's file format for weights.
//
//     8 bytes     n, little-endian
//     n bytes     JSON: {"__metadata__": {"format": "pt"},
//                        "wte.weight": {"dtype": "F32", "shape": [50257, 768],
//                                       "data_offsets": [0, 154389504]}, ...}
//     the rest    the tensors, little-endian, without gaps or overlaps; offsets count from here
//
// The header is padded with spaces to a multiple of 8 bytes: in a mapped file, floats are aligned.
// Format: https://github.com/huggingface/safetensors#format
// =================================================================================================

enum {
    SAFETENSORS_MAX_HEADER = 100000000,      // the reference implementation's limit
    SAFETENSORS_MAX_DIMS = 8,
};

typedef struct { const char *name; size_t bytes; FloatType type; } SafeDtype;

typedef struct {
    const char *name;                        // points into the header's JSON
    const SafeDtype *dtype;
    int n_dims;
    size_t dims[SAFETENSORS_MAX_DIMS];
    size_t count;                            // the product of dims
    size_t begin, end;                       // bytes of data; end - begin = count * dtype->bytes
    const unsigned char *data;               // its bytes, in the file that holds it
} SafeTensor;

typedef struct SafeTensors {
    SafeTensor *tensors;                     // (n_tensors), in the order of the header
    size_t n_tensors;
    const unsigned char *data;
    size_t data_bytes;
    Json header;
    FileMap file;                            // mapped by safetensors_open
    struct SafeTensors *more;                // files that safetensors_add has added; NULL: none
} SafeTensors;

// ---- reading ----

void safetensors_close(SafeTensors *s);
bool safetensors_open(SafeTensors *s, const char *path, Error *err);

// Adds the tensors of another file (a shard of the same model) to those of s, which may be zeros.
bool safetensors_add(SafeTensors *s, const char *path, Error *err);

// Whether floats_read supports the tensor's type.
bool safetensors_is_real(const SafeTensor *t, Error *err);

// ---- writing ----

typedef struct {
    char name[120];                          // plain: no quotes, no backslashes
    int n_dims;
    size_t dims[2];
} SafeOutput;

// Creates a file and writes the header of these n tensors, F32. The caller appends their elements,
// tensor after tensor, with any number of file_put(fd, ...), then file_close(fd, ...). Returns -1
// after an error, which may leave an incomplete file: write under a temporary name, then rename.
int safetensors_create(const char *path, const SafeOutput *tensors, size_t n, Error *err);

// ==== llmc.c =====================================================================================
// Reads llm.c's model files (gpt2_124M.bin, gpt2_124M_bf16.bin):
//
//     int32 header[256]   [0] 20240326   [1] version: 3 is fp32, 5 is bf16   [2] positions
//                         [3] vocabulary   [4] layers   [5] heads   [6] channels
//                         [7] vocabulary padded
//     tensors             in the order of gpt2.h's table, but kind by kind: the tensors of one kind
//                         for all layers, then those of the next kind. Matrices in the blocks are
//                         (out, in), as in PyTorch's Linear; ours are (in, out): we transpose them.
// =================================================================================================

enum {
    LLMC_MAGIC = 20240326, LLMC_FP32 = 3, LLMC_BF16 = 5,
    LLMC_HEADER_WORDS = 256, LLMC_HEADER_BYTES = 4 * LLMC_HEADER_WORDS,
};

// Reads the sizes, and checks that the n bytes are exactly a model of these sizes.
bool llmc_config(Config *c, const unsigned char *bytes, size_t n, Error *err);

// out (t->count) = the tensor t; c comes from llmc_config on the same bytes.
void llmc_tensor(float *out, const Tensor *t, const Config *c, const unsigned char *bytes);

// ==== gguf.c =====================================================================================
// Reads and writes GGUF, the file format of llama.cpp: its container. gguf.c has GPT-2 in it,
// tokenizer.c a tokenizer.
//
//     "GGUF"      u32 version, u64 number of tensors, u64 number of pairs
//     pairs       key, u32 type, value. A text is its u64 length and its bytes. An array is the u32
//                 type of its elements, their u64 number, and the elements
//     tensors     name, u32 number of sizes, u64 sizes (the innermost first), u32 type, u64 offset
//     the data    the tensors in that order, each padded to a multiple of general.alignment, or 32;
//                 the data begins at such a multiple too, and offsets count from there
//
// All is little-endian. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
// =================================================================================================

enum {
    GGUF_U32 = 4, GGUF_I32 = 5, GGUF_F32 = 6, GGUF_BOOL = 7, GGUF_TEXT = 8, GGUF_ARRAY = 9,
    GGUF_ARRAY_OF = 256,                     // GGUF_ARRAY_OF | type: of a value in memory
    GGUF_ALIGNMENT = 32,
    GGUF_MAX_NAME = 64, GGUF_MAX_DIMS = 4,   // as in ggml
};

// ---- reading: nothing is taken beyond the end ----

typedef struct { const unsigned char *at; size_t left; } GgufBytes;

typedef struct { const char *bytes; uint64_t n; } GgufText;

bool gguf_take_text(GgufText *t, GgufBytes *b);

typedef struct {
    uint32_t type;
    uint64_t n;                              // elements of an array; otherwise 1
    GgufBytes bytes;                         // the elements, complete
} GgufValue;

typedef struct {
    size_t n;                                // bytes of the file
    uint64_t n_pairs, n_tensors;
    GgufBytes pairs, infos;                  // from the first pair on; from the first tensor's name
} Gguf;

bool gguf_is(const unsigned char *bytes, size_t n);

// Reads the header and checks that the pairs are complete. The bytes must stay valid.
bool gguf_parse(Gguf *g, const unsigned char *bytes, size_t n, Error *err);

// A linear search; false if there is no such key of this type.
bool gguf_get(GgufValue *v, const Gguf *g, const char *key, uint32_t type);
bool gguf_need_text(const Gguf *g, const char *key, const char *text, Error *err);

// ---- writing: all that precedes the data, in memory ----

typedef struct {
    TextBuffer t;                            // its text is complete after gguf_end
    uint64_t n_tensors, n_pairs;             // so far
} GgufHeader;

void gguf_put_u32(GgufHeader *h, uint32_t x);
void gguf_put_text(GgufHeader *h, const char *bytes, size_t n);
void gguf_begin(GgufHeader *h);

// The caller puts the value.
void gguf_put_key(GgufHeader *h, const char *key, uint32_t type);
void gguf_put_u32_pair(GgufHeader *h, const char *key, uint32_t x);
void gguf_put_text_pair(GgufHeader *h, const char *key, const char *text);

// The caller puts the n elements.
void gguf_put_array(GgufHeader *h, const char *key, uint32_t type, uint64_t n);
void gguf_end(GgufHeader *h);

// ---- GPT-2 in a GGUF file, as llama.cpp wants it ----
//
// Matrices in the blocks are (out, in), as in PyTorch's Linear; ours are (in, out): we transpose
// them. A file without output.weight has tied weights. Names of keys and tensors: llama.cpp's
// src/llama-arch.cpp and src/models/gpt2.cpp. To write a file: gguf_begin; gguf_put_model; further
// pairs; gguf_put_tensors; gguf_end; its text, and for each tensor gguf_append.

typedef struct {
    FloatType type;
    uint64_t offset;                         // in the data
    bool there;
} GgufTensor;

typedef struct {
    Config c;
    const unsigned char *data;
    GgufTensor *tensors;                     // (gpt2_n_tensors + 1) as gpt2_tensor counts them; the
} GgufModel;                                 // last one is output.weight, which may be missing

void gguf_model_free(GgufModel *m);

// Checks the n bytes of a whole file, which must stay valid until gguf_model_free. On failure there
// is nothing to free.
bool gguf_model(GgufModel *m, const unsigned char *bytes, size_t n, Error *err);

// The type of a tensor in a file of this type: vectors and positions are always fp32, as the
// converter of llama.cpp has it.
FloatType gguf_type(const Tensor *t, FloatType type);

void gguf_put_model(GgufHeader *h, const Config *c, FloatType type);
void gguf_put_tensors(GgufHeader *h, const Config *c, FloatType type);

// Appends a tensor to a file, and padding.
//   in       (t->count) is overwritten
//   scratch  (4*C*C) for a transposed matrix
bool gguf_append(int fd, float *in, const Tensor *t, FloatType type, float *scratch,
                 const char *path, Error *err);

// ==== checkpoint.c, weights.c, run_folder.c ======================================================
// Checkpoints: directories that transformers' GPT2LMHeadModel.from_pretrained opens as they are.
//
//     OUT/step_00001000/model.safetensors       the weights, fp32, under Hugging Face's names
//                       config.json             the sizes, as transformers wants them
//                       tokenizer.json, tokenizer_config.json
//                       optimizer.safetensors   AdamW's two moments: exp_avg.NAME, exp_avg_sq.NAME
//                       average.safetensors     averaged weights, if the run has them: average.NAME
//                       state.json              counters: where the run stands
//     OUT/latest -> step_00001000               a relative link; or, where one fails (Windows,
//                                               FAT), a file that holds the name of the directory
//     OUT/best -> step_00000600                 another: the lowest validation loss of those kept
//
// In a DiLoCo run (Douillard et al. 2023) each worker has moments of its own. optimizer.safetensors
// then holds their mean, from which any number of workers can resume; two more files hold the rest:
//
//                       outer.safetensors       outer_momentum.NAME
//                       workers.safetensors     worker0.exp_avg.NAME, worker0.exp_avg_sq.NAME,
//                                               worker1.exp_avg.NAME, ...
//
// OUT/latest always points to a complete checkpoint, even if the run crashes during a save:
//     1. write all files to OUT/.tmp-step_00001000; fsync each file and the directory
//     2. rename the directory to OUT/step_00001000; fsync OUT
//     3. rename a new link, or file, over OUT/latest; fsync OUT
//     4. do the same for OUT/best, if another checkpoint is the best now
//     5. only now remove old checkpoints: rename each to OUT/.tmp-old, then delete it
// A run begins by removing the .tmp- names above that a crash has left.
//
// With ZeRO (Rajbhandari et al. 2020) no rank holds the moments, or at stage 3 the weights, of the
// whole model. It is saved and loaded bucket by bucket (gpt2_bucket), in this order: for model,
// optimizer, outer, average and workers.safetensors, for each prefix in the file, buckets
// 0 ... L+1. If a bucket is gathered from other ranks, those ranks make the same calls through
// checkpoint_follow.
// A save that fails still makes all remaining calls, so that no rank waits forever.
//
// Loading: checkpoint_find, checkpoint_config; then for each file tensor_file_open,
// tensor_file_bucket, tensor_file_close. Resuming adds checkpoint_load_state.
// =================================================================================================

// The progress of a run.
typedef struct {
    int64_t step, tokens, samples;       // as in the log; samples is the loader's whole state
    int64_t adam_steps, skipped;         // updates made (for bias correction), updates skipped
    int64_t seed;
    double seconds;                      // of training, resumed parts included
    int64_t workers;                     // of DiLoCo; 0: no DiLoCo
    int64_t batch_tokens, next_batch_tokens;   // of the last update, and an adaptive one's next
    int64_t norm_test_waited;                  // updates, of dev/train/schedule.c
    double noise_g2, noise_s, noise_weight;    // of dev/train/noise.c; weight 0: not measured
    double noise_adam_g2, noise_adam_s, noise_adam_weight;     // in Adam's metric
    double val_loss;                     // of these weights; NaN: not evaluated
} TrainState;

// What a save writes. All pointers belong to the caller.
typedef struct {
    Config config;
    TrainState state;
    const char *options;                 // a JSON object for state.json; NULL: none
    // Returns the elements (gpt2_bucket(&config, bucket).count) of a bucket, valid until the next
    // call. worker: whose moments; -1 for the mean of all workers' moments, and for other arrays.
    const float *(*source)(void *from, Kept what, int worker, int bucket);
    void *from;
    bool sgd, averages;                  // no moments; averaged weights
    FileMap tokenizer;                   // tokenizer.json; bytes NULL: none
    int eot;                             // id of the end of text; -1: none
    bool *whole;                         // receives true once OUT/step_N is complete, whatever
} Checkpoint;                            // fails after that; NULL: not needed

// ---- checkpoint.c: series and files ----

// A series is an array with one element for each parameter: the weights or a moment, of one worker
// or of the whole run (worker -1). Series are numbered in the order of a save: the run's series,
// then exp_avg and exp_avg_sq of worker 0, of worker 1, and so on.
typedef struct { Kept what; int worker; } Series;

enum { MAX_WORKERS = 1 << 16 };          // a larger number means a damaged file

Series series_at(int i);
int series_index(Kept what, int worker);

// What stands before a tensor's name: "", "exp_avg.", "worker3.exp_avg_sq.", by the series.
typedef struct { char text[40]; } Prefix;

Prefix series_prefix(int i);

typedef enum {
    FILE_WEIGHTS, FILE_OPTIMIZER, FILE_OUTER, FILE_AVERAGE, FILE_WORKERS, N_FILES
} KeptFile;

extern const char *const kept_file_names[N_FILES];

// The index of a file's first series; for N_FILES, the number of all series.
int kept_file_first(int file, int64_t workers);

// Whether a save writes this file.
bool kept_file_has(const Checkpoint *k, int file);

// The index after the last series that a save writes.
int kept_end(const Checkpoint *k);

// ---- weights.c: a file's tensors, matched with the table of gpt2.h ----

// A file of tensors: opened and checked as a whole, then read bucket by bucket.
typedef struct {
    Path path;                           // of the file
    Config config;
    int first, end;                      // its series: first ... end-1
    SafeTensors s;
    const SafeTensor **tensors;          // (end - first, gpt2_n_tensors), into s; NULL: zeros
    bool linear, biases;                 // its blocks' matrices are (out, in); it has any bias
    FileMap single;                      // a GGUF or llm.c's .bin; then s and tensors are unused
    GgufModel gguf;                      // of a GGUF; otherwise its tensors are NULL
    bool warned;                         // about NaN or infinite weights
} TensorFile;

// The index, as gpt2_tensor counts, of the tensor that Hugging Face's or llama.cpp's files call so;
// -1: there is none.
typedef enum { NAMED_HUGGING_FACE, NAMED_GGUF } Naming;

int tensor_find(const Config *c, const char *name, Naming naming);
bool tensor_is_vector(const Tensor *t);

// out (t->count) = the tensor t, which begins at `in`; linear: the file has the matrices of blocks
// (out, in), as PyTorch's Linear.
void tensor_read(float *out, const unsigned char *in, const Tensor *t, bool linear, FloatType type);

// ---- run_folder.c: finding a checkpoint ----

typedef struct { char text[64]; } StepName;

// "step_00001000" or "step_00001000.1" (see checkpoint_name) -> 1000; -1 for any other name.
int64_t step_of(const char *name);

StepName latest_name(const char *out);

// One checkpoint in OUT, and the validation loss in its state.json; infinite if it has none.
typedef struct { StepName name; int64_t step; double val_loss; } Saved;

bool checkpoint_best_in(Saved *best, const char *out);
bool path_is_dir(const char *path);

// Resolves a user's path: a checkpoint's directory, a run's directory, a GGUF, or a .bin of llm.c.
// A run's checkpoint is its latest one; without that link (copies lose it), its newest one. The
// functions below take the path in `found`.
bool checkpoint_find(Path *found, const char *path, Error *err);

// ---- weights.c, checkpoint.c: loading it ----

#define WEIGHTS_INDEX "model.safetensors.index.json"     // names the shards of others' weights

// Refuses weights in a directory that only Python can read, with the command that converts them.
bool weights_foreign_in(const char *dir, Error *err);
void tensor_file_close(TensorFile *f);

// Opens one file of the checkpoint at `path` (from checkpoint_find) and checks that it holds every
// tensor, in the right shape, and no others. `workers`: the number of workers in state.json, for
// FILE_WORKERS. On failure there is nothing to close.
bool tensor_file_open(TensorFile *f, const char *path, KeptFile file, int64_t workers,
                      const Config *c, Error *err);

// The sizes of the model at `path` (from checkpoint_find). Also checks that all its weights exist
// in these shapes, before the caller allocates memory for them.
bool checkpoint_config(Config *c, const char *path, Error *err);

// elements (gpt2_bucket(&f->config, bucket).count) = one bucket of a series of the file; `what` and
// `worker` as in Checkpoint.source. Buckets may be read in any order. The file was checked when it
// was opened, so reading cannot fail. NaN or infinite weights get one warning on stderr.
void tensor_file_bucket(float *elements, TensorFile *f, Kept what, int worker, int bucket);

// *json receives the whole file, for json_get(json.root, "options"). Free it with json_free.
bool checkpoint_load_state(TrainState *s, Json *json, const char *dir, Error *err);

// ---- checkpoint.c: writing the files of one checkpoint ----

// Makes all calls of k->source, also after an error. dir NULL: makes the calls alone.
bool checkpoint_write_files(const char *dir, const Checkpoint *k, Error *err);

// ---- run_folder.c: names, the link, removing old checkpoints ----

// The index of the checkpoint with the lowest validation loss, the oldest of equals. If no
// checkpoint has one: n.
size_t checkpoint_best(const Saved *all, size_t n);

// The checkpoints in OUT that a run can go on from, for advice; else as checkpoint_list.
bool checkpoint_list_whole(Saved **all, size_t *n, const char *out, Error *err);

// Finds OUT's checkpoint of this step. The error names those that a run can go on from.
bool checkpoint_of_step(Path *found, const char *out, int64_t step, Error *err);

// Points a link of OUT, "latest" or "best", at a checkpoint, atomically: the new link is renamed
// over the old one.
bool link_move(const char *out, const char *link, const char *name, Error *err);

// Locks the existing directory OUT against other runs, until *fd is closed.
bool checkpoint_lock(int *fd, const char *out, Error *err);

// Creates OUT if necessary, removes what a crash has left in it, and repairs OUT/latest. Call once,
// before any save.
bool checkpoint_begin(const char *out, Error *err);

// Whether OUT holds a run's checkpoints.
bool checkpoint_exists(const char *out);

// For --overwrite: removes the run's checkpoints, `latest` first.
bool checkpoint_clear(const char *out, Error *err);

// Saves OUT/step_N and points OUT/latest at it, and OUT/best at the best one. Then, unless keep is
// 0, removes all checkpoints up to this step except the newest `keep` and the best. After an error
// OUT/latest is unchanged, unless only OUT/best or the removal of old checkpoints failed. All calls
// of k->source are made even after an error.
bool checkpoint_save(const char *out, const Checkpoint *k, int keep, Error *err);

// Makes a save's calls of k->source without writing: for the other ranks during a save. Reads only
// config, source, from, sgd, averages and state.workers of k.
void checkpoint_follow(const Checkpoint *k);
