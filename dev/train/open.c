// Opening a run: flags, ranks, data, model, output; and closing it (train.h).
#include "train.h"

Sharing run_sharing(const TrainOptions *o, Comm *data, Comm *tensor) {
    uint64_t micro_batches = o->batches.batch / o->batches.unit;
    Sharing s = { data, tensor, train_options_stage(o, data->size), (CommType)o->comm_dtype,
                  o->exact_sum ? tree_level(micro_batches - 1) + 1 : 0,
                  o->outer_every > 0, o->no_overlap, measures_noise(o),
                  o->optimizer == OPTIMIZER_SGD, o->average_tokens > 0 };
    return s;
}

// Escapes glob()'s wildcards in a path, so that the pattern matches this path alone.
static void quote_pattern(char *out, size_t size, const char *path) {
    size_t n = 0;
    for (; *path && n + 3 <= size; path++) {
        if (strchr("*?[\\", *path)) out[n++] = '\\';
        out[n++] = *path;
    }
    out[n] = '\0';
}

void open_split(Loader *l, const Run *r, const char *glob_flag, const char *split) {
    char pattern[8300], dir[8192];
    Error err;
    if (!glob_flag) quote_pattern(dir, sizeof dir, r->o.data);
    if (glob_flag) snprintf(pattern, sizeof pattern, "%s", glob_flag);
    else snprintf(pattern, sizeof pattern, "%s/*%s*.bin", dir, split);
    const char *word = glob_flag ? NULL : split;
    if (!loader_open(l, pattern, word, r->T, (uint64_t)r->o.seed, &err)) die("%s", err.text);
}

// Whether the path names a GGUF, which holds a tokenizer beside the model.
static bool is_gguf_file(const char *path) {
    FileMap file;
    Error err;
    bool is = path && file_map(&file, path, &err) && gguf_is(file.bytes, file.n);
    if (path) file_unmap(&file);
    return is;
}

// Tokens of one tokenizer are nonsense to a model of another: compares the run's, read at path, to
// that beside the data, token by token. Padding may make one of them larger.
static void check_same_tokens(const Run *r, const char *path) {
    Tokenizer own;
    Error err;
    Path beside = path_join(r->o.data ? r->o.data : "", "tokenizer.json");
    bool trains = r->o.data && !r->o.generate && !r->o.export_file;
    if (!trains || strcmp(beside.text, path) == 0 || access(beside.text, F_OK) != 0
        || !tokenizer_load(&own, beside.text, &err)) return;
    for (int id = 0; id < own.vocab_size && id < r->tokenizer.vocab_size; id++) {
        size_t n, n_there;
        const char *piece = tokenizer_piece(&r->tokenizer, id, &n);
        const char *there = tokenizer_piece(&own, id, &n_there);
        if (n != n_there || memcmp(piece, there, n) != 0)
            die("--data: token %d is \"%s\" in %s, but \"%s\" in this run's tokenizer; encode the "
                "data again, with prepare's --tokenizer %s", id, brief(there, n_there).text,
                beside.text, brief(piece, n).text, path);
    }
    tokenizer_free(&own);
}

void open_tokenizer(Run *r, const char *checkpoint) {
    const char *beside[] = { checkpoint, r->o.data };
    char path[5000];
    Error err;
    snprintf(path, sizeof path, "%s", r->o.tokenizer ? r->o.tokenizer
                                    : is_gguf_file(checkpoint) ? checkpoint : "");
    for (int i = 0; i < 2 && !path[0]; i++) {
        if (beside[i]) snprintf(path, sizeof path, "%s/tokenizer.json", beside[i]);
        if (access(path, F_OK) != 0) path[0] = '\0';
    }
    if (!path[0]) return;
    if (!tokenizer_load(&r->tokenizer, path, &err))
        die("%s%s", err.text, r->o.tokenizer ? "" : "; name another one with --tokenizer FILE");
    check_same_tokens(r, path);
    text_begin(&r->tokenizer_json);
    tokenizer_print(r->tokenizer_json.f, &r->tokenizer);
    text_end(&r->tokenizer_json);
}

Config fresh_config(const Run *r) {
    Config c = { r->o.layers, r->o.heads, r->o.channels, 50257, r->T, 0 };
    Error err;
    if (r->tokenizer.vocab_size > 0) c.V = r->tokenizer.vocab_size;
    if (r->train.vocab > 0) c.V = r->train.vocab;
    if (r->o.layers == OPTION_UNSET && !gpt2_preset(&c, r->o.init, &err))
        die("--init: %s", err.text);
    return c;
}

bool find_checkpoint(Path *from, Config *c, const Run *r) {
    Error err;
    bool fresh_name = gpt2_preset(c, r->o.init, &err);
    bool reads = !r->o.resume && (r->o.generate || r->o.export_file);
    if (fresh_name && reads && checkpoint_exists(r->o.init))
        die("--init: %s is a fresh model's name; ./%s is the run", r->o.init, r->o.init);
    if (!r->o.resume && (fresh_name || r->o.layers != OPTION_UNSET)) return false;
    const char *where = r->o.resume ? r->o.out : r->o.init;
    if (!r->o.resume && access(where, F_OK) != 0)
        die("--init: %s; there is no checkpoint of that name either%s", err.text,
            strncmp(where, "gpt2", 4) == 0 ? "; dev/data/fetch.sh fetches OpenAI's to data/" : "");
    bool found = r->o.resume ? find_resumed(from, r, &err) : checkpoint_find(from, where, &err);
    if (!found) die("%s", err.text);
    if (!checkpoint_config(c, from->text, &err)) die_checkpoint(r, from->text, &err);
    return true;
}

void check_tokenizer(const Run *r, const Config *c) {
    if (r->tokenizer.vocab_size > c->V)
        die("--tokenizer: its vocabulary of %d is larger than the model's %d",
            r->tokenizer.vocab_size, c->V);
}

// A flag that needs a tokenizer.
static void need_tokenizer(const Run *r, const char *flag) {
    if (r->tokenizer.vocab_size == 0)
        die("--%s: needs a tokenizer, and there is no tokenizer.json beside the data or the model; "
            "name one with --tokenizer FILE", flag);
}

static void open_hellaswag(Run *r) {
    Error err;
    if (!r->o.hellaswag) return;
    need_tokenizer(r, "hellaswag");
    if (!hellaswag_open(&r->hellaswag, r->o.hellaswag, &r->tokenizer, &err)) die("%s", err.text);
}

// Refuses a directory that holds a run, unless --resume or --overwrite; that is being written; or
// that is a model's.
static void check_output(Run *r, const char *log_path) {
    if (path_is_dir(r->o.out)) lock_output(r);
    if (access(path_join(r->o.out, "config.json").text, F_OK) == 0)
        die("--out: %s holds a config.json, which --init would read in place of this run's; "
            "choose another directory", r->o.out);
    bool saved = checkpoint_exists(r->o.out), holds_run = saved || access(log_path, F_OK) == 0;
    if (!holds_run || r->o.overwrite || r->o.resume) return;
    die("--out: %s holds a run already%s; --overwrite replaces it; or choose another directory",
        r->o.out, saved ? "; --resume continues it" : ", which ended before its first save");
}

// Opens --log or OUT/log.jsonl. A run adds to a log, and --overwrite replaces the file.
static void open_log(Run *r) {
    Error err;
    if (!log_open(&r->log, r->log_path, r->o.overwrite ? LOG_ANY : LOG_OURS, &err))
        die("%s%s", r->o.log ? "--log: " : "", err.text);
}

// --resume=N: its checkpoint becomes the latest, for a later --resume.
static void make_latest(const Run *r) {
    Path from;
    Error err;
    if (!checkpoint_of_step(&from, r->o.out, r->o.resume_from, &err)
        || !link_move(r->o.out, "latest", strrchr(from.text, '/') + 1, &err))
        die("--out: %s", err.text);
}

// Makes --out and opens the log. Whatever can refuse the run comes first; only then are files
// removed.
static void open_output(Run *r) {
    char *path = r->log_path;
    Error err;
    if (r->comm.rank > 0) return;
    if (r->o.out) {
        snprintf(path, sizeof r->log_path, "%s/log.jsonl", r->o.out);
        check_output(r, path);
    }
    if (r->o.log) {
        snprintf(path, sizeof r->log_path, "%s", r->o.log);
        open_log(r);
    }
    if (r->o.out) {
        if (!make_directories(r->o.out, &err)) die("--out: %s", err.text);
        lock_output(r);
        if (!checkpoint_begin(r->o.out, &err)) die("--out: %s", err.text);
        if (r->o.resume_from > 0) make_latest(r);
        if (!r->o.log) open_log(r);
        if (r->o.overwrite && !checkpoint_clear(r->o.out, &err)) die("--out: %s", err.text);
    }
    if (r->o.overwrite && !log_clear(&r->log, &err)) die("%s", err.text);
}

// All ranks must have the same program, data, flags and sizes, before the first message whose size
// depends on them.
static void check_ranks(Run *r) {
    Comm *c = &r->comm;
    FileMap program;
    Error err;
    uint64_t hash = 1;
    if (c->size == 1) return;
    if (file_map(&program, "/proc/self/exe", &err)) {  // where the system has it
        hash = hash_add(hash, program.bytes, program.n);
        file_unmap(&program);
    }
    comm_agree(c, "another build of this program", hash);
    uint64_t data[] = { r->train_hash, r->val_hash };
    comm_agree(c, "other data", hash_add(1, data, sizeof data));
    comm_agree_json(c, r->given);
    comm_agree(c, "a model of other sizes", hash_add(1, &r->spec.c, sizeof r->spec.c));
}

// And the same parameters, at the same place of the run.
static void check_params(Run *r) {
    uint64_t run[] = { r->step, r->tokens, r->train.samples, (uint64_t)r->adam_step };
    if (r->comm.size > 1)
        comm_agree(&r->comm, "other parameters", hash_add(r->params->hash, run, sizeof run));
}

// --exact-sum: the binary tree over all micro-batches needs a subtree of the same shape per rank.
static void check_exact_sum(const Run *r) {
    int64_t each = (int64_t)(r->o.batches.batch / r->o.batches.unit);
    if (r->o.exact_sum && ((each & (each - 1)) || (r->comm.size & (r->comm.size - 1))))
        die("--exact-sum: needs a power of two of ranks, each with a power of two of "
            "micro-batches; these are %d ranks with %lld each", r->comm.size, (long long)each);
}

void set_seq_len(Run *r, bool loaded, const Path *from, const Config *c) {
    r->T = r->o.seq_len > 0 ? r->o.seq_len : loaded ? c->P : 256;
    if (loaded && r->T > c->P)
        die("--seq-len: %d is more than the %d positions of %s", r->T, c->P, from->text);
}

bool open_sizes(Path *from, Config *c, Run *r, int workers) {
    Error err;
    bool loaded = find_checkpoint(from, c, r);
    set_seq_len(r, loaded, from, c);
    if (workers > 0) {
        if (!train_options_batch(&r->o, r->T, workers, &err)) die("%s", err.text);
        check_exact_sum(r);
    }
    open_tokenizer(r, loaded ? from->text : NULL);
    return loaded;
}

void check_data(const Run *r) {
    const char *data = r->o.data;
    DIR *dir = data ? opendir(data) : NULL;
    bool shards = false, texts = false;
    if (data && !dir && errno == ENOTDIR)
        die("--data: %s: cannot open the directory: Not a directory; `./prepare text %s --out DIR` "
            "makes one of a text", data, data);
    if (data && !dir)
        die("--data: %s: cannot open the directory: %s; `./prepare tales --out DIR` writes one",
            data, strerror(errno));
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL; ) {
        shards = shards || ends_with(e->d_name, ".bin");
        texts = texts || ends_with(e->d_name, ".txt");
    }
    if (dir) closedir(dir);
    if (texts && !shards)
        die("--data: %s: holds texts, expected shards; `./prepare text %s/*.txt --out DIR` makes "
            "them", data, data);
}

// Opens the data and HellaSwag; sets a fresh model's sizes.
static void open_data(Run *r, bool loaded, Config *c) {
    Error err;
    check_data(r);
    open_split(&r->train, r, r->o.train, "train");
    open_split(&r->val, r, r->o.val, "val");
    if (!loader_check_disjoint(&r->train, &r->val, &err)) die("%s", err.text);
    if (!loaded) *c = fresh_config(r);
    check_tokenizer(r, c);
    if (!loader_check_vocab(&r->train, c->V, &err)) die("%s", err.text);
    if (!loader_check_vocab(&r->val, c->V, &err)) die("%s", err.text);
    r->train_hash = loader_hash(&r->train);
    r->val_hash = loader_hash(&r->val);
    if (!floor_open(&r->floor, &r->val, &err)) die("%s", err.text);
    open_hellaswag(r);
    if (r->o.sample_every.n > 0) need_tokenizer(r, "sample-every");
}

void open_model(Run *r, const Config *c, Use use, int B, const Sharing *sharing) {
    ModelSpec spec = { *c, B, r->T, use, use == TRAIN ? (Recompute)r->o.recompute : RECOMPUTE_NONE,
                       *sharing, 0 };
    r->spec = spec;
    machine_open(r->machine, &r->o, &r->comm);
    check_ranks(r);
    comm_group(&r->tensor, &r->comm, r->o.tensor_parallel, 1);
    comm_group(&r->data, &r->comm, r->comm.size / r->o.tensor_parallel, r->o.tensor_parallel);
    if (use == TRAIN) r->peak_flops = machine_peak_flops(r->machine);
    r->datasheet_flops = NAN;
#ifdef TRAINS_ON_GPU
    r->datasheet_flops = machine_datasheet_flops(r->machine);
    r->spec.multiprocessors = machine_multiprocessors(r->machine);
#endif
    model_init(r->model, &r->spec, r->machine);
    r->params = model_params(r->model);
}

void run_open(Run *r) {
    Error err;
    Path from;
    Config c;
    r->given = options_json(r);
    if (!train_options_workers(&r->data.size, &r->o, r->comm.size, &err)) die("%s", err.text);
    bool loaded = open_sizes(&from, &c, r, r->data.size);
    r->o.seq_len = r->T;
    r->norm_test.batch = batch_start(&r->o.batches);
    if (!train_options_lr(&r->lr, &r->o, &err)) die("%s", err.text);
    open_data(r, loaded, &c);
    if (!tp_group_check(&c, r->o.tensor_parallel, &err)) die("%s", err.text);
    r->tensor.size = r->o.tensor_parallel;
    Sharing sharing = run_sharing(&r->o, &r->data, &r->tensor);
    open_model(r, &c, TRAIN, r->o.micro_batch, &sharing);
    if (loaded) load_params(r, from.text);
    else params_draw(r->params, (uint64_t)r->o.seed);
    if (r->o.average_tokens > 0) average_update(r->params, 0.0f);    // begins at the weights
    if (r->o.resume) restore_state(r, from.text);
    if (r->o.outer_every) diloco_begin(r->params);
    check_params(r);
    open_output(r);
    size_t N = (size_t)r->o.micro_batch * r->T;
    r->inputs = (int *)alloc_or_die(N * sizeof(int), "a batch");
    r->targets = (int *)alloc_or_die(N * sizeof(int), "a batch");
    r->losses = (float *)alloc_or_die(N * sizeof(float), "an evaluation");
    open_sampler(r, r->T + 1);
    RunLength length = { r->o.steps, r->o.tokens, r->o.target_loss };
    r->length = length;
}

// Without a tokenizer the prompt is a list of tokens' ids. Returns how many.
static int prompt_ids(int *ids, const char *prompt, int V, const char *from) {
    int n = 0;
    char *end = (char *)prompt;
    for (const char *p = prompt; *(p += strspn(p, " ,\n")) || n == 0; p = end) {
        long id = strtol(p, &end, 10);
        if (end == p || id < 0 || id >= V)
            die("--generate: %s has no tokenizer.json; name one with --tokenizer FILE, or give the "
                "prompt as ids from 0 to %d: \"1 2 3\"", from, V - 1);
        ids[n++] = (int)id;
    }
    return n;
}

void run_generate(Run *r) {
    Path from;
    Config c;
    r->o.tensor_parallel = 1;                    // whatever the run had that --resume names
    if (!find_checkpoint(&from, &c, r))
        die("--generate: a fresh model has learned nothing; name a checkpoint with --init DIR");
    size_t length = strlen(r->o.generate);
    char *file = NULL;
    Error err;
    if (*r->o.generate == '@' && !(file = file_read(&length, r->o.generate + 1, &err)))
        die("--generate: %s", err.text);
    const char *prompt = file ? file : r->o.generate;
    Sharing alone = { NULL, NULL, 0, COMM_FP32, 0, false, false, false, false, false };
    set_seq_len(r, true, &from, &c);
    open_tokenizer(r, from.text);
    check_tokenizer(r, &c);
    open_model(r, &c, INFER, 1, &alone);
    load_params(r, from.text);
    open_sampler(r, (int)min_size(length, INT32_MAX - r->T - 2) + r->T + 1);
    bool ids = r->tokenizer.vocab_size == 0;
    if (ids && r->o.stop) die("--stop: needs a tokenizer; name one with --tokenizer FILE");
    for (int i = 0; i < r->o.samples && *stop_signal() == 0; i++) {
        int n = ids ? prompt_ids(r->text, prompt, c.V, from.text)
                    : (int)tokenizer_encode(&r->tokenizer, r->text, prompt, length);
        if (n == 0) r->text[n++] = r->tokenizer.eot;
        if (n > r->T && i == 0) warn("of the prompt's %d tokens, only the last are read", n);
        Rng rng = rng_make((uint64_t)r->o.seed, (uint64_t)i);
        if (r->o.samples > 1) printf("--- %d of %d ---\n", i + 1, r->o.samples);
        fwrite(prompt, 1, length, stdout);
        generate(r, &rng, n, r->o.max_new, stdout);
    }
    free(file);
    if (fflush(stdout) != 0 || ferror(stdout))
        die("the text cannot be written: %s", strerror(errno));
}

void run_close(Run *r) {
    Error err;
    if (r->params) model_free(r->model);
    comm_close(&r->comm);
    machine_close(r->machine);
    free(r->inputs);
    free(r->targets);
    free(r->losses);
    free(r->text);
    free(r->sampler.candidates);
    free(r->tokenizer_json.text);
    free(r->given);
    json_free(&r->saved);
    if (r->lock >= 0) close(r->lock);
    tokenizer_free(&r->tokenizer);
    floor_close(&r->floor);
    hellaswag_close(&r->hellaswag);
    loader_close(&r->train);
    loader_close(&r->val);
    if (!log_close(&r->log, &err)) die("%s", err.text);
}

// Connects to the other ranks. Only rank 0 prints. From here on heartbeats watch all ranks: if one
// is gone, the run ends.
static void open_ranks(Run *r) {
    Error err;
    if (!comm_open(&r->comm, r->o.timeout, &err)) {
        if (r->comm.heartbeat.told) exit(1);         // rank 0 prints why
        die("%s", err.text);
    }
    if (r->comm.size == 1) return;
    if (r->comm.rank > 0 && !freopen("/dev/null", "w", stdout))
        die("/dev/null: cannot be written: %s", strerror(errno));
    const char *advice = r->o.out ? "continue from the last checkpoint with --resume" : "";
    if (!heartbeat_start(&r->comm.heartbeat, advice, &err)) die("%s", err.text);
}

bool run_start(Run *r, Model *model, Machine *machine, int argc, char **argv) {
    Error err;
#ifndef TRAINS_ON_GPU
    threads_wait_politely(argv);
#endif
    argv = arguments(&argc, argv);
    signal(SIGXFSZ, SIG_IGN);                    // a limit on file sizes is an error of write()
    r->lock = r->saved_step = -1;
    r->eval_loss = r->good_loss = NAN;
    r->model = model;
    r->machine = machine;
    if (!train_options_parse(&r->o, argc, argv, &err)) die("%s", err.text);
    if (r->o.help) {
        if (launched_as(LAUNCH_RANK, 0) == 0) train_options_help(stdout);
        return false;
    }
    if ((r->o.generate || r->o.export_file) && launched_as(LAUNCH_SIZE, 1) > 1)
        die("--%s: needs one rank; start it alone", r->o.generate ? "generate" : "export");
    if (r->o.resume) restore_options(r);
    if (!r->o.plan) open_ranks(r);
    threads_begin(r->o.threads);
    return true;
}
