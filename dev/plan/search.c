// --plan-search: the fastest way to share a training run among GPUs. The search tries every mixture
// of data, tensor (Shoeybi et al. 2019) and pipeline parallelism (Narayanan et al. 2021, arXiv
// 2104.04473), with ZeRO stage, micro-batch, gradient accumulation and recompute.
//
// The trainer has data and tensor parallelism and ZeRO. Mixtures with a pipeline are modelled only.
//
//         machine 0                machine 1
//     gpu 0  1 | 2  3          gpu 4  5 | 6  7       tensor 2: 0 1, which cut each layer
//         stage 0                  stage 1           data 2: 0 2, pipeline 2: 0 4
//
// Tensor groups are neighbours, then come data groups; stages of a pipeline are farthest apart.
//
// The time of an update is a sum of walls: products at full speed, tiles that are not full, traffic
// of a GPU's memory, recomputation, the two links, and the idle time of a pipeline. Each is counted
// from the shapes.
// Below are all constants: nominal figures, none fitted to a published run.
#include "plan.h"

static const double SEARCH_SLICE = 512;          // split-k: the shortest slice of k for a tile
static const double SEARCH_MEMORY = 0.8;         // of the memory's bandwidth, by a stream of data
static const double SEARCH_LINK = 0.8;           // of a link's bandwidth, by a long message
static const double SEARCH_WAIT = 10e-6;         // seconds of a message's latency without LINK+us

const SearchTrainer search_ours = { true, false, false, true, 2, 4, 4, 0, 0, 0, 38, 0, 4 };

// ---- groups of GPUs ----

static bool search_spans(const SearchFacts *f, double ranks) {
    return f->machine.per_machine > 0 && ranks > f->machine.per_machine;
}

// The seconds in which n GPUs, `stride` apart, reduce-scatter or all-gather `bytes`.
static double search_exchange(const SearchFacts *f, double bytes, double n, double stride,
                              double messages) {
    PlanNetwork w = plan_network(&f->machine, n, stride, false);
    w.near *= SEARCH_LINK;
    w.far *= SEARCH_LINK;
    if (w.near_latency == 0.0) w.near_latency = SEARCH_WAIT;
    if (w.far_latency == 0.0) w.far_latency = SEARCH_WAIT;
    return n > 1.0 ? plan_best_seconds(bytes, n, messages, &w) : 0.0;
}

static Wall search_link(const SearchFacts *f, double ranks) {
    return search_spans(f, ranks) ? WALL_FAR : WALL_NEAR;
}

// ---- a layer ----

double search_flops(const PlanMachine *m) {
    return m->speed_from == SPEED_GIVEN ? m->speed : SEARCH_PRODUCTS * m->peak;
}

static double search_stream(const PlanMachine *m) { return SEARCH_MEMORY * m->bandwidth; }

// Adds `count` products (m,k) x (k,n). Tiles at the edge compute as long as full ones do (tile
// quantization), and the last wave of tiles as long as a full wave (wave quantization). Few tiles
// are shared: each of several multiprocessors sums a slice of k. `moved` bytes may take longer.
static void search_tiles(Walls *w, const SearchFacts *f, double count, double m, double n,
                         double k, double moved) {
    double P = f->machine.multiprocessors, speed = search_flops(&f->machine);
    double tiles = count * ceil(m / SEARCH_TILE) * ceil(n / SEARCH_TILE);
    double slices = fmax(1.0, fmin(floor(P / tiles), floor(k / SEARCH_SLICE)));
    double waves = ceil(tiles * slices / P), ideal = 2.0*count*m*n*k / speed;
    double done = waves*P/slices * 2.0*SEARCH_TILE*SEARCH_TILE*k / speed;
    w->s[WALL_PRODUCTS] += ideal;
    w->s[WALL_TILES] += done - ideal;
    w->s[WALL_MEMORY] += fmax(0.0, moved / search_stream(&f->machine) - done);
}

// The product of a forward pass, and the two of its backward pass, in 16 bits.
static void search_product(Walls *forward, Walls *backward, const SearchFacts *f, double count,
                           double m, double n, double k, bool to_memory) {
    double moved = to_memory ? 2.0*count*(m*k + k*n + m*n) : 0.0;
    search_tiles(forward, f, count, m, n, k, moved);
    search_tiles(backward, f, count, m, k, n, moved);
    search_tiles(backward, f, count, k, n, m, moved);
}

// A layer on a tensor group of t, for b sequences. Bytes of element-wise kernels, an element of
// (B,T,C): two norms 8 and two residual sums 14 on every rank, biases and GELU 16 and the cut of
// qkv into heads 16 divided by t; twice that backward. Scores that reach the memory: softmax 4 and
// dropout 5 forward, 11 backward, beside their products. Sums of activations over the tensor
// group: two forward, two backward.
static void search_layer(Walls *forward, Walls *backward, const SearchFacts *f, double t,
                         double b) {
    double C = f->c.C, T = f->T, N = b*T, heads = b*f->c.NH / t, HS = C / f->c.NH;
    double stream = search_stream(&f->machine), elements = N*C*(22.0 + 32.0/t);
    bool unfused = !f->trainer.fused_attention;
    memset(forward, 0, sizeof *forward);
    memset(backward, 0, sizeof *backward);
    search_product(forward, backward, f, 1, N, 3.0*C/t, C, true);
    search_product(forward, backward, f, heads, T, T, HS, unfused);
    search_product(forward, backward, f, heads, T, HS, T, unfused);
    search_product(forward, backward, f, 1, N, C, C/t, true);
    search_product(forward, backward, f, 1, N, 4.0*C/t, C, true);
    search_product(forward, backward, f, 1, N, C, 4.0*C/t, true);
    forward->s[WALL_MEMORY] += (elements + (unfused ? 9.0*heads*T*T : 0.0)) / stream;
    backward->s[WALL_MEMORY] += (2.0*elements + (unfused ? 11.0*heads*T*T : 0.0)) / stream;
    double sums = 2.0 * 2.0*search_exchange(f, 2.0*N*C, t, 1, 1);
    forward->s[search_link(f, t)] += sums;
    backward->s[search_link(f, t)] += sums;
}

// The classifier and the embedding, cut by vocabulary: a sum of activations forward, one backward,
// and cross-entropy's three numbers a token.
static void search_head(Walls *head, const SearchFacts *f, double t, double b) {
    double N = b*f->T, V = ceil(f->c.V / t), C = f->c.C;
    memset(head, 0, sizeof *head);
    search_product(head, head, f, 1, N, V, C, true);
    head->s[WALL_MEMORY] += f->trainer.logit_moved*N*V / search_stream(&f->machine);
    head->s[search_link(f, t)] += 2.0*2.0*search_exchange(f, 2.0*N*C, t, 1, 1)
                                + 2.0*search_exchange(f, 4.0*3.0*N, t, 1, 3);
}

// ---- an update ----

static double walls_sum(const Walls *w) {
    double sum = 0.0;
    for (int i = 0; i < WALLS; i++) sum += w->s[i];
    return sum;
}

static void walls_add(Walls *w, const Walls *more, double times) {
    for (int i = 0; i < WALLS; i++) w->s[i] += times * more->s[i];
}

// Parameters on a GPU of the fullest stage.
static double search_params(const SearchFacts *f, const SearchCut *cut) {
    double all = plan_params(&f->c), block = (double)gpt2_block_size(&f->c);
    return (all - f->c.L*block + ceil((double)f->c.L / cut->pipe)*block) / cut->tensor;
}

// Bytes of a GPU: the terms of plan_gpu_bytes, divided. A pipeline's first stage keeps the
// activations of `pipe` micro-batches (1F1B), and of a few more where layers are interleaved.
// Gradients become one message after the last backward pass, which leaves no activations.
static double search_bytes(const SearchFacts *f, const SearchCut *cut) {
    double t = cut->tensor, p = cut->pipe, d = cut->data, N = (double)cut->micro * f->T, C = f->c.C;
    double layers = ceil(f->c.L / p), params = search_params(f, cut), V = ceil(f->c.V / t);
    int stage = d > 1.0 ? cut->zero : 0;
    double slots = params - fmax(0.0, layers - 2.0)*(double)gpt2_block_size(&f->c) / t;
    double state = params * (2.0 / (stage == 3 ? d : 1.0) + 12.0 / (stage >= 1 ? d : 1.0)
                             + f->trainer.grad_kept / (stage >= 2 ? d : 1.0));
    double kept = N*(6.0*C + 24.0*C/t + 16.0 + 4.0*f->c.NH/t);
    if (!f->trainer.fused_attention) kept += 5.0*N*f->T*f->c.NH/t;
    double dealt = cut->chunks > 1 ? 1.0 + (p - 1.0)/(p*cut->chunks) : 1.0;
    double waiting = fmin(cut->micros, p) * dealt;
    double activations = cut->recompute ? kept + waiting*layers*2.0*N*C
                                        : waiting*layers*(kept + 2.0*N*C);
    double rows = (double)logits_chunk_rows((size_t)N, (size_t)V, (size_t)C, 2,
                                            f->machine.multiprocessors);
    double logits = f->trainer.logit_kept > 0.0 ? f->trainer.logit_kept*N*V : 2.0*rows*V;
    double message = d > 1.0 ? f->trainer.message_kept*params : 0.0;
    double passing = (stage >= 2 ? 4.0*slots : 0.0) + (stage == 3 ? 2.0*slots : 0.0);
    double buffers = (f->machine.count > 1 ? 96 << 20 : 0) + PLAN_WORKSPACE;
    double computing = activations + N*(8.0*C + 8.0*f->c.NH/t + 32.0) + fmax(logits, 8.0*N*C/t);
    return state + fmax(computing, message) + passing + buffers;
}

// Seconds of the data groups' traffic that computation does not hide. Gradients are reduced once an
// update, from stage 2 on in every micro-batch; parameters are gathered once, at stage 3 in both
// passes of every micro-batch. `one`: seconds of a micro-batch's backward pass.
static double search_data_seconds(const SearchFacts *f, const SearchCut *cut, double one) {
    double params = search_params(f, cut), d = cut->data, stride = cut->tensor;
    double late = f->trainer.overlaps ? (double)f->c.V*f->c.C / cut->tensor / params : 1.0;
    double rounds = cut->zero >= 2 ? cut->micros : 1.0, buckets = ceil(f->c.L / cut->pipe) + 2.0;
    double grads = search_exchange(f, f->trainer.grad_sent*params, d, stride, buckets);
    double gather = search_exchange(f, 2.0*params, d, stride, buckets);
    if (cut->zero == 0) return plan_exposed(2.0*grads, one, late);
    if (cut->zero < 3)
        return rounds*plan_exposed(grads, one, late) + plan_exposed(gather, one/2, late);
    return rounds * plan_exposed(grads + 2.0*gather, 1.5*one, late);
}

// The walls of an update. All stages of a pipeline wait for the slowest: the last one, which also
// has the classifier. What it takes longer than the mean is WALL_UNEVEN. The bubble is
// (pipe-1)/chunks micro-batches long. Each boundary passes activations forward and gradients
// backward: every rank of a tensor group sends its part, and the receivers gather (Narayanan's
// scatter/gather). With weight tying the first and the last stage sum the embedding's gradient.
static void search_update(SearchRow *row, const SearchFacts *f, const Walls *forward,
                          const Walls *backward, const Walls *head) {
    const SearchCut *cut = &row->cut;
    const PlanMachine *m = &f->machine;
    double t = cut->tensor, p = cut->pipe, d = cut->data, N = (double)cut->micro * f->T;
    double layers = ceil(f->c.L / p), params = search_params(f, cut);
    double moved = f->trainer.update_moved / (cut->zero >= 1 ? d : 1.0)
                 + f->trainer.sum_moved * (cut->micros - 1.0)
                 + (d > 1.0 ? f->trainer.message_moved : 0.0);
    Walls layer = *backward, mean, *w = &row->walls;
    memset(w, 0, sizeof *w);
    walls_add(&layer, forward, 1.0);
    if (cut->recompute) layer.s[WALL_RECOMPUTE] += walls_sum(forward);
    mean = *w;
    walls_add(&mean, &layer, f->c.L / p);
    walls_add(&mean, head, 1.0 / p);
    if (p > 1.0) {
        double link = SEARCH_LINK * (search_spans(f, m->count) ? m->far_link : m->link);
        mean.s[search_link(f, m->count)] += 2.0*cut->chunks * (2.0*N*f->c.C/t / link + SEARCH_WAIT);
        mean.s[search_link(f, t)] += 2.0*cut->chunks * search_exchange(f, 2.0*N*f->c.C, t, 1, 1);
    }
    mean.s[WALL_UNEVEN] = walls_sum(&layer)*(layers - f->c.L/p) + walls_sum(head)*(1.0 - 1.0/p);
    w->s[WALL_BUBBLE] = (p - 1.0) / cut->chunks * (walls_sum(&mean) - walls_sum(head));
    walls_add(w, &mean, cut->micros);
    w->s[WALL_MEMORY] += moved*params / search_stream(&f->machine);
    w->s[search_link(f, d*t)] += search_data_seconds(f, cut, layers * walls_sum(backward));
    if (p > 1.0)
        w->s[search_link(f, m->count)] += 2.0*search_exchange(
            f, f->trainer.grad_sent*f->c.V*f->c.C/t, 2, m->count - m->count/p, 1);
    row->step = walls_sum(w);
}

double search_seconds(const SearchFacts *f, const SearchRow *row) {
    return f->tokens / f->batch * row->step;
}

// ---- the search ----

bool search_check(const SearchFacts *f, Error *err) {
    const PlanMachine *m = &f->machine;
    int G = m->per_machine;
    if (m->bandwidth <= 0.0)
        return fail(err, "--plan-search: models the GPUs that --plan-gpu knows by name; \"%s\" is "
                         "not one of them; write h100,16,450GB/s:8+50GB/s", m->name);
    if (m->count > 1 && m->link <= 0.0)
        return fail(err, "--plan-search: needs the links between GPUs; write --plan-gpu "
                         "%s,%d,450GB/s:8+50GB/s (in 8-GPU machines, and between them)",
                    m->name, m->count);
    if (G > 0 && m->count > G && m->count % G != 0)
        return fail(err, "--plan-search: %d GPUs do not fill machines of %d; use %d or %d",
                    m->count, G, m->count / G * G, (m->count / G + 1) * G);
    if (f->tokens <= 0.0)
        return fail(err, "--plan-search: needs --tokens N, the length of the run");
    if (f->batch <= 0.0)
        return fail(err, "--plan-search: needs --batch-tokens N, the tokens of an update");
    if (fmod(f->batch, f->T) != 0.0)
        return fail(err, "--batch-tokens: %.0f tokens are no whole sequences of %d; use %.0f",
                    f->batch, f->T, fmax(1.0, round(f->batch / f->T)) * f->T);
    return true;
}

static bool search_better(const SearchRow *a, const SearchRow *b, double room) {
    bool a_fits = a->bytes <= room, b_fits = b->bytes <= room;
    if (a_fits != b_fits) return a_fits;
    return a_fits ? a->step < b->step : a->bytes < b->bytes;
}

// Tries a mixture at all ZeRO stages and interleavings. Interleaving deals `chunks` pieces to each
// stage and needs micro-batches in multiples of `pipe`. ZeRO 2 and 3 with a pipeline would reduce
// gradients of every micro-batch; nobody does.
static void search_try(Search *s, SearchRow *best, const SearchFacts *f, SearchCut cut,
                       const Walls layer[3]) {
    int most_zero = cut.data == 1 || f->trainer.only_zero_0 ? 0 : cut.pipe > 1 ? 1 : 3;
    bool deals = cut.pipe >= f->trainer.fewest_dealt && fmod(cut.micros, cut.pipe) == 0.0;
    for (cut.chunks = 1; cut.chunks <= (deals ? SEARCH_CHUNKS : 1); cut.chunks++) {
        if (cut.chunks > 1 && f->c.L % (cut.pipe * cut.chunks) != 0) continue;
        for (cut.zero = 0; cut.zero <= most_zero; cut.zero++) {
            SearchRow row = { cut, { { 0 } }, 0, search_bytes(f, &cut) };
            search_update(&row, f, &layer[0], &layer[1], &layer[2]);
            s->tried += 1.0;
            s->fitting += row.bytes <= f->machine.memory ? 1.0 : 0.0;
            if (best->step == 0.0 || search_better(&row, best, f->machine.memory)) *best = row;
        }
    }
}

// The best of one data x tensor x pipe. Accumulation makes up the batch.
static void search_cut(Search *s, const SearchFacts *f, SearchCut cut) {
    SearchRow best;
    memset(&best, 0, sizeof best);
    for (cut.micro = 1; cut.micro <= SEARCH_MICRO; cut.micro *= 2) {
        Walls layer[3];
        cut.micros = f->batch / ((double)cut.micro * cut.data * f->T);
        if (cut.micros != floor(cut.micros)) break;
        search_layer(&layer[0], &layer[1], f, cut.tensor, cut.micro);
        search_head(&layer[2], f, cut.tensor, cut.micro);
        for (int again = f->trainer.only_recomputes ? 1 : 0; again < 2; again++) {
            cut.recompute = again == 1;
            search_try(s, &best, f, cut, layer);
        }
    }
    if (best.step > 0.0 && s->n < SEARCH_CUTS) s->rows[s->n++] = best;
}

// Whole heads to a rank. A tensor group lies within a machine, or fills machines.
static bool search_tensor_fits(const SearchFacts *f, int t) {
    int G = f->machine.per_machine;
    return f->machine.count % t == 0 && f->c.NH % t == 0
        && (G == 0 || t == 1 || (t <= G ? G % t == 0 : t % G == 0));
}

Search search_all(const SearchFacts *f) {
    Search s;
    int n = f->machine.count;
    memset(&s, 0, sizeof s);
    for (int t = 1; t <= n && t <= f->c.NH; t++) {
        if (!search_tensor_fits(f, t)) continue;
        for (int p = 1; p <= n/t && p <= f->c.L; p++) {
            if (n/t % p != 0) continue;
            SearchCut cut = { n / t / p, t, p, 1, 0, 1, 1, false };
            search_cut(&s, f, cut);
        }
    }
    for (int i = 1; i < s.n; i++)                // insertion sort
        for (int j = i; j > 0 && search_better(&s.rows[j], &s.rows[j-1], f->machine.memory); j--) {
            SearchRow swap = s.rows[j];
            s.rows[j] = s.rows[j-1];
            s.rows[j-1] = swap;
        }
    while (s.fit < s.n && s.rows[s.fit].bytes <= f->machine.memory) s.fit++;
    return s;
}
