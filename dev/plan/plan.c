// The cost model: seconds, bytes and dollars of a run on given machines (plan.h).
#include "plan.h"
#include <ctype.h>

enum { LOGITS_BYTES = 5 << 28 };       // most bytes of a chunk: 1.25 GiB

size_t logits_chunk_rows(size_t N, size_t V, size_t C, size_t bytes, int multiprocessors) {
    size_t most = LOGITS_BYTES / (V*bytes), at_once = (size_t)multiprocessors;
    if (most < 1) most = 1;
    if (N <= most) return N;
    size_t across = (C + TILE_COLUMNS - 1) / TILE_COLUMNS;
    size_t waves = at_once > 0 ? most / TILE_ROWS * across / at_once : 0;
    size_t rows = waves * at_once / across / 2 * (2*TILE_ROWS);      // or tiles of 256 x 128
    if (rows > 0) return rows;
    size_t chunks = (N + most - 1) / most;
    return (N + chunks - 1) / chunks;
}

// ---- formulas ----

double plan_params(const Config *c) {
    return (double)(gpt2_bucket(c, 0).count + gpt2_bucket(c, c->L + 1).count)
         + (double)c->L * (double)gpt2_block_size(c);
}

// FLOP computed for a token. Without recompute: gpt2_flops_per_token. With it the blocks' forward
// pass runs twice, a third more of their FLOP; the classifier's runs once. That is Narayanan et al.
// 2021, arXiv 2104.04473, equation 3: 96 B s l h^2 (1 + s/6h + V/16lh) a batch.
static double plan_flops_done(const Config *c, int T, bool recompute) {
    double all = gpt2_flops_per_token(c, T), head = 6.0*c->C*c->V;
    return recompute ? all + (all - head) / 3.0 : all;
}

// The rule of thumb, equation 4 of the same paper: training N parameters on D tokens takes 6ND/(nX)
// seconds on n devices of X FLOP/s each, or 8ND/(nX) with recompute. The rule leaves out
// attention's matrix products, so it gives a few percent less than plan_flops_done.
static double plan_rule_seconds(double params, double tokens, double workers, double flops,
                                bool recompute) {
    return (recompute ? 8.0 : 6.0) * params * tokens / (workers * flops);
}

typedef enum { PLAN_RING, PLAN_TREE, PLAN_TWO_LEVELS, PLAN_DIRECT } PlanWay;

static double plan_way_seconds(PlanWay way, double bytes, double n, double messages,
                               const PlanNetwork *w) {
    double G = w->G, M = n / G, inner = 1.0 / w->near, outer = M > 1.0 ? 1.0 / w->far : 0.0;
    double slowest = fmax(inner, outer / G), far_latency = M > 1.0 ? w->far_latency : 0.0;
    double near_steps = w->own ? 1.0 : G - 1.0, far_steps = w->own ? 1.0 : M - 1.0;
    switch (way) {
        case PLAN_RING:
            return bytes * (n - 1.0)/n * slowest
                 + messages * (n - 1.0) * fmax(w->near_latency, far_latency);
        case PLAN_TREE:
            return bytes * slowest + messages * (ceil(log2(G)) * w->near_latency
                                                 + ceil(log2(M)) * far_latency);
        case PLAN_TWO_LEVELS:
            return bytes * (G - 1.0)/G * inner + messages * near_steps * w->near_latency
                 + bytes * (M - 1.0)/n * outer + messages * far_steps * far_latency;
        default:
            return bytes * ((G - 1.0)/n * inner + (n - G)/n * outer)
                 + messages * fmax(w->near_latency, far_latency);
    }
}

// comm.c's own way is that of comm_place: two levels if a machine's workers are a power of
// two.
static PlanWay plan_best_way(double bytes, double n, double messages, const PlanNetwork *w) {
    int G = (int)w->G;
    bool levels = w->G < n && fmod(n, w->G) == 0.0;
    if (w->own) return levels && G > 1 && (G & (G - 1)) == 0 ? PLAN_TWO_LEVELS : PLAN_DIRECT;
    PlanWay best = PLAN_RING;
    for (PlanWay way = PLAN_TREE; way <= (levels ? PLAN_TWO_LEVELS : PLAN_TREE);
         way = (PlanWay)(way + 1))
        if (plan_way_seconds(way, bytes, n, messages, w)
            < plan_way_seconds(best, bytes, n, messages, w)) best = way;
    return best;
}

double plan_best_seconds(double bytes, double n, double messages, const PlanNetwork *w) {
    return plan_way_seconds(plan_best_way(bytes, n, messages, w), bytes, n, messages, w);
}

double plan_exposed(double seconds, double behind, double late) {
    return seconds - fmin(seconds * (1.0 - late), behind);
}

// FLOP that a rank of t computes for a token if products are computed in tiles of `tile` columns:
// the last tile of a cut layer may be part empty. With t = tile = 1 that is gpt2_flops_per_token.
static double plan_cut_flops(const Config *c, int T, int t, int tile) {
    double C = c->C, Cn = ceil(C / t / tile) * tile, wide = ceil(4.0*C / t / tile) * tile;
    double qkv = ceil(3.0*C / t / tile) * tile, V = ceil((double)gpt2_share_words(c->V, t) / tile);
    return 6.0*c->L * C * (qkv + Cn + 2.0*wide) + 6.0*C * V*tile + 12.0*c->L*T * C / t;
}

// ---- what was measured ----

// Seconds of an update that llm.c's scripts/run_gpt2_*.sh name, for sequences of 1024 tokens. A
// plan of such a run shows them beside its own.
typedef struct { int L, C; const char *gpu; int count; int64_t batch_tokens; double seconds; }
    PlanPublished;

enum { PLAN_PUBLISHED = 4 };

static const PlanPublished plan_published[PLAN_PUBLISHED] = {
    { 12, 768, "a100", 8, 524288, 0.30 },   { 24, 1024, "a100", 8, 524288, 0.82 },
    { 36, 1280, "a100", 8, 524288, 1.70 },  { 48, 1600, "h100", 8, 1048576, 2.80 },
};

// Critical batch sizes in tokens, after so many tokens of training: 119k parameters, sequences of
// 32 bytes (experiment 2 of scripts/lab). B_crit grows with training, and by the same experiment
// hardly with the model. Beyond the last row nobody here has measured it.
static const struct { double trained, b_crit; } plan_measured[] = {
    { 262144, 2759.59 }, { 524288, 4813.34 }, { 1048576, 8600.30 },
};

static const double PLAN_MEASURED_PARAMS = 1e6;  // the largest model of that experiment has 0.8M

// B_crit after a run of `tokens` tokens: between two rows a straight line in logarithms. NAN: not
// measured.
static double plan_b_crit(double params, double tokens) {
    for (int i = 0; i < 2 && params <= PLAN_MEASURED_PARAMS; i++) {
        double from = plan_measured[i].trained, to = plan_measured[i + 1].trained;
        double low = plan_measured[i].b_crit, high = plan_measured[i + 1].b_crit;
        if (tokens >= from && tokens <= to)
            return low * pow(high / low, log(tokens / from) / log(to / from));
    }
    return NAN;
}

// ---- machines ----

const PlanGpu plan_gpus[PLAN_GPUS] = {
    { "v100", 32, 125, 900, 80, false },   { "t4", 16, 65, 320, 40, false },
    { "a10", 24, 125, 600, 72, true },     { "a100", 80, 312, 2039, 108, true },
    { "l4", 24, 121, 300, 58, true },      { "l40s", 48, 362, 864, 142, true },
    { "h100", 80, 989, 3350, 132, true },  { "h200", 141, 989, 4800, 132, true },
    { "b200", 180, 2250, 8000, 148, true }, { "3090", 24, 71, 936, 82, true },
    { "4090", 24, 165, 1008, 128, true },
};

double plan_datasheet_flops(const char *gpu) {
    static const struct { const char *words; double tflops; } variants[] = {
        { " h100 pcie ", 756 }, { " h100 nvl ", 835 }, { " h200 nvl ", 835 }, { " gb200 ", 2500 },
        { " mig ", NAN }, { " laptop ", NAN }, { " ti ", NAN }, { " d ", NAN },
    };
    char words[256], word[24];
    int n = snprintf(words, sizeof words, " %.250s ", gpu);
    for (int i = 0; i < n; i++)
        words[i] = (char)(words[i] == '-' ? ' ' : tolower((unsigned char)words[i]));
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        if (strstr(words, variants[i].words)) return 1e12 * variants[i].tflops;
    for (int i = 0; i < PLAN_GPUS; i++) {
        snprintf(word, sizeof word, " %s ", plan_gpus[i].name);
        if (plan_gpus[i].bf16 && strstr(words, word)) return 1e12 * plan_gpus[i].tflops;
    }
    return NAN;
}

enum { PLAN_GPU_TILE = 128, PLAN_CPU_TILE = 16 };        // columns of a product computed together

PlanMachine plan_machine_here(int workers) {
    PlanMachine m;
    memset(&m, 0, sizeof m);
    snprintf(m.name, sizeof m.name, "here");
    m.count = workers;
    m.price = -1.0;
    m.bf16 = true;
    return m;
}

static bool plan_name_read(PlanMachine *m, char *field, Error *err) {
    char *at = strchr(field, '@'), known[100] = "";
    size_t used = 0;
    if (at) *at++ = '\0';
    size_t n = strlen(field);
    if (n == 0 || n >= sizeof m->name || field[strcspn(field, " \t\n\"")] != '\0')
        return fail(err, "--plan-gpu: NAME has 1 to %zu characters, as in h100,8",
                    sizeof m->name - 1);
    snprintf(m->name, sizeof m->name, "%.23s", field);
    double tflops = 0.0;
    if (at && (!number_read(&tflops, at) || tflops < 1e-6 || tflops > 1e6))
        return fail(err, "--plan-gpu: \"@%.20s\" is not a speed; write %s@46.2 for 46.2 TFLOP/s",
                    at, m->name);
    m->speed = 1e12 * tflops;
    if (at) m->speed_from = SPEED_GIVEN;
    m->gpu = strcmp(m->name, "here") != 0;
    for (int i = 0; i < PLAN_GPUS; i++) {
        used += (size_t)snprintf(known + used, sizeof known - used, "%s, ", plan_gpus[i].name);
        if (strcmp(m->name, plan_gpus[i].name) != 0) continue;
        m->memory = 1e9 * plan_gpus[i].gigabytes - PLAN_GPU_RESERVE;
        m->bandwidth = 1e9 * plan_gpus[i].bandwidth;
        m->peak = 1e12 * plan_gpus[i].tflops;
        m->multiprocessors = plan_gpus[i].multiprocessors;
        m->bf16 = plan_gpus[i].bf16;
        if (!at && !m->bf16)
            return fail(err, "--plan-gpu: %s has no bf16, and its data sheet gives fp16 only; "
                             "give the speed of training: %s@12 for 12 TFLOP/s", m->name, m->name);
        if (!at) m->speed = PLAN_OF_DATASHEET * m->peak, m->speed_from = SPEED_ASSUMED;
        return true;
    }
    if (at || !m->gpu) return true;
    return fail(err, "--plan-gpu: unknown GPU \"%s\"; known are %sand here (this machine); give "
                     "the speed of any other: %s@100,8 for 100 TFLOP/s", m->name, known, m->name);
}

// "450GB/s", "100Gb/s" (bits), "12.5GB/s+5us" (with the latency of a message).
static bool plan_link_read(double *link, double *latency, const char *field) {
    static const struct { const char *unit; double bytes; } units[] = {
        { "GB/s", 1e9 }, { "MB/s", 1e6 }, { "Gb/s", 1e9 / 8 }, { "Mb/s", 1e6 / 8 },
    };
    char unit[5];
    double number, wait = 0.0;
    int ends = 0, us_ends = 0;
    int read = sscanf(field, "%lf%4[GMBb/s]%n+%lfus%n", &number, unit, &ends, &wait, &us_ends);
    if (read < 2 || !(number > 0.0) || isinf(number) || (read == 3 && !(wait > 0.0))
        || field[read == 3 ? us_ends : ends] != '\0') return false;
    for (int i = 0; i < 4; i++) {
        if (strcmp(unit, units[i].unit) != 0) continue;
        *link = number * units[i].bytes;
        *latency = 1e-6 * wait;
        return true;
    }
    return false;
}

// LINK[:GPUS+LINK], as "300GB/s:8+25GB/s": within machines of 8 devices, and between them.
static bool plan_links_read(PlanMachine *m, char *field, Error *err) {
    char *far = strchr(field, ':');
    int n = 0;
    if (far) *far++ = '\0';
    bool read = plan_link_read(&m->link, &m->latency, field);
    if (far) read = read && sscanf(far, "%d+%n", &m->per_machine, &n) == 1 && n > 0
                    && m->per_machine >= 1 && m->per_machine <= 1000000
                    && plan_link_read(&m->far_link, &m->far_latency, far + n);
    return read || fail(err, "--plan-gpu: LINK is the bandwidth of a device: 450GB/s, 100Gb/s "
                             "(bits), 12.5GB/s+5us with the latency, or 300GB/s:8+25GB/s within "
                             "machines of 8 devices and between them");
}

bool plan_machine_parse(PlanMachine *m, const char *text, Error *err) {
    char fields[4][64];
    int n = 0;
    *m = plan_machine_here(1);
    for (const char *at = text; ; at += strcspn(at, ",") + 1, n++) {
        size_t length = strcspn(at, ",");
        if (n == 4 || length >= sizeof fields[0])
            return fail(err, "--plan-gpu: more than NAME[@TFLOPS],COUNT,LINK,PRICE, as in "
                             "h100,8,450GB/s,2.5");
        snprintf(fields[n], sizeof fields[n], "%.*s", (int)length, at);
        if (at[length] == '\0') break;
    }
    if (!plan_name_read(m, fields[0], err)) return false;
    double count;
    if (n < 1)
        return fail(err, "--plan-gpu: COUNT is missing; write %s,8 for eight devices", fields[0]);
    if (!whole_read(&count, fields[1]) || count < 1 || count > 1e6)
        return fail(err, "--plan-gpu: \"%s\" is not a number of devices; write %s,8", fields[1],
                    fields[0]);
    m->count = (int)count;
    if (n >= 2 && fields[2][0] && !plan_links_read(m, fields[2], err)) return false;
    if (n >= 3 && (!number_read(&m->price, fields[3]) || m->price < 0.0))
        return fail(err, "--plan-gpu: \"%s\" is not the price of a device-hour", fields[3]);
    return true;
}

// ---- memory ----

double plan_total(const PlanBytes *b) {
    return b->params + b->grads + b->moments + b->activations + b->logits + b->passing + b->rest;
}

static double plan_bytes_of(const PlanFacts *f, PlanShape s) {
    PlanBytes b = f->count(f, &s);
    return plan_total(&b);
}

int plan_largest_micro_batch(const PlanFacts *f, PlanShape s, double room) {
    const int most = 65536;
    s.micro_batch = 1;
    while (s.micro_batch < most && plan_bytes_of(f, s) <= room + 2e9) s.micro_batch *= 2;
    while (s.micro_batch > 0 && plan_bytes_of(f, s) > room) s.micro_batch--;
    return s.micro_batch;
}

int plan_fewest_workers(const PlanFacts *f, PlanShape s, int zero, double room) {
    int none = 1, enough = 1 << 16;
    s.zero = zero;
    s.workers = enough;
    if (plan_bytes_of(f, s) > room) return 0;
    while (enough - none > 1) {
        s.workers = none + (enough - none) / 2;
        if (plan_bytes_of(f, s) <= room) enough = s.workers;
        else none = s.workers;
    }
    return enough;
}

PlanBytes plan_gpu_bytes(const PlanFacts *f, const PlanShape *s) {
    const double MESSAGES = 96 << 20;            // of comm.c over NCCL, in and out
    Config c = f->c;
    c.V = (c.V + 63) / 64 * 64;
    c = gpt2_share(&c, f->tensor);
    double n = s->workers, N = (double)s->micro_batch * f->T, C = c.C, L = c.L, t = f->tensor;
    double NH = c.NH / t;
    double psi = plan_params(&c), block = (double)gpt2_block_size(&c);
    int stage = n > 1 ? s->zero : 0;
    double slots = psi - (L - 2.0)*block;        // one bucket of each kind, and a second block
    PlanBytes b;
    b.params = 2.0*psi / (stage == 3 ? n : 1.0) + 4.0*psi / (stage >= 1 ? n : 1.0);
    b.grads = 4.0*psi / (stage >= 2 ? n : 1.0) + 4.0*psi * f->grad_copies;
    double state = (f->sgd ? 0.0 : 8.0) + (f->averages ? 4.0 : 0.0);   // moments, average
    b.moments = state*psi / (stage >= 1 ? n : 1.0) + (f->outer_every ? 8.0*psi : 0.0);
    b.passing = (stage >= 2 ? 4.0*slots : 0.0) + (stage == 3 ? 2.0*slots : 0.0)
              + (n*t > 1 ? MESSAGES : 0.0);
    double kept = N*(6.0*C + 24.0*C/t + 16.0 + 4.0*NH);     // of a block, without its output
    b.activations = (s->recompute ? 1.0 : L)*kept + L*N*2.0*C + N*(8.0*C + 8.0*NH + 32.0);
    double rows = (double)logits_chunk_rows((size_t)N, (size_t)c.V, (size_t)c.C, 2,
                                            f->machine.multiprocessors);
    double bucket = n*t > 1 ? 4.0*fmax((double)gpt2_bucket(&c, 0).count, block) : 0.0;
    b.logits = fmax(fmax(2.0*rows*c.V, 8.0*N*C/t), bucket);
    b.rest = PLAN_WORKSPACE + 4.0*c.V;
    return b;
}

// ---- traffic ----

// Bytes of gradients and of parameters that a worker sends for an update of A micro-batches
// (dev/ranks/zero.c says when). Stage 3 does not gather a block again while a slot still holds
// it: the last two blocks in the backward pass, the first two in the next forward pass.
static void plan_traffic(double *grads, double *params, const PlanFacts *f, double A) {
    Config c = gpt2_share(&f->c, f->tensor);
    double n = f->shape.workers, psi = plan_params(&c), share = (n - 1.0) / n;
    double block = (double)gpt2_block_size(&c), L = f->c.L, again = L > 2.0 ? L - 2.0 : 0.0;
    int stage = n > 1 ? f->shape.zero : 0;
    double gathered = stage == 3 ? psi + (2.0*A - 1.0)*again*block : stage > 0 ? psi : 0.0;
    *grads = share * f->grad_bytes * psi * (stage == 0 ? 2.0 : stage == 1 ? 1.0 : A);
    *params = share * f->param_bytes * gathered;
    if (f->outer_every) *grads = share * 4.0 * 2.0*psi / (double)f->outer_every;
}

// The reduce-scatters and all-gathers of an update, one a bucket.
static double plan_messages(const PlanFacts *f, double A) {
    int stage = f->shape.workers > 1 ? f->shape.zero : 0;
    double buckets = gpt2_n_buckets(&f->c);
    double once = stage < 2 ? 2.0 : stage == 2 ? A + 1.0 : 3.0*A;
    return buckets * (f->outer_every ? 2.0 / (double)f->outer_every : once);
}

PlanNetwork plan_network(const PlanMachine *m, double n, double stride, bool own) {
    bool spans = m->per_machine > 0 && m->per_machine < n*stride;
    double G = spans ? fmax(1.0, floor(m->per_machine / stride)) : n;
    PlanNetwork w = { m->link, m->far_link, m->latency, m->far_latency, fmin(G, n), own };
    return w;
}

// Seconds in which each of n ranks exchanges `bytes` in `messages`.
static double plan_exchange_seconds(const PlanFacts *f, double n, double stride, double bytes,
                                    double messages) {
    PlanNetwork w = plan_network(&f->machine, n, stride, true);
    return plan_best_seconds(bytes, n, messages, &w);
}

double plan_tensor_sums(const PlanFacts *f) {
    return 2.0 + 4.0*f->c.L + (f->shape.recompute ? f->c.L - 1.0 : 0.0);
}

double plan_tensor_bytes(const PlanFacts *f) {
    double t = f->tensor, N = (double)f->shape.micro_batch * f->T;
    return 2.0*(t - 1.0)/t * plan_tensor_sums(f) * f->param_bytes*N*f->c.C + (t - 1.0) * 12.0*N;
}

// The seconds of both. Nothing hides them: what follows a sum needs it.
static double plan_tensor_seconds(const PlanFacts *f) {
    double t = f->tensor, N = (double)f->shape.micro_batch * f->T;
    if (t <= 1.0) return 0.0;
    double sum = 2.0 * plan_exchange_seconds(f, t, 1, f->param_bytes*N*f->c.C, 1);
    return plan_tensor_sums(f)*sum + plan_exchange_seconds(f, t, 1, t * 12.0*N, 1);
}

// ---- the answer ----

double plan_known(double x) { return x > 0.0 ? x : NAN; }

static void plan_estimate_memory(RunPlan *p, const PlanFacts *f) {
    PlanShape s = f->shape;
    p->bytes = f->count(f, &s);
    p->fits = plan_total(&p->bytes) <= f->machine.memory;
    p->largest = f->machine.memory > 0.0 ? plan_largest_micro_batch(f, s, f->machine.memory) : 0;
    for (int stage = 0; stage < 4; stage++) {
        s.zero = stage;
        p->bytes_zero[stage] = plan_bytes_of(f, s);
    }
}

// Returns the seconds of an update's communication that do not overlap with computation, and writes
// all of its seconds to *comm. Gradients overlap with a micro-batch's backward pass (before stage
// 2: the last one's), parameters with the next forward pass; at stage 3 both overlap with both
// passes. The embeddings' bucket never overlaps: with weight tying its gradient is complete last,
// and its parameters are needed first.
static double plan_exposed_comm(const PlanFacts *f, double *comm, double A, double compute) {
    double n = f->shape.workers, buckets = gpt2_n_buckets(&f->c), grads, params;
    double late = (double)gpt2_bucket(&f->c, 0).count / plan_params(&f->c);
    double one = compute / A, forward = one * (f->shape.recompute ? 0.25 : 1.0 / 3.0);
    int stage = n > 1 ? f->shape.zero : 0;
    double rounds = stage >= 2 ? A : 1.0;        // of gradients
    plan_traffic(&grads, &params, f, A);
    double back = stage == 0 ? 0.0 : stage < 3 ? buckets : 2.0*A*buckets;
    double all = n > 1.0 ? n / (n - 1.0) : 0.0, stride = f->tensor;        // exchanged / sent
    double g = plan_exchange_seconds(f, n, stride, all*grads / rounds,
                                     (plan_messages(f, A) - back) / rounds);
    double p = plan_exchange_seconds(f, n, stride, all*params, back);
    *comm = n > 1 ? rounds*g + p : 0.0;
    if (n <= 1 || f->in_turn || f->outer_every) return *comm;
    if (stage == 3) return A*plan_exposed(g + p/A, one, late);
    return rounds*plan_exposed(g, one - forward, late) + plan_exposed(p, forward, late);
}

static void plan_estimate_comm(RunPlan *p, const PlanFacts *f) {
    double grads, params, A = p->micro_batches, sums = plan_tensor_seconds(f);
    double ranks = (double)f->shape.workers * f->tensor;
    plan_traffic(&grads, &params, f, A);
    p->traffic = grads + params + A*plan_tensor_bytes(f);
    p->comm = p->exposed = ranks > 1 ? NAN : 0.0;
    if (ranks <= 1 || f->machine.link <= 0.0) return;
    p->tensor = A*sums;
    p->exposed = plan_exposed_comm(f, &p->comm, A, p->compute) + p->tensor;
    p->comm += p->tensor;
}

// A rank of a tensor group computes its part of each product, at the speed of whole ones but for
// tiles that are not full.
static void plan_estimate_step(RunPlan *p, const PlanFacts *f) {
    const PlanMachine *m = &f->machine;
    Config c = gpt2_share(&f->c, f->tensor);
    int tile = m->gpu ? PLAN_GPU_TILE : PLAN_CPU_TILE;
    double n = f->shape.workers, psi = plan_params(&c);
    double tokens = (double)f->batch_tokens / n, one = (double)f->shape.micro_batch * f->T;
    double part = plan_cut_flops(&f->c, f->T, f->tensor, tile)
                / plan_cut_flops(&f->c, f->T, 1, tile);
    p->micro_batches = tokens / one;
    p->compute = p->flops_done * part * tokens / plan_known(m->speed);
    p->adam = m->adam_seconds * psi / (n > 1 && f->shape.zero > 0 ? n : 1.0);
    plan_estimate_comm(p, f);
    p->hidden = p->comm - p->exposed;
    p->step = p->compute + p->adam + (isnan(p->exposed) ? 0.0 : p->exposed);
}

// NAN: nobody published such a run.
static double plan_published_seconds(const PlanFacts *f) {
    bool alike = f->T == 1024 && f->tensor == 1 && !f->shape.recompute;
    for (int i = 0; i < PLAN_PUBLISHED && alike; i++) {
        const PlanPublished *p = &plan_published[i];
        if (f->c.L == p->L && f->c.C == p->C && f->machine.count == p->count
            && strcmp(f->machine.name, p->gpu) == 0 && f->batch_tokens == p->batch_tokens)
            return p->seconds;
    }
    return NAN;
}

RunPlan plan_estimate(const PlanFacts *f) {
    const PlanMachine *m = &f->machine;
    double n = (double)f->shape.workers * f->tensor, D = plan_known((double)f->tokens);
    RunPlan p;
    memset(&p, 0, sizeof p);
    p.flops = gpt2_flops_per_token(&f->c, f->T);
    p.flops_done = plan_flops_done(&f->c, f->T, f->shape.recompute);
    plan_estimate_memory(&p, f);
    plan_estimate_step(&p, f);
    p.steps = ceil(D / (double)f->batch_tokens);
    p.seconds = D / (double)f->batch_tokens * p.step;
    p.device_hours = p.seconds * n / 3600.0;
    p.cost = m->price >= 0.0 ? p.device_hours * m->price : NAN;
    p.rule_seconds = plan_rule_seconds(plan_params(&f->c), D, n, plan_known(m->speed),
                                       f->shape.recompute);
    p.b_crit = plan_b_crit(plan_params(&f->c), D);
    p.published = plan_published_seconds(f);
    return p;
}
