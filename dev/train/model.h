// The contract between a model and the trainer around it.
//
// Each twin (train_gpt2.c, train_gpt2.cu) defines the functions declared here, and dev/train calls
// them. So evaluation, sampling, resuming, DiLoCo, HellaSwag, --plan, printing and logging exist
// once. The compiler checks these plain prototypes against both twins.
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
    double m_steps, v_steps;           // for the bias correction of m and v: updates so far, this
                                       // one counted. Where beta2 has changed, v_steps is how many
                                       // updates with this beta2 would weigh the same.
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

// Runs tokens (B,T) through the blocks.
static void model_forward(Model *m, const int *tokens, int B, int T);

// After model_forward: writes the loss in nats of each of N = B*T tokens to `each` (N), in the
// CPU's memory. Returns the sum of the losses.
static double model_loss(Model *m, float *each, const int *targets, size_t N);

// Generation: runs one sequence of T tokens, of which `past` were run before, through the blocks.
// The key/value cache holds those. Returns the logits (V) of the token after row T-1, in the CPU's
// memory, valid until the next call.
static const float *model_extend(Model *m, const int *tokens, int T, int past);

// After model_forward, or model_extend, of one sequence: the logits (V) of the token after row t,
// likewise. With tensor parallelism only model_extend knows those of all ranks.
static const float *model_logits(Model *m, int t);

static void clear_grads(Model *m);

// Before micro-batch i of n.
static void model_micro_batch(Model *m, size_t i, size_t n);

#ifdef TRAINS_ON_GPU
// Seconds since the last gradient was computed, without those spent waiting for other ranks. Waits
// for the device.
static double model_optimizer_seconds(Model *m);
#else
// For --plan, which measures an update on a CPU. A GPU keeps the sum of the losses and the clip
// factor on the device, so that the CPU need not wait for them: its functions have other types.
static double model_backward(Model *m, const int *tokens, const int *targets, float scale,
                             int B, int T);
static void model_update(Model *m, AdamW o, float g_scale);
#endif
