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
// One engine writes, parses and enumerates tales: it expands a plot and calls `pick` for each
// choice. The writer's pick draws an alternative at random; the parser's pick finds the one that
// matches the text. The test includes this file and adds a pick that enumerates.
#include "data.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

// ---------------------------------------------------------------------------------------------
// The engine

typedef struct { const char *at; size_t n; } Span;                  // a piece of a template
typedef struct { const char *name; const char *const *words; int n; } List;
typedef struct { const List *lists; int n; } Grammar;               // a tale is {plot}

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
    const Grammar *grammar;
    int (*pick)(Teller *t, const Choice *c, int total);   // returns an alternative; -1: none
    void *source;                                    // for pick, when writing: an Rng *
    const char *text;                                // when parsing: the text; writing: NULL
    char *out;                                       // when writing: cap bytes
    size_t cap;                                      // when parsing: the length of text
    size_t n;                                        // bytes written or parsed so far
    double nats;                                     // sum of -ln p over the choices so far
    bool ok;                                         // false: no match, or no room; stop
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
static bool is_letter(char c) { return is_lower(c) || (c >= 'A' && c <= 'Z'); }

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

// Writes the byte, or matches it with the text.
static void put(Teller *t, char c) {
    if (c == '<' || c == '>') c = '"';
    if (!t->ok || t->n == t->cap || (t->text && t->text[t->n] != c)) { t->ok = false; return; }
    if (!t->text) t->out[t->n] = c;
    t->n++;
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

static int find_list(const Grammar *g, Span name) {
    for (int i = 0; i < g->n; i++)
        if (g->lists[i].name[0] == name.at[0] && same(name, g->lists[i].name)) return i;
    return -1;
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
    int list = find_list(t->grammar, b->name);
    if (list < 0) { t->ok = false; return; }
    const List *l = &t->grammar->lists[list];
    Choice c = {l->words, {0}, l->n, form, t->used[list]};
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
    Span word = span(t->grammar->lists[m.list].words[m.value]);
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

// Whether the alternative matches the text at the cursor.
static bool stands_here(const Teller *t, const Head *h) {
    size_t left = t->cap - t->n;
    if (h->n > left || memcmp(t->text + t->n, h->text, h->n) != 0) return false;
    return h->rest.n > 0 || h->n == left || !is_letter(t->text[t->n + h->n]);
}

// The parser's pick: the alternative that matches the text. -1 if none matches, or two do.
static int pick_from_text(Teller *t, const Choice *c, int total) {
    (void)total;
    int found = -1;
    Head h;
    for (int i = 0; i < c->n; i++) {
        if (is_used(c, i)) continue;
        choice_head(&h, c, i);
        if (!stands_here(t, &h)) continue;
        if (found >= 0) return -1;
        found = i;
    }
    return found;
}

// ---------------------------------------------------------------------------------------------
// Words; earlier is likelier. "a" or "an" follows the spelling, so no word like "hour" is allowed.

static const char *const NAME[] = {   // and the pronoun
    "Mia/she", "Tom/he", "Anna/she", "Ben/he", "Lily/she", "Max/he", "Ella/she", "Leo/he",
    "Rosa/she", "Finn/he", "Nora/she", "Jack/he", "Ruby/she", "Oscar/he", "Clara/she", "Hugo/he",
    "Ivy/she", "Felix/he", "Zoe/she", "Noah/he", "Emma/she", "Otto/he", "Alice/she", "Theo/he",
    "Lucy/she", "Henry/he", "Molly/she", "Oliver/he", "Grace/she", "Peter/he", "Daisy/she",
    "Simon/he", "Hazel/she", "Jasper/he", "Penny/she", "Toby/he", "Flora/she", "Casper/he",
    "Martha/she", "Albert/he", "Tilly/she", "Edgar/he", "Sophie/she", "Milo/he", "Wanda/she",
    "Barnaby/he", "Greta/she", "Gus/he", "Poppy/she", "Ned/he", "Matilda/she", "Rufus/he",
    "Juniper/she", "Arthur/he", "Bella/she", "Walter/he", "Nell/she", "Cosmo/he", "Olive/she",
    "Linus/he", "Pearl/she", "Bruno/he", "Opal/she", "Ezra/he", "Winnie/she", "Quentin/he",
    "Dora/she", "Ralph/he", "Edith/she", "Victor/he", "Agatha/she", "Leopold/he", "Beatrix/she",
    "Ulrich/he", "Sally/she", "George/he", "Maggie/she", "Rupert/he", "Lottie/she", "Harold/he",
    "Betsy/she", "Igor/he", "Priya/she", "Omar/he", "Yuki/she", "Kofi/he", "Ines/she", "Pablo/he",
    "Freya/she", "Lars/he", "Amara/she", "Dmitri/he", "Leila/she", "Bjorn/he", "Saskia/she",
    "Tariq/he", "Vera/she", "Cedric/he", "Thea/she", "Humphrey/he", "Zelda/she", "Konrad/he",
    "Mabel/she", "Jonas/he", "Esme/she", "Ambrose/he", "Gwen/she", "Percy/he", "Ursula/she",
    "Basil/he", "Heidi/she", "Magnus/he",
};
static const char *const KIN[] = {
    "grandmother/she", "father/he", "mother/she", "grandfather/he", "aunt/she", "uncle/he",
    "big sister/she", "big brother/he", "teacher/she", "godmother/she", "cousin/he", "nanny/she",
    "great-aunt/she", "great-uncle/he", "little sister/she", "little brother/he",
};
static const char *const RULER[] = {
    "king/he", "queen/she", "prince/he", "princess/she", "wizard/he", "duchess/she", "emperor/he",
    "witch/she", "duke/he", "countess/she", "sultan/he", "fairy/she", "baron/he", "empress/she",
};
static const char *const ANIMAL[] = {
    "mouse/mice", "fox/foxes", "rabbit", "bear", "owl", "hedgehog", "cat", "duck", "frog",
    "squirrel", "goat", "dog", "hen", "badger", "mole", "pig", "otter", "donkey", "sparrow",
    "goose/geese", "turtle", "wolf/wolves", "robin", "snail", "beaver", "lamb", "pony/ponies",
    "toad", "crow", "hare", "kitten", "puppy/puppies", "magpie", "hamster", "swan", "deer/deer",
    "raccoon", "weasel", "lizard", "parrot", "penguin", "camel", "ox/oxen", "elephant", "monkey",
    "lion", "tiger", "giraffe", "kangaroo", "walrus/walruses", "crocodile", "ostrich/ostriches",
    "dragon", "seal", "peacock", "pelican", "porcupine", "alpaca", "iguana", "zebra", "gecko",
    "moose/moose", "heron", "stoat", "lynx/lynxes", "panda", "koala", "ferret", "flamingo", "hippo",
    "llama", "newt", "rhino", "sloth", "tortoise", "vole", "yak", "chipmunk", "guinea pig",
    "baboon", "cheetah", "gorilla", "jackal", "leopard", "meerkat", "octopus/octopuses", "puffin",
    "salamander", "wombat", "bison/bison", "tapir", "mongoose/mongooses", "cricket", "beetle",
    "ladybird", "spider", "lobster", "jellyfish/jellyfish",
};
static const char *const TRAIT[] = {
    "little", "small", "clever", "brave", "shy", "kind", "curious", "young", "gentle", "lazy",
    "cheerful", "quiet", "sleepy", "busy", "merry", "careful", "plump", "tiny", "bold", "funny",
    "proud", "timid", "polite", "silly", "wise", "tidy", "noisy", "patient", "nimble", "dreamy",
    "stubborn", "thoughtful", "untidy", "witty", "graceful", "fearless", "absent-minded",
    "impatient", "bashful", "eager", "good-natured", "odd", "elegant", "mischievous", "hungry",
    "sleek", "cosy", "dizzy", "fluffy", "freckled", "grand", "humble", "jumpy", "keen", "lanky",
    "lucky", "modest", "nosy", "playful", "plucky", "quick", "restless", "round-faced", "rosy",
    "scruffy", "snug", "sturdy", "tall", "tender", "thrifty", "tough", "watchful", "wild", "woolly",
    "barefoot", "clumsy", "crafty", "dainty", "drowsy", "forgetful", "jaunty", "pale",
};
static const char *const GLUM[] = {
    "sad", "lonely", "cross", "worried", "gloomy", "tired", "grumpy", "unhappy", "bored",
    "miserable", "angry", "downcast", "homesick", "jealous", "glum", "disappointed", "sulky",
    "heartbroken",
};
static const char *const GLAD[] = {
    "happy", "glad", "proud", "merry", "cheerful", "pleased", "thankful", "content", "delighted",
    "joyful", "as happy as could be", "jolly", "overjoyed", "amazed", "warm all over",
    "in the best of moods", "ready to dance", "full of songs",
};
static const char *const LOOK[] = {
    "old", "new", "little", "shiny", "small", "round", "pretty", "golden", "wooden", "silver",
    "broken", "heavy", "painted", "dusty", "crooked", "smooth", "strange", "big", "tiny", "rusty",
    "striped", "polished", "carved", "spotted", "glittering", "forgotten", "enormous", "lopsided",
    "speckled", "splendid", "plain", "curious", "enchanted", "ancient", "ordinary", "chipped",
    "precious", "worn-out", "sparkling", "tarnished", "unusual", "battered", "bent", "bright",
    "clean", "dented", "faded", "fragile", "frosty", "furry", "glossy", "hollow", "huge", "itchy",
    "jolly", "knobbly", "leaky", "magic", "mossy", "muddy", "narrow", "oily", "patched", "quaint",
    "ragged", "rare", "scratched", "silky", "slim", "squeaky", "sticky", "sturdy", "tattered",
    "thin", "twisted", "weird", "velvet", "wobbly", "woven", "zigzag",
};
static const char *const COLOUR[] = {
    "red", "blue", "green", "yellow", "white", "black", "brown", "purple", "orange", "pink", "grey",
    "scarlet", "violet", "crimson", "turquoise", "emerald", "amber", "indigo", "lilac", "copper",
    "cream", "checked", "tartan", "ruby-red", "sky-blue", "olive-green", "bronze", "beige", "coral",
    "maroon", "mauve", "navy", "ochre", "plum-blue", "rust-red", "sandy", "snow-white", "teal",
    "honey-brown", "charcoal", "moss-green",
};
static const char *const TOY[] = {
    "ball", "kite", "doll", "drum", "boat", "top", "train", "puppet", "teddy bear", "hoop",
    "balloon", "whistle", "rocking horse", "wagon", "toy soldier", "puzzle", "picture book",
    "music box", "paper plane", "tin robot", "rattle", "snow globe", "paint box", "skipping rope",
    "yo-yo", "dollhouse", "trumpet", "scooter", "jigsaw", "wind-up duck", "hobby horse",
    "spinning top", "accordion", "xylophone", "chess set", "marble run", "beach ball",
    "bow and arrow", "building block", "bugle", "castanet", "cuckoo whistle", "dragon mask",
    "fire truck", "glove puppet", "go-cart", "kazoo", "kaleidoscope", "magnet", "model plane",
    "rag doll", "ringing bell", "rubber duck", "see-saw", "stuffed bear", "stilt", "swing",
    "toy piano", "tea set", "tricycle", "water wheel", "windmill", "wooden horse", "zoo set",
};
static const char *const TREASURE[] = {
    "key", "coin", "ring", "feather", "button", "shell", "bell", "map", "pearl", "letter",
    "lantern", "bottle", "pebble", "locket", "mirror", "spoon", "crown", "medal", "thimble",
    "candle", "compass", "comb", "clock", "brooch", "stamp", "ribbon", "teacup", "buckle",
    "crystal", "horseshoe", "telescope", "magnifying glass", "necklace", "arrowhead", "bookmark",
    "acorn", "umbrella", "inkwell", "egg cup", "fossil", "teapot", "walking stick", "pocket watch",
    "fan", "vase", "anchor", "basket", "bracelet", "camera", "candlestick", "cup", "diary", "dish",
    "earring", "fishing rod", "flask", "flag", "fork", "globe", "goblet", "hammer", "jewel", "jug",
    "kettle", "ladder", "lamp", "marble", "mask", "needle", "notebook", "paintbrush", "pencil",
    "picture", "pillow", "pipe", "quill", "rope", "saddle", "sandglass", "spyglass", "sword",
    "tambourine", "thermometer", "violin", "wand", "watering can", "wheel", "wig",
};
static const char *const FRUIT[] = {   // countable food
    "apple", "pear", "plum", "cherry/cherries", "peach/peaches", "egg", "carrot", "nut", "bun",
    "lemon", "orange", "fig", "cookie", "berry/berries", "turnip", "potato/potatoes", "onion",
    "melon", "strawberry/strawberries", "pancake", "apricot", "muffin", "chestnut",
    "tomato/tomatoes", "radish/radishes", "dumpling", "cabbage", "pumpkin", "banana", "cupcake",
    "mushroom", "biscuit", "walnut", "date", "sausage", "artichoke", "olive", "pretzel", "almond",
    "waffle", "cucumber", "quince", "pineapple", "coconut", "leek", "grape", "bean", "beet",
    "brownie", "bread roll", "cracker", "croissant", "crumpet", "doughnut", "eclair", "fishcake",
    "gooseberry/gooseberries", "hazelnut", "jelly bean", "kiwi", "lime", "lollipop", "lychee",
    "mango/mangoes", "meatball", "nectarine", "noodle", "omelette", "oyster", "papaya", "parsnip",
    "pea", "peanut", "pepper", "pickle", "pie", "pistachio", "raisin", "raspberry/raspberries",
    "sandwich/sandwiches", "scone", "shrimp/shrimps", "sprout", "tart", "toffee", "truffle", "yam",
};
static const char *const TRINKET[] = {   // small things, to collect and count
    "marble", "button", "shell", "acorn", "stamp", "pebble", "bead", "feather", "penny/pennies",
    "ribbon", "card", "sticker", "leaf/leaves", "pin", "star", "pine cone", "coin", "badge", "key",
    "bottle top", "postcard", "paper boat", "bean", "ticket", "cork", "fossil", "seed", "dice/dice",
};
static const char *const CLOTHES[] = {
    "hat", "scarf", "coat", "mitten", "boot", "cap", "shoe", "sock", "cloak", "jacket", "apron",
    "sweater", "bonnet", "slipper", "glove", "belt", "raincoat", "shawl", "nightcap", "waistcoat",
    "dressing gown", "bow tie", "cape", "straw hat", "feather boa", "cardigan", "dress", "sandal",
    "headband", "necktie", "overcoat", "petticoat", "beret", "blouse", "bathrobe", "collar", "clog",
    "earmuff", "fur hat", "gown", "hairband", "kilt", "kimono", "kerchief", "mantle", "muff",
    "night shirt", "poncho", "robe", "sash", "shirt", "skirt", "smock", "snow boot", "stocking",
    "suit", "sun hat", "top hat", "tunic", "turban", "veil", "vest", "wig", "wool cap",
};
static const char *const BODY[] = {
    "head", "nose", "back", "foot", "left ear", "tail", "right ear", "neck", "left paw", "tummy",
    "shoulder", "right paw", "knee", "elbow", "chin", "left toe", "forehead",
};
static const char *const DISH[] = {   // uncountable food
    "soup", "bread", "cake", "honey", "porridge", "cheese", "jam", "pudding", "apple pie", "stew",
    "toast", "butter", "ice cream", "gingerbread", "custard", "rice", "spaghetti", "fish", "salad",
    "popcorn", "chocolate", "marmalade", "oatmeal", "hot milk", "tea", "cocoa", "lemonade",
    "dumpling soup", "cinnamon bread", "raspberry tart", "nettle broth", "plum cake",
    "rhubarb crumble", "ginger beer", "blueberry pie", "cream of turnip", "barley soup",
    "beetroot salad", "bean stew", "cherry jam", "clotted cream", "cornbread", "egg salad",
    "fig jelly", "fried rice", "fudge", "garlic bread", "gravy", "hot chocolate", "jelly",
    "lentils", "macaroni", "maple syrup", "milk", "mint tea", "mustard", "noodles", "nougat",
    "oat bread", "peach cobbler", "peanut butter", "pea soup", "plum sauce", "pumpkin pie",
    "ravioli", "rye bread", "sago", "sauerkraut", "sherbet", "sorbet", "toffee", "trifle",
    "vanilla cream", "yogurt",
};
static const char *const CONTAINER[] = {
    "box", "basket", "sack", "jar", "parcel", "bucket", "trunk", "chest", "drawer", "suitcase",
    "barrel", "pot", "crate", "bag", "hatbox", "cupboard", "wheelbarrow", "purse", "envelope",
    "urn",
};
static const char *const PLACE[] = {
    "forest", "river", "garden", "hill", "meadow", "lake", "market", "mill", "barn", "bridge",
    "valley", "village", "orchard", "sea", "castle", "field", "cave", "pond", "tower", "harbour",
    "island", "school", "library", "waterfall", "desert", "swamp", "lighthouse", "windmill",
    "bakery", "station", "crossroads", "churchyard", "jungle", "vineyard", "theatre", "greenhouse",
    "ice rink", "mountain", "inn", "oasis", "zoo", "abbey", "bakehouse", "beach", "boathouse",
    "brook", "canal", "chapel", "cliff", "courtyard", "cottage", "dairy", "farm", "fountain",
    "gate", "glacier", "gully", "hayfield", "heath", "lagoon", "museum", "palace", "park", "pier",
    "quarry", "ruin", "smithy", "spring", "square", "stable", "tavern", "temple", "vale", "volcano",
    "well", "wharf", "attic",
};
static const char *const SPOT[] = {   // hiding places
    "under the bed", "behind the stove", "in the attic", "on the shelf", "under the stairs",
    "in the cellar", "behind the curtain", "in the teapot", "under a cushion", "in the flour bin",
    "on the roof", "behind the clock", "in the hayloft", "under the table", "inside a boot",
    "at the back of the cupboard", "in a hollow tree", "under a flowerpot", "in the coal bucket",
    "behind the piano", "in the bathtub", "between two books", "beneath the rug", "up the chimney",
    "in the birdhouse", "among the pillows", "behind the woodpile", "in the laundry basket",
    "under an old newspaper", "inside the drum", "beside the well", "in the sugar bowl",
    "on top of the wardrobe", "below the window", "in the dog's kennel", "by the garden gate",
};
static const char *const SAID[] = {
    "said", "cried", "called", "whispered", "laughed", "shouted", "sighed", "sang", "giggled",
    "mumbled", "exclaimed", "grumbled", "chuckled", "murmured", "squeaked", "declared", "stammered",
    "announced", "yelled", "gasped", "muttered", "hummed", "blurted out", "barked", "begged",
    "boasted", "boomed", "breathed", "bubbled", "chattered", "cheered", "chirped", "croaked",
    "crowed", "drawled", "fretted", "groaned", "growled", "grunted", "howled", "lisped", "moaned",
    "panted", "piped up", "puffed", "purred", "remarked", "roared", "sniffed", "snorted", "sobbed",
    "spluttered", "squealed", "wailed", "wheezed", "whimpered", "yawned",
};
static const char *const MOVED[] = {
    "ran", "walked", "hopped", "skipped", "crept", "hurried", "marched", "tiptoed", "rushed",
    "danced", "raced", "wandered", "trotted", "dashed", "strolled", "galloped", "waddled",
    "bounced", "scampered", "stumbled", "scurried", "shuffled", "tumbled", "limped", "sneaked",
    "rode a bicycle", "skated", "somersaulted", "jogged", "hobbled", "paraded", "zigzagged",
    "ambled", "bolted", "bounded", "bustled", "charged", "clattered", "climbed", "crawled",
    "cycled", "drifted", "edged", "flew", "glided", "hastened", "hiked", "leapt", "loped",
    "lumbered", "meandered", "pattered", "pranced", "plodded", "prowled", "roamed", "rolled",
    "romped", "sauntered", "scrambled", "shot", "slid", "slipped", "slunk", "sped", "staggered",
    "stamped", "strode", "strutted", "swaggered", "swept", "swung", "toddled", "tramped", "trudged",
    "whirled", "whizzed",
};
static const char *const SOFTLY[] = {
    "softly", "happily", "slowly", "quietly", "loudly", "gently", "sadly", "proudly", "kindly",
    "bravely", "politely", "carefully", "merrily", "sleepily", "shyly", "gladly", "quickly",
    "dreamily", "grandly", "cheerfully", "thoughtfully", "eagerly", "solemnly", "warmly",
    "absently", "anxiously", "awkwardly", "brightly", "briskly", "calmly", "crossly", "deeply",
    "drowsily", "faintly", "fondly", "frankly", "gallantly", "gleefully", "gloomily", "gravely",
    "grumpily", "hopefully", "joyfully", "lazily", "lightly", "madly", "meekly", "modestly",
    "nervously", "patiently", "playfully", "roughly", "seriously", "sharply", "smoothly", "sternly",
    "sweetly", "tenderly", "wearily", "wildly", "wisely", "with a bow", "with a wink",
    "without haste",
};
static const char *const SKILL[] = {   // to do, did, doing
    "swim/swam/swimming", "sing/sang/singing", "dance/danced/dancing", "fly/flew/flying",
    "read/read/reading", "whistle/whistled/whistling", "skate/skated/skating",
    "climb/climbed/climbing", "write/wrote/writing", "draw/drew/drawing", "bake/baked/baking",
    "paint/painted/painting", "ride/rode/riding", "dive/dived/diving", "knit/knitted/knitting",
    "juggle/juggled/juggling", "sew/sewed/sewing", "row/rowed/rowing", "spin/spun/spinning",
    "ski/skied/skiing", "cook/cooked/cooking", "sail/sailed/sailing", "weave/wove/weaving",
    "hum/hummed/humming", "jump/jumped/jumping", "dig/dug/digging", "fish/fished/fishing",
    "yodel/yodelled/yodelling", "spell/spelled/spelling", "drive/drove/driving",
    "speak/spoke/speaking", "run/ran/running",
};
static const char *const FEAR[] = {
    "the dark", "thunder", "deep water", "spiders", "high places", "loud noises", "the dentist",
    "ghosts", "strangers", "big dogs", "the cellar", "bees", "being alone", "shadows", "lightning",
    "the moon", "scarecrows", "soap bubbles", "balloons", "mirrors", "owls at night", "crowds",
};
static const char *const GAME[] = {
    "tag", "chess", "cards", "marbles", "catch", "leapfrog", "blind man's buff", "hopscotch",
    "dominoes", "football", "pirates", "hide-and-seek", "charades", "skittles",
    "knights and dragons", "tennis", "shipwreck", "circus", "musical chairs", "hunt the thimble",
    "shop", "tug-of-war",
};
static const char *const CHORE[] = {
    "say thank you", "shut the gate", "feed the hens", "wash the dishes", "share",
    "wait for the others", "water the flowers", "look twice", "ask first", "sweep the floor",
    "tell the truth", "brush the pony", "listen", "lend a hand", "make the bed", "wipe muddy feet",
    "count to ten", "say good night", "close the window", "keep a promise",
    "leave a crumb for the birds", "knock before going in", "write home", "bring an umbrella",
    "light the lamp", "fill the kettle",
};
static const char *const BIRD[] = {
    "lark", "blackbird", "nightingale", "thrush", "swallow", "wren", "finch", "cuckoo", "starling",
    "woodpecker", "heron", "kingfisher", "stork", "seagull", "jay", "gull", "warbler", "bluebird",
};
static const char *const FLOWER[] = {
    "rose", "daisy/daisies", "tulip", "violet", "lily/lilies", "sunflower", "poppy/poppies",
    "bluebell", "snowdrop", "daffodil", "buttercup", "primrose", "foxglove", "iris/irises",
    "pansy/pansies", "marigold", "orchid", "crocus/crocuses", "cornflower", "dandelion", "hyacinth",
    "peony/peonies",
};
static const char *const TREE[] = {
    "oak", "apple tree", "willow", "pine", "birch", "chestnut tree", "beech", "elm", "fir", "maple",
    "cherry tree", "ash", "poplar", "walnut tree", "cedar", "palm tree", "larch", "yew",
};
static const char *const VEHICLE[] = {
    "cart", "boat", "bicycle", "sledge", "coach", "wheelbarrow", "raft", "balloon", "train",
    "carriage", "tractor", "donkey cart", "canoe", "fire engine", "submarine", "steamboat",
    "airship", "tricycle",
};
static const char *const INSTRUMENT[] = {
    "fiddle", "drum", "flute", "trumpet", "harp", "piano", "guitar", "bagpipes", "accordion",
    "cello", "horn", "banjo", "tambourine", "oboe", "clarinet", "triangle", "mandolin", "tuba",
    "recorder",
};
static const char *const TIME[] = {
    "supper", "bedtime", "midnight", "the stars came out", "the moon rose", "it was dark", "sunset",
    "the cows came home", "the candle was gone", "the owls woke up", "breakfast", "the bells rang",
    "the fire burned low", "dawn",
};
static const char *const PROVERB[] = {
    "Kind words cost nothing", "A friend in need is a friend indeed",
    "Slow and steady wins the race", "Many hands make light work", "Look before you leap",
    "All is well that ends well", "Every cloud has a silver lining",
    "Where there is a will there is a way", "Better late than never", "Practice makes perfect",
    "Two heads are better than one", "Little drops fill a bucket",
    "Good things come to those who wait", "Birds of a feather flock together",
    "The early bird catches the worm", "Great oaks grow from little acorns",
    "Do not count your chickens before they hatch", "A stitch in time saves nine",
    "After the rain comes the sun", "You reap what you sow", "Still waters run deep",
    "Haste makes waste", "Home is where the heart is", "Never judge a book by its cover",
};
static const char *const WEATHER[] = {   // weather, its noun, clothes for it, how one comes home
    "raining/rain/a raincoat/wet", "snowing/snow/warm mittens/white with flakes",
    "windy/wind/a long scarf/with tangled hair", "hot and sunny/sun/a straw hat/brown as a nut",
    "foggy/fog/a lantern on a string/two hours late",
    "freezing/frost/two pairs of socks/with a red nose", "stormy/storm/heavy boots/out of breath",
    "hailing/hail/a saucepan for a helmet/with a ringing head",
    "cold and clear/cold/a woolly hat/with rosy cheeks",
    "muddy/mud/rubber boots/brown to the knees",
};
static const char *const OPPOSITE[] = {   // two opposites, and their comparatives
    "big/small/bigger/smaller", "tall/short/taller/shorter", "fast/slow/faster/slower",
    "loud/quiet/louder/quieter", "old/young/older/younger", "strong/weak/stronger/weaker",
    "fat/thin/fatter/thinner", "rich/poor/richer/poorer", "clean/dirty/cleaner/dirtier",
    "tidy/messy/tidier/messier", "brave/timid/braver/more timid", "happy/sad/happier/sadder",
    "busy/lazy/busier/lazier", "wise/foolish/wiser/more foolish", "polite/rude/more polite/ruder",
};
static const char *const CONTRARY[] = {   // words and their opposites
    "hot/cold", "up/down", "day/night", "black/white", "wet/dry", "open/shut", "hard/soft",
    "left/right", "full/empty", "light/heavy", "sweet/sour", "early/late", "first/last",
    "inside/outside", "push/pull", "friend/enemy", "summer/winter", "rough/smooth", "near/far",
    "deep/shallow", "question/answer", "begin/end", "thick/thin", "always/never", "give/take",
    "win/lose", "sharp/blunt", "north/south",
};
static const char *const CALLER[] = {   // and what it calls
    "dog/woof", "cat/meow", "cow/moo", "duck/quack", "sheep/baa", "owl/hoot", "pig/oink",
    "frog/ribbit", "hen/cluck", "mouse/squeak", "horse/neigh", "bee/buzz", "crow/caw",
    "donkey/hee-haw", "goose/honk", "rooster/cock-a-doodle-doo", "bear/growl", "pigeon/coo",
    "turkey/gobble", "snake/hiss", "lion/roar", "cricket/chirp", "wolf/howl", "cuckoo/cuckoo",
    "elephant/toot", "puppy/yip", "chick/peep", "seal/arf", "raven/croak", "mosquito/zzz",
};
static const char *const DWELLER[] = {   // and its home
    "bird/nest", "bee/hive", "rabbit/burrow", "fox/den", "spider/web", "dog/kennel", "horse/stable",
    "pig/sty", "hen/coop", "bear/cave", "mouse/hole", "snail/shell", "cow/barn", "beaver/lodge",
    "ant/anthill", "mole/tunnel", "owl/hollow oak", "duck/pond", "squirrel/treetop",
    "crab/rock pool", "sheep/fold", "eagle/eyrie", "badger/sett", "pigeon/dovecote",
    "hedgehog/leaf pile", "hare/form",
};
static const char *const MOTHER[] = {   // and her child
    "hen/chick", "duck/duckling", "cow/calf", "cat/kitten", "dog/puppy", "sheep/lamb", "goat/kid",
    "pig/piglet", "horse/foal", "goose/gosling", "bear/cub", "swan/cygnet", "deer/fawn",
    "owl/owlet", "frog/tadpole", "seal/pup", "hare/leveret", "eagle/eaglet", "kangaroo/joey",
    "wolf/whelp", "elk/elk calf", "otter/otter kit", "eel/elver", "pigeon/squab",
};
static const char *const TRADE[] = {   // what they make, and where
    "baker/bread/bakery", "cobbler/shoes/workshop", "miller/flour/mill",
    "tailor/coats/tailor's shop", "potter/jugs/pottery", "smith/horseshoes/smithy",
    "carpenter/tables/sawmill", "painter/pictures/studio", "weaver/blankets/weaving room",
    "beekeeper/honey/honey shed", "candlemaker/candles/candle shop", "gardener/roses/greenhouse",
    "clockmaker/clocks/clock shop", "hatter/hats/hat shop", "cook/soup/kitchen",
    "printer/books/print shop", "basketmaker/baskets/willow shed", "toymaker/dolls/toy shop",
    "farmer/cheese/dairy", "ironmonger/nails/ironworks",
};
static const char *const RIDDLE[] = {
    "What has teeth but cannot bite?/a comb", "What has hands but cannot clap?/a clock",
    "What has a neck but no head?/a bottle", "What has an eye but cannot see?/a needle",
    "What has keys but opens no door?/a piano", "What has legs but never walks?/a table",
    "What has a bed but never sleeps?/a river", "What gets wet while it dries?/a towel",
    "What has leaves but is no tree?/a book", "What wears a cap but has no head?/a mushroom",
    "What runs all day but has no feet?/a stream", "What has a tongue but cannot talk?/a shoe",
    "What can you catch but never throw?/a cold",
    "What is full of holes and still holds water?/a sponge",
    "What eats and grows, but drinks and dies?/a fire",
    "What follows you by day and hides at night?/your shadow",
    "What sings in the kitchen and has no mouth?/a kettle",
    "What breaks when you say its name?/silence", "What goes up and never comes down?/your age",
    "What falls all winter and is never hurt?/snow", "What has ears but cannot hear?/a cornfield",
    "What has a tail, no legs, and loves the wind?/a kite",
    "What has one foot and four legs?/a bed", "What flies without wings?/time",
};
static const char *const GIFT[] = {   // a hint, and its answer
    "It is round and it bounces/a ball", "It has two wheels and a bell/a bicycle",
    "It tells the time/a watch", "It keeps the rain away/an umbrella",
    "It has pages and pictures/a book", "It makes a loud boom/a drum",
    "It flies on a string/a kite", "It keeps your neck warm/a scarf",
    "It lights up the dark/a lantern", "It purrs and drinks milk/a kitten", "It opens a door/a key",
    "It floats on the pond/a toy boat", "It shows your own face/a mirror",
    "It barks and wags/a puppy", "It slides down snowy hills/a sledge",
    "It points to the north/a compass", "It makes small things big/a magnifying glass",
    "It smells sweet and has thorns/a rose",
};
static const char *const PAINT[] = {   // two paints, and their mixture
    "blue and yellow/green", "red and white/pink", "red and yellow/orange", "blue and red/purple",
    "black and white/grey", "green and red/brown", "blue and white/sky blue",
    "green and white/mint",
};
static const char *const DAY[] = {   // and the day after
    "Monday/Tuesday", "Saturday/Sunday", "Friday/Saturday", "Wednesday/Thursday", "Sunday/Monday",
    "Tuesday/Wednesday", "Thursday/Friday",
};
static const char *const MONTH[] = {   // three in a row
    "March/April/May", "April/May/June", "May/June/July", "February/March/April",
    "June/July/August", "July/August/September",
};
static const char *const WAY[] = {
    "north/south", "east/west", "south/north", "west/east",
};
static const char *const SHOUT[] = {
    "Hello", "Good morning", "Who is there", "Hooray", "Where are you", "Happy birthday", "Cuckoo",
    "Come and play", "I am not afraid", "Banana", "Is anybody home", "Good night",
    "Catch me if you can", "Peekaboo", "I love pancakes", "What is your name", "Ahoy", "Rhubarb",
    "Wake up", "Tickle tickle",
};
static const char *const SKY[] = {   // and the form of address
    "the moon/moon", "a star/star", "a cloud/cloud", "the sun/sun", "a comet/comet",
    "the rainbow/rainbow", "the evening star/evening star", "a sunbeam/sunbeam",
    "the north wind/north wind", "a snowflake/snowflake", "the Milky Way/Milky Way",
    "a raindrop/raindrop",
};
static const char *const JOB[] = {   // with the article
    "a sailor", "a doctor", "a pirate", "a baker", "a dancer", "an explorer", "a clown",
    "a painter", "a knight", "a teacher", "a gardener", "an inventor", "a train driver", "a singer",
    "a detective", "an astronaut", "a beekeeper", "a firefighter", "a magician", "an acrobat",
    "a poet", "a farmer", "a lighthouse keeper", "a librarian", "a juggler", "an opera star",
    "a cheese taster",
};
static const char *const SYLLABLE[] = {   // magic words are made of three
    "bim", "zu", "lala", "kra", "pom", "fiz", "tola", "mi", "gorp", "ru", "zam", "nubi", "dex",
    "ola", "quil", "sha", "bo", "trix", "wum", "pli", "hoka", "jaz", "vee", "snor", "kip", "dulu",
    "ramba", "fo", "glim", "yup", "mox", "tika", "bra", "sel", "nok", "una", "puf", "zeb", "lorn",
    "gado", "wiz", "ich", "cha", "frum", "dap", "oona", "kel", "sto", "vim", "hurr", "perl", "tum",
    "ax", "romi", "jub", "esk", "lith", "bur", "zin", "moko", "agar", "thu", "yol", "nim",
};
static const char *const SURNAME[] = {
    "Miller", "Baker", "Green", "Hill", "Fox", "Brown", "Wood", "Finch", "Rivers", "Stone", "Bell",
    "Woolly", "Nutt", "Berry", "Cooper", "Potts", "Thorn", "Marsh", "Lamb", "Appleby", "Fiddler",
    "Moss", "Snow", "Winter", "Fielding", "Brook", "Carter", "Drake", "Pickle", "Featherly",
    "Goodwin", "Hopper", "Larkin", "Mudge", "Nightingale", "Oakley", "Pumble", "Quick", "Rumble",
    "Sparrow", "Tadworth", "Underhill", "Vale", "Wickett", "Yarrow", "Zimmer", "Ashby", "Bramble",
    "Cobb", "Dumpling", "Ember", "Fennel", "Gumble", "Hazelnut", "Inkpen", "Jolly", "Kettle",
    "Lumley", "Mumford", "Nettle", "Otterby", "Pepper", "Quill", "Rosebud", "Shell", "Tumbledown",
    "Upton", "Violet", "Whistler", "Yodelbee", "Zapp", "Applewood", "Button", "Crumb", "Dabble",
    "Eggleton", "Figg", "Grimble", "Humble", "Ivory", "Jumble", "Kipper", "Lemon", "Muffin",
    "Noodle", "Owlett", "Puddle", "Ramble", "Saddler", "Tinker", "Umber", "Velvet", "Wobble",
    "Yawn", "Zephyr", "Acorn",
};

// ---------------------------------------------------------------------------------------------
// Sentences that several plots share. h is the hero of the tale, f a friend.

static const char *const ASIDE[] = {
    "Outside, {colour.a} {bird} sang {softly}.",
    "Somewhere {trait.a} {animal} played the {instrument} {softly}.",
    "It smelled of {dish}, {dish} and {flower.s}.",
    "Nobody saw the {trait} {animal} {spot}.",
    "Two {glum} {animal.s} {moved} by, eating {fruit.s}.",
    "All around grew {colour} {flower.s} and {look.a} {tree}.",
    "That {day}, {trait.a} {kin} {moved} past with {look.a} {toy}.",
    "Up in the {tree} {trait.a} {bird} was eating {fruit.a}.",
};
static const char *const ENDING[] = {
    "From then on {trait} {h} never forgot to {chore}.",
    "And {h} was {glad} and had {dish} with {fruit.s}.",
    "That evening there was {dish} with {fruit.s} and {fruit.s}.",
    "The {colour} {bird} in the {tree} sang about it {softly}.",
    "Then {trait.a} {animal} gave {h.him} {2 to 9} {colour} {trinket.s}.",
    "So {h} {moved} home, {softly} humming to {look.a} {treasure}.",
    "All the {trait} {animal.s} clapped {softly}.",
    "To this day {h} keeps {look.a} {colour} {treasure} to remember it by.",
};
static const char *const TOGETHER[] = {
    "After that they played {game} and {game} with {trait.a} {animal}.",
    "They shared some {dish} with {fruit.s} and were {glad}.",
    "From then on {h} and {f} had {dish} every {day}.",
    "Then {f} gave {h} {2 to 9} {look} {trinket.s} and {fruit.a}.",
    "So {h} and {f} {moved} home for some {dish} and {game}.",
    "Even the {trait} {animal.s} by the {place} could hear them laugh.",
};

// ---------------------------------------------------------------------------------------------
// The plots. No beginning is a prefix of another; earlier plots are likelier.

static const char *const PLOT[] = {

    // A notice, and its answer.
    "Lost near the {place}: {trait.a} {colour:c} {animal:x} in {look.a} {clothes:o}. It likes "
    "{dish:d} and {fruit.s}.\nFound {spot}: {c.a} {x} in {clothes.a}. It has had all my {d} and "
    "{2 to 9} {trinket.s}. Come soon!\n{name} {surname}",

    // A magic word, to be said again.
    "Say <{syllable:a}-{syllable:b}-{syllable:c}> and {colour.a} {animal:x} will bring you "
    "{dish}. {trait.A} {kin:k} told {name:h} {surname} so. {h} {moved} to the {place}, {said} "
    "<{a}-{b}-{c}!> {softly}, and there was the {x} with {2 to 9} {look} {fruit.s}.",

    // Good night.
    "Good night, {trait} {animal:a}. Good night, {look} {toy:b}. Good night, {colour} "
    "{clothes:c}. <Good night,> {said} {name:h} {surname} {softly}, and the {a}, the {b} and the "
    "{c} {moved} off to dream of {dish} and {trait} {animal.s}.",

    // Gifts: who sent which?
    "Gifts came to {trait} {name:h} {surname}: {look.a} {treasure:a} from {name:f}, {colour.a} "
    "{toy:b} from {name:g}, and {dish:c} from the {trait} {trade:t}. [w:Next|Then] {h} wrote: "
    "<Thank you for the [w?{a}|{b}], {trait} [w?{f}|{g}]! It is {spot}.>",

    // A circus.
    "Come to the circus of {name:h} {surname}! {trait.A} {animal:a} will {skill:i}, {trait.a} "
    "{animal:b} will {skill:j}, and {2 to 9} {colour} {animal:c.s} will play the {instrument}. "
    "[w:Last {day}|In {month}] the {a} {i.1} so {softly} that {trait} {name} forgot all about the "
    "{dish}.",

    // Somebody is cold.
    "Under {look.a} {tree} sat {trait} {name:h} {surname}, knitting {colour:c.a} {clothes:o}. "
    "<Who is it for?> {said} {trait.a} {animal:x}. <For a cold {body:b},> {said} {h} {softly}. "
    "<My {b} is cold!> So the {x} {moved} off in {c.a} {o}. {aside}",

    // A sum: some of them are given away.
    "At the market {trait} {name:h} {surname} got {2 to 9:n} {fruit:a.s} and {2 to 9:m} {colour} "
    "{fruit:b.s}. {animal:x.A} there was too {glum} to {skill}, so {h} gave it {1 to n-1:k} "
    "{a#k}. {h.His} {trait} {kin:g} {said}, <{n-k.C} {a#n-k} and {m} {b.s} make {n-k+m}.> {ending}",

    // What was packed, and what is left?
    "Into {look.a} {container:v} {name:h} {surname} packed {look.a} {treasure:a}, {2 to 9:n} "
    "{fruit:b.s}, {colour.a} {clothes:c} and {toy:d.a}. {trait.A} {animal:x} {moved} by and took "
    "[w:the {b.s}|everything to wear|all the toys]. So {h} came to the {place} with the {a}, "
    "[w?the {c} and the {d}|the {b.s} and the {d}|the {b.s} and the {c}]. {aside}",

    // Who has it now, and what is tomorrow?
    "On {day:d} {trait} {name:h} {surname} found {look:l.a} {treasure:o} {spot} and gave it to "
    "{name:f}. {f} [w:lent it to {name:g}, who hid it {spot:s}|hid it {spot:s}|swapped it with "
    "{name:g} for {colour.a} {toy:y}]. On {d.1} {trait.a} {kin:k} {said}, <Where is that {o}?> "
    "[w?<It is {s},> {said} {g}.|<It is {s},> {said} {f}.|<I have it,> {said} {g}, <and {f} has "
    "my {y}.>] {aside}",

    // Up in the sky.
    "Up in the sky {sky:a} was {glum}. <Nobody looks at me,> it {said}. But {trait} {name:h} "
    "{surname} {moved} to the {place}, looked up from {h.his} {colour} {treasure} and {said} "
    "{softly}, <Good [night|evening|morning], {a.1}!> And it was {glad}. {ending}",

    // A call, and who calls.
    "<Listen!> {said} {trait} {name:h} {surname}. Outside something went <{caller:c.1}>. <A "
    "ghost?> {said} {name:f}. They took {look.a} {treasure:o} and {moved} to the door. It was "
    "{c.a}, {glum} because it wanted {dish:d} and {fruit:a.s}. They gave it the {d} and {2 to 9} "
    "{a.s}. {together}",

    // Question, wrong guess, answer.
    "Riddle time! <{riddle:r}> {said} {trait} {name:h} {surname}. {h.His} {kin:g} ate {2 to 9} "
    "{fruit.s} and thought {softly}. <Is it {trait.a} {animal}?> <No!> <Is it {look.a} "
    "{treasure}?> <No!> {said} {h}. <It is {r.1}.> {aside}",

    // The ruler laughs.
    "Long ago {trait.a} {ruler:r} of {syllable.C}-{syllable}-{syllable} could not laugh. "
    "{trait.A} {trade} [sang of {animal.s} and {fruit.s}|told a joke about {dish}], but the {r} "
    "was {glum}. Then {trait} {name:h} {surname} [w:fell into the {dish:d} with {2 to 9} {look} "
    "{fruit.s}|came in with {look.a} {clothes:e} on {h.his} {body}]. <Look at that [w?{d}|{e}]!> "
    "laughed the {r} and gave {h.him} {look.a} {colour} {treasure}.",

    // Lost and found: who has it?
    "Once upon a time {trait.a} {animal:x} named {name:h} {surname} lost {h.his} {colour:c} "
    "{clothes:o}. {h.He} looked {spot} and {spot}, but found only {look.a} {treasure}. {trait.A} "
    "{animal:z} turned {colour}. [w:<It is on your {body}!>|<I was cold, so I took it,>|<You left "
    "it {spot:s},>] it {said}. [w?And so it was.|It gave back the {c} {o}.|And there it was, "
    "{s}.] {ending}",

    // Hide-and-seek: who is where, and who gives it away?
    "Hide-and-seek in {syllable.C}-{syllable}-{syllable} is hard for {name:f}, who always "
    "sneezes, and for {trait} {name:g}, who giggles. {f} hid {spot:s} and {g} hid {spot:t}, and "
    "{name:h} {surname} found {look.a} {toy} {spot}. [w:<Achoo!>|<Hee hee!>] {said} somebody. "
    "<[w?{f}|{g}], you are [w?{s}|{t}],> {said} {h}.",

    // Dressed for the weather.
    "Before breakfast it was {weather:w}. <Do not go to {syllable.C}-{syllable}-{syllable} "
    "without {w.2},> said {name:h}'s {trait} {kin:g}. [v:But {h} forgot|So {h} put on {w.2}], and "
    "{moved} out for {look.a} {treasure} and some {colour} {flower.s}. [v?{h.He} came back "
    "{w.3}.|{h.He} played {game} in the {w.1} until {time}.]",

    // Opposites that change places.
    "Not far from {syllable.C}-{syllable}-{syllable} lived {opposite:a.a} {animal:x} and {a.1a} "
    "{animal:y}. <I want to be {a.1},> {said} the {x}. <And I {a},> {said} the {y}. {trait.A} "
    "{ruler:r} waved {look.a} {treasure} and {said} <{syllable}-{syllable}-{syllable}!> {softly}. "
    "Now the {x} was {a.1} and the {y} was {a}. [They had {dish} with {fruit.s} and were "
    "{glad}.|<I am too {a.1},> {said} the {x}, and became {a} again.]",

    // Learning: to do, did, doing.
    "Every {day} {trait} {name:h} {surname} tried to {skill:k} and fell over {look.a} {toy}. "
    "{trait.A} {animal:z} that {k.1} {softly} said, <There is nothing to {k.2}. [w:Close your "
    "eyes|Wear {clothes:c.a}|Think of {dish:d}].> So {h} [w?closed {h.his} eyes|wore "
    "{c.a}|thought of {d}], and {k.1}! Now {h} teaches {k.2} to {2 to 9} {trait} {animal.s}.",

    // Counting to fall asleep.
    "Late one {day} {trait} {name:h} {surname} counted {2 to 9:n} {colour} {animal:x.s} and {2 to "
    "9:m} {trait} {animal:y.s}. <That makes {n+m},> {h.he} {said}, still awake. {trait.A} {kin:k} "
    "brought {dish} with {fruit.s} and {said} {softly}, <Good night.> Then {h} slept and dreamt "
    "of the {n} {x.s}, who {moved} to the {place}.",

    // Who sleeps where.
    "Night fell on the {place} and {sky} {moved} by. The {dweller:a} {moved} to its {a.1}, the "
    "{dweller:b} to its {b.1}, the {dweller:c} to its {c.1}. But {name:h} {surname}, {trait.a} "
    "{colour} {toy} from {syllable.C}-{syllable}-{syllable}, had no bed. <[w:Take my {a.1}|Come "
    "into my {b.1}|Sleep in my {c.1}],> {said} the [w?{a}|{b}|{c}]. It smelled of {dish} and "
    "{fruit.s}, so {h} slept {spot}.",

    // Whose child is it?
    "Mother {mother:m} had lost her {m.1} in {syllable.C}-{syllable}-{syllable}. She met "
    "{trait.a} {mother:o.1}. <Are you mine?> <No, my mother is {o.a}.> She met {look.a} "
    "{mother:q.1} with {toy.a}. <Are you mine?> <No, my mother is {q.a}.> And who {moved} out of "
    "{look.a} {colour} {container}? The {m.1}!",

    // A shop with no customers.
    "In the town of {syllable.C}-{syllable}-{syllable} {trait.a} {trade:t} named {name:h} "
    "{surname} made {t.1}, but the {t.2} was empty and {h} was {glum}. {h.He} painted "
    "{colour:c.a} sign: <[w:With {dish:d} and {fruit:a.s}|Every {day} a song|Made by {trait:x} "
    "{animal:y.s}]!> [w?Soon it smelled of {d} and {a.s}|Then {h} sang {softly}|People came to "
    "see the {x} {y.s}], and soon the {t.2} was too small for {2 to 9} {animal.s}.",

    // A race, and who wins it.
    "Two friends, {trait.a} {animal:x} and {trait.a} {animal:y}, had a race. The {x} {moved} and "
    "the {y} {moved}. [w:But the {x} stopped for {dish}|Then the {y} fell over {look.a} "
    "{container}]. <I won!> {said} the [w?{y}|{x}] {softly}. The prize was {look.a} {colour} "
    "{treasure} with {fruit.s}. {aside}",

    // A letter.
    "Dear {name:f},\nthank you for the {look} {toy:o}! I call it "
    "{syllable.C}-{syllable}-{syllable} and keep it {spot:s}. Here are {2 to 9:n} {colour} "
    "{fruit:a.s}. [w:Give {1 to n-1:m} to your {kin}|Have them with {dish:d}]. Are you still "
    "{glum}, and can you {skill} and play {game}?\nYour {trait} friend {name:h} {surname}\nP.S. "
    "[w?That leaves {n-m} {a#n-m} for you.|{d.C} with {a.s} is so good!] The {o} is still {s}.",

    // A seed grows: months in a row.
    "Grandfather gave {trait} {name:h} {surname} {look.a} seed. In {month:m} it lay in {colour.a} "
    "{container}. In {m.1} it was as tall as {trait.a} {animal}. In {m.2} it was as tall as "
    "{tree.a}, with {2 to 9:n} {colour} {fruit:a.s}. {h} [w:gave {1 to n-1:k} to {h.his} "
    "{kin}|ate {1 to n-1:k} with {dish}], and {n-k} {a#n-k} [n-k-1?was|were] left for the {trait} "
    "{animal.s}.",

    // Swapping one thing for another: who has it now?
    "Here is how {name:h} {surname} came by {look.a} {vehicle:v}. {h.He} swapped {colour.a} "
    "{toy:a} for {look.a} {treasure:b} with {name:f}, the {b} for {clothes:c.a} with {trait} "
    "{name:g}, and the {c} for the {v} with {trade:t.a}. <Who has [w:your {a}|that {b}|the {c}]?> "
    "{said} {trait.a} {kin}. <[w?{f}|{g}|The {t}],> {said} {h} {softly}.",

    // Equal shares.
    "Three {trait} {animal:x.s} {moved} to the {place} for {colour} {fruit:f.s}. Each found {2 to "
    "6:k}. <Together {k+k+k},> {said} one. They [gave {1 to k:m} to {trait} {name}|ate {1 to k:m} "
    "{spot}], and that left {k+k+k-m} to go with the {dish}. {aside}",

    // A secret fear.
    "Nobody knew that {trait} {name:h} {surname} feared {fear:f}. One {day} {h.he} told {trait.a} "
    "{animal:y}. <I fear {fear:g},> {said} the {y}. They had {dish} with {fruit.s} and laughed "
    "{softly} at {f} and {g}. Now {h} does not fear {f}, and the {y} is {glad}.",

    // A parcel and a hint.
    "<What is in the {look} {container:b}?> {said} {name:h} {surname}. On it was {colour.a} "
    "ribbon and {look.a} {treasure}. <{gift:g},> {said} {h.his} {trait} {kin:k}. <{trait.A} "
    "{animal}?> <No!> <Then it must be {g.1},> {said} {h} {softly}. It was {g.1}.",

    // A snowman, and what the sun leaves of it.
    "Snow fell, and {trait} {name:h} {surname} and {trait} {name:f} built {name:s} the snowman, "
    "with {fruit:a.a} for a nose, {2 to 9:n} {colour} {trinket:b.s} and {look.a} {clothes:d}. On "
    "{day} the sun came and {s} melted. {h} took the {a}, {f} took the {n} {b.s}, and {trait.a} "
    "{animal} wears the {d}.",

    // A boat and its crew: how many are aboard?
    "Down by the river lay a boat called the {look:l} {flower:f}, made of {colour.a} {container}. "
    "First {2 to 6:n} {trait} {animal:x.s} {moved} aboard, then {2 to 6:m} {animal:y.s} with "
    "{dish}. <You are {n+m},> {said} {name:h} {surname}, and the {l} {f} sailed to the {place} "
    "full of {colour} {fruit.s}.",

    // A recipe that goes wrong.
    "To bake {fruit:a.a} cake, {trait} {name:h} {surname} needed {3 to 9:n} eggs, but had only {2 "
    "to n-1:m}. {h.He} {moved} to the {place} for {n-m} more. {trait.A} {animal:x} gave {h.him} "
    "{2 to 6} {colour} {fruit:b.s}. So {h} baked {b.a} cake with {dish}, and {h.his} {kin} was "
    "{glad}.",

    // Questions and answers.
    "After school {trait.a} {kin:k} asked {name:h} {surname}, <What is not {contrary:a}?> <It is "
    "{a.1}.> <And not {contrary:b.1}?> <That is {b}.> <The magic word?> <It is "
    "{syllable}-{syllable}-{syllable}.> <The child of {mother:m.a}?> <It is {m.1a}.> <How many "
    "are {2 to 9:i} and {2 to 9:j}?> <They are {i+j}.> So {h} got {dish} with {fruit.s} and "
    "{look.a} {treasure}.",

    // Paint.
    "Little {name:h} {surname} of {syllable.C}-{syllable}-{syllable} had two paints, {paint:p}, "
    "for {look.a} {vehicle:v}. {trait.A} {animal:x} {moved} in and stirred them with its "
    "{body:b}. <Now I have only {p.1}!> {said} {h}. So {h.his} {kin:k} got {p.1a} {v} with "
    "{look.a} {treasure}, and the {x} had {p.1a} {b}.",

    // Getting on and off.
    "Early on {day} {look.a} {vehicle:v} left with {2 to 6:n} {trait} {animal:x.s}. At the "
    "{place} {2 to 6:m} {trait} {animal:y.s} got on. At the {place} {1 to n-1:k} of the {x.s} got "
    "off to buy {dish} and {fruit.s}. <Then we are {n-k+m},> {said} {name:h} {surname}, who drove "
    "the {v} {softly}.",

    // An echo.
    "Far away behind the {place} {trait} {name:h} {surname} {moved} about and shouted, "
    "<{shout:a}!> <{a}!> said the echo. <Do you want {dish:d} with {fruit:b.s}?> <{d.C} with "
    "{b.s}!> <{syllable:x}-{syllable:y}-{syllable:z}!> <{x}-{y}-{z}!> {ending}",

    // The price of a toy.
    "In the window stood {look.a} {colour:c} {toy:t}. It cost {4 to 9:n} coins, but {trait} "
    "{name:h} {surname} had only {1 to n-1:m}. {h.He} [fed the {animal.s}|sold {fruit.s}|played "
    "the {instrument}] for {trait.a} {kin:k} and earned {n-m} more. Now the {c} {t} lives {spot} "
    "with {look.a} {treasure}.",

    // The way there, and the way back.
    "The way to {trait} {name:f} goes past the {place:a}, the {place:b} and the {place:c}. "
    "{name:h} {surname} {moved} there with {dish} and {fruit.s}. <And back?> {h.he} {said} "
    "{softly}. <Past the {c}, the {b} and the {a},> {said} {f}. {together}",

    // Steps forth and back.
    "Captain {name:h} {surname} had {look.a} map. <From the {tree:t} go {4 to 9:n} steps {way:w} "
    "and {1 to n-1:m} {w.1}.> <Then it is {n-m} {w},> {said} the {trait} {animal}. They {moved} "
    "there and found {look.a} {container} with {look.a} {treasure}, {colour} {trinket.s} and "
    "{dish}. {ending}",

    // Birthdays.
    "Today {trait} {name:h} {surname} of {syllable.C}-{syllable}-{syllable} is {4 to 9:n} years "
    "old. {name:f} is {1 to 3:k} [w:more|less], so {f.he} is [w?{n+k}|{n-k}]. There was {fruit} "
    "cake with {dish}, and {look.a} {container:c} with {colour.a} {toy:t}. <Thank you, {f}! I "
    "shall keep the {t} {spot},> {said} {h}. {together}",

    // A wise judge.
    "<That is my {colour} {clothes:o}!> {said} {name:f}. <No, mine!> {said} {name:h} {surname}. "
    "<How many {look} {trinket:b.s} has the pocket?> {said} the {ruler:r} of "
    "{syllable.C}-{syllable}-{syllable}. <It has {2 to 9:n},> said {f}. <It has {n+1},> said {h}. "
    "The {r} [w:bent down|put on spectacles] and found [w?{n}|{n+1}]. So the {o} is [w?{f}|{h}]'s.",

    // Pulling, all in a row.
    "Grandfather sang <{syllable}-{syllable}-{syllable}> and pulled at {look.a} {fruit:t}. Up "
    "{moved} {trait.a} {animal:a} and pulled at Grandfather. Up {moved} {trait.a} {animal:b} and "
    "pulled at the {a}. Up {moved} {trait.a} {animal:c}. The {c} pulled at the {b}, the {b} at "
    "the {a}, the {a} at Grandfather, and pop! They ate the {t} with {dish} and {fruit.s}.",

    // What to be.
    "When {trait} {name:h} {surname} grows up, {h.he} will be {job:a}, with {look.a} {vehicle}. "
    "{trait:t.C} {name:f} will be {job:b} in {syllable.C}-{syllable}-{syllable} and live on "
    "{dish}. But every {day:d} {h} will be {b} and {f} will be {a}, and on {d.1} they will play "
    "{game}.",

    // A wish.
    "High on a hill {look.a} {tree:t} granted wishes. <I want {look:l.a} {toy:o}!> {said} {trait} "
    "{name:h} {surname}. <[w:Puff|Say please],> {said} the {t} {softly}. [w?There it was, "
    "{colour} and {l}, {spot}.|<Please!> {said} {h}, and got {colour:c.a} {o} full of {dish}.] "
    "{ending}",

    // A saying.
    "My {trait} {kin:k} from {syllable.C}-{syllable}-{syllable} says, <{proverb:p}.> Once {k.he} "
    "lost {k.his} {look} {clothes:c} {spot} and {said}, <{p}!> When I fell into {look.a} "
    "{container} of {dish}, {k.he} {said}, <{p}!> What does it mean? I must ask the {trait} "
    "{animal}.",

    // A rumour grows.
    "Have you heard? {trait.C} {name:h} {surname} found {2 to 9:n} {colour} {trinket:a.s} {spot}. "
    "{name:f} told {trait.a} {animal:x} that it was {n+1}, and the {x} told {trait.a} {ruler:r} "
    "that it was {n+2}. <Show me {n+2}!> {said} the {r}. <It is only {n},> {said} {h} {softly}.",

    // Eating, day by day.
    "All week {trait.a} {animal:x} named {syllable.C}-{syllable}-{syllable} ate. On {day:d} it "
    "was one {colour} {fruit:a}, on {d.1} two {look} {fruit:b.s}, and then three {fruit:c.s}. "
    "<You are too plump to {skill},> {said} {trait.a} {kin}. <It was only three {c.s}, two {b.s} "
    "and one {a},> {said} the {x}.",

    // A band with one player missing.
    "Music by the {place}! {trait.A} {animal:a} plays the {instrument:i}, {trait.a} {animal:b} "
    "the {instrument:j}, and {trait.a} {animal:c} the {instrument:k}. [w:Today|Sometimes|On "
    "{day}] the [w?{a}|{b}|{c}] is {glum}, and {name} plays the [w?{i}|{j}|{k}]. It sounds like "
    "{vehicle.a} full of {animal.s}.",

    // Two who meet.
    "<Who are you?> {said} the {trait} {animal:x}. <I am {name:h} {surname}. And you?> <I am "
    "{name:f} {surname}. [w:Do you like {dish:d}|Can you {skill:k}]?> <[w?I like {d} with "
    "{fruit.s}|I can {k} {softly}],> {said} {h}. {together}",
};

// ---------------------------------------------------------------------------------------------
// The grammar

#define LIST(name, words) {name, words, sizeof words / sizeof words[0]}

static const List LISTS[] = {
    LIST("name", NAME), LIST("kin", KIN), LIST("ruler", RULER), LIST("animal", ANIMAL),
    LIST("trait", TRAIT), LIST("glum", GLUM), LIST("glad", GLAD), LIST("look", LOOK),
    LIST("colour", COLOUR), LIST("toy", TOY), LIST("treasure", TREASURE), LIST("fruit", FRUIT),
    LIST("trinket", TRINKET), LIST("clothes", CLOTHES), LIST("body", BODY), LIST("dish", DISH),
    LIST("container", CONTAINER), LIST("place", PLACE), LIST("spot", SPOT), LIST("said", SAID),
    LIST("moved", MOVED), LIST("softly", SOFTLY), LIST("skill", SKILL), LIST("fear", FEAR),
    LIST("game", GAME), LIST("chore", CHORE), LIST("bird", BIRD), LIST("flower", FLOWER),
    LIST("tree", TREE), LIST("vehicle", VEHICLE), LIST("instrument", INSTRUMENT),
    LIST("time", TIME), LIST("proverb", PROVERB), LIST("weather", WEATHER),
    LIST("opposite", OPPOSITE), LIST("contrary", CONTRARY), LIST("caller", CALLER),
    LIST("dweller", DWELLER), LIST("mother", MOTHER), LIST("trade", TRADE),
    LIST("riddle", RIDDLE), LIST("gift", GIFT), LIST("paint", PAINT), LIST("day", DAY),
    LIST("month", MONTH), LIST("way", WAY), LIST("shout", SHOUT), LIST("sky", SKY),
    LIST("job", JOB), LIST("syllable", SYLLABLE), LIST("surname", SURNAME), LIST("aside", ASIDE),
    LIST("ending", ENDING), LIST("together", TOGETHER), LIST("plot", PLOT),
};

static const Grammar TALES = {LISTS, sizeof LISTS / sizeof LISTS[0]};

size_t tale_write(char *out, size_t cap, double *nats, Rng *rng) {
    Teller t;
    memset(&t, 0, sizeof t);
    t.grammar = &TALES;
    t.pick = pick_at_random;
    t.source = rng;
    t.out = out;
    t.cap = cap;
    bool ok = tell(&t);
    *nats = t.nats;
    return ok ? t.n : 0;
}

bool tale_read(double *nats, const char *text, size_t n) {
    Teller t;
    memset(&t, 0, sizeof t);
    t.grammar = &TALES;
    t.pick = pick_from_text;
    t.text = text;
    t.cap = n;
    bool ok = tell(&t);
    *nats = t.nats;
    return ok && t.n == n;
}
