// train: the trainer around a model, the same for both twins. First the contract with the model,
// then a run: opened, looped over, evaluated, saved. Each section is one file of this folder.
#pragma once
#include "../data/data.h"
#include "../plan/plan.h"
#include "../ranks/ranks.h"
#include "rules.h"

// =================================================================================================
// The contract between a model and the trainer around it.
//
// Each twin (train_gpt2.c, train_gpt2.cu) defines the functions declared here, and dev/train calls
// them: what stands around a model exists once. The compiler checks the prototypes against both.
// =================================================================================================

typedef struct Model Model;            // each twin defines its own
typedef struct Machine Machine;        // a GPU, or the processor
typedef struct Run Run;                // everything that a trainer holds beside the model, below
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
// (bucket_place, bucket_keep, params_loaded).
void model_init(Model *m, const ModelSpec *spec, Machine *machine);
void model_free(Model *m);

Params *model_params(Model *m);

// Runs tokens (B,T) through the blocks. In generation (B = 1) they follow `past` tokens that were
// run before, whose keys and values the cache holds; in training it is 0.
void model_forward(Model *m, const int *tokens, int B, int T, int past);

// After model_forward: writes the loss in nats of each of N = B*T tokens to `each` (N), in the
// CPU's memory. Returns the sum of the losses.
double model_loss(Model *m, float *each, const int *targets, size_t N);

// After model_forward of one sequence: the logits (V) of the token after tokens[t], in the CPU's
// memory, valid until the next call. With tensor parallelism all ranks call it together.
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
double classifier_loss_and_gradient(Model *m, const int *targets, float scale, int B, int T);
void model_backward(Model *m, const int *tokens, int B, int T);
void model_update(Model *m, AdamW o, float g_scale);
#endif

// ==== hellaswag.c ================================================================================
// HellaSwag (hellaswag.c says what it is), one JSON object a line.
//
// Row 4*i + e is the context of example i and its ending e: the tokens of the context, then the
// tokens of a space and the ending, encoded separately. The model's answer is the ending with the
// lowest loss: the sum over the ending's tokens ("acc"), or their mean, which does not penalize
// long endings ("acc_norm", the usual metric). A row longer than T tokens loses its beginning.
// =================================================================================================

enum { ENDINGS = 4 };

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
    EndingLoss *losses;            // (n,ENDINGS) of the latest evaluation
    size_t room;                   // of tokens
} HellaSwag;

bool hellaswag_open(HellaSwag *h, const char *path, const Tokenizer *t, Error *err);
void hellaswag_close(HellaSwag *h);

// The number of examples with a row of more than T tokens.
size_t hellaswag_count_cut(const HellaSwag *h, int T);

// Runs HellaSwag, logs and prints the accuracy. Ctrl-C stops it without a result.
void report_hellaswag(Run *r);

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

struct Run {
    TrainOptions o;
    Comm comm;                         // all ranks; rank 0 alone prints, logs and saves
    Comm tensor, data;                 // this rank's groups (dev/ranks/tensor.c): the ranks that
                                       // share its model, and those with other samples
    Machine *machine;
    Model *model;
    Params *params;                    // the model's
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
    char stop_texts[2][80];            // of stop_message: this DiLoCo round's, the one before's
    bool diverged;                     // at the end; see run_end

    // The log and the terminal
    Log log;
    char log_path[5000];               // the log keeps a pointer to it
    int lock;                          // on --out, until the run ends; -1: none
    TrainState state;                  // of a resumed run
    Json saved;                        // its state.json; flags point into it
    double peak_flops;                 // of this machine, measured
    double datasheet_flops;            // of this GPU, by its data sheet; NaN: not known
    double seconds, shown_at;          // since the start; when the last line was shown
    double clock;                      // when the current update began
    Costs costs;                       // of all updates since the program started
};

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

// Stops the run if a signal has come to any rank; all ranks call this, and stop by the same one.
bool stop_is_asked(Run *r);

// How the run shares its model among the ranks of the data group and the tensor group.
Sharing run_sharing(const TrainOptions *o, Comm *data, Comm *tensor);

// ==== report.c ===================================================================================
// Reports of a run: the log for programs, lines on the terminal for people. If the log cannot be
// written, the run stops.
// =================================================================================================

// Begins a line: an event of this update. log_line_end writes it.
void log_event(Run *r, const char *event);
void log_line_end(Run *r);
void log_start(Run *r);
void log_finish(Run *r);

// The run's setup, in a few lines; after each update; the noise scale, and its advice on the batch;
// how the run ended, and commands to try next.
void show_setup(const Run *r);
void report_step(Run *r, Step *s);
void show_noise(const Run *r);
void show_end(const Run *r);

// Sets the schedule of a resumed run's options: steps count the batches still to come.
bool resumed_lr(LrSchedule *s, const Run *r, const TrainOptions *o, Error *err);

// ==== evaluate.c =================================================================================
// Evaluation: the loss on held-out text.
// =================================================================================================

typedef struct {
    double loss;             // nats per token
    size_t tokens;           // how many were read
    WholeScore whole;        // of whole documents inside a window; see dev/data/entropy.c
} Eval;

// The loss over `tokens` tokens of a split (0: all), in whole windows, at least one. Of the
// validation split these are the first windows; of the training split they lie at equal distances,
// since its beginning may be all of one kind. Every setting evaluates the same tokens; parameters
// and gradients stay as they are. The ranks take turns, a micro-batch of windows each. A rank with
// no window left reruns window 0 and discards it: at ZeRO stage 3 every rank must join every
// forward pass. A signal ends an evaluation after a turn; r->stopping is then set, and the result
// is incomplete.
Eval evaluate(Run *r, const Loader *l, size_t tokens);

// Evaluates the model, logs and prints the losses.
void report_eval(Run *r);

// ==== sample.c ===================================================================================
// Sampling from logits, and generation with a key/value cache.
// =================================================================================================

// Draws a token from softmax(logits / temperature), cut to the top_k likeliest tokens and to the
// fewest with top_p of the probability (nucleus sampling). Temperature 0 takes the likeliest.
int sample_token(const Sampler *s, const float *logits, int V, Rng *rng);

// Continues the n tokens of r->text by up to max_new tokens, printed as they come, until the model
// ends the text or writes --stop, which is not printed. Each step computes only the new token's
// row; the key/value cache holds the rows before it (but not with --recompute, where blocks share
// their memory). Past T tokens the last half is recomputed: cached keys and values contain a
// learned position, and every token moves. Without a tokenizer the tokens' ids are printed.
void generate(Run *r, Rng *rng, int n, int max_new, FILE *out);

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

// Loads the model's parameters.
void load_params(Run *r, const char *from);

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

void run_begin(Run *r);
bool run_goes_on(Run *r);

// What the update trains on, and how, in four steps.
void step_begin(Run *r, Step *s);

// Reads micro-batch i into r->inputs and r->targets.
void next_batch(Run *r, Step *s, size_t i);

// After the last micro-batch: announces the next update's samples, and waits for the gradients of
// other ranks.
void gradients_arrive(Run *r, Step *s);

// Ends an update: loss and gradient norm of all ranks (inside a DiLoCo round: of this rank),
// counters, noise scale, parameters on their way to other ranks, DiLoCo's outer step, averages.
void step_end(Run *r, Step *s, const Totals *t);

// Evaluations, samples and checkpoints wait until all ranks have the same parameters. The last
// update is always evaluated; after a signal no evaluation runs. Skipped updates may mean that the
// parameters have diverged: no checkpoint then replaces others. HellaSwag is measured at each.
bool is_due(const Run *r, const Period *every);
bool eval_is_due(const Run *r);
bool save_is_due(const Run *r);
bool hellaswag_is_due(const Run *r);

// Saves the run, however it ends, unless it has diverged. Returns the process's exit status.
int run_end(Run *r);

// ==== open.c =====================================================================================
// Opening a run: flags, ranks, data, model, output; and closing it. What refuses a run ends the
// program.
// =================================================================================================

// Parses the flags, connects to the other ranks, and restores a resumed run's flags. Returns false
// after --help.
bool run_start(Run *r, Model *model, Machine *machine, int argc, char **argv);

// Opens everything that training needs.
void run_open(Run *r);
void run_close(Run *r);

// --generate: no data and no training, only a checkpoint, its tokenizer and a prompt.
void run_generate(Run *r);

// --export FILE.gguf: a checkpoint as GGUF, for llama.cpp (save.c).
void run_export(Run *r);

// ---- the parts ----

// Finds the checkpoint that --init or --resume names, and reads its sizes. Returns false for a
// fresh model; then its sizes are from the flags, with the vocabulary of the data.
bool find_checkpoint(Path *from, Config *c, const Run *r);
Config fresh_config(const Run *r);

// Opens the tokenizer for samples: --tokenizer, or the one in the checkpoint, a directory or a GGUF
// (NULL for a fresh model), or the one beside the data. A run without a tokenizer is valid; a token
// beyond the model's vocabulary has no row in the embedding.
void open_tokenizer(Run *r, const char *checkpoint);
void check_tokenizer(const Run *r, const Config *c);

// Opens the shards of one split: --train or --val, or those in --data, which must hold some.
void check_data(const Run *r);
void open_split(Loader *l, const Run *r, const char *glob_flag, const char *split);

// Sets T.
//   from, c: the checkpoint's place and sizes, if `loaded`
void set_seq_len(Run *r, bool loaded, const Path *from, const Config *c);

// find_checkpoint; sets T, the batch schedule for so many workers (0: none is needed), and opens
// the tokenizer.
bool open_sizes(Path *from, Config *c, Run *r, int workers);
void open_model(Run *r, const Config *c, Use use, int B, const Sharing *sharing);

// ==== plan_run.c =================================================================================
// --plan and --plan-search: collect this run's facts for dev/plan/plan.c and search.c.
// =================================================================================================

// Bytes of a rank of so many, counted by the code that lays them out.
PlanBytes rank_bytes(const ModelSpec *spec, int ranks);

// The machine of the plan: --plan-gpu's, or this one with as many ranks as were started.
PlanMachine plan_machine(Run *r);

// The facts of this run, of model `c`. The CPU's program counts a GPU's memory by formulas.
PlanFacts plan_facts(const Run *r, const Config *c, const PlanMachine *machine);

// Prints the plan of this run. Rank 0 makes it alone, without connecting to other ranks.
void run_plan(Run *r);
