// The runtime API, part 3: streams and events, as the host creates, records and waits for them, and
// graphs. The queues behind them are in stream.h.
#pragma once
#include "devices.h"

inline cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return emulator::result(cudaSuccess);
}
inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int) {
    if (flags > cudaStreamNonBlocking) return emulator::result(cudaErrorInvalidValue);
    cudaStream_t s = new CUstream_st();
    s->flags = flags;
    s->next = emulator::default_stream.next;
    emulator::default_stream.next = *stream = s;
    return emulator::result(cudaSuccess);
}
inline cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}
// What is queued in the stream still runs.
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    emulator::stream_of(stream)->destroyed = true;
    return emulator::result(cudaSuccess);
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    cudaStream_t s = emulator::stream_of(stream);
    emulator::may_wait(s);
    emulator::wait_for_stream(s);
    return emulator::result(cudaSuccess);
}

// An event is the moment of a stream at which it was last recorded. It is not freed before the
// program ends: queued operations may refer to it.
typedef struct emulator_event {
    emulator::Moment moment;           // without a stream: never recorded
    double seconds;
    unsigned flags;
    bool captured;                     // last recorded in a capture: it has no time
} *cudaEvent_t;
enum { cudaEventDefault = 0, cudaEventDisableTiming = 2 };

namespace emulator { inline std::deque<emulator_event> events; }

inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) {
    emulator::events.push_back({ {}, 0.0, flags, false });
    *e = &emulator::events.back();
    return emulator::result(cudaSuccess);
}
inline cudaError_t cudaEventCreate(cudaEvent_t *e) {
    return cudaEventCreateWithFlags(e, cudaEventDefault);
}
inline cudaError_t cudaEventDestroy(cudaEvent_t) { return emulator::result(cudaSuccess); }

inline cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t stream = nullptr) {
    cudaStream_t s = emulator::stream_of(stream);
    emulator::may_run(s);
    e->captured = s->captures;
    if (!e->captured) e->moment = emulator::enqueue(s, [e] { e->seconds = emulator::now(); });
    return emulator::result(cudaSuccess);
}
// Waits for the moment that the event has now; recording it again does not change the wait. A
// stream that captures cannot wait for what is outside; captures of several streams, which wait for
// each other, are not emulated.
inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t e, unsigned = 0) {
    cudaStream_t s = emulator::stream_of(stream);
    emulator::may_run(s);
    if (s->captures != e->captured && (e->captured || e->moment.stream))
        emulator::fail("cudaStreamWaitEvent: one of stream and event is part of a capture");
    if (!s->captures) emulator::enqueue(s, [] { }, { e->moment });
    return emulator::result(cudaSuccess);
}

inline cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    if (e->captured) return emulator::result(cudaErrorCapturedEvent);
    emulator::may_wait();
    emulator::wait_for(e->moment);
    return emulator::result(cudaSuccess);
}
inline cudaError_t cudaEventQuery(cudaEvent_t e) {
    if (e->captured) return emulator::result(cudaErrorCapturedEvent);
    emulator::may_wait();
    return emulator::result(emulator::ask_for(e->moment) ? cudaSuccess : cudaErrorNotReady);
}
inline cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    if (from->captured || to->captured) return emulator::result(cudaErrorCapturedEvent);
    if (!from->moment.stream || !to->moment.stream ||
        ((from->flags | to->flags) & cudaEventDisableTiming))
        return emulator::result(cudaErrorInvalidValue);
    if (!emulator::passed(from->moment) || !emulator::passed(to->moment))
        return emulator::result(cudaErrorNotReady);
    *ms = (float)(1e3 * (to->seconds - from->seconds));
    return emulator::result(cudaSuccess);
}

// ---- graphs ----

// A stream that captures records its operations (stream.h), and a launch of the graph queues them
// all, in the same order. What a capture of one stream forbids ends the program (devices.h).

typedef struct emulator_graph { std::vector<emulator::Work> works; } *cudaGraph_t, *cudaGraphExec_t;

enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };

inline cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    cudaStream_t s = emulator::stream_of(stream);
    if (s == &emulator::default_stream || s->captures)
        return emulator::result(cudaErrorStreamCaptureUnsupported);
    s->captures = true;
    return emulator::result(cudaSuccess);
}

inline cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    *graph = new emulator_graph();
    (*graph)->works.swap(stream->captured);
    stream->captures = false;
    return emulator::result(cudaSuccess);
}

inline cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph,
                                                 unsigned long long) {
    *exec = new emulator_graph(*graph);
    return emulator::result(cudaSuccess);
}

inline cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    cudaStream_t s = emulator::stream_of(stream);
    emulator::may_run(s);
    for (const emulator::Work &work : exec->works) emulator::enqueue(s, work);
    return emulator::result(cudaSuccess);
}

inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete graph;
    return emulator::result(cudaSuccess);
}
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return cudaGraphDestroy(exec); }
