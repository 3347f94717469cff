// How fast the tokenizer encodes and learns, on this machine:
//
//     bench_tokenizer VOCABULARY TEXT
//
// dev/reference/bench_tiktoken.py prints tiktoken's speed on the same text.
#define PROGRAM "bench_tokenizer"
#include "../data/bpe_train.h"
#include "../base/clock.h"
#include "../data/tokenizer.h"
#ifdef _OPENMP
#include <omp.h>
#endif

// The fastest of several runs: what else the machine does only slows a run down.
static double encode_seconds(const Tokenizer *t, int *ids, const FileMap *text, size_t *count) {
    double best = 1e9;
    for (int run = 0; run < 10; run++) {
        double start = seconds_now();
        *count = tokenizer_encode_parallel(t, ids, (const char *)text->bytes, text->n);
        double seconds = seconds_now() - start;
        if (seconds < best) best = seconds;
    }
    return best;
}

static void bench_encode(const Tokenizer *t, int *ids, const FileMap *text, int threads) {
    size_t count;
#ifdef _OPENMP
    omp_set_num_threads(threads);
#endif
    double seconds = encode_seconds(t, ids, text, &count);
    printf("encode, threads: %d  %8.1f MB/s  %8.1f M tokens/s\n", threads,
           (double)text->n / seconds / 1e6, (double)count / seconds / 1e6);
}

static void bench_train(const FileMap *text, int vocab_size) {
    WordCounts counts = { NULL, 0, 0, NULL, 0, 0, NULL, 0 };
    Tokenizer t;
    double start = seconds_now();
    word_counts_add(&counts, (const char *)text->bytes, text->n);
    tokenizer_train(&t, &counts, vocab_size, NULL, NULL);
    printf("learn bpe:%d        %8.2f s\n", vocab_size, seconds_now() - start);
    word_counts_free(&counts);
    tokenizer_free(&t);
}

int main(int argc, char **argv) {
    Tokenizer t;
    FileMap text;
    Error err;
    if (argc != 3) die("expected two files: a vocabulary and a text");
    if (!tokenizer_load(&t, argv[1], &err) || !file_map(&text, argv[2], &err)) die("%s", err.text);
    int *ids = (int *)alloc_or_die(text.n * sizeof *ids, "the tokens");
    for (int threads = 1; threads <= 2; threads++) bench_encode(&t, ids, &text, threads);
    bench_train(&text, 4096);
    free(ids);
    file_unmap(&text);
    tokenizer_free(&t);
    return 0;
}
