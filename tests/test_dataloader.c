// dataloader.h: the order is a permutation, any split of a batch is the same batch, and no damaged
// or foreign file is opened. tests/fuzz.c damages more; a shard that shrinks while it is
// in use is in test_resume.sh.
//
// Most shards here count: the token at place p of all shards together is p, so that a window tells
// by its tokens where it came from.
#include "../dataloader.h"
#include "files.h"
#include "test.h"

// ---------------------------------------------------------------------------------------------
// Helpers

// A shard as one buffer, tokens first, first+1, ... (as far as 16 bits go).
enum { MOST_TOKENS = 4000 };
typedef struct { int32_t header[SHARD_HEADER_WORDS]; uint16_t tokens[MOST_TOKENS]; } Image;

static void image_make(Image *image, size_t n, int vocab, int eot, size_t first) {
    memset(image, 0, sizeof *image);
    int32_t start[5] = { SHARD_MAGIC, SHARD_VERSION, (int32_t)n, vocab, eot };
    memcpy(image->header, start, sizeof start);
    for (size_t t = 0; t < n && t < MOST_TOKENS; t++) image->tokens[t] = (uint16_t)(first + t);
}

static void shard_write(const char *d, const char *name, size_t n, int vocab, int eot,
                        size_t first) {
    Image image;
    image_make(&image, n, vocab, eot, first);
    put(d, name, &image, SHARD_HEADER_BYTES + 2*n);
}

// A shard of n zero tokens that takes almost no room on the disk. False where the disk refuses.
static bool shard_write_sparse(const char *d, const char *name, size_t n) {
    shard_write(d, name, 0, 0, 0, 0);
    Path p = in(d, name);
    int32_t count = (int32_t)n;
    int fd = open(p.text, O_WRONLY);
    bool ok = fd >= 0 && pwrite(fd, &count, 4, 8) == 4
           && ftruncate(fd, (off_t)(SHARD_HEADER_BYTES + 2*n)) == 0;
    if (fd >= 0) close(fd);
    return ok;
}

static void token_write(const char *d, const char *name, size_t place, uint16_t token) {
    Path p = in(d, name);
    int fd = open(p.text, O_WRONLY);
    if (fd < 0 || pwrite(fd, &token, 2, (off_t)(SHARD_HEADER_BYTES + 2*place)) != 2)
        die("%s: %s", p.text, strerror(errno));
    close(fd);
}

static bool open_in(Loader *l, const char *d, const char *name, int T, uint64_t seed, Error *err) {
    err->text[0] = '\0';
    return loader_open(l, in(d, name).text, NULL, T, seed, err);
}

// For what must open.
static Loader opened(const char *d, const char *name, int T, uint64_t seed) {
    Loader l;
    Error err;
    if (!open_in(&l, d, name, T, seed, &err)) die("%s", err.text);
    return l;
}

// As a user sees it: refused, one line, which names the place and says `why`; nothing stays open.
static void check_refused(const char *d, const char *name, int T, const char *why) {
    Loader l;
    Error err;
    bool good = open_in(&l, d, name, T, 1, &err);
    CHECK_MSG(!good, "%s was accepted; expected: %s", name, why);
    if (good) { loader_close(&l); return; }
    CHECK_MSG(strstr(err.text, why) != NULL, "'%s' does not say '%s'", err.text, why);
    CHECK_MSG(strncmp(err.text, d, strlen(d)) == 0, "'%s' names no place", err.text);
    CHECK_MSG(strchr(err.text, '\n') == NULL, "'%s' is more than a line", err.text);
    CHECK(l.shards == NULL && l.first_window == NULL && l.n_shards == 0);
}

// Shards of odd lengths, some with no window at T=7, not written in the order of their names.
// Together they count from 0 in that order. Returns how many windows of T there should be.
enum { N_SHARDS = 8 };

static const size_t shard_length[N_SHARDS] = { 57, 1, 8, 200, 7, 0, 1009, 15 };

static size_t shards_write(const char *d, size_t T) {
    static const int order[N_SHARDS] = { 5, 2, 7, 0, 3, 6, 1, 4 };
    size_t first[N_SHARDS + 1] = { 0 }, windows = 0;
    for (int i = 0; i < N_SHARDS; i++) {
        first[i + 1] = first[i] + shard_length[i];
        for (size_t end = T + 1; end <= shard_length[i]; end += T) windows++;
    }
    for (int i = 0; i < N_SHARDS; i++) {
        char name[32];
        snprintf(name, sizeof name, "x_train_%06d.bin", order[i]);
        shard_write(d, name, shard_length[order[i]], 0, 0, first[order[i]]);
    }
    return windows;
}

// ---------------------------------------------------------------------------------------------
// The permutation

static Loader loader_of(size_t n_windows, uint64_t seed) {
    Loader l;
    memset(&l, 0, sizeof l);
    l.n_windows = n_windows;
    l.seed = seed;
    return l;
}

static size_t window_at(const Loader *l, uint64_t epoch, size_t place) {
    return (size_t)permute(place, l->n_windows, l->seed, epoch);
}

static bool is_permutation(const Loader *l, uint64_t epoch) {
    unsigned char *seen = (unsigned char *)alloc_or_die(l->n_windows, "seen");
    bool ok = true;
    for (size_t i = 0; i < l->n_windows; i++) {
        size_t w = window_at(l, epoch, i);
        ok = ok && w < l->n_windows && !seen[w];
        if (w < l->n_windows) seen[w] = 1;
    }
    free(seen);
    return ok;
}

TEST(permutation_is_one) {
    static const size_t sizes[] = { 1, 2, 3, 4, 5, 7, 16, 17, 64, 65, 1000, 99991 };
    for (size_t n = 0; n < COUNT(sizes); n++)
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            Loader l = loader_of(sizes[n], epoch == 2 ? UINT64_MAX : epoch);
            CHECK_MSG(is_permutation(&l, epoch), "n=%zu epoch %d", sizes[n], (int)epoch);
        }
}

// The order that the file's head shows. Another order would change every run that is resumed.
TEST(permutation_stays_as_it_is) {
    static const int shown[2][6] = { { 2, 4, 1, 3, 5, 0 }, { 0, 3, 5, 1, 4, 2 } };
    for (int epoch = 0; epoch < 2; epoch++)
        for (int place = 0; place < 6; place++)
            CHECK(permute(place, 6, 1337, epoch) == (uint64_t)shown[epoch][place]);
    uint64_t hash = 0;
    static const uint64_t sizes[] = { 7, 1000, 65536, 65537, 1000003 };     // and of any domain
    for (int i = 0; i < 5; i++)
        for (uint64_t place = 0; place < sizes[i]; place += 1 + sizes[i] / 1000)
            hash = mix64(hash + permute(place, sizes[i], 42 - i, 7*i));
    CHECK_MSG(hash == 0x971533D78981BCCD, "0x%llX", (unsigned long long)hash);
}

// ---------------------------------------------------------------------------------------------
// Windows and samples

TEST(windows_in_file_order) {
    enum { T = 7 };
    Path d = folder_make(NULL);
    size_t windows = shards_write(d.text, T), w = 0, start = 0;
    int inputs[T], targets[T];
    Error err;
    Loader l = opened(d.text, "*train*.bin", T, 1);
    CHECK(l.n_windows == windows && l.n_shards == N_SHARDS && l.samples == 0 && !l.cold);
    for (int i = 0; i < N_SHARDS; i++) {
        CHECK(l.shards[i].n_tokens == shard_length[i] && l.first_window[i] == w);
        for (size_t at = 0; at + T < shard_length[i]; at += T, w++) {
            CHECK(loader_window(&l, w, inputs, targets, &err));
            for (int t = 0; t < T; t++)
                CHECK(inputs[t] == (int)(start + at) + t && targets[t] == inputs[t] + 1);
        }
        start += shard_length[i];
    }
    CHECK(w == windows && l.n_tokens == start);
    loader_close(&l);
    loader_close(&l);                        // harmless
    folder_remove(&d);
}

// What `ranks` ranks in micro-batches of at most `micro` read for one step, laid end to end.
static void step_read(const Loader *l, uint64_t first, size_t n, int ranks, size_t micro,
                      int *inputs, int *targets) {
    Error err;
    size_t T = (size_t)l->T, done = 0;
    for (int rank = 0; rank < ranks; rank++) {
        uint64_t mine;
        size_t count;
        loader_rank_block(&mine, &count, first, n, rank, ranks);
        for (size_t i = 0; i < count; i += micro) {
            size_t B = count - i < micro ? count - i : micro;
            CHECK(loader_batch(l, mine + i, B, inputs + done*T, targets + done*T, &err));
            done += B;
        }
    }
    CHECK(done == n);
}

TEST(any_split_is_the_same_batch) {
    enum { T = 7, N = 24 };
    static const int ranks[] = { 1, 2, 5, 17 };
    static const size_t micros[] = { 1, 3, 8, 24 };
    Path d = folder_make(NULL);
    size_t windows = shards_write(d.text, T);
    int whole[2][N*T], split[2][N*T];
    Error err;
    Loader l = opened(d.text, "*train*.bin", T, 1);
    l.samples = 99;                                                // loader_batch ignores it
    for (uint64_t step = 0; step * 8 < 3 * windows; step++) {      // across two ends of an epoch
        size_t n = step % 3 == 0 ? 8 : step % 3 == 1 ? 24 : 7;
        for (size_t i = 0; i < n; i++) {
            uint64_t s = step * 8 + i;
            size_t window = window_at(&l, s / windows, s % windows);
            CHECK(loader_window(&l, window, whole[0] + i*T, whole[1] + i*T, &err));
        }
        for (int r = 0; r < 4; r++)
            for (int m = 0; m < 4; m++) {
                memset(split, -1, sizeof split);
                step_read(&l, step * 8, n, ranks[r], micros[m], split[0], split[1]);
                CHECK(memcmp(whole[0], split[0], n*T * sizeof(int)) == 0);
                CHECK(memcmp(whole[1], split[1], n*T * sizeof(int)) == 0);
            }
    }
    CHECK(l.samples == 99);
    loader_close(&l);
    folder_remove(&d);
}

// The order must be the same on every machine, whatever its locale or its file system's order.
TEST(shards_are_sorted_by_bytes) {
    static const char *const names[] = { "b_1", "a_2", "B_9", "a_10", "_x", "a_1", "0", "Z" };
    static const char *const sorted[] = { "0", "B_9", "Z", "_x", "a_1", "a_10", "a_2", "b_1" };
    Path d = folder_make(NULL);
    for (int i = 0; i < 8; i++) shard_write(d.text, names[i], 20, 0, 0, 0);
    Loader l = opened(d.text, "*", 4, 1);
    CHECK(l.n_shards == 8);
    for (int i = 0; i < 8 && i < l.n_shards; i++)
        CHECK_MSG(strcmp(l.shards[i].path, in(d.text, sorted[i]).text) == 0, "%s at place %d",
                  l.shards[i].path, i);
    loader_close(&l);
    folder_remove(&d);
}

// ---------------------------------------------------------------------------------------------
// Files that somebody else wrote, or half wrote

// A header of 50 tokens in a vocabulary of 257, with one word changed; the file's bytes.
TEST(damaged_headers) {
    enum { WHOLE = SHARD_HEADER_BYTES + 100 };
    static const struct { int word, value; size_t bytes; const char *why; } cases[] = {
        { 0, 20240521, WHOLE, "not a token shard" },
        { 1, 2, WHOLE, "version 2" },            { 3, 65537, WHOLE, "a vocabulary of 65537" },
        { 4, 257, WHOLE, "end of text is token 257" },
        { 2, 50, 0, "is empty" },                { 2, 50, 99, "less than the header" },
        { 2, 50, WHOLE - 1, "its header promises 50 tokens, the file holds 49" },
        { 2, 50, WHOLE + 1, "101 bytes follow" },
    };
    Path d = folder_make(NULL);
    for (size_t i = 0; i < COUNT(cases); i++) {
        Image image;
        image_make(&image, 50, 257, 256, 0);
        image.header[cases[i].word] = cases[i].value;
        put(d.text, "a.bin", &image, cases[i].bytes);
        check_refused(d.text, "a.bin", 4, cases[i].why);
    }
    folder_remove(&d);
}

TEST(foreign_files_are_named) {
    static const char *const cases[][2] = {
        { "version https://git-lfs.github.com/spec/v1\n", "git lfs pull" },
        { "\xA1\xD9\x34\x01\x07", "Llama 3" },
        { "\x01\x02\x03\x04", "as nanoGPT writes them" },
        { "x", "not a token shard" },
    };
    Path d = folder_make(NULL);
    for (size_t i = 0; i < COUNT(cases); i++) {
        put(d.text, "a.bin", cases[i][0], strlen(cases[i][0]));
        check_refused(d.text, "a.bin", 4, cases[i][1]);
    }
    check_refused(d.text, "*train*.bin", 4, "no such file");
    check_refused(d.text, "", 4, "not a file");                      // the directory itself
    folder_remove(&d);
}

// Two shards: tokens, vocabulary and end of text of each. One that says nothing goes along.
TEST(shards_together) {
    static const struct { int T, a[3], b[3]; const char *why; } cases[] = {
        { 4, { 20, 0, 0 }, { 20, 257, 256 }, NULL },
        { 4, { 20, 257, 256 }, { 20, 257, 0 }, "b.bin: vocabulary 257 and end of text 0" },
        { 4, { 20, 257, 256 }, { 20, 258, 256 }, "a.bin has 257 and 256" },
        { 29, { 20, 257, 256 }, { 30, 0, 0 }, NULL },
        { 30, { 20, 0, 0 }, { 30, 0, 0 }, "the longest shard has 30 tokens" },
        { 30, { 20, 0, 0 }, { 30, 0, 0 }, "use --seq-len 29 or less" },
        { 1, { 1, 0, 0 }, { 0, 0, 0 }, "1 tokens in all, too few" },
    };
    Path d = folder_make(NULL);
    for (size_t i = 0; i < COUNT(cases); i++) {
        const int *a = cases[i].a, *b = cases[i].b;
        shard_write(d.text, "a.bin", (size_t)a[0], a[1], a[2], 0);
        shard_write(d.text, "b.bin", (size_t)b[0], b[1], b[2], 0);
        if (cases[i].why) {
            check_refused(d.text, "*.bin", cases[i].T, cases[i].why);
            continue;
        }
        Loader l = opened(d.text, "*.bin", cases[i].T, 1);
        CHECK(l.vocab == 257 && l.eot == 256);
        CHECK_MSG(l.n_windows == (i == 0 ? 8 : 1), "%zu windows", l.n_windows);
        loader_close(&l);
    }
    folder_remove(&d);
}

// ---------------------------------------------------------------------------------------------
// Tokens outside the vocabulary

// Token 37 is an input of window 9 alone, token 60 the last target of window 14.
TEST(token_outside_the_vocabulary) {
    Path d = folder_make(NULL);
    Error err;
    int inputs[4], targets[4];
    for (size_t bad = 37; bad <= 60; bad += 23) {
        char number[64];
        shard_write(d.text, "a.bin", 61, 100, 0, 0);
        token_write(d.text, "a.bin", bad, 100);
        Loader l = opened(d.text, "a.bin", 4, 1);
        for (size_t w = 0; w < l.n_windows; w++)                 // not checked yet: as used
            CHECK(loader_window(&l, w, inputs, targets, &err) == (w != (bad - 1) / 4));
        snprintf(number, sizeof number, "token number %zu is 100, outside the vocabulary", bad);
        CHECK_MSG(strstr(err.text, number) && strstr(err.text, "a.bin: damaged, or from another"),
                  "%s", err.text);
        CHECK(!loader_check_vocab(&l, 100, &err) && strstr(err.text, number));
        CHECK(!loader_check_vocab(&l, 200, &err));               // above what the shard itself says
        CHECK(!loader_check_vocab(&l, 99, &err) && strstr(err.text, "larger than the model's 99"));
        token_write(d.text, "a.bin", bad, 99);
        CHECK_MSG(loader_check_vocab(&l, 50257, &err) && l.shards[0].checked, "%s", err.text);
        loader_close(&l);
    }
    folder_remove(&d);
}

// ---------------------------------------------------------------------------------------------
// Sizes and memory

// The longest shard there can be, over 4 GiB, three times: counts of tokens, bytes and windows
// past 32 bits. Only the pages that are looked at exist.
TEST(offsets_are_64_bit) {
    const size_t n = INT32_MAX;
    Path d = folder_make(NULL);
    Error err;
    int input, target;
    if (!shard_write_sparse(d.text, "a.bin", n)) {
        folder_remove(&d);
        SKIP("needs a disk that takes a sparse file of 4 GiB");
    }
    token_write(d.text, "a.bin", n - 2, 12345);
    token_write(d.text, "a.bin", n - 1, 54321);
    CHECK(link(in(d.text, "a.bin").text, in(d.text, "b.bin").text) == 0);
    CHECK(link(in(d.text, "a.bin").text, in(d.text, "c.bin").text) == 0);
    Loader l = opened(d.text, "*.bin", 1, 1);
    CHECK(loader_check_vocab(&l, 54322, &err) && !l.shards[0].checked);      // too large to search
    CHECK(l.n_tokens == 3*n && l.n_windows == 3*(n - 1) && l.n_windows > UINT32_MAX);
    for (size_t shard = 1; shard <= 3; shard++) {
        CHECK(loader_window(&l, shard*(n - 1) - 1, &input, &target, &err));
        CHECK(input == 12345 && target == 54321);
    }
    CHECK(loader_window(&l, 2*(n - 1), &input, &target, &err) && input == 0 && target == 0);
    size_t high = 0;
    for (size_t i = 0; i < 1000; i++) high += window_at(&l, 0, i) > UINT32_MAX;
    CHECK_MSG(high > 280 && high < 390, "%zu of 1000 windows in the upper third", high);
    loader_close(&l);
    folder_remove(&d);
}

TEST(names_hold_whole_words) {
    static const struct { const char *name; bool train, val; } cases[] = {
        { "tales_train_000000.bin", true, false }, { "VAL-val2.bin", false, true },
        { "carnival_train_0.bin", true, false },   { "val/constrain.bin", false, false },
        { "train/x.val.bin", false, true },        { "train_val.bin", true, true },
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        CHECK_MSG(path_has_word(cases[i].name, "train") == cases[i].train
                  && path_has_word(cases[i].name, "val") == cases[i].val, "%s", cases[i].name);
}

static uint64_t hash_in(const char *d, const char *name) {
    Loader l = opened(d, name, 4, 1);
    uint64_t hash = loader_hash(&l);
    loader_close(&l);
    return hash;
}

// Every token of a small shard counts; of a large one, those of blocks all over it.
TEST(hashes_tell_data_apart) {
    const size_t small = 997, large = SHARD_CHECK_BYTES;       // tokens of 2 bytes: twice the limit
    Path d = folder_make(NULL);
    shard_write(d.text, "a.bin", small, 0, 0, 0);
    uint64_t before = hash_in(d.text, "a.bin");
    CHECK(before == hash_in(d.text, "a.bin"));
    for (size_t t = 0; t < small; t += 83) {
        token_write(d.text, "a.bin", t, 5000);
        uint64_t after = hash_in(d.text, "a.bin");
        CHECK_MSG(before != after, "token %zu", t);
        before = after;
    }
    if (!shard_write_sparse(d.text, "b.bin", large)) {
        folder_remove(&d);
        SKIP("needs a disk that takes a sparse file");
    }
    before = hash_in(d.text, "b.bin");
    for (size_t i = 0; i <= 3; i++) {                          // 1.1 million tokens, 3 times
        for (size_t t = 0; i < 3 && t < large/60; t += 1024)
            token_write(d.text, "b.bin", i * (large/3) + t, (uint16_t)(i + 1));
        if (i == 3) token_write(d.text, "b.bin", large - 1, 9);    // the last token
        uint64_t after = hash_in(d.text, "b.bin");
        CHECK_MSG(before != after, "part %zu", i);
        before = after;
    }
    folder_remove(&d);
}

int main(void) { return run_tests(); }
