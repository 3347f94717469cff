// The flags of the two trainers, and the rules that one flag sets for another.
//
//     TrainOptions o;
//     if (!train_options_parse(&o, argc, argv, &err)) die("%s", err.text);
//     if (o.help) { train_options_help(stdout); return 0; }
//     ... open the model and the data, which settle T ...
//     if (!train_options_batch(&o, T, &err) || !train_options_lr(&schedule, &o, &err)) die(...);
//
// Both trainers have the same flags. The few that only a GPU can follow are refused by the other
// one; train_gpt2.cu defines TRAINS_ON_GPU before it includes this.
#pragma once
#include "batch.h"
#include "../base/error.h"
#include "../files/json.h"
#include "../base/log.h"
#include "../base/flags.h"
#include "schedule.h"

typedef enum { SAVE_ERROR_STOP, SAVE_ERROR_CONTINUE } OnSaveError;

typedef struct {
    Given given;
    // data
    const char *data, *train, *val, *tokenizer;
    // model
    const char *init;
    int layers, heads, channels;   // OPTION_UNSET, all three, when --init says the sizes
    int seq_len;                   // 0: 256 when fresh, the file's when loaded
    // batch
    int micro_batch;
    int64_t batch_tokens;          // 0 until train_options_batch
    int64_t recipe_batch;          // the batch that --lr was chosen for, where it is known; else 0
    const char *batch_schedule;
    BatchSchedule batches;         // the same, settled by train_options_batch
    int batch_lr;                  // a BatchLr
    int batch_beta2;               // a BatchBeta2
    bool noise_scale;
    // optimizer
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
    const char *hellaswag, *log;
    // keep
    const char *out;
    Period save_every;
    int keep;                      // 0: all
    bool resume, overwrite;
    int on_save_error;             // an OnSaveError
    // generate
    const char *generate;
    int max_new, top_k;
    double temperature, top_p;
    // ranks
    int zero;                      // a stage, 0 to 3
    int64_t outer_every;           // updates a round; 0: the ranks average every gradient
    double outer_lr, outer_momentum;
    int comm_dtype;                // a CommType of dev/ranks/comm.h
    bool exact_sum, no_overlap;
    double timeout;                // seconds
    // machine
    int threads;                   // 0: all
    int64_t seed;
    int recompute;                 // a Recompute of train_gpt2.cu
    bool tf32;
    bool plan;
    const char *plan_gpu;          // for plan_machine_parse of dev/train/plan.h
    // help
    bool help;
} TrainOptions;

#define FIELD(member) offsetof(TrainOptions, member)

// name, argument, type, field, default, minimum, maximum, choices, group, help, the default's sense
static const Option train_table[] = {
    { "data", "DIR", OPT_TEXT, FIELD(data), NULL, 1, 0, NULL,
      "data", "a directory that prepare wrote: *train*.bin, *val*.bin, tokenizer.json", NULL },
    { "train", "GLOB", OPT_TEXT, FIELD(train), NULL, 1, 0, NULL,
      "data", "the training shards, in place of --data", NULL },
    { "val", "GLOB", OPT_TEXT, FIELD(val), NULL, 1, 0, NULL,
      "data", "the validation shards, in place of --data", NULL },
    { "tokenizer", "FILE", OPT_TEXT, FIELD(tokenizer), NULL, 1, 0, NULL,
      "data", "tokenizer.json or a GPT-2 vocabulary", "the one beside the data or the model" },

    { "init", "MODEL", OPT_TEXT, FIELD(init), "d4", 1, 0, NULL,
      "model", "a fresh d4, d6, d12, d24, d36 or d48 (d12 is GPT-2 124M), or a checkpoint to load: "
      "DIR or FILE.bin", NULL },
    { "layers", "N", OPT_INT, FIELD(layers), NULL, 1, 1000, NULL,
      "model", "layers of a fresh model; with --heads and --channels, in place of --init",
      "from --init" },
    { "heads", "N", OPT_INT, FIELD(heads), NULL, 1, 65536, NULL,
      "model", "attention heads; must divide the channels", "from --init" },
    { "channels", "N", OPT_INT, FIELD(channels), NULL, 1, 65536, NULL,
      "model", "width of the model", "from --init" },
    { "seq-len", "T", OPT_INT, FIELD(seq_len), "0", 0, 1e6, NULL,
      "model", "tokens a sequence", "256 for a fresh model, the file's for a loaded one" },

    { "micro-batch", "B", OPT_INT, FIELD(micro_batch), "8", 1, 65536, NULL,
      "batch", "sequences a forward pass; beside --batch-tokens it changes memory and speed only",
      NULL },
    { "batch-tokens", "N", OPT_COUNT, FIELD(batch_tokens), "0", 0, 1e9, NULL,
      "batch", "tokens an update; a multiple of micro-batch times seq-len",
      "micro-batch times seq-len" },
    { "batch-schedule", "RULE", OPT_TEXT, FIELD(batch_schedule), "constant", 1, 0, NULL,
      "batch", "how the batch grows, in tokens: constant; linear:N0,TOKENS from N0 to "
      "--batch-tokens over so many; stages:TOKENS=BATCH,... from then on; adaptive:ETA,MIN,MAX by "
      "the norm test, when the gradient's noise exceeds ETA of its length; in whole micro-batches "
      "of all ranks", NULL },
    { "batch-lr", "RULE", OPT_CHOICE, FIELD(batch_lr), "none", 0, 0,
      "none|sqrt|linear",                    // in the order of BatchLr
      "batch", "how the learning rate follows a changing batch; --lr is for --batch-tokens", NULL },
    { "batch-beta2", "RULE", OPT_CHOICE, FIELD(batch_beta2), "fixed", 0, 0,
      "fixed|halflife",                      // in the order of BatchBeta2
      "batch", "how --beta2 follows it: halflife keeps the second moment's half-life in tokens",
      NULL },
    { "noise-scale", NULL, OPT_FLAG, FIELD(noise_scale), NULL, 0, 0, NULL,
      "batch", "measure the gradient noise scale: how much larger a batch would still help; needs "
      "two micro-batches or two ranks", NULL },

    { "lr", "X", OPT_REAL, FIELD(lr), "6e-4", 1e-12, 100, NULL,
      "optimizer", "the highest learning rate", NULL },
    { "lr-schedule", "RULE", OPT_CHOICE, FIELD(lr_schedule), "cosine", 0, 0,
      "constant|linear|cosine|wsd",          // in the order of LrRule
      "optimizer", "how the learning rate goes from the warm-up to the end of the run; wsd stays, "
      "then decays over the last fifth", NULL },
    { "warmup-tokens", "N", OPT_COUNT, FIELD(warmup_tokens), "0", 0, 1e15, NULL,
      "optimizer", "tokens over which the learning rate rises from zero", NULL },
    { "final-lr-frac", "X", OPT_REAL, FIELD(final_lr_frac), "0.1", 0, 1, NULL,
      "optimizer", "where a decaying learning rate ends, as a part of --lr", NULL },
    { "weight-decay", "X", OPT_REAL, FIELD(weight_decay), "0.1", 0, 100, NULL,
      "optimizer", "AdamW's decay, of matrices only", NULL },
    { "beta1", "X", OPT_REAL, FIELD(beta1), "0.9", 0, 0.999999, NULL,
      "optimizer", "AdamW's average of gradients", NULL },
    { "beta2", "X", OPT_REAL, FIELD(beta2), "0.95", 0, 0.999999, NULL,
      "optimizer", "AdamW's average of their squares", NULL },
    { "clip", "X", OPT_REAL, FIELD(clip), "1", 0, 1e6, NULL,
      "optimizer", "the largest global norm of the gradient; 0 does not clip", NULL },

    { "steps", "N", OPT_COUNT, FIELD(steps), NULL, 0, 1e8, NULL,
      "length", "updates of the whole run; 0 only evaluates",
      "1000 when neither --tokens nor --target-loss is given" },
    { "tokens", "N", OPT_COUNT, FIELD(tokens), NULL, 1, 1e15, NULL,
      "length", "tokens of the whole run, in place of --steps", "no limit" },
    { "target-loss", "X", OPT_REAL, FIELD(target_loss), "0", 0, 1000, NULL,
      "length", "end when the validation loss, in nats a token, is no higher", "no target" },

    { "eval-every", "N", OPT_PERIOD, FIELD(eval_every), "100", 0, 0, NULL,
      "watch", "updates between evaluations, or tokens: 50000tok; 0: only at the end", NULL },
    { "eval-tokens", "N", OPT_COUNT, FIELD(eval_tokens), "65536", 0, 1e15, NULL,
      "watch", "validation tokens an evaluation reads; 0: the whole split", NULL },
    { "sample-every", "N", OPT_PERIOD, FIELD(sample_every), "0", 0, 0, NULL,
      "watch", "updates between samples of the model's text, or tokens: 50000tok", "never" },
    { "hellaswag", "FILE", OPT_TEXT, FIELD(hellaswag), NULL, 1, 0, NULL,
      "watch", "at the end of the run, which of four endings the model thinks likeliest, for each "
      "example of HellaSwag's JSON lines", "not asked" },
    { "log", "FILE", OPT_TEXT, FIELD(log), NULL, 1, 0, NULL,
      "watch", "one JSON object a line", "log.jsonl in --out; without --out, no log" },

    { "out", "DIR", OPT_TEXT, FIELD(out), NULL, 1, 0, NULL,
      "keep", "where the run is kept", "nothing is kept" },
    { "save-every", "N", OPT_PERIOD, FIELD(save_every), "1000", 0, 0, NULL,
      "keep", "updates between checkpoints in --out, or tokens: 50000tok; 0: only at the end",
      NULL },
    { "keep", "N", OPT_INT, FIELD(keep), "2", 0, 1e6, NULL,
      "keep", "how many checkpoints stay, the newest; 0: all", NULL },
    { "resume", NULL, OPT_FLAG, FIELD(resume), NULL, 0, 0, NULL,
      "keep", "go on with the run in --out, with its own flags; those given again count", NULL },
    { "overwrite", NULL, OPT_FLAG, FIELD(overwrite), NULL, 0, 0, NULL,
      "keep", "allow an --out that holds a run already, and replace that run", NULL },
    { "on-save-error", "RULE", OPT_CHOICE, FIELD(on_save_error), "stop", 0, 0,
      "stop|continue",                       // in the order of OnSaveError
      "keep", "what a checkpoint that cannot be written means for the run", NULL },

    { "generate", "PROMPT", OPT_TEXT, FIELD(generate), NULL, 0, 0, NULL,
      "generate", "do not train; continue this text (an empty one begins a document)", NULL },
    { "max-new", "N", OPT_INT, FIELD(max_new), "256", 1, 1e6, NULL,
      "generate", "tokens to write at most", NULL },
    { "temperature", "X", OPT_REAL, FIELD(temperature), "0.8", 0, 100, NULL,
      "generate", "below 1 sharpens the choice; 0 always takes the likeliest token", NULL },
    { "top-k", "N", OPT_INT, FIELD(top_k), "0", 0, 1e6, NULL,
      "generate", "choose among the k likeliest tokens only", "off" },
    { "top-p", "X", OPT_REAL, FIELD(top_p), "1", 1e-6, 1, NULL,
      "generate", "choose among the likeliest tokens that hold this much probability", "off" },

    { "zero", "STAGE", OPT_INT, FIELD(zero), "0", 0, 3, NULL,
      "ranks", "what ranks share out among them: 1 AdamW's moments, 2 gradients as well, 3 "
      "parameters as well; a rank keeps less, and sends as much, as much, and half as much again",
      NULL },
    { "outer-every", "H", OPT_COUNT, FIELD(outer_every), "0", 0, 1e8, NULL,
      "ranks", "DiLoCo: ranks make H updates apart, then take a common step; 0: they average the "
      "gradient of every update", NULL },
    { "outer-lr", "X", OPT_REAL, FIELD(outer_lr), "0.7", 1e-6, 10, NULL,
      "ranks", "of the common step; 1 without momentum averages the parameters", NULL },
    { "outer-momentum", "X", OPT_REAL, FIELD(outer_momentum), "0.9", 0, 0.999999, NULL,
      "ranks", "of the common step, Nesterov's", NULL },
    { "comm-dtype", "TYPE", OPT_CHOICE, FIELD(comm_dtype), "fp32", 0, 0,
      "fp32|bf16",                           // in the order of CommType
      "ranks", "how gradients travel; they are added up in fp32 either way", NULL },
    { "exact-sum", NULL, OPT_FLAG, FIELD(exact_sum), NULL, 0, 0, NULL,
      "ranks", "add micro-batches up along one tree, so that a power of two of ranks gives the "
      "bits of one rank; keeps more gradients", NULL },
    { "no-overlap", NULL, OPT_FLAG, FIELD(no_overlap), NULL, 0, 0, NULL,
      "ranks", "wait for each message at once instead of computing beside it: what overlapping is "
      "worth", NULL },
    { "timeout", "SECONDS", OPT_REAL, FIELD(timeout), "30", 1, 86400, NULL,
      "ranks", "a rank that gives no sign of life for so long ends the run", NULL },

    { "threads", "N", OPT_INT, FIELD(threads), "0", 0, 1024, NULL,
      "machine", "threads; the result does not depend on them", "all the machine has" },
    { "seed", "N", OPT_COUNT, FIELD(seed), "1337", 0, 1e15, NULL,
      "machine", "of the initial weights, the order of the data, and the samples", NULL },
    { "recompute", "WHAT", OPT_CHOICE, FIELD(recompute), "none", 0, 0,
      "none|block",                          // in the order of Recompute
      "machine", "on a GPU: block keeps only what enters each block, computes the rest anew on the "
      "way back, and leaves room for larger batches", NULL },
    { "tf32", NULL, OPT_FLAG, FIELD(tf32), NULL, 0, 0, NULL,
      "machine", "on a GPU, built with PRECISION=fp32: multiply with 10 bits of fraction, which is "
      "faster", NULL },
    { "plan", NULL, OPT_FLAG, FIELD(plan), NULL, 0, 0, NULL,
      "machine", "print what this run would take, in memory, time and traffic, and stop", NULL },
    { "plan-gpu", "NAME[@TFLOPS],COUNT[,LINK[,PRICE]]", OPT_TEXT, FIELD(plan_gpu), NULL, 1, 0, NULL,
      "machine", "plan for other machines: h100,8,450GB/s or v100@46.2,1; PRICE is of an hour",
      "this machine, measured" },

    { "help", NULL, OPT_HELP, 0, NULL, 0, 0, NULL, "help", "print this text", NULL },
};
#undef FIELD

enum { TRAIN_OPTIONS = (int)(sizeof train_table / sizeof train_table[0]) };

static inline bool train_options_given(const TrainOptions *o, const char *name) {
    return options_given(o, train_table, TRAIN_OPTIONS, name);
}

static inline void train_options_help(FILE *out) {
    options_help(out, "usage: ./" PROGRAM " --data DIR [flags]", train_table, TRAIN_OPTIONS);
}

static inline void train_options_echo(Log *log, const TrainOptions *o) {
    options_echo(log, o, train_table, TRAIN_OPTIONS);
}

// ---- what flags ask of each other ----

static inline bool train_options_check_data(const TrainOptions *o, Error *err) {
    if (o->data && (o->train || o->val))
        return fail(err, "--data: stands for both --train and --val; give one or the others");
    if (!o->generate && o->train && !o->val)
        return fail(err, "--val: --train needs it; give both, or --data for both");
    if (o->generate || o->plan || o->data || o->train) return true;
    return fail(err, "--data: there is nothing to train on; `./prepare tales --out DIR` writes a "
                     "corpus, --data DIR reads it");
}

// The divisors of n nearest to `near`, from below and from above: heads that would do.
static inline void divisors_around(int *below, int *above, int n, int near) {
    for (*below = near < n ? near : n; n % *below != 0; ) --*below;
    for (*above = near < n ? near : n; n % *above != 0; ) ++*above;
}

// --layers, --heads and --channels come together or not at all; --init is their other half.
static inline bool train_options_check_model(const TrainOptions *o, Error *err) {
    bool layers = train_options_given(o, "layers"), heads = train_options_given(o, "heads");
    bool channels = train_options_given(o, "channels");
    if (!layers && !heads && !channels) return true;
    const char *first = layers ? "layers" : heads ? "heads" : "channels";
    if (train_options_given(o, "init"))
        return fail(err, "--%s: --init says the model's sizes already; give one or the other",
                    first);
    const char *missing = !layers ? "layers" : !heads ? "heads" : !channels ? "channels" : NULL;
    if (missing)
        return fail(err, "--%s: needs --%s too; a model is --layers, --heads and --channels",
                    first, missing);
    if (o->channels % o->heads == 0) return true;
    int below, above;
    divisors_around(&below, &above, o->channels, o->heads);
    if (below == above)
        return fail(err, "--heads: %d does not divide the %d channels; %d does", o->heads,
                    o->channels, below);
    return fail(err, "--heads: %d does not divide the %d channels; %d and %d do", o->heads,
                o->channels, below, above);
}

// What the rules of the batch ask for; after this o->batches is settled but for its sizes.
static inline bool train_options_check_batch(TrainOptions *o, Error *err) {
    if (!batch_schedule_parse(&o->batches, o->batch_schedule, err)) return false;
    bool changes = o->batches.rule != BATCH_CONSTANT, adapts = o->batches.rule == BATCH_ADAPTIVE;
    if (!changes && (o->batch_lr != BATCH_LR_NONE || o->batch_beta2 != BATCH_BETA2_FIXED))
        return fail(err, "--batch-%s: follows a batch that changes, and this one does not; give a "
                         "--batch-schedule, or --batch-%s", o->batch_lr ? "lr" : "beta2",
                    o->batch_lr ? "lr none" : "beta2 fixed");
    if (changes && o->exact_sum)
        return fail(err, "--exact-sum: needs a batch that does not change; leave --batch-schedule "
                         "out");
    if (o->batches.rule == BATCH_LINEAR && o->batch_tokens == 0)
        return fail(err, "--batch-tokens: linear grows the batch up to it; give it, too");
    if ((adapts || o->noise_scale) && o->outer_every > 0)
        return fail(err, "--%s: asks for a gradient that all ranks have in common, and with "
                         "--outer-every there is none", adapts ? "batch-schedule" : "noise-scale");
    return true;
}

// Settles the length. A decaying rate must know where the run ends.
static inline bool train_options_check_length(TrainOptions *o, Error *err) {
    if (o->batches.rule == BATCH_ADAPTIVE && o->lr_schedule != LR_CONSTANT && !o->plan
        && !train_options_given(o, "tokens"))
        return fail(err, "--tokens: the rate decays to the end of the run, and an adaptive batch "
                         "leaves open how many tokens its updates take; add --tokens N, or "
                         "--lr-schedule constant");
    if (o->target_loss > 0 && o->eval_every.n == 0)
        return fail(err, "--eval-every: --target-loss is looked at when an evaluation is made, and "
                         "0 makes none before the end");
    bool steps = train_options_given(o, "steps"), tokens = train_options_given(o, "tokens");
    if (steps && tokens)
        return fail(err, "--tokens: --steps sets the length already; give one or the other");
    if (steps || tokens) return true;
    if (o->target_loss == 0) {
        o->steps = 1000;
        return true;
    }
    if (o->lr_schedule == LR_CONSTANT || o->plan) return true;
    return fail(err, "--lr-schedule: the rate decays to the end of the run, which --target-loss "
                     "leaves open; add --tokens N, or --lr-schedule constant");
}

#ifdef TRAINS_ON_GPU
enum { ON_GPU = 1 };
#else
enum { ON_GPU = 0 };
#endif

static inline bool option_needs_gpu(const char *name) {
    return strcmp(name, "recompute") == 0 || strcmp(name, "tf32") == 0;
}

static inline bool train_options_check_machine(const TrainOptions *o, bool on_gpu, Error *err) {
    for (int i = 0; i < TRAIN_OPTIONS; i++)
        if (!on_gpu && (o->given.bits >> i & 1) && option_needs_gpu(train_table[i].name))
            return fail(err, "--%s: only the GPU's trainer, train_gpt2cu, has it; leave it out",
                        train_table[i].name);
    return true;
}

static inline bool train_options_check_ranks(const TrainOptions *o, Error *err) {
    if (o->zero > 0 && o->outer_every > 0)
        return fail(err, "--zero: shares one update's work out, and with --outer-every each rank "
                         "makes updates of its own; give one of them");
    if (!o->exact_sum) return true;
    const char *other = o->zero > 0 ? "--zero" : o->outer_every > 0 ? "--outer-every"
                      : o->comm_dtype != 0 ? "--comm-dtype bf16" : NULL;
    if (other)
        return fail(err, "--exact-sum: the sum is another one with %s; give one of them", other);
    return true;
}

// A plan is made from flags alone, and --recompute may be planned where it cannot be done.
static inline bool train_options_check_plan(const TrainOptions *o, Error *err) {
    if (o->plan_gpu && !o->plan)
        return fail(err, "--plan-gpu: says for which machines --plan is made; add --plan");
    if (o->plan && (o->resume || o->generate))
        return fail(err, "--plan: is made from the flags of a run that trains; leave --%s out%s",
                    o->resume ? "resume" : "generate",
                    o->resume ? ", and name its model with --init" : "");
    return true;
}

// Everything that can be checked before the data and the model are open.
static inline bool train_options_check(TrainOptions *o, Error *err) {
    if (o->resume && o->overwrite)
        return fail(err, "--resume: goes on with a run, --overwrite replaces it; give one of them");
    if (o->resume && !o->out)
        return fail(err, "--resume: needs --out DIR, the directory of the run to go on with");
    return train_options_check_model(o, err) && train_options_check_batch(o, err)
        && train_options_check_length(o, err)
        && train_options_check_data(o, err) && train_options_check_ranks(o, err)
        && train_options_check_machine(o, ON_GPU || o->plan_gpu, err);
}

// What a resumed run takes over from the run it goes on with: every flag that was set then and is
// not given now. The model comes from the checkpoint, what was asked of that one start only (to
// overwrite, to resume) is not asked again, and a CPU that goes on with a GPU's run leaves out what
// only a GPU can do.
static inline bool train_options_restore(TrainOptions *o, const JsonNode *saved, Error *err) {
    static const char *const not_taken[] = {
        "init", "layers", "heads", "channels", "out", "resume", "overwrite", "generate", "help",
    };
    static const char *const fixed[] = { "init", "layers", "heads", "channels" };
    for (size_t k = 0; k < sizeof fixed / sizeof *fixed; k++)
        if (train_options_given(o, fixed[k]))
            return fail(err, "--%s is of no use here, the model is the checkpoint's; leave it out",
                        fixed[k]);
    bool length = train_options_given(o, "steps") || train_options_given(o, "tokens");
    bool data = train_options_given(o, "data") || train_options_given(o, "train")
             || train_options_given(o, "val");
    if (!train_options_given(o, "lr")
        && !json_get_int(&o->recipe_batch, saved, "batch_tokens", 1, INT64_MAX, err))
        o->recipe_batch = 0;
    for (int i = 0; i < TRAIN_OPTIONS; i++) {
        const Option *row = &train_table[i];
        char key[OPTION_NAME_MAX + 1];
        option_key(key, row->name);
        const JsonNode *v = json_get(saved, key);
        bool taken = v && v->type != JSON_NULL && !(o->given.bits >> i & 1);
        for (size_t k = 0; k < sizeof not_taken / sizeof *not_taken; k++)
            taken = taken && strcmp(row->name, not_taken[k]) != 0;
        taken = taken && (ON_GPU || !option_needs_gpu(row->name));
        bool of_length = strcmp(row->name, "steps") == 0 || strcmp(row->name, "tokens") == 0;
        bool of_data = strcmp(row->group, "data") == 0 && strcmp(row->name, "tokenizer") != 0;
        if ((length && of_length) || (data && of_data)) taken = false;   // one stands for the other
        if (!taken) continue;
        if (row->type == OPT_FLAG) *(bool *)((char *)o + row->field) = v->type == JSON_TRUE;
        else if (!option_read(o, row, v->text ? v->text : ""))
            return fail(err, "state.json: --%s is not %s", row->name, option_expects(row).text);
        o->given.bits |= (uint64_t)1 << i;
    }
    return true;
}

// A recipe's flags can be overridden after it (scripts end in "$@"). When --batch-tokens is given
// again, and no --lr after that, the rate was chosen for the first batch: that one, or 0.
static inline int64_t recipe_batch(int argc, char **argv) {
    double batch = 0.0;
    bool again = false;
    for (int i = 1; i < argc; i++) {
        const char *flag = "--batch-tokens", *arg = argv[i];
        size_t n = strlen(flag);
        bool here = strncmp(arg, flag, n) == 0 && (arg[n] == '=' || (!arg[n] && i + 1 < argc));
        again = again || (here && batch > 0.0);
        if (here && batch == 0.0 && !number_read(&batch, arg[n] ? arg + n + 1 : argv[i + 1]))
            return 0;
        bool lr = strcmp(arg, "--lr") == 0 || strncmp(arg, "--lr=", 5) == 0;
        again = again && !lr;
    }
    return again ? (int64_t)batch : 0;
}

// Parses and checks; with --help in sight only o->help counts. With --resume the checks wait for
// train_options_restore; call train_options_check after it.
static inline bool train_options_parse(TrainOptions *o, int argc, char **argv, Error *err) {
    if (!options_parse(o, train_table, TRAIN_OPTIONS, argc, argv, NULL, NULL, err)) return false;
    o->help = train_options_given(o, "help");
    o->recipe_batch = recipe_batch(argc, argv);
    if (!o->help && !train_options_check_plan(o, err)) return false;
    return o->help || o->resume || train_options_check(o, err);
}

// Whether this run measures the small gradients' lengths; and that there are two to compare.
static inline bool measures_noise(const TrainOptions *o) {
    return o->noise_scale || o->batches.rule == BATCH_ADAPTIVE;
}

static inline bool train_options_check_noise(const TrainOptions *o, int T, int ranks, Error *err) {
    const BatchSchedule *s = &o->batches;
    const char *asks = o->noise_scale ? "noise-scale" : "batch-schedule";
    uint64_t smallest = batch_smallest(s), sequences = smallest / (uint64_t)T;
    if (!measures_noise(o) || ranks > 1 || smallest / s->unit >= 2) return true;
    if (sequences < 2)
        return fail(err, "--%s: compares gradients of parts of a batch, and one of %llu tokens is "
                         "a single sequence; begin with %d", asks, (unsigned long long)smallest,
                    2*T);
    int half = (int)(sequences / 2);
    while (sequences % (uint64_t)half != 0) half--;
    return fail(err, "--%s: compares the micro-batches of an update, and a batch of %llu tokens is "
                     "one; --micro-batch %d makes more of it", asks, (unsigned long long)smallest,
                half);
}

// Settles the batch for sequences of T tokens. An update is a whole number of micro-batches on
// each rank, the same for all.
static inline bool train_options_batch(TrainOptions *o, int T, int ranks, Error *err) {
    int64_t unit = (int64_t)o->micro_batch * T * ranks;
    BatchSchedule *s = &o->batches;
    char of_ranks[40] = "";
    if (unit > 10LL*BATCH_MOST)
        return fail(err, "--micro-batch: %lld tokens at a time, of all ranks, are too many",
                    (long long)unit);
    s->unit = (uint64_t)unit;
    for (int i = 0; i < s->n_stages; i++)
        if (s->stages[i].batch % s->unit != 0)
            return fail(err, "--batch-schedule: %llu is not a multiple of %lld, which is what the "
                             "micro-batches of all ranks come to; the nearest is %llu",
                        (unsigned long long)s->stages[i].batch, (long long)unit,
                        (unsigned long long)batch_round(s, (double)s->stages[i].batch));
    if (o->batch_tokens == 0 && s->rule == BATCH_ADAPTIVE)
        o->batch_tokens = (int64_t)batch_round(s, (double)s->min);
    if (o->batch_tokens == 0) o->batch_tokens = unit;
    s->batch = (uint64_t)o->batch_tokens;
    if (o->batch_tokens % unit == 0 || s->rule == BATCH_ADAPTIVE)
        return train_options_check_noise(o, T, ranks, err);
    int64_t nearest = (o->batch_tokens + unit / 2) / unit * unit;
    if (nearest == 0) nearest = unit;
    if (ranks > 1) snprintf(of_ranks, sizeof of_ranks, "%d ranks times ", ranks);
    return fail(err, "--batch-tokens: %lld is not a multiple of %lld, which is %smicro-batch %d "
                     "times seq-len %d; the nearest is %lld", (long long)o->batch_tokens,
                (long long)unit, of_ranks, o->micro_batch, T, (long long)nearest);
}

// The length of the run, for run_done and run_progress.
static inline RunLength train_options_length(const TrainOptions *o) {
    RunLength run = { o->steps, o->tokens, o->target_loss };
    return run;
}

// Tokens of the whole run, as far as flags say it; 0: they do not.
static inline int64_t train_options_tokens(const TrainOptions *o) {
    if (!train_options_given(o, "steps")) return o->tokens > 0 ? o->tokens : 0;
    if (o->batches.rule == BATCH_ADAPTIVE) return 0;
    return (int64_t)batch_tokens_after(&o->batches, 0, (uint64_t)o->steps);
}

// The learning rate's rule; after train_options_batch, since --steps N are N batches of tokens.
static inline bool train_options_lr(LrSchedule *s, const TrainOptions *o, Error *err) {
    assert(o->batch_tokens > 0);
    s->rule = (LrRule)o->lr_schedule;
    s->lr = o->lr;
    s->final_frac = o->final_lr_frac;
    s->warmup = (uint64_t)o->warmup_tokens;
    s->horizon = 0;
    if (o->tokens > 0) s->horizon = (uint64_t)o->tokens;
    else if (o->steps > 0 && o->batches.rule != BATCH_ADAPTIVE)
        s->horizon = batch_tokens_after(&o->batches, 0, (uint64_t)o->steps);
    if (s->rule == LR_CONSTANT || o->steps == 0 || s->warmup <= s->horizon) return true;
    return fail(err, "--warmup-tokens: %llu is more than the %llu tokens of the whole run",
                (unsigned long long)s->warmup, (unsigned long long)s->horizon);
}
