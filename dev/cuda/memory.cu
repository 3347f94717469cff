// The memory of train_gpt2.cu, of which this is a part: counted, allocated once, handed out.

// A tensor's place in its bucket: of the embeddings, of a block, or of the final norm.
template <class T> static T *tensor_at(T *bucket, const Config *c, int kind) {
    int first = kind < FIRST_IN_BLOCK ? 0 : kind <= LAST_IN_BLOCK ? FIRST_IN_BLOCK : LNF_GAIN;
    return bucket + kinds_count(c, first, kind);
}

template <class T> static Norm<T> norm_at(T *bucket, const Config *c, int gain, int bias) {
    return { tensor_at(bucket, c, gain), tensor_at(bucket, c, bias) };
}

template <class T> static Block<T> block_at(T *bucket, const Config *c) {
    Block<T> b;
    b.ln1 = norm_at(bucket, c, LN1_GAIN, LN1_BIAS);
    b.qkv_w = tensor_at(bucket, c, QKV_W), b.qkv_b = tensor_at(bucket, c, QKV_B);
    b.att_proj_w = tensor_at(bucket, c, ATT_PROJ_W);
    b.att_proj_b = tensor_at(bucket, c, ATT_PROJ_B);
    b.ln2 = norm_at(bucket, c, LN2_GAIN, LN2_BIAS);
    b.fc_w = tensor_at(bucket, c, FC_W), b.fc_b = tensor_at(bucket, c, FC_B);
    b.mlp_proj_w = tensor_at(bucket, c, MLP_PROJ_W);
    b.mlp_proj_b = tensor_at(bucket, c, MLP_PROJ_B);
    return b;
}

// Points a model's weights (PARAMS), or their gradients (GRADS), at where each bucket lies.
template <class T> static void weights_point(Weights<T> *w, const Params *p, Flat flat) {
    const Config *c = &p->c;
    T *embeddings = (T *)bucket_at(p, 0, flat), *norm = (T *)bucket_at(p, 1 + c->L, flat);
    w->wte = tensor_at(embeddings, c, WTE);
    w->wpe = tensor_at(embeddings, c, WPE);
    for (int l = 0; l < c->L; l++) w->block[l] = block_at((T *)bucket_at(p, 1 + l, flat), c);
    w->lnf = norm_at(norm, c, LNF_GAIN, LNF_BIAS);
}

template <class T> static void carve(T **p, Memory *mem, MemoryKind kind, size_t count) {
    *p = (T *)memory_take(mem, kind, count * sizeof(T));
}

// Rows of a multiple of 64 elements fill the tiles of a product, and begin at multiples of 16
// bytes.
static const int VOCAB_UNIT = 64;

static void norm_carve(NormActs *a, Memory *mem, size_t N, size_t C) {
    carve(&a->out, mem, MEM_ACTIVATIONS, N*C);
    carve(&a->mean, mem, MEM_ACTIVATIONS, N);
    carve(&a->rstd, mem, MEM_ACTIVATIONS, N);
}

static void block_carve(BlockActs *a, Memory *mem, size_t N, const TpGroup *group) {
    size_t C = group->own.C, Cn = tp_channels(group), NH = tp_heads(group);
    norm_carve(&a->ln1, mem, N, C);
    carve(&a->qkv, mem, MEM_ACTIVATIONS, N*3*Cn);
    carve(&a->att, mem, MEM_ACTIVATIONS, N*Cn);
    carve(&a->att_lse, mem, MEM_ACTIVATIONS, N*NH);
    carve(&a->x_mid, mem, MEM_ACTIVATIONS, N*C);
    norm_carve(&a->ln2, mem, N, C);
    carve(&a->fc, mem, MEM_ACTIVATIONS, N*4*Cn);
    carve(&a->gelu, mem, MEM_ACTIVATIONS, N*4*Cn);
}

static void model_carve_acts(Model *m, Memory *mem) {
    size_t N = (size_t)m->spec.B*m->spec.T, C = m->c.C;
    bool keeps_all = m->spec.recompute == RECOMPUTE_NONE;
    carve(&m->x_in, mem, MEM_ACTIVATIONS, N*C);
    for (int l = 0; l < m->c.L; l++) {
        if (l == 0 || keeps_all) block_carve(&m->acts[l], mem, N, &m->params.tp);
        else m->acts[l] = m->acts[0];
        carve(&m->acts[l].x_out, mem, MEM_ACTIVATIONS, N*C);
        m->acts[l].x = l > 0 ? m->acts[l - 1].x_out : m->x_in;
    }
    norm_carve(&m->lnf, mem, N, C);
    carve(&m->batch.inputs, mem, MEM_ACTIVATIONS, N);
    carve(&m->batch.targets, mem, MEM_ACTIVATIONS, N);
    carve(&m->batch.order, mem, MEM_ACTIVATIONS, N);
    carve(&m->batch.begin, mem, MEM_ACTIVATIONS, N + 1);
    carve(&m->batch.scale, mem, MEM_ACTIVATIONS, 1);
    carve(&m->loss, mem, MEM_ACTIVATIONS, N);
    carve(&m->lse, mem, MEM_ACTIVATIONS, N);
}

// The blocks' backward pass begins when the classifier's has ended, and takes over its logits'
// memory. So do the buckets of a checkpoint, which are gathered between two updates.
static void model_carve_backward(Model *m, Memory *mem) {
    size_t N = (size_t)m->spec.B*m->spec.T, C = m->c.C, Vp = m->padded.V;
    const TpGroup *group = &m->params.tp;
    bool trains = m->spec.use == TRAIN;
    m->logit_rows = logits_chunk_rows(N, Vp, C, sizeof(real), m->spec.multiprocessors);
    if (group->size > 1) m->logit_rows = min_size(m->logit_rows, xent_shared_rows(group));
    size_t Cn = tp_channels(group), reals = m->logit_rows*Vp;
    size_t branches = trains ? 4*N*Cn : 0;                   // dfc; dqkv is smaller
    size_t bucket = gpt2_largest_bucket(&m->padded) * sizeof(float) / sizeof(real);
    size_t ranks = m->params.size * group->size;
    if (reals < branches) reals = branches;
    if (reals < bucket && ranks > 1) reals = bucket;
    carve(&m->logits, mem, MEM_LOGITS, reals);
    m->dfc = m->dqkv = m->logits;
    m->params.bucket = (float *)m->logits;
    carve(&m->next_logits, mem, MEM_LOGITS, (group->size > 1 ? group->size + 1 : 1) * Vp);
    if (!trains) return;
    carve(&m->dx_branch, mem, MEM_BACKWARD, N*C);
    carve(&m->dx, mem, MEM_BACKWARD, N*C);
    carve(&m->att_rows, mem, MEM_BACKWARD, N*tp_heads(group));
    carve(&m->totals, mem, MEM_REST, 1);
    carve(&m->g_scale, mem, MEM_REST, 1);
    m->all_totals = m->totals;
    if (ranks > 1) carve(&m->all_totals, mem, MEM_REST, ranks);
}

// Lays everything out; with mem->base NULL it only counts (dev/base/memory.c).
static void model_carve(Model *m, Memory *mem) {
    params_carve(&m->params, mem);
    if (m->spec.use == TRAIN) params_carve_training(&m->params, mem);
    model_carve_acts(m, mem);
    model_carve_backward(m, mem);
}

static const size_t SHARED_BYTES = 99 << 10;     // that a block may have on any sm_80 or later

// What the kernels cannot do. Their limits are wider than any GPT-2.
static void model_check(const Config *c) {
    if (c->C % PACK != 0)
        die("--channels: %d is no multiple of %d, the numbers that a GPU moves at once in "
            PRECISION "; %d is", c->C, PACK, (c->C + PACK - 1) / PACK * PACK);
    if (c->C / c->NH > MAX_HS)
        die("--heads: heads of %d channels; the GPU's attention takes up to %d", c->C / c->NH,
            MAX_HS);
    if (3*c->C * sizeof(float) > SHARED_BYTES)
        die("--channels: %d; the GPU's LayerNorm takes up to %zu", c->C,
            SHARED_BYTES / 3 / sizeof(float));
}

// All but the memory.
static void model_begin(Model *m, const ModelSpec *spec) {
    size_t L = spec->c.L;
    memset(m, 0, sizeof *m);
    m->spec = *spec;
    params_init(&m->params, &spec->sharing, &spec->c, VOCAB_UNIT, sizeof(real));
    m->c = m->params.file;
    m->Cn = tp_channels(&m->params.tp);
    m->NHn = tp_heads(&m->params.tp);
    m->padded = m->params.c;
    m->acts = (BlockActs *)alloc_or_die(L * sizeof *m->acts, "a table of activations");
    m->w.block = (Block<real> *)alloc_or_die(L * sizeof *m->w.block, "a table of blocks");
    m->dw.block = (Block<float> *)alloc_or_die(L * sizeof *m->dw.block, "a table of blocks");
}

static void tables_free(Model *m) {
    free(m->acts);
    free(m->w.block);
    free(m->dw.block);
}

void model_count(Memory *mem, const ModelSpec *spec) {
    Model m;
    model_check(&spec->c);
    model_begin(&m, spec);
    shared_check(&m.params.tp);
    *mem = memory_begin(NULL);
    model_carve(&m, mem);
    mem->bytes[MEM_REST] += MACHINE_BYTES;
    params_free(&m.params);
    tables_free(&m);
}

template <class T> static void alloc_pinned(T **p, size_t count) {
    CUDA_CHECK(cudaMallocHost((void **)p, count * sizeof(T)));
}

// Pinned memory, from and to which the GPU copies by itself, and events.
static void model_init_host(Model *m) {
    size_t N = (size_t)m->spec.B*m->spec.T;
    for (int i = 0; i < 2; i++) {
        alloc_pinned(&m->host_batches[i].inputs, N);
        alloc_pinned(&m->host_batches[i].targets, N);
        alloc_pinned(&m->host_batches[i].order, N);
        alloc_pinned(&m->host_batches[i].begin, N + 1);
        alloc_pinned(&m->host_batches[i].scale, 1);
        CUDA_CHECK(cudaEventCreateWithFlags(&m->sent[i], cudaEventDisableTiming));
    }
    for (cudaEvent_t &mark : m->marks) CUDA_CHECK(cudaEventCreate(&mark));
    alloc_pinned(&m->host_totals, m->params.size * m->params.tp.size);
    alloc_pinned(&m->host_logits, m->padded.V * m->params.tp.size);
    m->token_count = (int *)alloc_or_die(m->c.V * sizeof(int), "counting tokens");
}

static void memory_die(Memory *mem, const ModelSpec *spec, double room);

void model_init(Model *m, const ModelSpec *spec, Machine *machine) {
    const Config *c = &spec->c;
    double reals = (double)spec->B * spec->T * c->L * 16.0 * c->C;    // about; size_t could wrap
    double room = machine_free_memory(machine);
    Memory counted;
    char *base;
    if (reals > 1e15) die("memory: %.0f TB for activations; use a smaller model or micro-batch",
                          1e-12 * sizeof(real) * reals);
    model_count(&counted, spec);
    if ((double)counted.used > room) memory_die(&counted, spec, room);
    model_begin(m, spec);
    m->gpu = machine;
    m->params.stream = machine->stream;
    CUDA_CHECK(cudaMalloc((void **)&base, counted.used));
    CUDA_CHECK(cudaMemsetAsync(base, 0, counted.used, machine->stream));
    m->memory = memory_begin(base);
    model_carve(m, &m->memory);
    params_open(&m->params);
    weights_point(&m->w, &m->params, PARAMS);
    if (spec->use == TRAIN) weights_point(&m->dw, &m->params, GRADS);
    model_init_host(m);
}

void model_free(Model *m) {
    if (!m->gpu) return;
    params_close(&m->params);          // waits, on the GPU, for what is under way
    gpu_wait(m->gpu);
    graph_free(&m->graph);
    CUDA_CHECK(cudaFree(m->memory.base));
    for (int i = 0; i < 2; i++) {
        CUDA_CHECK(cudaFreeHost(m->host_batches[i].inputs));
        CUDA_CHECK(cudaFreeHost(m->host_batches[i].targets));
        CUDA_CHECK(cudaFreeHost(m->host_batches[i].order));
        CUDA_CHECK(cudaFreeHost(m->host_batches[i].begin));
        CUDA_CHECK(cudaFreeHost(m->host_batches[i].scale));
        CUDA_CHECK(cudaEventDestroy(m->sent[i]));
    }
    for (cudaEvent_t mark : m->marks) CUDA_CHECK(cudaEventDestroy(mark));
    CUDA_CHECK(cudaFreeHost(m->host_totals));
    CUDA_CHECK(cudaFreeHost(m->host_logits));
    free(m->token_count);
    tables_free(m);
    memset(m, 0, sizeof *m);
}
