// A run: everything that a trainer holds beside the model.
#pragma once
#include "../../dataloader.h"          // Loader
#include "../base/clock.h"             // seconds_now
#include "../base/log.h"               // Log
#include "../base/signal.h"            // stop_signal
#include "../base/window.h"            // Window
#include "../data/entropy.h"           // Floor
#include "../data/tokenizer.h"         // Tokenizer
#include "../files/checkpoint.h"       // Path
#include "batch.h"                     // BatchSchedule, in the options
#include "hellaswag.h"                 // HellaSwag
#include "model.h"                     // Model, Machine, ModelSpec
#include "noise.h"                     // NoiseScale
#include "schedule.h"                  // LrSchedule, RunLength

// The seconds of an update, by what they are spent on, and the bytes it sends to other ranks.
typedef struct {
    double seconds, data, compute, comm, optimizer;      // comm: not overlapped with computation
    double busy;                       // seconds of communication, overlapped or not
    uint64_t bytes_sent, bytes_across; // to all ranks; to ranks on other machines
    uint64_t updates;
} Costs;

typedef struct { float p; int id; } Candidate;

typedef struct {
    float temperature, top_p;
    int top_k;                         // 0: all
    Candidate *candidates;             // scratch, (V)
} Sampler;

typedef struct {
    TrainOptions o;
    Comm comm;                         // all ranks; rank 0 alone prints, logs and saves
    Comm tensor, data;                 // this rank's groups (dev/ranks/tensor.h): the ranks that
                                       // share its model, and those with other samples
    Machine *machine;
    Model *model;
    Zero *zero;                        // the model's
    ModelSpec spec;                    // the model's sizes and sharing
    int T;

    // Data, and files read beside it
    Loader train, val;
    uint64_t train_hash, val_hash;     // loader_hash of each
    Tokenizer tokenizer;               // vocab_size is 0 when there is none
    char *tokenizer_json;              // the tokenizer as checkpoints hold it
    size_t tokenizer_bytes;
    char *tune_json;                   // the tuner's choices as checkpoints hold them; NULL: none
    size_t tune_bytes;
    Floor floor;
    HellaSwag hellaswag;               // n is 0 when there is none
    int *inputs, *targets;             // (micro_batch,T)
    float *losses;                     // (micro_batch,T) of an evaluation
    Sampler sampler;
    int *text;                         // (T+1) prompt and generated tokens

    // Rules
    LrSchedule lr;
    RunLength length;

    // Where the run stands
    uint64_t step, tokens;             // updates made, tokens seen
    uint64_t batch;                    // tokens of this update, or of the last one
    NormTest norm_test;                // of an adaptive schedule
    NoiseScale noise, noise_adam;      // plain; in Adam's metric
    int64_t adam_step, skipped;        // updates that AdamW made; updates skipped
    int64_t skipped_in_a_row;          // without a finite gradient
    Window recent_losses, recent_norms; // of the latest updates, with --skip-outliers
    int64_t saved_step;                // of the newest checkpoint; -1 before the first
    uint64_t looked_step, looked_tokens;   // the last end of a round: the model could be saved
    double eval_loss;                  // the latest; NaN before the first
    double good_loss;                  // the latest after an update that was not skipped
    uint64_t eval_step;                // the update of the latest evaluation
    uint64_t hellaswag_step;           // the update of the latest HellaSwag; 0: none
    int stopping;                      // the signal that ends the run, known to all ranks
    bool diverged;                     // at the end; see run_end

    // The log and the terminal
    Log log;
    char log_path[5000];               // the log keeps a pointer to it
    int lock;                          // on --out, until the run ends; -1: none
    Json saved;                        // state.json of a resumed run; its flags point into it
    double peak_flops;                 // of this machine, measured
    double datasheet_flops;            // of this GPU, by its data sheet; NaN: not known
    double seconds, shown_at;          // since the start; when the last line was shown
    double clock;                      // when the current update began
    Costs costs;                       // of all updates since the program started
} Run;

// One update: its inputs and its results.
typedef struct {
    int B, T;                          // of a micro-batch
    size_t micro_batches, samples;     // of this rank; of all ranks
    uint64_t first_sample;             // this rank's
    float scale;                       // of each token's loss: one over the tokens of the update
    AdamW adamw;
    double lr;
    double start, computed;            // the clock at its start, and when its gradients were there
    CommCounters comm;                 // communication counters at its start
    double waited;                     // seconds of waiting for other ranks, until `computed`
    double loss, grad_norm;
    double loss_z, norm_z;             // z-scores, with --skip-outliers
    bool outlier;                      // skipped for one of them
    GradientNorms norms;               // with --noise-scale or an adaptive batch
    GradientNorms norms_adam;          // in Adam's metric; zeros where it is not measured
    Costs costs;
} Step;

// True if all ranks have the same parameters after this update: always, or at the end of a DiLoCo
// round.
static inline bool round_is_over(const Run *r, uint64_t step, uint64_t tokens) {
    return r->o.outer_every == 0 || step % (uint64_t)r->o.outer_every == 0
        || run_done(&r->length, step, tokens, NAN);
}

// Stops the run if a signal has come to any rank; all ranks call this.
static inline bool stop_is_asked(Run *r) {
    double asked = *stop_signal() ? 1.0 : 0.0;
    comm_add(&r->comm, &asked, 1);
    if (asked > 0.0) r->stopping = *stop_signal() ? *stop_signal() : SIGTERM;
    return asked > 0.0;
}

// How the run shares its model among the ranks of the data group and the tensor group.
static inline Sharing run_sharing(const TrainOptions *o, Comm *data, Comm *tensor) {
    uint64_t micro_batches = o->batches.batch / o->batches.unit;
    Sharing s = { data, tensor, train_options_stage(o, data->size), (CommType)o->comm_dtype,
                  o->exact_sum ? tree_level(micro_batches - 1) + 1 : 0,
                  o->outer_every > 0, o->no_overlap, measures_noise(o),
                  o->optimizer == OPTIMIZER_SGD, o->average_tokens > 0 };
    return s;
}
