// A model that does nothing: all that dev/train/train.h asks of a twin, and dev/ranks of the GPU's
// kernels, so that headers compile without either. tests/test_build.sh compiles it in C and C++.
#pragma once
#include "../dev/train/train.h"

struct Machine { int nothing; };
struct Model { Zero zero; float logits[1]; };

void machine_open(Machine *m, const TrainOptions *o, Comm *c) {
    (void)m, (void)o, (void)c;
}
void machine_close(Machine *m) { (void)m; }
const char *machine_precision(void) { return "none"; }
double machine_peak_flops(Machine *m) { return (void)m, 1.0; }
double machine_free_memory(const Machine *m) { return (void)m, 0.0; }
void model_count(Memory *mem, const ModelSpec *s) {
    (void)s;
    *mem = memory_begin(NULL);
}
void model_init(Model *m, const ModelSpec *s, Machine *machine) {
    (void)machine;
    zero_init(&m->zero, &s->sharing, &s->c, 1, sizeof(float));
}
void model_free(Model *m) { zero_free(&m->zero); }
Zero *model_zero(Model *m) { return &m->zero; }
void model_forward(Model *m, const int *tokens, int B, int T, int past) {
    (void)m, (void)tokens, (void)B, (void)T, (void)past;
}
double model_loss(Model *m, float *each, const int *targets, size_t N) {
    return (void)m, (void)each, (void)targets, (double)N;
}
const float *model_logits(Model *m, int t) { return (void)t, m->logits; }
void clear_grads(Model *m) { (void)m; }
void model_micro_batch(Model *m, size_t i, size_t n) {
    zero_micro_batch(&m->zero, i, n);
}
#ifdef TRAINS_ON_GPU
double model_optimizer_seconds(Model *m) { return (void)m, 0.0; }
#else
double classifier_loss_and_gradient(Model *m, const int *targets, float scale, int B, int T) {
    return (void)m, (void)targets, (void)B, (void)T, scale;
}
void model_backward(Model *m, const int *tokens, int B, int T) {
    (void)m, (void)tokens, (void)B, (void)T;
}
void model_update(Model *m, AdamW o, float g_scale) {
    (void)m, (void)o, (void)g_scale;
}
#endif

#if defined(COMM_ON_GPU)
void gpu_sum(float *, const void *const *, int, float, CommType, CommMode, size_t,
             cudaStream_t) {}
void gpu_narrow(uint16_t *, const float *, size_t, cudaStream_t) {}
void gpu_widen(float *, const uint16_t *, size_t, cudaStream_t) {}
void floats_clear(float *, size_t, Stream) {}
void floats_axpby(float *, float, const float *, float, size_t, Stream) {}
void floats_measure(Zero *, float *, float *, size_t) {}
void floats_weigh(Zero *, Norms, const float *, const float *, size_t) {}
void zero_open(Zero *) {}
void zero_close(Zero *) {}
float *bucket_place_own(Zero *z, Kept, int) { return z->host_bucket; }
void bucket_take(Zero *, Buffer, int) {}
const float *bucket_show(Zero *, float *whole, int) { return whole; }
void zero_loaded(Zero *) {}
#endif
