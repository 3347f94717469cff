// Runs the reader's trainer on a small problem, for oracle.py to compare with PyTorch:
//
//     open_check PROBLEM RESULT
//
// PROBLEM is a fixture of dev/reference (header, two batches, parameters; the rest is not read).
// RESULT, all floats: the losses of batch 0, its gradients, the parameters after STEPS updates, and
// with the first parameters the logits that follow sequence 0, its last token read with the cache.
#define PROGRAM "open_check"
#define main train_gpt2_main
#include "train_gpt2.c"
#undef main

enum { STEPS = 5 };

static void *read_or_die(FILE *f, size_t n, size_t size) {
    void *x = alloc_or_die(n * size, "the problem");
    if (fread(x, size, n, f) != n) die("the problem is too short");
    return x;
}

static void put(FILE *f, const float *x, size_t n) {
    if (fwrite(x, sizeof *x, n, f) != n) die("the result cannot be written");
}

static void micro_batch(Model *m, const int *inputs, const int *targets) {
    int B = m->spec.B, T = m->spec.T;
    clear_grads(m);
    model_forward(m, inputs, B, T);
    model_backward(m, inputs, targets, 1.0f / (B*T), B, T);
}

int main(int argc, char **argv) {
    static Machine machine;
    static Model m;
    FILE *in = argc == 3 ? fopen(argv[1], "rb") : NULL, *out = in ? fopen(argv[2], "wb") : NULL;
    if (!out) die("open_check PROBLEM RESULT");
    const int *h = read_or_die(in, 16, sizeof *h);
    int T = h[7], B = h[8], N = B*T;
    ModelSpec spec = { .c = { h[2], h[3], h[4], h[5], h[6] }, .B = B, .T = T, .use = TRAIN };
    AdamW o = { .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f };
    size_t n = gpt2_n_params(&spec.c);
    const int *inputs = read_or_die(in, 2*N, sizeof *inputs);
    const int *targets = read_or_die(in, 2*N, sizeof *targets);
    const float *params = read_or_die(in, n, sizeof *params);
    model_init(&m, &spec, &machine);
    memcpy(m.zero.masters, params, n * sizeof *params);
    for (int step = 1; step <= STEPS; step++) {
        int batch = (step - 1) % 2 * N;
        micro_batch(&m, inputs + batch, targets + batch);
        if (step == 1) put(out, m.loss, N), put(out, m.zero.grads, n);
        double norm = sqrt(gradients_squares(&m));
        o.m_steps = o.v_steps = step;
        model_update(&m, o, norm > 1.0 ? (float)(1.0 / norm) : 1.0f);
    }
    put(out, m.zero.masters, n);
    memcpy(m.zero.masters, params, n * sizeof *params);
    model_extend(&m, inputs, T - 1, 0);
    put(out, model_extend(&m, inputs, T, T - 1), spec.c.V);
    return fclose(out) != 0;
}
