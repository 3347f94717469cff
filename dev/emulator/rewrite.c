// Turns a .cu file into standard C++, for the emulator:
//
//     rewrite FILE.cu > FILE.cpp
//
// A header can define most of CUDA, but not three constructs of its syntax. They become calls:
//
//     kernel<<<grid, block>>>(x, n)    emulator::launch(EMULATOR_KERNEL(kernel), grid, block)(x, n)
//     __shared__ float tile[32][33];   a reference to 32*33 floats that the block owns
//     extern __shared__ float all[];   a pointer to the launch's dynamic shared memory
//
// Everything else is copied line by line, so that a debugger and a sanitizer name the lines of the
// .cu file. An included .cu file is rewritten in place. `#pragma unroll`, which only nvcc knows, is
// dropped.
#include <ctype.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// code: the text with comments, strings and character literals replaced by spaces.
typedef struct {
    const char *path;
    char *text, *code;
    size_t size;
} Source;

static void die(const Source *s, size_t at, const char *fmt, ...) {
    int line = 1;
    for (size_t i = 0; i < at; i++) line += s->text[i] == '\n';
    fprintf(stderr, "%s:%d: ", s->path, line);
    va_list args;
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fprintf(stderr, "\n");
    exit(1);
}

static bool is_name(char c) { return isalnum((unsigned char)c) || c == '_'; }

// ---- reading ----

// The end of the comment, string or character literal that starts at i; i if none does.
static size_t skip_literal(const char *t, size_t i, size_t size) {
    if (t[i] == '/' && t[i + 1] == '/') {
        while (i < size && t[i] != '\n') i++;
    } else if (t[i] == '/' && t[i + 1] == '*') {
        const char *end = strstr(t + i + 2, "*/");
        i = end ? (size_t)(end - t) + 2 : size;
    } else if (t[i] == '"' || (t[i] == '\'' && !(i > 0 && is_name(t[i - 1])))) {  // not 1'000
        char quote = t[i++];
        while (i < size && t[i] != quote && t[i] != '\n') i += t[i] == '\\' ? 2 : 1;
        i++;
    }
    return i < size ? i : size;
}

static Source source_read(const char *path) {
    Source s = { path, NULL, NULL, 0 };
    FILE *f = fopen(path, "rb");
    if (!f) { perror(path); exit(1); }
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    s.text = calloc((size_t)size + 2, 1);
    s.code = calloc((size_t)size + 2, 1);
    if (size < 0 || !s.text || !s.code) die(&s, 0, "cannot be read into memory");
    s.size = fread(s.text, 1, (size_t)size, f);
    if (s.size != (size_t)size) die(&s, 0, "cannot be read");
    fclose(f);
    memcpy(s.code, s.text, s.size);
    for (size_t i = 0; i < s.size; ) {
        size_t end = skip_literal(s.text, i, s.size);
        for (size_t k = i; k < end; k++) if (s.code[k] != '\n') s.code[k] = ' ';
        i = end > i ? end : i + 1;
    }
    return s;
}

// ---- searching, in code ----

static bool token_at(const Source *s, size_t i, const char *token) {
    size_t n = strlen(token);
    return strncmp(s->code + i, token, n) == 0 && !is_name(s->code[i + n]) &&
           !(i > 0 && is_name(s->code[i - 1]));
}

// The first `wanted` at or after i, outside of parentheses and brackets opened after i.
static size_t find(const Source *s, size_t i, const char *wanted) {
    size_t begin = i;
    for (int depth = 0; i < s->size; i++) {
        if (depth == 0 && strncmp(s->code + i, wanted, strlen(wanted)) == 0) return i;
        if (strchr("([{", s->code[i])) depth++;
        if (strchr(")]}", s->code[i])) depth--;
    }
    die(s, begin, "no matching %s", wanted);
    return 0;
}

static size_t back_over_space(const Source *s, size_t i) {
    while (i > 0 && isspace((unsigned char)s->code[i - 1])) i--;
    return i;
}

// The beginning of the kernel's name that ends before i: name, space::name, name<A, B<C>>.
static size_t back_over_kernel(const Source *s, size_t i) {
    if (i > 0 && s->code[i - 1] == '>') {
        int depth = 0;
        do {
            i--;
            if (strchr(")>", s->code[i])) depth++;
            if (strchr("(<", s->code[i])) depth--;
        } while (i > 0 && depth > 0);
        i = back_over_space(s, i);
    }
    while (i > 0 && (is_name(s->code[i - 1]) || s->code[i - 1] == ':')) i--;
    return i;
}

// ---- writing ----

static void put(const Source *s, size_t begin, size_t end) {
    fwrite(s->text + begin, 1, end - begin, stdout);
}

// Writes code without its line breaks.
static void put_flat(const Source *s, size_t begin, size_t end) {
    for (size_t i = begin; i < end; i++) putchar(s->code[i] == '\n' ? ' ' : s->code[i]);
}

// Writes a launch whose <<< stands at `at`. Text before `done` is written; returns the new `done`.
static size_t put_launch(const Source *s, size_t done, size_t at) {
    size_t name_end = back_over_space(s, at), name = back_over_kernel(s, name_end);
    size_t config = at + 3, config_end = find(s, config, ">>>");
    if (name == name_end || name < done) die(s, at, "<<< without a kernel's name before it");
    put(s, done, name);
    printf("emulator::launch(EMULATOR_KERNEL(");
    put(s, name, at);
    printf("), ");
    put(s, config, config_end);
    putchar(')');
    return config_end + 3;
}

// The name at the end of the declarator [type, end).
static size_t declared_name(const Source *s, size_t type, size_t end, size_t *name_end) {
    size_t name = *name_end = back_over_space(s, end);
    while (name > type && is_name(s->code[name - 1])) name--;
    if (name == *name_end || name == type)
        die(s, type, "a __shared__ declaration that the rewriter cannot parse");
    return name;
}

// The end of a declarator's name: a bracket, a comma or the semicolon.
static size_t declarator_end(const Source *s, size_t i) {
    for (int depth = 0; ; i++) {
        depth += (s->code[i] == '<') - (s->code[i] == '>');
        if (depth == 0 && strchr("[,;", s->code[i])) return i;
    }
}

// [extern] __shared__ __align__(16) float tile[32][33], sum;  becomes a declaration for each name.
// Shared memory is always aligned to 128 bytes here. Returns the new `done`.
static size_t put_shared(const Source *s, size_t done, size_t at) {
    size_t end = find(s, at, ";"), type = at + strlen("__shared__"), type_end = 0, name_end;
    size_t before = back_over_space(s, at) - strlen("extern");
    bool dynamic = before < at && token_at(s, before, "extern");
    put(s, done, dynamic ? before : at);
    while (isspace((unsigned char)s->code[type])) type++;
    if (token_at(s, type, "__align__") || token_at(s, type, "alignas"))
        type = find(s, find(s, type, "(") + 1, ")") + 1;
    for (size_t i = type; i < end; i++) {
        size_t declared = declarator_end(s, i), name = declared_name(s, type, declared, &name_end);
        if (!type_end) type_end = name;
        for (i = declared; i < end && s->code[i] != ','; i++)
            if (s->code[i] == '[') i = find(s, i + 1, "]");
        printf(dynamic ? "EMULATOR_DYNAMIC(" : "EMULATOR_SHARED(");
        put_flat(s, name, name_end);
        printf(", ");
        put_flat(s, declared, i);
        printf(", ");
        put_flat(s, type, type_end);
        printf(");");
    }
    for (size_t i = at; i < end; i++) if (s->code[i] == '\n') putchar('\n');
    return end + 1;
}

static void rewrite(const char *path);

// A preprocessor line, with its # at `at`. If the file of #include "NAME" exists beside the
// including file, its path is written out, since the result is compiled elsewhere; a .cu file is
// rewritten in place.
static size_t put_directive(const Source *s, size_t done, size_t at) {
    char name[1024], path[2048];
    size_t end = at + strcspn(s->text + at, "\n");
    put(s, done, at);
    size_t word = at + 1 + strspn(s->code + at + 1, " ");
    if (strncmp(s->code + word, "pragma unroll", strlen("pragma unroll")) == 0) return end;
    if (sscanf(s->text + at, "# include \"%1023[^\"]\"", name) != 1) return at;
    const char *slash = strrchr(s->path, '/');
    size_t dir = slash ? (size_t)(slash - s->path) + 1 : 0;
    const char *rest = name;
    while (strncmp(rest, "../", 3) == 0 && dir > 0) {       // tests/../x.cu is x.cu
        for (dir--; dir > 0 && s->path[dir - 1] != '/'; dir--) { }
        rest += 3;
    }
    snprintf(path, sizeof path, "%.*s%s", (int)dir, s->path, rest);
    FILE *f = fopen(path, "rb");
    if (!f) return at;                                      // the compiler searches its paths
    fclose(f);
    size_t length = strlen(path);
    if (length < 3 || strcmp(path + length - 3, ".cu") != 0) {
        printf("#include \"%s\"", path);
        return end;
    }
    rewrite(path);
    int line = 2;                                            // the next line's number
    for (size_t i = 0; i < end; i++) line += s->text[i] == '\n';
    printf("\n#line %d \"%s\"", line, s->path);
    return end;
}

static bool line_starts_at(const Source *s, size_t i) {
    while (i > 0 && (s->text[i - 1] == ' ' || s->text[i - 1] == '\t')) i--;
    return i == 0 || s->text[i - 1] == '\n';
}

static void rewrite(const char *path) {
    Source s = source_read(path);
    printf("#line 1 \"%s\"\n", path);
    size_t done = 0;
    for (size_t i = 0; i < s.size; i = i < done ? done : i + 1) {
        if (s.code[i] == '#' && line_starts_at(&s, i))
            done = put_directive(&s, done, i);
        else if (strncmp(s.code + i, "<<<", 3) == 0)
            done = put_launch(&s, done, i);
        else if (token_at(&s, i, "__shared__"))
            done = put_shared(&s, done, i);
    }
    put(&s, done, s.size);
    free(s.text);
    free(s.code);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: rewrite FILE.cu > FILE.cpp\n");
        return 1;
    }
    printf("#define EMULATOR 1\n#include <cuda_runtime.h>\n");   // as nvcc does by itself
    rewrite(argv[1]);
    return fflush(stdout) != 0;
}
