// The tokenizer: words, places to cut, and files of every kind. tests/test_tiktoken.py compares
// words, merges and training with the libraries, tests/fuzz.c damages files.
#include "../dev/data/bpe.c"
#include "../dev/data/tokenizer.c"
#include "../dev/base/rng.h"
#include "files.h"
#include "test.h"

static Tokenizer trained(const char *text, size_t n, int vocab_size) {
    Tokenizer t;
    WordCounts counts = { NULL, 0, 0, NULL, 0, 0, NULL, 0 };
    word_counts_add(&counts, text, n);
    tokenizer_train(&t, &counts, vocab_size, NULL);
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
        const char *part = parts[rng_below(rng, COUNT(parts))];
        size_t length = strlen(part);
        if (count + length > n) return count;
        memcpy(out + count, part, length);
        count += length;
    }
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
    static const char *const cases[][2] = {
        { "It's 3 o'clock", "It|'s| 3| o|'|clock" },
        { "they'd THEY'D 'tis 'r", "they|'d| THEY|'|D| '|tis| '|r" },
        { "a  b   ", "a| | b|   " },
        { "a \n b\n\nc\td", "a| \n| b|\n|\n|c|\t|d" },
        { "na\xC3\xAFve e\xCC\x81t", "na\xC3\xAFve| e|\xCC\x81|t" },       // a mark is no letter
        { "x\xC2\xB2 \xC2\xBD", "x|\xC2\xB2| \xC2\xBD" },                 // superscript, half
        { "a\xC2\xA0" "b\x1C" "c", "a|\xC2\xA0|b|\x1C|c" },               // no-break space
        { "a\xC3 b", "a|\xC3| b" },                                        // half a character
    };
    for (size_t i = 0; i < COUNT(cases); i++) check_words(cases[i][0], cases[i][1]);
}

TEST(classes_are_unicodes) {
    CHECK(unicode_class(0x0D) == CLASS_SPACE && unicode_class(0x0E) == CLASS_OTHER);
    CHECK(unicode_class(0x1C89) == CLASS_LETTER);                            // new in 16.0
    int counts[4] = { 0, 0, 0, 0 };                        // as tiktoken 0.14 counts them
    for (uint32_t c = 0; c < 0x110000; c++) counts[unicode_class(c)]++;
    CHECK(counts[CLASS_LETTER] == 140976 + 52 && counts[CLASS_NUMBER] == 1901 + 10);
    CHECK(counts[CLASS_SPACE] == 19 + 6);
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

// ---- encoding ----

// Whatever is encoded comes back: a text, words without a place to cut, and nothing.
TEST(encoding_comes_back) {
    enum { N = 100000 };
    static char text[N];
    Rng rng = rng_make(2, 0);
    for (size_t i = 0; i < N; i++) text[i] = "aaabnd "[rng_below(&rng, 7)];
    Tokenizer t = trained(text, 20000, 300);
    CHECK(t.n_merges > 30);
    CHECK(comes_back(&t, text, 0) && comes_back(&t, text, random_text(text, N, &rng)));
    memset(text, 'a', N);
    CHECK(comes_back(&t, text, N/2));
    tokenizer_free(&t);
}

// It ends where no pair is left that occurs twice.
TEST(training_on_little_text) {
    static const char *const texts[] = { "", "a", "abab", "abc!abc!ab" };
    static const int merges[] = { 0, 0, 1, 2 };
    for (size_t i = 0; i < COUNT(texts); i++) {
        Tokenizer t = trained(texts[i], strlen(texts[i]), 300);
        CHECK_MSG(t.n_merges == merges[i], "'%s': %d merges", texts[i], t.n_merges);
        CHECK(t.vocab_size == 257 + t.n_merges && t.eot == t.vocab_size - 1);
        tokenizer_free(&t);
    }
}

// ---- files ----

// A tokenizer.json of the 256 bytes, with more tokens and merges as wanted; `form` has three %s.
static char *json_with(const char *form, const char *tokens, const char *merges,
                       const char *added) {
    char bytes[8192];
    size_t used = 0, size = strlen(form) + sizeof bytes + 1000;
    for (int b = 0; b < 256; b++) {
        int c = byte_to_char(b);
        char key[5] = "";
        utf8_put(key, (unsigned)c);
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
#define BYTE_LEVEL "\"pre_tokenizer\": {\"type\": \"ByteLevel\""
#define AB ", \"ab\": 256"
#define END ", \"<|endoftext|>\": 256"
#define EOT(id) "{\"id\": " id ", \"content\": \"<|endoftext|>\"}"

// Reads a vocabulary, which it frees; expected: the error, or NULL where there is none.
static void check_parsed(char *text, size_t n, const char *expected) {
    Tokenizer t;
    Error err = { "" };
    bool good = tokenizer_parse(&t, text, n, "/nowhere/vocab.json", &err);
    if (!expected) CHECK_MSG(good, "%s", err.text);
    else CHECK_MSG(!good && strstr(err.text, expected), "'%s', not '%s'", err.text, expected);
    if (good) tokenizer_free(&t);
    free(text);
}

TEST(tokenizer_json_is_checked) {
    static const struct { const char *tokens, *merges, *added, *expected; } cases[] = {
        { "", "", EOT("256"), NULL }, { AB, "\"a b\"", EOT("257"), NULL },
        { AB, "[\"a\", \"b\"]", EOT("257"), NULL }, { END, "", "", NULL },
        { "", "", "", "no <|endoftext|>" },
        { ", \"<|endoftext|>\": 257", "", EOT("257"), "no token has id 256" },
        { "", "", EOT("5"), "id 5 is taken" },
        { ", \"\xE4\xB8\xAD\": 256", "", EOT("257"), "alphabet" },
        { AB, "\"a c\"", EOT("257"), "its parts or its result are not in" },
        { AB, "\"ab\"", EOT("257"), "two tokens and a space" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char *text = json_with(FORM, cases[i].tokens, cases[i].merges, cases[i].added);
        check_parsed(text, strlen(text), cases[i].expected);
    }
}

// Models that encode otherwise than GPT-2's.
TEST(other_models_are_refused) {
    static const char *const cases[][2] = {
        { "\"model\": {\"type\": \"WordPiece\"}", "only \"BPE\"" },
        { "\"model\": {}", "pre_tokenizer is not" },
        { BYTE_LEVEL ", \"add_prefix_space\": true}, \"model\": {}", "add_prefix_space" },
        { BYTE_LEVEL ", \"use_regex\": false}, \"model\": {}", "regular expression" },
        { BYTE_LEVEL "}, \"normalizer\": {\"type\": \"NFC\"}, \"model\": {}", "normalizer" },
        { BYTE_LEVEL "}, \"model\": {\"end_of_word_suffix\": \"x\"}", "end_of_word_suffix" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char *text = (char *)malloc(200);
        snprintf(text, 200, "{%s}", cases[i][0]);
        check_parsed(text, strlen(text), cases[i][1]);
    }
}

// ---- files of tiktoken ----

// 256 bytes and what else is given.
static char *ranks_with(const char *more) {
    char *text = (char *)malloc(256*16 + strlen(more) + 1), *end = text;
    for (int b = 0; b < 256; b++)
        end += sprintf(end, "%c%c== %d\n", base64[b >> 2], base64[b << 4 & 63], b);
    memcpy(end, more, strlen(more) + 1);
    return text;
}

TEST(ranks_are_checked) {
    static const char *const cases[][2] = {
        { "YWI= 256\nYWJj 257\n", NULL }, { "YWI= 256\r\nYWJj 257", NULL },        // ab, abc
        { "YWI= 257\n", "line 257: expected rank 256" }, { "YWI 256\n", "expected base64" },
        { "YQ== 256\n", "duplicate of an earlier token" },
        { "YWJj 256\n", "line 257: the token is not a merge of two earlier tokens" },
    };
    static const char *const foreign[][2] = {
        { "IQ== 0\n", "no token for the byte 0x00" }, { "\n <html>", "web page (HTML)" },
        { "#version: 0.2\nh e\n", "name the vocab.json" }, { "{", "byte 1" },
        { "{\"a\": 0}", "needs merges.txt beside it; /nowhere/merges.txt" },
        { "\x1F\x8B\x08", "gunzip" }, { "garbage\n", "line 1: expected base64" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char *text = ranks_with(cases[i][0]);
        check_parsed(text, strlen(text), cases[i][1]);
    }
    for (size_t i = 0; i < COUNT(foreign); i++)
        check_parsed(strdup(foreign[i][0]), strlen(foreign[i][0]), foreign[i][1]);
}

// A directory, a file, and vocab.json with and without merges.txt.
TEST(files_by_name) {
    Path d = folder_make(NULL), path = in(d.text, "vocab.json");
    Tokenizer t, back;
    Error err;
    CHECK(!tokenizer_load(&t, d.text, &err) && strstr(err.text, "vocab.json"));
    char *vocab = json_with("{%.0s%s%.0s}", ", \"ab\": 256, \"<|endoftext|>\": 257", "", "");
    put_text(d.text, "vocab.json", vocab);
    CHECK(!tokenizer_load(&t, path.text, &err) && strstr(err.text, "merges.txt: cannot open"));
    put_text(d.text, "merges.txt", "#version: 0.2\na b\n\n");
    CHECK(!tokenizer_load(&t, path.text, &err) && strstr(err.text, "merge 2: expected two tokens"));
    put_text(d.text, "merges.txt", "#version: 0.2\na b\n");
    CHECK_MSG(tokenizer_load(&t, path.text, &err), "%s", err.text);
    CHECK(t.n_merges == 1 && t.eot == 257);
    tokenizer_free(&t);
    put_text(d.text, "merges.txt", "a b");
    CHECK(tokenizer_load(&t, d.text, &err) && t.n_merges == 1);
    FILE *f = fopen(in(d.text, "tokenizer.json").text, "wb");
    tokenizer_print(f, &t);
    fclose(f);
    CHECK(tokenizer_load(&back, d.text, &err) && same_tokenizer(&t, &back));
    tokenizer_free(&t);
    tokenizer_free(&back);
    CHECK(!tokenizer_load(&t, "/nowhere", &err) && strstr(err.text, "/nowhere: "));
    put_text(d.text, "tokenizer.json", "");
    CHECK(!tokenizer_load(&t, d.text, &err) && strstr(err.text, "empty"));
    free(vocab);
    folder_remove(&d);
}

int main(void) {
    *program_name() = "test_tokenizer";
    return run_tests();
}
