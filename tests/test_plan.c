// The formulas of dev/plan/plan.c against the papers that they are from, and the plan that is made
// of them: what fits, what hides, what is missing. tests/test_plan.sh compares bytes kept and sent
// with those of real runs.
#include "../dev/plan/plan.c"
#include "../dev/plan/plan_show.c"
#include "test.h"

// What the published GPT-3 is, as Narayanan et al. count it: 175 billion, V = 51200.
static const Config gpt3 = { 96, 96, 12288, 51200, 2048, 0 };
static const double YEAR = 365.25 * 86400.0, DAY = 86400.0;

static PlanFacts facts_of(const char *model, const char *machine) {
    PlanFacts f;
    Error err;
    memset(&f, 0, sizeof f);
    f.c.V = 50257;
    f.c.P = f.T = 1024;
    if (!gpt2_preset(&f.c, model, &err) || !plan_machine_parse(&f.machine, machine, &err))
        die("%s", err.text);
    f.shape.micro_batch = 16;
    f.shape.workers = f.machine.count;
    f.tensor = 1;
    f.batch_tokens = 16LL * f.T * f.machine.count;
    f.precision = "bf16";
    f.grad_bytes = 4;
    f.param_bytes = 2;
    f.may_recompute = true;
    f.count = plan_gpu_bytes;
    return f;
}

static char *shown(const PlanFacts *f) {
    TextBuffer buffer;
    RunPlan p = plan_estimate(f);
    text_begin(&buffer);
    plan_show(buffer.f, f, &p);
    text_end(&buffer);
    return buffer.text;
}

// ---- published numbers ----

// Printed in papers, or written as they are printed there. 854 MFLOP a token of GPT-2 124M are
// counted by hand: 6 (12 L C^2 + C V) + 12 L C T. Narayanan et al. 2021: 288 years on one V100 and
// 34 days on 1,024 A100s (sections 1, 5.1), from nothing but their round 175 billion; equation 3,
// for a batch of 1536 sequences.
TEST(published_numbers) {
    const Config d12 = { 12, 12, 768, 50257, 1024, 0 };
    double B = 1536, s = 2048, l = 96, h = 12288, V = 51200;
    const struct { const char *what; double is, published, tolerance; } rows[] = {
        { "parameters of d12", plan_params(&d12), 124439808, 0 },
        { "parameters of GPT-3", plan_params(&gpt3), 175e9, 3e-3 },
        { "FLOP of d12", gpt2_flops_per_token(&d12, 1024),
          6.0*(12*12*768.0*768 + 768.0*50257) + 12.0*12*768*1024, 1e-12 },
        { "years", plan_rule_seconds(175e9, 300e9, 1, 46.2e12, true) / YEAR, 288, 1.7e-3 },
        { "days", plan_rule_seconds(175e9, 300e9, 1024, 140e12, true) / DAY, 34, 1.4e-2 },
        { "6ND/(nX)", plan_rule_seconds(1e9, 20e9, 4, 1e14, false), 6.0*1e9*20e9 / 4e14, 1e-12 },
        { "equation 3", plan_flops_done(&gpt3, 2048, true) * B*s,
          96*B*s*l*h*h * (1 + s/(6*h) + V/(16*l*h)), 1e-12 },
        { "without recompute", plan_flops_done(&gpt3, 2048, false),
          gpt2_flops_per_token(&gpt3, 2048), 0 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        CHECK_MSG(fabs(rows[i].is / rows[i].published - 1.0) <= rows[i].tolerance,
                  "%s: %.9g, not %.9g", rows[i].what, rows[i].is, rows[i].published);
}

// llm.c's scripts, and the plan of the same run beside what they measured. The plan assumes 40% of
// the data sheet; theirs reach more, so that its seconds are too many by that ratio.
TEST(llm_c_measured) {
    static const struct { const char *model, *machine; int64_t batch; double plan, llm_c, of_peak; }
        rows[] = {
        { "d12", "a100,8,300GB/s", 1 << 19, 0.449, 0.30, 0.60 },
        { "d24", "a100,8,300GB/s", 1 << 19, 1.273, 0.82, 0.62 },
        { "d36", "a100,8,300GB/s", 1 << 19, 2.733, 1.70, 0.64 },
        { "d48", "h100,8,450GB/s", 1 << 20, 3.405, 2.80, 0.49 },
    };
    for (int i = 0; i < 4; i++) {
        PlanFacts f = facts_of(rows[i].model, rows[i].machine);
        f.batch_tokens = rows[i].batch;
        f.shape.zero = 1;
        f.tokens = 31000000000;
        RunPlan p = plan_estimate(&f);
        NEAR(p.step, rows[i].plan, 1e-3);
        CHECK(p.published == rows[i].llm_c);
        NEAR(p.flops * (double)f.batch_tokens / (8 * f.machine.peak * p.published),
             rows[i].of_peak, 1e-2);
        char *text = shown(&f);
        CHECK_MSG(strstr(text, "assumes 40% of the peak"), "%s", text);
        CHECK_MSG(i < 3 || strstr(text, " 2.8 s per update, 49% of the peak: 23 hours\n"), "%s",
                  text);
        free(text);
        f.machine.count = 16;
        CHECK(isnan(plan_published_seconds(&f)));
    }
}

// Between the rows of plan_measured straight in logarithms, and nothing beyond them.
TEST(critical_batch_sizes) {
    NEAR(plan_b_crit(118592, 262144), 2759.59, 1e-12);
    NEAR(plan_b_crit(118592, 524288), 4813.34, 1e-12);
    NEAR(plan_b_crit(830336, 524288 * sqrt(2)), sqrt(4813.34 * 8600.30), 1e-12);
    CHECK(isnan(plan_b_crit(118592, 262143)) && isnan(plan_b_crit(118592, 1048577)));
    CHECK(isnan(plan_b_crit(2e6, 524288)) && isnan(plan_b_crit(118592, NAN)));
}

// ---- networks ----

// By hand: what each way sends within and between machines, and how many messages wait in turn.
// `own` are comm.c's: direct messages in each level.
TEST(ways_between_machines) {
    const double in = 1e9 / 300e9, out = 1e9 / 25e9;
    const struct { PlanWay way; double n, messages, G; bool own; double seconds; } rows[] = {
        { PLAN_RING, 32, 3, 8, false, 31.0/32 * out/8 + 3*31*10e-6 },
        { PLAN_TREE, 32, 3, 8, false, out/8 + 3*(3*2e-6 + 2*10e-6) },
        { PLAN_TWO_LEVELS, 32, 3, 8, false, 7.0/8*in + 3*7*2e-6 + 3.0/32*out + 3*3*10e-6 },
        { PLAN_DIRECT, 32, 3, 8, false, 7.0/32*in + 24.0/32*out + 3*10e-6 },
        { PLAN_RING, 8, 2, 8, false, 7.0/8*in + 2*7*2e-6 },
        { PLAN_TWO_LEVELS, 32, 3, 8, true, 7.0/8*in + 3.0/32*out + 3*2e-6 + 3*10e-6 },
        { PLAN_DIRECT, 8, 1, 8, true, 7.0/8*in + 2e-6 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        PlanNetwork w = { 300e9, 25e9, 2e-6, 10e-6, rows[i].G, rows[i].own };
        NEAR(plan_way_seconds(rows[i].way, 1e9, rows[i].n, rows[i].messages, &w), rows[i].seconds,
             1e-12);
    }
}

// The fastest of three, and comm.c's own: two levels on machines of a power of two, else directly.
TEST(best_ways) {
    static const struct { double bytes, n, G, near; bool own; PlanWay best; } rows[] = {
        { 1e11, 32, 8, 300e9, false, PLAN_RING },        // 31 messages wait, but for little
        { 1e3, 32, 8, 300e9, false, PLAN_TREE },         // it waits for fewest messages
        { 1e11, 32, 8, 900e9, false, PLAN_TWO_LEVELS },
        { 1e11, 30, 8, 900e9, false, PLAN_RING },        // machines are not full
        { 1e9, 8, 8, 900e9, false, PLAN_RING },
        { 1e3, 32, 8, 300e9, true, PLAN_TWO_LEVELS }, { 1e9, 24, 6, 300e9, true, PLAN_DIRECT },
        { 1e9, 4, 1, 300e9, true, PLAN_DIRECT },      { 1e9, 8, 8, 300e9, true, PLAN_DIRECT },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        PlanNetwork w = { rows[i].near, 25e9, 2e-6, 10e-6, rows[i].G, rows[i].own };
        CHECK_MSG(plan_best_way(rows[i].bytes, rows[i].n, 1, &w) == rows[i].best, "row %zu", i);
    }
}

// ---- the machine ----

TEST(machines_are_read) {
    static const char *const rows[][2] = {         // count x TFLOP/s, GB: link; far link; price
        { "h100,8,450GB/s,2.5", "8 x 395.6 of 989, 79: 4.5e+11+0; 0 x 0+0; 2.5 assumed gpu bf16" },
        { "v100@46.2,1", "1 x 46.2 of 125, 31: 0+0; 0 x 0+0; -1 given gpu" },
        { "a100,16,100Gb/s+5us",
          "16 x 124.8 of 312, 79: 1.25e+10+5e-06; 0 x 0+0; -1 assumed gpu bf16" },
        { "b200,16,3GB/s+2us:4+800Mb/s+10us,2",
          "16 x 900 of 2250, 179: 3e+09+2e-06; 4 x 1e+08+1e-05; 2 assumed gpu bf16" },
        { "l4,1,,0.8", "1 x 48.4 of 121, 23: 0+0; 0 x 0+0; 0.8 assumed gpu bf16" },
        { "mine@12,3,2MB/s", "3 x 12 of 0, 0: 2e+06+0; 0 x 0+0; -1 given gpu bf16" },
        { "here,2", "2 x 0 of 0, 0: 0+0; 0 x 0+0; -1 unknown bf16" },
    };
    static const char *const from[] = { "unknown", "given", "assumed", "measured" };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        PlanMachine m;
        Error err;
        char found[200];
        CHECK(plan_machine_parse(&m, rows[i][0], &err));
        snprintf(found, sizeof found, "%d x %g of %g, %g: %g+%g; %d x %g+%g; %g %s%s%s", m.count,
                 1e-12 * m.speed, 1e-12 * m.peak, 1e-9 * m.memory, m.link, m.latency, m.per_machine,
                 m.far_link, m.far_latency, m.price, from[m.speed_from], m.gpu ? " gpu" : "",
                 m.bf16 ? " bf16" : "");
        CHECK_MSG(strcmp(found, rows[i][1]) == 0, "%s: %s", rows[i][0], found);
    }
}

TEST(wrong_machines_say_what_is_missing) {
    static const char *const wrong[][2] = {
        { "h100", "COUNT" }, { "h100,2.5", "not a number of devices" },
        { "h100,0", "not a number of devices" }, { "x99,8", "x99@100,8 for 100 TFLOP/s" },
        { "x99,8", "v100, t4, a10, a100" }, { "h100@0,8", "not a speed" }, { ",8", "NAME" },
        { "v100,8", "has no bf16" }, { "h100,8,450", "GB/s" }, { "h100,8,GB/s", "GB/s" },
        { "h100,8,450GB/s+5", "GB/s" }, { "h100,16,450GB/s:8", "GB/s" },
        { "h100,16,450GB/s:0+25GB/s", "GB/s" }, { "h100,8,450GB/s,cheap", "price" },
        { "h100,8,450GB/s,-2", "price" }, { "h100,8,450GB/s,2,3", "more than" },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        PlanMachine m;
        Error err = { "" };
        CHECK_MSG(!plan_machine_parse(&m, wrong[i][0], &err), "'%s' is taken", wrong[i][0]);
        CHECK_MSG(strstr(err.text, wrong[i][1]) && !strchr(err.text, '\n'), "'%s' says: %s",
                  wrong[i][0], err.text);
    }
}

// ---- memory ----

// Names as nvidia-smi prints them. Other boards with the same chip have other speeds; 0: unknown.
TEST(data_sheets_are_found_by_the_drivers_name) {
    static const struct { const char *gpu; double tflops; } names[] = {
        { "NVIDIA H100 80GB HBM3", 989 }, { "NVIDIA H100 PCIe", 756 }, { "NVIDIA L4", 121 },
        { "NVIDIA A100-SXM4-80GB", 312 }, { "NVIDIA A10", 125 }, { "NVIDIA A10G", 0 },
        { "NVIDIA GeForce RTX 3090 Ti", 0 }, { "Tesla T4", 0 }, { "", 0 },
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        double flops = plan_datasheet_flops(names[i].gpu);
        CHECK_MSG(names[i].tflops == 0 ? isnan(flops) : flops == 1e12 * names[i].tflops, "%s: %g",
                  names[i].gpu, flops);
    }
}

// Counted by hand, as in plan.c: GPT-2's four widths on an H100, other GPUs, fp32 (4 bytes).
TEST(chunks_of_logits_fill_whole_waves) {
    static const struct { size_t N, V, C, bytes, rows; int multiprocessors; } known[] = {
        { 65536, 50304, 768, 2, 11264, 132 }, { 16384, 50304, 768, 2, 11264, 132 },
        { 65536, 50304, 1024, 2, 12544, 132 }, { 65536, 50304, 1280, 2, 9984, 132 },
        { 65536, 50304, 1600, 2, 12032, 132 }, { 65536, 50304, 768, 2, 9216, 108 },
        { 65536, 50304, 768, 4, 5632, 132 }, { 65536, 8192, 768, 2, 65536, 132 },
        { 13340, 50304, 768, 2, 13340, 132 }, { 13341, 50304, 768, 2, 11264, 132 },
        { 65536, 50304, 256, 2, 13108, 132 },    // a wave has no room: 5 equal chunks
        { 65536, 50304, 768, 2, 13108, 0 },      // an unknown GPU
        { 3, 1u << 30, 768, 2, 1, 132 },
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t rows = logits_chunk_rows(known[i].N, known[i].V, known[i].C, known[i].bytes,
                                        known[i].multiprocessors);
        CHECK_MSG(rows == known[i].rows, "%zu: %zu rows, not %zu", i, rows, known[i].rows);
    }
}

// What is said to fit does, and one more does not, whatever is asked for.
TEST(what_fits_is_the_most_that_does) {
    static const char *const models[] = { "d12", "d48" };
    for (int i = 0; i < 2; i++)
        for (int recompute = 0; recompute < 2; recompute++) {
            PlanFacts f = facts_of(models[i], "a100,8");
            PlanShape s = f.shape;
            s.recompute = recompute;
            int B = plan_largest_micro_batch(&f, s, f.machine.memory);
            CHECK(B > 0);
            s.micro_batch = B;
            CHECK(plan_bytes_of(&f, s) <= f.machine.memory);
            for (s.micro_batch = B + 1; s.micro_batch <= 2*B + 8; s.micro_batch++)
                if (plan_bytes_of(&f, s) <= f.machine.memory) break;
            CHECK_MSG(s.micro_batch > 2*B + 8, "%s: %d fits, too", models[i], s.micro_batch);
        }
    PlanFacts f = facts_of("d48", "4090,2");
    f.shape.micro_batch = 1;
    for (int stage = 1; stage < 4; stage++) {
        PlanShape s = f.shape;
        s.zero = stage;
        s.workers = plan_fewest_workers(&f, f.shape, stage, f.machine.memory);
        CHECK(s.workers >= 2 && plan_bytes_of(&f, s) <= f.machine.memory);
        s.workers--;
        CHECK(plan_bytes_of(&f, s) > f.machine.memory || s.workers == 1);
    }
    CHECK(plan_largest_micro_batch(&f, f.shape, 1e9) == 0);
    CHECK(plan_fewest_workers(&f, f.shape, 3, 1e6) == 0);
}

// ---- time ----

// One worker: FLOP over speed, and the whole run from it.
TEST(time_of_one_worker) {
    PlanFacts f = facts_of("d12", "a100@150,1,,2");
    f.tokens = 10000000000;
    RunPlan p = plan_estimate(&f);
    double step = p.flops * 16 * 1024 / 150e12;
    NEAR(p.step, step, 1e-12);
    NEAR(p.compute, step, 1e-12);
    CHECK(p.exposed == 0 && p.comm == 0 && p.traffic == 0 && p.steps == ceil(1e10 / 16384));
    NEAR(p.seconds, p.flops * 1e10 / 150e12, 1e-12);
    NEAR(p.device_hours, p.seconds / 3600, 1e-12);
    NEAR(p.cost, 2 * p.device_hours, 1e-12);
    NEAR(p.rule_seconds, 6.0 * 124439808 * 1e10 / 150e12, 1e-12);
}

// Eight workers, four micro-batches: gradients travel once an update, so that the share of what
// does not hide is four times smaller than of an update of one.
TEST(accumulation_divides_the_exposed_share) {
    PlanFacts f = facts_of("d12", "h100@400,8,1GB/s");
    RunPlan one = plan_estimate(&f);
    f.batch_tokens *= 4;
    RunPlan four = plan_estimate(&f);
    CHECK(four.micro_batches == 4 && one.micro_batches == 1);
    NEAR(four.compute, 4 * one.compute, 1e-12);
    NEAR(four.exposed, one.exposed, 1e-12);
    NEAR(four.comm, 2.0*7/8 * 4*124439808 / 1e9, 1e-12);
    NEAR(four.comm, four.hidden + four.exposed, 1e-12);
    // Only the backward pass of one micro-batch, two thirds of its time, hides a slow network.
    NEAR(one.hidden, one.compute * 2 / 3, 1e-12);
}

// A fast network hides but for the embeddings, which are complete last.
TEST(embeddings_do_not_hide) {
    PlanFacts f = facts_of("d12", "h100@400,8,450GB/s");
    RunPlan p = plan_estimate(&f);
    double late = (50257.0 + 1024) * 768 / 124439808;
    NEAR(p.exposed, late * p.comm, 1e-12);
    f.in_turn = true;
    p = plan_estimate(&f);
    NEAR(p.exposed, p.comm, 1e-12);
}

// Two ranks a group, 4 GPUs in machines of 2: sums of (4L+2) B T C in bf16 within a machine, and
// gradients of half of the model between machines. Products are halved; 50,257 words make 25,216
// rows, 197 tiles of 128 for 393.
TEST(tensor_parallel_by_hand) {
    PlanFacts f = facts_of("d12", "h100@400,4,100GB/s+1us:2+10GB/s+5us");
    f.tensor = f.shape.workers = 2;
    f.batch_tokens = 2 * 2 * 16 * 1024;          // 2 micro-batches a group
    f.in_turn = true;
    RunPlan p = plan_estimate(&f);
    double sum = 16.0*1024*768 * 2, xent = 12.0*16*1024;
    NEAR(plan_tensor_bytes(&f), 50*sum + xent, 1e-12);
    NEAR(p.tensor, 2 * (50 * (sum / 100e9 + 2e-6) + xent / 100e9 + 1e-6), 1e-12);
    Config c = gpt2_share(&f.c, 2);
    double grads = 4.0 * (double)gpt2_n_params(&c), buckets = gpt2_n_buckets(&c);
    NEAR(p.comm, p.tensor + grads / 10e9 + 2*buckets * 5e-6, 1e-9);
    NEAR(p.traffic, 2 * (50*sum + xent) + grads, 1e-12);
    CHECK(p.exposed == p.comm);
    double whole = gpt2_flops_per_token(&f.c, 1024), head = 6.0*768*50257;
    double part = (whole - head)/2 + 6.0*768*197*128;
    NEAR(p.compute, p.flops * part / (whole - head + 6.0*768*393*128) * 32*1024 / 400e12, 1e-9);
    f.shape.recompute = true;
    NEAR(plan_tensor_bytes(&f), 61*sum + xent, 1e-12);
    f.tensor = 1;
    CHECK(plan_tensor_seconds(&f) == 0.0 && plan_tensor_bytes(&f) == 0.0);
}

// 8 ranks of 24 columns each: fc has 96 of 128 columns of a tile, so 0.75 of a tile's time is used.
TEST(tensor_parallel_fills_tiles) {
    Config c = { 2, 8, 192, 1024, 128, 0 };
    double one = 6.0*2*192 * (128 + 128 + 2*128) + 6.0*192*128 + 12.0*2*128*192/8;
    NEAR(plan_cut_flops(&c, 128, 8, 128), one, 1e-12);
    NEAR(plan_cut_flops(&c, 128, 1, 1), gpt2_flops_per_token(&c, 128), 1e-12);
    NEAR(plan_cut_flops(&c, 128, 4, 16), gpt2_flops_per_token(&c, 128) / 4, 1e-12);
}

// ---- what is not known ----

TEST(unknown_facts_stay_unknown) {
    PlanFacts f = facts_of("d12", "mine@100,8");
    RunPlan p = plan_estimate(&f);
    CHECK(isnan(p.seconds) && isnan(p.cost) && isnan(p.b_crit) && isnan(p.published));
    CHECK(isnan(p.comm) && isnan(p.exposed) && p.traffic > 0 && isfinite(p.step));
    f.tokens = 1000000000;
    p = plan_estimate(&f);
    CHECK(isfinite(p.seconds) && isfinite(p.device_hours) && isnan(p.cost));
}

// Nothing that a person reads is "nan", and what is missing is named; no line is wider than 80.
TEST(plans_are_readable) {
    static const char *const machines[] = {
        "h100,8,450GB/s+5us,2.5", "v100@46.2,1", "mine@100,8", "4090,2", "l4,1,,0.8",
        "b200@900,100000,100Gb/s", "h100,1024,300GB/s+2us:8+25GB/s+10us,2.5",
    };
    static const char *const models[] = { "d4", "d12", "d48" };
    for (int i = 0; i < 7; i++)
        for (int k = 0; k < 3 * 2 * 2; k++) {
            PlanFacts f = facts_of(models[k % 3], machines[i]);
            f.tokens = k / 3 % 2 ? 300000000000 : 0;
            f.shape.zero = k / 6 * 3;
            f.batch_tokens *= 2;
            f.shape.recompute = k % 2;
            f.tensor = f.machine.count % 2 == 0 && k / 3 % 2 ? 2 : 1;
            f.shape.workers = f.machine.count / f.tensor;
            f.machine.adam_seconds = k % 4 == 1 ? 5e-10 : 0;
            char *text = shown(&f);
            CHECK_MSG(!strstr(text, "nan") && !strstr(text, "inf"), "%s", text);
            CHECK(!strstr(text, "--tokens N") == (f.tokens > 0));
            CHECK(!strstr(text, "LINK of") == (f.machine.link > 0 || f.machine.count == 1));
            CHECK(!strstr(text, "fits in") || f.machine.memory > 0);
            int lines = 0;
            for (const char *line = text; *line; line += strcspn(line, "\n") + 1, lines++)
                CHECK_MSG(strcspn(line, "\n") <= 80, "%.*s", (int)strcspn(line, "\n"), line);
            CHECK_MSG(lines <= 38, "%d lines", lines);
            free(text);
        }
}

TEST(units) {
    const struct { const char *text; Shown shown; } cases[] = {
        { "288 years", plan_time(288.06 * YEAR) }, { "33.9 days", plan_time(33.9 * DAY) },
        { "2.34 ms", plan_time(0.00234) }, { "100 s", plan_time(99.96) },
        { "1.39 TB", plan_size(1387e9) }, { "498 MB", plan_size(497.8e6) },
        { "854 MFLOP", plan_flop(854.4e6) }, { "2.26M", plan_large(2257397) },
        { "1234", plan_digits(1234.4) },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK_MSG(strcmp(cases[i].shown.text, cases[i].text) == 0, "%s", cases[i].shown.text);
}

int main(void) { return run_tests(); }
