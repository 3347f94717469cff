// make profile: what each kernel of one update asks of a GPU, counted in the emulator.
//
//     make profile                               one table, the longest kernel first
//     make profile KERNEL=layernorm_forward      the kernels that are called so, line by line
//     make profile GPU=a100                      least times on another GPU than an h100
//     make profile MODEL=12,12,768,50257,1024 MICRO_BATCH=1        another L,NH,C,V,T and B
//
// One micro-batch of random tokens: forward, backward, global norm, AdamW. The counts are those of
// the shape that ran. Compiled by nvcc the same update runs on a GPU, for ncu to count there.
#include "../base/base.h"
#define main train_gpt2_main
#include "../../train_gpt2.cu"
#undef main
#ifdef EMULATOR_COUNT
#include "../emulator/profile.h"
#endif

typedef struct { Config c; int T, B; } Shape;

static Shape shape_of(int argc, char **argv) {
    Shape s = { { 2, 4, 256, 8192, 256, 0 }, 256, 2 };
    Config *c = &s.c;
    int *fields[] = { &c->L, &c->NH, &c->C, &c->V, &s.T };
    if (argc > 1 && *argv[1] &&
        (sscanf(argv[1], "%d,%d,%d,%d,%d", fields[0], fields[1], fields[2], fields[3], fields[4])
         != 5 || c->L < 1 || c->NH < 1 || c->C < 1 || c->V < 1 || s.T < 1 || c->C % c->NH != 0))
        die("MODEL=%s: L,NH,C,V,T are expected, with heads that divide the channels", argv[1]);
    if (argc > 2 && *argv[2] && (s.B = atoi(argv[2])) < 1)
        die("MICRO_BATCH=%s: a number of sequences is expected", argv[2]);
    c->P = s.T;
    return s;
}

static void params_draw(Model *m) {
    for (int i = 0; i < gpt2_n_buckets(&m->c); i++) {
        gpt2_init_bucket(bucket_place(&m->zero, KEPT_WEIGHTS, i), &m->c, i, 1);
        bucket_keep(&m->zero, KEPT_WEIGHTS, i);
    }
    zero_loaded(&m->zero);
}

static void update(Model *m, const Shape *s) {
    size_t N = (size_t)s->B*s->T;
    AdamW o = { 1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 1, 1 };
    Rng rng = rng_make(1, 1);
    int *tokens = (int *)alloc_or_die((N + 1) * sizeof *tokens, "a batch");
    for (size_t i = 0; i <= N; i++) tokens[i] = (int)rng_below(&rng, (uint64_t)s->c.V);
    clear_grads(m);
    model_forward(m, tokens, s->B, s->T, 0);
    classifier_loss_and_gradient(m, tokens + 1, 1.0f / (float)N, s->B, s->T);
    model_backward(m, s->B, s->T);
    gradients_squares(m);
    totals_collect(m);
    gradients_clip(m, 1.0);
    model_update(m, o);
    totals_receive(m);
    gpu_wait(m->gpu);
    free(tokens);
}

#ifdef EMULATOR_COUNT
static void count_begin(const char *gpu) {
    emulator::profile_gpu(gpu);                  // dies if it is not known
    emulator::count_clear();
}

static void count_end(const Shape *s, const char *gpu, const char *kernel) {
    printf("One update of L=%d, NH=%d, C=%d, V=%d, T=%d, B=%d in " PRECISION ", as counted.\n",
           s->c.L, s->c.NH, s->c.C, s->c.V, s->T, s->B);
    if (!*kernel) emulator::profile_show(emulator::counted(), gpu);
    else emulator::profile_show_lines(emulator::counted(), kernel, gpu);
}
#else                                            // on a GPU ncu counts
static void count_begin(const char *) { }
static void count_end(const Shape *, const char *, const char *) { }
#endif

// profile [MODEL [MICRO_BATCH [GPU [KERNEL]]]]; "" is what stands there by default.
int main(int argc, char **argv) {
    static Machine machine;
    static Model m;
    static Comm alone;
    static TrainOptions options;
    Shape s = shape_of(argc, argv);
    const char *gpu = argc > 3 && *argv[3] ? argv[3] : "h100", *kernel = argc > 4 ? argv[4] : "";
    *program_name() = "profile";
    ModelSpec spec = { s.c, s.B, s.T, TRAIN, RECOMPUTE_NONE, Sharing(), 132 };       // an h100's
    alone.size = alone.local_size = 1;
    machine_open(&machine, &options, &alone);
    model_init(&m, &spec, &machine);
    params_draw(&m);
    count_begin(gpu);
    update(&m, &s);
    count_end(&s, gpu, kernel);
    model_free(&m);
    machine_close(&machine);
    return 0;
}
