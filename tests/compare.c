// How far two checkpoints are apart: |difference| / |first| over all parameters, and the tensor
// where it is largest, by its own length.
//
//     build/compare RUN RUN [LIMIT]        exit status 1 above the limit
//
// The K part of each qkv bias is left out: a softmax does not see it, so its gradient is rounding
// alone, which Adam blows up to steps like any other.
#include "../dev/files/files.h"

typedef struct { float *flat; Config c; Path path; } Weights;

static void weights_read(Weights *w, const char *run) {
    Error err;
    TensorFile f;
    if (!checkpoint_find(&w->path, run, &err) || !checkpoint_config(&w->c, w->path.text, &err)
        || !tensor_file_open(&f, w->path.text, FILE_WEIGHTS, 0, &w->c, &err)) die("%s", err.text);
    w->flat = alloc_or_die(gpt2_n_params(&w->c) * sizeof(float), "weights");
    for (int b = 0; b < gpt2_n_buckets(&w->c); b++)
        tensor_file_bucket(w->flat + gpt2_bucket(&w->c, b).begin, &f, KEPT_WEIGHTS, -1, b);
    tensor_file_close(&f);
}

int main(int argc, char **argv) {
    Weights a, b;
    double all_apart = 0.0, all = 0.0, worst = -1.0;
    Tensor where = {0};
    *program_name() = "compare";
    if (argc < 3) die("usage: compare RUN RUN [LIMIT]");
    weights_read(&a, argv[1]);
    weights_read(&b, argv[2]);
    if (memcmp(&a.c, &b.c, sizeof a.c) != 0) die("models of different sizes");
    for (int i = 0; i < gpt2_n_tensors(&a.c); i++) {
        Tensor t = gpt2_tensor(&a.c, i);
        double apart = 0.0, length = 0.0;
        for (size_t j = 0; j < t.count; j++) {
            size_t C = (size_t)a.c.C;
            if (t.kind == QKV_B && j >= C && j < 2*C) continue;
            double x = a.flat[t.offset + j], d = x - b.flat[t.offset + j];
            apart += d * d;
            length += x * x;
        }
        all_apart += apart;
        all += length;
        double relative = apart == 0.0 ? 0.0 : sqrt(apart / length);
        if (!(relative <= worst)) {
            worst = relative;
            where = t;
        }
    }
    double relative = sqrt(all_apart / all), limit = argc > 3 ? atof(argv[3]) : INFINITY;
    printf("apart by %.2e of their length; the most, %.2e, in %s\n", relative, worst, where.key);
    return !(relative <= limit);
}
