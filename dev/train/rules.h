// rules: what a trainer follows and has no state: rates, batches, flags, and how noise is measured.
// Each section is one file of this folder.
#pragma once
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include "../data/data.h"

// ==== schedule.c =================================================================================
// The learning rate, the batch, and the length of a run: pure rules. All count tokens, so that runs
// with different batch sizes can share one axis.
// =================================================================================================

typedef enum { LR_CONSTANT, LR_LINEAR, LR_COSINE, LR_WSD } LrRule;

typedef struct {
    LrRule rule;
    double lr;                     // the highest rate, reached at the end of the warm-up
    double final_frac;             // a decaying rate ends at lr * final_frac
    uint64_t warmup, horizon;      // tokens; of the whole run (LR_CONSTANT needs no horizon)
} LrSchedule;

// The learning rate of an update; `tokens` counts the tokens seen, including this update's.
//   warm-up   lr * tokens / warmup, so the first update is not zero (Goyal et al. 2017, 2.2)
// then, with p going from 0 at the end of the warm-up to 1 at the horizon,
//   constant  lr
//   linear    final + (lr - final) * (1 - p)
//   cosine    final + (lr - final) * (1 + cos(pi p)) / 2   (Loshchilov and Hutter 2017, eq. 5)
//   wsd       lr, then linear to final over the last fifth of the horizon, or what the warm-up
//             leaves of it                                 (Hu et al. 2024, MiniCPM, section 4)
// From the horizon on the rate is exactly final. A warm-up longer than the horizon runs in full.
double lr_at(const LrSchedule *s, uint64_t tokens);

typedef struct {
    int64_t steps, tokens;         // of the whole run; -1: no limit
    double target_loss;            // 0: none
} RunLength;

// True if the run has reached its length or target; `loss` is the latest validation loss, or NaN.
bool run_done(const RunLength *run, uint64_t steps, uint64_t tokens, double loss);

// The fraction of the run that is done, 0 to 1; NaN if only a target loss ends it.
double run_progress(const RunLength *run, uint64_t steps, uint64_t tokens);

// ---- the batch: how many tokens each update takes, and what scales with that ----
//
//     constant                 --batch-tokens, always
//     linear:N0,TOKENS         from N0 to --batch-tokens over the first TOKENS (GPT-3's ramp: Brown
//                              et al. 2020, arXiv 2005.14165, table 2.1 and appendix B)
//     stages:TOKENS=BATCH,...  --batch-tokens, then BATCH from TOKENS on
//     adaptive:ETA,MIN,MAX     from MIN to MAX, by the norm test (batch_test)
//
// Every batch is a multiple of `unit` tokens, one micro-batch on each rank.

typedef enum { BATCH_CONSTANT, BATCH_LINEAR, BATCH_STAGES, BATCH_ADAPTIVE } BatchRule;
typedef enum { BATCH_LR_NONE, BATCH_LR_SQRT, BATCH_LR_LINEAR } BatchLr;

enum {
    MAX_STAGES = 32, BATCH_MOST = 1000000000,
    NORM_TEST_WINDOW = 50,         // updates that a decision of the norm test waits for
};

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

// Parses --batch-schedule; the caller sets `unit` and `batch`.
bool batch_schedule_parse(BatchSchedule *s, const char *text, Error *err);

// Rounds to the nearest whole number of units, at least one.
uint64_t batch_round(const BatchSchedule *s, double tokens);

// The smallest batch of the whole run; of an adaptive schedule the first one, and the largest.
uint64_t batch_smallest(const BatchSchedule *s);
uint64_t batch_start(const BatchSchedule *s);
uint64_t batch_most(const BatchSchedule *s);

// Tokens of the update that begins after `tokens` have been seen; `adapted` is the batch of the
// last batch_test, or batch_start.
uint64_t batch_at(const BatchSchedule *s, uint64_t tokens, uint64_t adapted);

// The next batch of an adaptive schedule if the norm test asks for `wanted` tokens: rounded up to
// whole units, never smaller than `now`, never above the maximum. NaN (the gradient was not finite)
// changes nothing.
uint64_t batch_adapt(const BatchSchedule *s, uint64_t now, double wanted);

typedef struct {
    uint64_t batch;                // tokens of the next update
    int64_t waited;                // updates since the warm-up or the last raise
} NormTest;

// After each update the norm test of an adaptive schedule asks for a batch of `wanted` tokens, the
// noise scale over eta^2: there the noise of the mean gradient has eta times the norm of the true
// one, tr(Sigma)/B = eta^2 |G|^2 (Lau et al. 2024, arXiv 2412.21124). The paper's own estimate,
// from the J workers of one update, stays below about (J-1)/eta^2 whatever the noise, and follows
// the largest of many noisy requests.
//
// A raise waits for a full window after the warm-up or the last raise, so that the averages of
// noise.c hold the noise of this batch, and at most doubles the batch.
void batch_test(NormTest *t, const BatchSchedule *s, double wanted, bool warming_up);

// Tokens seen after `steps` more updates, starting at `tokens`. Not for adaptive batches.
uint64_t batch_tokens_after(const BatchSchedule *s, uint64_t tokens, uint64_t steps);

// linear: Goyal et al. 2017, arXiv 1706.02677, for SGD. sqrt: Malladi et al. 2022, arXiv
// 2205.10287, for Adam. none: often good enough for Adam at small batches. No rule suits every run;
// a sweep over learning rates decides.
double batch_lr(BatchLr rule, double lr, const BatchSchedule *s, uint64_t batch);

// The second moment's half-life stays the same number of tokens at every batch (Marek et al. 2025):
// 0.95 at 512 sequences is 0.9999 at one.
double batch_beta2(double beta2, const BatchSchedule *s, uint64_t batch);

// ==== options.c ==================================================================================
// The flags of the two trainers, and the rules that one flag sets for another. Both have the same
// flags; train_gpt2 refuses the few that need a GPU (TRAINS_ON_GPU).
//
//     if (!train_options_parse(&o, argc, argv, &err)) die("%s", err.text);
//     ... open the model and the data, which settle T ...
//     if (!train_options_batch(&o, T, &err) || !train_options_lr(&schedule, &o, &err)) die(...);
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
    const char *generate, *stop;
    int samples, max_new, top_k;
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

extern const Option train_table[];
extern const int train_rows;               // of train_table

// Flags of nanoGPT, nanochat, transformers, llm.c (the letters) and llama.cpp.
extern const OptionHint train_hints[];

bool train_options_given(const TrainOptions *o, const char *name);
void train_options_help(FILE *out);
void train_options_echo(Log *log, const TrainOptions *o);

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

// Parses and checks the flags. With --help, only o->help is set for certain. With --resume, call
// train_options_restore and then train_options_check.
bool train_options_parse(TrainOptions *o, int argc, char **argv, Error *err);

// Everything that can be checked before the data and the model are open; and, before a resumed run
// restores the other flags, what those of the optimizer must not be.
bool train_options_check(TrainOptions *o, Error *err);
bool train_options_check_optimizer(const TrainOptions *o, Error *err);

// A saved value's characters, for option_read. A value that is no number and no text has none: "",
// which no row accepts.
const char *option_saved_words(const JsonNode *v);

// Restores the flags of the run that is resumed: every flag that was set then and is not given now.
// Exceptions: the model's sizes; what belongs to one start of the program; on a CPU a GPU's flags.
bool train_options_restore(TrainOptions *o, const JsonNode *saved, Error *err);

// True if this run measures the norms of micro-batches' or ranks' gradients.
bool measures_noise(const TrainOptions *o);

// Completes the batch schedule for sequences of T tokens. An update is a whole number of
// micro-batches, the same on each rank.
bool train_options_batch(TrainOptions *o, int T, int ranks, Error *err);

// The tokens of the run, 0 if the flags do not determine them; and the learning rate's schedule,
// after train_options_batch, because --steps N means N batches.
int64_t train_options_tokens(const TrainOptions *o);
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
// Both are unbiased: E[G2] = |G|^2, E[S] = tr(Sigma). The noise scale S/G2 is the batch at which
// noise and gradient have the same norm. A ratio of unbiased estimates is biased, so G2 and S are
// averaged over many updates first. Either can be negative at one update; leaving such updates out
// would bias the average.
//
// Adam steps along P times the gradient, with P = 1/(sqrt(v) + eps). In that metric the noise scale
// is tr(P Sigma)/(G' P G): the same two norms with each square multiplied by P. After the start
// v averages over few gradients, and P is huge wherever these were near zero: such updates would
// outweigh hundreds of later ones, so they are left out.
//
// The loader draws sequences, not tokens, at random. S is in tokens nevertheless, as if each token
// brought 1/T of its sequence's noise. Critical batch sizes found by training came out larger by
// orders of magnitude (Merrill et al. 2025); scripts/lab compares both.
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

// 31234 -> "31,234"
Shown grouped_text(double n);

// Advice in words: a noise scale compared with a batch of so many tokens. `decayed`: the learning
// rate has decayed, which anneals the noise scale to several times its value.
void noise_verdict(char *out, size_t size, double noise, double batch, bool decayed);
