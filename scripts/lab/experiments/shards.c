// The speed of a block's matrix products on one rank of a tensor group. With `ways` ranks a rank
// holds 3C/ways columns of qkv, C/ways rows of att_proj, 4C/ways columns of fc and 4C/ways rows of
// mlp_proj (dev/ranks/tensor.h). The products shrink, and small ones are slower: panels of columns
// are not full, and packing has less to be spread over.
//
//     build/shards --channels 256 --rows 1024 --rounds 9 > shards.csv
//
// Prints ranks,width,round,gflops: width is C/ways. A round times all widths in turn, forward and
// backward, without biases' share and without communication.
#define PROGRAM "shards"               // what die() says, whatever train_gpt2.c calls itself
#include "../../../dev/base/error.h"
#undef PROGRAM
#define main train_gpt2_main
#include "../../../train_gpt2.c"
#undef main

typedef struct {
    Given given;
    int channels, rows, rounds, threads;
    const char *log;
} Settings;

static const Option table[] = {
    { "channels", "C", OPT_INT, offsetof(Settings, channels), "256", 8, 65536, NULL,
      "shards", "channels of the whole model", NULL },
    { "rows", "N", OPT_INT, offsetof(Settings, rows), "1024", 1, 1 << 20, NULL,
      "shards", "tokens of a micro-batch", NULL },
    { "rounds", "N", OPT_INT, offsetof(Settings, rounds), "9", 1, 10000, NULL,
      "shards", "rounds over all widths", NULL },
    { "threads", "N", OPT_INT, offsetof(Settings, threads), "1", 1, 4096, NULL,
      "shards", "threads of the rank", NULL },
    { "log", "FILE", OPT_TEXT, offsetof(Settings, log), NULL, 1, 0, NULL,
      "shards", "add an event \"end\"", NULL },
    { "help", NULL, OPT_HELP, 0, NULL, 0, 0, NULL, "help", "print this text", NULL },
};

enum { LEAST_WIDTH = 8 };

// One layer out (N,OC) = x (N,C) w, forward and backward, at the start of shared buffers.
typedef struct { float *x, *w, *out, *dx, *dw, *bias; } Buffers;

static void layer(const Buffers *b, size_t N, int C, int OC) {
    linear_forward(b->out, b->x, b->w, NULL, N, C, OC);
    linear_backward(b->dx, b->dw, b->bias, b->out, b->x, b->w, N, C, OC);
}

static double block_gflops(const Buffers *b, size_t N, int C, int ways) {
    double start = seconds_now();
    for (int again = 0; again < ways; again++) {             // as long for all widths
        layer(b, N, C, 3*C / ways);
        layer(b, N, C / ways, C);
        layer(b, N, C, 4*C / ways);
        layer(b, N, 4*C / ways, C);
    }
    return 1e-9 * 6.0*(double)N * 12.0*C*C / (seconds_now() - start);
}

static float *cleared(size_t n) {
    float *x = (float *)alloc_or_die(n * sizeof *x, "a product");
    memset(x, 0, n * sizeof *x);
    return x;
}

static void finish(const Settings *s) {
    Log log;
    Error err;
    if (fflush(stdout) != 0 || ferror(stdout)) die("the CSV cannot be written");
    if (!s->log) return;
    if (!log_open(&log, s->log, LOG_ANY, &err)) die("%s", err.text);
    log_begin(&log, "end");
    log_text(&log, "reason", "done");
    if (!log_end(&log, &err) || !log_close(&log, &err)) die("%s", err.text);
}

int main(int argc, char **argv) {
    Settings s;
    Error err;
    const int options = sizeof table / sizeof *table;
    if (!options_parse(&s, table, options, argc, argv, NULL, NULL, &err)) die("%s", err.text);
    if (options_given(&s, table, options, "help")) {
        options_help(stdout, "usage: build/shards [flags]", table, options);
        return 0;
    }
#ifdef _OPENMP
    omp_set_num_threads(s.threads);
#endif
    size_t N = (size_t)s.rows, C = (size_t)s.channels;
    Buffers b = { cleared(N*4*C), cleared(C*4*C), cleared(N*4*C), cleared(N*4*C),
                  cleared(C*4*C), cleared(4*C) };
    printf("ranks,width,round,gflops\n");
    for (int round = 0; round <= s.rounds; round++)
        for (int ways = 1; s.channels % ways == 0 && s.channels / ways >= LEAST_WIDTH; ways *= 2) {
            double gflops = block_gflops(&b, N, s.channels, ways);
            if (round == 0) continue;                        // a warm-up
            printf("%d,%d,%d,%.6g\n", ways, s.channels / ways, round, gflops);
        }
    finish(&s);
    float *const buffers[] = { b.x, b.w, b.out, b.dx, b.dw, b.bias };
    for (int i = 0; i < 6; i++) free(buffers[i]);
    return 0;
}
