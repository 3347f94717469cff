// When the tuner measures, and where its choices are kept. Included by train_gpt2.cu after Model.
//
// Before the first update a micro-batch of random tokens runs forward and backward, and matmul and
// attention measure each product and kernel they meet (tune.h). That changes activations and
// gradients only, and an update begins by setting the gradients to zero. With several ranks rank 0
// measures, and all take its choices. A resumed run takes those of its checkpoint:
//
//     {"machine":"NVIDIA H100 80GB HBM3, CUDA driver 13000, cuBLASLt 130002, ...","products":[
//     {"product":"65536x3072x768 a 768 b T768 c 3072 bf16 gelu-bias-gradient","algo":"(64 bytes)",
//      "ms":0.412,"first_ms":0.873,"tflops":750,"tried":16,"failed":0},
//     {"product":"attention forward B=64 T=1024 NH=12 HS=64 variants 1","variant":2,...}, ...
//     ]}
//
// An algorithm is bytes that only the same version of cuBLASLt understands: choices of another
// machine are not taken. "algo":null stands for a product without its epilogue. A kernel has the
// number of one of its variants (variants.cu).

// ---- choices as text ----

// What all choices depend on.
typedef struct { char text[400]; } MachineName;
static MachineName tuner_machine(const Gpu *g) {
    MachineName name;
    int driver = 0;
    CUDA_CHECK(cudaDriverGetVersion(&driver));
    snprintf(name.text, sizeof name.text, "%s, CUDA driver %d, cuBLASLt %zu, %s, workspace %zu",
             g->properties.name, driver, cublasLtGetVersion(), g->tf32 ? "tf32" : PRECISION,
             WORKSPACE_BYTES);
    return name;
}

static void choice_print(FILE *f, const Choice *c) {
    fprintf(f, "{\"product\":\"%s\",", c->product.text);
    const unsigned char *bytes = (const unsigned char *)&c->algorithm;
    if (c->is_kernel) {
        fprintf(f, "\"variant\":%d", c->variant);
    } else if (c->usable) {
        fputs("\"algo\":\"", f);
        for (size_t i = 0; i < sizeof c->algorithm; i++) fprintf(f, "%02x", bytes[i]);
        putc('"', f);
    } else {
        fputs("\"algo\":null", f);
    }
    if (isfinite(c->seconds)) fprintf(f, ",\"ms\":%.6g", 1e3 * c->seconds);
    if (isfinite(c->seconds) && !c->is_kernel)
        fprintf(f, ",\"tflops\":%.4g", 1e-12 * c->flops / c->seconds);
    if (isfinite(c->first_seconds)) fprintf(f, ",\"first_ms\":%.6g", 1e3 * c->first_seconds);
    fprintf(f, ",\"tried\":%d,\"failed\":%d}", c->tried, c->failed);
}

// A JSON list of the choices; `line` separates them. The caller frees the text.
static char *choices_print(const Tuner *t, const char *line) {
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    if (!f) die("memory: none left for the tuner's choices");
    putc('[', f);
    for (int i = 0; i < t->n; i++) {
        fprintf(f, "%s%s", i ? "," : "", line);
        choice_print(f, &t->choices[i]);
    }
    fprintf(f, "%s]", line);
    fclose(f);
    return text;
}

// "00ff..." -> bytes (n)
static bool hex_read(unsigned char *bytes, size_t n, const char *hex) {
    if (strlen(hex) != 2*n || strspn(hex, "0123456789abcdef") != 2*n) return false;
    for (size_t i = 0; i < n; i++) {
        const char digits[] = { hex[2*i], hex[2*i + 1], '\0' };
        bytes[i] = (unsigned char)strtoul(digits, NULL, 16);
    }
    return true;
}

static bool choice_read(Choice *c, const JsonNode *v, Error *err) {
    const JsonNode *product = json_need(v, "product", JSON_STRING, err);
    const JsonNode *algo = product ? json_get(v, "algo") : NULL;
    double first = INFINITY, seconds = INFINITY;
    int64_t variant = 0;
    Error missing;
    if (!product) return false;
    memset(c, 0, sizeof *c);
    c->is_kernel = !algo && json_get(v, "variant");
    c->usable = c->is_kernel || (algo && algo->type != JSON_NULL);
    snprintf(c->product.text, sizeof c->product.text, "%s", product->text);
    if (c->is_kernel && !json_get_int(&variant, v, "variant", 0, INT32_MAX, err)) return false;
    c->variant = (int)variant;
    if (!c->is_kernel && (!algo || (c->usable && !hex_read(
            (unsigned char *)&c->algorithm, sizeof c->algorithm,
            algo->type == JSON_STRING ? algo->text : ""))))
        return fail(err, "byte %zu: \"algo\" must be null or %zu bytes in hexadecimal", v->at,
                    sizeof c->algorithm);
    if (json_get_double(&seconds, v, "ms", &missing)) seconds *= 1e-3;
    if (json_get_double(&first, v, "first_ms", &missing)) first *= 1e-3;
    if (json_get_double(&c->flops, v, "tflops", &missing)) c->flops *= 1e12 * seconds;
    c->seconds = seconds;
    c->first_seconds = first;
    int64_t tried, failed;
    if (json_get_int(&tried, v, "tried", 0, MAX_ALGORITHMS, &missing)) c->tried = (int)tried;
    if (json_get_int(&failed, v, "failed", 0, MAX_ALGORITHMS, &missing)) c->failed = (int)failed;
    return true;
}

// Loads the choices in a file, at most half of what there is room for. Those of another machine are
// left out, in words.
static bool choices_load(Gpu *g, const char *path, Error *err) {
    Tuner *t = g->tuner;
    FileMap file;
    Json json;
    Error why;
    if (!file_map(&file, path, err)) return false;
    bool good = json_parse(&json, (const char *)file.bytes, file.n, &why);
    file_unmap(&file);
    if (!good) return fail(err, "%s: %s", path, why.text);
    const JsonNode *machine = json_need(json.root, "machine", JSON_STRING, &why);
    const JsonNode *list = machine ? json_need(json.root, "products", JSON_ARRAY, &why) : NULL;
    bool same = machine && json_is(machine, tuner_machine(g).text);
    if (list && !same)
        printf("note    %s was tuned on another machine (%s); products are measured again\n", path,
               json_show(machine).text);
    good = list != NULL;
    for (const JsonNode *v = list ? json_first(list) : NULL;
         good && same && v < json_end(list) && t->n < MAX_CHOICES / 2; v = json_next(v))
        good = choice_read(&t->choices[t->n++], v, &why);
    json_free(&json);
    if (!good) t->n = 0;
    return good || fail(err, "%s: %s", path, why.text);
}

// Writes a file anew, in one step.
static void choices_save(const Run *r, const char *path) {
    Path temporary;
    Error err;
    int fd = file_begin(&temporary, path, &err);
    bool put = fd >= 0 && file_put(fd, r->tune_json, r->tune_bytes, temporary.text, &err);
    if (fd < 0 || !file_end(fd, &temporary, path, put, &err)) die("--tune: %s", err.text);
}

// ---- the pass ----

// Runs a micro-batch of random tokens, the first of n: the gradients of the last one travel.
// Returns its seconds, forward and backward.
static double random_micro_batch(Run *r, size_t n) {
    Gpu *g = r->machine;
    int B = r->o.micro_batch, T = r->T, V = r->spec.c.V;
    Rng rng = rng_make(1, 0);
    for (int i = 0; i < B*T; i++) {
        r->inputs[i] = (int)rng_below(&rng, (uint64_t)V);
        r->targets[i] = (int)rng_below(&rng, (uint64_t)V);
    }
    clear_grads(r->model);
    model_micro_batch(r->model, 0, n);
    mark_record(r->model, COMPUTED);
    model_forward(r->model, r->inputs, B, T);
    model_backward(r->model, r->targets, 1.0f / (float)(B*T), B, T);
    mark_record(r->model, UPDATED);
    zero_wait_grads(r->zero);
    gpu_wait(g);
    return gpu_seconds(r->model->marks[COMPUTED], r->model->marks[UPDATED]);
}

// All ranks take rank 0's choices, for products that they know already too. Returns how many.
static int choices_take(Run *r) {
    Gpu *g = r->machine;
    Tuner *t = g->tuner;
    comm_broadcast_small(&r->comm, &t->n, sizeof t->n);
    int n = t->n;
    for (int i = 0; i < n; i++)
        comm_broadcast_small(&r->comm, &t->choices[i], sizeof t->choices[i]);
    for (int i = 0; i < g->n_products && i < MAX_PRODUCTS; i++) product_choose(&g->products[i], g);
    memset(t->variants, 0, sizeof t->variants);              // variant_run asks for them anew
    return n;
}

// Of products. A file may hold choices for other shapes too.
static int choices_used(const Tuner *t) {
    int n = 0;
    for (int i = 0; i < t->n; i++) n += t->choices[i].used && !t->choices[i].is_kernel;
    return n;
}

// ", attention 2 1": the variants of its kernels, if it has some at this run's shape.
typedef struct { char text[60]; } VariantNumbers;
static VariantNumbers variant_numbers(const Tuner *t) {
    VariantNumbers v = { "" };
    if (t->variants[FORWARD].tuned)
        snprintf(v.text, sizeof v.text, ", attention %d %d", t->variants[FORWARD].number,
                 t->variants[BACKWARD].number);
    return v;
}

// The file whose choices this run takes: --tune FILE, or the one in its checkpoint. "": none.
static void choices_find(Path *path, const Run *r) {
    bool file = strpbrk(r->o.tune, "./") != NULL;
    Path from;
    Error err;
    path->text[0] = '\0';
    if (strcmp(r->o.tune, "again") == 0) return;
    if (file) snprintf(path->text, sizeof path->text, "%s", r->o.tune);
    if (file && access(path->text, F_OK) == 0) return;
    if (!r->o.resume || !find_resumed(&from, r, &err)
        || !path_join(path, from.text, "tune.json", &err) || access(path->text, F_OK) != 0)
        path->text[0] = '\0';
}

// One line for people, one for the log.
static void report_tune(Run *r, const char *from, double seconds, double ms, double first_ms) {
    const Tuner *t = r->machine->tuner;
    int used = choices_used(t);
    char taken[4200] = "", first[60] = "";
    if (from[0]) snprintf(taken, sizeof taken, ", %d of them as in %s", used - t->measured, from);
    else snprintf(first, sizeof first, ", and %.4g with cuBLASLt's first choices", first_ms);
    printf("tune    %d products%s in %.1f s%s: a micro-batch takes %.4g ms%s\n", used,
           variant_numbers(t).text, seconds, taken, ms, first);
    if (t->refused > 0)
        printf("note    %d algorithms in %s do not run here, and were measured again\n", t->refused,
               from);
    if (t->unknown > 0)
        printf("note    %d variants of attention in %s are unknown here: the defaults run "
               "instead\n", t->unknown, from);
    fflush(stdout);
    char *list = choices_print(t, "");
    log_begin(&r->log, "tune");
    log_num(&r->log, "seconds", seconds);
    log_num(&r->log, "micro_batch_ms", ms);
    log_num(&r->log, "first_micro_batch_ms", first_ms);
    log_int(&r->log, "measured", t->measured + t->kernels_measured);
    log_raw(&r->log, "products", list);
    log_line_end(r);
    free(list);
}

// Keeps the choices for checkpoints, and in FILE.
static void choices_keep(Run *r, const char *from) {
    Gpu *g = r->machine;
    char *list = choices_print(g->tuner, "\n");
    FILE *f = open_memstream(&r->tune_json, &r->tune_bytes);
    if (!f) die("memory: none left for the tuner's choices");
    MachineName machine = tuner_machine(g);
    fputs("{\"machine\":", f);
    json_write_string(f, machine.text, strlen(machine.text));
    fprintf(f, ",\"products\":%s}\n", list);
    fclose(f);
    free(list);
    int measured = g->tuner->measured + g->tuner->kernels_measured;
    bool unchanged = strcmp(from, r->o.tune) == 0 && measured == 0;
    if (r->comm.rank == 0 && strpbrk(r->o.tune, "./") && !unchanged) choices_save(r, r->o.tune);
}

// Chooses the algorithms of all products of an update, and variants of attention, before the first.
static void run_tune(Run *r) {
    Gpu *g = r->machine;
    Path from = { "" };
    Error err;
    double start = seconds_now(), first = NAN;
    bool nothing = !r->o.resume && run_done(&r->length, r->step, r->tokens, NAN);
    if (strcmp(r->o.tune, "off") == 0 || nothing) return;
    tuner_open(g);
    Tuner *t = g->tuner;
    if (r->comm.rank == 0) choices_find(&from, r);
    if (from.text[0] && !choices_load(g, from.text, &err)) {
        if (strcmp(from.text, r->o.tune) == 0) die("--tune: %s", err.text);
        warn("%s; products are measured again", err.text);
    }
    if (t->n == 0) from.text[0] = '\0';
    int known = choices_take(r);
    random_micro_batch(r, 1);                    // warms up
    if (known == 0) first = random_micro_batch(r, 1);
    t->measures = r->comm.rank == 0;
    random_micro_batch(r, 1);
    if (r->comm.size > 1) random_micro_batch(r, 2);          // products without messages beside
    t->measures = false;
    choices_take(r);
    double seconds = random_micro_batch(r, 1);
    report_tune(r, from.text, seconds_now() - start, 1e3 * seconds, 1e3 * first);
    choices_keep(r, from.text);
}
