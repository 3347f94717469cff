// The C trainer as a reference for its CUDA twin. Both have functions of the same names, so the C
// file is compiled into a translation unit of its own (gpt2_reference.c), and what the tests call
// of it has a c_ in front.
#pragma once
#include "../dev/model/gpt2.h"

#ifdef __cplusplus
extern "C" {
#endif

// Functions of train_gpt2.c, by their addresses.
extern void (*const c_embedding_forward)(float *x, const int *token, const float *wte,
                                         const float *wpe, int B, int T, int C);
extern void (*const c_embedding_backward)(float *dwte, float *dwpe, const float *dx,
                                          const int *token, int B, int T, int C);
extern void (*const c_linear_forward)(float *out, const float *x, const float *w, const float *b,
                                      size_t N, int C, int OC);
extern void (*const c_linear_backward)(float *dx, float *dw, float *db, const float *dout,
                                       const float *x, const float *w, size_t N, int C, int OC);
extern void (*const c_residual_forward)(float *out, const float *a, const float *b, size_t n);
extern void (*const c_gelu_forward)(float *out, const float *x, size_t n);
extern void (*const c_gelu_backward)(float *dx, const float *dout, const float *x, size_t n);
extern void (*const c_xent_forward)(float *loss, float *lse, const float *logits,
                                    const int *target, size_t N, int V, int Vp);
extern void (*const c_xent_backward)(float *dlogits, const float *lse, const int *target,
                                     float scale, size_t N, int V, int Vp);

void c_layernorm_forward(float *out, float *mean, float *rstd, const float *x, float *gain,
                         float *bias, size_t N, int C);
void c_layernorm_backward(float *dx, float *dgain, float *dbias, const float *dout, const float *x,
                          float *mean, float *rstd, float *gain, size_t N, int C);
void c_attention_forward(float *out, float *lse, const float *qkv,
                         int B, int T, int past, int C, int NH);
void c_attention_backward(float *dqkv, const float *dout, const float *qkv, const float *out,
                          const float *lse, int B, int T, int C, int NH);
void c_classifier_backward(float *dx, float *dwte, float *loss, float *lse, const float *x,
                           const float *wte, const int *target, float scale,
                           size_t N, int C, int V);

// A whole model, by its address.
typedef struct CModel CModel;
CModel *c_model_open(const Config *c, int B, int T, uint64_t seed);
void c_model_close(CModel *m);
float *c_model_params(CModel *m);
float *c_model_grads(CModel *m);
float *c_model_m(CModel *m);
float *c_model_v(CModel *m);
void c_clear_grads(CModel *m);          // clear_grads
double c_gradients_norm(CModel *m);

// Forward and backward; returns the sum of the B*T losses.
double c_model_backward(CModel *m, const int *tokens, const int *targets, float scale,
                        int B, int T);

// AdamW or SGD, with the gradient scaled by g_scale. adamw: lr, beta1, beta2, eps, weight decay
void c_model_update(CModel *m, bool sgd, const float adamw[5], float g_scale, int64_t step);

// The logits of what follows T tokens.
const float *c_model_logits(CModel *m, const int *tokens, int T);

#ifdef __cplusplus
}
#endif
