// The contract between a model and the trainer around it.
//
// Each twin (train_gpt2.c, train_gpt2.cu) defines the functions declared here, and dev/train calls
// them. So evaluation, sampling, resuming, DiLoCo, HellaSwag, --plan, printing and logging exist
// once. The compiler checks these plain prototypes against both twins. Only headers that call the
// model include this file.
#pragma once
#include "../base/memory.h"            // Memory
#include "../ranks/zero.h"           // Zero, Sharing, Totals, Scope
#include "options.h"                   // TrainOptions

typedef struct Model Model;            // each twin defines its own
typedef struct Machine Machine;        // a GPU, or the processor

typedef enum { INFER, TRAIN } Use;
typedef enum { RECOMPUTE_NONE, RECOMPUTE_BLOCK } Recompute;

// Everything that a model's memory depends on.
typedef struct {
    Config c;
    int B, T;                          // the largest batch: B sequences of T tokens
    Use use;
    Recompute recompute;
    Sharing sharing;
    int multiprocessors;               // of the GPU (dev/train/logits.h); 0 on a CPU
} ModelSpec;

typedef struct {
    float lr, beta1, beta2, eps, weight_decay;
    double v_age;                      // for v's bias correction: updates with this beta2 that
                                       // v averages over; 0: as many as were made
} AdamW;

// ---- the machine ----

// Finds the device of this rank of `comm` and joins it to the other ranks' devices.
static void machine_open(Machine *machine, const TrainOptions *o, Comm *comm);
static void machine_close(Machine *machine);

// "fp32" or "bf16": what matrix products multiply.
static const char *machine_precision(void);

// Measured FLOP/s of matrix products at that precision: 100% MFU (model FLOP utilisation).
static double machine_peak_flops(Machine *machine);

// Bytes that a model may use.
static double machine_free_memory(const Machine *machine);

#ifdef TRAINS_ON_GPU
static void machine_show(const Machine *machine, const Model *m);      // lines of show_setup

// FLOP/s at that precision by the data sheet, which promises more than the measured peak; NAN: not
// known.
static double machine_datasheet_flops(const Machine *machine);

static int machine_multiprocessors(const Machine *machine);
#endif

// ---- the model ----

// Counts a model's memory without allocating it, for --plan and the report of memory.
static void model_count(Memory *mem, const ModelSpec *spec);

// Allocates all memory that a step needs. Parameters are zero until they are initialised or loaded
// (bucket_place, bucket_keep, zero_loaded).
static void model_init(Model *m, const ModelSpec *spec, Machine *machine);
static void model_free(Model *m);
static Zero *model_zero(Model *m);

// Runs tokens (B,T) through the blocks. With first > 0 and B = 1 only rows first ... T-1 are
// computed; the key/value cache holds the rows before them.
static void model_forward(Model *m, const int *tokens, int B, int T, int first);

// After model_forward: writes the loss in nats of each of N = B*T tokens to `each` (N), in the
// CPU's memory. Returns the sum of the losses.
static double model_loss(Model *m, float *each, const int *targets, size_t N);

// After model_forward of one sequence: returns the logits (V) of the token after row t, in the
// CPU's memory.
static const float *model_logits(Model *m, int t);

static void clear_grads(Model *m);

// Backpropagation, after model_forward of the same tokens: adds the gradient of scale * (sum of the
// N losses) to the gradients.
static void model_backward(Model *m, const int *tokens, const int *targets, float scale,
                           int B, int T);

// Ends an update: global-norm clipping (clip 0: none) and AdamW. If the norm is not finite,
// parameters and moments stay as they are. `step` counts AdamW's updates from 1. Returns the totals
// since clear_grads, over all ranks or this one (`scope`).
static Totals model_update(Model *m, AdamW o, double clip, int64_t step, Scope scope);

// Seconds since the last gradient was computed, without those spent waiting for other ranks. Waits
// for the device.
static double model_optimizer_seconds(Model *m);
