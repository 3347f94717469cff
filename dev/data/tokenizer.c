// Text to tokens and back, with a published vocabulary (GPT-2's, say) or one trained here
// (data.h).
#include "data.h"
#include <limits.h>

// ============================== tokens in the alphabet ==============================

// Converts characters of bpe.c's alphabet (valid UTF-8) to bytes; SIZE_MAX for any other character.
static size_t bytes_from_chars(char *out, const char *text, size_t n) {
    const unsigned char *s = (const unsigned char *)text;
    size_t count = 0;
    for (size_t i = 0, length; i < n; i += length) {
        length = utf8_length(s + i, n - i);
        int byte = length ? char_to_byte((int)utf8_code_point(s + i, length)) : -1;
        if (byte < 0) return SIZE_MAX;
        out[count++] = (char)byte;
    }
    return count;
}

// The inverse: out has room for 2n bytes.
static size_t chars_from_bytes(char *out, const char *text, size_t n) {
    char *end = out;
    for (size_t i = 0; i < n; i++)
        end = utf8_put(end, (unsigned)byte_to_char((unsigned char)text[i]));
    return (size_t)(end - out);
}

// A token as vocabulary files write it: in the alphabet, an added one as it is. `chars` has room.
static const char *token_chars(size_t *n, char *chars, const Tokenizer *t, int id) {
    const char *text = tokenizer_piece(t, id, n);
    if (t->kind[id] == TOKEN_ADDED) return text;
    *n = chars_from_bytes(chars, text, *n);
    return chars;
}

// A merge is written as its two tokens and a space between them. Returns its length.
static size_t merge_chars(char *chars, const Tokenizer *t, Merge merge) {
    size_t left, right;
    token_chars(&left, chars, t, merge.left);
    chars[left] = ' ';
    token_chars(&right, chars + left + 1, t, merge.right);
    return left + 1 + right;
}

static void token_print(FILE *f, const Tokenizer *t, int id, char *chars) {
    size_t n;
    const char *text = token_chars(&n, chars, t, id);
    json_write_string(f, text, n);
}

// ============================== writing tokenizer.json ==============================

static void tokenizer_print_added(FILE *f, const Tokenizer *t) {
    const char *comma = "";
    for (int id = 0; id < t->vocab_size; id++) {
        if (t->kind[id] != TOKEN_ADDED) continue;
        fprintf(f, "%s\n    {\"id\": %d, \"content\": ", comma, id);
        token_print(f, t, id, NULL);
        fprintf(f, ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
                "\"normalized\": false, \"special\": true}");
        comma = ",";
    }
}

void tokenizer_print(FILE *f, const Tokenizer *t) {
    char *chars = (char *)alloc_or_die(2*t->start[t->vocab_size] + 1, "a token");
    fprintf(f, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n"
            "  \"added_tokens\": [");
    tokenizer_print_added(f, t);
    fprintf(f, "\n  ],\n  \"normalizer\": null,\n"
            "  \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
            "\"trim_offsets\": true, \"use_regex\": true},\n"
            "  \"post_processor\": null,\n"
            "  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, "
            "\"trim_offsets\": true, \"use_regex\": true},\n"
            "  \"model\": {\n    \"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
            "\"continuing_subword_prefix\": \"\",\n    \"end_of_word_suffix\": \"\", "
            "\"fuse_unk\": false, \"byte_fallback\": false,\n    \"vocab\": {");
    for (int id = 0; id < t->vocab_size; id++) {
        fprintf(f, "%s\n      ", id ? "," : "");
        token_print(f, t, id, chars);
        fprintf(f, ": %d", id);
    }
    fprintf(f, "\n    },\n    \"merges\": [");
    for (int i = 0; i < t->n_merges; i++) {
        fprintf(f, "%s\n      ", i ? "," : "");
        json_write_string(f, chars, merge_chars(chars, t, t->merges[i]));
    }
    fprintf(f, "\n    ]\n  }\n}\n");
    free(chars);
}

// ============================== writing the pairs of a GGUF ==============================
// llama.cpp needs a token for each of the embedding's V rows. Added tokens become control tokens,
// which it never produces from a text either.

enum { GGUF_TOKEN_NORMAL = 1, GGUF_TOKEN_CONTROL = 3, GGUF_TOKEN_UNUSED = 5 };

void tokenizer_put_gguf(GgufHeader *h, const Tokenizer *t, int V) {
    const int n = t->vocab_size;
    char unused[32], *chars = (char *)alloc_or_die(2*t->start[n] + 1, "a token");
    gguf_put_text_pair(h, "tokenizer.ggml.model", "gpt2");
    gguf_put_text_pair(h, "tokenizer.ggml.pre", "gpt-2");
    gguf_put_array(h, "tokenizer.ggml.tokens", GGUF_TEXT, (uint64_t)V);
    for (int id = 0; id < n; id++) {
        size_t length;
        const char *text = token_chars(&length, chars, t, id);
        gguf_put_text(h, text, length);
    }
    for (int id = n; id < V; id++)
        gguf_put_text(h, unused, (size_t)snprintf(unused, sizeof unused, "[PAD%d]", id));
    gguf_put_array(h, "tokenizer.ggml.token_type", GGUF_I32, (uint64_t)V);
    for (int id = 0; id < V; id++)
        gguf_put_u32(h, id >= n ? GGUF_TOKEN_UNUSED
                      : t->kind[id] == TOKEN_ADDED ? GGUF_TOKEN_CONTROL : GGUF_TOKEN_NORMAL);
    gguf_put_array(h, "tokenizer.ggml.merges", GGUF_TEXT, (uint64_t)t->n_merges);
    for (int i = 0; i < t->n_merges; i++)
        gguf_put_text(h, chars, merge_chars(chars, t, t->merges[i]));
    gguf_put_u32_pair(h, "tokenizer.ggml.bos_token_id", (uint32_t)t->eot);
    gguf_put_u32_pair(h, "tokenizer.ggml.eos_token_id", (uint32_t)t->eot);
    gguf_put_key(h, "tokenizer.ggml.add_bos_token", GGUF_BOOL);
    fputc(0, h->t.f);
    free(chars);
}

// ============================== reading vocabularies ==============================
// Four file formats hold the same vocabulary. Each reader ends with tokenizer_check, and reports
// any error in one line.

const char **tokenizer_eos(void) {
    static const char *name = END_OF_TEXT;
    return &name;
}

// Checks a vocabulary after reading. Every byte must be a token, so that any text can be encoded.
static bool tokenizer_check(Tokenizer *t, Error *err) {
    size_t n = 0, length;
    char names[100] = "";
    for (int id = 0; id < t->vocab_size && n < 60; id++) {
        const char *text = tokenizer_piece(t, id, &length);
        if (t->kind[id] == TOKEN_ADDED)
            n += (size_t)snprintf(names + n, 40, " %.*s", length < 30 ? (int)length : 30, text);
    }
    if (t->eot < 0)
        return fail(err, "no %s among the tokens%s%s", *tokenizer_eos(),
                    n > 0 ? "; prepare's --eos NAME takes another:" : "", names);
    for (int b = 0; b < 256; b++)
        if (t->byte_id[b] < 0) return fail(err, "no token for the byte 0x%02X alone", b);
    return true;
}

// Marks tokens whose own bytes encode to other tokens (TOKEN_PART). Encoding looks up whole words
// among the rest.
static void tokenizer_mark_parts(Tokenizer *t) {
    size_t n;
    int *ids = (int *)alloc_or_die(t->start[t->vocab_size] * sizeof *ids, "the vocabulary");
    for (int id = 0; id < t->vocab_size; id++) {
        if (t->kind[id] == TOKEN_ADDED) continue;
        const char *text = tokenizer_piece(t, id, &n);
        bool whole = merge_word(t, ids, text, n) == 1 && ids[0] == id;
        t->kind[id] = (unsigned char)(whole ? TOKEN_WHOLE : TOKEN_PART);
    }
    free(ids);
}

// ---- NAME.tiktoken: lines of base64 and rank; merges are reconstructed from the ranks ----

static const char base64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static int base64_digit(int c) {
    const char *at = c ? strchr(base64, c) : NULL;
    return at ? (int)(at - base64) : -1;
}

// Returns the number of bytes, or 0 for invalid base64.
static size_t base64_read(char *out, const char *text, size_t n) {
    size_t count = 0, padding = 0;
    if (n == 0 || n % 4 != 0) return 0;
    while (padding < 2 && text[n - 1 - padding] == '=') padding++;
    for (size_t i = 0; i < n; i += 4) {
        uint32_t bits = 0;
        for (size_t k = i; k < i + 4; k++) {
            int digit = k >= n - padding ? 0 : base64_digit(text[k]);
            if (digit < 0) return 0;
            bits = bits << 6 | (uint32_t)digit;
        }
        for (int shift = 16; shift >= 0; shift -= 8) out[count++] = (char)(bits >> shift & 255);
    }
    return count - padding;
}

// Takes a line from *text, *n; returns its length without the line end.
static size_t line_take(const char **line, const char **text, size_t *n) {
    const char *end = (const char *)memchr(*text, '\n', *n);
    size_t length = end ? (size_t)(end - *text) : *n, taken = end ? length + 1 : length;
    *line = *text;
    *text += taken;
    *n -= taken;
    return length > 0 && (*line)[length-1] == '\r' ? length - 1 : length;
}

static bool tiktoken_read_ranks(Tokenizer *t, char *scratch, const char *text, size_t n,
                                Error *err) {
    for (int id = 0; n > 0; id++) {
        const char *line;
        size_t length = line_take(&line, &text, &n), gap = 0;
        while (gap < length && line[gap] != ' ') gap++;
        size_t bytes = base64_read(scratch, line, gap);
        if (bytes == 0 || gap == length || length - gap > 12)
            return fail(err, "line %d: expected base64, a space and a rank", id + 1);
        char rank[16], expected[16];
        snprintf(rank, sizeof rank, "%.*s", (int)(length - gap - 1), line + gap + 1);
        snprintf(expected, sizeof expected, "%d", id);
        if (strcmp(rank, expected) != 0)
            return fail(err, "line %d: expected rank %d; ranks count from 0 without gaps",
                        id + 1, id);
        if (!tokenizer_push(t, scratch, bytes, TOKEN_WHOLE))
            return fail(err, "line %d: duplicate of an earlier token", id + 1);
    }
    return true;
}

// Reconstructs each token's merge: encoding its bytes with all earlier merges gives two tokens.
static bool tiktoken_recover_merges(Tokenizer *t, int *ids, Error *err) {
    for (int id = 0; id < t->vocab_size; id++) {
        size_t n;
        const char *text = tokenizer_piece(t, id, &n);
        if (n == 1 || t->kind[id] == TOKEN_ADDED) continue;
        if (merge_word(t, ids, text, n) != 2)
            return fail(err, "line %d: the token is not a merge of two earlier tokens", id + 1);
        tokenizer_push_merge(t, ids[0], ids[1], id);
    }
    return true;
}

static bool tokenizer_parse_tiktoken(Tokenizer *t, const char *text, size_t n, Error *err) {
    size_t lines = 2;                                      // the last line, and end of text
    for (size_t i = 0; i < n; i++) lines += text[i] == '\n';
    tokenizer_init(t, lines, lines);
    char *scratch = (char *)alloc_or_die(n, "the file's tokens");
    int *ids = (int *)alloc_or_die(n * sizeof *ids, "the file's tokens");
    bool good = tiktoken_read_ranks(t, scratch, text, n, err);
    if (good) tokenizer_push_eot(t);
    good = good && tokenizer_check(t, err) && tiktoken_recover_merges(t, ids, err);
    free(scratch);
    free(ids);
    return good;
}

// ---- tokenizer.json, or vocab.json with merges.txt ----

// Collects the tokens of a JSON vocabulary by id.
typedef struct {
    const JsonNode **by_id;        // (capacity) the string of each token
    bool *added;                   // (capacity)
    size_t capacity, n;
    char *scratch;                 // room for any two strings of the file
} VocabReader;

static bool vocab_place(VocabReader *l, const JsonNode *text, const JsonNode *id_node,
                        bool added, Error *err) {
    int64_t id;
    if (text->type != JSON_STRING || !json_to_int(&id, id_node, 0, INT_MAX - 1))
        return fail(err, "byte %zu: expected a token and its id", text->at);
    if ((size_t)id >= l->capacity)
        return fail(err, "byte %zu: id %lld of %zu tokens; ids count from 0 without gaps",
                    id_node->at, (long long)id, l->capacity);
    const JsonNode *old = l->by_id[id];
    bool same = old && old->length == text->length && !memcmp(old->text, text->text, old->length);
    if (old && !same)
        return fail(err, "byte %zu: id %lld is taken by an earlier token", id_node->at,
                    (long long)id);
    if (!old) l->n++;
    l->by_id[id] = text;
    l->added[id] = added;
    return true;
}

// Collects all tokens in the order of their ids.
static bool vocab_gather(VocabReader *l, const JsonNode *vocab, const JsonNode *added, Error *err) {
    for (const JsonNode *k = json_first(vocab); k < json_end(vocab); k = json_next(k + 1))
        if (!vocab_place(l, k, k + 1, false, err)) return false;
    if (!added) return true;
    for (const JsonNode *v = json_first(added); v < json_end(added); v = json_next(v)) {
        const JsonNode *text = json_get(v, "content"), *id = json_get(v, "id");
        if (!text || !id) return fail(err, "byte %zu: expected an id and a content", v->at);
        if (!vocab_place(l, text, id, true, err)) return false;
    }
    return true;
}

// Adds a token as a file names it: in the alphabet, or an added one. The end of text is renamed; a
// token that had its new name takes the old one.
static bool token_push(Tokenizer *t, char *scratch, const char *text, size_t n, bool added,
                       Error *err) {
    bool end = text_is(text, n, *tokenizer_eos()), other = !end && text_is(text, n, END_OF_TEXT);
    const char *renamed = end ? END_OF_TEXT : other ? *tokenizer_eos() : NULL;
    if (end) t->eot = t->vocab_size;
    if (renamed) return tokenizer_push(t, renamed, strlen(renamed), TOKEN_ADDED);
    if (added) return tokenizer_push(t, text, n, TOKEN_ADDED);
    size_t bytes = bytes_from_chars(scratch, text, n);
    if (bytes == SIZE_MAX || bytes == 0)
        return fail(err, "token %d, \"%s\", is not in GPT-2's alphabet of bytes", t->vocab_size,
                    brief(text, n).text);
    return tokenizer_push(t, scratch, bytes, TOKEN_WHOLE)
        || fail(err, "token %d, \"%s\", appears twice", t->vocab_size, brief(text, n).text);
}

static bool vocab_push(const VocabReader *l, Tokenizer *t, Error *err) {
    for (size_t id = 0; id < l->n; id++) {
        const JsonNode *text = l->by_id[id];
        if (!text) return fail(err, "no token has id %zu, but higher ids exist", id);
        if (!token_push(t, l->scratch, text->text, text->length, l->added[id], err)) return false;
    }
    return true;
}

// Reads one merge: two tokens in the alphabet, whose concatenation must be a token too.
static bool vocab_read_merge(char *scratch, Tokenizer *t, const char *left, size_t n_left,
                             const char *right, size_t n_right, Error *err) {
    int number = t->n_merges + 1;
    size_t a = bytes_from_chars(scratch, left, n_left);
    size_t b = a == SIZE_MAX ? a : bytes_from_chars(scratch + a, right, n_right);
    if (b == SIZE_MAX) return fail(err, "merge %d: not in GPT-2's alphabet of bytes", number);
    int left_id = tokenizer_find(t, scratch, a), right_id = tokenizer_find(t, scratch + a, b);
    int result = tokenizer_find(t, scratch, a + b);
    if (left_id < 0 || right_id < 0 || result < 0)
        return fail(err, "merge %d: its parts or its result are not in the vocabulary", number);
    return tokenizer_push_merge(t, left_id, right_id, result)
        || fail(err, "merge %d: appears twice", number);
}

// "left right"
static bool vocab_read_merge_line(char *scratch, Tokenizer *t, const char *line, size_t n,
                                  Error *err) {
    const char *gap = (const char *)memchr(line, ' ', n);
    if (!gap) return fail(err, "merge %d: expected two tokens and a space", t->n_merges + 1);
    size_t left = (size_t)(gap - line);
    return vocab_read_merge(scratch, t, line, left, gap + 1, n - left - 1, err);
}

// ["left right", ...] in older files, [["left", "right"], ...] in newer ones.
static bool vocab_read_merge_list(char *scratch, Tokenizer *t, const JsonNode *merges, Error *err) {
    for (const JsonNode *v = json_first(merges); v < json_end(merges); v = json_next(v)) {
        bool line = v->type == JSON_STRING, pair = v->type == JSON_ARRAY && v->length == 2
            && v->span == 3 && v[1].type == JSON_STRING && v[2].type == JSON_STRING;
        if (!line && !pair) return fail(err, "byte %zu: expected a merge, a pair of tokens", v->at);
        if (!(line ? vocab_read_merge_line(scratch, t, v->text, v->length, err)
                   : vocab_read_merge(scratch, t, v[1].text, v[1].length, v[2].text, v[2].length,
                                      err))) return false;
    }
    return true;
}

static bool vocab_read_merge_text(char *scratch, Tokenizer *t, const char *text, size_t n,
                                  Error *err) {
    for (bool first = true; n > 0; first = false) {
        const char *line;
        size_t length = line_take(&line, &text, &n);
        if (first && length >= 8 && memcmp(line, "#version", 8) == 0) continue;
        if (!vocab_read_merge_line(scratch, t, line, length, err)) return false;
    }
    return true;
}

// merges: a list in the JSON, or NULL and the text of merges.txt
static bool vocab_read(Tokenizer *t, const JsonNode *vocab, const JsonNode *added, size_t file_size,
                       const JsonNode *merges, FileMap text, Error *err) {
    VocabReader l;
    size_t lines = merges ? merges->length : 1;
    for (size_t i = 0; i < text.n; i++) lines += text.bytes[i] == '\n';
    l.n = 0;
    l.capacity = vocab->length + (added ? added->length : 0);
    l.by_id = (const JsonNode **)alloc_or_die(l.capacity * sizeof *l.by_id, "the vocabulary");
    l.added = (bool *)alloc_or_die(l.capacity * sizeof *l.added, "the vocabulary");
    l.scratch = (char *)alloc_or_die(file_size + text.n, "the file's tokens");
    tokenizer_init(t, l.capacity, lines);
    bool good = vocab_gather(&l, vocab, added, err) && vocab_push(&l, t, err)
        && tokenizer_check(t, err)
        && (merges ? vocab_read_merge_list(l.scratch, t, merges, err)
                   : vocab_read_merge_text(l.scratch, t, (const char *)text.bytes, text.n, err));
    free(l.by_id);
    free(l.added);
    free(l.scratch);
    if (good) tokenizer_mark_parts(t);
    return good;
}

// True if a feature is off: the key is absent, null, false or "".
static bool json_unused(const JsonNode *object, const char *key) {
    const JsonNode *v = json_get(object, key);
    return !v || v->type == JSON_NULL || v->type == JSON_FALSE || json_is(v, "");
}

// Refuses vocabularies that encode differently from GPT-2: model, pre-tokenizer, normalizer.
static bool vocab_check_is_gpt2(const JsonNode *root, const JsonNode *model, Error *err) {
    const JsonNode *type = json_get(model, "type"), *words = json_get(root, "pre_tokenizer");
    const JsonNode *kind = words ? json_get(words, "type") : NULL;
    const JsonNode *regex = words ? json_get(words, "use_regex") : NULL;
    if (type && !json_is(type, "BPE"))
        return fail(err, "the model is \"%s\"; only \"BPE\" is supported", json_show(type).text);
    if (!kind || !json_is(kind, "ByteLevel") || !json_unused(words, "add_prefix_space")
        || (regex && regex->type != JSON_TRUE))
        return fail(err, "the pre_tokenizer is not GPT-2's; only \"ByteLevel\" with its regular "
                    "expression and without add_prefix_space is supported");
    if (!json_unused(root, "normalizer")) return fail(err, "\"normalizer\" is not supported");
    const char *const unused[3] = { "continuing_subword_prefix", "end_of_word_suffix",
                                    "ignore_merges" };
    for (int i = 0; i < 3; i++)
        if (!json_unused(model, unused[i])) return fail(err, "\"%s\" is not supported", unused[i]);
    return true;
}

static bool vocab_read_json(Tokenizer *t, const JsonNode *root, size_t n, Error *err) {
    const JsonNode *model = json_need(root, "model", JSON_OBJECT, err);
    if (!model || !vocab_check_is_gpt2(root, model, err)) return false;
    const JsonNode *vocab = json_need(model, "vocab", JSON_OBJECT, err);
    const JsonNode *merges = vocab ? json_need(model, "merges", JSON_ARRAY, err) : NULL;
    const JsonNode *added = json_get(root, "added_tokens");
    if (!merges) return false;
    if (added && added->type != JSON_ARRAY) return fail(err, "\"added_tokens\" must be a list");
    FileMap none = { NULL, 0 };
    return vocab_read(t, vocab, added, n, merges, none, err);
}

// ---- a GGUF ----

// The tokens, by id: added ones are those that llama.cpp does not call normal.
static bool gguf_read_tokens(char *scratch, Tokenizer *t, GgufValue tokens, size_t n,
                             const unsigned char *types, Error *err) {
    GgufText text;
    for (size_t id = 0; id < n && gguf_take_text(&text, &tokens.bytes); id++) {
        int32_t type;
        memcpy(&type, types + 4*id, sizeof type);
        if (!token_push(t, scratch, text.bytes, text.n, type != GGUF_TOKEN_NORMAL, err))
            return false;
    }
    return tokenizer_check(t, err);
}

static bool tokenizer_parse_gguf(Tokenizer *t, const unsigned char *bytes, size_t n, Error *err) {
    Gguf g;
    GgufValue tokens, types, merges;
    GgufText text;
    if (!gguf_parse(&g, bytes, n, err) || !gguf_need_text(&g, "tokenizer.ggml.model", "gpt2", err)
        || !gguf_need_text(&g, "tokenizer.ggml.pre", "gpt-2", err)) return false;
    if (!gguf_get(&tokens, &g, "tokenizer.ggml.tokens", GGUF_ARRAY_OF | GGUF_TEXT)
        || !gguf_get(&types, &g, "tokenizer.ggml.token_type", GGUF_ARRAY_OF | GGUF_I32)
        || !gguf_get(&merges, &g, "tokenizer.ggml.merges", GGUF_ARRAY_OF | GGUF_TEXT)
        || types.n != tokens.n || tokens.n > INT_MAX || merges.n > INT_MAX)
        return fail(err, "its tokenizer needs lists of tokens, token types and merges");
    size_t count = (size_t)tokens.n;
    for (int32_t type; count > 0; count--) {               // rows without a token
        memcpy(&type, types.bytes.at + 4*(count - 1), sizeof type);
        if (type != GGUF_TOKEN_UNUSED) break;
    }
    size_t room = tokens.bytes.left + merges.bytes.left;
    char *scratch = (char *)alloc_or_die(room, "the file's tokens");
    tokenizer_init(t, count, (size_t)merges.n);
    bool good = gguf_read_tokens(scratch, t, tokens, count, types.bytes.at, err);
    for (uint64_t i = 0; good && i < merges.n && gguf_take_text(&text, &merges.bytes); i++)
        good = vocab_read_merge_line(scratch, t, text.bytes, text.n, err);
    free(scratch);
    if (good) tokenizer_mark_parts(t);
    return good;
}

// ---- any of the four formats ----

// Reads vocab.json with the merges.txt beside it.
static bool vocab_read_pair(Tokenizer *t, const JsonNode *root, size_t n, const char *path,
                            Error *err) {
    const char *slash = strrchr(path, '/');
    FileMap merges;
    Path merges_path;
    Error why;
    snprintf(merges_path.text, sizeof merges_path.text, "%.*smerges.txt",
             slash ? (int)(slash + 1 - path) : 0, path);
    if (!file_map(&merges, merges_path.text, &why))
        return fail(err, "a vocab.json needs merges.txt beside it; %.400s", why.text);
    bool good = vocab_read(t, root, NULL, n, NULL, merges, err);
    file_unmap(&merges);
    return good;
}

static bool tokenizer_parse_json(Tokenizer *t, const char *text, size_t n, const char *path,
                                 Error *err) {
    Json j;
    if (!json_parse(&j, text, n, err)) return false;
    const JsonNode *model = json_get(j.root, "model");     // in a vocab.json "model" may be a token
    bool good = model && model->type == JSON_OBJECT ? vocab_read_json(t, j.root, n, err)
                                                    : vocab_read_pair(t, j.root, n, path, err);
    json_free(&j);
    return good;
}

static bool tokenizer_parse_kind(Tokenizer *t, const char *text, size_t n, const char *path,
                                 Error *err) {
    const char *kind = file_kind((const unsigned char *)text, n);
    size_t i = 0;
    while (i < n && (text[i] == ' ' || text[i] == '\n' || text[i] == '\r')) i++;
    if (gguf_is((const unsigned char *)text, n))
        return tokenizer_parse_gguf(t, (const unsigned char *)text, n, err);
    if (kind) return fail(err, "not a vocabulary but %s", kind);
    if (i < n && text[i] == '{') return tokenizer_parse_json(t, text, n, path, err);
    if (n >= 8 && memcmp(text, "#version", 8) == 0)
        return fail(err, "a file of merges; name the vocab.json beside it");
    return tokenizer_parse_tiktoken(t, text, n, err);
}

// Parses the n bytes of a vocabulary file in any of the four formats. `path` serves only to find
// merges.txt. On failure there is nothing to free.
static bool tokenizer_parse(Tokenizer *t, const char *text, size_t n, const char *path,
                            Error *err) {
    memset(t, 0, sizeof *t);
    bool good = tokenizer_parse_kind(t, text, n, path, err);
    if (!good) tokenizer_free(t);
    return good;
}

bool tokenizer_load(Tokenizer *t, const char *path, Error *err) {
    Path inside;
    FileMap file;
    Error why;
    memset(t, 0, sizeof *t);
    if (path_is_dir(path)) {
        inside = path_join(path, "tokenizer.json");
        if (access(inside.text, F_OK) != 0) inside = path_join(path, "vocab.json");
        path = inside.text;
    }
    if (!file_map(&file, path, err)) return false;
    bool good = tokenizer_parse(t, (const char *)file.bytes, file.n, path, &why);
    file_unmap(&file);
    return good || fail(err, "%s: %.400s", path, why.text);
}
