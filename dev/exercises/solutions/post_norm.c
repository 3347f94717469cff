// Post-norm: LayerNorm stands behind each addition, on the residual stream itself. What a LayerNorm
// reads is kept where pre-norm keeps what it writes: ln1 = x + attention(x), ln2 = x_mid +
// MLP(x_mid).

static void block_forward(Model *m, int l, int B, int T, int first) {
    const TpGroup *g = &m->zero.tensor;
    int C = m->c.C, Cn = tp_channels(g);
    size_t from = first, N = (size_t)B*T - from;       // rows from ... from+N-1
    Block w = block_in(bucket_params(&m->zero, 1 + l, 2 + l), &m->c);
    BlockActs a = m->acts[l];
    const float *x = block_input(m, l) + from*C;
    float *branch = m->dx_branch, *x_mid = a.x_mid + from*C;
    float *sum1 = a.ln1 + from*C, *sum2 = a.ln2 + from*C;
    float *fc = a.fc + from*4*Cn, *gelu = a.gelu + from*4*Cn;
    linear_forward(a.qkv + from*3*Cn, x, w.qkv_w, w.qkv_b, N, C, 3*Cn);
    attention_forward(a.att, a.att_lse, m->scratch, a.qkv, B, T, first, Cn, tp_heads(g));
    linear_forward(branch, a.att + from*Cn, w.att_proj_w, tp_bias(g, w.att_proj_b), N, Cn, C);
    tp_sum_rows(g, branch, w.att_proj_b, N, C);
    residual_forward(sum1, x, branch, N*C);
    layernorm_forward(x_mid, a.ln1_mean, a.ln1_rstd, sum1, w.ln1_gain, w.ln1_bias, N, C);
    linear_forward(fc, x_mid, w.fc_w, w.fc_b, N, C, 4*Cn);
    gelu_forward(gelu, fc, N*4*Cn);
    linear_forward(branch, gelu, w.mlp_proj_w, tp_bias(g, w.mlp_proj_b), N, 4*Cn, C);
    tp_sum_rows(g, branch, w.mlp_proj_b, N, C);
    residual_forward(sum2, x_mid, branch, N*C);
    layernorm_forward(a.x_out + from*C, a.ln2_mean, a.ln2_rstd, sum2, w.ln2_gain, w.ln2_bias, N, C);
}

static void block_backward(Model *m, int l, int B, int T) {
    const TpGroup *g = &m->zero.tensor;
    int C = m->c.C, Cn = tp_channels(g);
    size_t N = (size_t)B*T;
    Block w = block_in(bucket_params(&m->zero, 1 + l, l > 0 ? l : -1), &m->c);
    Block d = block_in(bucket_grads(&m->zero, 1 + l), &m->c);
    BlockActs a = m->acts[l];
    float *dx = m->dx, *dbranch = m->dx_branch;
    layernorm_backward(dx, d.ln2_gain, d.ln2_bias, dx, a.ln2, a.ln2_mean, a.ln2_rstd, w.ln2_gain,
                       N, C);
    linear_backward(m->dfc, d.mlp_proj_w, d.mlp_proj_b, dx, a.gelu, w.mlp_proj_w, N, 4*Cn, C);
    gelu_backward(m->dfc, m->dfc, a.fc, N*4*Cn);
    linear_backward(dbranch, d.fc_w, d.fc_b, m->dfc, a.x_mid, w.fc_w, N, C, 4*Cn);
    tp_sum(g, dbranch, N*C);
    residual_forward(dx, dx, dbranch, N*C);
    layernorm_backward(dx, d.ln1_gain, d.ln1_bias, dx, a.ln1, a.ln1_mean, a.ln1_rstd, w.ln1_gain,
                       N, C);
    linear_backward(dbranch, d.att_proj_w, d.att_proj_b, dx, a.att, w.att_proj_w, N, Cn, C);
    attention_backward(m->dqkv, m->scratch, dbranch, a.qkv, a.att, a.att_lse, B, T, Cn,
                       tp_heads(g));
    linear_backward(dbranch, d.qkv_w, d.qkv_b, m->dqkv, block_input(m, l), w.qkv_w, N, C, 3*Cn);
    tp_sum(g, dbranch, N*C);
    residual_forward(dx, dx, dbranch, N*C);
    gradients_ready(&m->zero, 1 + l);
}
