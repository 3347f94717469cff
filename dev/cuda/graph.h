// A CUDA graph: kernel launches recorded once, with their arguments, and from then on started by
// one call. Included by train_gpt2.cu.
//
//     graph_run(&graph, stream, work)         what `work` launches in the stream
//     graph_free(&graph)
//
// A launch costs the CPU 2 to 4 us, whatever the kernel. A micro-batch of GPT-2 124M takes some 350
// launches: if its kernels take less time than that, the GPU waits for the CPU. The same kernels
// run in the same order on the same memory, so a graph changes no bit.
//
// The arguments are those of the capture. So all that changes from one time to the next must be
// read from the GPU's memory: tokens, and the factor that each token's loss is multiplied by. And
// `work` may neither wait for the GPU nor allocate.

typedef struct {
    cudaGraphExec_t exec;              // NULL: not captured yet
    bool warm;                         // `work` has run
} Graph;

template <class Work> static void graph_capture(Graph *g, cudaStream_t stream, Work work) {
    cudaGraph_t graph;
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    work();                            // records, and runs nothing
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    CUDA_CHECK(cudaGraphInstantiateWithFlags(&g->exec, graph, 0));
    CUDA_CHECK(cudaGraphDestroy(graph));
}

// Runs `work`, which launches the same each time. The first time it launches one by one: the driver
// then loads the kernels, and cuBLASLt's algorithms are chosen, which a capture could forbid.
template <class Work> static void graph_run(Graph *g, cudaStream_t stream, Work work) {
    if (!g->warm) {
        work();
        g->warm = true;
        return;
    }
    if (!g->exec) graph_capture(g, stream, work);
    CUDA_CHECK(cudaGraphLaunch(g->exec, stream));
}

static void graph_free(Graph *g) {
    if (g->exec) CUDA_CHECK(cudaGraphExecDestroy(g->exec));
}
