// The runtime API, part 5: graphs. A stream that captures records its operations (stream.h), and a
// launch of the graph queues them all, in the same order. What a capture of one stream forbids is
// refused as CUDA refuses it (devices.h), so that a program that captures wrongly fails here too.
#pragma once
#include "events.h"

typedef struct emulator_graph { std::vector<emulator::Work> works; } *cudaGraph_t;
typedef struct emulator_graph_exec { std::vector<emulator::Work> works; } *cudaGraphExec_t;
typedef struct emulator_node *cudaGraphNode_t;

enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };

inline cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    cudaStream_t s = emulator::stream_of(stream);
    if (!s) return emulator::result(cudaErrorInvalidResourceHandle);
    if (s == &emulator::default_stream)
        return emulator::result(cudaErrorStreamCaptureUnsupported);
    if (s->capture) return emulator::result(cudaErrorIllegalState);
    s->capture = new emulator::Capture();
    return emulator::result(cudaSuccess);
}

inline cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    cudaStream_t s = emulator::stream_of(stream);
    *graph = nullptr;
    if (!s) return emulator::result(cudaErrorInvalidResourceHandle);
    if (!s->capture) return emulator::result(cudaErrorIllegalState);
    emulator::Capture *c = s->capture;
    s->capture = nullptr;
    if (!c->invalid) *graph = new emulator_graph{ std::move(c->works) };
    delete c;
    return emulator::result(*graph ? cudaSuccess : cudaErrorStreamCaptureInvalidated);
}

// The number of operations; the nodes themselves are not emulated.
inline cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n) {
    if (!graph || !n) return emulator::result(cudaErrorInvalidValue);
    if (nodes) return emulator::result(cudaErrorNotSupported);
    *n = graph->works.size();
    return emulator::result(cudaSuccess);
}

inline cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph,
                                                        unsigned long long) {
    if (!exec || !graph) return emulator::result(cudaErrorInvalidValue);
    *exec = new emulator_graph_exec{ graph->works };
    return emulator::result(cudaSuccess);
}

inline cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    cudaStream_t s = emulator::stream_of(stream);
    if (!s || !exec) return emulator::result(s ? cudaErrorInvalidValue
                                               : cudaErrorInvalidResourceHandle);
    cudaError_t e = emulator::refuse_operation(s);
    for (size_t i = 0; e == cudaSuccess && i < exec->works.size(); i++)
        emulator::enqueue(s, exec->works[i]);
    return emulator::result(e);
}

inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    if (!graph) return emulator::result(cudaErrorInvalidValue);
    delete graph;
    return emulator::result(cudaSuccess);
}
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    if (!exec) return emulator::result(cudaErrorInvalidValue);
    delete exec;
    return emulator::result(cudaSuccess);
}
