// train_gpt2.c as a library that trains in a browser tab, compiled to WebAssembly: every function
// of an update is the trainer's own. Only files are missing there, so the tales are written into
// memory. Compiled for this machine it is a program that prints the same hash (build.sh --hash).
//
//     web_open()                 after the flags, as on a command line, are in web_flags()
//     loss = web_step()          one update
//     loss = web_eval(16384)     nats per token, over so many tokens
//     web_sample(200)            a text, to standard output
//     web_hash()                 of all weights
//     web_plan()                 instead of all these, with --plan in the flags: prints the plan to
//                                standard output, and the line of its log to standard error
//
// An error prints the trainer's line on standard error and exits, which JavaScript sees as an
// exception (dev/web/wasi.js). To train another model, instantiate the module again.
#define main train_gpt2_main
#include "../../train_gpt2.c"
#undef main
#include "../data/data.h"

#ifdef __wasm__
#define EXPORT(name) __attribute__((export_name(#name)))
#else
#define EXPORT(name)
#endif

enum { TRAIN_TOKENS = 3 << 20, VAL_TOKENS = 1 << 16, MOST_FLAGS = 64, FLAGS_ROOM = 4096 };

typedef struct {
    Run run;
    Model model;
    Machine machine;
    double nats[2];                    // -ln p of each split's tales
} Web;

static Web *web(void) {
    static Web w;
    return &w;
}

// ---- the tales of `prepare tales`, in memory instead of a file ----

enum { TRAIN_SPLIT, VAL_SPLIT };       // even streams of random numbers, and odd ones

// loader_open, where there are no files: whole tales, until there are `tokens` tokens or more.
static void tales_open(Loader *l, int split, size_t tokens, const Run *r) {
    Error err;
    memset(l, 0, sizeof *l);
    l->T = r->T;
    l->seed = (uint64_t)r->o.seed;
    l->n_shards = 1;
    l->shards = (Shard *)alloc_or_die(sizeof(Shard), "the tales");
    Shard *s = l->shards;
    uint16_t *out = alloc_or_die((tokens + TALE_MAX + 1) * sizeof(uint16_t), "the tales");
    s->tokens = out;
    s->vocab = r->tokenizer.vocab_size;
    s->eot = r->tokenizer.eot;
    for (uint64_t tale = 0; s->n_tokens < tokens; tale++) {
        char text[TALE_MAX];
        double nats;
        Rng rng = rng_make(1, 2 * tale + (uint64_t)split);
        size_t n = tale_write(text, TALE_MAX, &nats, tale_lists, &rng);
        web()->nats[split] += nats;
        for (size_t i = 0; i < n; i++) out[s->n_tokens++] = (unsigned char)text[i];
        out[s->n_tokens++] = (uint16_t)s->eot;
    }
    if (!loader_agree(l, &err) || !loader_count(l, "tales", &err)) die("%s", err.text);
}

// ---- the run ----

// run_open (dev/train/open.c), where there are no files.
static void tales_run_open(Run *r) {
    Error err;
    r->data.size = 1;
    set_seq_len(r, false, NULL, NULL);
    if (!train_options_batch(&r->o, r->T, 1, &err)) die("%s", err.text);
    r->norm_test.batch = batch_start(&r->o.batches);
    if (!train_options_lr(&r->lr, &r->o, &err)) die("%s", err.text);
    tokenizer_bytes(&r->tokenizer);
    tales_open(&r->train, TRAIN_SPLIT, TRAIN_TOKENS, r);
    tales_open(&r->val, VAL_SPLIT, VAL_TOKENS, r);
    Config c = fresh_config(r);
    Sharing sharing = run_sharing(&r->o, &r->data, &r->tensor);
    open_model(r, &c, TRAIN, r->o.micro_batch, &sharing);
    params_draw(r->params, (uint64_t)r->o.seed);
    size_t N = (size_t)r->o.micro_batch * (size_t)r->T;
    r->inputs = (int *)alloc_or_die(N * sizeof(int), "a batch");
    r->targets = (int *)alloc_or_die(N * sizeof(int), "a batch");
    r->losses = (float *)alloc_or_die(N * sizeof(float), "an evaluation");
    open_sampler(r, r->T + 1);
}

// Where the flags of web_open are to be put, each ended by a NUL, the last one by two.
EXPORT(web_flags) char *web_flags(void) {
    static char text[FLAGS_ROOM];
    return text;
}

// Reads those flags. Returns false after --help.
static bool web_start(void) {
    char *argv[MOST_FLAGS + 1] = { "train_gpt2" }, *flag = web_flags();
    int argc = 1;
    *program_name() = argv[0];
    for (; *flag && argc < MOST_FLAGS; flag += strlen(flag) + 1) argv[argc++] = flag;
    return run_start(&web()->run, &web()->model, &web()->machine, argc, argv);
}

// run_plan (dev/train/plan_run.c), where there are no files.
EXPORT(web_plan) void web_plan(void) {
    Run *r = &web()->run;
    int workers;
    Error err;
    Log log;
    if (!web_start()) return;
    PlanMachine machine = plan_machine(r);
    set_seq_len(r, false, NULL, NULL);
    if (!train_options_workers(&workers, &r->o, machine.count, &err)
        || !train_options_batch(&r->o, r->T, workers, &err)) die("%s", err.text);
    if (r->o.data) tokenizer_bytes(&r->tokenizer);     // the tales have no other
    Config c = fresh_config(r);
    PlanFacts f = plan_facts(r, &c, &machine);
    log_to(&log, stderr, "the plan");
    if (!plan_print(stdout, &log, &f, &err)) die("%s", err.text);
    fflush(stdout);
}

// Begins a run with those flags. Returns its number of parameters.
EXPORT(web_open) double web_open(void) {
    if (!web_start()) return 0.0;
    tales_run_open(&web()->run);
    return (double)gpt2_n_params(&web()->run.spec.c);
}

// One update. Returns its loss, that of the tokens it trained on.
EXPORT(web_step) double web_step(void) {
    Step s;
    train_step(&web()->run, &web()->model, &s);
    return s.loss;
}

EXPORT(web_eval) double web_eval(int tokens) {
    Run *r = &web()->run;
    return evaluate(r, &r->val, (size_t)tokens).loss;
}

// The entropy of the validation tales, nats per token: no model has a lower loss on whole tales.
EXPORT(web_floor) double web_floor(void) {
    return web()->nats[VAL_SPLIT] / (double)web()->run.val.n_tokens;
}

EXPORT(web_sample) void web_sample(int tokens, int number) {
    Run *r = &web()->run;
    Rng rng = rng_make((uint64_t)r->o.seed, 1000000 + (uint64_t)number);
    r->text[0] = r->tokenizer.eot;
    generate(r, &rng, 1, tokens, stdout);
    fflush(stdout);
}

// Of all weights, in the order of checkpoints' buckets. JavaScript takes it as two halves.
static uint64_t web_hash(void) {
    const Params *p = &web()->model.params;
    uint64_t hash = 1;
    for (int b = 0; b < gpt2_n_buckets(&p->c); b++)
        hash = hash_add(hash, bucket_at(p, b, PARAMS), gpt2_bucket(&p->c, b).count * sizeof(float));
    return hash;
}

EXPORT(web_hash_half) unsigned web_hash_half(int high) {
    return (unsigned)(web_hash() >> (high ? 32 : 0));
}

#ifndef __wasm__
// usage: web UPDATES FLAGS...: trains, and prints the hash that the page shows.
int main(int argc, char **argv) {
    char *at = web_flags();
    for (int i = 2; i < argc && at + strlen(argv[i]) + 2 < web_flags() + FLAGS_ROOM; i++) {
        strcpy(at, argv[i]);
        at += strlen(at) + 1;
    }
    web_open();
    for (int i = 0; argc > 1 && i < atoi(argv[1]); i++) web_step();
    printf("%016llx\n", (unsigned long long)web_hash());
    return 0;
}
#endif
