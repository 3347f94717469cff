// Rotary positions: queries and keys are turned by an angle that grows with their position, and
// positions are not added to the embeddings.

// sign 1: forward; sign -1: backward, since the transpose of a rotation turns back. qkv (rows,3C);
// row i has position (first + i) mod T.
static void rotate(float *qkv, float sign, size_t rows, int T, int first, int C, int NH) {
    int HS = C / NH;
    for (size_t i = 0; i < rows; i++)
        for (int c = 0; c < 2*C; c += 2) {             // queries, then keys
            float angle = (first + i) % T * powf(10000.0f, -(float)(c % HS) / HS);
            float *x = qkv + i*3*C + c, even = x[0], odd = x[1];
            x[0] = even * cosf(angle) - odd * sign * sinf(angle);
            x[1] = even * sign * sinf(angle) + odd * cosf(angle);
        }
}

static void embedding_forward(float *x, const int *token, const float *wte, const float *wpe,
                              int B, int T, int C) {
    (void)wpe;
    for (size_t n = 0; n < (size_t)B*T; n++)
        memcpy(x + n*C, wte + (size_t)token[n]*C, C * sizeof *x);
}

static void embedding_backward(float *dwte, float *dwpe, const float *dx, const int *token,
                               int B, int T, int C) {
    (void)dwpe;
    for (size_t n = 0; n < (size_t)B*T; n++)
        for (int c = 0; c < C; c++) dwte[(size_t)token[n]*C + c] += dx[n*C + c];
}

static void block_forward(Model *m, Block w, BlockActs a, int B, int T, int past) {
    int C = m->c.C, Cn = m->Cn, NHn = m->NHn;
    size_t N = (size_t)B*T;
    float *qkv = a.qkv + (size_t)past*3*Cn;
    layernorm_forward(a.ln1, a.x, w.ln1, N, C);
    linear_forward(qkv, a.ln1.out, w.qkv_w, w.qkv_b, N, C, 3*Cn);
    rotate(qkv, 1.0f, N, past + T, past, C, NHn);
    attention_forward(a.att, a.att_lse, m->scratch, qkv, B, T, past, Cn, NHn);
    branch_project(m, a.att, w.att_proj_w, w.att_proj_b, N, Cn);
    residual_forward(a.x_mid, a.x, m->branch, N*C);
    layernorm_forward(a.ln2, a.x_mid, w.ln2, N, C);
    linear_forward(a.fc, a.ln2.out, w.fc_w, w.fc_b, N, C, 4*Cn);
    gelu_forward(a.gelu, a.fc, N*4*Cn);
    branch_project(m, a.gelu, w.mlp_proj_w, w.mlp_proj_b, N, 4*Cn);
    residual_forward(a.x_out, a.x_mid, m->branch, N*C);
}

static void block_backward(Model *m, Block w, Block dw, BlockActs a, int B, int T) {
    int C = m->c.C, Cn = m->Cn, NHn = m->NHn;
    size_t N = (size_t)B*T;
    float *dx = m->dx;                 // of x_out; then of x_mid; at the end of x
    float *dgelu = m->dfc, *dfc = m->dfc, *dqkv = m->dqkv;           // dfc overwrites dgelu
    float *dbranch = m->dbranch, *dln2 = dbranch, *datt = dbranch, *dln1 = dbranch;   // one buffer
    linear_backward(dgelu, dw.mlp_proj_w, dw.mlp_proj_b, dx, a.gelu, w.mlp_proj_w, N, 4*Cn, C);
    gelu_backward(dfc, dgelu, a.fc, N*4*Cn);
    linear_backward(dln2, dw.fc_w, dw.fc_b, dfc, a.ln2.out, w.fc_w, N, C, 4*Cn);
    branch_input_sum(m, dln2, N);
    layernorm_backward(dbranch, dw.ln2, dln2, a.x_mid, a.ln2, w.ln2, N, C);
    residual_backward(dx, dbranch, N*C);
    linear_backward(datt, dw.att_proj_w, dw.att_proj_b, dx, a.att, w.att_proj_w, N, Cn, C);
    attention_backward(dqkv, m->scratch, datt, a.qkv, a.att, a.att_lse, B, T, Cn, NHn);
    rotate(dqkv, -1.0f, N, T, 0, C, NHn);
    linear_backward(dln1, dw.qkv_w, dw.qkv_b, dqkv, a.ln1.out, w.qkv_w, N, C, 3*Cn);
    branch_input_sum(m, dln1, N);
    layernorm_backward(dbranch, dw.ln1, dln1, a.x, a.ln1, w.ln1, N, C);
    residual_backward(dx, dbranch, N*C);
}
