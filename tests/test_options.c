// The command line: the engine with a table of its own, then the trainers' table and its rules. A
// row of a table of tests is a command line and what it must lead to: values of the log's echo, as
// "lr=0.0006 rule=\"two\"", or behind a ! the error, in parts divided by | of which the first
// begins it.
#include <limits.h>
#include "../dev/base/flags.c"
#include "../dev/train/train.h"
#include "test.h"

typedef struct { const char *words, *want; } Row;
typedef struct { char text[600]; char *argv[40]; int argc; } Line;

// Texts of a parsed line point into it.
static void line_split(Line *line, const char *words) {
    snprintf(line->text, sizeof line->text, "program %s", words);
    line->argc = 0;
    for (char *w = strtok(line->text, " "); w; w = strtok(NULL, " ")) line->argv[line->argc++] = w;
}

static bool error_is(const char *error, const char *want) {
    size_t n = strcspn(want, "|");
    if (strncmp(error, want, n) != 0) return false;
    for (want += n; *want; want += n) {
        char part[200];
        n = strcspn(++want, "|");
        snprintf(part, sizeof part, "%.*s", (int)n, want);
        if (!strstr(error, part)) return false;
    }
    return true;
}

// echo: the log's line, a JSON object.
static bool values_are(const char *echo, const char *want) {
    while (*want) {
        size_t n = strcspn(want, " "), name = strcspn(want, "=");
        char part[200];
        snprintf(part, sizeof part, "\"%.*s\":%.*s,", (int)name, want, (int)(n - name - 1),
                 want + name + 1);
        if (!strstr(echo, part)) return false;
        want += n + (want[n] == ' ');
    }
    return true;
}

static void check_row(const Row *row, bool accepted, const char *error, const char *echo) {
    bool refused = row->want[0] == '!';
    CHECK_MSG(accepted != refused, "%s: %s", row->words, accepted ? "accepted" : error);
    if (refused && !accepted)
        CHECK_MSG(error_is(error, row->want + 1), "%s: %s", row->words, error);
    if (!refused && accepted) CHECK_MSG(values_are(echo, row->want), "%s: %s", row->words, echo);
}

// Without rows: of the trainers' table.
static char *echo_of(const void *options, const Option *table, int rows) {
    static char text[8000];
    Log log;
    Error err;
    if (!log_open(&log, "/dev/null", LOG_ANY, &err)) die("%s", err.text);
    log_begin(&log, "start");
    if (rows) options_echo(&log, options, table, rows);
    else train_options_echo(&log, (const TrainOptions *)options);
    snprintf(text, sizeof text, "%.*s,", (int)log.length, log.line);
    log_close(&log, &err);
    return text;
}

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
enum { SMALL = COUNT(small_table) };

TEST(small_command_lines) {
    static const Row rows[] = {
        { "", "loud=false heads=4 layers=null tokens=null lr=0.0006 out=null rule=\"two\" "
          "every=10" },
        { "--loud --heads 8 --layers 2 --tokens 1e9 --lr 0.5 --out a=b --rule three --every 5e4tok",
          "loud=true heads=8 layers=2 tokens=1000000000 lr=0.5 out=\"a=b\" rule=\"three\" "
          "every=\"50000tok\"" },
        { "--heads=8 --out=a=\"b --every=50000tok", "heads=8 out=\"a=\\\"b\" every=\"50000tok\"" },
        { "--lr 1 --heads 2 --lr=3 --loud --loud", "lr=3 heads=2 loud=true" },  // the last counts
        { "--help --nonsense", "" }, { "-h --heads x", "" },
        { "--help=1", "!--help: takes no value; write --help alone" },
        { "--haeds 3", "!--haeds: unknown flag; the nearest is --heads" },
        { "--rl 3", "!--rl: unknown flag; the nearest is --lr" },
        { "--hads 3", "!--hads: unknown flag; the nearest is --heads" },
        { "--headds=3", "!--headds: unknown flag; the nearest is --heads" },
        { "--ruke 3", "!--ruke: unknown flag; the nearest is --rule" },
        { "--zzzzzz", "!--zzzzzz: unknown flag; --help lists all flags" },
        { "--heads", "!--heads: its value is missing; expected a whole number from 1 to 64" },
        { "--out", "!--out: its value is missing; expected A-LONG-WAY-TO-SAY-DIR (if it begins "
          "with --: --NAME=VALUE)" },
        { "--heads x", "!--heads: got 'x', expected a whole number from 1 to 64" },
        { "--lr -1", "!--lr: got '-1', expected a number from 0 to 10" },
        { "--out=", "!--out: got '', expected A-LONG-WAY-TO-SAY-DIR" },
        { "--rule four", "!--rule: got 'four', expected one, two or three" },
        { "--every 5x", "!--every: got '5x', expected updates (100), tokens (50000tok), or 0 for "
          "never" },
        { "--loud=1", "!--loud: takes no value; write --loud alone" },
        { "file", "!'file': expected a flag; --help lists all flags" },
        { "--heads 2 file", "!'file': expected a flag; --help lists all flags" },
        { "--out a b", "!'b': expected a flag; quote a value of several words, or with a *: --out "
          "'...'" },
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        Small s;
        Line line;
        Error err = { "" };
        memset(&s, 0xA5, sizeof s);
        line_split(&line, rows[i].words);
        bool good = options_parse(&s, small_table, SMALL, line.argc, line.argv, NULL, NULL, &err);
        bool help = good && options_given(&s, small_table, SMALL, "help");
        CHECK_MSG(!good || help == (rows[i].want[0] == '\0'), "%s", rows[i].words);
        check_row(&rows[i], good, err.text, good ? echo_of(&s, small_table, SMALL) : "");
        for (int k = 0; good && !help && k < SMALL; k++)       // given is not the same as default
            CHECK(options_given(&s, small_table, SMALL, small_table[k].name)
                  == !!strstr(rows[i].words, small_table[k].name));
    }
}

TEST(positional_arguments) {
    static const char *const want[] = { "a", "b", "-", "--heads", "-x" };
    Small s;
    Line line;
    Error err;
    char *files[40];
    int n = -1;
    line_split(&line, "a --lr 1 b - --loud -- --heads -x");
    CHECK(options_parse(&s, small_table, SMALL, line.argc, line.argv, files, &n, &err));
    CHECK(n == 5 && s.loud && s.lr == 1 && s.heads == 4);
    for (int i = 0; i < 5 && n == 5; i++) CHECK(strcmp(files[i], want[i]) == 0);
    line_split(&line, "--lr 1");
    CHECK(options_parse(&s, small_table, SMALL, line.argc, line.argv, files, &n, &err) && n == 0);
}

TEST(numbers) {
    static const struct { const char *text; double x; bool real, whole; const char *back; } cases[] = {
        { "1e3", 1000, true, true, "1000" }, { "-.5E-1", -0.05, true, false, "-0.05" },
        { "1e-400", 0, false, false, "" }, { "1e999", 0, false, false, "" },
        { "nan", 0, false, false, "" }, { "0x1", 0, false, false, "" },
        { "1.5e1", 15, true, true, "15" }, { "1.55e1", 15.5, true, false, "15.5" },
        { "0.000001", 1e-6, true, false, "1e-6" }, { "6e-4", 6e-4, true, false, "0.0006" },
        { "1000000", 1e6, true, true, "1e6" },
        { "9007199254740992", 9007199254740992.0, true, true, "9007199254740992" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        double x = 0, y = 0;
        bool real = number_read(&x, cases[i].text), whole = whole_read(&y, cases[i].text);
        CHECK_MSG(real == cases[i].real && whole == cases[i].whole, "%s", cases[i].text);
        CHECK_MSG(!real || x == cases[i].x, "%s is %g", cases[i].text, x);
        CHECK_MSG(!whole || y == cases[i].x, "%s is %g", cases[i].text, y);
        if (real) CHECK_MSG(strcmp(number_words(x).text, cases[i].back) == 0, "%s", cases[i].text);
    }
}

// What `write` prints, in memory; the caller frees it.
static char *printed(void (*write)(FILE *out)) {
    TextBuffer buffer;
    text_begin(&buffer);
    write(buffer.f);
    text_end(&buffer);
    return buffer.text;
}

static void small_help(FILE *out) { options_help(out, "usage: small", small_table, SMALL); }

TEST(help_as_printed) {
    char *text = printed(small_help);
    const char *want = "usage: small\n"
        "\na\n"
        "  --loud                say more\n"
        "  --heads N             heads (default 4)\n"
        "  --layers N            layers (default: any)\n"
        "\nb\n"
        "  --tokens N            tokens\n"
        "  --lr X                rate (default 6e-4)\n"
        "  --out A-LONG-WAY-TO-SAY-DIR\n"
        "                        directory\n"
        "  --rule RULE           rule (one, two or three; default two)\n"
        "  --every N             period (default 10: ten)\n"
        "\nc\n"
        "  --help                help\n";
    CHECK_MSG(strcmp(text, want) == 0, "%s", text);
    free(text);
}

// ---- the trainers' table: what must hold of each row ----

// One flag on its own, through the engine alone: the rules between flags come later.
static bool train_one(TrainOptions *o, const char *name, const char *value, Error *err) {
    char program[] = "p", flag[200];
    snprintf(flag, sizeof flag, "--%s%s%s", name, value ? "=" : "", value ? value : "");
    char *argv[2] = { program, flag };
    return options_parse(o, train_table, train_rows, 2, argv, NULL, NULL, err);
}

static void one_refused(const char *name, const char *value) {
    TrainOptions o;
    Error err = { "" };
    char start[100];
    snprintf(start, sizeof start, "--%s: got '", name);
    CHECK_MSG(!train_one(&o, name, value, &err), "--%s accepted '%s'", name, value);
    CHECK_MSG(strncmp(err.text, start, strlen(start)) == 0, "--%s %s: %s", name, value, err.text);
}

static bool is_number(const Option *o) {
    return o->type == OPT_INT || o->type == OPT_COUNT || o->type == OPT_REAL || o->type == OPT_FROM;
}

// A flag given with its own default changes nothing but that it was given. Both ends of a range are
// in it; one step further is not, nor is garbage.
TEST(each_row) {
    static const char *const garbage[] = {
        "", "x", "1x", "0x10", "nan", "1e999", "-1", "99999999999999999999999999", "1,5", " 1",
    };
    for (int i = 0; i < train_rows; i++) {
        TrainOptions given, plain;
        Error err = { "" };
        char program[] = "p", *argv[1] = { program }, past[40];
        const Option *o = &train_table[i];
        bool real = o->type == OPT_REAL, flag = o->type == OPT_HELP || o->type == OPT_FLAG;
        memset(&given, 0, sizeof given);
        memset(&plain, 0, sizeof plain);
        CHECK(options_parse(&plain, train_table, train_rows, 1, argv, NULL, NULL, &err));
        CHECK_MSG(train_one(&given, o->name, flag ? NULL : o->value ? o->value : is_number(o) ? "1"
                            : "text", &err), "%s", err.text);
        CHECK(train_options_given(&given, o->name) && !train_options_given(&plain, o->name));
        if (o->value && o->type != OPT_TEXT)
            CHECK_MSG(memcmp((char *)&given + sizeof(Given), (char *)&plain + sizeof(Given),
                             sizeof given - sizeof(Given)) == 0, "--%s: not its default", o->name);
        CHECK(strlen(o->name) >= 2 && strlen(o->name) <= OPTION_NAME_MAX);
        CHECK(o->field < sizeof(TrainOptions) && (o->field || o->type == OPT_HELP));
        for (int k = 0; k < i; k++)
            CHECK_MSG(strcmp(o->name, train_table[k].name) != 0 && o->field != train_table[k].field,
                      "--%s and --%s share a name or a field", o->name, train_table[k].name);
        for (size_t k = 0; k < COUNT(garbage) && (is_number(o) || o->type == OPT_PERIOD); k++)
            one_refused(o->name, garbage[k]);
        if (o->type == OPT_PERIOD || (is_number(o) && !real))
            one_refused(o->name, "1.5"), one_refused(o->name, "1e-1");
        if (!is_number(o)) continue;
        CHECK(o->minimum <= o->maximum && o->maximum <= (o->type == OPT_INT ? INT_MAX : 0x1p53));
        CHECK_MSG(train_one(&given, o->name, number_words(o->minimum).text, &err), "%s", err.text);
        CHECK_MSG(train_one(&given, o->name, number_words(o->maximum).text, &err), "%s", err.text);
        snprintf(past, sizeof past, "%.17g", real ? o->maximum * 1.000001 : o->maximum + 1);
        one_refused(o->name, past);
        snprintf(past, sizeof past, "%.17g", real ? o->minimum * 0.999 - 1e-300 : o->minimum - 1);
        one_refused(o->name, past);
    }
    static const char *const periods[] = { "tok", "5toks", "-5tok", "1e16" };
    for (size_t k = 0; k < COUNT(periods); k++) one_refused("eval-every", periods[k]);
}

// As the small table's help is printed, so is this one: in 120 lines of 100 columns.
TEST(help_is_100_columns_wide) {
    char *text = printed(train_options_help);
    int lines = 0;
    for (char *s = text, *end; *s; s = end + 1, lines++) {
        end = s + strcspn(s, "\n");
        CHECK_MSG(end - s <= 100, "%d columns: %.40s", (int)(end - s), s);
        CHECK_MSG(end == s || end[-1] != ' ', "a space ends: %.40s", s);
    }
    CHECK_MSG(lines <= 120, "%d lines", lines);
    free(text);
}

// ---- rules between flags ----

static const Row rules[] = {
    { "--data d", "init=\"d4\" layers=null heads=null channels=null seq_len=0 micro_batch=8 "
      "batch_tokens=0 lr=0.0006 lr_schedule=\"cosine\" warmup_tokens=0 final_lr_frac=0.1 "
      "weight_decay=0.1 beta1=0.9 beta2=0.95 clip=1 steps=1000 tokens=null target_loss=0 "
      "eval_every=100 sample_every=0 eval_tokens=65536 max_new=256 temperature=0.8 top_k=0 top_p=1 "
      "threads=0 seed=1337 overwrite=false recompute=\"none\" resume=null "
      "train=null val=null tokenizer=null log=null out=null generate=null hellaswag=null" },
    { "", "!--data: |prepare tales --out DIR" }, { "--val v", "!--data: |nothing to train on" },
    { "--data d --train t", "!--data: |names both splits" },
    { "--train t --val v", "val=\"v\"" }, { "--train t", "!--val: |--train needs --val" }, 
    { "--generate=Once --init m --tokenizer t --data d --seq-len 8 --max-new 3 --temperature 1 "
      "--top-k 2 --top-p 0.5 --threads 2 --seed 3", "top_k=2 samples=1 stop=null" },
    { "--generate=@x --init m --stop user: --samples 3", "generate=\"@x\" samples=3 stop=\"user:\""
    },
    { "--data d --samples 2", "!--samples: |--generate PROMPT" },
    { "--data d --stop=", "!--stop: " },
    { "--generate=Once --resume --out m", "resume=0" },
    { "--resume=5 --resume --out m --generate=Once", "resume=5" },
    { "--resume=0 --out m", "!--resume: got '0', expected a whole number from 1" },
    { "--resume 5 --out m --generate=Once", "resume=5" },
    { "--resume m", "!--resume: got 'm', expected a whole number from 1|--out names the directory" },
    { "--generate=Once --out m", "!--out: is for training|--init DIR" },
    { "--export a.b/m.gguf --resume --out m", "resume=0" },
    { "--export m.gguf --out m", "!--out: is for training|--export only reads" },
    { "--export m.gguf --init m --seed 3", "!--seed: is for training|--init DIR" },
    { "--export m.gguf --init m --generate x", "!--export: |give one of them" },
    { "--export a.gguf/m --init m", "!--export: |must end in .gguf" },
    { "--data d --layers 2 --heads 3 --channels 48", "layers=2 heads=3 channels=48" },
    { "--data d --init d6 --layers 2 --heads 2 --channels 8", "!--layers: |--init" },
    { "--data d --layers 2 --heads 2", "!--layers: needs --channels|too" },
    { "--data d --channels 8 --layers 2", "!--layers: needs --heads|too" },
    { "--data d --heads 2 --channels 8", "!--heads: needs --layers|too" },
    { "--data d --layers 1 --heads 5 --channels 128", "!--heads: 5 |128 channels; 4 and 8" },
    { "--data d --layers 1 --heads 200 --channels 7", "!--heads: 200 |; 7 does" },
    { "--data d --steps 0", "steps=0 tokens=null" },
    { "--data d --tokens 1e6", "steps=null tokens=1000000" },
    { "--data d --target-loss 1.5 --lr-schedule constant",
      "steps=null tokens=null target_loss=1.5" },
    { "--data d --steps 5 --tokens 5", "!--tokens: |one or the other" },
    { "--data d --target-loss 1.5", "!--lr-schedule: |--tokens N" },
    { "--data d --target-loss 1.5 --lr-schedule constant --eval-every 0", "!--eval-every: |at the end" },
    { "--data d --recompute block", "!--recompute: |train_gpt2cu" },
};

static bool parse(TrainOptions *o, Line *line, const char *words, Error *err) {
    line_split(line, words);
    return train_options_parse(o, line->argc, line->argv, err);
}

// What other programs call a flag, with either dash, leads to ours. What is named must exist.
TEST(flags_of_other_programs) {
    static const Row cases[] = {
        { "--max_iters=5", "!--max_iters: unknown flag; here it is --steps N" },
        { "--per-device-train_batch-size 5", "!--per-device-train_batch-size: unknown flag; "
          "--micro-batch N is for the sequences of a forward pass, --batch-tokens N for the tokens "
          "of an update" },
        { "-l 1e-3", "!-l: unknown flag; here it is --lr X" },
        { "--compile", "!--compile: unknown flag; there is none: make has compiled everything" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        TrainOptions o;
        Line line;
        Error err = { "" };
        check_row(&cases[i], parse(&o, &line, cases[i].words, &err), err.text, "");
    }
    for (const OptionHint *h = train_hints; h->names; h++) {
        for (const char *p = h->words; (p = strstr(p, "--")) != NULL; p += 2) {
            size_t n = strspn(p + 2, "abcdefghijklmnopqrstuvwxyz0123456789-");
            CHECK_MSG(option_find(train_table, train_rows, p + 2, n) >= 0, "%s", h->words);
        }
        for (int i = 0; i < train_rows; i++)
            CHECK_MSG(choice_index(h->names, train_table[i].name, strlen(train_table[i].name)) < 0,
                      "--%s is a flag and a hint", train_table[i].name);
    }
    option_hints = NULL;                              // the small table has none
}

TEST(rules_between_flags) {
    TrainOptions o;
    Line line;
    for (size_t i = 0; i < COUNT(rules); i++) {
        Error err = { "" };
        bool good = parse(&o, &line, rules[i].words, &err);
        check_row(&rules[i], good, err.text, good ? echo_of(&o, NULL, 0) : "");
    }
    static const char *const reads = " data tokenizer init layers heads channels seq-len generate "
        "samples stop max-new temperature top-k top-p export resume out threads seed "
        "plan plan-gpu plan-search help ";
    for (int i = 0; i < train_rows; i++) {            // what --generate takes no account of
        const Option *row = &train_table[i];
        char words[100], name[40];
        Error err = { "" };
        snprintf(name, sizeof name, " %s ", row->name);
        if (strstr(reads, name)) continue;
        snprintf(words, sizeof words, "--%s%s --generate=Once --init m", row->name, row->type == OPT_FLAG
                 ? "" : row->value ? "=" : "=1");
        if (row->value) snprintf(words, sizeof words, "--%s=%s --generate=Once --init m", row->name,
                                 row->value);
        CHECK_MSG(!parse(&o, &line, words, &err) && error_is(err.text, "|is for training, and "
                  "--generate only reads"), "%s: %s", words, err.text);
    }
}

// ---- what else the flags decide ----

// A run that goes on from a state.json of these flags. In a damaged one a value that is no number
// and no text has no characters, and nothing may read those that follow it.
TEST(a_resumed_run) {
    static const Row rows[] = {
        { "{\"data\":\"d\",\"seed\":7,\"recompute\":\"block\",\"steps\":9}",
          "data=\"d\" seed=7 steps=9 recompute=\"none\"" },
        { "{\"data\":\"d\",\"plan\":true,\"plan_search\":true,\"plan_gpu\":\"h100,8\"}",
          "plan=false plan_search=false plan_gpu=null" },
        { "{\"data\":\"d\",\"zero\":null}", "zero=null" },    // then the ranks decide anew
        { "{\"data\":\"d\",\"zero\":3,\"tokenizer\":\"t\"}", "zero=3 tokenizer=null" },
        { "{\"data\":true}", "!state.json: |--data " },
        { "{\"steps\":{}}", "!state.json: |--steps " },
        { "{\"lr_schedule\":false}", "!state.json: |--lr-schedule " },
        { "{\"eval_every\":[]}", "!state.json: |--eval-every " },
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        TrainOptions o;
        Line line;
        Json json;
        Error err = { "" };
        CHECK(json_parse(&json, rows[i].words, strlen(rows[i].words), &err));
        CHECK(parse(&o, &line, "--resume --out o", &err));
        bool good = train_options_restore(&o, json.root, &err);
        check_row(&rows[i], good, err.text, good ? echo_of(&o, NULL, 0) : "");
        CHECK_MSG(!good || train_options_check(&o, &err), "%s", err.text);
        json_free(&json);
    }
}

// ZeRO's stage on 2 ranks; where none is given, 1 if it sends no more than 0 does.
TEST(stages) {
    static const struct { const char *words; int stage; } rows[] = {
        { "", 1 }, { "--zero 0", 0 }, { "--zero 3", 3 }, { "--exact-sum", 0 },
        { "--comm-dtype bf16", 0 }, { "--outer-every 5", 0 },
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        TrainOptions o;
        Line line;
        Error err;
        char words[100];
        snprintf(words, sizeof words, "--data d %s", rows[i].words);
        CHECK(parse(&o, &line, words, &err));
        CHECK_MSG(train_options_stage(&o, 2) == rows[i].stage, "%s", words);
        CHECK(train_options_stage(&o, 1) == (o.zero > 0 ? o.zero : 0));
    }
}

// T, a command line, and the batch or the error; then the rate after so many tokens.
TEST(batch_and_rate) {
    static const struct { int T; const char *words, *error; int64_t batch; double at, lr; } rows[] = {
        { 256, "", "", 2048, 0, 6e-4 },
        { 7, "--micro-batch 3 --batch-tokens 84", "", 84, 0, 6e-4 },
        { 256, "--batch-tokens 5000", "--batch-tokens: 5000 is not a multiple of 2048, which is "
          "micro-batch 8 times seq-len 256; the nearest is 4096", 0, 0, 0 },
        { 256, "--batch-tokens 6000", "--batch-tokens: 6000 is not|the nearest is 6144", 0, 0, 0 },
        { 64, "--steps 10 --warmup-tokens 640 --final-lr-frac 0.5", "", 512, 640, 6e-4 },
        { 64, "--steps 10 --warmup-tokens 640 --final-lr-frac 0.5", "", 512, 5120, 3e-4 },
        { 64, "--tokens 1e15 --lr-schedule wsd --lr 1", "", 512, 7.9e14, 1 },
        { 64, "--steps 1e8 --batch-tokens 512e6", "", 512000000, 5.12e16, 6e-5 },
        { 64, "--steps 1 --warmup-tokens 513",
          "--warmup-tokens: 513 is more than the 512 tokens of the whole run", 0, 0, 0 },
        { 64, "--steps 1 --warmup-tokens 512", "", 512, 256, 3e-4 },
        { 64, "--steps 1 --warmup-tokens 513 --lr-schedule constant", "", 512, 513, 6e-4 },
        { 64, "--steps 0 --warmup-tokens 513", "", 512, 0, 0 },
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        TrainOptions o;
        Line line;
        LrSchedule s;
        Error err = { "" };
        char words[200];
        snprintf(words, sizeof words, "--data d %s", rows[i].words);
        CHECK(parse(&o, &line, words, &err));
        bool good = train_options_batch(&o, rows[i].T, 1, &err) && train_options_lr(&s, &o, &err);
        CHECK_MSG(good == !rows[i].error[0] && (good || error_is(err.text, rows[i].error)), "%s: %s",
                  words, err.text);
        if (good) CHECK_MSG(o.batch_tokens == rows[i].batch, "%s", words);
        if (good && rows[i].at > 0)
            CHECK_MSG(fabs(lr_at(&s, (uint64_t)rows[i].at) / rows[i].lr - 1) < 1e-12, "%s: %g", words,
                      lr_at(&s, (uint64_t)rows[i].at));
    }
}

int main(void) {
    *program_name() = "test_options";
    return run_tests();
}
