// Muon for the matrices of the blocks, AdamW for all else; one rank. p, m, g (rows,cols).
static void muon_update(float *p, float *m, const float *g, float g_scale, AdamW o, size_t rows,
                        size_t cols) {
    size_t n = rows * cols, s = min_size(rows, cols), l = n / s;
    float *x = alloc_or_die(2*(n + s*s) * sizeof *x, "Muon's matrices"), *next = x + n;
    float *a = next + n, *b = a + s*s;
    double squares = 0.0;
    for (size_t i = 0; i < n; i++) {
        m[i] = o.beta1 * m[i] + g_scale * g[i];
        x[i] = g_scale * g[i] + o.beta1 * m[i];
        squares += (double)x[i] * x[i];
    }
    float inv_norm = squares > 0.0 ? (float)(1.0 / sqrt(squares)) : 0.0f;
    for (size_t i = 0; i < n; i++) x[i] *= inv_norm;
    bool tall = rows > cols;                           // then x^T is orthogonalized
    for (int i = 0; i < 5; i++) {                      // x = 3.4445 x + (-4.775 a + 2.0315 a a) x
        Mat X = tall ? transpose_of(x, cols) : rows_of(x, cols);
        Mat XT = tall ? rows_of(x, cols) : transpose_of(x, cols);
        matmul(a, s, X, XT, NULL, s, s, l, WRITE);
        matmul(b, s, rows_of(a, s), rows_of(a, s), NULL, s, s, s, WRITE);
        for (size_t j = 0; j < s*s; j++) b[j] = -4.7750f * a[j] + 2.0315f * b[j];
        if (tall) matmul(next, cols, rows_of(x, cols), rows_of(b, s), NULL, l, s, s, WRITE);
        else matmul(next, cols, rows_of(b, s), rows_of(x, cols), NULL, s, l, s, WRITE);
        for (size_t j = 0; j < n; j++) x[j] = 3.4445f * x[j] + next[j];
    }
    float scale = 0.2f * sqrtf((float)l);
    for (size_t i = 0; i < n; i++) p[i] -= o.lr * (scale * x[i] + o.weight_decay * p[i]);
    free(x);
}

void model_update(Model *m, AdamW o, float g_scale) {
    Params *p = &m->params;
    size_t blocks = gpt2_bucket(&m->c, 1).begin;
    for (int i = 0; i < p->n_chunks; i++) {
        Chunk k = p->chunks[i];
        AdamW chunk_o = o;
        if (!k.decays) chunk_o.weight_decay = 0.0f;
        if (k.decays && k.param >= blocks) continue;   // a matrix of a block
        adamw_update(p->masters + k.param, p->adam_m + k.moment, p->adam_v + k.moment,
                     p->grads + k.grad, g_scale, chunk_o, k.count);
    }
    for (int i = 0; i < gpt2_n_tensors(&m->c); i++) {
        Tensor t = gpt2_tensor(&m->c, i);
        if (t.layer >= 0 && t.decays)
            muon_update(p->masters + t.offset, p->adam_m + t.offset, p->grads + t.offset, g_scale,
                        o, t.rows, t.cols);
    }
}
