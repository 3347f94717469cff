// The machine of train_gpt2.cu, as dev/train/train.h asks for it: the GPU found, opened and shown,
// its peak measured, its memory counted. Part of train_gpt2.cu, which includes it at its end.

// ---- which GPU ----

// "sm_80, sm_90": what this file was compiled for, which the compiler lists as 800,900.
static const char *architectures_built(void) {
#ifndef __CUDA_ARCH_LIST__
#define __CUDA_ARCH_LIST__ 800
#endif
    const int built[] = { __CUDA_ARCH_LIST__ };
    static char names[200];
    size_t n = 0;
    for (int a : built)
        n += (size_t)snprintf(names + n, sizeof names - n, "%ssm_%d", n ? ", " : "", a / 10);
    return names;
}

// Random, not zeros: a product of zeros takes less power, and so runs faster than a real one.
__global__ void random_fill_kernel(real *x, size_t n) {
    size_t i = thread_in_grid();
    if (i >= n) return;
    uint32_t bits = (uint32_t)i * 2654435761u;
    bits = (bits ^ bits >> 15) * 2246822519u;
    x[i] = (real)((float)(bits >> 8) / 8388608.0f - 1.0f);
}

// A rank takes the GPU of its number on this machine. A launcher may also show each rank one GPU of
// its own (srun --gpus-per-task=1); if it shows all ranks the same one, NCCL says so. NCCL lets
// several ranks share a GPU only if the environment says so, which is for tests.
static int gpu_of_rank(const Comm *c, int devices) {
    bool shared = getenv("NCCL_HOSTID") || getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    if (c->local_size > devices && devices > 1 && !shared)
        die("GPU: %d ranks were started on this machine, which shows them %d GPUs; start one for "
            "each, and let each see all of them, or its own alone", c->local_size, devices);
    return c->local_rank % devices;
}

// A driver runs what was built with its major version of CUDA, or with an earlier one.
static void driver_check(const char *instead) {
    int driver = 0, runtime = 0;
    CUDA_CHECK(cudaDriverGetVersion(&driver));
    CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
    if (driver == 0) die("GPU: no NVIDIA driver is installed here; %s", instead);
    if (driver / 1000 < runtime / 1000)
        die("GPU: the driver knows CUDA %d.%d, and this program was built with %d.%d; update the "
            "driver (CUDA 13 needs R580, CUDA 12 R525), or build with its CUDA: make "
            "train_gpt2cu NVCC=/usr/local/cuda-%d/bin/nvcc", driver / 1000, driver % 1000 / 10,
            runtime / 1000, runtime % 1000 / 10, driver / 1000);
}

// No GPU, or one that this program was not built for.
static void gpu_find(Gpu *g, const Comm *c) {
    int devices = 0;
    const char *instead = "train on the CPU with ./train_gpt2";
    driver_check(instead);
    cudaError_t status = cudaGetDeviceCount(&devices);
    if (status == cudaErrorNoDevice || (status == cudaSuccess && devices == 0))
        die("GPU: there is none here, or CUDA_VISIBLE_DEVICES hides it; %s", instead);
    CUDA_CHECK(status);
    int device = gpu_of_rank(c, devices);
    CUDA_CHECK(cudaSetDevice(device));
    CUDA_CHECK(cudaGetDeviceProperties(&g->properties, device));
    cudaFuncAttributes attributes;
    status = cudaFuncGetAttributes(&attributes, (const void *)random_fill_kernel);
    if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction
        || status == cudaErrorUnsupportedPtxVersion)
        die("GPU: %s is sm_%d%d, and this program was built for %s; run make train_gpt2cu on this "
            "machine (bf16 needs sm_80 or later)", g->properties.name, g->properties.major,
            g->properties.minor, architectures_built());
    CUDA_CHECK(status);
}

// The GPU of this rank of `comm`, which has found the other ranks already, and joins their GPUs.
void machine_open(Machine *g, const TrainOptions *o, Comm *comm) {
    memset(g, 0, sizeof *g);
    gpu_find(g, comm);
    const char *graph = getenv("BATCHWISE_GRAPH");         // off: launch by launch, to compare
    g->graphs = !graph || strcmp(graph, "off") != 0;
    g->ranks = comm->size;
    CUDA_CHECK(cudaStreamCreate(&g->stream));
    CUBLAS_CHECK(cublasLtCreate(&g->blas));
    CUDA_CHECK(cudaMalloc(&g->workspace, WORKSPACE_BYTES));
    CUDA_CHECK(cudaMalloc((void **)&g->scratch, SCRATCH_FLOATS * sizeof *g->scratch));
    g->products = (Product *)alloc_or_die(MAX_PRODUCTS * sizeof(Product), "a table of products");
    // With --exact-sum the choice of a product's algorithm may not depend on the number of ranks.
    int all = g->properties.multiProcessorCount;
    // While products run, messages take at most 16 multiprocessors, and at most an eighth: a power of
    // two, since NCCL rounds up to one.
    if (comm->size > 1 && !o->no_overlap && !o->exact_sum)
        for (comm->blocks = 16; comm->blocks > all / 8; comm->blocks /= 2) {}
    if (comm->size > 1 && comm->blocks > 0) g->beside = all - comm->blocks;
    comm_open_gpu(comm, g->stream);
}

const char *machine_precision(void) { return PRECISION; }

void machine_close(Machine *g) {
    if (!g->blas) return;                        // a plan for other GPUs has opened none
    for (int i = 0; i < g->n_products && i < MAX_PRODUCTS; i++) product_free(&g->products[i]);
    free(g->products);
    CUDA_CHECK(cudaFree(g->workspace));
    CUDA_CHECK(cudaFree(g->scratch));
    CUBLAS_CHECK(cublasLtDestroy(g->blas));
    CUDA_CHECK(cudaStreamDestroy(g->stream));
}

// What a model may take: all that is free, less what others allocate later. The driver loads a
// kernel when it is first used, and NCCL connects two ranks when they first talk to each other.
double machine_free_memory(const Machine *g) {
    const double FOR_DRIVER = 512 << 20, FOR_NCCL = 512 << 20;
    size_t free_bytes, total;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
    return fmax(0.0, (double)free_bytes - FOR_DRIVER - (g->ranks > 1 ? FOR_NCCL : 0.0));
}

// ---- the 100% of "model FLOP utilisation": what the largest products of this GPU come to ----

// Seconds that `work` takes on the GPU.
template <class Work> static double seconds_of(Gpu *g, Work work) {
    cudaEvent_t begin, end;
    CUDA_CHECK(cudaEventCreate(&begin));
    CUDA_CHECK(cudaEventCreate(&end));
    CUDA_CHECK(cudaEventRecord(begin, g->stream));
    work();
    CUDA_CHECK(cudaEventRecord(end, g->stream));
    gpu_wait(g);
    double seconds = gpu_seconds(begin, end);
    CUDA_CHECK(cudaEventDestroy(begin));
    CUDA_CHECK(cudaEventDestroy(end));
    return seconds;
}

// FLOP/s in the precision that training uses, of products that grow until one takes 5 ms or is of
// 8192 x 8192. It takes a fifth of a second.
static double matmul_peak_flops(Gpu *g) {
    size_t n = 64, free_bytes, total;
    double seconds;
    real *memory = NULL;
    auto product = [&] {
        matmul(memory, n, rows_of(memory + n*n, n), rows_of(memory + 2*n*n, n), n, n, n, WRITE, g);
    };
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
    do {
        n *= 2;
        CUDA_CHECK(cudaFree(memory));
        CUDA_CHECK(cudaMalloc((void **)&memory, 3*n*n * sizeof(real)));
        random_fill_kernel<<<blocks_for(3*n*n, 256), 256, 0, g->stream>>>(memory, 3*n*n);
        LAUNCH_CHECK();
        product();                               // warms up
        seconds = seconds_of(g, product);
    } while (seconds < 5e-3 && n < 8192 && 12*n*n * sizeof(real) <= free_bytes / 2);
    int times = (int)(0.1 / seconds) + 1;
    if (times > 50) times = 50;
    seconds = seconds_of(g, [&] { for (int i = 0; i < times; i++) product(); }) / times;
    CUDA_CHECK(cudaFree(memory));
    return 2.0 * (double)n * (double)n * (double)n / seconds;
}

double machine_peak_flops(Machine *g) {
    if (g->peak_flops == 0.0) g->peak_flops = matmul_peak_flops(g);
    return g->peak_flops;
}

// ---- memory: what fits ----

// What the model would take with another micro-batch, or another way to recompute.
static size_t model_bytes(ModelSpec spec, int B, Recompute recompute) {
    Memory mem;
    spec.B = B;
    spec.recompute = recompute;
    model_count(&mem, &spec);
    return mem.used;
}

// The largest micro-batch that takes no more than `room` bytes; 0 when none does.
static int largest_micro_batch(const ModelSpec *spec, double room, Recompute recompute) {
    int B = spec->B;
    while (B > 0 && (double)model_bytes(*spec, B, recompute) > room) B--;
    return B;
}

static double megabytes(double bytes) { return 1e-6 * bytes; }

static void memory_show(FILE *out, const Memory *mem, const ModelSpec *spec) {
    static const char *const names[MEM_KINDS] = {
        "weights: fp32, and as layers read them", "their gradients, fp32", "AdamW's moments, fp32",
        "DiLoCo's outer step, fp32", "averaged weights, fp32",
        "buckets that come from other ranks, or go to them",
        "activations", "logits, a chunk at a time", "gradients of activations",
        "tables and scratch",
    };
    fprintf(out, "memory for %d sequences of %d tokens at a time, in MB\n", spec->B, spec->T);
    for (int k = 0; k < MEM_KINDS; k++)
        if (mem->bytes[k] > 0)
            fprintf(out, "  %10.1f  %s\n", megabytes((double)mem->bytes[k]), names[k]);
    fprintf(out, "  %10.1f  in all\n", megabytes((double)mem->used));
}

// Prints what the memory would be used for, and what would fit, and ends the program.
static void memory_die(Memory *mem, const ModelSpec *spec, double room) {
    bool trains = spec->use == TRAIN;
    int fits = largest_micro_batch(spec, room, spec->recompute);
    int fits_recomputing = trains ? largest_micro_batch(spec, room, RECOMPUTE_BLOCK) : 0;
    char first[60] = "use a smaller model or a shorter --seq-len", second[60] = "";
    if (fits > 0) snprintf(first, sizeof first, "--micro-batch %d fits", fits);
    if (fits_recomputing > fits)
        snprintf(second, sizeof second, "; with --recompute block --micro-batch %d fits",
                 fits_recomputing);
    fflush(stdout);
    mem->bytes[MEM_REST] -= MACHINE_BYTES;               // machine_open has taken those already
    memory_show(stderr, mem, spec);
    die("memory: %.1f MB are needed, %.1f are free on the GPU; %s%s", megabytes((double)mem->used),
        megabytes(room), first, second);
}

int machine_multiprocessors(const Machine *g) { return g->properties.multiProcessorCount; }

double machine_datasheet_flops(const Machine *g) {
    return sizeof(real) < sizeof(float) ? plan_datasheet_flops(g->properties.name) : NAN;
}

// The GPU, its memory, and what the other way to recompute would take.
void machine_show(const Machine *g, const Model *m) {
    const cudaDeviceProp *p = &g->properties;
    double keeping = (double)model_bytes(m->spec, m->spec.B, RECOMPUTE_NONE);
    double recomputing = (double)model_bytes(m->spec, m->spec.B, RECOMPUTE_BLOCK);
    printf("gpu     %s, sm_%d%d: %s; its products of matrices, measured, do %.3g TFLOP/s\n",
           p->name, p->major, p->minor, PRECISION, 1e-12 * g->peak_flops);
    printf("memory  %.1f MB on the GPU; --recompute block %s %.1f\n",
           megabytes((double)m->memory.used),
           m->spec.recompute == RECOMPUTE_BLOCK ? "saves" : "would save",
           megabytes(keeping - recomputing));
    if (p->major == 10 || p->major == 11)
        printf("note    attention uses mma.sync, which is far below this GPU's tcgen05\n");
}
