// The contract between a model and the trainer around it.
//
// A twin (train_gpt2.c, train_gpt2.cu) defines what is declared here; dev/train calls it. So
// evaluation, sampling, resuming, DiLoCo, HellaSwag, --plan and all that is printed or logged exist
// once. Plain prototypes: the compiler checks that both twins keep the contract. Only headers that
// call the model include this file.
#pragma once
#include "../base/memory.h"            // Memory
#include "../ranks/shards.h"           // Shards, Sharing, Totals, Scope
#include "options.h"                   // TrainOptions

typedef struct Model Model;            // its insides are the twin's own
typedef struct Machine Machine;        // what it runs on: a GPU, or the processor

typedef enum { INFER, TRAIN } Use;
typedef enum { RECOMPUTE_NONE, RECOMPUTE_BLOCK } Recompute;

// All that the memory of a model depends on.
typedef struct {
    Config c;
    int B, T;                          // the largest batch: B sequences of T tokens
    Use use;
    Recompute recompute;
    Sharing sharing;
} ModelSpec;

typedef struct {
    float lr, beta1, beta2, eps, weight_decay;
    double v_age;                      // updates of this beta2 that v is an average over; 0: as
                                       // many as were made
} AdamW;

// ---- the machine ----

// Finds the device of this rank of `comm` and joins it to the other ranks' devices.
static void machine_open(Machine *machine, const TrainOptions *o, Comm *comm);
static void machine_close(Machine *machine);

// "fp32" or "bf16": what matrix products multiply.
static const char *machine_precision(void);

// FLOP/s of matrix products at that precision, measured: the 100% of "model FLOP utilisation".
static double machine_peak_flops(Machine *machine);

// Bytes that a model may take.
static double machine_free_memory(const Machine *machine);

#ifdef TRAINS_ON_GPU
static void machine_show(const Machine *machine, const Model *m);      // lines of the run's setup
#endif

// ---- the model ----

// Lays a model out and allocates nothing: for --plan, and for the report of what it takes.
static void model_count(Memory *mem, const ModelSpec *spec);

// All memory that a step needs is allocated here; parameters are zero until they are drawn or
// loaded (shards_place, shards_keep, shards_loaded).
static void model_init(Model *m, const ModelSpec *spec, Machine *machine);
static void model_free(Model *m);
static Shards *model_shards(Model *m);

// Runs tokens (B,T) through the blocks. With first > 0 and B = 1 only rows first ... T-1 are
// computed; the keys and values of the rows before them are cached.
static void model_forward(Model *m, const int *tokens, int B, int T, int first);

// After model_forward: the loss in nats of each of N = B*T tokens to `each` (N), in the CPU's
// memory. Returns their sum.
static double model_loss(Model *m, float *each, const int *targets, size_t N);

// After model_forward of one sequence: the logits (V) of the token after row t, in the CPU's
// memory.
static const float *model_logits(Model *m, int t);

static void clear_grads(Model *m);

// After model_forward of the same tokens: adds the gradient of scale * (sum of the N losses) to the
// gradients.
static void model_backward(Model *m, const int *tokens, const int *targets, float scale,
                           int B, int T);

// The end of an update: global-norm clipping (clip 0: none) and AdamW. If the norm is not finite,
// parameters and moments stay as they are. `step` counts AdamW's updates from 1. Returns the totals
// of `scope` since clear_grads.
static Totals model_update(Model *m, AdamW o, double clip, int64_t step, Scope scope);

// Seconds since the last gradient was computed, less those that waited for other ranks. Waits for
// the device.
static double model_optimizer_seconds(Model *m);
