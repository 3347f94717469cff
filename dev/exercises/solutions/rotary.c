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

static void attention_forward(float *out, float *lse, float *scratch, const float *qkv,
                              int B, int T, int past, int C, int NH) {
    rotate((float *)qkv, 1.0f, (size_t)B*T, past + T, past, C, NH);
    (PLAIN ? attention_forward_plain : attention_forward_fast)(out, lse, scratch, qkv, B, T, past,
                                                               C, NH);
}

static void attention_backward(float *dqkv, float *scratch, const float *dout, const float *qkv,
                               const float *out, const float *lse, int B, int T, int C, int NH) {
    (PLAIN ? attention_backward_plain : attention_backward_fast)(dqkv, scratch, dout, qkv, out, lse,
                                                                 B, T, C, NH);
    rotate(dqkv, -1.0f, (size_t)B*T, T, 0, C, NH);
}
