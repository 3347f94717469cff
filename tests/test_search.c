// dev/plan/search.c against clusters that were measured, and against sums by hand.
#include "../dev/plan/search.c"
#include "test.h"

// Megatron's trainer in fp16 as of 2021, counted in its source.
//   memory: 20 bytes a parameter, as its documentation counts; 2 more for the message into which it
//   flattens the gradients; logits in fp32, and their gradient in fp16
//   traffic: gradients are flattened, divided and copied back, 4 bytes each. A micro-batch's
//   gradient is added by a kernel of its own, 6. An update copies gradients to fp32, 6, unscales
//   them, 8, computes their norm, 4, runs Adam, 28, and copies the weights to fp16, 6. A logit
//   becomes fp32, 6, its maximum 4, shift 8, exponential 8, sum 4, quotient 8; then its gradient is
//   scaled, 8, and becomes fp16, 6
//   it refuses to interleave a pipeline of two stages
static const SearchTrainer megatron = { false, true, true, false, 3, 6, 2, 2, 12, 6, 52, 6, 52 };

static SearchFacts facts_of(Config c, int T, const char *machine) {
    SearchFacts f;
    Error err;
    memset(&f, 0, sizeof f);
    if (!plan_machine_parse(&f.machine, machine, &err)) die("%s", err.text);
    f.c = c;
    f.T = T;
    f.tokens = 300e9;
    f.trainer = megatron;
    return f;
}

// ---- published clusters ----

// TFLOP/s of a GPU by equation 3 of Narayanan et al. 2021, all recomputed and without ZeRO.
static double reached(const SearchFacts *f, const SearchRow *row) {
    double s = f->T, l = f->c.L, h = f->c.C, V = f->c.V;
    double flop = 96.0*f->batch*l*h*h * (1.0 + s/(6.0*h) + V/(16.0*l*h));
    return 1e-12 * flop / row->step / f->machine.count;
}

// Their table 1: V = 51200, A100s of 80 GB in DGX machines of 8, in TFLOP/s a GPU.
static const struct {
    int heads, h, layers, t, p, gpus, batch;     // batch: sequences
    double published;
} clusters[] = {
    { 24, 2304, 24, 1, 1, 32, 512, 137 },
    { 32, 3072, 30, 2, 1, 64, 512, 138 },
    { 32, 4096, 36, 4, 1, 128, 512, 142 },
    { 48, 6144, 40, 8, 1, 256, 1024, 135 },
    { 64, 8192, 48, 8, 2, 512, 1536, 138 },
    { 80, 10240, 60, 8, 4, 1024, 1792, 140 },
    { 96, 12288, 80, 8, 8, 1536, 2304, 148 },
    { 128, 16384, 96, 8, 16, 1920, 2160, 155 },
    { 128, 20480, 105, 8, 35, 2520, 2520, 163 },
    { 160, 25600, 128, 8, 64, 3072, 3072, 163 },
};

// Their cut against our fastest: in eight rows their choice is within 10%. For 18.4 and 39.1
// billion the search finds tensor 2 in a pipeline of 4 and of 8 interleaved stages 16 and 19%
// faster than tensor 8. The model is 2 and 0% off what they measured in these rows, so it is the other
// mixture that is in doubt: nobody has measured it. Their rule takes tensor parallelism up to a
// machine first and does not try the others.
TEST(published_clusters) {
    int near_best = 0;
    double error = 0.0, slowest = 0.0;
    for (size_t i = 0; i < sizeof clusters / sizeof *clusters; i++) {
        Config c = { clusters[i].layers, clusters[i].heads, clusters[i].h, 51200, 2048, 0 };
        char machine[80];
        snprintf(machine, sizeof machine, "a100,%d,300GB/s:8+25GB/s", clusters[i].gpus);
        SearchFacts f = facts_of(c, 2048, machine);
        f.batch = 2048.0 * clusters[i].batch;
        Search all = search_all(&f);
        const SearchRow *own = all.rows;
        while (own->cut.tensor != clusters[i].t || own->cut.pipe != clusters[i].p) own++;
        double off = reached(&f, own) / clusters[i].published - 1.0;
        CHECK_MSG(fabs(off) <= 0.11 && own - all.rows < all.fit, "row %zu is off by %.3g", i, off);
        double slower = own->step / all.rows[0].step;
        error += fabs(off) / 10.0;
        near_best += slower <= 1.10;
        slowest = fmax(slowest, slower);
    }
    CHECK_MSG(error <= 0.05, "mean error %.3f", error);
    CHECK_MSG(near_best >= 8 && slowest <= 1.20, "%d choices of 10 within 10%% of the fastest, "
              "the slowest takes %.2f times as long", near_best, slowest);
}

// Alone on a data rank, the terms are those of --plan.
TEST(bytes_are_those_of_plan) {
    Config c = { 12, 12, 768, 50304, 1024, 0 };
    SearchFacts f = facts_of(c, 1024, "h100,8,450GB/s");
    f.trainer = search_ours;
    PlanFacts p;
    memset(&p, 0, sizeof p);
    p.c = c;
    p.T = 1024;
    p.tensor = 1;
    p.machine = f.machine;
    for (int stage = 0; stage < 4; stage++)
        for (int again = 0; again < 2; again++) {
            PlanShape shape = { 16, 8, stage, again == 1 };
            SearchCut cut = { 8, 1, 1, 1, stage, 16, 1, again == 1 };
            PlanBytes b = plan_gpu_bytes(&p, &shape);
            NEAR(search_bytes(&f, &cut), plan_total(&b), 0.01);
        }
}

// ---- by hand ----

// 24 columns of a product fill 19% of a tile of 128.
TEST(tiles_by_hand) {
    Config c = { 2, 8, 192, 1024, 128, 0 };
    SearchFacts f = facts_of(c, 128, "a100,8,300GB/s");
    double speed = SEARCH_PRODUCTS * 312e12, wave = 2.0*128*128*1024 / speed * 108;
    Walls w = { { 0 } };
    search_tiles(&w, &f, 1, 108*128, 24, 1024, 0);       // one wave of tiles
    NEAR(w.s[WALL_PRODUCTS], wave * 24/128, 1e-12);
    NEAR(w.s[WALL_TILES], wave * 104/128, 1e-12);
    memset(&w, 0, sizeof w);
    search_tiles(&w, &f, 1, 109*128, 128, 1024, 0);      // one tile more: two waves
    NEAR(walls_sum(&w), 2*wave, 1e-12);
    memset(&w, 0, sizeof w);
    search_tiles(&w, &f, 1, 128, 128, 1024, 0);          // one tile, two slices of k
    NEAR(walls_sum(&w), wave/2, 1e-12);
    memset(&w, 0, sizeof w);
    search_tiles(&w, &f, 1, 108*128, 128, 1024, SEARCH_MEMORY*2039e9);   // a second of traffic
    NEAR(walls_sum(&w), 1.0, 1e-9);
}

// A ring of 4 in a machine; 2 and 2 in two machines, two levels: half of the bytes within, then a
// quarter between them.
TEST(exchanges_by_hand) {
    Config c = { 2, 8, 512, 1024, 128, 0 };
    SearchFacts f = facts_of(c, 128, "a100,16,100GB/s+1us:8+10GB/s+2us");
    NEAR(search_exchange(&f, 8e9, 4, 1, 1), 8.0*3/4/80 + 3e-6, 1e-12);
    NEAR(search_exchange(&f, 8e9, 4, 4, 1), 8.0/2/80 + 1e-6 + 8.0/4/8 + 2e-6, 1e-12);
    NEAR(search_exchange(&f, 8e9, 2, 8, 1), 8.0/2/8 + 2e-6, 1e-12);      // one a machine
    CHECK(search_exchange(&f, 8e9, 1, 1, 1) == 0.0);
    CHECK(search_link(&f, 8) == WALL_NEAR && search_link(&f, 16) == WALL_FAR);
}

// A pipeline of p stages waits (p-1)/(v m) of its time: 3 of 8 micro-batches, 3/2 with two chunks.
// Once an update, the gradients of 8 micro-batches are added, 7 times 6 bytes a parameter, and the
// first and the last stage sum the gradient of the embedding, V = C = 1024.
TEST(bubble_by_hand) {
    Config c = { 16, 8, 1024, 1024, 1024, 0 };
    SearchFacts f = facts_of(c, 1024, "a100,4,300GB/s");
    f.batch = 8 * 1024;
    Walls forward, backward, head = { { 0 } };
    search_layer(&forward, &backward, &f, 1, 1);
    for (int chunks = 1; chunks <= 2; chunks++) {
        SearchRow row;
        memset(&row, 0, sizeof row);
        SearchCut cut = { 1, 1, 4, chunks, 0, 1, 8, false };
        row.cut = cut;
        search_update(&row, &f, &forward, &backward, &head);
        double moved = (52.0 + 7*6.0) * search_params(&f, &cut) / search_stream(&f.machine);
        double tied = 2.0*1024*1024 / (SEARCH_LINK*300e9) + 2*SEARCH_WAIT;
        double busy = row.step - row.walls.s[WALL_BUBBLE] - moved - tied;
        CHECK(row.walls.s[WALL_UNEVEN] == 0.0);
        NEAR(row.walls.s[WALL_BUBBLE] / busy, 3.0/8/chunks, 1e-9);
        double send = 2.0*chunks*8 * (2.0*1024*1024 / (SEARCH_LINK*300e9) + SEARCH_WAIT);
        NEAR(row.walls.s[WALL_NEAR], send + tied, 1e-9);
    }
}

// Between machines each of 2 ranks sends half of (B,T,C), forward and backward; the halves are
// gathered within the machine. 10 layers on 4 stages: the fullest has 3, the mean is 2.5.
TEST(boundaries_and_uneven_stages_by_hand) {
    Config c = { 10, 8, 1024, 1024, 1024, 0 };
    SearchFacts f = facts_of(c, 1024, "a100,8,300GB/s+1us:2+25GB/s");
    Walls forward = { { 0 } }, backward = { { 0 } }, head = { { 0 } };
    forward.s[WALL_PRODUCTS] = 1.0;
    backward.s[WALL_PRODUCTS] = 2.0;
    SearchRow row;
    memset(&row, 0, sizeof row);
    SearchCut cut = { 1, 2, 4, 1, 0, 1, 8, false };
    row.cut = cut;
    search_update(&row, &f, &forward, &backward, &head);
    double bytes = 2.0*1024*1024;
    double tied = 2 * (2.0*1024*1024/2 / 2 / (SEARCH_LINK*25e9) + SEARCH_WAIT);
    NEAR(row.walls.s[WALL_FAR], 8 * 2 * (bytes/2 / (SEARCH_LINK*25e9) + SEARCH_WAIT) + tied, 1e-9);
    NEAR(row.walls.s[WALL_NEAR], 8 * 2 * (bytes/2 / (SEARCH_LINK*300e9) + 1e-6), 1e-9);
    NEAR(row.walls.s[WALL_PRODUCTS], 8 * 2.5 * 3.0, 1e-12);
    NEAR(row.walls.s[WALL_UNEVEN], 8 * 0.5 * 3.0, 1e-12);
}

// The first of 4 stages keeps what 4 micro-batches leave for the backward pass: with recompute the
// inputs of its layers, 2 bytes an element.
TEST(pipelines_keep_several_micro_batches) {
    Config c = { 16, 8, 1024, 1024, 1024, 0 };
    SearchFacts f = facts_of(c, 1024, "a100,4,300GB/s");
    SearchCut one = { 1, 1, 4, 1, 0, 1, 1, true }, many = one, dealt;
    many.micros = 8;
    dealt = many;
    dealt.chunks = 2;
    double layer = 2.0*1024*1024, bytes = search_bytes(&f, &one);
    NEAR(search_bytes(&f, &many) - bytes, 3 * 4*layer, 1e-9);
    NEAR(search_bytes(&f, &dealt) - bytes, (4 * (1 + 3.0/8) - 1) * 4*layer, 1e-9);
}

// What fits beats what does not; among those that fit the fastest wins, else the smallest.
TEST(what_fits_comes_first) {
    SearchRow fast, slow;
    memset(&fast, 0, sizeof fast);
    slow = fast;
    fast.step = 1.0;
    fast.bytes = 2e9;
    slow.step = 2.0;
    slow.bytes = 1e9;
    CHECK(search_better(&fast, &slow, 3e9) && !search_better(&slow, &fast, 3e9));
    CHECK(search_better(&slow, &fast, 1.5e9) && !search_better(&fast, &slow, 1.5e9));
    CHECK(search_better(&slow, &fast, 0.5e9));
    Config c = { 48, 25, 1600, 50257, 1024, 0 };
    SearchFacts f = facts_of(c, 1024, "a100,16,300GB/s:8+25GB/s");
    f.batch = 1 << 20;
    f.trainer.only_zero_0 = f.trainer.only_recomputes = false;
    Search s = search_all(&f);
    CHECK(s.n == 5 && s.fit > 0);                // pipelines of 1, 2, 4, 8 and 16; 25 heads
    for (int i = 1; i < s.n; i++)
        CHECK(!search_better(&s.rows[i], &s.rows[i-1], f.machine.memory));
}

// With recompute a layer sums (B,T,C) six times, without it four times. The embedding and the
// classifier sum it once each, and cross-entropy three numbers a token.
TEST(tensor_sums_by_hand) {
    Config c = { 1, 8, 1024, 1024, 1024, 0 };
    SearchFacts f = facts_of(c, 1024, "a100,2,300GB/s+1us");
    Walls forward, backward;
    search_layer(&forward, &backward, &f, 2, 4);
    double sum = 2.0 * (4.0*1024*1024*2 * 1/2 / (SEARCH_LINK*300e9) + 1e-6);
    NEAR(forward.s[WALL_NEAR], 2*sum, 1e-9);
    NEAR(2*forward.s[WALL_NEAR] + backward.s[WALL_NEAR], 6*sum, 1e-9);
    Walls head;
    search_head(&head, &f, 2, 4);
    double xent = 2.0 * (3*4.0*1024*4 * 1/2 / (SEARCH_LINK*300e9) + 3*1e-6);
    NEAR(head.s[WALL_NEAR], 2*sum + xent, 1e-9);
    double memory = head.s[WALL_MEMORY];
    f.trainer.logit_moved = 0;
    search_head(&head, &f, 2, 4);
    NEAR(memory - head.s[WALL_MEMORY], 52.0*4*1024*512 / search_stream(&f.machine), 1e-9);
}

int main(void) { return run_tests(); }
