// The formulas of dev/train/plan.h against the papers that they are from, and the plan that is made
// of them: what fits, what hides, what is missing. tests/test_plan.sh compares bytes kept and sent
// with those of real runs.
#include "../dev/train/plan.h"
#include "test.h"

static bool near(double a, double b, double tolerance) {
    return fabs(a - b) <= tolerance * fabs(b);
}
#define NEAR(a, b, tolerance) \
    CHECK_MSG(near((a), (b), (tolerance)), "%s is %.9g, not %.9g", #a, (double)(a), (double)(b))

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

// ---- published numbers ----

// Parameters of the four GPT-2s; 854 MFLOP a token of the smallest at T=1024, counted by hand:
// 6 (12 L C^2 + C V) + 12 L C T.
TEST(gpt2s_have_their_sizes) {
    const struct { const char *name; double params, flops; } models[] = {
        { "d12", 124439808, 6.0*(12*12*768.0*768 + 768.0*50257) + 12.0*12*768*1024 },
        { "d24", 354823168, 6.0*(12*24*1024.0*1024 + 1024.0*50257) + 12.0*24*1024*1024 },
        { "d36", 774030080, 6.0*(12*36*1280.0*1280 + 1280.0*50257) + 12.0*36*1280*1024 },
        { "d48", 1557611200, 6.0*(12*48*1600.0*1600 + 1600.0*50257) + 12.0*48*1600*1024 },
    };
    for (int i = 0; i < 4; i++) {
        PlanFacts f = facts_of(models[i].name, "h100,1");
        RunPlan p = plan_estimate(&f);
        CHECK((double)gpt2_n_params(&f.c) == models[i].params);
        NEAR(p.flops, models[i].flops, 1e-12);
        CHECK(p.flops_done == p.flops);
        if (i == 0) NEAR(p.flops, 854e6, 1e-3);
    }
}

// 288 years on one V100, 34 days on 1,024 A100s (Narayanan et al. 2021, sections 1 and 5.1), by
// their equation 4 with their round 175 billion. Nothing but the facts goes in.
TEST(rule_of_thumb_is_the_published_one) {
    double years = plan_rule_seconds(175e9, 300e9, 1, 46.2e12, true) / YEAR;
    double days = plan_rule_seconds(175e9, 300e9, 1024, 140e12, true) / DAY;
    CHECK_MSG(fabs(years - 288) < 0.5, "%.2f years", years);
    CHECK_MSG(fabs(days - 34) < 0.5, "%.2f days", days);
    NEAR(plan_rule_seconds(1e9, 20e9, 4, 1e14, false), 6.0*1e9*20e9 / 4e14, 1e-12);
}

// Their equation 3, written as it is printed, for a batch of 1536 sequences.
TEST(flops_with_recompute_are_equation_3) {
    double B = 1536, s = 2048, l = 96, h = 12288, V = 51200;
    double F = 96*B*s*l*h*h * (1 + s/(6*h) + V/(16*l*h));
    NEAR(plan_flops_done(&gpt3, 2048, true) * B * s, F, 1e-12);
    // That is 8/6 of the whole but for the classifier, which is not done again.
    double plain = plan_flops_done(&gpt3, 2048, false);
    CHECK(plan_flops_done(&gpt3, 2048, true) < plain * 8 / 6);
    NEAR(plan_flops_done(&gpt3, 2048, true), plain * 8 / 6, 3e-3);
    NEAR((double)gpt2_n_params(&gpt3), 175e9, 3e-3);
}

// The ZeRO paper: figure 1 (7.5 billion on 64) and table 1 (1T on 1,024), in GB as printed.
TEST(zero_paper_table) {
    static const struct { double params, workers, gb[4]; } table[] = {
        { 7.5e9, 64, { 120, 31.4, 16.6, 1.88 } }, { 7.5e9, 4, { 120, 52.5, 41.3, 30 } },
        { 128e9, 16, { 2048, 608, 368, 128 } },   { 1e12, 1024, { 16000, 4011, 2013, 15.6 } },
    };
    for (int i = 0; i < 4; i++)
        for (int stage = 0; stage < 4; stage++)
            NEAR(1e-9 * plan_textbook_bytes(table[i].params, table[i].workers, stage),
                 table[i].gb[stage], 4e-3);
}

// What comm.h does: two levels of direct messages on machines of a power of two, else one level.
TEST(own_ways_are_those_of_comm) {
    PlanNetwork w = { 300e9, 25e9, 2e-6, 10e-6, 8, true };
    CHECK(plan_best_way(1e3, 32, 1, &w) == PLAN_TWO_LEVELS);
    NEAR(plan_way_seconds(PLAN_TWO_LEVELS, 1e9, 32, 3, &w),
         1e9 * (7.0/8 / 300e9 + 3.0/32 / 25e9) + 3*2e-6 + 3*10e-6, 1e-12);
    w.G = 6;
    CHECK(plan_best_way(1e9, 24, 1, &w) == PLAN_DIRECT);
    w.G = 1;
    CHECK(plan_best_way(1e9, 4, 1, &w) == PLAN_DIRECT);
    w.G = 8;
    CHECK(plan_best_way(1e9, 8, 1, &w) == PLAN_DIRECT);      // one machine
    NEAR(plan_way_seconds(PLAN_DIRECT, 1e9, 8, 1, &w), 1e9 * 7.0/8 / 300e9 + 2e-6, 1e-12);
}

// By hand: what each way sends within and between machines, and how many messages wait in turn.
TEST(ways_between_machines) {
    PlanNetwork w = { 300e9, 25e9, 2e-6, 10e-6, 8, false };       // 4 machines of 8
    double in = 1e9 / 300e9, out = 1e9 / 25e9;
    NEAR(plan_way_seconds(PLAN_RING, 1e9, 32, 3, &w), 31.0/32 * out/8 + 3*31*10e-6, 1e-12);
    NEAR(plan_way_seconds(PLAN_TREE, 1e9, 32, 3, &w), out/8 + 3*(3*2e-6 + 2*10e-6), 1e-12);
    NEAR(plan_way_seconds(PLAN_TWO_LEVELS, 1e9, 32, 3, &w),
         7.0/8*in + 3*7*2e-6 + 3.0/32*out + 3*3*10e-6, 1e-12);
    NEAR(plan_way_seconds(PLAN_DIRECT, 1e9, 32, 3, &w),
         7.0/32*in + 24.0/32*out + 3*10e-6, 1e-12);
    CHECK(plan_best_way(1e11, 32, 1, &w) == PLAN_RING);    // 31 messages wait, but for little
    CHECK(plan_best_way(1e3, 32, 1, &w) == PLAN_TREE);     // it waits for fewest messages
    w.near = 900e9;
    CHECK(plan_best_way(1e11, 32, 1, &w) == PLAN_TWO_LEVELS);
    CHECK(plan_best_way(1e11, 30, 1, &w) != PLAN_TWO_LEVELS);
    NEAR(plan_way_seconds(PLAN_RING, 8e6, 8, 2, &w), 7e6 / 900e9 + 2*7*2e-6, 1e-12);
    CHECK(plan_best_way(1e9, 8, 1, &w) == PLAN_RING);
}

// 0.70M tokens at 3.28 nats; 10 billion tokens: 1,738 sequences of 512.
TEST(critical_batch_sizes) {
    NEAR(plan_kaplan_batch(3.28), 0.70e6, 5e-3);
    NEAR(plan_kaplan_batch(1.0), 2e8, 1e-12);
    CHECK(plan_kaplan_batch(3.0) > plan_kaplan_batch(3.28));       // it grows as the loss falls
    NEAR(plan_zhang_batch(1e6), 22.91 * 512, 1e-12);
    NEAR(plan_zhang_batch(10e9) / 512, 1738, 1e-3);
    NEAR(1.0 + plan_zhang_batch(10e9) / plan_zhang_b_crit(10e9), 1.2, 1e-12);
}

// Megatron's: for one layer of one micro-batch, 8 b s h (t-1)/t numbers.
TEST(tensor_parallel_numbers) {
    Config one = { 1, 96, 12288, 51200, 2048, 0 };
    NEAR(plan_tensor_elements(&one, 4 * 2048.0, 8), 8.0*4*2048*12288 * 7/8, 1e-12);
    CHECK(plan_tensor_elements(&one, 2048, 1) == 0.0);
}

// ---- the machine ----

TEST(machines_are_read) {
    PlanMachine m;
    Error err;
    CHECK(plan_machine_parse(&m, "h100,8,450GB/s,2.5", &err));
    CHECK(m.count == 8 && m.link == 450e9 && m.latency == 0 && m.price == 2.5 && m.gpu);
    CHECK(m.peak == 989e12 && m.speed == 0.4 * 989e12 && m.speed_from == SPEED_ASSUMED);
    CHECK(m.memory == 79e9);
    CHECK(plan_machine_parse(&m, "v100@46.2,1", &err));
    CHECK(near(m.speed, 46.2e12, 1e-12) && m.speed_from == SPEED_GIVEN && !m.bf16 && m.price < 0);
    CHECK(plan_machine_parse(&m, "a100,16,100Gb/s+5us", &err));
    CHECK(near(m.link, 12.5e9, 1e-12) && near(m.latency, 5e-6, 1e-12));
    CHECK(m.per_machine == 0 && m.far_link == 0);
    CHECK(plan_machine_parse(&m, "h100,16,300GB/s:8+25GB/s,2", &err));
    CHECK(m.link == 300e9 && m.per_machine == 8 && m.far_link == 25e9 && m.price == 2);
    CHECK(plan_machine_parse(&m, "h100,16,300GB/s+2us:4+100Gb/s+10us", &err));
    CHECK(near(m.latency, 2e-6, 1e-12) && m.per_machine == 4 && near(m.far_link, 12.5e9, 1e-12));
    CHECK(near(m.far_latency, 1e-5, 1e-12));
    CHECK(plan_machine_parse(&m, "l4,1,,0.8", &err) && m.link == 0 && m.price == 0.8);
    CHECK(plan_machine_parse(&m, "mine@12,3", &err) && m.memory == 0 && m.peak == 0 && m.gpu);
    CHECK(plan_machine_parse(&m, "here,2", &err) && !m.gpu && m.speed_from == SPEED_UNKNOWN);
}

TEST(wrong_machines_say_what_is_missing) {
    static const char *const wrong[][2] = {
        { "h100", "COUNT" }, { "h100,", "not a number of devices" },
        { "h100,0", "not a number of devices" }, { "h100,2.5", "not a number of devices" },
        { "h100,1e9", "not a number of devices" }, { "x99,8", "x99@100,8 for 100 TFLOP/s" },
        { "x99,8", "v100, t4, a10, a100" }, { "h100@,8", "not a speed" },
        { "h100@0,8", "not a speed" }, { ",8", "NAME" }, { "v100,8", "has no bf16" },
        { "h100,8,450", "GB/s" }, { "h100,8,GB/s", "GB/s" }, { "h100,8,450GB/sec", "GB/s" },
        { "h100,8,450GB/s+5", "GB/s" }, { "h100,8,450GB/s+us", "GB/s" },
        { "h100,8,450GB/s+5usx", "GB/s" }, { "h100,16,450GB/s:8", "GB/s" },
        { "h100,16,450GB/s:0+25GB/s", "GB/s" }, { "h100,16,:8+25GB/s", "GB/s" },
        { "h100,8,450GB/s,cheap", "price" }, { "h100,8,450GB/s,-2", "price" },
        { "h100,8,450GB/s,2,3", "more than" }, { "anamethatistoolongforanygpuatall@1,8", "NAME" },
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
        { "NVIDIA H100 80GB HBM3", 989 }, { "NVIDIA H100 PCIe", 756 }, { "NVIDIA H100 NVL", 835 },
        { "NVIDIA A100-SXM4-80GB", 312 }, { "NVIDIA A10", 125 }, { "NVIDIA L4", 121 },
        { "NVIDIA GeForce RTX 3090", 71 }, { "NVIDIA B200", 2250 }, { "", 0 },
        { "NVIDIA A10G", 0 }, { "NVIDIA GeForce RTX 3090 Ti", 0 }, { "Tesla T4", 0 },
        { "NVIDIA H100 80GB HBM3 MIG 1g.10gb", 0 }, { "NVIDIA GeForce RTX 4090 D", 0 },
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        double flops = plan_datasheet_flops(names[i].gpu);
        CHECK_MSG(names[i].tflops == 0 ? isnan(flops) : flops == 1e12 * names[i].tflops, "%s: %g",
                  names[i].gpu, flops);
    }
}

// Counted by hand, as in logits.h: GPT-2's four widths on an H100, other GPUs, fp32 (4 bytes).
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
    PlanFacts f = facts_of("d48", "4090,1");
    for (int stage = 1; stage < 4; stage++) {
        PlanShape s = f.shape;
        s.micro_batch = 1;
        int n = plan_fewest_workers(&f, s, stage, f.machine.memory);
        s.zero = stage;
        s.workers = n;
        CHECK(n >= 2 && plan_bytes_of(&f, s) <= f.machine.memory);
        s.workers = n - 1;
        CHECK(plan_bytes_of(&f, s) > f.machine.memory || n == 2);
    }
    f.shape.micro_batch = 1;
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
    NEAR(four.exposed_alone, one.exposed, 1e-12);
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
    f.own = f.in_turn = true;
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
    CHECK(isnan(p.seconds) && isnan(p.cost) && isnan(p.kaplan) && isnan(p.zhang));
    CHECK(isnan(p.comm) && isnan(p.exposed) && p.traffic > 0 && isfinite(p.step));
    f.tokens = 1000000000;
    p = plan_estimate(&f);
    CHECK(isfinite(p.seconds) && isfinite(p.device_hours) && isnan(p.cost) && isfinite(p.zhang));
}

static char *shown(const PlanFacts *f) {
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);
    RunPlan p = plan_estimate(f);
    plan_show(out, f, &p);
    fclose(out);
    return text;
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
            f.target_loss = k / 3 % 2 ? 3.28 : 0;
            f.shape.zero = k / 6 * 3;
            f.noise_scale = k == 0 ? 31000 : 0;
            f.batch_tokens *= 2;
            f.shape.recompute = k % 2;
            f.own = k % 3 == 0;
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
            CHECK_MSG(lines <= 37, "%d lines", lines);
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

int main(void) {
    RUN(gpt2s_have_their_sizes);
    RUN(rule_of_thumb_is_the_published_one);
    RUN(flops_with_recompute_are_equation_3);
    RUN(zero_paper_table);
    RUN(own_ways_are_those_of_comm);
    RUN(ways_between_machines);
    RUN(critical_batch_sizes);
    RUN(tensor_parallel_numbers);
    RUN(machines_are_read);
    RUN(wrong_machines_say_what_is_missing);
    RUN(data_sheets_are_found_by_the_drivers_name);
    RUN(chunks_of_logits_fill_whole_waves);
    RUN(what_fits_is_the_most_that_does);
    RUN(time_of_one_worker);
    RUN(accumulation_divides_the_exposed_share);
    RUN(embeddings_do_not_hide);
    RUN(tensor_parallel_by_hand);
    RUN(tensor_parallel_fills_tiles);
    RUN(unknown_facts_stay_unknown);
    RUN(plans_are_readable);
    RUN(units);
    return test_end();
}
