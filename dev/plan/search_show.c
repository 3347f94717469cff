// What --plan-search prints and logs: the fastest mixtures, the best of each kind, and why the
// others lost.
#include "plan.h"

// ---- for a person ----

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

typedef struct { char text[80]; } SearchWhy;

// Why a row is not the best, as "61% of the time on the link between machines".
static SearchWhy search_why(const SearchFacts *f, const SearchRow *row, const SearchRow *best) {
    static const char *const names[WALLS] = {
        "products", "tiles that are not full", "memory traffic", "recomputation",
        "the link in a machine", "the link between machines", "uneven stages",
        "the pipeline's bubble",
    };
    SearchWhy why;
    double over = row->bytes - f->machine.memory, width = (double)f->c.C / row->cut.tensor;
    Wall wall = search_wall(row, best);
    double share = 100.0 * row->walls.s[wall] / row->step;
    if (over > 0.0)
        snprintf(why.text, sizeof why.text, "does not fit by %.20s", plan_size(over).text);
    else if (wall == WALL_TILES && width < SEARCH_TILE)
        snprintf(why.text, sizeof why.text, "tiles: %.4g columns a rank fill %.0f%% of a tile",
                 width, 100.0 * width / SEARCH_TILE);
    else
        snprintf(why.text, sizeof why.text, "%.0f%% of the time on %s", share, names[wall]);
    return why;
}

static Shown search_name(const SearchCut *cut) {
    Shown name;
    snprintf(name.text, sizeof name.text, "%d x %d x %d", cut->data, cut->tensor, cut->pipe);
    return name;
}

static void search_show_row(FILE *out, const SearchFacts *f, const SearchRow *row) {
    static const char *const names[WALLS] = {
        "products", "tiles", "memory", "recompute", "near link", "far link", "uneven",
        "bubble",
    };
    const SearchCut *cut = &row->cut;
    double price = f->machine.price, hours = search_seconds(f, row) / 3600.0 * f->machine.count;
    char micro[40];
    Wall wall = search_wall(row, NULL);
    snprintf(micro, sizeof micro, "%d x %.0f", cut->micro, cut->micros);
    fprintf(out, "%13s%c%3d %4d %3s %8s %5s %10s %5s %6s %3.0f%% %s\n", search_name(cut).text,
            cut->pipe > 1 ? '*' : ' ', cut->chunks, cut->zero,
            cut->recompute ? "yes" : "no", micro,
            count_text(f->batch).text, plan_time(search_seconds(f, row)).text,
            plan_digits(1e-9 * row->bytes).text,
            price >= 0.0 ? plan_large(hours * price).text : "-",
            100.0 * row->walls.s[wall] / row->step, names[wall]);
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

void search_show(FILE *out, const SearchFacts *f, const Search *s) {
    const int FASTEST = 5, LOST = 6;
    fprintf(out, "search    %s mixtures on %d x %s, %s fit in %s\n",
            count_text(s->tried).text, f->machine.count, f->machine.name,
            count_text(s->fitting).text, plan_size(f->machine.memory).text);
    fprintf(out, "          products reach %s/s", plan_flop(search_flops(&f->machine)).text);
    if (f->machine.speed_from == SPEED_GIVEN) fprintf(out, ", as given\n");
    else fprintf(out, ": assumed, %.0f%% of the data sheet\n", 100.0 * SEARCH_PRODUCTS);
    fprintf(out, "          %s tokens, %s an update\n", count_text(f->tokens).text,
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

// ---- for a program ----

// The event "plan_search" of a row: its seconds by wall, in the units of this file.
static bool search_log(Log *log, const SearchFacts *f, const SearchRow *row, Error *err) {
    static const char *const keys[WALLS] = {
        "seconds_products", "seconds_tiles", "seconds_memory", "seconds_recompute",
        "seconds_near_link", "seconds_far_link", "seconds_uneven", "seconds_bubble",
    };
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
    for (int i = 0; i < WALLS; i++) log_num(log, keys[i], row->walls.s[i] * f->tokens / f->batch);
    log_num(log, "bytes_total", row->bytes);
    log_bool(log, "fits", row->bytes <= f->machine.memory);
    log_num(log, "cost", price >= 0.0 ? seconds / 3600.0 * f->machine.count * price : NAN);
    return log_end(log, err);
}

bool search_print(FILE *out, const char *log_path, const SearchFacts *f, Error *err) {
    Log log;
    if (!search_check(f, err)) return false;
    Search s = search_all(f, &search_everything);
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
