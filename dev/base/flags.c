// Flags of the command line: one table parses, checks, explains and logs them (base.h).
#include "base.h"
#include <assert.h>

bool period_due(const Period *p, uint64_t steps_before, uint64_t steps_after,
                uint64_t tokens_before, uint64_t tokens_after) {
    if (p->n == 0) return false;
    uint64_t before = p->in_tokens ? tokens_before : steps_before;
    uint64_t after = p->in_tokens ? tokens_after : steps_after;
    return before / p->n != after / p->n;
}

// ---- finding a flag ----

int option_find(const Option *table, int n, const char *name, size_t length) {
    for (int i = 0; i < n; i++)
        if (strlen(table[i].name) == length && memcmp(table[i].name, name, length) == 0) return i;
    return -1;
}

bool options_given(const void *opts, const Option *table, int n, const char *name) {
    int i = option_find(table, n, name, strlen(name));
    assert(i >= 0);
    return ((const Given *)opts)->set[i];
}

// The edit distance between a and b: insertions, deletions, replacements and swaps of neighbours
// (optimal string alignment). d[i][j] is that of their first i and j characters.
static size_t edit_distance(const char *a, size_t na, const char *b, size_t nb) {
    size_t d[OPTION_NAME_MAX + 1][OPTION_NAME_MAX + 1];
    assert(na <= OPTION_NAME_MAX && nb <= OPTION_NAME_MAX);
    for (size_t i = 0; i <= na; i++)
    for (size_t j = 0; j <= nb; j++) {
        d[i][j] = i + j;
        if (i == 0 || j == 0) continue;
        d[i][j] = min_size(min_size(d[i-1][j], d[i][j-1]) + 1,
                           d[i-1][j-1] + (a[i-1] != b[j-1]));
        if (i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1])
            d[i][j] = min_size(d[i][j], d[i-2][j-2] + 1);
    }
    return d[na][nb];
}

// The row whose name is nearest to `text`, or -1 if all differ in more than half the characters.
static int option_nearest(const Option *table, int n, const char *text, size_t length) {
    int best = -1;
    size_t best_distance = SIZE_MAX;
    if (length > OPTION_NAME_MAX) return -1;
    for (int i = 0; i < n; i++) {
        size_t name_length = strlen(table[i].name);
        size_t distance = edit_distance(text, length, table[i].name, name_length);
        bool near = 2*distance <= length || 2*distance <= name_length;
        if (near && distance < best_distance) best = i, best_distance = distance;
    }
    return best;
}

// ---- reading values ----

// The first n characters, before one that no number has.
static bool number_part(double *out, const char *text, size_t n) {
    char *end;
    errno = 0;
    *out = strtod(text, &end);
    return n > 0 && strspn(text, "0123456789+-.eE") == n && end == text + n
        && errno == 0;                              // ERANGE: too large, or too small, for a double
}

bool number_read(double *out, const char *text) { return number_part(out, text, strlen(text)); }

bool whole_read(double *out, const char *text) {
    return number_read(out, text) && *out == floor(*out);
}

int choice_index(const char *choices, const char *text, size_t length) {
    for (int i = 0; ; i++) {
        size_t n = strcspn(choices, "|");
        if (n == length && memcmp(choices, text, n) == 0) return i;
        if (choices[n] == '\0') return -1;
        choices += n + 1;
    }
}

static bool period_read(Period *out, const char *text) {
    double value;
    size_t n = strcspn(text, "t");
    out->in_tokens = strcmp(text + n, "tok") == 0;
    if ((text[n] && !out->in_tokens) || !number_part(&value, text, n) || value != floor(value)
        || value < 0 || value > 1e15) return false;
    out->n = (uint64_t)value;
    return true;
}

static bool option_is_whole(const Option *o) {
    return o->type == OPT_INT || o->type == OPT_COUNT || o->type == OPT_FROM;
}

static bool option_is_number(const Option *o) { return option_is_whole(o) || o->type == OPT_REAL; }

static bool option_read_number(double *out, const Option *o, const char *text) {
    bool read = o->type == OPT_REAL ? number_read(out, text) : whole_read(out, text);
    return read && *out >= o->minimum && *out <= o->maximum;
}

bool option_read(void *opts, const Option *o, const char *text) {
    void *field = (char *)opts + o->field;
    double x = 0.0;
    if (option_is_number(o) && !option_read_number(&x, o, text)) return false;
    switch (o->type) {
        case OPT_INT:    *(int *)field = (int)x; return true;
        case OPT_COUNT: case OPT_FROM: *(int64_t *)field = (int64_t)x; return true;
        case OPT_REAL:   *(double *)field = x; return true;
        case OPT_PERIOD: return period_read((Period *)field, text);
        case OPT_TEXT:
            *(const char **)field = text;
            return strlen(text) >= o->minimum;
        case OPT_CHOICE:
            *(int *)field = choice_index(o->choices, text, strlen(text));
            return *(int *)field >= 0;
        default: return false;     // help and flags take no value
    }
}

void option_set_default(void *opts, const Option *o) {
    void *field = (char *)opts + o->field;
    if (o->type == OPT_HELP) return;
    if (o->value) {
        bool read = option_read(opts, o, o->value);
        assert(read && "a default must satisfy its own row");
        (void)read;
    } else if (o->type == OPT_FLAG) {
        *(bool *)field = false;
    } else if (o->type == OPT_TEXT) {
        *(const char **)field = NULL;
    } else if (o->type == OPT_INT) {
        *(int *)field = OPTION_UNSET;
    } else {
        assert((o->type == OPT_COUNT || o->type == OPT_FROM) && "this type needs a default");
        *(int64_t *)field = OPTION_UNSET;
    }
}

// ---- a row's type and range, in words ----

// x in so many digits if these restore every bit of it, else in 17.
static Shown exact_words(double x, int digits) {
    Shown words = show_text("%.*g", digits, x);
    return strtod(words.text, NULL) == x ? words : show_text("%.17g", x);
}

// 0.000001 -> "1e-6", 1000000 -> "1e6", 65536 -> "65536": short, and exact.
static Shown number_words(double x) {
    Shown words = exact_words(x, 6);
    const char *e = strchr(words.text, 'e');
    return !e ? words : show_text("%.*s%ld", (int)(e + 1 - words.text), words.text,
                                  strtol(e + 1, NULL, 10));
}

// "constant, linear, cosine or wsd"
static void choice_words(char *out, size_t size, const char *choices) {
    const char *last = strrchr(choices, '|');
    size_t used = 0;
    for (const char *c = choices; *c; c++) {
        const char *join = *c != '|' ? "" : c == last ? " or " : ", ";
        used += (size_t)snprintf(out + used, size - used, "%s%.*s", join, *c != '|', c);
        assert(used < size && "the choices are too many for a line");
    }
}

// The range alone: "1 to 65536". Empty for a text or a flag.
static OptionWords option_range(const Option *o) {
    OptionWords words;
    words.text[0] = '\0';
    if (option_is_number(o))
        snprintf(words.text, sizeof words.text, "%s to %s", number_words(o->minimum).text,
                 number_words(o->maximum).text);
    if (o->type == OPT_CHOICE) choice_words(words.text, sizeof words.text, o->choices);
    return words;
}

OptionWords option_expects(const Option *o) {
    OptionWords words, range = option_range(o);
    const char *kind = "";
    if (option_is_whole(o)) kind = "a whole number from ";
    if (o->type == OPT_REAL) kind = "a number from ";
    if (o->type == OPT_TEXT) kind = o->argument;
    if (o->type == OPT_PERIOD) kind = "updates (100), tokens (50000tok), or 0 for never";
    snprintf(words.text, sizeof words.text, "%s%.120s", kind, range.text);
    return words;
}

// ---- parsing ----

const OptionHint *option_hints;

static const char *option_hint(const char *name, size_t length) {
    char plain[OPTION_NAME_MAX];
    const OptionHint *h = option_hints;
    if (length > sizeof plain) return NULL;
    for (size_t i = 0; i < length; i++) plain[i] = name[i] == '_' ? '-' : name[i];
    while (h && h->names && choice_index(h->names, plain, length) < 0) h++;
    return h ? h->words : NULL;
}

static bool option_unknown(const Option *table, int n, const char *arg, Error *err) {
    const char *name = arg + strspn(arg, "-");
    size_t length = strcspn(name, "=");
    Brief shown = brief(arg, (size_t)(name - arg) + length);
    const char *hint = length == 1 && name - arg == 2 ? NULL : option_hint(name, length);
    if (hint) return fail(err, "%s: unknown flag; %s", shown.text, hint);
    int near = option_nearest(table, n, name, length);
    if (near < 0) return fail(err, "%s: unknown flag; --help lists all flags", shown.text);
    return fail(err, "%s: unknown flag; the nearest is --%s", shown.text, table[near].name);
}

// Takes one flag, at argv[*i], and its value, which may be the argument after it.
static bool option_take(void *opts, const Option *table, int n, int *i, int argc, char **argv,
                        Error *err) {
    const char *arg = strcmp(argv[*i], "-h") == 0 ? "--help" : argv[*i], *equals = strchr(arg, '=');
    size_t length = equals ? (size_t)(equals - arg) : strlen(arg);
    int row = strncmp(arg, "--", 2) == 0 ? option_find(table, n, arg + 2, length - 2) : -1;
    if (row < 0) return option_unknown(table, n, arg, err);

    const Option *o = &table[row];
    ((Given *)opts)->set[row] = true;
    if (o->type == OPT_HELP || o->type == OPT_FLAG) {
        if (equals) return fail(err, "--%s: takes no value; write --%s alone", o->name, o->name);
        if (o->type == OPT_FLAG) *(bool *)((char *)opts + o->field) = true;
        return true;
    }

    OptionWords expects = option_expects(o);
    const char *text = equals ? equals + 1 : NULL;
    if (!text && *i + 1 < argc && strncmp(argv[*i + 1], "--", 2) != 0) text = argv[++*i];
    if (o->type == OPT_FROM && !text) {
        int64_t *from = (int64_t *)((char *)opts + o->field);
        *from = *from == OPTION_UNSET ? 0 : *from;         // --resume=5 --resume: from 5
        return true;
    }
    if (!text) return fail(err, "--%s: its value is missing; expected %s%s", o->name, expects.text,
                           o->type == OPT_TEXT ? " (if it begins with --: --NAME=VALUE)" : "");
    if (option_read(opts, o, text)) return true;
    return fail(err, "--%s: got '%s', expected %s%s", o->name, brief(text, strlen(text)).text,
                expects.text, o->type == OPT_FROM ? "; --out names the directory" : "");
}

// An argument that no flag takes. After a flag and a text, it may be that text's second word.
static bool option_stray(const Option *table, int n, int i, char **argv, Error *err) {
    const char *flag = i > 2 && strncmp(argv[i - 2], "--", 2) == 0 ? argv[i - 2] + 2 : "";
    int row = option_find(table, n, flag, strlen(flag));
    Brief word = brief(argv[i], strlen(argv[i]));
    if (row < 0 || table[row].type != OPT_TEXT)
        return fail(err, "'%s': expected a flag; --help lists all flags", word.text);
    return fail(err, "'%s': expected a flag; quote a value of several words, or with a *: "
                "--%s '...'", word.text, flag);
}

bool options_parse(void *opts, const Option *table, int n, int argc, char **argv,
                   char **positional, int *n_positional, Error *err) {
    assert(n <= OPTIONS_MAX);
    memset(opts, 0, sizeof(Given));
    for (int i = 0; i < n; i++) option_set_default(opts, &table[i]);
    if (positional) *n_positional = 0;
    bool flags_end = false;
    for (int i = 1; i < argc; i++) {
        bool dashed = argv[i][0] == '-' && argv[i][1] != '\0';   // a lone "-" names stdin
        if (!flags_end && strcmp(argv[i], "--") == 0) {
            flags_end = true;
        } else if (!flags_end && dashed) {
            if (!option_take(opts, table, n, &i, argc, argv, err)) return false;
            for (int k = 0; k < n; k++)
                if (table[k].type == OPT_HELP && ((Given *)opts)->set[k]) return true;
        } else if (positional) {
            positional[(*n_positional)++] = argv[i];
        } else {
            return option_stray(table, n, i, argv, err);
        }
    }
    return true;
}

// ---- --help ----

// Prints text with a hanging indent of `column`, where the cursor stands, and wraps at `width`.
static void print_wrapped(FILE *out, const char *text, int column, int width) {
    int at = column;
    while (*text) {
        int length = (int)strcspn(text, " ");
        if (at > column && at + 1 + length > width) {
            fprintf(out, "\n%*s", column, "");
            at = column;
        }
        at += fprintf(out, "%s%.*s", at > column ? " " : "", length, text);
        text += length + strspn(text + length, " ");
    }
    fprintf(out, "\n");
}

// "ZeRO's stage (0 to 3; default 1)". A wide range says little: it is named to who leaves it.
static void option_describe(char *out, size_t size, const Option *o) {
    OptionWords range = option_range(o);
    char value[200] = "";
    if (o->type != OPT_CHOICE && o->maximum > 4) range.text[0] = '\0';
    if (o->value && o->means) snprintf(value, sizeof value, "default %s: %s", o->value, o->means);
    else if (o->value) snprintf(value, sizeof value, "default %s", o->value);
    else if (o->means) snprintf(value, sizeof value, "default: %s", o->means);
    bool both = value[0] && range.text[0], none = !value[0] && !range.text[0];
    int used = snprintf(out, size, none ? "%s" : "%s (%s%s%s)", o->help, range.text,
                        both ? "; " : "", value);
    assert(used > 0 && (size_t)used < size);
    (void)used;
}

void options_help(FILE *out, const char *usage, const Option *table, int n) {
    const int column = 24, width = 100;
    const char *group = "";
    fprintf(out, "%s\n", usage);
    for (int i = 0; i < n; i++) {
        const Option *o = &table[i];
        char text[600];
        if (strcmp(group, o->group) != 0) fprintf(out, "\n%s\n", o->group);
        group = o->group;
        int at = fprintf(out, "  --%s%s%s", o->name, !o->argument || o->type == OPT_FROM ? "" : " ",
                         o->argument ? o->argument : "");
        if (at >= column - 1) at = fprintf(out, "\n") - 1;
        fprintf(out, "%*s", column - at, "");
        option_describe(text, sizeof text, o);
        print_wrapped(out, text, column, width);
    }
}

// ---- the configuration in the log ----

Shown option_key(const char *name) {
    Shown key = show_text("%s", name);
    for (char *p = key.text; *p; p++) if (*p == '-') *p = '_';
    return key;
}

static void option_echo(Log *log, const void *opts, const Option *o) {
    const void *field = (const char *)opts + o->field;
    Shown name = option_key(o->name);
    const char *key = name.text;
    if (o->type == OPT_FLAG) log_bool(log, key, *(const bool *)field);
    if (o->type == OPT_REAL)
        log_raw(log, key, exact_words(*(const double *)field, 9).text);    // --resume reads it
    if (o->type == OPT_TEXT) log_text(log, key, *(const char *const *)field);
    if (o->type == OPT_CHOICE) {
        const char *choice = o->choices;
        for (int i = *(const int *)field; i > 0; i--) choice = strchr(choice, '|') + 1;
        log_text_n(log, key, choice, strcspn(choice, "|"));
    }
    if (o->type == OPT_PERIOD) {
        const Period *p = (const Period *)field;
        unsigned long long n = p->n;
        log_raw(log, key, (p->in_tokens ? show_text("\"%llutok\"", n) : show_text("%llu", n)).text);
    }
    if (option_is_whole(o)) {
        int64_t value = o->type == OPT_INT ? *(const int *)field : *(const int64_t *)field;
        if (!o->value && value == OPTION_UNSET) log_raw(log, key, "null");
        else log_int(log, key, value);
    }
}

void options_echo(Log *log, const void *opts, const Option *table, int n) {
    for (int i = 0; i < n; i++) option_echo(log, opts, &table[i]);
}
