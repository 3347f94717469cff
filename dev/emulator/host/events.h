// The runtime API, part 3: streams and events, as the host creates, records and waits for them. The
// queues behind them are in stream.h. Graphs are not supported: their functions say so.
#pragma once
#include "devices.h"

static inline cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return emulator::result(cudaSuccess);
}
static inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags,
                                                       int priority) {
    if (flags > cudaStreamNonBlocking) return emulator::result(cudaErrorInvalidValue);
    cudaStream_t s = new emulator_stream();
    s->flags = flags;
    s->priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    s->next = emulator::default_stream.next;
    emulator::default_stream.next = *stream = s;
    return emulator::result(cudaSuccess);
}
static inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}
static inline cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}
static inline cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    cudaStream_t s = emulator::stream_of(stream);
    if (!s) return emulator::result(cudaErrorInvalidResourceHandle);
    *priority = s->priority;
    return emulator::result(cudaSuccess);
}
// What is queued in the stream still runs.
static inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    cudaStream_t s = emulator::stream_of(stream);
    if (!s || s == &emulator::default_stream)
        return emulator::result(cudaErrorInvalidResourceHandle);
    s->destroyed = true;
    return emulator::result(cudaSuccess);
}
static inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    cudaStream_t s = emulator::stream_of(stream);
    if (!s) return emulator::result(cudaErrorInvalidResourceHandle);
    emulator::wait_for_stream(s);
    return emulator::result(cudaSuccess);
}
static inline cudaError_t cudaStreamQuery(cudaStream_t stream) {
    cudaStream_t s = emulator::stream_of(stream);
    if (!s) return emulator::result(cudaErrorInvalidResourceHandle);
    return emulator::result(emulator::ask_for(emulator::end_of(s)) ? cudaSuccess
                                                                  : cudaErrorNotReady);
}

// An event is the moment of a stream at which it was last recorded. It is freed once it is
// destroyed and no queued operation will write its time.
typedef struct emulator_event {
    emulator::Moment moment;
    double seconds;
    unsigned flags;
    int records, queued;               // times it was recorded; those still queued
    bool destroyed;
} *cudaEvent_t;
enum { cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2 };

static inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) {
    *e = new emulator_event();
    (*e)->flags = flags;
    return emulator::result(cudaSuccess);
}
static inline cudaError_t cudaEventCreate(cudaEvent_t *e) {
    return cudaEventCreateWithFlags(e, cudaEventDefault);
}
static inline cudaError_t cudaEventDestroy(cudaEvent_t e) {
    if (!e) return emulator::result(cudaErrorInvalidResourceHandle);
    e->destroyed = true;
    if (e->queued == 0) delete e;
    return emulator::result(cudaSuccess);
}
static inline cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t stream = nullptr) {
    cudaStream_t s = emulator::stream_of(stream);
    if (!e || !s) return emulator::result(cudaErrorInvalidResourceHandle);
    int number = ++e->records;
    e->queued++;
    e->moment = emulator::enqueue(s, [=] {
        if (number == e->records) e->seconds = emulator::device_now();
        if (--e->queued == 0 && e->destroyed) delete e;
    });
    return emulator::result(cudaSuccess);
}
// Waits for the moment that the event has now; recording it again does not change the wait.
static inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t e, unsigned = 0) {
    cudaStream_t s = emulator::stream_of(stream);
    if (!e || !s) return emulator::result(cudaErrorInvalidResourceHandle);
    emulator::enqueue(s, [] { }, { e->moment });
    return emulator::result(cudaSuccess);
}
static inline cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    if (!e) return emulator::result(cudaErrorInvalidResourceHandle);
    emulator::wait_for(e->moment);
    return emulator::result(cudaSuccess);
}
static inline cudaError_t cudaEventQuery(cudaEvent_t e) {
    if (!e) return emulator::result(cudaErrorInvalidResourceHandle);
    return emulator::result(emulator::ask_for(e->moment) ? cudaSuccess : cudaErrorNotReady);
}
static inline cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    if (!from || !to || !from->records || !to->records ||
        ((from->flags | to->flags) & cudaEventDisableTiming))
        return emulator::result(cudaErrorInvalidResourceHandle);
    if (!emulator::passed(from->moment) || !emulator::passed(to->moment))
        return emulator::result(cudaErrorNotReady);
    *ms = (float)(1e3 * (to->seconds - from->seconds));
    return emulator::result(cudaSuccess);
}

// Graphs save launch time on a GPU; here there is none to save.
typedef struct emulator_graph *cudaGraph_t;
typedef struct emulator_graph_exec *cudaGraphExec_t;
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                             cudaStreamCaptureModeRelaxed };

static inline cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
    return emulator::result(cudaErrorNotSupported);
}
static inline cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *) {
    return emulator::result(cudaErrorNotSupported);
}
static inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t *, cudaGraph_t,
                                               unsigned long long = 0) {
    return emulator::result(cudaErrorNotSupported);
}
static inline cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) {
    return emulator::result(cudaErrorNotSupported);
}
static inline cudaError_t cudaGraphDestroy(cudaGraph_t) {
    return emulator::result(cudaErrorNotSupported);
}
static inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) {
    return emulator::result(cudaErrorNotSupported);
}
