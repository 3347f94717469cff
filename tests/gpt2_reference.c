// See gpt2_reference.h.
#define main static train_gpt2_main    // not called: what it alone needs is not linked
#include "../train_gpt2.c"
#undef main
#include "gpt2_reference.h"

void c_embedding_forward(float *x, const int *token, const float *wte, const float *wpe,
                         int B, int T, int C) {
    embedding_forward(x, token, wte, wpe, B, T, C);
}

void c_embedding_backward(float *dwte, float *dwpe, const float *dx, const int *token,
                          int B, int T, int C) {
    embedding_backward(dwte, dwpe, dx, token, B, T, C);
}

void c_layernorm_forward(float *out, float *mean, float *rstd, const float *x, float *gain,
                         float *bias, size_t N, int C) {
    layernorm_forward((NormActs){ out, mean, rstd }, x, (Norm){ gain, bias }, N, C);
}

void c_layernorm_backward(float *dx, float *dgain, float *dbias, const float *dout, const float *x,
                          float *mean, float *rstd, float *gain, size_t N, int C) {
    layernorm_backward(dx, (Norm){ dgain, dbias }, dout, x, (NormActs){ NULL, mean, rstd },
                       (Norm){ gain, NULL }, N, C);
}

void c_linear_forward(float *out, const float *x, const float *w, const float *b,
                      size_t N, int C, int OC) {
    linear_forward(out, x, w, b, N, C, OC);
}

void c_linear_backward(float *dx, float *dw, float *db, const float *dout, const float *x,
                       const float *w, size_t N, int C, int OC) {
    linear_backward(dx, dw, db, dout, x, w, N, C, OC);
}

static float *scratch_or_die(int T, int HS) {
    return alloc_or_die(thread_count()*attention_scratch(T, HS) * sizeof(float), "scratch");
}

void c_attention_forward(float *out, float *lse, const float *qkv,
                         int B, int T, int past, int C, int NH) {
    float *scratch = scratch_or_die(past + T, C / NH);
    attention_forward(out, lse, scratch, qkv, B, T, past, C, NH);
    free(scratch);
}

void c_attention_backward(float *dqkv, const float *dout, const float *qkv, const float *out,
                          const float *lse, int B, int T, int C, int NH) {
    float *scratch = scratch_or_die(T, C / NH);
    attention_backward(dqkv, scratch, dout, qkv, out, lse, B, T, C, NH);
    free(scratch);
}

void c_residual_forward(float *out, const float *a, const float *b, size_t n) {
    residual_forward(out, a, b, n);
}

void c_gelu_forward(float *out, const float *x, size_t n) { gelu_forward(out, x, n); }

void c_gelu_backward(float *dx, const float *dout, const float *x, size_t n) {
    gelu_backward(dx, dout, x, n);
}

void c_xent_forward(float *loss, float *lse, const float *logits, const int *target,
                    size_t N, int V, int Vp) {
    xent_forward(loss, lse, logits, target, N, V, Vp);
}

void c_xent_backward(float *dlogits, const float *lse, const int *target, float scale,
                     size_t N, int V, int Vp) {
    xent_backward(dlogits, lse, target, scale, N, V, Vp);
}

void c_classifier_backward(float *dx, float *dwte, float *loss, float *lse, const float *x,
                           const float *wte, const int *target, float scale,
                           size_t N, int C, int V) {
    float *logits = alloc_or_die(N*V * sizeof(float), "logits");
    matmul(logits, V, rows_of(x, C), transpose_of(wte, C), NULL, N, V, C, WRITE);
    xent_forward(loss, lse, logits, target, N, V, V);
    xent_backward(logits, lse, target, scale, N, V, V);
    matmul(dx, C, rows_of(logits, V), rows_of(wte, C), NULL, N, C, V, WRITE);
    matmul(dwte, C, transpose_of(logits, V), rows_of(x, C), NULL, V, C, N, ADD);
    free(logits);
}

double c_floats_measure(const float *x, const float *v, float correct_v, size_t n) {
    Params p;
    memset(&p, 0, sizeof p);
    p.correct_v = correct_v;
    p.partials = alloc_or_die((n / PARAMS_MEASURED + 1) * sizeof(double), "sums");
    floats_measure(&p, SMALLS, x, v, n);
    free(p.partials);
    return p.norms[SMALLS];
}

struct CModel { Model m; };

CModel *c_model_open(const Config *c, int B, int T, uint64_t seed) {
    static Machine machine;
    ModelSpec spec = { *c, B, T, TRAIN, RECOMPUTE_NONE, { .comm = NULL }, 0 };
    CModel *m = alloc_or_die(sizeof *m, "a model");
    Params *p = &m->m.params;
    model_init(&m->m, &spec, &machine);
    for (int b = 0; b < gpt2_n_buckets(c); b++) {
        gpt2_init_bucket(bucket_place(p, KEPT_WEIGHTS, b), c, b, seed);
        bucket_keep(p, KEPT_WEIGHTS, b);
    }
    params_loaded(p);
    return m;
}

void c_model_close(CModel *m) {
    model_free(&m->m);
    free(m);
}

float *c_model_params(CModel *m) { return m->m.params.masters; }
float *c_model_grads(CModel *m) { return m->m.params.grads; }
float *c_model_m(CModel *m) { return m->m.params.adam_m; }
float *c_model_v(CModel *m) { return m->m.params.adam_v; }
void c_clear_grads(CModel *m) { clear_grads(&m->m); }
double c_gradients_norm(CModel *m) { return sqrt(gradients_squares(&m->m)); }

double c_model_backward(CModel *m, const int *tokens, const int *targets, float scale,
                        int B, int T) {
    model_forward(&m->m, tokens, B, T, 0);
    double loss = classifier_loss_and_gradient(&m->m, targets, scale, B, T);
    model_backward(&m->m, tokens, B, T);
    return loss;
}

void c_model_update(CModel *m, const float adamw[5], float g_scale, int64_t step) {
    AdamW o = { adamw[0], adamw[1], adamw[2], adamw[3], adamw[4], (double)step, (double)step };
    model_update(&m->m, o, g_scale);
}

void c_model_sgd(CModel *m, float lr, float decay, float g_scale) {
    const Params *p = &m->m.params;
    for (int i = 0; i < p->n_chunks; i++) {
        Chunk k = p->chunks[i];
        AdamW o = { lr, 0.0f, 0.0f, 0.0f, k.decays ? decay : 0.0f, 1, 1 };
        sgd_update(p->masters + k.param, p->grads + k.grad, g_scale, o, k.count);
    }
}

const float *c_model_logits(CModel *m, const int *tokens, int T) {
    model_forward(&m->m, tokens, 1, T, 0);
    return model_logits(&m->m, T - 1);
}
