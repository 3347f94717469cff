// The model cut across the ranks of a tensor group: part of train_gpt2.c. Read each function beside
// the one of train_gpt2.c without tp_. tensor.c has the picture, and why sums stand where they do.
// Cn = C/n are a rank's channels of attention, NHn its heads, Vn its words.

// ---- embedding: a rank gives the rows of its own words, and zeros for the others ----

static void tp_embedding_forward(float *x, const int *token, const float *wte, const float *wpe,
                                 const TpGroup *g, size_t N, size_t T, size_t C) {
    #pragma omp parallel for
    for (size_t n = 0; n < N; n++) {
        int row = tp_row(g, token[n]);
        const float *word = wte + (row < 0 ? 0 : (size_t)row*C), *position = wpe + n % T * C;
        for (size_t c = 0; c < C; c++) x[n*C + c] = row < 0 ? 0.0f : word[c] + position[c];
    }
    tp_sum(g, x, N*C);
}

static void tp_embedding_backward(float *dwte, float *dwpe, const float *dx, const int *token,
                                  const TpGroup *g, size_t N, size_t T, int C) {
    int strips = thread_count();
    #pragma omp parallel for
    for (int s = 0; s < strips; s++) {
        int begin = strip_begin(C, s, strips), end = strip_begin(C, s + 1, strips);
        for (size_t n = 0; n < N; n++) {
            int row = tp_row(g, token[n]);
            for (int c = begin; row >= 0 && c < end; c++) dwte[(size_t)row*C + c] += dx[n*C + c];
            for (int c = begin; c < end; c++) dwpe[n % T * C + c] += dx[n*C + c];
        }
    }
}

// classifier_forward, and with TRAIN classifier_backward, for this rank's words. Returns the sum of
// the losses. Targets of other ranks are column Vn: xent_backward writes it, no product reads it.
static double tp_classifier(Model *m, float *loss, const int *targets, float scale, size_t N,
                            Use use) {
    const TpGroup *g = &m->zero.tp;
    const int *target = tp_targets(g, targets, N);
    int C = m->c.C, Vn = (int)g->words.count, Vp = m->Vp;
    float *wte = m->w.wte, *dx = m->dbranch, *logits = m->logits;
    for (size_t n = 0; n < N; n += m->logit_rows) {
        size_t some = min_size(m->logit_rows, N - n);
        Mat x = rows_of(m->lnf + n*C, C);
        matmul(logits, Vp, x, transpose_of(wte, C), NULL, some, Vn, C, WRITE);
        xent_parts(g->parts + 3*some*g->size, logits, target + n, some, Vn, Vp);
        tp_xent(loss + n, m->lse + n, g->parts, g, some);
        if (use == INFER) continue;
        xent_backward(logits, m->lse + n, target + n, scale, some, Vn, Vp);
        matmul(dx + n*C, C, rows_of(logits, Vp), rows_of(wte, C), NULL, some, C, Vn, WRITE);
        matmul(m->dw.wte, C, transpose_of(logits, Vp), x, NULL, Vn, C, some, ADD);
    }
    if (use == TRAIN) tp_sum(g, dx, N*C);          // a term from each rank's words
    return sum_of(loss, N);
}

// With past > 0 and B = 1 it runs rows past ... T-1 only, as model_extend does.
static void tp_model_forward(Model *m, const int *tokens, int B, int T, int past) {
    Zero *z = &m->zero;
    Weights *w = &m->w;
    size_t C = m->c.C, L = m->c.L, from = past*C, N = (size_t)B*T - past;
    forward_needs(z, 0);
    tp_embedding_forward(m->x_in + from, tokens + past, w->wte, w->wpe + from, &z->tp, N, T, C);
    for (size_t l = 0; l < L; l++) {
        forward_needs(z, 1 + l);
        BlockActs a = acts_from(m->acts[l], past, C, tp_channels(&z->tp));
        block_forward(m, w->block[l], a, B, T - past, past);
    }
    forward_needs(z, 1 + L);
    layernorm_forward(m->lnf + from, m->lnf_mean, m->lnf_rstd, m->acts[L - 1].x_out + from,
                      w->lnf_gain, w->lnf_bias, N, C);
}

static double tp_model_backward(Model *m, const int *tokens, const int *targets, float scale,
                                int B, int T) {
    Zero *z = &m->zero;
    Weights *w = &m->w, *dw = &m->dw;
    int C = m->c.C, L = m->c.L;
    size_t N = (size_t)B*T;
    backward_needs(z, 0);
    backward_needs(z, 1 + L);
    double loss = tp_classifier(m, m->loss, targets, scale, N, TRAIN);
    layernorm_backward(m->dx, dw->lnf_gain, dw->lnf_bias, m->dbranch, m->acts[L - 1].x_out,
                       m->lnf_mean, m->lnf_rstd, w->lnf_gain, N, C);
    gradients_ready(z, 1 + L);
    for (int l = L - 1; l >= 0; l--) {
        backward_needs(z, 1 + l);
        block_backward(m, w->block[l], dw->block[l], m->acts[l], B, T);
        gradients_ready(z, 1 + l);
    }
    tp_embedding_backward(dw->wte, dw->wpe, m->dx, tokens, &z->tp, N, T, C);
    gradients_ready(z, 0);
    return loss;
}

static const float *tp_model_extend(Model *m, const int *tokens, int T, int past) {
    tp_model_forward(m, tokens, 1, T, past);
    tp_collect(&m->zero.tp, m->zero.tp.parts, model_logits(m, T - 1), m->c.V);
    return m->zero.tp.parts;                       // ranks hold the words in their order
}
