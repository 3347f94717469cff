// What --plan and --plan-search print, at most 80 columns wide, and log (plan.h).
#include "plan.h"

// ---- for a person ----

// 0.0123, 12.3, 1230: three digits without an exponent; but 1.23k and 1.23M from a thousand on.
static Shown plan_digits(double x) {
    return fabs(x) >= 999.5 ? show_text("%.0f", x) : show_text("%.3g", x);
}

static Shown plan_large(double x) { return x < 999.5 ? plan_digits(x) : count_text(x); }

static Shown plan_time(double seconds) {
    static const struct { double below, unit; const char *name; } units[] = {
        { 1e-3, 1e-6, "us" },  { 1.0, 1e-3, "ms" },    { 120.0, 1.0, "s" },
        { 7200.0, 60.0, "min" },  { 172800.0, 3600.0, "hours" },
        { 730 * 86400.0, 86400.0, "days" },  { INFINITY, 365.25 * 86400.0, "years" },
    };
    int i = 0;
    while (i < 6 && seconds >= units[i].below) i++;
    return show_text("%s %s", plan_digits(seconds / units[i].unit).text, units[i].name);
}

// In the largest of n units, each a thousand of the one before, of which x is 1 or more.
static Shown plan_in_units(double x, const char *const *units, int n) {
    for (; n > 1 && x >= 999.5; n--, units++) x /= 1000.0;
    return show_text("%s %s", plan_digits(x).text, *units);
}

static Shown plan_flop(double flop) {
    const char *const units[] = { "FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP" };
    return plan_in_units(flop, units, 5);
}

static Shown plan_size(double bytes) {
    const char *const units[] = { "bytes", "kB", "MB", "GB", "TB", "PB" };
    return plan_in_units(bytes, units, 6);
}

static void plan_show_machine(FILE *out, const PlanFacts *f) {
    const PlanMachine *m = &f->machine;
    const char *each = m->count > 1 ? " each" : "";
    if (!m->gpu && m->count == 1) fprintf(out, "machine   this one");
    else if (!m->gpu) fprintf(out, "machine   %d workers as on this one", m->count);
    else fprintf(out, "machine   %d x %s", m->count, m->name);
    if (m->gpu && m->peak > 0.0)
        fprintf(out, ": %s GB, %s TFLOP/s dense in 16 bits by the data sheet",
                plan_digits(1e-9 * (m->memory + PLAN_GPU_RESERVE)).text,
                plan_digits(1e-12 * m->peak).text);
    fprintf(out, "\n          %s/s reached%s", plan_flop(m->speed).text, each);
    if (m->speed_from == SPEED_MEASURED)
        fprintf(out, ": measured on training steps of a small model");
    if (m->speed_from == SPEED_ASSUMED)
        fprintf(out, ": assumes %.0f%% of the %speak; give @TFLOPS", 100.0 * m->speed / m->peak,
                m->gpu ? "" : "measured ");
    if (m->speed_from == SPEED_GIVEN && m->peak > 0.0)
        fprintf(out, ", as given: %.0f%% of the peak", 100.0 * m->speed / m->peak);
    fprintf(out, "\n");
    if (m->gpu && !m->bf16)
        fprintf(out, "          no bf16: train_gpt2cu needs PRECISION=fp32 and is slower\n");
}

// Flags that would make the run fit, one way per line.
static void plan_show_advice(FILE *out, const PlanFacts *f, const RunPlan *p) {
    const char *way = "          would fit: ";
    double room = f->machine.memory;
    PlanShape s = f->shape;
    bool found = p->largest > 0, may_recompute = f->may_recompute && !s.recompute;
    if (p->largest > 0) fprintf(out, "%s--micro-batch %d\n", way, p->largest);
    s.recompute = true;
    int B = may_recompute ? plan_largest_micro_batch(f, s, room) : 0, fewest = 0;
    if (B >= s.micro_batch) fprintf(out, "%s--recompute block\n", way);
    else if (B > p->largest) fprintf(out, "%s--recompute block --micro-batch %d\n", way, B);
    found = found || B > 0;
    for (int stage = 1; stage < 4 && f->outer_every == 0; stage++) {
        fewest = f->tensor * plan_fewest_workers(f, f->shape, stage, room);
        if (fewest == 0) continue;
        fprintf(out, "%s--zero %d with %d workers\n", way, stage, fewest);
        found = true;
    }
    if (!found) s.micro_batch = 1;
    s.recompute = f->shape.recompute || may_recompute;
    int all = f->outer_every == 0 && (may_recompute || !found)
            ? f->tensor * plan_fewest_workers(f, s, 3, room) : 0;
    if (all > 0 && (fewest == 0 || all < fewest))
        fprintf(out, "%s--zero 3%s%s with %d workers\n", way,
                may_recompute ? " --recompute block" : "", found ? "" : " --micro-batch 1", all);
    if (all == 0 && !found)
        fprintf(out, "          no flag makes it fit: try a smaller model or --seq-len\n");
}

// The total at each ZeRO stage.
static void plan_show_stages(FILE *out, const PlanFacts *f, const RunPlan *p, double unit) {
    if (f->shape.workers == 1 || f->outer_every > 0) return;
    fprintf(out, "          ZeRO stage    0        1        2        3\n          total   ");
    for (int stage = 0; stage < 4; stage++)
        fprintf(out, "%7s%s", plan_digits(p->bytes_zero[stage] / unit).text, stage < 3 ? "  " : "\n");
}

static void plan_show_memory(FILE *out, const PlanFacts *f, const RunPlan *p) {
    const PlanBytes *b = &p->bytes;
    char optimizer[80];
    snprintf(optimizer, sizeof optimizer, "optimizer: %s%s%s", f->sgd ? "SGD" : "AdamW's moments",
             f->outer_every ? ", DiLoCo's outer step" : "",
             f->averages ? ", averaged weights" : "");
    const struct { const char *name; double bytes; } rows[] = {
        { "parameters", b->params }, { "gradients", b->grads }, { optimizer, b->moments },
        { "activations", b->activations }, { "logits, a chunk at a time", b->logits },
        { "communication buffers", b->passing }, { "other", b->rest },
    };
    double total = plan_total(b), room = f->machine.memory;
    double unit = total >= 0.9995e9 ? 1e9 : 1e6;
    const char *name = unit == 1e9 ? "GB" : "MB", *where = f->machine.gpu ? "" : ", free here";
    fprintf(out, "memory    per %s, in %s: %s%s, ZeRO %d%s\n", f->tensor > 1 ? "rank" : "worker",
            name, f->precision,
            f->count == plan_gpu_bytes ? " by train_gpt2cu" : "",
            f->shape.workers > 1 ? f->shape.zero : 0,
            f->shape.recompute ? ", blocks recomputed" : "");
    for (int i = 0; i < 7; i++)
        if (rows[i].bytes >= 0.005 * unit)
            fprintf(out, "%14.2f  %s\n", rows[i].bytes / unit, rows[i].name);
    fprintf(out, "%14.2f  total", total / unit);
    if (room > 0.0 && p->fits)
        fprintf(out, ": fits in %s%s, up to --micro-batch %d\n", plan_size(room).text,
                where, p->largest);
    else if (room > 0.0)
        fprintf(out, ": does NOT fit in %s%s\n", plan_size(room).text, where);
    else
        fprintf(out, "\n");
    if (room > 0.0 && !p->fits) plan_show_advice(out, f, p);
    plan_show_stages(out, f, p, unit);
}

// What somebody measured for a run like this one.
static void plan_show_published(FILE *out, const PlanFacts *f, const RunPlan *p) {
    double flops = p->flops * (double)f->batch_tokens / p->published;
    if (isnan(p->published)) return;
    fprintf(out, "          llm.c's script measured %s per update, %.0f%% of the peak",
            plan_time(p->published).text, 100.0 * flops / (f->machine.count * f->machine.peak));
    if (f->tokens > 0)
        fprintf(out, ": %s", plan_time(p->published * (double)f->tokens
                                       / (double)f->batch_tokens).text);
    fprintf(out, "\n");
}

static void plan_show_time(FILE *out, const PlanFacts *f, const RunPlan *p) {
    const PlanMachine *m = &f->machine;
    fprintf(out, "time      %s a token: 6 x %s matrix weights + 12 L C T\n",
            plan_flop(p->flops).text,
            count_text(12.0*f->c.C*f->c.C*f->c.L + (double)f->c.C*f->c.V).text);
    if (f->shape.recompute)
        fprintf(out, "          %s with recomputation of the blocks' forward pass\n",
                plan_flop(p->flops_done).text);
    fprintf(out, "          %s%s per update: %s computing", isnan(p->exposed) ? "at least " : "",
            plan_time(p->step).text, plan_time(p->compute).text);
    if (p->adam > 0.0)
        fprintf(out, ", %s %s", plan_time(p->adam).text, f->sgd ? "SGD" : "AdamW");
    if (p->exposed > 0.0) fprintf(out, ", %s network", plan_time(p->exposed).text);
    fprintf(out, "\n          %s tokens/s\n", count_text((double)f->batch_tokens / p->step).text);
    plan_show_published(out, f, p);
    if (f->tokens <= 0) return;
    fprintf(out, "          %s tokens: %s updates, %s; %s by %dND/(nX)\n",
            count_text((double)f->tokens).text, count_text(p->steps).text,
            plan_time(p->seconds).text, plan_time(p->rule_seconds).text,
            f->shape.recompute ? 8 : 6);
    if (m->count == 1 && m->price < 0.0) return;
    fprintf(out, "          %s device-hours", plan_large(p->device_hours).text);
    if (m->price >= 0.0)
        fprintf(out, ", which cost %s at %g each", plan_large(p->cost).text, m->price);
    fprintf(out, "\n");
}

static void plan_show_traffic(FILE *out, const PlanFacts *f, const RunPlan *p) {
    const PlanMachine *m = &f->machine;
    if (f->shape.workers * f->tensor == 1) return;
    fprintf(out, "traffic   %s sent per %s and update", plan_size(p->traffic).text,
            f->tensor > 1 ? "rank" : "worker");
    if (m->link > 0.0) {
        fprintf(out, ": %s at %s/s", plan_time(p->comm).text, plan_size(m->link).text);
        if (m->latency > 0.0) fprintf(out, " + %s", plan_time(m->latency).text);
        if (plan_network(m, f->shape.workers, f->tensor, true).G < f->shape.workers)
            fprintf(out, "\n          in machines of %d, with %s/s a device between them",
                    m->per_machine, plan_size(m->far_link).text);
        fprintf(out, "\n          %s overlap with computation, %s do not: %.1f%% of the update",
                plan_time(p->hidden).text, plan_time(p->exposed).text,
                100.0 * p->exposed / p->step);
    }
    fprintf(out, "\n");
    if (f->tensor > 1)
        fprintf(out, "          tensor parallel: %.0f sums a micro-batch, %s%s%s%s\n",
                plan_tensor_sums(f), plan_size(plan_tensor_bytes(f)).text,
                m->link > 0.0 ? ", " : "",
                m->link > 0.0 ? plan_time(p->tensor / p->micro_batches).text : "",
                m->link > 0.0 ? " exposed" : "");
}

static void plan_show_workers(FILE *out, const PlanFacts *f, const RunPlan *p) {
    double one = (double)f->shape.micro_batch * f->T;
    fprintf(out, "workers   useful: 1 to 3 x critical batch B_crit / micro-batch (%s tokens)\n",
            count_text(one).text);
    double n = p->b_crit / one;
    if (!isnan(n))
        fprintf(out, "          %s to %s for %s tokens: B_crit, measured with 119k parameters\n",
                n < 1.0 ? "1" : count_text(n).text, 3.0*n < 1.0 ? "1" : count_text(3.0*n).text,
                count_text(p->b_crit).text);
    else
        fprintf(out, "          not measured: B_crit is known only to 1M parameters and 1M "
                "tokens\n");
}

// The missing facts, and what each would add to the plan.
static void plan_show_missing(FILE *out, const PlanFacts *f) {
    const PlanMachine *m = &f->machine;
    const char *head = "missing  ";
    const struct { bool missing; const char *what; } facts[] = {
        { m->memory <= 0.0, "the memory of this machine: whether the run fits" },
        { m->link <= 0.0 && f->shape.workers * f->tensor > 1,
          "LINK of --plan-gpu NAME,COUNT,LINK: seconds of communication" },
        { f->tokens <= 0, "--tokens N: how many days, and their cost" },
        { m->price < 0.0 && f->tokens > 0 && m->gpu,
          "PRICE of --plan-gpu NAME,COUNT,LINK,PRICE: the cost" },
    };
    for (int i = 0; i < 4; i++) {
        if (!facts[i].missing) continue;
        fprintf(out, "%s %s\n", head, facts[i].what);
        head = "         ";
    }
}

static void plan_show(FILE *out, const PlanFacts *f, const RunPlan *p) {
    const Config *c = &f->c;
    fprintf(out, "model     %d layers, %d heads, %d channels, vocabulary %d: %s parameters\n",
            c->L, c->NH, c->C, c->V, count_text(plan_params(c)).text);
    fprintf(out, "batch     %lld tokens: ", (long long)f->batch_tokens);
    if (f->shape.workers > 1)
        fprintf(out, "%d %s x ", f->shape.workers, f->tensor > 1 ? "groups" : "workers");
    fprintf(out, "%.0f x %d sequences of %d\n", p->micro_batches, f->shape.micro_batch, f->T);
    if (f->batch_changes)
        fprintf(out, "          (--batch-schedule changes it; time and traffic are for this "
                "batch)\n");
    plan_show_machine(out, f);
    plan_show_memory(out, f, p);
    plan_show_time(out, f, p);
    plan_show_traffic(out, f, p);
    plan_show_workers(out, f, p);
    plan_show_missing(out, f);
}

// ---- for a program ----

void plan_log_bytes(Log *log, const PlanBytes *b) {
    log_int(log, "bytes_params", (int64_t)b->params);
    log_int(log, "bytes_grads", (int64_t)b->grads);
    log_int(log, "bytes_moments", (int64_t)b->moments);
    log_int(log, "bytes_passing", (int64_t)b->passing);
}

static void plan_log_memory(Log *log, const PlanFacts *f, const RunPlan *p) {
    const PlanBytes *b = &p->bytes;
    bool known = f->machine.memory > 0.0;
    plan_log_bytes(log, b);
    log_int(log, "bytes_activations", (int64_t)b->activations);
    log_int(log, "bytes_logits", (int64_t)b->logits);
    log_int(log, "bytes_rest", (int64_t)b->rest);
    log_int(log, "bytes_total", (int64_t)plan_total(b));
    for (int stage = 0; stage < 4; stage++)
        log_num(log, show_text("bytes_zero_%d", stage).text, p->bytes_zero[stage]);
    log_num(log, "bytes_memory", plan_known(f->machine.memory));
    log_raw(log, "fits", !known ? "null" : p->fits ? "true" : "false");
    log_num(log, "fits_micro_batch", known ? p->largest : NAN);
}

static void plan_log_time(Log *log, const PlanFacts *f, const RunPlan *p) {
    static const char *const from[] = { "unknown", "given", "assumed", "measured" };
    const PlanMachine *m = &f->machine;
    double one = (double)f->shape.micro_batch * f->T;
    log_num(log, "peak_flops", plan_known(m->peak));
    log_num(log, "speed_flops", plan_known(m->speed));
    log_text(log, "speed_from", from[m->speed_from]);
    log_num(log, "link_bytes_per_s", plan_known(m->link));
    log_num(log, "far_link_bytes_per_s", plan_known(m->far_link));
    log_num(log, "workers_per_machine", plan_known(m->per_machine));
    log_num(log, "flops_per_token", p->flops);
    log_num(log, "flops_per_token_done", p->flops_done);
    log_num(log, "seconds_per_step", p->step);
    log_num(log, "seconds_compute", p->compute);
    log_num(log, "seconds_optimizer", p->adam);
    log_num(log, "seconds_comm", p->comm);
    log_num(log, "seconds_exposed", p->exposed);
    log_num(log, "seconds_tensor", p->tensor);
    log_num(log, "tokens", plan_known((double)f->tokens));
    log_num(log, "steps", p->steps);
    log_num(log, "days", p->seconds / 86400.0);
    log_num(log, "days_rule", p->rule_seconds / 86400.0);
    log_num(log, "device_hours", p->device_hours);
    log_num(log, "cost", p->cost);
    log_num(log, "traffic_bytes", p->traffic);
    log_num(log, "seconds_per_step_published", p->published);
    log_num(log, "b_crit_measured", p->b_crit);
    log_num(log, "workers_measured", p->b_crit / one);
}

// The event "plan": every result, in the units of this file; an unknown one is null.
static bool plan_log(Log *log, const PlanFacts *f, const RunPlan *p, Error *err) {
    const Config *c = &f->c;
    log_begin(log, "plan");
    log_int(log, "parameters", (int64_t)plan_params(c));
    log_int(log, "layers", c->L);
    log_int(log, "heads", c->NH);
    log_int(log, "channels", c->C);
    log_int(log, "vocab", c->V);
    log_int(log, "positions", c->P);
    log_int(log, "T", f->T);
    log_int(log, "micro_batch", f->shape.micro_batch);
    log_int(log, "batch_tokens", f->batch_tokens);
    log_num(log, "micro_batches", p->micro_batches);
    log_int(log, "workers", f->shape.workers);
    log_int(log, "tensor_parallel", f->tensor);
    log_int(log, "zero", f->shape.zero);
    log_bool(log, "recompute", f->shape.recompute);
    log_text(log, "precision", f->precision);
    log_text(log, "machine", f->machine.name);
    plan_log_memory(log, f, p);
    plan_log_time(log, f, p);
    return log_end(log, err);
}

bool plan_print(FILE *out, Log *log, const PlanFacts *f, Error *err) {
    RunPlan p = plan_estimate(f);
    plan_show(out, f, &p);
    return plan_log(log, f, &p, err);
}

// ---- --plan-search: the fastest mixtures, the best of each kind, and why the others lost ----

// In a row of the table, in a sentence, and in the log.
static const struct { const char *brief, *whole, *key; } walls[WALLS] = {
    { "products", "products", "seconds_products" },
    { "tiles", "tiles that are not full", "seconds_tiles" },
    { "memory", "memory traffic", "seconds_memory" },
    { "recompute", "recomputation", "seconds_recompute" },
    { "near link", "the link in a machine", "seconds_near_link" },
    { "far link", "the link between machines", "seconds_far_link" },
    { "uneven", "uneven stages", "seconds_uneven" },
    { "bubble", "the pipeline's bubble", "seconds_bubble" },
};

// The largest wall, or the one that costs a row the most time over a better row.
static Wall search_wall(const SearchRow *row, const SearchRow *better) {
    Wall most = WALL_PRODUCTS;
    double largest = -INFINITY;
    for (int i = 0; i < WALLS; i++) {
        double lost = row->walls.s[i] - (better ? better->walls.s[i] : 0.0);
        if (lost <= largest) continue;
        largest = lost;
        most = (Wall)i;
    }
    return most;
}

// Why a row is not the best, as "61% of the time on the link between machines".
static Shown search_why(const SearchFacts *f, const SearchRow *row, const SearchRow *best) {
    double over = row->bytes - f->machine.memory, width = (double)f->c.C / row->cut.tensor;
    Wall wall = search_wall(row, best);
    if (over > 0.0) return show_text("does not fit by %s", plan_size(over).text);
    if (wall == WALL_TILES && width < SEARCH_TILE)
        return show_text("tiles: %.4g columns a rank fill %.0f%% of a tile", width,
                         100.0 * width / SEARCH_TILE);
    return show_text("%.0f%% of the time on %s", 100.0 * row->walls.s[wall] / row->step,
                     walls[wall].whole);
}

static Shown search_name(const SearchCut *cut) {
    return show_text("%d x %d x %d", cut->data, cut->tensor, cut->pipe);
}

static void search_show_row(FILE *out, const SearchFacts *f, const SearchRow *row) {
    const SearchCut *cut = &row->cut;
    double price = f->machine.price, hours = search_seconds(f, row) / 3600.0 * f->machine.count;
    Wall wall = search_wall(row, NULL);
    fprintf(out, "%13s%c%3d %4d %3s %8s %5s %10s %5s %6s %3.0f%% %s\n", search_name(cut).text,
            cut->pipe > 1 ? '*' : ' ', cut->chunks, cut->zero,
            cut->recompute ? "yes" : "no", show_text("%d x %.0f", cut->micro, cut->micros).text,
            count_text(f->batch).text, plan_time(search_seconds(f, row)).text,
            plan_digits(1e-9 * row->bytes).text,
            price >= 0.0 ? plan_large(hours * price).text : "-",
            100.0 * row->walls.s[wall] / row->step, walls[wall].brief);
}

static void search_show_lost(FILE *out, const SearchFacts *f, const SearchRow *row,
                             const SearchRow *best) {
    if (row == best && best->bytes <= f->machine.memory) fprintf(out, " the fastest\n");
    else if (row->bytes > f->machine.memory || best->bytes > f->machine.memory)
        fprintf(out, " %s\n", search_why(f, row, best).text);
    else
        fprintf(out, " %.2f times as long: %s\n", row->step / best->step,
                search_why(f, row, best).text);
}

// The best of each pure kind, and why it lost.
static void search_show_pure(FILE *out, const SearchFacts *f, const Search *s) {
    static const char *const kinds[] = { "data", "tensor", "pipeline" };
    int n = f->machine.count;
    for (int kind = 0; kind < 3 && n > 1; kind++) {
        const SearchRow *row = NULL;
        for (int i = 0; i < s->n && !row; i++) {
            const SearchCut *cut = &s->rows[i].cut;
            int ranks = kind == 0 ? cut->data : kind == 1 ? cut->tensor : cut->pipe;
            if (ranks == n) row = &s->rows[i];
        }
        fprintf(out, "  %-9s", kinds[kind]);
        if (row) search_show_lost(out, f, row, s->rows);
        else if (kind == 0) fprintf(out, " %d ranks do not divide the batch\n", n);
        else if (kind == 1)
            fprintf(out, " %d ranks cannot share %d heads evenly%s\n", n, f->c.NH,
                    f->c.NH % n == 0 ? ", in whole machines" : "");
        else fprintf(out, " %d stages need as many layers; the model has %d\n", n, f->c.L);
    }
}

static void search_show(FILE *out, const SearchFacts *f, const Search *s) {
    const int FASTEST = 5, LOST = 6;
    fprintf(out, "search    %s mixtures on %d x %s, %s fit in %s\n",
            count_text(s->tried).text, f->machine.count, f->machine.name,
            count_text(s->fitting).text, plan_size(f->machine.memory).text);
    fprintf(out, "          products reach %s/s", plan_flop(search_flops(&f->machine)).text);
    if (f->machine.speed_from == SPEED_GIVEN) fprintf(out, ", as given\n");
    else fprintf(out, ": assumed, %.0f%% of the data sheet\n", 100.0 * SEARCH_PRODUCTS);
    fprintf(out, "          %s tokens, %s per update\n", count_text(f->tokens).text,
            count_text(f->batch).text);
    fprintf(out, "          * modelled: this trainer has no pipeline parallelism\n\n"
                 "data x tensor              re-  micro x                                 largest\n"
                 "   x pipeline   v ZeRO compute  accum batch       time    GB   cost part\n");
    for (int i = 0; i < s->fit && i < FASTEST; i++) search_show_row(out, f, &s->rows[i]);
    if (s->fit == 0) fprintf(out, "nothing fits; the smallest misses by %s\n",
                             plan_size(s->rows[0].bytes - f->machine.memory).text);
    fprintf(out, "\nalone\n");
    search_show_pure(out, f, s);
    int shown = s->fit < FASTEST ? s->fit : FASTEST;
    if (shown < s->n) fprintf(out, "\nlost\n");
    for (int i = shown; i < s->n && i < shown + LOST; i++) {
        fprintf(out, "  %-14s", search_name(&s->rows[i].cut).text);
        search_show_lost(out, f, &s->rows[i], s->rows);
    }
}

// ---- --plan-search, for a program ----

// The event "plan_search" of a row: its seconds by wall, in the units of this file.
static bool search_log(Log *log, const SearchFacts *f, const SearchRow *row, Error *err) {
    const SearchCut *cut = &row->cut;
    double price = f->machine.price, seconds = search_seconds(f, row);
    log_begin(log, "plan_search");
    log_text(log, "machine", f->machine.name);
    log_int(log, "data", cut->data);
    log_int(log, "tensor", cut->tensor);
    log_int(log, "pipeline", cut->pipe);
    log_int(log, "chunks", cut->chunks);
    log_int(log, "zero", cut->zero);
    log_int(log, "micro_batch", cut->micro);
    log_num(log, "micro_batches", cut->micros);
    log_bool(log, "recompute", cut->recompute);
    log_num(log, "batch_tokens", f->batch);
    log_num(log, "seconds_per_step", row->step);
    log_num(log, "seconds", seconds);
    for (int i = 0; i < WALLS; i++) log_num(log, walls[i].key, row->walls.s[i] * f->tokens / f->batch);
    log_num(log, "bytes_total", row->bytes);
    log_bool(log, "fits", row->bytes <= f->machine.memory);
    log_num(log, "cost", price >= 0.0 ? seconds / 3600.0 * f->machine.count * price : NAN);
    return log_end(log, err);
}

bool search_print(FILE *out, const char *log_path, const SearchFacts *f, Error *err) {
    Log log;
    if (!search_check(f, err)) return false;
    Search s = search_all(f);
    if (s.n == 0)
        return fail(err, "--batch-tokens: %.0f sequences divide into no micro-batches for %d GPUs "
                         "and a model of %d heads and %d layers; use a multiple of %d sequences, "
                         "%.0f tokens", f->batch / f->T, f->machine.count, f->c.NH, f->c.L,
                    f->machine.count, (double)f->machine.count * f->T);
    search_show(out, f, &s);
    if (!log_path) return true;
    if (!log_open(&log, log_path, LOG_OURS, err)) return false;
    for (int i = 0; i < s.n; i++)
        if (!search_log(&log, f, &s.rows[i], err)) return false;
    return log_close(&log, err);
}
