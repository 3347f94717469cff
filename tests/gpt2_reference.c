// See gpt2_reference.h.
#define main static train_gpt2_main    // not called: what it alone needs is not linked
#include "../train_gpt2.c"
#undef main
#include "gpt2_reference.h"

#define AS_IT_IS(name) __typeof__(&name) const c_##name = name
AS_IT_IS(embedding_forward);
AS_IT_IS(embedding_backward);
AS_IT_IS(linear_forward);
AS_IT_IS(linear_backward);
AS_IT_IS(residual_forward);
AS_IT_IS(gelu_forward);
AS_IT_IS(gelu_backward);
AS_IT_IS(xent_forward);
AS_IT_IS(xent_backward);

void c_layernorm_forward(float *out, float *mean, float *rstd, const float *x, float *gain,
                         float *bias, size_t N, int C) {
    layernorm_forward((NormActs){ out, mean, rstd }, x, (Norm){ gain, bias }, N, C);
}

void c_layernorm_backward(float *dx, float *dgain, float *dbias, const float *dout, const float *x,
                          float *mean, float *rstd, float *gain, size_t N, int C) {
    layernorm_backward(dx, (Norm){ dgain, dbias }, dout, x, (NormActs){ NULL, mean, rstd },
                       (Norm){ gain, NULL }, N, C);
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

struct CModel { Model m; };

CModel *c_model_open(const Config *c, int B, int T, uint64_t seed) {
    static Machine machine;
    ModelSpec spec = { *c, B, T, TRAIN, RECOMPUTE_NONE, { .comm = NULL }, 0 };
    CModel *m = alloc_or_die(sizeof *m, "a model");
    model_init(&m->m, &spec, &machine);
    params_draw(&m->m.params, seed);
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

void c_model_update(CModel *m, bool sgd, const float adamw[5], float g_scale, int64_t step) {
    AdamW o = { adamw[0], adamw[1], adamw[2], adamw[3], adamw[4], (double)step, (double)step };
    m->m.params.sgd = sgd;
    model_update(&m->m, o, g_scale);
}

const float *c_model_logits(CModel *m, const int *tokens, int T) {
    model_forward(&m->m, tokens, 1, T, 0);
    return model_logits(&m->m, T - 1);
}
