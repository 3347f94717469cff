// plan: how long a run would take, on which machines, and in how much memory, by a model of costs.
// --plan and --plan-search, the page's calculator and the laboratory ask here.
#pragma once
#include <math.h>
#include <stddef.h>
#include "../model/gpt2.h"

// ==== plan.c =====================================================================================
// --plan of both trainers: estimates a run before it starts. Memory by class, time, money, traffic,
// and how many workers help.
//
//     PlanMachine machine;
//     if (!plan_machine_parse(&machine, "h100,8,450GB/s,2.5", &err)) die("%s", err.text);
//     PlanFacts facts = { ... };                the model, the batch, the machine
//     plan_print(stdout, &log, &facts, &err);   plan_show.c, from plan_estimate(&facts)
//
// A plan allocates no model: the trainer passes a function that counts memory with the code that
// lays it out. A plan guesses no fact: a result that lacks one is NAN (null in the log), and the
// plan ends with a list of the missing facts. Seconds are lower bounds where a part is unknown:
// communication without a LINK, AdamW on another machine.
//
// Units: bytes, seconds, FLOP, tokens. GB is 1e9 bytes. A worker is a rank: a GPU, or a process.
// With tensor parallelism a worker is a group of ranks; bytes are a rank's.
// =================================================================================================

// ---- formulas ----

// Parameters of a model. A size_t is too small for large ones in a browser (dev/web).
double plan_params(const Config *c);

// Seconds of `messages` reduce-scatters or all-gathers over n workers on machines of G each, for an
// exchange of `bytes` (each rank's whole buffer, for all messages). An all-reduce is one of each.
// Links between machines have another bandwidth and latency; G = n: one machine. Bandwidths are
// what a worker sends, in one direction. Workers go the fastest of three ways:
//   ring         through all of them (Patarasuk and Yuan 2009), a machine's workers side by side:
//                n-1 steps wait for each other; what passes from a machine to the next is divided
//                over the links of all its workers
//   tree         up or down a binary tree (Sanders et al. 2009): a worker sends its whole buffer,
//                but only log2(n) messages wait for each other
//   two levels   within a machine, over rings, then between equal workers of all machines; it needs
//                equally many workers on each machine
// `own`: as comm.c does, where workers send to each other directly, in two levels or in one.
typedef struct { double near, far, near_latency, far_latency, G; bool own; } PlanNetwork;

double plan_best_seconds(double bytes, double n, double messages, const PlanNetwork *w);

// The part of `seconds` of communication that does not overlap with computation. The share `late`
// starts after the computation; the rest overlaps with `behind` seconds of it.
double plan_exposed(double seconds, double behind, double late);

// ---- machines ----

// From data sheets: memory, and dense matrix products (no sparsity) in fp16 or bf16 with fp32
// accumulation. NVIDIA's data sheets of V100 SXM2 32 GB, T4, A10, A100 SXM 80 GB, L4,
// L40S, H100 SXM, H200 SXM and HGX B200; white papers of GA102 and AD102 for the GeForce cards.
typedef struct {
    const char *name;
    double gigabytes, tflops, bandwidth;         // bandwidth of the memory: GB/s
    int multiprocessors;
    bool bf16;
} PlanGpu;

enum { PLAN_GPUS = 11 };

extern const PlanGpu plan_gpus[PLAN_GPUS];

// FLOP/s of the GPU that its driver calls `gpu`, as "NVIDIA H100 80GB HBM3": dense, in bf16, by the
// data sheet. NAN: in no table, or no bf16.
double plan_datasheet_flops(const char *gpu);

// The MFU assumed where no speed is given. Of a data sheet's peak, llm.c's runs of GPT-2 have 49%
// on H100s and 60 to 64% on A100s (plan_published), runs of large models 30 to 55%. train_gpt2.cu
// on one H200 reached 39% with 4 sequences of 1024 tokens, 44% with 8 and 51% with 64; of the peak
// that it measures before a run, 63 to 66% with 64 (dev/results/h200-2026-11-26).
static const double PLAN_OF_DATASHEET = 0.4, PLAN_OF_MEASURED = 0.6;

static const double PLAN_GPU_RESERVE = 1e9;      // bytes of a GPU that its driver takes
static const double PLAN_WORKSPACE = 144 << 20;          // bytes: cuBLAS's, and partial sums

typedef enum { SPEED_UNKNOWN, SPEED_GIVEN, SPEED_ASSUMED, SPEED_MEASURED } PlanSpeedFrom;

// Unknown: 0; an unknown price is negative.
typedef struct {
    char name[24];                 // "here": this machine
    int count;                     // workers
    double memory, bandwidth;      // bytes that a worker may use; a GPU's bytes/s of memory
    double peak;                   // FLOP/s: by the data sheet, or measured
    double speed;                  // FLOP/s that training reaches
    PlanSpeedFrom speed_from;
    double adam_seconds;           // for one parameter of an update; measured or 0
    double link, latency;          // bytes/s that a worker sends; seconds per message
    int per_machine;               // workers that share a machine; 0: all
    double far_link, far_latency;  // the same between machines
    double price;                  // per worker and hour
    int multiprocessors;           // of a GPU
    bool gpu, bf16;                // not this machine; it has bf16
} PlanMachine;

// This machine, with nothing measured yet.
PlanMachine plan_machine_here(int workers);

// Parses NAME[@TFLOPS],COUNT[,LINK[:GPUS+LINK][,PRICE]]; LINK may be empty. NAME is one of
// plan_gpus, "here", or any other name with its @TFLOPS. An error names the part that is missing or
// wrong.
bool plan_machine_parse(PlanMachine *m, const char *text, Error *err);

// ---- the question ----

// What a worker's memory depends on; plan_show_advice varies these.
typedef struct { int micro_batch, workers, zero; bool recompute; } PlanShape;

// Bytes of one worker. `passing`: buffers for communication between workers.
typedef struct {
    double params, grads, moments, activations, logits, passing, rest;
} PlanBytes;

typedef struct PlanFacts PlanFacts;
typedef PlanBytes PlanCount(const PlanFacts *f, const PlanShape *s);

// Unknown: 0.
struct PlanFacts {
    Config c;
    int T;
    PlanShape shape;
    int tensor;                    // --tensor-parallel: ranks that make up a worker
    int64_t batch_tokens;          // an update, all workers
    int64_t tokens;                // of the whole run
    int64_t outer_every;           // --outer-every
    bool sgd, averages;            // --optimizer sgd; --average-tokens
    bool batch_changes;            // --batch-schedule
    int grad_copies;               // gradients kept beside their sum, for plan_gpu_bytes
    const char *precision;         // "fp32" or "bf16"
    double grad_bytes, param_bytes;    // per element in a message
    bool in_turn;                  // --no-overlap
    bool may_recompute;            // the trainer supports --recompute
    PlanMachine machine;
    PlanCount *count;
    const void *trainer;           // for count
};

// ---- memory ----

double plan_total(const PlanBytes *b);

// The largest micro-batch that fits in `room` bytes; 0 if none does. A GPU's chunks of logits grow
// by up to 1.3 GB and shrink again, so the search first overshoots by 2 GB, then steps back one by
// one.
int plan_largest_micro_batch(const PlanFacts *f, PlanShape s, double room);

// The fewest workers with which a ZeRO stage fits in `room` bytes; 0 if no number does.
int plan_fewest_workers(const PlanFacts *f, PlanShape s, int zero, double room);

// Memory of train_gpt2.cu in bf16 by formulas, for the CPU's trainer. The CUDA twin counts its own
// memory; a test compares the two.
PlanBytes plan_gpu_bytes(const PlanFacts *f, const PlanShape *s);

// ---- traffic ----

// The network of n ranks, each the `stride`-th: neighbours (1) form tensor groups, ranks of equal
// place in these (the group's size) share gradients.
PlanNetwork plan_network(const PlanMachine *m, double n, double stride, bool own);

// Tensor parallelism: numbers that a group sums for a micro-batch, (B,T,C) twice in the embedding
// and the classifier, and four times in a layer. With recompute all layers but the last have a
// fifth (dev/ranks/tensor.c).
double plan_tensor_sums(const PlanFacts *f);

// Bytes that a rank sends to its tensor group for a micro-batch: its part of all sums, and to every
// other rank three fp32 numbers a token for the cross-entropy.
double plan_tensor_bytes(const PlanFacts *f);

// ---- the answer ----

typedef struct {
    PlanBytes bytes;
    double bytes_zero[4];          // the total at each ZeRO stage
    bool fits;                     // meaningful if machine.memory is known
    int largest;                   // the largest micro-batch that fits
    double flops, flops_done;      // per token: of the model; computed
    double micro_batches;          // of a worker in an update
    double compute, adam, comm, exposed, step;     // seconds an update; comm: all traffic
    double tensor;                 // seconds of comm that are tensor parallelism's, all exposed
    double hidden;                 // comm - exposed
    double steps, seconds, device_hours, cost;     // of the whole run
    double rule_seconds;
    double traffic;                // bytes an update
    double b_crit;                 // tokens, as measured
    double published;              // seconds an update, in plan_published
} RunPlan;

double plan_known(double x);
RunPlan plan_estimate(const PlanFacts *f);

// ---- how many rows of logits a GPU's classifier computes at a time ----
//
// The logits of all N tokens would be the largest array of the model: for GPT-2 and 64 sequences of
// 1024 tokens 6.6 GB in bf16. So they are computed in chunks of rows. Every chunk but the last has
// its products fill whole waves: a GPU divides the result of a product into tiles, mostly of 128 x
// 256, and its multiprocessors compute a wave of them at a time, one each. If the last wave has few
// tiles, most multiprocessors wait for those. The product with few tiles is the gradient of the
// classifier's input, (rows,C). With C = 768 and 132 multiprocessors, an H100's:
//
//     3 tiles lie side by side, so a wave is 44 tiles high, which are 5,632 rows of logits
//     two waves are 11,264 rows, 1.13 GB; a third would pass LOGITS_BYTES
//     65,536 rows are 5 chunks of two waves, and 9,216 rows that take two waves: 12 waves
//     7 chunks of equal size, 9,363 rows below 1 GB, would take 14; all rows at once, 12
//
// Beyond that a chunk only costs one more addition to the classifier's fp32 gradient, 0.3 GB of
// traffic, so larger chunks would save little. The order of the sums in that gradient depends on
// the chunks: GPUs with other numbers of multiprocessors give other last bits.

enum { TILE_ROWS = 128, TILE_COLUMNS = 256 };

// Rows of a chunk of logits (N,V) of `bytes` each, from inputs (N,C). If not even one wave fits, or
// the number of multiprocessors is not known (0), chunks have equal size.
size_t logits_chunk_rows(size_t N, size_t V, size_t C, size_t bytes, int multiprocessors);

// ==== search.c ===================================================================================
// --plan-search: the fastest way to share a training run among GPUs.
// =================================================================================================

static const double SEARCH_TILE = 128;           // a thread block computes 128 x 128 of a product
static const double SEARCH_PRODUCTS = 0.75;      // of the data sheet, by large products with full
                                                 // tiles; cuBLAS reaches 0.7 to 0.8

enum { SEARCH_MICRO = 64, SEARCH_CUTS = 2048, SEARCH_CHUNKS = 16 };

// What a trainer does. The tests describe Megatron's, which the published tables measured.
// `moved`: bytes read and written in the memory.
typedef struct {
    bool fused_attention;          // the T x T scores never reach the memory (Dao et al. 2022)
    bool only_recomputes, only_zero_0;           // as in a published table, where true
    bool overlaps;                 // gradients travel during the backward pass
    int fewest_dealt;              // the shortest pipeline that can interleave
    double grad_kept, grad_sent;   // bytes for the gradient of a parameter
    double message_kept;           // of a gradient's copy in a message
    double message_moved;          // to copy a gradient into a message and back
    double sum_moved;              // to add a gradient to the sum of micro-batches; 0: the product
                                   // adds it
    double update_moved;           // by the update of a parameter
    double logit_kept;             // of a logit; 0: logits are computed in chunks
    double logit_moved;            // for a logit's part in cross-entropy and its gradient
} SearchTrainer;

// train_gpt2.cu. An update moves 30 bytes for AdamW, 4 for the norm and 4 to clear the gradient.
extern const SearchTrainer search_ours;

// Unknown: 0.
typedef struct {
    Config c;
    int T;
    PlanMachine machine;
    double tokens, batch;          // of the run; of an update
    SearchTrainer trainer;
} SearchFacts;

// A mixture: data x tensor x pipe GPUs. Each data rank computes `micros` micro-batches of `micro`
// sequences an update. A GPU holds `chunks` pieces of consecutive layers (interleaving).
typedef struct { int data, tensor, pipe, chunks, zero, micro; double micros; bool recompute; }
    SearchCut;

typedef enum {
    WALL_PRODUCTS, WALL_TILES, WALL_MEMORY, WALL_RECOMPUTE, WALL_NEAR, WALL_FAR, WALL_UNEVEN,
    WALL_BUBBLE, WALLS
} Wall;

typedef struct { double s[WALLS]; } Walls;       // seconds

typedef struct {
    SearchCut cut;
    Walls walls;                   // of an update
    double step, bytes;            // seconds of an update; bytes of a GPU
} SearchRow;

// FLOP/s of large products; seconds of the run.
double search_flops(const PlanMachine *m);
double search_seconds(const SearchFacts *f, const SearchRow *row);

// One row for each data x tensor x pipe: its fastest that fits, else its smallest. Those that fit
// come first, the fastest first.
typedef struct {
    SearchRow rows[SEARCH_CUTS];
    int n, fit;                    // rows; rows that fit
    double tried, fitting;         // mixtures
} Search;

// Refuses facts that a model of the cluster lacks.
bool search_check(const SearchFacts *f, Error *err);
Search search_all(const SearchFacts *f);

// ==== plan_show.c ================================================================================
// What --plan and --plan-search print, at most 80 columns wide, and log: every result.
// =================================================================================================

bool plan_print(FILE *out, Log *log, const PlanFacts *f, Error *err);

// What a rank keeps from one update to the next, as the start of a run logs it, too.
void plan_log_bytes(Log *log, const PlanBytes *b);

// Searches first; if `log_path` is not NULL, appends all rows to that log.
bool search_print(FILE *out, const char *log_path, const SearchFacts *f, Error *err);
