// The tokenizer: words, merges, training, and files of every kind, whole and damaged.
// tests/test_tiktoken.py compares with the libraries; here everything has a reason of its own.
#define PROGRAM "test_tokenizer"
#include "../dev/data/bpe_train.h"
#include "../dev/base/rng.h"
#include "../dev/data/tokenizer.h"
#include "test.h"

static WordCounts counts_of(const char *text, size_t n) {
    WordCounts counts = { NULL, 0, 0, NULL, 0, 0, NULL, 0 };
    word_counts_add(&counts, text, n);
    return counts;
}

static Tokenizer trained(const char *text, size_t n, int vocab_size) {
    Tokenizer t;
    WordCounts counts = counts_of(text, n);
    tokenizer_train(&t, &counts, vocab_size, NULL, NULL);
    word_counts_free(&counts);
    return t;
}

// Text that exercises the rules: every class, in one to four bytes, and bytes that are no UTF-8.
static size_t random_text(char *out, size_t n, Rng *rng) {
    static const char *const parts[] = {
        "a", "b", "s", "t", "ll", "re", "v", "d", "'", "'s", " ", "  ", "\n", "\t", "1", "2", "!",
        ".", "\xC3\xA9", "\xC2\xA0", "\xC2\xB2", "\xE4\xB8\xAD", "\xE3\x80\x80", "\xE2\x80\xA6",
        "\xF0\x9F\x91\x8D", "\xF0\x9D\x9F\x98", "\xF0\x90\x8D\x88", "\xCC\x81", "\x80", "\xC3",
        "\xE4\xB8", "\xF0\x9F\x91", "\xFF", "\xED\xA0\x80",
    };
    size_t count = 0;
    for (;;) {
        const char *part = parts[rng_below(rng, sizeof parts / sizeof *parts)];
        size_t length = strlen(part);
        if (count + length > n) return count;
        memcpy(out + count, part, length);
        count += length;
    }
}

static bool comes_back(const Tokenizer *t, const char *text, size_t n) {
    int *ids = (int *)malloc((n + 1) * sizeof *ids);
    size_t count = tokenizer_encode(t, ids, text, n), at = 0, length;
    bool same = true;
    for (size_t i = 0; same && i < count; i++) {
        const char *piece = tokenizer_piece(t, ids[i], &length);
        same = at + length <= n && memcmp(piece, text + at, length) == 0;
        at += length;
    }
    free(ids);
    return same && at == n;
}

// ---- bytes ----

TEST(byte_level) {
    Tokenizer t;
    char text[256];
    int ids[256];
    size_t n;
    tokenizer_bytes(&t);
    CHECK(t.vocab_size == 257 && t.eot == 256);
    for (int b = 0; b < 256; b++) text[b] = (char)b;
    CHECK(tokenizer_encode(&t, ids, text, 256) == 256);
    for (int b = 0; b < 256; b++) {
        const char *piece = tokenizer_piece(&t, b, &n);
        CHECK(ids[b] == b && n == 1 && (unsigned char)piece[0] == b);
    }
    const char *end = tokenizer_piece(&t, 256, &n);
    CHECK(n == 13 && memcmp(end, "<|endoftext|>", 13) == 0);
    tokenizer_free(&t);
}

// ---- words ----

// The words of a text, joined with | (which the texts here do not hold).
static void check_words(const char *text, const char *expected) {
    char words[256];
    size_t out = 0, length, n = strlen(text);
    for (size_t i = 0; i < n; i += length) {
        length = word_length(text + i, n - i);
        if (i > 0) words[out++] = '|';
        memcpy(words + out, text + i, length);
        out += length;
    }
    words[out] = '\0';
    CHECK_MSG(strcmp(words, expected) == 0, "'%s' -> '%s', not '%s'", text, words, expected);
}

// What Python's `regex` finds with GPT-2's expression.
TEST(words_are_gpt2s) {
    check_words("Hello world", "Hello| world");
    check_words("It's 3 o'clock", "It|'s| 3| o|'|clock");
    check_words("they'd we're I'll you've", "they|'d| we|'re| I|'ll| you|'ve");
    check_words("I'm don't", "I|'m| don|'t");
    check_words("THEY'D", "THEY|'|D");
    check_words("'sit 'tis 'lo 'r", "'s|it| '|tis| '|lo| '|r");
    check_words("a  b", "a| | b");
    check_words("a   ", "a|   ");
    check_words("a \n b", "a| \n| b");
    check_words("a \nb", "a| |\n|b");
    check_words("a\n\nb", "a|\n|\n|b");
    check_words("\tx", "\t|x");
    check_words("x1y2", "x|1|y|2");
    check_words("3.14, $5!", "3|.|14|,| $|5|!");
    check_words("na\xC3\xAFve caf\xC3\xA9", "na\xC3\xAFve| caf\xC3\xA9");
    check_words("x\xC2\xB2 \xC2\xBD", "x|\xC2\xB2| \xC2\xBD");               // superscript, half
    check_words("e\xCC\x81t", "e|\xCC\x81|t");                               // a mark is no letter
    check_words("a\xC2\xA0" "b", "a|\xC2\xA0|b");                            // no-break space
    check_words("\xE4\xB8\xAD\xE6\x96\x87\xE3\x80\x82x", "\xE4\xB8\xAD\xE6\x96\x87|\xE3\x80\x82|x");
    check_words("a\x1C" "b", "a|\x1C|b");                                    // no white space
    check_words("a\xC3 b", "a|\xC3| b");                                     // half a character
    check_words("a\xED\xA0\x80" "b", "a|\xED\xA0\x80|b");                    // a surrogate
}

TEST(classes_are_unicodes) {
    CHECK(unicode_class('a') == CLASS_LETTER && unicode_class('9') == CLASS_NUMBER);
    CHECK(unicode_class(0) == CLASS_OTHER && unicode_class(0x10FFFF) == CLASS_OTHER);
    CHECK(unicode_class(0x0D) == CLASS_SPACE && unicode_class(0x0E) == CLASS_OTHER);
    CHECK(unicode_class(0x85) == CLASS_SPACE && unicode_class(0x200B) == CLASS_OTHER);
    CHECK(unicode_class(0x3000) == CLASS_SPACE && unicode_class(0x2167) == CLASS_NUMBER);
    CHECK(unicode_class(0x3400) == CLASS_LETTER && unicode_class(0x4DBF) == CLASS_LETTER);
    CHECK(unicode_class(0x1C89) == CLASS_LETTER);                            // new in 16.0
    CHECK(unicode_class(0x323AF) == CLASS_LETTER && unicode_class(0x323B0) == CLASS_OTHER);
    int counts[4] = { 0, 0, 0, 0 };                        // as tiktoken 0.14 counts them
    for (uint32_t c = 0; c < 0x110000; c++) counts[unicode_class(c)]++;
    CHECK(counts[CLASS_LETTER] == 140976 + 52 && counts[CLASS_NUMBER] == 1901 + 10);
    CHECK(counts[CLASS_SPACE] == 19 + 6);
    for (int c = 0; c < 128; c++) {
        char text = (char)c;
        size_t length;
        CHECK(character_class(&text, 1, &length) == unicode_class((uint32_t)c) && length == 1);
    }
}

static size_t count_words(const char *text, size_t n, size_t *ends) {
    size_t count = 0;
    for (size_t i = 0; i < n; ) ends[count++] = i += word_length(text + i, n - i);
    return count;
}

// Whatever comes behind the part that tokenizer_cut has seen, cutting there changes no word.
TEST(cuts_change_nothing) {
    Rng rng = rng_make(1, 0);
    char text[40];
    size_t whole[40], parts[40], cuts = 0;
    for (int trial = 0; trial < 200000; trial++) {
        size_t n = random_text(text, 4 + rng_below(&rng, 28), &rng);
        size_t seen = rng_below(&rng, n + 1), cut = tokenizer_cut(text, seen);
        if (cut == 0) continue;
        cuts++;
        size_t before = count_words(text, cut, parts);
        size_t count = before + count_words(text + cut, n - cut, parts + before);
        for (size_t i = before; i < count; i++) parts[i] += cut;
        bool same = cut < seen && count == count_words(text, n, whole)
                 && memcmp(whole, parts, count * sizeof *whole) == 0;
        CHECK_MSG(same, "trial %d: cut %zu of %zu in '%.*s'", trial, cut, n, (int)n, text);
    }
    CHECK_MSG(cuts > 50000, "only %zu texts could be cut", cuts);
    CHECK(tokenizer_cut("word", 4) == 0 && tokenizer_cut("words words", 11) == 5);
    CHECK(tokenizer_cut("              ", 14) == 0 && tokenizer_cut("abcdefghijklmnop", 16) == 0);
}

// ---- merging ----

static void training_text(char *text, size_t n, uint64_t seed) {
    Rng rng = rng_make(seed, 0);
    static const char *const words[] = { "banana", "bandana", " ana", "nan", "aaaa", "bababa" };
    size_t count = 0;
    while (count < n) {
        const char *word = words[rng_below(&rng, 6)];
        for (size_t i = 0; word[i] && count < n; i++) text[count++] = word[i];
    }
}

TEST(long_words_merge_like_short_ones) {
    char text[20000], word[SHORT_WORD];
    int a[SHORT_WORD], b[SHORT_WORD];
    Rng rng = rng_make(2, 0);
    training_text(text, sizeof text, 1);
    Tokenizer t = trained(text, sizeof text, 300);
    CHECK(t.n_merges > 30);
    for (int trial = 0; trial < 20000; trial++) {
        size_t n = 1 + rng_below(&rng, SHORT_WORD);
        for (size_t i = 0; i < n; i++) word[i] = "abnd"[rng_below(&rng, 4)];
        for (size_t i = 0; i < n; i++) a[i] = b[i] = t.byte_id[(unsigned char)word[i]];
        size_t short_n = merge_short(&t, a, n), long_n = merge_long(&t, b, n);
        CHECK(short_n == long_n && memcmp(a, b, short_n * sizeof *a) == 0);
    }
    tokenizer_free(&t);
}

TEST(every_string_comes_back) {
    char text[20000];
    Rng rng = rng_make(3, 0);
    training_text(text, sizeof text, 1);
    Tokenizer t = trained(text, sizeof text, 300);
    for (int trial = 0; trial < 2000; trial++) {
        size_t n = rng_below(&rng, 300);
        for (size_t i = 0; i < n; i++) text[i] = (char)rng_below(&rng, 256);
        CHECK(comes_back(&t, text, n));
        CHECK(comes_back(&t, text, random_text(text, n, &rng)));
    }
    memset(text, 'a', sizeof text);
    CHECK(comes_back(&t, text, sizeof text) && comes_back(&t, text, 0));
    tokenizer_free(&t);
}

TEST(threads_give_the_same_ids) {
    enum { N = 300000 };
    char *text = (char *)malloc(N);
    int *a = (int *)malloc(N * sizeof *a), *b = (int *)malloc(N * sizeof *b);
    Rng rng = rng_make(4, 0);
    size_t n = random_text(text, N, &rng);
    Tokenizer t = trained(text, 20000, 400);
    for (int trial = 0; trial < 5; trial++) {
        if (trial == 1) n = 100;                           // fewer bytes than it could use
        if (trial == 2) n = 0;
        if (trial == 3) memset(text, 'a', n = 50000);      // no place to cut
        if (trial == 4) memset(text, ' ', n = 50000);
        size_t count = tokenizer_encode(&t, a, text, n);
        CHECK(tokenizer_encode_parallel(&t, b, text, n) == count);
        CHECK(memcmp(a, b, count * sizeof *a) == 0);
    }
    tokenizer_free(&t);
    free(text);
    free(a);
    free(b);
}

// ---- training ----

static void check_merges(const char *text, int vocab_size, const char *expected) {
    char merges[256] = "";
    size_t n, used = 0;
    Tokenizer t = trained(text, strlen(text), vocab_size);
    for (int i = 0; i < t.n_merges; i++) {
        const char *left = tokenizer_piece(&t, t.merges[i].left, &n);
        used += (size_t)snprintf(merges + used, sizeof merges - used, "%s%.*s", i ? " " : "",
                                 (int)n, left);
        const char *right = tokenizer_piece(&t, t.merges[i].right, &n);
        used += (size_t)snprintf(merges + used, sizeof merges - used, "+%.*s", (int)n, right);
    }
    CHECK_MSG(strcmp(merges, expected) == 0, "'%s' -> '%s', not '%s'", text, merges, expected);
    CHECK(t.vocab_size == 257 + t.n_merges && t.eot == t.vocab_size - 1);
    tokenizer_free(&t);
}

TEST(training_by_hand) {
    check_merges("abab", 257, "");
    check_merges("ab!ab!ab", 300, "a+b");
    check_merges("abc!abc!ab", 300, "a+b ab+c");           // ab three times, then abc twice
    check_merges("bc!ab!bc!ab", 300, "a+b b+c");           // a tie: the older left token first
    check_merges("ac!ab!ac!ab", 300, "a+b a+c");           // a tie: the older right token first
    check_merges("\n!\n!b!b! !b", 258, "");                // words are apart: nothing to merge
    check_merges("aaaa", 300, "a+a");                      // pairs overlap: a+a is there 3 times
    check_merges("aaaa!aaaa", 300, "a+a aa+aa");
    check_merges("aaaaa!aaaaa", 300, "a+a aa+a aa+aaa");   // aa aa a: a tie, and a is older than aa
    check_merges("xy", 300, "");                           // once is not enough
    check_merges("", 300, "");
    // bytes are as old as their characters in the alphabet: ~ before U+0101, which stands for 01
    check_merges("\x01!" "a~!a" "\x01!" "a~!a", 258, "~+!");
}

TEST(ages_are_a_permutation) {
    for (int id = 0; id < 300; id++) CHECK(token_of_age(token_age(id)) == id);
    for (uint64_t age = 0; age < 300; age++) CHECK(token_age(token_of_age(age)) == age);
    for (uint64_t age = 1; age < 256; age++)
        CHECK(byte_to_char(token_of_age(age - 1)) < byte_to_char(token_of_age(age)));
    for (int b = 0; b < 256; b++) CHECK(char_to_byte(byte_to_char(b)) == b);
}

// Counts kept up to date give what counting anew after every merge gives.
TEST(training_counts_stay_right) {
    char text[3000];
    Rng rng = rng_make(5, 0);
    size_t n = random_text(text, sizeof text, &rng);
    WordCounts counts = counts_of(text, n);
    Trainer tr;
    int left, right;
    trainer_init(&tr, &counts);
    for (int id = 256; trainer_best(&tr, &left, &right); id++) {
        trainer_merge(&tr, left, right, id);
        for (size_t p = 0; p < tr.n_pairs; p++) {
            const TrainPair *pair = &tr.pairs[p];
            int64_t count = 0;
            for (size_t w = 0; w < counts.n; w++)
                for (size_t i = 0; i + 1 < tr.length[w]; i++) {
                    const int *word = tr.tokens + counts.words[w].start;
                    if (word[i] == pair->left && word[i+1] == pair->right)
                        count += counts.words[w].count;
                }
            CHECK(pair->count == count);
        }
    }
    trainer_free(&tr);
    word_counts_free(&counts);
}

// ---- files ----

static bool same_tokenizer(const Tokenizer *a, const Tokenizer *b) {
    return a->vocab_size == b->vocab_size && a->eot == b->eot && a->n_merges == b->n_merges
        && !memcmp(a->start, b->start, (size_t)(a->vocab_size + 1) * sizeof *a->start)
        && !memcmp(a->text, b->text, a->start[a->vocab_size])
        && !memcmp(a->kind, b->kind, (size_t)a->vocab_size)
        && !memcmp(a->byte_id, b->byte_id, sizeof a->byte_id)
        && !memcmp(a->merges, b->merges, (size_t)a->n_merges * sizeof *a->merges);
}

// The file as tokenizer_print writes it; free it.
static char *printed(const Tokenizer *t, size_t *n) {
    char *text = NULL;
    FILE *f = open_memstream(&text, n);
    tokenizer_print(f, t);
    fclose(f);
    return text;
}

TEST(what_is_written_is_read) {
    char text[20000];
    Rng rng = rng_make(6, 0);
    size_t n = random_text(text, sizeof text, &rng);
    for (int size = 257; size < 600; size += 100) {
        Tokenizer t = trained(text, n, size), back;
        Error err;
        size_t length;
        char *json = printed(&t, &length);
        CHECK_MSG(tokenizer_parse(&back, json, length, "", &err), "%s", err.text);
        CHECK(same_tokenizer(&t, &back));
        tokenizer_free(&t);
        tokenizer_free(&back);
        free(json);
    }
}

// A tokenizer.json of the 256 bytes, with more tokens and merges as wanted; `form` has three %s.
static char *json_with(const char *form, const char *tokens, const char *merges,
                       const char *added) {
    char bytes[8192];
    size_t used = 0, size = strlen(form) + sizeof bytes + 1000;
    for (int b = 0; b < 256; b++) {
        int c = byte_to_char(b);
        char key[3] = { (char)c, '\0', '\0' };
        if (c >= 128) key[0] = (char)(0xC0 | c >> 6), key[1] = (char)(0x80 | (c & 63));
        used += (size_t)snprintf(bytes + used, sizeof bytes - used, "%s\"%s%s\": %d", b ? ", " : "",
                                 c == '"' || c == '\\' ? "\\" : "", key, b);
    }
    snprintf(bytes + used, sizeof bytes - used, "%s", tokens);
    char *text = (char *)malloc(size);
    snprintf(text, size, form, added, bytes, merges);
    return text;
}

#define FORM "{\"added_tokens\": [%s], \"pre_tokenizer\": {\"type\": \"ByteLevel\", " \
             "\"add_prefix_space\": false}, \"model\": {\"vocab\": {%s}, \"merges\": [%s]}}"
#define EOT(id) "{\"id\": " id ", \"content\": \"<|endoftext|>\"}"

static void check_json(const char *form, const char *tokens, const char *merges, const char *added,
                       const char *expected) {
    Tokenizer t;
    Error err;
    char *text = json_with(form, tokens, merges, added);
    bool good = tokenizer_parse(&t, text, strlen(text), "", &err);
    if (!expected) CHECK_MSG(good, "%s", err.text);
    else CHECK_MSG(!good && strstr(err.text, expected), "'%s', not '%s'", good ? "" : err.text,
                   expected);
    if (good) tokenizer_free(&t);
    free(text);
}

TEST(tokenizer_json_is_checked) {
    check_json(FORM, "", "", EOT("256"), NULL);
    check_json(FORM, ", \"ab\": 256", "\"a b\"", EOT("257"), NULL);
    check_json(FORM, ", \"ab\": 256", "[\"a\", \"b\"]", EOT("257"), NULL);
    check_json(FORM, ", \"<|endoftext|>\": 256", "", EOT("256"), NULL);
    check_json(FORM, ", \"<|endoftext|>\": 256", "", "", NULL);
    check_json(FORM, "", "", "", "no <|endoftext|>");
    check_json(FORM, "", "", EOT("258"), "without gaps");
    check_json(FORM, ", \"<|endoftext|>\": 257", "", EOT("257"), "no token has id 256");
    check_json(FORM, "", "", EOT("1000000000"), "without gaps");
    check_json(FORM, "", "", EOT("-1"), "expected a token and its id");
    check_json(FORM, "", "", EOT("2.5"), "expected a token and its id");
    check_json(FORM, "", "", EOT("5"), "id 5 is taken");
    check_json(FORM, "", "", "7", "expected an id and a content");
    check_json(FORM, ", \"ab\": 255", "", EOT("256"), "id 255 is taken");
    check_json(FORM, ", \"a\": 256", "", EOT("257"), "appears a second time");
    check_json(FORM, ", \"\": 256", "", EOT("257"), "alphabet");
    check_json(FORM, ", \"a b\": 256", "", EOT("257"), "alphabet");
    check_json(FORM, ", \"\xE4\xB8\xAD\": 256", "", EOT("257"), "alphabet");
    check_json(FORM, ", \"ab\": 256", "\"a c\"", EOT("257"), "its result is not in");
    check_json(FORM, ", \"ab\": 256", "\"a bc\"", EOT("257"), "its right part is not in");
    check_json(FORM, ", \"ab\": 256", "\"xa b\"", EOT("257"), "its left part is not in");
    check_json(FORM, ", \"ab\": 256", "\"ab\"", EOT("257"), "two tokens and a space");
    check_json(FORM, ", \"ab\": 256", "\"a b\", \"a b\"", EOT("257"), "merge 2: appears twice");
    check_json(FORM, ", \"ab\": 256", "[\"a\"]", EOT("257"), "expected a merge");
    check_json(FORM, ", \"ab\": 256", "5", EOT("257"), "expected a merge");
    check_json("{\"model\": {\"type\": \"WordPiece\"}, \"x\": [\"%.0s%.0s%.0s\"]}", "", "", "",
               "only \"BPE\"");
    check_json("{\"model\": {}, \"x\": [\"%.0s%.0s%.0s\"]}", "", "", "", "pre_tokenizer is not");
    check_json("{\"added_tokens\": [%s], \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
               "\"add_prefix_space\": true}, \"model\": {\"vocab\": {%s}, \"merges\": [%s]}}",
               "", "", EOT("256"), "add_prefix_space");
    check_json("{\"added_tokens\": [%s], \"normalizer\": {\"type\": \"NFC\"}, \"pre_tokenizer\": "
               "{\"type\": \"ByteLevel\"}, \"model\": {\"vocab\": {%s}, \"merges\": [%s]}}",
               "", "", EOT("256"), "normalizer");
    check_json("{\"model\": {\"vocab\": 5, \"merges\": []}, \"pre_tokenizer\": {\"type\": "
               "\"ByteLevel\"}, \"x\": [\"%.0s%.0s%.0s\"]}", "", "", "",
               "\"vocab\" must be an object");
}

// Merges after which a longer token cannot be reached from its bytes alone: a word of those bytes
// must not become it. Hugging Face's library gives the same.
TEST(unreachable_tokens) {
    Tokenizer t;
    Error err;
    int ids[8];
    char *text = json_with(FORM, ", \"bc\": 256, \"ab\": 257, \"abc\": 258",
                           "\"b c\", \"a b\", \"ab c\"", EOT("259"));
    CHECK(tokenizer_parse(&t, text, strlen(text), "", &err));
    CHECK(tokenizer_encode(&t, ids, "abc", 3) == 2 && ids[0] == 'a' && ids[1] == 256);
    CHECK(tokenizer_encode(&t, ids, "ab", 2) == 1 && ids[0] == 257);
    CHECK(t.kind[258] == TOKEN_PART && t.kind[257] == TOKEN_WHOLE && t.kind[259] == TOKEN_ADDED);
    tokenizer_free(&t);
    free(text);
}

// ---- files of tiktoken ----

static void base64_line(char *out, const char *bytes, size_t n, int rank) {
    static const char digits[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        uint32_t bits = 0;
        for (size_t k = 0; k < 3; k++)
            bits = bits << 8 | (i + k < n ? (unsigned char)bytes[i + k] : 0);
        for (int k = 0; k < 4; k++)
            *out++ = i + (size_t)k > n ? '=' : digits[bits >> (18 - 6*k) & 63];
    }
    snprintf(out, 16, " %d\n", rank);
}

// 256 bytes and what else is given.
static char *ranks_with(const char *more) {
    char *text = (char *)malloc(256*16 + strlen(more) + 1), *end = text;
    for (int b = 0; b < 256; b++, end += strlen(end)) {
        char byte = (char)b;
        base64_line(end, &byte, 1, b);
    }
    memcpy(end, more, strlen(more) + 1);
    return text;
}

static void check_ranks(const char *more, const char *expected) {
    Tokenizer t;
    Error err;
    char *text = ranks_with(more);
    bool good = tokenizer_parse(&t, text, strlen(text), "", &err);
    if (!expected) CHECK_MSG(good, "%s", err.text);
    else CHECK_MSG(!good && strstr(err.text, expected), "'%s', not '%s'", good ? "" : err.text,
                   expected);
    if (good) tokenizer_free(&t);
    free(text);
}

static void check_bytes(const char *bytes, size_t n, const char *expected) {
    Tokenizer t;
    Error err;
    bool good = tokenizer_parse(&t, bytes, n, "/nowhere/vocab.json", &err);
    CHECK_MSG(!good && strstr(err.text, expected), "'%s', not '%s'", good ? "" : err.text,
              expected);
    if (good) tokenizer_free(&t);
}

TEST(ranks_are_checked) {
    check_ranks("", NULL);
    check_ranks("YWI= 256\nYWJj 257\n", NULL);             // ab, abc
    check_ranks("YWI= 256", NULL);                         // no line end
    check_ranks("YWI= 256\r\nYWJj 257\r\n", NULL);
    check_ranks("YWI= 257\n", "line 257: expected rank 256");
    check_ranks("YWI= 0256\n", "expected rank 256");
    check_ranks("YWI= -1\n", "expected rank 256");
    check_ranks("YWI= \n", "expected rank 256");
    check_ranks("YWI= 99999999999999999999\n", "expected base64, a space and a rank");
    check_ranks("YWI 256\n", "expected base64");
    check_ranks("Y=I= 256\n", "expected base64");
    check_ranks("YW*= 256\n", "expected base64");
    check_ranks("==== 256\n", "expected base64");
    check_ranks("YWI=\n", "expected base64");
    check_ranks("\n", "expected base64");
    check_ranks("YQ== 256\n", "duplicate of an earlier token");
    check_ranks("YWJj 256\n", "line 257: the token is not a merge of two earlier tokens");
    check_bytes("IQ== 0\n", 7, "no token for the byte 0x00");
    check_bytes("<!DOCTYPE html><html>404</html>", 31, "web page (HTML)");
    check_bytes("\n <html>", 8, "web page (HTML)");
    check_bytes("#version: 0.2\nh e\n", 18, "name the vocab.json");
    check_bytes("{", 1, "byte 1");
    check_bytes("{\"a\": 0}", 8, "needs merges.txt beside it; /nowhere/merges.txt");
    check_bytes("\x1F\x8B\x08", 3, "gunzip");
    check_bytes("garbage\n", 8, "line 1: expected base64");
}

// Every truncation, and single bytes changed at random: an answer, never a crash.
static void damage(const char *whole, size_t n, uint64_t seed) {
    Rng rng = rng_make(seed, 0);
    char *text = (char *)malloc(n);
    Tokenizer t;
    Error err;
    int loaded = 0;
    for (size_t k = 0; k < 2*n; k++) {
        size_t length = k < n ? k : n;
        memcpy(text, whole, n);
        if (k >= n) text[rng_below(&rng, n)] = (char)rng_below(&rng, 256);
        err.text[0] = '\0';
        bool good = tokenizer_parse(&t, text, length, "/nowhere/vocab.json", &err);
        CHECK(good || (err.text[0] && !strchr(err.text, '\n')));
        if (good) CHECK(comes_back(&t, "ab abc\xFF", 7));
        if (good) tokenizer_free(&t);
        loaded += good;
    }
    CHECK_MSG(loaded < (int)n, "%d of %zu damaged files were read", loaded, 2*n);
    free(text);
}

TEST(damaged_files) {
    char *ranks = ranks_with("YWI= 256\nYWJj 257\n");
    char *json = json_with(FORM, ", \"ab\": 256, \"abc\": 257", "\"a b\", \"ab c\"", EOT("258"));
    damage(ranks, strlen(ranks), 1);
    damage(json, strlen(json), 2);
    free(ranks);
    free(json);
}

static void write_file(const char *path, const char *text) {
    FILE *f = fopen(path, "wb");
    if (!f) die("%s: %s", path, strerror(errno));
    fputs(text, f);
    fclose(f);
}

// A directory, a file, and vocab.json with and without merges.txt.
TEST(files_by_name) {
    char dir[] = "/tmp/batchwise.XXXXXX", path[100], merges[100], expected[200];
    Tokenizer t;
    Error err;
    CHECK(mkdtemp(dir) != NULL);
    CHECK(!tokenizer_load(&t, dir, &err) && strstr(err.text, "vocab.json"));
    char *vocab = json_with("{%.0s%s%.0s}", ", \"ab\": 256, \"<|endoftext|>\": 257", "", "");
    snprintf(path, sizeof path, "%s/vocab.json", dir);
    snprintf(merges, sizeof merges, "%s/merges.txt", dir);
    write_file(path, vocab);
    snprintf(expected, sizeof expected, "%s: cannot open", merges);
    CHECK_MSG(!tokenizer_load(&t, path, &err) && strstr(err.text, expected), "%s", err.text);
    write_file(merges, "#version: 0.2\na b\n");
    CHECK_MSG(tokenizer_load(&t, path, &err), "%s", err.text);
    CHECK(t.n_merges == 1 && t.eot == 257);
    tokenizer_free(&t);
    write_file(merges, "#version: 0.2\na b\n\n");
    CHECK(!tokenizer_load(&t, path, &err) && strstr(err.text, "merge 2: expected two tokens"));
    write_file(merges, "a b");
    CHECK(tokenizer_load(&t, dir, &err) && t.n_merges == 1);

    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    CHECK(tokenizer_save(&t, path, &err));
    Tokenizer back;
    CHECK(tokenizer_load(&back, dir, &err) && same_tokenizer(&t, &back));
    tokenizer_free(&t);
    tokenizer_free(&back);
    CHECK(!tokenizer_load(&t, "/nowhere", &err) && strstr(err.text, "/nowhere: "));
    write_file(path, "");
    CHECK(!tokenizer_load(&t, dir, &err) && strstr(err.text, "empty"));
    tokenizer_bytes(&t);
    CHECK(!tokenizer_save(&t, "/nowhere/tokenizer.json", &err));
    tokenizer_free(&t);
    free(vocab);
    CHECK(path_remove(dir, &err));
}

// ---- GPT-2's own ----

TEST(gpt2s_vocabulary) {
    char path[4096];
    const char *folder = getenv("BATCHWISE_DATA");
    struct stat info;
    snprintf(path, sizeof path, "%s/gpt2.tiktoken", folder ? folder : "../shared/data");
    if (!folder && stat(path, &info) != 0) snprintf(path, sizeof path, "data/gpt2.tiktoken");
    if (stat(path, &info) != 0) SKIP("needs gpt2.tiktoken in BATCHWISE_DATA");
    Tokenizer t, back;
    Error err;
    int ids[64];
    CHECK_MSG(tokenizer_load(&t, path, &err), "%s", err.text);
    CHECK(t.vocab_size == 50257 && t.eot == 50256 && t.n_merges == 50000);
    CHECK(tokenizer_encode(&t, ids, "Hello world", 11) == 2 && ids[0] == 15496 && ids[1] == 995);
    CHECK(tokenizer_encode(&t, ids, "<|endoftext|>", 13) == 7);    // text is text
    for (int id = 0; id < t.vocab_size; id++) CHECK((t.kind[id] == TOKEN_ADDED) == (id == t.eot)
                                                    && t.kind[id] != TOKEN_PART);
    size_t n;
    char *json = printed(&t, &n);
    CHECK_MSG(tokenizer_parse(&back, json, n, "", &err), "%s", err.text);
    CHECK(same_tokenizer(&t, &back));
    free(json);
    tokenizer_free(&t);
    tokenizer_free(&back);
}

int main(void) {
    RUN(byte_level);
    RUN(words_are_gpt2s);
    RUN(classes_are_unicodes);
    RUN(cuts_change_nothing);
    RUN(long_words_merge_like_short_ones);
    RUN(every_string_comes_back);
    RUN(threads_give_the_same_ids);
    RUN(training_by_hand);
    RUN(ages_are_a_permutation);
    RUN(training_counts_stay_right);
    RUN(what_is_written_is_read);
    RUN(tokenizer_json_is_checked);
    RUN(unreachable_tokens);
    RUN(ranks_are_checked);
    RUN(damaged_files);
    RUN(files_by_name);
    RUN(gpt2s_vocabulary);
    return test_end();
}
