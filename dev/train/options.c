// The flags of the two trainers, and the rules that one flag sets for another (train.h).
#include "train.h"

#define FIELD(member) offsetof(TrainOptions, member)

const Option train_table[] = {
    { "data", "DIR", OPT_TEXT, FIELD(data), NULL, 1, 0, NULL,
      "data", "a directory written by prepare: *train*.bin, *val*.bin, tokenizer.json", NULL },
    { "train", "GLOB", OPT_TEXT, FIELD(train), NULL, 1, 0, NULL,
      "data", "the training shards, in place of --data", NULL },
    { "val", "GLOB", OPT_TEXT, FIELD(val), NULL, 1, 0, NULL,
      "data", "the validation shards, in place of --data", NULL },
    { "tokenizer", "FILE", OPT_TEXT, FIELD(tokenizer), NULL, 1, 0, NULL,
      "data", "tokenizer.json or a GPT-2 vocabulary", "beside the data or the model" },

    { "init", "MODEL", OPT_TEXT, FIELD(init), "d4", 1, 0, NULL,
      "model", "a fresh d4, d6, d12, d24, d36 or d48 (d12 is GPT-2 124M), or a checkpoint to load: "
      "DIR, FILE.gguf, or llm.c's FILE.bin", NULL },
    { "layers", "N", OPT_INT, FIELD(layers), NULL, 1, 1000, NULL,
      "model", "layers of a fresh model; needs --heads and --channels", "from --init" },
    { "heads", "N", OPT_INT, FIELD(heads), NULL, 1, 65536, NULL,
      "model", "attention heads; must divide the channels", "from --init" },
    { "channels", "N", OPT_INT, FIELD(channels), NULL, 1, 65536, NULL,
      "model", "width of the model", "from --init" },
    { "seq-len", "T", OPT_INT, FIELD(seq_len), "0", 0, 1e6, NULL,
      "model", "tokens per sequence", "256, or a loaded model's own" },

    { "micro-batch", "B", OPT_INT, FIELD(micro_batch), "8", 1, 65536, NULL,
      "batch", "sequences per forward pass on each rank; gradients accumulate over --batch-tokens, "
      "so this affects only memory and speed", NULL },
    { "batch-tokens", "N", OPT_COUNT, FIELD(batch_tokens), "0", 0, 1e9, NULL,
      "batch", "tokens per update, all ranks; a multiple of ranks times micro-batch times seq-len",
      "one micro-batch on every rank" },
    { "batch-schedule", "RULE", OPT_TEXT, FIELD(batch_schedule), "constant", 1, 0, NULL,
      "batch", "the batch size in tokens over the run: constant; linear:N0,TOKENS grows from N0 to "
      "--batch-tokens over TOKENS; stages:TOKENS=BATCH,... uses BATCH from TOKENS on; "
      "adaptive:ETA,MIN,MAX grows when the noise exceeds ETA times the gradient's norm", NULL },
    { "batch-lr", "RULE", OPT_CHOICE, FIELD(batch_lr), "none", 0, 0,
      "none|sqrt|linear",                    // in the order of BatchLr
      "batch", "how the learning rate scales with the batch size; --lr applies at --batch-tokens",
      NULL },
    { "noise-scale", NULL, OPT_FLAG, FIELD(noise_scale), NULL, 0, 0, NULL,
      "batch", "measure the gradient noise scale, an estimate of the critical batch size "
      "(McCandlish 2018); needs two micro-batches or two ranks", NULL },

    { "optimizer", "RULE", OPT_CHOICE, FIELD(optimizer), "adamw", 0, 0,
      "adamw|sgd",                           // in the order of Optimizer
      "optimizer", "adamw, or sgd without momentum", NULL },
    { "average-tokens", "N", OPT_COUNT, FIELD(average_tokens), "0", 0, 1e15, NULL,
      "optimizer", "also keep an exponential moving average of the weights, with this half-life "
      "in tokens, and evaluate it", "no average" },
    { "lr", "X", OPT_REAL, FIELD(lr), "6e-4", 1e-12, 100, NULL,
      "optimizer", "the peak learning rate; sgd needs a far larger one, such as 0.03", NULL },
    { "lr-schedule", "RULE", OPT_CHOICE, FIELD(lr_schedule), "cosine", 0, 0,
      "constant|linear|cosine|wsd",          // in the order of LrRule
      "optimizer", "the rate after the warm-up; wsd: constant, then linear over the last fifth",
      NULL },
    { "warmup-tokens", "N", OPT_COUNT, FIELD(warmup_tokens), "0", 0, 1e15, NULL,
      "optimizer", "length of the learning rate's linear warm-up, in tokens", NULL },
    { "final-lr-frac", "X", OPT_REAL, FIELD(final_lr_frac), "0.1", 0, 1, NULL,
      "optimizer", "a decaying learning rate ends at this fraction of --lr", NULL },
    { "weight-decay", "X", OPT_REAL, FIELD(weight_decay), "0.1", 0, 100, NULL,
      "optimizer", "decoupled weight decay, for matrices only", NULL },
    { "beta1", "X", OPT_REAL, FIELD(beta1), "0.9", 0, 0.999999, NULL,
      "optimizer", "AdamW's decay rate for the first moment", NULL },
    { "beta2", "X", OPT_REAL, FIELD(beta2), "0.95", 0, 0.999999, NULL,
      "optimizer", "AdamW's decay rate for the second moment; with a batch schedule, "
      "adjusted to keep its half-life in tokens", NULL },
    { "clip", "X", OPT_REAL, FIELD(clip), "1", 0, 1e6, NULL,
      "optimizer", "clip the gradient to this global norm; 0: no clipping", NULL },

    { "steps", "N", OPT_COUNT, FIELD(steps), NULL, 0, 1e8, NULL,
      "length", "updates in the whole run; 0: only evaluate",
      "1000 when neither --tokens nor --target-loss is given" },
    { "tokens", "N", OPT_COUNT, FIELD(tokens), NULL, 1, 1e15, NULL,
      "length", "tokens to train on in the whole run, in place of --steps", "no limit" },
    { "target-loss", "X", OPT_REAL, FIELD(target_loss), "0", 0, 1000, NULL,
      "length", "stop once the validation loss is at most X nats per token", "none" },

    { "eval-every", "N", OPT_PERIOD, FIELD(eval_every), "100", 0, 0, NULL,
      "watch", "updates (or tokens: 50000tok) between evaluations; 0: only at the end", NULL },
    { "eval-tokens", "N", OPT_COUNT, FIELD(eval_tokens), "65536", 0, 1e15, NULL,
      "watch", "validation tokens per evaluation; 0: the whole split", NULL },
    { "eval-train", NULL, OPT_FLAG, FIELD(eval_train), NULL, 0, 0, NULL,
      "watch", "at each evaluation, also report the loss on as many training tokens", NULL },
    { "sample-every", "N", OPT_PERIOD, FIELD(sample_every), "0", 0, 0, NULL,
      "watch", "updates (or tokens: 50000tok) between samples of text", "never" },
    { "hellaswag", "FILE", OPT_TEXT, FIELD(hellaswag), NULL, 1, 0, NULL,
      "watch", "accuracy on HellaSwag (JSON lines), at each checkpoint and at the end", NULL },
    { "log", "FILE", OPT_TEXT, FIELD(log), NULL, 1, 0, NULL,
      "watch", "the log, one JSON object per line; a run appends to an existing log",
      "log.jsonl in --out; without --out, no log" },

    { "out", "DIR", OPT_TEXT, FIELD(out), NULL, 1, 0, NULL,
      "keep", "directory for checkpoints and the log", "nothing is saved" },
    { "save-every", "N", OPT_PERIOD, FIELD(save_every), "1000", 0, 0, NULL,
      "keep", "updates (or tokens: 50000tok) between checkpoints; 0: only at the end",
      NULL },
    { "keep", "N", OPT_INT, FIELD(keep), "2", 0, 1e6, NULL,
      "keep", "how many of the newest checkpoints to keep, besides the one with the lowest "
      "validation loss; 0: all", NULL },
    { "resume", "[=N]", OPT_FROM, FIELD(resume_from), NULL, 1, 1e15, NULL,
      "keep", "continue the run in --out with its own flags, from its latest checkpoint or the one "
      "from update N; flags given now override them", NULL },
    { "overwrite", NULL, OPT_FLAG, FIELD(overwrite), NULL, 0, 0, NULL,
      "keep", "replace the run that --out already holds, and the file that --log names", NULL },

    { "generate", "PROMPT", OPT_TEXT, FIELD(generate), NULL, 0, 0, NULL,
      "generate", "do not train; continue this text ('' begins a document) or file @FILE (@-: "
      "standard input)", NULL },
    { "samples", "N", OPT_INT, FIELD(samples), "1", 1, 1e6, NULL,
      "generate", "samples from that prompt, each with its own RNG stream", NULL },
    { "stop", "TEXT", OPT_TEXT, FIELD(stop), NULL, 1, 0, NULL,
      "generate", "stop before this text; in bash, a newline is $'\\n'", "none" },
    { "max-new", "N", OPT_INT, FIELD(max_new), "256", 1, 1e6, NULL,
      "generate", "at most this many tokens", NULL },
    { "temperature", "X", OPT_REAL, FIELD(temperature), "0.8", 0, 100, NULL,
      "generate", "below 1 sharpens the distribution; 0 takes the likeliest token", NULL },
    { "top-k", "N", OPT_INT, FIELD(top_k), "0", 0, 1e6, NULL,
      "generate", "sample from the N likeliest tokens only", "off" },
    { "top-p", "X", OPT_REAL, FIELD(top_p), "1", 1e-6, 1, NULL,
      "generate", "nucleus sampling: from the likeliest tokens whose probabilities "
      "add up to X", "off" },

    { "export", "FILE.gguf", OPT_TEXT, FIELD(export_file), NULL, 1, 0, NULL,
      "export", "do not train; write the model and its tokenizer as GGUF, for llama.cpp; if "
      "named NAME-f16.gguf, matrices are fp16 (wpe and vectors stay fp32)", NULL },

    { "zero", "STAGE", OPT_INT, FIELD(zero), NULL, 0, 3, NULL,
      "ranks", "ZeRO stage (Rajbhandari 2020): 1 shards AdamW's moments across ranks, 2 "
      "gradients too, 3 parameters too",
      "1 with several ranks; 0 with --comm-dtype bf16, --exact-sum or --outer-every" },
    { "tensor-parallel", "N", OPT_INT, FIELD(tensor_parallel), "1", 1, 256, NULL,
      "ranks", "tensor parallelism (Shoeybi 2019): N consecutive ranks split every layer and "
      "the vocabulary; N must divide the ranks and the heads", NULL },
    { "outer-every", "H", OPT_COUNT, FIELD(outer_every), "0", 0, 1e8, NULL,
      "ranks", "DiLoCo (Douillard 2023): each rank does H updates on its own, then all take an "
      "outer step; 0: every gradient is averaged", NULL },
    { "outer-lr", "X", OPT_REAL, FIELD(outer_lr), "0.7", 1e-6, 10, NULL,
      "ranks", "outer learning rate; 1 without momentum is plain averaging", NULL },
    { "outer-momentum", "X", OPT_REAL, FIELD(outer_momentum), "0.9", 0, 0.999999, NULL,
      "ranks", "Nesterov momentum of the outer step", NULL },
    { "comm-dtype", "TYPE", OPT_CHOICE, FIELD(comm_dtype), "fp32", 0, 0,
      "fp32|bf16",                           // in the order of CommType
      "ranks", "data type to send gradients in; sums are fp32", NULL },
    { "exact-sum", NULL, OPT_FLAG, FIELD(exact_sum), NULL, 0, 0, NULL,
      "ranks", "sum gradients in one binary tree, so that 2, 4, 8... ranks match one rank "
      "bit for bit; needs more gradient memory", NULL },
    { "no-overlap", NULL, OPT_FLAG, FIELD(no_overlap), NULL, 0, 0, NULL,
      "ranks", "do not overlap communication with computation, to measure what overlap saves",
      NULL },
    { "timeout", "SECONDS", OPT_REAL, FIELD(timeout), "30", 1, 86400, NULL,
      "ranks", "end the run when a rank has not answered for this long", NULL },

    { "threads", "N", OPT_INT, FIELD(threads), "0", 0, THREADS_MOST, NULL,
      "machine", "threads, at most 4 per core; no effect on results", "all" },
    { "seed", "N", OPT_COUNT, FIELD(seed), "1337", 0, 1e15, NULL,
      "machine", "seed for the weights, the order of the data, and sampling", NULL },
    { "recompute", "WHAT", OPT_CHOICE, FIELD(recompute), "none", 0, 0,
      "none|block",                          // in the order of Recompute
      "machine", "GPU only; block: keep only the input of each block, and recompute the rest in "
      "the backward pass", NULL },
    { "plan", NULL, OPT_FLAG, FIELD(plan), NULL, 0, 0, NULL,
      "machine", "estimate this run's memory, time and traffic, and exit", NULL },
    { "plan-gpu", "NAME[@TFLOPS],COUNT[,LINK[:GPUS+LINK][,PRICE]]", OPT_TEXT, FIELD(plan_gpu), NULL,
      1, 0, NULL, "machine", "plan for other machines: h100,8,450GB/s or v100@46.2,1; LINK is each "
      "device's bandwidth (300GB/s:8+25GB/s: 300 within 8-GPU machines, 25 between them), PRICE "
      "per device-hour",
      "this machine, measured" },
    { "plan-search", NULL, OPT_FLAG, FIELD(plan_search), NULL, 0, 0, NULL,
      "machine", "find the fastest combination of data, tensor and pipeline parallelism, "
      "ZeRO, micro-batch and recomputation on --plan-gpu for --tokens, and exit; pipelines are "
      "only modelled", NULL },

    { "help", NULL, OPT_HELP, 0, NULL, 0, 0, NULL, "help", "print this text", NULL },
};

#undef FIELD

const OptionHint train_hints[] = {
    { "max-iters|max-steps|num-iterations|lr-decay-iters|x", "here it is --steps N" },
    { "epochs|num-epochs|num-train-epochs", "the length is --steps N updates, or --tokens N" },
    { "batch-size|device-batch-size|per-device-train-batch-size|b", "--micro-batch N is for the "
      "sequences of a forward pass, --batch-tokens N for the tokens of an update" },
    { "gradient-accumulation-steps|grad-accum-steps|total-batch-size|d",
      "--batch-tokens N sets the tokens of an update; gradient accumulation follows from it" },
    { "block-size|max-seq-len|context-length|ctx-size|n-ctx|n-positions|t", "here it is "
      "--seq-len N" },
    { "n-layer|n-layers|num-layers|num-hidden-layers|depth", "here it is --layers N" },
    { "n-head|n-heads|num-heads|num-attention-heads", "here it is --heads N" },
    { "n-embd|n-embed|d-model|hidden-size|dim", "here it is --channels N" },
    { "learning-rate|max-lr|l", "here it is --lr X" },
    { "min-lr", "--final-lr-frac X is the last rate over the highest, --lr" },
    { "warmup-iters|warmup-steps|warmup-ratio", "the warm-up is in tokens: --warmup-tokens N" },
    { "lr-scheduler-type|decay-lr", "here it is --lr-schedule RULE" },
    { "grad-clip|max-grad-norm", "here it is --clip X" },
    { "eval-interval|eval-steps|v", "here it is --eval-every N" },
    { "eval-iters|eval-batches", "here it is --eval-tokens N" },
    { "save-steps|save-interval|always-save-checkpoint", "here it is --save-every N" },
    { "log-interval|logging-steps", "there is none: every update is in the log, --log FILE" },
    { "out-dir|output-dir|o", "here it is --out DIR" },
    { "init-from|from-pretrained|model|model-name-or-path|e",
      "--init MODEL begins a model or loads one; --resume continues a run" },
    { "resume-from-checkpoint", "here it is --resume, with --out DIR" },
    { "dataset|data-dir|train-file|input|i", "--data DIR is what `./prepare text` has written" },
    { "prompt|start|p", "here it is --generate PROMPT" },
    { "file|prompt-file|f", "here it is --generate @FILE" },
    { "max-new-tokens|n-predict", "here it is --max-new N" },
    { "num-samples|num-return-sequences", "here it is --samples N" },
    { "stop-strings|reverse-prompt|r", "here it is --stop TEXT" },
    { "temp", "here it is --temperature X" },
    { "device|backend|gpus|n-gpu-layers|ngl", "there is none: train_gpt2 runs on the CPU, "
      "train_gpt2cu on a GPU" },
    { "dtype|bf16|fp16|precision", "the build decides: make PRECISION=bf16" },
    { "compile", "there is none: make has compiled everything" },
    { "dropout|attn-pdrop|resid-pdrop|embd-pdrop", "there is none: nothing is dropped" },
    { "bias", "there is none: GPT-2 has biases" },
    { "vocab-size", "there is none: the data or the loaded model sets the vocabulary" },
    { "gradient-checkpointing", "here it is --recompute block, on a GPU" },
    { "wandb|wandb-log|wandb-project|report-to", "there is none: scripts/watch.py shows the run" },
    { NULL, NULL },
};

const int train_rows = (int)(sizeof train_table / sizeof train_table[0]);

bool train_options_given(const TrainOptions *o, const char *name) {
    return options_given(o, train_table, train_rows, name);
}

void train_options_help(FILE *out) {
    Shown usage = show_text("usage: ./%s --data DIR [flags]", *program_name());
    options_help(out, usage.text, train_table, train_rows);
}

void train_options_echo(Log *log, const TrainOptions *o) {
    options_echo(log, o, train_table, train_rows);
}

// ---- rules between flags ----

// The divisors of n nearest to `near`, below and above: valid numbers of heads.
static void divisors_around(int *below, int *above, int n, int near) {
    for (*below = near < n ? near : n; n % *below != 0; ) --*below;
    for (*above = near < n ? near : n; n % *above != 0; ) ++*above;
}

// The sizes of a fresh model: --init, or --layers, --heads and --channels together.
static bool train_options_check_model(const TrainOptions *o, Error *err) {
    bool layers = train_options_given(o, "layers"), heads = train_options_given(o, "heads");
    bool channels = train_options_given(o, "channels");
    if (!layers && !heads && !channels) return true;
    const char *first = layers ? "layers" : heads ? "heads" : "channels";
    if (train_options_given(o, "init"))
        return fail(err, "--%s: --init already sets the model's sizes; give one or the other",
                    first);
    const char *missing = !layers ? "layers" : !heads ? "heads" : !channels ? "channels" : NULL;
    if (missing)
        return fail(err, "--%s: needs --%s too; give --layers, --heads and --channels together",
                    first, missing);
    if (o->channels % o->heads == 0) return true;
    int below, above;
    divisors_around(&below, &above, o->channels, o->heads);
    Shown which = below == above ? show_text("%d does", below)
                                 : show_text("%d and %d do", below, above);
    return fail(err, "--heads: %d does not divide the %d channels; %s", o->heads, o->channels,
                which.text);
}

bool train_options_check_optimizer(const TrainOptions *o, Error *err) {
    const char *given = train_options_given(o, "beta1") ? "beta1"
                      : train_options_given(o, "beta2") ? "beta2" : NULL;
    return o->optimizer != OPTIMIZER_SGD || !given
        || fail(err, "--%s: is AdamW's, and --optimizer sgd has no moments; leave it out", given);
}

int train_options_stage(const TrainOptions *o, int ranks) {
    if (train_options_given(o, "zero")) return o->zero;
    return ranks > 1 && o->comm_dtype == 0 && !o->exact_sum && o->outer_every == 0 ? 1 : 0;
}

// Whether the row's flag is one of "a|b|c".
static bool option_is_one_of(const Option *row, const char *names) {
    return choice_index(names, row->name, strlen(row->name)) >= 0;
}

// Whether --generate or --export, which only read a checkpoint, take this flag into account.
static bool option_reads(const Option *row, const TrainOptions *o) {
    return option_is_one_of(row, "data|tokenizer|resume|threads")
        || strcmp(row->group, o->generate ? "generate" : "export") == 0
        || (o->generate && option_is_one_of(row, "seed"))
        || (o->resume && option_is_one_of(row, "out"))
        || strcmp(row->group, "model") == 0;
}

static bool train_options_check_reading(const TrainOptions *o, Error *err) {
    const char *reader = o->generate ? "generate" : o->export_file ? "export" : NULL;
    if (o->generate && o->export_file)
        return fail(err, "--export: --generate is given too; give one of them");
    for (int i = 0; reader && i < train_rows; i++)
        if (o->given.set[i] && !option_reads(&train_table[i], o))
            return fail(err, "--%s: is for training, and --%s only reads a checkpoint "
                             "(--init DIR); leave it out", train_table[i].name, reader);
    return !o->export_file || ends_with(o->export_file, ".gguf")
        || fail(err, "--export: '%.40s' must end in .gguf: GGUF is all that it writes",
                o->export_file);
}

bool train_options_workers(int *workers, const TrainOptions *o, int ranks, Error *err) {
    *workers = ranks / o->tensor_parallel;
    if (ranks % o->tensor_parallel == 0) return true;
    return fail(err, "--tensor-parallel: %d does not divide %d rank%s; start a multiple of %d "
                     "ranks, or give a divisor", o->tensor_parallel, ranks, ranks == 1 ? "" : "s",
                o->tensor_parallel);
}

// A rule between flags that is broken, and what to say then; the first one counts.
typedef struct { bool broken; const char *says; } Rule;

static bool rules_hold(const Rule *rules, int n, Error *err) {
    for (int i = 0; i < n; i++) if (rules[i].broken) return fail(err, "%s", rules[i].says);
    return true;
}

#define RULES_HOLD(rules, err) rules_hold(rules, (int)(sizeof rules / sizeof *rules), err)

// A plan is made from flags alone; a CPU may plan --recompute for a GPU.
static bool train_options_check_plan(const TrainOptions *o, Error *err) {
    const Rule rules[] = {
        { o->plan_search && !o->plan_gpu,
          "--plan-search: needs --plan-gpu h100,16,450GB/s:8+50GB/s, or others" },
        { o->plan_gpu && !o->plan,
          "--plan-gpu: names the machines that --plan plans for; add --plan" },
        { o->plan && o->resume,
          "--plan: plans a training run from its flags; leave --resume out, and name its model "
          "with --init" },
        { o->plan && o->generate,
          "--plan: plans a training run from its flags; leave --generate out" },
        { o->plan && o->export_file,
          "--plan: plans a training run from its flags; leave --export out" },
    };
    return RULES_HOLD(rules, err);
}

bool train_options_check(TrainOptions *o, Error *err) {
    bool parsed = batch_schedule_parse(&o->batches, o->batch_schedule, err);
    if (!parsed || !train_options_check_model(o, err)) return false;
    const BatchRule batch = o->batches.rule;
    const bool steps = train_options_given(o, "steps"), tokens = train_options_given(o, "tokens");
    const bool target = o->target_loss > 0, decays = o->lr_schedule != LR_CONSTANT && !o->plan;
    const Rule rules[] = {
        { o->resume && o->overwrite,
          "--resume: continues a run, --overwrite replaces it; give one of them" },
        { o->resume && !o->out, "--resume: needs --out DIR, the directory of the run to continue" },

        { batch == BATCH_CONSTANT && o->batch_lr != BATCH_LR_NONE,
          "--batch-lr: needs a batch that changes; add --batch-schedule, or give --batch-lr none" },
        { batch != BATCH_CONSTANT && o->exact_sum,
          "--exact-sum: needs a constant batch; leave --batch-schedule out" },
        { batch == BATCH_LINEAR && o->batch_tokens == 0,
          "--batch-tokens: missing; --batch-schedule linear grows the batch up to --batch-tokens" },
        { batch == BATCH_ADAPTIVE && o->outer_every > 0,
          "--batch-schedule: needs the gradient averaged over all ranks; with --outer-every each "
          "rank has its own" },
        { o->noise_scale && o->outer_every > 0,
          "--noise-scale: needs the gradient averaged over all ranks; with --outer-every each rank "
          "has its own" },
        { o->average_tokens > 0 && o->outer_every > 0,
          "--average-tokens: averages the weights that all ranks share, and with --outer-every "
          "each rank has its own; leave it out" },

        // A decaying learning rate needs to know where the run ends.
        { batch == BATCH_ADAPTIVE && decays && !tokens,
          "--tokens: missing; a decaying learning rate needs the length of the run in tokens, "
          "which an adaptive batch leaves open; add --tokens N, or --lr-schedule constant" },
        { target && o->eval_every.n == 0,
          "--eval-every: --target-loss is checked at each evaluation, and 0 evaluates only at the "
          "end" },
        { steps && tokens, "--tokens: --steps already sets the length; give one or the other" },
        { target && decays && !steps && !tokens,
          "--lr-schedule: a decaying learning rate needs the length of the run, which "
          "--target-loss leaves open; add --tokens N, or --lr-schedule constant" },

        { o->data && (o->train || o->val),
          "--data: names both splits; give --data, or --train and --val" },
        { !o->generate && o->train && !o->val,
          "--val: missing; --train needs --val too, or give --data for both" },
        { !o->generate && o->samples > 1,
          "--samples: texts of --generate PROMPT; --sample-every N writes one at a time" },
        { !o->generate && !o->export_file && !o->plan && !o->data && !o->train,
          "--data: there is nothing to train on; `./prepare tales --out DIR` writes a corpus, "
          "--data DIR reads it" },

        { o->zero > 0 && o->outer_every > 0,
          "--zero: shards one common update across ranks, and with --outer-every each rank makes "
          "updates of its own; give one of them" },
        { o->exact_sum && o->tensor_parallel > 1,
          "--exact-sum: --tensor-parallel changes the sum of gradients; give one of them" },
        { o->exact_sum && o->zero > 0,
          "--exact-sum: --zero changes the sum of gradients; give one of them" },
        { o->exact_sum && o->outer_every > 0,
          "--exact-sum: --outer-every changes the sum of gradients; give one of them" },
        { o->exact_sum && o->comm_dtype != COMM_FP32,
          "--exact-sum: --comm-dtype bf16 changes the sum of gradients; give one of them" },

        { !ON_GPU && !o->plan_gpu && train_options_given(o, "recompute"),
          "--recompute: needs a GPU (train_gpt2cu); leave it out" },
    };
    if (!steps && !tokens && !target && !o->plan) o->steps = 1000;
    return RULES_HOLD(rules, err);
}

const char *option_saved_words(const JsonNode *v) {
    return v->type == JSON_NUMBER || v->type == JSON_STRING ? v->text : "";
}

// Row i is a flag that a resumed run cannot change; v is its value when the run began. It may be
// repeated, as part of a whole command. A run that began with --layers did not use --init.
static bool train_options_keep(TrainOptions *o, int i, const JsonNode *v, bool has_layers,
                               Error *err) {
    const Option *row = &train_table[i];
    TrainOptions then = *o;
    bool saved = v && v->type != JSON_NULL, unused = row->type == OPT_TEXT && has_layers;
    option_set_default(&then, row);
    if (saved && !option_read(&then, row, option_saved_words(v)))
        return fail(err, "state.json: --%s is not %s", row->name, option_expects(row).text);
    char *now = (char *)o + row->field, *was = (char *)&then + row->field;
    bool wide = row->type == OPT_COUNT || row->type == OPT_REAL;
    bool same = row->type == OPT_TEXT ? !unused && strcmp(o->init, then.init) == 0
              : memcmp(now, was, wide ? sizeof(int64_t) : sizeof(int)) == 0;
    if (o->given.set[i] && !same)
        return fail(err, "--%s: the run began with %s; leave it out", row->name,
                    unused ? "--layers" : saved ? option_saved_words(v) : "none");
    o->given.set[i] = false;
    return !saved || option_read(o, row, option_saved_words(v));
}

bool train_options_restore(TrainOptions *o, const JsonNode *saved, Error *err) {
    const JsonNode *layers = json_get(saved, "layers");
    bool length = train_options_given(o, "steps") || train_options_given(o, "tokens");
    bool data = train_options_given(o, "data") || train_options_given(o, "train")
             || train_options_given(o, "val");
    if (!train_options_given(o, "lr")
        && !json_get_int(&o->recipe_batch, saved, "batch_tokens", 1, INT64_MAX, err))
        o->recipe_batch = 0;
    for (int i = 0; i < train_rows; i++) {
        const Option *row = &train_table[i];
        const JsonNode *v = json_get(saved, option_key(row->name).text);
        if (o->generate && o->given.set[i] && option_is_one_of(row, "seed|seq-len")) continue;
        if (strcmp(row->group, "model") == 0 || option_is_one_of(row, "optimizer|seed")) {
            if (!train_options_keep(o, i, v, layers && layers->type != JSON_NULL, err))
                return false;
            continue;
        }
        if (!v || v->type == JSON_NULL || o->given.set[i]
            || option_is_one_of(row, "out|resume|overwrite|generate|export|help|plan|plan-gpu|"
                                "plan-search|tokenizer")             // a checkpoint has its own
            || (!ON_GPU && option_is_one_of(row, "recompute"))
            || (length && option_is_one_of(row, "steps|tokens"))     // one replaces the other
            || (data && option_is_one_of(row, "data|train|val"))) continue;
        if (row->type == OPT_FLAG) *(bool *)((char *)o + row->field) = v->type == JSON_TRUE;
        else if (!option_read(o, row, option_saved_words(v)))
            return fail(err, "state.json: --%s is not %s", row->name, option_expects(row).text);
        o->given.set[i] = true;
    }
    return true;
}

// Scripts end in "$@", so a user can override a recipe's flags. If --batch-tokens is given twice
// and no --lr follows, --lr was chosen for the first batch: returns that batch, otherwise 0.
static int64_t recipe_batch(int argc, char **argv) {
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

bool train_options_parse(TrainOptions *o, int argc, char **argv, Error *err) {
    option_hints = train_hints;
    if (!options_parse(o, train_table, train_rows, argc, argv, NULL, NULL, err)) return false;
    o->help = train_options_given(o, "help");
    o->recipe_batch = recipe_batch(argc, argv);
    if (o->help) return true;
    o->resume = train_options_given(o, "resume");
    if (o->plan_search) o->plan = true;
    if (!train_options_check_plan(o, err) || !train_options_check_reading(o, err)
        || !train_options_check_optimizer(o, err)) return false;
    return o->resume || train_options_check(o, err);
}

bool measures_noise(const TrainOptions *o) {
    return o->noise_scale || o->batches.rule == BATCH_ADAPTIVE;
}

// The noise scale compares two gradients at least: of micro-batches, or of ranks.
static bool train_options_check_noise(const TrainOptions *o, int T, int ranks, Error *err) {
    const BatchSchedule *s = &o->batches;
    const char *asks = o->noise_scale ? "noise-scale" : "batch-schedule";
    uint64_t smallest = batch_smallest(s), sequences = smallest / (uint64_t)T;
    if (!measures_noise(o) || ranks > 1 || smallest / s->unit >= 2) return true;
    if (sequences < 2)
        return fail(err, "--%s: compares gradients of parts of a batch, and a batch of %llu tokens "
                         "is a single sequence; use %d tokens or more", asks,
                    (unsigned long long)smallest, 2*T);
    int half = (int)(sequences / 2);
    while (sequences % (uint64_t)half != 0) half--;
    return fail(err, "--%s: compares the micro-batches of an update, and a batch of %llu tokens is "
                     "a single one; --micro-batch %d splits it", asks, (unsigned long long)smallest,
                half);
}

bool train_options_batch(TrainOptions *o, int T, int ranks, Error *err) {
    int64_t unit = (int64_t)o->micro_batch * T * ranks;
    BatchSchedule *s = &o->batches;
    char of_ranks[40] = "";
    s->unit = (uint64_t)unit;
    for (int i = 0; i < s->n_stages; i++)
        if (s->stages[i].batch % s->unit != 0)
            return fail(err, "--batch-schedule: %llu is not a multiple of %lld, a micro-batch on "
                             "each rank; the nearest is %llu",
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

int64_t train_options_tokens(const TrainOptions *o) {
    if (o->tokens > 0) return o->tokens;
    if (o->steps <= 0 || o->batches.rule == BATCH_ADAPTIVE) return 0;
    return (int64_t)batch_tokens_after(&o->batches, 0, (uint64_t)o->steps);
}

bool train_options_lr(LrSchedule *s, const TrainOptions *o, Error *err) {
    assert(o->batch_tokens > 0);
    s->rule = (LrRule)o->lr_schedule;
    s->lr = o->lr;
    s->final_frac = o->final_lr_frac;
    s->warmup = (uint64_t)o->warmup_tokens;
    s->horizon = (uint64_t)train_options_tokens(o);
    if (s->rule == LR_CONSTANT || o->steps == 0 || s->warmup <= s->horizon) return true;
    return fail(err, "--warmup-tokens: %llu is more than the %llu tokens of the whole run",
                (unsigned long long)s->warmup, (unsigned long long)s->horizon);
}
