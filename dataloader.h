// The dataloader: which tokens an update trains on. Everything here follows from one function,
//
//     permute(place, n, seed, epoch)
//
// which shuffles the numbers 0 ... n-1: for each seed and epoch it maps the n places of an epoch
// one-to-one onto the n pieces ("windows") of the corpus. An epoch visits every window once, in an
// order that looks random. With 6 windows and seed 1337:
//
//     place      0  1  2  3  4  5
//     epoch 0    2  4  1  3  5  0
//     epoch 1    0  3  5  1  4  2
//
// The order is computed, not stored, so any process can ask for any place.
//
// A sample is a window in training order. Samples are counted from the start of the run, and sample
// s is window permute(s % n, n, seed, s / n). It depends neither on the micro-batch, nor on the
// number of ranks, nor on the batch sizes so far. Two properties of a run follow:
//
//     - however a batch is split into micro-batches and over ranks, it holds the same samples;
//     - one counter, the samples consumed, is the loader's whole state. A resumed run reads the
//       counter from its checkpoint and continues with the next sample.
//
// Training calls (dev/train/open.c, then dev/train/loop.c in each update):
//
//     if (!loader_open(&l, "data/*train*.bin", "train", T, seed, &err)) die("%s", err.text);
//     if (!loader_check_vocab(&l, V, &err)) die("%s", err.text);
//     while (training) {                       // an update of n samples over `size` ranks
//         loader_rank_block(&first, &count, l.samples, n, rank, size);     // this rank's samples
//         for (size_t i = 0; i < count / B; i++)                           // its micro-batches
//             if (!loader_batch(&l, first + i*B, B, inputs, targets, &err)) die("%s", err.text);
//         l.samples += n;
//     }
//     loader_close(&l);
//
// The parts of this file: the permutation, windows and samples, and then the files on the disk.
#pragma once
#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dev/base/base.h"
#include "dev/files/files.h"
#include "dev/base/rng.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "shards are mapped as they lie on the disk, little-endian; this machine is big-endian"
#endif
#if SIZE_MAX < UINT64_MAX && !defined(__wasm__)
#error "shards can be 4 GiB long and are mapped whole; this needs 64-bit addresses"
#endif

// ---------------------------------------------------------------------------------------------
// The permutation of an epoch: computed at any place, without a table
//
// A shuffled table would take n entries of memory, and every resume would shuffle again. A block
// cipher is a permutation without a table: for each key it is a one-to-one map of blocks to blocks.
// Two ideas give a cipher on 0 ... n-1, as in Black and Rogaway, "Ciphers with Arbitrary Finite
// Domains" (CT-RSA 2002):
//
// 1. A Feistel network. Cut a number of 2k bits into two halves, and repeat
//        (left, right) -> (right, left ^ f(right)).
//    Each round can be inverted, whatever f is: right is known, so f(right) can be computed and
//    XORed away. A sequence of rounds is therefore one-to-one. If f mixes well, four rounds look
//    random on large blocks (Luby and Rackoff 1988); a small corpus has few bits, so we use eight.
//
// 2. Cycle walking. n is rarely a power of 4, so take the smallest k with 4^k >= n. If the cipher
//    maps a number to n or above, encrypt again until the result is below n. This map is one-to-one
//    too: each number goes to the next number below n on its cycle of the cipher. Because 4^k < 4n,
//    fewer than four encryptions are expected.

enum { FEISTEL_ROUNDS = 8 };

// The number at this place of an epoch, 0 <= place < n.
static inline uint64_t permute(uint64_t place, uint64_t n, uint64_t seed, uint64_t epoch) {
    assert(place < n);
    int half_bits = 0;                       // the fewest with 4^half_bits >= n
    while (half_bits < 32 && (n - 1) >> (2*half_bits) != 0) half_bits++;
    Rng keys = rng_make(~seed, epoch);       // ~seed: no other stream uses it
    uint64_t key[FEISTEL_ROUNDS], x = place, mask = ((uint64_t)1 << half_bits) - 1;
    for (int round = 0; round < FEISTEL_ROUNDS; round++) key[round] = rng_u64(&keys);
    do {
        uint64_t left = x >> half_bits, right = x & mask;
        for (int round = 0; round < FEISTEL_ROUNDS; round++) {
            uint64_t scrambled = left ^ (mix64(right ^ key[round]) & mask);
            left = right;
            right = scrambled;
        }
        x = left << half_bits | right;
    } while (x >= n);
    return x;
}

// ---------------------------------------------------------------------------------------------
// Windows: the pieces of a corpus
//
// A corpus on disk is a list of shards. A shard is an array of token ids, document after document:
//
//     int32 header[256]     [0] 20240520   [1] version 1   [2] number of tokens
//                           [3] vocabulary size   [4] end-of-text id   (0 unknown)   others unused
//     uint16 tokens[]
//
// All little-endian; llm.c and modded-nanogpt publish FineWeb in this format. Shards are mapped,
// not read: opening 20 GB takes no time, and the kernel reads a page when a window first uses it.
//
// A window is T inputs, and their T targets one token further on. Window i of a shard starts at
// token i*T. Neighbouring windows share one token: the last target of a window is the first input
// of the next one. No token is a target twice. With T = 4:
//
//     tokens     a  b  c  d  e  f  g  h  i  j  k
//     window 0   a  b  c  d                          targets  b c d e
//     window 1               e  f  g  h              targets  f g h i       tail j, k: dropped
//
// No window crosses from one shard into the next. Windows are numbered over all shards, sorted by
// path. Evaluation reads them in that order: 0, 1, 2, ...

enum {
    SHARD_MAGIC = 20240520,
    SHARD_VERSION = 1,
    SHARD_HEADER_WORDS = 256,
    SHARD_HEADER_BYTES = 4 * SHARD_HEADER_WORDS,
    SHARD_MAX_VOCAB = 65536,                 // ids 0 ... 65535 fit a uint16
    SHARD_CHECK_BYTES = 64 << 20,            // shards up to this size are searched when opened
    READ_AROUND = 128 << 10,                 // what Linux reads at once of a page that is missing
};

typedef struct {
    char *path;
    dev_t device;                            // device and inode identify a file, whatever its path
    ino_t inode;
    const unsigned char *map;                // the whole file, read-only
    size_t map_bytes;
    const uint16_t *tokens;                  // (n_tokens), within the map
    size_t n_tokens;
    int vocab, eot;                          // from the header; 0 unknown
    bool checked;                            // when opened: every token was below the limit
} Shard;

typedef struct {
    Shard *shards;                           // (n_shards), sorted by path
    int n_shards;
    size_t *first_window;                    // (n_shards+1) windows before each shard; last: all
    size_t n_windows, n_tokens;              // of all shards
    int T;
    int vocab, eot;                          // what the headers say; 0 unknown
    int limit;                               // every token must be below it: loader_check_vocab
    bool cold;                               // a shard too large to be searched when opened: its
                                             // pages may not be in memory (loader_announce)
    uint64_t seed;
    uint64_t samples;                        // the state: samples consumed since the run began
} Loader;

// The shard that holds a window: the last one with first_window <= window.
static inline int loader_find_shard(const Loader *l, size_t window) {
    int low = 0, high = l->n_shards;         // first_window[low] <= window < first_window[high]
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (l->first_window[middle] <= window) low = middle;
        else high = middle;
    }
    return low;
}

// The error for a token that is not below the limit: the embedding may have no row for it.
static inline bool fail_token(const Shard *s, size_t place, int token, int limit, Error *err) {
    return fail(err, "%s: %s: token number %zu is %d, outside the vocabulary of %d", s->path,
                s->checked ? "changed while it was in use, so restore it"
                           : "damaged, or from another tokenizer", place, token, limit);
}

//   inputs (T)   targets (T), the token after each input
// A file can change while it is in use: each token is read from the map once, and the copy is
// compared with the limit. After an error inputs and targets are undefined.
static inline bool loader_window(const Loader *l, size_t window, int *inputs, int *targets,
                                 Error *err) {
    assert(window < l->n_windows && l->T > 0);
    int i = loader_find_shard(l, window);
    const Shard *s = &l->shards[i];
    size_t T = (size_t)l->T, first = (window - l->first_window[i]) * T, bad = 0;
    const uint16_t *tokens = s->tokens + first;
    uint16_t last = tokens[T], hi = last;
    for (size_t t = 0; t < T; t++) {                           // no exit: vectorizes
        uint16_t token = tokens[t];
        hi = token > hi ? token : hi;
        inputs[t] = token;
    }
    memcpy(targets, inputs + 1, (T - 1) * sizeof *targets);
    targets[T - 1] = last;
    if (hi < l->limit) return true;
    while (bad < T && inputs[bad] < l->limit) bad++;
    return fail_token(s, first + bad, bad < T ? inputs[bad] : last, l->limit, err);
}

// ---------------------------------------------------------------------------------------------
// Samples: windows in training order

// Samples first ... first+n-1 of the run; the loader's counter is neither read nor changed.
//   inputs (n,T)   targets (n,T)
static inline bool loader_batch(const Loader *l, uint64_t first, size_t n,
                                int *inputs, int *targets, Error *err) {
    size_t T = (size_t)l->T;
    for (size_t i = 0; i < n; i++) {
        uint64_t s = first + i;
        uint64_t window = permute(s % l->n_windows, l->n_windows, l->seed, s / l->n_windows);
        if (!loader_window(l, window, inputs + i*T, targets + i*T, err)) return false;
    }
    return true;
}

// Announces samples first ... first+n-1: the kernel reads them from the disk while the current
// update is computed. The order is a function, so the next update's samples are known. It announces
// whole blocks of READ_AROUND bytes, as much as a page fault would read; their other windows come
// later in the epoch. (On an uncached file, 64 windows take about 1 ms; without this, 13 to 18.)
static inline void loader_announce(const Loader *l, uint64_t first, size_t n) {
    size_t T = (size_t)l->T, windows = l->n_windows;
    for (uint64_t sample = first; sample < first + n; sample++) {
        size_t window = permute(sample % windows, windows, l->seed, sample / windows);
        int shard = loader_find_shard(l, window);
        const Shard *s = &l->shards[shard];
        size_t at = SHARD_HEADER_BYTES + 2 * (window - l->first_window[shard]) * T;
        size_t begin = at / READ_AROUND * READ_AROUND;
        size_t end = (at + 2*(T + 1) + READ_AROUND - 1) / READ_AROUND * READ_AROUND;
        if (end > s->map_bytes) end = s->map_bytes;
        madvise((void *)(uintptr_t)(s->map + begin), end - begin, MADV_WILLNEED);    // a hint
    }
}

// A step takes samples step_first ... step_first+step_samples-1, and each of `size` ranks takes a
// contiguous block of them. If `size` does not divide step_samples, blocks differ by one sample.
static inline void loader_rank_block(uint64_t *first, size_t *count, uint64_t step_first,
                                     size_t step_samples, int rank, int size) {
    assert(size > 0 && rank >= 0 && rank < size);
    size_t begin = step_samples * (size_t)rank / (size_t)size;
    size_t end = step_samples * ((size_t)rank + 1) / (size_t)size;
    *first = step_first + begin;
    *count = end - begin;
}

// ---------------------------------------------------------------------------------------------
// One shard. Every field of a header is checked against the file's size before it is used.

// Without MADV_RANDOM, which would turn off the kernel's read-ahead and read a cold shard page by
// page (measured: 2 to 3 times slower at T=1024, 10 times at T=64).
static inline bool shard_map(Shard *s, Error *err) {
    FileMap file;
    struct stat st;
    if (stat(s->path, &st) == 0 && S_ISDIR(st.st_mode))
        return fail(err, "%s: not a file; name shards, for instance DIR/*train*.bin", s->path);
    if (!file_map(&file, s->path, err)) return false;
    s->device = st.st_dev;
    s->inode = st.st_ino;
    s->map = file.bytes;
    s->map_bytes = file.n;
    return true;
}

// Whether the file may be tokens without a header: 16-bit ids of GPT-2's vocabulary, and not text.
static inline bool shard_is_raw(const Shard *s) {
    bool text = true;
    for (size_t i = 0; i + 1 < s->map_bytes && i < 4096; i += 2) {
        int low = s->map[i], high = s->map[i + 1];
        if ((high << 8 | low) > 50256) return false;
        text = text && low >= '\t' && low < 128 && high >= '\t' && high < 128;
    }
    return !text && s->map_bytes % 2 == 0;
}

// A file must be exactly as long as its header says. A shorter file is an incomplete download. A
// longer file most likely holds 4-byte tokens, which would train on nonsense without an error.
static inline bool shard_parse(Shard *s, Error *err) {
    int32_t header[5] = { 0 };
    memcpy(header, s->map, s->map_bytes < sizeof header ? s->map_bytes : sizeof header);
    if (header[0] != SHARD_MAGIC) {
        const char *kind = file_kind(s->map, s->map_bytes);
        if (!kind && shard_is_raw(s)) kind = "16-bit tokens without a header, as nanoGPT "
            "writes them; `prepare text` writes shards of their text";
        return fail(err, "%s: not a token shard%s%s", s->path, kind ? " but " : "",
                    kind ? kind : "; `prepare text` writes shards");
    }
    if (s->map_bytes < SHARD_HEADER_BYTES)
        return fail(err, "%s: truncated: %zu bytes, less than the header of %d", s->path,
                    s->map_bytes, SHARD_HEADER_BYTES);
    if (header[1] != SHARD_VERSION)
        return fail(err, "%s: shard version %d; this program reads version %d", s->path,
                    header[1], SHARD_VERSION);
    size_t data_bytes = s->map_bytes - SHARD_HEADER_BYTES, room = data_bytes / 2;
    if (header[2] < 0)
        return fail(err, "%s: damaged: its header promises %d tokens", s->path, header[2]);
    if ((size_t)header[2] > room)
        return fail(err, "%s: truncated: its header promises %d tokens, the file holds %zu",
                    s->path, header[2], room);
    if (2 * (size_t)header[2] != data_bytes)
        return fail(err, "%s: its header promises %d tokens of 2 bytes, but %zu bytes follow",
                    s->path, header[2], data_bytes);
    if (header[3] < 0 || header[3] > SHARD_MAX_VOCAB)
        return fail(err, "%s: damaged: its header says a vocabulary of %d; the maximum is %d",
                    s->path, header[3], SHARD_MAX_VOCAB);
    if (header[4] != 0 && (header[4] < 0 || header[4] >= header[3]))
        return fail(err, "%s: damaged: end of text is token %d, outside a vocabulary of %d",
                    s->path, header[4], header[3]);
    s->tokens = (const uint16_t *)(const void *)(s->map + SHARD_HEADER_BYTES);
    s->n_tokens = (size_t)header[2];
    s->vocab = header[3];
    s->eot = header[4];
    return true;
}

// Searches a whole shard for a token that is not below the limit.
static inline bool shard_check(const Shard *s, int limit, Error *err) {
    uint16_t hi = 0;
    size_t n = s->n_tokens, bad = 0;
    for (size_t t = 0; t < n; t++) hi = s->tokens[t] > hi ? s->tokens[t] : hi;   // vectorizes
    if (hi < limit) return true;
    while (bad + 1 < n && s->tokens[bad] < limit) bad++;
    return fail_token(s, bad, s->tokens[bad], limit, err);
}

// ---------------------------------------------------------------------------------------------
// All shards of a pattern

static inline int compare_paths(const void *a, const void *b) {
    return strcmp(((const Shard *)a)->path, ((const Shard *)b)->path);
}

// Whether the file's name holds the word, not as a part of a longer one: carnival_train_0.bin holds
// "train" but not "val".
static inline bool path_has_word(const char *path, const char *word) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t n = strlen(word);
    for (const char *at = name; (at = strstr(at, word)) != NULL; at++)
        if ((at == name || !isalpha((unsigned char)at[-1])) && !isalpha((unsigned char)at[n]))
            return true;
    return false;
}

// Fills in the paths, sorted by strcmp: glob() would sort by locale, and machines would differ.
static inline bool loader_find(Loader *l, const char *pattern, const char *word, Error *err) {
    glob_t found;
    int status = glob(pattern, GLOB_NOSORT, NULL, &found);
    if (status == GLOB_NOMATCH)
        return fail(err, "%s: no such file; `prepare tales` or `prepare text` writes shards",
                    pattern);
    if (status != 0) return fail(err, "%s: cannot search for it: %s", pattern, strerror(errno));
    l->shards = (Shard *)alloc_or_die(found.gl_pathc * sizeof(Shard), "the list of shards");
    for (size_t i = 0; i < found.gl_pathc; i++) {
        if (word && !path_has_word(found.gl_pathv[i], word)) continue;
        size_t bytes = strlen(found.gl_pathv[i]) + 1;
        Shard *s = &l->shards[l->n_shards++];
        s->path = (char *)alloc_or_die(bytes, "a path");
        memcpy(s->path, found.gl_pathv[i], bytes);
    }
    globfree(&found);
    qsort(l->shards, (size_t)l->n_shards, sizeof(Shard), compare_paths);
    if (!word || l->n_shards > 0) return true;
    return fail(err, "%s: none of these has the word %s in its name, as %s_000000.bin has; rename "
                "the shards, or use --train and --val", pattern, word, word);
}

// All shards must have the same vocabulary; shards that do not name one (0) are accepted.
static inline bool loader_agree(Loader *l, Error *err) {
    const Shard *named = NULL;
    for (int i = 0; i < l->n_shards; i++) {
        const Shard *s = &l->shards[i];
        if (s->vocab == 0) continue;
        if (named == NULL) named = s;
        if (s->vocab != named->vocab || s->eot != named->eot)
            return fail(err, "%s: vocabulary %d and end of text %d, but %s has %d and %d; "
                        "train on shards of one tokenizer", s->path, s->vocab, s->eot,
                        named->path, named->vocab, named->eot);
    }
    l->vocab = named ? named->vocab : 0;
    l->eot = named ? named->eot : 0;
    l->limit = named ? named->vocab : SHARD_MAX_VOCAB;
    return true;
}

static inline bool loader_count(Loader *l, const char *pattern, Error *err) {
    size_t longest = 0;
    l->first_window = (size_t *)alloc_or_die(((size_t)l->n_shards + 1) * sizeof(size_t),
                                             "the list of shards");
    for (int i = 0; i < l->n_shards; i++) {
        size_t n = l->shards[i].n_tokens;
        l->first_window[i + 1] = l->first_window[i] + (n > 0 ? (n - 1) / (size_t)l->T : 0);
        l->n_tokens += n;
        l->cold = l->cold || l->shards[i].map_bytes > SHARD_CHECK_BYTES;
        if (n > longest) longest = n;
    }
    l->n_windows = l->first_window[l->n_shards];
    if (l->n_windows > 0) return true;
    if (longest < 2)
        return fail(err, "%s: %zu tokens in all, too few to train on", pattern, l->n_tokens);
    return fail(err, "%s: the longest shard has %zu tokens, too few for windows of %d and their "
                "targets; use --seq-len %zu or less", pattern, longest, l->T, longest - 1);
}

// Unmaps the shards. A loader that is closed, or failed to open, may be closed again.
static inline void loader_close(Loader *l) {
    for (int i = 0; i < l->n_shards; i++) {
        if (l->shards[i].map) unmap_bytes(l->shards[i].map, l->shards[i].map_bytes);
        free(l->shards[i].path);
    }
    free(l->shards);
    free(l->first_window);
    memset(l, 0, sizeof *l);
}

// Maps every shard that matches the glob pattern, and has `word` in its name (NULL: any name), for
// windows of T tokens. After an error the loader is closed. A shard that shrinks while it is mapped
// ends the program (file.c), so write shards under another name and rename them, as `prepare` does.
static inline bool loader_open(Loader *l, const char *pattern, const char *word, int T,
                               uint64_t seed, Error *err) {
    assert(T > 0);
    memset(l, 0, sizeof *l);
    l->T = T;
    l->seed = seed;
    bool ok = loader_find(l, pattern, word, err);
    for (int i = 0; ok && i < l->n_shards; i++)
        ok = shard_map(&l->shards[i], err) && shard_parse(&l->shards[i], err);
    ok = ok && loader_agree(l, err) && loader_count(l, pattern, err);
    if (!ok) loader_close(l);
    return ok;
}

// Refuses a file in both splits: the validation loss would be a loss on training tokens.
static inline bool loader_check_disjoint(const Loader *train, const Loader *val, Error *err) {
    for (int i = 0; i < train->n_shards; i++)
        for (int j = 0; j < val->n_shards; j++) {
            const Shard *s = &train->shards[i], *v = &val->shards[j];
            if (s->device != v->device || s->inode != v->inode) continue;
            return fail(err, "%s: is in both splits; rename it so that only one of train and val "
                        "is a word of its name, or name other files with --train and --val",
                        s->path);
        }
    return true;
}

// Checks the data against the model's vocabulary. If the shards name a vocabulary, it may not be
// larger than the model's, and it stays the limit for tokens; else the model's becomes the limit.
// (Until this call the limit is the shards' vocabulary, or 65536.) Shards of at most 64 MiB are
// searched here, so that a damaged one is refused before training. loader_window checks the tokens
// of all shards, each time it copies them.
static inline bool loader_check_vocab(Loader *l, int vocab, Error *err) {
    assert(vocab > 0);
    if (vocab < l->vocab)
        return fail(err, "%s: its vocabulary of %d is larger than the model's %d",
                    l->shards[0].path, l->vocab, vocab);
    l->limit = l->vocab ? l->vocab : vocab;
    for (int i = 0; i < l->n_shards; i++) {
        Shard *s = &l->shards[i];
        s->checked = false;
        if (s->map_bytes > SHARD_CHECK_BYTES) continue;
        if (!shard_check(s, l->limit, err)) return false;
        s->checked = true;
    }
    return true;
}

// A hash of the data, for comparing ranks, and a resumed run with its start: the length and the
// tokens of each shard. Of a large shard only 4 to 64 blocks are read, spread over its length,
// about 1,000 over all shards, so that even a corpus that is not cached takes seconds.
static inline uint64_t loader_hash(const Loader *l) {
    enum { BLOCK = 2048 };
    size_t each = 1024 / (size_t)l->n_shards, blocks = each < 4 ? 4 : each > 64 ? 64 : each;
    uint64_t hash = 1;
    for (int i = 0; i < l->n_shards; i++) {
        const Shard *s = &l->shards[i];
        size_t n = s->n_tokens;
        hash = hash_add(hash, &n, sizeof n);
        if (s->map_bytes <= SHARD_CHECK_BYTES) {
            hash = hash_add(hash, s->tokens, n * sizeof *s->tokens);
            continue;
        }
        for (size_t b = 0; b < blocks; b++)
            hash = hash_add(hash, s->tokens + (n - BLOCK) * b / (blocks - 1),
                            BLOCK * sizeof *s->tokens);
    }
    return hash;
}
