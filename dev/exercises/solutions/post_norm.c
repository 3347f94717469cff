// Post-norm: LayerNorm stands behind each addition, on the residual stream itself. What a LayerNorm
// reads is kept where pre-norm keeps what it writes: ln1.out = x + attention(x), ln2.out = x_mid +
// MLP(x_mid).

static void block_forward(Model *m, Block w, BlockActs a, int B, int T, int past) {
    int C = m->c.C;
    size_t N = (size_t)B*T;
    float *sum1 = a.ln1.out, *sum2 = a.ln2.out, *qkv = a.qkv + (size_t)past*3*C;
    linear_forward(qkv, a.x, w.qkv_w, w.qkv_b, N, C, 3*C);
    attention_forward(a.att, a.att_lse, m->scratch, qkv, B, T, past, C, m->c.NH);
    linear_forward(m->branch, a.att, w.att_proj_w, w.att_proj_b, N, C, C);
    residual_forward(sum1, a.x, m->branch, N*C);
    layernorm_forward((NormActs){ a.x_mid, a.ln1.mean, a.ln1.rstd }, sum1, w.ln1, N, C);
    linear_forward(a.fc, a.x_mid, w.fc_w, w.fc_b, N, C, 4*C);
    gelu_forward(a.gelu, a.fc, N*4*C);
    linear_forward(m->branch, a.gelu, w.mlp_proj_w, w.mlp_proj_b, N, 4*C, C);
    residual_forward(sum2, a.x_mid, m->branch, N*C);
    layernorm_forward((NormActs){ a.x_out, a.ln2.mean, a.ln2.rstd }, sum2, w.ln2, N, C);
}

static void block_backward(Model *m, Block w, Block dw, BlockActs a, int B, int T) {
    int C = m->c.C;
    size_t N = (size_t)B*T;
    float *dx = m->dx, *dbranch = m->dbranch, *dfc = m->dfc, *dqkv = m->dqkv;
    layernorm_backward(dx, dw.ln2, dx, a.ln2.out, a.ln2, w.ln2, N, C);
    linear_backward(dfc, dw.mlp_proj_w, dw.mlp_proj_b, dx, a.gelu, w.mlp_proj_w, N, 4*C, C);
    gelu_backward(dfc, dfc, a.fc, N*4*C);
    linear_backward(dbranch, dw.fc_w, dw.fc_b, dfc, a.x_mid, w.fc_w, N, C, 4*C);
    residual_backward(dx, dbranch, N*C);
    layernorm_backward(dx, dw.ln1, dx, a.ln1.out, a.ln1, w.ln1, N, C);
    linear_backward(dbranch, dw.att_proj_w, dw.att_proj_b, dx, a.att, w.att_proj_w, N, C, C);
    attention_backward(dqkv, m->scratch, dbranch, a.qkv, a.att, a.att_lse, B, T, C, m->c.NH);
    linear_backward(dbranch, dw.qkv_w, dw.qkv_b, dqkv, a.x, w.qkv_w, N, C, 3*C);
    residual_backward(dx, dbranch, N*C);
}
