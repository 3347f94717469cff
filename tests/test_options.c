// The command line: the engine with a table of its own, then the trainers' table and its rules.
#define PROGRAM "test_options"
#include "../dev/train/options.h"
#include "test.h"

// ---- a table with one row of each type ----

typedef struct {
    Given given;
    bool loud;
    int heads, layers;
    int64_t tokens;
    double lr;
    const char *out;
    int rule;
    Period every;
} Small;

static const Option small_table[] = {
    { "loud", NULL, OPT_FLAG, offsetof(Small, loud), NULL, 0, 0, NULL, "a", "say more", NULL },
    { "heads", "N", OPT_INT, offsetof(Small, heads), "4", 1, 64, NULL, "a", "heads", NULL },
    { "layers", "N", OPT_INT, offsetof(Small, layers), NULL, 1, 64, NULL, "a", "layers", "any" },
    { "tokens", "N", OPT_COUNT, offsetof(Small, tokens), NULL, 0, 1e15, NULL, "b", "tokens", NULL },
    { "lr", "X", OPT_REAL, offsetof(Small, lr), "6e-4", 0, 10, NULL, "b", "rate", NULL },
    { "out", "A-LONG-WAY-TO-SAY-DIR", OPT_TEXT, offsetof(Small, out), NULL, 1, 0, NULL,
      "b", "directory", NULL },
    { "rule", "RULE", OPT_CHOICE, offsetof(Small, rule), "two", 0, 0, "one|two|three", "b", "rule",
      NULL },
    { "every", "N", OPT_PERIOD, offsetof(Small, every), "10", 0, 0, NULL, "b", "period", "ten" },
    { "help", NULL, OPT_HELP, 0, NULL, 0, 0, NULL, "c", "help", NULL },
};
enum { SMALL = (int)(sizeof small_table / sizeof small_table[0]) };

// The words of one command line; `words` keeps them alive, since texts point into them.
typedef struct { char text[600]; char *argv[40]; int argc; } Line;

static void line_split(Line *line, const char *words) {
    snprintf(line->text, sizeof line->text, "program %s", words);
    line->argc = 0;
    for (char *w = strtok(line->text, " "); w; w = strtok(NULL, " ")) line->argv[line->argc++] = w;
}

static bool small_parse(Small *s, Line *line, const char *words, Error *err) {
    line_split(line, words);
    return options_parse(s, small_table, SMALL, line->argc, line->argv, NULL, NULL, err);
}

static void small_refused(const char *words, const char *message) {
    Small s;
    Line line;
    Error err = { "" };
    CHECK_MSG(!small_parse(&s, &line, words, &err), "accepted: %s", words);
    CHECK_MSG(strcmp(err.text, message) == 0, "%s\n     says  %s\n     not   %s", words, err.text,
              message);
}

TEST(defaults) {
    Small s;
    Line line;
    Error err;
    memset(&s, 0xA5, sizeof s);
    CHECK(small_parse(&s, &line, "", &err));
    CHECK(!s.loud && s.heads == 4 && s.layers == OPTION_UNSET && s.tokens == OPTION_UNSET);
    CHECK(s.lr == 6e-4 && s.out == NULL && s.rule == 1);
    CHECK(s.every.n == 10 && !s.every.in_tokens
          && !memchr(s.given.set, true, sizeof s.given.set));
}

TEST(both_ways_of_writing) {
    static const char *const lines[2] = {
        "--loud --heads 8 --layers 2 --tokens 1e9 --lr 0.5 --out a=b --rule three --every 5e4tok",
        "--loud --heads=8 --layers=2 --tokens=1e9 --lr=.5 --out=a=b --rule=three --every=50000tok",
    };
    for (int i = 0; i < 2; i++) {
        Small s;
        Line line;
        Error err;
        CHECK(small_parse(&s, &line, lines[i], &err));
        CHECK(s.loud && s.heads == 8 && s.layers == 2 && s.tokens == 1000000000);
        CHECK(s.lr == 0.5 && strcmp(s.out, "a=b") == 0 && s.rule == 2);
        CHECK(s.every.n == 50000 && s.every.in_tokens);
        for (int k = 0; k < SMALL - 1; k++)
            CHECK(options_given(&s, small_table, SMALL, small_table[k].name));
        CHECK(!options_given(&s, small_table, SMALL, "help"));
    }
}

TEST(given_is_not_the_same_as_default) {
    Small s;
    Line line;
    Error err;
    CHECK(small_parse(&s, &line, "--heads 4", &err));
    CHECK(options_given(&s, small_table, SMALL, "heads"));
    CHECK(!options_given(&s, small_table, SMALL, "lr"));
}

TEST(the_last_of_two_counts) {
    Small s;
    Line line;
    Error err;
    CHECK(small_parse(&s, &line, "--lr 1 --heads 2 --lr=3 --loud --loud", &err));
    CHECK(s.lr == 3.0 && s.heads == 2 && s.loud);
}

TEST(messages) {
    small_refused("--haeds 3", "--haeds: unknown flag; the nearest is --heads");
    small_refused("--learnig-rate=1", "--learnig-rate: unknown flag; the nearest is --lr");
    small_refused("-lr 1", "-lr: unknown flag; the nearest is --lr");
    small_refused("--zzzzzz", "--zzzzzz: unknown flag; --help lists all flags");
    small_refused("--=3", "--: unknown flag; --help lists all flags");
    small_refused("--heads", "--heads: its value is missing; expected a whole number from 1 to 64");
    small_refused("--heads --lr 1",
                  "--heads: its value is missing; expected a whole number from 1 to 64");
    small_refused("--out", "--out: its value is missing; expected A-LONG-WAY-TO-SAY-DIR (if "
                           "it begins with --: --NAME=VALUE)");
    small_refused("--heads x", "--heads: got 'x', expected a whole number from 1 to 64");
    small_refused("--heads=", "--heads: got '', expected a whole number from 1 to 64");
    small_refused("--lr -1", "--lr: got '-1', expected a number from 0 to 10");
    small_refused("--out=", "--out: got '', expected A-LONG-WAY-TO-SAY-DIR");
    small_refused("--rule four", "--rule: got 'four', expected one, two or three");
    small_refused("--rule tw", "--rule: got 'tw', expected one, two or three");
    small_refused("--rule one|two", "--rule: got 'one|two', expected one, two or three");
    small_refused("--every 5x", "--every: got '5x', expected updates (100), tokens (50000tok), "
                                "or 0 for never");
    small_refused("--loud=1", "--loud: takes no value; write --loud alone");
    small_refused("file", "'file': expected a flag; --help lists all flags");
}

// Whatever the user pastes, the message stays one line of bounded length.
TEST(one_line_whatever_is_given) {
    char name[3000], value[3000];
    memset(name, 'q', sizeof name);
    memset(value, '\n', sizeof value);
    memcpy(name, "--", 2);
    name[2999] = value[2999] = '\0';
    char program[] = "p", heads[] = "--heads", torn[] = "--he\x1b[1m\nads";
    char *lines[4][3] = { { program, name, value }, { program, value, NULL },
                          { program, heads, value }, { program, torn, NULL } };
    for (int i = 0; i < 4; i++) {
        Small s;
        Error err = { "" };
        int argc = lines[i][2] ? 3 : 2;
        CHECK(!options_parse(&s, small_table, SMALL, argc, lines[i], NULL, NULL, &err));
        CHECK_MSG(err.text[0] && !strpbrk(err.text, "\n\x1b") && strlen(err.text) < 150, "%d: %s",
                  i, err.text);
    }
}

TEST(positional_arguments) {
    Small s;
    Line line;
    Error err;
    char *files[40];
    int n = -1;
    line_split(&line, "a --lr 1 b - --loud -- --heads -x");
    CHECK(options_parse(&s, small_table, SMALL, line.argc, line.argv, files, &n, &err));
    CHECK(n == 5 && s.loud && s.lr == 1 && s.heads == 4);
    static const char *const want[5] = { "a", "b", "-", "--heads", "-x" };
    for (int i = 0; i < 5 && n == 5; i++) CHECK(strcmp(files[i], want[i]) == 0);
    line_split(&line, "--lr 1");
    CHECK(options_parse(&s, small_table, SMALL, line.argc, line.argv, files, &n, &err) && n == 0);
}

// --help helps whatever follows it; -h is the same.
TEST(help_ends_the_parsing) {
    Small s;
    Line line;
    Error err;
    CHECK(small_parse(&s, &line, "--help --nonsense", &err));
    CHECK(options_given(&s, small_table, SMALL, "help"));
    CHECK(small_parse(&s, &line, "-h --heads x", &err));
    CHECK(options_given(&s, small_table, SMALL, "help"));
    small_refused("--help=1", "--help: takes no value; write --help alone");
}

TEST(edit_distances) {
    static const struct { const char *a, *b; int want; } cases[] = {
        { "", "", 0 }, { "lr", "", 2 }, { "", "lr", 2 }, { "lr", "lr", 0 }, { "lr", "rl", 1 },
        { "kitten", "sitting", 3 }, { "ca", "abc", 3 }, { "haeds", "heads", 1 },
        { "heads", "heds", 1 }, { "heads", "headds", 1 }, { "heads", "hexds", 1 },
        { "abcdef", "badcfe", 3 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *a = cases[i].a, *b = cases[i].b;
        int got = edit_distance(a, (int)strlen(a), b, (int)strlen(b));
        CHECK_MSG(got == cases[i].want, "%s to %s: %d, not %d", a, b, got, cases[i].want);
    }
}

TEST(numbers_alone) {
    double x;
    CHECK(number_read(&x, "1e3") && x == 1000 && number_read(&x, "-.5E-1") && x == -0.05);
    CHECK(!number_read(&x, "1e-400") && !number_read(&x, "-1e-999") && number_read(&x, "0e-999"));
    CHECK(!number_read(&x, "1e999") && !number_read(&x, "nan") && !number_read(&x, "0x1"));
    CHECK(whole_read(&x, "1.5e1") && x == 15 && !whole_read(&x, "1.55e1"));
    static const struct { double x; const char *want; } cases[] = {
        { 0, "0" }, { 0.000001, "1e-6" }, { 6e-4, "0.0006" }, { 1e15, "1e15" }, { 65536, "65536" },
        { 1e6, "1e6" }, { 1234567, "1234567" }, { 9007199254740992.0, "9007199254740992" },
        { 0.999999, "0.999999" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[32];
        number_words(text, cases[i].x);
        CHECK_MSG(strcmp(text, cases[i].want) == 0, "%s, not %s", text, cases[i].want);
    }
}

// What `write` prints, in memory; the caller frees it.
static char *printed(void (*write)(FILE *out)) {
    char *text = (char *)alloc_or_die(1 << 16, "a test's text");
    FILE *f = tmpfile();
    if (!f) die("a temporary file cannot be made");
    write(f);
    rewind(f);
    size_t n = fread(text, 1, (1 << 16) - 1, f);
    text[n] = '\0';
    fclose(f);
    return text;
}

static void small_help(FILE *out) { options_help(out, "usage: small", small_table, SMALL); }

TEST(help_as_printed) {
    char *text = printed(small_help);
    const char *want = "usage: small\n"
        "\na\n"
        "  --loud                say more\n"
        "  --heads N             heads (default 4; 1 to 64)\n"
        "  --layers N            layers (default: any; 1 to 64)\n"
        "\nb\n"
        "  --tokens N            tokens (0 to 1e15)\n"
        "  --lr X                rate (default 6e-4; 0 to 10)\n"
        "  --out A-LONG-WAY-TO-SAY-DIR\n"
        "                        directory\n"
        "  --rule RULE           rule (default two; one, two or three)\n"
        "  --every N             period (default 10: ten)\n"
        "\nc\n"
        "  --help                help\n";
    CHECK_MSG(strcmp(text, want) == 0, "%s", text);
    free(text);
}

// The echo of a command line, read back from the log's own buffer.
static void check_echo(const char *words, const char *want) {
    Small s;
    Line line;
    Error err;
    Log log;
    CHECK(small_parse(&s, &line, words, &err));
    CHECK(log_open(&log, "/dev/null", LOG_ANY, &err));
    log_begin(&log, "start");
    options_echo(&log, &s, small_table, SMALL);
    log_bytes(&log, "", 1);
    CHECK_MSG(strcmp(log.line, want) == 0, "%s\n     not %s", log.line, want);
    CHECK(log_close(&log, &err));
}

TEST(echo) {
    check_echo("", "{\"event\":\"start\",\"loud\":false,\"heads\":4,\"layers\":null,"
               "\"tokens\":null,\"lr\":0.0006,\"out\":null,\"rule\":\"two\",\"every\":10");
    check_echo("--loud --layers 3 --tokens 1e15 --out a\"b --rule one --every 50000tok",
               "{\"event\":\"start\",\"loud\":true,\"heads\":4,\"layers\":3,"
               "\"tokens\":1000000000000000,\"lr\":0.0006,\"out\":\"a\\\"b\",\"rule\":\"one\","
               "\"every\":\"50000tok\"");
    Line line;
    TrainOptions o;
    Error err;
    line_split(&line, "--data d");
    CHECK(train_options_parse(&o, line.argc, line.argv, &err));
    Log log;
    CHECK(log_open(&log, "/dev/null", LOG_ANY, &err));
    log_begin(&log, "start");
    train_options_echo(&log, &o);
    log_bytes(&log, "", 1);
    CHECK(strstr(log.line, "\"final_lr_frac\":0.1,") && strstr(log.line, "\"steps\":1000,"));
    CHECK(log_close(&log, &err));
}

// ---- the trainers' table ----

// One flag on its own, through the engine alone: the rules between flags come later.
static bool train_one(TrainOptions *o, const char *name, const char *value, Error *err) {
    char program[] = "p", flag[100];
    snprintf(flag, sizeof flag, "--%s", name);
    char *argv[3] = { program, flag, (char *)value };
    return options_parse(o, train_table, TRAIN_OPTIONS, value ? 3 : 2, argv, NULL, NULL, err);
}

static void train_one_refused(const char *name, const char *value) {
    TrainOptions o;
    Error err = { "" };
    char start[100];
    snprintf(start, sizeof start, "--%s: got '", name);
    CHECK_MSG(!train_one(&o, name, value, &err), "--%s accepted '%s'", name, value);
    CHECK_MSG(strncmp(err.text, start, strlen(start)) == 0, "--%s %s: %s", name, value, err.text);
}

static bool is_number(const Option *o) {
    return o->type == OPT_INT || o->type == OPT_COUNT || o->type == OPT_REAL;
}

// A value that the row takes: its default, or one made up for a row that has none.
static const char *sample_value(const Option *o) {
    if (o->type == OPT_HELP || o->type == OPT_FLAG) return NULL;
    return o->value ? o->value : is_number(o) ? "1" : "text";
}

static int compare_bits(const TrainOptions *a, const TrainOptions *b) {
    return memcmp((const char *)a + sizeof(Given), (const char *)b + sizeof(Given),
                  sizeof *a - sizeof(Given));
}

// A flag given with its own default changes nothing but that it was given.
TEST(every_default_is_accepted) {
    for (int i = 0; i < TRAIN_OPTIONS; i++) {
        TrainOptions given, plain;
        Error err = { "" };
        char program[] = "p", *argv[1] = { program };
        const Option *o = &train_table[i];
        memset(&given, 0, sizeof given);
        memset(&plain, 0, sizeof plain);
        CHECK(options_parse(&plain, train_table, TRAIN_OPTIONS, 1, argv, NULL, NULL, &err));
        CHECK_MSG(train_one(&given, o->name, sample_value(o), &err), "%s", err.text);
        CHECK(train_options_given(&given, o->name) && !train_options_given(&plain, o->name));
        if (o->value && o->type != OPT_TEXT)
            CHECK_MSG(compare_bits(&given, &plain) == 0, "--%s %s is not its default", o->name,
                      o->value);
    }
}

TEST(defaults_are_the_promised_ones) {
    Line line;
    TrainOptions o;
    Error err;
    line_split(&line, "--data d");
    CHECK(train_options_parse(&o, line.argc, line.argv, &err));
    CHECK(strcmp(o.init, "d4") == 0 && o.layers == -1 && o.heads == -1 && o.channels == -1);
    CHECK(o.seq_len == 0 && o.micro_batch == 8 && o.batch_tokens == 0);
    CHECK(o.lr == 6e-4 && o.lr_schedule == LR_COSINE && o.warmup_tokens == 0);
    CHECK(o.final_lr_frac == 0.1 && o.weight_decay == 0.1 && o.beta1 == 0.9 && o.beta2 == 0.95);
    CHECK(o.clip == 1 && o.steps == 1000 && o.tokens == -1 && o.target_loss == 0);
    CHECK(o.eval_every.n == 100 && !o.eval_every.in_tokens && o.sample_every.n == 0);
    CHECK(o.eval_tokens == 65536 && o.max_new == 256 && o.temperature == 0.8);
    CHECK(o.top_k == 0 && o.top_p == 1 && o.threads == 0 && o.seed == 1337 && !o.overwrite);
    CHECK(o.recompute == 0 && !o.tf32 && strcmp(o.tune, "on") == 0 && o.graph == 1);
    CHECK(!o.help && !o.train && !o.val && !o.tokenizer && !o.log && !o.out && !o.generate);
    CHECK(!o.hellaswag);
}

TEST(rows_are_well_formed) {
    for (int i = 0; i < TRAIN_OPTIONS; i++) {
        const Option *o = &train_table[i];
        CHECK(strlen(o->name) >= 2 && strlen(o->name) <= OPTION_NAME_MAX);
        CHECK(o->field < sizeof(TrainOptions) && (o->field || o->type == OPT_HELP));
        for (int k = 0; k < i; k++) {
            CHECK_MSG(strcmp(o->name, train_table[k].name) != 0, "--%s twice", o->name);
            CHECK_MSG(o->field != train_table[k].field, "--%s and --%s share a field", o->name,
                      train_table[k].name);
        }
        if (is_number(o)) CHECK(o->minimum <= o->maximum && o->maximum <= 9007199254740992.0);
        if (o->type == OPT_INT) CHECK(o->maximum <= INT_MAX);
    }
    size_t length;
    const char *names = NULL;
    for (int i = 0; i < TRAIN_OPTIONS; i++)
        if (strcmp(train_table[i].name, "lr-schedule") == 0) names = train_table[i].choices;
    CHECK(names && strncmp(choice_name(names, LR_CONSTANT, &length), "constant", 8) == 0);
    CHECK(names && strncmp(choice_name(names, LR_LINEAR, &length), "linear", 6) == 0);
    CHECK(names && strncmp(choice_name(names, LR_COSINE, &length), "cosine", 6) == 0);
    CHECK(names && strncmp(choice_name(names, LR_WSD, &length), "wsd", 3) == 0);
}

// The flags in --help are exactly those that are accepted, each with its default in the text.
TEST(help_names_every_flag) {
    char *text = printed(train_options_help);
    int seen = 0;
    for (char *s = text, *end; *s; s = end + 1) {
        end = s + strcspn(s, "\n");
        CHECK_MSG(end - s <= 100, "%d columns: %.40s", (int)(end - s), s);
        CHECK_MSG(end == s || end[-1] != ' ', "a space ends: %.40s", s);
        if (strncmp(s, "  --", 4) != 0) continue;
        size_t length = strcspn(s + 4, " \n");
        int row = option_find(train_table, TRAIN_OPTIONS, s + 4, length);
        CHECK_MSG(row == seen, "--%.*s is not row %d", (int)length, s + 4, seen);
        seen++;
    }
    CHECK(seen == TRAIN_OPTIONS);
    for (char *s = text; *s; s++)                       // undo the wrapping
        if (*s == '\n') *s = ' ';
    for (int i = 0; i < TRAIN_OPTIONS; i++) {
        char want[64];
        snprintf(want, sizeof want, "--%s ", train_table[i].name);
        char *at = strstr(text, want);
        const char *value = train_table[i].value;
        CHECK(at);
        CHECK_MSG(!value || (at && strstr(at, value)), "--%s hides its default", want);
    }
    free(text);
}

// Refused, and the name of row i suggested, unless another flag is as near.
static void check_mutation(int i, const char *mutant) {
    TrainOptions o;
    Error err = { "" };
    int length = (int)strlen(mutant);
    if (option_find(train_table, TRAIN_OPTIONS, mutant, (size_t)length) >= 0) return;
    CHECK_MSG(!train_one(&o, mutant, "1", &err), "--%s accepted", mutant);
    const char *is = strstr(err.text, "the nearest is --");
    CHECK_MSG(is, "--%s: %s", mutant, err.text);
    if (!is) return;
    const char *nearest = is + strlen("the nearest is --");
    int row = option_find(train_table, TRAIN_OPTIONS, nearest, strlen(nearest));
    CHECK(row >= 0);
    bool as_near = edit_distance(mutant, length, nearest, (int)strlen(nearest)) <= 1;
    CHECK_MSG(row == i || as_near, "--%s suggests --%s", mutant, nearest);
}

TEST(every_slip_is_refused_with_the_nearest) {
    for (int i = 0; i < TRAIN_OPTIONS; i++) {
        const char *name = train_table[i].name;
        int n = (int)strlen(name);
        char mutant[OPTION_NAME_MAX + 8];
        for (int k = 0; k < n; k++) {
            snprintf(mutant, sizeof mutant, "%.*s%s", k, name, name + k + 1);         // one lost
            check_mutation(i, mutant);
            snprintf(mutant, sizeof mutant, "%.*sq%s", k, name, name + k + 1);        // replaced
            check_mutation(i, mutant);
            snprintf(mutant, sizeof mutant, "%.*sq%s", k, name, name + k);            // one more
            check_mutation(i, mutant);
            snprintf(mutant, sizeof mutant, "%s", name);                              // swapped
            if (k + 1 < n) mutant[k] = name[k + 1], mutant[k + 1] = name[k];
            check_mutation(i, mutant);
        }
    }
}

TEST(garbage_numbers) {
    static const char *const garbage[] = {
        "", "x", "1x", "x1", "0x10", "nan", "NAN", "inf", "-inf", "infinity", "1e999", "-1e999",
        "-1", "-5", "-9999999999999999999999", "99999999999999999999999999", "1e", "e5", ".", "+",
        "-", "1,5", "1 ", " 1", "1 2", "1\n", "1.5.2", "1k", "1e15.5", "\xC2\xBD",
    };
    for (int i = 0; i < TRAIN_OPTIONS; i++) {
        const Option *o = &train_table[i];
        if (!is_number(o) && o->type != OPT_PERIOD) continue;
        for (size_t k = 0; k < sizeof garbage / sizeof garbage[0]; k++)
            train_one_refused(o->name, garbage[k]);
        if (o->type != OPT_REAL) train_one_refused(o->name, "1.5");
        if (o->type != OPT_REAL) train_one_refused(o->name, "1e-1");
        if (is_number(o) && o->minimum > 0) train_one_refused(o->name, "0");
    }
    train_one_refused("eval-every", "tok");
    train_one_refused("eval-every", "5toks");
    train_one_refused("eval-every", "5 tok");
    train_one_refused("eval-every", "-5tok");
    train_one_refused("eval-every", "1e16");
    train_one_refused("eval-every", "000000000000000000000000000000000000001");
}

// Both ends of a range are in it, as --help writes them; one step further is not.
TEST(ranges) {
    for (int i = 0; i < TRAIN_OPTIONS; i++) {
        const Option *o = &train_table[i];
        if (!is_number(o)) continue;
        TrainOptions t;
        Error err = { "" };
        char text[32], past[40];
        CHECK_MSG(train_one(&t, o->name, number_words(text, o->minimum), &err), "%s", err.text);
        CHECK_MSG(train_one(&t, o->name, number_words(text, o->maximum), &err), "%s", err.text);
        bool real = o->type == OPT_REAL;
        snprintf(past, sizeof past, "%.17g", real ? o->maximum * 1.000001 : o->maximum + 1);
        train_one_refused(o->name, past);
        snprintf(past, sizeof past, "%.17g", real ? o->minimum * 0.999 - 1e-300 : o->minimum - 1);
        train_one_refused(o->name, past);
    }
}

// ---- rules between flags ----

static void accepted(TrainOptions *o, Line *line, const char *words) {
    Error err = { "" };
    line_split(line, words);
    CHECK_MSG(train_options_parse(o, line->argc, line->argv, &err), "%s: %s", words, err.text);
}

static void refused(const char *words, const char *start, const char *holds) {
    TrainOptions o;
    Line line;
    Error err = { "" };
    line_split(&line, words);
    CHECK_MSG(!train_options_parse(&o, line.argc, line.argv, &err), "accepted: %s", words);
    CHECK_MSG(strncmp(err.text, start, strlen(start)) == 0 && strstr(err.text, holds),
              "%s: %s", words, err.text);
}

TEST(data_is_named_once) {
    TrainOptions o;
    Line line;
    refused("", "--data: ", "prepare tales --out DIR");
    refused("--val v", "--data: ", "nothing to train on");
    refused("--data d --train t", "--data: ", "names both splits");
    refused("--data d --val v", "--data: ", "names both splits");
    accepted(&o, &line, "--train t --val v");
    refused("--train t", "--val: ", "--train needs --val");
    refused("--val v --steps 0", "--data: ", "nothing to train on");
    accepted(&o, &line, "--generate=Once");
    accepted(&o, &line, "--help --train");
    CHECK(o.help);
}

TEST(generate_takes_no_flag_of_training) {
    TrainOptions o;
    Line line;
    accepted(&o, &line, "--generate=Once --init m --tokenizer t --data d --seq-len 8 --max-new 3 "
             "--temperature 1 --top-k 2 --top-p 0.5 --threads 2 --seed 3");
    accepted(&o, &line, "--generate=Once --resume --out m");
    refused("--generate=Once --out m", "--out: is for training", "--init DIR");
    static const char *const words[] = {
        "--train g", "--val g", "--micro-batch 2", "--batch-tokens 8", "--batch-schedule constant",
        "--batch-lr sqrt", "--batch-beta2 halflife", "--noise-scale", "--lr 1",
        "--lr-schedule wsd", "--warmup-tokens 2", "--final-lr-frac 0", "--weight-decay 0",
        "--beta1 0", "--beta2 0", "--clip 0", "--steps 3", "--tokens 3", "--target-loss 1",
        "--eval-every 1", "--eval-tokens 1", "--sample-every 1", "--hellaswag f", "--log f",
        "--save-every 1", "--keep 1", "--overwrite", "--on-save-error stop", "--zero 1",
        "--outer-every 1", "--outer-lr 1", "--outer-momentum 0", "--comm-dtype bf16",
        "--comm own", "--exact-sum", "--no-overlap", "--timeout 9", "--recompute block",
        "--graph off", "--skip-outliers 4", "--hellaswag-every 5",
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        char given[80], start[80];
        snprintf(given, sizeof given, "%s --generate=Once --init m", words[i]);
        snprintf(start, sizeof start, "%.*s: ", (int)strcspn(words[i], " "), words[i]);
        refused(given, start, "is for training, and --generate only reads");
    }
}

TEST(export_reads_a_checkpoint_and_nothing_else) {
    TrainOptions o;
    Line line;
    accepted(&o, &line, "--export=m.gguf --init m --tokenizer t --data d --threads 2");
    CHECK(strcmp(o.export_file, "m.gguf") == 0 && o.export_dtype == EXPORT_FP32);
    accepted(&o, &line, "--export a.b/m.gguf --export-dtype fp16 --resume --out m");
    CHECK(o.export_dtype == EXPORT_FP16);
    refused("--export m.gguf --out m", "--out: is for training", "--export only reads");
    refused("--export m.gguf --init m --seed 3", "--seed: is for training", "--init DIR");
    refused("--export m.gguf --init m --temperature 1", "--temperature: ", "leave it out");
    refused("--export m.gguf --init m --generate x", "--export: ", "give one of them");
    refused("--export a.gguf/m --init m", "--export: ", "must end in .gguf");
    refused("--export model --init m", "--export: ", "must end in .gguf");
    refused("--export-dtype fp16 --data d", "--export-dtype: ", "add it");
    refused("--export-dtype bf16 --export m.gguf", "--export-dtype: ", "fp32 or fp16");
}

TEST(model_is_named_once) {
    TrainOptions o;
    Line line;
    accepted(&o, &line, "--data d --layers 2 --heads 3 --channels 48");
    CHECK(o.layers == 2 && o.heads == 3 && o.channels == 48);
    refused("--data d --init d6 --layers 2 --heads 2 --channels 8", "--layers: ", "--init");
    refused("--data d --init d4 --channels 8", "--channels: ", "--init");
    refused("--data d --layers 2 --heads 2", "--layers: needs --channels", "too");
    refused("--data d --channels 8 --layers 2", "--layers: needs --heads", "too");
    refused("--data d --heads 2 --channels 8", "--heads: needs --layers", "too");
    refused("--data d --heads 2", "--heads: needs --layers", "too");
}

TEST(heads_divide_channels) {
    refused("--data d --layers 1 --heads 5 --channels 128", "--heads: 5 ", "128 channels; 4 and 8");
    refused("--data d --layers 1 --heads 7 --channels 100", "--heads: 7 ", "5 and 10 do");
    refused("--data d --layers 1 --heads 2 --channels 7", "--heads: 2 ", "1 and 7 do");
    refused("--data d --layers 1 --heads 200 --channels 7", "--heads: 200 ", "; 7 does");
}

TEST(length_is_settled) {
    TrainOptions o;
    Line line;
    accepted(&o, &line, "--data d --steps 0");
    CHECK(o.steps == 0 && o.tokens == -1);
    accepted(&o, &line, "--data d --steps 7 --target-loss 2");
    CHECK(o.steps == 7 && o.target_loss == 2);
    accepted(&o, &line, "--data d --tokens 1e6");
    CHECK(o.steps == -1 && o.tokens == 1000000);
    accepted(&o, &line, "--data d --target-loss 1.5 --lr-schedule constant");
    RunLength run = train_options_length(&o);
    CHECK(run.steps == -1 && run.tokens == -1 && run.target_loss == 1.5);
    refused("--data d --steps 5 --tokens 5", "--tokens: ", "one or the other");
    refused("--data d --target-loss 1.5", "--lr-schedule: ", "--tokens N");
    refused("--data d --target-loss 1.5 --lr-schedule wsd", "--lr-schedule: ", "constant");
}

TEST(outliers_are_far_and_of_all_ranks) {
    TrainOptions o;
    Line line;
    accepted(&o, &line, "--data d --skip-outliers 3.5");
    CHECK(o.skip_outliers == 3.5);
    accepted(&o, &line, "--data d --skip-outliers 1");
    accepted(&o, &line, "--data d --skip-outliers 0 --outer-every 5");
    CHECK(o.skip_outliers == 0.0);
    refused("--data d --skip-outliers 0.5", "--skip-outliers: 0.5 standard", "give 1 or more");
    refused("--data d --skip-outliers -3", "--skip-outliers: got '-3'", "from 0 to 100");
    refused("--data d --skip-outliers nan", "--skip-outliers: got 'nan'", "from 0 to 100");
    refused("--data d --skip-outliers 1e9", "--skip-outliers: got '1e9'", "from 0 to 100");
    refused("--data d --skip-outliers 3 --outer-every 5", "--skip-outliers: ", "--outer-every");
}

TEST(hellaswag_every_needs_its_file) {
    TrainOptions o;
    Line line;
    accepted(&o, &line, "--data d --hellaswag f --hellaswag-every 250");
    CHECK(o.hellaswag_every.n == 250 && !o.hellaswag_every.in_tokens);
    accepted(&o, &line, "--data d --hellaswag f --hellaswag-every 5e4tok");
    CHECK(o.hellaswag_every.n == 50000 && o.hellaswag_every.in_tokens);
    accepted(&o, &line, "--data d --hellaswag-every 0");
    refused("--data d --hellaswag-every 5", "--hellaswag-every: needs --hellaswag FILE", "fetch");
}

// Both trainers know the flags of a GPU; the one for CPUs, as which this is built, refuses them.
TEST(flags_of_a_gpu) {
    TrainOptions o;
    Line line;
    Error err = { "" };
    refused("--data d --tf32", "--tf32: ", "train_gpt2cu");
    refused("--data d --comm nccl", "--comm: needs a GPU", "train_gpt2cu");
    refused("--data d --recompute block", "--recompute: ", "train_gpt2cu");
    refused("--data d --recompute none", "--recompute: ", "train_gpt2cu");
    refused("--data d --tune off", "--tune: ", "train_gpt2cu");
    refused("--data d --graph off", "--graph: ", "train_gpt2cu");
    line_split(&line, "--data d --recompute block --tf32 --graph off");
    CHECK(options_parse(&o, train_table, TRAIN_OPTIONS, line.argc, line.argv, NULL, NULL, &err));
    CHECK(o.tf32 && o.recompute == 1 && o.graph == 0);
    CHECK_MSG(train_options_check_machine(&o, true, &err), "%s", err.text);
    CHECK(!train_options_check_machine(&o, false, &err));
    static const char *const tunes[] = { "on", "off", "again", "runs/tune.json", "./tune" };
    for (int i = 0; i < 5; i++) {
        o.tune = tunes[i];
        CHECK_MSG(train_options_check_machine(&o, true, &err), "%s", err.text);
    }
    o.tune = "of";                                           // a misspelt word is no file
    CHECK(!train_options_check_machine(&o, true, &err) && strstr(err.text, "of.json"));
}

// Whether a run goes on from a state.json of these flags; line and json outlive the texts of o.
static bool restored(TrainOptions *o, Line *line, Json *json, const char *saved, Error *err) {
    CHECK_MSG(json_parse(json, saved, strlen(saved), err), "%s", err->text);
    accepted(o, line, "--resume --out o");
    return train_options_restore(o, json->root, err);
}

// Going on with a GPU's run, a CPU takes over all but those.
TEST(a_cpu_goes_on_with_a_run_of_a_gpu) {
    static const char saved[] = "{\"data\":\"d\",\"seed\":7,\"recompute\":\"block\","
                                "\"tf32\":true,\"tune\":\"again\",\"graph\":\"off\","
                                "\"comm\":\"nccl\","
                                "\"steps\":9}";
    TrainOptions o;
    Line line;
    Json json;
    Error err = { "" };
    CHECK_MSG(restored(&o, &line, &json, saved, &err), "%s", err.text);
    CHECK(strcmp(o.data, "d") == 0 && o.seed == 7 && o.steps == 9);
    CHECK(o.recompute == 0 && !o.tf32 && !train_options_given(&o, "tf32") && o.comm == 0);
    CHECK(strcmp(o.tune, "on") == 0 && o.graph == 1);
    CHECK_MSG(train_options_check(&o, &err), "%s", err.text);
    json_free(&json);
}

// A damaged state.json: a flag whose value is no number and no text is refused by name. That value
// has no characters of its own, and nothing may read those that follow it.
TEST(saved_flags_of_another_type_are_refused) {
    static const char *const cases[][2] = {
        { "{\"data\":true}", "--data " }, { "{\"data\":[true]}", "--data " },
        { "{\"steps\":{}}", "--steps " }, { "{\"lr_schedule\":false}", "--lr-schedule " },
        { "{\"eval_every\":[]}", "--eval-every " }, { "{\"init\":true}", "--init " },
        { "{\"layers\":[2]}", "--layers " },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        TrainOptions o;
        Line line;
        Json json;
        Error err = { "" };
        CHECK_MSG(!restored(&o, &line, &json, cases[i][0], &err), "%s", cases[i][0]);
        CHECK_MSG(strstr(err.text, "state.json: ") && strstr(err.text, cases[i][1]), "%s: %s",
                  cases[i][0], err.text);
        json_free(&json);
    }
}

// No run that saved anything was a plan, and --plan refuses --resume.
TEST(a_resumed_run_is_no_plan) {
    static const char saved[] = "{\"data\":\"d\",\"plan\":true,\"plan_search\":true,"
                                "\"plan_gpu\":\"h100,8\"}";
    TrainOptions o;
    Line line;
    Json json;
    Error err = { "" };
    CHECK_MSG(restored(&o, &line, &json, saved, &err), "%s", err.text);
    CHECK(!o.plan && !o.plan_search && !o.plan_gpu);
    json_free(&json);
}

static void batch_refused(const char *words, int T, const char *want) {
    TrainOptions o;
    Line line;
    Error err = { "" };
    accepted(&o, &line, words);
    CHECK(!train_options_batch(&o, T, 1, &err));
    CHECK_MSG(strcmp(err.text, want) == 0, "%s\n     not %s", err.text, want);
}

TEST(batch_is_whole_micro_batches) {
    TrainOptions o;
    Line line;
    Error err;
    accepted(&o, &line, "--data d");
    CHECK(train_options_batch(&o, 256, 1, &err) && o.batch_tokens == 2048);
    accepted(&o, &line, "--data d --micro-batch 3 --batch-tokens 84");
    CHECK(train_options_batch(&o, 7, 1, &err) && o.batch_tokens == 84);
    batch_refused("--data d --batch-tokens 5000", 256, "--batch-tokens: 5000 is not a multiple of "
                  "2048, which is micro-batch 8 times seq-len 256; the nearest is 4096");
    batch_refused("--data d --batch-tokens 6000 --micro-batch 8", 256, "--batch-tokens: 6000 is "
                  "not a multiple of 2048, which is micro-batch 8 times seq-len 256; the nearest "
                  "is 6144");
    batch_refused("--data d --batch-tokens 1", 256, "--batch-tokens: 1 is not a multiple of 2048, "
                  "which is micro-batch 8 times seq-len 256; the nearest is 2048");
}

static bool rate(LrSchedule *s, const char *words, Error *err) {
    TrainOptions o;
    Line line;
    accepted(&o, &line, words);
    return train_options_batch(&o, 64, 1, err) && train_options_lr(s, &o, err);
}

TEST(rate_follows_the_flags) {
    LrSchedule s;
    Error err = { "" };
    CHECK(rate(&s, "--data d --steps 10 --warmup-tokens 640 --final-lr-frac 0.5", &err));
    CHECK(s.rule == LR_COSINE && s.lr == 6e-4 && s.final_frac == 0.5);
    CHECK(s.warmup == 640 && s.horizon == 10 * 8 * 64);
    CHECK(lr_at(&s, 640) == 6e-4 && lr_at(&s, 5120) == 3e-4);
    CHECK(rate(&s, "--data d --tokens 1e15 --lr-schedule wsd --lr 1", &err));
    CHECK(s.rule == LR_WSD && s.horizon == 1000000000000000u);
    CHECK(rate(&s, "--data d --steps 1e8 --batch-tokens 512e6", &err));
    CHECK(s.horizon == 51200000000000000u);
    CHECK(!rate(&s, "--data d --steps 1 --warmup-tokens 513", &err));
    const char *want = "--warmup-tokens: 513 is more than the 512 tokens of the whole run";
    CHECK_MSG(strcmp(err.text, want) == 0, "%s", err.text);
    CHECK(rate(&s, "--data d --steps 1 --warmup-tokens 512", &err));
    CHECK(rate(&s, "--data d --steps 1 --warmup-tokens 513 --lr-schedule constant", &err));
    CHECK(rate(&s, "--data d --steps 0 --warmup-tokens 513", &err));
}

int main(void) {
    RUN(defaults);
    RUN(both_ways_of_writing);
    RUN(given_is_not_the_same_as_default);
    RUN(the_last_of_two_counts);
    RUN(messages);
    RUN(one_line_whatever_is_given);
    RUN(positional_arguments);
    RUN(help_ends_the_parsing);
    RUN(edit_distances);
    RUN(numbers_alone);
    RUN(help_as_printed);
    RUN(echo);
    RUN(every_default_is_accepted);
    RUN(defaults_are_the_promised_ones);
    RUN(rows_are_well_formed);
    RUN(help_names_every_flag);
    RUN(every_slip_is_refused_with_the_nearest);
    RUN(garbage_numbers);
    RUN(ranges);
    RUN(data_is_named_once);
    RUN(generate_takes_no_flag_of_training);
    RUN(export_reads_a_checkpoint_and_nothing_else);
    RUN(model_is_named_once);
    RUN(heads_divide_channels);
    RUN(length_is_settled);
    RUN(outliers_are_far_and_of_all_ranks);
    RUN(hellaswag_every_needs_its_file);
    RUN(flags_of_a_gpu);
    RUN(a_cpu_goes_on_with_a_run_of_a_gpu);
    RUN(saved_flags_of_another_type_are_refused);
    RUN(a_resumed_run_is_no_plan);
    RUN(batch_is_whole_micro_batches);
    RUN(rate_follows_the_flags);
    return test_end();
}
