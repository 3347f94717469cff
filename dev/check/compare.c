// Compares what two programs have recorded (compare.h), and prints one line: `right`, or the first
// wrong element, what it is, what it should be, and a hint.
//
//     compare EXPECTED FILE             within each tensor's bound
//     compare --bits ONE MANY           one program with one thread and with many: the same bits
#include <stdarg.h>
#include <stdlib.h>
#include "compare.h"

typedef struct {
    FILE *file;
    const char *name;
    char line[1000], sizes[200], hint[1000];     // the last of each
} Reader;

static Reader oracle, mine;

// The verdict, with the sizes of the call.
__attribute__((format(printf, 1, 2), noreturn))
static void say(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf(*mine.sizes ? " [%s]\n" : "\n", mine.sizes);
    exit(1);
}

static void reader_open(Reader *r, const char *name) {
    r->name = name, r->file = fopen(name, "rb");
    if (!r->file) say("compare: %s cannot be read", name);
}

// The next tensor, or false at the end; sizes and hints on the way are kept, and a fault is said.
static bool reader_next(Reader *r, Comparison *t, Role *role) {
    char name[64], letters[8], does[16];
    size_t sizes[8];
    double bound;
    int at = 0;
    while (fgets(r->line, sizeof r->line, r->file)) {
        r->line[strcspn(r->line, "\n")] = 0;
        if (strncmp(r->line, "case ", 5) == 0) strncpy(r->sizes, r->line + 5, sizeof r->sizes - 1);
        if (strncmp(r->line, "hint ", 5) == 0) strcpy(r->hint, r->line + 5);
        if (strncmp(r->line, "fault ", 6) == 0) say("%s", r->line + 6);
        if (strcmp(r->line, "end") == 0) return false;
        if (sscanf(r->line, "tensor %63s %7s %15s %lf%n", name, letters, does, &bound, &at) < 4)
            continue;
        char *next = r->line + at;
        for (int k = 0; letters[k]; k++) sizes[k] = strtoul(next, &next, 10);
        *t = compare_make(name, letters, sizes, bound);
        for (*role = IN; *role < SCRATCH && strcmp(does, ROLE_NAMES[*role]);) ++*role;
        return true;
    }
    say("compare: %s ends too early", r->name);
}

static double *reader_elements(Reader *r, size_t n) {
    double *x = malloc((n + 1) * sizeof *x);
    if (!x || fread(x, sizeof *x, n, r->file) != n) say("compare: %s ends too early", r->name);
    return x;
}

// ---- what a wrong tensor has in common with a right one ----

static double before(Role role, size_t i) {
    return role == ADDED ? before_added(i) : role == OUT ? BEFORE_OUT : 0.0;
}

static bool near(double x, double y, double size) { return fabs(x - y) <= 1e-4 * size + 1e-30; }

// Whether nothing has been done to it.
static bool is_untouched(const Comparison *t, Role role) {
    for (size_t i = 0; i < t->n; i++)
        if (t->got[i] != before(role, i)) return false;
    return role == OUT || role == ADDED;
}

// Why element i, the first wrong one, is wrong: what can be told from its value, or the hint.
static const char *reason(Comparison *t, Role role, size_t i, const char *hint) {
    double got = t->got[i], exact = t->exact[i], base = before(role, i);
    double size = fabs(base) + fabs(exact);
    if (role == IN) return "it is an input: it must stay as it is";
    if (!isfinite(exact)) return "what is not finite must show";
    if (role == ADDED && near(got, exact - base, size))
        return "what it contained is lost: add with +=, do not write with =";
    if (role == OUT && near(got, exact + base, size) && !near(got, exact, fabs(exact)))
        return "it still contains what it contained before: write with =, or set it to 0 first";
    return hint;
}

static void expect(Comparison *t, Role role) {
    for (size_t i = 0; role == MOST && i < t->n; i++)
        if (t->got[i] > 2.0 * t->exact[i])
            say("%s is %g, expected at most %g; %s", compare_element(t, i), t->got[i],
                2.0 * t->exact[i], oracle.hint);
    if (role == IN) t->bound = 0.0;
    if (role == NEARLY) t->least = 2.01;
    const char *line = role == MOST ? NULL : compare_verdict(t);
    if (!line) return;
    if (is_untouched(t, role))
        say("%s: %s; %s", t->name, role == ADDED ? "nothing is added to it" : "it is not written",
            oracle.hint);
    say("%s; %s", line, reason(t, role, compare_first_wrong(t), oracle.hint));
}

static void expect_bits(const Comparison *t) {
    for (size_t i = 0; i < t->n; i++)
        if (memcmp(&t->got[i], &t->exact[i], sizeof t->got[i]) && !isnan(t->got[i]))
            say("%s is %.9g with 1 thread and %.9g with 4: the bits must be the same for any "
                "number of threads, so no sum may depend on it", compare_element(t, i), t->exact[i],
                t->got[i]);
}

int main(int argc, char **argv) {
    bool bits = argc == 4 && strcmp(argv[1], "--bits") == 0;
    Comparison exact, t;
    Role role;
    if (argc != 3 && !bits) return fprintf(stderr, "compare [--bits] EXPECTED FILE\n"), 2;
    reader_open(&oracle, argv[argc - 2]);
    reader_open(&mine, argv[argc - 1]);
    while (reader_next(&mine, &t, &role)) {
        if (!reader_next(&oracle, &exact, &role) || strcmp(mine.line, oracle.line))
            say("compare: %s has `%s`, expected `%s`", mine.name, mine.line, oracle.line);
        double *x = reader_elements(&mine, t.n), *y = reader_elements(&oracle, t.n);
        t.got = x, t.exact = y;
        if (bits) expect_bits(&t);
        else expect(&t, role);
        free(x), free(y);
    }
    puts("right");
    return 0;
}
