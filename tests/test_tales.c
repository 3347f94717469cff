// The tales and names: no text has two readings, and the probabilities that go with them are exact.
//
// Two independent proofs: the static check (every choice's alternatives begin differently), and two
// grammars enumerated in full (distinct texts, probabilities that add to 1). It includes
// tales.c, so as to give the engine another grammar and another pick.
#include "../dev/data/tales.c"
#include "test.h"

#include <ctype.h>
#include <strings.h>

enum { SAMPLE = 20000 };

static bool is_letter(char c) { return isalpha((unsigned char)c) != 0; }

static Teller teller(const TaleList *lists, int (*pick)(Teller *, const Choice *, int),
                     void *source, char *out) {
    Teller t;
    memset(&t, 0, sizeof t);
    t.lists = lists;
    t.pick = pick;
    t.source = source;
    t.out = out;
    t.cap = TALE_MAX;
    return t;
}

// ---------------------------------------------------------------------------------------------
// The third pick: all tales, one after the other. A path says which of the alternatives that are
// left was taken at each choice; the next tale is the next path, counted like an odometer.

enum { MAX_DEPTH = 128 };
typedef struct {
    int taken[MAX_DEPTH], left[MAX_DEPTH];   // at choice i: which one, out of how many
    int depth;                               // choices in this tale
} Walk;

static int pick_on_path(Teller *t, const Choice *c, int total) {
    Walk *p = t->source;
    int d = p->depth++, left = 0, chosen = -1;
    (void)total;
    for (int i = 0; d < MAX_DEPTH && i < c->n; i++)
        if (!is_used(c, i) && left++ == p->taken[d]) chosen = i;
    if (d < MAX_DEPTH) p->left[d] = left;
    return chosen;
}

static bool next_path(Walk *p) {
    int d = p->depth - 1;
    while (d >= 0 && p->taken[d] + 1 == p->left[d]) d--;
    if (d < 0) return false;
    p->taken[d]++;
    for (int i = d + 1; i < MAX_DEPTH; i++) p->taken[i] = 0;
    return true;
}

typedef struct { uint64_t hash; double p; } Told;
static int by_hash(const void *a, const void *b) {
    uint64_t x = ((const Told *)a)->hash, y = ((const Told *)b)->hash;
    return (x > y) - (x < y);
}

// Every tale, sorted by hash; checks that the texts differ, and that their probabilities add to 1.
static size_t enumerate(Told *all, size_t cap, const TaleList *lists) {
    char text[TALE_MAX];
    double sum_p = 0;
    size_t n = 0;
    Walk p = {0};
    do {
        Teller t = teller(lists, pick_on_path, &p, text);
        p.depth = 0;
        CHECK(tell(&t));
        if (n == cap) { CHECK_MSG(false, "more than %zu tales", cap); return n; }
        all[n].hash = hash_add(t.n, text, t.n);
        all[n++].p = exp(-t.nats);
        sum_p += all[n - 1].p;
    } while (next_path(&p));
    qsort(all, n, sizeof *all, by_hash);
    for (size_t i = 1; i < n; i++) CHECK(all[i].hash != all[i - 1].hash);
    CHECK_MSG(fabs(sum_p - 1) < 1e-12, "the probabilities add to 1 %+.3g", sum_p - 1);
    return n;
}

// A small grammar with all that the language has.
#define LIST(name, ...) { name, (const char *const[]){ __VA_ARGS__, NULL } }
static const TaleList MINI[] = {
    LIST("plot",
         "One {pet:x} had {2 to 4:n} {food:f.s}, ate {1 to n-1:m}, and {n-m} {f#n-m} [n-m-1?was|"
         "were] left.",
         "To {owner:h} came {pet:y.a} and [w:ran|slept|sat]. <{pet.A}?> <[w?Too fast|Too slow|Too "
         "lazy]!> {end}"),
    LIST("pet", "cat", "ox/oxen", "catfish/catfish"), LIST("food", "pea", "egg", "leaf/leaves"),
    LIST("owner", "Leo/he", "Leopoldine/she"),
    LIST("end", "Then {h.he} [left|wept].", "Away with {pet:z.a}, the {z}!"),
    { NULL, NULL },
};
enum { MINI_TALES = 3 * 3 * (1 + 2 + 3) + 3 * 2 * 3 * 2 * (2 + 1) };

// In full; their entropy, which lesson 19 quotes, in nats a name.
TEST(names) {
    enum { NAMES = 27 * 18 * 12 };
    static Told all[NAMES];
    double nats = 0;
    CHECK(enumerate(all, NAMES, name_lists) == NAMES);
    for (int i = 0; i < NAMES; i++) nats -= all[i].p * log(all[i].p);
    CHECK_MSG(fabs(nats - 8.5322) < 1e-4, "%.4f", nats);
}

// In full, and each tale as often as its probability says: chi squared of k counts has the mean
// k - 1 and the variance 2 (k - 1). Five sigma, and a fixed seed.
TEST(small_grammar) {
    enum { DRAWS = 100000 };
    Told all[MINI_TALES];
    CHECK(enumerate(all, MINI_TALES, MINI) == MINI_TALES);
    int count[MINI_TALES] = {0};
    Rng rng = rng_make(3, 0);
    for (int i = 0; i < DRAWS; i++) {
        char text[TALE_MAX];
        Teller t = teller(MINI, pick_at_random, &rng, text);
        Told key = {tell(&t) ? hash_add(t.n, text, t.n) : 0, 0};
        const Told *told = bsearch(&key, all, MINI_TALES, sizeof *all, by_hash);
        CHECK(told != NULL);
        if (told) count[told - all]++;
    }
    double chi = 0, k = MINI_TALES;
    for (int i = 0; i < MINI_TALES; i++)
        chi += pow(count[i] - DRAWS * all[i].p, 2) / (DRAWS * all[i].p);
    CHECK_MSG(fabs(chi - (k - 1)) < 5 * sqrt(2.0 * (k - 1)), "chi squared %.1f of %g", chi, k);
}

// ---------------------------------------------------------------------------------------------
// The static check

// Whether a text could stand for both. A whole word, nothing to come, ends before a non-letter.
static bool confusable(const Head *a, const Head *b) {
    const Head *s = a->n <= b->n ? a : b, *l = s == a ? b : a;
    if (memcmp(s->text, l->text, s->n) != 0) return false;
    return s->rest.n > 0 || s->n == l->n || !is_letter(l->text[s->n]);
}

static void check_alternatives(const Choice *c) {
    Head a, b;
    for (int i = 0; i < c->n; i++) {
        choice_head(&a, c, i);
        CHECK_MSG(a.n > 0, "alternative %d begins with a blank: %.60s", i, a.rest.at);
        for (int j = 0; j < i; j++) {
            choice_head(&b, c, j);
            CHECK_MSG(!confusable(&a, &b), "`%.*s` and `%.*s`", (int)a.n, a.text, (int)b.n, b.text);
        }
    }
}

static bool plain(const char *word) { return strcspn(word, "{[") == strlen(word); }

// Walks through a template and everything that it can come to; seen marks the lists. Returns a
// bound on the length of what it prints.
static size_t check_template(const TaleList *g, Span s, bool *seen);

static size_t longest(const TaleList *g, const Choice *c, bool *seen) {
    size_t most = 0;
    Head h;
    for (int i = 0; i < c->n; i++) {
        choice_head(&h, c, i);
        size_t n = h.n + check_template(g, h.rest, seen);
        if (n > most) most = n;
    }
    return most;
}

static size_t check_blank(const TaleList *g, Span in, bool *seen) {
    enum { LONGEST_WORD = 32 };
    Blank b = blank_of(in);
    if (b.name.n == 1 || sum_length(b.name) == b.name.n) return LONGEST_WORD;
    if (is_digit(b.name.at[0])) {
        Choice numbers = {NUMBERS, {0}, LAST_NUMBER + 1, {0, 0}, NULL};
        check_alternatives(&numbers);
        return LONGEST_WORD;
    }
    int list = find_list(g, b.name);
    CHECK_MSG(list >= 0, "no list %.*s", (int)b.name.n, b.name.at);
    if (list < 0) return 0;
    const TaleList *l = &g[list];
    int n = count_words(l);
    CHECK(n <= MAX_WORDS && (b.as == 0 || is_lower(b.as)));
    Choice c = {l->words, {0}, n, form_of(b.form), NULL};
    check_alternatives(&c);
    if (b.count.n > 0) { c.form = form_of(span("s")); check_alternatives(&c); }
    for (int i = 0; i < n && b.as; i++) {
        CHECK_MSG(plain(l->words[i]), "%s is remembered but has blanks", l->words[i]);
        CHECK_MSG(strlen(l->words[i]) < 120, "%s", l->words[i]);
    }
    seen[list] = true;
    return longest(g, &c, seen);
}

static size_t check_fork(const TaleList *g, Span in, bool *seen) {
    size_t n = sum_length(in);
    if (n > 0 && n < in.n && in.at[n] == '?') {      // no choice: the texts may be anything
        Choice c = {NULL, skip(in, n + 1), count_parts(skip(in, n + 1), '|'), {0, 0}, NULL};
        return longest(g, &c, seen);
    }
    fork_name(&in);
    Choice c = {NULL, in, count_parts(in, '|'), {0, 0}, NULL};
    check_alternatives(&c);
    return longest(g, &c, seen);
}

static size_t check_template(const TaleList *g, Span s, bool *seen) {
    size_t length = 0;
    for (size_t i = 0; i < s.n; i++) {
        if (s.at[i] != '{' && s.at[i] != '[') { length++; continue; }
        Span in = inside(s, i);
        length += s.at[i] == '{' ? check_blank(g, in, seen) : check_fork(g, in, seen);
        i += in.n + 1;
        CHECK_MSG(i < s.n, "a bracket is not closed: %.60s", s.at);
        bool apart = i + 1 >= s.n || !strchr("{[", s.at[i + 1]);
        if (i + 1 < s.n) apart = apart && !is_letter(s.at[i + 1]);
        CHECK_MSG(apart, "a letter or a blank follows a blank: %.*s", (int)in.n, in.at);
    }
    return length;
}

TEST(alternatives_begin_differently) {
    bool seen[MAX_LISTS] = {false};
    size_t length = check_template(tale_lists, span("{plot}"), seen);
    printf("    the longest tale has at most %zu bytes\n", length);
    CHECK(length <= TALE_MAX);
    for (int i = 0; tale_lists[i].name; i++)
        CHECK_MSG(i < MAX_LISTS && seen[i], "%s is never used", tale_lists[i].name);
    check_template(MINI, span("{plot}"), seen);
}

// ---------------------------------------------------------------------------------------------
// What is written

static bool is_vowel(char c) { return c && strchr("aeiou", c) != NULL; }

// "an owl" but "a fox"; sentences begin with a capital; nothing of the notation is left over.
TEST(spelling) {
    Rng rng = rng_make(8, 0);
    for (int i = 0; i < SAMPLE; i++) {
        char text[TALE_MAX] = "";
        double nats;
        size_t n = tale_write(text, TALE_MAX - 1, &nats, tale_lists, &rng);
        text[n] = '\0';
        bool good = strcspn(text, "{}[]|<>/#0123456789_~") == n && !strstr(text, "  ");
        for (size_t k = 0; k < n; k++) {
            good &= text[k] == '\n' || isprint((unsigned char)text[k]);
            bool begins = k == 0 || !is_letter(text[k - 1]);
            if (begins && strncasecmp(text + k, "a ", 2) == 0) good &= !is_vowel(text[k + 2]);
            if (begins && strncasecmp(text + k, "an ", 3) == 0) good &= is_vowel(text[k + 3]);
            if (k >= 2 && text[k - 2] == '.' && text[k - 1] == ' ') good &= !islower(text[k]);
        }
        CHECK_MSG(good, "%s", text);
    }
}

// A change of the grammar changes this number, and the floor of every corpus written before.
TEST(same_seed_same_tales) {
    uint64_t hash = 0;
    Rng rng = rng_make(7, 0);
    for (int i = 0; i < 1000; i++) {
        char text[TALE_MAX];
        double nats;
        size_t n = tale_write(text, TALE_MAX, &nats, tale_lists, &rng);
        hash = hash * 31 + hash_add(n, text, n);
    }
    CHECK_MSG(hash == 0xC7CAA12CF0E8932A, "0x%016llX", (unsigned long long)hash);
}

int main(void) { return run_tests(); }
