// train: the trainer around a model, the same for both twins. First rules without state (rates,
// batches, flags), then the contract with the model, then a run: opened, looped over, evaluated,
// saved. Each section is one file of this folder.
#pragma once
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include "../data/data.h"
#include "../plan/plan.h"
#include "../ranks/ranks.h"

// ==== schedule.c =================================================================================
// The learning rate's schedule and the length of a run: pure rules.
//
// Schedules count tokens, so that runs with different batch sizes can share one axis.
// =================================================================================================

// ---- learning rate ----

typedef enum { LR_CONSTANT, LR_LINEAR, LR_COSINE, LR_WSD } LrRule;

typedef struct {
    LrRule rule;
    double lr;                     // the highest rate, reached at the end of the warm-up
    double final_frac;             // a decaying rate ends at lr * final_frac
    uint64_t warmup;               // tokens
    uint64_t horizon;              // tokens of the whole run; unused by LR_CONSTANT
} LrSchedule;

// The learning rate of an update; `tokens` counts the tokens seen, including this update's.
//   warm-up   lr * tokens / warmup, so the first update is not zero (Goyal et al. 2017, 2.2)
// then, with p going from 0 at the end of the warm-up to 1 at the horizon,
//   constant  lr
//   linear    final + (lr - final) * (1 - p)
//   cosine    final + (lr - final) * (1 + cos(pi p)) / 2   (Loshchilov and Hutter 2017, eq. 5)
//   wsd       lr, then linear to final over the last fifth of the horizon, or what the warm-up
//             leaves of it                                 (Hu et al. 2024, MiniCPM, section 4)
// From the horizon on the rate is exactly final = lr * final_frac. A warm-up longer than the
// horizon still runs in full.
double lr_at(const LrSchedule *s, uint64_t tokens);

// ---- the length of a run ----

typedef struct {
    int64_t steps, tokens;         // of the whole run; -1: no limit
    double target_loss;            // 0: none
} RunLength;

// True if the run has reached its length or target; `loss` is the latest validation loss, or NaN.
bool run_done(const RunLength *run, uint64_t steps, uint64_t tokens, double loss);

// The fraction of the run that is done, 0 to 1; NaN if only a target loss ends it.
double run_progress(const RunLength *run, uint64_t steps, uint64_t tokens);

// The batch schedule: how many tokens each update takes, and how the learning rate and beta2 scale
// with the batch. Pure rules; everything counts tokens.
//
//     constant                 --batch-tokens, always
//     linear:N0,TOKENS         from N0 to --batch-tokens over the first TOKENS (GPT-3's ramp: Brown
//                              et al. 2020, arXiv 2005.14165, table 2.1 and appendix B)
//     stages:TOKENS=BATCH,...  --batch-tokens, then BATCH from TOKENS on
//     adaptive:ETA,MIN,MAX     from MIN to MAX, by the norm test (norm_test_batch of noise.c): the
//                              gradient noise scale over ETA^2. A decaying learning rate raises
//                              the noise scale, and so the batch.
//
// Every batch is a multiple of `unit` tokens, one micro-batch on each rank, so a ramp and the norm
// test grow in steps of `unit`.
// =================================================================================================

typedef enum { BATCH_CONSTANT, BATCH_LINEAR, BATCH_STAGES, BATCH_ADAPTIVE } BatchRule;

typedef enum { BATCH_LR_NONE, BATCH_LR_SQRT, BATCH_LR_LINEAR } BatchLr;

enum { MAX_STAGES = 32, BATCH_MOST = 1000000000 };

enum { NORM_TEST_WINDOW = 50 };    // updates that a decision of the norm test waits for

typedef struct {
    BatchRule rule;
    uint64_t unit;                 // tokens: ranks x micro-batch x seq-len
    uint64_t batch;                // tokens; --lr and --beta2 are for this batch
    uint64_t first, over;          // linear: N0, and the tokens until `batch` is reached
    int n_stages;
    struct { uint64_t tokens, batch; } stages[MAX_STAGES];
    double eta;                    // adaptive
    uint64_t min, max;             // adaptive
} BatchSchedule;

// ---- reading ----

// Parses --batch-schedule; the caller sets `unit` and `batch`.
bool batch_schedule_parse(BatchSchedule *s, const char *text, Error *err);

// ---- the batch ----

// Rounds to the nearest whole number of units, at least one.
uint64_t batch_round(const BatchSchedule *s, double tokens);

// The smallest batch of the whole run.
uint64_t batch_smallest(const BatchSchedule *s);

// The first batch of an adaptive schedule; other rules ignore it.
uint64_t batch_start(const BatchSchedule *s);

// The largest batch of an adaptive schedule: MAX rounded down to whole units.
uint64_t batch_most(const BatchSchedule *s);

// Tokens of the update that begins after `tokens` have been seen; `adapted` is the batch of the
// last batch_test, or batch_start.
uint64_t batch_at(const BatchSchedule *s, uint64_t tokens, uint64_t adapted);

// The next batch of an adaptive schedule if the norm test asks for `wanted` tokens: rounded up to
// whole units, never smaller than `now`, never above the maximum. NaN (the gradient was not finite)
// changes nothing.
uint64_t batch_adapt(const BatchSchedule *s, uint64_t now, double wanted);

// The norm test of an adaptive schedule, after each update.
typedef struct {
    uint64_t batch;                // tokens of the next update
    int64_t waited;                // updates since the warm-up or the last raise
} NormTest;

// A raise waits for a full window after the warm-up or the last raise, so that the averages of
// noise.c hold the noise of this batch, and at most doubles the batch.
void batch_test(NormTest *t, const BatchSchedule *s, double wanted, bool warming_up);

// Tokens seen after `steps` more updates, starting at `tokens`. Not for adaptive batches: their
// sizes are not known in advance.
uint64_t batch_tokens_after(const BatchSchedule *s, uint64_t tokens, uint64_t steps);

// ---- scaling with the batch ----

// linear: Goyal et al. 2017, arXiv 1706.02677, for SGD. sqrt: Malladi et al. 2022, arXiv
// 2205.10287, for Adam. none: often good enough for Adam at small batches. No rule suits every run;
// a sweep over learning rates decides.
double batch_lr(BatchLr rule, double lr, const BatchSchedule *s, uint64_t batch);

// The second moment's half-life stays the same number of tokens at every batch (Marek et al. 2025):
// 0.95 at 512 sequences is 0.9999 at one.
double batch_beta2(double beta2, const BatchSchedule *s, uint64_t batch);

// ==== options.c ==================================================================================
// The flags of the two trainers, and the rules that one flag sets for another.
//
//     TrainOptions o;
//     if (!train_options_parse(&o, argc, argv, &err)) die("%s", err.text);
//     if (o.help) { train_options_help(stdout); return 0; }
//     ... open the model and the data, which settle T ...
//     if (!train_options_batch(&o, T, &err) || !train_options_lr(&schedule, &o, &err)) die(...);
//
// Both trainers have the same flags. train_gpt2 refuses the few that need a GPU; train_gpt2.cu
// defines TRAINS_ON_GPU before it includes this file.
// =================================================================================================

typedef enum { OPTIMIZER_ADAMW, OPTIMIZER_SGD } Optimizer;

typedef struct {
    Given given;
    // data
    const char *data, *train, *val, *tokenizer;
    // model
    const char *init;
    int layers, heads, channels;   // OPTION_UNSET, all three, if --init sets the sizes
    int seq_len;                   // 0: 256 for a fresh model, the file's for a loaded one
    // batch
    int micro_batch;
    int64_t batch_tokens;          // 0 until train_options_batch
    int64_t recipe_batch;          // the batch that --lr was chosen for; 0: unknown
    const char *batch_schedule;
    BatchSchedule batches;         // parsed; completed by train_options_batch
    int batch_lr;                  // a BatchLr
    bool noise_scale;
    // optimizer
    int optimizer;                 // an Optimizer
    int64_t average_tokens;        // half-life of the averaged weights; 0: none
    double lr;
    int lr_schedule;               // an LrRule
    int64_t warmup_tokens;
    double final_lr_frac, weight_decay, beta1, beta2, clip;
    // length
    int64_t steps, tokens;         // OPTION_UNSET: no such limit
    double target_loss;            // 0: none
    // watch
    Period eval_every, sample_every;
    int64_t eval_tokens;           // 0: the whole validation split
    bool eval_train;
    const char *hellaswag, *log;
    // keep
    const char *out;
    Period save_every;
    int keep;                      // 0: all
    bool resume, overwrite;
    int64_t resume_from;           // 0: the latest checkpoint
    // generate
    const char *generate;
    int max_new, top_k;
    double temperature, top_p;
    // export
    const char *export_file;
    // ranks
    int zero;                      // 0 to 3; OPTION_UNSET: train_options_stage
    int tensor_parallel;           // ranks of a tensor group
    int64_t outer_every;           // updates a round; 0: the ranks average every gradient
    double outer_lr, outer_momentum;
    int comm_dtype;                // a CommType of dev/ranks/comm.c
    bool exact_sum, no_overlap;
    double timeout;                // seconds
    // machine
    int threads;                   // 0: all
    int64_t seed;
    int recompute;                 // a Recompute of train_gpt2.cu
    bool plan;
    const char *plan_gpu;          // for plan_machine_parse of dev/plan/plan.c
    bool plan_search;
    // help
    bool help;
} TrainOptions;

// name, argument, type, field, default, minimum, maximum, choices, group, help, the default's sense
extern const Option train_table[];

extern const int train_rows;               // of train_table

// Flags of nanoGPT, nanochat, transformers, llm.c (the letters) and llama.cpp; and, at the end,
// those that are gone from this program.
extern const OptionHint train_hints[];

bool train_options_given(const TrainOptions *o, const char *name);
void train_options_help(FILE *out);
void train_options_echo(Log *log, const TrainOptions *o);

// ---- rules between flags ----

// Flags of the command line alone, before a resumed run restores the others.
bool train_options_check_optimizer(const TrainOptions *o, Error *err);

#ifdef TRAINS_ON_GPU
enum { ON_GPU = 1 };
#else
enum { ON_GPU = 0 };
#endif

// ZeRO's stage, as given, or 1 among several ranks where it sends no more than stage 0 does. A
// resumed run that was given none decides anew, for its ranks and its flags.
int train_options_stage(const TrainOptions *o, int ranks);

// Ranks that train on different samples: one of each tensor group.
bool train_options_workers(int *workers, const TrainOptions *o, int ranks, Error *err);

// Everything that can be checked before the data and the model are open.
bool train_options_check(TrainOptions *o, Error *err);

// A saved value's characters, for option_read. A value that is no number and no text has none: "",
// which no row accepts.
const char *option_saved_words(const JsonNode *v);

// Restores the flags of the run that is resumed: every flag that was set then and is not given now.
// Exceptions: the model's sizes, above; --overwrite, --resume, --generate, --help and those of
// --export and --plan belong to one start of the program; a CPU that continues a GPU's run drops
// the flags of a GPU. Of flags that are gone, save.c refuses those that changed the run.
bool train_options_restore(TrainOptions *o, const JsonNode *saved, Error *err);

// Scripts end in "$@", so a user can override a recipe's flags. If --batch-tokens is given twice
// and no --lr follows, --lr was chosen for the first batch: returns that batch, otherwise 0.
int64_t recipe_batch(int argc, char **argv);

// Parses and checks the flags. With --help, only o->help is set for certain. With --resume, call
// train_options_restore and then train_options_check.
bool train_options_parse(TrainOptions *o, int argc, char **argv, Error *err);

// True if this run measures the norms of micro-batches' or ranks' gradients.
bool measures_noise(const TrainOptions *o);

// Completes the batch schedule for sequences of T tokens. An update is a whole number of
// micro-batches, the same on each rank.
bool train_options_batch(TrainOptions *o, int T, int ranks, Error *err);

// The length of the run, for run_done and run_progress.
RunLength train_options_length(const TrainOptions *o);

// Tokens of the whole run; 0 if the flags do not determine them.
int64_t train_options_tokens(const TrainOptions *o);

// Sets the learning rate's schedule; after train_options_batch, because --steps N means N batches.
bool train_options_lr(LrSchedule *s, const TrainOptions *o, Error *err);

// ==== noise.c ====================================================================================
// The gradient noise scale: an estimate of the critical batch size (McCandlish et al. 2018, arXiv
// 1812.06162).
//
// The gradient of a batch is the true gradient G plus noise. Averaged over B tokens, its expected
// squared norm is |G|^2 + tr(Sigma)/B, where Sigma is the covariance of one token's gradient. Two
// batch sizes give two equations for |G|^2 and tr(Sigma). Every update has both: the small batches
// are its micro-batches, or the ranks; the big batch is all of them (appendix A.1):
//
//     small = mean_i |g_i|^2, of m tokens each      big = |mean_i g_i|^2, of B tokens
//     G2 = (B big - m small) / (B - m)              S = (small - big) / (1/m - 1/B)
//
// Both are unbiased: E[G2] = |G|^2, E[S] = tr(Sigma). The simple noise scale S/G2 is the batch at
// which noise and gradient have the same norm: well below it, doubling the batch halves the
// updates; well above it, doubling the batch doubles the cost. A ratio of unbiased estimates is
// biased, so G2 and S are averaged over many updates first. Either can be negative at one update;
// leaving such updates out would bias the average.
//
// Adam does not step along the gradient but along P times the gradient, with P = 1/(sqrt(v) + eps)
// from its second moment v. The noise scale in that metric, tr(P Sigma)/(G' P G), takes the same
// two norms with each square multiplied by P (noise_scale_adam in the log). After the first update
// v is the square of a single gradient, and P is huge wherever that was near zero: such updates
// would outweigh hundreds of later ones in the averages below, so they are left out.
//
// The loader draws sequences, not tokens, at random, and the tokens of a sequence share their
// noise. S is in tokens nevertheless, as if each token brought 1/T of its sequence's noise. The
// noise scale does not show how a run would go with another batch: critical batch sizes found by
// training at other batches came out larger by orders of magnitude (Merrill et al. 2025).
// scripts/lab compares both methods.
// =================================================================================================

// Squared norms of one update's gradients, before clipping.
typedef struct {
    double small, big;                 // mean |g_i|^2; |mean g_i|^2
    double small_tokens, big_tokens;   // m and B, over all ranks
} GradientNorms;

typedef struct { double g2, s; } NoiseEstimate;        // |G|^2; tr(Sigma) of one token

// Needs small_tokens < big_tokens.
NoiseEstimate noise_estimate(const GradientNorms *n);

// Exponential moving averages over updates; `weight` is the sum of their coefficients so far.
typedef struct { double g2, s, weight; } NoiseScale;

static const double noise_decay = 0.98;                // about the last fifty updates

enum { NOISE_METRIC_FROM = 20 };                       // updates that v averages over at least

void noise_add(NoiseScale *n, NoiseEstimate e);

// The noise scale in tokens: infinity while the average of G2 is not positive, NaN before the first
// update. (S and G2 lack the same bias correction, so their ratio needs none.)
double noise_tokens(const NoiseScale *n);

// The norm test's batch in tokens: at this batch the noise of the mean gradient has eta times the
// norm of the true gradient, tr(Sigma)/B = eta^2 |G|^2 (Lau et al. 2024, arXiv 2412.21124). So the
// batch is the noise scale over eta^2, from the averages above.
//
// The paper tests V, the variance among J workers' gradients of one update, against the norm of
// their mean g. Its batch V/(eta^2 |g|^2) stays below about (J-1)/eta^2 whatever the noise, because
// V is at most about (J-1) |g|^2. With tr(Sigma) = B/(J-1) V in place of V, two faults are left.
// |g|^2 contains noise: |G|^2 + tr(Sigma)/B. And a batch that only grows follows the largest of
// many noisy requests: the fewer examples, the further it drifts above its value.
double norm_test_batch(const NoiseScale *n, double eta);

// 31234 -> "31,234"
Shown grouped_text(double n);

// Advice in words: a noise scale compared with a batch of so many tokens. A decaying learning rate
// anneals the noise scale to several times its value, so a batch that seems too large may still be
// right at the end of the run; `decayed`: it has done so already.
void noise_verdict(char *out, size_t size, double noise, double batch, bool decayed);

// =================================================================================================
// The contract between a model and the trainer around it.
//
// Each twin (train_gpt2.c, train_gpt2.cu) defines the functions declared here, and dev/train calls
// them. So evaluation, sampling, resuming, DiLoCo, HellaSwag, --plan, printing and logging exist
// once. The compiler checks these plain prototypes against both twins.
// =================================================================================================

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
    int multiprocessors;               // of the GPU (dev/plan/plan.c); 0 on a CPU
} ModelSpec;

typedef struct {
    float lr, beta1, beta2, eps, weight_decay;
    double m_steps, v_steps;           // for the bias correction of m and v: updates so far, this
                                       // one counted. Where beta2 has changed, v_steps is how many
                                       // updates with this beta2 would weigh the same.
} AdamW;

// ---- the machine ----

// Finds the device of this rank of `comm` and joins it to the other ranks' devices.
void machine_open(Machine *machine, const TrainOptions *o, Comm *comm);
void machine_close(Machine *machine);

// "fp32" or "bf16": what matrix products multiply.
const char *machine_precision(void);

// Measured FLOP/s of matrix products at that precision: 100% MFU (model FLOP utilisation).
double machine_peak_flops(Machine *machine);

// Bytes that a model may use.
double machine_free_memory(const Machine *machine);

#ifdef TRAINS_ON_GPU
void machine_show(const Machine *machine, const Model *m);      // lines of show_setup

// FLOP/s at that precision by the data sheet, which promises more than the measured peak; NAN: not
// known.
double machine_datasheet_flops(const Machine *machine);
int machine_multiprocessors(const Machine *machine);
#endif

// ---- the model ----

// Counts a model's memory without allocating it, for --plan and the report of memory.
void model_count(Memory *mem, const ModelSpec *spec);

// Allocates all memory that a step needs. Parameters are zero until they are initialised or loaded
// (bucket_place, bucket_keep, zero_loaded).
void model_init(Model *m, const ModelSpec *spec, Machine *machine);
void model_free(Model *m);

Zero *model_zero(Model *m);

// Runs tokens (B,T) through the blocks.
void model_forward(Model *m, const int *tokens, int B, int T);

// After model_forward: writes the loss in nats of each of N = B*T tokens to `each` (N), in the
// CPU's memory. Returns the sum of the losses.
double model_loss(Model *m, float *each, const int *targets, size_t N);

// Generation: runs one sequence of T tokens, of which `past` were run before, through the blocks.
// The key/value cache holds those. Returns the logits (V) of the token after row T-1, in the CPU's
// memory, valid until the next call.
const float *model_extend(Model *m, const int *tokens, int T, int past);

// After model_forward, or model_extend, of one sequence: the logits (V) of the token after row t,
// likewise. With tensor parallelism only model_extend knows those of all ranks.
const float *model_logits(Model *m, int t);
void clear_grads(Model *m);

// Before micro-batch i of n.
void model_micro_batch(Model *m, size_t i, size_t n);

#ifdef TRAINS_ON_GPU
// Seconds since the last gradient was computed, without those spent waiting for other ranks. Waits
// for the device.
double model_optimizer_seconds(Model *m);
#else
// For --plan, which measures an update on a CPU. A GPU keeps the sum of the losses and the clip
// factor on the device, so that the CPU need not wait for them: its functions have other types.
double model_backward(Model *m, const int *tokens, const int *targets, float scale,
                             int B, int T);

void model_update(Model *m, AdamW o, float g_scale);
#endif

// ==== hellaswag.c ================================================================================
// HellaSwag: which of four endings continues a text? Chance scores 25%, people 95%, GPT-2 124M a
// little under 30% (Zellers et al., "HellaSwag: Can a Machine Really Finish Your Sentence?", ACL
// 2019, arXiv 1905.07830).
//
//     HellaSwag h;                                one JSON object a line, as it is published
//     if (!hellaswag_open(&h, path, &tokenizer, &err)) die("%s", err.text);
//     for (size_t row = 0; row < ENDINGS * h.n; row += B) {
//         int T = hellaswag_batch(inputs, targets, &h, row, B, max_T);
//         ... the model's loss (B,T) ...
//         hellaswag_keep(&h, loss, row, B, T);
//     }
//     hellaswag_score(&score, &h, 0, h.n);
//
// Row 4*i + e is the context of example i and its ending e: the tokens of the context, then the
// tokens of a space and the ending, encoded separately. The model's answer is the ending with the
// lowest loss: the sum over the ending's tokens ("acc"), or their mean, which does not penalize
// long endings ("acc_norm", the usual metric).
//
// The model reads at most T tokens: a longer row loses its beginning.
// =================================================================================================

enum {
    ENDINGS = 4,
    HELLASWAG_T_STEP = 32,         // a batch's T is a multiple of it: few shapes, little padding
};

// `at`: offsets into the tokens, of the context, of the four endings, and of their end.
typedef struct {
    size_t at[ENDINGS + 2];
    int label;                     // the right ending
} HellaSwagExample;

typedef struct { double sum; size_t tokens; } EndingLoss;

typedef struct {
    size_t n, n_tokens;
    HellaSwagExample *examples;    // (n)
    int *tokens;                   // (n_tokens)
    EndingLoss *losses;            // (n,ENDINGS) written by hellaswag_keep
} HellaSwag;

// Counts, which ranks can add up.
typedef struct { size_t examples, correct, correct_norm; } HellaSwagScore;

// ---- reading ----

void hellaswag_close(HellaSwag *h);
bool hellaswag_open(HellaSwag *h, const char *path, const Tokenizer *t, Error *err);

// ---- rows for the model ----

// The number of examples with a row of more than T tokens, which loses its beginning.
size_t hellaswag_count_cut(const HellaSwag *h, int T);

// Writes rows row ... row+B-1 to inputs and targets (B,T) and returns T: enough for the longest
// row, at most max_T. Padding follows a row, so the causal mask hides it from the row's tokens.
int hellaswag_batch(int *inputs, int *targets, const HellaSwag *h, size_t row, size_t B,
                    int max_T);

// ---- answers ----

// Stores the loss of each row's ending; loss (B,T) is of hellaswag_batch's targets. If an ending
// has more than T tokens, its last T count.
void hellaswag_keep(const HellaSwag *h, const float *loss, size_t row, size_t B, int T);

// Adds the answers to examples first ... first+count-1; call hellaswag_keep on all their rows
// first.
void hellaswag_score(HellaSwagScore *score, const HellaSwag *h, size_t first, size_t count);

// =================================================================================================
// A run: everything that a trainer holds beside the model.
// =================================================================================================

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
    FILE *copy;                        // where generated bytes go too, for the log; NULL: nowhere
} Sampler;

typedef struct {
    TrainOptions o;
    Comm comm;                         // all ranks; rank 0 alone prints, logs and saves
    Comm tensor, data;                 // this rank's groups (dev/ranks/tensor.c): the ranks that
                                       // share its model, and those with other samples
    Machine *machine;
    Model *model;
    Zero *zero;                        // the model's
    ModelSpec spec;                    // the model's sizes and sharing
    int T;

    char *given;                       // options_json of the flags, before rules fill in others

    // Data, and files read beside it
    Loader train, val;
    uint64_t train_hash, val_hash;     // loader_hash of each
    Tokenizer tokenizer;               // vocab_size is 0 when there is none
    TextBuffer tokenizer_json;         // the tokenizer as checkpoints hold it
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
    int64_t saved_step;                // of the newest checkpoint; -1 before the first
    uint64_t looked_step, looked_tokens;   // the last end of a round: the model could be saved
    double eval_loss;                  // the latest; NaN before the first
    double good_loss;                  // the latest after an update that was not skipped
    uint64_t eval_step;                // the update of the latest evaluation
    uint64_t hellaswag_step;           // the update of the latest HellaSwag; 0: none
    int stopping;                      // the signal that ends the run, known to all ranks
    char stop_texts[2][80];            // of *stop_message(): this DiLoCo round's, the one before's
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
    GradientNorms norms;               // with --noise-scale or an adaptive batch
    GradientNorms norms_adam;          // in Adam's metric; zeros where it is not measured
    Costs costs;
} Step;

// True if all ranks have the same parameters after this update: always, or at the end of a DiLoCo
// round.
bool round_is_over(const Run *r, uint64_t step, uint64_t tokens);

// Stops the run if a signal has come to any rank; all ranks call this, and stop by the same one.
bool stop_is_asked(Run *r);

// How the run shares its model among the ranks of the data group and the tensor group.
Sharing run_sharing(const TrainOptions *o, Comm *data, Comm *tensor);

// ==== report.c ===================================================================================
// Reports of a run: the log for programs, lines on the terminal for people.
// =================================================================================================

// ---- the log ----

// If the log cannot be written, the run stops.
void log_line_end(Run *r);
void log_start(Run *r);
void log_finish(Run *r);

// ---- the terminal ----

// The noise scale, and its advice on the batch.
void show_noise(const Run *r);

// How the run ended, and commands to try next.
void show_end(const Run *r);

// After each update.
void report_step(Run *r, Step *s);

// ---- before the first update ----

// Sets the schedule of a resumed run's options: steps count the batches still to come.
bool resumed_lr(LrSchedule *s, const Run *r, const TrainOptions *o, Error *err);

// The run's setup, in a few lines.
void show_setup(const Run *r);

// ==== evaluate.c =================================================================================
// Evaluation: the loss on held-out text, and HellaSwag.
// =================================================================================================

typedef struct {
    double loss;             // nats a token
    size_t tokens;           // how many were read
    WholeScore whole;        // of whole documents inside a window; see dev/data/entropy.c
} Eval;

// The loss over `tokens` tokens of a split (0: all), in whole windows, at least one. Of the
// validation split these are the first windows; of the training split they lie at equal distances,
// since its beginning may be all of one kind. Every setting evaluates the same tokens; parameters
// and gradients stay as they are. The ranks take turns, a micro-batch of windows each. A rank with
// no window left reruns window 0 and discards it: at ZeRO stage 3 every rank must join every
// forward pass. A signal ends an evaluation after a turn; r->stopping is then set, and *e is
// incomplete.
bool evaluate(Eval *e, Run *r, const Loader *l, size_t tokens, Error *err);

// Evaluates the model, logs and prints the losses.
void report_eval(Run *r);

// Runs HellaSwag, logs and prints the accuracy. Ctrl-C stops it without a result.
void report_hellaswag(Run *r);

// ==== sample.c ===================================================================================
// Sampling from logits, and generation with a key/value cache.
// =================================================================================================

// Draws a token from softmax(logits / temperature), cut to the top_k likeliest tokens and to the
// fewest with top_p of the probability (nucleus sampling). Temperature 0 takes the likeliest.
int sample_token(const Sampler *s, const float *logits, int V, Rng *rng);

// Continues the n tokens of r->text by up to max_new tokens, printed as they come, until the model
// ends the text. Each step computes only the new token's row; the key/value cache holds the rows
// before it (but not with --recompute, where blocks share their memory). Past T tokens the last
// half is recomputed: cached keys and values contain a learned position, and every token moves.
// Without a tokenizer the tokens' ids are printed.
void generate(Run *r, Rng *rng, int n, int max_new, FILE *out);

// Prints the prompt as it is; on a terminal as the model's text is.
void print_prompt(const char *prompt, FILE *out);

// Prints a sample. If each rank holds a part of the model, every rank must join; rank 0 prints. A
// signal ends the sample, and then the run.
void report_sample(Run *r);

// Allocates generation's text and sampling's candidates.
void open_sampler(Run *r, int text_tokens);

// ==== save.c =====================================================================================
// Saving a run, and resuming one.
// =================================================================================================

// The run's flags, and the size and hashes of its data, as a JSON object; the caller frees it.
char *options_json(const Run *r);

// Rank 0 writes a checkpoint to --out; the other ranks send their shards. If that fails, the run
// stops: the checkpoint before is whole.
void save(Run *r);

// A checkpoint `from` that does not load ends the program. --resume names the last one before it
// that does.
void die_checkpoint(const Run *r, const char *from, const Error *why);
void load_params(Run *r, const char *from);

// Initialises a fresh model's parameters.
void draw_params(Run *r);

// Loads AdamW's moments. In a DiLoCo run each worker gets its own moments back; if the number of
// workers has changed, all start from the mean.
void load_moments(Run *r, const char *from, int64_t workers);

// Locks --out: two runs would remove each other's files.
void lock_output(Run *r);

// Finds the checkpoint that the run continues from: of --resume=N, or the latest.
bool find_resumed(Path *from, const Run *r, Error *err);

// Restores the flags of the run in --out, before anything is opened: flags decide what is opened,
// and --timeout how long the ranks wait for each other.
void restore_options(Run *r);

// Restores the run's state: the next update gets the same bits as in a run that never stopped.
void restore_state(Run *r, const char *from);

// ==== loop.c =====================================================================================
// The training loop around the model's own steps: the samples, learning rate and results of an
// update; and when to evaluate, sample, save and stop.
//
//     run_begin(r);
//     while (run_goes_on(r)) {
//         step_begin(r, &s); ... next_batch(r, &s, i); ... gradients_arrive(r, &s); ...
//         step_end(r, &s, &totals);
//         if (eval_is_due(r)) report_eval(r);   ...
//     }
//     return run_end(r);
// =================================================================================================

// ---- an update ----

// What the update trains on, and how, in four steps.
void step_begin(Run *r, Step *s);

// Reads micro-batch i into r->inputs and r->targets.
void next_batch(Run *r, Step *s, size_t i);

// After the last micro-batch: announces the next update's samples, as many as this update's, and
// waits for the gradients of other ranks.
void gradients_arrive(Run *r, Step *s);

// Ends an update: loss and gradient norm of all ranks (inside a DiLoCo round: of this rank),
// counters, noise scale, parameters on their way to other ranks, DiLoCo's outer step, averages.
void step_end(Run *r, Step *s, const Totals *t);

// ---- the run ----

void run_begin(Run *r);

// Whether there is another update to make.
bool run_goes_on(Run *r);

// Evaluations, samples and checkpoints wait until all ranks have the same parameters.
bool is_due(const Run *r, const Period *every);

// The last update is always evaluated. After a signal no evaluation runs.
bool eval_is_due(const Run *r);

// Skipped updates may mean that the parameters have diverged: no checkpoint then replaces others.
bool save_is_due(const Run *r);

// HellaSwag belongs to a checkpoint, so it is measured at each.
bool hellaswag_is_due(const Run *r);

// Saves the run, however it ends, unless it has diverged. Returns the process's exit status.
int run_end(Run *r);

// ==== open.c =====================================================================================
// Opening a run: flags, ranks, data, model, output; and closing it.
// =================================================================================================

// Opens the shards of one split: --train or --val, or those in --data.
void open_split(Loader *l, const Run *r, const char *glob_flag, const char *split);

// Opens the tokenizer for samples: --tokenizer, or the one in the checkpoint, a directory or a GGUF
// (NULL for a fresh model), or the one beside the data. A run without a tokenizer is valid.
void open_tokenizer(Run *r, const char *checkpoint);

// A fresh model's sizes, from the flags, with the vocabulary of the data.
Config fresh_config(const Run *r);

// Finds the checkpoint that --init or --resume names, and reads its sizes. Returns false for a
// fresh model.
bool find_checkpoint(Path *from, Config *c, const Run *r);

// A token beyond the model's vocabulary has no row in the embedding.
void check_tokenizer(const Run *r, const Config *c);

// --exact-sum: the binary tree over all micro-batches needs a subtree of the same shape per rank.
void check_exact_sum(const Run *r);

// Sets T.
//   from, c: the checkpoint's place and sizes, if `loaded`
void set_seq_len(Run *r, bool loaded, const Path *from, const Config *c);

// Sets T, and the batch schedule for so many workers.
void open_rules(Run *r, bool loaded, const Path *from, const Config *c, int workers);

// A directory that cannot be read seems to hold no shards; nor does one of texts, or a text.
void check_data(const Run *r);
void open_model(Run *r, const Config *c, Use use, int B, const Sharing *sharing);

// Opens everything that training needs; an error ends the program with a message.
void run_open(Run *r);

// --generate: no data and no training, only a checkpoint, its tokenizer and a prompt.
void run_generate(Run *r);
void run_close(Run *r);

// Parses the flags, connects to the other ranks, and restores a resumed run's flags. Returns false
// after --help.
bool run_start(Run *r, Model *model, Machine *machine, int argc, char **argv);

// ==== export.c ===================================================================================
// --export FILE.gguf: a checkpoint as GGUF, which llama.cpp and what is built on it can run.
// =================================================================================================

void run_export(Run *r);

// ==== plan_run.c =================================================================================
// --plan and --plan-search: collect this run's facts for dev/plan/plan.c and search.c.
// =================================================================================================

// The machine of the plan: --plan-gpu's, or this one with as many ranks as were started.
PlanMachine plan_machine(Run *r);

// Copies of the gradients beside their sum.
int grad_copies(const Run *r, int workers);

// The facts of this run, of model `c`. The CPU's program counts a GPU's memory by formulas.
PlanFacts plan_facts(const Run *r, const Config *c, const PlanMachine *machine);

// Prints the plan of this run. Rank 0 makes it alone, without connecting to other ranks.
void run_plan(Run *r);
