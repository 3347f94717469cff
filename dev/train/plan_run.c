// --plan and --plan-search: this run's facts for dev/plan, and what it answers (train.h).
#include "train.h"

PlanBytes rank_bytes(const ModelSpec *spec, int ranks) {
    Memory mem;
    model_count(&mem, spec);
    const size_t *of = mem.bytes;
    PlanBytes b = { (double)of[MEM_PARAMS], (double)of[MEM_GRADS],
                    (double)(of[MEM_MOMENTS] + of[MEM_OUTER] + of[MEM_AVERAGE]),
                    (double)(of[MEM_ACTIVATIONS] + of[MEM_BACKWARD]), (double)of[MEM_LOGITS],
                    (double)(of[MEM_PASSING] + comm_bytes(ranks)), (double)of[MEM_REST] };
    return b;
}

// Of a rank of the plan.
static PlanBytes count_bytes(const PlanFacts *f, const PlanShape *s) {
    const Run *r = (const Run *)f->trainer;
    Comm workers, tensor;
    memset(&workers, 0, sizeof workers);
    memset(&tensor, 0, sizeof tensor);
    workers.size = s->workers;
    tensor.size = r->o.tensor_parallel;
    ModelSpec spec = { f->c, s->micro_batch, f->T, TRAIN,
                       s->recompute ? RECOMPUTE_BLOCK : RECOMPUTE_NONE,
                       run_sharing(&r->o, &workers, &tensor), f->machine.multiprocessors };
    spec.sharing.stage = s->zero;
    return rank_bytes(&spec, s->workers * tensor.size);
}

#ifndef TRAINS_ON_GPU
// A small model that trains at about the same FLOP/s as `c`: at most 768 channels and 1024 rows,
// and as many blocks as make 7 million parameters, at least one.
static Config small_config(const Config *c, int T) {
    const int64_t WIDTH = 768;
    int HS = c->C / c->NH < WIDTH ? c->C / c->NH : (int)WIDTH;
    Config small = { 1, c->C > WIDTH ? (int)WIDTH / HS : c->NH, c->C, c->V, T, 0 };
    small.C = small.NH * HS;
    int64_t blocks = WIDTH*WIDTH / ((int64_t)small.C*small.C);
    small.L = blocks < c->L ? (int)blocks : c->L;
    if (small.V > 1024) small.V = 1024;
    return small;
}

// Measures the FLOP/s of training on this machine: the best of a few steps of a small model, in
// about a second.
static void measure_speed(PlanMachine *machine, Run *r, const Config *c) {
    const AdamW adamw = { 1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0, 1.0 };
    int T = r->T < 1024 ? r->T : 1024, most = 1024 / T;
    int B = r->o.micro_batch < most ? r->o.micro_batch : most;
    Sharing alone = { NULL, NULL, 0, COMM_FP32, 0, false, false, false,
                      r->o.optimizer == OPTIMIZER_SGD, false };
    ModelSpec spec = { small_config(c, T), B, T, TRAIN, RECOMPUTE_NONE, alone, 0 };
    Model *m = r->model;
    size_t N = (size_t)B*T;
    int *tokens = (int *)alloc_or_die(N * sizeof(int), "a batch");
    double start = seconds_now(), step = INFINITY, adam = INFINITY;
    for (size_t i = 0; i < N; i++) tokens[i] = (int)(i % (size_t)spec.c.V);
    model_init(m, &spec, r->machine);
    params_draw(model_params(m), 1);
    for (int i = 0; i < 3 || seconds_now() - start < 0.5; i++) {
        double begin = seconds_now();
        clear_grads(m);
        model_forward(m, tokens, B, T, 0);
        classifier_loss_and_gradient(m, tokens, 1.0f / (float)N, B, T);
        model_backward(m, tokens, B, T);
        double computed = seconds_now();
        model_update(m, adamw, 1.0f);
        step = fmin(step, computed - begin);
        adam = fmin(adam, seconds_now() - computed);
    }
    machine->speed = gpt2_flops_per_token(&spec.c, T) * (double)N / step;
    machine->speed_from = SPEED_MEASURED;
    machine->adam_seconds = adam / (double)gpt2_n_params(&spec.c);
    model_free(m);
    free(tokens);
}
#endif

// Memory and speed of this machine. On a GPU the speed is a fraction of the measured peak.
static void plan_this_machine(PlanMachine *m, Run *r) {
    machine_open(r->machine, &r->o, &r->comm);
    m->memory = machine_free_memory(r->machine);
#ifdef TRAINS_ON_GPU
    m->multiprocessors = machine_multiprocessors(r->machine);
#endif
    if (isinf(m->memory)) m->memory = 0.0;             // not known
    if (!ON_GPU) m->memory /= launched_as(LAUNCH_LOCAL_SIZE, 1);       // ranks share the memory
    if (!ON_GPU || m->speed_from == SPEED_GIVEN) return;
    m->peak = machine_peak_flops(r->machine);
    m->speed = PLAN_OF_MEASURED * m->peak;
    m->speed_from = SPEED_ASSUMED;
}

PlanMachine plan_machine(Run *r) {
    PlanMachine m = plan_machine_here(launched_as(LAUNCH_SIZE, 1));
    Error err;
    if (r->o.plan_gpu && !plan_machine_parse(&m, r->o.plan_gpu, &err)) die("%s", err.text);
    if (!ON_GPU && !m.gpu && r->o.recompute)
        die("--recompute: needs a GPU (train_gpt2cu); leave it out");
    if (ON_GPU && m.gpu && m.speed_from == SPEED_ASSUMED
        && strcmp(machine_precision(), "bf16") != 0)
        die("--plan-gpu: this program computes in %s, and the data sheet gives 16 bits only; "
            "give the speed: %s@TFLOPS", machine_precision(), m.name);
    if (!m.gpu) plan_this_machine(&m, r);
    return m;
}

// Copies of the gradients beside their sum.
static int grad_copies(const Run *r, int workers) {
    uint64_t micro_batches = r->o.batches.batch / r->o.batches.unit;
    if (r->o.exact_sum) return tree_level(micro_batches - 1);
    return measures_noise(&r->o) && workers == 1 ? 1 : 0;
}

PlanFacts plan_facts(const Run *r, const Config *c, const PlanMachine *machine) {
    PlanFacts f;
    memset(&f, 0, sizeof f);
    int workers = machine->count / r->o.tensor_parallel;
    PlanShape shape = { r->o.micro_batch, workers, train_options_stage(&r->o, workers),
                        r->o.recompute != 0 };
    f.c = *c;
    f.T = r->T;
    f.machine = *machine;
    f.batch_tokens = r->o.batch_tokens;
    f.shape = shape;
    f.tensor = r->o.tensor_parallel;
    f.tokens = train_options_tokens(&r->o);
    f.grad_copies = grad_copies(r, workers);
    f.batch_changes = r->o.batches.rule != BATCH_CONSTANT;
    f.outer_every = r->o.outer_every;
    f.sgd = r->o.optimizer == OPTIMIZER_SGD;
    f.averages = r->o.average_tokens > 0;
    f.precision = ON_GPU ? machine_precision() : machine->gpu ? "bf16" : "fp32";
    f.grad_bytes = r->o.comm_dtype == COMM_BF16 ? 2 : 4;
    f.param_bytes = strcmp(f.precision, "bf16") == 0 ? 2 : 4;
    f.in_turn = r->o.no_overlap;
    f.may_recompute = ON_GPU || machine->gpu;
    f.count = !ON_GPU && machine->gpu ? plan_gpu_bytes : count_bytes;
    f.trainer = r;
    return f;
}

// The model's sizes, and T; workers as in open_sizes.
static Config plan_model(Run *r, int workers) {
    Path from;
    Config c;
    bool loaded = open_sizes(&from, &c, r, workers);
    check_data(r);
    if (r->o.data || r->o.train) open_split(&r->train, r, r->o.train, "train");
    return loaded ? c : fresh_config(r);
}

// Searches for the best mixture on the machines of --plan-gpu; the model alone is this run's.
static void run_plan_search(Run *r) {
    SearchFacts f;
    Error err;
    memset(&f, 0, sizeof f);
    if (!plan_machine_parse(&f.machine, r->o.plan_gpu, &err)) die("%s", err.text);
    f.c = plan_model(r, 0);
    f.T = r->T;
    f.tokens = r->o.tokens > 0 ? (double)r->o.tokens : 0.0;
    f.batch = (double)r->o.batch_tokens;
    f.trainer = search_ours;
    if (!search_print(stdout, r->o.log, &f, &err)) die("%s", err.text);
}

void run_plan(Run *r) {
    Error err;
    Log log;
    r->comm.size = 1;                            // no other rank to disconnect from
    if (launched_as(LAUNCH_RANK, 0) > 0) return;
    if (r->o.plan_search) {
        run_plan_search(r);
        return;
    }
    PlanMachine machine = plan_machine(r);
    int workers;
    if (!train_options_workers(&workers, &r->o, machine.count, &err)) die("%s", err.text);
    Config c = plan_model(r, workers);
    if (!tp_group_check(&c, r->o.tensor_parallel, &err)) die("%s", err.text);
#ifndef TRAINS_ON_GPU
    if (!machine.gpu && machine.speed_from == SPEED_UNKNOWN) measure_speed(&machine, r, &c);
#endif
    PlanFacts f = plan_facts(r, &c, &machine);
    log_to(&log, NULL, NULL);
    if ((r->o.log && !log_open(&log, r->o.log, LOG_OURS, &err))
        || !plan_print(stdout, &log, &f, &err) || !log_close(&log, &err)) die("%s", err.text);
}
