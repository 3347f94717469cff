// Texts: where their documents are, which bytes are odd, and what is for validation (data.h).
#include "data.h"
#include <ctype.h>
#include <inttypes.h>
#include <sys/stat.h>

// ---- opening ----

// Copies a pipe to a file without a name in --out, and maps that.
static void text_spool(Text *text, FILE *pipe, const Output *out) {
    char bytes[65536];
    Error err;
    Path path = path_join(out->dir, "input.prepare-tmp");
    unlink(path.text);
    int fd = open(path.text, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) die("--out: %s cannot be written: %s", path.text, strerror(errno));
    unlink(path.text);
    for (size_t n; (n = fread(bytes, 1, sizeof bytes, pipe)) > 0; text->n += n)
        if (!file_put(fd, bytes, n, path.text, &err)) output_failed(out);
    if (ferror(pipe)) die("%s: cannot be read: %s", text->path, strerror(errno));
    if (text->n == 0) die("%s: is empty; expected a text", text->path);
    text->bytes = (const char *)map_bytes(fd, text->n, text->path, &err);
    if (!text->bytes) die("%s", err.text);
    close(fd);
}

// Maps a text, or reads a pipe to its end. Refuses what is known to be none; a web page is one.
static void text_open(Text *text, const char *path, const Output *out) {
    bool dash = strcmp(path, "-") == 0;
    FileMap file;
    Error err;
    text->path = dash ? "standard input" : path;
    if (!dash && stat(path, &text->info) == 0 && S_ISDIR(text->info.st_mode))
        die("%s: is a directory; name its files: %s/*.txt", path, path);
    if (dash || S_ISFIFO(text->info.st_mode)) {
        if (isatty(STDOUT_FILENO)) printf("reading %s\n", text->path), fflush(stdout);
        FILE *pipe = dash ? stdin : fopen(path, "rb");
        if (!pipe) die("%s: cannot open it: %s", path, strerror(errno));
        text_spool(text, pipe, out);
        if (!dash) fclose(pipe);
    } else {
        if (!file_map(&file, path, &err)) die("%s", err.text);
        text->bytes = (const char *)file.bytes;
        text->n = file.n;
    }
    const char *kind = file_kind((const unsigned char *)text->bytes, text->n);
    if (kind && !strstr(kind, "web page")) die("%s: not a text but %s", text->path, kind);
}

// ---- a look through a text ----

// How many bytes are odd, in all texts, and where the first is.
typedef struct { uint64_t count; size_t first; const char *path; } Odd;

// A look through texts.
typedef struct {
    const char *separator;             // NULL: none
    uint64_t separators, inside;       // lines; inside: that hold it and more
    Odd nul, invalid, returns;         // invalid: not UTF-8; returns: CRs before LF
    double bytes;                      // of the texts so far
    Progress progress;
} Scan;

// Looks for NUL, bytes that are not UTF-8, and CR LF in a line, which is at `at` in its text.
static void scan_odd(Scan *s, const char *path, const char *line, size_t n, size_t at) {
    const unsigned char *c = (const unsigned char *)line;
    for (size_t i = 0, length; i < n; i += length ? length : 1) {
        length = c[i] < 0x80 ? 1 : utf8_length(c + i, n - i);
        Odd *odd = length == 0 ? &s->invalid : c[i] == 0 ? &s->nul
                 : i + 2 == n && c[i] == '\r' && c[i + 1] == '\n' ? &s->returns : NULL;
        if (!odd || odd->count++ > 0) continue;
        odd->first = at + i;
        odd->path = path;
    }
}

static bool line_holds(const char *line, size_t n, const char *word, size_t length) {
    const char *end = line + n, *c = line;
    for (; length > 0 && (c = (const char *)memchr(c, *word, (size_t)(end - c))) != NULL; c++)
        if ((size_t)(end - c) >= length && memcmp(c, word, length) == 0) return true;
    return false;
}

static void texts_add(Texts *c, size_t from, size_t to) {
    c->pieces = (Piece *)grow_or_die(c->pieces, &c->capacity, c->n + 1, sizeof *c->pieces,
                                     "a list of documents");
    Piece piece = { c->text, from, to - from, false, false };
    c->pieces[c->n++] = piece;
}

// Looks through c->text.
static void scan_text(Scan *s, Texts *c) {
    const char *path = c->text->path, *text = c->text->bytes;
    const size_t n = c->text->n;
    const char *word = s->separator;
    const size_t word_n = word ? strlen(word) : 0;
    size_t from = n >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    bool blank = true, separated = false;                  // the document, so far; the text
    for (size_t at = from, next; at < n; at = next) {
        const char *line = text + at, *end = (const char *)memchr(line, '\n', n - at);
        size_t length = end ? (size_t)(end - line) : n - at;
        next = at + length + (end != NULL);
        scan_odd(s, path, line, next - at, at);
        if (length == word_n + 1 && line[word_n] == '\r') length = word_n;
        if (word && length == word_n && memcmp(line, word, word_n) == 0) {
            if (!blank) texts_add(c, from, at);
            s->separators++;
            from = next;
            blank = separated = true;
        } else {
            for (size_t i = 0; blank && i < length; i++) blank = isspace((unsigned char)line[i]);
            s->inside += line_holds(line, length, word, word_n);
        }
        if (at >> 20 != next >> 20) progress_show(&s->progress, s->bytes + (double)next);
    }
    if (from < n && (!blank || !separated)) texts_add(c, from, n);
    s->bytes += (double)n;
}

// ---- documents, and the two splits ----

// Fewer documents than these are not held out whole: too little, or too much, would be in one.
static double whole_from(double fraction) { return fmax(20.0, ceil(1.0 / fraction)); }

// Warns of Windows's line ends; and of bytes that no text in UTF-8 has, of the first kind found.
static void odd_warn(const Scan *s) {
    const Odd *odd = s->nul.count ? &s->nul : &s->invalid;
    const char *utf16 = odd->first % 2 ? "UTF-16LE" : "UTF-16BE";
    const char *code = odd == &s->nul ? utf16 : "LATIN1";
    if (s->returns.count > 0)
        warn("%s: lines end in CR LF, as on Windows (in all %" PRIu64 "); each CR becomes a token; "
             "`tr -d '\\r'` removes them", s->returns.path, s->returns.count);
    if (odd->count == 0) return;
    warn("%s: byte %zu is %s, and %" PRIu64 " in all are; they become tokens as they are; if the "
         "text is in %s, `iconv -f %s -t UTF-8` converts it", odd->path, odd->first,
         odd == &s->nul ? "NUL" : "not UTF-8", odd->count, code, code);
}

// Looks through all texts for documents, and for odd bytes.
static void texts_scan(Texts *c, const char *separator) {
    Scan s;
    memset(&s, 0, sizeof s);
    s.separator = separator;
    s.progress = progress_begin("looking for documents", c->bytes);
    for (c->text = c->texts; c->text < c->texts + c->n_texts; c->text++) scan_text(&s, c);
    progress_end(&s.progress);
    odd_warn(&s);
    if (s.separators > 0)
        printf("ends   %12" PRIu64 " lines \"%s\" end documents\n", s.separators, separator);
    if (s.inside > 0)
        printf("note   \"%s\" also stands inside lines, where it is ordinary text: alone in a line "
               "it ends a document\n", separator);
    if (separator && strcmp(separator, END_OF_TEXT) != 0 && s.separators == 0)
        warn("--separator: no line is \"%s\" alone", separator);
}

bool is_held_out(double before, double fraction) {
    return floor((before + 1.0) * fraction) > floor(before * fraction);
}

// Holds out whole documents, spread evenly.
static void texts_hold_out(Texts *c, double fraction) {
    size_t held = 0;
    for (size_t i = 0; i < c->n; i++) held += c->pieces[i].val = is_held_out((double)i, fraction);
    printf("split  %12zu documents of %zu, spread evenly, are for validation\n", held, c->n);
}

// The number of bytes (0 to 3) before text[at] that belong to a UTF-8 character across it.
static size_t utf8_straddle(const char *text, size_t n, size_t at) {
    for (size_t back = 1; back <= 3 && back <= at; back++)
        if (utf8_length((const unsigned char *)text + at - back, n - at + back) > back) return back;
    return 0;
}

// The last `fraction` of all bytes is for validation. The cut is moved out of a character.
static void texts_cut(Texts *c, double fraction) {
    size_t total = 0, i = 0;
    for (size_t k = 0; k < c->n; k++) total += c->pieces[k].n;
    size_t cut = (size_t)((double)total * (1.0 - fraction));
    while (i < c->n && cut >= c->pieces[i].n) cut -= c->pieces[i++].n;
    if (i == c->n) return;
    Piece piece = c->pieces[i];
    cut -= utf8_straddle(piece.text->bytes, piece.text->n, piece.from + cut);
    texts_add(c, 0, 0);
    memmove(&c->pieces[i + 1], &c->pieces[i], (c->n - 1 - i) * sizeof piece);
    c->pieces[i].n = cut;
    c->pieces[i].unended = true;
    c->pieces[i + 1].from += cut;
    c->pieces[i + 1].n -= cut;
    while (++i < c->n) c->pieces[i].val = true;
    printf("split  the last %g%% are for validation: cut inside %s, without an end of text there; "
           "from %.0f documents on whole ones are held out\n", 100.0 * fraction, piece.text->path,
           whole_from(fraction));
}

// Decides what is for training. Refuses texts too short to be split.
static void texts_split(Texts *c, double fraction) {
    size_t bytes[2] = { 0, 0 };
    if ((double)c->n >= whole_from(fraction)) texts_hold_out(c, fraction);
    else texts_cut(c, fraction);
    for (size_t i = 0; i < c->n; i++) bytes[c->pieces[i].val] += c->pieces[i].n;
    if (bytes[0] > 0 && (bytes[1] > 0 || fraction == 0.0)) return;
    die("%s: %zu bytes are too few for a training and a validation part; use a longer text or "
        "another --val-fraction", c->texts[0].path, bytes[0] + bytes[1]);
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

void texts_open(Texts *c, char **paths, int n, const char *separator, double val_fraction,
                const Output *out) {
    memset(c, 0, sizeof *c);
    c->texts = (Text *)alloc_or_die((size_t)n * sizeof *c->texts, "the list of texts");
    c->n_texts = n;
    for (int i = 0; i < n; i++) {
        text_open(&c->texts[i], paths[i], out);
        c->bytes += (double)c->texts[i].n;
    }
    warn_twice(c->texts, n);
    texts_scan(c, separator);
    texts_split(c, val_fraction);
}

void texts_close(Texts *c) {
    for (int i = 0; i < c->n_texts; i++)
        unmap_bytes((const unsigned char *)c->texts[i].bytes, c->texts[i].n);
    free(c->texts);
    free(c->pieces);
}
