// A run: all that a trainer holds beside the model.
#pragma once
#include "../../dataloader.h"          // Loader
#include "../base/clock.h"             // seconds_now
#include "../base/log.h"               // Log
#include "../data/entropy.h"           // Floor
#include "../data/tokenizer.h"         // Tokenizer
#include "../files/checkpoint.h"       // Path
#include "batch.h"                     // BatchSchedule, in the options
#include "hellaswag.h"                 // HellaSwag
#include "model.h"                     // Model, Machine, ModelSpec
#include "noise.h"                     // NoiseScale
#include "schedule.h"                  // LrSchedule, RunLength

// Where an update's time goes, and what it sends to other ranks.
typedef struct {
    double seconds, data, compute, comm, optimizer;      // comm: only what computing does not hide
    double busy;                       // seconds that data was on its way, hidden or not
    uint64_t bytes_sent, updates;
} Costs;

typedef struct { float p; int id; } Candidate;

typedef struct {
    float temperature, top_p;
    int top_k;                         // 0: all
    Candidate *candidates;             // scratch, (V)
} Sampler;

typedef struct {
    TrainOptions o;
    Comm comm;                         // the other ranks; rank 0 alone prints, logs and saves
    Machine *machine;
    Model *model;
    Shards *shards;                    // the model's
    ModelSpec spec;                    // what the model is
    int T;

    // Data, and what is read beside it
    Loader train, val;
    Tokenizer tokenizer;               // vocab_size is 0 when there is none
    char *tokenizer_json;              // the same, as it is saved
    size_t tokenizer_bytes;
    Floor floor;
    HellaSwag hellaswag;               // n is 0 when there is none
    int *inputs, *targets;             // (micro_batch,T)
    float *losses;                     // (micro_batch,T) of an evaluation
    Sampler sampler;
    int *text;                         // (T+1) what generation writes

    // Rules
    LrSchedule lr;
    RunLength length;

    // Where the run stands
    uint64_t step, tokens;             // updates made, tokens seen
    uint64_t batch;                    // tokens of this update, or of the last one
    uint64_t next_batch;               // of an adaptive schedule
    NoiseScale noise;
    int64_t adam_step, skipped;        // updates AdamW made, and those it was spared
    int64_t skipped_in_a_row;
    int64_t saved_step;                // of the newest checkpoint; -1 before the first
    uint64_t looked_step, looked_tokens;   // when the model could last be evaluated or saved
    double eval_loss;                  // the latest; NaN before the first
    int stopping;                      // the signal that ends the run, once all ranks know of it

    // The log and the terminal
    Log log;
    char log_path[5000];               // the log keeps a pointer to it
    int lock;                          // on --out, for as long as the run lasts; -1: none
    Json saved;                        // state.json of the run that is resumed; texts point into it
    double peak_flops;                 // of this machine, measured
    double seconds, shown_at;          // since the start; when the last line was shown
    double clock;                      // when the update that is under way began
    Costs costs;                       // of all updates of this sitting
} Run;

// One update: what it is to do, and what came of it.
typedef struct {
    int B, T;                          // of a micro-batch
    size_t micro_batches, samples;     // of this rank; of all ranks
    uint64_t first_sample;             // this rank's
    float scale;                       // of each token's loss: one over the tokens of the update
    AdamW adamw;
    Scope scope;                       // whose gradients it averages
    double lr;
    double start;                      // seconds, and what communication had cost by then
    CommCounters comm;
    double loss, grad_norm;
    GradientNorms norms;               // with --noise-scale or an adaptive batch
    Costs costs;
} Step;

// The ranks have the same parameters after this update: always, or at the end of DiLoCo's round.
static inline bool round_is_over(const Run *r, uint64_t step, uint64_t tokens) {
    return r->o.outer_every == 0 || step % (uint64_t)r->o.outer_every == 0
        || run_done(&r->length, step, tokens, NAN);
}

// How the run shares its model among the ranks of `comm`.
static inline Sharing run_sharing(const TrainOptions *o, Comm *comm) {
    uint64_t micro_batches = o->batches.batch / o->batches.unit;
    Sharing s = { comm, o->zero, (CommType)o->comm_dtype,
                  o->exact_sum ? tree_level(micro_batches - 1) + 1 : 0,
                  o->outer_every > 0, o->no_overlap, measures_noise(o) };
    return s;
}
