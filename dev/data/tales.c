// The embedded corpus: short children's tales from a probabilistic grammar.
//
// The grammar is a set of lists: lists of words ("mouse/mice"), of sentences, and the list `plot`
// of whole tales. Entries hold blanks to fill in:
//
//     {animal}        one word of the list `animal`; a tale never draws the same word twice
//     {animal:x}      the same, stored in the variable x; variables have names of one letter
//     {x}             the word stored in x: no choice
//     {x.1}           column 1 of that word: "cow/calf" has columns 0 and 1
//     {x.s} {x.C}     in the plural (column 1, else an s is added); with a capital
//     {x.a} {x.A}     with "a" or "an"; with "A" or "An"
//     {h.he}          he or she, by column 1 of "Mia/she"; also him, his, himself, He, His
//     {2 to 9:n}      a number, in words, stored in n; the upper bound may be a sum
//     {n+m-1}         a sum
//     {x#n-1}         x, in the plural unless the number is 1
//     [yes|no|maybe]  one of these texts, which may hold blanks
//     [w:yes|no]      the same; the index of the text is stored in w: 0 or 1
//     [w?wet|dry]     text 0 or 1 (below 0 the first, above 1 the last): no choice
//     < and >         print as double quotes
//
// Earlier entries are likelier, see weight(). The probability of a tale is the product of the
// probabilities of its choices. The grammar is unambiguous, because the text determines every
// choice: the alternatives begin differently. Precisely: the head of an alternative is its text up
// to the first blank. No head is a prefix of another one, except that a whole word may be a prefix
// of a longer word ("Leo" and "Leopold"): no letter follows a blank, so the end of the word shows.
// tests/test_tales.c checks this rule for every choice in the grammar.
//
// The engine expands a plot and calls `pick` for each choice. The writer's pick draws an alternative
// at random. The test includes this file and adds a pick that enumerates all tales.
#include "data.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

// ---------------------------------------------------------------------------------------------
// The engine

typedef struct { const char *at; size_t n; } Span;                  // a piece of a template

enum { MAX_LISTS = 64, MAX_WORDS = 128, MAX_HEAD = 160 };

typedef struct { int column; char dress; } Form;     // dress: s, C, a, A as above; 0: none
static const Form AS_IT_IS = {0, 0};
static const Form PLURAL = {1, 's'};

// Alternatives: words[0 ... n-1], or, if words is NULL, the parts of `parts` between bars. The bit
// set `used` (NULL: none) excludes alternatives.
typedef struct {
    const char *const *words;
    Span parts;
    int n;
    Form form;
    const uint64_t *used;
} Choice;

typedef struct { int list, value; } Recalled;          // list -1: a number; -2: unset

typedef struct Teller Teller;
struct Teller {
    const TaleList *lists;                           // the grammar; a tale is {plot}
    int (*pick)(Teller *t, const Choice *c, int total);   // returns an alternative; -1: none
    void *source;                                    // for pick: an Rng *
    char *out;                                       // (cap) the tale
    size_t cap, n;                                   // n: bytes written so far
    double nats;                                     // sum of -ln p over the choices so far
    bool ok;                                         // false: no room, or an error in the grammar
    Recalled memory[26];
    uint64_t used[MAX_LISTS][MAX_WORDS / 64];
};

static const char *const NUMBERS[] = {
    "no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen", "twenty",
};
enum { LAST_NUMBER = 20 };

static const char *const PRONOUNS[][2] = {
    {"he", "she"}, {"him", "her"}, {"his", "her"}, {"himself", "herself"}, {"He", "She"},
    {"His", "Her"},
};

static bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static Span span(const char *s) { Span whole = {s, strlen(s)}; return whole; }
static Span skip(Span s, size_t n) { Span rest = {s.at + n, s.n - n}; return rest; }
static bool same(Span s, const char *word) {
    return strncmp(s.at, word, s.n) == 0 && word[s.n] == '\0';
}

// The end of the part of s that begins at i: the next separator outside brackets, or s.n.
static size_t part_end(Span s, size_t i, char separator) {
    int depth = 0;
    for (; i < s.n; i++) {
        char c = s.at[i];
        if (c == separator && depth == 0) break;
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        if (depth < 0) break;                        // the bracket around s closes here
    }
    return i;
}

// Part k of s; the last part if k is too large, the first if k < 0.
static Span part(Span s, char separator, int k) {
    size_t begin = 0, end = part_end(s, 0, separator);
    for (; k > 0 && end < s.n; k--) {
        begin = end + 1;
        end = part_end(s, begin, separator);
    }
    Span p = {s.at + begin, end - begin};
    return p;
}

static int count_parts(Span s, char separator) {
    int n = 1;
    for (size_t i = part_end(s, 0, separator); i < s.n; i = part_end(s, i + 1, separator)) n++;
    return n;
}

// The text between the bracket s.at[i] and its closing bracket.
static Span inside(Span s, size_t i) {
    Span in = {s.at + i + 1, part_end(s, i + 1, '\0') - (i + 1)};
    return in;
}

// The head of an alternative: its text up to the first blank; `rest` is what follows. A head longer
// than the buffer is cut, and its remainder belongs to `rest`.
typedef struct { char text[MAX_HEAD]; size_t n; Span rest; } Head;

static void head_of(Head *h, Span word, Form form) {
    Span s = part(word, '/', form.column);
    bool add_s = form.dress == 's' && s.n == word.n;         // the word has no column 1
    h->n = 0;
    if (form.dress == 'a' || form.dress == 'A') {
        h->text[h->n++] = form.dress;
        if (memchr("aeiou", s.at[0], 5)) h->text[h->n++] = 'n';
        h->text[h->n++] = ' ';
    }
    size_t i = 0;
    for (; i < s.n && s.at[i] != '{' && s.at[i] != '[' && h->n < MAX_HEAD - 1; i++)
        h->text[h->n++] = s.at[i] == '<' || s.at[i] == '>' ? '"' : s.at[i];
    if (add_s) h->text[h->n++] = 's';
    if (form.dress == 'C') h->text[0] -= 'a' - 'A';
    h->rest = skip(s, i);
}

static void choice_head(Head *h, const Choice *c, int i) {
    head_of(h, c->words ? span(c->words[i]) : part(c->parts, '|', i), c->form);
}

// Zipf-like: 6 for the first entry, 5 for the next two, 4 for the next four, ..., never below 2.
static int weight(int i) {
    int w = 6;
    for (int tier = i + 1; tier > 1 && w > 2; tier >>= 1) w--;
    return w;
}

static bool is_used(const Choice *c, int i) {
    return c->used && (c->used[i / 64] >> (i % 64) & 1);
}

// Picks one of the unused alternatives and adds its -ln p to nats. -1: there is none.
static int choose(Teller *t, const Choice *c) {
    int total = 0;
    for (int i = 0; i < c->n; i++) total += is_used(c, i) ? 0 : weight(i);
    int i = total > 0 ? t->pick(t, c, total) : -1;
    if (i < 0) t->ok = false;
    else t->nats -= log((double)weight(i) / total);
    return i;
}

static void put(Teller *t, char c) {
    if (t->n == t->cap) t->ok = false;
    if (t->ok) t->out[t->n++] = c == '<' || c == '>' ? '"' : c;
}

static void expand(Teller *t, Span s);

static void put_head(Teller *t, const Head *h) {
    for (size_t i = 0; i < h->n; i++) put(t, h->text[i]);
    expand(t, h->rest);
}

// The length of the sum at the beginning of s: n, 3, n+m-1; 0 if there is none.
static size_t sum_length(Span s) {
    size_t i = 0;
    while (i < s.n && (is_lower(s.at[i]) || is_digit(s.at[i]))) {
        bool more = i + 1 < s.n && (s.at[i + 1] == '+' || s.at[i + 1] == '-');
        if (!more) return i + 1;
        i += 2;
    }
    return 0;
}

static int sum(Teller *t, Span s) {
    int value = 0;
    for (size_t i = 0; i < s.n; i += 2) {
        int term = s.at[i] - '0';
        if (is_lower(s.at[i])) {
            Recalled m = t->memory[s.at[i] - 'a'];
            if (m.list != -1) t->ok = false;         // an error in the grammar: not a number
            term = m.value;
        }
        value += i > 0 && s.at[i - 1] == '-' ? -term : term;
    }
    return value;
}

static Form form_of(Span s) {
    Form f = AS_IT_IS;
    if (s.n > 0 && is_digit(s.at[0])) { f.column = s.at[0] - '0'; s = skip(s, 1); }
    if (s.n > 0) f.dress = s.at[0];
    return f.dress == 's' ? PLURAL : f;
}

// The parts of a blank: {name:as.form} or {name:as#count}.
typedef struct { Span name, form, count; char as; } Blank;

static Blank blank_of(Span s) {
    Blank b = {s, {s.at, 0}, {s.at, 0}, 0};
    b.name.n = strcspn(s.at, ":.#}");
    s = skip(s, b.name.n);
    if (s.n > 1 && s.at[0] == ':') { b.as = s.at[1]; s = skip(s, 2); }
    if (s.n > 0 && s.at[0] == '.') b.form = skip(s, 1);
    if (s.n > 0 && s.at[0] == '#') b.count = skip(s, 1);
    return b;
}

static int find_list(const TaleList *lists, Span name) {
    for (int i = 0; lists[i].name; i++)
        if (lists[i].name[0] == name.at[0] && same(name, lists[i].name)) return i;
    return -1;
}

static int count_words(const TaleList *l) {
    int n = 0;
    while (l->words[n]) n++;
    return n;
}

static void remember(Teller *t, char as, int list, int value) {
    Recalled m = {list, value};
    if (as) t->memory[as - 'a'] = m;
}

static void number_blank(Teller *t, const Blank *b) {              // {2 to n-1:m}
    int low = b->name.at[0] - '0', high = sum(t, skip(b->name, 5));
    if (high > LAST_NUMBER) t->ok = false;
    if (!t->ok) return;
    Choice c = {NUMBERS + low, {0}, high - low + 1, AS_IT_IS, NULL};
    int i = choose(t, &c);
    if (i < 0) return;
    Head h;
    choice_head(&h, &c, i);
    put_head(t, &h);
    remember(t, b->as, -1, low + i);
}

static void list_blank(Teller *t, const Blank *b, Form form) {     // {animal:x.a}
    int list = find_list(t->lists, b->name);
    if (list < 0) { t->ok = false; return; }
    const TaleList *l = &t->lists[list];
    Choice c = {l->words, {0}, count_words(l), form, t->used[list]};
    int i = choose(t, &c);
    if (i < 0) return;
    t->used[list][i / 64] |= (uint64_t)1 << (i % 64);
    remember(t, b->as, list, i);
    Head h;
    choice_head(&h, &c, i);
    put_head(t, &h);
}

static void word_again(Teller *t, const Blank *b, Recalled m, Form form) {      // {x.a} {h.he}
    if (m.list < 0) { t->ok = false; return; }
    Span word = span(t->lists[m.list].words[m.value]);
    bool she = same(part(word, '/', 1), "she");
    Head h;
    head_of(&h, word, form);
    for (size_t i = 0; i < sizeof PRONOUNS / sizeof PRONOUNS[0]; i++)
        if (same(b->form, PRONOUNS[i][0])) head_of(&h, span(PRONOUNS[i][she]), AS_IT_IS);
    put_head(t, &h);
}

static void number_again(Teller *t, int value, Form form) {        // {n+m}
    if (value < 0 || value > LAST_NUMBER) t->ok = false;
    if (!t->ok) return;
    Head h;
    head_of(&h, span(NUMBERS[value]), form);
    put_head(t, &h);
}

static void fill_in(Teller *t, Span s) {                           // { ... }
    Blank b = blank_of(s);
    Form form = form_of(b.form);
    if (b.count.n > 0 && sum(t, b.count) != 1) form = PLURAL;
    bool again = is_lower(b.name.at[0]) && b.name.n == 1;
    if (again && t->memory[b.name.at[0] - 'a'].list != -1)
        word_again(t, &b, t->memory[b.name.at[0] - 'a'], form);
    else if (sum_length(b.name) == b.name.n)
        number_again(t, sum(t, b.name), form);
    else if (is_digit(b.name.at[0])) number_blank(t, &b);
    else list_blank(t, &b, form);
}

// The variable of [w:yes|no], or 0. Removes it from s.
static char fork_name(Span *s) {
    if (s->n < 2 || !is_lower(s->at[0]) || s->at[1] != ':') return 0;
    *s = skip(*s, 2);
    return s->at[-2];
}

static void take_fork(Teller *t, Span s) {                         // [ ... ]
    size_t n = sum_length(s);
    if (n > 0 && n < s.n && s.at[n] == '?') {
        Span condition = {s.at, n};
        expand(t, part(skip(s, n + 1), '|', sum(t, condition)));
        return;
    }
    char as = fork_name(&s);
    Choice c = {NULL, s, count_parts(s, '|'), AS_IT_IS, NULL};
    int i = choose(t, &c);
    if (i < 0) return;
    remember(t, as, -1, i);
    expand(t, part(s, '|', i));
}

static void expand(Teller *t, Span s) {
    for (size_t i = 0; i < s.n && t->ok; i++) {
        if (s.at[i] != '{' && s.at[i] != '[') { put(t, s.at[i]); continue; }
        Span in = inside(s, i);
        if (s.at[i] == '{') fill_in(t, in);
        else take_fork(t, in);
        i += in.n + 1;
    }
}

static bool tell(Teller *t) {
    t->n = 0;
    t->nats = 0;
    t->ok = true;
    memset(t->used, 0, sizeof t->used);
    for (char name = 'a'; name <= 'z'; name++) remember(t, name, -2, 0);
    expand(t, span("{plot}"));
    return t->ok;
}

// The writer's pick. It uses 48 random bits, so the error of a probability is at most 2^-48, and
// integers only, so every machine draws the same word.
static int pick_at_random(Teller *t, const Choice *c, int total) {
    int r = (int)((rng_u64((Rng *)t->source) >> 16) * (uint64_t)total >> 48);
    int i = 0;
    for (; is_used(c, i) || r >= weight(i); i++)
        if (!is_used(c, i)) r -= weight(i);
    return i;
}

size_t tale_write(char *out, size_t cap, double *nats, const TaleList *lists, Rng *rng) {
    Teller t;
    memset(&t, 0, sizeof t);
    t.lists = lists;
    t.pick = pick_at_random;
    t.source = rng;
    t.out = out;
    t.cap = cap;
    bool ok = tell(&t);
    *nats = t.nats;
    return ok ? t.n : 0;
}
