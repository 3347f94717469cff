// A test program, small enough to read in a minute:
//
//     TEST(adds) { CHECK(1 + 1 == 2); }
//     int main(void) { return run_tests(); }
//
// Each test prints one line: `ok NAME`, `FAIL NAME: where and what`, or `skip NAME: what it lacks`.
// tests/run.sh runs every program and adds the lines up.
#pragma once
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { int failed, skipped, total_failed; } TestState;
static TestState test_state;   // the one mutable global of a test program

__attribute__((format(printf, 3, 4), unused))
static void test_fail(const char *file, int line, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    if (test_state.failed++ < 5) {               // enough to see what is wrong
        printf("    %s:%d: ", file, line);
        vprintf(fmt, args);
        printf("\n");
    }
    va_end(args);
}

static void test_run(const char *name, void (*body)(void)) {
    test_state.failed = test_state.skipped = 0;
    body();
    if (test_state.failed) printf("FAIL %s: %d checks\n", name, test_state.failed);
    else if (!test_state.skipped) printf("ok %s\n", name);
    test_state.total_failed += test_state.failed;
    fflush(stdout);
}

static int test_end(void) { return test_state.total_failed > 0; }

// TEST enters a test into a list before main() begins, in the order of the file.
#ifdef __cplusplus
struct Test {
    static inline Test *first = NULL, **end = &first;
    const char *name;
    void (*body)(void);
    Test *next;
    Test(const char *name, void (*body)(void)) : name(name), body(body), next(NULL) {
        *end = this;
        end = &next;
    }
};
#define FIRST_TEST Test::first
#define TEST(name) \
    static void name(void); \
    static Test name##_test(#name, name); \
    static void name(void)
#else
typedef struct Test { const char *name; void (*body)(void); int line; struct Test *next; } Test;
static Test *first_test;
#define FIRST_TEST first_test

static inline void test_enter(Test *test) {
    Test **at = &first_test;
    while (*at && (*at)->line < test->line) at = &(*at)->next;
    test->next = *at;
    *at = test;
}
#define TEST(name) \
    static void name(void); \
    __attribute__((constructor)) static void name##_enters(void) { \
        static Test test = { #name, name, __LINE__, NULL }; \
        test_enter(&test); \
    } \
    static void name(void)
#endif

static inline int run_tests(void) {
    for (const Test *t = FIRST_TEST; t; t = t->next) test_run(t->name, t->body);
    return test_end();
}

#define COUNT(x) (sizeof x / sizeof *x)
#define CHECK(cond) \
    do { if (!(cond)) test_fail(__FILE__, __LINE__, "%s", #cond); } while (0)
#define CHECK_MSG(cond, ...) \
    do { if (!(cond)) test_fail(__FILE__, __LINE__, __VA_ARGS__); } while (0)
// a is b, but for so small a part of b; the caller includes <math.h>.
#define NEAR(a, b, part) \
    CHECK_MSG(fabs((a) - (b)) <= (part) * fabs(b), "%s is %.9g, not %.9g", #a, (double)(a), \
              (double)(b))
#define SKIP(what) \
    do { printf("skip %s: %s\n", __func__, what); test_state.skipped = 1; return; } while (0)
